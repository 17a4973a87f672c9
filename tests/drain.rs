//! The end of a server: what it answers while it drains, and what those are told whose time is
//! over.

use std::sync::Arc;

use perigee_http::server::{Config, Server};
use perigee_telemetry::{Exposition, Metrics};
use serde_json::{Value, json};

use crate::client::Client;
use crate::fake::{self, FakeEngine, MODEL, serve};

const TEXT: &str = "/v1/completions";

/// A request of each dialect.
fn requests() -> [(&'static str, Value); 4] {
    let messages = json!([{"role": "user", "content": "x"}]);
    [
        ("/v1/chat/completions", json!({"messages": messages})),
        (TEXT, json!({"prompt": "abc"})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 9})),
        ("/v1/responses", json!({"input": "x"})),
    ]
}

#[tokio::test]
async fn a_draining_server_finishes_what_runs_and_answers_the_rest() {
    let engine = FakeEngine::new(false);
    let server = serve(&engine, fake::config()).await;
    let addr = server.addr();
    let mut running = Client::connect(addr).await;
    let body = json!({"prompt": "abc", "max_tokens": 2, "seed": 0, "stream": true});
    running.start_post(TEXT, &body.to_string()).await;
    engine.wait(|c| c.submitted == 1).await;
    running.head().await.expect("a head");
    let mut idle = Client::connect(addr).await;
    assert_eq!(idle.get("/health/ready").await.status, 200);
    let drain = tokio::spawn(server.drain());
    while Client::connect(addr).await.get("/health/startup").await.json()["status"] != "draining" {}
    // On a connection that was open, and on new ones: the listener is open to the end.
    for (path, status) in [("/health", 200), ("/metrics", 200), ("/health/live", 200), ("/health/ready", 503)]
    {
        let mut client = Client::connect(addr).await;
        assert_eq!(client.get(path).await.status, status, "{path}");
    }
    let refused = idle.post(TEXT, &json!({"prompt": "abc"}).to_string()).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("server_draining")));
    assert_eq!((refused.header("retry-after"), refused.header("connection")), (Some("5"), Some("close")));
    assert!(idle.is_closed().await);
    engine.step();
    engine.step();
    let mut rest = Vec::new();
    while let Some(chunk) = running.chunk().await.expect("the stream ends properly") {
        rest.extend(chunk);
    }
    assert!(rest.ends_with(b"data: [DONE]\n\n"));
    assert_eq!(drain.await.unwrap().cut, 0);
    assert!(tokio::net::TcpStream::connect(addr).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn a_leaving_server_takes_requests_and_sends_routers_away() {
    let engine = FakeEngine::new(true);
    let server = serve(&engine, Config { drain_delay_s: 1e6, ..fake::config() }).await;
    let addr = server.addr();
    let left = tokio::spawn(async move {
        server.leave().await;
        server
    });
    while Client::connect(addr).await.get("/health/startup").await.json()["status"] != "leaving" {}
    for (path, status) in
        [("/health", 200), ("/health/live", 200), ("/health/ready", 503), ("/v1/models", 200)]
    {
        assert_eq!(Client::connect(addr).await.get(path).await.status, status, "{path}");
    }
    let mut client = Client::connect(addr).await;
    let answer = client.post(TEXT, &json!({"prompt": "abc"}).to_string()).await;
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    assert!(Client::connect(addr).await.get("/metrics").await.text().contains("perigee_draining 1\n"));
    left.abort();
}

#[tokio::test]
async fn the_end_of_a_drain_is_told_to_those_it_cuts() {
    let engine = FakeEngine::new(false);
    let config = Config { drain_timeout_s: 0.0, ..fake::config() };
    let metrics = Arc::new(Metrics::new(MODEL, true));
    let server = Server::start(config.clone(), metrics.clone()).await.unwrap();
    server.open(fake::api(&engine, &config, metrics.clone()));
    let (mut whole, mut streams) = (Vec::new(), Vec::new());
    for (path, mut body) in requests() {
        let mut client = Client::connect(server.addr()).await;
        client.start_post(path, &body.to_string()).await;
        whole.push((path, client));
        body["stream"] = true.into();
        let mut client = Client::connect(server.addr()).await;
        client.start_post(path, &body.to_string()).await;
        assert_eq!(client.head().await.expect("a head").status, 200);
        streams.push((path, client));
    }
    engine.wait(|c| c.submitted == 8).await;
    assert_eq!(server.drain().await.cut, 8);
    for (path, mut client) in whole {
        let response = client.response().await.expect("an answer");
        let body = response.json();
        assert_eq!((response.status, response.header("retry-after")), (503, Some("5")), "{path}");
        match path {
            "/v1/messages" => assert_eq!(
                (&body["type"], &body["error"]["type"]),
                (&json!("error"), &json!("overloaded_error"))
            ),
            _ => assert_eq!(body["error"]["code"], "shutdown", "{path}"),
        }
        assert!(body["error"]["message"].as_str().unwrap().contains("server.drain_timeout_s"), "{body}");
    }
    for (path, mut client) in streams {
        let mut text = String::new();
        while let Some(chunk) = client.chunk().await.expect("the stream ends properly") {
            text.push_str(&String::from_utf8(chunk).unwrap());
        }
        let (error, end) = match path {
            "/v1/messages" => ("event: error\n", true),
            "/v1/responses" => ("\"type\":\"error\"", true),
            _ => ("\"code\":\"shutdown\"", text.ends_with("\n\ndata: [DONE]\n\n")),
        };
        assert!(text.contains(error) && text.contains("server.drain_timeout_s") && end, "{path}: {text}");
    }
    assert_eq!(engine.counts().aborted, 8);
    assert!(!metrics.render(Exposition::Text).contains("status=\"499\""), "the clients did not leave");
}

/// Regression: a forced end closed streams without their error.
#[tokio::test]
async fn a_forced_end_is_told_to_those_it_cuts() {
    let engine = FakeEngine::new(false);
    let server = serve(&engine, Config { drain_timeout_s: 1e6, ..fake::config() }).await;
    let mut client = Client::connect(server.addr()).await;
    client.start_post(TEXT, &json!({"prompt": "abc", "stream": true}).to_string()).await;
    assert_eq!(client.head().await.expect("a head").status, 200);
    engine.wait(|c| c.submitted == 1).await;
    let (force, forced) = tokio::sync::oneshot::channel::<()>();
    let drain = tokio::spawn(server.drain_until(async { drop(forced.await) }));
    force.send(()).unwrap();
    let mut text = String::new();
    while let Some(chunk) = client.chunk().await.expect("the stream ends properly") {
        text.push_str(&String::from_utf8(chunk).unwrap());
    }
    assert!(text.contains("\"code\":\"shutdown\"") && text.ends_with("\n\ndata: [DONE]\n\n"), "{text}");
    assert_eq!(drain.await.unwrap().cut, 1);
}

#[tokio::test]
async fn a_client_that_reads_nothing_does_not_hold_the_end_up() {
    let engine = FakeEngine::new(true);
    let server = serve(&engine, Config { drain_timeout_s: 0.0, ..fake::config() }).await;
    let mut client = Client::connect(server.addr()).await;
    // A head that never becomes a request, and one whose body never comes.
    client.send(b"GET /health HTTP/1.1\r\n").await;
    let mut half = Client::connect(server.addr()).await;
    let head = format!(
        "POST {TEXT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{{"
    );
    half.send(head.as_bytes()).await;
    // The page counts the request for itself too.
    let in_flight = "\nperigee_http_requests_in_flight 2\n";
    while !Client::connect(server.addr()).await.get("/metrics").await.text().contains(in_flight) {}
    assert_eq!(server.drain().await.cut, 1);
    let response = half.response().await.expect("an answer");
    assert_eq!((response.status, &response.json()["error"]["code"]), (503, &json!("shutdown")));
    assert!(client.is_closed().await);
}
