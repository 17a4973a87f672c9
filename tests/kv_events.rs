//! KV events, as a subscriber gets them from the binary.

use std::collections::HashMap;
use std::time::Duration;

use rmpv::Value as Packed;
use serde_json::{Value, json};
use tokio::time::timeout;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

use crate::client::Client;
use crate::serve::{Served, runtime};

/// Only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(30);
const BLOCK: usize = 16;

/// A subscriber that holds every rule of the strictest consumers.
#[derive(Default)]
struct Subscriber {
    next: Option<i64>,
    /// Predecessor and tokens of each content.
    known: HashMap<u64, (Option<u64>, Vec<u64>)>,
    removed: usize,
    cleared: usize,
}

fn field<'a>(event: &'a Packed, name: &str) -> &'a Packed {
    let fields = event.as_map().expect("an event is a map");
    let found = fields.iter().find(|(key, _)| key.as_str() == Some(name));
    &found.unwrap_or_else(|| panic!("{event} has no {name}")).1
}

fn numbers(list: &Packed) -> Vec<u64> {
    list.as_array().expect("a list").iter().map(|number| number.as_u64().expect("a number")).collect()
}

impl Subscriber {
    /// Reads topic, number and batch.
    fn read(&mut self, frames: &[bytes::Bytes]) {
        let [topic, number, batch] = frames else { panic!("{} frames", frames.len()) };
        assert_eq!(&topic[..], b"kv@pod-7@perigee-nano");
        let number = i64::from_be_bytes(number[..].try_into().unwrap());
        assert!(self.next.is_none_or(|next| next == number), "batch {number}, expected {:?}", self.next);
        self.next = Some(number + 1);
        let batch = rmpv::decode::read_value(&mut &batch[..]).unwrap();
        let [time, events, rank] = &batch.as_array().unwrap()[..] else { panic!("{batch}") };
        assert!(time.is_f64() && rank.as_u64() == Some(0));
        for event in events.as_array().unwrap() {
            match field(event, "type").as_str().unwrap() {
                "AllBlocksCleared" => {
                    self.known.clear();
                    self.cleared += 1;
                }
                "BlockStored" => self.store(event),
                "BlockRemoved" => {
                    for hash in numbers(field(event, "block_hashes")) {
                        assert!(self.known.remove(&hash).is_some(), "{hash} is removed and not stored");
                        self.removed += 1;
                    }
                }
                kind => panic!("{kind}"),
            }
        }
    }

    fn store(&mut self, event: &Packed) {
        assert_eq!(field(event, "block_size").as_u64(), Some(BLOCK as u64));
        assert_eq!(field(event, "medium").as_str(), Some("GPU"));
        let (hashes, tokens) = (numbers(field(event, "block_hashes")), numbers(field(event, "token_ids")));
        assert_eq!(tokens.len(), hashes.len() * BLOCK);
        let mut parent = field(event, "parent_block_hash").as_u64();
        for (hash, tokens) in hashes.into_iter().zip(tokens.chunks(BLOCK)) {
            assert!(parent.is_none_or(|parent| self.known.contains_key(&parent)), "an unknown parent");
            let before = self.known.insert(hash, (parent, tokens.to_vec()));
            assert!(before.is_none(), "{hash} is stored twice");
            parent = Some(hash);
        }
    }

    /// Leading tokens of a prompt that are known to be cached.
    fn cached(&self, prompt: &[u64]) -> usize {
        let mut parent = None;
        let mut blocks = prompt.chunks_exact(BLOCK);
        let found = blocks.by_ref().take_while(|block| {
            let next = self.known.iter().find(|(_, (before, tokens))| *before == parent && tokens == block);
            parent = next.map(|(hash, _)| *hash);
            parent.is_some()
        });
        found.count() * BLOCK
    }
}

/// Whether a batch says that nothing is cached, or only what follows in it.
fn begins_with_nothing(frames: &[bytes::Bytes]) -> bool {
    let batch = rmpv::decode::read_value(&mut &frames[2][..]).unwrap();
    field(&batch[1][0], "type").as_str() == Some("AllBlocksCleared")
}

/// Kept batches from number 0 on.
async fn replay(address: &str) -> Vec<Vec<bytes::Bytes>> {
    let mut socket = DealerSocket::new();
    socket.connect(address).await.unwrap();
    let mut request = ZmqMessage::from(bytes::Bytes::new());
    request.push_back(bytes::Bytes::copy_from_slice(&0i64.to_be_bytes()));
    socket.send(request).await.unwrap();
    let mut batches = Vec::new();
    loop {
        let frames = timeout(PATIENCE, socket.recv()).await.expect("an answer").unwrap().into_vec();
        assert!(frames.len() == 4 && frames[0].is_empty());
        if frames[2][..] == (-1i64).to_be_bytes() {
            return batches;
        }
        batches.push(frames[1..].to_vec());
    }
}

fn addresses(served: &Served) -> [String; 2] {
    let lines = served.booted.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let line = lines.into_iter().find(|line| line["message"] == "KV events are published");
    let line = line.expect("a line with the addresses");
    ["at", "replay"].map(|name| format!("tcp://{}", line[name].as_str().unwrap()))
}

#[test]
fn subscribers_know_what_is_cached() {
    let served = Served::start(
        None,
        &[
            "kv_events.endpoint=tcp://127.0.0.1:0",
            "kv_events.replay_endpoint=tcp://127.0.0.1:0",
            "kv_events.pod_id=pod-7",
            "kv_cache.block_size=16",
            "kv_cache.num_blocks=40",
            "kv_cache.memory_bytes=0",
            "scheduler.max_model_len=600",
        ],
    );
    let [endpoint, replay_endpoint] = addresses(&served);
    let mut rng = fastrand::Rng::with_seed(3);
    // Above and below the length from which prompts use the expanded form, with beginnings in common.
    let common: Vec<u64> = (0..200).map(|_| rng.u64(100..1000)).collect();
    let prompts: Vec<Vec<u64>> = (0..24)
        .map(|i| {
            let (kept, fresh) = (rng.usize(0..100), rng.usize(1..120));
            let len = if i % 3 == 0 { 40 } else { 400 };
            let own = (0..fresh).map(|_| rng.u64(100..1000));
            common[..kept].iter().copied().chain(own).take(len).collect()
        })
        .collect();
    runtime().block_on(async {
        for prompt in &prompts {
            let body = json!({"prompt": prompt, "max_tokens": 20, "ignore_eos": true, "temperature": 0});
            served.post("/v1/completions", &body).await;
        }
        let last = prompts.last().unwrap();
        let whole = last.len() / BLOCK * BLOCK;
        // The last batch may still be on its way.
        let subscriber = loop {
            let mut subscriber = Subscriber::default();
            replay(&replay_endpoint).await.iter().for_each(|frames| subscriber.read(frames));
            if subscriber.cached(last) == whole {
                break subscriber;
            }
        };
        assert!(subscriber.removed > 0, "the cache is smaller than the prompts");
        assert_eq!(subscriber.cleared, 1, "at the beginning");
        // What the server finds is what subscribers know, for all prompts that nothing evicts meanwhile.
        let body = json!({"prompt": last, "max_tokens": 1, "temperature": 0});
        let usage = served.post("/v1/completions", &body).await["usage"].clone();
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() as usize;
        assert_eq!(cached, subscriber.cached(&last[..last.len() - 1]));

        let mut socket = SubSocket::new();
        socket.connect(&endpoint).await.unwrap();
        socket.subscribe("kv@").await.unwrap();
        // Who comes late is told everything, and asks for nothing.
        let first = timeout(PATIENCE, socket.recv()).await.expect("a snapshot").unwrap().into_vec();
        let mut late = Subscriber::default();
        late.read(&first);
        assert_eq!((late.cleared, late.cached(last)), (1, whole));
        // What was sent before it is kept no more.
        assert_eq!(replay(&replay_endpoint).await[0], first);
        // Then what changes.
        let prompt: Vec<u64> = (0..64).map(|_| rng.u64(100..1000)).collect();
        served.post("/v1/completions", &json!({"prompt": prompt, "max_tokens": 1})).await;
        while late.cached(&prompt) < 64 {
            let next = timeout(PATIENCE, socket.recv()).await.expect("the prompt").unwrap().into_vec();
            late.read(&next);
        }
        served.signal("TERM");
        let mut number = late.next.unwrap() - 1;
        loop {
            let message =
                timeout(PATIENCE, socket.recv()).await.expect("the end is said").unwrap().into_vec();
            number += 1;
            assert_eq!(message[1][..], number.to_be_bytes());
            if begins_with_nothing(&message) {
                break;
            }
        }
    });
}

#[test]
fn replay_asked_for_nonsense_answers_the_next() {
    let settings = [
        "kv_events.endpoint=tcp://127.0.0.1:0",
        "kv_events.replay_endpoint=tcp://127.0.0.1:0",
        "kv_events.pod_id=pod-7",
    ];
    let served = Served::start(None, &settings);
    let [_, replay_endpoint] = addresses(&served);
    runtime().block_on(async {
        let mut socket = DealerSocket::new();
        socket.connect(&replay_endpoint).await.unwrap();
        for frames in [&[&b"x"[..]][..], &[b"", b"123"], &[b"", b"12345678", b"more"], &[b"y", b"12345678"]] {
            let mut frames = frames.iter().map(|frame| bytes::Bytes::copy_from_slice(frame));
            let mut message = ZmqMessage::from(frames.next().unwrap());
            frames.for_each(|frame| message.push_back(frame));
            socket.send(message).await.unwrap();
        }
        assert_eq!(replay(&replay_endpoint).await.len(), 1, "the batch that says that nothing is cached");
        let mut client = Client::connect(served.addr).await;
        assert!(client.get("/metrics").await.text().contains("perigee_kv_events_total 1\n"));
    });
    assert_eq!(served.terminate(), Some(0));
}
