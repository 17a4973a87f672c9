use serde_json::{Value, json};

use super::super::ApiError;
use super::super::json::parse;
use super::{ResponsesBody, translate};

fn chat(body: Value) -> Result<Value, ApiError> {
    translate::to_chat(parse::<ResponsesBody>(body.to_string().as_bytes())?)
}

#[test]
fn items_become_turns() {
    let body = json!({
        "model": "m", "instructions": "S", "max_output_tokens": 9, "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Q"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "R"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]},
            {"role": "user", "content": "more"}
        ],
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": true}],
        "tool_choice": {"type": "function", "name": "f"}
    });
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
    assert_eq!(
        chat(body).unwrap(),
        json!({
            "messages": [
                {"role": "system", "content": "S"},
                {"role": "user", "content": "Q"},
                {"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [call("c1"), call("c2")]},
                {"role": "tool", "tool_call_id": "c1", "content": "R"},
                {"role": "assistant", "content": "A"},
                {"role": "user", "content": "more"}
            ],
            "model": "m", "max_completion_tokens": 9,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": true}}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
            "reasoning_effort": "low"
        })
    );
}

#[test]
fn refusals_name_the_place() {
    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": 3}), "input"),
        (json!({"input": [{"role": "user"}]}), "input[0].content"),
        (json!({"input": [{"content": "x"}]}), "input[0].role"),
        (json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}), "input[0].content[0]"),
        (json!({"input": [{"type": "item_reference", "id": "x"}]}), "input[0]"),
        (json!({"input": [{"type": "function_call", "name": "f"}]}), "input[0].call_id"),
        (json!({"input": "x", "tools": [{"type": "web_search"}]}), "tools[0].type"),
    ] {
        let error = chat(body.clone()).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(param), "{body}: {}", error.message);
    }
}
