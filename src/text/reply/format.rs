//! The model's markers and the request's tools, as the reply parser needs them.

use serde_json::Value;

use super::declared_tool::DeclaredTool;
use crate::markers;
use crate::tokenizer::Tokenizer;

/// Meaning of a marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marker {
    Think,
    ThinkEnd,
    SectionBegin,
    SectionEnd,
    CallBegin,
    ArgumentBegin,
    CallEnd,
    /// A misspelled section marker; counts only together with a call.
    MaybeSectionBegin,
    MaybeSectionEnd,
    /// Ends the turn. Only for replies as text: elsewhere tokens end replies.
    TurnEnd,
}

const NAMES: [(&str, Marker); 7] = [
    (markers::THINK, Marker::Think),
    (markers::THINK_END, Marker::ThinkEnd),
    (markers::TOOL_CALLS_SECTION_BEGIN, Marker::SectionBegin),
    (markers::TOOL_CALLS_SECTION_END, Marker::SectionEnd),
    (markers::TOOL_CALL_BEGIN, Marker::CallBegin),
    (markers::TOOL_CALL_ARGUMENT_BEGIN, Marker::ArgumentBegin),
    (markers::TOOL_CALL_END, Marker::CallEnd),
];

/// Singular spellings by mistake; never tokens.
const SLIPS: [(&str, Marker); 2] = [
    ("<|tool_call_section_begin|>", Marker::MaybeSectionBegin),
    ("<|tool_call_section_end|>", Marker::MaybeSectionEnd),
];

/// Think markers of the first thinking models of the family, never tokens.
const OLD_THINK: [(&str, Marker); 2] =
    [("\u{25c1}think\u{25b7}", Marker::Think), ("\u{25c1}/think\u{25b7}", Marker::ThinkEnd)];

/// A marker in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Whole {
        start: usize,
        end: usize,
        marker: Marker,
    },
    /// The text ends with the beginning of a marker.
    Beginning(usize),
}

/// Markers of a model, tools of a request. Shared by the request's replies.
#[derive(Debug, Clone)]
pub struct ReplyFormat {
    /// Markers that are single tokens.
    ids: Vec<(u32, Marker)>,
    /// Markers searched for in text; none is a prefix of another.
    texts: Vec<(&'static str, Marker)>,
    pub(super) tools: Vec<DeclaredTool>,
    /// Number of calls in the conversation so far.
    first_index: usize,
    /// Whether calls are emitted; otherwise they are removed from the text and dropped.
    keeps_calls: bool,
}

impl ReplyFormat {
    /// For replies in tokens of this tokenizer: a marker with a token counts only as that token.
    /// `thinks`: whether the template writes think markers; a model that never sees them may only
    /// mention them.
    pub fn of_tokens(tokenizer: &Tokenizer, thinks: bool) -> Self {
        let (mut ids, mut texts) = (Vec::new(), Vec::new());
        for (name, marker) in NAMES {
            match tokenizer.special_id(name) {
                Some(id) => ids.push((id, marker)),
                None if !thinks && matches!(marker, Marker::Think | Marker::ThinkEnd) => {}
                None => texts.push((name, marker)),
            }
        }
        if ids.iter().any(|(_, marker)| *marker == Marker::CallBegin) {
            texts.extend(SLIPS);
        }
        if !ids.iter().any(|(_, marker)| *marker == Marker::Think) {
            texts.extend(OLD_THINK);
        }
        Self { ids, texts, tools: Vec::new(), first_index: 0, keeps_calls: true }
    }

    /// For replies as plain text, in which every marker counts.
    pub fn of_text() -> Self {
        let slips = [(SLIPS[0].0, Marker::SectionBegin), (SLIPS[1].0, Marker::SectionEnd)];
        let ends = markers::TURN_ENDS.map(|name| (name, Marker::TurnEnd));
        let texts = NAMES.into_iter().chain(slips).chain(OLD_THINK).chain(ends).collect();
        Self { ids: Vec::new(), texts, tools: Vec::new(), first_index: 0, keeps_calls: true }
    }

    /// Adds a request's tools, in OpenAI form, and the number of calls in its conversation.
    pub fn with_tools(mut self, tools: &[Value], first_index: usize) -> Self {
        self.tools = tools.iter().filter_map(DeclaredTool::of).collect();
        self.first_index = first_index;
        self
    }

    /// Numbers the reply's calls from `first_index`.
    pub fn counting_from(mut self, first_index: usize) -> Self {
        self.first_index = first_index;
        self
    }

    /// Removes calls from the text and drops them.
    pub fn without_calls(mut self) -> Self {
        self.keeps_calls = false;
        self
    }

    pub(super) fn first_index(&self) -> usize {
        self.first_index
    }

    pub(super) fn keeps_calls(&self) -> bool {
        self.keeps_calls
    }

    pub(super) fn marker(&self, id: u32) -> Option<Marker> {
        self.ids.iter().find(|(marked, _)| *marked == id).map(|(_, marker)| *marker)
    }

    /// The first marker at or after byte `from`, or the beginning of one at the end of the text.
    pub(super) fn find(&self, text: &str, from: usize) -> Option<Found> {
        if self.texts.is_empty() {
            return None;
        }
        let bytes = text.as_bytes();
        for start in from..bytes.len() {
            // Every marker begins with one of these bytes.
            if !matches!(bytes[start], b'<' | b'[' | 0xe2) {
                continue;
            }
            let rest = &bytes[start..];
            for &(name, marker) in &self.texts {
                if rest.starts_with(name.as_bytes()) {
                    return Some(Found::Whole { start, end: start + name.len(), marker });
                }
                if name.as_bytes().starts_with(rest) && text.is_char_boundary(start) {
                    return Some(Found::Beginning(start));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_data::{golden, nano_like};

    #[test]
    fn no_marker_is_the_beginning_of_another() {
        let texts = ReplyFormat::of_text().texts;
        for (i, (a, _)) in texts.iter().enumerate() {
            assert!(matches!(a.as_bytes()[0], b'<' | b'[' | 0xe2), "{a}");
            for (j, (b, _)) in texts.iter().enumerate() {
                assert!(i == j || !a.starts_with(b), "{a} {b}");
            }
        }
    }

    /// Regression: an answer about `<think>` lost the rest of its text.
    #[test]
    fn think_markers_without_tokens_are_text_where_the_template_has_none() {
        let model = golden("logits/kimi/tiktoken.model");
        let unnamed = Tokenizer::from_tiktoken(&model, None).unwrap();
        let found = Some(Found::Whole { start: 1, end: 8, marker: Marker::Think });
        for (thinks, found) in [(true, found), (false, None)] {
            let format = ReplyFormat::of_tokens(&unnamed, thinks);
            assert_eq!(format.find("a<think>b", 0), found);
            assert!(format.find("<|tool_call_begin|>", 0).is_some());
        }
        assert!(ReplyFormat::of_tokens(&nano_like(), true).find("a<think>b", 0).is_none());
    }

    #[test]
    fn finds_whole_markers_and_beginnings() {
        let format = ReplyFormat::of_text();
        let whole = |start, end, marker| Some(Found::Whole { start, end, marker });
        assert_eq!(format.find("a<think>b", 0), whole(1, 8, Marker::Think));
        assert_eq!(format.find("a<b></think>", 0), whole(4, 12, Marker::ThinkEnd));
        assert_eq!(format.find("a<|tool_call", 0), Some(Found::Beginning(1)));
        assert_eq!(format.find("<<|im_end", 0), Some(Found::Beginning(1)));
        assert_eq!(format.find("\u{25c1}thin", 0), Some(Found::Beginning(0)));
        assert_eq!(format.find("a < b [0] \u{20ac}", 0), None);
    }
}
