//! The oracle: fixed-point numbers wide enough for every product of two f64, and what it means that a value is
//! an exact number rounded.

use super::super::round::Rounding;
use std::cmp::Ordering;

/// Words of 64 bits; the unit is 2^-2200.
const WORDS: usize = 70;
const UNIT: i32 = -2200;

/// An exact signed number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Exact {
    negative: bool,
    magnitude: [u64; WORDS],
}

impl Exact {
    /// `±significand * 2^exponent`.
    pub(super) fn new(negative: bool, significand: u128, exponent: i32) -> Exact {
        let mut magnitude = [0; WORDS];
        let (word, bit) = ((exponent - UNIT) as usize / 64, (exponent - UNIT) as u32 % 64);
        magnitude[word] = (significand as u64) << bit;
        let rest = if bit == 0 { significand >> 64 } else { significand >> (64 - bit) };
        if rest != 0 {
            magnitude[word + 1] = rest as u64;
            magnitude[word + 2] = (rest >> 64) as u64;
        }
        Exact { negative, magnitude }
    }

    /// A finite value.
    pub(super) fn of(x: f64) -> Exact {
        let (negative, significand, exponent) = parts(x);
        Exact::new(negative, significand.into(), exponent)
    }

    /// The product of finite values.
    pub(super) fn product(a: f64, b: f64) -> Exact {
        let ((a_negative, a, a_exponent), (b_negative, b, b_exponent)) = (parts(a), parts(b));
        Exact::new(a_negative != b_negative, u128::from(a) * u128::from(b), a_exponent + b_exponent)
    }

    pub(super) fn integer(x: i128) -> Exact {
        Exact::new(x < 0, x.unsigned_abs(), 0)
    }

    pub(super) fn is_zero(&self) -> bool {
        self.magnitude == [0; WORDS]
    }

    fn compare_magnitude(&self, other: &Exact) -> Ordering {
        self.magnitude.iter().rev().cmp(other.magnitude.iter().rev())
    }

    pub(super) fn plus(self, other: Exact) -> Exact {
        if self.negative != other.negative && self.compare_magnitude(&other) == Ordering::Less {
            return other.plus(self);
        }
        let mut out = self;
        let mut carry = false;
        for (x, &y) in out.magnitude.iter_mut().zip(&other.magnitude) {
            let (first, second);
            if self.negative == other.negative {
                (*x, first) = x.overflowing_add(y);
                (*x, second) = x.overflowing_add(carry.into());
            } else {
                (*x, first) = x.overflowing_sub(y);
                (*x, second) = x.overflowing_sub(carry.into());
            }
            carry = first | second;
        }
        out
    }

    /// The sign, and the magnitude times `|b|`. The value has at most 53 significant bits.
    pub(super) fn times_magnitude(&self, b: f64) -> (bool, Exact) {
        let (significand, exponent) = self.significand();
        let (_, b, b_exponent) = parts(b);
        (self.negative, Exact::new(false, significand * u128::from(b), exponent + b_exponent))
    }

    /// The sign, and the square. The value has at most 53 significant bits.
    pub(super) fn square(&self) -> (bool, Exact) {
        let (significand, exponent) = self.significand();
        (self.negative && significand != 0, Exact::new(false, significand * significand, 2 * exponent))
    }

    fn significand(&self) -> (u128, i32) {
        let Some(word) = self.magnitude.iter().position(|&word| word != 0) else { return (0, 0) };
        let low = self.magnitude[word].trailing_zeros();
        let wide = u128::from(self.magnitude[word]) | u128::from(self.magnitude[word + 1]) << 64;
        (wide >> low, (64 * word) as i32 + low as i32 + UNIT)
    }

    pub(super) fn compare(&self, other: &Exact) -> Ordering {
        match (self.is_zero() && other.is_zero(), self.negative, other.negative) {
            (true, _, _) => Ordering::Equal,
            (_, false, false) => self.compare_magnitude(other),
            (_, true, true) => other.compare_magnitude(self),
            (_, false, true) => Ordering::Greater,
            (_, true, false) => Ordering::Less,
        }
    }
}

fn parts(x: f64) -> (bool, u64, i32) {
    assert!(x.is_finite());
    let field = (x.to_bits() >> 52 & 0x7ff) as i32;
    let fraction = x.to_bits() & ((1 << 52) - 1);
    let significand = fraction | u64::from(field != 0) << 52;
    (x.is_sign_negative(), significand, field.max(1) - 1075)
}

/// A floating-point format: sign, exponent and mantissa in the usual order.
#[derive(Clone, Copy)]
pub(super) struct Format {
    pub(super) exponent_bits: u32,
    pub(super) mantissa_bits: u32,
}

pub(super) const F16: Format = Format { exponent_bits: 5, mantissa_bits: 10 };
pub(super) const BF16: Format = Format { exponent_bits: 8, mantissa_bits: 7 };
pub(super) const F32: Format = Format { exponent_bits: 8, mantissa_bits: 23 };
pub(super) const F64: Format = Format { exponent_bits: 11, mantissa_bits: 52 };

impl Format {
    fn sign(self) -> u64 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    fn infinity(self) -> u64 {
        ((1 << self.exponent_bits) - 1) << self.mantissa_bits
    }

    /// The exact value of a code; infinity counts as the power of two that follows the largest finite value.
    fn value(self, code: u64) -> Exact {
        let field = (code & !self.sign()) >> self.mantissa_bits;
        let fraction = code & ((1 << self.mantissa_bits) - 1);
        let significand = fraction | u64::from(field != 0) << self.mantissa_bits;
        let bias = (1 << (self.exponent_bits - 1)) - 1;
        let exponent = field.max(1) as i32 - bias - self.mantissa_bits as i32;
        Exact::new(code & self.sign() != 0, significand.into(), exponent)
    }

    /// The next code upwards or downwards, over both zeros at once; none beyond infinity.
    fn neighbour(self, code: u64, up: bool) -> Option<u64> {
        let (magnitude, negative) = (code & !self.sign(), code & self.sign() != 0);
        if magnitude == 0 {
            Some(if up { 1 } else { 1 | self.sign() })
        } else if negative != up {
            (magnitude < self.infinity()).then_some(code + 1)
        } else {
            Some(code - 1)
        }
    }

    /// How a code compares with an exact number for which `compare` tells how a finite number does.
    fn against(self, code: u64, compare: &impl Fn(&Exact) -> Ordering) -> Ordering {
        match (code & !self.sign() == self.infinity(), code & self.sign() != 0) {
            (true, false) => Ordering::Greater,
            (true, true) => Ordering::Less,
            _ => compare(&self.value(code)),
        }
    }

    /// Whether `code` is an exact number rounded towards a direction. `compare` tells how a value compares with
    /// the number, `negative` its sign.
    pub(super) fn is_directed(
        self,
        code: u64,
        negative: bool,
        rounding: Rounding,
        compare: impl Fn(&Exact) -> Ordering,
    ) -> bool {
        let up = match rounding {
            Rounding::Up => true,
            Rounding::Down => false,
            Rounding::Zero => negative,
            other => panic!("{other:?} has no direction"),
        };
        let wanted_side = if up { Ordering::Less } else { Ordering::Greater };
        let beyond = self.neighbour(code, !up).map(|next| self.against(next, &compare));
        self.against(code, &compare) != wanted_side && beyond.is_none_or(|side| side == wanted_side)
    }

    /// Whether `code` is `exact` rounded, with the sign of a result that is zero.
    pub(super) fn is_rounded(self, code: u64, exact: &Exact, rounding: Rounding) -> bool {
        if !exact.is_zero() && (code & self.sign() != 0) != exact.negative {
            return false;
        }
        if rounding != Rounding::NearestEven {
            return self.is_directed(code, exact.negative, rounding, |x| x.compare(exact));
        }
        let twice = exact.plus(*exact);
        [true, false].into_iter().all(|up| {
            let Some(next) = self.neighbour(code, up) else { return true };
            match self.value(code).plus(self.value(next)).compare(&twice) {
                Ordering::Equal => code & 1 == 0,
                Ordering::Greater => up,
                Ordering::Less => !up,
            }
        })
    }
}

/// SplitMix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A finite code: any bits, few significant bits, or values near the limits of the format.
    pub(super) fn code(&mut self, format: Format) -> u64 {
        let sign = self.next() & format.sign();
        let mantissa = (1_u64 << format.mantissa_bits) - 1;
        let any = self.next() & (format.sign() - 1);
        let magnitude = match self.below(8) {
            0 => any & !(mantissa >> self.below(12)),
            1 => self.below(4),
            2 => any & mantissa,
            3 => format.infinity() - 1 - self.below(4),
            4 => any & mantissa | (self.below(3) << format.mantissa_bits),
            5 | 6 => {
                // Around 1: sums cancel, products meet ties.
                let bias = (1_u64 << (format.exponent_bits - 1)) - 1;
                let field = (bias + self.below(16)).wrapping_sub(8);
                any & (mantissa << self.below(u64::from(format.mantissa_bits))) & mantissa
                    | field << format.mantissa_bits
            }
            _ => any,
        };
        sign | if magnitude >= format.infinity() { magnitude & mantissa } else { magnitude }
    }

    /// An integer of random length, often next to a power of two.
    pub(super) fn integer(&mut self) -> u64 {
        let length = self.below(65);
        let bits = if length == 0 { 0 } else { self.next() >> (64 - length) };
        match self.below(4) {
            0 => (1_u64.checked_shl(length as u32).unwrap_or(0)).wrapping_add(self.below(5)).wrapping_sub(2),
            1 => bits.wrapping_neg(),
            _ => bits,
        }
    }
}
