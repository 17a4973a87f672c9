//! Structured output on the embedded model: what a reply must be, it is, whole and within its budget.

use std::sync::Arc;
use std::time::Duration;

use perigee::boot::engine::{BackendChoice, EngineOptions, StartedEngine, start_engine};
use perigee::nano;
use perigee_cpu::CpuOptions;
use perigee_decoding::sampling::SamplingParams;
use perigee_engine::scheduler;
use perigee_engine::{EngineEvent, EngineRequest};
use perigee_http::api::{Answer, Api, ApiError, Kind, ModelCard, Summary};
use perigee_http::generate::{Generator, ModelText, SamplingDefaults};
use perigee_model::Blueprint;
use perigee_model::checkpoint::Checkpoint;
use perigee_ops::{Activations, Parallelism};
use perigee_telemetry::Metrics;
use perigee_text::grammar::{AnswerFormat, GrammarSpec, Grammars, ToolCalls, ToolFunction, ToolMode};
use perigee_text::{ChatTemplate, RenderOptions, Tokenizer};
use serde_json::{Value, json};

use crate::golden::golden_path;

struct Nano {
    engine: StartedEngine,
    tokenizer: Arc<Tokenizer>,
    template: ChatTemplate,
}

fn nano() -> Nano {
    let checkpoint = Checkpoint::from_embedded(nano::FILES).unwrap();
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let file = |name: &str| checkpoint.file(name).map(|bytes| bytes.into_owned());
    let tokenizer = Tokenizer::load(&file).unwrap();
    let template = ChatTemplate::load(&file, &blueprint.wrapper_type, &tokenizer).unwrap();
    let options = EngineOptions {
        backend: BackendChoice::Cpu(CpuOptions { activations: Activations::F32, ..Default::default() }),
        scheduler: scheduler::Config::default(),
        block_size: 32,
        cache_bytes: 128 << 20,
        num_blocks: 0,
        fp4_activations: None,
        cache_dtype: None,
        prefix_caching: true,
        latent_norm_eps: None,
        tower: None,
        tiers: None,
        launch_times: None,
        memory_utilization: 1.0,
        parallelism: Parallelism::default_of(1),
        divides_if_small: None,
        wire: Default::default(),
        speculation: perigee_decoding::speculation::Config::off(),
    };
    let metrics = Arc::new(Metrics::new(nano::NAME, false));
    let engine = start_engine(&checkpoint, blueprint, &options, metrics, &mut |_| ()).unwrap();
    Nano { engine, tokenizer: Arc::new(tokenizer), template }
}

impl Nano {
    fn prompt(&self, text: &str, tools: &[Value]) -> Vec<u32> {
        let options = RenderOptions { tools: Some(tools), ..RenderOptions::default() };
        let messages = [json!({"role": "user", "content": text})];
        self.template.render(&messages, &options).unwrap().to_token_ids(&self.tokenizer).unwrap()
    }
}

/// Every schema of the family's verifier, forced as a call within 256 tokens, greedy and drawn.
#[test]
fn forced_calls_have_arguments_that_their_schema_allows() {
    let nano = nano();
    let handle = nano.engine.handle.clone();
    let ends = nano.tokenizer.turn_ends();
    let grammars = Grammars::new(nano.tokenizer.clone(), handle.facts().vocab_size, ends.clone());
    let path = golden_path("kimi/tool_typescript.json");
    let rows: Vec<Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let (mut called, mut refused) = (0, Vec::new());
    let mut running = Vec::new();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for (number, row) in rows.iter().enumerate() {
        let tools = row["tools"].as_array().unwrap();
        let functions = tools.iter().map(|tool| ToolFunction {
            name: tool["function"]["name"].as_str().unwrap().into(),
            parameters: tool["function"].get("parameters").cloned(),
            strict: true,
        });
        let calls = ToolCalls::new(functions.collect(), ToolMode::Required, false).unwrap();
        let spec = GrammarSpec { format: AnswerFormat::Tools(calls), field: "tools" };
        let grammar = grammars.compile(&spec).unwrap_or_else(|error| panic!("{tools:?}: {error}"));
        if grammar.needs_tokens() > 256 {
            refused.push((grammar.needs_tokens(), tools));
            continue;
        }
        // The context of the embedded model is 8,192 tokens: a schema whose declaration is longer goes without it.
        let mut prompt = nano.prompt("Call the tool with values of your choice.", tools);
        if prompt.len() > 7_500 {
            prompt = nano.prompt("Call the tool.", &[]);
        }
        for temperature in [0.0, 1.5] {
            let request = EngineRequest {
                prompt: prompt.clone().into(),
                sampling: SamplingParams {
                    temperature,
                    seed: number as u64,
                    max_tokens: 256,
                    stop_token_ids: ends.clone(),
                    ..Default::default()
                },
                guard: None,
                priority: 0,
                share: None,
                deadline: None,
                cache_salt: None,
                constraint: Some(grammar.start()),
                speculation: Default::default(),
                media: Vec::new(),
            };
            let stream = handle.submit(request).unwrap_or_else(|error| panic!("{error}"));
            running.push((tools, stream));
        }
    }
    runtime.block_on(async {
        for (tools, mut stream) in running {
            let mut tokens = Vec::new();
            while let Some(event) = stream.next().await {
                if let EngineEvent::Token { id, .. } = event {
                    tokens.push(id);
                }
            }
            assert!(tokens.len() <= 256);
            let text = nano.tokenizer.decode(&tokens, false);
            let call = text
                .strip_prefix("<|tool_calls_section_begin|><|tool_call_begin|>functions.")
                .and_then(|text| text.strip_suffix("<|tool_call_end|><|tool_calls_section_end|>"));
            let call = call.and_then(|call| call.split_once("<|tool_call_argument_begin|>"));
            let (id, arguments) = call.unwrap_or_else(|| panic!("not one call: {text}"));
            let name = id.rsplit_once(':').unwrap().0;
            let tool =
                tools.iter().find(|tool| tool["function"]["name"] == name).expect("a tool that exists");
            let arguments: Value =
                serde_json::from_str(arguments).unwrap_or_else(|error| panic!("{error}: {text}"));
            let mut schema = tool["function"]["parameters"].clone();
            // Some are named by what is no URI, which the validator does not take.
            if let Some(object) = schema.as_object_mut() {
                object.shift_remove("$id");
            }
            let any = schema.is_null() && arguments.is_object();
            assert!(any || jsonschema::is_valid(&schema, &arguments), "{schema}: {arguments}");
            called += 1;
        }
    });
    println!("{called} calls; schemas that need more than 256 tokens: {refused:?}");
    assert!(called > 200, "{called} calls");
}

struct Served {
    api: Api,
    // Kept so that the engine lives.
    _engine: StartedEngine,
}

fn serve() -> Served {
    let Nano { engine, tokenizer, template } = nano();
    let metrics = Arc::new(Metrics::new(nano::NAME, false));
    let text = ModelText { tokenizer, template, sight: Err("its checkpoint has no vision tower") };
    let generator = Generator::new(
        Arc::new(engine.handle.clone()),
        text,
        SamplingDefaults::default(),
        Default::default(),
        3600.0,
        metrics,
    );
    let card = ModelCard {
        names: vec![nano::NAME.into()],
        created: 0,
        max_model_len: 2_048,
        accept_any_name: false,
        embedded: Some(nano::NAME.into()),
    };
    Served { api: Api::new(Arc::new(generator), card, Duration::from_secs(3600)), _engine: engine }
}

impl Served {
    async fn chat(&self, extra: Value) -> Result<Value, ApiError> {
        let mut body = json!({"messages": [{"role": "user", "content": "Make a JSON object with name Ada and age 36."}], "max_tokens": 60});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let body = body.to_string().into_bytes().into();
        match self.api.reply(Kind::Chat, body, "test", &mut Summary::default()).await? {
            Answer::Json(body) => Ok(serde_json::from_slice(&body).unwrap()),
            Answer::Events(_) | Answer::Background(_) => panic!("a whole answer"),
        }
    }

    async fn content(&self, extra: Value) -> (String, String) {
        let answer = self.chat(extra.clone()).await.unwrap_or_else(|error| panic!("{extra}: {error:?}"));
        let choice = &answer["choices"][0];
        let text = choice["message"]["content"].as_str().unwrap().to_owned();
        (text, choice["finish_reason"].as_str().unwrap().to_owned())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_are_what_the_request_says() {
    let served = serve();
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"], "additionalProperties": false});
    let formats = [
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": true}}}),
        json!({"guided_json": schema}),
        json!({"structured_outputs": {"json": schema.to_string(), "disable_any_whitespace": true}}),
        json!({"json_schema": schema}),
    ];
    for format in formats {
        // The last limit is the least there is, in the model's tokens or fewer.
        for (temperature, max_tokens) in [(0, 60), (2, 60), (2, 40), (2, 25)] {
            let mut body = format.clone();
            body["temperature"] = temperature.into();
            body["max_tokens"] = max_tokens.into();
            let (text, finish) = served.content(body.clone()).await;
            let value: Value =
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{body}: {error}: {text}"));
            assert!(jsonschema::is_valid(&schema, &value), "{body}: {text}");
            assert_eq!(finish, "stop", "{body}: {text}");
        }
    }
    let (text, finish) = served.content(json!({"response_format": {"type": "json_object"}})).await;
    assert!(serde_json::from_str::<Value>(&text).is_ok_and(|v| v.is_object()) && finish == "stop", "{text}");
    let (text, finish) = served.content(json!({"guided_choice": ["positive", "negative"]})).await;
    assert!(["positive", "negative"].contains(&text.as_str()) && finish == "stop", "{text}");
    let (text, _) = served.content(json!({"guided_regex": "[a-z]{3}-[0-9]{2}", "temperature": 2})).await;
    assert!(text.len() == 6 && text.as_bytes()[3] == b'-', "{text}");
    let (text, _) =
        served.content(json!({"guided_grammar": "root ::= \"a\" [0-9]+ \"z\"", "temperature": 1})).await;
    assert!(text.starts_with('a') && text.ends_with('z'), "{text}");
    // A thought comes first, in time.
    let thinking = json!({"guided_json": schema, "chat_template_kwargs": {"thinking": true}, "max_tokens": 40, "temperature": 2});
    let answer = served.chat(thinking).await.unwrap();
    let message = &answer["choices"][0]["message"];
    assert!(message["reasoning_content"].as_str().is_some_and(|thought| !thought.is_empty()), "{message}");
    let content = message["content"].as_str().unwrap();
    assert!(serde_json::from_str::<Value>(content).is_ok(), "{message}");
    // Logprobs and several replies go with it.
    let many = served
        .chat(json!({"guided_json": schema, "n": 3, "logprobs": true, "top_logprobs": 2, "temperature": 1}))
        .await
        .unwrap();
    for choice in many["choices"].as_array().unwrap() {
        let text = choice["message"]["content"].as_str().unwrap();
        assert!(serde_json::from_str::<Value>(text).is_ok(), "{text}");
        assert!(!choice["logprobs"]["content"].as_array().unwrap().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_is_an_error_before_generation() {
    let served = serve();
    let schema = json!({"type": "object", "properties": {"a": {"type": "string", "minLength": 50}}, "required": ["a"]});
    for (body, param, part) in [
        (json!({"guided_json": schema, "max_tokens": 10}), "max_tokens", "at least "),
        (json!({"guided_json": {"type": "object", "contains": {}}}), "guided_json", "contains"),
        (json!({"guided_json": {"type": "integer", "minimum": 2, "maximum": 1}}), "guided_json", ""),
        (json!({"guided_regex": "(a"}), "guided_regex", ""),
        (json!({"guided_grammar": "start: nowhere"}), "guided_grammar", "nowhere"),
        (json!({"guided_json": {}, "guided_regex": "a"}), "guided_regex", "guided_json"),
    ] {
        let error = served.chat(body.clone()).await.expect_err(&body.to_string());
        assert_eq!((error.status, error.param.as_deref()), (400, Some(param)), "{body}: {}", error.message);
        assert!(error.message.contains(part), "{body}: {}", error.message);
    }
    let error = served.chat(json!({"guided_json": schema, "max_tokens": 10})).await.unwrap_err();
    assert_eq!(error.code, "max_tokens_too_small");
    // What it says suffices, does.
    let digits: String =
        error.message.split("at least ").nth(1).unwrap().chars().take_while(char::is_ascii_digit).collect();
    let (text, _) = served
        .content(
            json!({"guided_json": schema, "max_tokens": digits.parse::<u32>().unwrap(), "temperature": 2}),
        )
        .await;
    assert!(jsonschema::is_valid(&schema, &serde_json::from_str(&text).unwrap()), "{text}");
}

/// A rule that cannot be enforced leaves the rest of a schema in force, and is named.
#[tokio::test(flavor = "multi_thread")]
async fn schemas_of_tools_that_are_not_strict_are_advice_where_they_cannot_be_enforced() {
    let served = serve();
    let schema = json!({"type": "object", "properties": {"v": {"type": "string", "pattern": "^(a)\\1$", "maxLength": 4}},
        "required": ["v"], "additionalProperties": false});
    let tool = |strict: bool| json!([{"type": "function", "function": {"name": "f", "strict": strict, "parameters": schema}}]);
    let ask = |strict: bool| json!({"messages": [{"role": "user", "content": "Do it."}], "max_tokens": 60, "tool_choice": "required", "tools": tool(strict)});
    let mut summary = Summary::default();
    let body = ask(false).to_string().into_bytes().into();
    let Ok(Answer::Json(answer)) = served.api.reply(Kind::Chat, body, "test", &mut summary).await else {
        panic!("an answer")
    };
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    let arguments =
        answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    let (text, members) = (arguments["v"].as_str().unwrap(), arguments.as_object().unwrap().len());
    assert!(text.chars().count() <= 4 && members == 1, "{arguments}");
    assert_eq!(summary.ignored_fields.as_deref(), Some("tools.f.properties.v.pattern"));
    let error = served.chat(ask(true)).await.unwrap_err();
    assert!(error.status == 400 && error.message.contains("`properties.v.pattern`"), "{}", error.message);
}

/// Schemas that no tool has: what they ask for is there, or the request is refused by name before anything is generated.
fn unfamiliar() -> Vec<(&'static str, Value)> {
    let object = |properties: Value| {
        let required: Vec<&String> = properties.as_object().unwrap().keys().collect();
        json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
    };
    let node = object(
        json!({"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}}),
    );
    let link = object(json!({"x": {"type": "integer"}, "next": {"$ref": "#/$defs/link"}}));
    let formats = ["date-time", "date", "email", "hostname", "ipv4", "ipv6", "uuid", "duration"];
    let formats: serde_json::Map<String, Value> =
        formats.iter().map(|name| (name.to_string(), json!({"type": "string", "format": name}))).collect();
    let variants: Vec<Value> = (0..10)
        .map(|k| object(json!({"k": {"const": k}, "s": {"type": "string", "maxLength": 2}})))
        .collect();
    let values: Vec<String> = (0..5000).map(|number| format!("value_{number}")).collect();
    vec![
        (
            "alternatives",
            object(
                json!({"v": {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "integer", "minimum": 3, "maximum": 9}, {"type": "null"}]}}),
            ),
        ),
        (
            "kinds told by a constant",
            json!({"oneOf": [object(json!({"kind": {"const": "cat"}, "lives": {"type": "integer"}})), object(json!({"kind": {"const": "dog"}}))]}),
        ),
        ("ten alternatives", object(json!({"v": {"anyOf": variants}}))),
        (
            "arrays in arrays",
            object(
                json!({"m": {"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "array", "minItems": 2, "maxItems": 3, "items": {"type": "number"}}}}),
            ),
        ),
        (
            "tuples",
            object(
                json!({"t": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string", "maxLength": 3}], "items": false, "minItems": 2}}),
            ),
        ),
        (
            "patternProperties",
            json!({"type": "object", "patternProperties": {"^x-[a-z]{1,4}$": {"type": "integer"}}, "additionalProperties": false, "minProperties": 1}),
        ),
        (
            "additionalProperties",
            json!({"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}, "additionalProperties": {"type": "integer", "minimum": 5}}),
        ),
        (
            "constants",
            object(
                json!({"a": {"const": null}, "b": {"const": {"x": [1, 2, {"y": true}]}}, "c": {"const": 1.5}, "d": {"const": "ü\"\\\n"}}),
            ),
        ),
        ("formats", object(Value::Object(formats))),
        ("a tree", json!({"$ref": "#/$defs/node", "$defs": {"node": node}})),
        (
            "a list",
            json!({"type": "object", "properties": {"head": {"$ref": "#/$defs/link"}}, "required": ["head"], "additionalProperties": false,
            "$defs": {"link": {"anyOf": [{"type": "null"}, link]}}}),
        ),
        (
            "itself",
            json!({"type": "object", "properties": {"child": {"$ref": "#"}, "n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false}),
        ),
        (
            "without an end",
            json!({"$ref": "#/$defs/a", "$defs": {"a": object(json!({"a": {"$ref": "#/$defs/a"}}))}}),
        ),
        (
            "a circle",
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        ),
        ("a reference to nothing", json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}})),
        ("a huge enumeration", object(json!({"v": {"enum": values}}))),
        ("a mixed enumeration", object(json!({"v": {"enum": [1, "1", null, true, [1], {"a": 1}, "☃"]}}))),
        (
            "keys of all kinds",
            object(
                json!({"名前": {"type": "string", "maxLength": 4}, "a\"b\\c\nd": {"type": "boolean"}, "🙂": {"enum": ["😀", "ß"]}, "": {"type": "null"}}),
            ),
        ),
        (
            "patterns",
            object(
                json!({"a": {"type": "string", "pattern": "^(foo|ba[rz])+-\\d{2,3}$"}, "b": {"type": "string", "pattern": "x", "maxLength": 6}}),
            ),
        ),
        ("quotes and backslashes", object(json!({"a": {"type": "string", "pattern": "^[\"\\\\]{2}$"}}))),
        ("letters beyond ASCII", object(json!({"a": {"type": "string", "pattern": "^[α-ω]{2,4}$"}}))),
        (
            "ranges",
            object(
                json!({"a": {"type": "number", "minimum": -1.5, "maximum": 1.25}, "b": {"type": "integer", "multipleOf": 7, "minimum": 20, "maximum": 22}}),
            ),
        ),
        ("a long text", object(json!({"a": {"type": "string", "minLength": 300}}))),
        ("much longer than the limit", object(json!({"a": {"type": "string", "minLength": 5000}}))),
        ("many items", object(json!({"a": {"type": "array", "minItems": 60, "items": {"type": "integer"}}}))),
        (
            "all of",
            json!({"allOf": [object(json!({"a": {"type": "integer"}})).as_object().map(|o| { let mut o = o.clone(); o.remove("additionalProperties"); Value::Object(o) }), {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]}]}),
        ),
        ("a contradiction", object(json!({"a": {"type": "integer", "minimum": 5, "maximum": 2}}))),
        ("no type", json!({"typo": "objekt", "type": "objekt"})),
        ("lengths that are no numbers", object(json!({"a": {"type": "string", "minLength": "x"}}))),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn unfamiliar_schemas_are_honoured_or_refused() {
    let served = Arc::new(serve());
    let mut asked = Vec::new();
    for (name, schema) in unfamiliar() {
        for (forced, temperature) in [(false, 0), (false, 2), (true, 0), (true, 2)] {
            let (served, schema) = (served.clone(), schema.clone());
            asked.push(tokio::spawn(async move {
                let mut body = json!({"temperature": temperature, "seed": 7, "max_tokens": 400});
                if forced {
                    body["tools"] =
                        json!([{"type": "function", "function": {"name": "f", "strict": true, "parameters": schema}}]);
                    (body["tool_choice"], body["parallel_tool_calls"]) = ("required".into(), false.into());
                } else {
                    body["guided_json"] = schema.clone();
                }
                (name, forced, schema, served.chat(body).await)
            }));
        }
    }
    let (mut honoured, mut refused) = (0, Vec::new());
    for asked in asked {
        let (name, forced, schema, answer) = asked.await.unwrap();
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                assert_eq!(error.status, 400, "{name}: {error:?}");
                refused.push(name);
                continue;
            }
        };
        let message = &answer["choices"][0]["message"];
        let text =
            if forced { &message["tool_calls"][0]["function"]["arguments"] } else { &message["content"] };
        let text = text.as_str().unwrap_or_else(|| panic!("{name}: {answer}"));
        let value: Value =
            serde_json::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}: {text}"));
        let checked = jsonschema::options().build(&schema);
        let checked = checked.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(checked.is_valid(&value), "{name}: {text}");
        honoured += 1;
    }
    refused.dedup();
    assert_eq!(
        refused,
        [
            "without an end",
            "a circle",
            "a reference to nothing",
            "a huge enumeration",
            "much longer than the limit",
            "a contradiction",
            "no type",
            "lengths that are no numbers"
        ]
    );
    assert!(honoured > 80, "{honoured}");
}

/// The guard cuts off a reply that repeats itself; one that must be whole goes to its end instead.
#[tokio::test(flavor = "multi_thread")]
async fn a_loop_in_a_structure_is_closed_and_not_cut() {
    let served = serve();
    let schema = json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "^(ab){20,}$"}, "b": {"type": "integer"}}, "required": ["a", "b"],
        "additionalProperties": false});
    // The client's own rule stops at once, where the guard's for structures is patient.
    let rule = json!({"max_pattern_size": 8, "min_pattern_size": 1, "min_count": 3});
    let mut stopped = 0;
    for seed in 0..8 {
        let body = json!({"guided_json": schema, "temperature": 2, "seed": seed, "max_tokens": 200, "repetition_detection": rule});
        let answer = served.chat(body).await.unwrap();
        let choice = &answer["choices"][0];
        let text = choice["message"]["content"].as_str().unwrap();
        let value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert!(jsonschema::is_valid(&schema, &value), "{text}");
        assert_eq!(choice["finish_reason"], "stop", "{answer}");
        stopped += usize::from(choice["guard"]["events"].as_array().is_some_and(|events| !events.is_empty()));
    }
    assert_eq!(stopped, 8, "every reply has twenty copies");
}

/// A limit is either too small for the shortest call, and the answer says what is needed, or the
/// call is whole.
#[tokio::test(flavor = "multi_thread")]
async fn forced_calls_under_a_small_limit_end_whole_or_are_refused_with_the_number() {
    let served = serve();
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"},
        "unit": {"enum": ["celsius", "日本"]}}, "required": ["city", "days", "unit"], "additionalProperties": false});
    let valid = jsonschema::validator_for(&parameters).unwrap();
    let tools = json!([{"type": "function", "function": {"name": "weather", "parameters": parameters}},
        {"type": "function", "function": {"name": "forecast", "parameters": parameters}}]);
    let named = json!({"type": "function", "function": {"name": "forecast"}});
    for (choice, thinking) in [(json!("required"), false), (named, false), (json!("required"), true)] {
        let body = |max_tokens: usize, seed: usize| {
            json!({"tools": tools, "tool_choice": choice, "max_tokens": max_tokens, "seed": seed,
                "temperature": seed % 3, "chat_template_kwargs": {"thinking": thinking}})
        };
        let error = served.chat(body(5, 0)).await.unwrap_err();
        assert_eq!((error.status, error.code), (400, "max_tokens_too_small"), "{error:?}");
        let needs = error.message.split("at least ").nth(1).and_then(|rest| rest.split(' ').next());
        let needs: usize = needs.unwrap().parse().unwrap();
        assert_eq!(served.chat(body(needs - 1, 0)).await.unwrap_err().code, "max_tokens_too_small");
        for (seed, max_tokens) in (needs..needs + 30).enumerate() {
            let answer = served.chat(body(max_tokens, seed)).await.unwrap();
            let choice = &answer["choices"][0];
            assert_eq!(choice["finish_reason"], "tool_calls", "{max_tokens}: {answer}");
            for call in choice["message"]["tool_calls"].as_array().unwrap() {
                let arguments = call["function"]["arguments"].as_str().unwrap();
                let value: Value = serde_json::from_str(arguments)
                    .unwrap_or_else(|error| panic!("{max_tokens}: {error}: {arguments}"));
                assert!(valid.is_valid(&value), "{max_tokens}: {arguments}");
            }
        }
    }
}
