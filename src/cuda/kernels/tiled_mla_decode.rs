//! Twin of `kernels/tiled_mla_decode.cu`: the items of [`super::mla_decode`] on tensor cores.

use super::mla_decode::{MAX_LATENT, SPLIT, item_launch};
use crate::{Arch, Kernel, LaunchShape, Limits};
use perigee_ops::{CacheDtype, MlaShape};

/// Keys that a block holds at once.
const KEYS: usize = 32;
/// Most values of a rope key, R.
const MAX_ROPE: usize = 64;
/// Heads of a block, by variant.
const BLOCK_HEADS: [usize; 2] = [16, 32];

/// The declaration.
pub const KERNEL: Kernel = Kernel {
    name: "tiled_mla_decode",
    text: include_str!("../../../kernels/tiled_mla_decode.cu"),
    functions: &[
        "tiled_mla_decode_bf16_16",
        "tiled_mla_decode_bf16_32",
        "tiled_mla_decode_fp8_16",
        "tiled_mla_decode_fp8_32",
        "tiled_mla_decode_fp8_rope_16",
        "tiled_mla_decode_fp8_rope_32",
    ],
    archs: &Arch::ALL,
    options: |_| &[],
    // Queries and sums stay in registers: one block of 256 threads on a multiprocessor of 65,536.
    limits: Limits { registers: 255, local_memory: false },
    shared_bytes: |_| shared_bytes(BLOCK_HEADS[1]),
};

/// `sizeof(Shared)` in the source.
const fn shared_bytes(heads: usize) -> u32 {
    let values = 2 * KEYS * (MAX_LATENT + 8) * 2;
    let scores = 4 * heads * (KEYS + 8) * 4;
    let weights = heads / 16 * (2 * (128 + 16) + 4) * 4;
    (values + scores + weights + KEYS * 4 + heads * 4 + SPLIT * 4) as u32
}

/// Whether the functions take these sizes.
pub fn takes(shape: &MlaShape) -> bool {
    let (latent, rope) = (shape.kv_lora_rank, shape.qk_rope_head_dim);
    latent.is_multiple_of(16) && latent <= MAX_LATENT && rope.is_multiple_of(16) && rope <= MAX_ROPE
}

/// Index of the smallest block that has all heads, or of the largest block.
fn variant(shape: &MlaShape) -> usize {
    BLOCK_HEADS.iter().position(|heads| shape.num_heads <= *heads).unwrap_or(BLOCK_HEADS.len() - 1)
}

/// The function for rows of this type; `None` for rows of f32.
pub fn function(shape: &MlaShape, cache: CacheDtype) -> Option<&'static str> {
    let first = match cache {
        CacheDtype::F32 => return None,
        CacheDtype::Bf16 => 0,
        CacheDtype::Fp8(format) if !format.rope_codes => 2,
        CacheDtype::Fp8(_) => 4,
    };
    KERNEL.functions.get(first + variant(shape)).copied()
}

/// Shape of the launch over passes of up to `max_items` items.
pub fn launch(shape: &MlaShape, max_items: usize, multiprocessors: u32) -> LaunchShape {
    let heads = BLOCK_HEADS[variant(shape)];
    LaunchShape { shared_bytes: shared_bytes(heads), ..item_launch(shape, heads, max_items, multiprocessors) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_numbers::quant::CachedRowFormat;

    const KIMI: MlaShape = MlaShape {
        num_heads: 64,
        qk_nope_head_dim: 128,
        qk_rope_head_dim: 64,
        v_head_dim: 128,
        kv_lora_rank: 512,
        scale: 1.0,
    };

    #[test]
    fn blocks_have_as_many_heads_as_the_model_and_fit_every_architecture() {
        let with = |num_heads| MlaShape { num_heads, ..KIMI };
        let fp8 = CacheDtype::Fp8(CachedRowFormat { row_scales: true, rope_codes: true });
        assert_eq!(function(&with(8), CacheDtype::Bf16), Some("tiled_mla_decode_bf16_16"));
        assert_eq!(function(&with(17), fp8), Some("tiled_mla_decode_fp8_rope_32"));
        assert_eq!(function(&with(64), fp8), Some("tiled_mla_decode_fp8_rope_32"));
        assert_eq!(function(&KIMI, CacheDtype::F32), None);
        assert_eq!(launch(&KIMI, 4096, 132).grid, [132, 2, 1]);
        assert_eq!(launch(&with(8), 3, 132).grid, [3, 1, 1]);
    }
}
