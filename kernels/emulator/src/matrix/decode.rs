//! Values of the narrow float formats, as tables over their codes.

/// A float format in an 8-bit container.
#[derive(Debug)]
pub(super) struct ByteTable {
    /// Values of the 256 bytes.
    pub(super) values: [f32; 256],
    /// Exponent of the least normal value, and of subnormal ones.
    pub(super) least_exponent: i32,
}
/// Values of the two 4-bit codes of a byte, the low one first.
pub(super) type NibbleTable = [[f32; 2]; 256];

pub(super) static E4M3: ByteTable = bytes(4, 3, 0, Specials::Nan);
pub(super) static E5M2: ByteTable = bytes(5, 2, 0, Specials::Ieee);
pub(super) static E2M3: ByteTable = bytes(2, 3, 0, Specials::None);
pub(super) static E3M2: ByteTable = bytes(3, 2, 0, Specials::None);
/// The code sits in bits 0 to 3.
pub(super) static E2M1: ByteTable = bytes(2, 1, 0, Specials::None);
/// The code sits in bits 2 to 5 (PTX ISA 9.0, "mma", `kind::f8f6f4`).
pub(super) static E2M1_PADDED: ByteTable = bytes(2, 1, 2, Specials::None);
pub(super) static E2M1_PAIRS: NibbleTable = pairs();
/// Scale factors: [`E4M3`] without its sign.
pub(super) static UE4M3: ByteTable = unsigned(&E4M3);

/// Codes without a finite value.
#[derive(Clone, Copy)]
enum Specials {
    None,
    /// All ones is NaN.
    Nan,
    /// The largest exponent holds infinity and NaN.
    Ieee,
}

/// 2^`exponent`, for normal and subnormal results.
pub(super) const fn power_of_two(exponent: i32) -> f32 {
    if exponent >= -126 {
        f32::from_bits(((exponent + 127) as u32) << 23)
    } else {
        f32::from_bits(1 << (exponent + 149))
    }
}

const fn value(code: u32, exponent_bits: u32, mantissa_bits: u32, specials: Specials) -> f32 {
    let sign = if code >> (exponent_bits + mantissa_bits) & 1 == 1 { -1.0 } else { 1.0 };
    let top = (1 << exponent_bits) - 1;
    let exponent = code >> mantissa_bits & top;
    let mantissa = code & ((1 << mantissa_bits) - 1);
    let all_ones = exponent == top && mantissa == (1 << mantissa_bits) - 1;
    match specials {
        Specials::Nan if all_ones => return f32::NAN,
        Specials::Ieee if exponent == top && mantissa != 0 => return f32::NAN,
        Specials::Ieee if exponent == top => return sign * f32::INFINITY,
        _ => {}
    }
    let bias = (1 << (exponent_bits - 1)) - 1;
    let (lead, scale) =
        if exponent == 0 { (0, 1 - bias) } else { (1 << mantissa_bits, exponent as i32 - bias) };
    sign * (lead + mantissa) as f32 * power_of_two(scale - mantissa_bits as i32)
}

const fn bytes(exponent_bits: u32, mantissa_bits: u32, shift: u32, specials: Specials) -> ByteTable {
    let mut values = [0.0; 256];
    let mut byte = 0;
    while byte < 256 {
        let code = (byte as u32 >> shift) & ((2 << (exponent_bits + mantissa_bits)) - 1);
        values[byte] = value(code, exponent_bits, mantissa_bits, specials);
        byte += 1;
    }
    ByteTable { values, least_exponent: 2 - (1 << (exponent_bits - 1)) }
}

const fn pairs() -> NibbleTable {
    let mut table = [[0.0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] =
            [value(byte as u32 & 15, 2, 1, Specials::None), value(byte as u32 >> 4, 2, 1, Specials::None)];
        byte += 1;
    }
    table
}

const fn unsigned(signed: &ByteTable) -> ByteTable {
    let mut values = signed.values;
    let mut byte = 128;
    while byte < 256 {
        values[byte] = values[byte - 128];
        byte += 1;
    }
    ByteTable { values, least_exponent: signed.least_exponent }
}

/// The f16 in the low 16 bits. The scaling by 2^112 makes subnormals normal without a branch.
#[inline(always)]
pub(super) fn f16_to_f32(half: u32) -> f32 {
    let magnitude = (half & 0x7fff) << 13;
    let finite = (f32::from_bits(magnitude) * power_of_two(112)).to_bits();
    let bits = if half & 0x7c00 == 0x7c00 { magnitude | 0x7f80_0000 } else { finite };
    f32::from_bits(bits | (half & 0x8000) << 16)
}

/// Rounds to nearest even; overflow gives infinity, NaN the canonical 0x7fff.
#[inline(always)]
pub(super) fn f32_to_f16(value: f32) -> u32 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let half = if magnitude > 0x7f80_0000 {
        return 0x7fff;
    } else if magnitude >= power_of_two(16).to_bits() {
        0x7c00
    } else if magnitude < power_of_two(-14).to_bits() {
        // The unit in the last place of 0.5 is the smallest f16, so the addition rounds.
        (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits()
    } else {
        let rebiased = magnitude - (112 << 23);
        (rebiased + 0xfff + (rebiased >> 13 & 1)) >> 13
    };
    half | (bits >> 16 & 0x8000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_codes() {
        let check = |table: &ByteTable, code: usize, expected: f32| {
            assert_eq!(table.values[code], expected, "{code:#x}")
        };
        check(&E4M3, 0x7e, 448.0);
        check(&E4M3, 0x81, -power_of_two(-9));
        check(&E5M2, 0x7b, 57344.0);
        check(&E5M2, 0xfc, f32::NEG_INFINITY);
        check(&E2M3, 0x1f, 7.5);
        check(&E3M2, 0x3f, -28.0);
        check(&E2M1_PADDED, 0x0b << 2, -1.5);
        check(&UE4M3, 0xb8, 1.0);
        assert!(E4M3.values[0x7f].is_nan() && E4M3.values[0xff].is_nan() && E5M2.values[0x7d].is_nan());
        assert_eq!(
            [&E4M3, &E5M2, &E2M3, &E3M2, &E2M1].map(|table| table.least_exponent),
            [-6, -14, 0, -2, 0]
        );
        assert_eq!(E2M1_PAIRS[0xf1], [0.5, -6.0]);
    }

    #[test]
    fn f16_survives_the_round_trip() {
        for half in 0..=0xffffu32 {
            let value = f16_to_f32(half);
            if half & 0x7fff > 0x7c00 {
                assert!(value.is_nan());
            } else {
                assert_eq!(f32_to_f16(value), half);
            }
        }
    }

    #[test]
    fn f16_rounds_to_nearest_even() {
        for half in 0..0x7bffu32 {
            // Both neighbours are exact in f64, and so is their midpoint in f32.
            let (low, high) = (f16_to_f32(half), f16_to_f32(half + 1));
            let middle = ((low as f64 + high as f64) / 2.0) as f32;
            assert_eq!(f32_to_f16(middle), half + (half & 1), "{half:#x}");
            assert_eq!(f32_to_f16(middle.next_up()), half + 1, "{half:#x}");
            assert_eq!(f32_to_f16(-middle.next_down()), half | 0x8000, "{half:#x}");
        }
        assert_eq!(f32_to_f16(65519.9), 0x7bff);
        assert_eq!(f32_to_f16(65520.0), 0x7c00);
        assert_eq!(f32_to_f16(f32::NAN), 0x7fff);
    }
}
