//! FP8 encoding: E4M3 codes under f32 scales, per block of 128 x 128 (DeepSeek-V3's checkpoints) or per tensor.

use super::format::FP8_BLOCK;
use super::fp8::{E4M3_MAX, encode_e4m3};

/// Smallest scale, used for an all-zero block: zero divided by it is zero, zero divided by zero
/// would be NaN.
const SMALLEST_SCALE: f32 = 1e-30;

/// The scale that maps this largest magnitude to 448.
pub fn fp8_scale(amax: f32) -> f32 {
    (amax / E4M3_MAX).max(SMALLEST_SCALE)
}

/// Encodes a band of at most 128 rows (the last band of a matrix may have fewer): `values`
/// `[rows, in_features]` finite; `codes` a byte each; `scales` `[ceil(in_features / 128)]`, which
/// multiply.
pub fn encode_fp8_band(values: &[f32], in_features: usize, codes: &mut [u8], scales: &mut [f32]) {
    assert!(values.len() <= FP8_BLOCK * in_features && codes.len() == values.len());
    assert!(scales.len() == in_features.div_ceil(FP8_BLOCK));
    let mut amax = vec![0.0f32; scales.len()];
    for row in values.chunks_exact(in_features.max(1)) {
        for (most, block) in amax.iter_mut().zip(row.chunks(FP8_BLOCK)) {
            *most = block.iter().fold(*most, |most, v| if v.abs() > most { v.abs() } else { most });
        }
    }
    for (scale, amax) in scales.iter_mut().zip(&amax) {
        *scale = fp8_scale(*amax);
    }
    for (row, codes) in
        values.chunks_exact(in_features.max(1)).zip(codes.chunks_exact_mut(in_features.max(1)))
    {
        for ((block, codes), scale) in row.chunks(FP8_BLOCK).zip(codes.chunks_mut(FP8_BLOCK)).zip(&*scales) {
            encode_fp8(block, *scale, codes);
        }
    }
}

/// Encodes values under one scale, which multiplies and is above zero.
pub fn encode_fp8(values: &[f32], scale: f32, codes: &mut [u8]) {
    for (code, value) in codes.iter_mut().zip(values) {
        *code = encode_e4m3(value / scale);
    }
}
