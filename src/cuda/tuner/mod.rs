//! Chooses among the variants of a product on the device that will run it: numerics first, then time.
//!
//! All variants of a product give the same bits on a device that works, so a choice changes speed and never a
//! result; a candidate that gives other bits on this device is refused and not used. A candidate replaces the
//! shipped default only where it is faster by more than [`MARGIN`]: near-ties do not flap, and two machines
//! agree. The vendor's products have bits of their own (`vendor.rs`), and are measured where the settings
//! allow them.
//!
//! `table.rs` keeps all measurements in the folder of the kernel cache, `choices.rs` answers the backend.
//! `kernel_times.rs` measures without choosing.

mod op;
mod candidate;
mod problem;
mod numerics;
mod timing;
mod vendor;
mod measurement;
mod table;
mod choices;
mod kernel_times;

use std::time::{Duration, Instant};

pub use candidate::Candidate;
pub use choices::Choices;
pub use kernel_times::{BenchSizes, KernelTime, KernelTimes, kernel_times};
pub use measurement::{Measurement, Tried};
pub use op::{Bucket, Product, TunedOp};
pub use table::{Identity, Lost, Table};

use super::kernels::fp4;
use super::kernels::tiled::Variant;
use super::{Arch, Driver, DriverError, Stream};
use numerics::{Output, Verdict};
use perigee_ops::OpError;
use problem::Problem;

/// Share of the default's time that a candidate must gain.
pub const MARGIN: f64 = 0.03;

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Effort {
    /// Most bytes of weights of an op; a larger op is measured with fewer experts or outputs.
    pub max_weight_bytes: usize,
    /// Bytes of weights that launches rotate over.
    pub rotation_bytes: usize,
    /// Bytes of a copy on the device whose speed is the floor.
    pub copy_bytes: usize,
    /// Most copies of the weights.
    pub max_copies: usize,
    /// Blocks of each candidate.
    pub blocks: usize,
    /// Least time of a block.
    pub block_time: Duration,
    /// Whether the vendor's products are measured too, where they may be used.
    pub vendor: bool,
}

impl Effort {
    /// For a GPU. A copy of a quarter of a gibibyte would run at three quarters of the memory's speed (H200). The largest L2 cache of a GPU of today is 128 MB (RTX PRO 6000): launches rotate over twice of it. A
    /// block of 300 us is some hundred times the resolution of an event.
    pub const GPU: Self = Self {
        max_weight_bytes: 512 << 20,
        rotation_bytes: 256 << 20,
        copy_bytes: 1 << 30,
        max_copies: 64,
        blocks: 6,
        block_time: Duration::from_micros(300),
        vendor: false,
    };
}

/// Result of [`tune`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tuned {
    /// What was measured.
    pub measurements: Vec<Measurement>,
    /// Bytes per second of a copy on the device; 0 if nothing was measured.
    pub copy_bandwidth: f64,
    /// Ops for which the deadline or the device's memory left no room.
    pub left: usize,
    /// Ops without a candidate.
    pub without_variant: usize,
}

/// Driver errors that a kernel causes: illegal address, timeout, assertion, hardware stack, illegal instruction, misaligned
/// address, address space, program counter, launch failure (`CUresult` in cuda.h).
const FAULTS_OF_KERNELS: [i32; 9] = [700, 702, 710, 714, 715, 716, 717, 718, 719];

/// What ends [`tune`].
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// The device became unusable while it ran a candidate. No call of this process on it can succeed.
    #[error("the device is lost with {function}")]
    Lost {
        /// Function of the candidate.
        function: &'static str,
        /// The device's error.
        source: OpError,
    },
    /// Outside of all candidates.
    #[error(transparent)]
    Op(#[from] OpError),
}

impl TuneError {
    /// The error of a call that waits for a candidate. A device that failed by itself says nothing of the candidate.
    fn of(candidate: &Candidate, error: OpError) -> Self {
        match error {
            OpError::Device { code, fatal: true, .. } if FAULTS_OF_KERNELS.contains(&code) => {
                Self::Lost { function: candidate.function, source: error }
            }
            error => Self::Op(error),
        }
    }
}

impl From<DriverError> for TuneError {
    fn from(error: DriverError) -> Self {
        Self::Op(error.into())
    }
}

/// Measures ops until the deadline, those of one product one after another, since they share their weights; products in the order of
/// their first op. `done` is called with the number of ops before and the measurement.
///
/// `open` gives the device with all programs of the candidates: a new one for each product, so that its memory is free after
/// it. `date`: seconds since 1970.
pub fn tune<D: Driver>(
    open: &mut dyn FnMut() -> Result<Stream<D>, OpError>,
    ops: &[TunedOp],
    candidates: &dyn Fn(&TunedOp) -> Vec<Candidate>,
    effort: &Effort,
    deadline: Option<Instant>,
    date: u64,
    done: &mut dyn FnMut(usize, &Measurement),
) -> Result<Tuned, TuneError> {
    let late = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
    let mut tuned = Tuned::default();
    let mut before = 0;
    for ops in by_product(ops) {
        if late() {
            tuned.left += ops.len();
            continue;
        }
        if tuned.copy_bandwidth == 0.0 {
            tuned.copy_bandwidth = timing::copy_bandwidth(&mut open()?, effort.copy_bytes)?;
        }
        let stream = &mut open()?;
        let (mut bench, mut left) = (None, ops.len());
        for op in &ops {
            let mut candidates = candidates(op);
            candidates.retain(|candidate| candidate.fits(stream.arch()));
            if candidates.is_empty() {
                tracing::error!(%op, "every variant of a kernel has lost the device before");
                tuned.without_variant += 1;
                left -= 1;
                continue;
            }
            match measure(stream, &mut bench, &ops, op, &candidates, effort, &late, date) {
                Ok(Some(mut measurement)) => {
                    measurement.copy_bandwidth = tuned.copy_bandwidth;
                    for (name, reason) in measurement.refusals() {
                        tracing::warn!(%op, variant = name, reason, "a variant of a kernel is refused on this GPU");
                    }
                    if measurement.choice().is_none() {
                        tracing::error!(%op, "no variant of a kernel is right on this GPU");
                    }
                    done(before, &measurement);
                    tuned.measurements.push(measurement);
                    (before, left) = (before + 1, left - 1);
                }
                Ok(None) => break,
                Err(TuneError::Op(OpError::OutOfMemory { bytes, .. })) => {
                    tracing::warn!(%op, bytes, "not tuned: the device has no room for its measurement");
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        tuned.left += left;
    }
    Ok(tuned)
}

/// The ops of each product, in the order of its first one.
fn by_product(ops: &[TunedOp]) -> Vec<Vec<TunedOp>> {
    let product = |op: &TunedOp| TunedOp { rows: Bucket::UpTo8, ..*op };
    let mut all: Vec<Vec<TunedOp>> = Vec::new();
    for op in ops {
        match all.iter_mut().find(|ops| ops.first().is_some_and(|first| product(first) == product(op))) {
            Some(ops) => ops.push(*op),
            None => all.push(vec![*op]),
        }
    }
    all
}

/// Name of the candidate that is taken without a measurement.
fn default_of(op: &TunedOp, arch: Arch, rows: usize) -> &'static str {
    match op.form() {
        Some(form) => candidate::slots_name(fp4::tile_rows(arch, form, rows)),
        None => Variant::preferred(rows).name,
    }
}

/// Measures one of the ops of a product; `None` past the deadline. The first call makes what all of them share.
fn measure<D: Driver>(
    stream: &mut Stream<D>,
    bench: &mut Option<(Problem, Output)>,
    ops: &[TunedOp],
    op: &TunedOp,
    candidates: &[Candidate],
    effort: &Effort,
    late: &dyn Fn() -> bool,
    date: u64,
) -> Result<Option<Measurement>, TuneError> {
    if late() {
        return Ok(None);
    }
    let (problem, output) = match bench {
        Some(bench) => bench,
        None => {
            let mut problem = Problem::new(stream, ops, effort.max_weight_bytes, 0, 1)?;
            let output = Output::new(stream, &problem)?;
            problem.rotate(stream, effort.rotation_bytes, effort.max_copies)?;
            bench.insert((problem, output))
        }
    };
    problem.op.rows = op.rows;
    let Verdict { refused, error } = numerics::check(stream, problem, output, candidates)?;
    if late() {
        return Ok(None);
    }
    let accepted: Vec<&Candidate> =
        candidates.iter().zip(&refused).filter(|(_, refused)| refused.is_none()).map(|(c, _)| c).collect();
    let rows = problem.rows()[2];
    let workload = problem.workload(rows);
    let mut times = timing::time(stream, problem, &workload, output, &accepted, effort)?.into_iter();
    let tried = candidates.iter().zip(refused).map(|(candidate, refused)| Tried {
        variant: candidate.name.into(),
        micros: if refused.is_none() { times.next() } else { None },
        refused,
    });
    let tried: Vec<Tried> = tried.collect();
    let vendor = match effort.vendor && op.may_be_the_vendors() {
        true => Some(vendor::measure(stream, problem, output, effort)?),
        false => None,
    };
    Ok(Some(Measurement {
        op: *op,
        measured: problem.op,
        num_slots: workload.num_slots,
        least_bytes: problem.least_bytes(&workload),
        default: default_of(op, stream.arch(), rows).into(),
        tried,
        vendor,
        error: error.is_finite().then_some(error),
        copy_bandwidth: 0.0,
        date,
    }))
}
