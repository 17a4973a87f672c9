//! What requests say about being watched for loops, and what replies say of it.
//!
//! `repetition_guard` is a word (`auto`, `off`, `warn`, `stop`, `rescue`) or an object with `mode`, `max_rescues` and `hold_back`;
//! `repetition_detection` is vLLM's rule. A reply in which the guard found something has `guard: {events: [...]}` in its choice.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::values::{Free, Int, int};
use super::write::TokenText;
use super::{ApiError, Limits};
use crate::generate::GuardChoice;
use perigee_decoding::guard::{Event, Mode, PatternRule};

/// Longest preview of a unit, characters.
const PREVIEW_CHARS: usize = 64;

/// `repetition_detection`, as vLLM has it.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct PatternFields {
    max_pattern_size: Option<Int<0, LONGEST>>,
    min_pattern_size: Option<Int<0, LONGEST>>,
    min_count: Option<Int<2, { u16::MAX as i64 }>>,
}

const LONGEST: i64 = PatternRule::LONGEST as i64;
/// Largest `max_rescues` and `hold_back`.
const MAX_RESCUES: u32 = 8;
const MAX_HOLD_BACK: u32 = 4096;

/// `repetition_guard`.
pub(super) fn schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"anyOf": [{"enum": ["auto", "off", "warn", "stop", "rescue"]}, {"type": "object", "properties": {
        "mode": {"type": "string"}, "max_rescues": {"type": "integer", "minimum": 0, "maximum": MAX_RESCUES},
        "hold_back": {"type": "integer", "minimum": 0, "maximum": MAX_HOLD_BACK}}}]})
}

/// Checks both fields.
pub(super) fn choice(
    guard: Option<Free>,
    pattern: Option<PatternFields>,
    limits: &Limits,
) -> Result<GuardChoice, ApiError> {
    let mut choice =
        GuardChoice { pattern: pattern.map(rule).transpose()?.flatten(), ..GuardChoice::default() };
    match guard.map(|free| free.0) {
        None => {}
        Some(_) if !limits.guard_choice => {
            return Err(ApiError::invalid_value(
                "repetition_guard",
                "this server does not let requests choose (guard.client_may_choose); leave the field out",
            ));
        }
        Some(Value::String(word)) => choice.mode = mode("repetition_guard", &word)?,
        Some(Value::Object(fields)) => {
            for (key, value) in &fields {
                match key.as_str() {
                    "mode" => {
                        let word = value.as_str().unwrap_or_default();
                        choice.mode = mode("repetition_guard.mode", word)?;
                    }
                    "max_rescues" => {
                        choice.max_rescues = Some(count("repetition_guard.max_rescues", value, MAX_RESCUES)?)
                    }
                    "hold_back" => {
                        choice.hold_tokens = Some(count("repetition_guard.hold_back", value, MAX_HOLD_BACK)?)
                    }
                    other => {
                        return Err(ApiError::unknown_value(
                            "repetition_guard",
                            other,
                            "mode, max_rescues, hold_back",
                        ));
                    }
                }
            }
        }
        Some(_) => {
            return Err(ApiError::invalid_value("repetition_guard", "a word or an object is expected"));
        }
    }
    Ok(choice)
}

fn mode(field: &'static str, word: &str) -> Result<Option<Mode>, ApiError> {
    Ok(Some(match word {
        "auto" => return Ok(None),
        "off" => Mode::Off,
        "warn" => Mode::Warn,
        "stop" => Mode::Stop,
        "rescue" => Mode::Rescue,
        other => {
            return Err(ApiError::unknown_value(field, other, "auto, off, warn, stop, rescue"));
        }
    }))
}

fn count(field: &'static str, value: &Value, most: u32) -> Result<u32, ApiError> {
    let number = value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n <= most);
    number.ok_or_else(|| {
        let shown: String = value.to_string().chars().take(32).collect();
        ApiError::invalid_value(field, format!("{shown} is out of range, allowed: 0 to {most}"))
    })
}

/// `max_pattern_size` 0 switches the rule off, `min_pattern_size` 0 means 1.
fn rule(fields: PatternFields) -> Result<Option<PatternRule>, ApiError> {
    let max_size = int("repetition_detection.max_pattern_size", fields.max_pattern_size)?.unwrap_or(0) as u32;
    let min_size =
        int("repetition_detection.min_pattern_size", fields.min_pattern_size)?.unwrap_or(0).max(1) as u32;
    let min_count = int("repetition_detection.min_count", fields.min_count)?.unwrap_or(2) as u32;
    if max_size > 0 && min_size > max_size {
        return Err(ApiError::invalid_value(
            "repetition_detection.min_pattern_size",
            format!("{min_size} is more than max_pattern_size, {max_size}"),
        ));
    }
    Ok((max_size > 0).then_some(PatternRule { min_size, max_size, min_count }))
}

/// `guard` of a choice.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Found {
    events: Vec<FoundEvent>,
    discarded_tokens: u64,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct FoundEvent {
    kind: &'static str,
    phase: &'static str,
    action: &'static str,
    period: u32,
    copies: u32,
    start_token: u32,
    end_token: u32,
    discarded_tokens: u32,
    unit_preview: String,
}

/// What the guard found in a reply; `None` for nothing.
pub(super) fn found(events: &[Event], show: &TokenText<'_>) -> Option<Found> {
    let preview = |unit: &[u32]| show.tokenizer.decode(unit, false).chars().take(PREVIEW_CHARS).collect();
    let event = |event: &Event| FoundEvent {
        kind: event.kind.name(),
        phase: event.phase.name(),
        action: event.action.name(),
        period: event.period,
        copies: event.copies,
        start_token: event.start,
        end_token: event.end,
        discarded_tokens: event.discarded,
        unit_preview: preview(&event.unit),
    };
    (!events.is_empty()).then(|| Found {
        events: events.iter().map(event).collect(),
        discarded_tokens: events.iter().map(|event| u64::from(event.discarded)).sum(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::json::parse;
    use super::*;

    #[derive(Deserialize, JsonSchema)]
    struct Fields {
        #[schemars(skip)]
        repetition_guard: Option<Free>,
        repetition_detection: Option<PatternFields>,
    }

    fn read(body: &str, guard_choice: bool) -> Result<GuardChoice, ApiError> {
        let limits = Limits { guard_choice, ..Limits::default() };
        let fields = parse::<Fields>(body.as_bytes())?;
        choice(fields.repetition_guard, fields.repetition_detection, &limits)
    }

    #[test]
    fn choices() {
        let choice = |mode| GuardChoice { mode, ..GuardChoice::default() };
        for (body, expected) in [
            ("{}", choice(None)),
            (r#"{"repetition_guard": "auto"}"#, choice(None)),
            (r#"{"repetition_guard": "off"}"#, choice(Some(Mode::Off))),
            (
                r#"{"repetition_guard": {"mode": "stop", "max_rescues": 1, "hold_back": 64}}"#,
                GuardChoice { max_rescues: Some(1), hold_tokens: Some(64), ..choice(Some(Mode::Stop)) },
            ),
            (
                r#"{"repetition_detection": {"max_pattern_size": 20, "min_count": 4}}"#,
                GuardChoice {
                    pattern: Some(PatternRule { min_size: 1, max_size: 20, min_count: 4 }),
                    ..choice(None)
                },
            ),
            (r#"{"repetition_detection": {"max_pattern_size": 0}}"#, choice(None)),
        ] {
            assert_eq!(read(body, true).unwrap(), expected, "{body}");
        }
        assert_eq!(read("{}", false).unwrap(), choice(None));
    }

    #[test]
    fn refusals_name_the_field() {
        for (body, param) in [
            (r#"{"repetition_guard": "of"}"#, "repetition_guard"),
            (r#"{"repetition_guard": 1}"#, "repetition_guard"),
            (r#"{"repetition_guard": {"modus": "off"}}"#, "repetition_guard"),
            (r#"{"repetition_guard": {"mode": 3}}"#, "repetition_guard.mode"),
            (r#"{"repetition_guard": {"max_rescues": 9}}"#, "repetition_guard.max_rescues"),
            (r#"{"repetition_guard": {"hold_back": -1}}"#, "repetition_guard.hold_back"),
            (
                r#"{"repetition_detection": {"max_pattern_size": 1025}}"#,
                "repetition_detection.max_pattern_size",
            ),
            (
                r#"{"repetition_detection": {"max_pattern_size": 9, "min_count": 1}}"#,
                "repetition_detection.min_count",
            ),
            (
                r#"{"repetition_detection": {"max_pattern_size": 9, "min_pattern_size": 10}}"#,
                "repetition_detection.min_pattern_size",
            ),
            (r#"{"repetition_detection": {"min_count": "x"}}"#, "repetition_detection.min_count"),
        ] {
            let error = read(body, true).expect_err(body);
            assert_eq!(
                (error.status, error.param.as_deref()),
                (400, Some(param)),
                "{body}: {}",
                error.message
            );
        }
        assert_eq!(
            read(r#"{"repetition_guard": "off"}"#, false).unwrap_err().param.as_deref(),
            Some("repetition_guard")
        );
    }
}
