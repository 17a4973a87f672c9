//! The streamed answer: content blocks that open, grow and close one after the other.

use super::super::format::Format;
use super::super::{ApiError, write};
use super::answer::{self, Block, End, MessagesAnswer, no_input};
use super::signature::Signature;
use crate::generate::{ArgumentsForm, Finish, ReplyPiece, Usage};

/// What stands open in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Thinking,
    Text,
    ToolUse,
}

/// A stream's state.
#[derive(Debug, Default)]
pub(crate) struct BlockEvents {
    begun: bool,
    open: Option<Open>,
    /// Blocks that were opened.
    blocks: u64,
    /// Of the thinking that stands open.
    signature: Signature,
}

impl BlockEvents {
    /// What is new in the reply.
    pub(crate) fn pieces(&mut self, out: &mut Vec<u8>, format: &Format, usage: Usage, pieces: &[ReplyPiece]) {
        self.begin(out, format, usage);
        for piece in pieces {
            match piece {
                ReplyPiece::Reasoning(text) if text.is_empty() || format.reasoning.is_none() => {}
                ReplyPiece::Reasoning(text) => {
                    let block = Block::Thinking { thinking: "", signature: String::new() };
                    self.open(out, Open::Thinking, &block);
                    self.signature.add(text);
                    self.delta(out, "thinking_delta", "thinking", text);
                }
                ReplyPiece::AnswerWasReasoning => {}
                ReplyPiece::Content(text) | ReplyPiece::ReasoningWasAnswer(text) => {
                    self.open(out, Open::Text, &Block::Text { text: "" });
                    self.delta(out, "text_delta", "text", text);
                }
                ReplyPiece::Call { id, name, .. } => {
                    self.close(out);
                    self.open(out, Open::ToolUse, &Block::ToolUse { id, name, input: no_input() });
                }
                ReplyPiece::Arguments { text, .. } => {
                    self.delta(out, "input_json_delta", "partial_json", text);
                }
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
        self.begin(out, format, usage);
        self.close(out);
        event(out, "message_delta");
        write::member(out, "delta", &End::of(Some(finish), format, usage));
        write::member(out, "usage", &answer::Usage::from(usage));
        if let Some(forms) = write::tool_arguments(forms) {
            write::member(out, "tool_arguments", &forms);
        }
        write::raw(out, "}\n\n");
    }

    /// `message_stop`, the last event of a stream.
    pub(crate) fn end(&self, out: &mut Vec<u8>) {
        event(out, "message_stop");
        write::raw(out, "}\n\n");
    }

    /// An error in place of what would follow.
    pub(crate) fn error(out: &mut Vec<u8>, error: &ApiError) {
        write::raw(out, "event: error\ndata: ");
        out.extend_from_slice(&error.anthropic_body());
        write::raw(out, "\n\n");
    }

    fn begin(&mut self, out: &mut Vec<u8>, format: &Format, usage: Usage) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        event(out, "message_start");
        let usage = Usage { completion_tokens: 0, reasoning_tokens: 0, ..usage };
        write::member(out, "message", &MessagesAnswer::new(format, Vec::new(), None, usage));
        write::raw(out, "}\n\n");
        event(out, "ping");
        write::raw(out, "}\n\n");
    }

    fn open(&mut self, out: &mut Vec<u8>, open: Open, block: &Block<'_>) {
        if self.open == Some(open) && open != Open::ToolUse {
            return;
        }
        self.close(out);
        event(out, "content_block_start");
        self.index(out, self.blocks);
        write::member(out, "content_block", block);
        write::raw(out, "}\n\n");
        self.blocks += 1;
        self.open = Some(open);
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        let Some(open) = self.open.take() else { return };
        if open == Open::Thinking {
            let signature = self.signature.take();
            self.delta(out, "signature_delta", "signature", &signature);
        }
        event(out, "content_block_stop");
        self.index(out, self.blocks - 1);
        write::raw(out, "}\n\n");
    }

    fn delta(&self, out: &mut Vec<u8>, kind: &str, field: &str, text: &str) {
        event(out, "content_block_delta");
        self.index(out, self.blocks.saturating_sub(1));
        write::raw(out, ",\"delta\":{\"type\":\"");
        write::raw(out, kind);
        write::raw(out, "\",\"");
        write::raw(out, field);
        write::raw(out, "\":");
        write::string(out, text);
        write::raw(out, "}}\n\n");
    }

    fn index(&self, out: &mut Vec<u8>, index: u64) {
        write::member(out, "index", &index);
    }
}

/// `event: NAME`, and the data's beginning: the brace open.
fn event(out: &mut Vec<u8>, name: &str) {
    write::raw(out, "event: ");
    write::raw(out, name);
    write::raw(out, "\ndata: {\"type\":\"");
    write::raw(out, name);
    out.push(b'"');
}
