//! The server: listens before the model is ready, bounds connections, drains.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::{Config, Readiness, connection};
use crate::api::{Api, ApiError};
use crate::telemetry::Metrics;

/// Connections that are told why they are refused, at once; beyond that they are closed without a word.
const MAX_REFUSALS: usize = 64;
/// How long a refused client may take to read why.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
/// Pause after a failed accept: it fails for want of file descriptors, which only time brings back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What connections are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// Go on.
    Serving,
    /// Finish what runs, take nothing new.
    Draining,
    /// End now.
    Cut,
}

/// What every connection sees.
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) metrics: Arc<Metrics>,
    pub(super) readiness: Arc<Readiness>,
    /// Set once the model is ready.
    pub(super) api: OnceLock<Api>,
}

/// The server could not listen.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {host}:{port}: {source}; choose another server.host or server.port")]
pub struct StartError {
    host: String,
    port: u16,
    source: std::io::Error,
}

/// How a drain went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// Connections that were cut because the deadline passed.
    pub cut: usize,
}

/// A listening server. Dropping it without [`Server::drain`] cuts everything.
pub struct Server {
    shared: Arc<Shared>,
    addr: SocketAddr,
    life: watch::Sender<Life>,
    accepting: JoinHandle<()>,
}

impl Server {
    /// Begins to listen. Until [`Server::open`] the model's routes answer 503 with the boot's progress.
    pub async fn start(config: Config, metrics: Arc<Metrics>) -> Result<Self, StartError> {
        let failed = |source| StartError { host: config.host.clone(), port: config.port, source };
        let listener = TcpListener::bind((config.host.as_str(), config.port)).await.map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        let shared = Arc::new(Shared {
            config,
            metrics,
            readiness: Arc::new(Readiness::default()),
            api: OnceLock::new(),
        });
        let life = watch::Sender::new(Life::Serving);
        let accepting = tokio::spawn(accept(listener, shared.clone(), life.clone()));
        Ok(Self { shared, addr, life, accepting })
    }

    /// The address, with the port that was chosen.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Boot progress, to be told by the boot.
    pub fn readiness(&self) -> Arc<Readiness> {
        self.shared.readiness.clone()
    }

    /// The model is ready: requests are taken from now on.
    pub fn open(&self, api: Api) {
        if self.shared.api.set(api).is_ok() {
            self.shared.readiness.ready();
            self.shared.metrics.set_phase(true, false);
        }
    }

    /// Stops listening, refuses new requests, lets running ones end until `server.drain_timeout_s`, then cuts them.
    pub async fn drain(self) -> Drained {
        self.shared.readiness.draining();
        self.shared.metrics.set_phase(false, true);
        if let Some(api) = self.shared.api.get() {
            api.generator().drain();
        }
        self.accepting.abort();
        let _ = self.life.send(Life::Draining);
        if timeout(self.shared.config.drain_timeout(), self.life.closed()).await.is_ok() {
            return Drained { cut: 0 };
        }
        let cut = self.life.receiver_count();
        let _ = self.life.send(Life::Cut);
        self.life.closed().await;
        Drained { cut }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, life: watch::Sender<Life>) {
    let places = Arc::new(Semaphore::new(shared.config.max_connections));
    let refusals = Arc::new(Semaphore::new(MAX_REFUSALS));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "accepting a connection failed");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Tokens leave as they come, not when a packet is full.
        let _ = stream.set_nodelay(true);
        match places.clone().try_acquire_owned() {
            Ok(place) => {
                let (shared, life) = (shared.clone(), life.subscribe());
                tokio::spawn(async move {
                    let _open = Open::new(shared.metrics.clone(), place);
                    connection::serve(stream, shared, life).await;
                });
            }
            Err(_) => {
                shared.metrics.record_refused_connection();
                if let Ok(permit) = refusals.clone().try_acquire_owned() {
                    let limit = shared.config.max_connections;
                    tokio::spawn(async move {
                        let _ = timeout(REFUSAL_TIME, refuse(stream, limit)).await;
                        drop(permit);
                    });
                }
            }
        }
    }
}

/// Counts a connection while it is open, and holds its place.
struct Open(Arc<Metrics>, #[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

impl Open {
    fn new(metrics: Arc<Metrics>, place: OwnedSemaphorePermit) -> Self {
        metrics.record_connection(true);
        Self(metrics, place)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.record_connection(false);
    }
}

/// Tells a client that all connections are taken, without reading its request as HTTP.
async fn refuse(mut stream: TcpStream, limit: usize) -> std::io::Result<()> {
    let error = ApiError::too_many_connections(limit);
    let body = error.body();
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         retry-after: {}\r\nconnection: close\r\n\r\n",
        body.len(),
        error.retry_after_s.unwrap_or(1)
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&body).await?;
    stream.shutdown().await?;
    // What the client wrote is read and forgotten: closing over unread bytes would take the answer back.
    let mut rest = [0; 4096];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}
