//! Bodies of answers, whole or as events.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

use super::request_log::RequestLog;
use crate::api::{ApiError, EventStream, Hold};

/// An answer's body. Owns the request's log line, which is written when the body is dropped, unless work in the
/// background has it.
pub(super) enum Answer {
    /// A complete body.
    Whole {
        /// Empty once they are given.
        bytes: Bytes,
        #[expect(dead_code, reason = "held for its drop")]
        held: Hold,
    },
    /// Server-sent events.
    Events(Box<Events>),
}

/// A stream of events with comments in its pauses.
pub(super) struct Events {
    stream: EventStream,
    pause: Pin<Box<Sleep>>,
    keep_alive: Duration,
    /// Resolves when running requests are to be cut off.
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
    log: RequestLog,
}

impl Events {
    pub(super) fn new(
        stream: EventStream,
        keep_alive: Duration,
        cut: impl Future<Output = ()> + Send + 'static,
        log: RequestLog,
    ) -> Self {
        Self { stream, pause: Box::pin(sleep(keep_alive)), keep_alive, cut: Box::pin(cut), log }
    }

    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if !self.stream.is_done() && self.cut.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(self.stream.fail(&ApiError::shutdown()).into()));
        }
        match self.stream.poll_next(cx) {
            Poll::Ready(Some(bytes)) => {
                self.rest();
                if self.stream.is_settled() {
                    self.log.settle(200, &self.stream.summary());
                }
                Poll::Ready(Some(bytes.into()))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                if self.pause.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                self.rest();
                Poll::Ready(Some(Bytes::from_static(b": keep-alive\n\n")))
            }
        }
    }

    /// Begins the next pause.
    fn rest(&mut self) {
        self.pause.as_mut().reset(Instant::now() + self.keep_alive);
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.log.summary = self.stream.summary();
        if self.stream.is_done() {
            self.log.complete();
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Answer::Whole { bytes, .. } if bytes.is_empty() => Poll::Ready(None),
            Answer::Whole { bytes, .. } => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Answer::Events(events) => {
                events.poll_bytes(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Answer::Whole { bytes, .. } => bytes.is_empty(),
            Answer::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Answer::Whole { bytes, .. } => SizeHint::with_exact(bytes.len() as u64),
            Answer::Events(_) => SizeHint::default(),
        }
    }
}
