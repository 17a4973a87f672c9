//! What computes.

use perigee_model::Fp4Activations;
use perigee_ops::Activations;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The device that runs the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DeviceConfig {
    /// Backend: auto = the first GPU of NVIDIA that has kernels, if the model fits on it, else the CPU, with the reason in the log; the
    /// embedded model stays on the CPU; cuda = that GPU, or no start; cpu; reference = slow and obvious, the specification of the others.
    pub backend: BackendChoice,
    /// Threads of the CPU backend, 0 = all cores this process may use. Larger than the cores: slower.
    pub threads: usize,
    /// Parts that the model is divided into: heads, experts, vocabulary and cached tokens. With cuda each is a GPU of this machine, all of one
    /// architecture, at most 8, that reach each other's memory; on the CPU each has its share of the threads, as several devices would have. Replies
    /// differ from those of one rank by rounding alone. At most the number of attention heads. Larger than 1 on the CPU: slower on one
    /// memory, since each layer's parts wait for each other.
    pub ranks: usize,
    /// GPUs to use, in the order of the ranks, each by its number or its UUID (nvidia-smi -L; the beginning of one is enough): ["2", "3"]
    /// or ["GPU-5e1c"]. Numbers are those of the driver, after CUDA_VISIBLE_DEVICES. Empty = the first ones with kernels.
    pub devices: Vec<String>,
    /// Rounding of what enters a matrix product: bf16 is the checkpoint's own precision, and on GPUs the way to the tensor cores; f32 is exact to rounding, at about half the prefill
    /// speed and twice the cache bytes (GPUs: without tensor cores); int8 is the fastest for 4-bit weights (NVFP4, MXFP4, INT4) and adds about half a percent of noise to each
    /// of their products, bf16 for all others; auto = f32 for checkpoints so small that it costs little (less than 32 MiB of weights per token), else bf16.
    /// On processors whose products of bytes are faster than those of bf16 (all but AMD's with AVX-512 BF16), what meets 4-bit weights is 15-bit
    /// integers in place of bf16, which is finer. GPUs take int8 as bf16, and compute attention in f32 in all modes.
    /// nvfp4 = 4-bit floats in front of dense, shared and routed FFNs with NVFP4 weights, as the checkpoint's input_scale was calibrated: what engines on
    /// Blackwell compute, with about 9 % of noise in each product; nvfp4x2 and nvfp4x3 = sums of two and three such rows, the latter finer than bf16; mxfp4 = the like
    /// of nvfp4 for MXFP4 weights. GPUs of Blackwell multiply them as they are, which no such GPU has measured yet; others refuse them. On
    /// the CPU each term is a product of integers, as that of int8 is.
    pub activations: ActivationsChoice,
    /// Rounding of prompts of scheduler.expand_min_prompt_tokens and more, where activations is nvfp4, nvfp4x2 or nvfp4x3: auto = as activations, or
    /// another of the three. Fewer: faster prompts on GPUs of Blackwell, whose tensor cores do a third of the work for nvfp4 that nvfp4x3 needs, and more noise in what
    /// is cached of them; replies are as activations says.
    pub prefill_activations: PrefillActivations,
    /// Share of a GPU's memory that may be in use once this server has planned its own, vLLM's gpu_memory_utilization: what is beyond it
    /// stays free for others. The plan sets 1 GiB aside in any case. Smaller: fewer cached tokens. The memory of the CPU is divided by
    /// kv_cache.memory_bytes instead.
    pub memory_utilization: f64,
}

/// Rounding of rows of prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PrefillActivations {
    /// As those of replies.
    Auto,
    /// One row of NVFP4.
    Nvfp4,
    /// Sums of two.
    Nvfp4x2,
    /// Sums of three.
    Nvfp4x3,
}

impl PrefillActivations {
    /// Rows of NVFP4 that are added up.
    fn terms(self) -> Option<u8> {
        match self {
            Self::Auto => None,
            Self::Nvfp4 => Some(1),
            Self::Nvfp4x2 => Some(2),
            Self::Nvfp4x3 => Some(3),
        }
    }
}

/// Which backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BackendChoice {
    /// A GPU that the model fits on, else the fast CPU backend.
    Auto,
    /// A GPU of NVIDIA.
    Cuda,
    /// The fast CPU backend.
    Cpu,
    /// The specification.
    Reference,
}

/// Rounding of the inputs of matrix products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ActivationsChoice {
    /// By the checkpoint's size.
    Auto,
    /// 16 bits.
    Bf16,
    /// 32 bits.
    F32,
    /// 8 bits with a scale per 32 inputs where weights are 4-bit codes, else 16 bits.
    Int8,
    /// 4-bit floats where FFNs have NVFP4 weights, as the checkpoint was calibrated.
    Nvfp4,
    /// Sums of two rows of such floats.
    Nvfp4x2,
    /// Sums of three.
    Nvfp4x3,
    /// 4-bit floats where FFNs have MXFP4 weights.
    Mxfp4,
}

impl ActivationsChoice {
    /// The type that is set, or `auto`, which what is not in 4-bit floats has as well.
    pub fn unless_auto(self, auto: Activations) -> Activations {
        match self {
            Self::Auto | Self::Nvfp4 | Self::Nvfp4x2 | Self::Nvfp4x3 | Self::Mxfp4 => auto,
            Self::Bf16 => Activations::Bf16,
            Self::F32 => Activations::F32,
            Self::Int8 => Activations::Int8,
        }
    }
}

impl ActivationsChoice {
    /// The value of this name. Errors: what there is.
    pub fn parse(name: &str) -> Result<Self, String> {
        let value = serde_json::Value::String(name.to_owned());
        serde_json::from_value(value).map_err(|error| error.to_string())
    }

    /// The form of rows in front of FFNs with 4-bit weights, if it is one of 4-bit floats.
    pub fn fp4(self) -> Option<Fp4Activations> {
        match self {
            Self::Auto | Self::Bf16 | Self::F32 | Self::Int8 => None,
            Self::Nvfp4 => Some(Fp4Activations::nvfp4(1)),
            Self::Nvfp4x2 => Some(Fp4Activations::nvfp4(2)),
            Self::Nvfp4x3 => Some(Fp4Activations::nvfp4(3)),
            Self::Mxfp4 => Some(Fp4Activations::Mxfp4),
        }
    }
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            backend: BackendChoice::Auto,
            threads: 0,
            ranks: 1,
            devices: Vec::new(),
            activations: ActivationsChoice::Auto,
            prefill_activations: PrefillActivations::Auto,
            memory_utilization: 1.0,
        }
    }
}

impl DeviceConfig {
    /// The forms of rows in front of FFNs with 4-bit weights, if they are ones of 4-bit floats.
    pub fn fp4_activations(&self) -> Option<Fp4Activations> {
        let form = self.activations.fp4()?;
        Some(match (form, self.prefill_activations.terms()) {
            (Fp4Activations::Nvfp4 { terms, .. }, Some(prompt_terms)) => {
                Fp4Activations::Nvfp4 { terms, prompt_terms }
            }
            _ => form,
        })
    }

    /// Problems as (key, limit).
    pub fn validate(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        if self.threads > 1024 {
            problems.push(("threads", "must be at most 1024".into()));
        }
        if !(1..=64).contains(&self.ranks) {
            problems.push(("ranks", "must be from 1 to 64".into()));
        }
        let mut listed = self.devices.iter().enumerate();
        if let Some((_, twice)) = listed.find(|(at, name)| self.devices[..*at].contains(name)) {
            problems.push(("devices", format!("must have each GPU once, and {twice} is there twice")));
        }
        if self.devices.iter().any(String::is_empty) {
            problems.push(("devices", "must have numbers or UUIDs".into()));
        }
        if !self.devices.is_empty() && self.ranks > self.devices.len() {
            let count = self.devices.len();
            problems.push(("ranks", format!("must be at most the {count} GPUs of device.devices")));
        }
        let are_nvfp4 = matches!(self.activations.fp4(), Some(Fp4Activations::Nvfp4 { .. }));
        if self.prefill_activations != PrefillActivations::Auto && !are_nvfp4 {
            let limit = "must be auto unless device.activations is nvfp4, nvfp4x2 or nvfp4x3";
            problems.push(("prefill_activations", limit.into()));
        }
        if !(0.05..=1.0).contains(&self.memory_utilization) {
            problems.push(("memory_utilization", "must be from 0.05 to 1".into()));
        }
        let (most, with) = match self.backend {
            BackendChoice::Reference => (1, "reference"),
            BackendChoice::Cuda => (8, "cuda"),
            BackendChoice::Auto | BackendChoice::Cpu => (64, "cpu"),
        };
        if self.ranks > most && most < 64 {
            problems.push(("ranks", format!("must be at most {most} with device.backend = {with}")));
        }
        problems
    }
}
