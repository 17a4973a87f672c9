//! Defines a rank's part of a weight and cuts it out of a stored matrix.
//!
//! Attention and the first products of an FFN are split by output rows, the products behind them by
//! input columns, so that each rank computes a partial sum of the residual stream (Megatron-LM,
//! arXiv 1909.08053, section 3). A packed matrix is cut between its scale blocks only: codes and
//! scales of a part are bytes of the whole.

use std::borrow::Cow;
use std::ops::Range;

use crate::{FfnUnits, MlaShape, ModelShape, OpError};
use perigee_numbers::quant::{PackedFormat, PackedMatrix, StoredMatrix, TensorScale};
use perigee_numbers::tensor::{Dtype, TensorView};

/// One of `world` ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Index of the rank, `0..world`.
    pub rank: usize,
    /// Number of ranks.
    pub world: usize,
}

impl Share {
    /// This rank's part of `0..count`: whole units, in rank order, sizes as equal as units allow.
    pub fn of(self, count: usize, unit: usize) -> Range<usize> {
        let units = count.div_ceil(unit);
        let start = |rank: usize| (units * rank / self.world * unit).min(count);
        start(self.rank)..start(self.rank + 1)
    }

    /// The sizes of a network as this rank has them: its heads, its ids, and bounds on its inner units.
    pub fn shape(self, all: &ModelShape, expert_groups: usize) -> ModelShape {
        let cut = |units: usize, world: usize| Self { world, ..self }.inner_units(units);
        ModelShape {
            mla: MlaShape { num_heads: self.of(all.mla.num_heads, 1).len(), ..all.mla },
            vocab_size: self.of(all.vocab_size, 1).len(),
            ffn: FfnUnits {
                routed: cut(all.ffn.routed, self.world / expert_groups.max(1)),
                shared: cut(all.ffn.shared, self.world),
                dense: cut(all.ffn.dense, self.world),
            },
            ..*all
        }
    }

    /// Most inner units of an FFN of `all` that a rank has.
    pub fn inner_units(self, all: usize) -> usize {
        // No format has longer runs that stay whole.
        const UNIT: usize = 128;
        match self.world {
            1 => all,
            ranks => all.div_ceil(ranks).next_multiple_of(UNIT).min(all),
        }
    }

    /// As [`Share::of`], where no rank may be without a part; `what` names the units.
    ///
    /// Errors: [`OpError::TooFewUnits`].
    pub(super) fn of_each(
        self,
        op: &'static str,
        what: &'static str,
        count: usize,
        unit: usize,
    ) -> Result<Range<usize>, OpError> {
        let (num_units, world) = (count.div_ceil(unit), self.world);
        if num_units < world {
            return Err(OpError::TooFewUnits { op, what, num_units, world });
        }
        Ok(self.of(count, unit))
    }
}

/// A part of a stored matrix.
pub struct Part<'a> {
    shape: [usize; 2],
    bytes: Cow<'a, [u8]>,
    kind: Kind<'a>,
}

enum Kind<'a> {
    Plain(Dtype),
    Packed {
        format: PackedFormat,
        scales: Cow<'a, [u8]>,
        dtype: Dtype,
        shape: Vec<usize>,
        tensor: TensorScale,
    },
}

impl Part<'_> {
    /// The part as a matrix of its own.
    pub fn view(&self) -> StoredMatrix<'_> {
        match &self.kind {
            Kind::Plain(dtype) => TensorView { dtype: *dtype, shape: &self.shape, bytes: &self.bytes }.into(),
            Kind::Packed { format, scales, dtype, shape, tensor } => PackedMatrix {
                format: *format,
                shape: self.shape,
                codes: &self.bytes,
                scales: TensorView { dtype: *dtype, shape, bytes: scales },
                tensor_scale: *tensor,
            }
            .into(),
        }
    }
}

/// Number of consecutive rows that stay together.
pub(super) fn row_unit(matrix: &StoredMatrix<'_>) -> usize {
    matrix.packed().and_then(|packed| packed.format.row().scale_rows).unwrap_or(1)
}

/// Number of consecutive columns that stay together.
pub(super) fn col_unit(matrix: &StoredMatrix<'_>) -> usize {
    matrix.packed().and_then(|packed| packed.format.group()).unwrap_or(1)
}

/// `[out, in]`. Errors: the tensor is not a matrix.
pub(super) fn sizes(op: &'static str, matrix: &StoredMatrix<'_>) -> Result<[usize; 2], OpError> {
    let shape = matrix.shape();
    shape.try_into().map_err(|_| OpError::ShapeMismatch { op, expected: vec![0, 0], got: shape.to_vec() })
}

/// Errors: `range` is empty or not cut between units.
fn check(
    op: &'static str,
    matrix: &StoredMatrix<'_>,
    axis: &str,
    range: &Range<usize>,
    size: usize,
    unit: usize,
) -> Result<(), OpError> {
    let between = |at: usize| at.is_multiple_of(unit) || at == size;
    if range.is_empty() || range.end > size || !between(range.start) || !between(range.end) {
        let what = format!("{axis} of a {} matrix", matrix.format_name());
        return Err(OpError::Indivisible { op, what, size, start: range.start, end: range.end, unit });
    }
    Ok(())
}

/// Rows `range` of a matrix.
///
/// Errors: [`OpError::Indivisible`] where `range` is empty or not cut between units.
pub(super) fn rows<'a>(
    op: &'static str,
    matrix: &StoredMatrix<'a>,
    range: Range<usize>,
) -> Result<Part<'a>, OpError> {
    let [out, in_features] = sizes(op, matrix)?;
    check(op, matrix, "rows", &range, out, row_unit(matrix))?;
    let of_rows = |bytes: &'a [u8], range: &Range<usize>, rows: usize| {
        let row = bytes.len() / rows.max(1);
        Cow::Borrowed(&bytes[range.start * row..range.end * row])
    };
    let shape = [range.len(), in_features];
    Ok(match matrix {
        StoredMatrix::Plain(view) => {
            Part { shape, bytes: of_rows(view.bytes, &range, out), kind: Kind::Plain(view.dtype) }
        }
        StoredMatrix::Packed(packed) => {
            let scales = packed.scales;
            let bytes = match packed.format.row().scale_rows {
                None => Cow::Borrowed(scales.bytes),
                Some(rows) => {
                    let bands = range.start / rows..range.end.div_ceil(rows);
                    of_rows(scales.bytes, &bands, out.div_ceil(rows))
                }
            };
            Part { shape, bytes: of_rows(packed.codes, &range, out), kind: of_packed(packed, shape, bytes) }
        }
    })
}

/// Columns `range` of a matrix.
///
/// Errors: [`OpError::Indivisible`] where `range` is empty or not cut between units.
pub(super) fn cols<'a>(
    op: &'static str,
    matrix: &StoredMatrix<'a>,
    range: Range<usize>,
) -> Result<Part<'a>, OpError> {
    let [out, in_features] = sizes(op, matrix)?;
    check(op, matrix, "columns", &range, in_features, col_unit(matrix))?;
    // Bytes `from..to` of every row.
    let of_cols =
        |bytes: &'a [u8], from: usize, to: usize| -> Cow<'a, [u8]> { cut_rows(bytes, out, from..to).into() };
    let shape = [out, range.len()];
    Ok(match matrix {
        StoredMatrix::Plain(view) => {
            let size = view.bytes.len() / (out * in_features).max(1);
            let bytes = of_cols(view.bytes, range.start * size, range.end * size);
            Part { shape, bytes, kind: Kind::Plain(view.dtype) }
        }
        StoredMatrix::Packed(packed) => {
            let bits = packed.format.code_bits();
            let bytes = of_cols(packed.codes, range.start * bits / 8, range.end * bits / 8);
            let scales = match packed.format.group() {
                None => Cow::Borrowed(packed.scales.bytes),
                Some(group) => {
                    let blocks = range.start / group..range.end.div_ceil(group);
                    let rows = packed.scales.shape.first().copied().unwrap_or(1);
                    let size = packed.scales.bytes.len() / packed.scales.len().max(1);
                    cut_rows(packed.scales.bytes, rows, blocks.start * size..blocks.end * size).into()
                }
            };
            Part { shape, bytes, kind: of_packed(packed, shape, scales) }
        }
    })
}

/// The same bytes of each of so many rows.
fn cut_rows(bytes: &[u8], rows: usize, of_row: Range<usize>) -> Vec<u8> {
    let mut cut = Vec::with_capacity(rows * of_row.len());
    for row in bytes.chunks_exact((bytes.len() / rows.max(1)).max(1)) {
        cut.extend_from_slice(&row[of_row.clone()]);
    }
    cut
}

fn of_packed<'a>(packed: &PackedMatrix<'a>, shape: [usize; 2], scales: Cow<'a, [u8]>) -> Kind<'a> {
    Kind::Packed {
        format: packed.format,
        scales,
        dtype: packed.scales.dtype,
        shape: packed.format.scale_shape(shape),
        tensor: packed.tensor_scale,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(rank: usize, world: usize) -> Share {
        Share { rank, world }
    }

    #[test]
    fn shares_cover_everything_once_in_whole_units() {
        for (count, unit) in [(8, 1), (7, 1), (300, 128), (128, 32), (1, 1)] {
            for world in 1..=4 {
                let parts: Vec<_> = (0..world).map(|rank| share(rank, world).of(count, unit)).collect();
                assert_eq!(parts[0].start, 0);
                assert_eq!(parts[world - 1].end, count);
                assert!(parts.windows(2).all(|w| w[0].end == w[1].start && w[1].start.is_multiple_of(unit)));
            }
        }
    }

    #[test]
    fn too_few_units_are_named_with_the_limit() {
        let error = share(0, 16).of_each("load_matrix", "heads", 8, 1).unwrap_err().to_string();
        assert!(
            error.contains("8 heads") && error.contains("16 ranks") && error.contains("at most 8"),
            "{error}"
        );
        assert_eq!(share(1, 2).of_each("load_experts", "inner units", 300, 128).unwrap(), 128..300);
    }

    /// Parts of a packed matrix hold the values of the whole, in every format and along both axes.
    #[test]
    fn parts_hold_the_values_of_the_whole() {
        let (out, in_features) = (256, 256);
        let codes: Vec<u8> = (0..out * in_features).map(|i| (i * 7 % 120) as u8).collect();
        let formats = [
            (PackedFormat::Nvfp4, Dtype::F8_E4M3, 1),
            (PackedFormat::Mxfp4, Dtype::U8, 1),
            (PackedFormat::Int4Group32, Dtype::BF16, 2),
            (PackedFormat::Fp8Block, Dtype::F32, 4),
            (PackedFormat::Fp8Row, Dtype::F32, 4),
            (PackedFormat::Fp8Tensor, Dtype::F32, 4),
        ];
        for (format, dtype, size) in formats {
            let shape = format.scale_shape([out, in_features]);
            let num_scales = shape.iter().product::<usize>();
            let scales: Vec<u8> = (0..num_scales)
                .flat_map(|i| match (dtype, i) {
                    (Dtype::F32, i) => (1.0 + i as f32).to_le_bytes().to_vec(),
                    (Dtype::BF16, i) => half::bf16::from_f32(1.0 + (i % 100) as f32).to_le_bytes().to_vec(),
                    (_, i) => vec![100 + (i % 20) as u8],
                })
                .collect();
            assert_eq!(scales.len(), num_scales * size);
            let packed = PackedMatrix {
                format,
                shape: [out, in_features],
                codes: &codes[..out * in_features * format.code_bits() / 8],
                scales: TensorView { dtype, shape: &shape, bytes: &scales },
                tensor_scale: TensorScale::None,
            };
            let whole: StoredMatrix<'_> = packed.into();
            let values = whole.to_f32();
            for rank in 0..2 {
                let range = share(rank, 2).of(out, row_unit(&whole));
                let part = rows("test", &whole, range.clone()).unwrap();
                assert_eq!(part.view().to_f32(), values[range.start * in_features..range.end * in_features]);
                let range = share(rank, 2).of(in_features, col_unit(&whole));
                let part = cols("test", &whole, range.clone()).unwrap();
                let expected: Vec<f32> =
                    values.chunks(in_features).flat_map(|row| row[range.clone()].to_vec()).collect();
                assert_eq!(part.view().to_f32(), expected, "{format:?}");
            }
        }
    }

    #[test]
    fn a_cut_inside_a_scale_block_is_refused_with_its_unit() {
        let format = PackedFormat::Nvfp4;
        let packed = PackedMatrix {
            format,
            shape: [2, 32],
            codes: &[0; 32],
            scales: TensorView { dtype: Dtype::F8_E4M3, shape: &[2, 2], bytes: &[0; 4] },
            tensor_scale: TensorScale::None,
        };
        let error = cols("load_matrix", &packed.into(), 0..8).err().unwrap().to_string();
        assert!(error.contains("multiples of 16") && error.contains("nvfp4"), "{error}");
        assert!(rows("load_matrix", &packed.into(), 1..1).is_err(), "a rank without rows");
    }
}
