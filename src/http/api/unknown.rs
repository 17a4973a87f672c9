//! Names in a request that no reader knows: kept for the answer's header, or refused.
//!
//! Bounded in number and length, and made of characters that can stand in a header, whatever the client wrote.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ApiError;

/// Most names kept of one request.
const MAX_NAMES: usize = 16;
/// Most characters of a name.
const MAX_NAME_CHARS: usize = 96;
/// Most edits between a name and the one that was meant.
const MAX_EDITS: usize = 2;

/// What becomes of fields that are unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnknownFields {
    /// They are skipped, and named in the answer's header `x-perigee-ignored-fields`.
    #[default]
    Ignore,
    /// The request is a 400.
    Refuse,
}

/// The first few unknown names of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Unknown(Vec<String>);

impl Unknown {
    /// Adds a name, once.
    pub(super) fn add(&mut self, name: &str) {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "_-.[]".contains(c) { c } else { '?' };
        let name: String = name.chars().take(MAX_NAME_CHARS).map(plain).collect();
        if self.0.len() < MAX_NAMES && !self.0.contains(&name) {
            self.0.push(name);
        }
    }

    /// The names.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// The names as a header's value; `None` if there are none.
    pub(super) fn header(&self) -> Option<String> {
        (!self.0.is_empty()).then(|| self.0.join(", "))
    }

    /// An error for the first name, where unknown ones are refused.
    pub(super) fn check(&self, rule: UnknownFields, known: &[&str]) -> Result<(), ApiError> {
        match (rule, self.0.first()) {
            (UnknownFields::Refuse, Some(name)) => Err(ApiError::unknown_field(name, nearest(name, known))),
            _ => Ok(()),
        }
    }
}

/// The known name that is the fewest edits away, if these are few.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let edits = known.iter().map(|other| (edits(name.as_bytes(), other.as_bytes()), *other));
    edits.filter(|(edits, _)| *edits <= MAX_EDITS).min().map(|(_, name)| name)
}

/// Levenshtein distance, one row at a time.
fn edits(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let cost = (diagonal + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], cost);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_few_short_and_fit_for_a_header() {
        let mut unknown = Unknown::default();
        assert_eq!(unknown.header(), None);
        unknown.add("a\r\nb: é,");
        unknown.add("a\r\nb: é,");
        (0..100).for_each(|i| unknown.add(&format!("{i}{}", "x".repeat(200))));
        let header = unknown.header().unwrap();
        assert!(header.starts_with("a??b????, 0xx") && header.is_ascii(), "{header}");
        assert_eq!(unknown.names().count(), MAX_NAMES);
        assert!(header.len() <= MAX_NAMES * (MAX_NAME_CHARS + 2));
    }

    #[test]
    fn a_refusal_names_the_field_that_was_meant() {
        let known = ["temperature", "top_p", "top_k", "n"];
        for (name, meant) in
            [("temprature", Some("temperature")), ("top-p", Some("top_p")), ("something", None)]
        {
            let mut unknown = Unknown::default();
            unknown.add(name);
            assert_eq!(unknown.check(UnknownFields::Ignore, &known), Ok(()));
            let error = unknown.check(UnknownFields::Refuse, &known).unwrap_err();
            assert_eq!((error.status, error.param.as_deref()), (400, Some(name)));
            assert_eq!(error.message.contains("did you mean"), meant.is_some(), "{}", error.message);
            assert!(error.message.contains(meant.unwrap_or(name)), "{}", error.message);
        }
    }
}
