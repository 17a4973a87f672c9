//! From what a source says to a value of the key's type.
//!
//! Files have types of their own; the environment and flags have text only. Text is read in the ways it may be meant, and
//! the first that fits the key's type counts, so that `PERIGEE_SERVER__API_KEYS=12345` is a list of one string.

use figment::error::{Actual, Kind};
use figment::value::Value;

use super::nearest;
use super::settings;

/// A value of a file, checked.
pub(super) fn typed(section: &str, key: &str, value: Value) -> Result<Value, String> {
    match settings::check_type(section, key, &value) {
        Ok(()) => Ok(value),
        Err(kind) => {
            let number = value.as_str().and_then(|text| number_with_unit(section, key, text));
            number.ok_or_else(|| explain(section, key, &kind))
        }
    }
}

/// A value of the environment or a flag.
pub(super) fn text(section: &str, key: &str, text: &str) -> Result<Value, String> {
    let natural = toml_scalar(text);
    // Tables between commas, or one alone.
    let tables = text.contains('{').then(|| toml_scalar(&format!("[{text}]"))).flatten();
    let mut error = None;
    for value in natural.into_iter().chain([Value::from(text)]).chain(tables) {
        match settings::check_type(section, key, &value) {
            Ok(()) => return Ok(value),
            Err(kind) => error = Some(error.unwrap_or(kind)),
        }
    }
    if let Some(value) = number_with_unit(section, key, text) {
        return Ok(value);
    }
    let list = Value::from(list_items(text));
    if settings::check_type(section, key, &list).is_ok() {
        return Ok(list);
    }
    Err(error.map_or_else(|| "has the wrong type".to_owned(), |kind| explain(section, key, &kind)))
}

/// The value that `text` is in TOML, if it is one and no table.
fn toml_scalar(text: &str) -> Option<Value> {
    let mut document = format!("v = {text}").parse::<toml::Table>().ok()?;
    let value = document.remove("v")?;
    if !document.is_empty() || value.is_table() || value.is_datetime() {
        return None; // More than a value: the text has lines of its own.
    }
    Value::serialize(value).ok()
}

/// Items of a list of strings: a TOML list whatever its elements, or text between commas.
fn list_items(text: &str) -> Vec<String> {
    if let Some(Value::Array(_, items)) = toml_scalar(text) {
        return items.iter().map(display).collect();
    }
    text.split([',', '\n']).map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

/// Keys that are numbers of tokens, and may be written as `128k`.
const TOKEN_KEYS: [&str; 4] = ["max_model_len", "max_num_batched_tokens", "max_queue_tokens", "max_tokens"];

/// `8GiB` as a number, for keys in bytes, and `128K` for keys in tokens.
fn number_with_unit(section: &str, key: &str, text: &str) -> Option<Value> {
    let number = match key {
        _ if key.ends_with("_bytes") => parse_size(text),
        _ if TOKEN_KEYS.contains(&key) => parse_tokens(text),
        _ => None,
    };
    let value = Value::from(number?);
    settings::check_type(section, key, &value).ok().map(|()| value)
}

/// Tokens with a unit as vLLM reads them: `k`, `m` are decimal, `K`, `M` binary, fractions allowed before the decimal ones.
pub(super) fn parse_tokens(text: &str) -> Option<u64> {
    let text = text.trim();
    let (number, factor) = match text.char_indices().last()? {
        (at, 'k') => (&text[..at], 1000),
        (at, 'm') => (&text[..at], 1_000_000),
        (at, 'K') => (&text[..at], 1 << 10),
        (at, 'M') => (&text[..at], 1 << 20),
        _ => (text, 1_u64),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor);
    }
    let is_decimal = factor % 1000 == 0 && number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let tokens = number.parse::<f64>().ok().filter(|_| is_decimal)? * factor as f64;
    (tokens.fract() == 0.0 && tokens < 2f64.powi(53)).then_some(tokens as u64)
}

/// Bytes of a size with a binary or decimal unit, fractions allowed.
fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1000,
        "m" | "mb" => 1000_u64.pow(2),
        "g" | "gb" => 1000_u64.pow(3),
        "t" | "tb" => 1000_u64.pow(4),
        "ki" | "kib" => 1 << 10,
        "mi" | "mib" => 1 << 20,
        "gi" | "gib" => 1 << 30,
        "ti" | "tib" => 1 << 40,
        _ => return None,
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor);
    }
    let bytes = number.parse::<f64>().ok()? * factor as f64;
    (bytes < 2f64.powi(63)).then_some(bytes as u64)
}

/// What is wrong, in words for people who do not read Rust. Secret values are left out.
fn explain(section: &str, key: &str, kind: &Kind) -> String {
    let (found, expected) = match kind {
        Kind::UnknownVariant(found, names) => {
            let near = nearest::nearest(found, names.iter().copied());
            let near = near.map(|n| format!(", did you mean {n}?")).unwrap_or_default();
            return format!("must be one of {}{near}", names.join(", "));
        }
        Kind::InvalidType(found, expected) | Kind::InvalidValue(found, expected) => {
            (found_words(found), words(key, expected))
        }
        // Figment converts integers before the type sees them; out of its range they arrive so.
        Kind::ISizeOutOfRange(n) => (n.to_string(), "a number that is not negative".into()),
        Kind::USizeOutOfRange(n) => (n.to_string(), "a smaller number".into()),
        other if !settings::is_secret(section, key) => return other.to_string(),
        _ => return "has the wrong type".into(),
    };
    if settings::is_secret(section, key) {
        return format!("must be {expected}");
    }
    format!("must be {expected}, not {found}")
}

/// What was found, as it is written.
fn found_words(found: &Actual) -> String {
    match found {
        Actual::Str(text) => format!("{text:?}"),
        Actual::Bool(b) => b.to_string(),
        Actual::Unsigned(n) => n.to_string(),
        Actual::Signed(n) => n.to_string(),
        Actual::Float(n) => n.to_string(),
        Actual::Seq => "a list".into(),
        Actual::Map => "a table".into(),
        other => other.to_string(),
    }
}

/// Rust's word for a type as a person's.
fn words(key: &str, expected: &str) -> String {
    let size = match key {
        _ if key.ends_with("_bytes") => ", or a size such as \"8GiB\"",
        _ if TOKEN_KEYS.contains(&key) => ", or one such as \"128K\"",
        _ => "",
    };
    match expected {
        "u16" => "a whole number from 0 to 65535".into(),
        "u32" | "u64" | "usize" => format!("a whole number, not negative{size}"),
        "f32" | "f64" => "a number".into(),
        "a boolean" => "true or false".into(),
        "a sequence" => "a list".into(),
        "path string" => "a path".into(),
        other => other.into(),
    }
}

/// A value as it is written in TOML, strings without quotes.
pub(super) fn display(value: &Value) -> String {
    match value {
        Value::String(_, text) => text.clone(),
        Value::Char(_, c) => c.to_string(),
        Value::Bool(_, b) => b.to_string(),
        Value::Num(_, n) => match (n.to_u128(), n.to_i128(), n.to_f64()) {
            (Some(n), _, _) => n.to_string(),
            (_, Some(n), _) => n.to_string(),
            (_, _, Some(n)) => n.to_string(),
            _ => String::new(),
        },
        Value::Empty(..) => String::new(),
        Value::Array(_, items) => format!("[{}]", items.iter().map(display).collect::<Vec<_>>().join(", ")),
        Value::Dict(..) => "{...}".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_may_have_units() {
        for (text, tokens) in [
            ("4096", Some(4096)),
            ("128k", Some(128_000)),
            ("128K", Some(131_072)),
            ("1M", Some(1 << 20)),
            ("1m", Some(1_000_000)),
            ("25.6k", Some(25_600)),
            ("1.5K", None),
            ("1.23456k", None),
            ("k", None),
            ("-1k", None),
            ("", None),
            ("99999999999999999999k", None),
            ("1e3k", None),
        ] {
            assert_eq!(parse_tokens(text), tokens, "{text}");
        }
        assert_eq!(super::text("scheduler", "max_model_len", "256K").unwrap(), Value::from(262_144u64));
        let wrong = super::text("scheduler", "max_model_len", "long").unwrap_err();
        assert!(wrong.contains("or one such as \"128K\""), "{wrong}");
        assert!(super::text("scheduler", "max_num_seqs", "1k").is_err());
    }

    #[test]
    fn text_takes_the_type_of_its_key() {
        for (key, given, expected) in [
            ("server.port", "8080", "8080"),
            ("server.host", "8080", "8080"),
            ("server.host", "\"::1\"", "::1"),
            ("server.host", "true", "true"),
            ("server.api_keys", "12345", "[12345]"),
            ("server.api_keys", "a, b,", "[a, b]"),
            ("server.api_keys", "[\"a\", 7]", "[a, 7]"),
            ("server.api_keys", "x=1\ny=2", "[x=1, y=2]"),
            ("server.request_timeout_s", "2", "2"),
            ("server.request_timeout_s", "0.5", "0.5"),
            ("server.max_body_bytes", "1MiB", "1048576"),
            ("kv_cache.memory_bytes", "1.5 GiB", "1610612736"),
            ("kv_cache.prefix_caching", "false", "false"),
            ("kv_cache.dtype", "bf16", "bf16"),
            ("model.path", "/models/kimi", "/models/kimi"),
            ("model.path", "2024", "2024"),
            ("model.served_name", "1.5", "[1.5]"),
            ("model.latent_norm_eps", "1e-6", "0.000001"),
            ("model.latent_norm_eps", "config", "config"),
            ("sampling.temperature", "1", "1"),
            ("telemetry.log_level", "info,perigee=debug", "info,perigee=debug"),
        ] {
            let (section, name) = key.split_once('.').unwrap();
            let value = text(section, name, given).unwrap_or_else(|e| panic!("{key}={given}: {e}"));
            assert_eq!(display(&value), expected, "{key}={given}");
        }
    }

    #[test]
    fn wrong_types_say_what_is_right() {
        for (key, given, expected) in [
            ("server.port", "abc", "must be a whole number from 0 to 65535, not \"abc\""),
            ("server.port", "70000", "must be a whole number from 0 to 65535, not"),
            ("server.port", "-1", "must be a whole number from 0 to 65535, not"),
            ("scheduler.max_num_seqs", "1.5", "must be a whole number, not negative, not 1.5"),
            ("scheduler.max_num_seqs", "-3", "must be a whole number, not negative"),
            ("kv_cache.memory_bytes", "lots", "or a size such as \"8GiB\", not \"lots\""),
            ("kv_cache.prefix_caching", "yes", "must be true or false, not \"yes\""),
            ("device.backend", "cpux", "must be one of auto, cuda, cpu, reference, did you mean cpu?"),
            ("server.request_timeout_s", "soon", "must be a number, not \"soon\""),
            ("model.latent_norm_eps", "high", "must be \"config\" or a number, not \"high\""),
        ] {
            let (section, name) = key.split_once('.').unwrap();
            let error = text(section, name, given).expect_err(key);
            assert!(error.contains(expected), "{key}={given}: {error}");
        }
    }

    #[test]
    fn secret_values_are_not_in_messages() {
        let error = typed("server", "api_keys", Value::from("hunter2")).unwrap_err();
        assert!(!error.contains("hunter2"), "{error}");
        let error = typed("server", "api_keys", Value::from(vec![12345])).unwrap_err();
        assert!(!error.contains("12345"), "{error}");
    }

    #[test]
    fn sizes() {
        for (given, expected) in [
            ("0", Some(0)),
            ("10", Some(10)),
            ("2kb", Some(2000)),
            ("2 KiB", Some(2048)),
            ("0.5G", Some(500_000_000)),
            ("99999999999TiB", None),
            ("GiB", None),
            ("1.2.3M", None),
            ("-1M", None),
            ("1 parsec", None),
        ] {
            assert_eq!(parse_size(given), expected, "{given}");
        }
    }
}
