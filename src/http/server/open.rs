//! An open connection: counted, and in one of the places that bound their number.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use perigee_telemetry::Metrics;

/// Counts a connection while it is open, and holds its place.
pub(super) struct Open(Arc<Metrics>, #[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

impl Open {
    pub(super) fn new(metrics: Arc<Metrics>, place: OwnedSemaphorePermit) -> Self {
        metrics.record_connection(true);
        Self(metrics, place)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.record_connection(false);
    }
}
