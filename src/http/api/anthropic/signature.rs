//! Signatures of thinking blocks.
//!
//! Clients drop thinking without a signature, or send it back as text, and the model would not see its reasoning again. This one is a
//! digest of the text: it says that the text is whole, and proves nothing about its author. What clients send back is not checked.

/// The digest of a thinking block, of the text that has come so far. Its state is two kilobytes.
#[derive(Debug, Clone, Default)]
pub(super) struct Signature(Box<blake3::Hasher>);

/// Letters and digits alone, so that the whole is base64 too, in which some clients expect it.
const VERSION: &str = "perigee1";
/// Hexadecimal digits of the digest.
const DIGITS: usize = 32;

impl Signature {
    /// The signature of a whole text.
    pub(super) fn of(text: &str) -> String {
        let mut signature = Self::default();
        signature.add(text);
        signature.take()
    }

    /// More of the text.
    pub(super) fn add(&mut self, text: &str) {
        self.0.update(text.as_bytes());
    }

    /// The signature; the next text begins.
    pub(super) fn take(&mut self) -> String {
        let digest = std::mem::take(&mut self.0).finalize();
        format!("{VERSION}{}", &digest.to_hex()[..DIGITS])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_one_signature_however_it_came() {
        let mut signature = Signature::default();
        "I should greet.".split_inclusive(' ').for_each(|part| signature.add(part));
        let whole = signature.take();
        assert_eq!(whole, Signature::of("I should greet."));
        assert_ne!(whole, Signature::of("I should greet"));
        assert_eq!((whole.len(), whole.starts_with(VERSION)), (VERSION.len() + DIGITS, true));
        assert_eq!(signature.take(), Signature::of(""), "a new text begins");
    }
}
