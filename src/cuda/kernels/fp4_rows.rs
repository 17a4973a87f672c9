//! Twin of `kernels/fp4_rows.cu`: rows in 4-bit floats, in front of the first product of experts.

use bytemuck::{Pod, Zeroable};

use super::fp4::{ARCHS, LaunchForm, RowTerms, Scales};
use super::plain;
use super::tiled::Rows;
use crate::weights::{self, STAGE};
use crate::{Driver, Kernel, LaunchShape, Stream};
use perigee_numbers::quant::ActivationForm;
use perigee_ops::{OpError, expect};

/// The declaration.
pub const KERNEL: Kernel = Kernel { archs: ARCHS, ..plain!("fp4_rows", &NAMES, 64) };

const NAMES: [&str; 4] = ["fp4_rows_nvfp4", "fp4_rows_nvfp4x2", "fp4_rows_nvfp4x3", "fp4_rows_mxfp4"];
const THREADS: usize = 128;

/// `RowsParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Params {
    x: u64,
    y: [u64; 2],
    x_stride: i64,
    y_stride: i64,
    columns: i32,
    stages: i32,
    terms: RowTerms,
    scales: [Scales; 2],
}

/// Bytes of a row of so many values in a form.
pub const fn row_bytes(columns: usize, terms: usize) -> usize {
    weights::row_bytes(columns, terms)
}

/// Enqueues `count` rows of `columns` f32 in one or two forms of 4-bit floats, of one kind and number of terms, and returns where they are:
/// each of `to` has room for as many of [`row_bytes`]. Rows of two equal forms are the same.
pub fn launch<D: Driver>(
    stream: &mut Stream<D>,
    forms: &[LaunchForm],
    count: usize,
    columns: usize,
    x: Rows,
    to: &[u64],
) -> Result<Vec<Rows>, OpError> {
    let Some(first) = forms.first() else { return Ok(Vec::new()) };
    let form = first.form;
    let terms = form.num_terms();
    let others: Vec<usize> = forms.iter().map(|other| other.form.num_terms()).collect();
    expect("moe", &vec![terms; forms.len()], &others)?;
    let (stride, stages) = (row_bytes(columns, terms), columns.div_ceil(STAGE));
    let different = if forms.iter().all(|other| other == first) { 1 } else { forms.len().min(2) };
    let (mut y, mut scales) = ([0; 2], [Scales::zeroed(); 2]);
    for at in 0..different {
        (y[at], scales[at]) = (to[at], Scales::of(forms[at].form));
    }
    let params = Params {
        x: x.address,
        y,
        x_stride: x.stride as i64,
        y_stride: stride as i64,
        columns: columns as i32,
        stages: stages as i32,
        terms: RowTerms::of(first),
        scales,
    };
    let blocks = stages * STAGE / form.block();
    let grid = [blocks.div_ceil(THREADS) as u32, count as u32, different as u32];
    let name = match form {
        ActivationForm::Nvfp4 { .. } => NAMES[terms - 1],
        ActivationForm::Mxfp4 => NAMES[3],
    };
    stream.launch(name, LaunchShape { grid, threads: THREADS as u32, shared_bytes: 0 }, &params)?;
    let place = |at: usize| Rows { address: y[at.min(different - 1)], stride };
    Ok((0..forms.len()).map(place).collect())
}
