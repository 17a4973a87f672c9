//! Parameters and functions of the products in 4-bit floats: shared by `fp4_rows.rs`, `fp4_swiglu.rs`, `fp4_linear.rs` and the twins of
//! `tcgen05`.

use bytemuck::{Pod, Zeroable};

use super::tiled::{Rows, Slots};
use crate::weights::{MAX_TERMS, PANEL_ROWS, PanelFormat, PanelWeight, Panels, STAGE};
use crate::{Arch, Driver, LaunchShape, Stream};
use perigee_numbers::quant::ActivationForm;
use perigee_ops::{OpError, RowForms, expect};

/// Architectures whose tensor cores take rows in 4-bit floats.
pub(super) const ARCHS: &[Arch] = &[Arch::Sm100a, Arch::Sm103a, Arch::Sm120a];
/// Architectures that multiply such rows by `mma.sync`.
pub(super) const MMA_ARCHS: &[Arch] = &[Arch::Sm120a];
/// Architectures that multiply such rows by `tcgen05.mma`.
pub(super) const TCGEN05_ARCHS: &[Arch] = &[Arch::Sm100a, Arch::Sm103a];
/// Slots of a block of few rows.
const FEW: usize = 8;

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
    y_terms: RowTerms,
}

/// Form of the rows of a launch: that with the most terms of those that its rows have, which have the same scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LaunchForm {
    /// Form that the launch is for.
    pub form: ActivationForm,
    /// Where rows have fewer terms: `[rows / 32]` u32, a bit of each, set for rows of prompts; terms of other rows, and of those.
    pub mixed: Option<(u64, [usize; 2])>,
}

impl LaunchForm {
    /// Of rows of this kind.
    pub fn of(forms: RowForms, kind: RowKind) -> Self {
        let RowForms { prompt, reply } = forms;
        match kind {
            RowKind::Replies => reply.into(),
            RowKind::Prompts => prompt.into(),
            RowKind::Both(_) if prompt == reply => reply.into(),
            RowKind::Both(prompt_bits) => {
                let terms = [reply.num_terms(), prompt.num_terms()];
                let form = if terms[0] > terms[1] { reply } else { prompt };
                Self { form, mixed: Some((prompt_bits, terms)) }
            }
        }
    }
}

impl From<ActivationForm> for LaunchForm {
    fn from(form: ActivationForm) -> Self {
        Self { form, mixed: None }
    }
}

/// Which rows of a step are in expanded form, as those of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowKind {
    /// None is in expanded form.
    Replies,
    /// All are.
    Prompts,
    /// Those are that have a bit here, `[rows / 32]` u32.
    Both(u64),
}

/// `RowTerms` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct RowTerms {
    prompt_bits: u64,
    reply: i32,
    prompt: i32,
}

impl RowTerms {
    pub(super) fn of(form: &LaunchForm) -> Self {
        form.mixed.map_or_else(Self::zeroed, |(prompt_bits, [reply, prompt])| Self {
            prompt_bits,
            reply: reply as i32,
            prompt: prompt as i32,
        })
    }
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

/// Names of the functions of a product by pairs of blocks, which have twice as many slots.
macro_rules! fp4_pair_names {
    ($kernel:literal) => {
        [
            concat!($kernel, "_nvfp4_8"),
            concat!($kernel, "_nvfp4_256"),
            concat!($kernel, "_nvfp4x2_8"),
            concat!($kernel, "_nvfp4x2_128"),
            concat!($kernel, "_nvfp4x3_8"),
            concat!($kernel, "_nvfp4x3_64"),
            concat!($kernel, "_mxfp4_8"),
            concat!($kernel, "_mxfp4_256"),
        ]
    };
}
pub(super) use fp4_pair_names;

/// Number of functions of a product.
pub(super) const FUNCTIONS: usize = 8;

/// Slots of a block or a pair of blocks, for about so many of a matrix.
pub fn tile_rows(arch: Arch, form: ActivationForm, slots_of_matrix: usize) -> usize {
    if slots_of_matrix > FEW { Cores::of(arch).many(form.num_terms()) } else { FEW }
}

/// The functions of a product.
pub(crate) struct Functions {
    /// By `mma.sync`.
    pub(super) mma: &'static [&'static str; FUNCTIONS],
    /// By `tcgen05.mma`.
    pub(super) tcgen05: &'static [&'static str; FUNCTIONS],
}

/// A function of a product, for a form of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Function {
    /// Its name.
    pub(crate) name: &'static str,
    /// Slots of a block or a pair of blocks.
    pub(crate) slots: usize,
    /// Architectures that have it.
    pub(crate) archs: &'static [Arch],
}

impl Functions {
    /// The functions of a form: for few slots and for many, by `mma.sync`, then by `tcgen05.mma`.
    pub(crate) fn of(&self, form: ActivationForm) -> [Function; 4] {
        let first = 2 * index_of(form);
        let function = |cores: Cores, is_few: bool| {
            let (names, archs) = match cores {
                Cores::Mma => (self.mma, MMA_ARCHS),
                Cores::Tcgen05 => (self.tcgen05, TCGEN05_ARCHS),
            };
            let slots = if is_few { FEW } else { cores.many(form.num_terms()) };
            Function { name: names[first + usize::from(!is_few)], slots, archs }
        };
        [(Cores::Mma, true), (Cores::Mma, false), (Cores::Tcgen05, true), (Cores::Tcgen05, false)]
            .map(|(cores, is_few)| function(cores, is_few))
    }
}

/// Place of a form among those that have functions.
fn index_of(form: ActivationForm) -> usize {
    match form {
        ActivationForm::Nvfp4 { .. } => form.num_terms() - 1,
        ActivationForm::Mxfp4 => MAX_TERMS,
    }
}

/// Which instruction multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cores {
    Mma,
    Tcgen05,
}

impl Cores {
    const fn of(arch: Arch) -> Self {
        match arch {
            Arch::Sm100a | Arch::Sm103a => Self::Tcgen05,
            _ => Self::Mma,
        }
    }

    /// Threads of a block: eight warps that multiply and one that copies; four that copy columns and read sums, and two beside them.
    const fn threads(self) -> u32 {
        match self {
            Self::Mma => 9 * 32,
            Self::Tcgen05 => 6 * 32,
        }
    }

    /// Columns of many rows at most: slots times terms.
    const fn columns(self) -> usize {
        match self {
            Self::Mma => 128,
            Self::Tcgen05 => 256,
        }
    }

    /// Slots of many rows: a power of two, so that tiles of a worklist are cut at the same places.
    const fn many(self, terms: usize) -> usize {
        match terms {
            1 => self.columns(),
            2 => self.columns() / 2,
            _ => self.columns() / 4,
        }
    }

    /// Blocks that share the columns of so many slots, each with a panel of its own: a cluster in y.
    const fn blocks(self, slots: usize) -> usize {
        match self {
            Self::Tcgen05 if slots > FEW => 2,
            _ => 1,
        }
    }

    /// Dynamic shared memory of a block with so many columns and slots: `Fp4Shared`, `Tcgen05Shared`.
    const fn shared_bytes(self, format: PanelFormat, columns: usize, slots: usize) -> usize {
        let (codes, scales) = (STAGE / 2, format.stage_bytes() - PANEL_ROWS * STAGE / 2);
        match self {
            Self::Mma => 2 * (format.stage_bytes() + columns * (codes + 16) + 16) + 12 * slots,
            Self::Tcgen05 => {
                let (own, scales) = (columns / self.blocks(slots), columns.div_ceil(PANEL_ROWS) * scales);
                4 * (format.stage_bytes() + own * codes + scales + 16) + 8 * columns + 4 * slots + 16
            }
        }
    }
}

/// The most of all functions of an architecture.
pub(super) fn max_shared_bytes(arch: Arch) -> u32 {
    let cores = Cores::of(arch);
    cores.shared_bytes(PanelFormat::Nvfp4, cores.columns(), cores.columns()) as u32
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
    /// By slot: values in f32, or with `y_form` bytes.
    pub y: Rows,
    /// Form of the rows of y, of the kind and the terms of x's: of the first product.
    pub y_form: Option<LaunchForm>,
}

impl Part<'_> {
    /// Whether both are products of one function.
    pub fn is_like(&self, other: &Self) -> bool {
        self.form.num_terms() == other.form.num_terms()
            && self.matrix.format == other.matrix.format
            && self.tile_rows == other.tile_rows
    }

    /// Parameters, and tiles of slots.
    fn params(&self) -> Result<(Params, usize), OpError> {
        let (num_tiles, tiles, list, slots_per_row, num_slots, blocks) = match self.slots {
            Slots::Rows(count, _) => (0, 0, 0, 1, count, count.div_ceil(self.tile_rows)),
            Slots::Routed(list, per_row) | Slots::RoutedBefore(list, per_row) => {
                expect("moe", &[self.tile_rows], &[list.tile_rows])?;
                (list.num_tiles, list.tiles, list.slots, per_row, 0, list.max_tiles)
            }
        };
        let params = Params {
            weight: self.matrix.weight,
            x: self.x.address,
            y: self.y.address,
            num_tiles,
            tiles,
            slots: list,
            x_stride: self.x.stride as i64,
            y_stride: self.y.stride as i64,
            slots_per_row: slots_per_row as i32,
            num_slots: num_slots as i32,
            y_stages: self.matrix.out_features.div_ceil(STAGE) as i32,
            padding: 0,
            x_scales: Scales::of(self.form),
            y_scales: self.y_form.map_or_else(Scales::zeroed, |y| Scales::of(y.form)),
            y_terms: self.y_form.as_ref().map_or_else(RowTerms::zeroed, RowTerms::of),
        };
        Ok((params, blocks))
    }
}

/// Enqueues products by the function of their form: one, or two that are alike, in one launch.
pub(super) fn launch<D: Driver>(
    stream: &mut Stream<D>,
    functions: &Functions,
    parts: &[Part<'_>],
) -> Result<(), OpError> {
    if let [first, second] = parts
        && !first.is_like(second)
    {
        launch(stream, functions, &[*first])?;
        return launch(stream, functions, &[*second]);
    }
    let Some(first) = parts.first() else { return Ok(()) };
    let (form, slots, terms) = (first.form, first.tile_rows, first.form.num_terms());
    let is_few = slots == FEW;
    let cores = Cores::of(stream.arch());
    expect("moe", &[if is_few { FEW } else { cores.many(terms) }], &[slots])?;
    let names = match cores {
        Cores::Mma => functions.mma,
        Cores::Tcgen05 => functions.tcgen05,
    };
    let (mut params, mut grid) = ([Params::zeroed(); 2], [0, 0, parts.len() as u32]);
    for (part, params) in parts.iter().zip(&mut params) {
        let blocks;
        (*params, blocks) = part.params()?;
        let panels = part.matrix.weight.num_panels as usize;
        grid[0] = grid[0].max(blocks as u32);
        grid[1] = grid[1].max(panels.next_multiple_of(cores.blocks(slots)) as u32);
    }
    let shape = LaunchShape {
        grid,
        threads: cores.threads(),
        shared_bytes: cores.shared_bytes(first.matrix.format, terms * slots, slots) as u32,
    };
    stream.launch(names[2 * index_of(form) + usize::from(!is_few)], shape, &params)
}
