//! The place of the last byte in a JSON text: as much of a lexer as a search for the end needs.
//!
//! Input is limited to bytes that a JSON grammar has allowed, so there are no errors.

/// The element that the next byte belongs to.
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

/// The place, and the containers open around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JsonPlace {
    at: At,
    /// `{` and `[`, outermost first.
    open: Vec<u8>,
    /// Whether the last byte was a backslash inside quotes.
    escaped: bool,
    /// Bytes of the number or literal, and digits of its exponent where it has one.
    scalar: usize,
    exponent: Option<usize>,
}

/// Most bytes of a number, and most digits of an exponent: longer ones are out of the range of JSON
/// readers.
const MAX_NUMBER_BYTES: usize = 40;
const MAX_EXPONENT_DIGITS: usize = 2;

impl JsonPlace {
    /// The place before the first byte.
    pub(super) fn start() -> Self {
        Self { at: At::Value, open: Vec::new(), escaped: false, scalar: 0, exponent: None }
    }

    pub(super) fn at(&self) -> At {
        self.at
    }

    /// Whether the last byte was a backslash, so that a following quote does not end the text.
    pub(super) fn is_escaped(&self) -> bool {
        self.escaped
    }

    /// Whether a number exceeds the range of JSON readers. A grammar has no such bound, and a model
    /// may write digits without end.
    pub(super) fn is_overlong(&self) -> bool {
        self.scalar > MAX_NUMBER_BYTES || self.exponent.is_some_and(|digits| digits > MAX_EXPONENT_DIGITS)
    }

    /// Advances over one byte.
    pub(super) fn feed(&mut self, byte: u8) {
        self.feed_place(byte);
        if self.at != At::Scalar {
            (self.scalar, self.exponent) = (0, None);
            return;
        }
        self.scalar += 1;
        match (byte, &mut self.exponent) {
            (b'0'..=b'9', Some(digits)) => *digits += 1,
            // `true` and `false` contain an `e` too, without digits after it.
            (b'e' | b'E', None) => self.exponent = Some(0),
            _ => {}
        }
    }

    fn feed_place(&mut self, byte: u8) {
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
    fn overlong_numbers() {
        for (text, overlong) in [
            ("1234567890123456789012345678901234567890", false),
            ("12345678901234567890123456789012345678901", true),
            ("[1e99, 1E+9", false),
            ("1.5e100", true),
            ("[1e99, true, 1e100, ", false),
        ] {
            let mut place = JsonPlace::start();
            text.bytes().for_each(|byte| place.feed(byte));
            assert_eq!(place.is_overlong(), overlong, "{text}");
        }
    }

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
