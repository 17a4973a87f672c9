//! Images behind URLs, fetched without giving callers a way into the server's own network.
//!
//! A URL passes three gates: the strict parser with its list of allowed hosts, the check of every
//! address that the host resolves to, and TLS against public roots. Every redirect passes the same
//! gates. One deadline and one size limit hold over the whole fetch. Image formats are unknown here,
//! and so is the number of fetches that run at once.

use std::time::Duration;

use tokio::time::timeout;

use self::exchange::Outcome;
use self::peer::Peers;
use self::url::RemoteUrl;

mod address;
mod error;
mod exchange;
mod peer;
mod url;

#[cfg(test)]
mod tests;

pub use self::error::{FetchError, RulesError};

/// Most redirects that are followed.
const MAX_REDIRECTS: usize = 3;

/// Limits of a fetch, and the hosts that it may reach.
#[derive(Debug, Clone)]
pub struct Rules {
    /// DNS names that URLs may name, compared exactly but for case. A name does not stand for its
    /// subdomains. None = every URL is refused.
    pub hosts: Vec<String>,
    /// Whether plain http URLs are fetched too. On = anyone on the path can replace the image.
    pub http: bool,
    /// Longest time of a whole fetch, redirects included. Larger: slow hosts hold requests longer.
    pub timeout: Duration,
    /// Most bytes of an image. Larger: more memory per fetch.
    pub max_bytes: usize,
}

/// Fetches images within [`Rules`]. Every fetch has a connection of its own, and no fetch leaves
/// anything behind for the next one.
pub struct Fetcher {
    rules: Rules,
    peers: Peers,
}

impl Fetcher {
    /// A fetcher that follows `rules`. Errors: a host that no accepted URL can have, a limit of zero.
    pub fn new(rules: Rules) -> Result<Self, RulesError> {
        let peers = Peers::new(rules.timeout);
        Self::with_peers(rules, peers)
    }

    fn with_peers(mut rules: Rules, peers: Peers) -> Result<Self, RulesError> {
        for host in &mut rules.hosts {
            *host = url::dns_name(host).ok_or_else(|| RulesError::Host(host.clone()))?;
        }
        if rules.timeout.is_zero() {
            return Err(RulesError::Timeout);
        }
        if rules.max_bytes == 0 {
            return Err(RulesError::MaxBytes);
        }
        Ok(Self { rules, peers })
    }

    /// The bytes behind `url`, not yet known to be an image. Dropping the future ends the fetch and
    /// closes its connection. Runs on a tokio runtime with I/O and time enabled.
    ///
    /// Errors: a URL, a redirect or an address that the rules do not allow, a failure of the remote
    /// host, a limit of time or size.
    pub async fn fetch(&self, url: &str) -> Result<Vec<u8>, FetchError> {
        let url = RemoteUrl::parse(url, &self.rules)?;
        let limit = self.rules.timeout;
        timeout(limit, self.follow(url)).await.unwrap_or(Err(FetchError::Timeout { limit }))
    }

    async fn follow(&self, mut url: RemoteUrl) -> Result<Vec<u8>, FetchError> {
        for _ in 0..=MAX_REDIRECTS {
            let stream = self.peers.connect(&url).await?;
            match exchange::get(stream, &url, self.rules.max_bytes).await? {
                Outcome::Body(bytes) => return Ok(bytes),
                Outcome::Redirect(location) => url = url.redirect(&location, &self.rules)?,
            }
        }
        Err(FetchError::TooManyRedirects { limit: MAX_REDIRECTS })
    }
}
