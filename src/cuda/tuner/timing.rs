//! Times of candidates: launches recorded in a graph, as a decode step's are, over copies of the weights that exceed the L2
//! cache, in blocks that alternate between the candidates.

use std::time::Duration;

use super::candidate::Candidate;
use super::numerics::Output;
use super::problem::{Problem, Workload};
use super::{Effort, TuneError};
use crate::{Driver, Stream};
use perigee_ops::OpError;

/// Most replays of a block.
const MAX_REPLAYS: u128 = 1000;
/// Copies of device memory whose median is the bandwidth.
const COPIES: usize = 5;

/// Median times of a launch in microseconds, in the order of `candidates`, which are those to be timed.
pub(super) fn time<D: Driver>(
    stream: &mut Stream<D>,
    problem: &Problem,
    workload: &Workload,
    output: &Output,
    candidates: &[&Candidate],
    effort: &Effort,
) -> Result<Vec<f64>, TuneError> {
    let mut graphs = Vec::new();
    for candidate in candidates {
        let list = problem.worklist(stream, workload, candidate.rows)?;
        let slots = problem.slots(workload, list.as_ref());
        stream.driver().begin_capture()?;
        let mut recorded = Ok(());
        for copy in 0..problem.num_copies() {
            recorded = recorded.and_then(|()| candidate.launch(stream, problem, copy, slots, output.rows()));
        }
        let graph = stream.driver().end_capture();
        recorded?;
        graphs.push(graph?);
    }
    let times = replayed(stream, &graphs, problem.num_copies(), effort);
    times.map_err(|(at, error)| TuneError::of(candidates[at], error))
}

/// Median times in microseconds of a launch of each graph, which has so many. Errors: with the index of the graph.
pub(super) fn replayed<D: Driver>(
    stream: &mut Stream<D>,
    graphs: &[D::Graph],
    launches: usize,
    effort: &Effort,
) -> Result<Vec<f64>, (usize, OpError)> {
    let mut replays =
        |at: usize, count: u32| replays(stream.driver(), &graphs[at], count).map_err(|error| (at, error));
    // Untimed once, so that no candidate pays for a clock that rises.
    let mut longest = Duration::ZERO;
    for at in 0..graphs.len() {
        longest = longest.max(replays(at, 1)?);
    }
    let replays_of_block = match longest.as_nanos() {
        0 => 1,
        nanos => effort.block_time.as_nanos().div_ceil(nanos).clamp(1, MAX_REPLAYS),
    } as u32;
    let mut times = vec![Vec::new(); graphs.len()];
    for block in 0..effort.blocks {
        // A-B-B-A: what drifts with time is the same for all.
        for turn in 0..graphs.len() {
            let at = if block % 2 == 0 { turn } else { graphs.len() - 1 - turn };
            let time = replays(at, replays_of_block)?;
            times[at].push(time.as_secs_f64() * 1e6 / (f64::from(replays_of_block) * launches as f64));
        }
    }
    Ok(times.into_iter().map(median).collect())
}

fn replays<D: Driver>(driver: &mut D, graph: &D::Graph, count: u32) -> Result<Duration, OpError> {
    driver.begin_timing()?;
    for _ in 0..count {
        driver.replay(graph)?;
    }
    Ok(driver.end_timing()?)
}

/// Bytes per second that a copy of `bytes` on the device reads and writes.
pub(super) fn copy_bandwidth<D: Driver>(stream: &mut Stream<D>, bytes: usize) -> Result<f64, OpError> {
    let from = stream.zeros("tuning", bytes)?;
    let to = stream.allocate("tuning", bytes)?;
    let mut times = Vec::new();
    // The first one is not counted.
    for turn in 0..=COPIES {
        let driver = stream.driver();
        driver.begin_timing()?;
        driver.copy(to.address, from.address, bytes)?;
        let time = driver.end_timing()?;
        if turn > 0 {
            times.push(time.as_secs_f64());
        }
    }
    Ok(2.0 * bytes as f64 / median(times).max(1e-12))
}

/// The middle one, or the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![9.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(Vec::new()).is_nan());
    }
}
