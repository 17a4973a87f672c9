//! `perigee quantize`: options, progress, report; the work is in `compress/`.

use std::path::PathBuf;
use std::process::ExitCode;

use super::commands::EXIT_USAGE;
use super::offline_progress::{OfflineProgress, Unit};
use super::pruning::{OnModel, options, read, with_backend};
use super::work_progress::WorkProgress;
use crate::boot::{BootError, chain};
use crate::config::args::{BackendArg, QuantizeArgs, TextPassArgs};
use perigee_compress::{Calibration, CalibrationRequest, Documents, Options, PassProgress, TextPass};
use perigee_model::checkpoint::Checkpoint;
use perigee_text::Tokenizer;

/// Tokens of a calibration step: enough that each expert's matrices serve several rows.
const STEP_TOKENS: u32 = 256;

/// Writes the folder and prints the loss.
pub(super) fn quantize(args: &QuantizeArgs) -> ExitCode {
    let options = Options::parse(
        &args.format,
        args.scales.as_deref(),
        args.modules.as_deref(),
        args.dialect.as_deref(),
    );
    let calibrated = !args.calibrate.is_empty();
    let options = options.and_then(|options| options.with_calibration(args.kv.as_deref(), calibrated));
    let options = match options {
        Ok(options) => options,
        Err(error) => {
            eprintln!("perigee: {error}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    match run(args, &options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("perigee: {}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn run(args: &QuantizeArgs, options: &Options) -> Result<(), BootError> {
    let source = Checkpoint::open(&args.source)?;
    let threads = match args.threads {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        threads => threads as usize,
    };
    let mut measurement = match args.calibrate.is_empty() {
        true => None,
        false => Some(Measurement::new(args, &source)?),
    };
    let id = measurement.as_ref().map(Measurement::id);
    let mut measure = |id: &str| match &mut measurement {
        Some(measurement) => measurement.run(id),
        None => Err("no calibration text".into()),
    };
    let calibration = id.map(|id| CalibrationRequest { id, measure: &mut measure });
    let mut progress = WorkProgress::new();
    let (mut done, mut resumed) = (0, 0);
    let report =
        perigee_compress::quantize(&source, &args.target, options, calibration, threads, &mut |at| {
            (done, resumed) = (at.done_bytes, at.resumed_bytes);
            let what = format!("shard {} of {} ({})", at.number, at.shards, at.shard);
            progress.at(&what, at.done_bytes, at.resumed_bytes, at.total_bytes);
        })?;
    let seconds = progress.seconds();
    drop(progress);
    let megabytes = (done - resumed) as f64 / 1e6;
    eprintln!(
        "{megabytes:.0} MB of source in {seconds:.1} s, {:.0} MB/s; {} of {} shards were there already",
        megabytes / seconds.max(1e-9),
        report.resumed_shards,
        report.shards
    );
    if args.json {
        println!("{:#}", report.json());
    } else {
        print!("{}", report.table());
    }
    Ok(())
}

/// The texts of `--calibrate` and their run options.
struct Measurement<'a> {
    source: &'a Checkpoint,
    documents: Vec<Documents>,
    pass: TextPassArgs,
}

impl<'a> Measurement<'a> {
    /// Reads the calibration texts.
    fn new(args: &QuantizeArgs, source: &'a Checkpoint) -> Result<Self, BootError> {
        let parse =
            |file: &PathBuf| Ok::<_, BootError>(Documents::parse(&file.display().to_string(), &read(file)?)?);
        let documents = args.calibrate.iter().map(parse).collect::<Result<_, _>>()?;
        let pass = TextPassArgs {
            text: PathBuf::new(),
            context: args.calibrate_context,
            step: STEP_TOKENS,
            max_tokens: Some(args.calibrate_tokens),
            control_tokens: args.control_tokens,
            backend: BackendArg::Auto,
            threads: args.threads as usize,
        };
        Ok(Self { source, documents, pass })
    }

    /// Texts and options in words, as an identifier of the run.
    fn id(&self) -> String {
        let texts: Vec<&str> = self.documents.iter().map(|text| text.fingerprint.as_str()).collect();
        format!(
            "texts {} windows of {} at most {} tokens{}",
            texts.join(" "),
            self.pass.context,
            self.pass.max_tokens.unwrap_or_default(),
            if self.pass.control_tokens { " control tokens" } else { "" }
        )
    }

    fn run(&mut self, id: &str) -> Result<Calibration, BootError> {
        with_backend(&self.pass, self.source, &mut Calibrate { measurement: self, id })
    }
}

struct Calibrate<'a> {
    measurement: &'a Measurement<'a>,
    id: &'a str,
}

impl OnModel for Calibrate<'_> {
    type Out = Calibration;

    fn run<B: perigee_ops::Calibrate>(
        &mut self,
        pass: &mut TextPass<'_, B>,
    ) -> Result<Calibration, BootError> {
        let Measurement { source, documents, pass: args } = self.measurement;
        let tokenizer = Tokenizer::load(&|name: &str| source.file(name).map(|bytes| bytes.into_owned()))?;
        let mut bar = OfflineProgress::new("calibration", Unit::Of("tokens x layers"));
        let mut progress = |p: PassProgress| bar.at(p.done, p.total);
        Ok(perigee_compress::calibrate(pass, &tokenizer, documents, &options(args), self.id, &mut progress)?)
    }
}
