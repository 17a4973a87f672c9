//! Multi-head latent attention in both forms (DeepSeek-V2, arXiv 2405.04434, section 2.1), and attention of pictures (`patches.rs`).
//!
//! Both forms run the same inner step (`flash.rs`): a tile of query rows against 64 keys, online softmax, 64
//! values. They differ in what keys and values are: expanded per head from the latents (`expanded.rs`), or the
//! latents themselves (`absorbed.rs`). Expanded keys and values are kept from step to step (`expansions.rs`).
//! Key blocks start at multiples of 64 positions and are taken in order, so a row's bits depend on its
//! position and the cache alone.

mod absorbed;
mod expanded;
mod expansions;
mod flash;
mod latents;
mod patches;

pub(crate) use absorbed::{attend as attend_absorbed, attend_latents, latent_queries, project_latents};
pub(crate) use expanded::{Scratch as ExpandedScratch, attend as attend_expanded};
pub(crate) use expansions::{EXPANSION_BYTES, Expansions};
pub(crate) use latents::{
    Call as AbsorbedCall, Keys, Scratch as AbsorbedScratch, WorkerScratch as AbsorbedWorker,
};

pub(crate) use patches::{Scratch as PatchScratch, attend as attend_patches};

use super::buffer::{Cache, CachedRow, KEY_BLOCK, unique_id};
use super::layout::{LANES, PanelFormat, Product, RowFormat};
use super::matrix::{PanelSource, Panels, pack_all};
use super::rows::{Numerics, RowLayout};
use super::simd::{self, Simd};
use perigee_numbers::quant::StoredMatrix;
use perigee_numbers::tensor::{Dtype, ElementType, TensorView};
use perigee_numbers::threads::ThreadPool;
use perigee_ops::{Activations, CacheDtype, CacheShape, LatentSpan, MlaShape, OpError, Segment, expect};

/// Panels of 16 keys per step.
pub(crate) const KEY_PANELS: usize = KEY_BLOCK / LANES;

/// `kv_b_proj`, per head.
#[derive(Debug)]
pub struct KvUp {
    /// Of no other matrix of the process.
    pub(crate) id: u64,
    /// W_UK transposed, `[C, N]` per head: outputs are latents, as the absorbed form needs them.
    pub(crate) w_uk: Vec<Panels>,
    /// W_UV, `[V, C]` per head.
    pub(crate) w_uv: Vec<Panels>,
}

impl KvUp {
    /// Packs `kv_b_proj` `[H * (N + V), C]`.
    pub(crate) fn load(
        pool: &mut ThreadPool,
        numerics: Numerics,
        host: &StoredMatrix<'_>,
        shape: &MlaShape,
    ) -> Result<Self, OpError> {
        // Attention multiplies with slices and transposes of this matrix, across the blocks of every packed format, and it is some
        // thousandths of the weights: a packed one is widened here, to what the products round their inputs to.
        let widened: Vec<u8>;
        let host = match host {
            StoredMatrix::Plain(view) => *view,
            StoredMatrix::Packed(packed) => {
                let values = packed.to_f32();
                let dtype = match numerics.activations {
                    Activations::F32 => Dtype::F32,
                    Activations::Bf16 | Activations::Int8 => Dtype::BF16,
                };
                widened = match numerics.activations {
                    Activations::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
                    Activations::Bf16 | Activations::Int8 => {
                        values.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect()
                    }
                };
                TensorView { dtype, shape: &packed.shape, bytes: &widened }
            }
        };
        let op = "load_kv_up";
        let MlaShape { num_heads, qk_nope_head_dim: n, v_head_dim: v, kv_lora_rank: c, .. } = *shape;
        let expected = [num_heads * (n + v), c];
        if host.shape != expected {
            return Err(OpError::ShapeMismatch { op, expected: expected.to_vec(), got: host.shape.to_vec() });
        }
        let Some(size) = host.dtype.element_bytes() else {
            return Err(OpError::UnsupportedDtype { op, dtype: host.dtype.to_string(), backend: "cpu" });
        };
        if host.bytes.len() != host.len() * size {
            let expected = vec![host.len() * size];
            return Err(OpError::ShapeMismatch { op, expected, got: vec![host.bytes.len()] });
        }
        let transposed: Vec<Vec<u8>> =
            (0..num_heads).map(|h| transpose(&host.bytes[h * (n + v) * c * size..], n, c, size)).collect();
        let (uk_shape, uv_shape) = ([c, n], [v, c]);
        let mut sources = Vec::new();
        for bytes in &transposed {
            let view = TensorView { dtype: host.dtype, shape: &uk_shape, bytes };
            sources.push(PanelSource::stacked(op, vec![view.into()])?);
        }
        for h in 0..num_heads {
            let first = h * (n + v) + n;
            sources.push(PanelSource::stacked(op, vec![host.rows(first, first + v, &uv_shape).into()])?);
        }
        let mut w_uk = pack_all(pool, numerics.isa, "kv_b_proj", &sources)?;
        let w_uv = w_uk.split_off(num_heads);
        Ok(Self { id: unique_id(), w_uk, w_uv })
    }
}

/// `[rows, cols]` to `[cols, rows]`, elements of `size` bytes.
fn transpose(bytes: &[u8], rows: usize, cols: usize, size: usize) -> Vec<u8> {
    let mut out = vec![0; rows * cols * size];
    for r in 0..rows {
        for c in 0..cols {
            let from = (r * cols + c) * size;
            out[(c * rows + r) * size..][..size].copy_from_slice(&bytes[from..from + size]);
        }
    }
    out
}

/// Sizes of one attention call, in the units the packed operands use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Geometry {
    pub shape: MlaShape,
    pub numerics: Numerics,
    /// How queries, keys, probabilities and values are stored.
    pub format: RowFormat,
    /// Whether they are rounded to bf16.
    pub round: bool,
}

/// Why operands of attention are neither int8 nor blocks.
const NO_CODES: &str = "kv_b_proj is widened when it is loaded, and attention is without the matrix unit";

impl Geometry {
    pub(crate) fn new(shape: &MlaShape, numerics: Numerics, kv_up: &KvUp) -> Self {
        // All heads share one dtype; a backend without heads never gets here.
        let format = kv_up.w_uv.first().map_or(PanelFormat::F32, |w| w.format);
        Self::of_panels(shape, numerics, format)
    }

    /// As beside weights whose panels have this format.
    pub(crate) fn of_panels(shape: &MlaShape, numerics: Numerics, format: PanelFormat) -> Self {
        let numerics = numerics.without_tiles();
        let layout = numerics.layout(format, 2);
        Self { shape: *shape, numerics, format: layout.format, round: layout.round }
    }

    /// Pairs of the latent part, C padded to even.
    pub(crate) fn c_pairs(&self) -> usize {
        self.shape.kv_lora_rank.div_ceil(2)
    }

    pub(crate) fn r_pairs(&self) -> usize {
        self.shape.qk_rope_head_dim / 2
    }

    pub(crate) fn n_pairs(&self) -> usize {
        self.shape.qk_nope_head_dim.div_ceil(2)
    }

    /// Words of 16 lanes of one pair.
    pub(crate) fn pair_words(&self) -> usize {
        LANES * self.words_per_pair()
    }

    /// Words of one pair of one row.
    pub(crate) fn words_per_pair(&self) -> usize {
        match self.format {
            RowFormat::Pairs => 1,
            RowFormat::F32 => 2,
            RowFormat::Blocks | RowFormat::Int8 | RowFormat::Int15 | RowFormat::Fp4 { .. } => {
                unreachable!("{NO_CODES}")
            }
        }
    }

    /// Kernel steps of `pairs` pairs when both operands are in `format`.
    pub(crate) fn steps(&self, pairs: usize) -> usize {
        pairs * self.words_per_pair()
    }

    /// Kernel for operands that are both in `format`.
    pub(crate) fn product(&self) -> Product {
        super::gemm::product_of_same(self.format)
    }

    /// Row layout of `pairs` pairs in `format`.
    pub(crate) fn layout(&self, pairs: usize) -> RowLayout {
        let mut layout = self.numerics.exact_layout(2 * pairs);
        layout.format = self.format;
        layout.round = self.round;
        layout
    }

    /// Stores lanes of two consecutive inputs as one pair of a panel.
    ///
    /// # Safety
    /// Inside a launch of `S`; `to` is writable for `pair_words` words.
    #[inline(always)]
    pub(crate) unsafe fn store_pair<S: Simd>(&self, low: S::V, high: S::V, to: *mut u32) {
        // SAFETY: by the contract.
        unsafe {
            match self.format {
                RowFormat::Pairs => S::store_pairs(low, high, to),
                RowFormat::F32 => {
                    let round = |v| if self.round { S::round_bf16(v) } else { v };
                    S::store(round(low), to.cast());
                    S::store(round(high), to.cast::<f32>().add(LANES));
                }
                RowFormat::Blocks | RowFormat::Int8 | RowFormat::Int15 | RowFormat::Fp4 { .. } => {
                    unreachable!("{NO_CODES}")
                }
            }
        }
    }

    /// Packs cached rows as panels of keys, `[KEY_PANELS][c_pairs + r_pairs][16 keys]` pairs. `row(i)` is the i-th key; keys from
    /// `count` on are zero, whatever the cache holds there.
    ///
    /// # Safety
    /// Inside a launch of `S`.
    #[inline(always)]
    pub(crate) unsafe fn pack_keys<'c, S: Simd>(
        &self,
        count: usize,
        row: impl Fn(usize) -> CachedRow<'c>,
        to: &mut [u32],
    ) {
        let words = (self.c_pairs() + self.r_pairs()) * self.words_per_pair();
        assert!(to.len() >= count.div_ceil(LANES) * words * LANES);
        let in_place = self.format == RowFormat::Pairs && self.shape.kv_lora_rank.is_multiple_of(2);
        let mut square = [0u32; LANES * LANES];
        for first_key in (0..count).step_by(LANES) {
            let keys = LANES.min(count - first_key);
            square[keys * LANES..].fill(0);
            let rows: [CachedRow<'c>; LANES] = std::array::from_fn(|key| row(first_key + key.min(keys - 1)));
            for first in (0..words).step_by(LANES) {
                let cols = LANES.min(words - first);
                // Pairs lie in the cache as they lie in a panel: whole lines are read where they are.
                let line_of = |row: &CachedRow<'c>| match row {
                    CachedRow::Bf16(row) if in_place && cols == LANES => {
                        Some(&row[2 * first..2 * (first + LANES)])
                    }
                    _ => None,
                };
                for (line, row) in square.chunks_exact_mut(LANES).zip(&rows[..keys]) {
                    if line_of(row).is_none() {
                        self.key_words(*row, first, &mut line[..cols]);
                    }
                }
                let from = std::array::from_fn(|key| match line_of(&rows[key]) {
                    Some(line) if key < keys => line.as_ptr().cast(),
                    _ => square[key * LANES..].as_ptr(),
                });
                // SAFETY: `first + cols` words of 16 keys each are inside the panel, and that inside `to` by the assert.
                unsafe {
                    let at = to.as_mut_ptr().add((first_key * words) + first * LANES);
                    S::transpose(&from, at, LANES, LANES, cols);
                }
            }
        }
    }

    /// Words `first..first + line.len()` of one key: latent padded to pairs, then rope key.
    #[inline(always)]
    fn key_words(&self, row: CachedRow<'_>, first: usize, line: &mut [u32]) {
        let (c, padded) = (self.shape.kv_lora_rank, 2 * self.c_pairs());
        // Where value `i` of the padded row stands in the cached one.
        let place = |i: usize| if i < padded { (i < c).then_some(i) } else { Some(i - padded + c) };
        match (self.format, row) {
            (RowFormat::Pairs, row) => {
                let bits = |i| match (place(i), row) {
                    (None, _) => 0,
                    (Some(i), CachedRow::Bf16(row)) => row[i] as u32,
                    (Some(i), CachedRow::F32(row)) => half::bf16::from_f32(row[i]).to_bits() as u32,
                    (_, CachedRow::Fp8(_)) => unreachable!("widened by `Context::widen`"),
                };
                for (i, word) in line.iter_mut().enumerate() {
                    *word = bits(2 * (first + i)) | bits(2 * (first + i) + 1) << 16;
                }
            }
            (RowFormat::F32, row) => {
                for (i, word) in line.iter_mut().enumerate() {
                    let value = match (place(first + i), row) {
                        (None, _) => 0.0,
                        (Some(i), CachedRow::Bf16(row)) => half::bf16::from_bits(row[i]).to_f32(),
                        (Some(i), CachedRow::F32(row)) if self.round => half::bf16::from_f32(row[i]).to_f32(),
                        (Some(i), CachedRow::F32(row)) => row[i],
                        (_, CachedRow::Fp8(_)) => unreachable!("widened by `Context::widen`"),
                    };
                    *word = value.to_bits();
                }
            }
            (RowFormat::Blocks | RowFormat::Int8 | RowFormat::Int15 | RowFormat::Fp4 { .. }, _) => {
                unreachable!("{NO_CODES}")
            }
        }
    }

    /// Packs the latent part of cached rows as panels of values, `[ceil(C / 16)][KEY_BLOCK / 2][16]` pairs of keys.
    ///
    /// # Safety
    /// Inside a launch of `S`.
    #[inline(always)]
    pub(crate) unsafe fn pack_values<'c, S: Simd>(
        &self,
        count: usize,
        row: impl Fn(usize) -> CachedRow<'c>,
        to: &mut [u32],
    ) {
        let c = self.shape.kv_lora_rank;
        let panel_words = KEY_BLOCK / 2 * self.pair_words();
        assert!(to.len() >= c.div_ceil(LANES) * panel_words);
        for pair in 0..count.div_ceil(2) {
            let low = row(2 * pair);
            let high = (2 * pair + 1 < count).then(|| row(2 * pair + 1));
            let at = |first: usize| first / LANES * panel_words + pair * self.pair_words();
            let mut done = 0;
            if let (RowFormat::Pairs, CachedRow::Bf16(low), Some(CachedRow::Bf16(high))) =
                (self.format, low, high)
            {
                let whole = low[..c].chunks_exact(LANES).zip(high[..c].chunks_exact(LANES));
                for (low, high) in whole {
                    // SAFETY: both chunks hold 16 values; the panel and pair are inside `to` by the assert.
                    unsafe { S::zip(low.as_ptr(), high.as_ptr(), to.as_mut_ptr().add(at(done))) };
                    done += LANES;
                }
            }
            for first in (done..c).step_by(LANES) {
                let n = LANES.min(c - first);
                // SAFETY: `first + n` is inside the latent; the panel and pair are inside `to` by the assert.
                unsafe {
                    let low = latent_lanes::<S>(low, first, n);
                    let high = match high {
                        Some(high) => latent_lanes::<S>(high, first, n),
                        None => S::zero(),
                    };
                    self.store_pair::<S>(low, high, to.as_mut_ptr().add(at(first)));
                }
            }
        }
    }
}

/// Values `first..first + n` of a cached row, the other lanes zero. A function and not a closure: only this is sure to be inlined.
///
/// # Safety
/// Inside a launch of `S`; `n <= 16`.
#[inline(always)]
unsafe fn latent_lanes<S: Simd>(row: CachedRow<'_>, first: usize, n: usize) -> S::V {
    // SAFETY: the slices hold what is read.
    unsafe {
        match row {
            CachedRow::F32(row) => simd::load_first::<S>(row[first..first + n].as_ptr(), n),
            CachedRow::Bf16(row) => {
                let mut whole = [0u16; LANES];
                whole[..n].copy_from_slice(&row[first..first + n]);
                S::widen(whole.as_ptr())
            }
            CachedRow::Fp8(_) => unreachable!("widened by `Context::widen`"),
        }
    }
}

/// Finds cached rows of one sequence by position.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub cache: &'a Cache,
    pub layer: usize,
    /// Block ids of the sequence.
    pub table: &'a [u32],
}

impl<'a> Context<'a> {
    /// Widens the rows of `count` positions from `first` into `wide` `[count][C + R]` if the cache holds codes; `rows_of` then finds them
    /// there. Inlined into the kernels, so that the loop over the codes is compiled for their instruction set.
    #[inline(always)]
    pub(crate) fn widen(&self, first: usize, count: usize, wide: &mut Vec<u16>) {
        let CacheShape { dtype: CacheDtype::Fp8(format), latent_dim, rope_dim, .. } = self.cache.shape else {
            return;
        };
        if wide.len() < count * latent_dim {
            wide.resize(count * latent_dim, 0);
        }
        for (i, wide) in wide.chunks_exact_mut(latent_dim).take(count).enumerate() {
            if let CachedRow::Fp8(row) = self.row(first + i) {
                format.decode(row, latent_dim - rope_dim, wide);
            }
        }
    }

    /// Row `i` from `first`, of those that were widened.
    #[inline(always)]
    pub(crate) fn wide_row<'b>(&self, first: usize, i: usize, wide: &'b [u16]) -> CachedRow<'b>
    where
        'a: 'b,
    {
        match self.cache.shape.dtype {
            CacheDtype::Fp8(_) => {
                let d = self.cache.shape.latent_dim;
                CachedRow::Bf16(&wide[i * d..(i + 1) * d])
            }
            CacheDtype::F32 | CacheDtype::Bf16 => self.row(first + i),
        }
    }

    pub(crate) fn row(&self, position: usize) -> CachedRow<'a> {
        let size = self.cache.shape.block_size;
        self.cache.row(self.layer, self.table[position / size] as usize * size + position % size)
    }
}

/// Checks what both forms are given, so that nothing after it can be out of bounds.
pub(crate) fn check(
    op: &'static str,
    shape: &MlaShape,
    rows: usize,
    layer: usize,
    cache: &Cache,
    segments: &[Segment],
    block_tables: &[u32],
) -> Result<(), OpError> {
    check_cache(op, shape, layer, cache)?;
    for segment in segments {
        expect_at_most(op, segment.rows.end, segment.rows.start)?;
        expect_at_most(op, rows, segment.rows.end)?;
        check_table(op, cache, segment.block_table.clone(), segment.context_len(), block_tables)?;
    }
    Ok(())
}

/// The same for latent queries.
pub(crate) fn check_spans(
    op: &'static str,
    shape: &MlaShape,
    layer: usize,
    cache: &Cache,
    spans: &[LatentSpan],
    block_tables: &[u32],
) -> Result<(), OpError> {
    check_cache(op, shape, layer, cache)?;
    let mut first = 0;
    for span in spans {
        expect(op, &[first], &[span.first])?;
        expect(op, &[1], &[usize::from(span.num_keys.is_sorted())])?;
        first += span.num_keys.len();
        let keys = span.num_keys.last().map_or(0, |keys| *keys as usize);
        check_table(op, cache, span.block_table.clone(), keys, block_tables)?;
    }
    Ok(())
}

fn check_cache(op: &'static str, shape: &MlaShape, layer: usize, cache: &Cache) -> Result<(), OpError> {
    let expected = [shape.latent_dim(), shape.qk_rope_head_dim];
    expect(op, &expected, &[cache.shape.latent_dim, cache.shape.rope_dim])?;
    expect_at_most(op, cache.shape.num_layers, layer + 1)
}

fn expect_at_most(op: &'static str, limit: usize, got: usize) -> Result<(), OpError> {
    match got <= limit {
        true => Ok(()),
        false => Err(OpError::ShapeMismatch { op, expected: vec![limit], got: vec![got] }),
    }
}

/// `Err` unless `keys` cached rows are found through the table.
fn check_table(
    op: &'static str,
    cache: &Cache,
    table: std::ops::Range<usize>,
    keys: usize,
    block_tables: &[u32],
) -> Result<(), OpError> {
    expect_at_most(op, table.end, table.start)?;
    expect_at_most(op, block_tables.len(), table.end)?;
    let table = &block_tables[table];
    expect_at_most(op, table.len() * cache.shape.block_size, keys)?;
    let last = table.iter().map(|block| *block as usize + 1).max();
    expect_at_most(op, cache.shape.num_blocks, last.unwrap_or(0))
}
