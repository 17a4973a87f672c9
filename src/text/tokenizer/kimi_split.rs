//! Splits a text into the pieces that BPE works on, by hand-written code: the pattern's
//! alternatives in their order.
//!
//! ```text
//! 1  [\p{Han}]+
//! 2  [^\r\n\p{L}\p{N}]? UPPER* LOWER+ SUFFIX?      SUFFIX = (?i:'s|'t|'re|'ve|'m|'ll|'d)
//! 3  [^\r\n\p{L}\p{N}]? UPPER+ LOWER* SUFFIX?
//! 4  \p{N}{1,3}
//! 5   ?[^\s\p{L}\p{N}]+[\r\n]*
//! 6  \s*[\r\n]+
//! 7  \s+(?!\S)
//! 8  \s+
//! ```
//!
//! Every character belongs to some piece. A regex engine takes several times as long, mostly for
//! the backtracking that the overlap of UPPER and LOWER needs; here that is one remembered
//! position.

use super::char_classes::{CharClasses, HAN, LETTER, LOWER, NUMBER, SPACE, UPPER};

/// Cuts texts into pieces.
pub(super) struct KimiSplit {
    classes: CharClasses,
}

impl KimiSplit {
    pub(super) fn new() -> Self {
        Self { classes: CharClasses::new() }
    }

    /// The end of the piece that begins at byte `at`, which must be inside the text.
    pub(super) fn piece_end(&self, text: &str, at: usize) -> usize {
        let (class, c, next) = self.char_at(text, at);
        if class & HAN != 0 {
            return self.run(text, next, HAN);
        }
        if class & (LETTER | NUMBER) == 0 && c != '\r' && c != '\n' {
            // With the character as the mark before a word, else as the beginning of the word (a
            // combining mark).
            let (with, alone) = (self.word(text, next), self.word(text, at));
            let found = with.0.or(alone.0).or(with.1).or(alone.1);
            if let Some(end) = found {
                return self.suffix(text, end);
            }
        } else if class & LETTER != 0 {
            let (mixed, upper) = self.word(text, at);
            if let Some(end) = mixed.or(upper) {
                return self.suffix(text, end);
            }
        } else if class & NUMBER != 0 {
            return self.digits(text, next);
        }
        self.marks(text, at).unwrap_or_else(|| self.white_space(text, at))
    }

    /// Alternatives 2 and 3 without their optional first character: ends of `UPPER* LOWER+` and of
    /// `UPPER+ LOWER*`, if they match.
    #[inline]
    fn word(&self, text: &str, at: usize) -> (Option<usize>, Option<usize>) {
        let mut end = at;
        // If LOWER+ can begin inside the UPPER run, its latest match ends after that character.
        let mut last_both = None;
        while end < text.len() {
            let (class, _, next) = self.char_at(text, end);
            if class & UPPER == 0 {
                if class & LOWER != 0 {
                    let end = self.run(text, next, LOWER);
                    return (Some(end), Some(end));
                }
                break;
            }
            end = next;
            if class & LOWER != 0 {
                last_both = Some(end);
            }
        }
        (last_both, (end > at).then_some(end))
    }

    /// The end of the word's English contraction, or of the word.
    #[inline]
    fn suffix(&self, text: &str, end: usize) -> usize {
        let rest = &text.as_bytes()[end..];
        if rest.first() != Some(&b'\'') {
            return end;
        }
        let letter = |at: usize| rest.get(at).map_or(0, u8::to_ascii_lowercase);
        match (letter(1), letter(2)) {
            (b'r' | b'v', b'e') | (b'l', b'l') => end + 3,
            (b's' | b't' | b'm' | b'd', _) => end + 2,
            // U+017F equals s in case-insensitive matching.
            (0xc5, 0xbf) => end + 3,
            _ => end,
        }
    }

    fn digits(&self, text: &str, mut end: usize) -> usize {
        for _ in 1..3 {
            match end < text.len() {
                true => {
                    let (class, _, next) = self.char_at(text, end);
                    if class & NUMBER == 0 {
                        break;
                    }
                    end = next;
                }
                false => break,
            }
        }
        end
    }

    /// Alternative 5.
    fn marks(&self, text: &str, at: usize) -> Option<usize> {
        let bytes = text.as_bytes();
        let begin = at + usize::from(bytes[at] == b' ');
        let mut end = begin;
        while end < text.len() {
            let (class, _, next) = self.char_at(text, end);
            if class & (SPACE | LETTER | NUMBER) != 0 {
                break;
            }
            end = next;
        }
        if end == begin {
            return None;
        }
        while end < bytes.len() && matches!(bytes[end], b'\r' | b'\n') {
            end += 1;
        }
        Some(end)
    }

    /// Alternatives 6 to 8, at a white-space character.
    fn white_space(&self, text: &str, at: usize) -> usize {
        let (mut end, mut last, mut behind_newline) = (at, at, None);
        while end < text.len() {
            let (class, c, next) = self.char_at(text, end);
            if class & SPACE == 0 {
                break;
            }
            (last, end) = (end, next);
            if matches!(c, '\r' | '\n') {
                behind_newline = Some(end);
            }
        }
        match behind_newline {
            Some(end) => end,
            // The last one belongs to the following text, if there is any and the run is longer
            // than one.
            None if end < text.len() && last > at => last,
            None => end,
        }
    }

    /// The end of the run of a class from `at` on.
    #[inline]
    fn run(&self, text: &str, mut at: usize, class: u8) -> usize {
        while at < text.len() {
            let (found, _, next) = self.char_at(text, at);
            if found & class == 0 {
                break;
            }
            at = next;
        }
        at
    }

    /// Class, character, and position behind it.
    #[inline]
    fn char_at(&self, text: &str, at: usize) -> (u8, char, usize) {
        let Some(&byte) = text.as_bytes().get(at) else { return (0, '\0', at) };
        if byte < 0x80 {
            return (self.classes.of_ascii(byte), byte as char, at + 1);
        }
        let c = text[at..].chars().next().unwrap_or('\0');
        (self.classes.of(c), c, at + c.len_utf8())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[&str]) {
        let split = KimiSplit::new();
        let (mut pieces, mut at) = (Vec::new(), 0);
        while at < text.len() {
            let end = split.piece_end(text, at);
            assert!(end > at, "{text:?} at {at}");
            pieces.push(&text[at..end]);
            at = end;
        }
        assert_eq!(pieces, expected, "{text:?}");
    }

    #[test]
    fn pieces_of_the_released_pattern() {
        check("it'S", &["it'S"]);
        check("a\u{3000}\u{3000}b", &["a", "\u{3000}", "\u{3000}b"]);
        check("x  \n y", &["x", "  \n", " y"]);
        check("々〆漢ー", &["々", "〆", "漢", "ー"]);
        check("１２３４", &["１２３", "４"]);
        check("e\u{301}é", &["e\u{301}é"]);
        check("I'm don't WE'LL HELLO's", &["I'm", " don't", " WE'LL", " HELLO's"]);
        check("  leading  spaces  ", &[" ", " leading", " ", " spaces", "  "]);
        check("ABCdef GHI, jk!\n\n", &["ABCdef", " GHI", ",", " jk", "!\n\n"]);
        check("\u{301}a \u{301}", &["\u{301}a", " \u{301}"]);
        check("a'ſ b'K", &["a'ſ", " b", "'K"]);
        check("x\r\n\r\ny 12345", &["x", "\r\n\r\n", "y", " ", "123", "45"]);
        check("⺀x !⺀", &["⺀", "x", " !⺀"]);
    }
}
