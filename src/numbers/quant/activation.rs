//! Rows of activations in 4-bit floats: codes with a scale per block, as tensor cores of Blackwell multiply them.
//!
//! NVFP4 as the engines that serve calibrated checkpoints compute it (the rule "engine" of `tests/golden/quant/README.md`, equal to vLLM's
//! `ref_nvfp4_quant`), with reciprocals that are rounded correctly. MXFP4 by the rule "even" of Quark and compressed-tensors.
//! Unlike both, a block with a value that is not finite is NaN: a model that breaks is not to look as if it did not.

use super::fp4::{E2M1_MAX, decode_e2m1, encode_e2m1, pack_nibbles};
use super::fp8::{decode_e4m3, decode_e8m0, encode_e4m3, encode_e8m0_even};
use super::mxfp4::{MXFP4_GROUP, encode_mxfp4};
use super::nvfp4::NVFP4_BLOCK;

/// `input_scale` where activations were not measured: block scales of activations up to 2688 are in range, and normal down to 0.094.
pub const UNMEASURED_INPUT_SCALE: f32 = 1.0;

/// Terms of a row at most.
pub const MAX_TERMS: u8 = 3;
/// The E4M3 and the E8M0 code of a block that is not finite.
const NAN: u8 = 0x7f;
const NAN_E8M0: u8 = 0xff;

/// Format of the rows that meet a matrix of 4-bit floats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ActivationForm {
    /// NVFP4: E2M1 codes, an E4M3 scale per 16 inputs, and one scale of the tensor.
    Nvfp4 {
        /// The tensor's scale, `input_scale` of a checkpoint: the largest magnitude that does not saturate is 2688 times it.
        scale: f32,
        /// 1 to [`MAX_TERMS`]: with more than one the row is the sum of as many rows, each what the ones before leave, whose tensor scales
        /// are a sixth of the one before. Three are closer to the row than bf16 is.
        terms: u8,
    },
    /// MXFP4: E2M1 codes, and a power of two per 32 inputs.
    Mxfp4,
}

impl ActivationForm {
    /// Its name in settings and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nvfp4 { terms: 0 | 1, .. } => "nvfp4",
            Self::Nvfp4 { terms: 2, .. } => "nvfp4x2",
            Self::Nvfp4 { .. } => "nvfp4x3",
            Self::Mxfp4 => "mxfp4",
        }
    }

    /// Rows that are added up.
    pub fn num_terms(self) -> usize {
        match self {
            Self::Nvfp4 { terms, .. } => usize::from(terms.clamp(1, MAX_TERMS)),
            Self::Mxfp4 => 1,
        }
    }

    /// The scales of each term, in their order; MXFP4 has a tensor's scale of 1.
    pub fn term_scales(self) -> impl Iterator<Item = TermScales> {
        let (scale, terms) = match self {
            Self::Nvfp4 { scale, terms } => (scale, terms),
            Self::Mxfp4 => (1.0, 1),
        };
        TermScales::series(scale, terms).into_iter().flatten()
    }

    /// Inputs of a block. A row's values depend on those of their own block alone.
    pub fn block(self) -> usize {
        match self {
            Self::Nvfp4 { .. } => NVFP4_BLOCK,
            Self::Mxfp4 => MXFP4_GROUP,
        }
    }

    /// Scale of a block of `term` whose largest magnitude is `peak`, NaN where a value is not finite.
    #[inline(always)]
    pub fn block_scale(self, term: &TermScales, peak: f32) -> BlockScale {
        match self {
            Self::Nvfp4 { .. } => term.nvfp4_block(peak).1,
            Self::Mxfp4 => mxfp4_block(peak),
        }
    }

    /// Rounds a row, or a part of one from a block's first input on, to what its codes stand for.
    #[inline(always)]
    pub fn round(self, row: &mut [f32]) {
        match self {
            Self::Nvfp4 { scale, terms } => {
                let terms = TermScales::series(scale, terms);
                row.chunks_mut(NVFP4_BLOCK).for_each(|block| round_nvfp4(&terms, block));
            }
            Self::Mxfp4 => row.chunks_mut(MXFP4_GROUP).for_each(round_mxfp4),
        }
    }

    /// Codes and scales of a row: for each term all codes, two to a byte, the even one low, then for each a scale per block. `codes` has
    /// `terms * row / 2` bytes, `scales` `terms * row / block`; the row is whole blocks.
    pub fn encode(self, row: &[f32], codes: &mut [u8], scales: &mut [u8]) {
        let Self::Nvfp4 { scale, terms } = self else {
            encode_mxfp4(row, 0, codes, scales);
            let blocks = row.chunks(MXFP4_GROUP).zip(scales);
            blocks.filter(|(block, _)| !are_finite(block)).for_each(|(_, byte)| *byte = NAN_E8M0);
            return;
        };
        let mut rest = row.to_vec();
        let (code_bytes, num_scales) = (row.len() / 2, row.len() / NVFP4_BLOCK);
        let terms = TermScales::series(scale, terms);
        for (at, term) in terms.iter().flatten().enumerate() {
            let codes = &mut codes[at * code_bytes..][..code_bytes];
            let scales = &mut scales[at * num_scales..][..num_scales];
            let blocks = rest.chunks_mut(NVFP4_BLOCK).zip(codes.chunks_mut(NVFP4_BLOCK / 2));
            for ((rest, packed), byte) in blocks.zip(scales) {
                let (code, block) = term.nvfp4_block(peak(rest));
                *byte = code;
                let codes: [u8; NVFP4_BLOCK] = std::array::from_fn(|i| encode_e2m1(rest[i] * block.inverse));
                pack_nibbles(&codes, packed);
                rest.iter_mut().zip(codes).for_each(|(rest, code)| *rest -= decode_e2m1(code) * block.unit);
            }
        }
    }
}

/// Scales of a term's tensor: those of every device are these, so that all of them round alike.
#[derive(Debug, Clone, Copy)]
pub struct TermScales {
    /// The tensor's scale.
    pub scale: f32,
    /// Its reciprocal.
    pub global: f32,
    /// The reciprocal of that, which need not be the scale.
    pub back: f32,
}

/// Scale of a block of a term.
#[derive(Debug, Clone, Copy)]
pub struct BlockScale {
    /// What a value is multiplied by to be a code.
    pub inverse: f32,
    /// What a code is multiplied by to be a value.
    pub unit: f32,
}

impl TermScales {
    fn series(scale: f32, terms: u8) -> [Option<Self>; MAX_TERMS as usize] {
        let mut own = scale;
        std::array::from_fn(|at| {
            let term = (at < usize::from(terms)).then(|| {
                let global = 1.0 / own;
                Self { scale: own, global, back: 1.0 / global }
            });
            own /= E2M1_MAX;
            term
        })
    }

    /// The E4M3 code of a block's scale, and the scale.
    #[inline(always)]
    fn nvfp4_block(&self, peak: f32) -> (u8, BlockScale) {
        let byte = if peak.is_nan() { NAN } else { encode_e4m3(self.global * (peak * (1.0 / E2M1_MAX))) };
        let scale = decode_e4m3(byte);
        let inverse = if byte == 0 { 0.0 } else { 1.0 / (scale * self.back) };
        (byte, BlockScale { inverse, unit: scale * self.scale })
    }
}

/// The largest magnitude of a block, NaN where a value is not finite.
#[inline(always)]
fn peak(values: &[f32]) -> f32 {
    let peak = values.iter().fold(0.0f32, |peak, x| peak.max(x.abs()));
    if are_finite(values) { peak } else { f32::NAN }
}

/// Whether every value is finite; times 0 everything else is NaN.
#[inline(always)]
fn are_finite(values: &[f32]) -> bool {
    values.iter().fold(0.0, |sum, x| sum + x * 0.0) == 0.0
}

#[inline(always)]
fn round_nvfp4(terms: &[Option<TermScales>; MAX_TERMS as usize], block: &mut [f32]) {
    let (mut rest, mut sum) = ([0.0; NVFP4_BLOCK], [0.0; NVFP4_BLOCK]);
    rest[..block.len()].copy_from_slice(block);
    for term in terms.iter().flatten() {
        let (_, BlockScale { inverse, unit }) = term.nvfp4_block(peak(&rest));
        for (rest, sum) in rest.iter_mut().zip(&mut sum) {
            let value = rounded(*rest * inverse) * unit;
            *sum += value;
            *rest -= value;
        }
    }
    block.copy_from_slice(&sum[..block.len()]);
}

/// The value of the E2M1 code that is nearest.
#[inline(always)]
fn rounded(value: f32) -> f32 {
    super::fp4::round_e2m1(value.abs()).copysign(value)
}

#[inline(always)]
fn round_mxfp4(block: &mut [f32]) {
    let BlockScale { inverse, unit } = mxfp4_block(peak(block));
    block.iter_mut().for_each(|value| *value = rounded(*value * inverse) * unit);
}

#[inline(always)]
fn mxfp4_block(peak: f32) -> BlockScale {
    let unit = decode_e8m0(if peak.is_nan() { NAN_E8M0 } else { encode_e8m0_even(peak) });
    BlockScale { inverse: 1.0 / unit, unit }
}

#[cfg(test)]
mod tests {
    use super::super::nvfp4::NVFP4_RANGE;
    use super::*;

    fn error(form: ActivationForm, row: &[f32]) -> f64 {
        let mut rounded = row.to_vec();
        form.round(&mut rounded);
        super::super::distortion::Distortion::of(row, &rounded).relative()
    }

    /// Errors of normal rows: facts of the format, by which a mistake in a term would be seen.
    #[test]
    fn terms_are_closer_one_by_one() {
        let mut rng = fastrand::Rng::with_seed(3);
        let row: Vec<f32> = (0..4096).map(|_| (0..12).map(|_| rng.f32() - 0.5).sum()).collect();
        let scale = 8.0 / NVFP4_RANGE;
        let errors = [1, 2, 3].map(|terms| error(ActivationForm::Nvfp4 { scale, terms }, &row));
        assert!((0.08..0.11).contains(&errors[0]), "{errors:?}");
        assert!((0.007..0.011).contains(&errors[1]), "{errors:?}");
        assert!((0.0005..0.0011).contains(&errors[2]), "{errors:?}");
        assert!((0.10..0.13).contains(&error(ActivationForm::Mxfp4, &row)));
    }

    #[test]
    fn codes_are_what_rows_are_rounded_to() {
        let mut rng = fastrand::Rng::with_seed(4);
        let row: Vec<f32> = (0..64).map(|_| 3.0 * (rng.f32() - 0.5)).collect();
        let scale = 1.5 / NVFP4_RANGE;
        for terms in 1..=MAX_TERMS {
            let form = ActivationForm::Nvfp4 { scale, terms };
            let mut codes = vec![0; usize::from(terms) * 32];
            let mut scales = vec![0; usize::from(terms) * 4];
            form.encode(&row, &mut codes, &mut scales);
            let mut expected = row.clone();
            form.round(&mut expected);
            for (i, expected) in expected.iter().enumerate() {
                let mut sum = 0.0;
                let mut own = scale;
                for term in 0..usize::from(terms) {
                    let code = codes[term * 32 + i / 2] >> (4 * (i % 2)) & 15;
                    sum += decode_e2m1(code) * (decode_e4m3(scales[term * 4 + i / 16]) * own);
                    own /= 6.0;
                }
                assert_eq!(sum, *expected, "{terms} terms, input {i}");
            }
        }
    }

    #[test]
    fn what_is_not_finite_is_not_hidden_and_stays_in_its_block() {
        for form in [ActivationForm::Nvfp4 { scale: 0.01, terms: 3 }, ActivationForm::Mxfp4] {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut row = vec![1.0; 2 * form.block()];
                row[3] = bad;
                form.round(&mut row);
                let (first, second) = row.split_at(form.block());
                assert!(first.iter().all(|x| x.is_nan()) && second.iter().all(|x| x.is_finite()), "{form:?}");
            }
            let mut zeros = vec![-0.0; form.block()];
            form.round(&mut zeros);
            assert!(zeros.iter().all(|x| *x == 0.0));
        }
    }
}
