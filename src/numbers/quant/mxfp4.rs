//! MXFP4 encoding: E2M1 codes, an E8M0 scale per 32 values chosen by the "even" rule. OCP Microscaling Formats 1.0.

use super::fp4::{encode_e2m1, pack_nibbles};
use super::fp8::{decode_e8m0, encode_e8m0_even};

/// Values that share a scale.
pub const MXFP4_GROUP: usize = 32;

/// Encodes whole groups: `values` finite, a multiple of 32; `codes` half as many bytes; `scales` a byte per group, none below
/// `smallest_scale` (Quark never writes 0, compressed-tensors does).
pub fn encode_mxfp4(values: &[f32], smallest_scale: u8, codes: &mut [u8], scales: &mut [u8]) {
    let (groups, rest) = values.as_chunks::<MXFP4_GROUP>();
    assert!(rest.is_empty() && scales.len() == groups.len() && codes.len() * 2 == values.len());
    let (packed, _) = codes.as_chunks_mut::<{ MXFP4_GROUP / 2 }>();
    for ((group, packed), scale) in groups.iter().zip(packed).zip(scales) {
        let amax = group.iter().fold(0.0f32, |most, v| if v.abs() > most { v.abs() } else { most });
        *scale = encode_e8m0_even(amax).max(smallest_scale);
        // Dividing by a power of two is exact.
        let divisor = decode_e8m0(*scale);
        let codes: [u8; MXFP4_GROUP] = std::array::from_fn(|i| encode_e2m1(group[i] / divisor));
        pack_nibbles(&codes, packed);
    }
}
