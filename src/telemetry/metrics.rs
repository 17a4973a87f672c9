//! The registry and its recording methods.
//!
//! Every handle is resolved when [`Metrics`] is made: recording is a few atomic additions without a
//! lookup. Labelled lookups happen once per HTTP request and once per boot stage. There is no
//! global registry.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use prometheus::Registry;

use super::exemplars::Exemplars;
use super::exposition::Exposition;
use super::flight::FlightRecorder;
use super::kv_tiers::{KvLoss, KvTier, KvTierMetrics};
use super::legacy::LegacyMetrics;
use super::native::{HTTP_BUCKETS, NativeMetrics};
use super::vision::{ImageRefusal, VisionMetrics};
use super::vllm::VllmMetrics;

/// All metrics of the process in one registry, shared in an `Arc`.
pub struct Metrics {
    registry: Registry,
    native: NativeMetrics,
    vision: VisionMetrics,
    kv_tiers: KvTierMetrics,
    vllm: Option<VllmMetrics>,
    legacy: Option<LegacyMetrics>,
    made: Instant,
    /// Microseconds from `made` to the end of the last step, plus one; 0 = no step yet.
    last_step_us: AtomicU64,
    /// The same of the beginning of the turn under way; 0 = none.
    turn_began_us: AtomicU64,
    flight: FlightRecorder,
    exemplars: Exemplars,
    /// A turn of the engine that lasts longer is stuck; zero = none is.
    stuck_after: Duration,
}

/// Sums over all steps.
#[derive(Debug, Clone, PartialEq)]
pub struct StepSeconds {
    /// Number of steps.
    pub steps: u64,
    /// Parts of a step and their total seconds.
    pub parts: Vec<(&'static str, f64)>,
}

/// Time of each part of one engine step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Choosing the batch.
    pub schedule: Duration,
    /// The forward pass.
    pub forward: Duration,
    /// From logits to tokens.
    pub sample: Duration,
    /// Applying tokens to sequences and blocks.
    pub commit: Duration,
    /// Handing tokens to their streams.
    pub emit: Duration,
}

impl StepTimes {
    /// The whole step.
    pub fn total(&self) -> Duration {
        self.schedule + self.forward + self.sample + self.commit + self.emit
    }
}

/// Load of the engine at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Sequences in the queue.
    pub waiting: usize,
    /// Prompt tokens in the queue.
    pub waiting_tokens: usize,
    /// Sequences that run.
    pub running: usize,
    /// KV blocks held by sequences.
    pub used_blocks: usize,
    /// KV blocks held by the prefix cache alone, and freed when a sequence needs them.
    pub cached_blocks: usize,
    /// KV blocks of the cache, free ones included.
    pub total_blocks: usize,
}

impl Load {
    /// Share of the KV blocks that sequences hold, 0 to 1.
    pub(super) fn cache_usage(&self) -> f64 {
        self.used_blocks as f64 / self.total_blocks.max(1) as f64
    }
}

/// Figures of a sequence at its end. Times of stages that the sequence never reached are `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestFigures {
    /// From arrival to the end.
    pub e2e: Duration,
    /// From arrival to the sequence's first step.
    pub queue: Option<Duration>,
    /// From that step to the first reply token.
    pub prefill: Option<Duration>,
    /// From the first reply token to the last.
    pub decode: Option<Duration>,
    /// Prompt tokens.
    pub prompt_tokens: usize,
    /// Of these, taken from the prefix cache.
    pub cached_tokens: usize,
    /// Reply tokens.
    pub generation_tokens: usize,
    /// Times the sequence was preempted.
    pub preemptions: usize,
}

/// One finding of the guard; names come from closed sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuardFigures {
    /// Kind of the finding.
    pub kind: &'static str,
    /// Phase of the reply.
    pub phase: &'static str,
    /// Action taken.
    pub action: &'static str,
    /// Tokens of the unit, 0 = no unit.
    pub period: u32,
    /// Copies of the unit.
    pub copies: u32,
    /// Tokens discarded.
    pub discarded: u32,
}

/// A draft that was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftFigures {
    /// Drafted tokens.
    pub drafted: usize,
    /// The first of them, that became part of the reply.
    pub accepted: usize,
}

/// Reason why a sequence had no draft in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftSkip {
    /// With so many sequences in the step no draft could pay.
    Load,
    /// The guess was not likely enough for what its rows cost.
    Cost,
    /// The draft model failed, and was switched off.
    Fault,
}

/// Reason for a sequence's end, in the words of vLLM's `finished_reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishLabel {
    /// Stop token or stop string.
    Stop,
    /// `max_tokens` or the model's length.
    Length,
    /// Client disconnected, request cancelled, or deadline passed.
    Abort,
    /// The engine failed on the sequence.
    Error,
    /// Ended because the reply repeated itself.
    Repetition,
}

/// Reason for a refusal at the engine's door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejection {
    /// The queue holds its limit of requests.
    QueueRequests,
    /// The queue holds its limit of prompt tokens.
    QueueTokens,
    /// The queue holds the client's share of requests.
    QueueShare,
}

/// What the cache of compiled kernels did.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KernelFigures {
    /// Kernels found in memory.
    pub memory: u64,
    /// Kernels read from the cache directory.
    pub disk: u64,
    /// Kernels compiled because they were absent.
    pub compiled: u64,
    /// Kernels compiled because their entry was damaged.
    pub rebuilt: u64,
    /// Entries deleted to make room.
    pub evicted: u64,
    /// Time of all reads, added over threads.
    pub read_seconds: f64,
    /// Time of all compilations, added over threads.
    pub compile_seconds: f64,
}

/// Facts of the engine that are fixed at boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineInfo {
    /// Backend name.
    pub backend: String,
    /// Tokens per KV block.
    pub block_size: usize,
    /// KV blocks of the cache.
    pub num_blocks: usize,
    /// KV element type.
    pub cache_dtype: String,
    /// Whether prompts share cached prefixes.
    pub prefix_caching: bool,
    /// Most tokens of prompt and reply.
    pub max_model_len: usize,
}

impl Metrics {
    /// An empty registry. `model_name` is the value of the label of that name; `vllm_names` adds
    /// vLLM's metrics.
    pub fn new(model_name: &str, vllm_names: bool) -> Self {
        let registry = Registry::new();
        let native = NativeMetrics::new(&registry, model_name);
        let vllm = vllm_names.then(|| VllmMetrics::new(&registry, model_name));
        #[cfg(target_os = "linux")]
        registry
            .register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))
            .expect("process metrics are registered once");
        let vision = VisionMetrics::new(&registry);
        let kv_tiers = KvTierMetrics::new(&registry);
        Self {
            registry,
            native,
            vision,
            kv_tiers,
            vllm,
            legacy: None,
            made: Instant::now(),
            last_step_us: AtomicU64::new(0),
            turn_began_us: AtomicU64::new(0),
            flight: FlightRecorder::default(),
            exemplars: Exemplars::default(),
            stuck_after: Duration::ZERO,
        }
    }

    /// The same with the names that vLLM once had.
    pub fn with_legacy_names(mut self, model_name: &str) -> Self {
        self.legacy = Some(LegacyMetrics::new(&self.registry, model_name));
        self
    }

    /// The page of `/metrics`.
    pub fn render(&self, form: Exposition) -> String {
        self.native.heartbeat_age.set(self.seconds_since_last_step().unwrap_or(0.0));
        form.page(&self.registry.gather(), &self.exemplars)
    }

    /// Seconds since the engine's last step ended; `None` before the first.
    pub fn seconds_since_last_step(&self) -> Option<f64> {
        let last_us = self.last_step_us.load(Ordering::Relaxed).checked_sub(1)?;
        Some((self.made.elapsed().as_secs_f64() - last_us as f64 * 1e-6).max(0.0))
    }

    /// The last steps and requests.
    pub fn flight(&self) -> &FlightRecorder {
        &self.flight
    }

    /// The engine begins (`true`) or ends a turn, whatever it does in it.
    pub fn record_turn(&self, begins: bool) {
        let now = self.made.elapsed().as_micros() as u64 + 1;
        self.turn_began_us.store(if begins { now } else { 0 }, Ordering::Relaxed);
    }

    /// Seconds since the engine's turn began that is under way; `None` between two turns.
    pub fn seconds_in_turn(&self) -> Option<f64> {
        let began_us = self.turn_began_us.load(Ordering::Relaxed).checked_sub(1)?;
        Some((self.made.elapsed().as_secs_f64() - began_us as f64 * 1e-6).max(0.0))
    }

    /// Takes a turn that lasts longer for stuck; zero = none is.
    pub fn with_stuck_after(mut self, limit: Duration) -> Self {
        self.stuck_after = limit;
        self
    }

    /// Whether the engine's turn under way has lasted too long.
    pub fn is_stuck(&self) -> bool {
        let limit = self.stuck_after.as_secs_f64();
        limit > 0.0 && self.seconds_in_turn().is_some_and(|seconds| seconds > limit)
    }

    /// Records one step of the engine.
    pub fn record_step(&self, times: &StepTimes) {
        self.flight.end_step(times);
        self.native.record_step(times);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.native.last_step_timestamp.set(now.as_secs_f64());
        self.last_step_us.store(self.made.elapsed().as_micros() as u64 + 1, Ordering::Relaxed);
    }

    /// Number of steps so far and their total seconds, by part.
    pub fn step_seconds(&self) -> StepSeconds {
        self.native.step_seconds()
    }

    /// Adds the tokens of one step: prompt tokens computed, prompt tokens taken from the prefix
    /// cache, and reply tokens. Called once per step.
    pub fn add_tokens(&self, computed: usize, cached: usize, generation: usize) {
        self.native.add_tokens(computed + cached, generation);
        if let Some(vllm) = &self.vllm {
            vllm.add_tokens(computed, cached, generation);
        }
    }

    /// Sets the engine's load; called before the page is read, so that routers see the load of that moment.
    pub fn set_load(&self, load: &Load) {
        self.native.set_load(load);
        if let Some(vllm) = &self.vllm {
            vllm.set_load(load);
        }
        if let Some(legacy) = &self.legacy {
            legacy.set_load(load);
        }
    }

    /// Records the lookup of a prompt of `queried` tokens in the prefix cache, of which `hits` were
    /// found.
    pub fn record_prefix_lookup(&self, queried: usize, hits: usize) {
        self.native.prefix_hit_tokens.inc_by(hits as u64);
        self.native.prefix_query_tokens.inc_by(queried as u64);
        if let Some(vllm) = &self.vllm {
            vllm.prefix_cache_queries.inc_by(queried as u64);
            vllm.prefix_cache_hits.inc_by(hits as u64);
        }
        if let Some(legacy) = &self.legacy {
            legacy.record_prefix_lookup(queried as u64, hits as u64);
        }
    }

    /// Records a batch of images that the encoder has finished: their patches, the time it computed, and the time from first to last.
    pub fn record_encoded(&self, patches: usize, computed: Duration, waited: Duration) {
        self.vision.record_encoded(patches, computed, waited);
    }

    /// Records the images of a prompt, by where their embeddings come from.
    pub fn record_image_uses(&self, kept: usize, encoded: usize, prefix: usize) {
        self.vision.record_uses(kept, encoded, prefix);
    }

    /// Records an image that was decoded and cut to patches.
    pub fn record_preprocessed(&self, decode: Duration, preprocess: Duration) {
        self.vision.record_preprocessed(decode, preprocess);
    }

    /// Records a request refused for an image.
    pub fn record_image_refusal(&self, reason: ImageRefusal) {
        self.vision.record_refused(reason);
    }

    /// Records a preemption for lack of blocks.
    pub fn record_preemption(&self) {
        self.native.preemptions.inc();
        if let Some(vllm) = &self.vllm {
            vllm.num_preemptions.inc();
        }
    }

    /// Records a request refused at the door.
    pub fn record_rejection(&self, reason: Rejection) {
        self.native.record_rejection(reason);
        if let Some(vllm) = &self.vllm {
            vllm.record_rejection(reason);
        }
    }

    /// Records published KV events.
    pub fn record_kv_events(&self, events: usize) {
        self.native.kv_events.inc_by(events as u64);
    }

    /// Records a snapshot of the cache for subscribers: events were dropped, or none before was kept.
    pub fn record_kv_snapshot(&self) {
        self.native.kv_snapshots.inc();
    }

    /// Records a request with an unknown field.
    pub fn record_ignored_field(&self) {
        self.native.ignored_fields.inc();
    }

    /// Records the time from a sequence's arrival to its first reply token.
    pub fn record_first_token(&self, since_arrival: Duration) {
        let seconds = since_arrival.as_secs_f64();
        self.native.time_to_first_token.observe(seconds);
        if let Some(vllm) = &self.vllm {
            vllm.time_to_first_token.observe(seconds);
        }
    }

    /// Records the time between two reply tokens of one sequence.
    pub fn record_token_gap(&self, gap: Duration) {
        let seconds = gap.as_secs_f64();
        self.native.inter_token_latency.observe(seconds);
        if let Some(vllm) = &self.vllm {
            vllm.inter_token_latency.observe(seconds);
        }
        if let Some(legacy) = &self.legacy {
            legacy.token_gap.observe(seconds);
        }
    }

    /// Records the parameters of an accepted request: number of replies and their token limit.
    pub fn record_params(&self, n: usize, max_tokens: usize) {
        if let Some(vllm) = &self.vllm {
            vllm.params_n.observe(n as f64);
            vllm.params_max_tokens.observe(max_tokens as f64);
        }
    }

    /// Records a finding of the guard.
    pub fn record_guard_event(&self, figures: &GuardFigures) {
        self.native.record_guard_event(figures);
    }

    /// Records a draft.
    pub fn record_draft(&self, figures: &DraftFigures) {
        self.native.record_draft(figures);
        if let Some(vllm) = &self.vllm {
            vllm.record_draft(figures);
        }
    }

    /// Records sequences without a draft in a step.
    pub fn record_draft_skips(&self, reason: DraftSkip, sequences: usize) {
        self.native.record_draft_skips(reason, sequences);
    }

    /// Adds the estimated time that the drafts of a step saved; negative where they cost time.
    pub fn add_draft_seconds(&self, seconds: f64) {
        self.native.draft_seconds.add(seconds);
    }

    /// Records a token held back because it may belong to a loop.
    pub fn record_held_token(&self) {
        self.native.guard_held.inc();
    }

    /// Records a sequence that was rescued from a loop and then ended by itself.
    pub fn record_rescue_success(&self) {
        self.native.guard_rescue_success.inc();
    }

    /// Records a logit row that is not a distribution. `kind` is a name from a closed set.
    pub fn record_numeric_fault(&self, kind: &'static str) {
        self.native.record_numeric_fault(kind);
    }

    /// Records the end of a sequence.
    pub fn record_finished(&self, figures: &RequestFigures, reason: FinishLabel) {
        self.native.record_finished(reason);
        if let Some(vllm) = &self.vllm {
            vllm.record_finished(figures, reason);
        }
    }

    /// Sets the facts of the engine; called once at boot.
    pub fn set_engine_info(&self, info: &EngineInfo) {
        self.native.set_engine_info(info);
        if let Some(vllm) = &self.vllm {
            vllm.set_cache_config(info);
        }
    }

    /// Sets what a tier of KV blocks holds.
    pub fn set_kv_tier(&self, tier: KvTier, blocks: usize, bytes: u64) {
        self.kv_tiers.set(tier, blocks, bytes);
    }

    /// Records a block that came to a tier.
    pub fn record_kv_stored(&self, tier: KvTier) {
        self.kv_tiers.record_stored(tier);
    }

    /// Records a block that a prompt took from a tier.
    pub fn record_kv_loaded(&self, tier: KvTier) {
        self.kv_tiers.record_loaded(tier);
    }

    /// Records a block lost on its way to or from disk.
    pub fn record_kv_lost(&self, loss: KvLoss) {
        self.kv_tiers.record_lost(loss);
    }

    /// Records the bytes of weights that the boot loaded.
    pub fn set_weights_bytes(&self, bytes: u64) {
        self.native.set_weights_bytes(bytes);
    }

    /// Counts what the kernel cache did since the last call.
    pub fn add_kernels(&self, figures: &KernelFigures) {
        self.native.add_kernels(figures);
    }

    /// Records the duration of a boot stage. `stage` is a name from a closed set.
    pub fn record_boot_stage(&self, stage: &'static str, took: Duration) {
        self.native.boot_stage_seconds.with_label_values(&[stage]).set(took.as_secs_f64());
    }

    /// Sets the time from the start of the process to ready.
    pub fn set_boot_time(&self, took: Duration) {
        self.native.boot_seconds.set(took.as_secs_f64());
    }

    /// Sets whether requests are accepted and whether the server drains.
    pub fn set_phase(&self, ready: bool, draining: bool) {
        self.native.ready.set(i64::from(ready));
        self.native.draining.set(i64::from(draining));
    }

    /// Sets the Unix time at which the TLS certificate ends, in seconds; `None` where it does not say.
    pub fn set_certificate_end(&self, unix_s: Option<u64>) {
        self.native.certificate_end.set(unix_s.map_or(0, |seconds| seconds as i64));
    }

    /// Records a complete HTTP exchange. `route` is a name from a closed set, such as the path's
    /// pattern, never the raw path.
    pub fn record_http(&self, route: &'static str, status: u16, took: Duration) {
        self.native.record_http(route, status, took);
    }

    /// Notes the trace of a request with these times, which were recorded, for the page in OpenMetrics' form.
    pub fn note_trace(&self, route: &'static str, trace_id: u128, took: Duration, ttft: Option<Duration>) {
        let note = |series, time: Duration| {
            self.exemplars.note(series, HTTP_BUCKETS, trace_id, time.as_secs_f64());
        };
        note(("perigee_http_request_duration_seconds", route), took);
        if let Some(ttft) = ttft {
            note(("perigee_time_to_first_token_seconds", ""), ttft);
        }
    }

    /// Records the end of a client's request. `client` is a name from the settings.
    pub fn record_client(&self, client: &str, status: u16, prompt_tokens: usize, reply_tokens: usize) {
        self.native.record_client(client, status, prompt_tokens, reply_tokens);
    }

    /// Records spans that the collector of traces took, and such that were dropped.
    pub fn record_spans(&self, exported: usize, dropped: usize) {
        self.native.spans_exported.inc_by(exported as u64);
        self.native.spans_dropped.inc_by(dropped as u64);
    }

    /// Records the opening (`true`) or closing of a connection.
    pub fn record_connection(&self, opened: bool) {
        self.native.http_connections.add(if opened { 1 } else { -1 });
    }

    /// Records the beginning (`true`) or completion of a request.
    pub fn record_in_flight(&self, begun: bool) {
        self.native.http_in_flight.add(if begun { 1 } else { -1 });
    }

    /// Records a connection refused at the limit of open connections.
    pub fn record_refused_connection(&self) {
        self.native.http_refused_connections.inc();
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").field("vllm_names", &self.vllm.is_some()).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
