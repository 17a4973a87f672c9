//! A compiled grammar, and the limits of the replies that follow it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::TokenParser;

use super::budget::Account;
use super::closing::Landmarks;
use super::notation::spelled;
use super::parser::{Parser, Spelling};

/// Bytes that a reply's parser may hold whatever other replies hold.
const REPLY_BYTES: usize = 4 << 20;

/// A compiled grammar; any number of replies can start from one.
pub struct Grammar {
    /// Never advanced; the lock guards its inner caches.
    pub(super) template: Mutex<TokenParser>,
    pub(super) marks: Arc<Landmarks>,
    pub(super) spelling: Spelling,
    /// Limits of a reply's parser.
    pub(super) limits: ReplyLimits,
    /// The shortest reply found, without its end token; `None` where the search found none.
    pub(super) shortest: Option<Vec<u8>>,
    pub(super) needs_tokens: usize,
    /// Bytes held by the whole grammar.
    pub(super) bytes: usize,
    /// Places of the rules of schemas that are not enforced.
    pub(super) advice: Vec<String>,
}

/// Limits of a reply's parser.
#[derive(Debug, Clone)]
pub(super) struct ReplyLimits {
    pub(super) bytes: usize,
    /// Most bytes of the parsers of all replies together, and the bytes they hold.
    pub(super) all_bytes: usize,
    pub(super) account: Arc<Account>,
    /// Most work per token.
    pub(super) work: u64,
}

impl ReplyLimits {
    /// Most bytes for a parser that now holds `held`.
    pub(super) fn bytes_for(&self, held: usize) -> usize {
        let left = self.all_bytes.saturating_sub(self.account.held());
        (held + left).max(REPLY_BYTES).min(self.bytes)
    }
}

impl Grammar {
    /// Fewest tokens found for a reply, without its end token.
    pub fn needs_tokens(&self) -> usize {
        self.needs_tokens
    }

    /// Bytes of memory that the grammar holds.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Places of the rules in the request's schemas that are not enforced, as keywords joined by
    /// dots, behind the name of the tool where there are tools; a name alone where nothing of the
    /// tool's schema is enforced.
    pub fn advice(&self) -> &[String] {
        &self.advice
    }

    /// A parser at the start of a reply.
    pub(super) fn parser(&self) -> Parser {
        let template = self.template.lock().unwrap_or_else(PoisonError::into_inner).deep_clone();
        Parser::new(template, self.marks.clone())
    }

    pub(super) fn is_end(&self, token: u32) -> bool {
        self.marks.ends.iter().any(|end| *end == spelled(token))
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").field("needs_tokens", &self.needs_tokens).finish_non_exhaustive()
    }
}
