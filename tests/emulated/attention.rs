//! Latent attention on the device against the reference, and the bits of a row in different company.

use std::ops::Range;

use bytemuck::Zeroable;
use perigee_cuda::kernels::ahead::Ahead;
use perigee_cuda::kernels::mla_decode::{self, CombineTypes, SPLIT};
use perigee_cuda::kernels::{
    fp8_mla_decode, mla_prefill, tcgen05_mla_decode, tiled_mla_absorb, tiled_mla_combine, tiled_mla_decode,
    tiled_mla_prefill, wgmma_mla_absorb, wgmma_mla_decode, wgmma_mla_expand,
};
use perigee_cuda::{Addresses, Arch, Attention, AttentionCapacity, Driver, KvUp, KvUpType, Program, Stream};
use perigee_numbers::quant::{CachedRowFormat, StoredMatrix};
use perigee_numbers::tensor::{Dtype, TensorView};
use perigee_ops::host::HostOps;
use perigee_ops::host::reference::ReferenceBackend;
use perigee_ops::tolerance::{ATTEND, difference};
use perigee_ops::{Activations, BlockId, CacheDtype, CacheShape, MlaShape, StepPlan, TokenSource};

use super::TestDriver;

const fn fp8(row_scales: bool, rope_codes: bool) -> CacheDtype {
    CacheDtype::Fp8(CachedRowFormat { row_scales, rope_codes })
}

const CACHES: [CacheDtype; 6] = [
    CacheDtype::F32,
    CacheDtype::Bf16,
    fp8(true, false),
    fp8(true, true),
    fp8(false, false),
    fp8(false, true),
];

const SMALL: MlaShape = MlaShape {
    num_heads: 3,
    qk_nope_head_dim: 12,
    qk_rope_head_dim: 8,
    v_head_dim: 20,
    kv_lora_rank: 36,
    scale: 0.21,
};

/// As in the golden models.
const GOLDEN: MlaShape = MlaShape {
    num_heads: 4,
    qk_nope_head_dim: 64,
    qk_rope_head_dim: 32,
    v_head_dim: 64,
    kv_lora_rank: 128,
    scale: 0.1,
};

/// Every size at its bound, and one head more than a block of decode has.
const LARGEST: MlaShape = MlaShape {
    num_heads: 17,
    qk_nope_head_dim: 128,
    qk_rope_head_dim: 128,
    v_head_dim: 256,
    kv_lora_rank: 512,
    scale: 0.05,
};

/// As of Kimi K2, and one head more than a block on tensor cores has.
pub(crate) const KIMI: MlaShape = MlaShape {
    num_heads: 33,
    qk_nope_head_dim: 128,
    qk_rope_head_dim: 64,
    v_head_dim: 128,
    kv_lora_rank: 512,
    scale: 0.04,
};

/// Sizes that fill no unit of the tensor cores' kernels.
const ODD: MlaShape = MlaShape {
    num_heads: 5,
    qk_nope_head_dim: 48,
    qk_rope_head_dim: 16,
    v_head_dim: 80,
    kv_lora_rank: 176,
    scale: 0.1,
};

const ROOMY: AttentionCapacity =
    AttentionCapacity { rows: 256, absorbed_rows: 64, items: 64, slab_keys: 64, block_size: 16 };

/// A model's layer, and sequences whose queries and keys depend on sequence and position alone.
#[derive(Clone)]
struct World {
    shape: MlaShape,
    dtype: CacheDtype,
    kv_up_type: KvUpType,
    block_size: usize,
    arithmetic: Activations,
    /// Position of a key of sequence 0 that is NaN.
    fault: Option<usize>,
    /// Largest value of queries.
    query_size: f32,
    /// Whether latents differ in size from key to key, and some are 0.
    uneven: bool,
}

/// Rows of one sequence in a step, in expanded form below `expanded_until`.
#[derive(Debug, Clone)]
struct Chunk {
    sequence: usize,
    positions: Range<usize>,
    expanded_until: usize,
}

/// Sequence and position of a row, and the bits of its values.
type NamedRow = ((usize, usize), Vec<u32>);

/// How a step is computed.
#[derive(Clone, Copy)]
struct Way {
    arch: Arch,
    seed: Option<u64>,
    races: bool,
    capacity: AttentionCapacity,
}

const PLAIN: Way = Way { arch: Arch::Sm80, seed: None, races: false, capacity: ROOMY };

fn absorbed(sequence: usize, positions: Range<usize>) -> Chunk {
    Chunk { sequence, positions, expanded_until: 0 }
}

fn expanded(sequence: usize, positions: Range<usize>) -> Chunk {
    Chunk { sequence, expanded_until: positions.end, positions }
}

fn random(seed: usize, count: usize, size: f32) -> Vec<f32> {
    let mut rng = fastrand::Rng::with_seed(seed as u64);
    (0..count).map(|_| (rng.f32() * 2.0 - 1.0) * size).collect()
}

fn bf16(x: f32) -> f32 {
    half::bf16::from_f32(x).to_f32()
}

/// A step's plan, the inputs of its rows, and the sequences' blocks in a shuffled order.
struct Step {
    plan: StepPlan,
    query: Vec<f32>,
    rotations: Vec<f32>,
    /// (slot, sequence, position) of every cached key.
    keys: Vec<(usize, usize, usize)>,
    num_blocks: usize,
}

impl World {
    fn new(shape: MlaShape, dtype: CacheDtype, kv_up_type: KvUpType, block_size: usize) -> Self {
        Self {
            shape,
            dtype,
            kv_up_type,
            block_size,
            arithmetic: Activations::F32,
            fault: None,
            query_size: 1.5,
            uneven: false,
        }
    }

    fn rounded(self) -> Self {
        Self { arithmetic: Activations::Bf16, ..self }
    }

    fn cache_shape(&self, num_blocks: usize, dtype: CacheDtype) -> CacheShape {
        CacheShape {
            num_layers: 2,
            num_blocks,
            block_size: self.block_size,
            latent_dim: self.shape.latent_dim(),
            rope_dim: self.shape.qk_rope_head_dim,
            dtype,
        }
    }

    fn kv_up(&self) -> Vec<f32> {
        let head = self.shape.qk_nope_head_dim + self.shape.v_head_dim;
        let values = random(7, self.shape.num_heads * head * self.shape.kv_lora_rank, 0.3);
        match self.kv_up_type {
            KvUpType::F32 => values,
            KvUpType::Bf16 => values.into_iter().map(bf16).collect(),
        }
    }

    fn query(&self, sequence: usize, position: usize) -> Vec<f32> {
        let head = self.shape.qk_nope_head_dim + self.shape.qk_rope_head_dim;
        random(1_000_000 * (sequence + 1) + 2 * position, self.shape.num_heads * head, self.query_size)
    }

    fn rotation(&self, position: usize) -> Vec<f32> {
        let half = self.shape.qk_rope_head_dim / 2;
        let angle = |i: usize| position as f32 * 0.3f32.powi(i as i32);
        (0..half).map(|i| angle(i).cos()).chain((0..half).map(|i| angle(i).sin())).collect()
    }

    /// A cached key as stored, and its values in f32.
    fn key(&self, sequence: usize, position: usize) -> (Vec<u8>, Vec<f32>) {
        let c = self.shape.kv_lora_rank;
        let mut values = random(1_000_000 * (sequence + 1) + 2 * position + 1, self.shape.latent_dim(), 1.5);
        if self.uneven {
            let size = [1.0, 0.0, 2f32.powi(-12), 4.0, 2f32.powi(-30)][position % 5];
            values[..c].iter_mut().for_each(|x| *x *= size);
        }
        if sequence == 0 && self.fault == Some(position) {
            values[c - 1] = f32::NAN;
        }
        match self.dtype {
            CacheDtype::F32 => (bytemuck::cast_slice(&values).to_vec(), values),
            CacheDtype::Bf16 => {
                let halves: Vec<half::bf16> = values.iter().map(|x| half::bf16::from_f32(*x)).collect();
                (bytemuck::cast_slice(&halves).to_vec(), values.into_iter().map(bf16).collect())
            }
            CacheDtype::Fp8(format) => {
                // Bytes of padding are not written by the format, and not read.
                let mut row = vec![0xa5; format.bytes(c, values.len() - c)];
                format.encode(&values, c, -6, &mut row);
                let mut bits = vec![0; values.len()];
                format.decode(&row, c, &mut bits);
                (row, bits.into_iter().map(|bits| half::bf16::from_bits(bits).to_f32()).collect())
            }
        }
    }

    /// Several chunks of one sequence share its blocks.
    fn step(&self, chunks: &[Chunk]) -> Step {
        let size = self.block_size;
        let length = |s: usize| chunks.iter().filter(|c| c.sequence == s).map(|c| c.positions.end).max();
        let num_sequences = chunks.iter().map(|chunk| chunk.sequence + 1).max().unwrap_or(0);
        let lengths: Vec<usize> = (0..num_sequences).map(|s| length(s).unwrap_or(0)).collect();
        let num_blocks = lengths.iter().map(|length| length.div_ceil(size)).sum::<usize>() + 2;
        let mut free: Vec<BlockId> = (0..num_blocks as u32).map(BlockId).collect();
        fastrand::Rng::with_seed(3).shuffle(&mut free);
        let tables: Vec<Vec<BlockId>> =
            lengths.iter().map(|length| free.drain(..length.div_ceil(size)).collect()).collect();
        let mut step = Step {
            plan: StepPlan::default(),
            query: Vec::new(),
            rotations: Vec::new(),
            keys: Vec::new(),
            num_blocks,
        };
        for Chunk { sequence, positions, expanded_until } in chunks {
            let tokens = positions.clone().map(|_| TokenSource::from(0));
            step.plan.add(tokens, positions.start, *expanded_until, &tables[*sequence], size);
            for position in positions.clone() {
                step.query.extend(self.query(*sequence, position));
                step.rotations.extend(self.rotation(position));
            }
        }
        for (sequence, table) in tables.iter().enumerate() {
            let slot = |position: usize| table[position / size].at() * size + position % size;
            step.keys.extend((0..lengths[sequence]).map(|position| (slot(position), sequence, position)));
        }
        step
    }

    fn reference(&self, chunks: &[Chunk]) -> Vec<f32> {
        let (step, shape, mut ops) = (self.step(chunks), &self.shape, ReferenceBackend);
        let rows = step.plan.num_rows();
        let kv_up = self.kv_up();
        let kv_up_shape = [kv_up.len() / shape.kv_lora_rank, shape.kv_lora_rank];
        let view = TensorView { dtype: Dtype::F32, shape: &kv_up_shape, bytes: bytemuck::cast_slice(&kv_up) };
        let kv_up = ops.load_kv_up(&StoredMatrix::Plain(view), shape).unwrap();
        let mut cache = ops.allocate_cache(&self.cache_shape(step.num_blocks, CacheDtype::F32)).unwrap();
        for (slot, sequence, position) in &step.keys {
            let (_, values) = self.key(*sequence, *position);
            ops.write_cached(bytemuck::cast_slice(&values), 1, &[*slot as u32], &mut cache).unwrap();
        }
        let mut query = ops.allocate(rows, step.query.len() / rows).unwrap();
        ops.write(&step.query, &mut query).unwrap();
        ops.rope(shape, &step.rotations, &mut query).unwrap();
        let mut out = ops.allocate(rows, shape.num_heads * shape.v_head_dim).unwrap();
        let tables: &[u32] = bytemuck::cast_slice(&step.plan.block_tables);
        let StepPlan { expanded, absorbed, .. } = &step.plan;
        ops.attend_expanded(shape, &query, &kv_up, 1, &cache, expanded, tables, &mut out).unwrap();
        ops.attend_absorbed(shape, &query, &kv_up, 1, &cache, absorbed, tables, &mut out).unwrap();
        ReferenceBackend::values(&out).to_vec()
    }

    /// `None`: no NVRTC.
    fn device(&self, chunks: &[Chunk], way: &Way) -> Option<Vec<f32>> {
        Some(self.device_on(stream(way)?, chunks, way))
    }

    /// The row behind the step's rows must stay as it is.
    fn device_on(&self, mut stream: Stream<TestDriver>, chunks: &[Chunk], way: &Way) -> Vec<f32> {
        let step = self.step(chunks);
        let mut attention = self.attention(&mut stream, way);
        let words = attention.lists(&step.plan, 0).unwrap().to_vec();
        assert!(words.len() <= Attention::list_words(step.plan.num_rows()));
        let (at, kv_up) = self.upload(&mut stream, &step, &words);
        attention.attend_absorbed(&mut stream, &at, &kv_up).unwrap();
        attention.attend_expanded(&mut stream, &at, &kv_up, &step.plan.expanded).unwrap();
        let values = step.plan.num_rows() * self.row_values();
        let mut attended: Vec<f32> = stream.read(at.attended, values + self.row_values()).unwrap();
        let rounded: Vec<u16> = stream.read(at.rounded, attended.len()).unwrap();
        for (x, rounded) in attended.iter().zip(rounded.into_iter().map(half::bf16::from_bits)) {
            assert!(half::bf16::from_f32(*x) == rounded || x.is_nan() && rounded.is_nan(), "{x} {rounded}");
        }
        assert_eq!(attended.split_off(values), vec![UNTOUCHED; self.row_values()]);
        attended
    }

    fn row_values(&self) -> usize {
        self.shape.num_heads * self.shape.v_head_dim
    }

    fn attention(&self, stream: &mut Stream<TestDriver>, way: &Way) -> Attention {
        let capacity = AttentionCapacity { block_size: self.block_size, ..way.capacity };
        Attention::new(stream, &self.shape, self.dtype, &capacity, self.arithmetic, None).unwrap()
    }

    fn upload(&self, stream: &mut Stream<TestDriver>, step: &Step, words: &[u32]) -> (Addresses, KvUp) {
        let cache_shape = self.cache_shape(step.num_blocks, self.dtype);
        let row_bytes = cache_shape.row_bytes();
        let cache = stream.allocate("cache", cache_shape.bytes()).unwrap();
        let layer = cache.address + (cache_shape.bytes() / 2) as u64;
        for (slot, sequence, position) in &step.keys {
            let (bytes, _) = self.key(*sequence, *position);
            assert_eq!(bytes.len(), row_bytes);
            stream.driver().upload(layer + (slot * row_bytes) as u64, &bytes).unwrap();
        }
        let kv_up = self.kv_up();
        let kv_up = match self.kv_up_type {
            KvUpType::F32 => stream.store("kv_up", &kv_up),
            KvUpType::Bf16 => {
                let halves: Vec<half::bf16> = kv_up.iter().map(|x| half::bf16::from_f32(*x)).collect();
                stream.store("kv_up", &halves)
            }
        };
        let rows = step.plan.num_rows() + 1;
        let mut store = |values: &[f32]| stream.store("input", values).unwrap().address;
        let (query, rotations) = (store(&step.query), store(&step.rotations));
        let attended = store(&vec![UNTOUCHED; rows * self.row_values()]);
        let at = Addresses {
            query,
            rotations,
            attended,
            rounded: stream
                .store("input", &vec![half::bf16::from_f32(UNTOUCHED); rows * self.row_values()])
                .unwrap()
                .address,
            cache: layer,
            caches: None,
            cache_shape,
            block_tables: stream.store("tables", &step.plan.block_tables).unwrap().address,
            lists: stream.store("lists", words).unwrap().address,
            ahead: Ahead::NONE,
        };
        let address = kv_up.unwrap().address;
        (at, KvUp { address, all: address, dtype: self.kv_up_type })
    }

    /// The difference; `None`: no NVRTC.
    fn check(&self, chunks: &[Chunk], way: &Way) -> Option<f32> {
        Some(self.check_on(stream(way)?, chunks, way))
    }

    fn check_on(&self, stream: Stream<TestDriver>, chunks: &[Chunk], way: &Way) -> f32 {
        let got = self.device_on(stream, chunks, way);
        let off = difference(&got, &self.reference(chunks));
        let Self { shape, dtype, kv_up_type, block_size, .. } = self;
        let allowed = match self.arithmetic {
            Activations::F32 => ATTEND.f32_activations,
            // 3.3e-3 at most where these values are measured.
            Activations::Bf16 | Activations::Int8 => ATTEND.bf16_activations / 4.0,
        };
        assert!(off <= allowed, "{shape:?} {dtype:?} {kv_up_type:?} blocks of {block_size}: off by {off}");
        println!("{dtype:?} {kv_up_type:?} blocks of {block_size}: off by {off}");
        off
    }

    /// The bits of each row, by sequence and position.
    fn bits(&self, chunks: &[Chunk], way: &Way) -> Option<Vec<NamedRow>> {
        let values = self.device(chunks, way)?;
        let names = chunks.iter().flat_map(|chunk| chunk.positions.clone().map(|p| (chunk.sequence, p)));
        let rows =
            values.chunks_exact(self.row_values()).map(|row| row.iter().map(|x| x.to_bits()).collect());
        let mut named: Vec<_> = names.zip(rows).collect();
        named.sort();
        Some(named)
    }
}

/// Content of a result before attention.
const UNTOUCHED: f32 = -7.25;

fn stream(way: &Way) -> Option<Stream<TestDriver>> {
    let mut driver = TestDriver::new(way.arch, way.seed)?;
    driver.set_options(|options| options.races = way.races);
    Some(Stream::new(driver).unwrap())
}

/// Contexts around the boundaries of tiles, blocks and splits, and short prompts.
fn decode_steps() -> Vec<Chunk> {
    vec![
        absorbed(0, 0..1),
        absorbed(1, SPLIT..SPLIT + 2),
        absorbed(2, 15..18),
        absorbed(3, 2 * SPLIT + 5..2 * SPLIT + 6),
        absorbed(4, 63..65),
        absorbed(5, 0..19),
    ]
}

/// Contexts around the boundaries of tiles, blocks and slabs of 128 keys: whole prompts and continuations.
fn prefill_steps() -> Vec<Chunk> {
    vec![
        expanded(0, 0..1),
        expanded(1, 0..33),
        expanded(2, 31..64),
        expanded(3, 60..70),
        expanded(4, 127..131),
        expanded(5, 0..65),
    ]
}

#[test]
fn absorbed_attention_is_that_of_the_reference() {
    for (i, dtype) in CACHES.into_iter().enumerate() {
        let kv_up_type = [KvUpType::F32, KvUpType::Bf16][i % 2];
        World::new(SMALL, dtype, kv_up_type, [16, 64][i / 2 % 2]).check(&decode_steps(), &PLAIN);
    }
    let way = Way { arch: Arch::Sm90a, seed: Some(1), ..PLAIN };
    World::new(GOLDEN, CacheDtype::Bf16, KvUpType::Bf16, 64).check(&decode_steps(), &way);
    World::new(GOLDEN, fp8(true, false), KvUpType::F32, 16).check(&decode_steps(), &way);
}

#[test]
fn expanded_attention_is_that_of_the_reference() {
    for (i, dtype) in CACHES.into_iter().enumerate() {
        let kv_up_type = [KvUpType::F32, KvUpType::Bf16][i % 2];
        World::new(SMALL, dtype, kv_up_type, [16, 64][i / 2 % 2]).check(&prefill_steps(), &PLAIN);
    }
    let way = Way { arch: Arch::Sm90a, seed: Some(1), ..PLAIN };
    World::new(GOLDEN, CacheDtype::Bf16, KvUpType::Bf16, 64).check(&prefill_steps(), &way);
    World::new(GOLDEN, fp8(true, false), KvUpType::F32, 16).check(&prefill_steps(), &way);
}

#[test]
fn tensor_cores_attend_as_the_reference_does() {
    for (i, dtype) in CACHES.into_iter().enumerate() {
        let kv_up_type = [KvUpType::Bf16, KvUpType::F32][i / 3];
        let block_size = [16, 64][i % 2];
        let world = World::new(ODD, dtype, kv_up_type, block_size).rounded();
        let way = Way { seed: Some(i as u64), ..PLAIN };
        world.check(&decode_steps(), &way);
        world.check(&prefill_steps(), &way);
    }
    let short = [absorbed(0, 65..66), expanded(1, 0..2), expanded(2, 62..67)];
    for (arch, dtype) in [
        (Arch::Sm80, CacheDtype::Bf16),
        (Arch::Sm90a, fp8(true, false)),
        (Arch::Sm100a, fp8(false, true)),
        (Arch::Sm120a, fp8(true, true)),
    ] {
        World::new(KIMI, dtype, KvUpType::Bf16, 64).rounded().check(&short, &Way { arch, ..PLAIN });
    }
    // On Hopper by its own kernels: boundaries of tiles and splits, in any order of warps. A block computes 64 heads however few
    // there are, so the steps are short.
    let decode =
        [absorbed(0, 0..1), absorbed(1, SPLIT..SPLIT + 1), absorbed(2, 63..65), absorbed(3, 127..128)];
    for (i, dtype) in
        [CacheDtype::Bf16, fp8(true, false), fp8(true, true), fp8(false, false)].into_iter().enumerate()
    {
        let way = Way { arch: Arch::Sm90a, seed: Some(i as u64), ..PLAIN };
        let few = MlaShape { num_heads: 2, ..KIMI };
        let world = World::new(few, dtype, KvUpType::Bf16, [16, 64][i % 2]).rounded();
        world.check(&decode, &way);
        world.check(&prefill_steps(), &way);
    }
    for (i, dtype) in [fp8(true, false), fp8(true, true), fp8(false, false)].into_iter().enumerate() {
        let way = Way { arch: Arch::Sm120a, seed: Some(i as u64), ..PLAIN };
        let few = MlaShape { num_heads: 2, ..KIMI };
        World::new(few, dtype, KvUpType::Bf16, [16, 64][i % 2]).rounded().check(&decode, &way);
    }
    // On B200 codes by a kernel of its own too.
    for (i, dtype) in [fp8(true, false), fp8(true, true), fp8(false, true)].into_iter().enumerate() {
        let way = Way { arch: Arch::Sm100a, seed: Some(i as u64), ..PLAIN };
        let shape = MlaShape { num_heads: [2, 33, 16][i], ..KIMI };
        let world = World::new(shape, dtype, KvUpType::Bf16, [64, 16][i % 2]).rounded();
        let worst = world.check(&decode, &way);
        assert!(worst.is_none_or(|off| off < 7e-4), "{dtype:?}: {worst:?}");
    }
    let shape = MlaShape { num_heads: 70, ..KIMI };
    for arch in [Arch::Sm90a, Arch::Sm103a, Arch::Sm120a] {
        let way = Way { arch, ..PLAIN };
        World::new(shape, fp8(true, false), KvUpType::Bf16, 64).rounded().check(&decode[..2], &way);
    }
    // Shapes and caches that they do not take are computed without them.
    let way = Way { capacity: AttentionCapacity { slab_keys: 4096, ..ROOMY }, ..PLAIN };
    World::new(SMALL, CacheDtype::Bf16, KvUpType::Bf16, 16).rounded().check(&prefill_steps(), &way);
    World::new(ODD, CacheDtype::F32, KvUpType::Bf16, 16).rounded().check(&short, &way);
}

/// The last launch of a prompt's attention multiplies as its chip does best.
#[test]
fn prompts_are_attended_on_the_tensor_cores_of_the_chip() {
    let world = World::new(MlaShape { num_heads: 1, ..KIMI }, CacheDtype::Bf16, KvUpType::Bf16, 64).rounded();
    for (arch, product) in [
        (Arch::Sm80, "mma.sync"),
        (Arch::Sm90a, "wgmma.mma_async"),
        (Arch::Sm100a, "tcgen05.mma"),
        (Arch::Sm103a, "tcgen05.mma"),
        (Arch::Sm120a, "mma.sync"),
    ] {
        let way = Way { arch, ..PLAIN };
        let Some(mut stream) = stream(&way) else { return };
        let step = world.step(&[expanded(0, 0..3)]);
        let mut attention = world.attention(&mut stream, &way);
        let words = attention.lists(&step.plan, 0).unwrap().to_vec();
        let (at, kv_up) = world.upload(&mut stream, &step, &words);
        attention.attend_expanded(&mut stream, &at, &kv_up, &step.plan.expanded).unwrap();
        let Some(report) = stream.driver().report() else { return };
        let products = report.instructions().filter(|count| count.opcode.contains("mma"));
        let others: Vec<String> =
            products.map(|count| count.opcode).filter(|opcode| !opcode.starts_with(product)).collect();
        let has_product = report.instructions().any(|count| count.opcode.starts_with(product));
        assert!(has_product && others.iter().all(|name| name.starts_with("wgmma")), "{arch}: {others:?}");
    }
}

/// Random latents and weights of a slab, and room for its keys and values.
pub(crate) fn slab(
    stream: &mut Stream<TestDriver>,
    shape: &MlaShape,
    num_keys: usize,
) -> mla_prefill::Params {
    let (latent, columns) = (shape.kv_lora_rank, shape.num_heads * 256);
    let mut rng = fastrand::Rng::with_seed(52);
    let mut random = |count: usize| -> Vec<half::bf16> {
        (0..count).map(|_| half::bf16::from_f32(rng.f32() - 0.5)).collect()
    };
    let (latents, kv_up) = (random(num_keys * latent), random(columns * latent));
    let mut store =
        |values: &[half::bf16]| stream.store("slab", bytemuck::cast_slice::<_, u16>(values)).unwrap().address;
    let (latents, kv_up) = (store(&latents), store(&kv_up));
    mla_prefill::Params {
        latents,
        kv_up,
        keys_values: stream.zeros("slab", 2 * num_keys * columns).unwrap().address,
        num_heads: shape.num_heads as i32,
        nope: 128,
        value: 128,
        latent: latent as i32,
        num_keys: num_keys as i32,
        ..mla_prefill::Params::zeroed()
    }
}

/// Keys and values by `wgmma` have the bits of `mma.sync`, in blocks of one head and of several, and nothing is written behind the slab.
#[test]
fn keys_and_values_have_the_same_bits_by_wgmma() {
    for (seed, num_heads, num_keys) in [(None, 3, 130), (Some(1), 1, 64), (Some(2), 5, 257)] {
        let way = Way { arch: Arch::Sm90a, seed, races: seed.is_some(), ..PLAIN };
        let Some(mut stream) = stream(&way) else { return };
        let shape = MlaShape { num_heads, ..KIMI };
        let params = slab(&mut stream, &shape, num_keys);
        let values = num_keys * num_heads * 256 / 2;
        let read = |stream: &mut Stream<TestDriver>| {
            let words = stream.read::<u32>(params.keys_values, values).unwrap();
            stream.driver().upload(params.keys_values, bytemuck::cast_slice(&vec![0u32; values])).unwrap();
            words
        };
        let launch = tiled_mla_prefill::expand_launch(&shape, num_keys);
        stream.launch("tiled_mla_expand", launch, &params).unwrap();
        let expected = read(&mut stream);
        wgmma_mla_expand::launch(&mut stream, &params).unwrap();
        assert!(expected == read(&mut stream), "{num_heads} heads, {num_keys} keys");
    }
}

/// Queries in the latent space by tensor cores are those of f32 products, in passes of any number of rows, and a row alone has the same bits.
#[test]
fn latent_queries_of_tensor_cores_are_those_of_f32() {
    for (arch, shape) in [(Arch::Sm80, ODD), (Arch::Sm90a, MlaShape { num_heads: 2, ..KIMI })] {
        let Some(mut stream) = stream(&Way { arch, seed: Some(3), races: true, ..PLAIN }) else { return };
        let MlaShape { num_heads, qk_nope_head_dim: nope, qk_rope_head_dim: rope, .. } = shape;
        let (width, latent, total) = (nope + rope, shape.kv_lora_rank, 20);
        let mut rng = fastrand::Rng::with_seed(53);
        // Of magnitudes that one bf16 would round.
        let query: Vec<f32> = (0..total * num_heads * width).map(|_| rng.f32() - 0.5).collect();
        let rotations: Vec<f32> = (0..total * rope).map(|_| rng.f32()).collect();
        let columns = num_heads * (nope + shape.v_head_dim);
        let up: Vec<u16> =
            (0..columns * latent).map(|_| half::bf16::from_f32(rng.f32() - 0.5).to_bits()).collect();
        let [query, rotations] =
            [&query, &rotations].map(|values| stream.store("absorb", values).unwrap().address);
        let kv_up = stream.store("absorb", &up).unwrap().address;
        let row_values = num_heads * (latent + rope);
        // `pairs`: every two rows are a group.
        let params_of = |stream: &mut Stream<TestDriver>, rows: &[u32], pairs: bool| {
            let group = |at: usize| if pairs { 2 | (at as u32 % 2) << 16 } else { 1 };
            let entries = rows.iter().enumerate();
            let entries = entries.flat_map(|(at, row)| [*row, 0, u32::from(row % 5 != 4), 0, group(at)]);
            let words: Vec<u32> = [rows.len() as u32, 0].into_iter().chain(entries).collect();
            let out = stream.zeros("absorb", 4 * rows.len() * row_values).unwrap().address;
            mla_decode::Params {
                query,
                rotations,
                kv_up,
                pass: stream.store("absorb", &words).unwrap().address,
                latent_queries: out,
                num_heads: num_heads as i32,
                nope: nope as i32,
                rope: rope as i32,
                value: shape.v_head_dim as i32,
                latent: latent as i32,
                ..mla_decode::Params::zeroed()
            }
        };
        let mut absorb = |tensor_cores: bool, rows: &[u32]| {
            let params = params_of(&mut stream, rows, false);
            let (function, launch) = match tensor_cores {
                true => (tiled_mla_absorb::FUNCTION, tiled_mla_absorb::launch(&shape, rows.len())),
                false => ("mla_absorb_bf16", mla_decode::absorb_launch(&shape, rows.len())),
            };
            stream.launch(function, launch, &params).unwrap();
            stream.read::<f32>(params.latent_queries, rows.len() * row_values).unwrap()
        };
        let all: Vec<u32> = (0..total as u32).rev().collect();
        let (got, exact) = (absorb(true, &all), absorb(false, &all));
        let off = difference(&got, &exact);
        assert!(off < 2e-6, "{arch}: {off}");
        for place in [0, 7, 8, 19] {
            let alone = absorb(true, &all[place..place + 1]);
            assert!(alone == got[place * row_values..(place + 1) * row_values], "{arch}: row {place} alone");
        }
        for (cache, pairs) in [(fp8(true, false), true), (CacheDtype::Bf16, false)] {
            if arch == Arch::Sm90a {
                let params = params_of(&mut stream, &all, pairs);
                let function = wgmma_mla_absorb::function(&shape, cache).unwrap();
                stream.launch(function, wgmma_mla_absorb::launch(&shape, total), &params).unwrap();
                let words = stream.read::<u16>(params.latent_queries, 2 * total * row_values).unwrap();
                check_operands(&words, &got, num_heads, if pairs { 2 } else { 1 }, cache != CacheDtype::Bf16);
            }
        }
    }
}

/// What `mla_queries.cuh` says of rows in groups of so many: `queries` [A, H, 576], in 16 bits at the places of the swizzle, and with
/// `scaled` latents in f16 and powers of two behind them.
fn check_operands(words: &[u16], queries: &[f32], num_heads: usize, group: usize, scaled: bool) {
    const WIDTH: usize = 576;
    for (at, head) in queries.chunks(WIDTH).enumerate() {
        let (row, first) = (at % (group * num_heads), at / (group * num_heads) * group * num_heads * WIDTH);
        let largest = head.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let exponent = (largest.to_bits() >> 23).max(15);
        let factor = if scaled { f32::from_bits((127 + 14 + 127 - exponent) << 23) } else { 1.0 };
        for (column, value) in head.iter().enumerate() {
            let (panel, chunk) = (column / 64, column % 64 / 8);
            let place = first + (panel * group * num_heads + row) * 64 + (chunk ^ (row % 8)) * 8 + column % 8;
            let expected = match scaled && panel < 8 {
                true => half::f16::from_f32(value * factor).to_bits(),
                false => half::bf16::from_f32(value * factor).to_bits(),
            };
            assert_eq!(words[place], expected, "head {at}, column {column}");
        }
        if scaled {
            let power = &words[queries.len() + 2 * at..][..2];
            let power = f32::from_bits(u32::from(power[0]) | u32::from(power[1]) << 16);
            assert_eq!(power * factor, 1.0, "head {at}");
        }
    }
}

/// Items come together with W_UV on tensor cores as by f32 products: sums in f32 and f16, merged before or here, rows alone and in company.
#[test]
fn items_combine_on_tensor_cores_as_in_f32() {
    let shape = MlaShape { num_heads: 2, ..KIMI };
    let MlaShape { num_heads, qk_nope_head_dim: nope, v_head_dim: value, kv_lora_rank: latent, .. } = shape;
    for (arch, f16) in [(Arch::Sm80, false), (Arch::Sm90a, true)] {
        let Some(mut stream) = stream(&Way { arch, seed: Some(4), races: true, ..PLAIN }) else { return };
        let mut rng = fastrand::Rng::with_seed(54);
        // A row without keys, and up to five items of the others.
        let lengths: Vec<u32> = (0..18).map(|row| [0, 1, 128, 129, 300, 600][row % 6]).collect();
        let items_of = |keys: &u32| keys.div_ceil(128) as usize;
        let num_items: usize = lengths.iter().map(items_of).sum();
        let up: Vec<u16> = (0..num_heads * (nope + value) * latent)
            .map(|_| half::bf16::from_f32(rng.f32() - 0.5).to_bits())
            .collect();
        let kv_up = stream.store("combine", &up).unwrap().address;
        let statistics: Vec<f32> =
            (0..num_items * num_heads).flat_map(|_| [rng.f32(), 1.0 + rng.f32()]).collect();
        let sums: Vec<f32> = (0..num_items * num_heads * latent).map(|_| rng.f32() - 0.5).collect();
        let merged = stream.store("combine", &sums[..lengths.len() * num_heads * latent]).unwrap().address;
        let statistics = stream.store("combine", &statistics).unwrap().address;
        let halves: Vec<u16> = sums.iter().map(|sum| half::f16::from_f32(*sum).to_bits()).collect();
        let sums = match f16 {
            true => stream.store("combine", &halves).unwrap().address,
            false => stream.store("combine", &sums).unwrap().address,
        };
        let row_values = num_heads * value;
        let mut combine = |tensor_cores: bool, project: bool, rows: std::ops::Range<usize>| {
            let mut words = vec![rows.len() as u32, 0];
            for (row, keys) in lengths.iter().enumerate().take(rows.end).skip(rows.start) {
                let first_item: usize = lengths[..row].iter().map(items_of).sum();
                words.extend([(row - rows.start) as u32, first_item as u32, *keys, 0, 1]);
            }
            let out = stream.zeros("combine", 4 * rows.len() * row_values).unwrap().address;
            let params = mla_decode::Params {
                kv_up,
                pass: stream.store("combine", &words).unwrap().address,
                splits: 1,
                statistics,
                latents: if project { merged + (4 * rows.start * num_heads * latent) as u64 } else { sums },
                attended: out,
                num_heads: num_heads as i32,
                nope: nope as i32,
                value: value as i32,
                latent: latent as i32,
                ..mla_decode::Params::zeroed()
            };
            let types = if f16 { CombineTypes::Bf16F16 } else { CombineTypes::Bf16 };
            let (function, launch) = match (tensor_cores, project) {
                (true, false) => tiled_mla_combine::combine(&shape, rows.len(), f16),
                (true, true) => tiled_mla_combine::project(&shape, rows.len()),
                (false, false) => mla_decode::combine(&shape, rows.len(), types),
                (false, true) => mla_decode::project(&shape, rows.len(), types),
            };
            stream.launch(function, launch, &params).unwrap();
            stream.read::<f32>(out, rows.len() * row_values).unwrap()
        };
        for project in [false, true] {
            let got = combine(true, project, 0..18);
            let off = difference(&got, &combine(false, project, 0..18));
            assert!(off < 4e-6, "{arch}, merged before: {project}: {off}");
            // In blocks of one row, of which one, two or four share V.
            for rows in [4..5, 7..9, 3..12] {
                let few = combine(true, project, rows.clone());
                let same = &got[rows.start * row_values..rows.end * row_values];
                assert!(few == same, "{arch}, merged before: {project}: rows {rows:?}");
            }
        }
    }
}

/// Hopper's kernel for rows of eight bits computes in f16, and that of B200 in codes, whose ranges are small.
#[test]
fn queries_and_latents_of_any_size_keep_their_precision() {
    let chunks = [absorbed(0, 63..65), absorbed(1, 127..128)];
    for (query_size, uneven) in [(1.5, true), (3e-9, false), (3e8, true), (1e36, false)] {
        for (arch, dtype) in [
            (Arch::Sm90a, fp8(true, false)),
            (Arch::Sm90a, fp8(true, true)),
            (Arch::Sm90a, CacheDtype::Bf16),
            (Arch::Sm120a, fp8(true, false)),
            (Arch::Sm120a, fp8(true, true)),
            (Arch::Sm100a, fp8(true, false)),
            (Arch::Sm100a, fp8(true, true)),
        ] {
            let shape = MlaShape { num_heads: 2, scale: KIMI.scale * 1.5 / query_size, ..KIMI };
            let world = World::new(shape, dtype, KvUpType::Bf16, 64).rounded();
            World { query_size, uneven, ..world }.check(&chunks, &Way { arch, ..PLAIN });
        }
    }
}

/// Rows of one sequence, as drafts are verified in, share a block of the kernels of clusters where ranks have few heads each: every row has the bits
/// that it has alone, also where a group has to end, and where its last rows have an item or a split more than the first.
#[test]
fn rows_that_share_keys_have_the_bits_of_rows_alone() {
    let rows = [(0, 61..68), (0, 253..262), (1, 510..516), (2, 2046..2051)];
    for (arch, num_heads, dtype, seed) in [
        (Arch::Sm90a, 16, fp8(true, false), 9),
        (Arch::Sm90a, 8, CacheDtype::Bf16, 10),
        (Arch::Sm90a, 20, fp8(true, true), 11),
        (Arch::Sm120a, 8, fp8(true, false), 12),
        (Arch::Sm100a, 20, fp8(true, false), 12),
    ] {
        let world = World::new(MlaShape { num_heads, ..KIMI }, dtype, KvUpType::Bf16, 64).rounded();
        let plain = Way { arch, ..PLAIN };
        // Of Blackwell where splits become longer.
        let rows = if arch == Arch::Sm90a { rows.to_vec() } else { vec![(0, 61..64), (0, 126..130)] };
        let chunks: Vec<Chunk> =
            rows.iter().map(|(sequence, rows)| absorbed(*sequence, rows.clone())).collect();
        let way = Way { seed: Some(seed), races: num_heads == 8, ..plain };
        world.check(&chunks[..2], &plain);
        let Some(together) = world.bits(&chunks, &way) else { return };
        let alone = chunks.iter().flat_map(|chunk| {
            let rows = chunk.positions.clone().map(|at| absorbed(chunk.sequence, at..at + 1));
            rows.flat_map(|row| world.bits(&[row], &plain).unwrap()).collect::<Vec<_>>()
        });
        assert!(together.into_iter().eq(alone), "{num_heads} heads");
    }
    let Some(mut stream) = stream(&Way { arch: Arch::Sm90a, ..PLAIN }) else { return };
    let mut groups = |num_heads: usize, parts: &[Chunk]| {
        let world =
            World::new(MlaShape { num_heads, ..KIMI }, fp8(true, false), KvUpType::Bf16, 64).rounded();
        let step = world.step(parts);
        let words = world.attention(&mut stream, &PLAIN).lists(&step.plan, 0).unwrap().to_vec();
        let rows = words[mla_decode::PASS_WORDS..].chunks(mla_decode::ROW_WORDS);
        rows.map(|row| (row[4] & 0xffff, row[4] >> 16)).collect::<Vec<_>>()
    };
    assert_eq!(groups(16, &[absorbed(0, 9..11)]), [(2, 0), (2, 1)]);
    // At most four of 16 heads, and not across 256 keys.
    let of_nine = [(3, 0), (3, 1), (3, 2), (4, 0), (4, 1), (4, 2), (4, 3), (2, 0), (2, 1)];
    assert_eq!(groups(16, &[absorbed(0, 253..262)]), of_nine);
    assert_eq!(groups(64, &[absorbed(0, 9..11)]), [(1, 0), (1, 0)]);
}

/// Items of queries that come in f32, as ranks give them to one another, are those of queries that come as operands.
#[test]
fn queries_in_f32_give_the_items_of_operands() {
    for (num_heads, dtype) in [(16, fp8(true, false)), (64, fp8(true, true)), (3, CacheDtype::Bf16)] {
        let shape = MlaShape { num_heads, ..KIMI };
        let world = World::new(shape, dtype, KvUpType::Bf16, 64).rounded();
        let way = Way { arch: Arch::Sm90a, seed: Some(12), races: num_heads == 3, ..PLAIN };
        let Some(mut stream) = stream(&way) else { return };
        let step = world.step(&[absorbed(0, 70..73), absorbed(1, 290..291)]);
        let words = world.attention(&mut stream, &way).lists(&step.plan, 0).unwrap().to_vec();
        let (at, kv_up) = world.upload(&mut stream, &step, &words);
        let (rows, items) = (words[0] as usize, words[1] as usize);
        let mut items_of = |ready: bool| {
            let mut zeros = |bytes: usize| stream.zeros("items", bytes).unwrap().address;
            let params = mla_decode::Params {
                query: at.query,
                rotations: at.rotations,
                kv_up: kv_up.all,
                cache: at.cache,
                block_tables: at.block_tables,
                pass: at.lists,
                latent_queries: zeros(4 * rows * num_heads * shape.latent_dim()),
                statistics: zeros(8 * items * num_heads),
                latents: zeros(2 * items * num_heads * shape.kv_lora_rank),
                num_heads: num_heads as i32,
                nope: shape.qk_nope_head_dim as i32,
                rope: shape.qk_rope_head_dim as i32,
                value: shape.v_head_dim as i32,
                latent: shape.kv_lora_rank as i32,
                block_size: 64,
                row_bytes: at.cache_shape.row_bytes() as i32,
                scale: shape.scale,
                splits: wgmma_mla_decode::SPLITS as u32,
                queries_are_ready: u32::from(ready),
                ..mla_decode::Params::zeroed()
            };
            let function = match ready {
                true => wgmma_mla_absorb::function(&shape, dtype).unwrap(),
                false => tiled_mla_absorb::FUNCTION,
            };
            stream.launch(function, tiled_mla_absorb::launch(&shape, rows), &params).unwrap();
            let launch = wgmma_mla_decode::launch(&shape, items, 2);
            stream
                .launch(wgmma_mla_decode::function(&shape, Arch::Sm90a, dtype).unwrap(), launch, &params)
                .unwrap();
            let statistics = stream.read::<u32>(params.statistics, 2 * items * num_heads).unwrap();
            let latents = items * num_heads * shape.kv_lora_rank;
            (statistics, stream.read::<u16>(params.latents, latents).unwrap())
        };
        let operands = items_of(true);
        assert!(operands.1.iter().any(|value| *value != 0));
        assert!(operands == items_of(false), "{num_heads} heads, {dtype:?}");
    }
}

/// What decides the speed of decode and can be counted. An SM of an H200 reads 35 clocks for a row of FP8, in which it issues
/// 141 instructions of a warp; tensor cores by mma.sync are busy for 55 clocks with the 64 heads of a key. One of an RTX PRO 6000 reads 197
/// clocks, 788 instructions, and its tensor cores are busy for 136.
#[test]
fn decode_issues_little_beside_the_tensor_cores() {
    let shape = MlaShape { num_heads: 64, ..KIMI };
    let tiled = tiled_mla_decode::launch(&shape, 1, 132);
    let hopper = wgmma_mla_decode::launch(&shape, 1, 132);
    let blackwell = fp8_mla_decode::launch(&shape, 1, 132);
    let b200 = tcgen05_mla_decode::launch(&shape, 1, 148);
    for (dtype, function, launch, allowed) in [
        (fp8(true, false), "tiled_mla_decode_fp8_32", tiled, 330.0),
        (CacheDtype::Bf16, "tiled_mla_decode_bf16_32", tiled, 270.0),
        (fp8(true, false), "wgmma_mla_decode_fp8", hopper, 137.0),
        (fp8(true, true), "wgmma_mla_decode_fp8_rope", hopper, 142.0),
        (CacheDtype::Bf16, "wgmma_mla_decode_bf16", hopper, 101.0),
        (fp8(true, false), "fp8_mla_decode", blackwell, 235.0),
        (fp8(true, true), "fp8_mla_decode_rope", blackwell, 250.0),
        (fp8(true, false), "tcgen05_mla_decode_fp8", b200, 140.0),
        (fp8(true, true), "tcgen05_mla_decode_fp8_rope", b200, 145.0),
    ] {
        let world = World::new(shape, dtype, KvUpType::Bf16, 64).rounded();
        let is_hopper = function.starts_with("wgmma");
        let is_clustered = !function.starts_with("tiled");
        let arch = match function.split('_').next() {
            Some("wgmma") => Arch::Sm90a,
            Some("tcgen05") => Arch::Sm100a,
            Some("fp8") => Arch::Sm120a,
            _ => Arch::Sm89,
        };
        let Some(mut stream) = stream(&Way { arch, ..PLAIN }) else { return };
        // The first item of a long context.
        let splits = if is_clustered { wgmma_mla_decode::SPLITS } else { 1 };
        let keys = (8 * splits + 1) * SPLIT;
        let step = world.step(&[absorbed(0, keys - 1..keys)]);
        let mut attention = world.attention(&mut stream, &PLAIN);
        let mut words = attention.lists(&step.plan, 0).unwrap().to_vec();
        // The blocks of a cluster have one of an item's splits each.
        assert_eq!(std::mem::replace(&mut words[1], 1), 9);
        let (at, _) = world.upload(&mut stream, &step, &words);
        let params = mla_decode::Params {
            cache: at.cache,
            block_tables: at.block_tables,
            pass: at.lists,
            latent_queries: match is_hopper {
                // In 16 bits, and powers of two behind them.
                true => {
                    stream.store("queries", &[vec![0x3800_3800u32; 32 * 576], vec![0x3f80_0000; 64]].concat())
                }
                false => stream.store("queries", &vec![0x3f00_0000u32; 64 * 576]),
            }
            .unwrap()
            .address,
            queries_are_ready: u32::from(is_hopper),
            statistics: stream.allocate("statistics", 2 * 4 * 64).unwrap().address,
            latents: stream.allocate("latents", 4 * 64 * 512).unwrap().address,
            num_heads: 64,
            rope: 64,
            latent: 512,
            block_size: 64,
            row_bytes: at.cache_shape.row_bytes() as i32,
            scale: 0.04,
            splits: splits as u32,
            ..bytemuck::Zeroable::zeroed()
        };
        if !stream.driver().set_options(|options| options.profile = true) {
            return;
        }
        stream.launch(function, launch, &params).unwrap();
        let report = stream.driver().report().unwrap();
        let per_key = report.warp_instructions() as f64 / (splits * SPLIT) as f64;
        let shared = report.instructions().filter(|count| !count.opcode.contains("global"));
        let conflicts: u64 = shared.filter_map(|count| count.traffic.map(|t| t.excess_wavefronts())).sum();
        println!(
            "{function}: {per_key:.0} PTX instructions of a warp per key of 64 heads, {conflicts} bank conflicts"
        );
        assert!(per_key < allowed, "{function}: {per_key}");
        assert_eq!(conflicts, 0, "{function}");
    }
}

#[test]
fn a_head_has_the_same_bits_in_blocks_of_every_size() {
    let world = |num_heads: usize| {
        let shape = MlaShape { num_heads, ..ODD };
        World::new(shape, fp8(true, false), KvUpType::Bf16, 16).rounded()
    };
    let chunks = [absorbed(0, 70..72)];
    let Some(few) = world(8).bits(&chunks, &PLAIN) else { return };
    for more in [9, 24, 33] {
        for ((_, row), (_, expected)) in world(more).bits(&chunks, &PLAIN).unwrap().iter().zip(&few) {
            assert!(row[..expected.len()] == *expected, "{more} heads");
        }
    }
}

#[test]
fn both_forms_at_once_and_the_largest_sizes() {
    let both = Chunk { sequence: 1, positions: 30..50, expanded_until: 40 };
    let chunks = [absorbed(0, 20..22), both, expanded(2, 0..5), absorbed(2, 5..6)];
    for arch in [Arch::Sm80, Arch::Sm120a] {
        World::new(LARGEST, fp8(true, true), KvUpType::Bf16, 16).check(&chunks, &Way { arch, ..PLAIN });
    }
    let tiny = MlaShape {
        num_heads: 1,
        qk_nope_head_dim: 4,
        qk_rope_head_dim: 4,
        v_head_dim: 4,
        kv_lora_rank: 4,
        scale: 0.5,
    };
    World::new(tiny, fp8(false, false), KvUpType::Bf16, 1).check(&chunks, &PLAIN);
}

#[test]
fn accesses_are_ordered() {
    let way = Way { seed: Some(4), races: true, ..PLAIN };
    let world = World::new(SMALL, fp8(true, true), KvUpType::Bf16, 16);
    let chunks = [absorbed(0, SPLIT + 20..SPLIT + 21), absorbed(1, 0..6), expanded(2, 40..75)];
    world.check(&chunks, &way);
    World::new(ODD, fp8(true, true), KvUpType::Bf16, 16).rounded().check(&chunks, &way);
    for dtype in [CacheDtype::Bf16, fp8(true, false), fp8(true, true)] {
        let chunks = [absorbed(0, SPLIT + 80..SPLIT + 81), absorbed(1, 200..202), expanded(2, 150..300)];
        let (few, capacity) =
            (MlaShape { num_heads: 2, ..KIMI }, AttentionCapacity { slab_keys: 128, ..ROOMY });
        let way = Way { arch: Arch::Sm90a, capacity, ..way };
        World::new(few, dtype, KvUpType::Bf16, 16).rounded().check(&chunks, &way);
        if dtype != CacheDtype::Bf16 {
            let arch = if dtype == fp8(true, true) { Arch::Sm100a } else { Arch::Sm120a };
            World::new(few, dtype, KvUpType::Bf16, 16).rounded().check(&chunks[..2], &Way { arch, ..way });
        }
    }
}

/// What is wrong in the kernel of E4M3 is found: a wait that is missing, a term, a scale or a place that is another one.
#[test]
fn planted_faults_of_decode_in_e4m3_are_found() {
    let plants = [
        ("keys are read before they are there", "wait(&shared.filled[turn.stage], turn.parity);", ""),
        (
            "scores come to where others are read",
            "take their place.\n            meet<SCORERS>(SCORE_GROUP);",
            "take their place.",
        ),
        ("keys come to where others are read", "wait(&shared.emptied[turn.stage], turn.parity ^ 1);", ""),
        ("sums come to where others are read", "meet_adders(&shared.merged, phase);", ""),
        (
            "probabilities have one term",
            "take_terms(terms[0], terms[1], weights);",
            "terms[0] = e4m3_of(weights), terms[1] = 0;",
        ),
        ("another key's scale", "factors[i % 2], latents", "factors[0], latents"),
    ];
    let world = World::new(MlaShape { num_heads: 2, ..KIMI }, fp8(true, false), KvUpType::Bf16, 64).rounded();
    let world = World { uneven: true, ..world };
    // Of few keys, so that what is wrong with one is not lost in a sum.
    let chunks = [absorbed(0, 330..331), absorbed(1, 4..5)];
    for (name, right, wrong) in plants {
        let found = [Some(13), Some(14), None].into_iter().any(|seed| {
            let way = Way { arch: Arch::Sm120a, seed, races: true, ..PLAIN };
            let Some(mut stream) = stream(&way) else { return true };
            let mut program = Program::new(&fp8_mla_decode::KERNEL, way.arch).unwrap();
            assert!(program.text.contains(right), "{name}: {right}");
            program.text = program.text.replace(right, wrong);
            stream.load_program(&program).unwrap();
            let run = std::panic::AssertUnwindSafe(|| world.check_on(stream, &chunks, &way));
            std::panic::catch_unwind(run).is_err()
        });
        assert!(found, "{name}: not found");
    }
}

/// Longer rows have longer items; a row's own length decides.
#[test]
fn items_of_rows_at_the_lengths_where_their_size_changes() {
    let chunks = [absorbed(0, 2047..2050), absorbed(1, 4095..4098)];
    let items_of = |keys| [1, 4].map(|splits| mla_decode::items_of(keys, splits));
    assert_eq!([2048, 2049, 4096, 4097].map(items_of), [[16, 4], [9, 3], [16, 4], [9, 5]]);
    assert_eq!([16_384, 16_385].map(items_of), [[32, 16], [33, 9]]);
    World::new(SMALL, CacheDtype::F32, KvUpType::F32, 16).check(&chunks, &PLAIN);
    let few = MlaShape { num_heads: 2, ..KIMI };
    let world = World::new(few, fp8(true, false), KvUpType::Bf16, 64).rounded();
    world.check(&[absorbed(0, 2047..2049), absorbed(1, 4096..4097)], &Way { arch: Arch::Sm90a, ..PLAIN });
    for arch in [Arch::Sm100a, Arch::Sm120a] {
        world.check(&[absorbed(0, 2047..2049)], &Way { arch, ..PLAIN });
    }
}

#[test]
fn bits_of_absorbed_rows_depend_on_their_position_alone() {
    let world = World::new(GOLDEN, CacheDtype::Bf16, KvUpType::Bf16, 16);
    let rows = 2 * SPLIT - 3..2 * SPLIT + 4;
    let kimi = World::new(MlaShape { num_heads: 4, ..KIMI }, fp8(true, false), KvUpType::Bf16, 16).rounded();
    for (seed, world, arch) in [
        (5, world.clone(), Arch::Sm80),
        (6, world.rounded(), Arch::Sm80),
        (7, kimi.clone(), Arch::Sm90a),
        (8, kimi.clone(), Arch::Sm100a),
        (9, kimi, Arch::Sm120a),
    ] {
        let plain = Way { arch, ..PLAIN };
        let Some(whole) = world.bits(&[absorbed(0, rows.clone()), absorbed(1, 3..4)], &plain) else { return };
        // A pass for every row, and company in front.
        let capacity = AttentionCapacity { absorbed_rows: 2, items: 3, ..ROOMY };
        let way = Way { seed: Some(seed), capacity, ..plain };
        let (first, rest) = (rows.start..rows.start + 5, rows.start + 5..rows.end);
        let chunks = [absorbed(1, 3..4), absorbed(2, 0..9), absorbed(0, first), absorbed(0, rest)];
        let parts = world.bits(&chunks, &way).unwrap();
        assert!(parts.iter().filter(|row| row.0.0 != 2).eq(whole.iter()), "seed {seed}");
        // Enough rows that four of them are merged at once.
        let chunks = [absorbed(1, 3..4), absorbed(2, 0..12), absorbed(0, rows.clone())];
        let many = world.bits(&chunks, &Way { seed: Some(seed), ..plain }).unwrap();
        assert!(many.iter().filter(|row| row.0.0 != 2).eq(whole.iter()), "seed {seed}, many rows");
    }
}

#[test]
fn bits_of_expanded_rows_depend_on_their_position_alone() {
    let few_heads = MlaShape { num_heads: 2, ..KIMI };
    for (arch, world) in [
        (Arch::Sm80, World::new(SMALL, CacheDtype::Bf16, KvUpType::Bf16, 16)),
        (Arch::Sm80, World::new(ODD, fp8(true, false), KvUpType::Bf16, 16).rounded()),
        (Arch::Sm90a, World::new(few_heads, fp8(true, false), KvUpType::Bf16, 16).rounded()),
        (Arch::Sm103a, World::new(few_heads, CacheDtype::Bf16, KvUpType::Bf16, 64).rounded()),
    ] {
        let plain = Way { arch, ..PLAIN };
        let Some(whole) = world.bits(&[expanded(0, 0..140)], &plain) else { return };
        // Kernels of their own compute 128 rows however few there are.
        let ways = [(6, 96, 33), (7, 4096, 140), (5, 1, 5)];
        let ways = if arch == Arch::Sm80 { &ways[..] } else { &ways[..2] };
        for &(seed, slab_keys, step) in ways {
            let capacity = AttentionCapacity { slab_keys, ..ROOMY };
            let way = Way { seed: Some(seed), capacity, ..plain };
            let mut parts = Vec::new();
            for start in (0..140).step_by(step) {
                let chunks = [expanded(1, 7..9), expanded(0, start..(start + step).min(140))];
                parts.extend(world.bits(&chunks, &way).unwrap().into_iter().filter(|row| row.0.0 == 0));
            }
            assert!(parts == whole, "slabs of {slab_keys}, chunks of {step}");
        }
    }
}

#[test]
fn a_nan_in_the_cache_reaches_every_row_that_sees_it_and_no_other() {
    let few_heads = MlaShape { num_heads: 2, ..KIMI };
    for (arch, world) in [
        (Arch::Sm80, World::new(SMALL, CacheDtype::F32, KvUpType::F32, 16)),
        (Arch::Sm80, World::new(SMALL, fp8(true, true), KvUpType::F32, 16)),
        (Arch::Sm80, World::new(ODD, CacheDtype::Bf16, KvUpType::Bf16, 16).rounded()),
        (Arch::Sm80, World::new(ODD, fp8(true, true), KvUpType::Bf16, 16).rounded()),
        (Arch::Sm90a, World::new(few_heads, CacheDtype::Bf16, KvUpType::Bf16, 16).rounded()),
        (Arch::Sm90a, World::new(few_heads, fp8(true, true), KvUpType::Bf16, 16).rounded()),
        (Arch::Sm120a, World::new(few_heads, fp8(true, true), KvUpType::Bf16, 16).rounded()),
        (Arch::Sm100a, World::new(few_heads, fp8(true, false), KvUpType::Bf16, 16).rounded()),
    ] {
        let way = Way { arch, ..PLAIN };
        // Kernels of clusters compute 32 and 64 heads however few there are.
        let is_clustered = arch != Arch::Sm80;
        let (first, rows) = if is_clustered { (100, 2) } else { (690, 15) };
        let chunks =
            [absorbed(0, first..first + rows), expanded(0, 60..90), absorbed(1, first + 10..first + 12)];
        let dtype = world.dtype;
        let Some(sound) = world.bits(&chunks, &way) else { return };
        let faults = [75, first + rows - 1, 64, 89];
        for &fault in if is_clustered { &faults[..2] } else { &faults[..] } {
            let faulty = World { fault: Some(fault), ..world.clone() }.bits(&chunks, &way).unwrap();
            for ((name, row), (_, expected)) in faulty.iter().zip(&sound) {
                if name.0 == 0 && name.1 >= fault {
                    assert!(row.iter().all(|x| f32::from_bits(*x).is_nan()), "{dtype:?} {fault} {name:?}");
                } else {
                    assert!(row == expected, "{dtype:?} {fault} {name:?}");
                }
            }
        }
    }
}

#[test]
fn rows_of_eight_bits_decode_to_the_bits_of_their_format() {
    let Some(mut stream) = stream(&PLAIN) else { return };
    let (c, r) = (256, 64);
    // Of the latent and of the rope key: the bounds of what is stored, and the mark of a fault in either part.
    let scales = [(127, 127), (27, 227), (227, 27), (100, 140), (0xff, 127), (127, 0xff)];
    for (rope_codes, function) in [(false, "mla_gather_fp8"), (true, "mla_gather_fp8_rope")] {
        let format = CachedRowFormat { row_scales: true, rope_codes };
        let mut rng = fastrand::Rng::with_seed(2);
        let mut row_of = |(latent, rope): (u8, u8)| {
            let mut row: Vec<u8> = (0..=255).collect();
            row.extend(std::iter::repeat_with(|| rng.u8(..)).take(if rope_codes { r } else { 2 * r }));
            row.extend([latent, rope]);
            row.resize(format.bytes(c, r), 0xa5);
            row
        };
        let rows: Vec<Vec<u8>> = scales.into_iter().map(&mut row_of).collect();
        let latents = stream.allocate("latents", 4 * c * rows.len()).unwrap().address;
        let rope_keys = stream.allocate("rope keys", 4 * r * rows.len()).unwrap().address;
        let params = mla_prefill::Params {
            cache: mla_prefill::CacheParts::alone(
                stream.store("cache", &rows.concat()).unwrap().address,
                rows.len(),
            ),
            block_table: stream.store("table", &[0u32]).unwrap().address,
            latents,
            rope_keys,
            latent: c as i32,
            rope: r as i32,
            row_bytes: format.bytes(c, r) as i32,
            num_keys: rows.len() as i32,
            ..bytemuck::Zeroable::zeroed()
        };
        stream.launch(function, mla_prefill::gather_launch(rows.len()), &params).unwrap();
        let latents: Vec<u32> = stream.read(latents, c * rows.len()).unwrap();
        let rope_keys: Vec<u32> = stream.read(rope_keys, r * rows.len()).unwrap();
        for (i, row) in rows.iter().enumerate() {
            let mut expected = vec![0; c + r];
            format.decode(row, c, &mut expected);
            let got: Vec<u32> =
                latents[i * c..(i + 1) * c].iter().chain(&rope_keys[i * r..(i + 1) * r]).copied().collect();
            let expected: Vec<u32> = expected.into_iter().map(|bits| u32::from(bits) << 16).collect();
            let differing = got.iter().zip(&expected).position(|(got, expected)| got != expected);
            assert_eq!(differing, None, "{function}, scales {:?}", scales[i]);
        }
    }
}

#[test]
fn launches_serve_the_lists_of_later_steps() {
    let world = World::new(SMALL, CacheDtype::F32, KvUpType::F32, 16);
    let chunks = [absorbed(0, 3..4), absorbed(1, SPLIT..SPLIT + 9), absorbed(2, 40..41)];
    let step = world.step(&chunks);
    let Some(expected) = world.device(&chunks, &PLAIN) else { return };
    let mut stream = stream(&PLAIN).unwrap();
    let mut attention = world.attention(&mut stream, &PLAIN);
    let words = attention.lists(&step.plan, 0).unwrap().to_vec();
    let (at, kv_up) = world.upload(&mut stream, &step, &words);

    attention.lists(&StepPlan::default(), 0).unwrap();
    assert_eq!(attention.num_passes(), 1);
    stream.driver().begin_capture().unwrap();
    attention.attend_absorbed(&mut stream, &at, &kv_up).unwrap();
    let graph = stream.driver().end_capture().unwrap();

    let values = expected.len();
    let replayed = |stream: &mut Stream<TestDriver>, words: &[u32]| -> Vec<f32> {
        stream.driver().upload(at.lists, bytemuck::cast_slice(words)).unwrap();
        stream.driver().replay(&graph).unwrap();
        stream.read(at.attended, values).unwrap()
    };
    assert_eq!(replayed(&mut stream, &[0, 0]), vec![UNTOUCHED; values]);
    // Padding in front, between and behind: rows without keys.
    let row = world.row_values();
    let padded = StepPlan { absorbed: step.plan.absorbed[1..2].to_vec(), ..step.plan.clone() };
    let one = attention.lists(&padded, 0).unwrap().to_vec();
    let entry = |row: u32, first_item: u32| [row, first_item, 0, 0, 1];
    let mut words = vec![one[0] + 2, one[1]];
    words.extend(entry(0, 0));
    words.extend(&one[mla_decode::PASS_WORDS..]);
    words.extend(entry(10, one[1]));
    let got = replayed(&mut stream, &words);
    assert_eq!(got[..row], vec![0.0; row]);
    assert_eq!(got[row..10 * row], expected[row..10 * row]);
    assert_eq!(got[10 * row..], vec![0.0; row]);
    assert_eq!(replayed(&mut stream, attention.lists(&step.plan, 0).unwrap()), expected);
}

/// Passes of steps whose items do not fit into one are recorded too, and their number is rounded up.
#[test]
fn launches_of_several_passes_serve_the_lists_of_later_steps() {
    const PADDED_ROWS: usize = 4;
    let world = World::new(SMALL, CacheDtype::F32, KvUpType::F32, 16);
    let row = |sequence, keys: usize| absorbed(sequence, keys - 1..keys);
    let first = [row(0, 2048), row(1, 2048), row(2, 2048)];
    let later = [row(0, 1900), row(1, 300), row(2, 2000)];
    let Some(expected) = world.device(&later, &PLAIN) else { return };
    let way = Way { capacity: AttentionCapacity { items: 16, absorbed_rows: PADDED_ROWS, ..ROOMY }, ..PLAIN };
    let mut stream = stream(&way).unwrap();
    let mut attention = world.attention(&mut stream, &way);
    let step = world.step(&later);
    let words = attention.lists(&step.plan, PADDED_ROWS).unwrap().to_vec();
    assert_eq!((attention.num_passes(), attention.recorded_passes()), (4, Some(4)));
    let (at, kv_up) = world.upload(&mut stream, &step, &words);

    attention.lists(&world.step(&first).plan, PADDED_ROWS).unwrap();
    assert_eq!(attention.recorded_passes(), Some(4));
    stream.driver().begin_capture().unwrap();
    attention.attend_absorbed(&mut stream, &at, &kv_up).unwrap();
    let graph = stream.driver().end_capture().unwrap();
    stream.driver().replay(&graph).unwrap();
    let got: Vec<f32> = stream.read(at.attended, expected.len()).unwrap();
    assert_eq!(got, expected);
    // One sequence alone has one pass.
    attention.lists(&world.step(&later[..1]).plan, 1).unwrap();
    assert_eq!(attention.recorded_passes(), Some(1));
}

/// 64 sequences of more than 32k tokens, or 8 of more than 262k, take two passes and stay recorded.
#[test]
fn steps_of_many_long_contexts_are_recorded() {
    const BLOCK_SIZE: usize = 64;
    let Some(mut stream) = stream(&PLAIN) else { return };
    let capacity =
        AttentionCapacity { rows: 64, absorbed_rows: 64, items: 4096, block_size: BLOCK_SIZE, slab_keys: 64 };
    let mut attention =
        Attention::new(&mut stream, &SMALL, CacheDtype::F32, &capacity, Activations::F32, None).unwrap();
    for (rows, context, passes) in
        [(64, 32_768, 1), (64, 32_769, 2), (8, 262_145, 2), (64, 262_144, 8), (64, 262_145, 16)]
    {
        let table = vec![BlockId(0); usize::div_ceil(context, BLOCK_SIZE)];
        let mut plan = StepPlan::default();
        for _ in 0..rows {
            plan.add([TokenSource::from(0)], context - 1, 0, &table, BLOCK_SIZE);
        }
        let words = attention.lists(&plan, rows).unwrap().len();
        assert!(words <= Attention::list_words(rows), "{rows} rows of {context} tokens");
        let expected = Some(passes).filter(|passes| *passes <= 8);
        assert_eq!(attention.recorded_passes(), expected, "{rows} rows of {context} tokens");
    }
}

#[test]
fn what_exceeds_the_capacity_is_refused() {
    let world = World::new(SMALL, CacheDtype::F32, KvUpType::F32, 16);
    let Some(mut stream) = stream(&PLAIN) else { return };
    let capacity = AttentionCapacity { rows: 20, items: 2, ..ROOMY };
    let mut attention =
        Attention::new(&mut stream, &SMALL, CacheDtype::F32, &capacity, Activations::F32, None).unwrap();
    let mut refused = |plan: &StepPlan| attention.lists(plan, 0).err().map(|error| error.to_string());
    assert_eq!(refused(&world.step(&[absorbed(0, 16 * SPLIT - 1..16 * SPLIT)]).plan), None);
    // There is room for 16 items at least, of 512 keys in a context of more than 4,096.
    let text = refused(&world.step(&[absorbed(0, 16 * SPLIT..16 * SPLIT + 1)]).plan).unwrap();
    assert!(text.contains("a context of 8193 tokens, and the limit is 8192"), "{text}");
    for chunk in [absorbed(0, 0..21), expanded(0, 0..21)] {
        let text = refused(&world.step(&[chunk]).plan).unwrap();
        assert!(text.contains("a step of 21 rows, and the limit is 20"), "{text}");
    }
    let mut plan = world.step(&[expanded(0, 0..17)]).plan;
    plan.expanded[0].block_table.end -= 1;
    let text = refused(&plan).unwrap();
    assert!(text.contains("a block table of 16 tokens for a context of 17"), "{text}");

    let odd = MlaShape { v_head_dim: 6, ..SMALL };
    let text = Attention::new(&mut stream, &odd, CacheDtype::F32, &capacity, Activations::Bf16, None)
        .unwrap_err()
        .to_string();
    assert!(text.contains("v_head_dim is 6"), "{text}");
}

/// Few keys have almost all of the weight and many the rest: codes of probabilities have a range for both, and sums are scaled where a later key
/// has more than those before, in any order of warps.
#[test]
fn small_weights_beside_large_ones_are_not_lost() {
    for (i, dtype) in [fp8(true, false), fp8(true, true)].into_iter().enumerate() {
        let shape = MlaShape { num_heads: 6, scale: 1.4, ..KIMI };
        let world = World::new(shape, dtype, KvUpType::Bf16, 64).rounded();
        for (j, size) in [0.02, 0.08, 0.3, 1.0].into_iter().enumerate() {
            let way = Way { arch: Arch::Sm100a, seed: Some((4 * i + j) as u64), races: j == 1, ..PLAIN };
            World { query_size: size, ..world.clone() }.check(&[absorbed(0, 1500..1501)], &way);
        }
    }
}
