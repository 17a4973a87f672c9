//! Translates GBNF, the grammar notation of llama.cpp, into Lark.
//!
//! `root ::= "a" [0-9]+ item*` becomes `start: root` and `root: "a" /[0-9]/+ item*`. Rule names get
//! a prefix, because Lark reads names in capitals as terminals. Comments, and newlines inside a
//! rule's parentheses, are dropped.

use super::GrammarError;
use super::notation::quoted;

/// Whether the text is GBNF, recognised by a `::=`, which Lark does not have.
pub(super) fn is_gbnf(text: &str) -> bool {
    text.lines().any(|line| {
        line.split_once("::=")
            .is_some_and(|(name, _)| !name.trim().is_empty() && name.trim().chars().all(is_name))
    })
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

/// The Lark of a GBNF grammar. Errors name the position.
pub(super) fn to_lark(text: &str) -> Result<String, GrammarError> {
    let mut lark = String::from("start: r_root\n");
    let mut chars = Cursor { rest: text, line: 1 };
    let mut begun = false;
    loop {
        chars.skip_space();
        let Some(c) = chars.peek() else { break };
        if is_name(c) && chars.begins_rule() {
            let name = chars.name();
            chars.skip_space();
            chars.rest = &chars.rest["::=".len()..];
            lark.push_str(&format!("{}{}:", if begun { "\n" } else { "" }, rule(&name)));
            begun = true;
            continue;
        }
        if !begun {
            return Err(chars.error("a rule `name ::= ...` is expected"));
        }
        match c {
            '"' => lark.push_str(&format!(" {}", chars.literal()?)),
            '[' => lark.push_str(&format!(" {}", chars.class()?)),
            '.' => {
                chars.next();
                lark.push_str(" /(?s:.)/");
            }
            '(' | ')' | '|' => {
                chars.next();
                lark.push(' ');
                lark.push(c);
            }
            '*' | '+' | '?' => {
                chars.next();
                lark.push(c);
            }
            '{' => lark.push_str(&chars.times()?),
            c if is_name(c) => lark.push_str(&format!(" {}", rule(&chars.name()))),
            c => return Err(chars.error(&format!("`{c}` is not part of a rule"))),
        }
    }
    lark.push('\n');
    Ok(lark)
}

fn rule(name: &str) -> String {
    format!("r_{}", name.to_ascii_lowercase().replace('-', "_"))
}

/// The unread rest of the text.
struct Cursor<'a> {
    rest: &'a str,
    line: usize,
}

impl Cursor<'_> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.line += usize::from(c == '\n');
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    fn error(&self, what: &str) -> GrammarError {
        GrammarError::Syntax(format!("line {} of the GBNF grammar: {what}", self.line))
    }

    /// Skips whitespace and comments.
    fn skip_space(&mut self) {
        while let Some(c) = self.peek() {
            if c == '#' {
                while self.peek().is_some_and(|c| c != '\n') {
                    self.next();
                }
            } else if c.is_whitespace() {
                self.next();
            } else {
                break;
            }
        }
    }

    fn name(&mut self) -> String {
        let len = self.rest.find(|c| !is_name(c)).unwrap_or(self.rest.len());
        let name = self.rest[..len].to_owned();
        self.rest = &self.rest[len..];
        name
    }

    fn begins_rule(&self) -> bool {
        self.rest.trim_start_matches(is_name).trim_start().starts_with("::=")
    }

    /// Reads `{2,5}`, which both notations have.
    fn times(&mut self) -> Result<String, GrammarError> {
        let end = self.rest.find('}').ok_or_else(|| self.error("a `{` has no `}`"))?;
        let times = &self.rest[..=end];
        if !times[1..end].chars().all(|c| c.is_ascii_digit() || c == ',' || c == ' ') {
            return Err(self.error(&format!("`{times}` is not a number of times")));
        }
        let times = times.replace(' ', "");
        self.rest = &self.rest[end + 1..];
        Ok(times)
    }

    fn literal(&mut self) -> Result<String, GrammarError> {
        self.next();
        let mut text = String::new();
        loop {
            match self.next() {
                Some('"') => return Ok(quoted(&text)),
                Some('\\') => text.push(self.escape()?),
                Some(c) => text.push(c),
                None => return Err(self.error("a string is not closed")),
            }
        }
    }

    /// Reads `[^a-z\n]` as a regular expression.
    fn class(&mut self) -> Result<String, GrammarError> {
        self.next();
        let mut regex = String::from("/[");
        if self.peek() == Some('^') {
            self.next();
            regex.push('^');
        }
        loop {
            match self.next() {
                Some(']') => return Ok(regex + "]/"),
                Some('-') => regex.push('-'),
                Some('\\') => {
                    let c = self.escape()?;
                    regex.push_str(&format!("\\x{{{:x}}}", c as u32));
                }
                Some(c) if c.is_alphanumeric() => regex.push(c),
                Some(c) => regex.push_str(&format!("\\x{{{:x}}}", c as u32)),
                None => return Err(self.error("a character class is not closed")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, GrammarError> {
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(c) if !c.is_alphanumeric() => return Ok(c),
            _ => return Err(self.error("an escape is not known")),
        };
        let mut value = 0;
        for _ in 0..digits {
            let digit = self.next().and_then(|c| c.to_digit(16));
            value = value * 16 + digit.ok_or_else(|| self.error("an escape has too few digits"))?;
        }
        char::from_u32(value).ok_or_else(|| self.error("an escape is no character"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_classes_and_repetition() {
        let gbnf = "root ::= \"a\\n\" [^0-9\\]/] # note ::= \"x\"\n  ( Item-1 | . ){2,3}\nItem-1 ::= [a-z]+ \"\\x41\"\n";
        assert!(is_gbnf(gbnf));
        assert_eq!(
            to_lark(gbnf).unwrap(),
            "start: r_root\nr_root: \"a\\n\" /[^0-9\\x{5d}\\x{2f}]/ ( r_item_1 | /(?s:.)/ ){2,3}\nr_item_1: /[a-z]/+ \"A\"\n"
        );
        assert!(!is_gbnf("start: \"::=\" x\nx: /a/"));
    }

    #[test]
    fn errors_name_the_line() {
        for (gbnf, part) in [
            ("root ::= \"a", "line 1 of the GBNF grammar: a string"),
            ("root ::= [a", "a character class"),
            ("root ::=\n \"\\q\"", "line 2"),
            ("root ::= a{x}", "number of times"),
            ("\"a\" root ::= \"b\"", "a rule `name"),
            ("root ::= \"\\ud800\"", "no character"),
            ("root ::= ;", "`;`"),
        ] {
            let error = to_lark(gbnf).unwrap_err().to_string();
            assert!(error.contains(part), "{gbnf}: {error}");
        }
    }
}
