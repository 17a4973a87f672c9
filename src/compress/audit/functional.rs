//! The identity of pruning: the target's layer computes what the source's does when its router may only pick the kept experts.
//!
//! Masked, the source's selection bias is minus infinity for dropped experts. Both sides run through the reference operations on
//! dequantized weights, one expert at a time, so that a layer of any size fits; equal bytes give equal sums, so the expected difference is exactly 0.

use std::collections::BTreeMap;

use serde::Serialize;

use super::distance::{WRONG_OUTPUT, ratio};
use super::faults::Faults;
use super::options::AuditOptions;
use crate::audit::linears::{linear, swiglu};
use crate::prune::plan_file::{ExpertPlan, LayerPlan};
use perigee_model::Blueprint;
use perigee_model::checkpoint::Checkpoint;
use perigee_model::expert_names::{Role, role};
use perigee_numbers::tensor::{Dtype, TensorView};
use perigee_ops::RouterShape;
use perigee_ops::host::HostOps;
use perigee_ops::host::reference::ReferenceBackend;

/// The outcome for one layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Functional {
    /// Layer.
    pub layer: usize,
    /// Random hidden vectors.
    pub tokens: usize,
    /// Of these, routed otherwise by the unmasked source: the pruning is felt there. (All alike would make the check say little.)
    pub rerouted: usize,
    /// Tokens for which source and target pick the same experts with the same weights.
    pub same_selection: usize,
    /// Distinct experts that were run on both sides.
    pub experts_run: usize,
    /// Largest absolute difference of the routed output over all tokens; expected 0, unless the target is quantized too.
    pub max_abs_diff: f64,
    /// The difference's norm by that of the source's output: with quantized experts what quantization does to the layer.
    pub relative_error: f64,
}

/// `None` where the check could not be made: a fault then says why. `exact`: the target's experts have the source's bytes.
pub(super) fn audit(
    source: &Checkpoint,
    target: &Checkpoint,
    plan: &ExpertPlan,
    options: &AuditOptions<'_>,
    exact: bool,
    faults: &mut Faults,
) -> Option<Functional> {
    let layer = match options.functional_layer {
        None => &plan.layers()[0],
        Some(layer) => match plan.layer(layer) {
            Some(layer) => layer,
            None => {
                faults.add(format!("functional check: the plan has no layer {layer}"));
                return None;
            }
        },
    };
    match check(source, target, layer, options) {
        Ok(outcome) => {
            let is_wrong = match exact {
                true => outcome.max_abs_diff != 0.0,
                false => outcome.relative_error.is_nan() || outcome.relative_error > WRONG_OUTPUT,
            };
            if outcome.same_selection < outcome.tokens || is_wrong {
                faults.add(format!(
                    "functional check, layer {}: {} of {} tokens pick the planned experts, max abs diff {:?}, relative error {:.4}",
                    outcome.layer,
                    outcome.same_selection,
                    outcome.tokens,
                    outcome.max_abs_diff,
                    outcome.relative_error
                ));
            }
            Some(outcome)
        }
        Err(problem) => {
            faults.add(format!("functional check, layer {}: {problem}", layer.layer));
            None
        }
    }
}

/// One side: a checkpoint's router in one layer.
struct Side<'a> {
    checkpoint: &'a Checkpoint,
    /// Name of the router before its last word.
    gate: String,
    shape: RouterShape,
}

impl<'a> Side<'a> {
    fn new(checkpoint: &'a Checkpoint, layer: usize) -> Result<Self, String> {
        let gate = checkpoint.names().find_map(|name| match role(name) {
            Role::Router { layer: l, rest } if l == layer => {
                Some(name[..name.len() - rest.len() - 1].to_owned())
            }
            _ => None,
        });
        let config = checkpoint.file("config.json").ok_or("no config.json")?;
        let blueprint = Blueprint::parse(&config).map_err(|e| e.to_string())?;
        Ok(Self { checkpoint, gate: gate.ok_or("no router")?, shape: blueprint.router })
    }

    fn expert_stem(&self, id: u32) -> String {
        format!("{}experts.{id}", self.gate.strip_suffix("gate").unwrap_or(&self.gate))
    }

    /// Chosen experts and weights of `x`, `[T, K]`; `bias` replaces the stored one.
    fn route(&self, x: &[f32], bias: &[f32]) -> Result<(Vec<u32>, Vec<f32>), String> {
        let (_, weight) = linear(self.checkpoint, &self.gate).map_err(|e| e.to_string())?;
        let mut backend = ReferenceBackend;
        let bytes: Vec<u8> = bias.iter().flat_map(|b| b.to_le_bytes()).collect();
        let bias = TensorView { dtype: Dtype::F32, shape: &[bias.len()], bytes: &bytes };
        let width = weight.shape()[1];
        let mut run = || {
            let router = backend.load_router(&weight, &bias, &self.shape)?;
            let mut rows = backend.allocate(x.len() / width, width)?;
            backend.write(x, &mut rows)?;
            let mut routing = backend.allocate_routing(x.len() / width, &self.shape)?;
            backend.route(&rows, &router, &self.shape, &mut routing)?;
            let (mut experts, mut weights) = (Vec::new(), Vec::new());
            backend.read_routing(&routing, &mut experts, &mut weights)?;
            Ok((experts, weights))
        };
        run().map_err(|e: perigee_ops::OpError| e.to_string())
    }

    fn bias(&self) -> Result<Vec<f32>, String> {
        let name = format!("{}.e_score_correction_bias", self.gate);
        let view = self.checkpoint.tensor(&name).ok_or_else(|| format!("{name} is missing"))?;
        match view.to_f32() {
            values if values.len() == self.shape.num_experts => Ok(values),
            values => {
                Err(format!("{name} has {} values for {} experts", values.len(), self.shape.num_experts))
            }
        }
    }

    /// Outputs `[rows, D]` of one expert.
    fn expert(&self, id: u32, x: &[f32], width: usize) -> Result<Vec<f32>, String> {
        let stem = self.expert_stem(id);
        let matrices = swiglu(self.checkpoint, &stem).map_err(|e| e.to_string())?;
        let mut backend = ReferenceBackend;
        let mut run = || {
            let expert = backend.load_experts(std::slice::from_ref(&matrices), 0)?;
            self.checkpoint.release_under(&stem);
            let (mut rows, mut out) =
                (backend.allocate(x.len() / width, width)?, backend.allocate(x.len() / width, width)?);
            backend.write(x, &mut rows)?;
            backend.write(&vec![0.0; x.len()], &mut out)?;
            backend.swiglu_add(&rows, &[], &expert, &mut out)?;
            Ok::<_, perigee_ops::OpError>(ReferenceBackend::values(&out).to_vec())
        };
        run().map_err(|e| format!("expert {id}: {e}"))
    }
}

fn check(
    source: &Checkpoint,
    target: &Checkpoint,
    plan: &LayerPlan,
    options: &AuditOptions<'_>,
) -> Result<Functional, String> {
    let tokens = options.functional_tokens;
    let (mut before, after) = (Side::new(source, plan.layer)?, Side::new(target, plan.layer)?);
    let (_, router) = linear(source, &before.gate).map_err(|e| e.to_string())?;
    let width = router.shape().get(1).copied().unwrap_or_default();
    let x = normal(options.seed, tokens * width);
    let bias = before.bias()?;
    if bias.len() != plan.num_source {
        return Err(format!(
            "the source's config.json has {} experts, the plan {}",
            bias.len(),
            plan.num_source
        ));
    }
    let (free, _) = before.route(&x, &bias)?;
    // Where groups had to go, the identity is with the source without them.
    (before.shape.n_group, before.shape.topk_group) = (after.shape.n_group, after.shape.topk_group);
    let masked: Vec<f32> = (0..plan.num_source as u32)
        .map(|id| if plan.new_id(id).is_some() { bias[id as usize] } else { f32::NEG_INFINITY })
        .collect();
    let (chosen, weights) = before.route(&x, &masked)?;
    let (new_chosen, new_weights) = after.route(&x, &after.bias()?)?;
    let k = before.shape.top_k.max(1);
    if after.shape.top_k != before.shape.top_k || new_chosen.len() != chosen.len() {
        return Err(format!("the target picks {} experts per token, the source {k}", after.shape.top_k));
    }
    let planned: Vec<Option<u32>> = chosen.iter().map(|old| plan.new_id(*old)).collect();
    let slots = || chosen.chunks(k).zip(planned.chunks(k).zip(new_chosen.chunks(k)));
    let rerouted = slots().zip(free.chunks(k)).filter(|((masked, _), free)| masked != free).count();
    let same_weights = |t: usize| weights[t * k..(t + 1) * k] == new_weights[t * k..(t + 1) * k];
    let same_selection = slots()
        .enumerate()
        .filter(|(t, (_, (planned, new)))| {
            planned.iter().zip(*new).all(|(p, n)| *p == Some(*n)) && same_weights(*t)
        })
        .count();

    let mut expected = vec![0f64; tokens * width];
    let mut got = vec![0f64; tokens * width];
    let mut experts_run = 0;
    for (side, chosen, weights, sums) in
        [(&before, &chosen, &weights, &mut expected), (&after, &new_chosen, &new_weights, &mut got)]
    {
        // Slot by slot of each expert, in the order of the source's ids on both sides: equal terms in equal order.
        let mut users: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        chosen.iter().enumerate().for_each(|(slot, id)| users.entry(*id).or_default().push(slot));
        experts_run = experts_run.max(users.len());
        for (id, slots) in users {
            let rows: Vec<f32> =
                slots.iter().flat_map(|slot| &x[slot / k * width..(slot / k + 1) * width]).copied().collect();
            let outputs = side.expert(id, &rows, width)?;
            for (slot, output) in slots.iter().zip(outputs.chunks(width)) {
                let sum = &mut sums[slot / k * width..(slot / k + 1) * width];
                sum.iter_mut().zip(output).for_each(|(s, y)| *s += f64::from(weights[*slot]) * f64::from(*y));
            }
        }
    }
    let differences = expected.iter().zip(&got).map(|(a, b)| if a == b { 0.0 } else { (a - b).abs() });
    let max_abs_diff = differences.map(|d| if d.is_nan() { f64::INFINITY } else { d }).fold(0.0, f64::max);
    let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>();
    let lost = squares(&mut expected.iter().zip(&got).map(|(a, b)| a - b));
    let relative_error = ratio(lost, squares(&mut expected.iter().copied()));
    let layer = plan.layer;
    Ok(Functional { layer, tokens, rerouted, same_selection, experts_run, max_abs_diff, relative_error })
}

/// Normal values by Box and Muller, from a seed.
fn normal(seed: u64, count: usize) -> Vec<f32> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut draw = || (-2.0 * (1.0 - rng.f64()).ln()).sqrt() * (std::f64::consts::TAU * rng.f64()).cos();
    (0..count).map(|_| draw() as f32).collect()
}
