//! The host side of each kernel: one module per `kernels/*.cu`, of the same name.

pub mod mla_decode;
pub mod mla_prefill;
pub mod rms_norm;

use super::Kernel;

/// Every kernel, by name.
pub const ALL: &[&Kernel] = &[&mla_decode::KERNEL, &mla_prefill::KERNEL, &rms_norm::KERNEL];
