//! From the operator's settings and a request's choices to the guard of each reply.

use std::sync::Arc;

use perigee_decoding::guard::{Config, Licence, Markers, Mode, Options, PatternRule, Roles, Vocabulary};
use perigee_text::{Specials, Tokenizer, markers};

/// A request's choices about its guard; absent ones fall back to the operator's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuardChoice {
    /// Response to a loop.
    pub mode: Option<Mode>,
    /// Rescues per reply.
    pub max_rescues: Option<u32>,
    /// Most tokens held back.
    pub hold_tokens: Option<u32>,
    /// The request's own `repetition_detection` rule.
    pub pattern: Option<PatternRule>,
}

/// Guard settings and vocabulary facts shared by all replies of one model.
#[derive(Clone)]
pub struct GuardPlan {
    config: Config,
    vocabulary: Arc<Vocabulary>,
    markers: Markers,
    roles: Roles,
    padding: Option<u32>,
    close_thinking: Arc<[u32]>,
    tokenizer: Arc<Tokenizer>,
}

impl GuardPlan {
    /// Computes the facts of every token once, for all replies.
    pub fn new(config: Config, tokenizer: Arc<Tokenizer>) -> Self {
        // Control tokens have no text, so no word or line continues through them.
        let text = |id| match tokenizer.is_added(id) {
            true => &[][..],
            false => tokenizer.token_bytes(id).unwrap_or_default(),
        };
        let vocabulary = Arc::new(Vocabulary::new((0..tokenizer.vocab_size() as u32).map(text)));
        let id = |name| tokenizer.special_id(name);
        let markers = Markers {
            think: id(markers::THINK),
            think_end: id(markers::THINK_END),
            tools: id(markers::TOOL_CALLS_SECTION_BEGIN),
            tools_end: id(markers::TOOL_CALLS_SECTION_END),
        };
        let encode = |text: &str| tokenizer.encode(text, Specials::AsText);
        let roles = Roles {
            user: id(markers::IM_USER),
            assistant: id(markers::IM_ASSISTANT),
            system: id(markers::IM_SYSTEM),
            instructions: encode("system").unwrap_or_default(),
            middle: id(markers::IM_MIDDLE),
            end: id(markers::IM_END),
        };
        let padding = id(markers::PAD);
        let close_thinking = closing(&config, &tokenizer);
        Self { config, vocabulary, markers, roles, padding, close_thinking, tokenizer }
    }

    /// The same with other settings.
    pub fn with_config(&self, config: Config) -> Self {
        Self { close_thinking: closing(&config, &self.tokenizer), config, ..self.clone() }
    }

    /// The operator's settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The guard of a reply to `prompt`; `None` if no check is on. A request with `ignore_eos` asks
    /// for tokens rather than an answer: loops are left alone unless the request chooses a mode.
    /// `structured`: the reply is under a grammar.
    pub fn options(
        &self,
        choice: &GuardChoice,
        prompt: &Arc<[u32]>,
        ignore_eos: bool,
        structured: bool,
    ) -> Option<Options> {
        let usual = match self.config.mode {
            Mode::Stop | Mode::Rescue if ignore_eos => Mode::Warn,
            mode => mode,
        };
        let mode = match choice.mode.unwrap_or(usual) {
            // A pattern rule of the request stops the reply by itself; no other check is on.
            Mode::Off if choice.pattern.is_none() => return None,
            Mode::Off => Mode::Warn,
            mode => mode,
        };
        let licence = Licence::new(self.vocabulary.clone(), self.roles.clone(), prompt.clone());
        Some(Options {
            mode,
            hold_tokens: choice.hold_tokens.unwrap_or(self.config.hold_tokens),
            max_rescues: choice.max_rescues.unwrap_or(self.config.max_rescues),
            ban_tokens: self.config.ban_tokens,
            pattern: choice.pattern,
            vocabulary: self.vocabulary.clone(),
            markers: self.markers,
            padding: self.padding,
            starts_thinking: self.opens_thought(prompt),
            structured,
            close_thinking: self.close_thinking.clone(),
            licence: Some(Arc::new(licence)),
        })
    }

    /// Whether the last thinking marker in the prompt's last turn opens a thought.
    fn opens_thought(&self, prompt: &[u32]) -> bool {
        let Some(think) = self.markers.think else { return false };
        let last = prompt.iter().rev().find(|id| self.tokenizer.is_added(**id));
        last == Some(&think)
    }
}

/// Tokens that end a thought in the operator's words; none where the model has no such marker.
fn closing(config: &Config, tokenizer: &Tokenizer) -> Arc<[u32]> {
    let words = tokenizer.encode(&config.close_thinking_text, Specials::AsText);
    match (words, tokenizer.special_id(markers::THINK_END)) {
        (Ok(mut words), Some(end)) if !words.is_empty() => {
            words.push(end);
            words.into()
        }
        _ => [].into(),
    }
}
