//! E4M3 without infinities (E4M3FN) and E8M0. OCP 8-bit Floating Point 1.0; OCP Microscaling Formats 1.0, section 5.4.1.

/// Largest finite E4M3 value.
pub const E4M3_MAX: f32 = 448.0;

/// Value of an E4M3 code; 0x7f and 0xff are NaN.
#[inline]
pub fn decode_e4m3(code: u8) -> f32 {
    if code & 0x7f == 0x7f {
        return f32::NAN;
    }
    // The code's exponent and mantissa as those of an f32 are the value times 2^-120, subnormals included.
    let magnitude = f32::from_bits(u32::from(code & 0x7f) << 20) * f32::from_bits((127 + 120) << 23);
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Value of an E8M0 code: 2^(code - 127); 0xff is NaN.
#[inline]
pub fn decode_e8m0(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(0x0040_0000),
        0xff => f32::NAN,
        _ => f32::from_bits(u32::from(code) << 23),
    }
}
