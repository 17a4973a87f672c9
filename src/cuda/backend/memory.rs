//! Memory of steps: how large the parts of a workspace are, on a device alone and on a rank, before any is allocated.

use super::buffers::Buffers;
use crate::attention::{Attention, AttentionCapacity};
use crate::kernels::all_reduce::{Layout, LinkState};
use crate::kernels::{exchange, sampler_shards};
use crate::sampler::Sampler;
use crate::step;
use perigee_ops::host::Share;
use perigee_ops::{Activations, CacheShape, Capacity, ContextSplit, MemoryNeeds, ModelShape, Parallelism};

/// Most blocks of one sequence: bounds its block table in the plan, 4 bytes each.
const MAX_TABLE_BLOCKS: usize = 1 << 14;

/// Capacity of attention for steps of this capacity, of one of `parts` ranks that divide the keys.
pub(super) fn attention_capacity(capacity: &Capacity, parts: usize) -> AttentionCapacity {
    AttentionCapacity {
        rows: rows_of(capacity),
        absorbed_rows: step::padded(capacity.max_num_seqs.min(capacity.max_tokens)),
        items: 4096 / parts,
        block_size: capacity.block_size,
        slab_keys: 2048,
    }
}

/// Most rows of a launch.
pub(super) fn rows_of(capacity: &Capacity) -> usize {
    capacity.max_tokens.max(step::padded(capacity.max_tokens))
}

/// Bytes of the largest plan, with `rope` values of a rotation.
pub(super) fn plan_bytes(rope: usize, capacity: &Capacity) -> usize {
    let lists = Attention::list_words(rows_of(capacity));
    // Every sequence of a step may have a table.
    let sequences = capacity.max_num_seqs.min(capacity.max_tokens);
    step::bytes(capacity.max_tokens, rope, lists, sequences * MAX_TABLE_BLOCKS)
}

/// Sizes of what ranks give one another, one behind the other in each rank's area: places that are empty at first, then words that are 0.
pub(super) struct ExchangeSizes {
    pub(super) sums: Layout,
    /// Where keys are in parts.
    pub(super) keys: Option<exchange::Layout>,
    pub(super) board_rows: usize,
    pub(super) board: usize,
}

impl ExchangeSizes {
    /// Of `world` ranks that share a network of this shape.
    pub(super) fn new(shape: &ModelShape, capacity: &Capacity, world: usize, context: ContextSplit) -> Self {
        let board_rows = sampler_shards::board_rows(capacity.max_logits_rows);
        let absorbed_rows = attention_capacity(capacity, 1).absorbed_rows;
        let keys = match context {
            ContextSplit::Whole => None,
            ContextSplit::Split(form) => Some(exchange::Layout::new(world, &shape.mla, absorbed_rows, form)),
        };
        Self {
            sums: Layout::new(world, shape.hidden_size, capacity.max_tokens),
            keys,
            board_rows,
            board: sampler_shards::board_bytes(world, board_rows),
        }
    }

    /// Bytes of the places.
    pub(super) fn places(&self) -> usize {
        self.sums.bytes() + self.keys.map_or(0, |keys| keys.bytes())
    }

    /// Bytes of the words.
    pub(super) fn words(&self) -> usize {
        self.board + self.keys.map_or(0, |keys| keys.meeting_bytes())
    }

    /// Bytes of all of it and of a rank's own counters.
    fn bytes(&self) -> usize {
        self.places() + self.words() + 4 * self.board_rows + size_of::<LinkState>()
    }
}

/// Memory of a device's workspace and cache, or of those of one of several ranks.
pub fn device_needs(
    arithmetic: Activations,
    shape: &ModelShape,
    capacity: &Capacity,
    cache: &CacheShape,
    rank: Option<(Share, Parallelism)>,
) -> MemoryNeeds {
    let rows = rows_of(capacity);
    let (mut own, mut cache, mut all, mut parts, mut exchanged) = (*shape, *cache, None, 1, 0);
    if let Some((share, parallelism)) = rank {
        own = share.shape(shape, parallelism.expert_groups);
        if let ContextSplit::Split(form) = parallelism.context {
            (all, parts) = (Some((&shape.mla, form)), share.world);
            cache.block_size = cache.block_size.div_ceil(share.world);
        }
        let sizes = ExchangeSizes::new(shape, capacity, share.world, parallelism.context);
        exchanged = sizes.bytes() + 4 * rows * shape.hidden_size;
    }
    let activations = Buffers::bytes(&own, capacity.max_tokens, arithmetic);
    let logits = 4 * capacity.max_logits_rows * own.vocab_size;
    let plan = plan_bytes(own.mla.qk_rope_head_dim, capacity);
    let attention = Attention::bytes(&own.mla, all, &attention_capacity(capacity, parts));
    let (rows, slots) = (capacity.max_logits_rows, capacity.max_num_seqs);
    let sampler = Sampler::bytes(rows, slots, shape.vocab_size, own.vocab_size);
    let bytes = activations + logits + plan + cache.block_bytes() + exchanged;
    MemoryNeeds {
        workspace_bytes: bytes as u64 + attention + sampler,
        cache_bytes: cache.bytes() as u64,
        ..MemoryNeeds::default()
    }
}
