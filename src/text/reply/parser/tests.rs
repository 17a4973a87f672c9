use std::sync::LazyLock;

use serde_json::json;

use super::*;
use crate::Tokenizer;
use crate::markers::*;
use crate::reply::ToolCall;
use crate::test_data::nano_like;

static NANO: LazyLock<Tokenizer> = LazyLock::new(nano_like);

fn tools() -> Vec<serde_json::Value> {
    let tool = |name: &str, properties: serde_json::Value, required: serde_json::Value| {
        json!({"type": "function", "function": {"name": name,
            "parameters": {"type": "object", "properties": properties, "required": required}}})
    };
    vec![
        tool(
            "get_weather",
            json!({"city": {"type": "string"}, "days": {"type": "integer"}}),
            json!(["city"]),
        ),
        tool("search", json!({"query": {"type": "string"}}), json!(["query"])),
        tool("now", json!({}), json!([])),
    ]
}

/// Ids for the markers spelled in the text, single bytes for the rest: the worst case of a
/// tokenizer.
fn tokens(text: &str) -> Vec<(u32, String)> {
    let markers = [
        THINK,
        THINK_END,
        TOOL_CALLS_SECTION_BEGIN,
        TOOL_CALLS_SECTION_END,
        TOOL_CALL_BEGIN,
        TOOL_CALL_ARGUMENT_BEGIN,
        TOOL_CALL_END,
    ];
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(marker) = markers.iter().find(|marker| rest.starts_with(**marker)) {
            tokens.push((NANO.special_id(marker).unwrap(), String::new()));
            rest = &rest[marker.len()..];
        } else {
            tokens.push((0, c.to_string()));
            rest = &rest[c.len_utf8()..];
        }
    }
    tokens
}

fn by_tokens(start: ReplyStart, tokens: &[(u32, String)], end: ReplyEnd) -> WholeReply {
    let format = ReplyFormat::of_tokens(&NANO, true).with_tools(&tools(), 0);
    let mut parser = ReplyParser::new(Arc::new(format), start);
    let mut whole = WholeReply::default();
    let mut pieces = Vec::new();
    for (id, text) in tokens {
        parser.push(*id, text, &mut pieces);
    }
    parser.finish(end, &mut pieces);
    whole.reasoning = parser.has_reasoning().then(String::new);
    pieces.into_iter().for_each(|piece| whole.add(piece));
    whole
}

fn by_text(start: ReplyStart, text: &str, end: ReplyEnd) -> WholeReply {
    whole_reply(ReplyFormat::of_text().with_tools(&tools(), 0), start, text, end)
}

fn reply(reasoning: Option<&str>, content: &str, calls: &[(&str, &str, &str)]) -> WholeReply {
    WholeReply {
        reasoning: reasoning.map(str::to_owned),
        content: content.to_owned(),
        calls: calls
            .iter()
            .map(|(id, name, arguments)| ToolCall {
                id: (*id).into(),
                name: (*name).into(),
                arguments: (*arguments).into(),
            })
            .collect(),
    }
}

/// Replaces `S`, `/S`, `C`, `A`, `/C`, `T`, `/T` in braces by the markers.
fn spell(short: &str) -> String {
    [
        ("{S}", TOOL_CALLS_SECTION_BEGIN),
        ("{/S}", TOOL_CALLS_SECTION_END),
        ("{C}", TOOL_CALL_BEGIN),
        ("{A}", TOOL_CALL_ARGUMENT_BEGIN),
        ("{/C}", TOOL_CALL_END),
        ("{T}", THINK),
        ("{/T}", THINK_END),
        ("{s}", "<|tool_call_section_begin|>"),
        ("{/s}", "<|tool_call_section_end|>"),
    ]
    .iter()
    .fold(short.to_owned(), |text, (short, marker)| text.replace(short, marker))
}

const WEATHER: (&str, &str, &str) = ("functions.get_weather:0", "get_weather", r#"{"city": "Beijing"}"#);

/// Replies and their parse, equal whether markers are tokens or text.
fn cases() -> Vec<(ReplyStart, &'static str, ReplyEnd, WholeReply)> {
    use ReplyEnd::{Cut, Turn};
    use ReplyStart::{Answer, Open, Reasoning};
    vec![
        (Answer, "Hi!", Turn, reply(None, "Hi!", &[])),
        (Answer, "", Turn, reply(None, "", &[])),
        (Answer, "\n\n a \n", Turn, reply(None, "\n\n a \n", &[])),
        (Answer, " \n", Turn, reply(None, " \n", &[])),
        (Reasoning, "I think. \n{/T}\nHi!", Turn, reply(Some("I think."), "\nHi!", &[])),
        (Reasoning, "{T}\nhm {/T}Hi!", Turn, reply(Some("\nhm"), "Hi!", &[])),
        (Reasoning, "never ends ", Cut, reply(Some("never ends"), "", &[])),
        (Reasoning, "{/T}Hi!", Turn, reply(Some(""), "Hi!", &[])),
        (Open, "{T}hm{/T}Hi!", Turn, reply(Some("hm"), "Hi!", &[])),
        // Reasoning without its first marker, or without any.
        (Open, "Hm. {/T} Hi!{/T} you", Turn, reply(Some("Hm."), " Hi! you", &[])),
        (Answer, "Hi!{/T} you", Turn, reply(None, "Hi! you", &[])),
        (Open, "{T}Hm.{/T}Hi!{/T} you", Turn, reply(Some("Hm."), "Hi! you", &[])),
        (Reasoning, "Hi! ", Turn, reply(None, "Hi!", &[])),
        (Reasoning, "{T}Hi! ", Turn, reply(Some("Hi!"), "", &[])),
        (Answer, "\n{T}late{/T}Hi!", Turn, reply(Some("late"), "Hi!", &[])),
        // Calls.
        (
            Answer,
            r#"{S}{C}functions.get_weather:0{A}{"city": "Beijing"}{/C}{/S}"#,
            Turn,
            reply(None, "", &[WEATHER]),
        ),
        (
            Reasoning,
            r#"Need it.{/T}Let me see. {S}{C} functions.get_weather:0 {A} {"city": "Beijing"} {/C}{/S}"#,
            Turn,
            reply(Some("Need it."), "Let me see. ", &[WEATHER]),
        ),
        (
            Answer,
            "\n{S}\n{C}functions.search:3\n{A}{\"query\": \"a  b \"}\n{/C}\nand\n{C}functions.now:4{A}{/C}{/S}",
            Turn,
            reply(
                None,
                "",
                &[
                    ("functions.search:3", "search", r#"{"query": "a  b "}"#),
                    ("functions.now:4", "now", "{}"),
                ],
            ),
        ),
        // Mistakes: reasoning that ends in a section, or in a call without one.
        (
            Reasoning,
            r#"Need it. {S}{C}functions.get_weather:0{A}{"city": "Beijing"}{/C}{/S}"#,
            Turn,
            reply(Some("Need it."), "", &[WEATHER]),
        ),
        (
            Reasoning,
            r#"Need it. {C}functions.get_weather:0{A}{"city": "Beijing"}{/C}"#,
            Turn,
            reply(Some("Need it."), "", &[WEATHER]),
        ),
        // Text after the section, and calls after that.
        (
            Answer,
            r#"a{S}{C}functions.get_weather:0{A}{"city": "Beijing"}{/C}{/S}later{S}{C}functions.now:1{A}{}{/C}{/S} more"#,
            Turn,
            reply(None, "a", &[WEATHER, ("functions.now:1", "now", "{}")]),
        ),
        // Missing ends.
        (
            Answer,
            r#"{S}{C}functions.get_weather:0{A}{"city": "Beijing"}{C}functions.now:1{A}{}{/S}"#,
            Turn,
            reply(None, "", &[WEATHER, ("functions.now:1", "now", "{}")]),
        ),
        (Answer, r#"{S}{C}functions.get_weather:0{A}{"city": "Beijing"}"#, Turn, reply(None, "", &[WEATHER])),
        // Missing beginnings.
        (Answer, r#"{C}get_weather:0{A}{"city": "Beijing"}{/C}"#, Turn, reply(None, "", &[WEATHER])),
        (
            Answer,
            r#"{S} functions.get_weather:0{A}{"city": "Beijing"}{/C}{/S}"#,
            Turn,
            reply(None, "", &[WEATHER]),
        ),
        (
            Answer,
            r#"{S}{C}functions.get_weather:0 {"city": "Beijing"}{/C}{/S}"#,
            Turn,
            reply(None, "", &[WEATHER]),
        ),
        (Answer, "{S}{C}functions.now:2{/C}{/S}", Turn, reply(None, "", &[("functions.now:2", "now", "{}")])),
        (Answer, "{S}{C}functions.now:2", Turn, reply(None, "", &[("functions.now:2", "now", "{}")])),
        // Ids.
        (
            Answer,
            r#"{S}{C}0{A}{"city": "Beijing"}{/C}{C}1{A}{"query": 1}{/C}{C}2{A}{"x": 1}{/C}{/S}"#,
            Turn,
            reply(None, r#"2 {"x": 1}"#, &[WEATHER, ("functions.search:1", "search", r#"{"query": 1}"#)]),
        ),
        (
            Answer,
            r#"{S}{C}get_weather{A}{"city": "Beijing"}{/C}{C}functions.get_weather:0{A}{"city": "Rome"}{/C}{/S}"#,
            Turn,
            reply(None, "", &[WEATHER, ("functions.get_weather:1", "get_weather", r#"{"city": "Rome"}"#)]),
        ),
        (
            Answer,
            r#"{S}{C}functions.my-tool.v2:7{A}{}{/C}{/S}"#,
            Turn,
            reply(None, "", &[("functions.my-tool.v2:7", "my-tool.v2", "{}")]),
        ),
        (Answer, r#"{S}{C}{A}{"city": "Beijing"}{/C}{/S}"#, Turn, reply(None, "", &[WEATHER])),
        // Cut in the middle.
        (Answer, "{S}{C}functions.get_wea", Cut, reply(None, "", &[])),
        (Answer, "{S}{C}functions.get_weather:0{A}", Cut, reply(None, "", &[])),
        (
            Answer,
            r#"{S}{C}functions.get_weather:0{A}{"city": "Bei "#,
            Cut,
            reply(None, "", &[("functions.get_weather:0", "get_weather", r#"{"city": "Bei "#)]),
        ),
        (Answer, "ab{S}", Cut, reply(None, "ab", &[])),
        // Arguments that are not only the object.
        (
            Answer,
            r#"{S}{C}functions.get_weather:0{A}{"city": "Beijing"}} done{/C}{/S}"#,
            Turn,
            reply(None, "", &[WEATHER]),
        ),
        (
            Answer,
            r#"{S}{C}functions.search:0{A}"{\"query\": 1}"{/C}{/S}"#,
            Turn,
            reply(None, "", &[("functions.search:0", "search", r#"{"query": 1}"#)]),
        ),
        // Stray markers.
        (Answer, "a{/S}b{/C}c{A}d{/T}e", Turn, reply(None, "abcde", &[])),
        (Answer, "{S}nothing{/S}", Turn, reply(None, "nothing", &[])),
        (Answer, "{S}{C}ls -la{/C}{/S}", Turn, reply(None, "ls -la", &[])),
        // The singular spelling.
        (
            Answer,
            r#"Ok. {s}{C}functions.get_weather:0{A}{"city": "Beijing"}{/C}{/s}"#,
            Turn,
            reply(None, "Ok. ", &[WEATHER]),
        ),
    ]
}

#[test]
fn replies_say_what_they_say() {
    for (start, text, end, expected) in cases() {
        let text = spell(text);
        assert_eq!(by_tokens(start, &tokens(&text), end), expected, "tokens: {text}");
        assert_eq!(by_text(start, &text, end), expected, "text: {text}");
    }
}

#[test]
fn words_about_markers_stay_words_where_markers_are_tokens() {
    let plain = |text: &str| -> Vec<(u32, String)> { text.chars().map(|c| (0, c.to_string())).collect() };
    for text in [
        "Write <|tool_calls_section_begin|> and </think>.",
        "<|tool_call_section_begin|> is singular",
        "<|tool_call_",
    ] {
        assert_eq!(by_tokens(ReplyStart::Answer, &plain(text), ReplyEnd::Turn), reply(None, text, &[]));
        assert_eq!(by_tokens(ReplyStart::Reasoning, &plain(text), ReplyEnd::Cut), reply(Some(text), "", &[]));
    }
    // Inside the arguments too.
    let mut call = tokens(&spell("{S}{C}functions.search:0{A}"));
    call.extend(plain(r#"{"query": "<|tool_call_end|>"}"#));
    call.extend(tokens(&spell("{/C}{/S}")));
    let expected = ("functions.search:0", "search", r#"{"query": "<|tool_call_end|>"}"#);
    assert_eq!(by_tokens(ReplyStart::Answer, &call, ReplyEnd::Turn), reply(None, "", &[expected]));
    let text = spell(r#"{S}{C}functions.search:0{A}{"query": "<|tool_call_end|>"}{/C}{/S}"#);
    assert_eq!(by_text(ReplyStart::Answer, &text, ReplyEnd::Turn), reply(None, "", &[expected]));
}

/// The calls of a reply with these tools: names and arguments.
fn calls(tools: &[serde_json::Value], text: &str) -> Vec<(String, String)> {
    let format = ReplyFormat::of_text().with_tools(tools, 0);
    let whole = whole_reply(format, ReplyStart::Answer, &spell(text), ReplyEnd::Turn);
    assert!(!whole.calls.is_empty() || !whole.content.is_empty(), "{text}");
    whole.calls.into_iter().map(|call| (call.name, call.arguments)).collect()
}

/// Regression: clients were told to call functions that do not exist.
#[test]
fn an_id_in_another_form_means_the_function_that_it_can_only_mean() {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    let tools = ["read_file", "mcp__files__list-dir", "a.b.c", "v2", "get_a", "getA"].map(tool);
    for (id, expected) in [
        ("functionsread_file5", "read_file"),
        ("functions_read_file_3", "read_file"),
        ("functions.functions.read_file:0", "read_file"),
        ("functions:read_file:0", "read_file"),
        ("functions.mcp_files_list_dir:1", "mcp__files__list-dir"),
        ("a.b.c:1", "a.b.c"),
        ("functions.v2", "v2"),
        ("functionsv27", "v2"),
        ("tools.read_file:7", "read_file"),
        ("ReadFile:0", "read_file"),
        // Two functions can be meant, or none: the form is the native one.
        ("functions.Get_A:0", "Get_A"),
        ("functions.other:0", "other"),
    ] {
        let text = format!("{{S}}{{C}}{id}{{A}}{{}}{{/C}}{{/S}}");
        assert_eq!(calls(&tools, &text), [(expected.to_owned(), "{}".to_owned())], "{id}");
    }
    for id in ["call_abc123", "other", "Get_A"] {
        let text = format!("{{S}}{{C}}{id}{{A}}{{\"x\": 1}}{{/C}}{{/S}}");
        assert_eq!(calls(&tools, &text), [], "{id}");
    }
}

/// Regression: a call written as one object vanished.
#[test]
fn a_call_as_one_object_is_a_call() {
    let weather = [("get_weather".to_owned(), r#"{"city":"Rome"}"#.to_owned())];
    for text in [
        r#"{S}{C}{"name": "get_weather", "arguments": {"city": "Rome"}}{/C}{/S}"#,
        r#"{S}{C}{"name": "functions.get_weather:0", "parameters": {"city": "Rome"}}{/C}{/S}"#,
        r#"{S}{C}{"name": "get_weather", "arguments": "{\"city\":\"Rome\"}"}{/C}{/S}"#,
        r#"{S}{C}{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Rome"}}}{/C}{/S}"#,
        r#"{S}{C}functions.get_weather:0{A}{"name": "get_weather", "arguments": {"city": "Rome"}}{/C}{/S}"#,
        r#"{S}{C}call_abc123{A}{"name": "get_weather", "city": "Rome"}{/C}{/S}"#,
        r#"{S}{C}call_abc123{A}{"city":"Rome"}{/C}{/S}"#,
        r#"{S}{"name": "get_weather", "arguments": {"city": "Rome"}}{/S}"#,
        r#"{S}[{"name": "get_weather", "arguments": {"city": "Rome"}}]"#,
    ] {
        assert_eq!(calls(&tools(), text), weather, "{text}");
    }
    // A name among the arguments of a function that has one is an argument.
    let named = [json!({"type": "function", "function": {"name": "add",
        "parameters": {"type": "object", "properties": {"name": {"type": "string"}}}}})];
    let text = r#"{S}{C}functions.add:0{A}{"name": "add"}{/C}{/S}"#;
    assert_eq!(calls(&named, text), [("add".to_owned(), r#"{"name": "add"}"#.to_owned())]);
    let text = r#"{S}{C}{"name": "none", "arguments": {}}{/C}{/S}"#;
    assert_eq!(calls(&tools(), text), []);
}

#[test]
fn calls_tell_what_became_of_their_arguments() {
    let format = Arc::new(ReplyFormat::of_text().with_tools(&tools(), 0));
    let mut parser = ReplyParser::new(format, ReplyStart::Answer);
    let text = r#"{S}{C}functions.now:0{A}{/C}{C}functions.now:1{A}{a: 1}{/C}{C}functions.now:2{A}[1]{/C}{C}functions.now:3{A}{"a": "x"#;
    parser.push_text(&spell(text), &mut Vec::new());
    parser.finish(ReplyEnd::Cut, &mut Vec::new());
    use ArgumentsForm::{Cut, Invalid, Mended, Sound};
    assert_eq!(parser.closed_calls(), [Sound, Mended, Invalid, Cut]);
}

#[test]
fn an_end_of_turn_in_a_text_is_the_end() {
    let text = format!("Hi{IM_END}{IM_USER}user{IM_MIDDLE}no");
    assert_eq!(by_text(ReplyStart::Answer, &text, ReplyEnd::Cut), reply(None, "Hi", &[]));
    let text = spell(&format!("{{S}}{{C}}functions.get_weather:0{{A}}{{\"city\": \"Beijing\"}}{IM_END}x"));
    assert_eq!(by_text(ReplyStart::Answer, &text, ReplyEnd::Cut), reply(None, "", &[WEATHER]));
    let old = "\u{25c1}think\u{25b7}hm\u{25c1}/think\u{25b7}Hi";
    assert_eq!(by_text(ReplyStart::Open, old, ReplyEnd::Turn), reply(Some("hm"), "Hi", &[]));
}

#[test]
fn calls_can_be_taken_out_and_counted_on() {
    let text = spell(r#"a{S}{C}get_weather{A}{"city": "Beijing"}{/C}{/S}"#);
    let counted = ReplyFormat::of_text().with_tools(&tools(), 5);
    let whole = whole_reply(counted.clone(), ReplyStart::Answer, &text, ReplyEnd::Turn);
    assert_eq!(whole.calls[0].id, "functions.get_weather:5");
    let whole = whole_reply(counted.without_calls(), ReplyStart::Answer, &text, ReplyEnd::Turn);
    assert_eq!(whole, reply(None, "a", &[]));
}

#[test]
fn the_only_function_needs_no_name() {
    let format = ReplyFormat::of_text().with_tools(&tools()[..1], 0);
    let text = spell(r#"{S}{C}3{A}{"city""#);
    let whole = whole_reply(format, ReplyStart::Answer, &text, ReplyEnd::Cut);
    assert_eq!(whole.calls[0].id, "functions.get_weather:3");
    assert_eq!(whole.calls[0].arguments, r#"{"city""#);
}

#[test]
fn reasoning_tokens_are_those_before_the_end_marker() {
    let format = Arc::new(ReplyFormat::of_tokens(&NANO, true));
    for (start, text, expected) in [
        (ReplyStart::Reasoning, "abc{/T}de", 3),
        (ReplyStart::Reasoning, "{/T}de", 0),
        (ReplyStart::Reasoning, "abc", 3),
        (ReplyStart::Open, "{T}abc{/T}de", 4),
        (ReplyStart::Answer, "abc", 0),
        (ReplyStart::Reasoning, "ab{S}{C}f:0{A}{}{/C}{/S}", 2),
    ] {
        let mut parser = ReplyParser::new(format.clone(), start);
        for (id, text) in tokens(&spell(text)) {
            parser.push(id, &text, &mut Vec::new());
        }
        assert_eq!(parser.reasoning_tokens(), expected, "{text}");
    }
}

/// Random replies: mostly well-formed with mistakes in them, some pure noise.
fn random_reply(rng: &mut fastrand::Rng) -> String {
    let cases = cases();
    let scraps = [
        "{S}",
        "{/S}",
        "{C}",
        "{A}",
        "{/C}",
        "{T}",
        "{/T}",
        "{s}",
        "{/s}",
        "functions.",
        "get_weather",
        ":0",
        ":1",
        "3",
        "{\"city\": \"",
        "é漢🙂",
        "\"}",
        "{}",
        "}",
        " ",
        "\n",
        "Hi",
        "<",
        "<|",
        "|>",
        "\\\"",
        "<|tool_call",
        "\u{25c1}thi",
        "[E",
        "[",
    ];
    let mut text = String::new();
    if rng.bool() {
        text.push_str(cases[rng.usize(..cases.len())].1);
        for _ in 0..rng.usize(0..4) {
            let at = rng.usize(0..=text.len());
            if text.is_char_boundary(at) {
                text.insert_str(at, scraps[rng.usize(..scraps.len())]);
            }
        }
    } else {
        for _ in 0..rng.usize(0..24) {
            text.push_str(scraps[rng.usize(..scraps.len())]);
        }
    }
    spell(&text)
}

/// Joins tokens of text at random, so that markers stand between pieces of any length.
fn cut(tokens: &[(u32, String)], rng: &mut fastrand::Rng) -> Vec<(u32, String)> {
    let mut cut: Vec<(u32, String)> = Vec::new();
    for (id, text) in tokens {
        match cut.last_mut() {
            Some((0, last)) if *id == 0 && rng.u8(..4) > 0 => last.push_str(text),
            _ => cut.push((*id, text.clone())),
        }
    }
    cut
}

#[test]
fn streaming_equals_whole_for_every_cut() {
    let mut rng = fastrand::Rng::with_seed(11);
    let starts = [ReplyStart::Reasoning, ReplyStart::Answer, ReplyStart::Open];
    let ends = [ReplyEnd::Turn, ReplyEnd::Cut];
    for _ in 0..200 {
        let text = random_reply(&mut rng);
        let (start, end) = (starts[rng.usize(..3)], ends[rng.usize(..2)]);
        let all = tokens(&text);
        let from_tokens = by_tokens(start, &all, end);
        let from_text = by_text(start, &text, end);
        for marker in [TOOL_CALLS_SECTION_BEGIN, TOOL_CALL_BEGIN, THINK, THINK_END] {
            for whole in [&from_tokens, &from_text] {
                let shown = [Some(&whole.content), whole.reasoning.as_ref()];
                assert!(
                    shown.into_iter().flatten().all(|shown| !shown.contains(marker)),
                    "{text}: {whole:?}"
                );
            }
        }
        for _ in 0..50 {
            assert_eq!(by_tokens(start, &cut(&all, &mut rng), end), from_tokens, "{text}");
            let format = Arc::new(ReplyFormat::of_text().with_tools(&tools(), 0));
            let mut parser = ReplyParser::new(format, start);
            let (mut pieces, mut rest) = (Vec::new(), text.as_str());
            while !rest.is_empty() {
                let at = (1..=rng.usize(1..=rest.len())).rev().find(|&at| rest.is_char_boundary(at));
                let (piece, after) = rest.split_at(at.unwrap_or(rest.len()));
                parser.push_text(piece, &mut pieces);
                rest = after;
            }
            parser.finish(end, &mut pieces);
            let mut whole =
                WholeReply { reasoning: parser.has_reasoning().then(String::new), ..Default::default() };
            pieces.into_iter().for_each(|piece| whole.add(piece));
            assert_eq!(whole, from_text, "{text}");
        }
    }
}

#[test]
fn pieces_are_well_formed() {
    let mut rng = fastrand::Rng::with_seed(12);
    for _ in 0..2_000 {
        let text = random_reply(&mut rng);
        let format = Arc::new(ReplyFormat::of_tokens(&NANO, true).with_tools(&tools(), 0));
        let mut parser = ReplyParser::new(format, ReplyStart::Open);
        let mut pieces = Vec::new();
        for (id, text) in tokens(&text) {
            let mut step = Vec::new();
            parser.push(id, &text, &mut step);
            pieces.extend(step);
        }
        parser.finish(ReplyEnd::Turn, &mut pieces);
        let (mut calls, mut awaits_arguments) = (0, false);
        let mut ids = std::collections::HashSet::new();
        for piece in pieces {
            match piece {
                ReplyPiece::Call { index, id, name } => {
                    assert!(
                        index == calls && !awaits_arguments && ids.insert(id) && !name.is_empty(),
                        "{text}"
                    );
                    (calls, awaits_arguments) = (calls + 1, true);
                }
                ReplyPiece::Arguments { index, text: arguments } => {
                    assert!(index + 1 == calls && !arguments.is_empty(), "{text}");
                    awaits_arguments = false;
                }
                ReplyPiece::Reasoning(_)
                | ReplyPiece::AnswerWasReasoning
                | ReplyPiece::ReasoningWasAnswer(_) => assert!(!awaits_arguments, "{text}"),
                ReplyPiece::Content(shown) => {
                    assert!(!shown.is_empty() && !awaits_arguments, "{text}");
                }
            }
        }
        assert!(!awaits_arguments, "{text}");
        assert_eq!(parser.num_calls(), calls);
    }
}
