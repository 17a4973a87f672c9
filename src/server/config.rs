//! The HTTP server's settings.

use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use crate::api::UnknownFields;

/// Where requests are taken, who may send them, and every limit in size and time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Address to listen on. The default takes requests from this machine only; 0.0.0.0 (what the container image sets)
    /// takes them from everywhere: set api_keys or a firewall then.
    pub host: String,
    /// TCP port, 0 = one that is free, printed at start.
    pub port: u16,
    /// Keys of which clients must send one as "Authorization: Bearer KEY"; none = no authentication. Also read from the
    /// file that PERIGEE_SERVER__API_KEYS_FILE names, one per line.
    pub api_keys: Vec<Secret>,
    /// Origins whose web pages may call the server ("*" = all); none = no cross-origin answers.
    pub cors_origins: Vec<String>,
    /// Most connections that are open at once; one more is closed. Larger: more memory and file descriptors under attack.
    pub max_connections: usize,
    /// Most bytes of a request's body, larger ones are answered 413. Larger: more memory per request in flight.
    pub max_body_bytes: usize,
    /// Longest time for a request's head to arrive, seconds. Larger: slow clients hold connections longer.
    pub header_read_timeout_s: f64,
    /// Longest time for a request's body to arrive, seconds. Larger: slow clients hold connections longer.
    pub body_read_timeout_s: f64,
    /// Time an idle connection stays open, seconds. Must exceed that of clients' and load balancers' pools (60 s is common),
    /// or they race with the close. Larger: idle clients hold connections longer.
    pub keep_alive_s: f64,
    /// Deadline of a request from its head to the last byte of the answer, seconds; a sequence is ended there. Larger: stuck
    /// clients hold KV blocks longer.
    pub request_timeout_s: f64,
    /// Time without an event after which a stream gets a comment, so that proxies keep it open, seconds. Larger: fewer bytes,
    /// more streams cut by proxies.
    pub sse_keep_alive_s: f64,
    /// Time that running requests get to end after SIGTERM, seconds. Larger: fewer cut streams, slower restarts.
    pub drain_timeout_s: f64,
    /// What becomes of request fields that are unknown: ignore (they are skipped, and named in the answer's header
    /// x-perigee-ignored-fields) or refuse (the request is a 400 that names the nearest known field).
    pub unknown_fields: UnknownFields,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".into(),
            port: 8000,
            api_keys: Vec::new(),
            cors_origins: Vec::new(),
            max_connections: 1024,
            max_body_bytes: 32 << 20,
            header_read_timeout_s: 10.0,
            body_read_timeout_s: 30.0,
            keep_alive_s: 75.0,
            request_timeout_s: 600.0,
            sse_keep_alive_s: 15.0,
            drain_timeout_s: 30.0,
            unknown_fields: UnknownFields::Ignore,
        }
    }
}

impl Config {
    /// Problems as (key, limit).
    pub fn validate(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        if self.host.trim().is_empty() {
            problems.push(("host", "must be an address or a host name".into()));
        }
        if self.api_keys.iter().any(|key| key.0.trim().is_empty()) {
            problems.push(("api_keys", "must not hold an empty key".into()));
        }
        // A key travels in a header: anything else could never be sent.
        if self.api_keys.iter().any(|key| !key.0.bytes().all(|b| b.is_ascii_graphic())) {
            problems.push(("api_keys", "keys must be printable ASCII without spaces".into()));
        }
        for (key, value, low, high) in [
            ("max_connections", self.max_connections, 1, 1_000_000),
            ("max_body_bytes", self.max_body_bytes, 1024, 1 << 30),
        ] {
            if !(low..=high).contains(&value) {
                problems.push((key, format!("must be from {low} to {high}")));
            }
        }
        for (key, value) in [
            ("header_read_timeout_s", self.header_read_timeout_s),
            ("body_read_timeout_s", self.body_read_timeout_s),
            ("keep_alive_s", self.keep_alive_s),
            ("request_timeout_s", self.request_timeout_s),
            ("sse_keep_alive_s", self.sse_keep_alive_s),
        ] {
            if !(0.01..=1e6).contains(&value) {
                problems.push((key, "must be from 0.01 to 1000000 seconds".into()));
            }
        }
        if !(0.0..=1e6).contains(&self.drain_timeout_s) {
            problems.push(("drain_timeout_s", "must be from 0 to 1000000 seconds".into()));
        }
        problems
    }

    /// `header_read_timeout_s`.
    pub fn header_read_timeout(&self) -> Duration {
        seconds(self.header_read_timeout_s)
    }

    /// `body_read_timeout_s`.
    pub fn body_read_timeout(&self) -> Duration {
        seconds(self.body_read_timeout_s)
    }

    /// `keep_alive_s`.
    pub fn keep_alive(&self) -> Duration {
        seconds(self.keep_alive_s)
    }

    /// `request_timeout_s`.
    pub fn request_timeout(&self) -> Duration {
        seconds(self.request_timeout_s)
    }

    /// `sse_keep_alive_s`.
    pub fn sse_keep_alive(&self) -> Duration {
        seconds(self.sse_keep_alive_s)
    }

    /// `drain_timeout_s`.
    pub fn drain_timeout(&self) -> Duration {
        seconds(self.drain_timeout_s)
    }
}

/// Validated seconds as a duration.
fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or(Duration::MAX)
}

/// A value that is never printed: `Debug` and `Serialize` give asterisks.
#[derive(Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Keeps `value`.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value itself. Compare in constant time, and never print.
    pub fn expose(&self) -> &str {
        &self.0
    }
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
