//! The flight recorder: the last steps and requests in memory, for the moment when something goes
//! wrong. Holds figures and names from closed sets, and no text of a prompt or a reply.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::StepTimes;

/// Steps that are kept, and as many requests.
const KEPT: usize = 256;

/// What a step computes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepShape {
    /// Sequences with a chunk in the step.
    pub sequences: usize,
    /// Prompt tokens, or tokens known from before a preemption.
    pub prompt_tokens: usize,
    /// Rows of replies, drafted ones included.
    pub reply_rows: usize,
    /// Sequences in the queue.
    pub waiting: usize,
    /// KV blocks held by sequences.
    pub used_blocks: usize,
}

/// A request that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestRecord {
    /// Id, as the log and the answer's header have it.
    pub id: String,
    /// Name of the client, where keys are set.
    pub client: Option<String>,
    /// Route, from a closed set.
    pub route: &'static str,
    /// HTTP status.
    pub status: u16,
    /// Prompt tokens.
    pub prompt_tokens: usize,
    /// Reply tokens.
    pub completion_tokens: usize,
    /// From the head to the first token.
    pub ttft: Option<Duration>,
    /// From the head to the last byte.
    pub took: Duration,
    /// Finish reason or code of the error.
    pub finish: &'static str,
}

/// The last steps and requests.
#[derive(Debug, Default)]
pub struct FlightRecorder {
    steps: Mutex<VecDeque<Step>>,
    requests: Mutex<VecDeque<(f64, RequestRecord)>>,
}

#[derive(Debug)]
struct Step {
    at: f64,
    shape: StepShape,
    /// `None`: under way, or failed.
    times: Option<StepTimes>,
}

impl FlightRecorder {
    /// Notes a step that begins.
    pub fn begin_step(&self, shape: StepShape) {
        keep(&mut lock(&self.steps), Step { at: unix_seconds(), shape, times: None });
    }

    /// Completes the step that was begun last.
    pub(super) fn end_step(&self, times: &StepTimes) {
        if let Some(step) = lock(&self.steps).back_mut() {
            step.times = Some(*times);
        }
    }

    /// Notes a request that has ended.
    pub fn request(&self, record: RequestRecord) {
        keep(&mut lock(&self.requests), (unix_seconds(), record));
    }

    /// All that is kept, oldest first; times in Unix seconds, durations in milliseconds.
    pub fn report(&self) -> Value {
        let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let step = |Step { at, shape, times }: &Step| {
            let mut line = json!({
                "at": at,
                "sequences": shape.sequences,
                "prompt_tokens": shape.prompt_tokens,
                "reply_rows": shape.reply_rows,
                "waiting": shape.waiting,
                "used_blocks": shape.used_blocks,
            });
            match times {
                Some(times) => {
                    line["schedule_ms"] = ms(times.schedule).into();
                    line["forward_ms"] = ms(times.forward).into();
                    line["sample_ms"] = ms(times.sample).into();
                    line["commit_ms"] = ms(times.commit).into();
                    line["emit_ms"] = ms(times.emit).into();
                }
                None => line["complete"] = false.into(),
            }
            line
        };
        let request = |(at, record): &(f64, RequestRecord)| {
            json!({
                "at": at,
                "id": record.id,
                "client": record.client,
                "route": record.route,
                "status": record.status,
                "prompt_tokens": record.prompt_tokens,
                "completion_tokens": record.completion_tokens,
                "ttft_ms": record.ttft.map(ms),
                "total_ms": ms(record.took),
                "finish": record.finish,
            })
        };
        json!({
            "steps": lock(&self.steps).iter().map(step).collect::<Vec<_>>(),
            "requests": lock(&self.requests).iter().map(request).collect::<Vec<_>>(),
        })
    }
}

fn keep<T>(ring: &mut VecDeque<T>, entry: T) {
    if ring.len() == KEPT {
        ring.pop_front();
    }
    ring.push_back(entry);
}

fn lock<T>(cell: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while holding the lock, and the recorder is read when other code has.
    cell.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_kept_and_a_step_under_way_is_seen() {
        let recorder = FlightRecorder::default();
        for waiting in 0..KEPT + 10 {
            recorder.begin_step(StepShape { waiting, ..StepShape::default() });
            if waiting < KEPT + 9 {
                recorder
                    .end_step(&StepTimes { forward: Duration::from_micros(1500), ..StepTimes::default() });
            }
            recorder.request(RequestRecord {
                id: waiting.to_string(),
                client: None,
                route: "/v1/completions",
                status: 200,
                prompt_tokens: 1,
                completion_tokens: 2,
                ttft: None,
                took: Duration::from_millis(3),
                finish: "stop",
            });
        }
        let report = recorder.report();
        let (steps, requests) = (report["steps"].as_array().unwrap(), report["requests"].as_array().unwrap());
        assert_eq!((steps.len(), requests.len()), (KEPT, KEPT));
        assert_eq!((&steps[0]["waiting"], &steps[0]["forward_ms"]), (&json!(10), &json!(1.5)));
        assert_eq!(steps[KEPT - 1]["complete"], false);
        assert_eq!((&requests[0]["id"], &requests[0]["total_ms"]), (&json!("10"), &json!(3.0)));
    }
}
