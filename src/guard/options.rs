//! What a guard is told of its request.

use std::sync::Arc;

use super::{Licence, Markers, Mode, PatternRule, Vocabulary};

/// Everything a guard is made from.
#[derive(Debug, Clone)]
pub struct Options {
    /// What may be done.
    pub mode: Mode,
    /// Most tokens held back while a loop is suspected (one copy, if that is more).
    pub hold_tokens: u32,
    /// Rescues per reply.
    pub max_rescues: u32,
    /// Tokens after a rescue in which the loop's own n-grams stay forbidden.
    pub ban_tokens: u32,
    /// The client's own rule; it stops, whatever `mode` says.
    pub pattern: Option<PatternRule>,
    /// Facts about tokens.
    pub vocabulary: Arc<Vocabulary>,
    /// Control tokens.
    pub markers: Markers,
    /// The padding token.
    pub padding: Option<u32>,
    /// Whether the prompt ends inside an open thought.
    pub starts_thinking: bool,
    /// Whether the whole reply is held to a grammar.
    pub structured: bool,
    /// Tokens that end thinking in words and with its marker; empty = thinking cannot be closed.
    pub close_thinking: Arc<[u32]>,
    /// What the prompt permits.
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
