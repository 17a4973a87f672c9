//! Tools of Anthropic's that the client runs: a request names their type alone, and the model must be told the rest.
//!
//! Source: Anthropic's pages on the bash, text editor and memory tools.

use serde_json::{Value, json};

/// The function that a tool of this type is, under the name that the request gives it; `None` for a tool that is not the client's, or
/// that is of no use without seeing a screen.
pub(super) fn function(kind: &str, name: &Value) -> Option<Value> {
    // The type ends with the date of its version.
    let (family, _) = kind.rsplit_once('_')?;
    let string = |description: &str| json!({"type": "string", "description": description});
    let (description, required, properties) = match family {
        "bash" => (
            "Runs a command in a bash session that stays open between calls.",
            json!([]),
            json!({"command": string("The command to run."),
                "restart": {"type": "boolean", "description": "True: the session is started anew."}}),
        ),
        "text_editor" => (
            "Shows, makes and edits files.",
            json!(["command", "path"]),
            editing(&["view", "create", "str_replace", "insert"]),
        ),
        "memory" => {
            let mut properties = editing(&["view", "create", "str_replace", "insert", "delete", "rename"]);
            properties["insert_text"] = string("The text to insert.");
            properties["old_path"] = string("rename: the path until now.");
            properties["new_path"] = string("rename: the path from now on.");
            ("Keeps files below /memories between conversations.", json!(["command"]), properties)
        }
        _ => return None,
    };
    Some(json!({"name": name, "description": description,
        "parameters": {"type": "object", "properties": properties, "required": required}}))
}

/// The members of a call that edits a file.
fn editing(commands: &[&str]) -> Value {
    let string = |description: &str| json!({"type": "string", "description": description});
    json!({
        "command": {"type": "string", "enum": commands},
        "path": string("The file or folder."),
        "file_text": string("create: the content of the new file."),
        "old_str": string("str_replace: the text to replace, which must occur once."),
        "new_str": string("str_replace, insert: the new text."),
        "insert_line": {"type": "integer", "description": "insert: the line behind which the text goes; 0 is the beginning."},
        "view_range": {"type": "array", "items": {"type": "integer"}, "description": "view: the first and the last line; -1 is the end."},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_of_the_client_are_functions_and_others_are_not() {
        for (kind, member) in [
            ("bash_20250124", "restart"),
            ("text_editor_20250728", "view_range"),
            ("memory_20250818", "old_path"),
        ] {
            let function = function(kind, &json!("n")).unwrap();
            assert_eq!(function["name"], "n");
            assert!(function["parameters"]["properties"][member].is_object(), "{function}");
        }
        for kind in
            ["web_search_20250305", "computer_20250124", "code_execution_20250825", "mcp_toolset", "bash"]
        {
            assert_eq!(function(kind, &json!("n")), None, "{kind}");
        }
    }
}
