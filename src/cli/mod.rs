//! The subcommands: parse the command line, call one function, return its exit code. The boot walk
//! of `perigee serve` is in `boot/`.

mod bench;
mod bench_checkpoint;
mod bench_kernels;
mod bench_vision;
mod client;
mod commands;
mod doctor;
mod health;
mod inspect;
mod kernels;
mod offline_progress;
pub mod plan;
mod prompts;
mod pruning;
mod quantize;
mod top;
mod trust;
mod tune;
mod work_progress;

use std::process::ExitCode;

use clap::Parser;

use crate::boot;
use crate::config::args::RequestSettings;
use crate::config::args::{BenchArgs, BenchCommand, Command, CommandLine};
use crate::config::{self, Environment};

/// Runs the command line; returns the process's exit code: 0 done, 1 failed, 2 wrong use or wrong
/// settings, 3 a shutdown cut requests off, 4 a step that never ended.
pub fn main() -> ExitCode {
    let line = match CommandLine::try_parse() {
        Ok(line) => line,
        Err(error) => {
            // Help and version take this path too, with exit code 0.
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    match line.command {
        Command::Serve(args) => match commands::load_for_this_machine(&args) {
            Ok(loaded) => {
                let request = args.request();
                // The environment of a process does not change; files that it names do.
                boot::serve(loaded, Box::new(move || config::load(&request, &Environment::from_process())))
            }
            Err(code) => code,
        },
        Command::Config(command) => commands::config(&command),
        Command::Bench(BenchArgs { command: Some(BenchCommand::Kernels(args)), .. }) => {
            match commands::load_settings(&args.settings) {
                Ok(loaded) => bench_kernels::bench_kernels(&args, &loaded.settings),
                Err(code) => code,
            }
        }
        Command::Bench(BenchArgs { command: Some(BenchCommand::Vision(args)), .. }) => {
            match commands::load_settings(&args.settings) {
                Ok(loaded) => bench_vision::bench_vision(&args, &loaded.settings),
                Err(code) => code,
            }
        }
        Command::Bench(BenchArgs { command: Some(BenchCommand::Checkpoint(args)), .. }) => {
            bench_checkpoint::bench_checkpoint(&args)
        }
        Command::Bench(args) => match commands::load_settings(&args.settings) {
            Ok(loaded) => bench::bench(&args, &loaded.settings),
            Err(code) => code,
        },
        Command::Health(args) => health::health(&args),
        Command::Top(args) => top::top(&args),
        Command::Version => commands::version(),
        Command::Inspect(args) => inspect::inspect(&args),
        Command::Plan(args) => plan::plan(&args),
        Command::Quantize(args) => quantize::quantize(&args),
        Command::Prune(args) => pruning::prune(&args),
        Command::Audit(args) => pruning::audit(&args),
        Command::Saliency(args) => pruning::saliency(&args),
        Command::Render(args) => prompts::render(&args),
        Command::Parse(args) => prompts::parse(&args),
        Command::Compare(args) => pruning::compare(&args),
        Command::Kernels(command) => kernels::kernels(&command),
        Command::Tune(args) => match commands::load_settings(&args.settings) {
            Ok(loaded) => tune::tune(&args, &loaded.settings),
            Err(code) => code,
        },
        Command::Doctor(args) => doctor::doctor(&args),
    }
}
