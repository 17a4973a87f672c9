//! Tools that the client knows in another form than the model. The model calls functions; the client
//! reads a call in the form of its own declaration.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::{Value, json};

use super::ApiError;
use super::values::Free;

/// The argument that holds the whole input of a custom tool.
const INPUT: &str = "input";

/// The kind of a tool in its client's declaration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ToolKind {
    /// Arguments are a JSON object.
    Function,
    /// `custom`: the input is a text.
    Custom,
    /// `tool_search` that the client runs: arguments are an object, and the result is more tools.
    Search,
}

/// A tool in the words of its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClientTool {
    pub(super) kind: ToolKind,
    /// The namespace of the declaration.
    pub(super) namespace: Option<String>,
    /// The name in that namespace.
    pub(super) name: String,
}

/// The tools that are not plain functions, by the name of the function that the model calls.
#[derive(Debug, Clone, Default)]
pub(super) struct ClientTools(HashMap<String, ClientTool>);

impl ClientTools {
    /// Adds a tool that the model calls `function`.
    pub(super) fn add(&mut self, function: String, tool: ClientTool) {
        self.0.insert(function, tool);
    }

    /// Whether `function` stands for another tool.
    pub(super) fn has(&self, function: &str) -> bool {
        self.0.contains_key(function)
    }

    /// Whether `function` stands for a custom tool.
    pub(super) fn is_custom(&self, function: &str) -> bool {
        self.0.get(function).is_some_and(|tool| tool.kind == ToolKind::Custom)
    }

    /// The client's tool behind a function that the model calls.
    pub(super) fn of(&self, function: &str) -> ClientTool {
        self.0.get(function).cloned().unwrap_or_else(|| ClientTool {
            kind: ToolKind::Function,
            namespace: None,
            name: function.to_owned(),
        })
    }
}

/// The name of the function for a tool of a namespace, unique where the pair is. `functions` is the
/// namespace of all tools without one. The form is the one that Codex gives to names without a place for
/// the namespace.
pub(super) fn function_name(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        None | Some("" | "functions") => name.to_owned(),
        Some(namespace) => {
            format!("{}__{}", namespace.trim_end_matches('_'), name.trim_start_matches('_'))
        }
    }
}

/// The function for a custom tool: one text argument. A grammar becomes part of the description, as the
/// only place that tells the model of it.
///
/// `custom`: `name`, `description` and `format` of the declaration. `name`: that of the function.
pub(super) fn function_of_custom(name: &str, custom: &Value) -> Value {
    let format = &custom["format"];
    let grammar = if format["grammar"].is_object() { &format["grammar"] } else { format };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let description = match (text(&custom["description"]), text(&grammar["definition"])) {
        (_, definition) if definition.is_empty() => custom["description"].clone(),
        (description, definition) => {
            let syntax = grammar["syntax"].as_str().unwrap_or("lark");
            format!("{description}\n\n`{INPUT}` must match this {syntax} grammar:\n{definition}")
                .trim_start()
                .into()
        }
    };
    json!({"name": name, "description": description, "parameters": {
        "type": "object",
        "properties": {INPUT: {"type": "string", "description": "The whole input of the tool, as plain text."}},
        "required": [INPUT], "additionalProperties": false}})
}

/// The arguments of a function that stands for a custom tool.
pub(super) fn arguments_of(input: &str) -> String {
    json!({INPUT: input}).to_string()
}

/// The input of a custom tool in the arguments of its function. Arguments of another form, such as those of
/// a reply that was cut off, are the input as they stand.
pub(super) fn input_of(arguments: &str) -> Cow<'_, str> {
    match serde_json::from_str::<Value>(arguments).ok().as_mut().and_then(|value| value.get_mut(INPUT)) {
        Some(Value::String(input)) => Cow::Owned(std::mem::take(input)),
        _ => Cow::Borrowed(arguments),
    }
}

/// Turns chat's custom tools, and a choice of one, into functions. What has not the form of a list of tools is
/// left to the reader of functions.
pub(super) fn take_custom(
    tools: &mut Option<Free>,
    choice: &mut Option<Free>,
) -> Result<ClientTools, ApiError> {
    let mut client = ClientTools::default();
    let tools =
        tools.as_mut().and_then(|Free(tools)| tools.as_array_mut()).map_or(&mut [][..], |tools| tools);
    for at in (0..tools.len()).filter(|&at| tools[at]["type"] == "custom").collect::<Vec<_>>() {
        let custom = &tools[at]["custom"];
        let name =
            custom["name"].as_str().ok_or_else(|| ApiError::missing(format!("tools[{at}].custom.name")))?;
        let name = name.to_owned();
        if client.has(&name) || tools.iter().any(|tool| tool["function"]["name"] == *name) {
            let message = "two tools have this name; rename one of them";
            return Err(ApiError::invalid_value(format!("tools[{at}].custom.name"), message));
        }
        let function = function_of_custom(&name, custom);
        tools[at] = json!({"type": "function", "function": function});
        client.add(name.clone(), ClientTool { kind: ToolKind::Custom, namespace: None, name });
    }
    let plain = |choice: &mut Value| {
        if choice["type"] == "custom" {
            *choice = json!({"type": "function", "function": {"name": choice["custom"]["name"]}});
        }
    };
    if let Some(Free(choice)) = choice {
        if choice.is_object() {
            plain(choice);
        }
        let allowed = choice.pointer_mut("/allowed_tools/tools").and_then(Value::as_array_mut);
        allowed.into_iter().flatten().filter(|tool| tool.is_object()).for_each(plain);
    }
    Ok(client)
}

/// Turns the calls of custom tools in a message into calls of their functions.
pub(super) fn plain_calls(calls: &mut Value) {
    for call in calls.as_array_mut().into_iter().flatten().filter(|call| call["type"] == "custom") {
        if let (Some(name), Some(input)) = (call["custom"]["name"].as_str(), call["custom"]["input"].as_str())
        {
            let function = json!({"name": name, "arguments": arguments_of(input)});
            *call = json!({"id": call["id"], "type": "function", "function": function});
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_custom_tools_input_survives_its_function() {
        for input in ["", "*** Begin Patch\n-\"a\\b\"\n+é\u{1}\n", "{\"input\": 1}"] {
            assert_eq!(input_of(&arguments_of(input)), input);
        }
        for arguments in ["{\"input\": 1}", "{\"inp", "plain text", ""] {
            assert_eq!(input_of(arguments), arguments, "nothing is lost");
        }
    }

    #[test]
    fn a_grammar_stands_in_the_description() {
        let lark = json!({"type": "grammar", "syntax": "lark", "definition": "start: /.+/"});
        for format in [lark.clone(), json!({"type": "grammar", "grammar": lark})] {
            let function = function_of_custom("f", &json!({"description": "Does.", "format": format}));
            let description = function["description"].as_str().unwrap();
            assert!(
                description.starts_with("Does.\n\n") && description.ends_with("start: /.+/"),
                "{description}"
            );
        }
        let plain = function_of_custom("f", &json!({"description": "Does.", "format": {"type": "text"}}));
        assert_eq!(plain["description"], "Does.");
    }

    #[test]
    fn names_of_a_namespace_are_one_word() {
        for (namespace, name, function) in [
            (None, "f", "f"),
            (Some("functions"), "f", "f"),
            (Some("mcp__files"), "read", "mcp__files__read"),
            (Some("mcp__files__"), "_read", "mcp__files__read"),
        ] {
            assert_eq!(function_name(namespace, name), function);
        }
    }
}
