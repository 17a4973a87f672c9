//! Thresholds: how long a repetition must be before it is a loop.
//!
//! Calibrated on real files (`docs/guard.md`): four copies of a unit below 64 tokens stand in a few
//! percent of all documents, so short units need sixteen and six copies, and a length besides.

/// Least run of anything that is judged.
pub(super) const LEAST_RUN: u32 = 12;
/// Longest unit judged with noise, and longest that may repeat longer in structured text: records
/// and lines. Three copies of a longer block are a loop in any phase.
pub(super) const LONGEST_RECORD: u32 = 256;
/// Factor on the threshold of an exact repetition of records in structured text.
const STRUCTURED_TIMES: u32 = 4;

/// The run (in tokens, the first copy not counted) at which an exact repetition is a loop.
pub fn exact_threshold(period: u32) -> u32 {
    match period {
        0..=8 => (16 * period).max(96),
        9..=64 => (6 * period).max(160),
        65..=256 => (3 * period).max(384),
        _ => period.saturating_mul(2),
    }
}

/// The score at which a repetition with noise is a loop: matches less four per mismatch.
pub(super) fn noisy_threshold(period: u32) -> u32 {
    exact_threshold(period).saturating_mul(2)
}

/// The run at which an exact repetition in structured text is a loop.
pub(super) fn structured_threshold(period: u32) -> u32 {
    exact_threshold(period) * if period <= LONGEST_RECORD { STRUCTURED_TIMES } else { 1 }
}

/// The run from which tokens are held back. By then one copy and at least `LEAST_RUN` tokens have
/// been sent; until `threshold` at most `hold_tokens` (or one copy, if that is more) are held.
pub fn hold_start(period: u32, threshold: u32, hold_tokens: u32) -> u32 {
    period.max(LEAST_RUN).max(threshold.saturating_sub(hold_tokens.max(period)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_by_period() {
        for (period, run) in
            [(1, 96), (6, 96), (8, 128), (9, 160), (64, 384), (65, 384), (256, 768), (257, 514), (1024, 2048)]
        {
            assert_eq!(exact_threshold(period), run, "period {period}");
        }
        assert_eq!(
            (structured_threshold(2), structured_threshold(256), structured_threshold(257)),
            (384, 3072, 514)
        );
    }

    #[test]
    fn what_is_held_is_bounded_and_one_copy_passes() {
        for period in 1..5000 {
            let threshold = exact_threshold(period);
            let start = hold_start(period, threshold, 256);
            assert!(start < threshold, "period {period}: nothing would be held");
            assert!(start >= period, "period {period}: a second copy is no reason to wait");
            assert!(start <= period + 256, "period {period}: {start} tokens are sent first");
            assert!(threshold - start <= 256.max(period));
        }
    }
}
