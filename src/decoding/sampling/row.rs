//! Passes over a row of logits that the sampler and the logprobs share.
//!
//! A NaN counts as -inf and +inf as the largest finite number, so that one broken logit does not
//! invalidate the row.

use super::widest::widest;

/// Values processed in parallel in a pass: enough to fill the vector registers.
const LANES: usize = 16;

/// The largest value of the row, or `None` if no value is finite. +inf counts as `f32::MAX`.
pub(super) fn maximum(row: &[f32]) -> Option<f32> {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            // A comparison with NaN is false, so a NaN is never the maximum.
            *lane = if value > *lane { value } else { *lane };
        }
    }
    let best = lanes
        .iter()
        .chain(rest)
        .fold(f32::NEG_INFINITY, |best, &value| if value > best { value } else { best });
    if best.is_finite() {
        return Some(best);
    }
    row.iter().any(|value| value.is_finite()).then_some(f32::MAX)
}

widest! {
    /// [`maximum`], and whether the row is sound: no NaN, no +inf. One pass for both.
    fn survey(row: &[f32]) -> (Option<f32>, bool) {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        let mut broken = [0u32; LANES];
        let (chunks, rest) = row.as_chunks::<LANES>();
        for chunk in chunks {
            for ((lane, broken), &value) in lanes.iter_mut().zip(&mut broken).zip(chunk) {
                *lane = if value > *lane { value } else { *lane };
                // False for NaN as for +inf.
                *broken |= u32::from((value <= f32::MAX) ^ true);
            }
        }
        let sound = broken.iter().all(|&b| b == 0) && rest.iter().all(|value| *value <= f32::MAX);
        let best = lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |best, &value| best.max(value));
        match best.is_finite() {
            true => (Some(best), sound),
            // Rare; `maximum` computes the value.
            false => (maximum(row), sound),
        }
    }
}

/// The first index with this value, which must occur in the row (for `f32::MAX`, +inf counts too).
#[inline(always)]
pub(super) fn first_index(row: &[f32], value: f32) -> usize {
    let (chunks, rest) = row.as_chunks::<LANES>();
    for (number, chunk) in chunks.iter().enumerate() {
        if chunk.iter().fold(false, |any, &other| any | (other >= value)) {
            let inside = chunk.iter().position(|&other| other >= value).expect("one of them is");
            return number * LANES + inside;
        }
    }
    let inside = rest.iter().position(|&other| other >= value).expect("the value stands in the row");
    row.len() - rest.len() + inside
}

/// A logit with NaN and +inf replaced.
#[inline(always)]
pub(super) fn clean(logit: f32) -> f32 {
    let logit = if logit >= f32::MAX { f32::MAX } else { logit };
    if logit.is_nan() { f32::NEG_INFINITY } else { logit }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maximum_and_its_first_index() {
        let mut rng = fastrand::Rng::with_seed(7);
        for len in 1..200 {
            let mut row: Vec<f32> = (0..len).map(|_| rng.u32(0..20) as f32 - 10.0).collect();
            row[rng.usize(0..len)] = f32::NAN;
            let finite: Vec<f32> = row.iter().copied().filter(|value| value.is_finite()).collect();
            let expected = finite.iter().copied().reduce(f32::max);
            assert_eq!(maximum(&row), expected);
            if let Some(best) = expected {
                assert_eq!(first_index(&row, best), row.iter().position(|&value| value == best).unwrap());
            }
        }
    }

    #[test]
    fn a_survey_is_the_maximum_and_sees_what_is_broken() {
        let mut rng = fastrand::Rng::with_seed(17);
        for len in 0..200 {
            let mut row: Vec<f32> = (0..len).map(|_| rng.f32() * 20.0 - 10.0).collect();
            assert_eq!(survey(&row), (maximum(&row), true));
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                if len > 0 {
                    row[rng.usize(0..len)] = value;
                    let broken = row.iter().any(|v| v.is_nan() || *v == f32::INFINITY);
                    assert_eq!(survey(&row), (maximum(&row), !broken), "{row:?}");
                }
            }
        }
    }

    #[test]
    fn broken_rows() {
        const INF: f32 = f32::INFINITY;
        assert_eq!(maximum(&[]), None);
        assert_eq!(maximum(&[f32::NAN, -INF, INF]), None);
        assert_eq!(maximum(&[1.0, INF]), Some(f32::MAX));
        assert_eq!(first_index(&[1.0, INF], f32::MAX), 1);
        assert_eq!(maximum(&[-INF, -3.0]), Some(-3.0));
    }
}
