//! Twin of `kernels/wgmma_mla_expand.cu`: keys and values of [`super::tiled_mla_prefill`] on the tensor cores of Hopper.

use bytemuck::{Pod, Zeroable};

use super::mla_prefill;
use crate::{Arch, Driver, Kernel, LaunchShape, Limits, Stream};
use perigee_ops::{MlaShape, OpError};

/// Keys of a block.
const KEYS: usize = 128;
/// The sizes that it is made for: N, V and C of every model of the family.
const NOPE: usize = 128;
const VALUE: usize = 128;
const LATENT: usize = 512;
/// Panels of columns in shared memory.
const STAGES: usize = 3;

/// The declaration.
pub const KERNEL: Kernel = Kernel {
    name: "wgmma_mla_expand",
    text: include_str!("../../../kernels/wgmma_mla_expand.cu"),
    functions: &["wgmma_mla_expand"],
    archs: &[Arch::Sm90a],
    options: |_| &[],
    limits: Limits { registers: 168, local_memory: false },
    shared_bytes: |_| SHARED_BYTES,
};

/// `sizeof(Shared)` in the source: latents, columns of 64 values of C, barriers.
const SHARED_BYTES: u32 = (2 * KEYS * LATENT + STAGES * (2 * (NOPE + VALUE) * 64 + 2 * 8)) as u32;

/// `ExpandParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Params {
    slab: mla_prefill::Params,
    block_heads: i32,
    padding: i32,
}

/// Whether the function takes these sizes on this architecture.
pub fn takes(shape: &MlaShape, arch: Arch) -> bool {
    let sizes = [shape.qk_nope_head_dim, shape.v_head_dim, shape.kv_lora_rank];
    KERNEL.archs.contains(&arch) && sizes == [NOPE, VALUE, LATENT]
}

/// Enqueues the keys and values of a slab's heads.
pub fn launch<D: Driver>(stream: &mut Stream<D>, slab: &mla_prefill::Params) -> Result<(), OpError> {
    let (keys, heads) = ((slab.num_keys as u32).div_ceil(KEYS as u32), slab.num_heads as u32);
    // Blocks keep their latents while heads go by: as few as keep every multiprocessor busy.
    let block_heads = (heads * keys).div_ceil(stream.multiprocessors()).clamp(1, heads);
    let grid = [heads.div_ceil(block_heads), keys, 1];
    let params = Params { slab: *slab, block_heads: block_heads as i32, padding: 0 };
    stream.launch("wgmma_mla_expand", LaunchShape { grid, threads: 384, shared_bytes: SHARED_BYTES }, &params)
}
