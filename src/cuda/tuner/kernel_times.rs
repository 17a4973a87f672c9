//! Times of kernels at the sizes of a model, for `perigee bench kernels`: products and attention, which take the time of a
//! step. Beside them a copy on the device in the same run, whose speed is the floor of what moves bytes.

use serde::Serialize;

use super::candidate::Candidate;
use super::numerics::Output;
use super::op::{Bucket, Product, TunedOp};
use super::problem::Problem;
use super::table::Lost;
use super::{Effort, TuneError, timing};
use crate::attention::KvUpType;
use crate::kernels::ahead::Ahead;
use crate::weights::{Format, MAX_TERMS, PanelFormat};
use crate::{Addresses, Attention, AttentionCapacity, Driver, KvUp, Stream};
use perigee_numbers::quant::CachedRowFormat;
use perigee_ops::{Activations, BlockId, CacheDtype, CacheShape, MlaShape, OpError, StepPlan, TokenSource};

/// What buffers are called in an error.
pub(super) const WHAT: &str = "bench";
/// Tokens of a block of the cache.
const BLOCK_SIZE: usize = 64;
/// Rows of a part of a prompt.
const PROMPT_ROWS: usize = 2048;

/// Sizes of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct BenchSizes {
    /// Name in the report.
    pub name: String,
    /// Attention; `None`: products alone are measured.
    pub mla: Option<MlaShape>,
    /// Experts of a token.
    pub top_k: usize,
    /// Products, each once; their rows are not looked at.
    pub products: Vec<TunedOp>,
}

impl BenchSizes {
    /// Kimi K2 (`config.json` of Kimi-K2-Instruct), experts in NVFP4 and everything else in BF16.
    pub fn kimi_k2() -> Self {
        let product = |product, format, [out_features, in_features]: [usize; 2], count| TunedOp {
            rows: Bucket::UpTo8,
            product,
            format,
            out_features,
            in_features,
            count,
            terms: 0,
        };
        let linear = |shape| product(Product::Linear, Format::Bf16, shape, 1);
        Self {
            name: "Kimi K2, experts in NVFP4".into(),
            mla: Some(MlaShape {
                num_heads: 64,
                qk_nope_head_dim: 128,
                qk_rope_head_dim: 64,
                v_head_dim: 128,
                kv_lora_rank: 512,
                scale: 0.072,
            }),
            top_k: 8,
            products: vec![
                // q_a, kv_a, q_b, o_proj, head.
                linear([1536, 7168]),
                linear([576, 7168]),
                linear([12_288, 1536]),
                linear([7168, 8192]),
                linear([163_840, 7168]),
                product(Product::Swiglu, Format::Nvfp4, [2048, 7168], 384),
                product(Product::Linear, Format::Nvfp4, [7168, 2048], 384),
                product(Product::Swiglu, Format::Bf16, [2048, 7168], 1),
                product(Product::Linear, Format::Bf16, [7168, 2048], 1),
            ],
        }
    }
}

/// One op at one number of rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KernelTime {
    /// Op and sizes.
    pub op: String,
    /// Rows of the step.
    pub rows: usize,
    /// Variant, where there are several, or the vendor's product.
    pub variant: Option<String>,
    /// Median time in microseconds.
    pub micros: f64,
    /// Bytes that it moves at least.
    pub bytes: u64,
    /// Multiplications and additions.
    pub flop: u64,
}

impl KernelTime {
    /// Whether both are of one op and number of rows, and both or none by the vendor.
    fn is_of_kind(&self, other: &Self) -> bool {
        let is_vendors = |time: &Self| time.variant.as_deref() == Some(VENDOR);
        self.op == other.op && self.rows == other.rows && is_vendors(self) == is_vendors(other)
    }

    /// Bytes per second.
    pub fn bandwidth(&self) -> f64 {
        self.bytes as f64 / self.micros * 1e6
    }

    /// FLOP per second.
    pub fn flops(&self) -> f64 {
        self.flop as f64 / self.micros * 1e6
    }
}

/// Name of the vendor's products among the variants.
const VENDOR: &str = "cuBLASLt";

/// Times of [`kernel_times`].
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct KernelTimes {
    /// Bytes per second of a copy on the device, reads and writes.
    pub copy_bandwidth: f64,
    /// Every op, of products every variant.
    pub times: Vec<KernelTime>,
    /// Ops for which the device has no room.
    pub left: Vec<String>,
}

impl KernelTimes {
    /// Leaves the fastest of our variants of each op and number of rows, and the vendor's product.
    pub fn retain_fastest(&mut self) {
        let mut kept: Vec<KernelTime> = Vec::new();
        for time in std::mem::take(&mut self.times) {
            match kept.iter_mut().find(|other| other.is_of_kind(&time)) {
                Some(other) if time.micros < other.micros => *other = time,
                Some(_) => {}
                None => kept.push(time),
            }
        }
        self.times = kept;
    }
}

/// Measures the ops of decode steps of `rows` rows (each of a sequence of `context` tokens), and attention of a prompt, as far as `sizes` has them.
/// `open` gives the device, a new one for each op, so that its memory is free after it. Variants that are `lost` are left out. `done` is
/// called with each time.
pub fn kernel_times<D: Driver>(
    open: &mut dyn FnMut() -> Result<Stream<D>, OpError>,
    sizes: &BenchSizes,
    rows: &[usize],
    context: usize,
    (effort, lost): (&Effort, &[Lost]),
    done: &mut dyn FnMut(&KernelTime),
) -> Result<KernelTimes, OpError> {
    let copy_bandwidth = timing::copy_bandwidth(&mut open()?, effort.copy_bytes)?;
    let mut all = KernelTimes { copy_bandwidth, ..Default::default() };
    let mut add = |op: String, measured: Result<Vec<KernelTime>, OpError>| -> Result<(), OpError> {
        match measured {
            Ok(times) => {
                times.iter().for_each(&mut *done);
                all.times.extend(times);
            }
            Err(OpError::OutOfMemory { .. }) => all.left.push(op),
            Err(error) => return Err(error),
        }
        Ok(())
    };
    for op in &sizes.products {
        add(product_name(op), products(&mut open()?, op, sizes.top_k, rows, (effort, lost)))?;
    }
    let Some(mla) = &sizes.mla else { return Ok(all) };
    for dtype in [CacheDtype::Bf16, CacheDtype::Fp8(CachedRowFormat { row_scales: true, rope_codes: false })]
    {
        let name = format!("attend, {} cache, {context} tokens", dtype.name());
        for rows in rows {
            let time = decode(&mut open()?, mla, dtype, *rows, context, effort);
            add(name.clone(), time.map(|time| vec![KernelTime { op: name.clone(), ..time }]))?;
        }
        let name = format!("attend a prompt, {} cache, up to {context} tokens", dtype.name());
        let time = prompt(&mut open()?, mla, dtype, context, effort);
        add(name.clone(), time.map(|time| vec![KernelTime { op: name, ..time }]))?;
    }
    Ok(all)
}

fn product_name(op: &TunedOp) -> String {
    let TunedOp { product, format, out_features, in_features, count, .. } = op;
    let experts = if *count > 1 { format!(", {count} experts") } else { String::new() };
    format!("{} {} {out_features}x{in_features}{experts}", product.name(), format.name())
}

/// A product at every number of rows, and with rows in every form of 4-bit floats that its weights meet on this device.
fn products<D: Driver>(
    stream: &mut Stream<D>,
    op: &TunedOp,
    top_k: usize,
    rows: &[usize],
    (effort, lost): (&Effort, &[Lost]),
) -> Result<Vec<KernelTime>, OpError> {
    let most = rows.iter().max().copied().unwrap_or(0) * top_k;
    let mut problem = Problem::with_panels(stream, &[*op], effort.max_weight_bytes, most, 1, true)?;
    problem.rotate(stream, effort.rotation_bytes, effort.max_copies)?;
    let is_plain = op.count == 1 && op.product == Product::Linear && op.format == Format::Bf16;
    let most_terms = match problem.panels.first().map(|panels| panels.format) {
        None => 0,
        Some(PanelFormat::Nvfp4) => MAX_TERMS,
        Some(PanelFormat::Mxfp4) => 1,
    };
    let mut times = Vec::new();
    for terms in 0..=most_terms {
        problem.set_terms(stream, terms)?;
        let output = Output::new(stream, &problem)?;
        let mut candidates = Candidate::shipped(&problem.op);
        candidates.retain(|candidate| candidate.is_usable(lost) && candidate.fits(stream.arch()));
        let name = match problem.op.form() {
            Some(form) => format!("{}, rows in {}", product_name(&problem.op), form.name()),
            None => product_name(&problem.op),
        };
        for rows in rows {
            let workload = problem.step(*rows, top_k);
            let all = candidates.iter().collect::<Vec<_>>();
            let micros = timing::time(stream, &problem, &workload, &output, &all, effort).map_err(
                |error| match error {
                    TuneError::Lost { source, .. } | TuneError::Op(source) => source,
                },
            )?;
            let weights = op.product.matrices() * problem.op.out_features * problem.op.in_features;
            let time = |variant: &str, micros| KernelTime {
                op: name.clone(),
                rows: *rows,
                variant: Some(variant.into()),
                micros,
                bytes: problem.least_bytes(&workload),
                flop: 2 * (workload.num_slots * weights) as u64,
            };
            let ours = micros.into_iter().zip(&candidates);
            times.extend(ours.map(|(micros, candidate)| time(candidate.name, micros)));
            let of_vendor = is_plain && terms == 0;
            let vendor = if of_vendor { vendor(stream, &problem, *rows, &output, effort)? } else { None };
            times.extend(vendor.map(|micros| time(VENDOR, micros)));
        }
    }
    Ok(times)
}

/// Median time of the vendor's product of the same sizes; `None` where its library is not installed.
fn vendor<D: Driver>(
    stream: &mut Stream<D>,
    problem: &Problem,
    rows: usize,
    output: &Output,
    effort: &Effort,
) -> Result<Option<f64>, OpError> {
    let shape = [rows, problem.op.out_features, problem.op.in_features];
    // The bytes of our tiles, which are as many: times depend on how random values are, not on their order.
    let at = |copy: usize| [problem.copies[copy].weight.codes, problem.x().address, output.rows().address];
    let driver = stream.driver();
    if !driver.open_vendor()? {
        return Ok(None);
    }
    driver.vendor_product(shape, at(0), false)?;
    driver.begin_capture()?;
    let recorded =
        (0..problem.copies.len()).try_for_each(|copy| driver.vendor_product(shape, at(copy), false));
    let graph = driver.end_capture();
    recorded?;
    let times = timing::replayed(stream, &[graph?], problem.copies.len(), effort);
    Ok(times.map_err(|(_, error)| error)?.first().copied())
}

/// Device memory of attention: a cache and projections of several layers, which launches rotate over.
struct Layers {
    attention: Attention,
    at: Addresses,
    kv_up: Vec<KvUp>,
    layer_bytes: u64,
    graph_plan: StepPlan,
}

impl Layers {
    /// `plan` has rows of sequences whose blocks are `0..num_blocks`.
    fn new<D: Driver>(
        stream: &mut Stream<D>,
        mla: &MlaShape,
        dtype: CacheDtype,
        plan: StepPlan,
        capacity: &AttentionCapacity,
        effort: &Effort,
    ) -> Result<Self, OpError> {
        let num_blocks = plan.block_tables.len();
        let mut cache_shape = CacheShape {
            num_layers: 1,
            num_blocks,
            block_size: BLOCK_SIZE,
            latent_dim: mla.latent_dim(),
            rope_dim: mla.qk_rope_head_dim,
            dtype,
        };
        let layer_bytes = cache_shape.bytes();
        cache_shape.num_layers =
            effort.rotation_bytes.div_ceil(layer_bytes.max(1)).clamp(1, effort.max_copies);
        let mut attention = Attention::new(stream, mla, dtype, capacity, Activations::Bf16, None)?;
        let lists = attention.lists(&plan, 0)?.to_vec();
        let rows = plan.num_rows();
        let head = mla.qk_nope_head_dim + mla.v_head_dim;
        let mut zeros = |values: usize| stream.zeros(WHAT, values).map(|buffer| buffer.address);
        // All values are 0: times do not depend on them.
        let at = Addresses {
            query: zeros(4 * rows * mla.num_heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim))?,
            rotations: zeros(4 * rows * mla.qk_rope_head_dim)?,
            attended: zeros(4 * rows * mla.num_heads * mla.v_head_dim)?,
            rounded: zeros(2 * rows * mla.num_heads * mla.v_head_dim)?,
            cache: zeros(cache_shape.bytes())?,
            caches: None,
            cache_shape,
            block_tables: 0,
            lists: 0,
            ahead: Ahead::NONE,
        };
        let mut kv_up = Vec::new();
        for _ in 0..cache_shape.num_layers {
            let address = zeros(2 * mla.num_heads * head * mla.kv_lora_rank)?;
            kv_up.push(KvUp { address, all: address, dtype: KvUpType::Bf16 });
        }
        let at = Addresses {
            block_tables: stream.store(WHAT, &plan.block_tables)?.address,
            lists: stream.store(WHAT, &lists)?.address,
            ..at
        };
        Ok(Self { attention, at, kv_up, layer_bytes: layer_bytes as u64, graph_plan: plan })
    }

    /// Median time of a layer.
    fn time<D: Driver>(&self, stream: &mut Stream<D>, effort: &Effort) -> Result<f64, OpError> {
        stream.driver().begin_capture()?;
        let mut recorded = Ok(());
        for (layer, kv_up) in self.kv_up.iter().enumerate() {
            let at = Addresses { cache: self.at.cache + layer as u64 * self.layer_bytes, ..self.at };
            recorded = recorded.and_then(|()| match self.graph_plan.expanded.as_slice() {
                [] => self.attention.attend_absorbed(stream, &at, kv_up),
                segments => self.attention.attend_expanded(stream, &at, kv_up, segments),
            });
        }
        let graph = stream.driver().end_capture();
        recorded?;
        let times = timing::replayed(stream, &[graph?], self.kv_up.len(), effort);
        let times = times.map_err(|(_, error)| error)?;
        Ok(times.first().copied().unwrap_or(f64::NAN))
    }
}

/// Bytes of `W_UK` and `W_UV` in bf16.
fn kv_up_bytes(mla: &MlaShape) -> usize {
    2 * mla.num_heads * (mla.qk_nope_head_dim + mla.v_head_dim) * mla.kv_lora_rank
}

/// Attention of a decode step: the last token of each of `rows` sequences.
fn decode<D: Driver>(
    stream: &mut Stream<D>,
    mla: &MlaShape,
    dtype: CacheDtype,
    rows: usize,
    context: usize,
    effort: &Effort,
) -> Result<KernelTime, OpError> {
    let blocks = context.div_ceil(BLOCK_SIZE);
    let mut plan = StepPlan::default();
    for row in 0..rows {
        let table: Vec<BlockId> =
            (row * blocks..(row + 1) * blocks).map(|block| BlockId(block as u32)).collect();
        plan.add([TokenSource::from(0)], context - 1, 0, &table, BLOCK_SIZE);
    }
    let capacity = AttentionCapacity {
        rows,
        absorbed_rows: rows,
        items: rows * crate::kernels::mla_decode::items_of(context, 1),
        block_size: BLOCK_SIZE,
        slab_keys: 1,
    };
    let layers = Layers::new(stream, mla, dtype, plan, &capacity, effort)?;
    let width = 2 * mla.kv_lora_rank + mla.qk_rope_head_dim;
    let products = mla.kv_lora_rank * (mla.qk_nope_head_dim + mla.v_head_dim);
    Ok(KernelTime {
        op: String::new(),
        rows,
        variant: None,
        micros: layers.time(stream, effort)?,
        bytes: (rows * context * layers.at.cache_shape.row_bytes() + kv_up_bytes(mla)) as u64,
        flop: 2 * (rows * mla.num_heads * (context * width + products)) as u64,
    })
}

/// Attention of the last rows of a prompt of `context` tokens.
fn prompt<D: Driver>(
    stream: &mut Stream<D>,
    mla: &MlaShape,
    dtype: CacheDtype,
    context: usize,
    effort: &Effort,
) -> Result<KernelTime, OpError> {
    let rows = PROMPT_ROWS.min(context);
    let table: Vec<BlockId> = (0..context.div_ceil(BLOCK_SIZE)).map(|block| BlockId(block as u32)).collect();
    let mut plan = StepPlan::default();
    plan.add((0..rows).map(|_| TokenSource::from(0)), context - rows, context, &table, BLOCK_SIZE);
    let capacity =
        AttentionCapacity { rows, absorbed_rows: 1, items: 1, block_size: BLOCK_SIZE, slab_keys: context };
    let layers = Layers::new(stream, mla, dtype, plan, &capacity, effort)?;
    let visible: usize = (context - rows + 1..=context).sum();
    let head = mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim;
    let expanded = context * (mla.qk_nope_head_dim + mla.v_head_dim) * mla.kv_lora_rank;
    Ok(KernelTime {
        op: String::new(),
        rows,
        variant: None,
        micros: layers.time(stream, effort)?,
        bytes: (context * layers.at.cache_shape.row_bytes() + kv_up_bytes(mla)) as u64,
        flop: 2 * (mla.num_heads * (visible * head + expanded)) as u64,
    })
}
