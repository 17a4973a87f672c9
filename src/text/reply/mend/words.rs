//! Words without quotes in arguments: literals, and texts and keys that lack their quotes.

use super::{At, Mend};

impl Mend {
    pub(super) fn word(&mut self, c: char, out: &mut String) {
        let ends = match c {
            ',' | '}' | ']' | '\n' => true,
            ':' | '=' => self.in_key,
            _ => c.is_whitespace() && !self.in_key && literal(&self.doubt).is_some(),
        };
        if !ends {
            return self.doubt.push(c);
        }
        self.end_word(out);
        self.step(c, out);
    }

    pub(super) fn end_word(&mut self, out: &mut String) {
        let whole = std::mem::take(&mut self.doubt);
        let word = whole.trim_end();
        if self.in_key {
            self.held.push_str(&string(word));
            return self.end_key();
        }
        self.begin_value(out);
        match literal(word) {
            Some(literal) => {
                self.mended |= literal != word;
                out.push_str(literal);
            }
            None => {
                self.mended = true;
                out.push_str(&string(word));
            }
        }
        self.held.push_str(&whole[word.len()..]);
        self.at = At::After;
    }
}

/// The JSON literal that a word is: a number, or a word of JSON, Python or JavaScript.
fn literal(word: &str) -> Option<&str> {
    match word {
        "true" | "True" => Some("true"),
        "false" | "False" => Some("false"),
        "null" | "None" | "NaN" | "undefined" => Some("null"),
        _ => is_number(word).then_some(word),
    }
}

/// Whether the word is a number of JSON (RFC 8259, section 6).
fn is_number(word: &str) -> bool {
    fn digits(text: &str) -> Option<&str> {
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        (end > 0).then(|| &text[end..])
    }
    let parsed = || {
        let whole = word.strip_prefix('-').unwrap_or(word);
        let mut rest = match whole.strip_prefix('0') {
            Some(rest) => rest,
            None => digits(whole)?,
        };
        if let Some(fraction) = rest.strip_prefix('.') {
            rest = digits(fraction)?;
        }
        if let Some(exponent) = rest.strip_prefix(['e', 'E']) {
            rest = digits(exponent.strip_prefix(['+', '-']).unwrap_or(exponent))?;
        }
        Some(rest.is_empty())
    };
    parsed() == Some(true)
}

/// The word as a JSON string.
fn string(word: &str) -> String {
    serde_json::Value::from(word).to_string()
}
