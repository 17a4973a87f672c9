//! Twin of `kernels/fp4_linear.cu`: the second product of experts, rows and weights in 4-bit floats.

use super::fp4::{self, FUNCTIONS, Functions, MMA_ARCHS, Part, fp4_names};
use super::{plain, tcgen05_linear};
use crate::{Driver, Kernel, Stream};
use perigee_ops::OpError;

/// The declaration.
pub const KERNEL: Kernel =
    Kernel { archs: MMA_ARCHS, shared_bytes: fp4::max_shared_bytes, ..plain!("fp4_linear", &NAMES, 168) };

const NAMES: [&str; FUNCTIONS] = fp4_names!("fp4_linear");
/// Its functions on all architectures.
pub(crate) const ALL: Functions = Functions { mma: &NAMES, tcgen05: &tcgen05_linear::NAMES };

/// Enqueues `y = W x` of all slots of one or two parts, y in f32.
pub fn launch<D: Driver>(stream: &mut Stream<D>, parts: &[Part<'_>]) -> Result<(), OpError> {
    fp4::launch(stream, &ALL, parts)
}
