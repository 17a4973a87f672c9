//! One log line and one metric per request, at its end, however it ends: answered, failed, or left by its client.

use std::sync::Arc;
use std::time::Instant;

use super::connection::Busy;
use crate::api::Summary;
use crate::telemetry::Metrics;

/// Status recorded when the client left before its answer was complete (it never saw one).
const CLIENT_LEFT: u16 = 499;

/// Follows a request from its head to the last byte of its answer; writes the line when dropped. Never holds a prompt.
pub(super) struct RequestLog {
    metrics: Arc<Metrics>,
    pub(super) id: String,
    pub(super) route: &'static str,
    began: Instant,
    status: Option<u16>,
    summary: Summary,
    /// Set when the whole answer was handed to the connection.
    complete: bool,
    /// Keeps the connection marked as busy.
    _busy: Busy,
}

impl RequestLog {
    pub(super) fn begin(metrics: Arc<Metrics>, id: String, route: &'static str, busy: Busy) -> Self {
        metrics.record_in_flight(true);
        Self {
            metrics,
            id,
            route,
            began: Instant::now(),
            status: None,
            summary: Summary::default(),
            complete: false,
            _busy: busy,
        }
    }

    pub(super) fn answered(&mut self, status: u16) {
        self.status = Some(status);
    }

    pub(super) fn set_summary(&mut self, summary: Summary) {
        self.summary = summary;
    }

    /// What the request cost, as far as it is known.
    pub(super) fn summary(&self) -> &Summary {
        &self.summary
    }

    pub(super) fn complete(&mut self) {
        self.complete = true;
    }
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        let status = if self.complete { self.status.unwrap_or(CLIENT_LEFT) } else { CLIENT_LEFT };
        self.metrics.record_in_flight(false);
        self.metrics.record_http(self.route, status, took);
        let Summary { usage, ttft, finish, .. } = std::mem::take(&mut self.summary);
        let finish = if self.complete { finish } else { "client_left" };
        let total_ms = milliseconds(took);
        if !super::routes::is_model_route(self.route) {
            tracing::debug!(id = self.id, route = self.route, status, total_ms, "request");
            return;
        }
        tracing::info!(
            id = self.id,
            route = self.route,
            status,
            prompt_tokens = usage.prompt_tokens,
            cached_tokens = usage.cached_tokens,
            completion_tokens = usage.completion_tokens,
            ttft_ms = ttft.map(milliseconds),
            total_ms,
            finish,
            "request"
        );
    }
}

/// Milliseconds with three decimals.
fn milliseconds(time: std::time::Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}
