//! The other operand: activation rows, rounded and packed in tiles.
//!
//! A tile is up to 24 rows side by side, `[in][rows]` (pairs of bf16, or f32), so that the kernel walks both
//! operands front to back and needs one address for all rows. Which tile a row is in changes where it is
//! stored and nothing else: every output is one accumulation over `in` in order.

use super::layout::{
    CodeFormat, INT8_STEP_WORDS, LANES, PanelFormat, Product, RowFormat, STEP_INPUTS, Tiling,
};
use super::row_steps;
use super::simd::{self, Isa, Kernel, Simd};
use perigee_numbers::quant::ActivationForm;
use perigee_numbers::threads::{Shards, ThreadPool};
use perigee_ops::{Activations, RowForms};

/// Inputs of a block of [`RowFormat::Blocks`].
const BLOCK_INPUTS: usize = 32;

/// Words of one row of such a block.
const BLOCK_WORDS: usize = BLOCK_INPUTS / 2;

/// Instruction set and rounding of a backend: everything that decides bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Numerics {
    /// Instruction set.
    pub isa: Isa,
    /// Rounding of the inputs.
    pub activations: Activations,
}

impl Numerics {
    /// How rows are packed for a matrix of this format.
    pub(crate) fn layout(self, format: PanelFormat, in_features: usize) -> RowLayout {
        let round = self.activations != Activations::F32;
        let dot = round && format != PanelFormat::F32 && self.isa.has_dot();
        let padding = if matches!(format, PanelFormat::Codes(_)) { STEP_INPUTS } else { 2 };
        RowLayout {
            format: match format {
                PanelFormat::Codes(codes) if self.activations == Activations::Int8 && codes.is_4_bit() => {
                    RowFormat::Int8
                }
                PanelFormat::Codes(codes)
                    if round && codes.is_4_bit() && self.isa.prefers_byte_products() =>
                {
                    RowFormat::Int15
                }
                PanelFormat::Bf16
                    if dot && self.isa.has_tiles() && in_features.is_multiple_of(BLOCK_INPUTS) =>
                {
                    RowFormat::Blocks
                }
                _ if dot => RowFormat::Pairs,
                _ => RowFormat::F32,
            },
            round,
            forms: None,
            in_features,
            padded: in_features.next_multiple_of(padding),
            isa: self.isa,
        }
    }

    /// How rows that are rounded to `forms`, where there are any, are packed for a matrix of this format: as codes where its codes have
    /// scales for the same blocks, otherwise as what the codes stand for.
    pub(crate) fn layout_in(
        self,
        forms: Option<RowForms>,
        format: PanelFormat,
        in_features: usize,
    ) -> RowLayout {
        let layout = self.layout(format, in_features);
        let Some(RowForms { prompt, reply }) = forms else { return layout };
        let meets = |codes: CodeFormat| {
            codes.is_4_bit() && [prompt, reply].iter().all(|form| form.block() == codes.group_inputs())
        };
        let format = match format {
            PanelFormat::Codes(codes) if meets(codes) => {
                RowFormat::Fp4 { terms: prompt.num_terms().max(reply.num_terms()) as u8 }
            }
            _ => RowFormat::F32,
        };
        RowLayout { format, round: false, forms, ..layout }
    }

    /// The same without the matrix unit: in attention both operands are made on the fly, and products are small.
    pub(crate) fn without_tiles(self) -> Self {
        Self { isa: self.isa.min(Isa::Avx512Bf16), ..self }
    }

    /// The same for a product that never rounds its input.
    pub(crate) fn exact_layout(self, in_features: usize) -> RowLayout {
        let padded = in_features.next_multiple_of(2);
        RowLayout { format: RowFormat::F32, round: false, forms: None, in_features, padded, isa: self.isa }
    }
}

/// How rows of one width are packed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RowLayout {
    pub(crate) format: RowFormat,
    /// Whether f32 values are rounded to bf16 first; pairs always are.
    pub(crate) round: bool,
    /// Forms in 4-bit floats that rows are rounded to first.
    forms: Option<RowForms>,
    pub(crate) in_features: usize,
    /// The same with the zeros that fill the last step of the panels.
    padded: usize,
    isa: Isa,
}

impl RowLayout {
    /// 32-bit words per row.
    pub(crate) fn words(&self) -> usize {
        match self.format {
            RowFormat::Pairs | RowFormat::Blocks => self.padded / 2,
            RowFormat::F32 => self.padded,
            RowFormat::Int8 | RowFormat::Int15 | RowFormat::Fp4 { .. } => {
                self.format.planes() * self.padded / STEP_INPUTS * INT8_STEP_WORDS
            }
        }
    }

    /// Whether rows are made of whole steps of 32 inputs, because inputs share a scale.
    #[inline(always)]
    pub(crate) fn takes_steps(&self) -> bool {
        self.format.is_integer() || self.forms.is_some()
    }

    /// The form that a row is rounded to first.
    #[inline(always)]
    pub(crate) fn form(&self, is_prompt: bool) -> Option<ActivationForm> {
        self.forms.map(|forms| forms.of(is_prompt))
    }

    /// The kernel for these rows and panels of `format`.
    pub(crate) fn product(&self, format: PanelFormat) -> Product {
        match (self.format, format) {
            (format, PanelFormat::Codes(codes)) if format.is_integer() => Product::Int8Codes(codes),
            (RowFormat::Int8 | RowFormat::Int15 | RowFormat::Fp4 { .. }, _) => {
                unreachable!("integers are only packed for codes")
            }
            (RowFormat::Pairs, PanelFormat::Codes(codes)) => Product::DotCodes(codes),
            (RowFormat::F32, PanelFormat::Codes(codes)) => Product::WideCodes(codes),
            (RowFormat::Pairs, _) => Product::Dot,
            (RowFormat::Blocks, _) => Product::Blocks,
            (RowFormat::F32, PanelFormat::Bf16) => Product::Wide,
            (RowFormat::F32, PanelFormat::F32) => Product::Full,
        }
    }

    /// How `rows` rows are cut into tiles.
    pub(crate) fn tiling(&self, rows: usize) -> Tiling {
        match self.format {
            // Up to 24 rows fit one tile of one panel, so a batch of decode rows streams the weights once.
            RowFormat::Pairs if rows <= 24 => Tiling::new(rows, 24),
            RowFormat::Pairs => Tiling::new(rows, 12),
            RowFormat::Blocks => Tiling::new(rows, 32),
            RowFormat::F32 => Tiling::new(rows, self.isa.max_fma_rows()),
            RowFormat::Int8 | RowFormat::Int15 | RowFormat::Fp4 { .. } => {
                Tiling::new(rows, self.isa.max_int8_rows() / self.format.planes())
            }
        }
    }

    /// Rows per tile in attention, where tiles are 4 panels wide.
    pub(crate) fn attention_tiling(&self, rows: usize) -> Tiling {
        match self.format {
            RowFormat::Pairs => Tiling::new(rows, 6),
            RowFormat::F32 => Tiling::new(rows, self.isa.max_fma_rows()),
            RowFormat::Blocks | RowFormat::Int8 | RowFormat::Int15 | RowFormat::Fp4 { .. } => {
                unreachable!("attention has neither codes nor blocks")
            }
        }
    }
}

/// Writes values into packed tiles.
#[derive(Clone, Copy)]
pub(crate) struct RowWriter {
    /// First word of the packed rows.
    base: *mut u32,
    layout: RowLayout,
    tiling: Tiling,
}

// SAFETY: a plain pointer; the contract of `put` keeps the writers' elements apart.
unsafe impl Send for RowWriter {}
// SAFETY: as above.
unsafe impl Sync for RowWriter {}

impl RowWriter {
    /// A writer into `words`, which must stay borrowed while it is used.
    pub(crate) fn new(words: &mut [u32], layout: RowLayout, tiling: Tiling) -> Self {
        assert!(words.len() >= layout.words() * tiling.rows, "packed rows do not fit");
        Self { base: words.as_mut_ptr(), layout, tiling }
    }

    /// Whether rows are written by `put_step`, not by `put`.
    #[inline(always)]
    pub(crate) fn takes_steps(&self) -> bool {
        self.layout.takes_steps()
    }

    /// The place of `row`. Panics if there is no such row.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> PackedRow {
        assert!(row < self.tiling.rows);
        let tile = self.tiling.tile_of(row);
        let (start, height) = (self.tiling.start(tile), self.tiling.height(tile));
        let planes = self.layout.format.planes();
        let from_tile = if self.layout.format == RowFormat::Blocks { BLOCK_WORDS } else { planes };
        let first = self.base.wrapping_add(start * self.layout.words() + (row - start) * from_tile);
        PackedRow { first, height: height * planes, layout: self.layout }
    }
}

/// One row of a packed tile, to write.
#[derive(Clone, Copy)]
pub(crate) struct PackedRow {
    first: *mut u32,
    /// Rows of the tile as the kernel sees them.
    height: usize,
    layout: RowLayout,
}

impl PackedRow {
    /// Writes the first `n <= 16` lanes of `v` at `in` index `k` (even), rounded as the layout says. Lanes past `n` are zero, and
    /// so is the padding behind the last ones.
    ///
    /// # Safety
    /// Inside a launch of `S`; the words are still borrowed; `k + n <= in_features`; no other worker writes these elements.
    #[inline(always)]
    pub(crate) unsafe fn put<S: Simd>(&self, k: usize, v: S::V, n: usize) {
        debug_assert!(k.is_multiple_of(2) && k + n <= self.layout.in_features);
        let height = self.height;
        // SAFETY: the element is inside the words by the contract; each lane array holds 16 elements.
        unsafe {
            match self.layout.format {
                RowFormat::Pairs => {
                    let mut lanes = [0u32; LANES / 2];
                    S::narrow(v, lanes.as_mut_ptr().cast());
                    let to = self.first.add(k / 2 * height);
                    for i in 0..n.div_ceil(2) {
                        *to.add(i * height) = lanes[i];
                    }
                    if k + n == self.layout.in_features {
                        for i in (k + n).div_ceil(2)..self.layout.words() {
                            *self.first.add(i * height) = 0;
                        }
                    }
                }
                RowFormat::Blocks => {
                    let mut lanes = [0u32; LANES / 2];
                    S::narrow(v, lanes.as_mut_ptr().cast());
                    for (i, lane) in lanes.into_iter().enumerate().take(n.div_ceil(2)) {
                        let word = k / 2 + i;
                        *self.first.add(word / BLOCK_WORDS * BLOCK_WORDS * height + word % BLOCK_WORDS) =
                            lane;
                    }
                }
                RowFormat::F32 => {
                    let v = if self.layout.round { S::round_bf16(v) } else { v };
                    let mut lanes = [0f32; LANES];
                    S::store(v, lanes.as_mut_ptr());
                    let to = self.first.add(k * height);
                    for i in 0..n.next_multiple_of(2) {
                        *to.add(i * height) = lanes[i].to_bits();
                    }
                    if k + n == self.layout.in_features {
                        for i in (k + n).next_multiple_of(2)..self.layout.words() {
                            *self.first.add(i * height) = 0;
                        }
                    }
                }
                RowFormat::Int8 | RowFormat::Int15 | RowFormat::Fp4 { .. } => {
                    unreachable!("integers are written a step at a time")
                }
            }
        }
    }

    /// Writes one step of a row that takes steps: `low` and `high` are the 32 values from `k` (a multiple of 32) on, those past the end
    /// zero.
    ///
    /// # Safety
    /// As `put`.
    #[inline(always)]
    pub(crate) unsafe fn put_step<S: Simd>(&self, k: usize, low: S::V, high: S::V, is_prompt: bool) {
        debug_assert!(k.is_multiple_of(STEP_INPUTS) && k < self.layout.in_features);
        let form = self.layout.form(is_prompt);
        // SAFETY: the step is inside the words by the contract.
        unsafe {
            if let (RowFormat::F32, Some(form)) = (self.layout.format, form) {
                let mut values = [0.0; STEP_INPUTS];
                S::store(low, values.as_mut_ptr());
                S::store(high, values.as_mut_ptr().add(LANES));
                form.round(&mut values);
                for (i, value) in (k..self.layout.words()).zip(values) {
                    *self.first.add(i * self.height) = value.to_bits();
                }
                return;
            }
            let first = k / STEP_INPUTS * INT8_STEP_WORDS;
            let step = row_steps::quantize::<S>(self.layout.format, form, low, high);
            for (plane, words) in step.into_iter().take(self.layout.format.planes()).enumerate() {
                for (i, word) in words.into_iter().enumerate() {
                    *self.first.add((first + i) * self.height + plane) = word;
                }
            }
        }
    }
}

/// Rounds one row of values, its planes one behind the other.
struct QuantizeRow<'a> {
    layout: RowLayout,
    form: Option<ActivationForm>,
    values: &'a [f32],
    words: &'a mut [u32],
}

impl Kernel for QuantizeRow<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        if let (RowFormat::F32, Some(form)) = (self.layout.format, self.form) {
            let words: &mut [f32] = bytemuck::cast_slice_mut(self.words);
            let (row, padding) = words.split_at_mut(self.values.len());
            row.copy_from_slice(self.values);
            form.round(row);
            padding.fill(0.0);
            return;
        }
        let planes = self.layout.format.planes();
        let plane_words = self.words.len() / planes;
        for step in 0..plane_words / INT8_STEP_WORDS {
            let rest = &self.values[(step * STEP_INPUTS).min(self.values.len())..];
            // SAFETY: the loads stay inside the values that are left.
            let step_planes = unsafe {
                let low = simd::load_first::<S>(rest.as_ptr(), rest.len());
                let high = simd::load_first::<S>(
                    rest.as_ptr().wrapping_add(LANES),
                    rest.len().saturating_sub(LANES),
                );
                row_steps::quantize::<S>(self.layout.format, self.form, low, high)
            };
            for (plane, words) in step_planes.iter().take(planes).enumerate() {
                let first = plane * plane_words + step * INT8_STEP_WORDS;
                self.words[first..first + INT8_STEP_WORDS].copy_from_slice(words);
            }
        }
    }
}

/// Rounds `rows` rows that take steps, row `i` read from `source(i)` (at least `in_features` values, and whether it is a prompt's), to rows
/// one behind the other in `words`.
pub(crate) fn quantize<'s>(
    pool: &mut ThreadPool,
    layout: RowLayout,
    rows: usize,
    words: &mut Vec<u32>,
    source: impl Fn(usize) -> (&'s [f32], bool) + Sync,
) {
    let width = layout.words();
    // What is read behind the last row, a register at a time.
    let needed = width * rows + LANES;
    if words.len() < needed {
        words.resize(needed, 0);
    }
    let words = Shards::new(words);
    let one = |row: usize| {
        // SAFETY: rows have words of their own.
        let words = unsafe { words.slice(row * width, width) };
        let (values, is_prompt) = source(row);
        let (values, form) = (&values[..layout.in_features], layout.form(is_prompt));
        // SAFETY: the layout's instruction set is supported (checked at construction).
        unsafe { simd::launch(layout.isa, QuantizeRow { layout, form, values, words }) };
    };
    if layout.in_features * rows <= SERIAL_PACK {
        (0..rows).for_each(one);
    } else {
        pool.for_each(rows, |_, row| one(row));
    }
}

/// Copies quantized rows into the tiles `tiles`.
struct InterleaveTiles<'a, F> {
    writer: RowWriter,
    tiles: std::ops::Range<usize>,
    /// `[rows, words]` and one register more.
    quantized: &'a [u32],
    /// The row of `quantized` that a row of the tiles is.
    source: &'a F,
}

impl<F: Fn(usize) -> usize> Kernel for InterleaveTiles<'_, F> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let RowWriter { base, layout, tiling } = self.writer;
        let planes = layout.format.planes();
        let words = layout.words() / planes;
        for tile in self.tiles {
            let (start, height) = (tiling.start(tile), tiling.height(tile) * planes);
            if height == 0 {
                continue;
            }
            let to = base.wrapping_add(start * layout.words());
            let row = |r: usize| {
                let r = r.min(height - 1);
                let first = ((self.source)(start + r / planes) * planes + r % planes) * words;
                self.quantized[first..first + words + LANES].as_ptr()
            };
            let rows: [*const u32; LANES] = std::array::from_fn(row);
            // SAFETY: the tile's words are the writer's, of which this kernel has its tiles to itself; a register is readable
            // behind every row.
            unsafe {
                if height == 1 {
                    std::ptr::copy_nonoverlapping(rows[0], to, words);
                    continue;
                }
                for word in (0..words).step_by(LANES) {
                    let from = rows.map(|row| row.wrapping_add(word));
                    let cols = LANES.min(words - word);
                    S::transpose(&from, to.add(word * height), height, height, cols);
                }
            }
        }
    }
}

/// Copies rows, of which `quantize` made `quantized`, into the tiles `tiles`: row `i` is row `source(i)`.
pub(crate) fn interleave(
    layout: RowLayout,
    writer: RowWriter,
    tiles: std::ops::Range<usize>,
    quantized: &[u32],
    source: &impl Fn(usize) -> usize,
) {
    assert!(tiles.end <= writer.tiling.tiles && layout == writer.layout);
    assert!(layout.takes_steps() && layout.isa.max_int8_rows() <= LANES);
    // SAFETY: the layout's instruction set is supported (checked at construction); tiles are inside the tiling.
    unsafe { simd::launch(layout.isa, InterleaveTiles { writer, tiles, quantized, source }) }
}

/// Packs the tiles `tiles`; row `i` is read from `source(i)`.
struct PackTiles<'a, F> {
    writer: RowWriter,
    tiles: std::ops::Range<usize>,
    source: &'a F,
}

impl<'s, F: Fn(usize) -> &'s [f32]> Kernel for PackTiles<'_, F> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let RowWriter { base, layout, tiling } = self.writer;
        let (width, words) = (layout.in_features, layout.words());
        let values_per_word = if layout.format == RowFormat::Pairs { 2 } else { 1 };
        if layout.format == RowFormat::Blocks {
            for tile in self.tiles {
                let (start, height) = (tiling.start(tile), tiling.height(tile));
                for row in 0..height {
                    let source = &(self.source)(start + row)[..width];
                    for block in 0..width / BLOCK_INPUTS {
                        // SAFETY: 32 values are readable at every block, and the tile's words are the writer's, of which this
                        // kernel has its tiles to itself.
                        unsafe {
                            let from = source.as_ptr().add(block * BLOCK_INPUTS);
                            let to = base.add(start * words + (block * height + row) * BLOCK_WORDS);
                            S::narrow(S::load(from), to.cast());
                            S::narrow(S::load(from.add(LANES)), to.cast::<u16>().add(LANES));
                        }
                    }
                }
            }
            return;
        }
        // Sixteen rows of sixteen words, turned into columns.
        let mut square = [0u32; LANES * LANES];
        for tile in self.tiles {
            let (start, height) = (tiling.start(tile), tiling.height(tile));
            for first in (0..height).step_by(LANES) {
                let rows = LANES.min(height - first);
                for word in (0..words).step_by(LANES) {
                    let k = word * values_per_word;
                    for r in 0..rows {
                        let source = &(self.source)(start + first + r)[..width];
                        // SAFETY: reads stay inside the source row, writes inside the square.
                        unsafe {
                            let load = |k: usize| {
                                let at = source.as_ptr().wrapping_add(k);
                                simd::load_first::<S>(at, width.saturating_sub(k))
                            };
                            let to = square.as_mut_ptr().add(r * LANES);
                            match layout.format {
                                RowFormat::Pairs => {
                                    S::narrow(load(k), to.cast());
                                    S::narrow(load(k + LANES), to.cast::<u16>().add(LANES));
                                }
                                RowFormat::F32 if layout.round => S::store(S::round_bf16(load(k)), to.cast()),
                                RowFormat::F32 => S::store(load(k), to.cast()),
                                RowFormat::Blocks
                                | RowFormat::Int8
                                | RowFormat::Int15
                                | RowFormat::Fp4 { .. } => unreachable!("packed by other means"),
                            }
                        }
                    }
                    let cols = LANES.min(words - word);
                    // SAFETY: the tile's words are the writer's, of which this kernel has its tiles to itself.
                    unsafe {
                        let to = base.add(start * words + word * height + first);
                        if height == 1 {
                            std::ptr::copy_nonoverlapping(square.as_ptr(), to, cols);
                        } else {
                            S::transpose(&simd::square_rows(&square), to, height, rows, cols);
                        }
                    }
                }
            }
        }
    }
}

/// Packs tiles on this thread; row `i` is read from `source(i)`, at least `in_features` values.
pub(crate) fn pack_tiles<'s>(
    layout: RowLayout,
    writer: RowWriter,
    tiles: std::ops::Range<usize>,
    source: &impl Fn(usize) -> &'s [f32],
) {
    assert!(tiles.end <= writer.tiling.tiles && layout == writer.layout && !layout.takes_steps());
    // SAFETY: the layout's instruction set is supported (checked at construction); tiles are inside the tiling.
    unsafe { simd::launch(layout.isa, PackTiles { writer, tiles, source }) }
}

/// Values below which packing is not worth a dispatch.
const SERIAL_PACK: usize = 24 << 10;

/// Packs `tiling.rows` rows, row `i` read from `source(i)` (at least `in_features` values), into `words`; `quantized` is scratch.
pub(crate) fn pack<'s>(
    pool: &mut ThreadPool,
    layout: RowLayout,
    tiling: Tiling,
    words: &mut Vec<u32>,
    quantized: &mut Vec<u32>,
    source: impl Fn(usize) -> &'s [f32] + Sync,
) {
    let needed = layout.words() * tiling.rows;
    if words.len() < needed {
        words.resize(needed, 0);
    }
    let shared = Shards::new(words);
    // SAFETY: `words` stays borrowed to the end of this function, and tasks take disjoint rows.
    let writer = RowWriter::new(unsafe { shared.slice(0, needed) }, layout, tiling);
    if layout.takes_steps() {
        quantize(pool, layout, tiling.rows, quantized, |row| (source(row), false));
    }
    let quantized = &*quantized;
    let pack = |tiles| match layout.takes_steps() {
        true => interleave(layout, writer, tiles, quantized, &|row| row),
        false => pack_tiles(layout, writer, tiles, &source),
    };
    if layout.in_features * tiling.rows <= SERIAL_PACK {
        pack(0..tiling.tiles);
    } else {
        pool.for_each(tiling.tiles, |_, tile| pack(tile..tile + 1));
    }
}
