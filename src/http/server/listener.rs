//! The server: listens before the model is ready, bounds connections, drains.

use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{self, MissedTickBehavior, interval_at, sleep, timeout};

use super::open::Open;
use super::overflow::Overflow;
use super::shared::{Life, Shared};
use super::socket::{Address, Listener};
use super::tls::{Tls, TlsError};
use super::traces::Traces;
use super::{Config, Ledger, Operator, Readiness, connection};
use crate::api::Api;
use perigee_telemetry::{Metrics, SAMPLE_EVERY, Throttle};

/// Pause after a failed accept. Accepts fail for lack of file descriptors, and only time frees
/// those.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Time between two looks at the end of the certificate.
const DAY: Duration = Duration::from_secs(86_400);
/// Longest time, at the end of a drain, for clients to read the error that ends their requests and
/// the rest of their answers.
const FAREWELL_TIME: Duration = Duration::from_secs(2);

/// The server could not begin to listen.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is taken, or none of this machine.
    #[error("cannot listen on {place}: {source}; choose another {remedy}")]
    Listen {
        /// As it was asked for.
        place: String,
        /// Keys of the settings.
        remedy: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file of TLS cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Outcome of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// Requests that were ended with an error, because the deadline passed or the end was forced.
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

    /// Whether usage is written down.
    pub fn has_ledger(&self) -> bool {
        self.0.ledger.get().is_some()
    }

    /// The certificate that connections see which begin now; `None` without TLS.
    pub fn tls(&self) -> Option<Tls> {
        self.0.tls()
    }

    /// Replaces the routes of the model, the holders of keys and the certificate; requests that run keep theirs, and open
    /// connections go on. TLS stays on, or off: `tls` is ignored where it would change that.
    pub fn replace(&self, api: Api, config: &Config, tls: Option<Tls>) {
        self.0.set_clients(config);
        self.0.set_api(api);
        self.0.set_tls(tls);
        self.0.metrics.record_reload();
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
    /// progress. Errors: the address cannot be bound, a file of TLS cannot be used.
    pub async fn start(config: Config, metrics: Arc<Metrics>) -> Result<Self, StartError> {
        let tls = Tls::read(&config)?;
        let (listener, address) =
            Listener::bind(&config).await.map_err(|source| match &config.unix_socket {
                Some(path) => {
                    let place = path.display().to_string();
                    StartError::Listen { place, remedy: "server.unix_socket", source }
                }
                None => {
                    let place = format!("{}:{}", config.host, config.port);
                    StartError::Listen { place, remedy: "server.host or server.port", source }
                }
            })?;
        let shared = Arc::new(Shared::new(config, metrics, address.is_loopback(), tls));
        if let Some(tls) = shared.tls() {
            shared.announce(&tls);
        }
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

    /// The address as operators write it: `http://ADDRESS:PORT`, `https://` with TLS, or `unix:PATH`.
    pub fn url(&self) -> String {
        self.address.url(self.shared.tls().is_some())
    }

    /// What changes the server while it serves.
    pub fn control(&self) -> Control {
        Control(self.shared.clone())
    }

    /// Lets the operator see the settings and reload them.
    pub fn set_operator(&self, operator: Arc<dyn Operator>) {
        let _ = self.shared.operator.set(operator);
    }

    /// Writes down the usage of the requests that begin from now on.
    pub fn set_ledger(&self, ledger: Arc<Ledger>) {
        let _ = self.shared.ledger.set(ledger);
    }

    /// Exports traces of the requests that begin from now on.
    pub fn set_traces(&self, traces: Arc<Traces>) {
        let _ = self.shared.traces.set(traces);
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

    /// Waits until the model has answered nothing for `server.idle_exit_s`; for ever without.
    pub async fn unused(&self) {
        self.shared.unused_for(self.shared.config.idle_exit()).await;
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

    /// [`Server::drain_until`] the time is over.
    pub async fn drain(self) -> Drained {
        self.drain_until(pending()).await
    }

    /// Refuses new requests and lets running ones end until `server.drain_timeout_s`, or until `hurry` resolves; the rest are
    /// then ended with an error. Health, metrics and refusals are answered throughout; the server
    /// stops listening only after that.
    pub async fn drain_until(self, hurry: impl Future<Output = ()>) -> Drained {
        let (shared, begun) = (&self.shared, Instant::now());
        shared.readiness.draining();
        shared.metrics.set_phase(false, true);
        if let Some(api) = shared.api() {
            api.generator.drain();
        }
        let mut cut = 0;
        let ended = tokio::select! {
            ended = timeout(shared.config.drain_timeout(), shared.idle()) => ended.is_ok(),
            () = hurry => false,
        };
        if !ended {
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
    let mut overflow = Overflow::new(shared.clone());
    let mut warnings = Throttle::default();
    let mut days = interval_at(time::Instant::now() + DAY, DAY);
    let mut samples = interval_at(time::Instant::now() + SAMPLE_EVERY, SAMPLE_EVERY);
    // A machine that slept has one long sample to show for it.
    samples.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = days.tick() => {
                if let Some(tls) = shared.tls() {
                    tls.warn_of_end();
                }
                continue;
            }
            _ = samples.tick() => {
                shared.refresh_load();
                shared.metrics.sample(shared.metrics.age());
                continue;
            }
        };
        let socket = match accepted {
            Ok(socket) => socket,
            Err(error) => {
                if warnings.pass() {
                    tracing::warn!(%error, "accepting a connection failed");
                }
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match places.clone().try_acquire_owned() {
            Ok(place) => {
                let (shared, life) = (shared.clone(), shared.life.subscribe());
                tokio::spawn(async move {
                    let _open = Open::new(shared.metrics.clone(), place);
                    connection::serve(socket, shared, life).await;
                });
            }
            Err(_) => overflow.take(socket),
        }
    }
}
