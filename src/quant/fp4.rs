//! E2M1: four-bit floats, a sign and the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6. OCP Microscaling Formats 1.0, section 5.3.3.

/// Value of each code, sign in bit 3. Code 8 is minus zero, which readers take as zero.
pub const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Largest magnitude.
pub const E2M1_MAX: f32 = 6.0;

/// Value of a code; the upper four bits are ignored.
#[inline(always)]
pub fn decode_e2m1(code: u8) -> f32 {
    E2M1[usize::from(code & 15)]
}
