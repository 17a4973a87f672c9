//! A folder in, a quantized folder out.
//!
//! The walk: sort the source's tensors into modules, plan every shard, then shard by shard, module by module: find the range, encode bands of rows in
//! parallel, write. One module lies in memory at a time, and pages of the source are given back as soon as they were read. The
//! result depends on source and options alone, not on the number of threads or on interruptions.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::dialect::{self, ModuleNames, Part};
use super::journal::{JOURNAL_FILE, Journal, ShardRecord};
use super::modules::{ModuleClass, partner};
use super::parallel;
use super::recipe::Options;
use super::report::{self, ClassReport, Report};
use super::source::{self, Modules, SourceError, SourceMatrix};
use crate::checkpoint::{
    Checkpoint, CheckpointError, ShardWriter, Target, TensorSpec, WriteError, copy_side_files, write_file,
    write_index,
};
use crate::quant::distortion::Distortion;
use crate::quant::{FormatError, MatrixEncoder, PackedMatrix};
use crate::tensor::{DType, TensorView};

/// Counts changes of the rules that decide the bytes of a result; part of the fingerprint.
const RULES: u32 = 1;
/// Values of a band of rows, unless the format needs more: fits the second-level cache.
const BAND_VALUES: usize = 1 << 16;
/// Bytes copied at a time.
const COPY_BYTES: usize = 8 << 20;

/// Why a folder could not be quantized.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    /// The source has a module that cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The source has a file that cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A module does not fit the format.
    #[error("{module}: {error}; choose other --modules or --format fp8")]
    Format {
        /// Module name.
        module: String,
        /// Why.
        error: FormatError,
    },
    /// Nothing to do.
    #[error("the source has no module that --modules {modules} names")]
    Nothing {
        /// As given.
        modules: &'static str,
    },
    /// The source's config.json is missing or no JSON object.
    #[error("config.json of the source cannot be used: {0}")]
    Config(String),
    /// The folder holds something else.
    #[error(
        "target {target} is not empty ({found} is there) and was not begun by this command with this source and these options ({why}); \
         name another folder or empty it"
    )]
    Foreign {
        /// Target folder.
        target: PathBuf,
        /// A file of it.
        found: String,
        /// What differs.
        why: String,
    },
    /// Writing failed.
    #[error(transparent)]
    Write(#[from] WriteError),
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

/// What becomes of a part of the source.
enum Item<'a> {
    /// A tensor as it is.
    Copy(&'a str),
    /// A matrix, packed.
    Pack(&'a SourceMatrix<'a>),
    /// A matrix that the source has packed and the result has not: BF16.
    Widen(&'a SourceMatrix<'a>),
}

struct ShardPlan<'a> {
    name: &'a str,
    items: Vec<Item<'a>>,
    /// Bytes of the source that go into it.
    source_bytes: u64,
}

/// Quantizes `source` into the folder `target`, on `threads` threads. Takes up what an interrupted run with the same source and
/// options left there.
pub fn quantize(
    source: &Checkpoint,
    target: &Path,
    options: &Options,
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
    let mut journal = take_up(&target, source, options)?;
    let run = Run { source, modules: &modules, options, threads, target: &target };
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
        run.finish(&plan, &config, &names)?;
        // In the order of the source, whatever order the runs made them in.
        let order = |record: &ShardRecord| plan.iter().position(|shard| shard.name == record.name);
        journal.shards.sort_by_key(order);
        journal.complete = true;
        journal.write(&target)?;
    }
    target.close()?;
    let mut classes = Vec::new();
    journal.shards.iter().flat_map(|record| &record.classes).for_each(|c| report::add(&mut classes, c));
    Ok(Report { options: options.describe(), shards: plan.len(), resumed_shards, classes })
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
        add(tensor, Item::Copy(tensor), bytes_of(tensor));
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
fn take_up(target: &Target, source: &Checkpoint, options: &Options) -> Result<Journal, QuantizeError> {
    let fresh = Journal {
        perigee: env!("CARGO_PKG_VERSION").into(),
        options: options.describe(),
        fingerprint: fingerprint(source, options),
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

fn fingerprint(source: &Checkpoint, options: &Options) -> String {
    let config = source.file("config.json").unwrap_or_default();
    let mut hasher = blake3::Hasher::new();
    for field in [&source.fingerprint().into_bytes()[..], options.describe().as_bytes(), &config] {
        hasher.update(&(field.len() as u64).to_le_bytes());
        hasher.update(field);
    }
    hasher.update(&RULES.to_le_bytes());
    hasher.finalize().to_hex().to_string()
}

/// What stays the same over a run.
struct Run<'a> {
    source: &'a Checkpoint,
    modules: &'a Modules<'a>,
    options: &'a Options,
    threads: usize,
    target: &'a Target,
}

/// Shared largest magnitudes by the module that will ask for them next.
type Amaxes = HashMap<String, f32>;

impl Run<'_> {
    /// Tensors of the result that an item becomes.
    fn specs(&self, item: &Item) -> Vec<TensorSpec> {
        match item {
            Item::Copy(name) => {
                let tensor = self.source.tensor(name);
                tensor.map(|t| TensorSpec::new(*name, t.dtype, t.shape)).into_iter().collect()
            }
            Item::Widen(matrix) => {
                vec![TensorSpec::new(format!("{}.weight", matrix.module), DType::Bf16, matrix.shape)]
            }
            Item::Pack(matrix) => dialect::parts(self.options, &matrix.module, matrix.shape)
                .into_iter()
                .map(|(_, spec)| spec)
                .collect(),
        }
    }

    /// Writes one shard. `done` is told the source bytes of each item.
    fn shard(
        &self,
        plan: &ShardPlan,
        amaxes: &mut Amaxes,
        done: &mut dyn FnMut(u64),
    ) -> Result<ShardRecord, QuantizeError> {
        let specs: Vec<TensorSpec> = plan.items.iter().flat_map(|item| self.specs(item)).collect();
        let mut writer = ShardWriter::create(self.target.dir(), plan.name, &specs)?;
        let mut classes = Vec::new();
        for item in &plan.items {
            let one = match item {
                Item::Copy(name) => self.copy(name, &mut writer)?,
                Item::Widen(matrix) => self.widen(matrix, &mut writer)?,
                Item::Pack(matrix) => self.pack(matrix, amaxes, &mut writer)?,
            };
            report::add(&mut classes, &one);
            done(one.bytes_before);
        }
        Ok(ShardRecord { name: plan.name.into(), bytes: writer.finish()?, classes })
    }

    fn copy(&self, name: &str, writer: &mut ShardWriter) -> Result<ClassReport, QuantizeError> {
        let bytes = self.source.tensor(name).map_or(&[][..], |tensor| tensor.bytes);
        for (i, part) in bytes.chunks(COPY_BYTES).enumerate() {
            writer.append(name, part)?;
            self.source.release(name, i * COPY_BYTES..i * COPY_BYTES + part.len());
        }
        let module = name.rsplit_once('.').map_or(name, |(module, _)| module);
        let size = bytes.len() as u64;
        Ok(ClassReport::one(ModuleClass::of(module), "unchanged", size, size, &Distortion::default()))
    }

    fn widen(&self, matrix: &SourceMatrix, writer: &mut ShardWriter) -> Result<ClassReport, QuantizeError> {
        let name = format!("{}.weight", matrix.module);
        let [out, width] = matrix.shape;
        let band = band_rows(width, 1);
        let mut values = vec![0.0; band * width];
        let mut lost = Distortion::default();
        let mut after = 0;
        for first in (0..out).step_by(band) {
            let values = &mut values[..band.min(out - first) * width];
            matrix.read(first, values)?;
            let rounded: Vec<half::bf16> = values.iter().map(|v| half::bf16::from_f32(*v)).collect();
            let widened: Vec<f32> = rounded.iter().map(|v| v.to_f32()).collect();
            lost.add(values, &widened);
            let bytes: Vec<u8> = rounded.iter().flat_map(|v| v.to_le_bytes()).collect();
            after += bytes.len() as u64;
            writer.append(&name, &bytes)?;
        }
        self.release(matrix);
        Ok(ClassReport::one(matrix.class(), "bf16", matrix.bytes, after, &lost))
    }

    fn pack(
        &self,
        matrix: &SourceMatrix,
        amaxes: &mut Amaxes,
        writer: &mut ShardWriter,
    ) -> Result<ClassReport, QuantizeError> {
        let packing = self.options.packing();
        let amax = if packing.needs_amax() { self.shared_amax(matrix, amaxes)? } else { 0.0 };
        let encoder = packing
            .encoder(matrix.shape[1], amax)
            .map_err(|error| QuantizeError::Format { module: matrix.module.clone(), error })?;
        let packed = self.encode(matrix, &encoder)?;
        self.release(matrix);
        let mut after = 0;
        for (part, spec) in dialect::parts(self.options, &matrix.module, matrix.shape) {
            let small = dialect::small_part(part, &encoder, matrix.shape);
            let bytes = match part {
                Part::Codes => &packed.codes,
                Part::Scales => &packed.scales,
                _ => small.as_deref().unwrap_or_default(),
            };
            writer.write(&spec.name, bytes)?;
            after += bytes.len() as u64;
        }
        let format = packing.format().name();
        Ok(ClassReport::one(matrix.class(), format, matrix.bytes, after, &packed.lost))
    }

    /// Largest magnitude of a matrix and of the one that shares its tensor scale, wherever that lies.
    fn shared_amax(&self, matrix: &SourceMatrix, amaxes: &mut Amaxes) -> Result<f32, SourceError> {
        let partner = partner(&matrix.module).and_then(|name| self.modules.matrices.get(&name));
        let Some(partner) = partner else { return self.amax(matrix) };
        // Found once for both, kept until the partner's turn.
        if let Some(amax) = amaxes.remove(&matrix.module) {
            return Ok(amax);
        }
        let amax = self.amax(partner)?;
        self.release(partner);
        let amax = amax.max(self.amax(matrix)?);
        amaxes.insert(partner.module.clone(), amax);
        Ok(amax)
    }

    fn amax(&self, matrix: &SourceMatrix) -> Result<f32, SourceError> {
        let [out, width] = matrix.shape;
        let band = band_rows(width, 1);
        let outcome = Outcome::default();
        parallel::run(self.threads, (0..out).step_by(band).collect(), |first| {
            let mut values = vec![0.0; band.min(out - first) * width];
            match matrix.read(first, &mut values) {
                Ok(amax) => outcome.amax(amax),
                Err(error) => outcome.fail(first, error),
            }
        });
        outcome.result()
    }

    /// Encodes a matrix, in bands of rows.
    fn encode(&self, matrix: &SourceMatrix, encoder: &MatrixEncoder) -> Result<Encoded, SourceError> {
        let [out, width] = matrix.shape;
        let band = band_rows(width, encoder.band_rows());
        let mut codes = vec![0; encoder.code_bytes(out)];
        let mut scales = vec![0; encoder.scale_bytes(out)];
        let mut lost = vec![Distortion::default(); out.div_ceil(band)];
        let mut jobs = Vec::with_capacity(lost.len());
        let (mut codes_left, mut scales_left) = (&mut codes[..], &mut scales[..]);
        for (first, lost) in (0..out).step_by(band).zip(&mut lost) {
            let last = (first + band).min(out);
            let (codes, rest) = codes_left.split_at_mut(encoder.code_bytes(last) - encoder.code_bytes(first));
            codes_left = rest;
            let (scales, rest) =
                scales_left.split_at_mut(encoder.scale_bytes(last) - encoder.scale_bytes(first));
            scales_left = rest;
            jobs.push((first, last - first, codes, scales, lost));
        }
        let outcome = Outcome::default();
        parallel::run(self.threads, jobs, |(first, rows, codes, scales, lost)| {
            let mut values = vec![0.0; rows * width];
            match matrix.read(first, &mut values) {
                Ok(_) => {
                    encoder.encode_rows(&values, codes, scales);
                    *lost = self.distortion(&values, [rows, width], encoder, codes, scales);
                }
                Err(error) => outcome.fail(first, error),
            }
        });
        outcome.result()?;
        // In the order of rows, so that the sum does not depend on the threads.
        let mut sum = Distortion::default();
        lost.iter().for_each(|band| sum.merge(band));
        Ok(Encoded { codes, scales, lost: sum })
    }

    /// What encoding a band lost: decoded as a reader would, compared with what was encoded.
    fn distortion(
        &self,
        values: &[f32],
        shape: [usize; 2],
        encoder: &MatrixEncoder,
        codes: &[u8],
        scales: &[u8],
    ) -> Distortion {
        let packing = self.options.packing();
        let dims = packing.format().scale_shape(shape);
        let scales = TensorView { dtype: packing.scale_dtype(), shape: &dims, bytes: scales };
        let mut lost = Distortion::default();
        if let Ok(packed) = PackedMatrix::new(packing.format(), shape, codes, scales, encoder.tensor_scale())
        {
            let mut row = vec![0.0; shape[1]];
            for (r, values) in values.chunks_exact(shape[1].max(1)).enumerate() {
                packed.row_to_f32(r, &mut row);
                lost.add(values, &row);
            }
        }
        lost
    }

    /// Gives the memory of a matrix back that has been read.
    fn release(&self, matrix: &SourceMatrix) {
        for tensor in &matrix.tensors {
            self.source.release(tensor, 0..usize::MAX);
        }
    }

    /// Everything but the shards.
    fn finish(&self, plan: &[ShardPlan], config: &[u8], names: &ModuleNames) -> Result<(), QuantizeError> {
        let dir = self.target.dir();
        let mut weight_map = BTreeMap::new();
        let mut total_size = 0;
        for shard in plan {
            for spec in shard.items.iter().flat_map(|item| self.specs(item)) {
                total_size += spec.bytes().unwrap_or(0) as u64;
                weight_map.insert(spec.name, shard.name.to_owned());
            }
        }
        copy_side_files(self.source, dir, &["config.json", "hf_quant_config.json", JOURNAL_FILE])?;
        if let Some(value) = dialect::hf_quant_config(self.options, names) {
            write_file(dir, "hf_quant_config.json", format!("{value:#}\n").as_bytes())?;
        }
        write_file(dir, "config.json", config)?;
        write_index(dir, &weight_map, total_size)?;
        Ok(())
    }
}

struct Encoded {
    codes: Vec<u8>,
    scales: Vec<u8>,
    lost: Distortion,
}

/// Rows of a band: a multiple of `unit`, about [`BAND_VALUES`] values, at least one unit.
fn band_rows(width: usize, unit: usize) -> usize {
    (BAND_VALUES / width.max(1) / unit).max(1) * unit
}

/// What parallel jobs found: the largest magnitude, or the error of the first row that has one.
#[derive(Default)]
struct Outcome(Mutex<(f32, Option<(usize, SourceError)>)>);

impl Outcome {
    fn amax(&self, amax: f32) {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        found.0 = found.0.max(amax);
    }

    fn fail(&self, first: usize, error: SourceError) {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if found.1.as_ref().is_none_or(|(row, _)| first < *row) {
            found.1 = Some((first, error));
        }
    }

    fn result(self) -> Result<f32, SourceError> {
        match self.0.into_inner().unwrap_or_else(PoisonError::into_inner) {
            (_, Some((_, error))) => Err(error),
            (amax, None) => Ok(amax),
        }
    }
}
