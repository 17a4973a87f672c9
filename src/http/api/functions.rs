//! `functions` and `function_call`: what `tools` and `tool_choice` were called before.

use serde_json::{Value, json};

use super::ApiError;
use super::error::Words;
use super::values::Free;

/// What errors call the fields where the request has the older names.
pub(super) const WORDS: Words = &[("tools", "functions"), ("tool_choice", "function_call")];

/// A field that has two names.
pub(super) fn either(
    (name, value): (&str, Option<Free>),
    (older, older_value): (&'static str, Option<Free>),
) -> Result<Option<Free>, ApiError> {
    match (value, older_value) {
        (Some(_), Some(_)) => {
            Err(ApiError::invalid_value(older, format!("given together with `{name}`; use `{name}`")))
        }
        (value, older_value) => Ok(value.or(older_value)),
    }
}

/// `functions` as tools.
pub(super) fn tools(functions: Option<Free>) -> Option<Free> {
    let tool = |mut function: Value| {
        if let Value::Object(fields) = &mut function {
            fields.insert("type".to_owned(), "function".into());
        }
        function
    };
    functions.map(|Free(functions)| match functions {
        Value::Array(list) => Free(list.into_iter().map(tool).collect()),
        other => Free(other),
    })
}

/// `function_call` as a choice among tools.
pub(super) fn choice(call: Option<Free>) -> Result<Option<Free>, ApiError> {
    match call.map(|Free(call)| call) {
        None => Ok(None),
        Some(Value::Object(named)) => Ok(Some(Free(json!({"type": "function", "function": named})))),
        Some(Value::String(word)) if word == "none" || word == "auto" => Ok(Some(Free(word.into()))),
        Some(_) => Err(ApiError::invalid_value(
            "function_call",
            "allowed: none, auto, or an object with the name of a function",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_names_are_read_as_the_newer_ones() {
        let found = tools(Some(Free(json!([{"name": "f"}, 3])))).map(|Free(tools)| tools);
        assert_eq!(found, Some(json!([{"name": "f", "type": "function"}, 3])));
        let choice = |given: Value| choice(Some(Free(given))).map(|choice| choice.map(|Free(choice)| choice));
        assert_eq!(choice(json!("auto")), Ok(Some(json!("auto"))));
        assert_eq!(
            choice(json!({"name": "f"})),
            Ok(Some(json!({"type": "function", "function": {"name": "f"}})))
        );
        for wrong in [json!("required"), json!(3)] {
            assert_eq!(choice(wrong).unwrap_err().param.as_deref(), Some("function_call"));
        }
        let both = either(("tools", Some(Free(json!([])))), ("functions", Some(Free(json!([])))));
        assert_eq!(both.map(|_| ()).unwrap_err().param.as_deref(), Some("functions"));
    }
}
