//! Twin of `kernels/tcgen05_mla_prefill.cu`: attention of [`super::tiled_mla_prefill`] on the tensor memory of B200 and B300.

use super::fp4::TCGEN05_ARCHS;
use crate::{Arch, Kernel, LaunchShape, Limits};
use perigee_ops::MlaShape;

/// Keys of a tile; slabs begin at its multiples.
pub const KEYS: usize = 128;
/// Rows of a block.
const QUERIES: usize = 256;
/// The sizes that it is made for: N, R and V of every model of the family.
const NOPE: usize = 128;
const ROPE: usize = 64;
const VALUE: usize = 128;
/// Units of 64 columns of a tile's keys, or of half of its values, in shared memory.
const STAGES: usize = 8;
const UNIT_BYTES: usize = KEYS * 128;

/// The declaration.
pub const KERNEL: Kernel = Kernel {
    name: "tcgen05_mla_prefill",
    text: include_str!("../../../kernels/tcgen05_mla_prefill.cu"),
    functions: &["tcgen05_mla_prefill"],
    archs: TCGEN05_ARCHS,
    options: |_| &[],
    // Those of the launch: one block of 384 threads on a multiprocessor of 65,536. Warps of rows take more from the others.
    limits: Limits { registers: 168, local_memory: false },
    shared_bytes: |_| SHARED_BYTES,
};

/// `sizeof(Shared)` in the source: queries, units, barriers, the address of tensor memory.
const SHARED_BYTES: u32 =
    (2 * QUERIES * (NOPE + ROPE) + STAGES * UNIT_BYTES + 8 * (2 * STAGES + 10) + 8) as u32;

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
