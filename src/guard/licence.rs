//! Repetition that was asked for.

/// How much repeating a request permits of one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowance {
    /// Nothing beyond the thresholds.
    None,
    /// The threshold times this: the prompt itself repeats the unit, and may be copied or translated.
    Times(u32),
    /// So many copies.
    Copies(u32),
    /// As many as fit.
    Unlimited,
}

/// Answers for one request, from its prompt. Asked only when a loop would be reported, so it may be slow.
pub trait Licence: std::fmt::Debug + Send + Sync {
    /// What the prompt permits of this unit, the tokens of one copy.
    fn allowance(&self, unit: &[u32]) -> Allowance;
}
