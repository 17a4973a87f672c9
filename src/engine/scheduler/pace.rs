//! Tokens of prompts and drafts that a step may compute beside those of the replies, so that it lasts
//! no longer than its target: replies wait for the step, and so does the next request to arrive.
//!
//! What such a token costs depends on the device, the context and what else is in the step, so it is
//! not modelled: a step that took longer than its target makes the next ones smaller, one that was
//! full and took less makes them larger.

use std::time::Duration;

/// Fewest prompt tokens that a step may be cut to: below this, reading the weights, and expanding the
/// context once more where that is not kept, is most of what a prompt costs.
pub(super) const MIN_TOKENS: usize = 16;
/// Most growth from step to step.
const GROWTH: f64 = 1.25;
/// Least remainder from step to step.
const CUT: f64 = 0.5;

/// Cuts the tokens of steps to a time.
#[derive(Debug)]
pub(super) struct Pace {
    /// Zero: no step is cut.
    target: Duration,
    tokens: usize,
    most: usize,
}

impl Pace {
    /// Steps of `target` each, zero = no limit, with `most` tokens at first and at most.
    pub(super) fn new(target: Duration, most: usize) -> Self {
        Self { target, tokens: if target.is_zero() { usize::MAX } else { most }, most }
    }

    /// Whether steps have a target.
    pub(super) fn is_on(&self) -> bool {
        !self.target.is_zero()
    }

    /// Most prompt tokens of a step now.
    pub(super) fn prompt_tokens(&self) -> usize {
        self.tokens.max(MIN_TOKENS.min(self.most))
    }

    /// Most drafted tokens of a step now that may have so many prompt tokens besides.
    pub(super) fn drafted_tokens(&self, prompts: usize) -> usize {
        self.tokens.saturating_sub(prompts)
    }

    /// Notes that a step took a time with so many prompt and drafted tokens.
    pub(super) fn note(&mut self, tokens: usize, took: Duration) {
        if !self.is_on() {
            return;
        }
        let ratio = self.target.as_secs_f64() / took.as_secs_f64().max(1e-6);
        let was_full = tokens * 10 >= self.tokens * 9;
        let larger = || (self.tokens as f64 * ratio.min(GROWTH)).ceil() as usize;
        self.tokens = match tokens {
            // Without drafts since they were cut: a few are tried again.
            0 if ratio > 1.0 && self.tokens < MIN_TOKENS => larger().min(MIN_TOKENS),
            0 => return,
            _ if ratio < 1.0 => ((self.tokens.min(tokens) as f64 * ratio.max(CUT)) as usize).max(1),
            _ if was_full => larger(),
            _ => return,
        };
        self.tokens = self.tokens.min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens after some steps on a device that takes `per_token` for one and `base` for the rest.
    fn settled(target_ms: u64, most: usize, base: Duration, per_token: Duration) -> usize {
        let mut pace = Pace::new(Duration::from_millis(target_ms), most);
        for _ in 0..40 {
            let tokens = pace.prompt_tokens();
            pace.note(tokens, base + per_token.saturating_mul(tokens.min(1 << 20) as u32));
        }
        pace.prompt_tokens()
    }

    #[test]
    fn steps_settle_at_their_target() {
        let (base, per_token) = (Duration::from_millis(5), Duration::from_micros(100));
        let tokens = settled(25, 512, base, per_token);
        assert!((190..=210).contains(&tokens), "{tokens}");
        assert_eq!(settled(0, 512, base, per_token), usize::MAX, "no target");
        assert_eq!(settled(1000, 512, base, per_token), 512, "never above the most");
        assert_eq!(settled(1, 512, base, per_token), MIN_TOKENS, "never below the least");
        assert_eq!(settled(1, 8, base, per_token), 8, "unless a step has room for less");
    }

    #[test]
    fn a_short_prompt_says_nothing_of_longer_ones() {
        let mut pace = Pace::new(Duration::from_millis(10), 512);
        pace.note(512, Duration::from_millis(20));
        assert_eq!(pace.prompt_tokens(), 256);
        pace.note(20, Duration::from_millis(2));
        assert_eq!(pace.prompt_tokens(), 256);
        pace.note(0, Duration::from_millis(90));
        assert_eq!(pace.prompt_tokens(), 256, "a step of replies alone");
        pace.note(250, Duration::from_millis(5));
        assert_eq!(pace.prompt_tokens(), 320);
    }

    #[test]
    fn drafts_give_way_to_prompts_and_come_back() {
        let ms = Duration::from_millis;
        let mut pace = Pace::new(ms(10), 512);
        pace.note(100, ms(20));
        assert_eq!((pace.drafted_tokens(0), pace.drafted_tokens(20), pace.drafted_tokens(60)), (50, 30, 0));
        for _ in 0..9 {
            pace.note(16, ms(30));
        }
        assert_eq!((pace.prompt_tokens(), pace.drafted_tokens(0)), (MIN_TOKENS, 1));
        pace.note(0, ms(11));
        assert_eq!(pace.drafted_tokens(0), 1, "replies alone take longer");
        for _ in 0..99 {
            pace.note(0, ms(9));
        }
        assert_eq!(pace.drafted_tokens(0), MIN_TOKENS);
        pace.note(16, ms(8));
        assert_eq!(pace.drafted_tokens(0), 20);
        assert_eq!(Pace::new(Duration::ZERO, 512).drafted_tokens(512), usize::MAX - 512, "no target");
    }
}
