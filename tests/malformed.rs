//! Hostile and mistaken requests: each gets a 4xx with an error object, and the server answers the next one.

use perigee_http::server::Config;
use serde_json::{Value, json};

use crate::client::{Client, Response, post};
use crate::fake::{self, FakeEngine, serve};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// Asserts the error's shape; gives the error.
fn check(what: &str, response: &Response) -> Value {
    assert!((400..500).contains(&response.status), "{what}: {} {}", response.status, response.text());
    assert_eq!(response.header("content-type"), Some("application/json"), "{what}");
    assert!(response.header("x-request-id").is_some(), "{what}");
    let error = response.json()["error"].clone();
    let object = error.as_object().unwrap_or_else(|| panic!("{what}: an error object"));
    assert!(object["message"].as_str().is_some_and(|m| !m.is_empty() && m.len() < 4000), "{what}");
    assert!(object["type"].is_string() && object["code"].is_string(), "{what}");
    assert!(object["param"].is_string() || object["param"].is_null(), "{what}");
    error
}

/// A normal request on a connection of its own.
async fn check_alive(server: &perigee_http::server::Server) {
    // Where heads have little time, a busy machine may send one too late and find the connection closed: then again.
    let request = post(TEXT, r#"{"prompt": "abc", "max_tokens": 2, "seed": 0}"#);
    let mut answer = None;
    for _ in 0..100 {
        let mut client = Client::connect(server.addr()).await;
        client.send(request.as_bytes()).await;
        answer = client.response().await;
        if answer.is_some() {
            break;
        }
    }
    let response = answer.expect("an answer");
    assert_eq!(response.status, 200);
    assert_eq!(response.json()["choices"][0]["text"], "ab");
}

/// Bodies that are no JSON object, for every route that takes one.
fn broken_bodies() -> Vec<Vec<u8>> {
    let mut bodies: Vec<Vec<u8>> = [
        "",
        " ",
        "{",
        "}",
        "[]",
        "[1]",
        "null",
        "true",
        "1",
        "\"x\"",
        "{]",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{'a':1}",
        "{\"a\":1}{",
        "{\"a\":1} x",
        "{\"a\":01}",
        "{\"a\":+1}",
        "{\"a\":1e}",
        "{\"a\":NaN}",
        "{\"a\":\"\\x\"}",
        "{\"a\":\"\n\"}",
        "{\"a\":\"",
        "not json",
        "a=1&b=2",
        "<a/>",
        "{\"a\":1e999}",
        "/* */{}",
    ]
    .iter()
    .map(|s| s.as_bytes().to_vec())
    .collect();
    bodies.push(b"{\"prompt\": \"\xff\xfe\"}".to_vec());
    bodies.push(b"\xef\xbb\xbf{}".to_vec());
    bodies.push(b"\x00\x01\x02".to_vec());
    bodies.push(vec![b'['; 100_000]);
    bodies.push([b"{\"a\":".repeat(65), b"1".to_vec(), b"}".repeat(65)].concat());
    bodies.push([b"{\"messages\":".to_vec(), b"[".repeat(200), b"]".repeat(200), b"}".to_vec()].concat());
    bodies
}

/// Fields of both kinds of completions, with values that are refused, and the parameter that is named.
fn shared_fields() -> Vec<(Value, &'static str)> {
    let mut cases = Vec::new();
    let numbers = [
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "n",
        "seed",
        "max_tokens",
        "max_completion_tokens",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "min_tokens",
        "priority",
        "prompt_logprobs",
        "truncate_prompt_tokens",
    ];
    for name in numbers {
        for wrong in [json!("1"), json!(true), json!([1]), json!({"a": 1})] {
            cases.push((json!({name: wrong}), name));
        }
    }
    for name in ["n", "seed", "max_tokens", "top_k", "min_tokens", "priority"] {
        cases.push((json!({name: 1.5}), name));
        cases.push((json!({name: 1e300}), name));
    }
    for name in ["stream", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "speculation"] {
        for wrong in [json!("true"), json!(1), json!([]), json!({})] {
            cases.push((json!({name: wrong}), name));
        }
    }
    for name in ["model", "cache_salt", "request_id", "truncation_side"] {
        for wrong in [json!(1), json!([]), json!({}), json!(false)] {
            cases.push((json!({name: wrong}), name));
        }
    }
    let ranges: [(&'static str, Vec<Value>); 27] = [
        ("temperature", vec![json!(-0.1), json!(2.01), json!(1e300)]),
        ("top_p", vec![json!(0), json!(-1), json!(1.01)]),
        ("top_k", vec![json!(-2), json!(1u64 << 40)]),
        ("min_p", vec![json!(-0.1), json!(1.1)]),
        ("n", vec![json!(0), json!(-1), json!(129), json!(1_000_000)]),
        ("max_tokens", vec![json!(-1), json!(1u64 << 33)]),
        ("presence_penalty", vec![json!(-2.1), json!(2.1)]),
        ("frequency_penalty", vec![json!(-2.1), json!(2.1)]),
        ("repetition_penalty", vec![json!(0), json!(-1), json!(11)]),
        ("min_tokens", vec![json!(-1), json!(1u64 << 33)]),
        ("seed", vec![json!(u64::MAX)]),
        ("priority", vec![json!(1u64 << 31), json!(-(1i64 << 32))]),
        ("prompt_logprobs", vec![json!(-2), json!(101)]),
        ("truncate_prompt_tokens", vec![json!(0), json!(-2)]),
        ("truncation_side", vec![json!("top"), json!("")]),
        (
            "stop",
            vec![
                json!(""),
                json!([""]),
                json!(1),
                json!({}),
                json!(vec!["x"; 33]),
                json!("x".repeat(257)),
                json!(true),
            ],
        ),
        ("stop_token_ids", vec![json!(1), json!("1"), json!([-1]), json!([512]), json!(vec![1; 257])]),
        (
            "logit_bias",
            vec![
                json!([]),
                json!("x"),
                json!({"x": 1}),
                json!({"512": 1}),
                json!({"-1": 1}),
                json!({"1": 101}),
            ],
        ),
        ("cache_salt", vec![json!(""), json!("a@b"), json!("a/b"), json!("x".repeat(129))]),
        ("request_id", vec![json!(""), json!("a b"), json!("é"), json!("x".repeat(129))]),
        ("stream_options", vec![json!({}), json!({"include_usage": true})]),
        ("best_of", vec![json!(2), json!(100)]),
        ("prediction", vec![json!("x"), json!(1), json!([]), json!([{"type": "content"}])]),
        ("use_beam_search", vec![json!(true)]),
        ("response_format", vec![json!("text"), json!([])]),
        ("guided_regex", vec![json!("(a"), json!(1)]),
        ("guided_json", vec![json!({"type": "object", "contains": {}}), json!("{")]),
    ];
    for (name, values) in ranges {
        cases.extend(values.into_iter().map(|value| (json!({name: value}), name)));
    }
    for (format, param) in [
        (json!({"a": 1}), "response_format.type"),
        (json!({"type": "yaml"}), "response_format.type"),
        (json!({"type": "json_schema", "json_schema": {}}), "response_format.json_schema.schema"),
    ] {
        cases.push((json!({"response_format": format}), param));
    }
    cases.push((json!({"guided_choice": [{"x": 1}]}), "guided_choice[0]"));
    for name in [
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_grammar",
        "regex",
        "ebnf",
        "grammar",
        "json_schema",
        "structural_tag",
        "bad_words",
        "allowed_token_ids",
        "thinking",
        "thinking_token_budget",
        "include_reasoning",
        "prompt_embeds",
        "kv_transfer_params",
        "reasoning_effort",
        "tools",
    ] {
        let value = match name {
            "include_reasoning" => json!("x"),
            "tools" => json!(3),
            _ => json!([{"x": 1}]),
        };
        cases.push((json!({name: value}), name));
    }
    cases
}

fn chat_fields() -> Vec<(Value, &'static str)> {
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    vec![
        (json!({"messages": null}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": "hi"}), "messages"),
        (json!({"messages": {"role": "user"}}), "messages"),
        (json!({"messages": ["hi"]}), "messages[0]"),
        (json!({"messages": [null]}), "messages[0]"),
        (json!({"messages": [[]]}), "messages[0]"),
        (json!({"messages": [{}]}), "messages[0].role"),
        (json!({"messages": [{"role": 1, "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "", "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "function", "content": "x"}]}), "messages[0].name"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": null}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": 5}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": {}}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": "x", "name": 1}]}), "messages[0].name"),
        (json!({"messages": user(json!(["x"]))}), "messages[0].content[0]"),
        (json!({"messages": user(json!([{}]))}), "messages[0].content[0].type"),
        (json!({"messages": user(json!([{"type": 1}]))}), "messages[0].content[0].type"),
        (json!({"messages": user(json!([{"type": "text"}]))}), "messages[0].content[0].text"),
        (json!({"messages": user(json!([{"type": "text", "text": null}]))}), "messages[0].content[0].text"),
        (json!({"messages": user(json!([{"type": "poem", "text": "x"}]))}), "messages[0].content[0].type"),
        (
            json!({"messages": user(json!([{"type": "image_url", "image_url": {"url": "data:,"}}]))}),
            "messages[0].content[0]",
        ),
        (
            json!({"messages": user(json!([{"type": "input_audio", "input_audio": {}}]))}),
            "messages[0].content[0]",
        ),
        (
            json!({"messages": user(json!([{"type": "video_url", "video_url": "x"}]))}),
            "messages[0].content[0]",
        ),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), "messages[0].tool_call_id"),
        (json!({"messages": [{"role": "user", "content": "x", "partial": true}]}), "messages[0].partial"),
        (
            json!({"messages": [{"role": "assistant", "content": "x", "prefix": true}, {"role": "user", "content": "x"}]}),
            "messages[0].prefix",
        ),
        (json!({"messages": [{"role": "assistant", "tool_calls": "x"}]}), "messages[0].tool_calls"),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [1]}]}),
            "messages[0].tool_calls[0].function.name",
        ),
        (json!({"logprobs": 1}), "logprobs"),
        (json!({"logprobs": "true"}), "logprobs"),
        (json!({"top_logprobs": 3}), "top_logprobs"),
        (json!({"logprobs": true, "top_logprobs": 101}), "top_logprobs"),
        (json!({"logprobs": true, "top_logprobs": -2}), "top_logprobs"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_completion_tokens": 0}), "max_completion_tokens"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
        (
            json!({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"}),
            "tool_choice",
        ),
        (
            json!({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": 1}),
            "tool_choice",
        ),
        (json!({"parallel_tool_calls": 1}), "parallel_tool_calls"),
        (json!({"reasoning_effort": "huge"}), "reasoning_effort"),
        (json!({"thinking": {"type": 1}}), "thinking.type"),
        (json!({"thinking_token_budget": -2}), "thinking_token_budget"),
        (json!({"separate_reasoning": "no"}), "separate_reasoning"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tool_choice": {"type": "function", "function": {"name": "f"}}}), "tool_choice"),
        (json!({"functions": [{"name": "a b"}]}), "functions[0].name"),
        (json!({"functions": "f"}), "functions"),
        (json!({"functions": [{"name": "f"}], "tools": []}), "functions"),
        (json!({"function_call": {"name": "f"}}), "function_call"),
        (json!({"chat_template": "{{ x }}"}), "chat_template"),
        (json!({"chat_template_kwargs": []}), "chat_template_kwargs"),
        (json!({"chat_template_kwargs": "x"}), "chat_template_kwargs"),
        (json!({"add_generation_prompt": "yes"}), "add_generation_prompt"),
        (json!({"continue_final_message": true}), "continue_final_message"),
        (json!({"documents": [{"a": 1}]}), "documents"),
        (json!({"modalities": ["text", "audio"]}), "modalities"),
        (json!({"audio": {"voice": "x"}}), "audio"),
        (json!({"echo": 1}), "echo"),
        (json!({"stream": true, "stream_options": "x"}), "stream_options"),
        (json!({"stream": true, "stream_options": {"include_usage": "x"}}), "stream_options.include_usage"),
        (json!({"stream": true, "prompt_logprobs": 1}), "prompt_logprobs"),
    ]
}

fn text_fields() -> Vec<(Value, &'static str)> {
    vec![
        (json!({"prompt": null}), "prompt"),
        (json!({"prompt": ""}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": [[]]}), "prompt"),
        (json!({"prompt": [""]}), "prompt"),
        (json!({"prompt": 5}), "prompt"),
        (json!({"prompt": {}}), "prompt"),
        (json!({"prompt": true}), "prompt"),
        (json!({"prompt": [null]}), "prompt"),
        (json!({"prompt": [-1]}), "prompt"),
        (json!({"prompt": [512]}), "prompt"),
        (json!({"prompt": [4294967296u64]}), "prompt"),
        (json!({"prompt": [u64::MAX]}), "prompt"),
        (json!({"prompt": [1.5]}), "prompt"),
        (json!({"prompt": ["x", 1]}), "prompt"),
        (json!({"prompt": [1, "x"]}), "prompt"),
        (json!({"prompt": [[1], 1]}), "prompt"),
        (json!({"prompt": [[1], ["x"]]}), "prompt"),
        (json!({"prompt": [[[1]]]}), "prompt"),
        (json!({"prompt": vec!["x"; 1025]}), "prompt"),
        (json!({"prompt": vec!["x"; 100], "n": 16}), "prompt"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"logprobs": true}), "logprobs"),
        (json!({"logprobs": 101}), "logprobs"),
        (json!({"logprobs": -2}), "logprobs"),
        (json!({"echo": 1}), "echo"),
        (json!({"suffix": "x"}), "suffix"),
        (json!({"prompt": null, "messages": [{"role": "user", "content": "x"}]}), "messages"),
    ]
}

fn with(base: Value, fields: &Value) -> String {
    let mut body = base;
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body.to_string()
}

#[tokio::test]
async fn bodies_and_fields() {
    let engine = FakeEngine::new(true);
    let server = serve(&engine, fake::config()).await;
    let mut client = Client::connect(server.addr()).await;
    let mut count = 0;
    for path in [CHAT, TEXT, "/tokenize", "/detokenize"] {
        for body in broken_bodies() {
            let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
            let what = format!("{path} {shown}");
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            client.send(&[head.into_bytes(), body].concat()).await;
            let response = client.response().await.unwrap_or_else(|| panic!("{what}: an answer"));
            check(&what, &response);
            assert_eq!(response.status, 400, "{what}");
            count += 1;
        }
    }
    let chat = || json!({"messages": [{"role": "user", "content": "x"}]});
    let text = || json!({"prompt": "x"});
    let mut cases: Vec<(&str, String, &str)> = Vec::new();
    for (fields, param) in shared_fields() {
        cases.push((CHAT, with(chat(), &fields), param));
        cases.push((TEXT, with(text(), &fields), param));
    }
    cases.extend(chat_fields().into_iter().map(|(fields, param)| (CHAT, with(chat(), &fields), param)));
    cases.extend(text_fields().into_iter().map(|(fields, param)| (TEXT, with(text(), &fields), param)));
    for (path, body, param) in [
        (CHAT, "{}", "messages"),
        (TEXT, "{}", "prompt"),
        (TEXT, r#"{"prompt": "x", "prompt": "y"}"#, "prompt"),
        (TEXT, r#"{"prompt": "x", "temperature": 1, "temperature": 1}"#, "temperature"),
        ("/tokenize", "{}", "prompt"),
        ("/tokenize", r#"{"prompt": 1}"#, "prompt"),
        ("/tokenize", r#"{"prompt": "x", "messages": [{"role": "user", "content": "x"}]}"#, "prompt"),
        ("/tokenize", r#"{"messages": [{"role": "user"}]}"#, "messages[0].content"),
        ("/tokenize", r#"{"prompt": "x", "model": "nobody"}"#, "model"),
        ("/detokenize", "{}", "tokens"),
        ("/detokenize", r#"{"tokens": "x"}"#, "tokens"),
        ("/detokenize", r#"{"tokens": [512]}"#, "tokens"),
        ("/detokenize", r#"{"tokens": [-1]}"#, "tokens"),
        ("/detokenize", r#"{"tokens": ["x"]}"#, "tokens[0]"),
        (CHAT, r#"{"model": "nobody", "messages": [{"role": "user", "content": "x"}]}"#, "model"),
    ] {
        cases.push((path, body.into(), param));
    }
    for (path, body, param) in cases {
        let what = format!("{path} {}", &body[..body.len().min(200)]);
        let error = check(&what, &client.post(path, &body).await);
        let named = error["param"].as_str().unwrap_or_default();
        // Lists name the entry at fault where they can.
        assert!(named == param || named.starts_with(&format!("{param}[")), "{what}: {error}");
        count += 1;
    }
    assert!(count >= 150, "{count} different requests");
    assert_eq!(engine.counts().submitted, 0, "none of them reached the engine");
    check_alive(&server).await;
}

#[tokio::test]
async fn paths_methods_and_types() {
    let engine = FakeEngine::new(true);
    let server = serve(&engine, fake::config()).await;
    let mut client = Client::connect(server.addr()).await;
    for path in [
        "/page/",
        "/page/nothing.js",
        "/v1",
        "/v2/models",
        "/v1/chat",
        "/v1/embeddings",
        "/v1/completions%2F",
        "/%00",
        "/v1/models/x/",
        "//v1//models//x//",
    ] {
        let response = client.get(path).await;
        check(path, &response);
        assert_eq!(response.status, 404, "{path}");
    }
    for (method, path, allow) in [
        ("GET", CHAT, "POST"),
        ("PUT", CHAT, "POST"),
        ("DELETE", TEXT, "POST"),
        ("PATCH", "/tokenize", "POST"),
        ("OPTIONS", TEXT, "POST"),
        ("TRACE", TEXT, "POST"),
        ("BREW", TEXT, "POST"),
        ("POST", "/health", "GET, HEAD"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("DELETE", "/metrics", "GET, HEAD"),
        ("PUT", "/version", "GET, HEAD"),
    ] {
        client
            .send(format!("{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n").as_bytes())
            .await;
        let response = client.response().await.expect("an answer");
        check(path, &response);
        assert_eq!((response.status, response.header("allow")), (405, Some(allow)), "{method} {path}");
    }
    for header in [
        "content-type: text/html",
        "content-type: multipart/form-data; boundary=x",
        "content-type: image/png",
        "content-type: application/xml",
        "content-type: text/plain",
        "content-type: application/x-www-form-urlencoded",
        "x-no-content-type: at all",
        "content-type: application/json\r\ncontent-encoding: gzip, gzip",
        "content-type: application/json\r\ncontent-encoding: br",
    ] {
        client
            .send(
                format!("POST {TEXT} HTTP/1.1\r\nhost: x\r\n{header}\r\ncontent-length: 2\r\n\r\n{{}}")
                    .as_bytes(),
            )
            .await;
        let response = client.response().await.expect("an answer");
        check(header, &response);
        assert_eq!(response.status, 415, "{header}");
    }
    check_alive(&server).await;
}

/// What hyper answers itself, or by closing: no error object, but no harm either.
#[tokio::test]
async fn bytes_that_are_no_http() {
    let engine = FakeEngine::new(true);
    let config =
        Config { header_read_timeout_s: 0.2, body_read_timeout_s: 0.2, keep_alive_s: 0.2, ..fake::config() };
    let server = serve(&engine, config).await;
    let many_headers = format!("GET /health HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(200));
    let long_header = format!("GET /health HTTP/1.1\r\na: {}\r\n\r\n", "x".repeat(200_000));
    let long_path = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "x".repeat(200_000));
    let cases: Vec<Vec<u8>> = [
        "\r\n\r\n\r\n",
        "hello\r\n\r\n",
        "GET\r\n\r\n",
        "GET /health\r\n\r\n",
        "GET /health HTTP/9.9\r\n\r\n",
        "GET /health HTTP/1.1\r\nno colon\r\n\r\n",
        "GET /health HTTP/1.1\r\n: empty\r\n\r\n",
        "GET /health HTTP/1.1\r\na\x01b: c\r\n\r\n",
        "GET  /health  HTTP/1.1\r\n\r\n",
        "get /health http/1.1\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n",
        "GET http:// HTTP/1.1\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: -1\r\n\r\n{}",
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: x\r\n\r\n{}",
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99999999999999999999\r\n\r\n{}",
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: gzip\r\n\r\n{}",
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n{}",
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}garbage",
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n{}",
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n{}",
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1\r\n\r\n{}garbage that follows",
        "\x16\x03\x01\x02\x00\x01\x00\x01\u{fc}\x03\x03",
        &many_headers,
        &long_header,
        &long_path,
    ]
    .iter()
    .map(|s| s.as_bytes().to_vec())
    .chain([vec![0xff; 5000], vec![0; 5000], (0..=255).cycle().take(10_000).collect()])
    .collect();
    for (i, bytes) in cases.into_iter().enumerate() {
        let what = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned();
        for close in [false, true] {
            let mut client = Client::connect(server.addr()).await;
            client.send(&bytes).await;
            if close {
                client.finish().await;
            }
            // Every answer that comes is a refusal, and the connection ends.
            while let Some(response) = client.response().await {
                assert!((400..500).contains(&response.status), "case {i} {what}: {}", response.status);
            }
        }
    }
    check_alive(&server).await;
}

#[tokio::test]
async fn truncated_bodies_are_refused_or_dropped() {
    let engine = FakeEngine::new(true);
    let server = serve(&engine, fake::config()).await;
    let whole = post(TEXT, r#"{"prompt": "abc", "max_tokens": 2}"#);
    for cut in [1, 10, whole.len() / 2, whole.len() - 1] {
        let mut client = Client::connect(server.addr()).await;
        client.send(&whole.as_bytes()[..cut]).await;
        client.finish().await;
        if let Some(response) = client.response().await {
            assert!((400..500).contains(&response.status), "cut at {cut}: {}", response.status);
        }
    }
    assert_eq!(engine.counts().submitted, 0);
    check_alive(&server).await;
}
