//! Answers of the routes that count the tokens of a prompt.

use schemars::JsonSchema;
use serde::Serialize;

use super::anthropic::CountTokensAnswer;
use super::format::Kind;
use super::write;

/// The answer of `/v1/responses/input_tokens`.
#[derive(Serialize, JsonSchema)]
pub(super) struct InputTokensAnswer {
    #[schemars(extend("const" = "response.input_tokens"))]
    object: &'static str,
    input_tokens: usize,
}

/// The answer of `/v1/tokenizers/estimate-token-count`, as the vendor of the models has it.
#[derive(Serialize, JsonSchema)]
pub(super) struct TokenCountAnswer {
    data: TokenCount,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct TokenCount {
    total_tokens: usize,
}

/// The answer in the words of a route that generates.
pub(super) fn counted(kind: Kind, count: usize) -> Vec<u8> {
    match kind {
        Kind::Messages => write::document(&CountTokensAnswer { input_tokens: count }),
        Kind::Responses => {
            write::document(&InputTokensAnswer { object: "response.input_tokens", input_tokens: count })
        }
        Kind::Chat | Kind::Completion | Kind::Tokens => {
            write::document(&TokenCountAnswer { data: TokenCount { total_tokens: count } })
        }
    }
}
