//! Schemas of the answers, by the names that the routes refer to.

use serde_json::{Value, json};

/// All of them.
pub(super) fn schemas() -> Vec<(&'static str, Value)> {
    vec![
        ("ChatAnswer", with(generated(chat_choice()), &of_the_prompt())),
        ("CompletionAnswer", generated(completion_choice())),
        ("ResponsesAnswer", response()),
        ("MessagesAnswer", message()),
        ("CountTokensAnswer", object(&[("input_tokens", count())])),
        (
            "RenderAnswer",
            object(&[
                ("object", string()),
                ("model", string()),
                ("prompt", string()),
                ("count", count()),
                ("max_model_len", count()),
                ("token_ids", ids()),
                ("prompt_token_ids", ids()),
            ]),
        ),
        ("RenderList", list(reference("RenderAnswer"))),
        (
            "TokenizeAnswer",
            object(&[
                ("count", count()),
                ("max_model_len", count()),
                ("tokens", ids()),
                ("token_strs", nullable(list(string()))),
            ]),
        ),
        ("DetokenizeAnswer", object(&[("prompt", string())])),
        (
            "TokenizerInfo",
            object(&[
                ("eos_token", nullable(string())),
                ("vocab_size", count()),
                ("model_max_length", count()),
            ]),
        ),
        ("Model", model()),
        ("ModelList", object(&[("object", constant("list")), ("data", list(reference("Model")))])),
        (
            "Facts",
            object(&[("model_path", string()), ("tokenizer_path", string()), ("context_length", count())]),
        ),
        ("Loads", object(&[("version", string()), ("dp_rank_count", count()), ("loads", list(load()))])),
        ("Health", object(&[("status", string())])),
        ("Version", object(&[("version", string()), ("name", string())])),
    ]
}

/// Load of the one rank.
fn load() -> Value {
    let counts = [
        "dp_rank",
        "num_running_reqs",
        "num_waiting_reqs",
        "num_total_reqs",
        "num_waiting_uncached_tokens",
        "num_used_tokens",
        "max_total_num_tokens",
        "max_running_requests",
    ];
    let shares = ["token_usage", "utilization"];
    let fields = counts.map(|name| (name, count())).into_iter().chain(shares.map(|name| (name, number())));
    object(&fields.collect::<Vec<_>>())
}

/// What chat and text completions have in common.
fn generated(choice: Value) -> Value {
    // The counts of drafted tokens are there only if there were any.
    let mut details = object(&[("reasoning_tokens", count())]);
    for name in ["accepted_prediction_tokens", "rejected_prediction_tokens"] {
        details["properties"][name] = count();
    }
    let usage = object(&[
        ("prompt_tokens", count()),
        ("completion_tokens", count()),
        ("total_tokens", count()),
        ("prompt_tokens_details", object(&[("cached_tokens", count()), ("image_tokens", count())])),
        ("completion_tokens_details", details),
    ]);
    object(&[
        ("id", string()),
        ("object", json!({"enum": ["chat.completion", "text_completion"]})),
        ("created", count()),
        ("model", string()),
        ("choices", json!({"type": "array", "minItems": 1, "items": choice})),
        ("usage", usage),
        ("system_fingerprint", json!({"type": "null"})),
    ])
}

/// What a prompt's tokens are, where that was asked for.
fn of_the_prompt() -> [(&'static str, Value); 2] {
    let scores = list(nullable(json!({"type": "object"})));
    [("prompt_token_ids", nullable(ids())), ("prompt_logprobs", nullable(scores))]
}

fn chat_choice() -> Value {
    let mut message = object(&[
        ("role", constant("assistant")),
        ("content", nullable(string())),
        ("refusal", json!({"type": "null"})),
    ]);
    let function = object(&[("name", string()), ("arguments", string())]);
    let call = object(&[("id", string()), ("type", constant("function")), ("function", function)]);
    message["properties"]["tool_calls"] = json!({"type": "array", "minItems": 1, "items": call});
    for field in ["reasoning_content", "reasoning"] {
        message = with(message, &[(field, nullable(string()))]);
    }
    let token = &[("token", string()), ("logprob", number()), ("bytes", list(count()))][..];
    let scored = [token, &[("top_logprobs", list(object(token)))]].concat();
    let logprobs = object(&[("content", list(object(&scored))), ("refusal", json!({"type": "null"}))]);
    choice(&[("message", message), ("logprobs", nullable(logprobs))])
}

fn completion_choice() -> Value {
    let logprobs = object(&[
        ("tokens", list(string())),
        ("token_logprobs", list(nullable(number()))),
        ("top_logprobs", list(nullable(json!({"type": "object", "additionalProperties": number()})))),
        ("text_offset", list(count())),
    ]);
    with(choice(&[("text", string()), ("logprobs", nullable(logprobs))]), &of_the_prompt())
}

fn choice(own: &[(&str, Value)]) -> Value {
    let finish = json!({"enum": ["stop", "length", "tool_calls", "repetition"]});
    let stop = json!({"type": ["string", "integer", "null"]});
    let fields = [
        ("index", count()),
        ("finish_reason", finish),
        ("stop_reason", stop),
        ("token_ids", nullable(ids())),
    ];
    object(&[&fields, own].concat())
}

fn response() -> Value {
    let usage = object(&[
        ("input_tokens", count()),
        ("input_tokens_details", object(&[("cached_tokens", count())])),
        ("output_tokens", count()),
        ("output_tokens_details", object(&[("reasoning_tokens", count())])),
        ("total_tokens", count()),
    ]);
    let item = object(&[
        ("id", string()),
        ("type", json!({"enum": ["message", "reasoning", "function_call"]})),
        ("status", json!({"enum": ["completed", "incomplete"]})),
    ]);
    object(&[
        ("id", string()),
        ("object", constant("response")),
        ("created_at", count()),
        ("status", json!({"enum": ["completed", "incomplete"]})),
        ("error", json!({"type": "null"})),
        ("incomplete_details", nullable(object(&[("reason", constant("max_output_tokens"))]))),
        ("model", string()),
        ("output", json!({"type": "array", "minItems": 1, "items": item})),
        ("usage", usage),
    ])
}

fn message() -> Value {
    let usage = object(&[
        ("input_tokens", count()),
        ("cache_creation_input_tokens", count()),
        ("cache_read_input_tokens", count()),
        ("output_tokens", count()),
        ("output_tokens_details", object(&[("thinking_tokens", count())])),
    ]);
    object(&[
        ("id", string()),
        ("type", constant("message")),
        ("role", constant("assistant")),
        ("model", string()),
        ("content", list(object(&[("type", json!({"enum": ["text", "thinking", "tool_use"]}))]))),
        ("stop_reason", json!({"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]})),
        ("stop_sequence", nullable(string())),
        ("usage", usage),
    ])
}

fn model() -> Value {
    object(&[
        ("id", string()),
        ("object", constant("model")),
        ("created", count()),
        ("owned_by", string()),
        ("max_model_len", count()),
        ("context_length", count()),
        ("supports_reasoning", json!({"type": "boolean"})),
    ])
}

/// An object that has these members, and may have others.
fn object(fields: &[(&str, Value)]) -> Value {
    let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    let properties: serde_json::Map<String, Value> =
        fields.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    json!({"type": "object", "required": names, "properties": properties})
}

/// An object that has these members too.
fn with(mut object: Value, fields: &[(&str, Value)]) -> Value {
    for (name, schema) in fields {
        object["properties"][*name] = schema.clone();
        if let Some(required) = object["required"].as_array_mut() {
            required.push((*name).into());
        }
    }
    object
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn list(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

fn ids() -> Value {
    list(count())
}

fn nullable(schema: Value) -> Value {
    json!({"anyOf": [schema, {"type": "null"}]})
}

fn constant(text: &str) -> Value {
    json!({"const": text})
}

fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

fn number() -> Value {
    json!({"type": "number"})
}

fn string() -> Value {
    json!({"type": "string"})
}
