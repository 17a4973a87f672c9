//! The program `ptx-run`: runs cases and prints one line for each build.

use super::compare::Report;
use super::node::{Failure, NodeBuild, NodeCase, Order, Verdict};
use super::{Build, Case, CaseError, Device, Tolerance, json};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
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
        match AnyCase::load(file) {
            Ok(case) => cases.push(case),
            Err(error) => {
                writeln!(err, "ptx-run: {error}")?;
                not_run += 1;
            }
        }
    }
    let mut total = Total { not_run, ..Total::default() };
    let width = cases.iter().map(|case| case.name().len()).max().unwrap_or(0);
    for case in &cases {
        let mut found = false;
        for (index, arch) in case.archs().into_iter().enumerate() {
            if arguments.arch.as_deref().is_some_and(|wanted| wanted != arch) {
                continue;
            }
            found = true;
            match case.run(index, &arguments.options, &mut device) {
                Ok(outcome) => {
                    total.add(&outcome);
                    print_outcome(case, arch, &outcome, width, out)?;
                }
                Err(error) => {
                    writeln!(err, "ptx-run: {error}")?;
                    total.not_run += 1;
                }
            }
        }
        if !found {
            let arch = arguments.arch.as_deref().unwrap_or("any architecture");
            writeln!(out, "{:width$}  no build for {arch}", case.name())?;
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

/// A case of one launch, or of several, on one device or on several.
enum AnyCase {
    One(Case),
    Several(NodeCase),
}

/// Tells a case of several devices or launches from one of one.
#[derive(Deserialize)]
struct Head {
    devices: Option<usize>,
    #[serde(default)]
    builds: Vec<BuildHead>,
}

#[derive(Deserialize)]
struct BuildHead {
    launches: Option<IgnoredAny>,
}

/// Orders that are tried for what shows only in some.
const MAX_ORDERS: u64 = 64;

impl AnyCase {
    fn load(path: &Path) -> Result<Self, CaseError> {
        let head: Head = json(path)?;
        match head.devices.is_some() || head.builds.iter().any(|build| build.launches.is_some()) {
            true => NodeCase::load(path).map(Self::Several),
            false => Case::load(path).map(Self::One),
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::One(case) => &case.name,
            Self::Several(case) => &case.name,
        }
    }

    fn tolerance(&self) -> Tolerance {
        match self {
            Self::One(case) => case.tolerance,
            Self::Several(case) => case.tolerance,
        }
    }

    /// Architecture of each build.
    fn archs(&self) -> Vec<&str> {
        match self {
            Self::One(case) => case.builds.iter().map(|build| build.arch.as_str()).collect(),
            Self::Several(case) => case.builds.iter().map(|build| build.arch.as_str()).collect(),
        }
    }

    fn run<D: Device>(
        &self,
        index: usize,
        options: &DeviceOptions,
        device: &mut impl FnMut(&DeviceOptions) -> D,
    ) -> Result<Outcome, CaseError> {
        match self {
            Self::One(case) => {
                let build: &Build = &case.builds[index];
                let ptx = case.ptx(build)?;
                Ok(Outcome::of_one(case.run(build, &ptx, &mut device(options))))
            }
            Self::Several(case) => run_several(case, &case.builds[index], options, device),
        }
    }
}

/// Runs a build of several devices, in more orders where what must be found need not show in each.
fn run_several<D: Device>(
    case: &NodeCase,
    build: &NodeBuild,
    options: &DeviceOptions,
    device: &mut impl FnMut(&DeviceOptions) -> D,
) -> Result<Outcome, CaseError> {
    let ptx = case.ptx(build)?;
    let orders = match (case.expect, case.order) {
        (Some(_), Order::Some) => MAX_ORDERS,
        _ => 1,
    };
    let mut time = Duration::ZERO;
    for order in 0..orders {
        let options = DeviceOptions { seed: options.seed.wrapping_add(order), ..*options };
        let mut device = device(&options);
        let Some(node) = device.node(case.devices) else {
            return Ok(Outcome::of_one(Err("the machine has one device".to_owned())));
        };
        let outcome = case.run(build, &ptx, node);
        time += outcome.as_ref().map_or(Duration::ZERO, |(_, time)| *time);
        let (right, mut details) = match case.verdict(&outcome) {
            Verdict::Right => (true, Vec::new()),
            Verdict::NotShown if order + 1 < orders => continue,
            Verdict::NotShown => (false, vec![format!("no {:?} in {orders} orders", case.expect)]),
            Verdict::Wrong(reason) => (false, vec![reason]),
        };
        return Ok(match outcome {
            Ok((report, _)) if right => Outcome { right, ..Outcome::of_one(Ok((report, time))) },
            Ok((report, _)) => {
                let outcome = Outcome::of_one(Ok((report, time)));
                details.extend(outcome.details);
                Outcome { right, details, ..outcome }
            }
            Err(Failure::Race(text) | Failure::Deadlock(text)) if right => {
                Outcome { right, details: vec![format!("found: {text}")], ..Outcome::of_one(Err(text)) }
            }
            Err(_) => Outcome { right, largest: None, time, details },
        });
    }
    Ok(Outcome::of_one(Err("no order was tried".to_owned())))
}

/// What came of a build.
struct Outcome {
    right: bool,
    /// `None` where there is nothing to compare.
    largest: Option<f64>,
    time: Duration,
    /// Lines that say what is wrong, or was found.
    details: Vec<String>,
}

impl Outcome {
    fn of_one(result: Result<(Report, Duration), String>) -> Self {
        match result {
            Ok((report, time)) => {
                let wrong = report.differences.iter().filter(|difference| difference.wrong > 0);
                let details = wrong.map(ToString::to_string);
                let details = details.chain(report.changes.iter().map(ToString::to_string)).collect();
                Self { right: report.is_right(), largest: Some(report.largest()), time, details }
            }
            Err(reason) => Self { right: false, largest: None, time: Duration::ZERO, details: vec![reason] },
        }
    }
}

/// One aligned line, and what is wrong below it.
fn print_outcome(
    case: &AnyCase,
    arch: &str,
    outcome: &Outcome,
    width: usize,
    out: &mut impl Write,
) -> io::Result<()> {
    let largest = match outcome.largest {
        None => "-".to_owned(),
        Some(0.0) => "0".to_owned(),
        Some(largest) => format!("{largest:.2e}"),
    };
    let (name, tolerance) = (case.name(), case.tolerance());
    let verdict = if outcome.right { "ok" } else { "WRONG" };
    let ms = milliseconds(outcome.time);
    writeln!(out, "{name:width$}  {arch:6}  {largest:>8}  {tolerance:11}  {verdict:5}  {ms:>9.1} ms")?;
    for line in outcome.details.iter().flat_map(|detail| detail.lines()) {
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
        self.wrong += usize::from(!outcome.right);
        self.time += outcome.time;
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
