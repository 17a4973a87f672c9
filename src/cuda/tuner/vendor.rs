//! The vendor's product of an op: whether it is right, and how long it takes with its weights unpacked in front of it.
//!
//! Its bits are its own, so it is held to the tolerance of the f32 kernel, and to the same bits in two runs.

use super::measurement::Tried;
use super::numerics::Output;
use super::problem::Problem;
use super::{Effort, timing};
use crate::kernels::repack;
use crate::stream::Buffer;
use crate::weights::Tiled;
use crate::{Driver, Stream};
use perigee_ops::OpError;
use perigee_ops::tolerance::{PROJECT, difference};

/// Its name beside those of variants.
const NAME: &str = "cuBLASLt";

/// The product of a problem, written to an output.
struct Product<'a> {
    problem: &'a Problem,
    output: &'a Output,
    /// The weights in rows.
    unpacked: Buffer,
}

/// Checks the product at the op's numbers of rows and times it at the last one.
pub(super) fn measure<D: Driver>(
    stream: &mut Stream<D>,
    problem: &Problem,
    output: &Output,
    effort: &Effort,
) -> Result<Tried, OpError> {
    let unpacked = stream.allocate("tuning", 2 * problem.op.out_features * problem.op.in_features)?;
    let product = Product { problem, output, unpacked };
    let refused = match product.fault(stream) {
        Err(error @ OpError::Device { fatal: false, .. }) => Some(format!("its launch fails: {error}")),
        fault => fault?,
    };
    let micros = match refused {
        None => Some(product.time(stream, effort)?),
        Some(_) => None,
    };
    Ok(Tried { variant: NAME.into(), micros, refused })
}

impl Product<'_> {
    /// Enqueues it for `rows` rows with one of the copies of the weights.
    fn launch<D: Driver>(&self, stream: &mut Stream<D>, matrix: &Tiled, rows: usize) -> Result<(), OpError> {
        repack::unpack(stream, matrix, self.unpacked.address)?;
        let shape = [rows, matrix.out_features, matrix.in_features];
        let at = [self.unpacked.address, self.problem.x().address, self.output.rows().address];
        Ok(stream.driver().vendor_product(shape, at, false)?)
    }

    /// The reason why it must not be used, if there is one.
    fn fault<D: Driver>(&self, stream: &mut Stream<D>) -> Result<Option<String>, OpError> {
        let Self { problem, output, .. } = self;
        for rows in problem.rows() {
            let expected = problem.expected(stream, &problem.workload(rows))?;
            let mut run =
                || output.written_by(stream, &mut |stream| self.launch(stream, &problem.copies[0], rows));
            let (a, b) = (run()?, run()?);
            let alone = output.check_alone(&a, rows).and_then(|()| output.check_alone(&b, rows));
            let runs = || Some(format!("two runs differ: {}", output.first_difference(&a, &b, rows)?));
            let far = || {
                let (off, allowed) =
                    (difference(&output.values(&a, rows), &expected), PROJECT.bf16_activations);
                let text =
                    || format!("it differs from the f32 kernel by {off:.1e}, allowed are {allowed:.1e}");
                (off > allowed).then(text)
            };
            let fault = alone.err().or_else(runs).or_else(far);
            if fault.is_some() {
                return Ok(fault);
            }
        }
        Ok(None)
    }

    /// Median time in microseconds.
    fn time<D: Driver>(&self, stream: &mut Stream<D>, effort: &Effort) -> Result<f64, OpError> {
        let Self { problem, .. } = self;
        let [.., rows] = problem.rows();
        stream.driver().begin_capture()?;
        let recorded = problem.copies.iter().try_for_each(|matrix| self.launch(stream, matrix, rows));
        let graph = stream.driver().end_capture();
        recorded?;
        let times = timing::replayed(stream, &[graph?], problem.copies.len(), effort);
        Ok(times.map_err(|(_, error)| error)?.first().copied().unwrap_or(f64::NAN))
    }
}
