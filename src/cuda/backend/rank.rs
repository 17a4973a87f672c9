//! The backend as one of several ranks: heads, ids and inner units are cut, keys are whole on every rank or in parts, and what ranks give
//! one another are kernels of the same stream, which recordings hold like any other.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::memory::{ExchangeSizes, device_needs, rows_of};
use super::{Cache, CudaBackend, Experts, KvUp, Workspace};
use crate::attention::ContextParts;
use crate::driver::{Driver, DriverError, Transfer};
use crate::exchange_times::ExchangeTimes;
use crate::kernels::all_reduce::{
    self, Layout, Link, LinkState, MAX_RANKS, ONE_SHOT_ROWS, Operation, Shots, Wire,
};
use crate::kernels::embed;
use crate::kernels::exchange::Exchange;
use crate::kernels::sampler_shards::{Board, Inputs};
use crate::sampler::Sampler;
use crate::stream::{Buffer, Stream};
use perigee_numbers::quant::StoredMatrix;
use perigee_ops::host::{BlockParts, ExpertPieces, Member, Rank, Share};
use perigee_ops::{
    Backend, CacheShape, Capacity, ContextSplit, MemoryNeeds, MlaShape, ModelShape, OpError, Parallelism,
    RopeTable, Ticket,
};

/// The exchange of one rank with the others: areas of all ranks, ids and partial sums of this one.
#[derive(Debug)]
pub(super) struct Peers {
    link: Link,
    layout: Layout,
    /// `[T, D]` f32: this rank's part of a sum.
    pub(super) partial: Buffer,
    /// Ids of this rank.
    ids: Range<usize>,
    /// Ids of all ranks.
    vocab: usize,
    board: Board,
    /// Where keys are in parts.
    parts: Option<ContextParts>,
    member: Member,
    /// Rows up to which every rank sums all of them.
    one_shot_rows: usize,
    /// Longest wait for another rank.
    wait: Duration,
    /// Downloads of the [`LinkState`] behind each call of `sample`.
    asked: VecDeque<(Ticket, Transfer)>,
    /// [`LinkState::busy`] of the last download, and the times that it is added to.
    busy: u32,
    times: Option<Arc<ExchangeTimes>>,
}

impl Peers {
    /// The ids of this rank's part of the table.
    pub(super) fn ids(&self) -> embed::Ids {
        embed::Ids { first: self.ids.start, vocab: self.vocab }
    }

    /// Where this rank has a part of every block of the cache: that part.
    pub(super) fn parts(&self) -> Option<ContextParts> {
        self.parts
    }

    /// This rank's part of the choice of tokens.
    pub(super) fn sampler<D: Driver>(
        &self,
        stream: &mut Stream<D>,
        capacity: &Capacity,
    ) -> Result<Sampler, OpError> {
        let (rows, slots) = (capacity.max_logits_rows, capacity.max_num_seqs);
        Sampler::of_shard(stream, self.vocab, self.ids.clone(), Some(self.board), rows, slots)
    }

    fn shots_for(&self, num_rows: usize) -> Shots {
        if num_rows <= self.one_shot_rows { Shots::One } else { Shots::Two }
    }

    /// Asks whether all waits so far have ended, for the answer with this call's tokens.
    pub(super) fn ask<D: Driver>(&mut self, stream: &mut Stream<D>, ticket: Ticket) -> Result<(), OpError> {
        let transfer = stream.driver().download(self.link.state, size_of::<LinkState>())?;
        self.asked.push_back((ticket, transfer));
        Ok(())
    }

    /// Errors: a wait in front of this call's tokens did not end.
    pub(super) fn check<D: Driver>(&mut self, stream: &mut Stream<D>, ticket: Ticket) -> Result<(), OpError> {
        while self.asked.front().is_some_and(|(asked, _)| *asked < ticket) {
            self.asked.pop_front();
        }
        let Some((_, transfer)) = self.asked.pop_front_if(|(asked, _)| *asked == ticket) else {
            return Ok(());
        };
        let mut bytes = Vec::with_capacity(size_of::<LinkState>());
        stream.driver().finish(transfer, &mut bytes)?;
        let state: LinkState = bytemuck::pod_read_unaligned(&bytes);
        if let Some(times) = &self.times {
            times.add(self.link.rank as usize, state.busy.wrapping_sub(self.busy));
        }
        self.busy = state.busy;
        self.ended(state)
    }

    /// Errors: a wait did not end.
    fn ended(&self, state: LinkState) -> Result<(), OpError> {
        match state.failed {
            0 => Ok(()),
            failed if failed == Operation::Compare as u32 + 1 => {
                let (rank, peer) = (self.link.rank, state.peer);
                Err(failure(format!(
                    "rank {rank} has computed other rows than rank {peer}: the ranks have diverged, which a faulty GPU, memory or link does"
                )))
            }
            failed => {
                let (rank, peer, at) = (self.link.rank, state.peer, state.at);
                let seconds = self.wait.as_secs_f64();
                let text = format!(
                    "rank {rank} has waited {seconds} s for rank {peer} in {}, exchange {at}: the device of rank {peer} or the link to it \
                     does not answer",
                    Operation::name(failed - 1),
                );
                Err(failure(text))
            }
        }
    }

    /// All ranks are here when it returns. They come here between making a recording and running it: a driver may hold a rank that makes one
    /// back while another one's kernels wait for it.
    pub(super) fn meet(&self) -> Result<(), OpError> {
        self.member.exchange_words("links", &[], |_, _| ())
    }

    /// A row of the logits of all ranks, from this one's part.
    pub(super) fn whole_row(&self, part: Vec<f32>) -> Result<Vec<f32>, OpError> {
        let mut row = Vec::with_capacity(self.vocab);
        self.member.exchange("logprobs", &part, |_, part| row.extend_from_slice(part))?;
        Ok(row)
    }
}

/// How long a rank waits for another one before the step ends with an error, unless the operator says otherwise.
pub(super) const WAIT: Duration = Duration::from_secs(10);

impl<D: Driver> CudaBackend<D> {
    /// `hidden += sum over ranks of their parts`, and with `gain` `normed = norm(hidden)`.
    pub(super) fn add_up(
        &mut self,
        operation: Operation,
        num_rows: usize,
        peers: &Peers,
        gain: Option<&Buffer>,
        w: &Workspace<D>,
    ) -> Result<(), OpError> {
        let a = &w.activations;
        let rows = all_reduce::Rows {
            partial: peers.partial.address,
            hidden: a.hidden.address,
            adds: true,
            gain: gain.map_or(0, |gain| gain.address),
            normed: a.normed.exact.address,
            rounded: a.normed.rounded.address,
            eps: w.shape.rms_norm_eps,
        };
        self.reduce(operation, num_rows, peers, &rows)
    }

    /// `to = sum over ranks of their parts`.
    pub(super) fn gather_rows(
        &mut self,
        operation: Operation,
        num_rows: usize,
        peers: &Peers,
        to: Buffer,
    ) -> Result<(), OpError> {
        let rows = all_reduce::Rows {
            partial: peers.partial.address,
            hidden: to.address,
            adds: false,
            gain: 0,
            normed: 0,
            rounded: 0,
            eps: 0.0,
        };
        self.reduce(operation, num_rows, peers, &rows)
    }

    fn reduce(
        &mut self,
        operation: Operation,
        num_rows: usize,
        peers: &Peers,
        rows: &all_reduce::Rows,
    ) -> Result<(), OpError> {
        let shots = (peers.shots_for(num_rows), self.wire);
        all_reduce::launch(&mut self.stream, &peers.link, &peers.layout, shots, operation, num_rows, rows)
    }
}

/// Most rows of the sums that links are verified with; no more are timed.
const VERIFIED_ROWS: usize = 64;
/// Rows of the sums that are timed. All of them twice: once and once more, of which the shorter time counts.
const TIMED_ROWS: [usize; 6] = [1, 4, 8, 16, 32, 64];
const TIMED_SUMS: u32 = 4;

/// What `rank` gives to element `at` of a verified sum: three bits of the sum, so that a wrong one says whose is missing.
fn given(rank: usize, at: usize) -> u32 {
    (1 + (at * 5 + rank * 3) as u32 % 7) << (3 * rank)
}

impl<D: Driver> CudaBackend<D> {
    /// Enqueues a sum of the rows of `partial`, of which nothing is kept.
    fn try_sum(&mut self, shots: Shots, wire: Wire, rows: usize, w: &Workspace<D>) -> Result<(), OpError> {
        let Some(peers) = &w.peers else { return Ok(()) };
        let sum = all_reduce::Rows {
            partial: peers.partial.address,
            hidden: w.activations.hidden.address,
            adds: false,
            gain: 0,
            normed: 0,
            rounded: 0,
            eps: 0.0,
        };
        let (link, layout) = (&peers.link, &peers.layout);
        all_reduce::launch(&mut self.stream, link, layout, (shots, wire), Operation::Links, rows, &sum)
    }

    /// Sums of known numbers in both kinds, as steps compute them. Errors: a link that loses or changes what a rank stores.
    fn verify_links(&mut self, w: &Workspace<D>, rows: usize) -> Result<(), OpError> {
        let Some(peers) = &w.peers else { return Ok(()) };
        // Nobody waits for a rank that still allocates.
        peers.meet()?;
        let (rank, world) = (self.share.rank, self.share.world);
        let (columns, hidden) = (w.shape.hidden_size, w.activations.hidden);
        let rows = rows.min(VERIFIED_ROWS);
        let values: Vec<f32> = (0..rows * columns).map(|at| given(rank, at) as f32).collect();
        self.stream.upload(peers.partial.address, bytemuck::cast_slice(&values))?;
        for shots in [Shots::One, Shots::Two] {
            self.stream.driver().zero(hidden.address, 4 * rows * columns)?;
            // Known numbers have more bits than bf16.
            self.try_sum(shots, Wire::F32, rows, w)?;
            peers.meet()?;
            let sums = self.stream.read::<f32>(hidden.address, rows * columns)?;
            peers.ended(self.stream.read::<LinkState>(peers.link.state, 1)?[0])?;
            for (at, sum) in sums.into_iter().enumerate() {
                let digit = |rank: usize| sum as u32 >> (3 * rank) & 7;
                if let Some(other) =
                    (0..world).find(|other| digit(*other) != given(*other, at) >> (3 * other))
                {
                    return Err(failure(format!(
                        "what rank {other} has stored for rank {rank} has not arrived as it was: {sum} in place {at} of a sum of {world} \
                         ranks; an IOMMU or ACS between the GPUs does that, switch both off or start the kernel with iommu=pt"
                    )));
                }
            }
            peers.meet()?;
        }
        Ok(())
    }

    /// Rows up to which sums take less time in one shot than in two, as the first rank measures it: bits do not depend on it.
    fn time_links(&mut self, w: &Workspace<D>, rows: usize) -> Result<Option<usize>, OpError> {
        let Some(peers) = &w.peers else { return Ok(None) };
        let (wire, world) = (self.wire, self.share.world);
        let mut time = |shots: Shots, rows: usize| -> Result<f64, OpError> {
            let mut least = f64::INFINITY;
            for _ in 0..2 {
                peers.meet()?;
                self.stream.driver().begin_timing()?;
                (0..TIMED_SUMS).try_for_each(|_| self.try_sum(shots, wire, rows, w))?;
                peers.meet()?;
                least = least.min(self.stream.driver().end_timing()?.as_secs_f64());
            }
            Ok(least * 1e6 / f64::from(TIMED_SUMS))
        };
        let most = rows.min(peers.layout.one_shot_rows());
        let mut times = Vec::new();
        for rows in TIMED_ROWS.into_iter().filter(|rows| *rows <= most) {
            // In two shots each rank has a row to sum.
            let two = if rows < world { f64::INFINITY } else { time(Shots::Two, rows)? };
            times.push((rows, time(Shots::One, rows)?, two));
        }
        let faster = times.iter().take_while(|(_, one, two)| one <= two).map(|(rows, ..)| *rows);
        let own = faster.last().unwrap_or(1).max(world - 1);
        let mut one_shot_rows = own;
        peers.member.exchange_words("links", &[own as u64], |rank, rows| {
            if let (0, Some(rows)) = (rank, rows.first()) {
                one_shot_rows = *rows as usize;
            }
        })?;
        if self.share.rank == 0 {
            let times: Vec<String> =
                times.iter().map(|(rows, one, two)| format!("{rows}: {one:.1} or {two:.1}")).collect();
            let (bytes, times) = (4 * w.shape.hidden_size, times.join(", "));
            tracing::info!(
                ranks = world,
                bytes,
                times,
                one_shot_rows,
                "links verified: sums of all ranks arrive whole; microseconds by rows, in one shot or two"
            );
        }
        Ok(Some(one_shot_rows))
    }
}

fn failure(text: String) -> OpError {
    DriverError { call: "ranks", code: 0, text, fatal: true }.into()
}

impl<D: Driver> Rank for CudaBackend<D> {
    fn join(&mut self, share: Share) {
        self.share = share;
    }

    /// Weights in front of the heads and of the routers are stored in BF16 or packed.
    const COPY_BYTES: usize = 2;

    fn rank_needs(
        &self,
        shape: &ModelShape,
        capacity: &Capacity,
        cache: &CacheShape,
        share: Share,
        parallelism: Parallelism,
    ) -> MemoryNeeds {
        let mut needs = device_needs(self.arithmetic, shape, capacity, cache, Some((share, parallelism)));
        needs.workspace_bytes += self.unpacked_bytes(&share.shape(shape, parallelism.expert_groups)) as u64;
        needs
    }

    fn load_expert_range(&mut self, experts: &ExpertPieces<'_>, first: usize) -> Result<Experts, OpError> {
        self.load_swiglu(experts, first)
    }

    fn load_rank_kv_up(
        &mut self,
        own: (&StoredMatrix<'_>, &MlaShape),
        all: Option<(&StoredMatrix<'_>, &MlaShape)>,
    ) -> Result<KvUp, OpError> {
        let Some((weights, shape)) = all else {
            return Backend::load_kv_up(self, own.0, own.1);
        };
        let first = self.share.of(shape.num_heads, 1).start * (shape.qk_nope_head_dim + shape.v_head_dim);
        Ok(Backend::load_kv_up(self, weights, shape)?.with_own_from(first, shape.kv_lora_rank))
    }

    fn allocate_rank_workspace(
        &mut self,
        shape: &ModelShape,
        capacity: &Capacity,
        rope: &RopeTable,
        member: Member,
    ) -> Result<Workspace<D>, OpError> {
        let share = member.share();
        if share.world > MAX_RANKS {
            return Err(failure(format!(
                "{} ranks (device.ranks), and the limit is {MAX_RANKS}",
                share.world
            )));
        }
        // The first rank's thread is the engine's.
        if let (1.., Some(cores)) = (share.rank, &self.cores) {
            let stays = cores.stay();
            tracing::debug!(rank = share.rank, ?cores, stays, "the rank's thread stays beside its GPU");
        }
        let sizes = ExchangeSizes::new(shape, capacity, share.world, member.parallelism().context);
        let stream = &mut self.stream;
        let area = all_reduce::new_area(stream, sizes.places(), sizes.words())?;
        let mut counters = |count: usize| {
            stream.zeros("exchange with other ranks", count * size_of::<u32>()).map(|buffer| buffer.address)
        };
        let (rounds, meetings) = (counters(sizes.board_rows)?, counters(1)?);
        let state = stream.store("exchange with other ranks", &[LinkState::default()])?;
        let rows = rows_of(capacity);
        let partial = stream.allocate("activations", 4 * rows * shape.hidden_size)?;
        let link = Link {
            areas: addresses_of_all("allocate_workspace", &member, area.address)?,
            state: state.address,
            world: share.world as u32,
            rank: share.rank as u32,
            patience: all_reduce::ticks(self.wait),
            padding: 0,
        };
        let ids = share.of(shape.vocab_size, 1);
        let own = share.shape(shape, member.parallelism().expert_groups);
        let words = sizes.places() as u64;
        let inputs = Inputs::default();
        let board = Board { link, offset: words, rounds, rows: sizes.board_rows, inputs };
        let parts = match sizes.keys {
            None => None,
            Some(layout) => Some(ContextParts {
                block: BlockParts::new(capacity.block_size, share)?,
                all: shape.mla,
                exchange: Exchange {
                    link,
                    layout,
                    places: sizes.sums.bytes() as u64,
                    meeting_places: words + sizes.board as u64,
                    meetings,
                },
            }),
        };
        let peers = Peers {
            link,
            layout: sizes.sums,
            partial,
            ids,
            vocab: shape.vocab_size,
            board,
            parts,
            member,
            one_shot_rows: ONE_SHOT_ROWS.min(sizes.sums.one_shot_rows()),
            wait: self.wait,
            asked: VecDeque::new(),
            busy: 0,
            times: self.exchange_times.clone(),
        };
        let mut workspace = self.workspace(&own, capacity, rope, Some(peers))?;
        self.verify_links(&workspace, capacity.max_tokens)?;
        let one_shot_rows = self.time_links(&workspace, capacity.max_tokens)?;
        if let (Some(peers), Some(rows)) = (&mut workspace.peers, one_shot_rows) {
            peers.one_shot_rows = rows;
        }
        Ok(workspace)
    }

    fn allocate_rank_cache(&mut self, shape: &CacheShape, member: &Member) -> Result<Self::Cache, OpError> {
        if member.parallelism().context == ContextSplit::Whole {
            return self.allocate_cache(shape);
        }
        let part = BlockParts::new(shape.block_size, member.share())?.part();
        let mut cache = Cache::new(&mut self.stream, &CacheShape { block_size: part, ..*shape })?;
        cache.of_rank = Some(addresses_of_all("allocate_cache", member, cache.buffer.address)?);
        Ok(cache)
    }
}

/// The address that each rank has.
fn addresses_of_all(op: &'static str, member: &Member, own: u64) -> Result<[u64; MAX_RANKS], OpError> {
    let mut addresses = [0; MAX_RANKS];
    member.exchange_words(op, &[own], |rank, address| {
        addresses[rank] = address.first().copied().unwrap_or_default();
    })?;
    Ok(addresses)
}
