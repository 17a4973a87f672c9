//! Bounds on the resources that a request can make the grammar engine use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::budget::{self, Budget, Over};
use super::tests::{bytes, json_format, run, spec, text};
use super::*;
use perigee_decoding::sampling::TokenConstraint;
use perigee_telemetry::heap;

const MIB: usize = 1 << 20;

#[test]
fn work_that_is_over_is_dropped() {
    let stop = Arc::new(AtomicBool::new(false));
    let budget = Budget { bytes: MIB, work: 100, stop: Some(stop.clone()) };
    let (outcome, spent) = budget.clone().run(|| vec![0u8; 2 * MIB].len());
    assert_eq!(outcome, Ok(2 * MIB), "it was freed again before anything looked");
    assert!(spent.most_bytes >= 2 * MIB);
    let held = budget.clone().run(|| vec![0u8; 2 * MIB]);
    assert_eq!(held.0.err(), Some(Over::Memory));
    let (outcome, _) = budget.clone().run(|| budget::spend(101));
    assert_eq!(outcome, Err(Over::Work));
    let roomy = Budget { bytes: usize::MAX, work: 1, stop: None };
    let (outcome, _) = roomy.run(|| -> u32 { panic!("a bug") });
    assert_eq!(outcome, Err(Over::Panic));
    stop.store(true, Ordering::Relaxed);
    assert_eq!(budget.run(|| 1).0, Err(Over::Unwanted));
}

#[test]
fn patterns_that_explode_are_refused_by_the_bound_they_meet() {
    let grammars = bytes();
    let optional = "a?b?".repeat(50_000);
    for (format, key) in [
        (AnswerFormat::Regex(optional.clone()), "structured_output.max_"),
        (AnswerFormat::Grammar(format!("start: /{optional}/")), "structured_output.max_"),
        (
            json_format(json!({"type": "string", "pattern": format!("^{optional}$")})),
            "structured_output.max_",
        ),
        (
            json_format(json!({"type": "object", "patternProperties": {format!("^{optional}$"): {}}})),
            "patternProperties",
        ),
        (AnswerFormat::Regex(r"(?i)\p{L}".repeat(10_000)), "Unicode classes"),
        (AnswerFormat::Regex(r"\w".repeat(100_000)), "Unicode classes"),
        (AnswerFormat::Grammar(format!("start: {}", "\"a\"? ".repeat(5_000))), "beginning"),
        (AnswerFormat::Grammar(format!("start: \"a\"\n{}", "a: \"b\"\n".repeat(20_000))), "rules"),
        (json_format(json!({"description": "x".repeat(3 * MIB)})), "structured_output.max_schema_bytes"),
    ] {
        let error = grammars.compile(&spec(format)).unwrap_err().to_string();
        assert!(error.contains(key), "{key}: {error}");
    }
}

/// Regression: sets of key patterns that were merged, or stood where none were looked for, were
/// compared for most of an hour, and nothing could interrupt it.
#[test]
fn key_patterns_do_not_occupy_the_compiler() {
    let grammars = bytes();
    let patterns = |letter: char, count: usize| -> Value {
        let patterns: serde_json::Map<String, Value> =
            (0..count).map(|number| (format!("^{letter}{number}$"), json!({"type": "string"}))).collect();
        json!({"type": "object", "patternProperties": patterns})
    };
    let many = patterns('k', 140);
    let alternatives: Vec<Value> = ('a'..='m').map(|letter| patterns(letter, 2)).collect();
    for schema in [
        many.clone(),
        json!({"$ref": "#/x", "x": many}),
        json!({"type": "array", "items": [many]}),
        json!({"allOf": alternatives}),
        json!({"allOf": [{"anyOf": alternatives}, {"anyOf": alternatives}, {"anyOf": alternatives}]}),
    ] {
        let error = grammars.compile(&spec(json_format(schema))).unwrap_err().to_string();
        assert!(error.contains("patternProperties"), "{error}");
    }
    let some = json!({"allOf": [patterns('a', 2), patterns('b', 2)]});
    grammars.compile(&spec(json_format(some))).unwrap();
}

#[test]
fn patterns_of_real_use_compile() {
    let grammars = bytes();
    let words: Vec<String> = (0..5000).map(|number| format!("a value of an enumeration, {number}")).collect();
    for format in [
        AnswerFormat::Regex(r"[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,24}".into()),
        AnswerFormat::Regex(
            r"https?://(www\.)?[-a-zA-Z0-9@:%._+~#=]{1,256}\.[a-zA-Z0-9()]{1,6}\b?".replace(r"\b?", ""),
        ),
        AnswerFormat::Regex(
            r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3])(:[0-5]\d){2}(\.\d+)?Z?".into(),
        ),
        AnswerFormat::Regex("[a-z]{1,200}".into()),
        AnswerFormat::Regex(r"(?i)[a-zß]{1,30}( [\p{L}'-]{1,30}){0,5}".into()),
        json_format(json!({"enum": words})),
        json_format(json!({"type": "string", "maxLength": 4000})),
        json_format(
            json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-z]{1,200}$"},
            "b": {"type": "string", "format": "email"}, "c": {"type": "string", "format": "date-time"}},
            "required": ["a", "b", "c"]}),
        ),
    ] {
        let grammar = grammars.compile(&spec(format.clone()));
        let grammar = grammar.unwrap_or_else(|error| panic!("{format:?}: {error}"));
        assert!(grammar.bytes() < 16 * MIB, "{format:?}: {}", grammar.bytes());
    }
}

/// Regression: rules are read by recursion, the stack of a thread has 2 MiB, and the process ended.
#[test]
fn a_long_chain_of_rules_overflows_no_stack() {
    let chain = |name: &str, count: usize| {
        let rules: Vec<String> = (0..count).map(|n| format!("{name}{n}: {name}{}\n", n + 1)).collect();
        format!("start: {name}0\n{}{name}{count}: \"a\"\n", rules.concat())
    };
    for grammar in [chain("r", 9_900), chain("R", 9_900)] {
        let grammar = bytes().compile(&spec(AnswerFormat::Grammar(grammar)));
        assert!(grammar.is_ok() || matches!(grammar, Err(GrammarError::Limit { .. })), "{grammar:?}");
    }
}

#[test]
fn nobody_compiles_for_a_client_that_has_left() {
    let stop = Arc::new(AtomicBool::new(true));
    let object = spec(json_format(json!({"type": "object"})));
    let grammar = bytes().compile_until(&object, Reasoning::None, &stop);
    assert_eq!(grammar.err(), Some(GrammarError::Stopped));
}

#[test]
fn the_cache_is_bounded_by_what_its_grammars_hold() {
    let format = |letter: char| spec(AnswerFormat::Regex(format!("({letter}[a-z]{{1,60}} ?){{1,60}}")));
    let grammars = bytes();
    let grammar = grammars.compile(&format('a')).unwrap();
    // Counted: the bytes of another parser, without the patterns and tables of the grammar.
    let before = heap::allocated();
    let parser = grammar.parser();
    let parser_bytes = usize::try_from(heap::allocated() - before).unwrap();
    drop(parser);
    let counted = grammar.bytes();
    assert!(counted >= parser_bytes && counted < 3 * parser_bytes, "{counted} for {parser_bytes}");
    let room = Config { cache_bytes: counted as u64 * 5 / 2, ..Config::default() };
    let grammars = grammars.with_config(room);
    let known = |spec: &GrammarSpec| grammars.known(spec, Reasoning::None).unwrap().is_some();
    let kept = |letter| known(&format(letter));
    for letter in ['a', 'b'] {
        grammars.compile(&format(letter)).unwrap();
    }
    assert!(kept('b') && kept('a'));
    grammars.compile(&format('c')).unwrap();
    assert_eq!([kept('a'), kept('b'), kept('c')], [true, false, true]);
    // A grammar that does not fit in the cache is compiled each time and evicts no other.
    let large = spec(AnswerFormat::Choice((0..3000).map(|n| format!("{n} of a long choice")).collect()));
    grammars.compile(&large).unwrap();
    assert!(!known(&large));
    assert_eq!([kept('a'), kept('c')], [true, true]);
}

/// A grammar that compiles can grow while it is used.
#[test]
fn a_reply_whose_parser_grows_beyond_its_bound_ends_whole() {
    let grows = json!({"type": "string", "pattern": "^.*a.{12}$", "maxLength": 2000});
    let mut rng = fastrand::Rng::with_seed(23);
    let roomy = bytes();
    let grammar = roomy.compile(&spec(json_format(grows.clone()))).unwrap();
    let least = grammar.bytes() as u64;
    for bound in [least + (1 << 19), 2 * least + (2 << 20)] {
        let tight = bytes().with_config(Config { max_grammar_bytes: bound, ..Config::default() });
        let Ok(grammar) = tight.compile(&spec(json_format(grows.clone()))) else { continue };
        let (tokens, whole) = run(&tight, &grammar, 1500, &mut rng);
        assert!(whole);
        let value: Value = serde_json::from_str(&text(&tight, &tokens)).unwrap();
        assert_eq!(value.as_str().unwrap().chars().rev().nth(12), Some('a'));
        assert_eq!(grammar.limits.account.held(), 0);
    }
}

/// Regression: the first row has more items than the parser takes, and the reply failed with an
/// error of the engine.
#[test]
fn more_members_than_the_parser_takes_at_once_still_end_whole() {
    let members: serde_json::Map<String, Value> =
        (0..1500).map(|number| (format!("p{number}"), json!({"type": "string"}))).collect();
    let grammars = bytes();
    let schema = json!({"type": "object", "properties": members, "additionalProperties": false});
    let grammar = grammars.compile(&spec(json_format(schema))).unwrap();
    let (tokens, whole) = run(&grammars, &grammar, 100, &mut fastrand::Rng::with_seed(5));
    let text = text(&grammars, &tokens);
    assert!(whole && serde_json::from_str::<Value>(&text).is_ok(), "{text}");
}

#[test]
fn the_bytes_of_running_replies_are_counted_and_given_back() {
    let grammars = bytes();
    let grammar = grammars.compile(&spec(json_format(json!({"type": "object"})))).unwrap();
    let account = || grammar.limits.account.held();
    let mut waiting: Vec<Box<dyn TokenConstraint>> = (0..100).map(|_| grammar.start()).collect();
    assert_eq!(account(), 0, "a reply that waits holds no parser");
    waiting[0].prepare(10).unwrap();
    let one = account();
    assert!(one > 1000, "{one}");
    waiting[1].prepare(10).unwrap();
    assert_eq!(account(), 2 * one);
    waiting.truncate(1);
    assert_eq!(account(), one);
    drop(waiting);
    assert_eq!(account(), 0);
}
