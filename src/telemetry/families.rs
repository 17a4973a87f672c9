//! The table of metric families: every name that a scrape can have, with help, kind, labels and
//! buckets.
//!
//! A row belongs to a [`Metric`], the figure that is recorded. Rows of `aliases` show a figure again
//! under a name of vLLM, with that name's buckets and label values. Order of the rows has no
//! meaning: a page is sorted by name.
//!
//! Source of vLLM's names, labels and buckets: `vllm/v1/metrics/loggers.py` (the Python client adds
//! `_total` to names without it). Of the legacy names: `vllm/engine/metrics.py` before v1, as
//! production-stack and AIBrix read them.

use Kind::{Counter, Gauge, Histogram};

/// Type of a family.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Counter,
    Gauge,
    /// Upper bounds of the buckets.
    Histogram(&'static [f64]),
}

/// Families that are registered together and share constant labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Names {
    /// Perigee's own, without constant labels.
    Perigee,
    /// vLLM's, where the meaning is the same, with its labels `model_name` and `engine`.
    Vllm,
    /// vLLM's of the process in front of its engines: without `engine`.
    VllmFrontend,
    /// Names that vLLM once had, off unless `telemetry.vllm_legacy_names` is set.
    Legacy,
}

/// Labels with their values. Series of one label with listed values begin at 0, so that rates are
/// defined from the first scrape; others begin when they are recorded.
pub(super) type Labels = &'static [(&'static str, &'static [&'static str])];

/// One family.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) names: Names,
    pub(super) metric: Metric,
    pub(super) kind: Kind,
    pub(super) name: &'static str,
    pub(super) labels: Labels,
    pub(super) help: &'static str,
}

/// Rows are `metric: kind, name, labels, help;`. Blocks of `metrics` define the variants of
/// [`Metric`], blocks of `aliases` refer to them.
macro_rules! families {
    (
        $(metrics $names:ident {
            $($metric:ident: $kind:expr, $name:literal, $labels:expr, $help:literal;)*
        })*
        $(aliases $alias_names:ident {
            $($source:ident: $alias_kind:expr, $alias:literal, $alias_labels:expr, $alias_help:literal;)*
        })*
    ) => {
        /// A figure that is recorded.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Metric {
            $($($metric,)*)*
        }

        /// All families.
        pub(super) const FAMILIES: &[Family] = &[
            $($(Family {
                names: Names::$names, metric: Metric::$metric, kind: $kind,
                name: $name, labels: $labels, help: $help,
            },)*)*
            $($(Family {
                names: Names::$alias_names, metric: Metric::$source, kind: $alias_kind,
                name: $alias, labels: $alias_labels, help: $alias_help,
            },)*)*
        ];
    };
}

/// Parts of a step, in order.
pub(super) const STEP_PARTS: &[&str] = &["schedule", "forward", "sample", "commit", "emit"];
/// Order of `FinishLabel`.
const FINISH_REASONS: &[&str] = &["stop", "length", "abort", "error", "repetition"];
/// What became of the arguments of a call.
pub(super) const ARGUMENTS: &[&str] = &["sound", "mended", "invalid", "cut"];
/// Order of `KvTier`.
const TIERS: &[&str] = &["host", "disk"];

/// Seconds; from an empty schedule to a prefill on a slow machine.
const STEP: &[f64] = &[
    0.000_01, 0.000_02, 0.000_05, 0.000_1, 0.000_2, 0.000_3, 0.000_5, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02,
    0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
];
/// Seconds; vLLM's finest edge of 10 ms cannot resolve streams above 100 tokens per second.
const TOKEN_GAP: &[f64] = &[
    0.000_5, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2,
    0.3, 0.5, 1.0, 2.5, 5.0, 10.0,
];
/// Seconds to a client's first token: fewer buckets than of all clients, since each has them.
const CLIENT_FIRST_TOKEN: &[f64] = &[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Seconds.
pub(super) const HTTP: &[f64] = &[
    0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0,
    300.0, 600.0,
];
/// Seconds; from a small image to a large one on a few cores.
const VISION: &[f64] = &[
    0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0,
    300.0,
];
/// Tokens.
const GUARD_PERIOD: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];
/// Copies.
const GUARD_COPIES: &[f64] = &[2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0];
/// Tokens of a draft.
const DRAFT: &[f64] = &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0];

/// Seconds.
const VLLM_FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
/// Seconds.
const VLLM_TOKEN_GAP: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
/// Seconds.
const VLLM_LATENCY: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];
/// Tokens of one step.
const VLLM_ITERATION: &[f64] =
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];
/// Tokens of one request, in a 1-2-5 series. vLLM ends the series at the model's length, Perigee at
/// the longest of the family.
const VLLM_TOKENS: &[f64] =
    &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5];
const VLLM_N: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];
const VLLM_PREEMPTIONS: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0];

families! {
metrics Perigee {
    BuildInfo: Gauge, "perigee_build_info", &[("version", &[]), ("model_name", &[])],
        "Version of the program and the model it serves; always 1.";
    EngineInfo: Gauge, "perigee_engine_info",
        &[("backend", &[]), ("block_size", &[]), ("num_blocks", &[]), ("cache_dtype", &[]),
          ("prefix_caching", &[]), ("max_model_len", &[])],
        "Facts of the engine, fixed at boot; always 1.";
    Ready: Gauge, "perigee_ready", &[], "1 while requests are taken.";
    Draining: Gauge, "perigee_draining", &[],
        "1 while the server ends: running requests go on, new ones are refused.";
    BootStage: Gauge, "perigee_boot_stage_seconds", &[("stage", &[])], "Time of each stage of the last boot.";
    Boot: Gauge, "perigee_boot_seconds", &[], "Time from the start of the process to ready.";
    BootWeights: Gauge, "perigee_boot_weights_bytes", &[],
        "Bytes of the checkpoint that the last boot loaded; by the time of its stage, the speed of loading.";

    Step: Histogram(STEP), "perigee_step_seconds", &[], "Time of one engine step.";
    StepPart: Histogram(STEP), "perigee_step_part_seconds", &[("part", STEP_PARTS)],
        "Time of one part of an engine step.";
    LastStep: Gauge, "perigee_last_step_timestamp_seconds", &[],
        "Unix time of the end of the engine's last step; 0 before the first.";
    SinceLastStep: Gauge, "perigee_since_last_step_seconds", &[],
        "Time since the engine's last step ended; large while nothing runs, alarming while something does.";
    PromptTokens: Counter, "perigee_prompt_tokens_total", &[], "Prompt tokens processed, cached ones included.";
    ReplyTokens: Counter, "perigee_generation_tokens_total", &[], "Reply tokens generated.";
    Running: Gauge, "perigee_running_sequences", &[], "Sequences that run.";
    Waiting: Gauge, "perigee_queue_sequences", &[], "Sequences that wait.";
    WaitingTokens: Gauge, "perigee_queue_tokens", &[], "Prompt tokens that wait.";
    Blocks: Gauge, "perigee_kv_blocks", &[("state", &["used", "cached", "free"])],
        "KV blocks by state: used by sequences, held by the prefix cache alone, free.";
    PrefixQueries: Counter, "perigee_prefix_query_tokens_total", &[],
        "Prompt tokens looked up in the prefix cache.";
    PrefixHits: Counter, "perigee_prefix_hit_tokens_total", &[], "Prompt tokens found in the prefix cache.";
    Preemptions: Counter, "perigee_preemptions_total", &[("reason", &["blocks", "fairness"])],
        "Sequences put back into the queue, by reason: for lack of KV blocks, or for a client with nothing running.";
    Rejections: Counter, "perigee_rejected_requests_total",
        &[("limit", &["max_queue_len", "max_queue_tokens", "queue_share"])],
        "Requests refused at the queue, by the limit they met.";
    Finished: Counter, "perigee_finished_sequences_total", &[("reason", FINISH_REASONS)],
        "Sequences that ended, by reason.";
    FirstToken: Histogram(HTTP), "perigee_time_to_first_token_seconds", &[],
        "Time from a sequence's arrival to its first reply token.";
    TokenGap: Histogram(TOKEN_GAP), "perigee_inter_token_latency_seconds", &[],
        "Time between two reply tokens of one sequence.";

    DraftedTokens: Counter, "perigee_speculation_drafted_tokens_total", &[],
        "Drafted tokens that a step checked.";
    AcceptedTokens: Counter, "perigee_speculation_accepted_tokens_total", &[],
        "Drafted tokens that became part of a reply.";
    DraftLength: Histogram(DRAFT), "perigee_speculation_draft_length_tokens", &[], "Tokens of a draft.";
    AcceptedLength: Histogram(DRAFT), "perigee_speculation_accepted_length_tokens", &[],
        "Tokens of a draft that became part of the reply.";
    DraftSkips: Counter, "perigee_speculation_skips_total", &[("reason", &["load", "cost", "fault"])],
        "Sequences without a draft in a step: load = with so many sequences none could pay, cost = the guess was not \
         likely enough, fault = the draft model failed and was switched off.";
    DraftSaved: Gauge, "perigee_speculation_seconds_saved", &[],
        "Estimate of the engine's time that drafts saved since the start, from the measured cost of steps.";

    GuardEvents: Counter, "perigee_guard_events_total", &[("kind", &[]), ("phase", &[]), ("action", &[])],
        "Findings of the guard, by what was found, where in the reply, and what was done.";
    GuardDiscarded: Counter, "perigee_guard_discarded_tokens_total", &[],
        "Reply tokens that were generated in a loop and never delivered.";
    GuardHeld: Counter, "perigee_guard_held_tokens_total", &[],
        "Reply tokens that did not leave at once, because they might have belonged to a loop.";
    GuardRescues: Counter, "perigee_guard_rescue_success_total", &[],
        "Sequences that were rescued from a loop and then ended by themselves.";
    GuardPeriod: Histogram(GUARD_PERIOD), "perigee_guard_period_tokens", &[],
        "Length of the unit that repeated, of every finding with one.";
    GuardCopies: Histogram(GUARD_COPIES), "perigee_guard_copies", &[], "Copies of the unit when it was found.";
    NumericFaults: Counter, "perigee_guard_numeric_faults_total", &[("kind", &["non_finite", "flat"])],
        "Sequences ended because their logits were no numbers, by what they were.";

    KvTierBlocks: Gauge, "perigee_kv_tier_blocks", &[("tier", TIERS)], "KV blocks beyond the device, by tier.";
    KvTierBytes: Gauge, "perigee_kv_tier_bytes", &[("tier", TIERS)],
        "Bytes of KV blocks beyond the device, by tier.";
    KvTierStored: Counter, "perigee_kv_tier_stored_blocks_total", &[("tier", TIERS)],
        "KV blocks that came to a tier.";
    KvTierLoaded: Counter, "perigee_kv_tier_loaded_blocks_total", &[("tier", TIERS)],
        "KV blocks that prompts took from a tier: host = into the cache, disk = into host memory.";
    KvTierLost: Counter, "perigee_kv_tier_lost_blocks_total", &[("reason", &["queue", "write", "file"])],
        "Blocks lost on their way to or from disk: queue = the disk was slower than evictions, write = it refused, \
         file = the file was damaged.";
    KvEvents: Counter, "perigee_kv_events_total", &[], "KV events published for routers.";
    KvSnapshots: Counter, "perigee_kv_event_snapshots_total", &[],
        "Snapshots of the cache published because events were dropped or are kept no more.";

    Images: Counter, "perigee_vision_images_total", &[("source", &["encoder", "kept", "prefix"])],
        "Images of prompts, by where their embeddings came from: the encoder, rows kept of an earlier image, a cached \
         prefix.";
    Patches: Counter, "perigee_vision_patches_total", &[], "Patches that went through the encoder.";
    Encoder: Histogram(VISION), "perigee_vision_encoder_seconds", &[],
        "Time that the encoder computed for the images of one batch.";
    EncoderWait: Histogram(VISION), "perigee_vision_encoder_wait_seconds", &[],
        "Time from the start of a batch of images to its end, steps of the model between its parts included.";
    ImageDecode: Histogram(VISION), "perigee_vision_decode_seconds", &[], "Time to decode one image.";
    ImagePreprocess: Histogram(VISION), "perigee_vision_preprocess_seconds", &[],
        "Time to resize one image and cut it to patches.";
    RefusedImages: Counter, "perigee_vision_refused_images_total",
        &[("reason", &["source", "format", "limit", "remote", "timeout"])],
        "Requests refused for an image, by reason.";

    Kernels: Counter, "perigee_kernel_cache_kernels_total",
        &[("outcome", &["memory", "disk", "compiled", "rebuilt", "evicted"])],
        "Kernels that the GPU backend asked for, by where they came from: memory, disk, compiled because they were \
         absent, rebuilt because their entry was damaged. Evicted: entries deleted to make room.";
    KernelSeconds: Counter, "perigee_kernel_cache_seconds_total", &[("work", &["read", "compile"])],
        "Time spent on kernels, added over threads: reading entries, compiling.";

    RankExchange: Counter, "perigee_rank_exchange_seconds_total", &[("rank", &[])],
        "Time that a rank's GPU spent in exchanges with the others, waits for them included. The rank that the others wait \
         for has least.";
    RankSlowness: Gauge, "perigee_rank_slowness_ratio", &[("rank", &[])],
        "Time of the last 100 steps or more less that in exchanges, by the median of the other ranks'. Above 1.3 the others wait \
         for the rank.";

    GpuInfo: Gauge, "perigee_gpu_info", &[("rank", &[]), ("name", &[]), ("pci_bus_id", &[])],
        "GPU of a rank; always 1. No perigee_gpu_ family has a series for a figure that the driver does not tell.";
    GpuUtilization: Gauge, "perigee_gpu_utilization_ratio", &[("rank", &[])],
        "Share of the last fraction of a second in which a kernel ran.";
    GpuMemoryUsed: Gauge, "perigee_gpu_memory_used_bytes", &[("rank", &[])],
        "Memory of the GPU that all processes and the driver use.";
    GpuMemory: Gauge, "perigee_gpu_memory_bytes", &[("rank", &[])], "Memory of the GPU.";
    GpuPower: Gauge, "perigee_gpu_power_watts", &[("rank", &[])], "Power that the GPU draws.";
    GpuPowerLimit: Gauge, "perigee_gpu_power_limit_watts", &[("rank", &[])], "Power limit in force.";
    GpuSmClock: Gauge, "perigee_gpu_sm_clock_hertz", &[("rank", &[])], "Clock of the multiprocessors.";
    GpuMaxSmClock: Gauge, "perigee_gpu_max_sm_clock_hertz", &[("rank", &[])],
        "Highest clock of the multiprocessors.";
    GpuTemperature: Gauge, "perigee_gpu_temperature_celsius", &[("rank", &[])], "Temperature of the chip.";
    GpuThrottled: Gauge, "perigee_gpu_throttled", &[("rank", &[]), ("reason", &[])],
        "1 while the reason keeps the clock below the highest: power_cap, thermal and hw_thermal, hw_slowdown, power_brake, \
         sync_boost, application_clocks, display_clocks.";
    GpuPcieGeneration: Gauge, "perigee_gpu_pcie_generation", &[("rank", &[])],
        "Generation of the PCIe link; a GPU without work lowers it.";
    GpuMaxPcieGeneration: Gauge, "perigee_gpu_max_pcie_generation", &[("rank", &[])],
        "Highest generation of the PCIe link that GPU and slot have.";
    GpuPcieLanes: Gauge, "perigee_gpu_pcie_lanes", &[("rank", &[])], "Lanes of the PCIe link.";
    GpuMaxPcieLanes: Gauge, "perigee_gpu_max_pcie_lanes", &[("rank", &[])],
        "Most lanes of the PCIe link that GPU and slot have.";
    GpuUncorrectedErrors: Counter, "perigee_gpu_ecc_uncorrected_errors_total", &[("rank", &[])],
        "Memory errors that could not be corrected, since the driver was loaded.";
    GpuXids: Counter, "perigee_gpu_xid_errors_total", &[("rank", &[]), ("xid", &[])],
        "Critical errors that the driver reported since the server was ready, by NVIDIA's number.";

    HttpRequests: Counter, "perigee_http_requests_total", &[("route", &[]), ("status", &[])],
        "HTTP requests answered, by route and status. Route page: the built-in page asked for its own figures.";
    HttpDuration: Histogram(HTTP), "perigee_http_request_duration_seconds", &[("route", &[])],
        "Time from a request's head to the end of its response.";
    HttpConnections: Gauge, "perigee_http_connections", &[], "Open connections.";
    HttpInFlight: Gauge, "perigee_http_requests_in_flight", &[], "HTTP requests begun and not complete.";
    HttpRefused: Counter, "perigee_http_refused_connections_total", &[],
        "Connections refused because server.max_connections were open.";
    ClientRequests: Counter, "perigee_client_requests_total", &[("client", &[]), ("status", &[])],
        "Requests with a key, by the name of its client and status.";
    ClientTokens: Counter, "perigee_client_tokens_total", &[("client", &[]), ("kind", &[])],
        "Tokens by client and kind: prompt (cached and image among them) and reply (reasoning among them).";
    ClientFirstToken: Histogram(CLIENT_FIRST_TOKEN), "perigee_client_time_to_first_token_seconds", &[("client", &[])],
        "Time from a request to its first token, by client; of more than 64 clients the later ones are together as `other`.";
    ClientLimited: Counter, "perigee_client_limited_total", &[("client", &[]), ("limit", &[])],
        "Requests answered 429 for a limit of their key, by client and the limit's name in server.api_keys.";
    SloRequests: Counter, "perigee_slo_requests_total", &[("slo", &[]), ("met", &[])],
        "Requests of the model by objective of `slo` and whether it was met: ttft, token, request; good = every one, and no error of the server's.";
    SloThreshold: Gauge, "perigee_slo_threshold_seconds", &[("slo", &[])], "Objectives of `slo`.";
    UsageFailures: Counter, "perigee_usage_write_failures_total", &[],
        "Writes of the usage ledger that failed; the lines wait.";
    UsageLost: Counter, "perigee_usage_lost_lines_total", &[],
        "Lines of the usage ledger lost, because too many waited for a disk that failed.";
    ToolCalls: Counter, "perigee_tool_calls_total", &[("arguments", ARGUMENTS)],
        "Tool calls of replies, by their arguments: an object of JSON as the model wrote it, a mended one, none, or cut by a limit.";
    IgnoredFields: Counter, "perigee_ignored_fields_total", &[], "Request fields with a name that nobody reads.";
    Spans: Counter, "perigee_trace_spans_total", &[("outcome", &["exported", "dropped"])],
        "Spans of traces: exported = the collector took them, dropped = it did not in time.";
    Reloaded: Gauge, "perigee_settings_reload_timestamp_seconds", &[],
        "Unix time at which settings were last read anew and put in force; 0 = never since the start.";
    CertificateEnd: Gauge, "perigee_tls_certificate_not_after_timestamp_seconds", &[],
        "Unix time at which the TLS certificate ends; 0 without TLS.";
}
metrics Vllm {
    CacheUsage: Gauge, "vllm:kv_cache_usage_perc", &[], "KV-cache usage. 1 means 100 percent usage.";
    SleepState: Gauge, "vllm:engine_sleep_state",
        &[("sleep_state", &["awake", "weights_offloaded", "discard_all"])],
        "Sleep state of the engine; always awake.";
    CacheConfig: Gauge, "vllm:cache_config_info",
        &[("block_size", &[]), ("num_gpu_blocks", &[]), ("kv_cache_size_tokens", &[]),
          ("kv_cache_max_concurrency", &[]), ("cache_dtype", &[]), ("enable_prefix_caching", &[])],
        "Information of the LLMEngine CacheConfig";
    PromptTokensBySource: Counter, "vllm:prompt_tokens_by_source_total",
        &[("source", &["local_compute", "local_cache_hit"])],
        "Number of prompt tokens by where they came from.";
    PromptTokensCached: Counter, "vllm:prompt_tokens_cached_total", &[],
        "Number of prompt tokens that were cached.";
    Drafts: Counter, "vllm:spec_decode_num_drafts_total", &[], "Number of spec decoding drafts.";
    AcceptedPerPosition: Counter, "vllm:spec_decode_num_accepted_tokens_per_pos_total", &[("position", &[])],
        "Accepted tokens per draft position.";
    TimePerToken: Histogram(VLLM_TOKEN_GAP), "vllm:request_time_per_output_token_seconds", &[],
        "Histogram of time per output token of a request in seconds.";
    RequestTime: Histogram(VLLM_LATENCY), "vllm:e2e_request_latency_seconds", &[],
        "Histogram of end to end request latency in seconds.";
    QueueTime: Histogram(VLLM_LATENCY), "vllm:request_queue_time_seconds", &[],
        "Histogram of time spent in WAITING phase for request.";
    InferenceTime: Histogram(VLLM_LATENCY), "vllm:request_inference_time_seconds", &[],
        "Histogram of time spent in RUNNING phase for request.";
    PrefillTime: Histogram(VLLM_LATENCY), "vllm:request_prefill_time_seconds", &[],
        "Histogram of time spent in PREFILL phase for request.";
    DecodeTime: Histogram(VLLM_LATENCY), "vllm:request_decode_time_seconds", &[],
        "Histogram of time spent in DECODE phase for request.";
    StepTokens: Histogram(VLLM_ITERATION), "vllm:iteration_tokens_total", &[],
        "Histogram of number of tokens per engine step.";
    RequestPromptTokens: Histogram(VLLM_TOKENS), "vllm:request_prompt_tokens", &[],
        "Number of prefill tokens processed.";
    RequestReplyTokens: Histogram(VLLM_TOKENS), "vllm:request_generation_tokens", &[],
        "Number of generation tokens processed.";
    RequestComputedTokens: Histogram(VLLM_TOKENS), "vllm:request_prefill_kv_computed_tokens", &[],
        "Histogram of new KV tokens computed during prefill, excluding cached tokens.";
    RequestPreemptions: Histogram(VLLM_PREEMPTIONS), "vllm:request_num_preemptions", &[],
        "Histogram of the number of preemptions of a request.";
    ParamsMaxTokens: Histogram(VLLM_TOKENS), "vllm:request_params_max_tokens", &[],
        "Histogram of the max_tokens request parameter.";
    ParamsN: Histogram(VLLM_N), "vllm:request_params_n", &[], "Histogram of the n request parameter.";
}
metrics Legacy {
    PrefixHitRate: Gauge, "vllm:gpu_prefix_cache_hit_rate", &[],
        "Hits of the prefix cache by queries, since the start.";
}
aliases Vllm {
    Running: Gauge, "vllm:num_requests_running", &[], "Number of requests in model execution batches.";
    Waiting: Gauge, "vllm:num_requests_waiting", &[], "Number of requests waiting to be processed.";
    Waiting: Gauge, "vllm:num_requests_waiting_by_reason", &[("reason", &["capacity", "deferred"])],
        "Number of requests waiting, by reason.";
    PrefixQueries: Counter, "vllm:prefix_cache_queries_total", &[],
        "Prefix cache queries, in terms of number of queried tokens.";
    PrefixHits: Counter, "vllm:prefix_cache_hits_total", &[],
        "Prefix cache hits, in terms of number of cached tokens.";
    Preemptions: Counter, "vllm:num_preemptions_total", &[], "Cumulative number of preemptions.";
    PromptTokens: Counter, "vllm:prompt_tokens_total", &[], "Number of prefill tokens processed.";
    ReplyTokens: Counter, "vllm:generation_tokens_total", &[], "Number of generation tokens processed.";
    DraftedTokens: Counter, "vllm:spec_decode_num_draft_tokens_total", &[], "Number of draft tokens.";
    AcceptedTokens: Counter, "vllm:spec_decode_num_accepted_tokens_total", &[], "Number of accepted tokens.";
    Finished: Counter, "vllm:request_success_total", &[("finished_reason", FINISH_REASONS)],
        "Count of finished requests, by reason.";
    FirstToken: Histogram(VLLM_FIRST_TOKEN), "vllm:time_to_first_token_seconds", &[],
        "Histogram of time to first token in seconds.";
    TokenGap: Histogram(VLLM_TOKEN_GAP), "vllm:inter_token_latency_seconds", &[],
        "Histogram of inter-token latency in seconds.";
    RequestReplyTokens: Histogram(VLLM_TOKENS), "vllm:request_max_num_generation_tokens", &[],
        "Histogram of maximum number of requested generation tokens.";
}
aliases VllmFrontend {
    Rejections: Counter, "vllm:admission_rejections_total",
        &[("reason", &["max_num_queued_reqs", "max_num_queued_tokens", "max_num_queued_reqs"])],
        "Requests refused because the queue is full.";
}
aliases Legacy {
    CacheUsage: Gauge, "vllm:gpu_cache_usage_perc", &[], "Old name of vllm:kv_cache_usage_perc.";
    PrefixQueries: Counter, "vllm:gpu_prefix_cache_queries_total", &[],
        "Old name of vllm:prefix_cache_queries_total.";
    PrefixHits: Counter, "vllm:gpu_prefix_cache_hits_total", &[], "Old name of vllm:prefix_cache_hits_total.";
    TokenGap: Histogram(VLLM_TOKEN_GAP), "vllm:time_per_output_token_seconds", &[],
        "Old name of vllm:inter_token_latency_seconds.";
}
}
