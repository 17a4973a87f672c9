//! Replies under way: tokens become text, a conversation's text is parsed into pieces, stop strings
//! end the reply, and tokens are counted. Stop strings and patterns are searched for in the answer
//! only, because the reasoning and the arguments of a call may contain them.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::request::EncodedPrompt;
use super::stopping::Stops;
use super::timeline::Timeline;
use super::{GenerateError, TokenLogprobs, TokenStream};
use perigee_decoding::guard;
use perigee_engine::EngineEvent;
use perigee_engine::scheduler::FinishReason;
use perigee_text::{
    ArgumentsForm, Detokenizer, ReplyEnd, ReplyParser, ReplyPiece, StopOptions, StopPatterns, Tokenizer,
    WholeReply, markers,
};

/// The end of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// The model ended its turn.
    EndOfTurn,
    /// The model ended its turn with tool calls.
    ToolCalls,
    /// One of the request's own stop tokens.
    StopToken(u32),
    /// One of the request's stop strings or patterns.
    StopString(String),
    /// The token limit or the end of the context.
    Length,
    /// The reply repeated itself without end and was cut back to the text before the loop.
    Repetition {
        /// Whether the finish reason is `repetition`; otherwise the reply counts as cut off.
        strict: bool,
    },
}

impl Finish {
    /// Whether the reply was cut off before its own end.
    pub fn is_cut(&self) -> bool {
        matches!(self, Self::Length | Self::Repetition { .. })
    }
}

/// New content of one reply.
#[derive(Debug, Clone, PartialEq)]
pub enum ReplyPart {
    /// The prompt has been computed. Comes first, and only for a prompt that is echoed or scored.
    Prompt {
        /// One entry per prompt token from the second on; empty unless requested.
        logprobs: Vec<TokenLogprobs>,
    },
    /// Text that can be shown, and its tokens. Tokens that complete no text wait for the next part.
    Pieces {
        /// Never empty, except at the end of a reply whose last tokens have no text. Replies to
        /// plain prompts have content only.
        pieces: Vec<ReplyPiece>,
        /// Ids since the last part.
        tokens: Vec<u32>,
        /// Logprobs of `tokens`, if requested.
        logprobs: Vec<TokenLogprobs>,
        /// Per logprob, whether its token belongs to the answer: not to reasoning, a call or a
        /// marker.
        in_answer: Vec<bool>,
    },
    /// The reply is complete.
    Finished(Finish),
}

/// A part and the reply it belongs to.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplyEvent {
    /// Index over prompts and copies, prompt-major.
    pub choice: usize,
    /// The new content.
    pub part: ReplyPart,
}

/// Token counts of a whole request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, each prompt once however many copies it has.
    pub prompt_tokens: usize,
    /// Reply tokens over all replies, end tokens included.
    pub completion_tokens: usize,
    /// Prompt tokens that stand for images; part of `prompt_tokens`.
    pub image_tokens: usize,
    /// Prompt tokens that came from the prefix cache.
    pub cached_tokens: usize,
    /// Prompt tokens added to the prefix cache by this request.
    pub cache_written_tokens: usize,
    /// Reply tokens inside the reasoning, over all replies.
    pub reasoning_tokens: usize,
    /// Drafted tokens of the replies that have ended, accepted and rejected; `None` if there were
    /// none.
    pub drafted: Option<(usize, usize)>,
    /// Calls that have ended, by [`ArgumentsForm`], over all replies.
    pub calls: [usize; ArgumentsForm::ALL.len()],
}

/// A whole reply, for answers that are not streamed.
#[derive(Debug, Clone, PartialEq)]
pub struct FullReply {
    /// Reasoning, answer and calls.
    pub said: WholeReply,
    /// All tokens of the reply.
    pub tokens: Vec<u32>,
    /// Logprobs of `tokens`, if requested.
    pub logprobs: Vec<TokenLogprobs>,
    /// Per logprob, whether its token belongs to the answer.
    pub in_answer: Vec<bool>,
    /// Logprobs of the prompt from its second token on, if requested.
    pub prompt_logprobs: Vec<TokenLogprobs>,
    /// What became of the arguments of the calls.
    pub forms: Vec<ArgumentsForm>,
    /// How the reply ended.
    pub finish: Finish,
}

/// The part of a request that its replies depend on.
pub(super) struct ReplySetup<'a> {
    pub(super) tokenizer: Arc<Tokenizer>,
    /// For conversations.
    pub(super) parser: Option<ReplyParser>,
    /// The reply ends with its first call.
    pub(super) one_call: bool,
    pub(super) skip_special_tokens: bool,
    pub(super) stop: &'a [String],
    pub(super) stop_patterns: Option<Arc<StopPatterns>>,
    /// Reasoning stands in the content, between its markers.
    pub(super) inline_reasoning: bool,
    pub(super) include_stop: bool,
    /// Stop tokens the request named itself: reported as the stop reason.
    pub(super) own_stop_ids: Vec<u32>,
    /// All stop tokens, ascending.
    pub(super) stop_ids: Vec<u32>,
    pub(super) min_tokens: u32,
    pub(super) wants_prompt_logprobs: bool,
    pub(super) echo: bool,
    pub(super) request_timeout_s: f64,
    pub(super) strict_finish_reasons: bool,
}

/// One reply under way.
pub(super) struct Reply {
    /// `None` once the reply has ended.
    stream: Option<Box<dyn TokenStream>>,
    detokenizer: Detokenizer,
    parser: Option<ReplyParser>,
    one_call: bool,
    stops: Stops,
    /// Whether reasoning goes into the content, and if so, whether a marker stands open there.
    inline: Option<bool>,
    own_stop_ids: Vec<u32>,
    stop_ids: Vec<u32>,
    include_stop: bool,
    request_timeout_s: f64,
    strict_finish_reasons: bool,
    /// What the guard reported.
    guard_events: Vec<guard::Event>,
    /// Set until the prompt's part has been given.
    prompt_part: bool,
    prompt_logprobs: Vec<TokenLogprobs>,
    /// Tokens whose text is still held back, and their logprobs.
    tokens: Vec<u32>,
    logprobs: Vec<TokenLogprobs>,
    in_answer: Vec<bool>,
    /// Parts that are ready.
    ready: VecDeque<ReplyPart>,
    cached_tokens: usize,
    /// Drafted tokens, accepted and rejected.
    drafted: Option<(usize, usize)>,
    num_tokens: usize,
    timeline: Timeline,
}

impl Reply {
    pub(super) fn new(setup: ReplySetup<'_>, stream: Box<dyn TokenStream>) -> Self {
        let options = StopOptions { include_stop: setup.include_stop, min_tokens: setup.min_tokens };
        Self {
            stream: Some(stream),
            detokenizer: Detokenizer::new(setup.tokenizer, setup.skip_special_tokens),
            parser: setup.parser,
            one_call: setup.one_call,
            stops: Stops::new(setup.stop, setup.stop_patterns, options),
            inline: setup.inline_reasoning.then_some(false),
            own_stop_ids: setup.own_stop_ids,
            stop_ids: setup.stop_ids,
            include_stop: setup.include_stop,
            request_timeout_s: setup.request_timeout_s,
            strict_finish_reasons: setup.strict_finish_reasons,
            guard_events: Vec::new(),
            prompt_part: setup.echo || setup.wants_prompt_logprobs,
            prompt_logprobs: Vec::new(),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            in_answer: Vec::new(),
            ready: VecDeque::new(),
            cached_tokens: 0,
            drafted: None,
            num_tokens: 0,
            timeline: Timeline::begin(),
        }
    }

    /// The next part; `None` after `Finished`.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ReplyPart, GenerateError>>> {
        loop {
            if let Some(part) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(part)));
            }
            let Some(stream) = &mut self.stream else { return Poll::Ready(None) };
            let result = match stream.poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => Err(GenerateError::EngineGone),
                Poll::Ready(Some(event)) => self.take(event),
            };
            if let Err(error) = result {
                self.timeline.ended = Some(Instant::now());
                self.stream = None;
                return Poll::Ready(Some(Err(error)));
            }
        }
    }

    fn take(&mut self, event: EngineEvent) -> Result<(), GenerateError> {
        match event {
            EngineEvent::Started { cached_tokens } => {
                self.timeline.admitted = Some(Instant::now());
                self.cached_tokens = cached_tokens;
            }
            EngineEvent::PromptLogprobs(logprobs) => self.prompt_logprobs.push(logprobs),
            EngineEvent::Token { id, logprobs } => self.token(id, logprobs),
            EngineEvent::Guard(event) => {
                self.timeline.found(&event);
                self.guard_events.push(*event);
            }
            EngineEvent::Speculated { accepted, rejected } => self.drafted = Some((accepted, rejected)),
            EngineEvent::Finished(reason) => return self.finished(reason),
        }
        Ok(())
    }

    fn token(&mut self, id: u32, logprobs: Option<TokenLogprobs>) {
        self.give_prompt_part();
        if self.num_tokens == 0 {
            self.timeline.first_token = Some(Instant::now());
        }
        self.num_tokens += 1;
        // The text of a stop token is shown only on request.
        let hidden = !self.include_stop && self.stop_ids.binary_search(&id).is_ok();
        self.tokens.push(id);
        if let Some(logprobs) = logprobs {
            let in_answer =
                self.parser.as_ref().is_none_or(|parser| parser.in_answer() && !parser.is_marker(id));
            self.in_answer.push(in_answer && !hidden);
            self.logprobs.push(logprobs);
        }
        let mut pieces = Vec::new();
        match &mut self.parser {
            None => {
                let text = if hidden { "" } else { self.detokenizer.push(id) };
                pieces.push(ReplyPiece::Content(text.to_owned()));
            }
            Some(parser) => {
                // An incomplete character before a marker stays one.
                let text = match () {
                    () if parser.is_marker(id) => self.detokenizer.finish(),
                    () if hidden => "",
                    () => self.detokenizer.push(id),
                };
                parser.push(id, text, &mut pieces);
            }
        }
        let (pieces, found) = self.stop_in_content(pieces, Stops::push);
        if !pieces.is_empty() {
            self.give_pieces(pieces);
        }
        if let Some(found) = found {
            self.end_here(Finish::StopString(found));
        } else if self.one_call
            && self.parser.as_ref().is_some_and(|parser| !parser.closed_calls().is_empty())
        {
            let called = self.parser.as_ref().is_some_and(|parser| parser.num_calls() > 0);
            if called {
                self.end_here(Finish::ToolCalls);
            }
        }
    }

    /// Ends the reply after the last token and discards any later tokens of the engine.
    fn end_here(&mut self, finish: Finish) {
        self.give_rest(Vec::new());
        self.timeline.ended = Some(Instant::now());
        self.ready.push_back(ReplyPart::Finished(finish));
        if let Some(stream) = self.stream.take() {
            stream.stop_after(self.num_tokens);
        }
    }

    /// Passes the content among one token's pieces through the stop strings. Returns the pieces to
    /// show and a stop string that was found. Held-back content precedes a call.
    fn stop_in_content(
        &mut self,
        pieces: Vec<ReplyPiece>,
        take: fn(&mut Stops, &str, &mut String) -> Option<String>,
    ) -> (Vec<ReplyPiece>, Option<String>) {
        let (mut content, mut others) = (String::new(), Vec::new());
        for piece in pieces {
            match piece {
                ReplyPiece::Content(text) => content.push_str(&text),
                ReplyPiece::AnswerWasReasoning => {
                    // What waits for the rest of a stop string is reasoning too.
                    let mut before = String::new();
                    take(&mut self.stops, &std::mem::take(&mut content), &mut before);
                    self.stops.finish("", &mut before);
                    others.extend((!before.is_empty()).then_some(ReplyPiece::Content(before)));
                    others.push(ReplyPiece::AnswerWasReasoning);
                }
                other => others.push(other),
            }
        }
        let mut shown = String::new();
        let found = take(&mut self.stops, &content, &mut shown);
        if found.is_some() {
            others.retain(|piece| matches!(piece, ReplyPiece::Reasoning(_)));
        } else if others.iter().any(|piece| matches!(piece, ReplyPiece::Call { .. })) {
            self.stops.finish("", &mut shown);
        }
        if !shown.is_empty() {
            let reasons =
                |piece: &ReplyPiece| !matches!(piece, ReplyPiece::Call { .. } | ReplyPiece::Arguments { .. });
            let after_reasoning = others.iter().take_while(|piece| reasons(piece)).count();
            others.insert(after_reasoning, ReplyPiece::Content(shown));
        }
        (others, found)
    }

    fn finished(&mut self, reason: FinishReason) -> Result<(), GenerateError> {
        let finish = match reason {
            FinishReason::StopToken(id) if self.own_stop_ids.contains(&id) => Finish::StopToken(id),
            FinishReason::StopToken(_) | FinishReason::Stopped => Finish::EndOfTurn,
            FinishReason::Length => Finish::Length,
            FinishReason::Repetition => Finish::Repetition { strict: self.strict_finish_reasons },
            FinishReason::NumericFault(_) => return Err(GenerateError::NumericFault),
            FinishReason::Deadline => {
                return Err(GenerateError::Deadline { limit_s: self.request_timeout_s });
            }
            FinishReason::Aborted => return Err(GenerateError::Aborted),
            FinishReason::Error => return Err(GenerateError::EngineFailed),
        };
        self.give_prompt_part();
        self.stream = None;
        let mut pieces = Vec::new();
        let rest = self.detokenizer.finish();
        match &mut self.parser {
            None => pieces.push(ReplyPiece::Content(rest.to_owned())),
            Some(parser) => {
                parser.push_text(rest, &mut pieces);
                parser.finish(if finish.is_cut() { ReplyEnd::Cut } else { ReplyEnd::Turn }, &mut pieces);
            }
        }
        let (pieces, found) = self.stop_in_content(pieces, Stops::finish);
        self.give_rest(pieces);
        let called = self.parser.as_ref().is_some_and(|parser| parser.num_calls() > 0);
        let finish = match found {
            Some(found) => Finish::StopString(found),
            None if called && matches!(finish, Finish::EndOfTurn | Finish::StopToken(_)) => Finish::ToolCalls,
            None => finish,
        };
        self.timeline.ended = Some(Instant::now());
        self.ready.push_back(ReplyPart::Finished(finish));
        Ok(())
    }

    fn give_prompt_part(&mut self) {
        if std::mem::take(&mut self.prompt_part) {
            let logprobs = std::mem::take(&mut self.prompt_logprobs);
            self.ready.push_back(ReplyPart::Prompt { logprobs });
        }
    }

    fn give_pieces(&mut self, pieces: Vec<ReplyPiece>) {
        self.timeline.said(&pieces);
        let pieces = self.inlined(pieces);
        self.ready.push_back(ReplyPart::Pieces {
            pieces,
            tokens: std::mem::take(&mut self.tokens),
            logprobs: std::mem::take(&mut self.logprobs),
            in_answer: std::mem::take(&mut self.in_answer),
        });
    }

    /// Turns reasoning pieces into content between markers, if the request asks for it.
    fn inlined(&mut self, pieces: Vec<ReplyPiece>) -> Vec<ReplyPiece> {
        let Some(mut open) = self.inline else { return pieces };
        let mut inlined = Vec::with_capacity(pieces.len() + 1);
        for piece in pieces {
            if matches!(piece, ReplyPiece::AnswerWasReasoning) {
                inlined.push(ReplyPiece::Content(markers::THINK_END.to_owned()));
                continue;
            }
            // It stands there already.
            if matches!(piece, ReplyPiece::ReasoningWasAnswer(_)) {
                continue;
            }
            let reasons = matches!(piece, ReplyPiece::Reasoning(_));
            if reasons != open {
                let marker = if reasons { markers::THINK } else { markers::THINK_END };
                inlined.push(ReplyPiece::Content(marker.to_owned()));
                open = reasons;
            }
            inlined.push(match piece {
                ReplyPiece::Reasoning(text) => ReplyPiece::Content(text),
                other => other,
            });
        }
        self.inline = Some(open);
        inlined
    }

    /// Emits the remaining pieces when the reply ends, or the remaining tokens if they became none.
    fn give_rest(&mut self, pieces: Vec<ReplyPiece>) {
        if !pieces.is_empty() || !self.tokens.is_empty() {
            self.give_pieces(pieces);
        }
    }

    fn forms(&self) -> &[ArgumentsForm] {
        self.parser.as_ref().map_or(&[], ReplyParser::closed_calls)
    }

    fn reasoning_tokens(&self) -> usize {
        self.parser.as_ref().map_or(0, ReplyParser::reasoning_tokens)
    }
}

/// All replies of one request, merged in order of arrival.
pub struct Replies {
    replies: Vec<Reply>,
    prompts: Vec<EncodedPrompt>,
    copies: usize,
    /// Tokens per block of the prefix cache, if there is one.
    cache_block: Option<usize>,
    /// Index of the reply that the next poll begins with, so that no reply starves the others.
    turn: usize,
    /// Number of replies that have not ended.
    open: usize,
    arrived: Instant,
    /// Places of the rules in the request's schemas that the replies need not meet.
    not_enforced: Vec<String>,
}

impl Replies {
    pub(super) fn new(
        replies: Vec<Reply>,
        prompts: Vec<EncodedPrompt>,
        copies: usize,
        cache_block: Option<usize>,
        arrived: Instant,
    ) -> Self {
        let open = replies.len();
        Self { replies, prompts, copies, cache_block, turn: 0, open, arrived, not_enforced: Vec::new() }
    }

    /// Names rules of the request's schemas that are not enforced.
    pub(super) fn without_rules(self, not_enforced: Vec<String>) -> Self {
        Self { not_enforced, ..self }
    }

    /// Places of the rules in the request's schemas that the replies need not meet: the field and
    /// keywords, joined by dots.
    pub fn not_enforced(&self) -> &[String] {
        &self.not_enforced
    }

    /// The next event of any reply; `None` when all have ended. An error ends the request: the other replies are aborted.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ReplyEvent, GenerateError>>> {
        if self.open == 0 {
            return Poll::Ready(None);
        }
        let count = self.replies.len();
        for step in 0..count {
            let choice = (self.turn + step) % count;
            match self.replies[choice].poll_next(cx) {
                Poll::Pending | Poll::Ready(None) => {}
                Poll::Ready(Some(Err(error))) => {
                    self.open = 0;
                    self.replies.iter_mut().for_each(|r| r.stream = None);
                    return Poll::Ready(Some(Err(error)));
                }
                Poll::Ready(Some(Ok(part))) => {
                    self.turn = choice + 1;
                    if let ReplyPart::Finished(_) = part {
                        self.open -= 1;
                    }
                    return Poll::Ready(Some(Ok(ReplyEvent { choice, part })));
                }
            }
        }
        Poll::Pending
    }

    /// The next event of any reply; `None` when all have ended.
    pub async fn next(&mut self) -> Option<Result<ReplyEvent, GenerateError>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Waits for all replies. Dropping the future and `self` aborts the sequences.
    pub async fn collect(&mut self) -> Result<Vec<FullReply>, GenerateError> {
        let mut full: Vec<FullReply> = self
            .replies
            .iter()
            .map(|_| FullReply {
                said: WholeReply::default(),
                tokens: Vec::new(),
                logprobs: Vec::new(),
                in_answer: Vec::new(),
                prompt_logprobs: Vec::new(),
                forms: Vec::new(),
                finish: Finish::Length,
            })
            .collect();
        while let Some(event) = self.next().await {
            let ReplyEvent { choice, part } = event?;
            let reply = &mut full[choice];
            match part {
                ReplyPart::Prompt { logprobs } => reply.prompt_logprobs = logprobs,
                ReplyPart::Pieces { pieces, tokens, logprobs, in_answer } => {
                    if pieces.contains(&ReplyPiece::AnswerWasReasoning) {
                        reply.in_answer.fill(false);
                    }
                    pieces.into_iter().for_each(|piece| reply.said.add(piece));
                    reply.tokens.extend(tokens);
                    reply.logprobs.extend(logprobs);
                    reply.in_answer.extend(in_answer);
                }
                ReplyPart::Finished(finish) => reply.finish = finish,
            }
        }
        // Empty reasoning differs from no reasoning.
        for (reply, full) in self.replies.iter().zip(&mut full) {
            full.forms = reply.forms().to_vec();
            if reply.inline.is_none() && reply.parser.as_ref().is_some_and(ReplyParser::has_reasoning) {
                full.said.reasoning.get_or_insert_default();
            }
        }
        Ok(full)
    }

    /// Number of replies.
    pub fn num_choices(&self) -> usize {
        self.replies.len()
    }

    /// The prompt of a reply.
    pub fn prompt(&self, choice: usize) -> &EncodedPrompt {
        &self.prompts[choice / self.copies]
    }

    /// Findings of the guard in a reply so far.
    pub fn guard_events(&self, choice: usize) -> &[guard::Event] {
        &self.replies[choice].guard_events
    }

    /// What became of the arguments of the calls in a reply so far.
    pub fn forms(&self, choice: usize) -> &[ArgumentsForm] {
        self.replies[choice].forms()
    }

    /// Token counts so far.
    pub fn usage(&self) -> Usage {
        let firsts = || self.replies.iter().step_by(self.copies);
        // Whole blocks are cached; the blocks that were not cached before are now.
        let written = |(prompt, reply): (&EncodedPrompt, &Reply)| {
            let shareable = self.cache_block.map_or(0, |block| prompt.tokens.len() / block * block);
            shareable.saturating_sub(reply.cached_tokens)
        };
        Usage {
            prompt_tokens: self.prompts.iter().map(|p| p.tokens.len()).sum(),
            image_tokens: self.prompts.iter().map(EncodedPrompt::image_tokens).sum(),
            completion_tokens: self.replies.iter().map(|r| r.num_tokens).sum(),
            cached_tokens: firsts().map(|r| r.cached_tokens).sum(),
            cache_written_tokens: self.prompts.iter().zip(firsts()).map(written).sum(),
            reasoning_tokens: self.replies.iter().map(Reply::reasoning_tokens).sum(),
            drafted: self.replies.iter().filter_map(|r| r.drafted).reduce(|a, b| (a.0 + b.0, a.1 + b.1)),
            calls: ArgumentsForm::ALL.map(|form| {
                self.replies.iter().flat_map(Reply::forms).filter(|found| **found == form).count()
            }),
        }
    }

    /// When things happened to each reply so far, the first `most` of them.
    pub fn timelines(&self, most: usize) -> Vec<Timeline> {
        let of = |reply: &Reply| Timeline {
            cached_tokens: reply.cached_tokens,
            tokens: reply.num_tokens,
            ..reply.timeline.clone()
        };
        self.replies.iter().take(most).map(of).collect()
    }

    /// Time from the request's arrival at the walk to the first token of any reply.
    pub fn time_to_first_token(&self) -> Option<Duration> {
        self.replies.iter().filter_map(|r| r.timeline.first_token).min().map(|t| t - self.arrived)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::super::test_data::{Given, nano_tokenizer};
    use super::*;
    use perigee_text::{ReplyFormat, ReplyStart, Specials};

    /// The parts of a conversation's reply that says `text` and ends for `reason`.
    fn parts(text: &str, reason: FinishReason, own_stop_ids: &[&str]) -> Vec<ReplyPart> {
        let tokenizer = nano_tokenizer();
        let ids = tokenizer.encode(text, Specials::Recognised).unwrap();
        let events = ids.into_iter().map(|id| EngineEvent::Token { id, logprobs: None });
        let events = events.chain([EngineEvent::Finished(reason)]).collect();
        let parser = ReplyParser::new(Arc::new(ReplyFormat::of_tokens(&tokenizer, true)), ReplyStart::Answer);
        let setup = ReplySetup {
            own_stop_ids: own_stop_ids.iter().filter_map(|name| tokenizer.special_id(name)).collect(),
            stop_ids: tokenizer.special_id(markers::IM_END).into_iter().collect(),
            tokenizer: Arc::new(tokenizer),
            parser: Some(parser),
            one_call: false,
            skip_special_tokens: true,
            stop: &[],
            stop_patterns: None,
            inline_reasoning: false,
            include_stop: false,
            min_tokens: 0,
            wants_prompt_logprobs: false,
            echo: false,
            request_timeout_s: 1.0,
            strict_finish_reasons: false,
        };
        let mut reply = Reply::new(setup, Box::new(Given(events)));
        let mut cx = Context::from_waker(Waker::noop());
        std::iter::from_fn(|| match reply.poll_next(&mut cx) {
            Poll::Ready(part) => part.map(Result::unwrap),
            Poll::Pending => panic!("every event is there"),
        })
        .collect()
    }

    #[test]
    fn a_cut_in_the_id_of_a_call_makes_no_call() {
        let text = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0";
        for (reason, calls) in
            [(FinishReason::Length, 0), (FinishReason::Repetition, 0), (FinishReason::StopToken(0), 1)]
        {
            let parts = parts(text, reason, &[]);
            let pieces = parts.iter().flat_map(|part| match part {
                ReplyPart::Pieces { pieces, .. } => &pieces[..],
                _ => &[],
            });
            let found = pieces.filter(|piece| matches!(piece, ReplyPiece::Call { .. })).count();
            assert_eq!(found, calls, "{reason:?}: {parts:?}");
            let Some(ReplyPart::Finished(finish)) = parts.last() else { panic!("{parts:?}") };
            assert_eq!(finish.is_cut(), calls == 0, "{reason:?}: {finish:?}");
        }
    }

    /// Regression: the finish reason was `stop` where the request named the end of the turn among
    /// its own stop tokens.
    #[test]
    fn a_turn_with_calls_ends_as_one_whichever_token_ends_it() {
        let call = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}\
            <|tool_call_end|><|tool_calls_section_end|>";
        let end = nano_tokenizer().special_id(markers::IM_END).unwrap();
        for (text, own, expected) in [
            (call, &[] as &[&str], Finish::ToolCalls),
            (call, &[markers::IM_END], Finish::ToolCalls),
            ("Hello", &[markers::IM_END], Finish::StopToken(end)),
            ("Hello", &[], Finish::EndOfTurn),
        ] {
            let text = format!("{text}{}", markers::IM_END);
            let parts = parts(&text, FinishReason::StopToken(end), own);
            let Some(ReplyPart::Finished(finish)) = parts.last() else { panic!("{parts:?}") };
            assert_eq!(*finish, expected, "{text} {own:?}");
        }
    }
}
