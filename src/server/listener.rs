//! The server: listens before the model is ready, bounds connections, drains.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::shared::{Life, Shared};
use super::socket::{Address, Listener, Stream};
use super::{Config, Operator, Readiness, connection};
use crate::api::{Api, ApiError};
use crate::telemetry::Metrics;

/// Most connections that are refused with a reason at once; further ones are closed without an
/// answer.
const MAX_REFUSALS: usize = 64;
/// Longest time for a refused client to read the reason.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
/// Pause after a failed accept. Accepts fail for lack of file descriptors, and only time frees
/// those.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Longest time, at the end of a drain, for clients to read the error that ends their requests and
/// the rest of their answers.
const FAREWELL_TIME: Duration = Duration::from_secs(2);

/// The server could not listen.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {place}: {source}; choose another {remedy}")]
pub struct StartError {
    place: String,
    remedy: &'static str,
    source: std::io::Error,
}

/// Outcome of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// Requests that were ended with an error because the deadline passed.
    pub cut: usize,
    /// Duration of the drain.
    pub took: Duration,
}

/// Changes a server while it serves.
#[derive(Clone)]
pub struct Control(Arc<Shared>);

impl Control {
    /// The routes of the model, once there are any.
    pub fn api(&self) -> Option<Arc<Api>> {
        self.0.api()
    }

    /// Replaces the routes of the model and the holders of keys; requests that run keep theirs.
    pub fn replace(&self, api: Api, config: &Config) {
        self.0.set_clients(config);
        self.0.set_api(api);
    }
}

/// A listening server. Dropping the server without [`Server::drain`] cuts every connection.
pub struct Server {
    shared: Arc<Shared>,
    address: Address,
    accepting: JoinHandle<()>,
}

impl Server {
    /// Begins to listen. Until [`Server::open`] the model's routes answer 503 with the boot's
    /// progress. Errors: the address cannot be bound.
    pub async fn start(config: Config, metrics: Arc<Metrics>) -> Result<Self, StartError> {
        let (listener, address) =
            Listener::bind(&config).await.map_err(|source| match &config.unix_socket {
                Some(path) => {
                    StartError { place: path.display().to_string(), remedy: "server.unix_socket", source }
                }
                None => {
                    let place = format!("{}:{}", config.host, config.port);
                    StartError { place, remedy: "server.host or server.port", source }
                }
            })?;
        let shared = Arc::new(Shared::new(config, metrics, address.is_loopback()));
        let accepting = tokio::spawn(accept(listener, shared.clone()));
        Ok(Self { shared, address, accepting })
    }

    /// The TCP address, with the port that was chosen; 0.0.0.0:0 for a server on a Unix socket.
    pub fn addr(&self) -> SocketAddr {
        match &self.address {
            Address::Tcp(addr) => *addr,
            Address::Unix(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        }
    }

    /// The address as operators write it: `http://ADDRESS:PORT` or `unix:PATH`.
    pub fn url(&self) -> String {
        self.address.to_string()
    }

    /// What changes the server while it serves.
    pub fn control(&self) -> Control {
        Control(self.shared.clone())
    }

    /// Lets the operator see the settings and reload them.
    pub fn set_operator(&self, operator: Arc<dyn Operator>) {
        let _ = self.shared.operator.set(operator);
    }

    /// Boot progress, which the boot updates.
    pub fn readiness(&self) -> Arc<Readiness> {
        self.shared.readiness.clone()
    }

    /// Marks the model as ready; requests are accepted from now on.
    pub fn open(&self, api: Api) {
        self.shared.set_api(api);
        self.shared.readiness.ready();
        self.shared.metrics.set_phase(true, false);
    }

    /// Denies readiness and goes on taking requests for `server.drain_delay_s`, so that routers stop sending before anything is refused.
    pub async fn leave(&self) {
        let delay = self.shared.config.drain_delay();
        if delay.is_zero() || self.shared.api().is_none() {
            return;
        }
        self.shared.readiness.leaving();
        self.shared.metrics.set_phase(false, true);
        tracing::info!(
            seconds = delay.as_secs_f64(),
            "leaving: /health/ready says 503, requests are still taken (server.drain_delay_s)"
        );
        sleep(delay).await;
    }

    /// Refuses new requests and lets running ones end until `server.drain_timeout_s`; the rest are
    /// then ended with an error. Health, metrics and refusals are answered throughout; the server
    /// stops listening only after that.
    pub async fn drain(self) -> Drained {
        let (shared, begun) = (&self.shared, Instant::now());
        shared.readiness.draining();
        shared.metrics.set_phase(false, true);
        if let Some(api) = shared.api() {
            api.generator().drain();
        }
        let mut cut = 0;
        if timeout(shared.config.drain_timeout(), shared.idle()).await.is_err() {
            cut = *shared.running.borrow();
            shared.life.send_replace(Life::Cut);
            let _ = timeout(FAREWELL_TIME, shared.idle()).await;
        }
        self.accepting.abort();
        shared.life.send_replace(Life::Closing);
        let _ = timeout(FAREWELL_TIME, shared.life.closed()).await;
        Drained { cut, took: begun.elapsed() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
        self.shared.life.send_replace(Life::Over);
    }
}

async fn accept(listener: Listener, shared: Arc<Shared>) {
    let places = Arc::new(Semaphore::new(shared.config.max_connections));
    let refusals = Arc::new(Semaphore::new(MAX_REFUSALS));
    loop {
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "accepting a connection failed");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match places.clone().try_acquire_owned() {
            Ok(place) => {
                let (shared, life) = (shared.clone(), shared.life.subscribe());
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

/// Tells a client that all connections are in use, without parsing its request as HTTP.
async fn refuse(mut stream: Box<dyn Stream>, limit: usize) -> std::io::Result<()> {
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
    // The client's bytes are read and discarded: closing over unread bytes would reset the
    // connection and lose the answer.
    let mut rest = [0; 4096];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}
