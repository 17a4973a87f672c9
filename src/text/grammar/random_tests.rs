//! Random schemas of the rules that are rewritten: no grammar accepts a value that its schema
//! refuses.

use serde_json::{Value, json};

use super::tests::{accepts, bytes, json_format, spec};

/// A schema of a few small rules.
fn schema(rng: &mut fastrand::Rng, depth: usize) -> Value {
    let inner = |rng: &mut fastrand::Rng| schema(rng, depth + 1);
    let list = |rng: &mut fastrand::Rng| -> Vec<Value> { (0..rng.usize(1..4)).map(|_| inner(rng)).collect() };
    let name = |rng: &mut fastrand::Rng| ["a", "b", "ab"][rng.usize(0..3)];
    match rng.usize(0..if depth > 2 { 9 } else { 16 }) {
        0 => {
            json!({"type": *rng.choice(&["null", "boolean", "integer", "number", "string", "array", "object"]).unwrap()})
        }
        1 => json!({"const": value(rng, 1)}),
        2 => json!({"enum": [value(rng, 1), value(rng, 1), value(rng, 1)]}),
        3 => json!({"pattern": *rng.choice(&["^a", "b$", "^(?!a)", "(?=.*b)a", "^.{2}$", "[^ab]"]).unwrap()}),
        4 => json!({"required": [name(rng)]}),
        5 => json!({"minimum": rng.i32(0..3)}),
        6 => json!({"maxLength": rng.usize(0..3)}),
        7 => json!({"type": "object", "required": [name(rng)]}),
        8 => json!({"minItems": rng.usize(0..3)}),
        9 => json!({"oneOf": list(rng)}),
        10 => json!({"not": inner(rng)}),
        11 => json!({"anyOf": list(rng)}),
        12 => json!({"allOf": list(rng)}),
        13 => json!({"if": inner(rng), "then": inner(rng), "else": inner(rng)}),
        14 => {
            json!({"type": "object", "properties": {name(rng): inner(rng), name(rng): inner(rng)}, "additionalProperties": rng.bool()})
        }
        _ => json!({"type": "object", "propertyNames": inner(rng), "properties": {name(rng): inner(rng)}}),
    }
}

/// A small value.
fn value(rng: &mut fastrand::Rng, depth: usize) -> Value {
    match rng.usize(0..if depth > 1 { 5 } else { 7 }) {
        0 => Value::Null,
        1 => rng.bool().into(),
        2 => rng.i32(0..4).into(),
        3 => json!(1.5),
        4 => ["", "a", "b", "ab", "ba", "c"][rng.usize(0..6)].into(),
        5 => (0..rng.usize(0..3)).map(|_| value(rng, depth + 1)).collect(),
        _ => {
            let names = ["a", "b", "ab"].into_iter().filter(|_| rng.bool()).collect::<Vec<_>>();
            names.into_iter().map(|name| (name.to_owned(), value(rng, depth + 1))).collect()
        }
    }
}

#[test]
fn random_schemas_accept_nothing_that_they_refuse() {
    let grammars = bytes();
    let mut rng = fastrand::Rng::with_seed(43);
    let (mut compiled, mut valid, mut accepted) = (0, 0, 0);
    for _ in 0..500 {
        let schema = schema(&mut rng, 0);
        let Ok(grammar) = grammars.compile(&spec(json_format(schema.clone()))) else { continue };
        assert!(grammar.advice().is_empty(), "{schema}");
        compiled += 1;
        let validator = jsonschema::validator_for(&schema).unwrap();
        for _ in 0..60 {
            let value = value(&mut rng, 0);
            let is_accepted = accepts(&grammars, &grammar, &value.to_string());
            assert!(!is_accepted || validator.is_valid(&value), "{schema}: {value}");
            valid += usize::from(validator.is_valid(&value));
            accepted += usize::from(is_accepted);
        }
    }
    println!("{compiled} schemas, {accepted} of {valid} values accepted");
    assert!(compiled > 250 && accepted > valid / 2, "{compiled} schemas, {accepted} of {valid} values");
}
