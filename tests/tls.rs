//! HTTPS: handshakes and their limits, the certificate of clients, and reloads of a running binary.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use perigee_http::server::{Config, Server, Tls};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};

use crate::certificate::{Made, issue, issue_v1, make, pem};
use crate::client::Client;
use crate::fake::{self, FakeEngine, MODEL, serve};
use crate::serve::{Served, runtime};

const HOST: &str = "perigee.example";

/// A folder with a certificate for [`HOST`] and its key.
struct Files {
    folder: TempDir,
    made: Made,
}

impl Files {
    fn new() -> Self {
        let files = Self { folder: tempfile::tempdir().unwrap(), made: make(HOST) };
        files.write();
        files
    }

    fn write(&self) {
        std::fs::write(self.certificate(), pem("CERTIFICATE", &self.made.0)).unwrap();
        std::fs::write(self.key(), pem("PRIVATE KEY", self.made.1.secret_der())).unwrap();
    }

    /// A new certificate and key in the same files.
    fn renew(&mut self) {
        self.made = make(HOST);
        self.write();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn certificate(&self) -> PathBuf {
        self.path("certificate.pem")
    }

    fn key(&self) -> PathBuf {
        self.path("key.pem")
    }

    fn config(&self) -> Config {
        Config { tls_certificate: Some(self.certificate()), tls_key: Some(self.key()), ..fake::config() }
    }

    /// The same as arguments of the binary.
    fn settings(&self) -> [String; 2] {
        [
            format!("server.tls_certificate={}", self.certificate().display()),
            format!("server.tls_key={}", self.key().display()),
        ]
    }

    /// A client that trusts the certificate.
    fn trusting(&self) -> Asked {
        let mut roots = RootCertStore::empty();
        roots.add(self.made.0.clone()).unwrap();
        Asked { roots, own: None, versions: BOTH, alpn: &["http/1.1"] }
    }
}

static OLD: &[&SupportedProtocolVersion] = &[&TLS12];
static NEW: &[&SupportedProtocolVersion] = &[&TLS13];
static BOTH: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];

/// A client's side of a handshake.
struct Asked {
    roots: RootCertStore,
    own: Option<Made>,
    versions: &'static [&'static SupportedProtocolVersion],
    alpn: &'static [&'static str],
}

impl Asked {
    async fn handshake(self, addr: SocketAddr) -> std::io::Result<TlsStream<TcpStream>> {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(self.versions)
            .unwrap()
            .with_root_certificates(self.roots);
        let mut config = match self.own {
            // Not looked at on this side: what is wrong with it is for the server to see.
            Some((certificate, key)) => {
                let key = ring::sign::any_supported_type(&key).unwrap();
                let own = CertifiedKey::new(vec![certificate], key);
                config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own)))
            }
            None => config.with_no_client_auth(),
        };
        config.alpn_protocols = self.alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        let stream = TcpStream::connect(addr).await?;
        TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(HOST).unwrap(), stream).await
    }

    async fn connect(self, addr: SocketAddr) -> Client {
        Client::over(self.handshake(addr).await.expect("a handshake"))
    }
}

async fn start(files: &Files, change: impl FnOnce(&mut Config)) -> (Server, FakeEngine) {
    let engine = FakeEngine::new(true);
    let mut config = files.config();
    change(&mut config);
    (serve(&engine, config).await, engine)
}

#[tokio::test]
async fn requests_are_answered_over_both_versions() {
    let files = Files::new();
    let (server, _engine) = start(&files, |_| ()).await;
    assert_eq!(server.url(), format!("https://{}", server.addr()));
    let versions = [OLD, NEW];
    for versions in versions {
        for alpn in [&["http/1.1"][..], &["h2", "http/1.1"], &[]] {
            let stream = Asked { versions, alpn, ..files.trusting() }.handshake(server.addr()).await.unwrap();
            let connection = stream.get_ref().1;
            assert_eq!(connection.protocol_version(), Some(versions[0].version));
            assert_eq!(connection.alpn_protocol(), (!alpn.is_empty()).then_some(&b"http/1.1"[..]));
            let mut client = Client::over(stream);
            for _ in 0..2 {
                assert_eq!(client.get("/health").await.status, 200);
            }
        }
        let refused = Asked { versions, alpn: &["h2"], ..files.trusting() }.handshake(server.addr()).await;
        assert!(refused.is_err(), "the server speaks no HTTP/2");
    }
}

#[tokio::test]
async fn a_chat_is_streamed() {
    let files = Files::new();
    let (server, _engine) = start(&files, |_| ()).await;
    let mut client = files.trusting().connect(server.addr()).await;
    // The engine echoes the prompt, from the seed on.
    let message = json!({"role": "user", "content": "x"});
    let mut body = json!({"model": MODEL, "messages": [message], "max_tokens": 90, "seed": 0});
    let whole = client.post("/v1/chat/completions", &body.to_string()).await.json();
    body["stream"] = json!(true);
    let events = client.post("/v1/chat/completions", &body.to_string()).await.events();
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    let deltas = events[..events.len() - 1].iter().map(|event| serde_json::from_str::<Value>(event).unwrap());
    let text: String = deltas
        .filter_map(|event| Some(event["choices"][0]["delta"]["content"].as_str()?.to_owned()))
        .collect();
    assert!(text.starts_with("system"), "{text}");
    assert_eq!(whole["choices"][0]["message"]["content"], text);
}

#[tokio::test]
async fn http_without_tls_is_told_and_noise_is_closed() {
    let files = Files::new();
    let (server, _engine) = start(&files, |_| ()).await;
    let mut client = Client::connect(server.addr()).await;
    let answer = client.get("/health").await;
    assert_eq!((answer.status, answer.header("connection")), (400, Some("close")));
    assert_eq!(answer.json()["error"]["code"], "tls_needed", "{}", answer.text());
    assert!(answer.text().contains("https://"));
    client.finish().await;
    assert!(client.is_closed().await);
    for noise in [&b"\x00\x01\x02\x03\x04\x05"[..], &[22, 3, 1, 0, 5, 1, 2, 3, 4, 5], &[0x80; 64]] {
        let mut stream = TcpStream::connect(server.addr()).await.unwrap();
        stream.write_all(noise).await.unwrap();
        // At most an alert comes back.
        let mut rest = Vec::new();
        let _ =
            timeout(Duration::from_secs(30), stream.read_to_end(&mut rest)).await.expect("the server closes");
        assert!(rest.len() < 16, "{rest:?}");
    }
}

#[tokio::test]
async fn silent_clients_hold_a_place_for_the_time_of_a_head() {
    let files = Files::new();
    // Silent clients hold nobody up.
    let (server, _engine) = start(&files, |config| config.header_read_timeout_s = 1000.0).await;
    let mut silent = Vec::new();
    for begun in [&b""[..], &[22], &[22, 3, 1, 1, 0]] {
        let mut client = Client::connect(server.addr()).await;
        client.send(begun).await;
        silent.push(client);
    }
    assert_eq!(files.trusting().connect(server.addr()).await.get("/health").await.status, 200);
    // They count as connections, and the next client reads so, unless it is a probe.
    let (server, _engine) = start(&files, |config| config.max_connections = 1).await;
    let silent = Client::connect(server.addr()).await;
    let answer = files.trusting().connect(server.addr()).await.get("/version").await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (503, &json!("too_many_connections")));
    let page = files.trusting().connect(server.addr()).await.get("/metrics").await;
    let end = "perigee_tls_certificate_not_after_timestamp_seconds 2524607999\n";
    assert!(page.status == 200 && page.text().contains(end), "{}", page.text());
    drop(silent);
    // Their place is free once their time is over.
    let (server, _engine) = start(&files, |config| {
        (config.max_connections, config.header_read_timeout_s) = (1, 0.2);
    })
    .await;
    for begun in [&b""[..], &[22, 3, 1, 1, 0]] {
        let mut silent = Client::connect(server.addr()).await;
        silent.send(begun).await;
        assert!(silent.is_closed().await);
    }
    while files.trusting().connect(server.addr()).await.get("/version").await.status != 200 {}
}

#[tokio::test]
async fn clients_show_a_certificate_where_one_is_demanded() {
    let files = Files::new();
    let ca = make("ca.example");
    std::fs::write(files.path("ca.pem"), pem("CERTIFICATE", &ca.0)).unwrap();
    let file = files.path("ca.pem");
    let (server, _engine) = start(&files, |config| config.tls_client_ca = Some(file)).await;
    let until = b"491231235959Z";
    for (own, status) in [(None, 401), (Some(issue("team-a", until, Some(("ca.example", &ca.1)))), 200)] {
        let mut client = Asked { own, ..files.trusting() }.connect(server.addr()).await;
        assert_eq!(client.get("/v1/models").await.status, status);
        assert_eq!(client.get("/metrics").await.status, status);
        // Probes have no certificate.
        assert_eq!(client.get("/health/ready").await.status, 200);
    }
    let signed = Some(("ca.example", &ca.1));
    for own in [make("team-a"), issue("team-a", b"250301000000Z", signed), issue_v1("team-a", until, signed)]
    {
        let stream = Asked { own: Some(own), ..files.trusting() }.handshake(server.addr()).await;
        // With TLS 1.3 the client learns of it when it reads.
        if let Ok(stream) = stream {
            let mut client = Client::over(stream);
            client.send(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await;
            assert!(client.is_closed().await);
        }
    }
}

#[tokio::test]
async fn a_new_certificate_is_for_new_connections() {
    let mut files = Files::new();
    let (server, engine) = start(&files, |_| ()).await;
    let mut old = files.trusting().connect(server.addr()).await;
    let old_roots = files.trusting();
    files.renew();
    let tls = Tls::read(&files.config()).unwrap();
    let api = fake::api(&engine, &files.config(), Arc::new(perigee_telemetry::Metrics::new(MODEL, true)));
    server.control().replace(api, &files.config(), tls);
    assert_eq!(old.get("/health").await.status, 200);
    assert!(old_roots.handshake(server.addr()).await.is_err());
    assert_eq!(files.trusting().connect(server.addr()).await.get("/health").await.status, 200);
}

/// The binary, without the settings of its caller.
fn perigee(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_perigee"));
    command.args(arguments).current_dir(std::env::temp_dir()).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

async fn reload(client: &mut Client) -> (u16, Value) {
    client.send(b"POST /admin/reload HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer root\r\ncontent-length: 0\r\n\r\n").await;
    let answer = client.response().await.expect("an answer");
    (answer.status, answer.json())
}

fn write_site(path: &Path, files: &Files) {
    let text = format!(
        "[server]\nadmin_key = \"root\"\ntls_certificate = {:?}\ntls_key = {:?}\n",
        files.certificate(),
        files.key()
    );
    std::fs::write(path, text).unwrap();
}

#[test]
fn a_reload_takes_a_new_certificate_and_refuses_a_broken_one() {
    let mut files = Files::new();
    let site = files.path("site.toml");
    write_site(&site, &files);
    let served = Served::start_with(&["--config", site.to_str().unwrap()]);
    let changed = |report: &Value| -> Vec<String> {
        let changes = report["changed"].as_array().unwrap().iter();
        changes.map(|change| change["key"].as_str().unwrap().to_owned()).collect()
    };
    runtime().block_on(async {
        let mut stream = files.trusting().connect(served.addr).await;
        let body = json!({"prompt": vec!["x"; 64], "max_tokens": 1000, "ignore_eos": true, "stream": true, "repetition_guard": "off"});
        stream.start_post("/v1/completions", &body.to_string()).await;
        assert_eq!(stream.head().await.expect("a head").status, 200);
        let mut operator = files.trusting().connect(served.addr).await;
        // A broken file changes nothing.
        let old = files.trusting();
        std::fs::write(files.certificate(), "-----BEGIN CERTIFICATE-----\nx").unwrap();
        let (status, error) = reload(&mut operator).await;
        assert_eq!((status, &error["error"]["code"]), (422, &json!("invalid_settings")));
        assert!(error["error"]["message"].as_str().unwrap().contains("server.tls_certificate"), "{error}");
        assert_eq!(old.connect(served.addr).await.get("/health").await.status, 200);
        // Half of a renewal neither.
        let old = files.trusting();
        let renewed = make(HOST);
        std::fs::write(files.certificate(), pem("CERTIFICATE", &renewed.0)).unwrap();
        let (status, error) = reload(&mut operator).await;
        assert!(status == 422 && error["error"]["message"].as_str().unwrap().contains("server.tls_key"), "{error}");
        assert_eq!(old.connect(served.addr).await.get("/health").await.status, 200);
        // The same files with new content, then other files, by both ways.
        let old = files.trusting();
        files.made = renewed;
        files.write();
        let (status, report) = reload(&mut operator).await;
        assert_eq!((status, changed(&report)), (200, vec!["server.tls_certificate".to_owned()]));
        assert!(old.handshake(served.addr).await.is_err());
        assert_eq!(files.trusting().connect(served.addr).await.get("/health").await.status, 200);
        let (_, report) = reload(&mut operator).await;
        assert_eq!(changed(&report), [""; 0]);
        let other = Files::new();
        write_site(&site, &other);
        served.signal("HUP");
        let mut attempts = 0;
        while other.trusting().handshake(served.addr).await.is_err() {
            attempts += 1;
            assert!(attempts < 100_000, "SIGHUP reloads nothing");
        }
        // What turns TLS off waits for the next start.
        std::fs::write(&site, "[server]\nadmin_key = \"root\"\n").unwrap();
        let (status, report) = reload(&mut operator).await;
        assert_eq!((status, changed(&report)), (200, Vec::new()));
        assert_eq!(report["at_next_start"].as_array().unwrap().len(), 2, "{report}");
        assert_eq!(other.trusting().connect(served.addr).await.get("/health").await.status, 200);
        // Connections that were open went on through all of it.
        for _ in 0..3 {
            stream.chunk().await.expect("the stream goes on").expect("not the end");
        }
    });
    drop(served);
}

#[test]
fn health_and_top_ask_a_server_with_tls() {
    let files = Files::new();
    let settings = files.settings();
    let served = Served::start(None, &[&settings[0], &settings[1]]);
    let port = served.addr.port().to_string();
    let own = ["--port", &port, "--set", &settings[0], "--set", &settings[1]];
    let url = format!("https://{}/health", served.addr);
    let certificate = files.certificate();
    let certificate = certificate.to_str().unwrap();
    for arguments in [
        [&["health"][..], &own].concat(),
        vec!["health", "--url", &url, "--ca", certificate],
        [&["top", "--once", "--interval", "100ms"][..], &own].concat(),
    ] {
        let output = perigee(&arguments);
        assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    }
    for (arguments, words) in [
        (vec!["health", "--url", &url], "--ca FILE"),
        (vec!["top", "--once", "--url", url.trim_end_matches("/health")], "--ca FILE"),
        (vec!["health", "--port", &port], "this port speaks HTTPS"),
        (vec!["top", "--once", "--port", &port], "this port speaks HTTPS"),
    ] {
        let output = perigee(&arguments);
        assert!(
            !output.status.success() && said(&output).contains(words),
            "{arguments:?}: {}",
            said(&output)
        );
    }
    assert!(served.booted.iter().any(|line| line.contains("2049-12-31")), "{:?}", served.booted);
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn a_key_of_another_certificate_is_refused_at_the_start() {
    let files = Files::new();
    std::fs::write(files.key(), pem("PRIVATE KEY", make(HOST).1.secret_der())).unwrap();
    let settings = files.settings();
    for command in [&["serve", "--port", "0"][..], &["config", "check"]] {
        let output = perigee(&[command, &["--set", &settings[0], "--set", &settings[1]]].concat());
        let words = said(&output);
        assert_eq!(output.status.code(), Some(2), "{words}");
        assert!(words.contains("server.tls_key = ") && words.contains("does not belong"), "{words}");
    }
    let output = perigee(&["config", "check", "--settings-only", "--set", &settings[0]]);
    assert!(said(&output).contains("must be set where server.tls_certificate is"), "{}", said(&output));
}
