//! One connection: a TLS handshake where the server has a certificate, then HTTP/1, with time limits on the silences of
//! its client.
//!
//! hyper's own head timeout also ends idle connections, so it is set to the idle time. The time
//! limits of a head, and of a client that stops reading its answer, are those of [`timed`](super::timed).

use std::convert::Infallible;
use std::io::{self, Cursor};
use std::net::IpAddr;
use std::sync::Arc;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, join, split};
use tokio::sync::watch;
use tokio::time::timeout;

use super::activity::{Activity, Busy};
use super::refusal::refuse;
use super::routes;
use super::shared::{Life, Shared};
use super::socket::{Socket, Stream};
use super::timed::{TimedHeads, TimedWrites};
use super::tls::{Tls, certificate_problem};
use crate::api::ApiError;

/// Most bytes of a request's head.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Most header lines of a request.
const MAX_HEADERS: usize = 100;

/// A socket, ready for HTTP.
pub(super) struct Opened {
    pub(super) stream: Box<dyn Stream>,
    peer: Peer,
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer {
    /// Its address; `None` = a Unix socket.
    pub(super) address: Option<IpAddr>,
    /// Whether it shows no certificate where one is demanded.
    pub(super) stranger: bool,
}

/// Makes a socket ready for HTTP, by a TLS handshake where the server has a certificate. A client that speaks HTTP without
/// TLS is told so: `None`.
pub(super) async fn open(socket: Socket, shared: &Shared) -> io::Result<Option<Opened>> {
    let patience = shared.config.keep_alive();
    let address = socket.peer();
    let plain = |stream| Ok(Some(Opened { stream, peer: Peer { address, stranger: false } }));
    match (socket, shared.tls()) {
        (Socket::Unix(socket), _) => plain(Box::new(TimedWrites::new(socket, patience))),
        (Socket::Tcp(socket), None) => plain(Box::new(TimedWrites::new(socket, patience))),
        (Socket::Tcp(socket), Some(tls)) => {
            let mut first = [0];
            // Methods of HTTP begin with a letter, and handshakes of TLS with the byte 22 (RFC 8446, section 5.1).
            if socket.peek(&mut first).await? == 1 && first[0].is_ascii_alphabetic() {
                refuse(socket, &ApiError::not_tls()).await;
                return Ok(None);
            }
            secure(TimedWrites::new(socket, patience), address, &tls).await.map(Some)
        }
    }
}

async fn secure(socket: impl Stream + 'static, address: Option<IpAddr>, tls: &Tls) -> io::Result<Opened> {
    let stream = tls.handshake(socket).await?;
    let peer = Peer { address, stranger: tls.is_stranger(&stream) };
    Ok(Opened { stream: Box::new(stream), peer })
}

/// Serves one connection to its end.
pub(super) async fn serve(socket: Socket, shared: Arc<Shared>, mut life: watch::Receiver<Life>) {
    let limit = shared.config.header_read_timeout();
    let opened = tokio::select! {
        opened = timeout(limit, open(socket, &shared)) => opened,
        // No request is lost: none has begun.
        _ = life.wait_for(|life| *life >= Life::Closing) => return,
    };
    match opened {
        Ok(Ok(Some(opened))) => speak(opened, shared, life, true).await,
        Ok(Ok(None)) => {}
        Ok(Err(error)) => match certificate_problem(&error) {
            Some(problem) if shared.certificate_warning_is_due() => {
                tracing::warn!("TLS: a client's certificate was refused: {problem}");
            }
            _ => tracing::debug!(%error, "TLS handshake failed"),
        },
        Err(_) => tracing::debug!(?limit, "TLS handshake took too long (server.header_read_timeout_s)"),
    }
}

/// Answers one request, of which `begun` is read already, and closes the connection.
pub(super) async fn serve_one(opened: Opened, begun: Vec<u8>, shared: Arc<Shared>) {
    let life = shared.life.subscribe();
    let (rest, answers) = split(opened.stream);
    let stream = Box::new(join(Cursor::new(begun).chain(rest), answers));
    speak(Opened { stream, peer: opened.peer }, shared, life, false).await;
}

/// Speaks HTTP until the connection ends: after one request unless it `keeps_alive`.
async fn speak(opened: Opened, shared: Arc<Shared>, mut life: watch::Receiver<Life>, keeps_alive: bool) {
    let Opened { stream, peer } = opened;
    let config = &shared.config;
    let activity = Arc::new(Activity::default());
    // The first head is due from the moment of the connection.
    let io = TimedHeads::new(stream, activity.clone(), config.header_read_timeout());
    let service = {
        let shared = shared.clone();
        service_fn(move |request| {
            let (shared, busy) = (shared.clone(), Busy::new(activity.clone()));
            async move { Ok::<_, Infallible>(routes::answer(request, shared, busy, peer).await) }
        })
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(keeps_alive)
        .header_read_timeout(config.keep_alive())
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(io), service);
    tokio::pin!(connection);
    loop {
        tokio::select! {
            result = connection.as_mut() => {
                if let Err(error) = result {
                    tracing::debug!(%error, "connection ended");
                }
                return;
            }
            changed = life.changed() => match (changed, *life.borrow_and_update()) {
                // Requests in progress end by themselves, or with an error.
                (Ok(()), Life::Serving | Life::Cut) => {}
                (Ok(()), Life::Closing) => connection.as_mut().graceful_shutdown(),
                (Ok(()), Life::Over) | (Err(_), _) => return,
            }
        }
    }
}
