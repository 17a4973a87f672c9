//! The OpenAPI document: what the routes take and give, for clients, generators and fuzzers.
//!
//! The types that read a body describe it, and the table of routes describes the rest (`routes.rs`).

use std::sync::OnceLock;

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::anthropic::{CountTokensAnswer, MessagesAnswer, MessagesRequest};
use super::chat::{ChatAnswer, ChatRequest};
use super::completions::{CompletionAnswer, CompletionRequest};
use super::counts::{InputTokensAnswer, TokenCountAnswer};
use super::error::{ErrorBody, MessagesError};
use super::fleet::{Loads, ModelInfo, ServerInfo};
use super::format::Kind;
use super::json::Fields;
use super::models::ModelList;
use super::render::RenderAnswer;
use super::responses::{DeletedResponse, InputItems, ResponsesAnswer, ResponsesRequest};
use super::routes::{Body, Content, Handler, Heading, Method, ROUTES, Route};
use super::tokenize::{DetokenizeAnswer, DetokenizeBody, TokenizeAnswer, TokenizeBody, TokenizerInfo};
use super::tokens::{TokensAnswer, TokensRequest};
use super::write;

/// The document, as it is served.
pub fn openapi() -> &'static [u8] {
    static DOCUMENT: OnceLock<Vec<u8>> = OnceLock::new();
    DOCUMENT.get_or_init(|| document().to_string().into_bytes())
}

/// The answer of `/version`.
#[derive(Serialize, JsonSchema)]
struct Version {
    version: &'static str,
    name: &'static str,
    /// The commit that the program was built from, where its build was told (`BUILD_COMMIT`).
    #[serde(skip_serializing_if = "Option::is_none")]
    commit: Option<&'static str>,
    /// What all settings in force come to: equal on servers with equal settings, but for their secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    settings_digest: Option<String>,
}

/// `/version`; `settings_digest`: once the settings are known.
pub fn version(settings_digest: Option<String>) -> Vec<u8> {
    let commit = option_env!("BUILD_COMMIT").filter(|commit| !commit.is_empty());
    write::document(&Version { version: env!("CARGO_PKG_VERSION"), name: "perigee", commit, settings_digest })
}

fn document() -> Value {
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Perigee",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "OpenAI-compatible serving of the Kimi K2 family. A field that is not described here is skipped and named in \
                the answer's header `x-perigee-ignored-fields`, or a 400 (server.unknown_fields); a field that asks for what this version does \
                not have is a 400 that names it. `null` is the same as leaving a field out.",
        },
        "tags": Heading::ALL.map(|heading| json!({"name": heading})),
        "paths": paths(),
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas(),
        },
    })
}

fn paths() -> Value {
    let mut paths = Map::new();
    for route in &ROUTES {
        let mut operation = json!({
            "tags": [route.heading],
            "summary": route.summary,
            "operationId": operation_id(route),
            "responses": responses(route),
        });
        if is_keyed(route) {
            operation["security"] = json!([{"key": []}, {}]);
        }
        if route.handler == Handler::Usage {
            operation["parameters"] = usage_parameters();
        }
        if route.name.contains("{name}") {
            operation["parameters"] = json!([{"name": "name", "in": "path", "required": true, "schema": {"type": "string", "minLength": 1}}]);
        }
        if let Some(Body { schema, example }) = route.body {
            let example: Value = serde_json::from_str(example).expect("an example is JSON");
            operation["requestBody"] = json!({"required": true, "content":
                {"application/json": {"schema": reference(schema), "example": example}}});
        }
        let mut operations = match route.method {
            Method::Get | Method::GetOrDelete => json!({"get": operation}),
            Method::Post => json!({"post": operation}),
        };
        if route.method == Method::GetOrDelete {
            let mut delete = operations["get"].clone();
            delete["operationId"] = format!("delete_{}", operation_id(route)).into();
            delete["responses"]["200"]["content"] = content(Content::Json("DeletedResponse"));
            operations["delete"] = delete;
        }
        paths.insert(route.name.into(), operations);
    }
    Value::Object(paths)
}

/// The query of `/admin/usage`.
fn usage_parameters() -> Value {
    let moment =
        json!({"type": "string", "pattern": "^\\d{4}-\\d{2}(-\\d{2}([T ]\\d{2}(:\\d{2}(:\\d{2})?)?)?)?Z?$"});
    let parameter = |name: &str, described: &str, schema: Value| json!({"name": name, "in": "query", "required": false, "description": described, "schema": schema});
    json!([
        parameter("from", "The first month, day or time that counts, UTC.", moment.clone()),
        parameter("to", "The first one that does not any more.", moment),
        parameter("client", "Name of a client.", json!({"type": "string"})),
        parameter("by", "A row for each of these.", json!({"enum": ["month", "day", "hour"]})),
    ])
}

fn operation_id(route: &Route) -> String {
    route.name.trim_start_matches('/').replace(['/', '.'], "_").replace(['{', '}'], "")
}

/// Whether a key is needed where keys are set; the operator can open pages.
fn is_keyed(route: &Route) -> bool {
    route.needs_key(true)
}

fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

/// What an answer with status 200 holds, by media type.
fn content(answer: Content) -> Value {
    match answer {
        Content::Json(schema) => json!({"application/json": {"schema": reference(schema)}}),
        // The schema of the stream is that of every event; its data are JSON.
        Content::Reply(schema) => json!({
            "application/json": {"schema": reference(schema)},
            "text/event-stream": {"schema": {"type": "object", "required": ["data"],
                "properties": {"event": {"type": "string"}, "data": {"type": "string"}}}},
        }),
        Content::Object => json!({"application/json": {"schema": {"type": "object"}}}),
        Content::Text(kind) => json!({kind: {"schema": {"type": "string"}}}),
    }
}

fn responses(route: &Route) -> Value {
    let mut responses = Map::new();
    let shape = if route.is_anthropic() { "MessagesError" } else { "Error" };
    let content = content(route.answer);
    let mut answered = json!({"description": "The answer.", "content": content});
    if route.has_body() {
        let described = "Names in the request that no field of the route has, and types of tools that were left out, where there are any.";
        answered["headers"] = json!({"x-perigee-ignored-fields": {"description": described, "required": false, "schema": {"type": "string"}}});
    }
    responses.insert("200".into(), answered);
    let mut add = |status: &str, text: &str| {
        let content = json!({"application/json": {"schema": reference(shape)}});
        responses.insert(status.into(), json!({"description": text, "content": content}));
    };
    add("405", "The path does not take this method.");
    add("421", "The request is addressed to a host that is not this server's.");
    add("501", "The request has a transfer coding other than chunked.");
    add(
        "503",
        "The server is starting, draining, overloaded or has lost its engine; Retry-After says when to try again.",
    );
    match route.has_body() {
        true => add("400", "The request asks for something impossible; `param` names the field."),
        false => add("400", "The request names no host, or its path has an escape that is none."),
    }
    if !route.is_probe() {
        add("401", "A key is needed, or a client certificate.");
    }
    match route.needs_admin() {
        true => add("403", "The key is not the operator's."),
        false if is_keyed(route) => add("403", "The key does not open this route."),
        false => {}
    }
    match route.handler {
        Handler::PageFile => add("404", "There is no such file."),
        Handler::Usage => add("404", "No usage is written down."),
        Handler::StoredResponse | Handler::CancelResponse | Handler::InputItems => {
            add("404", "There is no such response.")
        }
        Handler::Reply(Kind::Responses)
        | Handler::Render(Kind::Responses)
        | Handler::CountTokens(Kind::Responses) => add("404", "There is no such model, or no such response."),
        _ if route.has_body() || route.handler == Handler::Model => add("404", "There is no such model."),
        _ => {}
    }
    if route.handler == Handler::Reload {
        add("422", "The settings are wrong, and nothing was changed.");
    }
    if route.has_body() {
        add("408", "The body came too slowly.");
        add("413", "The body is too large.");
        add("415", "The body is not JSON, or packed in an unknown way.");
        add("500", "The engine failed on this request.");
        add("504", "The request ran into its time limit.");
    }
    if route.generates() {
        add("429", "The queue is full, or the key's limit reached; Retry-After says when to try again.");
    }
    if route.is_probe() && route.handler != Handler::Live {
        responses.insert("503".into(), json!({"description": "No.", "content": content}));
    }
    Value::Object(responses)
}

fn schemas() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
    });
    let mut generator = settings.clone().into_generator();
    let mut schemas = json!({
        "ChatRequest": request::<ChatRequest>(&mut generator, &["messages"], &[]),
        "CompletionRequest": request::<CompletionRequest>(&mut generator, &["prompt"], &[]),
        "ResponsesRequest": request::<ResponsesRequest>(&mut generator, &["input"], RESPONSES_REFUSE),
        "MessagesRequest": request::<MessagesRequest>(&mut generator, &["messages", "max_tokens"], MESSAGES_REFUSE),
        "TokenizeRequest": request::<TokenizeBody>(&mut generator, &[], &[]),
        "TokensRequest": request::<TokensRequest>(&mut generator, &["token_ids"], &[]),
        "DetokenizeRequest": request::<DetokenizeBody>(&mut generator, &["tokens"], &[]),
    });
    // In Anthropic's dialect it says its type.
    let thinking = &mut schemas["MessagesRequest"]["properties"]["thinking"];
    thinking["required"] = json!(["type"]);
    thinking["properties"]["type"] = json!({"enum": ["enabled", "adaptive", "disabled"]});
    for (name, of, required, shown) in [
        ("RenderRequest", "ChatRequest", &["messages"][..], SHOWN),
        ("RenderCompletionRequest", "CompletionRequest", &["prompt"], SHOWN),
        ("RenderResponsesRequest", "ResponsesRequest", &["input"], SHOWN),
        ("RenderMessagesRequest", "MessagesRequest", &["messages", "max_tokens"], SHOWN),
        ("CountChatRequest", "ChatRequest", &["messages"], &[]),
        ("CountResponsesRequest", "ResponsesRequest", &["input"], &[]),
        ("CountTokensRequest", "MessagesRequest", &["messages"], &[]),
    ] {
        schemas[name] = prompt_alone(&schemas[of], required, shown);
    }
    // The width of a machine word tells a reader nothing.
    let without_widths = RecursiveTransform(|schema: &mut Schema| drop(schema.remove("format")));
    let mut answers = settings.for_serialize().with_transform(without_widths).into_generator();
    answers.subschema_for::<(ErrorBody<'_>, MessagesError<'_>, Version)>();
    answers
        .subschema_for::<(ChatAnswer<'_>, CompletionAnswer<'_>, ResponsesAnswer<'_>, MessagesAnswer<'_>)>();
    answers.subschema_for::<(CountTokensAnswer, RenderAnswer<'_>, TokenizeAnswer<'_>, DetokenizeAnswer)>();
    answers.subschema_for::<TokensAnswer<'_>>();
    answers.subschema_for::<(InputTokensAnswer, TokenCountAnswer, InputItems, DeletedResponse<'_>)>();
    answers.subschema_for::<(TokenizerInfo<'_>, ModelList<'_>, ServerInfo<'_>, ModelInfo<'_>, Loads)>();
    for (name, schema) in generator.take_definitions(false).into_iter().chain(answers.take_definitions(true))
    {
        schemas[name] = schema;
    }
    schemas["RenderList"] = json!({"type": "array", "items": reference("RenderAnswer")});
    // The routes of probes have more members, each its own.
    schemas["Health"] =
        json!({"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}}});
    schemas
}

/// How the description of a field begins that only says how the reply is made, where none is.
const CHECKED: &str = "Checked; means nothing here.";

/// The schema of a body. `refused` are shared fields that the route refuses.
fn request<T: Fields>(generator: &mut SchemaGenerator, required: &[&str], refused: &[&str]) -> Value {
    let mut properties = Map::new();
    T::describe(generator, &mut properties);
    properties.retain(|name, _| !refused.contains(&name.as_str()));
    for (name, schema) in &mut properties {
        // A required field is not null.
        if !required.contains(&name.as_str()) {
            allow_null(schema);
        }
    }
    json!({"type": "object", "properties": properties, "required": required})
}

/// Makes null one of the values of an optional field, where it is not yet; the schemas of free-form fields leave it out.
fn allow_null(schema: &mut Value) {
    let is_null = |schema: &Value| schema["type"] == "null";
    let alternatives = [&schema["anyOf"], &schema["oneOf"]].into_iter().filter_map(Value::as_array).flatten();
    let anything = ["type", "anyOf", "oneOf"].iter().all(|key| schema.get(key).is_none());
    let there = schema["type"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "null"));
    if anything || there || alternatives.into_iter().any(is_null) {
        return;
    }
    let description = schema.as_object_mut().and_then(|fields| fields.remove("description"));
    *schema = json!({"description": description, "anyOf": [schema.take(), {"type": "null"}]});
}

/// Fields of replies that `/render` shows: as parameters of sampling, or beside them.
const SHOWN: &[&str] = &[
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n_predict",
    "num_predict",
    "max_new_tokens",
    "random_seed",
    "do_sample",
    "suppress_tokens",
    "banned_tokens",
    "banned_strings",
    "min_tokens",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "repeat_penalty",
    "logit_bias",
    "stop",
    "stop_sequences",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "skip_special_tokens",
    "bad_words",
    "logprobs",
    "top_logprobs",
    "include",
    "logprob_token_ids",
    "prompt_logprobs",
    "stream",
    "stream_options",
    "cache_salt",
    "priority",
    "request_id",
];

/// The same body where nothing is generated: fields that are neither of the prompt nor `shown` are checked and change
/// nothing.
fn prompt_alone(body: &Value, required: &[&str], shown: &[&str]) -> Value {
    const OF_THE_PROMPT: [&str; 19] = [
        "prompt",
        "parse_special",
        "input",
        "previous_response_id",
        "messages",
        "model",
        "instructions",
        "system",
        "tools",
        "functions",
        "thinking",
        "enable_thinking",
        "think",
        "reasoning",
        "reasoning_effort",
        "chat_template_kwargs",
        "add_generation_prompt",
        "continue_final_message",
        "output_config",
    ];
    let mut body = body.clone();
    body["required"] = json!(required);
    for (name, schema) in body["properties"].as_object_mut().into_iter().flatten() {
        if !OF_THE_PROMPT.contains(&name.as_str()) && !shown.contains(&name.as_str()) {
            schema["description"] = CHECKED.into();
        }
    }
    body
}

/// Shared fields that a route reads to refuse them when they ask for something.
const RESPONSES_REFUSE: &[&str] = &["n", "best_of", "prompt_logprobs", "return_token_ids"];
const MESSAGES_REFUSE: &[&str] = &[
    "n",
    "best_of",
    "logprob_token_ids",
    "prompt_logprobs",
    "return_token_ids",
    "return_tokens_as_token_ids",
];

#[cfg(test)]
mod tests {
    use super::super::foreign::RefusedBody;
    use super::super::json::names;
    use super::*;

    /// Regression: pairs were described in the words of an older draft, which OpenAPI 3.1 does not know.
    #[test]
    fn every_schema_of_items_is_one() {
        fn check(value: &Value, path: &str) {
            if let Some(members) = value.as_object() {
                let items = members.get("items").filter(|_| !path.ends_with("/properties"));
                assert!(items.is_none_or(|items| items.is_object() || items.is_boolean()), "{path}");
                members.iter().for_each(|(name, member)| check(member, &format!("{path}/{name}")));
            }
            for (at, item) in value.as_array().into_iter().flatten().enumerate() {
                check(item, &format!("{path}/{at}"));
            }
        }
        check(&document(), "");
    }

    #[test]
    fn every_field_is_described_or_refused() {
        let document = document();
        let check = |name: &str, known: Vec<&'static str>, refused: &[&str]| {
            let described = document["components"]["schemas"][name]["properties"].as_object().unwrap();
            for (field, of) in described {
                assert!(of["description"].is_string(), "{name}.{field} has no description");
                assert!(known.contains(&field.as_str()), "{name}.{field} is described, but nothing reads it");
            }
            for field in &known {
                let skipped = refused.contains(field) || names::<RefusedBody>().contains(field);
                assert_ne!(
                    described.contains_key(*field),
                    skipped,
                    "{name}.{field}: described, or refused, not both"
                );
            }
        };
        let chat = ["chat_template", "documents", "audio", "input", "instructions"];
        check("ChatRequest", names::<ChatRequest>(), &chat);
        check("RenderRequest", names::<ChatRequest>(), &chat);
        let reasoning = [
            "thinking",
            "reasoning_effort",
            "include_reasoning",
            "separate_reasoning",
            "thinking_token_budget",
            "thinking_budget",
            "enable_thinking",
            "think",
            "reasoning",
        ];
        let completions = [&["suffix", "tools", "messages"][..], &reasoning].concat();
        check("CompletionRequest", names::<CompletionRequest>(), &completions);
        let stored = ["conversation", "prompt"];
        check("ResponsesRequest", names::<ResponsesRequest>(), &[RESPONSES_REFUSE, &stored].concat());
        let messages = [MESSAGES_REFUSE, &["mcp_servers", "container"]].concat();
        check("MessagesRequest", names::<MessagesRequest>(), &messages);
        check("CountTokensRequest", names::<MessagesRequest>(), &messages);
        check("CountChatRequest", names::<ChatRequest>(), &chat);
        check("CountResponsesRequest", names::<ResponsesRequest>(), &[RESPONSES_REFUSE, &stored].concat());
        check("RenderCompletionRequest", names::<CompletionRequest>(), &completions);
        check("RenderResponsesRequest", names::<ResponsesRequest>(), &[RESPONSES_REFUSE, &stored].concat());
        check("RenderMessagesRequest", names::<MessagesRequest>(), &messages);
        check("TokenizeRequest", names::<TokenizeBody>(), &[]);
        check("TokensRequest", names::<TokensRequest>(), &["features", "kv_transfer_params"]);
        check("DetokenizeRequest", names::<DetokenizeBody>(), &[]);
    }

    #[test]
    fn values_are_described_as_they_are_checked() {
        let document = document();
        for (request, field, value, fits) in [
            ("Chat", "temperature", json!(2), true),
            ("Chat", "temperature", json!(2.1), false),
            ("Chat", "top_p", json!(0), false),
            ("Chat", "logit_bias", json!({"5": 101}), false),
            ("Chat", "n", json!(129), false),
            ("Chat", "top_k", json!(-1), true),
            ("Chat", "seed", json!(i64::MIN), true),
            ("Chat", "stop", json!(null), true),
            ("Chat", "stop", json!(["a", "b"]), true),
            ("Chat", "stop", json!(["a", ""]), false),
            ("Chat", "stop", json!("x".repeat(65)), false),
            ("Chat", "stop_regex", json!(""), false),
            ("Chat", "truncation_side", json!("up"), false),
            ("Chat", "bad_words", json!([""]), false),
            ("Chat", "thinking", json!({"type": null}), true),
            ("Chat", "messages", json!(null), false),
            ("Chat", "tools", json!(null), true),
            ("Chat", "user", json!([{}]), true),
            ("Messages", "thinking", json!({"type": null}), false),
            ("Messages", "thinking", json!({}), false),
            ("Messages", "max_tokens", json!(null), false),
            ("Completion", "prompt", json!([[1, 2], [3]]), true),
            ("Completion", "prompt", json!([]), false),
            ("Responses", "include", json!(["everything"]), false),
            ("Detokenize", "tokens", json!([-1]), false),
        ] {
            let mut schema =
                document["components"]["schemas"][format!("{request}Request")]["properties"][field].clone();
            schema["components"] = document["components"].clone();
            assert_eq!(jsonschema::is_valid(&schema, &value), fits, "{request}.{field}: {value}");
        }
    }

    #[test]
    fn references_lead_somewhere() {
        fn walk(value: &Value, document: &Value) {
            match value {
                Value::Object(object) => {
                    if let Some(Value::String(target)) = object.get("$ref") {
                        assert!(document.pointer(&target[1..]).is_some(), "{target}");
                    }
                    object.values().for_each(|value| walk(value, document));
                }
                Value::Array(list) => list.iter().for_each(|value| walk(value, document)),
                _ => {}
            }
        }
        let document = document();
        walk(&document, &document);
        for schema in document["components"]["schemas"].as_object().unwrap().values() {
            assert!(jsonschema::meta::is_valid(schema), "{schema}");
        }
    }
}
