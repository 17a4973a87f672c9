//! The packed formats: one row each, which readers, checks, ranks, kernels, the tuner, the plan and the audit go by.
//!
//! A further format is a row here, its encoder where it is written, and its decoding in the kernels of a backend.

use super::fp4::E2M1;
use super::fp8::{decode_e4m3, decode_e8m0};
use crate::tensor::Dtype;

/// Rows and columns of a block of [`PackedFormat::Fp8Block`].
pub const FP8_BLOCK: usize = 128;

/// Format of the codes and scales of a matrix `[out, in]`. In every 4-bit format the even element
/// is in the low nibble and bytes are ordered along `in`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PackedFormat {
    /// E2M1 codes, E4M3 scales `[out, in / 16]`, a tensor scale.
    Nvfp4,
    /// E2M1 codes, E8M0 scales `[out, in / 32]` (U8 or F8_E8M0).
    Mxfp4,
    /// Offset-binary codes (stored nibble - 8), BF16, F16, F32 or E8M0 scales `[out, in / 32]`.
    Int4Group32,
    /// E4M3 codes, F32, BF16, F16 or E8M0 scales `[ceil(out / 128), ceil(in / 128)]`.
    Fp8Block,
    /// E4M3 codes, one such scale per row `[out]` or `[out, 1]`.
    Fp8Row,
    /// E4M3 codes, one such scale, `[]` or `[1]`.
    Fp8Tensor,
}

/// What a code says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codes {
    /// A nibble of sign, two bits of exponent and one of mantissa.
    E2m1,
    /// A nibble, 8 more than the integer.
    Offset8,
    /// A byte of sign, four bits of exponent and three of mantissa.
    E4m3,
}

/// A packed format.
#[derive(Debug, Clone, Copy)]
pub struct FormatRow {
    /// Name in reports, errors and options.
    pub name: &'static str,
    /// What its codes say.
    pub codes: Codes,
    /// Rows that share a scale; `None`: all of them.
    pub scale_rows: Option<usize>,
    /// Consecutive inputs that share a scale; `None`: the whole row.
    pub scale_columns: Option<usize>,
    /// Types that scales are stored in; the first is the one that is written here.
    pub scale_dtypes: &'static [Dtype],
    /// The type in which kernels read the scales; `None`: as stored.
    pub kernel_scales: Option<Dtype>,
    /// Whether a scale of the whole tensor goes with them.
    pub has_tensor_scale: bool,
    /// Whether a scale that is no number, over codes of zero alone, is an exporter's known fault (0 / 0) that means nothing.
    pub empty_scales_may_be_nan: bool,
    /// Relative error of a matrix in this format from which its weights are others: about twice what rounding costs one
    /// with heavy tails (section 7.1 of the formats: 0.19, 0.03).
    pub wrong: f64,
}

/// Scales of any float type, and powers of two.
const FLOATS: &[Dtype] = &[Dtype::F32, Dtype::BF16, Dtype::F16, Dtype::F8_E8M0];
const BF16_FIRST: &[Dtype] = &[Dtype::BF16, Dtype::F16, Dtype::F32, Dtype::F8_E8M0];

const NVFP4: FormatRow = FormatRow {
    name: "nvfp4",
    codes: Codes::E2m1,
    scale_rows: Some(1),
    scale_columns: Some(16),
    scale_dtypes: &[Dtype::F8_E4M3],
    kernel_scales: None,
    has_tensor_scale: true,
    empty_scales_may_be_nan: true,
    wrong: 0.3,
};
const MXFP4: FormatRow = FormatRow {
    name: "mxfp4",
    scale_columns: Some(32),
    scale_dtypes: &[Dtype::U8, Dtype::F8_E8M0],
    has_tensor_scale: false,
    // 0xff is no rounding result of an empty block.
    empty_scales_may_be_nan: false,
    ..NVFP4
};
const INT4: FormatRow = FormatRow {
    name: "int4-g32",
    codes: Codes::Offset8,
    scale_columns: Some(32),
    scale_dtypes: BF16_FIRST,
    kernel_scales: Some(Dtype::BF16),
    has_tensor_scale: false,
    ..NVFP4
};
const FP8_BLOCKS: FormatRow = FormatRow {
    name: "fp8-block",
    codes: Codes::E4m3,
    scale_rows: Some(FP8_BLOCK),
    scale_columns: Some(FP8_BLOCK),
    scale_dtypes: FLOATS,
    kernel_scales: Some(Dtype::F32),
    has_tensor_scale: false,
    empty_scales_may_be_nan: true,
    wrong: 0.06,
};
const FP8_ROWS: FormatRow =
    FormatRow { name: "fp8-row", scale_rows: Some(1), scale_columns: None, ..FP8_BLOCKS };
const FP8_TENSOR: FormatRow = FormatRow { name: "fp8", scale_rows: None, scale_columns: None, ..FP8_BLOCKS };

impl PackedFormat {
    /// The format's row.
    pub const fn row(self) -> &'static FormatRow {
        match self {
            Self::Nvfp4 => &NVFP4,
            Self::Mxfp4 => &MXFP4,
            Self::Int4Group32 => &INT4,
            Self::Fp8Block => &FP8_BLOCKS,
            Self::Fp8Row => &FP8_ROWS,
            Self::Fp8Tensor => &FP8_TENSOR,
        }
    }

    /// Name in reports, errors and options.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// Bits of one code.
    pub fn code_bits(self) -> usize {
        self.row().codes.bits()
    }

    /// Consecutive inputs that share a scale; `in` must be a multiple of it in the 4-bit formats. `None`: the whole row.
    pub fn group(self) -> Option<usize> {
        self.row().scale_columns
    }

    /// Shape of the scales of a matrix `[out, in]`.
    pub fn scale_shape(self, [out, in_features]: [usize; 2]) -> Vec<usize> {
        let row = self.row();
        let rows = row.scale_rows.map(|rows| out.div_ceil(rows));
        let columns = row.scale_columns.map(|columns| in_features.div_ceil(columns));
        rows.into_iter().chain(columns).collect()
    }

    pub(super) fn takes_scales_of(self, dtype: Dtype) -> bool {
        self.row().scale_dtypes.contains(&dtype)
    }
}

impl Codes {
    /// Bits of one code.
    pub fn bits(self) -> usize {
        match self {
            Self::E2m1 | Self::Offset8 => 4,
            Self::E4m3 => 8,
        }
    }

    /// The byte whose codes are all zero.
    pub fn zeros(self) -> u8 {
        match self {
            Self::E2m1 | Self::E4m3 => 0,
            Self::Offset8 => 0x88,
        }
    }

    /// Whether all codes of a byte are zero, of either sign.
    pub fn are_zero(self, byte: u8) -> bool {
        match self {
            Self::E2m1 => byte & 0x77 == 0,
            Self::Offset8 => byte == 0x88,
            Self::E4m3 => byte & 0x7f == 0,
        }
    }

    /// Whether a code of a byte is NaN.
    pub fn has_nan(self, byte: u8) -> bool {
        self == Self::E4m3 && byte & 0x7f == 0x7f
    }

    /// The value of each code.
    pub(super) fn values(self) -> &'static [f32] {
        match self {
            Self::E2m1 => &E2M1,
            Self::Offset8 => &OFFSET8,
            Self::E4m3 => &E4M3,
        }
    }
}

/// Value of each code of [`Codes::Offset8`].
const OFFSET8: [f32; 16] =
    [-8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];

/// Value of each code of [`Codes::E4m3`].
static E4M3: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = decode_e4m3(code as u8);
        code += 1;
    }
    table
};

/// Scale `index` of scales stored as `dtype`.
pub(super) fn decode_scale(dtype: Dtype, bytes: &[u8], index: usize) -> f32 {
    match dtype {
        Dtype::F8_E4M3 => decode_e4m3(bytes[index]),
        Dtype::U8 | Dtype::F8_E8M0 => decode_e8m0(bytes[index]),
        Dtype::BF16 => half::bf16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32(),
        Dtype::F16 => half::f16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32(),
        _ => f32::from_le_bytes(std::array::from_fn(|i| bytes[4 * index + i])),
    }
}
