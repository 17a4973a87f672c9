//! Several backends as one: each is a rank on its own thread, holds its share of every weight and
//! of the cache, and gets the same plan. Sums over ranks are inside the ranks' own operations; the
//! callers of this module do not see them.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use std::collections::BTreeMap;

use super::exchange::{Meeting, Member};
use super::pieces::ExpertPieces;
use super::share::{self, Share};
use crate::{
    Activation, AttentionExchange, AttentionInMatrices, Backend, BlockId, CacheShape, Calibrate, Capacity,
    ContextSplit, ExpertMatrices, ExpertSplit, Layers, MemoryNeeds, MlaShape, ModelShape, OpError, Outcomes,
    Parallelism, Preferences, QueryMatrices, RopeTable, Routed, RouterShape, SampleRows, SeqSlot, SlotSpec,
    Split, StepPlan, Storage, Ticket, TokenId, Upcoming, expect,
};
use perigee_numbers::quant::StoredMatrix;
use perigee_numbers::tensor::TensorView;
use perigee_numbers::threads::ThreadPool;

/// A backend that can be one of several ranks. Its weights are cut before the load; sizes are those
/// of all ranks together.
pub trait Rank: Backend {
    /// Becomes one of several ranks, before anything is loaded.
    fn join(&mut self, _share: Share) {}

    /// Bytes of a value of weights that every rank has whole.
    const COPY_BYTES: usize = 4;

    /// Bytes of the workspace of rank `share.rank`, with what the ranks exchange, and of its part of the cache.
    fn rank_needs(
        &self,
        shape: &ModelShape,
        capacity: &Capacity,
        cache: &CacheShape,
        share: Share,
        parallelism: Parallelism,
    ) -> MemoryNeeds;

    /// Uploads its experts of a layer; `first` is the number of the first one.
    fn load_expert_range(
        &mut self,
        experts: &ExpertPieces<'_>,
        first: usize,
    ) -> Result<Self::Experts, OpError>;

    /// Uploads W_UK and W_UV of this rank's heads, and of `all` where the ranks exchange heads.
    fn load_rank_kv_up(
        &mut self,
        own: (&StoredMatrix<'_>, &MlaShape),
        all: Option<(&StoredMatrix<'_>, &MlaShape)>,
    ) -> Result<Self::KvUp, OpError>;

    /// A workspace whose operations exchange values with the other ranks.
    fn allocate_rank_workspace(
        &mut self,
        shape: &ModelShape,
        capacity: &Capacity,
        rope: &RopeTable,
        member: Member,
    ) -> Result<Self::Workspace, OpError>;

    /// This rank's part of the latent cache, zeroed.
    fn allocate_rank_cache(&mut self, shape: &CacheShape, member: &Member) -> Result<Self::Cache, OpError>;
}

/// Most commands that wait; more are run without a result to wait for.
const MAX_QUEUED: usize = 256;

/// A command of every rank, which owns what it refers to.
type Command<B> = Box<dyn Fn(Share, &mut B) -> Result<(), OpError> + Send + Sync>;

/// A backend made of ranks.
///
/// Operations without a result are commands that wait in a queue; a call with one hands the queue to the ranks' threads, each of which runs
/// it to its end at its own speed. An error of a queued command comes out of that call.
pub struct Group<B> {
    /// Worker `r` of the pool runs rank `r`.
    pool: ThreadPool,
    queue: Vec<Command<B>>,
    /// Times that the ranks' threads were given commands.
    num_turns: u64,
    pub(super) ranks: Vec<Mutex<B>>,
    meeting: Arc<Meeting>,
    parallelism: Parallelism,
    /// Ids of the network.
    vocab_size: usize,
    /// Buffer of the last read values.
    values: Vec<f32>,
}

/// One value per rank, which commands share.
pub struct PerRank<T>(pub(super) Arc<[T]>);

/// One mutable state per rank, which commands share.
pub struct RankStates<T>(pub(super) PerRank<Mutex<T>>);

/// Experts of one layer, split over ranks.
pub struct GroupExperts<T> {
    ranks: PerRank<T>,
    /// The experts that each rank has, or has a part of.
    held: Vec<Range<usize>>,
    /// Whether experts are cut by inner units.
    is_cut: bool,
}

impl<T> PerRank<T> {
    pub(super) fn new(values: Vec<T>) -> Self {
        Self(values.into())
    }

    pub(super) fn at(&self, rank: Share) -> &T {
        &self.0[rank.rank]
    }

    pub(super) fn share(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> RankStates<T> {
    pub(super) fn new(states: Vec<T>) -> Self {
        Self(PerRank::new(states.into_iter().map(Mutex::new).collect()))
    }

    pub(super) fn at(&self, rank: Share) -> MutexGuard<'_, T> {
        locked(self.0.at(rank))
    }

    pub(super) fn share(&self) -> Self {
        Self(self.0.share())
    }
}

pub(super) fn locked<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic ends the step; the next `begin` overwrites the rank's incomplete state.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Abandons the exchange on a panic of the rank, which ends the wait of the other ranks.
struct Abandon<'a>(&'a Meeting);

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abandon();
        }
    }
}

impl<B: Rank> Group<B> {
    /// A group of these ranks, in their order, with whole experts and positions in parts.
    ///
    /// Errors: [`OpError::Device`] if the system starts too few threads.
    pub fn new(ranks: Vec<B>) -> Result<Self, OpError> {
        let parallelism = Parallelism::default_of(ranks.len().max(1));
        Self::with(ranks, parallelism)
    }

    /// A group of these ranks that shares a network so.
    ///
    /// Errors: [`OpError::Device`] if the system starts too few threads, or the groups of experts do not divide the ranks.
    pub fn with(ranks: Vec<B>, parallelism: Parallelism) -> Result<Self, OpError> {
        let world = ranks.len().max(1);
        let groups = parallelism.expert_groups;
        if groups == 0 || !world.is_multiple_of(groups) {
            let text = format!(
                "{groups} groups of experts (parallel.expert) do not divide {world} ranks (device.ranks)"
            );
            return Err(OpError::Device { op: "ranks", code: 0, text, fatal: true });
        }
        let pool = ThreadPool::new("rank", world);
        if pool.num_threads() != ranks.len() {
            let text = format!("{} of {} threads could be started", pool.num_threads(), ranks.len());
            return Err(OpError::Device { op: "ranks", code: 0, text, fatal: true });
        }
        let meeting = Arc::new(Meeting::new(world));
        let joined = |(rank, mut backend): (usize, B)| {
            backend.join(Share { rank, world });
            Mutex::new(backend)
        };
        let ranks = ranks.into_iter().enumerate().map(joined).collect();
        Ok(Self {
            pool,
            queue: Vec::new(),
            num_turns: 0,
            ranks,
            meeting,
            parallelism,
            vocab_size: 0,
            values: Vec::new(),
        })
    }

    /// This group with another division of the context, before a network is loaded. The number of expert groups stays.
    pub fn sharing(self, parallelism: Parallelism) -> Self {
        let expert_groups = self.parallelism.expert_groups;
        Self { parallelism: Parallelism { expert_groups, ..parallelism }, ..self }
    }

    /// Times that the threads of the ranks were given commands so far, of which each runs all that had waited.
    pub fn num_turns(&self) -> u64 {
        self.num_turns
    }

    /// Bytes that the ranks have given one another so far, by operation.
    pub fn exchanged(&self) -> BTreeMap<&'static str, u64> {
        self.meeting.deposited()
    }

    /// Queues a command of every rank. Errors: those of commands before it, where the queue is full.
    pub(super) fn enqueue(
        &mut self,
        command: impl Fn(Share, &mut B) -> Result<(), OpError> + Send + Sync + 'static,
    ) -> Result<(), OpError> {
        self.queue.push(Box::new(command));
        match self.queue.len() < MAX_QUEUED {
            true => Ok(()),
            false => self.settle(),
        }
    }

    /// Runs the queued commands on every rank. Errors: as [`Group::each`].
    pub(super) fn settle(&mut self) -> Result<(), OpError> {
        match self.queue.is_empty() {
            true => Ok(()),
            false => self.behind_queue(|_, _| Ok(())).map(|_| ()),
        }
    }

    /// Runs `work` on every rank when all ranks have run the queued commands; results in rank order. Errors: the first error that is not the
    /// report of another rank's failure.
    pub(super) fn each<R: Send>(
        &mut self,
        work: impl Fn(Share, &mut B) -> Result<R, OpError> + Sync,
    ) -> Result<Vec<R>, OpError> {
        self.settle()?;
        self.behind_queue(work)
    }

    /// [`Group::each`] of work that reads nothing of other ranks: each rank runs it behind its own commands.
    fn behind_queue<R: Send>(
        &mut self,
        work: impl Fn(Share, &mut B) -> Result<R, OpError> + Sync,
    ) -> Result<Vec<R>, OpError> {
        let (ranks, meeting) = (&self.ranks, &*self.meeting);
        // Taken, so that a panic drops it.
        let mut queue = std::mem::take(&mut self.queue);
        meeting.reset();
        self.num_turns += 1;
        let results: Vec<Mutex<Option<Result<R, OpError>>>> =
            ranks.iter().map(|_| Mutex::default()).collect();
        self.pool.run(&|rank| {
            let _abandon = Abandon(meeting);
            let (share, mut backend) = (Share { rank, world: ranks.len() }, locked(&ranks[rank]));
            let ran = queue.iter().try_for_each(|command| command(share, &mut backend));
            let result = ran.and_then(|()| work(share, &mut backend));
            if result.is_err() {
                meeting.abandon();
            }
            *locked(&results[rank]) = Some(result);
        });
        queue.clear();
        self.queue = queue;
        let mut values = Vec::with_capacity(results.len());
        let mut abandoned = None;
        for result in
            results.into_iter().filter_map(|r| r.into_inner().unwrap_or_else(PoisonError::into_inner))
        {
            match result {
                Ok(value) => values.push(value),
                Err(error @ OpError::Abandoned { .. }) => abandoned = Some(error),
                Err(error) => return Err(error),
            }
        }
        abandoned.map_or(Ok(values), Err)
    }

    /// Runs `work` on the first rank alone.
    pub(super) fn on_first<R>(&self, work: impl FnOnce(Share, &mut B) -> R) -> R {
        work(Share { rank: 0, world: self.ranks.len() }, &mut locked(&self.ranks[0]))
    }

    /// Bytes of each rank's part of a block.
    fn rank_block_bytes(&self, cache: &RankStates<B::Cache>) -> Vec<usize> {
        let ranks = self.ranks.iter().zip(&*cache.0.0);
        ranks.map(|(rank, cache)| locked(rank).block_bytes(&locked(cache))).collect()
    }

    /// Uploads each rank's part of a weight by `load`.
    fn load_split(
        &mut self,
        op: &'static str,
        host: &StoredMatrix<'_>,
        split: Split,
        load: impl Fn(&mut B, &StoredMatrix<'_>, Split) -> Result<B::Matrix, OpError> + Sync,
    ) -> Result<PerRank<B::Matrix>, OpError> {
        let [out, in_features] = share::sizes(op, host)?;
        let matrix = self.each(|share, rank| {
            let own = match split {
                Split::Rows { num_units } => share::rows(op, host, part(op, share, out, num_units)?)?,
                Split::Cols { num_units } => share::cols(op, host, part(op, share, in_features, num_units)?)?,
            };
            load(rank, &own.view(), split)
        });
        matrix.map(PerRank::new)
    }

    pub(super) fn on_each(
        &mut self,
        work: impl Fn(Share, &mut B) -> Result<(), OpError> + Sync,
    ) -> Result<(), OpError> {
        self.each(work).map(|_| ())
    }
}

/// The rank's rows or columns of `size`, which consists of `num_units` equal runs. Errors: fewer runs than ranks.
fn part(op: &'static str, share: Share, size: usize, num_units: usize) -> Result<Range<usize>, OpError> {
    let units = share.of_each(op, "heads, or single rows or columns,", num_units, 1)?;
    let len = size / num_units.max(1);
    Ok(units.start * len..units.end * len)
}

impl<B: Rank> Storage for Group<B> {
    type Matrix = PerRank<B::Matrix>;
    type Vector = PerRank<B::Vector>;
    type AttentionIn = PerRank<B::AttentionIn>;
    type KvUp = PerRank<B::KvUp>;
    type Router = PerRank<B::Router>;
    type Experts = GroupExperts<B::Experts>;
    type Workspace = RankStates<B::Workspace>;
    type Cache = RankStates<B::Cache>;
    type BlockRead = Vec<B::BlockRead>;

    fn name(&self) -> &'static str {
        locked(&self.ranks[0]).name()
    }
}

impl<B: Rank> Backend for Group<B> {
    const ENQUEUES: bool = B::ENQUEUES;

    fn memory_needs(&self, shape: &ModelShape, capacity: &Capacity, cache: &CacheShape) -> MemoryNeeds {
        let world = self.ranks.len();
        let of_rank = |rank: usize| {
            let share = Share { rank, world };
            locked(&self.ranks[rank]).rank_needs(shape, capacity, cache, share, self.parallelism)
        };
        let most = (0..world).map(of_rank).reduce(|a, b| MemoryNeeds {
            copies_bytes: 0,
            workspace_bytes: a.workspace_bytes.max(b.workspace_bytes),
            cache_bytes: a.cache_bytes.max(b.cache_bytes),
        });
        let values = copied_values(shape, self.parallelism) * cache.num_layers;
        let copies_bytes = ((world - 1) * values * B::COPY_BYTES) as u64;
        MemoryNeeds { copies_bytes, ..most.unwrap_or_default().times(world) }
    }

    fn preferences(&self) -> Preferences {
        locked(&self.ranks[0]).preferences()
    }

    fn recorded_rows(&self, capacity: &Capacity) -> Vec<usize> {
        locked(&self.ranks[0]).recorded_rows(capacity)
    }

    /// Of ranks with memory of their own as many times the least, since every rank needs about the same.
    fn free_memory(&mut self) -> Result<Option<u64>, OpError> {
        let world = self.ranks.len() as u64;
        let free = self.each(|_, rank| rank.free_memory())?;
        let least = free.into_iter().collect::<Option<Vec<u64>>>().and_then(|free| free.into_iter().min());
        Ok(least.map(|least| world * least))
    }

    fn load_matrix(&mut self, host: &StoredMatrix<'_>, split: Split) -> Result<Self::Matrix, OpError> {
        self.load_split("load_matrix", host, split, B::load_matrix)
    }

    fn load_table(&mut self, host: &StoredMatrix<'_>, split: Split) -> Result<Self::Matrix, OpError> {
        self.load_split("load_table", host, split, B::load_table)
    }

    fn load_vector(&mut self, host: &TensorView<'_>) -> Result<Self::Vector, OpError> {
        self.each(|_, rank| rank.load_vector(host)).map(PerRank::new)
    }

    fn load_attention_in(
        &mut self,
        host: &AttentionInMatrices<'_>,
        shape: &MlaShape,
    ) -> Result<Self::AttentionIn, OpError> {
        let op = "load_attention_in";
        let weights = self.each(|share, rank| {
            let shape = own_heads(share, shape);
            let of_heads = |stored: &StoredMatrix<'_>| share::sizes(op, stored).map(|[out, _]| out);
            let num_heads = shape.1;
            match &host.query {
                QueryMatrices::Latent { a, norm, b } => {
                    let b = share::rows(op, b, part(op, share, of_heads(b)?, num_heads)?)?;
                    let query = QueryMatrices::Latent { a: *a, norm: *norm, b: b.view() };
                    rank.load_attention_in(&AttentionInMatrices { query, ..host.clone() }, &shape.0)
                }
                QueryMatrices::Direct(q) => {
                    let q = share::rows(op, q, part(op, share, of_heads(q)?, num_heads)?)?;
                    let query = QueryMatrices::Direct(q.view());
                    rank.load_attention_in(&AttentionInMatrices { query, ..host.clone() }, &shape.0)
                }
            }
        });
        weights.map(PerRank::new)
    }

    fn load_kv_up(&mut self, host: &StoredMatrix<'_>, shape: &MlaShape) -> Result<Self::KvUp, OpError> {
        let op = "load_kv_up";
        let [out, _] = share::sizes(op, host)?;
        let by_heads = self.parallelism.context == ContextSplit::Split(AttentionExchange::Heads);
        let weights = self.each(|share, rank| {
            let (own, num_heads) = own_heads(share, shape);
            let rows = share::rows(op, host, part(op, share, out, num_heads)?)?;
            rank.load_rank_kv_up((&rows.view(), &own), by_heads.then_some((host, shape)))
        });
        weights.map(PerRank::new)
    }

    fn load_router(
        &mut self,
        weight: &StoredMatrix<'_>,
        bias: &TensorView<'_>,
        shape: &RouterShape,
    ) -> Result<Self::Router, OpError> {
        self.each(|_, rank| rank.load_router(weight, bias, shape)).map(PerRank::new)
    }

    fn load_experts(
        &mut self,
        experts: &[ExpertMatrices<'_>],
        split: ExpertSplit,
    ) -> Result<Self::Experts, OpError> {
        // Groups of ranks that have whole experts together; a rank is one of `within` that cut them.
        let groups = match split {
            ExpertSplit::Experts => self.parallelism.expert_groups,
            ExpertSplit::Units => 1,
        };
        let within = self.ranks.len() / groups;
        let held = |rank: usize| Share { rank: rank / within, world: groups }.of(experts.len(), 1);
        let ranks = self.each(|share, rank| {
            let own = held(share.rank);
            let within = Share { rank: share.rank % within, world: within };
            rank.load_expert_range(&ExpertPieces::cut(&experts[own.clone()], within), own.start)
        })?;
        let held = (0..self.ranks.len()).map(held).collect();
        Ok(GroupExperts { held, ranks: PerRank::new(ranks), is_cut: within > 1 })
    }

    fn allocate_workspace(
        &mut self,
        shape: &ModelShape,
        capacity: &Capacity,
        rope: &RopeTable,
    ) -> Result<Self::Workspace, OpError> {
        let (meeting, parallelism) = (self.meeting.clone(), self.parallelism);
        self.vocab_size = shape.vocab_size;
        let states = self.each(|share, rank| {
            let member = Member::new(share, parallelism, meeting.clone());
            rank.allocate_rank_workspace(shape, capacity, rope, member)
        });
        states.map(RankStates::new)
    }

    fn allocate_cache(&mut self, shape: &CacheShape) -> Result<Self::Cache, OpError> {
        let (meeting, parallelism) = (self.meeting.clone(), self.parallelism);
        let states = self.each(|share, rank| {
            let member = Member::new(share, parallelism, meeting.clone());
            rank.allocate_rank_cache(shape, &member)
        });
        states.map(RankStates::new)
    }

    fn set_cache_scales(&mut self, cache: &mut Self::Cache, exponents: &[i32]) -> Result<(), OpError> {
        self.on_each(|at, rank| rank.set_cache_scales(&mut cache.at(at), exponents))
    }

    /// The parts of all ranks, or one rank's where all have the same.
    fn block_bytes(&self, cache: &Self::Cache) -> usize {
        let bytes = self.rank_block_bytes(cache);
        match self.parallelism.context {
            ContextSplit::Split(_) => bytes.iter().sum(),
            ContextSplit::Whole => bytes[0],
        }
    }

    fn start_block_read(&mut self, block: BlockId, cache: &Self::Cache) -> Result<Self::BlockRead, OpError> {
        self.each(|at, rank| rank.start_block_read(block, &cache.at(at)))
    }

    fn finish_block_read(&mut self, read: Self::BlockRead, out: &mut Vec<u8>) -> Result<(), OpError> {
        // On all ranks at once: what one waits for may exchange values with the others.
        let reads: Vec<Mutex<Option<B::BlockRead>>> =
            read.into_iter().map(|read| Mutex::new(Some(read))).collect();
        let mut parts = self.each(|at, rank| {
            let mut part = Vec::new();
            if let Some(read) = reads.get(at.rank).and_then(|read| locked(read).take()) {
                rank.finish_block_read(read, &mut part)?;
            }
            Ok(part)
        })?;
        if self.parallelism.context == ContextSplit::Whole {
            parts.truncate(1);
        }
        out.extend(parts.concat());
        Ok(())
    }

    fn write_block(
        &mut self,
        block: BlockId,
        content: &[u8],
        cache: &mut Self::Cache,
    ) -> Result<(), OpError> {
        let bytes = self.rank_block_bytes(cache);
        if self.parallelism.context == ContextSplit::Whole {
            expect("write_block", &[bytes[0]], &[content.len()])?;
            return self.on_each(|at, rank| rank.write_block(block, content, &mut cache.at(at)));
        }
        expect("write_block", &[bytes.iter().sum()], &[content.len()])?;
        self.on_each(|at, rank| {
            let first: usize = bytes[..at.rank].iter().sum();
            rank.write_block(block, &content[first..first + bytes[at.rank]], &mut cache.at(at))
        })
    }

    fn begin(&mut self, plan: &StepPlan, w: &mut Self::Workspace) -> Result<(), OpError> {
        let (plan, w) = (plan.clone(), w.share());
        self.enqueue(move |at, rank| rank.begin(&plan, &mut w.at(at)))
    }

    /// Ranks get the same plans, so they have recorded the same shapes.
    fn begin_layers(&mut self, w: &mut Self::Workspace) -> Result<Layers, OpError> {
        let layers = self.behind_queue(|at, rank| rank.begin_layers(&mut w.at(at)))?;
        if layers.iter().any(|other| *other != layers[0]) {
            let text = "one rank has recorded a step that another has not".into();
            return Err(OpError::Device { op: "begin_layers", code: 0, text, fatal: true });
        }
        Ok(layers[0])
    }

    /// If a queued operation has failed on one rank, all ranks drop their recording.
    fn end_layers(&mut self, w: &mut Self::Workspace, complete: bool) -> Result<(), OpError> {
        let ran = self.settle();
        let ended = self.on_each(|at, rank| rank.end_layers(&mut w.at(at), complete && ran.is_ok()));
        ran.and(ended)
    }

    /// In the queue whatever its length: a hint has no error, and the operation that follows one has.
    fn announce(&mut self, upcoming: Upcoming<'_, Self>, w: &mut Self::Workspace) {
        let w = w.share();
        let command: Command<B> = match upcoming {
            Upcoming::BehindAttention(matrix) => {
                let matrix = matrix.share();
                Box::new(move |at, rank| {
                    rank.announce(Upcoming::BehindAttention(matrix.at(at)), &mut w.at(at));
                    Ok(())
                })
            }
            Upcoming::BehindLayer(weights) => {
                let weights = weights.share();
                Box::new(move |at, rank| {
                    rank.announce(Upcoming::BehindLayer(weights.at(at)), &mut w.at(at));
                    Ok(())
                })
            }
        };
        self.queue.push(command);
    }

    fn embed(&mut self, table: &Self::Matrix, w: &mut Self::Workspace) -> Result<(), OpError> {
        let (table, w) = (table.share(), w.share());
        self.enqueue(move |at, rank| rank.embed(table.at(at), &mut w.at(at)))
    }

    fn norm(&mut self, gain: &Self::Vector, w: &mut Self::Workspace) -> Result<(), OpError> {
        let (gain, w) = (gain.share(), w.share());
        self.enqueue(move |at, rank| rank.norm(gain.at(at), &mut w.at(at)))
    }

    fn attention_in(
        &mut self,
        weights: &Self::AttentionIn,
        layer: usize,
        cache: &mut Self::Cache,
        w: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        let (weights, cache, w) = (weights.share(), cache.share(), w.share());
        self.enqueue(move |at, rank| {
            rank.attention_in(weights.at(at), layer, &mut cache.at(at), &mut w.at(at))
        })
    }

    fn attend(
        &mut self,
        kv_up: &Self::KvUp,
        layer: usize,
        cache: &mut Self::Cache,
        w: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        let (kv_up, cache, w) = (kv_up.share(), cache.share(), w.share());
        self.enqueue(move |at, rank| rank.attend(kv_up.at(at), layer, &mut cache.at(at), &mut w.at(at)))
    }

    fn project_add_norm<'g>(
        &mut self,
        weight: &Self::Matrix,
        gain: &'g Self::Vector,
        w: &mut Self::Workspace,
    ) -> Result<Option<&'g Self::Vector>, OpError> {
        let pending = self.behind_queue(|at, rank| {
            Ok(rank.project_add_norm(weight.at(at), gain.at(at), &mut w.at(at))?.is_some())
        })?;
        // A norm that is taken twice writes the same.
        Ok(pending.contains(&true).then_some(gain))
    }

    fn moe(
        &mut self,
        pending: Option<&Self::Vector>,
        router: &Self::Router,
        routed: &Self::Experts,
        shared: Option<&Self::Experts>,
        gain: Option<&Self::Vector>,
        w: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        let (router, routed, shared) =
            (router.share(), routed.ranks.share(), shared.map(|shared| shared.ranks.share()));
        let ([pending, gain], w) = ([pending, gain].map(|gain| gain.map(PerRank::share)), w.share());
        self.enqueue(move |at, rank| {
            let [pending, gain] = [&pending, &gain].map(|gain| gain.as_ref().map(|gain| gain.at(at)));
            let shared = shared.as_ref().map(|shared| shared.at(at));
            rank.moe(pending, router.at(at), routed.at(at), shared, gain, &mut w.at(at))
        })
    }

    fn dense(
        &mut self,
        pending: Option<&Self::Vector>,
        weights: &Self::Experts,
        gain: Option<&Self::Vector>,
        w: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        let (weights, w) = (weights.ranks.share(), w.share());
        let [pending, gain] = [pending, gain].map(|gain| gain.map(PerRank::share));
        self.enqueue(move |at, rank| {
            let [pending, gain] = [&pending, &gain].map(|gain| gain.as_ref().map(|gain| gain.at(at)));
            rank.dense(pending, weights.at(at), gain, &mut w.at(at))
        })
    }

    fn logits(
        &mut self,
        head: &Self::Matrix,
        rows: Range<usize>,
        w: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        let (head, w) = (head.share(), w.share());
        self.enqueue(move |at, rank| rank.logits(head.at(at), rows.clone(), &mut w.at(at)))?;
        // Ranks that compute in their calls do it here, where the engine measures it.
        match B::ENQUEUES {
            true => Ok(()),
            false => self.settle(),
        }
    }

    fn open_slot(
        &mut self,
        slot: SeqSlot,
        spec: &SlotSpec<'_>,
        w: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        self.on_each(|at, rank| rank.open_slot(slot, spec, &mut w.at(at)))
    }

    fn rewind_slot(
        &mut self,
        slot: SeqSlot,
        removed: &[TokenId],
        last: TokenId,
        w: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        let (removed, w) = (removed.to_vec(), w.share());
        self.enqueue(move |at, rank| rank.rewind_slot(slot, &removed, last, &mut w.at(at)))
    }

    fn sample(&mut self, rows: &SampleRows<'_>, w: &mut Self::Workspace) -> Result<Ticket, OpError> {
        self.behind_queue(|at, rank| rank.sample(rows, &mut w.at(at))).map(|tickets| tickets[0])
    }

    fn wait(&mut self, ticket: Ticket, w: &mut Self::Workspace, out: &mut Outcomes) -> Result<(), OpError> {
        // All ranks have the same outcomes; those of the first rank are used.
        let first = Mutex::new(out);
        self.on_each(|at, rank| match at.rank {
            0 => rank.wait(ticket, &mut w.at(at), &mut locked(&first)),
            _ => rank.wait(ticket, &mut w.at(at), &mut Outcomes::default()),
        })
    }
}

/// Values of a layer's weights that every rank has whole: in front of the heads, of the router, and where heads are exchanged W_UK and
/// W_UV.
pub fn copied_values(shape: &ModelShape, parallelism: Parallelism) -> usize {
    let mla = &shape.mla;
    let latents = shape.q_lora_rank.unwrap_or(0) + mla.latent_dim();
    let kv_up = match parallelism.context {
        ContextSplit::Split(AttentionExchange::Heads) => {
            mla.num_heads * (mla.qk_nope_head_dim + mla.v_head_dim) * mla.kv_lora_rank
        }
        ContextSplit::Split(AttentionExchange::Latents) | ContextSplit::Whole => 0,
    };
    shape.hidden_size * (latents + shape.router.num_experts) + kv_up
}

/// The attention shape of a rank's heads, and the number of heads of all ranks.
fn own_heads(share: Share, shape: &MlaShape) -> (MlaShape, usize) {
    let num_heads = share.of(shape.num_heads, 1).len();
    (MlaShape { num_heads, ..*shape }, shape.num_heads)
}

impl<B: Rank + Calibrate> Calibrate for Group<B> {
    fn read<'a>(&'a mut self, what: Activation, w: &'a Self::Workspace) -> Result<&'a [f32], OpError> {
        self.values.clear();
        match what {
            Activation::Hidden | Activation::Normed => {
                self.settle()?;
                let rows = self.on_first(|at, rank| rank.read(what, &w.at(at)).map(<[f32]>::to_vec))?;
                self.values = rows;
            }
            // In parts: each rank has those of its ids.
            Activation::Logits => {
                let parts = self.each(|at, rank| Ok(rank.read(what, &w.at(at))?.to_vec()))?;
                let num_rows = parts.iter().map(Vec::len).sum::<usize>() / self.vocab_size.max(1);
                for row in 0..num_rows {
                    for part in &parts {
                        let width = part.len() / num_rows;
                        self.values.extend_from_slice(&part[row * width..][..width]);
                    }
                }
            }
        }
        Ok(&self.values)
    }

    fn write_hidden(&mut self, rows: &[f32], w: &mut Self::Workspace) -> Result<(), OpError> {
        self.on_each(|at, rank| rank.write_hidden(rows, &mut w.at(at)))
    }

    fn route(
        &mut self,
        router: &Self::Router,
        routed: &Self::Experts,
        w: &mut Self::Workspace,
    ) -> Result<Routed, OpError> {
        // The norm of a sum is not a sum of norms.
        if routed.is_cut {
            return Err(OpError::CutExperts { op: "route" });
        }
        let ranks = self.each(|at, rank| rank.route(router.at(at), routed.ranks.at(at), &mut w.at(at)))?;
        // The rank that holds an expert computes its norm; the norm is 0 on the other ranks.
        let sum = |mut all: Routed, (_, _, norms): Routed| {
            all.2.iter_mut().zip(&norms).for_each(|(sum, norm)| *sum += norm);
            all
        };
        Ok(ranks.into_iter().reduce(sum).unwrap_or_default())
    }

    fn chosen(&mut self, w: &Self::Workspace) -> Result<Vec<u32>, OpError> {
        let mut ranks = self.each(|at, rank| rank.chosen(&w.at(at)))?;
        Ok(ranks.swap_remove(0))
    }

    fn inner_peak(
        &mut self,
        rows: &[u32],
        weights: &Self::Experts,
        expert: usize,
        w: &Self::Workspace,
    ) -> Result<f32, OpError> {
        let peaks = self.each(|at, rank| {
            let own = &weights.held[at.rank];
            match own.contains(&expert) {
                true => rank.inner_peak(rows, weights.ranks.at(at), expert - own.start, &w.at(at)),
                false => Ok(0.0),
            }
        })?;
        Ok(crate::peak(peaks))
    }

    fn cached_peak(
        &mut self,
        layer: usize,
        cache: &Self::Cache,
        w: &Self::Workspace,
    ) -> Result<f32, OpError> {
        let peaks = self.each(|at, rank| rank.cached_peak(layer, &cache.at(at), &w.at(at)))?;
        Ok(crate::peak(peaks))
    }
}
