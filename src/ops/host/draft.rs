//! Drafts on any set of host operations.

use super::HostOps;
use super::backend::HostWorkspace;
use super::backend::{read_block, write_block};
use super::gqa::{self, GqaCache, rotate_halves};
use crate::{
    BlockId, CacheShape, Capacity, MemoryNeeds, MlaShape, OpError, QueryMatrices, RopeTable, Row, StepPlan,
    expect,
};
use crate::{
    DraftActivations, DraftAttentionMatrices, DraftAttentionShape, DraftInput, DraftMatrices, DraftOps,
    DraftShape, GqaShape, NUM_STATES,
};

/// A draft: weights, activations, cache.
pub struct HostDraft<H: HostOps> {
    shape: DraftShape,
    rope: RopeTable,
    weights: Weights<H>,
    attention: Attention<H>,
    /// States of the target's last step, `[T, D']` each.
    states: [H::Buffer; NUM_STATES],
    /// `[T, 3 D']`.
    states_wide: H::Buffer,
    /// A normalised copy of it.
    states_normed: Option<H::Buffer>,
    /// One state and its norm, `[T, D']` each.
    state: Option<(H::Buffer, H::Buffer)>,
    /// Hidden states that the step begins with, `[T, D]`.
    input: H::Buffer,
    /// The residual stream, `[T, D]`.
    hidden: H::Buffer,
    /// Its norm, `[T, D]`.
    normed: H::Buffer,
    /// Embedding and hidden state side by side, `[T, 2 D]`.
    wide: H::Buffer,
    /// `[T, H * V]`.
    attended: H::Buffer,
    /// `[S, F]` of a head with fewer rows than the target's.
    logits: Option<H::Buffer>,
    plan: StepPlan,
    tokens: Vec<u32>,
    rotations: Vec<f32>,
    scratch: Vec<f32>,
}

struct Weights<H: HostOps> {
    embed_tokens: Option<H::Matrix>,
    states_norm: Option<H::Vector>,
    state_norms: Option<Vec<H::Vector>>,
    fc: H::Matrix,
    input_layernorm: H::Vector,
    hidden_norm: H::Vector,
    o_proj: H::Matrix,
    post_attention_layernorm: H::Vector,
    mlp: H::Experts,
    norm: H::Vector,
    lm_head: Option<H::Matrix>,
    target_ids: Option<Vec<u32>>,
}

enum Attention<H: HostOps> {
    Mla(Box<Mla<H>>),
    Gqa(Box<Gqa<H>>),
}

struct Mla<H: HostOps> {
    mla: MlaShape,
    query: Query<H>,
    kv_a: H::Matrix,
    kv_a_norm: H::Vector,
    kv_up: H::KvUp,
    /// `[T, H * (N + R)]`.
    queries: H::Buffer,
    /// `[T, C + R]`.
    latents: H::Buffer,
    cache: H::Cache,
    cache_shape: CacheShape,
}

enum Query<H: HostOps> {
    /// Matrices, and the latent `[T, q_lora_rank]` raw and normalised.
    Latent {
        a: H::Matrix,
        norm: H::Vector,
        b: H::Matrix,
        raw: H::Buffer,
        normed: H::Buffer,
    },
    Direct(H::Matrix),
}

struct Gqa<H: HostOps> {
    gqa: GqaShape,
    q: H::Matrix,
    k: H::Matrix,
    v: H::Matrix,
    queries: H::Buffer,
    keys: H::Buffer,
    values: H::Buffer,
    cache: GqaCache,
}

impl<H: HostOps> Weights<H> {
    fn load(ops: &mut H, host: &DraftMatrices<'_>) -> Result<Self, OpError> {
        Ok(Self {
            embed_tokens: host.embed_tokens.as_ref().map(|table| ops.load_matrix(table)).transpose()?,
            states_norm: host.states_norm.as_ref().map(|gain| ops.load_vector(gain)).transpose()?,
            state_norms: match &host.state_norms {
                Some(gains) => {
                    Some(gains.iter().map(|gain| ops.load_vector(gain)).collect::<Result<_, _>>()?)
                }
                None => None,
            },
            fc: ops.load_matrix(&host.fc)?,
            input_layernorm: ops.load_vector(&host.input_layernorm)?,
            hidden_norm: ops.load_vector(&host.hidden_norm)?,
            o_proj: ops.load_matrix(&host.o_proj)?,
            post_attention_layernorm: ops.load_vector(&host.post_attention_layernorm)?,
            mlp: ops.load_experts(std::slice::from_ref(&host.mlp), 0)?,
            norm: ops.load_vector(&host.norm)?,
            lm_head: host.lm_head.as_ref().map(|head| ops.load_matrix(head)).transpose()?,
            target_ids: host.target_ids.clone(),
        })
    }
}

impl<H: HostOps> Attention<H> {
    /// Uploads the projections, with room for `tokens` rows; and the width of the result.
    fn load(
        ops: &mut H,
        host: &DraftAttentionMatrices<'_>,
        shape: &DraftAttentionShape,
        tokens: usize,
        cache: &CacheShape,
    ) -> Result<(Self, usize), OpError> {
        match (host, shape) {
            (
                DraftAttentionMatrices::Mla { query, kv_a, kv_a_norm, kv_up },
                DraftAttentionShape::Mla { mla, .. },
            ) => {
                let query = match &**query {
                    QueryMatrices::Latent { a, norm, b } => {
                        let rank = a.shape().first().copied().unwrap_or(0);
                        Query::Latent {
                            a: ops.load_matrix(a)?,
                            norm: ops.load_vector(norm)?,
                            b: ops.load_matrix(b)?,
                            raw: ops.allocate(tokens, rank)?,
                            normed: ops.allocate(tokens, rank)?,
                        }
                    }
                    QueryMatrices::Direct(q) => Query::Direct(ops.load_matrix(q)?),
                };
                let head = mla.qk_nope_head_dim + mla.qk_rope_head_dim;
                let parts = Mla {
                    mla: *mla,
                    query,
                    kv_a: ops.load_matrix(kv_a)?,
                    kv_a_norm: ops.load_vector(kv_a_norm)?,
                    kv_up: ops.load_kv_up(kv_up, mla)?,
                    queries: ops.allocate(tokens, mla.num_heads * head)?,
                    latents: ops.allocate(tokens, mla.latent_dim())?,
                    cache: ops.allocate_cache(cache)?,
                    cache_shape: *cache,
                };
                Ok((Self::Mla(Box::new(parts)), mla.num_heads * mla.v_head_dim))
            }
            (DraftAttentionMatrices::Gqa { q, k, v }, DraftAttentionShape::Gqa(gqa)) => {
                let (queries, keys) = (gqa.num_heads * gqa.head_dim, gqa.num_kv_heads * gqa.head_dim);
                let parts = Gqa {
                    gqa: *gqa,
                    q: ops.load_matrix(q)?,
                    k: ops.load_matrix(k)?,
                    v: ops.load_matrix(v)?,
                    queries: ops.allocate(tokens, queries)?,
                    keys: ops.allocate(tokens, keys)?,
                    values: ops.allocate(tokens, keys)?,
                    cache: GqaCache::allocate(gqa, cache)?,
                };
                Ok((Self::Gqa(Box::new(parts)), queries))
            }
            _ => Err(OpError::ShapeMismatch { op: "load_draft", expected: vec![0], got: vec![1] }),
        }
    }
}

impl<H: HostOps> Mla<H> {
    fn run(
        &mut self,
        ops: &mut H,
        eps: f32,
        x: &H::Buffer,
        rotations: &[f32],
        plan: &StepPlan,
        out: &mut H::Buffer,
    ) -> Result<(), OpError> {
        let Self { mla, query, kv_a, kv_a_norm, kv_up, queries, latents, cache, .. } = self;
        match query {
            Query::Latent { a, norm, b, raw, normed } => {
                ops.project(x, a, raw)?;
                HostOps::norm(ops, raw, norm, eps, normed)?;
                ops.project(normed, b, queries)?;
            }
            Query::Direct(q) => ops.project(x, q, queries)?,
        }
        ops.project(x, kv_a, latents)?;
        ops.rope(mla, rotations, queries)?;
        let slots: &[u32] = bytemuck::cast_slice(&plan.kv_slots);
        ops.write_latent(mla, latents, kv_a_norm, eps, rotations, slots, 0, cache)?;
        let tables: &[u32] = bytemuck::cast_slice(&plan.block_tables);
        if !plan.expanded.is_empty() {
            ops.attend_expanded(mla, queries, kv_up, 0, cache, &plan.expanded, tables, out)?;
        }
        if !plan.absorbed.is_empty() {
            ops.attend_absorbed(mla, queries, kv_up, 0, cache, &plan.absorbed, tables, out)?;
        }
        Ok(())
    }
}

impl<H: HostOps> Gqa<H> {
    fn run(
        &mut self,
        ops: &mut H,
        x: &H::Buffer,
        rotations: &[f32],
        plan: &StepPlan,
        out: &mut H::Buffer,
    ) -> Result<(), OpError> {
        let Self { gqa, q, k, v, queries, keys, values, cache } = self;
        ops.project(x, q, queries)?;
        ops.project(x, k, keys)?;
        ops.project(x, v, values)?;
        for (buffer, heads) in [(&mut *queries, gqa.num_heads), (&mut *keys, gqa.num_kv_heads)] {
            let rows = H::values_mut(buffer).chunks_exact_mut(heads * gqa.head_dim);
            for (row, rotation) in rows.zip(rotations.chunks_exact(gqa.head_dim)) {
                rotate_halves(row, gqa.head_dim, rotation);
            }
        }
        gqa::store(gqa, cache, H::values(keys), H::values(values), &plan.kv_slots)?;
        let mut segments = plan.expanded.clone();
        segments.extend_from_slice(&plan.absorbed);
        // `queries` gives `out` its row count.
        ops.write(H::values(queries), out)?;
        let tables: &[u32] = bytemuck::cast_slice(&plan.block_tables);
        gqa::attend(ops, gqa, cache, H::values(queries), &segments, tables, H::values_mut(out))
    }
}

/// Appends the rows `rows` of `source`, `cols` wide.
pub(super) fn gather(source: &[f32], cols: usize, rows: &[Row], out: &mut Vec<f32>) -> Result<(), OpError> {
    for row in rows {
        let at = row.at() * cols;
        let values = source.get(at..at + cols).ok_or(OpError::ShapeMismatch {
            op: "draft_step",
            expected: vec![source.len() / cols],
            got: vec![row.at()],
        })?;
        out.extend_from_slice(values);
    }
    Ok(())
}

/// Copies `from`, rows of `cols` values, to the columns `at..at + cols` of `to`, rows of `width`.
pub(super) fn set_columns(from: &[f32], cols: usize, to: &mut [f32], width: usize, at: usize) {
    for (from, to) in from.chunks_exact(cols).zip(to.chunks_exact_mut(width)) {
        to[at..at + cols].copy_from_slice(from);
    }
}

impl<H: HostOps> HostDraft<H> {
    /// `input = fc(states)` of the rows.
    fn fuse(&mut self, ops: &mut H, rows: &[Row]) -> Result<(), OpError> {
        let (cols, eps) = (self.shape.target_hidden_size, self.shape.rms_norm_eps);
        let width = NUM_STATES * cols;
        let (mut wide, mut one) = (vec![0.0; rows.len() * width], std::mem::take(&mut self.scratch));
        for (index, state) in self.states.iter().enumerate() {
            one.clear();
            gather(H::values(state), cols, rows, &mut one)?;
            set_columns(&one, cols, &mut wide, width, index * cols);
        }
        ops.write(&wide, &mut self.states_wide)?;
        if let (Some(gain), Some(normed)) = (&self.weights.states_norm, &mut self.states_normed) {
            HostOps::norm(ops, &self.states_wide, gain, eps, normed)?;
            std::mem::swap(normed, &mut self.states_wide);
        }
        if let (Some(gains), Some((raw, normed))) = (&self.weights.state_norms, &mut self.state) {
            wide.copy_from_slice(H::values(&self.states_wide));
            for (index, gain) in gains.iter().enumerate() {
                one.clear();
                wide.chunks_exact(width)
                    .for_each(|row| one.extend_from_slice(&row[index * cols..(index + 1) * cols]));
                ops.write(&one, raw)?;
                HostOps::norm(ops, raw, gain, eps, normed)?;
                let target = H::values_mut(&mut self.states_wide);
                set_columns(H::values(normed), cols, target, width, index * cols);
            }
        }
        self.scratch = one;
        ops.project(&self.states_wide, &self.weights.fc, &mut self.input)
    }

    /// `input` = what rows of the last step feed to a further slot.
    fn feed(&mut self, ops: &mut H, rows: &[Row]) -> Result<(), OpError> {
        let mut fed = std::mem::take(&mut self.scratch);
        fed.clear();
        gather(self.output(), self.shape.hidden_size, rows, &mut fed)?;
        ops.write(&fed, &mut self.input)?;
        self.scratch = fed;
        Ok(())
    }

    /// What each row of the last step feeds to a further slot.
    fn output(&self) -> &[f32] {
        H::values(if self.shape.norm_output { &self.normed } else { &self.hidden })
    }

    fn take_plan(&mut self, plan: &StepPlan, workspace: &HostWorkspace<H>) {
        self.plan.clone_from(plan);
        self.tokens.clear();
        self.tokens.extend(plan.tokens.iter().map(|token| workspace.id_of(*token)));
        self.rotations.clear();
        plan.positions.iter().for_each(|position| self.rope.rotation(*position, &mut self.rotations));
    }
}

impl<H: HostOps> DraftOps for H {
    type Draft = HostDraft<H>;

    fn draft_memory(&self, shape: &DraftShape, capacity: &Capacity, cache: &CacheShape) -> MemoryNeeds {
        let (attention, cache_bytes) = match &shape.attention {
            DraftAttentionShape::Mla { q_lora_rank, mla } => (
                2 * q_lora_rank.unwrap_or(0)
                    + mla.num_heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim)
                    + mla.latent_dim(),
                cache.bytes() as u64,
            ),
            DraftAttentionShape::Gqa(gqa) => {
                (2 * (gqa.num_heads + gqa.num_kv_heads) * gqa.head_dim, GqaCache::needs(gqa, cache))
            }
        };
        let row = 11 * shape.target_hidden_size + 5 * shape.hidden_size + attention + shape.intermediate_size;
        let values = row * capacity.max_tokens + capacity.max_logits_rows * shape.draft_vocab_size;
        MemoryNeeds { workspace_bytes: 4 * values as u64, cache_bytes, ..MemoryNeeds::default() }
    }

    fn load_draft(
        &mut self,
        host: &DraftMatrices<'_>,
        shape: &DraftShape,
        rope: &RopeTable,
        capacity: &Capacity,
        cache: &CacheShape,
    ) -> Result<HostDraft<H>, OpError> {
        let (tokens, d, target) = (capacity.max_tokens, shape.hidden_size, shape.target_hidden_size);
        let weights = Weights::load(self, host)?;
        let (attention, attended) = Attention::load(self, &host.attention, &shape.attention, tokens, cache)?;
        let reduced = weights.target_ids.is_some();
        let (norms, state_norms) = (weights.states_norm.is_some(), weights.state_norms.is_some());
        Ok(HostDraft {
            shape: *shape,
            rope: rope.clone(),
            weights,
            attention,
            states: [
                self.allocate(tokens, target)?,
                self.allocate(tokens, target)?,
                self.allocate(tokens, target)?,
            ],
            states_wide: self.allocate(tokens, NUM_STATES * target)?,
            states_normed: match norms {
                true => Some(self.allocate(tokens, NUM_STATES * target)?),
                false => None,
            },
            state: match state_norms {
                true => Some((self.allocate(tokens, target)?, self.allocate(tokens, target)?)),
                false => None,
            },
            input: self.allocate(tokens, d)?,
            hidden: self.allocate(tokens, d)?,
            normed: self.allocate(tokens, d)?,
            wide: self.allocate(tokens, 2 * d)?,
            attended: self.allocate(tokens, attended)?,
            logits: match reduced {
                true => Some(self.allocate(capacity.max_logits_rows, shape.draft_vocab_size)?),
                false => None,
            },
            plan: StepPlan::default(),
            tokens: Vec::new(),
            rotations: Vec::new(),
            scratch: Vec::new(),
        })
    }

    fn capture(
        &mut self,
        state: usize,
        workspace: &HostWorkspace<H>,
        draft: &mut HostDraft<H>,
    ) -> Result<(), OpError> {
        self.write(workspace.hidden(), &mut draft.states[state])
    }

    fn draft_step(
        &mut self,
        plan: &StepPlan,
        input: DraftInput<'_>,
        table: &H::Matrix,
        workspace: &HostWorkspace<H>,
        draft: &mut HostDraft<H>,
    ) -> Result<(), OpError> {
        expect("draft_step", &[plan.num_rows()], &[input.rows().len()])?;
        draft.take_plan(plan, workspace);
        match input {
            DraftInput::Captured(rows) => draft.fuse(self, rows)?,
            DraftInput::Own(rows) => draft.feed(self, rows)?,
        }
        let HostDraft { shape, weights, attention, input, hidden, normed, wide, attended, .. } = draft;
        let (d, eps) = (shape.hidden_size, shape.rms_norm_eps);
        let mut joined = vec![0.0; plan.num_rows() * 2 * d];
        match &weights.embed_tokens {
            Some(own) => workspace.embed(self, own, &draft.tokens, hidden, &mut draft.scratch)?,
            None => workspace.embed(self, table, &draft.tokens, hidden, &mut draft.scratch)?,
        }
        HostOps::norm(self, hidden, &weights.input_layernorm, eps, normed)?;
        set_columns(H::values(normed), d, &mut joined, 2 * d, 0);
        HostOps::norm(self, input, &weights.hidden_norm, eps, normed)?;
        set_columns(H::values(normed), d, &mut joined, 2 * d, d);
        self.write(&joined, wide)?;
        self.write(H::values(if shape.norm_before_residual { normed } else { input }), hidden)?;
        match attention {
            Attention::Mla(mla) => mla.run(self, eps, wide, &draft.rotations, &draft.plan, attended)?,
            Attention::Gqa(gqa) => gqa.run(self, wide, &draft.rotations, &draft.plan, attended)?,
        }
        self.project_add(attended, &weights.o_proj, hidden)?;
        HostOps::norm(self, hidden, &weights.post_attention_layernorm, eps, normed)?;
        workspace.add_swiglu(self, normed, &weights.mlp, hidden, &mut draft.scratch)?;
        HostOps::norm(self, hidden, &weights.norm, eps, normed)
    }

    fn draft_logits(
        &mut self,
        table: &H::Matrix,
        draft: &mut HostDraft<H>,
        workspace: &mut HostWorkspace<H>,
    ) -> Result<(), OpError> {
        let HostDraft { shape, weights, normed, logits, plan, scratch, .. } = draft;
        let rows: &[u32] = bytemuck::cast_slice(&plan.logits_rows);
        let own = weights.lm_head.as_ref().or(weights.embed_tokens.as_ref());
        match (own, &weights.target_ids, logits) {
            (Some(head), Some(ids), Some(logits)) => {
                HostOps::logits(self, normed, rows, head, logits)?;
                let vocab = workspace.vocab();
                scratch.clear();
                scratch.resize(rows.len() * vocab.len(), f32::NEG_INFINITY);
                let all = scratch.chunks_exact_mut(vocab.len());
                for (own, some) in all.zip(H::values(logits).chunks_exact(shape.draft_vocab_size)) {
                    let held = ids.iter().zip(some).filter(|(id, _)| vocab.contains(&(**id as usize)));
                    held.for_each(|(id, logit)| own[*id as usize - vocab.start] = *logit);
                }
                self.write(scratch, workspace.logits_mut())?;
            }
            (Some(head), ..) => HostOps::logits(self, normed, rows, head, workspace.logits_mut())?,
            (None, ..) => HostOps::logits(self, normed, rows, table, workspace.logits_mut())?,
        }
        let out = workspace.logits_mut();
        if shape.logit_scale != 1.0 {
            H::values_mut(out).iter_mut().for_each(|logit| *logit *= shape.logit_scale);
        }
        Ok(())
    }

    fn draft_block_bytes(&self, draft: &HostDraft<H>) -> usize {
        match &draft.attention {
            Attention::Mla(mla) => mla.cache_shape.block_bytes(),
            Attention::Gqa(gqa) => gqa.cache.block_bytes(),
        }
    }

    fn start_draft_read(&mut self, block: BlockId, draft: &HostDraft<H>) -> Result<Vec<u8>, OpError> {
        match &draft.attention {
            Attention::Mla(mla) => read_block(self, block, &mla.cache, &mla.cache_shape),
            Attention::Gqa(gqa) => Ok(gqa.cache.bytes()[gqa.cache.block(block)?].to_vec()),
        }
    }

    fn write_draft_block(
        &mut self,
        block: BlockId,
        content: &[u8],
        draft: &mut HostDraft<H>,
    ) -> Result<(), OpError> {
        match &mut draft.attention {
            Attention::Mla(mla) => write_block(self, block, content, &mut mla.cache, &mla.cache_shape),
            Attention::Gqa(gqa) => {
                let at = gqa.cache.block(block)?;
                expect("write_block", &[at.len()], &[content.len()])?;
                gqa.cache.bytes_mut()[at].copy_from_slice(content);
                Ok(())
            }
        }
    }

    fn read_draft(&mut self, draft: &HostDraft<H>) -> DraftActivations {
        DraftActivations {
            states: draft.states.each_ref().map(|state| H::values(state).to_vec()),
            input: H::values(&draft.input).to_vec(),
            output: draft.output().to_vec(),
        }
    }
}
