//! NVFP4 encoding: E2M1 codes, an E4M3 scale per 16 values, an f32 scale per tensor.
//!
//! Two conventions, two ways to choose block scales. modelopt's tensor scale multiplies,
//! compressed-tensors' divides. The arithmetic follows each package's order, so that the bytes are
//! equal. All in f32, with true divisions.

use super::fp4::{E2M1_MAX, encode_e2m1, pack_nibbles, round_e2m1};
use super::fp8::{E4M3_MAX, decode_e4m3, encode_e4m3};
use super::packed::TensorScale;

/// Values that share a block scale.
pub const NVFP4_BLOCK: usize = 16;

/// Largest value divided by the tensor scale: the largest code at the largest block scale.
pub const NVFP4_RANGE: f32 = E2M1_MAX * E4M3_MAX;

/// Smallest block scale that modelopt writes: the first E4M3 subnormal, 2^-9.
const SMALLEST_SCALE: f32 = 1.0 / 512.0;

/// Scale that compressed-tensors stores for an all-zero block.
const CT_ZERO_SCALE: u8 = 0x20;

/// Choice of a block's scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockScales {
    /// The scale maps the largest magnitude of the block to 6.
    Max,
    /// The one of the 126 positive E4M3 values with the least squared error; the smallest of
    /// equals.
    Sweep,
}

/// Smallest tensor scale that is written and read: of a matrix whose largest value is 2.7e-27.
pub(super) const SMALLEST_TENSOR_SCALE: f32 = 1e-30;

/// modelopt's tensor scale of a matrix, or of matrices that share it, with this largest magnitude.
/// A tensor of zeros, or next to them, has no range to cover; its scale is that of a largest magnitude of 1, as
/// decoders refuse a scale of zero.
pub fn tensor_scale(amax: f32) -> TensorScale {
    let scale = amax / NVFP4_RANGE;
    TensorScale::Multiply(if scale > SMALLEST_TENSOR_SCALE { scale } else { 1.0 / NVFP4_RANGE })
}

/// compressed-tensors' global scale: the reciprocal of [`tensor_scale`], and finite.
pub fn global_scale(amax: f32) -> TensorScale {
    let scale = NVFP4_RANGE / amax;
    TensorScale::Divide(if scale < 1.0 / SMALLEST_TENSOR_SCALE { scale } else { NVFP4_RANGE })
}

/// Encodes blocks of 16 under one tensor scale.
#[derive(Debug, Clone)]
pub struct Nvfp4Encoder {
    scales: BlockScales,
    tensor_scale: TensorScale,
    /// Value of each E4M3 code below 0x80 under the tensor scale; not decreasing up to 0x7e.
    effective: [f32; 128],
}

impl Nvfp4Encoder {
    /// An encoder under this scale, as [`tensor_scale`] or [`global_scale`] return it.
    pub fn new(scales: BlockScales, tensor_scale: TensorScale) -> Self {
        let effective = std::array::from_fn(|byte| tensor_scale.apply(decode_e4m3(byte as u8)));
        Self { scales, tensor_scale, effective }
    }

    /// The scale common to all blocks.
    pub fn tensor_scale(&self) -> TensorScale {
        self.tensor_scale
    }

    /// Encodes whole blocks: `values` finite, a multiple of 16; `codes` half as many bytes; `scales` a byte per block.
    pub fn encode(&self, values: &[f32], codes: &mut [u8], scales: &mut [u8]) {
        let (blocks, rest) = values.as_chunks::<NVFP4_BLOCK>();
        assert!(rest.is_empty() && scales.len() == blocks.len() && codes.len() * 2 == values.len());
        let (packed, _) = codes.as_chunks_mut::<{ NVFP4_BLOCK / 2 }>();
        for ((block, packed), scale) in blocks.iter().zip(packed).zip(scales) {
            *scale = match self.scales {
                BlockScales::Max => self.max_scale(block),
                BlockScales::Sweep => self.best_scale(block),
            };
            let divisor = self.effective[usize::from(*scale)];
            let codes: [u8; NVFP4_BLOCK] = std::array::from_fn(|i| encode_e2m1(block[i] / divisor));
            pack_nibbles(&codes, packed);
        }
    }

    /// The scale that maps the largest magnitude to 6.
    #[inline(always)]
    fn max_scale(&self, block: &[f32; NVFP4_BLOCK]) -> u8 {
        let amax = largest(block);
        match self.tensor_scale {
            TensorScale::Divide(global) => match encode_e4m3(global * (amax / E2M1_MAX)) {
                0 => CT_ZERO_SCALE,
                byte => byte,
            },
            TensorScale::Multiply(scale) => {
                let ratio = amax / (E2M1_MAX * scale);
                encode_e4m3(if ratio == 0.0 { 1.0 } else { ratio.clamp(SMALLEST_SCALE, E4M3_MAX) })
            }
            TensorScale::None => encode_e4m3((amax / E2M1_MAX).clamp(SMALLEST_SCALE, E4M3_MAX)),
        }
    }

    /// The scale of least squared error: the result of testing 0x01 to 0x7e in order and keeping
    /// the first best, without testing all.
    ///
    /// Two bounds exclude candidates, and both hold in f32 as computed, because every step of a
    /// loss is monotone in each of its terms. With a scale so small that the largest value is
    /// clipped, the loss is at least that value's own error, which grows as the scale shrinks. The
    /// values that a scale rounds to zero stay zero under every larger one, so the sum of their
    /// squares is a lower bound for all larger scales.
    fn best_scale(&self, block: &[f32; NVFP4_BLOCK]) -> u8 {
        let magnitudes: [f32; NVFP4_BLOCK] = std::array::from_fn(|i| block[i].abs());
        let amax = largest(block);
        let clip = |byte: u8| {
            let error = amax - self.effective[usize::from(byte)] * E2M1_MAX;
            if error > 0.0 { error * error } else { 0.0 }
        };
        // Any candidate serves as the first bound; the nearest to amax / 6 is a good one.
        let probe = encode_e4m3(amax / E2M1_MAX / self.effective[0x38]).clamp(0x01, 0x7e);
        let bound = self.loss(&magnitudes, probe).0;
        let mut byte = probe;
        while byte > 0x01 && clip(byte - 1) <= bound {
            byte -= 1;
        }
        let (mut best, mut chosen) = (f32::INFINITY, byte);
        for byte in byte..=0x7e {
            let (loss, floor) = self.loss(&magnitudes, byte);
            if loss < best {
                (best, chosen) = (loss, byte);
            }
            if floor >= best {
                break;
            }
        }
        chosen
    }

    /// Squared error of a block of magnitudes under a candidate, and the part of it from values that round to zero.
    #[inline(always)]
    fn loss(&self, magnitudes: &[f32; NVFP4_BLOCK], byte: u8) -> (f32, f32) {
        let scale = self.effective[usize::from(byte)];
        let mut loss = [0.0f32; 4];
        let mut zeroed = [0.0f32; 4];
        for quad in magnitudes.as_chunks::<4>().0 {
            for lane in 0..4 {
                let rounded = round_e2m1(quad[lane] / scale);
                let error = quad[lane] - scale * rounded;
                let square = error * error;
                loss[lane] += square;
                zeroed[lane] += if rounded == 0.0 { square } else { 0.0 };
            }
        }
        let sum = |x: [f32; 4]| (x[0] + x[2]) + (x[1] + x[3]);
        (sum(loss), sum(zeroed))
    }
}

/// Largest magnitude of a block.
#[inline(always)]
fn largest(block: &[f32; NVFP4_BLOCK]) -> f32 {
    let mut lanes = [0.0f32; 4];
    for quad in block.as_chunks::<4>().0 {
        for lane in 0..4 {
            let a = quad[lane].abs();
            lanes[lane] = if a > lanes[lane] { a } else { lanes[lane] };
        }
    }
    lanes[0].max(lanes[1]).max(lanes[2].max(lanes[3]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests all 126 candidates in order, as the reference does, with the encoder's order of
    /// additions.
    fn full_sweep(encoder: &Nvfp4Encoder, block: &[f32; 16]) -> u8 {
        let magnitudes = block.map(f32::abs);
        let mut best = (f32::INFINITY, 0x01);
        for byte in 0x01..=0x7e {
            let loss = encoder.loss(&magnitudes, byte).0;
            if loss < best.0 {
                best = (loss, byte);
            }
        }
        best.1
    }

    fn check(encoder: &Nvfp4Encoder, block: &[f32; 16]) {
        assert_eq!(encoder.best_scale(block), full_sweep(encoder, block), "{block:?}");
    }

    #[test]
    fn leaving_candidates_out_changes_nothing() {
        let mut rng = fastrand::Rng::with_seed(7);
        for round in 0..40_000 {
            let amax = 10f32.powf(rng.f32() * 12.0 - 8.0);
            let scale = if round % 2 == 0 { tensor_scale(amax) } else { global_scale(amax) };
            let encoder = Nvfp4Encoder::new(BlockScales::Sweep, scale);
            let size = amax * 2f32.powi(-rng.i32(0..26));
            let kind = rng.u32(0..8);
            let constant = rng.f32() * size;
            let block: [f32; 16] = std::array::from_fn(|i| match kind {
                0 => 0.0,
                1 => constant,
                2 => (rng.f32() - 0.5) * size * f32::from(u8::from(i == 3)),
                3 => rng.i32(-7..8) as f32 * size / 7.0,
                4 => crate::quant::fp4::E2M1[rng.usize(0..16)] * size,
                5 => (rng.f32() - 0.5) * size * 2f32.powi(-rng.i32(0..30)),
                6 => f32::from_bits(rng.u32(0..0x80_0000)),
                _ => (0..4).map(|_| rng.f32() - 0.5).sum::<f32>() * size,
            });
            check(&encoder, &block);
        }
    }

    #[test]
    fn a_zero_tensor_has_a_usable_scale_and_zero_codes() {
        for (scale, byte) in [(tensor_scale(0.0), 0x38), (global_scale(0.0), 0x20)] {
            let (TensorScale::Multiply(value) | TensorScale::Divide(value)) = scale else { panic!() };
            assert!(value.is_finite() && value > 0.0);
            let (mut codes, mut scales) = ([1; 8], [1; 1]);
            Nvfp4Encoder::new(BlockScales::Max, scale).encode(&[0.0; 16], &mut codes, &mut scales);
            assert_eq!((codes, scales), ([0; 8], [byte]));
            Nvfp4Encoder::new(BlockScales::Sweep, scale).encode(&[0.0; 16], &mut codes, &mut scales);
            assert_eq!((codes, scales), ([0; 8], [0x01]));
        }
    }
}
