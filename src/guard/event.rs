//! What the guard reports.

use super::Phase;

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A unit again and again, exactly.
    Loop,
    /// The same with up to a fifth of the tokens changing: counters, small variations.
    NoisyLoop,
    /// The request's own `repetition_detection` rule was met.
    Pattern,
    /// A run of the padding token, or of token 0, which is what broken numbers print.
    NumericSuspect,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Loop, Self::NoisyLoop, Self::Pattern, Self::NumericSuspect];

    /// Its name in replies, logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loop => "loop",
            Self::NoisyLoop => "noisy_loop",
            Self::Pattern => "pattern",
            Self::NumericSuspect => "numeric_suspect",
        }
    }
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Nothing: it is only reported.
    Warned,
    /// Cut back, and gone on with the loop's own words forbidden.
    Rescued,
    /// Cut back, and the thinking closed.
    ClosedThinking,
    /// Ended.
    Stopped,
}

impl Action {
    /// All actions.
    pub const ALL: [Self; 4] = [Self::Warned, Self::Rescued, Self::ClosedThinking, Self::Stopped];

    /// Its name in replies, logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Warned => "warned",
            Self::Rescued => "rescued",
            Self::ClosedThinking => "closed_thinking",
            Self::Stopped => "stopped",
        }
    }
}

/// One finding and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// What.
    pub kind: Kind,
    /// Where in the reply.
    pub phase: Phase,
    /// Tokens of the unit.
    pub period: u32,
    /// Copies of it, the first one included.
    pub copies: u32,
    /// First token of the repetition, counted from the start of the reply.
    pub start: u32,
    /// The token behind the last one.
    pub end: u32,
    /// The unit's tokens, at most [`Event::MAX_UNIT`] of them.
    pub unit: Vec<u32>,
    /// What was done.
    pub action: Action,
    /// Tokens that were generated and never delivered.
    pub discarded: u32,
}

impl Event {
    /// Most tokens of a unit that an event carries.
    pub const MAX_UNIT: usize = 24;
}
