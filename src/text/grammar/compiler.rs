//! Compiles each grammar once, within bounds, and never on the engine's thread.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use llguidance::ParserFactory;
use llguidance::api::{GrammarInit, ParserLimits};
use toktrie::InferenceCapabilities;

use super::budget::{self, Account, Budget, Over};
use super::closing::{Found, MAX_CLOSING_BYTES};
use super::compiled::{Grammar, ReplyLimits};
use super::parser::{Parser, Spelling};
use super::source::Source;
use super::{AnswerFormat, Config, GrammarError, GrammarSpec, Reasoning, expansion, least, vocabulary};
use crate::Tokenizer;
use perigee_telemetry::heap;

/// Bytes that the search for a grammar's first end may try: some ten milliseconds.
const FIRST_SEARCH_FUEL: usize = 2_000_000;

/// Work of one compilation in units of `max_lexer_work`. Each stage is limited to one unit, all
/// stages together to this many.
const COMPILE_WORK: u64 = 8;
/// Work for one token of a reply in units of `max_step_work`, with the same two limits within a
/// step.
const STEP_WORK: u64 = 8;
/// Stack of a compilation: rules are read by recursion. Only the used part takes memory.
const STACK_BYTES: usize = 128 << 20;
/// The part of the limit error for patterns that take too long.
const LEXER_WORK: &str =
    "steps in working out its patterns, enumerations and lengths (structured_output.max_lexer_work)";

/// Compiles grammars for one vocabulary and caches them.
pub struct Grammars {
    pub(super) tokenizer: Arc<Tokenizer>,
    pub(super) vocab_size: usize,
    /// Tokens that end a reply.
    pub(super) ends: Vec<u32>,
    config: Config,
    /// Built at the first use, which takes a quarter of a second for a large vocabulary.
    factory: OnceLock<Result<ParserFactory, String>>,
    cache: Mutex<Cache>,
    account: Arc<Account>,
}

/// Grammars by the hash of their source, with the time of their last use.
#[derive(Default)]
struct Cache {
    entries: HashMap<blake3::Hash, (Arc<Grammar>, u64)>,
    bytes: usize,
    clock: u64,
}

/// Limits on the cost of one grammar.
fn limits(config: &Config) -> ParserLimits {
    ParserLimits {
        max_lexer_states: config.max_lexer_states as usize,
        initial_lexer_fuel: config.max_lexer_work.into(),
        step_lexer_fuel: config.max_step_work.into(),
        max_grammar_size: config.max_grammar_size as usize,
        // The parser's description of its state has no meaning for a client.
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

impl Grammars {
    /// A compiler for replies in this tokenizer's tokens that end with one of `ends`; `vocab_size`
    /// is the width of a logit row.
    pub fn new(tokenizer: Arc<Tokenizer>, vocab_size: usize, ends: Vec<u32>) -> Self {
        let config = Config::default();
        Self {
            tokenizer,
            vocab_size,
            ends,
            config,
            factory: OnceLock::new(),
            cache: Mutex::default(),
            account: Arc::default(),
        }
    }

    /// Replaces the bounds and empties the cache.
    pub fn with_config(self, config: Config) -> Self {
        // Tables and grammars built earlier have other bounds.
        Self { config, factory: OnceLock::new(), cache: Mutex::default(), ..self }
    }

    /// The bounds in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Builds the tables shared by all grammars, so that the first request does not wait for them.
    pub fn warm_up(&self) {
        let _ = self.factory();
    }

    /// The grammar of `spec` without reasoning. Takes milliseconds: call only where blocking is
    /// allowed.
    pub fn compile(&self, spec: &GrammarSpec) -> Result<Arc<Grammar>, GrammarError> {
        self.compile_until(spec, Reasoning::None, &Arc::default())
    }

    /// The cached grammar of `spec` after this reasoning, if there is one. Takes the time to read
    /// `spec`.
    pub fn known(
        &self,
        spec: &GrammarSpec,
        reasoning: Reasoning,
    ) -> Result<Option<Arc<Grammar>>, GrammarError> {
        let fingerprint = self.source(&spec.format, reasoning)?.fingerprint();
        Ok(self.cache().get(&fingerprint))
    }

    /// As [`Grammars::compile`], after this reasoning; setting `stop` ends the compilation within
    /// some milliseconds.
    pub fn compile_until(
        &self,
        spec: &GrammarSpec,
        reasoning: Reasoning,
        stop: &Arc<AtomicBool>,
    ) -> Result<Arc<Grammar>, GrammarError> {
        let format = &spec.format;
        let source = self.source(format, reasoning)?;
        let fingerprint = source.fingerprint();
        if let Some(known) = self.cache().get(&fingerprint) {
            return Ok(known);
        }
        // Built before counting begins: the factory is shared and permanent.
        let factory = self.factory()?;
        let budget = Budget {
            bytes: self.config.max_grammar_bytes as usize,
            work: u64::from(self.config.max_lexer_work) * COMPILE_WORK,
            stop: Some(stop.clone()),
        };
        let (compiled, spent) = on_deep_stack(|| {
            let before = heap::allocated();
            let (compiled, spent) = budget.run(|| self.build_or_loosen(factory, format, reasoning, source));
            let bytes = usize::try_from(heap::allocated().wrapping_sub(before)).unwrap_or(0);
            let compiled = compiled.unwrap_or_else(|over| Err(self.over(over)));
            (compiled.map(|grammar| Arc::new(Grammar { bytes, ..grammar })), spent)
        })?;
        if let Ok(grammar) = &compiled {
            self.cache().insert(fingerprint, grammar.clone(), self.config.cache_bytes as usize);
        }
        if self.account.freed(spent.most_bytes) {
            heap::give_back();
        }
        compiled
    }

    fn source<'a>(&'a self, format: &AnswerFormat, reasoning: Reasoning) -> Result<Source<'a>, GrammarError> {
        if self.ends.is_empty() {
            return Err(GrammarError::NoMarker("end-of-turn"));
        }
        Source::write(format, reasoning, &self.tokenizer, &self.ends, &self.config)
    }

    /// As [`Grammars::build`]. Where calls are refused, every schema is tried alone: it names the
    /// tool, or is dropped if the tool may do without.
    fn build_or_loosen(
        &self,
        factory: &ParserFactory,
        format: &AnswerFormat,
        reasoning: Reasoning,
        source: Source<'_>,
    ) -> Result<Grammar, GrammarError> {
        let built = self.build(factory, format, source);
        let calls = match (format, &built) {
            (AnswerFormat::Tools(calls), Err(refusal)) if refusal.is_refusal() => calls,
            _ => return built,
        };
        let (loosened, dropped) = calls.loosened(|alone| {
            let alone = AnswerFormat::Tools(alone);
            self.build(factory, &alone, self.source(&alone, Reasoning::None)?).map(drop)
        })?;
        if dropped.is_empty() {
            return built;
        }
        let format = AnswerFormat::Tools(loosened);
        let mut grammar = self.build(factory, &format, self.source(&format, reasoning)?)?;
        grammar.advice.extend(dropped);
        Ok(grammar)
    }

    fn build(
        &self,
        factory: &ParserFactory,
        format: &AnswerFormat,
        source: Source<'_>,
    ) -> Result<Grammar, GrammarError> {
        let refused = |error: &dyn fmt::Display| refusal(format, error, &self.config);
        let init = GrammarInit::Serialized(source.grammar());
        let read = init.to_internal(Some(factory.tok_env().clone()), limits(&self.config));
        let (rules, lexer) = read.map_err(|error| refused(&error))?;
        self.stop_if_over()?;
        // A step that exceeds the limit of all steps is not begun: nothing could interrupt it.
        let work = u64::from(self.config.max_lexer_work);
        let expressions = lexer.regex_builder.exprset();
        if expansion::of_one_step(expressions) > work {
            return Err(self.over(Over::Work));
        }
        if expansion::first_steps(expressions, work, work * COMPILE_WORK).is_none() {
            return Err(self.over(Over::Work));
        }
        self.stop_if_over()?;
        let parser = factory.create_parser_from_init_default(GrammarInit::Internal(rules, lexer));
        let mut parser = parser.map_err(|error| refused(&error))?;
        self.stop_if_over()?;
        let beginnings = parser.parser.stats().all_items;
        let limit = factory.limits().max_items_in_row;
        if beginnings > limit {
            let what = "rules that its beginning may be the beginning of";
            return Err(GrammarError::Limit { what, limit });
        }
        parser.start_without_prompt();
        // A first mask fills the lexer's caches, which every reply then inherits.
        parser.compute_mask().map_err(|error| refused(&error))?;
        self.stop_if_over()?;
        let spelling = Spelling(factory.tok_env().clone());
        let (marks, advice) = (Arc::new(source.marks), source.advice);
        let mut parser = Parser::new(parser, marks.clone());
        let found = parser.close(marks.start(), &[], FIRST_SEARCH_FUEL);
        let (shortest, needs_tokens) = match found {
            Found::Closing(bytes) => {
                let tokens = spelling.count_tokens(&bytes);
                (Some(bytes), tokens)
            }
            // Without a known end the reply could be cut, and broken JSON does not meet the
            // request.
            Found::Nothing if matches!(format, AnswerFormat::Json { .. } | AnswerFormat::Tools(_)) => {
                return Err(GrammarError::NoEnd { least: least(format), why: self.why_no_end(&parser) });
            }
            // The bounds are met before the first token: no reply would get far.
            Found::Nothing if parser.is_exhausted() => {
                return Err(GrammarError::Syntax(format!(
                    "no end of it was found {}",
                    self.why_no_end(&parser)
                )));
            }
            Found::Nothing => (None, 0),
        };
        let limits = ReplyLimits {
            bytes: self.config.max_grammar_bytes as usize,
            all_bytes: self.config.max_replies_bytes as usize,
            account: self.account.clone(),
            work: u64::from(self.config.max_step_work) * STEP_WORK,
        };
        let template = Mutex::new(parser.into_inner());
        Ok(Grammar { template, marks, spelling, limits, shortest, needs_tokens, bytes: 0, advice })
    }

    /// Check between two stages of a compilation. Errors: a limit is exceeded, or the result is no
    /// longer needed.
    fn stop_if_over(&self) -> Result<(), GrammarError> {
        budget::spend(0).map_or(Ok(()), |over| Err(self.over(over)))
    }

    fn over(&self, over: Over) -> GrammarError {
        let (what, limit) = match over {
            Over::Memory => (
                "bytes of memory to compile it (structured_output.max_grammar_bytes)",
                self.config.max_grammar_bytes as usize,
            ),
            Over::Work => (LEXER_WORK, self.config.max_lexer_work as usize),
            Over::Unwanted => return GrammarError::Stopped,
            Over::Panic => return GrammarError::Internal("the compiler panicked".into()),
        };
        GrammarError::Limit { what, limit }
    }

    /// The reason why the search for a first end stopped.
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

    /// Caches the grammar if it fits, evicting the least recently used ones.
    fn insert(&mut self, fingerprint: blake3::Hash, grammar: Arc<Grammar>, limit: usize) {
        if grammar.bytes > limit {
            return;
        }
        self.clock += 1;
        self.bytes += grammar.bytes;
        if let Some((same, _)) = self.entries.insert(fingerprint, (grammar, self.clock)) {
            self.bytes -= same.bytes;
        }
        while self.bytes > limit {
            let oldest = self.entries.iter().min_by_key(|(_, (_, used))| *used).map(|(hash, _)| *hash);
            let Some((dropped, _)) = oldest.and_then(|hash| self.entries.remove(&hash)) else { break };
            self.bytes -= dropped.bytes;
        }
    }
}

/// Runs the work on a thread whose stack fits the deepest chain of rules that `Source` allows.
fn on_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, GrammarError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("perigee-grammar".into()).stack_size(STACK_BYTES);
        let running =
            thread.spawn_scoped(scope, work).map_err(|error| GrammarError::Internal(error.to_string()))?;
        running.join().map_err(|_| GrammarError::Internal("the compiler panicked".into()))
    })
}

/// Longest refusal that is passed on to a client.
const MAX_REFUSAL_CHARS: usize = 300;

/// Lower bound on the characters of a reply in the format.
fn least(format: &AnswerFormat) -> usize {
    match format {
        AnswerFormat::Json { schema, .. } => least::characters(schema),
        AnswerFormat::Tools(tools) => {
            tools.chosen().map(|tool| least::characters(&tool.schema())).min().unwrap_or(0)
        }
        _ => 0,
    }
}

/// The compiler's refusal on one line, with the setting if the refusal is one of its bounds.
fn refusal(format: &AnswerFormat, error: &dyn fmt::Display, config: &Config) -> GrammarError {
    let text = error.to_string();
    if ["fuel exhausted", "initial lexer configuration", "lexer precomputation failed"]
        .iter()
        .any(|part| text.contains(part))
    {
        return GrammarError::Limit { what: LEXER_WORK, limit: config.max_lexer_work as usize };
    }
    if text.contains("grammar size") {
        let (what, limit) = ("symbols in it (structured_output.max_grammar_size)", config.max_grammar_size);
        return GrammarError::Limit { what, limit: limit as usize };
    }
    let of_schema = matches!(format, AnswerFormat::Json { .. } | AnswerFormat::Tools(_));
    // A schema is wrapped in a generated grammar, whose lines have no meaning for the client.
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
