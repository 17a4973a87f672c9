//! A small HTTP client that lets tests send anything, byte by byte.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// No test waits longer for anything; only a failing one waits this long.
const PATIENCE: Duration = Duration::from_secs(30);

/// An answer.
#[derive(Debug, Clone)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("UTF-8")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The data of every event; comments are skipped. Panics unless the framing is exact.
    pub(crate) fn events(&self) -> Vec<String> {
        let text = self.text();
        assert!(text.is_empty() || text.ends_with("\n\n"), "an event is not closed: {text:?}");
        text.split_terminator("\n\n")
            .filter(|event| !event.starts_with(':'))
            .map(|event| {
                assert!(!event.contains('\n'), "an event of one line: {event:?}");
                event.strip_prefix("data: ").unwrap_or_else(|| panic!("a data line: {event:?}")).to_owned()
            })
            .collect()
    }
}

/// What bytes go through.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A connection.
pub(crate) struct Client {
    stream: Box<dyn Stream>,
    /// Read and not yet used.
    buffer: Vec<u8>,
}

impl Client {
    pub(crate) async fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).await.expect("the server listens");
        Self::of(stream)
    }

    pub(crate) fn of(stream: TcpStream) -> Self {
        stream.set_nodelay(true).expect("a socket option");
        Self::over(stream)
    }

    /// Over TLS, for example.
    pub(crate) fn over(stream: impl Stream + 'static) -> Self {
        Self { stream: Box::new(stream), buffer: Vec::new() }
    }

    /// Sends bytes; a server that has already closed is not this function's concern.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        let _ = timeout(PATIENCE, self.stream.write_all(bytes)).await.expect("the server reads");
    }

    /// Ends this side of the connection.
    pub(crate) async fn finish(&mut self) {
        let _ = self.stream.shutdown().await;
    }

    pub(crate) async fn get(&mut self, path: &str) -> Response {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).await;
        self.response().await.expect("an answer")
    }

    pub(crate) async fn post(&mut self, path: &str, body: &str) -> Response {
        self.start_post(path, body).await;
        self.response().await.expect("an answer")
    }

    pub(crate) async fn start_post(&mut self, path: &str, body: &str) {
        self.send(post(path, body).as_bytes()).await;
    }

    /// More bytes; `false` at the end.
    async fn fill(&mut self) -> bool {
        let mut chunk = [0; 16 * 1024];
        match timeout(PATIENCE, self.stream.read(&mut chunk)).await.expect("the server writes or closes") {
            Ok(0) | Err(_) => false,
            Ok(n) => {
                self.buffer.extend_from_slice(&chunk[..n]);
                true
            }
        }
    }

    /// Everything up to and with `end`; `None` if the connection ends before.
    async fn until(&mut self, end: &[u8]) -> Option<Vec<u8>> {
        loop {
            if let Some(at) = self.buffer.windows(end.len()).position(|w| w == end) {
                let rest = self.buffer.split_off(at + end.len());
                return Some(std::mem::replace(&mut self.buffer, rest));
            }
            if !self.fill().await {
                return None;
            }
        }
    }

    async fn exactly(&mut self, len: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < len {
            if !self.fill().await {
                return None;
            }
        }
        let rest = self.buffer.split_off(len);
        Some(std::mem::replace(&mut self.buffer, rest))
    }

    /// The head of an answer; `None` if the connection ends before one.
    pub(crate) async fn head(&mut self) -> Option<Response> {
        let head = String::from_utf8(self.until(b"\r\n\r\n").await?).expect("UTF-8");
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        Some(Response { status, headers, body: Vec::new() })
    }

    /// A whole answer; `None` if the connection ends before it is complete.
    pub(crate) async fn response(&mut self) -> Option<Response> {
        let mut response = self.head().await?;
        if response.header("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk().await? {
                response.body.extend(chunk);
            }
        } else if let Some(length) = response.header("content-length") {
            response.body = self.exactly(length.parse().ok()?).await?;
        }
        Some(response)
    }

    /// One chunk of a chunked body: `Some(None)` at its proper end, `None` if the connection ends before.
    pub(crate) async fn chunk(&mut self) -> Option<Option<Vec<u8>>> {
        let line = String::from_utf8(self.until(b"\r\n").await?).expect("a chunk's length");
        let length = usize::from_str_radix(line.trim(), 16).expect("a chunk's length");
        let chunk = self.exactly(length).await?;
        self.exactly(2).await?;
        Some((length > 0).then_some(chunk))
    }

    /// Whether the server closes without another byte.
    pub(crate) async fn is_closed(&mut self) -> bool {
        self.buffer.is_empty() && !self.fill().await
    }
}

/// The bytes of a POST.
pub(crate) fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}
