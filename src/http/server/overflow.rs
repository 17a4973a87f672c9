//! Connections beyond `server.max_connections`: probes and scrapers are answered on a few spare places, all others are refused with
//! the reason.
//!
//! A server whose connections are all in use is well, and an orchestrator that could not ask would end it. A place is held for the
//! head of one request, and for the answer to a probe.

use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;
use tokio::io::AsyncReadExt;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::connection::{self, Opened};
use super::listener::Open;
use super::path;
use super::refusal::{REFUSAL_TIME, refuse};
use super::shared::Shared;
use super::socket::{Socket, Stream};
use crate::api::{ApiError, Handler, Route};
use perigee_telemetry::Throttle;

/// Places for probes and scrapers.
const SPARE_PLACES: usize = 16;
/// Most connections that are refused with a reason at once; further ones are closed without an answer.
const MAX_REFUSALS: usize = 64;
/// Most bytes of a head that is looked at: probes have short ones.
const MAX_HEAD_BYTES: usize = 8 << 10;
/// Longest time for the answer to a probe.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Takes the connections for which there is no place.
pub(super) struct Overflow {
    shared: Arc<Shared>,
    spare: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    warnings: Throttle,
}

impl Overflow {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            spare: Arc::new(Semaphore::new(SPARE_PLACES)),
            refusals: Arc::new(Semaphore::new(MAX_REFUSALS)),
            warnings: Throttle::default(),
        }
    }

    /// Answers or refuses a connection, beside what others wait for.
    pub(super) fn take(&mut self, socket: Socket) {
        let (shared, refusals) = (self.shared.clone(), self.refusals.clone());
        if self.warnings.pass() {
            tracing::warn!(
                limit = shared.config.max_connections,
                "all connections are in use (server.max_connections): new ones are refused, except for health routes and /metrics"
            );
        }
        if let Ok(place) = self.spare.clone().try_acquire_owned() {
            let place = Open::new(shared.metrics.clone(), place);
            tokio::spawn(async move {
                let Some(opened) = open(socket, &shared).await else { return };
                let Some(refused) = answer_probe(opened, &shared).await else { return };
                drop(place);
                shared.metrics.record_refused_connection();
                if let Ok(_held) = refusals.try_acquire() {
                    say_why(refused, &shared).await;
                }
            });
            return;
        }
        shared.metrics.record_refused_connection();
        if let Ok(held) = refusals.try_acquire_owned() {
            tokio::spawn(async move {
                if let Some(opened) = open(socket, &shared).await {
                    say_why(opened, &shared).await;
                }
                drop(held);
            });
        }
    }
}

async fn open(socket: Socket, shared: &Shared) -> Option<Opened> {
    timeout(REFUSAL_TIME, connection::open(socket, shared)).await.ok()?.ok()?
}

async fn say_why(opened: Opened, shared: &Shared) {
    refuse(opened.stream, &ApiError::too_many_connections(shared.config.max_connections)).await;
}

/// Answers the first request of a connection if it is a probe's; else the connection comes back.
async fn answer_probe(mut opened: Opened, shared: &Arc<Shared>) -> Option<Opened> {
    let head = read_head(&mut opened.stream).await;
    if !is_probe(&head, &shared.config.root_path) {
        return Some(opened);
    }
    let _ = timeout(ANSWER_TIME, connection::serve_one(opened, head, shared.clone())).await;
    None
}

/// The bytes of a request to the end of its head, or as far as they come in time.
async fn read_head(stream: &mut impl Stream) -> Vec<u8> {
    let mut head = Vec::with_capacity(1 << 10);
    let reading = async {
        while head.len() < MAX_HEAD_BYTES && !is_whole(&head) {
            match stream.read_buf(&mut head).await {
                Ok(read) if read > 0 => {}
                _ => break,
            }
        }
    };
    let _ = timeout(REFUSAL_TIME, reading).await;
    head
}

fn is_whole(head: &[u8]) -> bool {
    head.windows(4).any(|bytes| bytes == b"\r\n\r\n")
}

/// Whether a whole head asks for a route that is answered on the spare places.
fn is_probe(head: &[u8], root: &str) -> bool {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let target = str::from_utf8(line).ok().and_then(|line| line.split(' ').nth(1));
    let uri: Option<Uri> = target.and_then(|target| target.parse().ok());
    let route = uri.and_then(|uri| Route::of(path::below(uri.path(), root)));
    is_whole(head) && route.is_some_and(|route| route.is_probe() || route.handler == Handler::Metrics)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_told_by_the_route_of_a_whole_head() {
        for (line, expected) in [
            ("GET /health HTTP/1.1", true),
            ("HEAD /health/ready?verbose HTTP/1.1", true),
            ("GET /llm/health/live HTTP/1.1", true),
            ("GET http://a:8000/metrics HTTP/1.1", true),
            ("GET /v1/models HTTP/1.1", false),
            ("POST /v1/chat/completions HTTP/1.1", false),
            ("GET / HTTP/1.1", false),
            ("GET /no/such HTTP/1.1", false),
            ("nonsense", false),
            ("", false),
        ] {
            let head = format!("{line}\r\nhost: a\r\n\r\n");
            assert_eq!(is_probe(head.as_bytes(), "/llm"), expected, "{line}");
            assert!(!is_probe(&head.as_bytes()[..head.len() - 1], "/llm"), "{line}");
        }
        assert!(!is_probe(b"GET /\xff HTTP/1.1\r\n\r\n", ""));
    }

    #[tokio::test]
    async fn a_head_that_does_not_end_is_waited_for_a_moment() {
        use tokio::io::AsyncWriteExt;

        let (mut near, mut far) = tokio::io::duplex(1 << 20);
        far.write_all(b"GET /health HTTP/1.1\r\nhost:").await.unwrap();
        assert_eq!(read_head(&mut near).await, b"GET /health HTTP/1.1\r\nhost:");
        far.write_all(&[b'a'; 100_000]).await.unwrap();
        assert!(read_head(&mut near).await.len() < 100_000);
        drop(far);
    }
}
