//! E4M3 without infinities (E4M3FN) and E8M0. OCP 8-bit Floating Point 1.0; OCP Microscaling Formats 1.0, section 5.4.1.

/// Largest finite E4M3 value.
pub const E4M3_MAX: f32 = 448.0;

/// Value of an E4M3 code; 0x7f and 0xff are NaN.
#[inline]
pub const fn decode_e4m3(code: u8) -> f32 {
    if code & 0x7f == 0x7f {
        return f32::NAN;
    }
    // The code's exponent and mantissa, taken as those of an f32, are the value times 2^-120,
    // subnormals included.
    let magnitude = f32::from_bits(((code & 0x7f) as u32) << 20) * f32::from_bits((127 + 120) << 23);
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The E4M3 code nearest to a value, ties to even, saturating at 448 (infinities too). The sign of zero is kept; NaN gives 0x7f with its sign.
#[inline(always)]
pub fn encode_e4m3(value: f32) -> u8 {
    let bits = value.to_bits();
    let sign = (bits >> 24) as u8 & 0x80;
    let a = value.abs();
    let clamped = if a < E4M3_MAX { a } else { E4M3_MAX };
    // Normal values: keep three bits of mantissa, rounded to even, and move the bias from 127 to 7.
    let kept = clamped.to_bits();
    let normal = ((kept + 0x7_ffff + (kept >> 20 & 1)) >> 20).wrapping_sub(120 << 3) as u8;
    // Below 2^-6 the step is 2^-9, the last place of 2^14: the addition rounds.
    let subnormal = ((clamped + 16384.0).to_bits() - 16384f32.to_bits()) as u8;
    let code = if clamped < 0.015625 { subnormal } else { normal };
    sign | if a.is_nan() { 0x7f } else { code }
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

/// The E8M0 scale of a group of E2M1 codes with this largest magnitude, by the rule that Quark and
/// compressed-tensors call "even": the exponent of `amax`, rounded up from a mantissa of 1.75 on,
/// less the two binades of E2M1.
#[inline(always)]
pub fn encode_e8m0_even(amax: f32) -> u8 {
    let exponent = amax.abs().to_bits().wrapping_add(0x20_0000) >> 23;
    exponent.saturating_sub(2).min(254) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_e4m3_code_comes_back() {
        for code in 0..=255u8 {
            assert_eq!(encode_e4m3(decode_e4m3(code)) & 0x7f, code & 0x7f, "{code:#x}");
        }
        assert_eq!(encode_e4m3(-0.0), 0x80);
        assert_eq!(encode_e4m3(f32::INFINITY), 0x7e);
        assert_eq!(encode_e4m3(-1e9), 0xfe);
    }

    #[test]
    fn e4m3_codes_are_the_nearest() {
        let values: Vec<f32> = (0..0x7f).map(|code| decode_e4m3(code as u8)).collect();
        for (code, x) in values.iter().enumerate() {
            assert_eq!(encode_e4m3(*x), code as u8);
            assert_eq!(encode_e4m3(-*x), code as u8 | 0x80);
        }
        for pair in values.windows(2) {
            let middle = (pair[0] + pair[1]) / 2.0;
            let below = encode_e4m3(f32::from_bits(middle.to_bits() - 1));
            let above = encode_e4m3(f32::from_bits(middle.to_bits() + 1));
            assert_eq!(above, below + 1);
            let even = if below.is_multiple_of(2) { below } else { above };
            assert_eq!(encode_e4m3(middle), even, "{middle}");
        }
        assert_eq!(encode_e4m3(1e9), 0x7e);
    }

    #[test]
    fn e8m0_rounds_up_from_seven_quarters() {
        for (amax, expected) in [(6.0, 127), (6.99, 127), (7.0, 128), (4.0, 127), (3.99, 127), (3.49, 126)] {
            assert_eq!(encode_e8m0_even(amax), expected, "{amax}");
        }
        assert_eq!(encode_e8m0_even(0.0), 0);
        assert_eq!(encode_e8m0_even(f32::MAX), 253);
        assert_eq!(encode_e8m0_even(1e-42), 0);
    }
}
