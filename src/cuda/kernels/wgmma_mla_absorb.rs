//! Twin of `kernels/wgmma_mla_absorb.cu`: queries in the latent space as [`super::wgmma_mla_decode`] reads them.

use super::tiled_mla_absorb;
use crate::{Arch, Kernel, LaunchShape, Limits};
use perigee_ops::{CacheDtype, MlaShape};

/// The declaration.
pub const KERNEL: Kernel = Kernel {
    name: "wgmma_mla_absorb",
    text: include_str!("../../../kernels/wgmma_mla_absorb.cu"),
    functions: &["wgmma_mla_absorb_f16", "wgmma_mla_absorb_bf16"],
    archs: &[Arch::Sm90a],
    options: |_| &[],
    limits: Limits { registers: 64, local_memory: false },
    shared_bytes: |_| 0,
};

/// The function for queries of these sizes to rows of this type, which [`super::wgmma_mla_decode`] takes; `None`: it takes them in f32.
pub fn function(shape: &MlaShape, cache: CacheDtype) -> Option<&'static str> {
    let index = match cache {
        CacheDtype::F32 => return None,
        CacheDtype::Fp8(_) => 0,
        CacheDtype::Bf16 => 1,
    };
    KERNEL.functions.get(index).copied().filter(|_| tiled_mla_absorb::takes(shape))
}

/// Shape of the launch over passes of up to `max_rows` rows.
pub fn launch(shape: &MlaShape, max_rows: usize) -> LaunchShape {
    tiled_mla_absorb::launch(shape, max_rows)
}
