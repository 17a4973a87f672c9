//! Repetition that was asked for.

/// How much repeating a request permits of one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowance {
    /// Nothing beyond the thresholds.
    None,
    /// The threshold times this: the prompt itself repeats the unit, or is of a kind in which repeating is usual.
    Times(u32),
    /// So many copies.
    Copies(u32),
    /// So many tokens.
    Tokens(u32),
    /// As many as fit.
    Unlimited,
}

impl Allowance {
    /// The run at which a unit of `period` tokens is a loop, where `threshold` is that of one that nobody asked for.
    pub fn limit(self, period: u32, threshold: u32) -> u32 {
        match self {
            Self::None => threshold,
            Self::Times(times) => threshold.saturating_mul(times),
            Self::Copies(copies) => threshold.max(copies.saturating_mul(period)),
            Self::Tokens(tokens) => threshold.max(tokens),
            Self::Unlimited => u32::MAX,
        }
    }
}

/// What a request permits of one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permit {
    /// Of copies that are equal.
    pub exact: Allowance,
    /// Of copies that differ a little.
    pub varied: Allowance,
    /// Of either, in a reply that is nothing else from its start: a loop comes over a model that has begun well.
    pub from_start: Allowance,
}

impl Permit {
    /// Nothing.
    pub const NONE: Self =
        Self { exact: Allowance::None, varied: Allowance::None, from_start: Allowance::None };

    /// Takes `allowance` in place of the exact one if it permits more of a unit of `period` tokens.
    pub fn raise_exact(&mut self, allowance: Allowance, period: u32) {
        let threshold = super::hard_threshold(period);
        if allowance.limit(period, threshold) > self.exact.limit(period, threshold) {
            self.exact = allowance;
        }
    }

    /// The same for copies that differ.
    pub fn raise_varied(&mut self, allowance: Allowance, period: u32) {
        let threshold = super::noisy_threshold(period);
        if allowance.limit(period, threshold) > self.varied.limit(period, threshold) {
            self.varied = allowance;
        }
    }
}

/// Answers for one request, from its prompt. Asked only when something has repeated for a while, so it may be slow.
pub trait Licence: std::fmt::Debug + Send + Sync {
    /// What the prompt permits of this unit, the tokens of one copy.
    fn permit(&self, unit: &[u32]) -> Permit;
}
