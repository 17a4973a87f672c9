//! `/v1/responses`: the public API's newer dialect over the same walk as chat.
//!
//! Items, tools and choices become the values that chat's readers make of theirs. Every other field has chat's
//! reader, so that all dialects have the same limits and meanings.

mod answer;
mod background;
mod events;
mod items;
mod retrieved;
mod stored;
mod tools;
mod translate;
mod truncation;

use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Map, Number, Value, json};

use super::call::Call;
use super::conversation::{self, CommonBody, refuse_lists};
use super::format::Kind;
use super::json::{self, Both};
use super::params::{SharedBody, TopCount, top_count};
use super::structured::response_format;
use super::tools::{check_choice, choice};
use super::unknown::Unknown;
use super::values::{AnyValue, Free, Idle, Int, List, MAX_U32};
use super::{ApiError, HostedTools, Limits};
use crate::generate::{ChatPrompt, SamplingDefaults};
use stored::Turn;
use tools::Tools;

pub(super) use answer::ResponsesAnswer;
pub use background::Background;
pub(super) use events::ItemEvents;
pub(super) use retrieved::{DeletedResponse, InputItems};
pub use stored::Owner;
pub(super) use stored::{Keep, Shelf, StoredResponses};
pub(super) use truncation::drop_oldest;

/// What errors of the walk call the fields here.
const WORDS: &[(&str, &str)] =
    &[("messages", "input"), ("prompt", "input"), ("max_tokens", "max_output_tokens")];
/// The part of `include` that asks for logprobs.
const LOGPROBS: &str = "message.output_text.logprobs";
/// What else may be included: of tools that are not here, or encrypted; there is none of it.
const INCLUDABLE: &[&str] = &[
    LOGPROBS,
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
];

/// The fields that only this route has, or has in another form.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ResponsesBody {
    /// A text, or items: messages, function calls and their outputs.
    #[schemars(required, schema_with = "described_input")]
    input: Option<Free>,
    /// Stands before the conversation.
    instructions: Option<String>,
    /// Most tokens of the reply, reasoning included.
    max_output_tokens: Option<Int<1, MAX_U32>>,
    /// Functions that may be called.
    #[schemars(extend("type" = "array", "items" = {"type": "object"}))]
    tools: Option<Free>,
    /// Whether a function may, must or must not be called, or which.
    #[schemars(extend("type" = ["string", "object"]))]
    tool_choice: Option<Free>,
    /// Whether a reply may have more than one call.
    parallel_tool_calls: Option<bool>,
    /// `format`: what the answer must be.
    #[schemars(extend("type" = "object"))]
    text: Option<Free>,
    /// `effort`.
    #[schemars(extend("type" = "object"))]
    reasoning: Option<Free>,
    /// Given back as it is.
    #[schemars(extend("type" = "object"))]
    metadata: Option<Free>,
    /// `message.output_text.logprobs`: logprobs of the answer. Nothing is encrypted here.
    #[schemars(transform = includable)]
    include: Option<List<String, 64>>,
    /// Only together with `include: ["message.output_text.logprobs"]`; -1: the whole vocabulary.
    top_logprobs: Option<TopCount>,
    /// `auto`: the oldest turns are left out of an input that is too long.
    #[schemars(extend("enum" = ["auto", "disabled", null]))]
    truncation: Option<String>,
    #[expect(dead_code, reason = "accepted, and means nothing")]
    max_tool_calls: Option<Idle>,
    /// A stored response of the same key, which the input goes on from.
    previous_response_id: Option<String>,
    /// Whether the response can be gone on from and retrieved; true by default, where the server has room for it.
    store: Option<bool>,
    /// Whether the answer comes at once, in progress, and the response is retrieved later; not as a stream.
    background: Option<bool>,
    // Read to be refused when they ask for something.
    #[schemars(skip)]
    conversation: Option<AnyValue>,
    #[schemars(skip)]
    prompt: Option<AnyValue>,
}

/// The fields of the dialect.
pub(super) type ResponsesRequest = Both<ResponsesBody, CommonBody>;

/// Adds the parts that there are to the schema of `include`.
fn includable(schema: &mut Schema) {
    if let Some(items) = schema.pointer_mut("/items") {
        items["enum"] = INCLUDABLE.into();
    }
}

/// `input`.
fn described_input(_: &mut SchemaGenerator) -> Schema {
    let content = json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": [
        {"type": "object", "required": ["type", "text"], "properties": {
            "type": {"enum": ["input_text", "output_text"]}, "text": {"type": "string"}}},
        {"type": "object", "required": ["type", "image_url"], "properties": {
            "type": {"const": "input_image"}, "image_url": {"type": "string"}, "detail": {"enum": ["auto", "low", "high"]}}}]}}]});
    let string = json!({"type": "string"});
    let item = |kind: &str, fields: &[(&str, &Value)]| {
        let mut properties = json!({"type": {"const": kind}});
        for (name, schema) in fields {
            properties[name] = (*schema).clone();
        }
        let required: Vec<&str> = ["type"].into_iter().chain(fields.iter().map(|field| field.0)).collect();
        json!({"type": "object", "required": required, "properties": properties})
    };
    let output =
        ("output", &json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}));
    let arguments = ("arguments", &json!({"anyOf": [{"type": "string"}, {"type": "object"}]}));
    let (call_id, name) = (("call_id", &string), ("name", &string));
    let any = json!({"anyOf": [
        {"type": "object", "required": ["role", "content"], "properties": {
            "type": {"const": "message"}, "role": {"enum": ["system", "developer", "user", "assistant"]}, "content": content}},
        item("function_call", &[call_id, name, arguments]),
        item("function_call_output", &[call_id, output]),
        item("custom_tool_call", &[call_id, name, ("input", &string)]),
        item("custom_tool_call_output", &[call_id, output]),
        item("reasoning", &[]),
        // Of hosted tools, of another server's memory, or of a later version of the API.
        {"type": "object", "required": ["type"], "properties": {"type": {"type": "string", "pattern": "^(?!message$|item_reference$|additional_tools$|.*_(call|output)$)"},
            "role": {"type": "null"}, "content": {"type": "null"}}},
    ]});
    json_schema!({"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": any}]})
}

/// Reads and checks a request that goes on from nothing.
#[cfg(test)]
fn read(body: &[u8], limits: &Limits, defaults: &SamplingDefaults) -> Result<Call, ApiError> {
    read_on(body, limits, defaults, &Shelf::default())
}

/// Reads and checks a request of a client with stored responses.
pub(super) fn read_on(
    body: &[u8],
    limits: &Limits,
    defaults: &SamplingDefaults,
    shelf: &Shelf,
) -> Result<Call, ApiError> {
    let (Both(mut own, common), mut unknown) = json::read::<ResponsesRequest>(body, limits)?;
    let Both(mut reasoning, Both(shared, Both(foreign, structured))) = common;
    own.refuse_unavailable()?;
    refuse_lists(&shared)?;
    let format = own.member("text", &own.text, &["format", "verbosity"], &mut unknown)?;
    let effort =
        own.member("reasoning", &own.reasoning, &["effort", "summary", "generate_summary"], &mut unknown)?;
    unknown.check(limits.unknown_fields, &[])?;
    let logprobs = own.logprobs(limits)?;
    let previous = own.previous(shelf)?;
    let items = own.items()?;
    let keep = match own.store {
        Some(false) => None,
        _ => shelf.keep(previous.clone(), &items),
    };
    let background = own.background == Some(true);
    if background {
        own.check_background(shelf, keep.is_some())?;
    }
    let echoed = own.echoed(&shared, defaults, keep.is_some());
    let drop_oldest = own.truncation.as_deref() == Some("auto");
    if let Some(effort) = effort {
        if reasoning.reasoning_effort.is_some() {
            return Err(both("reasoning_effort", "reasoning.effort"));
        }
        let effort = effort.as_str().map(str::to_owned);
        let effort =
            effort.ok_or_else(|| ApiError::invalid_type("reasoning.effort", "a string is expected"))?;
        reasoning.reasoning_effort = Some(effort);
    }
    if format.is_some() && structured.response_format.is_some() {
        return Err(both("response_format", "text.format"));
    }
    let format = format.map(|format| response_format("text.format", &format, true)).transpose()?.flatten();
    let structured = structured.check(format.map(|shape| ("text.format", shape)))?;
    let mut tools = Tools::default();
    tools.declare(&super::tools::entries(own.tools)?, "tools")?;
    let history = previous.map(|previous| previous.items()).unwrap_or_default();
    let (mut prompt, left_out) = translate::turns(own.instructions, &history, &items, &mut tools)?;
    let Tools { functions, client, hosted, advice } = tools;
    for (path, kind) in &hosted {
        limits.hosted_tools.leave_out(kind, path, &mut unknown)?;
    }
    leave_out(&left_out, limits.hosted_tools, &mut unknown)?;
    if advice {
        unknown.add("tools[].format");
    }
    prompt.tools = functions;
    let choice = check_choice(choice(translate::choice(own.tool_choice), true)?, &prompt.tools)?;
    let parallel_calls = own.parallel_tool_calls.unwrap_or(true);
    // Errors speak of the limit by the name that the client gave it.
    let words = if shared.max_tokens.is_some() { &WORDS[..2] } else { WORDS };
    let max_tokens = shared.max_tokens("max_output_tokens", own.max_output_tokens.map(|n| n.0), 1)?;
    let common = (reasoning, shared, foreign);
    let draft = conversation::draft(
        Kind::Responses,
        prompt,
        &choice,
        parallel_calls,
        structured,
        common,
        max_tokens,
        limits,
        defaults,
    );
    let mut call = draft.map_err(|error| match own.reasoning.is_some() {
        true => error.in_words(&[("reasoning_effort", "reasoning.effort")]),
        false => error,
    })?;
    call.score(logprobs)?;
    call.format.echoed = Some(echoed);
    call.format.client_tools = client;
    call.format.keep = keep;
    if background && call.stream {
        let message = "not together with `background`; retrieve the response at /v1/responses/ID instead";
        return Err(ApiError::invalid_value("stream", message));
    }
    call.background = background;
    Ok(Call { words, unknown, drop_oldest, ..call })
}

/// The conversation of a chat request that has this route's `input`: some clients send one form to every URL.
pub(super) fn conversation(
    instructions: Option<String>,
    input: Free,
    hosted: HostedTools,
    unknown: &mut Unknown,
) -> Result<ChatPrompt, ApiError> {
    let (prompt, left_out) = translate::turns(instructions, &[], &items(input)?, &mut Tools::default())?;
    leave_out(&left_out, hosted, unknown)?;
    Ok(prompt)
}

/// Names items, by place and type, that only their own server understands, or refuses them.
fn leave_out(items: &[(String, String)], hosted: HostedTools, unknown: &mut Unknown) -> Result<(), ApiError> {
    for (path, kind) in items {
        if hosted == HostedTools::Refuse {
            let kind: String = kind.chars().take(32).collect();
            let what = format!("an item of type {kind} (server.hosted_tools)");
            return Err(ApiError::unsupported(path, &what));
        }
        unknown.add(&format!("input[].{kind}"));
    }
    Ok(())
}

fn items(Free(input): Free) -> Result<Vec<Value>, ApiError> {
    match input {
        Value::String(text) => Ok(vec![json!({"role": "user", "content": text})]),
        Value::Array(items) => Ok(items),
        _ => Err(ApiError::invalid_type("input", "a string or a list of items is expected")),
    }
}

fn both(name: &str, other: &str) -> ApiError {
    ApiError::invalid_value(name, format!("given together with `{other}`; use one of them"))
}

impl ResponsesBody {
    fn refuse_unavailable(&self) -> Result<(), ApiError> {
        for (name, value, what) in [
            ("conversation", &self.conversation, "a stored conversation"),
            ("prompt", &self.prompt, "a stored prompt"),
        ] {
            if value.as_ref().is_some_and(|value| !value.is_empty()) {
                return Err(ApiError::unsupported(name, what));
            }
        }
        match self.truncation.as_deref() {
            None | Some("auto" | "disabled") => {}
            Some(_) => return Err(ApiError::invalid_value("truncation", "allowed: auto, disabled")),
        }
        if self.metadata.as_ref().is_some_and(|metadata| !metadata.0.is_object()) {
            return Err(ApiError::invalid_type("metadata", "an object is expected"));
        }
        Ok(())
    }

    /// The turn that the input goes on from.
    fn previous(&self, shelf: &Shelf) -> Result<Option<Arc<Turn>>, ApiError> {
        let Some(id) = self.previous_response_id.as_deref().filter(|id| !id.is_empty()) else {
            return Ok(None);
        };
        let name = Some("previous_response_id");
        let turn = shelf.get(id).ok_or_else(|| ApiError::unknown_response(name, id))?;
        match turn.is_in_progress() {
            true => Err(ApiError::response_in_progress(name, id)),
            false => Ok(Some(turn)),
        }
    }

    /// Errors: the response would not be stored.
    fn check_background(&self, shelf: &Shelf, is_kept: bool) -> Result<(), ApiError> {
        let message = match is_kept {
            true => return Ok(()),
            false if !shelf.is_open() => {
                "needs stored responses, and this server has none (server.stored_responses_bytes)"
            }
            false if self.store == Some(false) => "needs `store`: the response could not be retrieved",
            false => "the chain of responses is as long as one can be; send the conversation as `input`",
        };
        Err(ApiError::invalid_value("background", message))
    }

    /// The items of the input.
    fn items(&mut self) -> Result<Vec<Value>, ApiError> {
        items(self.input.take().ok_or_else(|| ApiError::missing("input"))?)
    }

    /// The first of the known members of an object, if it is there.
    fn member(
        &self,
        name: &str,
        object: &Option<Free>,
        known: &[&str],
        unknown: &mut Unknown,
    ) -> Result<Option<Value>, ApiError> {
        let Some(Free(object)) = object else { return Ok(None) };
        let Value::Object(members) = object else {
            return Err(ApiError::invalid_type(name, "an object is expected"));
        };
        let others =
            members.iter().filter(|(key, value)| !(known.contains(&key.as_str()) || value.is_null()));
        others.for_each(|(key, _)| unknown.add(&format!("{name}.{key}")));
        Ok(members.get(known[0]).filter(|value| !value.is_null()).cloned())
    }

    /// Alternatives per token, if `include` asks for logprobs.
    fn logprobs(&self, limits: &Limits) -> Result<Option<u32>, ApiError> {
        let include = self.include.as_ref().map_or(&[][..], |include| &include.0);
        for (at, name) in include.iter().enumerate() {
            if !INCLUDABLE.contains(&name.as_str()) {
                let message = format!("unknown, allowed: {}", INCLUDABLE.join(", "));
                return Err(ApiError::invalid_value(format!("include[{at}]"), message));
            }
        }
        let top = top_count("top_logprobs", self.top_logprobs, limits)?;
        let wanted = include.iter().any(|name| name == LOGPROBS);
        if top.is_some_and(|top| top > 0) && !wanted {
            return Err(ApiError::invalid_value(
                "top_logprobs",
                format!("only allowed together with `include: [\"{LOGPROBS}\"]`"),
            ));
        }
        Ok(wanted.then(|| top.unwrap_or(0)))
    }

    /// What a response repeats of its request.
    fn echoed(&self, shared: &SharedBody, defaults: &SamplingDefaults, stored: bool) -> Map<String, Value> {
        let free =
            |value: &Option<Free>, absent: Value| value.as_ref().map_or(absent, |value| value.0.clone());
        let number = |value: &Option<Number>, default: f32| {
            value.as_ref().and_then(Number::as_f64).unwrap_or(f64::from(default))
        };
        let fields = json!({
            "background": self.background == Some(true),
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens.or(shared.max_tokens).map(|tokens| tokens.0),
            "metadata": free(&self.metadata, json!({})),
            "parallel_tool_calls": self.parallel_tool_calls.unwrap_or(true),
            "previous_response_id": self.previous_response_id,
            "reasoning": free(&self.reasoning, json!({"effort": null, "summary": null})),
            "store": stored,
            "temperature": number(&shared.temperature, defaults.temperature),
            "text": free(&self.text, json!({"format": {"type": "text"}})),
            "tool_choice": free(&self.tool_choice, json!("auto")),
            "tools": free(&self.tools, json!([])),
            "top_logprobs": self.top_logprobs.map_or(0, |top| top.0),
            "top_p": number(&shared.top_p, defaults.top_p),
            "truncation": self.truncation.as_deref().unwrap_or("disabled"),
        });
        match fields {
            Value::Object(fields) => fields,
            _ => Map::new(),
        }
    }
}

#[cfg(test)]
mod tests;
