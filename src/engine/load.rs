//! Figures of the engine that its handles read: load, steps, the pace of admissions, and a death's reason.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::handle::Shared;
use crate::scheduler::Stats;

/// The engine's end of the state that it shares with its handles.
pub(super) struct LoadFigures {
    shared: Arc<Shared>,
    last_admission: Option<Instant>,
}

impl LoadFigures {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, last_admission: None }
    }

    pub(super) fn publish(&self, stats: &Stats) {
        let shared = &self.shared;
        // What began to run is counted there before it leaves the queue: see `EngineHandle::snapshot`.
        shared.running.store(stats.running, Ordering::Release);
        shared.queued.store(stats.waiting, Ordering::Release);
        shared.used_blocks.store(stats.used_blocks, Ordering::Relaxed);
        shared.cached_blocks.store(stats.cached_blocks, Ordering::Relaxed);
    }

    /// A submission has left the queue of commands for the scheduler's.
    pub(super) fn note_taken(&self) {
        self.shared.queued.fetch_add(1, Ordering::Release);
        self.shared.submitted.fetch_sub(1, Ordering::Release);
    }

    /// A sequence that arrived then is admitted now.
    pub(super) fn note_admission(&mut self, arrived: Instant, now: Instant) {
        if let Some(last) = self.last_admission.replace(now) {
            self.shared.note_admission(last, arrived, now);
        }
    }

    pub(super) fn note_step(&self) {
        self.shared.steps.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_death(&self, reason: &str) {
        let _ = self.shared.death.set(reason.to_owned());
    }
}
