//! Reading request bodies: groups of fields, errors that name the field, and names that no group knows.
//!
//! A group is a struct whose fields are all optional; serde reads it and schemars describes it. `null` is the same as absent. Unknown
//! members are skipped without being built, and their names are kept ([`Unknown`]). A wrong type is reported with its path, such as
//! `messages[2].content[0].text`.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, SchemaGenerator};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IgnoredAny, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, Visitor, value::MapDeserializer,
};
use serde::forward_to_deserialize_any;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::unknown::Unknown;
use super::{ApiError, Limits};

/// Deepest nesting of arrays and objects in a body.
pub(super) const MAX_DEPTH: usize = 64;

/// Fields that a body may have: one group, or [`Both`] of two.
pub(super) trait Fields: Sized {
    /// Reads them.
    fn read(body: &mut Body<'_>) -> Result<Self, ApiError>;

    /// Adds their schemas, where no other group has described the name.
    fn describe(generator: &mut SchemaGenerator, properties: &mut Map<String, Value>);
}

impl<T: DeserializeOwned + JsonSchema> Fields for T {
    fn read(body: &mut Body<'_>) -> Result<Self, ApiError> {
        // A body without members is asked for the names.
        let own = if body.members.is_empty() { Vec::new() } else { names::<T>() };
        let members = body.members.iter().filter(|(name, _)| own.contains(name)).copied();
        body.track.read(MapDeserializer::new(members))
    }

    fn describe(generator: &mut SchemaGenerator, properties: &mut Map<String, Value>) {
        if let Some(Value::Object(own)) = T::json_schema(generator).remove("properties") {
            for (name, schema) in own {
                properties.entry(name).or_insert(schema);
            }
        }
    }
}

/// Two sets of fields of one object.
#[derive(Debug)]
pub(super) struct Both<A, B>(pub(super) A, pub(super) B);

impl<A: Fields, B: Fields> Fields for Both<A, B> {
    fn read(body: &mut Body<'_>) -> Result<Self, ApiError> {
        Ok(Self(A::read(body)?, B::read(body)?))
    }

    fn describe(generator: &mut SchemaGenerator, properties: &mut Map<String, Value>) {
        A::describe(generator, properties);
        B::describe(generator, properties);
    }
}

/// A body's members of known names, as they stand in it.
#[derive(Default)]
pub(super) struct Body<'a> {
    members: Vec<(&'static str, &'a RawValue)>,
    track: Track,
}

/// Reads a body with the given fields, and the names that nobody knows; an error where those are refused.
pub(super) fn read<T: Fields>(body: &[u8], limits: &Limits) -> Result<(T, Unknown), ApiError> {
    let (object, track) = parse_all::<T>(body)?;
    track.unknown.check(limits.unknown_fields, &track.known)?;
    Ok((object, track.unknown))
}

/// The names of the fields: those that are asked for in a body that has none.
pub(super) fn names<T: Fields>() -> Vec<&'static str> {
    let mut body = Body::default();
    let _ = T::read(&mut body);
    body.track.known
}

/// The fields alone.
#[cfg(test)]
pub(super) fn parse<T: Fields>(body: &[u8]) -> Result<T, ApiError> {
    parse_all(body).map(|(object, _)| object)
}

fn parse_all<T: Fields>(body: &[u8]) -> Result<(T, Track), ApiError> {
    // Some clients of Windows begin with a byte order mark, which readers may ignore (RFC 8259, section 8.1).
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let body = without_lone_surrogates(body);
    let mut body = Body::open(&body, &names::<T>())?;
    Ok((T::read(&mut body)?, body.track))
}

impl<'a> Body<'a> {
    fn open(body: &'a [u8], names: &[&'static str]) -> Result<Self, ApiError> {
        let text = std::str::from_utf8(body).map_err(|error| {
            let found = match body[error.valid_up_to()..] {
                [0xed, 0xa0..=0xbf, ..] => " (a lone surrogate, half of a character)",
                _ => "",
            };
            ApiError::invalid_json(format!("the body is not UTF-8: {error}{found}; send JSON in UTF-8"))
        })?;
        if text.trim_ascii().is_empty() {
            return Err(ApiError::invalid_json("the body is empty; send a JSON object"));
        }
        check_depth(body)?;
        let mut unknown = Unknown::default();
        let mut members =
            members_of(text, names, &mut unknown).map_err(|error| {
                match serde_json::from_str::<IgnoredAny>(text) {
                    Err(syntax) => ApiError::invalid_json(format!("the body is not valid JSON: {syntax}")),
                    Ok(_) => ApiError::invalid_json(format!("the body must be a JSON object: {error}")),
                }
            })??;
        if let Some(packed) = members.iter().find(|(name, _)| *name == EXTRA_BODY).map(|(_, value)| *value) {
            // What is no object is refused by the reader of the field.
            if let Ok(unpacked) = members_of(packed.get(), names, &mut unknown) {
                members.retain(|(name, _)| *name != EXTRA_BODY);
                for (name, value) in unpacked? {
                    if name == EXTRA_BODY || members.iter().any(|(known, _)| *known == name) {
                        return Err(ApiError::invalid_type(&format!("{EXTRA_BODY}.{name}"), TWICE));
                    }
                    members.push((name, value));
                }
            }
        }
        Ok(Self { members, track: Track { unknown, ..Track::default() } })
    }
}

/// What Python's SDK unpacks into the body, and people send as it stands.
const EXTRA_BODY: &str = "extra_body";

/// The members of an object that have known names; the outer error is no object, the inner one a name that is given twice.
fn members_of<'a>(
    text: &'a str,
    names: &[&'static str],
    unknown: &mut Unknown,
) -> serde_json::Result<Result<Vec<(&'static str, &'a RawValue)>, ApiError>> {
    let mut json = serde_json::Deserializer::from_str(text);
    let found = json.deserialize_map(MembersOf { names, unknown })?;
    json.end().map(|()| found)
}

/// Keeps the members of known names; the inner error is a name that is given twice.
struct MembersOf<'a> {
    names: &'a [&'static str],
    unknown: &'a mut Unknown,
}

impl<'de> Visitor<'de> for MembersOf<'_> {
    type Value = Result<Vec<(&'static str, &'de RawValue)>, ApiError>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members: Vec<(&'static str, &'de RawValue)> = Vec::new();
        let mut twice = None;
        while let Some(key) = map.next_key::<String>()? {
            let Some(name) = self.names.iter().find(|name| **name == key) else {
                if map.next_value::<Option<IgnoredAny>>()?.is_some() {
                    self.unknown.add(&key);
                }
                continue;
            };
            let value = map.next_value::<&'de RawValue>()?;
            if members.iter().any(|(known, _)| known == name) {
                twice = twice.or(Some(*name));
            } else if value.get() != "null" {
                members.push((name, value));
            }
        }
        Ok(match twice {
            Some(name) => Err(ApiError::invalid_type(name, TWICE)),
            None => Ok(members),
        })
    }
}

const TWICE: &str = "the field is given twice";

/// Where the value stands that is being read, the body's names that were asked for, and the unknown ones on the way. A step that fails
/// stays on the path.
#[derive(Debug, Default)]
struct Track {
    path: Vec<Step>,
    known: Vec<&'static str>,
    unknown: Unknown,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Name(&'static str),
    Entry(usize),
}

impl Track {
    fn read<'de, T: DeserializeOwned>(
        &mut self,
        inner: impl Deserializer<'de, Error = serde_json::Error>,
    ) -> Result<T, ApiError> {
        T::deserialize(Tracked { inner, track: self }).map_err(|error| {
            let mut detail = error.to_string();
            // The place is one in the text of a single member, and the path says more.
            let place = format!(" at line {} column {}", error.line(), error.column());
            detail.truncate(detail.strip_suffix(&place).unwrap_or(&detail).len());
            ApiError::invalid_type(&self.path(true), detail)
        })
    }

    /// The path, with the number of each entry or without.
    fn path(&self, numbered: bool) -> String {
        self.path.iter().fold(String::new(), |path, step| match step {
            Step::Name(name) if path.is_empty() => (*name).to_owned(),
            Step::Name(name) => path + "." + name,
            Step::Entry(at) if numbered => format!("{path}[{at}]"),
            Step::Entry(_) => path + "[]",
        })
    }
}

/// A deserializer that keeps track through structs, options and whatever is read as a list; other values have no place of their own.
struct Tracked<'t, D> {
    inner: D,
    track: &'t mut Track,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Tracked<'_, D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_any(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_ignored_any(visitor)
    }

    /// Raw values are read so.
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_newtype_struct(name, visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_option(Within { visitor, track: self.track })
    }

    /// A list, or a text where the visitor takes one.
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_any(Within { visitor, track: self.track })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        if self.track.path.is_empty() {
            self.track.known.extend(fields);
        }
        self.inner.deserialize_any(Struct { fields, within: Within { visitor, track: self.track } })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf unit unit_struct
        tuple tuple_struct map enum identifier
    }
}

/// A visitor, or another part of a reader, with the track.
struct Within<'t, V> {
    visitor: V,
    track: &'t mut Track,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Within<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(Tracked { inner, track: self.track })
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<V::Value, E> {
        self.visitor.visit_str(text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, entries: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_seq(Entries { entries, at: 0, track: self.track })
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Within<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        self.visitor.deserialize(Tracked { inner, track: self.track })
    }
}

struct Entries<'t, A> {
    entries: A,
    at: usize,
    track: &'t mut Track,
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Entries<'_, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.track.path.push(Step::Entry(self.at));
        let element = self.entries.next_element_seed(Within { visitor: seed, track: self.track })?;
        self.track.path.pop();
        self.at += 1;
        Ok(element)
    }
}

/// The visitor of a derived struct, which is shown the members that it knows.
struct Struct<'t, V> {
    fields: &'static [&'static str],
    within: Within<'t, V>,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Struct<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        let Within { visitor, track } = self.within;
        visitor.visit_map(Members { map, fields: self.fields, seen: Vec::new(), track })
    }

    fn visit_bool<E: serde::de::Error>(self, on: bool) -> Result<V::Value, E> {
        match self.fields.iter().find(|field| **field == ENABLED) {
            Some(field) => {
                self.within.visitor.visit_map(MapDeserializer::new([(*field, Flag(on))].into_iter()))
            }
            None => Err(E::invalid_type(Unexpected::Bool(on), &self)),
        }
    }
}

/// The member of an object for which a flag may stand alone.
const ENABLED: &str = "enabled";

/// The value of that member.
struct Flag(bool);

impl<E: serde::de::Error> IntoDeserializer<'_, E> for Flag {
    type Deserializer = FlagDeserializer<E>;

    fn into_deserializer(self) -> FlagDeserializer<E> {
        FlagDeserializer(self.0, PhantomData)
    }
}

struct FlagDeserializer<E>(bool, PhantomData<E>);

impl<'de, E: serde::de::Error> Deserializer<'de> for FlagDeserializer<E> {
    type Error = E;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, E> {
        visitor.visit_bool(self.0)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, E> {
        visitor.visit_some(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf unit unit_struct newtype_struct
        seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

struct Members<'t, A> {
    map: A,
    fields: &'static [&'static str],
    seen: Vec<&'static str>,
    track: &'t mut Track,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Members<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        while let Some(key) = self.map.next_key::<String>()? {
            if let Some(name) = self.fields.iter().find(|name| **name == key) {
                self.track.path.push(Step::Name(name));
                if self.seen.contains(name) {
                    return Err(A::Error::custom(TWICE));
                }
                self.seen.push(name);
                return seed.deserialize((*name).into_deserializer()).map(Some);
            }
            if self.map.next_value::<Option<IgnoredAny>>()?.is_some() {
                let path = self.track.path(false);
                self.track.unknown.add(&format!("{path}.{key}"));
            }
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        let value = self.map.next_value_seed(Within { visitor: seed, track: self.track })?;
        self.track.path.pop();
        Ok(value)
    }
}

/// The body with `\ufffd` in the place of each escaped surrogate that has no other half. Clients that cut a text by UTF-16
/// units cut characters in two, and what is left of one is no character: it is replaced as decoders of UTF-8 replace what they
/// cannot read, and positions in the body stay what they are.
fn without_lone_surrogates(body: &[u8]) -> Cow<'_, [u8]> {
    let unit = |at: usize| {
        let digits = body.get(at..at + 6)?.strip_prefix(b"\\u")?;
        digits.iter().try_fold(0, |unit, digit| Some(unit * 16 + char::from(*digit).to_digit(16)?))
    };
    let mut mended = Cow::Borrowed(body);
    let mut at = 0;
    while let Some(found) = body[at..].iter().position(|byte| *byte == b'\\') {
        at += found;
        let pair = (unit(at), unit(at + 6));
        match pair {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => at += 12,
            (Some(0xd800..=0xdfff), _) => {
                mended.to_mut()[at..at + 6].copy_from_slice(b"\\ufffd");
                at += 6;
            }
            // An escaped backslash, too, is two bytes.
            _ => at = (at + 2).min(body.len()),
        }
    }
    mended
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
    use serde::Deserialize;

    use super::super::values::{AnyValue, Free, Int, List, MAX_FREE_VALUES};
    use super::*;
    use serde_json::Number;

    #[derive(Debug, Deserialize, JsonSchema)]
    struct Inner {
        text: Option<String>,
    }
    #[derive(Debug, Deserialize, JsonSchema)]
    struct Outer {
        n: Option<Int<0, 9>>,
        x: Option<Number>,
        list: Option<List<Inner, 3>>,
        #[schemars(skip)]
        free: Option<Free>,
        #[schemars(skip)]
        shape: Option<AnyValue>,
    }

    fn error(body: &str) -> (Option<String>, String) {
        let error = parse::<Outer>(body.as_bytes()).unwrap_err();
        (error.param, error.message)
    }

    #[test]
    fn reads_known_fields_and_skips_others() {
        let body = br#" {"n": 4.0, "x": 1, "unknown": [[{}]], "list": [{"text": "a", "b": 1, "c": null}], "free": {"a": [1]},
                        "shape": {"type": "text"}} "#;
        let (o, track) = parse_all::<Outer>(body).unwrap();
        assert_eq!(o.n.unwrap().0, 4);
        assert_eq!(o.x.unwrap().as_f64(), Some(1.0));
        assert_eq!(o.list.unwrap().0[0].text.as_deref(), Some("a"));
        assert_eq!(o.free.unwrap().0, serde_json::json!({"a": [1]}));
        assert!(!o.shape.unwrap().is_empty());
        assert_eq!(track.unknown.names().collect::<Vec<_>>(), ["unknown", "list[].b"]);
        let o: Outer = parse(br#"{"n": null, "n": null}"#).unwrap();
        assert!(o.n.is_none());
        let o: Outer = parse(b"\xef\xbb\xbf{\"n\": 1}").unwrap();
        assert_eq!(o.n.unwrap().0, 1);
    }

    /// Regression: half of an emoji was "unexpected end of hex escape".
    #[test]
    fn lone_surrogates_are_replaced() {
        for (escaped, expected) in [
            (r"cut \ud83d here", "cut \u{fffd} here"),
            (r"\uDE00", "\u{fffd}"),
            (r"\ud83d\ude00", "\u{1f600}"),
            (r"\ud83d\ud83d\ude00", "\u{fffd}\u{1f600}"),
            (r"\ude00\ud83d", "\u{fffd}\u{fffd}"),
            (r"\ud83d\n", "\u{fffd}\n"),
            (r"\ud83d\u0041", "\u{fffd}A"),
            (r"\\ud83d", "\\ud83d"),
            (r"\\\ud83d", "\\\u{fffd}"),
            (r"\u00e9", "\u{e9}"),
        ] {
            for body in [
                format!(r#"{{"list": [{{"text": "{escaped}"}}]}}"#),
                format!(r#"{{"list": [{{"text": "{escaped}", "{escaped}": "{escaped}"}}], "x": 1}}"#),
            ] {
                let outer: Outer = parse(body.as_bytes()).unwrap_or_else(|error| panic!("{body}: {error:?}"));
                assert_eq!(outer.list.unwrap().0[0].text.as_deref(), Some(expected), "{body}");
            }
        }
        for body in [r#"{"list": [{"text": "\ud8"#, r#"{"list": "\"#, r#"{"list": [{"text": "\ud83"}]}"#] {
            assert!(parse::<Outer>(body.as_bytes()).is_err(), "{body}");
        }
        let raw = parse::<Outer>(b"{\"list\": [{\"text\": \"\xed\xa0\xbd\"}]}").unwrap_err();
        assert!(raw.message.contains("a lone surrogate"), "{}", raw.message);
        // Nothing is copied where there is none.
        assert!(matches!(without_lone_surrogates(br#"{"text": "\ud83d\ude00 \\ud83d"}"#), Cow::Borrowed(_)));
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
            (r#"{"list": [{"text": "a", "text": "b"}]}"#, "list[0].text"),
            (r#"{"list": [{}, 7]}"#, "list[1]"),
            (r#"{"list": [{}, {}, {}, {}]}"#, "list"),
        ] {
            let (got, message) = error(body);
            assert_eq!(got.as_deref(), Some(param), "{body}: {message}");
            assert!(!message.contains(" at line "), "{message}");
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
