//! What routers in front of several servers ask besides the model's routes: facts of the server, and its load.
//!
//! The words are SGLang's (`/server_info`, `/model_info`, `/v1/loads`), which its gateway and that one's successors read. Facts that a process
//! without data parallelism does not have are those of one rank.

use serde_json::{Value, json};

use super::ModelCard;
use crate::generate::{EngineFacts, EngineSnapshot};

/// `/server_info`. Paths are names: where the files lie is nobody's business outside of this machine.
pub(super) fn server_info(card: &ModelCard, facts: &EngineFacts) -> Value {
    let name = card.names.first();
    json!({
        "model_path": name,
        "served_model_name": name,
        "tokenizer_path": name,
        "version": env!("CARGO_PKG_VERSION"),
        "engine": "perigee",
        "device": facts.backend,
        "tp_size": facts.ranks,
        "dp_size": 1,
        "context_length": facts.max_model_len,
        "max_total_num_tokens": facts.num_blocks * facts.block_size,
        "max_running_requests": facts.max_num_seqs,
        "page_size": facts.block_size,
        "kv_cache_dtype": facts.cache_dtype,
        "disaggregation_mode": "null",
    })
}

/// `/model_info`.
pub(super) fn model_info(card: &ModelCard, facts: &EngineFacts, reasons: bool, sees: bool) -> Value {
    let name = card.names.first();
    json!({
        "model_path": name,
        "tokenizer_path": name,
        "is_generation": true,
        "preferred_sampling_params": null,
        "has_image_understanding": sees,
        "has_audio_understanding": false,
        "supports_reasoning": reasons,
        "context_length": facts.max_model_len,
        "vocab_size": facts.vocab_size,
    })
}

/// `/v1/loads`: the load at this moment.
pub(super) fn loads(facts: &EngineFacts, load: &EngineSnapshot) -> Value {
    let total = facts.num_blocks * facts.block_size;
    let used = load.used_blocks * facts.block_size;
    let rank = json!({
        "dp_rank": 0,
        "num_running_reqs": load.running,
        "num_waiting_reqs": load.waiting,
        "num_total_reqs": load.running + load.waiting,
        "num_waiting_uncached_tokens": load.waiting_tokens,
        "num_used_tokens": used,
        "max_total_num_tokens": total,
        "token_usage": used as f64 / total.max(1) as f64,
        "max_running_requests": facts.max_num_seqs,
        "utilization": load.running as f64 / facts.max_num_seqs.max(1) as f64,
    });
    json!({"version": env!("CARGO_PKG_VERSION"), "dp_rank_count": 1, "loads": [rank]})
}
