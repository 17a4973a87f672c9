//! The embedded model's tokenizer for the tests of this module.

use perigee_text::Tokenizer;

/// A vocabulary that has every marker.
pub(super) fn nano_tokenizer() -> Tokenizer {
    let file = |name: &str| match name {
        "tiktoken.model" => Some(include_bytes!("../../nano/model/tiktoken.model").to_vec()),
        "tokenizer_config.json" => Some(include_bytes!("../../nano/model/tokenizer_config.json").to_vec()),
        _ => None,
    };
    Tokenizer::load(&file).unwrap()
}
