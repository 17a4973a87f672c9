//! What routers in front of several servers ask besides the model's routes: facts of the server, and its load.
//!
//! The words are SGLang's (`/server_info`, `/model_info`, `/v1/loads`), which its gateway and that one's successors read. Facts that a process
//! without data parallelism does not have are those of one rank.

use schemars::JsonSchema;
use serde::Serialize;

use super::ModelCard;
use crate::generate::{EngineFacts, EngineSnapshot};

/// The answer of `/server_info`. Paths are names: where the files lie is nobody's business outside of this machine.
#[derive(Serialize, JsonSchema)]
pub(super) struct ServerInfo<'a> {
    model_path: &'a str,
    served_model_name: &'a str,
    tokenizer_path: &'a str,
    version: &'a str,
    engine: &'a str,
    device: &'a str,
    tp_size: usize,
    dp_size: usize,
    context_length: usize,
    max_total_num_tokens: usize,
    max_running_requests: usize,
    page_size: usize,
    kv_cache_dtype: &'a str,
    disaggregation_mode: &'a str,
}

impl<'a> ServerInfo<'a> {
    pub(super) fn of(card: &'a ModelCard, facts: &'a EngineFacts) -> Self {
        Self {
            model_path: card.root(),
            served_model_name: card.name(),
            tokenizer_path: card.root(),
            version: env!("CARGO_PKG_VERSION"),
            engine: "perigee",
            device: facts.backend,
            tp_size: facts.ranks,
            dp_size: 1,
            context_length: facts.max_model_len,
            max_total_num_tokens: facts.num_blocks * facts.block_size,
            max_running_requests: facts.max_num_seqs,
            page_size: facts.block_size,
            kv_cache_dtype: facts.cache_dtype,
            disaggregation_mode: "null",
        }
    }
}

/// The answer of `/model_info`.
#[derive(Serialize, JsonSchema)]
pub(super) struct ModelInfo<'a> {
    model_path: &'a str,
    tokenizer_path: &'a str,
    is_generation: bool,
    preferred_sampling_params: (),
    has_image_understanding: bool,
    has_audio_understanding: bool,
    supports_reasoning: bool,
    context_length: usize,
    vocab_size: usize,
}

impl<'a> ModelInfo<'a> {
    pub(super) fn of(card: &'a ModelCard, facts: &EngineFacts, reasons: bool, sees: bool) -> Self {
        Self {
            model_path: card.root(),
            tokenizer_path: card.root(),
            is_generation: true,
            preferred_sampling_params: (),
            has_image_understanding: sees,
            has_audio_understanding: false,
            supports_reasoning: reasons,
            context_length: facts.max_model_len,
            vocab_size: facts.vocab_size,
        }
    }
}

/// The answer of `/v1/loads`: the load at this moment.
#[derive(Serialize, JsonSchema)]
pub(super) struct Loads {
    version: &'static str,
    dp_rank_count: usize,
    loads: [RankLoad; 1],
}

/// The load of a rank.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct RankLoad {
    dp_rank: usize,
    num_running_reqs: usize,
    num_waiting_reqs: usize,
    num_total_reqs: usize,
    num_waiting_uncached_tokens: usize,
    num_used_tokens: usize,
    max_total_num_tokens: usize,
    token_usage: f64,
    max_running_requests: usize,
    utilization: f64,
}

impl Loads {
    pub(super) fn of(facts: &EngineFacts, load: &EngineSnapshot) -> Self {
        let total = facts.num_blocks * facts.block_size;
        let used = load.used_blocks * facts.block_size;
        let rank = RankLoad {
            dp_rank: 0,
            num_running_reqs: load.running,
            num_waiting_reqs: load.waiting,
            num_total_reqs: load.running + load.waiting,
            num_waiting_uncached_tokens: load.waiting_tokens,
            num_used_tokens: used,
            max_total_num_tokens: total,
            token_usage: used as f64 / total.max(1) as f64,
            max_running_requests: facts.max_num_seqs,
            utilization: load.running as f64 / facts.max_num_seqs.max(1) as f64,
        };
        Self { version: env!("CARGO_PKG_VERSION"), dp_rank_count: 1, loads: [rank] }
    }
}
