//! Sends batches of traces to a collector: OTLP over HTTP, in JSON.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout, timeout_at};

use super::otlp::{self, Clock};
use super::{Message, Trace};
use perigee_telemetry::{Metrics, Throttle};

/// Most traces in an export.
const BATCH: usize = 128;
/// Longest wait for more traces.
const GATHER: Duration = Duration::from_secs(1);
/// Longest export, and waits between its attempts.
const EXPORT_LIMIT: Duration = Duration::from_secs(10);
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(4)];
/// Most bytes of an answer.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// Port of OTLP over HTTP.
const PORT: u16 = 4318;

/// A collector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Host and port.
    authority: String,
    path: String,
}

/// Reason why a text names no collector.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be an http:// URL such as http://collector:4318; a collector beside the server does TLS to what is behind it"
)]
pub struct EndpointError;

impl std::str::FromStr for Endpoint {
    type Err = EndpointError;

    /// Reads a URL. As with OTEL_EXPORTER_OTLP_ENDPOINT, `/v1/traces` is added, unless the URL ends with it.
    fn from_str(url: &str) -> Result<Self, EndpointError> {
        let uri: Uri = url.parse().map_err(|_| EndpointError)?;
        let authority =
            uri.authority().filter(|authority| !authority.as_str().contains('@')).ok_or(EndpointError)?;
        if uri.scheme_str() != Some("http") || uri.query().is_some() {
            return Err(EndpointError);
        }
        let base = uri.path().trim_end_matches('/');
        let path = if base.ends_with("/v1/traces") { base.to_owned() } else { format!("{base}/v1/traces") };
        Ok(Self { authority: format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(PORT)), path })
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "http://{}{}", self.authority, self.path)
    }
}

/// Why an export failed.
enum Failure {
    /// Another attempt may succeed.
    Passing(String),
    /// The collector does not want it.
    Refused(String),
}

pub(super) struct Exporter {
    endpoint: Endpoint,
    model: String,
    metrics: Arc<Metrics>,
    warnings: Throttle,
}

impl Exporter {
    pub(super) fn new(endpoint: Endpoint, model: &str, metrics: Arc<Metrics>) -> Self {
        Self { endpoint, model: model.to_owned(), metrics, warnings: Throttle::default() }
    }

    /// Exports until the senders are gone.
    pub(super) async fn run(mut self, mut messages: mpsc::Receiver<Message>) {
        let mut batch = Vec::with_capacity(BATCH);
        while let Some(first) = messages.recv().await {
            let due = tokio::time::Instant::now() + GATHER;
            let mut next = Some(first);
            let mut flushed = None;
            while let Some(message) = next {
                match message {
                    Message::Trace(trace) => batch.push(*trace),
                    Message::Flush(done) => flushed = Some(done),
                }
                if batch.len() == BATCH || flushed.is_some() {
                    break;
                }
                next = timeout_at(due, messages.recv()).await.unwrap_or(None);
            }
            if !batch.is_empty() {
                self.export(&batch).await;
                batch.clear();
            }
            if let Some(done) = flushed {
                let _ = done.send(());
            }
        }
    }

    async fn export(&mut self, batch: &[Trace]) {
        let spans = batch.iter().map(|trace| 1 + trace.phases.len()).sum();
        let body = Bytes::from(otlp::request(batch, &self.model, &Clock::now()));
        let mut pauses = PAUSES.iter();
        let reason = loop {
            let late = Err(Failure::Passing(format!("no answer in {} s", EXPORT_LIMIT.as_secs())));
            match timeout(EXPORT_LIMIT, self.post(body.clone())).await.unwrap_or(late) {
                Ok(()) => return self.metrics.record_spans(spans, 0),
                Err(Failure::Refused(reason)) => break reason,
                Err(Failure::Passing(reason)) => match pauses.next() {
                    Some(pause) => sleep(*pause).await,
                    None => break reason,
                },
            }
        };
        self.metrics.record_spans(0, spans);
        if self.warnings.pass() {
            tracing::warn!(
                spans,
                reason,
                at = %self.endpoint,
                "spans were dropped: the collector of telemetry.otlp_endpoint did not take them"
            );
        }
    }

    /// One attempt, on a connection of its own.
    async fn post(&self, body: Bytes) -> Result<(), Failure> {
        let passing = |error: &dyn std::error::Error| Failure::Passing(error.to_string());
        let stream = TcpStream::connect(&self.endpoint.authority).await.map_err(|e| passing(&e))?;
        let request = Request::post(&self.endpoint.path)
            .header(header::HOST, &self.endpoint.authority)
            .header(header::USER_AGENT, concat!("perigee/", env!("CARGO_PKG_VERSION")))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONNECTION, "close")
            .body(Full::new(body))
            .map_err(|e| Failure::Refused(e.to_string()))?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|e| passing(&e))?;
        let exchange = async {
            let answer = sender.send_request(request).await.map_err(|e| passing(&e))?;
            let status = answer.status();
            let text = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await;
            let text =
                text.map(|text| String::from_utf8_lossy(&text.to_bytes()).into_owned()).unwrap_or_default();
            let reason = || format!("{status}: {}", text.chars().take(200).collect::<String>());
            match status {
                status if status.is_success() => Ok(()),
                // What the protocol names as worth another attempt.
                StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT => Err(Failure::Passing(reason())),
                _ => Err(Failure::Refused(reason())),
            }
        };
        // Driven here, so that an attempt that is given up leaves no connection.
        let driver = async {
            let _ = connection.await;
            std::future::pending::<std::convert::Infallible>().await
        };
        tokio::select! {
            result = exchange => result,
            never = driver => match never {},
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints() {
        for (url, expected) in [
            ("http://collector:4318", "http://collector:4318/v1/traces"),
            ("http://collector", "http://collector:4318/v1/traces"),
            ("http://[::1]:80/otlp/", "http://[::1]:80/otlp/v1/traces"),
            ("http://c:1/v1/traces", "http://c:1/v1/traces"),
        ] {
            assert_eq!(url.parse::<Endpoint>().unwrap().to_string(), expected);
        }
        for wrong in [
            "",
            "collector:4318",
            "https://collector",
            "grpc://c:4317",
            "http://u:p@c",
            "http://c?x=1",
            "/v1/traces",
        ] {
            assert_eq!(wrong.parse::<Endpoint>(), Err(EndpointError), "{wrong}");
        }
    }
}
