//! An API key: a digest, never the key, with the name and the limits of the client that holds it.

use std::fmt;

use ring::digest::{SHA256, SHA256_OUTPUT_LEN};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::moment;
use crate::api::{Access, ROUTES, Route};

/// Longest name of a client, bytes.
const MAX_NAME_LEN: usize = 64;

/// Stands before the digest where settings have that in place of the secret.
const DIGEST_PREFIX: &str = "sha256:";

/// SHA-256 of a secret.
pub(super) type Digest = [u8; SHA256_OUTPUT_LEN];

/// Digest of a secret, and whether the secret could be sent in a header. The secret itself is not
/// kept; nothing of it is printed. Secrets are random and long, or a digest would not hide them.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    digest: Digest,
    sendable: bool,
}

impl Secret {
    /// Digests `secret`.
    pub fn new(secret: &str) -> Self {
        let sendable = !secret.is_empty() && secret.bytes().all(|byte| byte.is_ascii_graphic());
        Self { digest: digest(secret), sendable }
    }

    /// A secret as settings have it: itself, or `sha256:` and the 64 hexadecimal digits of its digest.
    pub fn of_setting(text: &str) -> Self {
        let Some(digits) = text.strip_prefix(DIGEST_PREFIX) else { return Self::new(text) };
        match read_hex(digits.trim()) {
            Some(digest) => Self { digest, sendable: true },
            None => Self { digest: Digest::default(), sendable: false },
        }
    }

    /// Whether this is the digest of `given`, in constant time.
    pub fn is(&self, given: &str) -> bool {
        self.is_digest(&digest(given))
    }

    pub(super) fn is_digest(&self, digest: &Digest) -> bool {
        self.digest.iter().zip(digest).fold(0, |diff, (a, b)| diff | (a ^ b)) == 0
    }

    /// What is wrong with it: a header carries printable ASCII without spaces.
    pub(super) fn problem(&self) -> Option<&'static str> {
        (!self.sendable).then_some(
            "must be printable ASCII without spaces, and not empty; or sha256: and 64 hexadecimal digits",
        )
    }
}

pub(super) fn digest(given: &str) -> Digest {
    let mut bytes = Digest::default();
    bytes.copy_from_slice(ring::digest::digest(&SHA256, given.as_bytes()).as_ref());
    bytes
}

fn read_hex(digits: &str) -> Option<Digest> {
    let mut bytes = Digest::default();
    if digits.len() != 2 * bytes.len() || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&digits[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("********")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("********")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|secret| Self::of_setting(&secret))
    }
}

impl JsonSchema for Secret {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Secret".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

/// A key of `server.api_keys`: the key alone, or a table of the key and what its client may use. In
/// an environment variable or a file of keys a table is written as in TOML: `{ name = "a", key = "b" }`.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiKey {
    /// The key.
    pub key: Secret,
    /// Name of the client in metrics, logs and errors; `None` = its number in the list.
    pub name: Option<String>,
    /// What the client may use.
    pub limits: KeyLimits,
    /// The moment from which on the key is none, UTC; `None` = never.
    pub expires: Option<String>,
    /// Names of the routes that it opens, of those that need a key; empty = all.
    pub routes: Vec<String>,
    /// Why the entry is none; reported with the other problems of the settings.
    problem: Option<String>,
}

/// What the client of a key may use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeyLimits {
    /// Requests per minute, 0 = no limit.
    pub requests_per_minute: u32,
    /// Tokens per minute, of prompts and replies, 0 = no limit.
    pub tokens_per_minute: u64,
    /// Requests at once, 0 = no limit.
    pub max_concurrent: u32,
    /// Tokens of a day, UTC, of prompts and replies, 0 = no limit.
    pub tokens_per_day: u64,
    /// Tokens of a month, UTC, likewise.
    pub tokens_per_month: u64,
    /// Most tokens of a reply, 0 = no limit of the key's own.
    pub max_tokens: u32,
    /// Service beside that of other keys while requests wait.
    pub weight: f64,
}

impl Default for KeyLimits {
    fn default() -> Self {
        Self {
            requests_per_minute: 0,
            tokens_per_minute: 0,
            max_concurrent: 0,
            tokens_per_day: 0,
            tokens_per_month: 0,
            max_tokens: 0,
            weight: 1.0,
        }
    }
}

impl KeyLimits {
    /// Whether what was used before counts, however long ago the server started.
    pub fn has_budget(&self) -> bool {
        self.tokens_per_day > 0 || self.tokens_per_month > 0
    }
}

/// The table form.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    key: String,
    name: Option<String>,
    #[serde(default)]
    requests_per_minute: u32,
    #[serde(default)]
    tokens_per_minute: u64,
    #[serde(default)]
    max_concurrent: u32,
    #[serde(default)]
    tokens_per_day: u64,
    #[serde(default)]
    tokens_per_month: u64,
    #[serde(default)]
    max_tokens: u32,
    #[serde(default = "one")]
    weight: f64,
    expires: Option<String>,
    #[serde(default)]
    routes: Vec<String>,
}

fn one() -> f64 {
    1.0
}

impl ApiKey {
    /// A key without a name and limits.
    pub fn plain(key: &str) -> Self {
        Self {
            key: Secret::of_setting(key),
            name: None,
            limits: KeyLimits::default(),
            expires: None,
            routes: Vec::new(),
            problem: None,
        }
    }

    fn of_table(table: Table) -> Self {
        let limits = KeyLimits {
            requests_per_minute: table.requests_per_minute,
            tokens_per_minute: table.tokens_per_minute,
            max_concurrent: table.max_concurrent,
            tokens_per_day: table.tokens_per_day,
            tokens_per_month: table.tokens_per_month,
            max_tokens: table.max_tokens,
            weight: table.weight,
        };
        let (expires, problem) = match table.expires {
            None => (None, None),
            Some(written) => match moment::read(&written) {
                Some(moment) => (Some(moment), None),
                None => (None, Some("expires must be a day or a time in UTC, such as \"2027-01-31\"".into())),
            },
        };
        let Table { key, name, routes, .. } = table;
        Self { key: Secret::of_setting(&key), name, limits, expires, routes, problem }
    }

    /// The routes that the key opens; empty = all that need one.
    pub(super) fn opens(&self) -> Vec<&'static str> {
        self.routes.iter().filter_map(|name| keyed_route(name)).map(|route| route.name).collect()
    }

    /// A malformed entry. Keeps only the part of the parse error that cannot contain the secret.
    fn wrong(message: &str) -> Self {
        let safe = message.starts_with("unknown field") || message.starts_with("missing field");
        let problem = if safe { message } else { "is no TOML table of a key and its limits" };
        Self { problem: Some(problem.lines().next().unwrap_or_default().into()), ..Self::plain("") }
    }

    /// What is wrong with the entry.
    pub(super) fn problem(&self) -> Option<String> {
        if let Some(problem) = &self.problem {
            return Some(problem.clone());
        }
        // A key travels in a header: anything else could never be sent.
        if let Some(problem) = self.key.problem() {
            return Some(problem.into());
        }
        if let Some(unknown) = self.routes.iter().find(|name| keyed_route(name).is_none()) {
            return Some(format!(
                "routes has {unknown:?}, which is no path that a key opens; /docs lists them, as \"/v1/chat/completions\""
            ));
        }
        let fine = |name: &str| {
            (1..=MAX_NAME_LEN).contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        if self.name.as_deref().is_some_and(|name| !fine(name)) {
            return Some(format!("a name must be 1 to {MAX_NAME_LEN} letters, digits, '-', '_' or '.'"));
        }
        let weight = self.limits.weight;
        (!(0.01..=1000.0).contains(&weight)).then(|| format!("weight is {weight}, must be from 0.01 to 1000"))
    }
}

/// The route of this name, if it is one that needs a client's key.
fn keyed_route(name: &str) -> Option<&'static Route> {
    ROUTES.iter().find(|route| route.name == name && matches!(route.access, Access::Key | Access::Model))
}

impl Serialize for ApiKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.name {
            Some(name) => serializer.serialize_str(&format!("{name}: ********")),
            None => self.key.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for ApiKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EntryVisitor)
    }
}

struct EntryVisitor;

impl<'de> de::Visitor<'de> for EntryVisitor {
    type Value = ApiKey;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key, or a table with one")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ApiKey, E> {
        if !text.trim_start().starts_with('{') {
            return Ok(ApiKey::plain(text));
        }
        let read = format!("entry = {text}").parse::<toml::Table>().ok();
        let table = read.and_then(|mut read| read.remove("entry")).map(Table::deserialize);
        Ok(match table {
            Some(Ok(table)) => ApiKey::of_table(table),
            Some(Err(error)) => ApiKey::wrong(error.message()),
            None => ApiKey::wrong(""),
        })
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<ApiKey, A::Error> {
        Ok(match Table::deserialize(de::value::MapAccessDeserializer::new(map)) {
            Ok(table) => ApiKey::of_table(table),
            Err(error) => ApiKey::wrong(&error.to_string()),
        })
    }
}

impl JsonSchema for ApiKey {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ApiKey".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let limit = json_schema!({ "type": "integer", "minimum": 0, "default": 0 });
        json_schema!({
            "anyOf": [
                { "type": "string" },
                {
                    "type": "object",
                    "properties": {
                        "key": { "type": "string" },
                        "name": { "type": "string", "maxLength": MAX_NAME_LEN },
                        "requests_per_minute": limit,
                        "tokens_per_minute": limit,
                        "max_concurrent": limit,
                        "tokens_per_day": limit,
                        "tokens_per_month": limit,
                        "max_tokens": limit,
                        "expires": { "type": "string", "description": "a day or a time in UTC" },
                        "routes": { "type": "array", "items": { "type": "string" } },
                        "weight": { "type": "number", "minimum": 0.01, "maximum": 1000, "default": 1 }
                    },
                    "required": ["key"],
                    "additionalProperties": false
                }
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> ApiKey {
        serde_json::from_value(serde_json::Value::String(text.into())).unwrap()
    }

    #[test]
    fn keys_are_compared_whole_and_never_kept() {
        let secret = Secret::new("hunter2");
        assert!(secret.is("hunter2"));
        for other in ["hunter", "hunter22", "Hunter2", ""] {
            assert!(!secret.is(other), "{other}");
        }
        let named = read("{ name = \"a\", key = \"hunter2\" }");
        let printed = format!("{secret:?} {named:?} {}", serde_json::to_string(&named).unwrap());
        assert!(!printed.contains("hunter2") && printed.contains("a: ********"), "{printed}");
    }

    #[test]
    fn a_table_has_limits_in_either_form() {
        let text = "{ name = \"team-a\", key = \"k\", requests_per_minute = 60, tokens_per_minute = 9000, max_concurrent = 2, weight = 3 }";
        let json = serde_json::json!({
            "name": "team-a", "key": "k", "requests_per_minute": 60, "tokens_per_minute": 9000,
            "max_concurrent": 2, "weight": 3.0
        });
        let of_json: ApiKey = serde_json::from_value(json).unwrap();
        assert_eq!(of_json, read(text));
        let limits = KeyLimits {
            requests_per_minute: 60,
            tokens_per_minute: 9000,
            max_concurrent: 2,
            weight: 3.0,
            ..KeyLimits::default()
        };
        assert_eq!((of_json.limits, of_json.name.as_deref()), (limits, Some("team-a")));
        assert!(of_json.key.is("k") && of_json.problem().is_none());
        assert_eq!(read("plain").limits, KeyLimits::default());
    }

    #[test]
    fn a_key_may_be_given_as_its_digest() {
        // printf %s hunter2 | sha256sum
        let hashed = "sha256:f52fbd32b2b3b86ff88ef6c490628285f482af15ddcb29541f94bcf526a3f6c7";
        assert_eq!(Secret::of_setting(hashed), Secret::new("hunter2"));
        let entry = read(&format!("{{ name = \"a\", key = \"{hashed}\" }}"));
        assert!(entry.key.is("hunter2") && !entry.key.is(hashed) && entry.problem().is_none());
        for wrong in ["sha256:", "sha256:f52f", &hashed.replace('f', "g")] {
            assert!(read(wrong).problem().is_some_and(|problem| problem.contains("64 hex")), "{wrong}");
            assert!(!read(wrong).key.is("") && !read(wrong).key.is(wrong));
        }
    }

    #[test]
    fn a_key_has_an_end_and_routes() {
        let entry = read(
            "{ key = \"k\", expires = \"2027-01-31\", routes = [\"/v1/models\", \"/v1/messages\"], max_tokens = 7, tokens_per_month = 9 }",
        );
        assert!(entry.problem().is_none() && entry.limits.has_budget() && entry.limits.max_tokens == 7);
        assert_eq!(
            (entry.expires.as_deref(), entry.opens()),
            (Some("2027-01-31"), vec!["/v1/models", "/v1/messages"])
        );
    }

    #[test]
    fn what_is_wrong_is_said_without_the_key() {
        for (text, words) in [
            ("{ key = \"hunter2\", requests_per_min = 1 }", "unknown field `requests_per_min`"),
            ("{ name = \"a\" }", "missing field `key`"),
            ("{ key = 2222222 }", "no TOML table"),
            ("{ key = \"hunter2\"", "no TOML table"),
            ("{ key = \"hunter 2\" }", "printable ASCII"),
            ("", "printable ASCII"),
            ("{ key = \"hunter2\", name = \"a b\" }", "letters"),
            ("{ key = \"hunter2\", weight = 0.0 }", "weight is 0"),
            ("{ key = \"hunter2\", expires = \"tomorrow\" }", "expires must be a day"),
            ("{ key = \"hunter2\", routes = [\"/metrics\"] }", "no path that a key opens"),
            ("{ key = \"hunter2\", routes = [\"/v1/chat\"] }", "\"/v1/chat\""),
        ] {
            let problem = read(text).problem().unwrap_or_else(|| panic!("{text} is fine"));
            assert!(problem.contains(words), "{text}: {problem}");
            assert!(!problem.contains("hunter") && !problem.contains("2222"), "{text}: {problem}");
        }
    }
}
