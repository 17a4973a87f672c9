//! Operations over the lanes of a warp.

use std::marker::PhantomData;

use super::registers::{Registers, Value, Word};

/// Slots of an operation and a constant; what an operation does not use is 0.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Operands {
    pub(crate) d: u32,
    pub(crate) a: u32,
    pub(crate) b: u32,
    pub(crate) c: u32,
    /// Constant of the operation, such as its rounding mode or a table.
    pub(crate) imm: u64,
}

/// An operation of a warp, for the lanes of the mask. To be called where the instruction set that
/// it was picked for is available.
pub(crate) type Alu = unsafe fn(&mut Registers, &Operands, u32);

/// Instruction sets that operations are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Isa {
    /// The target's.
    Baseline,
    /// AVX2 with FMA.
    Avx2,
}

impl Isa {
    /// The best one here.
    pub(crate) fn best() -> Isa {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt")
        {
            return Isa::Avx2;
        }
        Isa::Baseline
    }

    /// The instance of a kernel for this instruction set.
    pub(crate) fn pick<K: Kernel>(self) -> Alu {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => run_avx2::<K>,
            _ => run::<K>,
        }
    }
}

/// The body of an operation.
pub(crate) trait Kernel {
    /// Computes the lanes of `mask`.
    fn run(registers: &mut Registers, operands: &Operands, mask: u32);
}

unsafe fn run<K: Kernel>(registers: &mut Registers, operands: &Operands, mask: u32) {
    K::run(registers, operands, mask);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
fn run_avx2<K: Kernel>(registers: &mut Registers, operands: &Operands, mask: u32) {
    K::run(registers, operands, mask);
}

/// Writes the lanes of `mask`.
#[inline(always)]
pub(crate) fn store<W: Word>(registers: &mut Registers, slot: u32, mask: u32, values: &[W; 32]) {
    let target = W::lanes_mut(registers, slot);
    if mask == u32::MAX {
        *target = *values;
    } else {
        for lane in 0..32 {
            target[lane] = if mask >> lane & 1 == 1 { values[lane] } else { target[lane] };
        }
    }
}

/// A function of one operand.
pub(crate) trait Op1 {
    type A: Value;
    type D: Value;
    fn apply(imm: u64, a: Self::A) -> Self::D;
}

/// A function of two operands.
pub(crate) trait Op2 {
    type A: Value;
    type B: Value;
    type D: Value;
    fn apply(imm: u64, a: Self::A, b: Self::B) -> Self::D;
}

/// A function of three operands.
pub(crate) trait Op3 {
    type A: Value;
    type B: Value;
    type C: Value;
    type D: Value;
    fn apply(imm: u64, a: Self::A, b: Self::B, c: Self::C) -> Self::D;
}

/// [`Op1`] over the lanes.
pub(crate) struct One<O>(PhantomData<O>);
/// [`Op2`] over the lanes.
pub(crate) struct Two<O>(PhantomData<O>);
/// [`Op3`] over the lanes.
pub(crate) struct Three<O>(PhantomData<O>);

type WordOf<V> = <V as Value>::Word;

impl<O: Op1> Kernel for One<O> {
    #[inline(always)]
    fn run(registers: &mut Registers, operands: &Operands, mask: u32) {
        let a = *WordOf::<O::A>::lanes(registers, operands.a);
        let mut d = [WordOf::<O::D>::default(); 32];
        for lane in 0..32 {
            d[lane] = O::apply(operands.imm, O::A::from_word(a[lane])).to_word();
        }
        store(registers, operands.d, mask, &d);
    }
}

impl<O: Op2> Kernel for Two<O> {
    #[inline(always)]
    fn run(registers: &mut Registers, operands: &Operands, mask: u32) {
        let a = *WordOf::<O::A>::lanes(registers, operands.a);
        let b = *WordOf::<O::B>::lanes(registers, operands.b);
        let mut d = [WordOf::<O::D>::default(); 32];
        for lane in 0..32 {
            d[lane] = O::apply(operands.imm, O::A::from_word(a[lane]), O::B::from_word(b[lane])).to_word();
        }
        store(registers, operands.d, mask, &d);
    }
}

impl<O: Op3> Kernel for Three<O> {
    #[inline(always)]
    fn run(registers: &mut Registers, operands: &Operands, mask: u32) {
        let a = *WordOf::<O::A>::lanes(registers, operands.a);
        let b = *WordOf::<O::B>::lanes(registers, operands.b);
        let c = *WordOf::<O::C>::lanes(registers, operands.c);
        let mut d = [WordOf::<O::D>::default(); 32];
        for lane in 0..32 {
            let (a, b, c) = (O::A::from_word(a[lane]), O::B::from_word(b[lane]), O::C::from_word(c[lane]));
            d[lane] = O::apply(operands.imm, a, b, c).to_word();
        }
        store(registers, operands.d, mask, &d);
    }
}
