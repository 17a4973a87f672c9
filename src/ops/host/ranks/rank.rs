//! A host backend as one rank of a group: its state beside the share, and the sums and exchanges
//! inside its operations.
//!
//! Heads, the inner units of dense and shared FFNs, experts and the vocabulary are split over
//! ranks. The cache is whole on every rank, or split by sequence, a part of every block on each (`block_parts.rs`).

use std::ops::Range;

use super::block_parts::BlockParts;
use super::choice::Choice;
use super::exchange::Member;
use super::share::Share;
use crate::host::backend::HostKvUp;
use crate::host::ops::HostOps;
use crate::{
    AttentionExchange, CacheShape, Capacity, ContextSplit, KvSlot, LatentSpan, MlaShape, ModelShape, OpError,
    Segment,
};

/// State of a rank's workspace in addition to that of a lone backend.
pub(in crate::host) struct RankState<H: HostOps> {
    pub(in crate::host) member: Member,
    /// Attention shape of this rank's heads.
    pub(in crate::host) mla: MlaShape,
    /// Vocabulary ids of this rank.
    pub(in crate::host) vocab: Range<usize>,
    /// Its part of every block; `None`: it holds all positions.
    parts: Option<BlockParts>,
    /// `[T, D]`: partial sums of the residual stream.
    pub(in crate::host) partial: H::Buffer,
    /// Of ranks that exchange heads.
    heads: Option<HeadBuffers<H>>,
    pub(super) choice: Choice,
    /// Sum of the bits of the rows that the head was last multiplied with: the same on all ranks.
    pub(super) rows_sum: u64,
    /// `[n]`: rows in absorbed form, and their keys on this rank.
    rows: Vec<u32>,
    spans: Vec<LatentSpan>,
    floats: [Vec<f32>; 3],
}

/// Activations of all heads, of rows in absorbed form.
struct HeadBuffers<H: HostOps> {
    /// `[n, H * (N + R)]`.
    query: H::Buffer,
    /// `[n, H * V]`.
    attended: H::Buffer,
}

/// The cache of a rank: its own positions, and one layer with the positions of all ranks for
/// attention in expanded form.
pub(in crate::host) struct RankCache<H: HostOps> {
    gathered: H::Cache,
    parts: BlockParts,
    bytes: Vec<u8>,
    slots: Vec<Vec<u32>>,
}

impl<H: HostOps> RankState<H> {
    pub(in crate::host) fn new(
        ops: &mut H,
        shape: &ModelShape,
        capacity: &Capacity,
        member: Member,
    ) -> Result<Self, OpError> {
        let share = member.share();
        let vocab = share.of(shape.vocab_size, 1);
        let (all, tokens) = (shape.mla, capacity.max_tokens);
        let num_heads = share.of(all.num_heads, 1).len();
        let context = member.parallelism().context;
        Ok(Self {
            mla: MlaShape { num_heads, ..all },
            partial: ops.allocate(tokens, shape.hidden_size)?,
            heads: match context {
                ContextSplit::Split(AttentionExchange::Heads) => Some(HeadBuffers {
                    query: ops
                        .allocate(tokens, all.num_heads * (all.qk_nope_head_dim + all.qk_rope_head_dim))?,
                    attended: ops.allocate(tokens, all.num_heads * all.v_head_dim)?,
                }),
                ContextSplit::Split(AttentionExchange::Latents) | ContextSplit::Whole => None,
            },
            vocab,
            parts: match context {
                ContextSplit::Whole => None,
                ContextSplit::Split(_) => Some(BlockParts::new(capacity.block_size, share)?),
            },
            choice: Choice::default(),
            rows_sum: 0,
            member,
            rows: Vec::new(),
            spans: Vec::new(),
            floats: Default::default(),
        })
    }

    /// Begins a step's attention: `slots` become this rank's slots, [`KvSlot::PAD`] for rows that
    /// other ranks hold; a padded row stays one.
    pub(in crate::host) fn begin(&mut self, slots: &mut [u32], absorbed: &[Segment]) {
        let Some(parts) = self.parts else { return };
        slots.iter_mut().for_each(|slot| *slot = parts.own_slot(KvSlot(*slot)).0);
        self.rows.clear();
        self.spans.clear();
        for segment in absorbed {
            let positions = segment.first_position..segment.context_len();
            let num_keys = positions.map(|position| parts.num_held(position + 1) as u32);
            self.spans.push(LatentSpan {
                first: self.rows.len(),
                num_keys: num_keys.collect(),
                block_table: segment.block_table.clone(),
            });
            self.rows.extend(segment.rows.clone().map(|row| row as u32));
        }
    }

    /// Whether this rank holds a part of the positions.
    pub(in crate::host) fn splits_context(&self) -> bool {
        self.parts.is_some()
    }

    /// Takes the sum of the rows `rows` of `normed`, which the head is multiplied with.
    pub(in crate::host) fn note_rows(&mut self, normed: &[f32], rows: &[u32], width: usize) {
        let values = rows.iter().flat_map(|row| &normed[*row as usize * width..][..width]);
        self.rows_sum = values.fold(0, |sum, value| sum.wrapping_add(u64::from(value.to_bits())));
    }

    /// `hidden += sum_ranks(partial)`.
    pub(in crate::host) fn add_partial(
        &mut self,
        op: &'static str,
        hidden: &mut H::Buffer,
    ) -> Result<(), OpError> {
        let [total, ..] = &mut self.floats;
        self.member.sum(op, H::values(&self.partial), total)?;
        H::values_mut(hidden).iter_mut().zip(total).for_each(|(x, sum)| *x += *sum);
        Ok(())
    }

    /// `partial = 0`, `[T, D]` as `like`.
    pub(in crate::host) fn clear_partial(&mut self, ops: &mut H, like: &H::Buffer) -> Result<(), OpError> {
        let [zeros, ..] = &mut self.floats;
        zeros.clear();
        zeros.resize(H::values(like).len(), 0.0);
        ops.write(zeros, &mut self.partial)
    }

    /// `hidden[t] = table[token[t]]`, the table split by id: the ranks that lack an id add zero.
    pub(in crate::host) fn embed(
        &mut self,
        ops: &mut H,
        table: &H::Matrix,
        tokens: &[u32],
        hidden: &mut H::Buffer,
    ) -> Result<(), OpError> {
        let mut sums = std::mem::take(&mut self.floats[0]);
        let embedded = self.embed_with(ops, table, tokens, hidden, &mut sums);
        self.floats[0] = sums;
        embedded
    }

    /// [`RankState::embed`] with scratch of the caller's, for rows that are not the step's.
    pub(in crate::host) fn embed_with(
        &self,
        ops: &mut H,
        table: &H::Matrix,
        tokens: &[u32],
        hidden: &mut H::Buffer,
        sums: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let held = |id: u32| self.vocab.contains(&(id as usize));
        let ids: Vec<u32> =
            tokens.iter().map(|id| if held(*id) { id - self.vocab.start as u32 } else { 0 }).collect();
        ops.embed(table, &ids, hidden)?;
        let values = H::values_mut(hidden);
        let cols = values.len() / tokens.len().max(1);
        for (row, id) in values.chunks_exact_mut(cols.max(1)).zip(tokens) {
            if !held(*id) {
                row.fill(0.0);
            }
        }
        self.member.sum("embed", values, sums)?;
        values.copy_from_slice(sums);
        Ok(())
    }

    /// Absorbed attention: queries of all heads attend to this rank's keys; the partial results of
    /// this rank's heads are then merged in rank order.
    pub(in crate::host) fn attend_absorbed(
        &mut self,
        ops: &mut H,
        all: &MlaShape,
        q: &H::Buffer,
        num_rows: usize,
        kv_up: &HostKvUp<H>,
        layer: usize,
        cache: &H::Cache,
        block_tables: &[u32],
        out: &mut H::Buffer,
    ) -> Result<(), OpError> {
        if let (Some(all_heads), true) = (&kv_up.all, self.heads.is_some()) {
            let call = (num_rows, layer, cache, block_tables);
            return self.attend_absorbed_by_heads(ops, all, q, (all_heads, &kv_up.own), call, out);
        }
        let op = "attend_absorbed";
        let kv_up = &kv_up.own;
        let Self { member, mla, rows, spans, floats, .. } = self;
        let [own, queries, partial] = floats;
        let (n, share) = (rows.len(), member.share());
        ops.latent_queries(mla, q, kv_up, rows, own)?;
        let width = all.latent_dim();
        queries.clear();
        queries.resize(n * all.num_heads * width, 0.0);
        member.exchange(op, own, |rank, theirs| {
            let heads = Share { rank, ..share }.of(all.num_heads, 1);
            let rows = theirs.chunks_exact(heads.len() * width);
            for (to, from) in queries.chunks_exact_mut(all.num_heads * width).zip(rows) {
                to[heads.start * width..heads.end * width].copy_from_slice(from);
            }
        })?;
        ops.attend_latents(all, queries, kv_up, layer, cache, spans, block_tables, partial)?;

        let c = all.kv_lora_rank;
        let heads = share.of(all.num_heads, 1);
        let merged = own;
        merged.clear();
        merged.resize(n * mla.num_heads * (2 + c), 0.0);
        merged.chunks_exact_mut(2 + c).for_each(|part| part[0] = f32::NEG_INFINITY);
        member.exchange(op, partial, |_, theirs| {
            let rows = theirs.chunks_exact(all.num_heads * (2 + c));
            for (to, from) in merged.chunks_exact_mut(mla.num_heads * (2 + c)).zip(rows) {
                let from = from[heads.start * (2 + c)..heads.end * (2 + c)].chunks_exact(2 + c);
                to.chunks_exact_mut(2 + c).zip(from).for_each(|(to, from)| merge(to, from));
            }
        })?;
        let latents = queries;
        latents.clear();
        for part in merged.chunks_exact(2 + c) {
            latents.extend(part[2..].iter().map(|value| value / part[1]));
        }
        ops.project_latents(mla, latents, kv_up, rows, num_rows, out)
    }

    /// As [`RankState::attend_absorbed`], where queries and partial results of heads are exchanged: each rank takes all of
    /// them into the latent space, and its partial sums out of it.
    fn attend_absorbed_by_heads(
        &mut self,
        ops: &mut H,
        all: &MlaShape,
        q: &H::Buffer,
        (all_heads, own_heads): (&H::KvUp, &H::KvUp),
        (num_rows, layer, cache, block_tables): (usize, usize, &H::Cache, &[u32]),
        out: &mut H::Buffer,
    ) -> Result<(), OpError> {
        let op = "attend_absorbed";
        let Self { member, mla, rows, spans, floats, heads: Some(buffers), .. } = self else {
            return Ok(());
        };
        let [own, queries, partial] = floats;
        let (n, share) = (rows.len(), member.share());
        let head = all.qk_nope_head_dim + all.qk_rope_head_dim;
        let of = |rank: usize| Share { rank, ..share }.of(all.num_heads, 1);
        own.clear();
        let width = mla.num_heads * head;
        rows.iter().for_each(|row| own.extend_from_slice(&H::values(q)[*row as usize * width..][..width]));
        queries.clear();
        queries.resize(n * all.num_heads * head, 0.0);
        member.exchange(op, own, |rank, theirs| {
            let heads = of(rank);
            let rows = theirs.chunks_exact(heads.len() * head);
            for (to, from) in queries.chunks_exact_mut(all.num_heads * head).zip(rows) {
                to[heads.start * head..heads.end * head].copy_from_slice(from);
            }
        })?;
        ops.write(queries, &mut buffers.query)?;
        let places: Vec<u32> = (0..n as u32).collect();
        ops.latent_queries(all, &buffers.query, all_heads, &places, queries)?;
        ops.attend_latents(all, queries, all_heads, layer, cache, spans, block_tables, partial)?;

        let (c, v) = (all.kv_lora_rank, all.v_head_dim);
        let latents = queries;
        latents.clear();
        for part in partial.chunks_exact(2 + c) {
            // A rank without keys of a row has the sum 0.
            let scale = if part[1] > 0.0 { 1.0 / part[1] } else { 0.0 };
            latents.extend(part[2..].iter().map(|value| value * scale));
        }
        ops.project_latents(all, latents, all_heads, &places, n, &mut buffers.attended)?;
        own.clear();
        let values = H::values(&buffers.attended).chunks_exact(v);
        for (part, values) in partial.chunks_exact(2 + c).zip(values) {
            own.extend([part[0], part[1]]);
            own.extend(values.iter().map(|value| value * part[1]));
        }
        let heads = of(share.rank);
        let merged = latents;
        merged.clear();
        merged.resize(n * mla.num_heads * (2 + v), 0.0);
        merged.chunks_exact_mut(2 + v).for_each(|part| part[0] = f32::NEG_INFINITY);
        // Each rank needs what all others have of its own heads.
        member.exchange(op, own, |_, theirs| {
            let rows = theirs.chunks_exact(all.num_heads * (2 + v));
            for (to, from) in merged.chunks_exact_mut(mla.num_heads * (2 + v)).zip(rows) {
                let from = from[heads.start * (2 + v)..heads.end * (2 + v)].chunks_exact(2 + v);
                to.chunks_exact_mut(2 + v).zip(from).for_each(|(to, from)| merge(to, from));
            }
        })?;
        // Sets the number of rows, and none of them.
        ops.project_latents(mla, &[], own_heads, &[], num_rows, out)?;
        let width = mla.num_heads * v;
        for (row, merged) in rows.iter().zip(merged.chunks_exact(mla.num_heads * (2 + v))) {
            let out = &mut H::values_mut(out)[*row as usize * width..][..width];
            for (out, part) in out.chunks_exact_mut(v).zip(merged.chunks_exact(2 + v)) {
                out.iter_mut().zip(&part[2..]).for_each(|(out, value)| *out = value / part[1]);
            }
        }
        Ok(())
    }
}

/// Adds one rank's partial attention `[max, sum, values]` to another's: each is scaled to the larger maximum.
fn merge(to: &mut [f32], from: &[f32]) {
    if from[0] == f32::NEG_INFINITY {
        return;
    }
    let max = to[0].max(from[0]);
    let (keep, take) = ((to[0] - max).exp(), (from[0] - max).exp());
    to[0] = max;
    to[1..].iter_mut().zip(&from[1..]).for_each(|(to, from)| *to = *to * keep + *from * take);
}

impl<H: HostOps> RankCache<H> {
    /// The cache parts beside the rank's own. `shape` is that of all ranks together.
    pub(in crate::host) fn new(ops: &mut H, shape: &CacheShape, share: Share) -> Result<Self, OpError> {
        let gathered = ops.allocate_cache(&CacheShape { num_layers: 1, ..*shape })?;
        let parts = BlockParts::new(shape.block_size, share)?;
        Ok(Self { gathered, parts, bytes: Vec::new(), slots: Vec::new() })
    }

    /// The shape of this rank's own cache.
    pub(in crate::host) fn own_shape(shape: &CacheShape, share: Share) -> Result<CacheShape, OpError> {
        Ok(CacheShape { block_size: BlockParts::new(shape.block_size, share)?.part(), ..*shape })
    }

    /// Gathers one layer with the positions of all ranks that `segments` attend to, under the
    /// step's own block tables.
    pub(in crate::host) fn gather(
        &mut self,
        ops: &mut H,
        member: &Member,
        own: &H::Cache,
        layer: usize,
        segments: &[Segment],
        block_tables: &[u32],
    ) -> Result<&H::Cache, OpError> {
        let (parts, share) = (self.parts, member.share());
        let block_size = parts.block_size();
        self.slots.resize(share.world, Vec::new());
        self.slots.iter_mut().for_each(Vec::clear);
        for segment in segments {
            let table = &block_tables[segment.block_table.clone()];
            for position in 0..segment.context_len() {
                let slot = table[position / block_size] as usize * block_size + position % block_size;
                let (rank, _) = parts.owner(slot as u32);
                self.slots[rank].push(slot as u32);
            }
        }
        let held: Vec<u32> = self.slots[share.rank].iter().map(|slot| parts.owner(*slot).1).collect();
        self.bytes.clear();
        ops.read_cached(own, layer, &held, &mut self.bytes)?;
        let Self { gathered, bytes, slots, .. } = self;
        let mut written = Ok(());
        member.exchange_bytes("attend_expanded", bytes, |rank, rows| {
            if written.is_ok() {
                written = ops.write_cached(rows, 0, &slots[rank], gathered);
            }
        })?;
        written?;
        Ok(gathered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_is_what_one_softmax_gives() {
        let scores = [0.5f32, -3.0, 2.0, 1.0];
        let values = [1.0f32, 2.0, 3.0, 4.0];
        let part = |keys: Range<usize>| {
            let max = scores[keys.clone()].iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let e = |i: usize| (scores[i] - max).exp();
            [max, keys.clone().map(e).sum(), keys.map(|i| e(i) * values[i]).sum()]
        };
        let mut merged = [f32::NEG_INFINITY, 0.0, 0.0];
        [part(0..0), part(0..1), part(1..4), part(4..4)].iter().for_each(|part| merge(&mut merged, part));
        let whole = part(0..4);
        assert!((merged[2] / merged[1] - whole[2] / whole[1]).abs() < 1e-6);
    }
}
