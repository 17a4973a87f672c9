//! Integer arithmetic of every width. Signedness is that of the Rust type; results wrap.

/// The integer types of PTX, 8 to 64 bits.
pub trait Integer: Copy + Ord {
    /// Width of the type.
    const BITS: u32;
    /// Whether the type has a sign.
    const SIGNED: bool;
    /// Smallest value.
    const MIN: Self;
    /// Largest value.
    const MAX: Self;
    /// Zero.
    const ZERO: Self;
    /// Only the highest bit set.
    const HIGHEST: Self;
    /// All bits set.
    const ONES: Self;

    /// Sign- or zero-extends.
    fn to_i128(self) -> i128;
    /// Keeps the low bits.
    fn wrap(x: i128) -> Self;
    /// Keeps the low bits.
    fn wrap_u64(x: u64) -> Self;
    /// Sign- or zero-extends.
    fn to_u64(self) -> u64;
    /// Truncates and saturates; NaN is 0.
    fn truncate_f32(x: f32) -> Self;
    /// Truncates and saturates; NaN is 0.
    fn truncate_f64(x: f64) -> Self;
    /// Rounds to nearest even.
    fn nearest_f32(self) -> f32;
    /// Rounds to nearest even; exact up to 32 bits.
    fn nearest_f64(self) -> f64;

    /// `add`.
    fn add(self, b: Self) -> Self;
    /// `sub`.
    fn sub(self, b: Self) -> Self;
    /// `mul.lo`.
    fn mul_lo(self, b: Self) -> Self;
    /// `mul.hi`.
    fn mul_hi(self, b: Self) -> Self;
    /// `div`: truncates; the smallest value by -1 wraps, and division by zero gives all ones.
    fn div(self, b: Self) -> Self;
    /// `rem`: the sign of the dividend; by zero the dividend.
    fn rem(self, b: Self) -> Self;
    /// `add.sat`.
    fn add_sat(self, b: Self) -> Self;
    /// `sub.sat`.
    fn sub_sat(self, b: Self) -> Self;
    /// `neg`: the smallest value wraps.
    fn neg(self) -> Self;
    /// `abs`: the smallest value wraps.
    fn absolute(self) -> Self;
    /// `shl`: a count from the width on gives 0.
    fn shl(self, count: u32) -> Self;
    /// `shr`: a count from the width on gives 0, or the sign for signed types.
    fn shr(self, count: u32) -> Self;
    /// Absolute difference, modulo the width.
    fn distance(self, b: Self) -> Self;
    /// `add.cc`, `addc.cc`: sum and carry out.
    fn add_carry(self, b: Self, carry: bool) -> (Self, bool);
    /// `sub.cc`, `subc.cc`: difference and borrow out.
    fn sub_borrow(self, b: Self, borrow: bool) -> (Self, bool);
    /// `and`.
    fn and(self, b: Self) -> Self;
    /// `or`.
    fn or(self, b: Self) -> Self;
    /// `xor`.
    fn xor(self, b: Self) -> Self;
    /// `not`.
    fn not(self) -> Self;
    /// `clz`.
    fn clz(self) -> u32;
    /// `popc`.
    fn popc(self) -> u32;
    /// `brev`.
    fn brev(self) -> Self;
}

/// Types whose product `mul.wide` can hold.
pub trait Widen: Integer {
    /// Twice as wide, of the same sign.
    type Wide: Integer;
    /// Sign- or zero-extends.
    fn widen(self) -> Self::Wide;
}

macro_rules! integer {
    ($($t:ident $unsigned:ident $wide:ident $signed:literal,)*) => {$(
        impl Integer for $t {
            const BITS: u32 = $t::BITS;
            const SIGNED: bool = $signed;
            const MIN: $t = $t::MIN;
            const MAX: $t = $t::MAX;
            const ZERO: $t = 0;
            const HIGHEST: $t = (1 as $unsigned).rotate_right(1) as $t;
            const ONES: $t = !0;

            #[inline(always)]
            fn to_i128(self) -> i128 {
                self as i128
            }
            #[inline(always)]
            fn wrap(x: i128) -> $t {
                x as $t
            }
            #[inline(always)]
            fn wrap_u64(x: u64) -> $t {
                x as $t
            }
            #[inline(always)]
            fn to_u64(self) -> u64 {
                self as u64
            }
            #[inline(always)]
            fn truncate_f32(x: f32) -> $t {
                x as $t
            }
            #[inline(always)]
            fn truncate_f64(x: f64) -> $t {
                x as $t
            }
            #[inline(always)]
            fn nearest_f32(self) -> f32 {
                self as f32
            }
            #[inline(always)]
            fn nearest_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn add(self, b: $t) -> $t {
                self.wrapping_add(b)
            }
            #[inline(always)]
            fn sub(self, b: $t) -> $t {
                self.wrapping_sub(b)
            }
            #[inline(always)]
            fn mul_lo(self, b: $t) -> $t {
                self.wrapping_mul(b)
            }
            #[inline(always)]
            fn mul_hi(self, b: $t) -> $t {
                (($wide::from(self) * $wide::from(b)) >> $t::BITS) as $t
            }
            #[inline(always)]
            fn div(self, b: $t) -> $t {
                if b == 0 { !0 } else { self.wrapping_div(b) }
            }
            #[inline(always)]
            fn rem(self, b: $t) -> $t {
                if b == 0 { self } else { self.wrapping_rem(b) }
            }
            #[inline(always)]
            fn add_sat(self, b: $t) -> $t {
                self.saturating_add(b)
            }
            #[inline(always)]
            fn sub_sat(self, b: $t) -> $t {
                self.saturating_sub(b)
            }
            #[inline(always)]
            fn neg(self) -> $t {
                self.wrapping_neg()
            }
            #[inline(always)]
            #[allow(unused_comparisons)]
            fn absolute(self) -> $t {
                if self < 0 { self.wrapping_neg() } else { self }
            }
            #[inline(always)]
            fn shl(self, count: u32) -> $t {
                let shifted = self << (count & ($t::BITS - 1));
                if count < $t::BITS { shifted } else { 0 }
            }
            #[inline(always)]
            fn shr(self, count: u32) -> $t {
                if $signed {
                    self >> count.min($t::BITS - 1)
                } else {
                    let shifted = self >> (count & ($t::BITS - 1));
                    if count < $t::BITS { shifted } else { 0 }
                }
            }
            #[inline(always)]
            fn distance(self, b: $t) -> $t {
                if self > b { self.wrapping_sub(b) } else { b.wrapping_sub(self) }
            }
            #[inline(always)]
            fn add_carry(self, b: $t, carry: bool) -> ($t, bool) {
                let (sum, first) = (self as $unsigned).overflowing_add(b as $unsigned);
                let (sum, second) = sum.overflowing_add(carry as $unsigned);
                (sum as $t, first | second)
            }
            #[inline(always)]
            fn sub_borrow(self, b: $t, borrow: bool) -> ($t, bool) {
                let (difference, first) = (self as $unsigned).overflowing_sub(b as $unsigned);
                let (difference, second) = difference.overflowing_sub(borrow as $unsigned);
                (difference as $t, first | second)
            }
            #[inline(always)]
            fn and(self, b: $t) -> $t {
                self & b
            }
            #[inline(always)]
            fn or(self, b: $t) -> $t {
                self | b
            }
            #[inline(always)]
            fn xor(self, b: $t) -> $t {
                self ^ b
            }
            #[inline(always)]
            fn not(self) -> $t {
                !self
            }
            #[inline(always)]
            fn clz(self) -> u32 {
                self.leading_zeros()
            }
            #[inline(always)]
            fn popc(self) -> u32 {
                self.count_ones()
            }
            #[inline(always)]
            fn brev(self) -> $t {
                self.reverse_bits()
            }
        }
    )*};
}

integer! {
    u8 u8 u16 false,
    i8 u8 i16 true,
    u16 u16 u32 false,
    i16 u16 i32 true,
    u32 u32 u64 false,
    i32 u32 i64 true,
    u64 u64 u128 false,
    i64 u64 i128 true,
}

macro_rules! widen {
    ($($t:ident $wide:ident,)*) => {$(
        impl Widen for $t {
            type Wide = $wide;
            #[inline(always)]
            fn widen(self) -> $wide {
                $wide::from(self)
            }
        }
    )*};
}

widen! {
    u8 u16,
    i8 i16,
    u16 u32,
    i16 i32,
    u32 u64,
    i32 i64,
}

/// `min`.
#[inline(always)]
pub fn min<T: Integer>(a: T, b: T) -> T {
    if a < b { a } else { b }
}

/// `max`.
#[inline(always)]
pub fn max<T: Integer>(a: T, b: T) -> T {
    if a > b { a } else { b }
}

/// `.relu` of `min` and `max`: a negative result becomes 0.
#[inline(always)]
pub fn relu<T: Integer>(x: T) -> T {
    max(x, T::ZERO)
}

/// `cnot`: 1 for zero, 0 for all else.
#[inline(always)]
pub fn cnot<T: Integer>(x: T) -> T {
    T::wrap_u64((x == T::ZERO).into())
}

/// `mul.wide`.
#[inline(always)]
pub fn mul_wide<T: Widen>(a: T, b: T) -> T::Wide {
    a.widen().mul_lo(b.widen())
}

/// `mad.wide`: `c` is as wide as the product.
#[inline(always)]
pub fn mad_wide<T: Widen>(a: T, b: T, c: T::Wide) -> T::Wide {
    mul_wide(a, b).add(c)
}

/// `mad.lo`.
#[inline(always)]
pub fn mad_lo<T: Integer>(a: T, b: T, c: T) -> T {
    a.mul_lo(b).add(c)
}

/// `mad.hi`.
#[inline(always)]
pub fn mad_hi<T: Integer>(a: T, b: T, c: T) -> T {
    a.mul_hi(b).add(c)
}

/// `mad.hi.sat.s32`: the sum saturates.
#[inline(always)]
pub fn mad_hi_sat(a: i32, b: i32, c: i32) -> i32 {
    a.mul_hi(b).add_sat(c)
}

/// `mad.lo.cc`, `madc.lo{.cc}`: result and carry out. `mad.cc` has a carry in of 0.
#[inline(always)]
pub fn mad_lo_carry<T: Integer>(a: T, b: T, c: T, carry: bool) -> (T, bool) {
    a.mul_lo(b).add_carry(c, carry)
}

/// `mad.hi.cc`, `madc.hi{.cc}`: result and carry out.
#[inline(always)]
pub fn mad_hi_carry<T: Integer>(a: T, b: T, c: T, carry: bool) -> (T, bool) {
    a.mul_hi(b).add_carry(c, carry)
}

/// The 48-bit product of the low 24 bits of both operands, sign- or zero-extended by type.
#[inline(always)]
fn product24<T: Integer>(a: T, b: T) -> i64 {
    let low = |x: T| {
        let bits = (x.to_u64() as u32) << 8;
        if T::SIGNED { i64::from((bits as i32) >> 8) } else { i64::from(bits >> 8) }
    };
    low(a) * low(b)
}

/// `mul24.lo`: bits 0 to 31 of the 48-bit product.
#[inline(always)]
pub fn mul24_lo<T: Integer>(a: T, b: T) -> T {
    T::wrap_u64(product24(a, b) as u64)
}

/// `mul24.hi`: bits 16 to 47 of the 48-bit product.
#[inline(always)]
pub fn mul24_hi<T: Integer>(a: T, b: T) -> T {
    T::wrap_u64((product24(a, b) >> 16) as u64)
}

/// `mad24.lo`.
#[inline(always)]
pub fn mad24_lo<T: Integer>(a: T, b: T, c: T) -> T {
    mul24_lo(a, b).add(c)
}

/// `mad24.hi`.
#[inline(always)]
pub fn mad24_hi<T: Integer>(a: T, b: T, c: T) -> T {
    mul24_hi(a, b).add(c)
}

/// `mad24.hi.sat.s32`.
#[inline(always)]
pub fn mad24_hi_sat(a: i32, b: i32, c: i32) -> i32 {
    mul24_hi(a, b).add_sat(c)
}

/// `sad`: `c + |a - b|`.
#[inline(always)]
pub fn sad<T: Integer>(a: T, b: T, c: T) -> T {
    c.add(a.distance(b))
}

/// Byte `i` of a register, extended by the sign that PTX gives the operand.
#[inline(always)]
fn byte(x: u32, i: u32, signed: bool) -> i32 {
    let byte = (x >> (8 * i)) as u8;
    if signed { i32::from(byte as i8) } else { i32::from(byte) }
}

/// `dp4a`: `c` plus four products of bytes, modulo 2^32.
#[inline(always)]
pub fn dp4a(a: u32, b: u32, c: u32, a_signed: bool, b_signed: bool) -> u32 {
    let products = (0..4).map(|i| byte(a, i, a_signed) * byte(b, i, b_signed));
    c.wrapping_add(products.sum::<i32>() as u32)
}

/// `dp2a.lo` and `.hi`: `c` plus the two 16-bit halves of `a` times two bytes of `b`, modulo 2^32.
#[inline(always)]
pub fn dp2a(a: u32, b: u32, c: u32, a_signed: bool, b_signed: bool, high: bool) -> u32 {
    let half = |i: u32| {
        let half = (a >> (16 * i)) as u16;
        if a_signed { i32::from(half as i16) } else { i32::from(half) }
    };
    let first = if high { 2 } else { 0 };
    let products = (0..2).map(|i| half(i) * byte(b, first + i, b_signed));
    c.wrapping_add(products.sum::<i32>() as u32)
}
