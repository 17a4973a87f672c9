//! One log line and one metric per request, written at its end: answered, failed, cut by a
//! shutdown, or abandoned by its client.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::activity::Busy;
use super::audit::{self, Source};
use super::clients::{LimitHeaders, Metered};
use super::ledger::Entry;
use super::shared::{Running, Shared};
use super::traces::{EndedRequest, TraceContext};
use crate::api::{ApiError, Owner, Route, Share, Summary};
use crate::generate::Usage;
use perigee_telemetry::{ClientFigures, PAGE_ROUTE, RequestRecord};

/// Status recorded for a client that disconnected before its answer was complete; never sent.
const CLIENT_LEFT: u16 = 499;

/// Follows a request from its head to the last byte of its answer; writes the log line on drop.
/// Never holds a prompt.
pub(super) struct RequestLog {
    shared: Arc<Shared>,
    pub(super) id: String,
    /// Whether the built-in page asks for what it shows: metrics count such requests apart.
    pub(super) is_of_page: bool,
    /// `None`: of a path that has none.
    route: Option<&'static Route>,
    began: Instant,
    status: Option<u16>,
    /// The request's figures as far as they are known.
    pub(super) summary: Summary,
    pub(super) source: Source,
    /// The client's account, where keys are set.
    pub(super) metered: Option<Metered>,
    /// What the answer says of the client's limits.
    pub(super) limit_headers: LimitHeaders,
    /// Most tokens of a reply to this client; `None` = no limit of its own.
    pub(super) max_tokens: Option<u32>,
    /// The request in the ledger, until it is settled.
    pub(super) entry: Option<Entry>,
    /// Name of the client; `None` where no keys are set.
    pub(super) client: Option<Arc<str>>,
    /// The client's share of the queue.
    pub(super) share: Option<Share>,
    /// The client that stored responses belong to.
    pub(super) owner: Owner,
    /// Its place in a trace, where traces are exported.
    pub(super) context: Option<TraceContext>,
    /// Set when the connection has taken the whole answer.
    complete: bool,
    /// Keeps the connection marked as busy.
    pub(super) busy: Option<Busy>,
    /// Keeps a drain waiting.
    running: Option<Running>,
}

impl RequestLog {
    pub(super) fn begin(
        shared: Arc<Shared>,
        id: String,
        route: Option<&'static Route>,
        busy: Busy,
        source: Source,
    ) -> Self {
        shared.metrics.record_in_flight(true);
        Self {
            shared,
            id,
            is_of_page: false,
            route,
            began: Instant::now(),
            status: None,
            summary: Summary::default(),
            source,
            metered: None,
            limit_headers: Vec::new(),
            max_tokens: None,
            entry: None,
            client: None,
            share: None,
            owner: Owner::default(),
            context: None,
            complete: false,
            busy: Some(busy),
            running: None,
        }
    }

    /// Makes a drain wait for this request from now on.
    pub(super) fn runs(&mut self, running: Running) {
        self.running = Some(running);
    }

    pub(super) fn answered(&mut self, status: u16) {
        self.status = Some(status);
    }

    /// Writes down what the request came to, before its client is told. What happens to the answer's last bytes changes nothing.
    pub(super) fn settle(&mut self, status: u16, summary: &Summary) {
        if let Some(entry) = self.entry.take() {
            entry.end(status, summary.finish, summary, self.began.elapsed());
        }
    }

    pub(super) fn complete(&mut self) {
        self.complete = true;
    }
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        let route = self.route.map_or("other", |route| route.name);
        let mut summary = std::mem::take(&mut self.summary);
        let (status, finish) = match self.status.filter(|_| self.complete) {
            Some(status) => (status, summary.finish),
            // The server closed the connection on a client that did not read its answer.
            None if self.shared.is_cut() => {
                let error = ApiError::shutdown();
                (error.status, error.code)
            }
            None => (CLIENT_LEFT, "client_left"),
        };
        summary.finish = finish;
        self.settle(status, &summary);
        let Summary { usage, ttft, finish, timelines, request_id, .. } = summary;
        let metrics = &self.shared.metrics;
        metrics.record_in_flight(false);
        metrics.record_http(if self.is_of_page { PAGE_ROUTE } else { route }, status, took);
        // Before the metrics: what they count no longer counts against a limit.
        if let Some(metered) = self.metered.take() {
            metered.charge(usage.prompt_tokens + usage.completion_tokens);
        }
        if let Some(client) = &self.client {
            metrics.record_client(client, status, &client_figures(&usage, ttft));
        }
        if self.route.is_some_and(Route::generates) {
            metrics.record_objectives(status, ttft, took, usage.completion_tokens);
        }
        metrics.record_tool_calls(usage.calls);
        let total_ms = milliseconds(took);
        if self.route.is_some_and(Route::needs_admin) && ![401, 403].contains(&status) {
            audit::operator_did(&self.source, &self.id, route, status);
        }
        if !self.route.is_some_and(Route::is_logged) {
            tracing::debug!(id = self.id, route, status, total_ms, "request");
            return;
        }
        tracing::info!(
            id = self.id,
            request_id,
            client = self.client.as_deref(),
            route,
            status,
            prompt_tokens = usage.prompt_tokens,
            cached_tokens = usage.cached_tokens,
            completion_tokens = usage.completion_tokens,
            ttft_ms = ttft.map(milliseconds),
            total_ms,
            finish,
            calls_mended = nonzero(usage.calls[1]),
            calls_invalid = nonzero(usage.calls[2]),
            peer = self.source.peer_name(),
            forwarded_for = self.source.forwarded_for.map(|address| address.to_string()),
            agent = self.source.agent,
            trace_id = self.context.as_ref().map(|context| format!("{:032x}", context.trace_id)),
            "request"
        );
        metrics.flight().request(RequestRecord {
            id: self.id.clone(),
            client: self.client.as_deref().map(str::to_owned),
            route,
            status,
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            ttft,
            took,
            finish,
        });
        let context = self.context.take().filter(|context| context.sampled);
        if let (Some(traces), Some(context)) = (self.shared.traces.get(), context) {
            metrics.note_trace(route, context.trace_id, took, ttft);
            let request = EndedRequest {
                route,
                id: &self.id,
                client: self.client.as_deref(),
                status,
                finish,
                usage: &usage,
                began: self.began,
                ttft,
                took,
                timelines: &timelines,
            };
            traces.export(request.trace(context));
        }
    }
}

/// What metrics show of a client's request.
fn client_figures(usage: &Usage, ttft: Option<Duration>) -> ClientFigures {
    ClientFigures {
        prompt_tokens: usage.prompt_tokens,
        cached_tokens: usage.cached_tokens,
        image_tokens: usage.image_tokens,
        reply_tokens: usage.completion_tokens,
        reasoning_tokens: usage.reasoning_tokens,
        ttft,
    }
}

/// A count that is worth a word.
fn nonzero(count: usize) -> Option<usize> {
    Some(count).filter(|count| *count > 0)
}

/// Milliseconds with three decimals.
fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}
