//! The walk over all values of a schema: bounds, places, and what becomes of rules that cannot be
//! enforced.

use std::collections::HashSet;

use serde_json::{Map, Number, Value};

use super::document::Document;
use super::prepare::refuse_counted_keys;
use super::{
    JsonStyle, KeyPatterns, MAX_ADVICE, MAX_KEY_WORK, MAX_PATTERN_BYTES, MAX_PATTERN_PAIRS, MAX_PLACE_BYTES,
    MAX_SCHEMA_DEPTH, Unenforced, is_rule,
};
use crate::grammar::GrammarError;

/// The meaning of a value in a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// A schema or a list of schemas. A `$ref` can make one of the value of an unknown keyword.
    Schema,
    /// Schemas by name.
    Named,
    /// Data for the reply, under this keyword.
    Data(&'static str),
    /// Data without a meaning for the reply.
    Note,
}

/// Keywords whose numbers the reply has, or is compared with.
const DATA: [&str; 6] = ["const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];

impl Place {
    /// The place of a member.
    pub(super) fn below(self, key: &str) -> Self {
        match (self, key) {
            (Self::Named, _) => Self::Schema,
            (
                Self::Schema,
                "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas",
            ) => Self::Named,
            (Self::Schema, "default" | "examples") => Self::Note,
            (Self::Schema, _) => {
                let keyword = DATA.into_iter().find(|keyword| *keyword == key);
                keyword.map_or(Self::Schema, Self::Data)
            }
            (data, _) => data,
        }
    }
}

/// A walk over all values of a schema, which checks its bounds and rewrites the schemas in it.
pub(super) struct Walk<'a> {
    pub(super) style: &'a JsonStyle,
    pub(super) is_local: bool,
    pub(super) max_values: usize,
    /// Values that may still come.
    pub(super) left: usize,
    /// Different key patterns.
    pub(super) patterns: HashSet<String>,
    /// Key patterns that rules on names became.
    pub(super) written_patterns: HashSet<String>,
    /// Sum of the squares of the lengths of all keys.
    pub(super) key_lengths: usize,
    /// The schema as the client wrote it.
    pub(super) document: Document<'a>,
    pub(super) unenforced: Unenforced,
    pub(super) steps: &'a mut usize,
    /// Keys from the root to the value.
    pub(super) path: Vec<String>,
    /// Places that some `$ref` points to.
    pub(super) references: HashSet<String>,
    /// Whether the compiler reads the value as a schema: values of unknown keywords, and definitions
    /// that nothing refers to, it does not read.
    pub(super) is_certain: bool,
    pub(super) advice: Vec<String>,
    /// Places of schemas, and the member that a copy of each requires.
    pub(super) tagged: Vec<(String, String)>,
}

impl Walk<'_> {
    pub(super) fn value(
        &mut self,
        value: &mut Value,
        place: Place,
        depth: usize,
    ) -> Result<(), GrammarError> {
        if depth > MAX_SCHEMA_DEPTH {
            return Err(GrammarError::Limit { what: "nesting of the schema", limit: MAX_SCHEMA_DEPTH });
        }
        self.left = self.left.checked_sub(1).ok_or(GrammarError::Limit {
            what: "values in the schema (structured_output.max_schema_values)",
            limit: self.max_values,
        })?;
        match (value, place) {
            (Value::Object(object), _) => {
                self.count_keys(object);
                if place == Place::Schema {
                    self.expand(object)?;
                }
                self.members(object, place, depth)?;
                match place {
                    Place::Schema => self.prepare(object),
                    Place::Named => refuse_counted_keys(object),
                    Place::Data(_) | Place::Note => Ok(()),
                }
            }
            (Value::Array(list), _) => {
                list.iter_mut().try_for_each(|value| self.value(value, place, depth + 1))
            }
            (Value::Number(number), Place::Data(keyword)) => refuse_inexact(keyword, number),
            _ => Ok(()),
        }
    }

    fn members(
        &mut self,
        object: &mut Map<String, Value>,
        place: Place,
        depth: usize,
    ) -> Result<(), GrammarError> {
        let mut lost = Vec::new();
        for (key, value) in object.iter_mut() {
            let was_certain = self.is_certain;
            self.path.push(key.clone());
            self.is_certain = self.reads(place, key, was_certain);
            let walked = self.value(value, place.below(key), depth + 1);
            self.is_certain = was_certain;
            self.path.pop();
            match walked {
                Err(GrammarError::Schema(_))
                    if matches!((place, place.below(key)), (Place::Schema, Place::Data(_)))
                        && self.unenforced == Unenforced::Advice =>
                {
                    lost.push(key.clone());
                }
                walked => walked?,
            }
        }
        for key in lost {
            object.shift_remove(&key);
            self.advise(&key);
        }
        Ok(())
    }

    /// Whether the compiler reads the value at the end of the path as a schema, where it reads the
    /// one around it or not.
    fn reads(&self, place: Place, key: &str, around: bool) -> bool {
        let inside = match place {
            Place::Schema => is_rule(key),
            // The value of `$defs` itself, and what else has names.
            Place::Named => {
                !matches!(self.path.iter().rev().nth(1).map(String::as_str), Some("$defs" | "definitions"))
            }
            Place::Data(_) | Place::Note => true,
        };
        if around && inside {
            return true;
        }
        let escaped = |key: &String| format!("/{}", key.replace('~', "~0").replace('/', "~1"));
        let bytes: usize = self.path.iter().map(String::len).sum();
        !self.references.is_empty()
            && bytes <= MAX_PLACE_BYTES
            && self.references.contains(&self.path.iter().map(escaped).collect::<String>())
    }

    /// Names a rule of the schema at the end of the path as not enforced.
    pub(super) fn advise(&mut self, keyword: &str) {
        if self.advice.len() < MAX_ADVICE && self.is_certain {
            let place = self.place(keyword);
            self.advice.push(place);
        }
    }

    fn place(&self, keyword: &str) -> String {
        let mut place = self.path.join(".");
        if !place.is_empty() {
            place.push('.');
        }
        place + keyword
    }

    /// What becomes of a rule that cannot be enforced. Returns the value that stays.
    pub(super) fn unenforced(
        &mut self,
        keyword: &str,
        value: Value,
        why: &str,
    ) -> Result<Option<Value>, GrammarError> {
        match self.unenforced {
            Unenforced::Advice => {
                self.advise(keyword);
                Ok(None)
            }
            Unenforced::Refused if self.is_certain => {
                Err(GrammarError::Schema(format!("`{}`: {why}", self.place(keyword))))
            }
            // The compiler refuses it where it comes to it after all.
            Unenforced::Refused => Ok(Some(value)),
        }
    }

    /// Counts keys and key patterns in whatever place: a `$ref` may lead to it.
    fn count_keys(&mut self, object: &Map<String, Value>) {
        let required = object.get("required").and_then(Value::as_array).into_iter().flatten();
        let keys = object.keys().map(String::as_str).chain(required.filter_map(Value::as_str));
        let squares = keys.map(|key| key.len().saturating_mul(key.len()));
        self.key_lengths = squares.fold(self.key_lengths, usize::saturating_add);
        // A member that is only called so is a schema, in which some keyword has another value.
        let is_schema = |value: &Value| value.is_object() || value.is_boolean();
        if let Some(Value::Object(patterns)) = object.get("patternProperties")
            && patterns.values().all(is_schema)
        {
            self.patterns.extend(patterns.keys().cloned());
        }
    }

    /// The key patterns of the request so far, with those of this schema.
    pub(super) fn key_patterns(&self, before: KeyPatterns) -> Result<KeyPatterns, GrammarError> {
        let count = self.patterns.union(&self.written_patterns).count();
        let pairs = before.pairs + count * count.saturating_sub(1) / 2;
        let bytes = before.bytes + self.patterns.iter().map(String::len).sum::<usize>();
        let work = before.work.saturating_add(count.saturating_mul(self.key_lengths));
        for (what, value, limit) in [
            ("pairs of different patterns in `patternProperties`", pairs, MAX_PATTERN_PAIRS),
            ("bytes of patterns in `patternProperties`", bytes, MAX_PATTERN_BYTES),
            ("bytes of keys, squared and times the patterns in `patternProperties`", work, MAX_KEY_WORK),
        ] {
            if value > limit {
                return Err(GrammarError::Limit { what, limit });
            }
        }
        Ok(KeyPatterns { pairs, bytes, work })
    }
}

/// Refuses an integer that the compiler does not keep: it reads numbers as 64-bit floats, and steps
/// from an exclusive bound to its neighbour.
fn refuse_inexact(keyword: &str, number: &Number) -> Result<(), GrammarError> {
    let integer = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    let neighbour = match keyword {
        "exclusiveMinimum" => 1,
        "exclusiveMaximum" => -1,
        _ => 0,
    };
    // The largest integer of 64 bits is kept, because the conversion back saturates.
    let is_exact = |integer: i128| integer as f64 as i128 == integer || integer == i128::from(i64::MAX);
    match integer {
        Some(integer) if !(is_exact(integer) && is_exact(integer + neighbour)) => {
            Err(GrammarError::Schema(format!(
                "`{keyword}` has the integer {integer}, which a 64-bit float does not hold; send such numbers as strings"
            )))
        }
        _ => Ok(()),
    }
}
