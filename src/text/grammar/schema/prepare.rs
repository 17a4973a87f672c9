//! Keywords that the compiler knows, in the form that it enforces, after the schemas inside are
//! walked.

use serde_json::{Map, Value, json};

use super::walk::Walk;
use super::{REFUSED_PATTERN, Unenforced, formats, is_known_format, unique};
use crate::grammar::GrammarError;
use crate::grammar::pattern::{Pattern, Texts};

impl Walk<'_> {
    pub(super) fn prepare(&mut self, object: &mut Map<String, Value>) -> Result<(), GrammarError> {
        if self.style.closed_objects
            && object.contains_key("properties")
            && !object.contains_key("additionalProperties")
        {
            object.insert("additionalProperties".into(), false.into());
        }
        // An `$id` only names the base of remote references, and those are refused, so any text may
        // stand there.
        if self.is_local {
            object.shift_remove("$id");
        }
        self.write_pattern(object)?;
        self.write_format(object);
        self.write_key_patterns(object)?;
        open_ends_of_flags(object);
        let counted = refuse_counted_keys(object).map_err(|refusal| ("minProperties", refusal));
        for checked in [counted, narrow_open_end(object)] {
            match checked {
                Err((keyword, _)) if self.unenforced == Unenforced::Advice => {
                    object.shift_remove(keyword);
                    self.advise(keyword);
                }
                checked => checked.map_err(|(_, refusal)| refusal)?,
            }
        }
        Ok(())
    }

    /// Writes formats that are told apart here as patterns, and leaves out those that nobody tells
    /// apart.
    fn write_format(&mut self, object: &mut Map<String, Value>) {
        let Some(format) = object.get("format").and_then(Value::as_str) else { return };
        let own = formats::pattern(format);
        let written =
            own.and_then(|pattern| Pattern::read(&pattern, self.steps).ok()?.expressions(self.steps).ok());
        // The compiler's own reading, also where no work is left for the pattern.
        if written.is_none() && is_known_format(format) {
            return;
        }
        object.shift_remove("format");
        for expression in written.into_iter().flatten() {
            add_pattern(object, expression);
        }
    }

    /// Writes `pattern` in the compiler's dialect.
    fn write_pattern(&mut self, object: &mut Map<String, Value>) -> Result<(), GrammarError> {
        let Some(pattern) = object.get("pattern").and_then(Value::as_str) else { return Ok(()) };
        let written = Pattern::read(pattern, self.steps).and_then(|pattern| pattern.expressions(self.steps));
        match written {
            Ok(written) => {
                object.shift_remove("pattern");
                written.into_iter().for_each(|expression| add_pattern(object, expression));
            }
            Err(why) => match self.unenforced("pattern", REFUSED_PATTERN.into(), &why.to_string())? {
                Some(refused) => drop(object.insert("pattern".into(), refused)),
                None => drop(object.shift_remove("pattern")),
            },
        }
        Ok(())
    }

    /// Writes the keys of `patternProperties` in the compiler's dialect.
    fn write_key_patterns(&mut self, object: &mut Map<String, Value>) -> Result<(), GrammarError> {
        let Some(Value::Object(patterns)) = object.get("patternProperties") else { return Ok(()) };
        let mut written: Map<String, Value> = Map::new();
        for (pattern, schema) in patterns.clone() {
            let expression = Pattern::read(&pattern, self.steps)
                .and_then(|pattern| Texts { all: vec![pattern], none: Vec::new() }.expression(self.steps));
            match expression {
                Ok(Some(expression)) => match written.get_mut(&expression) {
                    Some(same) => *same = json!({"allOf": [same.take(), schema]}),
                    None => drop(written.insert(expression, schema)),
                },
                // No key matches.
                Ok(None) => {}
                Err(why) => {
                    let why = format!("{pattern:?}: {why}");
                    match self.unenforced("patternProperties", json!({REFUSED_PATTERN: true}), &why)? {
                        Some(refused) => drop(object.insert("patternProperties".into(), refused)),
                        None => {
                            object.shift_remove("patternProperties");
                            // Members that the pattern allows would be forbidden.
                            object.shift_remove("additionalProperties");
                        }
                    }
                    return Ok(());
                }
            }
        }
        object.insert("patternProperties".into(), written.into());
        Ok(())
    }
}

/// Adds an expression of the compiler's dialect that strings must match.
fn add_pattern(object: &mut Map<String, Value>, expression: String) {
    if !object.contains_key("pattern") {
        object.insert("pattern".into(), expression.into());
        return;
    }
    // With its type, the compiler merges it with strings alone.
    let more = match object.get("type").is_some_and(|kind| kind == "string") {
        true => json!({"type": "string", "pattern": expression}),
        false => json!({"pattern": expression}),
    };
    unique::join(object, more);
}

/// Refuses counts of keys that are not named: the compiler cannot tell a repeated key from a new
/// one.
pub(super) fn refuse_counted_keys(object: &Map<String, Value>) -> Result<(), GrammarError> {
    let least = object.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
    let required = object.get("required").and_then(Value::as_array).map_or(0, Vec::len) as u64;
    if least > 1 && least > required {
        return Err(GrammarError::Schema(format!(
            "`minProperties` {least} is more than 1 and than the required members"
        )));
    }
    Ok(())
}

/// Turns the exclusive bounds of draft 4, a flag beside a bound, into bounds of their own.
fn open_ends_of_flags(object: &mut Map<String, Value>) {
    for (open, closed) in [("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")] {
        if object.get(open) == Some(&Value::Bool(true))
            && object.get(closed).is_some_and(Value::is_number)
            && let Some(bound) = object.shift_remove(closed)
        {
            object.insert(open.into(), bound);
        }
    }
}

/// Narrows an exclusive bound by a millionth. The compiler lets a whole number pass as a value
/// above an exclusive bound if the other bound lies within the same whole number (0 as a number
/// above 0 and at most 0.5); it respects the narrowed bound, whose meaning is almost the same.
///
/// Errors: the keyword, and why it leaves no room.
fn narrow_open_end(object: &mut Map<String, Value>) -> Result<(), (&'static str, GrammarError)> {
    const STEP: f64 = 1e-6;
    let number = |object: &Map<String, Value>, key: &str| object.get(key).and_then(Value::as_f64);
    for (open, closed, other_open, other, inward) in [
        ("exclusiveMinimum", "minimum", "exclusiveMaximum", "maximum", STEP),
        ("exclusiveMaximum", "maximum", "exclusiveMinimum", "minimum", -STEP),
    ] {
        let Some(bound) = number(object, open).filter(|bound| bound.fract() == 0.0) else { continue };
        let far = [other_open, other]
            .into_iter()
            .filter_map(|key| number(object, key))
            .map(|far| (far - bound) * inward.signum());
        let far = far.fold(f64::INFINITY, f64::min);
        if far >= 1.0 || object.get("type") == Some(&json!("integer")) {
            continue;
        }
        if far <= STEP {
            let why = format!("`{open}` {bound} leaves too little room below the other bound");
            return Err((open, GrammarError::Schema(why)));
        }
        object.shift_remove(open);
        let inside = bound + inward;
        let given = number(object, closed).unwrap_or(inside);
        let tighter = if inward > 0.0 { given.max(inside) } else { given.min(inside) };
        object.insert(closed.into(), tighter.into());
    }
    Ok(())
}
