//! Twin of `kernels/sampler_shards.cu`: draws of ranks that have some ids each.

use bytemuck::{Pod, Zeroable};

use super::all_reduce::Link;
use super::plain;
use super::sampler::{DrawParams, Outcome, Row};
use crate::{Driver, Kernel, LaunchShape, Stream};
use perigee_ops::OpError;

/// Threads of a block; a block draws one row.
const THREADS: u32 = 512;
/// Pairs of u32 of a row of a board: a count and a mass for each bin of a digit.
const BOARD_PAIRS: usize = 3 * 2 * THREADS as usize;
/// Most rows of a board: blocks of a launch that wait for those of other ranks are resident at once.
const BOARD_ROWS: usize = 64;

/// The declaration.
pub const KERNEL: Kernel = plain!("sampler_shards", &["sampler_draw_shards"], 128);

/// Where a rank says what it knows of rows, and hears the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Board {
    /// The rank's place.
    pub link: Link,
    /// Offset in an area of [`board_bytes`], 0 at first.
    pub offset: u64,
    /// `[rows]` u32, 0 at first.
    pub rounds: u64,
    /// Rows that it has.
    pub rows: usize,
    /// What the logits are products of, which ranks compare.
    pub inputs: Inputs,
}

/// Rows that logits are products of, the same on all ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Inputs {
    /// `[T, D]` f32, or 0: they are not compared.
    pub address: u64,
    /// `[S]` u32: the row of each row of logits.
    pub rows: u64,
    /// D.
    pub columns: usize,
}

/// `SamplerDrawShardsParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
struct Params {
    draw: DrawParams,
    link: Link,
    rounds: u64,
    board: u64,
    board_rows: u32,
    columns: u32,
    inputs: u64,
    rows: u64,
}

/// Rows of a board for calls of up to `max_rows` rows.
pub fn board_rows(max_rows: usize) -> usize {
    max_rows.clamp(1, BOARD_ROWS)
}

/// Bytes of a board of so many rows in the area of each of `world` ranks.
pub fn board_bytes(world: usize, rows: usize) -> usize {
    2 * world * rows * BOARD_PAIRS * size_of::<u64>()
}

/// Enqueues the draws of `num_rows` rows, as many at once as the board has. All ranks call it with the same rows.
pub fn launch<D: Driver>(
    stream: &mut Stream<D>,
    num_rows: usize,
    params: &DrawParams,
    board: &Board,
) -> Result<(), OpError> {
    for first in (0..num_rows).step_by(board.rows) {
        let rows = board.rows.min(num_rows - first);
        let draw = DrawParams {
            work: params.work + (first * params.ids as usize * size_of::<f32>()) as u64,
            rows: params.rows + (first * size_of::<Row>()) as u64,
            outcomes: params.outcomes + (first * size_of::<Outcome>()) as u64,
            ..*params
        };
        let params = Params {
            draw,
            link: board.link,
            rounds: board.rounds,
            board: board.offset,
            board_rows: board.rows as u32,
            columns: board.inputs.columns as u32,
            inputs: board.inputs.address,
            rows: board.inputs.rows,
        };
        let shape = LaunchShape { grid: [rows as u32, 1, 1], threads: THREADS, shared_bytes: 0 };
        stream.launch("sampler_draw_shards", shape, &params)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The board of eight ranks takes 25 MB of each, whatever the number of sequences.
    #[test]
    fn a_board_is_small() {
        assert_eq!(board_rows(256), 64);
        assert_eq!(board_bytes(8, board_rows(256)), 2 * 8 * 64 * 24_576);
        assert_eq!(board_rows(0), 1);
    }
}
