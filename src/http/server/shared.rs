//! State shared by all connections, and the stages of its end.

use std::future::Future;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::admission::Hosts;
use super::audit::{self, Refusals};
use super::clients::Clients;
use super::ledger::Ledger;
use super::network::Network;
use super::room::Bodies;
use super::tls::Tls;
use super::traces::Traces;
use super::{Config, Operator, Readiness};
use crate::api::{Api, ApiError};
use perigee_telemetry::{Metrics, Throttle};

/// The stages of the server's end; the value only grows. A drain begins in [`Life::Serving`]:
/// the readiness decides on refusals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Life {
    /// Requests run to their end.
    Serving,
    /// Requests are ended with an error.
    Cut,
    /// Connections end after their current answer.
    Closing,
    /// Connections end now.
    Over,
}

/// State shared by all connections.
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) metrics: Arc<Metrics>,
    pub(super) readiness: Arc<Readiness>,
    /// Set once the model is ready; replaced by a reload.
    api: RwLock<Option<Arc<Api>>>,
    pub(super) hosts: Hosts,
    clients: RwLock<Arc<Clients>>,
    /// The certificate of connections that begin now; replaced by a reload.
    tls: RwLock<Option<Tls>>,
    /// Strangers must not fill the log with certificates that are refused.
    certificate_warnings: Mutex<Throttle>,
    /// What the operator may see and do; set by the boot.
    pub(super) operator: OnceLock<Arc<dyn Operator>>,
    /// Set by the boot where usage is written down.
    pub(super) ledger: OnceLock<Arc<Ledger>>,
    /// Proxies that are trusted to say who called them.
    pub(super) proxies: Vec<Network>,
    pub(super) refusals: Refusals,
    /// Set by the boot where traces are exported.
    pub(super) traces: OnceLock<Arc<Traces>>,
    pub(super) bodies: Bodies,
    /// Every connection holds a receiver.
    pub(super) life: watch::Sender<Life>,
    /// Requests for which a drain waits.
    pub(super) running: watch::Sender<usize>,
    /// Of these, such that the model answers.
    pub(super) generating: watch::Sender<usize>,
}

/// A request that a drain waits for, until dropped.
pub(super) struct Running {
    shared: Arc<Shared>,
    generates: bool,
}

impl Shared {
    pub(super) fn new(config: Config, metrics: Arc<Metrics>, loopback: bool, tls: Option<Tls>) -> Self {
        Self {
            metrics,
            readiness: Arc::new(Readiness::default()),
            api: RwLock::default(),
            tls: RwLock::new(tls),
            certificate_warnings: Mutex::default(),
            operator: OnceLock::new(),
            ledger: OnceLock::new(),
            proxies: config.trusted_proxies.iter().filter_map(|network| Network::read(network)).collect(),
            refusals: Refusals::default(),
            traces: OnceLock::new(),
            hosts: Hosts::new(&config, loopback),
            clients: RwLock::new(Arc::new(Clients::new(&config, &Clients::default()))),
            bodies: Bodies::new(config.bodies_bytes()),
            life: watch::Sender::new(Life::Serving),
            running: watch::Sender::new(0),
            generating: watch::Sender::new(0),
            config,
        }
    }

    /// The routes of the model at this moment.
    pub(super) fn api(&self) -> Option<Arc<Api>> {
        self.api.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Brings the engine's load in the metrics up to date.
    pub(super) fn refresh_load(&self) {
        if let Some(api) = self.api() {
            self.metrics.set_load(&api.load());
        }
    }

    /// Sets or replaces the routes of the model; requests that run keep theirs.
    pub(super) fn set_api(&self, api: Api) {
        *self.api.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(api));
    }

    /// The holders of keys at this moment.
    pub(super) fn clients(&self) -> Arc<Clients> {
        self.clients.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the holders of keys by those of `config`; requests that run go on.
    pub(super) fn set_clients(&self, config: &Config) {
        let mut clients = self.clients.write().unwrap_or_else(PoisonError::into_inner);
        let new = Clients::new(config, &clients);
        audit::keys_changed(&clients, &new);
        *clients = Arc::new(new);
    }

    /// The certificate at this moment; `None` without TLS.
    pub(super) fn tls(&self) -> Option<Tls> {
        self.tls.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the certificate of a server that has one.
    pub(super) fn set_tls(&self, new: Option<Tls>) {
        let mut tls = self.tls.write().unwrap_or_else(PoisonError::into_inner);
        if let (Some(tls), Some(new)) = (tls.as_mut(), new) {
            self.announce(&new);
            *tls = new;
        }
    }

    /// Says which certificate clients see from now on, in the log and in the metrics.
    pub(super) fn announce(&self, tls: &Tls) {
        tls.announce();
        self.metrics.set_certificate_end(tls.valid_until_s());
    }

    /// Whether a line about a client's certificate is due; it counts as written then.
    pub(super) fn certificate_warning_is_due(&self) -> bool {
        self.certificate_warnings.lock().unwrap_or_else(PoisonError::into_inner).pass()
    }

    /// What the operator may see and do. Errors: a boot that has not got so far.
    pub(super) fn operator(&self) -> Result<&Arc<dyn Operator>, ApiError> {
        self.operator.get().ok_or_else(|| ApiError::starting("settings", 0))
    }

    /// Counts a request among those that a drain waits for.
    pub(super) fn run(self: &Arc<Self>, generates: bool) -> Running {
        self.running.send_modify(|running| *running += 1);
        if generates {
            self.generating.send_modify(|generating| *generating += 1);
        }
        Running { shared: self.clone(), generates }
    }

    /// Most bytes of a body: more where the model sees images.
    pub(super) fn body_limit(&self) -> usize {
        let of_images = self.api().map_or(0, |api| api.body_limit);
        self.config.max_body_bytes.max(of_images)
    }

    /// Resolves when running requests are to be ended.
    pub(super) fn cut(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut life = self.life.subscribe();
        async move {
            // The sender outlives every request.
            let _ = life.wait_for(|life| *life >= Life::Cut).await;
        }
    }

    /// Whether the server has ended running requests.
    pub(super) fn is_cut(&self) -> bool {
        *self.life.borrow() >= Life::Cut
    }

    /// Waits until the model has answered nothing for `time`; for ever where that is zero.
    pub(super) async fn unused_for(&self, time: Duration) {
        if time.is_zero() {
            return std::future::pending().await;
        }
        let mut generating = self.generating.subscribe();
        loop {
            let _ = generating.wait_for(|generating| *generating == 0).await;
            // Also a request that has ended in the meantime begins the time anew.
            generating.borrow_and_update();
            if timeout(time, generating.changed()).await.is_err() {
                return;
            }
        }
    }

    /// Waits until no request runs.
    pub(super) async fn idle(&self) {
        let _ = self.running.subscribe().wait_for(|running| *running == 0).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.generates {
            self.shared.generating.send_modify(|generating| *generating -= 1);
        }
        self.shared.running.send_modify(|running| *running -= 1);
    }
}
