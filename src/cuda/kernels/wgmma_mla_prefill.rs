//! Twin of `kernels/wgmma_mla_prefill.cu`: attention of [`super::tiled_mla_prefill`] on the tensor cores of Hopper.

use crate::{Arch, Kernel, LaunchShape, Limits};
use perigee_ops::MlaShape;

/// Rows of a block, and keys of a tile.
const QUERIES: usize = 128;
const KEYS: usize = 64;
/// The sizes that it is made for: N, R and V of every model of the family.
const NOPE: usize = 128;
const ROPE: usize = 64;
const VALUE: usize = 128;
/// Tiles in shared memory.
const STAGES: usize = 4;

/// The declaration.
pub const KERNEL: Kernel = Kernel {
    name: "wgmma_mla_prefill",
    text: include_str!("../../../kernels/wgmma_mla_prefill.cu"),
    functions: &["wgmma_mla_prefill"],
    archs: &[Arch::Sm90a],
    options: |_| &[],
    limits: Limits { registers: 168, local_memory: false },
    shared_bytes: |_| SHARED_BYTES,
};

/// `sizeof(Shared)` in the source: queries, tiles of keys and values, faults, barriers.
const SHARED_BYTES: u32 =
    (2 * QUERIES * (NOPE + ROPE) + STAGES * (2 * KEYS * (NOPE + ROPE + VALUE) + 4 * KEYS + 2 * 8)) as u32;

/// Whether the function takes these sizes on this architecture.
pub fn takes(shape: &MlaShape, arch: Arch) -> bool {
    let sizes = [shape.qk_nope_head_dim, shape.qk_rope_head_dim, shape.v_head_dim];
    KERNEL.archs.contains(&arch) && sizes == [NOPE, ROPE, VALUE]
}

/// Shape of the launch.
pub fn launch(shape: &MlaShape, num_rows: usize) -> LaunchShape {
    let grid = [num_rows.div_ceil(QUERIES) as u32, shape.num_heads as u32, 1];
    LaunchShape { grid, threads: 384, shared_bytes: SHARED_BYTES }
}
