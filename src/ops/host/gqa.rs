//! Grouped-query attention over a paged cache in host memory, for drafts with such a layer. Plain
//! f32 over the threads of any host backend.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::HostOps;
use crate::GqaShape;
use crate::{BlockId, CacheDtype, CacheShape, KvSlot, OpError, Segment, expect};

/// Keys and values of all positions: per slot the keys of all heads, rotated, then the values.
pub(super) struct GqaCache {
    rows: Rows,
    block_size: usize,
    num_slots: usize,
}

enum Rows {
    F32(Vec<f32>),
    Bf16(Vec<half::bf16>),
}

/// Largest number of values that one allocation of the cache may have.
const MAX_VALUES: usize = isize::MAX as usize / 4;

impl GqaCache {
    /// Bytes of a cache of `shape.num_blocks` blocks: f32 for f32, 2 bytes a value for any other type.
    pub(super) fn needs(gqa: &GqaShape, shape: &CacheShape) -> u64 {
        let values = (shape.num_blocks * shape.block_size * gqa.cached_dim()) as u64;
        values * if shape.dtype == CacheDtype::F32 { 4 } else { 2 }
    }

    pub(super) fn allocate(gqa: &GqaShape, shape: &CacheShape) -> Result<Self, OpError> {
        let num_slots = shape.num_blocks * shape.block_size;
        let bytes = Self::needs(gqa, shape) as usize;
        let refused = || OpError::OutOfMemory { what: "draft cache", bytes };
        let values =
            num_slots.checked_mul(gqa.cached_dim()).filter(|n| *n <= MAX_VALUES).ok_or_else(refused)?;
        let rows = if shape.dtype == CacheDtype::F32 {
            let mut rows = Vec::new();
            rows.try_reserve_exact(values).map_err(|_| refused())?;
            rows.resize(values, 0.0);
            Rows::F32(rows)
        } else {
            let mut rows = Vec::new();
            rows.try_reserve_exact(values).map_err(|_| refused())?;
            rows.resize(values, half::bf16::ZERO);
            Rows::Bf16(rows)
        };
        Ok(Self { rows, block_size: shape.block_size, num_slots })
    }

    /// Bytes of the keys and values of a block.
    pub(super) fn block_bytes(&self) -> usize {
        match self.num_slots {
            0 => 0,
            slots => self.bytes().len() / slots * self.block_size,
        }
    }

    /// Bytes of a block in those of all.
    pub(super) fn block(&self, block: BlockId) -> Result<Range<usize>, OpError> {
        expect("draft_block", &[self.num_slots.max((block.at() + 1) * self.block_size)], &[self.num_slots])?;
        Ok(block.at() * self.block_bytes()..(block.at() + 1) * self.block_bytes())
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match &self.rows {
            Rows::F32(rows) => bytemuck::cast_slice(rows),
            Rows::Bf16(rows) => bytemuck::cast_slice(rows),
        }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.rows {
            Rows::F32(rows) => bytemuck::cast_slice_mut(rows),
            Rows::Bf16(rows) => bytemuck::cast_slice_mut(rows),
        }
    }

    fn store(&mut self, slot: usize, at: usize, dim: usize, values: &[f32]) {
        let from = slot * dim + at;
        match &mut self.rows {
            Rows::F32(rows) => rows[from..from + values.len()].copy_from_slice(values),
            Rows::Bf16(rows) => rows[from..from + values.len()]
                .iter_mut()
                .zip(values)
                .for_each(|(stored, value)| *stored = half::bf16::from_f32(*value)),
        }
    }

    /// Copies `out.len()` values of a slot from `at` on.
    fn read(&self, slot: usize, at: usize, dim: usize, out: &mut [f32]) {
        let from = slot * dim + at;
        match &self.rows {
            Rows::F32(rows) => out.copy_from_slice(&rows[from..from + out.len()]),
            Rows::Bf16(rows) => {
                out.iter_mut().zip(&rows[from..]).for_each(|(value, stored)| *value = stored.to_f32());
            }
        }
    }
}

/// Rotates the halves of each head of `x` `[heads, head_dim]` against each other: `(x[i],
/// x[i + head_dim / 2])`. `rotation` holds head_dim/2 cosines, then as many sines.
pub(super) fn rotate_halves(x: &mut [f32], head_dim: usize, rotation: &[f32]) {
    let (cos, sin) = rotation.split_at(head_dim / 2);
    for head in x.chunks_exact_mut(head_dim) {
        let (low, high) = head.split_at_mut(head_dim / 2);
        for (i, (a, b)) in low.iter_mut().zip(high).enumerate() {
            (*a, *b) = (*a * cos[i] - *b * sin[i], *b * cos[i] + *a * sin[i]);
        }
    }
}

/// Stores rotated keys and values, `[T, num_kv_heads * head_dim]` each, at `slots`.
pub(super) fn store(
    gqa: &GqaShape,
    cache: &mut GqaCache,
    keys: &[f32],
    values: &[f32],
    slots: &[KvSlot],
) -> Result<(), OpError> {
    let width = gqa.num_kv_heads * gqa.head_dim;
    expect("store_keys", &[slots.len() * width; 2], &[keys.len(), values.len()])?;
    for (t, slot) in slots.iter().enumerate().filter(|(_, slot)| **slot != KvSlot::PAD) {
        expect("store_keys", &[cache.num_slots.max(slot.0 as usize + 1)], &[cache.num_slots])?;
        let row = t * width..(t + 1) * width;
        cache.store(slot.0 as usize, 0, 2 * width, &keys[row.clone()]);
        cache.store(slot.0 as usize, width, 2 * width, &values[row]);
    }
    Ok(())
}

/// Causal attention of rotated queries `[T, H * head_dim]`; writes `out`, of the same shape.
pub(super) fn attend<H: HostOps>(
    ops: &mut H,
    gqa: &GqaShape,
    cache: &GqaCache,
    queries: &[f32],
    segments: &[Segment],
    block_tables: &[u32],
    out: &mut [f32],
) -> Result<(), OpError> {
    let width = gqa.num_heads * gqa.head_dim;
    let rows = segments.iter().map(|segment| segment.rows.end).max().unwrap_or(0);
    expect("attend", &[rows * width, rows * width], &[queries.len().min(rows * width), out.len()])?;
    // One piece of work for each row and key head.
    let group = gqa.num_heads / gqa.num_kv_heads * gqa.head_dim;
    let mut work: Vec<(usize, &Segment, usize)> = Vec::new();
    for segment in segments {
        for row in segment.rows.clone() {
            work.extend((0..gqa.num_kv_heads).map(|head| (row, segment, head)));
        }
    }
    work.sort_unstable_by_key(|(row, _, head)| (*row, *head));
    let outs: Vec<Mutex<&mut [f32]>> = out.chunks_exact_mut(group).map(Mutex::new).collect();
    expect("attend", &[outs.len()], &[work.len()])?;
    let scale = (gqa.head_dim as f32).sqrt().recip();
    ops.for_each(work.len(), &|_, index| {
        let (row, segment, head) = work[index];
        let table = &block_tables[segment.block_table.clone()];
        let num_keys = segment.first_position + row - segment.rows.start + 1;
        let first = row * width + head * group;
        let mut out = outs[index].lock().unwrap_or_else(PoisonError::into_inner);
        attend_group(gqa, cache, &queries[first..first + group], head, table, num_keys, scale, &mut out);
    });
    Ok(())
}

/// Attention of the queries that share key head `head`, over positions `0..num_keys`, with a running
/// maximum (Milakov and Gimelshein, arXiv 1805.02867).
fn attend_group(
    gqa: &GqaShape,
    cache: &GqaCache,
    queries: &[f32],
    head: usize,
    table: &[u32],
    num_keys: usize,
    scale: f32,
    out: &mut [f32],
) {
    let (d, dim) = (gqa.head_dim, gqa.cached_dim());
    let mut key_value = vec![0.0; 2 * d];
    let mut sums = vec![(f32::NEG_INFINITY, 0.0f32); queries.len() / d];
    out.fill(0.0);
    for position in 0..num_keys {
        let slot =
            table[position / cache.block_size] as usize * cache.block_size + position % cache.block_size;
        let (key, value) = key_value.split_at_mut(d);
        cache.read(slot, head * d, dim, key);
        cache.read(slot, dim / 2 + head * d, dim, value);
        let rows = queries.chunks_exact(d).zip(out.chunks_exact_mut(d)).zip(&mut sums);
        for ((query, out), (max, sum)) in rows {
            let score = scale * query.iter().zip(&*key).map(|(q, k)| q * k).sum::<f32>();
            let largest = max.max(score);
            let (kept, weight) = ((*max - largest).exp(), (score - largest).exp());
            (*max, *sum) = (largest, *sum * kept + weight);
            out.iter_mut().zip(&*value).for_each(|(o, v)| *o = *o * kept + weight * v);
        }
    }
    for (out, (_, sum)) in out.chunks_exact_mut(d).zip(&sums) {
        out.iter_mut().for_each(|o| *o /= sum);
    }
}
