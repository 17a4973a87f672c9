//! How long the exchanges of ranks take, for the operator.

use std::sync::atomic::{AtomicU64, Ordering};

/// Nanoseconds of a unit of [`LinkState::busy`](crate::kernels::all_reduce::LinkState).
const UNIT_NANOSECONDS: u64 = 1 << 10;

/// Time of each rank in exchanges so far, waits for other ranks included: the rank that the others wait for has least.
#[derive(Debug)]
pub struct ExchangeTimes(Vec<AtomicU64>);

impl ExchangeTimes {
    /// Of so many ranks.
    pub fn new(ranks: usize) -> Self {
        Self((0..ranks).map(|_| AtomicU64::new(0)).collect())
    }

    /// Seconds of each rank.
    pub fn seconds(&self) -> Vec<f64> {
        let seconds = |units: &AtomicU64| (units.load(Ordering::Relaxed) * UNIT_NANOSECONDS) as f64 * 1e-9;
        self.0.iter().map(seconds).collect()
    }

    pub(crate) fn add(&self, rank: usize, units: u32) {
        if let Some(so_far) = self.0.get(rank) {
            so_far.fetch_add(units.into(), Ordering::Relaxed);
        }
    }
}
