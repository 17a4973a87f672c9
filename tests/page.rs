//! What the page at `/` is told by the server: the load of the minutes before it was opened, and of its clients.

use perigee_http::server::{ApiKey, Config, Secret};
use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::fake::{self, FakeEngine, serve};

const BODY: &str = r#"{"prompt": [1, 2, 3], "max_tokens": 2}"#;

/// Sends a request with further lines in its head. One connection for all: a request is counted when the next one is read.
async fn send(client: &mut Client, method: &str, path: &str, lines: &str, body: &str) -> Response {
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\n{lines}content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    client.send(head.as_bytes()).await;
    client.response().await.expect("an answer")
}

/// What a series of the history adds up to.
fn sum(load: &Value, series: &str) -> f64 {
    let values = load["series"][series].as_array().unwrap_or_else(|| panic!("{series} in {load}"));
    values.iter().filter_map(Value::as_f64).sum()
}

/// Regression: a page that was just opened showed no error, whatever had happened.
#[tokio::test]
async fn a_page_that_is_opened_now_is_told_of_earlier_errors() {
    let server = serve(&FakeEngine::new(true), fake::config()).await;
    let mut client = Client::connect(server.addr()).await;
    for _ in 0..3 {
        assert_eq!(client.get("/v1/nothing").await.status, 404);
    }
    assert_eq!(client.post("/v1/completions", BODY).await.status, 200);
    let load = client.get("/page/load").await;
    assert_eq!((load.status, load.header("content-type")), (200, Some("application/json")));
    let load = load.json();
    assert_eq!((sum(&load, "http_4xx"), sum(&load, "http_5xx")), (3.0, 0.0));
    assert_eq!((&load["keeps_s"], &load["clients"]), (&json!(900.0), &json!([])));
    let samples = load["ages_s"].as_array().unwrap().len();
    for (name, values) in load["series"].as_object().unwrap() {
        assert_eq!(values.as_array().unwrap().len(), samples, "{name}");
    }
    // The sample under way is all that is new, whatever is asked for; nonsense asks for everything.
    for (query, first) in [("from=99999999", None), ("from=x", Some(0)), ("from=-1", Some(0)), ("", Some(0))]
    {
        let load = client.get(&format!("/page/load?{query}")).await.json();
        match first {
            Some(first) => assert_eq!(load["first"], first, "{query}"),
            None => assert_eq!(load["ages_s"].as_array().unwrap().len(), 1, "{query}"),
        }
    }
}

/// Regression: the page's own 401 counted as errors of the service.
#[tokio::test]
async fn the_pages_own_requests_are_counted_apart() {
    let config = Config { api_keys: vec![ApiKey::plain("right")], ..fake::config() };
    let server = serve(&FakeEngine::new(true), config).await;
    let mut client = Client::connect(server.addr()).await;
    const PAGE: &str = "x-perigee-page: 1\r\nauthorization: Bearer wrong\r\n";
    for path in ["/v1/models", "/settings", "/server_info", "/admin/flight-recorder"] {
        assert_eq!(send(&mut client, "GET", path, PAGE, "").await.status, 401, "{path}");
    }
    assert_eq!(sum(&client.get("/page/load").await.json(), "http_4xx"), 0.0);
    // The header changes nothing about what is no figure of the page: a client cannot hide its requests.
    for (method, path) in [("POST", "/v1/completions"), ("GET", "/v1/responses/x"), ("POST", "/admin/reload")]
    {
        assert_eq!(send(&mut client, method, path, PAGE, BODY).await.status, 401, "{path}");
    }
    assert_eq!(sum(&client.get("/page/load").await.json(), "http_4xx"), 3.0);
    let metrics = client.get("/metrics").await;
    for line in [
        r#"perigee_http_requests_total{route="page",status="401"} 4"#,
        r#"perigee_http_requests_total{route="/v1/completions",status="401"} 1"#,
        r#"perigee_http_requests_total{route="/admin/reload",status="401"} 1"#,
    ] {
        assert!(metrics.text().contains(line), "{line} is missing");
    }
}

#[tokio::test]
async fn clients_are_shown_with_their_nearest_limit() {
    let key = |text: &str| serde_json::from_value::<ApiKey>(json!(text)).unwrap();
    let keys = vec![
        key("{ name = \"free\", key = \"k1\" }"),
        key("{ name = \"near\", key = \"k2\", requests_per_minute = 100, tokens_per_minute = 10 }"),
    ];
    let config = Config { api_keys: keys, admin_key: Some(Secret::new("root")), ..fake::config() };
    let server = serve(&FakeEngine::new(true), config).await;
    let mut client = Client::connect(server.addr()).await;
    for key in ["k1", "k2"] {
        let line = format!("authorization: Bearer {key}\r\n");
        assert_eq!(send(&mut client, "POST", "/v1/completions", &line, BODY).await.status, 200);
    }
    let load = client.get("/page/load").await.json();
    let (clients, count) = (load["clients"].as_array().unwrap(), &load["num_clients"]);
    assert_eq!((clients.len(), count), (2, &json!(2)));
    // Three tokens of the prompt and two of the reply, of ten; time gives some of it back.
    let near = &clients[0];
    assert_eq!(
        (&near["name"], &near["running"], &near["limit"]),
        (&json!("near"), &json!(0), &json!("tokens_per_minute"))
    );
    let used = near["used"].as_f64().unwrap();
    assert!((0.0..=0.5).contains(&used), "{used}");
    assert_eq!(clients[1], json!({"name": "free", "running": 0, "limit": null, "used": null}));
    for secret in ["k1", "k2", "root"] {
        assert!(!load.to_string().contains(&format!("\"{secret}\"")), "{load}");
    }
}
