//! Pieces of a growing reply, and the whole reply they form.

use super::calls::ToolCall;

/// New content of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyPiece {
    /// More reasoning. Empty only once, for a reply whose reasoning is empty.
    Reasoning(String),
    /// More of the answer.
    Content(String),
    /// The answer so far was reasoning: its closing marker has come, and no opening one before.
    AnswerWasReasoning,
    /// All reasoning was the answer, which is this text: the turn ended without any marker. Comes
    /// last.
    ReasoningWasAnswer(String),
    /// The start of a call; its arguments follow and are never empty.
    Call {
        /// Index within the reply, from 0.
        index: usize,
        /// `functions.NAME:IDX`, unique within the reply.
        id: String,
        /// Name of the function.
        name: String,
    },
    /// More of a call's arguments.
    Arguments {
        /// Index of the call.
        index: usize,
        /// Mended text.
        text: String,
    },
}

/// A reply that has ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WholeReply {
    /// `None` for a reply without reasoning; an empty string for empty reasoning.
    pub reasoning: Option<String>,
    /// The answer.
    pub content: String,
    /// Tool calls in order.
    pub calls: Vec<ToolCall>,
}

impl WholeReply {
    /// Adds a piece; pieces must be added in order.
    pub fn add(&mut self, piece: ReplyPiece) {
        match piece {
            ReplyPiece::Reasoning(text) => self.reasoning.get_or_insert_default().push_str(&text),
            ReplyPiece::Content(text) => self.content.push_str(&text),
            ReplyPiece::AnswerWasReasoning => {
                let text = std::mem::take(&mut self.content);
                self.reasoning.get_or_insert_default().push_str(text.trim_end());
            }
            ReplyPiece::ReasoningWasAnswer(text) => {
                self.reasoning = None;
                self.content = text;
            }
            ReplyPiece::Call { id, name, .. } => {
                self.calls.push(ToolCall { id, name, arguments: String::new() });
            }
            ReplyPiece::Arguments { index, text } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.arguments.push_str(&text);
                }
            }
        }
    }
}

/// Appends a piece, joined with the last one where both have the same kind.
pub(super) fn give(out: &mut Vec<ReplyPiece>, piece: ReplyPiece) {
    match (out.last_mut(), piece) {
        (Some(ReplyPiece::Reasoning(last)), ReplyPiece::Reasoning(text))
        | (Some(ReplyPiece::Content(last)), ReplyPiece::Content(text)) => last.push_str(&text),
        (Some(ReplyPiece::Arguments { index, text: last }), ReplyPiece::Arguments { index: same, text })
            if *index == same =>
        {
            last.push_str(&text);
        }
        (_, ReplyPiece::Reasoning(text) | ReplyPiece::Content(text)) if text.is_empty() => {}
        (_, piece) => out.push(piece),
    }
}
