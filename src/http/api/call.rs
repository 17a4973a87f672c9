//! A checked request for replies: the draft that the reader of a route fills.

use super::error::{ApiError, Words};
use super::format::Format;
use super::params::MAX_BIAS_COPIES;
use super::unknown::Unknown;
use crate::generate::GenerateRequest;

/// A checked request for replies. [`SharedBody::draft`](super::params::SharedBody::draft) makes it of the fields that all routes have,
/// without a prompt; a route's reader adds its own.
#[derive(Debug)]
pub(crate) struct Call {
    pub(super) model: Option<String>,
    pub(super) stream: bool,
    pub(super) request_id: Option<String>,
    pub(super) format: Format,
    pub(super) request: GenerateRequest,
    /// What errors of the walk call the fields, where the client has other names for them.
    pub(super) words: Words,
    /// Names that no reader knows.
    pub(super) unknown: Unknown,
    /// The seed that the client chose.
    pub(super) seed: Option<i64>,
    /// Whether the oldest turns are left out of a conversation that is too long.
    pub(super) drop_oldest: bool,
    /// Whether the answer comes before the reply, which is stored.
    pub(super) background: bool,
}

impl Call {
    /// Asks for logprobs of the reply's tokens, with so many alternatives of each.
    pub(super) fn score(&mut self, logprobs: Option<u32>) -> Result<(), ApiError> {
        if logprobs.is_none() && !self.request.sampling.logprob_token_ids.is_empty() {
            let message = "only allowed where logprobs of the reply are asked for";
            return Err(ApiError::invalid_value("logprob_token_ids", message));
        }
        self.format.logprobs = logprobs.is_some();
        self.request.sampling.logprobs = logprobs;
        Ok(())
    }

    /// Checks fields of the route together with those of all routes.
    pub(super) fn check(&self) -> Result<(), ApiError> {
        let GenerateRequest { sampling, prompts, n, grammar, .. } = &self.request;
        if grammar.is_some() && sampling.allowed_token_ids.is_some() {
            return Err(ApiError::invalid_value(
                "allowed_token_ids",
                "given together with a reply that must have a shape; use one of them",
            ));
        }
        let copies = prompts.len() * *n as usize;
        let entries = sampling.logit_bias.len();
        if entries.saturating_mul(copies) > MAX_BIAS_COPIES {
            return Err(ApiError::invalid_value(
                "logit_bias",
                format!("{entries} entries for {copies} replies are more than {MAX_BIAS_COPIES} in all"),
            ));
        }
        Ok(())
    }
}
