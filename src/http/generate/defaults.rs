//! Sampling values for requests that leave them open, from the checkpoint's `generation_config.json`.

use std::sync::Arc;

use serde::Deserialize;

use super::SamplingPolicy;
use perigee_decoding::sampling::{LIMITS, Range};

/// Sampling values for requests that name none. Absent fields fall back to the public API's
/// defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingDefaults {
    /// Softmax temperature, 0..2.
    pub temperature: f32,
    /// Nucleus mass, (0, 1].
    pub top_p: f32,
    /// Most likely tokens kept, 0 = all.
    pub top_k: u32,
    /// Least probability relative to the best token's, [0, 1].
    pub min_p: f32,
    /// Repetition penalty, above 0.
    pub repetition_penalty: f32,
    /// Presence penalty, -2..2.
    pub presence_penalty: f32,
    /// Frequency penalty, -2..2.
    pub frequency_penalty: f32,
    /// Reply tokens of a chat request without a limit of its own; `None` = the rest of the context.
    pub max_new_tokens: Option<u32>,
    /// End tokens that the checkpoint names.
    pub eos_token_ids: Vec<u32>,
    /// The operator's policy for values that requests name.
    pub policy: Arc<SamplingPolicy>,
    /// Whether a request reasons if it does not choose.
    pub thinks: bool,
}

impl Default for SamplingDefaults {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            max_new_tokens: None,
            eos_token_ids: Vec::new(),
            policy: Arc::default(),
            thinks: false,
        }
    }
}

/// A `generation_config.json` that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DefaultsError {
    /// Not the expected JSON.
    #[error("generation_config.json: {0}")]
    Parse(#[from] serde_json::Error),
    /// A value outside its range.
    #[error("generation_config.json: {field} is {value}, allowed: {allowed}")]
    OutOfRange {
        /// The key in the file.
        field: &'static str,
        /// The value in the file.
        value: f64,
        /// The range.
        allowed: String,
    },
}

/// The keys read from the file; the others (`max_length`, `transformers_version` ...) have no
/// meaning here.
#[derive(Deserialize)]
struct Raw {
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    min_p: Option<f64>,
    repetition_penalty: Option<f64>,
    max_new_tokens: Option<i64>,
    eos_token_id: Option<OneOrMany>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(u32),
    Many(Vec<u32>),
}

impl SamplingDefaults {
    /// Reads the bytes of a `generation_config.json`.
    ///
    /// `do_sample` is ignored: `temperature: 0` requests greedy sampling, and files with
    /// `do_sample: false` and no temperature come from library defaults, not from a choice of the
    /// model's authors.
    ///
    /// Errors: not JSON, a wrong type, or a value outside its range.
    pub fn from_generation_config(bytes: &[u8]) -> Result<Self, DefaultsError> {
        let raw: Raw = serde_json::from_slice(bytes)?;
        let base = Self::default();
        let real = |field, value: Option<f64>, default: f32, range: Range| match value {
            None => Ok(default),
            Some(v) if range.contains(v) => Ok(v as f32),
            Some(value) => Err(DefaultsError::OutOfRange { field, value, allowed: range.to_string() }),
        };
        Ok(Self {
            temperature: real("temperature", raw.temperature, base.temperature, LIMITS.temperature)?,
            top_p: real("top_p", raw.top_p, base.top_p, LIMITS.top_p)?,
            min_p: real("min_p", raw.min_p, base.min_p, LIMITS.min_p)?,
            repetition_penalty: real(
                "repetition_penalty",
                raw.repetition_penalty,
                base.repetition_penalty,
                LIMITS.repetition_penalty,
            )?,
            presence_penalty: base.presence_penalty,
            frequency_penalty: base.frequency_penalty,
            top_k: match raw.top_k {
                None | Some(-1) => 0,
                Some(k) => u32::try_from(k).map_err(|_| DefaultsError::OutOfRange {
                    field: "top_k",
                    value: k as f64,
                    allowed: "0 (off) or more".to_owned(),
                })?,
            },
            max_new_tokens: match raw.max_new_tokens {
                None => None,
                Some(m) => match u32::try_from(m) {
                    Ok(m) if m > 0 => Some(m),
                    _ => {
                        return Err(DefaultsError::OutOfRange {
                            field: "max_new_tokens",
                            value: m as f64,
                            allowed: "1 or more".to_owned(),
                        });
                    }
                },
            },
            eos_token_ids: match raw.eos_token_id {
                None => Vec::new(),
                Some(OneOrMany::One(id)) => vec![id],
                Some(OneOrMany::Many(ids)) => ids,
            },
            policy: base.policy,
            thinks: base.thinks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_files_found_beside_checkpoints() {
        let d = SamplingDefaults::from_generation_config(br#"{"eos_token_id": 258, "max_length": 8192}"#)
            .unwrap();
        assert_eq!(d, SamplingDefaults { eos_token_ids: vec![258], ..Default::default() });
        let d = SamplingDefaults::from_generation_config(
            br#"{"temperature": 0.6, "top_p": 0.95, "top_k": -1, "eos_token_id": [1, 2], "do_sample": true,
                 "repetition_penalty": 1.05, "max_new_tokens": 100, "transformers_version": "4.56"}"#,
        )
        .unwrap();
        assert_eq!((d.temperature, d.top_p, d.top_k), (0.6, 0.95, 0));
        assert_eq!((d.repetition_penalty, d.max_new_tokens), (1.05, Some(100)));
        assert_eq!(d.eos_token_ids, [1, 2]);
    }

    #[test]
    fn refuses_values_out_of_range() {
        for (json, field) in [
            (r#"{"temperature": -1}"#, "temperature"),
            (r#"{"top_p": 0}"#, "top_p"),
            (r#"{"top_k": -2}"#, "top_k"),
            (r#"{"min_p": 1.5}"#, "min_p"),
            (r#"{"repetition_penalty": 0}"#, "repetition_penalty"),
            (r#"{"max_new_tokens": 0}"#, "max_new_tokens"),
            (r#"{"eos_token_id": "x"}"#, "generation_config.json"),
            ("[1", "generation_config.json"),
        ] {
            let error = SamplingDefaults::from_generation_config(json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(field), "{json}: {error}");
        }
    }
}
