//! Token ids to text for a growing reply: only complete UTF-8 is emitted, at most three bytes are
//! held back.
//!
//! The emitted text, taken together, equals `Tokenizer::decode` of the whole reply, wherever token
//! borders fall.

use std::sync::Arc;

use super::Tokenizer;

/// Incremental decoder of one reply.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    partial: PartialChar,
    /// Text emitted by the last call.
    text: String,
}

/// The beginning of a character whose end is missing.
#[derive(Debug, Clone, Copy, Default)]
struct PartialChar {
    bytes: [u8; 3],
    len: u8,
}

impl Detokenizer {
    /// A decoder at the start of a reply. `skip_special` leaves out tokens with the special flag
    /// (think and tool markers stay).
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Self {
        Self { tokenizer, skip_special, partial: PartialChar::default(), text: String::new() }
    }

    /// The text that this token completes; often empty. Valid until the next call. An id without a
    /// token has no text.
    pub fn push(&mut self, id: u32) -> &str {
        self.text.clear();
        if self.skip_special && self.tokenizer.is_special(id) {
            return &self.text;
        }
        if let Some(bytes) = self.tokenizer.token_bytes(id) {
            self.partial.push(bytes, &mut self.text);
        }
        &self.text
    }

    /// Ends the reply: a held-back incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if self.partial.len > 0 {
            self.text.push(char::REPLACEMENT_CHARACTER);
            self.partial = PartialChar::default();
        }
        &self.text
    }
}

impl PartialChar {
    fn push(&mut self, bytes: &[u8], out: &mut String) {
        let mut rest = bytes;
        // A held-back beginning takes bytes one at a time until it is a character or cannot become
        // one.
        while self.len > 0 {
            let Some((&byte, after)) = rest.split_first() else { return };
            let held = self.len as usize;
            let mut joined = [0; 4];
            joined[..held].copy_from_slice(&self.bytes[..held]);
            joined[held] = byte;
            match std::str::from_utf8(&joined[..=held]) {
                Ok(character) => {
                    out.push_str(character);
                    self.len = 0;
                    rest = after;
                }
                Err(error) if error.error_len().is_none() => {
                    self.bytes[held] = byte;
                    self.len += 1;
                    rest = after;
                }
                Err(_) => {
                    // The byte begins a new character.
                    out.push(char::REPLACEMENT_CHARACTER);
                    self.len = 0;
                }
            }
        }
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => return out.push_str(text),
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    out.push_str(std::str::from_utf8(valid).expect("valid up to here"));
                    let Some(length) = error.error_len() else {
                        self.bytes[..after.len()].copy_from_slice(after);
                        self.len = after.len() as u8;
                        return;
                    };
                    out.push(char::REPLACEMENT_CHARACTER);
                    rest = &after[length..];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_data::nano_like;

    fn all(decoder: &mut Detokenizer, ids: &[u32]) -> String {
        let mut text = String::new();
        for &id in ids {
            text.push_str(decoder.push(id));
        }
        text.push_str(decoder.finish());
        text
    }

    /// Ids that are mostly bytes of characters cut anywhere, some nonsense bytes, some added tokens.
    fn random_ids(rng: &mut fastrand::Rng) -> Vec<u32> {
        let mut ids = Vec::new();
        for _ in 0..rng.usize(0..24) {
            match rng.u32(0..6) {
                0 => ids.push(rng.u32(0..256)),
                1 => ids.push(rng.u32(256..520)),
                2 => ids.extend("aé漢🙂\u{10ffff}".bytes().skip(rng.usize(0..9)).map(u32::from)),
                _ => {
                    let mut buffer = [0; 4];
                    let c = rng.char(..).encode_utf8(&mut buffer);
                    ids.extend(c.bytes().take(rng.usize(1..=4)).map(u32::from));
                }
            }
        }
        ids
    }

    #[test]
    fn pieces_join_to_the_whole() {
        let tokenizer = Arc::new(nano_like());
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..20_000 {
            let ids = random_ids(&mut rng);
            let skip = rng.bool();
            let mut decoder = Detokenizer::new(Arc::clone(&tokenizer), skip);
            assert_eq!(all(&mut decoder, &ids), tokenizer.decode(&ids, skip), "{ids:?}");
        }
    }

    #[test]
    fn a_character_waits_for_its_end() {
        let tokenizer = Arc::new(nano_like());
        let mut decoder = Detokenizer::new(tokenizer, true);
        assert_eq!(decoder.push(0xf0), "");
        assert_eq!(decoder.push(0x9f), "");
        assert_eq!(decoder.push(0x99), "");
        assert_eq!(decoder.push(0x82), "🙂");
        assert_eq!(decoder.push(0xe6), "");
        assert_eq!(decoder.push(258), "", "a skipped token leaves the beginning waiting");
        assert_eq!(decoder.push(b'x'.into()), "\u{fffd}x");
        assert_eq!(decoder.push(0xe6), "");
        assert_eq!(decoder.finish(), "\u{fffd}");
        assert_eq!(decoder.finish(), "");
    }
}
