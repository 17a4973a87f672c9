//! Text to token ids and token ids to bytes.
//!
//! A `tiktoken.model` is encoded by the split and merges of this module, several times as fast as a
//! regex engine and merge tables; a `tokenizer.json`, which may hold any split, by the `tokenizers`
//! crate. Neither encoder knows added tokens: this file finds them, so that the caller decides per
//! text whether a string that spells one is the token or text.

mod added_tokens;
mod bpe;
mod char_classes;
mod detokenizer;
mod kimi_split;
mod slicer;
mod tiktoken;

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ahash::AHashMap;
use serde_json::Value;
use tokenizers::DecoderWrapper;

pub(super) use added_tokens::AddedTokens;
pub use detokenizer::Detokenizer;
pub(super) use slicer::Slicer;

use super::markers;
use added_tokens::AddedToken;
use bpe::{Bpe, Scratch};
use kimi_split::KimiSplit;

/// Name of the tiktoken vocabulary in a model folder.
const TIKTOKEN_FILE: &str = "tiktoken.model";
/// Name of the `tokenizers` file in a model folder.
const TOKENIZER_FILE: &str = "tokenizer.json";
/// Name of the file with the special tokens.
const CONFIG_FILE: &str = "tokenizer_config.json";
/// Largest id of a `tokenizer.json`; keeps a hostile file from taking memory without bound.
const MAX_ID: u32 = 1 << 21;

/// Encoding of strings that spell an added token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Specials {
    /// Such strings become the added token (the upstream behaviour: any author of the text can
    /// write control tokens).
    Recognised,
    /// Such strings are text like any other.
    AsText,
}

/// Reasons why a tokenizer could not be loaded or a text could not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The model folder has no tokenizer.
    #[error("no tokenizer: the model folder has neither tiktoken.model nor tokenizer.json")]
    Missing,
    /// A file does not have the format that its name promises.
    #[error("{file}: {reason}")]
    Invalid {
        /// Name of the file.
        file: &'static str,
        /// The fault in the file.
        reason: String,
    },
    /// The text could not be encoded.
    #[error("encoding failed: {0}")]
    Encode(String),
}

/// A byte-level BPE vocabulary with its added tokens.
pub struct Tokenizer {
    /// Without added tokens: a string that spells one is text to the encoder.
    encoder: Encoder,
    added: Arc<AddedTokens>,
    bytes: TokenBytes,
    /// `bos_token`, `eos_token`, ... of the configuration, by key.
    named: Vec<(String, String)>,
    eos: Option<u32>,
}

/// Encodes text without added tokens.
enum Encoder {
    /// Kimi's split and ranks; the released encoder's hard cuts apply.
    Kimi {
        /// Cuts texts into pieces.
        split: KimiSplit,
        /// Merges pieces.
        bpe: Bpe,
    },
    /// The split and model of a `tokenizer.json`.
    Crate(Box<tokenizers::Tokenizer>),
}

impl Tokenizer {
    /// Loads from a folder, given as a function from file name to bytes: `tiktoken.model` if it
    /// exists, else `tokenizer.json`, each with `tokenizer_config.json` if that exists.
    pub fn load(file: &dyn Fn(&str) -> Option<Vec<u8>>) -> Result<Self, TokenizerError> {
        let config = file(CONFIG_FILE);
        if let Some(model) = file(TIKTOKEN_FILE) {
            return Self::from_tiktoken(&model, config.as_deref());
        }
        match file(TOKENIZER_FILE) {
            Some(json) => Self::from_tokenizer_json(&json, config.as_deref()),
            None => Err(TokenizerError::Missing),
        }
    }

    /// From a `tiktoken.model` file of any number of base ranks. 256 added tokens follow them;
    /// their names and flags come from `added_tokens_decoder` of the configuration, an unlisted one
    /// is `<|reserved_token_ID|>` with the special flag.
    pub fn from_tiktoken(model: &[u8], tokenizer_config: Option<&[u8]>) -> Result<Self, TokenizerError> {
        let invalid = |reason| TokenizerError::Invalid { file: TIKTOKEN_FILE, reason };
        let tokens = tiktoken::parse(model).map_err(invalid)?;
        let config = Config::parse(tokenizer_config)?;
        let first = tokens.len() as u32;
        let slots = first..first + tiktoken::NUM_SPECIAL_SLOTS;
        if let Some(token) = config.added.iter().find(|token| !slots.contains(&token.id)) {
            return Err(TokenizerError::Invalid {
                file: CONFIG_FILE,
                reason: format!(
                    "added_tokens_decoder: id {} is outside the special slots {} to {} that follow {first} base ranks",
                    token.id,
                    slots.start,
                    slots.end - 1
                ),
            });
        }
        let mut added = config.added.clone();
        let listed: HashSet<u32> = added.iter().map(|token| token.id).collect();
        added.extend(slots.filter(|id| !listed.contains(id)).map(|id| AddedToken {
            text: markers::reserved(id),
            id,
            special: true,
            lstrip: false,
            rstrip: false,
            single_word: false,
        }));
        let encoder = Encoder::Kimi { split: KimiSplit::new(), bpe: Bpe::new(&tokens) };
        let base: Vec<(u32, &[u8])> = (0..).zip(tokens.iter().map(|token| &token[..])).collect();
        Self::build(encoder, added, &base, config)
    }

    /// From a `tokenizer.json` file with a byte-level BPE. The added tokens are the file's, and
    /// those that only `added_tokens_decoder` of the configuration lists.
    pub fn from_tokenizer_json(json: &[u8], tokenizer_config: Option<&[u8]>) -> Result<Self, TokenizerError> {
        let invalid = |reason: String| TokenizerError::Invalid { file: TOKENIZER_FILE, reason };
        // The crate indexes by lengths from the file, so a hostile merge list can panic inside it.
        let full = catch_unwind(AssertUnwindSafe(|| tokenizers::Tokenizer::from_bytes(json)))
            .map_err(|_| invalid("the tokenizer is inconsistent".to_owned()))?
            .map_err(|error| invalid(error.to_string()))?;
        if !full.get_decoder().is_some_and(is_byte_level) {
            return Err(invalid(
                "the decoder is not ByteLevel; only byte-level vocabularies are supported".into(),
            ));
        }
        let config = Config::parse(tokenizer_config)?;
        let mut added: Vec<AddedToken> = full
            .get_added_tokens_decoder()
            .into_iter()
            .map(|(id, token)| AddedToken {
                text: token.content,
                id,
                special: token.special,
                lstrip: token.lstrip,
                rstrip: token.rstrip,
                single_word: token.single_word,
            })
            .collect();
        let listed: HashSet<u32> = added.iter().map(|token| token.id).collect();
        added.extend(config.added.iter().filter(|token| !listed.contains(&token.id)).cloned());

        let vocab = full.get_vocab(false);
        let largest = vocab.values().chain(added.iter().map(|token| &token.id)).max().copied().unwrap_or(0);
        if largest > MAX_ID {
            return Err(invalid(format!("token id {largest}, limit {MAX_ID}")));
        }
        let values: AHashMap<char, u8> = tiktoken::byte_alphabet().into_iter().zip(0..=u8::MAX).collect();
        // A token outside the alphabet is its own text, as in the crate's decoder.
        let spelled = |token: &str| -> Vec<u8> {
            token
                .chars()
                .map(|c| values.get(&c).copied())
                .collect::<Option<_>>()
                .unwrap_or_else(|| token.into())
        };
        let base: Vec<(u32, Vec<u8>)> = vocab.iter().map(|(token, &id)| (id, spelled(token))).collect();
        let single: HashSet<u8> = base.iter().filter(|(_, b)| b.len() == 1).map(|(_, b)| b[0]).collect();
        if let Some(byte) = (0..=u8::MAX).find(|byte| !single.contains(byte)) {
            return Err(invalid(format!("byte {byte:#04x} has no token; all 256 must have one")));
        }
        let mut bpe = tokenizers::Tokenizer::new(full.get_model().clone());
        bpe.with_pre_tokenizer(full.get_pre_tokenizer().cloned());
        bpe.with_normalizer(full.get_normalizer().cloned()).map_err(|error| invalid(error.to_string()))?;
        Self::build(Encoder::Crate(Box::new(bpe)), added, &base, config)
    }

    fn build(
        encoder: Encoder,
        added: Vec<AddedToken>,
        base: &[(u32, impl AsRef<[u8]>)],
        config: Config,
    ) -> Result<Self, TokenizerError> {
        let invalid = |reason| TokenizerError::Invalid { file: CONFIG_FILE, reason };
        let added = Arc::new(AddedTokens::new(added).map_err(invalid)?);
        let texts = added.tokens().iter().map(|token| (token.id, token.text.as_bytes()));
        let bytes = TokenBytes::new(base.iter().map(|(id, bytes)| (*id, bytes.as_ref())).chain(texts));
        let eos = config.named.iter().find(|(key, _)| key == "eos_token");
        let eos = match eos {
            Some((_, text)) => Some(
                added
                    .by_text(text)
                    .ok_or_else(|| invalid(format!("eos_token {text:?} is not an added token")))?
                    .id,
            ),
            None => None,
        };
        Ok(Self { encoder, added, bytes, named: config.named, eos })
    }

    /// Token ids of a text. No BOS is added.
    pub fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 1);
        self.encode_part(text, specials, &mut Slicer::default(), &mut ids)?;
        Ok(ids)
    }

    /// Encodes one part of a prompt with the hard cuts that `slicer` finds while walking over the
    /// whole prompt.
    pub(crate) fn encode_part(
        &self,
        text: &str,
        specials: Specials,
        slicer: &mut Slicer,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let mut cuts = Vec::new();
        if matches!(self.encoder, Encoder::Kimi { .. }) {
            slicer.walk(text, &mut cuts);
        }
        cuts.push(text.len());
        let mut start = 0;
        for cut in cuts {
            self.encode_piece(&text[start..cut], specials, ids)?;
            start = cut;
        }
        Ok(())
    }

    fn encode_piece(&self, text: &str, specials: Specials, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let mut from = 0;
        if specials == Specials::Recognised {
            while let Some(found) = self.added.find(text, from) {
                self.encode_plain(&text[from..found.start], ids)?;
                ids.push(self.added.tokens()[found.index].id);
                from = found.end;
            }
        }
        self.encode_plain(&text[from..], ids)
    }

    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        if text.is_empty() {
            return Ok(());
        }
        match &self.encoder {
            Encoder::Kimi { split, bpe } => {
                let (mut scratch, mut at) = (Scratch::default(), 0);
                while at < text.len() {
                    let end = split.piece_end(text, at);
                    bpe.encode(&text.as_bytes()[at..end], &mut scratch, ids);
                    at = end;
                }
            }
            Encoder::Crate(bpe) => {
                let encoding = bpe
                    .encode_fast(text, false)
                    .map_err(|error| TokenizerError::Encode(error.to_string()))?;
                ids.extend_from_slice(encoding.get_ids());
            }
        }
        Ok(())
    }

    /// Exact bytes of a token; an added token's text. `None` for an id without a token.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.bytes.get(id)
    }

    /// Whether decoding without special tokens skips this one. Think and tool markers are added
    /// tokens, but not special.
    pub fn is_special(&self, id: u32) -> bool {
        self.added.by_id(id).is_some_and(|token| token.special)
    }

    /// Whether the id is an added token (control token), special or not.
    pub fn is_added(&self, id: u32) -> bool {
        self.added.by_id(id).is_some()
    }

    /// The id of the added token with this exact text.
    pub fn special_id(&self, name: &str) -> Option<u32> {
        self.added.by_text(name).map(|token| token.id)
    }

    /// Added tokens as (text, id), ascending by id.
    pub fn added_tokens(&self) -> impl Iterator<Item = (&str, u32)> {
        self.added.tokens().iter().map(|token| (token.text.as_str(), token.id))
    }

    /// Number of added tokens.
    pub fn num_added(&self) -> usize {
        self.added.tokens().len()
    }

    /// One more than the largest id.
    pub fn vocab_size(&self) -> usize {
        self.bytes.len()
    }

    /// `eos_token` of the tokenizer configuration.
    pub fn eos_token(&self) -> Option<u32> {
        self.eos
    }

    /// Tokens that end a chat turn: those of `markers::TURN_ENDS` in the vocabulary, and
    /// `eos_token`; ascending, without repeats.
    pub fn turn_ends(&self) -> Vec<u32> {
        let mut ids: Vec<u32> =
            markers::TURN_ENDS.iter().filter_map(|name| self.special_id(name)).chain(self.eos).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Text of a token sequence; invalid UTF-8 becomes U+FFFD, ids without a token have no text.
    /// `skip_special` leaves out tokens with the special flag.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let shown = ids.iter().filter(|&&id| !(skip_special && self.is_special(id)));
        let bytes: Vec<u8> = shown.filter_map(|&id| self.token_bytes(id)).flatten().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub(crate) fn shared_added(&self) -> Arc<AddedTokens> {
        Arc::clone(&self.added)
    }

    /// `bos_token`, `eos_token`, ... of the configuration as (key, text), which templates can name.
    pub(crate) fn named_tokens(&self) -> &[(String, String)] {
        &self.named
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("num_added", &self.num_added())
            .finish_non_exhaustive()
    }
}

fn is_byte_level(decoder: &DecoderWrapper) -> bool {
    match decoder {
        DecoderWrapper::ByteLevel(_) => true,
        DecoderWrapper::Sequence(sequence) => sequence.get_decoders().iter().any(is_byte_level),
        _ => false,
    }
}

/// Bytes of every token in one buffer; an absent token has none.
struct TokenBytes {
    bytes: Vec<u8>,
    /// Token `id` is `bytes[offsets[id]..offsets[id + 1]]`.
    offsets: Vec<u32>,
}

impl TokenBytes {
    /// A later token replaces an earlier one with the same id.
    fn new<'a>(tokens: impl Iterator<Item = (u32, &'a [u8])>) -> Self {
        let mut table: Vec<&[u8]> = Vec::new();
        for (id, bytes) in tokens {
            let id = id as usize;
            if id >= table.len() {
                table.resize(id + 1, &[]);
            }
            table[id] = bytes;
        }
        let mut bytes = Vec::new();
        let mut offsets = vec![0];
        for token in table {
            bytes.extend_from_slice(token);
            offsets.push(bytes.len() as u32);
        }
        Self { bytes, offsets }
    }

    fn get(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let (&start, &end) = (self.offsets.get(id)?, self.offsets.get(id + 1)?);
        (start < end).then(|| &self.bytes[start as usize..end as usize])
    }

    fn len(&self) -> usize {
        self.offsets.len() - 1
    }
}

/// The special tokens in `tokenizer_config.json`.
#[derive(Default)]
struct Config {
    added: Vec<AddedToken>,
    named: Vec<(String, String)>,
}

impl Config {
    fn parse(json: Option<&[u8]>) -> Result<Self, TokenizerError> {
        let Some(json) = json else { return Ok(Self::default()) };
        let invalid = |reason| TokenizerError::Invalid { file: CONFIG_FILE, reason };
        let config: Value = serde_json::from_slice(json).map_err(|error| invalid(error.to_string()))?;
        let Value::Object(config) = config else { return Err(invalid("not an object".to_owned())) };
        let mut added = Vec::new();
        match config.get("added_tokens_decoder") {
            None | Some(Value::Null) => {}
            Some(Value::Object(entries)) => {
                for (id, entry) in entries {
                    added.push(
                        added_token(id, entry)
                            .map_err(|reason| invalid(format!("added_tokens_decoder: {id:?}: {reason}")))?,
                    );
                }
            }
            Some(_) => return Err(invalid("added_tokens_decoder is not an object".to_owned())),
        }
        let mut named = Vec::new();
        for key in ["bos_token", "eos_token", "pad_token", "unk_token"] {
            let text = match config.get(key) {
                Some(Value::Object(token)) => token.get("content").and_then(Value::as_str),
                Some(value) => value.as_str(),
                None => None,
            };
            named.extend(text.map(|text| (key.to_owned(), text.to_owned())));
        }
        Ok(Self { added, named })
    }
}

fn added_token(id: &str, entry: &Value) -> Result<AddedToken, String> {
    let id = id.parse().ok().filter(|&id| id <= MAX_ID).ok_or("not a token id")?;
    let text = entry.get("content").and_then(Value::as_str).ok_or("no content")?.to_owned();
    let flag = |key| entry.get(key).and_then(Value::as_bool).unwrap_or(false);
    Ok(AddedToken {
        text,
        id,
        special: flag("special"),
        lstrip: flag("lstrip"),
        rstrip: flag("rstrip"),
        single_word: flag("single_word"),
    })
}

#[cfg(test)]
mod crate_oracle;
#[cfg(test)]
mod tests;
