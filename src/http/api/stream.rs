//! Streamed answers: reply events become server-sent events.
//!
//! What became ready together leaves in one write.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::ApiError;
use super::anthropic::BlockEvents;
use super::chunks::{ChoiceEvents, Source};
use super::format::{Format, Kind};
use super::responses::ItemEvents;
use super::summary::Summary;
use super::tokens::TokenEvents;
use super::write::{self, TokenText};
use crate::generate::{Replies, ReplyEvent, ReplyPart};
use perigee_text::Tokenizer;

/// A write is handed over when it has grown to this many bytes, even if more is ready.
const MAX_WRITE_BYTES: usize = 32 * 1024;

/// A streamed answer.
pub struct EventStream {
    replies: Replies,
    tokenizer: Arc<Tokenizer>,
    format: Format,
    events: Events,
    /// Whether the last event has been given.
    done: bool,
    /// Whether an event with the whole usage has been given.
    settled: bool,
    summary: Summary,
}

/// The events of a route.
enum Events {
    Choices(ChoiceEvents),
    /// Of `/inference/v1/generate`.
    Tokens,
    /// Of `/v1/messages`, which has one choice.
    Blocks(BlockEvents),
    /// Of `/v1/responses`, likewise.
    Items(ItemEvents),
}

impl EventStream {
    pub(super) fn new(replies: Replies, tokenizer: Arc<Tokenizer>, format: Format, summary: Summary) -> Self {
        let events = match format.kind {
            Kind::Chat | Kind::Completion => {
                Events::Choices(ChoiceEvents::new(&format, replies.num_choices()))
            }
            Kind::Tokens => Events::Tokens,
            Kind::Messages => Events::Blocks(BlockEvents::default()),
            Kind::Responses => Events::Items(ItemEvents::default()),
        };
        Self { replies, tokenizer, format, events, done: false, settled: false, summary }
    }

    /// The next bytes to send; `None` after the last ones.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        if self.done {
            return Poll::Ready(None);
        }
        let mut out = Vec::new();
        while out.len() < MAX_WRITE_BYTES {
            match self.replies.poll_next(cx) {
                Poll::Pending if out.is_empty() => return Poll::Pending,
                Poll::Pending => break,
                Poll::Ready(Some(Ok(event))) => self.event(&mut out, event),
                Poll::Ready(Some(Err(error))) => {
                    out.extend(self.fail(&ApiError::from(error)));
                    break;
                }
                Poll::Ready(None) => {
                    self.end(&mut out);
                    self.done = true;
                    break;
                }
            }
        }
        Poll::Ready(Some(out))
    }

    /// Ends the stream with an error; what is given are the last bytes to send.
    pub fn fail(&mut self, error: &ApiError) -> Vec<u8> {
        let mut out = Vec::new();
        match &mut self.events {
            Events::Choices(_) => ChoiceEvents::error(&mut out, error),
            Events::Tokens => TokenEvents::error(&mut out, error),
            Events::Blocks(_) => BlockEvents::error(&mut out, error),
            Events::Items(items) => items.error(&mut out, error),
        }
        self.summary.finish = error.code;
        self.done = true;
        out
    }

    /// Whether the last event has been given (otherwise the client left, when this is dropped).
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Whether what was given says what the request came to: nothing more is generated.
    pub fn is_settled(&self) -> bool {
        self.settled || self.done
    }

    /// Counts and times so far.
    pub fn summary(&self) -> Summary {
        let mut summary = self.summary.clone();
        summary.count(&self.replies);
        summary
    }

    fn event(&mut self, out: &mut Vec<u8>, ReplyEvent { choice, part }: ReplyEvent) {
        if let ReplyPart::Finished(finish) = &part {
            self.summary.finish = write::finish_reason(finish);
            self.settled = self.replies.num_choices() == 1;
        }
        let (format, replies) = (&self.format, &self.replies);
        match (&mut self.events, part) {
            (Events::Choices(choices), part) => {
                let source = Source { format, replies, tokenizer: &self.tokenizer };
                choices.event(out, source, choice, part);
            }
            (Events::Tokens, part) => {
                let source = Source { format, replies, tokenizer: &self.tokenizer };
                TokenEvents::event(out, source, choice, &part);
            }
            (_, ReplyPart::Prompt { .. }) => {}
            (Events::Blocks(blocks), ReplyPart::Pieces { pieces, .. }) => {
                blocks.pieces(out, format, replies.usage(), &pieces);
            }
            (Events::Blocks(blocks), ReplyPart::Finished(finish)) => {
                blocks.finished(out, format, replies.usage(), (&finish, replies.forms(choice)));
            }
            (Events::Items(items), ReplyPart::Pieces { pieces, logprobs, in_answer, .. }) => {
                let show = TokenText { tokenizer: &self.tokenizer, as_ids: format.tokens_as_ids };
                items.pieces(out, format, &pieces, &show, (&logprobs, &in_answer));
            }
            (Events::Items(items), ReplyPart::Finished(finish)) => {
                items.finished(out, format, replies.usage(), (&finish, replies.forms(choice)));
            }
        }
    }

    fn end(&self, out: &mut Vec<u8>) {
        match &self.events {
            Events::Choices(choices) => {
                let Self { format, replies, tokenizer, .. } = self;
                choices.end(out, Source { format, replies, tokenizer });
            }
            Events::Tokens => {
                let Self { format, replies, tokenizer, .. } = self;
                TokenEvents::end(out, Source { format, replies, tokenizer });
            }
            Events::Blocks(blocks) => blocks.end(out),
            // The completed response was the last event.
            Events::Items(_) => {}
        }
    }
}
