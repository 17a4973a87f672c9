//! Requests of agents and gateways, in the shapes in which they send them to every server.

use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::serve::{Served, runtime};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";

async fn post(served: &Served, path: &str, body: &Value) -> Response {
    Client::connect(served.addr).await.post(path, &body.to_string()).await
}

async fn answer(served: &Served, path: &str, body: &Value) -> Value {
    let response = post(served, path, body).await;
    assert_eq!(response.status, 200, "{body}: {}", response.text());
    response.json()
}

fn chunks(response: &Response) -> Vec<Value> {
    let events = response.events();
    events[..events.len() - 1].iter().map(|event| serde_json::from_str(event).unwrap()).collect()
}

/// Regression: a tool that only Anthropic's service runs, a document, and the results of hosted tools were each the end of a request.
#[test]
fn what_claude_code_sends_is_answered() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let result = |extra: Value| {
            let mut block = json!({"type": "tool_result", "tool_use_id": "t1", "content": "no such file"});
            block.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            block
        };
        let document = json!({"type": "document", "title": "a", "source": {"type": "text", "media_type": "text/plain", "data": "Port 8000."}});
        let body = |block: Value| {
            json!({"max_tokens": 2, "thinking": {"type": "disabled"}, "tools": [
                    {"name": "Read", "input_schema": {"type": "object"}}, {"type": "web_search_20250305", "name": "web_search"}],
                "messages": [
                    {"role": "user", "content": [document, {"type": "text", "text": "Read it."}]},
                    {"role": "assistant", "content": [
                        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}},
                        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [
                            {"type": "web_search_result", "title": "T", "url": "https://a", "encrypted_content": "SECRET"}]},
                        {"type": "text", "text": "Found."},
                        {"type": "tool_use", "id": "t1", "name": "Read", "input": {}}]},
                    {"role": "user", "content": [block]}]})
        };
        let mut prompts = Vec::new();
        for (extra, shown) in [
            (json!({}), "no such file"),
            (json!({"is_error": true}), "Error: no such file"),
            (json!({"content": [{"type": "tool_reference", "tool_name": "Read"}]}), "Read\n"),
            (json!({"content": [document]}), "<document>\n<title>a</title>\nPort 8000.\n</document>\n"),
        ] {
            let body = body(result(extra));
            let response = post(&served, MESSAGES, &body).await;
            assert_eq!(response.status, 200, "{}", response.text());
            assert_eq!(response.header("x-perigee-ignored-fields"), Some("tools[].web_search_20250305"));
            let rendered = answer(&served, "/v1/messages/render", &body).await.to_string();
            let shown = json!(shown).to_string();
            assert!(rendered.contains(shown.trim_matches('"')), "{shown}: {rendered}");
            assert!(rendered.contains("https://a") && !rendered.contains("SECRET"), "{rendered}");
            prompts.push(rendered);
        }
        assert!(!prompts[0].contains("Error: ") && prompts[1].contains("Error: "));
    });
    assert_eq!(served.terminate(), Some(0));
    let strict = Served::start(None, &["server.hosted_tools=refuse"]);
    runtime().block_on(async {
        let messages = json!([{"role": "user", "content": "Hi"}]);
        for (path, body) in [
            (MESSAGES, json!({"max_tokens": 2, "messages": messages, "tools": [{"type": "web_search_20250305", "name": "x"}]})),
            (CHAT, json!({"messages": messages, "tools": [{"type": "web_search"}]})),
        ] {
            let response = post(&strict, path, &body).await;
            assert_eq!(response.status, 400, "{}", response.text());
            assert!(response.text().contains("server.hosted_tools"), "{}", response.text());
        }
    });
    assert_eq!(strict.terminate(), Some(0));
}

/// Regression: agents send a constant limit, which was a 400 near the end of every context, and did not know the words for a prompt
/// that is too long.
#[test]
fn the_end_of_the_context_is_told_in_anthropics_words() {
    let served = Served::start(None, &["scheduler.max_model_len=128"]);
    runtime().block_on(async {
        let mut body = json!({"max_tokens": 32_000, "ignore_eos": true, "temperature": 0, "repetition_guard": "off",
            "thinking": {"type": "disabled"}, "messages": [{"role": "user", "content": "Hi"}]});
        let whole = answer(&served, MESSAGES, &body).await;
        assert_eq!(whole["stop_reason"], "model_context_window_exceeded", "{whole}");
        body["stream"] = true.into();
        let stream = post(&served, MESSAGES, &body).await;
        assert!(stream.text().contains(r#""stop_reason":"model_context_window_exceeded""#), "{}", stream.text());
        (body["stream"], body["max_tokens"]) = (false.into(), 5.into());
        assert_eq!(answer(&served, MESSAGES, &body).await["stop_reason"], "max_tokens");
        body["messages"][0]["content"] = "word ".repeat(300).into();
        let long = post(&served, MESSAGES, &body).await;
        let message = long.json()["error"]["message"].as_str().unwrap().to_owned();
        assert_eq!(long.status, 400);
        assert!(message.starts_with("prompt is too long: ") && message.contains(" tokens > 127 maximum"), "{message}");
        let counted = answer(&served, "/v1/messages/count_tokens", &body).await;
        assert!(message.contains(&format!("{} tokens > ", counted["input_tokens"])), "{message}");
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn every_delta_of_chat_says_whether_there_is_reasoning() {
    for (setting, there, not) in [
        ("reasoning.field=both", &["reasoning_content", "reasoning"][..], &[][..]),
        ("reasoning.field=reasoning_content", &["reasoning_content"], &["reasoning"]),
        ("reasoning.field=reasoning", &["reasoning"], &["reasoning_content"]),
    ] {
        let served = Served::start(None, &[setting]);
        runtime().block_on(async {
            let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
            let body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 60, "stream": true, "temperature": 0});
            let (mut thinks, mut calls) = (body.clone(), body.clone());
            thinks["thinking"] = true.into();
            (calls["thinking"], calls["tools"], calls["tool_choice"]) = (false.into(), json!([tool]), "any".into());
            for body in [thinks, calls] {
                for chunk in chunks(&post(&served, CHAT, &body).await) {
                    let delta = &chunk["choices"][0]["delta"];
                    assert!(there.iter().all(|name| delta.get(name).is_some()), "{setting}: {chunk}");
                    assert!(not.iter().all(|name| delta.get(name).is_none()), "{setting}: {chunk}");
                }
            }
        });
        assert_eq!(served.terminate(), Some(0));
    }
}

/// Code from before `tools` reads the call where it stood then.
#[test]
fn functions_are_called_in_the_form_of_their_time() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let function = json!({"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}});
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 60, "temperature": 0,
            "functions": [function], "function_call": {"name": "f"}});
        let choice = answer(&served, CHAT, &body).await["choices"][0].clone();
        assert_eq!(choice["finish_reason"], "function_call", "{choice}");
        let call = &choice["message"]["function_call"];
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert!(call["name"] == "f" && arguments["a"].is_number(), "{choice}");
        assert!(choice["message"].get("tool_calls").is_none(), "{choice}");
        body["stream"] = true.into();
        let (mut name, mut said) = (String::new(), String::new());
        for chunk in chunks(&post(&served, CHAT, &body).await) {
            let piece = &chunk["choices"][0]["delta"]["function_call"];
            name.push_str(piece["name"].as_str().unwrap_or_default());
            said.push_str(piece["arguments"].as_str().unwrap_or_default());
        }
        assert_eq!((json!(name), json!(said)), (call["name"].clone(), call["arguments"].clone()));
        // And goes on so.
        let messages = json!([{"role": "user", "content": "Hi"}, choice["message"], {"role": "function", "name": "f", "content": "7"}]);
        (body["stream"], body["messages"]) = (false.into(), messages);
        body["function_call"] = "none".into();
        let said = answer(&served, CHAT, &body).await["choices"][0].clone();
        assert_eq!(said["finish_reason"], "stop", "{said}");
    });
    assert_eq!(served.terminate(), Some(0));
}

/// Regression: Cursor sends the form of the Responses API to the URL of chat.
#[test]
fn the_form_of_the_responses_api_is_answered_as_chat() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let limits = json!({"max_output_tokens": 20, "temperature": 0, "thinking": false});
        let with = |more: Value| {
            let mut body = limits.clone();
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        };
        let ask = json!([{"role": "user", "content": "Which port does Perigee listen on?"}]);
        let chat = answer(&served, CHAT, &with(json!({"messages": ask}))).await;
        let input = answer(&served, CHAT, &with(json!({"input": ask}))).await;
        assert_eq!(input["choices"], chat["choices"]);
        let told = json!({"input": ask, "instructions": "Be brief."});
        let prompt = answer(&served, "/v1/chat/completions/render", &with(told)).await.to_string();
        assert!(prompt.contains("Be brief."), "{prompt}");
        let both = post(&served, CHAT, &with(json!({"input": ask, "messages": ask}))).await;
        assert_eq!((both.status, both.json()["error"]["param"].clone()), (400, json!("input")));
    });
    assert_eq!(served.terminate(), Some(0));
}

/// Regression: fields of other servers were ignored with a header where they would have changed the reply.
#[test]
fn fields_of_other_servers_mean_what_they_mean_there() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let body = |more: Value| {
            let mut body = json!({"messages": [{"role": "user", "content": "Which port does Perigee listen on?"}],
                "temperature": 0, "thinking": false});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        };
        for (theirs, ours) in [
            (json!({"num_predict": 3}), json!({"max_tokens": 3})),
            (json!({"num_predict": -2}), json!({})),
            (json!({"max_new_tokens": 3, "max_output_tokens": 3}), json!({"max_tokens": 3})),
            (json!({"stop_sequences": ["80"]}), json!({"stop": ["80"]})),
            (json!({"temperature": 2, "do_sample": false}), json!({})),
            (
                json!({"temperature": 2, "max_tokens": 20, "random_seed": 7}),
                json!({"temperature": 2, "max_tokens": 20, "seed": 7}),
            ),
            (json!({"extra_body": {"max_tokens": 3, "top_k": 5}}), json!({"max_tokens": 3, "top_k": 5})),
            (json!({"suppress_tokens": [100, 101]}), json!({"logit_bias": {"100": -100, "101": -100}})),
            (json!({"banned_strings": ["8000"]}), json!({"bad_words": ["8000"]})),
            (json!({"json_mode": true}), json!({"response_format": {"type": "json_object"}})),
            (json!({"repeat_last_n": 64}), json!({})),
        ] {
            let (theirs, ours) = (body(theirs), body(ours));
            let asked = answer(&served, CHAT, &theirs).await;
            assert_eq!(asked["choices"], answer(&served, CHAT, &ours).await["choices"], "{theirs}");
        }
        for (more, param) in [
            (json!({"num_predict": 3, "max_tokens": 4}), "num_predict"),
            (json!({"random_seed": 1, "seed": 2}), "random_seed"),
            (json!({"stop": "a", "stop_sequences": ["b"]}), "stop"),
            (json!({"repeat_last_n": 64, "repeat_penalty": 1.5}), "repeat_last_n"),
            (json!({"suppress_tokens": [99_999_999]}), "suppress_tokens"),
            (json!({"extra_body": {"temperature": 1}}), "extra_body.temperature"),
            (json!({"extra_body": 3}), "extra_body"),
            (json!({"num_beams": 4}), "num_beams"),
        ] {
            let refused = post(&served, CHAT, &body(more.clone())).await;
            assert_eq!((refused.status, refused.json()["error"]["param"].as_str()), (400, Some(param)), "{more}");
        }
    });
    assert_eq!(served.terminate(), Some(0));
}
