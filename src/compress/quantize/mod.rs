//! A folder in, a quantized folder out.
//!
//! The walk: sort the source's tensors into modules, plan every shard, measure activations on request, then
//! encode shard by shard (`shard.rs`). The result depends on source, options and calibration texts alone, not
//! on the number of threads or on interruptions.

pub mod dialect;
mod error;
mod journal;
mod parallel;
pub mod recipe;
pub mod report;
mod shard;
mod source;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

pub use error::{MeasureError, QuantizeError};

use crate::calibrate::calibration::{CALIBRATION_FILE, Calibration};
use dialect::ModuleNames;
use journal::{JOURNAL_FILE, Journal, ShardRecord};
use perigee_model::checkpoint::{Checkpoint, Target, copy_side_files, write_file, write_index};
use perigee_model::expert_names::layer_of;
use perigee_model::{ModuleClass, is_kv_scale};
use recipe::{KvCache, Options};
use report::Report;
use shard::{Item, Run, ShardPlan};
use source::Modules;

/// Counts changes of the rules that decide the bytes of a result; part of the fingerprint.
const RULES: u32 = 1;

/// A measurement of activations to be made, unless an interrupted run made it.
pub struct CalibrationRequest<'a> {
    /// Texts and options in words; equal words mean an equal result.
    pub id: String,
    /// Makes it; the result has the same `id`.
    pub measure: &'a mut dyn FnMut(&str) -> Result<Calibration, MeasureError>,
}

/// Where a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    /// Shard being made.
    pub shard: &'a str,
    /// Its number, from 1.
    pub number: usize,
    /// Shards in all.
    pub shards: usize,
    /// Source bytes done, those of shards taken up included.
    pub done_bytes: u64,
    /// Source bytes of shards taken up from an interrupted run.
    pub resumed_bytes: u64,
    /// Source bytes in all.
    pub total_bytes: u64,
}

/// Quantizes `source` into the folder `target`, on `threads` threads. Takes up what an interrupted run with the same source, options and calibration
/// left there.
pub fn quantize(
    source: &Checkpoint,
    target: &Path,
    options: &Options,
    calibration: Option<CalibrationRequest<'_>>,
    threads: usize,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Report, QuantizeError> {
    let modules = source::modules(source)?;
    check(&modules, options)?;
    let plan = plan(source, &modules, options);
    let names = module_names(source, &modules, options);
    let config =
        source.read_file("config.json")?.ok_or_else(|| QuantizeError::Config("it is not there".into()))?;
    let config = dialect::rewrite_config(&config, dialect::quantization_config(options, &names))
        .map_err(QuantizeError::Config)?;

    let target = Target::open(target, source)?;
    let described = match &calibration {
        None => options.describe(),
        Some(request) => format!("{} calibrated on {}", options.describe(), request.id),
    };
    let mut journal = take_up(&target, source, described)?;
    let calibration = calibration.map(|request| measured(&target, request)).transpose()?;
    let calibration = calibration.as_ref();
    let run = Run { source, modules: &modules, options, threads, target: &target, calibration };
    let mut at = Progress {
        shard: "",
        number: 0,
        shards: plan.len(),
        done_bytes: 0,
        resumed_bytes: 0,
        total_bytes: plan.iter().map(|shard| shard.source_bytes).sum(),
    };
    let mut amaxes = HashMap::new();
    let mut resumed_shards = 0;
    for (number, shard) in plan.iter().enumerate() {
        (at.shard, at.number) = (shard.name, number + 1);
        if journal.finished(&target, shard.name).is_some() {
            resumed_shards += 1;
            at.done_bytes += shard.source_bytes;
            at.resumed_bytes += shard.source_bytes;
            progress(&at);
            continue;
        }
        let record = run.shard(shard, &mut amaxes, &mut |bytes| {
            at.done_bytes += bytes;
            progress(&at);
        })?;
        journal.shards.retain(|record| record.name != shard.name);
        journal.shards.push(record);
        journal.write(&target)?;
    }
    if !journal.complete {
        finish(&run, &plan, &config, &names)?;
        // In the order of the source, whatever order the runs made them in.
        let order = |record: &ShardRecord| plan.iter().position(|shard| shard.name == record.name);
        journal.shards.sort_by_key(order);
        journal.complete = true;
        journal.write(&target)?;
    }
    let mut classes = Vec::new();
    journal.shards.iter().flat_map(|record| &record.classes).for_each(|c| report::add(&mut classes, c));
    let calibration = calibration.map(Calibration::report);
    Ok(Report { options: journal.options, shards: plan.len(), resumed_shards, classes, calibration })
}

/// Whether every chosen module fits the format, before anything is written.
fn check(modules: &Modules, options: &Options) -> Result<(), QuantizeError> {
    let mut chosen = modules.matrices.values().filter(|m| options.modules().has(m.class())).peekable();
    if chosen.peek().is_none() {
        return Err(QuantizeError::Nothing { modules: options.modules().name() });
    }
    for matrix in chosen {
        options
            .packing()
            .encoder(matrix.shape[1], 1.0)
            .map_err(|error| QuantizeError::Format { module: matrix.module.clone(), error })?;
    }
    Ok(())
}

/// What goes into each shard. Shards keep their names; one that has nothing left is not written.
fn plan<'a>(source: &'a Checkpoint, modules: &'a Modules<'a>, options: &Options) -> Vec<ShardPlan<'a>> {
    let mut items: BTreeMap<&str, (Vec<Item>, u64)> = BTreeMap::new();
    let bytes_of = |name: &str| source.tensor(name).map_or(0, |t| t.bytes.len() as u64);
    let mut add = |tensor: &str, item, bytes| {
        if let Some(shard) = source.shard_of(tensor) {
            let (items, total) = items.entry(shard).or_default();
            items.push(item);
            *total += bytes;
        }
    };
    for matrix in modules.matrices.values() {
        if options.modules().has(matrix.class()) {
            add(&matrix.main_tensor(), Item::Pack(matrix), matrix.bytes);
        } else if matrix.is_packed() {
            add(&matrix.main_tensor(), Item::Widen(matrix), matrix.bytes);
        } else {
            for tensor in &matrix.tensors {
                add(tensor, Item::Copy(tensor), bytes_of(tensor));
            }
        }
    }
    for tensor in &modules.others {
        // Scales of the source's own cache would contradict what is said now.
        if options.kv() == KvCache::None || !is_kv_scale(tensor) {
            add(tensor, Item::Copy(tensor), bytes_of(tensor));
        }
    }
    if options.kv() == KvCache::Calibrated {
        for matrix in modules.matrices.values() {
            if let Some((attention, "kv_a_proj_with_mqa")) = matrix.module.rsplit_once('.')
                && let Some((_, layer)) = layer_of(attention)
            {
                add(&matrix.main_tensor(), Item::KvScales { attention, layer }, 0);
            }
        }
    }
    source
        .shard_names()
        .filter_map(|name| {
            let (items, source_bytes) = items.remove(name)?;
            Some(ShardPlan { name, items, source_bytes })
        })
        .collect()
}

/// The names that the configuration lists.
fn module_names(source: &Checkpoint, modules: &Modules, options: &Options) -> ModuleNames {
    let mut names = ModuleNames::default();
    for (module, matrix) in &modules.matrices {
        let class = matrix.class();
        let list = if options.modules().has(class) {
            &mut names.packed
        } else if class == ModuleClass::Embedding {
            &mut names.embeddings
        } else {
            &mut names.plain
        };
        list.insert(module.clone());
    }
    // Weights of more dimensions than two: convolutions, stacks.
    for tensor in &modules.others {
        if let Some(module) = tensor.strip_suffix(".weight")
            && source.tensor(tensor).is_some_and(|t| t.shape.len() > 2)
        {
            names.embeddings.insert(module.to_owned());
        }
    }
    names
}

/// The journal to go on with: that of an interrupted run, or a new one in an empty folder.
fn take_up(target: &Target, source: &Checkpoint, options: String) -> Result<Journal, QuantizeError> {
    let fresh = Journal {
        perigee: env!("CARGO_PKG_VERSION").into(),
        fingerprint: fingerprint(source, &options),
        options,
        complete: false,
        shards: Vec::new(),
    };
    let entries = target.entries()?;
    let Some(found) = entries.first() else {
        fresh.write(target)?;
        return Ok(fresh);
    };
    let foreign =
        |why: String| QuantizeError::Foreign { target: target.dir().to_owned(), found: found.clone(), why };
    match Journal::read(target)? {
        None => Err(foreign(format!("no readable {JOURNAL_FILE}"))),
        Some(journal) if journal.options != fresh.options => {
            Err(foreign(format!("it was begun as: {}", journal.options)))
        }
        Some(journal) if journal.fingerprint != fresh.fingerprint => {
            Err(foreign("the source, its dates or the program changed since".into()))
        }
        Some(journal) => Ok(journal),
    }
}

fn fingerprint(source: &Checkpoint, options: &str) -> String {
    let config = source.file("config.json").unwrap_or_default();
    let mut hasher = blake3::Hasher::new();
    for field in [&source.fingerprint().into_bytes()[..], options.as_bytes(), &config] {
        hasher.update(&(field.len() as u64).to_le_bytes());
        hasher.update(field);
    }
    hasher.update(&RULES.to_le_bytes());
    hasher.finalize().to_hex().to_string()
}

/// What an interrupted run measured, or a new measurement, which is kept for the next.
fn measured(target: &Target, request: CalibrationRequest<'_>) -> Result<Calibration, QuantizeError> {
    let found = target.read(CALIBRATION_FILE, Calibration::max_bytes())?;
    if let Some(found) = found.and_then(|bytes| Calibration::parse(&bytes, &request.id)) {
        return Ok(found);
    }
    let made = (request.measure)(&request.id).map_err(QuantizeError::Calibration)?;
    write_file(target.dir(), CALIBRATION_FILE, made.to_json().as_bytes())?;
    Ok(made)
}

/// Everything but the shards.
fn finish(run: &Run, plan: &[ShardPlan], config: &[u8], names: &ModuleNames) -> Result<(), QuantizeError> {
    let dir = run.target.dir();
    let mut weight_map = BTreeMap::new();
    let mut total_size = 0;
    for shard in plan {
        for spec in shard.items.iter().flat_map(|item| run.specs(item)) {
            total_size += spec.bytes().unwrap_or(0) as u64;
            weight_map.insert(spec.name, shard.name.to_owned());
        }
    }
    copy_side_files(
        run.source,
        dir,
        &["config.json", "hf_quant_config.json", JOURNAL_FILE, CALIBRATION_FILE],
    )?;
    if let Some(value) = dialect::hf_quant_config(run.options, names) {
        write_file(dir, "hf_quant_config.json", format!("{value:#}\n").as_bytes())?;
    }
    write_file(dir, "config.json", config)?;
    write_index(dir, &weight_map, total_size)?;
    Ok(())
}
