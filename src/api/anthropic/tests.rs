use serde_json::{Value, json};

use super::super::ApiError;
use super::super::json::parse;
use super::{MessagesBody, translate};

fn chat(body: Value) -> Result<Value, ApiError> {
    translate::to_chat(parse::<MessagesBody>(body.to_string().as_bytes())?)
}

#[test]
fn a_conversation_with_tools_becomes_a_chat() {
    let body = json!({
        "model": "m", "max_tokens": 5, "system": [{"type": "text", "text": "S"}, {"type": "text", "text": "T", "cache_control": {}}],
        "messages": [
            {"role": "user", "content": "Q"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "r", "signature": "x"}, {"type": "text", "text": "A"},
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "R"}]},
                {"type": "text", "text": "and?"}]},
            {"role": "assistant", "content": "Well"}
        ],
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}, "strict": true}],
        "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}, "effort": "low"},
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": true}, "stop_sequences": ["x"],
        "thinking": {"type": "enabled", "budget_tokens": 7}, "metadata": {"user_id": "u"}, "unknown": [1]
    });
    assert_eq!(
        chat(body).unwrap(),
        json!({
            "messages": [
                {"role": "system", "content": "S\n\nT"},
                {"role": "user", "content": "Q"},
                {"role": "assistant", "content": "A", "reasoning_content": "r", "tool_calls": [
                    {"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]},
                {"role": "tool", "tool_call_id": "toolu_1", "content": "R"},
                {"role": "user", "content": [{"type": "text", "text": "and?"}]},
                {"role": "assistant", "content": "Well", "partial": true}
            ],
            "max_tokens": 5, "model": "m", "stop": ["x"],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "description": "d", "strict": true}}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "output", "schema": {"type": "object"}}}, "reasoning_effort": "low",
            "thinking": {"type": "enabled", "budget_tokens": 7}, "tool_choice": "auto", "parallel_tool_calls": false
        })
    );
}

#[test]
fn thinking_can_be_left_out_of_the_answer() {
    let body = |display: &str| json!({"messages": [{"role": "user", "content": "Q"}], "thinking": {"type": "adaptive", "display": display}});
    assert_eq!(chat(body("omitted")).unwrap()["include_reasoning"], false);
    assert_eq!(chat(body("summarized")).unwrap().get("include_reasoning"), None);
}

#[test]
fn refusals_name_the_place() {
    let user = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    for (body, param) in [
        (json!({}), "messages"),
        (json!({"messages": 3}), "messages"),
        (json!({"messages": [3]}), "messages[0].role"),
        (json!({"messages": [{"role": "king", "content": "x"}]}), "messages[0].role"),
        (user(json!(3)), "messages[0].content"),
        (user(json!([{}])), "messages[0].content[0].type"),
        (user(json!([{"type": "image", "source": {}}])), "messages[0].content[0]"),
        (user(json!([{"type": "tool_result"}])), "messages[0].content[0].tool_use_id"),
        (
            json!({"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]}),
            "messages[0].content[0].id",
        ),
        (json!({"messages": [], "tools": {}}), "tools"),
        (json!({"messages": [], "tools": [{"type": "web_search_20250305"}]}), "tools[0].type"),
        (json!({"messages": [], "tool_choice": {"type": "x"}}), "tool_choice.type"),
        (json!({"messages": [], "thinking": {"type": "x"}}), "thinking.type"),
        (json!({"messages": [], "system": 3}), "system"),
        (json!({"messages": [], "output_config": 3}), "output_config"),
        (json!({"messages": [], "output_config": {"format": {"type": "x"}}}), "output_config.format.type"),
        (
            json!({"messages": [], "output_config": {"format": {"type": "json_schema"}}}),
            "output_config.format.schema",
        ),
        (json!({"messages": [], "output_format": {"type": "json_schema"}}), "output_format.schema"),
    ] {
        let error = chat(body.clone()).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(param), "{body}: {}", error.message);
    }
}
