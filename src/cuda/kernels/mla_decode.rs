//! Twin of `kernels/mla_decode.cu`: attention in absorbed form, by splits of 128 to 512 keys that a second kernel merges.

use bytemuck::{Pod, Zeroable};

use super::ahead::Ahead;
use crate::{Arch, Kernel, LaunchShape, Limits};
use perigee_ops::MlaShape;

/// Most keys of a split.
pub const SPLIT: usize = 512;
/// Rows of absorb and combine that share the reads of `kv_up`.
pub const ROWS: usize = 4;
/// Heads of a block of decode.
pub const BLOCK_HEADS: usize = 16;
/// Most values of a query head and of a value head: N + R, V.
pub const MAX_HEAD: usize = 256;
/// Most values of a latent, C.
pub const MAX_LATENT: usize = 512;
/// Most values of a cached row, C + R.
pub const MAX_WIDTH: usize = 640;
/// Words of a pass before its rows: their number, and the number of items.
pub const PASS_WORDS: usize = 2;
/// Words of a row of a pass, [`RowEntry`].
pub const ROW_WORDS: usize = size_of::<RowEntry>() / 4;

/// The declaration.
pub const KERNEL: Kernel = Kernel {
    name: "mla_decode",
    text: include_str!("../../../kernels/mla_decode.cu"),
    functions: &[
        "mla_absorb_f32",
        "mla_absorb_bf16",
        "mla_decode_f32",
        "mla_decode_bf16",
        "mla_decode_fp8",
        "mla_decode_fp8_rope",
        "mla_combine_f32",
        "mla_combine_bf16",
        "mla_combine_bf16_f16",
        "mla_combine_row_f32",
        "mla_combine_row_bf16",
        "mla_combine_row_bf16_f16",
        "mla_merge_f32",
        "mla_merge_f16",
        "mla_project_f32",
        "mla_project_bf16",
        "mla_project_row_f32",
        "mla_project_row_bf16",
    ],
    archs: &Arch::ALL,
    options: |_| &[],
    // Decode keeps the queries and sums of two heads, and merges of Blackwell more: one block of 256 threads on a multiprocessor of 65,536
    // registers.
    limits: Limits { registers: 208, local_memory: false },
    shared_bytes: |_| 0,
};

/// Items of a row with so many keys, each of so many splits of `split_of` keys: the row alone decides where its splits begin.
pub const fn items_of(num_keys: usize, splits: usize) -> usize {
    let split = if num_keys <= 2048 {
        128
    } else if num_keys <= 4096 * splits {
        256
    } else {
        SPLIT
    };
    num_keys.div_ceil(splits * split)
}

/// A row of a pass, `RowEntry` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct RowEntry {
    /// Row of the step.
    pub row: u32,
    /// Its first item in the pass; the row has [`items_of`] of them, the rows of its group apart.
    pub first_item: u32,
    /// Keys it attends to; 0: its result is 0.
    pub num_keys: u32,
    /// Index of its sequence's first block id in the step's block tables.
    pub table: u32,
    /// Rows of its group, 1 if it is alone, and from the 16th bit on its place among them.
    pub group: u32,
}

/// Whether rows with so many keys, the second one with no fewer, have splits that begin at the same keys in every kernel: then they can be
/// a group.
pub const fn have_same_splits(first: usize, second: usize, splits: usize) -> bool {
    // `keys_of_split` in `mla_items.cuh`, `split_of` in `mla_pass.cuh`.
    let bounds = [64 * splits, 2048, 4096 * splits];
    let mut i = 0;
    while i < bounds.len() {
        if first <= bounds[i] && second > bounds[i] {
            return false;
        }
        i += 1;
    }
    true
}

/// Parameter of the functions, `MlaDecodeParams` in the source. Arrays begin at multiples of 16 bytes, lists and tables
/// at multiples of 4. A rows of the pass, I items of it.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Params {
    /// `[T, H * (N + R)]` f32, not rotated.
    pub query: u64,
    /// `[T, R]` f32: R/2 cosines, then R/2 sines.
    pub rotations: u64,
    /// `[H * (N + V), C]` of the function's type: per head N rows of W_UK, then V of W_UV.
    pub kv_up: u64,
    /// `[slots, row_bytes]`, one layer of the cache.
    pub cache: u64,
    /// Block ids of all sequences, u32.
    pub block_tables: u64,
    /// The pass: [`PASS_WORDS`] words, then its rows.
    pub pass: u64,
    /// `[A, H, C + R]` f32, from absorb to decode, or as `mla_queries.cuh` has them.
    pub latent_queries: u64,
    /// `[I, H, 2]` f32: largest score and sum of exponentials, from decode to combine.
    pub statistics: u64,
    /// `[I, H, C]`: weighted sum of latents, from decode to combine; f32 or f16.
    pub latents: u64,
    /// `[T, H * V]` f32.
    pub attended: u64,
    /// `[T, H * V]` bf16, or 0: `attended`, rounded.
    pub rounded: u64,
    /// `[A, H, 2]` f32: those of a row, of [`Part::HEADS`] and of [`merge`].
    pub row_statistics: u64,
    /// H.
    pub num_heads: i32,
    /// N.
    pub nope: i32,
    /// R.
    pub rope: i32,
    /// V.
    pub value: i32,
    /// C.
    pub latent: i32,
    /// Tokens of a block.
    pub block_size: i32,
    /// Bytes of a cached row.
    pub row_bytes: i32,
    /// Factor on scores.
    pub scale: f32,
    /// Whose keys and heads these are.
    pub part: Part,
    /// Splits of an item.
    pub splits: u32,
    /// Whether `latent_queries` are as `mla_queries.cuh` has them.
    pub queries_are_ready: u32,
    /// Unused.
    pub padding: u32,
    /// Fetched by the decode kernels of Hopper and B200.
    pub ahead: Ahead,
}

/// Whose keys and heads a launch has, where ranks hold a part of every block each: `Part` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct Part(u32);

impl Part {
    /// All keys.
    pub const WHOLE: Self = Self(0);
    /// This rank's keys and the heads of all ranks: query and attended have the rows of the pass, not of the step.
    pub const HEADS: Self = Self(1);
    /// This rank's heads, whose keys lie on all ranks.
    pub const LATENTS: Self = Self(2);
}

/// A size that the kernels of latent attention do not take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {size}, and attention on the GPU takes multiples of {unit} from {unit} to {limit}")]
pub struct UnsupportedSize {
    /// Name of the size.
    pub what: &'static str,
    /// Its value.
    pub size: usize,
    /// Divisor.
    pub unit: usize,
    /// Largest value.
    pub limit: usize,
}

/// Whether the kernels take these sizes; the error names the first that does not fit.
pub fn check(shape: &MlaShape) -> Result<(), UnsupportedSize> {
    let MlaShape { num_heads, qk_nope_head_dim, qk_rope_head_dim, v_head_dim, kv_lora_rank, .. } = *shape;
    let head = qk_nope_head_dim.saturating_add(qk_rope_head_dim);
    let width = kv_lora_rank.saturating_add(qk_rope_head_dim);
    for (what, size, unit, limit) in [
        ("num_attention_heads", num_heads, 1, 65_535),
        ("qk_nope_head_dim", qk_nope_head_dim, 4, MAX_HEAD - 4),
        ("qk_rope_head_dim", qk_rope_head_dim, 4, MAX_HEAD - 4),
        ("qk_nope_head_dim + qk_rope_head_dim", head, 4, MAX_HEAD),
        ("v_head_dim", v_head_dim, 4, MAX_HEAD),
        ("kv_lora_rank", kv_lora_rank, 4, MAX_LATENT),
        ("kv_lora_rank + qk_rope_head_dim", width, 4, MAX_WIDTH),
    ] {
        if size == 0 || size > limit || !size.is_multiple_of(unit) {
            return Err(UnsupportedSize { what, size, unit, limit });
        }
    }
    Ok(())
}

/// Columns of a block of absorb.
const ABSORB_COLUMNS: usize = 128;

/// Shape of the launch of absorb, over passes of up to `max_rows` rows.
pub fn absorb_launch(shape: &MlaShape, max_rows: usize) -> LaunchShape {
    row_launch(shape, max_rows.div_ceil(ROWS), shape.kv_lora_rank.div_ceil(ABSORB_COLUMNS))
}

/// Rows from which on it pays that [`ROWS`] of them share the reads of `kv_up` in combine: fewer are merged side by side
/// (8.4 us for one row of Kimi K2 against 22.5 us, 3 items, H100).
const SHARED_COMBINE_ROWS: usize = 16;

/// What combine reads beside the statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CombineTypes {
    /// `kv_up` and the sums of items in f32.
    F32,
    /// `kv_up` in bf16, the sums in f32.
    Bf16,
    /// `kv_up` in bf16, the sums in f16.
    Bf16F16,
}

/// The function that merges the items of passes of so many rows, and its launch.
pub fn combine(shape: &MlaShape, rows: usize, types: CombineTypes) -> (&'static str, LaunchShape) {
    let (apart, shared) = match types {
        CombineTypes::F32 => ("mla_combine_row_f32", "mla_combine_f32"),
        CombineTypes::Bf16 => ("mla_combine_row_bf16", "mla_combine_bf16"),
        CombineTypes::Bf16F16 => ("mla_combine_row_bf16_f16", "mla_combine_bf16_f16"),
    };
    by_rows(shape, rows, ROWS, apart, shared)
}

/// The function for so many rows, one or `tile_rows` to a block, and its launch.
pub(super) fn by_rows(
    shape: &MlaShape,
    rows: usize,
    tile_rows: usize,
    apart: &'static str,
    shared: &'static str,
) -> (&'static str, LaunchShape) {
    let (function, tiles) =
        if rows < SHARED_COMBINE_ROWS { (apart, rows) } else { (shared, rows.div_ceil(tile_rows)) };
    (function, row_launch(shape, tiles, shares(rows)))
}

/// Blocks that share a head of so many rows. All merge its items: worth it where the heads alone leave multiprocessors idle.
fn shares(rows: usize) -> usize {
    [1, 4, 2].get(rows).copied().unwrap_or(1)
}

/// The function that merges the items of passes of so many rows into latents alone, and its launch.
pub fn merge(shape: &MlaShape, rows: usize, types: CombineTypes) -> (&'static str, LaunchShape) {
    let function = match types {
        CombineTypes::F32 | CombineTypes::Bf16 => "mla_merge_f32",
        CombineTypes::Bf16F16 => "mla_merge_f16",
    };
    (function, row_launch(shape, rows, 1))
}

/// The function that multiplies merged latents by W_UV, and its launch.
pub fn project(shape: &MlaShape, rows: usize, types: CombineTypes) -> (&'static str, LaunchShape) {
    let (apart, shared) = match types {
        CombineTypes::F32 => ("mla_project_row_f32", "mla_project_f32"),
        CombineTypes::Bf16 | CombineTypes::Bf16F16 => ("mla_project_row_bf16", "mla_project_bf16"),
    };
    by_rows(shape, rows, ROWS, apart, shared)
}

fn row_launch(shape: &MlaShape, tiles: usize, shares: usize) -> LaunchShape {
    // Longer passes are stepped through: 16 tiles at a time keep the device busy with the heads.
    let tiles = tiles.clamp(1, 16) as u32;
    LaunchShape { grid: [tiles, shape.num_heads as u32, shares as u32], threads: 256, shared_bytes: 0 }
}

/// Shape of the launch of decode, over passes of up to `max_items` items.
pub fn decode_launch(shape: &MlaShape, max_items: usize, multiprocessors: u32) -> LaunchShape {
    item_launch(shape, BLOCK_HEADS, max_items, multiprocessors)
}

/// Shape of a launch over items, in blocks of so many heads: two blocks per multiprocessor, of which one runs at a time,
/// so that items of different length even out.
pub(super) fn item_launch(
    shape: &MlaShape,
    block_heads: usize,
    max_items: usize,
    multiprocessors: u32,
) -> LaunchShape {
    let groups = shape.num_heads.div_ceil(block_heads) as u32;
    let items = (2 * multiprocessors).div_ceil(groups).min(max_items as u32).max(1);
    LaunchShape { grid: [items, groups, 1], threads: 256, shared_bytes: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIMI: MlaShape = MlaShape {
        num_heads: 64,
        qk_nope_head_dim: 128,
        qk_rope_head_dim: 64,
        v_head_dim: 128,
        kv_lora_rank: 512,
        scale: 1.0,
    };

    #[test]
    fn sizes_that_do_not_fit_are_named() {
        let with = |change: fn(&mut MlaShape)| {
            let mut shape = KIMI;
            change(&mut shape);
            check(&shape).map_err(|error| error.what)
        };
        assert_eq!(with(|_| ()), Ok(()));
        assert_eq!(with(|shape| shape.num_heads = 0), Err("num_attention_heads"));
        assert_eq!(with(|shape| shape.qk_nope_head_dim = 130), Err("qk_nope_head_dim"));
        assert_eq!(with(|shape| shape.qk_rope_head_dim = 0), Err("qk_rope_head_dim"));
        assert_eq!(with(|shape| shape.qk_nope_head_dim = 196), Err("qk_nope_head_dim + qk_rope_head_dim"));
        assert_eq!(with(|shape| shape.v_head_dim = 260), Err("v_head_dim"));
        assert_eq!(with(|shape| shape.kv_lora_rank = 516), Err("kv_lora_rank"));
        let wide = |shape: &mut MlaShape| (shape.qk_nope_head_dim, shape.qk_rope_head_dim) = (64, 132);
        assert_eq!(with(wide), Err("kv_lora_rank + qk_rope_head_dim"));
        assert_eq!(with(|shape| shape.qk_nope_head_dim = usize::MAX - 3), Err("qk_nope_head_dim"));
    }

    #[test]
    fn grids_fill_the_device_and_never_exceed_the_pass() {
        assert_eq!(decode_launch(&KIMI, 4096, 132).grid, [66, 4, 1]);
        assert_eq!(decode_launch(&KIMI, 3, 132).grid, [3, 4, 1]);
        assert_eq!(absorb_launch(&KIMI, 5).grid, [2, 64, 4]);
        assert_eq!(combine(&KIMI, 4096, CombineTypes::F32).1.grid, [16, 64, 1]);
        assert_eq!(combine(&KIMI, 1, CombineTypes::Bf16), ("mla_combine_row_bf16", row_launch(&KIMI, 1, 4)));
        assert_eq!(combine(&KIMI, 8, CombineTypes::Bf16F16).1.grid, [8, 64, 1]);
    }
}
