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
            (json!({"text": {"format": {"type": "json_schema", "schema": {"contains": {}}}}}), "text.format"),
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
            (json!({"output_config": {"format": {"type": "json_schema", "schema": {"contains": {}}}}}), "output_config.format"),
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

const PORT: &str = "Which port does Perigee listen on?";

fn chat_of(extra: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": PORT}], "thinking": {"type": "disabled"}, "temperature": 0,
        "max_tokens": 40});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

const CHAT: &str = "/v1/chat/completions";

/// The official client has no such attribute where a field is absent.
#[test]
fn what_clients_expect_is_null_and_not_absent() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let null = |value: &Value, names: &[&str]| {
            for name in names {
                assert!(value.get(name).is_some_and(Value::is_null), "{name}: {value}");
            }
        };
        let chat = post(&served, CHAT, chat_of(json!({}))).await.json();
        null(&chat, &["prompt_logprobs", "prompt_token_ids", "system_fingerprint"]);
        null(&chat["choices"][0], &["token_ids", "logprobs"]);
        null(&chat["choices"][0]["message"], &["reasoning_content", "reasoning", "refusal"]);
        let text =
            post(&served, "/v1/completions", json!({"prompt": "x", "temperature": 0, "max_tokens": 4}))
                .await
                .json();
        null(&text, &["system_fingerprint"]);
        null(&text["choices"][0], &["prompt_logprobs", "prompt_token_ids", "token_ids", "logprobs"]);
        // As vLLM has them in streams: ids in every choice, those of the prompt in the first chunk of a chat.
        for (path, body) in
            [(CHAT, chat_of(json!({}))), ("/v1/completions", json!({"prompt": "x", "max_tokens": 4}))]
        {
            let mut body = body;
            body["stream"] = true.into();
            let events = post(&served, path, body).await.events();
            for (number, event) in events[..events.len() - 1].iter().enumerate() {
                let chunk: Value = serde_json::from_str(event).unwrap();
                null(&chunk["choices"][0], &["token_ids"]);
                match path {
                    CHAT => assert_eq!(chunk.get("prompt_token_ids").is_some(), number == 0, "{chunk}"),
                    _ => null(&chunk["choices"][0], &["prompt_token_ids"]),
                }
            }
        }
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn a_schema_beside_json_object_binds_the_reply() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        for format in [
            json!({"type": "json_object", "schema": person()}),
            json!({"type": "json_schema", "json_schema": {"name": "p", "schema": person()}}),
        ] {
            let body = chat_of(json!({"response_format": format, "temperature": 1, "seed": 3}));
            let answer = post(&served, CHAT, body).await.json();
            let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
            let value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert!(jsonschema::is_valid(&person(), &value), "{text}");
        }
        let typo = chat_of(json!({"response_format": {"type": "json_object", "shema": person()}}));
        let answer = post(&served, CHAT, typo).await;
        assert_eq!(
            (answer.status, answer.json()["error"]["param"].as_str()),
            (400, Some("response_format.shema"))
        );
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn a_minimum_above_sixteen_tokens_is_kept() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        for (path, body) in [
            (CHAT, chat_of(json!({"min_tokens": 30}))),
            ("/v1/completions", json!({"prompt": "x", "temperature": 0, "min_tokens": 30})),
            ("/v1/responses", json!({"input": PORT, "max_output_tokens": 60, "min_tokens": 30})),
        ] {
            let answer = post(&served, path, body).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            let usage = &answer.json()["usage"];
            let made = usage["completion_tokens"].as_u64().or(usage["output_tokens"].as_u64());
            assert!(made.unwrap() >= 30, "{path}: {usage}");
        }
        let short = post(&served, CHAT, chat_of(json!({"min_tokens": 41}))).await;
        assert_eq!((short.status, short.json()["error"]["param"].as_str()), (400, Some("min_tokens")));
        let long = post(&served, CHAT, chat_of(json!({"min_tokens": 1 << 20, "max_tokens": null}))).await;
        assert_eq!(long.json()["error"]["code"], "context_length_exceeded", "{}", long.text());
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn tokens_new_in_the_prefix_cache_are_counted() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let system = "Be brief. ".repeat(40);
        let body =
            json!({"system": system, "messages": [{"role": "user", "content": PORT}], "max_tokens": 2});
        let count =
            post(&served, "/v1/messages/count_tokens", body.clone()).await.json()["input_tokens"].clone();
        let mut found = Vec::new();
        for _ in 0..2 {
            let usage = post(&served, "/v1/messages", body.clone()).await.json()["usage"].clone();
            let part = |name: &str| usage[name].as_u64().unwrap();
            let (written, read) = (part("cache_creation_input_tokens"), part("cache_read_input_tokens"));
            assert_eq!(json!(part("input_tokens") + written + read), count, "{usage}");
            found.push((written, read));
        }
        let [(first, none), (rest, read)] = found[..] else { panic!("two answers") };
        assert!(first > 0 && none == 0, "{found:?}");
        assert_eq!(rest + read, first, "what was written is read: {found:?}");
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn what_users_of_other_servers_reach_for() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let content = async |extra: Value| {
            let answer = post(&served, CHAT, chat_of(extra)).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            let choice = answer.json()["choices"][0].clone();
            (choice["message"]["content"].as_str().unwrap_or_default().to_owned(), choice)
        };
        let (whole, _) = content(json!({})).await;
        let before = &whole[..whole.find("80").unwrap()];
        // A pattern ends the reply like a string, in a stream too.
        let (text, choice) = content(json!({"stop_regex": "[0-9]{2}"})).await;
        assert_eq!((&*text, &choice["stop_reason"]), (before, &json!("[0-9]{2}")));
        let stream = chat_of(json!({"stop_regex": ["x{9}", "[0-9]+0"], "stream": true}));
        let events = post(&served, CHAT, stream).await.events();
        let pieces = events[..events.len() - 1].iter().map(|e| serde_json::from_str::<Value>(e).unwrap());
        let joined: String = pieces
            .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
            .collect();
        assert_eq!(joined, before);
        let (text, _) = content(json!({"bad_words": ["8000", "80"]})).await;
        assert!(!text.contains("8000"), "{text}");
        let (_, choice) = content(json!({"allowed_token_ids": [100, 101], "return_token_ids": true})).await;
        let ids = choice["token_ids"].as_array().unwrap();
        assert!(ids.len() > 2 && ids.iter().all(|id| [json!(100), json!(101)].contains(id)), "{choice}");
        let (text, _) = content(json!({"n_predict": 3, "max_tokens": null})).await;
        assert!(whole.starts_with(&text) && text.len() < whole.len(), "{text}");
        // Reasoning inside of the content, between its markers.
        let thinks = json!({"thinking": {"type": "enabled"}, "max_tokens": 120});
        let (_, apart) = content(thinks.clone()).await;
        let mut inside = thinks;
        inside["separate_reasoning"] = false.into();
        let (text, choice) = content(inside).await;
        let (reasoning, answer) = (&apart["message"]["reasoning_content"], &apart["message"]["content"]);
        let expected = format!("<think>{}</think>{}", reasoning.as_str().unwrap(), answer.as_str().unwrap());
        assert_eq!((text, &choice["message"]["reasoning"]), (expected, &Value::Null));
        // The beginning of the reply comes with it.
        let begun = json!({"messages": [{"role": "user", "content": PORT}, {"role": "assistant", "content": "Perigee "}],
            "continue_final_message": true});
        let (plain, _) = content(begun.clone()).await;
        let mut echoing = begun;
        echoing["echo"] = true.into();
        assert_eq!(content(echoing).await.0, format!("Perigee {plain}"));
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn only_allowed_tools_are_called() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let parameters = json!({"type": "object", "properties": {"text": {"type": "string", "maxLength": 5}}, "required": ["text"]});
        let named = |name: &str| json!({"name": name, "parameters": parameters});
        let tool = |name: &str| json!({"type": "function", "function": named(name)});
        let own = |name: &str| json!({"type": "function", "name": name, "parameters": parameters});
        for seed in 0..4 {
            let names = json!([{"type": "function", "function": {"name": "second"}}]);
            let choice = json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": names}});
            let body = chat_of(json!({"tools": [tool("first"), tool("second"), tool("third")], "tool_choice": choice,
                "temperature": 1, "seed": seed, "max_tokens": 80}));
            let answer = post(&served, CHAT, body).await.json();
            let calls = answer["choices"][0]["message"]["tool_calls"].as_array().unwrap_or_else(|| panic!("{answer}"));
            assert!(calls.iter().all(|call| call["function"]["name"] == "second"), "{answer}");
            let choice = json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "third"}]});
            let body = json!({"input": PORT, "thinking": {"type": "disabled"}, "tools": [own("first"), own("third")],
                "tool_choice": choice, "temperature": 1, "seed": seed, "max_output_tokens": 80});
            let answer = post(&served, "/v1/responses", body).await.json();
            let items = answer["output"].as_array().unwrap().iter();
            let called: Vec<&Value> = items.filter_map(|item| item.get("name")).collect();
            assert!(!called.is_empty() && called.iter().all(|name| **name == "third"), "{answer}");
        }
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn responses_have_logprobs_whole_and_streamed() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let body = |stream: bool| {
            json!({"input": PORT, "thinking": {"type": "enabled"}, "temperature": 0, "max_output_tokens": 200, "stream": stream,
                "include": ["message.output_text.logprobs"], "top_logprobs": 2})
        };
        let whole = post(&served, "/v1/responses", body(false)).await.json();
        let message = whole["output"].as_array().unwrap().iter().find(|item| item["type"] == "message").unwrap();
        let part = &message["content"][0];
        let scores = part["logprobs"].as_array().unwrap();
        let bytes = scores.iter().flat_map(|score| score["bytes"].as_array().unwrap());
        let bytes: Vec<u8> = bytes.map(|byte| byte.as_u64().unwrap() as u8).collect();
        assert_eq!(String::from_utf8(bytes).unwrap(), part["text"], "the answer's tokens and no others");
        assert!(scores.iter().all(|score| score["top_logprobs"].as_array().unwrap().len() == 2));
        let stream = post(&served, "/v1/responses", body(true)).await;
        let data = stream.text().lines().filter_map(|line| line.strip_prefix("data: "));
        let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
        let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
        let streamed: Vec<Value> =
            deltas.flat_map(|event| event["logprobs"].as_array().unwrap().clone()).collect();
        assert_eq!(&streamed, scores);
        let last = events.last().unwrap()["response"]["output"].as_array().unwrap().last().unwrap().clone();
        assert_eq!(last["content"][0]["logprobs"], json!(scores));
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn the_last_item_of_a_cut_response_is_incomplete() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        // Cut in the answer, in the reasoning, and not at all.
        for (thinking, most, kind, status) in [
            ("disabled", 2, "message", "incomplete"),
            ("enabled", 3, "reasoning", "incomplete"),
            ("disabled", 200, "message", "completed"),
        ] {
            let body = |stream: bool| {
                json!({"input": PORT, "thinking": {"type": thinking}, "temperature": 0, "max_output_tokens": most, "stream": stream})
            };
            let whole = post(&served, "/v1/responses", body(false)).await.json();
            assert_eq!(whole["status"], status);
            let last = whole["output"].as_array().unwrap().last().unwrap();
            assert_eq!((&last["type"], &last["status"]), (&json!(kind), &json!(status)), "{whole}");
            let stream = post(&served, "/v1/responses", body(true)).await;
            let data = stream.text().lines().filter_map(|line| line.strip_prefix("data: "));
            let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
            let done = events.iter().rfind(|event| event["type"] == "response.output_item.done").unwrap();
            assert_eq!((&done["item"]["type"], &done["item"]["status"]), (&json!(kind), &json!(status)), "{done}");
            assert_eq!(events.last().unwrap()["response"]["output"].as_array().unwrap().last(), Some(&done["item"]));
        }
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn the_whole_vocabulary_is_scored_within_bounds() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let vocab = Client::connect(served.addr).await.get("/tokenizer_info").await.json()["vocab_size"].as_u64().unwrap();
        let body = chat_of(json!({"logprobs": true, "top_logprobs": -1, "max_tokens": 2}));
        let answer = post(&served, CHAT, body).await.json();
        let top = answer["choices"][0]["logprobs"]["content"][1]["top_logprobs"].as_array().unwrap().clone();
        assert_eq!(top.len() as u64, vocab);
        let sum: f64 = top.iter().map(|score| score["logprob"].as_f64().unwrap().exp()).sum();
        assert!((sum - 1.0).abs() < 1e-3, "{sum}");
        let text = json!({"prompt": "x y z", "max_tokens": 1, "logprobs": -1, "echo": true});
        assert_eq!(post(&served, "/v1/completions", text).await.status, 200);
        let most = (1u64 << 20) / vocab;
        for (body, param) in [
            (chat_of(json!({"logprobs": true, "top_logprobs": -1, "max_tokens": most + 1})), "top_logprobs"),
            (chat_of(json!({"prompt_logprobs": -1, "messages": [{"role": "user", "content": "a b ".repeat(most as usize)}]})),
                "prompt_logprobs"),
        ] {
            let answer = post(&served, CHAT, body).await;
            let error = answer.json()["error"].clone();
            assert_eq!((&error["param"], &error["code"]), (&json!(param), &json!("too_many_logprobs")), "{error}");
        }
        // A bias for every token of the vocabulary, and not for so many replies.
        let bias: serde_json::Map<String, Value> =
            (0..vocab).map(|id| (id.to_string(), json!(if id == 100 { 50 } else { 0 }))).collect();
        let biased = post(&served, CHAT, chat_of(json!({"logit_bias": bias, "return_token_ids": true, "max_tokens": 3}))).await;
        assert_eq!(biased.json()["choices"][0]["token_ids"], json!([100, 100, 100]), "{}", biased.text());
        let copies = (1u64 << 20) / vocab + 1;
        if copies <= 128 {
            let many = post(&served, CHAT, chat_of(json!({"logit_bias": bias, "n": copies}))).await;
            assert_eq!(many.json()["error"]["param"], "logit_bias", "{}", many.text());
        }
        let many = post(&served, CHAT, chat_of(json!({"n": 128, "max_tokens": 1}))).await.json();
        assert_eq!(many["choices"].as_array().unwrap().len(), 128);
    });
    assert_eq!(served.terminate(), Some(0));
}
