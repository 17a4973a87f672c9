//! Compares the memory after a launch with the answer of a case.

use super::{DType, Tolerance};
use std::fmt;

/// What a launch left behind.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// One entry for each tensor with an answer.
    pub differences: Vec<Difference>,
    /// Tensors without an answer that the launch changed.
    pub changes: Vec<Change>,
}

/// A tensor beside its answer.
#[derive(Clone, Debug)]
pub struct Difference {
    /// Name of the tensor.
    pub tensor: String,
    /// Elements compared.
    pub elements: usize,
    /// Largest absolute difference; NaN beside a number counts as infinite, infinities of one sign as equal.
    pub largest: f64,
    /// Elements outside the tolerance.
    pub wrong: usize,
    /// Index, got and want of the first one.
    pub first: Option<(usize, f64, f64)>,
}

/// An input that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Name of the tensor.
    pub tensor: String,
    /// Bytes that changed.
    pub bytes: usize,
    /// Offset of the first one.
    pub first: usize,
}

impl Report {
    /// Whether every answer is within the tolerance and nothing else changed.
    pub fn is_right(&self) -> bool {
        self.changes.is_empty() && self.differences.iter().all(|difference| difference.wrong == 0)
    }

    /// Largest absolute difference over all tensors.
    pub fn largest(&self) -> f64 {
        self.differences.iter().fold(0.0, |largest, difference| largest.max(difference.largest))
    }
}

impl Difference {
    /// Compares `got` with `want`, the bytes of equally many elements.
    pub fn of(tensor: &str, dtype: DType, tolerance: Tolerance, got: &[u8], want: &[u8]) -> Self {
        let bytes = dtype.bytes();
        let mut result = Self {
            tensor: tensor.to_owned(),
            elements: want.len() / bytes,
            largest: 0.0,
            wrong: 0,
            first: None,
        };
        for (index, (got, want)) in got.chunks(bytes).zip(want.chunks(bytes)).enumerate() {
            if got == want {
                continue;
            }
            let (got, want) = (dtype.value(got), dtype.value(want));
            let difference = match (got.is_nan(), want.is_nan()) {
                (true, true) => 0.0,
                _ if got == want => 0.0,
                (false, false) => (got - want).abs(),
                _ => f64::INFINITY,
            };
            result.largest = result.largest.max(difference);
            // Infinities of two signs differ by infinity, which no allowance of an infinite answer covers.
            let allowed = tolerance.absolute + tolerance.relative * want.abs();
            if tolerance.is_exact() || difference.is_infinite() || difference > allowed {
                result.wrong += 1;
                result.first.get_or_insert((index, got, want));
            }
        }
        result
    }
}

impl Change {
    /// The change from `before` to `after`; `None` if there is none.
    pub fn of(tensor: &str, before: &[u8], after: &[u8]) -> Option<Self> {
        let mut changed = before.iter().zip(after).enumerate().filter(|(_, (b, a))| b != a).map(|(i, _)| i);
        let first = changed.next()?;
        Some(Self { tensor: tensor.to_owned(), bytes: 1 + changed.count(), first })
    }
}

impl Tolerance {
    /// Whether the answer is compared bit for bit.
    pub fn is_exact(self) -> bool {
        self.absolute == 0.0 && self.relative == 0.0
    }
}

impl fmt::Display for Tolerance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_exact() {
            f.pad("exact")
        } else {
            f.pad(&format!("{:e}+{:e}r", self.absolute, self.relative))
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tensor, elements, wrong, .. } = self;
        write!(f, "{tensor}: {wrong} of {elements} elements wrong")?;
        match self.first {
            Some((index, got, want)) => write!(f, ", the first at {index}: got {got:?}, want {want:?}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tensor, bytes, first } = self;
        write!(f, "{tensor}: {bytes} bytes of an input changed, the first at {first}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(dtype: DType, absolute: f64, relative: f64, got: &[u8], want: &[u8]) -> (f64, usize) {
        let difference = Difference::of("t", dtype, Tolerance { absolute, relative }, got, want);
        (difference.largest, difference.wrong)
    }

    #[test]
    fn tolerances() {
        let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
        let want = bytes(&[1.0, 2.0, -4.0, f32::NAN, f32::INFINITY]);
        let near = bytes(&[1.0, 2.25, -4.25, -f32::NAN, f32::INFINITY]);
        assert_eq!(compare(DType::Fp32, 0.0, 0.0, &want, &want), (0.0, 0));
        assert_eq!(compare(DType::Fp32, 0.0, 0.0, &near, &want), (0.25, 3));
        assert_eq!(compare(DType::Fp32, 0.25, 0.0, &near, &want), (0.25, 0));
        assert_eq!(compare(DType::Fp32, 0.0, 0.0625, &near, &want), (0.25, 1));
        let far = bytes(&[f32::NAN, 2.0, -4.0, 0.0, f32::NEG_INFINITY]);
        assert_eq!(compare(DType::Fp32, 1.0, 1.0, &far, &want), (f64::INFINITY, 3));
        // Bit for bit tells zeros apart.
        assert_eq!(compare(DType::Fp32, 0.0, 0.0, &bytes(&[-0.0]), &bytes(&[0.0])), (0.0, 1));
        assert_eq!(compare(DType::I8, 0.0, 0.0, &[0xff, 5], &[0x01, 5]), (2.0, 1));
    }

    #[test]
    fn messages() {
        let tolerance = Tolerance { absolute: 0.0, relative: 0.0 };
        let difference = Difference::of("c", DType::U8, tolerance, &[1, 2, 3], &[1, 4, 5]);
        assert_eq!(difference.to_string(), "c: 2 of 3 elements wrong, the first at 1: got 2.0, want 4.0");
        let change = Change::of("a", &[1, 2, 3, 4], &[1, 0, 3, 0]).unwrap();
        assert_eq!(change.to_string(), "a: 2 bytes of an input changed, the first at 1");
        assert_eq!(Change::of("a", &[1], &[1]), None);
        assert_eq!(Tolerance { absolute: 1e-6, relative: 0.008 }.to_string(), "1e-6+8e-3r");
        assert_eq!(format!("{tolerance:>7}"), "  exact");
    }
}
