//! GET requests to a running server, by hyper's client: over TCP, TLS or a Unix socket, bounded in time and bytes.

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{self, HeaderValue};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::trust::Trust;
use perigee_http::server;

/// Why a server may close a connection that it has taken.
const FULL: &str = "; a server closes new connections while all are in use (server.max_connections)";

/// A server, as reached from here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    /// Host with port, for the connection and the Host header.
    Tcp(String),
    /// The same with TLS, and what it trusts.
    Tls(String, Trust),
    /// A socket file.
    Unix(PathBuf),
}

/// One answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: String,
    /// Whether the body had more bytes than were read.
    pub(super) cut: bool,
}

impl Address {
    /// The address of a server with these settings, as reached from its own machine. `trust` is asked where it has TLS.
    pub(super) fn configured(server: &server::Config, trust: Trust) -> Self {
        match &server.unix_socket {
            Some(path) => Self::Unix(path.clone()),
            None if server.has_tls() => Self::Tls(Self::listening(&server.host, server.port), trust),
            None => Self::Tcp(Self::listening(&server.host, server.port)),
        }
    }

    fn listening(host: &str, port: u16) -> String {
        let host = match host {
            "0.0.0.0" => "127.0.0.1",
            "::" | "[::]" => "::1",
            host => host.trim_start_matches('[').trim_end_matches(']'),
        };
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// Takes a URL apart: address and path. `trust` is asked where the scheme is https.
    pub(super) fn of_url(url: &str, trust: Trust) -> Result<(Self, String), String> {
        let uri: Uri = url.parse().map_err(words)?;
        let place = |usual_port: u16| {
            let authority = uri.authority()?;
            Some(format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(usual_port)))
        };
        let address = match uri.scheme_str() {
            Some("http") => place(80).map(Self::Tcp),
            Some("https") => place(443).map(|place| Self::Tls(place, trust)),
            _ => None,
        };
        let address = address.ok_or("only http:// and https:// URLs are understood")?;
        Ok((address, uri.path_and_query().map_or("/", |path| path.as_str()).to_owned()))
    }

    /// The URL of `path` there.
    pub(super) fn url(&self, path: &str) -> String {
        match self {
            Self::Tcp(authority) => format!("http://{authority}{path}"),
            Self::Tls(authority, _) => format!("https://{authority}{path}"),
            Self::Unix(socket) => format!("unix:{}", socket.display()),
        }
    }

    /// One GET on a connection of its own; reads at most `max_bytes` of the body, plus the rest of a frame. `key` is sent as a bearer token.
    pub(super) async fn get(
        &self,
        path: &str,
        user_agent: &'static str,
        key: Option<&str>,
        max_bytes: usize,
    ) -> Result<Answer, String> {
        let mut request = Request::get(path)
            .header(header::USER_AGENT, user_agent)
            .header(header::CONNECTION, "close")
            .body(Empty::<Bytes>::new())
            .map_err(words)?;
        if let Some(key) = key {
            let bearer = HeaderValue::from_str(&format!("Bearer {key}"));
            let mut bearer = bearer.map_err(|_| "the key has characters that no header may have")?;
            bearer.set_sensitive(true);
            request.headers_mut().insert(header::AUTHORIZATION, bearer);
        }
        match self {
            Self::Tcp(authority) => {
                let stream = TcpStream::connect(authority).await.map_err(words)?;
                exchange(stream, request, authority, max_bytes).await
            }
            Self::Tls(authority, trust) => {
                let stream = TcpStream::connect(authority).await.map_err(words)?;
                let host = authority.rsplit_once(':').map_or(authority.as_str(), |(host, _)| host);
                let stream = trust.connect(host.trim_matches(['[', ']']), stream).await?;
                exchange(stream, request, authority, max_bytes).await
            }
            Self::Unix(socket) => {
                let stream = UnixStream::connect(socket).await.map_err(words)?;
                exchange(stream, request, "localhost", max_bytes).await
            }
        }
    }
}

async fn exchange<S>(
    stream: S,
    mut request: Request<Empty<Bytes>>,
    host: &str,
    max_bytes: usize,
) -> Result<Answer, String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let host = HeaderValue::from_str(host).map_err(words)?;
    request.headers_mut().insert(header::HOST, host);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(words)?;
    tokio::spawn(connection); // Its error also ends the exchange.
    let mut response = sender.send_request(request).await.map_err(|error| match error.is_parse() {
        true => words(error),
        false => format!("{}{FULL}", words(error)),
    })?;
    let mut body = Vec::new();
    let mut cut = false;
    while let Some(frame) = response.frame().await {
        body.extend(frame.map_err(words)?.into_data().unwrap_or_default());
        cut = body.len() > max_bytes;
        if cut {
            break;
        }
    }
    let status = response.status().as_u16();
    Ok(Answer { status, body: String::from_utf8_lossy(&body).into_owned(), cut })
}

/// Runs one exchange, for at most `timeout`.
pub(super) fn within<T>(
    timeout: Duration,
    exchange: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(words)?;
    let answer = runtime.block_on(in_time(timeout, exchange));
    runtime.shutdown_background(); // A name that is still being looked up would be waited for.
    answer
}

/// The same on a runtime that runs.
pub(super) async fn in_time<T>(
    timeout: Duration,
    exchange: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let late = |_| Err("no complete answer in time".into());
    tokio::time::timeout(timeout, exchange).await.unwrap_or_else(late)
}

/// An error with its cause: hyper and the resolver give both as separate errors.
fn words(error: impl std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn get(url: &str, key: Option<&str>) -> Result<Answer, String> {
        let (address, path) = Address::of_url(url, Trust::Public)?;
        within(PATIENCE, address.get(&path, "perigee-test", key, 100))
    }

    #[test]
    fn addresses() {
        for (host, expected) in [
            ("0.0.0.0", "http://127.0.0.1:8000/metrics"),
            ("::", "http://[::1]:8000/metrics"),
            ("[::1]", "http://[::1]:8000/metrics"),
            ("example", "http://example:8000/metrics"),
        ] {
            assert_eq!(Address::Tcp(Address::listening(host, 8000)).url("/metrics"), expected);
        }
        for (url, expected) in [
            ("http://a", Some(("a:80", "/"))),
            ("http://a:1/b?c", Some(("a:1", "/b?c"))),
            ("http://[::1]/b", Some(("[::1]:80", "/b"))),
            ("http://[::1]:2", Some(("[::1]:2", "/"))),
            ("http://a/b c", None),
            ("http://a\r\nX: y/", None),
        ] {
            let expected = expected.map(|(host, path)| (Address::Tcp(host.into()), path.to_owned()));
            assert_eq!(Address::of_url(url, Trust::Public).ok(), expected, "{url}");
        }
        for (url, expected) in
            [("https://a/b", Some("a:443")), ("https://[::1]:2", Some("[::1]:2")), ("ftp://a", None)]
        {
            let expected = expected.map(|place| Address::Tls(place.into(), Trust::Anyone));
            assert_eq!(
                Address::of_url(url, Trust::Anyone).ok().map(|(address, _)| address),
                expected,
                "{url}"
            );
        }
    }

    /// Answers one connection with `answer`; returns the request too.
    fn served(answer: String, key: Option<&str>) -> (String, Result<Answer, String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/health/ready", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            let mut byte = [0];
            while !request.ends_with(b"\r\n\r\n") {
                stream.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            let _ = stream.write_all(answer.as_bytes()); // Of a long answer the end is not read.
            String::from_utf8(request).unwrap()
        });
        let result = get(&url, key);
        (server.join().unwrap(), result)
    }

    #[test]
    fn answers() {
        let check = |answer: &str, expected: Option<(u16, &str)>| {
            let (request, result) = served(answer.into(), None);
            assert!(request.starts_with("GET /health/ready HTTP/1.1\r\n"), "{request}");
            assert!(
                request.contains("\r\nhost: 127.0.0.1:") && !request.contains("authorization"),
                "{request}"
            );
            let expected = expected.map(|(status, body)| Answer { status, body: body.into(), cut: false });
            assert_eq!(result.ok(), expected, "{answer}");
        };
        check("HTTP/1.1 200 OK\r\nA: b\r\n\r\nready", Some((200, "ready")));
        check("HTTP/1.1 503 Busy\r\n\r\n{}", Some((503, "{}")));
        check("nonsense", None);
        check("", None);
        let (_, closed) = served(String::new(), None);
        assert!(closed.unwrap_err().ends_with("all are in use (server.max_connections)"));
        check("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ncut", None);
    }

    #[test]
    fn a_long_answer_is_cut() {
        let (_, result) = served(format!("HTTP/1.1 200 OK\r\n\r\n{}", "a".repeat(1 << 20)), None);
        let answer = result.unwrap();
        assert!(answer.cut && answer.body.len() < 1 << 20);
    }

    #[test]
    fn a_key_is_a_bearer_token() {
        let (request, _) = served("HTTP/1.1 200 OK\r\n\r\n".into(), Some("k"));
        assert!(request.contains("\r\nauthorization: Bearer k\r\n"), "{request}");
        let error = get("http://127.0.0.1:9/", Some("a\nb")).unwrap_err();
        assert_eq!(error, "the key has characters that no header may have");
    }

    #[test]
    fn nobody_listens() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(get(&format!("http://{address}/"), None).is_err());
    }

    #[test]
    fn a_server_that_does_not_answer_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap().to_string());
        let answer = within(Duration::from_millis(50), address.get("/", "perigee-test", None, 100));
        assert_eq!(answer, Err("no complete answer in time".into()));
    }
}
