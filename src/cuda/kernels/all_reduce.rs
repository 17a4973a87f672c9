//! Twin of `kernels/all_reduce.cu`: sums of the residual stream over ranks, and the next norm.

use std::time::Duration;

use bytemuck::{Pod, Zeroable};

use super::plain;
use crate::{Buffer, Driver, Kernel, LaunchShape, Stream};
use perigee_ops::OpError;

/// Threads of a block; a thread has the same columns of every row.
const THREADS: u32 = 256;
/// Most ranks.
pub const MAX_RANKS: usize = 8;

/// The declaration. One block of a multiprocessor is enough: what is in flight is not what bounds it.
pub const KERNEL: Kernel = plain!(
    "all_reduce",
    &["all_reduce_one_shot", "all_reduce_two_shot", "all_reduce_one_shot_bf16", "all_reduce_two_shot_bf16"],
    168
);

/// `LinkState` in `peer.cuh`: what a rank knows of its exchanges.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct LinkState {
    /// Sums so far.
    pub epoch: u32,
    /// 0 between launches.
    pub blocks_done: u32,
    /// [`Operation`] of a wait that did not end, plus 1; 0: none.
    pub failed: u32,
    /// The rank that it waited for.
    pub peer: u32,
    /// Number of the sum, or of the round, that it waited in.
    pub at: u32,
    /// Time in exchanges, waits included, in units of 2^10 ns, modulo 2^32.
    pub busy: u32,
    /// Unused.
    pub padding: [u32; 2],
}

/// `Link` in `peer.cuh`: a rank's place among the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Link {
    /// Areas of all ranks, which all of them reach.
    pub areas: [u64; MAX_RANKS],
    /// This rank's [`LinkState`].
    pub state: u64,
    /// Number of ranks.
    pub world: u32,
    /// Index of this rank.
    pub rank: u32,
    /// [`ticks`] that a wait takes at most.
    pub patience: u32,
    /// Unused.
    pub padding: u32,
}

/// The clock of waits: units of 2^20 ns, at least one.
pub fn ticks(time: Duration) -> u32 {
    u32::try_from(time.as_nanos() >> 20).unwrap_or(u32::MAX).max(1)
}

/// What ranks wait for each other in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Operation {
    /// Rows of the table.
    Embed,
    /// The sum behind attention.
    Attention,
    /// The sum behind an FFN.
    Ffn,
    /// The choice of tokens.
    Sample,
    /// The check of the links.
    Links,
    /// Queries of all heads, to ranks with a part of the keys.
    Queries,
    /// What comes of them, to the ranks whose heads they are.
    Attended,
    /// The keys of a step, to ranks that read them.
    Cached,
    /// No exchange: ranks that have other rows, though all compute the same.
    Compare,
}

impl Operation {
    /// Its name in messages, by its number.
    pub fn name(number: u32) -> &'static str {
        const NAMES: [&str; 9] = [
            "the embedding",
            "the sum behind attention",
            "the sum behind an FFN",
            "the choice of tokens",
            "the check of the links",
            "the exchange of queries",
            "the exchange of attention",
            "the meeting behind the cache",
            "the comparison of rows",
        ];
        NAMES.get(number as usize).copied().unwrap_or("an unknown operation")
    }
}

/// `AllReduceParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Params {
    link: Link,
    partial: u64,
    hidden: u64,
    gain: u64,
    normed: u64,
    rounded: u64,
    parts: u64,
    sums: u64,
    num_rows: i32,
    columns: i32,
    capacity: i32,
    eps: f32,
    adds: u32,
    operation: u32,
}

/// Rows of a sum. Rows are contiguous and begin at multiples of 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rows {
    /// `[T, D]` f32, this rank's.
    pub partial: u64,
    /// `[T, D]` f32, the residual stream.
    pub hidden: u64,
    /// Whether the sum is added to it.
    pub adds: bool,
    /// `[D]` f32, or 0: no norm.
    pub gain: u64,
    /// `[T, D]` f32.
    pub normed: u64,
    /// `[T, D]` bf16, or 0: `normed`, rounded.
    pub rounded: u64,
    /// Added to the mean square.
    pub eps: f32,
}

/// How a row's sum is computed; bits do not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shots {
    /// By every rank.
    One,
    /// By one rank, which gives it to the others.
    Two,
}

/// What crosses between ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Wire {
    /// Parts and sums in f32.
    #[default]
    F32,
    /// Both rounded to bf16: half of the bytes.
    Bf16,
}

/// Where an area has what. Sizes are those of the largest step that one launch takes; more rows take more launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    columns: usize,
    world: usize,
    /// Rows of one launch, by kind.
    capacity: [usize; 2],
}

/// Most rows that every rank sums by itself, times the ranks: two ranks move the same bytes in one shot as in two, eight four times as many.
const ONE_SHOT_PARTS: usize = 128;
/// Rows up to which every rank sums by itself, as long as nobody has measured.
pub const ONE_SHOT_ROWS: usize = 16;
/// Most rows of a launch.
const TWO_SHOT_ROWS: usize = 512;
/// An area's memory is used in turns: a rank can be one sum ahead of another.
const TURNS: usize = 2;

impl Layout {
    /// The layout for steps of up to `rows` rows of `columns` values.
    pub fn new(world: usize, columns: usize, rows: usize) -> Self {
        let capacity =
            [ONE_SHOT_PARTS / world, TWO_SHOT_ROWS].map(|most| most.min(rows).max(1).next_multiple_of(world));
        Self { columns, world, capacity }
    }

    /// Most rows that one launch sums in one shot.
    pub fn one_shot_rows(&self) -> usize {
        self.capacity[0]
    }

    /// Offsets of the rows of the one-shot kernel, of parts, of sums; bytes of all.
    fn offsets(&self) -> [usize; 4] {
        let rows =
            [TURNS * self.world * self.capacity[0], TURNS * self.capacity[1], TURNS * self.capacity[1]];
        let mut at = 0;
        let mut offsets = [0; 4];
        for (offset, rows) in offsets[1..].iter_mut().zip(rows) {
            at += rows * self.columns * size_of::<f32>();
            *offset = at;
        }
        offsets
    }

    /// Bytes of a rank's area, a multiple of 32.
    pub fn bytes(&self) -> usize {
        self.offsets()[3]
    }
}

/// A word of an area that nobody has written: -0.
pub const EMPTY: u32 = 0x8000_0000;

/// Enqueues the sum of `num_rows` rows of `layout.columns` values. All ranks call it with the same numbers.
pub fn launch<D: Driver>(
    stream: &mut Stream<D>,
    link: &Link,
    layout: &Layout,
    (shots, wire): (Shots, Wire),
    operation: Operation,
    num_rows: usize,
    rows: &Rows,
) -> Result<(), OpError> {
    let [parts_one, parts_two, sums, _] = layout.offsets();
    let mut first = 0;
    while first < num_rows {
        // In two shots each rank has a row to sum.
        let shots = if num_rows - first < layout.world { Shots::One } else { shots };
        let (capacity, parts) = match shots {
            Shots::One => (layout.capacity[0], parts_one),
            Shots::Two => (layout.capacity[1], parts_two),
        };
        let name = match (shots, wire) {
            (Shots::One, Wire::F32) => "all_reduce_one_shot",
            (Shots::Two, Wire::F32) => "all_reduce_two_shot",
            (Shots::One, Wire::Bf16) => "all_reduce_one_shot_bf16",
            (Shots::Two, Wire::Bf16) => "all_reduce_two_shot_bf16",
        };
        let count = capacity.min(num_rows - first);
        let at = |address: u64, size: usize| match address {
            0 => 0,
            address => address + (first * layout.columns * size) as u64,
        };
        let params = Params {
            link: *link,
            partial: at(rows.partial, 4),
            hidden: at(rows.hidden, 4),
            gain: rows.gain,
            normed: at(rows.normed, 4),
            rounded: at(rows.rounded, 2),
            parts: parts as u64,
            sums: sums as u64,
            num_rows: count as i32,
            columns: layout.columns as i32,
            capacity: capacity as i32,
            eps: rows.eps,
            adds: u32::from(rows.adds),
            operation: operation as u32,
        };
        // Blocks wait for those of other ranks: none may wait for its turn on a device.
        let blocks = (count as u32).min(stream.multiprocessors());
        let shape = LaunchShape { grid: [blocks, 1, 1], threads: THREADS, shared_bytes: 0 };
        stream.launch(name, shape, &params)?;
        first += count;
    }
    Ok(())
}

/// A rank's area: `places` bytes in which every place is empty, then `others` bytes of 0.
pub fn new_area<D: Driver>(stream: &mut Stream<D>, places: usize, others: usize) -> Result<Buffer, OpError> {
    let mut content = vec![0; places + others];
    let places = content[..places].as_chunks_mut().0;
    places.iter_mut().for_each(|word| *word = EMPTY.to_ne_bytes());
    stream.share("exchange with other ranks", &content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_of_the_family_are_small() {
        let kimi = Layout::new(8, 7168, 8192);
        assert_eq!(kimi.capacity, [16, 512]);
        // 7 MiB a rank of rows that all ranks sum, 28 MiB each of parts and sums.
        assert_eq!(kimi.bytes(), (2 * 8 * 16 + 4 * 512) * 4 * 7168);
        assert_eq!(Layout::new(4, 64, 1).capacity, [4, 4]);
        assert_eq!([2, 4].map(|world| Layout::new(world, 7168, 8192).one_shot_rows()), [64, 32]);
    }
}
