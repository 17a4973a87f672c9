//! What a request says about reasoning, in the words of several dialects, as template variables and a budget.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::ApiError;
use super::values::{Free, Idle, Int, MAX_U32, int};
use crate::generate::{Budget, ReasoningSwitch};

/// Reasoning tokens of the efforts that ask for little; the others have the operator's default.
const EFFORT_TOKENS: [(&str, u32); 3] = [("minimal", LEAST_TOKENS), ("low", 1024), ("medium", 8192)];
/// Reasoning tokens where there should be none, and the model always reasons.
const LEAST_TOKENS: u32 = 256;
const EFFORTS: &str = "none, minimal, low, medium, high, xhigh, max";

/// `thinking`. A flag alone is its member `enabled`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Thinking {
    #[schemars(extend("enum" = ["enabled", "adaptive", "disabled", null]))]
    pub(super) r#type: Option<String>,
    #[schemars(skip)]
    pub(super) enabled: Option<bool>,
    #[schemars(extend("enum" = ["all", null]))]
    keep: Option<String>,
    budget_tokens: Option<Int<0, MAX_U32>>,
    #[schemars(extend("enum" = ["summarized", "omitted", null]))]
    display: Option<String>,
}

/// `reasoning` of chat, as OpenRouter has it. A flag alone is its member `enabled`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Routed {
    enabled: Option<bool>,
    #[schemars(extend("enum" = ["none", "minimal", "low", "medium", "high", "xhigh", "max", null]))]
    effort: Option<String>,
    max_tokens: Option<Int<0, MAX_U32>>,
    /// The reasoning stays out of the answer.
    exclude: Option<bool>,
    #[schemars(skip)]
    #[expect(dead_code, reason = "of the Responses API: reasoning is given as it is")]
    summary: Option<Idle>,
    #[schemars(skip)]
    #[expect(dead_code, reason = "an older name of it")]
    generate_summary: Option<Idle>,
}

/// The fields about reasoning.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ReasoningBody {
    /// Whether the model reasons first, and for how many tokens.
    #[schemars(extend("type" = ["object", "boolean", "null"]))]
    pub(super) thinking: Option<Thinking>,
    /// `none` answers at once; `minimal`, `low` and `medium` reason for at most 256, 1024 and 8192 tokens, the others as long as the operator allows.
    #[schemars(extend("enum" = ["none", "minimal", "low", "medium", "high", "xhigh", "max", null]))]
    pub(super) reasoning_effort: Option<String>,
    /// Most reasoning tokens; -1: no limit.
    thinking_token_budget: Option<Int<-1, MAX_U32>>,
    /// The same under another name.
    thinking_budget: Option<Int<-1, MAX_U32>>,
    /// Whether the model reasons first.
    enable_thinking: Option<bool>,
    /// The same under another name, or an effort.
    #[schemars(extend("anyOf" = [{"type": ["boolean", "null"]}, {"enum": ["none", "minimal", "low", "medium", "high", "xhigh", "max"]}]))]
    think: Option<Free>,
    /// Whether reasoning is given in the answer.
    include_reasoning: Option<bool>,
    /// `false`: reasoning stands in the content, between its markers.
    separate_reasoning: Option<bool>,
    /// Variables of the chat template; `thinking` switches reasoning.
    #[schemars(extend("type" = "object"))]
    chat_template_kwargs: Option<Free>,
    /// `reasoning` is an object of the route's own.
    #[serde(skip)]
    #[schemars(skip)]
    pub(super) routed: Option<Routed>,
}

/// What they mean.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Reasoning {
    pub(super) kwargs: Option<Map<String, Value>>,
    pub(super) budget: Option<Budget>,
    /// Whether the reply will reason, where the request or the model decides that; `None` leaves it to the default.
    pub(super) thinks: Option<bool>,
    /// Reasoning is given in the answer.
    pub(super) include: bool,
    /// It stands in the content, between its markers.
    pub(super) inline: bool,
}

impl ReasoningBody {
    /// A switch that the model has not means nothing to the prompt: one that does not reason answers at once, and one that always
    /// does reasons little, for itself.
    pub(super) fn check(self, switch: ReasoningSwitch) -> Result<Reasoning, ApiError> {
        let mut kwargs = kwargs(self.chat_template_kwargs)?;
        let thinking = self.thinking.unwrap_or_default();
        let routed = self.routed.unwrap_or_default();
        let (think, think_effort) = think(self.think)?;
        let by_type = by_type(thinking.r#type.as_deref())?;
        let asked = agreed([
            ("thinking.type", by_type),
            ("thinking", thinking.enabled),
            ("chat_template_kwargs.thinking", template_switch(kwargs.as_ref())?),
            ("enable_thinking", self.enable_thinking),
            ("think", think),
            ("reasoning.enabled", routed.enabled),
        ])?;
        let effort = agreed([
            ("reasoning_effort", self.reasoning_effort),
            ("reasoning.effort", routed.effort),
            ("think", think_effort),
        ])?;
        if let Some((name, effort)) = &effort {
            check_effort(name, Some(effort))?;
        }
        let effort = effort.as_ref().map(|(_, effort)| effort.as_str());
        let budget = agreed([
            ("thinking.budget_tokens", int("thinking.budget_tokens", thinking.budget_tokens)?),
            ("thinking_token_budget", int("thinking_token_budget", self.thinking_token_budget)?),
            ("thinking_budget", int("thinking_budget", self.thinking_budget)?),
            ("reasoning.max_tokens", int("reasoning.max_tokens", routed.max_tokens)?),
        ])?;
        // An effort says how much, and only `none` says whether; a switch goes before it.
        let by_effort = effort.map(|effort| effort != "none");
        let by_budget = routed.max_tokens.map(|most| most.0 > 0);
        let asked = asked.map(|(_, on)| on).or(by_effort).or(by_budget);
        let thinks = match switch {
            ReasoningSwitch { reasons: false, .. } => Some(false),
            ReasoningSwitch { can_disable: false, .. } => Some(true),
            _ => asked,
        };
        if let Some(on) = thinks.filter(|_| asked.is_some() && switch.reasons) {
            kwargs.get_or_insert_default().insert("thinking".into(), on.into());
        }
        match thinking.keep.as_deref() {
            None => {}
            Some("all") => {
                kwargs.get_or_insert_default().insert("preserve_thinking".into(), true.into());
            }
            Some(other) => {
                return Err(ApiError::unknown_value("thinking.keep", other, "all, or null"));
            }
        }
        let shown = match thinking.display.as_deref() {
            None | Some("summarized") => true,
            Some("omitted") => false,
            Some(other) => {
                return Err(ApiError::unknown_value("thinking.display", other, "summarized, omitted"));
            }
        };
        let hidden = asked == Some(false) && thinks == Some(true);
        let shown = shown && !hidden && routed.exclude != Some(true);
        let include = self.include_reasoning.unwrap_or(true) && shown;
        let budget = budget.map(|(_, budget)| match budget {
            -1 => Budget::Unlimited,
            tokens => Budget::Tokens(tokens as u32),
        });
        let by_effort =
            EFFORT_TOKENS.iter().find(|(name, _)| Some(*name) == effort).map(|(_, tokens)| *tokens);
        let little = if hidden { Some(LEAST_TOKENS) } else { by_effort };
        Ok(Reasoning {
            kwargs,
            budget: budget.or(little.map(Budget::Tokens)),
            thinks,
            include,
            inline: include && self.separate_reasoning == Some(false),
        })
    }
}

/// The value that several names give, and the first of them; an error where they differ.
fn agreed<T: PartialEq, const N: usize>(
    given: [(&'static str, Option<T>); N],
) -> Result<Option<(&'static str, T)>, ApiError> {
    let mut given = given.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let Some((first, value)) = given.next() else { return Ok(None) };
    match given.find(|(_, other)| *other != value) {
        Some((name, _)) => Err(ApiError::invalid_value(
            name,
            format!("says something else than `{first}`; send one of them"),
        )),
        None => Ok(Some((first, value))),
    }
}

/// `think`: a switch, or an effort.
fn think(think: Option<Free>) -> Result<(Option<bool>, Option<String>), ApiError> {
    match think.map(|Free(think)| think) {
        None => Ok((None, None)),
        Some(Value::Bool(on)) => Ok((Some(on), None)),
        Some(Value::String(effort)) => Ok((None, Some(effort))),
        Some(_) => Err(ApiError::invalid_type("think", "true, false or an effort is expected")),
    }
}

/// An effort is one of those that are known.
pub(super) fn check_effort(name: &str, effort: Option<&str>) -> Result<(), ApiError> {
    match effort {
        Some(effort) if EFFORTS.split(", ").all(|known| known != effort) => {
            Err(ApiError::unknown_value(name, effort, EFFORTS))
        }
        _ => Ok(()),
    }
}

/// `chat_template_kwargs`.
pub(super) fn kwargs(kwargs: Option<Free>) -> Result<Option<Map<String, Value>>, ApiError> {
    match kwargs.map(|kwargs| kwargs.0) {
        None => Ok(None),
        Some(Value::Object(kwargs)) => Ok(Some(kwargs)),
        Some(_) => Err(ApiError::invalid_value("chat_template_kwargs", "an object is expected")),
    }
}

/// `thinking` among the template's variables, or its alias.
fn template_switch(kwargs: Option<&Map<String, Value>>) -> Result<Option<bool>, ApiError> {
    let mut found = None;
    for name in ["enable_thinking", "thinking"] {
        match kwargs.and_then(|kwargs| kwargs.get(name)) {
            None | Some(Value::Null) => {}
            Some(Value::Bool(on)) => found = Some(*on),
            Some(_) => {
                return Err(ApiError::invalid_type(
                    &format!("chat_template_kwargs.{name}"),
                    "true or false is expected",
                ));
            }
        }
    }
    Ok(found)
}

fn by_type(kind: Option<&str>) -> Result<Option<bool>, ApiError> {
    match kind {
        None => Ok(None),
        // How much it is is the model's own choice in both.
        Some("enabled" | "adaptive") => Ok(Some(true)),
        Some("disabled") => Ok(Some(false)),
        Some(other) => Err(ApiError::unknown_value("thinking.type", other, "enabled, adaptive, disabled")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::json::parse;
    use super::*;

    const BOTH: ReasoningSwitch = ReasoningSwitch { reasons: true, can_disable: true };
    const ALWAYS: ReasoningSwitch = ReasoningSwitch { reasons: true, can_disable: false };
    const NEVER: ReasoningSwitch = ReasoningSwitch { reasons: false, can_disable: true };

    fn check(body: &str, switch: ReasoningSwitch) -> Result<Reasoning, ApiError> {
        parse::<ReasoningBody>(body.as_bytes())?.check(switch)
    }

    #[test]
    fn every_dialect_reaches_the_template() {
        for (body, switch, thinking, budget) in [
            ("{}", BOTH, None, None),
            (r#"{"thinking": {"type": "enabled"}}"#, BOTH, Some(true), None),
            (r#"{"thinking": {"type": "adaptive"}}"#, BOTH, Some(true), None),
            (r#"{"thinking": {"type": "disabled"}}"#, BOTH, Some(false), None),
            (r#"{"chat_template_kwargs": {"thinking": false}}"#, BOTH, Some(false), None),
            (r#"{"chat_template_kwargs": {"enable_thinking": true}}"#, BOTH, Some(true), None),
            (r#"{"reasoning_effort": "none"}"#, BOTH, Some(false), None),
            (r#"{"reasoning_effort": "none"}"#, NEVER, None, None),
            (r#"{"reasoning_effort": "high"}"#, NEVER, None, None),
            (r#"{"reasoning_effort": "high"}"#, BOTH, Some(true), None),
            (r#"{"reasoning_effort": "low"}"#, BOTH, Some(true), Some(Budget::Tokens(1024))),
            (r#"{"reasoning_effort": "high", "thinking": {"type": "disabled"}}"#, BOTH, Some(false), None),
            (r#"{"thinking_token_budget": 64}"#, BOTH, None, Some(Budget::Tokens(64))),
            (r#"{"thinking_token_budget": -1}"#, BOTH, None, Some(Budget::Unlimited)),
            (
                r#"{"thinking_budget": 64, "enable_thinking": true}"#,
                BOTH,
                Some(true),
                Some(Budget::Tokens(64)),
            ),
            (r#"{"thinking": false}"#, BOTH, Some(false), None),
            (r#"{"thinking": true, "think": true}"#, BOTH, Some(true), None),
            (r#"{"enable_thinking": false}"#, BOTH, Some(false), None),
            (r#"{"think": false}"#, BOTH, Some(false), None),
            (r#"{"think": "low"}"#, BOTH, Some(true), Some(Budget::Tokens(1024))),
            (r#"{"thinking": {"type": "enabled"}}"#, NEVER, None, None),
            (
                r#"{"thinking": {"type": "enabled", "budget_tokens": 9}}"#,
                NEVER,
                None,
                Some(Budget::Tokens(9)),
            ),
            (
                r#"{"thinking": {"type": "enabled", "budget_tokens": 9}, "reasoning_effort": "low"}"#,
                ALWAYS,
                Some(true),
                Some(Budget::Tokens(9)),
            ),
        ] {
            let read = check(body, switch).unwrap();
            let found = read.kwargs.as_ref().and_then(|kwargs| kwargs.get("thinking")?.as_bool());
            assert_eq!((found, read.budget), (thinking, budget), "{body}");
            assert!(read.include);
        }
        let kept = check(r#"{"thinking": {"keep": "all"}, "include_reasoning": false}"#, BOTH).unwrap();
        assert_eq!(kept.kwargs.unwrap()["preserve_thinking"], true);
        assert!(!kept.include);
        for (body, include, inline) in [
            (r#"{"separate_reasoning": false}"#, true, true),
            (r#"{"separate_reasoning": true}"#, true, false),
            (r#"{"separate_reasoning": false, "include_reasoning": false}"#, false, false),
            (r#"{"thinking": {"type": "adaptive", "display": "omitted"}}"#, false, false),
        ] {
            let read = check(body, BOTH).unwrap();
            assert_eq!((read.include, read.inline), (include, inline), "{body}");
        }
    }

    /// Regression: agents switch thinking on and off as they see fit, and a model without that switch refused them all.
    #[test]
    fn a_switch_that_the_model_has_not_is_no_refusal() {
        for body in [
            r#"{"thinking": {"type": "disabled"}}"#,
            r#"{"thinking": false}"#,
            r#"{"reasoning_effort": "none"}"#,
            r#"{"chat_template_kwargs": {"thinking": false}}"#,
            r#"{"enable_thinking": false, "separate_reasoning": false}"#,
        ] {
            let read = check(body, ALWAYS).unwrap();
            let kwargs = read.kwargs.as_ref().and_then(|kwargs| kwargs.get("thinking")?.as_bool());
            assert_eq!(
                (read.thinks, kwargs, read.include, read.inline),
                (Some(true), Some(true), false, false),
                "{body}"
            );
            assert_eq!(read.budget, Some(Budget::Tokens(LEAST_TOKENS)), "{body}");
        }
        let budget = r#"{"thinking": {"type": "disabled"}, "thinking_token_budget": 9}"#;
        assert_eq!(check(budget, ALWAYS).unwrap().budget, Some(Budget::Tokens(9)));
        for body in [
            r#"{"thinking": {"type": "adaptive"}}"#,
            r#"{"thinking": true}"#,
            r#"{"reasoning_effort": "high"}"#,
        ] {
            let read = check(body, NEVER).unwrap();
            assert_eq!((read.thinks, read.kwargs, read.include), (Some(false), None, true), "{body}");
        }
    }

    #[test]
    fn routers_have_an_object_of_their_own() {
        for (object, thinks, budget, include) in [
            ("{\"enabled\": false}", Some(false), None, true),
            ("true", Some(true), None, true),
            ("{\"effort\": \"none\"}", Some(false), None, true),
            ("{\"effort\": \"low\", \"summary\": \"auto\"}", Some(true), Some(Budget::Tokens(1024)), true),
            ("{\"max_tokens\": 7}", Some(true), Some(Budget::Tokens(7)), true),
            ("{\"exclude\": true}", None, None, false),
        ] {
            #[derive(Debug, Deserialize, JsonSchema)]
            struct Body {
                reasoning: Option<Routed>,
            }
            let body: Body = parse(format!("{{\"reasoning\": {object}}}").as_bytes()).unwrap();
            let whole = ReasoningBody { routed: body.reasoning, ..parse(b"{}").unwrap() };
            let read = whole.check(BOTH).unwrap();
            assert_eq!((read.thinks, read.budget, read.include), (thinks, budget, include), "{object}");
        }
    }

    #[test]
    fn what_cannot_be_had_is_named() {
        for (body, switch, param) in [
            (r#"{"thinking": {"type": "sometimes"}}"#, BOTH, "thinking.type"),
            (r#"{"thinking": {"keep": "some"}}"#, BOTH, "thinking.keep"),
            (r#"{"thinking": 3}"#, BOTH, "thinking"),
            (r#"{"think": 3}"#, BOTH, "think"),
            (r#"{"think": "hard"}"#, BOTH, "think"),
            (r#"{"think": true, "enable_thinking": false}"#, BOTH, "think"),
            (r#"{"think": "low", "reasoning_effort": "high"}"#, BOTH, "think"),
            (r#"{"reasoning_effort": "huge"}"#, BOTH, "reasoning_effort"),
            (
                r#"{"thinking": {"type": "enabled"}, "chat_template_kwargs": {"thinking": false}}"#,
                BOTH,
                "chat_template_kwargs.thinking",
            ),
            (
                r#"{"thinking": {"budget_tokens": 1}, "thinking_token_budget": 2}"#,
                BOTH,
                "thinking_token_budget",
            ),
            (r#"{"thinking_token_budget": -2}"#, BOTH, "thinking_token_budget"),
            (r#"{"chat_template_kwargs": 3}"#, BOTH, "chat_template_kwargs"),
            (r#"{"chat_template_kwargs": {"thinking": "no"}}"#, BOTH, "chat_template_kwargs.thinking"),
            (r#"{"thinking": {"display": "loud"}}"#, BOTH, "thinking.display"),
        ] {
            let error = check(body, switch).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{body}: {}", error.message);
        }
    }
}
