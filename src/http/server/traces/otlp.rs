//! The OpenTelemetry protocol: `ExportTraceServiceRequest` in its JSON form (OTLP 1.3; ids in hexadecimal, 64-bit numbers as text).

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::{Span, Trace};

/// Kinds of a span.
const INTERNAL: u8 = 1;
const SERVER: u8 = 2;
/// Status of a span that failed.
const ERROR: u8 = 2;

/// Relates the clock of spans to Unix time, at one moment.
pub(super) struct Clock {
    instant: Instant,
    unix_nanos: u128,
}

impl Clock {
    pub(super) fn now() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { instant: Instant::now(), unix_nanos: unix.as_nanos() }
    }

    fn unix_nanos(&self, at: Instant) -> String {
        let ago = self.instant.saturating_duration_since(at).as_nanos();
        self.unix_nanos.saturating_sub(ago).to_string()
    }
}

/// The request that exports `traces`.
pub(super) fn request(traces: &[Trace], model: &str, clock: &Clock) -> Vec<u8> {
    let spans: Vec<Value> = traces.iter().flat_map(|trace| spans(trace, model, clock)).collect();
    json!({
        "resourceSpans": [{
            "resource": {"attributes": [
                attribute("service.name", &json!("perigee")),
                attribute("service.version", &json!(env!("CARGO_PKG_VERSION"))),
            ]},
            "scopeSpans": [{
                "scope": {"name": "perigee", "version": env!("CARGO_PKG_VERSION")},
                "spans": spans,
            }],
        }],
    })
    .to_string()
    .into_bytes()
}

fn spans(trace: &Trace, model: &str, clock: &Clock) -> Vec<Value> {
    let context = &trace.context;
    let mut root = span(&trace.request, context.span_id, context.parent, SERVER, trace, clock);
    if let Some(attributes) = root["attributes"].as_array_mut() {
        attributes.push(attribute("gen_ai.response.model", &json!(model)));
    }
    let phases = trace.phases.iter();
    let phases =
        phases.map(|phase| span(phase, fastrand::u64(1..), Some(context.span_id), INTERNAL, trace, clock));
    std::iter::once(root).chain(phases).collect()
}

fn span(span: &Span, id: u64, parent: Option<u64>, kind: u8, trace: &Trace, clock: &Clock) -> Value {
    let mut form = json!({
        "traceId": format!("{:032x}", trace.context.trace_id),
        "spanId": format!("{id:016x}"),
        "name": span.name,
        "kind": kind,
        "startTimeUnixNano": clock.unix_nanos(span.begun),
        "endTimeUnixNano": clock.unix_nanos(span.ended.max(span.begun)),
        "attributes": span.attributes.iter().map(|(key, value)| attribute(key, value)).collect::<Vec<_>>(),
    });
    if let Some(parent) = parent {
        form["parentSpanId"] = format!("{parent:016x}").into();
    }
    if let Some(state) = &trace.context.state {
        form["traceState"] = state.as_str().into();
    }
    if span.failed {
        form["status"] = json!({"code": ERROR});
    }
    form
}

/// A `KeyValue`.
fn attribute(key: &str, value: &Value) -> Value {
    json!({"key": key, "value": any_value(value)})
}

/// An `AnyValue`. Objects and nulls have no use here and are written as text.
fn any_value(value: &Value) -> Value {
    match value {
        Value::String(text) => json!({"stringValue": text}),
        Value::Bool(flag) => json!({"boolValue": flag}),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => json!({"intValue": whole.to_string()}),
            None => json!({"doubleValue": number.as_f64()}),
        },
        Value::Array(values) => {
            json!({"arrayValue": {"values": values.iter().map(any_value).collect::<Vec<_>>()}})
        }
        other => json!({"stringValue": other.to_string()}),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::TraceContext;
    use super::*;

    #[test]
    fn a_trace_in_the_form_of_the_protocol() {
        let clock = Clock { instant: Instant::now(), unix_nanos: 1_700_000_000_000_000_000 };
        let at = |ms_ago: u64| clock.instant.checked_sub(Duration::from_millis(ms_ago)).unwrap();
        let span = |name, from, to, attributes| Span {
            name,
            begun: at(from),
            ended: at(to),
            attributes,
            failed: false,
        };
        let caller = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context =
            TraceContext { span_id: 0xab, ..TraceContext::of_headers(Some(caller), Some("v=1"), 1.0) };
        let request = Span {
            failed: true,
            ..span("/v1/x", 5, 0, vec![("a", json!(3)), ("b", json!(0.5)), ("c", json!(["x"]))])
        };
        let trace = Trace { context, request, phases: vec![span("queue", 5, 2, vec![])] };
        let mut found: Value = serde_json::from_slice(&super::request(&[trace], "m", &clock)).unwrap();
        let spans = found["resourceSpans"][0]["scopeSpans"][0]["spans"].take();
        assert_eq!(
            spans[0],
            json!({
                "traceId": "4bf92f3577b34da6a3ce929d0e0e4736",
                "spanId": "00000000000000ab",
                "name": "/v1/x",
                "kind": 2,
                "startTimeUnixNano": "1699999999995000000",
                "endTimeUnixNano": "1700000000000000000",
                "attributes": [
                    {"key": "a", "value": {"intValue": "3"}},
                    {"key": "b", "value": {"doubleValue": 0.5}},
                    {"key": "c", "value": {"arrayValue": {"values": [{"stringValue": "x"}]}}},
                    {"key": "gen_ai.response.model", "value": {"stringValue": "m"}},
                ],
                "parentSpanId": "00f067aa0ba902b7",
                "traceState": "v=1",
                "status": {"code": 2},
            })
        );
        assert_eq!(
            (&spans[1]["name"], &spans[1]["parentSpanId"]),
            (&json!("queue"), &json!("00000000000000ab"))
        );
        assert_eq!(spans[1]["endTimeUnixNano"], "1699999999998000000");
        let resource = &found["resourceSpans"][0]["resource"]["attributes"][0];
        assert_eq!(*resource, json!({"key": "service.name", "value": {"stringValue": "perigee"}}));
    }
}
