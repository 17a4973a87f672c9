//! The phase at the end of a reply: free text or structured text. Derived from control tokens and
//! fences.

use super::Vocabulary;
use super::vocabulary::LinePlace;

/// The two kinds of text that are judged differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Words of an answer or a thought, which can be taken back and written differently.
    Text,
    /// A fence, the arguments of a tool call, or a reply under a grammar: the beginning fixes the
    /// rest, so no other wording exists.
    Structured,
}

impl Phase {
    /// The name in events, logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Structured => "structured",
        }
    }
}

/// Control tokens that change the phase; `None` where the vocabulary has none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Markers {
    /// Opens thinking.
    pub think: Option<u32>,
    /// Closes thinking.
    pub think_end: Option<u32>,
    /// Opens the section of tool calls.
    pub tools: Option<u32>,
    /// Closes the section of tool calls.
    pub tools_end: Option<u32>,
}

/// Tracks the phase of one reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PhaseTracker {
    /// The reply is under a grammar; its thought is not.
    constrained: bool,
    thinking: bool,
    tools: bool,
    fenced: bool,
    line: LinePlace,
    /// Tokens since the start of the reply or the last marker.
    since: usize,
}

impl PhaseTracker {
    /// The state at the start of a reply; `thinking` if the prompt ends inside an open thought.
    pub fn new(constrained: bool, thinking: bool) -> Self {
        Self { constrained, thinking, tools: false, fenced: false, line: LinePlace::default(), since: 0 }
    }

    /// Advances over the next token.
    pub fn push(&mut self, token: u32, vocabulary: &Vocabulary, markers: &Markers) {
        let token_is = |marker: Option<u32>| marker == Some(token);
        if [markers.think, markers.think_end, markers.tools, markers.tools_end].into_iter().any(token_is) {
            let tools = token_is(markers.tools) || (self.tools && !token_is(markers.tools_end));
            *self = Self { tools, ..Self::new(self.constrained, token_is(markers.think)) };
            return;
        }
        let (line, toggles) = vocabulary.line_step(self.line, token);
        (self.line, self.fenced) = (line, self.fenced ^ toggles);
        self.since += 1;
    }

    /// The phase of the next token.
    pub fn phase(&self) -> Phase {
        let constrained = self.constrained && !self.thinking;
        if constrained || self.tools || self.fenced { Phase::Structured } else { Phase::Text }
    }

    /// Whether thinking is open.
    pub fn is_thinking(&self) -> bool {
        self.thinking
    }

    /// Tokens since the start of the answer or the last marker; `None` in a thought, in tool
    /// arguments and under a grammar.
    pub fn answer_len(&self) -> Option<usize> {
        (!(self.constrained || self.thinking || self.tools)).then_some(self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKERS: Markers =
        Markers { think: Some(256), think_end: Some(257), tools: Some(258), tools_end: Some(259) };

    fn phases(text: &str, constrained: bool, thinking: bool) -> Vec<Phase> {
        let bytes: Vec<[u8; 1]> = (0..=255u8).map(|b| [b]).collect();
        let vocabulary = Vocabulary::new(bytes.iter().map(|b| b.as_slice()));
        let mut tracker = PhaseTracker::new(constrained, thinking);
        let mut seen = vec![tracker.phase()];
        for c in text.chars() {
            let token = match c {
                '«' => 256,
                '»' => 257,
                '‹' => 258,
                '›' => 259,
                c => c as u32,
            };
            tracker.push(token, &vocabulary, &MARKERS);
            if seen.last() != Some(&tracker.phase()) {
                seen.push(tracker.phase());
            }
        }
        seen
    }

    #[test]
    fn phases_of_replies() {
        use Phase::*;
        assert_eq!(phases("hm»Yes.\nNo.", false, true), [Text]);
        assert_eq!(phases("«hm»Yes ‹x{}›.", false, false), [Text, Structured, Text]);
        assert_eq!(phases("See:\n```rust\nfn a() {}\n```\nDone.", false, false), [Text, Structured, Text]);
        assert_eq!(phases("```\nin a thought»out", false, true), [Text, Structured, Text]);
        assert_eq!(phases("use `a` and ``b``\n", false, false), [Text]);
        assert_eq!(phases("hm»{}", true, true), [Text, Structured]);
        assert_eq!(phases("{}", true, false), [Structured]);
    }

    #[test]
    fn answers_begin_behind_markers() {
        let vocabulary = Vocabulary::default();
        let mut tracker = PhaseTracker::new(false, true);
        let mut push = |token: u32| {
            tracker.push(token, &vocabulary, &MARKERS);
            tracker.answer_len()
        };
        assert_eq!(
            [push(7), push(257), push(7), push(258), push(259)],
            [None, Some(0), Some(1), None, Some(0)]
        );
    }
}
