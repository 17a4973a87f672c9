//! What the guard needs to know of a token's text, by id: whether a word or a line ends with it, how a line begins in it. Made once from
//! the vocabulary, so that following a reply needs no text.

/// Facts about one token's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shape {
    flags: u8,
    /// The part before the first line break (all of it without one).
    pub(super) head: Part,
    /// The part after the last line break; equal to `head` without one.
    pub(super) tail: Part,
}

/// A stretch of one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Part {
    /// How it begins after blanks.
    pub(super) opening: Opening,
    /// Backticks at its beginning.
    pub(super) ticks: u8,
    /// Commas, semicolons, tabs and pipes in it.
    pub(super) separators: u8,
}

/// First character of a stretch that is no blank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Opening {
    /// There is none.
    #[default]
    Blank,
    /// A backtick, with nothing but backticks behind it.
    Ticks,
    /// Backticks, then something else.
    TicksAndMore,
    /// A pipe.
    Pipe,
    /// Anything else.
    Other,
}

const LINE_BREAK: u8 = 1;
const BLANK: u8 = 2;
const BEGINS_APART: u8 = 4;
const ENDS_APART: u8 = 8;
const ENDS_INSIDE_CHARACTER: u8 = 16;
const ENDS_SENTENCE: u8 = 32;
const CODE: u8 = 64;

/// What code and data have and words do not.
const CODE_MARKS: &[u8] = b"{}[]()<>=_/\\|;#:*&$@^~+\"'";

impl Shape {
    /// No text: what control tokens and unknown ids have.
    const NO_TEXT: Self = Self {
        flags: BEGINS_APART | ENDS_APART,
        head: Part { opening: Opening::Blank, ticks: 0, separators: 0 },
        tail: Part { opening: Opening::Blank, ticks: 0, separators: 0 },
    };

    /// The shape of a token with these bytes. Control tokens have none.
    pub fn of(bytes: &[u8]) -> Self {
        let mut flags = 0;
        let mut set = |flag: u8, holds: bool| flags |= if holds { flag } else { 0 };
        let text = String::from_utf8_lossy(bytes);
        set(LINE_BREAK, bytes.contains(&b'\n'));
        set(BLANK, !bytes.is_empty() && bytes.iter().all(u8::is_ascii_whitespace));
        let inside = ends_inside_character(bytes);
        set(ENDS_INSIDE_CHARACTER, inside);
        set(BEGINS_APART, text.chars().next().is_none_or(stands_apart));
        set(ENDS_APART, !inside && text.chars().next_back().is_none_or(stands_apart));
        let number = !bytes.is_empty() && bytes.iter().all(u8::is_ascii_digit);
        set(CODE, number || (bytes.iter().any(|b| CODE_MARKS.contains(b)) && !is_emphasis(bytes)));
        let last = text.trim_end().chars().next_back();
        let ends = last.is_some_and(|c| ".!?。！？…".contains(c)) || bytes.contains(&b'\n');
        set(ENDS_SENTENCE, ends);
        let mut lines = bytes.split(|&b| b == b'\n');
        let head = Part::of(lines.next().unwrap_or_default());
        let tail = lines.next_back().map_or(head, Part::of);
        Self { flags, head, tail }
    }

    /// Has a line break in it.
    pub fn breaks_line(self) -> bool {
        self.flags & LINE_BREAK != 0
    }

    /// Is white space only.
    pub fn is_blank(self) -> bool {
        self.flags & BLANK != 0
    }

    /// Is a number, or has brackets, operators and the like in it.
    pub fn is_code(self) -> bool {
        self.flags & CODE != 0
    }

    /// A sentence or line may end with it.
    pub fn ends_sentence(self) -> bool {
        self.flags & ENDS_SENTENCE != 0
    }
}

/// Shapes of a whole vocabulary.
#[derive(Clone, Default)]
pub struct TokenShapes {
    shapes: Vec<Shape>,
    blank_ids: Vec<u32>,
}

impl TokenShapes {
    /// The shapes of ids 0, 1, ... from their bytes.
    pub fn new<'a>(tokens: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let shapes: Vec<Shape> = tokens.into_iter().map(Shape::of).collect();
        let blank = |(id, shape): (u32, &Shape)| shape.is_blank().then_some(id);
        Self { blank_ids: (0..).zip(&shapes).filter_map(blank).collect(), shapes }
    }

    /// Ids of tokens that are white space only.
    pub fn blank_ids(&self) -> &[u32] {
        &self.blank_ids
    }

    /// The shape of an id; one outside the vocabulary has the shape of no text.
    pub fn of(&self, id: u32) -> Shape {
        self.shapes.get(id as usize).copied().unwrap_or(Shape::NO_TEXT)
    }

    /// Whether a reply may be cut between these neighbours: no word and no character goes across.
    pub fn parts(&self, before: u32, after: u32) -> bool {
        let before = self.of(before).flags;
        let apart = before & ENDS_APART != 0 || self.of(after).flags & BEGINS_APART != 0;
        apart && before & ENDS_INSIDE_CHARACTER == 0
    }

    /// Whether no character goes on behind this token.
    pub fn ends_character(&self, id: u32) -> bool {
        self.of(id).flags & ENDS_INSIDE_CHARACTER == 0
    }
}

impl std::fmt::Debug for TokenShapes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenShapes({} tokens)", self.shapes.len())
    }
}

impl Part {
    fn of(line: &[u8]) -> Self {
        let text = line.trim_ascii_start();
        let ticks = text.iter().take_while(|&&b| b == b'`').count();
        let opening = match text.first() {
            None => Opening::Blank,
            Some(b'`') if ticks == text.len() => Opening::Ticks,
            Some(b'`') => Opening::TicksAndMore,
            Some(b'|') => Opening::Pipe,
            Some(_) => Opening::Other,
        };
        let separators = line.iter().filter(|b| b",;\t|".contains(b)).count();
        Self { opening, ticks: ticks.min(255) as u8, separators: separators.min(255) as u8 }
    }
}

/// Whether a token only begins or ends strong emphasis: "**", ":**".
fn is_emphasis(bytes: &[u8]) -> bool {
    let text = bytes.trim_ascii();
    text.windows(2).any(|pair| pair == b"**") && text.iter().all(|b| b"*:.,".contains(b))
}

/// No word goes across this character: blanks and marks, and scripts that write no blanks between words.
fn stands_apart(c: char) -> bool {
    let unspaced = matches!(c, '\u{0e00}'..='\u{0eff}' | '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}');
    unspaced || !(c.is_alphanumeric() || c == '_' || c == char::REPLACEMENT_CHARACTER)
}

/// Whether the last character has begun and not ended. A token of nothing but continuation bytes is taken to end one.
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
        let shapes = TokenShapes::new(texts);
        let cut = |a: u32, b: u32| shapes.parts(a, b);
        assert!(!cut(0, 1), "for|get");
        assert!(cut(0, 2), "for| cat");
        assert!(cut(3, 0) && cut(4, 0), "after marks and lines");
        assert!(cut(5, 5) && cut(0, 5), "no blanks between these");
        assert!(!cut(6, 4), "inside a character");
        assert!(cut(7, 0) && cut(99, 0), "control tokens stand apart");
    }

    #[test]
    fn parts_of_lines() {
        let shape = Shape::of(b"a, b;\n  ```");
        assert!(shape.breaks_line() && !shape.is_blank() && shape.ends_sentence());
        assert_eq!((shape.head.opening, shape.head.separators), (Opening::Other, 2));
        assert_eq!((shape.tail.opening, shape.tail.ticks), (Opening::Ticks, 3));
        assert_eq!(Shape::of(b"```rust").head.opening, Opening::TicksAndMore);
        assert_eq!(Shape::of(b" | x").head.opening, Opening::Pipe);
        assert!(Shape::of(b" \t ").is_blank() && Shape::of(b"Yes. ").ends_sentence());
        assert!(!Shape::of(b"Yes").ends_sentence());
        assert!(Shape::of(b"12").is_code() && Shape::of(b" *").is_code() && Shape::of(b"**(").is_code());
        assert!(!Shape::of(b" **").is_code() && !Shape::of(b":**\n").is_code());
    }
}
