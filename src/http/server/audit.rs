//! The audit log, of the target `perigee::audit`: who did what to the server, which keys changed, and whose were refused.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::HeaderMap;
use hyper::header;

use super::clients::Clients;
use super::network::{Network, forwarded_for};
use crate::api::ApiError;

/// Most lines of refused keys a minute: strangers must not fill the log.
const MAX_REFUSALS: u32 = 60;
const MINUTE: Duration = Duration::from_secs(60);
/// Most characters of a user agent that are kept.
const MAX_AGENT_CHARS: usize = 128;

/// Where a request came from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Source {
    /// The other end of the connection; `None` = a Unix socket.
    pub(super) peer: Option<IpAddr>,
    /// The client's address, where `peer` is a proxy that is trusted to tell.
    pub(super) forwarded_for: Option<IpAddr>,
    /// `User-Agent`, cut.
    pub(super) agent: Option<String>,
}

/// Lines of refused keys, which are bounded.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<Minute>);

#[derive(Debug, Default)]
struct Minute {
    began: Option<Instant>,
    lines: u32,
    /// Refusals without a line since the last one.
    unsaid: u64,
}

impl Source {
    pub(super) fn of(headers: &HeaderMap, peer: Option<IpAddr>, trusted: &[Network]) -> Self {
        let lines = headers.get_all("x-forwarded-for").iter().collect::<Vec<_>>();
        let lines = lines.iter().filter_map(|line| line.to_str().ok());
        let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
        Self {
            peer: peer.map(|address| address.to_canonical()),
            forwarded_for: forwarded_for(peer, lines, trusted),
            agent: agent.map(|agent| agent.chars().take(MAX_AGENT_CHARS).collect()),
        }
    }

    /// The other end of the connection, as logs name it.
    pub(super) fn peer_name(&self) -> String {
        self.peer.map_or_else(|| "unix".into(), |address| address.to_string())
    }

    fn forwarded_name(&self) -> Option<String> {
        self.forwarded_for.map(|address| address.to_string())
    }
}

impl Refusals {
    /// How many refusals had no line since the last one; `None`: this one gets none either.
    fn pass(&self, now: Instant) -> Option<u64> {
        let mut minute = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if minute.began.is_none_or(|began| now.duration_since(began) >= MINUTE) {
            (minute.began, minute.lines) = (Some(now), 0);
        }
        if minute.lines == MAX_REFUSALS {
            minute.unsaid += 1;
            return None;
        }
        minute.lines += 1;
        Some(std::mem::take(&mut minute.unsaid))
    }

    /// Logs a key that did not open a route.
    pub(super) fn log(&self, source: &Source, id: &str, client: Option<&str>, route: &str, error: &ApiError) {
        let Some(unsaid) = self.pass(Instant::now()) else { return };
        tracing::warn!(
            target: "perigee::audit",
            id,
            client,
            route,
            status = error.status,
            reason = error.code,
            peer = source.peer_name(),
            forwarded_for = source.forwarded_name(),
            agent = source.agent,
            refused_without_a_line = Some(unsaid).filter(|unsaid| *unsaid > 0),
            "key refused"
        );
    }
}

/// Logs what the operator did.
pub(super) fn operator_did(source: &Source, id: &str, route: &str, status: u16) {
    tracing::info!(
        target: "perigee::audit",
        id,
        route,
        status,
        peer = source.peer_name(),
        forwarded_for = source.forwarded_name(),
        agent = source.agent,
        "operator's request"
    );
}

/// Logs the clients whose keys or limits a reload has changed.
pub(super) fn keys_changed(before: &Clients, after: &Clients) {
    let words = ["key added", "key removed", "key or limits changed"];
    for (word, names) in words.into_iter().zip(after.changes(before)) {
        for client in names {
            tracing::info!(target: "perigee::audit", client = &*client, "{word}");
        }
    }
    if before.admin_differs(after) {
        tracing::info!(target: "perigee::audit", "admin key changed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_a_bound_and_are_counted() {
        let (refusals, begun) = (Refusals::default(), Instant::now());
        let said = (0..100).filter_map(|_| refusals.pass(begun)).collect::<Vec<_>>();
        assert_eq!(said, vec![0; 60]);
        assert_eq!(refusals.pass(begun + MINUTE), Some(40));
        assert_eq!(refusals.pass(begun + MINUTE), Some(0));
    }

    #[test]
    fn a_source_is_what_the_connection_and_its_proxies_say() {
        let mut headers = HeaderMap::new();
        headers.append("x-forwarded-for", "198.51.100.1".parse().unwrap());
        headers.append("user-agent", "a".repeat(500).parse().unwrap());
        let source = Source::of(&headers, "::ffff:10.0.0.1".parse().ok(), &[]);
        assert_eq!((&*source.peer_name(), source.forwarded_for), ("10.0.0.1", None));
        assert_eq!(source.agent.map(|agent| agent.len()), Some(MAX_AGENT_CHARS));
        let source = Source::of(&headers, None, &[Network::Unix]);
        assert_eq!(
            (&*source.peer_name(), source.forwarded_name().as_deref()),
            ("unix", Some("198.51.100.1"))
        );
    }
}
