//! Twin of `kernels/fp4_swiglu.cu`: the first product of experts, rows and weights in 4-bit floats.

use super::fp4::{self, ARCHS, FUNCTIONS, PAIR_OUTPUTS, Part, fp4_names};
use super::plain;
use crate::{Driver, Kernel, Stream};
use perigee_numbers::quant::ActivationForm;
use perigee_ops::OpError;

/// The declaration.
pub const KERNEL: Kernel =
    Kernel { archs: ARCHS, shared_bytes: fp4::max_shared_bytes, ..plain!("fp4_swiglu", &NAMES, 128) };

const NAMES: [&str; FUNCTIONS] = fp4_names!("fp4_swiglu");

/// Enqueues `y = silu(gate x) * up x` of all slots of a part, whose matrices are pairs of gate and up. Rows of y are in 4-bit floats of the
/// form `inner`, which has the kind and the terms of x's.
pub fn launch<D: Driver>(
    stream: &mut Stream<D>,
    part: &Part<'_>,
    inner: ActivationForm,
) -> Result<(), OpError> {
    fp4::launch(stream, &NAMES, part, PAIR_OUTPUTS, Some(inner))
}
