//! Panels of codes: quantized weights in the order the kernels stream, as many bytes as in the checkpoint.
//!
//! A panel is 16 outputs and all of `in`, in steps of 32 inputs: first the codes of every step, then the scales of every step. `in` is padded
//! with codes and scales of zero. A step of 4-bit codes is four registers of 16 lanes; a lane's word holds eight
//! consecutive inputs as nibbles `e0 e2 e4 e6 e1 e3 e5 e7`, lowest first. So a shift by 4 j leaves the pair `(2 j, 2 j + 1)` in the low
//! bits of the word's two halves: one shift and one lookup make a register of bf16 pairs for the dot product. A step of 8-bit codes is eight
//! registers; a lane's word holds four consecutive inputs.
//!
//! Scales of a step, lane by lane: two rows of 16 E4M3 bytes (NVFP4), 16 E8M0 bytes (MXFP4), 16 BF16 (INT4); one row of 16 f32 per four
//! steps (FP8). Per-tensor scales are factors of the panel ([`super::matrix::Panels::factors`]).

use super::layout::{CodeFormat, FP8_SCALE_STEPS, LANES, STEP_INPUTS};
use super::simd::{self, Isa};
use super::transpose::TransposeRows;
use perigee_numbers::quant::fp8::{decode_e4m3, decode_e8m0};
use perigee_numbers::quant::{PackedFormat, PackedMatrix, StoredMatrix, TensorScale};
use perigee_numbers::tensor::Dtype;

impl CodeFormat {
    /// What one stored scale is, before the panel's factor.
    fn decode_scale(self, scales: &[u8], lane: usize) -> f32 {
        match self {
            CodeFormat::Nvfp4 => decode_e4m3(scales[lane]),
            CodeFormat::Mxfp4 => decode_e8m0(scales[lane]),
            CodeFormat::Int4 => half::bf16::from_le_bytes([scales[2 * lane], scales[2 * lane + 1]]).to_f32(),
            CodeFormat::Fp8 => f32::from_le_bytes(std::array::from_fn(|i| scales[4 * lane + i])),
        }
    }
}

/// The format of panels that can hold all `parts`, and their factors; `None` where they have to be widened: plain parts, mixed formats,
/// stacked parts with tensor scales of their own, tensor scales the kernels' arithmetic has no room for.
pub(crate) fn common_format(parts: &[StoredMatrix<'_>], alternate: bool) -> Option<(CodeFormat, [f32; 2])> {
    let first = parts.first()?.packed()?;
    let format = match first.format {
        PackedFormat::Nvfp4 => CodeFormat::Nvfp4,
        PackedFormat::Mxfp4 => CodeFormat::Mxfp4,
        PackedFormat::Int4Group32 => CodeFormat::Int4,
        PackedFormat::Fp8Block | PackedFormat::Fp8Row | PackedFormat::Fp8Tensor => CodeFormat::Fp8,
    };
    let factor = |matrix: &PackedMatrix<'_>| match matrix.tensor_scale {
        // FP8 scales are stored per lane with everything applied.
        _ if format == CodeFormat::Fp8 => 1.0,
        TensorScale::None => 1.0,
        TensorScale::Multiply(scale) => scale,
        TensorScale::Divide(scale) => 1.0 / scale,
    };
    let mut factors = [factor(first); 2];
    for (p, part) in parts.iter().enumerate() {
        let part = part.packed()?;
        if part.format != first.format {
            return None;
        }
        match alternate {
            true => factors[p % 2] = factor(part),
            false if factor(part) != factors[0] => return None,
            false => {}
        }
    }
    // The kernels multiply by the factor times 2^120.
    factors.iter().all(|f| f.is_normal() && *f < 128.0).then_some((format, factors))
}

/// Fills the words of one panel, which are zero; rows that are `None` are padding.
pub(crate) fn pack(
    isa: Isa,
    format: CodeFormat,
    rows: &[Option<(&PackedMatrix<'_>, usize)>; LANES],
    words: &mut [u32],
) {
    let Some((matrix, _)) = rows.iter().flatten().next() else { return };
    let steps = matrix.shape[1].div_ceil(STEP_INPUTS);
    let (codes, scales) = words.split_at_mut(steps * format.step_words());
    // A lane's words are those of its row, so this is a transposition of words.
    let bytes = rows.map(|row| row.map_or(&[][..], |(matrix, o)| matrix.row_codes(o)));
    if bytes.iter().all(|row| row.len() % 4 == 0) && cfg!(target_endian = "little") {
        // SAFETY: the instruction set is supported (checked at construction).
        unsafe { simd::launch(isa, TransposeRows { rows: bytes, words: codes }) };
    } else {
        for (lane, row) in bytes.iter().enumerate() {
            for (word, piece) in codes.iter_mut().skip(lane).step_by(LANES).zip(row.chunks(4)) {
                *word = u32::from_le_bytes(std::array::from_fn(|i| piece.get(i).copied().unwrap_or(0)));
            }
        }
    }
    if format != CodeFormat::Fp8 {
        codes.iter_mut().for_each(|word| *word = part_even_from_odd(*word));
    }
    pack_scales(format, rows, bytemuck::cast_slice_mut(scales));
}

/// Whether a code of a packed panel is not a number, which the kernels take for one.
pub(crate) fn has_not_a_number(format: CodeFormat, panel: &[u32], in_features: usize) -> bool {
    let codes = in_features.div_ceil(STEP_INPUTS) * format.step_words();
    // 0x7f in some byte, whatever its sign.
    let has = |word: &u32| (word & 0x7f7f_7f7f).wrapping_add(0x0101_0101) & 0x8080_8080 != 0;
    format == CodeFormat::Fp8 && panel[..codes].iter().fold(false, |any, word| any | has(word))
}

/// Nibbles `e0 .. e7` to `e0 e2 e4 e6 e1 e3 e5 e7`, lowest first.
fn part_even_from_odd(mut word: u32) -> u32 {
    let swap = (word ^ (word >> 4)) & 0x00f0_00f0;
    word ^= swap ^ (swap << 4);
    let swap = (word ^ (word >> 8)) & 0x0000_ff00;
    word ^ swap ^ (swap << 8)
}

fn pack_scales(format: CodeFormat, rows: &[Option<(&PackedMatrix<'_>, usize)>; LANES], scales: &mut [u8]) {
    let stride = format.group_scale_bytes();
    for (lane, row) in rows.iter().enumerate() {
        let Some((matrix, o)) = *row else { continue };
        let groups = match format {
            CodeFormat::Fp8 => matrix.shape[1].div_ceil(FP8_SCALE_STEPS * STEP_INPUTS),
            _ => matrix.row_groups(),
        };
        for g in 0..groups {
            let group = &mut scales[g * stride..(g + 1) * stride];
            let stored = |size: usize| {
                let at = (o * groups + g) * size;
                &matrix.scales.bytes[at..at + size]
            };
            match format {
                // Negative scales are refused but for -0, whose sign the kernels would take for an exponent.
                CodeFormat::Nvfp4 => group[lane] = stored(1)[0] & 0x7f,
                CodeFormat::Mxfp4 => group[lane] = stored(1)[0],
                CodeFormat::Int4 if matrix.scales.dtype == Dtype::BF16 => {
                    group[2 * lane..2 * lane + 2].copy_from_slice(stored(2));
                }
                // See `PackedMatrix::kernel_scales`.
                CodeFormat::Int4 => {
                    let rounded = half::bf16::from_f32(matrix.scale(o, g));
                    group[2 * lane..2 * lane + 2].copy_from_slice(&rounded.to_le_bytes());
                }
                CodeFormat::Fp8 => {
                    group[4 * lane..4 * lane + 4].copy_from_slice(&matrix.scale(o, g).to_le_bytes());
                }
            }
        }
    }
}

/// Codes of one panel and the scales behind them.
fn split_panel(format: CodeFormat, panel: &[u32], steps: usize) -> (&[u32], &[u8]) {
    let (codes, scales) = panel.split_at(steps * format.step_words());
    (codes, bytemuck::cast_slice(scales))
}

/// Widens lane `lane` of a panel to `out` `[in]`.
pub(crate) fn read_lane(format: CodeFormat, panel: &[u32], factor: f32, lane: usize, out: &mut [f32]) {
    let (codes, scales) = split_panel(format, panel, out.len().div_ceil(STEP_INPUTS));
    let table = format.table();
    for (i, value) in out.iter_mut().enumerate() {
        let (step, within) = (i / STEP_INPUTS, i % STEP_INPUTS);
        let group = within / format.group_inputs() * format.group_scale_bytes();
        let scale = format.decode_scale(&scales[format.scale_offset(step) + group..], lane) * factor;
        let code = match format {
            CodeFormat::Fp8 => {
                let word = codes[step * format.step_words() + within / 4 * LANES + lane];
                decode_e4m3((word >> (within % 4 * 8)) as u8)
            }
            _ => {
                let word = codes[step * format.step_words() + within / 8 * LANES + lane];
                table[(word >> nibble_shift(within % 8) & 15) as usize]
            }
        };
        *value = scale * code;
    }
}

/// Where the nibble of input `i` of eight begins in a lane's word.
#[inline(always)]
pub(crate) const fn nibble_shift(i: usize) -> u32 {
    (i % 2 * 16 + i / 2 * 4) as u32
}

/// The 16 scales of group `group` of a step, the panel's factor applied. `scales` points at the step's first scale.
///
/// # Safety
/// The scales of that group are readable.
#[inline(always)]
pub(crate) unsafe fn group_scales(
    format: CodeFormat,
    scales: *const u8,
    group: usize,
    factor: f32,
) -> [f32; LANES] {
    let bytes = format.group_scale_bytes();
    // SAFETY: the caller's contract.
    let scales = unsafe { std::slice::from_raw_parts(scales.add(group * bytes), bytes) };
    std::array::from_fn(|lane| format.decode_scale(scales, lane) * factor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::{PanelSource, pack_all};
    use perigee_numbers::tensor::TensorView;
    use perigee_numbers::threads::ThreadPool;

    #[test]
    fn nibbles_part_into_even_and_odd() {
        let parted = part_even_from_odd(0x7654_3210);
        assert_eq!(parted, 0x7531_6420);
        for i in 0..8 {
            assert_eq!(parted >> nibble_shift(i) & 15, i as u32);
        }
    }

    /// Every format reads back what the specification says, padding of outputs and inputs included.
    #[test]
    fn rows_read_back_as_the_specification_says() {
        let mut pool = ThreadPool::new("test", 2);
        let mut rng = fastrand::Rng::with_seed(11);
        let cases = [
            (PackedFormat::Nvfp4, Dtype::F8_E4M3, TensorScale::Multiply(0.37)),
            (PackedFormat::Nvfp4, Dtype::F8_E4M3, TensorScale::Divide(2.0)),
            (PackedFormat::Mxfp4, Dtype::U8, TensorScale::None),
            (PackedFormat::Int4Group32, Dtype::BF16, TensorScale::None),
            (PackedFormat::Fp8Block, Dtype::F32, TensorScale::None),
            (PackedFormat::Int4Group32, Dtype::F16, TensorScale::None),
            (PackedFormat::Int4Group32, Dtype::F8_E8M0, TensorScale::None),
            (PackedFormat::Fp8Block, Dtype::BF16, TensorScale::None),
            (PackedFormat::Fp8Block, Dtype::F8_E8M0, TensorScale::None),
            (PackedFormat::Fp8Row, Dtype::F16, TensorScale::None),
            (PackedFormat::Fp8Row, Dtype::F32, TensorScale::None),
            (PackedFormat::Fp8Tensor, Dtype::F32, TensorScale::None),
        ];
        for isa in Isa::supported() {
            for (format, dtype, tensor_scale) in cases {
                for shape in [[1, 32], [16, 64], [21, 160], [150, 288], [17, 16], [5, 40]] {
                    if format.code_bits() == 4 && shape[1] % format.group().unwrap_or(1) != 0 {
                        continue;
                    }
                    let owned = crate::tests::random_packed(&mut rng, format, dtype, tensor_scale, shape);
                    let matrix = owned.view();
                    let source = PanelSource::stacked("test", vec![matrix.into()]).expect("valid");
                    let packed = pack_all(&mut pool, isa, "test", &[source]).expect("memory");
                    // As the kernels multiply: INT4's scales of more bits are rounded to BF16.
                    let (scales, dtype) = match format {
                        PackedFormat::Int4Group32 => (matrix.kernel_scales(), Dtype::BF16),
                        _ => (matrix.scales.bytes.into(), dtype),
                    };
                    let scales = TensorView { dtype, bytes: &scales, ..matrix.scales };
                    let want = PackedMatrix { scales, ..matrix }.to_f32();
                    for o in 0..shape[0] {
                        let mut got = vec![f32::NAN; shape[1]];
                        packed[0].read_row(o, &mut got);
                        assert_eq!(
                            got,
                            want[o * shape[1]..(o + 1) * shape[1]],
                            "{format:?} {shape:?} row {o}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn mixed_parts_are_widened() {
        let mut rng = fastrand::Rng::with_seed(12);
        let mut random =
            |format, dtype, scale| crate::tests::random_packed(&mut rng, format, dtype, scale, [16, 64]);
        let a = random(PackedFormat::Nvfp4, Dtype::F8_E4M3, TensorScale::Multiply(0.5));
        let b = random(PackedFormat::Nvfp4, Dtype::F8_E4M3, TensorScale::Multiply(0.25));
        let c = random(PackedFormat::Mxfp4, Dtype::U8, TensorScale::None);
        let huge = random(PackedFormat::Nvfp4, Dtype::F8_E4M3, TensorScale::Multiply(1e30));
        let (a, b, c, huge) = (a.view().into(), b.view().into(), c.view().into(), huge.view().into());
        assert_eq!(common_format(&[a, b], true), Some((CodeFormat::Nvfp4, [0.5, 0.25])));
        assert_eq!(common_format(&[a, b], false), None);
        assert_eq!(common_format(&[a, c], true), None);
        assert_eq!(common_format(&[huge], false), None);
        let bytes = [0u8; 2048];
        let plain = TensorView { dtype: Dtype::BF16, shape: &[16, 64], bytes: &bytes };
        assert_eq!(common_format(&[a, plain.into()], true), None);
    }
}
