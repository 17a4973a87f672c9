//! What kind of text a reply is at its end: thinking, prose, code, a table, JSON. Follows control tokens, fences and line shapes.

use super::TokenShapes;
use super::shapes::{Opening, Part};

/// Lines of one shape, each different from the one before, that make a table.
const TABLE_LINES: u32 = 3;
/// Separators that a line of a table without pipes has at least.
const TABLE_SEPARATORS: u32 = 2;

/// Kinds of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Between the thinking markers.
    Thinking,
    /// An answer in words.
    Prose,
    /// Inside a fence.
    Code,
    /// Rows of cells.
    Table,
    /// Structured output or the arguments of a tool call.
    Json,
}

impl Phase {
    /// Its name in events, logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Thinking => "thinking",
            Self::Prose => "prose",
            Self::Code => "code",
            Self::Table => "table",
            Self::Json => "json",
        }
    }

    /// Whether text may be taken back and written anew: words can be said otherwise, a structure that was begun cannot.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Thinking | Self::Prose)
    }
}

/// Control tokens that change the phase; absent ones never come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Markers {
    /// Opens thinking.
    pub think: Option<u32>,
    /// Closes thinking.
    pub think_end: Option<u32>,
    /// Opens the section of tool calls.
    pub tools: Option<u32>,
    /// Closes it.
    pub tools_end: Option<u32>,
}

impl Markers {
    /// Whether a token is one of them.
    pub(super) fn contains(&self, token: u32) -> bool {
        [self.think, self.think_end, self.tools, self.tools_end].contains(&Some(token))
    }
}

/// Follows one reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PhaseTracker {
    thinking: bool,
    tools: bool,
    fenced: bool,
    line: Line,
    /// Separators and content of the line before.
    last_separators: u32,
    last_hash: u64,
    /// Lines of that shape in a row.
    alike: u32,
}

/// The line that grows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Line {
    /// Nothing but blanks so far.
    blank: bool,
    /// Backticks at its beginning, and whether it is still nothing but backticks.
    ticks: u32,
    only_ticks: bool,
    pipe: bool,
    separators: u32,
    hash: u64,
}

impl Line {
    const NEW: Self = Self { blank: true, ticks: 0, only_ticks: false, pipe: false, separators: 0, hash: 0 };

    fn add(&mut self, part: Part, token: u32) {
        self.separators += u32::from(part.separators);
        self.hash = (self.hash ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        if self.blank {
            match part.opening {
                Opening::Blank => return,
                Opening::Ticks | Opening::TicksAndMore => self.ticks = part.ticks.into(),
                Opening::Pipe => self.pipe = true,
                Opening::Other => {}
            }
            self.only_ticks = part.opening == Opening::Ticks;
            self.blank = false;
        } else if self.only_ticks {
            match part.opening {
                Opening::Ticks | Opening::TicksAndMore => self.ticks += u32::from(part.ticks),
                _ => {}
            }
            self.only_ticks = part.opening == Opening::Ticks;
        }
    }
}

impl PhaseTracker {
    /// At the start of a reply; `thinking` if the prompt ends inside an open thought.
    pub fn new(thinking: bool) -> Self {
        Self {
            thinking,
            tools: false,
            fenced: false,
            line: Line::NEW,
            last_separators: 0,
            last_hash: 0,
            alike: 0,
        }
    }

    /// Takes the next token.
    pub fn push(&mut self, token: u32, shapes: &TokenShapes, markers: &Markers) {
        let is = |marker: Option<u32>| marker == Some(token);
        if markers.contains(token) {
            *self = Self { tools: self.tools, ..Self::new(is(markers.think)) };
            self.tools = is(markers.tools) || (self.tools && !is(markers.tools_end));
            return;
        }
        let shape = shapes.of(token);
        self.line.add(shape.head, token);
        if shape.breaks_line() {
            self.end_line();
            self.line.add(shape.tail, token);
        }
    }

    /// The phase of what comes next.
    pub fn phase(&self) -> Phase {
        if self.tools {
            Phase::Json
        } else if self.fenced {
            Phase::Code
        } else if self.line.pipe || self.alike >= TABLE_LINES {
            Phase::Table
        } else if self.thinking {
            Phase::Thinking
        } else {
            Phase::Prose
        }
    }

    /// Whether thinking is open, whatever is written in it.
    pub fn is_thinking(&self) -> bool {
        self.thinking
    }

    fn end_line(&mut self) {
        let line = std::mem::replace(&mut self.line, Line::NEW);
        if line.ticks >= 3 {
            self.fenced = !self.fenced;
        }
        // The same line again is no sign of a table: that is what a loop looks like.
        if line.separators >= TABLE_SEPARATORS && line.separators == self.last_separators {
            self.alike += u32::from(line.hash != self.last_hash);
        } else {
            self.alike = u32::from(line.separators >= TABLE_SEPARATORS);
        }
        (self.last_separators, self.last_hash) = (line.separators, line.hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKERS: Markers =
        Markers { think: Some(256), think_end: Some(257), tools: Some(258), tools_end: Some(259) };

    fn phases(text: &str, thinking: bool) -> Vec<Phase> {
        let bytes: Vec<[u8; 1]> = (0..=255u8).map(|b| [b]).collect();
        let shapes = TokenShapes::new(bytes.iter().map(|b| b.as_slice()));
        let mut tracker = PhaseTracker::new(thinking);
        let mut seen = vec![tracker.phase()];
        for c in text.chars() {
            let token = match c {
                '«' => 256,
                '»' => 257,
                '‹' => 258,
                '›' => 259,
                c => c as u32,
            };
            tracker.push(token, &shapes, &MARKERS);
            if seen.last() != Some(&tracker.phase()) {
                seen.push(tracker.phase());
            }
        }
        seen
    }

    #[test]
    fn phases_of_replies() {
        use Phase::*;
        assert_eq!(phases("hm»Yes.\nNo.", true), [Thinking, Prose]);
        assert_eq!(phases("«hm»Yes ‹x{}›.", false), [Prose, Thinking, Prose, Json, Prose]);
        assert_eq!(phases("See:\n```rust\nfn a() {}\n```\nDone.", false), [Prose, Code, Prose]);
        assert_eq!(phases("``` inline\n», x", false), [Prose, Code, Prose]);
        assert_eq!(phases("use `a` and ``b``\n", false), [Prose]);
        assert_eq!(phases("T:\n| a | b |\n|---|---|\nx", false), [Prose, Table, Prose, Table, Prose]);
        assert_eq!(phases("a,b,c\n1,2,3\n4,5,6\n7,8,9\nSo it is.\nYes", false), [Prose, Table, Prose]);
        assert_eq!(
            phases(&"one, two, three\n".repeat(9), false),
            [Prose],
            "one line again and again is no table"
        );
    }
}
