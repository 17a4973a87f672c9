//! Random weights in every stored format.

use perigee_numbers::quant::{PackedFormat, PackedMatrix, StoredMatrix, TensorScale};
use perigee_numbers::tensor::{Dtype, TensorView};

/// A format of a checkpoint's linear.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Stored {
    F32,
    F16,
    Bf16,
    Packed(PackedFormat, Dtype, TensorScale),
}

/// Every format, dtype of scales and kind of tensor scale.
pub(crate) const ALL: [Stored; 13] = [
    Stored::F32,
    Stored::F16,
    Stored::Bf16,
    Stored::Packed(PackedFormat::Nvfp4, Dtype::F8_E4M3, TensorScale::Multiply(0.037)),
    Stored::Packed(PackedFormat::Nvfp4, Dtype::F8_E4M3, TensorScale::Divide(23.7)),
    Stored::Packed(PackedFormat::Mxfp4, Dtype::U8, TensorScale::None),
    Stored::Packed(PackedFormat::Mxfp4, Dtype::F8_E8M0, TensorScale::None),
    Stored::Packed(PackedFormat::Int4Group32, Dtype::BF16, TensorScale::None),
    Stored::Packed(PackedFormat::Fp8Block, Dtype::F32, TensorScale::None),
    Stored::Packed(PackedFormat::Fp8Block, Dtype::BF16, TensorScale::None),
    Stored::Packed(PackedFormat::Fp8Row, Dtype::F32, TensorScale::None),
    Stored::Packed(PackedFormat::Fp8Row, Dtype::BF16, TensorScale::None),
    Stored::Packed(PackedFormat::Fp8Tensor, Dtype::F32, TensorScale::None),
];

/// A matrix `[out, in]` that owns its bytes.
pub(crate) struct Weight {
    stored: Stored,
    shape: [usize; 2],
    codes: Vec<u8>,
    scales: Vec<u8>,
    scale_shape: Vec<usize>,
}

impl Weight {
    /// Values of about 1 / sqrt(in), as in a network.
    pub(crate) fn random(rng: &mut fastrand::Rng, stored: Stored, shape: [usize; 2]) -> Self {
        let count = shape[0] * shape[1];
        let spread = 1.0 / (shape[1] as f32).sqrt();
        let mut value = || (rng.f32() * 2.0 - 1.0) * spread;
        let (codes, scales, scale_shape) = match stored {
            Stored::F32 => ((0..count).flat_map(|_| value().to_le_bytes()).collect(), vec![], vec![]),
            Stored::F16 => (
                (0..count).flat_map(|_| half::f16::from_f32(value()).to_le_bytes()).collect(),
                vec![],
                vec![],
            ),
            Stored::Bf16 => (
                (0..count).flat_map(|_| half::bf16::from_f32(value()).to_le_bytes()).collect(),
                vec![],
                vec![],
            ),
            Stored::Packed(format, dtype, _) => {
                let bytes = count * format.code_bits() / 8;
                // 0x7f and 0xff of E4M3 are NaN.
                let codes = (0..bytes).map(|_| match format.code_bits() {
                    4 => rng.u8(..),
                    _ => rng.u8(..0x7f) & 0xbf | rng.u8(..) & 0x80,
                });
                let codes: Vec<u8> = codes.collect();
                let scale_shape = format.scale_shape(shape);
                let num_scales: usize = scale_shape.iter().product();
                let largest = match format {
                    PackedFormat::Int4Group32 => 8.0,
                    PackedFormat::Nvfp4 | PackedFormat::Mxfp4 => 6.0,
                    _ => 2.0,
                };
                let scale = |rng: &mut fastrand::Rng| (0.5 + rng.f32()) * spread / largest;
                let scales = (0..num_scales).flat_map(|_| match dtype {
                    // 0.25 to 3.5.
                    Dtype::F8_E4M3 => vec![rng.u8(0x28..0x46)],
                    Dtype::U8 | Dtype::F8_E8M0 => vec![rng.u8(120..126)],
                    Dtype::BF16 => half::bf16::from_f32(scale(rng)).to_le_bytes().to_vec(),
                    _ => scale(rng).to_le_bytes().to_vec(),
                });
                (codes, scales.collect(), scale_shape)
            }
        };
        Self { stored, shape, codes, scales, scale_shape }
    }

    /// Sets bytes of the codes, or of the scales.
    pub(crate) fn set(&mut self, scales: bool, at: usize, byte: u8) {
        let bytes = if scales { &mut self.scales } else { &mut self.codes };
        bytes[at] = byte;
    }

    /// The matrix as a checkpoint gives it.
    pub(crate) fn view(&self) -> StoredMatrix<'_> {
        let plain = |dtype| TensorView { dtype, shape: &self.shape, bytes: &self.codes }.into();
        match self.stored {
            Stored::F32 => plain(Dtype::F32),
            Stored::F16 => plain(Dtype::F16),
            Stored::Bf16 => plain(Dtype::BF16),
            Stored::Packed(format, dtype, tensor) => {
                let scales = TensorView { dtype, shape: &self.scale_shape, bytes: &self.scales };
                PackedMatrix::new(format, self.shape, &self.codes, scales, tensor).unwrap().into()
            }
        }
    }
}
