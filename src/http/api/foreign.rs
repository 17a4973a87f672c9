//! Fields of other servers that change what a reply is, and that this version does not have: refused when they ask for something.
//!
//! Ignoring them would give an answer that is not what was asked for. Fields that only tune one of them, and fields of the public APIs
//! that change nothing about a reply here, are accepted.

use schemars::{JsonSchema, json_schema};
use serde::Deserialize;

use super::ApiError;
use super::json::Both;
use super::values::{AnyValue, Idle, inline_schema};

/// The fields that are refused; none is described.
#[derive(Debug, Deserialize)]
pub(super) struct RefusedBody {
    use_beam_search: Option<AnyValue>,
    length_penalty: Option<AnyValue>,
    logits_processors: Option<AnyValue>,
    custom_logit_processor: Option<AnyValue>,
    mirostat: Option<AnyValue>,
    dry_multiplier: Option<AnyValue>,
    xtc_probability: Option<AnyValue>,
    typ_p: Option<AnyValue>,
    typical_p: Option<AnyValue>,
    dynatemp_range: Option<AnyValue>,
    input_ids: Option<AnyValue>,
    input_embeds: Option<AnyValue>,
    prompt_embeds: Option<AnyValue>,
    return_hidden_states: Option<AnyValue>,
    kv_transfer_params: Option<AnyValue>,
    bootstrap_host: Option<AnyValue>,
    bootstrap_port: Option<AnyValue>,
    bootstrap_room: Option<AnyValue>,
    lora_path: Option<AnyValue>,
    no_repeat_ngram_size: Option<AnyValue>,
    num_beams: Option<AnyValue>,
    top_n_sigma: Option<AnyValue>,
    top_a: Option<AnyValue>,
    tfs_z: Option<AnyValue>,
    typical: Option<AnyValue>,
    mirostat_mode: Option<AnyValue>,
    prefix: Option<AnyValue>,
    encoder_repetition_penalty: Option<AnyValue>,
    epsilon_cutoff: Option<AnyValue>,
    eta_cutoff: Option<AnyValue>,
    guidance_scale: Option<AnyValue>,
    negative_prompt: Option<AnyValue>,
    penalty_alpha: Option<AnyValue>,
    smoothing_factor: Option<AnyValue>,
}

inline_schema!(RefusedBody, _generator => json_schema!({"properties": {}}));

/// The fields that are accepted and mean nothing here.
#[derive(Debug, Deserialize, JsonSchema)]
#[expect(dead_code, reason = "they mean nothing")]
pub(super) struct IdleBody {
    mirostat_tau: Option<Idle>,
    mirostat_eta: Option<Idle>,
    dry_base: Option<Idle>,
    dry_allowed_length: Option<Idle>,
    dry_penalty_last_n: Option<Idle>,
    dry_sequence_breakers: Option<Idle>,
    xtc_threshold: Option<Idle>,
    dynatemp_exponent: Option<Idle>,
    user: Option<Idle>,
    safety_identifier: Option<Idle>,
    prompt_cache_key: Option<Idle>,
    prompt_cache_retention: Option<Idle>,
    prompt_cache_options: Option<Idle>,
    metadata: Option<Idle>,
    store: Option<Idle>,
    service_tier: Option<Idle>,
    verbosity: Option<Idle>,
    prediction: Option<Idle>,
    add_special_tokens: Option<Idle>,
    spaces_between_special_tokens: Option<Idle>,
    session_id: Option<Idle>,
}

/// All of them.
pub(super) type ForeignBody = Both<RefusedBody, IdleBody>;

impl RefusedBody {
    /// Refuses the first field that asks for something.
    pub(super) fn check(&self) -> Result<(), ApiError> {
        // The number beside a field is the one that asks for nothing.
        let fields = [
            ("use_beam_search", &self.use_beam_search, 0.0, "beam search"),
            ("length_penalty", &self.length_penalty, 1.0, "beam search, to which this belongs,"),
            ("logits_processors", &self.logits_processors, 0.0, "a logits processor"),
            ("custom_logit_processor", &self.custom_logit_processor, 0.0, "a logits processor"),
            ("mirostat", &self.mirostat, 0.0, "Mirostat sampling"),
            ("dry_multiplier", &self.dry_multiplier, 0.0, "DRY sampling"),
            ("xtc_probability", &self.xtc_probability, 0.0, "XTC sampling"),
            ("typ_p", &self.typ_p, 1.0, "typical sampling"),
            ("typical_p", &self.typical_p, 1.0, "typical sampling"),
            ("dynatemp_range", &self.dynatemp_range, 0.0, "a dynamic temperature"),
            ("input_ids", &self.input_ids, 0.0, "a prompt of ids in this field"),
            ("input_embeds", &self.input_embeds, 0.0, "prompting with embeddings"),
            ("prompt_embeds", &self.prompt_embeds, 0.0, "prompting with embeddings"),
            ("return_hidden_states", &self.return_hidden_states, 0.0, "returning hidden states"),
            ("kv_transfer_params", &self.kv_transfer_params, 0.0, "KV transfer"),
            ("bootstrap_host", &self.bootstrap_host, 0.0, "KV transfer"),
            ("bootstrap_port", &self.bootstrap_port, 0.0, "KV transfer"),
            ("bootstrap_room", &self.bootstrap_room, 0.0, "KV transfer"),
            ("lora_path", &self.lora_path, 0.0, "LoRA"),
            ("no_repeat_ngram_size", &self.no_repeat_ngram_size, 0.0, "forbidding repeated n-grams"),
            ("num_beams", &self.num_beams, 1.0, "beam search"),
            ("top_n_sigma", &self.top_n_sigma, -1.0, "top-n-sigma sampling"),
            ("top_a", &self.top_a, 0.0, "top-a sampling"),
            ("tfs_z", &self.tfs_z, 1.0, "tail-free sampling"),
            ("typical", &self.typical, 1.0, "typical sampling"),
            ("mirostat_mode", &self.mirostat_mode, 0.0, "Mirostat sampling"),
            (
                "prefix",
                &self.prefix,
                0.0,
                "a prefix of the reply in this field (`continue_final_message` is)",
            ),
            ("encoder_repetition_penalty", &self.encoder_repetition_penalty, 1.0, "a penalty of this kind"),
            ("epsilon_cutoff", &self.epsilon_cutoff, 0.0, "sampling with a cutoff of this kind"),
            ("eta_cutoff", &self.eta_cutoff, 0.0, "sampling with a cutoff of this kind"),
            ("guidance_scale", &self.guidance_scale, 1.0, "classifier-free guidance"),
            ("negative_prompt", &self.negative_prompt, 0.0, "classifier-free guidance"),
            ("penalty_alpha", &self.penalty_alpha, 0.0, "contrastive search"),
            ("smoothing_factor", &self.smoothing_factor, 0.0, "quadratic sampling"),
        ];
        for (name, value, neutral, what) in fields {
            let asks = |value: &AnyValue| match value.number() {
                // Servers that have top-n-sigma switch it off with 0, and with all that is below.
                Some(number) if name == "top_n_sigma" => number > 0.0,
                Some(number) => number != neutral,
                None => !value.is_empty(),
            };
            if value.as_ref().is_some_and(asks) {
                return Err(ApiError::unsupported(name, what));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::json::parse;
    use super::*;

    fn check(body: &str) -> Result<(), ApiError> {
        parse::<ForeignBody>(body.as_bytes())?.0.check()
    }

    #[test]
    fn what_changes_a_reply_is_refused_by_name() {
        for (body, param) in [
            (r#"{"use_beam_search": true}"#, "use_beam_search"),
            (r#"{"length_penalty": 0.8}"#, "length_penalty"),
            (r#"{"mirostat": 2}"#, "mirostat"),
            (r#"{"dry_multiplier": 0.8, "dry_base": 1.75}"#, "dry_multiplier"),
            (r#"{"xtc_probability": 0.5}"#, "xtc_probability"),
            (r#"{"typ_p": 0.9}"#, "typ_p"),
            (r#"{"logits_processors": ["x"]}"#, "logits_processors"),
            (r#"{"return_hidden_states": true}"#, "return_hidden_states"),
            (r#"{"input_ids": [1]}"#, "input_ids"),
            (r#"{"bootstrap_host": "h"}"#, "bootstrap_host"),
            (r#"{"num_beams": 4}"#, "num_beams"),
            (r#"{"top_n_sigma": 1.5}"#, "top_n_sigma"),
            (r#"{"tfs_z": 0.9}"#, "tfs_z"),
            (r#"{"prefix": "Sure"}"#, "prefix"),
        ] {
            assert_eq!(check(body).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }

    #[test]
    fn harmless_forms_pass() {
        for body in [
            r#"{"use_beam_search": false, "length_penalty": 1, "typical_p": 1.0, "mirostat": 0, "dry_multiplier": 0.0}"#,
            r#"{"num_beams": 1, "no_repeat_ngram_size": 0, "top_n_sigma": 0, "top_a": 0, "tfs_z": 1, "typical": 1.0, "mirostat_mode": 0}"#,
            r#"{"top_n_sigma": -1, "prefix": "", "guidance_scale": 1, "negative_prompt": ""}"#,
            r#"{"user": "x", "metadata": {"a": 1}, "store": true, "service_tier": "auto", "verbosity": "low", "dry_base": 2}"#,
        ] {
            assert_eq!(check(body), Ok(()), "{body}");
        }
    }
}
