//! Names that vLLM once had, for routers and dashboards that still ask for them; off unless `telemetry.vllm_legacy_names` is set.
//!
//! Source: vLLM before v1 (`vllm/engine/metrics.py`), as production-stack and AIBrix read them. Labels as in `vllm.rs`.

use prometheus::{Gauge, Histogram, HistogramOpts, IntCounter, Registry};

use super::metrics::Load;
use super::native::register;
use super::vllm::{TOKEN_GAP_BUCKETS, labelled};

/// Registered handles.
pub(super) struct LegacyMetrics {
    usage: Gauge,
    queries: IntCounter,
    hits: IntCounter,
    hit_rate: Gauge,
    pub(super) token_gap: Histogram,
}

impl LegacyMetrics {
    pub(super) fn new(registry: &Registry, model_name: &str) -> Self {
        let opts = |name: &str, help: &str| labelled(name, help, model_name);
        let gauge = |name: &str, help: &str| register(registry, Gauge::with_opts(opts(name, help)));
        let counter = |name: &str, help: &str| register(registry, IntCounter::with_opts(opts(name, help)));
        let gap = HistogramOpts {
            common_opts: opts(
                "vllm:time_per_output_token_seconds",
                "Old name of vllm:inter_token_latency_seconds.",
            ),
            buckets: TOKEN_GAP_BUCKETS.to_vec(),
        };
        Self {
            usage: gauge("vllm:gpu_cache_usage_perc", "Old name of vllm:kv_cache_usage_perc."),
            queries: counter(
                "vllm:gpu_prefix_cache_queries_total",
                "Old name of vllm:prefix_cache_queries_total.",
            ),
            hits: counter("vllm:gpu_prefix_cache_hits_total", "Old name of vllm:prefix_cache_hits_total."),
            hit_rate: gauge(
                "vllm:gpu_prefix_cache_hit_rate",
                "Hits of the prefix cache by queries, since the start.",
            ),
            token_gap: register(registry, Histogram::with_opts(gap)),
        }
    }

    pub(super) fn set_load(&self, load: &Load) {
        self.usage.set(load.cache_usage());
    }

    pub(super) fn record_prefix_lookup(&self, queried: u64, hits: u64) {
        self.queries.inc_by(queried);
        self.hits.inc_by(hits);
        self.hit_rate.set(self.hits.get() as f64 / self.queries.get().max(1) as f64);
    }
}
