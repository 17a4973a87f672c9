use serde_json::{Value, json};

use super::super::call::Call;
use super::super::client_tools::{ClientTool, ToolKind};
use super::super::{ApiError, HostedTools, Limits};
use super::read;
use crate::generate::{Prompt, SamplingDefaults};
use perigee_text::grammar::AnswerFormat;

fn call(body: &Value) -> Result<Call, ApiError> {
    read(body.to_string().as_bytes(), &Limits::default(), &SamplingDefaults::default())
}

#[test]
fn items_become_turns() {
    let body = json!({
        "model": "m", "instructions": "S", "max_output_tokens": 9, "reasoning": {"effort": "low"},
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
    let tool_call =
        |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let call = call(&body).unwrap();
    let [Prompt::Chat(chat)] = &call.request.prompts[..] else { panic!("one conversation") };
    assert_eq!(
        Value::from(chat.messages.clone()),
        json!([
            {"role": "system", "content": "S"},
            {"role": "user", "content": "Q"},
            {"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [tool_call("c1"), tool_call("c2")]},
            {"role": "tool", "tool_call_id": "c1", "content": "R"},
            {"role": "assistant", "content": "A"},
            {"role": "user", "content": "more"}
        ])
    );
    let function = json!({"name": "f", "parameters": {"type": "object"}, "strict": true});
    assert_eq!(Value::from(chat.tools.clone()), json!([{"type": "function", "function": function}]));
    assert_eq!((call.model.as_deref(), call.request.max_tokens), (Some("m"), Some(9)));
    assert!(call.request.chat.is_some_and(|chat| chat.budget.is_some()), "an effort is a budget");
    assert_eq!(call.request.grammar.map(|spec| spec.field), Some("tool_choice"));
}

/// Fields that chat has and this route dropped without a word.
#[test]
fn what_chat_honours_is_honoured() {
    let call = call(&json!({
        "input": "x", "stop": ["END"], "seed": 7, "top_k": 3, "min_p": 0.25, "min_tokens": 40, "ignore_eos": true,
        "logit_bias": {"5": -100}, "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.5,
        "chat_template_kwargs": {"thinking": false}, "stop_token_ids": [9], "n": 1, "include": ["message.output_text.logprobs"],
        "top_logprobs": 2, "return_tokens_as_token_ids": true, "bad_words": ["no"], "priority": 3, "cache_salt": "s"
    }))
    .unwrap();
    let (request, sampling) = (&call.request, &call.request.sampling);
    assert_eq!((&request.stop[..], request.ignore_eos, request.priority), (&["END".to_owned()][..], true, 3));
    assert_eq!((sampling.seed, sampling.top_k, sampling.min_p, sampling.min_tokens), (7, 3, 0.25, 40));
    assert_eq!((sampling.presence_penalty, sampling.frequency_penalty), (1.0, -1.0));
    assert_eq!((sampling.repetition_penalty, sampling.logprobs), (1.5, Some(2)));
    assert_eq!((&sampling.logit_bias[..], &sampling.stop_token_ids[..]), (&[(5, -100.0)][..], &[9][..]));
    assert_eq!((&request.bad_words[..], request.cache_salt.as_deref()), (&["no".to_owned()][..], Some("s")));
    assert!(call.format.tokens_as_ids && call.format.logprobs);
    let [Prompt::Chat(chat)] = &request.prompts[..] else { panic!("one conversation") };
    assert_eq!(chat.kwargs.as_ref().unwrap()["thinking"], false);
}

#[test]
fn a_shape_may_be_asked_for_in_every_way() {
    let schema = json!({"type": "object"});
    for (extra, field) in [
        (json!({"text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}}), "text.format"),
        (json!({"text": {"format": {"type": "json_object"}}}), "text.format"),
        (json!({"response_format": {"type": "json_object", "schema": schema}}), "response_format"),
        (json!({"structured_outputs": {"json": schema}}), "structured_outputs"),
        (json!({"guided_json": schema}), "guided_json"),
    ] {
        let mut body = json!({"input": "x"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let spec = call(&body).unwrap().request.grammar.unwrap();
        assert_eq!(spec.field, field);
        assert!(matches!(spec.format, AnswerFormat::Json { .. }), "{extra}");
    }
}

#[test]
fn refusals_name_the_place() {
    let with = |field: &str, value: Value| json!({"input": "x", field: value});
    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": 3}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": [{"role": "user"}]}), "input[0].content"),
        (json!({"input": [{"content": "x"}]}), "input[0].role"),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
            "input[0].content[0].image_url",
        ),
        (json!({"input": [{"type": "item_reference", "id": "x"}]}), "input[0]"),
        (json!({"input": [{"type": "function_call", "name": "f"}]}), "input[0].call_id"),
        (json!({"input": [{"type": "note", "role": "user", "content": "x"}]}), "input[0]"),
        (json!({"input": [{"type": "custom_tool_call", "call_id": "c", "name": "f"}]}), "input[0].input"),
        (json!({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}), "input[0].arguments"),
        (json!({"input": [{"type": "additional_tools"}]}), "input[0].tools"),
        (with("tools", json!([{"name": "f"}])), "tools[0].type"),
        (with("tools", json!([{"type": "namespace", "tools": []}])), "tools[0].name"),
        (with("tools", json!([{"type": "namespace", "name": "n"}])), "tools[0].tools"),
        (
            with("tools", json!([{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}])),
            "tools[0].tools[0].name",
        ),
        (with("tools", json!([{"type": "custom"}])), "tools[0].name"),
        (
            with("tools", json!([{"type": "function", "name": "f"}, {"type": "custom", "name": "f"}])),
            "tools[1].name",
        ),
        (with("tools", json!([{"type": "function", "name": "a b"}])), "tools[0].name"),
        (
            with("tool_choice", json!({"type": "allowed_tools", "mode": "auto", "tools": []})),
            "tool_choice.tools",
        ),
        (with("tool_choice", json!({"type": "function"})), "tool_choice.name"),
        (with("tool_choice", json!({"type": "allowed_tools"})), "tool_choice.mode"),
        (with("text", json!({"format": {"type": "json_schema"}})), "text.format.schema"),
        (
            with("text", json!({"format": {"type": "json_schema", "name": "", "schema": {}}})),
            "text.format.name",
        ),
        (with("max_output_tokens", json!(0)), "max_output_tokens"),
        (with("max_tokens", json!(0)), "max_tokens"),
        (with("n", json!(2)), "n"),
        (with("prompt_logprobs", json!(1)), "prompt_logprobs"),
        (with("return_token_ids", json!(true)), "return_token_ids"),
        (with("top_logprobs", json!(1)), "top_logprobs"),
        (with("include", json!(["everything"])), "include[0]"),
        (with("metadata", json!([null])), "metadata"),
        (with("truncation", json!("some")), "truncation"),
        (with("reasoning", json!({"effort": "some"})), "reasoning.effort"),
        (with("reasoning", json!({"effort": 1})), "reasoning.effort"),
        (with("reasoning_effort", json!("some")), "reasoning_effort"),
        (with("text", json!({"format": {"type": "yaml"}})), "text.format.type"),
        (with("text", json!({"format": {"type": "json_schema", "schema": {}, "x": 1}})), "text.format.x"),
        (with("mirostat", json!(2)), "mirostat"),
    ] {
        let error = call(&body).map(|_| ()).expect_err(&body.to_string());
        assert_eq!(error.param.as_deref(), Some(param), "{body}: {}", error.message);
    }
    let both = json!({"input": "x", "text": {"format": {"type": "json_object"}}, "response_format": {"type": "json_object"}});
    assert_eq!(call(&both).map(|_| ()).unwrap_err().param.as_deref(), Some("response_format"));
}

#[test]
fn unknown_members_are_named() {
    let call = call(
        &json!({"input": "x", "temprature": 1, "text": {"verbosity": "low", "tone": "x"}, "logprobs": true}),
    );
    let unknown = call.unwrap().unknown;
    assert_eq!(unknown.names().collect::<Vec<_>>(), ["temprature", "logprobs", "text.tone"]);
}

fn names(call: &Call) -> Vec<String> {
    let [Prompt::Chat(chat)] = &call.request.prompts[..] else { panic!("one conversation") };
    chat.tools.iter().map(|tool| tool["function"]["name"].as_str().unwrap().to_owned()).collect()
}

/// Regression: every request of Codex was refused.
#[test]
fn tools_of_every_type_are_functions_or_left_out() {
    let function = |name: &str| json!({"type": "function", "name": name, "parameters": {"type": "object"}});
    let grammar = json!({"type": "grammar", "syntax": "lark", "definition": "start: /.+/"});
    let patch =
        json!({"type": "custom", "name": "apply_patch", "description": "Patches.", "format": grammar});
    let body = json!({"input": "x", "tools": [
        function("f"),
        {"type": "namespace", "name": "mcp__files", "tools": [function("g"), {"type": "web_search"}]},
        {"type": "namespace", "name": "functions", "tools": [{"type": "custom", "name": "exec"}]},
        patch,
        {"type": "tool_search", "execution": "client", "description": "d", "parameters": {"type": "object"}},
        {"type": "web_search", "external_web_access": false}, {"type": "mcp", "server_label": "s"},
        {"type": "local_shell"}, {"type": "of_next_year"}, {"type": "tool_search", "execution": "server"}
    ]});
    let call = call(&body).unwrap();
    assert_eq!(names(&call), ["f", "mcp__files__g", "exec", "apply_patch", "tool_search"]);
    let left_out = [
        "tools[].web_search",
        "tools[].mcp",
        "tools[].local_shell",
        "tools[].of_next_year",
        "tools[].tool_search",
        "tools[].format",
    ];
    assert_eq!(call.unknown.names().collect::<Vec<_>>(), left_out);
    let of = |name: &str| call.format.client_tools.of(name);
    let tool = |kind, namespace: Option<&str>, name: &str| ClientTool {
        kind,
        namespace: namespace.map(str::to_owned),
        name: name.into(),
    };
    assert_eq!(of("f"), tool(ToolKind::Function, None, "f"));
    assert_eq!(of("mcp__files__g"), tool(ToolKind::Function, Some("mcp__files"), "g"));
    assert_eq!(of("exec"), tool(ToolKind::Custom, None, "exec"));
    assert_eq!(of("tool_search"), tool(ToolKind::Search, None, "tool_search"));
}

#[test]
fn hosted_tools_and_their_items_are_refused_where_the_operator_says_so() {
    let limits = Limits { hosted_tools: HostedTools::Refuse, ..Limits::default() };
    for (body, param, name) in [
        (json!({"input": "x", "tools": [{"type": "web_search"}]}), "tools[0].type", "tools[].web_search"),
        (
            json!({"input": [{"role": "user", "content": "x"}, {"type": "compaction"}]}),
            "input[1]",
            "input[].compaction",
        ),
    ] {
        let read = |limits| read(body.to_string().as_bytes(), limits, &SamplingDefaults::default());
        let error = read(&limits).map(|_| ()).unwrap_err();
        assert_eq!((error.status, error.param.as_deref()), (400, Some(param)));
        assert!(error.message.contains("server.hosted_tools"), "{}", error.message);
        assert_eq!(read(&Limits::default()).unwrap().unknown.names().collect::<Vec<_>>(), [name]);
    }
}

#[test]
fn a_choice_names_the_clients_tools() {
    let tools = json!([
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}]},
        {"type": "custom", "name": "c"}, {"type": "function", "name": "f"}, {"type": "web_search"}
    ]);
    let chosen = |choice: Value| {
        let call = call(&json!({"input": "x", "tools": tools, "tool_choice": choice})).unwrap();
        match call.request.grammar.unwrap().format {
            AnswerFormat::Tools(calls) => format!("{calls:?}"),
            other => panic!("{other:?}"),
        }
    };
    assert!(chosen(json!({"type": "custom", "name": "c"})).contains("Named(\"c\")"));
    assert!(chosen(json!({"type": "function", "namespace": "n", "name": "g"})).contains("Named(\"n__g\")"));
    let some = json!([{"type": "function", "namespace": "n", "name": "g"}, {"type": "custom", "name": "c"},
        {"type": "web_search"}, {"type": "mcp", "server_label": "s"}]);
    let allowed = chosen(json!({"type": "allowed_tools", "mode": "auto", "tools": some}));
    assert!(
        allowed.contains("\"n__g\"") && allowed.contains("\"c\"") && !allowed.contains("\"f\""),
        "{allowed}"
    );
}

/// Regression: the second request of Codex was refused.
#[test]
fn items_of_every_tool_are_calls_and_results() {
    let body = json!({"input": [
        {"role": "user", "content": "Q"},
        {"type": "reasoning", "summary": [], "encrypted_content": "e"},
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "x"},
        {"type": "function_call", "call_id": "c2", "namespace": "n", "name": "g", "arguments": "{}"},
        {"type": "local_shell_call", "call_id": "c3", "status": "completed", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "ok"}]},
        {"type": "local_shell_call_output", "call_id": "c3", "output": "a"},
        {"type": "shell_call_output", "call_id": "c2", "output": [{"stdout": "s"}]},
        {"type": "tool_search_call", "call_id": "c4", "execution": "client", "arguments": {"query": "q"}},
        {"type": "tool_search_output", "call_id": "c4", "execution": "client", "tools": [
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}]}]},
        {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "q"}},
        {"type": "mcp_call", "id": "mcp_1", "name": "m", "arguments": "{\"a\":1}", "output": "R", "server_label": "s"},
        {"type": "image_generation_call", "id": "ig_1", "result": "AAAA"},
        {"type": "compaction", "encrypted_content": "e"},
        {"type": "additional_tools", "role": "developer", "tools": [{"type": "custom", "name": "exec"}]},
        {"role": "user", "content": "more"}
    ]});
    let call = call(&body).unwrap();
    let [Prompt::Chat(chat)] = &call.request.prompts[..] else { panic!("one conversation") };
    let called = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let turn = |calls: Value| json!({"role": "assistant", "content": "", "tool_calls": calls});
    let result = |id: &str, text: &str| json!({"role": "tool", "tool_call_id": id, "content": text});
    let action = r#"{"action":{"type":"exec","command":["ls"]}}"#;
    let expected = json!([
        {"role": "user", "content": "Q"},
        turn(json!([called("c1", "apply_patch", r#"{"input":"x"}"#), called("c2", "n__g", "{}"), called("c3", "local_shell", action)])),
        result("c1", "ok"), result("c3", "a"), result("c2", r#"[{"stdout":"s"}]"#),
        turn(json!([called("c4", "tool_search", r#"{"query":"q"}"#)])), result("c4", "n__g"),
        turn(json!([called("input[11]", "m", r#"{"a":1}"#)])), result("input[11]", "R"),
        {"role": "user", "content": "more"}
    ]);
    assert_eq!(Value::from(chat.messages.clone()), expected);
    assert_eq!(names(&call), ["n__g", "exec"]);
    let left_out = ["input[].web_search_call", "input[].image_generation_call", "input[].compaction"];
    assert_eq!(call.unknown.names().collect::<Vec<_>>(), left_out);
    let error =
        self::call(&json!({"input": [{"type": "item_reference", "id": "msg_1"}]})).map(|_| ()).unwrap_err();
    assert_eq!(error.status, 404);
    assert!(error.message.contains("`msg_1` not found"), "{}", error.message);
}
