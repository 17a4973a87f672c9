//! Bit fields, permutations and searches.

use super::integer::Integer;

/// The `length` low bits set; all of them from the width on.
#[inline(always)]
fn low_bits<T: Integer>(length: u32) -> T {
    T::wrap_u64(1).shl(length).sub(T::wrap_u64(1))
}

/// `bfe`: `length` bits of `a` from `position`, sign-extended for signed types. Both counts use 8 bits; bits
/// beyond the width are zero or the sign. A field of no bits is 0.
#[inline(always)]
pub fn bfe<T: Integer>(a: T, position: u32, length: u32) -> T {
    let (position, length) = (position & 0xff, length & 0xff);
    let field = a.shr(position);
    if T::SIGNED {
        let up = T::BITS - length.min(T::BITS);
        if length == 0 { T::ZERO } else { field.shl(up).shr(up) }
    } else {
        field.and(low_bits(length))
    }
}

/// `bfi`: `b` with its `length` bits from `position` replaced by the low bits of `a`. Both counts use 8 bits.
#[inline(always)]
pub fn bfi<T: Integer>(a: T, b: T, position: u32, length: u32) -> T {
    let (position, length) = (position & 0xff, length & 0xff);
    let mask = low_bits::<T>(length).shl(position);
    b.and(mask.not()).or(a.shl(position).and(mask))
}

/// `bfind`: place of the highest bit that differs from the sign, or all ones if there is none. With `shift_amount`,
/// the shift that would bring it to the top.
#[inline(always)]
pub fn bfind<T: Integer>(a: T, shift_amount: bool) -> u32 {
    let zeros = if T::SIGNED && a < T::ZERO { a.not() } else { a }.clz();
    let found = if shift_amount { zeros } else { (T::BITS - 1).wrapping_sub(zeros) };
    if zeros == T::BITS { u32::MAX } else { found }
}

/// `fns`: place of the `|offset|`-th set bit of `mask` from `base` on, upwards or downwards by sign; with offset 0
/// `base` itself if it is set. All ones if there is none, or if `base` is no place.
#[inline(always)]
pub fn fns(mask: u32, base: u32, offset: i32) -> u32 {
    if base > 31 {
        return u32::MAX;
    }
    if offset == 0 {
        return if mask >> base & 1 != 0 { base } else { u32::MAX };
    }
    let (mut rest, step) = (offset.unsigned_abs(), offset.signum());
    let mut place = base as i32;
    while (0..32).contains(&place) {
        rest -= mask >> place & 1;
        if rest == 0 {
            return place as u32;
        }
        place += step;
    }
    u32::MAX
}

/// The modes of `prmt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permutation {
    /// Four selectors of 4 bits.
    Bytes,
    /// `.f4e`: four bytes forwards.
    Forward,
    /// `.b4e`: four bytes backwards.
    Backward,
    /// `.rc8`: one byte four times.
    ReplicateByte,
    /// `.ecl`: edge clamp left.
    ClampLeft,
    /// `.ecr`: edge clamp right.
    ClampRight,
    /// `.rc16`: one half twice.
    ReplicateHalf,
}

impl Permutation {
    /// The four selectors that a mode stands for; `c` chooses among four sets by its low two bits.
    #[inline(always)]
    fn selectors(self, c: u32) -> u32 {
        let sets: u64 = match self {
            Permutation::Bytes => return c,
            Permutation::Forward => 0x6543_5432_4321_3210,
            Permutation::Backward => 0x0123_7012_6701_5670,
            Permutation::ReplicateByte => 0x3333_2222_1111_0000,
            Permutation::ClampLeft => 0x3333_3222_3211_3210,
            Permutation::ClampRight => 0x3210_2210_1110_0000,
            Permutation::ReplicateHalf => 0x3232_1010_3232_1010,
        };
        (sets >> (16 * (c & 3))) as u32 & 0xffff
    }
}

/// `prmt`: four bytes out of the eight of `{b, a}`. Bit 3 of a selector of [`Permutation::Bytes`] replicates the
/// sign of the byte instead.
#[inline(always)]
pub fn prmt(a: u32, b: u32, c: u32, permutation: Permutation) -> u32 {
    let selectors = permutation.selectors(c);
    let mut out = 0;
    for i in 0..4 {
        let selector = selectors >> (4 * i);
        let word = if selector & 4 != 0 { b } else { a };
        let byte = word >> (8 * (selector & 3)) & 0xff;
        let sign = if byte & 0x80 != 0 { 0xff } else { 0 };
        out |= if selector & 8 != 0 { sign } else { byte } << (8 * i);
    }
    out
}

/// `lop3`: bit `4 * a + 2 * b + c` of `table`, at every place.
#[inline(always)]
pub fn lop3(a: u32, b: u32, c: u32, table: u8) -> u32 {
    // Entry i of the table in all bits; for one instruction these are constants.
    let entry = |i: u32| 0_u32.wrapping_sub(u32::from(table) >> i & 1);
    let by_c = |i: u32| entry(i) ^ (c & (entry(i) ^ entry(i + 1)));
    let by_b = |i: u32| (!b & by_c(i)) | (b & by_c(i + 2));
    (!a & by_b(0)) | (a & by_b(4))
}

/// How `shf`, `bmsk` and `szext` read a count of 32 and more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// `.clamp`: as 32.
    Clamp,
    /// `.wrap`: modulo 32.
    Wrap,
}

impl Count {
    #[inline(always)]
    fn limit(self, count: u32) -> u32 {
        match self {
            Count::Clamp => count.min(32),
            Count::Wrap => count & 31,
        }
    }
}

/// `shf.l`: the upper half of `{b, a}` shifted left.
#[inline(always)]
pub fn shf_l(a: u32, b: u32, count: u32, mode: Count) -> u32 {
    ((u64::from(b) << 32 | u64::from(a)) << mode.limit(count) >> 32) as u32
}

/// `shf.r`: the lower half of `{b, a}` shifted right.
#[inline(always)]
pub fn shf_r(a: u32, b: u32, count: u32, mode: Count) -> u32 {
    ((u64::from(b) << 32 | u64::from(a)) >> mode.limit(count)) as u32
}

/// `bmsk`: `length` bits set from `position`.
#[inline(always)]
pub fn bmsk(position: u32, length: u32, mode: Count) -> u32 {
    low_bits::<u32>(mode.limit(length)).shl(mode.limit(position))
}

/// `szext`: the low `length` bits of `a`, zero- or sign-extended by type; no bits give 0.
#[inline(always)]
pub fn szext<T: Integer>(a: T, length: u32, mode: Count) -> T {
    bfe(a, 0, mode.limit(length))
}
