//! The grammar engine's parser with the searches in it, and the vocabulary that spells its tokens.

use std::fmt;
use std::sync::Arc;

use llguidance::TokenParser;
use llguidance::earley::{BiasComputer, ParserRecognizer};
use toktrie::{SimpleVob, TokEnv, TokTrie};

use super::closing::{Found, Landmarks, Place, Walk};
use perigee_decoding::sampling::ConstraintBroken;

/// The grammar engine's parser and the searches in it.
pub(super) struct Parser {
    pub(super) inner: TokenParser,
    marks: Arc<Landmarks>,
}

impl Parser {
    pub(super) fn new(inner: TokenParser, marks: Arc<Landmarks>) -> Self {
        Self { inner, marks }
    }

    /// Whether the lexer has reached its bounds; an exhausted lexer accepts nothing more.
    pub(super) fn is_exhausted(&self) -> bool {
        self.inner.parser.get_error().is_some()
    }

    pub(super) fn into_inner(self) -> TokenParser {
        self.inner
    }

    /// The shortest way to the end found within `fuel` tries.
    pub(super) fn close(&mut self, place: Place, recent: &[u8], fuel: usize) -> Found {
        self.walk(fuel, |walk| walk.close(place, recent))
    }

    pub(super) fn walk<T>(&mut self, fuel: usize, go: impl FnOnce(&mut Walk<'_, '_>) -> T) -> T {
        // The lexer builds its states on demand, within an allowance that only a mask renews.
        let refuel = Refuel(self.inner.token_env.clone());
        self.inner.parser.compute_bias(&refuel, b"-");
        let marks = self.marks.clone();
        self.inner.parser.with_recognizer(|recognizer| {
            let mut walk = Walk::begin(recognizer, &marks, fuel);
            let found = go(&mut walk);
            walk.finish();
            found
        })
    }

    pub(super) fn consume(&mut self, token: u32) -> Result<(), ConstraintBroken> {
        match self.inner.consume_token(token) {
            Ok(0) => Ok(()),
            Ok(_) => Err(ConstraintBroken("it wants to go back".into())),
            Err(error) => Err(broken(&error)),
        }
    }
}

/// The vocabulary, for mapping bytes to tokens.
pub(super) struct Spelling(pub(super) TokEnv);

impl Spelling {
    /// Number of tokens that spell these bytes, special tokens included.
    pub(super) fn count_tokens(&self, bytes: &[u8]) -> usize {
        let (mut at, mut count) = (0, 0);
        while at < bytes.len() {
            let (_, len) = self.first_token(&bytes[at..]);
            at += len.max(1);
            count += 1;
        }
        count
    }

    /// The longest token at the start of these bytes, and its length in bytes.
    pub(super) fn first_token(&self, bytes: &[u8]) -> (u32, usize) {
        if bytes[0] == TokTrie::SPECIAL_TOKEN_MARKER {
            return match toktrie::parse_numeric_token(&bytes[1..]) {
                Some((len, id)) => (id, len + 1),
                None => (0, bytes.len()),
            };
        }
        let text =
            bytes.iter().position(|&b| b == TokTrie::SPECIAL_TOKEN_MARKER).map_or(bytes, |end| &bytes[..end]);
        self.0.tok_trie().prefix_token_id(text)
    }
}

/// Renews the lexer's allowance without computing a mask.
struct Refuel(toktrie::TokEnv);

impl BiasComputer for Refuel {
    fn compute_bias(&self, _: &mut ParserRecognizer<'_>, _: &[u8]) -> SimpleVob {
        self.0.tok_trie().alloc_token_set()
    }

    fn trie(&self) -> &TokTrie {
        self.0.tok_trie()
    }
}

/// The first line of the grammar engine's error.
pub(super) fn broken(error: &dyn fmt::Display) -> ConstraintBroken {
    ConstraintBroken(error.to_string().lines().next().unwrap_or_default().to_owned())
}
