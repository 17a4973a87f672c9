//! Attention in the latent space: queries over the cached latents, in splits of the context.
//!
//! An item is a group of rows and a split of the context. Splits start at multiples of `SPLIT` positions; each starts
//! a softmax of its own, and a row's partial results are merged in order of position. So a row's bits depend on its position and
//! the cache alone, while a long context still occupies every thread.

use std::ops::Range;

use super::flash::{AttentionTile, State, rescale};
use super::{Context, Geometry, KEY_BLOCK, KEY_PANELS, KvUp};
use crate::layout::{LANES, Tiling};
use crate::simd::{self, Kernel, Simd};
use perigee_numbers::threads::{PerWorker, Shards, ThreadPool};

/// Positions per split; a multiple of `KEY_BLOCK`.
const SPLIT: usize = 2 * KEY_BLOCK;

/// Query rows times heads that share one packing of the keys.
const GROUP_ROWS: usize = 128;

/// Values of running and partial results held at a time; batches of rows and waves of splits are cut to fit.
const RESULT_VALUES: usize = 4 << 20;

/// A query row of the batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// Row of `q` and `out`.
    pub(super) row: usize,
    /// Cached rows it attends to: the first so many of its sequence's.
    pub(super) keys: usize,
    /// The group it is in, and its place there.
    pub(super) group: usize,
    pub(super) place: usize,
}

/// Consecutive rows of one sequence.
#[derive(Debug, Clone)]
pub(super) struct Group {
    sequence: usize,
    /// Its range of the block tables.
    table: Range<usize>,
    /// First of `rows`.
    pub(super) first: usize,
    pub(super) rows: usize,
    /// First word of the packed queries.
    pub(super) queries_start: usize,
}

/// One split of one group's context.
#[derive(Debug, Clone, Copy)]
struct Item {
    group: usize,
    split: usize,
    /// First value of its partial result: `[rows * heads]` maxima, as many sums, then values.
    start: usize,
}

/// A worker's scratch.
#[derive(Debug, Default)]
pub(crate) struct WorkerScratch {
    keys: Vec<u32>,
    values: Vec<u32>,
    /// Rows of an FP8 cache, as bf16.
    wide: Vec<u16>,
    /// Packed input rows of the per-head products.
    pub(super) rows: Vec<u32>,
}

impl WorkerScratch {
    /// At least `words` words for packed input rows.
    pub(super) fn rows_of(&mut self, words: usize) -> &mut [u32] {
        if self.rows.len() < words {
            self.rows.resize(words, 0);
        }
        &mut self.rows
    }
}

/// Scratch of the operation, kept between calls.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(super) rows: Vec<Row>,
    pub(super) groups: Vec<Group>,
    items: Vec<Item>,
    /// Packed queries in the latent space, per group.
    pub(super) queries: Vec<u32>,
    partial: Vec<f32>,
    /// Running results, `[rows * heads]` maxima, as many sums, then values `[rows * heads, latent_width]`.
    pub(super) running: Vec<f32>,
}

/// What the operation works with.
pub(crate) struct Call<'a> {
    pub pool: &'a mut ThreadPool,
    pub workers: &'a PerWorker<WorkerScratch>,
    pub sums: &'a PerWorker<Vec<f32>>,
    pub geometry: &'a Geometry,
    pub kv_up: &'a KvUp,
}

/// Where keys are found.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    /// Without a table.
    pub context: Context<'a>,
    pub block_tables: &'a [u32],
}

impl<'a> Keys<'a> {
    fn of(&self, group: &Group) -> Context<'a> {
        Context { table: &self.block_tables[group.table.clone()], ..self.context }
    }
}

impl Call<'_> {
    fn latent_panels(&self) -> usize {
        self.geometry.shape.kv_lora_rank.div_ceil(LANES)
    }

    pub(super) fn latent_width(&self) -> usize {
        self.latent_panels() * LANES
    }

    pub(super) fn query_pairs(&self) -> usize {
        self.geometry.c_pairs() + self.geometry.r_pairs()
    }

    /// Values of the result of one row and head: maximum, sum, weighted latents.
    fn result_values(&self) -> usize {
        2 + self.latent_width()
    }

    /// Rows whose running results have room.
    pub(super) fn batch_rows(&self) -> usize {
        (RESULT_VALUES / (self.geometry.shape.num_heads * self.result_values())).max(1)
    }
}

impl Scratch {
    /// Begins a batch of rows `(sequence, table, row, keys)`.
    pub(super) fn begin(
        &mut self,
        heads: usize,
        batch: impl Iterator<Item = (usize, Range<usize>, usize, usize)>,
    ) {
        let group_rows = (GROUP_ROWS / heads).max(1);
        self.rows.clear();
        self.groups.clear();
        for (sequence, table, row, keys) in batch {
            let joins = self.groups.last().is_some_and(|g| g.sequence == sequence && g.rows < group_rows);
            if !joins {
                self.groups.push(Group {
                    sequence,
                    table,
                    first: self.rows.len(),
                    rows: 0,
                    queries_start: 0,
                });
            }
            let group = self.groups.len() - 1;
            let place = self.groups[group].rows;
            self.groups[group].rows += 1;
            self.rows.push(Row { row, keys, group, place });
        }
    }

    /// Makes room for the packed queries of the batch.
    pub(super) fn place_queries(&mut self, heads: usize, query_words: usize) {
        let mut words = 0;
        for group in &mut self.groups {
            group.queries_start = words;
            words += group.rows * heads * query_words;
        }
        if self.queries.len() < words {
            self.queries.resize(words, 0);
        }
    }
}

/// Attention of the packed queries of the batch, into the running results.
pub(super) fn attend_batch(call: &mut Call<'_>, scratch: &mut Scratch, keys: Keys<'_>) {
    let heads = call.geometry.shape.num_heads;
    let results = scratch.rows.len() * heads;
    scratch.running.clear();
    scratch.running.resize(results * call.result_values(), 0.0);
    scratch.running[..results].fill(f32::NEG_INFINITY);
    let (mut group, mut split) = (0, 0);
    while group < scratch.groups.len() {
        // One wave: as many splits, in order, as the partial results have room for.
        scratch.items.clear();
        let mut start = 0;
        while let Some(g) = scratch.groups.get(group) {
            let values = g.rows * heads * call.result_values();
            if start > 0 && start + values > RESULT_VALUES {
                break;
            }
            scratch.items.push(Item { group, split, start });
            start += values;
            split += 1;
            if split * SPLIT >= scratch.rows[g.first + g.rows - 1].keys {
                (group, split) = (group + 1, 0);
            }
        }
        if scratch.partial.len() < start {
            scratch.partial.resize(start, 0.0);
        }
        attend_wave(call, scratch, keys);
        merge_wave(call, scratch);
    }
}

/// Attention of one group over one split.
struct AttendSplit<'a> {
    geometry: &'a Geometry,
    context: Context<'a>,
    rows: &'a [Row],
    queries: &'a [u32],
    tiling: Tiling,
    latent_panels: usize,
    query_pairs: usize,
    split: usize,
    scratch: &'a mut WorkerScratch,
    /// Maxima, sums, values.
    partial: &'a mut [f32],
}

impl Kernel for AttendSplit<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let g = self.geometry;
        let heads = g.shape.num_heads;
        let results = self.rows.len() * heads;
        let (max, rest) = self.partial.split_at_mut(results);
        let (sum, values) = rest.split_at_mut(results);
        max.fill(f32::NEG_INFINITY);
        sum.fill(0.0);
        values.fill(0.0);
        let key_words = KEY_PANELS * self.query_pairs * g.pair_words();
        let value_words = self.latent_panels * KEY_BLOCK / 2 * g.pair_words();
        if self.scratch.keys.len() < key_words {
            self.scratch.keys.resize(key_words, 0);
        }
        if self.scratch.values.len() < value_words {
            self.scratch.values.resize(value_words, 0);
        }
        let words = g.layout(self.query_pairs).words();
        let last = self.rows.last().map_or(0, |row| row.keys).min((self.split + 1) * SPLIT);
        for first_key in (self.split * SPLIT..last).step_by(KEY_BLOCK) {
            let count = KEY_BLOCK.min(last - first_key);
            let context = self.context;
            // SAFETY: the scratch was sized above; the partial result holds every row and head of the group.
            unsafe {
                let WorkerScratch { keys, values: latents, wide, .. } = &mut *self.scratch;
                context.widen(first_key, count, wide);
                g.pack_keys::<S>(count, |i| context.wide_row(first_key, i, wide), keys);
                g.pack_values::<S>(count, |i| context.wide_row(first_key, i, wide), latents);
                for tile in 0..self.tiling.tiles {
                    let (start, height) = (self.tiling.start(tile), self.tiling.height(tile));
                    let tile = AttentionTile {
                        geometry: g,
                        queries: self.queries[start * words..].as_ptr(),
                        height,
                        pairs: self.query_pairs,
                        keys: self.scratch.keys.as_ptr(),
                        values: self.scratch.values.as_ptr(),
                        value_panels: self.latent_panels,
                        state: State {
                            max: max[start..].as_mut_ptr(),
                            sum: sum[start..].as_mut_ptr(),
                            values: values[start * self.latent_panels * LANES..].as_mut_ptr(),
                        },
                    };
                    tile.run::<S>(|r| {
                        self.rows[(start + r) / heads].keys.saturating_sub(first_key).min(KEY_BLOCK)
                    });
                }
            }
        }
    }
}

fn attend_wave(call: &mut Call<'_>, scratch: &mut Scratch, keys: Keys<'_>) {
    let g = *call.geometry;
    let heads = g.shape.num_heads;
    let layout = g.layout(call.query_pairs());
    let (query_pairs, latent_panels, values) =
        (call.query_pairs(), call.latent_panels(), call.result_values());
    let Scratch { rows, groups, items, queries, partial, .. } = scratch;
    let (rows, groups, items, queries) = (&rows[..], &groups[..], &items[..], &queries[..]);
    let partial = Shards::new(partial);
    let workers = call.workers;
    let contexts: Vec<Context<'_>> = groups.iter().map(|group| keys.of(group)).collect();
    call.pool.for_each(items.len(), |worker, item| {
        let item = items[item];
        let group = &groups[item.group];
        let count = group.rows * heads;
        let kernel = AttendSplit {
            geometry: &g,
            context: contexts[item.group],
            rows: &rows[group.first..group.first + group.rows],
            queries: &queries[group.queries_start..group.queries_start + count * layout.words()],
            tiling: layout.attention_tiling(count),
            latent_panels,
            query_pairs,
            split: item.split,
            // SAFETY: this worker's scratch, not used elsewhere in this job.
            scratch: unsafe { workers.get(worker) },
            // SAFETY: `partial` stays borrowed; items have results of their own.
            partial: unsafe { partial.slice(item.start, count * values) },
        };
        // SAFETY: the instruction set is supported (checked at construction).
        unsafe { simd::launch(g.numerics.isa, kernel) };
    });
}

/// Merges one partial result of one row and head into the running one.
struct Merge<'a> {
    max: &'a mut f32,
    sum: &'a mut f32,
    values: &'a mut [f32],
    part_max: f32,
    part_sum: f32,
    part_values: &'a [f32],
}

impl Kernel for Merge<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let now = if self.part_max > *self.max { self.part_max } else { *self.max };
        // SAFETY: both value slices are whole vectors of one length (checked by the split below).
        unsafe {
            let (keep, take) = (rescale::<S>(*self.max, now), rescale::<S>(self.part_max, now));
            *self.sum = *self.sum * keep + self.part_sum * take;
            *self.max = now;
            let (keep, take) = (S::splat(keep), S::splat(take));
            for (to, from) in self.values.chunks_exact_mut(LANES).zip(self.part_values.chunks_exact(LANES)) {
                let kept = S::mul(S::load(to.as_ptr()), keep);
                S::store(S::fma(S::load(from.as_ptr()), take, kept), to.as_mut_ptr());
            }
        }
    }
}

fn merge_wave(call: &mut Call<'_>, scratch: &mut Scratch) {
    let isa = call.geometry.numerics.isa;
    let heads = call.geometry.shape.num_heads;
    let width = call.latent_width();
    let Scratch { rows, groups, items, partial, running, .. } = scratch;
    let (rows, groups, items, partial) = (&rows[..], &groups[..], &items[..], &partial[..]);
    let results = rows.len() * heads;
    let (max, rest) = running.split_at_mut(results);
    let (sum, values) = rest.split_at_mut(results);
    let (max, sum, values) = (Shards::new(max), Shards::new(sum), Shards::new(values));
    let (Some(first), Some(last)) = (items.first(), items.last()) else { return };
    let first_row = groups[first.group].first;
    let touched = groups[last.group].first + groups[last.group].rows - first_row;
    call.pool.for_each(touched, |_, i| {
        let row = rows[first_row + i];
        let group = &groups[row.group];
        let count = group.rows * heads;
        let mine = items.partition_point(|item| item.group < row.group);
        for item in items[mine..].iter().take_while(|item| item.group == row.group) {
            // A row that ends before this split keeps its bits untouched.
            if item.split * SPLIT >= row.keys {
                break;
            }
            let part = &partial[item.start..item.start + count * (2 + width)];
            for head in 0..heads {
                let (at, to) = (row.place * heads + head, (first_row + i) * heads + head);
                // SAFETY: the running results stay borrowed; every task has a row of its own.
                let (max, sum, values) =
                    unsafe { (max.slice(to, 1), sum.slice(to, 1), values.slice(to * width, width)) };
                let merge = Merge {
                    max: &mut max[0],
                    sum: &mut sum[0],
                    values,
                    part_max: part[at],
                    part_sum: part[count + at],
                    part_values: &part[2 * count + at * width..][..width],
                };
                // SAFETY: the instruction set is supported (checked at construction).
                unsafe { simd::launch(isa, merge) };
            }
        }
    });
}
