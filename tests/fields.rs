//! No field is ignored in silence: every property of every route's schema is set to a value that must change the answer or refuse
//! it. Those that the document calls meaningless, and no others, change nothing.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::serve::{Served, runtime};

/// What became of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Changed,
    Refused,
    Meaningless,
}

/// Ids of the served model that some cases need.
struct Ids {
    section_end: u64,
}

fn object(value: Value) -> serde_json::Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        other => panic!("an object, not {other}"),
    }
}

fn with(base: &Value, more: Value) -> Value {
    let mut body = object(base.clone());
    body.extend(object(more));
    Value::Object(body)
}

const QUESTION: &str = "Which port does Perigee listen on?";

/// A request that the route answers.
fn base(path: &str) -> Value {
    let path = path.strip_suffix("/render").unwrap_or(path);
    let messages = json!([{"role": "user", "content": QUESTION}]);
    let instant = json!({"type": "disabled"});
    match path {
        "/v1/chat/completions" | "/v1/messages" => {
            json!({"messages": messages, "thinking": instant, "temperature": 0, "max_tokens": 40})
        }
        "/v1/messages/count_tokens" | "/v1/tokenizers/estimate-token-count" => {
            json!({"messages": messages, "thinking": instant})
        }
        "/v1/responses" | "/v1/responses/input_tokens" => {
            json!({"input": QUESTION, "thinking": instant, "temperature": 0, "max_output_tokens": 40})
        }
        "/v1/completions" => json!({"prompt": "Perigee listens on port", "temperature": 0, "max_tokens": 40}),
        "/inference/v1/generate" => {
            json!({"token_ids": [100, 101], "sampling_params": {"temperature": 0, "max_tokens": 40}})
        }
        "/tokenize" => json!({"prompt": "Hello, world!"}),
        "/detokenize" => json!({"tokens": [100, 101]}),
        _ => panic!("{path} takes a body and has no base here"),
    }
}

/// Fields that stand in both requests, and the value that must make the difference.
fn case(route: &str, field: &str, ids: &Ids) -> Option<(Value, Value)> {
    let path = route.strip_suffix("/render").unwrap_or(route);
    let path = path.strip_suffix("/input_tokens").unwrap_or(path);
    let (responses, messages) = (path == "/v1/responses", path == "/v1/messages");
    let drawn = json!({"temperature": 2, "seed": 7});
    // One token over and over.
    let looped = json!({"logit_bias": {"100": 100}});
    let thinks = json!({"thinking": {"type": "enabled"}});
    let schema = json!({"type": "object", "properties": {"port": {"type": "integer"}}, "required": ["port"]});
    let grammar = "root ::= \"yes\"";
    let function = json!({"name": "note", "description": "Notes a text.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string", "maxLength": 5}}, "required": ["text"]}});
    let tools = match path {
        "/v1/responses" => with(&json!({"type": "function"}), function.clone()),
        "/v1/messages" | "/v1/messages/count_tokens" => {
            json!({"name": "note", "input_schema": function["parameters"]})
        }
        _ => json!({"type": "function", "function": function.clone()}),
    };
    let tools = json!([tools]);
    let forced = if messages { json!({"type": "any"}) } else { json!("required") };
    let unfinished = json!({"messages": [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "Perigee listens"}]});
    let scored = match responses {
        true => json!({"include": ["message.output_text.logprobs"]}),
        false if path == "/v1/completions" => json!({"logprobs": 1}),
        false => json!({"logprobs": true}),
    };
    let none = || json!({});
    Some(match field {
        "messages" if path == "/tokenize" => {
            let other = json!([{"role": "user", "content": "y"}]);
            (json!({"prompt": null, "messages": other}), json!([{"role": "user", "content": "x"}]))
        }
        "messages" => (none(), json!([{"role": "user", "content": "Hello"}])),
        "input" | "prompt" => (none(), json!("Hello")),
        "tokens" | "token_ids" => (none(), json!([102])),
        "sampling_params" => (none(), json!({"temperature": 0, "max_tokens": 3})),
        "model" => (none(), json!("nobody")),
        "n" => (none(), json!(2)),
        "stream" => (none(), json!(true)),
        // Where usage always stands, it is only asked whether there is a stream.
        "stream_options" if responses || messages => (none(), json!({"include_usage": true})),
        "stream_options" => (json!({"stream": true}), json!({"include_usage": true})),
        "max_tokens" if messages => (none(), json!(3)),
        "n_predict" if messages => (json!({"max_tokens": null, "n_predict": 9}), json!(3)),
        "num_predict" | "max_new_tokens" if messages => (json!({"max_tokens": null, field: 9}), json!(3)),
        "max_tokens" | "n_predict" | "num_predict" | "max_new_tokens" => {
            (json!({"max_output_tokens": null, "max_tokens": null}), json!(3))
        }
        "max_completion_tokens" | "max_output_tokens" => (none(), json!(3)),
        "random_seed" => (json!({"temperature": 2, field: 7}), json!(2)),
        "do_sample" => (drawn, json!(false)),
        "suppress_tokens" | "banned_tokens" => (looped, json!([100])),
        "repeat_last_n" => (json!({"repetition_penalty": 10}), json!(64)),
        "extra_body" => (none(), json!({"temperature": 1})),
        "json_mode" => (none(), json!(true)),
        "format" => (none(), schema),
        "functions" => (none(), json!([function])),
        "function_call" => (json!({"functions": [function]}), json!({"name": "note"})),
        "temperature" => (json!({"seed": 7}), json!(2)),
        "top_p" => (drawn, json!(0.01)),
        "top_k" => (drawn, json!(1)),
        "min_p" => (drawn, json!(1)),
        "seed" => (drawn, json!(2)),
        "repetition_penalty" | "repeat_penalty" => (none(), json!(10)),
        "presence_penalty" | "frequency_penalty" => (drawn, json!(2)),
        "logit_bias" => (none(), json!({"100": 100})),
        "allowed_token_ids" => (none(), json!([100, 101])),
        "bad_words" | "banned_strings" => (none(), json!(["8000", "Perigee", "port", "on", "listens"])),
        "stop" | "stop_sequences" => (none(), json!(["80"])),
        "stop_regex" => (none(), json!("[0-9]{2}")),
        "stop_token_ids" => (looped, json!([100])),
        "min_tokens" => (none(), json!(40)),
        "ignore_eos" => (none(), json!(true)),
        "include_stop_str_in_output" => (json!({"stop": "80"}), json!(true)),
        "skip_special_tokens" => (json!({"ignore_eos": true}), json!(false)),
        "truncate_prompt_tokens" => (none(), json!(3)),
        "truncation_side" => (json!({"truncate_prompt_tokens": 3}), json!("right")),
        "logprob_token_ids" => (scored, json!([100, 101])),
        "previous_response_id" => (none(), json!("resp_none")),
        "store" if responses => (none(), json!(false)),
        "background" if responses => (none(), json!(true)),
        "parse_special" => (json!({"prompt": "<|im_end|>x"}), json!(true)),
        "prompt_logprobs" => (none(), json!(1)),
        // Told by its range: nothing else waits here.
        "priority" => (none(), json!(1u64 << 40)),
        "cache_salt" => (none(), json!("a/b")),
        // Told by their types: they change how long a reply takes.
        "speculation" => (none(), json!("yes")),
        "prediction" => (none(), json!({"type": "text", "content": "x"})),
        "request_id" => (none(), json!("chosen")),
        "return_token_ids" | "return_token_strs" => (none(), json!(true)),
        "return_tokens_as_token_ids" => (scored, json!(true)),
        "best_of" => (none(), json!(3)),
        "repetition_guard" if path == "/v1/completions" => {
            (with(&looped, json!({"max_tokens": 160})), json!("off"))
        }
        // A conversation's reply that is repetition from its start is permitted: told by its range.
        "repetition_guard" => (none(), json!("on")),
        "repetition_detection" => (looped, json!({"max_pattern_size": 4, "min_count": 4})),
        "response_format" => (none(), json!({"type": "json_object", "schema": schema})),
        "structured_outputs" => (none(), json!({"regex": "[a-f]{3}"})),
        "guided_json" | "json_schema" => (none(), schema),
        "guided_regex" | "regex" => (none(), json!("[a-f]{3}")),
        "guided_choice" => (none(), json!(["yes", "no"])),
        "guided_grammar" | "ebnf" | "grammar" => (none(), json!(grammar)),
        "guided_whitespace_pattern" => (none(), json!(" ")),
        "structural_tag" => (none(), json!({"structures": [], "triggers": []})),
        "logprobs" if path == "/v1/completions" => (none(), json!(1)),
        "logprobs" => (none(), json!(true)),
        "top_logprobs" => (scored, json!(2)),
        "echo" if path == "/v1/completions" => (none(), json!(true)),
        "echo" => (with(&unfinished, json!({"continue_final_message": true})), json!(true)),
        "continue_final_message" => (with(&unfinished, json!({"prompt": null})), json!(true)),
        "add_generation_prompt" if path == "/tokenize" => {
            (with(&unfinished, json!({"prompt": null})), json!(false))
        }
        "add_generation_prompt" => (none(), json!(false)),
        "tools" if path == "/tokenize" => (with(&unfinished, json!({"prompt": null})), tools),
        "tools" => (none(), tools),
        "tool_choice" => (json!({"tools": tools}), forced),
        "parallel_tool_calls" => {
            let bias = json!({ids.section_end.to_string(): -100});
            (
                json!({"tools": tools, "tool_choice": forced, "logit_bias": bias, "max_tokens": 60}),
                json!(false),
            )
        }
        "modalities" => (none(), json!(["audio"])),
        "thinking" => (none(), json!({"type": "enabled"})),
        "reasoning_effort" => (json!({"thinking": null, "reasoning_effort": "none"}), json!("low")),
        "reasoning" => (json!({"thinking": null, "reasoning": {"effort": "none"}}), json!({"effort": "low"})),
        "enable_thinking" => (json!({"thinking": null, field: false}), json!(true)),
        "think" => (json!({"thinking": null, field: false}), json!("low")),
        "thinking_token_budget" | "thinking_budget" => (thinks, json!(1)),
        "include_reasoning" | "separate_reasoning" => (thinks, json!(false)),
        "chat_template_kwargs" if path == "/tokenize" => {
            let asked = json!([{"role": "user", "content": "x"}]);
            (
                json!({"prompt": null, "messages": asked, field: {"thinking": false}}),
                json!({"thinking": true}),
            )
        }
        "chat_template_kwargs" => {
            (json!({"thinking": null, field: {"thinking": false}}), json!({"thinking": true}))
        }
        "instructions" | "system" => (none(), json!("Answer in one word.")),
        "text" => (none(), json!({"format": {"type": "json_object"}})),
        "metadata" => (none(), json!({"a": "b"})),
        "include" => (none(), json!(["message.output_text.logprobs"])),
        "truncation" => (none(), json!("auto")),
        "output_config" if route == "/v1/messages" => {
            (none(), json!({"format": {"type": "json_schema", "schema": schema}}))
        }
        "output_config" => (none(), json!({"effort": "some"})),
        "output_format" => (none(), json!({"type": "json_schema", "schema": schema})),
        _ => return None,
    })
}

/// The answer without what differs between equal requests.
fn comparable(response: &Response) -> (u16, Option<String>, Value) {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|name, _| !["created", "created_at"].contains(&name.as_str()));
                fields.values_mut().for_each(strip);
            }
            Value::Array(list) => list.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let id = response.header("x-request-id").unwrap_or("none");
    let text = response.text().replace(id, "ID");
    let mut body = match serde_json::from_str(&text) {
        Ok(body) => body,
        Err(_) => {
            let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
            data.map(|data| serde_json::from_str(data).unwrap_or_else(|_| json!(data))).collect()
        }
    };
    strip(&mut body);
    (response.status, response.header("x-perigee-ignored-fields").map(str::to_owned), body)
}

/// A field of a route, and the two requests that differ in it.
struct Question {
    path: String,
    field: String,
    description: String,
    without: Value,
    one: Value,
}

impl Question {
    fn is_meaningless(&self) -> bool {
        self.description.contains("means nothing here")
    }

    /// What became of the field, and what is wrong with that.
    fn judge(&self, without: &Response, one: &Response) -> (Outcome, Option<String>) {
        let changed = comparable(without) != comparable(one);
        let outcome = match (one.status, changed) {
            (200, true) => Outcome::Changed,
            (200, false) => Outcome::Meaningless,
            (400 | 404, _) => Outcome::Refused,
            (status, _) => panic!("{} {}: {status} {}", self.path, self.field, one.text()),
        };
        let problem = if self.is_meaningless() {
            // What is only checked may still be refused.
            (outcome == Outcome::Changed).then(|| format!("it changes the answer: {}", one.text()))
        } else if without.status != 200 {
            Some(format!("its context is refused: {}", without.text()))
        } else if outcome == Outcome::Refused && !one.text().contains(&self.field) {
            Some(format!("something else is refused: {}", one.text()))
        } else {
            (outcome == Outcome::Meaningless)
                .then(|| format!("it is ignored, and described as: {}", self.description))
        };
        (outcome, problem.map(|problem| format!("{} {}: {problem}", self.path, self.field)))
    }
}

/// The fields of a route's schema.
fn questions(document: &Value, path: &str, body: &Value, ids: &Ids) -> Vec<Question> {
    let schema = body["content"]["application/json"]["schema"]["$ref"].as_str().unwrap();
    let fields = document.pointer(&format!("{}/properties", &schema[1..])).unwrap();
    let question = |(field, described): (&String, &Value)| {
        let description = described["description"].as_str().or(described["anyOf"][0]["description"].as_str());
        let description = description.unwrap_or_default().to_owned();
        let (both, value) = match case(path, field, ids) {
            Some(case) => case,
            None if description.contains("means nothing here") => (json!({}), json!("x")),
            None => panic!("{path} {field} is described, and has no case"),
        };
        let without = with(&base(path), both);
        let one = with(&without, json!({field.as_str(): value}));
        Question { path: path.to_owned(), field: field.clone(), description, without, one }
    };
    fields.as_object().unwrap().iter().map(question).collect()
}

async fn ask(addr: SocketAddr, path: &str, body: &Value) -> Response {
    Client::connect(addr).await.post(path, &body.to_string()).await
}

/// Asks the questions, many at once, so that the engine runs them as a batch; `answers` are those to the routes' bases.
async fn asked(
    addr: SocketAddr,
    questions: Vec<Question>,
    answers: &BTreeMap<String, Response>,
) -> BTreeMap<(String, String), (Outcome, Option<String>)> {
    let mut table = BTreeMap::new();
    let mut questions = questions.into_iter();
    loop {
        let wave = questions.by_ref().take(16).map(|question| {
            let base_answer = answers[&question.path].clone();
            tokio::spawn(async move {
                let path = &question.path;
                let without = match question.without == base(path) {
                    true => base_answer,
                    false => ask(addr, path, &question.without).await,
                };
                let one = ask(addr, path, &question.one).await;
                let found = question.judge(&without, &one);
                ((question.path, question.field), found)
            })
        });
        let wave: Vec<_> = wave.collect();
        if wave.is_empty() {
            return table;
        }
        for task in wave {
            let (field, found) = task.await.unwrap();
            table.insert(field, found);
        }
    }
}

#[test]
fn no_field_is_ignored_in_silence() {
    // Without prefix cache and drafts equal requests have equal answers, counts of tokens included.
    let served = Served::start(None, &["kv_cache.prefix_caching=false", "speculation.method=off"]);
    let addr = served.addr;
    let table = runtime().block_on(async {
        let document = Client::connect(addr).await.get("/openapi.json").await.json();
        let marker = json!({"prompt": "<|tool_calls_section_end|>"});
        let section_end = ask(addr, "/tokenize", &marker).await.json()["tokens"][0].as_u64().unwrap();
        let (mut all, mut answers) = (Vec::new(), BTreeMap::new());
        for (path, item) in document["paths"].as_object().unwrap() {
            let Some(body) = item["post"].get("requestBody") else { continue };
            let first = ask(addr, path, &base(path)).await;
            assert_eq!(first.status, 200, "{path}: {}", first.text());
            let again = ask(addr, path, &base(path)).await;
            assert_eq!(comparable(&first), comparable(&again), "{path}: equal requests");
            // A name that nobody knows is named, and changes nothing else.
            let unknown = ask(addr, path, &with(&base(path), json!({"temprature": 1}))).await;
            let (status, _, body_then) = comparable(&first);
            let named = Some("temprature".to_owned());
            assert_eq!(comparable(&unknown), (status, named, body_then), "{path}");
            all.extend(questions(&document, path, body, &Ids { section_end }));
            answers.insert(path.clone(), first);
        }
        asked(addr, all, &answers).await
    });
    for ((path, field), (outcome, _)) in &table {
        println!("{path:32} {field:32} {outcome:?}");
    }
    let problems: Vec<String> = table.values().filter_map(|(_, problem)| problem.clone()).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(table.len() > 250, "{} fields", table.len());
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn unknown_fields_are_named_or_refused() {
    let ask = json!({"messages": [{"role": "user", "content": "Hi", "nmae": "x", "refusal": null}], "max_tokens": 2,
        "temprature": 1, "stream_options": {"include_usge": true}, "user": "u", "é\r\n": 1, "none": null});
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let mut client = Client::connect(served.addr).await;
        for stream in [false, true] {
            let mut ask = with(&ask, json!({"stream": stream}));
            if !stream {
                ask.as_object_mut().unwrap().remove("stream_options");
            }
            let answer = client.post("/v1/chat/completions", &ask.to_string()).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            let nested = if stream { ", stream_options.include_usge" } else { "" };
            let named = answer.header("x-perigee-ignored-fields").unwrap_or_default().to_owned();
            let mut names: Vec<&str> = named.split(", ").collect();
            names.sort_unstable();
            let expected = format!("???, messages[].nmae{nested}, temprature");
            assert_eq!(names.join(", "), expected, "{named}");
        }
        let metrics = client.get("/metrics").await;
        assert!(metrics.text().contains("\nperigee_ignored_fields_total 7\n"), "{}", metrics.text());
    });
    assert_eq!(served.terminate(), Some(0));
    let strict = Served::start(None, &["server.unknown_fields=refuse"]);
    runtime().block_on(async {
        let mut client = Client::connect(strict.addr).await;
        for (path, body, param) in [
            ("/v1/chat/completions", ask.clone(), "temprature"),
            ("/v1/completions", json!({"prompt": "x", "top-p": 1}), "top-p"),
            ("/v1/responses", json!({"input": "x", "text": {"tone": "x"}}), "text.tone"),
            ("/v1/messages", json!({"messages": [], "max_tokens": 1, "systm": "x"}), "systm"),
            ("/tokenize", json!({"promt": "x"}), "promt"),
        ] {
            let mut body = body;
            body.as_object_mut().unwrap().remove("é\r\n");
            let answer = client.post(path, &body.to_string()).await;
            assert_eq!(answer.status, 400, "{path}: {}", answer.text());
            let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(message.starts_with(&format!("`{param}`")), "{path}: {message}");
            assert_eq!(message.contains("did you mean"), param != "text.tone", "{path}: {message}");
        }
        let known = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "user": "u", "metadata": {}});
        let answer = client.post("/v1/chat/completions", &known.to_string()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    });
    assert_eq!(strict.terminate(), Some(0));
}
