//! Fields of other servers that change what a reply is, and that this version does not have: refused when they ask for something.
//!
//! Ignoring them would give an answer that is not what was asked for. Fields that only tune one of them, and fields of the public APIs
//! that change nothing about a reply here, are accepted.

use super::ApiError;
use super::json::{Shape, wire_object};

wire_object! {
    struct ForeignBody {
        use_beam_search: Shape,
        length_penalty: Shape,
        logits_processors: Shape,
        custom_logit_processor: Shape,
        logprob_token_ids: Shape,
        mirostat: Shape,
        dry_multiplier: Shape,
        xtc_probability: Shape,
        typ_p: Shape,
        typical_p: Shape,
        dynatemp_range: Shape,
        input_ids: Shape,
        input_embeds: Shape,
        prompt_embeds: Shape,
        return_hidden_states: Shape,
        kv_transfer_params: Shape,
        bootstrap_host: Shape,
        bootstrap_port: Shape,
        bootstrap_room: Shape,
        lora_path: Shape,
    }
    idle [
        "mirostat_tau", "mirostat_eta", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers",
        "xtc_threshold", "dynatemp_exponent",
        "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "metadata", "store",
        "service_tier", "verbosity", "prediction", "add_special_tokens", "spaces_between_special_tokens", "session_id",
    ]
}

impl ForeignBody {
    /// Refuses the first field that asks for something.
    pub(super) fn check(&self) -> Result<(), ApiError> {
        // The number beside a field is the one that asks for nothing.
        let fields = [
            ("use_beam_search", &self.use_beam_search, 0.0, "beam search"),
            ("length_penalty", &self.length_penalty, 1.0, "beam search, to which this belongs,"),
            ("logits_processors", &self.logits_processors, 0.0, "a logits processor"),
            ("custom_logit_processor", &self.custom_logit_processor, 0.0, "a logits processor"),
            ("logprob_token_ids", &self.logprob_token_ids, 0.0, "logprobs of chosen tokens"),
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
        ];
        for (name, value, neutral, what) in fields {
            let asks = |value: &Shape| match value {
                Shape::Number(number) => *number != neutral,
                other => !other.is_empty(),
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
        parse::<ForeignBody>(body.as_bytes())?.check()
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
        ] {
            assert_eq!(check(body).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }

    #[test]
    fn harmless_forms_pass() {
        for body in [
            r#"{"use_beam_search": false, "length_penalty": 1, "typical_p": 1.0, "mirostat": 0, "dry_multiplier": 0.0}"#,
            r#"{"user": "x", "metadata": {"a": 1}, "store": true, "service_tier": "auto", "verbosity": "low", "dry_base": 2}"#,
        ] {
            assert_eq!(check(body), Ok(()), "{body}");
        }
    }
}
