//! Twin of `kernels/tcgen05_linear.cu`: the second product of experts in 4-bit floats on B200 and B300, which `fp4_linear.rs` launches.

use super::fp4::{self, FUNCTIONS, TCGEN05_ARCHS, fp4_pair_names};
use super::plain;
use crate::Kernel;

/// The declaration.
pub const KERNEL: Kernel = Kernel {
    archs: TCGEN05_ARCHS,
    shared_bytes: fp4::max_shared_bytes,
    ..plain!("tcgen05_linear", &NAMES, 128)
};

pub(super) const NAMES: [&str; FUNCTIONS] = fp4_pair_names!("tcgen05_linear");
