//! A user's text through a model: documents, tokens, windows, steps.

use crate::checkpoint::Checkpoint;
use crate::model::{Blueprint, BlueprintError, ForwardInput, LayerObserver, LoadError, Model, Weights};
use crate::ops::{AttentionForm, Backend, CacheDType, OpError, Segment};
use crate::text::{Specials, Tokenizer, TokenizerError};

/// Tokens of a block of the cache.
const BLOCK_SIZE: usize = 32;
/// Rows whose logits exist at once.
const MAX_LOGITS_ROWS: usize = 32;

/// How a text is cut and run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassOptions {
    /// Tokens of a window: a document is cut into windows, and each begins at position 0. Larger: truer long-range attention, more memory.
    pub context: usize,
    /// Tokens of a step. Larger: faster, more memory.
    pub step: usize,
    /// Tokens after which the pass ends; `None` = the whole text.
    pub max_tokens: Option<u64>,
    /// Whether markers in the text (`<|im_user|>` and its like) become control tokens; otherwise they are text like any other.
    pub control_tokens: bool,
}

impl Default for PassOptions {
    fn default() -> Self {
        Self { context: 2048, step: 128, max_tokens: None, control_tokens: false }
    }
}

/// Why a text could not be run.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// The text file.
    #[error("{file}{}: {problem}", line.map_or(String::new(), |line| format!(" line {line}")))]
    Text {
        /// File.
        file: String,
        /// Line, from 1.
        line: Option<usize>,
        /// What is wrong, and what is expected.
        problem: String,
    },
    /// The checkpoint has no configuration.
    #[error("{0} has no config.json")]
    NoConfig(String),
    /// Configuration.
    #[error(transparent)]
    Blueprint(#[from] BlueprintError),
    /// Weights.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A token that the model has no embedding for.
    #[error(
        "the tokenizer gives id {id}, the model has {vocab_size}; tokenizer and weights do not belong together"
    )]
    Vocabulary {
        /// Token id.
        id: u32,
        /// Embeddings.
        vocab_size: usize,
    },
    /// The device.
    #[error(transparent)]
    Op(#[from] OpError),
    /// Activations that are no numbers.
    #[error("layer {layer} computes numbers that are not finite on this text; repair the source")]
    NotFinite {
        /// Layer.
        layer: usize,
    },
    /// Two models that cannot be compared.
    #[error("{0}")]
    Unlike(String),
}

/// A text file as documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Documents {
    /// blake3 of the file, hex.
    pub fingerprint: String,
    /// Texts, none empty.
    pub texts: Vec<String>,
}

impl Documents {
    /// `.jsonl`: one object per line with a string `text`. Any other name: plain text, documents are divided by blank lines.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self, PassError> {
        let error = |line, problem: String| PassError::Text { file: file.into(), line, problem };
        let text = std::str::from_utf8(bytes)
            .map_err(|e| error(None, format!("is not UTF-8 from byte {} on", e.valid_up_to())))?;
        let mut texts: Vec<String> = Vec::new();
        if file.ends_with(".jsonl") {
            #[derive(serde::Deserialize)]
            struct Line {
                text: String,
            }
            for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
                let parsed: Line = serde_json::from_str(line).map_err(|e| {
                    error(Some(i + 1), format!("expected an object with a string `text`: {e}"))
                })?;
                texts.push(parsed.text);
            }
        } else {
            let mut document = String::new();
            for line in text.lines().chain([""]) {
                if line.trim().is_empty() {
                    texts.push(std::mem::take(&mut document));
                } else {
                    document.push_str(line);
                    document.push('\n');
                }
            }
        }
        texts.retain(|text| !text.trim().is_empty());
        if texts.is_empty() {
            return Err(error(None, "has no documents".into()));
        }
        Ok(Self { fingerprint: blake3::hash(bytes).to_hex().to_string(), texts })
    }

    /// Token ids cut into windows. Gives the windows and the number of documents they come from.
    pub fn windows(
        &self,
        tokenizer: &Tokenizer,
        options: &PassOptions,
    ) -> Result<(Vec<Vec<u32>>, u64), PassError> {
        let (mut windows, mut documents, mut left) = (Vec::new(), 0, options.max_tokens.unwrap_or(u64::MAX));
        let specials = match options.control_tokens {
            true => Specials::Recognised,
            false => Specials::AsText,
        };
        for text in &self.texts {
            if left == 0 {
                break;
            }
            let mut ids = tokenizer.encode(text, specials)?;
            ids.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            left -= ids.len() as u64;
            windows.extend(ids.chunks(options.context.max(1)).map(<[u32]>::to_vec));
            documents += 1;
        }
        Ok((windows, documents))
    }
}

/// A model ready to run windows, one after the other.
pub struct TextPass<B: Backend> {
    /// The network.
    pub(super) model: Model<B>,
    vocab_size: usize,
}

impl<B: Backend> TextPass<B> {
    /// Loads a checkpoint's weights. `progress(done, total)` in layers.
    pub fn load(
        mut backend: B,
        checkpoint: &Checkpoint,
        options: &PassOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, PassError> {
        let blueprint = read_blueprint(checkpoint)?;
        let weights = Weights::load(checkpoint, &blueprint, &mut backend, progress)?;
        let num_blocks = options.context.max(1).div_ceil(BLOCK_SIZE);
        let cache = blueprint.cache_shape(num_blocks, BLOCK_SIZE, CacheDType::F32);
        let (eps, vocab_size) = (blueprint.rms_norm_eps, blueprint.vocab_size);
        let model =
            Model::new(backend, blueprint, weights, eps, options.step.max(1), MAX_LOGITS_ROWS, &cache)?;
        Ok(Self { model, vocab_size })
    }

    /// The network's sizes.
    pub fn blueprint(&self) -> &Blueprint {
        self.model.blueprint()
    }

    /// Tokens of a step.
    pub(super) fn step_tokens(&self) -> usize {
        self.model.max_tokens()
    }

    /// Runs tokens `start..end` of a window whose earlier tokens were run before.
    pub(super) fn step(
        &mut self,
        window: &[u32],
        start: usize,
        end: usize,
        observer: &mut dyn LayerObserver,
    ) -> Result<(), PassError> {
        let tokens = &window[start..end];
        if let Some(id) = tokens.iter().find(|id| **id as usize >= self.vocab_size) {
            return Err(PassError::Vocabulary { id: *id, vocab_size: self.vocab_size });
        }
        let num_blocks = end.div_ceil(BLOCK_SIZE);
        let segment = Segment {
            rows: 0..tokens.len(),
            first_position: start,
            form: AttentionForm::Expanded,
            block_table: 0..num_blocks,
        };
        let input = ForwardInput {
            token_ids: tokens.to_vec(),
            positions: (start..end).collect(),
            slot_mapping: (start as u32..end as u32).collect(),
            expanded: vec![segment],
            absorbed: Vec::new(),
            block_tables: (0..num_blocks as u32).collect(),
        };
        Ok(self.model.forward_observed(&input, observer)?)
    }

    /// Runs a whole window.
    pub(super) fn window(
        &mut self,
        window: &[u32],
        observer: &mut dyn LayerObserver,
    ) -> Result<(), PassError> {
        let step = self.step_tokens();
        (0..window.len())
            .step_by(step)
            .try_for_each(|start| self.step(window, start, (start + step).min(window.len()), observer))
    }
}

/// `config.json` as sizes.
pub(super) fn read_blueprint(checkpoint: &Checkpoint) -> Result<Blueprint, PassError> {
    let config = checkpoint.file("config.json");
    let config = config.ok_or_else(|| PassError::NoConfig(checkpoint.source().into()))?;
    Ok(Blueprint::parse(&config)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_come_from_lines_or_paragraphs() {
        let texts = |file: &str, bytes: &str| Documents::parse(file, bytes.as_bytes()).map(|d| d.texts);
        assert_eq!(texts("a.txt", "a\nb\n\n \n\nc").unwrap(), ["a\nb\n", "c\n"]);
        assert_eq!(
            texts("a.jsonl", "{\"text\":\"a\\n\\nb\",\"id\":1}\n\n{\"text\":\"c\"}").unwrap(),
            ["a\n\nb", "c"]
        );
        for (file, bytes, expected) in [
            ("a.txt", " \n\n", "a.txt: has no documents"),
            ("a.jsonl", "{\"text\":\"a\"}\n{\"txt\":1}", "a.jsonl line 2: expected an object"),
            ("a.jsonl", "[]", "line 1"),
        ] {
            assert!(texts(file, bytes).unwrap_err().to_string().contains(expected), "{bytes}");
        }
        assert!(Documents::parse("a", &[b'a', 0xff]).unwrap_err().to_string().contains("from byte 1"));
    }
}
