//! The input of the walk: prompts and options, validated where they entered.

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value};

use super::Budget;
use super::GuardChoice;
use super::sight::{ImageInput, PlacedImage};
use perigee_decoding::sampling::SamplingParams;
use perigee_engine::Share;
use perigee_text::grammar::GrammarSpec;
use perigee_text::{ReplyStart, StopPatterns};

/// One prompt, in any of the forms that clients send.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// Text, tokenized without markers: `<|im_end|>` in the text stays text.
    Text(String),
    /// Text that a chat template wrote elsewhere: `<|im_end|>` in the text is the token of this name.
    Rendered(String),
    /// Token ids, used as given: no token is added or re-encoded.
    Tokens(Vec<u32>),
    /// A conversation for the chat template.
    Chat(ChatPrompt),
}

impl Prompt {
    /// Reads names of special tokens in a text as these tokens.
    pub fn recognise_specials(&mut self) {
        if let Self::Text(text) = self {
            *self = Self::Rendered(std::mem::take(text));
        }
    }
}

/// A conversation and how to render it.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatPrompt {
    /// OpenAI message objects, checked.
    pub messages: Vec<Value>,
    /// Declared tools in OpenAI form, checked.
    pub tools: Vec<Value>,
    /// Whether the prompt ends with the header of an assistant turn.
    pub add_generation_prompt: bool,
    /// Whether the last message is an unfinished assistant turn, which the reply continues.
    pub continue_final_message: bool,
    /// Variables for the template (`chat_template_kwargs`).
    pub kwargs: Option<Map<String, Value>>,
    /// Images of the messages, in the order of their parts of type `image`.
    pub images: Vec<ImageInput>,
}

/// Reading of the replies to a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChatReply {
    /// Whether calls are wanted.
    pub calls: Calls,
    /// Whether a reply may hold more than one call.
    pub parallel_calls: bool,
    /// The reasoning budget; `None` falls back to the operator's.
    pub budget: Option<Budget>,
    /// Whether reasoning is given as content, between its markers.
    pub inline_reasoning: bool,
}

/// Whether a conversation's replies may call tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// Tools are declared.
    Wanted,
    /// No tools are declared, or calls are forbidden: the markers of calls are masked, and text
    /// that looks like a call is removed from the reply.
    Forbidden,
}

/// The end at which a prompt that is too long is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TruncateSide {
    /// Cut off the beginning.
    Left,
    /// Cut off the end.
    Right,
}

/// `truncate_prompt_tokens`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncate {
    /// Most prompt tokens kept; `None` = as many as fit with the reply.
    pub keep: Option<u32>,
    /// The end that is cut.
    pub side: TruncateSide,
}

/// A request whose values were validated when it was made; only lengths remain to be checked
/// against the context.
#[derive(Debug, Clone)]
pub struct GenerateRequest {
    /// At least one.
    pub prompts: Vec<Prompt>,
    /// Replies per prompt, at least 1. Reply `i` draws with `sampling.seed + i`.
    pub n: u32,
    /// Sampling of every reply. `max_tokens` is filled in by the walk and `stop_token_ids` holds the request's own ones only.
    pub sampling: SamplingParams,
    /// Most reply tokens that the client asked for; an error if they do not fit.
    pub max_tokens: Option<u32>,
    /// Most reply tokens if the client named no limit; reduced to what fits. `None` = all that
    /// fits.
    pub default_max_tokens: Option<u32>,
    /// Whether the reply continues past end-of-turn tokens.
    pub ignore_eos: bool,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    /// Regular expressions that end the answer.
    pub stop_patterns: Option<Arc<StopPatterns>>,
    /// Texts whose tokens must not stand in the reply.
    pub bad_words: Vec<String>,
    /// Whether the stop string (or stop token) stays in the text.
    pub include_stop: bool,
    /// Whether tokens with the special flag are left out of the text.
    pub skip_special_tokens: bool,
    /// Cut for a prompt that is too long; `None` refuses such a prompt.
    pub truncate: Option<Truncate>,
    /// Set for conversations: replies are parsed into reasoning, answer and calls.
    pub chat: Option<ChatReply>,
    /// Whether the answer includes the prompt's text; a prompt of ids is then decoded.
    pub echo: bool,
    /// Scheduling priority; lower values run first.
    pub priority: i32,
    /// The client's claim to service; `None` = no clients are told apart.
    pub share: Option<Share>,
    /// The instant at which the sequence is ended.
    pub deadline: Option<Instant>,
    /// Separates prefix-cache entries: prompts share blocks only under equal salts.
    pub cache_salt: Option<String>,
    /// Choices about the guard.
    pub guard: GuardChoice,
    /// Whether tokens are drafted.
    pub speculation: bool,
    /// A text that the replies are expected to repeat.
    pub prediction: Option<String>,
    /// The constraint on every reply; `None` = no constraint.
    pub grammar: Option<GrammarSpec>,
}

/// A prompt as the engine receives it.
#[derive(Debug, Clone, PartialEq)]
pub struct EncodedPrompt {
    /// Token ids of the prompt.
    pub tokens: Arc<[u32]>,
    /// Text of the prompt if `echo` is set; empty otherwise.
    pub text: String,
    /// The part that the reply begins in.
    pub start: ReplyStart,
    /// Tool calls in the conversation so far.
    pub num_calls: usize,
    /// Images among the tokens, in order.
    pub images: Vec<PlacedImage>,
}

impl EncodedPrompt {
    /// Tokens that stand for images.
    pub fn image_tokens(&self) -> usize {
        self.images.iter().map(|image| image.tokens).sum()
    }
}
