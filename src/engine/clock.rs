//! The engine's clock: microseconds since its start, and where the time of a turn went.

use std::time::{Duration, Instant};

use perigee_telemetry::StepTimes;

/// Time since the engine's start, and the times of the turn under way.
pub(super) struct Clock {
    epoch: Instant,
    /// End of the last lap.
    last: Instant,
    pub(super) times: StepTimes,
    /// Prompt and drafted tokens of the step that was enqueued last.
    enqueued_tokens: usize,
}

impl Clock {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { epoch: now, last: now, times: StepTimes::default(), enqueued_tokens: 0 }
    }

    /// Microseconds since the engine's start.
    pub(super) fn micros(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.epoch).as_micros() as u64
    }

    /// Begins the times of a turn; returns its microseconds since the engine's start.
    pub(super) fn begin_turn(&mut self) -> u64 {
        self.last = Instant::now();
        self.times = StepTimes::default();
        self.micros(self.last)
    }

    /// Adds the time since the last lap to one of the turn's times.
    pub(super) fn lap(&mut self, part: fn(&mut StepTimes) -> &mut Duration) {
        let now = Instant::now();
        *part(&mut self.times) += now - self.last;
        self.last = now;
    }

    /// Counts a part of the time for the plan as the model's.
    pub(super) fn count_as_forward(&mut self, part: Duration) {
        self.times.schedule = self.times.schedule.saturating_sub(part);
        self.times.forward += part;
    }

    /// Prompt and drafted tokens of the step that this turn waited for, when it planned one of `planned` such
    /// tokens: the previous step where steps are enqueued.
    pub(super) fn tokens_waited_for(&mut self, planned: usize, enqueues: bool) -> usize {
        if enqueues { std::mem::replace(&mut self.enqueued_tokens, planned) } else { planned }
    }
}
