//! Bytes of a checkpoint that one token reads: the lower bound of a decode step's memory traffic.

use super::blueprint::Blueprint;
use super::checkpoint::Checkpoint;
use super::weight_names::WeightNames;

/// Stored bytes that one token of one sequence multiplies: the whole network except the embedding
/// table (one row of it) and the experts that are not chosen. Scales count with their codes.
pub fn active_bytes(checkpoint: &Checkpoint, blueprint: &Blueprint) -> u64 {
    let names = WeightNames::detect(checkpoint.names(), blueprint.num_layers);
    let table = names.embed_tokens();
    let (mut always, mut routed) = (0u64, 0u64);
    for name in checkpoint.names().filter(|name| names.skipped(name, blueprint).is_none()) {
        let bytes = checkpoint.tensor(name).map_or(0, |view| view.bytes.len() as u64);
        if name.contains(".mlp.experts.") {
            routed += bytes;
        } else if name != table || blueprint.tie_word_embeddings {
            always += bytes;
        }
    }
    let (chosen, experts) = (blueprint.router.top_k as u64, blueprint.router.num_experts.max(1) as u64);
    always + routed * chosen / experts
}
