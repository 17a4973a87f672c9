//! The HTTP server's settings.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::api_key::{ApiKey, Secret};
use super::network::Network;
use crate::api::{HostedTools, UnknownFields};

/// Most API keys: each has a series of its own in the metrics.
const MAX_KEYS: usize = 1024;

/// Where requests are taken, who may send them, and every limit in size and time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Address to listen on. The default takes requests from this machine only; 0.0.0.0 (what the container image sets)
    /// takes them from everywhere: set api_keys or a firewall then.
    pub host: String,
    /// TCP port, 0 = one that is free, printed at start.
    pub port: u16,
    /// Path of a Unix socket to listen on instead of host and port; not set = TCP. A socket file
    /// that a dead process left is replaced, and the file is removed at the end.
    pub unix_socket: Option<PathBuf>,
    /// Permissions of the Unix socket, octal digits: "600" = the server's user alone, "660" = its
    /// group too.
    pub unix_socket_mode: String,
    /// PEM file with the server's certificate, followed by its intermediates; with tls_key the port speaks HTTPS alone: TLS
    /// 1.2 and 1.3, with HTTP/1.1. Not set = HTTP. A reload reads it anew.
    pub tls_certificate: Option<PathBuf>,
    /// PEM file with the private key of tls_certificate, not encrypted: PKCS#8, PKCS#1 or SEC1. A reload reads it anew.
    pub tls_key: Option<PathBuf>,
    /// PEM file with certificates of CAs; clients must then show a certificate that one of them has signed, except on
    /// the health routes. Not set = clients need none. A reload reads it anew.
    pub tls_client_ca: Option<PathBuf>,
    /// Path prefix that a proxy leaves on its requests, such as "/llm"; paths without it are
    /// answered too.
    pub root_path: String,
    /// Host names that requests may be addressed to, "*" = any; IP addresses, localhost and the value of host always may, and
    /// the health routes answer to every name. None = any name, unless the server listens on loopback only: there a web page
    /// whose name resolves to 127.0.0.1 could reach it otherwise.
    pub allowed_hosts: Vec<String>,
    /// Keys of which clients must send one as "Authorization: Bearer KEY"; none = no authentication. A key alone, or with
    /// a name and limits (0 = none) as { name = "team-a", key = "...", requests_per_minute = 60, tokens_per_minute = 100000,
    /// max_concurrent = 8, weight = 2.0 }; while requests wait, each key is served by its weight. Further entries:
    /// tokens_per_day and tokens_per_month (UTC; they need usage.directory), max_tokens (of a reply), expires = "2027-01-31",
    /// routes = ["/v1/chat/completions"]. In place of the key "sha256:" and its digest (printf %s KEY | sha256sum). Also read
    /// from the file that PERIGEE_SERVER__API_KEYS_FILE names, one entry per line.
    pub api_keys: Vec<ApiKey>,
    /// Key of the operator, beside api_keys, or its digest: opens /admin, and everything that they open, without limits. Not
    /// set: nobody may use /admin. Also read from the file that PERIGEE_SERVER__ADMIN_KEY_FILE names.
    pub admin_key: Option<Secret>,
    /// Proxies whose X-Forwarded-For is believed, as addresses or networks ("10.0.0.0/8"), "unix" = callers of the Unix socket:
    /// log lines then name the client too (forwarded_for). None = nobody's word.
    pub trusted_proxies: Vec<String>,
    /// Whether /metrics, /version, /docs and /openapi.json answer without a key where api_keys are
    /// set; the health routes always do. false = scrapers need a key.
    pub public_pages: bool,
    /// Origins whose web pages may call the server, as browsers send them (`https://app.example`; `*` = all); none = no cross-origin
    /// answers.
    pub cors_origins: Vec<String>,
    /// Most connections that are open at once; one more is answered 503, unless it asks for a health route or /metrics. Larger: more
    /// memory and file descriptors under attack.
    pub max_connections: usize,
    /// Most bytes of a request's body, as it is sent and unpacked; larger ones are answered 413. Larger: more memory per request in
    /// flight.
    pub max_body_bytes: usize,
    /// Most bytes of request bodies above 64 KiB that are read, parsed and tokenized at once, 0 =
    /// twice max_body_bytes. Room is taken as bytes arrive and are unpacked. One body that finds none is read beside it, to its end;
    /// the next ones wait for body_read_timeout_s, then they are answered 503. While requests wait for
    /// room, a body that holds some is answered 408 when less than 64 KiB of it arrive in a second.
    /// Larger: more memory, of which parsed and tokenized bodies take several times as much.
    pub max_bodies_bytes: usize,
    /// Longest time for a TLS handshake, and for a request's head to arrive, seconds. Larger: slow clients hold connections longer.
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
    /// Longest time that a request waits for the boot to end instead of being refused, seconds; 0 = none. For routers that send to a server as soon
    /// as it listens. Larger: fewer refusals after a restart, slower ones.
    pub start_wait_s: f64,
    /// Time without a request of the model after which the server drains and ends with exit code 0, seconds; 0 = never. For
    /// supervisors that start a server when there is work again (scale to zero). Larger: an idle GPU is held longer.
    pub idle_exit_s: f64,
    /// Time after SIGTERM in which requests are still taken while /health/ready says 503 already, seconds: routers and endpoint lists learn
    /// of the end with a delay, and what they send meanwhile would be refused. 0 = none; 5 to 15 behind a router or in Kubernetes.
    /// Larger: slower restarts.
    pub drain_delay_s: f64,
    /// Time that running requests get to end after SIGTERM, seconds; those that are left are
    /// answered with an error, and the exit code is 3. Larger: fewer cut streams, slower restarts.
    pub drain_timeout_s: f64,
    /// Most bytes of responses of /v1/responses that are kept in memory, with the conversations that they answer, so
    /// that previous_response_id can go on from them; the oldest make room for new ones, and each is its key's own. Half of it
    /// is for those in the background. 0 = none. Larger: more memory, and more conversations that can be gone on from.
    pub stored_responses_bytes: usize,
    /// What becomes of request fields that are unknown: ignore (they are skipped, and named in the answer's header
    /// x-perigee-ignored-fields) or refuse (the request is a 400 that names the nearest known field).
    pub unknown_fields: UnknownFields,
    /// What becomes of tools that only the service of their type can run, such as web_search: ignore (they are left out of the prompt,
    /// and named in the answer's header x-perigee-ignored-fields) or refuse (the request is a 400 that names the tool).
    pub hosted_tools: HostedTools,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".into(),
            port: 8000,
            unix_socket: None,
            unix_socket_mode: "600".into(),
            tls_certificate: None,
            tls_key: None,
            tls_client_ca: None,
            root_path: String::new(),
            allowed_hosts: Vec::new(),
            api_keys: Vec::new(),
            admin_key: None,
            trusted_proxies: Vec::new(),
            public_pages: true,
            cors_origins: Vec::new(),
            max_connections: 1024,
            max_body_bytes: 32 << 20,
            max_bodies_bytes: 0,
            header_read_timeout_s: 10.0,
            body_read_timeout_s: 30.0,
            keep_alive_s: 75.0,
            request_timeout_s: 600.0,
            sse_keep_alive_s: 15.0,
            start_wait_s: 0.0,
            idle_exit_s: 0.0,
            drain_delay_s: 0.0,
            drain_timeout_s: 30.0,
            stored_responses_bytes: 64 << 20,
            unknown_fields: UnknownFields::Ignore,
            hosted_tools: HostedTools::Ignore,
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
        if self.unix_socket.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
            problems.push(("unix_socket", "must name a file; leave it out to listen on TCP".into()));
        }
        if self.socket_mode().is_none() {
            problems.push(("unix_socket_mode", "must be three octal digits, for example \"660\"".into()));
        }
        problems.extend(self.tls_problems());
        let is_prefix = |path: &str| {
            path.starts_with('/')
                && !path.ends_with('/')
                && path.bytes().all(|b| b.is_ascii_graphic() && !b"?#%".contains(&b))
        };
        if !self.root_path.is_empty() && !is_prefix(&self.root_path) {
            problems
                .push(("root_path", "must begin with / and not end with it, for example \"/llm\"".into()));
        }
        let is_host = |name: &str| {
            name == "*"
                || (!name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic() && !b"/:*@".contains(&b)))
        };
        if !self.allowed_hosts.iter().all(|name| is_host(name)) {
            problems.push(("allowed_hosts", "must be host names without scheme and port, or \"*\"".into()));
        }
        for origin in &self.cors_origins {
            if let Some(remedy) = origin_problem(origin) {
                problems
                    .push(("cors_origins", format!("\"{origin}\" matches no browser's Origin: {remedy}")));
            }
        }
        if self.api_keys.len() > MAX_KEYS {
            problems.push(("api_keys", format!("must be at most {MAX_KEYS} keys")));
        }
        let mut names = HashSet::new();
        for (index, entry) in self.api_keys.iter().enumerate() {
            if let Some(problem) = entry.problem() {
                problems.push(("api_keys", format!("key {}: {problem}", index + 1)));
            } else if let Some(first) = self.api_keys[..index].iter().position(|other| other.key == entry.key)
            {
                // The limits of which one count would be anybody's guess.
                let problem =
                    format!("key {}: the same key as key {}; give each client its own", index + 1, first + 1);
                problems.push(("api_keys", problem));
            }
            if let Some(name) = entry.name.as_ref().filter(|name| !names.insert(*name)) {
                problems.push(("api_keys", format!("key {}: the name {name} is taken", index + 1)));
            }
        }
        if let Some(problem) = self.admin_key.as_ref().and_then(Secret::problem) {
            problems.push(("admin_key", problem.into()));
        }
        for network in &self.trusted_proxies {
            if Network::read(network).is_none() {
                let problem = format!("{network:?} is neither an address, nor ADDRESS/BITS, nor \"unix\"");
                problems.push(("trusted_proxies", problem));
            }
        }
        for (key, value, low, high) in [
            ("max_connections", self.max_connections, 1, 1_000_000),
            ("max_body_bytes", self.max_body_bytes, 1024, 1 << 30),
        ] {
            if !(low..=high).contains(&value) {
                problems.push((key, format!("must be from {low} to {high}")));
            }
        }
        let (least, most) = (self.max_body_bytes, 1 << 40);
        if self.max_bodies_bytes != 0 && !(least..=most).contains(&self.max_bodies_bytes) {
            let limit = format!("must be 0, or from server.max_body_bytes ({least}) to {most}");
            problems.push(("max_bodies_bytes", limit));
        }
        if self.stored_responses_bytes > 1 << 40 {
            problems.push(("stored_responses_bytes", format!("must be from 0 to {}", 1u64 << 40)));
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
        for (key, value) in [
            ("start_wait_s", self.start_wait_s),
            ("idle_exit_s", self.idle_exit_s),
            ("drain_delay_s", self.drain_delay_s),
            ("drain_timeout_s", self.drain_timeout_s),
        ] {
            if !(0.0..=1e6).contains(&value) {
                problems.push((key, "must be from 0 to 1000000 seconds".into()));
            }
        }
        problems
    }

    /// Settings of TLS that do not go together.
    fn tls_problems(&self) -> Option<(&'static str, String)> {
        let (certificate, key) = (self.tls_certificate.is_some(), self.tls_key.is_some());
        let lacks =
            |what: &str| format!("must be set where server.{what} is: TLS needs both files, HTTP neither");
        match (certificate, key) {
            (true, false) => Some(("tls_key", lacks("tls_certificate"))),
            (false, true) => Some(("tls_certificate", lacks("tls_key"))),
            (false, false) if self.tls_client_ca.is_some() => {
                Some(("tls_client_ca", "needs TLS: set server.tls_certificate and server.tls_key too".into()))
            }
            (true, true) if self.unix_socket.is_some() => {
                let problem = "must be left out with server.unix_socket, which this machine alone reaches";
                Some(("tls_certificate", problem.into()))
            }
            _ => None,
        }
    }

    /// Whether the port speaks HTTPS.
    pub fn has_tls(&self) -> bool {
        self.tls_certificate.is_some() && self.tls_key.is_some()
    }

    /// `max_bodies_bytes`, resolved.
    pub fn bodies_bytes(&self) -> usize {
        match self.max_bodies_bytes {
            0 => self.max_body_bytes.saturating_mul(2),
            bytes => bytes,
        }
    }

    /// `unix_socket_mode` as a number.
    pub fn socket_mode(&self) -> Option<u32> {
        let digits = self.unix_socket_mode.len() == 3;
        u32::from_str_radix(&self.unix_socket_mode, 8).ok().filter(|_| digits)
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

    /// Whether other machines can reach a server with these settings; a host name other than localhost may be such an address.
    pub fn is_exposed(&self) -> bool {
        let host = self.host.trim();
        let loopback =
            host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        self.unix_socket.is_none() && !loopback
    }

    /// Whether the address is every one that this machine has.
    pub fn is_everywhere(&self) -> bool {
        let host = self.host.trim().trim_start_matches('[').trim_end_matches(']');
        host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified())
    }

    /// `request_timeout_s`.
    pub fn request_timeout(&self) -> Duration {
        seconds(self.request_timeout_s)
    }

    /// `sse_keep_alive_s`.
    pub fn sse_keep_alive(&self) -> Duration {
        seconds(self.sse_keep_alive_s)
    }

    /// `start_wait_s`.
    pub fn start_wait(&self) -> Duration {
        seconds(self.start_wait_s)
    }

    /// `idle_exit_s`.
    pub fn idle_exit(&self) -> Duration {
        seconds(self.idle_exit_s)
    }

    /// `drain_delay_s`.
    pub fn drain_delay(&self) -> Duration {
        seconds(self.drain_delay_s)
    }

    /// `drain_timeout_s`.
    pub fn drain_timeout(&self) -> Duration {
        seconds(self.drain_timeout_s)
    }
}

/// Why no browser sends an `Origin` that is equal to an entry of `cors_origins`, and the remedy. An origin is serialized as
/// scheme and host in lower case, and the port where it is not the scheme's own (RFC 6454, section 6.2).
fn origin_problem(origin: &str) -> Option<&'static str> {
    // What a sandboxed frame sends.
    if ["*", "null"].contains(&origin) {
        return None;
    }
    let Some((scheme, rest)) = origin.split_once("://") else {
        return Some(
            "write SCHEME://HOST or SCHEME://HOST:PORT, for example \"https://app.example\", or \"*\"",
        );
    };
    let (host, port) = match rest.rsplit_once(':') {
        // The colons of an IPv6 address stand in brackets.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (rest, None),
    };
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|number| number.to_string() == port);
    let is_own_port = matches!((scheme, port), ("http", Some("80")) | ("https", Some("443")));
    let has_bad_byte =
        |part: &str| part.bytes().any(|byte| !byte.is_ascii_graphic() || b"*@?#/\\".contains(&byte));
    if rest.contains(['/', '?', '#']) {
        Some("leave out the path and the slash at the end")
    } else if origin.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Some("write it in lower case")
    } else if is_own_port {
        Some("leave out the port, which is the scheme's own")
    } else if scheme.is_empty()
        || (host.is_empty() && scheme != "file")
        || has_bad_byte(scheme)
        || has_bad_byte(host)
    {
        Some("write one host, without a pattern or a user; a name beyond ASCII in its xn-- form")
    } else if !port.is_none_or(is_port) {
        Some("the port must be a number from 0 to 65535 without leading zeros")
    } else {
        None
    }
}

/// Validated seconds as a duration.
fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or(Duration::MAX)
}
