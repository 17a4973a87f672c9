//! From the operator's and a request's wishes to the guard of each reply.

use std::sync::Arc;

use super::licence::PromptLicence;
use crate::guard::{Config, Markers, Mode, Options, PatternRule, TokenShapes};
use crate::text::{Specials, Tokenizer, markers};

/// What a request says about its guard; the rest is the operator's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuardChoice {
    /// Another mode.
    pub mode: Option<Mode>,
    /// Other limits.
    pub max_rescues: Option<u32>,
    /// Tokens held back at most.
    pub hold_tokens: Option<u32>,
    /// A rule of its own.
    pub pattern: Option<PatternRule>,
}

/// What all replies of one model share.
pub struct GuardPlan {
    config: Config,
    shapes: Arc<TokenShapes>,
    markers: Markers,
    padding: Option<u32>,
    close_thinking: Arc<[u32]>,
    tokenizer: Arc<Tokenizer>,
}

impl GuardPlan {
    /// From the switches and a vocabulary.
    pub fn new(config: Config, tokenizer: Arc<Tokenizer>) -> Self {
        // A control token is no text: nothing of a word or a line is in it.
        let text = |id| match tokenizer.is_added(id) {
            true => &[][..],
            false => tokenizer.token_bytes(id).unwrap_or_default(),
        };
        let shapes = Arc::new(TokenShapes::new((0..tokenizer.vocab_size() as u32).map(text)));
        let id = |name| tokenizer.special_id(name);
        let markers = Markers {
            think: id(markers::THINK),
            think_end: id(markers::THINK_END),
            tools: id(markers::TOOL_CALLS_SECTION_BEGIN),
            tools_end: id(markers::TOOL_CALLS_SECTION_END),
        };
        let words = tokenizer.encode(&config.close_thinking_text, Specials::AsText);
        let close_thinking = match (words, markers.think_end) {
            (Ok(mut words), Some(end)) if !words.is_empty() => {
                words.push(end);
                words.into()
            }
            _ => [].into(),
        };
        Self { config, shapes, markers, padding: id(markers::PAD), close_thinking, tokenizer }
    }

    /// The switches.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The guard of a reply to `prompt`; `None` if nothing is to be watched. With `ignore_eos` a request asks for tokens, not for an
    /// answer: then nothing is done about a loop unless the request says what. `structured`: the reply is held to a grammar.
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
            // Its own rule stops by itself; nothing else is done.
            Mode::Off if choice.pattern.is_none() => return None,
            Mode::Off => Mode::Warn,
            mode => mode,
        };
        Some(Options {
            mode,
            noisy: self.config.noisy_loops,
            novelty: self.config.low_novelty,
            hold_tokens: choice.hold_tokens.unwrap_or(self.config.hold_tokens),
            max_rescues: choice.max_rescues.unwrap_or(self.config.max_rescues),
            ban_tokens: self.config.ban_tokens,
            pattern: choice.pattern,
            shapes: self.shapes.clone(),
            markers: self.markers,
            padding: self.padding,
            starts_thinking: self.opens_thought(prompt),
            structured,
            close_thinking: self.close_thinking.clone(),
            licence: Some(Arc::new(PromptLicence::new(self.tokenizer.clone(), prompt.clone()))),
        })
    }

    /// Whether the last thinking marker of the prompt's last turn opens a thought.
    fn opens_thought(&self, prompt: &[u32]) -> bool {
        let Some(think) = self.markers.think else { return false };
        let last = prompt.iter().rev().find(|id| self.tokenizer.is_added(**id));
        last == Some(&think)
    }
}
