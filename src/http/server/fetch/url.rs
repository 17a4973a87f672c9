//! The URL of an image: parsed once, checked against the rules, and fetched as parsed.
//!
//! A [`RemoteUrl`] satisfies the rules by construction. No other parser sees the text, so no
//! difference between two parsers can turn an allowed URL into another host. The grammar is a
//! strict part of RFC 3986: whatever a lenient parser would repair is refused.

use super::{FetchError, Rules};

/// Most bytes of a URL, and of a redirect's location.
pub(super) const MAX_URL_BYTES: usize = 4096;
/// Printable ASCII that a URL may not hold unencoded.
const REFUSED_CHARACTERS: &[u8] = b"\"<>\\^`{}";

/// A URL that the rules allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RemoteUrl {
    https: bool,
    /// A DNS name of the allow-list, in lower case.
    host: String,
    /// 80 or 443.
    port: u16,
    /// Path and query as in the URL: begins with `/`, holds no fragment.
    target: String,
}

impl RemoteUrl {
    /// Parses a URL and checks it against the rules.
    pub(super) fn parse(text: &str, rules: &Rules) -> Result<Self, FetchError> {
        check_text(text)?;
        let (scheme, rest) = text.split_once("://").ok_or(FetchError::Scheme)?;
        let https = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" if rules.http => false,
            "http" => return Err(FetchError::PlainHttp),
            _ => return Err(FetchError::Scheme),
        };
        let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(FetchError::Userinfo);
        }
        let (host, port) = match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        };
        let host = dns_name(host).ok_or(FetchError::HostForm)?;
        let port = match port {
            None => default_port(https),
            Some("80") => 80,
            Some("443") => 443,
            Some(_) => return Err(FetchError::Port),
        };
        if !rules.hosts.contains(&host) {
            return Err(FetchError::HostNotAllowed);
        }
        Ok(Self { https, host, port, target: target(rest)? })
    }

    /// The URL that a redirect's location names: an absolute path on the same host, or an absolute
    /// URL that the rules allow. Errors: any other location, and a step from https to http.
    pub(super) fn redirect(&self, location: &str, rules: &Rules) -> Result<Self, FetchError> {
        let inside = |error| FetchError::Redirected(Box::new(error));
        // A location of `//host` would name another host without a scheme.
        if location.starts_with('/') && !location.starts_with("//") {
            check_text(location).map_err(inside)?;
            return Ok(Self { target: target(location).map_err(inside)?, ..self.clone() });
        }
        if !location.contains("://") {
            return Err(FetchError::Location);
        }
        let next = Self::parse(location, rules).map_err(inside)?;
        match self.https && !next.https {
            true => Err(FetchError::Downgrade),
            false => Ok(next),
        }
    }

    /// Whether the connection is TLS.
    pub(super) fn is_https(&self) -> bool {
        self.https
    }

    /// The host, a DNS name in lower case.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// The port, given or implied.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Path and query, the target of the request.
    pub(super) fn target(&self) -> &str {
        &self.target
    }

    /// The value of the `host` header: the port only where it is not the scheme's own.
    pub(super) fn host_header(&self) -> String {
        match self.port == default_port(self.https) {
            true => self.host.clone(),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

fn default_port(https: bool) -> u16 {
    if https { 443 } else { 80 }
}

/// Checks length and characters, fragment included.
fn check_text(text: &str) -> Result<(), FetchError> {
    if text.len() > MAX_URL_BYTES {
        return Err(FetchError::UrlTooLong { limit: MAX_URL_BYTES });
    }
    match text.bytes().all(|b| b.is_ascii_graphic() && !REFUSED_CHARACTERS.contains(&b)) {
        true => Ok(()),
        false => Err(FetchError::Characters),
    }
}

/// The request target in the part of a URL after its authority. The fragment is dropped; dot
/// segments and percent-encoding stay as they are.
fn target(rest: &str) -> Result<String, FetchError> {
    let rest = rest.split_once('#').map_or(rest, |(rest, _)| rest);
    let is_hex = |b: Option<&u8>| b.is_some_and(u8::is_ascii_hexdigit);
    let bytes = rest.as_bytes();
    let encoded = |at: usize| is_hex(bytes.get(at + 1)) && is_hex(bytes.get(at + 2));
    if !(0..bytes.len()).all(|at| bytes[at] != b'%' || encoded(at)) {
        return Err(FetchError::Characters);
    }
    Ok(if rest.starts_with('/') { rest.to_owned() } else { format!("/{rest}") })
}

/// A full DNS name in lower case: two or more labels of letters, digits and hyphens. `None` for IP
/// addresses in every notation, encoded or internationalized names and a trailing dot.
pub(super) fn dns_name(text: &str) -> Option<String> {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
            && !label.starts_with("xn--")
    };
    let name = text.to_ascii_lowercase();
    let (_, last) = name.rsplit_once('.')?;
    // IPv4 parsers take a last label that begins with a digit for a number: 127.1, 0x7f.0x1, 1.017.
    let is_name = name.len() <= 253
        && last.starts_with(|c: char| c.is_ascii_lowercase())
        && name.split('.').all(is_label);
    is_name.then_some(name)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn rules(http: bool) -> Rules {
        let hosts = vec!["img.example.com".into(), "cdn.example.com".into()];
        Rules { hosts, http, timeout: Duration::from_secs(5), max_bytes: 1 << 20 }
    }

    #[track_caller]
    fn check(text: &str, https: bool, host_header: &str, port: u16, target: &str) {
        let url = RemoteUrl::parse(text, &rules(true)).unwrap();
        let seen = (url.is_https(), url.host_header(), url.port(), url.target());
        assert_eq!(seen, (https, host_header.into(), port, target), "{text}");
        assert_eq!(url.host(), host_header.split(':').next().unwrap());
    }

    #[test]
    fn the_parsed_value_is_the_url() {
        let img = "img.example.com";
        check("https://img.example.com/a.png", true, img, 443, "/a.png");
        check("HTTPS://IMG.Example.COM/A.png", true, img, 443, "/A.png");
        check("https://img.example.com", true, img, 443, "/");
        check("https://img.example.com?w=1", true, img, 443, "/?w=1");
        check("https://img.example.com#/x", true, img, 443, "/");
        check("https://img.example.com#@evil.com/", true, img, 443, "/");
        check("https://img.example.com/a#b?c", true, img, 443, "/a");
        check("https://img.example.com:443/a", true, img, 443, "/a");
        check("https://img.example.com:80/a", true, "img.example.com:80", 80, "/a");
        check("http://img.example.com/a", false, img, 80, "/a");
        check("http://img.example.com:443/a", false, "img.example.com:443", 443, "/a");
        check("https://img.example.com/a/../b//c", true, img, 443, "/a/../b//c");
        check("https://img.example.com//evil.com/", true, img, 443, "//evil.com/");
        check(
            "https://img.example.com/@a:b/%5c%00?q=[1]|2&u=http://x/",
            true,
            img,
            443,
            "/@a:b/%5c%00?q=[1]|2&u=http://x/",
        );
    }

    #[test]
    fn a_url_has_a_length_limit() {
        let url = |bytes: usize| format!("https://img.example.com/{}", "a".repeat(bytes - 24));
        assert!(RemoteUrl::parse(&url(MAX_URL_BYTES), &rules(false)).is_ok());
        let error = RemoteUrl::parse(&url(MAX_URL_BYTES + 1), &rules(false)).unwrap_err();
        assert_eq!(error.to_string(), "the URL is longer than 4096 bytes");
    }

    #[test]
    fn a_redirect_names_a_path_or_an_allowed_url() {
        let from = RemoteUrl::parse("https://img.example.com:80/a?b", &rules(true)).unwrap();
        let to = |location: &str| from.redirect(location, &rules(true)).map_err(|error| error.to_string());
        assert_eq!(to("/c?d#e").unwrap(), RemoteUrl { target: "/c?d".into(), ..from.clone() });
        let next = to("https://cdn.example.com/x").unwrap();
        assert_eq!((next.host(), next.port(), next.target()), ("cdn.example.com", 443, "/x"));
        for (location, expected) in [
            ("http://img.example.com/", "the URL redirects from https to http"),
            ("https://evil.com/", "after a redirect, the host of the URL is not in vision.remote_hosts"),
            ("https://img.example.com:8080/", "after a redirect, the port of the URL must be 80 or 443"),
            ("ftp://img.example.com/", "after a redirect, the URL must begin with https://"),
        ] {
            assert_eq!(to(location).unwrap_err(), expected, "{location}");
        }
        for location in ["", "c", "../c", "./c", "?b", "#f", "//cdn.example.com/c", "///c", "https:c"] {
            assert_eq!(to(location).unwrap_err(), FetchError::Location.to_string(), "{location}");
        }
        for location in ["/\\evil.com", "/a b", "/\t/evil.com", "/a\u{e9}", "/%", "/%4", "/%zz"] {
            let refused = FetchError::Redirected(Box::new(FetchError::Characters));
            assert_eq!(to(location).unwrap_err(), refused.to_string(), "{location}");
        }
    }

    #[test]
    fn plain_http_is_refused_unless_the_rules_allow_it() {
        let error = RemoteUrl::parse("http://img.example.com/", &rules(false)).unwrap_err();
        assert!(matches!(error, FetchError::PlainHttp));
    }
}
