//! The inner step of attention: a tile of query rows, 64 keys, online softmax, 64 values.
//!
//! Online softmax: Milakov and Gimelshein, arXiv 1805.02867; as tiles: FlashAttention-2, arXiv 2307.08691, algorithm 1.

use super::{Geometry, KEY_BLOCK, KEY_PANELS};
use crate::gemm::multiply_tile;
use crate::layout::{Ahead, LANES, RowFormat, TileArgs};
use crate::simd::{self, Simd};

/// Rows of the largest attention tile.
const MAX_ROWS: usize = 8;

/// Sixty-four zeros, then sixty-four minus infinities: read at `64 - visible` they mask what lies beyond.
static MASK: [f32; 2 * KEY_BLOCK] = {
    let mut mask = [0.0; 2 * KEY_BLOCK];
    let mut i = KEY_BLOCK;
    while i < 2 * KEY_BLOCK {
        mask[i] = f32::NEG_INFINITY;
        i += 1;
    }
    mask
};

/// Running softmax of some rows: largest score, sum of exponentials, weighted sum of values.
#[derive(Clone, Copy)]
pub(super) struct State {
    /// `[rows]`, minus infinity at first.
    pub max: *mut f32,
    /// `[rows]`, zero at first.
    pub sum: *mut f32,
    /// `[rows, value_panels * 16]`, zero at first.
    pub values: *mut f32,
}

/// One tile of rows and one block of keys.
pub(super) struct AttentionTile<'a> {
    pub geometry: &'a Geometry,
    /// Packed query tile, `[pairs][height]`.
    pub queries: *const u32,
    pub height: usize,
    /// Pairs of a query and a key.
    pub pairs: usize,
    /// `[KEY_PANELS][pairs][16]`.
    pub keys: *const u32,
    /// `[value_panels][KEY_BLOCK / 2][16]`.
    pub values: *const u32,
    pub value_panels: usize,
    pub state: State,
}

impl AttentionTile<'_> {
    /// Runs the tile; `visible(r)` says how many of the block's keys row `r` attends to. Rows that see none are left as they are.
    ///
    /// # Safety
    /// Inside a launch of `S`; every pointer is valid for the sizes its field names; `height <= MAX_ROWS`.
    #[inline(always)]
    pub(super) unsafe fn run<S: Simd>(&self, visible: impl Fn(usize) -> usize) {
        let AttentionTile { geometry, height, value_panels, .. } = *self;
        assert!(height <= MAX_ROWS);
        let most = (0..height).map(&visible).max().unwrap_or(0);
        if most == 0 {
            return;
        }
        let vectors = most.div_ceil(LANES);
        let mut scores = [0.0f32; MAX_ROWS * KEY_BLOCK];
        let mut packed = [0u32; MAX_ROWS * KEY_BLOCK];
        // SAFETY: sizes by the contract; the local arrays hold a tile of the largest height.
        unsafe {
            multiply_tile::<S>(
                geometry.product(),
                height,
                vectors.min(KEY_PANELS),
                TileArgs {
                    a: self.queries,
                    a_stride: height,
                    w: self.keys,
                    panel_stride: self.pairs * geometry.pair_words(),
                    scales: std::ptr::null(),
                    factors: [1.0; 2],
                    steps: geometry.steps(self.pairs),
                    c: scores.as_mut_ptr(),
                    c_stride: KEY_BLOCK,
                    load: false,
                    ahead: Ahead::Own { next: self.values },
                },
            );
            self.softmax::<S>(&mut scores, visible, vectors);
            for r in 0..height {
                self.pack::<S>(r, scores.as_ptr().add(r * KEY_BLOCK), vectors, packed.as_mut_ptr());
            }
            multiply_tile::<S>(
                geometry.product(),
                height,
                value_panels,
                TileArgs {
                    a: packed.as_ptr(),
                    a_stride: height,
                    w: self.values,
                    panel_stride: KEY_BLOCK / 2 * geometry.pair_words(),
                    scales: std::ptr::null(),
                    factors: [1.0; 2],
                    steps: geometry.steps(most.div_ceil(2)),
                    c: self.state.values,
                    c_stride: value_panels * LANES,
                    load: true,
                    ahead: Ahead::Own { next: self.keys },
                },
            );
        }
    }

    /// Turns the tile's scores into exponentials and rescales what each row has summed so far. Rows that see no key get zeros.
    #[inline(always)]
    unsafe fn softmax<S: Simd>(
        &self,
        scores: &mut [f32; MAX_ROWS * KEY_BLOCK],
        visible: impl Fn(usize) -> usize,
        vectors: usize,
    ) {
        // Maxima before and after, a row per lane, so that one exponential serves the tile.
        let (mut before, mut now) = ([0.0f32; LANES], [0.0f32; LANES]);
        // SAFETY: a row of scores holds `vectors` vectors, the mask is read at `64 - visible + 64` at most, the state holds the rows.
        unsafe {
            let scale = S::splat(self.geometry.shape.scale);
            for r in 0..self.height {
                let row = scores.as_mut_ptr().add(r * KEY_BLOCK);
                let mask = MASK.as_ptr().add(KEY_BLOCK - visible(r));
                let mut largest = S::splat(f32::NEG_INFINITY);
                for j in 0..vectors {
                    let v = S::fma(S::load(row.add(j * LANES)), scale, S::load(mask.add(j * LANES)));
                    S::store(v, row.add(j * LANES));
                    largest = S::max(largest, v);
                }
                before[r] = *self.state.max.add(r);
                let block = S::largest(largest);
                now[r] = if block > before[r] { block } else { before[r] };
            }
            let mut shrink = [0.0f32; LANES];
            let change = S::sub(S::load(before.as_ptr()), S::load(now.as_ptr()));
            S::store(simd::exp::<S>(change), shrink.as_mut_ptr());
            for r in 0..self.height {
                let row = scores.as_mut_ptr().add(r * KEY_BLOCK);
                if visible(r) == 0 {
                    // Zero probabilities: the row's sums stay what they are.
                    (0..vectors).for_each(|j| S::store(S::zero(), row.add(j * LANES)));
                    continue;
                }
                let max = S::splat(now[r]);
                let mut total = S::zero();
                for j in 0..vectors {
                    let p = simd::exp::<S>(S::sub(S::load(row.add(j * LANES)), max));
                    S::store(p, row.add(j * LANES));
                    total = S::add(total, p);
                }
                let sum = self.state.sum.add(r);
                *self.state.max.add(r) = now[r];
                if before[r] == now[r] {
                    *sum += S::sum(total);
                } else {
                    *sum = *sum * shrink[r] + S::sum(total);
                    let width = self.value_panels * LANES;
                    scale_values::<S>(self.state.values.add(r * width), width, shrink[r]);
                }
            }
        }
    }

    /// Packs one row's probabilities as the rows of the second product.
    #[inline(always)]
    unsafe fn pack<S: Simd>(&self, r: usize, row: *const f32, vectors: usize, to: *mut u32) {
        let height = self.height;
        // SAFETY: `to` holds `height` rows of `KEY_BLOCK` words.
        unsafe {
            for j in 0..vectors {
                let p = S::load(row.add(j * LANES));
                match self.geometry.format {
                    RowFormat::Pairs => {
                        let mut lanes = [0u32; LANES / 2];
                        S::narrow(p, lanes.as_mut_ptr().cast());
                        for (i, word) in lanes.into_iter().enumerate() {
                            *to.add((j * LANES / 2 + i) * height + r) = word;
                        }
                    }
                    RowFormat::F32 => {
                        let p = if self.geometry.round { S::round_bf16(p) } else { p };
                        let mut lanes = [0.0f32; LANES];
                        S::store(p, lanes.as_mut_ptr());
                        for (i, x) in lanes.into_iter().enumerate() {
                            *to.add((j * LANES + i) * height + r) = x.to_bits();
                        }
                    }
                    RowFormat::Blocks | RowFormat::Int8 | RowFormat::Int15 | RowFormat::Fp4 { .. } => {
                        unreachable!("{}", super::NO_CODES)
                    }
                }
            }
        }
    }
}

/// `e^(before - now)` of two running maxima, exactly 1 when they are equal (both may be minus infinity).
#[inline(always)]
pub(super) unsafe fn rescale<S: Simd>(before: f32, now: f32) -> f32 {
    if before == now {
        return 1.0;
    }
    let mut lanes = [0.0f32; LANES];
    // SAFETY: the array holds 16 lanes.
    unsafe { S::store(simd::exp::<S>(S::splat(before - now)), lanes.as_mut_ptr()) };
    lanes[0]
}

/// `values *= factor`; `width` is a multiple of 16.
#[inline(always)]
pub(super) unsafe fn scale_values<S: Simd>(values: *mut f32, width: usize, factor: f32) {
    for k in (0..width).step_by(LANES) {
        // SAFETY: `values` holds `width` values by the contract.
        unsafe { S::store(S::mul(S::load(values.add(k)), S::splat(factor)), values.add(k)) };
    }
}
