//! Brings weights from the checkpoint's rows into tiles, on the device.

use std::borrow::Cow;

use super::driver::Driver;
use super::kernels::repack::{self, Half};
use super::stream::{Buffer, Stream};
use super::weights::{Format, Layout, Pieces, TILE, Tiled, TiledWeight, UNIT, scale_bytes, tile_bytes};
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
    let power = match format {
        Format::Nvfp4 => 128.0,
        Format::Mxfp4 => 16384.0,
        _ => 1.0,
    };
    match matrix {
        StoredMatrix::Plain(_) => power,
        StoredMatrix::Packed(packed) => match packed.tensor_scale {
            TensorScale::None => power,
            TensorScale::Multiply(scale) => power * scale,
            TensorScale::Divide(scale) => power / scale,
        },
    }
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
        let of_upper = upper.map(|upper| move |e: usize| Ok(Piece::Whole(*upper[e])));
        if let Some(upper) = upper {
            expect(op, &[lower.len()], &[upper.len()])?;
        }
        let of_upper = of_upper.as_ref().map(|upper| upper as &Pieces<'_>);
        self.pack_pieces(stream, op, lower.len(), &of_lower, of_upper)
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

    /// Packs one matrix, or a pair, slice by slice.
    fn pack_one<D: Driver>(
        &mut self,
        stream: &mut Stream<D>,
        layout: &Layout,
        halves: &[&StoredMatrix<'_>],
        [codes, scales]: [u64; 2],
    ) -> Result<(), OpError> {
        let [out_features, in_features] = layout.shape;
        let row_bytes = layout.code_bytes / out_features.max(1);
        let slice = (SLICE_BYTES / row_bytes.max(1) / SLICE_ROWS * SLICE_ROWS).max(SLICE_ROWS);
        let tile_rows = TILE / halves.len();
        let units = in_features.div_ceil(UNIT);
        let (code_bytes, tile_scale_bytes) = tile_bytes(layout.format);
        let not_numbers = match self.not_numbers {
            Some(buffer) => buffer,
            None => *self.not_numbers.insert(stream.zeros("weights", 4)?),
        };
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
            let mut staged = [0; 2];
            let buffers = self.staging.iter_mut().zip(&mut staged);
            for ((matrix, all_scales), (staging, staged)) in halves.iter().zip(&all_scales).zip(buffers) {
                let slice_codes = &matrix.codes()[rows.start * row_bytes..rows.end * row_bytes];
                let scale_row = all_scales.len() / out_features;
                let slice_scales = &all_scales[rows.start * scale_row..rows.end * scale_row];
                let needed = slice_codes.len().next_multiple_of(256) + slice_scales.len();
                let buffer = match staging {
                    Some(buffer) if buffer.bytes >= needed => *buffer,
                    _ => *staging.insert(stream.allocate("weights on their way", needed)?),
                };
                stream.upload(buffer.address, slice_codes)?;
                stream
                    .upload(buffer.address + slice_codes.len().next_multiple_of(256) as u64, slice_scales)?;
                *staged = buffer.address;
            }
            let half = |h: usize, first: usize| Half {
                codes: staged[h],
                scales: staged[h] + (rows.len() * row_bytes).next_multiple_of(256) as u64,
                first: first as i32,
                rows: rows.len() as i32,
            };
            let upper = if halves.len() == 2 { half(1, 0) } else { half(0, TILE / 2) };
            let first_tile = first / tile_rows * units;
            let params = repack::Params {
                lower: half(0, 0),
                upper,
                codes: codes + (first_tile * code_bytes) as u64,
                scales: scales + (first_tile * tile_scale_bytes) as u64,
                not_numbers: not_numbers.address,
                tile_rows: tile_rows as i32,
                tiles: rows.len().div_ceil(tile_rows) as i32,
                columns: in_features as i32,
                units: units as i32,
            };
            repack::launch(stream, layout.format, &params)?;
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
