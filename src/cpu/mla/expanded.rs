//! The expanded form: per head, keys and values of 64 positions at a time are computed from the latents.
//!
//! An item of work is one head of up to `QUERY_BLOCK` query rows of one segment. It walks the context once and runs all its query tiles
//! against each block: a kept one (`expansions.rs`), or one that it expands into the worker's scratch, which does not grow with
//! the context.

use super::expansions::{Expansions, Missing};
use super::flash::{AttentionTile, State};
use super::{Context, Geometry, KEY_BLOCK, KEY_PANELS, KvUp};
use crate::gemm::multiply_lanes;
use crate::layout::{Ahead, LANES, PanelFormat, Product, RowFormat, TileArgs, Tiling};
use crate::matrix::Panels;
use crate::rows::RowWriter;
use crate::simd::{self, Kernel, Simd};
use perigee_numbers::threads::{PerWorker, Shards, ThreadPool};
use perigee_ops::Segment;
use std::ops::Range;

/// Query rows of one item. More rows share an expansion; their running sums (V + 2 values each) must stay in the second-level cache.
const QUERY_BLOCK: usize = 1024;

/// Expansions that one item of work computes: they share a packing of W_UK.
const FILL_BLOCKS: usize = 8;

/// A worker's scratch.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    expander: ExpanderScratch,
    /// Keys of a block that is not kept, `[KEY_PANELS][n_pairs + r_pairs][16]`, and its values, `[ceil(V / 16)][KEY_BLOCK / 2][16]`.
    block: Vec<u32>,
    /// Packed queries.
    queries: Vec<u32>,
    max: Vec<f32>,
    sum: Vec<f32>,
    /// `[rows, ceil(V / 16) * 16]`.
    out: Vec<f32>,
}

/// What expanding needs.
#[derive(Debug, Default)]
struct ExpanderScratch {
    /// W_UK of the head as packed rows, `[ceil(N / 16)][c_pairs][16]`.
    w_uk: Vec<u32>,
    /// Latents and rope keys of the block as panels.
    latents: Vec<u32>,
    /// Rows of an FP8 cache, as bf16.
    wide: Vec<u16>,
    /// Sums of an expansion before they are packed.
    sums: Vec<f32>,
}

/// Words of the keys of one head of a block.
fn key_words(g: &Geometry) -> usize {
    KEY_PANELS * (g.n_pairs() + g.r_pairs()) * g.pair_words()
}

/// Words of its keys and values.
fn block_words(g: &Geometry) -> usize {
    key_words(g) + g.shape.v_head_dim.div_ceil(LANES) * KEY_BLOCK / 2 * g.pair_words()
}

/// One head of some query rows of one segment.
struct Item<'a> {
    geometry: &'a Geometry,
    kv_up: &'a KvUp,
    context: Context<'a>,
    /// Its segment among the expansions.
    segment: usize,
    kept: &'a Expansions,
    head: usize,
    /// Rows of `q` and `out`.
    rows: Range<usize>,
    /// Position of the first row.
    first_position: usize,
    /// `[T, H * (N + R)]`.
    q: &'a [f32],
    /// `[T, H * V]`.
    out: Shards<f32>,
    scratch: &'a mut Scratch,
}

/// Attention of every row of `segments`.
pub(crate) fn attend(
    pool: &mut ThreadPool,
    scratch: &PerWorker<Scratch>,
    kept: &mut Expansions,
    geometry: &Geometry,
    kv_up: &KvUp,
    context: Context<'_>,
    q: &[f32],
    segments: &[Segment],
    block_tables: &[u32],
    out: &mut [f32],
) {
    let heads = geometry.shape.num_heads;
    let words = heads * block_words(geometry);
    kept.plan(context.cache, context.layer, kv_up.id, words, segments, block_tables);
    let context_of =
        |segment: usize| Context { table: &block_tables[segments[segment].block_table.clone()], ..context };
    fill(pool, scratch, kept, geometry, kv_up, &context_of);
    let kept = &*kept;
    let blocks = |segment: &Segment| segment.rows.len().div_ceil(QUERY_BLOCK);
    let items: usize = segments.iter().map(|s| blocks(s) * heads).sum();
    let out = Shards::new(out);
    pool.for_each(items, |worker, mut index| {
        // Segments are few; finding the item's one by counting costs nothing next to the item.
        let Some((number, segment)) = segments.iter().enumerate().find(|(_, segment)| {
            let inside = index < blocks(segment) * heads;
            if !inside {
                index -= blocks(segment) * heads;
            }
            inside
        }) else {
            return;
        };
        let (block, head) = (index / heads, index % heads);
        let first = segment.rows.start + block * QUERY_BLOCK;
        let item = Item {
            geometry,
            kv_up,
            context: context_of(number),
            segment: number,
            kept,
            head,
            rows: first..(first + QUERY_BLOCK).min(segment.rows.end),
            first_position: segment.first_position + block * QUERY_BLOCK,
            q,
            out,
            // SAFETY: this worker's scratch, not used elsewhere in this job.
            scratch: unsafe { scratch.get(worker) },
        };
        // SAFETY: the instruction set is supported (checked at construction); items write their own rows and head.
        unsafe { simd::launch(geometry.numerics.isa, item) };
    });
}

/// Computes the expansions that are missing; `context_of` a segment is where its rows are found.
fn fill<'c>(
    pool: &mut ThreadPool,
    scratch: &PerWorker<Scratch>,
    kept: &mut Expansions,
    geometry: &Geometry,
    kv_up: &KvUp,
    context_of: &(dyn Fn(usize) -> Context<'c> + Sync),
) {
    let heads = geometry.shape.num_heads;
    let (missing, words, entry_words) = kept.missing();
    let words = Shards::new(words);
    pool.for_each(missing.len().div_ceil(FILL_BLOCKS) * heads, |worker, index| {
        let (group, head) = (index / heads, index % heads);
        let missing = &missing[group * FILL_BLOCKS..];
        // SAFETY: this worker's scratch, not used elsewhere in this job.
        let scratch = unsafe { &mut scratch.get(worker).expander };
        let fill = Fill {
            missing: &missing[..missing.len().min(FILL_BLOCKS)],
            context_of,
            words,
            entry_words,
            expander: Expander { geometry, kv_up, head, scratch },
        };
        // SAFETY: the instruction set is supported (checked at construction); items write their own head of their own places.
        unsafe { simd::launch(geometry.numerics.isa, fill) };
    });
    kept.complete();
}

/// One head of some expansions.
struct Fill<'a, 'c> {
    missing: &'a [Missing],
    context_of: &'a (dyn Fn(usize) -> Context<'c> + Sync),
    words: Shards<u32>,
    entry_words: usize,
    expander: Expander<'a>,
}

impl Kernel for Fill<'_, '_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        self.expander.begin();
        let words = block_words(self.expander.geometry);
        for missing in self.missing {
            let at = missing.place as usize * self.entry_words + self.expander.head * words;
            // SAFETY: this item's head of this place; the block is whole.
            unsafe {
                let to = self.words.slice(at, words);
                self.expander.expand::<S>(
                    (self.context_of)(missing.segment),
                    missing.first_key,
                    KEY_BLOCK,
                    to,
                );
            }
        }
    }
}

/// Makes `buffer` hold at least `len` elements, without caring what they are.
fn at_least<T: Copy + Default>(buffer: &mut Vec<T>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
}

impl Kernel for Item<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let g = self.geometry;
        let v = g.shape.v_head_dim;
        let (r_pairs, n_pairs) = (g.r_pairs(), g.n_pairs());
        let value_panels = v.div_ceil(LANES);
        let num_rows = self.rows.len();
        let q_layout = g.layout(n_pairs + r_pairs);
        let tiling = q_layout.attention_tiling(num_rows);

        let s = &mut *self.scratch;
        at_least(&mut s.queries, num_rows * q_layout.words());
        at_least(&mut s.block, block_words(g));
        s.max.clear();
        s.max.resize(num_rows, f32::NEG_INFINITY);
        s.sum.clear();
        s.sum.resize(num_rows, 0.0);
        s.out.clear();
        s.out.resize(num_rows * value_panels * LANES, 0.0);

        // SAFETY: the scratch was just sized for every index below; see each function's contract.
        unsafe {
            self.pack_queries::<S>(tiling);
            let (mut begun, words) = (false, block_words(g));
            let last = self.first_position + num_rows;
            for first_key in (0..last).step_by(KEY_BLOCK) {
                let s = &mut *self.scratch;
                let block = match self.kept.get(self.segment, first_key) {
                    Some(kept) => &kept[self.head * words..][..words],
                    None => {
                        let scratch = &mut s.expander;
                        let mut expander =
                            Expander { geometry: g, kv_up: self.kv_up, head: self.head, scratch };
                        if !std::mem::replace(&mut begun, true) {
                            expander.begin();
                        }
                        let count = KEY_BLOCK.min(last - first_key);
                        expander.expand::<S>(self.context, first_key, count, &mut s.block[..words]);
                        &s.block[..words]
                    }
                };
                let (keys, values) = block.split_at(key_words(g));
                for tile in 0..tiling.tiles {
                    let (start, height) = (tiling.start(tile), tiling.height(tile));
                    let position = self.first_position + start;
                    let tile = AttentionTile {
                        geometry: g,
                        queries: s.queries.as_ptr().add(start * q_layout.words()),
                        height,
                        pairs: n_pairs + r_pairs,
                        keys: keys.as_ptr(),
                        values: values.as_ptr(),
                        value_panels,
                        state: State {
                            max: s.max.as_mut_ptr().add(start),
                            sum: s.sum.as_mut_ptr().add(start),
                            values: s.out.as_mut_ptr().add(start * value_panels * LANES),
                        },
                    };
                    tile.run::<S>(|r| (position + r + 1).saturating_sub(first_key).min(KEY_BLOCK));
                }
            }
            for row in 0..num_rows {
                let at = (self.rows.start + row) * g.shape.num_heads * v + self.head * v;
                let (sum, from) =
                    (self.scratch.sum[row], &self.scratch.out[row * value_panels * LANES..][..v]);
                self.out.slice(at, v).iter_mut().zip(from).for_each(|(o, x)| *o = x / sum);
            }
        }
    }
}

impl Item<'_> {
    /// Packs the queries: N values padded to even, then R.
    #[inline(always)]
    unsafe fn pack_queries<S: Simd>(&mut self, tiling: Tiling) {
        let g = self.geometry;
        let (n, r) = (g.shape.qk_nope_head_dim, g.shape.qk_rope_head_dim);
        let writer = RowWriter::new(&mut self.scratch.queries, g.layout(g.n_pairs() + g.r_pairs()), tiling);
        for (i, t) in self.rows.clone().enumerate() {
            let q = &self.q[(t * g.shape.num_heads + self.head) * (n + r)..][..n + r];
            let packed = writer.row(i);
            for (from, to, len) in [(0, 0, n), (n, 2 * g.n_pairs(), r)] {
                for k in (0..len).step_by(LANES) {
                    let count = LANES.min(len - k);
                    // SAFETY: `count` values from `from + k` are inside `q`.
                    unsafe {
                        let v = simd::load_first::<S>(q.as_ptr().add(from + k), count);
                        packed.put::<S>(to + k, v, count);
                    }
                }
            }
        }
    }
}

/// Expands the keys and values of one head.
struct Expander<'a> {
    geometry: &'a Geometry,
    kv_up: &'a KvUp,
    head: usize,
    scratch: &'a mut ExpanderScratch,
}

impl Expander<'_> {
    /// Sizes the scratch and packs W_UK, before the first block.
    fn begin(&mut self) {
        let (g, s) = (self.geometry, &mut *self.scratch);
        let (n, width) = (g.shape.qk_nope_head_dim, g.shape.v_head_dim.next_multiple_of(LANES));
        at_least(&mut s.w_uk, n.div_ceil(LANES) * g.c_pairs() * g.pair_words());
        at_least(&mut s.latents, KEY_PANELS * (g.c_pairs() + g.r_pairs()) * g.pair_words());
        at_least(&mut s.sums, KEY_BLOCK * width.max(n.next_multiple_of(LANES)));
        self.pack_w_uk();
    }

    /// Keys, then values, of `count` positions from `first_key` on.
    ///
    /// # Safety
    /// Inside a launch of `S`, after `begin`.
    #[inline(always)]
    unsafe fn expand<S: Simd>(
        &mut self,
        context: Context<'_>,
        first_key: usize,
        count: usize,
        to: &mut [u32],
    ) {
        let g = self.geometry;
        assert!(count <= KEY_BLOCK && to.len() == block_words(g));
        let (keys, values) = to.split_at_mut(key_words(g));
        let ExpanderScratch { latents, wide, .. } = &mut *self.scratch;
        context.widen(first_key, count, wide);
        // SAFETY: `begin` sized the scratch, and `to` has the size of a block.
        unsafe {
            g.pack_keys::<S>(count, |i| context.wide_row(first_key, i, wide), latents);
            self.expand_keys::<S>(count, keys);
            self.expand_values::<S>(count, values);
        }
    }

    /// Turns W_UK of the head, stored for the absorbed form as `[C / 16][N / 2][16 c][2 n]`, into rows `[N / 16][C / 2][16 n][2 c]`.
    fn pack_w_uk(&mut self) {
        let g = self.geometry;
        let w = &self.kv_up.w_uk[self.head];
        let (n, c_pairs) = (g.shape.qk_nope_head_dim, g.c_pairs());
        let to = &mut self.scratch.w_uk;
        if g.format == RowFormat::Pairs {
            for pair in 0..c_pairs {
                // Both latents of the pair are lanes of one panel: 16 is even.
                let panel = &w.panel(2 * pair / LANES)[..w.panel_words()];
                let lane = 2 * pair % LANES;
                for n_pair in 0..g.n_pairs() {
                    let (a, b) = (panel[n_pair * LANES + lane], panel[n_pair * LANES + lane + 1]);
                    let at = (2 * n_pair / LANES * c_pairs + pair) * LANES + 2 * n_pair % LANES;
                    to[at] = a & 0xffff | b << 16;
                    to[at + 1] = a >> 16 | b & 0xffff_0000;
                }
            }
            return;
        }
        for c in 0..2 * c_pairs {
            let panel = &w.panel(c / LANES)[..w.panel_words()];
            for i in 0..n.next_multiple_of(2) {
                to[(i / LANES * 2 * c_pairs + c) * LANES + i % LANES] = element(w, panel, i, c % LANES);
            }
        }
    }

    /// Keys of the block: W_UK rows times latents, 16 keys per lane; then the rope keys.
    #[inline(always)]
    unsafe fn expand_keys<S: Simd>(&mut self, count: usize, to: &mut [u32]) {
        let g = self.geometry;
        let n = g.shape.qk_nope_head_dim;
        let (c_pairs, r_pairs, n_pairs) = (g.c_pairs(), g.r_pairs(), g.n_pairs());
        let latent_words = (c_pairs + r_pairs) * g.pair_words();
        let key_words = (n_pairs + r_pairs) * g.pair_words();
        let panels = count.div_ceil(LANES);
        let s = &mut *self.scratch;
        // SAFETY: the scratch holds `n` rounded up to 16 rows of W_UK and of sums, and `KEY_PANELS` panels of keys.
        unsafe {
            let args = TileArgs {
                a: s.w_uk.as_ptr(),
                a_stride: LANES,
                w: s.latents.as_ptr(),
                panel_stride: latent_words,
                scales: std::ptr::null(),
                factors: [1.0; 2],
                steps: g.steps(c_pairs),
                c: s.sums.as_mut_ptr(),
                c_stride: KEY_BLOCK,
                load: false,
                ahead: Ahead::Own { next: s.latents.as_ptr() },
            };
            multiply_lanes::<S>(g.product(), n, c_pairs * g.pair_words(), panels, args);
            for panel in 0..panels {
                let keys = to.as_mut_ptr().add(panel * key_words);
                for pair in 0..n_pairs {
                    let at = s.sums.as_ptr().add(2 * pair * KEY_BLOCK + panel * LANES);
                    let high = if 2 * pair + 1 < n { S::load(at.add(KEY_BLOCK)) } else { S::zero() };
                    g.store_pair::<S>(S::load(at), high, keys.add(pair * g.pair_words()));
                }
                let rope = s.latents.as_ptr().add(panel * latent_words + c_pairs * g.pair_words());
                let to = keys.add(n_pairs * g.pair_words());
                std::ptr::copy_nonoverlapping(rope, to, r_pairs * g.pair_words());
            }
        }
    }

    /// Values of the block: latents as rows times W_UV, 16 value dimensions per lane.
    #[inline(always)]
    unsafe fn expand_values<S: Simd>(&mut self, count: usize, to: &mut [u32]) {
        let g = self.geometry;
        let w = &self.kv_up.w_uv[self.head];
        let latent_words = (g.c_pairs() + g.r_pairs()) * g.pair_words();
        let product = match (g.format, w.format) {
            (RowFormat::Pairs, _) => Product::Dot,
            (RowFormat::F32, PanelFormat::Bf16) => Product::Wide,
            (RowFormat::F32, PanelFormat::F32) => Product::Full,
            (RowFormat::F32, PanelFormat::Codes(_))
            | (RowFormat::Blocks | RowFormat::Int8 | RowFormat::Int15 | RowFormat::Fp4 { .. }, _) => {
                unreachable!("{}", super::NO_CODES)
            }
        };
        let width = w.num_panels * LANES;
        let s = &mut *self.scratch;
        // SAFETY: the scratch holds `KEY_BLOCK` rows of sums of this width and all value panels.
        unsafe {
            let args = TileArgs {
                a: s.latents.as_ptr(),
                a_stride: LANES,
                w: w.panel(0).as_ptr(),
                panel_stride: w.panel_words(),
                scales: std::ptr::null(),
                factors: [1.0; 2],
                steps: w.steps(),
                c: s.sums.as_mut_ptr(),
                c_stride: width,
                load: false,
                ahead: Ahead::Own { next: w.panel(0).as_ptr() },
            };
            multiply_lanes::<S>(product, count.next_multiple_of(LANES), latent_words, w.num_panels, args);
            for pair in 0..count.div_ceil(2) {
                for panel in 0..w.num_panels {
                    let at = s.sums.as_ptr().add(2 * pair * width + panel * LANES);
                    let to = to.as_mut_ptr().add((panel * KEY_BLOCK / 2 + pair) * g.pair_words());
                    g.store_pair::<S>(S::load(at), S::load(at.add(width)), to);
                }
            }
        }
    }
}

/// Input `i`, lane `lane` of a panel, as f32 bits.
fn element(w: &Panels, panel: &[u32], i: usize, lane: usize) -> u32 {
    match w.format {
        PanelFormat::F32 => panel[i * LANES + lane],
        PanelFormat::Codes(_) => unreachable!("kv_b_proj is widened when it is loaded"),
        PanelFormat::Bf16 => {
            let word = panel[i / 2 * LANES + lane];
            if i.is_multiple_of(2) { word << 16 } else { word & 0xffff_0000 }
        }
    }
}
