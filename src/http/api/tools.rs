//! Declared tools and the choice among them.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::unknown::Unknown;
use super::values::Free;
use super::{ApiError, HostedTools};
use perigee_text::grammar::{AnswerFormat, GrammarSpec, ToolCalls, ToolFunction, ToolMode};

/// Most tools of one request.
pub(super) const MAX_TOOLS: usize = 1024;
/// Most bytes of a function's name.
const MAX_NAME_BYTES: usize = 256;

/// `tools`.
pub(super) fn schema(_: &mut SchemaGenerator) -> Schema {
    let mut function = json!({"type": "object", "required": ["name"], "properties": {
        "name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"}, "description": {"type": "string"},
        "parameters": {"type": "object"}, "strict": {"type": "boolean"}}});
    let kind = json!({"const": "function"});
    let nested = json!({"type": "object", "required": ["type", "function"], "properties": {"type": kind, "function": function}});
    function["properties"]["type"] = kind;
    let custom = json!({"type": "object", "required": ["type", "custom"], "properties": {
        "type": {"const": "custom"}, "custom": {"type": "object", "required": ["name"], "properties": {
            "name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"}, "description": {"type": "string"},
            "format": {"type": "object"}}}}});
    json_schema!({"type": "array", "maxItems": MAX_TOOLS, "items": {"anyOf": [nested, function, custom]}})
}

/// `tool_choice`.
pub(super) fn choice_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"anyOf": [
        {"enum": ["none", "auto", "required", "any"]},
        {"type": "object", "required": ["type"], "properties": {"type": {"enum": ["none", "auto", "required", "any"]}}},
        {"type": "object", "required": ["type", "name"], "properties": {"type": {"enum": ["tool", "function"]}, "name": {"type": "string"}}},
        {"type": "object", "required": ["type", "function"], "properties": {"type": {"const": "function"},
            "function": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}}},
        {"type": "object", "required": ["type", "allowed_tools"], "properties": {"type": {"const": "allowed_tools"},
            "allowed_tools": {"type": "object", "required": ["mode", "tools"], "properties": {"mode": {"enum": ["auto", "required"]},
                "tools": {"type": "array", "minItems": 1, "items": {"type": "object"}}}}}}]})
}

/// Which calls a request wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ToolChoice {
    /// None at all.
    None,
    /// As the model sees fit.
    Auto,
    /// At least one.
    Required,
    /// One of this function.
    Named(String),
    /// Of these functions alone; at least one where it is required.
    Allowed { names: Vec<String>, required: bool },
}

/// The entries of `tools`; an empty list is none.
pub(super) fn entries(tools: Option<Free>) -> Result<Vec<Value>, ApiError> {
    let tools = match tools.map(|tools| tools.0) {
        None => return Ok(Vec::new()),
        Some(Value::Array(tools)) => tools,
        Some(_) => return Err(ApiError::invalid_type("tools", "a list is expected")),
    };
    if tools.len() > MAX_TOOLS {
        return Err(ApiError::invalid_value("tools", format!("{} tools, limit {MAX_TOOLS}", tools.len())));
    }
    Ok(tools)
}

/// Checks `tools`: the functions among them. Tools of other types are left out or refused.
pub(super) fn check(
    tools: Option<Free>,
    hosted: HostedTools,
    unknown: &mut Unknown,
) -> Result<Vec<Value>, ApiError> {
    let mut checked = Vec::new();
    for (index, tool) in entries(tools)?.into_iter().enumerate() {
        checked.extend(check_tool(tool, &format!("tools[{index}]"), hosted, unknown)?);
    }
    Ok(checked)
}

/// A function's fields stand in `function`, or beside the type as in the Responses API; Anthropic's schema is `input_schema`.
fn check_tool(
    mut tool: Value,
    path: &str,
    hosted: HostedTools,
    unknown: &mut Unknown,
) -> Result<Option<Value>, ApiError> {
    if !tool.is_object() {
        return Err(ApiError::invalid_type(path, "an object is expected"));
    }
    let schema = if tool["input_schema"].is_null() { "parameters" } else { "input_schema" };
    match tool["type"].as_str() {
        None if !tool["type"].is_null() => {
            return Err(ApiError::invalid_type(&format!("{path}.type"), "a string is expected"));
        }
        None if tool["function"].is_null() && tool["name"].is_null() => {
            return Err(ApiError::missing(format!("{path}.type")));
        }
        None | Some("function" | "builtin_function") => {}
        Some(other) if tool["function"].is_object() => {
            return Err(ApiError::unknown_value(format!("{path}.type"), other, "function"));
        }
        Some(_) if schema == "input_schema" => {}
        Some(other) => return hosted.leave_out(other, path, unknown).map(|()| None),
    }
    if tool["function"].is_object() {
        check_function(&tool["function"], &format!("{path}.function"), "parameters")?;
        if tool["type"].is_null() {
            tool["type"] = "function".into();
        }
        return Ok(Some(tool));
    }
    if tool["name"].is_null() {
        return Err(ApiError::missing(format!("{path}.function")));
    }
    self::tool(flat(&tool, schema), path, schema).map(Some)
}

/// The function whose fields stand in an object among others, its parameters in `schema`.
pub(super) fn flat(tool: &Value, schema: &str) -> Value {
    let fields =
        [("name", "name"), ("description", "description"), ("parameters", schema), ("strict", "strict")];
    let given = fields.into_iter().filter(|(_, own)| !tool[*own].is_null());
    given.map(|(name, own)| (name.to_owned(), tool[own].clone())).collect::<Map<_, _>>().into()
}

/// The tool that a dialect's function is. Its fields stand at `path`, where its parameters are called `schema`.
pub(super) fn tool(function: Value, path: &str, schema: &str) -> Result<Value, ApiError> {
    check_function(&function, path, schema)?;
    Ok(json!({"type": "function", "function": function}))
}

fn check_function(function: &Value, path: &str, schema: &str) -> Result<(), ApiError> {
    let name = match &function["name"] {
        Value::String(name) => name,
        Value::Null => return Err(ApiError::missing(format!("{path}.name"))),
        _ => return Err(ApiError::invalid_type(&format!("{path}.name"), "a string is expected")),
    };
    // The name stands in a call's id, whose parts it must not break.
    let bad = |c: char| c.is_whitespace() || c.is_control() || "{}<>|\"".contains(c);
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains(bad) {
        return Err(ApiError::invalid_value(
            format!("{path}.name"),
            format!(
                "1 to {MAX_NAME_BYTES} bytes without white space, quotes, braces, `<`, `>` and `|` are allowed"
            ),
        ));
    }
    let parameters = &function["parameters"];
    if !(parameters.is_object() || parameters.is_null()) {
        return Err(ApiError::invalid_type(
            &format!("{path}.{schema}"),
            "a JSON schema of an object is expected",
        ));
    }
    if !(function["description"].is_string() || function["description"].is_null()) {
        return Err(ApiError::invalid_type(&format!("{path}.description"), "a string is expected"));
    }
    Ok(())
}

/// Reads `tool_choice`, in the words of any dialect. Where the form is `flat`, what is chosen stands beside the type and not one level
/// deeper; the other form is taken too.
pub(super) fn choice(choice: Option<Free>, flat: bool) -> Result<Option<ToolChoice>, ApiError> {
    let Some(Free(choice)) = choice else { return Ok(None) };
    let chosen = match &choice {
        Value::String(word) => by_word(word).ok_or_else(|| {
            ApiError::unknown_value(
                "tool_choice",
                word,
                "none, auto, required, or an object that names a function",
            )
        })?,
        Value::Object(_) => match choice["type"].as_str() {
            Some("function" | "tool") => {
                let names = [&choice["function"]["name"], &choice["name"]];
                let missing = if flat { "tool_choice.name" } else { "tool_choice.function.name" };
                let name =
                    names.into_iter().find_map(Value::as_str).ok_or_else(|| ApiError::missing(missing))?;
                ToolChoice::Named(name.to_owned())
            }
            Some("allowed_tools") => match &choice["allowed_tools"] {
                Value::Null if flat => allowed(&choice, "tool_choice")?,
                tools => allowed(tools, "tool_choice.allowed_tools")?,
            },
            kind => kind.and_then(by_word).ok_or_else(|| {
                ApiError::invalid_value(
                    "tool_choice.type",
                    "allowed: function, allowed_tools, auto, any, none",
                )
            })?,
        },
        _ => return Err(ApiError::invalid_type("tool_choice", "a string or an object is expected")),
    };
    Ok(Some(chosen))
}

/// The choice that a word alone makes; `any` is what Anthropic and Mistral call `required`.
fn by_word(word: &str) -> Option<ToolChoice> {
    match word {
        "none" => Some(ToolChoice::None),
        "auto" => Some(ToolChoice::Auto),
        "required" | "any" => Some(ToolChoice::Required),
        _ => None,
    }
}

/// Checks a choice against the declared tools.
pub(super) fn check_choice(choice: Option<ToolChoice>, tools: &[Value]) -> Result<ToolChoice, ApiError> {
    let Some(parsed) = choice else {
        return Ok(if tools.is_empty() { ToolChoice::None } else { ToolChoice::Auto });
    };
    match &parsed {
        ToolChoice::Required if tools.is_empty() => {
            Err(ApiError::invalid_value("tool_choice", "`required` needs at least one entry in `tools`"))
        }
        ToolChoice::Named(name) => is_declared(name, tools).map(|()| parsed),
        ToolChoice::Allowed { names, .. } => {
            names.iter().try_for_each(|name| is_declared(name, tools)).map(|()| parsed)
        }
        _ if tools.is_empty() => Ok(ToolChoice::None),
        _ => Ok(parsed),
    }
}

fn is_declared(name: &str, tools: &[Value]) -> Result<(), ApiError> {
    if tools.iter().any(|tool| tool["function"]["name"] == name) {
        return Ok(());
    }
    let shown: String = name.chars().take(64).collect();
    Err(ApiError::invalid_value(
        "tool_choice",
        format!("`tools` declares no function `{shown}` (tools of other types are not shown to the model)"),
    ))
}

/// `allowed_tools` of a choice: all tools stay declared, and these may be called.
fn allowed(choice: &Value, path: &str) -> Result<ToolChoice, ApiError> {
    let required = match choice["mode"].as_str() {
        Some("auto") => false,
        Some("required") => true,
        _ => return Err(ApiError::invalid_value(format!("{path}.mode"), "allowed: auto, required")),
    };
    let tools = choice["tools"].as_array().filter(|tools| !tools.is_empty());
    let tools = tools
        .ok_or_else(|| ApiError::invalid_value(format!("{path}.tools"), "a list of functions is expected"))?;
    let name = |(index, tool): (usize, &Value)| {
        let names = [&tool["function"]["name"], &tool["name"]].into_iter();
        let name = names.filter(|_| tool["type"] == "function").find_map(Value::as_str);
        name.map(str::to_owned).ok_or_else(|| {
            ApiError::invalid_value(format!("{path}.tools[{index}]"), "a function's name is expected")
        })
    };
    let names: Result<Vec<String>, ApiError> = tools.iter().enumerate().map(name).collect();
    Ok(ToolChoice::Allowed { names: names?, required })
}

/// What the reply must be: what the request asks for itself, or the calls that it forces or wants `strict`. A format speaks of the
/// answer's text: where calls are forced there is none, and where they are only narrowed the text is all that is left.
pub(super) fn grammar(
    choice: &ToolChoice,
    tools: &[Value],
    parallel: bool,
    structured: Option<GrammarSpec>,
    json_arguments: bool,
) -> Result<Option<GrammarSpec>, ApiError> {
    let is_strict = |tool: &Value| tool["function"]["strict"] == true;
    let mode = match choice {
        ToolChoice::Required => ToolMode::Required,
        ToolChoice::Named(name) => ToolMode::Named(name.clone()),
        ToolChoice::Allowed { required: true, .. } => ToolMode::Required,
        ToolChoice::Allowed { required: false, .. } if structured.is_none() => ToolMode::Auto,
        ToolChoice::Auto if structured.is_none() && tools.iter().any(is_strict) => ToolMode::Auto,
        ToolChoice::Auto if structured.is_none() && json_arguments => ToolMode::Auto,
        ToolChoice::None | ToolChoice::Auto | ToolChoice::Allowed { .. } => return Ok(structured),
    };
    let field = if *choice == ToolChoice::Auto { "tools" } else { "tool_choice" };
    // Nobody asked for the schemas.
    let advice = *choice == ToolChoice::Auto && !tools.iter().any(is_strict);
    let may_be_called = |tool: &&Value| match choice {
        ToolChoice::Allowed { names, .. } => names.iter().any(|name| tool["function"]["name"] == **name),
        _ => true,
    };
    let functions =
        tools.iter().filter(|tool| tool["type"] == "function").filter(may_be_called).map(|tool| {
            let function = &tool["function"];
            ToolFunction {
                name: function["name"].as_str().unwrap_or_default().to_owned(),
                parameters: Some(&function["parameters"])
                    .filter(|value| !advice && !value.is_null())
                    .cloned(),
                strict: is_strict(tool),
            }
        });
    let calls = match ToolCalls::new(functions.collect(), mode, parallel) {
        Ok(calls) => calls,
        Err(_) if advice => return Ok(None),
        Err(error) => return Err(ApiError::invalid_value(field, error.to_string())),
    };
    Ok(Some(GrammarSpec { format: AnswerFormat::Tools(calls), field }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn functions(tools: Value) -> Result<Vec<Value>, ApiError> {
        check(Some(Free(tools)), HostedTools::Refuse, &mut Unknown::default())
    }

    fn weather() -> Value {
        json!([{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}])
    }

    #[test]
    fn choices() {
        let tools = functions(weather()).unwrap();
        let choice = |of: Value, tools: &[Value]| check_choice(choice(Some(Free(of)), false)?, tools);
        assert_eq!(check_choice(None, &tools), Ok(ToolChoice::Auto));
        assert_eq!(check_choice(None, &[]), Ok(ToolChoice::None));
        assert_eq!(choice(json!("auto"), &[]), Ok(ToolChoice::None));
        assert_eq!(choice(json!("none"), &tools), Ok(ToolChoice::None));
        assert_eq!(choice(json!("required"), &tools), Ok(ToolChoice::Required));
        let named = |name: &str| json!({"type": "function", "function": {"name": name}});
        assert_eq!(choice(named("get_weather"), &tools), Ok(ToolChoice::Named("get_weather".into())));
        for (value, tools) in [
            (json!("required"), &[][..]),
            (named("other"), &tools),
            (json!("maybe"), &tools),
            (json!(3), &tools),
            (json!({"type": "custom"}), &tools),
            (json!({"type": "allowed_tools"}), &tools),
            (json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}), &tools),
            (
                json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named("other")]}}),
                &tools,
            ),
            (json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{}]}}), &tools),
        ] {
            let error = choice(value.clone(), tools).unwrap_err();
            assert!(error.param.as_deref().is_some_and(|p| p.starts_with("tool_choice")), "{value}");
        }
        let some = |mode: &str| json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named("get_weather")]}});
        for (mode, required) in [("auto", false), ("required", true)] {
            let allowed = ToolChoice::Allowed { names: vec!["get_weather".into()], required };
            assert_eq!(choice(some(mode), &tools), Ok(allowed.clone()));
            assert_eq!(grammar(&allowed, &tools, true, None, false).unwrap().unwrap().field, "tool_choice");
        }
        let tools = [json!({"type": "function", "function": {"name": "get_weather"}})];
        let forced = grammar(&ToolChoice::Required, &tools, true, None, false).unwrap().unwrap();
        assert_eq!(forced.field, "tool_choice");
        assert_eq!(grammar(&ToolChoice::Auto, &tools, true, None, false), Ok(None));
        let json = grammar(&ToolChoice::Auto, &tools, true, None, true).unwrap().unwrap();
        let function = ToolFunction { name: "get_weather".into(), parameters: None, strict: false };
        let calls = ToolCalls::new(vec![function], ToolMode::Auto, true).unwrap();
        assert_eq!(json.format, AnswerFormat::Tools(calls));
        let many: Vec<Value> =
            (0..200).map(|n| json!({"type": "function", "function": {"name": format!("f{n}")}})).collect();
        assert_eq!(
            grammar(&ToolChoice::Auto, &many, true, None, true),
            Ok(None),
            "more than a grammar can have"
        );
        let strict = json!({"type": "function", "function": {"name": "note", "strict": true}});
        let [tool] = tools.clone();
        let spec = grammar(&ToolChoice::Auto, &[tool, strict], true, None, false).unwrap().unwrap();
        let function = |name: &str, strict| ToolFunction { name: name.into(), parameters: None, strict };
        let functions = vec![function("get_weather", false), function("note", true)];
        let calls = ToolCalls::new(functions, ToolMode::Auto, true).unwrap();
        assert_eq!((spec.field, spec.format), ("tools", AnswerFormat::Tools(calls)));
    }

    /// Regression: a format beside a forced call was a 400, and clients send both in every request.
    #[test]
    fn a_format_has_nothing_to_say_where_calls_are_forced() {
        let tools = functions(weather()).unwrap();
        let format = GrammarSpec { format: AnswerFormat::Regex("a".into()), field: "response_format" };
        let narrowed = |required| ToolChoice::Allowed { names: vec!["get_weather".into()], required };
        for (choice, calls) in [
            (ToolChoice::Required, true),
            (ToolChoice::Named("get_weather".into()), true),
            (narrowed(true), true),
            (narrowed(false), false),
            (ToolChoice::Auto, false),
            (ToolChoice::None, false),
        ] {
            let spec = grammar(&choice, &tools, true, Some(format.clone()), false).unwrap().unwrap();
            assert_eq!(matches!(spec.format, AnswerFormat::Tools(_)), calls, "{choice:?}");
            assert_eq!(spec == format, !calls, "{choice:?}");
        }
    }

    #[test]
    fn choices_in_the_words_of_other_dialects() {
        let tools = functions(weather()).unwrap();
        let named = || ToolChoice::Named("get_weather".into());
        let list = json!([{"type": "function", "name": "get_weather"}]);
        for (given, meant) in [
            (json!("any"), ToolChoice::Required),
            (json!({"type": "auto"}), ToolChoice::Auto),
            (json!({"type": "none"}), ToolChoice::None),
            (json!({"type": "any"}), ToolChoice::Required),
            (json!({"type": "required"}), ToolChoice::Required),
            (json!({"type": "tool", "name": "get_weather"}), named()),
            (json!({"type": "function", "name": "get_weather"}), named()),
            (json!({"type": "function", "function": {"name": "get_weather"}}), named()),
            (
                json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": list}}),
                ToolChoice::Allowed { names: vec!["get_weather".into()], required: false },
            ),
        ] {
            for flat in [false, true] {
                let found = choice(Some(Free(given.clone())), flat).unwrap();
                assert_eq!(check_choice(found, &tools), Ok(meant.clone()), "{given}");
            }
        }
    }

    #[test]
    fn tools_that_cannot_be_declared_are_named() {
        let function = |function: Value| json!([{"type": "function", "function": function}]);
        for (tools, param) in [
            (json!({}), "tools"),
            (json!([3]), "tools[0]"),
            (json!([{}]), "tools[0].type"),
            (json!([{"type": 3, "name": "f"}]), "tools[0].type"),
            (json!([{"type": "custom"}]), "tools[0].type"),
            (json!([{"type": "fucntion", "function": {"name": "f"}}]), "tools[0].type"),
            (json!([{"type": "function"}]), "tools[0].function"),
            (json!([{"type": "function", "name": "a b"}]), "tools[0].name"),
            (json!([{"name": "a", "input_schema": []}]), "tools[0].input_schema"),
            (function(json!({})), "tools[0].function.name"),
            (function(json!({"name": 3})), "tools[0].function.name"),
            (function(json!({"name": ""})), "tools[0].function.name"),
            (function(json!({"name": "a b"})), "tools[0].function.name"),
            (function(json!({"name": "a", "parameters": []})), "tools[0].function.parameters"),
            (function(json!({"name": "a", "description": 1})), "tools[0].function.description"),
        ] {
            let error = functions(tools.clone()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{tools}: {}", error.message);
        }
        assert_eq!(check(None, HostedTools::Refuse, &mut Unknown::default()), Ok(Vec::new()));
        assert_eq!(functions(json!([])), Ok(Vec::new()));
    }

    /// Regression: Cursor declares functions as the Responses API does, and one hosted tool beside them was the end of a request.
    #[test]
    fn functions_of_other_dialects_are_functions_and_hosted_tools_are_left_out() {
        let parameters = json!({"type": "object"});
        let nested = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
        for tool in [
            nested.clone(),
            json!({"function": {"name": "f", "parameters": parameters}}),
            json!({"type": "function", "name": "f", "parameters": parameters}),
            json!({"name": "f", "parameters": parameters, "x": 1}),
            json!({"name": "f", "input_schema": parameters}),
            json!({"type": "custom", "name": "f", "input_schema": parameters}),
        ] {
            assert_eq!(functions(json!([tool])), Ok(vec![nested.clone()]), "{tool}");
        }
        let mut unknown = Unknown::default();
        let tools = json!([{"type": "web_search"}, nested, {"type": "custom", "custom": {"name": "x"}}]);
        let left = check(Some(Free(tools)), HostedTools::Ignore, &mut unknown);
        assert_eq!(left, Ok(vec![nested]));
        assert_eq!(unknown.header().as_deref(), Some("tools[].web_search, tools[].custom"));
    }
}
