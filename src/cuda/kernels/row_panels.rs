//! Twin of `kernels/row_panels.cu`: rows of prompts as the panels that variants of products on Hopper and on B200 multiply.

use bytemuck::{Pod, Zeroable};

use super::plain;
use super::tiled::{Part, Slots};
use crate::stream::Buffer;
use crate::{Arch, Driver, Kernel, LaunchShape, Stream};
use perigee_ops::OpError;

/// Rows of a tile, columns of a unit.
pub const ROWS: usize = 128;
const UNIT: usize = 128;

/// The declaration.
pub const KERNEL: Kernel =
    Kernel { archs: &[Arch::Sm90a, Arch::Sm100a, Arch::Sm103a], ..plain!("row_panels", &["row_panels"], 64) };

/// `PanelsParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Params {
    x: u64,
    panels: u64,
    x_stride: i64,
    rows: i32,
    columns: i32,
}

/// Bytes of the panels of so many rows and columns.
pub const fn bytes(rows: usize, columns: usize) -> usize {
    2 * rows.next_multiple_of(ROWS) * columns.next_multiple_of(UNIT)
}

/// Where in a buffer the panels of each part's rows are, at one place for the same rows. `None`: parts that are not of rows in order, or no
/// room.
pub(super) fn places(parts: &[Part<'_>], room: Buffer) -> Option<Vec<u64>> {
    let (mut places, mut used) = (Vec::new(), 0);
    for part in parts {
        let Slots::Rows(rows, 0) = part.slots else { return None };
        let same = parts.iter().zip(&places).find(|(other, _)| {
            other.x.address == part.x.address && other.matrix.in_features == part.matrix.in_features
        });
        let place = match same {
            Some((_, place)) => *place,
            None => {
                let place = room.address + used as u64;
                used += bytes(rows, part.matrix.in_features);
                place
            }
        };
        places.push(place);
    }
    (used <= room.bytes).then_some(places)
}

/// Enqueues the panels of a part's rows.
pub(super) fn launch<D: Driver>(stream: &mut Stream<D>, part: &Part<'_>, panels: u64) -> Result<(), OpError> {
    let Slots::Rows(rows, _) = part.slots else { return Ok(()) };
    let columns = part.matrix.in_features;
    let params = Params {
        x: part.x.address,
        panels,
        x_stride: part.x.stride as i64,
        rows: rows as i32,
        columns: columns as i32,
    };
    let grid = [columns.div_ceil(UNIT) as u32, rows.div_ceil(ROWS) as u32, 1];
    stream.launch("row_panels", LaunchShape { grid, threads: 256, shared_bytes: 0 }, &params)
}
