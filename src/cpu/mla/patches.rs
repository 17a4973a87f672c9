//! Attention of the patches of pictures: every patch to all patches of its picture, the heads' keys and values given as they are.
//!
//! The inner step is that of the network's own attention (`flash.rs`); every row sees every key. Key blocks are counted from the picture's
//! first patch, so a patch's bits depend on its own picture alone.

use super::flash::{AttentionTile, State};
use super::{Geometry, KEY_BLOCK, KEY_PANELS, Numerics};
use crate::buffer::CachedRow;
use crate::layout::{LANES, PanelFormat, Tiling};
use crate::rows::RowWriter;
use crate::simd::{self, Kernel, Simd};
use perigee_numbers::threads::{PerWorker, Shards, ThreadPool};
use perigee_ops::MlaShape;
use std::ops::Range;

/// Query rows of one item, which share the packing of the keys; their running sums must stay in the second-level cache.
const QUERY_BLOCK: usize = 1024;

/// A worker's scratch.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// `[KEY_PANELS][pairs][16]`.
    keys: Vec<u32>,
    /// `[ceil(head_dim / 16)][KEY_BLOCK / 2][16]`.
    values: Vec<u32>,
    queries: Vec<u32>,
    max: Vec<f32>,
    sum: Vec<f32>,
    /// `[rows, ceil(head_dim / 16) * 16]`.
    out: Vec<f32>,
}

/// One head of some patches of one picture.
struct Item<'a> {
    geometry: &'a Geometry,
    head: usize,
    /// Patches of the picture.
    picture: Range<usize>,
    /// Those of them that ask.
    rows: Range<usize>,
    /// `[P, 3 * H * head_dim]`.
    qkv: &'a [f32],
    /// `[P, H * head_dim]`.
    out: Shards<f32>,
    scratch: &'a mut Scratch,
}

/// Attention of all patches; `qkv` and `out` hold the patches of all `pictures`.
pub(crate) fn attend(
    pool: &mut ThreadPool,
    scratch: &PerWorker<Scratch>,
    numerics: Numerics,
    num_heads: usize,
    head_dim: usize,
    qkv: &[f32],
    pictures: &[Range<usize>],
    out: &mut [f32],
) {
    // Keys are one part, as the latents of the absorbed form are: `kv_lora_rank` is their width, and there is no rope part beside them.
    let shape = MlaShape {
        num_heads,
        qk_nope_head_dim: head_dim,
        qk_rope_head_dim: 0,
        v_head_dim: head_dim,
        kv_lora_rank: head_dim,
        scale: (head_dim as f32).powf(-0.5),
    };
    let geometry = Geometry::of_panels(&shape, numerics, PanelFormat::Bf16);
    let blocks: Vec<_> = pictures
        .iter()
        .flat_map(|picture| {
            let firsts = picture.clone().step_by(QUERY_BLOCK);
            firsts.map(move |first| (picture.clone(), first..(first + QUERY_BLOCK).min(picture.end)))
        })
        .collect();
    let out = Shards::new(out);
    pool.for_each(blocks.len() * num_heads, |worker, index| {
        let (picture, rows) = blocks[index / num_heads].clone();
        let head = index % num_heads;
        // SAFETY: this worker's scratch, not used elsewhere in this job.
        let scratch = unsafe { scratch.get(worker) };
        let item = Item { geometry: &geometry, head, picture, rows, qkv, out, scratch };
        // SAFETY: the instruction set is supported (checked at construction); items write their own rows and head.
        unsafe { simd::launch(numerics.isa, item) };
    });
}

impl Item<'_> {
    /// Query (0), key (1) or value (2) of a patch.
    #[inline(always)]
    fn part(&self, patch: usize, part: usize) -> &[f32] {
        let (heads, head_dim) = (self.geometry.shape.num_heads, self.geometry.shape.v_head_dim);
        &self.qkv[((patch * 3 + part) * heads + self.head) * head_dim..][..head_dim]
    }

    /// Packs the queries.
    #[inline(always)]
    unsafe fn pack_queries<S: Simd>(&self, tiling: Tiling, queries: &mut [u32]) {
        let g = self.geometry;
        let writer = RowWriter::new(queries, g.layout(g.c_pairs()), tiling);
        for (i, patch) in self.rows.clone().enumerate() {
            let query = self.part(patch, 0);
            let packed = writer.row(i);
            for k in (0..query.len()).step_by(LANES) {
                let count = LANES.min(query.len() - k);
                // SAFETY: `count` values from `k` are inside the query.
                unsafe { packed.put::<S>(k, simd::load_first::<S>(query.as_ptr().add(k), count), count) };
            }
        }
    }
}

impl Kernel for Item<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let g = self.geometry;
        let head_dim = g.shape.v_head_dim;
        let pairs = g.c_pairs();
        let value_panels = head_dim.div_ceil(LANES);
        let width = value_panels * LANES;
        let num_rows = self.rows.len();
        let layout = g.layout(pairs);
        let tiling = layout.attention_tiling(num_rows);
        let mut taken = std::mem::take(&mut *self.scratch);
        let s = &mut taken;
        s.keys.resize(KEY_PANELS * pairs * g.pair_words(), 0);
        s.values.resize(value_panels * KEY_BLOCK / 2 * g.pair_words(), 0);
        // Longer than any picture's rows need: the tail is never read.
        let words = num_rows * layout.words();
        if s.queries.len() < words {
            s.queries.resize(words, 0);
        }
        s.max.clear();
        s.max.resize(num_rows, f32::NEG_INFINITY);
        s.sum.clear();
        s.sum.resize(num_rows, 0.0);
        s.out.clear();
        s.out.resize(num_rows * width, 0.0);
        // SAFETY: the scratch was just sized for every index below; see each function's contract.
        unsafe {
            self.pack_queries::<S>(tiling, &mut s.queries);
            for first_key in self.picture.clone().step_by(KEY_BLOCK) {
                let count = KEY_BLOCK.min(self.picture.end - first_key);
                g.pack_keys::<S>(count, |i| CachedRow::F32(self.part(first_key + i, 1)), &mut s.keys);
                g.pack_values::<S>(count, |i| CachedRow::F32(self.part(first_key + i, 2)), &mut s.values);
                for tile in 0..tiling.tiles {
                    let (start, height) = (tiling.start(tile), tiling.height(tile));
                    let tile = AttentionTile {
                        geometry: g,
                        queries: s.queries.as_ptr().add(start * layout.words()),
                        height,
                        pairs,
                        keys: s.keys.as_ptr(),
                        values: s.values.as_ptr(),
                        value_panels,
                        state: State {
                            max: s.max.as_mut_ptr().add(start),
                            sum: s.sum.as_mut_ptr().add(start),
                            values: s.out.as_mut_ptr().add(start * width),
                        },
                    };
                    tile.run::<S>(|_| count);
                }
            }
            for (i, patch) in self.rows.clone().enumerate() {
                let at = (patch * g.shape.num_heads + self.head) * head_dim;
                let from = &s.out[i * width..][..head_dim];
                self.out.slice(at, head_dim).iter_mut().zip(from).for_each(|(o, x)| *o = x / s.sum[i]);
            }
        }
        *self.scratch = taken;
    }
}
