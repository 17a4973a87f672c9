//! The chat surface end to end, on the embedded model: tools, reasoning and its budget, partial messages, rendering.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::client::Client;
use crate::serve::{Served, runtime};

const CHAT: &str = "/v1/chat/completions";

/// One tool item of the held-out set: a request and the call it should lead to.
struct ToolItem {
    request: Value,
    expect: Value,
}

/// Items whose declaration is JSON, so that the tools can be read back from it.
static TOOL_ITEMS: LazyLock<Vec<ToolItem>> = LazyLock::new(|| {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/nano/heldout.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let items = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    items
        .filter(|item| item["skill"] == "tool")
        .filter_map(|item| {
            let prompt = item["prompt_text"].as_str()?;
            let declared = between(prompt, "tool_declare<|im_middle|>", "<|im_end|>")?;
            let tools: Value = serde_json::from_str(declared).ok()?;
            let question = between(prompt, "<|im_user|>user<|im_middle|>", "<|im_end|>")?;
            // Only fresh questions: no history before them.
            (prompt.matches("<|im_assistant|>").count() == 1).then(|| ToolItem {
                request: json!({"messages": [{"role": "user", "content": question}], "tools": tools,
                    "temperature": 0, "max_tokens": 160}),
                expect: item["expect"].clone(),
            })
        })
        .collect()
});

fn between<'a>(text: &'a str, begin: &str, end: &str) -> Option<&'a str> {
    text.split_once(begin)?.1.split_once(end).map(|(found, _)| found)
}

async fn post(addr: SocketAddr, path: &str, body: &Value) -> Value {
    let response = Client::connect(addr).await.post(path, &body.to_string()).await;
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

/// The message that a stream's deltas add up to, and the finish reason; checks what clients rely on on the way.
async fn streamed(addr: SocketAddr, body: &Value) -> (Value, Value) {
    let mut body = body.clone();
    body["stream"] = true.into();
    let response = Client::connect(addr).await.post(CHAT, &body.to_string()).await;
    assert_eq!(response.status, 200, "{}", response.text());
    let events = response.events();
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    let (mut content, mut reasoning) = (String::new(), None::<String>);
    let mut calls: Vec<Value> = Vec::new();
    let mut finish = Value::Null;
    for (number, event) in events[..events.len() - 1].iter().enumerate() {
        let chunk: Value = serde_json::from_str(event).unwrap();
        let choice = &chunk["choices"][0];
        let delta = &choice["delta"];
        assert_eq!(number == 0, delta.get("role").is_some(), "the role comes first and once: {event}");
        content.push_str(delta["content"].as_str().unwrap_or(""));
        assert_eq!(delta.get("reasoning_content"), delta.get("reasoning"));
        if let Some(text) = delta["reasoning_content"].as_str() {
            reasoning.get_or_insert_default().push_str(text);
        }
        if let Some(list) = delta.get("tool_calls") {
            let [call] = list.as_array().unwrap().as_slice() else { panic!("one call in a delta: {event}") };
            let index = call["index"].as_u64().unwrap() as usize;
            if call.get("id").is_some() {
                assert_eq!(index, calls.len(), "{event}");
                assert_eq!((&call["type"], &call["function"]["arguments"]), (&json!("function"), &json!("")));
                calls.push(json!({"id": call["id"], "type": "function",
                    "function": {"name": call["function"]["name"], "arguments": ""}}));
            } else {
                assert_eq!(index + 1, calls.len(), "arguments are the last call's: {event}");
                let piece = call["function"]["arguments"].as_str().unwrap();
                assert!(!piece.is_empty() && call["function"].get("name").is_none(), "{event}");
                let arguments = &mut calls[index]["function"]["arguments"];
                *arguments = (arguments.as_str().unwrap().to_owned() + piece).into();
            }
        }
        if !choice["finish_reason"].is_null() {
            finish = choice["finish_reason"].clone();
        }
    }
    let empty = content.is_empty() && (reasoning.is_some() || !calls.is_empty());
    let mut message = json!({"role": "assistant", "content": if empty { Value::Null } else { content.into() }, "refusal": null});
    let reasoning = reasoning.map_or(Value::Null, Value::String);
    (message["reasoning_content"], message["reasoning"]) = (reasoning.clone(), reasoning);
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    (message, finish)
}

/// Asks some at once, so that the engine runs them as a batch and none waits for long.
async fn all(addr: SocketAddr, bodies: Vec<Value>) -> Vec<Value> {
    let mut answers = Vec::new();
    for wave in bodies.chunks(16) {
        let tasks: Vec<_> = wave
            .iter()
            .cloned()
            .map(|body| tokio::spawn(async move { post(addr, CHAT, &body).await }))
            .collect();
        for task in tasks {
            answers.push(task.await.unwrap());
        }
    }
    answers
}

fn assert_no_markers(message: &Value) {
    for field in ["content", "reasoning_content"] {
        let text = message[field].as_str().unwrap_or("");
        assert!(!text.contains("<|") && !text.contains("think>"), "{message}");
    }
}

#[test]
fn tools_are_called_and_their_results_used() {
    let served = Served::start(None, &[]);
    let addr = served.addr;
    assert!(TOOL_ITEMS.len() >= 10, "{} items", TOOL_ITEMS.len());
    runtime().block_on(async {
        let mut right = 0;
        let answers = all(addr, TOOL_ITEMS.iter().map(|item| item.request.clone()).collect()).await;
        for (item, answer) in TOOL_ITEMS.iter().zip(&answers) {
            let choice = &answer["choices"][0];
            let message = &choice["message"];
            assert_no_markers(message);
            assert_eq!(
                streamed(addr, &item.request).await,
                (message.clone(), choice["finish_reason"].clone())
            );
            let Some(call) = message["tool_calls"].get(0) else { continue };
            assert_eq!(choice["finish_reason"], "tool_calls");
            let name = call["function"]["name"].as_str().unwrap();
            assert_eq!(call["id"], format!("functions.{name}:0"));
            let arguments: Value =
                serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
            right += usize::from(name == item.expect["name"] && arguments == item.expect["arguments"]);
        }
        assert!(right * 100 >= TOOL_ITEMS.len() * 75, "{right} of {} calls are right", TOOL_ITEMS.len());

        // The call goes back with an id of the client's own making, and a result; the model answers in words.
        let (item, answer) = TOOL_ITEMS
            .iter()
            .zip(&answers)
            .find(|(_, answer)| answer["choices"][0]["finish_reason"] == "tool_calls")
            .unwrap();
        let mut request = item.request.clone();
        let mut message = answer["choices"][0]["message"].clone();
        message["tool_calls"][0]["id"] = "call_1".into();
        let messages = request["messages"].as_array_mut().unwrap();
        messages.push(message);
        messages.push(json!({"role": "tool", "tool_call_id": "call_1", "content": "{\"status\": \"done\"}"}));
        let prompt = post(addr, "/v1/chat/completions/render", &request).await;
        let name = item.expect["name"].as_str().unwrap();
        assert!(prompt["prompt"].as_str().unwrap().contains("## Return of functions."), "{prompt}");
        assert!(!prompt["prompt"].as_str().unwrap().contains("call_1"), "{name}: {prompt}");
        let answer = post(addr, CHAT, &request).await;
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
        assert!(!answer["choices"][0]["message"]["content"].as_str().unwrap().is_empty());
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn a_choice_of_none_is_kept() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let bodies = TOOL_ITEMS.iter().take(12).map(|item| {
            let mut body = item.request.clone();
            (body["tool_choice"], body["max_tokens"]) = ("none".into(), 40.into());
            body
        });
        for answer in all(served.addr, bodies.collect()).await {
            let message = &answer["choices"][0]["message"];
            assert!(message.get("tool_calls").is_none(), "{answer}");
            assert_ne!(answer["choices"][0]["finish_reason"], "tool_calls");
            assert_no_markers(message);
        }
    });
    assert_eq!(served.terminate(), Some(0));
}

/// Questions of every kind the model knows, and some it does not.
fn questions(count: usize) -> Vec<String> {
    let mut rng = fastrand::Rng::with_seed(17);
    (0..count)
        .map(|i| match i % 4 {
            0 => format!("What is {} + {}?", rng.u32(1..999), rng.u32(1..999)),
            1 => "Write a long story about the sea.".to_owned(),
            2 => "Which port does Perigee listen on?".to_owned(),
            _ => format!("Repeat after me: the {} lamps went out", rng.u32(2..99)),
        })
        .collect()
}

#[test]
fn a_reasoning_budget_always_ends_in_an_answer() {
    let served = Served::start(None, &["reasoning.max_budget_tokens=64"]);
    runtime().block_on(async {
        for (count, budget, temperature) in [(200, 64, 1.0), (40, 64, 2.0), (40, 5, 1.0), (40, 0, 0.0)] {
            let bodies = questions(count).into_iter().enumerate().map(|(i, question)| {
                json!({"messages": [{"role": "user", "content": question}], "thinking": {"type": "enabled", "budget_tokens": budget},
                    "temperature": temperature, "seed": i, "max_tokens": 120})
            });
            let mut closed_in_time = 0;
            for answer in all(served.addr, bodies.collect()).await {
                let message = &answer["choices"][0]["message"];
                let spent = answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
                assert!(spent <= budget, "{answer}");
                assert!(message["reasoning_content"].is_string(), "{answer}");
                let content = message["content"].as_str().unwrap_or("");
                assert!(!content.trim().is_empty(), "budget {budget}, temperature {temperature}: {answer}");
                closed_in_time += usize::from(spent == budget);
            }
            assert!(budget > 5 || closed_in_time * 2 > count, "{closed_in_time} used up a budget of {budget}");
        }
        // The operator's limit also holds for a request that asks for more.
        let body = json!({"messages": [{"role": "user", "content": "Write a long story."}], "temperature": 2, "seed": 3,
            "thinking": {"type": "enabled", "budget_tokens": 500}, "max_tokens": 300});
        let answer = post(served.addr, CHAT, &body).await;
        assert!(answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap() <= 64);
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn reasoning_is_switched_split_and_counted() {
    let served = Served::start(None, &[]);
    let addr = served.addr;
    let ask = |extra: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "What is 12 + 30?"}], "temperature": 0, "max_tokens": 120});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    runtime().block_on(async {
        let instant = post(addr, CHAT, &ask(json!({}))).await;
        assert_eq!(
            instant["choices"][0]["message"].get("reasoning_content"),
            Some(&Value::Null),
            "{instant}"
        );
        assert_eq!(instant["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
        for on in [
            json!({"chat_template_kwargs": {"thinking": true}}),
            json!({"thinking": {"type": "enabled"}}),
            json!({"reasoning_effort": "high"}),
        ] {
            let body = ask(on);
            let answer = post(addr, CHAT, &body).await;
            let message = &answer["choices"][0]["message"];
            assert!(message["content"].as_str().unwrap().contains("42"), "{answer}");
            let reasoning = message["reasoning_content"].as_str().unwrap();
            assert!(!reasoning.is_empty() && message["reasoning"] == reasoning, "{answer}");
            assert!(answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 0);
            assert_no_markers(message);
            assert_eq!(streamed(addr, &body).await.0, *message);
            let mut hidden = body.clone();
            hidden["include_reasoning"] = false.into();
            let hidden = post(addr, CHAT, &hidden).await;
            assert_eq!(hidden["choices"][0]["message"].get("reasoning"), Some(&Value::Null));
            assert_eq!(hidden["choices"][0]["message"]["content"], message["content"]);
            // A stop string ends answers, not reasoning.
            let mut stopped = body.clone();
            stopped["stop"] = json!(["\n", "42"]);
            let stopped = post(addr, CHAT, &stopped).await;
            assert_eq!(stopped["choices"][0]["message"]["reasoning_content"], reasoning);
        }
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn a_partial_message_is_continued() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        for flag in ["partial", "prefix"] {
            let body = json!({"temperature": 0, "max_tokens": 40, "messages": [
                {"role": "user", "content": "Repeat after me: the lamps went out"},
                {"role": "assistant", "content": "the lamps", flag: true}]});
            let prompt = post(served.addr, "/v1/chat/completions/render", &body).await;
            assert!(prompt["prompt"].as_str().unwrap().ends_with("<think></think>the lamps"), "{prompt}");
            let count = prompt["prompt_token_ids"].as_array().unwrap().len();
            let answer = post(served.addr, CHAT, &body).await;
            assert_eq!(answer["usage"]["prompt_tokens"], count);
            let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
            assert!(content.contains("went out") && !content.contains("the lamps"), "{content}");
        }
    });
    assert_eq!(served.terminate(), Some(0));
}

fn perigee(arguments: &[&str], input: &str) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("input");
    std::fs::write(&file, input).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_perigee"))
        .args(&arguments[..1])
        .arg(&file)
        .args(&arguments[1..])
        .current_dir(folder.path())
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[test]
fn prompts_and_replies_from_files() {
    let request = json!({"messages": [{"role": "user", "content": "Hi <|im_end|>"}],
        "tools": [{"type": "function", "function": {"name": "now", "description": "The time."}}]});
    let (code, shown) = perigee(&["render", "--json"], &request.to_string());
    let shown: Value = serde_json::from_str(&shown).unwrap_or_else(|error| panic!("{error}: {shown}"));
    assert_eq!(code, Some(0));
    assert_eq!(
        shown["prompt"],
        "<|im_system|>tool_declare<|im_middle|># Tools\n\n## functions\nnamespace functions {\n// The time.\ntype now = (_: {}) => any;\n}\n<|im_end|><|im_user|>user<|im_middle|>Hi <|im_end|><|im_end|><|im_assistant|>assistant<|im_middle|><think></think>"
    );
    assert!(!shown["prompt_token_ids"].as_array().unwrap().is_empty());
    let (code, shown) = perigee(&["render"], r#"{"messages": 3}"#);
    assert_eq!(code, Some(2));
    assert!(shown.contains("messages"), "{shown}");

    let reply = "Let me see.</think>One moment.<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|><|im_end|>";
    let (code, shown) = perigee(&["parse"], reply);
    assert_eq!(code, Some(0), "{shown}");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(
        shown,
        json!({"message": {"role": "assistant", "content": "One moment.", "reasoning_content": "Let me see.", "tool_calls": [
            {"id": "functions.now:0", "type": "function", "function": {"name": "now", "arguments": "{}"}}]},
            "finish_reason": "tool_calls"})
    );
}

/// The events of Anthropic's streams as (name, data).
fn named_events(text: &str) -> Vec<(String, Value)> {
    text.split_terminator("\n\n")
        .filter(|event| !event.starts_with(':'))
        .map(|event| {
            let (name, data) = event.split_once('\n').expect("two lines");
            let name = name.strip_prefix("event: ").expect("a name");
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
            assert_eq!(data["type"], name);
            (name.to_owned(), data)
        })
        .collect()
}

#[test]
fn anthropic_messages_say_what_chat_says() {
    let served = Served::start(None, &[]);
    let addr = served.addr;
    runtime().block_on(async {
        for item in TOOL_ITEMS.iter().take(6) {
            let tools: Vec<Value> = item.request["tools"]
                .as_array()
                .unwrap()
                .iter()
                .map(|tool| {
                    let function = &tool["function"];
                    json!({"name": function["name"], "description": function["description"], "input_schema": function["parameters"]})
                })
                .collect();
            for thinking in ["enabled", "disabled"] {
                let mut chat = item.request.clone();
                chat["thinking"] = json!({"type": thinking});
                let said = post(addr, CHAT, &chat).await["choices"][0].clone();
                let mut body = json!({"model": "perigee-nano", "max_tokens": 160, "temperature": 0, "messages": chat["messages"],
                    "tools": tools, "thinking": {"type": thinking}});
                let whole = post(addr, "/v1/messages", &body).await;
                assert_eq!((&whole["type"], &whole["role"]), (&json!("message"), &json!("assistant")));
                let mut expected = Vec::new();
                if let Some(text) = said["message"]["reasoning_content"].as_str().filter(|text| !text.is_empty()) {
                    expected.push(json!({"type": "thinking", "thinking": text, "signature": whole["content"][0]["signature"]}));
                }
                if let Some(text) = said["message"]["content"].as_str().filter(|text| !text.is_empty()) {
                    expected.push(json!({"type": "text", "text": text}));
                }
                for call in said["message"]["tool_calls"].as_array().into_iter().flatten() {
                    let function = &call["function"];
                    let input: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
                    expected.push(json!({"type": "tool_use", "id": call["id"], "name": function["name"], "input": input}));
                }
                assert_eq!(whole["content"], json!(expected));
                let reason = if said["finish_reason"] == "tool_calls" { "tool_use" } else { "end_turn" };
                assert_eq!(whole["stop_reason"], reason);

                let count = post(addr, "/v1/messages/count_tokens", &body).await;
                let usage = &whole["usage"];
                let parts = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];
                let prompt: u64 = parts.iter().map(|part| usage[part].as_u64().unwrap()).sum();
                assert_eq!(count["input_tokens"], prompt);

                body["stream"] = true.into();
                let response = Client::connect(addr).await.post("/v1/messages", &body.to_string()).await;
                let events = named_events(response.text());
                assert_eq!(events.first().map(|event| event.0.as_str()), Some("message_start"));
                assert_eq!(events.last().map(|event| event.0.as_str()), Some("message_stop"));
                let mut blocks: Vec<Value> = Vec::new();
                let (mut open, mut input) = (false, String::new());
                for (name, data) in &events {
                    match name.as_str() {
                        "content_block_start" => {
                            assert!(!std::mem::replace(&mut open, true));
                            assert_eq!(data["index"], blocks.len());
                            blocks.push(data["content_block"].clone());
                        }
                        "content_block_delta" => {
                            assert!(open && data["index"] == blocks.len() - 1);
                            let (block, delta) = (blocks.last_mut().unwrap(), &data["delta"]);
                            for (kind, field) in
                                [("text_delta", "text"), ("thinking_delta", "thinking"), ("signature_delta", "signature")]
                            {
                                if delta["type"] == kind {
                                    block[field] =
                                        (block[field].as_str().unwrap().to_owned() + delta[field].as_str().unwrap()).into();
                                }
                            }
                            input.push_str(delta["partial_json"].as_str().unwrap_or(""));
                        }
                        "content_block_stop" => {
                            assert!(std::mem::replace(&mut open, false));
                            let block = blocks.last_mut().unwrap();
                            if block["type"] == "tool_use" {
                                block["input"] = serde_json::from_str(&std::mem::take(&mut input)).unwrap();
                            }
                        }
                        "message_delta" => assert_eq!(data["delta"]["stop_reason"], reason),
                        _ => {}
                    }
                }
                assert_eq!(json!(blocks), json!(expected));
            }
        }
        let response = Client::connect(addr).await.post("/v1/messages", r#"{"messages": []}"#).await;
        assert_eq!(response.status, 400);
        assert_eq!((&response.json()["type"], &response.json()["error"]["type"]), (&json!("error"), &json!("invalid_request_error")));
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn responses_say_what_chat_says() {
    let served = Served::start(None, &[]);
    let addr = served.addr;
    runtime().block_on(async {
        for item in TOOL_ITEMS.iter().take(6) {
            let tools: Vec<Value> = item.request["tools"]
                .as_array()
                .unwrap()
                .iter()
                .map(|tool| {
                    let mut flat = tool["function"].clone();
                    flat["type"] = "function".into();
                    flat
                })
                .collect();
            let mut chat = item.request.clone();
            chat["reasoning_effort"] = "high".into();
            let said = post(addr, CHAT, &chat).await["choices"][0].clone();
            let question = &chat["messages"][0]["content"];
            let mut body = json!({"input": question, "tools": tools, "temperature": 0, "max_output_tokens": 160,
                "reasoning": {"effort": "high"}});
            let whole = post(addr, "/v1/responses", &body).await;
            assert_eq!((&whole["object"], &whole["status"]), (&json!("response"), &json!("completed")));
            let output = whole["output"].as_array().unwrap();
            let of = |kind: &str| output.iter().filter(|item| item["type"] == kind).collect::<Vec<_>>();
            let reasoning = said["message"]["reasoning_content"].as_str().unwrap_or("");
            assert_eq!(of("reasoning").first().map_or("", |item| item["content"][0]["text"].as_str().unwrap()), reasoning);
            let calls = said["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
            assert_eq!(of("function_call").len(), calls.len());
            for (item, call) in of("function_call").into_iter().zip(&calls) {
                assert_eq!((&item["call_id"], &item["name"]), (&call["id"], &call["function"]["name"]));
                assert_eq!(item["arguments"], call["function"]["arguments"]);
            }
            if let Some(text) = said["message"]["content"].as_str() {
                assert_eq!(of("message")[0]["content"][0]["text"], text);
            }
            assert!(whole["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 0);

            body["stream"] = true.into();
            let response = Client::connect(addr).await.post("/v1/responses", &body.to_string()).await;
            let events = named_events(response.text());
            let numbers: Vec<u64> =
                events.iter().map(|event| event.1["sequence_number"].as_u64().unwrap()).collect();
            assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
            let (name, last) = events.last().unwrap();
            assert_eq!(name, "response.completed");
            // Only ids and times differ.
            let kinds = |output: &Value| -> Vec<Value> {
                let items = output.as_array().unwrap().iter();
                items.map(|i| json!([i["type"], i["content"], i["name"], i["arguments"], i["status"]])).collect()
            };
            assert_eq!(kinds(&last["response"]["output"]), kinds(&whole["output"]));
            let grown: String = events
                .iter()
                .filter(|event| event.0 == "response.function_call_arguments.delta")
                .map(|event| event.1["delta"].as_str().unwrap())
                .collect();
            let arguments: String = calls.iter().map(|c| c["function"]["arguments"].as_str().unwrap()).collect();
            assert_eq!(grown, arguments);
        }
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn a_header_counts_what_the_guard_found() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let mut found = 0;
        for prompt in ["the cat and the", "a a a a", "once upon a time", "hello, hello,"] {
            let body = json!({"prompt": prompt, "temperature": 0, "max_tokens": 1500, "ignore_eos": true, "repetition_guard": "stop"});
            let response = Client::connect(served.addr).await.post("/v1/completions", &body.to_string()).await;
            assert_eq!(response.status, 200, "{}", response.text());
            let events = response.json()["choices"][0]["guard"]["events"].as_array().map_or(0, Vec::len);
            assert_eq!(response.header("x-guard-events"), Some(events.to_string().as_str()), "{prompt}");
            found += events;
        }
        assert!(found > 0, "without a loop this test says nothing");
        let models = Client::connect(served.addr).await.get("/v1/models").await;
        assert_eq!(models.header("x-guard-events"), None, "nothing was generated");
    });
    assert_eq!(served.terminate(), Some(0));
}
