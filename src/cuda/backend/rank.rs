//! The backend as one of several ranks: heads, ids and inner units are cut, keys are whole on every rank or in parts, and what ranks give
//! one another are kernels of the same stream, which recordings hold like any other.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::links::Variants;
use super::memory::{ExchangeSizes, device_needs, rows_of};
use super::{Cache, CudaBackend, Experts, KvUp, Workspace};
use crate::attention::ContextParts;
use crate::driver::{Driver, DriverError, Transfer};
use crate::exchange_times::ExchangeTimes;
use crate::kernels::all_reduce::{self, Layout, Link, LinkState, MAX_RANKS, Operation};
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
    pub(super) link: Link,
    pub(super) layout: Layout,
    /// `[T, D]` f32: this rank's part of a sum.
    pub(super) partial: Buffer,
    /// Ids of this rank.
    ids: Range<usize>,
    /// Ids of all ranks.
    vocab: usize,
    board: Board,
    /// Where keys are in parts.
    parts: Option<ContextParts>,
    pub(super) member: Member,
    /// How sums are computed, by their rows.
    variants: Variants,
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
    pub(super) fn ended(&self, state: LinkState) -> Result<(), OpError> {
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

    /// A sum as `rows` says.
    pub(super) fn reduce(
        &mut self,
        operation: Operation,
        num_rows: usize,
        peers: &Peers,
        rows: &all_reduce::Rows,
    ) -> Result<(), OpError> {
        let variant = (peers.variants.of(num_rows), self.wire);
        all_reduce::launch(&mut self.stream, &peers.link, &peers.layout, variant, operation, num_rows, rows)
    }
}

pub(super) fn failure(text: String) -> OpError {
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
            variants: Variants::unmeasured(&sizes.sums),
            wait: self.wait,
            asked: VecDeque::new(),
            busy: 0,
            times: self.exchange_times.clone(),
        };
        let mut workspace = self.workspace(&own, capacity, rope, Some(peers))?;
        let variants = self.measure_links(&workspace, capacity.max_tokens)?;
        if let (Some(peers), Some(variants)) = (&mut workspace.peers, variants) {
            peers.variants = variants;
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
