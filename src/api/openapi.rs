//! The OpenAPI document: what the routes take and give, for clients, generators and fuzzers.
//!
//! Written by hand, and held to the code by tests: every field that a body's reader knows is described here or named as one that is
//! refused, and every route of the server has its entry (`server/routes.rs`).

mod answers;

use std::sync::OnceLock;

use serde_json::{Map, Value, json};

use super::anthropic::MessagesBody;
use super::chat::ChatBody;
use super::completions::CompletionBody;
use super::conversation::CommonBody;
use super::foreign::ForeignBody;
use super::json::WireObject;
use super::params::{MAX_N, MAX_TOP_LOGPROBS, SharedBody};
use super::reference_page;
use super::responses::ResponsesBody;
use super::structured::StructuredBody;
use super::tokenize::{DetokenizeBody, TokenizeBody};

/// The document, as it is served.
pub fn openapi() -> &'static [u8] {
    static DOCUMENT: OnceLock<Vec<u8>> = OnceLock::new();
    DOCUMENT.get_or_init(|| document().to_string().into_bytes())
}

/// The document as a page for people.
pub fn openapi_page() -> &'static str {
    static PAGE: OnceLock<String> = OnceLock::new();
    PAGE.get_or_init(|| reference_page::page(&document()))
}

/// Paths of the document with their method, as the server names them.
pub fn openapi_routes() -> Vec<(String, String)> {
    let document = document();
    let paths = document["paths"].as_object().cloned().unwrap_or_default();
    let routes = paths.iter().flat_map(|(path, item)| {
        item.as_object()
            .into_iter()
            .flat_map(|item| item.keys())
            .map(|method| (path.clone(), method.to_uppercase()))
    });
    routes.collect()
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
        "tags": TAGS.iter().map(|name| json!({"name": name})).collect::<Vec<_>>(),
        "paths": paths(),
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas(),
        },
    })
}

/// What a route is described by.
struct Entry {
    path: &'static str,
    summary: &'static str,
    body: Option<&'static str>,
    answer: Value,
    /// Whether a key is needed where keys are set.
    keyed: bool,
}

fn entries() -> Vec<Entry> {
    let json = |name: &str| json!({"application/json": {"schema": {"$ref": format!("#/components/schemas/{name}")}}});
    let replies = |name: &str| {
        let mut content = json(name);
        // Of every event; its data are JSON.
        content["text/event-stream"] = json!({"schema": {"type": "object", "required": ["data"],
            "properties": {"event": {"type": "string"}, "data": {"type": "string"}}}});
        content
    };
    let any = json!({"application/json": {"schema": {"type": "object"}}});
    let text = |kind: &str| json!({kind: {"schema": {"type": "string"}}});
    let post = |path, summary, body, answer| Entry { path, summary, body: Some(body), answer, keyed: true };
    let get = |path, summary, answer, keyed| Entry { path, summary, body: None, answer, keyed };
    vec![
        post(
            "/v1/chat/completions",
            "The model's turn in a conversation.",
            "ChatRequest",
            replies("ChatAnswer"),
        ),
        post(
            "/v1/chat/completions/render",
            "The prompt of a conversation and its token ids; nothing is generated.",
            "RenderRequest",
            json("RenderAnswer"),
        ),
        post(
            "/v1/responses",
            "The model's turn, in the words of the Responses API; nothing is stored.",
            "ResponsesRequest",
            replies("ResponsesAnswer"),
        ),
        post(
            "/v1/messages",
            "The model's turn, in the words of Anthropic's Messages API.",
            "MessagesRequest",
            replies("MessagesAnswer"),
        ),
        post(
            "/v1/messages/count_tokens",
            "How many tokens a conversation has.",
            "CountTokensRequest",
            json("CountTokensAnswer"),
        ),
        post(
            "/v1/completions",
            "Text that goes on from a prompt.",
            "CompletionRequest",
            replies("CompletionAnswer"),
        ),
        post(
            "/tokenize",
            "Token ids of a text or a conversation.",
            "TokenizeRequest",
            json("TokenizeAnswer"),
        ),
        post("/detokenize", "Text of token ids.", "DetokenizeRequest", json("DetokenizeAnswer")),
        get("/tokenizer_info", "Facts of the tokenizer.", json("TokenizerInfo"), true),
        get("/v1/models", "The models served.", json("ModelList"), true),
        get("/v1/models/{name}", "One model.", json("Model"), true),
        get("/health", "Whether the process and the engine are alive.", json("Health"), false),
        get("/health/live", "Whether the process is alive.", json("Health"), false),
        get("/health/ready", "Whether requests are taken.", json("Health"), false),
        get("/health/startup", "The stage of the start and its progress.", json("Health"), false),
        get("/metrics", "Figures for Prometheus.", text("text/plain"), false),
        get("/version", "The version.", json("Version"), false),
        get("/openapi.json", "This document.", any, false),
        get("/docs", "This document as a page.", text("text/html"), false),
    ]
}

fn paths() -> Value {
    let mut paths = Map::new();
    for entry in entries() {
        let mut operation = json!({
            "tags": [tag(entry.path)],
            "summary": entry.summary,
            "operationId": entry.path.trim_start_matches('/').replace(['/', '.'], "_").replace(['{', '}'], ""),
            "responses": responses(&entry),
        });
        if entry.keyed {
            operation["security"] = json!([{"key": []}, {}]);
        }
        if entry.path.contains("{name}") {
            operation["parameters"] = json!([{"name": "name", "in": "path", "required": true, "schema": {"type": "string", "minLength": 1}}]);
        }
        if let Some(body) = entry.body {
            operation["requestBody"] = json!({"required": true, "content":
                {"application/json": {"schema": {"$ref": format!("#/components/schemas/{body}")}, "example": example(entry.path)}}});
        }
        let method = if entry.body.is_some() { "post" } else { "get" };
        paths.insert(entry.path.into(), json!({method: operation}));
    }
    Value::Object(paths)
}

/// The headings, in the order they are read.
const TAGS: [&str; 4] = ["Chat", "Text", "Models", "Operations"];

/// The heading a path stands under.
fn tag(path: &str) -> &'static str {
    match path {
        "/v1/completions" | "/tokenize" | "/detokenize" | "/tokenizer_info" => "Text",
        _ if path.starts_with("/v1/models") => "Models",
        _ if path.starts_with("/v1/") => "Chat",
        _ => "Operations",
    }
}

/// A body that the path takes, as it stands, from any model.
fn example(path: &str) -> Value {
    let question = json!([{"role": "user", "content": "What is 2 + 3?"}]);
    let get_weather = json!({"name": "get_weather", "parameters": {"type": "object", "required": ["city"],
        "properties": {"city": {"type": "string"}}}});
    match path {
        "/v1/chat/completions" => json!({"messages": [
            {"role": "system", "content": "You are a helpful assistant."}, question[0]], "max_tokens": 256}),
        "/v1/chat/completions/render" => {
            json!({"messages": [{"role": "user", "content": "What is the weather in Paris?"}],
            "tools": [{"type": "function", "function": get_weather}]})
        }
        "/v1/responses" => json!({"input": "What is 2 + 3?", "max_output_tokens": 256}),
        "/v1/messages" => json!({"messages": question, "max_tokens": 256}),
        "/v1/messages/count_tokens" => json!({"messages": question}),
        "/v1/completions" => json!({"prompt": "Once upon a time", "max_tokens": 32, "temperature": 0}),
        "/tokenize" => json!({"prompt": "Hello, world!"}),
        "/detokenize" => json!({"tokens": [0, 1, 2]}),
        _ => unreachable!("{path} takes a body and has no example"),
    }
}

fn responses(entry: &Entry) -> Value {
    let mut responses = Map::new();
    // Anthropic's routes have errors of their own shape.
    let shape = if entry.path.starts_with("/v1/messages") { "MessagesError" } else { "Error" };
    let failed = |text: &str| {
        json!({"description": text, "content":
        {"application/json": {"schema": {"$ref": format!("#/components/schemas/{shape}")}}}})
    };
    let mut answered = json!({"description": "The answer.", "content": entry.answer});
    if entry.body.is_some() {
        let described = "Names in the request that no field of the route has, where there are any.";
        answered["headers"] = json!({"x-perigee-ignored-fields": {"description": described, "required": false, "schema": string()}});
    }
    responses.insert("200".into(), answered);
    let mut add = |status: &str, text: &str| responses.insert(status.into(), failed(text));
    add("405", "The path does not take this method.");
    add("421", "The request is addressed to a host that is not this server's.");
    if entry.keyed {
        add("401", "A key is needed.");
        add("404", "There is no such model.");
        add(
            "503",
            "The server is starting, draining or has lost its engine; Retry-After says when to try again.",
        );
    }
    if entry.body.is_some() {
        add("400", "The request asks for something impossible; `param` names the field.");
        add("408", "The body came too slowly.");
        add("413", "The body is too large.");
        add("415", "The body is not JSON.");
        add("429", "The queue is full; Retry-After says when to try again.");
        add("500", "The engine failed on this request.");
        add("504", "The request ran into its time limit.");
    }
    if entry.path.starts_with("/health") && entry.path != "/health/live" {
        responses.insert("503".into(), json!({"description": "No.", "content": entry.answer}));
    }
    Value::Object(responses)
}

fn schemas() -> Value {
    let mut schemas = json!({
        "ChatRequest": request::<(ChatBody, CommonBody)>(&["messages"], chat_fields(), CHAT_REFUSES),
        "CompletionRequest": request::<CompletionBodies>(&["prompt"], completion_fields(), COMPLETIONS_REFUSE),
        "ResponsesRequest": request::<(ResponsesBody, CommonBody)>(&["input"], responses_fields(), RESPONSES_REFUSE),
        "MessagesRequest":
            request::<(MessagesBody, CommonBody)>(&["messages", "max_tokens"], messages_fields(), MESSAGES_REFUSE),
        "TokenizeRequest": request::<TokenizeBody>(&[], tokenize_fields(), &[]),
        "DetokenizeRequest": request::<DetokenizeBody>(&["tokens"], detokenize_fields(), &[]),
        "Message": message(),
        "AnthropicMessage": anthropic_message(),
        "InputItem": input_item(),
    });
    schemas["RenderRequest"] = prompt_alone(&schemas["ChatRequest"], &["messages"]);
    schemas["CountTokensRequest"] = prompt_alone(&schemas["MessagesRequest"], &["messages"]);
    for (name, schema) in answers::schemas() {
        schemas[name] = schema;
    }
    schemas
}

type CompletionBodies = (CompletionBody, (SharedBody, (ForeignBody, StructuredBody)));

/// How the description of a field begins that is accepted and means nothing.
const IDLE: &str = "Accepted; means nothing here.";
/// The same for a field that only says how the reply is made, where none is.
const CHECKED: &str = "Checked; means nothing here.";

/// The schema of a body: the route's own fields, the shared ones that its reader knows, and those that mean nothing. `refused` are
/// fields that it knows only to refuse them.
fn request<T: WireObject>(required: &[&str], own: Vec<(&str, Value)>, refused: &[&str]) -> Value {
    let known = T::fields();
    let shared = [shared_fields(), reasoning_fields(), structured_fields()].concat();
    let shared = shared.into_iter().filter(|(name, _)| known.contains(name) && !refused.contains(name));
    let idle = T::idle().into_iter().map(|name| (name, json!({"description": IDLE})));
    let mut fields = Map::new();
    for (name, schema) in own.into_iter().chain(shared).chain(idle) {
        // A required field is not null, and one that means nothing may be anything.
        let nullable = !required.contains(&name) && schema["description"] != IDLE;
        let schema = if nullable { json!({"anyOf": [schema, {"type": "null"}]}) } else { schema };
        // The route's own form goes before the shared one.
        fields.entry(name).or_insert(schema);
    }
    json!({"type": "object", "properties": fields, "required": required})
}

/// The same body where nothing is generated: most of its fields are checked and change nothing.
fn prompt_alone(body: &Value, required: &[&str]) -> Value {
    const OF_THE_PROMPT: [&str; 10] = [
        "messages",
        "model",
        "system",
        "tools",
        "thinking",
        "reasoning_effort",
        "chat_template_kwargs",
        "add_generation_prompt",
        "continue_final_message",
        "output_config",
    ];
    let mut body = body.clone();
    body["required"] = json!(required);
    for (name, schema) in body["properties"].as_object_mut().into_iter().flatten() {
        if !OF_THE_PROMPT.contains(&name.as_str()) {
            let inner =
                if schema["anyOf"][1] == json!({"type": "null"}) { &mut schema["anyOf"][0] } else { schema };
            inner["description"] = CHECKED.into();
        }
    }
    body
}

/// Fields that are read only to be refused when they ask for something, on every route that reads them.
const CHAT_REFUSES: &[&str] = &["chat_template", "documents", "functions", "function_call", "audio"];
const COMPLETIONS_REFUSE: &[&str] = &[
    "suffix",
    "tools",
    "messages",
    "thinking",
    "reasoning_effort",
    "include_reasoning",
    "separate_reasoning",
    "thinking_token_budget",
];
const RESPONSES_REFUSE: &[&str] = &[
    "previous_response_id",
    "conversation",
    "background",
    "prompt",
    "n",
    "best_of",
    "prompt_logprobs",
    "return_token_ids",
];
const MESSAGES_REFUSE: &[&str] = &[
    "mcp_servers",
    "container",
    "n",
    "best_of",
    "prompt_logprobs",
    "return_token_ids",
    "return_tokens_as_token_ids",
];

fn message() -> Value {
    let part = json!({"type": "object", "required": ["type", "text"],
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}}});
    let text = json!({"anyOf": [{"type": "string"}, {"type": "array", "items": part}]});
    let call = json!({"type": "object", "required": ["id", "function"], "properties": {
        "id": {"type": "string"}, "type": {"const": "function"}, "function": {"type": "object", "required": ["name", "arguments"],
            "properties": {"name": {"type": "string"}, "arguments": {"type": "string"}}}}});
    json!({"anyOf": [
        {"type": "object", "required": ["role", "content"], "properties": {
            "role": {"enum": ["system", "developer", "user"]}, "content": text, "name": {"type": "string"}}},
        {"type": "object", "required": ["role", "content"], "properties": {
            "role": {"const": "assistant"}, "content": {"anyOf": [text, {"type": "null"}]}, "name": {"type": "string"},
            "reasoning_content": {"type": "string", "description": "Reasoning of an earlier reply; `reasoning` is the same."},
            "tool_calls": {"type": "array", "items": call}}},
        {"type": "object", "required": ["role", "content", "tool_call_id"], "properties": {
            "role": {"const": "tool"}, "content": text, "tool_call_id": {"type": "string"}}},
    ]})
}

/// A message of Anthropic's dialect.
fn anthropic_message() -> Value {
    let block = |kind: &str, fields: &[(&str, Value)]| {
        let own = [("type", json!({"const": kind}))];
        let fields = own.iter().chain(fields);
        let required: Vec<&str> = fields.clone().map(|(name, _)| *name).collect();
        let properties: Map<String, Value> =
            fields.map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
        json!({"type": "object", "required": required, "properties": properties})
    };
    let text = block("text", &[("text", string())]);
    let results = json!({"anyOf": [{"type": "string"}, {"type": "array", "items": text}]});
    let turn = |role: &str, blocks: Value| {
        json!({"type": "object", "required": ["role", "content"], "properties": {"role": {"const": role},
            "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": blocks}}]}}})
    };
    let result = block("tool_result", &[("tool_use_id", string()), ("content", results)]);
    let thinking = block("thinking", &[("thinking", string())]);
    let call =
        block("tool_use", &[("id", string()), ("name", string()), ("input", json!({"type": "object"}))]);
    json!({"anyOf": [turn("user", json!([text, result])), turn("assistant", json!([text, thinking, call]))]})
}

/// An item of a response's input.
fn input_item() -> Value {
    json!({"anyOf": [
        {"type": "object", "required": ["role", "content"], "properties": {
            "type": {"const": "message"}, "role": {"enum": ["system", "developer", "user", "assistant"]}, "content": {"type": "string"}}},
        {"type": "object", "required": ["type", "call_id", "name", "arguments"], "properties": {
            "type": {"const": "function_call"}, "call_id": {"type": "string"}, "name": {"type": "string"}, "arguments": {"type": "string"}}},
        {"type": "object", "required": ["type", "call_id", "output"], "properties": {
            "type": {"const": "function_call_output"}, "call_id": {"type": "string"}, "output": {"type": "string"}}},
        {"type": "object", "required": ["type"], "properties": {"type": {"const": "reasoning"}}},
    ]})
}

fn integer(least: i64, most: i64) -> Value {
    json!({"type": "integer", "minimum": least, "maximum": most})
}

fn number(least: f64, most: f64) -> Value {
    json!({"type": "number", "minimum": least, "maximum": most})
}

fn flag() -> Value {
    json!({"type": "boolean"})
}

fn string() -> Value {
    json!({"type": "string"})
}

fn described(mut schema: Value, text: &str) -> Value {
    schema["description"] = text.into();
    schema
}

const MAX_U32: i64 = u32::MAX as i64;

/// Fields of both kinds of replies.
fn shared_fields() -> Vec<(&'static str, Value)> {
    vec![
        ("model", described(string(), "One of the names of /v1/models.")),
        ("n", described(integer(1, MAX_N), "Replies per prompt.")),
        ("stream", described(flag(), "Whether the reply comes as server-sent events while it is made.")),
        (
            "stream_options",
            described(
                json!({"type": "object", "properties": {"include_usage": flag(), "continuous_usage_stats": flag()}}),
                "Only together with `stream: true`.",
            ),
        ),
        ("max_tokens", described(integer(1, MAX_U32), "Most reply tokens.")),
        ("n_predict", described(integer(-1, MAX_U32), "llama.cpp's name for `max_tokens`; -1 is no limit.")),
        (
            "repeat_penalty",
            described(
                json!({"type": "number", "exclusiveMinimum": 0, "maximum": 10}),
                "llama.cpp's name for `repetition_penalty`.",
            ),
        ),
        (
            "allowed_token_ids",
            described(
                json!({"type": "array", "minItems": 1, "items": integer(0, MAX_U32)}),
                "The only tokens that a reply may have; not together with a reply that must have a shape.",
            ),
        ),
        (
            "bad_words",
            described(
                json!({"type": "array", "maxItems": 128, "items": {"type": "string", "minLength": 1, "maxLength": 64}}),
                "Texts whose tokens a reply must not have, with and without a space before them.",
            ),
        ),
        (
            "stop_regex",
            described(
                json!({"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "maxItems": 32, "items": {"type": "string", "minLength": 1}}]}),
                "Patterns that end the reply like `stop`; without anchors, and of at most 4096 bytes of text.",
            ),
        ),
        ("temperature", described(number(0.0, 2.0), "0 is greedy.")),
        (
            "top_p",
            described(
                json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
                "Smallest set of tokens with this probability together; 1 is all.",
            ),
        ),
        ("top_k", described(integer(-1, MAX_U32), "0 or -1: all.")),
        (
            "min_p",
            described(number(0.0, 1.0), "Least probability, as a share of the likeliest token's; 0 is all."),
        ),
        (
            "repetition_penalty",
            described(
                json!({"type": "number", "exclusiveMinimum": 0, "maximum": 10}),
                "Divides the logits of tokens that occurred in prompt or reply; 1 is none.",
            ),
        ),
        (
            "presence_penalty",
            described(number(-2.0, 2.0), "Taken from the logits of tokens that occurred in the reply."),
        ),
        ("frequency_penalty", described(number(-2.0, 2.0), "The same, times how often they occurred.")),
        (
            "logit_bias",
            described(
                json!({"type": "object", "additionalProperties": number(-100.0, 100.0), "propertyNames": {"pattern": "^[0-9]+$"}}),
                "Token ids to what is added to their logits.",
            ),
        ),
        ("seed", described(integer(i64::MIN, i64::MAX), "Equal seeds give equal replies.")),
        (
            "stop",
            described(
                json!({"anyOf": [{"type": "string", "minLength": 1, "maxLength": 64},
                {"type": "array", "maxItems": 32, "items": {"type": "string", "minLength": 1, "maxLength": 64}}]}),
                "Texts that end the reply; they are not part of it.",
            ),
        ),
        (
            "stop_token_ids",
            described(
                json!({"type": "array", "maxItems": 256, "items": integer(0, MAX_U32)}),
                "Tokens that end the reply.",
            ),
        ),
        ("min_tokens", described(integer(0, MAX_U32), "At most the token limit.")),
        (
            "ignore_eos",
            described(flag(), "Whether the reply goes on after the end of the turn, for benchmarks."),
        ),
        (
            "include_stop_str_in_output",
            described(flag(), "Whether the text that ended the reply is part of it."),
        ),
        (
            "skip_special_tokens",
            described(flag(), "Whether control tokens are left out of the text; they are by default."),
        ),
        (
            "truncate_prompt_tokens",
            described(integer(-1, MAX_U32), "Prompt tokens kept; -1: as many as fit. Not 0."),
        ),
        (
            "truncation_side",
            described(
                json!({"enum": ["left", "right"]}),
                "Which end of the prompt `truncate_prompt_tokens` drops.",
            ),
        ),
        (
            "prompt_logprobs",
            described(
                integer(-1, MAX_TOP_LOGPROBS),
                "-1: the whole vocabulary. Not together with `stream: true`.",
            ),
        ),
        ("priority", described(integer(i32::MIN.into(), i32::MAX.into()), "Lower runs first.")),
        (
            "cache_salt",
            described(
                json!({"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[^@/\\\\\\u0000]+$"}),
                "Prefixes are shared only between requests with the same salt.",
            ),
        ),
        (
            "request_id",
            described(
                json!({"type": "string", "pattern": "^[!-~]{1,128}$"}),
                "The id in the answer and in the log; made when absent.",
            ),
        ),
        ("return_token_ids", described(flag(), "Whether the answer has the token ids of prompt and reply.")),
        ("return_tokens_as_token_ids", described(flag(), "Whether `logprobs` names tokens as `token_id:N`.")),
        ("best_of", described(integer(1, MAX_N), "Only equal to `n`.")),
        (
            "repetition_guard",
            described(
                json!({"anyOf": [{"enum": ["auto", "off", "warn", "stop", "rescue"]}, {"type": "object", "properties":
                    {"mode": string(), "max_rescues": integer(0, 8), "hold_back": integer(0, 4096)}}]}),
                "How the reply is watched for loops.",
            ),
        ),
        (
            "repetition_detection",
            described(
                json!({"type": "object", "properties": {"max_pattern_size": {"type": ["integer", "null"]},
                    "min_pattern_size": {"type": ["integer", "null"]}, "min_count": {"type": ["integer", "null"]}}}),
                "vLLM's rule, beside the guard.",
            ),
        ),
    ]
}

/// What a reply must be.
fn structured_fields() -> Vec<(&'static str, Value)> {
    let schema = || json!({"type": ["object", "string", "boolean"]});
    let once = "What the reply must be; one such field per request.";
    let tags = json!({"type": "object", "required": ["structures", "triggers"], "properties": {
        "structures": {"type": "array", "items": {"type": "object", "required": ["begin", "end"], "properties":
            {"begin": string(), "schema": {"type": "object"}, "end": {"type": "string", "minLength": 1}}}},
        "triggers": {"type": "array", "items": {"type": "string", "minLength": 1}}}});
    let format = json!({"oneOf": [
        {"type": "object", "additionalProperties": false, "required": ["type"], "properties": {"type": {"const": "text"}}},
        {"type": "object", "additionalProperties": false, "required": ["type"], "properties":
            {"type": {"const": "json_object"}, "schema": {"type": "object"}}},
        {"type": "object", "additionalProperties": false, "required": ["type", "json_schema"], "properties": {"type": {"const": "json_schema"},
            "json_schema": {"type": "object", "additionalProperties": false, "required": ["name", "schema"], "properties":
                {"name": string(), "description": string(), "strict": flag(), "schema": {"type": "object"}}}}},
        {"type": "object", "required": ["type", "structures", "triggers"], "properties": {"type": {"const": "structural_tag"},
            "structures": tags["properties"]["structures"], "triggers": tags["properties"]["triggers"]}},
        {"type": "object", "additionalProperties": false, "required": ["type", "regex"], "properties": {"type": {"const": "regex"}, "regex": string()}},
        {"type": "object", "additionalProperties": false, "required": ["type", "grammar"], "properties": {"type": {"const": "grammar"}, "grammar": string()}},
        {"type": "object", "additionalProperties": false, "required": ["type", "ebnf"], "properties": {"type": {"const": "ebnf"}, "ebnf": string()}},
        {"type": "object", "additionalProperties": false, "required": ["type", "schema"], "properties": {"type": {"const": "json"}, "schema": schema()}},
    ]});
    let choice = || json!({"type": "array", "minItems": 1, "maxItems": 10000, "items": {"type": "string", "minLength": 1}});
    vec![
        ("response_format", described(format, once)),
        (
            "structured_outputs",
            described(
                json!({"type": "object", "additionalProperties": false, "properties": {"json": schema(), "regex": string(),
                    "choice": choice(), "grammar": string(), "json_object": flag(), "structural_tag": tags,
                    "disable_any_whitespace": flag(), "disable_additional_properties": flag(), "whitespace_pattern": string(),
                    "disable_fallback": flag()}}),
                "Exactly one constraint, and how it is written.",
            ),
        ),
        ("guided_json", described(schema(), once)),
        ("guided_regex", described(string(), once)),
        ("guided_choice", described(choice(), once)),
        ("guided_grammar", described(string(), "Lark with a rule `start`, or GBNF with a rule `root`.")),
        ("guided_whitespace_pattern", described(string(), "Only together with `guided_json`.")),
        ("regex", described(string(), once)),
        ("ebnf", described(string(), once)),
        (
            "grammar",
            described(
                json!({"anyOf": [string(), {"type": "object", "required": ["type", "value"],
                "properties": {"type": {"enum": ["json", "regex"]}, "value": schema()}}]}),
                "A grammar as text, or a schema or an expression in the words of TGI; one such field per request.",
            ),
        ),
        ("json_schema", described(schema(), once)),
        ("structural_tag", described(tags, once)),
    ]
}

fn chat_fields() -> Vec<(&'static str, Value)> {
    vec![
        (
            "messages",
            described(
                json!({"type": "array", "minItems": 1, "maxItems": 16384, "items": {"$ref": "#/components/schemas/Message"}}),
                "The conversation, oldest first.",
            ),
        ),
        ("max_completion_tokens", described(integer(1, MAX_U32), "Goes before `max_tokens`.")),
        ("logprobs", described(flag(), "Log-probabilities of the tokens of the reply.")),
        (
            "top_logprobs",
            described(
                integer(-1, MAX_TOP_LOGPROBS),
                "Only together with `logprobs: true`; -1: the whole vocabulary.",
            ),
        ),
        ("echo", described(flag(), "The last message comes first in the content, if it is the assistant's.")),
        ("add_generation_prompt", described(flag(), "Whether the prompt ends where the reply begins.")),
        ("modalities", described(json!({"type": "array", "items": {"const": "text"}}), "Only text.")),
        ("continue_final_message", described(flag(), "The last message is the beginning of the reply.")),
        (
            "tools",
            described(
                json!({"type": "array", "maxItems": 1024, "items": tool()}),
                "Functions that may be called.",
            ),
        ),
        (
            "tool_choice",
            described(
                json!({"anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object", "required": ["type", "function"],
                "properties": {"type": {"const": "function"}, "function": {"type": "object", "required": ["name"],
                    "properties": {"name": string()}}}},
                {"type": "object", "required": ["type", "allowed_tools"], "properties": {"type": {"const": "allowed_tools"},
                    "allowed_tools": {"type": "object", "required": ["mode", "tools"], "properties": {"mode": {"enum": ["auto", "required"]},
                        "tools": {"type": "array", "minItems": 1, "items": {"type": "object"}}}}}}]}),
                "Whether a function may, must or must not be called, or which.",
            ),
        ),
        ("parallel_tool_calls", described(flag(), "Whether a reply may have more than one call.")),
    ]
}

/// Reasoning, in the words of several dialects.
fn reasoning_fields() -> Vec<(&'static str, Value)> {
    vec![
        (
            "chat_template_kwargs",
            described(
                json!({"type": "object"}),
                "Variables of the chat template; `thinking` switches reasoning.",
            ),
        ),
        (
            "thinking",
            described(
                json!({"type": "object", "properties": {"type": {"enum": ["enabled", "adaptive", "disabled"]}, "keep": {"enum": ["all"]},
                "display": {"enum": ["summarized", "omitted"]},
                "budget_tokens": integer(0, MAX_U32)}}),
                "Whether the model reasons first, and for how many tokens.",
            ),
        ),
        (
            "reasoning_effort",
            described(
                json!({"enum": ["none", "minimal", "low", "medium", "high", "xhigh", "max"]}),
                "`none` answers at once; `minimal`, `low` and `medium` reason for at most 256, 1024 and 8192 tokens, the others as long as the operator allows.",
            ),
        ),
        ("thinking_token_budget", described(integer(-1, MAX_U32), "Most reasoning tokens; -1: no limit.")),
        ("include_reasoning", described(flag(), "Whether reasoning is given in the answer.")),
        (
            "separate_reasoning",
            described(flag(), "`false`: reasoning stands in the content, between its markers."),
        ),
    ]
}

/// A declared function.
fn tool() -> Value {
    json!({"type": "object", "required": ["type", "function"], "properties": {"type": {"const": "function"},
        "function": {"type": "object", "required": ["name"], "properties": {
            "name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"}, "description": string(),
            "parameters": {"type": "object"}, "strict": flag()}}}})
}

fn responses_fields() -> Vec<(&'static str, Value)> {
    vec![
        (
            "input",
            described(
                json!({"anyOf": [string(), {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/InputItem"}}]}),
                "A text, or items: messages, function calls and their outputs.",
            ),
        ),
        ("instructions", described(string(), "Stands before the conversation.")),
        (
            "max_output_tokens",
            described(integer(1, MAX_U32), "Most tokens of the reply, reasoning included."),
        ),
        (
            "tools",
            described(json!({"type": "array", "items": {"type": "object"}}), "Functions that may be called."),
        ),
        (
            "tool_choice",
            described(
                json!({"type": ["string", "object"]}),
                "Whether a function may, must or must not be called, or which.",
            ),
        ),
        ("parallel_tool_calls", described(flag(), "Whether a reply may have more than one call.")),
        ("text", described(json!({"type": "object"}), "`format`: what the answer must be.")),
        ("reasoning", described(json!({"type": "object"}), "`effort`.")),
        (
            "include",
            described(
                json!({"type": "array", "items": {"enum": ["message.output_text.logprobs", "reasoning.encrypted_content"]}}),
                "`message.output_text.logprobs`: logprobs of the answer. Nothing is encrypted here.",
            ),
        ),
        (
            "top_logprobs",
            described(
                integer(-1, MAX_TOP_LOGPROBS),
                "Only together with `include: [\"message.output_text.logprobs\"]`; -1: the whole vocabulary.",
            ),
        ),
        ("truncation", described(json!({"const": "disabled"}), "Only `disabled`.")),
        ("metadata", described(json!({"type": "object"}), "Given back as it is.")),
    ]
}

fn messages_fields() -> Vec<(&'static str, Value)> {
    vec![
        ("max_tokens", described(integer(1, MAX_U32), "Most tokens of the reply.")),
        (
            "messages",
            described(
                json!({"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/AnthropicMessage"}}),
                "The conversation, oldest first.",
            ),
        ),
        (
            "system",
            described(
                json!({"anyOf": [string(), {"type": "array", "items": {"type": "object"}}]}),
                "Stands before the conversation.",
            ),
        ),
        (
            "stop_sequences",
            described(json!({"type": "array", "items": string()}), "Texts that end the reply."),
        ),
        (
            "tools",
            described(json!({"type": "array", "items": {"type": "object"}}), "Functions that may be called."),
        ),
        (
            "tool_choice",
            described(
                json!({"type": "object"}),
                "Whether a function may, must or must not be called, or which.",
            ),
        ),
        (
            "thinking",
            described(
                json!({"type": "object", "required": ["type"], "properties": {"type": {"enum": ["enabled", "adaptive", "disabled"]},
                    "keep": {"enum": ["all"]}, "display": {"enum": ["summarized", "omitted"]}, "budget_tokens": integer(0, MAX_U32)}}),
                "Whether the model reasons first, and for how many tokens.",
            ),
        ),
        (
            "output_config",
            described(
                json!({"type": "object", "properties": {"effort": {"type": ["string", "null"]}, "format": answer_format()}}),
                "`format`: what the answer must be. `effort`: how much thinking there is where there is any.",
            ),
        ),
        ("output_format", described(answer_format(), "The name of `output_config.format` in the beta.")),
    ]
}

/// The format of Anthropic's dialect.
fn answer_format() -> Value {
    json!({"anyOf": [{"type": "null"}, {"type": "object", "required": ["type", "schema"],
        "properties": {"type": {"const": "json_schema"}, "schema": {"type": "object"}}}]})
}

fn completion_fields() -> Vec<(&'static str, Value)> {
    let text = || json!({"type": "string", "minLength": 1});
    let ids = || json!({"type": "array", "minItems": 1, "items": integer(0, MAX_U32)});
    vec![
        (
            "prompt",
            described(
                json!({"anyOf": [text(), {"type": "array", "minItems": 1, "maxItems": 1024, "items": text()}, ids(),
                {"type": "array", "minItems": 1, "maxItems": 1024, "items": ids()}]}),
                "A text or its token ids, or a list of either.",
            ),
        ),
        (
            "logprobs",
            described(
                integer(-1, MAX_TOP_LOGPROBS),
                "Log-probabilities of the tokens of the reply, with so many alternatives; -1: the whole vocabulary.",
            ),
        ),
        ("echo", described(flag(), "The prompt comes first in the text; with `logprobs` it is scored.")),
        ("max_completion_tokens", described(integer(0, MAX_U32), "Goes before `max_tokens`.")),
    ]
}

fn tokenize_fields() -> Vec<(&'static str, Value)> {
    vec![
        ("model", described(string(), "One of the names of `/v1/models`; the model served when absent.")),
        (
            "prompt",
            described(
                string(),
                "Either this or `messages`. What is the name of a special token and nothing else is that token.",
            ),
        ),
        (
            "messages",
            described(
                json!({"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/Message"}}),
                "The conversation, oldest first.",
            ),
        ),
        ("add_generation_prompt", described(flag(), "Whether the prompt ends where the reply begins.")),
        (
            "chat_template_kwargs",
            described(
                json!({"type": "object"}),
                "Variables of the chat template; `thinking` switches reasoning.",
            ),
        ),
        ("return_token_strs", described(flag(), "Whether the answer has the text of each token too.")),
        ("continue_final_message", described(flag(), "The last message is the beginning of the reply.")),
        (
            "tools",
            described(
                json!({"type": "array", "maxItems": 1024, "items": tool()}),
                "Functions that may be called.",
            ),
        ),
    ]
}

fn detokenize_fields() -> Vec<(&'static str, Value)> {
    vec![
        ("model", described(string(), "One of the names of `/v1/models`; the model served when absent.")),
        ("tokens", described(json!({"type": "array", "items": integer(0, MAX_U32)}), "Token ids.")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_that_is_read_is_described() {
        let document = document();
        let check = |name: &str, known: Vec<&'static str>, idle: Vec<&'static str>, refused: &[&str]| {
            let described = document["components"]["schemas"][name]["properties"].as_object().unwrap();
            for (field, of) in described {
                let of = if of["anyOf"][1] == json!({"type": "null"}) { &of["anyOf"][0] } else { of };
                assert!(of["description"].is_string(), "{name}.{field} has no description");
            }
            for field in &known {
                let skipped = refused.contains(field) || ForeignBody::fields().contains(field);
                assert_ne!(
                    described.contains_key(*field),
                    skipped,
                    "{name}.{field}: described, or refused, not both"
                );
            }
            for field in described.keys() {
                let read = known.contains(&field.as_str()) || idle.contains(&field.as_str());
                assert!(read, "{name}.{field} is described, but nothing reads it");
            }
        };
        macro_rules! check {
            ($name:literal, $body:ty, $refused:expr) => {
                check($name, <$body>::fields(), <$body>::idle(), $refused)
            };
        }
        check!("ChatRequest", (ChatBody, CommonBody), CHAT_REFUSES);
        check!("RenderRequest", (ChatBody, CommonBody), CHAT_REFUSES);
        check!("CompletionRequest", CompletionBodies, COMPLETIONS_REFUSE);
        check!("ResponsesRequest", (ResponsesBody, CommonBody), RESPONSES_REFUSE);
        check!("MessagesRequest", (MessagesBody, CommonBody), MESSAGES_REFUSE);
        check!("CountTokensRequest", (MessagesBody, CommonBody), MESSAGES_REFUSE);
        check!("TokenizeRequest", TokenizeBody, &[]);
        check!("DetokenizeRequest", DetokenizeBody, &[]);
    }

    #[test]
    fn references_lead_somewhere_and_the_page_lists_every_path() {
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
        for (path, method) in openapi_routes() {
            assert!(openapi_page().contains(&format!("{method}</span> {path}</code>")), "{path}");
        }
        for schema in document["components"]["schemas"].as_object().unwrap().values() {
            assert!(jsonschema::meta::is_valid(schema), "{schema}");
        }
    }
}
