//! The async handle of the engine: submit, stream, abort on drop. Not generic over the backend.
//!
//! Invariant: an accepted sequence always ends: with `Finished`, or with its stream closed because
//! the engine is dead (which `next` reports as `Finished(Error)`). The command queue is bounded by
//! `max_queue_len` submissions plus one abort per live stream; a sequence's event queue is bounded
//! by its `max_tokens`.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Instant;

use tokio::sync::mpsc as events;

use super::pictures::VisionFacts;
use super::place::{Place, Places, most_of_one};
use super::request::{EngineEvent, EngineRequest, SubmitError};
use crate::kv_events;
use crate::scheduler::{FinishReason, SeqId};

/// Longest suggested Retry-After, seconds; clients give up on much longer ones.
const MAX_RETRY_AFTER_S: f64 = 60.0;

/// Weight of the newest gap in the moving average of admissions.
const GAP_WEIGHT: f64 = 0.1;

/// Facts about the engine that callers need; fixed at boot.
#[derive(Debug, Clone)]
pub struct EngineFacts {
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// Upper bound on prompt and reply tokens of one sequence.
    pub max_model_len: usize,
    /// Upper bound on sequences that run at once.
    pub max_num_seqs: usize,
    /// Upper bound on requests in the queue.
    pub max_queue_len: usize,
    /// Upper bound on prompt tokens in the queue; 0 = no limit.
    pub max_queue_tokens: usize,
    /// Tokens per KV block.
    pub block_size: usize,
    /// Blocks of the KV cache.
    pub num_blocks: usize,
    /// Whether computed blocks are kept for prompts with an equal beginning.
    pub prefix_caching: bool,
    /// KV element type, as metrics label it.
    pub cache_dtype: &'static str,
    /// Backend name, as metrics label it.
    pub backend: &'static str,
    /// Devices that each hold a part of the model.
    pub ranks: usize,
    /// Sizes of the vision tower; `None`: the engine sees no pictures.
    pub vision: Option<VisionFacts>,
}

impl EngineFacts {
    /// Most sequences of one request that an empty queue takes, by `max_queue_len`; `shared`: where
    /// clients are told apart.
    pub fn most_of_one_request(&self, shared: bool) -> usize {
        most_of_one(self.max_queue_len, shared)
    }
}

/// A point-in-time view of the engine, for health, metrics and Retry-After.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct EngineSnapshot {
    /// Sequences in the queue, from their submission on; preempted ones too.
    pub waiting: usize,
    /// Prompt tokens of the sequences that never ran yet.
    pub waiting_tokens: usize,
    /// Sequences running.
    pub running: usize,
    /// KV blocks held by sequences (not by the prefix cache alone).
    pub used_blocks: usize,
    /// KV blocks that hold reusable prefixes and no sequence.
    pub cached_blocks: usize,
    /// Steps since boot.
    pub steps: u64,
    /// Whether the thread is alive.
    pub alive: bool,
}

/// A command from a handle to the engine thread.
pub(super) enum Command {
    /// Queue a sequence.
    Submit(Box<Submission>),
    /// The stream was dropped.
    Abort(SeqId),
    /// The client needs no further tokens: rewind to `keep` reply tokens and finish.
    StopAfter { id: SeqId, keep: usize },
    /// Tell from now on which prefixes are cached.
    Tell(Box<kv_events::Feed>),
    /// Tell again, though nothing changed.
    TellAgain,
    /// End the thread once no sequence runs or waits.
    Shutdown,
}

/// A sequence on its way to the engine's thread.
pub(super) struct Submission {
    pub(super) id: SeqId,
    pub(super) request: EngineRequest,
    /// Time of the submission.
    pub(super) arrived: Instant,
    pub(super) place: Place,
    pub(super) events: EventSender,
}

/// Engine-side end of a sequence's stream.
pub(super) struct EventSender(pub(super) events::UnboundedSender<EngineEvent>);

/// State shared by the handles and the engine thread.
pub(super) struct Shared {
    pub(super) facts: EngineFacts,
    /// Submissions accepted and not yet running, including those in the command queue.
    places: Arc<Places>,
    /// Submissions that the engine thread has not taken yet.
    pub(super) submitted: AtomicUsize,
    /// Sequences in the scheduler's queue.
    pub(super) queued: AtomicUsize,
    pub(super) running: AtomicUsize,
    pub(super) used_blocks: AtomicUsize,
    pub(super) cached_blocks: AtomicUsize,
    pub(super) steps: AtomicU64,
    pub(super) draining: AtomicBool,
    /// Moving average of seconds between admissions out of the queue, as f64 bits; 0.0 = unknown.
    admission_gap_s: AtomicU64,
    /// Set once, when the thread ends abnormally.
    pub(super) death: OnceLock<String>,
    pub(super) ended: AtomicBool,
    next_id: AtomicU64,
}

/// Cloneable handle to the engine thread.
#[derive(Clone)]
pub struct EngineHandle {
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
}

/// Makes the handle and the engine's ends of its channel and shared state.
pub(super) fn door(facts: EngineFacts) -> (EngineHandle, mpsc::Receiver<Command>, Arc<Shared>) {
    let shared = Arc::new(Shared {
        places: Places::new(facts.max_queue_len, facts.max_queue_tokens),
        facts,
        submitted: AtomicUsize::new(0),
        queued: AtomicUsize::new(0),
        running: AtomicUsize::new(0),
        used_blocks: AtomicUsize::new(0),
        cached_blocks: AtomicUsize::new(0),
        steps: AtomicU64::new(0),
        draining: AtomicBool::new(false),
        admission_gap_s: AtomicU64::new(0),
        death: OnceLock::new(),
        ended: AtomicBool::new(false),
        next_id: AtomicU64::new(0),
    });
    let (commands, receiver) = mpsc::channel();
    (EngineHandle { shared: shared.clone(), commands }, receiver, shared)
}

impl Shared {
    /// Adds an admission to the moving average. The gap begins with the admission before it, or
    /// with the arrival of the request if the queue was empty until then.
    pub(super) fn note_admission(&self, last: Instant, arrived: Instant, now: Instant) {
        let gap = now.saturating_duration_since(last.max(arrived)).as_secs_f64();
        let average = f64::from_bits(self.admission_gap_s.load(Ordering::Relaxed));
        let next = if average == 0.0 { gap } else { average + GAP_WEIGHT * (gap - average) };
        self.admission_gap_s.store(next.to_bits(), Ordering::Relaxed);
    }
}

impl EngineHandle {
    /// Queues a sequence; returns at once. Errors: `SubmitError` gives the reason of the refusal.
    pub fn submit(&self, request: EngineRequest) -> Result<SequenceStream, SubmitError> {
        self.check(&request)?;
        let retry_after_s = |waiting| self.retry_after_of(waiting);
        let place = self.shared.places.take(request.prompt.len(), request.share, retry_after_s)?;
        let id = SeqId(self.shared.next_id.fetch_add(1, Ordering::Relaxed));
        let (sender, receiver) = events::unbounded_channel();
        let (arrived, events) = (Instant::now(), EventSender(sender));
        let submission = Box::new(Submission { id, request, arrived, place, events });
        self.shared.submitted.fetch_add(1, Ordering::Relaxed);
        if self.commands.send(Command::Submit(submission)).is_err() {
            self.shared.submitted.fetch_sub(1, Ordering::Relaxed);
            return Err(self.dead());
        }
        Ok(SequenceStream { id, events: receiver, commands: Some(self.commands.clone()) })
    }

    /// Tells `feed` which prefixes are cached; to be called before the first sequence is submitted. The
    /// feed is dropped when the engine ends.
    pub fn tell(&self, feed: kv_events::Feed) {
        let _ = self.commands.send(Command::Tell(Box::new(feed)));
    }

    /// Makes the engine call its feed, though it may have nothing to do.
    pub fn tell_again(&self) {
        let _ = self.commands.send(Command::TellAgain);
    }

    /// Facts fixed at boot.
    pub fn facts(&self) -> &EngineFacts {
        &self.shared.facts
    }

    /// Load at the time of the call; the figures are read one by one and may be of different steps.
    pub fn snapshot(&self) -> EngineSnapshot {
        let s = &self.shared;
        // In the order in which a sequence moves: it may be counted twice on its way, and is never missed.
        let submitted = s.submitted.load(Ordering::Acquire);
        EngineSnapshot {
            waiting: submitted + s.queued.load(Ordering::Acquire),
            waiting_tokens: s.places.taken().1,
            running: s.running.load(Ordering::Acquire),
            used_blocks: s.used_blocks.load(Ordering::Relaxed),
            cached_blocks: s.cached_blocks.load(Ordering::Relaxed),
            steps: s.steps.load(Ordering::Relaxed),
            alive: !s.ended.load(Ordering::Acquire),
        }
    }

    /// Refuses new submissions from now on; accepted sequences continue.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::Release);
    }

    /// Ends the engine thread once no sequence runs or waits.
    pub fn shutdown(&self) {
        self.drain();
        let _ = self.commands.send(Command::Shutdown);
    }

    /// Reason of the engine's death; `None` while it has not died.
    pub fn death(&self) -> Option<&str> {
        self.shared.death.get().map(String::as_str)
    }

    /// Seconds until a place in the queue is likely to be free, 1 to 60.
    pub fn retry_after_s(&self) -> u32 {
        self.retry_after_of(self.shared.places.taken().0)
    }

    /// The same with `waiting` requests in the queue.
    fn retry_after_of(&self, waiting: usize) -> u32 {
        let gap = f64::from_bits(self.shared.admission_gap_s.load(Ordering::Relaxed));
        // A quarter of the queue: a retry then finds a free place, and the queue has not run empty.
        (gap * waiting as f64 / 4.0).ceil().clamp(1.0, MAX_RETRY_AFTER_S) as u32
    }

    fn check(&self, request: &EngineRequest) -> Result<(), SubmitError> {
        let facts = &self.shared.facts;
        if self.shared.ended.load(Ordering::Acquire) {
            return Err(self.dead());
        }
        if self.shared.draining.load(Ordering::Acquire) {
            return Err(SubmitError::Draining);
        }
        let limit = facts.max_model_len.min(facts.num_blocks * facts.block_size);
        let needs = request.prompt.len() + usize::from(request.sampling.max_tokens > 0);
        if request.prompt.is_empty() || needs > limit {
            return Err(SubmitError::TooLong { prompt_tokens: request.prompt.len(), max_model_len: limit });
        }
        match request.prompt.iter().find(|id| **id as usize >= facts.vocab_size) {
            Some(id) => Err(SubmitError::UnknownToken { id: *id, vocab_size: facts.vocab_size }),
            None => Ok(()),
        }
    }

    fn dead(&self) -> SubmitError {
        SubmitError::Dead { reason: self.death().unwrap_or("it was shut down").to_string() }
    }
}

/// Events of one sequence. Dropping the stream aborts the sequence within one step and frees its
/// blocks.
pub struct SequenceStream {
    id: SeqId,
    events: events::UnboundedReceiver<EngineEvent>,
    /// `None` once the sequence needs no abort.
    commands: Option<mpsc::Sender<Command>>,
}

impl SequenceStream {
    /// The next event; `None` only after `Finished`.
    pub async fn next(&mut self) -> Option<EngineEvent> {
        let event = self.events.recv().await;
        self.note(event)
    }

    /// The next event if one is queued; does not wait.
    pub fn try_next(&mut self) -> Option<EngineEvent> {
        let event = self.events.try_recv().ok()?;
        self.note(Some(event))
    }

    /// Ends the sequence after `keep` reply tokens: the engine rewinds it and finishes it with
    /// `Stopped`. The caller ignores tokens beyond `keep` that are already in the stream, and waits
    /// for no further event.
    pub fn stop_after(mut self, keep: usize) {
        if let Some(commands) = self.commands.take() {
            let _ = commands.send(Command::StopAfter { id: self.id, keep });
        }
    }

    fn note(&mut self, event: Option<EngineEvent>) -> Option<EngineEvent> {
        match event {
            Some(EngineEvent::Finished(_)) => self.commands = None,
            None if self.commands.take().is_some() => {
                return Some(EngineEvent::Finished(FinishReason::Error));
            }
            _ => {}
        }
        event
    }
}

impl Drop for SequenceStream {
    fn drop(&mut self) {
        if let Some(commands) = self.commands.take() {
            let _ = commands.send(Command::Abort(self.id));
        }
    }
}

/// Marks the engine as ended when its thread ends, by return or by panic.
pub(super) struct EndGuard(pub(super) Arc<Shared>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn idle_time_does_not_lengthen_retry_after() {
        let facts = EngineFacts {
            vocab_size: 16,
            max_model_len: 64,
            max_num_seqs: 1,
            max_queue_len: 100,
            max_queue_tokens: 0,
            block_size: 16,
            num_blocks: 4,
            prefix_caching: false,
            cache_dtype: "f32",
            backend: "none",
            ranks: 1,
            vision: None,
        };
        let (handle, _commands, shared) = door(facts);
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(handle.retry_after_of(100), 1, "nothing is known");
        shared.note_admission(at(0), at(3600), at(3602));
        assert_eq!(handle.retry_after_of(4), 2, "two seconds, not an hour, for a quarter of the queue");
        shared.note_admission(at(3602), at(3600), at(3612));
        assert_eq!(handle.retry_after_of(4), 3, "a request that waited counts from the admission before");
    }
}
