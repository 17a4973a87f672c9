use serde_json::json;

use super::*;
use crate::test_data::golden;

fn declare(tools: Value) -> Option<String> {
    let tools: Vec<Value> = tools.as_array().unwrap().iter().map(sorted).collect();
    typescript(&tools)
}

/// The block of one function `f`.
fn check(parameters: Value, description: Option<&str>, expected: Option<&str>) {
    let mut function = json!({"name": "f", "parameters": parameters});
    if let Some(description) = description {
        function["description"] = description.into();
    }
    let text = declare(json!([{"type": "function", "function": function}]));
    let expected =
        expected.map(|block| format!("# Tools\n\n## functions\nnamespace functions {{\n{block}\n}}\n"));
    assert_eq!(text, expected, "{parameters}");
}

#[test]
fn every_row_of_the_released_encoder() {
    let rows: Vec<Value> = serde_json::from_slice(&golden("kimi/tool_typescript.json")).unwrap();
    assert!(rows.len() >= 100);
    let mut wrong = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let text = declare(row["tools"].clone());
        if text.as_deref() != row["typescript"].as_str() {
            wrong.push(format!("row {index}: {}\n{text:?}\n{}", row["tools"], row["typescript"]));
        }
    }
    assert!(wrong.is_empty(), "{} of {} rows differ:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}

#[test]
fn types_and_comments() {
    check(
        json!({"type": "object", "properties": {"o": {"type": "object", "required": ["z"], "properties": {
            "a": {"type": "boolean"}, "z": {"type": "number", "description": "zee"}}}}}),
        None,
        Some("type f = (_: {\n  o?: {\n    // zee\n    z: number,\n    a?: boolean\n  }\n}) => any;"),
    );
    check(
        json!({"properties": {"t": {"type": "array", "description": "tags", "maxItems": 3,
            "items": {"type": "string", "description": "one tag", "minLength": 1, "default": "x"}}}}),
        None,
        Some(
            "type f = (_: {\n  // tags\n  // maxItems: 3\n  t?: Array<\n    // one tag\n    // minLength: 1\n    string\n  >\n}) => any;",
        ),
    );
    check(
        json!({"properties": {"items": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer"}}}}}}),
        Some("d"),
        Some("// d\ntype f = (_: {\n  items?: Array<{\n    a?: number\n  }>\n}) => any;"),
    );
    check(
        json!({"required": ["q"], "additionalProperties": false, "properties": {"q": {"description": "query", "anyOf": [
            {"type": "string", "description": "dropped"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]}}}),
        Some("d"),
        Some(
            "// d\ntype f = (_: {\n  // query\n  q: string | Array<string> | null,\n  [k: string]: never\n}) => any;",
        ),
    );
    check(
        json!({"properties": {"b": {"type": "boolean", "default": true}, "l": {"type": "array", "default": [1, "a"]},
            "n": {"type": "number", "default": 1.5}, "s": {"type": "string", "default": "hé"}, "x": {"type": ["string", "null"]}}}),
        Some("d"),
        Some(
            "// d\ntype f = (_: {\n  // Default: True\n  b?: boolean,\n  // Default: [1, \"a\"]\n  l?: Array<any>,\n  // Default: 1.5\n  n?: number,\n  // Default: \"hé\"\n  s?: string,\n  x?: string | null\n}) => any;",
        ),
    );
    check(
        json!({"properties": {"e": {"enum": ["a", 1, null, true]}}}),
        Some("d"),
        Some("// d\ntype f = (_: {\n  e?: \"a\" | 1 | None | True\n}) => any;"),
    );
    check(
        json!({"properties": {"c": {"type": "string", "description": "p1\n\np2"}}}),
        Some("line1\n\nline3"),
        Some("// line1\n\n// line3\ntype f = (_: {\n  // p1\n\n  // p2\n  c?: string\n}) => any;"),
    );
    check(
        json!({"properties": {"c": {"type": "string", "maxLength": 5, "pattern": "^a\"b$"},
            "d": {"type": "number", "minimum": 0.5, "maximum": 10}}}),
        Some("d"),
        Some(
            "// d\ntype f = (_: {\n  // maxLength: 5, pattern: ^a\"b$\n  c?: string,\n  // maximum: 10, minimum: 0.5\n  d?: number\n}) => any;",
        ),
    );
    check(
        json!({"properties": {"a-b c": {"type": "string"}}}),
        Some("d"),
        Some("// d\ntype f = (_: {\n  a-b c?: string\n}) => any;"),
    );
    check(Value::Null, None, Some("type f = (_: {}) => any;"));
}

#[test]
fn references() {
    check(
        json!({"$defs": {"Node": {"type": "object", "description": "A node", "required": ["v"], "properties": {
            "v": {"type": "number"}, "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}}}},
            "properties": {"head": {"$ref": "#/$defs/Node", "description": "start"}}}),
        Some("Desc."),
        Some(
            "// A node\ninterface Node {\n  v: number,\n  next?: Node | null\n}\n// Desc.\ntype f = (_: {\n  // start\n  head?: Node\n}) => any;",
        ),
    );
    check(
        json!({"required": ["v"], "properties": {"v": {"type": "string"}, "child": {"$ref": "#"}}}),
        Some("d"),
        Some(
            "interface parameters {\n  child?: parameters,\n  v: string\n}\n// d\ntype f = (_: parameters) => any;",
        ),
    );
    check(
        json!({"additionalProperties": true, "properties": {"m": {"type": "object", "additionalProperties": {"type": "string"}}}}),
        Some("d"),
        Some("// d\ntype f = (_: {\n  m?: {\n    [k: string]: string\n  },\n  [k: string]: any\n}) => any;"),
    );
}

#[test]
fn what_the_released_encoder_refuses_has_no_typescript() {
    for field in [
        json!({"description": "only"}),
        json!({"const": 1}),
        json!({"oneOf": [{"type": "string"}]}),
        json!({"$ref": "#/definitions/A"}),
        json!({"$ref": "#/$defs/Unknown"}),
        json!({"type": "integer", "enum": ["a"]}),
        json!({"type": ["string", "integer", "null"], "enum": ["a"]}),
        json!({"type": ["string", "thing"]}),
        json!({"type": 3}),
        json!(3),
        json!({"type": "string", "description": ["x"]}),
    ] {
        check(json!({"properties": {"c": field}}), None, None);
    }
    for tools in
        [json!([]), json!([{"type": "builtin_function", "function": {"name": "$web_search"}}]), json!([7])]
    {
        assert_eq!(declare(tools), None);
    }
}

/// Regression: each field and each reference was searched for in a list of all.
#[test]
fn many_fields_and_definitions() {
    let names: Vec<String> = (0..20_000).map(|number| format!("n{number:05}")).collect();
    let of = |value: &dyn Fn(&String) -> Value| -> serde_json::Map<String, Value> {
        names.iter().map(|name| (name.clone(), value(name))).collect()
    };
    let text = declare(json!([{"type": "function", "function": {"name": "f", "parameters": {
        "$defs": of(&|_| json!({"type": "string"})), "required": names,
        "properties": of(&|name| json!({"$ref": format!("#/$defs/{name}")}))}}}]));
    let text = text.unwrap();
    assert!(
        text.contains("interface n19999 string\n") && text.contains("  n19999: n19999\n"),
        "{}",
        text.len()
    );
}

#[test]
fn order_is_the_requests_and_keys_are_sorted() {
    let tools = json!([
        {"type": "function", "function": {"name": "b", "description": "B."}},
        {"function": {"parameters": {"required": ["x"], "properties": {"x": {"type": "number"}}}, "description": "A.", "name": "a"},
         "type": "function"}
    ]);
    let block = "// B.\ntype b = (_: {}) => any;\n// A.\ntype a = (_: {\n  x: number\n}) => any;";
    assert_eq!(
        declare(tools).unwrap(),
        format!("# Tools\n\n## functions\nnamespace functions {{\n{block}\n}}\n")
    );
    let value = json!({"b": [{"d": 1, "c": 2}], "a": 0});
    assert_eq!(sorted(&value).to_string(), r#"{"a":0,"b":[{"c":2,"d":1}]}"#);
}
