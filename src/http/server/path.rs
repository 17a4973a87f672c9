//! The path of a request, and the name in it.

use std::borrow::Cow;

use crate::api::ApiError;

/// The path by which the table of routes is asked: [`collapsed`], below `server.root_path`, without a slash at its end.
///
/// Routes, keys and the admin's protection are decided on this path alone. Escapes stay as they are: `%2F` is part of a
/// name, and no slash.
pub(super) fn normal<'a>(path: &'a str, root: &str) -> Cow<'a, str> {
    match collapsed(path) {
        Cow::Borrowed(path) => Cow::Borrowed(trimmed(below(path, root))),
        Cow::Owned(path) => Cow::Owned(trimmed(below(&path, root)).to_owned()),
    }
}

/// The path with one slash in the place of several: a base URL that ends in `/` gives `//`.
pub(super) fn collapsed(path: &str) -> Cow<'_, str> {
    if !path.contains("//") {
        return path.into();
    }
    let mut single = String::with_capacity(path.len());
    for part in path.split('/').filter(|part| !part.is_empty()) {
        single.push('/');
        single.push_str(part);
    }
    if path.ends_with('/') {
        single.push('/');
    }
    single.into()
}

/// The path below `server.root_path`, a prefix that proxies may leave in place.
fn below<'a>(path: &'a str, root: &str) -> &'a str {
    path.strip_prefix(root).filter(|rest| rest.starts_with('/')).unwrap_or(path)
}

fn trimmed(path: &str) -> &str {
    path.strip_suffix('/').filter(|path| !path.is_empty()).unwrap_or(path)
}

/// A name in a path, `encoded`, without its escapes: clients percent-encode the slash that many names contain.
pub(super) fn decoded<'a>(path: &str, encoded: &'a str) -> Result<Cow<'a, str>, ApiError> {
    if !encoded.contains('%') {
        return Ok(encoded.into());
    }
    let bytes = percent_decoded(encoded.as_bytes());
    let name = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    name.map(Cow::Owned).ok_or_else(|| ApiError::invalid_path(path))
}

/// Percent-decodes a path segment; `None` for a `%` without two hexadecimal digits after it.
fn percent_decoded(encoded: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded;
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [high, low, tail @ ..] = tail else { return None };
        let digit = |byte: u8| char::from(byte).to_digit(16);
        bytes.push((digit(*high)? * 16 + digit(*low)?) as u8);
        rest = tail;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_proxies_are_taken_off() {
        for (path, root, expected) in [
            ("/llm/v1/models", "/llm", "/v1/models"),
            ("/v1/models", "/llm", "/v1/models"),
            ("/llmv1/models", "/llm", "/llmv1/models"),
            ("/llm", "/llm", "/llm"),
            ("/v1/models", "", "/v1/models"),
        ] {
            assert_eq!(below(path, root), expected, "{path} below {root}");
        }
    }

    /// Regression: `//v1/models` and `/v1/models/` were 404.
    #[test]
    fn slashes_count_once() {
        for (path, expected) in [
            ("/", "/"),
            ("//", "/"),
            ("///", "/"),
            ("//v1/models", "/v1/models"),
            ("/v1//models", "/v1/models"),
            ("/v1/models/", "/v1/models"),
            ("//v1///models//", "/v1/models"),
            ("/v1/models/a%2F%2Fb/", "/v1/models/a%2F%2Fb"),
            ("/admin//reload/", "/admin/reload"),
            ("//llm//v1/models", "/v1/models"),
            ("/llm/", "/"),
            ("/llm", "/llm"),
            ("//llm", "/llm"),
            ("*", "*"),
            ("", ""),
        ] {
            assert_eq!(normal(path, "/llm"), expected, "{path}");
        }
    }

    #[test]
    fn names_are_decoded() {
        for (encoded, expected) in [
            ("moonshotai%2FKimi-K2.6", Some("moonshotai/Kimi-K2.6")),
            ("moonshotai/Kimi-K2.6", Some("moonshotai/Kimi-K2.6")),
            ("%c3%A9+%25", Some("é+%")),
            ("%", None),
            ("a%2", None),
            ("%+1", None),
            ("%ff", None),
        ] {
            assert_eq!(decoded("/", encoded).ok().as_deref(), expected, "{encoded}");
        }
    }
}
