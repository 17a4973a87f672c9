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
use std::sync::Arc;

use clap::Parser;

use crate::boot;
use crate::config::args::RequestSettings;
use crate::config::args::{BenchArgs, BenchCommand, Command, CommandLine};
use crate::config::{self, Environment};

/// Reads the settings of a request anew. The environment of a process does not change; files that it names do.
fn reload(request: config::LoadRequest) -> boot::Load {
    Box::new(move || config::load(&request, &Environment::from_process()))
}

/// `perigee serve ARGUMENTS` on given devices, whatever `device.backend` says; returns the process's exit code.
pub fn serve_on(devices: Arc<dyn boot::engine::Devices>, arguments: Vec<String>) -> ExitCode {
    let name = ["perigee".to_owned(), "serve".to_owned()];
    match CommandLine::try_parse_from(name.into_iter().chain(arguments)) {
        Ok(CommandLine { command: Command::Serve(args) }) => match commands::load_without_gpu(&args) {
            Ok(loaded) => {
                let devices = boot::engine::GivenDevices(devices);
                boot::serve(loaded, reload(args.request()), Some(devices))
            }
            Err(code) => code,
        },
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            let _ = error.print();
            ExitCode::from(error.exit_code() as u8)
        }
    }
}

/// The name of a model behind `serve`, where other servers take one.
fn model_without_flag(mut arguments: impl Iterator<Item = String>) -> Option<String> {
    (arguments.nth(1)? == "serve").then(|| arguments.next()).flatten().filter(|name| !name.starts_with('-'))
}

/// Runs the command line; returns the process's exit code: 0 done, 1 failed, 2 wrong use or wrong
/// settings, 3 a shutdown cut requests off, 4 a step that never ended.
pub fn main() -> ExitCode {
    let line = match CommandLine::try_parse() {
        Ok(line) => line,
        Err(error) => {
            // Help and version take this path too, with exit code 0.
            let _ = error.print();
            if let Some(model) = model_without_flag(std::env::args()) {
                eprintln!(
                    "\nA checkpoint is given as a folder: perigee serve --model DIR. Nothing is downloaded; \
                     `hf download {model} --local-dir DIR` fetches one from its hub."
                );
            }
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    match line.command {
        Command::Serve(args) => match commands::load_for_this_machine(&args) {
            Ok(loaded) => {
                let request = args.request();
                boot::serve(loaded, reload(request), None)
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
