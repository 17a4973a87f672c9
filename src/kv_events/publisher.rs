//! The sockets: batches go out with a number each, and those that are kept are sent again to who asks.
//!
//! vLLM's frames: PUB sends topic, number (8 bytes, big-endian), batch. A subscriber's DEALER sends an empty frame and the first number it wants; the
//! ROUTER answers with empty frame, topic, number, batch for each, and ends with number -1. Numbers begin at 0 with a batch that says that nothing is
//! cached, and so does what is kept: where it would begin later, the engine is asked for a snapshot.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::sync::mpsc::{self, Receiver};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use zeromq::{PubSocket, RouterSendHalf, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use super::config::Config;
use super::contents::Event;
use super::feed::{Feed, QUEUE};
use super::wire;
use crate::telemetry::Metrics;

/// Time for the last batch to leave.
const LINGER: Duration = Duration::from_millis(200);
/// Longest time that the end of the process waits for the publisher.
const MAX_END: Duration = Duration::from_secs(2);
/// Longest time for one frame of a replay to be taken by its subscriber.
const MAX_SEND: Duration = Duration::from_secs(5);

/// An address could not be listened on.
#[derive(Debug, thiserror::Error)]
#[error("kv_events.{key} = {address:?}: {source}; choose another address")]
pub struct StartError {
    key: &'static str,
    address: String,
    source: zeromq::ZmqError,
}

/// A running publisher.
pub struct Publisher(JoinHandle<()>);

impl Publisher {
    /// Waits until the publisher has said that nothing is cached any more; it ends when its feed is dropped.
    pub async fn ended(self) {
        let _ = timeout(MAX_END, self.0).await;
    }
}

/// Listens, and publishes what the feed sends, for a model of this name with blocks of `block_size` tokens. Errors: an address cannot be bound.
pub async fn publish(
    config: &Config,
    model: &str,
    block_size: usize,
    metrics: Arc<Metrics>,
) -> Result<(Feed, Publisher), StartError> {
    let mut events = PubSocket::new();
    let at = bind(&mut events, "endpoint", &config.endpoint).await?;
    let mut replayed_at = None;
    let mut requests = None;
    if !config.replay_endpoint.is_empty() {
        let mut socket = RouterSocket::new();
        replayed_at = Some(bind(&mut socket, "replay_endpoint", &config.replay_endpoint).await?);
        requests = Some(socket);
    }
    let (sender, batches) = mpsc::channel(QUEUE);
    let snapshot_due = Arc::new(AtomicBool::new(false));
    let feed = Feed::new(sender, snapshot_due.clone(), metrics.clone());
    let outgoing = Outgoing {
        events,
        topic: Bytes::from(format!("kv@{}@{model}", config.pod)),
        config: config.clone(),
        block_size,
        next: 0,
        kept: VecDeque::new(),
        metrics,
    };
    tracing::info!(at, replay = replayed_at, "KV events are published");
    Ok((feed, Publisher(tokio::spawn(run(outgoing, requests, batches, snapshot_due)))))
}

/// Binds a socket; the address with the port that was chosen.
async fn bind(socket: &mut impl Socket, key: &'static str, address: &str) -> Result<String, StartError> {
    // `*` is what vLLM writes for all addresses.
    let everywhere = address.replace("tcp://*:", "tcp://0.0.0.0:");
    let bound = socket.bind(&everywhere).await;
    bound.map(|bound| bound.to_string()).map_err(|source| StartError {
        key,
        address: address.to_owned(),
        source,
    })
}

/// Batches and where they go.
struct Outgoing {
    events: PubSocket,
    topic: Bytes,
    config: Config,
    block_size: usize,
    /// Number of the next batch.
    next: i64,
    /// Sent batches, the last ones.
    kept: VecDeque<Kept>,
    metrics: Arc<Metrics>,
}

/// A batch that was sent.
#[derive(Clone)]
struct Kept {
    number: i64,
    batch: Bytes,
    /// Whether it begins with nothing: who reads on from here knows everything.
    whole: bool,
}

impl Outgoing {
    async fn send(&mut self, events: &[Event]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let batch = wire::batch(events, now.as_secs_f64(), self.block_size, self.config.shape);
        let (number, batch) = (self.next, Bytes::from(batch));
        self.next += 1;
        let mut message = ZmqMessage::from(self.topic.clone());
        message.push_back(Bytes::copy_from_slice(&number.to_be_bytes()));
        message.push_back(batch.clone());
        // A subscriber that does not keep up loses messages, sees the gap in the numbers, and asks for them.
        if let Err(error) = self.events.send(message).await {
            tracing::warn!(%error, "a batch of KV events was not sent");
        }
        self.metrics.record_kv_events(events.len());
        let whole = events.first() == Some(&Event::Cleared);
        self.kept.push_back(Kept { number, batch, whole });
        if self.kept.len() > self.config.kept_batches {
            self.kept.pop_front();
        }
    }

    /// Whether who reads all kept batches knows everything.
    fn is_whole(&self) -> bool {
        self.kept.iter().any(|kept| kept.whole)
    }
}

async fn run(
    mut outgoing: Outgoing,
    requests: Option<RouterSocket>,
    mut batches: Receiver<Vec<Event>>,
    snapshot_due: Arc<AtomicBool>,
) {
    let (replies, mut requests) = match requests.map(RouterSocket::split) {
        None => (None, None),
        Some((replies, requests)) => (Some(Arc::new(tokio::sync::Mutex::new(replies))), Some(requests)),
    };
    outgoing.send(&[Event::Cleared]).await;
    loop {
        let request = async {
            match &mut requests {
                Some(requests) => requests.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            events = batches.recv() => match events {
                Some(events) => {
                    outgoing.send(&events).await;
                    if !outgoing.is_whole() {
                        snapshot_due.store(true, Ordering::Relaxed);
                    }
                }
                None => break,
            },
            request = request => match (request, &replies) {
                (Ok(request), Some(replies)) => replay(request, &outgoing, replies.clone()),
                (Err(error), _) => {
                    tracing::warn!(%error, "replay of KV events is off from now on");
                    requests = None;
                }
                (Ok(_), None) => {}
            },
        }
    }
    outgoing.send(&[Event::Cleared]).await;
    sleep(LINGER).await;
}

/// Answers a request for kept batches, beside the publishing.
fn replay(request: ZmqMessage, outgoing: &Outgoing, replies: Arc<tokio::sync::Mutex<RouterSendHalf>>) {
    let frames = request.into_vec();
    let [peer, empty, from] = &frames[..] else { return };
    let Ok(from) = <[u8; 8]>::try_from(&from[..]) else { return };
    if !empty.is_empty() {
        return;
    }
    let from = i64::from_be_bytes(from);
    let kept: Vec<Kept> = outgoing.kept.iter().filter(|kept| kept.number >= from).cloned().collect();
    let (peer, topic) = (peer.clone(), outgoing.topic.clone());
    tokio::spawn(async move {
        let end = Kept { number: -1, batch: Bytes::new(), whole: false };
        for Kept { number, batch, .. } in kept.into_iter().chain([end]) {
            let mut message = ZmqMessage::from(peer.clone());
            let topic = if number < 0 { Bytes::new() } else { topic.clone() };
            for frame in [Bytes::new(), topic, Bytes::copy_from_slice(&number.to_be_bytes()), batch] {
                message.push_back(frame);
            }
            let sent = timeout(MAX_SEND, async { replies.lock().await.send(message).await }).await;
            if !matches!(sent, Ok(Ok(()))) {
                return;
            }
        }
    });
}
