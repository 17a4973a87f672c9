//! Clients: which one holds a key, what each may use, and what it has used.
//!
//! Limits are token buckets that hold a minute's worth. A request is let in while its client's
//! buckets are not empty, and its tokens are taken when they are known, at its end: a long reply
//! leaves a debt that later requests wait for. So no request is refused for an estimate.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Config;
use super::api_key::{KeyLimits, Secret, digest};
use crate::api::{ApiError, Owner, Share};

/// Holders of keys. A reload replaces the whole; clients of the same name keep what they have used.
#[derive(Debug, Default)]
pub(super) struct Clients {
    keys: Vec<(Secret, Arc<Client>)>,
    admin: Option<Secret>,
}

/// The holder of a key.
#[derive(Debug)]
pub(super) struct Client {
    name: Arc<str>,
    /// Its share of the queue; `None` where it is the only client.
    share: Option<Share>,
    limits: KeyLimits,
    account: Arc<Account>,
}

/// What a client has used; outlives a change of its limits.
#[derive(Debug)]
struct Account {
    number: u32,
    usage: Mutex<Usage>,
}

#[derive(Debug, Default)]
struct Usage {
    concurrent: u32,
    requests: Bucket,
    tokens: Bucket,
}

/// What is left of a minute's worth. Below zero: a debt. Without a limit nothing is counted, so that
/// one that a reload sets begins with a full bucket.
#[derive(Debug, Default)]
struct Bucket {
    level: f64,
    /// `None`: never used, and full.
    at: Option<Instant>,
}

/// Whom a key opens the door for.
#[derive(Debug, Clone)]
pub(super) enum Caller {
    /// No keys are set.
    Anyone,
    Client(Arc<Client>),
    /// The operator: no limits.
    Admin,
}

/// A request that counts against its client's limits, until dropped.
#[derive(Debug)]
pub(super) struct Metered {
    client: Arc<Client>,
    /// The client's limits as the headers of the answer state them.
    pub(super) headers: Vec<(&'static str, String)>,
}

impl Clients {
    /// The clients of `config`. Those whose names are in `before` keep their accounts.
    pub(super) fn new(config: &Config, before: &Self) -> Self {
        let mut accounts: HashMap<&str, &Arc<Account>> =
            before.keys.iter().map(|(_, client)| (&*client.name, &client.account)).collect();
        let mut next = accounts.values().map(|account| account.number + 1).max().unwrap_or(0);
        let shared = config.api_keys.len() > 1;
        let mut keys = Vec::with_capacity(config.api_keys.len());
        for (index, entry) in config.api_keys.iter().enumerate() {
            let name = entry.name.clone().unwrap_or_else(|| format!("key-{}", index + 1));
            let account = accounts.remove(&*name).cloned().unwrap_or_else(|| {
                next += 1;
                Arc::new(Account { number: next - 1, usage: Mutex::default() })
            });
            let share = Share { client: account.number, weight: entry.limits.weight };
            let client =
                Client { name: name.into(), share: shared.then_some(share), limits: entry.limits, account };
            keys.push((entry.key.clone(), Arc::new(client)));
        }
        Self { keys, admin: config.admin_key.clone() }
    }

    /// Who sends `key`, if the key is one. Every key is compared, in constant time.
    pub(super) fn find(&self, key: &str) -> Option<Caller> {
        let digest = digest(key);
        let mut found = self.keys.is_empty().then_some(Caller::Anyone);
        for (secret, client) in &self.keys {
            if secret.is_digest(&digest) {
                found = Some(Caller::Client(client.clone()));
            }
        }
        match &self.admin {
            Some(admin) if admin.is_digest(&digest) => Some(Caller::Admin),
            _ => found,
        }
    }

    /// Whether the operator has a key.
    pub(super) fn has_admin(&self) -> bool {
        self.admin.is_some()
    }
}

impl Caller {
    /// Name in metrics and logs; `None` where no keys are set.
    pub(super) fn name(&self) -> Option<Arc<str>> {
        match self {
            Self::Anyone => None,
            Self::Client(client) => Some(client.name.clone()),
            Self::Admin => Some("admin".into()),
        }
    }

    /// The owner of what a client with this key stores: its key, whatever its name, so that nothing changes
    /// hands when the keys change.
    pub(super) fn owner(&self, key: &str) -> Owner {
        match self {
            Self::Anyone => Owner::default(),
            Self::Client(_) | Self::Admin => Owner(Some(digest(key))),
        }
    }

    /// Share of the queue, where clients are told apart.
    pub(super) fn share(&self) -> Option<Share> {
        match self {
            Self::Client(client) => client.share,
            Self::Anyone | Self::Admin => None,
        }
    }
}

impl Client {
    /// Counts a request that begins `now`. Errors: 429 with the limit and the time until it is met.
    pub(super) fn begin(self: &Arc<Self>, now: Instant) -> Result<Metered, ApiError> {
        let limits = &self.limits;
        let refuse = |limit: &str, value: u64, wait: f64| {
            Err(ApiError::rate_limited(&self.name, limit, value, Duration::from_secs_f64(wait)))
        };
        let mut usage = self.usage();
        if limits.max_concurrent > 0 && usage.concurrent >= limits.max_concurrent {
            return refuse("max_concurrent", limits.max_concurrent.into(), 1.0);
        }
        let (requests, tokens) = (f64::from(limits.requests_per_minute), limits.tokens_per_minute as f64);
        let requests_left = usage.requests.refill(requests, now);
        if requests > 0.0 && requests_left < 1.0 {
            let wait = (1.0 - requests_left) * 60.0 / requests;
            return refuse("requests_per_minute", limits.requests_per_minute.into(), wait);
        }
        let tokens_left = usage.tokens.refill(tokens, now);
        if tokens > 0.0 && tokens_left < 1.0 {
            let wait = (1.0 - tokens_left) * 60.0 / tokens;
            return refuse("tokens_per_minute", limits.tokens_per_minute, wait);
        }
        usage.concurrent += 1;
        usage.requests.take(requests, 1.0);
        drop(usage);
        let mut headers = Vec::new();
        let mut state = |names: [&'static str; 3], limit: f64, left: f64| {
            if limit > 0.0 {
                let reset_s = (limit - left).max(0.0) * 60.0 / limit;
                let values = [format!("{limit}"), format!("{}", left.floor()), format!("{reset_s:.3}s")];
                headers.extend(names.into_iter().zip(values));
            }
        };
        state(
            ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"],
            requests,
            requests_left - 1.0,
        );
        state(
            ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"],
            tokens,
            tokens_left,
        );
        Ok(Metered { client: self.clone(), headers })
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.account.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Metered {
    /// Takes the tokens of the request, at its end.
    pub(super) fn charge(&self, tokens: usize) {
        let per_minute = self.client.limits.tokens_per_minute as f64;
        self.client.usage().tokens.take(per_minute, tokens as f64);
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        self.client.usage().concurrent -= 1;
    }
}

impl Bucket {
    /// What is left with what came in since the last look.
    fn refill(&mut self, per_minute: f64, now: Instant) -> f64 {
        if per_minute > 0.0 {
            let came = |at| now.saturating_duration_since(at).as_secs_f64() * per_minute / 60.0;
            self.level = self.at.map_or(per_minute, |at| (self.level + came(at)).min(per_minute));
            self.at = Some(now);
        }
        self.level
    }

    fn take(&mut self, per_minute: f64, amount: f64) {
        if per_minute > 0.0 {
            self.level -= amount;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::api_key::ApiKey;
    use super::*;

    fn config(entries: &[&str]) -> Config {
        let read = |text: &&str| serde_json::from_value(serde_json::Value::String((*text).into())).unwrap();
        let api_keys: Vec<ApiKey> = entries.iter().map(read).collect();
        Config { api_keys, ..Config::default() }
    }

    fn client(clients: &Clients, key: &str) -> Arc<Client> {
        match clients.find(key) {
            Some(Caller::Client(client)) => client,
            other => panic!("{key}: {other:?}"),
        }
    }

    fn wait(refused: Result<Metered, ApiError>) -> u32 {
        let error = refused.expect_err("refused");
        assert_eq!((error.status, error.code), (429, "rate_limit_exceeded"));
        error.retry_after_s.unwrap()
    }

    #[test]
    fn a_key_finds_its_client() {
        let clients = Clients::new(&config(&["k1", "{ name = \"b\", key = \"k2\" }"]), &Clients::default());
        assert_eq!((&*client(&clients, "k1").name, &*client(&clients, "k2").name), ("key-1", "b"));
        assert!(clients.find("k3").is_none() && clients.find("").is_none());
        let open = Clients::new(&Config::default(), &Clients::default());
        assert!(matches!(open.find(""), Some(Caller::Anyone)) && !open.has_admin());
        let admin = Config { admin_key: Some(Secret::new("root")), ..config(&["k1"]) };
        let clients = Clients::new(&admin, &Clients::default());
        assert!(matches!(clients.find("root"), Some(Caller::Admin)) && clients.has_admin());
        assert_eq!(client(&clients, "k1").share, None, "the only client shares with nobody");
    }

    #[test]
    fn requests_per_minute_come_back_evenly() {
        let clients =
            Clients::new(&config(&["{ key = \"k\", requests_per_minute = 6 }"]), &Clients::default());
        let (client, start) = (client(&clients, "k"), Instant::now());
        let at = |seconds: f64| client.begin(start + Duration::from_secs_f64(seconds));
        (0..6).for_each(|_| drop(at(0.0).unwrap()));
        assert_eq!(wait(at(0.0)), 10);
        assert_eq!(wait(at(7.0)), 3);
        assert!(at(10.0).is_ok() && at(10.0).is_err());
        assert_eq!((0..9).filter(|_| at(1000.0).is_ok()).count(), 6, "no more than a minute's worth");
    }

    #[test]
    fn tokens_are_taken_when_they_are_known() {
        let clients =
            Clients::new(&config(&["{ key = \"k\", tokens_per_minute = 600 }"]), &Clients::default());
        let (client, start) = (client(&clients, "k"), Instant::now());
        let at = |seconds: u64| client.begin(start + Duration::from_secs(seconds));
        let first = at(0).unwrap();
        assert_eq!(first.headers[1], ("x-ratelimit-remaining-tokens", "600".into()));
        first.charge(900);
        drop(first);
        assert_eq!(wait(at(0)), 31, "300 tokens of debt at 10 a second, and one token");
        assert!(at(31).is_ok());
    }

    #[test]
    fn requests_at_once_are_given_back() {
        let clients = Clients::new(&config(&["{ key = \"k\", max_concurrent = 2 }"]), &Clients::default());
        let client = client(&clients, "k");
        let begin = || client.begin(Instant::now());
        let (first, _second) = (begin().unwrap(), begin().unwrap());
        assert_eq!(wait(begin()), 1);
        drop(first);
        assert!(begin().is_ok());
    }

    #[test]
    fn a_reload_keeps_what_was_used() {
        let old = "{ name = \"a\", key = \"k\", requests_per_minute = 1 }";
        let before = Clients::new(&config(&[old, "x"]), &Clients::default());
        let running = client(&before, "k").begin(Instant::now()).unwrap();
        let new = "{ name = \"a\", key = \"other\", requests_per_minute = 1, max_concurrent = 1 }";
        let after = Clients::new(&config(&["y", new]), &before);
        let client = client(&after, "other");
        assert_eq!(client.share.map(|share| share.client), Some(0));
        assert!(client.begin(Instant::now()).is_err());
        drop(running);
        assert!(client.begin(Instant::now()).is_err(), "the minute is not over");
        assert!(after.find("k").is_none());
    }

    #[test]
    fn a_limit_that_a_reload_sets_counts_from_then_on() {
        let before = Clients::new(&config(&["{ name = \"a\", key = \"k\" }"]), &Clients::default());
        let start = Instant::now();
        for _ in 0..100 {
            client(&before, "k").begin(start).unwrap().charge(1_000_000);
        }
        let running = client(&before, "k").begin(start).unwrap();
        let limited = "{ name = \"a\", key = \"k\", requests_per_minute = 2, tokens_per_minute = 10 }";
        let after = Clients::new(&config(&[limited]), &before);
        let client = client(&after, "k");
        assert_eq!(client.begin(start).unwrap().headers[1].1, "1");
        // It began without a limit.
        running.charge(1_000_000);
        assert!(client.begin(start).is_ok());
        assert_eq!(wait(client.begin(start)), 30);
    }
}
