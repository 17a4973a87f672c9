//! Twin of `kernels/wgmma_mla_decode.cu`: the items of [`super::mla_decode`] on the tensor cores of Hopper.

use crate::{Arch, Driver, Kernel, LaunchShape, Limits, Stream};
use perigee_ops::{CacheDtype, MlaShape, OpError};

/// Heads of a block.
pub(super) const HEADS: usize = 64;
/// Keys of a tile.
pub(super) const KEYS: usize = 64;
/// Blocks of a cluster, each with a split of an item.
pub const SPLITS: usize = 4;
const THREADS: u32 = 512;
/// The sizes that it is made for: C and R of every model of the family.
pub(super) const LATENT: usize = 512;
pub(super) const ROPE: usize = 64;

/// The declaration.
pub const KERNEL: Kernel = Kernel {
    name: "wgmma_mla_decode",
    text: include_str!("../../../kernels/wgmma_mla_decode.cu"),
    functions: &["wgmma_mla_decode_bf16", "wgmma_mla_decode_fp8", "wgmma_mla_decode_fp8_rope"],
    archs: &[Arch::Sm90a],
    options: |_| &[],
    // Of 512 threads before the warpgroups share them out.
    limits: Limits { registers: 128, local_memory: false },
    shared_bytes: |_| SHARED_BYTES,
};

/// `sizeof(Shared)` in the source: queries, two tiles of keys, rope keys on their way, scales, factors, statistics of splits, barriers.
const SHARED_BYTES: u32 = (2 * (HEADS + 2 * KEYS) * (LATENT + ROPE)
    + 2 * KEYS * ROPE
    + 4 * (2 * 2 * KEYS + 3 * HEADS + 2 * 2 * HEADS)
    + 8 * 8) as u32;

/// The function for these sizes and rows of this type on this architecture, if there is one.
pub fn function(shape: &MlaShape, arch: Arch, cache: CacheDtype) -> Option<&'static str> {
    if !KERNEL.archs.contains(&arch) || (shape.kv_lora_rank, shape.qk_rope_head_dim) != (LATENT, ROPE) {
        return None;
    }
    let index = match cache {
        CacheDtype::F32 => return None,
        CacheDtype::Bf16 => 0,
        CacheDtype::Fp8(format) if !format.rope_codes => 1,
        CacheDtype::Fp8(_) => 2,
    };
    KERNEL.functions.get(index).copied()
}

/// The function of a kernel that is for FP8 rows of these sizes alone: its first one with rope keys in bf16, its second one with codes.
pub(super) fn function_of_codes(
    kernel: &Kernel,
    shape: &MlaShape,
    arch: Arch,
    cache: CacheDtype,
) -> Option<&'static str> {
    let CacheDtype::Fp8(format) = cache else { return None };
    let fits = kernel.archs.contains(&arch) && (shape.kv_lora_rank, shape.qk_rope_head_dim) == (LATENT, ROPE);
    kernel.functions.get(usize::from(format.rope_codes)).copied().filter(|_| fits)
}

/// Rows of one sequence that a block takes at once, of so many heads each: rows that share keys.
pub const fn group_rows(num_heads: usize) -> usize {
    if num_heads == 0 || num_heads > HEADS { 1 } else { HEADS / num_heads }
}

/// Clusters that run at once: the groups of a device's multiprocessors may have some that are in none.
pub fn clusters<D: Driver>(stream: &mut Stream<D>) -> Result<u32, OpError> {
    let blocks = SPLITS as u32;
    let shape = LaunchShape { grid: [blocks, 1, 1], threads: THREADS, shared_bytes: SHARED_BYTES };
    stream.resident_clusters("wgmma_mla_decode_bf16", shape, blocks)
}

/// Shape of the launch over passes of up to `max_items` items, where so many clusters run at once: each has an equal share of the items.
pub fn launch(shape: &MlaShape, max_items: usize, clusters: u32) -> LaunchShape {
    cluster_launch(shape, HEADS, max_items, clusters, THREADS, SHARED_BYTES)
}

/// Shape of the launch of a kernel whose blocks have so many heads, threads and bytes of shared memory.
pub(super) fn cluster_launch(
    shape: &MlaShape,
    heads: usize,
    max_items: usize,
    clusters: u32,
    threads: u32,
    shared_bytes: u32,
) -> LaunchShape {
    let groups = shape.num_heads.div_ceil(heads) as u32;
    let clusters = (clusters / groups).min(max_items as u32).max(1);
    LaunchShape { grid: [SPLITS as u32 * clusters, groups, 1], threads, shared_bytes }
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
    fn clusters_share_the_items_of_hopper() {
        assert_eq!(function(&KIMI, Arch::Sm90a, CacheDtype::Bf16), Some("wgmma_mla_decode_bf16"));
        assert_eq!(function(&KIMI, Arch::Sm100a, CacheDtype::Bf16), None);
        assert_eq!(function(&MlaShape { kv_lora_rank: 256, ..KIMI }, Arch::Sm90a, CacheDtype::Bf16), None);
        assert_eq!(function(&KIMI, Arch::Sm90a, CacheDtype::F32), None);
        assert_eq!(launch(&KIMI, 4096, 32).grid, [128, 1, 1]);
        assert_eq!(launch(&MlaShape { num_heads: 65, ..KIMI }, 4096, 33).grid, [64, 2, 1]);
        assert_eq!(launch(&KIMI, 3, 32).grid, [12, 1, 1]);
    }
}
