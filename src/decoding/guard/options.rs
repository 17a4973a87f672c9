//! The options of a request's guard.

use std::sync::Arc;

use super::{Licence, Markers, Mode, PatternRule, Vocabulary};

/// Inputs of a [`super::Guard`].
#[derive(Debug, Clone)]
pub struct Options {
    /// Responses to a loop that are allowed.
    pub mode: Mode,
    /// Most tokens held back while a loop is suspected; one copy of the unit, if that is more.
    pub hold_tokens: u32,
    /// Rescues per reply.
    pub max_rescues: u32,
    /// Tokens after a rescue in which the loop's own n-grams stay forbidden.
    pub ban_tokens: u32,
    /// The client's own rule; a match ends the reply whatever `mode` is.
    pub pattern: Option<PatternRule>,
    /// Byte and word facts of every token id.
    pub vocabulary: Arc<Vocabulary>,
    /// Control tokens that change the phase.
    pub markers: Markers,
    /// The padding token, whose runs are [`super::Kind::NumericSuspect`].
    pub padding: Option<u32>,
    /// Whether the prompt ends inside an open thought.
    pub starts_thinking: bool,
    /// Whether the whole reply is held to a grammar.
    pub structured: bool,
    /// Tokens of the closing words and the end marker of a thought; empty = thinking cannot be
    /// closed.
    pub close_thinking: Arc<[u32]>,
    /// The prompt's licence; `None` permits nothing beyond the thresholds.
    pub licence: Option<Arc<Licence>>,
}

impl Options {
    /// Full protection with the defaults of [`super::Config`], for a vocabulary.
    pub fn new(vocabulary: Arc<Vocabulary>) -> Self {
        let config = super::Config::default();
        Self {
            mode: config.mode,
            hold_tokens: config.hold_tokens,
            max_rescues: config.max_rescues,
            ban_tokens: config.ban_tokens,
            pattern: None,
            vocabulary,
            markers: Markers::default(),
            padding: None,
            starts_thinking: false,
            structured: false,
            close_thinking: [].into(),
            licence: None,
        }
    }
}
