//! [`HostOps`] on the CPU: checks shapes, then calls the module of each operation.

use super::buffer::{Buffer, Cache, Routing};
use super::elementwise::{gelu_row, layer_norm_row, norm_row, rotate};
use super::gemm::{self, Operands, StoreRows};
use super::layout::LANES;
use super::matrix::{PanelSource, Panels, pack_all, pack_reporting};
use super::mla::{self, Geometry, KvUp};
use super::moe::{self, Expert, Experts, Router, Rows};
use super::rows::{self, Numerics, RowLayout};
use super::simd::Isa;
use perigee_numbers::quant::StoredMatrix;
use perigee_numbers::tensor::{ElementType, TensorView};
use perigee_numbers::threads::{PerWorker, Shards, ThreadPool, UploadMeter};
use perigee_ops::host::{Gelu, HostOps};
use perigee_ops::{
    Activations, CacheShape, ExpertMatrices, KvSlot, LatentSpan, MlaShape, ModelShape, OpError, Preferences,
    RouterShape, Segment, expect, peak,
};
use std::ops::Range;
use std::sync::Arc;

/// How a [`CpuBackend`] computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuOptions {
    /// Worker threads, the caller included; 0 means as many as the machine offers this process.
    pub threads: usize,
    /// Rounding of the inputs of matrix products.
    pub activations: Activations,
    /// Instruction set. One this machine lacks is replaced by the best it has.
    pub isa: Isa,
}

impl Default for CpuOptions {
    fn default() -> Self {
        Self { threads: 0, activations: Activations::Bf16, isa: Isa::best() }
    }
}

/// Rows below which row-wise work stays on the calling thread.
const SERIAL_ROWS: usize = 8;

/// The CPU backend.
pub struct CpuBackend {
    pool: ThreadPool,
    numerics: Numerics,
    /// Packed input rows of the product under way, and the same in int8 before they are packed.
    packed: Vec<u32>,
    quantized: Vec<u32>,
    /// Sums of the tiles under way.
    sums: PerWorker<Vec<f32>>,
    /// Logits of the router; normalised latents; normalised rows before the head.
    values: Vec<f32>,
    kept: PerWorker<Vec<f32>>,
    moe: moe::Scratch,
    expanded: PerWorker<mla::ExpandedScratch>,
    expansions: mla::Expansions,
    absorbed: mla::AbsorbedScratch,
    absorbed_workers: PerWorker<mla::AbsorbedWorker>,
    patches: PerWorker<mla::PatchScratch>,
    uploads: Arc<UploadMeter>,
}

impl std::fmt::Debug for CpuBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CpuBackend({:?}, {} threads)", self.numerics, self.pool.num_threads())
    }
}

impl CpuBackend {
    /// Starts the threads.
    pub fn new(options: CpuOptions) -> Self {
        let isa = if Isa::supported().contains(&options.isa) { options.isa } else { Isa::best() };
        let pool = ThreadPool::new("cpu", options.threads);
        let threads = pool.num_threads();
        Self {
            pool,
            numerics: Numerics { isa, activations: options.activations },
            packed: Vec::new(),
            quantized: Vec::new(),
            sums: PerWorker::new(threads, || vec![0.0; gemm::SUMS]),
            values: Vec::new(),
            kept: PerWorker::new(threads, Vec::new),
            moe: moe::Scratch::default(),
            expanded: PerWorker::new(threads, Default::default),
            expansions: Default::default(),
            absorbed: Default::default(),
            absorbed_workers: PerWorker::new(threads, Default::default),
            patches: PerWorker::new(threads, Default::default),
            uploads: Arc::default(),
        }
    }

    /// Reports the bytes of experts to `meter` as they are packed.
    pub fn reporting(self, meter: Arc<UploadMeter>) -> Self {
        Self { uploads: meter, ..self }
    }

    /// Worker threads, the caller included.
    pub fn num_threads(&self) -> usize {
        self.pool.num_threads()
    }

    /// Whether activations are kept in f32.
    #[cfg(test)]
    pub(super) fn numerics_are_f32(&self) -> bool {
        self.numerics.activations == Activations::F32
    }

    /// Instruction set in use.
    pub fn isa(&self) -> Isa {
        self.numerics.isa
    }

    /// `out (+)= x W^T` for `rows` rows, row `i` read from `source(i)`.
    fn multiply<'s>(
        &mut self,
        rows: usize,
        layout: RowLayout,
        weights: &Panels,
        source: impl Fn(usize) -> &'s [f32] + Sync,
        out: &mut [f32],
        add: bool,
    ) {
        let tiling = layout.tiling(rows);
        rows::pack(&mut self.pool, layout, tiling, &mut self.packed, &mut self.quantized, source);
        let out_features = weights.out_features;
        let finish = StoreRows { out: Shards::new(out), stride: out_features, column: 0, out_features, add };
        let operands = Operands { rows: &self.packed, layout, tiling, weights };
        gemm::multiply(&mut self.pool, self.numerics.isa, &self.sums, operands, &finish);
    }

    /// `work(t, row t of out)` for every row, on all threads when there are many.
    fn each_row(
        pool: &mut ThreadPool,
        out: &mut [f32],
        cols: usize,
        work: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        let rows = out.len() / cols.max(1);
        if rows < SERIAL_ROWS {
            return out.chunks_exact_mut(cols.max(1)).enumerate().for_each(|(t, row)| work(t, row));
        }
        let out = Shards::new(out);
        pool.for_each(rows.div_ceil(SERIAL_ROWS), |_, item| {
            for t in item * SERIAL_ROWS..((item + 1) * SERIAL_ROWS).min(rows) {
                // SAFETY: `out` stays borrowed; every item has rows of its own.
                work(t, unsafe { out.slice(t * cols, cols) });
            }
        });
    }
}

/// `Err` unless every index is below `limit`.
fn expect_below(op: &'static str, limit: usize, indices: &[u32]) -> Result<(), OpError> {
    match indices.iter().find(|i| **i as usize >= limit) {
        Some(i) => Err(OpError::ShapeMismatch { op, expected: vec![limit], got: vec![*i as usize] }),
        None => Ok(()),
    }
}

/// `Err` unless every slot is below `limit` or no slot at all.
fn expect_held(op: &'static str, limit: usize, slots: &[u32]) -> Result<(), OpError> {
    match slots.iter().find(|slot| **slot as usize >= limit && **slot != KvSlot::PAD.0) {
        Some(slot) => expect_below(op, limit, &[*slot]),
        None => Ok(()),
    }
}

fn vector(op: &'static str, host: &TensorView<'_>) -> Result<Vec<f32>, OpError> {
    match host.dtype {
        dtype if dtype.is_float() => Ok(host.to_f32()),
        dtype => Err(OpError::UnsupportedDtype { op, dtype: dtype.to_string(), backend: "cpu" }),
    }
}

impl HostOps for CpuBackend {
    type Matrix = Panels;
    type Vector = Vec<f32>;
    type KvUp = KvUp;
    type Router = Router;
    type Experts = Experts;
    type Buffer = Buffer;
    type Routing = Routing;
    type Cache = Cache;

    fn name(&self) -> &'static str {
        "cpu"
    }

    /// One rounded copy of the widest input, the hidden rows of the chosen experts and their outputs.
    fn scratch_values(&self, shape: &ModelShape) -> usize {
        let mla = &shape.mla;
        let query = mla.num_heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim);
        let outputs = (shape.router.top_k + 1) * shape.hidden_size;
        query.max(shape.hidden_size) + shape.ffn.of_row(shape.router.top_k) + outputs
    }

    fn kept_bytes(&self) -> usize {
        mla::EXPANSION_BYTES
    }

    /// With 512 prompt tokens a step matrix products are bound by arithmetic and few experts are read twice.
    fn preferences(&self) -> Preferences {
        Preferences { prefill_tokens: 512, max_logits_rows: 128 }
    }

    fn load_matrix(&mut self, host: &StoredMatrix<'_>) -> Result<Panels, OpError> {
        let source = PanelSource::stacked("load_matrix", vec![*host])?;
        one(pack_all(&mut self.pool, self.numerics.isa, "weight matrix", &[source])?, "load_matrix")
    }

    fn load_vector(&mut self, host: &TensorView<'_>) -> Result<Vec<f32>, OpError> {
        vector("load_vector", host)
    }

    fn load_kv_up(&mut self, host: &StoredMatrix<'_>, shape: &MlaShape) -> Result<KvUp, OpError> {
        KvUp::load(&mut self.pool, self.numerics, host, shape)
    }

    fn load_router(
        &mut self,
        weight: &StoredMatrix<'_>,
        bias: &TensorView<'_>,
        shape: &RouterShape,
    ) -> Result<Router, OpError> {
        let op = "load_router";
        let RouterShape { num_experts, top_k, n_group, topk_group, .. } = *shape;
        expect(op, &[num_experts], &weight.shape()[..weight.shape().len().min(1)])?;
        expect(op, &[num_experts], bias.shape)?;
        expect(op, &[top_k.clamp(1, num_experts.max(1))], &[top_k])?;
        expect(op, &[topk_group.clamp(1, n_group.max(1))], &[topk_group])?;
        expect(op, &[0], &[num_experts % n_group.max(1)])?;
        let source = PanelSource::stacked(op, vec![*weight])?.widened();
        let weight = one(pack_all(&mut self.pool, self.numerics.isa, "router", &[source])?, op)?;
        Ok(Router { weight, bias: vector(op, bias)? })
    }

    fn load_experts(&mut self, experts: &[ExpertMatrices<'_>], first: usize) -> Result<Experts, OpError> {
        let op = "load_experts";
        let mut sources = Vec::with_capacity(2 * experts.len());
        for e in experts {
            let (hidden, inner) = match experts[0].down_proj.shape() {
                [hidden, inner] => (*hidden, *inner),
                other => {
                    return Err(OpError::ShapeMismatch { op, expected: vec![0, 0], got: other.to_vec() });
                }
            };
            expect(op, &[inner, hidden], e.gate_proj.shape())?;
            expect(op, &[inner, hidden], e.up_proj.shape())?;
            expect(op, &[hidden, inner], e.down_proj.shape())?;
            sources.push(PanelSource::alternating(op, e.gate_proj, e.up_proj)?);
            sources.push(PanelSource::stacked(op, vec![e.down_proj])?);
        }
        let packed = pack_reporting(&mut self.pool, self.numerics.isa, "experts", &sources, &self.uploads)?;
        let mut packed = packed.into_iter();
        let mut list = Vec::with_capacity(experts.len());
        for e in experts {
            let (Some(gate_up), Some(down)) = (packed.next(), packed.next()) else { break };
            list.push(Expert { gate_up, down, input: e.input, inner: e.inner });
        }
        Ok(Experts { first, list })
    }

    fn allocate(&mut self, capacity: usize, cols: usize) -> Result<Buffer, OpError> {
        Buffer::allocate(capacity, cols)
    }

    fn allocate_routing(&mut self, capacity: usize, shape: &RouterShape) -> Result<Routing, OpError> {
        Ok(Routing::allocate(capacity, shape.top_k))
    }

    fn allocate_cache(&mut self, shape: &CacheShape) -> Result<Cache, OpError> {
        Cache::allocate(shape)
    }

    fn set_cache_scales(&mut self, cache: &mut Cache, exponents: &[i32]) -> Result<(), OpError> {
        expect("set_cache_scales", &[cache.shape.num_layers], &[exponents.len()])?;
        cache.set_exponents(exponents);
        Ok(())
    }

    fn embed(&mut self, table: &Panels, token_ids: &[u32], out: &mut Buffer) -> Result<(), OpError> {
        expect("embed", &[table.in_features], &[out.cols])?;
        expect_below("embed", table.out_features, token_ids)?;
        out.set_rows("embed", token_ids.len())?;
        let cols = out.cols;
        Self::each_row(&mut self.pool, out.values_mut(), cols, |t, row| {
            table.read_row(token_ids[t] as usize, row);
        });
        Ok(())
    }

    fn norm(&mut self, x: &Buffer, gain: &Vec<f32>, eps: f32, out: &mut Buffer) -> Result<(), OpError> {
        expect("norm", &[gain.len(), gain.len()], &[x.cols, out.cols])?;
        out.set_rows("norm", x.rows)?;
        let (isa, cols) = (self.numerics.isa, out.cols);
        Self::each_row(&mut self.pool, out.values_mut(), cols, |t, row| {
            norm_row(isa, x.row(t), gain, eps, row)
        });
        Ok(())
    }

    fn project(&mut self, x: &Buffer, weight: &Panels, out: &mut Buffer) -> Result<(), OpError> {
        expect("project", &[weight.in_features, weight.out_features], &[x.cols, out.cols])?;
        out.set_rows("project", x.rows)?;
        let layout = self.numerics.layout(weight.format, weight.in_features);
        self.multiply(x.rows, layout, weight, |t| x.row(t), out.values_mut(), false);
        Ok(())
    }

    fn project_add(&mut self, x: &Buffer, weight: &Panels, out: &mut Buffer) -> Result<(), OpError> {
        let expected = [weight.in_features, weight.out_features, x.rows];
        expect("project_add", &expected, &[x.cols, out.cols, out.rows])?;
        let layout = self.numerics.layout(weight.format, weight.in_features);
        self.multiply(x.rows, layout, weight, |t| x.row(t), out.values_mut(), true);
        Ok(())
    }

    fn rope(&mut self, shape: &MlaShape, rotations: &[f32], q: &mut Buffer) -> Result<(), OpError> {
        let (n, r) = (shape.qk_nope_head_dim, shape.qk_rope_head_dim);
        expect("rope", &[shape.num_heads * (n + r), q.rows * r, 0], &[q.cols, rotations.len(), r % 2])?;
        let cols = q.cols;
        Self::each_row(&mut self.pool, q.values_mut(), cols, |t, row| {
            for head in row.chunks_exact_mut(n + r) {
                rotate(&mut head[n..], &rotations[t * r..(t + 1) * r]);
            }
        });
        Ok(())
    }

    fn write_latent(
        &mut self,
        shape: &MlaShape,
        kv_a: &Buffer,
        gain: &Vec<f32>,
        eps: f32,
        rotations: &[f32],
        slot_mapping: &[u32],
        layer: usize,
        cache: &mut Cache,
    ) -> Result<(), OpError> {
        let op = "write_latent";
        let (c, r) = (shape.kv_lora_rank, shape.qk_rope_head_dim);
        expect(op, &[c + r, c, kv_a.rows], &[kv_a.cols, gain.len(), slot_mapping.len()])?;
        expect(op, &[c + r, kv_a.rows * r, 0], &[cache.shape.latent_dim, rotations.len(), r % 2])?;
        expect_below(op, cache.shape.num_layers, &[layer as u32])?;
        expect_held(op, cache.slots(), slot_mapping)?;
        let isa = self.numerics.isa;
        self.values.resize(kv_a.values().len(), 0.0);
        Self::each_row(&mut self.pool, &mut self.values, c + r, |t, row| {
            let (latent, rope_key) = row.split_at_mut(c);
            norm_row(isa, &kv_a.row(t)[..c], gain, eps, latent);
            rope_key.copy_from_slice(&kv_a.row(t)[c..]);
            rotate(rope_key, &rotations[t * r..(t + 1) * r]);
        });
        // One thread stores: two rows may name one slot, and then the later one stays.
        for (row, slot) in self.values.chunks_exact(c + r).zip(slot_mapping) {
            if *slot != KvSlot::PAD.0 {
                cache.store(layer, *slot as usize, row);
            }
        }
        Ok(())
    }

    fn attend_expanded(
        &mut self,
        shape: &MlaShape,
        q: &Buffer,
        kv_up: &KvUp,
        layer: usize,
        cache: &Cache,
        segments: &[Segment],
        block_tables: &[u32],
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        attention_shapes("attend_expanded", shape, q, kv_up, out)?;
        mla::check("attend_expanded", shape, q.rows, layer, cache, segments, block_tables)?;
        out.set_rows("attend_expanded", q.rows)?;
        let geometry = Geometry::new(shape, self.numerics, kv_up);
        let context = mla::Context { cache, layer, table: &[] };
        mla::attend_expanded(
            &mut self.pool,
            &self.expanded,
            &mut self.expansions,
            &geometry,
            kv_up,
            context,
            q.values(),
            segments,
            block_tables,
            out.values_mut(),
        );
        Ok(())
    }

    fn attend_absorbed(
        &mut self,
        shape: &MlaShape,
        q: &Buffer,
        kv_up: &KvUp,
        layer: usize,
        cache: &Cache,
        segments: &[Segment],
        block_tables: &[u32],
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        attention_shapes("attend_absorbed", shape, q, kv_up, out)?;
        mla::check("attend_absorbed", shape, q.rows, layer, cache, segments, block_tables)?;
        out.set_rows("attend_absorbed", q.rows)?;
        let geometry = Geometry::new(shape, self.numerics, kv_up);
        let (call, scratch) = self.absorbed(&geometry, kv_up);
        let keys = mla::Keys { context: mla::Context { cache, layer, table: &[] }, block_tables };
        mla::attend_absorbed(call, scratch, keys, segments, q.values(), out.values_mut());
        Ok(())
    }

    fn latent_queries(
        &mut self,
        shape: &MlaShape,
        q: &Buffer,
        kv_up: &KvUp,
        rows: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let op = "latent_queries";
        expect(op, &[shape.num_heads * (shape.qk_nope_head_dim + shape.qk_rope_head_dim)], &[q.cols])?;
        expect(op, &[shape.num_heads], &[kv_up.w_uk.len()])?;
        expect_below(op, q.rows, rows)?;
        let geometry = Geometry::new(shape, self.numerics, kv_up);
        let (call, scratch) = self.absorbed(&geometry, kv_up);
        mla::latent_queries(call, scratch, q.values(), rows, out);
        Ok(())
    }

    fn attend_latents(
        &mut self,
        shape: &MlaShape,
        queries: &[f32],
        kv_up: &KvUp,
        layer: usize,
        cache: &Cache,
        spans: &[LatentSpan],
        block_tables: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let op = "attend_latents";
        let num_queries = spans.last().map_or(0, |span| span.first + span.num_keys.len());
        expect(op, &[num_queries * shape.num_heads * shape.latent_dim()], &[queries.len()])?;
        mla::check_spans(op, shape, layer, cache, spans, block_tables)?;
        let geometry = Geometry::new(shape, self.numerics, kv_up);
        let (call, scratch) = self.absorbed(&geometry, kv_up);
        let keys = mla::Keys { context: mla::Context { cache, layer, table: &[] }, block_tables };
        mla::attend_latents(call, scratch, keys, spans, queries, out);
        Ok(())
    }

    fn project_latents(
        &mut self,
        shape: &MlaShape,
        latents: &[f32],
        kv_up: &KvUp,
        rows: &[u32],
        num_rows: usize,
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        let op = "project_latents";
        let heads = shape.num_heads;
        expect(op, &[heads, heads * shape.v_head_dim], &[kv_up.w_uv.len(), out.cols])?;
        expect(op, &[rows.len() * heads * shape.kv_lora_rank], &[latents.len()])?;
        expect_below(op, num_rows, rows)?;
        out.set_rows(op, num_rows)?;
        let geometry = Geometry::new(shape, self.numerics, kv_up);
        let (call, scratch) = self.absorbed(&geometry, kv_up);
        mla::project_latents(call, scratch, latents, rows, out.values_mut());
        Ok(())
    }

    fn read_cached(
        &mut self,
        cache: &Cache,
        layer: usize,
        slots: &[u32],
        out: &mut Vec<u8>,
    ) -> Result<(), OpError> {
        expect_below("read_cached", cache.shape.num_layers, &[layer as u32])?;
        expect_below("read_cached", cache.slots(), slots)?;
        slots.iter().for_each(|slot| out.extend_from_slice(cache.row_bytes(layer, *slot as usize)));
        Ok(())
    }

    fn write_cached(
        &mut self,
        rows: &[u8],
        layer: usize,
        slots: &[u32],
        cache: &mut Cache,
    ) -> Result<(), OpError> {
        let row_bytes = cache.shape.row_bytes();
        expect_below("write_cached", cache.shape.num_layers, &[layer as u32])?;
        expect_below("write_cached", cache.slots(), slots)?;
        expect("write_cached", &[slots.len() * row_bytes], &[rows.len()])?;
        for (slot, row) in slots.iter().zip(rows.chunks_exact(row_bytes)) {
            cache.row_bytes_mut(layer, *slot as usize).copy_from_slice(row);
        }
        Ok(())
    }

    fn route(
        &mut self,
        x: &Buffer,
        router: &Router,
        shape: &RouterShape,
        routing: &mut Routing,
    ) -> Result<(), OpError> {
        let (experts, top_k) = (shape.num_experts, shape.top_k);
        let expected = [router.weight.in_features, router.weight.out_features, top_k];
        expect("route", &expected, &[x.cols, experts, routing.top_k])?;
        routing.set_rows(x.rows)?;
        let layout = self.numerics.exact_layout(x.cols);
        // Logits of every row, then one row of scratch for the choice of each.
        let mut values = std::mem::take(&mut self.values);
        values.resize(x.rows * experts * 2, 0.0);
        let (logits, choice) = values.split_at_mut(x.rows * experts);
        self.multiply(x.rows, layout, &router.weight, |t| x.row(t), logits, false);
        let isa = self.numerics.isa;
        let logits = Shards::new(logits);
        let (chosen, weights) = (Shards::new(&mut routing.experts), Shards::new(&mut routing.weights));
        Self::each_row(&mut self.pool, choice, experts, |t, choice| {
            // SAFETY: all three stay borrowed; every row is visited once.
            let (logits, chosen, weights) = unsafe {
                (
                    logits.slice(t * experts, experts),
                    chosen.slice(t * top_k, top_k),
                    weights.slice(t * top_k, top_k),
                )
            };
            moe::choose(isa, shape, &router.bias, logits, choice, chosen, weights);
        });
        self.values = values;
        Ok(())
    }

    fn experts(
        &mut self,
        x: &Buffer,
        are_prompts: &[bool],
        routing: &Routing,
        routed: &Experts,
        shared: Option<&Experts>,
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        let op = "experts";
        expect(op, &[x.rows, x.rows, x.cols], &[routing.rows, out.rows, out.cols])?;
        let shared = shared.and_then(|s| s.list.first());
        for expert in routed.list.first().into_iter().chain(shared) {
            expect(op, &[expert.gate_up.in_features, expert.down.out_features], &[x.cols, out.cols])?;
        }
        let rows = Rows { values: x.values(), width: x.cols, are_prompts };
        moe::apply(self.moe(), rows, Some((routed, routing)), shared, out.values_mut());
        Ok(())
    }

    /// Offline calibration only: one expert after the other over the rows that chose it, as if it were the shared expert of those rows.
    fn expert_norms(
        &mut self,
        x: &Buffer,
        routing: &Routing,
        routed: &Experts,
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        let op = "expert_norms";
        expect(op, &[x.rows, routing.top_k], &[routing.rows, out.cols])?;
        if let Some(expert) = routed.list.first() {
            expect(op, &[expert.gate_up.in_features, expert.down.out_features], &[x.cols, x.cols])?;
        }
        let chosen = &routing.experts[..routing.rows * routing.top_k];
        out.set_rows(op, x.rows)?;
        out.values_mut().fill(0.0);
        let (cols, mut rows, mut results) = (x.cols, Vec::new(), Vec::new());
        for (e, expert) in routed.list.iter().enumerate() {
            let slots: Vec<usize> =
                (0..chosen.len()).filter(|slot| chosen[*slot] as usize == routed.first + e).collect();
            rows.clear();
            slots.iter().for_each(|slot| rows.extend_from_slice(x.row(slot / routing.top_k)));
            results.clear();
            results.resize(rows.len(), 0.0f32);
            let rows = Rows { values: &rows, width: cols, are_prompts: &[] };
            moe::apply(self.moe(), rows, None, Some(expert), &mut results);
            for (slot, result) in slots.iter().zip(results.chunks_exact(cols.max(1))) {
                let squares: f64 = result.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
                out.values_mut()[*slot] = squares.sqrt() as f32;
            }
        }
        Ok(())
    }

    fn inner_peak(
        &mut self,
        x: &Buffer,
        rows: &[u32],
        weights: &Experts,
        expert: usize,
    ) -> Result<f32, OpError> {
        let op = "inner_peak";
        expect_below(op, weights.list.len(), &[expert as u32])?;
        expect_below(op, x.rows, rows)?;
        let panels = &weights.list[expert].gate_up;
        expect(op, &[panels.in_features], &[x.cols])?;
        // Ranges of inputs are measured without rounding them to codes first.
        let layout = self.numerics.layout(panels.format, panels.in_features);
        // Gate and up of 16 units side by side, then of the next 16; lanes beyond the last unit are zero.
        let stride = panels.num_panels * LANES;
        let mut sums = vec![0.0; rows.len() * stride];
        let tiling = layout.tiling(rows.len());
        let source = |i: usize| x.row(rows[i] as usize);
        rows::pack(&mut self.pool, layout, tiling, &mut self.packed, &mut self.quantized, source);
        let out = Shards::new(&mut sums);
        let finish = StoreRows { out, stride, column: 0, out_features: stride, add: false };
        let operands = Operands { rows: &self.packed, layout, tiling, weights: panels };
        gemm::multiply(&mut self.pool, self.numerics.isa, &self.sums, operands, &finish);
        Ok(peak(sums.chunks_exact(2 * LANES).flat_map(|pair| {
            let (gate, up) = pair.split_at(LANES);
            gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u)
        })))
    }

    fn cached_peak(&mut self, cache: &Cache, layer: usize, slots: &[u32]) -> Result<f32, OpError> {
        expect_below("cached_peak", cache.shape.num_layers, &[layer as u32])?;
        expect_held("cached_peak", cache.slots(), slots)?;
        let held = slots.iter().filter(|slot| **slot != KvSlot::PAD.0);
        Ok(peak(held.map(|slot| cache.peak(layer, *slot as usize))))
    }

    fn swiglu_add(
        &mut self,
        x: &Buffer,
        are_prompts: &[bool],
        weights: &Experts,
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        let op = "swiglu_add";
        expect(op, &[1, x.rows, x.cols], &[weights.list.len(), out.rows, out.cols])?;
        let expert = &weights.list[0];
        expect(op, &[expert.gate_up.in_features, expert.down.out_features], &[x.cols, out.cols])?;
        let rows = Rows { values: x.values(), width: x.cols, are_prompts };
        moe::apply(self.moe(), rows, None, Some(expert), out.values_mut());
        Ok(())
    }

    fn logits(&mut self, x: &Buffer, rows: &[u32], head: &Panels, out: &mut Buffer) -> Result<(), OpError> {
        let op = "logits";
        expect(op, &[head.in_features, head.out_features], &[x.cols, out.cols])?;
        expect_below(op, x.rows, rows)?;
        out.set_rows(op, rows.len())?;
        let layout = self.numerics.layout(head.format, x.cols);
        self.multiply(rows.len(), layout, head, |i| x.row(rows[i] as usize), out.values_mut(), false);
        Ok(())
    }

    fn layer_norm(
        &mut self,
        x: &[f32],
        gain: &[f32],
        bias: &[f32],
        eps: f32,
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        let cols = out.cols;
        expect("layer_norm", &[cols, cols, 0], &[gain.len(), bias.len(), x.len() % cols.max(1)])?;
        out.set_rows("layer_norm", x.len() / cols.max(1))?;
        let isa = self.numerics.isa;
        Self::each_row(&mut self.pool, out.values_mut(), cols, |t, row| {
            layer_norm_row(isa, &x[t * cols..(t + 1) * cols], gain, bias, eps, row);
        });
        Ok(())
    }

    fn bias_gelu(&mut self, bias: &[f32], form: Gelu, x: &mut Buffer) -> Result<(), OpError> {
        expect("bias_gelu", &[x.cols], &[bias.len()])?;
        let (isa, cols) = (self.numerics.isa, x.cols);
        Self::each_row(&mut self.pool, x.values_mut(), cols, |_, row| match form {
            Gelu::Tanh => gelu_row(isa, row, bias),
            Gelu::Exact => row.iter_mut().zip(bias).for_each(|(x, bias)| *x = form.of(*x + bias)),
        });
        Ok(())
    }

    fn attend_patches(
        &mut self,
        num_heads: usize,
        head_dim: usize,
        qkv: &[f32],
        pictures: &[Range<usize>],
        out: &mut [f32],
    ) -> Result<(), OpError> {
        let op = "attend_patches";
        expect(op, &[3 * out.len()], &[qkv.len()])?;
        let end = pictures.iter().map(|picture| picture.end).max().unwrap_or(0);
        expect(op, &[out.len().max(end * num_heads * head_dim)], &[out.len()])?;
        let (pool, scratch) = (&mut self.pool, &self.patches);
        mla::attend_patches(pool, scratch, self.numerics, num_heads, head_dim, qkv, pictures, out);
        Ok(())
    }

    fn for_each(&mut self, count: usize, work: &(dyn Fn(usize, usize) + Sync)) {
        self.pool.for_each(count, work);
    }

    fn num_workers(&self) -> usize {
        self.pool.num_threads()
    }

    fn values(buffer: &Buffer) -> &[f32] {
        buffer.values()
    }

    fn values_mut(buffer: &mut Buffer) -> &mut [f32] {
        buffer.values_mut()
    }

    fn read_routing(
        &mut self,
        routing: &Routing,
        experts: &mut Vec<u32>,
        weights: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let slots = routing.rows * routing.top_k;
        experts.clear();
        experts.extend_from_slice(&routing.experts[..slots]);
        weights.clear();
        weights.extend_from_slice(&routing.weights[..slots]);
        Ok(())
    }

    fn write(&mut self, rows: &[f32], buffer: &mut Buffer) -> Result<(), OpError> {
        expect("write", &[0], &[rows.len() % buffer.cols.max(1)])?;
        buffer.set_rows("write", rows.len() / buffer.cols.max(1))?;
        buffer.values_mut().copy_from_slice(rows);
        Ok(())
    }
}

impl CpuBackend {
    /// What absorbed attention works with, and its scratch.
    fn absorbed<'a>(
        &'a mut self,
        geometry: &'a Geometry,
        kv_up: &'a KvUp,
    ) -> (mla::AbsorbedCall<'a>, &'a mut mla::AbsorbedScratch) {
        let call = mla::AbsorbedCall {
            pool: &mut self.pool,
            workers: &self.absorbed_workers,
            sums: &self.sums,
            geometry,
            kv_up,
        };
        (call, &mut self.absorbed)
    }

    fn moe(&mut self) -> moe::Context<'_> {
        moe::Context {
            pool: &mut self.pool,
            numerics: self.numerics,
            sums: &self.sums,
            kept: &self.kept,
            scratch: &mut self.moe,
        }
    }
}

/// The one matrix that packing one source gives.
fn one(mut packed: Vec<Panels>, op: &'static str) -> Result<Panels, OpError> {
    packed.pop().ok_or(OpError::ShapeMismatch { op, expected: vec![1], got: vec![0] })
}

fn attention_shapes(
    op: &'static str,
    shape: &MlaShape,
    q: &Buffer,
    kv_up: &KvUp,
    out: &Buffer,
) -> Result<(), OpError> {
    let MlaShape {
        num_heads, qk_nope_head_dim: n, qk_rope_head_dim: r, v_head_dim: v, kv_lora_rank: c, ..
    } = *shape;
    expect(
        op,
        &[num_heads * (n + r), num_heads * v, num_heads, 0],
        &[q.cols, out.cols, kv_up.w_uk.len(), r % 2],
    )?;
    for (uk, uv) in kv_up.w_uk.iter().zip(&kv_up.w_uv) {
        let got = [uk.out_features, uk.in_features, uv.out_features, uv.in_features];
        expect(op, &[c, n, v, c], &got)?;
    }
    Ok(())
}
