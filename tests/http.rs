//! The server over real sockets, with an engine whose replies are known.

use std::sync::Arc;

use perigee_engine::scheduler::FinishReason;
use perigee_engine::{EngineRequest, SubmitError};
use perigee_http::server::ApiKey;
use perigee_http::server::{Config, Server};
use perigee_telemetry::Metrics;
use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::fake::{self, FakeEngine, MODEL, serve};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
/// The header without which no body is taken.
const JSON: &str = "content-type: application/json\r\n";

async fn ready() -> (Server, FakeEngine, Client) {
    let engine = FakeEngine::new(true);
    let server = serve(&engine, fake::config()).await;
    let client = Client::connect(server.addr()).await;
    (server, engine, client)
}

async fn ask(client: &mut Client, path: &str, body: Value) -> Response {
    client.post(path, &body.to_string()).await
}

async fn ask_ok(client: &mut Client, path: &str, body: Value) -> Value {
    let response = ask(client, path, body.clone()).await;
    assert_eq!(response.status, 200, "{body}: {}", response.text());
    response.json()
}

fn chat(extra: Value) -> Value {
    let mut body = json!({"model": MODEL, "messages": [{"role": "user", "content": "Hello, 🙂 wörld"}], "max_tokens": 90});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn text(extra: Value) -> Value {
    let mut body = json!({"model": MODEL, "prompt": "añ🙂b, a line\nand more", "max_tokens": 40, "seed": 0});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn chat_answers_with_the_reply_and_its_counts() {
    let (_server, engine, mut client) = ready().await;
    let answer = ask_ok(&mut client, CHAT, chat(json!({"seed": 0}))).await;
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], MODEL);
    let choice = &answer["choices"][0];
    // The fake engine repeats the prompt, and the default system turn ends with an end-of-turn token.
    assert_eq!(choice["message"]["content"], "systemYou are Kimi, an AI assistant created by Moonshot AI.");
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!(null)));
    let prompt = engine.requests()[0].prompt.clone();
    let usage = &answer["usage"];
    assert_eq!(usage["prompt_tokens"], prompt.len());
    let completion = prompt.iter().position(|t| *t == 258).unwrap() + 1;
    assert_eq!(usage["completion_tokens"], completion);
    assert_eq!(usage["total_tokens"], prompt.len() + completion);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], prompt.len() / 2);
    assert_eq!(usage["cached_tokens"], prompt.len() / 2);
}

#[tokio::test]
async fn what_stands_open_comes_from_the_defaults() {
    let (_server, engine, mut client) = ready().await;
    ask_ok(&mut client, CHAT, json!({"messages": [{"role": "user", "content": "x"}], "user": "u", "tools": [],
        "tool_choice": "none", "parallel_tool_calls": true, "metadata": {"a": "b"}, "max_completion_tokens": null})).await;
    ask_ok(&mut client, TEXT, json!({"prompt": "x", "model": "alias"})).await;
    ask_ok(&mut client, CHAT, chat(json!({"max_tokens": 5, "max_completion_tokens": 7}))).await;
    let requests = engine.requests();
    assert_eq!(requests[0].sampling.max_tokens as usize, fake::CONTEXT - requests[0].prompt.len());
    assert_eq!(requests[1].sampling.max_tokens, 16);
    assert_eq!(requests[2].sampling.max_tokens, 7);
    assert_eq!(requests[1].sampling.stop_token_ids, [257, 258, 265]);
    assert!(requests.iter().all(|r| r.sampling.temperature == 1.0 && r.deadline.is_some()));
}

/// Joins what a stream says into the shape of the whole answer.
fn joined(path: &str, events: &[String]) -> (Vec<Value>, Value) {
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    let mut choices: Vec<Value> = Vec::new();
    let mut usage = Value::Null;
    let mut ids = Vec::new();
    for event in &events[..events.len() - 1] {
        let chunk: Value = serde_json::from_str(event).expect("a chunk is JSON");
        ids.push(chunk["id"].clone());
        if !chunk["usage"].is_null() {
            usage = chunk["usage"].clone();
        }
        for part in chunk["choices"].as_array().expect("choices are never left out") {
            let index = part["index"].as_u64().unwrap() as usize;
            while choices.len() <= index {
                choices.push(json!({"text": "", "tokens": [], "logprobs": [], "role": null, "finish": null}));
            }
            let choice = &mut choices[index];
            assert!(choice["finish"].is_null(), "nothing follows the finish reason");
            let delta = if path == CHAT { &part["delta"] } else { part };
            if let Some(role) = delta.get("role") {
                assert!(choice["role"].is_null(), "the role comes once");
                choice["role"] = role.clone();
            }
            let piece = delta[if path == CHAT { "content" } else { "text" }].as_str().unwrap_or("");
            choice["text"] = (choice["text"].as_str().unwrap().to_owned() + piece).into();
            if let Some(tokens) = part["token_ids"].as_array() {
                choice["tokens"].as_array_mut().unwrap().extend(tokens.clone());
            }
            let logprobs = &part["logprobs"];
            if !logprobs.is_null() {
                let values = if path == CHAT { &logprobs["content"] } else { &logprobs["token_logprobs"] };
                choice["logprobs"].as_array_mut().unwrap().extend(values.as_array().unwrap().clone());
            }
            choice["finish"] = part["finish_reason"].clone();
            if !part["finish_reason"].is_null() {
                choice["stop_reason"] = part["stop_reason"].clone();
            }
        }
    }
    ids.dedup();
    assert_eq!(ids.len(), 1, "all chunks have one id");
    (choices, usage)
}

#[tokio::test]
async fn calls_that_nobody_wants_are_forbidden() {
    let (_server, engine, mut client) = ready().await;
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let both = [(274, f32::NEG_INFINITY), (275, f32::NEG_INFINITY)];
    for (body, forbidden) in [
        (chat(json!({})), &both[..]),
        (chat(json!({"tools": [], "tool_choice": "auto"})), &both),
        (chat(json!({"tools": tools, "tool_choice": "none", "max_tokens": 5})), &both),
        (chat(json!({"tools": tools, "max_tokens": 5})), &[]),
        // What is no conversation has no calls.
        (text(json!({})), &[]),
    ] {
        let path = if body.get("prompt").is_some() { TEXT } else { CHAT };
        ask_ok(&mut client, path, body.clone()).await;
        assert_eq!(engine.requests().last().unwrap().sampling.logit_bias, forbidden, "{body}");
    }
}

#[tokio::test]
async fn streams_say_what_whole_answers_say() {
    let (_server, _engine, mut client) = ready().await;
    let shapes = [
        json!({}),
        json!({"n": 3}),
        json!({"stop": ["Kimi", "b, a"]}),
        json!({"stop": "a line", "include_stop_str_in_output": true}),
        json!({"stop": ["\u{fffd}", "zzz", "you", "more"]}),
        json!({"max_tokens": 1}),
        json!({"max_tokens": 3}),
        json!({"return_token_ids": true, "max_tokens": 20}),
        json!({"stop_token_ids": [44], "return_token_ids": true}),
        json!({"stop_token_ids": [44], "include_stop_str_in_output": true, "min_tokens": 3}),
        json!({"ignore_eos": true, "skip_special_tokens": false, "max_tokens": 90}),
        json!({"logit_bias": {"5": 1.5}, "temperature": 0.5, "top_p": 0.5, "top_k": 3, "min_p": 0.1}),
        json!({"return_tokens_as_token_ids": true}),
    ];
    for path in [CHAT, TEXT] {
        for shape in &shapes {
            for logprobs in [false, true] {
                let mut body = if path == CHAT { chat(shape.clone()) } else { text(shape.clone()) };
                body["seed"] = 0.into();
                if logprobs && path == CHAT {
                    (body["logprobs"], body["top_logprobs"]) = (true.into(), 2.into());
                } else if logprobs {
                    body["logprobs"] = 2.into();
                }
                let whole = ask_ok(&mut client, path, body.clone()).await;
                body["stream"] = true.into();
                body["stream_options"] = json!({"include_usage": true});
                let response = ask(&mut client, path, body.clone()).await;
                assert_eq!(response.header("content-type"), Some("text/event-stream; charset=utf-8"));
                assert_eq!(response.header("x-accel-buffering"), Some("no"));
                let (choices, usage) = joined(path, &response.events());
                assert_eq!(usage, whole["usage"], "{body}");
                let expected = whole["choices"].as_array().unwrap();
                assert_eq!(choices.len(), expected.len(), "{body}");
                for (choice, expected) in choices.iter().zip(expected) {
                    let content =
                        if path == CHAT { &expected["message"]["content"] } else { &expected["text"] };
                    assert_eq!(&choice["text"], content, "{body}");
                    assert_eq!(choice["finish"], expected["finish_reason"], "{body}");
                    assert_eq!(choice["stop_reason"], expected["stop_reason"], "{body}");
                    if path == CHAT {
                        assert_eq!(choice["role"], "assistant", "{body}");
                    }
                    if body["return_token_ids"] == true {
                        assert_eq!(choice["tokens"], expected["token_ids"], "{body}");
                    }
                    let field = if path == CHAT { "content" } else { "token_logprobs" };
                    if logprobs {
                        assert_eq!(choice["logprobs"], expected["logprobs"][field], "{body}");
                    } else {
                        assert!(expected["logprobs"].is_null());
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn text_that_waits_makes_no_chunk() {
    let (_server, _engine, mut client) = ready().await;
    // Four tokens make one character, and the stop string's beginning is held back.
    let body = json!({"prompt": "🙂xy", "max_tokens": 6, "seed": 0, "stream": true, "stop": "xyz"});
    let events = ask(&mut client, TEXT, body).await.events();
    let texts: Vec<String> = events[..events.len() - 1]
        .iter()
        .map(|e| serde_json::from_str::<Value>(e).unwrap()["choices"][0]["text"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(texts, ["🙂", "xy", ""]);
    let body =
        json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "seed": 0, "stream": true});
    let events = ask(&mut client, CHAT, body).await.events();
    let first: Value = serde_json::from_str(&events[0]).unwrap();
    // The prompt begins with a special token without text: the role comes with the first text, not before.
    assert_eq!(
        first["choices"][0]["delta"],
        json!({"role": "assistant", "content": "s", "reasoning_content": null, "reasoning": null})
    );
    let last: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
    assert_eq!(last["choices"][0]["delta"], json!({"reasoning_content": null, "reasoning": null}));
    assert_eq!(last["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn many_streams_lose_and_double_nothing() {
    const STREAMS: usize = 256;
    const TOKENS: usize = 128;
    let engine = FakeEngine::new(false);
    let server = serve(&engine, fake::config()).await;
    let addr = server.addr();
    let streams: Vec<_> = (0..STREAMS)
        .map(|i| {
            tokio::spawn(async move {
                let mut client = Client::connect(addr).await;
                let body = json!({"prompt": [i % 256, 97, 98], "max_tokens": TOKENS, "seed": 0, "stream": true,
                    "return_token_ids": true, "stream_options": {"include_usage": true}});
                joined(TEXT, &ask(&mut client, TEXT, body).await.events())
            })
        })
        .collect();
    engine.wait(|c| c.submitted == STREAMS).await;
    for _ in 0..TOKENS {
        engine.step();
        tokio::task::yield_now().await;
    }
    for (i, stream) in streams.into_iter().enumerate() {
        let (choices, usage) = stream.await.unwrap();
        let expected: Vec<usize> = [i % 256, 97, 98].into_iter().cycle().take(TOKENS).collect();
        assert_eq!(choices[0]["tokens"], json!(expected), "stream {i}");
        assert_eq!(usage["completion_tokens"], TOKENS);
    }
    assert_eq!((engine.counts().finished, engine.counts().aborted), (STREAMS, 0));
}

#[tokio::test]
async fn running_usage_stands_in_every_chunk_when_asked_for() {
    let (_server, _engine, mut client) = ready().await;
    let body = text(json!({"stream": true, "max_tokens": 3, "prompt": "abc",
        "stream_options": {"include_usage": true, "continuous_usage_stats": true}}));
    let events = ask(&mut client, TEXT, body).await.events();
    for event in &events[..events.len() - 1] {
        let usage = &serde_json::from_str::<Value>(event).unwrap()["usage"];
        assert_eq!(usage["prompt_tokens"], 3);
        assert!(usage["completion_tokens"].as_u64().unwrap() <= 3);
    }
    let plain = ask(&mut client, TEXT, text(json!({"stream": true}))).await.events();
    assert!(plain.iter().all(|e| !e.contains("usage")));
}

#[tokio::test]
async fn stop_strings_end_replies_across_tokens_and_the_engine_is_told() {
    let (_server, engine, mut client) = ready().await;
    let answer = ask_ok(&mut client, TEXT, text(json!({"prompt": "one two three", "stop": ["o t"]}))).await;
    let choice = &answer["choices"][0];
    assert_eq!((&choice["text"], &choice["stop_reason"]), (&json!("one tw"), &json!("o t")));
    assert_eq!(answer["usage"]["completion_tokens"], 9);
    assert_eq!(engine.counts().stopped, 1);
    let answer = ask_ok(
        &mut client,
        TEXT,
        text(json!({"prompt": "one two three", "stop": ["ne"], "min_tokens": 5, "max_tokens": 20})),
    )
    .await;
    assert_eq!(answer["choices"][0]["text"], "one two threeo", "a match before min_tokens does not count");
    let answer = ask_ok(&mut client, TEXT, text(json!({"prompt": "a,b", "stop_token_ids": [44]}))).await;
    assert_eq!(
        (&answer["choices"][0]["text"], &answer["choices"][0]["stop_reason"]),
        (&json!("a"), &json!(44))
    );
}

#[tokio::test]
async fn the_order_of_stop_tokens_does_not_matter() {
    let (_server, _engine, mut client) = ready().await;
    for ids in [[44, 1], [1, 44], [44, 511]] {
        for ignore_eos in [false, true] {
            let body = text(json!({"prompt": "a,b", "stop_token_ids": ids, "ignore_eos": ignore_eos}));
            let answer = ask_ok(&mut client, TEXT, body).await;
            let choice = &answer["choices"][0];
            assert_eq!((&choice["text"], &choice["stop_reason"]), (&json!("a"), &json!(44)), "{ids:?}");
        }
    }
}

#[tokio::test]
async fn replies_that_are_ready_take_turns() {
    let (_server, _engine, mut client) = ready().await;
    let body = text(json!({"prompt": "abc", "n": 2, "max_tokens": 3, "stream": true}));
    let events = ask(&mut client, TEXT, body).await.events();
    let choices: Vec<u64> = events[..events.len() - 1]
        .iter()
        .map(|e| serde_json::from_str::<Value>(e).unwrap()["choices"][0]["index"].as_u64().unwrap())
        .collect();
    assert_eq!(choices[..6], [0, 1, 0, 1, 0, 1]);
}

#[tokio::test]
async fn copies_of_a_prompt_share_its_licence() {
    let (_server, engine, mut client) = ready().await;
    ask_ok(&mut client, TEXT, text(json!({"prompt": ["abc", "def"], "n": 2, "max_tokens": 2}))).await;
    let licence = |request: EngineRequest| request.guard.unwrap().licence.unwrap();
    let licences: Vec<_> = engine.requests().into_iter().map(licence).collect();
    let shared = |a: usize, b: usize| Arc::ptr_eq(&licences[a], &licences[b]);
    assert_eq!([shared(0, 1), shared(2, 3), shared(0, 2)], [true, true, false]);
}

#[tokio::test]
async fn several_replies_have_seeds_of_their_own() {
    let (_server, engine, mut client) = ready().await;
    let answer =
        ask_ok(&mut client, TEXT, text(json!({"prompt": "abc", "n": 3, "max_tokens": 2, "seed": 1}))).await;
    let texts: Vec<&Value> = answer["choices"].as_array().unwrap().iter().map(|c| &c["text"]).collect();
    assert_eq!(texts, ["bc", "ca", "ab"]);
    assert_eq!(answer["usage"]["prompt_tokens"], 3);
    assert_eq!(answer["usage"]["completion_tokens"], 6);
    assert_eq!(engine.requests().iter().map(|r| r.sampling.seed).collect::<Vec<_>>(), [1, 2, 3]);
    let prompts = json!([[97, 98], [99]]);
    let answer =
        ask_ok(&mut client, TEXT, text(json!({"prompt": prompts, "n": 2, "max_tokens": 2, "seed": 0}))).await;
    let texts: Vec<&Value> = answer["choices"].as_array().unwrap().iter().map(|c| &c["text"]).collect();
    assert_eq!(texts, ["ab", "ba", "cc", "cc"], "prompt-major order");
    assert_eq!(answer["usage"]["prompt_tokens"], 3);
}

#[tokio::test]
async fn echoed_prompts_are_scored_as_evaluation_harnesses_need() {
    let (_server, engine, mut client) = ready().await;
    let prompts = json!([[97, 200, 98, 99], [100, 101]]);
    let body = json!({"model": MODEL, "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1,
        "seed": 1234, "echo": true});
    let answer = ask_ok(&mut client, TEXT, body).await;
    for (choice, prompt) in
        answer["choices"].as_array().unwrap().iter().zip([vec![97, 200, 98, 99], vec![100, 101]])
    {
        let logprobs = &choice["logprobs"];
        let values = logprobs["token_logprobs"].as_array().unwrap();
        let tops = logprobs["top_logprobs"].as_array().unwrap();
        assert_eq!(values.len(), prompt.len() + 1);
        assert_eq!(tops.len(), values.len());
        assert_eq!(logprobs["tokens"].as_array().unwrap().len(), values.len());
        assert_eq!(logprobs["text_offset"].as_array().unwrap().len(), values.len());
        assert!(values[0].is_null() && tops[0].is_null());
        for position in 1..values.len() {
            let value = values[position].as_f64().unwrap();
            let best = tops[position]
                .as_object()
                .unwrap()
                .values()
                .map(|v| v.as_f64().unwrap())
                .fold(f64::MIN, f64::max);
            let greedy = position % 2 == 0;
            assert_eq!(value == best, greedy, "position {position}: {value} {best}");
            let id = prompt.get(position).copied().unwrap_or(97);
            assert_eq!(value as f32, fake::score(position, id, 1).logprob);
        }
    }
    assert_eq!(engine.requests()[0].prompt[..], [97, 200, 98, 99], "ids are taken as they are");
    // Nothing is generated, only scored.
    let body = json!({"prompt": "abc", "max_tokens": 0, "echo": true, "logprobs": 0});
    let answer = ask_ok(&mut client, TEXT, body).await;
    assert_eq!(answer["choices"][0]["text"], "abc");
    assert_eq!(answer["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap().len(), 3);
    assert_eq!(answer["usage"]["completion_tokens"], 0);
    // The same in a stream, the prompt in the first chunk.
    let body =
        json!({"prompt": "abc", "max_tokens": 2, "echo": true, "logprobs": 1, "stream": true, "seed": 0});
    let (choices, _) = joined(TEXT, &ask(&mut client, TEXT, body).await.events());
    assert_eq!(choices[0]["text"], "abcab");
    assert_eq!(choices[0]["logprobs"].as_array().unwrap().len(), 5);
}

#[tokio::test]
async fn offsets_count_characters_though_tokens_split_them() {
    let (_server, _engine, mut client) = ready().await;
    // Each byte is a token; a reply repeats its prompt.
    let mut body = json!({"prompt": "añ🙂b", "max_tokens": 8, "seed": 0, "echo": true, "logprobs": 0});
    let answer = ask_ok(&mut client, TEXT, body.clone()).await;
    let offsets = [0, 1, 2, 2, 3, 3, 3, 3, 4, 5, 6, 6, 7, 7, 7, 7];
    assert_eq!(answer["choices"][0]["logprobs"]["text_offset"], json!(offsets));
    body["stream"] = true.into();
    let events = ask(&mut client, TEXT, body).await.events();
    let chunks = events[..events.len() - 1].iter().map(|event| serde_json::from_str::<Value>(event).unwrap());
    let streamed: Vec<Value> = chunks
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["text_offset"].as_array().cloned())
        .flatten()
        .collect();
    assert_eq!(json!(streamed), json!(offsets));
}

#[tokio::test]
async fn colliding_texts_keep_the_largest_logprob() {
    let (_server, _engine, mut client) = ready().await;
    // Ids 200 to 203 are single bytes that all look like U+FFFD.
    let body = json!({"prompt": [97, 98, 200], "max_tokens": 0, "echo": true, "logprobs": 3});
    let answer = ask_ok(&mut client, TEXT, body).await;
    let logprobs = &answer["choices"][0]["logprobs"];
    let expected = fake::score(2, 200, 3);
    assert_eq!(logprobs["top_logprobs"][2].as_object().unwrap().len(), 1);
    assert_eq!(logprobs["top_logprobs"][2]["\u{fffd}"].as_f64().unwrap() as f32, expected.logprob);
    let body = json!({"prompt": [97, 98, 200], "max_tokens": 0, "echo": true, "logprobs": 3,
        "return_tokens_as_token_ids": true});
    let answer = ask_ok(&mut client, TEXT, body).await;
    let logprobs = &answer["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"][2], "token_id:200");
    assert_eq!(logprobs["top_logprobs"][2].as_object().unwrap().len(), 3);
}

#[tokio::test]
async fn chat_logprobs_have_bytes_and_alternatives() {
    let (_server, _engine, mut client) = ready().await;
    let answer = ask_ok(
        &mut client,
        CHAT,
        chat(json!({"logprobs": true, "top_logprobs": 2, "max_tokens": 3, "seed": 1})),
    )
    .await;
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 3);
    assert_eq!((&content[0]["token"], &content[0]["bytes"]), (&json!("s"), &json!([115])));
    assert_eq!(content[0]["top_logprobs"].as_array().unwrap().len(), 2);
    let answer = ask_ok(
        &mut client,
        CHAT,
        chat(json!({"prompt_logprobs": 1, "return_token_ids": true, "max_tokens": 2, "seed": 1})),
    )
    .await;
    let ids = answer["prompt_token_ids"].as_array().unwrap();
    let scores = answer["prompt_logprobs"].as_array().unwrap();
    assert_eq!(scores.len(), ids.len());
    assert!(scores[0].is_null());
    let entry = &scores[1][ids[1].to_string()];
    assert_eq!(entry["rank"], 41);
    assert_eq!(entry["decoded_token"], "s");
    assert_eq!(answer["choices"][0]["token_ids"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn prompts_that_do_not_fit() {
    let (_server, _engine, mut client) = ready().await;
    let long = "x".repeat(fake::CONTEXT + 10);
    for body in [
        json!({"prompt": long}),
        json!({"prompt": "x", "max_tokens": fake::CONTEXT}),
        json!({"prompt": [vec![97; fake::CONTEXT]]}),
    ] {
        let response = ask(&mut client, TEXT, body).await;
        let error = &response.json()["error"];
        assert_eq!((response.status, &error["code"]), (400, &json!("context_length_exceeded")));
        assert!(error["message"].as_str().unwrap().contains("maximum context length"));
    }
    let answer = ask_ok(
        &mut client,
        TEXT,
        json!({"prompt": format!("{long}abc"), "truncate_prompt_tokens": 3, "max_tokens": 3, "seed": 0}),
    )
    .await;
    assert_eq!(answer["choices"][0]["text"], "abc");
    let answer =
        ask_ok(&mut client, TEXT, json!({"prompt": long, "truncate_prompt_tokens": -1, "max_tokens": 6}))
            .await;
    assert_eq!(answer["usage"]["prompt_tokens"], fake::CONTEXT - 6);
    // A default limit is cut down to what fits; a wish is not.
    let nearly = "x".repeat(fake::CONTEXT - 4);
    let answer = ask_ok(&mut client, TEXT, json!({"prompt": nearly})).await;
    assert_eq!(answer["usage"]["completion_tokens"], 4);
}

#[tokio::test]
async fn a_client_that_leaves_aborts_its_sequences() {
    let engine = FakeEngine::new(false);
    let server = serve(&engine, fake::config()).await;
    for (n, stream) in [(1, false), (2, false), (1, true), (3, true)] {
        let before = engine.counts();
        let mut client = Client::connect(server.addr()).await;
        client.start_post(TEXT, &text(json!({"n": n, "stream": stream, "prompt": "abc"})).to_string()).await;
        engine.wait(|c| c.submitted == before.submitted + n).await;
        engine.step();
        if stream {
            client.head().await.expect("a head");
            client.chunk().await.expect("a first chunk");
        }
        drop(client);
        let after = engine.wait(|c| c.aborted == before.aborted + n).await;
        assert_eq!(after.finished, before.finished, "n {n}, stream {stream}");
    }
}

#[tokio::test]
async fn tokens_leave_as_they_come() {
    let engine = FakeEngine::new(false);
    let server = serve(&engine, fake::config()).await;
    let mut client = Client::connect(server.addr()).await;
    client
        .start_post(TEXT, &text(json!({"stream": true, "prompt": "abc", "max_tokens": 3})).to_string())
        .await;
    engine.wait(|c| c.submitted == 1).await;
    client.head().await.expect("the head comes before the first token");
    for letter in ["a", "b"] {
        engine.step();
        let chunk = client.chunk().await.expect("a chunk").expect("not the end");
        let event = String::from_utf8(chunk).unwrap();
        assert!(event.contains(&format!("\"text\":\"{letter}\"")), "{event}");
    }
    engine.end_all(FinishReason::Error);
    let chunk = String::from_utf8(client.chunk().await.unwrap().unwrap()).unwrap();
    let error = chunk.strip_suffix("data: [DONE]\n\n").expect("the end is said after an error too");
    let event: Value = serde_json::from_str(error.trim_start_matches("data: ").trim_end()).unwrap();
    assert_eq!(event["error"]["code"], "engine_failed");
    assert_eq!(client.chunk().await, Some(None), "nothing follows the end");
}

#[tokio::test]
async fn quiet_streams_get_comments() {
    let engine = FakeEngine::new(false);
    let server = serve(&engine, Config { sse_keep_alive_s: 0.01, ..fake::config() }).await;
    let mut client = Client::connect(server.addr()).await;
    client
        .start_post(TEXT, &text(json!({"stream": true, "prompt": "abc", "max_tokens": 1})).to_string())
        .await;
    client.head().await.expect("a head");
    assert_eq!(client.chunk().await, Some(Some(b": keep-alive\n\n".to_vec())));
    engine.step();
    let mut rest = Vec::new();
    while let Some(chunk) = client.chunk().await.expect("a proper end") {
        rest.extend(chunk);
    }
    assert!(rest.ends_with(b"data: [DONE]\n\n"));
}

#[tokio::test]
async fn endings_by_the_engine_have_their_status() {
    let engine = FakeEngine::new(false);
    let server = serve(&engine, fake::config()).await;
    let mut client = Client::connect(server.addr()).await;
    for (submitted, (reason, status, code)) in (1..).zip([
        (FinishReason::Error, 500, "engine_failed"),
        (FinishReason::Deadline, 504, "deadline_exceeded"),
        (FinishReason::Aborted, 503, "aborted"),
    ]) {
        client.start_post(CHAT, &chat(json!({})).to_string()).await;
        engine.wait(|c| c.submitted == submitted).await;
        engine.end_all(reason);
        let response = client.response().await.unwrap();
        assert_eq!((response.status, &response.json()["error"]["code"]), (status, &json!(code)));
    }
}

#[tokio::test]
async fn a_full_queue_is_answered_with_a_time_to_come_back() {
    let (_server, engine, mut client) = ready().await;
    for (refusal, status, retry, code) in [
        (SubmitError::QueueFull { waiting: 64, limit: 64, retry_after_s: 7 }, 429, Some("7"), "queue_full"),
        (
            SubmitError::QueueFull { waiting: 64, limit: 64, retry_after_s: 900 },
            429,
            Some("60"),
            "queue_full",
        ),
        (SubmitError::Draining, 503, Some("5"), "server_draining"),
        (SubmitError::Dead { reason: "x".into() }, 503, Some("30"), "engine_stopped"),
    ] {
        engine.refuse_with(Some(refusal));
        for stream in [false, true] {
            let response = ask(&mut client, CHAT, chat(json!({"stream": stream}))).await;
            assert_eq!((response.status, response.header("retry-after")), (status, retry));
            assert_eq!(response.json()["error"]["code"], code);
        }
    }
    engine.refuse_with(None);
    ask_ok(&mut client, CHAT, chat(json!({}))).await;
    let metrics = client.get("/metrics").await;
    assert!(metrics.text().contains("429"), "refusals are counted by status");
}

#[tokio::test]
async fn requests_that_an_empty_queue_refuses_are_not_told_to_come_back() {
    for (keys, limit) in [(&["k"][..], 64), (&["k", "other"], 32)] {
        let api_keys = keys.iter().map(|key| ApiKey::plain(key)).collect();
        let server = serve(&FakeEngine::new(true), Config { api_keys, ..fake::config() }).await;
        let mut client = Client::connect(server.addr()).await;
        for (path, body, param) in [
            (TEXT, text(json!({"prompt": vec!["x"; limit], "max_tokens": 1})), None),
            (TEXT, text(json!({"prompt": vec!["x"; limit + 1], "max_tokens": 1})), Some("prompt")),
            (TEXT, text(json!({"prompt": vec!["x"; 2], "n": limit / 2 + 1})), Some("prompt")),
            (CHAT, chat(json!({"n": limit + 1})), Some("n")),
        ] {
            let body = body.to_string();
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer k\r\n{JSON}content-length: {}\r\n\r\n{body}",
                body.len()
            );
            client.send(head.as_bytes()).await;
            let response = client.response().await.expect("an answer");
            let Some(param) = param else {
                assert_eq!(response.status, 200, "{}", response.text());
                continue;
            };
            let error = response.json()["error"].clone();
            assert_eq!((response.status, &error["code"]), (400, &json!("too_large_for_queue")), "{error}");
            assert_eq!((response.header("retry-after"), &error["param"]), (None, &json!(param)));
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(&format!("than the {limit} that")), "{message}");
            assert!(message.contains("scheduler.max_queue_len"), "{message}");
        }
    }
}

#[tokio::test]
async fn bodies_that_stall_or_grow_too_large() {
    let engine = FakeEngine::new(true);
    let server =
        serve(&engine, Config { body_read_timeout_s: 0.05, max_body_bytes: 2048, ..fake::config() }).await;
    let mut client = Client::connect(server.addr()).await;
    client
        .send(format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\n{JSON}content-length: 100\r\n\r\n{{").as_bytes())
        .await;
    let response = client.response().await.unwrap();
    assert_eq!((response.status, &response.json()["error"]["code"]), (408, &json!("request_timeout")));
    assert!(client.is_closed().await);
    let large = json!({"prompt": "x".repeat(4000)}).to_string();
    let chunked = format!(
        "POST {TEXT} HTTP/1.1\r\nhost: x\r\n{JSON}transfer-encoding: chunked\r\n\r\n{:x}\r\n{large}\r\n0\r\n\r\n",
        large.len()
    );
    for bytes in [crate::client::post(TEXT, &large), chunked] {
        let mut client = Client::connect(server.addr()).await;
        client.send(bytes.as_bytes()).await;
        let response = client.response().await.unwrap();
        assert_eq!((response.status, &response.json()["error"]["code"]), (413, &json!("request_too_large")));
    }
    // A client that asks first is told before it sends.
    let mut client = Client::connect(server.addr()).await;
    client
        .send(
            format!(
                "POST {TEXT} HTTP/1.1\r\nhost: x\r\n{JSON}expect: 100-continue\r\ncontent-length: 999999\r\n\r\n"
            )
            .as_bytes(),
        )
        .await;
    assert_eq!(client.response().await.unwrap().status, 413);
    let mut client = Client::connect(server.addr()).await;
    ask_ok(&mut client, TEXT, text(json!({}))).await;
}

#[tokio::test]
async fn silent_clients_are_let_go() {
    let engine = FakeEngine::new(true);
    let config = Config { header_read_timeout_s: 0.05, keep_alive_s: 0.05, ..fake::config() };
    let server = serve(&engine, config).await;
    for first in ["", "P", "GET /health HTTP/1.1\r\nhost:", "GET /version HTTP/1.1\r\nhost: x\r\n\r\n"] {
        let mut client = Client::connect(server.addr()).await;
        client.send(first.as_bytes()).await;
        // On a busy machine even a whole head may come too late; an answer that is given is the right one.
        if first.ends_with("\r\n\r\n")
            && let Some(response) = client.response().await
        {
            assert_eq!(response.status, 200);
        }
        // An answer to half a head may be given or not; the connection ends either way.
        while client.head().await.is_some() {}
    }
}

#[tokio::test]
async fn connections_are_bounded_and_reused() {
    let engine = FakeEngine::new(true);
    let server = serve(&engine, Config { max_connections: 1, ..fake::config() }).await;
    let mut first = Client::connect(server.addr()).await;
    for _ in 0..5 {
        ask_ok(&mut first, TEXT, text(json!({}))).await;
        assert_eq!(ask(&mut first, TEXT, text(json!({"n": 0}))).await.status, 400);
    }
    for request in ["", "GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"] {
        let mut second = Client::connect(server.addr()).await;
        second.send(request.as_bytes()).await;
        let response = second.response().await.expect("told why");
        assert_eq!((response.status, response.header("retry-after")), (503, Some("1")));
        assert_eq!(response.json()["error"]["code"], "too_many_connections");
        assert!(second.is_closed().await);
    }
    assert_eq!(first.get("/health").await.status, 200);
}

#[tokio::test]
async fn probes_and_scrapers_are_answered_while_all_connections_are_in_use() {
    let engine = FakeEngine::new(true);
    let config = Config { max_connections: 1, root_path: "/llm".into(), ..fake::config() };
    let server = serve(&engine, config).await;
    let mut first = Client::connect(server.addr()).await;
    assert_eq!(first.get("/version").await.status, 200);
    // More than there are spare places: each answer gives its place back.
    for _ in 0..20 {
        for path in ["/health", "/health/live", "/health/ready", "/health/startup", "/llm/health", "/metrics"]
        {
            let mut probe = Client::connect(server.addr()).await;
            let response = probe.get(path).await;
            assert_eq!((response.status, response.header("connection")), (200, Some("close")), "{path}");
            assert!(probe.is_closed().await, "{path}");
        }
    }
    // Heads that do not end hold no place for long, and what is refused holds none.
    let mut silent = Vec::new();
    for _ in 0..12 {
        let mut client = Client::connect(server.addr()).await;
        client.send(b"GET /health HTTP/1.1\r\n").await;
        silent.push(client);
    }
    for _ in 0..40 {
        let mut client = Client::connect(server.addr()).await;
        assert_eq!(client.get("/v1/models").await.status, 503);
    }
    assert_eq!(Client::connect(server.addr()).await.get("/health").await.status, 200);
    for mut client in silent {
        assert_eq!(client.response().await.expect("told why").status, 503);
    }
    let page = first.get("/metrics").await.text().to_owned();
    assert!(page.contains("perigee_http_refused_connections_total 52\n"), "{page}");
    // Regression: connections that say nothing held the places of probes.
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(Client::connect(server.addr()).await);
        if silent.len() % 20 == 0 {
            assert_eq!(Client::connect(server.addr()).await.get("/health/ready").await.status, 200);
        }
    }
    assert_eq!(first.get("/version").await.status, 200);
}

#[tokio::test]
async fn health_before_and_after_the_boot() {
    let engine = FakeEngine::new(true);
    let config = fake::config();
    let metrics = Arc::new(Metrics::new(MODEL, true));
    let server = Server::start(config.clone(), metrics.clone()).await.unwrap();
    let mut client = Client::connect(server.addr()).await;
    server.readiness().begin("weights");
    server.readiness().progress(0.25);
    for path in
        ["/health", "/ping", "/health/ready", "/v1/health/ready", "/v2/health/ready", "/health/startup"]
    {
        let response = client.get(path).await;
        assert_eq!((response.status, response.header("retry-after")), (503, Some("2")), "{path}");
    }
    let startup = client.get("/health/startup").await.json();
    assert_eq!((&startup["stage"], &startup["percent"]), (&json!("weights"), &json!(25)));
    for path in ["/health/live", "/v1/health/live", "/version", "/metrics"] {
        assert_eq!(client.get(path).await.status, 200, "{path}");
    }
    for path in ["/v1/models", "/tokenizer_info"] {
        let response = client.get(path).await;
        assert_eq!(
            (response.status, &response.json()["error"]["code"]),
            (503, &json!("server_starting")),
            "{path}"
        );
    }
    let response = ask(&mut client, CHAT, chat(json!({}))).await;
    assert_eq!((response.status, response.header("retry-after")), (503, Some("2")));
    server.open(fake::api(&engine, &config, metrics));
    for path in ["/health", "/ping", "/health/ready", "/health/startup", "/v1/models"] {
        assert_eq!(client.get(path).await.status, 200, "{path}");
    }
    assert_eq!(client.get("/health/startup").await.json()["stages"][0]["done"], true);
    client.send(b"HEAD /health HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert_eq!(client.head().await.unwrap().status, 200);
    ask_ok(&mut client, CHAT, chat(json!({}))).await;
}

#[tokio::test]
async fn requests_can_wait_for_the_boot() {
    let engine = FakeEngine::new(true);
    let config = Config { start_wait_s: 1e6, api_keys: vec![ApiKey::plain("k")], ..fake::config() };
    let metrics = Arc::new(Metrics::new(MODEL, true));
    let server = Server::start(config.clone(), metrics.clone()).await.unwrap();
    let mut client = Client::connect(server.addr()).await;
    assert_eq!(client.get("/health").await.status, 503, "probes do not wait");
    assert_eq!(client.get("/v1/models").await.status, 401, "nor do those who may not ask");
    let models = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer k\r\n\r\n";
    client.send(models).await;
    let mut other = Client::connect(server.addr()).await;
    while !other.get("/metrics").await.text().contains("perigee_http_requests_in_flight 2\n") {}
    server.open(fake::api(&engine, &config, metrics));
    assert_eq!(client.response().await.unwrap().status, 200);

    let failing = Server::start(config, Arc::new(Metrics::new(MODEL, true))).await.unwrap();
    let mut client = Client::connect(failing.addr()).await;
    client.send(models).await;
    failing.readiness().failed("no such file");
    let response = client.response().await.unwrap();
    assert_eq!((response.status, &response.json()["error"]["code"]), (503, &json!("boot_failed")));
}

#[tokio::test]
async fn the_vocabulary_over_http() {
    let (_server, _engine, mut client) = ready().await;
    let info = client.get("/tokenizer_info").await.json();
    assert_eq!(
        (&info["eos_token"], &info["bos_token"], &info["pad_token"]),
        (&json!("[EOS]"), &json!("[BOS]"), &json!("[PAD]"))
    );
    let body = json!({"prompt": "test<|im_end|>", "add_special_tokens": false, "return_token_strs": true});
    let answer = ask_ok(&mut client, "/tokenize", body).await;
    assert_eq!(answer["count"], 14, "what users write is text");
    assert_eq!(answer["token_strs"][0], "t");
    assert_eq!(answer["max_model_len"], fake::CONTEXT);
    let back = ask_ok(&mut client, "/detokenize", json!({"tokens": answer["tokens"]})).await;
    assert_eq!(back["prompt"], "test<|im_end|>");
    let body = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let chat = ask_ok(&mut client, "/tokenize", body).await;
    assert_eq!(chat["tokens"].as_array().unwrap().last(), Some(&json!(273)));
    assert_eq!(ask_ok(&mut client, "/tokenize", json!({"prompt": ""})).await["count"], 0);
}

#[tokio::test]
async fn models_and_names() {
    let (_server, _engine, mut client) = ready().await;
    let models = client.get("/v1/models").await.json();
    assert_eq!(models["data"][0]["id"], MODEL);
    assert_eq!(models["data"][1]["root"], MODEL);
    assert_eq!(models["data"][0]["max_model_len"], fake::CONTEXT);
    assert_eq!(client.get("/v1/models/alias").await.json()["id"], "alias");
    assert_eq!(client.get("/v1/models/nobody").await.status, 404);
    assert_eq!(ask_ok(&mut client, CHAT, chat(json!({"model": "alias"}))).await["model"], "alias");
    assert!(client.get("/version").await.json()["version"].is_string());
}

#[tokio::test]
async fn request_ids_are_echoed() {
    let (_server, _engine, mut client) = ready().await;
    let body = text(json!({})).to_string();
    for (sent, echoed) in [("abc-1", true), ("two words", false), (&"x".repeat(129), false), ("", false)] {
        let head = format!(
            "POST {TEXT} HTTP/1.1\r\nhost: x\r\nx-request-id: {sent}\r\n{JSON}content-length: {}\r\n\r\n{body}",
            body.len()
        );
        client.send(head.as_bytes()).await;
        let response = client.response().await.unwrap();
        let id = response.header("x-request-id").unwrap().to_owned();
        assert_eq!(id == sent, echoed, "{sent}");
        assert_eq!(response.json()["id"], format!("cmpl-{id}"));
    }
    let error = client.get("/nowhere").await;
    assert!(error.status == 404 && error.header("x-request-id").is_some());
    let answer = ask_ok(&mut client, CHAT, chat(json!({"request_id": "mine"}))).await;
    assert_eq!(answer["id"], "chatcmpl-mine");
}

#[tokio::test]
async fn keys_and_origins() {
    let engine = FakeEngine::new(true);
    let config: Config = serde_json::from_value(json!({
        "host": "127.0.0.1", "port": 0, "allowed_hosts": ["x"], "api_keys": ["first", "second"], "cors_origins": ["http://a.example"],
    }))
    .unwrap();
    let server = serve(&engine, config).await;
    let mut client = Client::connect(server.addr()).await;
    for (header, status) in [
        ("", 401),
        ("authorization: Bearer wrong\r\n", 401),
        ("authorization: Bearer firs\r\n", 401),
        ("authorization: Basic first\r\n", 401),
        ("authorization: first\r\n", 401),
        ("authorization: Bearer first\r\n", 200),
        ("Authorization: bearer second\r\n", 200),
    ] {
        client.send(format!("GET /v1/models HTTP/1.1\r\nhost: x\r\n{header}\r\n").as_bytes()).await;
        let response = client.response().await.unwrap();
        assert_eq!(response.status, status, "{header}");
        if status == 401 {
            assert_eq!(response.json()["error"]["code"], "invalid_api_key");
            assert_eq!(response.header("www-authenticate"), Some("Bearer"));
        }
    }
    for path in ["/health", "/health/live", "/health/ready", "/metrics", "/version", "/ping"] {
        assert_eq!(client.get(path).await.status, 200, "{path} needs no key");
    }
    for (origin, allowed) in [("http://a.example", true), ("http://b.example", false)] {
        client
            .send(format!("OPTIONS {CHAT} HTTP/1.1\r\nhost: x\r\norigin: {origin}\r\n\r\n").as_bytes())
            .await;
        let response = client.response().await.unwrap();
        assert_eq!(response.status, if allowed { 204 } else { 405 });
        let header = response.header("access-control-allow-origin");
        assert_eq!(header, allowed.then_some(origin));
    }
}
