//! Thresholds: how long a repetition must be before it is a loop.
//!
//! Calibrated on real files (`docs/guard.md`): four copies of something below 64 tokens stand in a few percent of all documents, so
//! the short periods ask for sixteen and six copies, and for a length besides.

use super::Phase;

/// The run (in tokens, the first copy not counted) at which an exact repetition is a loop.
pub fn hard_threshold(period: u32) -> u32 {
    match period {
        0..=8 => (16 * period).max(96),
        9..=64 => (6 * period).max(160),
        65..=256 => (3 * period).max(384),
        _ => period.saturating_mul(2),
    }
}

/// The score at which a repetition with noise is a loop: matches less four per mismatch.
pub fn noisy_threshold(period: u32) -> u32 {
    hard_threshold(period).saturating_mul(2)
}

/// Longest period that repeats more in code, tables and data than in prose: lines, records. A block that stands there three times is a loop too.
const LONGEST_RECORD: u32 = 256;

/// How much longer an exact repetition of a unit of `period` tokens may be where repeating is usual.
pub fn phase_multiplier(phase: Phase, period: u32) -> u32 {
    match phase {
        Phase::Code | Phase::Table if period <= LONGEST_RECORD => 4,
        Phase::Thinking | Phase::Prose | Phase::Code | Phase::Table => 1,
        Phase::Json => 8,
    }
}

/// How much longer a repetition with noise may be, of words: what has brackets or numbers in it is not judged with noise.
pub(super) fn noisy_multiplier(phase: Phase) -> u32 {
    if phase.is_open() { 1 } else { 2 }
}

/// How much longer a unit of code or data may repeat that stands in no fence: numbers of hundreds of equal digits, rows of a table of
/// constants, records. Thoughts about formulas look like that too.
pub(super) fn code_multiplier(period: u32) -> u32 {
    match period {
        0..=64 => 4,
        65..=LONGEST_RECORD => 2,
        _ => 1,
    }
}

/// The run from which tokens are held back: one copy and at least twelve tokens have been sent by then, and at most `hold_tokens` (or one
/// copy, if that is more) will be held until the threshold is reached.
pub fn hold_start(period: u32, hold_tokens: u32) -> u32 {
    let most_held = hold_tokens.max(period);
    period.max(12).max(hard_threshold(period).saturating_sub(most_held))
}

/// The same for a score.
pub(super) fn noisy_hold_start(period: u32, hold_tokens: u32) -> u32 {
    let most_held = hold_tokens.max(period);
    hard_threshold(period).max(noisy_threshold(period).saturating_sub(most_held))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_by_period() {
        for (period, run) in
            [(1, 96), (6, 96), (8, 128), (9, 160), (64, 384), (65, 384), (256, 768), (257, 514), (1024, 2048)]
        {
            assert_eq!(hard_threshold(period), run, "period {period}");
        }
    }

    #[test]
    fn what_is_held_is_bounded_and_one_copy_passes() {
        for period in 1..5000 {
            let start = hold_start(period, 256);
            assert!(start < hard_threshold(period), "period {period}: nothing would be held");
            assert!(start >= period, "period {period}: a second copy is no reason to wait");
            assert!(start <= period + 256, "period {period}: {start} tokens are sent first");
            assert!(hard_threshold(period) - start <= 256.max(period));
        }
    }
}
