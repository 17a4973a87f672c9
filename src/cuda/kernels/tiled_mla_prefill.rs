//! Twin of `kernels/tiled_mla_prefill.cu`: [`super::mla_prefill`] on tensor cores, with its parameters.

use crate::{Arch, Kernel, LaunchShape, Limits};
use perigee_ops::{CacheDtype, MlaShape};

/// Keys of a tile; slabs begin at its multiples.
pub const KEYS: usize = 64;
/// Rows of a block of prefill.
const QUERIES: usize = 128;
/// Keys of a block of gather.
const GATHERED: usize = 8;
/// Keys and columns of a block of expand.
const EXPANDED: usize = 128;
/// Values of a row of them in shared memory.
const EXPANDED_PITCH: usize = 32 + 8;
/// Threads of a block of each function.
const THREADS: u32 = 256;
/// Most values of a query head and of a value head: N + R, V.
const MAX_HEAD: usize = 192;
const MAX_VALUE: usize = 128;

/// The declaration.
pub const KERNEL: Kernel = Kernel {
    name: "tiled_mla_prefill",
    text: include_str!("../../../kernels/tiled_mla_prefill.cu"),
    functions: &[
        "tiled_mla_gather_bf16",
        "tiled_mla_gather_fp8",
        "tiled_mla_gather_fp8_rope",
        "tiled_mla_expand",
        "tiled_mla_prefill",
    ],
    archs: &Arch::ALL,
    options: |_| &[],
    // Prefill keeps queries and sums in registers: one block of 256 threads on a multiprocessor of 65,536.
    limits: Limits { registers: 255, local_memory: false },
    shared_bytes: |_| SHARED_BYTES,
};

/// Two tiles of keys and two of columns in bf16.
const EXPAND_SHARED_BYTES: u32 = (2 * 2 * EXPANDED * EXPANDED_PITCH * 2) as u32;
/// `sizeof(Shared)` in the source.
const SHARED_BYTES: u32 = (2 * KEYS * (MAX_HEAD + 8 + MAX_VALUE + 8) * 2 + 2 * KEYS * 4) as u32;

/// Whether the functions take these sizes.
pub fn takes(shape: &MlaShape) -> bool {
    let MlaShape { qk_nope_head_dim, qk_rope_head_dim, v_head_dim, kv_lora_rank, .. } = *shape;
    let sizes = [qk_nope_head_dim, qk_rope_head_dim, v_head_dim, kv_lora_rank];
    sizes.iter().all(|size| size.is_multiple_of(16))
        && qk_nope_head_dim + qk_rope_head_dim <= MAX_HEAD
        && v_head_dim <= MAX_VALUE
}

/// The function that gathers rows of this type; `None` for rows of f32.
pub fn gather_function(cache: CacheDtype) -> Option<&'static str> {
    match cache {
        CacheDtype::F32 => None,
        CacheDtype::Bf16 => Some("tiled_mla_gather_bf16"),
        CacheDtype::Fp8(format) if format.rope_codes => Some("tiled_mla_gather_fp8_rope"),
        CacheDtype::Fp8(_) => Some("tiled_mla_gather_fp8"),
    }
}

/// Shape of the launch of gather.
pub fn gather_launch(num_keys: usize) -> LaunchShape {
    LaunchShape { grid: [num_keys.div_ceil(GATHERED) as u32, 1, 1], threads: THREADS, shared_bytes: 0 }
}

/// Shape of the launch of expand.
pub fn expand_launch(shape: &MlaShape, num_keys: usize) -> LaunchShape {
    let columns = shape.num_heads * (shape.qk_nope_head_dim + shape.v_head_dim);
    let grid = [columns.div_ceil(EXPANDED) as u32, num_keys.div_ceil(EXPANDED) as u32, 1];
    LaunchShape { grid, threads: THREADS, shared_bytes: EXPAND_SHARED_BYTES }
}

/// Shape of the launch of prefill.
pub fn prefill_launch(shape: &MlaShape, num_rows: usize) -> LaunchShape {
    let grid = [num_rows.div_ceil(QUERIES) as u32, shape.num_heads as u32, 1];
    LaunchShape { grid, threads: THREADS, shared_bytes: SHARED_BYTES }
}
