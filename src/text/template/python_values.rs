//! Operators and methods of Python that the template engine lacks.

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Kwargs, Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};

/// Longest string that a method pads to.
const MAX_WIDTH: usize = 1 << 20;

pub(super) fn invalid(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

/// Python's `%`: formats a string, else the remainder with the sign of the divisor.
pub(super) fn percent(left: Value, right: Value) -> Result<Value, Error> {
    if let Some(text) = left.as_str() {
        let python = |value: Value| if value.is_none() { Value::from("None") } else { value };
        let arguments: Vec<Value> = match right.is_tuple() {
            true => right.try_iter()?.map(python).collect(),
            false => vec![python(right)],
        };
        return format(FormatStyle::Printf, text, &arguments).map(Value::from);
    }
    let is_number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    if !is_number(&left) || !is_number(&right) {
        return Err(invalid(format!("% of {} and {}", left.kind(), right.kind())));
    }
    let is_whole = |value: &Value| value.is_integer() || value.kind() == ValueKind::Bool;
    if is_whole(&left) && is_whole(&right) {
        let (left, right) = (i128::try_from(left)?, i128::try_from(right)?);
        let remainder = left.checked_rem(right).ok_or_else(|| invalid("modulo by zero"))?;
        let other_sign = remainder != 0 && (remainder < 0) != (right < 0);
        return Ok(Value::from(if other_sign { remainder + right } else { remainder }));
    }
    let (left, right) = (f64::try_from(left)?, f64::try_from(right)?);
    if right == 0.0 {
        return Err(invalid("modulo by zero"));
    }
    Ok(Value::from(left - right * (left / right).floor()))
}

/// Python's methods that neither the engine nor its companion knows; arguments by name become positional.
pub(super) fn unknown_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let args = positional(method, args)?;
    if let Some(text) = value.as_str()
        && args.len() > 1
        && matches!(method, "find" | "rfind" | "index" | "count" | "startswith" | "endswith")
    {
        return in_part(state, text, method, &args);
    }
    let known = match value.as_str() {
        Some(text) => string_method(text, method, &args)?,
        None if value.kind() == ValueKind::Seq => sequence_method(value, method, &args)?,
        None if value.kind() == ValueKind::Map => map_method(value, method)?,
        None => None,
    };
    match known {
        Some(value) => Ok(value),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, &args),
    }
}

/// Arguments by name in their places, for the methods that templates call so.
fn positional(method: &str, args: &[Value]) -> Result<Vec<Value>, Error> {
    let names: &[&str] = match method {
        "split" | "rsplit" => &["sep", "maxsplit"],
        "splitlines" => &["keepends"],
        "replace" => &["old", "new", "count"],
        _ => return Ok(args.to_vec()),
    };
    let Some((last, before)) = args.split_last().filter(|(last, _)| last.is_kwargs()) else {
        return Ok(args.to_vec());
    };
    let options = Kwargs::try_from(last.clone())?;
    let mut args = before.to_vec();
    for name in names.iter().skip(before.len()) {
        args.push(options.get::<Option<Value>>(name)?.unwrap_or(Value::from(())));
    }
    options.assert_all_used()?;
    Ok(args)
}

/// Methods that look at a part of the string only: `text.find(part, start, end)` and the like.
fn in_part(state: &mut State, text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (wanted, start, end): (Value, i64, Option<i64>) = from_args(args)?;
    let len = text.chars().count() as i64;
    let place = |at: i64| (if at < 0 { at.saturating_add(len) } else { at }).clamp(0, len) as usize;
    let (start, end) = (place(start), place(end.unwrap_or(len)));
    let part: String = text.chars().skip(start).take(end.saturating_sub(start)).collect();
    let found = unknown_method(state, &Value::from(part), method, &[wanted])?;
    match (method, i64::try_from(found.clone())) {
        ("find" | "rfind" | "index", Ok(at)) if at >= 0 => Ok(Value::from(at + start as i64)),
        _ => Ok(found),
    }
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let pair = |found: Option<(&str, &str)>, separator: &str, first: bool| {
        let [a, b, c] = match found {
            Some((before, after)) => [before, separator, after],
            None if first => [text, "", ""],
            None => ["", "", text],
        };
        Value::from(Tuple::new(vec![Value::from(a), Value::from(b), Value::from(c)]))
    };
    Ok(Some(match method {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "partition" => {
            let (separator,): (&str,) = from_args(args)?;
            pair(text.split_once(separator), separator, true)
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            pair(text.rsplit_once(separator), separator, false)
        }
        "rsplit" => {
            let (separator, limit): (Option<&str>, Option<i64>) = from_args(args)?;
            let limit = limit.and_then(|limit| usize::try_from(limit).ok());
            right_split(text, separator, limit)
        }
        "casefold" => {
            let () = from_args(args)?;
            Value::from(text.to_lowercase())
        }
        "swapcase" => {
            let () = from_args(args)?;
            let swap = |c: char| match c.is_uppercase() {
                true => c.to_lowercase().collect::<String>(),
                false => c.to_uppercase().collect(),
            };
            Value::from(text.chars().map(swap).collect::<String>())
        }
        "istitle" => {
            let () = from_args(args)?;
            Value::from(
                text.chars().any(char::is_alphabetic) && minijinja::filters::title(text.into()) == text,
            )
        }
        "index" => {
            let (part,): (&str,) = from_args(args)?;
            let at = text.find(part).ok_or_else(|| invalid("str.index: the part is not in the string"))?;
            Value::from(text[..at].chars().count())
        }
        "ljust" | "rjust" | "center" => {
            let (width, fill): (usize, Option<&str>) = from_args(args)?;
            padded(text, method, width, fill.unwrap_or(" "))?
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['-', '+'])));
            let width = width.saturating_sub(sign.len());
            Value::from(format!("{sign}{}", padded(digits, "rjust", width, "0")?))
        }
        _ => return Ok(None),
    }))
}

/// `str.rsplit`.
fn right_split(text: &str, separator: Option<&str>, limit: Option<usize>) -> Value {
    let mut parts: Vec<&str> = Vec::new();
    let mut rest = if separator.is_none() { text.trim() } else { text };
    while limit.is_none_or(|limit| parts.len() < limit) {
        let found = match separator {
            Some(separator) => rest.rsplit_once(separator),
            None => rest.rsplit_once(char::is_whitespace).map(|(before, after)| (before.trim_end(), after)),
        };
        let Some((before, after)) = found else { break };
        parts.push(after);
        rest = before;
    }
    if separator.is_some() || !rest.is_empty() {
        parts.push(rest);
    }
    parts.into_iter().rev().map(Value::from).collect()
}

/// `center` as a filter: of 80 places unless told.
pub(super) fn center(text: &str, width: Option<usize>) -> Result<Value, Error> {
    padded(text, "center", width.unwrap_or(80), " ")
}

fn padded(text: &str, method: &str, width: usize, fill: &str) -> Result<Value, Error> {
    let fill = match fill.chars().count() {
        1 => fill,
        _ => return Err(invalid("the fill character must be one character")),
    };
    if width > MAX_WIDTH {
        return Err(invalid(format!("width {width} is above {MAX_WIDTH}")));
    }
    let missing = width.saturating_sub(text.chars().count());
    let left = match method {
        "ljust" => 0,
        "rjust" => missing,
        // As CPython divides an odd rest.
        _ => missing / 2 + (missing & width & 1),
    };
    Ok(Value::from(format!("{}{text}{}", fill.repeat(left), fill.repeat(missing - left))))
}

fn sequence_method(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "index" => {
            let (wanted,): (Value,) = from_args(args)?;
            let at = value.try_iter()?.position(|other| other == wanted);
            Value::from(at.ok_or_else(|| invalid("list.index: the value is not in the list"))?)
        }
        "copy" => {
            let () = from_args(args)?;
            Value::from(value.try_iter()?.collect::<Vec<Value>>())
        }
        "append" | "extend" | "insert" | "pop" | "remove" | "clear" | "reverse" | "sort" => {
            return Err(unchanging("list", method, "[...]"));
        }
        _ => return Ok(None),
    }))
}

fn map_method(value: &Value, method: &str) -> Result<Option<Value>, Error> {
    match method {
        "copy" => Ok(Some(
            value
                .try_iter()?
                .map(|key| value.get_item(&key).map(|held| (key, held)))
                .collect::<Result<Vec<_>, _>>()
                .map(Value::from_pairs)?,
        )),
        "update" | "pop" | "popitem" | "setdefault" | "clear" if value.get_attr(method)?.is_undefined() => {
            Err(unchanging("dict", method, "{...}"))
        }
        _ => Ok(None),
    }
}

fn unchanging(kind: &str, method: &str, literal: &str) -> Error {
    invalid(format!("{kind}.{method}: only what the template itself makes as {literal} can change"))
}
