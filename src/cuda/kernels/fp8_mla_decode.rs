//! Twin of `kernels/fp8_mla_decode.cu`: the items of [`super::mla_decode`] on the tensor cores of RTX PRO 6000 and RTX 50, in E4M3.

use super::wgmma_mla_decode::{LATENT, ROPE, SPLITS, cluster_launch, function_of_codes};
use crate::{Arch, Driver, Kernel, LaunchShape, Limits, Stream};
use perigee_numbers::quant::CachedRowFormat;
use perigee_ops::{CacheDtype, MlaShape, OpError};

/// Heads of a block.
const HEADS: usize = 32;
/// Keys of a tile.
const KEYS: usize = 32;
/// Tiles of keys at once.
const STAGES: usize = 3;
const THREADS: u32 = 256;

/// The declaration.
pub const KERNEL: Kernel = Kernel {
    name: "fp8_mla_decode",
    text: include_str!("../../../kernels/fp8_mla_decode.cu"),
    functions: &["fp8_mla_decode", "fp8_mla_decode_rope"],
    archs: &[Arch::Sm120a],
    options: |_| &[],
    // Queries and sums stay in registers: one block of 256 threads on a multiprocessor of 65,536.
    limits: Limits { registers: 255, local_memory: false },
    shared_bytes: |_| shared_bytes(false),
};

/// `sizeof(Shared)` in the source: keys, scores, scales, probabilities in two terms, factors, statistics, largest queries, barriers.
const fn shared_bytes(rope_codes: bool) -> u32 {
    let row = CachedRowFormat { row_scales: true, rope_codes }.bytes(LATENT, ROPE);
    let keys = STAGES * KEYS * row;
    let scores = 4 * HEADS * (KEYS + 8) * 4 + KEYS * 4;
    let weights = STAGES * 2 * HEADS * (KEYS + 16);
    let statistics = STAGES * HEADS * (4 + 8) + 4 * HEADS * 4;
    (keys + scores + weights + statistics + (3 * STAGES + 2) * 8) as u32
}

/// The function for these sizes and rows of this type on this architecture, if there is one.
pub fn function(shape: &MlaShape, arch: Arch, cache: CacheDtype) -> Option<&'static str> {
    function_of_codes(&KERNEL, shape, arch, cache)
}

/// Rows of one sequence that a block takes at once, of so many heads each: rows that share keys.
pub const fn group_rows(num_heads: usize) -> usize {
    if num_heads == 0 || num_heads > HEADS { 1 } else { HEADS / num_heads }
}

/// Clusters that run at once: the groups of a device's multiprocessors may have some that are in none.
pub fn clusters<D: Driver>(stream: &mut Stream<D>) -> Result<u32, OpError> {
    let blocks = SPLITS as u32;
    let shape = LaunchShape { grid: [blocks, 1, 1], threads: THREADS, shared_bytes: shared_bytes(false) };
    stream.resident_clusters(KERNEL.functions[0], shape, blocks)
}

/// Shape of the launch of a function over passes of up to `max_items` items, where so many clusters run at once: each has an equal share of
/// the items.
pub fn launch(shape: &MlaShape, max_items: usize, clusters: u32) -> LaunchShape {
    cluster_launch(shape, HEADS, max_items, clusters, THREADS, shared_bytes(false))
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
    fn clusters_share_the_items_of_rows_in_codes() {
        let codes = |rope_codes| CacheDtype::Fp8(CachedRowFormat { row_scales: true, rope_codes });
        assert_eq!(function(&KIMI, Arch::Sm120a, codes(true)), Some("fp8_mla_decode_rope"));
        let small = MlaShape { kv_lora_rank: 256, ..KIMI };
        for (shape, arch, cache) in [
            (&KIMI, Arch::Sm100a, codes(true)),
            (&KIMI, Arch::Sm120a, CacheDtype::Bf16),
            (&small, Arch::Sm120a, codes(true)),
        ] {
            assert_eq!(function(shape, arch, cache), None, "{arch} {cache:?}");
        }
        assert!(shared_bytes(false) <= Arch::Sm120a.max_shared_bytes());
        assert_eq!(launch(&KIMI, 4096, 45).grid, [88, 2, 1]);
        assert_eq!(launch(&MlaShape { num_heads: 16, ..KIMI }, 3, 45).grid, [12, 1, 1]);
        assert_eq!([1, 8, 16, 17, 64].map(group_rows), [32, 4, 2, 1, 1]);
    }
}
