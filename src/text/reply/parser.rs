//! Parses a growing reply into reasoning, answer and tool calls.
//!
//! Markers with a token count only as that token, so that a user's text about markers stays text;
//! markers that the vocabulary lacks are found in the text. The result depends on the tokens and
//! the text alone, never on where the stream was cut. Models make mistakes in markers; the rules
//! for these, most important first:
//!
//! - Marker text is never shown.
//! - A call that the model wrote is never lost: a missing section, argument or end marker, a bare
//!   counter for an id, and an id without prefix are all read. A call cut off before its arguments
//!   began is not a call.
//! - Text inside the section but outside of calls, and text after the section, is not shown.
//!
//! The state is small and cheap to clone; a rewind restores an earlier clone.

use std::sync::Arc;

use super::calls::{PendingCall, UsedIds};
use super::format::{Found, Marker, ReplyFormat};
use super::json_scan::JsonScan;
use super::piece::{ReplyPiece, WholeReply, give};
use crate::markers;

/// Most bytes of an id; the rest of a longer id is dropped.
const MAX_ID_BYTES: usize = 512;

/// The part of a reply that the prompt leaves open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReplyStart {
    /// The prompt opened the reasoning.
    Reasoning,
    /// The prompt closed the reasoning, or continues an answer.
    Answer,
    /// The prompt opened neither: the model may open its reasoning itself.
    #[default]
    Open,
}

/// The end of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyEnd {
    /// The model ended its turn.
    Turn,
    /// The reply was cut off: an element under way is incomplete.
    Cut,
}

/// Region of the reply at the parser's position.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Region {
    Reasoning,
    #[default]
    Answer,
    /// In the section outside of calls, or after the section.
    Section,
    /// In a call's id.
    Id,
    Arguments,
}

/// State of the parser at its position in the reply.
#[derive(Debug, Clone, Default)]
struct ReplyState {
    region: Region,
    /// Held-back text that may become a marker.
    held: String,
    /// By region: white space, shown only if text follows; the id; text between calls.
    waiting: String,
    /// Whether `waiting` holds a misspelled section marker, which counts only if a call follows.
    doubtful: bool,
    has_reasoning: bool,
    /// Whether reasoning was emitted, even if empty.
    reasoning_given: bool,
    content_begun: bool,
    scan: JsonScan,
    pending: Option<PendingCall>,
    used: UsedIds,
    /// Number of calls emitted.
    calls: usize,
    /// Number of calls that have ended.
    closed: usize,
    reasoning_tokens: usize,
    /// Whether the text spelled an end of turn: later text does not belong to the reply.
    over: bool,
}

/// Parses one reply.
#[derive(Debug, Clone)]
pub struct ReplyParser {
    format: Arc<ReplyFormat>,
    state: ReplyState,
}

impl ReplyParser {
    /// A parser at the start of a reply.
    pub fn new(format: Arc<ReplyFormat>, start: ReplyStart) -> Self {
        let reasons = start == ReplyStart::Reasoning;
        let region = if reasons { Region::Reasoning } else { Region::Answer };
        Self { format, state: ReplyState { region, has_reasoning: reasons, ..ReplyState::default() } }
    }

    /// Whether the id is a marker, whose text must not be pushed.
    pub fn is_marker(&self, id: u32) -> bool {
        self.format.marker(id).is_some()
    }

    /// Takes one token: its id, and the text it completes without a marker's own text. Text held
    /// back by an incomplete character must be pushed before a marker.
    pub fn push(&mut self, id: u32, text: &str, out: &mut Vec<ReplyPiece>) {
        self.push_text(text, out);
        if let Some(marker) = self.format.marker(id)
            && !self.state.over
        {
            self.flush_held(out);
            self.marker(marker, out);
        }
        self.state.reasoning_tokens += usize::from(self.state.region == Region::Reasoning);
    }

    /// Takes text that came without a token.
    pub fn push_text(&mut self, text: &str, out: &mut Vec<ReplyPiece>) {
        if text.is_empty() || self.state.over {
            return;
        }
        if self.state.held.is_empty() {
            return self.search(text, out);
        }
        let mut joined = std::mem::take(&mut self.state.held);
        joined.push_str(text);
        self.search(&joined, out);
    }

    /// Ends the reply: emits held-back text and closes open elements.
    pub fn finish(&mut self, end: ReplyEnd, out: &mut Vec<ReplyPiece>) {
        self.flush_held(out);
        match self.state.region {
            Region::Reasoning => {
                self.settle_doubt(out);
                self.end_reasoning(out);
            }
            Region::Answer => {
                self.settle_doubt(out);
                let waiting = std::mem::take(&mut self.state.waiting);
                if self.state.calls == 0 {
                    give(out, ReplyPiece::Content(waiting));
                }
            }
            Region::Section => {}
            Region::Id => self.end_id(end, out),
            Region::Arguments => self.end_call(end, out),
        }
        self.state.region = Region::Section;
        self.state.waiting.clear();
    }

    /// Whether the reply has reasoning, even if empty.
    pub fn has_reasoning(&self) -> bool {
        self.state.has_reasoning
    }

    /// Whether text pushed now belongs to the answer.
    pub fn in_answer(&self) -> bool {
        self.state.region == Region::Answer
    }

    /// Number of tokens inside the reasoning, without the closing marker.
    pub fn reasoning_tokens(&self) -> usize {
        self.state.reasoning_tokens
    }

    /// Number of calls that have ended.
    pub fn closed_calls(&self) -> usize {
        self.state.closed
    }

    /// Number of calls emitted.
    pub fn num_calls(&self) -> usize {
        if self.format.keeps_calls() { self.state.calls } else { 0 }
    }

    /// Searches the text for markers; holds back an end that may become one.
    fn search(&mut self, text: &str, out: &mut Vec<ReplyPiece>) {
        let format = Arc::clone(&self.format);
        let mut from = 0;
        let mut at = 0;
        while let Some(found) = format.find(text, at) {
            match found {
                Found::Beginning(start) => {
                    self.text(&text[from..start], out);
                    self.state.held.push_str(&text[start..]);
                    return;
                }
                Found::Whole { start, end, marker } => {
                    self.text(&text[from..start], out);
                    from = start;
                    at = end;
                    // Inside a string a marker is text of the string, except the end of turn, which
                    // no text quotes.
                    let quoted = self.state.region == Region::Arguments && self.state.scan.in_string();
                    if quoted && text[start..end] != *markers::IM_END {
                        continue;
                    }
                    from = end;
                    self.spelled(marker, &text[start..end], out);
                    if self.state.over {
                        return;
                    }
                }
            }
        }
        self.text(&text[from..], out);
    }

    fn flush_held(&mut self, out: &mut Vec<ReplyPiece>) {
        if !self.state.held.is_empty() {
            let held = std::mem::take(&mut self.state.held);
            self.text(&held, out);
        }
    }

    /// Handles text between markers.
    fn text(&mut self, text: &str, out: &mut Vec<ReplyPiece>) {
        if text.is_empty() {
            return;
        }
        let state = &mut self.state;
        match state.region {
            Region::Reasoning => {
                if state.doubtful && !text.trim().is_empty() {
                    self.settle_doubt(out);
                }
                let state = &mut self.state;
                let end = if state.doubtful { 0 } else { text.trim_end().len() };
                if end > 0 {
                    let mut shown = std::mem::take(&mut state.waiting);
                    shown.push_str(&text[..end]);
                    state.reasoning_given = true;
                    give(out, ReplyPiece::Reasoning(shown));
                }
                state.waiting.push_str(&text[end..]);
            }
            Region::Answer => {
                if text.trim().is_empty() && (!state.content_begun || state.doubtful) {
                    return state.waiting.push_str(text);
                }
                state.doubtful = false;
                state.content_begun = true;
                let mut shown = std::mem::take(&mut state.waiting);
                shown.push_str(text);
                give(out, ReplyPiece::Content(shown));
            }
            Region::Section => {
                state.waiting.push_str(text);
                // Only a short text can be the id of a call without its first marker.
                let excess = state.waiting.len().saturating_sub(MAX_ID_BYTES);
                let cut = (excess..=state.waiting.len()).find(|&at| state.waiting.is_char_boundary(at));
                state.waiting.drain(..cut.unwrap_or(0));
            }
            Region::Id => {
                // Names contain no brace: the marker between id and arguments is missing.
                let brace = text.find('{');
                let id = &text[..brace.unwrap_or(text.len())];
                let room = MAX_ID_BYTES.saturating_sub(state.waiting.len());
                let end = (0..=id.len().min(room)).rev().find(|&end| id.is_char_boundary(end));
                state.waiting.push_str(&id[..end.unwrap_or(0)]);
                if let Some(at) = brace {
                    self.begin_arguments();
                    self.arguments(&text[at..], out);
                }
            }
            Region::Arguments => self.arguments(text, out),
        }
    }

    /// Handles a marker found in the text.
    fn spelled(&mut self, marker: Marker, text: &str, out: &mut Vec<ReplyPiece>) {
        match marker {
            Marker::TurnEnd => {
                self.finish(ReplyEnd::Turn, out);
                self.state.over = true;
            }
            Marker::MaybeSectionBegin | Marker::MaybeSectionEnd => match self.state.region {
                Region::Answer | Region::Reasoning if marker == Marker::MaybeSectionBegin => {
                    self.settle_doubt(out);
                    self.state.doubtful = true;
                    self.state.waiting.push_str(text);
                }
                Region::Section | Region::Id => {}
                _ => self.text(text, out),
            },
            marker => self.marker(marker, out),
        }
    }

    fn marker(&mut self, marker: Marker, out: &mut Vec<ReplyPiece>) {
        if marker != Marker::CallBegin {
            self.settle_doubt(out);
        }
        if matches!(marker, Marker::ThinkEnd | Marker::SectionBegin | Marker::CallBegin) {
            self.end_reasoning(out);
        }
        match (self.state.region, marker) {
            (Region::Answer, Marker::Think) => {
                self.state.waiting.clear();
                self.state.has_reasoning = true;
                self.state.region = Region::Reasoning;
            }
            (Region::Reasoning, Marker::ThinkEnd) => self.go(Region::Answer),
            // Waiting text is white space, which alone is no answer, or a misspelled marker whose
            // call has come.
            (Region::Reasoning | Region::Answer, Marker::SectionBegin) => self.go(Region::Section),
            (Region::Reasoning | Region::Answer | Region::Section, Marker::CallBegin) => self.go(Region::Id),
            (Region::Section, Marker::SectionEnd | Marker::SectionBegin) => self.state.waiting.clear(),
            (Region::Section, Marker::ArgumentBegin) => {
                let word = self.state.waiting.split_whitespace().next_back().unwrap_or_default().to_owned();
                if self.format.looks_like_id(&word) {
                    self.state.waiting = word;
                    self.begin_arguments();
                }
            }
            (Region::Id, Marker::ArgumentBegin) => self.begin_arguments(),
            (Region::Id, Marker::CallEnd | Marker::SectionEnd) => {
                self.end_id(ReplyEnd::Turn, out);
                self.go(Region::Section);
            }
            (Region::Id, Marker::CallBegin) => {
                self.end_id(ReplyEnd::Turn, out);
                self.go(Region::Id);
            }
            (Region::Arguments, Marker::CallEnd | Marker::SectionEnd | Marker::SectionBegin) => {
                self.end_call(ReplyEnd::Turn, out);
                self.go(Region::Section);
            }
            (Region::Arguments, Marker::CallBegin) => {
                self.end_call(ReplyEnd::Turn, out);
                self.go(Region::Id);
            }
            // A misplaced marker without a meaning.
            _ => {}
        }
    }

    /// Emits empty reasoning too: clients send it back.
    fn end_reasoning(&mut self, out: &mut Vec<ReplyPiece>) {
        if self.state.region == Region::Reasoning && !std::mem::replace(&mut self.state.reasoning_given, true)
        {
            out.push(ReplyPiece::Reasoning(String::new()));
        }
    }

    fn go(&mut self, region: Region) {
        self.state.waiting.clear();
        self.state.doubtful = false;
        self.state.region = region;
    }

    /// No call followed the misspelled section marker, so it was text.
    fn settle_doubt(&mut self, out: &mut Vec<ReplyPiece>) {
        if std::mem::take(&mut self.state.doubtful) {
            let text = std::mem::take(&mut self.state.waiting);
            self.text(&text, out);
        }
    }

    /// Turns the waiting text into the id, and begins the arguments.
    fn begin_arguments(&mut self) {
        let id = std::mem::take(&mut self.state.waiting);
        self.state.pending = Some(self.format.pending_call(id.trim()));
        self.state.scan = JsonScan::default();
        self.state.region = Region::Arguments;
    }

    /// Ends an id without arguments.
    fn end_id(&mut self, end: ReplyEnd, out: &mut Vec<ReplyPiece>) {
        if end == ReplyEnd::Turn && self.format.looks_like_id(&self.state.waiting) {
            self.begin_arguments();
            self.end_call(end, out);
        }
    }

    fn arguments(&mut self, text: &str, out: &mut Vec<ReplyPiece>) {
        let state = &mut self.state;
        let begun = state.scan.has_begun();
        let text = if begun { text } else { text.trim_start() };
        // Text after a complete object is a mistake of the model.
        let taken = state.scan.take(text);
        let text = &text[..taken];
        // White space between values may be the end of the arguments.
        let end = if state.scan.in_string() { text.len() } else { text.trim_end().len() };
        if end == 0 {
            return state.waiting.push_str(text);
        }
        let mut shown = std::mem::take(&mut state.waiting);
        shown.push_str(&text[..end]);
        state.waiting.push_str(&text[end..]);
        self.give_arguments(shown, out);
    }

    fn give_arguments(&mut self, text: String, out: &mut Vec<ReplyPiece>) {
        if let Some(mut pending) = self.state.pending.take() {
            if pending.name.is_none() {
                // The function follows only from the complete arguments.
                pending.collected.push_str(&text);
                self.state.pending = Some(pending);
                return;
            }
            let name = pending.name.clone().unwrap_or_default();
            self.announce(name, &pending, out);
        }
        if self.format.keeps_calls() {
            give(out, ReplyPiece::Arguments { index: self.state.calls - 1, text });
        }
    }

    fn announce(&mut self, name: String, pending: &PendingCall, out: &mut Vec<ReplyPiece>) {
        let index = self.state.calls;
        let first = pending.number.unwrap_or(self.format.first_index() + index);
        let id = self.state.used.claim(&name, first, self.format.first_index() + index);
        self.state.calls += 1;
        if self.format.keeps_calls() {
            out.push(ReplyPiece::Call { index, id, name });
        }
    }

    fn end_call(&mut self, end: ReplyEnd, out: &mut Vec<ReplyPiece>) {
        if let Some(pending) = self.state.pending.take() {
            let empty = pending.collected.is_empty();
            if end == ReplyEnd::Cut && empty {
                return;
            }
            // A call without a known function is dropped.
            let Some(name) = pending.name.clone().or_else(|| self.format.infer(&pending)) else { return };
            self.announce(name, &pending, out);
            let text = if empty { "{}".to_owned() } else { pending.collected.clone() };
            if self.format.keeps_calls() {
                give(out, ReplyPiece::Arguments { index: self.state.calls - 1, text });
            }
        }
        self.state.closed += 1;
    }
}

/// Parses a whole text, in which every marker counts.
pub fn whole_reply(format: ReplyFormat, start: ReplyStart, text: &str, end: ReplyEnd) -> WholeReply {
    let mut parser = ReplyParser::new(Arc::new(format), start);
    let mut pieces = Vec::new();
    parser.push_text(text, &mut pieces);
    parser.finish(end, &mut pieces);
    let mut whole =
        WholeReply { reasoning: parser.has_reasoning().then(String::new), ..WholeReply::default() };
    pieces.into_iter().for_each(|piece| whole.add(piece));
    whole
}

#[cfg(test)]
mod tests;
