//! Tokens of PTX text with their lines.

use super::ParseError;

/// A token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Token<'a> {
    /// An identifier, directive, opcode or register with its dots and double colons.
    Word(&'a str),
    /// An integer literal; a minus sign is a token of its own.
    Integer(u64),
    /// A float literal as bits: `0f` single, `0d` double or decimal (double).
    Single(u32),
    Double(u64),
    /// A quoted string without its quotes.
    Text(&'a str),
    Punct(u8),
}

/// Splits `text` into tokens with line numbers from 1; comments are dropped.
pub(super) fn tokenize(text: &str) -> Result<Vec<(Token<'_>, u32)>, ParseError> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::with_capacity(text.len() / 4);
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let byte = bytes[at];
        let start = at;
        match byte {
            b'\n' => {
                line += 1;
                at += 1;
            }
            b' ' | b'\t' | b'\r' => at += 1,
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                at = text[at..].find('\n').map_or(bytes.len(), |end| at + end);
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let end =
                    text[at..].find("*/").ok_or_else(|| ParseError::new(line, "a comment has no end"))?;
                line += text[at..at + end].matches('\n').count() as u32;
                at += end + 2;
            }
            b'"' => {
                let length =
                    text[at + 1..].find('"').ok_or_else(|| ParseError::new(line, "a string has no end"))?;
                tokens.push((Token::Text(&text[at + 1..at + 1 + length]), line));
                at += length + 2;
            }
            b'0'..=b'9' => {
                while at < bytes.len() && (bytes[at].is_ascii_alphanumeric() || bytes[at] == b'.') {
                    let exponent = matches!(bytes[at], b'e' | b'E') && !text[start..at].starts_with("0");
                    at += 1;
                    if exponent && matches!(bytes.get(at), Some(b'+' | b'-')) {
                        at += 1;
                    }
                }
                let literal = &text[start..at];
                let token = number(literal)
                    .ok_or_else(|| ParseError::new(line, format!("`{literal}` is not a number")))?;
                tokens.push((token, line));
            }
            _ if is_word(byte) => {
                while at < bytes.len() && (is_word(bytes[at]) || bytes[at].is_ascii_digit()) {
                    at += 1;
                    // `::` joins two words, a single colon ends a label.
                    if bytes.get(at) == Some(&b':') && bytes.get(at + 1) == Some(&b':') {
                        at += 2;
                    }
                }
                tokens.push((Token::Word(&text[start..at]), line));
            }
            _ if byte.is_ascii_punctuation() => {
                tokens.push((Token::Punct(byte), line));
                at += 1;
            }
            _ => {
                let character = text[at..].chars().next().unwrap_or('?');
                return Err(ParseError::new(line, format!("unexpected character `{character}`")));
            }
        }
    }
    Ok(tokens)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

fn number(literal: &str) -> Option<Token<'static>> {
    let hex = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let (prefix, rest) = literal.split_at(literal.len().min(2));
    Some(match prefix {
        "0f" | "0F" => Token::Single(u32::try_from(hex(rest)?).ok()?),
        "0d" | "0D" => Token::Double(hex(rest)?),
        "0x" | "0X" => Token::Integer(hex(rest.trim_end_matches('U'))?),
        "0b" | "0B" => Token::Integer(u64::from_str_radix(rest.trim_end_matches('U'), 2).ok()?),
        _ if literal.contains(['.', 'e', 'E']) => Token::Double(literal.parse::<f64>().ok()?.to_bits()),
        _ => {
            let digits = literal.trim_end_matches('U');
            match digits.strip_prefix('0') {
                Some(octal) if !octal.is_empty() => Token::Integer(u64::from_str_radix(octal, 8).ok()?),
                _ => Token::Integer(digits.parse().ok()?),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use Token::*;

    #[test]
    fn tokens() {
        let text =
            "add.s32 %r1, 0x10, -7; // note\nL1: mov.f32 %f, 0f3F800000;\n.shared::cta /* a\nb */ 1.5 017";
        let tokens: Vec<_> = tokenize(text).unwrap();
        let expected = [
            (Word("add.s32"), 1),
            (Word("%r1"), 1),
            (Punct(b','), 1),
            (Integer(16), 1),
            (Punct(b','), 1),
            (Punct(b'-'), 1),
            (Integer(7), 1),
            (Punct(b';'), 1),
            (Word("L1"), 2),
            (Punct(b':'), 2),
            (Word("mov.f32"), 2),
            (Word("%f"), 2),
            (Punct(b','), 2),
            (Single(0x3f80_0000), 2),
            (Punct(b';'), 2),
            (Word(".shared::cta"), 3),
            (Double(1.5f64.to_bits()), 4),
            (Integer(15), 4),
        ];
        assert_eq!(tokens, expected);
        for bad in ["\"open", "/* open", "0x", "é", "12z"] {
            assert!(tokenize(bad).is_err(), "{bad}");
        }
    }
}
