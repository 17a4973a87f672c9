//! Facts about each token's text, by id. Computed once from the vocabulary, so that following a
//! reply needs no text.

/// Marks of code and data that are rare in sentences.
const CODE_MARKS: &[u8] = b"{}[]()<>=_/\\|;#&$@^~+\"";

/// No word or character continues across the start (`BEGINS_APART`) or the end (`ENDS_APART`) of
/// the token.
const BEGINS_APART: u8 = 1;
const ENDS_APART: u8 = 2;
const ENDS_INSIDE_CHARACTER: u8 = 4;
/// A number, or a token with marks of code.
const CODE: u8 = 8;

/// Position in a line, as far as fences need it: at the beginning, after one or two backticks
/// there, or elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct LinePlace(u8);

impl LinePlace {
    const ALL: [Self; 4] = [Self(0), Self(1), Self(2), Self(3)];
    const ELSEWHERE: Self = Self(3);

    /// The position after a byte, and whether the byte opens or closes a fence: the third backtick
    /// at the beginning of a line.
    fn step(self, byte: u8) -> (Self, bool) {
        match (self.0, byte) {
            (_, b'\n') => (Self(0), false),
            (0, b' ' | b'\t' | b'\r') => (self, false),
            (0 | 1, b'`') => (Self(self.0 + 1), false),
            (2, b'`') => (Self::ELSEWHERE, true),
            _ => (Self::ELSEWHERE, false),
        }
    }
}

/// Facts about one token.
#[derive(Debug, Clone, Copy, Default)]
struct Facts {
    flags: u8,
    /// Indexed by the position before the token: the position after it, and whether the token
    /// opened or closed a fence.
    lines: [(LinePlace, bool); 4],
}

/// Facts about every token, and the token's bytes.
#[derive(Default)]
pub struct Vocabulary {
    facts: Vec<Facts>,
    bytes: Vec<u8>,
    /// End of each token in `bytes`.
    ends: Vec<usize>,
}

impl Vocabulary {
    /// Built from the bytes of ids 0, 1, ...; control tokens have none.
    pub fn new<'a>(tokens: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut vocabulary = Self::default();
        for token in tokens {
            vocabulary.facts.push(Facts::of(token));
            vocabulary.bytes.extend_from_slice(token);
            vocabulary.ends.push(vocabulary.bytes.len());
        }
        vocabulary
    }

    /// Whether a reply may be cut between these neighbours: no word and no character spans the cut.
    pub(super) fn parts(&self, before: u32, after: u32) -> bool {
        let before = self.flags(before);
        before & ENDS_INSIDE_CHARACTER == 0
            && (before & ENDS_APART != 0 || self.flags(after) & BEGINS_APART != 0)
    }

    /// Whether the token ends on a character boundary.
    pub(super) fn ends_character(&self, id: u32) -> bool {
        self.flags(id) & ENDS_INSIDE_CHARACTER == 0
    }

    /// Whether a token is a number or contains marks of code.
    pub(super) fn is_code(&self, id: u32) -> bool {
        self.flags(id) & CODE != 0
    }

    /// The position in the line after a token, and whether the token opened or closed a fence.
    pub(super) fn line_step(&self, place: LinePlace, id: u32) -> (LinePlace, bool) {
        self.facts.get(id as usize).map_or((place, false), |facts| facts.lines[usize::from(place.0)])
    }

    pub(super) fn text(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.token(id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn token(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..end]
    }

    /// Ids outside the vocabulary are control tokens.
    fn flags(&self, id: u32) -> u8 {
        self.facts.get(id as usize).map_or(BEGINS_APART | ENDS_APART, |facts| facts.flags)
    }
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Vocabulary({} tokens)", self.facts.len())
    }
}

impl Facts {
    fn of(bytes: &[u8]) -> Self {
        let mut flags = 0;
        let mut set = |flag: u8, holds: bool| flags |= if holds { flag } else { 0 };
        let text = String::from_utf8_lossy(bytes);
        let inside = ends_inside_character(bytes);
        set(ENDS_INSIDE_CHARACTER, inside);
        set(BEGINS_APART, text.chars().next().is_none_or(stands_apart));
        set(ENDS_APART, !inside && text.chars().next_back().is_none_or(stands_apart));
        let is_number = !bytes.is_empty() && bytes.iter().all(u8::is_ascii_digit);
        set(CODE, is_number || bytes.iter().any(|byte| CODE_MARKS.contains(byte)));
        let lines = LinePlace::ALL.map(|start| {
            bytes.iter().fold((start, false), |(place, toggled), &byte| {
                let (place, toggles) = place.step(byte);
                (place, toggled ^ toggles)
            })
        });
        Self { flags, lines }
    }
}

/// Whether the script of a character puts no blanks between words.
pub(super) fn is_unspaced(c: char) -> bool {
    matches!(c, '\u{0e00}'..='\u{0eff}' | '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}')
}

/// Whether no word spans this character.
fn stands_apart(c: char) -> bool {
    is_unspaced(c) || !(c.is_alphanumeric() || c == '_' || c == char::REPLACEMENT_CHARACTER)
}

/// Whether the bytes end inside a character. A token of continuation bytes alone counts as ending
/// one.
fn ends_inside_character(bytes: &[u8]) -> bool {
    let tail = &bytes[bytes.len().saturating_sub(4)..];
    let Some(lead) = tail.iter().rposition(|b| b & 0xc0 != 0x80) else { return false };
    let needs = match tail[lead] {
        0xf0.. => 4,
        0xe0.. => 3,
        0xc0.. => 2,
        _ => 1,
    };
    tail.len() - lead < needs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_not_cut() {
        let texts: [&[u8]; 8] = [b"for", b"get", b" cat", b". ", b"\n", "漢".as_bytes(), &[0xf0, 0x9f], b""];
        let vocabulary = Vocabulary::new(texts);
        let cut = |a: u32, b: u32| vocabulary.parts(a, b);
        assert!(!cut(0, 1), "for|get");
        assert!(cut(0, 2), "for| cat");
        assert!(cut(3, 0) && cut(4, 0), "after marks and lines");
        assert!(cut(5, 5) && cut(0, 5), "no blanks between these");
        assert!(!cut(6, 4) && !vocabulary.ends_character(6), "inside a character");
        assert!(cut(7, 0) && cut(99, 0), "control tokens stand apart");
        assert_eq!(vocabulary.text(&[0, 1, 2, 99, 5]), "forget cat漢");
    }

    #[test]
    fn fences_and_code() {
        let texts: [&[u8]; 7] = [b"```rust", b"`", b"\n", b"  ", b"a ``` b", b"12", b" **:"];
        let vocabulary = Vocabulary::new(texts);
        let toggles = |ids: &[u32]| {
            let (mut place, mut count) = (LinePlace::default(), 0);
            for &id in ids {
                let (next, toggled) = vocabulary.line_step(place, id);
                (place, count) = (next, count + usize::from(toggled));
            }
            count
        };
        assert_eq!((toggles(&[0]), toggles(&[1, 1, 1]), toggles(&[3, 1, 1, 1, 1])), (1, 1, 1));
        assert_eq!((toggles(&[4]), toggles(&[1, 1, 2]), toggles(&[6, 0])), (0, 0, 0), "not at its beginning");
        assert_eq!(toggles(&[0, 2, 5, 2, 0]), 2);
        assert!(
            vocabulary.is_code(5)
                && vocabulary.is_code(0) == b"```rust".iter().any(|b| CODE_MARKS.contains(b))
        );
        assert!(!vocabulary.is_code(6), "emphasis is no code");
    }
}
