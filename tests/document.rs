//! What `/openapi.json` says of answers, against the answers.

use perigee_http::api::{Method, ROUTES};
use perigee_http::server::{ApiKey, Config, Secret};

use crate::client::Client;
use crate::fake::{self, FakeEngine, serve};

/// Heads, besides method, path and host.
const HEADS: &[&str] = &[
    "",
    "authorization: Bearer wrong\r\n",
    "authorization: Bearer right\r\n",
    "authorization: Bearer root\r\n",
    "authorization: Bearer root\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}",
    "authorization: Bearer root\r\ncontent-type: application/json\r\ncontent-length: 1\r\n\r\n{",
    "authorization: Bearer root\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\n{}",
    "authorization: Bearer root\r\ncontent-type: application/json\r\nexpect: 100-continue\r\ncontent-length: 999999999\r\n",
    "authorization: Bearer root\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n",
    "host: x\r\n",
];

/// Regression: `/admin` answered 403, `/page/{name}` 404, and neither was listed.
#[tokio::test]
async fn every_status_that_comes_is_in_the_document() {
    let config = Config {
        api_keys: vec![ApiKey::plain("right")],
        admin_key: Some(Secret::new("root")),
        public_pages: false,
        ..fake::config()
    };
    let server = serve(&FakeEngine::new(true), config).await;
    let mut client = Client::connect(server.addr()).await;
    client.send(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\nauthorization: Bearer right\r\n\r\n").await;
    let document = client.response().await.expect("an answer").json();
    let mut seen = std::collections::BTreeSet::new();
    for route in &ROUTES {
        let (method, own) = match route.method {
            Method::Get | Method::GetOrDelete => ("GET", "get"),
            Method::Post => ("POST", "post"),
        };
        let listed =
            document["paths"][route.name][own]["responses"].as_object().expect("a route is described");
        for name in ["fake-kimi", "nothing", "%zz"] {
            let path = route.name.replace("{name}", name).replace("{id}", name);
            let requests =
                HEADS.iter().map(|head| format!("{method} {path} HTTP/1.1\r\nhost: x\r\n{head}\r\n"));
            let others = [
                format!("PUT {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"),
                format!("{method} {path} HTTP/1.1\r\ncontent-length: 0\r\n\r\n"),
                format!("{method} {path} HTTP/1.1\r\nhost: evil.example\r\ncontent-length: 0\r\n\r\n"),
            ];
            for request in requests.chain(others) {
                let mut client = Client::connect(server.addr()).await;
                client.send(request.as_bytes()).await;
                let status = client.response().await.expect("an answer").status.to_string();
                assert!(listed.contains_key(&status), "{} answers {status}: {request}", route.name);
                seen.insert(status);
            }
        }
    }
    for status in ["200", "400", "401", "403", "404", "405", "413", "415", "421", "501", "503"] {
        assert!(seen.contains(status), "no request was answered {status}: {seen:?}");
    }
}
