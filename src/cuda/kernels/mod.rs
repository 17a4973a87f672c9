//! The host side of each kernel: one module per `kernels/*.cu`, of the same name.

pub mod rms_norm;
pub mod sampler;

use super::Kernel;

/// Every kernel, by name.
pub const ALL: &[&Kernel] = &[&rms_norm::KERNEL, &sampler::KERNEL];
