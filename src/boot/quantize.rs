//! `perigee quantize`: options, progress, report; the work is `compress/`'s.

use std::process::ExitCode;

use super::commands::EXIT_USAGE;
use super::progress::WorkProgress;
use super::run::chain;
use crate::checkpoint::Checkpoint;
use crate::compress::{self, Options};
use crate::config::args::QuantizeArgs;

/// Makes the folder, prints what was lost.
pub(super) fn quantize(args: &QuantizeArgs) -> ExitCode {
    let options = Options::parse(
        &args.format,
        args.scales.as_deref(),
        args.modules.as_deref(),
        args.dialect.as_deref(),
    );
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

fn run(args: &QuantizeArgs, options: &Options) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let source = Checkpoint::open(&args.source)?;
    let threads = match args.threads {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        threads => threads as usize,
    };
    let mut progress = WorkProgress::new();
    let (mut done, mut resumed) = (0, 0);
    let report = compress::quantize(&source, &args.target, options, threads, &mut |at| {
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
