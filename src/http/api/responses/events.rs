//! The streamed response: items that are added, grow and are done one after the other.

use serde_json::{Value, json};

use super::super::client_tools::{ClientTool, ToolKind, input_of};
use super::super::format::Format;
use super::super::write::TokenText;
use super::super::{ApiError, write};
use super::answer::ResponsesAnswer;
use super::items;
use crate::generate::{ArgumentsForm, Finish, ReplyPiece, TokenLogprobs, Usage};

/// The item that grows.
#[derive(Debug, Clone)]
enum Open {
    Reasoning,
    Message,
    Call { call_id: String, tool: ClientTool },
}

/// A stream's state.
#[derive(Debug, Clone, Default)]
pub(crate) struct ItemEvents {
    begun: bool,
    sequence: u64,
    open: Option<(Open, String)>,
    /// Text of the item that grows.
    text: String,
    /// Logprobs of its tokens, if it is a message and they are wanted.
    scores: Vec<Value>,
    done: Vec<Value>,
}

impl ItemEvents {
    /// What is new in the reply, and the logprobs of its tokens.
    pub(crate) fn pieces(
        &mut self,
        out: &mut Vec<u8>,
        format: &Format,
        pieces: &[ReplyPiece],
        show: &TokenText<'_>,
        (logprobs, in_answer): (&[TokenLogprobs], &[bool]),
    ) {
        self.begin(out, format);
        // They belong to the first text of the answer among the pieces.
        let mut scores = items::logprobs(show, logprobs, in_answer);
        for piece in pieces {
            match piece {
                ReplyPiece::Reasoning(text) if text.is_empty() || format.reasoning.is_none() => {}
                ReplyPiece::Reasoning(text) => {
                    if !matches!(self.open, Some((Open::Reasoning, _))) {
                        self.add(out, format, Open::Reasoning, "rs");
                    }
                    self.grow(out, "response.reasoning_text.delta", text, Vec::new());
                }
                ReplyPiece::AnswerWasReasoning => {}
                ReplyPiece::Content(text) | ReplyPiece::ReasoningWasAnswer(text) => {
                    if !matches!(self.open, Some((Open::Message, _))) {
                        self.add(out, format, Open::Message, "msg");
                    }
                    self.grow(out, "response.output_text.delta", text, std::mem::take(&mut scores));
                }
                ReplyPiece::Call { id, name, .. } => {
                    let tool = format.client_tools.of(name);
                    let prefix = items::call_prefix(tool.kind);
                    self.add(out, format, Open::Call { call_id: id.clone(), tool }, prefix);
                }
                ReplyPiece::Arguments { text, .. } => match &self.open {
                    Some((Open::Call { tool, .. }, _)) if tool.kind == ToolKind::Function => {
                        self.grow(out, "response.function_call_arguments.delta", text, Vec::new());
                    }
                    // Other forms are made of the whole arguments.
                    _ => self.text.push_str(text),
                },
            }
        }
    }

    /// The end of the reply.
    pub(crate) fn finished(
        &mut self,
        out: &mut Vec<u8>,
        format: &Format,
        usage: Usage,
        (finish, forms): (&Finish, &[ArgumentsForm]),
    ) {
        self.begin(out, format);
        if self.open.is_none() && self.done.is_empty() {
            // Every response has an item, as the whole answer does.
            self.add(out, format, Open::Message, "msg");
        }
        self.close(out, finish.is_cut());
        let name = if finish.is_cut() { "response.incomplete" } else { "response.completed" };
        let response =
            ResponsesAnswer::new(format, self.done.clone(), Some((usage, finish))).with_forms(forms);
        if let Some(keep) = format.keep.clone() {
            keep.put(&format.id, write::document(&response));
        }
        self.event(out, name, json!({"response": response}));
    }

    /// An error in place of what would follow.
    pub(crate) fn error(&mut self, out: &mut Vec<u8>, error: &ApiError) {
        self.event(out, "error", json!({"code": error.code, "message": error.message, "param": error.param}));
    }

    fn begin(&mut self, out: &mut Vec<u8>, format: &Format) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        for name in ["response.created", "response.in_progress"] {
            self.event(out, name, json!({"response": ResponsesAnswer::new(format, Vec::new(), None)}));
        }
    }

    fn add(&mut self, out: &mut Vec<u8>, format: &Format, open: Open, prefix: &str) {
        self.close(out, false);
        let id = items::id(format, prefix, self.done.len());
        let place = self.done.len();
        let item = item(&open, &id, None);
        self.event(out, "response.output_item.added", json!({"output_index": place, "item": item}));
        if let Some(part) = part(&open, "", Vec::new()) {
            let place = json!({"item_id": id, "output_index": place, "content_index": 0, "part": part});
            self.event(out, "response.content_part.added", place);
        }
        self.open = Some((open, id));
    }

    fn grow(&mut self, out: &mut Vec<u8>, name: &str, text: &str, scores: Vec<Value>) {
        let Some((open, id)) = &self.open else { return };
        let mut data = json!({"item_id": id, "output_index": self.done.len(), "delta": text});
        if !matches!(open, Open::Call { .. }) {
            data["content_index"] = 0.into();
        }
        if matches!(open, Open::Message) {
            data["logprobs"] = json!(scores);
            self.scores.extend(scores);
        }
        self.text.push_str(text);
        self.event(out, name, data);
    }

    /// Ends the item that grows; `cut`: the reply was cut off in it.
    fn close(&mut self, out: &mut Vec<u8>, cut: bool) {
        let Some((open, id)) = self.open.take() else { return };
        let (text, scores) = (std::mem::take(&mut self.text), std::mem::take(&mut self.scores));
        let place = self.done.len();
        let at = json!({"item_id": id, "output_index": place});
        let with = |fields: Value| {
            let mut data = at.clone();
            if let (Value::Object(data), Value::Object(fields)) = (&mut data, fields) {
                data.extend(fields);
            }
            data
        };
        match &open {
            Open::Reasoning => {
                self.event(
                    out,
                    "response.reasoning_text.done",
                    with(json!({"content_index": 0, "text": text})),
                );
            }
            Open::Message => {
                let data = with(json!({"content_index": 0, "text": text, "logprobs": scores}));
                self.event(out, "response.output_text.done", data);
            }
            Open::Call { tool, .. } => match tool.kind {
                ToolKind::Function => {
                    let data = with(json!({"name": tool.name, "arguments": text}));
                    self.event(out, "response.function_call_arguments.done", data);
                }
                ToolKind::Custom => {
                    let input = input_of(&text);
                    let name = "response.custom_tool_call_input";
                    self.event(out, &format!("{name}.delta"), with(json!({"delta": input})));
                    self.event(out, &format!("{name}.done"), with(json!({"input": input})));
                }
                ToolKind::Search => {}
            },
        }
        if let Some(part) = part(&open, &text, scores.clone()) {
            self.event(out, "response.content_part.done", with(json!({"content_index": 0, "part": part})));
        }
        let mut item = item(&open, &id, Some((&text, scores)));
        if cut {
            items::cut(&mut item);
        }
        self.event(out, "response.output_item.done", json!({"output_index": place, "item": item}));
        self.done.push(item);
    }

    fn event(&mut self, out: &mut Vec<u8>, name: &str, data: Value) {
        let mut event = json!({"type": name, "sequence_number": self.sequence});
        if let (Value::Object(event), Value::Object(fields)) = (&mut event, data) {
            event.extend(fields);
        }
        self.sequence += 1;
        write::raw(out, "event: ");
        write::raw(out, name);
        write::raw(out, "\ndata: ");
        write::raw(out, &event.to_string());
        write::raw(out, "\n\n");
    }
}

fn item(open: &Open, id: &str, said: Option<(&str, Vec<Value>)>) -> Value {
    let text = said.as_ref().map(|(text, _)| *text);
    match open {
        Open::Reasoning => items::reasoning(id, text),
        Open::Message => items::message(id, said),
        Open::Call { call_id, tool } => items::call(id, call_id, tool, text),
    }
}

/// The content part of an item that has one.
fn part(open: &Open, text: &str, scores: Vec<Value>) -> Option<Value> {
    match open {
        Open::Reasoning => Some(items::reasoning_part(text)),
        Open::Message => Some(items::text_part(text, scores)),
        Open::Call { .. } => None,
    }
}
