//! Twin of `kernels/route_swiglu.cu`: the router's choice, and beside it the first product of an expert that every row has.

use bytemuck::{Pod, Zeroable};

use super::ahead::Ahead;
use super::route::{FusedRoute, LinearRouteParams};
use super::tiled::{self, Part, Variant};
use super::{plain, route};
use crate::weights::{Format, Tiled};
use crate::{Driver, Kernel, LaunchShape, Stream};
use perigee_ops::OpError;

/// The schedule of the product: tiles of 16 outputs, 8 rows.
const VARIANT: &Variant = &Variant::ALL[0];

/// The declaration.
pub const KERNEL: Kernel =
    Kernel { shared_bytes: |_| VARIANT.shared_bytes(), ..plain!("route_swiglu", &NAMES, 80) };

/// In the order of the formats in tiles.
const NAMES: [&str; 5] = [
    "route_swiglu_bf16",
    "route_swiglu_nvfp4",
    "route_swiglu_mxfp4",
    "route_swiglu_int4",
    "route_swiglu_fp8",
];

/// `RouteSwigluParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Params {
    route: LinearRouteParams,
    shared: tiled::Params,
    route_blocks: u32,
    padding: u32,
}

/// The function for these weights and up to [`route::FUSED_ROWS`] rows; `None` where the router has none of its own, or is not of bf16.
pub fn function(route: &FusedRoute<'_>, gate_up: &Tiled) -> Option<&'static str> {
    let router =
        route.weight.format == Format::Bf16 && route::fused_function(route.weight, route.shape).is_some();
    let format = (gate_up.format as usize).checked_sub(1)?;
    NAMES.get(format).copied().filter(|_| router && gate_up.count == 1)
}

/// Enqueues by `function` what [`route::launch_fused`] does, and `y = silu(gate x) * up x` of the same rows. `part`: matrix of pairs of
/// gate and up, x and y bf16.
pub fn launch<D: Driver>(
    stream: &mut Stream<D>,
    function: &'static str,
    route: &FusedRoute<'_>,
    part: &Part<'_>,
) -> Result<(), OpError> {
    let (shared, _) = part.params(VARIANT, false)?;
    let route_blocks = route.blocks();
    let params = Params { route: route.params(Ahead::NONE), shared, route_blocks, padding: 0 };
    let blocks = route_blocks + part.matrix.tiles() as u32;
    let shape = LaunchShape {
        grid: [blocks, 1, 1],
        threads: VARIANT.threads(),
        shared_bytes: VARIANT.shared_bytes(),
    };
    stream.launch(function, shape, &params)
}
