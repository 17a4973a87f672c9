//! Remote images for the request walk, a bounded number at a time.

use std::time::Duration;

use tokio::sync::Semaphore;

use super::fetch::{Fetcher, Rules, RulesError};
use crate::generate::{FetchImages, Fetched};
use perigee_model::vision;

/// Fetches that run at once; others wait for their turn, no longer than a fetch may take.
const MAX_FETCHES: usize = 16;

/// Fetches images from the hosts of `vision.remote_hosts`.
pub struct RemoteImages {
    fetcher: Fetcher,
    turns: Semaphore,
    limit: Duration,
}

impl RemoteImages {
    /// A fetcher under these settings; `None` if no host is allowed. Errors: a host that no URL can have.
    pub fn new(config: &vision::Config) -> Result<Option<Self>, RulesError> {
        if config.remote_hosts.is_empty() {
            return Ok(None);
        }
        let limit = Duration::from_secs_f64(config.remote_timeout_s);
        let rules = Rules {
            hosts: config.remote_hosts.clone(),
            http: config.remote_http,
            timeout: limit,
            max_bytes: config.max_image_bytes,
        };
        Ok(Some(Self { fetcher: Fetcher::new(rules)?, turns: Semaphore::new(MAX_FETCHES), limit }))
    }
}

impl FetchImages for RemoteImages {
    fn fetch(&self, url: String) -> Fetched<'_> {
        Box::pin(async move {
            let turn = tokio::time::timeout(self.limit, self.turns.acquire()).await;
            let Ok(Ok(_turn)) = turn else {
                return Err(format!(
                    "the images of other requests left no turn for {} s",
                    self.limit.as_secs_f64()
                ));
            };
            self.fetcher.fetch(&url).await.map_err(|error| {
                tracing::debug!(?error, "a remote image was not fetched");
                error.to_string()
            })
        })
    }
}
