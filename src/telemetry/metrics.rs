//! The recording methods: which event changes which metrics. There is no global registry.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::exemplars::Exemplars;
use super::exposition::Exposition;
use super::families::{self, Metric, Names};
use super::figures::{
    ClientFigures, DraftFigures, DraftSkip, EngineInfo, FinishLabel, GuardFigures, ImageRefusal,
    KernelFigures, KvLoss, KvTier, Load, Preemption, Rejection, RequestFigures, StepSeconds, StepTimes,
};
use super::flight::FlightRecorder;
use super::gpus::{GpuFigures, Gpus};
use super::history::{History, HistoryReport, Reading};
use super::ranks::{Comparison, ExchangeSeconds, Straggler, Sums};
use super::recorder::Recorder;
use super::slo::SloConfig;

/// Most clients whose times have series of their own.
const MAX_TIMED_CLIENTS: usize = 64;

/// Value of the label `route` for requests of the built-in page for its own figures: a page that is looked at, or that asks for a
/// key, says nothing of the service.
pub const PAGE_ROUTE: &str = "page";

/// All metrics of the process in one registry, shared in an `Arc`.
pub struct Metrics {
    recorder: Recorder,
    made: Instant,
    /// Microseconds from `made` to the end of the last step, plus one; 0 = no step yet.
    last_step_us: AtomicU64,
    /// The same of the beginning of the turn under way; 0 = none.
    turn_began_us: AtomicU64,
    flight: FlightRecorder,
    exemplars: Exemplars,
    /// A turn of the engine that lasts longer is stuck; zero = none is.
    stuck_after: Duration,
    slo: SloConfig,
    /// Clients whose times have series of their own.
    timed_clients: Mutex<BTreeSet<String>>,
    /// Of several ranks.
    exchange_seconds: OnceLock<ExchangeSeconds>,
    /// Locked while their series are written anew and read.
    devices: Mutex<Devices>,
    history: Mutex<History>,
}

/// Figures of GPUs and the comparison of their ranks.
#[derive(Default)]
struct Devices {
    gpus: Gpus,
    comparison: Comparison,
}

impl Metrics {
    /// An empty registry. `model_name` is the value of the label of that name; `vllm_names` adds
    /// vLLM's metrics.
    pub fn new(model_name: &str, vllm_names: bool) -> Self {
        let mut recorder = Recorder::new();
        recorder.register(Names::Perigee, model_name);
        if vllm_names {
            recorder.register(Names::Vllm, model_name);
            recorder.register(Names::VllmFrontend, model_name);
        }
        #[cfg(target_os = "linux")]
        recorder
            .registry
            .register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))
            .expect("process metrics are registered once");
        recorder.record_with(Metric::BuildInfo, &[env!("CARGO_PKG_VERSION"), model_name], 1.0);
        recorder.record(Metric::SleepState, 1.0);
        Self {
            recorder,
            made: Instant::now(),
            last_step_us: AtomicU64::new(0),
            turn_began_us: AtomicU64::new(0),
            flight: FlightRecorder::default(),
            exemplars: Exemplars::default(),
            stuck_after: Duration::ZERO,
            slo: SloConfig::default(),
            timed_clients: Mutex::default(),
            exchange_seconds: OnceLock::new(),
            devices: Mutex::default(),
            history: Mutex::default(),
        }
    }

    /// Judges requests by objectives, from the start on so that their rates are defined.
    pub fn with_objectives(mut self, slo: SloConfig) -> Self {
        for (objective, seconds) in slo.objectives() {
            for met in ["true", "false"] {
                self.recorder.record_with(Metric::SloRequests, &[objective, met], 0.0);
            }
            if let Some(seconds) = seconds {
                self.recorder.record_with(Metric::SloThreshold, &[objective], seconds);
            }
        }
        self.slo = slo;
        self
    }

    /// Shows the seconds that each rank has spent in exchanges, which `exchange_seconds` tells.
    pub fn watch_ranks(&self, exchange_seconds: impl Fn() -> Vec<f64> + Send + Sync + 'static) {
        // Of a second engine of the process the first one's are shown.
        let _ = self.exchange_seconds.set(Box::new(exchange_seconds));
    }

    /// Sets the state of each rank's GPU. It is shown until it is old: a driver that does not answer has no figures.
    pub fn set_gpus(&self, gpus: Vec<GpuFigures>) {
        self.devices().gpus.set(gpus, Instant::now());
    }

    /// Records a critical error of a rank's GPU, by its number.
    pub fn record_xid(&self, rank: usize, xid: u64) {
        self.recorder.record_with(Metric::GpuXids, &[&rank.to_string(), &xid.to_string()], 1.0);
    }

    /// The rank that the others wait for, if there is one. To be called every few seconds.
    pub fn straggler(&self) -> Option<Straggler> {
        let exchange_seconds = self.exchange_seconds.get()?();
        let (seconds, steps) = self.recorder.value_at(Metric::Step, 0);
        self.devices().comparison.compare(Sums { steps, seconds, exchange_seconds })
    }

    fn devices(&self) -> MutexGuard<'_, Devices> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show_devices(&self, devices: &mut Devices) {
        devices.gpus.show(&self.recorder, Instant::now());
        devices.comparison.show(&self.recorder);
        self.recorder.clear(Metric::RankExchange);
        let seconds = self.exchange_seconds.get().map(|seconds| seconds());
        for (rank, seconds) in seconds.into_iter().flatten().enumerate() {
            self.recorder.record_with(Metric::RankExchange, &[&rank.to_string()], seconds);
        }
    }

    /// The same with the names that vLLM once had.
    pub fn with_legacy_names(mut self, model_name: &str) -> Self {
        self.recorder.register(Names::Legacy, model_name);
        self
    }

    /// The page of `/metrics`.
    pub fn render(&self, form: Exposition) -> String {
        self.recorder.record(Metric::SinceLastStep, self.seconds_since_last_step().unwrap_or(0.0));
        let families = {
            let mut devices = self.devices();
            self.show_devices(&mut devices);
            self.recorder.registry.gather()
        };
        form.page(&families, &self.exemplars)
    }

    /// Age of the registry.
    pub fn age(&self) -> Duration {
        self.made.elapsed()
    }

    /// Adds a sample to the history. To be called every [`SAMPLE_EVERY`](super::SAMPLE_EVERY), at this age of the registry.
    pub fn sample(&self, age: Duration) {
        let reading = self.reading();
        self.history.lock().unwrap_or_else(PoisonError::into_inner).take(age, reading);
    }

    /// The history from sample number `from` on, with what came in since the last sample, at this age of the registry.
    pub fn history(&self, age: Duration, from: u64) -> HistoryReport {
        let reading = self.reading();
        self.history.lock().unwrap_or_else(PoisonError::into_inner).report(age, &reading, from)
    }

    /// What the history is made of.
    fn reading(&self) -> Reading {
        let r = &self.recorder;
        let value = |metric, index| r.value_at(metric, index).0;
        let blocks: [f64; 3] = std::array::from_fn(|index| value(Metric::Blocks, index));
        let share = |index: usize| blocks[index] / blocks.iter().sum::<f64>().max(1.0);
        let [mut refused, mut left, mut failed] = [0.0; 3];
        r.each(Metric::HttpRequests, |labels, count| {
            let label = |name: &str| {
                labels.iter().find(|label| label.name() == name).map_or("", |label| label.value())
            };
            // Probes ask while a server boots or drains, and are answered 503 by design.
            if label("route").starts_with("/health") || label("route") == PAGE_ROUTE {
                return;
            }
            match label("status") {
                // The client left before the answer.
                "499" => left += count,
                status if status.starts_with('4') => refused += count,
                status if status.starts_with('5') => failed += count,
                _ => {}
            }
        });
        let mut guard = [0.0; 4];
        r.each(Metric::GuardEvents, |labels, count| {
            let action =
                labels.iter().find(|label| label.name() == "action").map_or("", |label| label.value());
            let known = ["warned", "rescued", "closed_thinking", "stopped"];
            if let Some(index) = known.iter().position(|known| *known == action) {
                guard[index] += count;
            }
        });
        let [warned, rescued, closed, stopped] = guard;
        let faults = value(Metric::NumericFaults, 0) + value(Metric::NumericFaults, 1);
        Reading {
            gauges: [value(Metric::Running, 0), value(Metric::Waiting, 0), share(0), share(1)],
            counters: [
                value(Metric::ReplyTokens, 0),
                value(Metric::PromptTokens, 0),
                value(Metric::PrefixQueries, 0),
                value(Metric::PrefixHits, 0),
                value(Metric::DraftedTokens, 0),
                value(Metric::AcceptedTokens, 0),
                refused,
                left,
                failed,
                value(Metric::Finished, 0),
                value(Metric::Finished, 1),
                value(Metric::Finished, 2),
                value(Metric::Finished, 3),
                value(Metric::Finished, 4),
                warned,
                rescued,
                closed,
                stopped,
                faults,
            ],
            histograms: [Metric::FirstToken, Metric::TokenGap, Metric::Step].map(|metric| r.buckets(metric)),
        }
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
        self.recorder.record(Metric::Step, times.total().as_secs_f64());
        let parts = [times.schedule, times.forward, times.sample, times.commit, times.emit];
        for (index, time) in parts.into_iter().enumerate() {
            self.recorder.record_at(Metric::StepPart, index, time.as_secs_f64());
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.recorder.record(Metric::LastStep, now.as_secs_f64());
        self.last_step_us.store(self.made.elapsed().as_micros() as u64 + 1, Ordering::Relaxed);
    }

    /// Number of steps so far and their total seconds, by part.
    pub fn step_seconds(&self) -> StepSeconds {
        let sum = |(index, part): (usize, &&'static str)| {
            (*part, self.recorder.value_at(Metric::StepPart, index).0)
        };
        StepSeconds {
            steps: self.recorder.value_at(Metric::Step, 0).1,
            parts: families::STEP_PARTS.iter().enumerate().map(sum).collect(),
        }
    }

    /// Adds the tokens of one step: prompt tokens computed, prompt tokens taken from the prefix
    /// cache, and reply tokens. Called once per step.
    pub fn add_tokens(&self, computed: usize, cached: usize, generation: usize) {
        let r = &self.recorder;
        r.record(Metric::PromptTokens, (computed + cached) as f64);
        r.record_at(Metric::PromptTokensBySource, 0, computed as f64);
        r.record_at(Metric::PromptTokensBySource, 1, cached as f64);
        r.record(Metric::PromptTokensCached, cached as f64);
        r.record(Metric::ReplyTokens, generation as f64);
        // Each request computes one row fewer than its tokens: the last reply token is never
        // computed.
        r.record(Metric::StepTokens, (computed + cached + generation) as f64);
    }

    /// Sets the engine's load; called before the page is read, so that routers see the load of that
    /// moment.
    pub fn set_load(&self, load: &Load) {
        let r = &self.recorder;
        r.record(Metric::Running, load.running as f64);
        r.record(Metric::Waiting, load.waiting as f64);
        r.record(Metric::WaitingTokens, load.waiting_tokens as f64);
        let free = load.total_blocks.saturating_sub(load.used_blocks + load.cached_blocks);
        for (index, blocks) in [load.used_blocks, load.cached_blocks, free].into_iter().enumerate() {
            r.record_at(Metric::Blocks, index, blocks as f64);
        }
        // As in vLLM, blocks held by the prefix cache alone count as free: they are freed on
        // demand.
        r.record(Metric::CacheUsage, load.cache_usage());
    }

    /// Records the lookup of a prompt of `queried` tokens in the prefix cache, of which `hits` were
    /// found.
    pub fn record_prefix_lookup(&self, queried: usize, hits: usize) {
        let r = &self.recorder;
        r.record(Metric::PrefixHits, hits as f64);
        r.record(Metric::PrefixQueries, queried as f64);
        let [hits, queried] = [Metric::PrefixHits, Metric::PrefixQueries].map(|m| r.value_at(m, 0).0);
        r.record(Metric::PrefixHitRate, hits / queried.max(1.0));
    }

    /// Records a batch of images that the encoder has finished: their patches, the time it computed,
    /// and the time from first to last.
    pub fn record_encoded(&self, patches: usize, computed: Duration, waited: Duration) {
        self.recorder.record(Metric::Patches, patches as f64);
        self.recorder.record(Metric::Encoder, computed.as_secs_f64());
        self.recorder.record(Metric::EncoderWait, waited.as_secs_f64());
    }

    /// Records the images of a prompt, by where their embeddings come from.
    pub fn record_image_uses(&self, kept: usize, encoded: usize, prefix: usize) {
        for (index, images) in [encoded, kept, prefix].into_iter().enumerate() {
            self.recorder.record_at(Metric::Images, index, images as f64);
        }
    }

    /// Records an image that was decoded and cut to patches.
    pub fn record_preprocessed(&self, decode: Duration, preprocess: Duration) {
        self.recorder.record(Metric::ImageDecode, decode.as_secs_f64());
        self.recorder.record(Metric::ImagePreprocess, preprocess.as_secs_f64());
    }

    /// Records a request refused for an image.
    pub fn record_image_refusal(&self, reason: ImageRefusal) {
        self.recorder.record_at(Metric::RefusedImages, reason as usize, 1.0);
    }

    /// Records preemptions.
    pub fn record_preemptions(&self, reason: Preemption, sequences: usize) {
        if sequences > 0 {
            self.recorder.record_at(Metric::Preemptions, reason as usize, sequences as f64);
        }
    }

    /// Records a request refused at the door.
    pub fn record_rejection(&self, reason: Rejection) {
        self.recorder.record_at(Metric::Rejections, reason as usize, 1.0);
    }

    /// Records published KV events.
    pub fn record_kv_events(&self, events: usize) {
        self.recorder.record(Metric::KvEvents, events as f64);
    }

    /// Records a snapshot of the cache for subscribers: events were dropped, or none before was kept.
    pub fn record_kv_snapshot(&self) {
        self.recorder.record(Metric::KvSnapshots, 1.0);
    }

    /// Records the tool calls of a request: those whose arguments are as the model wrote them, mended,
    /// no object, and cut.
    pub fn record_tool_calls(&self, calls: [usize; 4]) {
        for (label, count) in families::ARGUMENTS.iter().zip(calls).filter(|(_, count)| *count > 0) {
            self.recorder.record_with(Metric::ToolCalls, &[label], count as f64);
        }
    }

    /// Records a request with an unknown field.
    pub fn record_ignored_field(&self) {
        self.recorder.record(Metric::IgnoredFields, 1.0);
    }

    /// Records the time from a sequence's arrival to its first reply token.
    pub fn record_first_token(&self, since_arrival: Duration) {
        self.recorder.record(Metric::FirstToken, since_arrival.as_secs_f64());
    }

    /// Records the time between two reply tokens of one sequence.
    pub fn record_token_gap(&self, gap: Duration) {
        self.recorder.record(Metric::TokenGap, gap.as_secs_f64());
    }

    /// Records the parameters of an accepted request: number of replies and their token limit.
    pub fn record_params(&self, n: usize, max_tokens: usize) {
        self.recorder.record(Metric::ParamsN, n as f64);
        self.recorder.record(Metric::ParamsMaxTokens, max_tokens as f64);
    }

    /// Records a finding of the guard.
    pub fn record_guard_event(&self, figures: &GuardFigures) {
        let r = &self.recorder;
        r.record_with(Metric::GuardEvents, &[figures.kind, figures.phase, figures.action], 1.0);
        r.record(Metric::GuardDiscarded, figures.discarded.into());
        if figures.period > 0 {
            r.record(Metric::GuardPeriod, figures.period.into());
            r.record(Metric::GuardCopies, figures.copies.into());
        }
    }

    /// Records a draft.
    pub fn record_draft(&self, figures: &DraftFigures) {
        let r = &self.recorder;
        r.record(Metric::Drafts, 1.0);
        for (tokens, length, count) in [
            (Metric::DraftedTokens, Metric::DraftLength, figures.drafted),
            (Metric::AcceptedTokens, Metric::AcceptedLength, figures.accepted),
        ] {
            r.record(tokens, count as f64);
            r.record(length, count as f64);
        }
        for position in 0..figures.accepted {
            r.record_with(Metric::AcceptedPerPosition, &[&position.to_string()], 1.0);
        }
    }

    /// Records sequences without a draft in a step.
    pub fn record_draft_skips(&self, reason: DraftSkip, sequences: usize) {
        self.recorder.record_at(Metric::DraftSkips, reason as usize, sequences as f64);
    }

    /// Adds the estimated time that the drafts of a step saved; negative where they cost time.
    pub fn add_draft_seconds(&self, seconds: f64) {
        self.recorder.add(Metric::DraftSaved, seconds);
    }

    /// Records a token held back because it may belong to a loop.
    pub fn record_held_token(&self) {
        self.recorder.record(Metric::GuardHeld, 1.0);
    }

    /// Records a sequence that was rescued from a loop and then ended by itself.
    pub fn record_rescue_success(&self) {
        self.recorder.record(Metric::GuardRescues, 1.0);
    }

    /// Records a logit row that is not a distribution. `kind` is a name from a closed set.
    pub fn record_numeric_fault(&self, kind: &'static str) {
        self.recorder.record_with(Metric::NumericFaults, &[kind], 1.0);
    }

    /// Records the end of a sequence.
    pub fn record_finished(&self, figures: &RequestFigures, reason: FinishLabel) {
        let r = &self.recorder;
        r.record_at(Metric::Finished, reason as usize, 1.0);
        let inference = figures.decode.map(|decode| decode + figures.prefill.unwrap_or_default());
        let gaps = figures.generation_tokens.saturating_sub(1) as u32;
        for (metric, time) in [
            (Metric::RequestTime, Some(figures.e2e)),
            (Metric::QueueTime, figures.queue),
            (Metric::PrefillTime, figures.prefill),
            (Metric::DecodeTime, figures.decode),
            (Metric::InferenceTime, inference),
        ] {
            if let Some(time) = time {
                r.record(metric, time.as_secs_f64());
            }
        }
        if let Some(decode) = figures.decode.filter(|_| gaps > 0) {
            r.record(Metric::TimePerToken, decode.as_secs_f64() / f64::from(gaps));
        }
        for (metric, count) in [
            (Metric::RequestPromptTokens, figures.prompt_tokens),
            // vLLM has another family for the maximum over a request's replies; a sequence here is
            // one reply.
            (Metric::RequestReplyTokens, figures.generation_tokens),
            (Metric::RequestComputedTokens, figures.prompt_tokens.saturating_sub(figures.cached_tokens)),
            (Metric::RequestPreemptions, figures.preemptions),
        ] {
            r.record(metric, count as f64);
        }
    }

    /// Sets the facts of the engine; called once at boot.
    pub fn set_engine_info(&self, info: &EngineInfo) {
        let EngineInfo { block_size, num_blocks, max_model_len, prefix_caching, .. } = *info;
        let (size, num) = (&block_size.to_string(), &num_blocks.to_string());
        let (caching, length) = (&prefix_caching.to_string(), &max_model_len.to_string());
        let facts = [&info.backend, size, num, &info.cache_dtype, caching, length].map(String::as_str);
        self.recorder.record_with(Metric::EngineInfo, &facts, 1.0);
        // Routers read the block size and the number of blocks from vLLM's labels. The label's name
        // says "gpu" as in vLLM, wherever the blocks are. The concurrency is counted in sequences of
        // the longest context.
        let size_tokens = num_blocks * block_size;
        let concurrency = size_tokens as f64 / max_model_len.max(1) as f64;
        let (tokens, concurrency) = (&size_tokens.to_string(), &format!("{concurrency:?}"));
        let caching = if prefix_caching { "True" } else { "False" };
        let labels = [size.as_str(), num, tokens, concurrency, &info.cache_dtype, caching];
        self.recorder.record_with(Metric::CacheConfig, &labels, 1.0);
    }

    /// Sets what a tier of KV blocks holds.
    pub fn set_kv_tier(&self, tier: KvTier, blocks: usize, bytes: u64) {
        self.recorder.record_at(Metric::KvTierBlocks, tier as usize, blocks as f64);
        self.recorder.record_at(Metric::KvTierBytes, tier as usize, bytes as f64);
    }

    /// Records a block that came to a tier.
    pub fn record_kv_stored(&self, tier: KvTier) {
        self.recorder.record_at(Metric::KvTierStored, tier as usize, 1.0);
    }

    /// Records a block that a prompt took from a tier.
    pub fn record_kv_loaded(&self, tier: KvTier) {
        self.recorder.record_at(Metric::KvTierLoaded, tier as usize, 1.0);
    }

    /// Records a block lost on its way to or from disk.
    pub fn record_kv_lost(&self, loss: KvLoss) {
        self.recorder.record_at(Metric::KvTierLost, loss as usize, 1.0);
    }

    /// Records the bytes of weights that the boot loaded.
    pub fn set_weights_bytes(&self, bytes: u64) {
        self.recorder.record(Metric::BootWeights, bytes as f64);
    }

    /// Counts what the kernel cache did since the last call.
    pub fn add_kernels(&self, figures: &KernelFigures) {
        let KernelFigures { memory, disk, compiled, rebuilt, evicted, .. } = *figures;
        for (index, count) in [memory, disk, compiled, rebuilt, evicted].into_iter().enumerate() {
            self.recorder.record_at(Metric::Kernels, index, count as f64);
        }
        for (index, seconds) in [figures.read_seconds, figures.compile_seconds].into_iter().enumerate() {
            self.recorder.record_at(Metric::KernelSeconds, index, seconds);
        }
    }

    /// Records the duration of a boot stage. `stage` is a name from a closed set.
    pub fn record_boot_stage(&self, stage: &'static str, took: Duration) {
        self.recorder.record_with(Metric::BootStage, &[stage], took.as_secs_f64());
    }

    /// Sets the time from the start of the process to ready.
    pub fn set_boot_time(&self, took: Duration) {
        self.recorder.record(Metric::Boot, took.as_secs_f64());
    }

    /// Sets whether requests are accepted and whether the server drains.
    pub fn set_phase(&self, ready: bool, draining: bool) {
        self.recorder.record(Metric::Ready, ready.into());
        self.recorder.record(Metric::Draining, draining.into());
    }

    /// Sets the Unix time at which the TLS certificate ends, in seconds; `None` where it does not
    /// say.
    pub fn set_certificate_end(&self, unix_s: Option<u64>) {
        self.recorder.record(Metric::CertificateEnd, unix_s.unwrap_or(0) as f64);
    }

    /// Records that settings were read anew and are in force.
    pub fn record_reload(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.recorder.record(Metric::Reloaded, now.as_secs_f64());
    }

    /// Records a complete HTTP exchange. `route` is a name from a closed set, such as the path's
    /// pattern, never the raw path.
    pub fn record_http(&self, route: &'static str, status: u16, took: Duration) {
        self.recorder.record_with(Metric::HttpRequests, &[route, &status.to_string()], 1.0);
        self.recorder.record_with(Metric::HttpDuration, &[route], took.as_secs_f64());
    }

    /// Notes the trace of a request with these times, which were recorded, for the page in OpenMetrics' form.
    pub fn note_trace(&self, route: &'static str, trace_id: u128, took: Duration, ttft: Option<Duration>) {
        let note = |series, time: Duration| {
            self.exemplars.note(series, families::HTTP, trace_id, time.as_secs_f64());
        };
        note(("perigee_http_request_duration_seconds", route), took);
        if let Some(ttft) = ttft {
            note(("perigee_time_to_first_token_seconds", ""), ttft);
        }
    }

    /// Records the end of a client's request. `client` is a name from the settings.
    pub fn record_client(&self, client: &str, status: u16, figures: &ClientFigures) {
        self.recorder.record_with(Metric::ClientRequests, &[client, &status.to_string()], 1.0);
        for (kind, tokens) in [
            ("prompt", figures.prompt_tokens),
            ("cached", figures.cached_tokens),
            ("image", figures.image_tokens),
            ("reply", figures.reply_tokens),
            ("reasoning", figures.reasoning_tokens),
        ] {
            if tokens > 0 {
                self.recorder.record_with(Metric::ClientTokens, &[client, kind], tokens as f64);
            }
        }
        if let Some(ttft) = figures.ttft {
            let name = self.client_with_times(client);
            self.recorder.record_with(Metric::ClientFirstToken, &[name], ttft.as_secs_f64());
        }
    }

    /// The name under which a client's times are kept: its own, while there are few.
    fn client_with_times<'a>(&self, client: &'a str) -> &'a str {
        let mut timed = self.timed_clients.lock().unwrap_or_else(PoisonError::into_inner);
        if timed.contains(client) {
            return client;
        }
        if timed.len() == MAX_TIMED_CLIENTS {
            return "other";
        }
        timed.insert(client.to_owned());
        client
    }

    /// Records a request refused for a limit of its client.
    pub fn record_client_limited(&self, client: &str, limit: &'static str) {
        self.recorder.record_with(Metric::ClientLimited, &[client, limit], 1.0);
    }

    /// Records a request of the model against the objectives: its status, the time to its first token, the time of the whole and
    /// the tokens of its replies, of which so many ran at once.
    pub fn record_objectives(&self, status: u16, ttft: Option<Duration>, took: Duration, tokens: usize) {
        for (objective, met) in self.slo.judge(status, ttft, took, tokens) {
            let met = if met { "true" } else { "false" };
            self.recorder.record_with(Metric::SloRequests, &[objective, met], 1.0);
        }
    }

    /// Records a write of the usage ledger that failed, and whether its line is lost.
    pub fn record_usage_failure(&self, lost: bool) {
        self.recorder.record(Metric::UsageFailures, 1.0);
        if lost {
            self.recorder.record(Metric::UsageLost, 1.0);
        }
    }

    /// Records spans that the collector of traces took, and such that were dropped.
    pub fn record_spans(&self, exported: usize, dropped: usize) {
        self.recorder.record_at(Metric::Spans, 0, exported as f64);
        self.recorder.record_at(Metric::Spans, 1, dropped as f64);
    }

    /// Records the opening (`true`) or closing of a connection.
    pub fn record_connection(&self, opened: bool) {
        self.recorder.add(Metric::HttpConnections, if opened { 1.0 } else { -1.0 });
    }

    /// Records the beginning (`true`) or completion of a request.
    pub fn record_in_flight(&self, begun: bool) {
        self.recorder.add(Metric::HttpInFlight, if begun { 1.0 } else { -1.0 });
    }

    /// Records a connection refused at the limit of open connections.
    pub fn record_refused_connection(&self) {
        self.recorder.record(Metric::HttpRefused, 1.0);
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
