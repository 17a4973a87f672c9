//! `perigee prune`, `audit`, `saliency` and `compare`: files and flags in, files and reports out.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use super::offline_progress::{OfflineProgress, Unit};
use crate::boot::{BootError, chain};
use crate::config::args::{
    ActivationPair, AuditArgs, BackendArg, CompareArgs, CriterionArg, PruneArgs, SaliencyArgs, TextPassArgs,
};
use crate::config::device::ActivationsChoice;
use perigee_compress::audit::AuditOutcome;
use perigee_compress::{
    AuditOptions, Comparison, Criterion, Documents, ExpertPlan, PassError, PassOptions, Saliency, SourceId,
    TextPass, expert_layers,
};
use perigee_cpu::{CpuBackend, CpuOptions};
use perigee_model::LoadError;
use perigee_model::checkpoint::Checkpoint;
use perigee_ops::host::reference::ReferenceBackend;
use perigee_ops::{Activations, Calibrate, OpError};
use perigee_text::Tokenizer;

/// Longest plan, saliency or text file, bytes.
const MAX_INPUT_BYTES: u64 = 1 << 30;

/// `perigee prune`.
pub(super) fn prune(args: &PruneArgs) -> ExitCode {
    exit(run_prune(args).map(|()| true))
}

/// `perigee audit`.
pub(super) fn audit(args: &AuditArgs) -> ExitCode {
    exit(run_audit(args))
}

/// `perigee saliency`.
pub(super) fn saliency(args: &SaliencyArgs) -> ExitCode {
    exit(run_saliency(args).map(|()| true))
}

/// `perigee compare`.
pub(super) fn compare(args: &CompareArgs) -> ExitCode {
    exit(run_compare(args).map(|()| true))
}

fn exit(outcome: Result<bool, BootError>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("perigee: {}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn run_prune(args: &PruneArgs) -> Result<(), BootError> {
    let source = Checkpoint::open(&args.source)?;
    let plan = plan_of(args, &source)?;
    if let Some(file) = &args.plan_only {
        write(file, plan.to_json().as_bytes())?;
        println!(
            "{}: keeps {} of {} experts in {} layers by {}",
            file.display(),
            plan.num_kept(),
            plan.num_source(),
            plan.layers().len(),
            plan.criterion().name()
        );
        return Ok(());
    }
    let mut bar = OfflineProgress::new("prune", Unit::Bytes);
    let report = perigee_compress::prune(&source, &plan, &args.target, &mut |p| bar.at(p.done, p.total))?;
    drop(bar);
    if args.json {
        return print(&format!("{:#}\n", serde_json::json!(report)));
    }
    let mut text = String::new();
    report.config_changes.iter().for_each(|change| text.push_str(&format!("config: {change}\n")));
    report
        .files_left_out
        .iter()
        .for_each(|file| text.push_str(&format!("not copied, other weights: {file}\n")));
    text.push_str(&format!(
        "{}: {} of {} experts in {} layers, {} tensors of {}, {:.3} GB of {:.3} GB, {} shards ({} from before), {} files copied\n",
        args.target.display(),
        plan.num_kept(),
        plan.num_source(),
        plan.layers().len(),
        report.tensors[1],
        report.tensors[0],
        report.bytes[1] as f64 / 1e9,
        report.bytes[0] as f64 / 1e9,
        report.shards,
        report.shards_resumed,
        report.files_copied
    ));
    print(&text)
}

/// The plan of the flags, checked against the source.
fn plan_of(args: &PruneArgs, source: &Checkpoint) -> Result<ExpertPlan, BootError> {
    let (id, layers) = (SourceId::of(source), expert_layers(source)?);
    if layers.is_empty() {
        return Err(format!("{} has no routed experts", source.source()).into());
    }
    let plan = match (&args.plan, args.keep, args.criterion) {
        (Some(file), _, _) => read_plan(file)?,
        (None, Some(keep), CriterionArg::Random) => ExpertPlan::random(id.clone(), &layers, keep, args.seed)?,
        (None, Some(keep), criterion) => {
            let Some(file) = &args.saliency else {
                return Err(
                    "criterion reap and frequency need --saliency FILE; collect it with `perigee saliency`"
                        .into(),
                );
            };
            let saliency = read_saliency(file)?;
            if let (Some(theirs), Some(ours)) = (&saliency.source().fingerprint, &id.fingerprint)
                && theirs != ours
            {
                return Err(format!(
                    "{}: was collected on {} (fingerprint {theirs}), not on {} ({ours})",
                    file.display(),
                    saliency.source().name,
                    id.name
                )
                .into());
            }
            let criterion = match criterion {
                CriterionArg::Frequency => Criterion::Frequency,
                _ => Criterion::Reap,
            };
            ExpertPlan::from_saliency(id.clone(), &layers, keep, criterion, &saliency)?
        }
        (None, None, _) => return Err("name a plan with --plan, or a number of experts with --keep".into()),
    };
    plan.check_source(&id, &layers)?;
    Ok(plan)
}

fn run_audit(args: &AuditArgs) -> Result<bool, BootError> {
    let plan = args.plan.as_deref().map(read_plan).transpose()?;
    let options = AuditOptions {
        plan: plan.as_ref(),
        functional_layer: args.layer,
        functional_tokens: args.tokens as usize,
        ..Default::default()
    };
    let mut bar = OfflineProgress::new("audit", Unit::Bytes);
    let report =
        perigee_compress::audit(&args.source, &args.target, &options, &mut |p| bar.at(p.done, p.total))?;
    drop(bar);
    if args.json {
        print(&format!("{:#}\n", serde_json::json!(report)))?;
        eprintln!("{}", report.summary());
    } else {
        print(&report.text())?;
    }
    Ok(report.outcome == AuditOutcome::Passed)
}

fn run_saliency(args: &SaliencyArgs) -> Result<(), BootError> {
    let checkpoint = Checkpoint::open(&args.model)?;
    let more = args.add.iter().map(|file| read_saliency(file)).collect::<Result<Vec<_>, _>>()?;
    let mut saliency = with_backend(&args.pass, &checkpoint, &mut Collect { args, checkpoint: &checkpoint })?;
    more.iter().try_for_each(|other| saliency.merge(other))?;
    let json = saliency.to_json()?;
    match &args.out {
        Some(file) => write(file, json.as_bytes())?,
        None => print(&json)?,
    }
    for coverage in saliency.coverage() {
        let [least, median, most] = coverage.least_median_most;
        let unused = match coverage.unused.len() {
            0 => String::new(),
            count => format!("; {count} unused, their saliency is 0: {:?}", coverage.unused),
        };
        eprintln!(
            "layer {}: {} of {} experts used, tokens per expert {least} to {most}, median {median}{unused}",
            coverage.layer,
            coverage.num_experts - coverage.unused.len(),
            coverage.num_experts
        );
    }
    Ok(())
}

fn run_compare(args: &CompareArgs) -> Result<(), BootError> {
    let b = match (&args.b, &args.activations) {
        (Some(b), _) => b,
        (None, Some(_)) => &args.a,
        (None, None) => {
            return Err("one checkpoint and one form of activations leave nothing to compare: name a second folder, or --activations A,B".into());
        }
    };
    let (a, b) = (Checkpoint::open(&args.a)?, Checkpoint::open(b)?);
    let first = args.activations.map_or(ActivationsChoice::F32, |ActivationPair(first, _)| first);
    let found = with_activations(&args.pass, first, &a, &mut CompareFirst { args, a: &a, b: &b })?;
    match args.json {
        true => print(&format!("{:#}\n", serde_json::json!(found))),
        false => print(&found.text()),
    }
}

/// Work on a model of any backend. May run a second time on another backend.
pub(super) trait OnModel {
    type Out;
    fn run<B: Calibrate>(&mut self, pass: &mut TextPass<'_, B>) -> Result<Self::Out, BootError>;
}

struct Collect<'a> {
    args: &'a SaliencyArgs,
    checkpoint: &'a Checkpoint,
}

impl OnModel for Collect<'_> {
    type Out = Saliency;

    fn run<B: Calibrate>(&mut self, pass: &mut TextPass<'_, B>) -> Result<Saliency, BootError> {
        let (documents, tokenizer) = inputs(&self.args.pass, self.checkpoint)?;
        let layers = self.args.layers.as_ref().map(|layers| &layers.0);
        let mut bar = OfflineProgress::new("saliency", Unit::Of("tokens x layers"));
        let options = options(&self.args.pass);
        Ok(perigee_compress::collect(
            pass,
            self.checkpoint,
            &tokenizer,
            &documents,
            layers,
            &options,
            &mut |p| {
                bar.at(p.done, p.total);
            },
        )?)
    }
}

/// Holds the first model and opens the second.
struct CompareFirst<'a> {
    args: &'a CompareArgs,
    a: &'a Checkpoint,
    b: &'a Checkpoint,
}

impl OnModel for CompareFirst<'_> {
    type Out = Comparison;

    fn run<A: Calibrate>(&mut self, first: &mut TextPass<'_, A>) -> Result<Comparison, BootError> {
        let second = self.args.activations.map_or(ActivationsChoice::F32, |ActivationPair(_, second)| second);
        let both = &mut CompareBoth { args: self.args, a: self.a, first };
        with_activations(&self.args.pass, second, self.b, both)
    }
}

struct CompareBoth<'a, 'c, A: Calibrate> {
    args: &'a CompareArgs,
    a: &'a Checkpoint,
    first: &'a mut TextPass<'c, A>,
}

impl<A: Calibrate> OnModel for CompareBoth<'_, '_, A> {
    type Out = Comparison;

    fn run<B: Calibrate>(&mut self, second: &mut TextPass<'_, B>) -> Result<Comparison, BootError> {
        let (documents, tokenizer) = inputs(&self.args.pass, self.a)?;
        let mut bar = OfflineProgress::new("compare", Unit::Of("tokens x layers"));
        let (options, limit) = (options(&self.args.pass), self.args.limit);
        Ok(perigee_compress::compare(
            self.first,
            second,
            &tokenizer,
            &documents,
            &options,
            limit,
            &mut |p| {
                bar.at(p.done, p.total);
            },
        )?)
    }
}

/// Opens the checkpoint on the backend of the flags and runs the work. Activations are f32, because
/// the results are measurements.
pub(super) fn with_backend<W: OnModel>(
    args: &TextPassArgs,
    checkpoint: &Checkpoint,
    work: &mut W,
) -> Result<W::Out, BootError> {
    with_activations(args, ActivationsChoice::F32, checkpoint, work)
}

/// Opens the checkpoint with these activations and runs the work. Errors: the reference backend computes f32 and 4 bits alone.
fn with_activations<W: OnModel>(
    args: &TextPassArgs,
    activations: ActivationsChoice,
    checkpoint: &Checkpoint,
    work: &mut W,
) -> Result<W::Out, BootError> {
    let options = PassOptions { activations: activations.fp4(), ..options(args) };
    let activations = activations.unless_auto(Activations::F32);
    if args.backend == BackendArg::Reference && activations != Activations::F32 {
        return Err("--activations: the reference backend computes f32, nvfp4, nvfp4x2, nvfp4x3 and mxfp4: take --backend cpu".into());
    }
    if args.backend != BackendArg::Reference {
        let cpu = CpuOptions { threads: args.threads, activations, ..Default::default() };
        let mut pass = TextPass::open(CpuBackend::new(cpu), checkpoint, &options)?;
        match work.run(&mut pass) {
            Err(error) if args.backend == BackendArg::Auto && refused(&error).is_some() => {
                let dtype = refused(&error).unwrap_or_default();
                eprintln!(
                    "the cpu backend does not multiply {dtype} weights: using the reference backend, which is slow"
                );
            }
            outcome => return outcome,
        }
    }
    work.run(&mut TextPass::open(ReferenceBackend, checkpoint, &options)?)
}

/// The format of weights that a backend refused.
fn refused(error: &BootError) -> Option<&str> {
    match error.downcast_ref() {
        Some(PassError::Load(LoadError::Upload {
            source: OpError::UnsupportedDtype { dtype, .. }, ..
        })) => Some(dtype),
        _ => None,
    }
}

pub(super) fn options(args: &TextPassArgs) -> PassOptions {
    PassOptions {
        context: args.context as usize,
        step: args.step as usize,
        max_tokens: args.max_tokens,
        control_tokens: args.control_tokens,
        activations: None,
    }
}

fn inputs(args: &TextPassArgs, checkpoint: &Checkpoint) -> Result<(Documents, Tokenizer), BootError> {
    let documents = Documents::parse(&args.text.display().to_string(), &read(&args.text)?)?;
    let tokenizer = Tokenizer::load(&|name: &str| checkpoint.file(name).map(|bytes| bytes.into_owned()))?;
    Ok((documents, tokenizer))
}

fn read_plan(file: &Path) -> Result<ExpertPlan, BootError> {
    ExpertPlan::parse(&read(file)?).map_err(|e| format!("{}: {e}", file.display()).into())
}

fn read_saliency(file: &Path) -> Result<Saliency, BootError> {
    Saliency::parse(&read(file)?).map_err(|e| format!("{}: {e}", file.display()).into())
}

pub(super) fn read(file: &Path) -> Result<Vec<u8>, BootError> {
    let problem = |e: std::io::Error| format!("{}: {e}", file.display());
    let bytes = std::fs::metadata(file).map_err(problem)?.len();
    if bytes > MAX_INPUT_BYTES {
        return Err(format!(
            "{}: has {bytes} bytes, more than the {MAX_INPUT_BYTES} that are read; split it",
            file.display()
        )
        .into());
    }
    Ok(std::fs::read(file).map_err(problem)?)
}

fn write(file: &Path, bytes: &[u8]) -> Result<(), BootError> {
    Ok(std::fs::write(file, bytes).map_err(|e| format!("{}: {e}", file.display()))?)
}

/// Writes to stdout. A reader that closes its end is no error.
fn print(text: &str) -> Result<(), BootError> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(e.into()),
        _ => Ok(()),
    }
}
