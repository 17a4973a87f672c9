//! Names and ids of the calls in a reply.
//!
//! The native id is `functions.NAME:IDX`. Models also write it without separators, with others, with
//! the prefix twice or with an id of another API, and the name among the arguments: the function is
//! the declared one that this can mean.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::call_ids::{PREFIX, counter, native};
use super::format::ReplyFormat;
use super::mend::Mend;

/// Most bytes of an id: a longer text is none.
pub(super) const MAX_ID_BYTES: usize = 512;

/// A whole tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// `functions.NAME:IDX`.
    pub id: String,
    /// Name of the function.
    pub name: String,
    /// A JSON object, unless what the model wrote is none or was cut.
    pub arguments: String,
}

/// A call with a known id whose arguments have not been emitted.
#[derive(Debug, Clone)]
pub(super) struct PendingCall {
    /// The function that the id names; `None` if only the arguments can tell.
    pub(super) name: Option<String>,
    pub(super) number: Option<usize>,
    /// The id as the model wrote it.
    pub(super) raw: String,
    /// Arguments so far of a call whose function follows only from them.
    pub(super) collected: String,
}

/// Keys of a whole call as one JSON object: the function, and its arguments.
const NAME_KEYS: [&str; 4] = ["name", "function", "tool", "tool_name"];
const ARGUMENT_KEYS: [&str; 5] = ["arguments", "parameters", "input", "args", "params"];

impl ReplyFormat {
    /// The call named by an id. An id of the native form names its function even where none of that
    /// name is declared: the client answers the model that there is none.
    pub(super) fn pending_call(&self, raw: &str) -> PendingCall {
        let is_number = !raw.is_empty() && raw.bytes().all(|byte| byte.is_ascii_digit());
        let (before, number) = if is_number { ("", raw.parse().ok()) } else { counter(raw) };
        let native = before.strip_prefix(PREFIX).filter(|_| number.is_some());
        let name = match (self.tools.as_slice(), is_number) {
            ([only], true) => Some(only.name.clone()),
            (_, true) => None,
            ([], false) => Some(before.strip_prefix(PREFIX).unwrap_or(before).trim().to_owned()),
            _ => self.function_of(before).or_else(|| native.map(|name| name.trim().to_owned())),
        };
        let name = name.filter(|name| !name.is_empty());
        PendingCall { name, number, raw: raw.to_owned(), collected: String::new() }
    }

    /// The declared function that an id without its counter can only mean: its name, with or without
    /// the prefix, else the one name that is equal but for separators, prefixes and a counter.
    pub(super) fn function_of(&self, id: &str) -> Option<String> {
        let stripped = id.strip_prefix(PREFIX).unwrap_or(id).trim();
        for exact in [stripped, id] {
            if self.tools.iter().any(|tool| tool.name == exact) {
                return Some(exact.to_owned());
            }
        }
        let whole = letters(id);
        let bare = {
            let mut bare = &*whole;
            while let Some(rest) = bare.strip_prefix("functions").or_else(|| bare.strip_prefix("function")) {
                bare = rest;
            }
            bare.to_owned()
        };
        let last = letters(id.rsplit(['.', '/', ':']).next().unwrap_or_default());
        // With all digits at the end, then with ever fewer of them: a name can end in some.
        let counted = |text: String| {
            let digits = text.bytes().rev().take_while(u8::is_ascii_digit).count();
            (text.len() - digits..=text.len()).rev().map(move |end| text[..end].to_owned())
        };
        let mut forms = [whole, bare, last].into_iter().flat_map(counted).filter(|form| !form.is_empty());
        forms.find_map(|form| {
            let mut equal = self.tools.iter().filter(|tool| letters(&tool.name) == form);
            match (equal.next(), equal.next()) {
                (Some(only), None) => Some(only.name.clone()),
                _ => None,
            }
        })
    }

    /// Whether arguments of the function that begin with this key may be a whole call.
    pub(super) fn may_wrap(&self, name: &str, first_key: Option<&str>) -> bool {
        let key = first_key.filter(|key| NAME_KEYS.contains(key));
        let tool = self.tools.iter().find(|tool| tool.name == name);
        key.is_some_and(|key| !self.tools.is_empty() && !tool.is_some_and(|tool| tool.declares(key)))
    }

    /// The function of a call and its arguments, where the whole arguments are there; `None` if they
    /// mean no declared function.
    pub(super) fn meant_by(&self, pending: &PendingCall) -> Option<(String, String)> {
        let arguments = serde_json::from_str::<Value>(&pending.collected).ok();
        let object = arguments.as_ref().and_then(Value::as_object);
        if let Some(call) = object.and_then(|object| self.call_in(object)) {
            return Some(call);
        }
        if let Some(name) = &pending.name {
            return Some((name.clone(), pending.collected.clone()));
        }
        let keys: Vec<&String> = object.into_iter().flat_map(Map::keys).collect();
        let mut fits: Vec<_> =
            self.tools.iter().filter_map(|tool| Some((tool.distance(&keys)?, &tool.name))).collect();
        fits.sort_by_key(|(distance, _)| *distance);
        match fits.as_slice() {
            [(best, name), rest @ ..] if rest.first().is_none_or(|(next, _)| best < next) => {
                Some(((*name).clone(), pending.collected.clone()))
            }
            _ => None,
        }
    }

    /// The calls that a text writes as JSON objects: one, or an array of them.
    pub(super) fn calls_in(&self, text: &str) -> Option<Vec<(String, String)>> {
        let (mut mend, mut object) = (Mend::default(), String::new());
        mend.push(text, &mut object);
        mend.finish(&mut object);
        let calls = match serde_json::from_str(&object).ok()? {
            Value::Array(calls) => calls,
            call => vec![call],
        };
        let calls: Option<Vec<_>> = calls.iter().map(|call| self.call_in(call.as_object()?)).collect();
        calls.filter(|calls| !calls.is_empty())
    }

    /// The declared function that an object names, and its arguments, which may be text, or the rest
    /// of the object.
    fn call_in(&self, object: &Map<String, Value>) -> Option<(String, String)> {
        let (key, name) = NAME_KEYS.iter().find_map(|key| Some((*key, object.get(*key)?)))?;
        if let Some(inner) = name.as_object() {
            return self.call_in(inner);
        }
        let id = name.as_str()?;
        let name = self.function_of(counter(id).0)?;
        let arguments = match ARGUMENT_KEYS.iter().find_map(|key| object.get(*key)) {
            Some(Value::Object(arguments)) => Value::from(arguments.clone()).to_string(),
            Some(Value::String(text)) => {
                let (mut mend, mut arguments) = (Mend::new(self.containers(Some(&name))), String::new());
                mend.push(text, &mut arguments);
                mend.finish(&mut arguments);
                arguments
            }
            Some(Value::Null) => "{}".to_owned(),
            _ => {
                let tool = self.tools.iter().find(|tool| tool.name == name)?;
                if tool.declares(key) {
                    return None;
                }
                let rest =
                    object.iter().filter(|(other, _)| *other != key && *other != "id" && *other != "type");
                let rest: Map<String, Value> =
                    rest.map(|(key, value)| (key.clone(), value.clone())).collect();
                Value::from(rest).to_string()
            }
        };
        Some((name, arguments))
    }

    /// The properties of a function that are objects or arrays and no strings.
    pub(super) fn containers(&self, name: Option<&str>) -> Arc<[String]> {
        let tool = self.tools.iter().find(|tool| Some(&*tool.name) == name);
        tool.map(|tool| Arc::clone(&tool.containers)).unwrap_or_default()
    }

    /// Whether text without the usual markers is the id of a call: it has a counter, or names a
    /// declared function.
    pub(super) fn looks_like_id(&self, text: &str) -> bool {
        let text = text.trim();
        let plain = !text.is_empty() && !text.contains(char::is_whitespace);
        let (before, number) = counter(text);
        let name = before.strip_prefix(PREFIX).unwrap_or(before);
        let named = self.tools.iter().any(|tool| tool.name == name || tool.name == text);
        plain && text.len() <= MAX_ID_BYTES && (number.is_some() || named)
    }
}

/// The letters and digits of a name, in lower case.
fn letters(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
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
