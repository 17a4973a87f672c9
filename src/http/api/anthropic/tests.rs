use serde_json::{Value, json};

use super::super::call::Call;
use super::super::{ApiError, HostedTools, Limits};
use super::{read, read_to_count};
use crate::generate::{Budget, Prompt, SamplingDefaults};

fn call(body: &Value) -> Result<Call, ApiError> {
    read_to_count(body.to_string().as_bytes(), &Limits::default(), &SamplingDefaults::default())
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
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": true}, "stop_sequences": ["x"],
        "thinking": {"type": "enabled", "budget_tokens": 7}, "metadata": {"user_id": "u"}, "unknown": [1]
    });
    let call = call(&body).unwrap();
    let [Prompt::Chat(chat)] = &call.request.prompts[..] else { panic!("one conversation") };
    assert_eq!(
        Value::from(chat.messages.clone()),
        json!([
            {"role": "system", "content": "S\n\nT"},
            {"role": "user", "content": "Q"},
            {"role": "assistant", "content": "A", "reasoning_content": "r", "tool_calls": [
                {"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]},
            {"role": "tool", "tool_call_id": "toolu_1", "content": "R"},
            {"role": "user", "content": [{"type": "text", "text": "and?"}]},
            {"role": "assistant", "content": "Well"}
        ])
    );
    let function = json!({"name": "f", "parameters": {"type": "object"}, "description": "d", "strict": true});
    assert_eq!(Value::from(chat.tools.clone()), json!([{"type": "function", "function": function}]));
    let reply = call.request.chat.unwrap();
    assert_eq!((reply.parallel_calls, reply.budget), (false, Some(Budget::Tokens(7))));
    assert!(chat.continue_final_message);
    // What does not fit the context is not asked for.
    assert_eq!((call.request.max_tokens, call.request.default_max_tokens), (None, Some(5)));
    assert_eq!(call.request.stop, ["x"]);
    assert_eq!(call.request.grammar.map(|spec| spec.field), Some("tools"), "a strict tool");
    assert_eq!(call.unknown.names().collect::<Vec<_>>(), ["unknown"]);
}

#[test]
fn a_format_and_an_effort_stand_in_the_output_config() {
    let format = json!({"type": "json_schema", "schema": {"type": "object"}});
    let body = json!({"messages": [{"role": "user", "content": "Q"}], "thinking": {"type": "enabled"},
        "output_config": {"format": format, "effort": "low"}});
    let found = call(&body).unwrap().request;
    assert_eq!(found.grammar.map(|spec| spec.field), Some("output_config.format"));
    assert_eq!(found.chat.unwrap().budget, Some(Budget::Tokens(1024)));
    let body = json!({"messages": [{"role": "user", "content": "Q"}], "output_config": {"effort": "low", "format": null}});
    let found = call(&body).unwrap().request;
    assert_eq!((found.grammar, found.chat.unwrap().budget), (None, None));
}

#[test]
fn fields_of_chat_mean_the_same() {
    let body = json!({"messages": [{"role": "user", "content": "Q"}], "max_tokens": 50, "seed": 7, "min_p": 0.5, "min_tokens": 20,
        "stop": "x", "guided_regex": "a+", "presence_penalty": 1});
    let call = read(body.to_string().as_bytes(), &Limits::default(), &SamplingDefaults::default()).unwrap();
    let sampling = &call.request.sampling;
    assert_eq!(
        (sampling.seed, sampling.min_p, sampling.min_tokens, sampling.presence_penalty),
        (7, 0.5, 20, 1.0)
    );
    assert_eq!(
        (&call.request.stop[..], call.request.grammar.unwrap().field),
        (&["x".to_owned()][..], "guided_regex")
    );
}

#[test]
fn thinking_can_be_left_out_of_the_answer() {
    let body = |display: &str| json!({"messages": [{"role": "user", "content": "Q"}], "thinking": {"type": "adaptive", "display": display}});
    assert!(call(&body("omitted")).unwrap().format.reasoning.is_none());
    assert!(call(&body("summarized")).unwrap().format.reasoning.is_some());
}

/// Regression: one tool that only Anthropic's own service runs was the end of a request.
#[test]
fn hosted_tools_are_left_out_or_refused() {
    let search = json!({"type": "web_search_20250305", "name": "web_search", "max_uses": 8});
    let own = json!({"type": "custom", "name": "f", "input_schema": {"type": "object"}});
    let body = json!({"messages": [{"role": "user", "content": "Q"}], "tools": [search, own]});
    let found = call(&body).unwrap();
    let [Prompt::Chat(chat)] = &found.request.prompts[..] else { panic!("one conversation") };
    assert_eq!(chat.tools.len(), 1);
    assert_eq!(found.unknown.header().as_deref(), Some("tools[].web_search_20250305"));
    let limits = Limits { hosted_tools: HostedTools::Refuse, ..Limits::default() };
    let read = read_to_count(body.to_string().as_bytes(), &limits, &SamplingDefaults::default());
    assert_eq!(read.unwrap_err().param.as_deref(), Some("tools[0].type"));
}

#[test]
fn refusals_name_the_place() {
    let user = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let with =
        |field: &str, value: Value| json!({"messages": [{"role": "user", "content": "x"}], field: value});
    for (body, param) in [
        (json!({}), "messages"),
        (json!({"messages": 3}), "messages"),
        (json!({"messages": [3]}), "messages[0].role"),
        (json!({"messages": [{"role": "king", "content": "x"}]}), "messages[0].role"),
        (user(json!(3)), "messages[0].content"),
        (user(json!([{}])), "messages[0].content[0].type"),
        (user(json!([{"type": "image", "source": {}}])), "messages[0].content[0].source.type"),
        (user(json!([{"type": "tool_result"}])), "messages[0].content[0].tool_use_id"),
        (
            user(json!([{"type": "tool_result", "tool_use_id": "t", "content": {}}])),
            "messages[0].content[0].content",
        ),
        (
            user(json!([{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "x"}]}])),
            "messages[0].content[0].content[0]",
        ),
        (user(json!([{"type": "document", "source": {}}])), "messages[0].content[0].source.type"),
        (
            json!({"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]}),
            "messages[0].content[0].id",
        ),
        (json!({"messages": [], "mcp_servers": [{"url": "x"}]}), "mcp_servers"),
        (json!({"messages": [], "container": "c"}), "container"),
        (json!({"messages": [], "n": 2}), "n"),
        (
            json!({"messages": [{"role": "user", "content": "x"}], "stop": "x", "stop_sequences": ["y"]}),
            "stop",
        ),
        (with("stop_sequences", json!([""])), "stop_sequences"),
        (json!({"messages": [], "output_config": {"effort": "some"}}), "output_config.effort"),
        (json!({"messages": [{"role": "user", "content": "x"}], "tools": {}}), "tools"),
        (
            json!({"messages": [{"role": "user", "content": "x"}], "tool_choice": {"type": "x"}}),
            "tool_choice.type",
        ),
        (json!({"messages": [{"role": "user", "content": "x"}], "thinking": {"type": "x"}}), "thinking.type"),
        (json!({"messages": [], "system": 3}), "system"),
        (json!({"messages": [], "output_config": 3}), "output_config"),
        (json!({"messages": [], "output_config": {"format": {"type": "x"}}}), "output_config.format.type"),
        (
            json!({"messages": [], "output_config": {"format": {"type": "json_schema"}}}),
            "output_config.format.schema",
        ),
        (json!({"messages": [], "output_format": {"type": "json_schema"}}), "output_format.schema"),
        (
            json!({"messages": [], "output_format": {"type": "json_schema", "schema": 3}}),
            "output_format.schema",
        ),
        (json!({"messages": []}), "messages"),
        (with("tools", json!([{"name": "a b"}])), "tools[0].name"),
        (with("tools", json!([{"name": "f", "input_schema": 3}])), "tools[0].input_schema"),
        (with("tool_choice", json!({"type": "tool"})), "tool_choice.name"),
        (with("tool_choice", json!({"type": "any"})), "tool_choice"),
        (with("output_config", json!({"effort": 3})), "output_config.effort"),
    ] {
        let error = call(&body).map(|_| ()).expect_err(&body.to_string());
        assert_eq!(error.param.as_deref(), Some(param), "{body}: {}", error.message);
    }
}

/// Regression: a conversation that began where a service ran tools could not go on.
#[test]
fn what_a_service_ran_stands_as_calls_and_their_results() {
    let page = json!({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}});
    let blocks = json!([
        {"type": "text", "text": "S"},
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}},
        {"type": "server_tool_use", "id": "s2", "name": "web_fetch", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [
            {"type": "web_search_result", "url": "https://a", "page_age": null, "encrypted_content": "SECRET"}]},
        {"type": "web_fetch_tool_result", "tool_use_id": "s2", "content": {"type": "web_fetch_result", "content": page}},
        {"type": "mcp_tool_use", "id": "m1", "name": "note", "server_name": "n", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "m1", "is_error": true, "content": [{"type": "text", "text": "R"}]},
        {"type": "text", "text": "A"}
    ]);
    let body =
        json!({"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": blocks}]});
    let call = call(&body).unwrap();
    let [Prompt::Chat(chat)] = &call.request.prompts[..] else { panic!("one conversation") };
    let called = |id: &str, name: &str, input: Value| json!({"id": id, "type": "function", "function": {"name": name, "arguments": input}});
    let fetched = json!({"type": "web_fetch_result", "content": {"type": "document",
        "source": {"type": "base64", "media_type": "application/pdf"}}});
    assert_eq!(
        Value::from(chat.messages.clone()),
        json!([
            {"role": "user", "content": "Q"},
            {"role": "assistant", "content": "S", "tool_calls": [
                called("s1", "web_search", json!({"query": "x"})), called("s2", "web_fetch", json!({}))]},
            {"role": "tool", "tool_call_id": "s1",
                "content": json!([{"type": "web_search_result", "url": "https://a"}]).to_string()},
            {"role": "tool", "tool_call_id": "s2", "content": fetched.to_string()},
            {"role": "assistant", "content": "", "tool_calls": [called("m1", "note", json!({}))]},
            {"role": "tool", "tool_call_id": "m1", "content": "Error: R"},
            {"role": "assistant", "content": "A"}
        ])
    );
    assert!(chat.continue_final_message, "the last turn is the beginning of the reply");
}

#[test]
fn a_limit_is_required_for_a_reply() {
    let body = json!({"messages": [{"role": "user", "content": "Q"}]}).to_string();
    let error =
        read(body.as_bytes(), &Limits::default(), &SamplingDefaults::default()).map(|_| ()).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("max_tokens"));
}
