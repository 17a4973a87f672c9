//! The request walk: render, tokenize, fit the context, see images, constrain, submit, then follow the
//! engine's replies.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use tokio::sync::Semaphore;

use super::block::{ReasoningSwitch, ReasoningTokens};
use super::compiling::{Cause, Compiling, wait_for_turn};
use super::config::Config;
use super::fetching::FetchImages;
use super::guarding::GuardPlan;
use super::reply::{Replies, Reply, ReplySetup};
use super::request::{Calls, ChatPrompt, EncodedPrompt, GenerateRequest, Prompt, Truncate, TruncateSide};
use super::sight::{ImageFile, ImageInput, PlacedImage, Seeing, Sight};
use super::{Engine, EngineFacts, EngineSnapshot, GenerateError, SamplingDefaults};
use perigee_decoding::guard;
use perigee_decoding::sampling::{BadWords, SamplingParams};
use perigee_decoding::speculation::Predicted;
use perigee_engine::{EngineRequest, Media, Speculation};
use perigee_telemetry::{Metrics, Rejection};
use perigee_text::grammar::{self, Grammar, GrammarError, GrammarSpec, Grammars, Reasoning};
use perigee_text::{
    ChatTemplate, RenderOptions, RenderedPrompt, ReplyFormat, ReplyParser, ReplyStart, Specials,
    TemplateError, Tokenizer, markers,
};

/// Bytes of text above which a prompt is rendered and tokenized on a blocking thread (about a
/// millisecond of work), so that a long prompt never delays other connections' streams.
const INLINE_TEXT_BYTES: usize = 4096;
/// Bytes of text that decoding a token id is taken for.
const TOKEN_BYTES: usize = 4;

/// The text side of the checkpoint.
pub struct ModelText {
    /// Encodes prompts and decodes replies.
    pub tokenizer: Arc<Tokenizer>,
    /// The chat template, the checkpoint's own or a built-in one.
    pub template: ChatTemplate,
    /// How the model sees images, or what it lacks to see any.
    pub sight: Result<Arc<Sight>, &'static str>,
}

/// Alternatives per token up to which the whole answer needs no bound.
const FREE_TOP_LOGPROBS: u32 = 20;
/// Most alternatives in one answer with more than [`FREE_TOP_LOGPROBS`] per token: 8 MB in the
/// engine, about ten times as much as JSON.
const MAX_ANSWER_LOGPROBS: usize = 1 << 20;

/// Turns valid requests into replies. Shared behind an `Arc`; a clone is another with the same
/// engine, text and caches.
#[derive(Clone)]
pub struct Generator {
    engine: Arc<dyn Engine>,
    text: Arc<ModelText>,
    defaults: SamplingDefaults,
    turn_ends: Vec<u32>,
    reasoning: Config,
    switch: ReasoningSwitch,
    reasoning_tokens: Option<ReasoningTokens>,
    reply_format: ReplyFormat,
    /// Ids of the markers that begin calls.
    call_markers: Vec<u32>,
    request_timeout_s: f64,
    /// Limits how many long prompts are tokenized at once.
    tokenizing: Arc<Semaphore>,
    grammars: Arc<Grammars>,
    /// Limits how many grammars are compiled at once.
    compiling: Arc<Semaphore>,
    metrics: Arc<Metrics>,
    guard: GuardPlan,
    seeing: Option<Seeing>,
    /// Ids of the markers of media, which no reply has.
    media_markers: Vec<u32>,
}

impl Generator {
    /// A generator for one engine and its checkpoint's text. `request_timeout_s` only appears in
    /// messages.
    pub fn new(
        engine: Arc<dyn Engine>,
        text: ModelText,
        defaults: SamplingDefaults,
        reasoning: Config,
        request_timeout_s: f64,
        metrics: Arc<Metrics>,
    ) -> Self {
        let mut turn_ends = text.tokenizer.turn_ends();
        turn_ends.extend(&defaults.eos_token_ids);
        turn_ends.retain(|&id| (id as usize) < engine.facts().vocab_size);
        turn_ends.sort_unstable();
        turn_ends.dedup();
        let grammars = Grammars::new(text.tokenizer.clone(), engine.facts().vocab_size, turn_ends.clone());
        let threads = std::thread::available_parallelism().map_or(2, |n| n.get());
        let begins_calls = [markers::TOOL_CALLS_SECTION_BEGIN, markers::TOOL_CALL_BEGIN];
        let call_markers = begins_calls.iter().filter_map(|name| text.tokenizer.special_id(name)).collect();
        let guard = GuardPlan::new(guard::Config::default(), text.tokenizer.clone());
        let seeing = match (&text.sight, engine.facts().vision) {
            (Ok(sight), Some(facts)) => Some(Seeing::new(sight.clone(), facts, None)),
            _ => None,
        };
        let media = [
            markers::MEDIA_BEGIN,
            markers::MEDIA_START,
            markers::MEDIA_CONTENT,
            markers::MEDIA_PAD,
            markers::MEDIA_END,
        ];
        let media = media.iter().filter_map(|name| text.tokenizer.special_id(name));
        Self {
            media_markers: media.filter(|_| seeing.is_some()).collect(),
            seeing,
            engine,
            reasoning,
            switch: ReasoningSwitch::of(&text.template, &text.tokenizer),
            reasoning_tokens: ReasoningTokens::of(&text.tokenizer, &turn_ends),
            reply_format: ReplyFormat::of_tokens(&text.tokenizer, text.template.mentions(markers::THINK)),
            call_markers,
            text: Arc::new(text),
            defaults,
            turn_ends,
            request_timeout_s,
            tokenizing: Arc::new(Semaphore::new(threads)),
            grammars: Arc::new(grammars),
            compiling: Arc::new(Semaphore::new(grammar::Config::default().max_compiling as usize)),
            metrics,
            guard,
        }
    }

    /// Fetches images of http and https URLs with `fetch`.
    pub fn with_fetch(mut self, fetch: Arc<dyn FetchImages>) -> Self {
        if let (Ok(sight), Some(facts)) = (&self.text.sight, self.engine.facts().vision) {
            self.seeing = Some(Seeing::new(sight.clone(), facts, Some(fetch)));
        }
        self
    }

    /// Replaces the guard's settings.
    pub fn with_guard(mut self, config: guard::Config) -> Self {
        self.guard = self.guard.with_config(config);
        self
    }

    /// Replaces the values of requests that leave them open, and the rules for values that requests set.
    /// The end tokens stay.
    pub fn with_defaults(mut self, defaults: SamplingDefaults) -> Self {
        self.defaults = defaults;
        self
    }

    /// Replaces the time limit that messages name.
    pub fn with_request_timeout(mut self, seconds: f64) -> Self {
        self.request_timeout_s = seconds;
        self
    }

    /// Replaces the settings of reasoning.
    pub fn with_reasoning(mut self, reasoning: Config) -> Self {
        self.reasoning = reasoning;
        self
    }

    /// Replaces the bounds on grammars.
    pub fn with_structured_output(mut self, config: grammar::Config) -> Self {
        let grammars =
            Grammars::new(self.text.tokenizer.clone(), self.facts().vocab_size, self.turn_ends.clone());
        self.compiling = Arc::new(Semaphore::new(config.max_compiling as usize));
        self.grammars = Arc::new(grammars.with_config(config));
        self
    }

    /// The bounds on grammars.
    pub fn structured_output(&self) -> &grammar::Config {
        self.grammars.config()
    }

    /// The guard's settings in force.
    pub fn guard(&self) -> &guard::Config {
        self.guard.config()
    }

    /// Runs the walk. Dropping the returned [`Replies`] aborts every sequence of the request within
    /// one step.
    pub async fn generate(&self, request: GenerateRequest) -> Result<Replies, GenerateError> {
        let arrived = Instant::now();
        let format = self.format(&request);
        let begins_turn =
            |prompt: &Prompt| matches!(prompt, Prompt::Chat(chat) if !chat.continue_final_message);
        let begins_turn = request.prompts.iter().any(begins_turn);
        let (prompts, mut request) = self.encode(request).await.inspect_err(|e| self.note_refusal(e))?;
        let mut prompts = self.fit(prompts, &request)?;
        self.bound_queue(&prompts, &request)?;
        let media = self.see(&mut prompts, &request).await.inspect_err(|e| self.note_refusal(e))?;
        self.bound_logprobs(&prompts, &request)?;
        let grammar = self.constrain(&prompts, &request, begins_turn).await?;
        let not_enforced = grammar.as_ref().zip(request.grammar.as_ref());
        let not_enforced = not_enforced.map_or_else(Vec::new, |(grammar, spec)| spec.not_enforced(grammar));
        let prediction = self.predict(request.prediction.take()).await?;
        let speculation = Speculation { wanted: request.speculation, prediction };
        let replies = self
            .submit(&prompts, media, &request, format, grammar.as_ref(), &speculation)
            .inspect_err(|e| self.note_refusal(e))?;
        let facts = self.facts();
        let cache_block = facts.prefix_caching.then_some(facts.block_size);
        let replies = Replies::new(replies, prompts, request.n as usize, cache_block, arrived);
        Ok(replies.without_rules(not_enforced))
    }

    /// The pictures of each prompt.
    async fn see(
        &self,
        prompts: &mut [EncodedPrompt],
        request: &GenerateRequest,
    ) -> Result<Vec<Vec<Media>>, GenerateError> {
        let mut media = Vec::with_capacity(prompts.len());
        for prompt in prompts {
            media.push(match &self.seeing {
                Some(seeing) if !prompt.images.is_empty() => {
                    seeing.see(&mut prompt.images, request.cache_salt.as_deref(), &self.metrics).await?
                }
                _ => Vec::new(),
            });
        }
        Ok(media)
    }

    /// Fetches the remote images of a prompt.
    async fn fetch(&self, prompt: &mut Prompt) -> Result<(), GenerateError> {
        match (&self.seeing, prompt) {
            (Some(seeing), Prompt::Chat(chat)) if !chat.images.is_empty() => {
                seeing.fetch(&mut chat.images).await
            }
            _ => Ok(()),
        }
    }

    /// Ids of the request's prompts, and their text if the prompt is to be echoed.
    async fn encode(
        &self,
        mut request: GenerateRequest,
    ) -> Result<(Vec<EncodedPrompt>, GenerateRequest), GenerateError> {
        let mut prompts = std::mem::take(&mut request.prompts);
        for prompt in &mut prompts {
            self.fetch(prompt).await?;
        }
        let echo = request.echo;
        let bytes: usize = prompts.iter().map(|prompt| prompt.text_bytes(echo)).sum();
        let encoded = self
            .off_thread(bytes, move |text| prompts.into_iter().map(|p| text.encode(p, echo)).collect())
            .await;
        let encoded: Result<_, GenerateError> = encoded;
        self.forbid(&mut request)?;
        Ok((encoded?, request))
    }

    /// Turns the request's bad words into token sequences, each with and without a space before it.
    fn forbid(&self, request: &mut GenerateRequest) -> Result<(), GenerateError> {
        let mut words = Vec::new();
        for word in std::mem::take(&mut request.bad_words) {
            for text in [format!(" {}", word.trim_start()), word] {
                let tokens = self.text.tokenizer.encode(&text, Specials::AsText);
                words.push(tokens.map_err(|e| GenerateError::Tokenize(e.to_string()))?);
            }
        }
        if !words.is_empty() {
            request.sampling.bad_words = Some(Arc::new(BadWords::new(words)));
        }
        Ok(())
    }

    /// Tokens of the predicted text.
    async fn predict(&self, text: Option<String>) -> Result<Option<Arc<Predicted>>, GenerateError> {
        let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
        let vocab_size = self.facts().vocab_size;
        let predicted = self.off_thread(text.len(), move |model| {
            let tokens = model.tokenizer.encode(&text, Specials::AsText);
            let tokens = tokens.map_err(|e| GenerateError::Tokenize(e.to_string()))?;
            Ok(Predicted::new(tokens.into_iter().filter(|id| (*id as usize) < vocab_size).collect()))
        });
        Ok(Some(Arc::new(predicted.await?)))
    }

    /// Refuses a request that an empty queue would refuse too. Such a refusal names no time to retry, unlike
    /// that of a full queue.
    fn bound_queue(&self, prompts: &[EncodedPrompt], request: &GenerateRequest) -> Result<(), GenerateError> {
        let (facts, copies) = (self.facts(), request.n as usize);
        let replies = prompts.len() * copies;
        let tokens = prompts.iter().map(|prompt| prompt.tokens.len()).sum::<usize>() * copies;
        let field = if prompts.len() > 1 { "prompt" } else { "n" };
        let shared = request.share.is_some();
        let refuse = |unit, count, limit, setting| {
            Err(GenerateError::TooLargeForQueue { field, unit, count, limit, setting })
        };
        let limit = facts.most_of_one_request(shared);
        if replies > limit {
            let half = "scheduler.max_queue_len, of which one key has half";
            return refuse("replies", replies, limit, if shared { half } else { "scheduler.max_queue_len" });
        }
        // A single prompt above the limit may wait alone.
        if facts.max_queue_tokens > 0 && replies > 1 && tokens > facts.max_queue_tokens {
            return refuse("prompt tokens", tokens, facts.max_queue_tokens, "scheduler.max_queue_tokens");
        }
        Ok(())
    }

    /// Refuses an answer with more alternatives than the limit.
    fn bound_logprobs(
        &self,
        prompts: &[EncodedPrompt],
        request: &GenerateRequest,
    ) -> Result<(), GenerateError> {
        let copies = request.n as usize;
        let reply = |prompt| self.sampling(request, prompt, 0).max_tokens as usize * copies;
        let refuse = |field, top: Option<u32>, positions: &dyn Fn() -> usize| {
            let top = top.unwrap_or(0);
            if top <= FREE_TOP_LOGPROBS {
                return Ok(());
            }
            let (positions, limit) = (positions(), MAX_ANSWER_LOGPROBS);
            match positions.saturating_mul(top as usize) > limit {
                true => Err(GenerateError::TooManyLogprobs { field, top, positions, limit }),
                false => Ok(()),
            }
        };
        let of_replies = || prompts.iter().map(reply).sum();
        let of_prompts = || prompts.iter().map(|prompt| prompt.tokens.len() * copies).sum();
        let field = if request.chat.is_some() { "top_logprobs" } else { "logprobs" };
        let chosen = request.sampling.logprob_token_ids.len() as u32;
        refuse(field, request.sampling.logprobs.map(|top| top.saturating_add(chosen)), &of_replies)?;
        refuse("prompt_logprobs", request.sampling.prompt_logprobs, &of_prompts)
    }

    /// Token ids of one prompt, for `/tokenize`.
    pub async fn tokenize(&self, mut prompt: Prompt) -> Result<Arc<[u32]>, GenerateError> {
        self.fetch(&mut prompt).await?;
        let bytes = prompt.text_bytes(false);
        self.off_thread(bytes, move |text| text.encode(prompt, false)).await.map(|p| p.tokens)
    }

    /// Runs short text work in place and longer work on a blocking thread.
    async fn off_thread<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&ModelText) -> Result<T, GenerateError> + Send + 'static,
    ) -> Result<T, GenerateError> {
        if bytes <= INLINE_TEXT_BYTES {
            return work(&self.text);
        }
        let permit = self.tokenizing.clone().acquire_owned().await;
        let text = self.text.clone();
        tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(&text)
        })
        .await
        .unwrap_or_else(|e| Err(GenerateError::Tokenize(e.to_string())))
    }

    /// Cuts prompts where the request allows it, and checks that prompt and reply fit the context.
    fn fit(
        &self,
        prompts: Vec<EncodedPrompt>,
        request: &GenerateRequest,
    ) -> Result<Vec<EncodedPrompt>, GenerateError> {
        let max_model_len = self.facts().max_model_len;
        let wanted = request.max_tokens.unwrap_or(request.sampling.min_tokens) as usize;
        prompts
            .into_iter()
            .map(|mut prompt| {
                if let Some(truncate) = request.truncate {
                    let room = max_model_len.saturating_sub(wanted.max(1)).max(1);
                    self.truncate(&mut prompt, truncate, room, request.echo);
                }
                let prompt_tokens = prompt.tokens.len();
                // Scoring the prompt alone (0 reply tokens) needs no room; any other request needs
                // at least one token.
                let least = if request.max_tokens == Some(0) { 0 } else { wanted.max(1) };
                if prompt_tokens == 0 {
                    return Err(GenerateError::EmptyPrompt);
                }
                if prompt_tokens + least > max_model_len {
                    let max_tokens = request.max_tokens.or((wanted > 0).then_some(wanted as u32));
                    return Err(GenerateError::TooLong { prompt_tokens, max_tokens, max_model_len });
                }
                Ok(prompt)
            })
            .collect()
    }

    fn truncate(&self, prompt: &mut EncodedPrompt, truncate: Truncate, room: usize, echo: bool) {
        let keep = truncate.keep.map_or(room, |k| k as usize);
        let len = prompt.tokens.len();
        if len > keep && prompt.images.is_empty() {
            prompt.tokens = match truncate.side {
                TruncateSide::Left => prompt.tokens[len - keep..].into(),
                TruncateSide::Right => prompt.tokens[..keep].into(),
            };
            if echo {
                prompt.text = self.text.tokenizer.decode(&prompt.tokens, false);
            }
        }
    }

    /// The compiled grammar of the request, if the request has one. `begins_turn`: whether the
    /// replies begin a turn of the assistant. Errors: a reply without room for the shortest text
    /// that the grammar allows.
    async fn constrain(
        &self,
        prompts: &[EncodedPrompt],
        request: &GenerateRequest,
        begins_turn: bool,
    ) -> Result<Option<Arc<Grammar>>, GenerateError> {
        let Some(spec) = request.grammar.as_ref().filter(|_| request.max_tokens != Some(0)) else {
            return Ok(None);
        };
        let think = self.text.tokenizer.special_id(markers::THINK);
        let reasoning = match prompts {
            [prompt] => self.switch.before_answer(think, prompt, begins_turn),
            _ => Reasoning::None,
        };
        let field = spec.field;
        let grammar = self.compile(spec.clone(), reasoning).await?;
        let allowed = prompts.iter().map(|p| self.sampling(request, p, 0).max_tokens as usize).min();
        let (needs, allowed) = (grammar.needs_tokens(), allowed.unwrap_or(0));
        if needs > allowed {
            return Err(GenerateError::TooFewTokens { field, needs, allowed });
        }
        Ok(Some(grammar))
    }

    /// Compiles on a blocking thread, unless the grammar is in the cache. The wait for a turn and the
    /// compilation have the same time limit, each by itself: only the second is the grammar's fault.
    async fn compile(&self, spec: GrammarSpec, reasoning: Reasoning) -> Result<Arc<Grammar>, GenerateError> {
        let field = spec.field;
        let refused = |reason| GenerateError::Grammar { field, reason };
        let internal = |error: tokio::task::JoinError| refused(GrammarError::Internal(error.to_string()));
        let grammars = self.grammars.clone();
        let (spec, known) = tokio::task::spawn_blocking(move || {
            let known = grammars.known(&spec, reasoning);
            (spec, known)
        })
        .await
        .map_err(internal)?;
        if let Some(known) = known.map_err(refused)? {
            return Ok(known);
        }
        let limit_s = self.grammars.config().compile_timeout_s;
        let turn = wait_for_turn(&self.compiling, limit_s).await?;
        let compiling = Compiling::default();
        let (grammars, stop) = (self.grammars.clone(), compiling.stop());
        let compiled = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let begun = Instant::now();
            let compiled = grammars.compile_until(&spec, reasoning, stop.flag());
            if matches!(compiled, Err(GrammarError::Stopped)) {
                let (field, ran_ms) = (spec.field, begun.elapsed().as_millis() as u64);
                match stop.cause() {
                    Some(Cause::OutOfTime) => {
                        tracing::warn!(
                            field,
                            ran_ms,
                            limit_s,
                            "the compilation of a grammar took too long and was stopped"
                        );
                    }
                    _ => tracing::info!(
                        field,
                        ran_ms,
                        "a client left while its grammar was compiled; the compilation was stopped"
                    ),
                }
            }
            compiled
        });
        match tokio::time::timeout(Duration::from_secs(limit_s.into()), compiled).await {
            Ok(compiled) => compiled.map_err(internal)?.map_err(refused),
            Err(_) => {
                compiling.end(Cause::OutOfTime);
                Err(refused(GrammarError::TooSlow { limit_s }))
            }
        }
    }

    /// Builds the tables shared by all grammars, so that the first request with a grammar does not
    /// wait for them.
    pub fn warm_up_grammars(&self) {
        self.grammars.warm_up();
    }

    /// Submits every copy of every prompt. If the engine refuses one, the submitted ones are
    /// dropped, which aborts them.
    fn submit(
        &self,
        prompts: &[EncodedPrompt],
        media: Vec<Vec<Media>>,
        request: &GenerateRequest,
        format: Option<ReplyFormat>,
        grammar: Option<&Arc<Grammar>>,
        speculation: &Speculation,
    ) -> Result<Vec<Reply>, GenerateError> {
        let mut replies = Vec::with_capacity(prompts.len() * request.n as usize);
        let structured = request.grammar.as_ref().is_some_and(|spec| spec.format.is_structure());
        for (prompt, media) in prompts.iter().zip(media) {
            let format = format.clone().map(|format| Arc::new(format.counting_from(prompt.num_calls)));
            // The copies share one licence, which reads the prompt once.
            let guard = self.guard.options(&request.guard, &prompt.tokens, request.ignore_eos, structured);
            for copy in 0..request.n {
                let sampling = self.sampling(request, prompt, copy);
                let setup = ReplySetup {
                    tokenizer: self.text.tokenizer.clone(),
                    parser: format.clone().map(|format| ReplyParser::new(format, prompt.start)),
                    one_call: request.chat.is_some_and(|chat| !chat.parallel_calls),
                    skip_special_tokens: request.skip_special_tokens,
                    stop: &request.stop,
                    stop_patterns: request.stop_patterns.clone(),
                    inline_reasoning: request.chat.is_some_and(|chat| chat.inline_reasoning),
                    include_stop: request.include_stop,
                    own_stop_ids: request.sampling.stop_token_ids.clone(),
                    stop_ids: sampling.stop_token_ids.clone(),
                    min_tokens: sampling.min_tokens,
                    wants_prompt_logprobs: sampling.prompt_logprobs.is_some(),
                    echo: request.echo,
                    request_timeout_s: self.request_timeout_s,
                    strict_finish_reasons: self.guard.config().strict_finish_reasons,
                };
                let max_tokens = sampling.max_tokens as usize;
                let stream = self.engine.submit(EngineRequest {
                    prompt: prompt.tokens.clone(),
                    sampling,
                    priority: request.priority,
                    share: request.share,
                    deadline: request.deadline,
                    cache_salt: request.cache_salt.clone(),
                    guard: guard.clone(),
                    constraint: grammar.map(Grammar::start),
                    speculation: speculation.clone(),
                    media: media.clone(),
                })?;
                if copy == 0 {
                    self.metrics.record_params(request.n as usize, max_tokens);
                }
                replies.push(Reply::new(setup, stream));
            }
        }
        Ok(replies)
    }

    fn note_refusal(&self, error: &GenerateError) {
        if let GenerateError::Image { refusal, .. } = error {
            self.metrics.record_image_refusal(*refusal);
        }
        if matches!(error, GenerateError::ShareFull { .. }) {
            self.metrics.record_rejection(Rejection::QueueShare);
        }
        if let GenerateError::QueueFull { limit, .. } = error {
            let by_requests = *limit == self.facts().max_queue_len;
            let reason = if by_requests { Rejection::QueueRequests } else { Rejection::QueueTokens };
            self.metrics.record_rejection(reason);
        }
    }

    /// The sampling parameters of one copy: limit, seed, and the end-of-turn tokens beside the request's own stop tokens.
    fn sampling(&self, request: &GenerateRequest, prompt: &EncodedPrompt, copy: u32) -> SamplingParams {
        let mut sampling = request.sampling.clone();
        let room = (self.facts().max_model_len - prompt.tokens.len()).min(u32::MAX as usize) as u32;
        // A default limit is raised to the minimum that the request asked for.
        let default = || request.default_max_tokens.map_or(room, |m| m.max(sampling.min_tokens).min(room));
        sampling.max_tokens = request.max_tokens.unwrap_or_else(default);
        sampling.min_tokens = sampling.min_tokens.min(sampling.max_tokens);
        sampling.seed = sampling.seed.wrapping_add(u64::from(copy));
        if !request.ignore_eos {
            sampling.stop_token_ids.extend(&self.turn_ends);
        }
        sampling.stop_token_ids.sort_unstable();
        sampling.stop_token_ids.dedup();
        sampling.logit_bias.extend(self.media_markers.iter().map(|&id| (id, f32::NEG_INFINITY)));
        if let Some(chat) = &request.chat {
            if let Some(budget) = self.reasoning.budget(chat.budget)
                && let Some(tokens) = &self.reasoning_tokens
                && self.switch.reasons
            {
                let rule =
                    tokens.rule(prompt.start, budget, sampling.max_tokens, &request.sampling.stop_token_ids);
                sampling.block_rule = Some(Arc::new(rule));
            }
            // A forbidden call would be removed from the reply and could leave no answer.
            if chat.calls == Calls::Forbidden {
                sampling.logit_bias.extend(self.call_markers.iter().map(|&id| (id, f32::NEG_INFINITY)));
            }
        }
        sampling
    }

    /// The parse format of the request's replies; `None` for plain-text replies.
    fn format(&self, request: &GenerateRequest) -> Option<ReplyFormat> {
        let chat = request.chat.as_ref()?;
        let tools = request.prompts.iter().find_map(|prompt| match prompt {
            Prompt::Chat(chat) => Some(&chat.tools[..]),
            _ => None,
        });
        let format = self.reply_format.clone().with_tools(tools.unwrap_or_default(), 0);
        Some(if chat.calls == Calls::Wanted { format } else { format.without_calls() })
    }

    /// The request's choices about the model's reasoning.
    pub fn reasoning_switch(&self) -> ReasoningSwitch {
        self.switch
    }

    /// Settings of reasoning: default and largest budget, and its fields in the answer.
    pub fn reasoning(&self) -> &Config {
        &self.reasoning
    }

    /// Renders and tokenizes a prompt without generating.
    pub async fn render(&self, mut prompt: Prompt) -> Result<EncodedPrompt, GenerateError> {
        self.fetch(&mut prompt).await?;
        let bytes = prompt.text_bytes(true);
        self.off_thread(bytes, move |text| text.encode(prompt, true)).await
    }

    /// Decodes token ids, special tokens included.
    pub async fn detokenize(&self, ids: Vec<u32>) -> Result<String, GenerateError> {
        let bytes = ids.len() * TOKEN_BYTES;
        self.off_thread(bytes, move |text| Ok(text.tokenizer.decode(&ids, false))).await
    }

    /// The tokenizer, for displaying single tokens.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.text.tokenizer
    }

    /// The template of the model's conversations.
    pub fn chat_template(&self) -> &ChatTemplate {
        &self.text.template
    }

    /// Whether the model sees images.
    pub fn sees(&self) -> bool {
        self.seeing.is_some()
    }

    /// The metrics that the walk records.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Sampling values for requests that name none.
    pub fn defaults(&self) -> &SamplingDefaults {
        &self.defaults
    }

    /// Facts of the engine, fixed at boot.
    pub fn facts(&self) -> &EngineFacts {
        self.engine.facts()
    }

    /// The engine's load at this moment.
    pub fn snapshot(&self) -> EngineSnapshot {
        self.engine.snapshot()
    }

    /// Refuses new requests from now on.
    pub fn drain(&self) {
        self.engine.drain();
    }
}

impl ModelText {
    /// Ids of a prompt, and its text if `echo` asks for it.
    pub fn encode(&self, prompt: Prompt, echo: bool) -> Result<EncodedPrompt, GenerateError> {
        let plain = |tokens: Vec<u32>, text| EncodedPrompt {
            tokens: tokens.into(),
            text,
            start: ReplyStart::Open,
            num_calls: 0,
            images: Vec::new(),
        };
        let specials = match prompt {
            Prompt::Rendered(_) => Specials::Recognised,
            _ => Specials::AsText,
        };
        match prompt {
            Prompt::Text(text) | Prompt::Rendered(text) => {
                let tokens = self
                    .tokenizer
                    .encode(&text, specials)
                    .map_err(|e| GenerateError::Tokenize(e.to_string()))?;
                Ok(plain(tokens, if echo { text } else { String::new() }))
            }
            Prompt::Tokens(tokens) => {
                let text = if echo { self.tokenizer.decode(&tokens, false) } else { String::new() };
                Ok(plain(tokens, text))
            }
            Prompt::Chat(mut chat) => {
                let files = self.open(std::mem::take(&mut chat.images))?;
                let rendered = self.render(&chat)?;
                let tokens = rendered
                    .to_token_ids(&self.tokenizer)
                    .map_err(|e| GenerateError::Tokenize(e.to_string()))?;
                let (tokens, images) = self.place(tokens, files)?;
                Ok(EncodedPrompt {
                    images,
                    text: if echo { rendered.text() } else { String::new() },
                    tokens: tokens.into(),
                    start: rendered.reply_start(),
                    num_calls: rendered.num_calls(),
                })
            }
        }
    }

    /// Reads the headers of a conversation's images.
    fn open(&self, images: Vec<ImageInput>) -> Result<Vec<Arc<ImageFile>>, GenerateError> {
        match (images.first(), &self.sight) {
            (None, _) => Ok(Vec::new()),
            (Some(_), Ok(sight)) => sight.open(images),
            (Some(image), Err(reason)) => Err(GenerateError::Blind { place: image.place.clone(), reason }),
        }
    }

    /// Repeats the token of each image as often as it has rows.
    fn place(
        &self,
        tokens: Vec<u32>,
        files: Vec<Arc<ImageFile>>,
    ) -> Result<(Vec<u32>, Vec<PlacedImage>), GenerateError> {
        let Some(sight) = self.sight.as_ref().ok().filter(|_| !files.is_empty()) else {
            return Ok((tokens, Vec::new()));
        };
        let (media, expected) = (sight.media_token_id(), files.len());
        let found = tokens.iter().filter(|id| **id == media).count();
        if found != expected {
            return Err(GenerateError::Template(format!("it has places for {found} images of {expected}")));
        }
        let (mut placed, mut images) = (Vec::with_capacity(tokens.len()), Vec::with_capacity(expected));
        let mut files = files.into_iter();
        for id in tokens {
            let file = if id == media { files.next() } else { None };
            match file {
                None => placed.push(id),
                Some(file) => {
                    let (start, tokens) = (placed.len(), file.tokens());
                    placed.extend(std::iter::repeat_n(media, tokens));
                    images.push(PlacedImage { start, tokens, file: Some(file) });
                }
            }
        }
        Ok((placed, images))
    }

    fn render(&self, chat: &ChatPrompt) -> Result<RenderedPrompt, GenerateError> {
        let options = RenderOptions {
            tools: Some(&chat.tools),
            add_generation_prompt: chat.add_generation_prompt,
            continue_final_message: chat.continue_final_message,
            kwargs: chat.kwargs.as_ref(),
            now_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64),
        };
        self.template.render(&chat.messages, &options).map_err(|e| match e {
            TemplateError::Refused(message) => GenerateError::Template(message),
            other => GenerateError::Template(other.to_string()),
        })
    }
}

impl Prompt {
    /// Approximate bytes of text to render, tokenize and, with `echo`, decode.
    fn text_bytes(&self, echo: bool) -> usize {
        match self {
            Prompt::Text(text) | Prompt::Rendered(text) => text.len(),
            Prompt::Tokens(tokens) if echo => tokens.len() * TOKEN_BYTES,
            Prompt::Tokens(_) => 0,
            Prompt::Chat(chat) => {
                let variables = chat.kwargs.iter().flat_map(Map::values);
                let values = chat.messages.iter().chain(&chat.tools).chain(variables);
                let images = chat.images.iter().map(ImageInput::len);
                values.map(text_bytes_of).chain(images).sum()
            }
        }
    }
}

/// Approximate bytes of text in a value, names of members included: a template may render any of it.
fn text_bytes_of(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(text_bytes_of).sum(),
        Value::Object(members) => {
            members.iter().map(|(name, value)| 8 + name.len() + text_bytes_of(value)).sum()
        }
        _ => 8,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::test_data::nano_tokenizer;
    use super::*;

    fn conversation(messages: Vec<Value>) -> ChatPrompt {
        ChatPrompt {
            messages,
            tools: Vec::new(),
            add_generation_prompt: true,
            continue_final_message: false,
            kwargs: None,
            images: Vec::new(),
        }
    }

    #[test]
    fn every_text_of_a_prompt_is_counted() {
        let long = "x".repeat(INLINE_TEXT_BYTES + 1);
        let message =
            |field: &str, value: Value| conversation(vec![json!({"role": "assistant", field: value})]);
        let call = json!({"type": "function", "function": {"name": "f", "arguments": long}});
        let short = message("content", json!("Hi"));
        let prompts = [
            Prompt::Text(long.clone()),
            Prompt::Chat(message("content", json!([{"type": "text", "text": long}]))),
            Prompt::Chat(message("reasoning_content", json!(long))),
            Prompt::Chat(message("tool_calls", json!([call]))),
            Prompt::Chat(ChatPrompt { tools: vec![json!({long.as_str(): {}})], ..short.clone() }),
            Prompt::Chat(ChatPrompt { kwargs: json!({"a": long}).as_object().cloned(), ..short.clone() }),
        ];
        for prompt in prompts {
            assert!(prompt.text_bytes(false) > INLINE_TEXT_BYTES, "{prompt:?}");
        }
        assert!(Prompt::Chat(short).text_bytes(true) <= INLINE_TEXT_BYTES);
        let ids = Prompt::Tokens(vec![7; INLINE_TEXT_BYTES]);
        assert!(ids.text_bytes(true) > INLINE_TEXT_BYTES, "an echo decodes them");
        assert_eq!(ids.text_bytes(false), 0, "without one they are taken as they are");
    }

    /// Regression: such a template passed the probe at boot, and no chat could be rendered.
    #[test]
    fn templates_print_the_time_of_the_request() {
        let tokenizer = nano_tokenizer();
        let template = ChatTemplate::from_jinja("{{ strftime_now('%Y') }}", &tokenizer).unwrap();
        let text =
            ModelText { tokenizer: Arc::new(tokenizer), template, sight: Err("it has no vision tower") };
        let year = text.encode(Prompt::Chat(conversation(Vec::new())), true).unwrap().text;
        assert!(year.parse::<u32>().unwrap() > 2024, "{year}");
    }
}
