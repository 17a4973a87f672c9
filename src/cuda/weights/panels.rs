//! Weights in 4-bit floats as block-scaled tensor cores read them (`kernels/include/fp4_panel.cuh`), and rows that meet them
//! (`kernels/include/fp4_rows.cuh`).

use bytemuck::{Pod, Zeroable};

use perigee_numbers::quant::{ActivationForm, PackedFormat, fp4, fp8};

/// Outputs of a panel.
pub(crate) const PANEL_ROWS: usize = 128;
/// Inputs of a stage.
pub(crate) const STAGE: usize = 256;
/// Bytes of a row in a stage: codes, and 16 bytes of scales.
const COLUMN_BYTES: usize = STAGE / 2 + 16;
/// Most terms of a row.
pub(crate) const MAX_TERMS: usize = perigee_numbers::quant::MAX_TERMS as usize;

/// Format of weights in panels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PanelFormat {
    /// Scales in E4M3 per 16 inputs, and one of the tensor.
    Nvfp4,
    /// Scales in E8M0 per 32 inputs.
    Mxfp4,
}

impl PanelFormat {
    /// That of weights which rows in this form meet.
    pub fn of(form: ActivationForm) -> Self {
        match form {
            ActivationForm::Nvfp4 { .. } => Self::Nvfp4,
            ActivationForm::Mxfp4 => Self::Mxfp4,
        }
    }

    /// That of stored weights.
    pub fn of_packed(format: PackedFormat) -> Option<Self> {
        match format {
            PackedFormat::Nvfp4 => Some(Self::Nvfp4),
            PackedFormat::Mxfp4 => Some(Self::Mxfp4),
            _ => None,
        }
    }

    /// Bytes of codes and scales of a panel's stage.
    pub(crate) const fn stage_bytes(self) -> usize {
        let scales = match self {
            Self::Nvfp4 => STAGE / 16,
            Self::Mxfp4 => STAGE / 32,
        };
        PANEL_ROWS * (STAGE / 2 + scales)
    }
}

/// Bytes of a row of so many values in `terms` terms.
pub(crate) const fn row_bytes(columns: usize, terms: usize) -> usize {
    terms * columns.div_ceil(STAGE) * COLUMN_BYTES
}

/// The values of a row of so many values in 4-bit floats.
pub(crate) fn decode_row(form: ActivationForm, row: &[u8], columns: usize) -> Vec<f32> {
    let mut values = vec![0.0f32; columns];
    let column_bytes = columns.div_ceil(STAGE) * COLUMN_BYTES;
    for (term, bytes) in form.term_scales().zip(row.chunks_exact(column_bytes)) {
        for (stage, values) in bytes.chunks_exact(COLUMN_BYTES).zip(values.chunks_mut(STAGE)) {
            let (codes, scales) = stage.split_at(STAGE / 2);
            for (k, value) in values.iter_mut().enumerate() {
                let scale = scales[k / form.block()];
                let scale = match form {
                    ActivationForm::Nvfp4 { .. } => fp8::decode_e4m3(scale),
                    ActivationForm::Mxfp4 => fp8::decode_e8m0(scale),
                };
                *value += fp4::decode_e2m1(codes[k / 2] >> (4 * (k % 2)) & 15) * scale * term.scale;
            }
        }
    }
    values
}

/// `PanelWeight` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct PanelWeight {
    /// `[E, panels, stages]` runs of bytes.
    pub panels: u64,
    /// `[E, 2]` f32: scale of the tensor, of gate and up or twice the same.
    pub factors: u64,
    /// Bytes of an expert.
    pub expert_bytes: i64,
    /// Panels of a matrix.
    pub num_panels: i32,
    /// Stages of K.
    pub stages: i32,
    /// N of a matrix.
    pub rows: i32,
    /// Zero.
    pub padding: i32,
}

/// Matrices `[N, K]` in panels, one or one of each expert; or pairs of them, whose rows take turns by eight.
#[derive(Debug, Clone, Copy)]
pub struct Panels {
    /// Format of all of them.
    pub format: PanelFormat,
    /// N of a matrix.
    pub out_features: usize,
    /// K.
    pub in_features: usize,
    /// Number of matrices or pairs.
    pub count: usize,
    /// Address and layout for the kernels.
    pub weight: PanelWeight,
}
