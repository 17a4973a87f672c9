//! What Codex and other clients of the Responses API send: tools of every type, their calls in the answer and in the history,
//! counts of tokens, prompts that were rendered elsewhere.

use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::serve::{Served, runtime};

const ASK: &str = "Which port does Perigee listen on?";

async fn post(served: &Served, path: &str, body: Value) -> Response {
    Client::connect(served.addr).await.post(path, &body.to_string()).await
}

fn with(base: &Value, more: Value) -> Value {
    let mut body = base.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn data(stream: &Response) -> Vec<Value> {
    let lines = stream.text().lines().filter_map(|line| line.strip_prefix("data: "));
    lines.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

fn patch() -> Value {
    json!({"name": "apply_patch", "description": "Patches files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}})
}

#[test]
fn a_call_of_a_custom_tool_has_its_input() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let tools = json!([with(&patch(), json!({"type": "custom"})), {"type": "web_search"}]);
        let body = json!({"input": ASK, "tools": tools, "tool_choice": {"type": "custom", "name": "apply_patch"},
            "thinking": {"type": "disabled"}, "temperature": 0, "max_output_tokens": 120, "parallel_tool_calls": false});
        let answer = post(&served, "/v1/responses", body.clone()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.header("x-perigee-ignored-fields"), Some("tools[].web_search, tools[].format"));
        let whole = answer.json()["output"][0].clone();
        assert_eq!((&whole["type"], &whole["name"]), (&json!("custom_tool_call"), &json!("apply_patch")));
        let input = whole["input"].as_str().unwrap();
        assert!(whole["id"].as_str().unwrap().starts_with("ctc_") && whole.get("arguments").is_none(), "{whole}");
        let events = data(&post(&served, "/v1/responses", with(&body, json!({"stream": true}))).await);
        let of = |kind: &str| events.iter().filter(|event| event["type"] == kind).collect::<Vec<_>>();
        let grown: String = of("response.custom_tool_call_input.delta").iter().filter_map(|e| e["delta"].as_str()).collect();
        assert_eq!(grown, input);
        assert_eq!(of("response.custom_tool_call_input.done")[0]["input"], input);
        assert_eq!(of("response.output_item.done")[0]["item"]["input"], input);
        assert!(of("response.function_call_arguments.delta").is_empty());

        let chat = json!({"messages": [{"role": "user", "content": ASK}], "thinking": {"type": "disabled"}, "temperature": 0,
            "max_tokens": 120, "parallel_tool_calls": false, "tools": [{"type": "custom", "custom": patch()}],
            "tool_choice": {"type": "custom", "custom": {"name": "apply_patch"}}});
        let answer = post(&served, "/v1/chat/completions", chat.clone()).await.json();
        let call = answer["choices"][0]["message"]["tool_calls"][0].clone();
        assert_eq!((&call["type"], &call["custom"]["name"]), (&json!("custom"), &json!("apply_patch")), "{answer}");
        assert_eq!(call["custom"]["input"], input, "the same prompt, the same call");
        let chunks = data(&post(&served, "/v1/chat/completions", with(&chat, json!({"stream": true}))).await);
        let calls: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]["tool_calls"][0]).collect();
        let grown: String = calls.iter().filter_map(|call| call["custom"]["input"].as_str()).collect();
        assert_eq!(grown, input);
        assert!(calls.iter().any(|call| call["type"] == "custom" && call["id"] == call["id"]));
        let finish = &chunks[chunks.len() - 1]["choices"][0]["finish_reason"];
        assert_eq!(finish, "tool_calls");
        // The call goes back into the history, in both dialects.
        let history = json!([{"role": "user", "content": ASK}, {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": "Done."}]);
        let rendered = post(&served, "/v1/chat/completions/render", with(&chat, json!({"messages": history}))).await.json();
        let items = json!([{"role": "user", "content": ASK}, whole,
            {"type": "custom_tool_call_output", "call_id": whole["call_id"], "output": "Done."}]);
        let items = post(&served, "/v1/responses/render", with(&body, json!({"input": items}))).await.json();
        assert_eq!(rendered["prompt"], items["prompt"]);
        let shown = format!("{{\"input\":{}}}", json!(input));
        assert!(items["prompt"].as_str().unwrap().contains(&shown), "{items}");
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn a_call_of_a_namespace_names_it() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let parameters = json!({"type": "object", "properties": {"text": {"type": "string", "maxLength": 5}}, "required": ["text"]});
        let function = json!({"type": "function", "name": "read", "parameters": parameters});
        let search = json!({"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": parameters});
        let body = json!({"input": ASK, "tools": [{"type": "namespace", "name": "mcp__files", "tools": [function]}, search],
            "thinking": {"type": "disabled"}, "temperature": 0, "max_output_tokens": 120, "parallel_tool_calls": false});
        let choice = json!({"tool_choice": {"type": "function", "namespace": "mcp__files", "name": "read"}});
        for stream in [false, true] {
            let asked = with(&with(&body, choice.clone()), json!({"stream": stream}));
            let answer = post(&served, "/v1/responses", asked).await;
            let response = match stream {
                false => answer.json(),
                true => data(&answer).pop().unwrap()["response"].clone(),
            };
            let item = &response["output"][0];
            let named = (&item["type"], &item["namespace"], &item["name"]);
            assert_eq!(named, (&json!("function_call"), &json!("mcp__files"), &json!("read")), "{response}");
            assert!(item["call_id"].as_str().unwrap().contains("mcp__files__read"), "{item}");
        }
        let forced = json!({"tool_choice": {"type": "function", "name": "tool_search"}});
        let item = post(&served, "/v1/responses", with(&body, forced)).await.json()["output"][0].clone();
        assert_eq!((&item["type"], &item["execution"]), (&json!("tool_search_call"), &json!("client")));
        assert!(item["arguments"]["text"].is_string(), "{item}");
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn the_oldest_turns_are_left_out_of_a_long_input() {
    let served = Served::start(None, &["scheduler.max_model_len=512"]);
    runtime().block_on(async {
        let turns = (0..80).flat_map(|number| {
            [
                json!({"role": "user", "content": format!("Question {number}: {}", "word ".repeat(8))}),
                json!({"role": "assistant", "content": format!("Answer {number}.")}),
            ]
        });
        let last = json!({"role": "user", "content": ASK});
        let input: Vec<Value> = turns.chain([last]).collect();
        let body =
            json!({"input": input, "instructions": "Be short.", "max_output_tokens": 16, "temperature": 0});
        let refused = post(&served, "/v1/responses", body.clone()).await;
        assert_eq!(refused.status, 400, "{}", refused.text());
        let answer = post(&served, "/v1/responses", with(&body, json!({"truncation": "auto"}))).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let usage = answer.json()["usage"]["input_tokens"].as_u64().unwrap();
        assert!((200..=496).contains(&usage), "{usage} tokens: no more is left out than has to be");
        // One turn alone cannot be made shorter.
        let long = json!({"input": "word ".repeat(2000), "truncation": "auto"});
        assert_eq!(post(&served, "/v1/responses", long).await.status, 400);
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn tokens_of_a_prompt_are_counted_in_three_dialects() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let messages = json!([{"role": "user", "content": ASK}]);
        let chat = json!({"messages": messages});
        let count = post(&served, "/v1/chat/completions/render", chat.clone()).await.json()["count"].clone();
        let vendor = post(&served, "/v1/tokenizers/estimate-token-count", chat.clone()).await.json();
        assert_eq!(vendor, json!({"data": {"total_tokens": count}}));
        let items = post(&served, "/v1/responses/input_tokens", json!({"input": ASK})).await.json();
        assert_eq!(items, json!({"object": "response.input_tokens", "input_tokens": count}));
        assert_eq!(
            post(&served, "/v1/messages/count_tokens", chat).await.json(),
            json!({"input_tokens": count})
        );
    });
    assert_eq!(served.terminate(), Some(0));
}

/// Regression: control tokens of a prompt that a client had rendered were spelled out, and the reply was silently worse.
#[test]
fn a_prompt_that_was_rendered_elsewhere_has_its_control_tokens() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let chat = json!({"messages": [{"role": "user", "content": ASK}]});
        let rendered = post(&served, "/v1/chat/completions/render", chat).await.json();
        let (text, ids) = (&rendered["prompt"], &rendered["token_ids"]);
        let tokens = |special: bool| json!({"prompt": text, "parse_special": special});
        assert_eq!(&post(&served, "/tokenize", tokens(true)).await.json()["tokens"], ids);
        assert_ne!(&post(&served, "/tokenize", tokens(false)).await.json()["tokens"], ids);
        let body = json!({"prompt": text, "parse_special": true, "max_tokens": 1, "return_token_ids": true});
        let answer = post(&served, "/v1/completions", body).await.json();
        assert_eq!(&answer["choices"][0]["prompt_token_ids"], ids);
        let info = Client::connect(served.addr).await.get("/tokenizer_info").await.json();
        assert!(info["chat_template"].as_str().unwrap().contains("<|im_middle|>"), "{info}");
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn chosen_tokens_have_logprobs_whatever_their_rank() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let chat = json!({"messages": [{"role": "user", "content": ASK}], "max_tokens": 3, "temperature": 0, "logprobs": true,
            "return_tokens_as_token_ids": true});
        let of = |answer: &Value| answer["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
        let all = with(&chat, json!({"top_logprobs": -1}));
        let all = of(&post(&served, "/v1/chat/completions", all).await.json());
        let chosen = with(&chat, json!({"logprob_token_ids": [300, 7], "top_logprobs": 1}));
        let chosen = of(&post(&served, "/v1/chat/completions", chosen).await.json());
        assert_eq!(chosen.len(), all.len());
        for (some, whole) in chosen.iter().zip(&all) {
            let best = &whole["top_logprobs"][0]["token"];
            let is_wanted = |entry: &&Value| {
                let token = &entry["token"];
                token == best || token == "token_id:7" || token == "token_id:300"
            };
            let wanted: Vec<Value> =
                whole["top_logprobs"].as_array().unwrap().iter().filter(is_wanted).cloned().collect();
            assert_eq!(some["top_logprobs"], json!(wanted));
            assert!(wanted.len() >= 2, "{some}");
        }
        let without = json!({"prompt": "x", "max_tokens": 1, "logprob_token_ids": [7]});
        let refused = post(&served, "/v1/completions", without).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("logprob_token_ids")));
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn the_models_have_codexs_list_where_codex_asks() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let mut client = Client::connect(served.addr).await;
        assert_eq!(client.get("/v1/models?client_version=0.99.0").await.json()["models"], json!([]));
        assert_eq!(client.get("/v1/models").await.json().get("models"), None);
    });
    assert_eq!(served.terminate(), Some(0));
}

/// Frontends that render prompts themselves send ids and read ids.
#[test]
fn tokens_in_give_the_tokens_that_a_chat_has() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let chat = json!({"messages": [{"role": "user", "content": ASK}], "thinking": {"type": "disabled"}, "temperature": 0,
            "max_tokens": 30, "return_token_ids": true});
        let said = post(&served, "/v1/chat/completions", chat).await.json();
        let wanted = &said["choices"][0]["token_ids"];
        let params = json!({"temperature": 0, "max_tokens": 30, "logprobs": 1});
        let body = json!({"token_ids": said["prompt_token_ids"], "sampling_params": params, "request_id": "r1"});
        let answer = post(&served, "/inference/v1/generate", body.clone()).await.json();
        assert_eq!((&answer["request_id"], &answer["choices"][0]["token_ids"]), (&json!("r1"), wanted), "{answer}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        let scores = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
        let named: Vec<String> = wanted.as_array().unwrap().iter().map(|id| format!("token_id:{id}")).collect();
        assert_eq!(scores.iter().map(|score| score["token"].as_str().unwrap()).collect::<Vec<_>>(), named);
        let stream = json!({"stream": true, "stream_options": {"include_usage": true}});
        let stream = post(&served, "/inference/v1/generate", with(&body, stream)).await;
        assert!(stream.text().ends_with("data: [DONE]\n\n"));
        let chunks = data(&stream);
        let ids = chunks.iter().flat_map(|chunk| chunk["choices"][0]["token_ids"].as_array().cloned().unwrap_or_default());
        assert_eq!(&json!(ids.collect::<Vec<_>>()), wanted);
        let last = &chunks[chunks.len() - 1];
        assert_eq!(last["usage"]["total_tokens"], answer["usage"]["total_tokens"]);
        assert_eq!(last["request_id"], "r1");
        assert_eq!(chunks[chunks.len() - 2]["choices"][0]["finish_reason"], "stop");
        let wrong = with(&body, json!({"sampling_params": {"temperature": 3}}));
        let refused = post(&served, "/inference/v1/generate", wrong).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("sampling_params.temperature")));
    });
    assert_eq!(served.terminate(), Some(0));
}

/// What `/render` answers is what `/inference/v1/generate` takes, parameters and all.
#[test]
fn a_rendered_request_is_answered_as_the_chat_is() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let chat = json!({"messages": [{"role": "user", "content": "Größe 😀? Which port does Perigee listen on?"}],
            "thinking": {"type": "disabled"}, "temperature": 0.9, "top_p": 0.8, "seed": 11, "max_tokens": 30,
            "logit_bias": {"100": -5}, "stop": ["zzz"], "return_token_ids": true, "request_id": "r2"});
        let said = post(&served, "/v1/chat/completions", chat.clone()).await.json();
        let rendered = post(&served, "/v1/chat/completions/render", chat).await.json();
        assert_eq!(rendered["request_id"], "chatcmpl-r2");
        let offsets = rendered["token_offsets"].as_array().unwrap();
        assert_eq!(offsets.len(), rendered["count"].as_u64().unwrap() as usize);
        let prompt: Vec<char> = rendered["prompt"].as_str().unwrap().chars().collect();
        let place = |pair: &Value| (pair[0].as_u64().unwrap() as usize, pair[1].as_u64().unwrap() as usize);
        let mut reached = 0;
        for pair in offsets {
            let (start, end) = place(pair);
            assert!(start <= reached && reached <= end && start < end, "{pair} behind {reached}");
            reached = end;
        }
        assert_eq!(reached, prompt.len());
        let answer = post(&served, "/inference/v1/generate", rendered).await;
        assert_eq!(answer.json()["choices"][0]["token_ids"], said["choices"][0]["token_ids"], "{}", answer.text());
    });
    assert_eq!(served.terminate(), Some(0));
}
