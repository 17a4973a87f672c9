//! Tokens and texts in the notation of a grammar.

use serde_json::Value;

/// A special token in the bytes that the parser reads.
pub(super) fn spelled(id: u32) -> Vec<u8> {
    let mut bytes = vec![toktrie::TokTrie::SPECIAL_TOKEN_MARKER];
    bytes.extend(format!("[{id}]").into_bytes());
    bytes
}

/// A text as a literal of a grammar.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
