//! From scores to survivors.

use serde::{Deserialize, Serialize};

/// What the scores of a plan mean.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Criterion {
    /// Mean over the tokens of an expert of routing weight times norm of its output. REAP, arXiv 2510.13999.
    Reap,
    /// Times selected.
    Frequency,
    /// Draws keyed by (seed, layer, expert): the baseline.
    Random {
        /// Seed.
        seed: u64,
    },
    /// Chosen elsewhere; `note` says how.
    Given {
        /// For people.
        note: String,
    },
}

impl Criterion {
    /// Name in messages.
    pub fn name(&self) -> &'static str {
        match self {
            Criterion::Reap => "reap",
            Criterion::Frequency => "frequency",
            Criterion::Random { .. } => "random",
            Criterion::Given { .. } => "given",
        }
    }
}

/// A score that is no number, by its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the score of expert {0} is not a finite number; collect the saliency again")]
pub struct NotFinite(pub usize);

/// Ids of the `num_kept` largest scores, ascending: a survivor's new id is its rank among them. On ties the lower id survives.
pub fn survivors(scores: &[f64], num_kept: usize) -> Result<Vec<u32>, NotFinite> {
    if let Some(i) = scores.iter().position(|s| !s.is_finite()) {
        return Err(NotFinite(i));
    }
    let mut order: Vec<u32> = (0..scores.len() as u32).collect();
    // Not `total_cmp`, which tells -0 from 0; all scores are finite, so the order is total.
    let score = |i: u32| scores[i as usize];
    order.sort_by(|a, b| {
        score(*b).partial_cmp(&score(*a)).unwrap_or(std::cmp::Ordering::Equal).then(a.cmp(b))
    });
    order.truncate(num_kept);
    order.sort_unstable();
    Ok(order)
}

/// The draw of one expert, in [0, 1).
pub fn random_score(seed: u64, layer: usize, expert: usize) -> f64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"perigee expert draw");
    for word in [seed, layer as u64, expert as u64] {
        hasher.update(&word.to_le_bytes());
    }
    let bytes: [u8; 8] = std::array::from_fn(|i| hasher.finalize().as_bytes()[i]);
    (u64::from_le_bytes(bytes) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survivors_are_the_best_in_ascending_order() {
        for (scores, kept, expected) in [
            (&[1.0, 3.0, 2.0, 4.0][..], 2, &[1, 3][..]),
            (&[5.0, 1.0, 1.0, 1.0], 2, &[0, 1]),
            (&[0.0, 0.0, 0.0], 2, &[0, 1]),
            (&[0.0, -0.0, 0.0], 2, &[0, 1]),
            (&[-1.0, f64::MIN_POSITIVE, 0.0], 1, &[1]),
            (&[2.0, 1.0], 2, &[0, 1]),
            (&[], 0, &[]),
        ] {
            assert_eq!(survivors(scores, kept).unwrap(), expected, "{scores:?}");
        }
        assert_eq!(survivors(&[1.0, f64::NAN], 1), Err(NotFinite(1)));
        assert_eq!(survivors(&[f64::INFINITY, 1.0], 1), Err(NotFinite(0)));
    }

    #[test]
    fn draws_depend_on_their_key_alone() {
        let a = random_score(1, 2, 3);
        assert!((0.0..1.0).contains(&a));
        assert_eq!(a, random_score(1, 2, 3));
        assert!(a != random_score(2, 2, 3) && a != random_score(1, 3, 3) && a != random_score(1, 2, 4));
    }
}
