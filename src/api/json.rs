//! Reading request bodies: typed fields, errors that name the field, and bounds on what a body may make us build.
//!
//! Every field is optional at this level and `null` is the same as absent. Unknown fields are skipped without being built, and
//! their names are kept ([`Unknown`]). A wrong type is reported with its path, such as `messages[2].content[0].text`.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::unknown::Unknown;
use super::{ApiError, Limits};

/// Deepest nesting of arrays and objects in a body.
pub(super) const MAX_DEPTH: usize = 64;
/// Most values inside one free-form field (`tools`, `chat_template_kwargs`, `tool_calls`).
const MAX_FREE_VALUES: usize = 100_000;

/// An object with known fields, made by [`wire_object!`].
pub(super) trait WireObject: Default {
    /// Takes the value of `key` if the key is known; `Ok(false)` leaves the value unread.
    fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error>;

    /// Every key that means something; what describes the fields is held to this.
    fn fields() -> Vec<&'static str>;

    /// Keys that are accepted and mean nothing here.
    fn idle() -> Vec<&'static str>;

    /// Adds the unknown members of the objects inside; `path` ends in a dot or is empty.
    fn add_unknown(&self, path: &str, unknown: &mut Unknown);
}

/// Two sets of fields read from one object.
impl<A: WireObject, B: WireObject> WireObject for (A, B) {
    fn read<'de, M: MapAccess<'de>>(&mut self, key: &str, map: &mut M) -> Result<bool, M::Error> {
        Ok(self.0.read(key, map)? || self.1.read(key, map)?)
    }

    fn fields() -> Vec<&'static str> {
        [A::fields(), B::fields()].concat()
    }

    fn idle() -> Vec<&'static str> {
        [A::idle(), B::idle()].concat()
    }

    fn add_unknown(&self, path: &str, unknown: &mut Unknown) {
        self.0.add_unknown(path, unknown);
        self.1.add_unknown(path, unknown);
    }
}

/// A field's value, as far as objects with unknown members may be in it.
pub(super) trait Inside {
    /// Adds the names of those members.
    fn add_unknown(&self, _path: &str, _unknown: &mut Unknown) {}
}

impl Inside for String {}
impl Inside for bool {}
impl Inside for Num {}
impl Inside for Int {}
impl Inside for Shape {}
impl Inside for Free {}

impl<T: Inside, const MAX: usize> Inside for List<T, MAX> {
    fn add_unknown(&self, path: &str, unknown: &mut Unknown) {
        let path = format!("{path}[]");
        self.0.iter().for_each(|item| item.add_unknown(&path, unknown));
    }
}

impl<T: WireObject> Inside for Object<T> {
    fn add_unknown(&self, path: &str, unknown: &mut Unknown) {
        self.1.names().for_each(|name| unknown.add(&format!("{path}.{name}")));
        self.0.add_unknown(&format!("{path}."), unknown);
    }
}

/// Declares a struct of optional fields and how to read it from a JSON object. Fields behind `idle` are accepted and mean nothing.
macro_rules! wire_object {
    ($(#[$meta:meta])* struct $name:ident { $($field:ident: $ty:ty,)* } $(idle [$($idle:literal),* $(,)?])?) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        pub(super) struct $name { $(pub(super) $field: Option<$ty>,)* }

        impl $crate::api::json::WireObject for $name {
            fn read<'de, A: serde::de::MapAccess<'de>>(
                &mut self,
                key: &str,
                map: &mut A,
            ) -> Result<bool, A::Error> {
                $(
                    let name = $crate::api::json::plain(stringify!($field));
                    if key == name {
                        let fresh = self.$field.is_none();
                        self.$field = $crate::api::json::field(name, fresh, map)?;
                        return Ok(true);
                    }
                )*
                const IDLE: &[&str] = &[$($($idle),*)?];
                if IDLE.contains(&key) {
                    map.next_value::<serde::de::IgnoredAny>()?;
                    return Ok(true);
                }
                Ok(false)
            }

            fn fields() -> Vec<&'static str> {
                vec![$($crate::api::json::plain(stringify!($field))),*]
            }

            fn idle() -> Vec<&'static str> {
                vec![$($($idle),*)?]
            }

            fn add_unknown(&self, path: &str, unknown: &mut $crate::api::unknown::Unknown) {
                $(
                    if let Some(value) = &self.$field {
                        let path = format!("{path}{}", $crate::api::json::plain(stringify!($field)));
                        $crate::api::json::Inside::add_unknown(value, &path, unknown);
                    }
                )*
            }
        }
    };
}
pub(super) use wire_object;

/// A field's name as JSON spells it: `r#type` is `type`.
pub(super) fn plain(name: &'static str) -> &'static str {
    name.strip_prefix("r#").unwrap_or(name)
}

/// Reads one value, putting the field's name before whatever goes wrong inside it.
pub(super) fn field<'de, T: Deserialize<'de>, A: MapAccess<'de>>(
    name: &'static str,
    fresh: bool,
    map: &mut A,
) -> Result<Option<T>, A::Error> {
    if !fresh {
        return Err(A::Error::custom(format_args!(".{name}: the field is given twice")));
    }
    map.next_value::<Option<T>>().map_err(|e| A::Error::custom(join(&format!(".{name}"), &e.to_string())))
}

/// `path` before a message that may begin with a path of its own.
fn join(path: &str, message: &str) -> String {
    let inner = message.starts_with(['.', '[']);
    format!("{path}{}{message}", if inner { "" } else { ": " })
}

/// A JSON object read through its [`WireObject`], and its unknown members.
#[derive(Debug, Default)]
pub(super) struct Object<T>(pub(super) T, pub(super) Unknown);

impl<'de, T: WireObject> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V<T>(PhantomData<T>);
        impl<'de, T: WireObject> Visitor<'de> for V<T> {
            type Value = Object<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<T>, A::Error> {
                let (mut object, mut unknown) = (T::default(), Unknown::default());
                while let Some(key) = map.next_key::<String>()? {
                    if !object.read(&key, &mut map)? && map.next_value::<Option<IgnoredAny>>()?.is_some() {
                        unknown.add(&key);
                    }
                }
                Ok(Object(object, unknown))
            }
        }
        deserializer.deserialize_map(V(PhantomData))
    }
}

/// A list of at most `MAX` values.
#[derive(Debug, Default)]
pub(super) struct List<T, const MAX: usize>(pub(super) Vec<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for List<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V<T, const MAX: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for V<T, MAX> {
            type Value = Vec<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
                let mut list = Vec::new();
                loop {
                    let next = seq.next_element::<T>();
                    let next = next
                        .map_err(|e| A::Error::custom(join(&format!("[{}]", list.len()), &e.to_string())))?;
                    match next {
                        None => return Ok(list),
                        Some(_) if list.len() == MAX => {
                            return Err(A::Error::custom(format_args!("more than {MAX} entries")));
                        }
                        Some(item) => list.push(item),
                    }
                }
            }
        }
        deserializer.deserialize_seq(V::<T, MAX>(PhantomData)).map(List)
    }
}

/// A number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Num(pub(super) f64);

impl<'de> Deserialize<'de> for Num {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl Visitor<'_> for V {
            type Value = Num;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }
            fn visit_f64<E>(self, v: f64) -> Result<Num, E> {
                Ok(Num(v))
            }
            fn visit_i64<E>(self, v: i64) -> Result<Num, E> {
                Ok(Num(v as f64))
            }
            fn visit_u64<E>(self, v: u64) -> Result<Num, E> {
                Ok(Num(v as f64))
            }
        }
        deserializer.deserialize_any(V)
    }
}

/// A whole number; `4.0` counts as one, as it does for most clients' languages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Int(pub(super) i64);

impl<'de> Deserialize<'de> for Int {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl Visitor<'_> for V {
            type Value = Int;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number of at most 64 bits")
            }
            fn visit_i64<E>(self, v: i64) -> Result<Int, E> {
                Ok(Int(v))
            }
            fn visit_u64<E: serde::de::Error>(self, v: u64) -> Result<Int, E> {
                let unexpected = serde::de::Unexpected::Unsigned(v);
                i64::try_from(v).map(Int).map_err(|_| E::invalid_value(unexpected, &self))
            }
            fn visit_f64<E: serde::de::Error>(self, v: f64) -> Result<Int, E> {
                // Beyond 2^53 a float no longer says which whole number was meant.
                if v.fract() == 0.0 && v.abs() <= 9_007_199_254_740_992.0 {
                    Ok(Int(v as i64))
                } else {
                    Err(E::invalid_value(serde::de::Unexpected::Float(v), &self))
                }
            }
        }
        deserializer.deserialize_any(V)
    }
}

/// What kind of value stands in a field whose content does not matter, only whether it asks for something.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shape {
    /// true or false.
    Bool(bool),
    /// Any number.
    Number(f64),
    /// A string.
    Text(String),
    /// A list of so many values.
    List(usize),
    /// An object of so many fields.
    Object(usize),
    /// null, inside a list or object.
    Null,
}

impl Shape {
    /// Whether the value asks for nothing: false, zero, or empty.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Shape::Bool(b) => !b,
            Shape::Number(n) => *n == 0.0,
            Shape::Text(t) => t.is_empty(),
            Shape::List(n) | Shape::Object(n) => *n == 0,
            Shape::Null => true,
        }
    }

    /// Whether it is this string.
    pub(super) fn is_text(&self, text: &str) -> bool {
        matches!(self, Shape::Text(t) if t == text)
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Shape;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }
            fn visit_bool<E>(self, v: bool) -> Result<Shape, E> {
                Ok(Shape::Bool(v))
            }
            fn visit_f64<E>(self, v: f64) -> Result<Shape, E> {
                Ok(Shape::Number(v))
            }
            fn visit_i64<E>(self, v: i64) -> Result<Shape, E> {
                Ok(Shape::Number(v as f64))
            }
            fn visit_u64<E>(self, v: u64) -> Result<Shape, E> {
                Ok(Shape::Number(v as f64))
            }
            fn visit_str<E>(self, v: &str) -> Result<Shape, E> {
                Ok(Shape::Text(v.to_owned()))
            }
            fn visit_unit<E>(self) -> Result<Shape, E> {
                Ok(Shape::Null)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
                let mut count = 0;
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Shape::List(count))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Shape, A::Error> {
                let mut count = 0;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Shape::Object(count))
            }
        }
        deserializer.deserialize_any(V)
    }
}

/// Any value, of a bounded number of parts: free-form fields must not turn a few megabytes of brackets into gigabytes.
#[derive(Debug, Clone)]
pub(super) struct Free(pub(super) Value);

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

/// Reads a body as an object with the given fields, and the names that nobody knows; an error where those are refused.
pub(super) fn read<T: WireObject>(body: &[u8], limits: &Limits) -> Result<(T, Unknown), ApiError> {
    let Object(object, mut unknown) = parse_object::<T>(body)?;
    object.add_unknown("", &mut unknown);
    unknown.check(limits.unknown_fields, &[T::fields(), T::idle()].concat())?;
    Ok((object, unknown))
}

/// The fields alone.
#[cfg(test)]
pub(super) fn parse<T: WireObject>(body: &[u8]) -> Result<T, ApiError> {
    parse_object(body).map(|object| object.0)
}

/// A value of a request, made here, as the type that its field has.
pub(super) fn from_value<T: DeserializeOwned>(name: &str, value: Value) -> Result<T, ApiError> {
    serde_json::from_value(value).map_err(|error| {
        let path = join(name, &error.to_string());
        let (path, detail) = path.split_once(": ").unwrap_or((name, &path));
        ApiError::invalid_type(path, detail)
    })
}

fn parse_object<T: WireObject>(body: &[u8]) -> Result<Object<T>, ApiError> {
    let text = std::str::from_utf8(body)
        .map_err(|e| ApiError::invalid_json(format!("the body is not UTF-8: {e}; send JSON in UTF-8")))?;
    if text.trim_ascii().is_empty() {
        return Err(ApiError::invalid_json("the body is empty; send a JSON object"));
    }
    check_depth(body)?;
    match serde_json::from_str::<Object<T>>(text) {
        Ok(object) => Ok(object),
        Err(error) => Err(explain(text, &error.to_string())),
    }
}

/// Tells a body that is no JSON from one whose field has a wrong type.
fn explain(text: &str, message: &str) -> ApiError {
    if let Err(syntax) = serde_json::from_str::<IgnoredAny>(text) {
        return ApiError::invalid_json(format!("the body is not valid JSON: {syntax}"));
    }
    match message.strip_prefix('.').and_then(|m| m.split_once(": ")) {
        Some((path, detail)) => ApiError::invalid_type(path, detail),
        None => ApiError::invalid_json(format!("the body must be a JSON object: {message}")),
    }
}

/// Refuses nesting beyond [`MAX_DEPTH`] before anything is built.
fn check_depth(body: &[u8]) -> Result<(), ApiError> {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for &byte in body {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return Err(ApiError::invalid_json(format!(
                        "the body nests arrays and objects deeper than {MAX_DEPTH} levels"
                    )));
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    wire_object! {
        struct Inner { text: String, }
    }
    wire_object! {
        struct Outer { n: Int, x: Num, list: List<Object<Inner>, 3>, free: Free, shape: Shape, }
    }

    fn error(body: &str) -> (Option<String>, String) {
        let error = parse::<Outer>(body.as_bytes()).unwrap_err();
        (error.param, error.message)
    }

    #[test]
    fn reads_known_fields_and_skips_others() {
        let o: Outer = parse(
            br#" {"n": 4.0, "x": 1, "unknown": [[{}]], "list": [{"text": "a", "b": 1}], "free": {"a": [1]},
                        "shape": {"type": "text"}} "#,
        )
        .unwrap();
        assert_eq!(o.n.unwrap().0, 4);
        assert_eq!(o.x.unwrap().0, 1.0);
        assert_eq!(o.list.unwrap().0[0].0.text.as_deref(), Some("a"));
        assert_eq!(o.free.unwrap().0, serde_json::json!({"a": [1]}));
        assert_eq!(o.shape, Some(Shape::Object(1)));
        let o: Outer = parse(br#"{"n": null}"#).unwrap();
        assert!(o.n.is_none());
    }

    #[test]
    fn names_the_field_at_fault() {
        for (body, param) in [
            (r#"{"n": "4"}"#, "n"),
            (r#"{"n": 4.5}"#, "n"),
            (r#"{"n": 1e300}"#, "n"),
            (r#"{"n": 99999999999999999999}"#, "n"),
            (r#"{"x": true}"#, "x"),
            (r#"{"x": 1, "x": 2}"#, "x"),
            (r#"{"list": 3}"#, "list"),
            (r#"{"list": [{}, {"text": []}]}"#, "list[1].text"),
            (r#"{"list": [{}, 7]}"#, "list[1]"),
            (r#"{"list": [{}, {}, {}, {}]}"#, "list"),
        ] {
            let (got, message) = error(body);
            assert_eq!(got.as_deref(), Some(param), "{body}: {message}");
        }
    }

    #[test]
    fn tells_broken_json_from_wrong_types() {
        let deep = format!("{{\"a\": {}{}}}", "[".repeat(64), "]".repeat(64));
        let wide = format!("{{\"free\": [{}0]}}", "0,".repeat(MAX_FREE_VALUES));
        for (body, words) in [
            ("", "empty"),
            ("  ", "empty"),
            ("[1]", "must be a JSON object"),
            ("\"x\"", "must be a JSON object"),
            ("{\"n\": }", "not valid JSON"),
            ("{\"n\": 1", "not valid JSON"),
            ("{\"n\": 1}}", "not valid JSON"),
            (deep.as_str(), "deeper than 64"),
            (wide.as_str(), "more than 100000 values"),
        ] {
            let (_, message) = error(body);
            assert!(message.contains(words), "{}: {message}", &body[..body.len().min(40)]);
        }
        assert!(parse::<Outer>(b"{\"n\": \"\xff\"}").unwrap_err().message.contains("not UTF-8"));
    }
}
