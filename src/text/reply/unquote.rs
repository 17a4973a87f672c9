//! The characters that a JSON string stands for, one by one.

/// A string that may hold an object.
#[derive(Debug, Clone)]
pub(super) struct Unquote {
    pub(super) quote: char,
    /// Number of open objects and arrays around the string.
    pub(super) depth: usize,
    /// Whether the object has begun.
    pub(super) begun: bool,
    /// The characters behind the quote, until the object begins.
    pub(super) seen: String,
    /// The characters behind a backslash.
    escape: Option<String>,
    /// The first half of a surrogate pair.
    high: Option<u32>,
}

impl Unquote {
    pub(super) fn new(quote: char, depth: usize) -> Self {
        Self { quote, depth, begun: false, seen: String::new(), escape: None, high: None }
    }

    /// Takes a character as written: the characters that it completes, and whether it ends the string.
    pub(super) fn take(&mut self, c: char) -> (Vec<char>, bool) {
        let Some(mut escape) = self.escape.take() else {
            return match c {
                '\\' => {
                    self.escape = Some(String::new());
                    (Vec::new(), false)
                }
                _ if c == self.quote => (Vec::new(), true),
                _ => (vec![c], false),
            };
        };
        if escape.is_empty() {
            let plain = match c {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'b' => '\u{8}',
                'f' => '\u{c}',
                '"' | '\\' | '/' | '\'' => c,
                'u' => {
                    self.escape = Some("u".to_owned());
                    return (Vec::new(), false);
                }
                _ => return (vec!['\\', c], false),
            };
            return (vec![plain], false);
        }
        escape.push(c);
        if !c.is_ascii_hexdigit() {
            return (std::iter::once('\\').chain(escape.chars()).collect(), false);
        }
        if escape.len() < 5 {
            self.escape = Some(escape);
            return (Vec::new(), false);
        }
        let unit = u32::from_str_radix(&escape[1..], 16).unwrap_or(0xfffd);
        match (self.high.take(), unit) {
            (_, 0xd800..=0xdbff) => {
                self.high = Some(unit);
                (Vec::new(), false)
            }
            (Some(high), 0xdc00..=0xdfff) => {
                let point = 0x1_0000 + ((high - 0xd800) << 10) + (unit - 0xdc00);
                (vec![char::from_u32(point).unwrap_or(char::REPLACEMENT_CHARACTER)], false)
            }
            _ => (vec![char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER)], false),
        }
    }
}
