//! Brings weights from the checkpoint's rows into tiles, on the device.

use std::borrow::Cow;

use super::driver::Driver;
use super::kernels::fp4_pack;
use super::kernels::repack::{self, Half};
use super::stream::{Buffer, Stream};
use super::weights::{
    Format, Layout, PANEL_ROWS, PanelFormat, PanelWeight, Panels, Pieces, STAGE, TILE, Tiled, TiledWeight,
    UNIT, scale_bytes, tile_bytes,
};
use perigee_numbers::quant::{StoredMatrix, TensorScale};
use perigee_ops::host::Piece;
use perigee_ops::{OpError, expect};

/// Most bytes of codes of one matrix that wait on the device to be packed.
const SLICE_BYTES: usize = 32 << 20;
/// Rows of a slice are a multiple of it: of the rows that share a scale, and of two tiles.
const SLICE_ROWS: usize = 128;

/// Packs weights on the device.
#[derive(Debug, Default)]
pub struct Packer {
    /// Rows on their way, of a lower and an upper matrix.
    staging: [Option<Buffer>; 2],
    /// `[1]` i32, see [`Packer::check`].
    not_numbers: Option<Buffer>,
}

/// What the sum of the products of codes is multiplied with: the tensor's scale, and the power of two by which the kernel's
/// bf16 values are too small.
fn factor(format: Format, matrix: &StoredMatrix<'_>) -> f32 {
    match format {
        Format::Nvfp4 => scaled(matrix, 128.0),
        Format::Mxfp4 => scaled(matrix, 16384.0),
        _ => scaled(matrix, 1.0),
    }
}

/// A value times the tensor's scale.
fn scaled(matrix: &StoredMatrix<'_>, value: f32) -> f32 {
    match matrix {
        StoredMatrix::Plain(_) => value,
        StoredMatrix::Packed(packed) => match packed.tensor_scale {
            TensorScale::None => value,
            TensorScale::Multiply(scale) => value * scale,
            TensorScale::Divide(scale) => value / scale,
        },
    }
}

/// Rows of one matrix, or of a pair, that wait on the device to be packed.
struct Slice {
    /// Number of the first one.
    first: usize,
    rows: usize,
    /// Of a matrix, or of both.
    codes: [u64; 2],
    scales: [u64; 2],
}

impl Packer {
    /// Whether there are tiles of this format.
    pub fn packs(matrix: &StoredMatrix<'_>) -> bool {
        Format::of(matrix).is_some_and(|format| format != Format::F32)
    }

    /// Uploads matrices of equal shape and format; with `upper`, pairs of them.
    ///
    /// Errors: a format without tiles, shapes or formats that differ, a K that is no multiple of [`Format::values`].
    pub fn pack<D: Driver>(
        &mut self,
        stream: &mut Stream<D>,
        op: &'static str,
        lower: &[&StoredMatrix<'_>],
        upper: Option<&[&StoredMatrix<'_>]>,
    ) -> Result<Tiled, OpError> {
        let of_lower = |e: usize| Ok(Piece::Whole(*lower[e]));
        let Some(upper) = upper else { return self.pack_pieces(stream, op, lower.len(), &of_lower, None) };
        expect(op, &[lower.len()], &[upper.len()])?;
        self.pack_pieces(stream, op, lower.len(), &of_lower, Some(&|e| Ok(Piece::Whole(*upper[e]))))
    }

    /// The same of `count` pieces, each of which is made when it is uploaded.
    pub(crate) fn pack_pieces<D: Driver>(
        &mut self,
        stream: &mut Stream<D>,
        op: &'static str,
        count: usize,
        lower: &Pieces<'_>,
        upper: Option<&Pieces<'_>>,
    ) -> Result<Tiled, OpError> {
        let layout = Layout::of_first(op, count, lower)?;
        let format = layout.format;
        let [out_features, in_features] = layout.shape;
        let tile_rows = if upper.is_some() { TILE / 2 } else { TILE };
        let (tiles, units) = (out_features.div_ceil(tile_rows), in_features.div_ceil(UNIT));
        let (code_bytes, tile_scale_bytes) = tile_bytes(format);
        let codes_stride = tiles * units * code_bytes;
        let codes = stream.allocate("weights", codes_stride * count)?;
        let scales_stride = match format {
            Format::Fp8 => layout.scale_bytes,
            _ => tiles * units * tile_scale_bytes,
        };
        let scales = stream.allocate("weights", scales_stride * count)?;
        let upper_scales = match upper.filter(|_| format == Format::Fp8) {
            Some(_) => stream.allocate("weights", scales_stride * count)?,
            None => scales,
        };
        let mut factors = Vec::with_capacity(2 * count);
        for e in 0..count {
            let (piece, other_piece) = (lower(e)?, upper.map(|upper| upper(e)).transpose()?);
            let matrix = &piece.view();
            let other_view = other_piece.as_ref().map(Piece::view);
            let other = other_view.as_ref().unwrap_or(matrix);
            layout.check(op, matrix)?;
            layout.check(op, other)?;
            factors.extend([factor(format, matrix), factor(format, other)]);
            let to_codes = codes.address + (e * codes_stride) as u64;
            let to_scales = scales.address + (e * scales_stride) as u64;
            if format == Format::Fp8 {
                stream.upload(to_scales, &scale_bytes(matrix))?;
                if upper.is_some() {
                    stream.upload(upper_scales.address + (e * scales_stride) as u64, &scale_bytes(other))?;
                }
            }
            let halves = if upper.is_some() { vec![matrix, other] } else { vec![matrix] };
            self.pack_one(stream, &layout, &halves, [to_codes, to_scales])?;
        }
        let factors = stream.store("weights", &factors)?;
        let weight = TiledWeight {
            codes: codes.address,
            scales: scales.address,
            upper_scales: upper_scales.address,
            factors: factors.address,
            codes_stride: codes_stride as i64,
            scales_stride: scales_stride as i64,
            tiles: tiles as i32,
            units: units as i32,
            columns: in_features as i32,
            rows: out_features as i32,
            tile_rows: tile_rows as i32,
            upper_row: if upper.is_some() { 0 } else { TILE as i32 / 2 },
            scale_rows: layout.scale_rows as i32,
            scale_groups: in_features.div_ceil(layout.scale_columns.max(1)) as i32,
        };
        Ok(Tiled { format, out_features, in_features, count, weight })
    }

    /// Uploads matrices in 4-bit floats of equal shape and format in panels; with `upper`, pairs of them.
    ///
    /// Errors: another format, shapes that differ, a K that is no multiple of [`Format::values`].
    pub fn pack_panels<D: Driver>(
        &mut self,
        stream: &mut Stream<D>,
        op: &'static str,
        lower: &[&StoredMatrix<'_>],
        upper: Option<&[&StoredMatrix<'_>]>,
    ) -> Result<Panels, OpError> {
        let of_lower = |e: usize| Ok(Piece::Whole(*lower[e]));
        let Some(upper) = upper else {
            return self.pack_panel_pieces(stream, op, lower.len(), &of_lower, None);
        };
        expect(op, &[lower.len()], &[upper.len()])?;
        self.pack_panel_pieces(stream, op, lower.len(), &of_lower, Some(&|e| Ok(Piece::Whole(*upper[e]))))
    }

    /// The same of `count` pieces, each of which is made when it is uploaded.
    pub(crate) fn pack_panel_pieces<D: Driver>(
        &mut self,
        stream: &mut Stream<D>,
        op: &'static str,
        count: usize,
        lower: &Pieces<'_>,
        upper: Option<&Pieces<'_>>,
    ) -> Result<Panels, OpError> {
        let layout = Layout::of_first(op, count, lower)?;
        let format = layout.format.packed().and_then(PanelFormat::of_packed).ok_or_else(|| {
            let dtype = layout.format.name().to_owned();
            OpError::UnsupportedDtype { op, dtype, backend: "cuda" }
        })?;
        let [out_features, in_features] = layout.shape;
        let panel_rows = if upper.is_some() { PANEL_ROWS / 2 } else { PANEL_ROWS };
        let (num_panels, stages) = (out_features.div_ceil(panel_rows), in_features.div_ceil(STAGE));
        let expert_bytes = num_panels * stages * format.stage_bytes();
        let panels = stream.allocate("weights", expert_bytes * count)?;
        let mut factors = Vec::with_capacity(2 * count);
        for e in 0..count {
            let (piece, other_piece) = (lower(e)?, upper.map(|upper| upper(e)).transpose()?);
            let matrix = &piece.view();
            let other_view = other_piece.as_ref().map(Piece::view);
            let other = other_view.as_ref().unwrap_or(matrix);
            layout.check(op, matrix)?;
            layout.check(op, other)?;
            factors.extend([scaled(matrix, 1.0), scaled(other, 1.0)]);
            let halves = if upper.is_some() { vec![matrix, other] } else { vec![matrix] };
            let to = panels.address + (e * expert_bytes) as u64;
            self.for_slices(stream, &layout, &halves, |stream, slice| {
                let params = fp4_pack::Params {
                    codes: slice.codes,
                    scales: slice.scales,
                    panels: to + (slice.first / panel_rows * stages * format.stage_bytes()) as u64,
                    halves: halves.len() as i32,
                    rows: slice.rows as i32,
                    columns: in_features as i32,
                    stages: stages as i32,
                };
                fp4_pack::launch(stream, format, &params)
            })?;
        }
        let factors = stream.store("weights", &factors)?;
        let weight = PanelWeight {
            panels: panels.address,
            factors: factors.address,
            expert_bytes: expert_bytes as i64,
            num_panels: num_panels as i32,
            stages: stages as i32,
            rows: out_features as i32,
            padding: 0,
        };
        Ok(Panels { format, out_features, in_features, count, weight })
    }

    /// Packs one matrix, or a pair, into tiles slice by slice.
    fn pack_one<D: Driver>(
        &mut self,
        stream: &mut Stream<D>,
        layout: &Layout,
        halves: &[&StoredMatrix<'_>],
        [codes, scales]: [u64; 2],
    ) -> Result<(), OpError> {
        let in_features = layout.shape[1];
        let tile_rows = TILE / halves.len();
        let units = in_features.div_ceil(UNIT);
        let (code_bytes, tile_scale_bytes) = tile_bytes(layout.format);
        let not_numbers = match self.not_numbers {
            Some(buffer) => buffer,
            None => *self.not_numbers.insert(stream.zeros("weights", 4)?),
        };
        self.for_slices(stream, layout, halves, |stream, slice| {
            let half = |h: usize, first: usize| Half {
                codes: slice.codes[h],
                scales: slice.scales[h],
                first: first as i32,
                rows: slice.rows as i32,
            };
            let upper = if halves.len() == 2 { half(1, 0) } else { half(0, TILE / 2) };
            let first_tile = slice.first / tile_rows * units;
            let params = repack::Params {
                lower: half(0, 0),
                upper,
                codes: codes + (first_tile * code_bytes) as u64,
                scales: scales + (first_tile * tile_scale_bytes) as u64,
                not_numbers: not_numbers.address,
                tile_rows: tile_rows as i32,
                tiles: slice.rows.div_ceil(tile_rows) as i32,
                columns: in_features as i32,
                units: units as i32,
            };
            repack::launch(stream, layout.format, &params)
        })
    }

    /// Brings slices of rows of one matrix, or of a pair, to the device, and calls `pack` for each.
    fn for_slices<D: Driver>(
        &mut self,
        stream: &mut Stream<D>,
        layout: &Layout,
        halves: &[&StoredMatrix<'_>],
        mut pack: impl FnMut(&mut Stream<D>, &Slice) -> Result<(), OpError>,
    ) -> Result<(), OpError> {
        let [out_features, _] = layout.shape;
        let row_bytes = layout.code_bytes / out_features.max(1);
        let slice = (SLICE_BYTES / row_bytes.max(1) / SLICE_ROWS * SLICE_ROWS).max(SLICE_ROWS);
        // A row of scales of its own has each row of the formats whose scales are packed.
        let all_scales: Vec<Cow<'_, [u8]>> = halves
            .iter()
            .map(|matrix| match layout.format {
                Format::Fp8 => Cow::Borrowed(&[][..]),
                _ => scale_bytes(matrix),
            })
            .collect();
        for first in (0..out_features).step_by(slice) {
            let rows = first..(first + slice).min(out_features);
            let mut staged = Slice { first, rows: rows.len(), codes: [0; 2], scales: [0; 2] };
            for (h, (matrix, all_scales)) in halves.iter().zip(&all_scales).enumerate() {
                let slice_codes = &matrix.codes()[rows.start * row_bytes..rows.end * row_bytes];
                let scale_row = all_scales.len() / out_features;
                let slice_scales = &all_scales[rows.start * scale_row..rows.end * scale_row];
                let scales_at = slice_codes.len().next_multiple_of(256);
                let needed = scales_at + slice_scales.len();
                let buffer = match &mut self.staging[h] {
                    Some(buffer) if buffer.bytes >= needed => *buffer,
                    staging => *staging.insert(stream.allocate("weights on their way", needed)?),
                };
                stream.upload(buffer.address, slice_codes)?;
                stream.upload(buffer.address + scales_at as u64, slice_scales)?;
                (staged.codes[h], staged.scales[h]) = (buffer.address, buffer.address + scales_at as u64);
            }
            pack(stream, &staged)?;
        }
        Ok(())
    }

    /// Waits for what was packed so far. Errors: a code that is not a number, which tiles cannot hold.
    pub fn check<D: Driver>(&self, stream: &mut Stream<D>) -> Result<(), OpError> {
        if let Some(flag) = self.not_numbers
            && stream.read::<i32>(flag.address, 1)? != [0]
        {
            let dtype = "FP8 weights with a code that is not a number (device.activations = f32 serves them)";
            return Err(OpError::UnsupportedDtype {
                op: "load_matrix",
                dtype: dtype.into(),
                backend: "cuda",
            });
        }
        Ok(())
    }
}
