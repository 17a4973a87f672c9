//! The position in a JSON text, told from its characters alone: inside a string, or after the end
//! of the object.

/// The scan of one call's arguments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct JsonScan {
    begun: bool,
    /// Whether the text begins as an object, whose end can be recognised.
    is_object: bool,
    depth: u32,
    in_string: bool,
    escaped: bool,
    done: bool,
}

impl JsonScan {
    /// Whether any character but white space was read.
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Whether a string is open.
    pub(super) fn in_string(&self) -> bool {
        self.in_string
    }

    /// Scans `text`; returns the number of bytes that belong to the value. Bytes after the end of
    /// an object do not.
    pub(super) fn take(&mut self, text: &str) -> usize {
        if self.done {
            return 0;
        }
        for (at, byte) in text.bytes().enumerate() {
            if !self.begun && !byte.is_ascii_whitespace() {
                self.begun = true;
                self.is_object = byte == b'{';
            }
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                b'{' | b'[' if !self.in_string => self.depth += 1,
                b'}' | b']' if !self.in_string => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 && self.is_object {
                        self.done = true;
                        return at + 1;
                    }
                }
                _ => {}
            }
        }
        text.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_ends_where_its_brace_does() {
        for (text, taken) in [
            (r#"{"a": "}"} rest"#, 10),
            (r#"{"a": {"b": [1, "]\"}"]}}x"#, 25),
            ("{", 1),
            ("[1] x", 5),
            ("\"a\" {", 5),
        ] {
            let mut whole = JsonScan::default();
            assert_eq!(whole.take(text), taken, "{text}");
            let mut cut = JsonScan::default();
            let sum: usize = text.chars().map(|c| cut.take(c.encode_utf8(&mut [0; 4]))).sum();
            assert_eq!((sum, cut), (taken, whole), "{text}");
        }
    }
}
