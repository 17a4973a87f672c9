//! `perigee health`: the container's health check. A plain HTTP/1.1 request over a standard socket.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::commands::load_settings;
use crate::config::args::HealthArgs;

/// Most bytes of an answer that are read.
const MAX_ANSWER_BYTES: u64 = 64 << 10;

/// Asks; 0 if the answer is a 2xx, 1 otherwise.
pub(super) fn health(args: &HealthArgs) -> ExitCode {
    let timeout = Duration::try_from_secs_f64(args.timeout).unwrap_or(Duration::from_secs(2));
    let (url, answer) = match &args.url {
        Some(url) => (url.clone(), ask(url, timeout)),
        None => match load_settings(&args.settings) {
            Ok(loaded) => {
                let server = &loaded.settings.server;
                match &server.unix_socket {
                    Some(path) => (format!("unix:{}", path.display()), ask_socket(path, timeout)),
                    None => {
                        let url = ready_url(&server.host, server.port);
                        let answer = ask(&url, timeout);
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

/// Where a server that listens at `host` is reached from its own machine.
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
    let rest = url.strip_prefix("http://").ok_or("only http:// URLs are understood")?;
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, "/"),
    };
    let host_end = authority.rfind(']').map_or(0, |at| at + 1);
    let authority = match authority[host_end..].contains(':') {
        true => authority.to_owned(),
        false => format!("{authority}:80"),
    };
    if [authority.as_str(), path].iter().any(|part| part.contains(|c: char| c.is_control() || c == ' ')) {
        return Err("the URL has spaces or control characters".into());
    }
    Ok((authority, path.to_owned()))
}

/// One GET; status and body. The whole exchange takes at most about `timeout` per address.
fn ask(url: &str, timeout: Duration) -> Result<(u16, String), String> {
    let (authority, path) = split_url(url)?;
    let words = |e: std::io::Error| e.to_string();
    let mut last = "the host has no address".to_owned();
    for address in authority.to_socket_addrs().map_err(words)? {
        let deadline = Instant::now() + timeout;
        let mut stream = match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => stream,
            Err(e) => {
                last = e.to_string();
                continue;
            }
        };
        stream.set_write_timeout(Some(timeout)).map_err(words)?;
        let until = |stream: &TcpStream, left| stream.set_read_timeout(Some(left));
        return exchange(&mut stream, &authority, &path, deadline, until);
    }
    Err(last)
}

/// The same over a Unix socket, for `/health/ready`.
fn ask_socket(path: &Path, timeout: Duration) -> Result<(u16, String), String> {
    let words = |e: std::io::Error| e.to_string();
    let deadline = Instant::now() + timeout;
    let mut stream = UnixStream::connect(path).map_err(words)?;
    stream.set_write_timeout(Some(timeout)).map_err(words)?;
    let until = |stream: &UnixStream, left| stream.set_read_timeout(Some(left));
    exchange(&mut stream, "localhost", "/health/ready", deadline, until)
}

/// Sends the request and reads the answer. `limit_read` bounds the next read of the stream.
fn exchange<S: Read + Write>(
    stream: &mut S,
    host: &str,
    path: &str,
    deadline: Instant,
    limit_read: impl Fn(&S, Duration) -> std::io::Result<()>,
) -> Result<(u16, String), String> {
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: perigee-health\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).map_err(|e| e.to_string())?;
    parse_answer(&read_until(stream, deadline, limit_read)?)
}

/// Reads to the end of the stream, the deadline, or the limit.
fn read_until<S: Read>(
    stream: &mut S,
    deadline: Instant,
    limit_read: impl Fn(&S, Duration) -> std::io::Result<()>,
) -> Result<Vec<u8>, String> {
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while (answer.len() as u64) < MAX_ANSWER_BYTES {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err("no complete answer in time".into());
        }
        limit_read(stream, left).map_err(|e| e.to_string())?;
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => answer.extend_from_slice(&buffer[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                return Err("no complete answer in time".into());
            }
            Err(e) => return Err(e.to_string()),
        }
    }
    Ok(answer)
}

/// Status and body of an HTTP/1 answer.
fn parse_answer(answer: &[u8]) -> Result<(u16, String), String> {
    let text = String::from_utf8_lossy(answer);
    let status = text.strip_prefix("HTTP/1.").and_then(|t| t.get(2..5)).and_then(|s| s.parse().ok());
    let status = status.ok_or("the answer is not HTTP")?;
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok((status, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

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
        let result = ask(&url, Duration::from_secs(30));
        assert!(server.join().unwrap().starts_with("GET /health/ready HTTP/1.1\r\nHost: 127.0.0.1:"));
        result
    }

    #[test]
    fn answers() {
        assert_eq!(served("HTTP/1.1 200 OK\r\nA: b\r\n\r\nready"), Ok((200, "ready".into())));
        assert_eq!(served("HTTP/1.1 503 Busy\r\n\r\n{}"), Ok((503, "{}".into())));
        assert!(served("nonsense").is_err());
        assert!(served("").is_err());
    }

    #[test]
    fn nobody_listens() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(ask(&format!("http://{address}/"), Duration::from_secs(30)).is_err());
    }
}
