//! Stations of the boot walk that subcommands share: the checkpoint, its sizes, its text side.

use std::sync::Arc;

use super::error::BootError;
use super::sight::{NO_TOWER, TowerSource};
use crate::config::Settings;
use crate::nano;
use perigee_http::generate::{ModelText, Sight};
use perigee_model::Blueprint;
use perigee_model::checkpoint::Checkpoint;
use perigee_text::{ChatTemplate, Tokenizer};

/// The folder of `model.path`, or the embedded model where none is required.
pub(crate) fn open_checkpoint(settings: &Settings) -> Result<Checkpoint, BootError> {
    if let Some(problem) = settings.model.lacks_model() {
        return Err(format!("model.required = true: {problem}").into());
    }
    match &settings.model.path {
        Some(path) => Ok(Checkpoint::open(path)?),
        None => Ok(Checkpoint::from_embedded(nano::FILES)?),
    }
}

/// `config.json` as the network's sizes.
pub(crate) fn read_blueprint(checkpoint: &Checkpoint) -> Result<Blueprint, BootError> {
    let config = checkpoint.read_file("config.json")?;
    let config = config.ok_or_else(|| format!("{} has no config.json", checkpoint.source()))?;
    Ok(Blueprint::parse(&config)?)
}

/// The tokenizer and the chat template: the operator's, else the checkpoint's.
pub(crate) fn load_text(
    settings: &Settings,
    checkpoint: &Checkpoint,
    blueprint: &Blueprint,
) -> Result<ModelText, BootError> {
    let file = |name: &str| checkpoint.file(name).map(|bytes| bytes.into_owned());
    let tokenizer = Tokenizer::load(&file)?;
    if tokenizer.vocab_size() > blueprint.vocab_size {
        tracing::warn!(
            tokenizer = tokenizer.vocab_size(),
            embedding = blueprint.vocab_size,
            "the tokenizer knows more ids than the model; prompts that use them are refused"
        );
    }
    let template = match &settings.model.chat_template {
        Some(path) => {
            let refused =
                |error: &dyn std::fmt::Display| format!("model.chat_template {}: {error}", path.display());
            let source = std::fs::read_to_string(path).map_err(|error| refused(&error))?;
            ChatTemplate::from_jinja(&source, &tokenizer).map_err(|error| refused(&error))?
        }
        None => ChatTemplate::load(&file, &blueprint.wrapper_type, &tokenizer)?,
    };
    Ok(ModelText { tokenizer: Arc::new(tokenizer), template, sight: Err(NO_TOWER) })
}

/// The checkpoint's vision tower, or what it lacks to see; `text` is told.
pub(crate) fn load_sight(
    settings: &Settings,
    checkpoint: &Checkpoint,
    blueprint: &Blueprint,
    text: &mut ModelText,
) -> Result<Option<TowerSource>, BootError> {
    match TowerSource::open(&settings.vision, checkpoint, blueprint)? {
        Ok(tower) => {
            let (preprocessor, config) = (tower.preprocessor.clone(), settings.vision.clone());
            text.sight = Ok(Arc::new(Sight::new(preprocessor, config, tower.blueprint.media_token_id)));
            Ok(Some(tower))
        }
        Err(reason) => {
            if reason != NO_TOWER {
                tracing::warn!("only text is served: {reason}");
            }
            text.sight = Err(reason);
            Ok(None)
        }
    }
}
