//! Expert statistics as sums and counts, so that statistics of several texts merge by addition.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::fingerprint::{SourceId, TextId};

/// Version of the format.
const VERSION: u32 = 1;
/// Most experts of a layer that are read.
const MAX_EXPERTS: usize = 65536;

/// Statistics of the routed experts of one checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Saliency {
    source: SourceId,
    texts: Vec<TextId>,
    layers: BTreeMap<usize, LayerSaliency>,
}

/// Statistics of one layer's experts: either what was collected, or scores that another program made of it.
#[derive(Debug, Clone, PartialEq)]
pub enum LayerSaliency {
    /// Sums and counts, `[E]` each.
    Collected {
        /// Sum over the tokens of an expert of routing weight (the scaling factor left out) times L2 norm of its output.
        weighted_norm_sums: Vec<f64>,
        /// Tokens of the expert.
        counts: Vec<u64>,
    },
    /// `[E]` scores by the REAP definition.
    Scores(Vec<f64>),
}

impl LayerSaliency {
    /// All zero.
    pub fn new(num_experts: usize) -> Self {
        Self::Collected { weighted_norm_sums: vec![0.0; num_experts], counts: vec![0; num_experts] }
    }

    /// Number of experts.
    pub fn num_experts(&self) -> usize {
        match self {
            Self::Collected { counts, .. } => counts.len(),
            Self::Scores(scores) => scores.len(),
        }
    }

    /// Adds one (token, slot).
    pub fn add(&mut self, expert: usize, weight: f32, norm: f32) {
        if let Self::Collected { weighted_norm_sums, counts } = self {
            weighted_norm_sums[expert] += f64::from(weight) * f64::from(norm);
            counts[expert] += 1;
        }
    }

    /// Mean of weight times norm over an expert's own tokens; 0 for an expert that had none.
    pub fn reap(&self) -> Option<Vec<f64>> {
        match self {
            Self::Collected { weighted_norm_sums, counts } => Some(
                weighted_norm_sums
                    .iter()
                    .zip(counts)
                    .map(|(sum, count)| if *count == 0 { 0.0 } else { sum / *count as f64 })
                    .collect(),
            ),
            Self::Scores(scores) => Some(scores.clone()),
        }
    }

    /// Counts as scores.
    pub fn frequencies(&self) -> Option<Vec<f64>> {
        self.counts().map(|counts| counts.iter().map(|count| *count as f64).collect())
    }

    /// Tokens of each expert.
    pub fn counts(&self) -> Option<&[u64]> {
        match self {
            Self::Collected { counts, .. } => Some(counts),
            Self::Scores(_) => None,
        }
    }
}

/// How well a text covers one layer's experts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Coverage {
    /// Layer.
    pub layer: usize,
    /// Experts.
    pub num_experts: usize,
    /// Experts that no token chose: their saliency is 0 and they are pruned first.
    pub unused: Vec<u32>,
    /// Fewest, median and most tokens of an expert.
    pub least_median_most: [u64; 3],
}

impl Coverage {
    /// Of the tokens of each expert of a layer, of which there is at least one.
    pub(super) fn of(layer: usize, counts: &[u64]) -> Self {
        let mut sorted = counts.to_vec();
        sorted.sort_unstable();
        Self {
            layer,
            num_experts: counts.len(),
            unused: (0..counts.len() as u32).filter(|e| counts[*e as usize] == 0).collect(),
            least_median_most: [sorted[0], sorted[sorted.len() / 2], sorted[sorted.len() - 1]],
        }
    }
}

/// What is wrong with a saliency file.
#[derive(Debug, thiserror::Error)]
pub enum SaliencyError {
    /// Not JSON, or not of this form.
    #[error("the saliency file is not valid: {0}")]
    Json(#[from] serde_json::Error),
    /// Written by a later version.
    #[error("the saliency file's format_version is {0}, this program reads {VERSION}")]
    Version(u32),
    /// A layer that contradicts itself.
    #[error("the saliency file's layer {layer}: {problem}")]
    Layer {
        /// Layer.
        layer: usize,
        /// What is wrong.
        problem: String,
    },
    /// Two files that cannot be added.
    #[error("the two statistics cannot be added: {0}")]
    Merge(String),
    /// A value that is no number: the model computed an infinity or NaN.
    #[error(
        "layer {layer}, expert {expert}: the collected sum is {sum}; the checkpoint computes numbers that are not finite on this text"
    )]
    NotFinite {
        /// Layer.
        layer: usize,
        /// Expert.
        expert: usize,
        /// The sum.
        sum: f64,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSaliency {
    format_version: u32,
    #[serde(default)]
    written_by: String,
    #[serde(default)]
    source: SourceId,
    #[serde(default)]
    texts: Vec<TextId>,
    layers: Vec<RawLayer>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLayer {
    layer: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    weighted_norm_sums: Option<Vec<f64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    counts: Option<Vec<u64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    saliency: Option<Vec<f64>>,
}

impl Saliency {
    /// Statistics of a text.
    pub fn new(source: SourceId, texts: Vec<TextId>, layers: BTreeMap<usize, LayerSaliency>) -> Self {
        Self { source, texts, layers }
    }

    /// Reads and checks a file.
    pub fn parse(json: &[u8]) -> Result<Self, SaliencyError> {
        let raw: RawSaliency = serde_json::from_slice(json)?;
        if raw.format_version != VERSION {
            return Err(SaliencyError::Version(raw.format_version));
        }
        let mut layers = BTreeMap::new();
        for RawLayer { layer, weighted_norm_sums, counts, saliency } in raw.layers {
            let problem = |problem: &str| SaliencyError::Layer { layer, problem: problem.into() };
            let statistics = match (weighted_norm_sums, counts, saliency) {
                (Some(sums), Some(counts), None) if sums.len() == counts.len() => {
                    LayerSaliency::Collected { weighted_norm_sums: sums, counts }
                }
                (Some(_), Some(_), None) => {
                    return Err(problem("weighted_norm_sums and counts have different lengths"));
                }
                (None, None, Some(scores)) => LayerSaliency::Scores(scores),
                _ => return Err(problem("needs weighted_norm_sums and counts, or saliency alone")),
            };
            if !(1..=MAX_EXPERTS).contains(&statistics.num_experts()) {
                return Err(problem("needs 1 to 65536 experts"));
            }
            if layers.insert(layer, statistics).is_some() {
                return Err(problem("is listed twice"));
            }
        }
        let read = Self { source: raw.source, texts: raw.texts, layers };
        read.check_finite()?;
        Ok(read)
    }

    /// The file: JSON, one line per layer. Fails on a sum that is not finite, which JSON cannot hold.
    pub fn to_json(&self) -> Result<String, SaliencyError> {
        self.check_finite()?;
        let lines: Vec<String> = self
            .layers
            .iter()
            .map(|(layer, statistics)| {
                let mut raw =
                    RawLayer { layer: *layer, weighted_norm_sums: None, counts: None, saliency: None };
                match statistics {
                    LayerSaliency::Collected { weighted_norm_sums, counts } => {
                        raw.weighted_norm_sums = Some(weighted_norm_sums.clone());
                        raw.counts = Some(counts.clone());
                    }
                    LayerSaliency::Scores(scores) => raw.saliency = Some(scores.clone()),
                }
                format!("    {}", serde_json::json!(raw))
            })
            .collect();
        let written_by = concat!("perigee ", env!("CARGO_PKG_VERSION"));
        let (source, texts) = (serde_json::json!(self.source), serde_json::json!(self.texts));
        Ok(format!(
            "{{\n  \"format_version\": {VERSION},\n  \"written_by\": \"{written_by}\",\n  \"source\": {source},\n  \"texts\": {texts},\n  \
             \"layers\": [\n{}\n  ]\n}}\n",
            lines.join(",\n")
        ))
    }

    /// Who it was collected on.
    pub fn source(&self) -> &SourceId {
        &self.source
    }

    /// What it was collected on.
    pub fn texts(&self) -> &[TextId] {
        &self.texts
    }

    /// One layer.
    pub fn layer(&self, layer: usize) -> Option<&LayerSaliency> {
        self.layers.get(&layer)
    }

    /// All layers, ascending.
    pub fn layers(&self) -> impl Iterator<Item = (usize, &LayerSaliency)> {
        self.layers.iter().map(|(layer, statistics)| (*layer, statistics))
    }

    /// Adds the statistics of other texts on the same checkpoint.
    pub fn merge(&mut self, other: &Saliency) -> Result<(), SaliencyError> {
        let error = |why: String| Err(SaliencyError::Merge(why));
        if self.source.fingerprint != other.source.fingerprint {
            return error(format!(
                "{} and {} are different checkpoints",
                self.source.name, other.source.name
            ));
        }
        if let Some(text) =
            other.texts.iter().find(|text| self.texts.iter().any(|t| t.fingerprint == text.fingerprint))
        {
            return error(format!("text {} is in both and would count twice", text.fingerprint));
        }
        if !self.layers.keys().eq(other.layers.keys()) {
            return error("they are about different layers".into());
        }
        for ((layer, mine), theirs) in self.layers.iter_mut().zip(other.layers.values()) {
            match (mine, theirs) {
                (
                    LayerSaliency::Collected { weighted_norm_sums: sums, counts },
                    LayerSaliency::Collected { weighted_norm_sums: more_sums, counts: more_counts },
                ) if counts.len() == more_counts.len() => {
                    sums.iter_mut().zip(more_sums).for_each(|(sum, more)| *sum += more);
                    counts
                        .iter_mut()
                        .zip(more_counts)
                        .for_each(|(count, more)| *count = count.saturating_add(*more));
                }
                (LayerSaliency::Collected { .. }, LayerSaliency::Collected { .. }) => {
                    return error(format!("layer {layer} has different numbers of experts"));
                }
                _ => return error(format!("layer {layer} has scores only, without sums and counts")),
            }
        }
        self.texts.extend(other.texts.iter().cloned());
        Ok(())
    }

    /// How well the texts cover each layer's experts; layers with scores only are left out.
    pub fn coverage(&self) -> Vec<Coverage> {
        self.layers().filter_map(|(layer, s)| Some(Coverage::of(layer, s.counts()?))).collect()
    }

    fn check_finite(&self) -> Result<(), SaliencyError> {
        for (layer, statistics) in &self.layers {
            let values = match statistics {
                LayerSaliency::Collected { weighted_norm_sums, .. } => weighted_norm_sums,
                LayerSaliency::Scores(scores) => scores,
            };
            if let Some(expert) = values.iter().position(|v| !v.is_finite()) {
                return Err(SaliencyError::NotFinite { layer: *layer, expert, sum: values[expert] });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: &str) -> TextId {
        TextId { fingerprint: name.into(), documents: 1, tokens: 10 }
    }

    fn example(text_name: &str, values: &[(usize, f32, f32)]) -> Saliency {
        let mut layer = LayerSaliency::new(4);
        values.iter().for_each(|(e, w, n)| layer.add(*e, *w, *n));
        let source = SourceId { name: "m".into(), fingerprint: Some("f".into()) };
        Saliency::new(source, vec![text(text_name)], BTreeMap::from([(1, layer)]))
    }

    #[test]
    fn means_are_over_an_experts_own_tokens() {
        let s = example("a", &[(0, 0.5, 2.0), (0, 0.5, 4.0), (2, 0.1, 30.0)]);
        assert_eq!(s.layer(1).unwrap().reap().unwrap()[..2], [1.5, 0.0]);
        assert_eq!(s.layer(1).unwrap().frequencies().unwrap(), [2.0, 0.0, 1.0, 0.0]);
        assert_eq!(s.coverage()[0].unused, [1, 3]);
        assert_eq!(s.coverage()[0].least_median_most, [0, 1, 2]);
    }

    #[test]
    fn files_round_trip_to_the_bit_and_merge_by_addition() {
        let mut a = example("a", &[(0, 0.1, 0.3), (1, 1.0 / 3.0, 7.7)]);
        let b = example("b", &[(1, 0.7, 1e-30), (3, 1.0, 1e30)]);
        assert_eq!(Saliency::parse(a.to_json().unwrap().as_bytes()).unwrap(), a);
        a.merge(&b).unwrap();
        let all = example("a", &[(0, 0.1, 0.3), (1, 1.0 / 3.0, 7.7), (1, 0.7, 1e-30), (3, 1.0, 1e30)]);
        assert_eq!(a.layer(1), all.layer(1));
        assert_eq!(a.texts().len(), 2);
        assert!(a.merge(&b).unwrap_err().to_string().contains("count twice"));
    }

    #[test]
    fn bad_files_say_why() {
        for (layers, expected) in [
            (r#"[{"layer":1,"counts":[1]}]"#, "needs weighted_norm_sums and counts"),
            (r#"[{"layer":1,"counts":[1],"weighted_norm_sums":[1,2]}]"#, "different lengths"),
            (r#"[{"layer":1,"saliency":[]}]"#, "1 to 65536"),
            (r#"[{"layer":1,"saliency":[1]},{"layer":1,"saliency":[1]}]"#, "listed twice"),
            (r#"[{"layer":1,"saliency":[1e999]}]"#, "not valid"),
            (r#"[{"layer":1,"saliency":[null]}]"#, "not valid"),
            (r#"[{"layer":-1,"saliency":[1]}]"#, "not valid"),
        ] {
            let json = format!(r#"{{"format_version":1,"layers":{layers}}}"#);
            let error = Saliency::parse(json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{layers}: {error}");
        }
        assert!(Saliency::parse(br#"{"format_version":2,"layers":[]}"#).is_err());
        assert!(example("a", &[(0, f32::NAN, 1.0)]).to_json().is_err());
    }
}
