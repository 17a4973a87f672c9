//! Queries into the latent space and rows out of it, by f32 products and by tensor cores.

use bytemuck::Zeroable;
use perigee_cuda::kernels::mla_decode::{self, CombineTypes};
use perigee_cuda::kernels::{tiled_mla_absorb, tiled_mla_combine, wgmma_mla_absorb};
use perigee_numbers::quant::CachedRowFormat;
use perigee_ops::{CacheDtype, MlaShape};

use super::{device, micros, on_gpu};
use crate::emulated::attention::KIMI;

const FP8: CacheDtype = CacheDtype::Fp8(CachedRowFormat { row_scales: true, rope_codes: false });
/// Layers, so that no weights are left in the second cache.
const LAYERS: usize = 8;

pub(super) fn run() -> Option<String> {
    let shape = shape();
    let MlaShape { num_heads, qk_nope_head_dim: nope, qk_rope_head_dim: rope, kv_lora_rank: latent, .. } =
        shape;
    let mut stream = device(&[])?;
    let columns = num_heads * (nope + shape.v_head_dim);
    let weights: Vec<u64> =
        (0..LAYERS).map(|_| stream.zeros("absorb", 2 * columns * latent).unwrap().address).collect();
    let mut found = Vec::new();
    for rows in [1, 8, 64] {
        let entries = (0..rows as u32).flat_map(|row| [row, 0, 1, 0, 1]);
        let words: Vec<u32> = [rows as u32, 0].into_iter().chain(entries).collect();
        let params = mla_decode::Params {
            query: stream.zeros("absorb", 4 * rows * num_heads * (nope + rope)).unwrap().address,
            rotations: stream.zeros("absorb", 4 * rows * rope).unwrap().address,
            pass: stream.store("absorb", &words).unwrap().address,
            latent_queries: stream.zeros("absorb", 4 * rows * num_heads * (latent + rope)).unwrap().address,
            num_heads: num_heads as i32,
            nope: nope as i32,
            rope: rope as i32,
            value: shape.v_head_dim as i32,
            latent: latent as i32,
            ..mla_decode::Params::zeroed()
        };
        let mut time = |function, launch| {
            micros(&mut stream, LAYERS, |stream, layer| {
                let params = mla_decode::Params { kv_up: weights[layer], ..params };
                stream.launch(function, launch, &params).unwrap();
            })
        };
        let products = time("mla_absorb_bf16", mla_decode::absorb_launch(&shape, rows));
        let cores = time(tiled_mla_absorb::FUNCTION, tiled_mla_absorb::launch(&shape, rows));
        let operands = wgmma_mla_absorb::function(&shape, FP8)
            .map(|function| time(function, wgmma_mla_absorb::launch(&shape, rows)))?;
        found.push(format!(
            "{rows} rows: f32 {products:.1} us, tensor cores {cores:.1} us, as operands {operands:.1} us"
        ));
    }
    Some(found.join("; "))
}

/// The merge of two items a row, whose sums are f16, and W_UV.
pub(super) fn combine() -> Option<String> {
    let shape = shape();
    let MlaShape { num_heads, qk_nope_head_dim: nope, v_head_dim: value, kv_lora_rank: latent, .. } = shape;
    let mut stream = device(&[])?;
    let weights: Vec<u64> = (0..LAYERS)
        .map(|_| stream.zeros("combine", 2 * num_heads * (nope + value) * latent).unwrap().address)
        .collect();
    let mut found = Vec::new();
    for rows in [1, 8, 64] {
        let entries = (0..rows as u32).flat_map(|row| [row, 2 * row, 256, 0, 1]);
        let words: Vec<u32> = [rows as u32, 2 * rows as u32].into_iter().chain(entries).collect();
        let params = mla_decode::Params {
            splits: 1,
            pass: stream.store("combine", &words).unwrap().address,
            statistics: stream.store("combine", &vec![1.0f32; 4 * rows * num_heads]).unwrap().address,
            latents: stream.zeros("combine", 4 * rows * num_heads * latent).unwrap().address,
            attended: stream.zeros("combine", 4 * rows * num_heads * value).unwrap().address,
            num_heads: num_heads as i32,
            nope: nope as i32,
            value: value as i32,
            latent: latent as i32,
            ..mla_decode::Params::zeroed()
        };
        let mut time = |(function, launch)| {
            micros(&mut stream, LAYERS, |stream, layer| {
                let params = mla_decode::Params { kv_up: weights[layer], ..params };
                stream.launch(function, launch, &params).unwrap();
            })
        };
        let products = time(mla_decode::combine(&shape, rows, CombineTypes::Bf16F16));
        let cores = time(tiled_mla_combine::combine(&shape, rows, true));
        found.push(format!("{rows} rows: f32 {products:.1} us, tensor cores {cores:.1} us"));
    }
    Some(found.join("; "))
}

fn shape() -> MlaShape {
    if on_gpu() { KIMI } else { MlaShape { num_heads: 1, ..KIMI } }
}
