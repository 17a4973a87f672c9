//! Scale factors of block-scaled products.

use super::decode::{UE4M3, power_of_two};
use super::product::Row;
use crate::Lanes;

/// Format of a scale factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleFormat {
    /// A power of two, 2^(code - 127); 0xff is NaN.
    Ue8m0,
    /// e4m3 without a sign.
    Ue4m3,
}

/// Scale operands of a block-scaled `mma.sync`: the registers and their `{byte-id, thread-id}`
/// selectors.
#[derive(Clone, Copy, Debug)]
pub struct BlockScales<'a> {
    /// Scale register of A.
    pub a: &'a Lanes,
    /// First byte of A's register that is used: 0 to 3 (1X), 0 or 2 (2X), 0 (4X).
    pub byte_id_a: usize,
    /// Lanes of a quad that supply A's factors: 0 for the lower pair, 1 for the upper.
    pub thread_id_a: usize,
    /// Scale register of B.
    pub b: &'a Lanes,
    /// First byte of B's register that is used.
    pub byte_id_b: usize,
    /// Lane of a quad that supplies B's factors, 0 to 3.
    pub thread_id_b: usize,
}

impl BlockScales<'_> {
    /// Codes of A's factors of k block `block` by row. Row g comes from an even lane, row g + 8 from
    /// the odd one.
    #[inline(always)]
    pub(super) fn a_codes(&self, block: usize) -> [u8; 16] {
        let mut codes = [0; 16];
        for (row, code) in codes.iter_mut().enumerate() {
            let lane = 4 * (row % 8) + 2 * self.thread_id_a + row / 8;
            *code = self.a[lane].to_le_bytes()[self.byte_id_a + block];
        }
        codes
    }

    /// Codes of B's factors of k block `block` by column.
    #[inline(always)]
    pub(super) fn b_codes(&self, block: usize) -> [u8; 8] {
        let mut codes = [0; 8];
        for (column, code) in codes.iter_mut().enumerate() {
            *code = self.b[4 * column + self.thread_id_b].to_le_bytes()[self.byte_id_b + block];
        }
        codes
    }
}

impl ScaleFormat {
    /// Parses `ue8m0` or `ue4m3`.
    pub(super) fn parse(modifier: &str) -> Option<Self> {
        match modifier {
            "ue8m0" => Some(Self::Ue8m0),
            "ue4m3" => Some(Self::Ue4m3),
            _ => None,
        }
    }

    /// `sums += a_factor b_factor block`, where `block` is the unscaled product over one k block;
    /// `a_codes` holds one code per row, `b_codes` one per column.
    #[inline(always)]
    pub(super) fn add_scaled<const M: usize>(
        self,
        block: &[Row<f32>; M],
        a_codes: &[u8; M],
        b_codes: &[u8; 8],
        sums: &mut [Row<f32>; M],
    ) {
        match self {
            Self::Ue4m3 => {
                let b_factors = b_codes.map(|code| UE4M3[code as usize]);
                for m in 0..M {
                    let a_factor = UE4M3[a_codes[m] as usize];
                    for n in 0..8 {
                        sums[m][n] = block[m][n].mul_add(a_factor * b_factors[n], sums[m][n]);
                    }
                }
            }
            Self::Ue8m0 => {
                for m in 0..M {
                    for n in 0..8 {
                        let (first, second) = powers(a_codes[m], b_codes[n]);
                        sums[m][n] = (block[m][n] * first).mul_add(second, sums[m][n]);
                    }
                }
            }
        }
    }
}

/// Two powers of two whose product is that of the factors, which may leave the range of f32. The
/// multiplication by the first is exact, or the result vanishes or overflows anyway.
#[inline(always)]
fn powers(a: u8, b: u8) -> (f32, f32) {
    let exponent = a as i32 + b as i32 - 254;
    let second = exponent.clamp(-126, 127);
    let nan = a == 0xff || b == 0xff;
    (power_of_two(exponent - second), if nan { f32::NAN } else { power_of_two(second) })
}
