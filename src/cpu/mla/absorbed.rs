//! The absorbed form: queries go through W_UK into the latent space, attend to the latents themselves, and come back through W_UV.
//!
//! Three parts, each on all threads: queries into the latent space (a head per item), attention (a group of rows and a split of the
//! context per item), values out of it (a head per item). Splits start at multiples of `SPLIT` positions; each starts
//! a softmax of its own, and a row's partial results are merged in order of position. So a row's bits depend on its position and
//! the cache alone, while a long context still occupies every thread.
//!
//! `attend` is all three; ranks that share heads and cache call them one by one and exchange what is between them.

use super::flash::{AttentionTile, State, rescale};
use super::{Context, Geometry, KEY_BLOCK, KEY_PANELS, KvUp};
use crate::cpu::gemm::{Epilogue, Multiply, Operands, row_blocks};
use crate::cpu::layout::{LANES, Tiling};
use crate::cpu::rows::RowWriter;
use crate::cpu::simd::{self, Kernel, Simd};
use crate::ops::{LatentSpan, Segment};
use crate::threads::{PerWorker, Shards, ThreadPool};
use std::ops::Range;

/// Positions per split; a multiple of `KEY_BLOCK`.
const SPLIT: usize = 2 * KEY_BLOCK;

/// Query rows times heads that share one packing of the keys.
const GROUP_ROWS: usize = 128;

/// Values of running and partial results held at a time; batches of rows and waves of splits are cut to fit.
const RESULT_VALUES: usize = 4 << 20;

/// A query row of the batch.
#[derive(Debug, Clone, Copy)]
struct Row {
    /// Row of `q` and `out`.
    row: usize,
    /// Cached rows it attends to: the first so many of its sequence's.
    keys: usize,
    /// The group it is in, and its place there.
    group: usize,
    place: usize,
}

/// Consecutive rows of one sequence.
#[derive(Debug, Clone)]
struct Group {
    sequence: usize,
    /// Its range of the block tables.
    table: Range<usize>,
    /// First of `rows`.
    first: usize,
    rows: usize,
    /// First word of the packed queries.
    queries_start: usize,
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
    rows: Vec<u32>,
}

impl WorkerScratch {
    /// At least `words` words for packed input rows.
    fn rows_of(&mut self, words: usize) -> &mut [u32] {
        if self.rows.len() < words {
            self.rows.resize(words, 0);
        }
        &mut self.rows
    }
}

/// Scratch of the operation, kept between calls.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    rows: Vec<Row>,
    groups: Vec<Group>,
    items: Vec<Item>,
    /// Packed queries in the latent space, per group.
    queries: Vec<u32>,
    partial: Vec<f32>,
    /// Running results, `[rows * heads]` maxima, as many sums, then values `[rows * heads, latent_width]`.
    running: Vec<f32>,
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

    fn latent_width(&self) -> usize {
        self.latent_panels() * LANES
    }

    fn query_pairs(&self) -> usize {
        self.geometry.c_pairs() + self.geometry.r_pairs()
    }

    /// Values of the result of one row and head: maximum, sum, weighted latents.
    fn result_values(&self) -> usize {
        2 + self.latent_width()
    }

    /// Rows whose running results have room.
    fn batch_rows(&self) -> usize {
        (RESULT_VALUES / (self.geometry.shape.num_heads * self.result_values())).max(1)
    }
}

impl Scratch {
    /// Begins a batch of rows `(sequence, table, row, keys)`.
    fn begin(&mut self, heads: usize, batch: impl Iterator<Item = (usize, Range<usize>, usize, usize)>) {
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
    fn place_queries(&mut self, heads: usize, query_words: usize) {
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

/// Attention of every row of the segments. `q` `[T, H * (N + R)]`, `out` `[T, H * V]`.
pub(crate) fn attend(
    mut call: Call<'_>,
    scratch: &mut Scratch,
    keys: Keys<'_>,
    segments: &[Segment],
    q: &[f32],
    out: &mut [f32],
) {
    let (heads, per_batch) = (call.geometry.shape.num_heads, call.batch_rows());
    let all = segments.iter().enumerate().flat_map(|(s, segment)| {
        let rows = segment.rows.clone().enumerate();
        rows.map(move |(i, row)| (s, segment.block_table.clone(), row, segment.first_position + i + 1))
    });
    let mut all = all.peekable();
    while all.peek().is_some() {
        scratch.begin(heads, all.by_ref().take(per_batch));
        project_queries(&mut call, scratch, q);
        attend_batch(&mut call, scratch, keys);
        project_values(&mut call, scratch, out);
    }
}

/// The rows `rows` of `q` `[T, H * (N + R)]` in the latent space: sets `out` to `[rows.len(), H, C + R]`.
pub(crate) fn latent_queries(
    call: Call<'_>,
    scratch: &mut Scratch,
    q: &[f32],
    rows: &[u32],
    out: &mut Vec<f32>,
) {
    let g = *call.geometry;
    let (heads, width) = (g.shape.num_heads, g.shape.latent_dim());
    let (n, r, c) = (g.shape.qk_nope_head_dim, g.shape.qk_rope_head_dim, g.shape.kv_lora_rank);
    scratch.begin(heads, rows.iter().map(|row| (0, 0..0, *row as usize, 0)));
    out.clear();
    out.resize(rows.len() * heads * width, 0.0);
    for (out, row) in out.chunks_exact_mut(heads * width).zip(rows) {
        for (head, out) in out.chunks_exact_mut(width).enumerate() {
            let rope = (*row as usize * heads + head) * (n + r) + n;
            out[c..].copy_from_slice(&q[rope..rope + r]);
        }
    }
    // Results are in the order of `rows`, wherever the rows stand in `q`.
    let places: Vec<Row> = scratch.rows.iter().enumerate().map(|(i, row)| Row { row: i, ..*row }).collect();
    let (rows, places) = (&scratch.rows[..], &places[..]);
    let out = Shards::new(out);
    let (workers, sums, kv_up) = (call.workers, call.sums, call.kv_up);
    call.pool.for_each(heads, |worker, head| {
        let weights = &kv_up.w_uk[head];
        let layout = g.numerics.layout(weights.format, weights.in_features);
        let tiling = layout.tiling(rows.len());
        // SAFETY: this worker's scratch, not used elsewhere in this job.
        let (scratch, sums) = unsafe { (workers.get(worker), sums.get(worker)) };
        let nope = RowWriter::new(scratch.rows_of(layout.words() * rows.len()), layout, tiling);
        let pack = PackHead { geometry: &g, rows, writers: None, nope, head, q };
        // SAFETY: the instruction set is supported (checked at construction).
        unsafe { simd::launch(g.numerics.isa, pack) };
        let operands = Operands { rows: &scratch.rows, layout, tiling, weights };
        let finish = StoreHead { rows: places, out, stride: heads * width, column: head * width, count: c };
        multiply_here(g, operands, sums, &finish);
    });
}

/// Attention of latent queries `[n, H, C + R]`: sets `out` to `[n, H, 2 + C]`, maxima, sums and weighted latents.
pub(crate) fn attend_latents(
    mut call: Call<'_>,
    scratch: &mut Scratch,
    keys: Keys<'_>,
    spans: &[LatentSpan],
    queries: &[f32],
    out: &mut Vec<f32>,
) {
    let heads = call.geometry.shape.num_heads;
    let (c, width, per_batch) = (call.geometry.shape.kv_lora_rank, call.latent_width(), call.batch_rows());
    let all = spans.iter().enumerate().flat_map(|(s, span)| {
        let rows = span.num_keys.iter().enumerate();
        rows.map(move |(i, keys)| (s, span.block_table.clone(), span.first + i, *keys as usize))
    });
    let mut all = all.peekable();
    out.clear();
    while all.peek().is_some() {
        scratch.begin(heads, all.by_ref().take(per_batch));
        pack_queries(&mut call, scratch, queries);
        attend_batch(&mut call, scratch, keys);
        let results = scratch.rows.len() * heads;
        let (max, rest) = scratch.running.split_at(results);
        let (sum, values) = rest.split_at(results);
        for ((max, sum), values) in max.iter().zip(sum).zip(values.chunks_exact(width)) {
            out.extend([*max, *sum]);
            out.extend_from_slice(&values[..c]);
        }
    }
}

/// The rows `rows` of `out` `[T, H * V]` are `latents` `[rows.len(), H, C]` through W_UV.
pub(crate) fn project_latents(
    mut call: Call<'_>,
    scratch: &mut Scratch,
    latents: &[f32],
    rows: &[u32],
    out: &mut [f32],
) {
    let heads = call.geometry.shape.num_heads;
    let (c, width) = (call.geometry.shape.kv_lora_rank, call.latent_width());
    scratch.begin(heads, rows.iter().map(|row| (0, 0..0, *row as usize, 0)));
    let results = rows.len() * heads;
    scratch.running.clear();
    scratch.running.resize(2 * results, 1.0);
    for latent in latents.chunks_exact(c) {
        scratch.running.extend_from_slice(latent);
        scratch.running.resize(scratch.running.len() + width - c, 0.0);
    }
    project_values(&mut call, scratch, out);
}

/// Attention of the packed queries of the batch, into the running results.
fn attend_batch(call: &mut Call<'_>, scratch: &mut Scratch, keys: Keys<'_>) {
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

/// The queries of one head, in the latent space, as rows of the attention tiles.
struct LatentQueries<'a> {
    rows: &'a [Row],
    writers: &'a dyn Fn(usize) -> RowWriter,
    head: usize,
    heads: usize,
    latents: usize,
}

impl Epilogue for LatentQueries<'_> {
    #[inline(always)]
    unsafe fn finish<S: Simd>(
        &self,
        rows: Range<usize>,
        panels: Range<usize>,
        sums: *const f32,
        stride: usize,
    ) {
        for i in rows.clone() {
            let row = self.rows[i];
            let packed = (self.writers)(row.group).row(row.place * self.heads + self.head);
            for panel in panels.clone() {
                let k = panel * LANES;
                // SAFETY: `sums` holds these panels; this item alone writes this head's latent queries.
                unsafe {
                    let v = S::load(sums.add((i - rows.start) * stride + (panel - panels.start) * LANES));
                    let n = LANES.min(self.latents - k);
                    packed.put::<S>(k, v, n);
                }
            }
        }
    }
}

/// Copies the rope part of one head's queries behind the latent part, and packs the other part for the product.
struct PackHead<'a> {
    geometry: &'a Geometry,
    rows: &'a [Row],
    /// `None`: the other part alone.
    writers: Option<&'a dyn Fn(usize) -> RowWriter>,
    nope: RowWriter,
    head: usize,
    q: &'a [f32],
}

impl Kernel for PackHead<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let g = self.geometry;
        let (n, r, heads) = (g.shape.qk_nope_head_dim, g.shape.qk_rope_head_dim, g.shape.num_heads);
        for (i, row) in self.rows.iter().enumerate() {
            let q = &self.q[(row.row * heads + self.head) * (n + r)..][..n + r];
            let nope = self.nope.row(i);
            // SAFETY: `count` values at `k` are inside each part of `q`; this item alone writes this head.
            unsafe {
                for k in (0..n).step_by(LANES) {
                    let count = LANES.min(n - k);
                    nope.put::<S>(k, simd::load_first::<S>(q.as_ptr().add(k), count), count);
                }
                let Some(writers) = self.writers else { continue };
                let rope = writers(row.group).row(row.place * heads + self.head);
                for k in (0..r).step_by(LANES) {
                    let count = LANES.min(r - k);
                    let v = simd::load_first::<S>(q.as_ptr().add(n + k), count);
                    rope.put::<S>(2 * g.c_pairs() + k, v, count);
                }
            }
        }
    }
}

fn project_queries(call: &mut Call<'_>, scratch: &mut Scratch, q: &[f32]) {
    let g = *call.geometry;
    let heads = g.shape.num_heads;
    let layout = g.layout(call.query_pairs());
    scratch.place_queries(heads, layout.words());
    let Scratch { rows, groups, queries, .. } = scratch;
    let (rows, groups) = (&rows[..], &groups[..]);
    let queries = Shards::new(queries);
    let writers = |group: usize| {
        let group = &groups[group];
        let count = group.rows * heads;
        // SAFETY: the queries stay borrowed; writers of one group are used for different heads.
        let words = unsafe { queries.slice(group.queries_start, count * layout.words()) };
        RowWriter::new(words, layout, layout.attention_tiling(count))
    };
    let (workers, sums, kv_up) = (call.workers, call.sums, call.kv_up);
    call.pool.for_each(heads, |worker, head| {
        let weights = &kv_up.w_uk[head];
        let layout = g.numerics.layout(weights.format, weights.in_features);
        let tiling = layout.tiling(rows.len());
        // SAFETY: this worker's scratch, not used elsewhere in this job.
        let (scratch, sums) = unsafe { (workers.get(worker), sums.get(worker)) };
        let nope = RowWriter::new(scratch.rows_of(layout.words() * rows.len()), layout, tiling);
        let pack = PackHead { geometry: &g, rows, writers: Some(&writers), nope, head, q };
        // SAFETY: the instruction set is supported (checked at construction).
        unsafe { simd::launch(g.numerics.isa, pack) };
        let operands = Operands { rows: &scratch.rows, layout, tiling, weights };
        let latents = g.shape.kv_lora_rank;
        let finish = LatentQueries { rows, writers: &writers, head, heads, latents };
        multiply_here(g, operands, sums, &finish);
    });
}

/// Packs latent queries of one group as rows of the attention tiles.
struct PackQueries<'a> {
    geometry: &'a Geometry,
    rows: &'a [Row],
    writer: RowWriter,
    /// `[n, H, C + R]`.
    queries: &'a [f32],
}

impl Kernel for PackQueries<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let g = self.geometry;
        let (c, r, heads) = (g.shape.kv_lora_rank, g.shape.qk_rope_head_dim, g.shape.num_heads);
        for row in self.rows {
            for head in 0..heads {
                let query = &self.queries[(row.row * heads + head) * (c + r)..][..c + r];
                let packed = self.writer.row(row.place * heads + head);
                // SAFETY: `count` values at `k` are inside each part of the query; the group is this item's own.
                unsafe {
                    for k in (0..c).step_by(LANES) {
                        let count = LANES.min(c - k);
                        packed.put::<S>(k, simd::load_first::<S>(query.as_ptr().add(k), count), count);
                    }
                    for k in (0..r).step_by(LANES) {
                        let count = LANES.min(r - k);
                        let v = simd::load_first::<S>(query.as_ptr().add(c + k), count);
                        packed.put::<S>(2 * g.c_pairs() + k, v, count);
                    }
                }
            }
        }
    }
}

fn pack_queries(call: &mut Call<'_>, scratch: &mut Scratch, latent_queries: &[f32]) {
    let g = *call.geometry;
    let heads = g.shape.num_heads;
    let layout = g.layout(call.query_pairs());
    scratch.place_queries(heads, layout.words());
    let Scratch { rows, groups, queries, .. } = scratch;
    let (rows, groups, queries) = (&rows[..], &groups[..], Shards::new(queries));
    call.pool.for_each(groups.len(), |_, group| {
        let group = &groups[group];
        let count = group.rows * heads;
        // SAFETY: the queries stay borrowed; groups have words of their own.
        let words = unsafe { queries.slice(group.queries_start, count * layout.words()) };
        let writer = RowWriter::new(words, layout, layout.attention_tiling(count));
        let rows = &rows[group.first..group.first + group.rows];
        let pack = PackQueries { geometry: &g, rows, writer, queries: latent_queries };
        // SAFETY: the instruction set is supported (checked at construction).
        unsafe { simd::launch(g.numerics.isa, pack) };
    });
}

/// All rows and panels of one product on this worker.
fn multiply_here<F: Epilogue>(g: Geometry, operands: Operands<'_>, sums: &mut [f32], finish: &F) {
    let blocks = row_blocks(operands.layout, operands.tiling);
    for block in 0..blocks.tiles {
        let (tiles, panels) = (blocks.range(block), 0..operands.weights.num_panels);
        let next = operands.weights.address(panels.end);
        // SAFETY: the instruction set is supported (checked at construction).
        unsafe { simd::launch(g.numerics.isa, Multiply { operands, tiles, panels, sums, finish, next }) };
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

/// Packs one head's weighted latents, divided by their sums, as input rows.
struct PackLatents<'a> {
    writer: RowWriter,
    rows: usize,
    head: usize,
    heads: usize,
    latents: usize,
    width: usize,
    sum: &'a [f32],
    values: &'a [f32],
}

impl Kernel for PackLatents<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for row in 0..self.rows {
            let packed = self.writer.row(row);
            let at = row * self.heads + self.head;
            let values = &self.values[at * self.width..(at + 1) * self.width];
            for k in (0..self.latents).step_by(LANES) {
                // SAFETY: `width` is the latents rounded up to 16 and the padding is zero.
                unsafe {
                    let v = S::div(S::load(values.as_ptr().add(k)), S::splat(self.sum[at]));
                    packed.put::<S>(k, v, LANES.min(self.latents - k));
                }
            }
        }
    }
}

/// Stores one head of the output rows.
struct StoreHead<'a> {
    rows: &'a [Row],
    out: Shards<f32>,
    /// Values per row of `out`.
    stride: usize,
    column: usize,
    count: usize,
}

impl Epilogue for StoreHead<'_> {
    #[inline(always)]
    unsafe fn finish<S: Simd>(
        &self,
        rows: Range<usize>,
        panels: Range<usize>,
        sums: *const f32,
        stride: usize,
    ) {
        let first = panels.start * LANES;
        let count = (panels.len() * LANES).min(self.count - first);
        for i in rows.clone() {
            // SAFETY: this item's head of this row; `sums` holds `count` values per row.
            unsafe {
                let out = self.out.slice(self.rows[i].row * self.stride + self.column + first, count);
                out.copy_from_slice(std::slice::from_raw_parts(sums.add((i - rows.start) * stride), count));
            }
        }
    }
}

fn project_values(call: &mut Call<'_>, scratch: &mut Scratch, out: &mut [f32]) {
    let g = *call.geometry;
    let (heads, v) = (g.shape.num_heads, g.shape.v_head_dim);
    let width = call.latent_width();
    let (rows, running) = (&scratch.rows[..], &scratch.running[..]);
    let results = rows.len() * heads;
    let (sum, values) = running[results..].split_at(results);
    let out = Shards::new(out);
    let (workers, sums, kv_up) = (call.workers, call.sums, call.kv_up);
    call.pool.for_each(heads, |worker, head| {
        let weights = &kv_up.w_uv[head];
        let layout = g.numerics.layout(weights.format, weights.in_features);
        let tiling = layout.tiling(rows.len());
        // SAFETY: this worker's scratch, not used elsewhere in this job.
        let (scratch, sums) = unsafe { (workers.get(worker), sums.get(worker)) };
        let writer = RowWriter::new(scratch.rows_of(layout.words() * rows.len()), layout, tiling);
        let latents = g.shape.kv_lora_rank;
        let pack = PackLatents { writer, rows: rows.len(), head, heads, latents, width, sum, values };
        // SAFETY: the instruction set is supported (checked at construction).
        unsafe { simd::launch(g.numerics.isa, pack) };
        let operands = Operands { rows: &scratch.rows, layout, tiling, weights };
        let finish = StoreHead { rows, out, stride: heads * v, column: head * v, count: v };
        multiply_here(g, operands, sums, &finish);
    });
}
