//! Where in a JSON text its last byte stands: enough of a lexer to know what would end the text.
//!
//! It is fed only bytes that a JSON grammar has allowed, so it never has to refuse anything.

/// What the next byte belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    /// A value begins here.
    Value,
    /// A key begins here, or the object ends.
    Key,
    /// Inside a key's quotes.
    KeyText,
    /// Inside a string value's quotes.
    ValueText,
    /// Between a key and its colon.
    Colon,
    /// Inside a number or a literal.
    Scalar,
    /// After a value.
    After,
}

/// The place, and the containers that are open around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JsonPlace {
    at: At,
    /// `{` and `[`, outermost first.
    open: Vec<u8>,
    /// The last byte was a backslash inside quotes.
    escaped: bool,
}

impl JsonPlace {
    /// Before the text.
    pub(super) fn start() -> Self {
        Self { at: At::Value, open: Vec::new(), escaped: false }
    }

    pub(super) fn at(&self) -> At {
        self.at
    }

    /// Moves over one byte.
    pub(super) fn feed(&mut self, byte: u8) {
        if matches!(self.at, At::KeyText | At::ValueText) {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.at = if self.at == At::KeyText { At::Colon } else { At::After },
                _ => {}
            }
            return;
        }
        match (byte, self.at) {
            (b' ' | b'\t' | b'\n' | b'\r', At::Scalar) => self.at = At::After,
            (b' ' | b'\t' | b'\n' | b'\r', _) => {}
            (b'"', At::Key) => self.at = At::KeyText,
            (b'"', At::Value) => self.at = At::ValueText,
            (b'{', At::Value) => {
                self.open.push(byte);
                self.at = At::Key;
            }
            (b'[', At::Value) => self.open.push(byte),
            (b'}' | b']', _) => {
                self.open.pop();
                self.at = At::After;
            }
            (b':', _) => self.at = At::Value,
            (b',', _) => self.at = if self.open.last() == Some(&b'{') { At::Key } else { At::Value },
            (_, At::Value) => self.at = At::Scalar,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        for (text, at) in [
            ("", At::Value),
            ("{", At::Key),
            ("{ \"a", At::KeyText),
            ("{\"a\\\"", At::KeyText),
            ("{\"a\"", At::Colon),
            ("{\"a\" :", At::Value),
            ("{\"a\": \"x\\\\", At::ValueText),
            ("{\"a\": \"}\"", At::After),
            ("{\"a\": 1", At::Scalar),
            ("{\"a\": 1 ", At::After),
            ("{\"a\": 1,", At::Key),
            ("[1,", At::Value),
            ("[tru", At::Scalar),
            ("[true]", At::After),
            ("{\"a\": [{\"b\": null}, ", At::Value),
            ("{\"a\": [{\"b\": null}], ", At::Key),
        ] {
            let mut place = JsonPlace::start();
            text.bytes().for_each(|byte| place.feed(byte));
            assert_eq!(place.at(), at, "{text}");
        }
    }
}
