//! Keys: which routes they open, what each may use, and how both change while the server runs.

use std::path::Path;

use perigee_engine::scheduler::FinishReason;
use perigee_http::api::{Access, Method, ROUTES};
use perigee_http::server::{ApiKey, Config, Secret};
use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::fake::{self, FakeEngine, serve};
use crate::serve::{Served, runtime};

/// Paths that need no key; health never does.
const OPEN: &[&str] = &[
    "/health",
    "/health/live",
    "/health/ready",
    "/health/startup",
    "/metrics",
    "/version",
    "/openapi.json",
    "/docs",
    "/",
    "/page/load",
    "/page/app.js",
];

fn key(text: &str) -> ApiKey {
    serde_json::from_value(json!(text)).unwrap()
}

async fn send(client: &mut Client, method: &str, path: &str, key: Option<&str>, body: &str) -> Response {
    let key = key.map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\n{key}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    client.send(head.as_bytes()).await;
    client.response().await.expect("an answer")
}

const PROMPT: &str = r#"{"prompt": [1, 2, 3], "max_tokens": 2}"#;

#[tokio::test]
async fn every_route_but_the_open_ones_needs_a_key() {
    let config = Config {
        api_keys: vec![key("{ name = \"a\", key = \"right\" }")],
        admin_key: Some(Secret::new("root")),
        ..fake::config()
    };
    let server = serve(&FakeEngine::new(true), config).await;
    let mut closed = 0;
    for route in &ROUTES {
        let name = if route.name == "/page/{name}" { "app.js" } else { fake::MODEL };
        let path = route.name.replace("{name}", name);
        let method = match route.method {
            Method::Get => "GET",
            Method::GetOrDelete => "DELETE",
            Method::Post => "POST",
        };
        for wrong in [None, Some("wrong"), Some("righ"), Some("right2"), Some("")] {
            let mut client = Client::connect(server.addr()).await;
            let status = send(&mut client, method, &path, wrong, "{}").await.status;
            let expected = if OPEN.contains(&&*path) { 200 } else { 401 };
            assert_eq!(status, expected, "{method} {path} with {wrong:?}");
            // However its slashes are written, it is the same route.
            for path in [format!("/{path}"), format!("{path}/"), path.replacen('/', "///", 2) + "//"] {
                let status = send(&mut client, method, &path, wrong, "{}").await.status;
                assert_eq!(status == 401, expected == 401, "{method} {path} with {wrong:?}: {status}");
            }
        }
        closed += usize::from(!OPEN.contains(&&*path));
        let mut client = Client::connect(server.addr()).await;
        let status = send(&mut client, method, &path, Some("right"), "{}").await.status;
        assert_eq!(
            status == 403,
            route.access == Access::Admin,
            "{method} {path} with a client's key: {status}"
        );
        assert_ne!(status, 401, "{method} {path}");
        let doubled = send(&mut client, method, &format!("/{path}/"), Some("right"), "{}").await.status;
        assert_eq!(doubled == 403, route.access == Access::Admin, "{method} /{path}/: {doubled}");
        let status = send(&mut client, method, &path, Some("root"), "{}").await.status;
        assert!(![401, 403].contains(&status), "{method} {path} with the operator's key: {status}");
    }
    assert!(closed > 15, "{closed} routes need a key");
}

#[tokio::test]
async fn without_an_admin_key_admin_routes_say_what_to_set() {
    let server = serve(&FakeEngine::new(true), fake::config()).await;
    let mut client = Client::connect(server.addr()).await;
    let refused = send(&mut client, "POST", "/admin/reload", None, "").await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (403, &json!("no_admin_key")));
    assert!(refused.text().contains("server.admin_key"));
}

#[tokio::test]
async fn limits_are_answered_with_the_truth() {
    let keys = vec![
        key("{ name = \"few\", key = \"k1\", requests_per_minute = 2 }"),
        key("{ name = \"short\", key = \"k2\", tokens_per_minute = 4 }"),
        key("{ name = \"free\", key = \"k3\" }"),
    ];
    let server = serve(&FakeEngine::new(true), Config { api_keys: keys, ..fake::config() }).await;
    let mut client = Client::connect(server.addr()).await;
    let first = send(&mut client, "POST", "/v1/completions", Some("k1"), PROMPT).await;
    assert_eq!((first.status, first.header("x-ratelimit-limit-requests")), (200, Some("2")));
    assert_eq!(first.header("x-ratelimit-remaining-requests"), Some("1"));
    // Routes that give no reply do not count.
    assert_eq!(send(&mut client, "POST", "/tokenize", Some("k1"), r#"{"prompt": "x"}"#).await.status, 200);
    assert_eq!(send(&mut client, "POST", "/v1/completions", Some("k1"), PROMPT).await.status, 200);
    let refused = send(&mut client, "POST", "/v1/completions", Some("k1"), PROMPT).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (429, &json!("rate_limit_exceeded")));
    let wait: u32 = refused.header("retry-after").expect("a time").parse().unwrap();
    assert!((25..=30).contains(&wait), "one request in 30 s: {wait}");
    assert!(refused.text().contains("`few` has used its requests_per_minute of 2"), "{}", refused.text());
    // 3 tokens of the prompt and 2 of the reply: one more than there are, known only at the end.
    assert_eq!(send(&mut client, "POST", "/v1/completions", Some("k2"), PROMPT).await.status, 200);
    let refused = send(&mut client, "POST", "/v1/completions", Some("k2"), PROMPT).await;
    assert!(refused.status == 429 && refused.text().contains("tokens_per_minute of 4"), "{}", refused.text());
    for _ in 0..5 {
        assert_eq!(send(&mut client, "POST", "/v1/completions", Some("k3"), PROMPT).await.status, 200);
    }
    let metrics = client.get("/metrics").await;
    let metrics = metrics.text();
    for line in [
        "perigee_client_requests_total{client=\"few\",status=\"200\"} 3",
        "perigee_client_requests_total{client=\"few\",status=\"429\"} 1",
        "perigee_client_tokens_total{client=\"free\",kind=\"prompt\"} 15",
        "perigee_client_tokens_total{client=\"free\",kind=\"reply\"} 10",
    ] {
        assert!(metrics.contains(line), "{line} is missing");
    }
}

#[tokio::test]
async fn requests_at_once_count_until_their_last_byte() {
    let keys = vec![key("{ key = \"k\", max_concurrent = 1 }")];
    let engine = FakeEngine::new(false);
    let server = serve(&engine, Config { api_keys: keys, ..fake::config() }).await;
    let mut first = Client::connect(server.addr()).await;
    let body = r#"{"prompt": [1, 2, 3], "max_tokens": 2, "stream": true}"#;
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer k\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    first.send(head.as_bytes()).await;
    engine.wait(|counts| counts.submitted == 1).await;
    let mut second = Client::connect(server.addr()).await;
    let refused = send(&mut second, "POST", "/v1/completions", Some("k"), PROMPT).await;
    assert!(refused.status == 429 && refused.text().contains("max_concurrent of 1"), "{}", refused.text());
    drop(first);
    engine.wait(|counts| counts.aborted == 1).await;
    let left = "perigee_client_requests_total{client=\"key-1\",status=\"499\"} 1";
    while !second.get("/metrics").await.text().contains(left) {}
    second.send(head.as_bytes()).await;
    engine.wait(|counts| counts.submitted == 2).await;
}

#[tokio::test]
async fn replies_that_nobody_gets_are_charged() {
    let keys = vec![key("{ name = \"a\", key = \"k\", tokens_per_minute = 6 }")];
    let engine = FakeEngine::new(false);
    let server = serve(&engine, Config { api_keys: keys, ..fake::config() }).await;
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer k\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{PROMPT}",
        PROMPT.len()
    );
    let mut client = Client::connect(server.addr()).await;
    client.send(head.as_bytes()).await;
    engine.wait(|counts| counts.submitted == 1).await;
    engine.step();
    engine.end_all(FinishReason::Deadline);
    assert_eq!(client.response().await.expect("an answer").status, 504);
    let count = "perigee_client_tokens_total{client=\"a\",kind=";
    let lines = [format!("{count}\"prompt\"}} 3\n"), format!("{count}\"reply\"}} 1\n")];
    let page = client.get("/metrics").await;
    assert!(lines.iter().all(|line| page.text().contains(line)), "{}", page.text());
    let mut leaves = Client::connect(server.addr()).await;
    leaves.send(head.as_bytes()).await;
    engine.wait(|counts| counts.submitted == 2).await;
    drop(leaves);
    engine.wait(|counts| counts.aborted == 1).await;
    let left = "perigee_client_requests_total{client=\"a\",status=\"499\"} 1";
    while !client.get("/metrics").await.text().contains(left) {}
    let refused = send(&mut client, "POST", "/v1/completions", Some("k"), PROMPT).await;
    assert!(refused.status == 429 && refused.text().contains("tokens_per_minute of 6"), "{}", refused.text());
}

/// Settings of a server that a reload changes.
fn write_settings(path: &Path, keys: &str, rest: &str) {
    let text = format!("[server]\nadmin_key = \"root\"\napi_keys = [{keys}]\n{rest}");
    std::fs::write(path, text).unwrap();
}

#[test]
fn a_reload_changes_keys_policy_and_guard_at_once_or_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("site.toml");
    write_settings(&file, "\"k1\"", "[guard]\nmode = \"warn\"\n");
    let served = Served::start_with(&["--config", file.to_str().unwrap()]);
    runtime().block_on(async {
        let mut client = Client::connect(served.addr).await;
        let reply = |max: u32| json!({"prompt": "x", "max_tokens": max}).to_string();
        let generate = async |client: &mut Client, key, max| {
            send(client, "POST", "/v1/completions", Some(key), &reply(max)).await
        };
        assert_eq!(generate(&mut client, "k1", 1).await.status, 200);
        let first = client.get("/version").await.json()["settings_digest"].clone();
        assert!(first.as_str().is_some_and(|digest| digest.len() == 16), "{first}");
        // A file that is wrong changes nothing, and says what is wrong.
        write_settings(&file, "\"k2\"", "[guard]\nmode = \"sleepy\"\n");
        let refused = send(&mut client, "POST", "/admin/reload", Some("root"), "").await;
        assert_eq!((refused.status, &refused.json()["error"]["code"]), (422, &json!("invalid_settings")));
        assert!(refused.text().contains("guard.mode"), "{}", refused.text());
        assert_eq!(generate(&mut client, "k1", 1).await.status, 200);
        write_settings(
            &file,
            "{ name = \"b\", key = \"k2\" }",
            "[guard]\nmode = \"off\"\n[model]\nserved_name = [\"renamed\"]\n[sampling.policy.temperature]\nonly = 0.5\n[scheduler]\nmax_num_seqs = 3\n",
        );
        let report = send(&mut client, "POST", "/admin/reload", Some("root"), "").await;
        assert_eq!(report.status, 200, "{}", report.text());
        let keys = |list: &Value| -> Vec<String> {
            list.as_array().unwrap().iter().map(|change| change["key"].as_str().unwrap().to_owned()).collect()
        };
        let report = report.json();
        assert_eq!(keys(&report["changed"]), ["guard.mode", "model.served_name", "sampling.policy", "server.api_keys"]);
        assert_eq!(keys(&report["at_next_start"]), ["scheduler.max_num_seqs"]);
        assert_eq!(generate(&mut client, "k1", 1).await.status, 401);
        let renamed = generate(&mut client, "k2", 1).await;
        assert_eq!((renamed.status, &renamed.json()["model"]), (200, &json!("renamed")));
        assert_ne!(client.get("/version").await.json()["settings_digest"], first);
        let settings = send(&mut client, "GET", "/settings", Some("k2"), "").await;
        assert!(settings.text().contains("\"off\"") && !settings.text().contains("k2\""), "{}", settings.text());
        // The same by signal.
        write_settings(&file, "\"k3\"", "");
        served.signal("HUP");
        for attempt in 0.. {
            if generate(&mut client, "k3", 1).await.status == 200 {
                break;
            }
            assert!(attempt < 100_000, "SIGHUP reloads nothing");
        }
    });
    assert_eq!(served.terminate(), Some(0));
}
