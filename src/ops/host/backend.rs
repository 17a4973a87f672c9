//! Makes a backend from any set of host operations: workspace, plan, sampling and calibration are
//! common to all of them.
//!
//! No work is enqueued: each call returns after its work is done.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::ops::HostOps;
use super::ranks::{ExpertPieces, Member, Rank, RankCache, RankState, Share};
use super::sampler::{HostSampler, RowResult, RowSampler};
use crate::expect;
use crate::{
    Activation, AttentionExchange, AttentionInMatrices, Backend, BlockId, CacheShape, Calibrate, Capacity,
    ContextSplit, ExpertMatrices, ExpertSplit, MemoryNeeds, MlaShape, ModelShape, OpError, Outcomes,
    Parallelism, Preferences, QueryMatrices, RopeTable, RouterShape, SampleRow, SampleRows, Segment, SeqSlot,
    SlotSpec, Split, StepPlan, Storage, Ticket, TokenId, TokenSource,
};
use perigee_numbers::quant::StoredMatrix;
use perigee_numbers::tensor::TensorView;

/// The weights in front of attention.
pub struct HostAttentionIn<H: HostOps> {
    query: HostQuery<H>,
    kv_a: H::Matrix,
    kv_a_norm: H::Vector,
}

enum HostQuery<H: HostOps> {
    Latent { a: H::Matrix, norm: H::Vector, b: H::Matrix },
    Direct(H::Matrix),
}

/// Plan, activations and sampling state.
pub struct HostWorkspace<H: HostOps> {
    pub(super) shape: ModelShape,
    pub(super) rope: RopeTable,
    pub(super) plan: HostPlan,
    /// `[T, D]`.
    pub(super) hidden: H::Buffer,
    /// `[T, D]`.
    pub(super) normed: H::Buffer,
    /// `[T, q_lora_rank]`: raw and normalised; `None` for a checkpoint with direct queries.
    query_latent: Option<(H::Buffer, H::Buffer)>,
    /// `[T, H * (N + R)]`.
    query: H::Buffer,
    /// `[T, C + R]`.
    kv_a: H::Buffer,
    /// `[T, H * V]`.
    attended: H::Buffer,
    routing: H::Routing,
    /// `[S, ids of this backend]`.
    pub(super) logits: H::Buffer,
    /// `[T, K]`; allocated at the first calibration.
    expert_norms: Option<H::Buffer>,
    max_tokens: usize,
    pub(super) sampler: HostSampler,
    /// One sampler per thread.
    scratch: Vec<Mutex<RowSampler>>,
    /// State of a backend that is one of several ranks.
    rank: Option<RankState<H>>,
}

impl<H: HostOps> HostWorkspace<H> {
    /// The residual stream, `[T, D]`.
    pub(super) fn hidden(&self) -> &[f32] {
        H::values(&self.hidden)
    }

    /// Begins a step whose tokens `target` knows.
    pub(super) fn take_plan(&mut self, plan: &StepPlan, target: &Self) {
        self.plan.take(plan, &self.rope, &target.sampler);
        self.begin_rank();
    }

    fn begin_rank(&mut self) {
        if let Some(rank) = &mut self.rank {
            rank.begin(&mut self.plan.kv_slots, &self.plan.absorbed);
        }
    }

    /// The id of a row's token.
    pub(super) fn id_of(&self, token: TokenSource) -> u32 {
        id_of(token, &self.sampler)
    }

    /// The ids whose logits this backend has.
    pub(super) fn vocab(&self) -> Range<usize> {
        self.rank.as_ref().map_or(0..self.shape.vocab_size, |rank| rank.vocab.clone())
    }

    /// The buffer that rows are sampled from, `[S, ids of this backend]`.
    pub(super) fn logits_mut(&mut self) -> &mut H::Buffer {
        &mut self.logits
    }

    /// `out[t] = table[ids[t]]`, where `table` is the network's, whose ids ranks share. `sums` is scratch.
    pub(super) fn embed(
        &self,
        ops: &mut H,
        table: &H::Matrix,
        ids: &[u32],
        out: &mut H::Buffer,
        sums: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        match &self.rank {
            Some(rank) => rank.embed_with(ops, table, ids, out, sums),
            None => ops.embed(table, ids, out),
        }
    }

    /// `hidden += mlp(x)`, of whose inner units ranks have a part each. The first rank's sum begins with the residual stream. `sums` is
    /// scratch.
    pub(super) fn add_swiglu(
        &self,
        ops: &mut H,
        x: &H::Buffer,
        mlp: &H::Experts,
        hidden: &mut H::Buffer,
        sums: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let Some(rank) = &self.rank else { return ops.swiglu_add(x, &[], mlp, hidden) };
        if rank.member.share().rank > 0 {
            H::values_mut(hidden).fill(0.0);
        }
        ops.swiglu_add(x, &[], mlp, hidden)?;
        rank.member.sum("draft", H::values(hidden), sums)?;
        H::values_mut(hidden).copy_from_slice(sums);
        Ok(())
    }

    /// Attention shape of this backend: of its own heads if it is a rank.
    fn mla(&self) -> &MlaShape {
        self.rank.as_ref().map_or(&self.shape.mla, |rank| &rank.mla)
    }
}

/// W_UK and W_UV.
pub struct HostKvUp<H: HostOps> {
    /// Of this backend's heads.
    pub(super) own: H::KvUp,
    /// Of all heads, on ranks that exchange heads.
    pub(super) all: Option<H::KvUp>,
}

/// The latent cache.
pub struct HostCache<H: HostOps> {
    /// Positions held by this backend.
    own: H::Cache,
    /// Of `own`.
    shape: CacheShape,
    rank: Option<RankCache<H>>,
}

/// The current step, in the types of the operations.
#[derive(Default)]
pub(super) struct HostPlan {
    /// `[T]`.
    pub(super) tokens: Vec<u32>,
    /// Rows that are tokens of pictures, with their kept rows.
    pub(super) media: Vec<(usize, u32)>,
    /// `[T, R]`: cosines, then sines of each row's position.
    rotations: Vec<f32>,
    /// `[T]`.
    kv_slots: Vec<u32>,
    expanded: Vec<Segment>,
    absorbed: Vec<Segment>,
    block_tables: Vec<u32>,
    /// `[S]`.
    pub(super) logits_rows: Vec<u32>,
    /// Whether a row is in expanded form.
    are_prompts: Vec<bool>,
}

fn id_of(token: TokenSource, sampler: &HostSampler) -> u32 {
    match token {
        TokenSource::Known(id) | TokenSource::Media { token: id, .. } => id.0,
        TokenSource::LastSampled(slot) => sampler.last(slot).0,
    }
}

impl HostPlan {
    pub(super) fn take(&mut self, plan: &StepPlan, rope: &RopeTable, sampler: &HostSampler) {
        self.tokens.clear();
        self.tokens.extend(plan.tokens.iter().map(|token| id_of(*token, sampler)));
        self.media.clear();
        self.media.extend(plan.tokens.iter().enumerate().filter_map(|(at, token)| match token {
            TokenSource::Media { row, .. } => Some((at, *row)),
            TokenSource::Known(_) | TokenSource::LastSampled(_) => None,
        }));
        self.rotations.clear();
        plan.positions.iter().for_each(|position| rope.rotation(*position, &mut self.rotations));
        self.kv_slots.clear();
        self.kv_slots.extend_from_slice(bytemuck::cast_slice(&plan.kv_slots));
        self.expanded.clone_from(&plan.expanded);
        self.absorbed.clone_from(&plan.absorbed);
        self.are_prompts.clear();
        self.are_prompts.resize(plan.num_rows(), false);
        for segment in &plan.expanded {
            self.are_prompts[segment.rows.clone()].fill(true);
        }
        self.block_tables.clear();
        self.block_tables.extend_from_slice(bytemuck::cast_slice(&plan.block_tables));
        self.logits_rows.clear();
        self.logits_rows.extend_from_slice(bytemuck::cast_slice(&plan.logits_rows));
    }
}

impl<H: HostOps> Storage for H {
    type Matrix = H::Matrix;
    type Vector = H::Vector;
    type AttentionIn = HostAttentionIn<H>;
    type KvUp = HostKvUp<H>;
    type Router = H::Router;
    type Experts = H::Experts;
    type Workspace = HostWorkspace<H>;
    type Cache = HostCache<H>;
    type BlockRead = Vec<u8>;

    fn name(&self) -> &'static str {
        HostOps::name(self)
    }
}

impl<H: HostOps> Backend for H {
    fn memory_needs(&self, shape: &ModelShape, capacity: &Capacity, cache: &CacheShape) -> MemoryNeeds {
        let mla = &shape.mla;
        let activations = 2 * shape.hidden_size
            + 2 * shape.q_lora_rank.unwrap_or(0)
            + mla.num_heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim)
            + mla.latent_dim()
            + mla.qk_rope_head_dim;
        let values = (activations + self.scratch_values(shape)) * capacity.max_tokens
            + capacity.max_logits_rows * shape.vocab_size;
        let workspace_bytes = (4 * values + self.kept_bytes()) as u64;
        MemoryNeeds { workspace_bytes, cache_bytes: cache.bytes() as u64, ..MemoryNeeds::default() }
    }

    fn preferences(&self) -> Preferences {
        HostOps::preferences(self)
    }

    fn load_matrix(&mut self, host: &StoredMatrix<'_>, _split: Split) -> Result<Self::Matrix, OpError> {
        HostOps::load_matrix(self, host)
    }

    fn load_vector(&mut self, host: &TensorView<'_>) -> Result<Self::Vector, OpError> {
        HostOps::load_vector(self, host)
    }

    fn load_attention_in(
        &mut self,
        host: &AttentionInMatrices<'_>,
        _shape: &MlaShape,
    ) -> Result<Self::AttentionIn, OpError> {
        Ok(HostAttentionIn {
            query: match &host.query {
                QueryMatrices::Latent { a, norm, b } => HostQuery::Latent {
                    a: HostOps::load_matrix(self, a)?,
                    norm: HostOps::load_vector(self, norm)?,
                    b: HostOps::load_matrix(self, b)?,
                },
                QueryMatrices::Direct(q) => HostQuery::Direct(HostOps::load_matrix(self, q)?),
            },
            kv_a: HostOps::load_matrix(self, &host.kv_a)?,
            kv_a_norm: HostOps::load_vector(self, &host.kv_a_norm)?,
        })
    }

    fn load_kv_up(&mut self, host: &StoredMatrix<'_>, shape: &MlaShape) -> Result<Self::KvUp, OpError> {
        Ok(HostKvUp { own: HostOps::load_kv_up(self, host, shape)?, all: None })
    }

    fn load_router(
        &mut self,
        weight: &StoredMatrix<'_>,
        bias: &TensorView<'_>,
        shape: &RouterShape,
    ) -> Result<Self::Router, OpError> {
        HostOps::load_router(self, weight, bias, shape)
    }

    fn load_experts(
        &mut self,
        experts: &[ExpertMatrices<'_>],
        _split: ExpertSplit,
    ) -> Result<Self::Experts, OpError> {
        HostOps::load_experts(self, experts, 0)
    }

    fn allocate_workspace(
        &mut self,
        shape: &ModelShape,
        capacity: &Capacity,
        rope: &RopeTable,
    ) -> Result<Self::Workspace, OpError> {
        workspace(self, shape, (&shape.mla, shape.vocab_size), capacity, rope)
    }

    fn allocate_cache(&mut self, shape: &CacheShape) -> Result<Self::Cache, OpError> {
        Ok(HostCache { own: HostOps::allocate_cache(self, shape)?, shape: *shape, rank: None })
    }

    fn block_bytes(&self, cache: &Self::Cache) -> usize {
        cache.shape.block_bytes()
    }

    fn start_block_read(&mut self, block: BlockId, cache: &Self::Cache) -> Result<Vec<u8>, OpError> {
        read_block(self, block, &cache.own, &cache.shape)
    }

    fn finish_block_read(&mut self, read: Vec<u8>, out: &mut Vec<u8>) -> Result<(), OpError> {
        out.extend_from_slice(&read);
        Ok(())
    }

    fn write_block(
        &mut self,
        block: BlockId,
        content: &[u8],
        cache: &mut Self::Cache,
    ) -> Result<(), OpError> {
        write_block(self, block, content, &mut cache.own, &cache.shape)
    }

    fn set_cache_scales(&mut self, cache: &mut Self::Cache, exponents: &[i32]) -> Result<(), OpError> {
        HostOps::set_cache_scales(self, &mut cache.own, exponents)
    }

    fn begin(&mut self, plan: &StepPlan, w: &mut Self::Workspace) -> Result<(), OpError> {
        w.plan.take(plan, &w.rope, &w.sampler);
        w.begin_rank();
        Ok(())
    }

    fn embed(&mut self, table: &Self::Matrix, w: &mut Self::Workspace) -> Result<(), OpError> {
        match &mut w.rank {
            Some(rank) => rank.embed(self, table, &w.plan.tokens, &mut w.hidden),
            None => HostOps::embed(self, table, &w.plan.tokens, &mut w.hidden),
        }
    }

    fn norm(&mut self, gain: &Self::Vector, w: &mut Self::Workspace) -> Result<(), OpError> {
        HostOps::norm(self, &w.hidden, gain, w.shape.rms_norm_eps, &mut w.normed)
    }

    fn attention_in(
        &mut self,
        weights: &Self::AttentionIn,
        layer: usize,
        cache: &mut Self::Cache,
        w: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        let (mla, eps) = (*w.mla(), w.shape.latent_norm_eps);
        match (&weights.query, &mut w.query_latent) {
            (HostQuery::Latent { a, norm, b }, Some((latent, latent_normed))) => {
                self.project(&w.normed, a, latent)?;
                HostOps::norm(self, latent, norm, eps, latent_normed)?;
                self.project(latent_normed, b, &mut w.query)?;
            }
            (HostQuery::Direct(q), _) => self.project(&w.normed, q, &mut w.query)?,
            (HostQuery::Latent { .. }, None) => expect("attention_in", &[1], &[0])?,
        }
        self.project(&w.normed, &weights.kv_a, &mut w.kv_a)?;
        let plan = &w.plan;
        self.rope(&mla, &plan.rotations, &mut w.query)?;
        let (gain, cache) = (&weights.kv_a_norm, &mut cache.own);
        self.write_latent(&mla, &w.kv_a, gain, eps, &plan.rotations, &plan.kv_slots, layer, cache)
    }

    fn attend(
        &mut self,
        kv_up: &Self::KvUp,
        layer: usize,
        cache: &mut Self::Cache,
        w: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        let (mla, all, plan) = (*w.mla(), w.shape.mla, &w.plan);
        let (query, tables, out) = (&w.query, &plan.block_tables, &mut w.attended);
        if !plan.expanded.is_empty() {
            let segments = &plan.expanded;
            let (cache, layer) = match (&w.rank, &mut cache.rank) {
                (Some(rank), Some(gathered)) => {
                    let gathered =
                        gathered.gather(self, &rank.member, &cache.own, layer, segments, tables)?;
                    (gathered, 0)
                }
                _ => (&cache.own, layer),
            };
            self.attend_expanded(&mla, query, &kv_up.own, layer, cache, segments, tables, out)?;
        }
        if !plan.absorbed.is_empty() {
            let cache = &cache.own;
            match w.rank.as_mut().filter(|rank| rank.splits_context()) {
                Some(rank) => {
                    let rows = plan.tokens.len();
                    rank.attend_absorbed(self, &all, query, rows, kv_up, layer, cache, tables, out)?;
                }
                None => {
                    let kv_up = &kv_up.own;
                    self.attend_absorbed(&mla, query, kv_up, layer, cache, &plan.absorbed, tables, out)?;
                }
            }
        }
        Ok(())
    }

    fn project_add_norm<'g>(
        &mut self,
        weight: &Self::Matrix,
        gain: &'g Self::Vector,
        w: &mut Self::Workspace,
    ) -> Result<Option<&'g Self::Vector>, OpError> {
        match &mut w.rank {
            Some(rank) => {
                self.project(&w.attended, weight, &mut rank.partial)?;
                rank.add_partial("project_add_norm", &mut w.hidden)?;
            }
            None => self.project_add(&w.attended, weight, &mut w.hidden)?,
        }
        Backend::norm(self, gain, w)?;
        Ok(None)
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
        pending.map_or(Ok(()), |gain| Backend::norm(self, gain, w))?;
        HostOps::route(self, &w.normed, router, &w.shape.router, &mut w.routing)?;
        match &mut w.rank {
            Some(rank) => {
                rank.clear_partial(self, &w.hidden)?;
                self.experts(&w.normed, &w.plan.are_prompts, &w.routing, routed, shared, &mut rank.partial)?;
                rank.add_partial("moe", &mut w.hidden)?;
            }
            None => {
                self.experts(&w.normed, &w.plan.are_prompts, &w.routing, routed, shared, &mut w.hidden)?
            }
        }
        gain.map_or(Ok(()), |gain| Backend::norm(self, gain, w))
    }

    fn dense(
        &mut self,
        pending: Option<&Self::Vector>,
        weights: &Self::Experts,
        gain: Option<&Self::Vector>,
        w: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        pending.map_or(Ok(()), |gain| Backend::norm(self, gain, w))?;
        match &mut w.rank {
            Some(rank) => {
                rank.clear_partial(self, &w.hidden)?;
                self.swiglu_add(&w.normed, &w.plan.are_prompts, weights, &mut rank.partial)?;
                rank.add_partial("dense", &mut w.hidden)?;
            }
            None => self.swiglu_add(&w.normed, &w.plan.are_prompts, weights, &mut w.hidden)?,
        }
        gain.map_or(Ok(()), |gain| Backend::norm(self, gain, w))
    }

    fn logits(
        &mut self,
        head: &Self::Matrix,
        rows: Range<usize>,
        w: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        expect("logits", &[w.plan.logits_rows.len().max(rows.end)], &[w.plan.logits_rows.len()])?;
        let rows = &w.plan.logits_rows[rows];
        if let Some(rank) = &mut w.rank {
            rank.note_rows(H::values(&w.normed), rows, w.shape.hidden_size);
        }
        HostOps::logits(self, &w.normed, rows, head, &mut w.logits)
    }

    fn open_slot(
        &mut self,
        slot: SeqSlot,
        spec: &SlotSpec<'_>,
        w: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        w.sampler.open(slot, spec);
        Ok(())
    }

    fn rewind_slot(
        &mut self,
        slot: SeqSlot,
        removed: &[TokenId],
        last: TokenId,
        w: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        w.sampler.rewind(slot, removed, last);
        Ok(())
    }

    fn sample(&mut self, rows: &SampleRows<'_>, w: &mut Self::Workspace) -> Result<Ticket, OpError> {
        let (sampler, scratch, vocab) = (&w.sampler, &w.scratch, w.shape.vocab_size);
        let logits = H::values(&w.logits);
        let results: Vec<RowResult> = match &mut w.rank {
            Some(rank) => {
                let width = rank.vocab.len();
                let of = |row: &SampleRow| &logits[row.row.at() * width..(row.row.at() + 1) * width];
                let logits: Vec<&[f32]> = rows.rows.iter().map(of).collect();
                let wanted: Vec<_> = (0..rows.rows.len()).map(|row| sampler.wanted(rows, row)).collect();
                rank.choose(self, &logits, &wanted)?.into_iter().map(RowResult::from).collect()
            }
            None => {
                let results: Vec<Mutex<RowResult>> = rows.rows.iter().map(|_| Mutex::default()).collect();
                self.for_each(results.len(), &|worker, index| {
                    let mut scratch = scratch[worker].lock().unwrap_or_else(PoisonError::into_inner);
                    let result = sampler.row(&mut scratch, logits, vocab, rows, index);
                    *results[index].lock().unwrap_or_else(PoisonError::into_inner) = result;
                });
                results.into_iter().map(|r| r.into_inner().unwrap_or_default()).collect()
            }
        };
        Ok(w.sampler.complete(rows, results))
    }

    fn wait(&mut self, ticket: Ticket, w: &mut Self::Workspace, out: &mut Outcomes) -> Result<(), OpError> {
        w.sampler.fetch(ticket, out);
        Ok(())
    }
}

impl<H: HostOps> Rank for H {
    fn rank_needs(
        &self,
        shape: &ModelShape,
        capacity: &Capacity,
        cache: &CacheShape,
        share: Share,
        parallelism: Parallelism,
    ) -> MemoryNeeds {
        let (own, all) = (share.shape(shape, parallelism.expert_groups), &shape.mla);
        // Partial sums of the residual stream; a score and a mass of a logit for the choice of tokens.
        let mut values =
            capacity.max_tokens * shape.hidden_size + 2 * capacity.max_logits_rows * own.vocab_size;
        let mut cache_bytes = cache.bytes();
        if let ContextSplit::Split(exchange) = parallelism.context {
            // A part of every layer, and one layer whole.
            cache_bytes = cache_bytes / share.world + cache_bytes / cache.num_layers.max(1);
            if exchange == AttentionExchange::Heads {
                let head = all.qk_nope_head_dim + all.qk_rope_head_dim + all.v_head_dim;
                values += capacity.max_tokens * all.num_heads * head;
            }
        }
        let alone = Backend::memory_needs(self, &own, capacity, cache);
        MemoryNeeds {
            workspace_bytes: alone.workspace_bytes + 4 * values as u64,
            cache_bytes: cache_bytes as u64,
            ..alone
        }
    }

    fn load_expert_range(
        &mut self,
        experts: &ExpertPieces<'_>,
        first: usize,
    ) -> Result<Self::Experts, OpError> {
        experts.with_all(|experts| HostOps::load_experts(self, experts, first))
    }

    fn load_rank_kv_up(
        &mut self,
        own: (&StoredMatrix<'_>, &MlaShape),
        all: Option<(&StoredMatrix<'_>, &MlaShape)>,
    ) -> Result<Self::KvUp, OpError> {
        Ok(HostKvUp {
            own: HostOps::load_kv_up(self, own.0, own.1)?,
            all: all.map(|(weight, shape)| HostOps::load_kv_up(self, weight, shape)).transpose()?,
        })
    }

    fn allocate_rank_workspace(
        &mut self,
        shape: &ModelShape,
        capacity: &Capacity,
        rope: &RopeTable,
        member: Member,
    ) -> Result<Self::Workspace, OpError> {
        let rank = RankState::new(self, shape, capacity, member)?;
        let workspace = workspace(self, shape, (&rank.mla, rank.vocab.len()), capacity, rope)?;
        Ok(HostWorkspace { rank: Some(rank), ..workspace })
    }

    fn allocate_rank_cache(&mut self, shape: &CacheShape, member: &Member) -> Result<Self::Cache, OpError> {
        if member.parallelism().context == ContextSplit::Whole {
            return Backend::allocate_cache(self, shape);
        }
        let own = RankCache::<H>::own_shape(shape, member.share())?;
        let rank = Some(RankCache::new(self, shape, member.share())?);
        Ok(HostCache { own: HostOps::allocate_cache(self, &own)?, shape: own, rank })
    }
}

/// Slots of a block.
fn slots_of(block: BlockId, shape: &CacheShape) -> Vec<u32> {
    let first = block.at() * shape.block_size;
    (first..first + shape.block_size).map(|slot| slot as u32).collect()
}

/// Content of a block, `[layers, positions]` of rows as they are stored.
pub(super) fn read_block<H: HostOps>(
    ops: &mut H,
    block: BlockId,
    cache: &H::Cache,
    shape: &CacheShape,
) -> Result<Vec<u8>, OpError> {
    let (slots, mut content) = (slots_of(block, shape), Vec::with_capacity(shape.block_bytes()));
    (0..shape.num_layers).try_for_each(|layer| ops.read_cached(cache, layer, &slots, &mut content))?;
    Ok(content)
}

/// Sets the content of a block.
pub(super) fn write_block<H: HostOps>(
    ops: &mut H,
    block: BlockId,
    content: &[u8],
    cache: &mut H::Cache,
    shape: &CacheShape,
) -> Result<(), OpError> {
    expect("write_block", &[shape.block_bytes()], &[content.len()])?;
    let slots = slots_of(block, shape);
    let layers = content.chunks_exact(shape.block_size * shape.row_bytes()).enumerate();
    layers.into_iter().try_for_each(|(layer, rows)| ops.write_cached(rows, layer, &slots, cache))
}

/// Activations of a backend with the heads of `mla` and so many ids of the vocabulary.
fn workspace<H: HostOps>(
    ops: &mut H,
    shape: &ModelShape,
    (mla, num_ids): (&MlaShape, usize),
    capacity: &Capacity,
    rope: &RopeTable,
) -> Result<HostWorkspace<H>, OpError> {
    let tokens = capacity.max_tokens;
    Ok(HostWorkspace {
        shape: *shape,
        rope: rope.clone(),
        plan: HostPlan::default(),
        hidden: ops.allocate(tokens, shape.hidden_size)?,
        normed: ops.allocate(tokens, shape.hidden_size)?,
        query_latent: match shape.q_lora_rank {
            Some(rank) => Some((ops.allocate(tokens, rank)?, ops.allocate(tokens, rank)?)),
            None => None,
        },
        query: ops.allocate(tokens, mla.num_heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim))?,
        kv_a: ops.allocate(tokens, mla.latent_dim())?,
        attended: ops.allocate(tokens, mla.num_heads * mla.v_head_dim)?,
        routing: ops.allocate_routing(tokens, &shape.router)?,
        logits: ops.allocate(capacity.max_logits_rows, num_ids)?,
        expert_norms: None,
        max_tokens: tokens,
        sampler: HostSampler::new(capacity.max_num_seqs),
        scratch: (0..ops.num_workers()).map(|_| Default::default()).collect(),
        rank: None,
    })
}

impl<H: HostOps> Calibrate for H {
    fn read<'a>(&'a mut self, what: Activation, w: &'a Self::Workspace) -> Result<&'a [f32], OpError> {
        Ok(H::values(match what {
            Activation::Hidden => &w.hidden,
            Activation::Normed => &w.normed,
            Activation::Logits => &w.logits,
        }))
    }

    fn write_hidden(&mut self, rows: &[f32], w: &mut Self::Workspace) -> Result<(), OpError> {
        self.write(rows, &mut w.hidden)
    }

    fn route(
        &mut self,
        router: &Self::Router,
        routed: &Self::Experts,
        w: &mut Self::Workspace,
    ) -> Result<crate::Routed, OpError> {
        // Routed without the scaling factor: a division of the weights by the factor would not
        // restore their bits.
        let unscaled = RouterShape { routed_scaling_factor: 1.0, ..w.shape.router };
        HostOps::route(self, &w.normed, router, &unscaled, &mut w.routing)?;
        let (mut chosen, mut weights) = (Vec::new(), Vec::new());
        self.read_routing(&w.routing, &mut chosen, &mut weights)?;
        let norms = match &mut w.expert_norms {
            Some(norms) => norms,
            norms => norms.insert(self.allocate(w.max_tokens, unscaled.top_k)?),
        };
        self.expert_norms(&w.normed, &w.routing, routed, norms)?;
        Ok((chosen, weights, H::values(norms).to_vec()))
    }

    fn chosen(&mut self, w: &Self::Workspace) -> Result<Vec<u32>, OpError> {
        let (mut chosen, mut weights) = (Vec::new(), Vec::new());
        self.read_routing(&w.routing, &mut chosen, &mut weights)?;
        Ok(chosen)
    }

    fn inner_peak(
        &mut self,
        rows: &[u32],
        weights: &Self::Experts,
        expert: usize,
        w: &Self::Workspace,
    ) -> Result<f32, OpError> {
        HostOps::inner_peak(self, &w.normed, rows, weights, expert)
    }

    fn cached_peak(
        &mut self,
        layer: usize,
        cache: &Self::Cache,
        w: &Self::Workspace,
    ) -> Result<f32, OpError> {
        HostOps::cached_peak(self, &cache.own, layer, &w.plan.kv_slots)
    }
}
