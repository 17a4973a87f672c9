//! What a request says about reasoning, in the words of several dialects, as template variables and a budget.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::ApiError;
use super::values::{Free, Int, MAX_U32, int};
use crate::generate::{Budget, ReasoningSwitch};

/// Reasoning tokens of the efforts that ask for little; the others have the operator's default.
const EFFORT_TOKENS: [(&str, u32); 3] = [("minimal", 256), ("low", 1024), ("medium", 8192)];
const EFFORTS: &str = "none, minimal, low, medium, high, xhigh, max";

/// `thinking`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Thinking {
    #[schemars(extend("enum" = ["enabled", "adaptive", "disabled", null]))]
    pub(super) r#type: Option<String>,
    #[schemars(extend("enum" = ["all", null]))]
    keep: Option<String>,
    budget_tokens: Option<Int<0, MAX_U32>>,
    #[schemars(extend("enum" = ["summarized", "omitted", null]))]
    display: Option<String>,
}

/// The fields about reasoning.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ReasoningBody {
    /// Whether the model reasons first, and for how many tokens.
    pub(super) thinking: Option<Thinking>,
    /// `none` answers at once; `minimal`, `low` and `medium` reason for at most 256, 1024 and 8192 tokens, the others as long as the operator allows.
    #[schemars(extend("enum" = ["none", "minimal", "low", "medium", "high", "xhigh", "max", null]))]
    pub(super) reasoning_effort: Option<String>,
    /// Most reasoning tokens; -1: no limit.
    thinking_token_budget: Option<Int<-1, MAX_U32>>,
    /// Whether reasoning is given in the answer.
    include_reasoning: Option<bool>,
    /// `false`: reasoning stands in the content, between its markers.
    separate_reasoning: Option<bool>,
    /// Variables of the chat template; `thinking` switches reasoning.
    #[schemars(extend("type" = "object"))]
    chat_template_kwargs: Option<Free>,
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
    pub(super) fn check(self, switch: ReasoningSwitch) -> Result<Reasoning, ApiError> {
        let mut kwargs = kwargs(self.chat_template_kwargs)?;
        let thinking = self.thinking.unwrap_or_default();
        let effort = self.reasoning_effort.as_deref();
        check_effort("reasoning_effort", effort)?;
        let by_type = by_type(&thinking, switch)?;
        let by_kwargs = template_switch(kwargs.as_ref())?;
        if let (Some(a), Some(b)) = (by_type, by_kwargs)
            && a != b
        {
            return Err(ApiError::invalid_value(
                "thinking",
                "`thinking.type` and `chat_template_kwargs.thinking` say opposite things; send one of them",
            ));
        }
        // An effort says how much, and only `none` says whether; a switch goes before it.
        if effort == Some("none") && by_type.or(by_kwargs).is_none() && !switch.can_disable {
            return Err(ApiError::invalid_value(
                "reasoning_effort",
                "`none` cannot be had: this model always reasons; allowed: minimal, low, medium, high, xhigh, max",
            ));
        }
        let by_effort = effort.filter(|_| switch.reasons).map(|effort| effort != "none");
        let thinks = match switch {
            ReasoningSwitch { reasons: false, .. } => Some(false),
            ReasoningSwitch { can_disable: false, .. } => Some(true),
            _ => by_type.or(by_kwargs).or(by_effort),
        };
        if let Some(on) = by_type.or(by_kwargs).or(by_effort) {
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
        let include = self.include_reasoning.unwrap_or(true) && shown;
        let budget = budget(thinking.budget_tokens, self.thinking_token_budget)?;
        let by_effort = EFFORT_TOKENS.iter().find(|(name, _)| Some(*name) == effort);
        Ok(Reasoning {
            kwargs,
            budget: budget.or(by_effort.map(|(_, tokens)| Budget::Tokens(*tokens))),
            thinks,
            include,
            inline: include && self.separate_reasoning == Some(false),
        })
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

fn by_type(thinking: &Thinking, switch: ReasoningSwitch) -> Result<Option<bool>, ApiError> {
    match thinking.r#type.as_deref() {
        None => Ok(None),
        Some("enabled" | "adaptive") if !switch.reasons => Err(ApiError::invalid_value(
            "thinking.type",
            "this model does not reason: only type=disabled is allowed for this model",
        )),
        // How much it is is the model's own choice in both.
        Some("enabled" | "adaptive") => Ok(Some(true)),
        Some("disabled") if !switch.can_disable => Err(ApiError::invalid_value(
            "thinking.type",
            "invalid thinking: only type=enabled is allowed for this model",
        )),
        Some("disabled") => Ok(Some(false)),
        Some(other) => Err(ApiError::unknown_value("thinking.type", other, "enabled, adaptive, disabled")),
    }
}

fn budget(
    of_thinking: Option<Int<0, MAX_U32>>,
    own: Option<Int<-1, MAX_U32>>,
) -> Result<Option<Budget>, ApiError> {
    let own = int("thinking_token_budget", own)?;
    let of_thinking = int("thinking.budget_tokens", of_thinking)?;
    if let (Some(a), Some(b)) = (of_thinking, own)
        && a != b
    {
        return Err(ApiError::invalid_value(
            "thinking_token_budget",
            format!("{b} differs from thinking.budget_tokens, {a}; send one of them"),
        ));
    }
    Ok(own.or(of_thinking).map(|budget| match budget {
        -1 => Budget::Unlimited,
        tokens => Budget::Tokens(tokens as u32),
    }))
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

    #[test]
    fn what_cannot_be_had_is_named() {
        for (body, switch, param) in [
            (r#"{"thinking": {"type": "enabled"}}"#, NEVER, "thinking.type"),
            (r#"{"thinking": {"type": "disabled"}}"#, ALWAYS, "thinking.type"),
            (r#"{"thinking": {"type": "sometimes"}}"#, BOTH, "thinking.type"),
            (r#"{"thinking": {"keep": "some"}}"#, BOTH, "thinking.keep"),
            (r#"{"thinking": true}"#, BOTH, "thinking"),
            (r#"{"reasoning_effort": "none"}"#, ALWAYS, "reasoning_effort"),
            (r#"{"reasoning_effort": "huge"}"#, BOTH, "reasoning_effort"),
            (
                r#"{"thinking": {"type": "enabled"}, "chat_template_kwargs": {"thinking": false}}"#,
                BOTH,
                "thinking",
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
