//! The program `ptx-run`: runs cases and prints one line for each build.

use super::compare::Report;
use super::{Build, Case, Device};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

const USAGE: &str = "usage: ptx-run CASE.json... [--arch sm_90] [--seed N] [--async issue|late|random]";

/// What the caller of `ptx-run` asks of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Seed of every choice that the machine may make freely.
    pub seed: u64,
    /// When asynchronous operations take effect.
    pub asynchrony: Asynchrony,
}

/// When asynchronous copies and matrix products read their sources and write their results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Asynchrony {
    /// With the instruction that starts them.
    #[default]
    Issue,
    /// At the wait that needs them, the last moment allowed.
    Late,
    /// At a random moment between the two.
    Random,
}

/// Exit code: every build is right.
pub const ALL_RIGHT: u8 = 0;
/// Exit code: a build is wrong.
pub const SOME_WRONG: u8 = 1;
/// Exit code: bad usage, an unreadable case, or nothing to run.
pub const NOT_RUN: u8 = 2;

struct Arguments {
    files: Vec<PathBuf>,
    arch: Option<String>,
    options: DeviceOptions,
}

/// Runs `ptx-run` with the arguments after the program's name; `device` makes a new machine for each build.
/// Results go to `out`, reasons why something did not run to `err`. Returns the exit code.
pub fn run<D: Device>(
    arguments: impl IntoIterator<Item = String>,
    mut device: impl FnMut(&DeviceOptions) -> D,
    out: &mut impl Write,
    err: &mut impl Write,
) -> io::Result<u8> {
    let arguments = match parse(arguments) {
        Ok(arguments) => arguments,
        Err(reason) => {
            writeln!(err, "ptx-run: {reason}\n{USAGE}")?;
            return Ok(NOT_RUN);
        }
    };
    let mut cases = Vec::new();
    let mut not_run = 0;
    for file in &arguments.files {
        match Case::load(file) {
            Ok(case) => cases.push(case),
            Err(error) => {
                writeln!(err, "ptx-run: {error}")?;
                not_run += 1;
            }
        }
    }
    let mut total = Total { not_run, ..Total::default() };
    let width = cases.iter().map(|case| case.name.len()).max().unwrap_or(0);
    for case in &cases {
        let wanted = |build: &&Build| arguments.arch.as_ref().is_none_or(|arch| *arch == build.arch);
        let mut found = false;
        for build in case.builds.iter().filter(wanted) {
            found = true;
            match case.ptx(build) {
                Ok(ptx) => {
                    let outcome = case.run(build, &ptx, &mut device(&arguments.options));
                    total.add(&outcome);
                    print_outcome(case, build, &outcome, width, out)?;
                }
                Err(error) => {
                    writeln!(err, "ptx-run: {error}")?;
                    total.not_run += 1;
                }
            }
        }
        if !found {
            let arch = arguments.arch.as_deref().unwrap_or("any architecture");
            writeln!(out, "{:width$}  no build for {arch}", case.name)?;
        }
    }
    let Total { builds, wrong, not_run, time } = total;
    let right = builds - wrong;
    writeln!(
        out,
        "{builds} builds: {right} ok, {wrong} wrong, {not_run} not run, {:.1} ms",
        milliseconds(time)
    )?;
    Ok(if not_run > 0 || builds == 0 {
        NOT_RUN
    } else if wrong > 0 {
        SOME_WRONG
    } else {
        ALL_RIGHT
    })
}

type Outcome = Result<(Report, Duration), String>;

/// One aligned line, and what is wrong below it.
fn print_outcome(
    case: &Case,
    build: &Build,
    outcome: &Outcome,
    width: usize,
    out: &mut impl Write,
) -> io::Result<()> {
    let (largest, right, time, details) = match outcome {
        Ok((report, time)) => {
            let wrong = report.differences.iter().filter(|difference| difference.wrong > 0);
            let details = wrong.map(ToString::to_string);
            let details: Vec<_> = details.chain(report.changes.iter().map(ToString::to_string)).collect();
            let largest = match report.largest() {
                0.0 => "0".to_owned(),
                largest => format!("{largest:.2e}"),
            };
            (largest, report.is_right(), *time, details)
        }
        Err(reason) => ("-".to_owned(), false, Duration::ZERO, vec![reason.clone()]),
    };
    let (name, arch, tolerance) = (&case.name, &build.arch, case.tolerance);
    let verdict = if right { "ok" } else { "WRONG" };
    let ms = milliseconds(time);
    writeln!(out, "{name:width$}  {arch:6}  {largest:>8}  {tolerance:11}  {verdict:5}  {ms:>9.1} ms")?;
    for line in details.iter().flat_map(|detail| detail.lines()) {
        writeln!(out, "    {line}")?;
    }
    Ok(())
}

#[derive(Default)]
struct Total {
    builds: usize,
    wrong: usize,
    not_run: usize,
    time: Duration,
}

impl Total {
    fn add(&mut self, outcome: &Outcome) {
        self.builds += 1;
        match outcome {
            Ok((report, time)) => {
                self.wrong += usize::from(!report.is_right());
                self.time += *time;
            }
            Err(_) => self.wrong += 1,
        }
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Arguments, String> {
    let mut files = Vec::new();
    let mut arch = None;
    let mut options = DeviceOptions::default();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--arch" => arch = Some(value()?),
            "--seed" => {
                let text = value()?;
                options.seed = text.parse().map_err(|_| format!("--seed {text} is not a number"))?;
            }
            "--async" => {
                options.asynchrony = match value()?.as_str() {
                    "issue" => Asynchrony::Issue,
                    "late" => Asynchrony::Late,
                    "random" => Asynchrony::Random,
                    other => return Err(format!("--async {other} is not issue, late or random")),
                }
            }
            _ if argument.starts_with('-') => return Err(format!("unknown option {argument}")),
            _ => files.push(PathBuf::from(argument)),
        }
    }
    if files.is_empty() { Err("no case given".to_owned()) } else { Ok(Arguments { files, arch, options }) }
}
