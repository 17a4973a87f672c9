//! Activations of the FFNs in 4-bit floats: which linears, and with which scales of the checkpoint.
//!
//! The linears are those of dense, shared and routed FFNs whose weights have the form's own format, so that tensor cores can multiply
//! both. Router, attention and head are left alone, whatever their weights are.
//!
//! A checkpoint has an `input_scale` per linear. Engines take the largest of a layer's experts (gate and up share theirs: they read the
//! same rows), which never clips what a calibration has seen: `tests/golden/quant/README.md`, "One input scale per expert".

use perigee_numbers::quant::{ActivationForm, PackedFormat, StoredMatrix, UNMEASURED_INPUT_SCALE, scalar};
use perigee_ops::{ExpertMatrices, RowForms};

use super::checkpoint::Checkpoint;
use super::inventory::Linear;
use super::weight_names::ModuleClass;

/// Format of the rows in front of FFNs with 4-bit weights, as `device.activations` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fp4Activations {
    /// Sums of so many rows of NVFP4; one of them is what checkpoints are calibrated for.
    Nvfp4 {
        /// 1 to 3.
        terms: u8,
        /// Of rows of prompts in expanded form.
        prompt_terms: u8,
    },
    /// MXFP4, without calibration.
    Mxfp4,
}

impl Fp4Activations {
    /// Format of the weights that the form meets.
    pub fn format(self) -> PackedFormat {
        match self {
            Self::Nvfp4 { .. } => PackedFormat::Nvfp4,
            Self::Mxfp4 => PackedFormat::Mxfp4,
        }
    }

    /// Terms of rows of replies and of prompts.
    pub fn terms(self) -> [usize; 2] {
        let RowForms { prompt, reply } = self.forms(UNMEASURED_INPUT_SCALE);
        [reply, prompt].map(ActivationForm::num_terms)
    }

    /// Sums of so many rows of NVFP4, of prompts as of replies.
    pub const fn nvfp4(terms: u8) -> Self {
        Self::Nvfp4 { terms, prompt_terms: terms }
    }

    /// Value of `device.activations`.
    pub fn name(self) -> &'static str {
        self.forms(UNMEASURED_INPUT_SCALE).reply.name()
    }

    fn forms(self, scale: f32) -> RowForms {
        match self {
            Self::Nvfp4 { terms, prompt_terms } => RowForms {
                prompt: ActivationForm::Nvfp4 { scale, terms: prompt_terms },
                reply: ActivationForm::Nvfp4 { scale, terms },
            },
            Self::Mxfp4 => ActivationForm::Mxfp4.into(),
        }
    }

    /// Whether a form means nothing without a measured scale: with more terms one corrects the other.
    fn needs_calibration(self) -> bool {
        matches!(self, Self::Nvfp4 { terms: 1, .. } | Self::Nvfp4 { prompt_terms: 1, .. })
    }

    fn has_format(self, matrix: &StoredMatrix<'_>) -> bool {
        matrix.packed().is_some_and(|packed| packed.format == self.format())
    }

    /// Sets the forms of one layer's experts, or of a dense or shared FFN, whose linears are called `names` (gate, up, down of each).
    ///
    /// Errors: the name of a linear that has no scale, nor any of its kind in the layer, where the form needs one.
    pub(super) fn set(
        self,
        checkpoint: &Checkpoint,
        names: &[[String; 3]],
        experts: &mut [ExpertMatrices<'_>],
    ) -> Result<InputScales, String> {
        let (mut of_input, mut of_inner) = (InputScales::default(), InputScales::default());
        for ([gate, up, down], expert) in names.iter().zip(&*experts) {
            let add = |scales: &mut InputScales, name, matrix| {
                if self.has_format(matrix) {
                    scales.add(input_scale(checkpoint, name));
                }
            };
            add(&mut of_input, gate, &expert.gate_proj);
            add(&mut of_input, up, &expert.up_proj);
            add(&mut of_inner, down, &expert.down_proj);
        }
        let forms = |scales: &InputScales, name: &String| match scales.largest {
            Some(scale) => Ok(self.forms(scale)),
            None if self.needs_calibration() && scales.num_missing > 0 => Err(name.clone()),
            None => Ok(self.forms(UNMEASURED_INPUT_SCALE)),
        };
        let Some([gate, _, down]) = names.first() else { return Ok(of_input) };
        let (input, inner) = (forms(&of_input, gate)?, forms(&of_inner, down)?);
        for expert in experts {
            let both = self.has_format(&expert.gate_proj) && self.has_format(&expert.up_proj);
            expert.input = both.then_some(input);
            expert.inner = self.has_format(&expert.down_proj).then_some(inner);
        }
        Ok(of_input.merge(of_inner))
    }
}

/// Whether the rows in front of a linear of this class may be in 4-bit floats.
pub(super) fn is_of_ffn(class: ModuleClass) -> bool {
    matches!(class, ModuleClass::DenseFfn | ModuleClass::RoutedExperts | ModuleClass::SharedExperts)
}

/// Values of `device.activations` in 4-bit floats that a checkpoint's FFNs have weights for, with what it was calibrated for.
pub(super) fn possible(linears: &[Linear], num_input_scales: usize) -> Vec<String> {
    let count = |format: PackedFormat| {
        let of_format = |linear: &&Linear| linear.layout.dialect.format() == Some(format);
        linears.iter().filter(|linear| is_of_ffn(linear.class)).filter(of_format).count()
    };
    let (nvfp4, mxfp4) = (count(PackedFormat::Nvfp4), count(PackedFormat::Mxfp4));
    let mut forms = Vec::new();
    if nvfp4 > 0 {
        if num_input_scales > 0 {
            forms.push(format!("nvfp4 (calibrated: {num_input_scales} scales, {nvfp4} linears)"));
        }
        forms.extend(["nvfp4x2".to_owned(), "nvfp4x3".to_owned()]);
    }
    if mxfp4 > 0 {
        forms.push("mxfp4".to_owned());
    }
    forms
}

/// Scales that a checkpoint has for the inputs of linears which read the same rows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct InputScales {
    /// Linears without a usable one.
    pub(super) num_missing: usize,
    /// Linears with one.
    pub(super) num_found: usize,
    smallest: Option<f32>,
    largest: Option<f32>,
    /// Largest ratio of two of a group.
    pub(super) spread: f32,
}

impl InputScales {
    fn add(&mut self, scale: Option<f32>) {
        let Some(scale) = scale else {
            self.num_missing += 1;
            return;
        };
        self.num_found += 1;
        let smallest = self.smallest.map_or(scale, |other| other.min(scale));
        let largest = self.largest.map_or(scale, |other| other.max(scale));
        (self.smallest, self.largest, self.spread) = (Some(smallest), Some(largest), largest / smallest);
    }

    /// Scales of both groups together.
    fn merge(self, other: Self) -> Self {
        Self {
            num_missing: self.num_missing + other.num_missing,
            num_found: self.num_found + other.num_found,
            smallest: None,
            largest: None,
            spread: self.spread.max(other.spread),
        }
    }
}

/// The scale of a linear's input: `input_scale`, or the reciprocal of compressed-tensors' `input_global_scale`.
fn input_scale(checkpoint: &Checkpoint, linear: &str) -> Option<f32> {
    let read = |part: &'static str| {
        let view = checkpoint.tensor(&format!("{linear}.{part}"))?;
        scalar(part, &view).ok().filter(|scale| scale.is_normal() && *scale > 0.0)
    };
    let scale = read("input_scale").or_else(|| Some(1.0 / read("input_global_scale")?));
    scale.filter(|scale| scale.is_normal())
}
