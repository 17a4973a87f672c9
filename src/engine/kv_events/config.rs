//! Settings of KV events.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whom the server tells what its prefix cache holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Address that subscribers connect to, such as "tcp://0.0.0.0:5557"; empty = off. Whoever can connect reads the token ids of all prompts
    /// that are cached: keep it inside of the cluster.
    pub endpoint: String,
    /// Address at which subscribers ask for what they missed, such as "tcp://0.0.0.0:5558"; empty = none.
    pub replay_endpoint: String,
    /// Name of this server in the topic kv@POD_ID@MODEL; most routers go by the address instead.
    pub pod_id: String,
    /// Most batches that are kept for replay, from the last snapshot on. Larger: more memory, longer absences that a subscriber
    /// survives without a snapshot.
    pub kept_batches: usize,
    /// Form of an event: map (vLLM since June 2026, Dynamo, llm-d), or array for AIBrix, which reads nothing else.
    pub shape: Shape,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            endpoint: String::new(),
            replay_endpoint: String::new(),
            pod_id: "perigee".into(),
            kept_batches: 10_000,
            shape: Shape::Map,
        }
    }
}

/// Form of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// Fields by name.
    Map,
    /// Fields by place, the kind first.
    Array,
}

impl Config {
    /// Whether events are published.
    pub fn is_on(&self) -> bool {
        !self.endpoint.is_empty()
    }

    /// Problems as (key, limit).
    pub fn validate(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        let is_address = |address: &str| {
            address
                .strip_prefix("tcp://")
                .and_then(|rest| rest.rsplit_once(':'))
                .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        for (key, address) in [("endpoint", &self.endpoint), ("replay_endpoint", &self.replay_endpoint)] {
            if !address.is_empty() && !is_address(address) {
                problems.push((key, "must be tcp://ADDRESS:PORT, or empty".into()));
            }
        }
        if !self.replay_endpoint.is_empty() && self.endpoint.is_empty() {
            problems.push(("replay_endpoint", "needs kv_events.endpoint".into()));
        }
        if self.pod_id.is_empty() || self.pod_id.contains('@') {
            problems.push(("pod_id", "must be a name without @".into()));
        }
        if !(1..=1_000_000).contains(&self.kept_batches) {
            problems.push(("kept_batches", "must be from 1 to 1000000".into()));
        }
        problems
    }
}
