//! Comparisons, selections and predicate logic.

use std::marker::PhantomData;

use super::arithmetic::op;
use super::{Lowering, Modifiers, Result, Type, take};
use crate::execute::{Kernel, Op3, Operands, Registers, Value, Word, store};
use crate::number::bf16::Bf16;
use crate::number::comparison::{Comparison, Property, compare, test, test_f64};
use crate::number::half::F16;
use crate::number::round::flush;
use crate::number::sixteen::Sixteen;
use crate::program::SINK;
use crate::text::Operand;

/// A value to compare: f16 and bf16 as f32.
trait Comparable {
    type Stored: Value;
    type Compared: PartialOrd + Copy;
    fn open(value: Self::Stored) -> Self::Compared;
}

macro_rules! comparable {
    ($($t:ty),*) => {$(
        impl Comparable for $t {
            type Stored = $t;
            type Compared = $t;
            #[inline(always)]
            fn open(value: $t) -> $t {
                value
            }
        }
    )*};
}
comparable!(u16, i16, u32, i32, u64, i64, f32, f64);

/// f32 with subnormals as zero.
struct Flushed;
impl Comparable for Flushed {
    type Stored = f32;
    type Compared = f32;
    #[inline(always)]
    fn open(value: f32) -> f32 {
        flush(value)
    }
}

struct Half<F>(PhantomData<F>);
impl<F: Sixteen> Comparable for Half<F> {
    type Stored = u16;
    type Compared = f32;
    #[inline(always)]
    fn open(value: u16) -> f32 {
        F::to_f32(value)
    }
}

const COMPARISONS: [Comparison; 14] = [
    Comparison::Eq,
    Comparison::Ne,
    Comparison::Lt,
    Comparison::Le,
    Comparison::Gt,
    Comparison::Ge,
    Comparison::Equ,
    Comparison::Neu,
    Comparison::Ltu,
    Comparison::Leu,
    Comparison::Gtu,
    Comparison::Geu,
    Comparison::Num,
    Comparison::Nan,
];

/// `setp`. `d`: predicate; `c`: predicate to combine with; `imm`: second predicate in bits 0 to 31,
/// combination in 32 and 33, inversion of `c` in 34.
struct Setp<C, const COMPARISON: usize>(PhantomData<C>);
impl<C: Comparable, const COMPARISON: usize> Kernel for Setp<C, COMPARISON> {
    #[inline(always)]
    fn run(registers: &mut Registers, operands: &Operands, mask: u32) {
        let a = *<C::Stored as Value>::Word::lanes(registers, operands.a);
        let b = *<C::Stored as Value>::Word::lanes(registers, operands.b);
        let mut bits = [0u32; 32];
        for lane in 0..32 {
            let (a, b) = (C::open(C::Stored::from_word(a[lane])), C::open(C::Stored::from_word(b[lane])));
            bits[lane] = if compare(COMPARISONS[COMPARISON], a, b) { 1 << lane } else { 0 };
        }
        let found = bits.iter().fold(0, |all, bit| all | bit);
        let combination = operands.imm >> 32 & 3;
        let other = registers.predicates[operands.c as usize]
            ^ if operands.imm >> 34 & 1 == 1 { u32::MAX } else { 0 };
        let combine = |x: u32| match combination {
            0 => x,
            1 => x & other,
            2 => x | other,
            _ => x ^ other,
        };
        let (first, second) = (combine(found), combine(!found));
        let q = &mut registers.predicates[operands.imm as u32 as usize];
        *q = (*q & !mask) | (second & mask);
        let p = &mut registers.predicates[operands.d as usize];
        *p = (*p & !mask) | (first & mask);
    }
}

/// `selp`: `c` is the predicate, `imm` its inversion.
struct Selp<W>(PhantomData<W>);
impl<W: Word> Kernel for Selp<W> {
    #[inline(always)]
    fn run(registers: &mut Registers, operands: &Operands, mask: u32) {
        let chosen = registers.predicates[operands.c as usize] ^ operands.imm as u32;
        let a = *W::lanes(registers, operands.a);
        let mut d = *W::lanes(registers, operands.b);
        for lane in 0..32 {
            d[lane] = if chosen >> lane & 1 == 1 { a[lane] } else { d[lane] };
        }
        store(registers, operands.d, mask, &d);
    }
}

/// Logic of predicates: `imm` holds the operation in bits 0 and 1 (and, or, xor, copy) and the
/// inversions of `a` and `b` above.
pub(super) struct Logic;
impl Kernel for Logic {
    #[inline(always)]
    fn run(registers: &mut Registers, operands: &Operands, mask: u32) {
        let invert = |bit: u32| if operands.imm >> bit & 1 == 1 { u32::MAX } else { 0 };
        let a = registers.predicates[operands.a as usize] ^ invert(2);
        let b = registers.predicates[operands.b as usize] ^ invert(3);
        let value = match operands.imm & 3 {
            0 => a & b,
            1 => a | b,
            2 => a ^ b,
            _ => a,
        };
        let d = &mut registers.predicates[operands.d as usize];
        *d = (*d & !mask) | (value & mask);
    }
}

const PROPERTIES: [(&str, Property); 6] = [
    ("finite", Property::Finite),
    ("infinite", Property::Infinite),
    ("number", Property::Number),
    ("notanumber", Property::NotANumber),
    ("normal", Property::Normal),
    ("subnormal", Property::Subnormal),
];

/// `testp.PROPERTY.f32` and `.f64`.
struct Testp<const WIDE: bool>;
impl<const WIDE: bool> Kernel for Testp<WIDE> {
    #[inline(always)]
    fn run(registers: &mut Registers, operands: &Operands, mask: u32) {
        let property = PROPERTIES[operands.imm as usize % 6].1;
        let mut found = 0;
        for lane in 0..32 {
            let holds = if WIDE {
                test_f64(property, f64::from_bits(registers.wide(operands.a)[lane]))
            } else {
                test(property, f32::from_bits(registers.narrow(operands.a)[lane]))
            };
            found |= u32::from(holds) << lane;
        }
        let d = &mut registers.predicates[operands.d as usize];
        *d = (*d & !mask) | (found & mask);
    }
}

op!(Slct, |_i| (a: u32, b: u32, c: i32) -> u32 = if c >= 0 { a } else { b });

macro_rules! by_comparison {
    ($self:ident, $comparison:expr, $operands:expr, $c:ty, [$($n:literal)*]) => {
        match $comparison {
            $($n => $self.alu::<Setp<$c, $n>>($operands),)*
            _ => return Err("the comparison is not defined for this type".to_string()),
        }
    };
}

impl Lowering<'_> {
    pub(super) fn compare(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<bool> {
        match m.mnemonic {
            "setp" => self.setp(m, operands)?,
            "selp" => {
                let [d, a, b, p] = take(operands)?;
                let ty = m.ty()?;
                let (c, invert) = self.predicate(p)?;
                let o = Operands {
                    a: self.source(a, ty)?,
                    b: self.source(b, ty)?,
                    d: self.destination(d, ty)?,
                    c,
                    imm: u64::from(invert),
                };
                if ty.is_wide() { self.alu::<Selp<u64>>(o) } else { self.alu::<Selp<u32>>(o) }
            }
            "slct" => {
                let o = self.uniform(operands, Type::B32)?;
                if m.types() != [Type::B32, Type::S32] && m.types() != [Type::U32, Type::S32] {
                    return Err("only `slct.b32.s32` is supported".to_string());
                }
                self.alu::<crate::execute::Three<Slct>>(o);
            }
            "testp" => {
                let [d, a] = take(operands)?;
                let ty = m.ty()?;
                let property = PROPERTIES.iter().position(|(name, _)| m.has(name)).ok_or("no property")?;
                let o = Operands {
                    a: self.source(a, ty)?,
                    d: self.predicate_destination(d)?,
                    imm: property as u64,
                    ..Operands::default()
                };
                if ty.is_wide() { self.alu::<Testp<true>>(o) } else { self.alu::<Testp<false>>(o) }
            }
            "and" | "or" | "xor" | "not" if m.ty()? == Type::Pred => {
                let (d, a, b) = match operands {
                    [d, a] => (d, a, a),
                    [d, a, b] => (d, a, b),
                    _ => return Err(format!("{} operands", operands.len())),
                };
                let ((a, invert_a), (b, invert_b)) = (self.predicate(a)?, self.predicate(b)?);
                let invert_a = if m.mnemonic == "not" { !invert_a } else { invert_a };
                let operation = match m.mnemonic {
                    "and" => 0,
                    "or" => 1,
                    "xor" => 2,
                    _ => 3,
                };
                let imm = operation | u64::from(invert_a & 1) << 2 | u64::from(invert_b & 1) << 3;
                let d = self.predicate_destination(d)?;
                self.alu::<Logic>(Operands { d, a, b, c: 0, imm });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn setp(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<()> {
        let (d, a, b, c) = match operands {
            [d, a, b] => (d, a, b, None),
            [d, a, b, c] => (d, a, b, Some(c)),
            _ => return Err(format!("{} operands", operands.len())),
        };
        let comparison = m
            .rest
            .iter()
            .find_map(|modifier| Comparison::parse(modifier))
            .and_then(|found| COMPARISONS.iter().position(|&comparison| comparison == found))
            .ok_or("no comparison")?;
        let ty = m.ty()?;
        let (p, q) = match d {
            Operand::Pair(p, q) => (self.predicate_destination(p)?, self.predicate_destination(q)?),
            d => (self.predicate_destination(d)?, SINK),
        };
        let combination = match () {
            () if m.has("and") => 1,
            () if m.has("or") => 2,
            () if m.has("xor") => 3,
            () => 0,
        };
        let (c, invert) = c.map(|c| self.predicate(c)).transpose()?.unwrap_or((0, 0));
        if combination == 0 && operands.len() == 4 {
            return Err("a predicate without a combination".to_string());
        }
        let imm = u64::from(q) | combination << 32 | u64::from(invert & 1) << 34;
        let o = Operands { a: self.source(a, ty)?, b: self.source(b, ty)?, c, d: p, imm };
        match ty {
            Type::U16 | Type::B16 => by_comparison!(self, comparison, o, u16, [0 1 2 3 4 5]),
            Type::S16 => by_comparison!(self, comparison, o, i16, [0 1 2 3 4 5]),
            Type::U32 | Type::B32 => by_comparison!(self, comparison, o, u32, [0 1 2 3 4 5]),
            Type::S32 => by_comparison!(self, comparison, o, i32, [0 1 2 3 4 5]),
            Type::U64 | Type::B64 => by_comparison!(self, comparison, o, u64, [0 1 2 3 4 5]),
            Type::S64 => by_comparison!(self, comparison, o, i64, [0 1 2 3 4 5]),
            Type::F32 if m.has("ftz") => {
                by_comparison!(self, comparison, o, Flushed, [0 1 2 3 4 5 6 7 8 9 10 11 12 13]);
            }
            Type::F32 => by_comparison!(self, comparison, o, f32, [0 1 2 3 4 5 6 7 8 9 10 11 12 13]),
            Type::F64 => by_comparison!(self, comparison, o, f64, [0 1 2 3 4 5 6 7 8 9 10 11 12 13]),
            Type::F16 => {
                by_comparison!(self, comparison, o, Half<F16>, [0 1 2 3 4 5 6 7 8 9 10 11 12 13]);
            }
            Type::Bf16 => {
                by_comparison!(self, comparison, o, Half<Bf16>, [0 1 2 3 4 5 6 7 8 9 10 11 12 13]);
            }
            other => return Err(format!("type {other:?} is not supported here")),
        }
        Ok(())
    }
}
