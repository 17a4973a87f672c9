//! The end of a server: what it answers while it drains, and what those are told whose time is
//! over.

use std::sync::Arc;

use perigee_http::server::{Config, Server};
use perigee_telemetry::{Exposition, Metrics};
use serde_json::{Value, json};

use crate::client::Client;
use crate::fake::{self, FakeEngine, MODEL, serve};

const TEXT: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";

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

/// A response that is asked for in the background, in progress.
async fn begin(server: &Server, client: &mut Client, more: Value) -> Value {
    let mut body = json!({"input": "x", "max_output_tokens": 2, "seed": 0, "background": true});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let answer = client.post(RESPONSES, &body.to_string()).await;
    let begun = answer.json();
    assert_eq!((answer.status, &begun["status"]), (200, &json!("in_progress")), "{begun}");
    assert_eq!((&begun["background"], &begun["output"]), (&json!(true), &json!([])));
    let path = format!("{RESPONSES}/{}", begun["id"].as_str().unwrap());
    assert_eq!(Client::connect(server.addr()).await.get(&path).await.json(), begun);
    begun
}

#[tokio::test]
async fn a_drain_waits_for_responses_in_the_background() {
    let engine = FakeEngine::new(false);
    let server = serve(&engine, fake::config()).await;
    let addr = server.addr();
    // Its connection may go.
    let begun = begin(&server, &mut Client::connect(addr).await, json!({})).await;
    let path = format!("{RESPONSES}/{}", begun["id"].as_str().unwrap());
    engine.wait(|c| c.submitted == 1).await;
    let mut waiting = Client::connect(addr).await;
    waiting
        .start_post(RESPONSES, &json!({"input": "y", "seed": 0, "max_output_tokens": 4}).to_string())
        .await;
    engine.wait(|c| c.submitted == 2).await;
    let drain = tokio::spawn(server.drain());
    while Client::connect(addr).await.get("/health/startup").await.json()["status"] != "draining" {}
    engine.step();
    assert_eq!(Client::connect(addr).await.get(&path).await.json()["status"], "in_progress");
    engine.step();
    engine.wait(|c| c.finished == 1).await;
    // It can be retrieved while the drain waits for another.
    let ended = loop {
        let response = Client::connect(addr).await.get(&path).await.json();
        if response["status"] != "in_progress" {
            break response;
        }
    };
    assert_eq!(
        (&ended["id"], &ended["status"], &ended["background"]),
        (&begun["id"], &json!("incomplete"), &json!(true))
    );
    assert_eq!(ended["usage"]["output_tokens"], 2, "{ended}");
    (0..4).for_each(|_| engine.step());
    assert_eq!(waiting.response().await.unwrap().status, 200);
    assert_eq!(drain.await.unwrap().cut, 0);
}

#[tokio::test]
async fn a_response_in_the_background_is_cancelled_deleted_and_bounded() {
    let engine = FakeEngine::new(false);
    let one = json!([{"key": "k", "max_concurrent": 1}]);
    let config = Config { api_keys: serde_json::from_value(one).unwrap(), ..fake::config() };
    let metrics = Arc::new(Metrics::new(MODEL, true));
    let server = Server::start(config.clone(), metrics.clone()).await.unwrap();
    server.open(fake::api(&engine, &config, metrics.clone()));
    let send = async |line: &str, body: &str| {
        let mut client = Client::connect(server.addr()).await;
        let kind = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
        let head = format!(
            "{line} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer k\r\n{kind}content-length: {}\r\n\r\n{body}",
            body.len()
        );
        client.send(head.as_bytes()).await;
        let response = client.response().await.unwrap();
        (response.status, response.json())
    };
    let ask = json!({"input": "x", "max_output_tokens": 2, "seed": 0, "background": true});
    let post = format!("POST {RESPONSES}");
    let begin = async |body: &Value| {
        // The work that ended before gives its place back in its own time.
        loop {
            let (status, begun) = send(&post, &body.to_string()).await;
            if status != 429 {
                assert_eq!(status, 200, "{begun}");
                break begun["id"].as_str().unwrap().to_owned();
            }
        }
    };
    let id = begin(&ask).await;
    // It holds its client's place while it is worked on.
    assert_eq!(send(&post, &ask.to_string()).await.0, 429);
    let goes_on = json!({"input": "y", "previous_response_id": id});
    let (status, error) = send(&format!("{post}/input_tokens"), &goes_on.to_string()).await;
    assert_eq!((status, &error["error"]["code"]), (400, &json!("response_in_progress")));
    let cancel = format!("POST {RESPONSES}/{id}/cancel");
    for _ in 0..2 {
        let (status, cancelled) = send(&cancel, "").await;
        assert_eq!((status, &cancelled["status"], &cancelled["id"]), (200, &json!("cancelled"), &json!(id)));
    }
    engine.wait(|c| c.aborted == 1).await;
    assert_eq!(send(&format!("GET {RESPONSES}/{id}"), "").await.1["status"], "cancelled");

    let id = begin(&ask).await;
    assert_eq!(send(&format!("DELETE {RESPONSES}/{id}"), "").await.0, 200);
    engine.wait(|c| c.aborted == 2).await;
    assert_eq!(send(&format!("GET {RESPONSES}/{id}"), "").await.0, 404);
    assert_eq!(send(&format!("POST {RESPONSES}/{id}/cancel"), "").await.0, 404);

    let id = begin(&ask).await;
    engine.wait(|c| c.submitted == 3).await;
    (0..2).for_each(|_| engine.step());
    engine.wait(|c| c.finished == 1).await;
    while send(&format!("GET {RESPONSES}/{id}"), "").await.1["status"] == "in_progress" {}
    assert_eq!(send(&format!("POST {RESPONSES}/{id}/cancel"), "").await.1["status"], "incomplete");

    for (field, value, param) in [("stream", true, "stream"), ("store", false, "background")] {
        let mut body = ask.clone();
        body[field] = value.into();
        let (status, error) = send(&post, &body.to_string()).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!(param)), "{error}");
    }
    server.drain().await;
    let page = metrics.render(Exposition::Text);
    assert!(
        page.contains("route=\"/v1/responses\",status=\"200\"") && !page.contains("status=\"499\""),
        "{page}"
    );
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
    begin(&server, &mut Client::connect(server.addr()).await, json!({})).await;
    engine.wait(|c| c.submitted == 9).await;
    assert_eq!(server.drain().await.cut, 9);
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
    assert_eq!(engine.counts().aborted, 9);
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
