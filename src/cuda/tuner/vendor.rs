//! The vendor's product of an op: whether it is right, and how long it takes with its weights unpacked in front of it.
//!
//! Its bits are its own, so it is held to the tolerance of the f32 kernel, and to the same bits in two runs.

use super::measurement::Tried;
use super::numerics::Output;
use super::problem::Problem;
use super::{Effort, timing};
use crate::cuda::kernels::repack;
use crate::cuda::stream::Buffer;
use crate::cuda::tiled::Tiled;
use crate::cuda::{Driver, Stream};
use crate::ops::OpError;
use crate::ops::tolerance::{PROJECT, difference};

/// Its name beside those of variants.
const NAME: &str = "cuBLASLt";

/// Checks the product at the op's numbers of rows and times it at the last one.
pub(super) fn measure<D: Driver>(
    stream: &mut Stream<D>,
    problem: &Problem,
    output: &Output,
    effort: &Effort,
) -> Result<Tried, OpError> {
    let unpacked = stream.allocate("tuning", 2 * problem.op.out_features * problem.op.in_features)?;
    let checked = match check(stream, problem, output, unpacked) {
        Err(error @ OpError::Device { fatal: false, .. }) => Err(format!("its launch fails: {error}")),
        checked => checked?,
    };
    let (micros, refused) = match checked {
        Ok(()) => (Some(time(stream, problem, output, unpacked, effort)?), None),
        Err(reason) => (None, Some(reason)),
    };
    Ok(Tried { variant: NAME.into(), micros, refused })
}

/// Enqueues the product of `rows` rows with one of the copies of the weights.
fn launch<D: Driver>(
    stream: &mut Stream<D>,
    problem: &Problem,
    output: &Output,
    unpacked: Buffer,
    matrix: &Tiled,
    rows: usize,
) -> Result<(), OpError> {
    repack::unpack(stream, matrix, unpacked.address)?;
    let shape = [rows, problem.op.out_features, problem.op.in_features];
    let at = [unpacked.address, problem.x().address, output.rows().address];
    Ok(stream.driver().vendor_product(shape, at, false)?)
}

/// The reason why it must not be used, if there is one.
fn check<D: Driver>(
    stream: &mut Stream<D>,
    problem: &Problem,
    output: &Output,
    unpacked: Buffer,
) -> Result<Result<(), String>, OpError> {
    for rows in problem.rows() {
        let expected = problem.expected(stream, &problem.workload(rows))?;
        let mut run = || {
            output.written_by(stream, &mut |stream| {
                launch(stream, problem, output, unpacked, &problem.copies[0], rows)
            })
        };
        let (a, b) = (run()?, run()?);
        let off = difference(&output.values(&a, rows), &expected);
        let fault = if let Err(fault) = output.check_alone(&a, rows) {
            fault
        } else if let Some(text) = output.first_difference(&a, &b, rows) {
            format!("two runs differ: {text}")
        } else if off > PROJECT.bf16_activations {
            let allowed = PROJECT.bf16_activations;
            format!("it differs from the f32 kernel by {off:.1e}, allowed are {allowed:.1e}")
        } else {
            continue;
        };
        return Ok(Err(fault));
    }
    Ok(Ok(()))
}

/// Median time in microseconds.
fn time<D: Driver>(
    stream: &mut Stream<D>,
    problem: &Problem,
    output: &Output,
    unpacked: Buffer,
    effort: &Effort,
) -> Result<f64, OpError> {
    let [.., rows] = problem.rows();
    stream.driver().begin_capture()?;
    let launches = || problem.copies.iter();
    let recorded = launches().try_for_each(|matrix| launch(stream, problem, output, unpacked, matrix, rows));
    let graph = stream.driver().end_capture();
    recorded?;
    let times = timing::replayed(stream, &[graph?], problem.copies.len(), effort);
    Ok(times.map_err(|(_, error)| error)?.first().copied().unwrap_or(f64::NAN))
}
