//! The absorbed form: queries go through W_UK into the latent space, attend to the latents themselves, and come back through W_UV.
//!
//! Three parts, each on all threads: queries into the latent space (a head per item), attention (`latents.rs`), values out of it
//! (a head per item).
//!
//! `attend` is all three; ranks that share heads and cache call them one by one and exchange what is between them.

use std::ops::Range;

use super::Geometry;
use super::latents::{Call, Keys, Row, Scratch, attend_batch};
use crate::gemm::{Epilogue, Multiply, Operands, row_blocks};
use crate::layout::LANES;
use crate::rows::RowWriter;
use crate::simd::{self, Kernel, Simd};
use perigee_numbers::threads::Shards;
use perigee_ops::{LatentSpan, Segment};

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
