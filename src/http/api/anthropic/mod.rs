//! `/v1/messages` and `/v1/messages/count_tokens`: Anthropic's dialect over the same walk as chat.
//!
//! Turns, tools and choices become the values that chat's readers make of theirs. Every other field has chat's
//! reader, so that all dialects have the same limits and meanings.

mod answer;
mod client_tools;
mod events;
mod signature;
mod translate;

pub(super) use answer::{CountTokensAnswer, MessagesAnswer};
pub(super) use events::BlockEvents;

use schemars::JsonSchema;
use serde::Deserialize;

use super::call::Call;
use super::conversation::{self, CommonBody, refuse_lists};
use super::format::Kind;
use super::json::{self, Both};
use super::reasoning::check_effort;
use super::tools;
use super::unknown::Unknown;
use super::values::{AnyValue, Free, Int, MAX_U32};
use super::{ApiError, Limits};
use crate::generate::SamplingDefaults;

/// The fields that only this dialect has, or has in another form.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct MessagesBody {
    /// Most tokens of the reply.
    #[schemars(required)]
    max_tokens: Option<Int<1, MAX_U32>>,
    /// The conversation, oldest first.
    #[schemars(required, schema_with = "described::messages")]
    messages: Option<Free>,
    /// Stands before the conversation.
    #[schemars(schema_with = "described::system")]
    system: Option<Free>,
    /// Functions that may be called.
    #[schemars(extend("type" = "array", "items" = {"type": "object"}))]
    tools: Option<Free>,
    /// Whether a function may, must or must not be called, or which.
    #[schemars(extend("type" = "object"))]
    tool_choice: Option<Free>,
    /// `format`: what the answer must be. `effort`: how much thinking there is where there is any.
    output_config: Option<OutputConfig>,
    /// The name of `output_config.format` in the beta.
    #[schemars(schema_with = "described::format")]
    output_format: Option<Free>,
    // Read to be refused when they ask for something.
    #[schemars(skip)]
    mcp_servers: Option<AnyValue>,
    #[schemars(skip)]
    container: Option<AnyValue>,
}

/// `output_config`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(inline)]
struct OutputConfig {
    effort: Option<String>,
    #[serde(default)]
    #[schemars(schema_with = "described::format")]
    format: Option<Free>,
}

/// The fields of the dialect.
pub(super) type MessagesRequest = Both<MessagesBody, CommonBody>;

/// Schemas of the fields whose form depends on what stands in them.
mod described {
    use schemars::{Schema, SchemaGenerator, json_schema};
    use serde_json::{Map, Value, json};

    pub(super) fn messages(_: &mut SchemaGenerator) -> Schema {
        let block = |kind: &str, fields: &[(&str, Value)]| {
            let own = [("type", json!({"const": kind}))];
            let properties: Map<String, Value> =
                own.iter().chain(fields).map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
            let required: Vec<&String> = properties.keys().collect();
            json!({"type": "object", "required": required, "properties": properties})
        };
        let string = || json!({"type": "string"});
        let text = block("text", &[("text", string())]);
        let source = json!({"anyOf": [
            {"type": "object", "required": ["type", "data"], "properties": {
                "type": {"const": "base64"}, "media_type": {"type": "string"}, "data": {"type": "string"}}},
            {"type": "object", "required": ["type", "url"], "properties": {
                "type": {"const": "url"}, "url": {"type": "string"}}}]});
        let image = block("image", &[("source", source)]);
        let results =
            json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": [text, image]}}]});
        let result = block("tool_result", &[("tool_use_id", string()), ("content", results)]);
        let thinking = block("thinking", &[("thinking", string())]);
        let call =
            block("tool_use", &[("id", string()), ("name", string()), ("input", json!({"type": "object"}))]);
        let turn = |role: &str, blocks: Value| {
            json!({"type": "object", "required": ["role", "content"], "properties": {"role": {"const": role},
                "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": blocks}}]}}})
        };
        let turns =
            [turn("user", json!([text, image, result])), turn("assistant", json!([text, thinking, call]))];
        json_schema!({"type": "array", "minItems": 1, "items": {"anyOf": turns}})
    }

    pub(super) fn system(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]})
    }

    pub(super) fn format(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "null"}, {"type": "object", "required": ["type", "schema"],
            "properties": {"type": {"const": "json_schema"}, "schema": {"type": "object"}}}]})
    }
}

/// Reads and checks a request.
pub(super) fn read(body: &[u8], limits: &Limits, defaults: &SamplingDefaults) -> Result<Call, ApiError> {
    let (body, unknown) = json::read::<MessagesRequest>(body, limits)?;
    let Both(_, Both(_, Both(shared, _))) = &body;
    if shared.max_tokens("max_tokens", None, 1)?.is_none() {
        return Err(ApiError::missing("max_tokens"));
    }
    checked(body, unknown, limits, defaults)
}

/// Reads and checks a request whose tokens are to be counted.
pub(super) fn read_to_count(
    body: &[u8],
    limits: &Limits,
    defaults: &SamplingDefaults,
) -> Result<Call, ApiError> {
    let (body, unknown) = json::read::<MessagesRequest>(body, limits)?;
    checked(body, unknown, limits, defaults)
}

fn checked(
    Both(own, Both(mut reasoning, Both(shared, Both(foreign, structured)))): MessagesRequest,
    mut unknown: Unknown,
    limits: &Limits,
    defaults: &SamplingDefaults,
) -> Result<Call, ApiError> {
    own.refuse_unavailable()?;
    refuse_lists(&shared)?;
    if shared.logprob_token_ids.as_ref().is_some_and(|ids| !ids.0.is_empty()) {
        return Err(ApiError::elsewhere("logprob_token_ids", "logprobs"));
    }
    if shared.return_tokens_as_token_ids == Some(true) {
        return Err(ApiError::elsewhere("return_tokens_as_token_ids", "logprobs"));
    }
    let mut words = Vec::new();
    let config = own.output_config.unwrap_or_default();
    if let Some(effort) = config.effort {
        check_effort("output_config.effort", Some(&effort))?;
        // It does not switch thinking on: it says how much of it there should be.
        let thinks = reasoning.thinking.as_ref().and_then(|thinking| thinking.r#type.as_deref());
        if matches!(thinks, Some("enabled" | "adaptive")) {
            if reasoning.reasoning_effort.replace(effort).is_some() {
                return Err(both("reasoning_effort", "output_config.effort"));
            }
            words.push(("reasoning_effort", "output_config.effort"));
        }
    }
    if reasoning
        .thinking
        .as_ref()
        .is_some_and(|thinking| thinking.r#type.is_none() && thinking.enabled.is_none())
    {
        return Err(ApiError::invalid_value("thinking.type", "allowed: enabled, adaptive, disabled"));
    }
    // The beta had the format at the top.
    let formats = [("output_config.format", config.format), ("output_format", own.output_format)];
    let mut asked = None;
    for (path, format) in formats {
        let Some(Free(format)) = format else { continue };
        if let Some((first, _)) = asked.replace((path, translate::shape(&format, path)?)) {
            return Err(both(path, first));
        }
    }
    if let Some((path, _)) = asked.as_ref().filter(|_| structured.response_format.is_some()) {
        return Err(both(path, "response_format"));
    }
    let structured = structured.check(asked)?;
    let mut prompt = translate::turns(own.system, own.messages)?;
    prompt.tools = translate::declared(own.tools, limits.hosted_tools, &mut unknown)?;
    let (choice, parallel_calls) = translate::tool_choice(own.tool_choice)?;
    let choice = tools::check_choice(choice, &prompt.tools)?;
    let max_tokens = shared.max_tokens("max_tokens", own.max_tokens.map(|n| n.0), 1)?;
    let common = (reasoning, shared, foreign);
    let draft = conversation::draft(
        Kind::Messages,
        prompt,
        &choice,
        parallel_calls,
        structured,
        common,
        max_tokens,
        limits,
        defaults,
    );
    let call = draft.map_err(|error| error.in_words(&words))?;
    Ok(Call { unknown, ..call })
}

fn both(name: &str, other: &str) -> ApiError {
    ApiError::invalid_value(name, format!("given together with `{other}`; use one of them"))
}

impl MessagesBody {
    fn refuse_unavailable(&self) -> Result<(), ApiError> {
        for (name, value, what) in [
            ("mcp_servers", &self.mcp_servers, "calling MCP servers"),
            ("container", &self.container, "a container"),
        ] {
            if value.as_ref().is_some_and(|value| !value.is_empty()) {
                return Err(ApiError::unsupported(name, what));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
