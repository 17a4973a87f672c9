//! What the other dialects have of their own: their fields, their words in errors, their headers.

use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::serve::{Served, runtime};

const ASK: &str = "Make a JSON object with name Ada and age 36.";

async fn post(served: &Served, path: &str, body: Value) -> Response {
    Client::connect(served.addr).await.post(path, &body.to_string()).await
}

fn person() -> Value {
    json!({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"], "additionalProperties": false})
}

#[test]
fn anthropics_output_format_binds_the_reply() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let format = json!({"type": "json_schema", "schema": person()});
        for (field, value) in [("output_config", json!({"format": format})), ("output_format", format.clone())] {
            let mut body = json!({"messages": [{"role": "user", "content": ASK}], "max_tokens": 30, "temperature": 1});
            body[field] = value;
            let answer = post(&served, "/v1/messages", body).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            let text = answer.json()["content"][0]["text"].as_str().unwrap().to_owned();
            let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert!(jsonschema::is_valid(&person(), &value), "{text}");
        }
        // A strict tool's arguments are what its schema says, however the model is drawn.
        let tool = json!({"name": "note", "input_schema": person(), "strict": true});
        let body = json!({"messages": [{"role": "user", "content": "Use the note tool."}], "tools": [tool], "max_tokens": 60,
            "temperature": 1, "tool_choice": {"type": "any"}});
        let answer = post(&served, "/v1/messages", body).await.json();
        assert!(jsonschema::is_valid(&person(), &answer["content"][0]["input"]), "{answer}");
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn errors_speak_of_the_fields_that_the_client_sent() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let tool = |function: Value| json!([function]);
        for (extra, field) in [
            (json!({"input": []}), "input"),
            (json!({"input": [{"role": "king", "content": "x"}]}), "input[0].role"),
            (json!({"max_output_tokens": 0}), "max_output_tokens"),
            (json!({"max_output_tokens": 2, "text": {"format": {"type": "json_schema", "schema": person()}}}), "max_output_tokens"),
            (json!({"text": {"format": {"type": "yaml"}}}), "text.format.type"),
            (json!({"text": {"format": {"type": "json_schema"}}}), "text.format.schema"),
            (json!({"text": {"format": {"type": "json_schema", "schema": {"if": {}}}}}), "text.format"),
            (json!({"reasoning": {"effort": "some"}}), "reasoning.effort"),
            (json!({"tools": tool(json!({"type": "function", "name": "a b"}))}), "tools[0].name"),
        ] {
            let mut body = json!({"input": "Hello"});
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            let answer = post(&served, "/v1/responses", body).await;
            assert_eq!(answer.status, 400, "{extra}: {}", answer.text());
            assert_eq!(answer.json()["error"]["param"], field, "{extra}: {}", answer.text());
        }
        for (extra, field) in [
            (json!({"stop_sequences": [""]}), "stop_sequences"),
            (json!({"tools": tool(json!({"name": "f", "input_schema": []}))}), "tools[0].input_schema"),
            (json!({"output_config": {"format": {"type": "json_schema", "schema": {"if": {}}}}}), "output_config.format"),
            (json!({"thinking": {"type": "enabled"}, "output_config": {"effort": "some"}}), "output_config.effort"),
        ] {
            let mut body = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20});
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            let answer = post(&served, "/v1/messages", body).await;
            assert_eq!(answer.status, 400, "{extra}: {}", answer.text());
            let error = answer.json();
            assert!(error["error"]["message"].as_str().unwrap().starts_with(&format!("`{field}`")), "{extra}: {error}");
            // Their clients look for the id under this name.
            assert_eq!(answer.header("request-id"), answer.header("x-request-id"));
        }
    });
    assert_eq!(served.terminate(), Some(0));
}

/// Evaluation harnesses look up the ids of special tokens by their names, one by one.
#[test]
fn the_name_of_a_special_token_alone_is_that_token() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let info = Client::connect(served.addr).await.get("/tokenizer_info").await.json();
        for name in ["bos_token", "eos_token", "pad_token"] {
            let name = info[name].as_str().unwrap();
            let tokens = post(&served, "/tokenize", json!({"prompt": name})).await.json()["tokens"].clone();
            assert_eq!(tokens.as_array().unwrap().len(), 1, "{name}: {tokens}");
            let back = post(&served, "/detokenize", json!({"tokens": tokens})).await.json();
            assert_eq!(back["prompt"], name);
            // Inside of a text it is text.
            let longer = post(&served, "/tokenize", json!({"prompt": format!("{name}{name}")})).await.json();
            assert!(
                longer["count"].as_u64().unwrap() > 2
                    && !longer["tokens"].as_array().unwrap().contains(&tokens[0])
            );
        }
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn the_models_say_whether_they_reason() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let list = Client::connect(served.addr).await.get("/v1/models").await.json();
        assert_eq!(list["data"][0]["supports_reasoning"], true);
    });
    assert_eq!(served.terminate(), Some(0));
}
