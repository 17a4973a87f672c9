//! The JSON Schema Test Suite, run through the grammar compiler: a measurement.
//!
//! `target/json-schema-suite` is a clone of json-schema-org/JSON-Schema-Test-Suite, which is no part
//! of this repository.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::tests::{accepts, bytes, json_format, spec};
use super::*;

/// Most orders of members in which an instance is tried.
const MAX_ORDERS: usize = 400;

/// The notations of a value: its members in every order. The compiler prescribes one.
fn notations(value: &Value) -> Vec<String> {
    match value {
        Value::Array(items) => joined(&items.iter().map(notations).collect::<Vec<_>>(), ('[', ']')),
        Value::Object(members) => {
            let members: Vec<Vec<String>> = members
                .iter()
                .map(|(key, value)| {
                    notations(value)
                        .into_iter()
                        .map(|text| format!("{}:{text}", Value::from(key.as_str())))
                        .collect()
                })
                .collect();
            let mut orders = vec![Vec::new()];
            for _ in 0..members.len() {
                let longer = |order: &Vec<usize>| -> Vec<Vec<usize>> {
                    let left = (0..members.len()).filter(|at| !order.contains(at));
                    left.map(|at| [&order[..], &[at]].concat()).collect()
                };
                orders = orders.iter().flat_map(longer).take(MAX_ORDERS).collect();
            }
            let ordered = orders.iter().flat_map(|order| {
                let members: Vec<Vec<String>> = order.iter().map(|&at| members[at].clone()).collect();
                joined(&members, ('{', '}'))
            });
            ordered.take(MAX_ORDERS).collect()
        }
        Value::Number(number) => {
            let whole = number.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < 1e15);
            let whole = whole.map(|number| format!("{number:.0}"));
            let own = number.to_string();
            whole.into_iter().filter(|text| *text != own).chain([own.clone()]).collect()
        }
        other => vec![other.to_string()],
    }
}

/// All texts of a list whose items have these notations.
fn joined(items: &[Vec<String>], (open, close): (char, char)) -> Vec<String> {
    let mut texts = vec![String::new()];
    for (number, item) in items.iter().enumerate() {
        let comma = if number > 0 { "," } else { "" };
        texts = texts
            .iter()
            .flat_map(|text| item.iter().map(move |item| format!("{text}{comma}{item}")))
            .take(MAX_ORDERS)
            .collect();
    }
    texts.into_iter().map(|text| format!("{open}{text}{close}")).collect()
}

/// What became of the schemas of a file.
#[derive(Debug, Default)]
struct Counts {
    right: usize,
    /// Enforced but for rules that are named as advice.
    advice: usize,
    /// All that is accepted is right, and some right value is not accepted.
    narrow: usize,
    refused: usize,
    wrong: usize,
}

#[test]
#[ignore = "a measurement"]
fn json_schema_suite() {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/json-schema-suite/tests/draft2020-12");
    assert!(folder.is_dir(), "{} is missing: clone the suite there", folder.display());
    let mut table: BTreeMap<String, Counts> = BTreeMap::new();
    let grammars = bytes();
    for name in [
        "pattern",
        "oneOf",
        "propertyNames",
        "not",
        "format",
        "uniqueItems",
        "anyOf",
        "allOf",
        "if-then-else",
        "dependentRequired",
        "patternProperties",
        "enum",
        "const",
        "optional/ecmascript-regex",
        "optional/non-bmp-regex",
        "optional/format/date",
        "optional/format/date-time",
        "optional/format/time",
        "optional/format/duration",
        "optional/format/email",
        "optional/format/hostname",
        "optional/format/ipv4",
        "optional/format/ipv6",
        "optional/format/uri",
        "optional/format/uuid",
        "optional/format/unknown",
    ] {
        let file = std::fs::read(folder.join(format!("{name}.json"))).unwrap();
        let cases: Value = serde_json::from_slice(&file).unwrap();
        let counts = table.entry(name.to_owned()).or_default();
        for case in cases.as_array().unwrap() {
            count(&grammars, name, case, counts);
        }
    }
    println!("| group | right | right but for advice | narrower | refused by name | wrong |");
    for (name, counts) in table {
        let Counts { right, advice, narrow, refused, wrong } = counts;
        println!("| {name} | {right} | {advice} | {narrow} | {refused} | {wrong} |");
    }
}

fn count(grammars: &Grammars, name: &str, case: &Value, counts: &mut Counts) {
    let title = &case["description"];
    let grammar: Arc<Grammar> = match grammars.compile(&spec(json_format(case["schema"].clone()))) {
        Ok(grammar) => grammar,
        Err(error) => {
            // A schema that allows no value has no reply.
            let some = case["tests"].as_array().unwrap().iter().any(|test| test["valid"] == true);
            if some {
                counts.refused += 1
            } else {
                counts.right += 1
            }
            println!("{name}: {title}: {error}");
            return;
        }
    };
    let (mut lost, mut wrong) = (false, false);
    for test in case["tests"].as_array().unwrap() {
        let accepted = notations(&test["data"]).iter().any(|text| accepts(grammars, &grammar, text));
        if accepted != (test["valid"] == true) {
            println!("{name}: {title}: {}: accepted {accepted}: {}", test["description"], test["data"]);
            if accepted { wrong = true } else { lost = true }
        }
    }
    let advised = !grammar.advice().is_empty();
    match (wrong, lost) {
        (true, _) if !advised => counts.wrong += 1,
        (true, _) => counts.advice += 1,
        (false, true) => counts.narrow += 1,
        (false, false) => counts.right += 1,
    }
}
