//! The phases of a request's replies, as spans.

use std::time::Instant;

use serde_json::{Value, json};

use super::Span;
use crate::generate::Timeline;

/// Spans of the replies: preparing the prompt, waiting in the queue, computing the prompt, decoding, the guard's findings and the
/// writing of each tool call. A phase that had not ended at `ended` ends there.
pub(super) fn spans(timelines: &[Timeline], begun: Instant, ended: Instant) -> Vec<Span> {
    let mut spans = Vec::new();
    if let Some(submitted) = timelines.iter().map(|timeline| timeline.submitted).min() {
        spans.push(span("prepare", begun, submitted, vec![]));
    }
    for (choice, timeline) in timelines.iter().enumerate() {
        let of = |mut attributes: Vec<(&'static str, Value)>| {
            attributes.push(("perigee.choice", json!(choice)));
            attributes
        };
        let end = timeline.ended.unwrap_or(ended);
        let admitted = timeline.admitted.unwrap_or(end);
        spans.push(span("queue", timeline.submitted, admitted, of(vec![])));
        if timeline.admitted.is_none() {
            continue;
        }
        let first = timeline.first_token.unwrap_or(end);
        let cached = ("perigee.cached_tokens", json!(timeline.cached_tokens));
        spans.push(span("prefill", admitted, first, of(vec![cached])));
        if timeline.first_token.is_none() {
            continue;
        }
        spans.push(span(
            "decode",
            first,
            end,
            of(vec![("gen_ai.usage.output_tokens", json!(timeline.tokens))]),
        ));
        for finding in &timeline.findings {
            let attributes = vec![
                ("perigee.guard.kind", json!(finding.kind)),
                ("perigee.guard.action", json!(finding.action)),
            ];
            spans.push(span("guard", finding.at, finding.at, of(attributes)));
        }
        for call in &timeline.calls {
            let name = ("gen_ai.tool.name", json!(call.name));
            spans.push(span("tool call", call.begun, call.ended.unwrap_or(end), of(vec![name])));
        }
    }
    spans
}

fn span(name: &'static str, begun: Instant, ended: Instant, attributes: Vec<(&'static str, Value)>) -> Span {
    Span { name, begun, ended, attributes, failed: false }
}
