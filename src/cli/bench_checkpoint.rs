//! `perigee bench checkpoint`: a checkpoint to measure a machine with.

use std::process::ExitCode;

use super::commands::print;
use super::work_progress::WorkProgress;
use crate::boot::chain;
use crate::boot::memory_plan::format_bytes;
use crate::config::args::BenchCheckpointArgs;
use perigee_compress::StandIn;

/// Writes the folder.
pub(super) fn bench_checkpoint(args: &BenchCheckpointArgs) -> ExitCode {
    let stand_in = StandIn::kimi_k2(args.moe_layers as usize, args.experts as usize);
    let (folder, total) = (args.folder.display(), stand_in.bytes());
    let mut progress = WorkProgress::new();
    let written = stand_in.write(&args.folder, &mut |done| progress.at("writing", done, 0, total));
    let seconds = progress.seconds();
    drop(progress);
    match written {
        Ok(()) => print(&format!(
            "{folder}: {} in {seconds:.1} s. Measure it with `perigee bench --model {folder}`.\n",
            format_bytes(total)
        )),
        Err(error) => {
            eprintln!("perigee: {}", chain(&error));
            ExitCode::FAILURE
        }
    }
}
