//! The host side of each kernel: one module per `kernels/*.cu`, of the same name; `tiled.rs`, `fp4.rs` and
//! `ahead.rs` are shared by several.

pub mod ahead;
pub mod all_reduce;
pub mod combine;
pub mod draft;
pub mod embed;
pub mod exchange;
pub mod experts;
pub mod fp4;
pub mod fp4_linear;
pub mod fp4_pack;
pub mod fp4_rows;
pub mod fp4_swiglu;
pub mod fp8_mla_decode;
pub mod gqa;
pub mod latent;
pub mod linear;
pub mod mla_decode;
pub mod mla_prefill;
pub mod repack;
pub mod rms_norm;
pub mod route;
pub mod route_swiglu;
pub mod row_panels;
pub mod sampler;
pub mod sampler_cluster;
pub mod sampler_shards;
pub mod tcgen05_bf16_linear;
pub mod tcgen05_bf16_swiglu;
pub mod tcgen05_linear;
pub mod tcgen05_mla_decode;
pub mod tcgen05_mla_prefill;
pub mod tcgen05_swiglu;
pub mod tiled;
pub mod tiled_down;
pub mod tiled_latent;
pub mod tiled_linear;
pub mod tiled_mla_absorb;
pub mod tiled_mla_combine;
pub mod tiled_mla_decode;
pub mod tiled_mla_prefill;
pub mod tiled_swiglu;
pub mod vision;
pub mod wgmma_linear;
pub mod wgmma_mla_absorb;
pub mod wgmma_mla_decode;
pub mod wgmma_mla_expand;
pub mod wgmma_mla_prefill;
pub mod wgmma_swiglu;

use super::Kernel;

/// Every kernel, by name.
pub const ALL: &[&Kernel] = &[
    &all_reduce::KERNEL,
    &combine::KERNEL,
    &draft::KERNEL,
    &embed::KERNEL,
    &exchange::KERNEL,
    &experts::KERNEL,
    &fp4_linear::KERNEL,
    &fp4_pack::KERNEL,
    &fp4_rows::KERNEL,
    &fp4_swiglu::KERNEL,
    &fp8_mla_decode::KERNEL,
    &gqa::KERNEL,
    &latent::KERNEL,
    &linear::KERNEL,
    &mla_decode::KERNEL,
    &mla_prefill::KERNEL,
    &repack::KERNEL,
    &rms_norm::KERNEL,
    &route::KERNEL,
    &route_swiglu::KERNEL,
    &row_panels::KERNEL,
    &sampler::KERNEL,
    &sampler_cluster::KERNEL,
    &sampler_shards::KERNEL,
    &tcgen05_bf16_linear::KERNEL,
    &tcgen05_bf16_swiglu::KERNEL,
    &tcgen05_linear::KERNEL,
    &tcgen05_mla_decode::KERNEL,
    &tcgen05_mla_prefill::KERNEL,
    &tcgen05_swiglu::KERNEL,
    &tiled_down::KERNEL,
    &tiled_latent::KERNEL,
    &tiled_linear::KERNEL,
    &tiled_mla_absorb::KERNEL,
    &tiled_mla_combine::KERNEL,
    &tiled_mla_decode::KERNEL,
    &tiled_mla_prefill::KERNEL,
    &tiled_swiglu::KERNEL,
    &vision::KERNEL,
    &wgmma_linear::KERNEL,
    &wgmma_mla_absorb::KERNEL,
    &wgmma_mla_decode::KERNEL,
    &wgmma_mla_expand::KERNEL,
    &wgmma_mla_prefill::KERNEL,
    &wgmma_swiglu::KERNEL,
];

/// A kernel for every architecture, without options and dynamic shared memory: stem, functions, most registers.
macro_rules! plain {
    ($name:literal, $functions:expr, $registers:expr) => {
        $crate::Kernel {
            name: $name,
            text: include_str!(concat!("../../../kernels/", $name, ".cu")),
            functions: $functions,
            archs: &$crate::Arch::ALL,
            options: |_| &[],
            limits: $crate::Limits { registers: $registers, local_memory: false },
            shared_bytes: |_| 0,
        }
    };
}
use plain;
