//! A response that is answered before it is there: the work goes on without a client, and its end is stored.

use std::sync::Arc;

use perigee_text::Tokenizer;

use super::super::format::Format;
use super::super::write::{self, TokenText};
use super::super::{ApiError, Summary};
use super::answer::ResponsesAnswer;
use super::stored::{Begun, TooLarge};
use crate::generate::Replies;

/// The work on a response that was answered.
pub struct Background {
    replies: Replies,
    format: Format,
    tokenizer: Arc<Tokenizer>,
    begun: Begun,
    answer: Vec<u8>,
}

impl Background {
    /// Stores the response as one in progress. Errors: 400, another one in progress has its id; 503, there is no room for it.
    pub(in super::super) fn begin(
        replies: Replies,
        mut format: Format,
        tokenizer: Arc<Tokenizer>,
    ) -> Result<Self, ApiError> {
        let keep = format.keep.take();
        let keep = keep.ok_or_else(|| ApiError::internal("a response in the background has no place"))?;
        let answer = write::document(&ResponsesAnswer::in_progress(&format));
        let begun = keep.begin(&format.id, answer.clone())?;
        Ok(Self { replies, format, tokenizer, begun, answer })
    }

    /// JSON of the response in progress.
    pub fn answer(&self) -> &[u8] {
        &self.answer
    }

    /// Works to the end of the response, or until it is cancelled, deleted or `cut` resolves. Errors: why the
    /// stored response has failed.
    pub async fn run(mut self, cut: impl Future<Output = ()>, summary: &mut Summary) -> Result<(), ApiError> {
        let ended = tokio::select! {
            full = self.replies.collect() => full.map_err(ApiError::from),
            () = self.begun.cancelled() => {
                summary.count(&self.replies);
                summary.finish = "cancelled";
                return Ok(());
            }
            () = cut => Err(ApiError::shutdown()),
        };
        summary.count(&self.replies);
        let ended = ended.and_then(|full| {
            let show = TokenText { tokenizer: &self.tokenizer, as_ids: self.format.tokens_as_ids };
            let usage = self.replies.usage();
            let response = write::document(&ResponsesAnswer::of(&self.format, &show, usage, &full));
            summary.finish = full.last().map_or("", |reply| write::finish_reason(&reply.finish));
            self.begun.end(response).map_err(|TooLarge| ApiError::response_too_large())
        });
        if let Err(error) = &ended {
            summary.finish = error.code;
            let failed = write::document(&ResponsesAnswer::failed(&self.format, error));
            // As large as the response in progress, which had room.
            if let Err(TooLarge) = self.begun.end(failed) {
                tracing::warn!(id = self.format.id, "a failed response has no room, and is forgotten");
            }
        }
        ended
    }
}
