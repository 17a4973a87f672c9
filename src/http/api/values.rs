//! Values of a request's fields: how each is read, bounded and described.

use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, json_schema};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use super::ApiError;

/// Most values inside one free-form field (`tools`, `chat_template_kwargs`, `tool_calls`).
pub(super) const MAX_FREE_VALUES: usize = 100_000;

/// How the description of a field begins that is accepted and means nothing.
pub(super) const IDLE: &str = "Accepted; means nothing here.";

/// The schema of a type, in the place where the type stands.
macro_rules! inline_schema {
    ($ty:ty $(where [$($generic:tt)*])?, $generator:ident => $schema:expr) => {
        impl $(<$($generic)*>)? JsonSchema for $ty {
            fn inline_schema() -> bool {
                true
            }
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($ty).into()
            }
            fn json_schema($generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                $schema
            }
        }
    };
}
pub(super) use inline_schema;

/// A field that is accepted and means nothing.
#[derive(Debug)]
pub(super) struct Idle;

impl<'de> Deserialize<'de> for Idle {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

inline_schema!(Idle, _generator => json_schema!({"description": IDLE}));

/// A list of at most `MAX` values.
#[derive(Debug, Default)]
pub(super) struct List<T, const MAX: usize>(pub(super) Vec<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for List<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ListVisitor::<T, MAX>(PhantomData)).map(List)
    }
}

inline_schema!(List<T, MAX> where [T: JsonSchema, const MAX: usize], generator => json_schema!(
    {"type": "array", "maxItems": MAX, "items": generator.subschema_for::<T>()}
));

struct ListVisitor<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for ListVisitor<T, MAX> {
    type Value = Vec<T>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = seq.next_element::<T>()? {
            if list.len() == MAX {
                return Err(A::Error::custom(format_args!("more than {MAX} entries")));
            }
            list.push(item);
        }
        Ok(list)
    }
}

/// A string, or a list of at most `MAX` values.
#[derive(Debug)]
pub(super) enum TextOr<T, const MAX: usize> {
    Text(String),
    List(Vec<T>),
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for TextOr<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V<T, const MAX: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for V<T, MAX> {
            type Value = TextOr<T, MAX>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list")
            }
            fn visit_str<E>(self, v: &str) -> Result<TextOr<T, MAX>, E> {
                Ok(TextOr::Text(v.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<TextOr<T, MAX>, A::Error> {
                ListVisitor::<T, MAX>(PhantomData).visit_seq(seq).map(TextOr::List)
            }
        }
        // The body's reader names the entries of what is read as a list.
        deserializer.deserialize_seq(V::<T, MAX>(PhantomData))
    }
}

inline_schema!(TextOr<T, MAX> where [T: JsonSchema, const MAX: usize], generator => json_schema!(
    {"anyOf": [{"type": "string"}, generator.subschema_for::<List<T, MAX>>()]}
));

/// A whole number; `4.0` counts as one, as it does for most clients' languages. The check of the field holds it to its range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Int<const LEAST: i64, const MOST: i64>(pub(super) i64);

/// A token id of some vocabulary.
pub(super) type TokenId = Int<0, MAX_U32>;

/// The range of most counts.
pub(super) const MAX_U32: i64 = u32::MAX as i64;

inline_schema!(Int<LEAST, MOST> where [const LEAST: i64, const MOST: i64], _generator => json_schema!(
    {"type": "integer", "minimum": LEAST, "maximum": MOST}
));

impl<'de, const LEAST: i64, const MOST: i64> Deserialize<'de> for Int<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = Number::deserialize(deserializer)?;
        // Beyond 2^53 a float no longer says which whole number was meant.
        let whole = |v: &f64| v.fract() == 0.0 && v.abs() <= 9_007_199_254_740_992.0;
        let value = number.as_i64().or_else(|| number.as_f64().filter(whole).map(|v| v as i64));
        value.map(Self).ok_or_else(|| {
            D::Error::custom(format_args!("{number} is not a whole number of at most 64 bits"))
        })
    }
}

/// A whole number in the range of its type.
pub(super) fn int<const LEAST: i64, const MOST: i64>(
    name: &'static str,
    value: Option<Int<LEAST, MOST>>,
) -> Result<Option<i64>, ApiError> {
    between(name, value.map(|v| v.0), LEAST, MOST)
}

/// A whole number in a range.
pub(super) fn between(
    name: &'static str,
    value: Option<i64>,
    least: i64,
    most: i64,
) -> Result<Option<i64>, ApiError> {
    match value {
        Some(v) if !(least..=most).contains(&v) => {
            Err(ApiError::invalid_value(name, format!("{v} is out of range, allowed: {least} to {most}")))
        }
        other => Ok(other),
    }
}

/// A value that is only asked whether it asks for something, as it stands in the body.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct AnyValue(Box<RawValue>);

impl AnyValue {
    /// Whether the value asks for nothing: false, zero, or empty.
    pub(super) fn is_empty(&self) -> bool {
        let text = self.0.get();
        let inside = text.strip_prefix(['[', '{']).and_then(|rest| rest.strip_suffix([']', '}']));
        matches!(text, "false" | "\"\"" | "null")
            || self.number() == Some(0.0)
            || inside.is_some_and(|inside| inside.trim_ascii().is_empty())
    }

    /// The number that it is.
    pub(super) fn number(&self) -> Option<f64> {
        self.0.get().parse().ok()
    }

    /// Whether it is this string.
    pub(super) fn is_text(&self, text: &str) -> bool {
        serde_json::from_str::<String>(self.0.get()).is_ok_and(|own| own == text)
    }
}

/// Any value, of a bounded number of parts: free-form fields must not turn a few megabytes of brackets into gigabytes.
#[derive(Debug, Clone)]
pub(super) struct Free(pub(super) Value);

inline_schema!(Free, _generator => true.into());

impl<'de> Deserialize<'de> for Free {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut left = MAX_FREE_VALUES;
        serde::de::DeserializeSeed::deserialize(FreeSeed(&mut left), deserializer).map(Free)
    }
}

struct FreeSeed<'a>(&'a mut usize);

impl<'de> serde::de::DeserializeSeed<'de> for FreeSeed<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        *self.0 = self.0.checked_sub(1).ok_or_else(|| {
            D::Error::custom(format_args!("more than {MAX_FREE_VALUES} values in one field"))
        })?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for FreeSeed<'_> {
    type Value = Value;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }
    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(Number::from_f64(v).map_or(Value::Null, Value::Number))
    }
    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = seq.next_element_seed(FreeSeed(self.0))? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value_seed(FreeSeed(self.0))?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_asks_for_nothing_where_it_is_empty() {
        let shape = |text: &str| serde_json::from_str::<AnyValue>(text).unwrap();
        for text in ["false", "0", "-0.0", "0e9", "\"\"", "[]", "{ }", "[\n]"] {
            assert!(shape(text).is_empty(), "{text}");
        }
        for text in ["true", "0.1", "\"x\"", "[null]", "{\"a\":0}", "\" \""] {
            assert!(!shape(text).is_empty(), "{text}");
        }
        assert!(shape("\"n\\u006fne\"").is_text("none") && !shape("1").is_text("1"));
    }
}
