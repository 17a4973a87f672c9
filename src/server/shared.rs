//! State shared by all connections, and the stages of its end.

use std::future::Future;
use std::sync::{Arc, OnceLock};

use tokio::sync::watch;

use super::admission::Hosts;
use super::body::Bodies;
use super::{Config, Readiness};
use crate::api::Api;
use crate::telemetry::Metrics;

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
    /// Set once the model is ready.
    pub(super) api: OnceLock<Api>,
    pub(super) hosts: Hosts,
    pub(super) bodies: Bodies,
    /// Every connection holds a receiver.
    pub(super) life: watch::Sender<Life>,
    /// Requests for which a drain waits.
    pub(super) running: watch::Sender<usize>,
}

/// A request that a drain waits for, until dropped.
pub(super) struct Running(Arc<Shared>);

impl Shared {
    /// Counts a request among those that a drain waits for.
    pub(super) fn run(self: &Arc<Self>) -> Running {
        self.running.send_modify(|running| *running += 1);
        Running(self.clone())
    }

    /// Most bytes of a body: more where the model sees images.
    pub(super) fn body_limit(&self) -> usize {
        let of_images = self.api.get().map_or(0, Api::body_limit);
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

    /// Waits until no request runs.
    pub(super) async fn idle(&self) {
        let _ = self.running.subscribe().wait_for(|running| *running == 0).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.send_modify(|running| *running -= 1);
    }
}
