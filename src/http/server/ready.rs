//! Health: boot progress, readiness, liveness of the engine.
//!
//! Three routes with three answers: alive (the process answers), started (the boot is over), ready
//! (the server accepts requests). None of them touches the engine's thread.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::api::{Api, ApiError};
use perigee_telemetry::Metrics;

/// Phase of the server's life.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Booting,
    Ready,
    /// Requests are taken, and routers are told to send no more.
    Leaving,
    Draining,
    Failed(String),
}

#[derive(Debug)]
struct Stage {
    name: &'static str,
    began: Instant,
    /// Share of the stage that is done, 0..1.
    progress: f32,
    took: Option<Duration>,
}

/// Boot progress and readiness, shared by the boot and the routes.
#[derive(Debug)]
pub struct Readiness {
    began: Instant,
    state: Mutex<State>,
    /// Whether the boot is over, in whatever way.
    started: watch::Sender<bool>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    stages: Vec<Stage>,
    /// From the start to ready.
    boot_took: Option<Duration>,
}

impl Default for Readiness {
    fn default() -> Self {
        let state = State { phase: Phase::Booting, stages: Vec::new(), boot_took: None };
        Self { began: Instant::now(), state: Mutex::new(state), started: watch::Sender::new(false) }
    }
}

impl Readiness {
    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while holding the lock; a poisoned lock still holds consistent state.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Ends the current boot stage and begins the next.
    pub fn begin(&self, stage: &'static str) {
        let mut state = self.state();
        state.end_stage();
        state.stages.push(Stage { name: stage, began: Instant::now(), progress: 0.0, took: None });
    }

    /// Sets the completed share of the current stage, 0..1.
    pub fn progress(&self, fraction: f32) {
        if let Some(stage) = self.state().stages.last_mut() {
            stage.progress = fraction.clamp(0.0, 1.0);
        }
    }

    /// Marks the boot as over; requests are accepted.
    pub(super) fn ready(&self) {
        let mut state = self.state();
        state.end_stage();
        if state.phase == Phase::Booting {
            state.phase = Phase::Ready;
            state.boot_took = Some(self.began.elapsed());
        }
        self.started.send_replace(true);
    }

    /// Marks the boot as failed; the routes report `reason` until the process ends.
    pub fn failed(&self, reason: &str) {
        self.state().phase = Phase::Failed(reason.to_owned());
        self.started.send_replace(true);
    }

    /// Waits until the boot is over, `at_most` this long.
    pub(super) async fn started(&self, at_most: Duration) {
        let mut started = self.started.subscribe();
        if !at_most.is_zero() && !*started.borrow() {
            let _ = timeout(at_most, started.wait_for(|started| *started)).await;
        }
    }

    /// Readiness is denied from now on, and requests are still taken.
    pub(super) fn leaving(&self) {
        self.state().phase = Phase::Leaving;
    }

    /// New requests are refused from now on.
    pub(super) fn draining(&self) {
        self.state().phase = Phase::Draining;
    }

    /// Whether connections are to be given up by their clients.
    pub(super) fn is_ending(&self) -> bool {
        matches!(self.state().phase, Phase::Leaving | Phase::Draining)
    }

    /// Finished boot stages and their durations, for metrics.
    pub fn stages(&self) -> Vec<(&'static str, Duration)> {
        self.state().stages.iter().filter_map(|s| Some((s.name, s.took?))).collect()
    }

    /// The routes' service, or the error that says why it is unavailable.
    pub(super) fn service(&self, api: Option<Arc<Api>>) -> Result<Arc<Api>, ApiError> {
        let state = self.state();
        match (&state.phase, api) {
            (Phase::Ready | Phase::Leaving, Some(api)) => Ok(api),
            (Phase::Draining, _) => Err(ApiError::draining()),
            (Phase::Failed(reason), _) => Err(ApiError::boot_failed(reason)),
            (Phase::Booting | Phase::Ready | Phase::Leaving, _) => {
                let (stage, progress) =
                    state.stages.last().map_or(("starting", 0.0), |s| (s.name, s.progress));
                Err(ApiError::starting(stage, (progress * 100.0) as u32))
            }
        }
    }

    /// `/health`: whether the engine runs. Holds while draining too, and never before the boot is
    /// over, since clients wait for this route.
    pub(super) fn health(&self, api: Option<&Api>, metrics: &Metrics) -> (bool, Value) {
        let phase = self.state().phase.clone();
        let Some(api) = api.filter(|_| phase.has_engine()) else {
            return (false, json!({"status": phase.name()}));
        };
        let load = api.generator.snapshot();
        let stuck = metrics.is_stuck();
        let status = match (load.alive, stuck) {
            (false, _) => "engine_stopped",
            (true, true) => "engine_stuck",
            (true, false) => "ok",
        };
        let body = json!({
            "status": status, "running": load.running, "waiting": load.waiting, "steps": load.steps,
        });
        (status == "ok", body)
    }

    /// `/health/ready`: whether the server accepts requests.
    pub(super) fn ready_answer(&self, api: Option<&Api>, metrics: &Metrics) -> (bool, Value) {
        let phase = self.state().phase.clone();
        if phase != Phase::Ready {
            return (false, self.startup_body());
        }
        let (healthy, body) = self.health(api, metrics);
        (healthy, if healthy { json!({"status": "ready"}) } else { body })
    }

    /// `/health/startup`: whether the boot is over, and its progress.
    pub(super) fn startup(&self) -> (bool, Value) {
        let done = self.state().phase.has_engine();
        (done, self.startup_body())
    }

    fn startup_body(&self) -> Value {
        let state = self.state();
        let stages: Vec<Value> = state
            .stages
            .iter()
            .map(|s| {
                let took = s.took.unwrap_or_else(|| s.began.elapsed());
                json!({
                    "stage": s.name,
                    "done": s.took.is_some(),
                    "percent": (s.progress * 100.0) as u32,
                    "seconds": seconds(took),
                })
            })
            .collect();
        let mut body = json!({
            "status": state.phase.name(),
            "stage": state.stages.last().filter(|s| s.took.is_none()).map(|s| s.name),
            "percent": state.stages.last().map_or(0, |s| (s.progress * 100.0) as u32),
            "seconds": seconds(state.boot_took.unwrap_or_else(|| self.began.elapsed())),
            "stages": stages,
        });
        if let Phase::Failed(reason) = &state.phase {
            body["reason"] = reason.as_str().into();
        }
        body
    }
}

impl State {
    fn end_stage(&mut self) {
        if let Some(stage) = self.stages.last_mut()
            && stage.took.is_none()
        {
            stage.took = Some(stage.began.elapsed());
            stage.progress = 1.0;
        }
    }
}

impl Phase {
    /// Whether the boot is over and the engine runs.
    fn has_engine(&self) -> bool {
        matches!(self, Self::Ready | Self::Leaving | Self::Draining)
    }

    fn name(&self) -> &'static str {
        match self {
            Phase::Booting => "starting",
            Phase::Ready => "ready",
            Phase::Leaving => "leaving",
            Phase::Draining => "draining",
            Phase::Failed(_) => "failed",
        }
    }
}

/// Seconds, to the millisecond.
fn seconds(duration: Duration) -> f64 {
    duration.as_millis() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_follow_one_another() {
        let readiness = Readiness::default();
        readiness.begin("weights");
        readiness.progress(0.4);
        let (done, body) = readiness.startup();
        assert!(!done);
        assert_eq!((body["stage"].as_str(), body["percent"].as_u64()), (Some("weights"), Some(40)));
        let error = readiness.service(None).map(|_| ()).unwrap_err();
        assert_eq!((error.status, error.retry_after_s), (503, Some(2)));
        assert!(error.message.contains("weights, 40 %"), "{}", error.message);
        readiness.begin("warm-up");
        readiness.ready();
        let (done, body) = readiness.startup();
        assert!(done && body["stage"].is_null() && body["status"] == "ready");
        assert_eq!(readiness.stages().iter().map(|s| s.0).collect::<Vec<_>>(), ["weights", "warm-up"]);
    }

    #[test]
    fn a_failed_boot_says_why() {
        let readiness = Readiness::default();
        readiness.begin("plan");
        readiness.failed("no memory");
        assert_eq!(readiness.startup().1["reason"], "no memory");
        let error = readiness.service(None).map(|_| ()).unwrap_err();
        assert!(error.status == 503 && error.message.contains("no memory"));
    }
}
