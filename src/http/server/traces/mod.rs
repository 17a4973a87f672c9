//! Traces of requests, exported to an OpenTelemetry collector.
//!
//! A request has a span, and below it one for each phase of its replies. All are built when the request has
//! ended, from times noted on the way: a request that is not sampled costs nothing more, and no request waits
//! for the collector. Traces that the collector does not take in time are dropped and counted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::HeaderMap;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use self::exporter::Exporter;
use perigee_telemetry::Metrics;

mod context;
mod exporter;
mod otlp;
mod phases;
mod request;

pub(super) use context::TraceContext;
pub use exporter::{Endpoint, EndpointError};
pub(super) use request::EndedRequest;

/// Traces that may wait for their export.
const QUEUE: usize = 2048;

/// A stretch of time with a name.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Span {
    pub(super) name: &'static str,
    pub(super) begun: Instant,
    pub(super) ended: Instant,
    pub(super) attributes: Vec<(&'static str, Value)>,
    pub(super) failed: bool,
}

/// The spans of a request.
#[derive(Debug)]
pub(super) struct Trace {
    pub(super) context: TraceContext,
    pub(super) request: Span,
    /// Phases of the request, in any order.
    pub(super) phases: Vec<Span>,
}

enum Message {
    Trace(Box<Trace>),
    Flush(oneshot::Sender<()>),
}

/// The way of traces to the collector.
pub struct Traces {
    ratio: f64,
    queue: mpsc::Sender<Message>,
    metrics: Arc<Metrics>,
}

impl Traces {
    /// Begins to export to `endpoint`, on the runtime that this is called on. `ratio`: share of the traces that begin here which are
    /// sampled. `model` is named in each request's span.
    pub fn start(endpoint: Endpoint, ratio: f64, model: &str, metrics: Arc<Metrics>) -> Self {
        let (queue, messages) = mpsc::channel(QUEUE);
        let exporter = Exporter::new(endpoint, model, metrics.clone());
        tokio::spawn(exporter.run(messages));
        Self { ratio, queue, metrics }
    }

    /// The place of a request with these headers.
    pub(super) fn context(&self, headers: &HeaderMap) -> TraceContext {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        TraceContext::of_headers(text("traceparent"), text("tracestate"), self.ratio)
    }

    /// Hands a trace over. Never waits: one too many is dropped.
    pub(super) fn export(&self, trace: Trace) {
        let spans = 1 + trace.phases.len();
        if self.queue.try_send(Message::Trace(Box::new(trace))).is_err() {
            self.metrics.record_spans(0, spans);
        }
    }

    /// Waits until what was handed over is exported or dropped, for at most `limit`.
    pub async fn flush(&self, limit: Duration) {
        let flushed = async {
            let (done, wait) = oneshot::channel();
            if self.queue.send(Message::Flush(done)).await.is_ok() {
                let _ = wait.await;
            }
        };
        let _ = tokio::time::timeout(limit, flushed).await;
    }
}
