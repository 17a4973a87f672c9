//! Twin of `kernels/tiled_swiglu.cu`: the first product of the experts on tensor cores.

use super::plain;
use super::tiled::{self, FUNCTIONS, Functions, Part, Variant, names};
use super::{tcgen05_bf16_swiglu, wgmma_swiglu};
use crate::weights::Format;
use crate::{Driver, Kernel, Stream};
use perigee_ops::OpError;

/// The declaration.
pub const KERNEL: Kernel =
    Kernel { shared_bytes: Variant::max_shared_bytes, ..plain!("tiled_swiglu", &NAMES, 255) };

const NAMES: [&str; FUNCTIONS] = names!("tiled_swiglu");

const ALL: Functions =
    Functions { names: &NAMES, wgmma: &wgmma_swiglu::NAMES, tcgen05: &tcgen05_bf16_swiglu::NAMES };

/// The function of a variant for a format, if it has one.
pub fn function(variant: &Variant, format: Format) -> Option<&'static str> {
    ALL.of(variant, format)
}

/// Enqueues `y = silu(gate x) * up x` of all slots of one or two parts: x and y bf16, y's rows slots; matrices have pairs of
/// gate and up.
pub fn launch<D: Driver>(
    stream: &mut Stream<D>,
    variant: &Variant,
    parts: &[Part<'_>],
) -> Result<(), OpError> {
    tiled::launch(stream, &ALL, variant, parts, false, None)
}
