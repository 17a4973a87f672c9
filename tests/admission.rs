//! What is let in, and where: hosts, media types, keys, paths, a Unix socket.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use perigee_http::server::{Config, Server};
use perigee_telemetry::Metrics;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::client::{Client, Response};
use crate::fake::{self, FakeEngine, MODEL, serve};

const TEXT: &str = "/v1/completions";

/// A server without a name of its own, as it is by default.
fn nameless() -> Config {
    Config { allowed_hosts: Vec::new(), ..fake::config() }
}

async fn exchange(client: &mut Client, head: &str, body: &str) -> Response {
    let length = if body.is_empty() { String::new() } else { format!("content-length: {}\r\n", body.len()) };
    client.send(format!("{head}{length}\r\n{body}").as_bytes()).await;
    client.response().await.expect("an answer")
}

#[tokio::test]
async fn names_of_models_are_read_as_the_official_clients_encode_them() {
    let server = serve(&FakeEngine::new(true), fake::config()).await;
    let mut client = Client::connect(server.addr()).await;
    for path in ["/v1/models/fake%2Dkimi", "/v1/models/%66ake-kimi", "/models/fake%2dkimi"] {
        let response = client.get(path).await;
        assert_eq!((response.status, &response.json()["id"]), (200, &json!(MODEL)), "{path}");
    }
    let response = client.get("/v1/models/moonshotai%2FKimi-K2.6").await;
    let message = response.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(response.status == 404 && message.contains("`moonshotai/Kimi-K2.6`"), "{message}");
    for path in ["/v1/models/a%", "/v1/models/a%zz", "/v1/models/%ff"] {
        let response = client.get(path).await;
        assert_eq!(
            (response.status, &response.json()["error"]["code"]),
            (400, &json!("invalid_path")),
            "{path}"
        );
    }
}

#[tokio::test]
async fn web_pages_cannot_send_requests_without_being_asked_for() {
    let engine = FakeEngine::new(true);
    let server = serve(&engine, nameless()).await;
    let mut client = Client::connect(server.addr()).await;
    let body = json!({"prompt": "abc", "max_tokens": 1}).to_string();
    for kind in [
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "text/json",
    ] {
        let header = if kind.is_empty() { String::new() } else { format!("content-type: {kind}\r\n") };
        let head =
            format!("POST {TEXT} HTTP/1.1\r\nhost: localhost\r\norigin: http://evil.example\r\n{header}");
        let response = exchange(&mut client, &head, &body).await;
        let error = response.json()["error"].clone();
        assert_eq!((response.status, &error["code"]), (415, &json!("unsupported_media_type")), "{kind}");
        assert!(error["message"].as_str().unwrap().contains("application/json"), "{error}");
    }
    assert_eq!(engine.counts().submitted, 0);
    for kind in ["application/json", "application/json; charset=utf-8", "application/vnd.api+json"] {
        let head = format!("POST {TEXT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n");
        assert_eq!(exchange(&mut client, &head, &body).await.status, 200, "{kind}");
    }
}

#[tokio::test]
async fn hosts_of_others_are_refused_on_loopback() {
    let server = serve(&FakeEngine::new(true), nameless()).await;
    let mut client = Client::connect(server.addr()).await;
    let port = server.addr().port();
    for (path, host, status) in [
        ("/v1/models", "evil.example".to_owned(), 421),
        ("/metrics", format!("evil.example:{port}"), 421),
        // A proxy's health check says what the proxy calls the server.
        ("/health/ready", "servers".to_owned(), 200),
        ("/v1/models", format!("localhost:{port}"), 200),
        ("/v1/models", format!("127.0.0.1:{port}"), 200),
        ("/v1/models", "[::1]".to_owned(), 200),
    ] {
        let response = exchange(&mut client, &format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n"), "").await;
        assert_eq!(response.status, status, "{host}");
        if status == 421 {
            let error = response.json()["error"].clone();
            assert_eq!(error["code"], "misdirected_request");
            assert!(error["message"].as_str().unwrap().contains("server.allowed_hosts"), "{error}");
        }
    }
    let named =
        serve(&FakeEngine::new(true), Config { allowed_hosts: vec!["llm.example".into()], ..fake::config() })
            .await;
    let mut client = Client::connect(named.addr()).await;
    for (host, status) in [("llm.example", 200), ("evil.example", 421)] {
        let head = format!("GET /v1/models HTTP/1.1\r\nhost: {host}\r\n");
        assert_eq!(exchange(&mut client, &head, "").await.status, status, "{host}");
    }
}

#[tokio::test]
async fn http_1_1_without_a_host_is_refused() {
    let server = serve(&FakeEngine::new(true), nameless()).await;
    let mut client = Client::connect(server.addr()).await;
    for lines in ["", "host: localhost\r\nhost: localhost\r\n", "host: a b\r\n"] {
        let response = exchange(&mut client, &format!("GET /health HTTP/1.1\r\n{lines}"), "").await;
        assert_eq!(
            (response.status, &response.json()["error"]["code"]),
            (400, &json!("invalid_host")),
            "{lines}"
        );
    }
    assert_eq!(
        exchange(&mut client, "GET /health HTTP/1.0\r\n", "").await.status,
        200,
        "the older version has none"
    );
}

#[tokio::test]
async fn clients_of_anthropic_get_their_envelope_for_models_and_unknown_paths() {
    let config = Config { api_keys: vec![perigee_http::server::ApiKey::plain("key")], ..fake::config() };
    let server = serve(&FakeEngine::new(true), config).await;
    let mut client = Client::connect(server.addr()).await;
    for (path, status, kind) in [
        ("/v1/models/claude", 404, "not_found_error"),
        ("/v1/models/%zz", 400, "invalid_request_error"),
        ("/v1/files", 404, "not_found_error"),
    ] {
        for header in ["x-api-key: key\r\n", "anthropic-version: 2023-06-01\r\nauthorization: Bearer key\r\n"]
        {
            let response =
                exchange(&mut client, &format!("GET {path} HTTP/1.1\r\nhost: x\r\n{header}"), "").await;
            let body = response.json();
            assert_eq!((response.status, &body["type"]), (status, &json!("error")), "{path} {header}");
            assert_eq!(body["error"]["type"], kind);
            assert!(response.header("request-id").is_some());
        }
        let plain = exchange(
            &mut client,
            &format!("GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer key\r\n"),
            "",
        )
        .await;
        assert!(plain.json().get("type").is_none() && plain.json()["error"]["code"].is_string(), "{path}");
    }
    let refused =
        exchange(&mut client, "GET /v1/models HTTP/1.1\r\nhost: x\r\nx-api-key: wrong\r\n", "").await;
    assert_eq!((refused.status, &refused.json()["error"]["type"]), (401, &json!("authentication_error")));
}

#[tokio::test]
async fn pages_without_a_key_can_be_closed() {
    for (public_pages, status) in [(true, 200), (false, 401)] {
        let keys = vec![perigee_http::server::ApiKey::plain("key")];
        let config = Config { api_keys: keys, public_pages, ..fake::config() };
        let server = serve(&FakeEngine::new(true), config).await;
        let mut client = Client::connect(server.addr()).await;
        for path in ["/metrics", "/version", "/docs", "/openapi.json", "/page/load"] {
            assert_eq!(client.get(path).await.status, status, "{path}");
            let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer key\r\n");
            assert_eq!(exchange(&mut client, &head, "").await.status, 200, "{path}");
        }
        for path in ["/health", "/health/live", "/health/ready", "/health/startup"] {
            assert_eq!(client.get(path).await.status, 200, "{path} needs no key");
        }
    }
}

#[tokio::test]
async fn paths_without_v1_and_below_a_proxys_prefix_are_aliases() {
    let server =
        serve(&FakeEngine::new(true), Config { root_path: "/llm/kimi".into(), ..fake::config() }).await;
    let mut client = Client::connect(server.addr()).await;
    let messages = json!([{"role": "user", "content": "x"}]);
    for (path, body) in [
        ("/chat/completions", json!({"messages": messages, "max_tokens": 2})),
        ("/completions", json!({"prompt": "x", "max_tokens": 2})),
        ("/messages", json!({"messages": messages, "max_tokens": 2})),
        ("/responses", json!({"input": "x", "max_output_tokens": 2})),
    ] {
        for path in
            [path.to_owned(), format!("/v1{path}"), format!("/llm/kimi{path}"), format!("/llm/kimi/v1{path}")]
        {
            let response = client.post(&path, &body.to_string()).await;
            assert_eq!(response.status, 200, "{path}: {}", response.text());
        }
    }
    for path in
        ["/models", "/llm/kimi/models", "/llm/kimi/health", "/llm/kimi/v1/models/fake-kimi", "/models/alias"]
    {
        assert_eq!(client.get(path).await.status, 200, "{path}");
    }
    // Below the prefix the document is the page's neighbour.
    assert!(client.get("/llm/kimi/docs").await.text().contains("href=\"openapi.json\""));
    assert_eq!(client.get("/llm/kimi/openapi.json").await.status, 200);
    // Regression: a base URL that ends in a slash gave 404.
    for path in ["//v1/models", "/v1//models", "/v1/models/", "//llm//kimi//v1/models", "/llm/kimi/models//"]
    {
        let response = client.get(path).await;
        assert_eq!((response.status, &response.json()["object"]), (200, &json!("list")), "{path}");
    }
    for path in ["//v1/completions", "/v1/completions/", "/llm/kimi/v1//completions"] {
        let response = client.post(path, &json!({"prompt": "x", "max_tokens": 2}).to_string()).await;
        assert_eq!(response.status, 200, "{path}: {}", response.text());
    }
    // The page's links are relative.
    let moved = client.get("/llm/kimi/docs/").await;
    assert_eq!((moved.status, moved.header("location")), (308, Some("../docs")));
    for path in ["/", "/llm/kimi/", "//", "/docs", "/page/app.js"] {
        let file = client.get(path).await;
        assert_eq!((file.status, file.header("x-content-type-options")), (200, Some("nosniff")), "{path}");
        assert!(
            file.header("content-security-policy")
                .is_some_and(|policy| policy.contains("default-src 'self'"))
        );
    }
    let moved = client.get("/llm/kimi").await;
    assert_eq!((moved.status, moved.header("location")), (308, Some("/llm/kimi/")));
    assert_eq!(client.post("/llm/kimi", "{}").await.status, 404);
    for path in ["/embeddings", "/v1/embeddings", "/v1/metrics", "/llm/v1/models", "/llm/kimix/models"] {
        assert_eq!(client.get(path).await.status, 404, "{path}");
    }
}

async fn get_over_socket(socket: &Path, path: &str) -> String {
    let mut stream = UnixStream::connect(socket).await.expect("the server listens");
    let head = format!("GET {path} HTTP/1.1\r\nhost: anything.example\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_unix_socket_is_its_owners_alone_and_goes_with_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("perigee.sock");
    let config = Config { unix_socket: Some(socket.clone()), allowed_hosts: Vec::new(), ..fake::config() };
    // What a process that was killed leaves behind.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert!(socket.exists());
    let server = serve(&FakeEngine::new(true), config.clone()).await;
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let answer = get_over_socket(&socket, "/v1/models").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(MODEL), "{answer}");
    let start =
        async |config: &Config| Server::start(config.clone(), Arc::new(Metrics::new(MODEL, false))).await;
    let error = start(&config).await.err().expect("one server at a time").to_string();
    assert!(error.contains("another process listens") && error.contains("server.unix_socket"), "{error}");
    server.drain().await;
    assert!(!socket.exists());
    // A file that is no socket is never removed.
    std::fs::write(&socket, "precious").unwrap();
    assert!(start(&config).await.is_err());
    assert_eq!(std::fs::read_to_string(&socket).unwrap(), "precious");
    let shared =
        Config { unix_socket: Some(folder.path().join("b")), unix_socket_mode: "660".into(), ..config };
    let _server = start(&shared).await.unwrap();
    assert_eq!(std::fs::metadata(folder.path().join("b")).unwrap().permissions().mode() & 0o777, 0o660);
}

#[test]
fn settings_of_the_door_have_limits() {
    for (key, value) in [
        ("root_path", json!("llm")),
        ("root_path", json!("/llm/")),
        ("unix_socket", json!("")),
        ("unix_socket_mode", json!("rw")),
        ("unix_socket_mode", json!("0600")),
        ("allowed_hosts", json!(["http://a"])),
        ("allowed_hosts", json!([""])),
        ("max_bodies_bytes", json!(1024)),
        // Regression: entries that no browser sends were taken in silence.
        ("cors_origins", json!(["localhost"])),
        ("cors_origins", json!(["https://a.example/"])),
        ("cors_origins", json!(["https://a.example/path"])),
        ("cors_origins", json!(["HTTPS://B.example:443"])),
        ("cors_origins", json!(["https://b.example:443"])),
        ("cors_origins", json!(["http://b.example:80"])),
        ("cors_origins", json!(["https://B.example"])),
        ("cors_origins", json!(["https://*.example"])),
        ("cors_origins", json!(["https://user@a.example"])),
        ("cors_origins", json!(["https://a.example:"])),
        ("cors_origins", json!(["https://a.example:08443"])),
        ("cors_origins", json!(["https://a.example:99999"])),
        ("cors_origins", json!(["https://é.example"])),
        ("cors_origins", json!(["https://"])),
        ("cors_origins", json!([""])),
        // Regression: a key twice had the limits of one of its entries.
        ("api_keys", json!(["hunter2", "other", "hunter2"])),
        ("api_keys", json!(["hunter2", {"name": "a", "key": "hunter2", "max_concurrent": 1}])),
    ] {
        let config: Config =
            serde_json::from_value(Value::Object([(key.to_owned(), value)].into_iter().collect())).unwrap();
        let problems = config.validate();
        let keys: Vec<&str> = problems.iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, [key], "{config:?}");
        assert!(!problems[0].1.contains("hunter2"), "{problems:?}");
    }
    for origin in [
        "*",
        "null",
        "file://",
        "https://a.example",
        "http://localhost:3000",
        "https://a.example:8443",
        "http://[::1]",
        "http://[::1]:3000",
        "vscode-webview://0a1b",
        "tauri://localhost",
        "http://127.0.0.1:8080",
    ] {
        let config = Config { cors_origins: vec![origin.into()], ..Config::default() };
        assert_eq!(config.validate(), [], "{origin}");
    }
}
