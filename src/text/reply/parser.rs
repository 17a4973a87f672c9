//! Parses a growing reply into reasoning, answer and tool calls.
//!
//! Markers with a token count only as that token, so that a user's text about markers stays text;
//! markers that the vocabulary lacks are found in the text. The result depends on the tokens and
//! the text alone, never on where the stream was cut. Models make mistakes in markers; the rules
//! for these, most important first:
//!
//! - Marker text is never shown.
//! - A call that the model wrote is never lost: a missing section, argument or end marker, an id in
//!   another form ([`super::calls`]) and a call as one JSON object are all read, and its arguments are
//!   mended ([`super::mend`]). What means no declared function is shown as text. A call cut off
//!   before its arguments began is not a call.
//! - Text beside calls in a section, and text after the section, is not shown.
//! - A closing think marker without an opening one ends a reasoning that began with the reply.
//!   Reasoning that the prompt opened, in a turn that ended without any marker, was the answer.
//!
//! The state is small and cheap to clone; a rewind restores an earlier clone.

use std::sync::Arc;

use super::calls::{MAX_ID_BYTES, PendingCall, UsedIds};
use super::format::{Found, Marker, ReplyFormat};
use super::mend::{ArgumentsForm, Mend};
use super::piece::{ReplyPiece, WholeReply, give};
use crate::markers;

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
    /// Whether the prompt left it to the model to open its reasoning.
    open: bool,
    /// Held-back text that may become a marker.
    held: String,
    /// By region: white space, shown only if text follows; the id; text of the section, of which only
    /// the end is kept once the reply has a call.
    waiting: String,
    /// Whether `waiting` holds a misspelled section marker, which counts only if a call follows.
    doubtful: bool,
    has_reasoning: bool,
    /// Whether reasoning was emitted, even if empty.
    reasoning_given: bool,
    content_begun: bool,
    /// Whether a think marker or a call has come, so that it is settled what is reasoning.
    settled: bool,
    /// The reasoning until then.
    unsettled: String,
    /// Tokens so far.
    tokens: usize,
    mend: Mend,
    pending: Option<PendingCall>,
    used: UsedIds,
    /// Number of calls emitted.
    calls: usize,
    /// What the arguments of the calls that have ended turned out to be.
    forms: Vec<ArgumentsForm>,
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
        let open = start == ReplyStart::Open;
        Self { format, state: ReplyState { region, open, has_reasoning: reasons, ..ReplyState::default() } }
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
        self.state.tokens += 1;
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
                if end == ReplyEnd::Turn && self.state.reasoning_given && !self.state.settled {
                    out.push(ReplyPiece::ReasoningWasAnswer(std::mem::take(&mut self.state.unsettled)));
                    self.state.has_reasoning = false;
                    self.state.reasoning_tokens = 0;
                } else {
                    self.end_reasoning(out);
                }
            }
            Region::Answer => {
                self.settle_doubt(out);
                let waiting = std::mem::take(&mut self.state.waiting);
                if self.state.calls == 0 {
                    give(out, ReplyPiece::Content(waiting));
                }
            }
            Region::Section => self.end_section(out),
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

    /// What the arguments of the calls that have ended turned out to be, in order.
    pub fn closed_calls(&self) -> &[ArgumentsForm] {
        &self.state.forms
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
                    let quoted = self.state.region == Region::Arguments && self.state.mend.in_string();
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
                    if !state.settled {
                        state.unsettled.push_str(&shown);
                    }
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
                if state.calls > 0 {
                    // Only a short text can be the id of a call without its first marker.
                    let excess = state.waiting.len().saturating_sub(MAX_ID_BYTES);
                    let cut = (excess..=state.waiting.len()).find(|&at| state.waiting.is_char_boundary(at));
                    state.waiting.drain(..cut.unwrap_or(0));
                }
            }
            Region::Id => {
                // Names contain no brace: the marker between id and arguments is missing.
                let brace = text.find('{');
                state.waiting.push_str(&text[..brace.unwrap_or(text.len())]);
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
        let settled = self.state.settled;
        if !matches!(marker, Marker::SectionEnd | Marker::ArgumentBegin | Marker::CallEnd) {
            self.state.settled = true;
            self.state.unsettled = String::new();
        }
        match (self.state.region, marker) {
            (Region::Answer, Marker::Think) => {
                self.state.waiting.clear();
                self.state.has_reasoning = true;
                self.state.region = Region::Reasoning;
            }
            (Region::Reasoning, Marker::ThinkEnd) => self.go(Region::Answer),
            (Region::Answer, Marker::ThinkEnd) if self.state.open && !settled && self.state.content_begun => {
                out.push(ReplyPiece::AnswerWasReasoning);
                self.state.has_reasoning = true;
                self.state.reasoning_given = true;
                self.state.reasoning_tokens = self.state.tokens;
                self.state.content_begun = false;
                self.go(Region::Answer);
            }
            // Waiting text is white space, which alone is no answer, or a misspelled marker whose
            // call has come.
            (Region::Reasoning | Region::Answer, Marker::SectionBegin) => self.go(Region::Section),
            (Region::Reasoning | Region::Answer | Region::Section, Marker::CallBegin) => self.go(Region::Id),
            (Region::Section, Marker::SectionEnd) => self.end_section(out),
            (Region::Section, Marker::SectionBegin) if self.state.calls > 0 => self.state.waiting.clear(),
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
        let pending = self.format.pending_call(id.trim());
        self.state.mend = Mend::new(self.format.containers(pending.name.as_deref()));
        self.state.pending = Some(pending);
        self.state.region = Region::Arguments;
    }

    /// Ends an id without arguments.
    fn end_id(&mut self, end: ReplyEnd, out: &mut Vec<ReplyPiece>) {
        if end == ReplyEnd::Cut {
            return;
        }
        if self.format.looks_like_id(&self.state.waiting) {
            self.begin_arguments();
            self.end_call(end, out);
        } else {
            let text = std::mem::take(&mut self.state.waiting);
            self.meaningless(text.trim(), out);
        }
    }

    /// Ends a section: without a call in the reply, its text is calls as JSON objects, or an answer.
    fn end_section(&mut self, out: &mut Vec<ReplyPiece>) {
        let text = std::mem::take(&mut self.state.waiting);
        if self.state.calls > 0 || text.trim().is_empty() {
            return;
        }
        match self.format.calls_in(text.trim()) {
            Some(calls) => {
                for (name, arguments) in calls {
                    self.whole_call(name, None, arguments, ArgumentsForm::Mended, out);
                }
            }
            None => self.meaningless(text.trim(), out),
        }
    }

    /// Shows text, but for markers, in place of a call that means no declared function.
    fn meaningless(&mut self, text: &str, out: &mut Vec<ReplyPiece>) {
        let mut shown = String::new();
        let mut from = 0;
        while let Some(Found::Whole { start, end, .. }) = self.format.find(text, from) {
            shown.push_str(&text[from..start]);
            from = end;
        }
        shown.push_str(&text[from..]);
        if self.format.keeps_calls() && !shown.is_empty() {
            self.state.content_begun = true;
            give(out, ReplyPiece::Content(shown));
        }
    }

    fn arguments(&mut self, text: &str, out: &mut Vec<ReplyPiece>) {
        let mut mended = String::new();
        self.state.mend.push(text, &mut mended);
        if !mended.is_empty() {
            self.give_arguments(mended, out);
        }
    }

    fn give_arguments(&mut self, text: String, out: &mut Vec<ReplyPiece>) {
        if let Some(mut pending) = self.state.pending.take() {
            let first_key = self.state.mend.first_key();
            match &pending.name {
                Some(name) if pending.collected.is_empty() && !self.format.may_wrap(name, first_key) => {
                    self.announce(&name.clone(), pending.number, out);
                }
                _ => {
                    // The function follows only from the whole arguments.
                    pending.collected.push_str(&text);
                    self.state.pending = Some(pending);
                    return;
                }
            }
        }
        if self.format.keeps_calls() {
            give(out, ReplyPiece::Arguments { index: self.state.calls - 1, text });
        }
    }

    fn announce(&mut self, name: &str, number: Option<usize>, out: &mut Vec<ReplyPiece>) {
        let index = self.state.calls;
        let next = self.format.first_index() + index;
        let id = self.state.used.claim(name, number.unwrap_or(next), next);
        self.state.calls += 1;
        if self.format.keeps_calls() {
            out.push(ReplyPiece::Call { index, id, name: name.to_owned() });
        }
    }

    fn whole_call(
        &mut self,
        name: String,
        number: Option<usize>,
        arguments: String,
        form: ArgumentsForm,
        out: &mut Vec<ReplyPiece>,
    ) {
        self.announce(&name, number, out);
        self.state.forms.push(form);
        if self.format.keeps_calls() {
            give(out, ReplyPiece::Arguments { index: self.state.calls - 1, text: arguments });
        }
    }

    fn end_call(&mut self, end: ReplyEnd, out: &mut Vec<ReplyPiece>) {
        let mut rest = String::new();
        let mend = &mut self.state.mend;
        let form = if end == ReplyEnd::Turn { mend.finish(&mut rest) } else { mend.cut(&mut rest) };
        let Some(mut pending) = self.state.pending.take() else {
            self.state.forms.push(form);
            if self.format.keeps_calls() && !rest.is_empty() {
                give(out, ReplyPiece::Arguments { index: self.state.calls - 1, text: rest });
            }
            return;
        };
        pending.collected.push_str(&rest);
        if pending.collected.is_empty() {
            // Cut before the arguments began.
            return;
        }
        match self.format.meant_by(&pending) {
            Some((name, arguments)) => {
                let form = if arguments == pending.collected { form } else { ArgumentsForm::Mended };
                self.whole_call(name, pending.number, arguments, form, out);
            }
            None => {
                let text = format!("{} {}", pending.raw, pending.collected);
                self.meaningless(text.trim(), out);
            }
        }
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
