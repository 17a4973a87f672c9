//! The registry and what can be recorded in it.
//!
//! Every handle is resolved when [`Metrics`] is made: recording is a few atomic additions without a lookup. The only
//! labelled lookups are once per HTTP request and once per boot stage. There is no global registry.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use prometheus::{Encoder, Registry, TextEncoder};

use super::native::NativeMetrics;
use super::vllm::VllmMetrics;

/// Content type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Everything that is measured, in one registry. Share it in an `Arc`.
pub struct Metrics {
    registry: Registry,
    native: NativeMetrics,
    vllm: Option<VllmMetrics>,
    made: Instant,
    /// Microseconds from `made` to the end of the last step, plus one; 0 = no step yet.
    last_step_us: AtomicU64,
}

/// Sums over all steps.
#[derive(Debug, Clone, PartialEq)]
pub struct StepSeconds {
    /// Steps.
    pub steps: u64,
    /// Parts of a step and the seconds they took in all.
    pub parts: Vec<(&'static str, f64)>,
}

/// Time of each part of one engine step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Deciding what to compute.
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
    /// Sequences running.
    pub running: usize,
    /// KV blocks held by sequences.
    pub used_blocks: usize,
    /// KV blocks that only the prefix cache holds: given up when a sequence needs them.
    pub cached_blocks: usize,
    /// All KV blocks.
    pub total_blocks: usize,
}

/// What is known about a sequence when it ends. Times it never reached are `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestFigures {
    /// From arrival to the end.
    pub e2e: Duration,
    /// From arrival to the first step it took part in.
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
    /// Times it was put back into the queue.
    pub preemptions: usize,
}

/// One finding of the guard; names are from closed sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuardFigures {
    /// What was found.
    pub kind: &'static str,
    /// Where in the reply.
    pub phase: &'static str,
    /// What was done.
    pub action: &'static str,
    /// Tokens of the unit, 0 = there is none.
    pub period: u32,
    /// Copies of it.
    pub copies: u32,
    /// Tokens thrown away.
    pub discarded: u32,
}

/// Why a sequence ended, in the words of vLLM's `finished_reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishLabel {
    /// Stop token or stop string.
    Stop,
    /// `max_tokens` or the model's length.
    Length,
    /// Client gone, cancelled, or deadline.
    Abort,
    /// The engine failed on it.
    Error,
    /// Ended for repeating itself.
    Repetition,
}

/// Why a request was refused at the engine's door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejection {
    /// As many requests wait as may.
    QueueRequests,
    /// As many prompt tokens wait as may.
    QueueTokens,
}

/// Facts of the engine that are fixed at boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineInfo {
    /// Backend name.
    pub backend: String,
    /// Tokens per KV block.
    pub block_size: usize,
    /// KV blocks.
    pub num_blocks: usize,
    /// KV element type.
    pub cache_dtype: String,
    /// Whether prompts share cached prefixes.
    pub prefix_caching: bool,
    /// Most tokens of prompt and reply.
    pub max_model_len: usize,
}

impl Metrics {
    /// An empty registry. `model_name` is the value of that label; `vllm_names` adds vLLM's names.
    pub fn new(model_name: &str, vllm_names: bool) -> Self {
        let registry = Registry::new();
        let native = NativeMetrics::new(&registry, model_name);
        let vllm = vllm_names.then(|| VllmMetrics::new(&registry, model_name));
        #[cfg(target_os = "linux")]
        registry
            .register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))
            .expect("process metrics are registered once");
        Self { registry, native, vllm, made: Instant::now(), last_step_us: AtomicU64::new(0) }
    }

    /// The page of `/metrics`, in the text format of [`CONTENT_TYPE`].
    pub fn render(&self) -> String {
        self.native.heartbeat_age.set(self.seconds_since_last_step().unwrap_or(0.0));
        let mut page = Vec::with_capacity(64 << 10);
        TextEncoder::new()
            .encode(&self.registry.gather(), &mut page)
            .expect("writing to memory does not fail and every metric has a name and samples");
        String::from_utf8(page).expect("the encoder writes text")
    }

    /// Seconds since the engine's last step ended, `None` before the first.
    pub fn seconds_since_last_step(&self) -> Option<f64> {
        let last_us = self.last_step_us.load(Ordering::Relaxed).checked_sub(1)?;
        Some((self.made.elapsed().as_secs_f64() - last_us as f64 * 1e-6).max(0.0))
    }

    /// One step of the engine.
    pub fn record_step(&self, times: &StepTimes) {
        self.native.record_step(times);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.native.last_step_timestamp.set(now.as_secs_f64());
        self.last_step_us.store(self.made.elapsed().as_micros() as u64 + 1, Ordering::Relaxed);
    }

    /// Steps so far and the seconds they spent, by part.
    pub fn step_seconds(&self) -> StepSeconds {
        self.native.step_seconds()
    }

    /// Tokens of one step: prompt tokens that were computed, prompt tokens that were taken from the
    /// prefix cache, and reply tokens. Once per step.
    pub fn add_tokens(&self, computed: usize, cached: usize, generation: usize) {
        self.native.add_tokens(computed + cached, generation);
        if let Some(vllm) = &self.vllm {
            vllm.add_tokens(computed, cached, generation);
        }
    }

    /// The engine's load, after every step and whenever the queue changes.
    pub fn set_load(&self, load: &Load) {
        self.native.set_load(load);
        if let Some(vllm) = &self.vllm {
            vllm.set_load(load);
        }
    }

    /// A prompt of `queried` tokens was looked up in the prefix cache, `hits` of them were there.
    pub fn record_prefix_lookup(&self, queried: usize, hits: usize) {
        self.native.prefix_hit_tokens.inc_by(hits as u64);
        self.native.prefix_query_tokens.inc_by(queried as u64);
        if let Some(vllm) = &self.vllm {
            vllm.prefix_cache_queries.inc_by(queried as u64);
            vllm.prefix_cache_hits.inc_by(hits as u64);
        }
    }

    /// A sequence was put back into the queue for lack of blocks.
    pub fn record_preemption(&self) {
        self.native.preemptions.inc();
        if let Some(vllm) = &self.vllm {
            vllm.num_preemptions.inc();
        }
    }

    /// A request was refused at the door.
    pub fn record_rejection(&self, reason: Rejection) {
        self.native.record_rejection(reason);
        if let Some(vllm) = &self.vllm {
            vllm.record_rejection(reason);
        }
    }

    /// A request had a field that nobody reads.
    pub fn record_ignored_field(&self) {
        self.native.ignored_fields.inc();
    }

    /// The first reply token of a sequence, counted from its arrival.
    pub fn record_first_token(&self, since_arrival: Duration) {
        let seconds = since_arrival.as_secs_f64();
        self.native.time_to_first_token.observe(seconds);
        if let Some(vllm) = &self.vllm {
            vllm.time_to_first_token.observe(seconds);
        }
    }

    /// The time between two reply tokens of one sequence.
    pub fn record_token_gap(&self, gap: Duration) {
        let seconds = gap.as_secs_f64();
        self.native.inter_token_latency.observe(seconds);
        if let Some(vllm) = &self.vllm {
            vllm.inter_token_latency.observe(seconds);
        }
    }

    /// What an accepted request asked for: number of replies and their longest length.
    pub fn record_params(&self, n: usize, max_tokens: usize) {
        if let Some(vllm) = &self.vllm {
            vllm.params_n.observe(n as f64);
            vllm.params_max_tokens.observe(max_tokens as f64);
        }
    }

    /// The guard found something in a reply.
    pub fn record_guard_event(&self, figures: &GuardFigures) {
        self.native.record_guard_event(figures);
    }

    /// A token did not leave at once, because it may belong to a loop.
    pub fn record_held_token(&self) {
        self.native.guard_held.inc();
    }

    /// A sequence that had been rescued from a loop ended by itself.
    pub fn record_rescue_success(&self) {
        self.native.guard_rescue_success.inc();
    }

    /// A row of logits was no distribution. `kind` is a name from a closed set.
    pub fn record_numeric_fault(&self, kind: &'static str) {
        self.native.record_numeric_fault(kind);
    }

    /// A sequence ended.
    pub fn record_finished(&self, figures: &RequestFigures, reason: FinishLabel) {
        self.native.record_finished(reason);
        if let Some(vllm) = &self.vllm {
            vllm.record_finished(figures, reason);
        }
    }

    /// Facts of the engine, once at boot.
    pub fn set_engine_info(&self, info: &EngineInfo) {
        self.native.set_engine_info(info);
        if let Some(vllm) = &self.vllm {
            vllm.set_cache_config(info);
        }
    }

    /// A boot stage took this long. `stage` is a name from a closed set.
    pub fn record_boot_stage(&self, stage: &'static str, took: Duration) {
        self.native.boot_stage_seconds.with_label_values(&[stage]).set(took.as_secs_f64());
    }

    /// From the start of the process to ready.
    pub fn set_boot_time(&self, took: Duration) {
        self.native.boot_seconds.set(took.as_secs_f64());
    }

    /// Whether requests are taken, and whether the server drains.
    pub fn set_phase(&self, ready: bool, draining: bool) {
        self.native.ready.set(i64::from(ready));
        self.native.draining.set(i64::from(draining));
    }

    /// An HTTP exchange is complete. `route` is a name from a closed set, such as the path's pattern, never the raw path.
    pub fn record_http(&self, route: &'static str, status: u16, took: Duration) {
        self.native.record_http(route, status, took);
    }

    /// A connection was opened (`true`) or closed.
    pub fn record_connection(&self, opened: bool) {
        self.native.http_connections.add(if opened { 1 } else { -1 });
    }

    /// A request was begun (`true`) or is complete.
    pub fn record_in_flight(&self, begun: bool) {
        self.native.http_in_flight.add(if begun { 1 } else { -1 });
    }

    /// A connection was refused because as many were open as may.
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
