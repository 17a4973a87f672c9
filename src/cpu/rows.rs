//! The other operand: activation rows, rounded and packed in tiles.
//!
//! A tile is up to 24 rows side by side, `[in][rows]` (pairs of bf16, or f32), so that the kernel walks both
//! operands front to back and needs one address for all rows. Which tile a row is in changes where it is
//! stored and nothing else: every output is one accumulation over `in` in order.

use super::layout::{
    INT8_CORRECTIONS, INT8_OFFSET, INT8_SCALE, INT8_STEP_WORDS, LANES, PanelFormat, Product, RowFormat,
    STEP_INPUTS, Tiling,
};
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
            in_features,
            padded: in_features.next_multiple_of(padding),
            isa: self.isa,
        }
    }

    /// Numerics of rows that have been rounded to this form: products round them no more.
    pub(crate) fn of_rows_in(self, forms: Option<RowForms>) -> Self {
        Self { activations: if forms.is_some() { Activations::F32 } else { self.activations }, ..self }
    }

    /// The same without the matrix unit: in attention both operands are made on the fly, and products are small.
    pub(crate) fn without_tiles(self) -> Self {
        Self { isa: self.isa.min(Isa::Avx512Bf16), ..self }
    }

    /// The same for a product that never rounds its input.
    pub(crate) fn exact_layout(self, in_features: usize) -> RowLayout {
        let padded = in_features.next_multiple_of(2);
        RowLayout { format: RowFormat::F32, round: false, in_features, padded, isa: self.isa }
    }
}

/// How rows of one width are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowLayout {
    pub(crate) format: RowFormat,
    /// Whether f32 values are rounded to bf16 first; pairs always are.
    pub(crate) round: bool,
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
            RowFormat::Int8 | RowFormat::Int15 => {
                self.format.planes() * self.padded / STEP_INPUTS * INT8_STEP_WORDS
            }
        }
    }

    /// The kernel for these rows and panels of `format`.
    pub(crate) fn product(&self, format: PanelFormat) -> Product {
        match (self.format, format) {
            (RowFormat::Int8 | RowFormat::Int15, PanelFormat::Codes(codes)) => Product::Int8Codes(codes),
            (RowFormat::Int8 | RowFormat::Int15, _) => unreachable!("integers are only packed for codes"),
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
            RowFormat::Int8 | RowFormat::Int15 => {
                Tiling::new(rows, self.isa.max_int8_rows() / self.format.planes())
            }
        }
    }

    /// Rows per tile in attention, where tiles are 4 panels wide.
    pub(crate) fn attention_tiling(&self, rows: usize) -> Tiling {
        match self.format {
            RowFormat::Pairs => Tiling::new(rows, 6),
            RowFormat::F32 => Tiling::new(rows, self.isa.max_fma_rows()),
            RowFormat::Blocks | RowFormat::Int8 | RowFormat::Int15 => {
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
        self.layout.format.is_integer()
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

/// Rounds row `row` of packed f32 rows in place.
struct RoundRow {
    writer: RowWriter,
    row: usize,
    form: ActivationForm,
}

/// Inputs of the largest block of a form.
const MOST_BLOCK: usize = 32;

impl Kernel for RoundRow {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let PackedRow { first, height, layout } = self.writer.row(self.row);
        let block = self.form.block();
        let mut values = [0.0f32; MOST_BLOCK];
        for k in (0..layout.in_features).step_by(block) {
            let values = &mut values[..block.min(layout.in_features - k)];
            for (i, value) in values.iter_mut().enumerate() {
                // SAFETY: inside the row, whose words the writer has.
                *value = f32::from_bits(unsafe { *first.add((k + i) * height) });
            }
            self.form.round(values);
            for (i, value) in values.iter().enumerate() {
                // SAFETY: as above; no other worker has this row.
                unsafe { *first.add((k + i) * height) = value.to_bits() };
            }
        }
    }
}

impl RowWriter {
    /// Rounds row `row`, which was packed as f32.
    ///
    /// # Safety
    /// The words are still borrowed; no other worker has this row.
    pub(crate) unsafe fn round(self, row: usize, form: ActivationForm) {
        assert!(self.layout.format == RowFormat::F32 && form.block() <= MOST_BLOCK);
        // SAFETY: the layout's instruction set is supported (checked at construction); by the contract.
        unsafe { simd::launch(self.layout.isa, RoundRow { writer: self, row, form }) }
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
                RowFormat::Int8 | RowFormat::Int15 => unreachable!("integers are written a step at a time"),
            }
        }
    }

    /// Writes one step of an int8 row: `low` and `high` are the 32 values from `k` (a multiple of 32) on, those past the end zero.
    ///
    /// # Safety
    /// As `put`.
    #[inline(always)]
    pub(crate) unsafe fn put_step<S: Simd>(&self, k: usize, low: S::V, high: S::V) {
        debug_assert!(k.is_multiple_of(STEP_INPUTS) && k < self.layout.in_features);
        let first = k / STEP_INPUTS * INT8_STEP_WORDS;
        // SAFETY: the step is inside the words by the contract.
        unsafe {
            let step = self.layout.quantize_step::<S>(low, high);
            for (plane, words) in step.into_iter().take(self.layout.format.planes()).enumerate() {
                for (i, word) in words.into_iter().enumerate() {
                    *self.first.add((first + i) * self.height + plane) = word;
                }
            }
        }
    }
}

/// Largest magnitudes below this count as zero: their inverse would overflow.
const SMALLEST_PEAK: f32 = 1e-32;

/// What one of the first plane is worth in ones of the second.
const PLANE: f32 = 128.0;

/// The planes of one step of a row, as many as its format has: the integers nearest to its values, in units that make the largest of them as
/// large as the format goes.
type StepPlanes = [[u32; INT8_STEP_WORDS]; 2];

impl RowLayout {
    /// One step of a row. A value that is not finite makes the scale NaN, and with it every output.
    ///
    /// # Safety
    /// Inside a launch of `S`.
    #[inline(always)]
    unsafe fn quantize_step<S: Simd>(&self, low: S::V, high: S::V) -> StepPlanes {
        let mut planes = [[0; INT8_STEP_WORDS]; 2];
        // SAFETY: the caller is inside a launch of `S`.
        unsafe {
            let zero = S::zero();
            let magnitude = |v: S::V| S::max(v, S::sub(zero, v));
            let peak = S::largest(S::max(magnitude(low), magnitude(high)));
            let not_finite = S::sum(S::add(S::mul(low, zero), S::mul(high, zero)));
            let largest = if self.format == RowFormat::Int15 { 127.0 * PLANE } else { 127.0 };
            let inverse = S::splat(if peak > SMALLEST_PEAK { largest / peak } else { 0.0 });
            let unit = peak / largest + not_finite;
            let (low, high) = (S::round(S::mul(low, inverse)), S::round(S::mul(high, inverse)));
            if self.format == RowFormat::Int15 {
                // To the nearest multiple: what is left is at most half a unit of the first plane.
                let first = |v: S::V| S::round(S::mul(v, S::splat(1.0 / PLANE)));
                let rest = |v: S::V| S::fma(first(v), S::splat(-PLANE), v);
                planes[0] = plane::<S>(first(low), first(high), unit * PLANE);
                planes[1] = plane::<S>(rest(low), rest(high), unit);
            } else {
                planes[0] = plane::<S>(low, high, unit);
            }
        }
        planes
    }
}

/// One step of one int8 row of integral values, `unit` being what one stands for.
#[inline(always)]
unsafe fn plane<S: Simd>(low: S::V, high: S::V, unit: f32) -> [u32; INT8_STEP_WORDS] {
    let mut words = [0; INT8_STEP_WORDS];
    // SAFETY: the caller is inside a launch of `S`; `words` holds the eight words of 32 values.
    unsafe {
        S::quads(low, high, words.as_mut_ptr());
        for (correction, half) in words[INT8_CORRECTIONS..].iter_mut().zip([low, high]) {
            *correction = (-INT8_OFFSET * S::sum(half) as i32) as u32;
        }
    }
    words[INT8_SCALE] = unit.to_bits();
    words
}

/// Quantizes one row of values, its planes one behind the other.
struct QuantizeRow<'a> {
    layout: RowLayout,
    values: &'a [f32],
    words: &'a mut [u32],
}

impl Kernel for QuantizeRow<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let plane_words = self.words.len() / self.layout.format.planes();
        for step in 0..plane_words / INT8_STEP_WORDS {
            let rest = &self.values[(step * STEP_INPUTS).min(self.values.len())..];
            // SAFETY: the loads stay inside the values that are left.
            let planes = unsafe {
                let low = simd::load_first::<S>(rest.as_ptr(), rest.len());
                let high = simd::load_first::<S>(
                    rest.as_ptr().wrapping_add(LANES),
                    rest.len().saturating_sub(LANES),
                );
                self.layout.quantize_step::<S>(low, high)
            };
            for (plane, words) in planes.iter().take(self.layout.format.planes()).enumerate() {
                let first = plane * plane_words + step * INT8_STEP_WORDS;
                self.words[first..first + INT8_STEP_WORDS].copy_from_slice(words);
            }
        }
    }
}

/// Quantizes `rows` rows, row `i` read from `source(i)` (at least `in_features` values), to int8 rows one behind the other in `words`.
pub(crate) fn quantize<'s>(
    pool: &mut ThreadPool,
    layout: RowLayout,
    rows: usize,
    words: &mut Vec<u32>,
    source: impl Fn(usize) -> &'s [f32] + Sync,
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
        // SAFETY: the layout's instruction set is supported (checked at construction).
        unsafe {
            simd::launch(
                layout.isa,
                QuantizeRow { layout, values: &source(row)[..layout.in_features], words },
            )
        };
    };
    if layout.in_features * rows <= SERIAL_PACK {
        (0..rows).for_each(one);
    } else {
        pool.for_each(rows, |_, row| one(row));
    }
}

/// Copies int8 rows into the tiles `tiles`.
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

/// Copies int8 rows, of which `quantize` made `quantized`, into the tiles `tiles`: row `i` is row `source(i)`.
pub(crate) fn interleave(
    layout: RowLayout,
    writer: RowWriter,
    tiles: std::ops::Range<usize>,
    quantized: &[u32],
    source: &impl Fn(usize) -> usize,
) {
    assert!(tiles.end <= writer.tiling.tiles && layout == writer.layout);
    assert!(layout.format.is_integer() && layout.isa.max_int8_rows() <= LANES);
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
                                RowFormat::Blocks | RowFormat::Int8 | RowFormat::Int15 => {
                                    unreachable!("packed by other means")
                                }
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
    assert!(tiles.end <= writer.tiling.tiles && layout == writer.layout);
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
    if layout.format.is_integer() {
        quantize(pool, layout, tiling.rows, quantized, &source);
    }
    let quantized = &*quantized;
    let pack = |tiles| match layout.format.is_integer() {
        true => interleave(layout, writer, tiles, quantized, &|row| row),
        false => pack_tiles(layout, writer, tiles, &source),
    };
    if layout.in_features * tiling.rows <= SERIAL_PACK {
        pack(0..tiling.tiles);
    } else {
        pool.for_each(tiling.tiles, |_, tile| pack(tile..tile + 1));
    }
}
