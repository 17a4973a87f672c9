//! Checks that need only the head of a request: host, key, media type.

use std::net::IpAddr;

use hyper::header::{self, HeaderMap};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use hyper::{Uri, Version};

use super::Config;
use super::content_coding::Coding;
use crate::api::ApiError;

/// The host names that requests may be addressed to.
///
/// A web page can reach a server on this machine under a name of its own that resolves to
/// 127.0.0.1, and the browser then treats the answers as the page's own. Such a request carries
/// that name in its Host header. Addresses and `localhost` cannot be such names.
#[derive(Debug)]
pub(super) struct Hosts {
    /// Lower case; `None` = every name.
    names: Option<Vec<String>>,
}

impl Hosts {
    /// `loopback`: whether only this machine reaches the server.
    pub(super) fn new(config: &Config, loopback: bool) -> Self {
        let listed = &config.allowed_hosts;
        if listed.iter().any(|name| name == "*") || (listed.is_empty() && !loopback) {
            return Self { names: None };
        }
        let names = listed.iter().chain([&config.host]).map(|name| name.to_ascii_lowercase()).collect();
        Self { names: Some(names) }
    }

    /// Errors: 400 for a head without a host where HTTP demands one, 421 for a host that is not
    /// this server's. The health routes have any name: what checks them sends its own for the server, such as
    /// that of a cluster, and would take the server for dead.
    pub(super) fn check(&self, head: &Parts, is_health: bool) -> Result<(), ApiError> {
        let Some(host) = host_of(&head.uri, head.version, &head.headers)? else { return Ok(()) };
        let Some(names) = &self.names else { return Ok(()) };
        let name = host.trim_start_matches('[').trim_end_matches([']', '.']).to_ascii_lowercase();
        let local = name == "localhost" || name.ends_with(".localhost") || name.parse::<IpAddr>().is_ok();
        if local || is_health || names.contains(&name) { Ok(()) } else { Err(ApiError::wrong_host(&host)) }
    }
}

/// The host that a request is addressed to, without its port. The authority of the target takes
/// precedence over the header (RFC 9112, section 3.2.2); HTTP/1.0 needs neither.
fn host_of(uri: &Uri, version: Version, headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let mut lines = headers.get_all(header::HOST).iter();
    let (line, more) = (lines.next(), lines.next());
    if more.is_some() {
        return Err(ApiError::invalid_host("there are several Host headers"));
    }
    if line.is_none() && version >= Version::HTTP_11 {
        return Err(ApiError::invalid_host("HTTP/1.1 requests need a Host header"));
    }
    if let Some(host) = uri.host() {
        return Ok(Some(host.to_owned()));
    }
    let Some(line) = line else { return Ok(None) };
    if line.is_empty() {
        return Ok(Some(String::new()));
    }
    let authority = Authority::try_from(line.as_bytes());
    match authority {
        Ok(authority) if !line.as_bytes().contains(&b'@') => Ok(Some(authority.host().to_owned())),
        _ => Err(ApiError::invalid_host("the Host header is neither HOST nor HOST:PORT")),
    }
}

/// The key that a request carries; empty = none.
pub(super) fn key_of(headers: &HeaderMap) -> &str {
    let bearer = headers
        .get(header::AUTHORIZATION)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    // Anthropic's clients send the key in a header of their own.
    let own = headers.get("x-api-key").and_then(|v| v.to_str().ok());
    bearer.map(|(_, key)| key.trim()).or(own.map(str::trim)).unwrap_or("")
}

/// Accepts `chunked` alone as a transfer coding. hyper reads a body whose last coding is `chunked` by its chunks, and leaves the
/// codings below in place: what follows would be taken for something that it is not.
///
/// Errors: 501, as RFC 9112, section 6.1, has it for codings that are not understood; the connection ends.
pub(super) fn check_framing(headers: &HeaderMap) -> Result<(), ApiError> {
    let mut lines = headers.get_all(header::TRANSFER_ENCODING).iter();
    match (lines.next(), lines.next()) {
        (None, _) => Ok(()),
        (Some(line), None) if line.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") => Ok(()),
        _ => Err(ApiError::unsupported_transfer_encoding()),
    }
}

/// Accepts only bodies declared as JSON, packed in a known way or not at all. A browser sends the media types of forms and of plain
/// text, and bodies without a type, to any server without a preflight request; `application/json`
/// requires one (<https://fetch.spec.whatwg.org/#cors-safelisted-request-header>).
pub(super) fn check_media_type(headers: &HeaderMap) -> Result<(), ApiError> {
    Coding::of(headers)?;
    let value = headers.get(header::CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let kind = value.as_deref().and_then(|v| v.split(';').next()).unwrap_or_default();
    let kind = kind.trim().to_ascii_lowercase();
    let fine = kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"));
    if fine { Ok(()) } else { Err(ApiError::unsupported_media_type("content-type", value.as_deref())) }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn media_types() {
        let check = |kind: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            check_media_type(&headers).is_ok()
        };
        for kind in [
            "application/json",
            "application/json; charset=utf-8",
            "Application/JSON",
            "application/vnd.api+json",
        ] {
            assert!(check(kind), "{kind}");
        }
        for kind in [
            "",
            "text/plain",
            "text/json",
            "text/html",
            "multipart/form-data; boundary=x",
            "application/x-www-form-urlencoded",
            "application/octet-stream",
            "application/jsonx",
            "text/x+json",
        ] {
            assert!(!check(kind), "{kind}");
        }
        assert!(check_media_type(&HeaderMap::new()).is_err());
    }

    /// Regression: the codings below `chunked` were ignored.
    #[test]
    fn chunks_are_the_only_transfer_coding() {
        let status = |lines: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(header::TRANSFER_ENCODING, HeaderValue::from_static(line));
            }
            check_framing(&headers).err().map_or(0, |error| error.status)
        };
        for lines in [&[][..], &["chunked"], &["Chunked "]] {
            assert_eq!(status(lines), 0, "{lines:?}");
        }
        for lines in [
            &["gzip, chunked"][..],
            &["chunked, chunked"],
            &["identity, chunked"],
            &["gzip"],
            &["chunked;a=b"],
            &[""],
            &["gzip", "chunked"],
            &["chunked", "chunked"],
        ] {
            assert_eq!(status(lines), 501, "{lines:?}");
        }
    }

    /// The status for a Host header, 0 = let in.
    fn status(hosts: &Hosts, host: &'static str) -> u16 {
        let request = hyper::Request::get("/").header(header::HOST, host).body(()).unwrap();
        hosts.check(&request.into_parts().0, false).err().map_or(0, |error| error.status)
    }

    #[test]
    fn names_are_refused_where_only_this_machine_may_ask() {
        let hosts = Hosts::new(&Config::default(), true);
        for host in [
            "localhost",
            "LOCALHOST:8000",
            "localhost.",
            "a.localhost",
            "127.0.0.1:80",
            "[::1]:80",
            "10.1.2.3",
        ] {
            assert_eq!(status(&hosts, host), 0, "{host}");
        }
        for host in
            ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", ""]
        {
            assert_eq!(status(&hosts, host), 421, "{host}");
        }
        for host in ["a b", "user@localhost", "localhost/x"] {
            assert_eq!(status(&hosts, host), 400, "{host}");
        }
        assert_eq!(status(&Hosts::new(&Config::default(), false), "evil.example"), 0);
        let config = Config { allowed_hosts: vec!["LLM.example".into()], ..Config::default() };
        for loopback in [false, true] {
            let hosts = Hosts::new(&config, loopback);
            assert_eq!((status(&hosts, "llm.Example:1"), status(&hosts, "x.example")), (0, 421));
        }
        let any = Config { allowed_hosts: vec!["*".into()], ..Config::default() };
        assert_eq!(status(&Hosts::new(&any, true), "x.example"), 0);
    }

    #[test]
    fn a_target_with_an_authority_stands_above_the_header() {
        let hosts = Hosts::new(&Config::default(), true);
        let request =
            hyper::Request::get("http://evil.example/").header(header::HOST, "localhost").body(()).unwrap();
        assert_eq!(hosts.check(&request.into_parts().0, false).unwrap_err().status, 421);
    }
}
