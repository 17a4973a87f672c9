//! Streamed answers: reply events become server-sent events.
//!
//! One chunk per step of a reply; what became ready together leaves in one write. The role comes with the first text, never
//! earlier, so that a client's time to first token is the time to its first token.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::ApiError;
use super::anthropic::BlockEvents;
use super::format::{Format, Kind};
use super::guard;
use super::responses::ItemEvents;
use super::summary::Summary;
use super::write::{self, LogprobArrays, Scored, TokenText, echoed};
use crate::generate::{Replies, ReplyEvent, ReplyPart, ReplyPiece, TokenLogprobs};
use crate::text::Tokenizer;

/// A write is handed over when it has grown to this many bytes, even if more is ready.
const MAX_WRITE_BYTES: usize = 32 * 1024;

/// A streamed answer.
pub struct EventStream {
    replies: Replies,
    tokenizer: Arc<Tokenizer>,
    format: Format,
    /// `data: {"id":...,"model":...` as it stands in every chunk.
    head: Vec<u8>,
    choices: Vec<ChoiceState>,
    /// For `/v1/messages`, which has one choice.
    blocks: BlockEvents,
    /// The same for `/v1/responses`.
    items: ItemEvents,
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
    pub(super) fn new(replies: Replies, tokenizer: Arc<Tokenizer>, format: Format, summary: Summary) -> Self {
        let mut head = b"data: ".to_vec();
        format.head(
            &mut head,
            match format.kind {
                Kind::Chat | Kind::Messages | Kind::Responses => "chat.completion.chunk",
                Kind::Completion => "text_completion",
            },
        );
        let choices = vec![ChoiceState::default(); replies.num_choices()];
        let (blocks, items) = (BlockEvents::default(), ItemEvents::default());
        Self { replies, tokenizer, format, head, choices, blocks, items, done: false, summary }
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
        match self.format.kind {
            Kind::Messages => BlockEvents::error(&mut out, error),
            Kind::Responses => self.items.error(&mut out, error),
            Kind::Chat | Kind::Completion => {
                write::raw(&mut out, "data: ");
                out.extend_from_slice(&error.body());
                // As in vLLM: a client that reads on waits for this, whatever came before it.
                write::raw(&mut out, "\n\ndata: [DONE]\n\n");
            }
        }
        self.summary.finish = error.code;
        self.done = true;
        out
    }

    /// Whether the last event has been given (otherwise the client left, when this is dropped).
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Counts and times so far.
    pub fn summary(&self) -> Summary {
        let mut summary = self.summary.clone();
        summary.count(&self.replies);
        summary
    }

    fn event(&mut self, out: &mut Vec<u8>, ReplyEvent { choice, part }: ReplyEvent) {
        match part {
            ReplyPart::Prompt { logprobs } => {
                if self.format.echo {
                    self.echo(out, choice, &logprobs);
                }
            }
            ReplyPart::Pieces { pieces, tokens, logprobs, in_answer } => match self.format.kind {
                Kind::Chat => self.chat(out, choice, &pieces, &tokens, &logprobs),
                Kind::Responses => {
                    let show = TokenText { tokenizer: &self.tokenizer, as_ids: self.format.tokens_as_ids };
                    self.items.pieces(out, &self.format, &pieces, &show, (&logprobs, &in_answer));
                }
                Kind::Messages => self.blocks.pieces(out, &self.format, self.replies.usage(), &pieces),
                Kind::Completion => {
                    let text: String = pieces.iter().map(content_of).collect();
                    // Text without characters comes only at the end of a reply: worth a chunk only if something else is in it.
                    if !text.is_empty() || self.format.logprobs || self.format.return_token_ids {
                        self.completion(out, choice, &text, &tokens, &logprobs);
                    }
                }
            },
            ReplyPart::Finished(finish) if self.format.kind == Kind::Responses => {
                self.summary.finish = write::finish_reason(&finish);
                self.items.finished(out, &self.format, self.replies.usage(), &finish);
            }
            ReplyPart::Finished(finish) if self.format.kind == Kind::Messages => {
                self.summary.finish = write::finish_reason(&finish);
                self.blocks.finished(out, &self.format, self.replies.usage(), &finish);
            }
            ReplyPart::Finished(finish) => {
                self.summary.finish = write::finish_reason(&finish);
                // What is echoed stands in a chunk of its own where nothing else was said.
                if self.format.kind == Kind::Chat
                    && !self.choices[choice].begun
                    && self.format.echoed_content.is_some()
                {
                    self.chat(out, choice, &[], &[], &[]);
                }
                self.begin(out, choice);
                write::raw(
                    out,
                    match self.format.kind {
                        Kind::Chat if !self.choices[choice].begun => {
                            "\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                        }
                        Kind::Chat | Kind::Messages | Kind::Responses => "\"delta\":{},\"logprobs\":null,",
                        Kind::Completion => "\"text\":\"\",\"logprobs\":null,",
                    },
                );
                write::finish(out, &finish);
                // Where the vendor's own API has it, and its clients look for it.
                if self.format.kind == Kind::Chat && self.choices.len() == 1 {
                    out.push(b',');
                    write::usage(out, self.replies.usage());
                }
                let show = TokenText { tokenizer: &self.tokenizer, as_ids: false };
                guard::events(out, self.replies.guard_events(choice), &show);
                write::raw(out, ",\"token_ids\":null");
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
        // The prompt's ids stand in the first chunk, in a choice of text and beside that of a chat.
        let prompt = (first && self.format.return_token_ids).then(|| &self.replies.prompt(choice).tokens[..]);
        if self.format.kind == Kind::Completion {
            write::ids_or_null(out, "prompt_token_ids", prompt);
        }
        write::raw(out, "}]");
        if first && self.format.kind == Kind::Chat {
            write::ids_or_null(out, "prompt_token_ids", prompt);
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

    fn completion(
        &mut self,
        out: &mut Vec<u8>,
        choice: usize,
        text: &str,
        tokens: &[u32],
        logprobs: &[TokenLogprobs],
    ) {
        self.begin(out, choice);
        write::raw(out, "\"text\":");
        write::string(out, text);
        write::raw(out, ",\"logprobs\":");
        if self.format.logprobs {
            let show = TokenText { tokenizer: &self.tokenizer, as_ids: self.format.tokens_as_ids };
            let entries: Vec<Scored<'_>> = logprobs.iter().map(Scored::Entry).collect();
            self.choices[choice].arrays.write(out, &show, &entries);
        } else {
            write::raw(out, "null");
        }
        self.end_of_chunk(out, choice, Some(tokens));
    }

    /// A step of a chat reply: reasoning and answer in one chunk, then one for the beginning of each call and one for each
    /// piece of arguments, since clients tell calls apart by chunks. What belongs to the tokens stands in the first.
    fn chat(
        &mut self,
        out: &mut Vec<u8>,
        choice: usize,
        pieces: &[ReplyPiece],
        tokens: &[u32],
        logprobs: &[TokenLogprobs],
    ) {
        let joined = |wanted: fn(&ReplyPiece) -> &str| pieces.iter().map(wanted).collect::<String>();
        let (reasoning, mut content) = (joined(reasoning_of), joined(content_of));
        if let Some(echoed) = self.format.echoed_content.as_deref().filter(|_| !self.choices[choice].begun) {
            content.insert_str(0, echoed);
        }
        let reasons = pieces.iter().any(|piece| matches!(piece, ReplyPiece::Reasoning(_)));
        let reasoning_field = self.format.reasoning.filter(|_| reasons);
        let calls =
            || pieces.iter().filter(|p| matches!(p, ReplyPiece::Call { .. } | ReplyPiece::Arguments { .. }));
        let carries = self.format.logprobs || self.format.return_token_ids;
        let says = !content.is_empty() || reasoning_field.is_some();
        let mut tokens = Some(tokens);
        if says || carries || (!self.choices[choice].begun && calls().next().is_none() && !reasons) {
            self.begin_delta(out, choice);
            let mut fields = usize::from(!self.choices[choice].begun);
            let mut comma = |out: &mut Vec<u8>| {
                if fields > 0 {
                    out.push(b',');
                }
                fields += 1;
            };
            if let Some(field) = reasoning_field {
                comma(out);
                write::reasoning(out, field, &reasoning);
            }
            if !content.is_empty() || reasoning_field.is_none() {
                comma(out);
                write::raw(out, "\"content\":");
                write::string(out, &content);
            }
            self.end_delta(out, choice, tokens.take(), logprobs);
        }
        for piece in calls() {
            self.begin_delta(out, choice);
            if !self.choices[choice].begun {
                write::raw(out, ",\"content\":null,");
            }
            write::raw(out, "\"tool_calls\":[{\"index\":");
            match piece {
                ReplyPiece::Call { index, id, name } => {
                    write::number(out, *index as u64);
                    write::raw(out, ",\"id\":");
                    write::string(out, id);
                    write::raw(out, ",\"type\":\"function\",\"function\":{\"name\":");
                    write::string(out, name);
                    write::raw(out, ",\"arguments\":\"\"}}]");
                }
                ReplyPiece::Arguments { index, text } => {
                    write::number(out, *index as u64);
                    write::raw(out, ",\"function\":{\"arguments\":");
                    write::string(out, text);
                    write::raw(out, "}}]");
                }
                ReplyPiece::Reasoning(_) | ReplyPiece::Content(_) => {}
            }
            self.end_delta(out, choice, tokens.take(), &[]);
        }
    }

    /// Everything up to the fields of a chat chunk's delta; the role stands in the first.
    fn begin_delta(&self, out: &mut Vec<u8>, choice: usize) {
        self.begin(out, choice);
        write::raw(out, "\"delta\":{");
        if !self.choices[choice].begun {
            write::raw(out, "\"role\":\"assistant\"");
        }
    }

    fn end_delta(
        &mut self,
        out: &mut Vec<u8>,
        choice: usize,
        tokens: Option<&[u32]>,
        logprobs: &[TokenLogprobs],
    ) {
        write::raw(out, "},\"logprobs\":");
        if self.format.logprobs && tokens.is_some() {
            let show = TokenText { tokenizer: &self.tokenizer, as_ids: self.format.tokens_as_ids };
            show.chat_logprobs(out, logprobs);
        } else {
            write::raw(out, "null");
        }
        self.end_of_chunk(out, choice, tokens);
    }

    fn end_of_chunk(&mut self, out: &mut Vec<u8>, choice: usize, tokens: Option<&[u32]>) {
        write::raw(out, ",\"finish_reason\":null");
        write::ids_or_null(out, "token_ids", tokens.filter(|_| self.format.return_token_ids));
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
        write::raw(out, ",\"finish_reason\":null,\"token_ids\":null");
        self.close(out, choice);
    }

    fn end(&self, out: &mut Vec<u8>) {
        match self.format.kind {
            Kind::Messages => return self.blocks.end(out),
            // The completed response was the last event.
            Kind::Responses => return,
            Kind::Chat | Kind::Completion => {}
        }
        if self.format.include_usage {
            out.extend_from_slice(&self.head);
            write::raw(out, ",\"choices\":[],");
            write::usage(out, self.replies.usage());
            write::raw(out, "}\n\n");
        }
        write::raw(out, "data: [DONE]\n\n");
    }
}

fn content_of(piece: &ReplyPiece) -> &str {
    if let ReplyPiece::Content(text) = piece { text } else { "" }
}

fn reasoning_of(piece: &ReplyPiece) -> &str {
    if let ReplyPiece::Reasoning(text) = piece { text } else { "" }
}
