//! `perigee plan`: layouts of a checkpoint, or of a configuration alone, on a set of devices.

mod devices;
mod estimate;

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

pub use devices::{Device, DeviceSet};
use estimate::FP8;
pub use estimate::{DraftNeeds, Estimate, LayoutPlan, Request, Split, WeightUse, class_parameters};

use super::commands::{EXIT_USAGE, print, print_json};
use crate::boot::{BootError, chain, read_blueprint};
use crate::config::args::PlanArgs;
use crate::config::{self, ConfigErrors, Environment, FlagValue, LoadRequest};
use perigee_model::checkpoint::Checkpoint;
use perigee_model::config::KvDtype;
use perigee_model::{
    Blueprint, DraftBlueprint, DraftTensors, Inventory, ModuleClass, MtpLayer, TowerBlueprint, TowerInventory,
};
use perigee_ops::CacheDtype;

/// Bits per weight of the formats that routed experts can be planned in, scales included.
const FORMATS: [(&str, f64); 5] =
    [("nvfp4", 4.5), ("mxfp4", 4.25), ("int4-g32", 4.5), ("fp8", 8.002), ("bf16", 16.0)];

/// Prints the plan. Exit code 0 if a layout fits, 1 if none does, 2 for wrong use.
pub(super) fn plan(args: &PlanArgs) -> ExitCode {
    let choices = match Choices::of(args) {
        Ok(choices) => choices,
        Err(errors) => {
            eprintln!("perigee: {errors}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    if let Err(reason) = check(args, &choices) {
        eprintln!("perigee: {reason}");
        return ExitCode::from(EXIT_USAGE);
    }
    let estimate = match estimate(args, &choices) {
        Ok(estimate) => estimate,
        Err(error) => {
            eprintln!("perigee: {}", chain(&*error));
            return ExitCode::FAILURE;
        }
    };
    let printed = match args.json {
        true => print_json(&serde_json::to_value(&estimate).unwrap_or_default()),
        false => print(&table(&estimate)),
    };
    if estimate.layouts.iter().any(|layout| layout.fits) { printed } else { ExitCode::FAILURE }
}

/// Lengths, sequences, cache type and share of the memory of a plan, by its flags or else by its profile.
struct Choices {
    kv: CacheDtype,
    max_model_len: Option<usize>,
    max_num_batched_tokens: usize,
    max_num_seqs: usize,
    utilisation: f64,
    /// Devices of the profile.
    ranks: Option<usize>,
}

impl Choices {
    /// Errors: a profile that is not there or is wrong.
    fn of(args: &PlanArgs) -> Result<Self, ConfigErrors> {
        let mut choices = Self {
            kv: FP8,
            max_model_len: None,
            max_num_batched_tokens: 2048,
            max_num_seqs: 256,
            utilisation: 0.99,
            ranks: None,
        };
        if let Some(profile) = &args.profile {
            let model = args.model.display().to_string();
            let flag =
                |key: &str, value: String| FlagValue { key: key.into(), value, flag: "--profile".into() };
            let draft = match &args.draft {
                Some(folder) => flag("speculation.draft", folder.display().to_string()),
                None => flag("speculation.method", "off".into()),
            };
            let flags = vec![flag("model.path", model), draft];
            let request = LoadRequest { config: None, profile: Some(profile.clone()), flags };
            let settings = config::load(&request, &Environment::from_process())?.settings;
            let scheduler = &settings.scheduler;
            choices = Self {
                kv: if settings.kv_cache.dtype == KvDtype::Fp8 { FP8 } else { CacheDtype::Bf16 },
                max_model_len: Some(scheduler.max_model_len).filter(|len| *len > 0),
                max_num_batched_tokens: scheduler.max_num_batched_tokens,
                max_num_seqs: scheduler.max_num_seqs,
                utilisation: settings.device.memory_utilization.min(choices.utilisation),
                ranks: Some(settings.device.ranks),
            };
        }
        Ok(Self {
            kv: match args.kv.as_deref() {
                None => choices.kv,
                Some("fp8") => FP8,
                Some(_) => CacheDtype::Bf16,
            },
            max_model_len: args.max_model_len.or(choices.max_model_len),
            max_num_batched_tokens: args.max_num_batched_tokens.unwrap_or(choices.max_num_batched_tokens),
            max_num_seqs: args.max_num_seqs.unwrap_or(choices.max_num_seqs),
            utilisation: args.utilisation.unwrap_or(choices.utilisation),
            ranks: choices.ranks,
        })
    }
}

fn check(args: &PlanArgs, choices: &Choices) -> Result<(), String> {
    let devices = DeviceSet::parse(&args.devices)?;
    if let (Some(profile), Some(ranks)) = (&args.profile, choices.ranks)
        && ranks != devices.count
    {
        return Err(format!(
            "--devices {:?} are {}, and profile {profile} has device.ranks = {ranks}",
            args.devices, devices.count
        ));
    }
    if let Some(format) = &args.format
        && !FORMATS.iter().any(|(name, _)| name == format)
    {
        let names: Vec<&str> = FORMATS.iter().map(|(name, _)| *name).collect();
        return Err(format!("--format {format:?} is not known: expected {}", names.join(", ")));
    }
    if let Some(kv) = args.kv.as_deref().filter(|kv| !["fp8", "bf16"].contains(kv)) {
        return Err(format!("--kv {kv:?} is not known: expected fp8 or bf16"));
    }
    if !(choices.utilisation > 0.0 && choices.utilisation <= 1.0) {
        return Err(format!("--utilisation {} must be above 0 and at most 1", choices.utilisation));
    }
    for (flag, value) in [
        ("--max-num-batched-tokens", choices.max_num_batched_tokens),
        ("--max-num-seqs", choices.max_num_seqs),
        ("--max-model-len", choices.max_model_len.unwrap_or(1)),
        ("--experts", args.experts.unwrap_or(1)),
    ] {
        if !(1..=1 << 26).contains(&value) {
            return Err(format!("{flag} {value} must be from 1 to {}", 1 << 26));
        }
    }
    Ok(())
}

fn estimate(args: &PlanArgs, choices: &Choices) -> Result<Estimate, BootError> {
    let kv = choices.kv;
    let (mut blueprint, mut weights, prediction) = match args.model.is_file() {
        true => {
            let blueprint = Blueprint::parse(&read_config(args)?)?;
            let weights = plain_weights(&blueprint);
            (blueprint, weights, None)
        }
        false => {
            let checkpoint = Checkpoint::open(&args.model)?;
            let blueprint = read_blueprint(&checkpoint)?;
            let inventory = Inventory::take(&checkpoint, &blueprint);
            // Such a layer that is not complete does not draft.
            let layer = MtpLayer::find(&checkpoint, &blueprint, blueprint.rms_norm_eps).ok().flatten();
            let prediction = layer.map(|layer| DraftNeeds {
                bytes: layer.bytes() as f64,
                divided_bytes: layer.bytes() as f64,
                cached_bytes: layer.cache_shape(1, 1, kv).block_bytes(),
            });
            let mut weights = stored_weights(&inventory);
            let config = checkpoint.file("config.json").unwrap_or_default();
            if let Some(tower) = TowerBlueprint::parse(&config, &blueprint)?
                && let TowerInventory::Whole(bytes) = tower.find(&checkpoint)?
            {
                weights.push(WeightUse { class: ModuleClass::Vision, bytes: bytes as f64, replicated: true });
            }
            (blueprint, weights, prediction)
        }
    };
    let experts = blueprint.router.num_experts;
    if let Some(keep) = args.experts {
        if keep > experts || keep < blueprint.router.top_k {
            let top_k = blueprint.router.top_k;
            return Err(
                format!("--experts {keep} must be from {top_k} (num_experts_per_tok) to {experts}").into()
            );
        }
        blueprint.router.num_experts = keep;
        let per_expert = [ModuleClass::RoutedExperts, ModuleClass::Router];
        for use_ in weights.iter_mut().filter(|use_| per_expert.contains(&use_.class)) {
            use_.bytes *= keep as f64 / experts as f64;
        }
    }
    if let Some((_, bits)) = args.format.as_ref().and_then(|name| FORMATS.iter().find(|f| f.0 == name)) {
        weights.retain(|use_| use_.class != ModuleClass::RoutedExperts);
        for (class, parameters, replicated) in class_parameters(&blueprint) {
            if class == ModuleClass::RoutedExperts {
                weights.push(WeightUse { class, bytes: parameters * bits / 8.0, replicated });
            }
        }
    }
    let request = Request {
        blueprint: &blueprint,
        weights,
        draft: match &args.draft {
            Some(folder) => Some(draft_needs(folder, &blueprint, kv)?),
            None => prediction,
        },
        devices: DeviceSet::parse(&args.devices)?,
        kv,
        max_model_len: choices.max_model_len.unwrap_or(blueprint.max_position_embeddings),
        max_num_batched_tokens: choices.max_num_batched_tokens,
        max_num_seqs: choices.max_num_seqs,
        utilisation: choices.utilisation,
    };
    Ok(Estimate::new(&request))
}

/// What the draft of a folder adds.
fn draft_needs(folder: &Path, target: &Blueprint, kv: CacheDtype) -> Result<DraftNeeds, BootError> {
    let checkpoint = Checkpoint::open(folder)?;
    let config = checkpoint.read_file("config.json")?;
    let config = config.ok_or_else(|| format!("{} has no config.json", checkpoint.source()))?;
    let named = |error: &dyn std::error::Error| format!("--draft {}: {error}", folder.display());
    let draft = DraftBlueprint::parse(&config).map_err(|error| named(&error))?;
    draft.check(target).map_err(|error| named(&error))?;
    let bytes = DraftTensors::take(&checkpoint, &draft).bytes as f64;
    let divided_bytes = draft.divided_bytes(&checkpoint) as f64;
    Ok(DraftNeeds { bytes, divided_bytes, cached_bytes: draft.cached_bytes(kv) })
}

/// Reads a `config.json` that stands alone, with the checks of one in a folder.
fn read_config(args: &PlanArgs) -> Result<Vec<u8>, BootError> {
    const MAX_BYTES: u64 = 16 << 20;
    let path = &args.model;
    let named = |error: std::io::Error| format!("{}: {error}", path.display());
    let size = std::fs::metadata(path).map_err(named)?.len();
    if size > MAX_BYTES {
        return Err(format!(
            "{}: has {size} bytes, more than the {MAX_BYTES} that are parsed",
            path.display()
        )
        .into());
    }
    Ok(std::fs::read(path).map_err(named)?)
}

/// Weights in BF16, the selection bias in F32.
pub fn plain_weights(blueprint: &Blueprint) -> Vec<WeightUse> {
    let mut weights: Vec<WeightUse> = class_parameters(blueprint)
        .into_iter()
        .map(|(class, parameters, replicated)| WeightUse { class, bytes: parameters * 2.0, replicated })
        .collect();
    let moe = blueprint.num_layers - blueprint.first_k_dense_replace.min(blueprint.num_layers);
    let bias = (moe * blueprint.router.num_experts * 4) as f64;
    weights.push(WeightUse { class: ModuleClass::Router, bytes: bias, replicated: true });
    weights
}

/// Stored bytes by class.
fn stored_weights(inventory: &Inventory) -> Vec<WeightUse> {
    let latent: f64 = inventory
        .linears
        .iter()
        .filter(|linear| linear.name.ends_with(".q_a_proj") || linear.name.ends_with(".kv_a_proj_with_mqa"))
        .map(|linear| linear.layout.bytes as f64)
        .sum();
    let mut weights = vec![WeightUse { class: ModuleClass::Attention, bytes: latent, replicated: true }];
    for (class, bytes) in inventory.loaded_bytes() {
        let replicated = matches!(class, ModuleClass::Router | ModuleClass::Norms);
        let bytes = bytes as f64 - if class == ModuleClass::Attention { latent } else { 0.0 };
        weights.push(WeightUse { class, bytes, replicated });
    }
    weights
}

/// The plan as text.
fn table(estimate: &Estimate) -> String {
    let mut text = String::new();
    let gb = |bytes: f64| format!("{:.2} GB", bytes / 1e9);
    let set = &estimate.devices;
    let _ = writeln!(
        text,
        "{} x {}: {} of weights, {} usable per device, context {}",
        set.count,
        set.device.name,
        gb(estimate.weights_bytes),
        gb(estimate.usable_bytes),
        estimate.max_model_len
    );
    for layout in &estimate.layouts {
        let verdict = match (&layout.obstacle, layout.fits) {
            (Some(obstacle), _) => format!("impossible: {obstacle}"),
            (None, true) => "fits".into(),
            (None, false) => "does not fit".into(),
        };
        let _ = writeln!(text, "\n{}: {verdict}", layout.split.name());
        let mut row = |name: &str, value: String| {
            let _ = writeln!(text, "  {name:<24} {value:>12}");
        };
        let total: f64 = layout.weights.iter().map(|(_, bytes)| bytes).sum();
        row("weights per device", gb(total));
        layout.weights.iter().for_each(|(name, bytes)| row(&format!("  {name}"), gb(*bytes)));
        row("workspace", gb(layout.workspace_bytes));
        row("left for KV", gb(layout.kv_room_bytes));
        row("KV tokens", layout.kv_tokens.to_string());
        row("full contexts at once", format!("{:.2}", layout.full_contexts));
        for (sequences, context, ms) in &layout.decode_floor {
            let rate = *sequences as f64 * 1e3 / ms;
            row(&format!("limit, {sequences} x {context}"), format!("{ms:.2} ms a step, {rate:.0} tokens/s"));
        }
    }
    if let Some((short, long)) = estimate.prefill_ceiling {
        let _ = writeln!(
            text,
            "\nlimit of prompts: {short:.0} tokens/s at short context, {long:.0} over a prompt of full length"
        );
        let measured = set.device.measured.unwrap_or("nothing on such a device");
        let _ = writeln!(text, "measured: {measured}");
    }
    if !estimate.remedies.is_empty() {
        let _ = writeln!(text, "\nnothing fits; what would help:");
        for remedy in &estimate.remedies {
            let _ = writeln!(text, "  {remedy}");
        }
    }
    let _ = writeln!(text, "\nassumed:");
    for assumption in &estimate.assumptions {
        let _ = writeln!(text, "  {assumption}");
    }
    text
}

#[cfg(test)]
mod tests;
