//! Parameters and variants of a product of tiles: shared by `tiled_linear.rs`, `tiled_swiglu.rs` and their forms of `wgmma` and `tcgen05`.

use bytemuck::{Pod, Zeroable};

use super::fp4::TCGEN05_ARCHS;
use super::route::Worklist;
use super::{rms_norm, row_panels};
use crate::weights::{Format, TILE, Tiled, TiledWeight, UNIT};
use crate::{Arch, Driver, DriverError, LaunchShape, Stream};
use perigee_ops::OpError;

/// Warps of a block that multiply.
const WARPS: usize = 8;
/// Beside them those that bring rows, of [`Schedule::Wgmma`].
const COPY_WARPS: usize = 4;
/// Architectures with the products of [`Schedule::Wgmma`].
pub(super) const WGMMA_ARCHS: &[Arch] = &[Arch::Sm90a];
/// Chunks of a sum.
const CHUNKS: usize = 8;

/// `TiledParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Params {
    /// One matrix or one of each expert.
    pub weight: TiledWeight,
    /// Rows of `x_stride` bf16.
    pub x: u64,
    /// Rows of `y_stride` values.
    pub y: u64,
    /// `[1]` i32, or 0: slot t is row t, of expert 0.
    pub num_tiles: u64,
    /// Triples of i32.
    pub tiles: u64,
    /// Slots ordered by expert.
    pub slots: u64,
    /// Without tiles: `[T]` u32, row of x of a slot; 0: 0, 1, ...
    pub x_rows: u64,
    /// Values, a multiple of 8.
    pub x_stride: i64,
    /// Values.
    pub y_stride: i64,
    /// Slots of a row of x.
    pub slots_per_row: i32,
    /// Without tiles: number of slots.
    pub num_slots: i32,
    /// Whether y is added to.
    pub add: i32,
    /// Whether a launch before the last one wrote the tiles.
    pub tiles_are_old: i32,
}

/// `TiledLaunch` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct LaunchParams {
    parts: [Params; 2],
    norms: RowNorms,
}

/// Norms of the rows of y, at most [`NORM_ROWS`], by the block that ends last.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct RowNorms {
    /// Of the residual stream, to which the product is added.
    pub norm: rms_norm::Params,
    /// `[1]` u32, 0.
    pub blocks_done: u64,
    /// Number of rows.
    pub num_rows: i32,
    /// Zero.
    pub padding: i32,
}

/// Most rows that one block normalises: with more of them a launch of its own is faster.
pub const NORM_ROWS: usize = 8;

/// One way to compute a product. All of them give the same bits: which one is used is a matter of speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variant {
    /// Schedule, outputs of a warp, rows of a block.
    pub name: &'static str,
    /// Rows of tiles of a warp.
    pub warp_tiles: usize,
    /// Rows of x of a block.
    pub rows: usize,
    /// What its warps share.
    pub schedule: Schedule,
}

/// How the warps of a block divide a product (`kernels/include/tile.cuh`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schedule {
    /// They share the inputs of the same tiles.
    Split,
    /// Each has tiles of its own.
    Wide,
    /// Each has tiles of its own; the rows are in shared memory.
    Block,
    /// As [`Self::Block`] by `wgmma`, with four warps more that bring the rows (`kernels/include/wgmma_tile.cuh`).
    Wgmma,
    /// The same with the chunks of a sum in the blocks of a cluster.
    Cluster,
    /// As [`Self::Wgmma`], of rows that come as panels, which the blocks of a cluster with other outputs share.
    Panels,
    /// By `tcgen05`, weights and sums in tensor memory, of such panels (`kernels/include/tcgen05_tile.cuh`).
    Tcgen05,
}

/// Tensor cores, by the instructions that reach them: each has kernels of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cores {
    /// `mma.sync`.
    Mma,
    /// `wgmma`.
    Wgmma,
    /// `tcgen05`.
    Tcgen05,
}

impl Cores {
    /// Architectures that have them.
    fn archs(self) -> &'static [Arch] {
        match self {
            Self::Mma => &Arch::ALL,
            Self::Wgmma => WGMMA_ARCHS,
            Self::Tcgen05 => TCGEN05_ARCHS,
        }
    }
}

impl Schedule {
    const fn cores(self) -> Cores {
        match self {
            Self::Split | Self::Wide | Self::Block => Cores::Mma,
            Self::Wgmma | Self::Cluster | Self::Panels => Cores::Wgmma,
            Self::Tcgen05 => Cores::Tcgen05,
        }
    }

    /// Whether rows come as panels, in the order of their numbers.
    pub fn reads_panels(self) -> bool {
        self.share().is_some()
    }

    /// Blocks of a cluster that share panels.
    const fn share(self) -> Option<u32> {
        match self {
            Self::Panels => Some(4),
            Self::Tcgen05 => Some(2),
            _ => None,
        }
    }
}

/// Most inputs of a product of [`Schedule::Wide`] that may have a norm behind it.
const WIDE_INPUTS: usize = 4096;

/// Number of variants of the kernels for all architectures, and of all.
pub(super) const COUNT: usize = 9;
const ALL_COUNT: usize = COUNT + 5;

const fn variant(name: &'static str, warp_tiles: usize, rows: usize, schedule: Schedule) -> Variant {
    Variant { name, warp_tiles, rows, schedule }
}

impl Variant {
    /// Every variant, in the order of `names`. All are right for all shapes; the first is the one to compare with.
    pub const ALL: [Self; ALL_COUNT] = [
        variant("split16x8", 1, 8, Schedule::Split),
        variant("split32x8", 2, 8, Schedule::Split),
        variant("split32x16", 2, 16, Schedule::Split),
        variant("split16x32", 1, 32, Schedule::Split),
        variant("split32x64", 2, 64, Schedule::Split),
        variant("wide16x8", 1, 8, Schedule::Wide),
        variant("block32x48", 2, 48, Schedule::Block),
        variant("block32x64", 2, 64, Schedule::Block),
        variant("block32x96", 2, 96, Schedule::Block),
        variant("wgmma32x64", 2, 64, Schedule::Wgmma),
        variant("cluster32x64", 2, 64, Schedule::Cluster),
        variant("wgmma32x128", 2, 128, Schedule::Wgmma),
        variant("panel32x128", 2, 128, Schedule::Panels),
        variant("tcgen32x256", 2, 256, Schedule::Tcgen05),
    ];

    /// Largest dynamic shared memory, in bytes, over the `mma` variants that fit `arch`.
    pub(super) fn max_shared_bytes(arch: Arch) -> u32 {
        Self::most_shared_bytes(arch, Cores::Mma)
    }

    /// The same quantity over the `wgmma` variants.
    pub(super) fn max_wgmma_shared_bytes(arch: Arch) -> u32 {
        Self::most_shared_bytes(arch, Cores::Wgmma)
    }

    /// The same quantity over the `tcgen05` variants.
    pub(super) fn max_tcgen05_shared_bytes(arch: Arch) -> u32 {
        Self::most_shared_bytes(arch, Cores::Tcgen05)
    }

    fn most_shared_bytes(arch: Arch, cores: Cores) -> u32 {
        Self::shared_bytes_of(|variant| variant.schedule.cores() == cores && variant.fits(arch))
    }

    /// Largest dynamic shared memory, in bytes, over some of the variants.
    pub(super) fn shared_bytes_of(are: impl Fn(&Self) -> bool) -> u32 {
        Self::ALL.iter().filter(|variant| are(variant)).map(Self::shared_bytes).max().unwrap_or(0)
    }

    /// Whether an architecture has its instructions, and the shared memory of its blocks.
    pub fn fits(&self, arch: Arch) -> bool {
        self.schedule.cores().archs().contains(&arch) && self.shared_bytes() <= arch.max_shared_bytes()
    }

    /// The variant for about `rows` rows of x for each matrix.
    pub fn preferred(rows: usize) -> &'static Self {
        &Self::ALL[match rows {
            0..=8 => 0,
            9..=16 => 2,
            17..=32 => 3,
            _ => 7,
        }]
    }

    /// The variant of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        Self::ALL.iter().find(|variant| variant.name == name)
    }

    /// What it is where panels have no room.
    fn without_panels(&self) -> &'static Self {
        match self.schedule {
            Schedule::Panels => Self::named("wgmma32x128").unwrap_or(&Self::ALL[0]),
            _ => Self::preferred(self.rows),
        }
    }

    /// The first variant whose blocks have so many rows.
    pub fn with_rows(rows: usize) -> &'static Self {
        Self::ALL.iter().find(|variant| variant.rows == rows).unwrap_or(&Self::ALL[0])
    }

    /// Whether it is tried for products of so many inputs. Warps by themselves leave a norm to a launch of its own, and a projection of
    /// many inputs (`o_proj`) may have one behind it: `may_normalise`.
    pub fn suits(&self, in_features: usize, may_normalise: bool) -> bool {
        self.schedule != Schedule::Wide || !may_normalise || in_features <= WIDE_INPUTS
    }

    /// Whether the last block can normalise `rows` rows of y.
    pub fn normalises(&self, rows: usize) -> bool {
        rows <= NORM_ROWS && self.rows == 8 && self.schedule == Schedule::Split
    }

    /// Rows of tiles of a block.
    const fn block_tiles(&self) -> usize {
        match self.schedule {
            Schedule::Split => self.warp_tiles,
            // Four warps bring weights.
            Schedule::Tcgen05 => self.warp_tiles * 4,
            _ => self.warp_tiles * WARPS,
        }
    }

    /// Threads of a block.
    pub(super) const fn threads(&self) -> u32 {
        let warps = match self.schedule.cores() {
            Cores::Mma => WARPS,
            Cores::Wgmma => WARPS + COPY_WARPS,
            // Those of weights, of both halves' totals, and of copies and products.
            Cores::Tcgen05 => 16,
        };
        32 * warps as u32
    }

    /// Dynamic shared memory of a launch.
    pub(super) const fn shared_bytes(&self) -> u32 {
        let bytes = match self.schedule {
            // Sums of chunks, and where each of many rows begins.
            Schedule::Split => 4 * self.rows * (CHUNKS * (self.warp_tiles * TILE + 4) + 1),
            Schedule::Wide => 0,
            // `BlockShared`: sums, rows of two units, the slot of each, and where it begins.
            Schedule::Block => {
                4 * self.block_tiles() * TILE * self.rows + 2 * 2 * self.rows * UNIT + 8 * self.rows
            }
            // `WgmmaShared`: units of rows, sums, two barriers of each unit, slots of rows and where they begin.
            Schedule::Wgmma | Schedule::Cluster | Schedule::Panels => {
                let stages = if self.rows > 64 { 3 } else { 4 };
                stages * (2 * self.rows * UNIT + 16)
                    + 4 * self.block_tiles() * TILE * self.rows
                    + 8 * self.rows
            }
            // `Tcgen05Shared`: units of half of the rows, three barriers of each; those of weights and sums, and an address.
            Schedule::Tcgen05 => 6 * (self.rows * UNIT + 3 * 8) + 8 * (2 * 4 + 2 * 2) + 8,
        };
        bytes as u32
    }

    /// Place among the variants of a kernel.
    fn index(&self) -> usize {
        let kin = Self::ALL.iter().filter(|variant| variant.schedule.cores() == self.schedule.cores());
        kin.take_while(|variant| *variant != self).count()
    }
}

/// Names of the functions of a kernel: of all variants of BF16, then of NVFP4, MXFP4, INT4 and FP8, which lacks the last one.
macro_rules! names {
    ($kernel:literal) => {{
        let (all, mut names) = (names!(@ $kernel, "bf16" "nvfp4" "mxfp4" "int4" "fp8"), [""; FUNCTIONS]);
        let mut i = 0;
        while i < FUNCTIONS {
            names[i] = all[i];
            i += 1;
        }
        names
    }};
    (@ $kernel:literal, $($format:literal)+) => {
        [$(
            concat!($kernel, "_", $format, "_split16x8"),
            concat!($kernel, "_", $format, "_split32x8"),
            concat!($kernel, "_", $format, "_split32x16"),
            concat!($kernel, "_", $format, "_split16x32"),
            concat!($kernel, "_", $format, "_split32x64"),
            concat!($kernel, "_", $format, "_wide16x8"),
            concat!($kernel, "_", $format, "_block32x48"),
            concat!($kernel, "_", $format, "_block32x64"),
            concat!($kernel, "_", $format, "_block32x96"),
        )+]
    };
}
pub(super) use names;

/// Number of functions of a kernel.
pub(super) const FUNCTIONS: usize = 5 * COUNT - 1;

/// Names of the functions of a kernel of `wgmma`, in the order of variants and formats: FP8 has none of clusters, and BF16 alone has 128
/// rows and panels.
macro_rules! wgmma_names {
    ($kernel:literal) => {
        [
            concat!($kernel, "_bf16_32x64"),
            concat!($kernel, "_nvfp4_32x64"),
            concat!($kernel, "_mxfp4_32x64"),
            concat!($kernel, "_int4_32x64"),
            concat!($kernel, "_fp8_32x64"),
            concat!($kernel, "_bf16_cluster32x64"),
            concat!($kernel, "_nvfp4_cluster32x64"),
            concat!($kernel, "_mxfp4_cluster32x64"),
            concat!($kernel, "_int4_cluster32x64"),
            concat!($kernel, "_bf16_32x128"),
            concat!($kernel, "_bf16_panel32x128"),
        ]
    };
}
pub(super) use wgmma_names;

/// Number of functions of a kernel of `wgmma`.
pub(super) const WGMMA_FUNCTIONS: usize = 11;

/// Names of the functions of a kernel of `tcgen05`, which has one variant: of all formats but FP8.
macro_rules! tcgen05_names {
    ($kernel:literal) => {
        [
            concat!($kernel, "_bf16"),
            concat!($kernel, "_nvfp4"),
            concat!($kernel, "_mxfp4"),
            concat!($kernel, "_int4"),
        ]
    };
}
pub(super) use tcgen05_names;

/// Number of functions of a kernel of `tcgen05`.
pub(super) const TCGEN05_FUNCTIONS: usize = 4;

/// The first function of each variant of a kernel of `wgmma`, and the number of its formats.
const WGMMA_FORMATS: [(usize, usize); 4] = [(0, 5), (5, 4), (9, 1), (10, 1)];

/// The functions of a product.
#[derive(Debug)]
pub(super) struct Functions {
    /// Of the kernel for all architectures.
    pub(super) names: &'static [&'static str; FUNCTIONS],
    /// Of the kernel of `wgmma`.
    pub(super) wgmma: &'static [&'static str; WGMMA_FUNCTIONS],
    /// Of the kernel of `tcgen05`.
    pub(super) tcgen05: &'static [&'static str; TCGEN05_FUNCTIONS],
}

impl Functions {
    /// The function of a variant for a format, if it has one.
    pub(super) fn of(&self, variant: &Variant, format: Format) -> Option<&'static str> {
        // Formats from BF16 on have functions.
        let (format, index) = ((format as usize).checked_sub(1)?, variant.index());
        match variant.schedule.cores() {
            Cores::Mma => self.names.get(format * COUNT + index).copied(),
            Cores::Wgmma => {
                let (first, formats) = *WGMMA_FORMATS.get(index)?;
                (format < formats).then(|| self.wgmma[first + format])
            }
            Cores::Tcgen05 => self.tcgen05.get(format).copied(),
        }
    }
}

/// The slots of a launch.
#[derive(Debug, Clone, Copy)]
pub enum Slots<'a> {
    /// Slot t of so many is row t of x, or the row that the list at this address has at t if it is not 0; all are of
    /// matrix 0.
    Rows(usize, u64),
    /// As routed, so many slots for each row of x.
    Routed(&'a Worklist, usize),
    /// Routed slots whose list the launch before the last one wrote: a product may read the list before the last one has ended.
    RoutedBefore(&'a Worklist, usize),
}

/// Rows in device memory.
#[derive(Debug, Clone, Copy)]
pub struct Rows {
    /// Address of the first row.
    pub address: u64,
    /// Values between rows.
    pub stride: usize,
}

/// One product: `matrix` times rows of x, to rows of y.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// Weights.
    pub matrix: &'a Tiled,
    /// What is multiplied with which matrix.
    pub slots: Slots<'a>,
    /// bf16.
    pub x: Rows,
    /// By slot.
    pub y: Rows,
}

impl Part<'_> {
    /// Parameters, and blocks in y. Errors: a worklist whose tiles have other rows than the variant.
    pub(super) fn params(&self, variant: &Variant, add: bool) -> Result<(Params, usize), OpError> {
        let (num_tiles, tiles, list, x_rows, slots_per_row, num_slots, blocks) = match self.slots {
            Slots::Rows(count, x_rows) => (0, 0, 0, x_rows, 1, count, count.div_ceil(variant.rows)),
            Slots::Routed(list, per_row) | Slots::RoutedBefore(list, per_row) => {
                perigee_ops::expect("moe", &[variant.rows], &[list.tile_rows])?;
                (list.num_tiles, list.tiles, list.slots, 0, per_row, 0, list.max_tiles)
            }
        };
        let params = Params {
            weight: self.matrix.weight,
            x: self.x.address,
            y: self.y.address,
            num_tiles,
            tiles,
            slots: list,
            x_rows,
            x_stride: self.x.stride as i64,
            y_stride: self.y.stride as i64,
            slots_per_row: slots_per_row as i32,
            num_slots: num_slots as i32,
            add: i32::from(add),
            tiles_are_old: i32::from(matches!(self.slots, Slots::RoutedBefore(..))),
        };
        Ok((params, blocks))
    }
}

/// Enqueues products by one of `functions`: one, or two that do not depend on each other, in one launch if they have one
/// format; and norms behind one product, where [`Variant::normalises`].
pub(super) fn launch<D: Driver>(
    stream: &mut Stream<D>,
    functions: &Functions,
    variant: &Variant,
    parts: &[Part<'_>],
    add: bool,
    norms: Option<&RowNorms>,
) -> Result<(), OpError> {
    if let [first, second] = parts
        && first.matrix.format != second.matrix.format
    {
        launch(stream, functions, variant, &[*first], add, None)?;
        return launch(stream, functions, variant, &[*second], add, norms);
    }
    let Some(part) = parts.first() else { return Ok(()) };
    let has_room = !variant.schedule.reads_panels() || row_panels::places(parts, stream.panels()).is_some();
    // Without room for panels a product reads the rows themselves, with the same bits.
    let variant = if has_room { variant } else { variant.without_panels() };
    let function = functions.of(variant, part.matrix.format).ok_or_else(|| {
        let text = format!("{} has no function for {:?}", variant.name, part.matrix.format);
        DriverError { call: "launch", code: 0, text, fatal: false }
    })?;
    launch_function(stream, function, variant, parts, add, norms)
}

/// Enqueues one product or two by one function, whose tiles and rows are those of `variant`; and norms, where
/// [`Variant::normalises`].
pub(crate) fn launch_function<D: Driver>(
    stream: &mut Stream<D>,
    function: &'static str,
    variant: &Variant,
    parts: &[Part<'_>],
    add: bool,
    norms: Option<&RowNorms>,
) -> Result<(), OpError> {
    let mut panels = Vec::new();
    if variant.schedule.reads_panels() {
        panels = row_panels::places(parts, stream.panels()).ok_or_else(|| {
            let text = "no room for rows as panels, or rows in no order".into();
            DriverError { call: "launch", code: 0, text, fatal: false }
        })?;
        for (at, (part, place)) in parts.iter().zip(&panels).enumerate() {
            if !panels[..at].contains(place) {
                row_panels::launch(stream, part, *place)?;
            }
        }
    }
    let (mut params, mut grid) = ([Params::zeroed(); 2], [0, 0, parts.len() as u32]);
    for (at, (part, params)) in parts.iter().zip(&mut params).enumerate() {
        let blocks;
        (*params, blocks) = part.params(variant, add)?;
        if let Some(place) = panels.get(at) {
            params.x = *place;
        }
        grid[0] = grid[0].max(part.matrix.tiles().div_ceil(variant.block_tiles()) as u32);
        grid[1] = grid[1].max(blocks as u32);
    }
    if let Some(share) = variant.schedule.share() {
        grid[0] = grid[0].next_multiple_of(share);
    }
    if !matches!(variant.schedule, Schedule::Split | Schedule::Wide) {
        grid.swap(0, 1);
    }
    if variant.schedule == Schedule::Cluster {
        grid[0] *= CHUNKS as u32;
    }
    let params = LaunchParams { parts: params, norms: norms.copied().unwrap_or_else(RowNorms::zeroed) };
    let shape = LaunchShape { grid, threads: variant.threads(), shared_bytes: variant.shared_bytes() };
    stream.launch(function, shape, &params)
}
