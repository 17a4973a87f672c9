//! Redirects: followed three times, and every location passes the gates of a first URL.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio_rustls::rustls::RootCertStore;

use super::super::FetchError;
use super::super::peer::Seam;
use super::server::{Answer, TestServer, fetcher, ok, redirect};
use super::{URL, refusal, refused};

#[tokio::test]
async fn redirects_are_followed_three_times() {
    for status in [301, 302, 303, 307, 308] {
        let server = TestServer::start(move |target| match target {
            "/a.png" => redirect(status, "/b?c#d"),
            "/b?c" => redirect(status, "http://cdn.example.com/e"),
            "/e" => redirect(status, "HTTP://IMG.EXAMPLE.COM:80/f"),
            _ => ok("pixels"),
        })
        .await;
        assert_eq!(server.plain_fetcher().fetch(URL).await.unwrap(), b"pixels");
        let heads = server.heads.lock().unwrap().clone();
        let ask = |head: &String| head.lines().take(2).collect::<Vec<_>>().join(" ");
        let asked: Vec<String> = heads.iter().map(ask).collect();
        assert_eq!(
            asked,
            [
                "GET /a.png HTTP/1.1 host: img.example.com",
                "GET /b?c HTTP/1.1 host: img.example.com",
                "GET /e HTTP/1.1 host: cdn.example.com",
                "GET /f HTTP/1.1 host: img.example.com",
            ]
        );
        assert!(heads.iter().all(|head| !head.contains("referer") && !head.contains("cookie")));
        assert_eq!(server.contacts(), (4, 4));
    }
}

#[tokio::test]
async fn redirect_loops_end() {
    let server = TestServer::start(|_| redirect(302, "/a.png")).await;
    let error = refusal(&server.plain_fetcher(), URL).await;
    assert_eq!(error.to_string(), "the URL redirects more than 3 times");
    assert_eq!(server.contacts(), (4, 4));
}

#[tokio::test]
async fn redirects_to_forbidden_places_are_refused_without_a_connection() {
    let after = |error| FetchError::Redirected(Box::new(error)).to_string();
    for (location, expected) in [
        ("http://evil.com/", after(FetchError::HostNotAllowed)),
        ("http://127.0.0.1/", after(FetchError::HostForm)),
        ("http://169.254.169.254/latest/meta-data/", after(FetchError::HostForm)),
        ("http://[::1]/", after(FetchError::HostForm)),
        ("http://2130706433/", after(FetchError::HostForm)),
        ("http://img.example.com:6379/", after(FetchError::Port)),
        ("http://img.example.com@evil.com/", after(FetchError::Userinfo)),
        ("http://img.example.com\\@evil.com/", after(FetchError::Characters)),
        ("/\\evil.com/", after(FetchError::Characters)),
        ("/a b", after(FetchError::Characters)),
        ("file:///etc/passwd", after(FetchError::Scheme)),
        ("gopher://img.example.com/", after(FetchError::Scheme)),
        ("//img.example.com/", FetchError::Location.to_string()),
        ("b.png", FetchError::Location.to_string()),
        ("../b.png", FetchError::Location.to_string()),
        ("?b", FetchError::Location.to_string()),
        ("", FetchError::Location.to_string()),
        ("/\u{e9}", FetchError::Location.to_string()),
        ("/b\r\nlocation: /c", FetchError::Location.to_string()),
    ] {
        let server = TestServer::start(move |_| redirect(302, location)).await;
        let error = refusal(&server.plain_fetcher(), URL).await;
        assert_eq!(error.to_string(), expected, "{location:?}");
        assert_eq!(server.contacts(), (1, 1), "{location:?}");
    }
    let text = refused(|_| Answer::Hold("HTTP/1.1 302 X\r\ncontent-length: 9\r\n\r\n".into())).await;
    assert_eq!(text, FetchError::Location.to_string());
}

#[tokio::test]
async fn https_does_not_redirect_to_http() {
    let server = TestServer::start_tls("img.example.com", |_| redirect(302, URL)).await;
    let fetcher = server.fetcher(server.roots.clone(), |_| {});
    let error = refusal(&fetcher, "https://img.example.com/").await;
    assert!(matches!(error, FetchError::Downgrade));
    assert_eq!(server.contacts(), (1, 1));
    let strict = server.fetcher(server.roots.clone(), |rules| rules.http = false);
    let error = refusal(&strict, "https://img.example.com/").await;
    assert_eq!(error.to_string(), FetchError::Redirected(Box::new(FetchError::PlainHttp)).to_string());
    assert!(matches!(refusal(&strict, URL).await, FetchError::PlainHttp));
    assert_eq!(server.contacts(), (2, 2));
}

#[tokio::test]
async fn a_host_is_resolved_again_and_checked_again_after_a_redirect() {
    let server = TestServer::start(|_| redirect(302, "http://cdn.example.com/")).await;
    let (address, calls) = (server.address, Arc::new(AtomicUsize::new(0)));
    let seen = calls.clone();
    let resolve = move |host: &str, port| {
        seen.fetch_add(1, Ordering::SeqCst);
        assert_eq!(port, 80);
        vec![if host == "cdn.example.com" { "10.0.0.1:80".parse().unwrap() } else { address }]
    };
    let seam = Seam { resolve: Box::new(resolve), permits: |address| address.is_loopback() };
    let error = refusal(&fetcher(seam, RootCertStore::empty(), |_| {}), URL).await;
    assert!(matches!(error, FetchError::NotPublic));
    assert_eq!((calls.load(Ordering::SeqCst), server.contacts().0), (2, 1));
}
