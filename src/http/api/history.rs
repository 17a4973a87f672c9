//! Earlier turns as clients write them: what they leave out of calls and results where it can mean one thing only, and the places where
//! they keep reasoning.

use serde_json::{Value, json};

use super::ApiError;

/// Calls of the last turn with calls that have no result yet: their ids and functions.
#[derive(Debug, Default)]
pub(super) struct OpenCalls(Vec<(String, String)>);

impl OpenCalls {
    /// Checks the calls of a turn, which stand at `path`, and completes them: what templates read of them must be there, or they would
    /// print nonsense into the prompt.
    pub(super) fn begin(&mut self, calls: Value, path: &str) -> Result<Value, ApiError> {
        let Value::Array(mut list) = calls else {
            return Err(ApiError::invalid_value(path, "a list of calls is expected"));
        };
        for (i, call) in list.iter_mut().enumerate() {
            complete(call, &format!("{path}[{i}]"))?;
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if !list.is_empty() {
            self.0 = list.iter().map(|call| (text(&call["id"]), text(&call["function"]["name"]))).collect();
        }
        Ok(Value::Array(list))
    }

    /// The id of the call that a tool's message at `path` answers: its own, or that of the only open call (of the function of this name,
    /// if there is one).
    pub(super) fn answer(
        &mut self,
        id: Option<String>,
        name: Option<&str>,
        path: &str,
    ) -> Result<String, ApiError> {
        let id = id.filter(|id| !id.is_empty());
        let Some(id) = id else {
            let is_named = |(_, of): &&(String, String)| Some(of.as_str()) == name;
            let named = self.0.iter().filter(is_named).count();
            let fits = |call: &&(String, String)| named == 0 || is_named(call);
            let mut open = self.0.iter().filter(fits);
            let path = format!("{path}.tool_call_id");
            return match (open.next(), open.next()) {
                (Some((id, _)), None) => {
                    let id = id.clone();
                    self.0.retain(|(other, _)| *other != id);
                    Ok(id)
                }
                (None, _) => Err(ApiError::missing(path)),
                _ => Err(ApiError::invalid_value(
                    path,
                    "required: several calls have no result yet, and this one does not say which it answers",
                )),
            };
        };
        self.0.retain(|(other, _)| *other != id);
        Ok(id)
    }

    /// The id of the call that a message of the role `function` answers: the first open one of its function.
    pub(super) fn answer_function(&mut self, name: &str) -> String {
        match self.0.iter().position(|(_, of)| of == name) {
            Some(at) => self.0.remove(at).0,
            // A conversation that begins with a result.
            None => format!("functions.{name}:0"),
        }
    }
}

/// A call in chat's form: an object with an id and a function, which has a name and arguments. `path`: its place in the body.
fn complete(call: &mut Value, path: &str) -> Result<(), ApiError> {
    // As an item of the Responses API, its fields stand beside each other.
    if !call["function"].is_object() && call["name"].is_string() {
        let function = json!({"name": call["name"], "arguments": call["arguments"]});
        *call = json!({"id": call["id"], "type": "function", "function": function});
    }
    if !call.is_object() || !call["function"]["name"].is_string() {
        return Err(ApiError::invalid_value(format!("{path}.function.name"), "a string is expected"));
    }
    if call["id"].is_null() {
        call["id"] = path.into();
    }
    if !call["id"].is_string() {
        return Err(ApiError::invalid_value(format!("{path}.id"), "a string is expected"));
    }
    let arguments = &mut call["function"]["arguments"];
    if arguments.is_null() {
        *arguments = "{}".into();
    }
    if !(arguments.is_string() || arguments.is_object()) {
        return Err(ApiError::invalid_value(
            format!("{path}.function.arguments"),
            "a string of JSON or an object is expected",
        ));
    }
    Ok(())
}

/// The reasoning that a value holds: a text, a list of texts, or what gateways keep it in (OpenRouter's `reasoning_details`, LiteLLM's
/// `thinking_blocks`, Mistral's parts of type `thinking`). What is encrypted holds none.
pub(super) fn thoughts(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(thoughts).collect(),
        Value::Object(members) => {
            let text =
                ["thinking", "reasoning", "text", "summary"].iter().find_map(|name| members.get(*name));
            text.map(thoughts).unwrap_or_default()
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_completed() {
        let whole = |id: &str, arguments: Value| json!([{"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}]);
        for (given, completed) in [
            (whole("c", json!("{\"a\": 1}")), whole("c", json!("{\"a\": 1}"))),
            (whole("c", json!({"a": 1})), whole("c", json!({"a": 1}))),
            (whole("c", Value::Null), whole("c", json!("{}"))),
            (json!([{"type": "function", "function": {"name": "f"}}]), whole("p[0]", json!("{}"))),
            (json!([{"id": "c", "name": "f", "arguments": "{}"}]), whole("c", json!("{}"))),
            (json!([]), json!([])),
        ] {
            assert_eq!(OpenCalls::default().begin(given.clone(), "p"), Ok(completed), "{given}");
        }
        for (given, param) in [
            (json!({}), "p"),
            (json!([3]), "p[0].function.name"),
            (json!([{}]), "p[0].function.name"),
            (json!([{"id": 3, "function": {"name": "f"}}]), "p[0].id"),
            (json!([{"id": "c", "function": {"name": "f", "arguments": 3}}]), "p[0].function.arguments"),
        ] {
            let error = OpenCalls::default().begin(given.clone(), "p").unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{given}");
        }
    }

    #[test]
    fn a_result_without_an_id_answers_the_only_call_that_it_can() {
        let call = |id: &str, name: &str| json!({"id": id, "function": {"name": name, "arguments": "{}"}});
        let mut open = OpenCalls::default();
        assert_eq!(open.answer(None, None, "m").unwrap_err().param.as_deref(), Some("m.tool_call_id"));
        open.begin(json!([call("a", "f"), call("b", "g"), call("c", "g")]), "p").unwrap();
        assert_eq!(open.answer(None, Some("f"), "m"), Ok("a".into()));
        assert_eq!(open.answer(None, Some("g"), "m").unwrap_err().code, "invalid_value");
        assert_eq!(open.answer(Some("b".into()), None, "m"), Ok("b".into()));
        assert_eq!(open.answer(Some(String::new()), Some("of no call"), "m"), Ok("c".into()));
        assert!(open.answer(None, Some("g"), "m").is_err(), "every call has its result");
        assert_eq!(open.answer(Some("x".into()), None, "m"), Ok("x".into()), "of a turn that is not there");
        open.begin(json!([call("a", "f"), call("b", "f")]), "p").unwrap();
        let answered = ["f", "f", "f"].map(|name| open.answer_function(name));
        assert_eq!(answered, ["a", "b", "functions.f:0"]);
    }

    #[test]
    fn reasoning_is_found_where_gateways_keep_it() {
        for kept in [
            json!("hm"),
            json!([{"type": "reasoning.text", "text": "h", "signature": "s"}, {"type": "reasoning.encrypted", "data": "x"},
                {"type": "reasoning.summary", "summary": "m"}]),
            json!([{"type": "thinking", "thinking": "hm", "signature": "s"}]),
            json!({"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}),
            json!({"type": "reasoning", "text": "hm"}),
        ] {
            assert_eq!(thoughts(&kept), "hm", "{kept}");
        }
        assert_eq!(thoughts(&json!([3, null])), "");
    }
}
