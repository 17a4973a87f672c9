//! What is observed, and how it is written.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Logs, metrics and traces.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Form of the log on stderr: text for people, json (one object per line) for collectors. The
    /// container image sets json.
    pub log_format: LogFormat,
    /// Least severe level that is logged (error, warn, info, debug, trace), or several directives such as
    /// "info,perigee_engine=debug"; RUST_LOG sets the same. More detail costs log volume and, from debug on, time per step.
    pub log_level: String,
    /// Colours in the text log: auto = on a terminal; a NO_COLOR in the environment means never.
    pub log_color: LogColor,
    /// Whether /metrics also carries vLLM's metric names, for dashboards and routers made for it. Costs about 400 more
    /// lines per scrape.
    pub vllm_names: bool,
    /// Whether /metrics also carries names that vLLM once had (vllm:gpu_cache_usage_perc, vllm:gpu_prefix_cache_*,
    /// vllm:time_per_output_token_seconds), for production-stack, AIBrix and old dashboards. Costs about 30 more lines per scrape.
    pub vllm_legacy_names: bool,
    /// OpenTelemetry collector that takes traces of requests, such as "http://collector:4318": OTLP over HTTP, in JSON. Spans hold
    /// times, counts and names, and no text of a prompt or a reply. Empty = no traces.
    pub otlp_endpoint: String,
    /// Share of the traces that begin here which are exported, 0 to 1; what a caller's traceparent header says of its own goes
    /// before it. More costs the collector's room.
    pub trace_sample_ratio: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            log_format: LogFormat::Text,
            log_level: "info".into(),
            log_color: LogColor::Auto,
            vllm_names: true,
            vllm_legacy_names: false,
            otlp_endpoint: String::new(),
            trace_sample_ratio: 1.0,
        }
    }
}

/// Form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One readable line per event.
    Text,
    /// One JSON object per event.
    Json,
}

/// Colours of the text log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogColor {
    /// On a terminal.
    Auto,
    /// Even into a pipe.
    Always,
    /// Never.
    Never,
}

impl Config {
    /// Problems as (key, limit).
    pub fn validate(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        if let Err(error) = super::logs::parse_filter(&self.log_level) {
            problems.push(("log_level", error.to_string()));
        }
        if !(0.0..=1.0).contains(&self.trace_sample_ratio) {
            problems.push(("trace_sample_ratio", "must be from 0 to 1".into()));
        }
        problems
    }
}
