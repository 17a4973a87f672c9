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
    &[
        "all_reduce_push_one_shot",
        "all_reduce_push_two_shot",
        "all_reduce_pull_one_shot",
        "all_reduce_pull_two_shot",
        "all_reduce_push_one_shot_bf16",
        "all_reduce_push_two_shot_bf16",
        "all_reduce_pull_one_shot_bf16",
        "all_reduce_pull_two_shot_bf16",
    ],
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
    /// The sum behind a draft's FFN.
    Draft,
}

impl Operation {
    /// Its name in messages, by its number.
    pub fn name(number: u32) -> &'static str {
        const NAMES: [&str; 10] = [
            "the embedding",
            "the sum behind attention",
            "the sum behind an FFN",
            "the choice of tokens",
            "the check of the links",
            "the exchange of queries",
            "the exchange of attention",
            "the meeting behind the cache",
            "the comparison of rows",
            "the sum behind a draft's FFN",
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
    flags: u64,
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
pub enum Variant {
    /// By every rank, of rows that the others have stored in its memory.
    PushOneShot,
    /// By one rank, of rows in its memory; it stores the sum in that of the others.
    PushTwoShot,
    /// By every rank, of rows that it reads in the memory of the others.
    PullOneShot,
    /// By one rank, of rows that it reads there, as the others then read the sum.
    PullTwoShot,
}

impl Variant {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::PushOneShot, Self::PushTwoShot, Self::PullOneShot, Self::PullTwoShot];

    /// Whether every rank sums all rows.
    pub fn is_one_shot(self) -> bool {
        matches!(self, Self::PushOneShot | Self::PullOneShot)
    }

    /// As in the names of the kernels.
    pub fn name(self) -> &'static str {
        match self {
            Self::PushOneShot => "push_one_shot",
            Self::PushTwoShot => "push_two_shot",
            Self::PullOneShot => "pull_one_shot",
            Self::PullTwoShot => "pull_two_shot",
        }
    }
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
    /// Rows of one launch: of [`Variant::PushOneShot`], which has a place for each rank's, and of the others.
    capacity: [usize; 2],
}

/// Most rows that every rank gets from all others, times the ranks: two ranks move the same bytes in one shot as in two, eight four times as
/// many.
const ONE_SHOT_PARTS: usize = 128;
/// Rows up to which every rank sums by itself, as long as nobody has measured.
pub const ONE_SHOT_ROWS: usize = 16;
/// Most rows of a launch.
const MOST_ROWS: usize = 512;
/// An area's memory is used in turns: a rank can be one sum ahead of another.
const TURNS: usize = 2;

/// Offsets in an area.
#[derive(Debug, Clone, Copy, Default)]
struct Offsets {
    /// Parts and sums that are pushed in two shots, behind the rows of one.
    pushed: [usize; 2],
    /// Parts and sums that are pulled.
    pulled: [usize; 2],
    /// Flags of what is pulled.
    flags: usize,
    end: usize,
}

impl Layout {
    /// The layout for steps of up to `rows` rows of `columns` values.
    pub fn new(world: usize, columns: usize, rows: usize) -> Self {
        let capacity =
            [ONE_SHOT_PARTS / world, MOST_ROWS].map(|most| most.min(rows).max(1).next_multiple_of(world));
        Self { columns, world, capacity }
    }

    /// Most rows that one launch sums.
    pub fn most_rows(&self, variant: Variant) -> usize {
        self.capacity[usize::from(variant != Variant::PushOneShot)]
    }

    fn offsets(&self) -> Offsets {
        let row_bytes = self.columns * size_of::<f32>();
        let [one_shot, rows] = self.capacity.map(|rows| TURNS * rows * row_bytes);
        let first = self.world * one_shot;
        let flags = first + 4 * rows;
        Offsets {
            pushed: [first, first + rows],
            pulled: [first + 2 * rows, first + 3 * rows],
            flags,
            end: (flags + self.world * self.capacity[1] * size_of::<u64>()).next_multiple_of(32),
        }
    }

    /// Bytes of a rank's area, a multiple of 32.
    pub fn bytes(&self) -> usize {
        self.offsets().end
    }
}

/// A word of an area that nobody has written: -0.
pub const EMPTY: u32 = 0x8000_0000;

/// Enqueues the sum of `num_rows` rows of `layout.columns` values. All ranks call it with the same numbers.
pub fn launch<D: Driver>(
    stream: &mut Stream<D>,
    link: &Link,
    layout: &Layout,
    (variant, wire): (Variant, Wire),
    operation: Operation,
    num_rows: usize,
    rows: &Rows,
) -> Result<(), OpError> {
    let offsets = layout.offsets();
    let mut first = 0;
    while first < num_rows {
        // In two shots each rank has a row to sum.
        let variant = match variant {
            Variant::PushTwoShot if num_rows - first < layout.world => Variant::PushOneShot,
            Variant::PullTwoShot if num_rows - first < layout.world => Variant::PullOneShot,
            variant => variant,
        };
        let capacity = layout.most_rows(variant);
        let [parts, sums] = match variant {
            Variant::PushOneShot => [0, 0],
            Variant::PushTwoShot => offsets.pushed,
            Variant::PullOneShot | Variant::PullTwoShot => offsets.pulled,
        };
        let name = match (variant, wire) {
            (Variant::PushOneShot, Wire::F32) => "all_reduce_push_one_shot",
            (Variant::PushTwoShot, Wire::F32) => "all_reduce_push_two_shot",
            (Variant::PullOneShot, Wire::F32) => "all_reduce_pull_one_shot",
            (Variant::PullTwoShot, Wire::F32) => "all_reduce_pull_two_shot",
            (Variant::PushOneShot, Wire::Bf16) => "all_reduce_push_one_shot_bf16",
            (Variant::PushTwoShot, Wire::Bf16) => "all_reduce_push_two_shot_bf16",
            (Variant::PullOneShot, Wire::Bf16) => "all_reduce_pull_one_shot_bf16",
            (Variant::PullTwoShot, Wire::Bf16) => "all_reduce_pull_two_shot_bf16",
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
            flags: offsets.flags as u64,
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
        // 7 MiB a rank of rows that all ranks sum, 28 MiB each of parts and sums, once pushed and once pulled, and the flags.
        assert_eq!(kimi.bytes(), (2 * 8 * 16 + 8 * 512) * 4 * 7168 + 8 * 512 * 8);
        assert_eq!(Layout::new(4, 64, 1).capacity, [4, 4]);
        assert_eq!(
            [2, 4].map(|world| Layout::new(world, 7168, 8192).most_rows(Variant::PushOneShot)),
            [64, 32]
        );
    }
}
