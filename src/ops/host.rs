//! Every set of host operations as a backend: workspace, plan, sampling and calibration are the same for all of them.
//!
//! Nothing is enqueued: each call has done its work when it returns.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::error::expect;
use super::host_ops::HostOps;
use super::host_sampler::{HostSampler, RowResult, RowSampler};
use super::{
    Activation, AttentionInMatrices, Backend, CacheShape, Calibrate, Capacity, ExpertMatrices, MlaShape,
    ModelShape, OpError, Outcomes, QueryMatrices, RopeTable, RouterShape, SampleRows, Segment, SeqSlot,
    SlotSpec, StepPlan, Ticket, TokenId, TokenSource,
};
use crate::quant::StoredMatrix;
use crate::tensor::TensorView;

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
    shape: ModelShape,
    rope: RopeTable,
    plan: HostPlan,
    /// `[T, D]`.
    hidden: H::Buffer,
    /// `[T, D]`.
    normed: H::Buffer,
    /// `[T, q_lora_rank]`, if the checkpoint has one: raw and normalised.
    query_latent: Option<(H::Buffer, H::Buffer)>,
    /// `[T, H * (N + R)]`.
    query: H::Buffer,
    /// `[T, C + R]`.
    kv_a: H::Buffer,
    /// `[T, H * V]`.
    attended: H::Buffer,
    routing: H::Routing,
    /// `[S, vocab]`.
    logits: H::Buffer,
    /// `[T, K]`; made when a calibration asks.
    expert_norms: Option<H::Buffer>,
    max_tokens: usize,
    sampler: HostSampler,
    /// One per thread.
    scratch: Vec<Mutex<RowSampler>>,
}

/// The step under way, in the types that the operations take.
#[derive(Default)]
struct HostPlan {
    /// `[T]`.
    tokens: Vec<u32>,
    /// `[T, R]`: cosines, then sines of each row's position.
    rotations: Vec<f32>,
    /// `[T]`.
    kv_slots: Vec<u32>,
    expanded: Vec<Segment>,
    absorbed: Vec<Segment>,
    block_tables: Vec<u32>,
    /// `[S]`.
    logits_rows: Vec<u32>,
}

impl HostPlan {
    fn take(&mut self, plan: &StepPlan, rope: &RopeTable, sampler: &HostSampler) {
        self.tokens.clear();
        self.tokens.extend(plan.tokens.iter().map(|token| match token {
            TokenSource::Known(id) => id.0,
            TokenSource::LastSampled(slot) => sampler.last(*slot).0,
        }));
        self.rotations.clear();
        plan.positions.iter().for_each(|position| rope.rotation(*position, &mut self.rotations));
        self.kv_slots.clear();
        self.kv_slots.extend_from_slice(bytemuck::cast_slice(&plan.kv_slots));
        self.expanded.clone_from(&plan.expanded);
        self.absorbed.clone_from(&plan.absorbed);
        self.block_tables.clear();
        self.block_tables.extend_from_slice(bytemuck::cast_slice(&plan.block_tables));
        self.logits_rows.clear();
        self.logits_rows.extend_from_slice(bytemuck::cast_slice(&plan.logits_rows));
    }
}

impl<H: HostOps> Backend for H {
    type Matrix = H::Matrix;
    type Vector = H::Vector;
    type AttentionIn = HostAttentionIn<H>;
    type KvUp = H::KvUp;
    type Router = H::Router;
    type Experts = H::Experts;
    type Workspace = HostWorkspace<H>;
    type Cache = H::Cache;

    fn name(&self) -> &'static str {
        HostOps::name(self)
    }

    fn load_matrix(&mut self, host: &StoredMatrix<'_>) -> Result<Self::Matrix, OpError> {
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
        HostOps::load_kv_up(self, host, shape)
    }

    fn load_router(
        &mut self,
        weight: &StoredMatrix<'_>,
        bias: &TensorView<'_>,
        shape: &RouterShape,
    ) -> Result<Self::Router, OpError> {
        HostOps::load_router(self, weight, bias, shape)
    }

    fn load_experts(&mut self, experts: &[ExpertMatrices<'_>]) -> Result<Self::Experts, OpError> {
        HostOps::load_experts(self, experts)
    }

    fn allocate_workspace(
        &mut self,
        shape: &ModelShape,
        capacity: &Capacity,
        rope: &RopeTable,
    ) -> Result<Self::Workspace, OpError> {
        let (mla, tokens) = (&shape.mla, capacity.max_tokens);
        Ok(HostWorkspace {
            shape: *shape,
            rope: rope.clone(),
            plan: HostPlan::default(),
            hidden: self.allocate(tokens, shape.hidden_size)?,
            normed: self.allocate(tokens, shape.hidden_size)?,
            query_latent: match shape.q_lora_rank {
                Some(rank) => Some((self.allocate(tokens, rank)?, self.allocate(tokens, rank)?)),
                None => None,
            },
            query: self.allocate(tokens, mla.num_heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim))?,
            kv_a: self.allocate(tokens, mla.latent_dim())?,
            attended: self.allocate(tokens, mla.num_heads * mla.v_head_dim)?,
            routing: self.allocate_routing(tokens, &shape.router)?,
            logits: self.allocate(capacity.max_logits_rows, shape.vocab_size)?,
            expert_norms: None,
            max_tokens: tokens,
            sampler: HostSampler::new(capacity.max_num_seqs),
            scratch: (0..self.num_workers()).map(|_| Default::default()).collect(),
        })
    }

    fn allocate_cache(&mut self, shape: &CacheShape) -> Result<Self::Cache, OpError> {
        HostOps::allocate_cache(self, shape)
    }

    fn set_cache_scales(&mut self, cache: &mut Self::Cache, exponents: &[i32]) -> Result<(), OpError> {
        HostOps::set_cache_scales(self, cache, exponents)
    }

    fn begin(&mut self, plan: &StepPlan, w: &mut Self::Workspace) -> Result<(), OpError> {
        w.plan.take(plan, &w.rope, &w.sampler);
        Ok(())
    }

    fn embed(&mut self, table: &Self::Matrix, w: &mut Self::Workspace) -> Result<(), OpError> {
        HostOps::embed(self, table, &w.plan.tokens, &mut w.hidden)
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
        let (mla, eps) = (&w.shape.mla, w.shape.latent_norm_eps);
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
        self.rope(mla, &plan.rotations, &mut w.query)?;
        let gain = &weights.kv_a_norm;
        self.write_latent(mla, &w.kv_a, gain, eps, &plan.rotations, &plan.kv_slots, layer, cache)
    }

    fn attend(
        &mut self,
        kv_up: &Self::KvUp,
        layer: usize,
        cache: &Self::Cache,
        w: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        let (mla, plan) = (&w.shape.mla, &w.plan);
        let (query, tables) = (&w.query, &plan.block_tables);
        if !plan.expanded.is_empty() {
            self.attend_expanded(mla, query, kv_up, layer, cache, &plan.expanded, tables, &mut w.attended)?;
        }
        if !plan.absorbed.is_empty() {
            self.attend_absorbed(mla, query, kv_up, layer, cache, &plan.absorbed, tables, &mut w.attended)?;
        }
        Ok(())
    }

    fn project_add_norm(
        &mut self,
        weight: &Self::Matrix,
        gain: &Self::Vector,
        w: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        self.project_add(&w.attended, weight, &mut w.hidden)?;
        Backend::norm(self, gain, w)
    }

    fn moe(
        &mut self,
        router: &Self::Router,
        routed: &Self::Experts,
        shared: Option<&Self::Experts>,
        gain: Option<&Self::Vector>,
        w: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        HostOps::route(self, &w.normed, router, &w.shape.router, &mut w.routing)?;
        self.experts(&w.normed, &w.routing, routed, shared, &mut w.hidden)?;
        gain.map_or(Ok(()), |gain| Backend::norm(self, gain, w))
    }

    fn dense(
        &mut self,
        weights: &Self::Experts,
        gain: Option<&Self::Vector>,
        w: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        self.swiglu_add(&w.normed, weights, &mut w.hidden)?;
        gain.map_or(Ok(()), |gain| Backend::norm(self, gain, w))
    }

    fn logits(
        &mut self,
        head: &Self::Matrix,
        rows: Range<usize>,
        w: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        expect("logits", &[w.plan.logits_rows.len().max(rows.end)], &[w.plan.logits_rows.len()])?;
        HostOps::logits(self, &w.normed, &w.plan.logits_rows[rows], head, &mut w.logits)
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
        let results: Vec<Mutex<RowResult>> = rows.rows.iter().map(|_| Mutex::default()).collect();
        self.for_each(rows.rows.len(), &|worker, index| {
            let mut scratch = scratch[worker].lock().unwrap_or_else(PoisonError::into_inner);
            let result = sampler.row(&mut scratch, logits, vocab, rows, index);
            *results[index].lock().unwrap_or_else(PoisonError::into_inner) = result;
        });
        let results = results.into_iter().map(|r| r.into_inner().unwrap_or_default()).collect();
        Ok(w.sampler.complete(rows, results))
    }

    fn wait(&mut self, ticket: Ticket, w: &mut Self::Workspace, out: &mut Outcomes) -> Result<(), OpError> {
        w.sampler.fetch(ticket, out);
        Ok(())
    }
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
    ) -> Result<super::Routed, OpError> {
        // Routed without the scaling factor: dividing it out of the weights would not give their bits.
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
        HostOps::cached_peak(self, cache, layer, &w.plan.kv_slots)
    }
}
