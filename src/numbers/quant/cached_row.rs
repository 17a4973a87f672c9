//! A row of the latent KV cache in eight bits: the latent as E4M3 with its own power-of-two scale,
//! the rope key in bf16 or in the same format.
//!
//! The scale is the smallest power of two that keeps the row's largest value within E4M3. A power
//! of two changes only exponents: it loses no precision against an exact scale, and the decoded
//! value is exact in bf16, so attention adds no second rounding.
//!
//! Bytes of a row `[C + R]`: C codes; R codes, or R bf16 little-endian; the latent's scale as E8M0,
//! and the rope key's if the rope key is in codes; padding to 16 bytes, so that rows can be read 16 bytes at a time.

use super::fp8::encode_e4m3;

/// The two options of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CachedRowFormat {
    /// Whether every row has its own scales; otherwise all rows of a layer share a given one, and
    /// values beyond 448 times it saturate.
    pub row_scales: bool,
    /// Whether the rope key is in eight bits too.
    pub rope_codes: bool,
}

/// Scale of 1.
const ONE: u8 = 127;

/// Scale of a row with a value that is not finite: the whole row reads as NaN, so the fault stays
/// visible.
const NOT_FINITE: u8 = 0xff;

/// Bound of all other scales, as exponents around `ONE`; within it every code times the scale is a
/// normal bf16, or zero.
const LARGEST_EXPONENT: i32 = 100;

impl CachedRowFormat {
    /// Bytes of a row of `c` latent and `r` rope values.
    pub const fn bytes(self, c: usize, r: usize) -> usize {
        let (rope, scales) = if self.rope_codes { (r, 2) } else { (2 * r, 1) };
        (c + rope + scales).next_multiple_of(16)
    }

    /// Writes `values` `[c + r]` to `row` (`bytes(c, r)` long), under the scale `2^exponent` if
    /// rows have no scales of their own.
    pub fn encode(self, values: &[f32], c: usize, exponent: i32, row: &mut [u8]) {
        let r = values.len() - c;
        let (latent, rope) = values.split_at(c);
        let (codes, rest) = row.split_at_mut(c);
        let latent_scale = self.encode_part(latent, exponent, codes);
        if self.rope_codes {
            let (codes, scales) = rest.split_at_mut(r);
            let rope_scale = self.encode_part(rope, exponent, codes);
            scales[..2].copy_from_slice(&[latent_scale, rope_scale]);
        } else {
            let (halves, scales) = rest.split_at_mut(2 * r);
            for (to, x) in halves.chunks_exact_mut(2).zip(rope) {
                to.copy_from_slice(&half::bf16::from_f32(*x).to_le_bytes());
            }
            scales[0] = latent_scale;
        }
    }

    fn encode_part(self, values: &[f32], exponent: i32, codes: &mut [u8]) -> u8 {
        if !values.iter().all(|x| x.is_finite()) {
            return NOT_FINITE;
        }
        let exponent = match self.row_scales {
            true => scale_exponent(values),
            false => exponent.clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT),
        };
        let inverse = power_of_two(-exponent);
        for (code, x) in codes.iter_mut().zip(values) {
            *code = encode_e4m3(x * inverse);
        }
        (i32::from(ONE) + exponent) as u8
    }

    /// Decodes `row` to the bits of bf16, `out` `[c + r]`; exact.
    #[inline(always)]
    pub fn decode(self, row: &[u8], c: usize, out: &mut [u16]) {
        let r = out.len() - c;
        let (latent, rope) = out.split_at_mut(c);
        let (codes, rest) = row.split_at(c);
        if self.rope_codes {
            let (rope_codes, scales) = rest.split_at(r);
            decode_part(codes, scales[0], latent);
            decode_part(rope_codes, scales[1], rope);
        } else {
            let (halves, scales) = rest.split_at(2 * r);
            decode_part(codes, scales[0], latent);
            for (to, bytes) in rope.iter_mut().zip(halves.chunks_exact(2)) {
                *to = u16::from_le_bytes([bytes[0], bytes[1]]);
            }
        }
    }

    /// Replaces `values` by their encoded and decoded values.
    pub fn round(self, values: &mut [f32], c: usize, exponent: i32) {
        let mut row = vec![0; self.bytes(c, values.len() - c)];
        let mut bits = vec![0; values.len()];
        self.encode(values, c, exponent, &mut row);
        self.decode(&row, c, &mut bits);
        for (x, bits) in values.iter_mut().zip(bits) {
            *x = half::bf16::from_bits(bits).to_f32();
        }
    }
}

/// Two multiplications and an or per value, in a form that the compiler vectorises.
#[inline(always)]
fn decode_part(codes: &[u8], scale: u8, out: &mut [u16]) {
    if scale == NOT_FINITE {
        return out.fill(half::bf16::NAN.to_bits());
    }
    // Exponent and mantissa of a code, taken as those of an f32, are 2^-120 too small. Two exact
    // steps, because one power of two cannot represent the factor for a large scale.
    let (first, second) = (power_of_two(100), power_of_two(i32::from(scale) - i32::from(ONE) + 20));
    for (to, code) in out.iter_mut().zip(codes) {
        let code = u32::from(*code);
        let magnitude = f32::from_bits((code & 0x7f) << 20) * first * second;
        *to = ((magnitude.to_bits() | (code & 0x80) << 24) >> 16) as u16;
    }
}

/// `2^n` for `n` in -126..=127; infinity above, which no caller passes.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((127 + n).clamp(1, 255) as u32) << 23)
}

/// The smallest `n` with `scale <= 2^n`, the cache's form of a stored scale. It covers the same
/// range at the same precision, since a power of two changes E4M3's exponents only. `None` for a
/// scale that is not finite and above 0.
pub fn covering_exponent(scale: f32) -> Option<i32> {
    if !scale.is_finite() || scale <= 0.0 {
        return None;
    }
    let scale = scale.max(f32::MIN_POSITIVE);
    let bits = scale.to_bits();
    Some((bits >> 23) as i32 - 127 + i32::from(bits & 0x007f_ffff != 0))
}

/// The smallest `n` with every value within `448 * 2^n`.
fn scale_exponent(values: &[f32]) -> i32 {
    let peak = values.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    if peak == 0.0 {
        return 0;
    }
    // 448 is 1.75 * 2^8: the exponent is the peak's less 8, or one more if the peak's mantissa is
    // above 1.75.
    let bits = peak.to_bits();
    let above = (bits & 0x007f_ffff) > 0x0060_0000;
    let exponent = (bits >> 23) as i32 - 127 - 8 + i32::from(above);
    exponent.clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMATS: [CachedRowFormat; 4] = [
        CachedRowFormat { row_scales: true, rope_codes: false },
        CachedRowFormat { row_scales: true, rope_codes: true },
        CachedRowFormat { row_scales: false, rope_codes: false },
        CachedRowFormat { row_scales: false, rope_codes: true },
    ];

    #[test]
    fn rows_come_back_within_half_a_step() {
        let mut rng = fastrand::Rng::with_seed(5);
        for format in FORMATS {
            for (c, r, size) in [(512, 64, 1.0f32), (45, 6, 1e-3), (7, 0, 300.0), (1, 2, 40.0)] {
                let values: Vec<f32> = (0..c + r).map(|_| (rng.f32() * 2.0 - 1.0) * size).collect();
                let mut read = values.clone();
                format.round(&mut read, c, 0);
                let peak = values.iter().fold(0.0f32, |m, x| m.max(x.abs()));
                for (i, (x, y)) in values.iter().zip(&read).enumerate() {
                    // The error of a normal code is at most 1/16 of its value (half of 2^-3), that
                    // of a subnormal half of 2^-9 of the scale.
                    let scale = if format.row_scales { peak / 224.0 } else { 1.0 };
                    let allowed = if i < c || format.rope_codes {
                        x.abs() / 16.0 + scale / 1024.0
                    } else {
                        x.abs() / 256.0
                    };
                    assert!((x - y).abs() <= allowed, "{format:?} {i}: {x} became {y}");
                }
            }
        }
    }

    #[test]
    fn what_was_read_is_stored_again_without_loss() {
        let mut rng = fastrand::Rng::with_seed(6);
        for format in FORMATS {
            let mut once: Vec<f32> = (0..576).map(|_| rng.f32() - 0.5).collect();
            format.round(&mut once, 512, 0);
            let mut twice = once.clone();
            format.round(&mut twice, 512, 0);
            assert_eq!(once, twice, "{format:?}");
        }
    }

    #[test]
    fn stored_scales_are_covered_by_powers_of_two() {
        for (scale, expected) in [
            (1.0, Some(0)),
            (1.001, Some(1)),
            (0.999, Some(0)),
            (0.001_691_5, Some(-9)),
            (0.0, None),
            (-1.0, None),
            (f32::NAN, None),
            (f32::INFINITY, None),
            (1e-45, Some(-126)),
        ] {
            assert_eq!(covering_exponent(scale), expected, "{scale}");
        }
    }

    #[test]
    fn a_given_scale_moves_the_range_and_not_the_precision() {
        for format in FORMATS.into_iter().filter(|format| !format.row_scales) {
            for (exponent, limit) in
                [(-9, 0.875f32), (0, 448.0), (4, 7168.0), (-500, 448.0 * 2f32.powi(-100))]
            {
                let mut values = [limit, limit * 4.0, limit / 3.0, limit / 4.0];
                format.round(&mut values, 3, exponent);
                assert_eq!(values[..2], [limit; 2], "{format:?} {exponent}");
                assert!((values[2] / (limit / 3.0) - 1.0).abs() < 1.0 / 16.0);
            }
        }
        let own = FORMATS[0];
        let (mut one, mut other) = ([3.0, -70.0, 0.1], [3.0, -70.0, 0.1]);
        own.round(&mut one, 3, 0);
        own.round(&mut other, 3, 7);
        assert_eq!(one, other, "rows with scales of their own take none");
    }

    #[test]
    fn zeros_extremes_and_faults() {
        for format in FORMATS {
            let mut values = [0.0, -0.0, 0.0, 0.0];
            format.round(&mut values, 2, 0);
            assert_eq!(values, [0.0; 4]);
            for bad in [f32::NAN, f32::INFINITY] {
                let mut values = [1.0, bad, 1.0, 1.0];
                format.round(&mut values, 2, 0);
                assert!(values[..2].iter().all(|x| x.is_nan()), "{format:?}");
                assert_eq!(values[2..], [1.0, 1.0]);
            }
            for peak in [f32::MIN_POSITIVE, 1e-30, 1e30, f32::MAX] {
                let mut values = [peak, 0.0, 0.0, 0.0];
                format.round(&mut values, 2, 0);
                assert!(values[0].is_finite() && values[1] == 0.0, "{format:?} {peak}: {values:?}");
            }
        }
    }
}
