//! `perigee health`: the container's health check, one GET by hyper's client.

use std::future::Future;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, Uri, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::commands::load_settings;
use crate::config::args::HealthArgs;

/// Most bytes of an answer that are read.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Sends the request; exit code 0 if the answer is a 2xx, 1 otherwise.
pub(super) fn health(args: &HealthArgs) -> ExitCode {
    let timeout = Duration::try_from_secs_f64(args.timeout).unwrap_or(Duration::from_secs(2));
    let (url, answer) = match &args.url {
        Some(url) => (url.clone(), within(timeout, ask(url))),
        None => match load_settings(&args.settings) {
            Ok(loaded) => {
                let server = &loaded.settings.server;
                match &server.unix_socket {
                    Some(path) => (format!("unix:{}", path.display()), within(timeout, ask_socket(path))),
                    None => {
                        let url = ready_url(&server.host, server.port);
                        let answer = within(timeout, ask(&url));
                        (url, answer)
                    }
                }
            }
            Err(_) => return ExitCode::FAILURE,
        },
    };
    match answer {
        Ok((status, body)) if (200..300).contains(&status) => {
            println!("{}", body.trim_end());
            ExitCode::SUCCESS
        }
        Ok((status, body)) => {
            eprintln!("perigee: {url} answered {status}: {}", body.trim_end());
            ExitCode::FAILURE
        }
        Err(problem) => {
            eprintln!("perigee: {url}: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// The URL of a server that listens at `host`, as reached from its own machine.
fn ready_url(host: &str, port: u16) -> String {
    let host = match host {
        "0.0.0.0" => "127.0.0.1",
        "::" | "[::]" => "::1",
        host => host.trim_start_matches('[').trim_end_matches(']'),
    };
    if host.contains(':') {
        format!("http://[{host}]:{port}/health/ready")
    } else {
        format!("http://{host}:{port}/health/ready")
    }
}

/// Host with port (for the Host header and the connection), and path.
fn split_url(url: &str) -> Result<(String, String), String> {
    let uri: Uri = url.parse().map_err(words)?;
    let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http"));
    let authority = authority.ok_or("only http:// URLs are understood")?;
    let port = authority.port_u16().unwrap_or(80);
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    Ok((format!("{}:{port}", authority.host()), path.to_owned()))
}

/// Runs one exchange, for at most `timeout`.
fn within<T>(timeout: Duration, exchange: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(words)?;
    let late = |_| Err("no complete answer in time".into());
    let answer =
        runtime.block_on(async { tokio::time::timeout(timeout, exchange).await.unwrap_or_else(late) });
    runtime.shutdown_background(); // A name that is still being looked up would be waited for.
    answer
}

/// One GET; status and body.
async fn ask(url: &str) -> Result<(u16, String), String> {
    let (authority, path) = split_url(url)?;
    get(TcpStream::connect(&authority).await.map_err(words)?, &authority, &path).await
}

/// The same over a Unix socket, for `/health/ready`.
async fn ask_socket(path: &Path) -> Result<(u16, String), String> {
    get(UnixStream::connect(path).await.map_err(words)?, "localhost", "/health/ready").await
}

async fn get<S>(stream: S, host: &str, path: &str) -> Result<(u16, String), String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(words)?;
    tokio::spawn(connection); // Its error also ends the exchange.
    let request = Request::get(path)
        .header(header::HOST, host)
        .header(header::USER_AGENT, "perigee-health")
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(words)?;
    let mut response = sender.send_request(request).await.map_err(words)?;
    let mut body = Vec::new();
    while body.len() < MAX_ANSWER_BYTES
        && let Some(frame) = response.frame().await
    {
        body.extend(frame.map_err(words)?.into_data().unwrap_or_default());
    }
    Ok((response.status().as_u16(), String::from_utf8_lossy(&body).into_owned()))
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

    #[test]
    fn urls() {
        for (host, expected) in [
            ("0.0.0.0", "http://127.0.0.1:8000/health/ready"),
            ("::", "http://[::1]:8000/health/ready"),
            ("[::1]", "http://[::1]:8000/health/ready"),
            ("example", "http://example:8000/health/ready"),
        ] {
            assert_eq!(ready_url(host, 8000), expected);
        }
        for (url, expected) in [
            ("http://a", Some(("a:80", "/"))),
            ("http://a:1/b?c", Some(("a:1", "/b?c"))),
            ("http://[::1]/b", Some(("[::1]:80", "/b"))),
            ("http://[::1]:2", Some(("[::1]:2", "/"))),
            ("https://a", None),
            ("http://a/b c", None),
            ("http://a\r\nX: y/", None),
        ] {
            assert_eq!(split_url(url).ok(), expected.map(|(a, p)| (a.to_owned(), p.to_owned())), "{url}");
        }
    }

    /// Answers one connection with `answer`, and checks the request.
    fn served(answer: &'static str) -> Result<(u16, String), String> {
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
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8(request).unwrap()
        });
        let result = within(PATIENCE, ask(&url));
        assert!(server.join().unwrap().starts_with("GET /health/ready HTTP/1.1\r\nhost: 127.0.0.1:"));
        result
    }

    #[test]
    fn answers() {
        assert_eq!(served("HTTP/1.1 200 OK\r\nA: b\r\n\r\nready"), Ok((200, "ready".into())));
        assert_eq!(served("HTTP/1.1 503 Busy\r\n\r\n{}"), Ok((503, "{}".into())));
        assert!(served("nonsense").is_err());
        assert!(served("").is_err());
        assert!(served("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ncut").is_err());
    }

    #[test]
    fn nobody_listens() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(within(PATIENCE, ask(&format!("http://{address}/"))).is_err());
    }

    #[test]
    fn a_server_that_does_not_answer_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let answer = within(Duration::from_millis(50), ask(&url));
        assert_eq!(answer, Err("no complete answer in time".into()));
    }
}
