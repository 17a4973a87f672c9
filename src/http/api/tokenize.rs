//! `/tokenize`, `/detokenize` and `/tokenizer_info`: the vocabulary over HTTP.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::json;
use super::messages::{self, Messages};
use super::params::token_id;
use super::unknown::Unknown;
use super::values::{Free, Idle, Int, List, TokenId};
use super::{ApiError, Limits};
use super::{reasoning, tools};
use crate::generate::Prompt;
use perigee_text::{ChatTemplate, Tokenizer};

/// Most ids of one `/detokenize`.
const MAX_IDS: usize = 4_194_304;

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct TokenizeBody {
    /// One of the names of `/v1/models`; the model served when absent.
    model: Option<String>,
    /// Either this or `messages`. What is the name of a special token and nothing else is that token.
    prompt: Option<String>,
    /// The conversation, oldest first.
    #[schemars(length(min = 1))]
    messages: Option<Messages>,
    /// Whether the prompt ends where the reply begins.
    add_generation_prompt: Option<bool>,
    /// The last message is the beginning of the reply.
    continue_final_message: Option<bool>,
    /// Variables of the chat template; `thinking` switches reasoning.
    #[schemars(extend("type" = "object"))]
    chat_template_kwargs: Option<Free>,
    /// Whether names of special tokens in `prompt` are these tokens: it was rendered elsewhere, and holds no
    /// text that a stranger wrote.
    parse_special: Option<bool>,
    /// Whether the answer has the text of each token too.
    return_token_strs: Option<bool>,
    /// Functions that may be called.
    #[schemars(schema_with = "tools::schema")]
    tools: Option<Free>,
    #[expect(dead_code, reason = "no prompt of this family begins with a token that only a flag adds")]
    add_special_tokens: Option<Idle>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct DetokenizeBody {
    /// One of the names of `/v1/models`; the model served when absent.
    model: Option<String>,
    /// Token ids.
    #[schemars(required)]
    tokens: Option<List<TokenId, MAX_IDS>>,
}

/// A checked `/tokenize`.
pub(super) struct TokenizeCall {
    pub(super) model: Option<String>,
    pub(super) prompt: Prompt,
    pub(super) token_strs: bool,
    pub(super) unknown: Unknown,
}

/// Reads and checks `/tokenize`: `prompt`, or `messages` for the chat template.
pub(super) fn read_tokenize(body: &[u8], limits: &Limits) -> Result<TokenizeCall, ApiError> {
    let (body, mut unknown) = json::read::<TokenizeBody>(body, limits)?;
    let prompt = match (body.prompt, body.messages) {
        (Some(_), Some(_)) => {
            return Err(ApiError::invalid_value("prompt", "either `prompt` or `messages`, not both"));
        }
        (None, None) => return Err(ApiError::missing("prompt")),
        (Some(text), None) => {
            for (name, given) in [
                ("tools", body.tools.is_some()),
                ("chat_template_kwargs", body.chat_template_kwargs.is_some()),
                ("add_generation_prompt", body.add_generation_prompt.is_some()),
                ("continue_final_message", body.continue_final_message.is_some()),
            ] {
                if given {
                    return Err(ApiError::invalid_value(name, "only allowed together with `messages`"));
                }
            }
            match body.parse_special {
                Some(true) => Prompt::Rendered(text),
                _ => Prompt::Text(text),
            }
        }
        (None, messages) => {
            if body.parse_special.is_some() {
                return Err(ApiError::invalid_value("parse_special", "only allowed together with `prompt`"));
            }
            let mut prompt = messages::check(messages)?;
            messages::end(&mut prompt, body.continue_final_message, body.add_generation_prompt)?;
            prompt.tools = tools::check(body.tools, limits.hosted_tools, &mut unknown)?;
            prompt.kwargs = reasoning::kwargs(body.chat_template_kwargs)?;
            Prompt::Chat(prompt)
        }
    };
    let token_strs = body.return_token_strs.unwrap_or(false);
    Ok(TokenizeCall { model: body.model, prompt, token_strs, unknown })
}

/// The answer of `/tokenize`.
#[derive(Serialize, JsonSchema)]
pub(super) struct TokenizeAnswer<'a> {
    pub(super) count: usize,
    pub(super) max_model_len: usize,
    pub(super) tokens: &'a [u32],
    pub(super) token_strs: Option<Vec<String>>,
}

/// The answer of `/detokenize`.
#[derive(Serialize, JsonSchema)]
pub(super) struct DetokenizeAnswer {
    pub(super) prompt: String,
}

/// A checked `/detokenize`.
pub(super) struct DetokenizeCall {
    pub(super) model: Option<String>,
    pub(super) ids: Vec<u32>,
    pub(super) unknown: Unknown,
}

/// Reads and checks `/detokenize`.
pub(super) fn read_detokenize(body: &[u8], limits: &Limits) -> Result<DetokenizeCall, ApiError> {
    let (body, unknown) = json::read::<DetokenizeBody>(body, limits)?;
    let tokens = body.tokens.ok_or_else(|| ApiError::missing("tokens"))?;
    let ids: Result<Vec<u32>, ApiError> =
        tokens.0.into_iter().map(|Int(id)| token_id("tokens", id, limits)).collect();
    Ok(DetokenizeCall { model: body.model, ids: ids?, unknown })
}

/// The answer of `/tokenizer_info`: what evaluation harnesses read before they trust a remote tokenizer.
#[derive(Serialize, JsonSchema)]
pub(super) struct TokenizerInfo<'a> {
    tokenizer_class: &'static str,
    vocab_size: usize,
    model_max_length: usize,
    bos_token: Option<String>,
    eos_token: Option<String>,
    pad_token: Option<String>,
    unk_token: Option<String>,
    add_bos_token: bool,
    clean_up_tokenization_spaces: bool,
    chat_template: Cow<'a, str>,
}

impl<'a> TokenizerInfo<'a> {
    pub(super) fn of(tokenizer: &Tokenizer, template: &'a ChatTemplate, max_model_len: usize) -> Self {
        use perigee_text::markers;
        let named = |name: &str| tokenizer.special_id(name).map(|_| name.to_owned());
        let eos = tokenizer
            .eos_token()
            .and_then(|id| tokenizer.token_bytes(id))
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
            .or_else(|| named(markers::EOS));
        Self {
            tokenizer_class: "TikTokenTokenizer",
            vocab_size: tokenizer.vocab_size(),
            model_max_length: max_model_len,
            bos_token: named(markers::BOS),
            eos_token: eos,
            pad_token: named(markers::PAD),
            unk_token: named(markers::UNK),
            add_bos_token: false,
            clean_up_tokenization_spaces: false,
            chat_template: template.source(),
        }
    }
}
