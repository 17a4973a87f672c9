//! Rows of logits that are no distribution.
//!
//! Such a row used to print as a stream of "!" (token id 0): the largest of values that are all
//! NaN, or all equal, is the first one. It is a fault of numbers, not of language: the sequence
//! ends with a server error, and nothing it computed is kept for others.

/// What is wrong with a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RowFault {
    /// A value is NaN or +inf, so the probabilities do not exist.
    NonFinite,
    /// All values are equal: a network does not do that.
    Flat,
}

impl RowFault {
    /// Its name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::NonFinite => "non_finite",
            Self::Flat => "flat",
        }
    }
}

/// Whether all logits of a row are equal. Looks at a few values unless the row is.
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
