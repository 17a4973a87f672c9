//! The scheduler's and the KV cache's settings.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How requests are batched.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Most sequences that run at once. Larger: more throughput under load, more workspace, slower single streams.
    pub max_num_seqs: usize,
    /// Token budget of one step over all sequences. Larger: faster long prefills, longer gaps between streamed tokens.
    pub max_num_batched_tokens: usize,
    /// Most prompt tokens computed in one step, 0 = the backend's default (CPU 512, GPUs 2,048).
    /// Larger: more prefill throughput, longer gaps between streamed tokens.
    pub max_prefill_tokens: usize,
    /// Time that a step aims at, milliseconds, 0 = none. Prompts are cut into smaller pieces, of 16 tokens at least, and drafts are
    /// shortened, so that streams go on and a new request is not kept waiting by the work of others. Smaller: shorter gaps
    /// between streamed tokens and shorter waits, slower prefill of long prompts.
    pub target_step_ms: f64,
    /// Most tokens of prompt and reply together, 0 = what the checkpoint allows. Larger: more KV blocks a sequence may take.
    pub max_model_len: usize,
    /// Most requests that wait. One more is answered 429 with Retry-After. Larger: longer waits instead of refusals.
    pub max_queue_len: usize,
    /// Most prompt tokens that wait in the queue, over all requests, 0 = no limit. Larger: longer waits instead of refusals.
    pub max_queue_tokens: usize,
    /// Longest time of a step, seconds; a longer one counts as stuck: /health says so, and the process ends with exit code 4
    /// and its last steps in the log, so that it is started anew. 0 = no limit. Far above any step: thousands of prompt tokens
    /// of a large model on a slow CPU take seconds. Larger: a device that hangs is noticed later.
    pub step_timeout_s: f64,
    /// Prompts of at least this many tokens use the expanded form of attention, shorter ones the absorbed form. Larger: faster
    /// reuse of short conversations' prefixes, slower prefill of medium prompts.
    pub expand_min_prompt_tokens: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_num_seqs: 256,
            max_num_batched_tokens: 8192,
            max_prefill_tokens: 0,
            target_step_ms: 0.0,
            max_model_len: 0,
            max_queue_len: 1024,
            max_queue_tokens: 0,
            step_timeout_s: 300.0,
            expand_min_prompt_tokens: 64,
        }
    }
}

/// Numbers of a scheduler: the settings, completed by the backend, the checkpoint and the memory
/// plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Upper bound on sequences that run at once.
    pub max_num_seqs: usize,
    /// Upper bound on the tokens of one step.
    pub max_num_batched_tokens: usize,
    /// Upper bound on the prompt (and recomputed) tokens of one step.
    pub max_prefill_tokens: usize,
    /// Time that a step aims at; zero = none.
    pub target_step: Duration,
    /// Upper bound on prompt and reply tokens of one sequence.
    pub max_model_len: usize,
    /// Tokens per KV block.
    pub block_size: usize,
    /// Blocks of the KV cache.
    pub num_blocks: usize,
    /// Whether full blocks are kept after their sequence and matched by later prompts.
    pub prefix_caching: bool,
    /// Prompts of at least this many tokens use the expanded form of attention.
    pub expand_min_prompt_tokens: usize,
}

/// Reason why these numbers cannot make a scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LimitsError {
    /// A count that must be at least 1.
    #[error("{field} is 0, must be at least 1")]
    Zero {
        /// Name of the number.
        field: &'static str,
    },
    /// A number above the range of the kernels' 32-bit indices.
    #[error("{field} is {value}, limit {limit}: lower it")]
    TooLarge {
        /// Name of the number.
        field: &'static str,
        /// Value of the number.
        value: usize,
        /// Largest allowed value.
        limit: usize,
    },
    /// Every running sequence needs at least one token of a step.
    #[error(
        "max_num_seqs is {max_num_seqs}, more than max_num_batched_tokens {max_num_batched_tokens}: a step could not give every \
         running sequence a token; lower the first or raise the second"
    )]
    TooFewTokens {
        /// Upper bound on running sequences.
        max_num_seqs: usize,
        /// Token budget of a step.
        max_num_batched_tokens: usize,
    },
    /// The prompt budget exceeds the token budget of a step.
    #[error(
        "max_prefill_tokens is {max_prefill_tokens}, more than max_num_batched_tokens {max_num_batched_tokens}: lower the first \
         or raise the second"
    )]
    PrefillAboveBudget {
        /// Prompt budget of a step.
        max_prefill_tokens: usize,
        /// Token budget of a step.
        max_num_batched_tokens: usize,
    },
    /// The length exceeds the one the checkpoint was trained for.
    #[error(
        "max_model_len is {max_model_len}, the checkpoint allows {checkpoint_max_len}: lower it, or set 0 for the checkpoint's"
    )]
    BeyondCheckpoint {
        /// Requested length, tokens.
        max_model_len: usize,
        /// Longest length of the checkpoint, tokens.
        checkpoint_max_len: usize,
    },
}

impl Config {
    /// `step_timeout_s`; zero = no limit.
    pub fn step_timeout(&self) -> Duration {
        Duration::try_from_secs_f64(self.step_timeout_s).unwrap_or(Duration::ZERO)
    }

    /// Completes the settings. `default_prefill_tokens` replaces `max_prefill_tokens` = 0 (cut to
    /// the token budget), `checkpoint_max_len` replaces `max_model_len` = 0.
    pub fn limits(
        &self,
        default_prefill_tokens: usize,
        checkpoint_max_len: usize,
        block_size: usize,
        num_blocks: usize,
        prefix_caching: bool,
    ) -> Result<Limits, LimitsError> {
        let or = |value: usize, default: usize| if value == 0 { default } else { value };
        if self.max_model_len > checkpoint_max_len {
            return Err(LimitsError::BeyondCheckpoint {
                max_model_len: self.max_model_len,
                checkpoint_max_len,
            });
        }
        let limits = Limits {
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_prefill_tokens: or(
                self.max_prefill_tokens,
                default_prefill_tokens.min(self.max_num_batched_tokens),
            ),
            target_step: Duration::try_from_secs_f64(self.target_step_ms / 1e3).unwrap_or_default(),
            max_model_len: or(self.max_model_len, checkpoint_max_len),
            block_size,
            num_blocks,
            prefix_caching,
            expand_min_prompt_tokens: self.expand_min_prompt_tokens,
        };
        limits.validate().map(|()| limits)
    }
}

impl Limits {
    /// Errors: the first combination of numbers that cannot work.
    pub fn validate(&self) -> Result<(), LimitsError> {
        // Positions and block ids are i32 in kernels.
        let limit = i32::MAX as usize;
        for (field, value) in [
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("max_prefill_tokens", self.max_prefill_tokens),
            ("max_model_len", self.max_model_len),
            ("block_size", self.block_size),
            ("num_blocks", self.num_blocks),
        ] {
            if value == 0 {
                return Err(LimitsError::Zero { field });
            }
            if value > limit {
                return Err(LimitsError::TooLarge { field, value, limit });
            }
        }
        if self.max_num_seqs > self.max_num_batched_tokens {
            return Err(LimitsError::TooFewTokens {
                max_num_seqs: self.max_num_seqs,
                max_num_batched_tokens: self.max_num_batched_tokens,
            });
        }
        if self.max_prefill_tokens > self.max_num_batched_tokens {
            return Err(LimitsError::PrefillAboveBudget {
                max_prefill_tokens: self.max_prefill_tokens,
                max_num_batched_tokens: self.max_num_batched_tokens,
            });
        }
        Ok(())
    }

    /// Reply tokens that fit after a prompt of `prompt_len` tokens, in the model's length and in
    /// the whole KV cache. `None` when the prompt itself does not fit; 0 when the prompt fits and
    /// no reply token does.
    pub fn max_tokens_that_fit(&self, prompt_len: usize) -> Option<usize> {
        // The last token of a reply is never computed, so it needs no slot.
        let by_blocks = (self.num_blocks * self.block_size).checked_sub(prompt_len)? + 1;
        Some(self.max_model_len.checked_sub(prompt_len)?.min(by_blocks))
    }

    /// Longest sequence, prompt and reply tokens, that can run; for the text of a refusal.
    pub fn max_sequence_len(&self) -> usize {
        self.max_model_len.min(self.num_blocks * self.block_size + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(change: impl FnOnce(&mut Config)) -> Result<Limits, LimitsError> {
        let mut config = Config::default();
        change(&mut config);
        config.limits(512, 4096, 16, 100, true)
    }

    #[test]
    fn zero_means_the_default_of_the_backend_and_the_checkpoint() {
        let found = limits(|_| ()).unwrap();
        assert_eq!((found.max_prefill_tokens, found.max_model_len), (512, 4096));
        let found = limits(|c| (c.max_num_batched_tokens, c.max_model_len) = (300, 77)).unwrap();
        assert_eq!((found.max_prefill_tokens, found.max_model_len), (300, 77));
    }

    #[test]
    fn impossible_combinations_name_both_values_and_the_remedy() {
        let check = |change: fn(&mut Config), words: &[&str]| {
            let message = limits(change).unwrap_err().to_string();
            for word in words {
                assert!(message.contains(word), "{message} lacks {word}");
            }
        };
        check(|c| c.max_num_seqs = 0, &["max_num_seqs", "at least 1"]);
        check(
            |c| c.max_num_batched_tokens = 255,
            &["max_num_seqs is 256", "255", "lower the first or raise"],
        );
        check(|c| c.max_prefill_tokens = 8193, &["max_prefill_tokens is 8193", "8192", "lower"]);
        check(|c| c.max_model_len = 5000, &["max_model_len is 5000", "4096", "set 0"]);
        let message = Config::default().limits(512, 4096, 1 << 40, 1, true).unwrap_err().to_string();
        assert!(message.contains("block_size is 1099511627776") && message.contains("2147483647"));
    }

    #[test]
    fn room_for_a_reply_is_bounded_by_length_and_by_blocks() {
        let limits = Limits { num_blocks: 10, max_model_len: 200, ..limits(|_| ()).unwrap() };
        for (prompt, room) in [(1, Some(160)), (160, Some(1)), (161, None), (usize::MAX, None)] {
            assert_eq!(limits.max_tokens_that_fit(prompt), room, "prompt of {prompt}");
        }
        let short = Limits { max_model_len: 20, ..limits };
        for (prompt, room) in [(1, Some(19)), (20, Some(0)), (21, None)] {
            assert_eq!(short.max_tokens_that_fit(prompt), room, "prompt of {prompt}");
        }
        assert_eq!((limits.max_sequence_len(), short.max_sequence_len()), (161, 20));
    }
}
