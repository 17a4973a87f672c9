//! Matrix products: packed rows times panels, blocked for the caches, one accumulation per output.
//!
//! One driver serves one row and thousands. It walks a few panels at a time; per block of `in` it walks the
//! tiles of rows, keeping the panels' block in the second-level cache; partial sums stay in the worker's
//! scratch between blocks. An [`Epilogue`] takes the finished sums: store, add, SwiGLU, or scatter.

#[cfg(target_arch = "x86_64")]
mod amx;
mod codes;
mod int8;
mod product;
mod tile;

use codes::{WIDE_STEPS, WideBlock};
pub(crate) use product::{multiply_lanes, multiply_tile};

use super::layout::{Ahead, CodeFormat, LANES, Product, RowFormat, TileArgs, Tiling};
use super::matrix::Panels;
use super::rows::RowLayout;
use super::simd::{self, Isa, Kernel, Simd};
use perigee_numbers::threads::{PerWorker, Shards, ThreadPool};
use std::ops::Range;

/// Rows one work item takes at most; more are further items.
const ROW_BLOCK: usize = 288;

/// Steps per block of `in` when several tiles share the panels: two panels of 64 KiB each stay in the second-level cache. Blocks that
/// fit the first level (128 steps) were 2 % slower: what they save in loads they lose in entering and leaving tiles.
const STEP_BLOCK: usize = 1024;

/// The same for the matrix unit: two panels of 32 KiB, and as much again of the rows that pass by.
const BLOCKS_STEP_BLOCK: usize = 512;

/// The same for panels of codes, whose steps are 32 inputs: 16 KiB of a panel and 48 KiB of a tile of 12 rows.
const CODE_STEP_BLOCK: usize = 64;

/// Values of scratch a worker needs for the sums of one item.
pub(crate) const SUMS: usize = ROW_BLOCK * 4 * LANES;

/// Packed rows and the matrix they are multiplied with.
#[derive(Clone, Copy)]
pub(crate) struct Operands<'a> {
    /// Packed tiles.
    pub rows: &'a [u32],
    /// How they are packed.
    pub layout: RowLayout,
    /// How they are cut.
    pub tiling: Tiling,
    /// The matrix.
    pub weights: &'a Panels,
}

impl Operands<'_> {
    /// Panels finished together for what they are `finish`ed to.
    fn group<F: Epilogue>(&self, finish: &F) -> usize {
        finished_together(self.layout, self.tiling.rows).max(finish.least_panels())
    }
}

/// Panels finished together. Even, so that gate and up of the same units arrive together.
pub(crate) fn finished_together(layout: RowLayout, rows: usize) -> usize {
    let narrow = if layout.format == RowFormat::Blocks { rows <= LANES } else { rows <= 6 };
    if narrow || layout.takes_steps() { 4 } else { 2 }
}

/// Tiles cut into runs of nearly equal length whose sums fit the scratch; the "rows" of the result are tiles.
pub(crate) fn row_blocks(layout: RowLayout, tiling: Tiling) -> Tiling {
    let height = tiling.height(0).max(1) * layout.format.planes();
    Tiling::new(tiling.tiles, (ROW_BLOCK / height).max(1))
}

/// What happens to finished sums.
pub(crate) trait Epilogue {
    /// Panels that it takes at once at least, 2 or 4.
    fn least_panels(&self) -> usize {
        2
    }

    /// Takes the sums of rows `rows` and panels `panels`: `sums[row - rows.start][panel - panels.start][lane]`, `stride` values per row.
    ///
    /// # Safety
    /// Runs inside a launch of `S`, `sums` is readable for those counts, and no other worker finishes the same rows and panels.
    unsafe fn finish<S: Simd>(
        &self,
        rows: Range<usize>,
        panels: Range<usize>,
        sums: *const f32,
        stride: usize,
    );
}

/// One work item: some tiles of rows times some panels.
pub(crate) struct Multiply<'a, F> {
    pub operands: Operands<'a>,
    pub tiles: Range<usize>,
    pub panels: Range<usize>,
    /// `SUMS` values.
    pub sums: &'a mut [f32],
    pub finish: &'a F,
    /// Weights that are read after these, to prefetch; any address.
    pub next: *const u32,
}

impl<F: Epilogue> Kernel for Multiply<'_, F> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let Operands { rows, layout, tiling, weights } = self.operands;
        let product = layout.product(weights.format);
        let (steps, row_words) = (weights.steps(), layout.words());
        let (row_steps, step_words) = (product.row_steps(), weights.format.step_words());
        let codes = match product {
            Product::DotCodes(codes) | Product::WideCodes(codes) | Product::Int8Codes(codes) => Some(codes),
            _ => None,
        };
        let first_row = tiling.start(self.tiles.start);
        let last_row = tiling.start(self.tiles.end);
        let group = self.operands.group(self.finish);
        let stride = group * LANES;
        assert!(self.panels.end <= weights.num_panels && last_row * row_words <= rows.len());
        let planes = layout.format.planes();
        assert!((last_row - first_row) * planes * stride <= self.sums.len());
        let step_block = match codes {
            _ if self.tiles.len() <= 1 => steps,
            Some(_) => CODE_STEP_BLOCK,
            None if product == Product::Blocks => BLOCKS_STEP_BLOCK,
            None => STEP_BLOCK,
        };
        let mut panel = self.panels.start;
        while panel < self.panels.end {
            let panels = group.min(self.panels.end - panel);
            let panel_words = weights.panel(panel).as_ptr();
            let next = if panel + panels < self.panels.end {
                panel_words.wrapping_add(panels * weights.panel_words())
            } else {
                self.next
            };
            let mut step = 0;
            if let Product::WideCodes(codes) = product
                && self.tiles.len() > 1
            {
                // Widened once for all tiles, instead of by each of them.
                // SAFETY: as below.
                unsafe { self.multiply_widened::<S>(codes, panel_words, panels, stride) };
                step = steps;
            }
            while step < steps {
                let block = step_block.min(steps - step);
                let after = if step + block < steps {
                    panel_words.wrapping_add((step + block) * step_words)
                } else {
                    next
                };
                for (i, tile) in self.tiles.clone().enumerate() {
                    let (start, height) = (tiling.start(tile), tiling.height(tile) * planes);
                    let args = TileArgs {
                        a: rows.as_ptr().wrapping_add(start * row_words + step * row_steps * height),
                        a_stride: height,
                        w: panel_words.wrapping_add(step * step_words),
                        scales: panel_words
                            .wrapping_add(steps * step_words)
                            .cast::<u8>()
                            .wrapping_add(codes.map_or(0, |codes: CodeFormat| codes.scale_offset(step))),
                        factors: weights.factors,
                        panel_stride: weights.panel_words(),
                        steps: block,
                        c: self.sums.as_mut_ptr().wrapping_add((start - first_row) * planes * stride),
                        c_stride: stride,
                        load: step > 0,
                        // With several tiles, two of them fetch the next block of the two panels, a line per step: the memory's
                        // work spreads over the computation instead of stalling the first tile.
                        ahead: if self.tiles.len() > 1 {
                            Ahead::Other(after.wrapping_add(i % 2 * weights.panel_words()))
                        } else {
                            Ahead::Own { next }
                        },
                    };
                    // SAFETY: rows, panels and sums are inside their slices by the asserts above; a layout of pairs exists
                    // only where the dot product does.
                    unsafe { multiply_tile::<S>(product, height, panels, args) };
                }
                step += block;
            }
            if planes > 1 {
                // SAFETY: the rows of sums were just written.
                unsafe { add_planes::<S>(self.sums, last_row - first_row, planes, stride) };
            }
            // SAFETY: the sums were just written; items are disjoint.
            unsafe {
                self.finish.finish::<S>(
                    first_row..last_row,
                    panel..panel + panels,
                    self.sums.as_ptr(),
                    stride,
                )
            };
            panel += panels;
        }
    }
}

/// Row `r` becomes the sum of the `planes` rows from `planes * r` on.
///
/// # Safety
/// Runs inside a launch of `S`.
#[inline(always)]
unsafe fn add_planes<S: Simd>(sums: &mut [f32], rows: usize, planes: usize, stride: usize) {
    assert!(planes * rows * stride <= sums.len() && stride.is_multiple_of(LANES));
    let sums = sums.as_mut_ptr();
    for row in 0..rows {
        for k in (0..stride).step_by(LANES) {
            // SAFETY: inside by the assert.
            unsafe {
                let from = sums.add(planes * row * stride + k);
                let mut sum = S::load(from);
                for plane in 1..planes {
                    sum = S::add(sum, S::load(from.add(plane * stride)));
                }
                S::store(sum, sums.add(row * stride + k));
            }
        }
    }
}

impl<F> Multiply<'_, F> {
    /// The sums, `stride` values per row, of all tiles with `panels` panels of codes from `w` on, by way of f32 panels that exist for a few steps.
    ///
    /// # Safety
    /// As `multiply_tile`; rows, panels and sums are inside their slices.
    #[inline(always)]
    unsafe fn multiply_widened<S: Simd>(
        &mut self,
        codes: CodeFormat,
        w: *const u32,
        panels: usize,
        stride: usize,
    ) {
        let Operands { rows, layout, tiling, weights } = self.operands;
        let steps = weights.steps();
        let first_row = tiling.start(self.tiles.start);
        let mut wide = WideBlock::new();
        for step in (0..steps).step_by(WIDE_STEPS) {
            for (i, tile) in self.tiles.clone().enumerate() {
                let (start, height) = (tiling.start(tile), tiling.height(tile));
                let args = TileArgs {
                    a: rows.as_ptr().wrapping_add(start * layout.words()),
                    a_stride: height,
                    w,
                    scales: w.wrapping_add(steps * codes.step_words()).cast(),
                    factors: weights.factors,
                    panel_stride: weights.panel_words(),
                    steps,
                    c: self.sums.as_mut_ptr().wrapping_add((start - first_row) * stride),
                    c_stride: stride,
                    load: step > 0,
                    ahead: Ahead::Other(w),
                };
                // SAFETY: by the contract.
                unsafe {
                    if i == 0 {
                        wide.fill::<S>(codes, args, panels, step);
                    }
                    wide.multiply::<S>(height, panels, args, step);
                }
            }
        }
    }
}

/// Multiplies on all threads; every row block and group of panels is an item.
pub(crate) fn multiply<F: Epilogue + Sync>(
    pool: &mut ThreadPool,
    isa: Isa,
    sums: &PerWorker<Vec<f32>>,
    operands: Operands<'_>,
    finish: &F,
) {
    if operands.tiling.rows == 0 {
        return;
    }
    // Small matrices: several groups per item, so that an item outweighs taking it.
    let group = operands.group(finish);
    let group_words = group * operands.weights.panel_words();
    let chunk = group * (MIN_ITEM_WORDS.div_ceil(group_words)).max(1);
    let chunks = operands.weights.num_panels.div_ceil(chunk);
    let blocks = row_blocks(operands.layout, operands.tiling);
    // Row blocks outermost: a block's rows stay in the second-level cache while the weights pass by.
    pool.for_each(blocks.tiles * chunks, |worker, item| {
        let (block, first) = (item / chunks, item % chunks * chunk);
        let tiles = blocks.range(block);
        let panels = first..(first + chunk).min(operands.weights.num_panels);
        let next = operands.weights.address(panels.end);
        // SAFETY: this worker's scratch, not used elsewhere in this job.
        let sums = unsafe { sums.get(worker) };
        // SAFETY: the instruction set is supported (checked at construction); items do not overlap.
        unsafe { simd::launch(isa, Multiply { operands, tiles, panels, sums, finish, next }) };
    });
}

/// Words below which an item of work is not worth taking alone.
const MIN_ITEM_WORDS: usize = 4 << 10;

/// Stores or adds the sums to rows of f32.
pub(crate) struct StoreRows {
    /// `[rows, stride]`.
    pub out: Shards<f32>,
    /// Values per row of `out`.
    pub stride: usize,
    /// Column of `out` where the matrix's first output goes.
    pub column: usize,
    /// Outputs of the matrix.
    pub out_features: usize,
    /// Whether to add to what is there.
    pub add: bool,
}

impl Epilogue for StoreRows {
    #[inline(always)]
    unsafe fn finish<S: Simd>(
        &self,
        rows: Range<usize>,
        panels: Range<usize>,
        sums: *const f32,
        stride: usize,
    ) {
        let first = panels.start * LANES;
        let count = (panels.len() * LANES).min(self.out_features - first);
        for row in rows.clone() {
            // SAFETY: items have rows and panels of their own; `sums` holds at least `count` values per row.
            unsafe {
                let out = self.out.slice(row * self.stride + self.column + first, count);
                let sums = std::slice::from_raw_parts(sums.add((row - rows.start) * stride), count);
                if self.add {
                    out.iter_mut().zip(sums).for_each(|(o, s)| *o += s);
                } else {
                    out.copy_from_slice(sums);
                }
            }
        }
    }
}

/// Whether rows of this format can feed panels through the dot product; used where both operands are made on the fly.
pub(crate) fn product_of_same(format: RowFormat) -> Product {
    match format {
        RowFormat::Pairs => Product::Dot,
        RowFormat::F32 => Product::Full,
        RowFormat::Blocks | RowFormat::Int8 | RowFormat::Int15 | RowFormat::Fp4 { .. } => {
            unreachable!("what is made on the fly is in pairs")
        }
    }
}
