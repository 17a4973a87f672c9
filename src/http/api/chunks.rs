//! The streamed answer of `/v1/chat/completions` and `/v1/completions`: one chunk per step of a choice.
//!
//! The role comes with the first text, never earlier, so that a client's time to first token is the time to its first token.

use super::ApiError;
use super::client_tools::input_of;
use super::format::{Format, Kind};
use super::guard;
use super::write::{self, LogprobArrays, Position, TokenText, Usage, echoed};
use crate::generate::{Finish, Replies, ReplyPart, ReplyPiece, TokenLogprobs};
use perigee_text::Tokenizer;

/// What the chunks are written from.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) format: &'a Format,
    pub(super) replies: &'a Replies,
    pub(super) tokenizer: &'a Tokenizer,
}

impl<'a> Source<'a> {
    pub(super) fn usage(self) -> Usage {
        Usage::from(self.replies.usage())
    }

    pub(super) fn show(self) -> TokenText<'a> {
        TokenText { tokenizer: self.tokenizer, as_ids: self.format.tokens_as_ids }
    }
}

/// A stream's state.
pub(super) struct ChoiceEvents {
    /// Of a chat; otherwise of a completion.
    is_chat: bool,
    /// `data: {"id":...,"model":...` as it stands in every chunk.
    head: Vec<u8>,
    choices: Vec<ChoiceState>,
}

#[derive(Default, Clone)]
struct ChoiceState {
    /// Whether a chunk of this choice has left.
    begun: bool,
    arrays: LogprobArrays,
    /// The call of a custom tool that is under way: its index, and the arguments so far.
    custom: Option<(usize, String)>,
}

impl ChoiceEvents {
    pub(super) fn new(format: &Format, num_choices: usize) -> Self {
        let is_chat = format.kind == Kind::Chat;
        let mut head = b"data: ".to_vec();
        format.head(&mut head, if is_chat { "chat.completion.chunk" } else { "text_completion" });
        Self { is_chat, head, choices: vec![ChoiceState::default(); num_choices] }
    }

    /// What is new in a choice.
    pub(super) fn event(&mut self, out: &mut Vec<u8>, source: Source<'_>, choice: usize, part: ReplyPart) {
        match part {
            ReplyPart::Prompt { logprobs } => {
                if source.format.echo {
                    self.echo(out, source, choice, &logprobs);
                }
            }
            ReplyPart::Pieces { pieces, tokens, logprobs, .. } => {
                if self.is_chat {
                    return self.chat(out, source, choice, &pieces, &tokens, &logprobs);
                }
                let text: String = pieces.iter().map(content_of).collect();
                // Text without characters comes only at the end of a reply: worth a chunk only if something else is in it.
                if !text.is_empty() || source.format.logprobs || source.format.return_token_ids {
                    self.completion(out, source, choice, &text, &tokens, &logprobs);
                }
            }
            ReplyPart::Finished(finish) => self.finished(out, source, choice, &finish),
        }
    }

    /// The usage where it was asked for, and `[DONE]`, the last line of a stream.
    pub(super) fn end(&self, out: &mut Vec<u8>, source: Source<'_>) {
        if source.format.include_usage {
            out.extend_from_slice(&self.head);
            write::raw(out, ",\"choices\":[]");
            write::member(out, "usage", &source.usage());
            write::raw(out, "}\n\n");
        }
        write::raw(out, "data: [DONE]\n\n");
    }

    /// An error in place of what would follow.
    pub(super) fn error(out: &mut Vec<u8>, error: &ApiError) {
        write::raw(out, "data: ");
        out.extend_from_slice(&error.body());
        // As in vLLM: a client that reads on waits for this, whatever came before it.
        write::raw(out, "\n\ndata: [DONE]\n\n");
    }

    /// The end of a choice.
    fn finished(&mut self, out: &mut Vec<u8>, source: Source<'_>, choice: usize, finish: &Finish) {
        self.end_custom(out, source, choice);
        // What is echoed stands in a chunk of its own where nothing else was said.
        if self.is_chat && !self.choices[choice].begun && source.format.echoed_content.is_some() {
            self.chat(out, source, choice, &[], &[], &[]);
        }
        self.begin(out, choice);
        if self.is_chat {
            let begun = self.choices[choice].begun;
            write::raw(
                out,
                if begun { "\"delta\":{" } else { "\"delta\":{\"role\":\"assistant\",\"content\":\"\"," },
            );
            write::reasoning(out, source.format.reasoning.unwrap_or_default(), None);
            write::raw(out, "},\"logprobs\":null,");
        } else {
            write::raw(out, "\"text\":\"\",\"logprobs\":null,");
        }
        write::finish(out, source.format.finish_reason(finish), finish);
        // Where the vendor's own API has it, and its clients look for it.
        if self.is_chat && self.choices.len() == 1 {
            write::member(out, "usage", &source.usage());
        }
        let show = TokenText { as_ids: false, ..source.show() };
        if let Some(found) = guard::found(source.replies.guard_events(choice), &show) {
            write::member(out, "guard", &found);
        }
        if let Some(forms) = write::tool_arguments(source.replies.forms(choice)) {
            write::member(out, "tool_arguments", &forms);
        }
        write::raw(out, ",\"token_ids\":null");
        self.close(out, source, choice);
    }

    /// The fields up to the choice's own.
    fn begin(&self, out: &mut Vec<u8>, choice: usize) {
        out.extend_from_slice(&self.head);
        write::raw(out, ",\"choices\":[{\"index\":");
        write::number(out, choice as u64);
        out.push(b',');
    }

    /// Closes the choice and the chunk.
    fn close(&mut self, out: &mut Vec<u8>, source: Source<'_>, choice: usize) {
        let first = !std::mem::replace(&mut self.choices[choice].begun, true);
        // The prompt's ids stand in the first chunk, in a choice of text and beside that of a chat.
        let prompt =
            (first && source.format.return_token_ids).then(|| &source.replies.prompt(choice).tokens[..]);
        if !self.is_chat {
            write::member(out, "prompt_token_ids", &prompt);
        }
        write::raw(out, "}]");
        if first && self.is_chat {
            write::member(out, "prompt_token_ids", &prompt);
        }
        if let Some(applied) = write::applied(&source.format.applied).filter(|_| first && choice == 0) {
            write::member(out, "sampling_applied", &applied);
        }
        if source.format.continuous_usage {
            write::member(out, "usage", &source.usage());
        } else if source.format.include_usage {
            write::raw(out, ",\"usage\":null");
        }
        write::raw(out, "}\n\n");
    }

    fn completion(
        &mut self,
        out: &mut Vec<u8>,
        source: Source<'_>,
        choice: usize,
        text: &str,
        tokens: &[u32],
        logprobs: &[TokenLogprobs],
    ) {
        self.begin(out, choice);
        write::raw(out, "\"text\":");
        write::string(out, text);
        let positions: Vec<Position<'_>> = logprobs.iter().map(Position::Scored).collect();
        self.logprobs(out, source, choice, &positions);
        self.end_of_chunk(out, source, choice, Some(tokens));
    }

    /// A step of a chat reply: reasoning and answer in one chunk, then one for the beginning of each call and one for each
    /// piece of arguments, since clients tell calls apart by chunks. What belongs to the tokens stands in the first.
    fn chat(
        &mut self,
        out: &mut Vec<u8>,
        source: Source<'_>,
        choice: usize,
        pieces: &[ReplyPiece],
        tokens: &[u32],
        logprobs: &[TokenLogprobs],
    ) {
        let joined = |wanted: fn(&ReplyPiece) -> &str| pieces.iter().map(wanted).collect::<String>();
        let (reasoning, mut content) = (joined(reasoning_of), joined(content_of));
        if let Some(echoed) = source.format.echoed_content.as_deref().filter(|_| !self.choices[choice].begun)
        {
            content.insert_str(0, echoed);
        }
        let reasons = pieces.iter().any(|piece| matches!(piece, ReplyPiece::Reasoning(_)));
        let reasoning_field = source.format.reasoning.filter(|_| reasons);
        let calls =
            || pieces.iter().filter(|p| matches!(p, ReplyPiece::Call { .. } | ReplyPiece::Arguments { .. }));
        let carries = source.format.logprobs || source.format.return_token_ids;
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
            comma(out);
            let field = source.format.reasoning.unwrap_or_default();
            write::reasoning(out, field, reasoning_field.map(|_| reasoning.as_str()));
            if !content.is_empty() || reasoning_field.is_none() {
                comma(out);
                write::raw(out, "\"content\":");
                write::string(out, &content);
            }
            self.end_delta(out, source, choice, tokens.take(), logprobs);
        }
        for piece in calls() {
            match (piece, &mut self.choices[choice].custom) {
                // The input is made of the whole arguments.
                (ReplyPiece::Arguments { text, .. }, Some((_, arguments))) => {
                    arguments.push_str(text);
                    continue;
                }
                _ => self.end_custom(out, source, choice),
            }
            self.begin_delta(out, choice);
            if !self.choices[choice].begun {
                write::raw(out, ",\"content\":null,");
            }
            write::reasoning(out, source.format.reasoning.unwrap_or_default(), None);
            if source.format.functions {
                function_call(out, piece);
                self.end_delta(out, source, choice, tokens.take(), &[]);
                continue;
            }
            write::raw(out, ",\"tool_calls\":[{\"index\":");
            match piece {
                ReplyPiece::Call { index, id, name } => {
                    write::number(out, *index as u64);
                    write::raw(out, ",\"id\":");
                    write::string(out, id);
                    let is_custom = source.format.client_tools.is_custom(name);
                    let (kind, input) =
                        if is_custom { ("custom", "input") } else { ("function", "arguments") };
                    write::raw(out, &format!(",\"type\":\"{kind}\",\"{kind}\":{{\"name\":"));
                    write::string(out, name);
                    write::raw(out, &format!(",\"{input}\":\"\"}}}}]"));
                    self.choices[choice].custom = is_custom.then(|| (*index, String::new()));
                }
                ReplyPiece::Arguments { index, text } => {
                    write::number(out, *index as u64);
                    write::raw(out, ",\"function\":{\"arguments\":");
                    write::string(out, text);
                    write::raw(out, "}}]");
                }
                _ => {}
            }
            self.end_delta(out, source, choice, tokens.take(), &[]);
        }
    }

    /// Gives the input of the custom tool's call that ends here.
    fn end_custom(&mut self, out: &mut Vec<u8>, source: Source<'_>, choice: usize) {
        let Some((index, arguments)) = self.choices[choice].custom.take() else { return };
        self.begin_delta(out, choice);
        write::raw(out, "\"tool_calls\":[{\"index\":");
        write::number(out, index as u64);
        write::raw(out, ",\"custom\":{\"input\":");
        write::string(out, &input_of(&arguments));
        write::raw(out, "}}]");
        self.end_delta(out, source, choice, None, &[]);
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
        source: Source<'_>,
        choice: usize,
        tokens: Option<&[u32]>,
        logprobs: &[TokenLogprobs],
    ) {
        out.push(b'}');
        let wanted = source.format.logprobs && tokens.is_some();
        write::member(out, "logprobs", &wanted.then(|| source.show().chat_logprobs(logprobs)));
        self.end_of_chunk(out, source, choice, tokens);
    }

    fn end_of_chunk(&mut self, out: &mut Vec<u8>, source: Source<'_>, choice: usize, tokens: Option<&[u32]>) {
        write::raw(out, ",\"finish_reason\":null");
        write::member(out, "token_ids", &tokens.filter(|_| source.format.return_token_ids));
        self.close(out, source, choice);
    }

    /// The prompt, as the first chunk of an echoing completion.
    fn echo(&mut self, out: &mut Vec<u8>, source: Source<'_>, choice: usize, logprobs: &[TokenLogprobs]) {
        self.begin(out, choice);
        let prompt = source.replies.prompt(choice);
        write::raw(out, "\"text\":");
        write::string(out, &prompt.text);
        self.logprobs(out, source, choice, &echoed(&prompt.tokens, logprobs));
        write::raw(out, ",\"finish_reason\":null,\"token_ids\":null");
        self.close(out, source, choice);
    }

    /// The parallel arrays of a completion, or null where they were not asked for.
    fn logprobs(&mut self, out: &mut Vec<u8>, source: Source<'_>, choice: usize, positions: &[Position<'_>]) {
        let arrays = &mut self.choices[choice].arrays;
        let logprobs = source.format.logprobs.then(|| arrays.next(&source.show(), positions));
        write::member(out, "logprobs", &logprobs);
    }
}

/// A piece of a call in the form of `functions`, which has neither index nor id.
fn function_call(out: &mut Vec<u8>, piece: &ReplyPiece) {
    write::raw(out, ",\"function_call\":{");
    match piece {
        ReplyPiece::Call { name, .. } => {
            write::raw(out, "\"name\":");
            write::string(out, name);
            write::raw(out, ",\"arguments\":\"\"}");
        }
        ReplyPiece::Arguments { text, .. } => {
            write::raw(out, "\"arguments\":");
            write::string(out, text);
            write::raw(out, "}");
        }
        _ => write::raw(out, "}"),
    }
}

fn content_of(piece: &ReplyPiece) -> &str {
    match piece {
        ReplyPiece::Content(text) | ReplyPiece::ReasoningWasAnswer(text) => text,
        _ => "",
    }
}

fn reasoning_of(piece: &ReplyPiece) -> &str {
    if let ReplyPiece::Reasoning(text) = piece { text } else { "" }
}
