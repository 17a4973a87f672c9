//! What the walk is given: prompts and wishes, checked where they entered.

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value};

use super::Budget;
use super::GuardChoice;
use crate::grammar::GrammarSpec;
use crate::sampling::SamplingParams;
use crate::text::{ReplyStart, StopPatterns};

/// One prompt, in any of the forms a client may send.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// Text, tokenized without markers: `<|im_end|>` in it is eight characters of text.
    Text(String),
    /// Token ids, taken as they are: nothing is added or re-encoded.
    Tokens(Vec<u32>),
    /// A conversation for the chat template.
    Chat(ChatPrompt),
}

/// A conversation and how to render it.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatPrompt {
    /// OpenAI message objects, checked.
    pub messages: Vec<Value>,
    /// Declared tools in OpenAI form, checked.
    pub tools: Vec<Value>,
    /// Whether the assistant's turn is opened at the end.
    pub add_generation_prompt: bool,
    /// The last message is an unfinished assistant turn, which the reply continues.
    pub continue_final_message: bool,
    /// Variables for the template (`chat_template_kwargs`).
    pub kwargs: Option<Map<String, Value>>,
}

/// How replies to a conversation are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChatReply {
    /// Whether calls are wanted.
    pub calls: Calls,
    /// More than one call is wanted.
    pub parallel_calls: bool,
    /// The request's reasoning budget.
    pub budget: Option<Budget>,
    /// Reasoning stands in the content, between its markers.
    pub inline_reasoning: bool,
}

/// Whether a conversation's replies may call tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// Tools are declared.
    Wanted,
    /// No tools are declared, or they must not be called: the model is kept from it, and what looks like a call is taken out of the reply.
    Forbidden,
}

/// Which end of a prompt that is too long stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TruncateSide {
    /// The beginning is cut off.
    Left,
    /// The end is cut off.
    Right,
}

/// `truncate_prompt_tokens`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncate {
    /// Most prompt tokens kept; `None` = as many as fit with the reply.
    pub keep: Option<u32>,
    /// What is cut off.
    pub side: TruncateSide,
}

/// A request whose every value was checked when it was made; only lengths remain to be checked against the context.
#[derive(Debug, Clone)]
pub struct GenerateRequest {
    /// At least one.
    pub prompts: Vec<Prompt>,
    /// Replies per prompt, at least 1. Reply `i` draws with `sampling.seed + i`.
    pub n: u32,
    /// Sampling of every reply. `max_tokens` is filled in by the walk and `stop_token_ids` holds the request's own ones only.
    pub sampling: SamplingParams,
    /// Most reply tokens the client asked for: an error when they do not fit.
    pub max_tokens: Option<u32>,
    /// Most reply tokens when the client did not say: cut down to what fits. `None` = all that fits.
    pub default_max_tokens: Option<u32>,
    /// Go on through the end-of-turn tokens.
    pub ignore_eos: bool,
    /// Stop strings.
    pub stop: Vec<String>,
    /// Stop patterns.
    pub stop_patterns: Option<Arc<StopPatterns>>,
    /// Texts whose tokens must not stand in the reply.
    pub bad_words: Vec<String>,
    /// Leave the stop string (or stop token) in the text.
    pub include_stop: bool,
    /// Leave tokens with the special flag out of the text.
    pub skip_special_tokens: bool,
    /// What to do with a prompt that is too long.
    pub truncate: Option<Truncate>,
    /// Set for conversations: replies are taken apart into reasoning, answer and calls.
    pub chat: Option<ChatReply>,
    /// Whether the prompt's text is wanted back, so that a prompt of ids must be decoded.
    pub echo: bool,
    /// Lower runs first.
    pub priority: i32,
    /// Latest finish.
    pub deadline: Option<Instant>,
    /// Prefix-cache salt.
    pub cache_salt: Option<String>,
    /// What it says about being watched.
    pub guard: GuardChoice,
    /// What every reply must be; `None` = anything.
    pub grammar: Option<GrammarSpec>,
}

/// A prompt as the engine gets it.
#[derive(Debug, Clone, PartialEq)]
pub struct EncodedPrompt {
    /// Its ids.
    pub tokens: Arc<[u32]>,
    /// Its text, when `echo` was asked for; empty otherwise.
    pub text: String,
    /// What the reply begins with.
    pub start: ReplyStart,
    /// Tool calls in the conversation.
    pub num_calls: usize,
}
