//! A request that has ended, as a trace.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{Span, Trace, TraceContext, phases};
use crate::generate::{Timeline, Usage};

/// What the trace of a request tells.
pub(in crate::server) struct EndedRequest<'a> {
    pub(in crate::server) route: &'static str,
    pub(in crate::server) id: &'a str,
    /// Name of the client, where keys are set.
    pub(in crate::server) client: Option<&'a str>,
    /// HTTP status.
    pub(in crate::server) status: u16,
    /// Finish reason or code of the error.
    pub(in crate::server) finish: &'static str,
    pub(in crate::server) usage: &'a Usage,
    /// When its head was read.
    pub(in crate::server) began: Instant,
    /// From then to its first token.
    pub(in crate::server) ttft: Option<Duration>,
    /// From then to its last byte.
    pub(in crate::server) took: Duration,
    /// Of each reply.
    pub(in crate::server) timelines: &'a [Timeline],
}

impl EndedRequest<'_> {
    /// Its spans. The names of attributes are those of OpenTelemetry's conventions, and vLLM's.
    pub(in crate::server) fn trace(&self, context: TraceContext) -> Trace {
        let Self { usage, took, .. } = self;
        let ended = self.began + *took;
        let mut attributes = vec![
            ("http.request.method", json!("POST")),
            ("http.route", json!(self.route)),
            ("http.response.status_code", json!(self.status)),
            ("gen_ai.request.id", json!(self.id)),
            ("gen_ai.response.finish_reasons", json!([self.finish])),
            ("gen_ai.usage.input_tokens", json!(usage.prompt_tokens)),
            ("gen_ai.usage.output_tokens", json!(usage.completion_tokens)),
            ("gen_ai.usage.prompt_tokens", json!(usage.prompt_tokens)),
            ("gen_ai.usage.completion_tokens", json!(usage.completion_tokens)),
            ("gen_ai.latency.e2e", json!(took.as_secs_f64())),
        ];
        let waited = self.timelines.iter().filter_map(|t| Some(t.admitted? - t.submitted)).max();
        let latencies =
            [("gen_ai.latency.time_in_queue", waited), ("gen_ai.latency.time_to_first_token", self.ttft)];
        attributes
            .extend(latencies.into_iter().filter_map(|(key, time)| Some((key, json!(time?.as_secs_f64())))));
        attributes.extend(self.client.map(|client| ("perigee.client", json!(client))));
        let (begun, failed) = (self.began, self.status >= 500);
        let request = Span { name: self.route, begun, ended, attributes, failed };
        Trace { context, request, phases: phases::spans(self.timelines, begun, ended) }
    }
}
