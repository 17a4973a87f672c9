//! Twin of `kernels/tcgen05_mla_decode.cu`: the items of [`super::mla_decode`] on the tensor memory of B200 and B300.

use super::fp4::TCGEN05_ARCHS;
use super::wgmma_mla_decode::{HEADS, KEYS, LATENT, ROPE, SPLITS, cluster_launch, function_of_codes};
use crate::{Arch, Driver, Kernel, LaunchShape, Limits, Stream};
use perigee_ops::{CacheDtype, MlaShape, OpError};

const THREADS: u32 = 288;
/// Tiles of keys on their way, or read.
const STAGES: usize = 3;
/// Bytes of a row of a panel.
const PITCH: usize = 128;

/// The declaration.
pub const KERNEL: Kernel = Kernel {
    name: "tcgen05_mla_decode",
    text: include_str!("../../../kernels/tcgen05_mla_decode.cu"),
    functions: &["tcgen05_mla_decode_fp8", "tcgen05_mla_decode_fp8_rope"],
    archs: TCGEN05_ARCHS,
    options: |_| &[],
    // One block of 288 threads on a multiprocessor of 65,536.
    limits: Limits { registers: 200, local_memory: false },
    shared_bytes: |_| SHARED_BYTES,
};

/// `sizeof(Shared)` in the source: tiles of keys with the ends of their rows and scales, probabilities, sums of a split, statistics and
/// factors of heads, barriers.
const SHARED_BYTES: u32 = (STAGES * KEYS * (LATENT + 2 * ROPE + 4 + 8)
    + 2 * HEADS * PITCH
    + LATENT * PITCH
    + 8 * HEADS
    + 4 * HEADS
    + 2 * (4 * HEADS + 4 * 4)
    + 8 * (3 * STAGES + 9)
    + 16) as u32;

/// The function for these sizes and rows of this type on this architecture, if there is one.
pub fn function(shape: &MlaShape, arch: Arch, cache: CacheDtype) -> Option<&'static str> {
    function_of_codes(&KERNEL, shape, arch, cache)
}

/// Clusters that run at once.
pub fn clusters<D: Driver>(stream: &mut Stream<D>) -> Result<u32, OpError> {
    let blocks = SPLITS as u32;
    let shape = LaunchShape { grid: [blocks, 1, 1], threads: THREADS, shared_bytes: SHARED_BYTES };
    stream.resident_clusters(KERNEL.functions[0], shape, blocks)
}

/// Shape of the launch over passes of up to `max_items` items, where so many clusters run at once: each has an equal share of the items.
pub fn launch(shape: &MlaShape, max_items: usize, clusters: u32) -> LaunchShape {
    cluster_launch(shape, HEADS, max_items, clusters, THREADS, SHARED_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_numbers::quant::CachedRowFormat;

    #[test]
    fn codes_of_the_models_sizes_are_taken() {
        let shape = MlaShape {
            num_heads: 64,
            qk_nope_head_dim: 128,
            qk_rope_head_dim: 64,
            v_head_dim: 128,
            kv_lora_rank: 512,
            scale: 1.0,
        };
        let codes = |rope_codes| CacheDtype::Fp8(CachedRowFormat { row_scales: true, rope_codes });
        assert_eq!(function(&shape, Arch::Sm103a, codes(true)), Some("tcgen05_mla_decode_fp8_rope"));
        assert_eq!(function(&shape, Arch::Sm100a, codes(false)), Some("tcgen05_mla_decode_fp8"));
        for (shape, arch, cache) in [
            (shape, Arch::Sm90a, codes(false)),
            (shape, Arch::Sm100a, CacheDtype::Bf16),
            (MlaShape { kv_lora_rank: 256, ..shape }, Arch::Sm100a, codes(false)),
        ] {
            assert_eq!(function(&shape, arch, cache), None);
        }
        assert_eq!(launch(&shape, 4096, 36).grid, [144, 1, 1]);
        assert!(SHARED_BYTES <= Arch::Sm100a.max_shared_bytes());
    }
}
