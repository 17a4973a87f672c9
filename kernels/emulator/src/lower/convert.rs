//! `cvt`.

use std::marker::PhantomData;

use super::arithmetic::{encode, mode, op, rounding, stated_mode};
use super::{Lowering, Modifiers, Result, Type};
use crate::execute::{One, Op1, Op2, Operands, Two, Value};
use crate::number::bf16::Bf16;
use crate::number::half::F16;
use crate::number::integer::Integer;
use crate::number::packed::{join, split};
use crate::number::round::Mode;
use crate::number::sixteen::Sixteen;
use crate::number::{convert, narrow, round};
use crate::text::Operand;

/// Wraps, or saturates if the constant is set.
struct Integers<S, D>(PhantomData<(S, D)>);
impl<S: Integer + Value, D: Integer + Value> Op1 for Integers<S, D> {
    type A = S;
    type D = D;
    #[inline(always)]
    fn apply(_: u64, a: S) -> D {
        D::wrap_u64(a.to_u64())
    }
}
struct Saturated<S, D>(PhantomData<(S, D)>);
impl<S: Integer + Value, D: Integer + Value> Op1 for Saturated<S, D> {
    type A = S;
    type D = D;
    #[inline(always)]
    fn apply(_: u64, a: S) -> D {
        convert::saturate(a)
    }
}

/// An operation whose narrow signed result is extended to 32 bits: a destination may be wider than its type.
struct Extended<O>(PhantomData<O>);
impl<O: Op1> Op1 for Extended<O>
where
    O::D: Into<i32>,
{
    type A = O::A;
    type D = i32;
    #[inline(always)]
    fn apply(imm: u64, a: O::A) -> i32 {
        O::apply(imm, a).into()
    }
}

/// A floating-point type on one side of a conversion with integers.
trait Float {
    type Stored: Value;
    fn to_integer<T: Integer>(x: Self::Stored, code: u64) -> T;
    fn from_integer<T: Integer>(x: T, code: u64) -> Self::Stored;
}
impl Float for f32 {
    type Stored = f32;
    #[inline(always)]
    fn to_integer<T: Integer>(x: f32, code: u64) -> T {
        convert::f32_to_integer(mode(code).input(x), rounding(code))
    }
    #[inline(always)]
    fn from_integer<T: Integer>(x: T, code: u64) -> f32 {
        convert::integer_to_f32(x, rounding(code))
    }
}
impl Float for f64 {
    type Stored = f64;
    #[inline(always)]
    fn to_integer<T: Integer>(x: f64, code: u64) -> T {
        convert::f64_to_integer(x, rounding(code))
    }
    #[inline(always)]
    fn from_integer<T: Integer>(x: T, code: u64) -> f64 {
        convert::integer_to_f64(x, rounding(code))
    }
}
impl<F: Sixteen> Float for PhantomData<F> {
    type Stored = u16;
    #[inline(always)]
    fn to_integer<T: Integer>(x: u16, code: u64) -> T {
        convert::f32_to_integer(F::to_f32(F::input(x, mode(code))), rounding(code))
    }
    #[inline(always)]
    fn from_integer<T: Integer>(x: T, code: u64) -> u16 {
        convert::integer_to_sixteen::<F, T>(x, rounding(code))
    }
}
struct FromFloat<S, D>(PhantomData<(S, D)>);
impl<S: Float, D: Integer + Value> Op1 for FromFloat<S, D> {
    type A = S::Stored;
    type D = D;
    #[inline(always)]
    fn apply(code: u64, a: S::Stored) -> D {
        S::to_integer(a, code)
    }
}
struct ToFloat<S, D>(PhantomData<(S, D)>);
impl<S: Integer + Value, D: Float> Op1 for ToFloat<S, D> {
    type A = S;
    type D = D::Stored;
    #[inline(always)]
    fn apply(code: u64, a: S) -> D::Stored {
        D::from_integer(a, code)
    }
}

op!(Single, |i| (a: f32) -> f32 = { let m = mode(i); m.output(m.input(a)) });
op!(SingleIntegral, |i| (a: f32) -> f32 = {
    let m = mode(i);
    m.output(round::integral_f32(m.input(a), m.rounding))
});
op!(Double, |i| (a: f64) -> f64 = if !mode(i).sat { a } else if a > 0.0 { a.min(1.0) } else { 0.0 });
op!(DoubleIntegral, |i| (a: f64) -> f64 = round::integral_f64(a, rounding(i)));
op!(Widen, |i| (a: f32) -> f64 = f64::from(mode(i).input(a)));
op!(Narrow, |i| (a: f64) -> f32 = mode(i).output(convert::f64_to_f32(a, rounding(i))));
op!(Tf32, |i| (a: f32) -> u32 = narrow::tf32(a, mode(i)));

/// Conversions between f32 (or f64) and a 16-bit format.
macro_rules! sixteen {
    ($name:ident<$f:ident>, |$i:ident, $x:ident: $a:ty| -> $d:ty $e:block) => {
        struct $name<F>(PhantomData<F>);
        impl<$f: Sixteen> Op1 for $name<$f> {
            type A = $a;
            type D = $d;
            #[inline(always)]
            fn apply($i: u64, $x: $a) -> $d {
                $e
            }
        }
    };
}
sixteen!(ToHalf<F>, |_i, x: f32| -> u16 { F::convert(x, Mode::RN) });
sixteen!(ToHalfAny<F>, |i, x: f32| -> u16 { F::convert(x, mode(i)) });
sixteen!(FromHalf<F>, |i, x: u16| -> f32 { mode(i).output(F::to_f32(x)) });
sixteen!(HalfFromDouble<F>, |i, x: f64| -> u16 { F::from_f64(x, rounding(i)) });
sixteen!(DoubleFromHalf<F>, |_i, x: u16| -> f64 { F::to_f64(x) });
sixteen!(HalfIntegral<F>, |i, x: u16| -> u16 { F::integral(x, rounding(i)) });

/// Between the two 16-bit formats.
struct Between<S, D>(PhantomData<(S, D)>);
impl<S: Sixteen, D: Sixteen> Op1 for Between<S, D> {
    type A = u16;
    type D = u16;
    #[inline(always)]
    fn apply(code: u64, a: u16) -> u16 {
        D::convert(S::to_f32(a), mode(code))
    }
}

/// `cvt.f16x2.f32 d, a, b`: `a` goes to the upper half.
struct Pack<F>(PhantomData<F>);
impl<F: Sixteen> Op2 for Pack<F> {
    type A = f32;
    type B = f32;
    type D = u32;
    #[inline(always)]
    fn apply(_: u64, a: f32, b: f32) -> u32 {
        join(F::convert(b, Mode::RN), F::convert(a, Mode::RN))
    }
}
struct PackAny<F>(PhantomData<F>);
impl<F: Sixteen> Op2 for PackAny<F> {
    type A = f32;
    type B = f32;
    type D = u32;
    #[inline(always)]
    fn apply(code: u64, a: f32, b: f32) -> u32 {
        join(F::convert(b, mode(code)), F::convert(a, mode(code)))
    }
}

/// A format of at most 8 bits.
trait Code {
    /// Bits of a code in a packed pair.
    const BITS: u32;
    fn decode(code: u8) -> f32;
    fn encode(x: f32, mode: Mode) -> u8;
}
macro_rules! code {
    ($($name:ident $bits:literal $decode:ident $encode:ident;)*) => {$(
        struct $name;
        impl Code for $name {
            const BITS: u32 = $bits;
            #[inline(always)]
            fn decode(code: u8) -> f32 {
                narrow::$decode(code)
            }
            #[inline(always)]
            fn encode(x: f32, mode: Mode) -> u8 {
                narrow::$encode(x, mode)
            }
        }
    )*};
}
code! {
    E4m3 8 e4m3_to_f32 e4m3;
    E5m2 8 e5m2_to_f32 e5m2;
    E2m1 4 e2m1_to_f32 e2m1;
    E2m3 8 e2m3_to_f32 e2m3;
    E3m2 8 e3m2_to_f32 e3m2;
    Ue8m0 8 ue8m0_to_f32 ue8m0;
}

/// A packed pair of codes, low first.
#[inline(always)]
fn pair<C: Code>(low: u8, high: u8) -> u16 {
    u16::from(low) | u16::from(high) << C::BITS
}

#[inline(always)]
fn codes<C: Code>(x: u16) -> (u8, u8) {
    let mask = ((1u32 << C::BITS) - 1) as u16;
    ((x & mask) as u8, (x >> C::BITS & mask) as u8)
}

struct EncodeF32<C>(PhantomData<C>);
impl<C: Code> Op2 for EncodeF32<C> {
    type A = f32;
    type B = f32;
    type D = u16;
    #[inline(always)]
    fn apply(code: u64, a: f32, b: f32) -> u16 {
        pair::<C>(C::encode(b, mode(code)), C::encode(a, mode(code)))
    }
}
struct EncodeHalf<C, F>(PhantomData<(C, F)>);
impl<C: Code, F: Sixteen> Op1 for EncodeHalf<C, F> {
    type A = u32;
    type D = u16;
    #[inline(always)]
    fn apply(code: u64, a: u32) -> u16 {
        let (low, high) = split(a);
        pair::<C>(C::encode(F::to_f32(low), mode(code)), C::encode(F::to_f32(high), mode(code)))
    }
}
struct Decode<C, F>(PhantomData<(C, F)>);
impl<C: Code, F: Sixteen> Op1 for Decode<C, F> {
    type A = u16;
    type D = u32;
    #[inline(always)]
    fn apply(code: u64, a: u16) -> u32 {
        let (low, high) = codes::<C>(a);
        // `.relu` is the only modifier that can change an exact conversion.
        let m = mode(code);
        join(F::convert(C::decode(low), m), F::convert(C::decode(high), m))
    }
}

/// Picks by source and destination integer type.
macro_rules! integers {
    ($self:ident, $o:expr, $op:ident, $s:expr, $d:expr) => {
        match $s {
            Type::U8 | Type::B8 => integers!(@to $self, $o, $op, u8, $d),
            Type::S8 => integers!(@to $self, $o, $op, i8, $d),
            Type::U16 | Type::B16 => integers!(@to $self, $o, $op, u16, $d),
            Type::S16 => integers!(@to $self, $o, $op, i16, $d),
            Type::U32 | Type::B32 => integers!(@to $self, $o, $op, u32, $d),
            Type::S32 => integers!(@to $self, $o, $op, i32, $d),
            Type::U64 | Type::B64 => integers!(@to $self, $o, $op, u64, $d),
            Type::S64 => integers!(@to $self, $o, $op, i64, $d),
            other => return Err(format!("type {other:?} is not an integer")),
        }
    };
    (@to $self:ident, $o:expr, $op:ident, $s:ty, $d:expr) => {
        match $d {
            Type::U8 | Type::B8 => $self.alu::<One<$op<$s, u8>>>($o),
            // Sign-extended to the register, whose width a conversion may leave open.
            Type::S8 => $self.alu::<One<Extended<$op<$s, i8>>>>($o),
            Type::U16 | Type::B16 => $self.alu::<One<$op<$s, u16>>>($o),
            Type::S16 => $self.alu::<One<Extended<$op<$s, i16>>>>($o),
            Type::U32 | Type::B32 => $self.alu::<One<$op<$s, u32>>>($o),
            Type::S32 => $self.alu::<One<$op<$s, i32>>>($o),
            Type::U64 | Type::B64 => $self.alu::<One<$op<$s, u64>>>($o),
            Type::S64 => $self.alu::<One<$op<$s, i64>>>($o),
            other => return Err(format!("type {other:?} is not an integer")),
        }
    };
}

macro_rules! one_integer {
    ($self:ident, $o:expr, $ty:expr, |$t:ident| $op:ty) => {
        match $ty {
            Type::U8 => {
                type $t = u8;
                $self.alu::<One<$op>>($o)
            }
            Type::S8 => {
                type $t = i8;
                $self.alu::<One<$op>>($o)
            }
            Type::U16 => {
                type $t = u16;
                $self.alu::<One<$op>>($o)
            }
            Type::S16 => {
                type $t = i16;
                $self.alu::<One<$op>>($o)
            }
            Type::U32 => {
                type $t = u32;
                $self.alu::<One<$op>>($o)
            }
            Type::S32 => {
                type $t = i32;
                $self.alu::<One<$op>>($o)
            }
            Type::U64 => {
                type $t = u64;
                $self.alu::<One<$op>>($o)
            }
            Type::S64 => {
                type $t = i64;
                $self.alu::<One<$op>>($o)
            }
            other => return Err(format!("type {other:?} is not an integer")),
        }
    };
}

type FloatF16 = PhantomData<F16>;
type FloatBf16 = PhantomData<Bf16>;

fn is_integer(ty: Type) -> bool {
    use Type::*;
    matches!(ty, U8 | S8 | B8 | U16 | S16 | B16 | U32 | S32 | B32 | U64 | S64 | B64)
}

impl Lowering<'_> {
    pub(super) fn convert(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<bool> {
        if m.mnemonic != "cvt" {
            return Ok(false);
        }
        m.only(&[
            "rn",
            "rz",
            "rm",
            "rp",
            "rna",
            "rni",
            "rzi",
            "rmi",
            "rpi",
            "ftz",
            "sat",
            "relu",
            "satfinite",
            "scaled",
        ])?;
        let types = m.types();
        let [to, from] = types[..] else { return Err("two types are needed".to_string()) };
        let imm = encode(stated_mode(m));
        if let [d, a, b] = operands {
            let d = self.destination(d, to)?;
            let (a, b) = (self.narrow(a, from)?, self.narrow(b, from)?);
            return self.pack(to, from, Operands { d, a, b, c: 0, imm }).map(|()| true);
        }
        let [d, a] = operands else { return Err(format!("{} operands", operands.len())) };
        // A destination may be wider than its type.
        let wide = self.is_wide(d) && !to.is_wide();
        let a = self.source(a, from)?;
        let narrow = if wide { self.temporary(1) } else { 0 };
        let d = if wide { self.destination(d, Type::B64)? } else { self.destination(d, to)? };
        let o = Operands { d: if wide { narrow } else { d }, a, b: 0, c: 0, imm };
        self.conversion(m, to, from, o)?;
        if wide {
            let o = Operands { d, a: narrow, ..Operands::default() };
            if to.is_signed() {
                self.alu::<One<Integers<i32, i64>>>(o);
            } else {
                self.alu::<One<Integers<u32, u64>>>(o);
            }
        }
        Ok(true)
    }

    fn conversion(&mut self, m: &Modifiers<'_>, to: Type, from: Type, o: Operands) -> Result<()> {
        use Type::{Bf16 as TBf16, F16 as TF16, F32, F64};
        let integral = ["rni", "rzi", "rmi", "rpi"].iter().any(|rounding| m.has(rounding));
        let plain = o.imm == 0;
        match (from, to) {
            (s, d) if is_integer(s) && is_integer(d) && m.has("sat") => integers!(self, o, Saturated, s, d),
            (s, d) if is_integer(s) && is_integer(d) => integers!(self, o, Integers, s, d),
            (s, Type::S8 | Type::S16) if !is_integer(s) => self.signed_narrow(s, to, o)?,
            (F32, d) if is_integer(d) => one_integer!(self, o, d, |T| FromFloat<f32, T>),
            (F64, d) if is_integer(d) => one_integer!(self, o, d, |T| FromFloat<f64, T>),
            (TF16, d) if is_integer(d) => one_integer!(self, o, d, |T| FromFloat<FloatF16, T>),
            (TBf16, d) if is_integer(d) => one_integer!(self, o, d, |T| FromFloat<FloatBf16, T>),
            (s, F32) if is_integer(s) => one_integer!(self, o, s, |T| ToFloat<T, f32>),
            (s, F64) if is_integer(s) => one_integer!(self, o, s, |T| ToFloat<T, f64>),
            (s, TF16) if is_integer(s) => one_integer!(self, o, s, |T| ToFloat<T, FloatF16>),
            (s, TBf16) if is_integer(s) => one_integer!(self, o, s, |T| ToFloat<T, FloatBf16>),
            (F32, F32) if integral => self.alu::<One<SingleIntegral>>(o),
            (F32, F32) => self.alu::<One<Single>>(o),
            (F64, F64) if !integral => self.alu::<One<Double>>(o),
            (F64, F64) => self.alu::<One<DoubleIntegral>>(o),
            (F32, F64) => self.alu::<One<Widen>>(o),
            (F64, F32) => self.alu::<One<Narrow>>(o),
            (F32, Type::Tf32) => self.alu::<One<Tf32>>(o),
            (F32, TF16) if plain => self.alu::<One<ToHalf<F16>>>(o),
            (F32, TBf16) if plain => self.alu::<One<ToHalf<Bf16>>>(o),
            (F32, TF16) => self.alu::<One<ToHalfAny<F16>>>(o),
            (F32, TBf16) => self.alu::<One<ToHalfAny<Bf16>>>(o),
            (TF16, F32) => self.alu::<One<FromHalf<F16>>>(o),
            (TBf16, F32) => self.alu::<One<FromHalf<Bf16>>>(o),
            (F64, TF16) => self.alu::<One<HalfFromDouble<F16>>>(o),
            (F64, TBf16) => self.alu::<One<HalfFromDouble<Bf16>>>(o),
            (TF16, F64) => self.alu::<One<DoubleFromHalf<F16>>>(o),
            (TBf16, F64) => self.alu::<One<DoubleFromHalf<Bf16>>>(o),
            (TF16, TF16) if integral => self.alu::<One<HalfIntegral<F16>>>(o),
            (TBf16, TBf16) if integral => self.alu::<One<HalfIntegral<Bf16>>>(o),
            (TF16, TBf16) => self.alu::<One<Between<F16, Bf16>>>(o),
            (TBf16, TF16) => self.alu::<One<Between<Bf16, F16>>>(o),
            (Type::E4m3x2, Type::F16x2) => self.alu::<One<Decode<E4m3, F16>>>(o),
            (Type::E5m2x2, Type::F16x2) => self.alu::<One<Decode<E5m2, F16>>>(o),
            (Type::E2m1x2, Type::F16x2) => self.alu::<One<Decode<E2m1, F16>>>(o),
            (Type::E2m3x2, Type::F16x2) => self.alu::<One<Decode<E2m3, F16>>>(o),
            (Type::E3m2x2, Type::F16x2) => self.alu::<One<Decode<E3m2, F16>>>(o),
            (Type::E4m3x2, Type::Bf16x2) => self.alu::<One<Decode<E4m3, Bf16>>>(o),
            (Type::E5m2x2, Type::Bf16x2) => self.alu::<One<Decode<E5m2, Bf16>>>(o),
            (Type::E2m1x2, Type::Bf16x2) => self.alu::<One<Decode<E2m1, Bf16>>>(o),
            (Type::E2m3x2, Type::Bf16x2) => self.alu::<One<Decode<E2m3, Bf16>>>(o),
            (Type::E3m2x2, Type::Bf16x2) => self.alu::<One<Decode<E3m2, Bf16>>>(o),
            (Type::Ue8m0x2, Type::Bf16x2) => self.alu::<One<Decode<Ue8m0, Bf16>>>(o),
            (Type::F16x2, Type::E4m3x2) => self.alu::<One<EncodeHalf<E4m3, F16>>>(o),
            (Type::F16x2, Type::E5m2x2) => self.alu::<One<EncodeHalf<E5m2, F16>>>(o),
            (Type::F16x2, Type::E2m1x2) => self.alu::<One<EncodeHalf<E2m1, F16>>>(o),
            (Type::Bf16x2, Type::E4m3x2) => self.alu::<One<EncodeHalf<E4m3, Bf16>>>(o),
            (Type::Bf16x2, Type::E5m2x2) => self.alu::<One<EncodeHalf<E5m2, Bf16>>>(o),
            (Type::Bf16x2, Type::E2m1x2) => self.alu::<One<EncodeHalf<E2m1, Bf16>>>(o),
            (Type::Bf16x2, Type::Ue8m0x2) => self.alu::<One<EncodeHalf<Ue8m0, Bf16>>>(o),
            _ => return Err(format!("no conversion from {from:?} to {to:?}")),
        }
        Ok(())
    }

    /// From a float to a signed integer of 8 or 16 bits.
    fn signed_narrow(&mut self, from: Type, to: Type, o: Operands) -> Result<()> {
        match (from, to) {
            (Type::F32, Type::S8) => self.alu::<One<Extended<FromFloat<f32, i8>>>>(o),
            (Type::F32, _) => self.alu::<One<Extended<FromFloat<f32, i16>>>>(o),
            (Type::F64, Type::S8) => self.alu::<One<Extended<FromFloat<f64, i8>>>>(o),
            (Type::F64, _) => self.alu::<One<Extended<FromFloat<f64, i16>>>>(o),
            (Type::F16, Type::S8) => self.alu::<One<Extended<FromFloat<FloatF16, i8>>>>(o),
            (Type::F16, _) => self.alu::<One<Extended<FromFloat<FloatF16, i16>>>>(o),
            (Type::Bf16, Type::S8) => self.alu::<One<Extended<FromFloat<FloatBf16, i8>>>>(o),
            (Type::Bf16, _) => self.alu::<One<Extended<FromFloat<FloatBf16, i16>>>>(o),
            (other, _) => return Err(format!("no conversion from {other:?} to {to:?}")),
        }
        Ok(())
    }

    /// Two sources into one packed destination.
    fn pack(&mut self, to: Type, from: Type, o: Operands) -> Result<()> {
        if from != Type::F32 {
            return Err(format!("no packing from {from:?}"));
        }
        match to {
            Type::F16x2 if o.imm == 0 => self.alu::<Two<Pack<F16>>>(o),
            Type::Bf16x2 if o.imm == 0 => self.alu::<Two<Pack<Bf16>>>(o),
            Type::F16x2 => self.alu::<Two<PackAny<F16>>>(o),
            Type::Bf16x2 => self.alu::<Two<PackAny<Bf16>>>(o),
            Type::E4m3x2 => self.alu::<Two<EncodeF32<E4m3>>>(o),
            Type::E5m2x2 => self.alu::<Two<EncodeF32<E5m2>>>(o),
            Type::E2m1x2 => self.alu::<Two<EncodeF32<E2m1>>>(o),
            Type::E2m3x2 => self.alu::<Two<EncodeF32<E2m3>>>(o),
            Type::E3m2x2 => self.alu::<Two<EncodeF32<E3m2>>>(o),
            Type::Ue8m0x2 => self.alu::<Two<EncodeF32<Ue8m0>>>(o),
            other => return Err(format!("no packing to {other:?}")),
        }
        Ok(())
    }
}
