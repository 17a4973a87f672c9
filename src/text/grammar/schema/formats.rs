//! Formats whose strings are told apart here, more narrowly than the compiler does it.

use std::borrow::Cow;

macro_rules! date {
    () => {
        concat!(
            r"(?:\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])",
            r"|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))",
            // The day of leap years.
            r"|(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
        )
    };
}

// Without leap seconds: when there was one is no matter of form, and many readers know none.
macro_rules! time {
    () => {
        r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?(?:[zZ]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
    };
}

// RFC 1123. Labels of RFC 5890 (`xn--`) stand for other letters by rules of their own, and are left
// out.
macro_rules! label {
    () => {
        "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
    };
}

/// The pattern of the strings of a format, if it is one of those.
pub(super) fn pattern(format: &str) -> Option<Cow<'static, str>> {
    let pattern = match format {
        "date" => concat!("^", date!(), "$"),
        "time" => concat!("^", time!(), "$"),
        "date-time" => concat!("^", date!(), "[tT]", time!(), "$"),
        "hostname" => {
            concat!(r"^(?=.{1,253}$)(?!(?:.*\.)?[^.]{2}--)", label!(), r"(?:\.", label!(), ")*$")
        }
        other => {
            // UUIDs of one version, as pydantic calls them.
            let version = other.strip_prefix("uuid").filter(|rest| rest.len() == 1)?;
            let version = version.chars().next().filter(|digit| ('1'..='8').contains(digit))?;
            let hex = "[0-9a-fA-F]";
            return Some(
                format!("^{hex}{{8}}-{hex}{{4}}-{version}{hex}{{3}}-[89abAB]{hex}{{3}}-{hex}{{12}}$").into(),
            );
        }
    };
    Some(pattern.into())
}
