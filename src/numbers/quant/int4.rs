//! INT4 in groups of 32: codes -7 to 7 stored as code + 8, a BF16 scale per group. The format of
//! Kimi's own INT4 checkpoints.

use super::fp4::pack_nibbles;

/// Values that share a scale.
pub const INT4_GROUP: usize = 32;

/// Largest code written; decoders also accept -8.
const LARGEST: f32 = 7.0;

/// Smallest scale, used for an all-zero group.
const SMALLEST_SCALE: f32 = 1e-5;

/// Encodes whole groups by scale = max(amax / 7, 1e-5), rounded to BF16: `values` finite, a multiple of 32; `codes` half as many bytes;
/// `scales` two bytes per group, BF16.
pub fn encode_int4(values: &[f32], codes: &mut [u8], scales: &mut [u8]) {
    let groups = values.as_chunks::<INT4_GROUP>().0;
    assert!(scales.len() == 2 * groups.len());
    for (group, scale) in groups.iter().zip(scales.as_chunks_mut::<2>().0) {
        let amax = group.iter().fold(0.0f32, |most, v| if v.abs() > most { v.abs() } else { most });
        *scale = half::bf16::from_f32((amax / LARGEST).max(SMALLEST_SCALE)).to_le_bytes();
    }
    encode_int4_codes(values, -LARGEST as i8, scales, codes);
}

/// Codes under given scales: nearest, ties to even, f32 division, clamped to `smallest..=7` (-7 or
/// -8). `scales` BF16, all above zero.
pub fn encode_int4_codes(values: &[f32], smallest: i8, scales: &[u8], codes: &mut [u8]) {
    /// 1.5 times 2^23: adding it rounds to the nearest integer, ties to even, for both signs.
    const ROUND: f32 = 12_582_912.0;
    let (groups, rest) = values.as_chunks::<INT4_GROUP>();
    assert!(rest.is_empty() && codes.len() * 2 == values.len());
    let (packed, _) = codes.as_chunks_mut::<{ INT4_GROUP / 2 }>();
    for ((group, packed), scale) in groups.iter().zip(packed).zip(scales.as_chunks::<2>().0) {
        let scale = half::bf16::from_le_bytes(*scale).to_f32();
        let codes: [u8; INT4_GROUP] = std::array::from_fn(|i| {
            let ratio = group[i] / scale;
            let ratio = if ratio > f32::from(smallest) { ratio } else { f32::from(smallest) };
            let ratio = if ratio < LARGEST { ratio } else { LARGEST };
            // The low bits of the sum are the integer; 8 makes it an unsigned nibble.
            ((ratio + ROUND).to_bits().wrapping_add(8) & 15) as u8
        });
        pack_nibbles(&codes, packed);
    }
}
