//! Twin of `kernels/tcgen05_bf16_linear.cu`: a variant of [`super::tiled_linear`] on the tensor cores of B200 and B300.

use super::fp4::TCGEN05_ARCHS;
use super::plain;
use super::tiled::{TCGEN05_FUNCTIONS, Variant, tcgen05_names};
use crate::Kernel;

/// The declaration. Registers are those of 512 threads before the warpgroups share them out.
pub const KERNEL: Kernel = Kernel {
    archs: TCGEN05_ARCHS,
    shared_bytes: Variant::max_tcgen05_shared_bytes,
    ..plain!("tcgen05_bf16_linear", &NAMES, 128)
};

/// Its functions.
pub(super) const NAMES: [&str; TCGEN05_FUNCTIONS] = tcgen05_names!("tcgen05_bf16_linear");
