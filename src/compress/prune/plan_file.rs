//! The plan of a pruning: which experts of each layer survive, and why.
//!
//! The kept ids are the plan; scores stand beside them for the record and for [`ExpertPlan::parse`]'s checks, and are never used to compute the
//! ids again: ties are decided once. A value of [`ExpertPlan`] has passed every check that can be made without its checkpoint.

use serde::{Deserialize, Serialize};

use super::select::{Criterion, random_score, survivors};
use crate::calibrate::saliency::Saliency;
use crate::fingerprint::{SourceId, TextId};

/// Name of the plan in a pruned folder.
pub const PLAN_FILE: &str = "expert_plan.json";
/// Version of the format.
const VERSION: u32 = 1;
/// Most layers and experts that are read: far above the family, small enough to bound memory.
const MAX_LAYERS: usize = 4096;
const MAX_EXPERTS: usize = 65536;

/// A checked plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertPlan {
    format_version: u32,
    written_by: String,
    source: SourceId,
    criterion: Criterion,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    calibration: Vec<TextId>,
    layers: Vec<LayerPlan>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    overrides: Vec<Override>,
}

/// The survivors of one layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerPlan {
    /// Layer index.
    pub layer: usize,
    /// Experts in the source.
    pub num_source: usize,
    /// Surviving ids of the source, ascending: the expert `keep[new]` becomes `new`.
    pub keep: Vec<u32>,
    /// Score of every expert of the source; numbers are written so that reading gives the same bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saliency: Option<Vec<f64>>,
    /// Times each expert was selected on the calibration text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<Vec<u64>>,
}

impl LayerPlan {
    /// The new id of an expert of the source, `None` if it is dropped.
    pub fn new_id(&self, old: u32) -> Option<u32> {
        self.keep.binary_search(&old).ok().map(|new| new as u32)
    }
}

/// An expert that is kept or dropped against its score.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Override {
    /// Layer index.
    pub layer: usize,
    /// Expert of the source.
    pub expert: u32,
    /// Why; not empty.
    pub reason: String,
}

/// What is wrong with a plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanFileError {
    /// Not JSON, or not of this form.
    #[error("the plan is not valid: {0}")]
    Json(#[from] serde_json::Error),
    /// Written by a later version.
    #[error("the plan's format_version is {0}, this program reads {VERSION}")]
    Version(u32),
    /// A field that contradicts another or leaves its range.
    #[error("the plan's {field} is {value}: {expected}")]
    Field {
        /// Where.
        field: String,
        /// What is there.
        value: String,
        /// What must be, and the remedy.
        expected: String,
    },
    /// A dropped expert scores above a kept one.
    #[error(
        "layer {layer}: dropped expert {dropped} has saliency {dropped_score}, above {kept_score} of kept expert {kept}; \
         keep it, or name one of the two in `overrides` with a reason"
    )]
    NotDominant {
        /// Layer.
        layer: usize,
        /// Highest dropped expert.
        dropped: u32,
        /// Its score.
        dropped_score: f64,
        /// Lowest kept expert.
        kept: u32,
        /// Its score.
        kept_score: f64,
    },
    /// A plan for another checkpoint.
    #[error(
        "the plan was made for {plan_name} (fingerprint {plan}), not for {source_name} (fingerprint {got}); make a plan for this checkpoint"
    )]
    OtherSource {
        /// Name in the plan.
        plan_name: String,
        /// Fingerprint in the plan.
        plan: String,
        /// Name of the checkpoint.
        source_name: String,
        /// Its fingerprint.
        got: String,
    },
}

fn field(
    field: impl Into<String>,
    value: impl std::fmt::Display,
    expected: impl Into<String>,
) -> PlanFileError {
    PlanFileError::Field { field: field.into(), value: value.to_string(), expected: expected.into() }
}

/// The experts of a source: (layer, experts in it), ascending.
pub type ExpertLayers = Vec<(usize, usize)>;

impl ExpertPlan {
    /// A plan from explicit layers; checks it.
    pub fn new(
        source: SourceId,
        criterion: Criterion,
        calibration: Vec<TextId>,
        layers: Vec<LayerPlan>,
        overrides: Vec<Override>,
    ) -> Result<Self, PlanFileError> {
        let written_by = concat!("perigee ", env!("CARGO_PKG_VERSION")).to_owned();
        let plan =
            Self { format_version: VERSION, written_by, source, criterion, calibration, layers, overrides };
        plan.check()?;
        Ok(plan)
    }

    /// The survivors by the scores of `saliency` ([`Criterion::Reap`], [`Criterion::Frequency`]).
    pub fn from_saliency(
        source: SourceId,
        experts: &ExpertLayers,
        num_kept: usize,
        criterion: Criterion,
        saliency: &Saliency,
    ) -> Result<Self, PlanFileError> {
        let mut layers = Vec::with_capacity(experts.len());
        for (layer, num_source) in experts {
            let Some(found) = saliency.layer(*layer) else {
                let expected = format!(
                    "layer {layer} has {num_source} experts in the source and needs scores; collect them for every layer"
                );
                return Err(field("saliency", format!("without layer {layer}"), expected));
            };
            let scores = match criterion {
                Criterion::Frequency => found.frequencies(),
                _ => found.reap(),
            };
            let Some(scores) = scores else {
                let expected = format!("criterion {} needs them; use another file", criterion.name());
                return Err(field(
                    format!("saliency, layer {layer}"),
                    "without the sums and counts of the criterion",
                    expected,
                ));
            };
            layers.push(chosen(*layer, *num_source, num_kept, scores, found.counts().map(<[u64]>::to_vec))?);
        }
        Self::new(source, criterion, saliency.texts().to_vec(), layers, Vec::new())
    }

    /// Survivors by keyed draws.
    pub fn random(
        source: SourceId,
        experts: &ExpertLayers,
        num_kept: usize,
        seed: u64,
    ) -> Result<Self, PlanFileError> {
        let mut layers = Vec::with_capacity(experts.len());
        for (layer, num_source) in experts {
            let scores = (0..*num_source).map(|expert| random_score(seed, *layer, expert)).collect();
            layers.push(chosen(*layer, *num_source, num_kept, scores, None)?);
        }
        Self::new(source, Criterion::Random { seed }, Vec::new(), layers, Vec::new())
    }

    /// Reads and checks a plan.
    pub fn parse(json: &[u8]) -> Result<Self, PlanFileError> {
        #[derive(Deserialize)]
        struct Version {
            format_version: u32,
        }
        // First of all the version: a later one may have fields that are unknown here.
        let Version { format_version } = serde_json::from_slice(json)?;
        if format_version != VERSION {
            return Err(PlanFileError::Version(format_version));
        }
        let plan: Self = serde_json::from_slice(json)?;
        plan.check()?;
        Ok(plan)
    }

    /// The file: JSON, one line per layer, so that plans can be compared with ordinary tools.
    pub fn to_json(&self) -> String {
        let mut head = serde_json::json!(self);
        let layers =
            head.as_object_mut().and_then(|object| object.insert("layers".into(), Vec::<u8>::new().into()));
        let lines: Vec<String> =
            layers.iter().flat_map(|l| l.as_array()).flatten().map(|layer| format!("    {layer}")).collect();
        let layers = format!("\"layers\": [\n{}\n  ]", lines.join(",\n"));
        // The empty list that was put in place of the layers is the only one of its key: names and notes are escaped strings.
        format!("{head:#}\n").replacen("\n  \"layers\": []", &format!("\n  {layers}"), 1)
    }

    /// Who the plan is for.
    pub fn source(&self) -> &SourceId {
        &self.source
    }

    /// What the scores mean.
    pub fn criterion(&self) -> &Criterion {
        &self.criterion
    }

    /// Layers, ascending; at least one.
    pub fn layers(&self) -> &[LayerPlan] {
        &self.layers
    }

    /// Experts that are kept or dropped against their score.
    pub fn overrides(&self) -> &[Override] {
        &self.overrides
    }

    /// The plan of one layer.
    pub fn layer(&self, layer: usize) -> Option<&LayerPlan> {
        self.layers.binary_search_by_key(&layer, |l| l.layer).ok().map(|i| &self.layers[i])
    }

    /// Experts per layer of the source.
    pub fn num_source(&self) -> usize {
        self.layers[0].num_source
    }

    /// Experts per layer that survive.
    pub fn num_kept(&self) -> usize {
        self.layers[0].keep.len()
    }

    /// blake3 of what decides the result: layers and kept ids.
    pub fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for layer in &self.layers {
            for word in [layer.layer, layer.num_source, layer.keep.len()] {
                hasher.update(&(word as u64).to_le_bytes());
            }
            layer.keep.iter().for_each(|id| {
                hasher.update(&id.to_le_bytes());
            });
        }
        hasher.finalize().to_hex().to_string()
    }

    /// Whether the plan is for the checkpoint with this identity and these experts.
    pub fn check_source(&self, source: &SourceId, experts: &ExpertLayers) -> Result<(), PlanFileError> {
        if let (Some(plan), Some(got)) = (&self.source.fingerprint, &source.fingerprint)
            && plan != got
        {
            return Err(PlanFileError::OtherSource {
                plan_name: self.source.name.clone(),
                plan: plan.clone(),
                source_name: source.name.clone(),
                got: got.clone(),
            });
        }
        for (layer, num_source) in experts {
            match self.layer(*layer) {
                Some(plan) if plan.num_source == *num_source => {}
                Some(plan) => {
                    return Err(field(
                        format!("layers, layer {layer}: num_source"),
                        plan.num_source,
                        format!("the source has {num_source} experts there"),
                    ));
                }
                None => {
                    return Err(field(
                        "layers",
                        format!("without layer {layer}"),
                        format!("the source has {num_source} experts there; add the ids to keep"),
                    ));
                }
            }
        }
        if let Some(extra) = self.layers.iter().find(|l| !experts.iter().any(|(layer, _)| *layer == l.layer))
        {
            return Err(field(
                format!("layers, layer {}", extra.layer),
                "named",
                "the source has no routed experts there",
            ));
        }
        Ok(())
    }

    fn check(&self) -> Result<(), PlanFileError> {
        if self.layers.is_empty() || self.layers.len() > MAX_LAYERS {
            let expected = format!("must name 1 to {MAX_LAYERS} layers");
            return Err(field("layers", format!("a list of {}", self.layers.len()), expected));
        }
        if let Some(pair) = self.layers.windows(2).find(|pair| pair[0].layer >= pair[1].layer) {
            let expected = format!("layers must ascend, and layer {} stands before it", pair[0].layer);
            return Err(field("layers", format!("at layer {}", pair[1].layer), expected));
        }
        let (num_source, num_kept) = (self.layers[0].num_source, self.layers[0].keep.len());
        for layer in &self.layers {
            layer.check(num_source, num_kept)?;
        }
        for (i, o) in self.overrides.iter().enumerate() {
            let place = format!("overrides[{i}]");
            if o.reason.trim().is_empty() {
                return Err(field(format!("{place}.reason"), "empty", "say why"));
            }
            if self.layer(o.layer).is_none_or(|l| o.expert as usize >= l.num_source) {
                let value = format!("layer {}, expert {}", o.layer, o.expert);
                return Err(field(place, value, "the plan has no such expert"));
            }
        }
        self.layers.iter().try_for_each(|layer| self.check_dominance(layer))
    }

    /// The lowest kept score is at least the highest dropped one, experts with an override aside.
    fn check_dominance(&self, plan: &LayerPlan) -> Result<(), PlanFileError> {
        let Some(scores) = &plan.saliency else { return Ok(()) };
        let layer = plan.layer;
        let (mut kept, mut dropped): (Option<u32>, Option<u32>) = (None, None);
        let score = |id: u32| scores[id as usize];
        for id in 0..plan.num_source as u32 {
            if self.overrides.iter().any(|o| (o.layer, o.expert) == (layer, id)) {
                continue;
            }
            match plan.new_id(id) {
                Some(_) if kept.is_none_or(|k| score(id) < score(k)) => kept = Some(id),
                None if dropped.is_none_or(|d| score(id) > score(d)) => dropped = Some(id),
                _ => {}
            }
        }
        match (kept, dropped) {
            (Some(kept), Some(dropped)) if score(dropped) > score(kept) => Err(PlanFileError::NotDominant {
                layer,
                dropped,
                dropped_score: score(dropped),
                kept,
                kept_score: score(kept),
            }),
            _ => Ok(()),
        }
    }
}

impl LayerPlan {
    fn check(&self, num_source: usize, num_kept: usize) -> Result<(), PlanFileError> {
        let place = |name: &str| format!("layers, layer {}: {name}", self.layer);
        if self.num_source != num_source || !(1..=MAX_EXPERTS).contains(&num_source) {
            let expected = format!("must be the same in every layer, {num_source}, from 1 to {MAX_EXPERTS}");
            return Err(field(place("num_source"), self.num_source, expected));
        }
        if self.keep.is_empty() || self.keep.len() != num_kept {
            let expected = format!("every layer must keep the same number, {num_kept}, at least 1");
            return Err(field(place("keep"), format!("a list of {}", self.keep.len()), expected));
        }
        if let Some(pair) = self.keep.windows(2).find(|pair| pair[0] >= pair[1]) {
            let value = format!("{}, {}", pair[0], pair[1]);
            return Err(field(place("keep"), value, "ids must ascend and not repeat"));
        }
        if let Some(id) = self.keep.iter().find(|id| **id as usize >= num_source) {
            return Err(field(place("keep"), id, format!("ids must be below {num_source}")));
        }
        if let Some(saliency) = &self.saliency {
            if saliency.len() != num_source {
                let expected = format!("one score per expert of the source, {num_source}");
                return Err(field(place("saliency"), format!("a list of {}", saliency.len()), expected));
            }
            if let Some(i) = saliency.iter().position(|s| !s.is_finite()) {
                return Err(field(place(&format!("saliency[{i}]")), saliency[i], "must be a finite number"));
            }
        }
        match &self.counts {
            Some(counts) if counts.len() != num_source => {
                let expected = format!("one count per expert of the source, {num_source}");
                Err(field(place("counts"), format!("a list of {}", counts.len()), expected))
            }
            _ => Ok(()),
        }
    }
}

/// One layer by its scores.
fn chosen(
    layer: usize,
    num_source: usize,
    num_kept: usize,
    scores: Vec<f64>,
    counts: Option<Vec<u64>>,
) -> Result<LayerPlan, PlanFileError> {
    if scores.len() != num_source {
        let expected = format!("the source has {num_source} experts there");
        return Err(field(
            format!("saliency, layer {layer}"),
            format!("a list of {}", scores.len()),
            expected,
        ));
    }
    if !(1..=num_source).contains(&num_kept) {
        return Err(field(
            format!("layers, layer {layer}: keep"),
            format!("a list of {num_kept}"),
            format!("from 1 to {num_source} experts can be kept"),
        ));
    }
    let keep = survivors(&scores, num_kept)
        .map_err(|e| field(format!("saliency, layer {layer}"), scores[e.0], e.to_string()))?;
    Ok(LayerPlan { layer, num_source, keep, saliency: Some(scores), counts })
}

#[cfg(test)]
mod tests;
