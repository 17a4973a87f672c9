//! E2M1: four-bit floats, a sign and the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6. OCP Microscaling Formats 1.0, section 5.3.3.

/// Value of each code, sign in bit 3. Code 8 is minus zero, which decoders read as zero.
pub const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Largest magnitude.
pub const E2M1_MAX: f32 = 6.0;

/// Value of a code; the upper four bits are ignored.
#[inline(always)]
pub fn decode_e2m1(code: u8) -> f32 {
    E2M1[usize::from(code & 15)]
}

/// The code nearest to a value, ties to the even mantissa, saturating at 6. A negative value that
/// rounds to zero keeps its sign (code 8); minus zero and NaN give code 0.
#[inline(always)]
pub fn encode_e2m1(value: f32) -> u8 {
    let a = value.abs();
    // `>=` at an edge whose tie belongs to the code above, `>` at the others.
    let index = u8::from(a > 0.25)
        + u8::from(a >= 0.75)
        + u8::from(a > 1.25)
        + u8::from(a >= 1.75)
        + u8::from(a > 2.5)
        + u8::from(a >= 3.5)
        + u8::from(a > 5.0);
    index | u8::from(value < 0.0) << 3
}

/// The magnitude nearest to `a >= 0`: `decode_e2m1(encode_e2m1(a))` without the code. NaN gives 6.
#[inline(always)]
pub fn round_e2m1(a: f32) -> f32 {
    let a = if a < E2M1_MAX { a } else { E2M1_MAX };
    // Adding 2^22 times the power of two below `a` leaves one bit of mantissa, rounded to nearest
    // even by the addition. Below 1 the step stays that of [1, 2).
    let binade = if a > 1.0 { a } else { 1.0 };
    let magic = f32::from_bits((binade.to_bits() & 0x7f80_0000) + (22 << 23));
    // [4, 8) rounds to a multiple of 2, and `a` is at most 6.
    (a + magic) - magic
}

/// Packs codes, the even one into the low nibble. `codes` has two per byte of `packed`.
#[inline(always)]
pub(super) fn pack_nibbles(codes: &[u8], packed: &mut [u8]) {
    for (byte, pair) in packed.iter_mut().zip(codes.chunks_exact(2)) {
        *byte = pair[0] | pair[1] << 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tie_goes_to_the_even_mantissa() {
        for (value, expected) in [
            (0.0, 0),
            (-0.0, 0),
            (0.25, 0),
            (0.25f32.next_up(), 1),
            (0.75, 2),
            (0.75f32.next_down(), 1),
            (1.25, 2),
            (1.75, 4),
            (2.5, 4),
            (3.5, 6),
            (5.0, 6),
            (5.0f32.next_up(), 7),
            (1e30, 7),
            (f32::INFINITY, 7),
            (f32::NAN, 0),
            (-0.1, 8),
            (-3.4, 13),
            (-9.0, 15),
        ] {
            assert_eq!(encode_e2m1(value), expected, "{value}");
        }
    }

    #[test]
    fn rounding_is_decoding_of_encoding() {
        for i in 0..=80_000u32 {
            for a in [i as f32 * 1e-4, (i as f32 / 8.0).next_up(), (i as f32 / 8.0).next_down().max(0.0)] {
                assert_eq!(round_e2m1(a), decode_e2m1(encode_e2m1(a)), "{a}");
            }
        }
        assert_eq!(round_e2m1(f32::NAN), 6.0);
        assert_eq!(round_e2m1(f32::from_bits(1)), 0.0);
    }
}
