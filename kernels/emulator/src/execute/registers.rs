//! The register file of a warp.

use crate::{Lanes, WideLanes};

/// 128 bytes: a 32-bit register of a warp, or half a 64-bit one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(128))]
struct Slot([u32; 32]);

/// Registers of one warp, addressed by slot. A 64-bit register takes two slots, a 128-bit one four:
/// its low and its high 64 bits. Predicates are lane masks in a list of their own.
///
/// Slots are handed out by the lowering, which bounds them by the size that it then asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Registers {
    slots: Box<[Slot]>,
    /// Predicate registers, one bit a lane.
    pub(crate) predicates: Vec<u32>,
    /// The condition code of `add.cc` and its kin, one bit a lane.
    pub(crate) carry: u32,
}

/// A storage word of a lane.
pub(crate) trait Word: Copy + Default {
    /// The register at `slot`.
    fn lanes(registers: &Registers, slot: u32) -> &[Self; 32];

    /// The register at `slot`.
    fn lanes_mut(registers: &mut Registers, slot: u32) -> &mut [Self; 32];
}

impl Word for u32 {
    #[inline(always)]
    fn lanes(registers: &Registers, slot: u32) -> &Lanes {
        &registers.slots[slot as usize].0
    }

    #[inline(always)]
    fn lanes_mut(registers: &mut Registers, slot: u32) -> &mut Lanes {
        &mut registers.slots[slot as usize].0
    }
}

impl Word for u64 {
    #[inline(always)]
    fn lanes(registers: &Registers, slot: u32) -> &WideLanes {
        let pair: &[Slot; 2] = registers.slots[slot as usize..].first_chunk().expect("two slots");
        // SAFETY: two slots are 256 bytes without padding, aligned to 128; any bits are a u64.
        unsafe { &*std::ptr::from_ref(pair).cast() }
    }

    #[inline(always)]
    fn lanes_mut(registers: &mut Registers, slot: u32) -> &mut WideLanes {
        let pair: &mut [Slot; 2] = registers.slots[slot as usize..].first_chunk_mut().expect("two slots");
        // SAFETY: two slots are 256 bytes without padding, aligned to 128; any bits are a u64.
        unsafe { &mut *std::ptr::from_mut(pair).cast() }
    }
}

/// A typed value of a lane, kept in the low bits of its word; the other bits are zero.
pub(crate) trait Value: Copy {
    /// The word that holds it.
    type Word: Word;
    /// The value in the low bits.
    fn from_word(word: Self::Word) -> Self;
    /// Zero-extends.
    fn to_word(self) -> Self::Word;
}

macro_rules! value {
    ($($t:ty, $word:ty, |$w:ident| $from:expr, |$x:ident| $to:expr;)*) => {$(
        impl Value for $t {
            type Word = $word;
            #[inline(always)]
            fn from_word($w: $word) -> Self {
                $from
            }
            #[inline(always)]
            fn to_word(self) -> $word {
                let $x = self;
                $to
            }
        }
    )*};
}

value! {
    u8, u32, |w| w as u8, |x| u32::from(x);
    i8, u32, |w| w as i8, |x| u32::from(x as u8);
    u16, u32, |w| w as u16, |x| u32::from(x);
    i16, u32, |w| w as i16, |x| u32::from(x as u16);
    u32, u32, |w| w, |x| x;
    i32, u32, |w| w as i32, |x| x as u32;
    f32, u32, |w| f32::from_bits(w), |x| x.to_bits();
    u64, u64, |w| w, |x| x;
    i64, u64, |w| w as i64, |x| x as u64;
    f64, u64, |w| f64::from_bits(w), |x| x.to_bits();
}

/// How the registers of a new warp are filled before its first instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Zero.
    Zero,
    /// Bits from a seed: a result that depends on a register which was never written differs
    /// between two seeds.
    Noise(u64),
}

impl Registers {
    /// A register file of so many slots and predicates.
    pub(crate) fn new(slots: u32, predicates: u32, pattern: Pattern) -> Self {
        let mut registers = Self {
            slots: vec![Slot([0; 32]); slots as usize].into_boxed_slice(),
            predicates: vec![0; predicates as usize],
            carry: 0,
        };
        if let Pattern::Noise(seed) = pattern {
            // xorshift32 of each lane, since any bits will do: a warp begins often, and 32 lanes are a few vectors. Seeds
            // differ in their upper bits too, and no state is 0.
            let mut states: Lanes = std::array::from_fn(|lane| {
                let mixed = (seed ^ lane as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                (mixed >> 32) as u32 | 1
            });
            let mut next = || {
                for state in &mut states {
                    *state ^= *state << 13;
                    *state ^= *state >> 17;
                    *state ^= *state << 5;
                }
                states
            };
            next();
            registers.slots.iter_mut().for_each(|slot| slot.0 = next());
            registers.predicates.iter_mut().for_each(|mask| *mask = next()[0]);
        }
        registers
    }

    /// The 32-bit register at `slot`.
    #[inline(always)]
    pub(crate) fn narrow(&self, slot: u32) -> &Lanes {
        u32::lanes(self, slot)
    }

    /// The 32-bit register at `slot`.
    #[inline(always)]
    pub(crate) fn narrow_mut(&mut self, slot: u32) -> &mut Lanes {
        u32::lanes_mut(self, slot)
    }

    /// The 64-bit register at `slot`.
    #[inline(always)]
    pub(crate) fn wide(&self, slot: u32) -> &WideLanes {
        u64::lanes(self, slot)
    }

    /// The 64-bit register at `slot`.
    #[inline(always)]
    pub(crate) fn wide_mut(&mut self, slot: u32) -> &mut WideLanes {
        u64::lanes_mut(self, slot)
    }
}
