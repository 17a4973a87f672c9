//! The server's side of ZeroMQ's wire protocol, for PUB and ROUTER sockets.
//!
//! ZMTP 3.1 (rfc.zeromq.org/spec/37) without security: greeting, READY, frames; subscriptions as commands and
//! as the messages of 3.0; heartbeats (PING is answered: consumers send it every few seconds, and leave a peer
//! that is silent). A subscriber that does not read loses messages; senders do not wait for it.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, BufWriter};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use perigee_telemetry::Throttle;

/// A message: its frames.
pub(super) type Message = Arc<[Bytes]>;

/// Most peers of a socket.
const MAX_PEERS: usize = 256;
/// Messages on their way to one peer; what comes on top is lost to it.
const PEER_QUEUE: usize = 4096;
/// Requests that were read and not answered yet.
const REQUEST_QUEUE: usize = 16;
/// Longest frame and most frames that are read; topics and requests are far shorter.
const MAX_FRAME: u64 = 4096;
const MAX_FRAMES: usize = 16;
/// Most subscriptions of a peer.
const MAX_TOPICS: usize = 64;
/// Longest time for a peer to introduce itself.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// Longest time for a peer to take a message: one that never reads again is left.
const WRITE_TIME: Duration = Duration::from_secs(60);
/// Pause after a failed accept, as for HTTP.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// A socket's type, and whose it talks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Pub,
    Router,
}

impl Kind {
    fn name(self) -> &'static [u8] {
        match self {
            Self::Pub => b"PUB",
            Self::Router => b"ROUTER",
        }
    }

    fn talks_to(self, peer: &[u8]) -> bool {
        match self {
            Self::Pub => matches!(peer, b"SUB" | b"XSUB"),
            Self::Router => matches!(peer, b"DEALER" | b"REQ" | b"ROUTER"),
        }
    }
}

/// Ends a task with its owner.
#[derive(Debug)]
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A peer that gets what it has subscribed to, from the first message on that needs none before it.
struct Subscriber {
    topics: Mutex<Vec<Bytes>>,
    is_begun: AtomicBool,
    messages: Sender<Message>,
}

impl Subscriber {
    fn topics(&self) -> MutexGuard<'_, Vec<Bytes>> {
        // No code panics while holding the lock.
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn subscribe(&self, topic: Bytes) -> io::Result<()> {
        let mut topics = self.topics();
        if topics.len() == MAX_TOPICS {
            return Err(refused("too many subscriptions"));
        }
        topics.push(topic);
        Ok(())
    }

    fn cancel(&self, topic: &[u8]) {
        let mut topics = self.topics();
        if let Some(at) = topics.iter().position(|known| known == topic) {
            topics.swap_remove(at);
        }
    }
}

#[derive(Default)]
struct Subscribers {
    list: Mutex<Vec<Arc<Subscriber>>>,
    /// Told after each subscription.
    subscribed: Notify,
}

impl Subscribers {
    fn list(&self) -> MutexGuard<'_, Vec<Arc<Subscriber>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the peers of a socket have in common.
#[derive(Clone)]
enum Role {
    Pub(Arc<Subscribers>),
    Router(Sender<Request>),
}

impl Role {
    fn kind(&self) -> Kind {
        match self {
            Self::Pub(_) => Kind::Pub,
            Self::Router(_) => Kind::Router,
        }
    }

    /// Adds a topic to what a peer gets.
    fn subscribe(&self, subscriber: &Subscriber, topic: &[u8]) -> io::Result<()> {
        subscriber.subscribe(Bytes::copy_from_slice(topic))?;
        if let Self::Pub(subscribers) = self {
            subscribers.subscribed.notify_one();
        }
        Ok(())
    }
}

/// Sends messages to subscribers of their topic.
pub(super) struct PubSocket {
    address: SocketAddr,
    subscribers: Arc<Subscribers>,
    _accepting: Task,
}

/// Gets requests, and the way back to each one's sender.
pub(super) struct RouterSocket {
    address: SocketAddr,
    requests: Receiver<Request>,
    _accepting: Task,
}

/// A message to a router.
pub(super) struct Request {
    pub(super) frames: Vec<Bytes>,
    /// Messages to its sender.
    pub(super) replies: Sender<Message>,
}

impl PubSocket {
    pub(super) async fn bind(address: &str) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let (address, subscribers) = (listener.local_addr()?, Arc::<Subscribers>::default());
        let accepting = Task(tokio::spawn(accept(listener, Role::Pub(subscribers.clone()))));
        Ok(Self { address, subscribers, _accepting: accepting })
    }

    /// With the port that was chosen.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for a subscription, whose subscriber gets the messages sent from then on. Several may count as
    /// one.
    pub(super) async fn subscribed(&self) {
        self.subscribers.subscribed.notified().await;
    }

    /// Queues a message for all whose subscription its first frame begins with. A new subscriber gets nothing before a message that
    /// `is_beginning`: one that needs none before it.
    pub(super) fn send(&self, message: &Message, is_beginning: bool) {
        let topic = message.first().cloned().unwrap_or_default();
        for subscriber in self.subscribers.list().iter() {
            let is_wanted = subscriber.topics().iter().any(|wanted| topic.starts_with(wanted));
            if is_wanted && (is_beginning || subscriber.is_begun.load(Ordering::Relaxed)) {
                subscriber.is_begun.store(true, Ordering::Relaxed);
                // Full: the peer sees the gap. Closed: it is about to leave the list.
                let _ = subscriber.messages.try_send(message.clone());
            }
        }
    }
}

impl RouterSocket {
    pub(super) async fn bind(address: &str) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let (sender, requests) = mpsc::channel(REQUEST_QUEUE);
        let address = listener.local_addr()?;
        let accepting = Task(tokio::spawn(accept(listener, Role::Router(sender))));
        Ok(Self { address, requests, _accepting: accepting })
    }

    /// With the port that was chosen.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next request; never `None`, and it may be waited for again and again.
    pub(super) async fn next(&mut self) -> Option<Request> {
        self.requests.recv().await
    }
}

async fn accept(listener: TcpListener, role: Role) {
    // Ended together with the socket.
    let mut conversations = JoinSet::new();
    let mut warnings = Throttle::default();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                if warnings.pass() {
                    tracing::warn!(%error, "accepting a subscriber to KV events failed");
                }
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        while conversations.try_join_next().is_some() {}
        if conversations.len() == MAX_PEERS {
            tracing::warn!(limit = MAX_PEERS, "a subscriber to KV events is one too many");
            continue;
        }
        let role = role.clone();
        conversations.spawn(async move {
            if let Err(error) = converse(stream, &role).await {
                tracing::debug!(%error, "a subscriber to KV events left");
            }
        });
    }
}

/// Talks to one peer until it leaves or breaks the protocol.
async fn converse(stream: TcpStream, role: &Role) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (read, write) = stream.into_split();
    let (mut read, mut write) = (BufReader::new(read), BufWriter::new(write));
    let greeted = timeout(HANDSHAKE_TIME, greet(&mut read, &mut write, role.kind())).await;
    greeted.map_err(|_| refused("no greeting in time"))??;
    let (messages, outgoing) = mpsc::channel(PEER_QUEUE);
    let (pongs, pongs_due) = mpsc::channel(4);
    let subscriber = Subscriber { topics: Mutex::default(), is_begun: AtomicBool::new(false), messages };
    let subscriber = Arc::new(subscriber);
    if let Role::Pub(subscribers) = role {
        subscribers.list().push(subscriber.clone());
    }
    // Both run to their end: no frame is half read or half written while the other one goes on.
    let end = tokio::select! {
        end = listen(&mut read, role, &subscriber, &pongs) => end,
        end = speak(&mut write, outgoing, pongs_due) => end,
    };
    if let Role::Pub(subscribers) = role {
        subscribers.list().retain(|other| !Arc::ptr_eq(other, &subscriber));
    }
    end
}

fn refused(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Greetings and READY, from both sides.
async fn greet(
    read: &mut (impl AsyncRead + Unpin),
    write: &mut (impl AsyncWrite + Unpin),
    kind: Kind,
) -> io::Result<()> {
    let mut ours = [0u8; 64];
    (ours[0], ours[9], ours[10], ours[11]) = (0xff, 0x7f, 3, 1);
    ours[12..16].copy_from_slice(b"NULL");
    write.write_all(&ours).await?;
    write.flush().await?;
    let mut theirs = [0u8; 64];
    read.read_exact(&mut theirs).await?;
    if theirs[0] != 0xff || theirs[9] & 1 == 0 || theirs[10] < 3 {
        return Err(refused("not ZMTP 3"));
    }
    if theirs[12..32] != ours[12..32] {
        return Err(refused("a security mechanism that is not spoken here"));
    }
    let mut ready = b"\x05READY\x0bSocket-Type".to_vec();
    ready.extend((kind.name().len() as u32).to_be_bytes());
    ready.extend(kind.name());
    write_frame(write, COMMAND, &ready).await?;
    write.flush().await?;
    let (flags, body) = read_frame(read).await?;
    let fits = match (flags & COMMAND != 0).then(|| command(&body)).flatten() {
        Some((b"READY", properties)) => socket_type(properties).is_some_and(|peer| kind.talks_to(peer)),
        _ => false,
    };
    if fits { Ok(()) } else { Err(refused("a peer of another type")) }
}

/// Name and rest of a command.
fn command(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = body.split_first()?;
    rest.split_at_checked(usize::from(*len))
}

/// The value of `Socket-Type` among the properties of READY.
fn socket_type(mut properties: &[u8]) -> Option<&[u8]> {
    while !properties.is_empty() {
        let (name, rest) = command(properties)?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Some(value);
        }
        properties = rest;
    }
    None
}

async fn read_frame(read: &mut (impl AsyncRead + Unpin)) -> io::Result<(u8, Bytes)> {
    let flags = read.read_u8().await?;
    let len = if flags & LONG != 0 { read.read_u64().await? } else { u64::from(read.read_u8().await?) };
    if len > MAX_FRAME {
        return Err(refused("a frame that is too long"));
    }
    let mut body = vec![0; len as usize];
    read.read_exact(&mut body).await?;
    Ok((flags, body.into()))
}

async fn write_frame(write: &mut (impl AsyncWrite + Unpin), flags: u8, body: &[u8]) -> io::Result<()> {
    match u8::try_from(body.len()) {
        Ok(len) => write.write_all(&[flags, len]).await?,
        Err(_) => {
            write.write_u8(flags | LONG).await?;
            write.write_u64(body.len() as u64).await?;
        }
    }
    write.write_all(body).await
}

/// Reads what the peer says.
async fn listen(
    read: &mut (impl AsyncRead + Unpin),
    role: &Role,
    subscriber: &Subscriber,
    pongs: &Sender<Bytes>,
) -> io::Result<()> {
    let mut frames = Vec::new();
    loop {
        let (flags, body) = read_frame(read).await?;
        if flags & COMMAND != 0 {
            match command(&body).ok_or_else(|| refused("a command without a name"))? {
                // Time to live, then a context that goes back.
                (b"PING", ping) => {
                    let context = ping.get(2..).filter(|context| context.len() <= 16);
                    let context = context.ok_or_else(|| refused("a malformed PING"))?;
                    let _ = pongs.try_send([b"\x04PONG", context].concat().into());
                }
                (b"SUBSCRIBE", topic) => role.subscribe(subscriber, topic)?,
                (b"CANCEL", topic) => subscriber.cancel(topic),
                (b"ERROR", _) => return Err(refused("the peer has an error")),
                _ => {}
            }
            continue;
        }
        frames.push(body);
        if flags & MORE != 0 {
            if frames.len() == MAX_FRAMES {
                return Err(refused("too many frames"));
            }
            continue;
        }
        let frames = std::mem::take(&mut frames);
        match (role, frames.first().and_then(|frame| frame.split_first())) {
            (Role::Pub(_), Some((1, topic))) => role.subscribe(subscriber, topic)?,
            (Role::Pub(_), Some((0, topic))) => subscriber.cancel(topic),
            (Role::Pub(_), _) => {}
            (Role::Router(requests), _) => {
                let request = Request { frames, replies: subscriber.messages.clone() };
                requests.send(request).await.map_err(|_| refused("the socket is closed"))?;
            }
        }
    }
}

/// Writes what is queued; heartbeats first.
async fn speak(
    write: &mut (impl AsyncWrite + Unpin),
    mut messages: Receiver<Message>,
    mut pongs: Receiver<Bytes>,
) -> io::Result<()> {
    loop {
        let (flags, message) = tokio::select! {
            biased;
            Some(pong) = pongs.recv() => (COMMAND, Message::from([pong])),
            Some(message) = messages.recv() => (0, message),
            else => return Ok(()),
        };
        let idle = messages.is_empty() && pongs.is_empty();
        let written = timeout(WRITE_TIME, async {
            for (at, frame) in message.iter().enumerate() {
                let more = if at + 1 < message.len() { MORE } else { 0 };
                write_frame(write, flags | more, frame).await?;
            }
            if idle { write.flush().await } else { Ok(()) }
        });
        written.await.map_err(|_| refused("it does not read"))??;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn connect(address: SocketAddr, socket_type: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let mut greeting = [0u8; 64];
        (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
        greeting[12..16].copy_from_slice(b"NULL");
        stream.write_all(&greeting).await.unwrap();
        let mut ready = b"\x05READY\x08Identity\0\0\0\0\x0bsocket-type".to_vec();
        ready.extend((socket_type.len() as u32).to_be_bytes());
        ready.extend(socket_type);
        write_frame(&mut stream, COMMAND, &ready).await.unwrap();
        let mut theirs = [0u8; 64];
        stream.read_exact(&mut theirs).await.unwrap();
        assert_eq!((theirs[10], &theirs[12..16]), (3, &b"NULL"[..]));
        let (flags, body) = read_frame(&mut stream).await.unwrap();
        assert_eq!((flags, command(&body).unwrap().0), (COMMAND, &b"READY"[..]));
        stream
    }

    fn message(frames: &[&[u8]]) -> Message {
        frames.iter().map(|frame| Bytes::copy_from_slice(frame)).collect()
    }

    /// Sends until the subscription, which takes effect at a time of its own, has.
    async fn first_frame(socket: &PubSocket, stream: &mut TcpStream, sent: &[&[u8]]) -> (u8, Bytes) {
        loop {
            socket.send(&message(sent), true);
            if let Ok(frame) = timeout(Duration::from_millis(20), read_frame(stream)).await {
                return frame.unwrap();
            }
        }
    }

    #[tokio::test]
    async fn subscribers_get_their_topics_and_pings_an_answer() {
        let socket = PubSocket::bind("127.0.0.1:0").await.unwrap();
        for by_command in [false, true] {
            let mut stream = connect(socket.address(), b"SUB").await;
            match by_command {
                false => write_frame(&mut stream, 0, b"\x01kv@").await.unwrap(),
                true => write_frame(&mut stream, COMMAND, b"\x09SUBSCRIBEkv@").await.unwrap(),
            }
            let long = [7u8; 300];
            let (flags, topic) = first_frame(&socket, &mut stream, &[b"kv@a", &long]).await;
            assert_eq!((flags, &topic[..]), (MORE, &b"kv@a"[..]));
            assert_eq!(read_frame(&mut stream).await.unwrap(), (LONG, Bytes::copy_from_slice(&long)));
            socket.send(&message(&[b"other"]), false);
            write_frame(&mut stream, COMMAND, b"\x04PING\0\x0acontext").await.unwrap();
            // Messages of the loop above may come first.
            loop {
                let (flags, body) = read_frame(&mut stream).await.unwrap();
                assert_ne!(&body[..], b"other");
                if flags & COMMAND != 0 {
                    assert_eq!(&body[..], b"\x04PONGcontext");
                    break;
                }
            }
        }
    }

    #[tokio::test]
    async fn who_subscribes_is_announced_and_waits_for_a_beginning() {
        let socket = PubSocket::bind("127.0.0.1:0").await.unwrap();
        let mut stream = connect(socket.address(), b"SUB").await;
        write_frame(&mut stream, 0, b"\x01kv@").await.unwrap();
        socket.subscribed().await;
        for (topic, is_beginning) in [(b"kv@a", false), (b"kv@b", true), (b"kv@c", false)] {
            socket.send(&message(&[topic]), is_beginning);
        }
        for topic in [b"kv@b", b"kv@c"] {
            assert_eq!(&read_frame(&mut stream).await.unwrap().1[..], topic);
        }
    }

    #[tokio::test]
    async fn routers_answer_whom_they_were_asked_by() {
        let mut socket = RouterSocket::bind("127.0.0.1:0").await.unwrap();
        let mut peers =
            [connect(socket.address(), b"DEALER").await, connect(socket.address(), b"DEALER").await];
        for (i, peer) in peers.iter_mut().enumerate() {
            write_frame(peer, MORE, b"").await.unwrap();
            write_frame(peer, 0, &[i as u8]).await.unwrap();
            let request = socket.next().await.unwrap();
            assert_eq!(request.frames, [Bytes::new(), Bytes::copy_from_slice(&[i as u8])]);
            request.replies.send(message(&[b"", &[10 + i as u8]])).await.unwrap();
            assert_eq!(read_frame(peer).await.unwrap(), (MORE, Bytes::new()));
            assert_eq!(read_frame(peer).await.unwrap(), (0, Bytes::copy_from_slice(&[10 + i as u8])));
        }
    }

    #[tokio::test]
    async fn strangers_are_left() {
        let socket = PubSocket::bind("127.0.0.1:0").await.unwrap();
        let closed = async |mut stream: TcpStream| {
            let mut rest = Vec::new();
            timeout(Duration::from_secs(30), stream.read_to_end(&mut rest)).await.expect("it is closed").ok();
        };
        let mut http = TcpStream::connect(socket.address()).await.unwrap();
        http.write_all(&[b'G'; 64]).await.unwrap();
        closed(http).await;
        let mut curve = [0u8; 64];
        (curve[0], curve[9], curve[10]) = (0xff, 0x7f, 3);
        curve[12..17].copy_from_slice(b"CURVE");
        let mut stream = TcpStream::connect(socket.address()).await.unwrap();
        stream.write_all(&curve).await.unwrap();
        closed(stream).await;
        closed(connect(socket.address(), b"DEALER").await).await;
        for bad in [
            &[LONG, 0xff, 0, 0, 0, 0, 0, 0, 0][..],
            &[COMMAND, 1, 9],
            &[COMMAND, 6, 4, b'P', b'I', b'N', b'G', 0],
        ] {
            let mut stream = connect(socket.address(), b"SUB").await;
            stream.write_all(bad).await.unwrap();
            closed(stream).await;
        }
        let mut many = connect(socket.address(), b"SUB").await;
        for _ in 0..=MAX_TOPICS {
            write_frame(&mut many, 0, b"\x01t").await.unwrap();
        }
        closed(many).await;
        while !socket.subscribers.list().is_empty() {
            tokio::task::yield_now().await;
        }
    }
}
