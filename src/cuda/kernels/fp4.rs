//! What `fp4_rows.rs`, `fp4_swiglu.rs` and `fp4_linear.rs` share: parameters, and the functions of a form of rows.

use bytemuck::{Pod, Zeroable};

use super::tiled::{Rows, Slots};
use crate::weights::{MAX_TERMS, PANEL_ROWS, PanelWeight, Panels, STAGE};
use crate::{Arch, Driver, LaunchShape, Stream};
use perigee_numbers::quant::ActivationForm;
use perigee_ops::{OpError, expect};

/// Architectures with these products.
pub(super) const ARCHS: &[Arch] = &[Arch::Sm120a];
/// Threads of a block: eight warps that multiply, one that copies.
const THREADS: u32 = 9 * 32;
/// Stages of a block.
const STAGES: usize = 2;
/// Slots of a block of few rows.
const FEW: usize = 8;
/// Columns of a block of many rows at most: slots times terms.
const MANY: usize = 128;

/// `Fp4Scales` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Scales {
    tensor: [f32; MAX_TERMS],
    global: [f32; MAX_TERMS],
    back: [f32; MAX_TERMS],
}

impl Scales {
    pub(super) fn of(form: ActivationForm) -> Self {
        let mut scales = Self::zeroed();
        for (term, of_term) in form.term_scales().enumerate() {
            scales.tensor[term] = of_term.scale;
            scales.global[term] = of_term.global;
            scales.back[term] = of_term.back;
        }
        scales
    }
}

/// `Fp4Params` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Params {
    weight: PanelWeight,
    x: u64,
    y: u64,
    num_tiles: u64,
    tiles: u64,
    slots: u64,
    x_stride: i64,
    y_stride: i64,
    slots_per_row: i32,
    num_slots: i32,
    y_stages: i32,
    padding: i32,
    x_scales: Scales,
    y_scales: Scales,
}

/// Names of the functions of a product: of each form, for few slots of a block and for many.
macro_rules! fp4_names {
    ($kernel:literal) => {
        [
            concat!($kernel, "_nvfp4_8"),
            concat!($kernel, "_nvfp4_128"),
            concat!($kernel, "_nvfp4x2_8"),
            concat!($kernel, "_nvfp4x2_64"),
            concat!($kernel, "_nvfp4x3_8"),
            concat!($kernel, "_nvfp4x3_32"),
            concat!($kernel, "_mxfp4_8"),
            concat!($kernel, "_mxfp4_128"),
        ]
    };
}
pub(super) use fp4_names;

/// Number of functions of a product.
pub(super) const FUNCTIONS: usize = 8;

/// Slots of a block, for about so many of a matrix.
pub fn tile_rows(form: ActivationForm, slots_of_matrix: usize) -> usize {
    if slots_of_matrix > FEW { many(form.num_terms()) } else { FEW }
}

/// A power of two, so that tiles of a worklist are cut at the same places.
const fn many(terms: usize) -> usize {
    match terms {
        1 => MANY,
        2 => MANY / 2,
        _ => MANY / 4,
    }
}

/// Dynamic shared memory of a block with so many columns and slots (`Fp4Shared`).
const fn shared_bytes(stage_bytes: usize, columns: usize, slots: usize) -> usize {
    let column_bytes = STAGE / 2 + 16;
    STAGES * (stage_bytes + columns * column_bytes + 16) + 4 * slots + 8 * slots
}

/// The most of all functions.
pub(super) fn max_shared_bytes(_: Arch) -> u32 {
    let stage = crate::weights::PanelFormat::Nvfp4.stage_bytes();
    shared_bytes(stage, MANY, MANY) as u32
}

/// One product: a matrix of each expert times rows in 4-bit floats.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// Weights.
    pub matrix: &'a Panels,
    /// What is multiplied with which matrix.
    pub slots: Slots<'a>,
    /// Slots of a block.
    pub tile_rows: usize,
    /// In 4-bit floats; the stride is in bytes.
    pub x: Rows,
    /// Their form.
    pub form: ActivationForm,
    /// By slot: values, or with a form bytes.
    pub y: Rows,
}

/// Enqueues a product by the function of its form. `y_form`: what rows of y are written in, 4-bit floats of so many values.
pub(super) fn launch<D: Driver>(
    stream: &mut Stream<D>,
    names: &'static [&'static str; FUNCTIONS],
    part: &Part<'_>,
    outputs_per_panel: usize,
    y_form: Option<ActivationForm>,
) -> Result<(), OpError> {
    let (matrix, form) = (part.matrix, part.form);
    let (num_tiles, tiles, list, slots_per_row, num_slots, blocks) = match part.slots {
        Slots::Rows(count, _) => (0, 0, 0, 1, count, count.div_ceil(part.tile_rows)),
        Slots::Routed(list, per_row) | Slots::RoutedBefore(list, per_row) => {
            expect("moe", &[part.tile_rows], &[list.tile_rows])?;
            (list.num_tiles, list.tiles, list.slots, per_row, 0, list.max_tiles)
        }
    };
    let terms = form.num_terms();
    let is_few = part.tile_rows == FEW;
    expect("moe", &[if is_few { FEW } else { many(terms) }], &[part.tile_rows])?;
    let of_form = match form {
        ActivationForm::Nvfp4 { .. } => terms - 1,
        ActivationForm::Mxfp4 => MAX_TERMS,
    };
    let params = Params {
        weight: matrix.weight,
        x: part.x.address,
        y: part.y.address,
        num_tiles,
        tiles,
        slots: list,
        x_stride: part.x.stride as i64,
        y_stride: part.y.stride as i64,
        slots_per_row: slots_per_row as i32,
        num_slots: num_slots as i32,
        y_stages: matrix.out_features.div_ceil(STAGE) as i32,
        padding: 0,
        x_scales: Scales::of(form),
        y_scales: y_form.map_or_else(Scales::zeroed, Scales::of),
    };
    let panels = matrix.out_features.div_ceil(outputs_per_panel);
    let slots = part.tile_rows;
    let shared = shared_bytes(matrix.format.stage_bytes(), terms * slots, slots);
    let shape = LaunchShape {
        grid: [blocks as u32, panels as u32, 1],
        threads: THREADS,
        shared_bytes: shared as u32,
    };
    stream.launch(names[2 * of_form + usize::from(!is_few)], shape, &params)
}

/// Outputs of a panel of pairs.
pub(super) const PAIR_OUTPUTS: usize = PANEL_ROWS / 2;
