//! The `tiktoken.model` file: tokens in rank order.

use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Slots for special tokens after the base ranks.
pub(super) const NUM_SPECIAL_SLOTS: u32 = 256;
/// Most base tokens; keeps a hostile file from taking memory without bound.
const MAX_TOKENS: usize = 1 << 21;
/// Longest token, bytes; Kimi's longest is 80.
const MAX_TOKEN_BYTES: usize = 512;

/// Tokens in rank order. Errors: the reason, with the line.
pub(super) fn parse(model: &[u8]) -> Result<Vec<Box<[u8]>>, String> {
    let mut ranked: Vec<(usize, Box<[u8]>)> = Vec::with_capacity(model.len() / 17);
    for (number, line) in model.split(|&byte| byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        let at = |reason: &str| format!("line {}: {reason}", number + 1);
        if ranked.len() == MAX_TOKENS {
            return Err(at(&format!("more than {MAX_TOKENS} tokens")));
        }
        let space = line.iter().position(|&byte| byte == b' ').ok_or_else(|| at("no rank"))?;
        let token = STANDARD.decode(&line[..space]).map_err(|error| at(&format!("token: {error}")))?;
        if token.is_empty() || token.len() > MAX_TOKEN_BYTES {
            return Err(at(&format!("token of {} bytes, allowed: 1 to {MAX_TOKEN_BYTES}", token.len())));
        }
        let rank = std::str::from_utf8(&line[space + 1..]).ok().and_then(|rank| rank.trim().parse().ok());
        ranked.push((rank.ok_or_else(|| at("the rank is not a number"))?, token.into()));
    }
    ranked.sort_by_key(|&(rank, _)| rank);
    if let Some((expected, (rank, _))) =
        ranked.iter().enumerate().find(|(expected, (rank, _))| expected != rank)
    {
        return Err(format!("ranks are not contiguous from 0: expected {expected}, found {rank}"));
    }
    let tokens: Vec<_> = ranked.into_iter().map(|(_, token)| token).collect();
    let mut seen: HashSet<&[u8], ahash::RandomState> =
        HashSet::with_capacity_and_hasher(tokens.len(), Default::default());
    if let Some(rank) = tokens.iter().position(|token| !seen.insert(token)) {
        return Err(format!("token of rank {rank} appears twice"));
    }
    match (0..=u8::MAX).find(|&byte| !seen.contains([byte].as_slice())) {
        Some(byte) => Err(format!("byte {byte:#04x} has no token; all 256 must have one")),
        None => Ok(tokens),
    }
}

/// GPT-2's spelling of bytes as printable characters: itself where printable Latin-1, else the next character from U+0100.
pub(super) fn byte_alphabet() -> [char; 256] {
    let mut alphabet = ['\0'; 256];
    let mut next = 0x100;
    for byte in 0..=u8::MAX {
        let printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        alphabet[byte as usize] = if printable {
            byte as char
        } else {
            next += 1;
            char::from_u32(next - 1).expect("U+0100.. are characters")
        };
    }
    alphabet
}

#[cfg(test)]
mod tests {
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    use super::*;

    #[test]
    fn alphabet_is_the_byte_level_one() {
        let ours: HashSet<char> = byte_alphabet().into_iter().collect();
        let theirs: HashSet<char> = ByteLevel::alphabet().into_iter().collect();
        assert_eq!(ours, theirs);
        assert_eq!(byte_alphabet()[b' ' as usize], 'Ġ');
        assert_eq!(byte_alphabet()[b'\n' as usize], 'Ċ');
    }

    #[test]
    fn bad_files_are_refused_with_the_line() {
        let all: String = (0..=255u8).map(|byte| format!("{} {byte}\n", STANDARD.encode([byte]))).collect();
        assert_eq!(parse(all.as_bytes()).unwrap().len(), 256);
        let cases: [(String, &str); 9] = [
            ("!!! 0".into(), "line 1: token"),
            ("QQ==".into(), "line 1: no rank"),
            ("QQ== x".into(), "line 1: the rank is not a number"),
            ("QQ== -1".into(), "line 1: the rank is not a number"),
            ("QQ== 5".into(), "expected 0, found 5"),
            ("QQ== 0\nQg== 0".into(), "expected 1, found 0"),
            ("QQ== 0\nQQ== 1".into(), "rank 1 appears twice"),
            ("QQ== 0".into(), "byte 0x00 has no token"),
            (format!("{all}{} 256", STANDARD.encode([7u8; 600])), "line 257: token of 600 bytes"),
        ];
        for (file, reason) in cases {
            let error = parse(file.as_bytes()).unwrap_err();
            assert!(error.contains(reason), "{error} does not contain {reason}");
        }
        assert!(parse(&[0xff, 0xfe, 0x20]).is_err());
        assert!(parse(b"").is_err());
    }
}
