//! Twin of `kernels/tiled_linear.cu`: projections on tensor cores, and the second product of the experts.

use super::plain;
use super::tiled::{self, FUNCTIONS, Functions, Part, RowNorms, Variant, names};
use super::{tcgen05_bf16_linear, wgmma_linear};
use crate::weights::Format;
use crate::{Driver, Kernel, Stream};
use perigee_ops::OpError;

/// The declaration.
pub const KERNEL: Kernel =
    Kernel { shared_bytes: Variant::max_shared_bytes, ..plain!("tiled_linear", &NAMES, 255) };

const NAMES: [&str; FUNCTIONS] = names!("tiled_linear");

const ALL: Functions =
    Functions { names: &NAMES, wgmma: &wgmma_linear::NAMES, tcgen05: &tcgen05_bf16_linear::NAMES };

/// The function of a variant for a format, if it has one.
pub fn function(variant: &Variant, format: Format) -> Option<&'static str> {
    ALL.of(variant, format)
}

/// Enqueues `y = x W^T`, or `y += x W^T`, of all slots of one or two parts: x bf16, y f32, its rows slots.
pub fn launch<D: Driver>(
    stream: &mut Stream<D>,
    variant: &Variant,
    parts: &[Part<'_>],
    add: bool,
) -> Result<(), OpError> {
    tiled::launch(stream, &ALL, variant, parts, add, None)
}

/// Enqueues `y += x W^T` of a part with few rows and the norms of y ([`Variant::normalises`]).
pub fn launch_with_norms<D: Driver>(
    stream: &mut Stream<D>,
    variant: &Variant,
    part: &Part<'_>,
    norms: &RowNorms,
) -> Result<(), OpError> {
    tiled::launch(stream, &ALL, variant, std::slice::from_ref(part), true, Some(norms))
}
