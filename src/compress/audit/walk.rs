//! The walk over the tensors of both folders: which tensor of the source each tensor of the target
//! must come from, under the plan of the experts that were kept.
//!
//! Tensors are walked linear by linear, because a weight in another format is made of other tensors.
//! The walk does not know what makes a match a good one; three judges do: routers row by row, other
//! tensors by bytes, or, in a quantized folder, by value.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::faults::Faults;
use super::linears::layout;
use super::pruned::PrunedAudit;
use super::quantized::{QuantizedAudit, Values};
use crate::prune::plan_file::{ExpertPlan, LayerPlan};
use perigee_model::checkpoint::Checkpoint;
use perigee_model::expert_names::{Role, role};
use perigee_numbers::quant::PART_NAMES;

/// Bytes that are compared before their pages are given back.
const CHUNK: usize = 8 << 20;

/// The two folders of an audit, and the plan between them.
#[derive(Clone, Copy)]
pub(super) struct Folders<'a> {
    pub(super) source: &'a Checkpoint,
    pub(super) target: &'a Checkpoint,
    /// Experts that were kept; `None`: all of them, under their own ids.
    pub(super) plan: Option<&'a ExpertPlan>,
}

/// The tensors of one linear in both folders. A tensor that is no part of a linear stands alone.
pub(super) struct Linear<'a> {
    /// Role, with the expert id of the source; with that of the target for an extra linear.
    pub(super) role: Role<'a>,
    /// Name before the last word in the source; in the target for an extra linear.
    pub(super) stem: &'a str,
    /// Name before the last word in the target; `None`: the plan drops the linear.
    pub(super) place: Option<Cow<'a, str>>,
    /// Tensors of the source; none of an extra linear.
    pub(super) source: Vec<&'a str>,
    /// Tensors of the target; none of a missing or dropped linear.
    pub(super) target: Vec<&'a str>,
}

/// One tensor of a linear.
pub(super) enum Tensor<'a> {
    /// `to` of the target must come from `from` of the source.
    Pair { from: &'a str, to: &'a str },
    /// `place` of the target, which must come from `from`, is not there.
    Missing { from: &'a str, place: String },
    /// Nothing of the source belongs to `to`.
    Extra { to: &'a str },
}

/// Reads every tensor of the target once and gives the pages of both folders back. Linears are judged
/// by value without a plan, or if one is in another format than in the source.
pub(super) fn walk(
    folders: Folders<'_>,
    faults: &mut Faults,
    advance: &mut dyn FnMut(u64),
) -> (Option<PrunedAudit>, Option<QuantizedAudit>) {
    let linears = folders.linears();
    let by_value = folders.plan.is_none() || linears.iter().any(|linear| folders.is_requantized(linear));
    let mut pruned = folders.plan.map(PrunedAudit::new);
    let mut values = by_value.then(|| Values::new(folders));
    for linear in &linears {
        let num_equal = values.as_mut().and_then(|values| values.judge(linear, faults));
        if let Some(pruned) = &mut pruned {
            if let Some(num_equal) = num_equal {
                pruned.count(linear.role, linear.target.len(), num_equal);
            }
            if !by_value || linear.is_router() {
                pruned.judge(folders, linear, by_value, faults);
            }
        }
        linear.source.iter().for_each(|name| folders.source.release(name, 0..usize::MAX));
        linear.target.iter().for_each(|name| folders.target.release(name, 0..usize::MAX));
        let spans = linear.target.iter().filter_map(|name| folders.target.span(name));
        advance(spans.map(|span| span.bytes() as u64).sum());
    }
    (pruned, values.map(|values| values.finish(faults)))
}

impl<'a> Folders<'a> {
    /// Every linear of the source in the order of its names, then those that only the target has.
    fn linears(&self) -> Vec<Linear<'a>> {
        let mut found = stems(self.target);
        let mut linears = Vec::new();
        for (stem, source) in stems(self.source) {
            let role = role(source[0]);
            let place = match (role, self.plan) {
                (Role::Expert(expert), Some(_)) => self
                    .layer(expert.layer)
                    .and_then(|layer| layer.new_id(expert.expert))
                    .map(|id| stem_of(&expert.renamed(id)).to_owned().into()),
                _ => Some(stem.into()),
            };
            let target = place.as_deref().and_then(|place: &str| found.remove(place)).unwrap_or_default();
            linears.push(Linear { role, stem, place, source, target });
        }
        linears.extend(found.into_iter().map(|(stem, target)| Linear {
            role: role(target[0]),
            stem,
            place: Some(stem.into()),
            source: Vec::new(),
            target,
        }));
        linears
    }

    /// The tensor of the source that a tensor of the target must come from; `None`: the plan has no
    /// such expert.
    pub(super) fn origin(&self, name: &str) -> Option<String> {
        match (role(name), self.plan) {
            (Role::Expert(expert), Some(_)) => {
                let keep = &self.layer(expert.layer)?.keep;
                Some(expert.renamed(*keep.get(expert.expert as usize)?))
            }
            _ => Some(name.to_owned()),
        }
    }

    /// The first source expert of a layer for which `holds` is true.
    pub(super) fn find_expert(&self, layer: usize, holds: impl FnMut(&u32) -> bool) -> Option<u32> {
        (0..self.layer(layer)?.num_source as u32).find(holds)
    }

    /// A layer of the plan.
    pub(super) fn layer(&self, layer: usize) -> Option<&'a LayerPlan> {
        self.plan?.layer(layer)
    }

    /// Whether a linear is stored in another format than in the source. Routers keep theirs.
    fn is_requantized(&self, linear: &Linear<'_>) -> bool {
        let before = layout(self.source, linear.stem).ok();
        let after = linear.place.as_deref().and_then(|place| layout(self.target, place).ok());
        !linear.is_router() && before.zip(after).is_some_and(|(a, b)| a.dialect != b.dialect)
    }

    /// `Err` says how a tensor of the target differs from one of the source. Reads both a few
    /// megabytes at a time.
    pub(super) fn same(&self, from: &str, to: &str) -> Result<(), String> {
        let (Some(original), Some(view)) = (self.source.tensor(from), self.target.tensor(to)) else {
            return Err("is missing".into());
        };
        if (view.dtype, view.shape) != (original.dtype, original.shape) {
            return Err(format!(
                "is {} {:?}, differs ({} {:?})",
                view.dtype, view.shape, original.dtype, original.shape
            ));
        }
        for (i, (a, b)) in view.bytes.chunks(CHUNK).zip(original.bytes.chunks(CHUNK)).enumerate() {
            let start = i * CHUNK;
            let first = if a == b { None } else { a.iter().zip(b).position(|(a, b)| a != b) };
            self.source.release(from, start..start + a.len());
            self.target.release(to, start..start + a.len());
            if let Some(at) = first {
                return Err(format!("differs at byte {} of {}", start + at, view.bytes.len()));
            }
        }
        Ok(())
    }
}

impl<'a> Linear<'a> {
    pub(super) fn is_router(&self) -> bool {
        matches!(self.role, Role::Router { .. })
    }

    /// Tensors of the linear, matched by their last words; none of a dropped linear.
    pub(super) fn tensors(&self) -> Vec<Tensor<'a>> {
        let Some(place) = self.place.as_deref() else { return Vec::new() };
        let is_pair = |from: &str, to: &str| from[self.stem.len()..] == to[place.len()..];
        let of_source =
            self.source.iter().map(|&from| match self.target.iter().find(|to| is_pair(from, to)) {
                Some(to) => Tensor::Pair { from, to },
                None => Tensor::Missing { from, place: format!("{place}{}", &from[self.stem.len()..]) },
            });
        let is_extra = |to: &&&str| !self.source.iter().any(|from| is_pair(from, to));
        of_source.chain(self.target.iter().filter(is_extra).map(|to| Tensor::Extra { to })).collect()
    }
}

/// The stem of a tensor that is part of a linear; otherwise the whole name.
pub(super) fn stem_of(name: &str) -> &str {
    match name.rsplit_once('.') {
        Some((stem, part)) if PART_NAMES.contains(&part) => stem,
        _ => name,
    }
}

/// Tensor names by stem.
fn stems(checkpoint: &Checkpoint) -> BTreeMap<&str, Vec<&str>> {
    let mut stems: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    checkpoint.names().for_each(|name| stems.entry(stem_of(name)).or_default().push(name));
    stems
}
