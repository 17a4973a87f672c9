//! Report on a checkpoint: parameters, bytes and formats per module class, missing and unexpected
//! tensors, signs of pruning.
//!
//! Reads headers alone; only the distribution of scales reads data.

use serde::Serialize;

use super::activations;
use super::blueprint::Blueprint;
use super::checkpoint::Checkpoint;
use super::inventory::Inventory;
use super::mtp::MtpLayer;
use super::scale_pass::ScalePass;
use super::tower::{TowerBlueprint, TowerInventory};
use super::weight_names::ModuleClass;

/// Released networks by size: (hidden_size, layers, moe_intermediate_size, routed experts). A
/// checkpoint of the same sizes with fewer experts is pruned.
const RELEASES: [(usize, usize, usize, usize); 2] = [(7168, 61, 2048, 384), (2048, 27, 1408, 64)];

/// Upper bound on the names listed per kind of problem; the counts are exact.
const MAX_NAMES: usize = 1000;

/// Report on a checkpoint.
#[derive(Debug, Clone, Serialize)]
pub struct Inspection {
    /// Folder of the checkpoint, or `(embedded)`.
    pub source: String,
    /// `model_type` of the checkpoint and of its text part.
    pub architecture: [String; 2],
    /// Sizes under their names in `config.json`.
    pub sizes: Vec<(&'static str, usize)>,
    /// Number of weight files.
    pub shards: usize,
    /// Number of tensors.
    pub tensors: usize,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Stored weights of the text network.
    pub parameters: u64,
    /// The part of `parameters` that one token uses (embedding and head included).
    pub active_parameters: u64,
    /// One line per class and format.
    pub classes: Vec<ClassLine>,
    /// Packages that wrote the packed weights, with the number of matrices of each.
    pub dialects: Vec<(String, usize)>,
    /// Quantization declared in `config.json`.
    pub declared: Option<String>,
    /// Number of stored scales of the KV cache.
    pub kv_scales: usize,
    /// Whether `config.json` declares an FP8 KV cache.
    pub kv_cache_declared: bool,
    /// Number of calibrated scales of activations.
    pub input_scales: usize,
    /// Values of `device.activations` in 4-bit floats that the FFNs have weights for.
    pub fp4_activations: Vec<String>,
    /// The vision tower; `None` if the configuration has none.
    pub vision_tower: Option<VisionTower>,
    /// The prediction layer behind the network; `None` without one.
    pub prediction_layer: Option<PredictionLayer>,
    /// Sign of pruning; `None` without one.
    pub pruned: Option<String>,
    /// Distribution of block scales; present only on request.
    pub scales: Option<Vec<ScaleLine>>,
    /// Findings that do not prevent serving.
    pub warnings: Vec<String>,
    /// Whether the checkpoint can be served as it is.
    pub servable: bool,
    /// Reasons against serving.
    pub problems: ProblemLists,
}

/// A layer that `speculation.method` "mtp" drafts with.
#[derive(Debug, Clone, Serialize)]
pub struct PredictionLayer {
    /// Number in the checkpoint.
    pub layer: usize,
    /// Stored bytes; 0 if it cannot draft.
    pub bytes: u64,
    /// Why it cannot draft, one reason per line.
    pub problem: Option<String>,
}

/// Modules of one class in one format.
#[derive(Debug, Clone, Serialize)]
pub struct ClassLine {
    /// Name of the module class.
    pub class: &'static str,
    /// Name of the stored format.
    pub format: String,
    /// Number of linears, or of tensors in a class without linears.
    pub modules: usize,
    /// Number of weights.
    pub parameters: u64,
    /// Stored bytes, scales included.
    pub bytes: u64,
    /// Whether the class is loaded to serve text.
    pub loaded: bool,
}

/// Distribution of the block scales of one class.
#[derive(Debug, Clone, Serialize)]
pub struct ScaleLine {
    /// Name of the module class.
    pub class: &'static str,
    /// Name of the stored format.
    pub format: &'static str,
    /// Number of scales.
    pub count: u64,
    /// Scales that are zero.
    pub zero: u64,
    /// E4M3 scales below 2^-6.
    pub subnormal: u64,
    /// E4M3 scales at 448.
    pub saturated: u64,
    /// Smallest scale above zero.
    pub smallest: f32,
    /// Largest finite scale.
    pub largest: f32,
}

/// Counts, and the first names of each kind.
#[derive(Debug, Clone, Serialize)]
pub struct ProblemLists {
    /// Reason why checkpoint and configuration cannot belong together; `None` if they can.
    pub hopeless: Option<String>,
    /// Number of missing tensors.
    pub num_missing: usize,
    /// First missing tensors.
    pub missing: Vec<String>,
    /// Number of unusable tensors.
    pub num_wrong: usize,
    /// First unusable tensors, with the reason.
    pub wrong: Vec<String>,
    /// Number of unexpected tensors.
    pub num_unexpected: usize,
    /// First unexpected tensors.
    pub unexpected: Vec<String>,
}

impl Inspection {
    /// Reads headers; with `with_scales` also all block scales.
    pub fn new(checkpoint: &Checkpoint, blueprint: &Blueprint, with_scales: bool) -> Self {
        let mut inventory = Inventory::take(checkpoint, blueprint);
        let mut scales = None;
        if with_scales {
            let pass = ScalePass::run(checkpoint, &inventory.linears, true);
            if pass.num_repaired > 0 {
                inventory.warnings.push(format!(
                    "{} NaN or negative scales on empty blocks of {} matrices; they are taken as 1",
                    pass.num_repaired,
                    pass.repaired.len()
                ));
            }
            inventory.problems.wrong.extend(pass.faults);
            let lines = pass.ranges.into_iter().map(|((class, format), range)| ScaleLine {
                class: class.name(),
                format: format.name(),
                count: range.count,
                zero: range.zero,
                subnormal: range.subnormal,
                saturated: range.saturated,
                smallest: range.smallest,
                largest: range.largest,
            });
            scales = Some(lines.collect());
        }
        let b = blueprint;
        let vision_tower = vision_tower(checkpoint, b);
        let holdings = inventory.holdings.iter();
        let classes: Vec<ClassLine> = holdings
            .map(|((class, format), holding)| ClassLine {
                class: class.name(),
                format: format.clone(),
                modules: holding.modules,
                parameters: holding.parameters,
                bytes: holding.bytes,
                loaded: class.is_loaded()
                    || *class == ModuleClass::Vision
                        && vision_tower.as_ref().is_some_and(|tower| tower.is_whole),
            })
            .collect();
        let of_network = |line: &&ClassLine| line.loaded && line.class != ModuleClass::Vision.name();
        let parameters: u64 = classes.iter().filter(of_network).map(|line| line.parameters).sum();
        let is_routed = |line: &&ClassLine| line.class == ModuleClass::RoutedExperts.name();
        let routed: u64 = classes.iter().filter(is_routed).map(|line| line.parameters).sum();
        let chosen = u128::from(routed) * b.router.top_k as u128 / b.router.num_experts as u128;
        let mut dialects = std::collections::BTreeMap::new();
        for linear in inventory.linears.iter().filter(|linear| linear.layout.dialect.format().is_some()) {
            *dialects.entry(linear.layout.dialect).or_insert(0) += 1;
        }
        let sizes = vec![
            ("num_hidden_layers", b.num_layers),
            ("hidden_size", b.hidden_size),
            ("n_routed_experts", b.router.num_experts),
            ("num_experts_per_tok", b.router.top_k),
            ("n_shared_experts", b.num_shared_experts),
            ("num_attention_heads", b.mla.num_heads),
            ("kv_lora_rank", b.mla.kv_lora_rank),
            ("vocab_size", b.vocab_size),
            ("max_position_embeddings", b.max_position_embeddings),
        ];
        let problems = &inventory.problems;
        let first = |list: &[String]| list.iter().take(MAX_NAMES).cloned().collect();
        Self {
            source: checkpoint.source().into(),
            architecture: [b.wrapper_type.clone(), b.model_type.clone()],
            sizes,
            shards: checkpoint.num_shards(),
            tensors: checkpoint.num_tensors(),
            bytes: checkpoint.bytes(),
            parameters,
            active_parameters: parameters - routed + chosen as u64,
            classes,
            dialects: dialects
                .into_iter()
                .map(|(dialect, count)| (format!("{} by {}", dialect.format_name(), dialect.writer()), count))
                .collect(),
            declared: inventory.declared.as_ref().map(|declared| match &declared.algorithm {
                Some(algorithm) => format!("{} {algorithm}", declared.method),
                None => declared.method.clone(),
            }),
            kv_scales: inventory.kv_scales.len(),
            kv_cache_declared: inventory.declared.as_ref().is_some_and(|declared| declared.kv_cache),
            input_scales: inventory.num_input_scales,
            fp4_activations: activations::possible(&inventory.linears, inventory.num_input_scales),
            vision_tower,
            prediction_layer: prediction_layer(checkpoint, b),
            pruned: pruned(b, inventory.experts_stored),
            scales,
            servable: problems.is_empty(),
            problems: ProblemLists {
                hopeless: problems.hopeless.clone(),
                num_missing: problems.missing.len(),
                missing: first(&problems.missing),
                num_wrong: problems.wrong.len(),
                wrong: first(&problems.wrong),
                num_unexpected: problems.unexpected.len(),
                unexpected: first(&problems.unexpected),
            },
            warnings: inventory.warnings,
        }
    }
}

/// The vision tower of a checkpoint.
#[derive(Debug, Clone, Serialize)]
pub struct VisionTower {
    /// Blocks.
    pub blocks: usize,
    /// Width.
    pub hidden_size: usize,
    /// Attention heads.
    pub heads: usize,
    /// Whether all tensors are there, so that images can be served.
    pub is_whole: bool,
    /// What is missing or wrong; empty if nothing is.
    pub problem: String,
}

fn vision_tower(checkpoint: &Checkpoint, blueprint: &Blueprint) -> Option<VisionTower> {
    let config = checkpoint.file("config.json")?;
    let tower = match TowerBlueprint::parse(&config, blueprint) {
        Ok(tower) => tower?,
        Err(error) => {
            let problem = error.to_string();
            return Some(VisionTower { blocks: 0, hidden_size: 0, heads: 0, is_whole: false, problem });
        }
    };
    let problem = match tower.find(checkpoint) {
        Ok(TowerInventory::Whole(_)) if checkpoint.file("preprocessor_config.json").is_none() => {
            "preprocessor_config.json is missing".to_string()
        }
        Ok(TowerInventory::Whole(_)) => String::new(),
        Ok(TowerInventory::Absent | TowerInventory::Dropped) => "its tensors are missing".to_string(),
        Err(error) => error.to_string(),
    };
    let shape = &tower.shape;
    Some(VisionTower {
        blocks: shape.num_layers,
        hidden_size: shape.hidden_size,
        heads: shape.num_heads,
        is_whole: problem.is_empty(),
        problem,
    })
}

/// The layer that method "mtp" would draft with.
fn prediction_layer(checkpoint: &Checkpoint, blueprint: &Blueprint) -> Option<PredictionLayer> {
    let (bytes, problem) = match MtpLayer::find(checkpoint, blueprint, blueprint.rms_norm_eps) {
        Ok(layer) => (layer?.bytes(), None),
        Err(error) => (0, Some(error.to_string())),
    };
    Some(PredictionLayer { layer: blueprint.num_layers, bytes, problem })
}

/// Describes a number of experts below that of the release of the same sizes, or below the
/// configuration's.
fn pruned(b: &Blueprint, stored: usize) -> Option<String> {
    let configured = b.router.num_experts;
    let release = RELEASES.iter().find(|(hidden, layers, width, _)| {
        (*hidden, *layers, *width) == (b.hidden_size, b.num_layers, b.moe_intermediate_size)
    });
    if stored > 0 && stored < configured {
        return Some(format!(
            "only experts 0 to {} are stored, config.json says n_routed_experts {configured}",
            stored - 1
        ));
    }
    let (.., released) = release.filter(|(.., released)| configured < *released)?;
    Some(format!("{configured} of the release's {released} experts are left"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(hidden: usize, layers: usize, width: usize, experts: usize, stored: usize, expected: &str) {
        let config = serde_json::json!({
            "model_type": "kimi_k2", "vocab_size": 512, "hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": 384,
            "moe_intermediate_size": width, "n_routed_experts": experts, "num_experts_per_tok": 4, "num_attention_heads": 4,
            "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "max_position_embeddings": 8192
        });
        let blueprint = Blueprint::parse(config.to_string().as_bytes()).unwrap();
        assert_eq!(pruned(&blueprint, stored).unwrap_or_default(), expected);
    }

    #[test]
    fn fewer_experts_than_the_release_or_than_configured_are_noticed() {
        check(7168, 61, 2048, 384, 384, "");
        check(7168, 61, 2048, 192, 192, "192 of the release's 384 experts are left");
        check(
            7168,
            61,
            2048,
            384,
            192,
            "only experts 0 to 191 are stored, config.json says n_routed_experts 384",
        );
        check(2048, 27, 1408, 32, 32, "32 of the release's 64 experts are left");
        check(256, 3, 64, 16, 16, "");
        check(256, 3, 64, 16, 0, "");
    }
}
