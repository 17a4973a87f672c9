//! Tool calls through every kind of damage and back: the same call from every route, whole and
//! streamed, for every cut into tokens.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use fastrand::Rng;
use perigee_text::{ReplyFormat, Specials, Tokenizer};
use serde_json::{Map, Value, json};

use super::anthropic::MessagesAnswer;
use super::chat::ChatAnswer;
use super::format::{Format, Kind};
use super::responses::ResponsesAnswer;
use super::stream::EventStream;
use super::summary::Summary;
use super::write::{self, TokenText};
use crate::generate::test_data::{nano_tokenizer, spoken};

const ROUTES: [Kind; 3] = [Kind::Chat, Kind::Messages, Kind::Responses];

fn format(kind: Kind) -> Format {
    Format {
        kind,
        id: "x".into(),
        created: 0,
        model: "m".into(),
        include_usage: false,
        continuous_usage: false,
        logprobs: false,
        prompt_logprobs: false,
        echo: false,
        echoed_content: None,
        reasoning: None,
        functions: false,
        keep: None,
        max_tokens: None,
        client_tools: Default::default(),
        echoed: None,
        return_token_ids: false,
        tokens_as_ids: false,
        applied: Vec::new(),
    }
}

/// The calls and the text of an answer, as a client reads them.
#[derive(Debug, Default, PartialEq)]
struct Understood {
    calls: Vec<(String, Value)>,
    text: String,
}

fn parsed(arguments: &str) -> Value {
    serde_json::from_str(arguments).unwrap_or_else(|_| json!({"INVALID_JSON": arguments}))
}

/// The answer that is not streamed, as a client reads it.
fn whole(tokenizer: &Arc<Tokenizer>, kind: Kind, reply: &ReplyFormat, tokens: &[u32]) -> Understood {
    let mut replies = spoken(tokenizer, reply.clone(), tokens);
    let mut cx = Context::from_waker(Waker::noop());
    let Poll::Ready(full) = std::pin::pin!(replies.collect()).poll(&mut cx) else {
        panic!("every event is there")
    };
    let full = full.unwrap();
    let (format, show) = (format(kind), TokenText { tokenizer, as_ids: false });
    let mut understood = Understood::default();
    match kind {
        Kind::Messages => {
            let answer = write::document(&MessagesAnswer::of(&format, &replies, &full));
            for block in serde_json::from_slice::<Value>(&answer).unwrap()["content"].as_array().unwrap() {
                match block["type"].as_str() {
                    Some("tool_use") => {
                        let name = block["name"].as_str().unwrap().to_owned();
                        understood.calls.push((name, block["input"].clone()));
                    }
                    _ => understood.text.push_str(block["text"].as_str().unwrap()),
                }
            }
        }
        Kind::Responses => {
            let answer = write::document(&ResponsesAnswer::of(&format, &show, replies.usage(), &full));
            understood.items(&serde_json::from_slice::<Value>(&answer).unwrap()["output"]);
        }
        Kind::Chat | Kind::Completion | Kind::Tokens => {
            let answer = write::document(&ChatAnswer::of(&format, &show, &replies, &full));
            let answer: Value = serde_json::from_slice(&answer).unwrap();
            let message = &answer["choices"][0]["message"];
            understood.text.push_str(message["content"].as_str().unwrap_or_default());
            for call in message["tool_calls"].as_array().into_iter().flatten() {
                let function = &call["function"];
                let name = function["name"].as_str().unwrap().to_owned();
                understood.calls.push((name, parsed(function["arguments"].as_str().unwrap())));
            }
        }
    }
    understood
}

impl Understood {
    /// Takes the items of a response.
    fn items(&mut self, items: &Value) {
        for item in items.as_array().unwrap() {
            match item["type"].as_str() {
                Some("function_call") => {
                    let name = item["name"].as_str().unwrap().to_owned();
                    self.calls.push((name, parsed(item["arguments"].as_str().unwrap())));
                }
                _ => self.text.push_str(item["content"][0]["text"].as_str().unwrap()),
            }
        }
    }
}

/// The streamed answer, as a client joins it.
fn streamed(tokenizer: &Arc<Tokenizer>, kind: Kind, reply: &ReplyFormat, tokens: &[u32]) -> Understood {
    let replies = spoken(tokenizer, reply.clone(), tokens);
    let mut stream = EventStream::new(replies, Arc::clone(tokenizer), format(kind), Summary::default());
    let mut cx = Context::from_waker(Waker::noop());
    let mut text = Vec::new();
    while let Poll::Ready(Some(bytes)) = stream.poll_next(&mut cx) {
        text.extend(bytes);
    }
    let text = String::from_utf8(text).unwrap();
    let events = text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    let mut understood = Understood::default();
    let mut calls: Vec<(String, String)> = Vec::new();
    for event in events.map(|data| serde_json::from_str::<Value>(data).unwrap()) {
        match kind {
            Kind::Messages => {
                let block = &event["content_block"];
                if block["type"] == "tool_use" {
                    calls.push((block["name"].as_str().unwrap().to_owned(), String::new()));
                }
                let delta = &event["delta"];
                if let Some(more) = delta["partial_json"].as_str() {
                    calls.last_mut().unwrap().1.push_str(more);
                }
                understood.text.push_str(delta["text"].as_str().unwrap_or_default());
            }
            Kind::Responses => {
                if event["type"] == "response.completed" {
                    understood.items(&event["response"]["output"]);
                }
            }
            Kind::Chat | Kind::Completion | Kind::Tokens => {
                let delta = &event["choices"][0]["delta"];
                understood.text.push_str(delta["content"].as_str().unwrap_or_default());
                for call in delta["tool_calls"].as_array().into_iter().flatten() {
                    let function = &call["function"];
                    if let Some(name) = function["name"].as_str() {
                        calls.push((name.to_owned(), String::new()));
                    }
                    let at = call["index"].as_u64().unwrap() as usize;
                    calls[at].1.push_str(function["arguments"].as_str().unwrap());
                }
            }
        }
    }
    understood.calls.extend(calls.into_iter().map(|(name, arguments)| (name, parsed(&arguments))));
    understood
}

/// How a model spells JSON.
#[derive(Debug, Clone, Copy, Default)]
struct Spelling {
    raw_controls: bool,
    raw_backslashes: bool,
    python: bool,
    bare_keys: bool,
}

impl Spelling {
    fn string(self, text: &str, out: &mut String) {
        let quote = if self.python { '\'' } else { '"' };
        out.push(quote);
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '\n' if !self.raw_controls => out.push_str("\\n"),
                '\u{1}' if !self.raw_controls => out.push_str("\\u0001"),
                '\\' => {
                    let plain = chars.peek().is_some_and(|next| !"\"\\/bfnrtu'\n\u{1}".contains(*next));
                    out.push_str(if self.raw_backslashes && plain { "\\" } else { "\\\\" });
                }
                _ if c == quote => out.extend(['\\', c]),
                _ => out.push(c),
            }
        }
        out.push(quote);
    }

    fn value(self, value: &Value, out: &mut String) {
        match value {
            Value::String(text) => self.string(text, out),
            Value::Array(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    out.push_str(if at > 0 { ", " } else { "" });
                    self.value(item, out);
                }
                out.push(']');
            }
            Value::Object(entries) => {
                out.push('{');
                for (at, (key, item)) in entries.iter().enumerate() {
                    out.push_str(if at > 0 { ", " } else { "" });
                    if self.bare_keys {
                        out.push_str(key)
                    } else {
                        self.string(key, out)
                    }
                    out.push_str(": ");
                    self.value(item, out);
                }
                out.push('}');
            }
            _ if self.python => out.push_str(match value {
                Value::Null => "None",
                Value::Bool(true) => "True",
                Value::Bool(false) => "False",
                _ => return out.push_str(&value.to_string()),
            }),
            _ => out.push_str(&value.to_string()),
        }
    }
}

const DAMAGES: [&str; 11] = [
    "none",
    "controls",
    "backslashes",
    "cut",
    "quoted",
    "comma",
    "python",
    "fence",
    "keys",
    "brace",
    "behind",
];

fn damaged(damage: &str, arguments: &Value, rng: &mut Rng) -> String {
    let spelling = Spelling {
        raw_controls: damage == "controls",
        raw_backslashes: damage == "backslashes",
        python: damage == "python",
        bare_keys: damage == "keys",
    };
    let mut text = String::new();
    spelling.value(arguments, &mut text);
    match damage {
        "cut" => {
            let closers = text.len() - text.trim_end_matches(['}', ']']).len();
            text.truncate(text.len() - rng.usize(0..=closers));
            let open = text.strip_suffix('"').filter(|open| open.ends_with(char::is_alphanumeric));
            if let Some(open) = open.filter(|_| rng.bool()) {
                text.truncate(open.len());
            }
            text
        }
        "quoted" => Value::from(text).to_string(),
        "comma" if text != "{}" => format!("{},}}", &text[..text.len() - 1]),
        "fence" => format!("```json\n{text}\n```"),
        "brace" => format!("{text}}}"),
        "behind" => format!("{text}\nDone."),
        _ => text,
    }
}

fn random_text(rng: &mut Rng) -> String {
    let parts = [
        "ls -la",
        " ",
        "\n",
        "C:\\Users\\me",
        "\\d+",
        "\"",
        "'",
        "{",
        "}",
        "[1]",
        ",",
        ":",
        "\u{1f642}",
        "漢",
        "é",
        "\u{1}",
        "</think>",
        "null",
        "a",
        "\\",
        "//",
        "`",
    ];
    (0..rng.usize(0..8)).map(|_| parts[rng.usize(..parts.len())]).collect()
}

fn random_value(rng: &mut Rng, depth: usize) -> Value {
    match rng.u8(if depth == 0 { 0..5 } else { 0..7 }) {
        0 => Value::Null,
        1 => rng.bool().into(),
        2 => rng.i32(..).into(),
        3 => (f64::from(rng.i16(..)) / 8.0).into(),
        5 => (0..rng.usize(0..3)).map(|_| random_value(rng, depth - 1)).collect(),
        6 => random_object(rng, depth - 1).into(),
        _ => random_text(rng).into(),
    }
}

fn random_object(rng: &mut Rng, depth: usize) -> Map<String, Value> {
    let keys = ["path", "mode", "text", "x1", "deep"];
    (0..rng.usize(0..4)).map(|at| (keys[at].to_owned(), random_value(rng, depth))).collect()
}

/// A call as a model writes it, between its markers.
fn written(form: usize, name: &str, arguments: &str) -> String {
    let argument = "<|tool_call_argument_begin|>";
    match form {
        0..=3 => format!("functions.{name}:0{argument}{arguments}"),
        4 => format!("functions{name}5{argument}{arguments}"),
        5 => format!("functions_{name}_3{argument}{arguments}"),
        6 => format!("functions.functions.{name}:0{argument}{arguments}"),
        7 => format!("functions.{name}:0 {arguments}"),
        _ => format!("{{\"name\": \"{name}\", \"arguments\": {arguments}}}"),
    }
}

fn tools() -> Vec<Value> {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}});
    ["exec", "read_file", "list-dir"].map(tool).to_vec()
}

#[test]
fn a_damaged_call_is_the_same_call_from_every_route_and_cut() {
    round_trips(3_000);
}

#[test]
#[ignore = "takes a minute or two"]
fn a_hundred_thousand_damaged_calls_are_the_same_calls() {
    round_trips(100_000);
}

fn round_trips(trips: usize) {
    let tokenizer = Arc::new(nano_tokenizer());
    let reply = ReplyFormat::of_tokens(&tokenizer, true).with_tools(&tools(), 0);
    let mut rng = Rng::with_seed(50);
    for trip in 0..trips {
        let name = ["exec", "read_file", "list-dir"][rng.usize(..3)];
        let arguments = Value::from(random_object(&mut rng, 2));
        let damage = DAMAGES[trip % DAMAGES.len()];
        // A call as one object holds arguments that are an object.
        let forms = if matches!(damage, "none" | "controls" | "backslashes" | "comma") { 9 } else { 7 };
        let text = written(rng.usize(..forms), name, &damaged(damage, &arguments, &mut rng));
        let mut tokens = Vec::new();
        let marker = "<|tool_call_argument_begin|>";
        let mut add = |text: &str, specials| tokens.extend(tokenizer.encode(text, specials).unwrap());
        add("<|tool_calls_section_begin|><|tool_call_begin|>", Specials::Recognised);
        let mut rest = &*text;
        while !rest.is_empty() {
            if let Some(behind) = rest.strip_prefix(marker) {
                add(marker, Specials::Recognised);
                rest = behind;
                continue;
            }
            let most = rest.find(marker).unwrap_or(rest.len()).min(9);
            let end = rng.usize(1..=most);
            let end = (end..=rest.len()).find(|&end| rest.is_char_boundary(end)).unwrap();
            add(&rest[..end], Specials::AsText);
            rest = &rest[end..];
        }
        add("<|tool_call_end|><|tool_calls_section_end|>", Specials::Recognised);
        let expected = Understood { calls: vec![(name.to_owned(), arguments)], text: String::new() };
        for kind in ROUTES {
            assert_eq!(whole(&tokenizer, kind, &reply, &tokens), expected, "{kind:?}, {damage}: {text}");
            let streamed = streamed(&tokenizer, kind, &reply, &tokens);
            assert_eq!(streamed, expected, "{kind:?} streamed, {damage}: {text}");
        }
    }
}

/// Regression: such a call had an empty input, or vanished.
#[test]
fn what_is_no_call_and_no_object_is_there() {
    let tokenizer = Arc::new(nano_tokenizer());
    let reply = ReplyFormat::of_tokens(&tokenizer, true).with_tools(&tools(), 0);
    let invalid = |text: &str| vec![("exec".to_owned(), json!({"INVALID_JSON": text}))];
    for (text, calls, said) in [
        ("functions.exec:0<|tool_call_argument_begin|>ls -la", invalid("ls -la"), ""),
        ("functions.exec:0<|tool_call_argument_begin|>{\"com", invalid("{\"com"), ""),
        ("call_abc<|tool_call_argument_begin|>ls -la", Vec::new(), "call_abc ls -la"),
        ("{\"name\": \"other\", \"arguments\": {}}", Vec::new(), "{\"name\": \"other\", \"arguments\": {}}"),
        ("ls -la", Vec::new(), "ls -la"),
    ] {
        let marked = format!("<|tool_calls_section_begin|><|tool_call_begin|>{text}<|tool_call_end|>");
        let tokens = tokenizer.encode(&marked, Specials::Recognised).unwrap();
        let expected = Understood { calls, text: said.to_owned() };
        for kind in ROUTES {
            assert_eq!(whole(&tokenizer, kind, &reply, &tokens), expected, "{kind:?}: {text}");
            assert_eq!(streamed(&tokenizer, kind, &reply, &tokens), expected, "{kind:?} streamed: {text}");
        }
    }
}
