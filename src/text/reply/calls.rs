//! Names and ids of the calls in a reply.

use std::collections::HashSet;

use serde_json::Value;

use super::call_ids::{PREFIX, counter, native};
use super::format::ReplyFormat;

/// A whole tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// `functions.NAME:IDX`.
    pub id: String,
    /// Name of the function.
    pub name: String,
    /// Arguments as the model wrote them: JSON, unless the model erred.
    pub arguments: String,
}

/// A call with a known id whose arguments have not been emitted.
#[derive(Debug, Clone)]
pub(super) struct PendingCall {
    /// `None` if the id is a bare counter and several functions are declared.
    pub(super) name: Option<String>,
    pub(super) number: Option<usize>,
    /// The id as the model wrote it.
    raw: String,
    /// Arguments so far of a call whose name follows only from them.
    pub(super) collected: String,
}

impl ReplyFormat {
    /// The call named by an id.
    pub(super) fn pending_call(&self, raw: &str) -> PendingCall {
        let is_number = !raw.is_empty() && raw.bytes().all(|byte| byte.is_ascii_digit());
        let (before, number) = if is_number { ("", raw.parse().ok()) } else { counter(raw) };
        let stripped = before.strip_prefix(PREFIX).unwrap_or(before).trim();
        let declared = |name: &str| self.tools.iter().any(|tool| tool.name == name);
        let name = match stripped {
            "" => match self.tools.as_slice() {
                [only] => Some(only.name.clone()),
                _ => None,
            },
            _ if !declared(stripped) && declared(before) => Some(before.to_owned()),
            name => Some(name.to_owned()),
        };
        PendingCall { name, number, raw: raw.to_owned(), collected: String::new() }
    }

    /// The declared function that fits the collected arguments best; if none fits, the id serves as
    /// the name, if there is one.
    pub(super) fn infer(&self, pending: &PendingCall) -> Option<String> {
        let arguments = serde_json::from_str::<Value>(&pending.collected).ok();
        let keys: Vec<&String> = match &arguments {
            Some(Value::Object(entries)) => entries.keys().collect(),
            _ => Vec::new(),
        };
        let fits = self.tools.iter().filter_map(|tool| Some((tool.distance(&keys)?, tool)));
        match fits.min_by_key(|(distance, _)| *distance) {
            Some((_, tool)) => Some(tool.name.clone()),
            None => (!pending.raw.is_empty()).then(|| pending.raw.clone()),
        }
    }

    /// Whether text without the usual markers is the id of a call: it has a counter, or names a
    /// declared function.
    pub(super) fn looks_like_id(&self, text: &str) -> bool {
        let text = text.trim();
        let plain = !text.is_empty() && !text.contains(char::is_whitespace);
        let (before, number) = counter(text);
        let name = before.strip_prefix(PREFIX).unwrap_or(before);
        plain && (number.is_some() || self.tools.iter().any(|tool| tool.name == name || tool.name == text))
    }
}

/// Ids emitted in one reply.
#[derive(Debug, Clone, Default)]
pub(super) struct UsedIds(HashSet<String>);

impl UsedIds {
    /// The native id with this number or, if the reply has that id already, with the first free
    /// number from `next`.
    pub(super) fn claim(&mut self, name: &str, number: usize, next: usize) -> String {
        let mut id = native(name, number);
        let mut next = next;
        while !self.0.insert(id.clone()) {
            id = native(name, next);
            next += 1;
        }
        id
    }
}
