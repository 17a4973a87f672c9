//! What is observed, and how it is written.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Logs and metrics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Form of the log on stderr: text for people, json (one object per line) for collectors. The
    /// container image sets json.
    pub log_format: LogFormat,
    /// Least severe level that is logged (error, warn, info, debug, trace), or several directives such as
    /// "info,perigee::engine=debug"; RUST_LOG sets the same. More detail costs log volume and, from debug on, time per step.
    pub log_level: String,
    /// Colours in the text log: auto = on a terminal; a NO_COLOR in the environment means never.
    pub log_color: LogColor,
    /// Whether /metrics also carries vLLM's metric names, for dashboards and routers made for it. Costs about 400 more
    /// lines per scrape.
    pub vllm_names: bool,
    /// Whether /metrics also carries names that vLLM once had (vllm:gpu_cache_usage_perc, vllm:gpu_prefix_cache_*,
    /// vllm:time_per_output_token_seconds), for production-stack, AIBrix and old dashboards. Costs about 30 more lines per scrape.
    pub vllm_legacy_names: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            log_format: LogFormat::Text,
            log_level: "info".into(),
            log_color: LogColor::Auto,
            vllm_names: true,
            vllm_legacy_names: false,
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
        super::logs::parse_filter(&self.log_level)
            .err()
            .map(|e| ("log_level", e.to_string()))
            .into_iter()
            .collect()
    }
}
