//! Layouts of a network on several devices, and their best possible speed. Pure arithmetic: no
//! file, no device.

use serde::Serialize;

use super::devices::DeviceSet;
use crate::boot::memory_plan::DEVICE_RESERVE_BYTES;
use perigee_cuda::device_needs;
use perigee_model::{Blueprint, ModuleClass};
use perigee_numbers::quant::CachedRowFormat;
use perigee_ops::host::Share;
use perigee_ops::{Activations, AttentionExchange, CacheDtype, Capacity, ContextSplit, Parallelism};

/// Tokens of a block: sizes depend little on it.
const BLOCK_SIZE: usize = 64;

/// Eight bits as the engine stores them by default: a scale of its own for each row, the rope key in bf16.
pub(super) const FP8: CacheDtype = CacheDtype::Fp8(CachedRowFormat { row_scales: true, rope_codes: false });

/// Weights of one use, and whether every device needs all of them when the others are split.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightUse {
    /// Class of the modules.
    pub class: ModuleClass,
    /// Stored bytes.
    pub bytes: f64,
    /// Whether every device needs all of these weights: latent projections, router and norms are
    /// small and every device needs their whole output.
    pub replicated: bool,
}

/// Needs of a draft model, on every device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DraftNeeds {
    /// Stored bytes.
    pub bytes: f64,
    /// Of them those that devices divide: tables and heads of the whole vocabulary.
    pub divided_bytes: f64,
    /// Bytes cached per token.
    pub cached_bytes: usize,
}

/// Inputs of an estimate.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The network.
    pub blueprint: &'a Blueprint,
    /// Weights of the network, by use.
    pub weights: Vec<WeightUse>,
    /// The draft model that runs beside it.
    pub draft: Option<DraftNeeds>,
    /// Devices to split the network over.
    pub devices: DeviceSet,
    /// Element type of the KV cache.
    pub kv: CacheDtype,
    /// Longest context, tokens.
    pub max_model_len: usize,
    /// Tokens of the largest step.
    pub max_num_batched_tokens: usize,
    /// Most sequences that run at once.
    pub max_num_seqs: usize,
    /// Share of a device's memory that may be used.
    pub utilisation: f64,
}

/// A way to split the work over devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Split {
    /// Weights split by heads, experts or columns; every device holds a part of every sequence's cache.
    KvBySequence,
    /// Weights split the same way; every device holds the whole cache.
    KvReplicated,
}

impl Split {
    /// The name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Split::KvBySequence => "KV sharded by sequence (parallel.context = device.ranks)",
            Split::KvReplicated => "KV on every device (parallel.context = 1)",
        }
    }

    /// How ranks share the network then.
    fn parallelism(self) -> Parallelism {
        let context = match self {
            Split::KvBySequence => ContextSplit::Split(AttentionExchange::Heads),
            Split::KvReplicated => ContextSplit::Whole,
        };
        Parallelism { expert_groups: 1, context }
    }
}

/// One layout, per device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LayoutPlan {
    /// The way the work is split.
    pub split: Split,
    /// Bytes per use on each device.
    pub weights: Vec<(&'static str, f64)>,
    /// Activations of the largest step, logits, collective buffers.
    pub workspace_bytes: f64,
    /// Bytes left for the cache; negative where the weights and workspace do not fit.
    pub kv_room_bytes: f64,
    /// Tokens of the cache, over all devices.
    pub kv_tokens: u64,
    /// Sequences of full length that fit at once.
    pub full_contexts: f64,
    /// Whether one sequence of full length fits.
    pub fits: bool,
    /// The reason why the network cannot be split this way; `None` if it can.
    pub obstacle: Option<String>,
    /// Lower bounds on the milliseconds of a decode step by bandwidth: (sequences, context of each,
    /// ms).
    pub decode_floor: Vec<(usize, usize, f64)>,
}

/// All layouts and their assumptions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Estimate {
    /// Devices.
    pub devices: DeviceSet,
    /// Bytes of a device that are used.
    pub usable_bytes: f64,
    /// Bytes of all weights, without a draft model's.
    pub weights_bytes: f64,
    /// Bytes of the cache per token, a draft model's included, on one device that holds it whole.
    pub kv_bytes_per_token: usize,
    /// Longest context, tokens.
    pub max_model_len: usize,
    /// The layouts, the one that serves most full contexts first.
    pub layouts: Vec<LayoutPlan>,
    /// Upper bounds on prefill in tokens per second by arithmetic: at short context, and averaged
    /// over a prompt of full length.
    pub prefill_ceiling: Option<(f64, f64)>,
    /// Assumptions behind the figures.
    pub assumptions: Vec<String>,
    /// Changes that would make the network fit; empty if some layout fits.
    pub remedies: Vec<String>,
}

/// Parameters of every class, (class, parameters, replicated), for a configuration without weights.
pub fn class_parameters(b: &Blueprint) -> Vec<(ModuleClass, f64, bool)> {
    let (m, d) = (&b.mla, b.hidden_size as f64);
    let layers = b.num_layers as f64;
    let dense = b.first_k_dense_replace.min(b.num_layers) as f64;
    let moe = layers - dense;
    let q_out = (m.num_heads * (m.qk_nope_head_dim + m.qk_rope_head_dim)) as f64;
    let (q_split, q_latent) = match b.q_lora_rank {
        Some(q) => (q_out * q as f64, q as f64 * d),
        None => (q_out * d, 0.0),
    };
    let kv_b = (m.num_heads * (m.qk_nope_head_dim + m.v_head_dim) * m.kv_lora_rank) as f64;
    let output = d * (m.num_heads * m.v_head_dim) as f64;
    let expert = 3.0 * b.moe_intermediate_size as f64 * d;
    let experts = b.router.num_experts as f64;
    let table = b.vocab_size as f64 * d;
    let norms = layers * (2.0 * d + (m.kv_lora_rank + b.q_lora_rank.unwrap_or(0)) as f64) + d;
    vec![
        (ModuleClass::Embedding, table, false),
        (ModuleClass::Head, if b.tie_word_embeddings { 0.0 } else { table }, false),
        (ModuleClass::Attention, layers * (q_split + kv_b + output), false),
        (ModuleClass::Attention, layers * (q_latent + m.latent_dim() as f64 * d), true),
        (ModuleClass::DenseFfn, dense * 3.0 * b.intermediate_size as f64 * d, false),
        (ModuleClass::SharedExperts, moe * b.num_shared_experts as f64 * expert, false),
        (ModuleClass::RoutedExperts, moe * experts * expert, false),
        (ModuleClass::Router, moe * experts * d, true),
        (ModuleClass::Norms, norms, true),
    ]
}

impl Estimate {
    /// Computes every layout.
    pub fn new(request: &Request<'_>) -> Self {
        let mut estimate = Self::without_remedies(request);
        if !estimate.layouts.iter().any(|layout| layout.fits) {
            estimate.remedies = remedies(request);
        }
        estimate
    }

    fn without_remedies(request: &Request<'_>) -> Self {
        let device = &request.devices.device;
        let usable_bytes = device.memory_bytes as f64 * request.utilisation;
        let kv_bytes_per_token = kv_bytes_per_token(request);
        let splits = match request.devices.count {
            1 => &[Split::KvReplicated][..],
            _ => &[Split::KvBySequence, Split::KvReplicated],
        };
        let mut layouts: Vec<LayoutPlan> =
            splits.iter().map(|split| layout(request, *split, usable_bytes)).collect();
        layouts.sort_by(|a, b| {
            (b.obstacle.is_none(), b.full_contexts)
                .partial_cmp(&(a.obstacle.is_none(), a.full_contexts))
                .unwrap_or(std::cmp::Ordering::Equal)
        });
        let count = request.devices.count as f64;
        let prefill_ceiling = device.flops.map(|flops| {
            let (linear, core) = flops_per_token(request);
            (count * flops / linear, count * flops / (linear + core * request.max_model_len as f64 / 2.0))
        });
        Self {
            devices: request.devices.clone(),
            usable_bytes,
            weights_bytes: request.weights.iter().map(|use_| use_.bytes).sum(),
            kv_bytes_per_token,
            max_model_len: request.max_model_len,
            layouts,
            prefill_ceiling,
            assumptions: assumptions(request),
            remedies: Vec::new(),
        }
    }

    /// The layout that serves most full contexts.
    pub fn best(&self) -> &LayoutPlan {
        &self.layouts[0]
    }
}

fn kv_bytes_per_token(request: &Request<'_>) -> usize {
    let drafted = request.draft.map_or(0, |draft| draft.cached_bytes);
    request.blueprint.cache_shape(1, 1, request.kv).block_bytes() + drafted
}

fn layout(request: &Request<'_>, split: Split, usable_bytes: f64) -> LayoutPlan {
    let count = request.devices.count as f64;
    let mut weights: Vec<(&'static str, f64)> = Vec::new();
    for use_ in &request.weights {
        let bytes = if !use_.replicated { use_.bytes / count } else { use_.bytes };
        match weights.iter_mut().find(|(name, _)| *name == use_.class.name()) {
            Some((_, sum)) => *sum += bytes,
            None => weights.push((use_.class.name(), bytes)),
        }
    }
    if split == Split::KvBySequence {
        weights.push(("kv_b of other heads", bytes_of_other_heads(request)));
    }
    let draft = |draft: DraftNeeds| draft.bytes - draft.divided_bytes * (1.0 - 1.0 / count);
    weights.extend(request.draft.map(|needs| ("draft model", draft(needs))));
    let workspace_bytes = workspace_bytes(request, split);
    let loaded: f64 = weights.iter().map(|(_, bytes)| bytes).sum();
    let kv_room_bytes = usable_bytes - loaded - workspace_bytes;
    let per_device = (kv_room_bytes.max(0.0) / kv_bytes_per_token(request).max(1) as f64).floor();
    let context = request.max_model_len.max(1) as f64;
    let (kv_tokens, full_contexts) = match split {
        Split::KvBySequence => (per_device * count, per_device * count / context),
        Split::KvReplicated => (per_device, per_device / context),
    };
    let obstacle = obstacle(request);
    let decode_floor = match request.devices.device.bandwidth {
        Some(bandwidth) => {
            let mut points = vec![(1, 1024), (1, request.max_model_len), (16, 32 << 10)];
            points.retain(|(sequences, len)| {
                *len <= request.max_model_len && (*sequences * *len) as f64 <= kv_tokens
            });
            points.dedup();
            let floor = |(sequences, len)| {
                (sequences, len, step_bytes(request, split, sequences, len) / bandwidth * 1e3)
            };
            points.into_iter().map(floor).collect()
        }
        None => Vec::new(),
    };
    LayoutPlan {
        split,
        weights,
        workspace_bytes,
        kv_room_bytes,
        kv_tokens: kv_tokens as u64,
        full_contexts,
        fits: obstacle.is_none() && full_contexts >= 1.0,
        obstacle,
        decode_floor,
    }
}

/// Bytes of one device beside weights and cache: the workspace of the engine's largest step, and the reserve of its memory plan for
/// recordings and for what allocations lose.
fn workspace_bytes(request: &Request<'_>, split: Split) -> f64 {
    let (b, world) = (request.blueprint, request.devices.count);
    let capacity = Capacity {
        max_tokens: request.max_num_batched_tokens,
        max_logits_rows: request.max_num_seqs.min(request.max_num_batched_tokens).min(256),
        max_num_seqs: request.max_num_seqs,
        block_size: BLOCK_SIZE,
        cache_dtype: request.kv,
    };
    let block = b.cache_shape(1, BLOCK_SIZE, request.kv);
    let rank = (world > 1).then(|| (Share { rank: 0, world }, split.parallelism()));
    let needs = device_needs(Activations::Bf16, &b.shape(b.rms_norm_eps), &capacity, &block, rank);
    (needs.workspace_bytes + DEVICE_RESERVE_BYTES) as f64
}

/// Bytes of W_UK and W_UV of the heads of other devices, where each multiplies all heads for its own keys.
fn bytes_of_other_heads(request: &Request<'_>) -> f64 {
    let mla = &request.blueprint.mla;
    let head = (mla.qk_nope_head_dim + mla.v_head_dim) * mla.kv_lora_rank;
    let all = 2.0 * (request.blueprint.num_layers * mla.num_heads * head) as f64;
    all * (1.0 - 1.0 / request.devices.count as f64)
}

/// Bytes one device reads in a decode step of `sequences`, each with `context` tokens. Experts are drawn evenly.
fn step_bytes(request: &Request<'_>, split: Split, sequences: usize, context: usize) -> f64 {
    let count = request.devices.count as f64;
    let router = &request.blueprint.router;
    let experts = router.num_experts as f64;
    let hit = 1.0 - (1.0 - router.top_k as f64 / experts).powi(sequences as i32);
    let weights: f64 = request
        .weights
        .iter()
        .map(|use_| {
            let bytes = if !use_.replicated { use_.bytes / count } else { use_.bytes };
            match use_.class {
                // One row per sequence is too little to count; tied tables are read as the head.
                ModuleClass::Embedding if !request.blueprint.tie_word_embeddings => 0.0,
                // Not read to decode.
                ModuleClass::Vision => 0.0,
                ModuleClass::RoutedExperts => bytes * hit,
                _ => bytes,
            }
        })
        .sum();
    let cache = kv_bytes_per_token(request) as f64 * sequences as f64 * context as f64;
    match split {
        Split::KvReplicated => weights + cache,
        Split::KvBySequence => weights + bytes_of_other_heads(request) + cache / count,
    }
}

/// (arithmetic of all products with weights, arithmetic of attention per token of context) for one token of a prompt.
fn flops_per_token(request: &Request<'_>) -> (f64, f64) {
    let (b, m) = (request.blueprint, &request.blueprint.mla);
    let core = 2 * m.num_heads * (m.qk_nope_head_dim + m.qk_rope_head_dim + m.v_head_dim) * b.num_layers;
    // Logits are needed for the last token of a prompt only.
    let head = b.vocab_size * b.hidden_size;
    (2.0 * (b.active_weights_per_token() - head) as f64, core as f64)
}

fn obstacle(request: &Request<'_>) -> Option<String> {
    let (b, count) = (request.blueprint, request.devices.count);
    let heads = b.mla.num_heads;
    if !heads.is_multiple_of(count) {
        return Some(format!("{heads} heads cannot be split evenly among {count} devices"));
    }
    // By experts, or else by columns in whole groups of a 4-bit format.
    let by_columns = b.moe_intermediate_size.is_multiple_of(32 * count);
    if !b.router.num_experts.is_multiple_of(count) && !by_columns {
        return Some(format!(
            "neither {} experts nor their {} columns in groups of 32 can be split evenly among {count} devices",
            b.router.num_experts, b.moe_intermediate_size
        ));
    }
    None
}

fn assumptions(request: &Request<'_>) -> Vec<String> {
    let device = &request.devices.device;
    let mut list = vec![
        format!(
            "{:.1} GB per device (10^9 bytes), {:.0} % of it used; the rest is left to the driver's context and to others (--utilisation)",
            device.memory_bytes as f64 / 1e9,
            request.utilisation * 100.0
        ),
        format!(
            "workspace: what the engine allocates for steps of {} tokens and {} sequences (--max-num-batched-tokens, --max-num-seqs), and the \
             GiB of a device that its memory plan sets aside; a draft's activations are not in it",
            request.max_num_batched_tokens, request.max_num_seqs
        ),
        format!(
            "KV: {} latent values per token and layer as {}, {} layers: {} bytes",
            request.blueprint.mla.latent_dim(),
            request.kv.name(),
            request.blueprint.num_layers,
            request.blueprint.cache_shape(1, 1, request.kv).block_bytes()
        ),
        "split layouts: latent projections (q_a, kv_a), router and norms on every device, everything else divided evenly; a vision \
         tower whole on every device, without the activations of its images"
            .into(),
    ];
    if let Some(draft) = request.draft {
        list.push(format!(
            "draft model: whole on every device but for table and head of the whole vocabulary, {} bytes of KV per token beside the model's; floors are those of steps without drafts",
            draft.cached_bytes
        ));
    }
    if let (Some(bandwidth), Some(flops)) = (device.bandwidth, device.flops) {
        list.push(format!(
            "floors: {:.1} TB/s and {:.0} bf16 TFLOP/s reachable per device; no communication, no launch cost, experts drawn evenly",
            bandwidth / 1e12,
            flops / 1e12
        ));
    }
    list
}

/// Single changes that would make one full context fit, each tried by the same arithmetic.
fn remedies(request: &Request<'_>) -> Vec<String> {
    let fits =
        |request: &Request<'_>| Estimate::without_remedies(request).layouts.iter().any(|layout| layout.fits);
    let mut list = Vec::new();
    if request.kv == CacheDtype::Bf16 && fits(&Request { kv: FP8, ..request.clone() }) {
        list.push("an FP8 cache: --kv fp8".into());
    }
    let lengths = std::iter::successors(Some(request.max_model_len / 2), |len| Some(len / 2));
    let shorter = lengths
        .take_while(|len| *len >= 4096)
        .find(|len| fits(&Request { max_model_len: *len, ..request.clone() }));
    list.extend(shorter.map(|len| format!("a shorter context: --max-model-len {len}")));
    let parameters: f64 = class_parameters(request.blueprint)
        .iter()
        .filter(|(class, ..)| *class == ModuleClass::RoutedExperts)
        .map(|(_, parameters, _)| parameters)
        .sum();
    let with_routed = |scale: &dyn Fn(f64) -> f64| {
        let mut changed = request.clone();
        let routed = changed.weights.iter_mut().filter(|use_| use_.class == ModuleClass::RoutedExperts);
        routed.for_each(|use_| use_.bytes = scale(use_.bytes));
        changed
    };
    let routed_bytes: f64 = request
        .weights
        .iter()
        .filter(|use_| use_.class == ModuleClass::RoutedExperts)
        .map(|use_| use_.bytes)
        .sum();
    if routed_bytes > parameters * 0.57 && fits(&with_routed(&|_| parameters * 4.5 / 8.0)) {
        list.push("4-bit experts: quantize to nvfp4 (--format nvfp4)".into());
    }
    let experts = request.blueprint.router.num_experts;
    let keep = (request.blueprint.router.top_k..experts).rev().filter(|n| n.is_multiple_of(8)).find(|keep| {
        let mut blueprint = request.blueprint.clone();
        blueprint.router.num_experts = *keep;
        let scaled = with_routed(&|bytes| bytes * *keep as f64 / experts as f64);
        fits(&Request { blueprint: &blueprint, ..scaled })
    });
    list.extend(keep.map(|keep| format!("fewer experts: prune to {keep} of {experts} (--experts {keep})")));
    let more = (request.devices.count + 1..=64).find(|count| {
        let devices = DeviceSet { count: *count, ..request.devices.clone() };
        fits(&Request { devices, ..request.clone() })
    });
    list.extend(more.map(|count| format!("more devices: {count} of {}", request.devices.device.name)));
    if list.is_empty() {
        list.push(
            "no single change is enough; combine fewer experts, a 4-bit format and more devices".into(),
        );
    }
    list
}
