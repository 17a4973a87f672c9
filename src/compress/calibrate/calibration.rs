//! Largest magnitudes of activations on a user's text: what static activation scales and KV scales are made of.
//!
//! As modelopt does it: activations of the unquantized source, the running maximum over the text, then per layer the largest of all routed
//! experts for each of them, so that an expert the text never reached has a scale too (the backstop; how many needed it is reported).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::saliency::Coverage;
use super::text_pass::{Documents, PassError, PassOptions, PassProgress, TextPass};
use crate::fingerprint::TextId;
use perigee_model::expert_names::layer_of;
use perigee_model::{FfnInputs, LayerInputs, LayerObserver};
use perigee_ops::Calibrate;
use perigee_text::Tokenizer;

/// The file in a target folder that keeps what was measured.
pub(crate) const CALIBRATION_FILE: &str = "perigee-calibration.json";

/// Largest such file that is read, bytes; a release's has two MB.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Version of the file.
const VERSION: u32 = 1;

/// Magnitude taken where no expert of a layer saw a token.
const LAST_RESORT: f32 = 0.5;

/// What was measured, and on what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    format_version: u32,
    /// Texts and options, in words: a run that is taken up again uses what an equal one measured.
    id: String,
    texts: Vec<TextId>,
    /// By layer.
    layers: BTreeMap<usize, LayerRanges>,
}

/// Largest magnitudes of one layer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct LayerRanges {
    /// Of a cache entry: the normalised latent and the rotated rope key.
    cached: f32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dense: Option<InputRange>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shared: Option<InputRange>,
    /// `[E]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    routed: Vec<InputRange>,
}

/// Largest magnitudes of what went into one FFN.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct InputRange {
    tokens: u64,
    /// Into `gate_proj` and `up_proj`.
    gate_up: f32,
    /// Into `down_proj`.
    down: f32,
}

/// What a text reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CalibrationReport {
    /// Tokens that were run.
    pub tokens: u64,
    /// Routed experts of all layers.
    pub experts: usize,
    /// Of these, experts without a token: the range of their layer's others serves them.
    pub backstop: usize,
    /// Experts with less than 5 % of their layer's mean number of tokens, those without any included.
    pub below_5_percent: usize,
    /// The same for 10 %.
    pub below_10_percent: usize,
    /// Layers none of whose experts saw a token: a magnitude of 0.5 is assumed.
    pub layers_without_tokens: usize,
    /// Per layer.
    pub coverage: Vec<Coverage>,
}

/// Keeps running maxima.
struct Ranger(BTreeMap<usize, LayerRanges>);

impl LayerObserver for Ranger {
    fn wants_inputs(&self, _layer: usize) -> bool {
        true
    }

    fn inputs(&mut self, layer: usize, inputs: &LayerInputs) {
        let ranges = self.0.entry(layer).or_default();
        raise(&mut ranges.cached, inputs.cached);
        if let Some(dense) = &inputs.dense {
            ranges.dense.get_or_insert_default().add(dense);
        }
        if let Some(shared) = &inputs.shared {
            ranges.shared.get_or_insert_default().add(shared);
        }
        ranges.routed.resize(inputs.routed.len(), InputRange::default());
        ranges.routed.iter_mut().zip(&inputs.routed).for_each(|(range, step)| range.add(step));
    }
}

impl InputRange {
    fn add(&mut self, step: &FfnInputs) {
        self.tokens += step.rows;
        raise(&mut self.gate_up, step.gate_up);
        raise(&mut self.down, step.down);
    }

    fn is_finite(&self) -> bool {
        self.gate_up.is_finite() && self.down.is_finite()
    }
}

/// The larger; a NaN stays.
fn raise(peak: &mut f32, seen: f32) {
    if seen.is_nan() || seen > *peak {
        *peak = seen;
    }
}

/// Runs texts through a model. `options.max_tokens` bounds all texts together. `id` names texts and options.
pub fn calibrate<B: Calibrate>(
    pass: &mut TextPass<'_, B>,
    tokenizer: &Tokenizer,
    documents: &[Documents],
    options: &PassOptions,
    id: &str,
    progress: &mut dyn FnMut(PassProgress),
) -> Result<Calibration, PassError> {
    let mut left = options.max_tokens.unwrap_or(u64::MAX);
    let (mut windows, mut texts) = (Vec::new(), Vec::new());
    for text in documents {
        let (more, num_documents) =
            text.windows(tokenizer, &PassOptions { max_tokens: Some(left), ..*options })?;
        let tokens: u64 = more.iter().map(|window| window.len() as u64).sum();
        left -= tokens;
        windows.extend(more);
        texts.push(TextId { fingerprint: text.fingerprint.clone(), documents: num_documents, tokens });
    }
    let mut ranger = Ranger(BTreeMap::new());
    let num_layers = pass.blueprint().num_layers;
    pass.run(&windows, num_layers, &mut ranger, progress)?;
    let infinite = ranger.0.iter().find(|(_, ranges)| {
        let ffns = ranges.dense.iter().chain(&ranges.shared).chain(&ranges.routed);
        !ranges.cached.is_finite() || ffns.into_iter().any(|range| !range.is_finite())
    });
    if let Some((layer, _)) = infinite {
        return Err(PassError::NotFinite { layer: *layer });
    }
    Ok(Calibration { format_version: VERSION, id: id.into(), texts, layers: ranger.0 })
}

impl Calibration {
    /// Reads the file if it was measured on the same texts with the same options.
    pub(crate) fn parse(bytes: &[u8], id: &str) -> Option<Self> {
        let read: Self = serde_json::from_slice(bytes).ok()?;
        (read.format_version == VERSION && read.id == id).then_some(read)
    }

    /// Longest file that [`Calibration::parse`] is given.
    pub(crate) fn max_bytes() -> u64 {
        MAX_FILE_BYTES
    }

    /// The file: JSON, one line per layer.
    pub(crate) fn to_json(&self) -> String {
        let layers: Vec<String> = self
            .layers
            .iter()
            .map(|(layer, ranges)| format!("    \"{layer}\": {}", serde_json::json!(ranges)))
            .collect();
        let (id, texts) = (serde_json::json!(self.id), serde_json::json!(self.texts));
        format!(
            "{{\n  \"format_version\": {VERSION},\n  \"id\": {id},\n  \"texts\": {texts},\n  \"layers\": {{\n{}\n  }}\n}}\n",
            layers.join(",\n")
        )
    }

    /// Largest magnitude that goes into a packed module: for routed experts that of all of their layer, as engines multiply under one scale.
    /// `None` for a module of no layer that was measured.
    pub(crate) fn input_amax(&self, module: &str) -> Option<f32> {
        let (at, layer) = layer_of(module)?;
        let ranges = self.layers.get(&layer)?;
        let (path, projection) = module[at..].rsplit_once('.')?;
        let of = |range: &InputRange| if projection == "down_proj" { range.down } else { range.gate_up };
        let peak = match path {
            "mlp" => of(ranges.dense.as_ref()?),
            "mlp.shared_experts" => of(ranges.shared.as_ref()?),
            _ if path.starts_with("mlp.experts.") => ranges.routed.iter().map(of).fold(0.0, f32::max),
            _ => return None,
        };
        Some(if peak > 0.0 { peak } else { LAST_RESORT })
    }

    /// Largest magnitude of a cache entry of a layer; `None` where no token was cached.
    pub(crate) fn cached_amax(&self, layer: usize) -> Option<f32> {
        self.layers.get(&layer).map(|ranges| ranges.cached).filter(|peak| *peak > 0.0)
    }

    /// What the texts reached.
    pub fn report(&self) -> CalibrationReport {
        let mut report = CalibrationReport {
            tokens: self.texts.iter().map(|text| text.tokens).sum(),
            experts: 0,
            backstop: 0,
            below_5_percent: 0,
            below_10_percent: 0,
            layers_without_tokens: 0,
            coverage: Vec::new(),
        };
        for (layer, ranges) in self.layers.iter().filter(|(_, ranges)| !ranges.routed.is_empty()) {
            let counts: Vec<u64> = ranges.routed.iter().map(|range| range.tokens).collect();
            let sum: u128 = counts.iter().map(|count| u128::from(*count)).sum();
            let below = |percent: u128| {
                counts
                    .iter()
                    .filter(|c| u128::from(**c) * 100 * (counts.len() as u128) < percent * sum)
                    .count()
            };
            report.experts += counts.len();
            // A range of zero counts as none, as there is no scale to make of it.
            report.backstop += ranges.routed.iter().filter(|r| r.gate_up == 0.0 || r.down == 0.0).count();
            report.below_5_percent += below(5);
            report.below_10_percent += below(10);
            report.layers_without_tokens += usize::from(sum == 0);
            report.coverage.push(Coverage::of(*layer, &counts));
        }
        report
    }
}

impl CalibrationReport {
    /// As lines.
    pub fn text(&self) -> String {
        let mut text = format!(
            "calibrated on {} tokens: {} of {} routed experts saw none and take the range of their layer (backstop); {} have less than 5 % of \
             their layer's mean, {} less than 10 %\n",
            self.tokens, self.backstop, self.experts, self.below_5_percent, self.below_10_percent
        );
        if self.layers_without_tokens > 0 {
            text += &format!(
                "{} layers whose experts saw no token at all: a magnitude of {LAST_RESORT} is assumed\n",
                self.layers_without_tokens
            );
        }
        for layer in &self.coverage {
            let [least, median, most] = layer.least_median_most;
            text += &format!(
                "  layer {}: tokens per expert {least} to {most}, median {median}, {} of {} unused\n",
                layer.layer,
                layer.unused.len(),
                layer.num_experts
            );
        }
        text
    }
}
