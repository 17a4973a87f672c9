//! The backend against the reference, and against itself under every way of cutting the work.

use super::{CpuBackend, CpuOptions, Isa};
use perigee_numbers::quant::{
    ActivationForm, CachedRowFormat, PackedFormat, PackedMatrix, StoredMatrix, TensorScale,
};
use perigee_numbers::tensor::{Dtype, TensorView};
use perigee_ops::host::HostOps;
use perigee_ops::host::reference::ReferenceBackend;
use perigee_ops::tolerance::{self, Tolerance, difference};
use perigee_ops::{
    Activations, AttentionForm, CacheDtype, CacheShape, ExpertMatrices, MlaShape, RouterShape, RowForms,
    Segment,
};

/// Sizes of a one-layer model.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    hidden: usize,
    vocab: usize,
    heads: usize,
    nope: usize,
    rope: usize,
    v: usize,
    latent: usize,
    experts: usize,
    top_k: usize,
    groups: usize,
    inner: usize,
    shared_inner: usize,
    dtype: Dtype,
    /// What the linear weights are packed as.
    packed: Option<PackedFormat>,
}

const TINY: Sizes = Sizes {
    hidden: 160,
    vocab: 96,
    heads: 4,
    nope: 32,
    rope: 16,
    v: 32,
    latent: 64,
    experts: 8,
    top_k: 2,
    groups: 1,
    inner: 48,
    shared_inner: 96,
    dtype: Dtype::BF16,
    packed: None,
};

/// Nothing is a multiple of sixteen, some are odd.
const ODD: Sizes = Sizes {
    hidden: 77,
    vocab: 53,
    heads: 3,
    nope: 21,
    rope: 6,
    v: 19,
    latent: 45,
    experts: 12,
    top_k: 3,
    groups: 4,
    inner: 35,
    shared_inner: 23,
    dtype: Dtype::BF16,
    packed: None,
};

/// The head sizes of the real family.
const WIDE: Sizes = Sizes {
    hidden: 320,
    vocab: 130,
    heads: 2,
    nope: 128,
    rope: 64,
    v: 128,
    latent: 512,
    experts: 4,
    top_k: 2,
    groups: 1,
    inner: 128,
    shared_inner: 64,
    dtype: Dtype::BF16,
    packed: None,
};

/// Widths that packed formats can cut into groups; no multiples of FP8's blocks.
const PACKED: Sizes = Sizes {
    hidden: 160,
    vocab: 70,
    heads: 2,
    nope: 32,
    rope: 16,
    v: 32,
    latent: 64,
    experts: 6,
    top_k: 2,
    groups: 1,
    inner: 96,
    shared_inner: 64,
    dtype: Dtype::BF16,
    packed: None,
};

const PACKED_FORMATS: [PackedFormat; 6] = [
    PackedFormat::Nvfp4,
    PackedFormat::Mxfp4,
    PackedFormat::Int4Group32,
    PackedFormat::Fp8Block,
    PackedFormat::Fp8Row,
    PackedFormat::Fp8Tensor,
];

fn all_sizes() -> Vec<Sizes> {
    let mut sizes =
        vec![TINY, ODD, WIDE, Sizes { dtype: Dtype::F32, ..ODD }, Sizes { dtype: Dtype::F16, ..TINY }];
    sizes.extend(PACKED_FORMATS.map(|format| Sizes { packed: Some(format), ..PACKED }));
    sizes.push(Sizes { packed: Some(PackedFormat::Nvfp4), inner: 48, ..PACKED });
    sizes.push(Sizes { packed: Some(PackedFormat::Fp8Block), ..ODD });
    sizes
}

impl Sizes {
    fn mla(&self) -> MlaShape {
        MlaShape {
            num_heads: self.heads,
            qk_nope_head_dim: self.nope,
            qk_rope_head_dim: self.rope,
            v_head_dim: self.v,
            kv_lora_rank: self.latent,
            scale: 1.0 / ((self.nope + self.rope) as f32).sqrt(),
        }
    }

    fn router(&self) -> RouterShape {
        RouterShape {
            num_experts: self.experts,
            top_k: self.top_k,
            n_group: self.groups,
            topk_group: self.groups.div_ceil(2),
            norm_topk_prob: true,
            routed_scaling_factor: 2.5,
        }
    }
}

/// A stored matrix of codes.
pub(crate) struct Packed {
    format: PackedFormat,
    shape: [usize; 2],
    codes: Vec<u8>,
    scales: Tensor,
    tensor_scale: TensorScale,
}

impl Packed {
    pub(crate) fn view(&self) -> PackedMatrix<'_> {
        PackedMatrix::new(self.format, self.shape, &self.codes, self.scales.view(), self.tensor_scale)
            .expect("made to fit")
    }
}

/// Random codes and scales; every code occurs, scales vary by a factor of ten around `1 / sqrt(in)`.
pub(crate) fn random_packed(
    rng: &mut fastrand::Rng,
    format: PackedFormat,
    dtype: Dtype,
    tensor_scale: TensorScale,
    shape: [usize; 2],
) -> Packed {
    let codes = (0..shape[0] * shape[1] * format.code_bits() / 8).map(|_| match format.code_bits() {
        4 => rng.u8(..),
        // Neither NaN; zeros and subnormals are among them.
        _ => rng.u8(..0x7f) | rng.u8(..2) << 7,
    });
    let codes = codes.collect();
    let scale_shape = format.scale_shape(shape);
    let mut bytes = Vec::new();
    for _ in 0..scale_shape.iter().product::<usize>() {
        // A typical code is 4, or 100.
        let peak = if format.code_bits() == 4 { 4.0 } else { 100.0 };
        let scale = (0.1 + rng.f32()) / (peak * (shape[1] as f32).sqrt());
        match dtype {
            // Zero to 3.5: the tensor scale brings them down.
            Dtype::F8_E4M3 => bytes.push(rng.u8(0..0x47)),
            Dtype::U8 | Dtype::F8_E8M0 => bytes.push((scale.to_bits() >> 23) as u8),
            Dtype::F16 => bytes.extend(half::f16::from_f32(scale).to_le_bytes()),
            Dtype::BF16 => bytes.extend(half::bf16::from_f32(scale).to_le_bytes()),
            _ => bytes.extend(scale.to_le_bytes()),
        }
    }
    let scales = Tensor { dtype, shape: scale_shape, bytes, packed: None };
    Packed { format, shape, codes, scales, tensor_scale }
}

/// Stored bytes of one tensor; of a packed one, `packed` alone counts.
struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
    packed: Option<Box<Packed>>,
}

impl Tensor {
    fn random(rng: &mut fastrand::Rng, dtype: Dtype, shape: &[usize], size: f32) -> Self {
        let count = shape.iter().product();
        let mut bytes = Vec::new();
        for _ in 0..count {
            let x = (rng.f32() * 2.0 - 1.0) * size;
            match dtype {
                Dtype::F32 => bytes.extend(x.to_le_bytes()),
                Dtype::F16 => bytes.extend(half::f16::from_f32(x).to_le_bytes()),
                _ => bytes.extend(half::bf16::from_f32(x).to_le_bytes()),
            }
        }
        Self { dtype, shape: shape.to_vec(), bytes, packed: None }
    }

    fn packed(rng: &mut fastrand::Rng, format: PackedFormat, shape: [usize; 2]) -> Self {
        let (dtype, tensor_scale) = match format {
            PackedFormat::Nvfp4 => {
                (Dtype::F8_E4M3, TensorScale::Multiply((0.2 + rng.f32()) / (4.0 * (shape[1] as f32).sqrt())))
            }
            PackedFormat::Mxfp4 => (Dtype::U8, TensorScale::None),
            PackedFormat::Int4Group32 => (Dtype::BF16, TensorScale::None),
            _ => (Dtype::F32, TensorScale::None),
        };
        let packed = Some(Box::new(random_packed(rng, format, dtype, tensor_scale, shape)));
        Self { dtype, shape: shape.to_vec(), bytes: Vec::new(), packed }
    }

    fn view(&self) -> TensorView<'_> {
        TensorView { dtype: self.dtype, shape: &self.shape, bytes: &self.bytes }
    }

    fn stored(&self) -> StoredMatrix<'_> {
        match &self.packed {
            Some(packed) => packed.view().into(),
            None => self.view().into(),
        }
    }
}

/// The stored weights of one layer, embedding and head.
struct Stored {
    sizes: Sizes,
    embed: Tensor,
    gain: Tensor,
    q: Tensor,
    kv_a: Tensor,
    latent_gain: Tensor,
    kv_b: Tensor,
    o: Tensor,
    router: Tensor,
    bias: Tensor,
    experts: Vec<[Tensor; 3]>,
    shared: [Tensor; 3],
    head: Tensor,
    /// Forms of the rows in front of gate and up and in front of down: of the routed experts, of the shared one.
    forms: [[Option<RowForms>; 2]; 2],
}

impl Stored {
    fn random(sizes: Sizes, seed: u64) -> Self {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let s = sizes;
        let mut matrix = |rows: usize, cols: usize| match s.packed {
            Some(format) => Tensor::packed(rng, format, [rows, cols]),
            None => Tensor::random(rng, s.dtype, &[rows, cols], 1.7 / (cols as f32).sqrt()),
        };
        let q_rows = s.heads * (s.nope + s.rope);
        let swiglu = |matrix: &mut dyn FnMut(usize, usize) -> Tensor, inner| {
            [matrix(inner, s.hidden), matrix(inner, s.hidden), matrix(s.hidden, inner)]
        };
        Self {
            sizes,
            embed: matrix(s.vocab, s.hidden),
            q: matrix(q_rows, s.hidden),
            kv_a: matrix(s.latent + s.rope, s.hidden),
            kv_b: matrix(s.heads * (s.nope + s.v), s.latent),
            o: matrix(s.hidden, s.heads * s.v),
            router: matrix(s.experts, s.hidden),
            experts: (0..s.experts).map(|_| swiglu(&mut matrix, s.inner)).collect(),
            shared: swiglu(&mut matrix, s.shared_inner),
            head: matrix(s.vocab, s.hidden),
            gain: Tensor::random(rng, Dtype::BF16, &[s.hidden], 1.5),
            latent_gain: Tensor::random(rng, Dtype::F32, &[s.latent], 1.5),
            bias: Tensor::random(rng, Dtype::F32, &[s.experts], 0.1),
            forms: [[None; 2]; 2],
        }
    }
}

fn expert(e: &[Tensor; 3], [input, inner]: [Option<RowForms>; 2]) -> ExpertMatrices<'_> {
    ExpertMatrices {
        gate_proj: e[0].stored(),
        up_proj: e[1].stored(),
        down_proj: e[2].stored(),
        input,
        inner,
    }
}

/// The same weights in a backend.
struct Model<B: HostOps> {
    backend: B,
    sizes: Sizes,
    embed: B::Matrix,
    gain: B::Vector,
    q: B::Matrix,
    kv_a: B::Matrix,
    latent_gain: B::Vector,
    kv_b: B::KvUp,
    o: B::Matrix,
    router: B::Router,
    experts: B::Experts,
    shared: B::Experts,
    head: B::Matrix,
}

const CAPACITY: usize = 400;
const BLOCK: usize = 16;
const EPS: f32 = 1e-5;

impl<B: HostOps> Model<B> {
    fn load(mut b: B, stored: &Stored) -> Self {
        let experts: Vec<_> = stored.experts.iter().map(|e| expert(e, stored.forms[0])).collect();
        let s = stored.sizes;
        Self {
            sizes: s,
            embed: b.load_matrix(&stored.embed.stored()).expect("embed"),
            gain: b.load_vector(&stored.gain.view()).expect("gain"),
            q: b.load_matrix(&stored.q.stored()).expect("q"),
            kv_a: b.load_matrix(&stored.kv_a.stored()).expect("kv_a"),
            latent_gain: b.load_vector(&stored.latent_gain.view()).expect("latent gain"),
            kv_b: b.load_kv_up(&stored.kv_b.stored(), &s.mla()).expect("kv_b"),
            o: b.load_matrix(&stored.o.stored()).expect("o"),
            router: b.load_router(&stored.router.stored(), &stored.bias.view(), &s.router()).expect("router"),
            experts: b.load_experts(&experts, 0).expect("experts"),
            shared: b.load_experts(&[expert(&stored.shared, stored.forms[1])], 0).expect("shared"),
            head: b.load_matrix(&stored.head.stored()).expect("head"),
            backend: b,
        }
    }

    fn buffer(&mut self, cols: usize) -> B::Buffer {
        self.backend.allocate(CAPACITY, cols).expect("memory")
    }

    fn filled(&mut self, values: &[f32], cols: usize) -> B::Buffer {
        let mut buffer = self.buffer(cols);
        self.backend.write(values, &mut buffer).expect("write");
        buffer
    }

    fn values(&mut self, buffer: &B::Buffer) -> Vec<f32> {
        B::values(buffer).to_vec()
    }

    fn cache(&mut self, dtype: CacheDtype) -> B::Cache {
        let shape = CacheShape {
            num_layers: 2,
            num_blocks: 100,
            block_size: BLOCK,
            latent_dim: self.sizes.latent + self.sizes.rope,
            rope_dim: self.sizes.rope,
            dtype,
        };
        self.backend.allocate_cache(&shape).expect("memory")
    }
}

/// Block ids of sequence `seq`: scattered over the cache, none shared.
fn block_table(seq: usize, tokens: usize) -> Vec<u32> {
    (0..tokens.div_ceil(BLOCK)).map(|b| ((seq * 20 + b) * 37 % 100) as u32).collect()
}

fn slots(table: &[u32], positions: std::ops::Range<usize>) -> Vec<u32> {
    positions.map(|p| table[p / BLOCK] * BLOCK as u32 + (p % BLOCK) as u32).collect()
}

fn rotations(rope: usize, positions: impl Iterator<Item = usize>) -> Vec<f32> {
    let half = rope / 2;
    let angle = |p: usize, i: usize| p as f32 * 0.7f32.powi(i as i32);
    positions
        .flat_map(|p| {
            (0..half).map(move |i| angle(p, i).cos()).chain((0..half).map(move |i| angle(p, i).sin()))
        })
        .collect()
}

fn random(seed: u64, count: usize) -> Vec<f32> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| (rng.f32() + rng.f32() + rng.f32() - 1.5) * 1.5).collect()
}

/// What every operation gives on the same inputs, by name.
fn every_operation<B: HostOps>(
    m: &mut Model<B>,
    rows: usize,
    dtype: CacheDtype,
) -> Vec<(&'static str, Tolerance, Vec<f32>)> {
    let s = m.sizes;
    let (mla, router) = (s.mla(), s.router());
    let x_values = random(rows as u64, rows * s.hidden);
    let mut results = Vec::new();
    let x = m.filled(&x_values, s.hidden);

    let mut out = m.buffer(s.hidden);
    let ids: Vec<u32> = (0..rows).map(|t| (t * 37 % s.vocab) as u32).collect();
    m.backend.embed(&m.embed, &ids, &mut out).expect("embed");
    results.push(("embed", tolerance::EXACT, m.values(&out)));

    m.backend.norm(&x, &m.gain, EPS, &mut out).expect("norm");
    results.push(("norm", tolerance::ELEMENTWISE, m.values(&out)));

    let q_cols = s.heads * (s.nope + s.rope);
    let mut q = m.buffer(q_cols);
    m.backend.project(&x, &m.q, &mut q).expect("project");
    results.push(("project", tolerance::PROJECT, m.values(&q)));

    let attended = m.filled(&random(2, rows * s.heads * s.v), s.heads * s.v);
    let mut added = m.filled(&x_values, s.hidden);
    m.backend.project_add(&attended, &m.o, &mut added).expect("project_add");
    results.push(("project_add", tolerance::PROJECT, m.values(&added)));

    let mut q = m.filled(&random(3, rows * q_cols), q_cols);
    let turns = rotations(s.rope, 100..100 + rows);
    m.backend.rope(&mla, &turns, &mut q).expect("rope");
    results.push(("rope", tolerance::ELEMENTWISE, m.values(&q)));

    // A context of 150 earlier tokens, then the rows themselves; written in two steps.
    let before = 150;
    let table = block_table(3, before + rows);
    let mut cache = m.cache(dtype);
    for (seed, positions) in [(4, 0..before), (5, before..before + rows)] {
        let count = positions.len();
        let kv_a = m.filled(&random(seed, count * (s.latent + s.rope)), s.latent + s.rope);
        let turns = rotations(s.rope, positions.clone());
        let slots = slots(&table, positions);
        m.backend
            .write_latent(&mla, &kv_a, &m.latent_gain, EPS, &turns, &slots, 1, &mut cache)
            .expect("write_latent");
    }
    let tables: Vec<u32> = [99, 98].into_iter().chain(table).collect();
    for (name, form) in [("expanded", AttentionForm::Expanded), ("absorbed", AttentionForm::Absorbed)] {
        // The first row has a short context of its own in the same blocks; the rest go on after the long one.
        let mut segments =
            vec![Segment { rows: 0..1, first_position: 20, form, block_table: 2..tables.len() }];
        if rows > 1 {
            segments.push(Segment {
                rows: 1..rows,
                first_position: before,
                form,
                block_table: 2..tables.len(),
            });
        }
        let mut out = m.buffer(s.heads * s.v);
        let (b, args) = (&mut m.backend, (&q, &m.kv_b));
        match form {
            AttentionForm::Expanded => {
                b.attend_expanded(&mla, args.0, args.1, 1, &cache, &segments, &tables, &mut out)
            }
            AttentionForm::Absorbed => {
                b.attend_absorbed(&mla, args.0, args.1, 1, &cache, &segments, &tables, &mut out)
            }
        }
        .expect("attend");
        results.push((name, tolerance::ATTEND, m.values(&out)));
    }

    let mut routing = m.backend.allocate_routing(CAPACITY, &router).expect("memory");
    m.backend.route(&x, &m.router, &router, &mut routing).expect("route");
    let (mut chosen, mut weights) = (Vec::new(), Vec::new());
    m.backend.read_routing(&routing, &mut chosen, &mut weights).expect("read_routing");
    let exact = tolerance::EXACT;
    results.push(("chosen experts", exact, chosen.iter().map(|e| *e as f32).collect()));
    results.push(("routing weights", tolerance::ROUTE, weights));
    let mut norms = m.buffer(router.top_k);
    m.backend.expert_norms(&x, &routing, &m.experts, &mut norms).expect("expert_norms");
    results.push(("expert norms", tolerance::SWIGLU, m.values(&norms)));
    let all: Vec<u32> = (0..rows as u32).collect();
    let peaks = [(&m.experts, 1, &all[..]), (&m.shared, 0, &all[rows / 2..]), (&m.shared, 0, &[])]
        .map(|(experts, e, rows)| m.backend.inner_peak(&x, rows, experts, e).expect("inner_peak"));
    results.push(("inner peaks", tolerance::SWIGLU, peaks.to_vec()));
    for (name, shared) in [("experts", false), ("experts and shared", true)] {
        let mut out = m.filled(&x_values, s.hidden);
        let shared = shared.then_some(&m.shared);
        m.backend.experts(&x, &[], &routing, &m.experts, shared, &mut out).expect("experts");
        results.push((name, tolerance::SWIGLU, m.values(&out)));
    }
    let mut out = m.filled(&x_values, s.hidden);
    m.backend.swiglu_add(&x, &[], &m.shared, &mut out).expect("swiglu_add");
    results.push(("swiglu_add", tolerance::SWIGLU, m.values(&out)));

    let wanted: Vec<u32> = (0..rows as u32).rev().step_by(2).collect();
    let mut logits = m.buffer(s.vocab);
    m.backend.logits(&x, &wanted, &m.head, &mut logits).expect("logits");
    results.push(("logits", tolerance::PROJECT, m.values(&logits)));
    results
}

fn cpu(threads: usize, activations: Activations, isa: Isa) -> CpuBackend {
    CpuBackend::new(CpuOptions { threads, activations, isa })
}

#[test]
fn agrees_with_the_reference() {
    for (seed, sizes) in all_sizes().into_iter().enumerate() {
        let stored = Stored::random(sizes, seed as u64);
        let mut reference = Model::load(ReferenceBackend, &stored);
        for rows in [1, 2, 7, 40] {
            let want = every_operation(&mut reference, rows, CacheDtype::F32);
            for isa in Isa::supported() {
                for (activations, dtype) in [
                    (Activations::F32, CacheDtype::F32),
                    (Activations::Bf16, CacheDtype::Bf16),
                    (Activations::Int8, CacheDtype::Bf16),
                ] {
                    let mut fast = Model::load(cpu(2, activations, isa), &stored);
                    let got = every_operation(&mut fast, rows, dtype);
                    for ((name, tolerance, got), (_, _, want)) in got.iter().zip(&want) {
                        let allowed = match activations {
                            Activations::F32 => tolerance.f32_activations,
                            Activations::Bf16 => tolerance.bf16_activations,
                            Activations::Int8 => tolerance.int8_activations,
                        };
                        let difference = difference(got, want);
                        assert!(
                            difference <= allowed,
                            "{name}, {rows} rows, {isa}, {activations:?}, {sizes:?}: {difference} > {allowed}"
                        );
                    }
                }
            }
        }
    }
}

/// What a row of integers holds, value by value: `x` to the nearest multiple of the `largest`th part of the largest of its 32.
fn rounded_to_integers(x: &[f32], largest: f32) -> Vec<f64> {
    let mut rounded = Vec::new();
    for step in x.chunks(32) {
        let peak = step.iter().fold(0.0f32, |peak, x| peak.max(x.abs()));
        let inverse = if peak > 0.0 { largest / peak } else { 0.0 };
        rounded.extend(
            step.iter().map(|x| f64::from((x * inverse).round_ties_even()) * f64::from(peak / largest)),
        );
    }
    rounded
}

/// The product of int8 rows, and of the 15-bit rows of machines without bf16 products, is the exact product of the rounded row with the
/// codes' values, but for the order of f32 sums.
#[test]
fn integer_products_are_exact_after_the_rounding() {
    for isa in Isa::supported() {
        integer_products_are_exact(Activations::Int8, isa, 127.0);
        if isa.prefers_byte_products() {
            integer_products_are_exact(Activations::Bf16, isa, 127.0 * 128.0);
        }
    }
}

fn integer_products_are_exact(activations: Activations, isa: Isa, largest: f32) {
    let mut rng = fastrand::Rng::with_seed(5);
    let formats = [
        (PackedFormat::Nvfp4, Dtype::F8_E4M3, TensorScale::Multiply(0.013)),
        (PackedFormat::Mxfp4, Dtype::U8, TensorScale::None),
        (PackedFormat::Int4Group32, Dtype::BF16, TensorScale::None),
    ];
    for (format, dtype, tensor_scale) in formats {
        for shape in [[1, 32], [40, 96], [130, 160], [16, 2080]] {
            let owned = random_packed(&mut rng, format, dtype, tensor_scale, shape);
            let weights = owned.view().to_f32();
            for rows in [1, 2, 3, 4, 5, 8, 9, 16, 17, 41] {
                let mut x = random(rows as u64, rows * shape[1]);
                // A row of zeros, and one whose values vary by orders of magnitude.
                x[..shape[1]].fill(if rows > 1 { 0.0 } else { 1.5 });
                x.iter_mut().skip((rows - 1) * shape[1]).step_by(31).for_each(|x| *x *= 1e4);
                // The products' sum, and the sum of their magnitudes, which rounding errors are relative to.
                let mut want: Vec<(f64, f64)> = Vec::new();
                for row in x.chunks(shape[1]).map(|row| rounded_to_integers(row, largest)) {
                    want.extend(weights.chunks(shape[1]).map(|w| {
                        let products = row.iter().zip(w).map(|(x, w)| x * f64::from(*w));
                        products.fold((0.0, 1e-30), |sums, p| (sums.0 + p, sums.1 + p.abs()))
                    }));
                }
                let mut b = cpu(2, activations, isa);
                let matrix = b.load_matrix(&StoredMatrix::from(owned.view())).expect("matrix");
                let (mut input, mut out) = (
                    b.allocate(rows, shape[1]).expect("memory"),
                    b.allocate(rows, shape[0]).expect("memory"),
                );
                b.write(&x, &mut input).expect("write");
                b.project(&input, &matrix, &mut out).expect("project");
                let got = CpuBackend::values(&out);
                for (row, (got, want)) in got.chunks(shape[0]).zip(want.chunks(shape[0])).enumerate() {
                    for (o, (got, (want, magnitude))) in got.iter().zip(want).enumerate() {
                        assert!(
                            (f64::from(*got) - want).abs() <= 1e-6 * magnitude,
                            "{format:?} {shape:?}, {isa}, {activations:?}, row {row} of {rows}, output {o}: {got}, not {want}"
                        );
                    }
                }
            }
        }
    }
}

/// A numeric fault is not rounded away: every output of its row is NaN, and of no other row.
#[test]
fn int8_rows_keep_what_is_not_finite() {
    let mut rng = fastrand::Rng::with_seed(6);
    let owned = random_packed(&mut rng, PackedFormat::Int4Group32, Dtype::BF16, TensorScale::None, [20, 64]);
    for isa in Isa::supported() {
        let faults = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        for (fault, activations) in
            faults.into_iter().flat_map(|fault| [(fault, Activations::Int8), (fault, Activations::Bf16)])
        {
            let mut b = cpu(1, activations, isa);
            let matrix = b.load_matrix(&StoredMatrix::from(owned.view())).expect("matrix");
            let (mut input, mut out) =
                (b.allocate(3, 64).expect("memory"), b.allocate(3, 20).expect("memory"));
            let mut x = random(1, 3 * 64);
            x[64 + 37] = fault;
            b.write(&x, &mut input).expect("write");
            b.project(&input, &matrix, &mut out).expect("project");
            let rows: Vec<bool> =
                CpuBackend::values(&out).chunks(20).map(|row| row.iter().all(|x| x.is_finite())).collect();
            assert_eq!(rows, [true, false, true], "{isa}, {fault}");
            if activations == Activations::Int8 {
                assert!(CpuBackend::values(&out)[20..40].iter().all(|x| x.is_nan()), "{isa}, {fault}");
            }
        }
    }
}

/// Outputs of the routed experts with the shared one, and of the shared one alone; every third row is one of a prompt.
fn ffns<B: HostOps>(backend: B, stored: &Stored, rows: usize) -> [Vec<f32>; 2] {
    let (m, s) = (&mut Model::load(backend, stored), stored.sizes);
    let x = m.filled(&random(rows as u64, rows * s.hidden), s.hidden);
    let are_prompts: Vec<bool> = (0..rows).map(|row| row % 3 == 0).collect();
    let mut routing = m.backend.allocate_routing(CAPACITY, &s.router()).expect("memory");
    m.backend.route(&x, &m.router, &s.router(), &mut routing).expect("route");
    let zeros = vec![0.0; rows * s.hidden];
    let [mut all, mut shared] = [m.filled(&zeros, s.hidden), m.filled(&zeros, s.hidden)];
    m.backend.experts(&x, &are_prompts, &routing, &m.experts, Some(&m.shared), &mut all).expect("experts");
    m.backend.swiglu_add(&x, &are_prompts, &m.shared, &mut shared).expect("swiglu_add");
    [m.values(&all), m.values(&shared)]
}

/// Rows that differ from the reference's by more than `allowed`, of 50 in both operations.
fn differing_rows(stored: &Stored, activations: Activations, isa: Isa, allowed: f32) -> usize {
    let mut differing = 0;
    for rows in [1, 2, 7, 40] {
        let want = ffns(ReferenceBackend, stored, rows);
        let got = ffns(cpu(2, activations, isa), stored, rows);
        for (got, want) in got.iter().zip(&want) {
            let pairs = got.chunks(stored.sizes.hidden).zip(want.chunks(stored.sizes.hidden));
            differing += pairs.filter(|(got, want)| difference(got, want) > allowed).count();
        }
    }
    differing
}

/// Rows of 4-bit floats beside plain weights too: matrices of one expert in several formats, panels that hold codes as f32.
fn in_mixed_formats(mut stored: Stored, plain: &[usize]) -> Stored {
    let mut rng = fastrand::Rng::with_seed(8);
    for expert in stored.experts.iter_mut().chain([&mut stored.shared]) {
        for at in plain {
            let shape = expert[*at].shape.clone();
            let shape = expert[*at].packed.as_ref().map_or(shape, |packed| packed.shape.to_vec());
            expert[*at] = Tensor::random(&mut rng, Dtype::BF16, &shape, 1.7 / (shape[1] as f32).sqrt());
        }
    }
    stored
}

#[test]
fn rows_in_4_bit_floats_are_those_of_the_reference() {
    let form = |scale, terms| ActivationForm::Nvfp4 { scale, terms };
    let mixed = |prompt, reply| RowForms { prompt: form(4e-4, prompt), reply: form(4e-4, reply) };
    for (packed, form, other) in [
        // Scales of the shared expert are others.
        (PackedFormat::Nvfp4, form(4e-4, 1).into(), form(3e-3, 1).into()),
        (PackedFormat::Nvfp4, mixed(1, 3), form(3e-3, 2).into()),
        (PackedFormat::Nvfp4, mixed(2, 1), mixed(3, 1)),
        (PackedFormat::Mxfp4, ActivationForm::Mxfp4.into(), ActivationForm::Mxfp4.into()),
    ] {
        let sizes = Sizes { packed: Some(packed), ..PACKED };
        let sizes = if packed == PackedFormat::Nvfp4 { Sizes { inner: 48, ..sizes } } else { sizes };
        let allowed = tolerance::SWIGLU.f32_activations;
        for isa in Isa::supported() {
            for plain in [&[][..], &[1], &[0, 1], &[2]] {
                // Rows of the input are the same bits on both sides, and so are their codes.
                let stored = in_mixed_formats(Stored::random(sizes, 12), plain);
                let input = Stored { forms: [[Some(form), None], [Some(other), None]], ..stored };
                let differing = differing_rows(&input, Activations::F32, isa, allowed);
                assert_eq!(differing, 0, "input {form:?}, {isa}, plain {plain:?}");
                // A hidden value next to a tie may be rounded to the other side.
                let inner = Stored { forms: [[None, Some(form)], [None, Some(other)]], ..input };
                let differing = differing_rows(&inner, Activations::F32, isa, allowed);
                assert!(differing <= 4, "inner {form:?}, {isa}, plain {plain:?}: {differing} rows");
            }
        }
    }
}

#[test]
fn hidden_rows_of_integers_follow_gate_and_up_in_other_formats() {
    let stored = Stored::random(Sizes { packed: Some(PackedFormat::Nvfp4), ..PACKED }, 13);
    let stored = in_mixed_formats(stored, &[0, 1]);
    for isa in Isa::supported() {
        let allowed = tolerance::SWIGLU.int8_activations;
        assert_eq!(differing_rows(&stored, Activations::Int8, isa, allowed), 0, "{isa}");
    }
}

/// A run of tokens of one sequence inside a step.
type Run = (usize, std::ops::Range<usize>);

/// Position from which tokens use the absorbed form; by position alone, as the contract asks.
const ABSORBED_FROM: usize = 70;

/// Runs steps of tokens through the whole layer and returns the bits of hidden row and logits of every token,
/// by sequence and position.
fn run_steps(m: &mut Model<CpuBackend>, lengths: &[usize], steps: &[Vec<Run>]) -> Vec<Vec<Vec<u32>>> {
    let s = m.sizes;
    let (mla, router) = (s.mla(), s.router());
    let mut cache = m.cache(if m.backend.numerics_are_f32() { CacheDtype::F32 } else { CacheDtype::Bf16 });
    let mut results: Vec<Vec<Vec<u32>>> = lengths.iter().map(|n| vec![Vec::new(); *n]).collect();
    let [mut x, mut normed] = [m.buffer(s.hidden), m.buffer(s.hidden)];
    let mut q = m.buffer(s.heads * (s.nope + s.rope));
    let mut kv_a = m.buffer(s.latent + s.rope);
    let mut attended = m.buffer(s.heads * s.v);
    let mut logits = m.buffer(s.vocab);
    let mut routing = m.backend.allocate_routing(CAPACITY, &router).expect("memory");
    for step in steps {
        let tokens: Vec<(usize, usize)> =
            step.iter().flat_map(|(seq, r)| r.clone().map(|p| (*seq, p))).collect();
        let ids: Vec<u32> = tokens.iter().map(|(seq, p)| ((seq * 41 + p * 13) % s.vocab) as u32).collect();
        let are_prompts: Vec<bool> = tokens.iter().map(|(_, p)| *p < ABSORBED_FROM).collect();
        let turns = rotations(s.rope, tokens.iter().map(|t| t.1));
        let (mut tables, mut slot_mapping, mut segments, mut row) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for (seq, positions) in step {
            let table = block_table(*seq, lengths[*seq]);
            slot_mapping.extend(slots(&table, positions.clone()));
            let block_table = tables.len()..tables.len() + table.len();
            tables.extend(table);
            let switch = ABSORBED_FROM.clamp(positions.start, positions.end);
            for (part, form) in [
                (positions.start..switch, AttentionForm::Expanded),
                (switch..positions.end, AttentionForm::Absorbed),
            ] {
                if !part.is_empty() {
                    let rows = row..row + part.len();
                    row = rows.end;
                    segments.push(Segment {
                        rows,
                        first_position: part.start,
                        form,
                        block_table: block_table.clone(),
                    });
                }
            }
        }
        let (expanded, absorbed): (Vec<_>, Vec<_>) =
            segments.into_iter().partition(|s| s.form == AttentionForm::Expanded);
        let b = &mut m.backend;
        let all: Vec<u32> = (0..tokens.len() as u32).collect();
        (|| {
            b.embed(&m.embed, &ids, &mut x)?;
            b.norm(&x, &m.gain, EPS, &mut normed)?;
            b.project(&normed, &m.q, &mut q)?;
            b.rope(&mla, &turns, &mut q)?;
            b.project(&normed, &m.kv_a, &mut kv_a)?;
            b.write_latent(&mla, &kv_a, &m.latent_gain, EPS, &turns, &slot_mapping, 0, &mut cache)?;
            b.attend_expanded(&mla, &q, &m.kv_b, 0, &cache, &expanded, &tables, &mut attended)?;
            b.attend_absorbed(&mla, &q, &m.kv_b, 0, &cache, &absorbed, &tables, &mut attended)?;
            b.project_add(&attended, &m.o, &mut x)?;
            b.norm(&x, &m.gain, EPS, &mut normed)?;
            b.route(&normed, &m.router, &router, &mut routing)?;
            b.experts(&normed, &are_prompts, &routing, &m.experts, Some(&m.shared), &mut x)?;
            b.swiglu_add(&normed, &are_prompts, &m.shared, &mut x)?;
            b.norm(&x, &m.gain, EPS, &mut normed)?;
            b.logits(&normed, &all, &m.head, &mut logits)
        })()
        .expect("step");
        let (x, logits) = (m.values(&x), m.values(&logits));
        for (t, (seq, p)) in tokens.into_iter().enumerate() {
            let row = x[t * s.hidden..][..s.hidden].iter().chain(&logits[t * s.vocab..][..s.vocab]);
            results[seq][p] = row.map(|v| v.to_bits()).collect();
        }
    }
    results
}

#[test]
fn bits_depend_on_nothing_but_the_sequence() {
    // One sequence long enough for both forms, several splits and many tiles; others of all kinds beside it.
    let lengths = [300, 33, 1, 75, 100];
    let alone: Vec<Vec<Run>> = (0..lengths.len()).map(|seq| vec![(seq, 0..lengths[seq])]).collect();
    let mut plans: Vec<Vec<Vec<Run>>> = Vec::new();
    // Everything in two steps, the long sequence first, then last.
    plans.push(vec![vec![(0, 0..299)], vec![(1, 0..33), (2, 0..1), (3, 0..75), (4, 0..100), (0, 299..300)]]);
    plans.push(vec![
        vec![(3, 0..74), (4, 0..100), (0, 0..61)],
        vec![(0, 61..300), (2, 0..1), (3, 74..75), (1, 0..33)],
    ]);
    // Token by token, all side by side.
    plans.push(
        (0..300)
            .map(|p| (0..lengths.len()).filter(|seq| p < lengths[*seq]).map(|seq| (seq, p..p + 1)).collect())
            .collect(),
    );
    // Chunks of 13 and 29, sequences taking turns.
    for chunk in [13, 29] {
        plans.push(
            (0..300usize.div_ceil(chunk))
                .map(|c| {
                    let part = |seq: &usize| c * chunk..((c + 1) * chunk).min(lengths[*seq]);
                    (0..lengths.len())
                        .rev()
                        .filter(|seq| !part(seq).is_empty())
                        .map(|seq| (seq, part(&seq)))
                        .collect()
                })
                .collect(),
        );
    }
    let best = Isa::best();
    let mut cases = vec![(ODD, Activations::F32, best), (WIDE, Activations::Bf16, best)];
    cases.extend(Isa::supported().into_iter().map(|isa| (TINY, Activations::Bf16, isa)));
    cases.extend(Isa::supported().into_iter().map(|isa| (ODD, Activations::Bf16, isa)));
    let nvfp4 = Sizes { packed: Some(PackedFormat::Nvfp4), inner: 48, ..PACKED };
    cases.extend(Isa::supported().into_iter().map(|isa| (nvfp4, Activations::Bf16, isa)));
    cases.extend(Isa::supported().into_iter().map(|isa| (nvfp4, Activations::Int8, isa)));
    let mut cases: Vec<_> = cases.into_iter().map(|case| (case, [[None; 2]; 2])).collect();
    let form = |scale, terms| ActivationForm::Nvfp4 { scale, terms };
    let forms = [RowForms { prompt: form(0.001, 1), reply: form(0.001, 3) }, form(0.01, 1).into()].map(Some);
    cases
        .extend(Isa::supported().into_iter().map(|isa| ((nvfp4, Activations::F32, isa), [forms, [None; 2]])));
    for ((sizes, activations, isa), forms) in cases {
        let stored = Stored { forms, ..Stored::random(sizes, 11) };
        let want = run_steps(&mut Model::load(cpu(1, activations, isa), &stored), &lengths, &alone);
        assert!(want.iter().flatten().all(|row| row.iter().all(|bits| f32::from_bits(*bits).is_finite())));
        for threads in 1..=3 {
            let mut model = Model::load(cpu(threads, activations, isa), &stored);
            for (i, plan) in plans.iter().enumerate() {
                let got = run_steps(&mut model, &lengths, plan);
                for (seq, (got, want)) in got.iter().zip(&want).enumerate() {
                    for (p, (got, want)) in got.iter().zip(want).enumerate() {
                        assert!(
                            got == want,
                            "plan {i}, {threads} threads, {isa}, {activations:?}: sequence {seq} position {p}, {sizes:?}, {forms:?}"
                        );
                    }
                }
            }
        }
    }
}

/// Codes are exact in bf16 once scaled, so attention over them is attention over a bf16 cache of what they stand for, bit for bit.
#[test]
fn an_fp8_cache_reads_as_what_it_stores() {
    for sizes in [TINY, ODD, WIDE] {
        let stored = Stored::random(sizes, 31);
        let (mla, rows, before) = (sizes.mla(), 5, 150);
        let table = block_table(3, before + rows);
        let q_values = random(7, rows * sizes.heads * (sizes.nope + sizes.rope));
        for isa in Isa::supported() {
            for activations in [Activations::Bf16, Activations::F32] {
                let mut m = Model::load(cpu(2, activations, isa), &stored);
                let q = m.filled(&q_values, sizes.heads * (sizes.nope + sizes.rope));
                for (row_scales, rope_codes) in [(true, false), (true, true), (false, false), (false, true)] {
                    let format = CachedRowFormat { row_scales, rope_codes };
                    let mut caches = [m.cache(CacheDtype::Fp8(format)), m.cache(CacheDtype::Bf16)];
                    m.backend.set_cache_scales(&mut caches[0], &[3, -6]).expect("two layers");
                    for (i, slot) in slots(&table, 0..before + rows).into_iter().enumerate() {
                        let mut row = random(100 + i as u64, sizes.latent + sizes.rope);
                        caches[0].store(1, slot as usize, &row);
                        format.round(&mut row, sizes.latent, -6);
                        caches[1].store(1, slot as usize, &row);
                    }
                    let of_both = [&caches[0], &caches[1]].map(|cache| {
                        m.backend.cached_peak(cache, 1, &slots(&table, 3..40)).expect("slots of the cache")
                    });
                    assert!(of_both[0] == of_both[1] && of_both[0] > 0.0, "{format:?}: {of_both:?}");
                    let mut attend = |cache: &super::Cache, form| {
                        let segments = [Segment {
                            rows: 0..rows,
                            first_position: before,
                            form,
                            block_table: 0..table.len(),
                        }];
                        let mut out = m.buffer(sizes.heads * sizes.v);
                        let b = &mut m.backend;
                        let done = match form {
                            AttentionForm::Expanded => {
                                b.attend_expanded(&mla, &q, &m.kv_b, 1, cache, &segments, &table, &mut out)
                            }
                            AttentionForm::Absorbed => {
                                b.attend_absorbed(&mla, &q, &m.kv_b, 1, cache, &segments, &table, &mut out)
                            }
                        };
                        done.expect("attend");
                        m.values(&out)
                    };
                    for form in [AttentionForm::Expanded, AttentionForm::Absorbed] {
                        let [got, want] = [&caches[0], &caches[1]].map(|cache| attend(cache, form));
                        assert!(got == want, "{form:?}, {format:?}, {isa}, {activations:?}, {sizes:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_errors() {
    let stored = Stored::random(TINY, 1);
    let mut m = Model::load(cpu(1, Activations::Bf16, Isa::best()), &stored);
    let s = m.sizes;
    let x = m.filled(&[0.5; 2 * TINY.hidden], s.hidden);
    let mut out = m.buffer(s.hidden);
    let mut q = m.buffer(s.heads * (s.nope + s.rope));
    let cache = m.cache(CacheDtype::Bf16);
    let b = &mut m.backend;
    assert!(b.embed(&m.embed, &[s.vocab as u32], &mut out).is_err());
    assert!(b.embed(&m.embed, &vec![0; CAPACITY + 1], &mut out).is_err());
    assert!(b.project(&x, &m.o, &mut out).is_err());
    assert!(b.logits(&x, &[2], &m.head, &mut out).is_err());
    b.project(&x, &m.q, &mut q).expect("fits");
    let mut attended = b.allocate(CAPACITY, s.heads * s.v).expect("memory");
    for (rows, first_position, table) in [(0..3, 0, 0..1), (0..2, 15, 0..1), (0..2, 0, 0..3), (0..2, 0, 1..2)]
    {
        let segments = [Segment { rows, first_position, form: AttentionForm::Absorbed, block_table: table }];
        let tables = [5, 100];
        let got = b.attend_absorbed(&s.mla(), &q, &m.kv_b, 0, &cache, &segments, &tables, &mut attended);
        assert!(got.is_err(), "{segments:?}");
        let got = b.attend_expanded(&s.mla(), &q, &m.kv_b, 0, &cache, &segments, &tables, &mut attended);
        assert!(got.is_err(), "{segments:?}");
    }
}
