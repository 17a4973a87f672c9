//! Twin of `kernels/tiled_down.cu`: the second products of routed experts and of a shared one in another format, in one launch.

use super::plain;
use super::tiled::{self, Part, Schedule, Variant};
use crate::weights::Format;
use crate::{Driver, Kernel, Stream};
use perigee_ops::OpError;

/// The declaration.
pub const KERNEL: Kernel =
    Kernel { shared_bytes: |_| Variant::shared_bytes_of(is_taken), ..plain!("tiled_down", &NAMES, 128) };

const NAMES: [&str; 6] = [
    "tiled_down_nvfp4_split16x8",
    "tiled_down_nvfp4_wide16x8",
    "tiled_down_mxfp4_split16x8",
    "tiled_down_mxfp4_wide16x8",
    "tiled_down_int4_split16x8",
    "tiled_down_int4_wide16x8",
];

/// Whether there are functions of a variant.
fn is_taken(variant: &Variant) -> bool {
    let is_of_few = matches!(variant.schedule, Schedule::Split | Schedule::Wide);
    is_of_few && variant.rows == 8 && variant.warp_tiles == 1
}

/// The function for routed experts and a shared one of these formats, if there is one.
pub fn function(variant: &Variant, routed: Format, shared: Format) -> Option<&'static str> {
    if !is_taken(variant) || shared != Format::Bf16 {
        return None;
    }
    let format = match routed {
        Format::Nvfp4 => 0,
        Format::Mxfp4 => 2,
        Format::Int4 => 4,
        _ => return None,
    };
    NAMES.get(format + usize::from(variant.schedule == Schedule::Wide)).copied()
}

/// Enqueues by `function`, whose variant this is, `y = x W^T` of all slots of both parts, the routed one first.
pub fn launch<D: Driver>(
    stream: &mut Stream<D>,
    function: &'static str,
    variant: &Variant,
    parts: &[Part<'_>; 2],
) -> Result<(), OpError> {
    tiled::launch_function(stream, function, variant, parts, false, None)
}
