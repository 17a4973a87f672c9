//! Times of products whose rows are in 4-bit floats too, on devices that multiply them.

use super::kernel_times::WHAT;
use super::op::Product;
use super::problem::{Problem, Workload};
use super::{Effort, timing};
use crate::kernels::tiled::Rows;
use crate::kernels::{fp4, fp4_linear, fp4_rows, fp4_swiglu};
use crate::weights::PanelFormat;
use crate::{Driver, Stream};
use perigee_numbers::quant::{ActivationForm, MAX_TERMS};
use perigee_ops::OpError;

/// Scale of the tensor of rows of variance 1: the largest value without saturation is 43.
const SCALE: f32 = 0.016;

/// Form of rows, slots of a block, and the median time in microseconds.
pub(super) type Fp4Time = (ActivationForm, usize, f64);

/// Times of a workload in every form of rows that the weights meet and for both numbers of slots; none without panels.
pub(super) fn times<D: Driver>(
    stream: &mut Stream<D>,
    problem: &Problem,
    workload: &Workload,
    out: Rows,
    effort: &Effort,
) -> Result<Vec<Fp4Time>, OpError> {
    let forms: Vec<ActivationForm> = match problem.panels.first().map(|panels| panels.format) {
        None => return Ok(Vec::new()),
        Some(PanelFormat::Nvfp4) => {
            (1..=MAX_TERMS).map(|terms| ActivationForm::Nvfp4 { scale: SCALE, terms }).collect()
        }
        Some(PanelFormat::Mxfp4) => vec![ActivationForm::Mxfp4],
    };
    let mut times = Vec::new();
    for form in forms {
        let terms = form.num_terms();
        let (columns, units) = (problem.op.in_features, problem.op.out_features);
        let num_rows = workload.num_slots.div_ceil(problem.slots_per_row());
        let codes = stream.allocate(WHAT, num_rows * fp4_rows::row_bytes(columns, terms))?;
        let rows = problem.x_exact();
        let x = fp4_rows::launch(stream, &[form.into()], num_rows, columns, rows, &[codes.address])?[0];
        let stride = fp4_rows::row_bytes(units, terms);
        let inner = stream.allocate(WHAT, workload.num_slots * stride)?;
        let mut tiles = [1, usize::MAX].map(|slots| fp4::tile_rows(stream.arch(), form, slots)).to_vec();
        tiles.dedup();
        let mut graphs = Vec::new();
        for tile_rows in &tiles {
            let list = problem.worklist(stream, workload, *tile_rows)?;
            let slots = problem.slots(workload, list.as_ref());
            stream.driver().begin_capture()?;
            let mut recorded = Ok(());
            for matrix in &problem.panels {
                let tile_rows = *tile_rows;
                let part = |y, y_form| fp4::Part { matrix, slots, tile_rows, x, form, y, y_form };
                recorded = recorded.and_then(|()| match problem.op.product {
                    Product::Linear => fp4_linear::launch(stream, &[part(out, None)]),
                    Product::Swiglu => {
                        let y = Rows { address: inner.address, stride };
                        fp4_swiglu::launch(stream, &[part(y, Some(form.into()))])
                    }
                });
            }
            let graph = stream.driver().end_capture();
            recorded?;
            graphs.push(graph?);
        }
        let micros = timing::replayed(stream, &graphs, problem.panels.len(), effort);
        let micros = micros.map_err(|(_, error)| error)?;
        times.extend(tiles.into_iter().zip(micros).map(|(tile_rows, micros)| (form, tile_rows, micros)));
    }
    Ok(times)
}
