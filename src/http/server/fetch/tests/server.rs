//! A remote host for tests: a loopback server with scripted answers, and fetchers that reach it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::super::peer::{Peers, Seam, Stream};
use super::super::{Fetcher, Rules};
use crate::server::test_certificate;

/// The host that the rules of tests allow, beside `cdn.example.com`.
pub(super) const HOST: &str = "img.example.com";

/// A scripted answer.
pub(super) enum Answer {
    /// Written at once; then the connection closes.
    Close(String),
    /// Written at once; then the connection stays open and silent.
    Hold(String),
    /// Written after a pause; then the connection closes.
    After(Duration, String),
    /// Written as a head, then one body byte every 10 ms without end.
    Drip(String),
}

/// A complete answer of status 200.
pub(super) fn ok(body: &str) -> Answer {
    Answer::Close(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()))
}

/// A redirect whose announced body never arrives.
pub(super) fn redirect(status: u16, location: &str) -> Answer {
    Answer::Hold(format!("HTTP/1.1 {status} X\r\nlocation: {location}\r\ncontent-length: 9\r\n\r\n"))
}

/// A loopback server.
pub(super) struct TestServer {
    pub(super) address: SocketAddr,
    /// Heads of the requests so far.
    pub(super) heads: Arc<Mutex<Vec<String>>>,
    /// Connections so far.
    pub(super) connections: Arc<AtomicUsize>,
    /// Resolutions by fetchers of [`TestServer::fetcher`] so far.
    pub(super) resolutions: Arc<AtomicUsize>,
    /// Trusts the server's certificate.
    pub(super) roots: RootCertStore,
}

impl TestServer {
    /// A server over plain TCP. `script` gives the answer to a request target.
    pub(super) async fn start(script: impl Fn(&str) -> Answer + Send + Sync + 'static) -> Self {
        Self::listen(script, None, RootCertStore::empty()).await
    }

    /// A server over TLS with a self-signed certificate for `host`.
    pub(super) async fn start_tls(
        host: &str,
        script: impl Fn(&str) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let (certificate, key) = test_certificate::make(host);
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        Self::listen(script, Some(TlsAcceptor::from(Arc::new(config))), roots).await
    }

    async fn listen(
        script: impl Fn(&str) -> Answer + Send + Sync + 'static,
        tls: Option<TlsAcceptor>,
        roots: RootCertStore,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            heads: Arc::default(),
            connections: Arc::default(),
            resolutions: Arc::default(),
            roots,
        };
        let (heads, connections, script) =
            (server.heads.clone(), server.connections.clone(), Arc::new(script));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::SeqCst);
                let (heads, script, tls) = (heads.clone(), script.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(Box::new(stream), &heads, &*script).await;
                            }
                        }
                        None => serve(Box::new(stream), &heads, &*script).await,
                    }
                });
            }
        });
        server
    }

    /// A fetcher for which every host is this server and loopback is allowed, over plain http too.
    /// Trusts `roots`.
    pub(super) fn fetcher(&self, roots: RootCertStore, change: impl FnOnce(&mut Rules)) -> Fetcher {
        let (address, resolutions) = (self.address, self.resolutions.clone());
        let resolve = Box::new(move |_: &str, _: u16| {
            resolutions.fetch_add(1, Ordering::SeqCst);
            vec![address]
        });
        fetcher(Seam { resolve, permits: |address| address.is_loopback() }, roots, change)
    }

    /// A fetcher of [`TestServer::fetcher`] with the tests' rules.
    pub(super) fn plain_fetcher(&self) -> Fetcher {
        self.fetcher(RootCertStore::empty(), |_| {})
    }

    /// Connections and resolutions so far.
    pub(super) fn contacts(&self) -> (usize, usize) {
        (self.connections.load(Ordering::SeqCst), self.resolutions.load(Ordering::SeqCst))
    }
}

/// A fetcher through `seam`, with the tests' rules as changed by `change`.
pub(super) fn fetcher(seam: Seam, roots: RootCertStore, change: impl FnOnce(&mut Rules)) -> Fetcher {
    let hosts = vec![HOST.into(), "CDN.example.com".into()];
    let mut rules = Rules { hosts, http: true, timeout: Duration::from_secs(20), max_bytes: 1000 };
    change(&mut rules);
    let mut peers = Peers::trusting(roots, rules.timeout);
    peers.seam = Some(seam);
    Fetcher::with_peers(rules, peers).unwrap()
}

async fn serve(
    mut stream: Box<dyn Stream>,
    heads: &Mutex<Vec<String>>,
    script: &(dyn Fn(&str) -> Answer + Sync),
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let head = String::from_utf8(head).unwrap();
    let answer = script(head.split(' ').nth(1).unwrap());
    heads.lock().unwrap().push(head);
    // A client that has left is no failure of the server.
    match answer {
        Answer::Close(text) => {
            let _ = stream.write_all(text.as_bytes()).await;
        }
        Answer::Hold(text) => {
            let _ = stream.write_all(text.as_bytes()).await;
            let _ = stream.flush().await;
            let _ = stream.read_u8().await;
        }
        Answer::After(pause, text) => {
            sleep(pause).await;
            let _ = stream.write_all(text.as_bytes()).await;
        }
        Answer::Drip(text) => {
            let _ = stream.write_all(text.as_bytes()).await;
            while stream.write_all(b"x").await.is_ok() {
                sleep(Duration::from_millis(10)).await;
            }
        }
    }
    let _ = stream.shutdown().await;
}
