//! Bodies of requests: their framing, how they are packed, their size, and the room that they share.

use std::io::Write;

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use perigee_http::server::{ApiKey, Config};
use serde_json::json;

use crate::client::{Client, Response};
use crate::fake::{self, FakeEngine, serve};

const TEXT: &str = "/v1/completions";
const BODY: &str = r#"{"prompt": "abcabcabc", "max_tokens": 2, "seed": 0}"#;
/// [`BODY`] as `zstd` packs it.
const BODY_ZSTD: &str = "28b52ffd04589901007b2270726f6d7074223a2022616263616263616263222c20226d61785f746f\
     6b656e73223a20322c202273656564223a20307d0b8b1339";
/// 4 MiB of spaces as `zstd -19 --no-check` packs them.
const SPACES_ZSTD: &str = "28b52ffd00684c000008200100fcff391002020010200200102002001020020010200200102002001020020010\
     200200102002001020020010200200102002001020020010200200102002001020020010200200102002001020\
     020010200200102002001020020010200200102002001020020010200200102002001020020010200200102002\
     00102003001020";

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn deflate(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

async fn post(client: &mut Client, path: &str, headers: &str, body: &[u8]) -> Response {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    client.send(&[head.as_bytes(), body].concat()).await;
    client.response().await.expect("an answer")
}

async fn packed(client: &mut Client, coding: &str, body: &[u8]) -> Response {
    post(client, TEXT, &format!("content-encoding: {coding}\r\n"), body).await
}

/// Regression: Codex packs its bodies, and was answered 415.
#[tokio::test]
async fn packed_bodies_are_read() {
    let server = serve(&FakeEngine::new(true), fake::config()).await;
    let mut client = Client::connect(server.addr()).await;
    let plain = post(&mut client, TEXT, "", BODY.as_bytes()).await.json();
    for (coding, body) in [
        ("gzip", gzip(BODY.as_bytes())),
        ("X-GZIP", gzip(BODY.as_bytes())),
        ("deflate", deflate(BODY.as_bytes())),
        ("zstd", unhex(BODY_ZSTD)),
        ("identity", BODY.as_bytes().to_vec()),
    ] {
        let response = packed(&mut client, coding, &body).await;
        assert_eq!(response.status, 200, "{coding}: {}", response.text());
        assert_eq!(response.json()["choices"], plain["choices"], "{coding}");
        if coding != "identity" {
            let damaged = packed(&mut client, coding, &body[..body.len() - 1]).await;
            let error = damaged.json()["error"].clone();
            assert_eq!((damaged.status, &error["code"]), (400, &json!("invalid_body")), "{coding}");
            assert_eq!(error["param"], "content-encoding");
        }
    }
    for coding in ["br", "gzip, gzip", "compress"] {
        let response = packed(&mut client, coding, BODY.as_bytes()).await;
        let message = response.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(response.status == 415 && message.contains("gzip, deflate or zstd"), "{coding}: {message}");
    }
}

#[tokio::test]
async fn what_is_small_when_packed_only_is_too_large() {
    let limits = Config { max_body_bytes: 1 << 20, ..fake::config() };
    let server = serve(&FakeEngine::new(true), limits).await;
    let mut client = Client::connect(server.addr()).await;
    let spaces = vec![b' '; 4 << 20];
    for (coding, body) in
        [("gzip", gzip(&spaces)), ("deflate", deflate(&spaces)), ("zstd", unhex(SPACES_ZSTD))]
    {
        assert!(body.len() < 10_000);
        let response = packed(&mut client, coding, &body).await;
        let error = response.json()["error"].clone();
        assert_eq!((response.status, &error["code"]), (413, &json!("request_too_large")), "{coding}");
        assert!(error["message"].as_str().unwrap().contains("unpacked"), "{error}");
        // The connection is in order: all of the body was read.
        assert_eq!(packed(&mut client, "gzip", &gzip(BODY.as_bytes())).await.status, 200);
    }
}

/// Regression: the codings below `chunked` were ignored.
#[tokio::test]
async fn transfer_codings_but_chunked_are_refused() {
    let server = serve(&FakeEngine::new(true), fake::config()).await;
    let request = |lines: &str| {
        format!(
            "POST {TEXT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{lines}\r\n{:x}\r\n{BODY}\r\n0\r\n\r\n",
            BODY.len()
        )
    };
    for lines in [
        "transfer-encoding: gzip, chunked\r\n",
        "transfer-encoding: chunked, chunked\r\n",
        "transfer-encoding: identity, chunked\r\n",
        "transfer-encoding: identity\r\ntransfer-encoding: chunked\r\n",
    ] {
        let mut client = Client::connect(server.addr()).await;
        client.send(request(lines).as_bytes()).await;
        let response = client.response().await.expect("an answer");
        let code = response.json()["error"]["code"].clone();
        assert_eq!((response.status, code), (501, json!("unsupported_transfer_encoding")), "{lines}");
        assert!(client.is_closed().await);
    }
    let mut client = Client::connect(server.addr()).await;
    client.send(request("transfer-encoding: Chunked\r\n").as_bytes()).await;
    assert_eq!(client.response().await.expect("an answer").status, 200);
}

/// Regression: a client with a wrong key was asked for its body first.
#[tokio::test]
async fn a_body_is_asked_for_when_nothing_else_is_wrong() {
    let config = Config { api_keys: vec![ApiKey::plain("right")], ..fake::config() };
    let server = serve(&FakeEngine::new(true), config).await;
    for (path, headers, length, status) in [
        (TEXT, "", 9, 401),
        (TEXT, "authorization: Bearer wrong\r\n", 9, 401),
        ("/nope", "authorization: Bearer right\r\n", 9, 404),
        ("/metrics", "authorization: Bearer right\r\n", 9, 405),
        ("/admin/reload", "authorization: Bearer right\r\n", 9, 403),
        (TEXT, "authorization: Bearer right\r\ncontent-encoding: br\r\n", 9, 415),
        (TEXT, "authorization: Bearer right\r\n", 1 << 30, 413),
        (TEXT, "authorization: Bearer right\r\n", BODY.len(), 100),
    ] {
        let mut client = Client::connect(server.addr()).await;
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n{headers}\
             content-length: {length}\r\n\r\n"
        );
        client.send(head.as_bytes()).await;
        assert_eq!(client.head().await.expect("an answer").status, status, "{path} {headers}");
        if status == 100 {
            client.send(BODY.as_bytes()).await;
            assert_eq!(client.response().await.expect("an answer").status, 200);
        }
    }
}

/// Regression: the answer came when the time of the body was over. Here that is never.
#[tokio::test]
async fn a_body_that_is_declared_too_large_is_refused_unread() {
    let config = Config { body_read_timeout_s: 1e6, ..fake::config() };
    let server = serve(&FakeEngine::new(true), config).await;
    let mut client = Client::connect(server.addr()).await;
    let head = format!(
        "POST {TEXT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        1 << 30
    );
    client.send(head.as_bytes()).await;
    assert_eq!(client.response().await.expect("an answer").status, 413);
    assert!(client.is_closed().await);
}

/// A body for `/tokenize` of 900 KiB, in two parts.
fn large() -> (String, String) {
    let mut begin = json!({"prompt": "x".repeat(900 << 10)}).to_string();
    let rest = begin.split_off(700 << 10);
    (begin, rest)
}

async fn begin_large(server: &perigee_http::server::Server) -> Client {
    let (begin, rest) = large();
    let mut client = Client::connect(server.addr()).await;
    let head = format!(
        "POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        begin.len() + rest.len()
    );
    client.send(head.as_bytes()).await;
    client.send(begin.as_bytes()).await;
    client
}

/// Regression: a body held the room of its declared length from its first byte on, and slow ones kept all others waiting.
#[tokio::test]
async fn bodies_hold_room_for_what_has_arrived() {
    let limits = Config {
        max_body_bytes: 64 << 20,
        max_bodies_bytes: 64 << 20,
        body_read_timeout_s: 1e6,
        ..fake::config()
    };
    let server = serve(&FakeEngine::new(true), limits).await;
    let mut slow = Vec::new();
    for _ in 0..6 {
        let mut client = Client::connect(server.addr()).await;
        let head = "POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 60000000\r\n\r\n";
        client.send(head.as_bytes()).await;
        client.send(&[b' '; 100_000]).await;
        slow.push(client);
    }
    let (begin, rest) = large();
    let answer = Client::connect(server.addr()).await.post("/tokenize", &(begin + &rest)).await;
    assert_eq!((answer.status, &answer.json()["count"]), (200, &json!(900 << 10)), "{}", answer.text());
}

/// However little room there is: bodies that fill it together end one after the other, and small ones do not wait.
#[tokio::test]
async fn bodies_that_fill_the_room_are_all_read() {
    let limits = Config {
        max_body_bytes: 1 << 20,
        max_bodies_bytes: 1 << 20,
        body_read_timeout_s: 1e6,
        ..fake::config()
    };
    let server = serve(&FakeEngine::new(true), limits).await;
    let mut begun = [begin_large(&server).await, begin_large(&server).await];
    let mut small = Client::connect(server.addr()).await;
    for _ in 0..3 {
        assert_eq!(post(&mut small, TEXT, "", BODY.as_bytes()).await.status, 200);
    }
    let (_, rest) = large();
    for client in &mut begun {
        client.send(rest.as_bytes()).await;
    }
    for client in &mut begun {
        let answer = client.response().await.expect("an answer");
        assert_eq!((answer.status, &answer.json()["count"]), (200, &json!(900 << 10)), "{}", answer.text());
    }
    let (begin, rest) = large();
    let chunked = format!(
        "POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n\
         {:x}\r\n{begin}{rest}\r\n0\r\n\r\n",
        begin.len() + rest.len()
    );
    small.send(chunked.as_bytes()).await;
    assert_eq!(small.response().await.expect("an answer").json()["count"], 900 << 10);
}

#[tokio::test]
async fn bodies_that_stall_give_their_room_to_one_that_waits() {
    let limits = Config {
        max_body_bytes: 1 << 20,
        max_bodies_bytes: 1 << 20,
        body_read_timeout_s: 1e6,
        ..fake::config()
    };
    let server = serve(&FakeEngine::new(true), limits).await;
    // One fits, another is read beside it, a third one waits for them, and none goes on.
    let mut stalled = [begin_large(&server).await, begin_large(&server).await, begin_large(&server).await];
    let (begin, rest) = large();
    let answer = Client::connect(server.addr()).await.post("/tokenize", &(begin + &rest)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let [first, second, third] = &mut stalled;
    let refused = tokio::select! {
        refused = first.response() => refused,
        refused = second.response() => refused,
        refused = third.response() => refused,
    };
    let refused = refused.expect("an answer");
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (408, &json!("request_timeout")));
    assert!(refused.text().contains("server.max_bodies_bytes"), "{}", refused.text());
}
