//! Twin of `kernels/wgmma_linear.cu`: variants of [`super::tiled_linear`] on the tensor cores of Hopper.

use super::plain;
use super::tiled::{Variant, WGMMA_ARCHS, WGMMA_FUNCTIONS, wgmma_names};
use crate::Kernel;

/// The declaration. Registers are those of 384 threads before the warpgroups share them out.
pub const KERNEL: Kernel = Kernel {
    archs: WGMMA_ARCHS,
    shared_bytes: Variant::max_wgmma_shared_bytes,
    ..plain!("wgmma_linear", &NAMES, 168)
};

/// Its functions.
pub(super) const NAMES: [&str; WGMMA_FUNCTIONS] = wgmma_names!("wgmma_linear");
