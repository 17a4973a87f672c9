//! vLLM's metric names, labels and buckets, where the meaning is the same: dashboards, autoscalers
//! and gateway routers read these.
//!
//! Source: vLLM `vllm/v1/metrics/loggers.py` (the Python client adds `_total` to names without it).
//! Labels are `model_name` and `engine`, which is always "0": a process has one engine.

use std::collections::HashMap;

use prometheus::{
    Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

use super::metrics::{DraftFigures, EngineInfo, FinishLabel, Load, Rejection, RequestFigures};
use super::native::{FinishCounters, register};

/// Seconds.
const TTFT_BUCKETS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
/// Seconds.
pub(super) const TOKEN_GAP_BUCKETS: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
/// Seconds.
const LATENCY_BUCKETS: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];
/// Tokens of one step.
const ITERATION_BUCKETS: &[f64] =
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];
/// Tokens of one request, in a 1-2-5 series. vLLM ends the series at the model's length, Perigee at
/// the longest of the family.
const REQUEST_TOKEN_BUCKETS: &[f64] =
    &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5];
const N_BUCKETS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];
const PREEMPTION_BUCKETS: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0];

/// Registered handles of vLLM's metrics.
pub(super) struct VllmMetrics {
    registry: Registry,
    model_name: String,
    running: IntGauge,
    waiting: IntGauge,
    waiting_capacity: IntGauge,
    kv_cache_usage: Gauge,
    pub(super) prefix_cache_queries: IntCounter,
    pub(super) prefix_cache_hits: IntCounter,
    pub(super) num_preemptions: IntCounter,
    prompt_tokens: IntCounter,
    prompt_tokens_computed: IntCounter,
    prompt_tokens_cache_hit: IntCounter,
    prompt_tokens_cached: IntCounter,
    generation_tokens: IntCounter,
    drafts: IntCounter,
    draft_tokens: IntCounter,
    accepted_tokens: IntCounter,
    accepted_per_position: IntCounterVec,
    request_success: FinishCounters,
    rejected_requests: IntCounter,
    rejected_tokens: IntCounter,
    pub(super) time_to_first_token: Histogram,
    pub(super) inter_token_latency: Histogram,
    time_per_output_token: Histogram,
    e2e_latency: Histogram,
    queue_time: Histogram,
    inference_time: Histogram,
    prefill_time: Histogram,
    decode_time: Histogram,
    iteration_tokens: Histogram,
    request_prompt_tokens: Histogram,
    request_generation_tokens: Histogram,
    request_max_generation_tokens: Histogram,
    request_prefill_computed_tokens: Histogram,
    request_preemptions: Histogram,
    pub(super) params_max_tokens: Histogram,
    pub(super) params_n: Histogram,
}

impl VllmMetrics {
    pub(super) fn new(registry: &Registry, model_name: &str) -> Self {
        let r = registry;
        let opts = |name: &str, help: &str| labelled(name, help, model_name);
        let gauge = |name: &str, help: &str| register(r, IntGauge::with_opts(opts(name, help)));
        let counter = |name: &str, help: &str| register(r, IntCounter::with_opts(opts(name, help)));
        let counters =
            |name: &str, help: &str, label: &str| register(r, IntCounterVec::new(opts(name, help), &[label]));
        let histogram = |name: &str, help: &str, buckets: &[f64]| {
            let opts = HistogramOpts { common_opts: opts(name, help), buckets: buckets.to_vec() };
            register(r, Histogram::with_opts(opts))
        };
        let waiting_by_reason = register(
            r,
            IntGaugeVec::new(
                opts("vllm:num_requests_waiting_by_reason", "Number of requests waiting, by reason."),
                &["reason"],
            ),
        );
        waiting_by_reason.with_label_values(&["deferred"]).set(0);
        let sleep = register(
            r,
            IntGaugeVec::new(
                opts("vllm:engine_sleep_state", "Sleep state of the engine; always awake."),
                &["sleep_state"],
            ),
        );
        for (state, value) in [("awake", 1), ("weights_offloaded", 0), ("discard_all", 0)] {
            sleep.with_label_values(&[state]).set(value);
        }
        let by_source = counters(
            "vllm:prompt_tokens_by_source_total",
            "Number of prompt tokens by where they came from.",
            "source",
        );
        let success = counters(
            "vllm:request_success_total",
            "Count of finished requests, by reason.",
            "finished_reason",
        );
        let rejections = register(
            r,
            IntCounterVec::new(
                Opts::new("vllm:admission_rejections_total", "Requests refused because the queue is full.")
                    .const_label("model_name", model_name),
                &["reason"],
            ),
        );
        Self {
            registry: registry.clone(),
            model_name: model_name.to_owned(),
            running: gauge("vllm:num_requests_running", "Number of requests in model execution batches."),
            waiting: gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed."),
            waiting_capacity: waiting_by_reason.with_label_values(&["capacity"]),
            kv_cache_usage: register(
                r,
                Gauge::with_opts(opts(
                    "vllm:kv_cache_usage_perc",
                    "KV-cache usage. 1 means 100 percent usage.",
                )),
            ),
            prefix_cache_queries: counter(
                "vllm:prefix_cache_queries_total",
                "Prefix cache queries, in terms of number of queried tokens.",
            ),
            prefix_cache_hits: counter(
                "vllm:prefix_cache_hits_total",
                "Prefix cache hits, in terms of number of cached tokens.",
            ),
            num_preemptions: counter("vllm:num_preemptions_total", "Cumulative number of preemptions."),
            prompt_tokens: counter("vllm:prompt_tokens_total", "Number of prefill tokens processed."),
            prompt_tokens_computed: by_source.with_label_values(&["local_compute"]),
            prompt_tokens_cache_hit: by_source.with_label_values(&["local_cache_hit"]),
            prompt_tokens_cached: counter(
                "vllm:prompt_tokens_cached_total",
                "Number of prompt tokens that were cached.",
            ),
            generation_tokens: counter(
                "vllm:generation_tokens_total",
                "Number of generation tokens processed.",
            ),
            drafts: counter("vllm:spec_decode_num_drafts_total", "Number of spec decoding drafts."),
            draft_tokens: counter("vllm:spec_decode_num_draft_tokens_total", "Number of draft tokens."),
            accepted_tokens: counter(
                "vllm:spec_decode_num_accepted_tokens_total",
                "Number of accepted tokens.",
            ),
            accepted_per_position: counters(
                "vllm:spec_decode_num_accepted_tokens_per_pos_total",
                "Accepted tokens per draft position.",
                "position",
            ),
            request_success: FinishCounters::new(&success),
            rejected_requests: rejections.with_label_values(&["max_num_queued_reqs"]),
            rejected_tokens: rejections.with_label_values(&["max_num_queued_tokens"]),
            time_to_first_token: histogram(
                "vllm:time_to_first_token_seconds",
                "Histogram of time to first token in seconds.",
                TTFT_BUCKETS,
            ),
            inter_token_latency: histogram(
                "vllm:inter_token_latency_seconds",
                "Histogram of inter-token latency in seconds.",
                TOKEN_GAP_BUCKETS,
            ),
            time_per_output_token: histogram(
                "vllm:request_time_per_output_token_seconds",
                "Histogram of time per output token of a request in seconds.",
                TOKEN_GAP_BUCKETS,
            ),
            e2e_latency: histogram(
                "vllm:e2e_request_latency_seconds",
                "Histogram of end to end request latency in seconds.",
                LATENCY_BUCKETS,
            ),
            queue_time: histogram(
                "vllm:request_queue_time_seconds",
                "Histogram of time spent in WAITING phase for request.",
                LATENCY_BUCKETS,
            ),
            inference_time: histogram(
                "vllm:request_inference_time_seconds",
                "Histogram of time spent in RUNNING phase for request.",
                LATENCY_BUCKETS,
            ),
            prefill_time: histogram(
                "vllm:request_prefill_time_seconds",
                "Histogram of time spent in PREFILL phase for request.",
                LATENCY_BUCKETS,
            ),
            decode_time: histogram(
                "vllm:request_decode_time_seconds",
                "Histogram of time spent in DECODE phase for request.",
                LATENCY_BUCKETS,
            ),
            iteration_tokens: histogram(
                "vllm:iteration_tokens_total",
                "Histogram of number of tokens per engine step.",
                ITERATION_BUCKETS,
            ),
            request_prompt_tokens: histogram(
                "vllm:request_prompt_tokens",
                "Number of prefill tokens processed.",
                REQUEST_TOKEN_BUCKETS,
            ),
            request_generation_tokens: histogram(
                "vllm:request_generation_tokens",
                "Number of generation tokens processed.",
                REQUEST_TOKEN_BUCKETS,
            ),
            request_max_generation_tokens: histogram(
                "vllm:request_max_num_generation_tokens",
                "Histogram of maximum number of requested generation tokens.",
                REQUEST_TOKEN_BUCKETS,
            ),
            request_prefill_computed_tokens: histogram(
                "vllm:request_prefill_kv_computed_tokens",
                "Histogram of new KV tokens computed during prefill, excluding cached tokens.",
                REQUEST_TOKEN_BUCKETS,
            ),
            request_preemptions: histogram(
                "vllm:request_num_preemptions",
                "Histogram of the number of preemptions of a request.",
                PREEMPTION_BUCKETS,
            ),
            params_max_tokens: histogram(
                "vllm:request_params_max_tokens",
                "Histogram of the max_tokens request parameter.",
                REQUEST_TOKEN_BUCKETS,
            ),
            params_n: histogram("vllm:request_params_n", "Histogram of the n request parameter.", N_BUCKETS),
        }
    }

    pub(super) fn set_load(&self, load: &Load) {
        self.running.set(load.running as i64);
        self.waiting.set(load.waiting as i64);
        self.waiting_capacity.set(load.waiting as i64);
        // As in vLLM, blocks held by the prefix cache alone count as free: they are freed on
        // demand.
        self.kv_cache_usage.set(load.cache_usage());
    }

    pub(super) fn add_tokens(&self, computed: usize, cached: usize, generation: usize) {
        let prompt = computed + cached;
        self.prompt_tokens.inc_by(prompt as u64);
        self.prompt_tokens_computed.inc_by(computed as u64);
        self.prompt_tokens_cache_hit.inc_by(cached as u64);
        self.prompt_tokens_cached.inc_by(cached as u64);
        self.generation_tokens.inc_by(generation as u64);
        // Each request computes one row fewer than its tokens: the last reply token is never
        // computed.
        self.iteration_tokens.observe((prompt + generation) as f64);
    }

    pub(super) fn record_draft(&self, figures: &DraftFigures) {
        self.drafts.inc();
        self.draft_tokens.inc_by(figures.drafted as u64);
        self.accepted_tokens.inc_by(figures.accepted as u64);
        for position in 0..figures.accepted {
            self.accepted_per_position.with_label_values(&[&position.to_string()]).inc();
        }
    }

    pub(super) fn record_rejection(&self, reason: Rejection) {
        match reason {
            Rejection::QueueRequests | Rejection::QueueShare => self.rejected_requests.inc(),
            Rejection::QueueTokens => self.rejected_tokens.inc(),
        }
    }

    pub(super) fn record_finished(&self, figures: &RequestFigures, reason: FinishLabel) {
        self.request_success.inc(reason);
        self.e2e_latency.observe(figures.e2e.as_secs_f64());
        if let Some(queue) = figures.queue {
            self.queue_time.observe(queue.as_secs_f64());
        }
        if let Some(prefill) = figures.prefill {
            self.prefill_time.observe(prefill.as_secs_f64());
        }
        if let Some(decode) = figures.decode {
            self.decode_time.observe(decode.as_secs_f64());
            self.inference_time.observe((decode + figures.prefill.unwrap_or_default()).as_secs_f64());
            if figures.generation_tokens > 1 {
                let gaps = (figures.generation_tokens - 1) as f64;
                self.time_per_output_token.observe(decode.as_secs_f64() / gaps);
            }
        }
        self.request_prompt_tokens.observe(figures.prompt_tokens as f64);
        self.request_generation_tokens.observe(figures.generation_tokens as f64);
        // vLLM takes the maximum over a request's replies; a sequence here is one reply.
        self.request_max_generation_tokens.observe(figures.generation_tokens as f64);
        let computed = figures.prompt_tokens.saturating_sub(figures.cached_tokens);
        self.request_prefill_computed_tokens.observe(computed as f64);
        self.request_preemptions.observe(figures.preemptions as f64);
    }

    /// Registers `vllm:cache_config_info`. Routers read the block size and the number of blocks
    /// from its labels. The label's name says "gpu" as in vLLM, wherever the blocks are. The
    /// concurrency is counted in sequences of the longest context.
    pub(super) fn set_cache_config(&self, info: &EngineInfo) {
        let size_tokens = info.num_blocks * info.block_size;
        let max_concurrency = size_tokens as f64 / info.max_model_len.max(1) as f64;
        let opts =
            labelled("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", &self.model_name)
                .const_label("block_size", info.block_size.to_string())
                .const_label("num_gpu_blocks", info.num_blocks.to_string())
                .const_label("kv_cache_size_tokens", size_tokens.to_string())
                .const_label("kv_cache_max_concurrency", format!("{max_concurrency:?}"))
                .const_label("cache_dtype", &info.cache_dtype)
                .const_label("enable_prefix_caching", if info.prefix_caching { "True" } else { "False" });
        let gauge = IntGauge::with_opts(opts).expect("constant metric names are valid");
        gauge.set(1);
        // A process has one engine, so a second call never happens; the first registration stays.
        let _ = self.registry.register(Box::new(gauge));
    }
}

/// Name, help text and vLLM's two labels.
pub(super) fn labelled(name: &str, help: &str, model_name: &str) -> Opts {
    let labels = HashMap::from([
        ("model_name".to_owned(), model_name.to_owned()),
        ("engine".to_owned(), "0".to_owned()),
    ]);
    Opts::new(name, help).const_labels(labels)
}
