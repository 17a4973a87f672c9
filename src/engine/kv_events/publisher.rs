//! The sockets: batches are numbered and published; kept batches are replayed on request.
//!
//! vLLM's frames: PUB sends topic, number (8 bytes, big-endian), batch. A subscriber's DEALER sends an empty
//! frame and the first number to replay; the ROUTER answers with empty frame, topic, number, batch for each,
//! and ends with number
//! -1. Numbers begin at 0 with a batch that says that nothing is cached. The kept batches begin with such a batch too:
//! where they would begin later, the engine is asked for a snapshot. A subscription asks for a snapshot as
//! well: a PUB socket has no memory, and not every consumer asks for a replay.

use std::collections::VecDeque;
use std::io;
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
use perigee_telemetry::Metrics;

/// Time for the last batch to leave.
const LINGER: Duration = Duration::from_millis(200);
/// Longest time that the end of the process waits for the publisher.
const MAX_END: Duration = Duration::from_secs(2);
/// Longest time for one frame of a replay to be taken by its subscriber.
const MAX_SEND: Duration = Duration::from_secs(5);
/// Least time between the snapshots for new subscribers: they go to all, and a subscriber may come again and again.
const WELCOME_PAUSE: Duration = Duration::from_secs(1);

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("kv_events.{key} = {address}: {problem}")]
pub struct StartError {
    /// Of the section `kv_events`.
    pub key: &'static str,
    address: String,
    /// The system's reason, and the remedy.
    pub problem: String,
}

impl StartError {
    fn new(key: &'static str, address: &str, reason: &io::Error) -> Self {
        Self { key, address: address.to_owned(), problem: format!("{reason}; choose another address") }
    }
}

/// The addresses of valid settings that cannot be listened on. One that is taken is none of them: a server with these settings may
/// have it.
pub fn unusable_addresses(config: &Config) -> Vec<StartError> {
    if !config.validate().is_empty() {
        return Vec::new();
    }
    let addresses = [("endpoint", &config.endpoint), ("replay_endpoint", &config.replay_endpoint)];
    let given = addresses.into_iter().filter(|(_, address)| !address.is_empty());
    let tried = given.filter_map(|(key, address)| {
        let refused = std::net::TcpListener::bind(socket_address(address)).err()?;
        (refused.kind() != io::ErrorKind::AddrInUse).then(|| StartError::new(key, address, &refused))
    });
    tried.collect()
}

/// Addresses that are listened on. Subscribers wait until something is published.
pub struct Sockets {
    events: PubSocket,
    requests: Option<RouterSocket>,
}

/// A running publisher.
pub struct Publisher(JoinHandle<()>);

impl Publisher {
    /// Waits until the publisher has said that nothing is cached any more; it ends when its feed is dropped.
    pub async fn ended(self) {
        let _ = timeout(MAX_END, self.0).await;
    }
}

/// Listens where the settings say; `None` where they say nothing. Errors: an address cannot be bound.
pub async fn listen(config: &Config) -> Result<Option<Sockets>, StartError> {
    if !config.is_on() {
        return Ok(None);
    }
    let at = &config.endpoint;
    let events = PubSocket::bind(&socket_address(at)).await;
    let events = events.map_err(|reason| StartError::new("endpoint", at, &reason))?;
    let at = &config.replay_endpoint;
    let requests = match at.is_empty() {
        true => None,
        false => Some(RouterSocket::bind(&socket_address(at)).await),
    };
    let requests = requests.transpose().map_err(|reason| StartError::new("replay_endpoint", at, &reason))?;
    Ok(Some(Sockets { events, requests }))
}

/// Publishes what the feed sends, for a model of this name with blocks of `block_size` tokens. `wake` makes the feed's owner
/// call [`Feed::send`] though nothing changed. To be called in a runtime.
pub fn publish(
    sockets: Sockets,
    config: &Config,
    model: &str,
    block_size: usize,
    metrics: Arc<Metrics>,
    wake: impl Fn() + Send + 'static,
) -> (Feed, Publisher) {
    let Sockets { events, requests } = sockets;
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
    (feed, Publisher(tokio::spawn(run(outgoing, requests, batches, ask))))
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
    /// Sent batches, the last ones: none before the last that begins with nothing.
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
            // Nobody needs those before it, and a snapshot of a large cache is large.
            self.kept.clear();
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

    /// The batches from this number on; where they are no longer kept, from the first kept one on.
    fn kept_from(&self, number: i64) -> Vec<Kept> {
        self.kept.iter().filter(|kept| kept.number >= number).cloned().collect()
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
    let kept = outgoing.kept_from(from);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_other_machines_are_refused_and_taken_ones_are_not() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let check = |endpoint: &str, replay_endpoint: String, expected: &[&str]| {
            let config = Config { endpoint: endpoint.into(), replay_endpoint, ..Config::default() };
            let found = unusable_addresses(&config);
            assert_eq!(found.iter().map(|error| error.key).collect::<Vec<_>>(), expected, "{found:?}");
            assert!(found.iter().all(|error| error.problem.ends_with("choose another address")));
        };
        check("", String::new(), &[]);
        check("tcp://127.0.0.1:0", format!("tcp://{}", taken.local_addr().unwrap()), &[]);
        // TEST-NET-1, RFC 5737.
        check("tcp://192.0.2.1:5557", "tcp://*:0".into(), &["endpoint"]);
        check("tcp://*:0", "tcp://192.0.2.1:5558".into(), &["replay_endpoint"]);
    }

    #[tokio::test]
    async fn a_snapshot_takes_the_place_of_all_batches_before_it() {
        let mut outgoing = Outgoing {
            events: PubSocket::bind("127.0.0.1:0").await.unwrap(),
            topic: Bytes::from("kv@pod@m"),
            config: Config { kept_batches: 3, ..Config::default() },
            block_size: 16,
            next: 0,
            kept: VecDeque::new(),
            last_whole: 0,
            metrics: Arc::new(Metrics::new("m", false)),
        };
        let kept = |outgoing: &Outgoing, from| -> Vec<i64> {
            outgoing.kept_from(from).iter().map(|kept| kept.number).collect()
        };
        let change = [Event::Removed(vec![1])];
        outgoing.send(&[Event::Cleared]);
        outgoing.send(&change);
        assert_eq!(kept(&outgoing, 0), [0, 1]);
        outgoing.send(&[Event::Cleared, Event::Removed(vec![1])]);
        assert_eq!(kept(&outgoing, 0), [2]);
        (0..2).for_each(|_| outgoing.send(&change));
        assert!(outgoing.is_whole() && kept(&outgoing, 1) == [2, 3, 4] && kept(&outgoing, 4) == [4]);
        outgoing.send(&change);
        assert!(!outgoing.is_whole() && kept(&outgoing, 0) == [3, 4, 5]);
    }
}
