//! The reasoning of one served model: the switches its template offers to requests, and the rule
//! that ends reasoning in time.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::EncodedPrompt;
use perigee_decoding::sampling::BlockRule;
use perigee_text::grammar::Reasoning;
use perigee_text::{ChatTemplate, RenderOptions, ReplyStart, Tokenizer, markers};

/// Share of `max_tokens` reserved for the answer whatever the budget: one part in this many, and at
/// most the number of tokens below.
const ANSWER_SHARE: u32 = 4;
const MAX_ANSWER_TOKENS: u32 = 256;

/// The choices that requests have about a model's reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReasoningSwitch {
    /// Whether the model reasons at all.
    pub reasons: bool,
    /// Whether the template can switch reasoning off.
    pub can_disable: bool,
}

impl ReasoningSwitch {
    /// Probes the template itself by rendering, because a checkpoint may bring its own.
    pub fn of(template: &ChatTemplate, tokenizer: &Tokenizer) -> Self {
        let probe = [json!({"role": "user", "content": "Hi"})];
        let start = |thinking: bool| {
            let kwargs: Map<String, Value> = [("thinking".to_owned(), thinking.into())].into_iter().collect();
            let options = RenderOptions { kwargs: Some(&kwargs), ..RenderOptions::default() };
            template.render(&probe, &options).map(|prompt| prompt.reply_start()).unwrap_or_default()
        };
        let (on, off) = (start(true), start(false));
        let reasons = on == ReplyStart::Reasoning
            || (template.mentions(markers::THINK) && tokenizer.special_id(markers::THINK).is_some());
        Self { reasons, can_disable: !reasons || off == ReplyStart::Answer }
    }

    /// The reasoning that may precede a constrained answer to the prompt. `think` is the token that
    /// opens reasoning; a reply that does not begin a turn opens none itself.
    pub(super) fn before_answer(
        self,
        think: Option<u32>,
        prompt: &EncodedPrompt,
        begins_turn: bool,
    ) -> Reasoning {
        match prompt.start {
            _ if think.is_none() => Reasoning::None,
            ReplyStart::Reasoning => Reasoning::Open,
            _ if prompt.tokens.last().copied() == think => Reasoning::Open,
            ReplyStart::Open if begins_turn && self.reasons => Reasoning::Possible,
            _ => Reasoning::None,
        }
    }
}

/// The model's part of a [`BlockRule`].
#[derive(Clone, Debug)]
pub(super) struct ReasoningTokens {
    open: u32,
    close: u32,
    leave: Vec<u32>,
    promise: Vec<u32>,
    ends: Vec<u32>,
    blank: Arc<[u32]>,
}

impl ReasoningTokens {
    /// `None` for a vocabulary whose reasoning has no tokens of its own. `ends` are the ids that end a turn.
    pub(super) fn of(tokenizer: &Tokenizer, ends: &[u32]) -> Option<Self> {
        let ids = |names: &[&'static str]| -> Vec<u32> {
            names.iter().filter_map(|name| tokenizer.special_id(name)).collect()
        };
        // Markers without a meaning where no call is open.
        let stray =
            [markers::TOOL_CALLS_SECTION_END, markers::TOOL_CALL_ARGUMENT_BEGIN, markers::TOOL_CALL_END];
        let stray = ids(&stray);
        let (leave, promise) = (ids(&[markers::TOOL_CALL_BEGIN]), ids(&[markers::TOOL_CALLS_SECTION_BEGIN]));
        let is_blank = |id: &u32| {
            if leave.contains(id) || promise.contains(id) {
                return false;
            }
            let blank =
                tokenizer.token_bytes(*id).is_some_and(|bytes| bytes.iter().all(u8::is_ascii_whitespace));
            blank || tokenizer.is_special(*id) || stray.contains(id)
        };
        Some(Self {
            open: tokenizer.special_id(markers::THINK)?,
            close: tokenizer.special_id(markers::THINK_END)?,
            ends: ends.to_vec(),
            blank: (0..tokenizer.vocab_size() as u32).filter(is_blank).collect(),
            leave,
            promise,
        })
    }

    /// The rule for a reply of at most `max_tokens` tokens; its budget leaves room for an answer.
    pub(super) fn rule(
        &self,
        start: ReplyStart,
        budget: u32,
        max_tokens: u32,
        stop_ids: &[u32],
    ) -> BlockRule {
        let answer = (max_tokens / ANSWER_SHARE).clamp(1, MAX_ANSWER_TOKENS);
        let mut ends = self.ends.clone();
        ends.extend(stop_ids);
        ends.sort_unstable();
        ends.dedup();
        BlockRule {
            starts_inside: start == ReplyStart::Reasoning,
            open: self.open,
            close: self.close,
            leave: self.leave.clone(),
            promise: self.promise.clone(),
            max_tokens: budget.min(max_tokens.saturating_sub(answer + 1)),
            ends,
            blank: self.blank.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_data::nano_tokenizer;
    use super::*;

    #[test]
    fn templates_say_what_can_be_switched() {
        use perigee_text::Family;
        let tokenizer = nano_tokenizer();
        for (family, reasons, can_disable) in [
            (Family::K2Instruct, false, true),
            (Family::K2Thinking, true, false),
            (Family::K25, true, true),
            (Family::K26, true, true),
            (Family::K27Code, true, false),
        ] {
            let switch = ReasoningSwitch::of(&ChatTemplate::built_in(family, &tokenizer), &tokenizer);
            assert_eq!(switch, ReasoningSwitch { reasons, can_disable }, "{family:?}");
        }
        let own = include_str!("../../nano/model/chat_template.jinja");
        let template = ChatTemplate::from_jinja(own, &tokenizer).unwrap();
        let switch = ReasoningSwitch::of(&template, &tokenizer);
        assert_eq!(switch, ReasoningSwitch { reasons: true, can_disable: true });
    }

    /// Regression: only the built-in template of K2-Thinking left room for reasoning before a
    /// constrained answer, and checkpoints bring templates of their own.
    #[test]
    fn a_model_that_opens_its_reasoning_itself_may_do_so_before_a_constrained_answer() {
        let tokenizer = nano_tokenizer();
        let think = tokenizer.special_id(markers::THINK);
        let opens_itself = "{% for m in messages %}{% if m.role == 'assistant' %}<think></think>{% endif %}{{ m.content }}\
            {% endfor %}{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}";
        let template = ChatTemplate::from_jinja(opens_itself, &tokenizer).unwrap();
        let switch = ReasoningSwitch::of(&template, &tokenizer);
        assert!(switch.reasons);
        let never = ReasoningSwitch { reasons: false, can_disable: true };
        let prompt = |start, tokens: &[u32]| EncodedPrompt {
            tokens: tokens.into(),
            text: String::new(),
            start,
            num_calls: 0,
            images: Vec::new(),
        };
        let opened = [1, think.unwrap()];
        for (switch, start, tokens, begins_turn, expected) in [
            (switch, ReplyStart::Open, &[1][..], true, Reasoning::Possible),
            (switch, ReplyStart::Open, &[1], false, Reasoning::None),
            (switch, ReplyStart::Answer, &[1], true, Reasoning::None),
            (switch, ReplyStart::Reasoning, &[1], true, Reasoning::Open),
            (switch, ReplyStart::Open, &opened, false, Reasoning::Open),
            (never, ReplyStart::Open, &[1], true, Reasoning::None),
        ] {
            let found = switch.before_answer(think, &prompt(start, tokens), begins_turn);
            assert_eq!(found, expected, "{start:?} {tokens:?} {begins_turn}");
            assert_eq!(switch.before_answer(None, &prompt(start, tokens), begins_turn), Reasoning::None);
        }
    }

    #[test]
    fn the_answer_keeps_its_share() {
        let tokens = ReasoningTokens::of(&nano_tokenizer(), &[1]).unwrap();
        for (budget, max_tokens, expected) in
            [(64, 1000, 64), (64, 64, 47), (64, 8, 5), (64, 2, 0), (64, 0, 0), (u32::MAX, 10_000, 9_743)]
        {
            let rule = tokens.rule(ReplyStart::Reasoning, budget, max_tokens, &[7, 1]);
            assert_eq!(rule.max_tokens, expected, "{budget} of {max_tokens}");
            assert_eq!((rule.starts_inside, &rule.ends[..]), (true, &[1, 7][..]));
        }
        assert!(tokens.blank.is_sorted());
    }
}
