//! What every tensor of a pruned checkpoint is made of; reads headers only.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::plan_file::{ExpertLayers, ExpertPlan};
use perigee_model::checkpoint::{Checkpoint, TensorSpec};
use perigee_model::expert_names::{Role, role};
use perigee_numbers::tensor::TensorView;

/// A tensor that pruning does not know how to carry over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("tensor {name}: {problem}")]
pub struct RewriteError {
    /// Name in the source.
    pub name: String,
    /// What is unexpected about it.
    pub problem: String,
}

fn error(name: &str, problem: impl Into<String>) -> RewriteError {
    RewriteError { name: name.to_owned(), problem: problem.into() }
}

/// A tensor of the target.
#[derive(Debug)]
pub(super) struct TargetTensor<'a> {
    /// Name, dtype and shape in the target.
    pub(super) spec: TensorSpec,
    /// Bytes of its data.
    pub(super) bytes: u64,
    /// Name in the source.
    pub(super) source: &'a str,
    pub(super) content: Content<'a>,
}

/// Where its bytes come from.
#[derive(Debug)]
pub(super) enum Content<'a> {
    /// All bytes of the source tensor.
    Whole,
    /// These rows of it (dimension 0), in this order.
    Rows(&'a [u32]),
    /// New bytes: the shape of a router's packed codes, stored as a tensor.
    New(Vec<u8>),
}

impl TargetTensor<'_> {
    /// The bytes; borrowed from the source where they are there in one piece.
    pub(super) fn bytes<'c>(&self, source: &TensorView<'c>) -> Cow<'c, [u8]> {
        match &self.content {
            Content::Whole => Cow::Borrowed(source.bytes),
            Content::New(bytes) => Cow::Owned(bytes.clone()),
            Content::Rows(rows) => {
                let row = source.bytes.len() / source.shape.first().copied().unwrap_or(1).max(1);
                let mut kept = Vec::with_capacity(rows.len() * row);
                rows.iter()
                    .for_each(|r| kept.extend(&source.bytes[*r as usize * row..(*r as usize + 1) * row]));
                Cow::Owned(kept)
            }
        }
    }
}

/// Layers with routed experts and how many each has. The ids of a layer must be 0, 1, 2 ... without a gap.
pub fn expert_layers(checkpoint: &Checkpoint) -> Result<ExpertLayers, RewriteError> {
    let mut ids: BTreeMap<usize, BTreeSet<u32>> = BTreeMap::new();
    for name in checkpoint.names() {
        match role(name) {
            Role::Expert(expert) => {
                ids.entry(expert.layer).or_default().insert(expert.expert);
            }
            Role::Stacked { .. } => {
                let problem = "is of no single expert; only checkpoints with one set of tensors per expert can be pruned";
                return Err(error(name, problem));
            }
            Role::Router { .. } | Role::Other => {}
        }
    }
    let layers = ids.into_iter().map(|(layer, ids)| match ids.last() {
        Some(last) if *last as usize + 1 == ids.len() => Ok((layer, ids.len())),
        last => {
            let missing = (0..).find(|id| !ids.contains(id)).unwrap_or_default();
            let last = last.copied().unwrap_or_default();
            let problem =
                format!("is missing, although expert {last} is there; the checkpoint is incomplete");
            Err(error(&format!("layers.{layer}.mlp.experts.{missing}.*"), problem))
        }
    });
    layers.collect()
}

/// Every tensor of the target by the shard it goes to, which has the name of the source's shard. Within a shard tensors stay in the order of
/// the source's bytes. Shards that lose all their tensors are left out.
pub(super) fn rewrite<'a>(
    checkpoint: &'a Checkpoint,
    plan: &'a ExpertPlan,
) -> Result<BTreeMap<&'a str, Vec<TargetTensor<'a>>>, RewriteError> {
    let mut shards: BTreeMap<&str, Vec<(usize, TargetTensor<'_>)>> = BTreeMap::new();
    for name in checkpoint.names() {
        let (Some(view), Some(shard)) = (checkpoint.tensor(name), checkpoint.shard_of(name)) else {
            continue;
        };
        if let Some(target) = target_tensor(name, &view, plan)? {
            shards.entry(shard).or_default().push((view.bytes.as_ptr() as usize, target));
        }
    }
    let ordered = |(shard, mut tensors): (&'a str, Vec<(usize, TargetTensor<'a>)>)| {
        tensors.sort_by(|a, b| (a.0, a.1.source).cmp(&(b.0, b.1.source)));
        (shard, tensors.into_iter().map(|(_, tensor)| tensor).collect())
    };
    Ok(shards.into_iter().map(ordered).collect())
}

/// What a source tensor becomes; `None` if it is dropped.
fn target_tensor<'a>(
    name: &'a str,
    view: &TensorView<'_>,
    plan: &'a ExpertPlan,
) -> Result<Option<TargetTensor<'a>>, RewriteError> {
    let whole = |target: String| TargetTensor {
        spec: TensorSpec::new(target, view.dtype, view.shape),
        bytes: view.bytes.len() as u64,
        source: name,
        content: Content::Whole,
    };
    match role(name) {
        Role::Expert(expert) => {
            let layer = plan.layer(expert.layer).ok_or_else(|| error(name, "the plan has no such layer"))?;
            Ok(layer.new_id(expert.expert).map(|new| whole(expert.renamed(new))))
        }
        Role::Router { layer, rest } => match plan.layer(layer) {
            None => Err(error(name, "is a router of a layer without routed experts")),
            Some(layer) => router_tensor(name, rest, view, layer.num_source, &layer.keep, whole(name.into())),
        },
        Role::Stacked { .. } => Err(error(name, "is of no single expert")),
        Role::Other => Ok(Some(whole(name.into()))),
    }
}

/// A tensor of a router, codes, scales and bias alike: one row per expert, or one value for all.
fn router_tensor<'a>(
    name: &'a str,
    rest: &str,
    view: &TensorView<'_>,
    num_source: usize,
    keep: &'a [u32],
    whole: TargetTensor<'a>,
) -> Result<Option<TargetTensor<'a>>, RewriteError> {
    if rest == "weight_shape" {
        let bytes = pruned_shape(view, num_source, keep.len())
            .ok_or_else(|| error(name, format!("is not [{num_source}, columns] in I32 or I64")))?;
        return Ok(Some(TargetTensor { content: Content::New(bytes), ..whole }));
    }
    if view.shape.first() == Some(&num_source) {
        let mut spec = whole.spec;
        spec.shape[0] = keep.len();
        let bytes = whole.bytes / num_source as u64 * keep.len() as u64;
        return Ok(Some(TargetTensor { spec, bytes, source: name, content: Content::Rows(keep) }));
    }
    if view.shape.iter().all(|dim| *dim == 1) {
        return Ok(Some(whole));
    }
    Err(error(
        name,
        format!(
            "shape {:?} has neither a row for each of {num_source} experts nor one value for all: rows that share a scale cannot be \
             kept one by one; prune a checkpoint whose router is not quantized in blocks of rows",
            view.shape
        ),
    ))
}

/// The bytes of a stored `[out, in]` with fewer rows.
fn pruned_shape(view: &TensorView<'_>, num_source: usize, num_kept: usize) -> Option<Vec<u8>> {
    let &[rows, _] = view.to_i64s().as_slice() else { return None };
    if view.shape != [2] || usize::try_from(rows) != Ok(num_source) {
        return None;
    }
    let width = view.bytes.len() / 2;
    let mut bytes = view.bytes.to_vec();
    bytes[..width].copy_from_slice(&(num_kept as u64).to_le_bytes()[..width]);
    Some(bytes)
}
