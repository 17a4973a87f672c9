//! The operator's sampling policy, applied to the values that requests ask for.
//!
//! Rules stand per field and per mode; a rule of one mode takes precedence over the rule for both.
//! Every value that differs from the requested one is reported as [`Applied`].

use perigee_decoding::sampling::rules::{Outside, Rule, Rules};

/// Kinds of replies that a policy tells apart: each needs other sampling values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SamplingMode {
    /// Reasoning before the answer.
    Thinking,
    /// No reasoning.
    Instant,
}

impl SamplingMode {
    fn name(self) -> &'static str {
        match self {
            Self::Thinking => "thinking",
            Self::Instant => "instant",
        }
    }
}

/// Rules for each mode and for both.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SamplingPolicy {
    /// Rules for both modes.
    pub both: Rules,
    /// Rules for replies with reasoning.
    pub thinking: Rules,
    /// Rules for replies without reasoning.
    pub instant: Rules,
}

/// A value that differs from the requested one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Applied {
    /// Name of the request field.
    pub field: &'static str,
    /// The requested value.
    pub asked: f64,
    /// The value in use.
    pub applied: f64,
}

/// A value that the policy refuses.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("invalid {field}: only {allowed} is allowed for this model in {mode} mode, not {asked}")]
pub struct PolicyRefusal {
    /// Name of the request field.
    pub field: &'static str,
    /// The requested value.
    pub asked: f64,
    /// The allowed values, in words.
    pub allowed: String,
    /// Name of the mode.
    pub mode: &'static str,
}

impl SamplingPolicy {
    /// The value in use for a field; a change is added to `applied`. `default` applies to requests
    /// that name no value where no rule gives one.
    pub fn value(
        &self,
        mode: SamplingMode,
        field: &'static str,
        asked: Option<f64>,
        default: f64,
        applied: &mut Vec<Applied>,
    ) -> Result<f64, PolicyRefusal> {
        let Some(rule) = self.rule(mode, field) else { return Ok(asked.unwrap_or(default)) };
        let refusal = |asked, allowed| PolicyRefusal { field, asked, allowed, mode: mode.name() };
        if let Some(only) = &rule.only {
            let Some(asked) = asked else { return Ok(only.values().first().copied().unwrap_or(default)) };
            // Requests carry decimal text, sampling runs in f32: compare as f32.
            let allowed = only.values().iter().find(|value| asked as f32 == **value as f32);
            return allowed.copied().ok_or_else(|| refusal(asked, either(only.values())));
        }
        let clamp = |value: f64| value.max(rule.min.unwrap_or(value)).min(rule.max.unwrap_or(f64::INFINITY));
        let wanted = asked.unwrap_or(rule.default.unwrap_or(default));
        let value = rule.pin.unwrap_or_else(|| clamp(wanted));
        let Some(asked) = asked.filter(|asked| *asked as f32 != value as f32) else { return Ok(value) };
        if rule.pin.is_none() && rule.outside == Outside::Reject {
            return Err(refusal(asked, range(rule)));
        }
        applied.push(Applied { field, asked, applied: value });
        Ok(value)
    }

    fn rule(&self, mode: SamplingMode, field: &str) -> Option<&Rule> {
        let own = match mode {
            SamplingMode::Thinking => &self.thinking,
            SamplingMode::Instant => &self.instant,
        };
        own.0.get(field).or_else(|| self.both.0.get(field))
    }
}

/// Joins values as "1, 0.6 or 0".
fn either(values: &[f64]) -> String {
    let mut words: Vec<String> = values.iter().map(f64::to_string).collect();
    let last = words.pop().unwrap_or_default();
    if words.is_empty() { last } else { format!("{} or {last}", words.join(", ")) }
}

fn range(rule: &Rule) -> String {
    match (rule.min, rule.max) {
        (Some(min), Some(max)) => format!("{min} to {max}"),
        (Some(min), None) => format!("{min} or more"),
        (None, Some(max)) => format!("{max} or less"),
        (None, None) => "anything".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> SamplingPolicy {
        let rules = |json: &str| serde_json::from_str(json).unwrap();
        SamplingPolicy {
            both: rules(
                r#"{"temperature": {"default": 0.6, "max": 1.2}, "top_p": {"pin": 0.95}, "n": {"only": 1}}"#,
            ),
            thinking: rules(
                r#"{"temperature": {"only": 1}, "max_tokens": {"min": 256, "outside": "reject"}}"#,
            ),
            instant: rules(
                r#"{"presence_penalty": {"min": 0, "max": 0.5, "outside": "reject"}, "min_p": {"only": [0.1, 0.5, 0]}}"#,
            ),
        }
    }

    #[test]
    fn what_a_request_gets() {
        use SamplingMode::*;
        for (mode, field, asked, expected, said) in [
            (Instant, "temperature", None, Ok(0.6), false),
            (Instant, "temperature", Some(0.9), Ok(0.9), false),
            (Instant, "temperature", Some(1.5), Ok(1.2), true),
            (Thinking, "temperature", None, Ok(1.0), false),
            (Thinking, "temperature", Some(1.0), Ok(1.0), false),
            (
                Thinking,
                "temperature",
                Some(0.5),
                Err("invalid temperature: only 1 is allowed for this model in thinking mode, not 0.5"),
                false,
            ),
            (Instant, "min_p", None, Ok(0.1), false),
            (Instant, "min_p", Some(0.0), Ok(0.0), false),
            (
                Instant,
                "min_p",
                Some(0.2),
                Err("invalid min_p: only 0.1, 0.5 or 0 is allowed for this model in instant mode, not 0.2"),
                false,
            ),
            (Thinking, "top_p", None, Ok(0.95), false),
            (Thinking, "top_p", Some(0.95), Ok(0.95), false),
            (Thinking, "top_p", Some(0.8), Ok(0.95), true),
            (
                Instant,
                "n",
                Some(2.0),
                Err("invalid n: only 1 is allowed for this model in instant mode, not 2"),
                false,
            ),
            (
                Instant,
                "presence_penalty",
                Some(0.7),
                Err(
                    "invalid presence_penalty: only 0 to 0.5 is allowed for this model in instant mode, not 0.7",
                ),
                false,
            ),
            (Thinking, "presence_penalty", Some(0.7), Ok(0.7), false),
            (
                Thinking,
                "max_tokens",
                Some(100.0),
                Err(
                    "invalid max_tokens: only 256 or more is allowed for this model in thinking mode, not 100",
                ),
                false,
            ),
            (Instant, "top_k", None, Ok(7.0), false),
        ] {
            let mut applied = Vec::new();
            let value = policy().value(mode, field, asked, 7.0, &mut applied).map_err(|e| e.to_string());
            assert_eq!(value, expected.map_err(str::to_owned), "{field} {asked:?}");
            let changed =
                Applied { field, asked: asked.unwrap_or_default(), applied: value.unwrap_or_default() };
            assert_eq!(applied, if said { vec![changed] } else { vec![] }, "{field} {asked:?}");
        }
    }
}
