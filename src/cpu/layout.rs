//! How operands lie in memory, and the operands of one tile: the words that packing, vectors and products share.
//!
//! Plain descriptions, without instruction sets or memory of their own. Knows no other file of the backend.

use perigee_numbers::quant::MAX_TERMS;
use perigee_numbers::quant::fp4::E2M1;

/// Outputs per panel: the lanes of one 512-bit register.
pub(crate) const LANES: usize = 16;

/// Inputs per step of panels of codes.
pub(crate) const STEP_INPUTS: usize = 32;

/// Steps that share one row of FP8 scales: blocks of 128 inputs.
pub(crate) const FP8_SCALE_STEPS: usize = 4;

/// Codes with scales, as panels hold them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CodeFormat {
    /// E2M1 with an E4M3 scale per 16 inputs.
    Nvfp4,
    /// E2M1 with an E8M0 scale per 32 inputs.
    Mxfp4,
    /// Offset-binary nibbles with a bf16 scale per 32 inputs.
    Int4,
    /// E4M3 with an f32 scale per 128 inputs.
    Fp8,
}

impl CodeFormat {
    /// 32-bit words of the codes of one step.
    pub(crate) const fn step_words(self) -> usize {
        match self {
            CodeFormat::Fp8 => 8 * LANES,
            _ => 4 * LANES,
        }
    }

    /// Whether codes are nibbles.
    pub(crate) const fn is_4_bit(self) -> bool {
        !matches!(self, CodeFormat::Fp8)
    }

    /// Inputs that share a scale.
    pub(crate) const fn group_inputs(self) -> usize {
        match self {
            CodeFormat::Nvfp4 => 16,
            CodeFormat::Mxfp4 | CodeFormat::Int4 | CodeFormat::Fp8 => 32,
        }
    }

    /// Bytes of the 16 scales of one group.
    pub(crate) const fn group_scale_bytes(self) -> usize {
        match self {
            CodeFormat::Nvfp4 | CodeFormat::Mxfp4 => LANES,
            CodeFormat::Int4 => 2 * LANES,
            CodeFormat::Fp8 => 4 * LANES,
        }
    }

    /// Where the scales of `step` begin, in bytes from the panel's first scale.
    #[inline(always)]
    pub(crate) const fn scale_offset(self, step: usize) -> usize {
        match self {
            CodeFormat::Fp8 => step / FP8_SCALE_STEPS * self.group_scale_bytes(),
            _ => step * (STEP_INPUTS / self.group_inputs()) * self.group_scale_bytes(),
        }
    }

    /// 32-bit words of a panel of `steps` steps, a whole number of cache lines.
    pub(crate) const fn panel_words(self, steps: usize) -> usize {
        let scale_bytes = match self {
            CodeFormat::Fp8 => self.scale_offset(steps.next_multiple_of(FP8_SCALE_STEPS)),
            _ => self.scale_offset(steps),
        };
        (steps * self.step_words() + scale_bytes.div_ceil(4)).next_multiple_of(LANES)
    }

    /// The value of each 4-bit code.
    pub(crate) const fn table(self) -> [f32; 16] {
        match self {
            CodeFormat::Int4 => {
                [-8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
            }
            _ => E2M1,
        }
    }
}

/// How the weights of one matrix are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PanelFormat {
    /// `[panel][in / 2][16][2]` bf16.
    Bf16,
    /// `[panel][in][16]` f32; F16 and F32 checkpoints, exactly.
    F32,
    /// Codes and scales as in the checkpoint, in another order.
    Codes(CodeFormat),
}

impl PanelFormat {
    /// Steps in one panel.
    pub(crate) fn steps(self, in_features: usize) -> usize {
        match self {
            PanelFormat::Bf16 => in_features.div_ceil(2),
            PanelFormat::F32 => in_features.next_multiple_of(2),
            PanelFormat::Codes(_) => in_features.div_ceil(STEP_INPUTS),
        }
    }

    /// 32-bit words of one step, scales aside.
    pub(crate) fn step_words(self) -> usize {
        match self {
            PanelFormat::Bf16 | PanelFormat::F32 => LANES,
            PanelFormat::Codes(format) => format.step_words(),
        }
    }

    /// 32-bit words of one panel, scales included.
    pub(crate) fn panel_words(self, in_features: usize) -> usize {
        match self {
            PanelFormat::Bf16 | PanelFormat::F32 => self.steps(in_features) * LANES,
            PanelFormat::Codes(format) => format.panel_words(self.steps(in_features)),
        }
    }
}

/// How packed rows are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowFormat {
    /// Pairs of bf16, for the dot-product instruction.
    Pairs,
    /// bf16 in blocks of 32 inputs, a row of a block behind the other, for the matrix unit.
    Blocks,
    /// f32 values.
    F32,
    /// int8 in steps of 32 inputs, see [`INT8_STEP_WORDS`].
    Int8,
    /// 15-bit integers as two int8 rows side by side, the second one holding what the first one leaves. The kernel takes them for two rows,
    /// whose sums are added afterwards.
    Int15,
    /// Rows of 4-bit floats as so many int8 rows side by side, one per term: codes as integers, and the scales of their blocks.
    Fp4 {
        /// 1 to [`MAX_PLANES`].
        terms: u8,
    },
}

/// Int8 rows of a row at most.
pub(crate) const MAX_PLANES: usize = MAX_TERMS as usize;

impl RowFormat {
    /// Rows that the kernel sees for one of ours.
    pub(crate) fn planes(self) -> usize {
        match self {
            RowFormat::Int15 => 2,
            RowFormat::Fp4 { terms } => usize::from(terms),
            _ => 1,
        }
    }

    /// Whether rows are integers in steps of 32 inputs.
    pub(crate) fn is_integer(self) -> bool {
        matches!(self, RowFormat::Int8 | RowFormat::Int15 | RowFormat::Fp4 { .. })
    }
}

/// Words of one step of an int8 row: 32 values in the order in which panels hold the nibbles of their codes, two corrections, two scales.
pub(crate) const INT8_STEP_WORDS: usize = 12;

/// The first word of a step's corrections: minus [`INT8_OFFSET`] times the sum of its first 16 values, then of the other 16, as i32.
pub(crate) const INT8_CORRECTIONS: usize = 8;

/// The first word of a step's scales, f32: what a one stands for among its first 16 values, then among the other 16. Both are the same
/// where the rows are not made for blocks of 16.
pub(crate) const INT8_SCALES: usize = 10;

/// What products of int8 rows add to a code's integer to make it unsigned.
pub(crate) const INT8_OFFSET: i32 = 12;

/// Which tile kernel multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Product {
    /// bf16 pairs with bf16 panels, on the dot-product instruction.
    Dot,
    /// bf16 blocks with bf16 panels, on the matrix unit.
    Blocks,
    /// f32 rows with bf16 panels.
    Wide,
    /// f32 rows with f32 panels.
    Full,
    /// bf16 pairs with panels of codes.
    DotCodes(CodeFormat),
    /// f32 rows with panels of codes.
    WideCodes(CodeFormat),
    /// int8 rows with panels of 4-bit codes.
    Int8Codes(CodeFormat),
}

impl Product {
    /// Steps of packed rows that meet one step of the panels.
    pub(crate) fn row_steps(self) -> usize {
        match self {
            Product::Dot | Product::Blocks | Product::Full => 1,
            Product::Wide => 2,
            Product::DotCodes(_) => STEP_INPUTS / 2,
            Product::WideCodes(_) => STEP_INPUTS,
            Product::Int8Codes(_) => INT8_STEP_WORDS,
        }
    }
}

/// Rows cut into tiles of nearly equal height.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tiling {
    /// All rows.
    pub rows: usize,
    /// Tiles.
    pub tiles: usize,
    base: usize,
    /// The first `extra` tiles have `base + 1` rows.
    extra: usize,
}

impl Tiling {
    /// As few tiles of at most `max_rows` rows as cover `rows`.
    pub(crate) fn new(rows: usize, max_rows: usize) -> Self {
        let tiles = rows.div_ceil(max_rows).max(1);
        Self { rows, tiles, base: rows / tiles, extra: rows % tiles }
    }

    /// First row of a tile; `tile` may be one past the last.
    pub(crate) fn start(&self, tile: usize) -> usize {
        tile * self.base + tile.min(self.extra)
    }

    /// Rows of a tile.
    pub(crate) fn height(&self, tile: usize) -> usize {
        self.base + usize::from(tile < self.extra)
    }

    /// Rows of a tile.
    pub(crate) fn range(&self, tile: usize) -> std::ops::Range<usize> {
        self.start(tile)..self.start(tile + 1)
    }

    /// The tile that holds `row`.
    pub(crate) fn tile_of(&self, row: usize) -> usize {
        // Divisions of 32 bits: this runs once per packed row piece, and rows of a batch are far fewer.
        let tall = self.extra * (self.base + 1);
        let divide = |a: usize, b: usize| (a as u32 / b as u32) as usize;
        if row < tall { divide(row, self.base + 1) } else { self.extra + divide(row - tall, self.base) }
    }
}

/// Operands of one tile: `c[r][p] (+)= sum over steps of a[step][r] * w[p][step]`.
///
/// Valid means: `w` readable for `steps` steps at each of the tile's panels, `a` for as many steps as the product takes for them, `c` writable for 16 values at each row and panel, of the sizes the call names.
#[derive(Clone, Copy)]
pub(crate) struct TileArgs {
    /// Packed rows.
    pub a: *const u32,
    /// Words from one step of the rows to the next.
    pub a_stride: usize,
    /// First panel.
    pub w: *const u32,
    /// Words from one panel to the next.
    pub panel_stride: usize,
    /// Scales of the first step of the first panel, where the panels are of codes; any address otherwise.
    pub scales: *const u8,
    /// Factors of the scales of the first, third, ... panel and of the second, fourth, ...
    pub factors: [f32; 2],
    /// Steps of 16 words per panel.
    pub steps: usize,
    /// Sums, `[rows][panels * 16]`.
    pub c: *mut f32,
    /// Values from one row of sums to the next.
    pub c_stride: usize,
    /// Whether to go on from the sums in `c` (same bits as not having stopped) or from zero.
    pub load: bool,
    /// What to fetch into the caches meanwhile.
    pub ahead: Ahead,
}

/// Which memory to prefetch, one line per step (and per panel of the tile).
#[derive(Clone, Copy)]
pub(crate) enum Ahead {
    /// The tile's own panels some steps ahead, then the start of what follows them: the tile is the only one on these weights.
    Own {
        /// First of the panels read after the last of the tile's; any address.
        next: *const u32,
    },
    /// Another block of weights: this one is in the cache already.
    Other(*const u32),
}

impl TileArgs {
    pub(crate) fn at_panel(mut self, panel: usize) -> Self {
        self.w = self.w.wrapping_add(panel * self.panel_stride);
        self.scales = self.scales.wrapping_add(panel * self.panel_stride * 4);
        if panel % 2 == 1 {
            self.factors.reverse();
        }
        self.c = self.c.wrapping_add(panel * LANES);
        self
    }

    /// The same for `width` panels from `panel` on, of the `panels` of a call: what follows them are the call's next ones, if there are any.
    #[inline(always)]
    pub(crate) fn at_panels(self, panel: usize, width: usize, panels: usize) -> Self {
        let mut here = self.at_panel(panel);
        if let Ahead::Own { next } = &mut here.ahead
            && panel + width < panels
        {
            *next = self.w.wrapping_add((panel + width) * self.panel_stride);
        }
        here
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tilings_cover_every_row_once() {
        for rows in 0..200 {
            for max in [1, 4, 6, 12, 24] {
                let tiling = Tiling::new(rows, max);
                assert_eq!(tiling.start(tiling.tiles), rows);
                for row in 0..rows {
                    let tile = tiling.tile_of(row);
                    assert!(tiling.height(tile) <= max);
                    assert!(
                        (tiling.start(tile)..tiling.start(tile + 1)).contains(&row),
                        "{rows} {max} {row}"
                    );
                }
            }
        }
    }
}
