//! Strings of arguments: what is missing in their escapes, and where they end.

use std::fmt::Write as _;

use super::{At, MAX_DOUBT, Mend};

impl Mend {
    /// Ends an open string where the arguments end.
    pub(super) fn end_text(&mut self, out: &mut String) {
        let doubt = match self.at {
            At::Escape | At::Hex | At::EscapedQuote => std::mem::take(&mut self.doubt),
            _ => String::new(),
        };
        match self.at {
            At::Escape => self.sink(out).push_str("\\\\"),
            At::Hex => {
                self.sink(out).push_str("\\\\u");
                self.sink(out).push_str(&doubt);
            }
            At::EscapedQuote if !doubt.contains(['}', ']']) => self.sink(out).push_str("\\\""),
            At::EscapedQuote => {
                self.sink(out).push_str("\\\\\"");
                self.at = if self.in_key { At::Colon } else { At::After };
                return doubt.chars().for_each(|c| self.step(c, out));
            }
            At::Text | At::TextEnd => {}
            _ => return,
        }
        if !self.in_key {
            out.push('"');
            self.at = At::After;
        }
    }

    pub(super) fn begin_text(&mut self, quote: char, out: &mut String) {
        self.begin_value(out);
        out.push('"');
        self.in_key = false;
        self.quote = quote;
        self.mended |= quote == '\'';
        self.at = At::Text;
    }

    /// Where the text of the open string goes.
    pub(super) fn sink<'a>(&'a mut self, out: &'a mut String) -> &'a mut String {
        if self.in_key { &mut self.held } else { out }
    }

    pub(super) fn text(&mut self, c: char, out: &mut String) {
        match c {
            '\\' => self.at = At::Escape,
            _ if c == self.quote => self.at = At::TextEnd,
            '"' => self.sink(out).push_str("\\\""),
            ' '.. => self.sink(out).push(c),
            _ => {
                self.mended = true;
                let sink = self.sink(out);
                match c {
                    '\n' => sink.push_str("\\n"),
                    '\r' => sink.push_str("\\r"),
                    '\t' => sink.push_str("\\t"),
                    _ => write!(sink, "\\u{:04x}", u32::from(c)).expect("text grows"),
                }
            }
        }
    }

    pub(super) fn escape(&mut self, c: char, out: &mut String) {
        self.at = At::Text;
        match c {
            'u' => self.at = At::Hex,
            '"' if self.quote == '"' => self.at = At::EscapedQuote,
            '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => {
                let sink = self.sink(out);
                sink.push('\\');
                sink.push(c);
            }
            '\'' if self.quote == '\'' => self.sink(out).push('\''),
            _ => {
                self.mended = true;
                self.sink(out).push_str("\\\\");
                self.step(c, out);
            }
        }
    }

    pub(super) fn hex(&mut self, c: char, out: &mut String) {
        if c.is_ascii_hexdigit() {
            self.doubt.push(c);
            if self.doubt.len() < 4 {
                return;
            }
        } else {
            self.mended = true;
            self.sink(out).push('\\');
        }
        let digits = std::mem::take(&mut self.doubt);
        let sink = self.sink(out);
        sink.push_str("\\u");
        sink.push_str(&digits);
        self.at = At::Text;
        if !c.is_ascii_hexdigit() {
            self.step(c, out);
        }
    }

    pub(super) fn escaped_quote(&mut self, c: char, out: &mut String) {
        if (c.is_whitespace() || matches!(c, '}' | ']')) && self.doubt.len() < MAX_DOUBT {
            return self.doubt.push(c);
        }
        let doubt = std::mem::take(&mut self.doubt);
        self.sink(out).push_str("\\\"");
        self.at = At::Text;
        doubt.chars().for_each(|c| self.text(c, out));
        self.step(c, out);
    }

    pub(super) fn text_end(&mut self, c: char, out: &mut String) {
        if c.is_whitespace() && self.doubt.len() < MAX_DOUBT {
            return self.doubt.push(c);
        }
        let space = std::mem::take(&mut self.doubt);
        let ends = match c {
            ',' | '}' | ']' => true,
            ':' | '=' => self.in_key,
            // A comma is missing between lines.
            '"' | '\'' => c == self.quote && space.contains('\n'),
            _ => space.len() >= MAX_DOUBT,
        };
        if !ends {
            self.mended = true;
            let quote = if self.quote == '"' { "\\\"" } else { "'" };
            self.sink(out).push_str(quote);
            self.at = At::Text;
            space.chars().for_each(|c| self.text(c, out));
            return self.step(c, out);
        }
        self.sink(out).push('"');
        if self.in_key {
            self.end_key();
        } else {
            self.at = At::After;
        }
        self.held.push_str(&space);
        self.step(c, out);
    }

    pub(super) fn end_key(&mut self) {
        if self.open.len() == 1 {
            self.key = self.held[self.key_from..].trim_matches('"').to_owned();
        }
        self.at = At::Colon;
    }
}
