//! Bodies: requests read within limits, answers whole or as events.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::{HeaderMap, header};
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::Config;
use super::request_log::RequestLog;
use crate::api::{ApiError, EventStream};

/// What is read and thrown away of a body that will not be used, so that a client still writing gets to read its answer.
const DISCARD_BYTES: usize = 1 << 20;
/// How long that may take.
const DISCARD_TIME: Duration = Duration::from_secs(2);
/// Room reserved up front for a body of declared length.
const MAX_RESERVE_BYTES: usize = 1 << 20;

/// Reads a request's body.
pub(super) async fn read(headers: &HeaderMap, body: Incoming, config: &Config) -> Result<Vec<u8>, ApiError> {
    let limit = config.max_body_bytes;
    let declared = declared_length(headers);
    if declared.is_some_and(|length| length > limit as u64) {
        // A client that asked first has sent nothing yet; any other gets the chance to stop writing and read.
        if !headers.contains_key(header::EXPECT) {
            discard(body, limit, config.body_read_timeout()).await;
        }
        return Err(ApiError::too_large(limit));
    }
    match timeout(config.body_read_timeout(), collect(body, declared, limit)).await {
        Ok(result) => result,
        Err(_) => Err(ApiError::slow_body(config.body_read_timeout())),
    }
}

async fn collect(mut body: Incoming, declared: Option<u64>, limit: usize) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::with_capacity(declared.map_or(0, |d| (d as usize).min(MAX_RESERVE_BYTES)));
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| ApiError::broken_body(&e.to_string()))?;
        if let Ok(data) = frame.into_data() {
            if bytes.len() + data.len() > limit {
                discard(body, DISCARD_BYTES, DISCARD_TIME).await;
                return Err(ApiError::too_large(limit));
            }
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes)
}

/// Reads and forgets a body that is not needed.
pub(super) async fn skip(body: Incoming) {
    discard(body, DISCARD_BYTES, DISCARD_TIME).await;
}

async fn discard(mut body: Incoming, limit: usize, time: Duration) {
    let _ = timeout(time, async {
        let mut seen = 0;
        while let Some(Ok(frame)) = body.frame().await {
            seen += frame.data_ref().map_or(0, Bytes::len);
            if seen > limit {
                break;
            }
        }
    })
    .await;
}

fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()
}

/// An answer's body. Owns the request's log line, which is written when the body is dropped.
pub(super) enum Answer {
    /// All of it.
    Whole {
        bytes: Bytes,
        given: bool,
        #[expect(dead_code, reason = "held for its drop")]
        log: Box<RequestLog>,
    },
    /// Server-sent events.
    Events(Box<Events>),
}

/// A stream of events with comments in its pauses.
pub(super) struct Events {
    stream: EventStream,
    pause: Pin<Box<Sleep>>,
    keep_alive: Duration,
    log: RequestLog,
}

impl Events {
    pub(super) fn new(stream: EventStream, keep_alive: Duration, log: RequestLog) -> Self {
        Self { stream, pause: Box::pin(sleep(keep_alive)), keep_alive, log }
    }

    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        match self.stream.poll_next(cx) {
            Poll::Ready(Some(bytes)) => {
                self.rest();
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
        self.log.set_summary(self.stream.summary());
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
            Answer::Whole { given: true, .. } => Poll::Ready(None),
            Answer::Whole { bytes, given, .. } => {
                *given = true;
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes)))))
            }
            Answer::Events(events) => {
                events.poll_bytes(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Answer::Whole { given, bytes, .. } => *given || bytes.is_empty(),
            Answer::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Answer::Whole { given: false, bytes, .. } => SizeHint::with_exact(bytes.len() as u64),
            Answer::Whole { .. } => SizeHint::with_exact(0),
            Answer::Events(_) => SizeHint::default(),
        }
    }
}
