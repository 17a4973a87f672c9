//! The backend on a device: every operation is a few launches of the kernels of `kernels/`, enqueued in order.
//!
//! Activations are f32 in device memory. A row of an operation's output depends on the same row of its input alone
//! (attention: and on the cache), in an order of additions fixed by the model's shape: bits do not depend on the other
//! rows of a step, on chunking or on padding. After warm-up no call allocates.

mod buffers;
mod calibrate;
mod draft;
mod ffn;
mod links;
mod memory;
mod mtp;
mod rank;
mod tower;
mod projection;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use buffers::{Buffers, MOE_ROWS, Values};
pub use memory::device_needs;
use memory::{attention_capacity, plan_bytes};
use projection::{Experts, Projection};
use rank::Peers;

use super::attention::{Addresses, Attention, KvUp};
use super::cores::Cores;
use super::driver::{Driver, Transfer};
use super::exchange_times::ExchangeTimes;
use super::kernels::ahead::{self, Ahead};
use super::kernels::all_reduce::{MAX_RANKS, Operation, Wire};
use super::kernels::fp4::RowKind;
use super::kernels::linear::{self, Output};
use super::kernels::sampler_shards::Inputs;
use super::kernels::{embed, latent, rms_norm, tiled, tiled_latent, tiled_linear};
use super::kernels::{repack, route};
use super::packer::Packer;
use super::sampler::Sampler;
use super::step::{self, Step};
use super::stream::{Buffer, Stream};
use super::tuner::{Choices, Product};
use super::weights::{Matrix, Tiled};
use perigee_numbers::quant::StoredMatrix;
use perigee_numbers::tensor::{ElementType, TensorView};
use perigee_ops::host::{ExpertPieces, Share};
use perigee_ops::{
    Activations, AttentionInMatrices, Backend, BlockId, CacheShape, Capacity, ExpertMatrices, ExpertSplit,
    KvSlot, Layers, MemoryNeeds, MlaShape, ModelShape, OpError, Outcomes, Preferences, QueryMatrices,
    RopeTable, RouterShape, Row, SampleRows, Segment, SeqSlot, SlotSpec, Split, StepPlan, Storage, Ticket,
    TokenId, Upcoming, expect,
};

/// A device and its kernels.
pub struct CudaBackend<D: Driver> {
    stream: Stream<D>,
    arithmetic: Activations,
    packer: Packer,
    choices: Choices,
    /// Whether weights are fetched ahead.
    fetches_ahead: bool,
    /// Whether products of steps with rows of prompts may be the vendor's.
    uses_vendor: bool,
    /// For these, the weights of one of them in rows, `[N, K]` bf16.
    unpacked: Buffer,
    /// Whether launches are being recorded.
    is_recording: bool,
    /// Which of how many ranks this is, and how long it waits for the others.
    share: Share,
    wait: Duration,
    /// Where the thread of a rank behind the first one stays.
    cores: Option<Cores>,
    /// In which type sums cross between ranks.
    wire: Wire,
    /// Times of exchanges, shared with the metrics.
    exchange_times: Option<Arc<ExchangeTimes>>,
    /// Values that the host asked for last.
    host: Vec<f32>,
}

/// Weights in front of attention.
pub struct AttentionIn {
    query: Query,
    kv_a: Projection,
    kv_a_norm: Buffer,
}

/// What a layer's attention reads and fills in front of the cache.
#[derive(Clone, Copy)]
struct AttentionInputs<'a> {
    /// `[T, K]`, the input.
    x: Values,
    /// `[T, Q]`.
    q_latent: Values,
    /// `[T, H * (N + R)]`.
    query: Buffer,
    /// `[T, C + R]`.
    kv_a: Buffer,
    /// `[1]` u32, 0 between launches.
    blocks_done: Buffer,
    mla: &'a MlaShape,
    /// Of the norms of the latents.
    eps: f32,
}

enum Query {
    Latent { a: Projection, norm: Buffer, b: Projection },
    Direct(Projection),
}

/// Router weight and selection bias.
pub struct Router {
    weight: Matrix,
    /// `[E]` f32.
    bias: Buffer,
}

/// The latent cache, `[num_layers, slots, row_bytes]`, or a rank's part of it.
pub struct Cache {
    shape: CacheShape,
    buffer: Buffer,
    /// The buffers of all ranks, where each has a part.
    of_rank: Option<[u64; MAX_RANKS]>,
    /// Content of one block on its way to the host, `[num_layers, block_size, row_bytes]`.
    staging: Buffer,
    /// `[num_layers]`; see [`Backend::set_cache_scales`].
    exponents: Vec<i32>,
}

impl Cache {
    fn new<D: Driver>(stream: &mut Stream<D>, shape: &CacheShape) -> Result<Self, OpError> {
        let buffer = stream.zeros("latent cache", shape.bytes())?;
        let staging = stream.allocate("block on its way", shape.block_bytes())?;
        Ok(Self { shape: *shape, buffer, of_rank: None, staging, exponents: vec![0; shape.num_layers] })
    }

    /// First byte of a layer in a buffer.
    fn layer_at(&self, layer: usize) -> u64 {
        let slots = self.shape.num_blocks * self.shape.block_size;
        (layer * slots * self.shape.row_bytes()) as u64
    }

    fn layer(&self, layer: usize) -> u64 {
        self.buffer.address + self.layer_at(layer)
    }

    /// A layer in the buffers of all ranks.
    fn layers(&self, layer: usize) -> Option<[u64; MAX_RANKS]> {
        let at = self.layer_at(layer);
        self.of_rank.map(|of_rank| of_rank.map(|buffer| buffer + at))
    }

    /// Bytes of a block in one layer.
    fn layer_bytes(&self) -> usize {
        self.shape.block_size * self.shape.row_bytes()
    }

    /// Address of a block's rows in one layer.
    fn block(&self, layer: usize, block: BlockId) -> u64 {
        self.layer(layer) + (block.at() * self.layer_bytes()) as u64
    }

    fn check(&self, block: BlockId) -> Result<(), OpError> {
        let num_blocks = self.shape.num_blocks;
        expect("block", &[num_blocks.max(block.at() + 1)], &[num_blocks])
    }
}

/// Plan, activations and sampling state.
pub struct Workspace<D: Driver> {
    /// Of a rank, with its own heads and ids.
    shape: ModelShape,
    /// The other ranks.
    peers: Option<Peers>,
    step: Step,
    attention: Attention,
    sampler: Sampler,
    /// `[S, vocab]` f32; the rows of the last [`Backend::logits`].
    logits: Buffer,
    num_logits: usize,
    activations: Buffers,
    /// Rows in expanded form of the last plan.
    expanded: Vec<Segment>,
    has_absorbed: bool,
    /// Logits rows of the last plan.
    num_logits_rows: usize,
    /// Slots in the cache of the last plan, on this rank.
    kv_slots: Vec<KvSlot>,
    /// What [`Backend::announce`] said that comes behind attention, and behind the layer.
    ahead: Ahead,
    ahead_of_layer: [Ahead; 2],
    /// Recorded layers by padded rows and passes of attention. Those of one pass are recorded at the start; more passes, which take
    /// tens of milliseconds a step, when a step first needs them.
    graphs: HashMap<(usize, usize), D::Graph>,
    /// The layers that are being recorded.
    recording: Option<(usize, usize)>,
}

impl<D: Driver> Workspace<D> {
    /// Which rows of the step from `first`, a multiple of 32, on are in expanded form.
    fn row_kind(&self, first: usize) -> RowKind {
        match (self.expanded.is_empty(), self.has_absorbed) {
            (true, _) => RowKind::Replies,
            (false, false) => RowKind::Prompts,
            (false, true) => RowKind::Both(self.step.prompt_bits(first)),
        }
    }
}

impl<D: Driver> CudaBackend<D> {
    /// Loads the kernels.
    pub fn new(driver: D, arithmetic: Activations) -> Result<Self, OpError> {
        let stream = Stream::new(driver)?;
        let (packer, choices) = (Packer::default(), Choices::default());
        Ok(Self {
            stream,
            arithmetic,
            packer,
            choices,
            fetches_ahead: false,
            uses_vendor: false,
            unpacked: Buffer::NONE,
            is_recording: false,
            share: Share { rank: 0, world: 1 },
            wait: rank::WAIT,
            cores: None,
            wire: Wire::F32,
            exchange_times: None,
            host: Vec::new(),
        })
    }

    /// Takes variants of products from a tuning; without one they are the defaults. Before the first step: a recorded
    /// step keeps what it was recorded with.
    pub fn set_choices(&mut self, choices: Choices) {
        self.choices = choices;
    }

    /// Sets how long a rank waits for the others before a step ends with an error. Before the workspace is allocated.
    pub fn set_wait(&mut self, wait: Duration) {
        self.wait = wait;
    }

    /// Sets the processors beside the device: where it is a rank that has a thread of its own, that thread stays there. Before the workspace
    /// is allocated. The first rank's thread is the engine's, which the system places.
    pub fn set_cores(&mut self, cores: Option<Cores>) {
        self.cores = cores;
    }

    /// Rounds what crosses between ranks for a sum: results change by that rounding. Before the first step.
    pub fn set_wire(&mut self, wire: Wire) {
        self.wire = wire;
    }

    /// Tells `times` how long exchanges with other ranks take. Before the workspace is allocated.
    pub fn set_exchange_times(&mut self, times: Arc<ExchangeTimes>) {
        self.exchange_times = Some(times);
    }

    /// Lets kernels of steps with few rows bring weights of those behind them into the second cache, where the device can. Before the
    /// first step, as above.
    pub fn fetch_ahead(&mut self, on: bool) {
        self.fetches_ahead = on && self.stream.arch().fetches_ahead();
    }

    /// Lets products of steps with rows of prompts be the vendor's where they were measured to be faster: a row's bits then depend on the
    /// number of rows of its step. Before the memory is planned. `false`: the vendor's library is not installed.
    pub fn use_vendor(&mut self) -> Result<bool, OpError> {
        self.uses_vendor = self.stream.driver().open_vendor()? && self.arithmetic.are_rounded();
        Ok(self.uses_vendor)
    }

    /// Bytes of the largest weights that are unpacked for the vendor's products: of attention.
    fn unpacked_bytes(&self, shape: &ModelShape) -> usize {
        let ModelShape { hidden_size, q_lora_rank, mla, .. } = shape;
        let query = mla.num_heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim);
        let sizes = [
            q_lora_rank.unwrap_or(query) * hidden_size,
            q_lora_rank.unwrap_or(0) * query,
            mla.latent_dim() * hidden_size,
            mla.num_heads * mla.v_head_dim * hidden_size,
        ];
        if self.uses_vendor { 2 * sizes.into_iter().max().unwrap_or(0) } else { 0 }
    }

    /// Whether a product is the vendor's: not of a recording, since decode steps are to have the same bits whatever is decoded beside them.
    fn is_by_vendor(&self, matrix: &Tiled, rows: usize) -> bool {
        !self.is_recording
            && 2 * matrix.out_features * matrix.in_features <= self.unpacked.bytes
            && self.choices.by_vendor(matrix, rows)
    }

    /// The launches of `record`, which are not enqueued.
    fn recorded(
        &mut self,
        record: impl FnOnce(&mut Self) -> Result<(), OpError>,
    ) -> Result<D::Graph, OpError> {
        self.begin_recording()?;
        let recorded = record(self);
        let graph = self.end_recording();
        recorded?;
        graph
    }

    fn begin_recording(&mut self) -> Result<(), OpError> {
        self.stream.driver().begin_capture()?;
        self.is_recording = true;
        Ok(())
    }

    fn end_recording(&mut self) -> Result<D::Graph, OpError> {
        self.is_recording = false;
        Ok(self.stream.driver().end_capture()?)
    }

    /// What of these weights is fetched ahead of a step of `rows` rows.
    fn ahead(&self, weights: &Tiled, rows: usize) -> Ahead {
        match self.fetches_ahead && rows <= ahead::ROWS {
            true => Ahead::of(weights),
            false => Ahead::NONE,
        }
    }

    /// The same of a projection.
    fn ahead_of(&self, projection: &Projection, rows: usize) -> Ahead {
        match projection {
            Projection::Tiles(tiles) => self.ahead(tiles, rows),
            Projection::Rows(_) => Ahead::NONE,
        }
    }

    /// `y = x W^T` of `rows` rows, or of the rows of x that the list at `list` names if it is not 0.
    fn project(
        &mut self,
        rows: usize,
        x: Values,
        list: u64,
        weight: &Projection,
        y: Buffer,
        output: Output,
    ) -> Result<(), OpError> {
        let (stride, y_stride) = (weight.in_features(), weight.out_features());
        match weight {
            Projection::Rows(matrix) => {
                let x = linear::Rows { address: x.exact.address, stride };
                let y = linear::Rows { address: y.address, stride: y_stride };
                linear::launch(&mut self.stream, rows, matrix, x, list, y, output)
            }
            Projection::Tiles(matrix) if list == 0 && self.is_by_vendor(matrix, rows) => {
                repack::unpack(&mut self.stream, matrix, self.unpacked.address)?;
                let at = [self.unpacked.address, x.rounded.address, y.address];
                let driver = self.stream.driver();
                Ok(driver.vendor_product([rows, y_stride, stride], at, output == Output::Add)?)
            }
            Projection::Tiles(matrix) => {
                let part = part_of(matrix, tiled::Slots::Rows(rows, list), x, y);
                let variant = self.choices.variant(Product::Linear, matrix, rows);
                let add = output == Output::Add;
                tiled_linear::launch(&mut self.stream, variant, &[part], add)
            }
        }
    }

    /// Two projections of the same rows, in one launch if they can be.
    fn project_both(
        &mut self,
        rows: usize,
        x: Values,
        both: [(&Projection, Buffer); 2],
    ) -> Result<(), OpError> {
        if let [(Projection::Tiles(a), to_a), (Projection::Tiles(b), to_b)] = both
            && ![a, b].into_iter().any(|matrix| self.is_by_vendor(matrix, rows))
        {
            let slots = tiled::Slots::Rows(rows, 0);
            let parts = [part_of(a, slots, x, to_a), part_of(b, slots, x, to_b)];
            let variant = self.choices.variant(Product::Linear, a, rows);
            return tiled_linear::launch(&mut self.stream, variant, &parts, false);
        }
        for (weight, y) in both {
            self.project(rows, x, 0, weight, y, Output::Set)?;
        }
        Ok(())
    }

    /// The projections in front of attention with the latents behind them, in one launch; `false`: there is none for them.
    fn project_with_latents(
        &mut self,
        x: Values,
        both: [(&Projection, Buffer); 2],
        latents: &tiled_latent::Latents,
    ) -> Result<bool, OpError> {
        let [(Projection::Tiles(a), to_a), (Projection::Tiles(b), to_b)] = both else { return Ok(false) };
        let rows = latents.rows;
        if [a, b].into_iter().any(|matrix| self.is_by_vendor(matrix, rows)) {
            return Ok(false);
        }
        let variant = self.choices.variant(Product::Linear, a, rows);
        let Some(function) = tiled_latent::function(variant, [a, b], rows) else { return Ok(false) };
        let slots = tiled::Slots::Rows(rows, 0);
        let parts = [part_of(a, slots, x, to_a), part_of(b, slots, x, to_b)];
        tiled_latent::launch(&mut self.stream, function, variant, &parts, latents)?;
        Ok(true)
    }

    /// Query of `rows` rows; their latents and rope keys go to the cache.
    fn project_attention(
        &mut self,
        weights: &AttentionIn,
        layer: usize,
        cache: &Cache,
        inputs: &AttentionInputs<'_>,
        step: &Step,
        rows: usize,
    ) -> Result<(), OpError> {
        let AttentionInputs { x, q_latent, query, kv_a, blocks_done, mla, eps } = *inputs;
        let (first, y, normed, q_gain, q_columns, ahead) = match &weights.query {
            Query::Latent { a: down, norm, b } => {
                let ahead = self.ahead_of(b, rows);
                (down, q_latent.exact, q_latent, norm.address, down.out_features(), ahead)
            }
            Query::Direct(q) => (q, query, Values::NONE, 0, 0, Ahead::NONE),
        };
        let params = latent::Params {
            q_latent: normed.exact.address,
            q_rounded: normed.rounded.address,
            q_gain,
            kv_a: kv_a.address,
            kv_gain: weights.kv_a_norm.address,
            rotations: step.rotations(),
            slots: step.kv_slots(),
            cache: cache.layer(layer),
            q_columns: q_columns as i32,
            columns: mla.kv_lora_rank as i32,
            rope: mla.qk_rope_head_dim as i32,
            row_bytes: cache.shape.row_bytes() as i32,
            row_scales: 0,
            exponent: cache.exponents[layer],
            eps,
            padding: 0,
        };
        let dtype = cache.shape.dtype;
        let latents = tiled_latent::Latents { params, dtype, rows, blocks_done: blocks_done.address };
        let both = [(first, y), (&weights.kv_a, kv_a)];
        // What is fetched ahead is fetched by blocks of a launch of their own.
        if ahead.is_some() || !self.project_with_latents(x, both, &latents)? {
            self.project_both(rows, x, both)?;
            latent::launch(&mut self.stream, rows, dtype, params, ahead)?;
        }
        match &weights.query {
            Query::Latent { b, .. } => self.project(rows, q_latent, 0, b, query, Output::Set),
            Query::Direct(_) => Ok(()),
        }
    }

    /// Memory of steps of this capacity, of a device alone or of a rank.
    fn workspace(
        &mut self,
        shape: &ModelShape,
        capacity: &Capacity,
        rope: &RopeTable,
        peers: Option<Peers>,
    ) -> Result<Workspace<D>, OpError> {
        check_shape(shape)?;
        self.packer.check(&mut self.stream)?;
        let arithmetic = self.arithmetic;
        let unpacked_bytes = self.unpacked_bytes(shape);
        let stream = &mut self.stream;
        let parts = peers.as_ref().and_then(Peers::parts);
        let attention_capacity = attention_capacity(capacity, parts.map_or(1, |_| self.share.world));
        if unpacked_bytes > 0 {
            self.unpacked = stream.allocate("unpacked weights", unpacked_bytes)?;
        }
        let attention =
            Attention::new(stream, &shape.mla, capacity.cache_dtype, &attention_capacity, arithmetic, parts)?;
        stream.set_panels(attention.scratch());
        Ok(Workspace {
            shape: *shape,
            step: Step::new(stream, rope, plan_bytes(shape.mla.qk_rope_head_dim, capacity))?,
            attention,
            sampler: match &peers {
                None => {
                    let (rows, slots) = (capacity.max_logits_rows, capacity.max_num_seqs);
                    Sampler::new(stream, shape.vocab_size, rows, slots)?
                }
                Some(peers) => peers.sampler(stream, capacity)?,
            },
            logits: stream.allocate("logits", 4 * capacity.max_logits_rows * shape.vocab_size)?,
            num_logits: 0,
            activations: Buffers::new(stream, shape, capacity.max_tokens, arithmetic)?,
            expanded: Vec::new(),
            has_absorbed: false,
            num_logits_rows: 0,
            kv_slots: Vec::new(),
            ahead: Ahead::NONE,
            ahead_of_layer: [Ahead::NONE; 2],
            graphs: HashMap::new(),
            recording: None,
            peers,
        })
    }

    /// Rows of the table, of which ranks have a part each, to `hidden`, for the tokens of a step.
    fn embed_rows(
        &mut self,
        rows: usize,
        table: &Projection,
        [tokens, last_tokens]: [u64; 2],
        hidden: Buffer,
        peers: Option<&Peers>,
    ) -> Result<(), OpError> {
        let Projection::Rows(table) = table else {
            let dtype = "tiles".into();
            return Err(OpError::UnsupportedDtype { op: "embed", dtype, backend: "cuda" });
        };
        match peers {
            None => {
                let ids = embed::Ids::all_of(table);
                embed::launch(&mut self.stream, rows, table, ids, [tokens, last_tokens, hidden.address])
            }
            Some(peers) => {
                let to = peers.partial.address;
                embed::launch(&mut self.stream, rows, table, peers.ids(), [tokens, last_tokens, to])?;
                self.gather_rows(Operation::Embed, rows, peers, hidden)
            }
        }
    }

    /// Copies a plan, and the rows that its rows begin with, to the device.
    fn begin_from(&mut self, plan: &StepPlan, sources: &[Row], w: &mut Workspace<D>) -> Result<(), OpError> {
        let padded_rows = match plan.expanded.is_empty() {
            true => step::padded(plan.num_rows()),
            false => plan.num_rows(),
        };
        // A step that panicked has left its recording open.
        if w.recording.take().is_some() {
            drop(self.end_recording());
        }
        w.kv_slots.clone_from(&plan.kv_slots);
        if let Some(parts) = w.peers.as_ref().and_then(Peers::parts) {
            w.kv_slots.iter_mut().for_each(|slot| *slot = parts.block.own_slot(*slot));
        }
        w.expanded.clone_from(&plan.expanded);
        w.has_absorbed = !plan.absorbed.is_empty();
        w.num_logits_rows = plan.logits_rows.len();
        // The rows of earlier logits are in the plan that this one replaces.
        w.sampler.compare(Inputs::default());
        let lists = w.attention.lists(plan, padded_rows)?;
        let list_words = Attention::pass_words(padded_rows);
        w.step.upload(&mut self.stream, plan, &w.kv_slots, padded_rows, lists, list_words, sources)
    }

    fn norm_rows(&mut self, gain: &Buffer, w: &Workspace<D>) -> Result<(), OpError> {
        rms_norm::launch(&mut self.stream, w.step.padded_rows(), &norm_params(gain, w))
    }
}

/// The norm of the residual stream.
fn norm_params<D: Driver>(gain: &Buffer, w: &Workspace<D>) -> rms_norm::Params {
    rms_norm::Params {
        hidden: w.activations.hidden.address,
        gain: gain.address,
        normed: w.activations.normed.exact.address,
        rounded: w.activations.normed.rounded.address,
        columns: w.shape.hidden_size as i32,
        eps: w.shape.rms_norm_eps,
    }
}

/// A projection on tensor cores.
fn part_of<'a>(matrix: &'a Tiled, slots: tiled::Slots<'a>, x: Values, y: Buffer) -> tiled::Part<'a> {
    tiled::Part {
        matrix,
        slots,
        x: tiled::Rows { address: x.rounded.address, stride: matrix.in_features },
        y: tiled::Rows { address: y.address, stride: matrix.out_features },
    }
}

/// Errors: a model whose sizes the kernels do not take.
fn check_shape(shape: &ModelShape) -> Result<(), OpError> {
    let refuse = |what: &str, limit: usize, got: usize| {
        Err(OpError::UnsupportedDtype {
            op: "cuda",
            dtype: format!("{what} {got} (limit {limit})"),
            backend: "cuda",
        })
    };
    if !rms_norm::takes(shape.hidden_size) {
        return refuse("hidden_size, a multiple of 8,", 8192, shape.hidden_size);
    }
    let router = &shape.router;
    if router.num_experts > route::MAX_EXPERTS {
        return refuse("n_routed_experts", route::MAX_EXPERTS, router.num_experts);
    }
    if router.n_group > route::MAX_GROUPS {
        return refuse("n_group", route::MAX_GROUPS, router.n_group);
    }
    if shape.mla.latent_dim() > latent::MAX_COLUMNS {
        return refuse("kv_lora_rank + qk_rope_head_dim", latent::MAX_COLUMNS, shape.mla.latent_dim());
    }
    Ok(())
}

impl<D: Driver> Storage for CudaBackend<D> {
    type Matrix = Projection;
    type Vector = Buffer;
    type AttentionIn = AttentionIn;
    type KvUp = KvUp;
    type Router = Router;
    type Experts = Experts;
    type Workspace = Workspace<D>;
    type Cache = Cache;
    type BlockRead = Transfer;

    fn name(&self) -> &'static str {
        self.stream.name()
    }
}

impl<D: Driver> Backend for CudaBackend<D> {
    const ENQUEUES: bool = true;

    fn memory_needs(&self, shape: &ModelShape, capacity: &Capacity, cache: &CacheShape) -> MemoryNeeds {
        let mut needs = device_needs(self.arithmetic, shape, capacity, cache, None);
        needs.workspace_bytes += self.unpacked_bytes(shape) as u64;
        needs
    }

    fn preferences(&self) -> Preferences {
        Preferences { prefill_tokens: 2048, max_logits_rows: 256 }
    }

    fn recorded_rows(&self, capacity: &Capacity) -> Vec<usize> {
        let rows = capacity.max_num_seqs.min(capacity.max_tokens);
        step::buckets(rows).map(|bucket| bucket.min(rows)).collect()
    }

    fn free_memory(&mut self) -> Result<Option<u64>, OpError> {
        Ok(Some(self.stream.driver().free_bytes()?))
    }

    fn load_matrix(&mut self, host: &StoredMatrix<'_>, _split: Split) -> Result<Projection, OpError> {
        self.load_projection("load_matrix", host)
    }

    fn load_table(&mut self, host: &StoredMatrix<'_>, _split: Split) -> Result<Projection, OpError> {
        Matrix::load(&mut self.stream, "load_table", &[host]).map(Projection::Rows)
    }

    fn load_vector(&mut self, host: &TensorView<'_>) -> Result<Buffer, OpError> {
        if !host.dtype.is_float() {
            let dtype = host.dtype.to_string();
            return Err(OpError::UnsupportedDtype { op: "load_vector", dtype, backend: "cuda" });
        }
        self.stream.store("weights", &host.to_f32())
    }

    fn load_attention_in(
        &mut self,
        host: &AttentionInMatrices<'_>,
        _shape: &MlaShape,
    ) -> Result<AttentionIn, OpError> {
        Ok(AttentionIn {
            query: match &host.query {
                QueryMatrices::Latent { a, norm, b } => Query::Latent {
                    a: self.load_projection("load_attention_in", a)?,
                    norm: self.load_vector(norm)?,
                    b: self.load_projection("load_attention_in", b)?,
                },
                QueryMatrices::Direct(q) => Query::Direct(self.load_projection("load_attention_in", q)?),
            },
            kv_a: self.load_projection("load_attention_in", &host.kv_a)?,
            kv_a_norm: self.load_vector(&host.kv_a_norm)?,
        })
    }

    fn load_kv_up(&mut self, host: &StoredMatrix<'_>, shape: &MlaShape) -> Result<KvUp, OpError> {
        let rows = shape.num_heads * (shape.qk_nope_head_dim + shape.v_head_dim);
        expect("load_kv_up", &[rows, shape.kv_lora_rank], host.shape())?;
        KvUp::load(&mut self.stream, host, self.arithmetic)
    }

    fn load_router(
        &mut self,
        weight: &StoredMatrix<'_>,
        bias: &TensorView<'_>,
        shape: &RouterShape,
    ) -> Result<Router, OpError> {
        expect("load_router", &[shape.num_experts], &weight.shape()[..weight.shape().len().min(1)])?;
        expect("load_router", &[shape.num_experts], bias.shape)?;
        let weight = Matrix::load(&mut self.stream, "load_router", &[weight])?;
        Ok(Router { weight, bias: self.load_vector(bias)? })
    }

    fn load_experts(
        &mut self,
        experts: &[ExpertMatrices<'_>],
        _split: ExpertSplit,
    ) -> Result<Experts, OpError> {
        self.load_swiglu(&ExpertPieces::whole(experts), 0)
    }

    fn allocate_workspace(
        &mut self,
        shape: &ModelShape,
        capacity: &Capacity,
        rope: &RopeTable,
    ) -> Result<Workspace<D>, OpError> {
        self.workspace(shape, capacity, rope, None)
    }

    fn allocate_cache(&mut self, shape: &CacheShape) -> Result<Cache, OpError> {
        Cache::new(&mut self.stream, shape)
    }

    fn block_bytes(&self, cache: &Cache) -> usize {
        cache.shape.block_bytes()
    }

    fn start_block_read(&mut self, block: BlockId, cache: &Cache) -> Result<Transfer, OpError> {
        cache.check(block)?;
        let driver = self.stream.driver();
        let bytes = cache.layer_bytes();
        // The copies of the next block wait for the download of this one: all are in one stream.
        for layer in 0..cache.shape.num_layers {
            driver.copy(cache.staging.address + (layer * bytes) as u64, cache.block(layer, block), bytes)?;
        }
        Ok(driver.download(cache.staging.address, cache.shape.block_bytes())?)
    }

    fn finish_block_read(&mut self, read: Transfer, out: &mut Vec<u8>) -> Result<(), OpError> {
        Ok(self.stream.driver().finish(read, out)?)
    }

    fn write_block(&mut self, block: BlockId, content: &[u8], cache: &mut Cache) -> Result<(), OpError> {
        cache.check(block)?;
        expect("write_block", &[cache.shape.block_bytes()], &[content.len()])?;
        for (layer, rows) in content.chunks_exact(cache.layer_bytes()).enumerate() {
            self.stream.upload(cache.block(layer, block), rows)?;
        }
        Ok(())
    }

    fn set_cache_scales(&mut self, cache: &mut Cache, exponents: &[i32]) -> Result<(), OpError> {
        expect("set_cache_scales", &[cache.shape.num_layers], &[exponents.len()])?;
        cache.exponents.copy_from_slice(exponents);
        Ok(())
    }

    fn begin(&mut self, plan: &StepPlan, w: &mut Workspace<D>) -> Result<(), OpError> {
        self.begin_from(plan, &[], w)
    }

    fn begin_layers(&mut self, w: &mut Workspace<D>) -> Result<Layers, OpError> {
        // Rows in expanded form, or of many passes, are launched by shapes of their own.
        let passes = w.attention.recorded_passes();
        let Some(passes) = passes.filter(|_| w.expanded.is_empty() && w.step.rows() > 0) else {
            return Ok(Layers::Run);
        };
        let bucket = (w.step.padded_rows(), passes);
        if let Some(graph) = w.graphs.get(&bucket) {
            self.stream.driver().replay(graph)?;
            return Ok(Layers::Replayed);
        }
        self.begin_recording()?;
        w.recording = Some(bucket);
        Ok(Layers::Run)
    }

    fn end_layers(&mut self, w: &mut Workspace<D>, complete: bool) -> Result<(), OpError> {
        let Some(bucket) = w.recording.take() else { return Ok(()) };
        let graph = self.end_recording();
        if !complete {
            return Ok(());
        }
        let graph = w.graphs.entry(bucket).insert_entry(graph?);
        w.peers.as_ref().map_or(Ok(()), Peers::meet)?;
        Ok(self.stream.driver().replay(graph.get())?)
    }

    fn embed(&mut self, table: &Projection, w: &mut Workspace<D>) -> Result<(), OpError> {
        let tokens = [w.step.tokens(), w.sampler.last_tokens()];
        expect("embed", &[table.in_features()], &[w.shape.hidden_size])?;
        self.embed_rows(w.step.padded_rows(), table, tokens, w.activations.hidden, w.peers.as_ref())
    }

    fn norm(&mut self, gain: &Buffer, w: &mut Workspace<D>) -> Result<(), OpError> {
        expect("norm", &[4 * w.shape.hidden_size], &[gain.bytes])?;
        self.norm_rows(gain, w)
    }

    fn attention_in(
        &mut self,
        weights: &AttentionIn,
        layer: usize,
        cache: &mut Cache,
        w: &mut Workspace<D>,
    ) -> Result<(), OpError> {
        let a = &w.activations;
        let inputs = AttentionInputs {
            x: a.normed,
            q_latent: a.q_latent,
            query: a.query,
            kv_a: a.kv_a,
            blocks_done: a.blocks_done,
            mla: &w.shape.mla,
            eps: w.shape.latent_norm_eps,
        };
        self.project_attention(weights, layer, cache, &inputs, &w.step, w.step.padded_rows())
    }

    fn announce(&mut self, upcoming: Upcoming<'_, Self>, w: &mut Workspace<D>) {
        let rows = w.step.padded_rows();
        match upcoming {
            Upcoming::BehindAttention(projection) => w.ahead = self.ahead_of(projection, rows),
            Upcoming::BehindLayer(AttentionIn { query, kv_a, .. }) => {
                let first = match query {
                    Query::Latent { a, .. } => a,
                    Query::Direct(q) => q,
                };
                w.ahead_of_layer = [first, kv_a].map(|projection| self.ahead_of(projection, rows));
            }
        }
    }

    fn attend(
        &mut self,
        kv_up: &KvUp,
        layer: usize,
        cache: &mut Cache,
        w: &mut Workspace<D>,
    ) -> Result<(), OpError> {
        let at = Addresses {
            query: w.activations.query.address,
            rotations: w.step.rotations(),
            attended: w.activations.attended.exact.address,
            rounded: w.activations.attended.rounded.address,
            cache: cache.layer(layer),
            caches: cache.layers(layer),
            cache_shape: cache.shape,
            block_tables: w.step.block_tables(),
            lists: w.step.attention(),
            ahead: std::mem::replace(&mut w.ahead, Ahead::NONE),
        };
        if w.has_absorbed {
            w.attention.attend_absorbed(&mut self.stream, &at, kv_up)?;
        }
        w.attention.attend_expanded(&mut self.stream, &at, kv_up, &w.expanded)
    }

    fn project_add_norm<'g>(
        &mut self,
        weight: &Projection,
        gain: &'g Buffer,
        w: &mut Workspace<D>,
    ) -> Result<Option<&'g Buffer>, OpError> {
        let a = &w.activations;
        expect("project_add_norm", &[w.shape.hidden_size], &[weight.out_features()])?;
        let rows = w.step.padded_rows();
        if let Some(peers) = &w.peers {
            self.project(rows, a.attended, 0, weight, peers.partial, Output::Set)?;
            self.add_up(Operation::Attention, rows, peers, Some(gain), w)?;
            return Ok(None);
        }
        if let Projection::Tiles(matrix) = weight {
            let variant = self.choices.variant(Product::Linear, matrix, rows);
            if variant.normalises(rows) {
                let part = part_of(matrix, tiled::Slots::Rows(rows, 0), a.attended, a.hidden);
                let norms = tiled::RowNorms {
                    norm: norm_params(gain, w),
                    blocks_done: a.blocks_done.address,
                    num_rows: rows as i32,
                    padding: 0,
                };
                tiled_linear::launch_with_norms(&mut self.stream, variant, &part, &norms)?;
                return Ok(None);
            }
        }
        self.project(rows, a.attended, 0, weight, a.hidden, Output::Add)?;
        Ok(Some(gain))
    }

    fn moe(
        &mut self,
        pending: Option<&Buffer>,
        router: &Router,
        routed: &Experts,
        shared: Option<&Experts>,
        gain: Option<&Buffer>,
        w: &mut Workspace<D>,
    ) -> Result<(), OpError> {
        let rows = w.step.padded_rows();
        let list = (rows <= MOE_ROWS).then(|| self.worklist(routed, rows, w));
        let beside = shared.map(|shared| (shared, Self::shared_inner(Some(routed), rows, w)));
        let has_shared_inner = self.choose(pending, router, beside, &w.shape.router, list.as_ref(), w)?;
        self.ffn(Some(routed), shared, has_shared_inner, gain, w)
    }

    fn dense(
        &mut self,
        pending: Option<&Buffer>,
        weights: &Experts,
        gain: Option<&Buffer>,
        w: &mut Workspace<D>,
    ) -> Result<(), OpError> {
        pending.map_or(Ok(()), |gain| self.norm_rows(gain, w))?;
        self.ffn(None, Some(weights), false, gain, w)
    }

    fn logits(&mut self, head: &Projection, rows: Range<usize>, w: &mut Workspace<D>) -> Result<(), OpError> {
        let sizes = [head.in_features(), head.out_features()];
        expect("logits", &[w.shape.hidden_size, w.shape.vocab_size], &sizes)?;
        let capacity = w.logits.bytes / (4 * w.shape.vocab_size);
        expect("logits", &[capacity.max(rows.len())], &[capacity])?;
        w.num_logits = rows.len();
        let list = w.step.logits_rows() + 4 * rows.start as u64;
        let address = w.activations.normed.exact.address;
        w.sampler.compare(Inputs { address, rows: list, columns: w.shape.hidden_size });
        self.project(rows.len(), w.activations.normed, list, head, w.logits, Output::Set)
    }

    fn open_slot(&mut self, slot: SeqSlot, spec: &SlotSpec<'_>, w: &mut Workspace<D>) -> Result<(), OpError> {
        w.sampler.open(&mut self.stream, slot, spec)
    }

    fn rewind_slot(
        &mut self,
        slot: SeqSlot,
        removed: &[TokenId],
        last: TokenId,
        w: &mut Workspace<D>,
    ) -> Result<(), OpError> {
        w.sampler.rewind(&mut self.stream, slot, removed, last)
    }

    fn sample(&mut self, rows: &SampleRows<'_>, w: &mut Workspace<D>) -> Result<Ticket, OpError> {
        let ticket = w.sampler.sample(&mut self.stream, rows, w.logits.address)?;
        if let Some(peers) = &mut w.peers {
            peers.ask(&mut self.stream, ticket)?;
        }
        Ok(ticket)
    }

    fn wait(&mut self, ticket: Ticket, w: &mut Workspace<D>, out: &mut Outcomes) -> Result<(), OpError> {
        let Workspace { sampler, peers, .. } = w;
        match peers {
            None => sampler.wait(&mut self.stream, ticket, Ok, out),
            Some(peers) => {
                sampler.wait(&mut self.stream, ticket, |part| peers.whole_row(part), out)?;
                peers.check(&mut self.stream, ticket)
            }
        }
    }
}
