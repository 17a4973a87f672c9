//! Keeps clients' strings from becoming control tokens.
//!
//! Before rendering, a sentinel is inserted into every string of the conversation wherever the
//! string could form a control token: inside each spelled one, and at a border where the beginning
//! or end of one could meet its other half. After rendering, every spelled control token was
//! written by the template; the sentinels are then removed. The sentinel is a private-use character
//! that is absent from the conversation, chosen per rendering, so text with other such characters
//! survives.

use std::collections::HashSet;

use minijinja::value::Value;
use serde_json::Value as Json;

use crate::tokenizer::AddedTokens;

/// Marks the strings of one rendering.
pub(super) struct Marker<'a> {
    added: &'a AddedTokens,
    sentinel: char,
}

impl<'a> Marker<'a> {
    /// A marker with a sentinel that occurs in none of `values`; `None` if they use every
    /// private-use character.
    pub(super) fn new<'v>(added: &'a AddedTokens, values: impl Iterator<Item = &'v Json>) -> Option<Self> {
        let mut used = HashSet::new();
        values.for_each(|value| collect_private(value, &mut used));
        let sentinel = ('\u{f0000}'..='\u{ffffd}')
            .chain('\u{100000}'..='\u{10fffd}')
            .chain('\u{e000}'..='\u{f8ff}')
            .find(|c| !used.contains(c))?;
        Some(Self { added, sentinel })
    }

    pub(super) fn sentinel(&self) -> char {
        self.sentinel
    }

    /// The value for the template, its strings and keys marked.
    pub(super) fn value(&self, value: &Json) -> Value {
        match value {
            Json::Null => Value::from(()),
            Json::Bool(value) => Value::from(*value),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(integer), _) => Value::from(integer),
                (None, Some(integer)) => Value::from(integer),
                (None, None) => Value::from(number.as_f64()),
            },
            Json::String(text) => Value::from(self.text(text)),
            Json::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Json::Object(entries) => {
                Value::from_pairs(entries.iter().map(|(key, value)| (self.text(key), self.value(value))))
            }
        }
    }

    fn text(&self, text: &str) -> String {
        let mut marked = String::with_capacity(text.len());
        if self.added.ends_at_start_of(text) {
            marked.push(self.sentinel);
        }
        for (at, c) in text.char_indices() {
            marked.push(c);
            if self.added.at(text, at).is_some() {
                marked.push(self.sentinel);
            }
        }
        if self.added.begins_at_end_of(text) {
            marked.push(self.sentinel);
        }
        marked
    }
}

fn collect_private(value: &Json, used: &mut HashSet<char>) {
    match value {
        Json::String(text) => private_of(text, used),
        Json::Array(items) => items.iter().for_each(|item| collect_private(item, used)),
        Json::Object(entries) => {
            for (key, value) in entries {
                private_of(key, used);
                collect_private(value, used);
            }
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

fn private_of(text: &str, used: &mut HashSet<char>) {
    // In UTF-8, characters from U+E000 on begin with a byte from 0xee on.
    if text.bytes().any(|byte| byte >= 0xee) {
        used.extend(text.chars().filter(|&c| c >= '\u{e000}'));
    }
}
