//! Pieces that a reply comes apart into as it grows, and the whole that they make.

use super::calls::ToolCall;

/// Something new in a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyPiece {
    /// Reasoning goes on; empty once, where all of it is.
    Reasoning(String),
    /// The answer goes on.
    Content(String),
    /// A call begins; its arguments follow, never empty.
    Call {
        /// Index within the reply, from 0.
        index: usize,
        /// `functions.NAME:IDX`, unique within the reply.
        id: String,
        /// Name of the function.
        name: String,
    },
    /// A call's arguments go on.
    Arguments {
        /// Which call's.
        index: usize,
        /// Text of the model.
        text: String,
    },
}

/// A whole reply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WholeReply {
    /// `None` if the reply had no place for reasoning; an empty one is something else.
    pub reasoning: Option<String>,
    /// The answer.
    pub content: String,
    /// Tool calls in order.
    pub calls: Vec<ToolCall>,
}

impl WholeReply {
    /// Adds a piece; pieces must come in order.
    pub fn add(&mut self, piece: ReplyPiece) {
        match piece {
            ReplyPiece::Reasoning(text) => self.reasoning.get_or_insert_default().push_str(&text),
            ReplyPiece::Content(text) => self.content.push_str(&text),
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

/// Appends a piece, joined with the last one where both say the same thing.
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
