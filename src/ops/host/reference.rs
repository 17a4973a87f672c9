//! Slow, plain f32 backend: the specification of every operation.
//!
//! Every loop follows the formula; no loop is fused, packed or parallel. Weights are widened to f32
//! exactly. A fast backend is correct when its results equal these within `tolerance.rs`. Uses no
//! threads and no instruction sets.

use std::ops::Range;

use super::{Gelu, HostOps};
use crate::expect;
use crate::{
    AttentionForm, CacheDtype, CacheShape, ExpertMatrices, KvSlot, LatentSpan, MlaShape, ModelShape, OpError,
    Preferences, RouterShape, RowForms, Segment, peak,
};
use perigee_numbers::quant::{ActivationForm, StoredMatrix};
use perigee_numbers::tensor::{ElementType, TensorView};

/// The reference backend. Holds no state besides the trait's buffers.
#[derive(Debug, Default)]
pub struct ReferenceBackend;

/// Dense f32 matrix `[out, in]`.
#[derive(Debug)]
pub struct Matrix {
    out_features: usize,
    in_features: usize,
    /// `[out, in]` row-major.
    values: Vec<f32>,
}

impl Matrix {
    fn row(&self, o: usize) -> &[f32] {
        &self.values[o * self.in_features..(o + 1) * self.in_features]
    }

    fn apply(&self, x: &[f32]) -> Vec<f32> {
        (0..self.out_features).map(|o| dot(self.row(o), x)).collect()
    }
}

/// Activations `[rows, cols]` f32.
#[derive(Debug)]
pub struct Buffer {
    cols: usize,
    capacity: usize,
    values: Vec<f32>,
}

impl Buffer {
    fn rows(&self) -> usize {
        self.values.len() / self.cols
    }

    fn row(&self, t: usize) -> &[f32] {
        &self.values[t * self.cols..(t + 1) * self.cols]
    }

    fn row_mut(&mut self, t: usize) -> &mut [f32] {
        &mut self.values[t * self.cols..(t + 1) * self.cols]
    }

    fn set_rows(&mut self, op: &'static str, rows: usize) -> Result<(), OpError> {
        expect(op, &[self.capacity.max(rows)], &[self.capacity])?;
        self.values.resize(rows * self.cols, 0.0);
        Ok(())
    }
}

/// Router weight and selection bias.
#[derive(Debug)]
pub struct Router {
    weight: Matrix,
    bias: Vec<f32>,
}

/// One SwiGLU FFN.
#[derive(Debug)]
pub struct Expert {
    gate: Matrix,
    up: Matrix,
    down: Matrix,
    input: Option<RowForms>,
    inner: Option<RowForms>,
}

/// Experts of one layer.
#[derive(Debug)]
pub struct Experts {
    /// The router's number of the first expert.
    first: usize,
    list: Vec<Expert>,
}

impl Experts {
    /// The expert with this number, if it is held here.
    fn get(&self, number: usize) -> Option<&Expert> {
        self.list.get(number.checked_sub(self.first)?)
    }
}

/// Experts chosen per token, `[T][K]` of (expert, weight).
#[derive(Debug, Default)]
pub struct Routing {
    chosen: Vec<Vec<(usize, f32)>>,
}

/// `[num_layers][slots][C + R]` f32.
#[derive(Debug)]
pub struct Cache {
    shape: CacheShape,
    values: Vec<f32>,
    /// `[num_layers]`; see [`HostOps::set_cache_scales`].
    exponents: Vec<i32>,
}

impl Cache {
    fn slot(&self, layer: usize, slot: usize) -> &[f32] {
        let d = self.shape.latent_dim;
        let at = (layer * self.shape.num_blocks * self.shape.block_size + slot) * d;
        &self.values[at..at + d]
    }

    fn slot_mut(&mut self, layer: usize, slot: usize) -> &mut [f32] {
        let d = self.shape.latent_dim;
        let at = (layer * self.shape.num_blocks * self.shape.block_size + slot) * d;
        &mut self.values[at..at + d]
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// L2 norm; summed in f64, so that it is the norm of the f32 values to within one rounding.
fn norm(x: &[f32]) -> f32 {
    x.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>().sqrt() as f32
}

fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

fn widen(op: &'static str, view: &TensorView<'_>) -> Result<Vec<f32>, OpError> {
    match view.dtype {
        dtype if dtype.is_float() => Ok(view.to_f32()),
        dtype => Err(OpError::UnsupportedDtype { op, dtype: dtype.to_string(), backend: "reference" }),
    }
}

fn matrix(op: &'static str, stored: &StoredMatrix<'_>) -> Result<Matrix, OpError> {
    expect(op, &[2], &[stored.shape().len()])?;
    let values = match stored {
        StoredMatrix::Plain(view) => widen(op, view)?,
        StoredMatrix::Packed(packed) => packed.to_f32(),
    };
    Ok(Matrix { out_features: stored.shape()[0], in_features: stored.shape()[1], values })
}

/// The row as its form has it.
fn rounded(x: &[f32], form: Option<ActivationForm>) -> Vec<f32> {
    let mut x = x.to_vec();
    if let Some(form) = form {
        form.round(&mut x);
    }
    x
}

fn normalise(x: &[f32], gain: &[f32], eps: f32) -> Vec<f32> {
    let mean_square = x.iter().map(|v| v * v).sum::<f32>() / x.len() as f32;
    let inverse = 1.0 / (mean_square + eps).sqrt();
    x.iter().zip(gain).map(|(v, g)| g * (v * inverse)).collect()
}

/// Rotates the pairs `(2i, 2i + 1)` of `x` `[R]`.
fn rotate(x: &mut [f32], rotation: &[f32]) {
    let half = x.len() / 2;
    for i in 0..half {
        let (cos, sin) = (rotation[i], rotation[half + i]);
        let (a, b) = (x[2 * i], x[2 * i + 1]);
        x[2 * i] = a * cos - b * sin;
        x[2 * i + 1] = b * cos + a * sin;
    }
}

fn softmax(scores: &mut [f32]) {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for s in scores.iter_mut() {
        *s = (*s - max).exp();
        sum += *s;
    }
    for s in scores.iter_mut() {
        *s /= sum;
    }
}

/// The query of head `h` in the latent space, `[C + R]`.
fn absorb(shape: &MlaShape, h: usize, q: &[f32], kv_up: &Matrix) -> Vec<f32> {
    let (n, v) = (shape.qk_nope_head_dim, shape.v_head_dim);
    let w_uk = |i: usize| kv_up.row(h * (n + v) + i);
    let mut absorbed: Vec<f32> =
        (0..shape.kv_lora_rank).map(|j| (0..n).map(|i| q[i] * w_uk(i)[j]).sum()).collect();
    absorbed.extend(&q[n..]);
    absorbed
}

impl ReferenceBackend {
    /// Cached latents of positions `0..len` of a sequence.
    fn context<'c>(&self, cache: &'c Cache, layer: usize, table: &[u32], len: usize) -> Vec<&'c [f32]> {
        let size = cache.shape.block_size;
        (0..len).map(|p| cache.slot(layer, table[p / size] as usize * size + p % size)).collect()
    }

    /// Attention of one head over the rows of one segment, in the form of DeepSeek-V2 equations
    /// 9-19: `queries` `[rows][...]` attend to `keys` and `values` `[L][...]`. Row `i` attends to
    /// the first `first + i + 1` entries.
    fn attend_head(
        &self,
        scale: f32,
        queries: &[Vec<f32>],
        keys: &[Vec<f32>],
        values: &[Vec<f32>],
        first: usize,
    ) -> Vec<Vec<f32>> {
        let attend_row = |(i, q): (usize, &Vec<f32>)| {
            let visible = first + i + 1;
            let mut scores: Vec<f32> = keys[..visible].iter().map(|k| scale * dot(q, k)).collect();
            softmax(&mut scores);
            let mut out = vec![0.0; values[0].len()];
            for (p, v) in scores.iter().zip(values) {
                out.iter_mut().zip(v).for_each(|(o, v)| *o += p * v);
            }
            out
        };
        queries.iter().enumerate().map(attend_row).collect()
    }

    /// One head of one segment: `[rows][V]`.
    fn attend_segment_head(
        &self,
        shape: &MlaShape,
        h: usize,
        queries: &[&[f32]],
        kv_up: &Matrix,
        context: &[&[f32]],
        segment: &Segment,
    ) -> Vec<Vec<f32>> {
        let MlaShape { qk_nope_head_dim: n, v_head_dim: v, kv_lora_rank: c, scale, .. } = *shape;
        let w_uk = |i: usize| kv_up.row(h * (n + v) + i);
        let w_uv = |i: usize| kv_up.row(h * (n + v) + n + i);
        let up_value = |latent: &[f32]| -> Vec<f32> { (0..v).map(|i| dot(w_uv(i), latent)).collect() };
        match segment.form {
            AttentionForm::Expanded => {
                let queries: Vec<_> = queries.iter().map(|q| q.to_vec()).collect();
                let key = |latent: &&[f32]| {
                    let mut key: Vec<f32> = (0..n).map(|i| dot(w_uk(i), &latent[..c])).collect();
                    key.extend(&latent[c..]);
                    key
                };
                let keys: Vec<_> = context.iter().map(key).collect();
                let values: Vec<_> = context.iter().map(|latent| up_value(&latent[..c])).collect();
                self.attend_head(scale, &queries, &keys, &values, segment.first_position)
            }
            AttentionForm::Absorbed => {
                let queries: Vec<_> = queries.iter().map(|q| absorb(shape, h, q, kv_up)).collect();
                let keys: Vec<_> = context.iter().map(|latent| latent.to_vec()).collect();
                let values: Vec<_> = context.iter().map(|latent| latent[..c].to_vec()).collect();
                let latents = self.attend_head(scale, &queries, &keys, &values, segment.first_position);
                latents.iter().map(|latent| up_value(latent)).collect()
            }
        }
    }

    fn attend(
        &self,
        shape: &MlaShape,
        q: &Buffer,
        kv_up: &Matrix,
        layer: usize,
        cache: &Cache,
        segments: &[Segment],
        block_tables: &[u32],
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        expect("attend", &[shape.num_heads * (shape.qk_nope_head_dim + shape.qk_rope_head_dim)], &[q.cols])?;
        expect("attend", &[shape.num_heads * shape.v_head_dim], &[out.cols])?;
        out.set_rows("attend", q.rows())?;
        for segment in segments {
            let table = &block_tables[segment.block_table.clone()];
            let context = self.context(cache, layer, table, segment.context_len());
            let (head, v) = (shape.qk_nope_head_dim + shape.qk_rope_head_dim, shape.v_head_dim);
            for h in 0..shape.num_heads {
                let queries: Vec<&[f32]> =
                    segment.rows.clone().map(|t| &q.row(t)[h * head..(h + 1) * head]).collect();
                let rows = self.attend_segment_head(shape, h, &queries, kv_up, &context, segment);
                for (t, row) in segment.rows.clone().zip(&rows) {
                    out.row_mut(t)[h * v..(h + 1) * v].copy_from_slice(row);
                }
            }
        }
        Ok(())
    }

    fn swiglu(&self, x: &[f32], is_prompt: bool, expert: &Expert) -> Vec<f32> {
        let form = expert.inner.map(|forms| forms.of(is_prompt));
        expert.down.apply(&rounded(&self.inner(x, is_prompt, expert), form))
    }

    fn inner(&self, x: &[f32], is_prompt: bool, expert: &Expert) -> Vec<f32> {
        let x = rounded(x, expert.input.map(|forms| forms.of(is_prompt)));
        let gate = expert.gate.apply(&x);
        let up = expert.up.apply(&x);
        gate.iter().zip(&up).map(|(g, u)| silu(*g) * u).collect()
    }

    fn choose(&self, x: &[f32], router: &Router, shape: &RouterShape) -> Vec<(usize, f32)> {
        let scores: Vec<f32> = router.weight.apply(x).iter().map(|z| 1.0 / (1.0 + (-z).exp())).collect();
        let mut choice: Vec<f32> = scores.iter().zip(&router.bias).map(|(s, b)| s + b).collect();
        let group_size = shape.num_experts / shape.n_group;
        if shape.topk_group < shape.n_group {
            let group_score: Vec<f32> = choice
                .chunks(group_size)
                .map(|group| {
                    let mut sorted = group.to_vec();
                    sorted.sort_by(|a, b| b.total_cmp(a));
                    sorted.iter().take(2).sum()
                })
                .collect();
            let kept = best(&group_score, shape.topk_group);
            for (e, c) in choice.iter_mut().enumerate() {
                if !kept.contains(&(e / group_size)) {
                    *c = f32::NEG_INFINITY;
                }
            }
        }
        let chosen = best(&choice, shape.top_k);
        let sum: f32 = chosen.iter().map(|e| scores[*e]).sum();
        let divisor = if shape.norm_topk_prob { sum + 1e-20 } else { 1.0 };
        chosen.iter().map(|e| (*e, scores[*e] / divisor * shape.routed_scaling_factor)).collect()
    }
}

/// Indices of the `k` largest values, best first, the lower index on ties. NaN counts as the smallest value.
fn best(values: &[f32], k: usize) -> Vec<usize> {
    let key = |i: usize| if values[i].is_nan() { f32::NEG_INFINITY } else { values[i] };
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| key(*b).total_cmp(&key(*a)).then(a.cmp(b)));
    order.truncate(k);
    order
}

impl HostOps for ReferenceBackend {
    type Matrix = Matrix;
    type Vector = Vec<f32>;
    type KvUp = Matrix;
    type Router = Router;
    type Experts = Experts;
    type Buffer = Buffer;
    type Routing = Routing;
    type Cache = Cache;

    fn name(&self) -> &'static str {
        "reference"
    }

    fn scratch_values(&self, _shape: &ModelShape) -> usize {
        0
    }

    fn preferences(&self) -> Preferences {
        Preferences { prefill_tokens: 512, max_logits_rows: 128 }
    }

    fn load_matrix(&mut self, host: &StoredMatrix<'_>) -> Result<Matrix, OpError> {
        matrix("load_matrix", host)
    }

    fn load_vector(&mut self, host: &TensorView<'_>) -> Result<Vec<f32>, OpError> {
        widen("load_vector", host)
    }

    fn load_kv_up(&mut self, host: &StoredMatrix<'_>, shape: &MlaShape) -> Result<Matrix, OpError> {
        let rows = shape.num_heads * (shape.qk_nope_head_dim + shape.v_head_dim);
        expect("load_kv_up", &[rows, shape.kv_lora_rank], host.shape())?;
        matrix("load_kv_up", host)
    }

    fn load_router(
        &mut self,
        weight: &StoredMatrix<'_>,
        bias: &TensorView<'_>,
        shape: &RouterShape,
    ) -> Result<Router, OpError> {
        expect("load_router", &[shape.num_experts], &weight.shape()[..weight.shape().len().min(1)])?;
        expect("load_router", &[shape.num_experts], bias.shape)?;
        Ok(Router { weight: matrix("load_router", weight)?, bias: widen("load_router", bias)? })
    }

    fn load_experts(&mut self, experts: &[ExpertMatrices<'_>], first: usize) -> Result<Experts, OpError> {
        let expert = |e: &ExpertMatrices<'_>| {
            Ok(Expert {
                gate: matrix("load_experts", &e.gate_proj)?,
                up: matrix("load_experts", &e.up_proj)?,
                down: matrix("load_experts", &e.down_proj)?,
                input: e.input,
                inner: e.inner,
            })
        };
        Ok(Experts { first, list: experts.iter().map(expert).collect::<Result<_, OpError>>()? })
    }

    fn allocate(&mut self, capacity: usize, cols: usize) -> Result<Buffer, OpError> {
        Ok(Buffer { cols, capacity, values: Vec::new() })
    }

    fn allocate_routing(&mut self, _capacity: usize, _shape: &RouterShape) -> Result<Routing, OpError> {
        Ok(Routing::default())
    }

    fn allocate_cache(&mut self, shape: &CacheShape) -> Result<Cache, OpError> {
        let values = shape.num_layers * shape.num_blocks * shape.block_size * shape.latent_dim;
        Ok(Cache { shape: *shape, values: vec![0.0; values], exponents: vec![0; shape.num_layers] })
    }

    fn set_cache_scales(&mut self, cache: &mut Cache, exponents: &[i32]) -> Result<(), OpError> {
        expect("set_cache_scales", &[cache.shape.num_layers], &[exponents.len()])?;
        cache.exponents.copy_from_slice(exponents);
        Ok(())
    }

    fn embed(&mut self, table: &Matrix, token_ids: &[u32], out: &mut Buffer) -> Result<(), OpError> {
        expect("embed", &[table.in_features], &[out.cols])?;
        out.set_rows("embed", token_ids.len())?;
        for (t, id) in token_ids.iter().enumerate() {
            out.row_mut(t).copy_from_slice(table.row(*id as usize));
        }
        Ok(())
    }

    fn norm(&mut self, x: &Buffer, gain: &Vec<f32>, eps: f32, out: &mut Buffer) -> Result<(), OpError> {
        expect("norm", &[gain.len(), gain.len()], &[x.cols, out.cols])?;
        out.set_rows("norm", x.rows())?;
        for t in 0..x.rows() {
            out.row_mut(t).copy_from_slice(&normalise(x.row(t), gain, eps));
        }
        Ok(())
    }

    fn project(&mut self, x: &Buffer, weight: &Matrix, out: &mut Buffer) -> Result<(), OpError> {
        expect("project", &[weight.in_features, weight.out_features], &[x.cols, out.cols])?;
        out.set_rows("project", x.rows())?;
        for t in 0..x.rows() {
            out.row_mut(t).copy_from_slice(&weight.apply(x.row(t)));
        }
        Ok(())
    }

    fn project_add(&mut self, x: &Buffer, weight: &Matrix, out: &mut Buffer) -> Result<(), OpError> {
        expect("project_add", &[weight.in_features, weight.out_features], &[x.cols, out.cols])?;
        for t in 0..x.rows() {
            let y = weight.apply(x.row(t));
            out.row_mut(t).iter_mut().zip(&y).for_each(|(o, v)| *o += v);
        }
        Ok(())
    }

    fn rope(&mut self, shape: &MlaShape, rotations: &[f32], q: &mut Buffer) -> Result<(), OpError> {
        let (n, r) = (shape.qk_nope_head_dim, shape.qk_rope_head_dim);
        expect("rope", &[shape.num_heads * (n + r), q.rows() * r], &[q.cols, rotations.len()])?;
        for t in 0..q.rows() {
            let rotation = &rotations[t * r..(t + 1) * r];
            for head in q.row_mut(t).chunks_exact_mut(n + r) {
                rotate(&mut head[n..], rotation);
            }
        }
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
        let (c, r) = (shape.kv_lora_rank, shape.qk_rope_head_dim);
        expect("write_latent", &[c + r, c, kv_a.rows()], &[kv_a.cols, gain.len(), slot_mapping.len()])?;
        let (dtype, exponent) = (cache.shape.dtype, cache.exponents[layer]);
        for (t, slot) in slot_mapping.iter().enumerate().filter(|(_, slot)| **slot != KvSlot::PAD.0) {
            let (latent, rope_key) = kv_a.row(t).split_at(c);
            let mut rope_key = rope_key.to_vec();
            rotate(&mut rope_key, &rotations[t * r..(t + 1) * r]);
            let stored = cache.slot_mut(layer, *slot as usize);
            stored[..c].copy_from_slice(&normalise(latent, gain, eps));
            stored[c..].copy_from_slice(&rope_key);
            // The other dtypes trade memory for precision; FP8 is a format, whose rounding is part
            // of its specification.
            if let CacheDtype::Fp8(format) = dtype {
                format.round(stored, c, exponent);
            }
        }
        Ok(())
    }

    fn attend_expanded(
        &mut self,
        shape: &MlaShape,
        q: &Buffer,
        kv_up: &Matrix,
        layer: usize,
        cache: &Cache,
        segments: &[Segment],
        block_tables: &[u32],
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        self.attend(shape, q, kv_up, layer, cache, segments, block_tables, out)
    }

    fn attend_absorbed(
        &mut self,
        shape: &MlaShape,
        q: &Buffer,
        kv_up: &Matrix,
        layer: usize,
        cache: &Cache,
        segments: &[Segment],
        block_tables: &[u32],
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        self.attend(shape, q, kv_up, layer, cache, segments, block_tables, out)
    }

    fn latent_queries(
        &mut self,
        shape: &MlaShape,
        q: &Buffer,
        kv_up: &Matrix,
        rows: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let head = shape.qk_nope_head_dim + shape.qk_rope_head_dim;
        expect("latent_queries", &[shape.num_heads * head], &[q.cols])?;
        out.clear();
        for t in rows {
            for (h, q) in q.row(*t as usize).chunks_exact(head).enumerate() {
                out.extend(absorb(shape, h, q, kv_up));
            }
        }
        Ok(())
    }

    fn attend_latents(
        &mut self,
        shape: &MlaShape,
        queries: &[f32],
        _kv_up: &Matrix,
        layer: usize,
        cache: &Cache,
        spans: &[LatentSpan],
        block_tables: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let (c, width) = (shape.kv_lora_rank, shape.latent_dim());
        out.clear();
        for span in spans {
            let table = &block_tables[span.block_table.clone()];
            for (i, num_keys) in span.num_keys.iter().enumerate() {
                let keys = self.context(cache, layer, table, *num_keys as usize);
                for h in 0..shape.num_heads {
                    let at = ((span.first + i) * shape.num_heads + h) * width;
                    let scores: Vec<f32> =
                        keys.iter().map(|key| shape.scale * dot(&queries[at..at + width], key)).collect();
                    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let exponentials: Vec<f32> = scores.iter().map(|score| (score - max).exp()).collect();
                    out.extend([max, exponentials.iter().sum()]);
                    out.extend(
                        (0..c)
                            .map(|j| exponentials.iter().zip(&keys).map(|(e, key)| e * key[j]).sum::<f32>()),
                    );
                }
            }
        }
        Ok(())
    }

    fn project_latents(
        &mut self,
        shape: &MlaShape,
        latents: &[f32],
        kv_up: &Matrix,
        rows: &[u32],
        num_rows: usize,
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        let MlaShape { num_heads, qk_nope_head_dim: n, v_head_dim: v, kv_lora_rank: c, .. } = *shape;
        expect("project_latents", &[num_heads * v, rows.len() * num_heads * c], &[out.cols, latents.len()])?;
        out.set_rows("project_latents", num_rows)?;
        for (t, latents) in rows.iter().zip(latents.chunks_exact(num_heads * c)) {
            for (h, latent) in latents.chunks_exact(c).enumerate() {
                for i in 0..v {
                    out.row_mut(*t as usize)[h * v + i] = dot(kv_up.row(h * (n + v) + n + i), latent);
                }
            }
        }
        Ok(())
    }

    fn read_cached(
        &mut self,
        cache: &Cache,
        layer: usize,
        slots: &[u32],
        out: &mut Vec<u8>,
    ) -> Result<(), OpError> {
        slots
            .iter()
            .for_each(|slot| out.extend(bytemuck::cast_slice::<f32, u8>(cache.slot(layer, *slot as usize))));
        Ok(())
    }

    fn write_cached(
        &mut self,
        rows: &[u8],
        layer: usize,
        slots: &[u32],
        cache: &mut Cache,
    ) -> Result<(), OpError> {
        let row_bytes = 4 * cache.shape.latent_dim;
        expect("write_cached", &[slots.len() * row_bytes], &[rows.len()])?;
        for (slot, row) in slots.iter().zip(rows.chunks_exact(row_bytes)) {
            bytemuck::cast_slice_mut::<f32, u8>(cache.slot_mut(layer, *slot as usize)).copy_from_slice(row);
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
        expect("route", &[router.weight.in_features], &[x.cols])?;
        routing.chosen = (0..x.rows()).map(|t| self.choose(x.row(t), router, shape)).collect();
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
        expect("experts", &[x.rows(), x.rows()], &[routing.chosen.len(), out.rows()])?;
        for t in 0..x.rows() {
            let is_prompt = are_prompts.get(t).is_some_and(|is| *is);
            let mut sum = vec![0.0; out.cols];
            for (e, weight) in &routing.chosen[t] {
                let Some(expert) = routed.get(*e) else { continue };
                let y = self.swiglu(x.row(t), is_prompt, expert);
                sum.iter_mut().zip(&y).for_each(|(s, v)| *s += weight * v);
            }
            if let Some(shared) = shared {
                let y = self.swiglu(x.row(t), is_prompt, &shared.list[0]);
                sum.iter_mut().zip(&y).for_each(|(s, v)| *s += v);
            }
            out.row_mut(t).iter_mut().zip(&sum).for_each(|(o, v)| *o += v);
        }
        Ok(())
    }

    fn expert_norms(
        &mut self,
        x: &Buffer,
        routing: &Routing,
        routed: &Experts,
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        let top_k = routing.chosen.first().map_or(out.cols, Vec::len);
        expect("expert_norms", &[x.rows(), top_k], &[routing.chosen.len(), out.cols])?;
        out.set_rows("expert_norms", x.rows())?;
        for t in 0..x.rows() {
            for (k, (e, _)) in routing.chosen[t].iter().enumerate() {
                out.row_mut(t)[k] =
                    routed.get(*e).map_or(0.0, |expert| norm(&self.swiglu(x.row(t), false, expert)));
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
        let inner = rows.iter().flat_map(|t| self.inner(x.row(*t as usize), false, &weights.list[expert]));
        Ok(peak(inner))
    }

    fn cached_peak(&mut self, cache: &Cache, layer: usize, slots: &[u32]) -> Result<f32, OpError> {
        let held = slots.iter().filter(|slot| **slot != KvSlot::PAD.0);
        Ok(peak(held.flat_map(|slot| cache.slot(layer, *slot as usize)).copied()))
    }

    fn swiglu_add(
        &mut self,
        x: &Buffer,
        are_prompts: &[bool],
        weights: &Experts,
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        for t in 0..x.rows() {
            let is_prompt = are_prompts.get(t).is_some_and(|is| *is);
            let y = self.swiglu(x.row(t), is_prompt, &weights.list[0]);
            out.row_mut(t).iter_mut().zip(&y).for_each(|(o, v)| *o += v);
        }
        Ok(())
    }

    fn logits(&mut self, x: &Buffer, rows: &[u32], head: &Matrix, out: &mut Buffer) -> Result<(), OpError> {
        expect("logits", &[head.in_features, head.out_features], &[x.cols, out.cols])?;
        out.set_rows("logits", rows.len())?;
        for (i, t) in rows.iter().enumerate() {
            out.row_mut(i).copy_from_slice(&head.apply(x.row(*t as usize)));
        }
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
        out.set_rows("layer_norm", x.len() / cols)?;
        for (t, x) in x.chunks_exact(cols).enumerate() {
            let mean = x.iter().sum::<f32>() / cols as f32;
            let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / cols as f32;
            let scale = 1.0 / (variance + eps).sqrt();
            for (i, out) in out.row_mut(t).iter_mut().enumerate() {
                *out = gain[i] * ((x[i] - mean) * scale) + bias[i];
            }
        }
        Ok(())
    }

    fn bias_gelu(&mut self, bias: &[f32], form: Gelu, x: &mut Buffer) -> Result<(), OpError> {
        expect("bias_gelu", &[x.cols], &[bias.len()])?;
        for row in x.values.chunks_exact_mut(bias.len()) {
            row.iter_mut().zip(bias).for_each(|(x, bias)| *x = form.of(*x + bias));
        }
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
        let width = num_heads * head_dim;
        expect("attend_patches", &[3 * out.len()], &[qkv.len()])?;
        let part = |patch: usize, part: usize, head: usize| {
            &qkv[patch * 3 * width + part * width + head * head_dim..][..head_dim]
        };
        for picture in pictures {
            expect("attend_patches", &[out.len().max(picture.end * width)], &[out.len()])?;
            for patch in picture.clone() {
                for head in 0..num_heads {
                    let query = part(patch, 0, head);
                    let scale = (head_dim as f32).powf(-0.5);
                    let scores: Vec<f32> =
                        picture.clone().map(|key| dot(query, part(key, 1, head)) * scale).collect();
                    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let weights: Vec<f32> = scores.iter().map(|score| (score - largest).exp()).collect();
                    let sum: f32 = weights.iter().sum();
                    let out = &mut out[patch * width + head * head_dim..][..head_dim];
                    out.fill(0.0);
                    for (key, weight) in picture.clone().zip(&weights) {
                        let value = part(key, 2, head);
                        out.iter_mut().zip(value).for_each(|(out, value)| *out += weight / sum * value);
                    }
                }
            }
        }
        Ok(())
    }

    fn for_each(&mut self, count: usize, work: &(dyn Fn(usize, usize) + Sync)) {
        (0..count).for_each(|index| work(0, index));
    }

    fn num_workers(&self) -> usize {
        1
    }

    fn values(buffer: &Buffer) -> &[f32] {
        &buffer.values
    }

    fn values_mut(buffer: &mut Buffer) -> &mut [f32] {
        &mut buffer.values
    }

    fn read_routing(
        &mut self,
        routing: &Routing,
        experts: &mut Vec<u32>,
        weights: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        experts.clear();
        weights.clear();
        for (e, weight) in routing.chosen.iter().flatten() {
            experts.push(*e as u32);
            weights.push(*weight);
        }
        Ok(())
    }

    fn write(&mut self, rows: &[f32], buffer: &mut Buffer) -> Result<(), OpError> {
        buffer.set_rows("write", rows.len() / buffer.cols)?;
        buffer.values.copy_from_slice(rows);
        Ok(())
    }
}
