use serde_json::{Value, json};

use super::super::call::Call;
use super::super::{ApiError, Limits};
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
        (with("tools", json!([{"type": "web_search"}])), "tools[0].type"),
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
        (with("truncation", json!("auto")), "truncation"),
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
