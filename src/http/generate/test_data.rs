//! The embedded model's tokenizer for the tests of this module.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use perigee_engine::EngineEvent;
use perigee_engine::scheduler::FinishReason;
use perigee_text::{ReplyFormat, ReplyParser, ReplyStart, Tokenizer};

use super::TokenStream;
use super::reply::{Replies, Reply, ReplySetup};
use super::request::EncodedPrompt;

/// A vocabulary that has every marker.
pub(crate) fn nano_tokenizer() -> Tokenizer {
    let file = |name: &str| match name {
        "tiktoken.model" => Some(include_bytes!("../../nano/model/tiktoken.model").to_vec()),
        "tokenizer_config.json" => Some(include_bytes!("../../nano/model/tokenizer_config.json").to_vec()),
        _ => None,
    };
    Tokenizer::load(&file).unwrap()
}

/// A stream whose events are all there.
pub(super) struct Given(pub(super) VecDeque<EngineEvent>);

impl TokenStream for Given {
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Option<EngineEvent>> {
        Poll::Ready(self.0.pop_front())
    }

    fn stop_after(self: Box<Self>, _: usize) {}
}

/// A conversation's reply of these tokens, which ends its turn.
pub(crate) fn spoken(tokenizer: &Arc<Tokenizer>, format: ReplyFormat, tokens: &[u32]) -> Replies {
    let events = tokens.iter().map(|&id| EngineEvent::Token { id, logprobs: None });
    let events = events.chain([EngineEvent::Finished(FinishReason::Stopped)]).collect();
    let setup = ReplySetup {
        tokenizer: Arc::clone(tokenizer),
        parser: Some(ReplyParser::new(Arc::new(format), ReplyStart::Answer)),
        one_call: false,
        skip_special_tokens: true,
        stop: &[],
        stop_patterns: None,
        inline_reasoning: false,
        include_stop: false,
        own_stop_ids: Vec::new(),
        stop_ids: Vec::new(),
        min_tokens: 0,
        wants_prompt_logprobs: false,
        echo: false,
        request_timeout_s: 1.0,
        strict_finish_reasons: false,
    };
    let prompt = EncodedPrompt {
        tokens: Arc::from([]),
        text: String::new(),
        start: ReplyStart::Answer,
        num_calls: 0,
        images: Vec::new(),
    };
    Replies::new(vec![Reply::new(setup, Box::new(Given(events)))], vec![prompt], 1, None, Instant::now())
}
