//! Traces, from a request's headers to a collector.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;

use serde_json::{Value, json};

use crate::client::{Client, Response, post};
use crate::serve::{Served, runtime};

const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A collector that gives each answer of `statuses` in turn, and 200 from then on; the bodies it took.
fn collector(statuses: &'static [u16]) -> (String, mpsc::Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, bodies) = mpsc::channel();
    std::thread::spawn(move || {
        let mut statuses = statuses.iter();
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let (mut head, mut line) = (String::new(), String::new());
            while reader.read_line(&mut line).unwrap() > 2 {
                head += &std::mem::take(&mut line).to_lowercase();
            }
            assert!(
                head.starts_with("post /v1/traces http/1.1")
                    && head.contains("content-type: application/json"),
                "{head}"
            );
            let length =
                head.split("content-length: ").nth(1).unwrap().lines().next().unwrap().parse().unwrap();
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let status = statuses.next().copied().unwrap_or(200);
            // Handed on before the answer: when a server has ended, all that it exported is here.
            if status == 200 && sender.send(serde_json::from_slice(&body).unwrap()).is_err() {
                return;
            }
            let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: 2\r\n\r\n{{}}");
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
        }
    });
    (url, bodies)
}

fn spans_of(body: &Value) -> Vec<Value> {
    body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone()
}

fn attribute<'a>(span: &'a Value, key: &str) -> &'a Value {
    let attributes = span["attributes"].as_array().unwrap();
    attributes.iter().find(|a| a["key"] == key).map_or(&Value::Null, |a| &a["value"])
}

fn nanos(span: &Value, key: &str) -> u64 {
    span[key].as_str().unwrap().parse().unwrap()
}

/// The answer to one request, sent as it is.
fn exchange(served: &Served, request: &str) -> Response {
    runtime().block_on(async {
        let mut client = Client::connect(served.addr).await;
        client.send(request.as_bytes()).await;
        client.response().await.expect("an answer")
    })
}

#[test]
fn a_request_is_a_span_of_its_callers_trace_with_its_phases_below() {
    // The first attempt of the export fails.
    let (url, bodies) = collector(&[503]);
    let served = Served::start(None, &[&format!("telemetry.otlp_endpoint={url}")]);
    let tool = json!({"type": "function", "function": {"name": "get_weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": false}}});
    let body =
        json!({"messages": [{"role": "user", "content": "What is the weather in Paris?"}], "tools": [tool],
        "tool_choice": "required", "temperature": 0, "max_tokens": 100, "stream": true})
        .to_string();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nx-request-id: traced\r\n\
         traceparent: {CALLER}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let response = exchange(&served, &request);
    assert_eq!(response.status, 200, "{}", response.text());
    let answered = response.header("traceresponse").unwrap().to_owned();
    assert!(
        answered.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && answered.ends_with("-01"),
        "{answered}"
    );
    let mut spans = spans_of(&bodies.recv().unwrap());
    let root = spans.remove(0);
    assert_eq!((root["name"].as_str(), root["kind"].as_u64()), (Some("/v1/chat/completions"), Some(2)));
    assert_eq!(
        (root["traceId"].as_str(), root["parentSpanId"].as_str()),
        (Some(&CALLER[3..35]), Some(&CALLER[36..52]))
    );
    assert_eq!(root["spanId"].as_str(), Some(&answered[36..52]));
    assert_eq!(*attribute(&root, "gen_ai.request.id"), json!({"stringValue": "traced"}));
    assert_eq!(*attribute(&root, "http.response.status_code"), json!({"intValue": "200"}));
    assert_eq!(
        *attribute(&root, "gen_ai.response.finish_reasons"),
        json!({"arrayValue": {"values": [{"stringValue": "tool_calls"}]}})
    );
    let names: Vec<&str> = spans.iter().map(|span| span["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["prepare", "queue", "prefill", "decode", "tool call"]);
    assert_eq!(*attribute(&spans[4], "gen_ai.tool.name"), json!({"stringValue": "get_weather"}));
    for span in &spans {
        assert_eq!((&span["traceId"], &span["parentSpanId"]), (&root["traceId"], &root["spanId"]));
        let (begun, ended) = (nanos(span, "startTimeUnixNano"), nanos(span, "endTimeUnixNano"));
        assert!(begun <= ended, "{span}");
        assert!(
            nanos(&root, "startTimeUnixNano") <= begun && ended <= nanos(&root, "endTimeUnixNano"),
            "{span}"
        );
    }
    for pair in spans[..4].windows(2) {
        assert_eq!(pair[0]["endTimeUnixNano"], pair[1]["startTimeUnixNano"]);
    }

    // The page of metrics leads to the trace, for who asks for a form that can.
    let scrape = "GET /metrics HTTP/1.1\r\nhost: localhost\r\naccept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n\r\n";
    let page = exchange(&served, scrape);
    assert_eq!(
        page.header("content-type"),
        Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
    let exemplar = format!(" # {{trace_id=\"{}\"}} ", &CALLER[3..35]);
    let led: Vec<&str> = page.text().lines().filter(|line| line.contains(&exemplar)).collect();
    assert!(
        matches!(led[..], [request, first] if request.starts_with("perigee_http_request_duration_seconds_bucket{route=\"/v1/chat/completions\",")
            && first.starts_with("perigee_time_to_first_token_seconds_bucket{")),
        "{led:?}"
    );

    // A request that is refused has no phases; one whose caller does not sample has no span at all.
    let unsampled = request.replace(CALLER, &CALLER.replace("-01", "-00"));
    assert!(exchange(&served, &unsampled).header("traceresponse").unwrap().ends_with("-00"));
    let refused = body.replace("\"temperature\":0", "\"temperature\":9");
    let request = request.replace(&body, &refused).replace(&format!("traceparent: {CALLER}\r\n"), "");
    assert_eq!(exchange(&served, &request).status, 400);
    // What was not exported yet is exported before the process ends.
    assert_eq!(served.terminate(), Some(0));
    let spans: Vec<Value> = bodies.try_iter().flat_map(|body| spans_of(&body)).collect();
    assert_eq!(spans.len(), 1, "{spans:?}");
    assert_eq!(spans[0].get("parentSpanId"), None);
    assert_eq!(*attribute(&spans[0], "http.response.status_code"), json!({"intValue": "400"}));
}

#[test]
fn a_collector_that_is_not_there_costs_spans_and_nothing_else() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let served = Served::start(None, &[&format!("telemetry.otlp_endpoint=http://{gone}")]);
    let body = r#"{"prompt": "x", "max_tokens": 2}"#;
    assert_eq!(exchange(&served, &post("/v1/completions", body)).status, 200);
    assert_eq!(served.terminate(), Some(0));
}
