//! Reference data for the tests of this module.

use std::path::{Path, PathBuf};

use super::Tokenizer;

pub(super) fn shared_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared").join(name)
}

pub(super) fn shared(name: &str) -> Vec<u8> {
    let path = shared_path(name);
    std::fs::read(&path).unwrap_or_else(|error| {
        panic!(
            "reference data {}: {error}; the folder `shared` must stand beside the project",
            path.display()
        )
    })
}

/// The real vocabulary of K2.5 and K2.6.
pub(super) fn kimi() -> Tokenizer {
    let config = shared("kimi/tokenizer_config.json");
    Tokenizer::from_tiktoken(&shared("kimi/tiktoken.model"), Some(&config)).unwrap()
}

/// 256 single bytes and Kimi's special tokens from 256 on.
pub(super) fn nano_like() -> Tokenizer {
    let config = shared("golden/logits/kimi/tokenizer_config.json");
    Tokenizer::from_tiktoken(&shared("golden/logits/kimi/tiktoken.model"), Some(&config)).unwrap()
}
