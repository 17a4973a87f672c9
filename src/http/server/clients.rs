//! Clients: which one holds a key, what each may use, and what it has used.
//!
//! Limits are token buckets that hold a minute's worth. A request is let in while its client's
//! buckets are not empty, and its tokens are taken when they are known, at its end: a long reply
//! leaves a debt that later requests wait for. So no request is refused for an estimate.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::api_key::{KeyLimits, Secret, digest};
use super::ledger::Spent;
use super::{Config, moment};
use crate::api::{ApiError, Owner, Route, Share};

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
    /// The moment from which on the key is none; `None` = never.
    expires: Option<String>,
    /// Names of the routes that the key opens; empty = all that need one.
    routes: Vec<&'static str>,
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
pub(super) struct Metered(Arc<Client>);

/// A client's limits as headers of an answer state them.
pub(super) type LimitHeaders = Vec<(&'static str, String)>;

/// A limit that a client has used up.
#[derive(Debug)]
pub(super) struct LimitReached {
    /// Its name in the settings.
    pub(super) limit: &'static str,
    /// 429.
    pub(super) error: Box<ApiError>,
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
            let client = Client {
                name: name.into(),
                share: shared.then_some(share),
                limits: entry.limits,
                expires: entry.expires.clone(),
                routes: entry.opens(),
                account,
            };
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

    /// Names of clients that are in one of `self` and `before` and not in the other, and of those with another key, or with other
    /// limits: added, removed, changed.
    pub(super) fn changes(&self, before: &Self) -> [Vec<Arc<str>>; 3] {
        let of = |clients: &Self, name: &str| {
            clients.keys.iter().find(|(_, client)| *client.name == *name).map(|(secret, client)| {
                (secret.clone(), client.limits, client.expires.clone(), client.routes.clone())
            })
        };
        let names = |clients: &Self, keep: &dyn Fn(&str) -> bool| -> Vec<Arc<str>> {
            let all = clients.keys.iter().map(|(_, client)| client.name.clone());
            all.filter(|name| keep(name)).collect()
        };
        [
            names(self, &|name| of(before, name).is_none()),
            names(before, &|name| of(self, name).is_none()),
            names(self, &|name| of(before, name).is_some_and(|old| Some(old) != of(self, name))),
        ]
    }

    /// The clients, in the order of the settings.
    pub(super) fn all(&self) -> impl Iterator<Item = &Client> {
        self.keys.iter().map(|(_, client)| &**client)
    }

    /// Whether the operator's key is another one.
    pub(super) fn admin_differs(&self, other: &Self) -> bool {
        self.admin != other.admin
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
    /// Name in metrics and logs.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether what it used before counts, however long ago the server started.
    pub(super) fn has_budget(&self) -> bool {
        self.limits.has_budget()
    }

    /// Most tokens of a reply; `None` = no limit of its own.
    pub(super) fn max_tokens(&self) -> Option<u32> {
        Some(self.limits.max_tokens).filter(|limit| *limit > 0)
    }

    /// Whether the key is one `now`, and opens the route. Errors: 401 for a key that has ended, 403.
    pub(super) fn may(&self, route: &Route, now: SystemTime) -> Result<(), ApiError> {
        if let Some(expires) = self.expires.as_ref().filter(|expires| **expires <= moment::text(now)) {
            return Err(ApiError::expired_key(&self.name, expires));
        }
        if self.routes.is_empty() || self.routes.contains(&route.name) {
            return Ok(());
        }
        Err(ApiError::route_not_allowed(&self.name, route.name, &self.routes))
    }

    /// Counts a request that begins `now`, of a client that has `spent` so much of its budgets. Errors: the limit, and the time
    /// until it is met. The headers state what is left in either case.
    pub(super) fn begin(
        self: &Arc<Self>,
        now: Instant,
        spent: &Spent,
    ) -> (LimitHeaders, Result<Metered, LimitReached>) {
        let limits = &self.limits;
        let (requests, tokens) = (f64::from(limits.requests_per_minute), limits.tokens_per_minute as f64);
        let mut usage = self.usage();
        let requests_left = usage.requests.refill(requests, now);
        let tokens_left = usage.tokens.refill(tokens, now);
        let reached = self.reached(usage.concurrent, [requests_left, tokens_left], spent);
        let taken = if reached.is_none() { 1.0 } else { 0.0 };
        let mut headers = Vec::new();
        let mut state = |names: [&'static str; 3], limit: f64, left: f64| {
            if limit > 0.0 {
                let reset_s = (limit - left).max(0.0) * 60.0 / limit;
                let left = left.floor().max(0.0);
                let values = [format!("{limit}"), format!("{left}"), format!("{reset_s:.3}s")];
                headers.extend(names.into_iter().zip(values));
            }
        };
        state(
            ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"],
            requests,
            requests_left - taken,
        );
        state(
            ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"],
            tokens,
            tokens_left,
        );
        if let Some(reached) = reached {
            return (headers, Err(reached));
        }
        usage.concurrent += 1;
        usage.requests.take(requests, 1.0);
        drop(usage);
        (headers, Ok(Metered(self.clone())))
    }

    /// The first limit that leaves no room for a request, if there is one; of requests and tokens so many are left of a minute's.
    fn reached(&self, concurrent: u32, left: [f64; 2], spent: &Spent) -> Option<LimitReached> {
        let limits = &self.limits;
        let rates = [
            ("requests_per_minute", limits.requests_per_minute.into()),
            ("tokens_per_minute", limits.tokens_per_minute),
        ];
        let budgets = [
            ("tokens_per_day", limits.tokens_per_day, spent.day, spent.day_ends_in),
            ("tokens_per_month", limits.tokens_per_month, spent.month, spent.month_ends_in),
        ];
        let rate_limited = |limit, value, wait| {
            let error = ApiError::rate_limited(&self.name, limit, value, wait);
            LimitReached { limit, error: Box::new(error) }
        };
        if limits.max_concurrent > 0 && concurrent >= limits.max_concurrent {
            return Some(rate_limited(
                "max_concurrent",
                limits.max_concurrent.into(),
                Duration::from_secs(1),
            ));
        }
        for ((limit, value), left) in rates.into_iter().zip(left) {
            if value > 0 && left < 1.0 {
                let wait = Duration::from_secs_f64((1.0 - left) * 60.0 / value as f64);
                return Some(rate_limited(limit, value, wait));
            }
        }
        let (limit, value, _, wait) =
            budgets.into_iter().find(|(_, value, spent, _)| *value > 0 && spent >= value)?;
        let error = ApiError::budget_used(&self.name, limit, value, wait);
        Some(LimitReached { limit, error: Box::new(error) })
    }

    /// Requests that run, and the limit of which most is used, with the share of it, 0 to 1 or above; `None` without a limit.
    pub(super) fn load(&self, now: Instant, spent: &Spent) -> (u32, Option<(&'static str, f64)>) {
        let limits = &self.limits;
        let mut usage = self.usage();
        let (requests, tokens) = (f64::from(limits.requests_per_minute), limits.tokens_per_minute as f64);
        let used = [
            ("max_concurrent", f64::from(limits.max_concurrent), f64::from(usage.concurrent)),
            ("requests_per_minute", requests, requests - usage.requests.refill(requests, now)),
            ("tokens_per_minute", tokens, tokens - usage.tokens.refill(tokens, now)),
            ("tokens_per_day", limits.tokens_per_day as f64, spent.day as f64),
            ("tokens_per_month", limits.tokens_per_month as f64, spent.month as f64),
        ];
        let shares = used.into_iter().filter(|(_, limit, _)| *limit > 0.0);
        let shares = shares.map(|(name, limit, used)| (name, (used / limit).max(0.0)));
        (usage.concurrent, shares.max_by(|a, b| a.1.total_cmp(&b.1)))
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.account.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Metered {
    /// Takes the tokens of the request, at its end.
    pub(super) fn charge(&self, tokens: usize) {
        let per_minute = self.0.limits.tokens_per_minute as f64;
        self.0.usage().tokens.take(per_minute, tokens as f64);
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        self.0.usage().concurrent -= 1;
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

    fn begin(client: &Arc<Client>, at: Instant) -> Result<Metered, LimitReached> {
        client.begin(at, &Spent::default()).1
    }

    fn wait(refused: Result<Metered, LimitReached>) -> u32 {
        let LimitReached { error, .. } = refused.expect_err("refused");
        assert_eq!((error.status, error.code), (429, "rate_limit_exceeded"));
        error.retry_after_s.unwrap()
    }

    #[test]
    fn budgets_of_days_and_months_are_kept() {
        let entry = "{ name = \"a\", key = \"k\", tokens_per_day = 10, tokens_per_month = 100 }";
        let client = client(&Clients::new(&config(&[entry]), &Clients::default()), "k");
        let spent = |day, month| Spent {
            day,
            month,
            day_ends_in: Duration::from_secs(60),
            month_ends_in: Duration::from_secs(3600),
        };
        let refused = |spent: Spent| {
            client.begin(Instant::now(), &spent).1.err().map(|reached| {
                (reached.limit, reached.error.status, reached.error.code, reached.error.retry_after_s)
            })
        };
        assert_eq!(refused(spent(9, 99)), None);
        assert_eq!(refused(spent(10, 99)), Some(("tokens_per_day", 429, "insufficient_quota", Some(60))));
        assert_eq!(refused(spent(3, 100)), Some(("tokens_per_month", 429, "insufficient_quota", Some(3600))));
    }

    #[test]
    fn a_key_ends_and_opens_what_it_names() {
        let entry = "{ name = \"a\", key = \"k\", expires = \"1970-01-02\", routes = [\"/v1/models\"] }";
        let client = client(&Clients::new(&config(&[entry]), &Clients::default()), "k");
        let may = |path: &str, seconds| {
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            client.may(Route::of(path).unwrap(), now).map_err(|error| (error.status, error.code))
        };
        assert_eq!(may("/v1/models", 86_399), Ok(()));
        assert_eq!(may("/models", 0), Ok(()), "an alias is the same route");
        assert_eq!(may("/v1/messages", 0), Err((403, "route_not_allowed")));
        assert_eq!(may("/v1/models", 86_400), Err((401, "expired_api_key")));
    }

    #[test]
    fn changes_of_keys_are_named() {
        let before = Clients::new(
            &config(&["{ name = \"a\", key = \"1\" }", "{ name = \"b\", key = \"2\" }"]),
            &Clients::default(),
        );
        let after = Clients::new(
            &config(&["{ name = \"b\", key = \"3\" }", "{ name = \"c\", key = \"1\" }"]),
            &before,
        );
        let names = |names: &[&str]| names.iter().map(|name| Arc::from(*name)).collect::<Vec<Arc<str>>>();
        assert_eq!(after.changes(&before), [names(&["c"]), names(&["a"]), names(&["b"])]);
        assert_eq!(after.changes(&after), [vec![], vec![], vec![]]);
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
        let at = |seconds: f64| begin(&client, start + Duration::from_secs_f64(seconds));
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
        let at = |seconds: u64| begin(&client, start + Duration::from_secs(seconds));
        let (headers, first) = client.begin(start, &Spent::default());
        let first = first.unwrap();
        assert_eq!(headers[1], ("x-ratelimit-remaining-tokens", "600".into()));
        first.charge(900);
        drop(first);
        assert_eq!(wait(at(0)), 31, "300 tokens of debt at 10 a second, and one token");
        assert!(at(31).is_ok());
    }

    #[test]
    fn requests_at_once_are_given_back() {
        let clients = Clients::new(&config(&["{ key = \"k\", max_concurrent = 2 }"]), &Clients::default());
        let client = client(&clients, "k");
        let begin = || begin(&client, Instant::now());
        let (first, _second) = (begin().unwrap(), begin().unwrap());
        assert_eq!(wait(begin()), 1);
        drop(first);
        assert!(begin().is_ok());
    }

    #[test]
    fn a_reload_keeps_what_was_used() {
        let old = "{ name = \"a\", key = \"k\", requests_per_minute = 1 }";
        let before = Clients::new(&config(&[old, "x"]), &Clients::default());
        let running = begin(&client(&before, "k"), Instant::now()).unwrap();
        let new = "{ name = \"a\", key = \"other\", requests_per_minute = 1, max_concurrent = 1 }";
        let after = Clients::new(&config(&["y", new]), &before);
        let client = client(&after, "other");
        assert_eq!(client.share.map(|share| share.client), Some(0));
        assert!(begin(&client, Instant::now()).is_err());
        drop(running);
        assert!(begin(&client, Instant::now()).is_err(), "the minute is not over");
        assert!(after.find("k").is_none());
    }

    #[test]
    fn a_limit_that_a_reload_sets_counts_from_then_on() {
        let before = Clients::new(&config(&["{ name = \"a\", key = \"k\" }"]), &Clients::default());
        let start = Instant::now();
        for _ in 0..100 {
            begin(&client(&before, "k"), start).unwrap().charge(1_000_000);
        }
        let running = begin(&client(&before, "k"), start).unwrap();
        let limited = "{ name = \"a\", key = \"k\", requests_per_minute = 2, tokens_per_minute = 10 }";
        let after = Clients::new(&config(&[limited]), &before);
        let client = client(&after, "k");
        assert_eq!(client.begin(start, &Spent::default()).0[1].1, "1");
        // It began without a limit.
        running.charge(1_000_000);
        assert!(begin(&client, start).is_ok());
        assert_eq!(wait(begin(&client, start)), 30);
    }
}
