//! A step that fails fails its own requests; the engine goes on, or ends with the reason, and every stream says so.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use perigee_decoding::guard::RowFault;
use perigee_decoding::sampling::SamplingParams;
use perigee_decoding::speculation;
use perigee_engine::scheduler::{Config, FinishReason};
use perigee_engine::{
    EngineEvent, EngineFacts, EngineHandle, EngineRequest, MeasuredSteps, SubmitError, spawn,
};
use perigee_model::checkpoint::Checkpoint;
use perigee_model::{Blueprint, Model, Weights};
use perigee_numbers::quant::StoredMatrix;
use perigee_numbers::tensor::TensorView;
use perigee_ops::host::reference::ReferenceBackend;
use perigee_ops::host::{Gelu, Group, HostOps};
use perigee_ops::{
    AttentionForm, BlockId, CacheDtype, CacheShape, Capacity, ExpertMatrices, LatentSpan, MlaShape,
    ModelShape, OpError, Preferences, RouterShape, Row, Rule, SampleRow, SampleRows, Segment, SeqSlot,
    StepPlan, TokenSource,
};
use perigee_telemetry::Metrics;

use crate::golden::{golden_folder, load_folder, step};

type Reference = ReferenceBackend;

/// The reference backend, with steps that fail on demand.
struct Faulty {
    inner: Reference,
    /// Steps still to fail; odd counts panic, even ones return an error.
    faults: Arc<AtomicUsize>,
    /// Rows of logits: 0 as they are, 1 with a NaN, 2 all equal; 3: norms are off by a bit.
    logits: Arc<AtomicUsize>,
}

impl HostOps for Faulty {
    type Matrix = <Reference as HostOps>::Matrix;
    type Vector = <Reference as HostOps>::Vector;
    type KvUp = <Reference as HostOps>::KvUp;
    type Router = <Reference as HostOps>::Router;
    type Experts = <Reference as HostOps>::Experts;
    type Buffer = <Reference as HostOps>::Buffer;
    type Routing = <Reference as HostOps>::Routing;
    type Cache = <Reference as HostOps>::Cache;

    fn name(&self) -> &'static str {
        "faulty"
    }
    fn scratch_values(&self, shape: &ModelShape) -> usize {
        self.inner.scratch_values(shape)
    }
    fn preferences(&self) -> Preferences {
        HostOps::preferences(&self.inner)
    }
    fn load_matrix(&mut self, host: &StoredMatrix<'_>) -> Result<Self::Matrix, OpError> {
        self.inner.load_matrix(host)
    }
    fn load_vector(&mut self, host: &TensorView<'_>) -> Result<Self::Vector, OpError> {
        self.inner.load_vector(host)
    }
    fn load_kv_up(&mut self, host: &StoredMatrix<'_>, shape: &MlaShape) -> Result<Self::KvUp, OpError> {
        self.inner.load_kv_up(host, shape)
    }
    fn load_router(
        &mut self,
        weight: &StoredMatrix<'_>,
        bias: &TensorView<'_>,
        shape: &RouterShape,
    ) -> Result<Self::Router, OpError> {
        self.inner.load_router(weight, bias, shape)
    }
    fn load_experts(
        &mut self,
        experts: &[ExpertMatrices<'_>],
        first: usize,
    ) -> Result<Self::Experts, OpError> {
        self.inner.load_experts(experts, first)
    }
    fn allocate(&mut self, capacity: usize, cols: usize) -> Result<Self::Buffer, OpError> {
        self.inner.allocate(capacity, cols)
    }
    fn allocate_routing(&mut self, capacity: usize, shape: &RouterShape) -> Result<Self::Routing, OpError> {
        self.inner.allocate_routing(capacity, shape)
    }
    fn allocate_cache(&mut self, shape: &CacheShape) -> Result<Self::Cache, OpError> {
        self.inner.allocate_cache(shape)
    }
    fn set_cache_scales(&mut self, cache: &mut Self::Cache, exponents: &[i32]) -> Result<(), OpError> {
        self.inner.set_cache_scales(cache, exponents)
    }
    fn inner_peak(
        &mut self,
        x: &Self::Buffer,
        rows: &[u32],
        weights: &Self::Experts,
        expert: usize,
    ) -> Result<f32, OpError> {
        self.inner.inner_peak(x, rows, weights, expert)
    }
    fn cached_peak(&mut self, cache: &Self::Cache, layer: usize, slots: &[u32]) -> Result<f32, OpError> {
        self.inner.cached_peak(cache, layer, slots)
    }
    fn embed(&mut self, table: &Self::Matrix, ids: &[u32], out: &mut Self::Buffer) -> Result<(), OpError> {
        let left = self.faults.load(Ordering::Relaxed);
        if left > 0 {
            self.faults.store(left - 1, Ordering::Relaxed);
            assert!(left.is_multiple_of(2), "a fault that was asked for");
            return Err(OpError::OutOfMemory { what: "a fault that was asked for", bytes: 1 });
        }
        self.inner.embed(table, ids, out)
    }
    fn norm(
        &mut self,
        x: &Self::Buffer,
        gain: &Self::Vector,
        eps: f32,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError> {
        self.inner.norm(x, gain, eps, out)?;
        if self.logits.load(Ordering::Relaxed) == 3 {
            let value = &mut Reference::values_mut(out)[0];
            *value = f32::from_bits(value.to_bits() ^ 1);
        }
        Ok(())
    }
    fn project(&mut self, x: &Self::Buffer, w: &Self::Matrix, out: &mut Self::Buffer) -> Result<(), OpError> {
        self.inner.project(x, w, out)
    }
    fn project_add(
        &mut self,
        x: &Self::Buffer,
        w: &Self::Matrix,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError> {
        self.inner.project_add(x, w, out)
    }
    fn rope(&mut self, shape: &MlaShape, rotations: &[f32], q: &mut Self::Buffer) -> Result<(), OpError> {
        self.inner.rope(shape, rotations, q)
    }
    fn write_latent(
        &mut self,
        shape: &MlaShape,
        kv_a: &Self::Buffer,
        gain: &Self::Vector,
        eps: f32,
        rotations: &[f32],
        slots: &[u32],
        layer: usize,
        cache: &mut Self::Cache,
    ) -> Result<(), OpError> {
        self.inner.write_latent(shape, kv_a, gain, eps, rotations, slots, layer, cache)
    }
    fn attend_expanded(
        &mut self,
        shape: &MlaShape,
        q: &Self::Buffer,
        kv_up: &Self::KvUp,
        layer: usize,
        cache: &Self::Cache,
        segments: &[Segment],
        tables: &[u32],
        out: &mut Self::Buffer,
    ) -> Result<(), OpError> {
        self.inner.attend_expanded(shape, q, kv_up, layer, cache, segments, tables, out)
    }
    fn attend_absorbed(
        &mut self,
        shape: &MlaShape,
        q: &Self::Buffer,
        kv_up: &Self::KvUp,
        layer: usize,
        cache: &Self::Cache,
        segments: &[Segment],
        tables: &[u32],
        out: &mut Self::Buffer,
    ) -> Result<(), OpError> {
        self.inner.attend_absorbed(shape, q, kv_up, layer, cache, segments, tables, out)
    }
    fn latent_queries(
        &mut self,
        shape: &MlaShape,
        q: &Self::Buffer,
        kv_up: &Self::KvUp,
        rows: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        self.inner.latent_queries(shape, q, kv_up, rows, out)
    }
    fn attend_latents(
        &mut self,
        shape: &MlaShape,
        queries: &[f32],
        kv_up: &Self::KvUp,
        layer: usize,
        cache: &Self::Cache,
        spans: &[LatentSpan],
        tables: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        self.inner.attend_latents(shape, queries, kv_up, layer, cache, spans, tables, out)
    }
    fn project_latents(
        &mut self,
        shape: &MlaShape,
        latents: &[f32],
        kv_up: &Self::KvUp,
        rows: &[u32],
        num_rows: usize,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError> {
        self.inner.project_latents(shape, latents, kv_up, rows, num_rows, out)
    }
    fn read_cached(
        &mut self,
        cache: &Self::Cache,
        layer: usize,
        slots: &[u32],
        out: &mut Vec<u8>,
    ) -> Result<(), OpError> {
        self.inner.read_cached(cache, layer, slots, out)
    }
    fn write_cached(
        &mut self,
        rows: &[u8],
        layer: usize,
        slots: &[u32],
        cache: &mut Self::Cache,
    ) -> Result<(), OpError> {
        self.inner.write_cached(rows, layer, slots, cache)
    }
    fn values_mut(buffer: &mut Self::Buffer) -> &mut [f32] {
        Reference::values_mut(buffer)
    }
    fn route(
        &mut self,
        x: &Self::Buffer,
        router: &Self::Router,
        shape: &RouterShape,
        routing: &mut Self::Routing,
    ) -> Result<(), OpError> {
        self.inner.route(x, router, shape, routing)
    }
    fn experts(
        &mut self,
        x: &Self::Buffer,
        are_prompts: &[bool],
        routing: &Self::Routing,
        routed: &Self::Experts,
        shared: Option<&Self::Experts>,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError> {
        self.inner.experts(x, are_prompts, routing, routed, shared, out)
    }
    fn swiglu_add(
        &mut self,
        x: &Self::Buffer,
        are_prompts: &[bool],
        weights: &Self::Experts,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError> {
        self.inner.swiglu_add(x, are_prompts, weights, out)
    }
    fn logits(
        &mut self,
        x: &Self::Buffer,
        rows: &[u32],
        head: &Self::Matrix,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError> {
        self.inner.logits(x, rows, head, out)?;
        let broken = match self.logits.load(Ordering::Relaxed) {
            0 | 3 => return Ok(()),
            1 => f32::NAN,
            _ => 0.5,
        };
        let mut values = Reference::values(out).to_vec();
        match broken.is_nan() {
            true => values[3] = broken,
            false => values.fill(broken),
        }
        self.inner.write(&values, out)
    }
    fn layer_norm(
        &mut self,
        x: &[f32],
        gain: &[f32],
        bias: &[f32],
        eps: f32,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError> {
        self.inner.layer_norm(x, gain, bias, eps, out)
    }
    fn bias_gelu(&mut self, bias: &[f32], form: Gelu, x: &mut Self::Buffer) -> Result<(), OpError> {
        self.inner.bias_gelu(bias, form, x)
    }
    fn attend_patches(
        &mut self,
        num_heads: usize,
        head_dim: usize,
        qkv: &[f32],
        pictures: &[Range<usize>],
        out: &mut [f32],
    ) -> Result<(), OpError> {
        self.inner.attend_patches(num_heads, head_dim, qkv, pictures, out)
    }
    fn for_each(&mut self, count: usize, work: &(dyn Fn(usize, usize) + Sync)) {
        self.inner.for_each(count, work);
    }
    fn num_workers(&self) -> usize {
        self.inner.num_workers()
    }
    fn values(buffer: &Self::Buffer) -> &[f32] {
        Reference::values(buffer)
    }
    fn expert_norms(
        &mut self,
        x: &Self::Buffer,
        routing: &Self::Routing,
        routed: &Self::Experts,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError> {
        self.inner.expert_norms(x, routing, routed, out)
    }
    fn read_routing(
        &mut self,
        routing: &Self::Routing,
        experts: &mut Vec<u32>,
        weights: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        self.inner.read_routing(routing, experts, weights)
    }
    fn write(&mut self, rows: &[f32], buffer: &mut Self::Buffer) -> Result<(), OpError> {
        self.inner.write(rows, buffer)
    }
}

struct Engine {
    handle: EngineHandle,
    logits: Arc<AtomicUsize>,
    thread: JoinHandle<Result<(), String>>,
    faults: Arc<AtomicUsize>,
}

fn start() -> Engine {
    let faults = Arc::new(AtomicUsize::new(0));
    let logits = Arc::new(AtomicUsize::new(0));
    let mut backend = Faulty { inner: ReferenceBackend, faults: faults.clone(), logits: logits.clone() };
    let checkpoint = Checkpoint::open(&golden_folder("kimi")).unwrap();
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let weights = Weights::load(&checkpoint, &blueprint, &mut backend, &mut |_, _| ()).unwrap();
    let cache = blueprint.cache_shape(64, 16, CacheDtype::F32);
    let (vocab_size, eps) = (blueprint.vocab_size, blueprint.rms_norm_eps);
    let capacity = Capacity {
        max_tokens: 64,
        max_logits_rows: 8,
        max_num_seqs: 8,
        block_size: 16,
        cache_dtype: cache.dtype,
    };
    let model = Model::new(backend, blueprint, weights, eps, capacity, &cache).unwrap();
    let config = Config { max_num_seqs: 8, max_num_batched_tokens: 64, ..Default::default() };
    let limits = config.limits(64, 1024, 16, 64, true).unwrap();
    let facts = EngineFacts {
        vocab_size,
        max_model_len: 1024,
        max_num_seqs: 8,
        max_queue_len: 2,
        max_queue_tokens: 0,
        block_size: 16,
        num_blocks: 64,
        prefix_caching: true,
        cache_dtype: "f32",
        backend: "faulty",
        ranks: 1,
        vision: None,
    };
    let metrics = Arc::new(Metrics::new("faulty", false));
    let (handle, thread) =
        spawn(model, limits, facts, speculation::Config::off(), MeasuredSteps::default(), None, metrics)
            .unwrap();
    Engine { handle, logits, thread, faults }
}

fn request(max_tokens: u32) -> EngineRequest {
    EngineRequest {
        prompt: [1, 2, 3].into(),
        sampling: SamplingParams { temperature: 0.0, max_tokens, ..Default::default() },
        priority: 0,
        share: None,
        deadline: None,
        cache_salt: None,
        guard: None,
        constraint: None,
        speculation: Default::default(),
        media: Vec::new(),
    }
}

async fn outcome(handle: &EngineHandle) -> (usize, FinishReason) {
    let mut stream = handle.submit(request(4)).unwrap();
    let mut tokens = 0;
    while let Some(event) = stream.next().await {
        match event {
            EngineEvent::Token { .. } => tokens += 1,
            EngineEvent::Finished(reason) => return (tokens, reason),
            _ => {}
        }
    }
    panic!("a stream ended without its Finished");
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

#[test]
fn a_failing_step_fails_its_requests_and_the_engine_goes_on() {
    let engine = start();
    block_on(async {
        assert_eq!(outcome(&engine.handle).await, (4, FinishReason::Length));
        for faults in [1, 2] {
            engine.faults.store(faults, Ordering::Relaxed);
            // Two faults: an error fails the first request, a panic the second.
            for _ in 0..faults {
                assert_eq!(outcome(&engine.handle).await, (0, FinishReason::Error));
            }
            assert_eq!(outcome(&engine.handle).await, (4, FinishReason::Length), "after {faults} faults");
        }
    });
    engine.handle.shutdown();
    engine.thread.join().unwrap().unwrap();
    assert_eq!(engine.handle.snapshot().used_blocks, 0);
}

#[test]
fn an_engine_that_keeps_failing_ends_with_the_reason() {
    let engine = start();
    engine.faults.store(usize::MAX, Ordering::Relaxed);
    block_on(async {
        for _ in 0..3 {
            assert_eq!(outcome(&engine.handle).await, (0, FinishReason::Error));
        }
    });
    let reason = engine.thread.join().unwrap().unwrap_err();
    assert!(reason.contains("a fault that was asked for"), "{reason}");
    assert!(!engine.handle.snapshot().alive);
    assert_eq!(engine.handle.submit(request(4)).err(), Some(SubmitError::Dead { reason }));
}

#[test]
fn a_full_queue_is_refused_with_a_time_to_retry() {
    let engine = start();
    // Far more than the queue (2) and the batch (8) hold, each long enough to stay for many steps.
    let streams: Vec<_> = (0..200).map(|_| engine.handle.submit(request(64))).collect();
    let refused: Vec<_> = streams.iter().filter_map(|s| s.as_ref().err()).collect();
    assert!(!refused.is_empty());
    for error in refused {
        let SubmitError::QueueFull { limit, retry_after_s, .. } = error else { panic!("{error}") };
        assert_eq!(*limit, 2);
        assert!((1..=60).contains(retry_after_s));
    }
    drop(streams);
    engine.handle.shutdown();
    engine.thread.join().unwrap().unwrap();
    let snapshot = engine.handle.snapshot();
    assert_eq!((snapshot.waiting, snapshot.used_blocks), (0, 0));
}

#[test]
fn broken_logits_end_the_reply_and_nothing_of_it_is_kept() {
    let engine = start();
    let prompt: Vec<u32> = (1..41).collect();
    let ask = async || {
        let mut stream =
            engine.handle.submit(EngineRequest { prompt: prompt.clone().into(), ..request(4) }).unwrap();
        let (mut cached, mut tokens) = (0, 0);
        while let Some(event) = stream.next().await {
            match event {
                EngineEvent::Started { cached_tokens } => cached = cached_tokens,
                EngineEvent::Token { .. } => tokens += 1,
                EngineEvent::Finished(reason) => return (cached, tokens, reason),
                _ => {}
            }
        }
        panic!("a stream ended without its Finished");
    };
    block_on(async {
        for (broken, fault) in [(1, RowFault::NonFinite), (2, RowFault::Flat)] {
            assert_eq!(ask().await, (0, 4, FinishReason::Length));
            assert_eq!(ask().await, (32, 4, FinishReason::Length), "two blocks come from the cache");
            engine.logits.store(broken, Ordering::Relaxed);
            assert_eq!(ask().await, (32, 0, FinishReason::NumericFault(fault)));
            engine.logits.store(0, Ordering::Relaxed);
            assert_eq!(ask().await, (0, 4, FinishReason::Length), "they may be broken too");
            engine.logits.store(broken, Ordering::Relaxed);
            assert_eq!(ask().await.2, FinishReason::NumericFault(fault));
            engine.logits.store(0, Ordering::Relaxed);
        }
    });
    engine.handle.shutdown();
    engine.thread.join().unwrap().unwrap();
    assert_eq!(engine.handle.snapshot().used_blocks, 0);
}

#[test]
fn broken_logits_of_a_scored_prompt_end_the_request_and_nothing_of_it_is_kept() {
    let engine = start();
    let ask = async |scored: bool, max_tokens: u32| {
        let mut request = EngineRequest { prompt: (1..41).collect(), ..request(max_tokens) };
        request.sampling.prompt_logprobs = scored.then_some(1);
        let mut stream = engine.handle.submit(request).unwrap();
        let (mut cached, mut scores) = (0, 0);
        while let Some(event) = stream.next().await {
            match event {
                EngineEvent::Started { cached_tokens } => cached = cached_tokens,
                EngineEvent::PromptLogprobs(_) => scores += 1,
                EngineEvent::Token { .. } => assert!(!scored || scores == 39),
                EngineEvent::Finished(reason) => return (cached, scores, reason),
                _ => {}
            }
        }
        panic!("a stream ended without its Finished");
    };
    block_on(async {
        for (broken, fault) in [(1, RowFault::NonFinite), (2, RowFault::Flat)] {
            for max_tokens in [0, 1] {
                engine.logits.store(broken, Ordering::Relaxed);
                assert_eq!(ask(true, max_tokens).await, (0, 0, FinishReason::NumericFault(fault)));
                engine.logits.store(0, Ordering::Relaxed);
                assert_eq!(ask(false, 1).await, (0, 0, FinishReason::Length), "no block got a name");
                engine.logits.store(broken, Ordering::Relaxed);
                assert_eq!(ask(false, 1).await.2, FinishReason::NumericFault(fault));
                engine.logits.store(0, Ordering::Relaxed);
            }
        }
        assert_eq!(ask(true, 1).await, (0, 39, FinishReason::Length));
    });
    engine.handle.shutdown();
    engine.thread.join().unwrap().unwrap();
    assert_eq!(engine.handle.snapshot().used_blocks, 0);
}

/// One rank of two fails, by an error and by a panic: the other is not kept waiting, the reason is the failing rank's, and the next step is as
/// if nothing had been.
#[test]
fn a_rank_that_fails_fails_the_step_and_nothing_else() {
    let faults = Arc::new(AtomicUsize::new(0));
    let rank = |faults: &Arc<AtomicUsize>| Faulty {
        inner: ReferenceBackend,
        faults: faults.clone(),
        logits: Arc::default(),
    };
    let group = Group::new(vec![rank(&Arc::default()), rank(&faults)]).unwrap();
    let mut model = load_folder(group, &golden_folder("kimi"), CacheDtype::F32);
    let tokens = [5, 6, 7];
    let sound = step(&mut model, &tokens, 0, AttentionForm::Absorbed);
    let mut plan = StepPlan::default();
    plan.add([TokenSource::from(5)], 0, 0, &[BlockId(0)], 16);
    faults.store(2, Ordering::Relaxed);
    assert!(matches!(model.forward(&plan), Err(OpError::OutOfMemory { .. })));
    let forward = catch_unwind(AssertUnwindSafe(|| model.forward(&plan)));
    assert!(forward.is_err(), "the panic reaches the engine");
    assert_eq!(step(&mut model, &tokens, 0, AttentionForm::Absorbed), sound);
}

/// A rank whose rows differ from the others' by one bit is found when a token is chosen, and named; nothing more is computed.
#[test]
fn ranks_that_diverge_are_found_and_named() {
    let drift = Arc::new(AtomicUsize::new(0));
    let rank = |logits: &Arc<AtomicUsize>| Faulty {
        inner: ReferenceBackend,
        faults: Arc::default(),
        logits: logits.clone(),
    };
    let group = Group::new(vec![rank(&Arc::default()), rank(&drift)]).unwrap();
    let mut model = load_folder(group, &golden_folder("kimi"), CacheDtype::F32);
    let mut plan = StepPlan::default();
    plan.add([TokenSource::from(5)], 0, 0, &[BlockId(0)], 16);
    plan.logits_rows = vec![Row(0)];
    let row = SampleRow {
        seed: 0,
        position: 0,
        row: Row(0),
        slot: SeqSlot(0),
        temperature: 0.0,
        top_p: 1.0,
        min_p: 0.0,
        top_k: 0,
        repetition: 1.0,
        presence: 0.0,
        frequency: 0.0,
        mask: SampleRow::NO_MASK,
        forbidden: (0, 0),
        rule: Rule::Draw,
        top: SampleRow::NO_LOGPROBS,
    };
    let rows = SampleRows { rows: vec![row], ..SampleRows::default() };
    let mut choose = || {
        model.forward(&plan)?;
        model.logits(0..1)?;
        model.sample(&rows)
    };
    choose().unwrap();
    drift.store(3, Ordering::Relaxed);
    let error = choose().unwrap_err();
    assert!(error.is_fatal() && error.to_string().contains("rank 1 has computed other rows"), "{error}");
}
