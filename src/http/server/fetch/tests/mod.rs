//! Fetches from loopback servers, through the seam in name service and address policy.

use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio_rustls::rustls::RootCertStore;

use self::server::{Answer, TestServer, fetcher, ok};
use super::peer::Seam;
use super::{FetchError, Fetcher, Rules, RulesError, address};

mod hostile_urls;
mod redirects;
mod server;

const URL: &str = "http://img.example.com/a.png";

fn close(answer: impl Into<String>) -> Answer {
    Answer::Close(answer.into())
}

/// The reason why `url` is not fetched, after a look at its text.
async fn refusal(fetcher: &Fetcher, url: &str) -> FetchError {
    let error = fetcher.fetch(url).await.expect_err(url);
    let text = error.to_string();
    assert!(text.starts_with(|c: char| c.is_lowercase()) && text.is_ascii() && text.len() < 120, "{text}");
    for hidden in ["127.0.0.1", "secret", "evil", "\n"] {
        assert!(!text.contains(hidden), "{text}");
    }
    error
}

/// The text of the reason why the answer of `script` is refused.
async fn refused(script: impl Fn(&str) -> Answer + Send + Sync + 'static) -> String {
    let server = TestServer::start(script).await;
    refusal(&server.plain_fetcher(), URL).await.to_string()
}

#[tokio::test]
async fn a_fetch_sends_one_request_and_returns_the_body() {
    let server = TestServer::start(|_| ok("pixels")).await;
    let fetcher = server.plain_fetcher();
    assert_eq!(fetcher.fetch("http://IMG.example.com/a.png?b=1#c").await.unwrap(), b"pixels");
    assert_eq!(fetcher.fetch("http://cdn.example.com:443").await.unwrap(), b"pixels");
    let rest =
        "user-agent: perigee\r\naccept: image/*\r\naccept-encoding: identity\r\nconnection: close\r\n\r\n";
    let heads = server.heads.lock().unwrap().clone();
    assert_eq!(heads[0], format!("GET /a.png?b=1 HTTP/1.1\r\nhost: img.example.com\r\n{rest}"));
    assert_eq!(heads[1], format!("GET / HTTP/1.1\r\nhost: cdn.example.com:443\r\n{rest}"));
    assert_eq!(server.contacts(), (2, 2));
}

#[tokio::test]
async fn bodies_up_to_the_limit_are_read_in_every_framing() {
    let body = "x".repeat(1000);
    let chunked =
        format!("transfer-encoding: chunked\r\n\r\n1f4\r\n{0}\r\n1f4\r\n{0}\r\n0\r\n\r\n", &body[..500]);
    for rest in [
        format!("content-length: 1000\r\n\r\n{body}"),
        format!("content-encoding: identity\r\ncontent-length: 1000\r\n\r\n{body}"),
        chunked,
        format!("\r\n{body}"),
    ] {
        let server = TestServer::start(move |_| close(format!("HTTP/1.1 200 OK\r\n{rest}"))).await;
        assert_eq!(server.plain_fetcher().fetch(URL).await.unwrap(), body.as_bytes());
    }
}

#[tokio::test]
async fn bodies_above_the_limit_are_refused() {
    let expected = "the image at the URL is larger than 1000 bytes";
    // The length alone decides: the body never arrives.
    let declared = |length: &str| format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
    let head = declared("1001");
    assert_eq!(refused(move |_| Answer::Hold(head.clone())).await, expected);
    let head = declared("18446744073709551000");
    assert_eq!(refused(move |_| Answer::Hold(head.clone())).await, expected);
    // The stream is left at the limit: these bodies have no end.
    let body = "x".repeat(1001);
    let chunk = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3e9\r\n{body}\r\n");
    assert_eq!(refused(move |_| Answer::Hold(chunk.clone())).await, expected);
    let open = format!("HTTP/1.1 200 OK\r\n\r\n{body}");
    assert_eq!(refused(move |_| Answer::Hold(open.clone())).await, expected);
}

#[tokio::test]
async fn only_status_200_is_success() {
    for status in [201, 204, 206, 300, 304, 305, 401, 403, 404, 407, 418, 429, 500, 502, 599] {
        let expected = format!("the host of the URL answered with status {status} instead of 200");
        // The announced body never arrives: it is not read.
        let head = format!("HTTP/1.1 {status} secret\r\nlocation: /\r\ncontent-length: 9\r\n\r\n");
        assert_eq!(refused(move |_| Answer::Hold(head.clone())).await, expected);
    }
}

#[tokio::test]
async fn compressed_answers_are_refused() {
    for coding in ["gzip", "br", "zstd", "identity, gzip", "", "secret"] {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-encoding: {coding}\r\ncontent-length: 9\r\n\r\n");
        let text = refused(move |_| Answer::Hold(head.clone())).await;
        assert_eq!(text, FetchError::Encoding.to_string(), "{coding}");
    }
}

#[tokio::test]
async fn incomplete_and_invalid_answers_are_refused() {
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(200));
    let large = format!("HTTP/1.1 200 OK\r\na: {}\r\ncontent-length: 1\r\n\r\nx", "secret".repeat(20_000));
    for answer in [
        "",
        "HTTP/1.1 200",
        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nsecret",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nsecret",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nsecret\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: secret\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
        "HTTP/2.0 200 OK\r\n\r\n",
        "secret",
        "SSH-2.0-secret\r\n",
        &many,
        &large,
    ] {
        let script = answer.to_owned();
        let text = refused(move |_| close(script.clone())).await;
        assert_eq!(text, "the host of the URL sent an incomplete or invalid HTTP answer", "{answer:.60}");
    }
}

#[tokio::test]
async fn tls_takes_a_trusted_certificate_of_the_same_host_only() {
    let server = TestServer::start_tls("img.example.com", |_| ok("pixels")).await;
    let url = "https://img.example.com/";
    let trusting = server.fetcher(server.roots.clone(), |_| {});
    assert_eq!(trusting.fetch(url).await.unwrap(), b"pixels");
    // A trusted certificate of another host.
    assert!(matches!(refusal(&trusting, "https://cdn.example.com/").await, FetchError::Tls(_)));
    // The public roots do not know the self-signed certificate.
    let public = webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect();
    assert!(matches!(refusal(&server.fetcher(public, |_| {}), url).await, FetchError::Tls(_)));
}

#[tokio::test]
async fn the_deadline_holds_over_every_stage() {
    let silent = TestServer::start(|_| Answer::Hold(String::new())).await;
    let slow_body = TestServer::start(|_| Answer::Drip("HTTP/1.1 200 OK\r\n\r\n".into())).await;
    let slow_head = TestServer::start(|_| Answer::Drip("HTTP/1.1 200 OK\r\na: ".into())).await;
    let pause = Duration::from_millis(200);
    let slow_hops =
        TestServer::start(move |_| Answer::After(pause, "HTTP/1.1 302 X\r\nlocation: /\r\n\r\n".into()))
            .await;
    for (server, url) in [
        (&silent, URL),
        (&slow_body, URL),
        (&slow_head, URL),
        (&slow_hops, URL),
        // A TLS handshake that is never answered: the server waits for a request's end.
        (&silent, "https://img.example.com/"),
    ] {
        let fetcher = server.fetcher(RootCertStore::empty(), |rules| {
            (rules.timeout, rules.max_bytes) = (Duration::from_millis(500), 1 << 20);
        });
        let start = Instant::now();
        let error = refusal(&fetcher, url).await;
        assert_eq!(error.to_string(), "the image at the URL did not arrive within 500ms");
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    assert!(slow_hops.contacts().0 > 1);
}

#[tokio::test]
async fn one_address_that_is_not_public_refuses_the_host() {
    let server = TestServer::start(|_| ok("secret")).await;
    let public: std::net::SocketAddr = "1.1.1.1:80".parse().unwrap();
    for addresses in [vec![server.address], vec![public, server.address], vec![server.address, public]] {
        let seam = Seam { resolve: Box::new(move |_, _| addresses.clone()), permits: address::is_public };
        let fetcher = fetcher(seam, RootCertStore::empty(), |_| {});
        assert!(matches!(refusal(&fetcher, URL).await, FetchError::NotPublic));
    }
    assert_eq!(server.contacts(), (0, 0));
}

#[tokio::test]
async fn addresses_are_tried_in_order() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let server = TestServer::start(|_| ok("pixels")).await;
    let reach = |addresses: Vec<_>| {
        let seam = Seam {
            resolve: Box::new(move |_, _| addresses.clone()),
            permits: |address| address.is_loopback(),
        };
        fetcher(seam, RootCertStore::empty(), |_| {})
    };
    assert_eq!(reach(vec![closed, server.address]).fetch(URL).await.unwrap(), b"pixels");
    assert!(matches!(refusal(&reach(vec![closed]), URL).await, FetchError::Connect(_)));
    assert!(matches!(refusal(&reach(vec![]), URL).await, FetchError::Resolve(_)));
}

#[test]
fn rules_that_cannot_be_followed_are_refused() {
    let rules = |host: &str| Rules {
        hosts: vec![host.into()],
        http: false,
        timeout: Duration::from_secs(5),
        max_bytes: 1,
    };
    assert!(Fetcher::new(rules("Images.Example.com")).is_ok());
    for host in
        ["", "*", "*.example.com", "127.0.0.1", "localhost", "a.com.", "a.com:80", "http://a.com", "[::1]"]
    {
        assert_eq!(Fetcher::new(rules(host)).err(), Some(RulesError::Host(host.into())));
    }
    let no_time = Rules { timeout: Duration::ZERO, ..rules("a.com") };
    assert_eq!(Fetcher::new(no_time).err(), Some(RulesError::Timeout));
    let no_bytes = Rules { max_bytes: 0, ..rules("a.com") };
    assert_eq!(Fetcher::new(no_bytes).err(), Some(RulesError::MaxBytes));
}

#[test]
fn a_fetch_can_be_spawned() {
    fn check<T: Send>(_: T) {}
    fn shared<T: Send + Sync>(value: T) -> T {
        value
    }
    let rules = Rules { hosts: vec![], http: false, timeout: Duration::from_secs(5), max_bytes: 1 };
    let fetcher = shared(Fetcher::new(rules).unwrap());
    check(fetcher.fetch(URL));
}
