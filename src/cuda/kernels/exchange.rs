//! Twin of `kernels/exchange.cu`: what ranks with a part of every block each give one another for attention.

use bytemuck::{Pod, Zeroable};

use super::all_reduce::{Link, Operation};
use super::plain;
use crate::{Buffer, Driver, Kernel, LaunchShape, Stream};
use perigee_ops::{AttentionExchange, MlaShape, OpError};

/// Threads of a block.
const THREADS: usize = 256;
/// Values behind those of a head, `BEHIND` in the source.
const BEHIND: usize = 4;

/// The declaration.
pub const KERNEL: Kernel =
    plain!("exchange", &["exchange_queries", "exchange_attended", "exchange_meet"], 168);

/// `ExchangeParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
struct Params {
    link: Link,
    pass: u64,
    from: u64,
    statistics: u64,
    to: u64,
    rounded: u64,
    places: u64,
    num_heads: i32,
    width: i32,
    capacity: i32,
    operation: u32,
    is_latent: u32,
    padding: u32,
}

/// `MeetParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
struct MeetParams {
    link: Link,
    places: u64,
    meetings: u64,
    operation: u32,
    padding: u32,
}

/// Where an area has what, for passes of up to so many rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    world: usize,
    rows: usize,
    num_heads: usize,
    form: AttentionExchange,
    /// Values of a head of a query, and of a value, or of both in the latent space.
    widths: [usize; 2],
}

impl Layout {
    /// The layout for ranks that share the heads of `shape`.
    pub fn new(world: usize, shape: &MlaShape, rows: usize, form: AttentionExchange) -> Self {
        let widths = match form {
            AttentionExchange::Heads => [shape.qk_nope_head_dim + shape.qk_rope_head_dim, shape.v_head_dim],
            AttentionExchange::Latents => [shape.latent_dim(), shape.kv_lora_rank],
        };
        Self { world, rows, num_heads: shape.num_heads, form, widths }
    }

    /// Whether ranks exchange values of heads or latents.
    pub fn form(&self) -> AttentionExchange {
        self.form
    }

    fn query_bytes(&self) -> usize {
        4 * self.world * self.rows * self.num_heads.div_ceil(self.world) * self.widths[0]
    }

    /// Bytes of the places, all of which are empty at first; a multiple of 16.
    pub fn bytes(&self) -> usize {
        let parts = self.num_heads.div_ceil(self.world) * (self.widths[1] + BEHIND);
        self.query_bytes() + 4 * self.world * self.rows * parts
    }

    /// Bytes of the words of [`Exchange::meet`], 0 at first.
    pub fn meeting_bytes(&self) -> usize {
        self.world * size_of::<u64>()
    }
}

/// A rank's place among those that have a part of every block each. Its two exchanges follow each other in turns: the places of one are read
/// when the other has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// Place of the rank among the others.
    pub link: Link,
    /// Sizes of the places.
    pub layout: Layout,
    /// Offset in an area of [`Layout::bytes`].
    pub places: u64,
    /// Offset in an area of [`Layout::meeting_bytes`].
    pub meeting_places: u64,
    /// `[1]` u32 of this rank, 0 at first.
    pub meetings: u64,
}

/// Device memory of an exchange; arrays as in the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// The pass and its rows.
    pub pass: u64,
    /// What this rank has.
    pub from: u64,
    /// Of the parts' rows.
    pub statistics: u64,
    /// Result of the exchange.
    pub to: u64,
    /// The same in bf16, or 0.
    pub rounded: u64,
}

impl Exchange {
    /// Enqueues the gathering of queries `[T, h * (N + R)]` of all ranks as `[A, H * (N + R)]`; of latents, of `[A, h * (C + R)]` as
    /// `[A, H * (C + R)]`.
    pub fn queries<D: Driver>(&self, stream: &mut Stream<D>, rows: &Rows) -> Result<(), OpError> {
        self.launch(stream, "exchange_queries", Operation::Queries, self.places, self.layout.widths[0], rows)
    }

    /// Enqueues the return of parts `[A, H * V]` to the ranks whose heads they are, merged there as `[T, h * V]`; of latents, of
    /// `[A, H * C]` as `[A, h * C]`.
    pub fn attended<D: Driver>(&self, stream: &mut Stream<D>, rows: &Rows) -> Result<(), OpError> {
        let places = self.places + self.layout.query_bytes() as u64;
        self.launch(stream, "exchange_attended", Operation::Attended, places, self.layout.widths[1], rows)
    }

    fn launch<D: Driver>(
        &self,
        stream: &mut Stream<D>,
        name: &'static str,
        operation: Operation,
        places: u64,
        width: usize,
        rows: &Rows,
    ) -> Result<(), OpError> {
        let layout = &self.layout;
        let params = Params {
            link: self.link,
            pass: rows.pass,
            from: rows.from,
            statistics: rows.statistics,
            to: rows.to,
            rounded: rows.rounded,
            places,
            num_heads: layout.num_heads as i32,
            width: width as i32,
            capacity: layout.rows as i32,
            operation: operation as u32,
            is_latent: u32::from(layout.form == AttentionExchange::Latents),
            padding: 0,
        };
        // Blocks wait for those of other ranks: none may wait for its turn on a device.
        let fours = layout.rows * layout.num_heads.div_ceil(layout.world) * width / 4;
        let blocks = (fours.div_ceil(THREADS) as u32).clamp(1, stream.multiprocessors());
        let shape = LaunchShape { grid: [blocks, 1, 1], threads: THREADS as u32, shared_bytes: 0 };
        stream.launch(name, shape, &params)
    }

    /// Enqueues a meeting: what all ranks enqueued before it has ended when the launches behind begin.
    pub fn meet<D: Driver>(&self, stream: &mut Stream<D>) -> Result<(), OpError> {
        let params = MeetParams {
            link: self.link,
            places: self.meeting_places,
            meetings: self.meetings,
            operation: Operation::Cached as u32,
            padding: 0,
        };
        stream.launch("exchange_meet", LaunchShape { grid: [1, 1, 1], threads: 32, shared_bytes: 0 }, &params)
    }
}

/// Memory of [`Exchange::meetings`].
pub fn meetings<D: Driver>(stream: &mut Stream<D>) -> Result<Buffer, OpError> {
    stream.zeros("exchange with other ranks", size_of::<u32>())
}
