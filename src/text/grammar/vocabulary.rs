//! The model's vocabulary as the grammar engine reads it: a trie of token bytes.
//!
//! Added tokens stand in the trie by id, never by their text: a grammar allows an added token by
//! its id, and text that spells one is text.

use toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use crate::Tokenizer;

/// The trie without a tokenizer: the mask allows every spelling of the same bytes, so text is only
/// ever tokenized by longest match.
struct Vocabulary(TokTrie);

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.0
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.0.greedy_tokenize(bytes)
    }

    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

/// A vocabulary of `vocab_size` ids (the width of a logit row); ids unknown to the tokenizer are
/// never allowed.
pub(super) fn of(tokenizer: &Tokenizer, vocab_size: usize) -> TokEnv {
    let words: Vec<Vec<u8>> = (0..vocab_size as u32)
        .map(|id| match tokenizer.token_bytes(id) {
            Some(text) if tokenizer.is_added(id) => {
                let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
                word.extend_from_slice(text);
                word
            }
            Some(bytes) => bytes.to_vec(),
            None => Vec::new(),
        })
        .collect();
    // Every grammar names its end tokens itself, so the trie has none of its own.
    let info = TokRxInfo::new(vocab_size as u32, toktrie::INVALID_TOKEN);
    std::sync::Arc::new(Vocabulary(TokTrie::from(&info, &words)))
}
