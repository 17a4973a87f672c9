//! Twin of `kernels/fp4_swiglu.cu`: the first product of experts, rows and weights in 4-bit floats.

use super::fp4::{self, FUNCTIONS, Functions, MMA_ARCHS, Part, fp4_names};
use super::{plain, tcgen05_swiglu};
use crate::{Driver, Kernel, Stream};
use perigee_ops::OpError;

/// The declaration.
pub const KERNEL: Kernel =
    Kernel { archs: MMA_ARCHS, shared_bytes: fp4::max_shared_bytes, ..plain!("fp4_swiglu", &NAMES, 168) };

const NAMES: [&str; FUNCTIONS] = fp4_names!("fp4_swiglu");
/// Its functions on all architectures.
pub(crate) const ALL: Functions = Functions { mma: &NAMES, tcgen05: &tcgen05_swiglu::NAMES };

/// Enqueues `y = silu(gate x) * up x` of all slots of one or two parts, whose matrices are pairs of gate and up, and whose rows of y are in
/// 4-bit floats.
pub fn launch<D: Driver>(stream: &mut Stream<D>, parts: &[Part<'_>]) -> Result<(), OpError> {
    fp4::launch(stream, &ALL, parts)
}
