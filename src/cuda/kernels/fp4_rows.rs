//! Twin of `kernels/fp4_rows.cu`: rows in 4-bit floats, in front of the first product of experts.

use bytemuck::{Pod, Zeroable};

use super::fp4::{ARCHS, LaunchForm, RowTerms, Scales};
use super::plain;
use super::tiled::Rows;
use crate::weights::{self, STAGE};
use crate::{Driver, Kernel, LaunchShape, Stream};
use perigee_numbers::quant::ActivationForm;
use perigee_ops::OpError;

/// The declaration.
pub const KERNEL: Kernel = Kernel { archs: ARCHS, ..plain!("fp4_rows", &NAMES, 64) };

const NAMES: [&str; 4] = ["fp4_rows_nvfp4", "fp4_rows_nvfp4x2", "fp4_rows_nvfp4x3", "fp4_rows_mxfp4"];
const THREADS: usize = 128;

/// `RowsParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Params {
    x: u64,
    y: u64,
    x_stride: i64,
    y_stride: i64,
    columns: i32,
    stages: i32,
    terms: RowTerms,
    scales: Scales,
    padding: i32,
}

/// Bytes of a row of so many values in a form.
pub const fn row_bytes(columns: usize, terms: usize) -> usize {
    weights::row_bytes(columns, terms)
}

/// Enqueues `count` rows of `columns` f32 in a form of 4-bit floats, and returns where they are: `to` has room for as many of
/// [`row_bytes`].
pub fn launch<D: Driver>(
    stream: &mut Stream<D>,
    form: LaunchForm,
    count: usize,
    columns: usize,
    x: Rows,
    to: u64,
) -> Result<Rows, OpError> {
    let (terms, form) = (RowTerms::of(&form), form.form);
    let stride = row_bytes(columns, form.num_terms());
    let stages = columns.div_ceil(STAGE);
    let params = Params {
        x: x.address,
        y: to,
        x_stride: x.stride as i64,
        y_stride: stride as i64,
        columns: columns as i32,
        stages: stages as i32,
        terms,
        scales: Scales::of(form),
        padding: 0,
    };
    let blocks = stages * STAGE / form.block();
    let grid = [blocks.div_ceil(THREADS) as u32, count as u32, 1];
    let name = match form {
        ActivationForm::Nvfp4 { .. } => NAMES[form.num_terms() - 1],
        ActivationForm::Mxfp4 => NAMES[3],
    };
    stream.launch(name, LaunchShape { grid, threads: THREADS as u32, shared_bytes: 0 }, &params)?;
    Ok(Rows { address: to, stride })
}
