//! Notices a step that does not end, and tells the log what came before a fault.

use std::time::Duration;

use perigee_telemetry::Metrics;

/// Time between two looks, at most a tenth of the time limit of a step.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Steps, and requests, that the log gets.
const LOGGED: usize = 16;

/// Waits for a step that lasts longer than `limit`, and logs it; for ever where `limit` is zero.
pub(super) async fn stuck(metrics: &Metrics, limit: Duration) {
    if limit.is_zero() {
        std::future::pending::<()>().await;
    }
    let mut looks = tokio::time::interval(LOOK_EVERY.min(limit / 10).max(Duration::from_millis(1)));
    while !metrics.is_stuck() {
        looks.tick().await;
    }
    let seconds = limit.as_secs_f64();
    tracing::error!(seconds, "the engine's step does not end (scheduler.step_timeout_s): ending the process");
    log_flight(metrics);
}

/// Logs the last steps and requests, which have no text in them.
pub(super) fn log_flight(metrics: &Metrics) {
    let report = metrics.flight().report();
    for kind in ["steps", "requests"] {
        let last = report[kind].as_array().map_or(&[][..], |all| &all[all.len().saturating_sub(LOGGED)..]);
        last.iter().for_each(|record| tracing::error!(%record, "flight recorder: {kind}"));
    }
}
