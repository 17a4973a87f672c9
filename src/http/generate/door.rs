//! The engine as the request walk sees it: a door for submissions and a stream of events.
//!
//! A trait, so that tests can drive the walk and everything above it with a deterministic engine.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll};

use perigee_engine::{
    EngineEvent, EngineFacts, EngineHandle, EngineRequest, EngineSnapshot, SequenceStream, SubmitError,
};

/// The walk's view of an engine.
pub trait Engine: Send + Sync + 'static {
    /// Queues a sequence and returns at once. Errors: the reason for a refusal.
    fn submit(&self, request: EngineRequest) -> Result<Box<dyn TokenStream>, SubmitError>;
    /// Facts fixed at boot.
    fn facts(&self) -> &EngineFacts;
    /// The engine's load at this moment.
    fn snapshot(&self) -> EngineSnapshot;
    /// Refuses new submissions from now on.
    fn drain(&self);
}

/// Events of one sequence. Dropping the stream aborts the sequence within one step.
pub trait TokenStream: Send {
    /// The next event; `None` only after `Finished`, or when the engine died.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<EngineEvent>>;
    /// Ends the sequence after `keep` reply tokens; no further event is read.
    fn stop_after(self: Box<Self>, keep: usize);
}

impl Engine for EngineHandle {
    fn submit(&self, request: EngineRequest) -> Result<Box<dyn TokenStream>, SubmitError> {
        EngineHandle::submit(self, request).map(|stream| Box::new(stream) as Box<dyn TokenStream>)
    }

    fn facts(&self) -> &EngineFacts {
        EngineHandle::facts(self)
    }

    fn snapshot(&self) -> EngineSnapshot {
        EngineHandle::snapshot(self)
    }

    fn drain(&self) {
        EngineHandle::drain(self);
    }
}

impl TokenStream for SequenceStream {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<EngineEvent>> {
        if let Some(event) = self.try_next() {
            return Poll::Ready(Some(event));
        }
        // The future holds no state of its own: the channel keeps the waker after it is dropped.
        pin!(self.next()).poll(cx)
    }

    fn stop_after(self: Box<Self>, keep: usize) {
        SequenceStream::stop_after(*self, keep);
    }
}
