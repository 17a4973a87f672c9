//! `exp` for many values at once.
//!
//! The standard library's `expf` is a call per value. This version is plain arithmetic without
//! branches: the compiler vectorises a loop over it, and it gives the same bits on every machine
//! (no fused multiply-add). Cephes `expf`: the exponent is split off as a power of two, and a
//! polynomial of degree 6 approximates the rest.

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts; the first has few bits, so that `x - n ln 2` loses no precision.
const LN2_HI: f32 = 355.0 / 512.0;
const LN2_LO: f32 = -2.121_944_4e-4;
/// Adding and subtracting the constant rounds to the nearest integer.
const ROUND: f32 = 12_582_912.0;
/// Below this the result is 0; a little above the smallest normal number.
const LOWEST: f32 = -87.0;

/// `e^x` for `x <= 0`, relative error below 2e-7; 0 below -87, also for -inf. NaN gives 0.
#[inline(always)]
pub(super) fn exp_nonpositive(x: f32) -> f32 {
    let in_range = x >= LOWEST;
    let x = if in_range { x } else { LOWEST };
    let n = (x * LOG2_E + ROUND) - ROUND;
    let r = (x - n * LN2_HI) - n * LN2_LO;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_2e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_6e-1;
    p = p * r + 0.5;
    let y = p * (r * r) + r + 1.0;
    // n is an integer in -126..=0: its exponent bits are made by shifting.
    let scale = f32::from_bits((((n + ROUND).to_bits() & 0xff).wrapping_add(127) & 0xff) << 23);
    if in_range { y * scale } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_to_the_library() {
        let mut worst: f64 = 0.0;
        for step in 0..=870_000 {
            let x = -(step as f32) * 1e-4;
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp_nonpositive(x)) - exact).abs() / exact);
        }
        assert!(worst < 2e-7, "relative error {worst}");
    }

    #[test]
    fn edges() {
        assert_eq!(exp_nonpositive(0.0), 1.0);
        assert_eq!(exp_nonpositive(-0.0), 1.0);
        assert_eq!(exp_nonpositive(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_nonpositive(f32::NAN), 0.0);
        assert_eq!(exp_nonpositive(-88.0), 0.0);
        assert_eq!(exp_nonpositive(f32::MIN), 0.0);
        assert!(exp_nonpositive(-87.0) > 0.0);
    }
}
