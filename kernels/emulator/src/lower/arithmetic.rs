//! Integer, bit and floating-point arithmetic.

use std::marker::PhantomData;

use super::{Lowering, Modifiers, Result, Type, take};
use crate::execute::{Kernel, One, Op1, Op2, Op3, Operands, Registers, Three, Two, Value, Word, store};
use crate::number::extremum::{self, Selection};
use crate::number::integer::{self, Integer, Widen};
use crate::number::packed::{join, join_f32, split, split_f32};
use crate::number::round::{Mode, Rounding};
use crate::number::sixteen::Sixteen;
use crate::number::{approximate, bf16::Bf16, bits, double, float, half::F16};
use crate::text::Operand;

/// Defines operations over the lanes: a type, generic where needed, and the function of one lane.
macro_rules! op {
    ($name:ident $(<$($g:ident: $bound:path),+>)?, |$i:ident| ($x:ident: $a:ty) -> $d:ty = $e:expr) => {
        pub(super) struct $name $(<$($g),+>(PhantomData<($($g,)+)>))?;
        impl $(<$($g: $bound + Value),+>)? Op1 for $name $(<$($g),+>)? {
            type A = $a;
            type D = $d;
            #[inline(always)]
            fn apply($i: u64, $x: $a) -> $d { $e }
        }
    };
    ($name:ident $(<$($g:ident: $bound:path),+>)?, |$i:ident| ($x:ident: $a:ty, $y:ident: $b:ty) -> $d:ty = $e:expr) => {
        pub(super) struct $name $(<$($g),+>(PhantomData<($($g,)+)>))?;
        impl $(<$($g: $bound + Value),+>)? Op2 for $name $(<$($g),+>)? {
            type A = $a;
            type B = $b;
            type D = $d;
            #[inline(always)]
            fn apply($i: u64, $x: $a, $y: $b) -> $d { $e }
        }
    };
    ($name:ident $(<$($g:ident: $bound:path),+>)?, |$i:ident| ($x:ident: $a:ty, $y:ident: $b:ty, $z:ident: $c:ty) -> $d:ty = $e:expr) => {
        pub(super) struct $name $(<$($g),+>(PhantomData<($($g,)+)>))?;
        impl $(<$($g: $bound + Value),+>)? Op3 for $name $(<$($g),+>)? {
            type A = $a;
            type B = $b;
            type C = $c;
            type D = $d;
            #[inline(always)]
            fn apply($i: u64, $x: $a, $y: $b, $z: $c) -> $d { $e }
        }
    };
}
pub(super) use op;

op!(Add<T: Integer>, |_i| (a: T, b: T) -> T = a.add(b));
op!(Sub<T: Integer>, |_i| (a: T, b: T) -> T = a.sub(b));
op!(AddSat<T: Integer>, |_i| (a: T, b: T) -> T = a.add_sat(b));
op!(SubSat<T: Integer>, |_i| (a: T, b: T) -> T = a.sub_sat(b));
op!(MulLo<T: Integer>, |_i| (a: T, b: T) -> T = a.mul_lo(b));
op!(MulHi<T: Integer>, |_i| (a: T, b: T) -> T = a.mul_hi(b));
op!(MadLo<T: Integer>, |_i| (a: T, b: T, c: T) -> T = integer::mad_lo(a, b, c));
op!(MadHi<T: Integer>, |_i| (a: T, b: T, c: T) -> T = integer::mad_hi(a, b, c));
op!(Mul24Lo<T: Integer>, |_i| (a: T, b: T) -> T = integer::mul24_lo(a, b));
op!(Mul24Hi<T: Integer>, |_i| (a: T, b: T) -> T = integer::mul24_hi(a, b));
op!(Mad24Lo<T: Integer>, |_i| (a: T, b: T, c: T) -> T = integer::mad24_lo(a, b, c));
op!(Mad24Hi<T: Integer>, |_i| (a: T, b: T, c: T) -> T = integer::mad24_hi(a, b, c));
op!(Sad<T: Integer>, |_i| (a: T, b: T, c: T) -> T = integer::sad(a, b, c));
op!(Div<T: Integer>, |_i| (a: T, b: T) -> T = a.div(b));
op!(Rem<T: Integer>, |_i| (a: T, b: T) -> T = a.rem(b));
op!(Min<T: Integer>, |_i| (a: T, b: T) -> T = integer::min(a, b));
op!(Max<T: Integer>, |_i| (a: T, b: T) -> T = integer::max(a, b));
op!(MinRelu<T: Integer>, |_i| (a: T, b: T) -> T = integer::relu(integer::min(a, b)));
op!(MaxRelu<T: Integer>, |_i| (a: T, b: T) -> T = integer::relu(integer::max(a, b)));
op!(Neg<T: Integer>, |_i| (a: T) -> T = a.neg());
op!(Abs<T: Integer>, |_i| (a: T) -> T = a.absolute());
op!(And<T: Integer>, |_i| (a: T, b: T) -> T = a.and(b));
op!(Or<T: Integer>, |_i| (a: T, b: T) -> T = a.or(b));
op!(Xor<T: Integer>, |_i| (a: T, b: T) -> T = a.xor(b));
op!(Not<T: Integer>, |_i| (a: T) -> T = a.not());
op!(Shl<T: Integer>, |_i| (a: T, b: u32) -> T = a.shl(b));
op!(Shr<T: Integer>, |_i| (a: T, b: u32) -> T = a.shr(b));
op!(Popc<T: Integer>, |_i| (a: T) -> u32 = a.popc());
op!(Clz<T: Integer>, |_i| (a: T) -> u32 = a.clz());
op!(Brev<T: Integer>, |_i| (a: T) -> T = a.brev());
op!(Bfind<T: Integer>, |i| (a: T) -> u32 = bits::bfind(a, i != 0));
op!(Bfe<T: Integer>, |_i| (a: T, b: u32, c: u32) -> T = bits::bfe(a, b, c));
op!(Fns, |_i| (a: u32, b: u32, c: i32) -> u32 = bits::fns(a, b, c));
op!(PrmtBytes, |_i| (a: u32, b: u32, c: u32) -> u32 = bits::prmt(a, b, c, bits::Permutation::Bytes));
op!(PrmtMode, |i| (a: u32, b: u32, c: u32) -> u32 = bits::prmt(a, b, c, permutation(i)));
op!(Lop3, |i| (a: u32, b: u32, c: u32) -> u32 = bits::lop3(a, b, c, i as u8));
op!(ShfLeft, |i| (a: u32, b: u32, c: u32) -> u32 = bits::shf_l(a, b, c, count(i)));
op!(ShfRight, |i| (a: u32, b: u32, c: u32) -> u32 = bits::shf_r(a, b, c, count(i)));
op!(Bmsk, |i| (a: u32, b: u32) -> u32 = bits::bmsk(a, b, count(i)));
op!(Szext<T: Integer>, |i| (a: T, b: u32) -> T = bits::szext(a, b, count(i)));
op!(Dp4a, |i| (a: u32, b: u32, c: u32) -> u32 = integer::dp4a(a, b, c, i & 1 != 0, i & 2 != 0));
op!(Dp2a, |i| (a: u32, b: u32, c: u32) -> u32 = integer::dp2a(a, b, c, i & 1 != 0, i & 2 != 0, i & 4 != 0));

/// `mul.wide` and `mad.wide`.
struct MulWide<T>(PhantomData<T>);
impl<T: Widen + Value> Op2 for MulWide<T>
where
    T::Wide: Value,
{
    type A = T;
    type B = T;
    type D = T::Wide;
    #[inline(always)]
    fn apply(_: u64, a: T, b: T) -> T::Wide {
        integer::mul_wide(a, b)
    }
}
struct MadWide<T>(PhantomData<T>);
impl<T: Widen + Value> Op3 for MadWide<T>
where
    T::Wide: Value,
{
    type A = T;
    type B = T;
    type C = T::Wide;
    type D = T::Wide;
    #[inline(always)]
    fn apply(_: u64, a: T, b: T, c: T::Wide) -> T::Wide {
        integer::mad_wide(a, b, c)
    }
}

/// `bfi`: the length is the low half of the constant's register, so it takes four operands.
struct Bfi<T>(PhantomData<T>);
impl<T: Integer + Value> Kernel for Bfi<T> {
    #[inline(always)]
    fn run(registers: &mut Registers, operands: &Operands, mask: u32) {
        let a = *T::Word::lanes(registers, operands.a);
        let b = *T::Word::lanes(registers, operands.b);
        let position = *registers.narrow(operands.c);
        let length = *registers.narrow(operands.imm as u32);
        let mut d = [T::Word::default(); 32];
        for lane in 0..32 {
            let (a, b) = (T::from_word(a[lane]), T::from_word(b[lane]));
            d[lane] = bits::bfi(a, b, position[lane], length[lane]).to_word();
        }
        store(registers, operands.d, mask, &d);
    }
}

/// Operations with the condition code: sum, difference or product with carry in and out.
#[derive(Clone, Copy)]
enum Carried {
    Add,
    Sub,
    MadLo,
    MadHi,
}
/// `imm`: bit 0 carry in, bit 1 carry out, the operation above.
struct WithCarry<T>(PhantomData<T>);
impl<T: Integer + Value> Kernel for WithCarry<T> {
    #[inline(always)]
    fn run(registers: &mut Registers, operands: &Operands, mask: u32) {
        let (a, b) = (*T::Word::lanes(registers, operands.a), *T::Word::lanes(registers, operands.b));
        let c = *T::Word::lanes(registers, operands.c);
        let (carry_in, carry_out) = (operands.imm & 1 != 0, operands.imm & 2 != 0);
        let carry = if carry_in { registers.carry } else { 0 };
        let mut out = 0;
        let mut d = [T::Word::default(); 32];
        for lane in 0..32 {
            let (a, b, c) = (T::from_word(a[lane]), T::from_word(b[lane]), T::from_word(c[lane]));
            let carry = carry >> lane & 1 == 1;
            let (value, overflow) = match operands.imm >> 2 {
                0 => a.add_carry(b, carry),
                1 => a.sub_borrow(b, carry),
                2 => integer::mad_lo_carry(a, b, c, carry),
                _ => integer::mad_hi_carry(a, b, c, carry),
            };
            d[lane] = value.to_word();
            out |= u32::from(overflow) << lane;
        }
        store(registers, operands.d, mask, &d);
        if carry_out {
            registers.carry = (registers.carry & !mask) | (out & mask);
        }
    }
}

fn permutation(code: u64) -> bits::Permutation {
    use bits::Permutation::*;
    [Bytes, Forward, Backward, ReplicateByte, ClampLeft, ClampRight, ReplicateHalf][code as usize % 7]
}

#[inline(always)]
fn count(code: u64) -> bits::Count {
    if code == 0 { bits::Count::Clamp } else { bits::Count::Wrap }
}

/// A [`Mode`] as the constant of an operation.
pub(super) fn encode(mode: Mode) -> u64 {
    let rounding = match mode.rounding {
        Rounding::NearestEven => 0,
        Rounding::NearestAway => 1,
        Rounding::Zero => 2,
        Rounding::Down => 3,
        Rounding::Up => 4,
    };
    rounding
        | u64::from(mode.ftz) << 3
        | u64::from(mode.sat) << 4
        | u64::from(mode.relu) << 5
        | u64::from(mode.satfinite) << 6
}

/// The inverse of [`encode`].
#[inline(always)]
pub(super) fn mode(code: u64) -> Mode {
    let flag = |bit: u32| code >> bit & 1 == 1;
    Mode { rounding: rounding(code), ftz: flag(3), sat: flag(4), relu: flag(5), satfinite: flag(6) }
}

/// The rounding in an encoded mode.
#[inline(always)]
pub(super) fn rounding(code: u64) -> Rounding {
    match code & 7 {
        0 => Rounding::NearestEven,
        1 => Rounding::NearestAway,
        2 => Rounding::Zero,
        3 => Rounding::Down,
        _ => Rounding::Up,
    }
}

const FTZ: Mode = Mode::RN.ftz();

/// Operations of f32 in the two common modes and in any.
macro_rules! float_op {
    ($plain:ident $ftz:ident $any:ident, ($($x:ident),+) = $f:path) => {
        float_op!(@one $plain, |_i| ($($x),+), $f, Mode::RN);
        float_op!(@one $ftz, |_i| ($($x),+), $f, FTZ);
        float_op!(@one $any, |i| ($($x),+), $f, mode(i));
    };
    (@one $name:ident, |$i:ident| ($a:ident), $f:path, $mode:expr) => {
        op!($name, |$i| ($a: f32) -> f32 = $f($a, $mode));
    };
    (@one $name:ident, |$i:ident| ($a:ident, $b:ident), $f:path, $mode:expr) => {
        op!($name, |$i| ($a: f32, $b: f32) -> f32 = $f($a, $b, $mode));
    };
    (@one $name:ident, |$i:ident| ($a:ident, $b:ident, $c:ident), $f:path, $mode:expr) => {
        op!($name, |$i| ($a: f32, $b: f32, $c: f32) -> f32 = $f($a, $b, $c, $mode));
    };
}
float_op!(FAdd FAddFtz FAddAny, (a, b) = float::add);
float_op!(FSub FSubFtz FSubAny, (a, b) = float::sub);
float_op!(FMul FMulFtz FMulAny, (a, b) = float::mul);
float_op!(FFma FFmaFtz FFmaAny, (a, b, c) = float::fma);
float_op!(FNeg FNegFtz FNegAny, (a) = float::neg);
float_op!(FAbs FAbsFtz FAbsAny, (a) = float::abs);
float_op!(Ex2 Ex2Ftz Ex2Any, (a) = approximate::ex2);
float_op!(Lg2 Lg2Ftz Lg2Any, (a) = approximate::lg2);
float_op!(Rcp RcpFtz RcpAny, (a) = approximate::rcp);
float_op!(Rsqrt RsqrtFtz RsqrtAny, (a) = approximate::rsqrt);
float_op!(SqrtApprox SqrtApproxFtz SqrtApproxAny, (a) = approximate::sqrt);
float_op!(DivApprox DivApproxFtz DivApproxAny, (a, b) = approximate::div);
op!(FDiv, |i| (a: f32, b: f32) -> f32 = float::div(a, b, mode(i)));
op!(FRcp, |i| (a: f32) -> f32 = float::rcp(a, mode(i)));
op!(FSqrt, |i| (a: f32) -> f32 = float::sqrt(a, mode(i)));
op!(Sin, |i| (a: f32) -> f32 = approximate::sin(a, mode(i)));
op!(Cos, |i| (a: f32) -> f32 = approximate::cos(a, mode(i)));
op!(Tanh, |_i| (a: f32) -> f32 = approximate::tanh(a));
op!(Copysign, |_i| (a: f32, b: f32) -> f32 = float::copysign(a, b));
op!(FMinPlain, |_i| (a: f32, b: f32) -> f32 = extremum::min(a, b, Selection::default()));
op!(FMaxPlain, |_i| (a: f32, b: f32) -> f32 = extremum::max(a, b, Selection::default()));
op!(FMin, |i| (a: f32, b: f32) -> f32 = extremum::min(a, b, selection(i)));
op!(FMax, |i| (a: f32, b: f32) -> f32 = extremum::max(a, b, selection(i)));
op!(FMin3, |i| (a: f32, b: f32, c: f32) -> f32 = extremum::min3(a, b, c, selection(i)));
op!(FMax3, |i| (a: f32, b: f32, c: f32) -> f32 = extremum::max3(a, b, c, selection(i)));

op!(DAdd, |i| (a: f64, b: f64) -> f64 = double::add(a, b, rounding(i)));
op!(DSub, |i| (a: f64, b: f64) -> f64 = double::sub(a, b, rounding(i)));
op!(DMul, |i| (a: f64, b: f64) -> f64 = double::mul(a, b, rounding(i)));
op!(DFma, |i| (a: f64, b: f64, c: f64) -> f64 = double::fma(a, b, c, rounding(i)));
op!(DDiv, |i| (a: f64, b: f64) -> f64 = double::div(a, b, rounding(i)));
op!(DRcp, |i| (a: f64) -> f64 = double::rcp(a, rounding(i)));
op!(DSqrt, |i| (a: f64) -> f64 = double::sqrt(a, rounding(i)));
op!(DRcpApprox, |_i| (a: f64) -> f64 = approximate::rcp_f64(a));
op!(DRsqrt, |i| (a: f64) -> f64 = if i == 0 { approximate::rsqrt_f64(a) } else { approximate::rsqrt_ftz_f64(a) });
op!(DMin, |_i| (a: f64, b: f64) -> f64 = extremum::min_f64(a, b));
op!(DMax, |_i| (a: f64, b: f64) -> f64 = extremum::max_f64(a, b));
op!(DNeg, |_i| (a: f64) -> f64 = -a);
op!(DAbs, |_i| (a: f64) -> f64 = a.abs());

/// A 16-bit format as a type parameter of operations.
pub(super) trait Format: Sixteen {}
impl Format for F16 {}
impl Format for Bf16 {}

/// Operations of f16 and bf16, single and packed.
macro_rules! sixteen_op {
    ($name:ident $packed:ident, |$i:ident| ($($x:ident),+) = $e:expr) => {
        sixteen_op!(@define $name $packed, $i, ($($x),+), $e);
    };
    (@define $name:ident $packed:ident, $i:ident, ($a:ident), $e:expr) => {
        struct $name<F>(PhantomData<F>);
        impl<F: Format> Op1 for $name<F> {
            type A = u16;
            type D = u16;
            #[inline(always)]
            fn apply($i: u64, $a: u16) -> u16 { $e }
        }
        struct $packed<F>(PhantomData<F>);
        impl<F: Format> Op1 for $packed<F> {
            type A = u32;
            type D = u32;
            #[inline(always)]
            fn apply(i: u64, a: u32) -> u32 {
                let a = split(a);
                join($name::<F>::apply(i, a.0), $name::<F>::apply(i, a.1))
            }
        }
    };
    (@define $name:ident $packed:ident, $i:ident, ($a:ident, $b:ident), $e:expr) => {
        struct $name<F>(PhantomData<F>);
        impl<F: Format> Op2 for $name<F> {
            type A = u16;
            type B = u16;
            type D = u16;
            #[inline(always)]
            fn apply($i: u64, $a: u16, $b: u16) -> u16 { $e }
        }
        struct $packed<F>(PhantomData<F>);
        impl<F: Format> Op2 for $packed<F> {
            type A = u32;
            type B = u32;
            type D = u32;
            #[inline(always)]
            fn apply(i: u64, a: u32, b: u32) -> u32 {
                let (a, b) = (split(a), split(b));
                join($name::<F>::apply(i, a.0, b.0), $name::<F>::apply(i, a.1, b.1))
            }
        }
    };
    (@define $name:ident $packed:ident, $i:ident, ($a:ident, $b:ident, $c:ident), $e:expr) => {
        struct $name<F>(PhantomData<F>);
        impl<F: Format> Op3 for $name<F> {
            type A = u16;
            type B = u16;
            type C = u16;
            type D = u16;
            #[inline(always)]
            fn apply($i: u64, $a: u16, $b: u16, $c: u16) -> u16 { $e }
        }
        struct $packed<F>(PhantomData<F>);
        impl<F: Format> Op3 for $packed<F> {
            type A = u32;
            type B = u32;
            type C = u32;
            type D = u32;
            #[inline(always)]
            fn apply(i: u64, a: u32, b: u32, c: u32) -> u32 {
                let (a, b, c) = (split(a), split(b), split(c));
                join($name::<F>::apply(i, a.0, b.0, c.0), $name::<F>::apply(i, a.1, b.1, c.1))
            }
        }
    };
}
sixteen_op!(HAdd HAdd2, |i| (a, b) = F::add(a, b, mode(i)));
sixteen_op!(HSub HSub2, |i| (a, b) = F::sub(a, b, mode(i)));
sixteen_op!(HMul HMul2, |i| (a, b) = F::mul(a, b, mode(i)));
sixteen_op!(HFma HFma2, |i| (a, b, c) = F::fma(a, b, c, mode(i)));
sixteen_op!(HNeg HNeg2, |i| (a) = F::neg(a, mode(i)));
sixteen_op!(HAbs HAbs2, |i| (a) = F::abs(a, mode(i)));
sixteen_op!(HMin HMin2, |i| (a, b) = F::min(a, b, selection(i)));
sixteen_op!(HMax HMax2, |i| (a, b) = F::max(a, b, selection(i)));
sixteen_op!(HEx2 HEx22, |i| (a) = F::from_f32(approximate::ex2(F::to_f32(F::input(a, mode(i))), Mode::RN), Rounding::NearestEven));
sixteen_op!(HTanh HTanh2, |_i| (a) = F::from_f32(approximate::tanh(F::to_f32(a)), Rounding::NearestEven));

// `u16x2`, `s16x2`.
op!(Add16x2, |_i| (a: u32, b: u32) -> u32 = pair(a, b, u16::wrapping_add));
op!(Sub16x2, |_i| (a: u32, b: u32) -> u32 = pair(a, b, u16::wrapping_sub));
op!(MinU16x2, |_i| (a: u32, b: u32) -> u32 = pair(a, b, integer::min::<u16>));
op!(MaxU16x2, |_i| (a: u32, b: u32) -> u32 = pair(a, b, integer::max::<u16>));
op!(MinS16x2, |i| (a: u32, b: u32) -> u32 = pair(a, b, |x, y| relu_if(i, integer::min(x as i16, y as i16))));
op!(MaxS16x2, |i| (a: u32, b: u32) -> u32 = pair(a, b, |x, y| relu_if(i, integer::max(x as i16, y as i16))));

#[inline(always)]
fn pair(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    let (a, b) = (split(a), split(b));
    join(f(a.0, b.0), f(a.1, b.1))
}

#[inline(always)]
fn relu_if(code: u64, x: i16) -> u16 {
    (if code != 0 { integer::relu(x) } else { x }) as u16
}

op!(AddF32x2, |i| (a: u64, b: u64) -> u64 = {
    let (a, b) = (split_f32(a), split_f32(b));
    join_f32(float::add(a.0, b.0, mode(i)), float::add(a.1, b.1, mode(i)))
});
op!(SubF32x2, |i| (a: u64, b: u64) -> u64 = {
    let (a, b) = (split_f32(a), split_f32(b));
    join_f32(float::sub(a.0, b.0, mode(i)), float::sub(a.1, b.1, mode(i)))
});
op!(MulF32x2, |i| (a: u64, b: u64) -> u64 = {
    let (a, b) = (split_f32(a), split_f32(b));
    join_f32(float::mul(a.0, b.0, mode(i)), float::mul(a.1, b.1, mode(i)))
});
op!(FmaF32x2, |i| (a: u64, b: u64, c: u64) -> u64 = {
    let (a, b, c) = (split_f32(a), split_f32(b), split_f32(c));
    join_f32(float::fma(a.0, b.0, c.0, mode(i)), float::fma(a.1, b.1, c.1, mode(i)))
});

/// Operations of f32 with narrow sources: `add.rn.f32.bf16` and its kin.
macro_rules! mixed_op {
    ($name:ident, |$i:ident, $F:ident| ($a:ident: $at:ty, $b:ident: $bt:ty) = $e:expr) => {
        struct $name<F>(PhantomData<F>);
        impl<$F: Format> Op2 for $name<$F> {
            type A = $at;
            type B = $bt;
            type D = f32;
            #[inline(always)]
            fn apply($i: u64, $a: $at, $b: $bt) -> f32 {
                $e
            }
        }
    };
}
mixed_op!(MixedAdd, |i, F| (a: u16, b: f32) = float::add(F::to_f32(a), b, mode(i)));
mixed_op!(MixedSub, |i, F| (a: u16, b: f32) = float::sub(F::to_f32(a), b, mode(i)));
struct MixedFma<F>(PhantomData<F>);
impl<F: Format> Op3 for MixedFma<F> {
    type A = u16;
    type B = u16;
    type C = f32;
    type D = f32;
    #[inline(always)]
    fn apply(i: u64, a: u16, b: u16, c: f32) -> f32 {
        float::fma(F::to_f32(a), F::to_f32(b), c, mode(i))
    }
}

/// The [`Selection`] of a constant.
#[inline(always)]
fn selection(code: u64) -> Selection {
    let flag = |bit: u32| code >> bit & 1 == 1;
    Selection { nan: flag(0), abs: flag(1), xorsign: flag(2), ftz: flag(3) }
}

/// Picks a generic operation by integer type.
macro_rules! by_integer {
    ($self:ident, $ty:expr, $operands:expr, $shape:ident<$op:ident>) => {
        match $ty {
            Type::U16 | Type::B16 => $self.alu::<$shape<$op<u16>>>($operands),
            Type::S16 => $self.alu::<$shape<$op<i16>>>($operands),
            Type::U32 | Type::B32 => $self.alu::<$shape<$op<u32>>>($operands),
            Type::S32 => $self.alu::<$shape<$op<i32>>>($operands),
            Type::U64 | Type::B64 => $self.alu::<$shape<$op<u64>>>($operands),
            Type::S64 => $self.alu::<$shape<$op<i64>>>($operands),
            other => return Err(format!("type {other:?} is not supported here")),
        }
    };
}

/// Picks an operation of a 16-bit format, single or packed.
macro_rules! by_sixteen {
    ($self:ident, $ty:expr, $operands:expr, $shape:ident<$op:ident $packed:ident>) => {
        match $ty {
            Type::F16 => $self.alu::<$shape<$op<F16>>>($operands),
            Type::Bf16 => $self.alu::<$shape<$op<Bf16>>>($operands),
            Type::F16x2 => $self.alu::<$shape<$packed<F16>>>($operands),
            Type::Bf16x2 => $self.alu::<$shape<$packed<Bf16>>>($operands),
            other => return Err(format!("type {other:?} is not supported here")),
        }
    };
}

/// Picks among the modes of an f32 operation.
macro_rules! by_mode {
    ($self:ident, $mode:expr, $operands:expr, $shape:ident<$plain:ident $ftz:ident $any:ident>) => {
        match $mode {
            Mode::RN => $self.alu::<$shape<$plain>>($operands),
            FTZ => $self.alu::<$shape<$ftz>>($operands),
            _ => $self.alu::<$shape<$any>>($operands),
        }
    };
}

/// The mode that the modifiers state; nearest even where they state no rounding.
pub(super) fn stated_mode(modifiers: &Modifiers<'_>) -> Mode {
    let rounding = match () {
        () if modifiers.has("rz") || modifiers.has("rzi") => Rounding::Zero,
        () if modifiers.has("rm") || modifiers.has("rmi") => Rounding::Down,
        () if modifiers.has("rp") || modifiers.has("rpi") => Rounding::Up,
        () if modifiers.has("rna") => Rounding::NearestAway,
        () => Rounding::NearestEven,
    };
    Mode {
        rounding,
        ftz: modifiers.has("ftz"),
        sat: modifiers.has("sat"),
        relu: modifiers.has("relu"),
        satfinite: modifiers.has("satfinite"),
    }
}

const FLOAT_MODIFIERS: &[&str] = &["rn", "rz", "rm", "rp", "ftz", "sat", "relu", "approx", "full", "noftz"];

impl Lowering<'_> {
    /// Operands of one type throughout.
    pub(super) fn uniform(&mut self, operands: &[Operand], ty: Type) -> Result<Operands> {
        let [d, sources @ ..] = operands else { return Err("no operands".to_string()) };
        if sources.is_empty() || sources.len() > 3 {
            return Err(format!("{} operands", operands.len()));
        }
        let mut slots = [0; 3];
        for (slot, source) in slots.iter_mut().zip(sources) {
            *slot = self.source(source, ty)?;
        }
        let d = self.destination(d, ty)?;
        Ok(Operands { d, a: slots[0], b: slots[1], c: slots[2], imm: 0 })
    }

    pub(super) fn arithmetic(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<bool> {
        match m.mnemonic {
            "add" | "sub" | "mul" | "mad" | "fma" | "div" | "rem" | "min" | "max" | "neg" | "abs" => {}
            "addc" | "subc" | "madc" => {
                self.carried(m, operands)?;
                return Ok(true);
            }
            _ => return self.bitwise(m, operands),
        }
        let ty = match m.mnemonic {
            // `mul.wide.s32`, `add.rn.f32.bf16`: the first type.
            "add" | "sub" | "fma" | "mul" | "mad" => m.types().first().copied().ok_or("no type")?,
            _ => m.ty()?,
        };
        match ty {
            Type::F32 if m.types().len() > 1 => self.mixed(m, operands)?,
            Type::F32 => self.single(m, operands)?,
            Type::F64 => self.double(m, operands)?,
            Type::F16 | Type::Bf16 | Type::F16x2 | Type::Bf16x2 => self.sixteen(m, operands, ty)?,
            Type::F32x2 => {
                m.only(FLOAT_MODIFIERS)?;
                let o = Operands { imm: encode(stated_mode(m)), ..self.uniform(operands, ty)? };
                match m.mnemonic {
                    "add" => self.alu::<Two<AddF32x2>>(o),
                    "sub" => self.alu::<Two<SubF32x2>>(o),
                    "mul" => self.alu::<Two<MulF32x2>>(o),
                    "fma" => self.alu::<Three<FmaF32x2>>(o),
                    _ => return Ok(false),
                }
            }
            Type::U16x2 | Type::S16x2 => {
                m.only(&["relu"])?;
                let o = Operands { imm: u64::from(m.has("relu")), ..self.uniform(operands, Type::B32)? };
                match (m.mnemonic, ty) {
                    ("add", _) => self.alu::<Two<Add16x2>>(o),
                    ("sub", _) => self.alu::<Two<Sub16x2>>(o),
                    ("min", Type::U16x2) => self.alu::<Two<MinU16x2>>(o),
                    ("max", Type::U16x2) => self.alu::<Two<MaxU16x2>>(o),
                    ("min", _) => self.alu::<Two<MinS16x2>>(o),
                    ("max", _) => self.alu::<Two<MaxS16x2>>(o),
                    _ => return Ok(false),
                }
            }
            _ => self.integer(m, operands, ty)?,
        }
        Ok(true)
    }

    fn integer(&mut self, m: &Modifiers<'_>, operands: &[Operand], ty: Type) -> Result<()> {
        m.only(&["lo", "hi", "wide", "sat", "cc", "relu"])?;
        if m.has("cc") {
            return self.carried(m, operands);
        }
        if m.has("wide") {
            return self.widening(m, operands, ty);
        }
        let o = self.uniform(operands, ty)?;
        match m.mnemonic {
            "add" if m.has("sat") => by_integer!(self, ty, o, Two<AddSat>),
            "sub" if m.has("sat") => by_integer!(self, ty, o, Two<SubSat>),
            "add" => by_integer!(self, ty, o, Two<Add>),
            "sub" => by_integer!(self, ty, o, Two<Sub>),
            "mul" if m.has("hi") => by_integer!(self, ty, o, Two<MulHi>),
            "mul" => by_integer!(self, ty, o, Two<MulLo>),
            "mad" if m.has("hi") && m.has("sat") => {
                return Err("saturating products are not supported".into());
            }
            "mad" if m.has("hi") => by_integer!(self, ty, o, Three<MadHi>),
            "mad" => by_integer!(self, ty, o, Three<MadLo>),
            "div" => by_integer!(self, ty, o, Two<Div>),
            "rem" => by_integer!(self, ty, o, Two<Rem>),
            "min" if m.has("relu") => by_integer!(self, ty, o, Two<MinRelu>),
            "max" if m.has("relu") => by_integer!(self, ty, o, Two<MaxRelu>),
            "min" => by_integer!(self, ty, o, Two<Min>),
            "max" => by_integer!(self, ty, o, Two<Max>),
            "neg" => by_integer!(self, ty, o, One<Neg>),
            "abs" => by_integer!(self, ty, o, One<Abs>),
            _ => return Err("not an integer operation".to_string()),
        }
        Ok(())
    }

    fn widening(&mut self, m: &Modifiers<'_>, operands: &[Operand], ty: Type) -> Result<()> {
        let wide = match ty {
            Type::U16 => Type::U32,
            Type::S16 => Type::S32,
            Type::U32 => Type::U64,
            Type::S32 => Type::S64,
            other => return Err(format!("type {other:?} cannot be widened")),
        };
        let (d, a, b) = match operands {
            [d, a, b] | [d, a, b, _] => (d, a, b),
            _ => return Err(format!("{} operands", operands.len())),
        };
        let (a, b) = (self.source(a, ty)?, self.source(b, ty)?);
        let c = operands.get(3).map(|c| self.source(c, wide)).transpose()?.unwrap_or(0);
        let o = Operands { d: self.destination(d, wide)?, a, b, c, imm: 0 };
        match (m.mnemonic, ty) {
            ("mul", Type::U16) => self.alu::<Two<MulWide<u16>>>(o),
            ("mul", Type::S16) => self.alu::<Two<MulWide<i16>>>(o),
            ("mul", Type::U32) => self.alu::<Two<MulWide<u32>>>(o),
            ("mul", _) => self.alu::<Two<MulWide<i32>>>(o),
            (_, Type::U16) => self.alu::<Three<MadWide<u16>>>(o),
            (_, Type::S16) => self.alu::<Three<MadWide<i16>>>(o),
            (_, Type::U32) => self.alu::<Three<MadWide<u32>>>(o),
            (_, _) => self.alu::<Three<MadWide<i32>>>(o),
        }
        Ok(())
    }

    fn carried(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<()> {
        m.only(&["cc", "lo", "hi"])?;
        let ty = m.ty()?;
        let o = self.uniform(operands, ty)?;
        let operation = match m.mnemonic {
            "add" | "addc" => Carried::Add,
            "sub" | "subc" => Carried::Sub,
            _ if m.has("hi") => Carried::MadHi,
            _ => Carried::MadLo,
        };
        let carry_in = u64::from(m.mnemonic.ends_with('c'));
        let imm = carry_in | u64::from(m.has("cc")) << 1 | (operation as u64) << 2;
        let o = Operands { imm, ..o };
        match ty {
            Type::U32 | Type::B32 => self.alu::<WithCarry<u32>>(o),
            Type::S32 => self.alu::<WithCarry<i32>>(o),
            Type::U64 | Type::B64 => self.alu::<WithCarry<u64>>(o),
            Type::S64 => self.alu::<WithCarry<i64>>(o),
            other => return Err(format!("type {other:?} has no carry")),
        }
        Ok(())
    }

    fn single(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<()> {
        let extremum = matches!(m.mnemonic, "min" | "max");
        if extremum {
            m.only(&["ftz", "NaN", "abs", "xorsign"])?;
        } else {
            m.only(FLOAT_MODIFIERS)?;
        }
        let o = self.uniform(operands, Type::F32)?;
        if extremum {
            let imm = u64::from(m.has("NaN"))
                | u64::from(m.has("abs")) << 1
                | u64::from(m.has("xorsign")) << 2
                | u64::from(m.has("ftz")) << 3;
            let o = Operands { imm, ..o };
            match (m.mnemonic, operands.len(), imm) {
                ("min", 3, 0) => self.alu::<Two<FMinPlain>>(o),
                ("max", 3, 0) => self.alu::<Two<FMaxPlain>>(o),
                ("min", 3, _) => self.alu::<Two<FMin>>(o),
                ("max", 3, _) => self.alu::<Two<FMax>>(o),
                ("min", ..) => self.alu::<Three<FMin3>>(o),
                _ => self.alu::<Three<FMax3>>(o),
            }
            return Ok(());
        }
        let mode = stated_mode(m);
        let o = Operands { imm: encode(mode), ..o };
        match m.mnemonic {
            "add" => by_mode!(self, mode, o, Two<FAdd FAddFtz FAddAny>),
            "sub" => by_mode!(self, mode, o, Two<FSub FSubFtz FSubAny>),
            "mul" => by_mode!(self, mode, o, Two<FMul FMulFtz FMulAny>),
            "fma" | "mad" => by_mode!(self, mode, o, Three<FFma FFmaFtz FFmaAny>),
            "neg" => by_mode!(self, mode, o, One<FNeg FNegFtz FNegAny>),
            "abs" => by_mode!(self, mode, o, One<FAbs FAbsFtz FAbsAny>),
            "div" if m.has("approx") || m.has("full") => {
                by_mode!(self, mode, o, Two<DivApprox DivApproxFtz DivApproxAny>);
            }
            "div" => self.alu::<Two<FDiv>>(o),
            _ => return Err("not an operation of f32".to_string()),
        }
        Ok(())
    }

    fn double(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<()> {
        m.only(&["rn", "rz", "rm", "rp"])?;
        let o = Operands { imm: encode(stated_mode(m)), ..self.uniform(operands, Type::F64)? };
        match m.mnemonic {
            "add" => self.alu::<Two<DAdd>>(o),
            "sub" => self.alu::<Two<DSub>>(o),
            "mul" => self.alu::<Two<DMul>>(o),
            "fma" | "mad" => self.alu::<Three<DFma>>(o),
            "div" => self.alu::<Two<DDiv>>(o),
            "min" => self.alu::<Two<DMin>>(o),
            "max" => self.alu::<Two<DMax>>(o),
            "neg" => self.alu::<One<DNeg>>(o),
            "abs" => self.alu::<One<DAbs>>(o),
            _ => return Err("not an operation of f64".to_string()),
        }
        Ok(())
    }

    fn sixteen(&mut self, m: &Modifiers<'_>, operands: &[Operand], ty: Type) -> Result<()> {
        m.only(&["rn", "ftz", "sat", "relu", "NaN", "abs", "xorsign", "oob"])?;
        if m.has("oob") {
            return Err("`.oob` is not supported".to_string());
        }
        let o = self.uniform(operands, ty)?;
        let extremum = u64::from(m.has("NaN"))
            | u64::from(m.has("abs")) << 1
            | u64::from(m.has("xorsign")) << 2
            | u64::from(m.has("ftz")) << 3;
        let chosen = Operands { imm: extremum, ..o };
        let o = Operands { imm: encode(stated_mode(m)), ..o };
        match m.mnemonic {
            "add" => by_sixteen!(self, ty, o, Two<HAdd HAdd2>),
            "sub" => by_sixteen!(self, ty, o, Two<HSub HSub2>),
            "mul" => by_sixteen!(self, ty, o, Two<HMul HMul2>),
            "fma" => by_sixteen!(self, ty, o, Three<HFma HFma2>),
            "neg" => by_sixteen!(self, ty, o, One<HNeg HNeg2>),
            "abs" => by_sixteen!(self, ty, o, One<HAbs HAbs2>),
            "min" => by_sixteen!(self, ty, chosen, Two<HMin HMin2>),
            "max" => by_sixteen!(self, ty, chosen, Two<HMax HMax2>),
            _ => return Err("not an operation of 16-bit floats".to_string()),
        }
        Ok(())
    }

    /// `add.rn.f32.bf16 d, a, c`: the sum is f32, `a` (and `b` of `fma`) are narrow.
    fn mixed(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<()> {
        m.only(FLOAT_MODIFIERS)?;
        let ty = m.types()[1];
        let imm = encode(stated_mode(m));
        let (d, a, b, c) = match (m.mnemonic, operands) {
            ("fma", [d, a, b, c]) => {
                let b = self.source(b, ty)?;
                (d, a, b, self.source(c, Type::F32)?)
            }
            (_, [d, a, b]) => (d, a, self.source(b, Type::F32)?, 0),
            _ => return Err(format!("{} operands", operands.len())),
        };
        let o = Operands { a: self.source(a, ty)?, d: self.destination(d, Type::F32)?, b, c, imm };
        match (m.mnemonic, ty) {
            ("add", Type::F16) => self.alu::<Two<MixedAdd<F16>>>(o),
            ("add", Type::Bf16) => self.alu::<Two<MixedAdd<Bf16>>>(o),
            ("sub", Type::F16) => self.alu::<Two<MixedSub<F16>>>(o),
            ("sub", Type::Bf16) => self.alu::<Two<MixedSub<Bf16>>>(o),
            ("fma", Type::F16) => self.alu::<Three<MixedFma<F16>>>(o),
            ("fma", Type::Bf16) => self.alu::<Three<MixedFma<Bf16>>>(o),
            _ => return Err("not an operation of mixed types".to_string()),
        }
        Ok(())
    }

    /// Bits, shifts, special functions and dot products.
    fn bitwise(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<bool> {
        match m.mnemonic {
            "ex2" | "lg2" | "rcp" | "rsqrt" | "sqrt" | "sin" | "cos" | "tanh" | "copysign" => {
                self.special_function(m, operands)?;
                return Ok(true);
            }
            "and" | "or" | "xor" | "not" if m.ty()? == Type::Pred => return Ok(false),
            _ => {}
        }
        match m.mnemonic {
            "and" | "or" | "xor" | "not" | "cnot" => {
                let ty = m.ty()?;
                let o = self.uniform(operands, ty)?;
                match m.mnemonic {
                    "and" => by_integer!(self, ty, o, Two<And>),
                    "or" => by_integer!(self, ty, o, Two<Or>),
                    "xor" => by_integer!(self, ty, o, Two<Xor>),
                    "not" => by_integer!(self, ty, o, One<Not>),
                    _ => return Ok(false),
                }
            }
            "shl" | "shr" => {
                let [d, a, b] = take(operands)?;
                let ty = m.ty()?;
                let o = Operands {
                    a: self.source(a, ty)?,
                    b: self.narrow(b, Type::U32)?,
                    d: self.destination(d, ty)?,
                    ..Operands::default()
                };
                match m.mnemonic {
                    "shl" => by_integer!(self, ty, o, Two<Shl>),
                    _ => by_integer!(self, ty, o, Two<Shr>),
                }
            }
            "popc" | "clz" | "bfind" => {
                let [d, a] = take(operands)?;
                let ty = m.ty()?;
                let imm = u64::from(m.has("shiftamt"));
                let o = Operands {
                    a: self.source(a, ty)?,
                    d: self.destination(d, Type::U32)?,
                    imm,
                    ..Operands::default()
                };
                match m.mnemonic {
                    "popc" => by_integer!(self, ty, o, One<Popc>),
                    "clz" => by_integer!(self, ty, o, One<Clz>),
                    _ => by_integer!(self, ty, o, One<Bfind>),
                }
            }
            "brev" => {
                let ty = m.ty()?;
                let o = self.uniform(operands, ty)?;
                by_integer!(self, ty, o, One<Brev>);
            }
            "sad" => {
                let ty = m.ty()?;
                let o = self.uniform(operands, ty)?;
                by_integer!(self, ty, o, Three<Sad>);
            }
            "mul24" | "mad24" => {
                m.only(&["lo", "hi"])?;
                let ty = m.ty()?;
                let o = self.uniform(operands, ty)?;
                match (m.mnemonic, m.has("hi")) {
                    ("mul24", false) => by_integer!(self, ty, o, Two<Mul24Lo>),
                    ("mul24", true) => by_integer!(self, ty, o, Two<Mul24Hi>),
                    (_, false) => by_integer!(self, ty, o, Three<Mad24Lo>),
                    (_, true) => by_integer!(self, ty, o, Three<Mad24Hi>),
                }
            }
            "bfe" => {
                let [d, a, b, c] = take(operands)?;
                let ty = m.ty()?;
                let o = Operands {
                    a: self.source(a, ty)?,
                    b: self.narrow(b, Type::U32)?,
                    c: self.narrow(c, Type::U32)?,
                    d: self.destination(d, ty)?,
                    imm: 0,
                };
                by_integer!(self, ty, o, Three<Bfe>);
            }
            "bfi" => {
                let [d, a, b, c, length] = take(operands)?;
                let ty = m.ty()?;
                let o = Operands {
                    a: self.source(a, ty)?,
                    b: self.source(b, ty)?,
                    c: self.narrow(c, Type::U32)?,
                    imm: u64::from(self.narrow(length, Type::U32)?),
                    d: self.destination(d, ty)?,
                };
                match ty {
                    Type::B32 => self.alu::<Bfi<u32>>(o),
                    Type::B64 => self.alu::<Bfi<u64>>(o),
                    other => return Err(format!("type {other:?} is not supported here")),
                }
            }
            "prmt" => {
                let o = self.uniform(operands, Type::B32)?;
                let modes = ["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"];
                match modes.iter().position(|mode| m.has(mode)) {
                    None => self.alu::<Three<PrmtBytes>>(o),
                    Some(at) => self.alu::<Three<PrmtMode>>(Operands { imm: at as u64 + 1, ..o }),
                }
            }
            "lop3" => {
                m.only(&[])?;
                let [d, a, b, c, table] = take(operands)?;
                let Operand::Immediate(crate::text::Immediate::Integer(imm)) = *table else {
                    return Err("the table must be a literal".to_string());
                };
                let (a, b) = (self.narrow(a, Type::B32)?, self.narrow(b, Type::B32)?);
                let c = self.narrow(c, Type::B32)?;
                let d = self.destination(d, Type::B32)?;
                self.alu::<Three<Lop3>>(Operands { d, a, b, c, imm });
            }
            "shf" => {
                let o = Operands { imm: u64::from(m.has("wrap")), ..self.uniform(operands, Type::B32)? };
                if m.has("l") { self.alu::<Three<ShfLeft>>(o) } else { self.alu::<Three<ShfRight>>(o) }
            }
            "bmsk" => {
                let o = Operands { imm: u64::from(m.has("wrap")), ..self.uniform(operands, Type::B32)? };
                self.alu::<Two<Bmsk>>(o);
            }
            "szext" => {
                let ty = m.ty()?;
                let o = Operands { imm: u64::from(m.has("wrap")), ..self.uniform(operands, ty)? };
                match ty {
                    Type::S32 => self.alu::<Two<Szext<i32>>>(o),
                    _ => self.alu::<Two<Szext<u32>>>(o),
                }
            }
            "fns" => {
                let o = self.uniform(operands, Type::B32)?;
                self.alu::<Three<Fns>>(o);
            }
            "dp4a" | "dp2a" => {
                let types = m.types();
                let signed = |at: usize| u64::from(types.get(at).is_some_and(|ty| ty.is_signed()));
                let imm = signed(0) | signed(1) << 1 | u64::from(m.has("hi")) << 2;
                let o = Operands { imm, ..self.uniform(operands, Type::B32)? };
                if m.mnemonic == "dp4a" { self.alu::<Three<Dp4a>>(o) } else { self.alu::<Three<Dp2a>>(o) }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn special_function(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<()> {
        m.only(FLOAT_MODIFIERS)?;
        let ty = m.ty()?;
        let mode = stated_mode(m);
        let o = Operands { imm: encode(mode), ..self.uniform(operands, ty)? };
        let approximate = m.has("approx");
        match (m.mnemonic, ty) {
            ("ex2", Type::F32) => by_mode!(self, mode, o, One<Ex2 Ex2Ftz Ex2Any>),
            ("ex2", _) => by_sixteen!(self, ty, o, One<HEx2 HEx22>),
            ("tanh", Type::F32) => self.alu::<One<Tanh>>(o),
            ("tanh", _) => by_sixteen!(self, ty, o, One<HTanh HTanh2>),
            ("lg2", Type::F32) => by_mode!(self, mode, o, One<Lg2 Lg2Ftz Lg2Any>),
            ("rcp", Type::F32) if approximate => by_mode!(self, mode, o, One<Rcp RcpFtz RcpAny>),
            ("rcp", Type::F32) => self.alu::<One<FRcp>>(o),
            ("rcp", Type::F64) if approximate => self.alu::<One<DRcpApprox>>(o),
            ("rcp", Type::F64) => self.alu::<One<DRcp>>(o),
            ("rsqrt", Type::F32) => by_mode!(self, mode, o, One<Rsqrt RsqrtFtz RsqrtAny>),
            ("rsqrt", Type::F64) => {
                self.alu::<One<DRsqrt>>(Operands { imm: u64::from(mode.ftz), ..o });
            }
            ("sqrt", Type::F32) if approximate => {
                by_mode!(self, mode, o, One<SqrtApprox SqrtApproxFtz SqrtApproxAny>);
            }
            ("sqrt", Type::F32) => self.alu::<One<FSqrt>>(o),
            ("sqrt", Type::F64) => self.alu::<One<DSqrt>>(o),
            ("sin", Type::F32) => self.alu::<One<Sin>>(o),
            ("cos", Type::F32) => self.alu::<One<Cos>>(o),
            // The sign is that of the first operand.
            ("copysign", Type::F32) => self.alu::<Two<Copysign>>(o),
            _ => return Err("not supported for this type".to_string()),
        }
        Ok(())
    }
}
