//! The FFN of a layer: the router's choice, the worklist of the chosen experts, their products and sums.

use std::ops::Range;

use super::buffers::MOE_ROWS;
use super::projection::{Experts, SwigluMatrices};
use super::{CudaBackend, Router, Workspace, norm_params};
use crate::driver::Driver;
use crate::kernels::ahead::Ahead;
use crate::kernels::all_reduce::Operation;
use crate::kernels::fp4::{LaunchForm, RowKind};
use crate::kernels::linear::{self, Output};
use crate::kernels::route::{self, Choice, FusedRoute, Held, Worklist};
use crate::kernels::{
    combine, experts, fp4, fp4_linear, fp4_rows, fp4_swiglu, route_swiglu, tiled, tiled_down, tiled_linear,
    tiled_swiglu,
};
use crate::stream::Buffer;
use crate::tuner::Product;
use perigee_ops::{OpError, RouterShape, expect};

/// Most rows of shared experts that take the variant of the routed ones: a launch less counts more than their time.
const JOINED_ROWS: usize = 32;

/// Rows through experts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ffn<'a> {
    pub(super) weights: &'a Experts,
    pub(super) slots: Slots<'a>,
    /// First row, f32 and bf16.
    pub(super) x: [u64; 2],
    /// Between the products, by slot.
    pub(super) inner: u64,
    /// f32, by slot.
    pub(super) out: u64,
    /// Whether the first product is there.
    pub(super) has_inner: bool,
    /// Which of the rows are in expanded form.
    pub(super) kind: RowKind,
}

/// The rows of experts.
#[derive(Debug, Clone, Copy)]
pub(super) enum Slots<'a> {
    /// Row t is slot t, of expert 0.
    Rows(usize),
    /// As routed, so many slots, so many of each row.
    Routed(&'a Worklist, usize, usize),
}

impl Slots<'_> {
    /// Rows of x.
    fn num_rows(self) -> usize {
        match self {
            Self::Rows(rows) => rows,
            Self::Routed(_, num_slots, per_row) => num_slots.div_ceil(per_row.max(1)),
        }
    }
}

impl<D: Driver> CudaBackend<D> {
    /// The router's choice for all rows of the step, behind the norm with the gain `pending`, and with `list` their worklist. Returns
    /// whether the first product of `shared`, from the address of its rows, was computed meanwhile.
    pub(super) fn choose(
        &mut self,
        pending: Option<&Buffer>,
        router: &Router,
        shared: Option<(&Experts, u64)>,
        shape: &RouterShape,
        list: Option<&Worklist>,
        w: &Workspace<D>,
    ) -> Result<bool, OpError> {
        let (a, rows) = (&w.activations, w.step.padded_rows());
        expect("moe", &[shape.num_experts], &[router.weight.out_features])?;
        let inputs = [a.router_logits.address, router.bias.address, w.step.num_rows()];
        let (chosen, weights) = (a.chosen.address, a.weights.address);
        let choice = Choice { chosen, weights, blocks_done: a.blocks_done.address };
        if let (Some(list), Some(gain), Some(function)) =
            (list, pending, route::norm_function(&router.weight))
            && rows <= route::NORM_ROWS
        {
            route::launch_with_norms(
                &mut self.stream,
                function,
                shape,
                rows,
                &router.weight,
                norm_params(gain, w),
                inputs,
                choice,
                list,
                a.route_progress.address,
            )?;
            return Ok(false);
        }
        pending.map_or(Ok(()), |gain| self.norm_rows(gain, w))?;
        let x = linear::Rows { address: a.normed.exact.address, stride: router.weight.in_features };
        if let (Some(list), Some(function)) = (list, route::fused_function(&router.weight, shape))
            && rows <= route::FUSED_ROWS
        {
            let (weight, addresses) = (&router.weight, inputs);
            let fused = FusedRoute { shape, padded_rows: rows, weight, x, addresses, choice, list };
            if let Some((Experts { weights: SwigluMatrices::Tiles { gate_up, .. }, .. }, inner)) = shared
                && let Some(function) = route_swiglu::function(&fused, gate_up)
            {
                let x = tiled::Rows {
                    address: a.normed.row(0, gate_up.in_features)[1],
                    stride: gate_up.in_features,
                };
                let y = tiled::Rows { address: inner, stride: gate_up.out_features };
                let part = tiled::Part { matrix: gate_up, slots: tiled::Slots::Rows(rows, 0), x, y };
                route_swiglu::launch(&mut self.stream, function, &fused, &part)?;
                return Ok(true);
            }
            let ahead = match shared {
                Some((Experts { weights: SwigluMatrices::Tiles { gate_up, .. }, .. }, _)) => {
                    self.ahead(gate_up, rows)
                }
                _ => Ahead::NONE,
            };
            route::launch_fused(&mut self.stream, function, &fused, ahead)?;
            return Ok(false);
        }
        let y = linear::Rows { address: a.router_logits.address, stride: router.weight.out_features };
        linear::launch(&mut self.stream, rows, &router.weight, x, 0, y, Output::Set)?;
        route::launch_route(&mut self.stream, shape, rows, inputs, choice, list)?;
        Ok(false)
    }

    /// Where rows of `shared` lie between its products: behind the slots of the routed experts.
    pub(super) fn shared_inner(routed: Option<&Experts>, num_rows: usize, w: &Workspace<D>) -> u64 {
        let slots = num_rows * w.shape.router.top_k;
        let bytes = routed.map_or(0, |routed| (routed.inner_row_bytes() * slots) as u64);
        w.activations.inner.address + bytes.next_multiple_of(16)
    }

    /// Where the worklist of so many rows is written, at most [`MOE_ROWS`].
    pub(super) fn worklist(&self, routed: &Experts, num_rows: usize, w: &Workspace<D>) -> Worklist {
        let a = &w.activations;
        let num_slots = num_rows * w.shape.router.top_k;
        let arch = self.stream.arch();
        let tile_rows = routed.tile_rows(arch, &self.choices, num_slots, w.row_kind(0));
        Worklist {
            num_tiles: a.num_tiles.address,
            tiles: a.tiles.address,
            slots: a.slots.address,
            tile_rows,
            max_tiles: route::max_tiles(num_slots, routed.held().count as usize, tile_rows),
            held: routed.held(),
        }
    }

    /// Writes the worklist of the rows `rows`, at most [`MOE_ROWS`].
    pub(super) fn write_worklist(
        &mut self,
        list: &Worklist,
        rows: &Range<usize>,
        w: &Workspace<D>,
    ) -> Result<(), OpError> {
        let top_k = w.shape.router.top_k;
        let chosen = w.activations.chosen.address + 4 * (rows.start * top_k) as u64;
        route::launch_tiles(&mut self.stream, rows.len() * top_k, chosen, list)
    }

    /// Adds routed and shared experts to the residual stream, then the norm. `routed` is `None` for a dense FFN; a step of
    /// at most [`MOE_ROWS`] rows has its worklist. `has_shared_inner`: the first product of `shared` is there.
    pub(super) fn ffn(
        &mut self,
        routed: Option<&Experts>,
        shared: Option<&Experts>,
        has_shared_inner: bool,
        gain: Option<&Buffer>,
        w: &mut Workspace<D>,
    ) -> Result<(), OpError> {
        let ahead = std::mem::replace(&mut w.ahead_of_layer, [Ahead::NONE; 2]);
        let w = &*w;
        let (a, width) = (&w.activations, w.shape.hidden_size);
        let all = w.step.padded_rows();
        for start in (0..all).step_by(MOE_ROWS) {
            let rows = start..(start + MOE_ROWS).min(all);
            let x = a.normed.row(start, width);
            let top_k = if routed.is_some() { w.shape.router.top_k } else { 0 };
            let list = routed.map(|routed| self.worklist(routed, rows.len(), w));
            if let Some(list) = list.as_ref().filter(|_| all > MOE_ROWS) {
                self.write_worklist(list, &rows, w)?;
            }
            let (mut ffns, kind) = (Vec::with_capacity(2), w.row_kind(start));
            if let (Some(weights), Some(list)) = (routed, &list) {
                let slots = Slots::Routed(list, rows.len() * top_k, top_k);
                let (inner, out) = (a.inner.address, a.routed.address);
                ffns.push(Ffn { weights, slots, x, inner, out, has_inner: false, kind });
            }
            if let Some(weights) = shared {
                let (inner, out) = (Self::shared_inner(routed, rows.len(), w), a.shared.address);
                let slots = Slots::Rows(rows.len());
                ffns.push(Ffn { weights, slots, x, inner, out, has_inner: has_shared_inner, kind });
            }
            self.swiglu(&ffns)?;
            let choice = 4 * (start * top_k) as u64;
            let [normed, rounded] = x;
            // The residual stream, or this rank's part of what is added to it.
            let (hidden, gain, adds) = match &w.peers {
                None => (a.hidden, gain, 1),
                Some(peers) => (peers.partial, None, 0),
            };
            let params = combine::Params {
                hidden: hidden.address + 4 * (start * width) as u64,
                routed: a.routed.address,
                chosen: a.chosen.address + choice,
                weights: a.weights.address + choice,
                shared: shared.map_or(0, |_| a.shared.address),
                gain: gain.map_or(0, |gain| gain.address),
                normed,
                rounded,
                columns: width as i32,
                top_k: top_k as i32,
                eps: w.shape.rms_norm_eps,
                adds,
                held: routed.map_or(Held::NONE, Experts::held),
            };
            combine::launch(&mut self.stream, rows.len(), &params, ahead)?;
        }
        match &w.peers {
            None => Ok(()),
            Some(peers) => self.add_up(Operation::Ffn, all, peers, gain, w),
        }
    }

    /// The two products of experts, in two launches if all of them have one format and are on tensor cores; with many rows,
    /// if they have one variant too.
    pub(super) fn swiglu(&mut self, all: &[Ffn<'_>]) -> Result<(), OpError> {
        self.swiglu_in_fp4(all)?;
        let stream = &mut self.stream;
        let mut launches: Vec<([&tiled::Variant; 2], Vec<tiled::Part<'_>>, Vec<tiled::Part<'_>>)> =
            Vec::new();
        for ffn in all {
            let ([x, rounded], inner, out) = (ffn.x, ffn.inner, ffn.out);
            match &ffn.weights.weights {
                SwigluMatrices::Rows(weights) => {
                    let (slots, top_k) = match ffn.slots {
                        Slots::Rows(rows) => (experts::Slots::Rows(rows), 1),
                        Slots::Routed(list, _, top_k) => (experts::Slots::Routed(list), top_k),
                    };
                    experts::launch_up(stream, weights, slots, top_k, x, inner)?;
                    experts::launch_down(stream, weights, slots, inner, out)?;
                }
                SwigluMatrices::Panels { .. } => {}
                SwigluMatrices::Tiles { gate_up, down } => {
                    let (up, second, chosen) = match ffn.slots {
                        Slots::Rows(rows) => {
                            let up = self.choices.variant(Product::Swiglu, gate_up, rows);
                            let down = self.choices.variant(Product::Linear, down, rows);
                            (tiled::Slots::Rows(rows, 0), tiled::Slots::Rows(rows, 0), [up, down])
                        }
                        // Between the router and the second product is the first one.
                        Slots::Routed(list, num_slots, top_k) => (
                            tiled::Slots::Routed(list, top_k),
                            tiled::Slots::RoutedBefore(list, 1),
                            self.choices.pair(gate_up, down, num_slots),
                        ),
                    };
                    let x = tiled::Rows { address: rounded, stride: gate_up.in_features };
                    let inner = tiled::Rows { address: inner, stride: gate_up.out_features };
                    let y = tiled::Rows { address: out, stride: down.out_features };
                    let up = tiled::Part { matrix: gate_up, slots: up, x, y: inner };
                    let down = tiled::Part { matrix: down, slots: second, x: inner, y };
                    // The worklist has the rows of its variants; what has none takes any.
                    let few = matches!(ffn.slots, Slots::Rows(rows) if rows <= JOINED_ROWS);
                    let up = (!ffn.has_inner).then_some(up);
                    match launches.last_mut() {
                        Some((variants, ups, downs)) if few || *variants == chosen => {
                            ups.extend(up);
                            downs.push(down);
                        }
                        _ => launches.push((chosen, up.into_iter().collect(), vec![down])),
                    }
                }
            }
        }
        for ([up, down], ups, downs) in launches {
            tiled_swiglu::launch(stream, up, &ups)?;
            if let [routed, shared] = downs[..]
                && let Some(function) = tiled_down::function(down, routed.matrix.format, shared.matrix.format)
            {
                tiled_down::launch(stream, function, down, &[routed, shared])?;
            } else {
                tiled_linear::launch(stream, down, &downs, false)?;
            }
        }
        Ok(())
    }

    /// The two products of experts whose rows are in 4-bit floats, in three launches if all of them are alike.
    fn swiglu_in_fp4(&mut self, all: &[Ffn<'_>]) -> Result<(), OpError> {
        let (stream, choices) = (&mut self.stream, &self.choices);
        let (mut firsts, mut seconds): (Vec<fp4::Part<'_>>, Vec<fp4::Part<'_>>) = (Vec::new(), Vec::new());
        let mut rows: Vec<FormedRows> = Vec::new();
        for ffn in all {
            let SwigluMatrices::Panels { gate_up, down, forms } = &ffn.weights.weights else { continue };
            let [input, inner_form] = forms.map(|forms| LaunchForm::of(forms, ffn.kind));
            let (first, second, tile_rows) = match ffn.slots {
                Slots::Rows(rows) => {
                    // Of few rows in the blocks of the routed experts: a launch less counts more than their time.
                    let joined =
                        firsts.first().map(|routed| routed.tile_rows).filter(|_| rows <= JOINED_ROWS);
                    let tile_rows = joined.unwrap_or_else(|| {
                        choices.panel_slots(stream.arch(), [gate_up, down], input.form, rows)
                    });
                    (tiled::Slots::Rows(rows, 0), tiled::Slots::Rows(rows, 0), tile_rows)
                }
                // Between the router and the second product are rows and the first one.
                Slots::Routed(list, _, top_k) => {
                    (tiled::Slots::Routed(list, top_k), tiled::Slots::RoutedBefore(list, 1), list.tile_rows)
                }
            };
            let stride = fp4_rows::row_bytes(gate_up.out_features, inner_form.form.num_terms());
            let inner = tiled::Rows { address: ffn.inner, stride };
            let y = tiled::Rows { address: ffn.out, stride: down.out_features };
            // Set when the rows are written.
            let x = y;
            let part = |matrix, slots, x, form: LaunchForm, y, y_form| fp4::Part {
                matrix,
                slots,
                tile_rows,
                x,
                form: form.form,
                y,
                y_form,
            };
            firsts.push(part(gate_up, first, x, input, inner, Some(inner_form)));
            seconds.push(part(down, second, inner, inner_form, y, None));
            // Rows of the first product lie where those of the second will, which reads them no more.
            let x = tiled::Rows { address: ffn.x[0], stride: gate_up.in_features };
            rows.push(FormedRows { form: input, count: ffn.slots.num_rows(), x, to: ffn.out });
        }
        let together = matches!(&firsts[..], [first, second] if first.is_like(second));
        for (rows, firsts) in match together {
            true => vec![(&rows[..], &mut firsts[..])],
            false => rows.chunks(1).zip(firsts.chunks_mut(1)).collect(),
        } {
            let Some(one) = rows.first() else { continue };
            let (forms, to): (Vec<_>, Vec<_>) = rows.iter().map(|rows| (rows.form, rows.to)).unzip();
            let places = fp4_rows::launch(stream, &forms, one.count, one.x.stride, one.x, &to)?;
            firsts.iter_mut().zip(places).for_each(|(part, place)| part.x = place);
        }
        fp4_swiglu::launch(stream, &firsts)?;
        fp4_linear::launch(stream, &seconds)
    }
}

/// Rows in front of a first product, and where they go.
struct FormedRows {
    form: LaunchForm,
    count: usize,
    x: tiled::Rows,
    to: u64,
}
