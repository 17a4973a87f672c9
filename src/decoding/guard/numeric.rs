//! Detects logit rows that are not a distribution: NaN, +inf, or all equal.
//!
//! Without the check such a row prints as a stream of "!" (token id 0): the argmax of values that
//! are all NaN, or all equal, is the first one. The fault lies in the numbers, not in the language:
//! the sequence ends with a server error and nothing computed for it is kept for other sequences.

/// The fault of a logit row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RowFault {
    /// A value is NaN or +inf, so the probabilities are undefined.
    NonFinite,
    /// All values are equal, which no working network produces.
    Flat,
}

impl RowFault {
    /// The name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::NonFinite => "non_finite",
            Self::Flat => "flat",
        }
    }
}

/// Whether all logits of a row are equal. Reads only a few values of a row that is not flat.
pub fn is_flat(row: &[f32]) -> bool {
    match row {
        [] | [_] => false,
        [first, rest @ ..] => rest.iter().all(|value| value == first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_rows() {
        assert!(is_flat(&[0.0; 9]) && is_flat(&[3.5, 3.5]));
        assert!(!is_flat(&[]) && !is_flat(&[1.0]), "a vocabulary of one token has nothing to say");
        let mut row = [1.0; 100];
        row[99] = 1.000_000_1;
        assert!(!is_flat(&row));
        assert!(!is_flat(&[f32::NAN; 4]), "NaN equals nothing; it has a name of its own");
    }
}
