//! Attention of a step on the device: which kernels run over which rows, in which scratch.
//!
//! A row's result depends on its query, its position and its keys alone. Capacities decide how often kernels are
//! launched, not what they compute.

use super::kernels::ahead::Ahead;
use super::kernels::all_reduce::MAX_RANKS;
use super::kernels::exchange::{Exchange, Rows};
use super::kernels::mla_decode::{CombineTypes, Part};
use super::kernels::mla_prefill::CacheParts;
use super::kernels::{
    fp8_mla_decode, mla_decode, mla_prefill, tcgen05_mla_decode, tcgen05_mla_prefill, tiled_mla_absorb,
    tiled_mla_combine, tiled_mla_decode, tiled_mla_prefill, wgmma_mla_absorb, wgmma_mla_decode,
    wgmma_mla_expand, wgmma_mla_prefill,
};
use super::{Arch, Buffer, Driver, DriverError, LaunchShape, Stream};
use perigee_numbers::quant::StoredMatrix;
use perigee_numbers::tensor::{Dtype, ElementType};
use perigee_ops::host::BlockParts;
use perigee_ops::{
    Activations, AttentionExchange, CacheDtype, CacheShape, MlaShape, OpError, Segment, StepPlan, expect,
};

/// Bounds of one [`Attention`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionCapacity {
    /// T, rows of a step.
    pub rows: usize,
    /// Rows in absorbed form that are computed at once; more take several passes.
    pub absorbed_rows: usize,
    /// Items of all rows of a pass together ([`mla_decode::items_of`]), at least 16; more take several passes. A row is in one pass:
    /// this bounds its context, to 512 keys for each, or 2,048 where clusters have four splits of an item.
    pub items: usize,
    /// Tokens per block of the cache, of all ranks.
    pub block_size: usize,
    /// Keys of a context that are expanded at once, rounded up to a multiple of 128; more take several slabs.
    pub slab_keys: usize,
}

/// Element type of `kv_up` on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvUpType {
    /// 4 bytes per value.
    F32,
    /// 2 bytes per value.
    Bf16,
}

/// `kv_b_proj` on the device: `[H * (N + V), C]` row-major, per head N rows of W_UK, then V rows of W_UV.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvUp {
    /// Address of the heads that this rank has, a multiple of 16.
    pub address: u64,
    /// Of the heads of all ranks, where a rank takes all of them to its keys; else the same.
    pub all: u64,
    /// Element type.
    pub dtype: KvUpType,
}

impl KvUp {
    /// Uploads `kv_b_proj`; what is neither BF16 nor F32 is widened to f32, and in bf16 all of it is rounded to bf16.
    pub fn load<D: Driver>(
        stream: &mut Stream<D>,
        host: &StoredMatrix<'_>,
        arithmetic: Activations,
    ) -> Result<Self, OpError> {
        let (buffer, dtype) = match host {
            StoredMatrix::Plain(view) if view.dtype == Dtype::BF16 => {
                (stream.store("weights", view.bytes)?, KvUpType::Bf16)
            }
            StoredMatrix::Plain(view) if !view.dtype.is_float() => {
                let dtype = view.dtype.to_string();
                return Err(OpError::UnsupportedDtype { op: "load_kv_up", dtype, backend: "cuda" });
            }
            host if arithmetic.are_rounded() => {
                let rounded: Vec<half::bf16> = host.to_f32().into_iter().map(half::bf16::from_f32).collect();
                (stream.store("weights", &rounded)?, KvUpType::Bf16)
            }
            host => (stream.store("weights", &host.to_f32())?, KvUpType::F32),
        };
        Ok(Self { address: buffer.address, all: buffer.address, dtype })
    }

    /// That of all heads as a rank sees it whose own heads begin with `row`, of rows of `latent` values.
    pub fn with_own_from(self, row: usize, latent: usize) -> Self {
        let size = match self.dtype {
            KvUpType::F32 => 4,
            KvUpType::Bf16 => 2,
        };
        Self { address: self.all + (row * latent * size) as u64, ..self }
    }
}

/// Device memory of one layer's attention. Addresses of values are multiples of 16, those of words multiples of 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// `[T, H * (N + R)]` f32, not rotated.
    pub query: u64,
    /// `[T, R]` f32: R/2 cosines, then R/2 sines.
    pub rotations: u64,
    /// `[T, H * V]` f32; rows that the plan does not cover are not written.
    pub attended: u64,
    /// `[T, H * V]` bf16, or 0: `attended`, rounded.
    pub rounded: u64,
    /// First row of the layer in the cache.
    pub cache: u64,
    /// First row of the layer in the cache of every rank, where each has a part of it.
    pub caches: Option<[u64; MAX_RANKS]>,
    /// Shape of the cache, on this rank.
    pub cache_shape: CacheShape,
    /// The plan's block tables, u32.
    pub block_tables: u64,
    /// The words of [`Attention::lists`].
    pub lists: u64,
    /// Fetched meanwhile, in absorbed form by clusters.
    pub ahead: Ahead,
}

/// Most passes of a step whose launches are recorded.
const MAX_RECORDED_PASSES: usize = 8;

/// Attention of one model and cache: its scratch, and the lists of the current step.
#[derive(Debug)]
pub struct Attention {
    shape: MlaShape,
    cache: CacheDtype,
    capacity: AttentionCapacity,
    arithmetic: Activations,
    arch: Arch,
    multiprocessors: u32,
    /// Splits of an item.
    splits: usize,
    /// The kernel whose clusters have an item each at once, if there is one for these rows.
    clustered: Option<Clustered>,
    /// Most rows of a group.
    group_rows: usize,
    /// Where this rank has a part of every block.
    parts: Option<ContextParts>,
    /// Shared by the two forms, which run one after the other.
    scratch: Buffer,
    words: Vec<u32>,
    /// First word of each pass.
    passes: Vec<usize>,
    /// Rows that launches are shaped for, where passes are spread ([`Attention::lists`]); `None`: those of each pass.
    launch_rows: Option<usize>,
}

/// Attention of a rank that has a part of every block: in absorbed form it takes the queries of all heads to its own keys, in expanded
/// form it reads all keys where they are.
#[derive(Debug, Clone, Copy)]
pub struct ContextParts {
    /// Part of every block that this rank holds.
    pub block: BlockParts,
    /// Sizes of all heads.
    pub all: MlaShape,
    /// Exchange of queries and of results with the other ranks.
    pub exchange: Exchange,
}

impl ContextParts {
    /// Sizes of all heads, and what is exchanged.
    fn exchanged(&self) -> (&MlaShape, AttentionExchange) {
        (&self.all, self.exchange.layout.form())
    }
}

/// A kernel in absorbed form whose clusters have the splits of an item, one in each block.
#[derive(Debug, Clone, Copy)]
struct Clustered {
    function: &'static str,
    /// Clusters that run at once.
    clusters: u32,
    /// Its launch over passes of up to so many items, by so many clusters.
    launch: fn(&MlaShape, usize, u32) -> LaunchShape,
    /// Rows of one sequence, of so many heads each, that a block takes at once.
    group_rows: fn(usize) -> usize,
}

impl Clustered {
    /// The one for these sizes and rows of this type on the stream's device. `kv_up` is in bf16 where activations are rounded.
    fn of<D: Driver>(
        stream: &mut Stream<D>,
        shape: &MlaShape,
        cache: CacheDtype,
    ) -> Result<Option<Self>, OpError> {
        let arch = stream.arch();
        if let Some(function) = wgmma_mla_decode::function(shape, arch, cache) {
            let clusters = wgmma_mla_decode::clusters(stream)?;
            let (launch, group_rows) = (wgmma_mla_decode::launch, wgmma_mla_decode::group_rows);
            return Ok(Some(Self { function, clusters, launch, group_rows }));
        }
        if let Some(function) = tcgen05_mla_decode::function(shape, arch, cache) {
            let clusters = tcgen05_mla_decode::clusters(stream)?;
            let (launch, group_rows) = (tcgen05_mla_decode::launch, wgmma_mla_decode::group_rows);
            return Ok(Some(Self { function, clusters, launch, group_rows }));
        }
        if let Some(function) = fp8_mla_decode::function(shape, arch, cache) {
            let clusters = fp8_mla_decode::clusters(stream)?;
            let (launch, group_rows) = (fp8_mla_decode::launch, fp8_mla_decode::group_rows);
            return Ok(Some(Self { function, clusters, launch, group_rows }));
        }
        Ok(None)
    }
}

/// Keys at whose multiples slabs begin: those of a tile of every kernel, so that a row's bits do not depend on slabs.
const SLAB_KEYS: usize = tcgen05_mla_prefill::KEYS;
const _: () = assert!(SLAB_KEYS.is_multiple_of(tiled_mla_prefill::KEYS));

/// Bytes to which the parts of the scratch are aligned.
const PART_ALIGNMENT: u64 = 256;

/// First bytes of consecutive parts, and the bytes of all of them; sizes in f32 values.
fn parts<const P: usize>(values: [usize; P]) -> ([u64; P], u64) {
    let mut bytes = 0;
    let starts = values.map(|values| {
        let start = bytes;
        bytes += (4 * values as u64).next_multiple_of(PART_ALIGNMENT);
        start
    });
    (starts, bytes)
}

impl AttentionCapacity {
    fn rounded(self) -> Self {
        Self {
            rows: self.rows.max(1),
            absorbed_rows: self.absorbed_rows.max(1),
            items: self.items.max(mla_decode::items_of(2048, 1)),
            block_size: self.block_size,
            slab_keys: self.slab_keys.max(1).next_multiple_of(SLAB_KEYS),
        }
    }

    /// Latent queries, statistics and latents of the absorbed form; where ranks have parts of the keys, what they exchange: queries of
    /// `all` heads or of the `own` ones in the latent space, what comes of them, and its statistics.
    fn absorbed_parts(
        &self,
        own: &MlaShape,
        exchanged: Option<(&MlaShape, AttentionExchange)>,
    ) -> ([u64; 6], u64) {
        let shape = exchanged.map_or(own, |(all, _)| all);
        let (rows, items) = (self.absorbed_rows * shape.num_heads, self.items * shape.num_heads);
        let [queries, values, statistics] = match exchanged {
            None => [0; 3],
            Some((all, AttentionExchange::Heads)) => {
                [rows * (all.qk_nope_head_dim + all.qk_rope_head_dim), rows * all.v_head_dim, rows * 2]
            }
            Some((all, AttentionExchange::Latents)) => {
                [self.absorbed_rows * own.num_heads * own.latent_dim(), rows * all.kv_lora_rank, rows * 2]
            }
        };
        parts([rows * shape.latent_dim(), items * 2, items * shape.kv_lora_rank, queries, values, statistics])
    }

    /// Latents, rope keys, keys with values, statistics and faults of the expanded form, in f32; tensor cores need half
    /// of it.
    fn expanded_parts(&self, shape: &MlaShape) -> ([u64; 5], u64) {
        let head = shape.qk_nope_head_dim + shape.v_head_dim;
        parts([
            self.slab_keys * shape.kv_lora_rank,
            self.slab_keys * shape.qk_rope_head_dim,
            self.slab_keys * shape.num_heads * head,
            self.rows * shape.num_heads * 2,
            self.slab_keys,
        ])
    }
}

impl Attention {
    /// Bytes of scratch; `exchanged` are the sizes of the heads of all ranks and what these exchange, where they have parts of the keys.
    pub fn bytes(
        shape: &MlaShape,
        exchanged: Option<(&MlaShape, AttentionExchange)>,
        capacity: &AttentionCapacity,
    ) -> u64 {
        let capacity = capacity.rounded();
        capacity.absorbed_parts(shape, exchanged).1.max(capacity.expanded_parts(shape).1)
    }

    /// Upper bound on the words of [`Attention::lists`] of steps of up to `rows` rows.
    pub fn list_words(rows: usize) -> usize {
        // A pass has a row, but for the only one of a step without rows in absorbed form.
        let dense = mla_decode::PASS_WORDS + rows * (mla_decode::PASS_WORDS + mla_decode::ROW_WORDS);
        dense.max(MAX_RECORDED_PASSES * Self::pass_words(rows))
    }

    /// Allocates the scratch for cached rows of this type. Errors: sizes that the kernels do not take; no memory.
    pub fn new<D: Driver>(
        stream: &mut Stream<D>,
        shape: &MlaShape,
        cache: CacheDtype,
        capacity: &AttentionCapacity,
        arithmetic: Activations,
        parts: Option<ContextParts>,
    ) -> Result<Self, OpError> {
        mla_decode::check(shape)?;
        let exchanged = parts.as_ref().map(ContextParts::exchanged);
        let scratch = stream.allocate("attention", Self::bytes(shape, exchanged, capacity) as usize)?;
        let clustered = match arithmetic.are_rounded() {
            true => Clustered::of(stream, shape, cache)?,
            false => None,
        };
        Ok(Self {
            shape: *shape,
            cache,
            capacity: capacity.rounded(),
            arithmetic,
            arch: stream.arch(),
            multiprocessors: stream.multiprocessors(),
            splits: if clustered.is_some() { wgmma_mla_decode::SPLITS } else { 1 },
            clustered,
            group_rows: clustered
                .filter(|_| parts.is_none())
                .map_or(1, |kernel| (kernel.group_rows)(shape.num_heads)),
            parts,
            scratch,
            words: Vec::new(),
            passes: Vec::new(),
            launch_rows: None,
        })
    }

    /// Plans a step and returns the words that [`Addresses::lists`] holds on the device. Passes follow each other, each
    /// with its number of rows, its number of items, and its rows as [`mla_decode::RowEntry`]; there is at least one
    /// pass. Rows from the plan's up to `padded_rows` are rows without keys.
    ///
    /// The passes of a step that can be recorded ([`Attention::recorded_passes`]) are spread: each begins
    /// [`Attention::pass_words`] of `padded_rows` behind the one before, and empty ones bring their number to a power of two.
    ///
    /// Errors: a block table that does not cover its segment, a context or a step beyond the capacity.
    pub fn lists(&mut self, plan: &StepPlan, padded_rows: usize) -> Result<&[u32], OpError> {
        self.words.clear();
        self.passes.clear();
        self.launch_rows = None;
        let mut pass = self.begin_pass();
        // All ranks have the same passes: they count the items of the rank that has most.
        let mut planned_items = 0;
        for segment in &plan.absorbed {
            self.check(segment)?;
            let (mut row, mut num_keys) = (segment.rows.start, segment.first_position + 1);
            while row < segment.rows.end {
                let (_, most_items) = self.keys(num_keys);
                if most_items > self.capacity.items {
                    let world = self.parts.map_or(1, |parts| parts.block.share().world);
                    let limit = self.capacity.items * self.splits * mla_decode::SPLIT * world;
                    return Err(refusal(format!("a context of {num_keys} tokens, and the limit is {limit}")));
                }
                let num_rows = self.words[pass] as usize;
                if num_rows == self.capacity.absorbed_rows || planned_items + most_items > self.capacity.items
                {
                    pass = self.begin_pass();
                    planned_items = 0;
                }
                let free_rows = self.capacity.absorbed_rows - self.words[pass] as usize;
                let free_items = self.capacity.items - planned_items;
                let most = self.group_rows.min(free_rows).min(segment.rows.end - row);
                let rows = self.rows_of_group(num_keys, most, free_items);
                let (own_keys, most_items) = self.keys(num_keys + rows - 1);
                let (first_item, table) = (self.words[pass + 1], segment.block_table.start as u32);
                for place in 0..rows {
                    self.words.extend_from_slice(bytemuck::cast_slice(&[mla_decode::RowEntry {
                        row: (row + place) as u32,
                        first_item: first_item + place as u32,
                        num_keys: (own_keys + place + 1 - rows) as u32,
                        table,
                        group: rows as u32 | (place as u32) << 16,
                    }]));
                }
                self.words[pass] += rows as u32;
                self.words[pass + 1] += (rows * mla_decode::items_of(own_keys, self.splits)) as u32;
                planned_items += rows * most_items;
                (row, num_keys) = (row + rows, num_keys + rows);
            }
        }
        for row in plan.num_rows()..padded_rows {
            if self.words[pass] as usize == self.capacity.absorbed_rows {
                pass = self.begin_pass();
            }
            let first_item = self.words[pass + 1];
            let entry = mla_decode::RowEntry { row: row as u32, first_item, num_keys: 0, table: 0, group: 1 };
            self.words.extend_from_slice(bytemuck::cast_slice(&[entry]));
            self.words[pass] += 1;
        }
        for segment in &plan.expanded {
            self.check(segment)?;
        }
        // More rows than a pass holds are those of a prompt.
        let rows = padded_rows.max(plan.num_rows());
        let is_decode = plan.expanded.is_empty() && rows <= self.capacity.absorbed_rows;
        if is_decode && (2..=MAX_RECORDED_PASSES).contains(&self.passes.len()) {
            self.spread(rows);
        }
        Ok(&self.words)
    }

    /// Rows of a group, up to `most`, whose first one has so many keys; with so many items left.
    fn rows_of_group(&self, num_keys: usize, most: usize, free_items: usize) -> usize {
        let fits = |rows: &usize| {
            let last = num_keys + rows - 1;
            mla_decode::have_same_splits(num_keys, last, self.splits)
                && rows * self.keys(last).1 <= free_items
        };
        (1..=most).rev().find(fits).unwrap_or(1)
    }

    /// Keys of a row of so many that are on this rank, and the most items that a rank has of them.
    fn keys(&self, num_keys: usize) -> (usize, usize) {
        let Some(ContextParts { block, .. }) = self.parts else {
            return (num_keys, mla_decode::items_of(num_keys, self.splits));
        };
        let items_of = |rank| mla_decode::items_of(block.num_held_by(rank, num_keys), self.splits);
        (block.num_held(num_keys), (0..block.share().world).map(items_of).max().unwrap_or(0))
    }

    /// Gives passes the places that those of any step of `rows` rows have.
    fn spread(&mut self, rows: usize) {
        let pass_words = Self::pass_words(rows);
        let count = self.passes.len().next_power_of_two();
        let mut words = vec![0; count * pass_words];
        let ends = self.passes[1..].iter().copied().chain([self.words.len()]);
        for ((first, end), to) in self.passes.iter().zip(ends).zip(words.chunks_exact_mut(pass_words)) {
            let pass = &self.words[*first..end];
            to[..pass.len()].copy_from_slice(pass);
        }
        self.words = words;
        self.passes = (0..count).map(|pass| pass * pass_words).collect();
        self.launch_rows = Some(rows);
    }

    /// The scratch, which is free while nothing attends.
    pub fn scratch(&self) -> Buffer {
        self.scratch
    }

    /// The words of the last [`Attention::lists`].
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Appends a pass without rows and returns its first word.
    fn begin_pass(&mut self) -> usize {
        let first = self.words.len();
        self.words.extend([0; mla_decode::PASS_WORDS]);
        self.passes.push(first);
        first
    }

    fn check_cache(&self, at: &Addresses) -> Result<(), OpError> {
        let (shape, cache) = (&self.shape, &at.cache_shape);
        if cache.dtype != self.cache {
            let (rows, made_for) = (cache.dtype, self.cache);
            return Err(refusal(format!("cached rows of {rows:?}, and attention was made for {made_for:?}")));
        }
        let block_size = self.parts.map_or(self.capacity.block_size, |parts| parts.block.part());
        let expected = [shape.latent_dim(), shape.qk_rope_head_dim, block_size];
        expect("attend", &expected, &[cache.latent_dim, cache.rope_dim, cache.block_size])
    }

    fn check(&self, segment: &Segment) -> Result<(), OpError> {
        let covered = segment.block_table.len() * self.capacity.block_size;
        if covered < segment.context_len() {
            let text =
                format!("a block table of {covered} tokens for a context of {}", segment.context_len());
            return Err(refusal(text));
        }
        if segment.rows.end > self.capacity.rows {
            let text =
                format!("a step of {} rows, and the limit is {}", segment.rows.end, self.capacity.rows);
            return Err(refusal(text));
        }
        Ok(())
    }

    /// Number of passes of the current step's rows in absorbed form.
    pub fn num_passes(&self) -> usize {
        self.passes.len()
    }

    /// Number of passes, if the launches of the current step serve every step with so many passes and so many padded rows, also one
    /// with fewer rows or none: lists and rows are read on the device.
    pub fn recorded_passes(&self) -> Option<usize> {
        let passes = self.passes.len();
        (passes == 1 || self.launch_rows.is_some()).then_some(passes)
    }

    /// Words of a pass of `rows` rows.
    pub const fn pass_words(rows: usize) -> usize {
        mla_decode::PASS_WORDS + rows * mla_decode::ROW_WORDS
    }

    /// Attention of the rows of `plan.absorbed` given to the last [`Attention::lists`].
    pub fn attend_absorbed<D: Driver>(
        &self,
        stream: &mut Stream<D>,
        at: &Addresses,
        kv_up: &KvUp,
    ) -> Result<(), OpError> {
        self.check_cache(at)?;
        let exchanged = self.parts.as_ref().map(ContextParts::exchanged);
        let shape = exchanged.map_or(&self.shape, |(all, _)| all);
        let offsets = self.capacity.absorbed_parts(&self.shape, exchanged).0;
        let [latent_queries, statistics, latents, queries, values, row_statistics] =
            offsets.map(|offset| self.scratch.address + offset);
        let (decode, decode_launch, types) = self.decode(shape, at.cache_shape.dtype, kv_up.dtype);
        for pass in &self.passes {
            // A later step's pass may have other rows: the launches serve any number.
            let rows = self.launch_rows.unwrap_or(self.words[*pass] as usize);
            let pass = at.lists + 4 * *pass as u64;
            let params = mla_decode::Params {
                query: at.query,
                rotations: at.rotations,
                kv_up: kv_up.all,
                cache: at.cache,
                block_tables: at.block_tables,
                pass,
                latent_queries,
                statistics,
                latents,
                attended: at.attended,
                rounded: at.rounded,
                row_statistics,
                num_heads: shape.num_heads as i32,
                nope: shape.qk_nope_head_dim as i32,
                rope: shape.qk_rope_head_dim as i32,
                value: shape.v_head_dim as i32,
                latent: shape.kv_lora_rank as i32,
                block_size: at.cache_shape.block_size as i32,
                row_bytes: at.cache_shape.row_bytes() as i32,
                scale: shape.scale,
                part: Part::WHOLE,
                splits: self.splits as u32,
                queries_are_ready: 0,
                padding: 0,
                ahead: at.ahead,
            };
            let ready = self.absorb_for_decode(shape, at.cache_shape.dtype);
            let Some(ContextParts { exchange, .. }) = &self.parts else {
                let params = mla_decode::Params { queries_are_ready: u32::from(ready.is_some()), ..params };
                let (absorb, launch) = self.absorb(shape, kv_up.dtype, rows, ready);
                stream.launch(absorb, launch, &params)?;
                stream.launch(decode, decode_launch, &params)?;
                let (combine, launch) = self.combine(shape, rows, types);
                stream.launch(combine, launch, &params)?;
                continue;
            };
            let given = |from: u64, to: u64| Rows { pass, from, statistics: row_statistics, to, rounded: 0 };
            let returned = Rows { rounded: at.rounded, ..given(values, at.attended) };
            match exchange.layout.form() {
                AttentionExchange::Heads => {
                    exchange.queries(stream, &given(at.query, queries))?;
                    let params = mla_decode::Params {
                        query: queries,
                        attended: values,
                        rounded: 0,
                        part: Part::HEADS,
                        queries_are_ready: u32::from(ready.is_some()),
                        ..params
                    };
                    let (absorb, launch) = self.absorb(shape, kv_up.dtype, rows, ready);
                    stream.launch(absorb, launch, &params)?;
                    stream.launch(decode, decode_launch, &params)?;
                    let (combine, launch) = self.combine(shape, rows, types);
                    stream.launch(combine, launch, &params)?;
                    exchange.attended(stream, &returned)?;
                }
                AttentionExchange::Latents => {
                    let own = mla_decode::Params {
                        kv_up: kv_up.address,
                        latent_queries: queries,
                        // The queries have been given away when the merged latents come into their place.
                        latents: queries,
                        num_heads: self.shape.num_heads as i32,
                        part: Part::LATENTS,
                        ..params
                    };
                    let (absorb, launch) = self.absorb(&self.shape, kv_up.dtype, rows, None);
                    stream.launch(absorb, launch, &own)?;
                    exchange.queries(stream, &given(queries, latent_queries))?;
                    stream.launch(decode, decode_launch, &params)?;
                    let (merge, launch) = mla_decode::merge(shape, rows, types);
                    stream.launch(merge, launch, &mla_decode::Params { attended: values, ..params })?;
                    exchange.attended(stream, &given(values, queries))?;
                    let (project, launch) = self.project(rows, types);
                    stream.launch(project, launch, &own)?;
                }
            }
        }
        Ok(())
    }

    /// The function that leaves queries as the kernel of the items takes them, if there is one.
    fn absorb_for_decode(&self, shape: &MlaShape, cache: CacheDtype) -> Option<&'static str> {
        wgmma_mla_decode::function(shape, self.arch, cache)
            .filter(|_| self.clustered.is_some())
            .and_then(|_| wgmma_mla_absorb::function(shape, cache))
    }

    /// The kernel of the queries in the latent space, `ready` if there is one for the kernel of the items, and its launch for passes of so
    /// many rows.
    fn absorb(
        &self,
        shape: &MlaShape,
        kv_up: KvUpType,
        rows: usize,
        ready: Option<&'static str>,
    ) -> (&'static str, LaunchShape) {
        match kv_up {
            KvUpType::Bf16 if let Some(function) = ready => (function, wgmma_mla_absorb::launch(shape, rows)),
            KvUpType::Bf16 if self.arithmetic.are_rounded() && tiled_mla_absorb::takes(shape) => {
                (tiled_mla_absorb::FUNCTION, tiled_mla_absorb::launch(shape, rows))
            }
            KvUpType::Bf16 => ("mla_absorb_bf16", mla_decode::absorb_launch(shape, rows)),
            KvUpType::F32 => ("mla_absorb_f32", mla_decode::absorb_launch(shape, rows)),
        }
    }

    /// The kernel that merges items and multiplies by W_UV, and its launch for passes of so many rows.
    fn combine(&self, shape: &MlaShape, rows: usize, types: CombineTypes) -> (&'static str, LaunchShape) {
        match self.arithmetic.are_rounded() && types != CombineTypes::F32 && tiled_mla_combine::takes(shape) {
            true => tiled_mla_combine::combine(shape, rows, types == CombineTypes::Bf16F16),
            false => mla_decode::combine(shape, rows, types),
        }
    }

    /// The kernel that multiplies merged rows by W_UV, and its launch for passes of so many rows.
    fn project(&self, rows: usize, types: CombineTypes) -> (&'static str, LaunchShape) {
        let shape = &self.shape;
        match self.arithmetic.are_rounded() && types != CombineTypes::F32 && tiled_mla_combine::takes(shape) {
            true => tiled_mla_combine::project(shape, rows),
            false => mla_decode::project(shape, rows, types),
        }
    }

    /// The kernel of the items, its launch, and what is left to combine.
    fn decode(
        &self,
        shape: &MlaShape,
        cache: CacheDtype,
        kv_up: KvUpType,
    ) -> (&'static str, LaunchShape, CombineTypes) {
        let (items, multiprocessors) = (self.capacity.items, self.multiprocessors);
        let types = match kv_up {
            KvUpType::F32 => CombineTypes::F32,
            KvUpType::Bf16 => CombineTypes::Bf16,
        };
        assert!(
            self.clustered.is_none() || kv_up == KvUpType::Bf16,
            "W_UK and W_UV are in bf16 where activations are rounded"
        );
        if let Some(kernel) = self.clustered {
            let launch = (kernel.launch)(shape, items, kernel.clusters);
            return (kernel.function, launch, CombineTypes::Bf16F16);
        }
        if self.arithmetic.are_rounded()
            && tiled_mla_decode::takes(shape)
            && let Some(function) = tiled_mla_decode::function(shape, cache)
        {
            return (function, tiled_mla_decode::launch(shape, items, multiprocessors), types);
        }
        let function = match cache {
            CacheDtype::F32 => "mla_decode_f32",
            CacheDtype::Bf16 => "mla_decode_bf16",
            CacheDtype::Fp8(format) if format.rope_codes => "mla_decode_fp8_rope",
            CacheDtype::Fp8(_) => "mla_decode_fp8",
        };
        (function, mla_decode::decode_launch(shape, items, multiprocessors), types)
    }

    /// Attention of the rows of `segments`, the plan's `expanded` given to the last [`Attention::lists`]. Launches
    /// depend on the plan.
    pub fn attend_expanded<D: Driver>(
        &self,
        stream: &mut Stream<D>,
        at: &Addresses,
        kv_up: &KvUp,
        segments: &[Segment],
    ) -> Result<(), OpError> {
        self.check_cache(at)?;
        if let Some(parts) = self.parts.filter(|_| !segments.is_empty()) {
            parts.exchange.meet(stream)?;
        }
        for segment in segments {
            self.check(segment)?;
            for first_key in (0..segment.context_len()).step_by(self.capacity.slab_keys) {
                self.attend_slab(stream, at, kv_up, segment, first_key)?;
            }
        }
        Ok(())
    }

    /// Attention of a segment to the keys of the slab at `first_key`.
    fn attend_slab<D: Driver>(
        &self,
        stream: &mut Stream<D>,
        at: &Addresses,
        kv_up: &KvUp,
        segment: &Segment,
        first_key: usize,
    ) -> Result<(), OpError> {
        let (shape, capacity) = (&self.shape, &self.capacity);
        let num_keys = (segment.context_len() - first_key).min(capacity.slab_keys);
        // Rows before the slab have their result.
        let skipped = first_key.saturating_sub(segment.first_position);
        let num_rows = segment.rows.len() - skipped;
        let scratch = self.scratch.address;
        let [latents, rope_keys, keys_values, statistics, faults] =
            capacity.expanded_parts(shape).0.map(|part| scratch + part);
        let params = mla_prefill::Params {
            query: at.query,
            rotations: at.rotations,
            kv_up: kv_up.address,
            cache: match at.caches {
                None => CacheParts::alone(at.cache, self.capacity.block_size),
                Some(of_rank) => CacheParts {
                    of_rank,
                    block_size: self.capacity.block_size as i32,
                    part: at.cache_shape.block_size as i32,
                },
            },
            block_table: at.block_tables + 4 * segment.block_table.start as u64,
            latents,
            rope_keys,
            keys_values,
            faults,
            statistics,
            attended: at.attended,
            rounded: at.rounded,
            num_heads: shape.num_heads as i32,
            nope: shape.qk_nope_head_dim as i32,
            rope: shape.qk_rope_head_dim as i32,
            value: shape.v_head_dim as i32,
            latent: shape.kv_lora_rank as i32,
            row_bytes: at.cache_shape.row_bytes() as i32,
            scale: shape.scale,
            first_key: first_key as i32,
            num_keys: num_keys as i32,
            first_row: (segment.rows.start + skipped) as i32,
            num_rows: num_rows as i32,
            first_position: (segment.first_position + skipped) as i32,
        };
        if self.arithmetic.are_rounded()
            && kv_up.dtype == KvUpType::Bf16
            && tiled_mla_prefill::takes(shape)
            && let Some(gather) = tiled_mla_prefill::gather_function(at.cache_shape.dtype)
        {
            stream.launch(gather, tiled_mla_prefill::gather_launch(num_keys), &params)?;
            if wgmma_mla_expand::takes(shape, self.arch) {
                wgmma_mla_expand::launch(stream, &params)?;
            } else {
                stream.launch(
                    "tiled_mla_expand",
                    tiled_mla_prefill::expand_launch(shape, num_keys),
                    &params,
                )?;
            }
            if wgmma_mla_prefill::takes(shape, self.arch) {
                let launch = wgmma_mla_prefill::launch(shape, num_rows);
                return stream.launch("wgmma_mla_prefill", launch, &params);
            }
            if tcgen05_mla_prefill::takes(shape, self.arch) {
                let launch = tcgen05_mla_prefill::launch(shape, num_rows);
                return stream.launch("tcgen05_mla_prefill", launch, &params);
            }
            let launch = tiled_mla_prefill::prefill_launch(shape, num_rows);
            return stream.launch("tiled_mla_prefill", launch, &params);
        }
        let gather = match at.cache_shape.dtype {
            CacheDtype::F32 => "mla_gather_f32",
            CacheDtype::Bf16 => "mla_gather_bf16",
            CacheDtype::Fp8(format) if format.rope_codes => "mla_gather_fp8_rope",
            CacheDtype::Fp8(_) => "mla_gather_fp8",
        };
        let expand = match kv_up.dtype {
            KvUpType::F32 => "mla_expand_f32",
            KvUpType::Bf16 => "mla_expand_bf16",
        };
        stream.launch(gather, mla_prefill::gather_launch(num_keys), &params)?;
        stream.launch(expand, mla_prefill::expand_launch(shape, num_keys), &params)?;
        stream.launch("mla_prefill", mla_prefill::prefill_launch(shape, num_rows), &params)
    }
}

impl From<mla_decode::UnsupportedSize> for OpError {
    fn from(error: mla_decode::UnsupportedSize) -> Self {
        refusal(error.to_string())
    }
}

fn refusal(text: String) -> OpError {
    DriverError { call: "attend", code: 0, text, fatal: false }.into()
}
