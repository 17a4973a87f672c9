//! The model's settings, and those of its KV cache.

use std::fmt;
use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// Which model is served, and how it is read.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Folder of the checkpoint in Hugging Face's layout, relative to the working directory; not set = the model compiled
    /// into the program.
    pub path: Option<PathBuf>,
    /// Whether a start without model.path is refused; false = the embedded model is served then. Profiles of systems set it, so that the
    /// embedded model never answers in place of the one that was meant.
    pub required: bool,
    /// Names that clients may use for the model, the first one is reported; none = the checkpoint's folder name.
    pub served_name: Vec<String>,
    /// Whether requests may name the model as they like, up to 256 bytes, and get that name back;
    /// false = another name than the served ones is answered 404.
    pub accept_any_name: bool,
    /// Whether the model answers a question of the server's own before the server is ready; the start fails where the reply is empty,
    /// broken, or one character again and again. Costs the time of 48 tokens.
    pub self_test: bool,
    /// Epsilon of the two norms inside attention (q_a_layernorm, kv_a_layernorm): "config" = the checkpoint's rms_norm_eps, as
    /// vLLM and SGLang do; 1e-6 = what Hugging Face's implementation uses whatever the checkpoint says.
    pub latent_norm_eps: LatentNormEps,
    /// File with a chat template (jinja) to use instead of the checkpoint's, relative to the working directory.
    pub chat_template: Option<PathBuf>,
}

impl Config {
    /// Problems as (key, limit).
    pub fn validate(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        if self.path.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
            problems.push(("path", "must name a folder; leave it out for the embedded model".into()));
        }
        if self.chat_template.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
            problems.push(("chat_template", "must name a file".into()));
        }
        if self.served_name.iter().any(|name| name.trim().is_empty()) {
            problems.push(("served_name", "must not hold an empty name".into()));
        }
        if let LatentNormEps::Value(eps) = self.latent_norm_eps
            && !(eps > 0.0 && eps <= 0.1)
        {
            problems.push(("latent_norm_eps", "must be \"config\" or a number above 0, at most 0.1".into()));
        }
        problems
    }

    /// Why the model that is required cannot be opened. No limit of [`Self::validate`]: commands that open no model work without one.
    pub fn lacks_model(&self) -> Option<&'static str> {
        (self.required && self.path.is_none()).then_some(
            "needs model.path, or the embedded toy model would answer in the model's place: name its folder with --model, \
             PERIGEE_MODEL__PATH, or MODEL where compose.yaml is used",
        )
    }
}

/// Epsilon of the latent norms.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum LatentNormEps {
    /// The checkpoint's `rms_norm_eps`.
    #[default]
    Checkpoint,
    /// An explicit epsilon.
    Value(f32),
}

impl LatentNormEps {
    /// The epsilon, given the checkpoint's `rms_norm_eps`.
    pub fn resolve(self, rms_norm_eps: f32) -> f32 {
        match self {
            LatentNormEps::Checkpoint => rms_norm_eps,
            LatentNormEps::Value(eps) => eps,
        }
    }
}

impl Serialize for LatentNormEps {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            LatentNormEps::Checkpoint => serializer.serialize_str("config"),
            LatentNormEps::Value(eps) => serializer.serialize_f32(*eps),
        }
    }
}

impl<'de> Deserialize<'de> for LatentNormEps {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EpsVisitor;
        impl Visitor<'_> for EpsVisitor {
            type Value = LatentNormEps;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"config\" or a number")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<LatentNormEps, E> {
                match text {
                    "config" => Ok(LatentNormEps::Checkpoint),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<LatentNormEps, E> {
                Ok(LatentNormEps::Value(value as f32))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<LatentNormEps, E> {
                Ok(LatentNormEps::Value(value as f32))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<LatentNormEps, E> {
                Ok(LatentNormEps::Value(value as f32))
            }
        }
        deserializer.deserialize_any(EpsVisitor)
    }
}

impl JsonSchema for LatentNormEps {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "LatentNormEps".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "const": "config" }, { "type": "number", "exclusiveMinimum": 0 }] })
    }
}

/// The paged cache of latent keys and values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KvCacheConfig {
    /// Tokens per block, a power of two from 8 to 256. Larger: less bookkeeping, coarser prefix hits, more unused room at the
    /// end of each sequence.
    pub block_size: usize,
    /// Bytes for all blocks ("8GiB" is understood), 0 = the memory plan's choice, printed at start. Larger: more and longer sequences at once.
    /// Set this or num_blocks, not both.
    pub memory_bytes: u64,
    /// Number of blocks, 0 = as many as memory_bytes holds. Larger: more and longer sequences at once.
    pub num_blocks: usize,
    /// Element type: auto = that of the activations. f32 takes twice the memory of bf16, fp8 (E4M3) little more than half.
    pub dtype: KvDtype,
    /// With dtype fp8, the scale of a latent: token = a power of two per token, tensor = one per layer, the checkpoint's k_scale or 1 (values beyond
    /// 448 times it saturate, small ones lose precision).
    pub fp8_scale: Fp8Scale,
    /// With dtype fp8, the type of the rope key: bf16 costs 64 bytes more per token and layer in models of Kimi's sizes; fp8 costs accuracy at long range.
    pub fp8_rope: Fp8Rope,
    /// Whether prompts reuse the blocks of equal beginnings. Costs a hash per block of every prompt.
    pub prefix_caching: bool,
    /// Bytes of host memory for blocks that leave the cache ("64GiB" is understood), 0 = none. A prompt that comes back finds them: long conversations
    /// cost a copy instead of a prefill. Larger: more of them.
    pub host_bytes: u64,
    /// Folder for blocks that leave the cache, empty = none; needs host_bytes. They survive a restart, and several servers may share it. Whoever
    /// can read the folder can learn about prompts; whoever can write it can change replies.
    pub disk_path: String,
    /// Most bytes of the files in disk_path; those used least recently are deleted. Larger: older conversations are found.
    pub disk_bytes: u64,
    /// Longest time that the end of the process may take to write the cache to disk_path, seconds. Larger: more of it survives; it adds to the
    /// drain time, which a supervisor's patience must cover.
    pub disk_flush_s: f64,
}

/// Element type of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KvDtype {
    /// As `device.activations`.
    Auto,
    /// 16 bits.
    Bf16,
    /// 32 bits.
    F32,
    /// 8 bits, E4M3.
    Fp8,
}

/// Scale of FP8 latents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Fp8Scale {
    /// A power of two per token.
    Token,
    /// One per layer: the checkpoint's, or 1.
    Tensor,
}

/// Type of rope keys beside FP8 latents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Fp8Rope {
    /// 16 bits.
    Bf16,
    /// 8 bits, scaled as the latent.
    Fp8,
}

impl Default for KvCacheConfig {
    fn default() -> Self {
        Self {
            block_size: 32,
            memory_bytes: 0,
            num_blocks: 0,
            dtype: KvDtype::Auto,
            fp8_scale: Fp8Scale::Token,
            fp8_rope: Fp8Rope::Bf16,
            prefix_caching: true,
            host_bytes: 0,
            disk_path: String::new(),
            disk_bytes: 64 << 30,
            disk_flush_s: 10.0,
        }
    }
}

impl KvCacheConfig {
    /// Problems as (key, limit).
    pub fn validate(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        if !(self.block_size.is_power_of_two() && (8..=256).contains(&self.block_size)) {
            problems.push(("block_size", "must be a power of two from 8 to 256".into()));
        }
        if self.memory_bytes != 0 && self.num_blocks != 0 {
            let limit = format!(
                "must be 0 when kv_cache.memory_bytes ({}) is set: set one of them",
                self.memory_bytes
            );
            problems.push(("num_blocks", limit));
        }
        if self.host_bytes > 0 && !self.prefix_caching {
            problems.push(("host_bytes", "must be 0 when kv_cache.prefix_caching is false".into()));
        }
        if !self.disk_path.is_empty() && self.host_bytes == 0 {
            problems.push(("disk_path", "needs kv_cache.host_bytes: blocks pass through host memory".into()));
        }
        if !(0.0..=3600.0).contains(&self.disk_flush_s) {
            problems.push(("disk_flush_s", "must be from 0 to 3600".into()));
        }
        // Block ids are 32 bits wide, with the highest values in use as marks.
        if self.num_blocks > i32::MAX as usize {
            problems.push(("num_blocks", format!("must be at most {}", i32::MAX)));
        }
        problems
    }
}
