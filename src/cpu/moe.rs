//! Mixture of experts: the router, and the SwiGLU of the chosen and shared experts.
//!
//! Rows are gathered by expert, so that each expert's weights are read once however many rows chose it. Two passes over the
//! threads: gate and up of every expert (sums go straight through SwiGLU into packed rows), then `down` by
//! columns of the output: one worker computes some columns for all experts and adds them up per row in order of k. So no
//! two workers write one output, and results do not depend on how rows are grouped.

use super::buffer::Routing;
use super::gemm::{Epilogue, Multiply, Operands, finished_together, row_blocks};
use super::layout::LANES;
use super::matrix::Panels;
use super::rows::{self, Numerics, RowLayout, RowWriter};
use super::simd::{self, Isa, Kernel, Simd};
use perigee_numbers::threads::{PerWorker, Shards, ThreadPool};
use perigee_ops::{RouterShape, RowForms};
use std::ops::Range;

/// Rows per pass: bounds the scratch (packed inputs and hidden rows) whatever the batch.
const PASS_ROWS: usize = 1024;

/// Router weight and selection bias.
#[derive(Debug)]
pub struct Router {
    /// `[E, D]`.
    pub(crate) weight: Panels,
    /// `[E]`.
    pub(crate) bias: Vec<f32>,
}

/// One SwiGLU FFN.
#[derive(Debug)]
pub(crate) struct Expert {
    /// Panels of gate and up alternating, `[2 I, D]`.
    pub gate_up: Panels,
    /// `[D, I]`.
    pub down: Panels,
    /// Form of the rows that meet gate and up, and of those that meet `down`.
    pub input: Option<RowForms>,
    pub inner: Option<RowForms>,
}

impl Expert {
    /// Layouts of input and hidden rows. `kind`: see [`Rows::kind`].
    fn layouts(&self, numerics: Numerics, kind: Option<bool>) -> [RowLayout; 2] {
        // Rows of one kind have no more terms than they need.
        let forms = |forms: RowForms| kind.map_or(forms, |is_prompt| forms.of(is_prompt).into());
        let layout = |form: Option<RowForms>, weights: &Panels| {
            numerics.layout_in(form.map(forms), weights.format, weights.in_features)
        };
        [layout(self.input, &self.gate_up), layout(self.inner, &self.down)]
    }
}

/// The entry of an expert that is held elsewhere.
const NO_ENTRY: u32 = u32::MAX;

/// SwiGLU matrices of one or many experts.
#[derive(Debug)]
pub struct Experts {
    /// Number of the first one among those that the router knows.
    pub(crate) first: usize,
    pub(crate) list: Vec<Expert>,
}

/// Sigmoid of a row of logits, in place.
struct Scores<'a>(&'a mut [f32]);

impl Kernel for Scores<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for lanes in self.0.chunks_mut(LANES) {
            // SAFETY: `lanes` holds the values the loads and stores name.
            unsafe {
                let v = simd::load_first::<S>(lanes.as_ptr(), lanes.len());
                simd::store_first::<S>(simd::sigmoid::<S>(v), lanes.as_mut_ptr(), lanes.len());
            }
        }
    }
}

/// Turns the logits of one row into its experts and weights. `logits` `[E]` become scores; `choice` is scratch `[E]`.
pub(crate) fn choose(
    isa: Isa,
    shape: &RouterShape,
    bias: &[f32],
    logits: &mut [f32],
    choice: &mut [f32],
    experts: &mut [u32],
    weights: &mut [f32],
) {
    // SAFETY: the instruction set is supported (checked at construction).
    unsafe { simd::launch(isa, Scores(logits)) };
    let scores = logits;
    for ((c, s), b) in choice.iter_mut().zip(scores.iter()).zip(bias) {
        let biased = s + b;
        *c = if biased.is_nan() { f32::NEG_INFINITY } else { biased };
    }
    if shape.topk_group < shape.n_group {
        let size = shape.num_experts / shape.n_group;
        let mut sums: Vec<f32> = choice.chunks_exact(size).map(best_two).collect();
        let mut kept = vec![false; shape.n_group];
        for _ in 0..shape.topk_group {
            kept[take_largest(&mut sums)] = true;
        }
        for (group, kept) in choice.chunks_exact_mut(size).zip(kept) {
            if !kept {
                group.fill(f32::NEG_INFINITY);
            }
        }
    }
    // A taken entry becomes NaN, which no comparison prefers; so even entries at minus infinity are each taken once.
    for expert in experts.iter_mut() {
        *expert = take_largest(choice) as u32;
    }
    let sum: f32 = experts.iter().map(|e| scores[*e as usize]).sum();
    let divisor = if shape.norm_topk_prob { sum + 1e-20 } else { 1.0 };
    for (weight, expert) in weights.iter_mut().zip(experts.iter()) {
        *weight = scores[*expert as usize] / divisor * shape.routed_scaling_factor;
    }
}

/// Sum of the two largest values of a group.
fn best_two(group: &[f32]) -> f32 {
    let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
    for x in group {
        if *x > first {
            (first, second) = (*x, first);
        } else if *x > second {
            second = *x;
        }
    }
    if group.len() < 2 { first } else { first + second }
}

/// Index of the largest value that is not NaN, the lowest on ties; marks it taken by making it NaN.
fn take_largest(values: &mut [f32]) -> usize {
    let mut best: Option<usize> = None;
    for (i, x) in values.iter().enumerate() {
        if !x.is_nan() && best.is_none_or(|b| *x > values[b]) {
            best = Some(i);
        }
    }
    let best = best.unwrap_or(0);
    values[best] = f32::NAN;
    best
}

/// The rows that meet in one expert.
#[derive(Debug, Clone, Copy)]
struct Group {
    /// Index into the routed list, or `None` for the shared expert.
    expert: Option<usize>,
    /// First entry in `Plan::entries`, and how many.
    first: usize,
    rows: usize,
    /// Layout of its inputs, and first word of the packed ones.
    input: RowLayout,
    input_start: usize,
    /// Layout of its hidden rows, and first word of the packed ones.
    hidden: RowLayout,
    hidden_start: usize,
}

/// A piece of the first pass: some panels of one group's gate and up, for some of its tiles.
#[derive(Debug, Clone)]
struct Item {
    group: usize,
    tiles: Range<usize>,
    panels: Range<usize>,
}

/// Scratch of the operation, kept between calls.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    groups: Vec<Group>,
    items: Vec<Item>,
    /// Row of the pass each entry reads, grouped by expert.
    entries: Vec<u32>,
    /// `[rows, K]`: the entry that holds the k-th expert's result for a row.
    entry_of: Vec<u32>,
    /// Entries of each expert; becomes the next free entry while filling.
    next: Vec<usize>,
    input: Vec<u32>,
    hidden: Vec<u32>,
    /// Layouts of inputs that take steps, and the rows of each before they are gathered; there may be more of these.
    quantized_in: Vec<RowLayout>,
    quantized: Vec<Vec<u32>>,
}

/// SwiGLU on alternating gate and up panels, into the packed rows of the second product.
struct SwiGlu<'a> {
    hidden: RowWriter,
    inner: usize,
    x: Rows<'a>,
    /// The row of `x` that each row is.
    entries: &'a [u32],
}

/// `silu(gate) * up` of the 16 units whose sums are the `pair`-th two panels. A function, because a closure would not be compiled for
/// the instruction set.
///
/// # Safety
/// Inside a launch of `S`; both panels are readable.
#[inline(always)]
unsafe fn swiglu<S: Simd>(sums: *const f32, pair: usize) -> S::V {
    // SAFETY: by the contract.
    unsafe {
        let at = sums.add(pair * 2 * LANES);
        S::mul(simd::silu::<S>(S::load(at)), S::load(at.add(LANES)))
    }
}

impl Epilogue for SwiGlu<'_> {
    /// 32 units share a scale.
    fn least_panels(&self) -> usize {
        if self.hidden.takes_steps() { 4 } else { 2 }
    }

    #[inline(always)]
    unsafe fn finish<S: Simd>(
        &self,
        rows: Range<usize>,
        panels: Range<usize>,
        sums: *const f32,
        stride: usize,
    ) {
        for row in rows.clone() {
            let packed = self.hidden.row(row);
            let pairs = panels.len() / 2;
            let unit = |pair: usize| (panels.start / 2 + pair) * LANES;
            // SAFETY: `sums` holds two panels per pair; the units from `unit(pair)` on are this item's own.
            unsafe {
                let sums = sums.add((row - rows.start) * stride);
                if self.hidden.takes_steps() {
                    let is_prompt = self.x.is_prompt(self.entries[row] as usize);
                    for pair in (0..pairs).step_by(2) {
                        let low = swiglu::<S>(sums, pair);
                        let high = if pair + 1 < pairs { swiglu::<S>(sums, pair + 1) } else { S::zero() };
                        packed.put_step::<S>(unit(pair), low, high, is_prompt);
                    }
                } else {
                    for pair in 0..pairs {
                        let hidden = swiglu::<S>(sums, pair);
                        packed.put::<S>(unit(pair), hidden, LANES.min(self.inner - unit(pair)));
                    }
                }
            }
        }
    }
}

/// Keeps the sums of one expert for the worker that adds them up.
struct KeepSums {
    /// `[entries, columns]`.
    kept: Shards<f32>,
    first_entry: usize,
    first_panel: usize,
    columns: usize,
}

impl Epilogue for KeepSums {
    #[inline(always)]
    unsafe fn finish<S: Simd>(
        &self,
        rows: Range<usize>,
        panels: Range<usize>,
        sums: *const f32,
        stride: usize,
    ) {
        let (column, count) = ((panels.start - self.first_panel) * LANES, panels.len() * LANES);
        for row in rows.clone() {
            // SAFETY: the worker's own scratch; `sums` holds `count` values per row.
            unsafe {
                let kept = self.kept.slice((self.first_entry + row) * self.columns + column, count);
                kept.copy_from_slice(std::slice::from_raw_parts(
                    sums.add((row - rows.start) * stride),
                    count,
                ));
            }
        }
    }
}

/// What the operation works with.
pub(crate) struct Context<'a> {
    pub pool: &'a mut ThreadPool,
    pub numerics: Numerics,
    pub sums: &'a PerWorker<Vec<f32>>,
    /// Results of `down` before they are added up, one per worker.
    pub kept: &'a PerWorker<Vec<f32>>,
    pub scratch: &'a mut Scratch,
}

/// Rows `[T, D]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub values: &'a [f32],
    /// D.
    pub width: usize,
    /// Whether a row is one of a prompt; rows beyond its end are not.
    pub are_prompts: &'a [bool],
}

impl<'a> Rows<'a> {
    fn count(&self) -> usize {
        self.values.len() / self.width
    }

    fn part(&self, rows: Range<usize>) -> Self {
        let values = &self.values[rows.start * self.width..rows.end * self.width];
        let are_prompts = self.are_prompts.get(rows.start..).unwrap_or_default();
        Self { values, are_prompts, ..*self }
    }

    fn is_prompt(&self, row: usize) -> bool {
        self.are_prompts.get(row).is_some_and(|is| *is)
    }

    /// Whether all of them are of prompts or none, if so.
    fn kind(&self) -> Option<bool> {
        let mut kinds = (0..self.count()).map(|row| self.is_prompt(row));
        let first = kinds.next()?;
        kinds.all(|kind| kind == first).then_some(first)
    }
}

/// `out[t] += sum_k weight[t,k] * expert[t,k](x[t]) + shared(x[t])`.
pub(crate) fn apply(
    mut context: Context<'_>,
    x: Rows<'_>,
    routed: Option<(&Experts, &Routing)>,
    shared: Option<&Expert>,
    out: &mut [f32],
) {
    for first in (0..x.count()).step_by(PASS_ROWS) {
        let pass = first..(first + PASS_ROWS).min(x.count());
        let out = &mut out[pass.start * x.width..pass.end * x.width];
        one_pass(&mut context, x.part(pass), first, routed, shared, out);
    }
}

fn one_pass(
    context: &mut Context<'_>,
    x: Rows<'_>,
    first_row: usize,
    routed: Option<(&Experts, &Routing)>,
    shared: Option<&Expert>,
    out: &mut [f32],
) {
    let Context { pool, numerics, sums, kept, scratch } = context;
    let (Rows { values, width, .. }, rows) = (x, x.count());
    let top_k = routed.map_or(0, |(_, routing)| routing.top_k);
    plan(scratch, *numerics, x, first_row, routed, shared);
    let Scratch { groups, items, entries, entry_of, input, hidden, quantized_in, quantized, .. } =
        &mut **scratch;
    let (groups, items, entries, entry_of) = (&*groups, &*items, &*entries, &*entry_of);
    let expert = |group: &Group| -> &Expert {
        match (group.expert, routed, shared) {
            (Some(e), Some((experts, _)), _) => &experts.list[e],
            (None, _, Some(shared)) => shared,
            _ => unreachable!("groups are made of what was given"),
        }
    };
    // A row meets several experts: it is quantized once for each form that they have it in.
    for (layout, words) in quantized_in.iter().zip(&mut *quantized) {
        let source = |row: usize| (&values[row * width..(row + 1) * width], x.is_prompt(row));
        rows::quantize(pool, *layout, rows, words, source);
    }
    let (quantized_in, quantized) = (&*quantized_in, &*quantized);
    let input_words = Shards::new(input);
    let pack = |group: &Group| {
        let layout = group.input;
        // SAFETY: the inputs stay borrowed; groups have words of their own.
        let words = unsafe { input_words.slice(group.input_start, group.rows * layout.words()) };
        let tiling = layout.tiling(group.rows);
        let writer = RowWriter::new(words, layout, tiling);
        let row = |i: usize| entries[group.first + i] as usize;
        if let Some(at) = quantized_in.iter().position(|other| *other == layout) {
            rows::interleave(layout, writer, 0..tiling.tiles, &quantized[at], &row);
        } else {
            rows::pack_tiles(layout, writer, 0..tiling.tiles, &|i| {
                &values[row(i) * width..(row(i) + 1) * width]
            });
        }
    };
    if rows == 1 {
        // One row: all experts read the same packed input, as long as their formats agree.
        for (i, group) in groups.iter().enumerate() {
            if !groups[..i].iter().any(|before| before.input_start == group.input_start) {
                pack(group);
            }
        }
    } else if entries.len() * width < (16 << 10) {
        groups.iter().for_each(pack);
    } else {
        pool.for_each(groups.len(), |_, g| pack(&groups[g]));
    }

    let hidden_words = Shards::new(hidden);
    pool.for_each(items.len(), |worker, index| {
        let Item { group, tiles, panels } = items[index].clone();
        let following = items
            .get(index + 1)
            .map_or(std::ptr::null(), |item| expert(&groups[item.group]).gate_up.address(item.panels.start));
        let group = &groups[group];
        let (layout, next) = (group.input, group.hidden);
        let weights = &expert(group).gate_up;
        // SAFETY: the hidden rows stay borrowed; items write units of their own.
        let words = unsafe { hidden_words.slice(group.hidden_start, group.rows * next.words()) };
        let hidden = RowWriter::new(words, next, next.tiling(group.rows));
        let entries = &entries[group.first..group.first + group.rows];
        let finish = SwiGlu { hidden, inner: next.in_features, x, entries };
        let rows = &input[group.input_start..group.input_start + group.rows * layout.words()];
        let operands = Operands { rows, layout, tiling: layout.tiling(group.rows), weights };
        // SAFETY: this worker's scratch, not used elsewhere in this job.
        let sums = unsafe { sums.get(worker) };
        // SAFETY: the instruction set is supported (checked at construction).
        unsafe {
            simd::launch(
                numerics.isa,
                Multiply { operands, tiles, panels, sums, finish: &finish, next: following },
            )
        };
    });

    let Some(first_group) = groups.first() else { return };
    let num_panels = expert(first_group).down.num_panels;
    // Few entries: wider chunks make longer streams. Many: the kept sums of a chunk should stay in the cache.
    let chunk = if entries.len() > 512 { 2 } else { 4 };
    let shared_entry = entries.len() - if shared.is_some() { rows } else { 0 };
    let out = Shards::new(out);
    pool.for_each(num_panels.div_ceil(chunk), |worker, item| {
        let panels = item * chunk..((item + 1) * chunk).min(num_panels);
        let columns = panels.len() * LANES;
        // SAFETY: this worker's scratch, not used elsewhere in this job.
        let (sums, kept) = unsafe { (sums.get(worker), kept.get(worker)) };
        if kept.len() < entries.len() * columns {
            kept.resize(entries.len() * columns, 0.0);
        }
        let shards = Shards::new(kept);
        for (g, group) in groups.iter().enumerate() {
            let layout = group.hidden;
            let rows = &hidden[group.hidden_start..group.hidden_start + group.rows * layout.words()];
            let weights = &expert(group).down;
            let operands = Operands { rows, layout, tiling: layout.tiling(group.rows), weights };
            let finish =
                KeepSums { kept: shards, first_entry: group.first, first_panel: panels.start, columns };
            // After the last expert's columns come the first one's next columns.
            let next = match groups.get(g + 1) {
                Some(group) => expert(group).down.address(panels.start),
                None => expert(first_group).down.address(panels.end),
            };
            let blocks = row_blocks(operands.layout, operands.tiling);
            for block in 0..blocks.tiles {
                let (tiles, panels, sums) = (blocks.range(block), panels.clone(), &mut sums[..]);
                let finish = &finish;
                // SAFETY: the instruction set is supported (checked at construction).
                unsafe {
                    simd::launch(numerics.isa, Multiply { operands, tiles, panels, sums, finish, next })
                };
            }
        }
        let first = panels.start * LANES;
        let count = columns.min(width - first);
        for row in 0..rows {
            // SAFETY: this item's columns of this row.
            let out = unsafe { out.slice(row * width + first, count) };
            let weights = routed.map_or(&[][..], |(_, routing)| {
                &routing.weights[(first_row + row) * top_k..(first_row + row + 1) * top_k]
            });
            let add = AddUp {
                kept,
                columns,
                entries: &entry_of[row * top_k..(row + 1) * top_k],
                weights,
                shared: shared.map(|_| shared_entry + row),
                out,
            };
            // SAFETY: the instruction set is supported (checked at construction).
            unsafe { simd::launch(numerics.isa, add) };
        }
    });
}

/// `out += sum_k weight_k * kept[entry_k] + kept[shared]`, some columns of one row.
struct AddUp<'a> {
    /// `[entries, columns]`.
    kept: &'a [f32],
    columns: usize,
    entries: &'a [u32],
    weights: &'a [f32],
    shared: Option<usize>,
    out: &'a mut [f32],
}

impl Kernel for AddUp<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let count = self.out.len();
        for k in (0..count).step_by(LANES) {
            // SAFETY: `k` is inside the columns of every kept row, which are padded to 16.
            unsafe {
                let at = |entry: usize| S::load(self.kept[entry * self.columns + k..][..LANES].as_ptr());
                let mut sum = S::zero();
                for (entry, weight) in self.entries.iter().zip(self.weights) {
                    if *entry == NO_ENTRY {
                        continue;
                    }
                    sum = S::fma(at(*entry as usize), S::splat(*weight), sum);
                }
                if let Some(shared) = self.shared {
                    sum = S::add(sum, at(shared));
                }
                let out = self.out[k..].as_mut_ptr();
                let before = simd::load_first::<S>(out, count - k);
                simd::store_first::<S>(S::add(before, sum), out, count - k);
            }
        }
    }
}

/// Groups the rows of a pass by expert, lays out the scratch and lists the items of the first pass.
fn plan(
    scratch: &mut Scratch,
    numerics: Numerics,
    x: Rows<'_>,
    first_row: usize,
    routed: Option<(&Experts, &Routing)>,
    shared: Option<&Expert>,
) {
    let Scratch { groups, items, entries, entry_of, next, input, hidden, quantized_in, quantized } = scratch;
    let (rows, kind) = (x.count(), x.kind());
    groups.clear();
    items.clear();
    entries.clear();
    entry_of.clear();
    quantized_in.clear();
    if let Some((experts, routing)) = routed {
        let chosen = &routing.experts[first_row * routing.top_k..(first_row + rows) * routing.top_k];
        next.clear();
        next.resize(experts.list.len(), 0);
        // Experts that another rank holds have no entries here.
        let held = |e: u32| (e as usize).checked_sub(experts.first).filter(|at| *at < experts.list.len());
        chosen.iter().filter_map(|e| held(*e)).for_each(|at| next[at] += 1);
        let mut first = 0;
        for (e, count) in next.iter_mut().enumerate() {
            if *count > 0 {
                let [input, hidden] = experts.list[e].layouts(numerics, kind);
                let rows = *count;
                groups.push(Group {
                    expert: Some(e),
                    first,
                    rows,
                    input,
                    input_start: 0,
                    hidden,
                    hidden_start: 0,
                });
            }
            (*count, first) = (first, first + *count);
        }
        entries.resize(first, 0);
        for (i, e) in chosen.iter().enumerate() {
            let Some(at) = held(*e) else {
                entry_of.push(NO_ENTRY);
                continue;
            };
            let entry = &mut next[at];
            entries[*entry] = (i / routing.top_k) as u32;
            entry_of.push(*entry as u32);
            *entry += 1;
        }
    }
    if let Some(shared) = shared {
        let (first, [input, hidden]) = (entries.len(), shared.layouts(numerics, kind));
        groups.push(Group { expert: None, first, rows, input, input_start: 0, hidden, hidden_start: 0 });
        entries.extend(0..rows as u32);
    }
    let (mut input_words, mut hidden_words) = (0, 0);
    let mut packed_once: Option<(RowLayout, usize)> = None;
    for (g, group) in groups.iter_mut().enumerate() {
        let weights = match (group.expert, routed, shared) {
            (Some(e), Some((experts, _)), _) => &experts.list[e],
            (None, _, Some(shared)) => shared,
            _ => continue,
        };
        let (layout, next) = (group.input, group.hidden);
        match packed_once {
            Some((same, start)) if rows == 1 && same == layout => group.input_start = start,
            _ => {
                group.input_start = input_words;
                input_words += group.rows * layout.words();
                packed_once = Some((layout, group.input_start));
            }
        }
        if layout.takes_steps() && !quantized_in.contains(&layout) {
            quantized_in.push(layout);
        }
        group.hidden_start = hidden_words;
        hidden_words += group.rows * next.words();
        let step = finished_together(layout, group.rows).max(finished_together(next, group.rows));
        let panels = weights.gate_up.num_panels;
        let blocks = row_blocks(layout, layout.tiling(group.rows));
        for block in 0..blocks.tiles {
            for first in (0..panels).step_by(step) {
                let panels = first..(first + step).min(panels);
                items.push(Item { group: g, tiles: blocks.range(block), panels });
            }
        }
    }
    if quantized.len() < quantized_in.len() {
        quantized.resize_with(quantized_in.len(), Vec::new);
    }
    if input.len() < input_words {
        input.resize(input_words, 0);
    }
    if hidden.len() < hidden_words {
        hidden.resize(hidden_words, 0);
    }
}
