//! Ids of tool calls: `functions.NAME:IDX`, where IDX counts the calls of the whole conversation.
//!
//! The prompt shows the model a call's id and never its name, so an id of another form hides the
//! called function and teaches the model to write that form. Before rendering, such ids are
//! replaced by native ones, in the calls and in the results that answer them.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde_json::Value;

/// The part of an id before the name.
pub(super) const PREFIX: &str = "functions.";

/// The native id of a call.
pub(super) fn native(name: &str, index: usize) -> String {
    format!("{PREFIX}{name}:{index}")
}

/// Splits an id at its last colon before a number: the part before, and the number.
pub(super) fn counter(id: &str) -> (&str, Option<usize>) {
    match id.rsplit_once(':') {
        Some((name, digits)) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
            (name.trim_end(), digits.parse().ok())
        }
        _ => (id, None),
    }
}

/// Messages with native call ids, and the number of calls in them.
pub(crate) fn native_ids(messages: &[Value]) -> (Cow<'_, [Value]>, usize) {
    let calls = || messages.iter().filter_map(|message| message["tool_calls"].as_array()).flatten();
    let mut taken: HashSet<String> =
        calls().filter(|call| is_native(call)).filter_map(|call| Some(call["id"].as_str()?.into())).collect();
    let count = calls().count();
    if calls().all(is_native) {
        return (Cow::Borrowed(messages), count);
    }
    let mut messages = messages.to_vec();
    let mut renamed: HashMap<String, String> = HashMap::new();
    // The number given last to a call of each name: all numbers from its index up to it are taken.
    let mut given: HashMap<String, usize> = HashMap::new();
    let mut index = 0;
    for message in &mut messages {
        if let Some(Value::Array(calls)) = message.get_mut("tool_calls") {
            for call in calls {
                let name = call["function"]["name"].as_str().unwrap_or_default().to_owned();
                let own = call["id"].as_str().unwrap_or_default().to_owned();
                if is_native(call) {
                    renamed.remove(&own);
                } else {
                    // Native ids may count differently: take the next free number.
                    let number = given.entry(name.clone()).or_default();
                    *number = index.max(*number);
                    while taken.contains(&native(&name, *number)) {
                        *number += 1;
                    }
                    let new = native(&name, *number);
                    taken.insert(new.clone());
                    call["id"] = new.clone().into();
                    renamed.insert(own, new);
                }
                index += 1;
            }
        } else if message["role"] == "tool"
            && let Some(new) = message["tool_call_id"].as_str().and_then(|id| renamed.get(id))
        {
            message["tool_call_id"] = new.clone().into();
        }
    }
    (Cow::Owned(messages), count)
}

/// Whether an id has the native form; a different name inside it is accepted.
fn is_native(call: &Value) -> bool {
    let (Some(id), Some(_)) = (call["id"].as_str(), call["function"]["name"].as_str()) else {
        // A call without an id or a name has no native id.
        return true;
    };
    matches!(counter(id), (prefixed, Some(_)) if prefixed.strip_prefix(PREFIX).is_some_and(|name| !name.is_empty()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(id: &str, name: &str) -> Value {
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}})
    }

    fn check(messages: Value, expected: &[&str]) {
        let (renamed, count) = native_ids(messages.as_array().unwrap());
        let mut ids = Vec::new();
        for message in renamed.iter() {
            ids.extend(message["tool_calls"].as_array().into_iter().flatten().map(|c| c["id"].clone()));
            ids.extend(message.get("tool_call_id").cloned());
        }
        assert_eq!(ids, expected);
        assert_eq!(
            count,
            messages.as_array().unwrap().iter().filter_map(|m| m["tool_calls"].as_array()).flatten().count()
        );
    }

    #[test]
    fn counters_are_cut_at_the_last_number() {
        assert_eq!(counter("functions.a:b:12"), ("functions.a:b", Some(12)));
        assert_eq!(counter("a-b : 3"), ("a-b : 3", None));
        assert_eq!(counter("f:"), ("f:", None));
        assert_eq!(counter("7"), ("7", None));
        assert_eq!(counter("f:99999999999999999999999"), ("f", None));
    }

    #[test]
    fn foreign_ids_are_numbered_in_order_of_appearance() {
        check(
            json!([
                {"role": "assistant", "tool_calls": [call("call_a", "f"), call("search:0", "search")]},
                {"role": "tool", "tool_call_id": "search:0"},
                {"role": "tool", "tool_call_id": "call_a"},
                {"role": "tool", "tool_call_id": "unknown"},
                {"role": "assistant", "tool_calls": [call("call_a", "g")]},
                {"role": "tool", "tool_call_id": "call_a"}
            ]),
            &[
                "functions.f:0",
                "functions.search:1",
                "functions.search:1",
                "functions.f:0",
                "unknown",
                "functions.g:2",
                "functions.g:2",
            ],
        );
    }

    /// Regression: the search for a free number restarted at every foreign id, and 28,000 calls took
    /// most of a minute.
    #[test]
    fn many_foreign_ids_beside_many_native_ones() {
        let count = 20_000;
        let calls = (0..count).map(|number| call(&format!("call_{number}"), "f"));
        let natives = (0..count).map(|number| call(&native("f", number), "f"));
        let messages = [json!({"role": "assistant", "tool_calls": calls.chain(natives).collect::<Vec<_>>()})];
        let (renamed, found) = native_ids(&messages);
        assert_eq!(found, 2 * count);
        let id = |at: usize| renamed[0]["tool_calls"][at]["id"].as_str().unwrap();
        assert_eq!(id(0), native("f", count));
        assert_eq!(id(count - 1), native("f", 2 * count - 1));
        assert_eq!(id(count), native("f", 0));
    }

    #[test]
    fn native_ids_stay() {
        check(
            json!([{"role": "assistant", "tool_calls": [call("functions.f:4", "f"), call("x", "f"), call("functions.f:1", "f")]},
                {"role": "tool", "tool_call_id": "functions.f:1"}]),
            &["functions.f:4", "functions.f:2", "functions.f:1", "functions.f:1"],
        );
        check(json!([{"role": "assistant", "tool_calls": [call("functions.g:0", "f")]}]), &["functions.g:0"]);
        let messages = [json!({"role": "user", "content": "x"})];
        assert!(matches!(native_ids(&messages), (Cow::Borrowed(_), 0)));
    }
}
