//! Reference data for the tests of this module.

use std::path::{Path, PathBuf};

use super::Tokenizer;

/// `tests/golden/NAME`, see the README there.
pub(super) fn golden_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

pub(super) fn golden(name: &str) -> Vec<u8> {
    let path = golden_path(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The real vocabulary of K2.5 and K2.6.
pub(super) fn kimi() -> Tokenizer {
    let config = golden("kimi/tokenizer_config.json");
    Tokenizer::from_tiktoken(&golden("kimi/tiktoken.model"), Some(&config)).unwrap()
}

/// 256 single bytes and Kimi's special tokens from 256 on.
pub(super) fn nano_like() -> Tokenizer {
    let config = golden("logits/kimi/tokenizer_config.json");
    Tokenizer::from_tiktoken(&golden("logits/kimi/tiktoken.model"), Some(&config)).unwrap()
}
