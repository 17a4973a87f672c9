//! A user's text through a model: documents, tokens, windows, steps.

use perigee_model::checkpoint::Checkpoint;
use perigee_model::{
    Blueprint, BlueprintError, Fp4Activations, LayerObserver, LayerStream, LoadError, StreamError,
};
use perigee_ops::{BlockId, CacheDtype, Calibrate, OpError, StepPlan, TokenSource};
use perigee_text::{Specials, Tokenizer, TokenizerError};

/// Tokens of a block of the cache.
const BLOCK_SIZE: usize = 32;
/// Rows whose logits exist at once.
const MAX_LOGITS_ROWS: usize = 32;
/// Bytes of the residual stream that is kept while the layers come and go. A longer text goes through in several passes, and each reads the whole
/// checkpoint: for a release of 600 GB that is every 37,000 tokens, minutes of reading beside hours of computing.
const HIDDEN_BYTES: usize = 1 << 30;

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
    /// Form of the rows in front of FFNs with 4-bit weights; `None` = the backend's own.
    pub activations: Option<Fp4Activations>,
}

impl Default for PassOptions {
    fn default() -> Self {
        Self { context: 2048, step: 128, max_tokens: None, control_tokens: false, activations: None }
    }
}

/// How far a pass is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassProgress {
    /// Tokens run, times the layers that they went through.
    pub done: u64,
    /// Tokens of the text, times layers.
    pub total: u64,
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
    /// Two models that cannot be compared, or layers that a model does not have.
    #[error("{0}")]
    Unlike(String),
}

impl From<StreamError> for PassError {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::Load(error) => error.into(),
            StreamError::Op(error) => error.into(),
        }
    }
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

/// A model ready to run windows of a text, layer by layer.
pub struct TextPass<'a, B: Calibrate> {
    /// The network.
    pub(crate) stream: LayerStream<'a, B>,
    hidden_bytes: usize,
}

/// The part of a window that is run at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WindowChunk {
    /// Number of the window.
    pub(crate) window: usize,
    /// Its tokens `start..end`; those before were run before.
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// Tokens of the earlier windows of the pass: where the residual stream of this one begins.
    before: usize,
}

impl WindowChunk {
    /// Where its rows are in the residual stream of a pass, `[T, D]`.
    pub(crate) fn rows(&self, hidden_size: usize) -> std::ops::Range<usize> {
        (self.before + self.start) * hidden_size..(self.before + self.end) * hidden_size
    }
}

impl<'a, B: Calibrate> TextPass<'a, B> {
    /// Checks a checkpoint and takes the memory for a pass, weights aside.
    pub fn open(backend: B, checkpoint: &'a Checkpoint, options: &PassOptions) -> Result<Self, PassError> {
        let blueprint = read_blueprint(checkpoint)?;
        let num_blocks = options.context.max(1).div_ceil(BLOCK_SIZE);
        let cache = blueprint.cache_shape(num_blocks, BLOCK_SIZE, CacheDtype::F32);
        let step = options.step.max(1);
        let (rows, form) = (MAX_LOGITS_ROWS, options.activations);
        let stream = LayerStream::open(checkpoint, blueprint, backend, step, rows, &cache, form)?;
        Ok(Self { stream, hidden_bytes: HIDDEN_BYTES })
    }

    /// The network's sizes.
    pub fn blueprint(&self) -> &Blueprint {
        self.stream.blueprint()
    }

    /// Runs windows through the first `num_layers` layers. Each layer's observations come in the order of the windows.
    pub(super) fn run(
        &mut self,
        windows: &[Vec<u32>],
        num_layers: usize,
        observer: &mut dyn LayerObserver,
        progress: &mut dyn FnMut(PassProgress),
    ) -> Result<(), PassError> {
        let mut meter = Meter::new(windows, num_layers, progress);
        for windows in self.passes(windows) {
            let mut hidden = self.embed(windows)?;
            for layer in 0..num_layers {
                self.stream.load(layer)?;
                for chunk in self.chunks(windows) {
                    self.run_chunk(windows, chunk, &mut hidden, observer)?;
                    meter.advance(chunk);
                }
            }
        }
        Ok(())
    }

    /// Windows by pass: as many as may have their residual stream in memory, at least one.
    pub(crate) fn passes<'w>(&self, windows: &'w [Vec<u32>]) -> Vec<&'w [Vec<u32>]> {
        let most = self.hidden_bytes / (size_of::<f32>() * self.blueprint().hidden_size);
        let (mut passes, mut rest) = (Vec::new(), windows);
        while !rest.is_empty() {
            let mut tokens = 0;
            let fits = |window: &&Vec<u32>| {
                tokens += window.len();
                tokens <= most
            };
            let (pass, more) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            passes.push(pass);
            rest = more;
        }
        passes
    }

    /// The residual stream of a pass before the first layer, window after window, `[T, D]`.
    pub(crate) fn embed(&self, windows: &[Vec<u32>]) -> Result<Vec<f32>, PassError> {
        let (vocab_size, width) = (self.blueprint().vocab_size, self.blueprint().hidden_size);
        if let Some(id) = windows.iter().flatten().find(|id| **id as usize >= vocab_size) {
            return Err(PassError::Vocabulary { id: *id, vocab_size });
        }
        let mut hidden = Vec::with_capacity(windows.iter().map(Vec::len).sum::<usize>() * width);
        windows.iter().for_each(|window| self.stream.embed(window, &mut hidden));
        Ok(hidden)
    }

    /// The chunks of a pass, in the order of its tokens.
    pub(crate) fn chunks(&self, windows: &[Vec<u32>]) -> Vec<WindowChunk> {
        let (mut chunks, mut before, size) = (Vec::new(), 0, self.stream.max_tokens());
        for (number, window) in windows.iter().enumerate() {
            chunks.extend((0..window.len()).step_by(size).map(|start| WindowChunk {
                window: number,
                start,
                end: (start + size).min(window.len()),
                before,
            }));
            before += window.len();
        }
        chunks
    }

    /// Runs one chunk of a pass through the loaded layer, in place.
    pub(crate) fn run_chunk(
        &mut self,
        windows: &[Vec<u32>],
        chunk: WindowChunk,
        hidden: &mut [f32],
        observer: &mut dyn LayerObserver,
    ) -> Result<(), PassError> {
        let WindowChunk { start, end, .. } = chunk;
        let blocks: Vec<BlockId> = (0..end.div_ceil(BLOCK_SIZE) as u32).map(BlockId).collect();
        let tokens = windows[chunk.window][start..end].iter().map(|id| TokenSource::from(*id));
        let mut plan = StepPlan::default();
        plan.add(tokens, start, end, &blocks, BLOCK_SIZE);
        let rows = chunk.rows(self.blueprint().hidden_size);
        Ok(self.stream.layer(&plan, &mut hidden[rows], observer)?)
    }
}

/// Counts what a pass has done: every layer takes as long for a token as any other, nearly.
pub(crate) struct Meter<'p> {
    at: PassProgress,
    progress: &'p mut dyn FnMut(PassProgress),
}

impl<'p> Meter<'p> {
    pub(crate) fn new(
        windows: &[Vec<u32>],
        num_layers: usize,
        progress: &'p mut dyn FnMut(PassProgress),
    ) -> Self {
        let tokens: u64 = windows.iter().map(|window| window.len() as u64).sum();
        Self { at: PassProgress { done: 0, total: tokens * num_layers as u64 }, progress }
    }

    pub(crate) fn advance(&mut self, chunk: WindowChunk) {
        self.at.done += (chunk.end - chunk.start) as u64;
        (self.progress)(self.at);
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
    use crate::test_folder::{self, Tiny};
    use perigee_model::{ChosenExperts, LayerInputs, Model, Weights};
    use perigee_ops::host::reference::ReferenceBackend;
    use perigee_ops::{Capacity, Row};

    /// Keeps everything that a run shows, by layer.
    #[derive(Default, PartialEq, Debug)]
    struct Everything(Vec<(usize, ChosenExperts, LayerInputs)>);

    impl LayerObserver for Everything {
        fn wants_experts(&self, _: usize) -> bool {
            true
        }

        fn experts(&mut self, layer: usize, chosen: &ChosenExperts) {
            self.0.push((layer, chosen.clone(), LayerInputs::default()));
        }

        fn wants_inputs(&self, _: usize) -> bool {
            true
        }

        fn inputs(&mut self, layer: usize, inputs: &LayerInputs) {
            self.0.push((layer, ChosenExperts::default(), inputs.clone()));
        }
    }

    #[test]
    fn layer_by_layer_gives_the_bits_of_a_whole_model() {
        let dir = tempfile::tempdir().unwrap();
        test_folder::write(dir.path(), &Tiny::default());
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let options = PassOptions { context: 16, step: 5, ..PassOptions::default() };
        let windows: Vec<Vec<u32>> = vec![(0..16).collect(), (100..107).collect(), vec![7; 12]];
        let blueprint = read_blueprint(&checkpoint).unwrap();
        let (num_layers, width) = (blueprint.num_layers, blueprint.hidden_size);

        let mut streamed = Everything::default();
        let mut pass = TextPass::open(ReferenceBackend, &checkpoint, &options).unwrap();
        // A pass for the first window, and one for the two others.
        pass.hidden_bytes = 4 * width * 20;
        assert_eq!(pass.passes(&windows).iter().map(|p| p.len()).collect::<Vec<_>>(), [1, 2]);
        let (mut seen, mut logits) = (Vec::new(), Vec::new());
        pass.run(&windows, num_layers, &mut streamed, &mut |p| seen.push(p)).unwrap();
        assert_eq!(seen.last(), Some(&PassProgress { done: 35 * 3, total: 35 * 3 }));
        let mut hidden = pass.embed(&windows).unwrap();
        for layer in 0..num_layers {
            pass.stream.load(layer).unwrap();
            for chunk in pass.chunks(&windows) {
                pass.run_chunk(&windows, chunk, &mut hidden, &mut Everything::default()).unwrap();
            }
        }
        pass.stream.load_head().unwrap();
        for rows in hidden.chunks(5 * width) {
            logits.extend_from_slice(pass.stream.logits(rows).unwrap());
        }

        let mut backend = ReferenceBackend;
        let weights = Weights::load(&checkpoint, &blueprint, &mut backend, &mut |_, _| ()).unwrap();
        let cache = blueprint.cache_shape(1, BLOCK_SIZE, CacheDtype::F32);
        let eps = blueprint.rms_norm_eps;
        let capacity = Capacity {
            max_tokens: 5,
            max_logits_rows: 5,
            max_num_seqs: 1,
            block_size: 16,
            cache_dtype: cache.dtype,
        };
        let mut model = Model::new(backend, blueprint, weights, eps, capacity, &cache).unwrap();
        let (mut whole, mut whole_logits) = (Everything::default(), Vec::new());
        for window in &windows {
            for start in (0..window.len()).step_by(5) {
                let end = (start + 5).min(window.len());
                let tokens = window[start..end].iter().map(|id| TokenSource::from(*id));
                let mut plan = StepPlan::default();
                plan.add(tokens, start, end, &[BlockId(0)], BLOCK_SIZE);
                plan.logits_rows = (0..(end - start) as u32).map(Row).collect();
                model.forward_observed(&plan, &mut whole).unwrap();
                whole_logits.extend_from_slice(model.read_logits(0..end - start).unwrap());
            }
        }
        // The same per layer; only the layers' turns differ.
        streamed.0.sort_by_key(|(layer, ..)| *layer);
        whole.0.sort_by_key(|(layer, ..)| *layer);
        assert!(streamed.0.len() > 3 * 7);
        assert_eq!(streamed, whole);
        assert_eq!(logits, whole_logits);
    }

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
