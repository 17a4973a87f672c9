//! Connections beyond `server.max_connections`: probes and scrapers are answered on a few spare places, all others are refused with
//! the reason.
//!
//! A server whose connections are all in use is well, and an orchestrator that could not ask would end it. A spare place is taken
//! when the head of a probe is there, and held for the answer. Until then a connection is among the silent ones; where there are
//! too many of these the oldest makes way, so that none of them keeps a probe out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;
use tokio::io::AsyncReadExt;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use super::connection::{self, Opened};
use super::open::Open;
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
/// Most connections whose head is waited for. At a thousand new ones a second each has an eighth of a second to send it.
const MAX_SILENT: usize = 128;
/// Most bytes of a head that is looked at: probes have short ones.
const MAX_HEAD_BYTES: usize = 8 << 10;
/// Longest time for the answer to a probe.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Takes the connections for which there is no place.
pub(super) struct Overflow {
    shared: Arc<Shared>,
    spare: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    silent: Silent,
    warnings: Throttle,
}

/// Connections whose head is waited for, the oldest first. Dropping an entry tells its connection to make way.
#[derive(Default)]
struct Silent(VecDeque<oneshot::Sender<()>>);

impl Silent {
    /// Adds a connection, which is silent for as long as it keeps what comes back.
    fn add(&mut self) -> oneshot::Receiver<()> {
        self.0.retain(|connection| !connection.is_closed());
        if self.0.len() >= MAX_SILENT {
            self.0.pop_front();
        }
        let (connection, make_way) = oneshot::channel();
        self.0.push_back(connection);
        make_way
    }
}

impl Overflow {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            spare: Arc::new(Semaphore::new(SPARE_PLACES)),
            refusals: Arc::new(Semaphore::new(MAX_REFUSALS)),
            silent: Silent::default(),
            warnings: Throttle::default(),
        }
    }

    /// Answers or refuses a connection, beside what others wait for.
    pub(super) fn take(&mut self, socket: Socket) {
        let (shared, spare, refusals) = (self.shared.clone(), self.spare.clone(), self.refusals.clone());
        if self.warnings.pass() {
            tracing::warn!(
                limit = shared.config.max_connections,
                "all connections are in use (server.max_connections): new ones are refused, except for health routes and /metrics"
            );
        }
        let make_way = self.silent.add();
        tokio::spawn(async move {
            let heard = tokio::select! {
                heard = hear(socket, &shared) => heard,
                _ = make_way => None,
            };
            let refused = match heard {
                Some((opened, head)) if is_probe(&head, &shared.config.root_path) => {
                    match spare.try_acquire_owned() {
                        Ok(place) => {
                            let _open = Open::new(shared.metrics.clone(), place);
                            let answer = connection::serve_one(opened, head, shared.clone());
                            let _ = timeout(ANSWER_TIME, answer).await;
                            return;
                        }
                        Err(_) => Some(opened),
                    }
                }
                heard => heard.map(|(opened, _)| opened),
            };
            shared.metrics.record_refused_connection();
            if let (Some(opened), Ok(_held)) = (refused, refusals.try_acquire()) {
                say_why(opened, &shared).await;
            }
        });
    }
}

/// What a connection says first, as far as it comes in time; `None` for one that could not be made ready for HTTP.
async fn hear(socket: Socket, shared: &Shared) -> Option<(Opened, Vec<u8>)> {
    let mut opened = timeout(REFUSAL_TIME, connection::open(socket, shared)).await.ok()?.ok()??;
    let head = read_head(&mut opened.stream).await;
    Some((opened, head))
}

async fn say_why(opened: Opened, shared: &Shared) {
    refuse(opened.stream, &ApiError::too_many_connections(shared.config.max_connections)).await;
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
    let route = uri.and_then(|uri| Route::of(&path::normal(uri.path(), root)));
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

    /// Regression: silent connections held the places of probes.
    #[test]
    fn the_oldest_silent_connection_makes_way() {
        let mut silent = Silent::default();
        let mut connections: VecDeque<_> = (0..MAX_SILENT).map(|_| silent.add()).collect();
        let is_silent = |connection: &mut oneshot::Receiver<()>| {
            connection.try_recv() == Err(oneshot::error::TryRecvError::Empty)
        };
        assert!(connections.iter_mut().all(is_silent));
        // One that has spoken leaves its place to the next.
        connections.remove(5);
        connections.push_back(silent.add());
        assert!(connections.iter_mut().all(is_silent));
        for _ in 0..3 {
            connections.push_back(silent.add());
            assert!(!is_silent(&mut connections.pop_front().unwrap()));
            assert!(connections.iter_mut().all(is_silent));
        }
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
