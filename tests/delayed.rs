//! A backend that computes as late as it may: calls are queued, and run when an outcome is waited for, or earlier as a seed says.
//!
//! It is what a device looks like to the engine, without one: a token's value is not there when the next step is planned, errors
//! come out where an outcome is waited for, whatever a call was given may change before the call runs, and the layers of a step
//! without rows in expanded form are recorded once and replayed. It can be a rank of a group: ranks of one seed run the same calls at the same
//! time, as exchanges need it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use perigee_decoding::sampling::TokenMask;
use perigee_numbers::quant::StoredMatrix;
use perigee_numbers::tensor::TensorView;
use perigee_ops::host::{ExpertPieces, Member, Rank, Share};
use perigee_ops::{
    Absent, AttentionInMatrices, Backend, BlockId, CacheShape, Capacity, DraftOps, ExpertMatrices,
    ExpertSplit, Layers, MemoryNeeds, MlaShape, ModelShape, MtpOps, OpError, Outcomes, Parallelism, Picture,
    Preferences, RopeTable, RouterShape, SampleRows, SeqSlot, SlotSpec, Split, StepPlan, Storage, Ticket,
    TokenId, TowerCapacity, TowerMatrices, TowerOps, TowerShape,
};

/// What a queued call refers to.
pub(crate) struct Held<T>(Arc<Mutex<T>>);

impl<T> Held<T> {
    fn new(value: T) -> Self {
        Self(Arc::new(Mutex::new(value)))
    }

    fn get(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }
}

impl<T> Clone for Held<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

type Call<B> = Box<dyn FnOnce(&mut B, &mut BTreeMap<Ticket, Ticket>) -> Result<(), OpError> + Send>;

/// A call of the layers, which a recording repeats.
type LayerCall<B> = Arc<dyn Fn(&mut B) -> Result<(), OpError> + Send + Sync>;

/// What crossed from host to device and back.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Transfers {
    pub(crate) steps: u64,
    /// Operations of layers, recorded ones once.
    pub(crate) operations: u64,
    /// Steps whose layers were a recording.
    pub(crate) replays: u64,
    pub(crate) logits: u64,
    /// Plans: one upload a step.
    pub(crate) plans: u64,
    /// Sets of rows to sample: one small upload a step.
    pub(crate) samples: u64,
    /// Outcomes: one download a step.
    pub(crate) outcomes: u64,
    /// Bytes of the largest outcome.
    pub(crate) largest_outcome: usize,
    /// Bytes of the largest set of rows.
    pub(crate) largest_sample: usize,
}

/// `inner`, late.
pub(crate) struct Delayed<B: Backend> {
    inner: B,
    queue: VecDeque<Call<B>>,
    /// Tickets given out, to the inner backend's.
    tickets: BTreeMap<Ticket, Ticket>,
    next: u64,
    rng: fastrand::Rng,
    /// Rows of the current step, if its layers can be recorded.
    rows: Option<usize>,
    recording: Option<(usize, Vec<LayerCall<B>>)>,
    /// By rows.
    recorded: BTreeMap<usize, Vec<LayerCall<B>>>,
    pub(crate) transfers: Arc<Mutex<Transfers>>,
}

impl<B: Backend> Delayed<B> {
    pub(crate) fn new(inner: B, seed: u64) -> Self {
        Self {
            inner,
            queue: VecDeque::new(),
            tickets: BTreeMap::new(),
            next: 0,
            rng: fastrand::Rng::with_seed(seed),
            rows: None,
            recording: None,
            recorded: BTreeMap::new(),
            transfers: Arc::default(),
        }
    }

    fn enqueue(
        &mut self,
        call: impl FnOnce(&mut B, &mut BTreeMap<Ticket, Ticket>) -> Result<(), OpError> + Send + 'static,
    ) -> Result<(), OpError> {
        self.queue.push_back(Box::new(call));
        // A device is ahead of the waiting host now and then.
        while !self.queue.is_empty() && self.rng.u32(..4) == 0 {
            self.run_one()?;
        }
        Ok(())
    }

    /// Enqueues an operation of the layers, or records it.
    fn layer(
        &mut self,
        call: impl Fn(&mut B) -> Result<(), OpError> + Send + Sync + 'static,
    ) -> Result<(), OpError> {
        self.transfers.lock().unwrap().operations += 1;
        match &mut self.recording {
            Some((_, calls)) => {
                calls.push(Arc::new(call));
                Ok(())
            }
            None => self.enqueue(move |inner, _| call(inner)),
        }
    }

    fn replay(&mut self, rows: usize) -> Result<(), OpError> {
        let calls = self.recorded[&rows].clone();
        calls.into_iter().try_for_each(|call| self.enqueue(move |inner, _| call(inner)))
    }

    fn run_one(&mut self) -> Result<(), OpError> {
        match self.queue.pop_front() {
            Some(call) => call(&mut self.inner, &mut self.tickets),
            None => Ok(()),
        }
    }
}

impl<B: Backend> Storage for Delayed<B> {
    type Matrix = Held<B::Matrix>;
    type Vector = Held<B::Vector>;
    type AttentionIn = Held<B::AttentionIn>;
    type KvUp = Held<B::KvUp>;
    type Router = Held<B::Router>;
    type Experts = Held<B::Experts>;
    type Workspace = Held<B::Workspace>;
    type Cache = Held<B::Cache>;
    type BlockRead = Held<Option<B::BlockRead>>;

    fn name(&self) -> &'static str {
        "delayed"
    }
}

impl<B: Backend> Backend for Delayed<B> {
    const ENQUEUES: bool = true;

    fn memory_needs(&self, shape: &ModelShape, capacity: &Capacity, cache: &CacheShape) -> MemoryNeeds {
        self.inner.memory_needs(shape, capacity, cache)
    }

    fn preferences(&self) -> Preferences {
        self.inner.preferences()
    }

    fn load_matrix(&mut self, host: &StoredMatrix<'_>, split: Split) -> Result<Self::Matrix, OpError> {
        self.inner.load_matrix(host, split).map(Held::new)
    }

    fn load_vector(&mut self, host: &TensorView<'_>) -> Result<Self::Vector, OpError> {
        self.inner.load_vector(host).map(Held::new)
    }

    fn load_attention_in(
        &mut self,
        host: &AttentionInMatrices<'_>,
        shape: &MlaShape,
    ) -> Result<Self::AttentionIn, OpError> {
        self.inner.load_attention_in(host, shape).map(Held::new)
    }

    fn load_kv_up(&mut self, host: &StoredMatrix<'_>, shape: &MlaShape) -> Result<Self::KvUp, OpError> {
        self.inner.load_kv_up(host, shape).map(Held::new)
    }

    fn load_router(
        &mut self,
        weight: &StoredMatrix<'_>,
        bias: &TensorView<'_>,
        shape: &RouterShape,
    ) -> Result<Self::Router, OpError> {
        self.inner.load_router(weight, bias, shape).map(Held::new)
    }

    fn load_experts(
        &mut self,
        experts: &[ExpertMatrices<'_>],
        split: ExpertSplit,
    ) -> Result<Self::Experts, OpError> {
        self.inner.load_experts(experts, split).map(Held::new)
    }

    fn allocate_workspace(
        &mut self,
        shape: &ModelShape,
        capacity: &Capacity,
        rope: &RopeTable,
    ) -> Result<Self::Workspace, OpError> {
        self.inner.allocate_workspace(shape, capacity, rope).map(Held::new)
    }

    fn allocate_cache(&mut self, shape: &CacheShape) -> Result<Self::Cache, OpError> {
        self.inner.allocate_cache(shape).map(Held::new)
    }

    fn set_cache_scales(&mut self, cache: &mut Self::Cache, exponents: &[i32]) -> Result<(), OpError> {
        let (cache, exponents) = (cache.clone(), exponents.to_vec());
        self.enqueue(move |inner, _| inner.set_cache_scales(&mut cache.get(), &exponents))
    }

    fn block_bytes(&self, cache: &Self::Cache) -> usize {
        self.inner.block_bytes(&cache.get())
    }

    fn start_block_read(&mut self, block: BlockId, cache: &Self::Cache) -> Result<Self::BlockRead, OpError> {
        let (read, cache) = (Held::new(None), cache.clone());
        let started = read.clone();
        self.enqueue(move |inner, _| {
            *started.get() = Some(inner.start_block_read(block, &cache.get())?);
            Ok(())
        })?;
        Ok(read)
    }

    fn finish_block_read(&mut self, read: Self::BlockRead, out: &mut Vec<u8>) -> Result<(), OpError> {
        while read.get().is_none() {
            assert!(!self.queue.is_empty(), "the read was never started");
            self.run_one()?;
        }
        let started = read.get().take().unwrap();
        self.inner.finish_block_read(started, out)
    }

    fn write_block(
        &mut self,
        block: BlockId,
        content: &[u8],
        cache: &mut Self::Cache,
    ) -> Result<(), OpError> {
        let (content, cache) = (content.to_vec(), cache.clone());
        self.enqueue(move |inner, _| inner.write_block(block, &content, &mut cache.get()))
    }

    fn begin(&mut self, plan: &StepPlan, workspace: &mut Self::Workspace) -> Result<(), OpError> {
        {
            let mut transfers = self.transfers.lock().unwrap();
            transfers.steps += 1;
            transfers.plans += 1;
        }
        self.rows = plan.expanded.is_empty().then_some(plan.num_rows());
        self.recording = None;
        let (plan, workspace) = (plan.clone(), workspace.clone());
        self.enqueue(move |inner, _| inner.begin(&plan, &mut workspace.get()))
    }

    fn begin_layers(&mut self, _workspace: &mut Self::Workspace) -> Result<Layers, OpError> {
        let Some(rows) = self.rows else { return Ok(Layers::Run) };
        if self.recorded.contains_key(&rows) {
            self.transfers.lock().unwrap().replays += 1;
            self.replay(rows)?;
            return Ok(Layers::Replayed);
        }
        self.recording = Some((rows, Vec::new()));
        Ok(Layers::Run)
    }

    fn end_layers(&mut self, _workspace: &mut Self::Workspace, complete: bool) -> Result<(), OpError> {
        let Some((rows, calls)) = self.recording.take().filter(|_| complete) else { return Ok(()) };
        self.recorded.insert(rows, calls);
        self.replay(rows)
    }

    fn embed(&mut self, table: &Self::Matrix, workspace: &mut Self::Workspace) -> Result<(), OpError> {
        let (table, workspace) = (table.clone(), workspace.clone());
        self.layer(move |inner| inner.embed(&table.get(), &mut workspace.get()))
    }

    fn norm(&mut self, gain: &Self::Vector, workspace: &mut Self::Workspace) -> Result<(), OpError> {
        let (gain, workspace) = (gain.clone(), workspace.clone());
        self.layer(move |inner| inner.norm(&gain.get(), &mut workspace.get()))
    }

    fn attention_in(
        &mut self,
        weights: &Self::AttentionIn,
        layer: usize,
        cache: &mut Self::Cache,
        workspace: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        let (weights, cache, workspace) = (weights.clone(), cache.clone(), workspace.clone());
        self.layer(move |inner| {
            inner.attention_in(&weights.get(), layer, &mut cache.get(), &mut workspace.get())
        })
    }

    fn attend(
        &mut self,
        kv_up: &Self::KvUp,
        layer: usize,
        cache: &mut Self::Cache,
        workspace: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        let (kv_up, cache, workspace) = (kv_up.clone(), cache.clone(), workspace.clone());
        self.layer(move |inner| inner.attend(&kv_up.get(), layer, &mut cache.get(), &mut workspace.get()))
    }

    fn project_add_norm<'g>(
        &mut self,
        weight: &Self::Matrix,
        gain: &'g Self::Vector,
        workspace: &mut Self::Workspace,
    ) -> Result<Option<&'g Self::Vector>, OpError> {
        let (weight, own, workspace) = (weight.clone(), gain.clone(), workspace.clone());
        // Whether the backend will leave the norm to the FFN is not known here, so that it never does.
        self.layer(move |inner| {
            let (gain, mut workspace) = (own.get(), workspace.get());
            let pending = inner.project_add_norm(&weight.get(), &gain, &mut workspace)?;
            pending.map_or(Ok(()), |gain| inner.norm(gain, &mut workspace))
        })?;
        Ok(None)
    }

    fn moe(
        &mut self,
        pending: Option<&Self::Vector>,
        router: &Self::Router,
        routed: &Self::Experts,
        shared: Option<&Self::Experts>,
        gain: Option<&Self::Vector>,
        workspace: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        let (router, routed, workspace) = (router.clone(), routed.clone(), workspace.clone());
        assert!(pending.is_none(), "no norm was left to the FFN");
        let (shared, gain) = (shared.cloned(), gain.cloned());
        self.layer(move |inner| {
            let (shared, gain) = (shared.as_ref().map(Held::get), gain.as_ref().map(Held::get));
            let (shared, gain) = (shared.as_deref(), gain.as_deref());
            inner.moe(None, &router.get(), &routed.get(), shared, gain, &mut workspace.get())
        })
    }

    fn dense(
        &mut self,
        pending: Option<&Self::Vector>,
        weights: &Self::Experts,
        gain: Option<&Self::Vector>,
        workspace: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        assert!(pending.is_none(), "no norm was left to the FFN");
        let (weights, gain, workspace) = (weights.clone(), gain.cloned(), workspace.clone());
        self.layer(move |inner| {
            let gain = gain.as_ref().map(Held::get);
            inner.dense(None, &weights.get(), gain.as_deref(), &mut workspace.get())
        })
    }

    fn logits(
        &mut self,
        head: &Self::Matrix,
        rows: Range<usize>,
        workspace: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        self.transfers.lock().unwrap().logits += 1;
        let (head, workspace) = (head.clone(), workspace.clone());
        self.enqueue(move |inner, _| inner.logits(&head.get(), rows, &mut workspace.get()))
    }

    fn open_slot(
        &mut self,
        slot: SeqSlot,
        spec: &SlotSpec<'_>,
        workspace: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        let workspace = workspace.clone();
        let (prompt, reply, counts) = (spec.prompt.to_vec(), spec.reply.to_vec(), spec.counts);
        let (bias, stops) = (spec.logit_bias.to_vec(), spec.stops.to_vec());
        self.enqueue(move |inner, _| {
            let spec = SlotSpec { prompt: &prompt, reply: &reply, counts, logit_bias: &bias, stops: &stops };
            inner.open_slot(slot, &spec, &mut workspace.get())
        })
    }

    fn rewind_slot(
        &mut self,
        slot: SeqSlot,
        removed: &[TokenId],
        last: TokenId,
        workspace: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        let (removed, workspace) = (removed.to_vec(), workspace.clone());
        self.enqueue(move |inner, _| inner.rewind_slot(slot, &removed, last, &mut workspace.get()))
    }

    fn sample(&mut self, rows: &SampleRows<'_>, workspace: &mut Self::Workspace) -> Result<Ticket, OpError> {
        {
            let mut transfers = self.transfers.lock().unwrap();
            transfers.samples += 1;
            let bytes = size_of_val(&rows.rows[..]) + size_of_val(&rows.forbidden[..]);
            transfers.largest_sample = transfers.largest_sample.max(bytes);
        }
        let ticket = Ticket(self.next);
        self.next += 1;
        let workspace = workspace.clone();
        let (plain, forbidden) = (rows.rows.clone(), rows.forbidden.clone());
        let masks: Vec<TokenMask> = rows.masks.iter().map(|mask| (*mask).clone()).collect();
        self.enqueue(move |inner, tickets| {
            let rows = SampleRows { rows: plain, masks: masks.iter().collect(), forbidden };
            let own = inner.sample(&rows, &mut workspace.get())?;
            tickets.insert(ticket, own);
            Ok(())
        })?;
        Ok(ticket)
    }

    fn wait(
        &mut self,
        ticket: Ticket,
        workspace: &mut Self::Workspace,
        out: &mut Outcomes,
    ) -> Result<(), OpError> {
        while !self.tickets.contains_key(&ticket) {
            assert!(!self.queue.is_empty(), "waited for what was never sampled");
            self.run_one()?;
        }
        let own = self.tickets.remove(&ticket).expect("it was sampled");
        let before = size_of_val(&out.rows[..]) + size_of_val(&out.top[..]);
        self.inner.wait(own, &mut workspace.get(), out)?;
        let mut transfers = self.transfers.lock().unwrap();
        transfers.outcomes += 1;
        let bytes = size_of_val(&out.rows[..]) + size_of_val(&out.top[..]) - before;
        transfers.largest_outcome = transfers.largest_outcome.max(bytes);
        Ok(())
    }
}

impl<B: Rank> Rank for Delayed<B> {
    fn rank_needs(
        &self,
        shape: &ModelShape,
        capacity: &Capacity,
        cache: &CacheShape,
        share: Share,
        parallelism: Parallelism,
    ) -> MemoryNeeds {
        self.inner.rank_needs(shape, capacity, cache, share, parallelism)
    }

    fn load_expert_range(
        &mut self,
        experts: &ExpertPieces<'_>,
        first: usize,
    ) -> Result<Self::Experts, OpError> {
        self.inner.load_expert_range(experts, first).map(Held::new)
    }

    fn load_rank_kv_up(
        &mut self,
        own: (&StoredMatrix<'_>, &MlaShape),
        all: Option<(&StoredMatrix<'_>, &MlaShape)>,
    ) -> Result<Self::KvUp, OpError> {
        self.inner.load_rank_kv_up(own, all).map(Held::new)
    }

    fn allocate_rank_workspace(
        &mut self,
        shape: &ModelShape,
        capacity: &Capacity,
        rope: &RopeTable,
        member: Member,
    ) -> Result<Self::Workspace, OpError> {
        self.inner.allocate_rank_workspace(shape, capacity, rope, member).map(Held::new)
    }

    fn allocate_rank_cache(&mut self, shape: &CacheShape, member: &Member) -> Result<Self::Cache, OpError> {
        self.inner.allocate_rank_cache(shape, member).map(Held::new)
    }
}

impl<B: Backend> DraftOps for Delayed<B> {
    type Draft = Absent;
}

impl<B: Backend> MtpOps for Delayed<B> {
    type Fusion = Absent;
}

impl<B: Backend> TowerOps for Delayed<B> {
    type Tower = Held<B::Tower>;

    fn tower_bytes(&self, shape: &TowerShape, capacity: &TowerCapacity) -> u64 {
        self.inner.tower_bytes(shape, capacity)
    }

    fn load_tower(
        &mut self,
        host: &TowerMatrices<'_>,
        shape: &TowerShape,
        capacity: &TowerCapacity,
    ) -> Result<Self::Tower, OpError> {
        self.inner.load_tower(host, shape, capacity).map(Held::new)
    }

    fn begin_pictures(&mut self, pictures: &[&Picture], tower: &mut Self::Tower) -> Result<(), OpError> {
        let copy =
            |picture: &&Picture| Picture::new(picture.rows(), picture.cols(), picture.pixels().to_vec());
        let pictures: Vec<Picture> = pictures.iter().filter_map(copy).collect();
        let tower = tower.clone();
        self.enqueue(move |inner, _| {
            inner.begin_pictures(&pictures.iter().collect::<Vec<_>>(), &mut tower.get())
        })
    }

    fn tower_block(&mut self, block: usize, tower: &mut Self::Tower) -> Result<(), OpError> {
        let tower = tower.clone();
        self.enqueue(move |inner, _| inner.tower_block(block, &mut tower.get()))
    }

    fn project_pictures(&mut self, to: &[u32], tower: &mut Self::Tower) -> Result<(), OpError> {
        let (to, tower) = (to.to_vec(), tower.clone());
        self.enqueue(move |inner, _| inner.project_pictures(&to, &mut tower.get()))
    }

    fn place_rows(&mut self, tower: &Self::Tower, workspace: &mut Self::Workspace) -> Result<(), OpError> {
        let (tower, workspace) = (tower.clone(), workspace.clone());
        self.layer(move |inner| inner.place_rows(&tower.get(), &mut workspace.get()))
    }

    fn read_rows(&mut self, rows: &[u32], tower: &Self::Tower) -> Result<Vec<f32>, OpError> {
        while !self.queue.is_empty() {
            self.run_one()?;
        }
        self.inner.read_rows(rows, &tower.get())
    }

    fn read_encoded(&mut self, tower: &mut Self::Tower) -> Result<Vec<f32>, OpError> {
        while !self.queue.is_empty() {
            self.run_one()?;
        }
        self.inner.read_encoded(&mut tower.get())
    }
}
