//! Perigee's own metrics, `perigee_*`: figures that vLLM's metrics lack or give too coarsely.

use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{
    CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

use super::metrics::{
    DraftFigures, DraftSkip, EngineInfo, FinishLabel, GuardFigures, KernelFigures, Load, Rejection,
    StepSeconds, StepTimes,
};

/// Seconds; from an empty schedule to a prefill on a slow machine.
const STEP_BUCKETS: &[f64] = &[
    0.000_01, 0.000_02, 0.000_05, 0.000_1, 0.000_2, 0.000_3, 0.000_5, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02,
    0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
];
/// Seconds; vLLM's finest edge of 10 ms cannot resolve streams above 100 tokens per second.
const TOKEN_GAP_BUCKETS: &[f64] = &[
    0.000_5, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2,
    0.3, 0.5, 1.0, 2.5, 5.0, 10.0,
];
/// Seconds.
pub(super) const HTTP_BUCKETS: &[f64] = &[
    0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0,
    300.0, 600.0,
];

/// Tokens.
const GUARD_PERIOD_BUCKETS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];
/// Copies.
const GUARD_COPIES_BUCKETS: &[f64] = &[2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0];

/// Tokens of a draft.
const DRAFT_BUCKETS: &[f64] = &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0];

/// Parts of a step, in order.
const STEP_PARTS: [&str; 5] = ["schedule", "forward", "sample", "commit", "emit"];

/// What became of a kernel that was asked for.
const KERNEL_OUTCOMES: [&str; 5] = ["memory", "disk", "compiled", "rebuilt", "evicted"];
/// What takes time in the kernel cache.
const KERNEL_WORK: [&str; 2] = ["read", "compile"];

/// Registered handles of Perigee's own metrics.
pub(super) struct NativeMetrics {
    step_total: Histogram,
    step_parts: [Histogram; 5],
    pub(super) last_step_timestamp: Gauge,
    pub(super) heartbeat_age: Gauge,
    prompt_tokens: IntCounter,
    generation_tokens: IntCounter,
    running: IntGauge,
    queue_requests: IntGauge,
    queue_tokens: IntGauge,
    blocks_used: IntGauge,
    blocks_cached: IntGauge,
    blocks_free: IntGauge,
    pub(super) prefix_query_tokens: IntCounter,
    pub(super) prefix_hit_tokens: IntCounter,
    pub(super) preemptions: IntCounter,
    pub(super) spans_exported: IntCounter,
    pub(super) spans_dropped: IntCounter,
    rejected_requests: IntCounter,
    rejected_tokens: IntCounter,
    rejected_share: IntCounter,
    pub(super) ignored_fields: IntCounter,
    pub(super) kv_events: IntCounter,
    pub(super) kv_snapshots: IntCounter,
    finished: FinishCounters,
    pub(super) time_to_first_token: Histogram,
    pub(super) inter_token_latency: Histogram,
    guard_events: IntCounterVec,
    guard_discarded: IntCounter,
    pub(super) guard_held: IntCounter,
    pub(super) guard_rescue_success: IntCounter,
    drafted_tokens: IntCounter,
    accepted_tokens: IntCounter,
    draft_length: Histogram,
    accepted_length: Histogram,
    draft_skips: [IntCounter; 3],
    pub(super) draft_seconds: Gauge,
    numeric_faults: IntCounterVec,
    guard_period: Histogram,
    guard_copies: Histogram,
    engine_info: IntGaugeVec,
    pub(super) boot_stage_seconds: GaugeVec,
    pub(super) boot_seconds: Gauge,
    boot_weights_bytes: IntGauge,
    kernels: IntCounterVec,
    kernel_seconds: CounterVec,
    pub(super) ready: IntGauge,
    pub(super) draining: IntGauge,
    client_requests: IntCounterVec,
    client_tokens: IntCounterVec,
    http_requests: IntCounterVec,
    http_duration: HistogramVec,
    pub(super) http_connections: IntGauge,
    pub(super) http_in_flight: IntGauge,
    pub(super) http_refused_connections: IntCounter,
    pub(super) certificate_end: IntGauge,
}

/// One counter per [`FinishLabel`].
pub(super) struct FinishCounters([IntCounter; 5]);

impl FinishCounters {
    /// Children of a counter whose last label is the reason. All start at 0, so that rates are
    /// defined from the first scrape.
    pub(super) fn new(family: &IntCounterVec) -> Self {
        Self(["stop", "length", "abort", "error", "repetition"].map(|r| family.with_label_values(&[r])))
    }

    pub(super) fn inc(&self, reason: FinishLabel) {
        let index = match reason {
            FinishLabel::Stop => 0,
            FinishLabel::Length => 1,
            FinishLabel::Abort => 2,
            FinishLabel::Error => 3,
            FinishLabel::Repetition => 4,
        };
        self.0[index].inc();
    }
}

/// Registers a metric. Names and labels are constants of this folder, so a failure is a mistake in
/// them.
pub(super) fn register<C: Collector + Clone + 'static>(
    registry: &Registry,
    metric: prometheus::Result<C>,
) -> C {
    let metric = metric.expect("constant metric names and buckets are valid");
    registry.register(Box::new(metric.clone())).expect("every metric is registered once");
    metric
}

impl NativeMetrics {
    pub(super) fn new(registry: &Registry, model_name: &str) -> Self {
        let r = registry;
        let counter = |name: &str, help: &str| register(r, IntCounter::new(name, help));
        let gauge = |name: &str, help: &str| register(r, IntGauge::new(name, help));
        let float_gauge = |name: &str, help: &str| register(r, Gauge::new(name, help));
        let histogram = |name: &str, help: &str, buckets: &[f64]| {
            register(r, Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec())))
        };
        let parts = register(
            r,
            HistogramVec::new(
                HistogramOpts::new("perigee_step_part_seconds", "Time of one part of an engine step.")
                    .buckets(STEP_BUCKETS.to_vec()),
                &["part"],
            ),
        );
        let blocks = register(
            r,
            IntGaugeVec::new(
                Opts::new(
                    "perigee_kv_blocks",
                    "KV blocks by state: used by sequences, held by the prefix cache alone, free.",
                ),
                &["state"],
            ),
        );
        let rejections = register(
            r,
            IntCounterVec::new(
                Opts::new(
                    "perigee_rejected_requests_total",
                    "Requests refused at the queue, by the limit they met.",
                ),
                &["limit"],
            ),
        );
        let spans = register(
            r,
            IntCounterVec::new(
                Opts::new(
                    "perigee_trace_spans_total",
                    "Spans of traces: exported = the collector took them, dropped = it did not in time.",
                ),
                &["outcome"],
            ),
        );
        let draft_skips = register(
            r,
            IntCounterVec::new(
                Opts::new(
                    "perigee_speculation_skips_total",
                    "Sequences without a draft in a step: load = with so many sequences none could pay, cost = the guess was not \
                     likely enough, fault = the draft model failed and was switched off.",
                ),
                &["reason"],
            ),
        );
        let finished = register(
            r,
            IntCounterVec::new(
                Opts::new("perigee_finished_sequences_total", "Sequences that ended, by reason."),
                &["reason"],
            ),
        );
        let build = register(
            r,
            IntGaugeVec::new(
                Opts::new("perigee_build_info", "Version of the program and the model it serves; always 1."),
                &["version", "model_name"],
            ),
        );
        let numeric_faults = register(
            r,
            IntCounterVec::new(
                Opts::new(
                    "perigee_guard_numeric_faults_total",
                    "Sequences ended because their logits were no numbers, by what they were.",
                ),
                &["kind"],
            ),
        );
        let kernels = register(
            r,
            IntCounterVec::new(
                Opts::new(
                    "perigee_kernel_cache_kernels_total",
                    "Kernels that the GPU backend asked for, by where they came from: memory, disk, compiled because they were \
                     absent, rebuilt because their entry was damaged. Evicted: entries deleted to make room.",
                ),
                &["outcome"],
            ),
        );
        KERNEL_OUTCOMES.iter().for_each(|outcome| drop(kernels.with_label_values(&[*outcome])));
        let kernel_seconds = register(
            r,
            CounterVec::new(
                Opts::new(
                    "perigee_kernel_cache_seconds_total",
                    "Time spent on kernels, added over threads: reading entries, compiling.",
                ),
                &["work"],
            ),
        );
        KERNEL_WORK.iter().for_each(|work| drop(kernel_seconds.with_label_values(&[*work])));
        // Present from 0, so that an alert on any increase works from the first fault.
        ["non_finite", "flat"].iter().for_each(|kind| drop(numeric_faults.with_label_values(&[*kind])));
        build.with_label_values(&[env!("CARGO_PKG_VERSION"), model_name]).set(1);
        Self {
            step_total: histogram("perigee_step_seconds", "Time of one engine step.", STEP_BUCKETS),
            step_parts: STEP_PARTS.map(|part| parts.with_label_values(&[part])),
            last_step_timestamp: float_gauge(
                "perigee_last_step_timestamp_seconds",
                "Unix time of the end of the engine's last step; 0 before the first.",
            ),
            heartbeat_age: float_gauge(
                "perigee_since_last_step_seconds",
                "Time since the engine's last step ended; large while nothing runs, alarming while something does.",
            ),
            prompt_tokens: counter(
                "perigee_prompt_tokens_total",
                "Prompt tokens processed, cached ones included.",
            ),
            generation_tokens: counter("perigee_generation_tokens_total", "Reply tokens generated."),
            running: gauge("perigee_running_sequences", "Sequences that run."),
            queue_requests: gauge("perigee_queue_sequences", "Sequences that wait."),
            queue_tokens: gauge("perigee_queue_tokens", "Prompt tokens that wait."),
            blocks_used: blocks.with_label_values(&["used"]),
            blocks_cached: blocks.with_label_values(&["cached"]),
            blocks_free: blocks.with_label_values(&["free"]),
            prefix_query_tokens: counter(
                "perigee_prefix_query_tokens_total",
                "Prompt tokens looked up in the prefix cache.",
            ),
            prefix_hit_tokens: counter(
                "perigee_prefix_hit_tokens_total",
                "Prompt tokens found in the prefix cache.",
            ),
            preemptions: counter(
                "perigee_preemptions_total",
                "Sequences put back into the queue for lack of blocks, or for a client with nothing running.",
            ),
            spans_exported: spans.with_label_values(&["exported"]),
            spans_dropped: spans.with_label_values(&["dropped"]),
            rejected_requests: rejections.with_label_values(&["max_queue_len"]),
            rejected_tokens: rejections.with_label_values(&["max_queue_tokens"]),
            rejected_share: rejections.with_label_values(&["queue_share"]),
            ignored_fields: counter(
                "perigee_ignored_fields_total",
                "Request fields with a name that nobody reads.",
            ),
            kv_events: counter("perigee_kv_events_total", "KV events published for routers."),
            kv_snapshots: counter(
                "perigee_kv_event_snapshots_total",
                "Snapshots of the cache published because events were dropped or are kept no more.",
            ),
            finished: FinishCounters::new(&finished),
            time_to_first_token: histogram(
                "perigee_time_to_first_token_seconds",
                "Time from a sequence's arrival to its first reply token.",
                HTTP_BUCKETS,
            ),
            inter_token_latency: histogram(
                "perigee_inter_token_latency_seconds",
                "Time between two reply tokens of one sequence.",
                TOKEN_GAP_BUCKETS,
            ),
            guard_events: register(
                r,
                IntCounterVec::new(
                    Opts::new(
                        "perigee_guard_events_total",
                        "Findings of the guard, by what was found, where in the reply, and what was done.",
                    ),
                    &["kind", "phase", "action"],
                ),
            ),
            guard_discarded: counter(
                "perigee_guard_discarded_tokens_total",
                "Reply tokens that were generated in a loop and never delivered.",
            ),
            guard_held: counter(
                "perigee_guard_held_tokens_total",
                "Reply tokens that did not leave at once, because they might have belonged to a loop.",
            ),
            guard_rescue_success: counter(
                "perigee_guard_rescue_success_total",
                "Sequences that were rescued from a loop and then ended by themselves.",
            ),
            drafted_tokens: counter(
                "perigee_speculation_drafted_tokens_total",
                "Drafted tokens that a step checked.",
            ),
            accepted_tokens: counter(
                "perigee_speculation_accepted_tokens_total",
                "Drafted tokens that became part of a reply.",
            ),
            draft_length: histogram(
                "perigee_speculation_draft_length_tokens",
                "Tokens of a draft.",
                DRAFT_BUCKETS,
            ),
            accepted_length: histogram(
                "perigee_speculation_accepted_length_tokens",
                "Tokens of a draft that became part of the reply.",
                DRAFT_BUCKETS,
            ),
            draft_skips: ["load", "cost", "fault"].map(|reason| draft_skips.with_label_values(&[reason])),
            draft_seconds: float_gauge(
                "perigee_speculation_seconds_saved",
                "Estimate of the engine's time that drafts saved since the start, from the measured cost of steps.",
            ),
            numeric_faults,
            guard_period: histogram(
                "perigee_guard_period_tokens",
                "Length of the unit that repeated, of every finding with one.",
                GUARD_PERIOD_BUCKETS,
            ),
            guard_copies: histogram(
                "perigee_guard_copies",
                "Copies of the unit when it was found.",
                GUARD_COPIES_BUCKETS,
            ),
            engine_info: register(
                r,
                IntGaugeVec::new(
                    Opts::new("perigee_engine_info", "Facts of the engine, fixed at boot; always 1."),
                    &[
                        "backend",
                        "block_size",
                        "num_blocks",
                        "cache_dtype",
                        "prefix_caching",
                        "max_model_len",
                    ],
                ),
            ),
            boot_stage_seconds: register(
                r,
                GaugeVec::new(
                    Opts::new("perigee_boot_stage_seconds", "Time of each stage of the last boot."),
                    &["stage"],
                ),
            ),
            boot_seconds: float_gauge("perigee_boot_seconds", "Time from the start of the process to ready."),
            boot_weights_bytes: gauge(
                "perigee_boot_weights_bytes",
                "Bytes of the checkpoint that the last boot loaded; by the time of its stage, the speed of loading.",
            ),
            kernels,
            kernel_seconds,
            ready: gauge("perigee_ready", "1 while requests are taken."),
            draining: gauge(
                "perigee_draining",
                "1 while the server ends: running requests go on, new ones are refused.",
            ),
            client_requests: register(
                r,
                IntCounterVec::new(
                    Opts::new(
                        "perigee_client_requests_total",
                        "Requests with a key, by the name of its client and status.",
                    ),
                    &["client", "status"],
                ),
            ),
            client_tokens: register(
                r,
                IntCounterVec::new(
                    Opts::new("perigee_client_tokens_total", "Tokens of prompts and replies by client."),
                    &["client", "kind"],
                ),
            ),
            http_requests: register(
                r,
                IntCounterVec::new(
                    Opts::new("perigee_http_requests_total", "HTTP requests answered, by route and status."),
                    &["route", "status"],
                ),
            ),
            http_duration: register(
                r,
                HistogramVec::new(
                    HistogramOpts::new(
                        "perigee_http_request_duration_seconds",
                        "Time from a request's head to the end of its response.",
                    )
                    .buckets(HTTP_BUCKETS.to_vec()),
                    &["route"],
                ),
            ),
            http_connections: gauge("perigee_http_connections", "Open connections."),
            http_in_flight: gauge("perigee_http_requests_in_flight", "HTTP requests begun and not complete."),
            http_refused_connections: counter(
                "perigee_http_refused_connections_total",
                "Connections refused because server.max_connections were open.",
            ),
            certificate_end: gauge(
                "perigee_tls_certificate_not_after_timestamp_seconds",
                "Unix time at which the TLS certificate ends; 0 without TLS.",
            ),
        }
    }

    pub(super) fn record_step(&self, times: &StepTimes) {
        self.step_total.observe(times.total().as_secs_f64());
        let parts = [times.schedule, times.forward, times.sample, times.commit, times.emit];
        for (histogram, time) in self.step_parts.iter().zip(parts) {
            histogram.observe(time.as_secs_f64());
        }
    }

    /// Number of steps so far and their total seconds, by part.
    pub(super) fn step_seconds(&self) -> StepSeconds {
        let names = STEP_PARTS.into_iter().zip(&self.step_parts);
        StepSeconds {
            steps: self.step_total.get_sample_count(),
            parts: names.map(|(name, histogram)| (name, histogram.get_sample_sum())).collect(),
        }
    }

    pub(super) fn add_tokens(&self, prompt: usize, generation: usize) {
        self.prompt_tokens.inc_by(prompt as u64);
        self.generation_tokens.inc_by(generation as u64);
    }

    pub(super) fn set_load(&self, load: &Load) {
        self.running.set(load.running as i64);
        self.queue_requests.set(load.waiting as i64);
        self.queue_tokens.set(load.waiting_tokens as i64);
        self.blocks_used.set(load.used_blocks as i64);
        self.blocks_cached.set(load.cached_blocks as i64);
        self.blocks_free.set(load.total_blocks.saturating_sub(load.used_blocks + load.cached_blocks) as i64);
    }

    pub(super) fn record_rejection(&self, reason: Rejection) {
        match reason {
            Rejection::QueueRequests => self.rejected_requests.inc(),
            Rejection::QueueTokens => self.rejected_tokens.inc(),
            Rejection::QueueShare => self.rejected_share.inc(),
        }
    }

    pub(super) fn record_guard_event(&self, figures: &GuardFigures) {
        self.guard_events.with_label_values(&[figures.kind, figures.phase, figures.action]).inc();
        self.guard_discarded.inc_by(figures.discarded.into());
        if figures.period > 0 {
            self.guard_period.observe(figures.period.into());
            self.guard_copies.observe(figures.copies.into());
        }
    }

    pub(super) fn record_draft(&self, figures: &DraftFigures) {
        self.drafted_tokens.inc_by(figures.drafted as u64);
        self.accepted_tokens.inc_by(figures.accepted as u64);
        self.draft_length.observe(figures.drafted as f64);
        self.accepted_length.observe(figures.accepted as f64);
    }

    pub(super) fn record_draft_skips(&self, reason: DraftSkip, sequences: usize) {
        let index = match reason {
            DraftSkip::Load => 0,
            DraftSkip::Cost => 1,
            DraftSkip::Fault => 2,
        };
        self.draft_skips[index].inc_by(sequences as u64);
    }

    pub(super) fn record_numeric_fault(&self, kind: &'static str) {
        self.numeric_faults.with_label_values(&[kind]).inc();
    }

    pub(super) fn record_finished(&self, reason: FinishLabel) {
        self.finished.inc(reason);
    }

    pub(super) fn set_engine_info(&self, info: &EngineInfo) {
        self.engine_info
            .with_label_values(&[
                &info.backend,
                &info.block_size.to_string(),
                &info.num_blocks.to_string(),
                &info.cache_dtype,
                &info.prefix_caching.to_string(),
                &info.max_model_len.to_string(),
            ])
            .set(1);
    }

    pub(super) fn set_weights_bytes(&self, bytes: u64) {
        self.boot_weights_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    pub(super) fn add_kernels(&self, figures: &KernelFigures) {
        let KernelFigures { memory, disk, compiled, rebuilt, evicted, .. } = *figures;
        for (outcome, count) in KERNEL_OUTCOMES.iter().zip([memory, disk, compiled, rebuilt, evicted]) {
            self.kernels.with_label_values(&[*outcome]).inc_by(count);
        }
        for (work, seconds) in KERNEL_WORK.iter().zip([figures.read_seconds, figures.compile_seconds]) {
            self.kernel_seconds.with_label_values(&[*work]).inc_by(seconds);
        }
    }

    pub(super) fn record_client(&self, client: &str, status: u16, prompt: usize, reply: usize) {
        self.client_requests.with_label_values(&[client, &status.to_string()]).inc();
        for (kind, tokens) in [("prompt", prompt), ("reply", reply)] {
            if tokens > 0 {
                self.client_tokens.with_label_values(&[client, kind]).inc_by(tokens as u64);
            }
        }
    }

    pub(super) fn record_http(&self, route: &'static str, status: u16, took: Duration) {
        self.http_requests.with_label_values(&[route, &status.to_string()]).inc();
        self.http_duration.with_label_values(&[route]).observe(took.as_secs_f64());
    }
}
