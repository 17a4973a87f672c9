//! What a request gets where it says nothing: the operator's values before the checkpoint's `generation_config.json` before the public
//! API's defaults.

use std::sync::Arc;

use super::error::BootError;
use crate::config::Settings;
use perigee_decoding::sampling::rules::Rules;
use perigee_http::generate::{SamplingDefaults, SamplingPolicy};
use perigee_model::Blueprint;
use perigee_model::checkpoint::Checkpoint;
use perigee_text::Family;

/// What a checkpoint says of its defaults.
#[derive(Debug, Clone)]
pub(crate) struct ModelDefaults {
    /// Of `generation_config.json`, with all end tokens of the checkpoint.
    from_file: SamplingDefaults,
    /// Whether the model reasons unless it is told not to.
    thinks: bool,
}

impl ModelDefaults {
    /// Reads the checkpoint. `family`: whose chat template it has.
    pub(crate) fn of(
        checkpoint: &Checkpoint,
        blueprint: &Blueprint,
        family: Option<Family>,
    ) -> Result<Self, BootError> {
        let mut from_file = match checkpoint.read_file("generation_config.json")? {
            Some(bytes) => SamplingDefaults::from_generation_config(&bytes)?,
            None => SamplingDefaults::default(),
        };
        from_file.eos_token_ids.extend(&blueprint.eos_token_ids);
        Ok(Self { from_file, thinks: family.is_some_and(|family| family != Family::K2Instruct) })
    }
}

/// The defaults of every request, and the operator's policy beside them.
pub(crate) fn sampling_defaults(settings: &Settings, model: &ModelDefaults) -> SamplingDefaults {
    let from_file = model.from_file.clone();
    let mut defaults = match settings.sampling.use_generation_config {
        true => from_file,
        // The end tokens are facts about the model, not preferences.
        false => SamplingDefaults { eos_token_ids: from_file.eos_token_ids, ..Default::default() },
    };
    let operator = &settings.sampling;
    if let Some(given) = &operator.override_generation_config {
        let real = |field, default: &mut f32| *default = given.get(field).map_or(*default, |v| v as f32);
        real("temperature", &mut defaults.temperature);
        real("top_p", &mut defaults.top_p);
        real("min_p", &mut defaults.min_p);
        real("repetition_penalty", &mut defaults.repetition_penalty);
        real("presence_penalty", &mut defaults.presence_penalty);
        real("frequency_penalty", &mut defaults.frequency_penalty);
        defaults.top_k = given.get("top_k").map_or(defaults.top_k, |k| k as u32);
        defaults.max_new_tokens = given.get("max_tokens").map(|m| m as u32).or(defaults.max_new_tokens);
    }
    let set = |value: Option<f32>, default: &mut f32| *default = value.unwrap_or(*default);
    set(operator.temperature, &mut defaults.temperature);
    set(operator.top_p, &mut defaults.top_p);
    set(operator.min_p, &mut defaults.min_p);
    set(operator.repetition_penalty, &mut defaults.repetition_penalty);
    set(operator.presence_penalty, &mut defaults.presence_penalty);
    set(operator.frequency_penalty, &mut defaults.frequency_penalty);
    defaults.top_k = operator.top_k.unwrap_or(defaults.top_k);
    defaults.max_new_tokens = operator.max_tokens.or(defaults.max_new_tokens);
    let rules = |rules: &Option<Rules>| rules.clone().unwrap_or_default();
    defaults.policy = Arc::new(SamplingPolicy {
        both: rules(&operator.policy),
        thinking: rules(&operator.thinking),
        instant: rules(&operator.instant),
    });
    defaults.thinks = operator.assume_thinking.unwrap_or(model.thinks);
    defaults
}
