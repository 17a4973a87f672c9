//! The sockets: batches go out with a number each, and those that are kept are sent again to who asks.
//!
//! vLLM's frames: PUB sends topic, number (8 bytes, big-endian), batch. A subscriber's DEALER sends an empty frame and the first number it wants; the
//! ROUTER answers with empty frame, topic, number, batch for each, and ends with number -1. Numbers begin at 0 with a batch that says that nothing is
//! cached, and so does what is kept: where it would begin later, the engine is asked for a snapshot. It is also asked for one when somebody
//! subscribes: a PUB socket has no memory, and not every consumer asks for a replay.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::sync::mpsc::{self, Receiver};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::config::Config;
use super::contents::Event;
use super::feed::{Feed, QUEUE};
use super::wire;
use super::zmtp::{Message, PubSocket, Request, RouterSocket};
use crate::telemetry::Metrics;

/// Time for the last batch to leave.
const LINGER: Duration = Duration::from_millis(200);
/// Longest time that the end of the process waits for the publisher.
const MAX_END: Duration = Duration::from_secs(2);
/// Longest time for one frame of a replay to be taken by its subscriber.
const MAX_SEND: Duration = Duration::from_secs(5);
/// Least time between the snapshots for new subscribers: they go to all, and a subscriber may come again and again.
const WELCOME_PAUSE: Duration = Duration::from_secs(1);

/// An address could not be listened on.
#[derive(Debug, thiserror::Error)]
#[error("kv_events.{key} = {address:?}: {source}; choose another address")]
pub struct StartError {
    key: &'static str,
    address: String,
    source: std::io::Error,
}

/// A running publisher.
pub struct Publisher(JoinHandle<()>);

impl Publisher {
    /// Waits until the publisher has said that nothing is cached any more; it ends when its feed is dropped.
    pub async fn ended(self) {
        let _ = timeout(MAX_END, self.0).await;
    }
}

/// Listens, and publishes what the feed sends, for a model of this name with blocks of `block_size` tokens. `wake` makes the feed's owner
/// call [`Feed::send`] though nothing changed. Errors: an address cannot be bound.
pub async fn publish(
    config: &Config,
    model: &str,
    block_size: usize,
    metrics: Arc<Metrics>,
    wake: impl Fn() + Send + 'static,
) -> Result<(Feed, Publisher), StartError> {
    let refuse = |key, address: &str| {
        let address = address.to_owned();
        move |source| StartError { key, address, source }
    };
    let at = &config.endpoint;
    let events = PubSocket::bind(&socket_address(at)).await.map_err(refuse("endpoint", at))?;
    let at = &config.replay_endpoint;
    let requests = match at.is_empty() {
        true => None,
        false => Some(RouterSocket::bind(&socket_address(at)).await.map_err(refuse("replay_endpoint", at))?),
    };
    tracing::info!(
        at = %events.address(),
        replay = requests.as_ref().map(|socket| socket.address().to_string()),
        "KV events are published"
    );
    let (sender, batches) = mpsc::channel(QUEUE);
    let snapshot_due = Arc::new(AtomicBool::new(false));
    let feed = Feed::new(sender, snapshot_due.clone(), metrics.clone());
    let outgoing = Outgoing {
        events,
        topic: Bytes::from(format!("kv@{}@{model}", config.pod_id)),
        config: config.clone(),
        block_size,
        next: 0,
        kept: VecDeque::new(),
        last_whole: 0,
        metrics,
    };
    let ask = move || {
        snapshot_due.store(true, Ordering::Relaxed);
        wake();
    };
    Ok((feed, Publisher(tokio::spawn(run(outgoing, requests, batches, ask)))))
}

/// Address and port of `tcp://ADDRESS:PORT`; `*` is what vLLM writes for all addresses.
fn socket_address(endpoint: &str) -> String {
    endpoint.trim_start_matches("tcp://").replace("*:", "0.0.0.0:")
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
    /// Number of the last batch that begins with nothing: who reads on from there knows everything.
    last_whole: i64,
    metrics: Arc<Metrics>,
}

/// A batch that was sent.
#[derive(Clone)]
struct Kept {
    number: i64,
    batch: Bytes,
}

impl Outgoing {
    fn send(&mut self, events: &[Event]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let batch = wire::batch(events, now.as_secs_f64(), self.block_size, self.config.shape);
        let (number, batch) = (self.next, Bytes::from(batch));
        self.next += 1;
        let begins_with_nothing = events.first() == Some(&Event::Cleared);
        if begins_with_nothing {
            self.last_whole = number;
        }
        // A subscriber that does not keep up loses messages, sees the gap in the numbers, and asks for them.
        let message = Message::from([self.topic.clone(), number_frame(number), batch.clone()]);
        self.events.send(&message, begins_with_nothing);
        self.metrics.record_kv_events(events.len());
        self.kept.push_back(Kept { number, batch });
        if self.kept.len() > self.config.kept_batches {
            self.kept.pop_front();
        }
    }

    /// Whether who reads all kept batches knows everything.
    fn is_whole(&self) -> bool {
        self.kept.front().is_some_and(|first| first.number <= self.last_whole)
    }
}

/// Publishes until the feed is dropped; `ask_for_snapshot` makes the feed send one.
async fn run(
    mut outgoing: Outgoing,
    mut requests: Option<RouterSocket>,
    mut batches: Receiver<Vec<Event>>,
    ask_for_snapshot: impl Fn(),
) {
    outgoing.send(&[Event::Cleared]);
    let mut asked = false;
    // When subscribers may be welcomed again, and whether one waits for it.
    let (mut next_welcome, mut is_awaited) = (Instant::now(), false);
    loop {
        let request = async {
            match &mut requests {
                Some(requests) => requests.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            events = batches.recv() => match events {
                Some(events) => {
                    outgoing.send(&events);
                    // Asked for once: batches that were under way come before the snapshot.
                    let whole = outgoing.is_whole();
                    if !whole && !asked {
                        ask_for_snapshot();
                    }
                    asked = !whole;
                }
                None => break,
            },
            () = outgoing.events.subscribed() => is_awaited = true,
            () = sleep_until(next_welcome), if is_awaited => {
                ask_for_snapshot();
                (next_welcome, is_awaited) = (Instant::now() + WELCOME_PAUSE, false);
            }
            Some(request) = request => replay(request, &outgoing),
        }
    }
    outgoing.send(&[Event::Cleared]);
    sleep(LINGER).await;
}

/// Answers a request for kept batches, beside the publishing.
fn replay(request: Request, outgoing: &Outgoing) {
    let [empty, from] = &request.frames[..] else { return };
    let Ok(from) = <[u8; 8]>::try_from(&from[..]) else { return };
    if !empty.is_empty() {
        return;
    }
    let from = i64::from_be_bytes(from);
    let kept: Vec<Kept> = outgoing.kept.iter().filter(|kept| kept.number >= from).cloned().collect();
    let topic = outgoing.topic.clone();
    tokio::spawn(async move {
        for Kept { number, batch } in kept {
            let message = Message::from([Bytes::new(), topic.clone(), number_frame(number), batch]);
            if request.replies.send_timeout(message, MAX_SEND).await.is_err() {
                return;
            }
        }
        let end = Message::from([Bytes::new(), Bytes::new(), number_frame(-1), Bytes::new()]);
        let _ = request.replies.send_timeout(end, MAX_SEND).await;
    });
}

fn number_frame(number: i64) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}
