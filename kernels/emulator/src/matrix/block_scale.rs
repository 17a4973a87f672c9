//! Scale factors of block-scaled products.

use super::decode::UE4M3;
use super::rounding::exponent;
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

    /// Significand and exponent of a factor; NaN as significand.
    pub(super) fn parts(self, code: u8) -> (f64, i32) {
        match self {
            Self::Ue8m0 if code == 0xff => (f64::NAN, 0),
            Self::Ue8m0 => (1.0, i32::from(code) - 127),
            Self::Ue4m3 => {
                let value = UE4M3.values[code as usize];
                let exponent = exponent(value, UE4M3.least_exponent);
                match value.is_nan() {
                    true => (f64::NAN, 0),
                    false => (f64::from(value) / 2f64.powi(exponent), exponent),
                }
            }
        }
    }
}
