//! Mends the arguments of a call that are not quite JSON, as they stream.
//!
//! An object of JSON passes unchanged, byte for byte. The rules for what models write instead:
//!
//! - In a string: a control character becomes its escape. A backslash before a character that JSON
//!   does not escape stands for itself. A quote that nothing of JSON follows belongs to the string.
//! - Between values: a comma too many goes, one too few comes. Keys, and words that are no literals,
//!   get quotes; Python's quotes and literals become JSON's. A bracket closes what was left open in it.
//! - Around the object: a fence goes. An object inside a JSON string is taken out of it, as is an
//!   object or array where the function's schema wants one and no string.
//! - At the end: open strings and brackets are closed, and a key without a value goes.
//! - Nothing, `null` and `None` are the empty object.
//!
//! What is no object stays as it was written. The result depends on the text alone, never on where
//! it was cut.

use std::sync::Arc;

use super::unquote::Unquote;

mod strings;
mod words;

/// What the arguments of a call turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentsForm {
    /// A JSON object, as the model wrote it.
    Sound,
    /// A JSON object that differs from what the model wrote.
    Mended,
    /// No object, as the model wrote it.
    Invalid,
    /// The reply ended by a limit inside the arguments.
    Cut,
}

impl ArgumentsForm {
    /// All forms, in order of their numbers.
    pub const ALL: [Self; 4] = [Self::Sound, Self::Mended, Self::Invalid, Self::Cut];

    /// The name in answers and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sound => "sound",
            Self::Mended => "mended",
            Self::Invalid => "invalid",
            Self::Cut => "cut",
        }
    }
}

/// Most white space after a quote that may end a string, and most closing brackets after an escaped
/// one, that wait for what follows, in bytes.
const MAX_DOUBT: usize = 256;

/// The position in the arguments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum At {
    #[default]
    Start,
    /// Before the object, in the line that opens a fence.
    Fence,
    /// Before a key, or the end of the object.
    Key,
    Colon,
    /// Before a value, or the end of the array.
    Value,
    Text,
    /// Behind a backslash in a string.
    Escape,
    /// In the hexadecimal digits of an escape.
    Hex,
    /// Behind an escaped quote in a string, and behind brackets after it: a backslash that ends a
    /// path may stand before the quote that ends the string.
    EscapedQuote,
    /// Behind a quote that may end its string, and behind white space after it.
    TextEnd,
    /// In a word without quotes.
    Word,
    /// Behind a value in an object or array.
    After,
    Done,
    /// No object.
    Plain,
}

/// The arguments of one call under way.
#[derive(Debug, Clone, Default)]
pub(super) struct Mend {
    at: At,
    /// The open objects (`true`) and arrays, outermost first.
    open: Vec<bool>,
    /// Mended text that waits for the next value: a comma, a key, white space, the first brace.
    held: String,
    /// Text as written that waits for what follows it.
    doubt: String,
    /// All text as written, until the first value begins.
    raw: String,
    begun: bool,
    mended: bool,
    /// Whether the open string or word is a key.
    in_key: bool,
    /// The quote of the open string.
    quote: char,
    /// Where the key under way begins in `held`.
    key_from: usize,
    /// The last key of the outermost object.
    key: String,
    first_key: Option<String>,
    /// Properties of the outermost object that are objects or arrays and no strings.
    containers: Arc<[String]>,
    unquote: Option<Unquote>,
}

impl Mend {
    /// `containers`: the properties that the function's schema declares as objects or arrays.
    pub(super) fn new(containers: Arc<[String]>) -> Self {
        Self { containers, ..Self::default() }
    }

    /// Whether a string is open.
    pub(super) fn in_string(&self) -> bool {
        matches!(self.at, At::Text | At::Escape | At::Hex | At::EscapedQuote)
    }

    /// The first key of the object, once its value has begun.
    pub(super) fn first_key(&self) -> Option<&str> {
        self.first_key.as_deref()
    }

    /// Takes text as written; appends mended text to `out`.
    pub(super) fn push(&mut self, text: &str, out: &mut String) {
        for c in text.chars() {
            if !self.begun {
                self.raw.push(c);
            }
            self.quoted(c, out);
        }
    }

    /// Ends the arguments of a whole call.
    pub(super) fn finish(&mut self, out: &mut String) -> ArgumentsForm {
        if self.at == At::Done {
            return if self.mended { ArgumentsForm::Mended } else { ArgumentsForm::Sound };
        }
        self.end_open(out);
        if !self.begun {
            return self.finish_unbegun(out);
        }
        if self.at != At::Done {
            self.close_down_to(0, out);
        }
        ArgumentsForm::Mended
    }

    /// Ends the arguments of a call that a limit cut: they stay open.
    pub(super) fn cut(&mut self, out: &mut String) -> ArgumentsForm {
        if self.at == At::Done {
            return self.finish(out);
        }
        if !self.begun {
            out.push_str(self.raw.trim());
        } else if self.at == At::TextEnd && !self.in_key {
            out.push('"');
        }
        ArgumentsForm::Cut
    }

    /// Ends arguments of which nothing was given.
    fn finish_unbegun(&mut self, out: &mut String) -> ArgumentsForm {
        match self.raw.trim() {
            "" => {
                out.push_str("{}");
                ArgumentsForm::Sound
            }
            "null" | "None" | "{" => {
                out.push_str("{}");
                ArgumentsForm::Mended
            }
            raw => {
                out.push_str(raw);
                ArgumentsForm::Invalid
            }
        }
    }

    /// Ends an open string or word where the arguments end.
    fn end_open(&mut self, out: &mut String) {
        self.end_text(out);
        if self.at == At::Word && !self.in_key {
            let literals = ["true", "false", "null"];
            let whole = literals.into_iter().find(|literal| literal.starts_with(self.doubt.trim()));
            if let Some(whole) = whole {
                self.doubt = whole.to_owned();
            }
            self.end_word(out);
        }
    }

    /// Takes a character, out of the JSON string that holds the object if there is one.
    fn quoted(&mut self, c: char, out: &mut String) {
        let Some(mut unquote) = self.unquote.take() else { return self.step(c, out) };
        if !unquote.begun {
            unquote.seen.push(c);
        }
        let (chars, ended) = unquote.take(c);
        for c in chars {
            if unquote.begun {
                if !self.is_closed(unquote.depth) {
                    self.step(c, out);
                }
            } else if c == '{' || (c == '[' && unquote.depth > 0) {
                unquote.begun = true;
                self.mended = true;
                self.step(c, out);
            } else if !c.is_whitespace() {
                return self.requote(&unquote, out);
            }
        }
        if !ended {
            self.unquote = Some(unquote);
        } else if !unquote.begun {
            self.requote(&unquote, out);
        } else if !self.is_closed(unquote.depth) {
            match self.at {
                // The quotes within have no backslashes.
                At::Key | At::Colon | At::Value => self.step(c, out),
                _ => {
                    self.end_open(out);
                    self.close_down_to(unquote.depth, out);
                }
            }
        }
    }

    fn is_closed(&self, depth: usize) -> bool {
        self.at == At::Done || (depth > 0 && self.open.len() <= depth)
    }

    /// The string holds no object: it is a string.
    fn requote(&mut self, unquote: &Unquote, out: &mut String) {
        if unquote.depth == 0 {
            self.at = At::Plain;
            return;
        }
        self.begin_text(unquote.quote, out);
        unquote.seen.chars().for_each(|c| self.step(c, out));
    }

    fn step(&mut self, c: char, out: &mut String) {
        match self.at {
            At::Start | At::Fence => self.start(c),
            At::Key => self.before_key(c, out),
            At::Colon => self.before_colon(c, out),
            At::Value => self.before_value(c, out),
            At::Text => self.text(c, out),
            At::Escape => self.escape(c, out),
            At::Hex => self.hex(c, out),
            At::EscapedQuote => self.escaped_quote(c, out),
            At::TextEnd => self.text_end(c, out),
            At::Word => self.word(c, out),
            At::After => self.after(c, out),
            At::Done => self.mended |= !c.is_whitespace(),
            At::Plain => {}
        }
    }

    fn start(&mut self, c: char) {
        match c {
            '{' => {
                self.held.push('{');
                self.open.push(true);
                self.at = At::Key;
            }
            '`' => {
                self.mended = true;
                self.at = At::Fence;
            }
            _ if self.at == At::Fence || c.is_whitespace() => {}
            '"' | '\'' if self.unquote.is_none() => self.unquote = Some(Unquote::new(c, 0)),
            _ => self.at = At::Plain,
        }
    }

    fn before_key(&mut self, c: char, out: &mut String) {
        match c {
            '}' | ']' => self.close(c, out),
            '"' | '\'' => {
                self.in_key = true;
                self.quote = c;
                self.mended |= c == '\'';
                self.key_from = self.held.len();
                self.held.push('"');
                self.at = At::Text;
            }
            // A second brace among them, as templates escape one.
            ',' | ':' | '{' | '[' => self.mended = true,
            _ if c.is_whitespace() => self.held.push(c),
            _ => {
                self.mended = true;
                self.in_key = true;
                self.key_from = self.held.len();
                self.at = At::Word;
                self.doubt.push(c);
            }
        }
    }

    fn before_colon(&mut self, c: char, out: &mut String) {
        match c {
            ':' => {
                self.held.push(':');
                self.at = At::Value;
            }
            _ if c.is_whitespace() => self.held.push(c),
            _ => {
                self.mended = true;
                self.held.push(':');
                self.at = At::Value;
                if c != '=' {
                    self.step(c, out);
                }
            }
        }
    }

    fn before_value(&mut self, c: char, out: &mut String) {
        let in_object = self.open.last() == Some(&true);
        match c {
            '"' if self.unquote.is_none() && self.open.len() == 1 && self.containers.contains(&self.key) => {
                self.unquote = Some(Unquote::new(c, 1));
            }
            '"' | '\'' => self.begin_text(c, out),
            '{' | '[' => {
                self.begin_value(out);
                out.push(c);
                self.open.push(c == '{');
                self.at = if c == '{' { At::Key } else { At::Value };
            }
            ',' | '}' | ']' if in_object => {
                self.mended = true;
                self.begin_value(out);
                out.push_str("null");
                self.at = At::After;
                self.step(c, out);
            }
            '}' | ']' => self.close(c, out),
            ',' | ':' => self.mended = true,
            _ if c.is_whitespace() => self.held.push(c),
            _ => {
                self.in_key = false;
                self.at = At::Word;
                self.doubt.push(c);
            }
        }
    }

    /// Gives what waited for a value.
    fn begin_value(&mut self, out: &mut String) {
        if !std::mem::replace(&mut self.begun, true) {
            self.raw = String::new();
            self.first_key = Some(self.key.clone());
        }
        out.push_str(&self.held);
        self.held.clear();
    }

    fn after(&mut self, c: char, out: &mut String) {
        let next = if self.open.last() == Some(&true) { At::Key } else { At::Value };
        match c {
            '}' | ']' => self.close(c, out),
            ',' => {
                self.held.push(',');
                self.at = next;
            }
            _ if c.is_whitespace() => self.held.push(c),
            _ => {
                self.mended = true;
                self.held.push(',');
                self.at = next;
                self.step(c, out);
            }
        }
    }

    /// Closes the innermost object or array of the bracket's kind, and what is open within; a
    /// bracket without one is left out.
    fn close(&mut self, bracket: char, out: &mut String) {
        let Some(depth) = self.open.iter().rposition(|is_object| *is_object == (bracket == '}')) else {
            self.mended = true;
            return;
        };
        self.mended |= depth + 1 < self.open.len();
        self.close_down_to(depth, out);
    }

    /// Closes all but the outermost `depth` objects and arrays. What waited for a value goes, but for
    /// white space.
    fn close_down_to(&mut self, depth: usize, out: &mut String) {
        if matches!(self.at, At::Colon | At::Text | At::TextEnd | At::Word) {
            // A key without a value.
            if !self.begun {
                self.at = At::Plain;
                return;
            }
            self.held.clear();
            self.mended = true;
        }
        if !self.begun {
            self.begin_value(out);
        }
        self.mended |= self.held.contains(',');
        out.extend(self.held.drain(..).filter(|c| c.is_whitespace()));
        while self.open.len() > depth {
            out.push(if self.open.pop() == Some(true) { '}' } else { ']' });
        }
        self.at = if depth == 0 { At::Done } else { At::After };
    }
}

#[cfg(test)]
mod tests;
