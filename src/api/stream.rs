//! Streamed answers: reply events become server-sent events.
//!
//! One chunk per step of a reply; what became ready together leaves in one write. The role comes with the first text, never
//! earlier, so that a client's time to first token is the time to its first token.

use std::io::Write;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::guard;
use super::write::{self, LogprobArrays, Scored, TokenText};
use super::{ApiError, Summary};
use crate::generate::{Applied, Replies, ReplyEvent, ReplyPart, TokenLogprobs};
use crate::text::Tokenizer;

/// A write is handed over when it has grown to this many bytes, even if more is ready.
const MAX_WRITE_BYTES: usize = 32 * 1024;

/// The two kinds of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completion,
}

/// What an answer should contain.
#[derive(Debug, Clone)]
pub(super) struct Format {
    pub(super) kind: Kind,
    /// With its prefix, `chatcmpl-` or `cmpl-`.
    pub(super) id: String,
    /// Unix seconds.
    pub(super) created: u64,
    /// The name the client used.
    pub(super) model: String,
    pub(super) include_usage: bool,
    pub(super) continuous_usage: bool,
    pub(super) logprobs: bool,
    pub(super) prompt_logprobs: bool,
    pub(super) echo: bool,
    pub(super) return_token_ids: bool,
    pub(super) tokens_as_ids: bool,
    /// Where the operator's policy changed what was asked for.
    pub(super) applied: Vec<Applied>,
}

impl Format {
    /// Appends the fields every answer begins with, the brace included.
    pub(super) fn head(&self, out: &mut Vec<u8>, object: &str) {
        write::raw(out, "{\"id\":");
        write::string(out, &self.id);
        write!(out, ",\"object\":\"{object}\",\"created\":{},\"model\":", self.created)
            .expect("writing to memory");
        write::string(out, &self.model);
    }
}

/// A streamed answer.
pub struct EventStream {
    replies: Replies,
    tokenizer: Arc<Tokenizer>,
    format: Format,
    /// `data: {"id":...,"model":...` as it stands in every chunk.
    head: Vec<u8>,
    choices: Vec<ChoiceState>,
    /// Whether the last event has been given.
    done: bool,
    summary: Summary,
}

#[derive(Default, Clone)]
struct ChoiceState {
    /// Whether a chunk of this choice has left.
    begun: bool,
    arrays: LogprobArrays,
}

impl EventStream {
    pub(super) fn new(replies: Replies, tokenizer: Arc<Tokenizer>, format: Format) -> Self {
        let mut head = b"data: ".to_vec();
        format.head(
            &mut head,
            match format.kind {
                Kind::Chat => "chat.completion.chunk",
                Kind::Completion => "text_completion",
            },
        );
        let choices = vec![ChoiceState::default(); replies.num_choices()];
        Self { replies, tokenizer, format, head, choices, done: false, summary: Summary::default() }
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
                    let error = ApiError::from(error);
                    write::raw(&mut out, "data: ");
                    out.extend_from_slice(&error.body());
                    write::raw(&mut out, "\n\n");
                    self.summary.finish = error.code;
                    self.done = true;
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

    /// Whether the last event has been given (otherwise the client left, when this is dropped).
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Counts and times so far.
    pub fn summary(&self) -> Summary {
        Summary { usage: self.replies.usage(), ttft: self.replies.time_to_first_token(), ..self.summary }
    }

    fn event(&mut self, out: &mut Vec<u8>, ReplyEvent { choice, part }: ReplyEvent) {
        match part {
            ReplyPart::Prompt { logprobs } => {
                if self.format.echo {
                    self.echo(out, choice, &logprobs);
                }
            }
            ReplyPart::Text { text, tokens, logprobs } => {
                // Text without characters comes only at the end of a reply: worth a chunk only if something else is in it.
                let state = &self.choices[choice];
                let carries = self.format.logprobs || self.format.return_token_ids;
                if !text.is_empty() || carries || (!state.begun && self.format.kind == Kind::Chat) {
                    self.text(out, choice, &text, &tokens, &logprobs);
                }
            }
            ReplyPart::Finished(finish) => {
                self.summary.finish = write::finish_reason(&finish);
                self.begin(out, choice);
                write::raw(
                    out,
                    match self.format.kind {
                        Kind::Chat if !self.choices[choice].begun => {
                            "\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                        }
                        Kind::Chat => "\"delta\":{},\"logprobs\":null,",
                        Kind::Completion => "\"text\":\"\",\"logprobs\":null,",
                    },
                );
                write::finish(out, &finish);
                let show = TokenText { tokenizer: &self.tokenizer, as_ids: false };
                guard::events(out, self.replies.guard_events(choice), &show);
                self.close(out, choice);
            }
        }
    }

    /// The fields up to the choice's own.
    fn begin(&self, out: &mut Vec<u8>, choice: usize) {
        out.extend_from_slice(&self.head);
        write::raw(out, ",\"choices\":[{\"index\":");
        write::number(out, choice as u64);
        out.push(b',');
    }

    /// Closes the choice and the chunk.
    fn close(&mut self, out: &mut Vec<u8>, choice: usize) {
        let first = !std::mem::replace(&mut self.choices[choice].begun, true);
        let give_prompt = first && self.format.return_token_ids;
        if give_prompt && self.format.kind == Kind::Completion {
            self.prompt_ids(out, choice);
        }
        write::raw(out, "}]");
        if give_prompt && self.format.kind == Kind::Chat {
            self.prompt_ids(out, choice);
        }
        if first && choice == 0 {
            write::applied(out, &self.format.applied);
        }
        if self.format.continuous_usage {
            out.push(b',');
            write::usage(out, self.replies.usage());
        } else if self.format.include_usage {
            write::raw(out, ",\"usage\":null");
        }
        write::raw(out, "}\n\n");
    }

    fn prompt_ids(&self, out: &mut Vec<u8>, choice: usize) {
        write::raw(out, ",\"prompt_token_ids\":");
        write::token_ids(out, &self.replies.prompt(choice).tokens);
    }

    fn text(
        &mut self,
        out: &mut Vec<u8>,
        choice: usize,
        text: &str,
        tokens: &[u32],
        logprobs: &[TokenLogprobs],
    ) {
        self.begin(out, choice);
        let show = TokenText { tokenizer: &self.tokenizer, as_ids: self.format.tokens_as_ids };
        match self.format.kind {
            Kind::Chat => {
                let begun = self.choices[choice].begun;
                write::raw(
                    out,
                    if begun {
                        "\"delta\":{\"content\":"
                    } else {
                        "\"delta\":{\"role\":\"assistant\",\"content\":"
                    },
                );
                write::string(out, text);
                write::raw(out, "},\"logprobs\":");
                if self.format.logprobs { show.chat_logprobs(out, logprobs) } else { write::raw(out, "null") }
            }
            Kind::Completion => {
                write::raw(out, "\"text\":");
                write::string(out, text);
                write::raw(out, ",\"logprobs\":");
                if self.format.logprobs {
                    let entries: Vec<Scored<'_>> = logprobs.iter().map(Scored::Entry).collect();
                    self.choices[choice].arrays.write(out, &show, &entries);
                } else {
                    write::raw(out, "null");
                }
            }
        }
        write::raw(out, ",\"finish_reason\":null");
        if self.format.return_token_ids {
            write::raw(out, ",\"token_ids\":");
            write::token_ids(out, tokens);
        }
        self.close(out, choice);
    }

    /// The prompt, as the first chunk of an echoing completion.
    fn echo(&mut self, out: &mut Vec<u8>, choice: usize, logprobs: &[TokenLogprobs]) {
        self.begin(out, choice);
        let show = TokenText { tokenizer: &self.tokenizer, as_ids: self.format.tokens_as_ids };
        let prompt = self.replies.prompt(choice);
        write::raw(out, "\"text\":");
        write::string(out, &prompt.text);
        write::raw(out, ",\"logprobs\":");
        if self.format.logprobs {
            let entries = echoed(&prompt.tokens, logprobs);
            self.choices[choice].arrays.write(out, &show, &entries);
        } else {
            write::raw(out, "null");
        }
        write::raw(out, ",\"finish_reason\":null");
        self.close(out, choice);
    }

    fn end(&self, out: &mut Vec<u8>) {
        if self.format.include_usage {
            out.extend_from_slice(&self.head);
            write::raw(out, ",\"choices\":[],");
            write::usage(out, self.replies.usage());
            write::raw(out, "}\n\n");
        }
        write::raw(out, "data: [DONE]\n\n");
    }
}

/// The scores of an echoed prompt: its first token has none.
pub(super) fn echoed<'a>(prompt: &[u32], logprobs: &'a [TokenLogprobs]) -> Vec<Scored<'a>> {
    prompt
        .first()
        .map(|&id| Scored::Unscored(id))
        .into_iter()
        .chain(logprobs.iter().map(Scored::Entry))
        .collect()
}
