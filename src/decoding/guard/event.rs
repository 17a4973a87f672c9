//! Findings of the guard, as replies, logs and metrics report them.

use super::Phase;

/// The kind of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Exact copies of a unit.
    Loop,
    /// Copies of a unit in which up to a fifth of the tokens change: counters, small variations.
    NoisyLoop,
    /// The request's own `repetition_detection` rule was met.
    Pattern,
    /// A run of the padding token, or of token 0, the token that broken logits yield.
    NumericSuspect,
}

impl Kind {
    /// Every kind, in the order of the enum.
    pub const ALL: [Self; 4] = [Self::Loop, Self::NoisyLoop, Self::Pattern, Self::NumericSuspect];

    /// The name in replies, logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loop => "loop",
            Self::NoisyLoop => "noisy_loop",
            Self::Pattern => "pattern",
            Self::NumericSuspect => "numeric_suspect",
        }
    }
}

/// The response to a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// None: the finding is only reported.
    Warned,
    /// The reply is cut back and continues with the loop's phrases forbidden.
    Rescued,
    /// The reply is cut back and its thinking is closed.
    ClosedThinking,
    /// The reply is ended.
    Stopped,
}

impl Action {
    /// Every action, in the order of the enum.
    pub const ALL: [Self; 4] = [Self::Warned, Self::Rescued, Self::ClosedThinking, Self::Stopped];

    /// The name in replies, logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Warned => "warned",
            Self::Rescued => "rescued",
            Self::ClosedThinking => "closed_thinking",
            Self::Stopped => "stopped",
        }
    }
}

/// One finding and the response to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Kind of repetition.
    pub kind: Kind,
    /// Phase of the reply at the finding.
    pub phase: Phase,
    /// Tokens of the unit.
    pub period: u32,
    /// Copies of the unit, the first one included.
    pub copies: u32,
    /// First token of the repetition, counted from the start of the reply.
    pub start: u32,
    /// First token after the repetition, counted from the start of the reply.
    pub end: u32,
    /// The unit's tokens, at most [`Event::MAX_UNIT`] of them.
    pub unit: Vec<u32>,
    /// The response taken.
    pub action: Action,
    /// Tokens generated and never delivered.
    pub discarded: u32,
}

impl Event {
    /// Most tokens of a unit that an event carries.
    pub const MAX_UNIT: usize = 24;
}
