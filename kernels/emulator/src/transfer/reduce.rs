//! Element-wise reductions of `cp.reduce.async.bulk` and `cp.reduce.async.bulk.tensor`.
//! PTX ISA 9.0, section 9.7.9.25.4: the pairs of operation and type for a global destination.

use super::tensor_map::Element;
use std::fmt;

/// The operation `.redOp`: `destination = destination op source`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Sum; integers wrap, floats round to nearest even.
    Add,
    /// Smaller value; a NaN loses to a number.
    Min,
    /// Larger value; a NaN loses to a number.
    Max,
    /// Counts up to the source, then starts at 0.
    Inc,
    /// Counts down from the source, then starts at the source.
    Dec,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
}

/// A reduction that PTX does not define.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceError {
    /// The operation does not exist for the element type.
    Unsupported(Reduction, Element),
    /// Destination and source differ in length or end inside an element.
    Length {
        /// Destination bytes.
        destination: usize,
        /// Source bytes.
        source: usize,
    },
}

impl fmt::Display for ReduceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported(kind, element) => {
                write!(f, "no bulk reduction {kind:?} on elements {element:?}")
            }
            Self::Length { destination, source } => {
                write!(f, "bulk reduction of {source} bytes into {destination}")
            }
        }
    }
}

impl std::error::Error for ReduceError {}

impl Reduction {
    /// The operation of an instruction's qualifier, as in `add`.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "add" => Self::Add,
            "min" => Self::Min,
            "max" => Self::Max,
            "inc" => Self::Inc,
            "dec" => Self::Dec,
            "and" => Self::And,
            "or" => Self::Or,
            "xor" => Self::Xor,
            _ => return None,
        })
    }
}

/// Reduces `source` into `destination`, element by element. `.b32` and `.b64` are `U32` and `U64`.
///
/// `Add` on `F32` flushes subnormal inputs and results to zero of the same sign; `F16` and `Bf16` keep them
/// (`.noftz`).
pub fn reduce(
    kind: Reduction,
    element: Element,
    destination: &mut [u8],
    source: &[u8],
) -> Result<(), ReduceError> {
    use Element::*;
    use Reduction::*;
    let bytes = element.bits() as usize / 8;
    if destination.len() != source.len() || bytes == 0 || !source.len().is_multiple_of(bytes) {
        return Err(ReduceError::Length { destination: destination.len(), source: source.len() });
    }
    let d = destination;
    let s = source;
    match (kind, element) {
        (Add, U32 | S32) => each(d, s, u32::from_le_bytes, u32::to_le_bytes, u32::wrapping_add),
        (Add, U64 | S64) => each(d, s, u64::from_le_bytes, u64::to_le_bytes, u64::wrapping_add),
        (Add, F32 | F32Ftz) => each(d, s, f32::from_le_bytes, f32::to_le_bytes, add_f32_ftz),
        (Add, F64) => each(d, s, f64::from_le_bytes, f64::to_le_bytes, |a, b| a + b),
        (Add, F16) => each(d, s, u16::from_le_bytes, u16::to_le_bytes, |a, b| {
            f16_from_f32(f32_from_f16(a) + f32_from_f16(b))
        }),
        (Add, Bf16) => each(d, s, u16::from_le_bytes, u16::to_le_bytes, |a, b| {
            bf16_from_f32(f32_from_bf16(a) + f32_from_bf16(b))
        }),
        (Min, U32) => each(d, s, u32::from_le_bytes, u32::to_le_bytes, u32::min),
        (Max, U32) => each(d, s, u32::from_le_bytes, u32::to_le_bytes, u32::max),
        (Min, S32) => each(d, s, i32::from_le_bytes, i32::to_le_bytes, i32::min),
        (Max, S32) => each(d, s, i32::from_le_bytes, i32::to_le_bytes, i32::max),
        (Min, U64) => each(d, s, u64::from_le_bytes, u64::to_le_bytes, u64::min),
        (Max, U64) => each(d, s, u64::from_le_bytes, u64::to_le_bytes, u64::max),
        (Min, S64) => each(d, s, i64::from_le_bytes, i64::to_le_bytes, i64::min),
        (Max, S64) => each(d, s, i64::from_le_bytes, i64::to_le_bytes, i64::max),
        (Min | Max, F16) => {
            each(d, s, u16::from_le_bytes, u16::to_le_bytes, |a, b| choose(kind, a, b, 0x7c00))
        }
        (Min | Max, Bf16) => {
            each(d, s, u16::from_le_bytes, u16::to_le_bytes, |a, b| choose(kind, a, b, 0x7f80))
        }
        (Inc, U32) => {
            let inc = |old, limit| if old >= limit { 0 } else { old + 1 };
            each(d, s, u32::from_le_bytes, u32::to_le_bytes, inc)
        }
        (Dec, U32) => {
            let dec = |old, limit| if old == 0 || old > limit { limit } else { old - 1 };
            each(d, s, u32::from_le_bytes, u32::to_le_bytes, dec)
        }
        (And, U32 | S32 | U64 | S64) => d.iter_mut().zip(s).for_each(|(d, s)| *d &= s),
        (Or, U32 | S32 | U64 | S64) => d.iter_mut().zip(s).for_each(|(d, s)| *d |= s),
        (Xor, U32 | S32 | U64 | S64) => d.iter_mut().zip(s).for_each(|(d, s)| *d ^= s),
        _ => return Err(ReduceError::Unsupported(kind, element)),
    }
    Ok(())
}

fn each<const N: usize, T>(
    destination: &mut [u8],
    source: &[u8],
    read: impl Fn([u8; N]) -> T,
    write: impl Fn(T) -> [u8; N],
    operation: impl Fn(T, T) -> T,
) {
    let (destination, _) = destination.as_chunks_mut::<N>();
    let (source, _) = source.as_chunks::<N>();
    for (d, s) in destination.iter_mut().zip(source) {
        *d = write(operation(read(*d), read(*s)));
    }
}

fn add_f32_ftz(a: f32, b: f32) -> f32 {
    let flush = |x: f32| if x.is_subnormal() { 0f32.copysign(x) } else { x };
    let sum = flush(flush(a) + flush(b));
    if sum.is_nan() { f32::from_bits(0x7fff_ffff) } else { sum }
}

/// Smaller or larger of two 16-bit floats whose infinity has the bits `infinity`; -0 is below +0, two NaN
/// give the canonical one.
fn choose(kind: Reduction, a: u16, b: u16, infinity: u16) -> u16 {
    let is_nan = |x: u16| x & 0x7fff > infinity;
    let order = |x: u16| if x & 0x8000 == 0 { i32::from(x) } else { -1 - i32::from(x & 0x7fff) };
    match (is_nan(a), is_nan(b)) {
        (true, true) => 0x7fff,
        (true, false) => b,
        (false, true) => a,
        (false, false) if (order(a) < order(b)) == (kind == Reduction::Min) => a,
        (false, false) => b,
    }
}

// An f32 sum of two 16-bit floats, rounded again, is the correctly rounded sum: f32 has at least
// 2 * 11 + 2 significant bits (S. A. Figueroa, "When is double rounding innocuous?", 1995).

fn f32_from_f16(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff);
    let value = if magnitude >= 0x7c00 {
        f32::from_bits(0x7f80_0000 | (magnitude & 0x3ff) << 13)
    } else {
        // 2^112 moves the exponent from the bias 15 to the bias 127.
        f32::from_bits(magnitude << 13) * f32::from_bits((112 + 127) << 23)
    };
    if bits & 0x8000 == 0 { value } else { -value }
}

fn f16_from_f32(value: f32) -> u16 {
    let sign = (value.to_bits() >> 16) as u16 & 0x8000;
    let magnitude = value.abs();
    if value.is_nan() {
        0x7fff
    } else if magnitude >= 65520.0 {
        sign | 0x7c00
    } else if magnitude < f32::from_bits((127 - 14) << 23) {
        // One unit in the last place of 0.5 is the smallest f16, so the sum rounds to a multiple of it.
        sign | ((magnitude + 0.5).to_bits() - 0.5f32.to_bits()) as u16
    } else {
        let bits = magnitude.to_bits();
        sign | ((bits + 0xfff + (bits >> 13 & 1) - (112 << 23)) >> 13) as u16
    }
}

fn f32_from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

fn bf16_from_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() { 0x7fff } else { ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<const N: usize, T: Copy + PartialEq + std::fmt::Debug>(
        element: Element,
        kind: Reduction,
        write: impl Fn(T) -> [u8; N],
        cases: &[(T, T, T)],
    ) {
        let gather =
            |pick: fn(&(T, T, T)) -> T| cases.iter().flat_map(|c| write(pick(c))).collect::<Vec<u8>>();
        let mut destination = gather(|c| c.0);
        reduce(kind, element, &mut destination, &gather(|c| c.1)).unwrap();
        for (case, got) in cases.iter().zip(destination.chunks(N)) {
            assert_eq!(got, write(case.2), "{kind:?} {element:?} {case:?}");
        }
    }

    #[test]
    fn integers() {
        use Reduction::*;
        let u32s = u32::to_le_bytes;
        check(Element::U32, Add, u32s, &[(1, 2, 3), (u32::MAX, 2, 1)]);
        check(Element::S32, Add, i32::to_le_bytes, &[(-1, -2, -3), (i32::MAX, 1, i32::MIN)]);
        check(Element::U64, Add, u64::to_le_bytes, &[(u64::MAX, 2, 1), (1 << 40, 1 << 40, 1 << 41)]);
        check(Element::U32, Min, u32s, &[(1, u32::MAX, 1), (u32::MAX, 1, 1)]);
        check(Element::S32, Min, i32::to_le_bytes, &[(1, -1, -1), (-1, 1, -1)]);
        check(Element::S32, Max, i32::to_le_bytes, &[(1, -1, 1), (-1, 1, 1)]);
        check(Element::U64, Max, u64::to_le_bytes, &[(1, u64::MAX, u64::MAX)]);
        check(Element::S64, Max, i64::to_le_bytes, &[(1, -1, 1), (i64::MIN, -1, -1)]);
        check(Element::U32, Inc, u32s, &[(0, 3, 1), (2, 3, 3), (3, 3, 0), (9, 3, 0), (0, 0, 0)]);
        check(Element::U32, Dec, u32s, &[(0, 3, 3), (3, 3, 2), (9, 3, 3), (1, 3, 0), (0, 0, 0)]);
        check(Element::U32, And, u32s, &[(0b1100, 0b1010, 0b1000)]);
        check(Element::U64, Or, u64::to_le_bytes, &[(0b1100, 0b1010, 0b1110)]);
        check(Element::U32, Xor, u32s, &[(0b1100, 0b1010, 0b0110)]);
    }

    #[test]
    fn floats() {
        use Reduction::*;
        let tiny = f32::from_bits(1);
        let f32s = f32::to_le_bytes;
        check(Element::F32, Add, f32s, &[(1.5, 2.0, 3.5), (tiny, tiny, 0.0), (-tiny, -0.0, -0.0)]);
        check(Element::F64, Add, f64::to_le_bytes, &[(1.5, 2.0, 3.5)]);
        let u16s = u16::to_le_bytes;
        let f16 = [
            (0x3c00, 0x4000, 0x4200), // 1 + 2
            (0x6800, 0x3c00, 0x6800), // 2048 + 1, a tie to even
            (0x6801, 0x3c00, 0x6802), // 2050 + 1, a tie to even
            (0x7bff, 0x4c00, 0x7c00), // 65504 + 16, a tie to infinity
            (0x7bff, 0x4bff, 0x7bff), // just below the tie
            (0x0001, 0x0001, 0x0002), // subnormals
            (0x03ff, 0x0001, 0x0400),
            (0x8001, 0x0001, 0x0000),
            (0x8000, 0x8000, 0x8000),
            (0x7c00, 0xfc00, 0x7fff), // inf - inf
        ];
        check(Element::F16, Add, u16s, &f16);
        let bf16 = [(0x3f80, 0x4000, 0x4040), (0x4380, 0x3f80, 0x4380), (0x4381, 0x3f80, 0x4382), (1, 1, 2)];
        check(Element::Bf16, Add, u16s, &bf16);
        let nan = 0x7e01;
        let min = [(0x8000, 0, 0x8000), (0, 0x8000, 0x8000), (nan, 0xfc00, 0xfc00), (0x3c00, nan, 0x3c00)];
        check(Element::F16, Min, u16s, &min);
        check(Element::F16, Max, u16s, &[(0x8000, 0, 0), (nan, nan, 0x7fff), (0xc000, 0xbc00, 0xbc00)]);
        // 0x7c01 is a NaN in f16 and a number in bf16.
        check(Element::Bf16, Max, u16s, &[(0x7c01, 0x3f80, 0x7c01), (0x7f81, 0x3f80, 0x3f80)]);
    }

    #[test]
    fn f16_survives_the_round_trip() {
        for bits in 0..=u16::MAX {
            let value = f32_from_f16(bits);
            let expected = if value.is_nan() { 0x7fff } else { bits };
            assert_eq!(f16_from_f32(value), expected, "{bits:#06x}");
        }
    }

    #[test]
    fn undefined_pairs_are_refused() {
        let mut destination = [0; 16];
        for (kind, element) in [
            (Reduction::Min, Element::F32),
            (Reduction::Inc, Element::U64),
            (Reduction::And, Element::F16),
            (Reduction::Add, Element::U8),
            (Reduction::Add, Element::Tf32),
        ] {
            let result = reduce(kind, element, &mut destination, &[0; 16]);
            assert_eq!(result, Err(ReduceError::Unsupported(kind, element)));
        }
        let short = reduce(Reduction::Add, Element::U32, &mut destination, &[0; 12]);
        assert_eq!(short, Err(ReduceError::Length { destination: 16, source: 12 }));
    }
}
