//! What the page shows of the load: the history of the metrics, and each client's share of its limits.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use serde::Serialize;

use super::super::clients::Clients;
use super::super::ledger::Ledger;
use super::super::shared::Shared;
use perigee_telemetry::HistoryReport;

/// Most clients that are listed, those with most to see.
const MAX_CLIENTS: usize = 50;

/// The body of `/page/load`.
#[derive(Debug, Serialize)]
pub(in super::super) struct Load {
    #[serde(flatten)]
    history: HistoryReport,
    /// Number of all clients.
    num_clients: usize,
    clients: Vec<ClientLoad>,
}

/// A client at this moment.
#[derive(Debug, Serialize)]
struct ClientLoad {
    name: String,
    /// Requests that run.
    running: u32,
    /// The limit of which most is used; absent without limits.
    limit: Option<&'static str>,
    /// Share of that limit, 0 to 1, and above where a long reply has overdrawn it.
    used: Option<f32>,
}

impl Load {
    /// The history from sample `from` on, and the clients at this moment.
    pub(in super::super) fn of(shared: &Shared, from: u64) -> Self {
        shared.refresh_load();
        let metrics = &shared.metrics;
        let clients = shared.clients();
        Self {
            history: metrics.history(metrics.age(), from),
            num_clients: clients.all().count(),
            clients: busiest(&clients, shared.ledger.get()),
        }
    }

    pub(in super::super) fn json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and names are JSON")
    }
}

fn busiest(clients: &Clients, ledger: Option<&Arc<Ledger>>) -> Vec<ClientLoad> {
    let mut loads: Vec<ClientLoad> = clients
        .all()
        .map(|client| {
            let ledger = ledger.filter(|_| client.has_budget());
            let spent =
                ledger.map(|ledger| ledger.spent(client.name(), SystemTime::now())).unwrap_or_default();
            let (running, limit) = client.load(Instant::now(), &spent);
            ClientLoad {
                name: client.name().to_owned(),
                running,
                limit: limit.map(|(name, _)| name),
                used: limit.map(|(_, used)| used as f32),
            }
        })
        .collect();
    let rank = |load: &ClientLoad| (load.running, load.used.unwrap_or(0.0));
    loads.sort_by(|a, b| {
        let ((a_running, a_used), (b_running, b_used)) = (rank(a), rank(b));
        b_running.cmp(&a_running).then(b_used.total_cmp(&a_used))
    });
    loads.truncate(MAX_CLIENTS);
    loads
}
