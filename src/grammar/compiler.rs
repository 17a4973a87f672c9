//! Compiles grammars, once each, within bounds; nothing here runs on the engine's thread.

use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use llguidance::api::ParserLimits;
use llguidance::{ParserFactory, TokenParser};
use toktrie::InferenceCapabilities;

use super::closing::{Found, Landmarks, MAX_CLOSING_BYTES};
use super::matcher::{Matcher, Parser};
use super::source::Source;
use super::{Config, GrammarError, GrammarSpec, Shape, least, vocabulary};
use crate::sampling::TokenConstraint;
use crate::text::Tokenizer;

/// Bytes the search for a grammar's first end may try: some ten milliseconds.
const FIRST_SEARCH_FUEL: usize = 2_000_000;

/// Compiles and keeps grammars for one vocabulary.
pub struct Grammars {
    pub(super) tokenizer: Arc<Tokenizer>,
    pub(super) vocab_size: usize,
    /// Tokens that end a reply.
    pub(super) ends: Vec<u32>,
    config: Config,
    /// Built at the first use: a quarter of a second for a large vocabulary.
    factory: OnceLock<Result<ParserFactory, String>>,
    cache: Mutex<Cache>,
}

/// Grammars by the hash of their source, and when each was last asked for.
#[derive(Default)]
struct Cache {
    entries: HashMap<blake3::Hash, (Arc<Grammar>, u64)>,
    clock: u64,
}

/// A compiled grammar, from which any number of replies can start.
pub struct Grammar {
    /// Never advanced; the lock is for the caches inside.
    template: Mutex<TokenParser>,
    marks: Arc<Landmarks>,
    /// The shortest reply found, without its end token; `None` where none was looked for in vain.
    shortest: Option<Vec<u8>>,
    needs_tokens: usize,
}

/// What one grammar may cost.
fn limits(config: &Config) -> ParserLimits {
    ParserLimits {
        max_lexer_states: config.max_lexer_states as usize,
        initial_lexer_fuel: config.max_lexer_work.into(),
        step_lexer_fuel: config.max_step_work.into(),
        max_grammar_size: config.max_grammar_size as usize,
        // What the parser says of its state means nothing to a client.
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

impl Grammars {
    /// A compiler for replies in this tokenizer's tokens that end with one of `ends`; `vocab_size` is the width of a row of logits.
    pub fn new(tokenizer: Arc<Tokenizer>, vocab_size: usize, ends: Vec<u32>) -> Self {
        let config = Config::default();
        Self { tokenizer, vocab_size, ends, config, factory: OnceLock::new(), cache: Mutex::default() }
    }

    /// The same within other bounds.
    pub fn with_config(self, config: Config) -> Self {
        // What was built or kept before has other bounds.
        Self { config, factory: OnceLock::new(), cache: Mutex::default(), ..self }
    }

    /// The bounds.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Builds what all grammars share, so that the first request need not.
    pub fn warm_up(&self) {
        let _ = self.factory();
    }

    /// The grammar of `spec`. Takes milliseconds: call it where blocking is allowed.
    pub fn compile(&self, spec: &GrammarSpec) -> Result<Arc<Grammar>, GrammarError> {
        if self.ends.is_empty() {
            return Err(GrammarError::NoMarker("end-of-turn"));
        }
        let source = Source::write(spec, &self.tokenizer, &self.ends, &self.config)?;
        let fingerprint = source.fingerprint();
        if let Some(known) = self.cache().get(&fingerprint) {
            return Ok(known);
        }
        // The compiler answers hostile input with errors; a panic in it must not be ours.
        let compiled = catch_unwind(AssertUnwindSafe(|| self.build(spec, source)));
        let grammar =
            compiled.unwrap_or_else(|_| Err(GrammarError::Internal("the compiler panicked".into())))?;
        let grammar = Arc::new(grammar);
        self.cache().insert(fingerprint, grammar.clone(), self.config.cached_grammars as usize);
        Ok(grammar)
    }

    fn build(&self, spec: &GrammarSpec, source: Source<'_>) -> Result<Grammar, GrammarError> {
        let factory = self.factory()?;
        let refused = |error: &dyn fmt::Display| refusal(&spec.shape, error, &self.config);
        let mut parser = factory.create_parser(source.grammar()).map_err(|error| refused(&error))?;
        parser.start_without_prompt();
        // A first mask fills the lexer's caches, which every reply then starts with.
        parser.compute_mask().map_err(|error| refused(&error))?;
        let marks = Arc::new(source.marks);
        let mut parser = Parser::new(parser, marks.clone());
        let found = parser.close(marks.start(), &[], FIRST_SEARCH_FUEL);
        let (shortest, needs_tokens) = match found {
            Found::Closing(bytes) => {
                let tokens = parser.count_tokens(&bytes);
                (Some(bytes), tokens)
            }
            // Nothing can be promised, and JSON that may come out broken is not what was asked for.
            Found::Nothing if matches!(spec.shape, Shape::Json { .. } | Shape::Tools(_)) => {
                return Err(GrammarError::NoEnd { least: least(&spec.shape), why: self.why_no_end(&parser) });
            }
            Found::Nothing => (None, 0),
        };
        Ok(Grammar { template: Mutex::new(parser.into_inner()), marks, shortest, needs_tokens })
    }

    /// Why the search for a first end stopped.
    fn why_no_end(&self, parser: &Parser) -> String {
        match parser.is_exhausted() {
            true => format!(
                "at the bounds on patterns and lengths (structured_output.max_step_work = {}, max_lexer_states = {})",
                self.config.max_step_work, self.config.max_lexer_states
            ),
            false => {
                format!("after {FIRST_SEARCH_FUEL} steps or at {MAX_CLOSING_BYTES} bytes; it may allow none")
            }
        }
    }

    fn factory(&self) -> Result<&ParserFactory, GrammarError> {
        let factory = self.factory.get_or_init(|| {
            let vocabulary = vocabulary::of(&self.tokenizer, self.vocab_size);
            let mut factory = ParserFactory::new(
                &vocabulary,
                InferenceCapabilities::default(),
                &llguidance::earley::SlicedBiasComputer::general_slices(),
            )
            .map_err(|error| error.to_string())?;
            factory.quiet();
            *factory.limits_mut() = limits(&self.config);
            Ok(factory)
        });
        factory.as_ref().map_err(|error| GrammarError::Internal(error.clone()))
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cache {
    fn get(&mut self, fingerprint: &blake3::Hash) -> Option<Arc<Grammar>> {
        self.clock += 1;
        let (grammar, used) = self.entries.get_mut(fingerprint)?;
        *used = self.clock;
        Some(grammar.clone())
    }

    fn insert(&mut self, fingerprint: blake3::Hash, grammar: Arc<Grammar>, limit: usize) {
        self.clock += 1;
        self.entries.insert(fingerprint, (grammar, self.clock));
        if self.entries.len() > limit {
            let oldest = self.entries.iter().min_by_key(|(_, (_, used))| *used).map(|(hash, _)| *hash);
            oldest.map(|hash| self.entries.remove(&hash));
        }
    }
}

/// Longest refusal passed on.
const MAX_REFUSAL_CHARS: usize = 300;

/// Characters of the shortest reply that the shape can allow.
fn least(shape: &Shape) -> usize {
    match shape {
        Shape::Json { schema, .. } => least::characters(schema),
        Shape::Tools(tools) => {
            tools.chosen().map(|tool| least::characters(&tool.schema())).min().unwrap_or(0)
        }
        _ => 0,
    }
}

/// The compiler's refusal on one line; where it is one of its bounds, the setting with it.
fn refusal(shape: &Shape, error: &dyn fmt::Display, config: &Config) -> GrammarError {
    let text = error.to_string();
    if ["fuel exhausted", "initial lexer configuration", "lexer precomputation failed"]
        .iter()
        .any(|part| text.contains(part))
    {
        let (what, limit) = (
            "steps in working out its patterns, enumerations and lengths (structured_output.max_lexer_work)",
            config.max_lexer_work,
        );
        return GrammarError::Limit { what, limit: limit as usize };
    }
    if text.contains("grammar size") {
        let (what, limit) = ("symbols in it (structured_output.max_grammar_size)", config.max_grammar_size);
        return GrammarError::Limit { what, limit: limit as usize };
    }
    let of_schema = matches!(shape, Shape::Json { .. } | Shape::Tools(_));
    // Around a schema stands a grammar of our own, whose lines say nothing to the client.
    let ours = |line: &str| {
        of_schema && line.split_once(" | ").is_some_and(|(number, _)| number.trim().parse::<u32>().is_ok())
    };
    let words: Vec<&str> =
        text.lines().take_while(|line| !ours(line)).flat_map(str::split_whitespace).collect();
    let line = words.join(" ").replace("<non-verbose/>", "");
    let line = line.split_once("failed to compile JSON schema: ").map_or(line.as_str(), |(_, why)| why);
    let line = if line == "NoExtensionBias" { "it allows no value" } else { line };
    let line: String = line.chars().take(MAX_REFUSAL_CHARS).collect();
    if of_schema { GrammarError::Schema(line) } else { GrammarError::Syntax(line) }
}

impl Grammar {
    /// Fewest tokens a reply was found to need, its end token not counted.
    pub fn needs_tokens(&self) -> usize {
        self.needs_tokens
    }

    /// A constraint for one reply.
    pub fn start(self: &Arc<Self>) -> Box<dyn TokenConstraint> {
        Box::new(Matcher::new(self.clone(), self.parser(), self.marks.clone(), self.shortest.clone()))
    }

    /// A parser at the beginning.
    pub(super) fn parser(&self) -> TokenParser {
        self.template.lock().unwrap_or_else(PoisonError::into_inner).deep_clone()
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").field("needs_tokens", &self.needs_tokens).finish_non_exhaustive()
    }
}
