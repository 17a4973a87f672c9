//! The routes without HTTP: bytes of a body in, an answer or an error out.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::anthropic::MessagesAnswer;
use super::call::Call;
use super::chat::ChatAnswer;
use super::completions::CompletionAnswer;
use super::counts::counted;
use super::fleet::{Loads, ModelInfo, ServerInfo};
use super::format::Kind;
use super::render::rendered;
use super::responses::{Background, DeletedResponse, InputItems, Owner, ResponsesAnswer, StoredResponses};
use super::summary::Summary;
use super::tokenize::{DetokenizeAnswer, TokenizeAnswer, TokenizerInfo};
use super::tokens::TokensAnswer;
use super::unknown::Unknown;
use super::write::{self, TokenText};
use super::{
    ApiError, EventStream, HostedTools, Limits, ModelCard, UnknownFields, anthropic, chat, completions,
    responses, tokenize, tokens,
};
use crate::generate::{
    EncodedPrompt, GenerateError, GenerateRequest, Generator, Prompt, Replies, SamplingDefaults, Share,
};
use perigee_telemetry::Load;

/// Most unknown names that get a line in the log of their own.
const MAX_LOGGED_NAMES: usize = 256;
/// Bodies larger than this are parsed on a blocking thread, and answers that may be larger are written on one.
const INLINE_BODY_BYTES: usize = 64 * 1024;
/// Most times that a conversation is cut before it is too long for good.
const MAX_CUTS: usize = 16;
/// Bytes of an id in an answer, with its comma.
const ID_BYTES: usize = 7;
/// Bytes of a token's text in an answer, the longest aside.
const TOKEN_TEXT_BYTES: usize = 16;

/// Given back by being dropped.
pub type Hold = Box<dyn std::any::Any + Send>;

/// A request's body.
pub struct RequestBody {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Dropped when neither the bytes nor the text in them are needed any more: the prompt has been
    /// tokenized.
    pub hold: Option<Hold>,
    /// The client's share of the queue; `None` = no clients are told apart.
    pub share: Option<Share>,
    /// The client that stored responses belong to.
    pub owner: Owner,
    /// Most tokens of a reply to the client; `None` = no limit of its own.
    pub max_tokens: Option<u32>,
}

impl From<Vec<u8>> for RequestBody {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, hold: None, share: None, owner: Owner::default(), max_tokens: None }
    }
}

/// Reads and checks a body.
type Reader = Box<dyn FnOnce(&[u8], &Limits, &SamplingDefaults) -> Result<Call, ApiError> + Send>;

/// An answer of one of the routes.
pub enum Answer {
    /// A whole JSON document.
    Json(Vec<u8>),
    /// Server-sent events.
    Events(Box<EventStream>),
    /// A response in progress, and the work on it.
    Background(Box<Background>),
}

/// The routes of one served model. Cheap to share behind an `Arc`. Each writes into its request's
/// summary, before an error too.
#[derive(Clone)]
pub struct Api {
    /// The generator behind the routes.
    pub generator: Arc<Generator>,
    /// Longest time from arrival to the end of a reply; zero = no limit.
    pub request_timeout: Duration,
    /// What becomes of fields that no reader knows.
    pub unknown_fields: UnknownFields,
    /// What becomes of tools that only their own service can run.
    pub hosted_tools: HostedTools,
    /// Most bytes of a body that the routes ask for, where the server's own limit is smaller; 0 leaves it to the server.
    pub body_limit: usize,
    card: ModelCard,
    stored: Arc<StoredResponses>,
    /// Unknown names that were logged, of all clones.
    logged: Arc<Mutex<HashSet<String>>>,
}

/// Puts the limit of a client's key on a request. Errors: 400 for one that asks for more.
fn limit_reply(call: &mut Call, most: Option<u32>) -> Result<(), ApiError> {
    let Some(most) = most else { return Ok(()) };
    let request = &mut call.request;
    match request.max_tokens {
        Some(asked) if asked > most => {
            let problem = format!("`max_tokens` is {asked}, and the key allows {most} (server.api_keys)");
            Err(ApiError::invalid_value("max_tokens", problem))
        }
        Some(_) => Ok(()),
        None => {
            request.default_max_tokens =
                Some(request.default_max_tokens.map_or(most, |usual| usual.min(most)));
            Ok(())
        }
    }
}

impl Api {
    /// Routes for a generator and the names its model goes by.
    pub fn new(generator: Arc<Generator>, card: ModelCard, request_timeout: Duration) -> Self {
        let (unknown_fields, hosted_tools) = (UnknownFields::default(), HostedTools::default());
        let (stored, logged) = (Arc::default(), Arc::default());
        Self { generator, request_timeout, unknown_fields, hosted_tools, body_limit: 0, card, stored, logged }
    }

    /// Serves the model under other names from now on.
    pub fn rename(&mut self, names: Vec<String>, accept_any_name: bool) {
        self.card = ModelCard { names, accept_any_name, ..self.card.clone() };
    }

    /// Gives room for responses that clients can come back to, in bytes; without it nothing is stored.
    pub fn with_stored_responses(mut self, max_bytes: usize) -> Self {
        self.stored = Arc::new(StoredResponses::new(max_bytes));
        self
    }

    fn reader(&self, kind: Kind, owner: Owner) -> Reader {
        match kind {
            Kind::Chat => Box::new(chat::read),
            Kind::Completion => Box::new(completions::read),
            Kind::Messages => Box::new(anthropic::read),
            Kind::Tokens => Box::new(tokens::read),
            Kind::Responses => {
                let shelf = self.stored.of(owner);
                Box::new(move |body, limits, defaults| responses::read_on(body, limits, defaults, &shelf))
            }
        }
    }

    /// `/v1/responses/ID`: a stored response of a client.
    pub fn stored_response(&self, owner: Owner, id: &str) -> Result<Vec<u8>, ApiError> {
        let turn = self.stored.of(owner).get(id).ok_or_else(|| ApiError::unknown_response(None, id))?;
        Ok(turn.response().to_vec())
    }

    /// `/v1/responses/ID/cancel`: ends the work on a response of a client.
    pub fn cancel_response(&self, owner: Owner, id: &str) -> Result<Vec<u8>, ApiError> {
        Ok(self.stored.of(owner).cancel(id)?.response().to_vec())
    }

    /// Forgets a stored response of a client, and ends the work on it.
    pub fn delete_response(&self, owner: Owner, id: &str) -> Result<Vec<u8>, ApiError> {
        match self.stored.of(owner).delete(id) {
            true => Ok(write::document(&DeletedResponse { id, object: "response", deleted: true })),
            false => Err(ApiError::unknown_response(None, id)),
        }
    }

    /// `/v1/responses/ID/input_items`: the conversation that a stored response answers. `query`: that of the URL.
    pub fn input_items(&self, owner: Owner, id: &str, query: Option<&str>) -> Result<Vec<u8>, ApiError> {
        let turn = self.stored.of(owner).get(id).ok_or_else(|| ApiError::unknown_response(None, id))?;
        Ok(write::document(&InputItems::of(turn.input_items(), query.unwrap_or_default())?))
    }

    /// The number of prompt tokens of a route that generates, and nothing is generated.
    pub async fn count_tokens(
        &self,
        kind: Kind,
        body: RequestBody,
        summary: &mut Summary,
    ) -> Result<Answer, ApiError> {
        let read: Reader = match kind {
            Kind::Messages => Box::new(anthropic::read_to_count),
            kind => self.reader(kind, body.owner),
        };
        let (prompts, _) = self.prompts(body, summary, read).await?;
        let count = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
        summary.usage.prompt_tokens = count;
        Ok(Answer::Json(counted(kind, count)))
    }

    /// A route that generates. `request_id` is used for the answer's id unless the body names one.
    pub async fn reply(
        &self,
        kind: Kind,
        body: RequestBody,
        request_id: &str,
        summary: &mut Summary,
    ) -> Result<Answer, ApiError> {
        let read = self.reader(kind, body.owner);
        let limits = self.limits();
        let defaults = self.generator.defaults().clone();
        let (share, most) = (body.share, body.max_tokens);
        let (mut call, hold) = parse_off_thread(body, move |body| read(body, &limits, &defaults)).await?;
        summary.ignored_fields = self.note_unknown(&call.unknown);
        call.request.share = share;
        let words = call.words;
        limit_reply(&mut call, most).map_err(|error| error.in_words(words))?;
        self.answer(call, hold, request_id, summary).await.map_err(|error| error.in_words(words))
    }

    async fn answer(
        &self,
        call: Call,
        hold: Option<Hold>,
        request_id: &str,
        summary: &mut Summary,
    ) -> Result<Answer, ApiError> {
        let Call {
            model,
            stream,
            request_id: own_id,
            mut format,
            mut request,
            mut unknown,
            drop_oldest,
            background,
            ..
        } = call;
        summary.request_id.clone_from(&own_id);
        format.model = self.card.resolve(model.as_deref())?;
        format.created = unix_seconds();
        format.id = id_of(format.kind, own_id.as_deref().unwrap_or(request_id));
        if !self.request_timeout.is_zero() {
            request.deadline = Some(Instant::now() + self.request_timeout);
        }
        let replies = match drop_oldest {
            true => self.generate_shortened(request).await,
            false => self.generator.generate(request).await,
        };
        let replies = replies.map_err(|error| ApiError::in_dialect(format.kind, error))?;
        drop(hold);
        if !replies.not_enforced().is_empty() {
            self.note_not_enforced(replies.not_enforced(), &mut unknown);
            summary.ignored_fields = unknown.header().map(Into::into);
        }
        let tokenizer = self.generator.tokenizer().clone();
        if stream {
            let events = EventStream::new(replies, tokenizer, format, summary.clone());
            return Ok(Answer::Events(Box::new(events)));
        }
        if background {
            return Ok(Answer::Background(Box::new(Background::begin(replies, format, tokenizer)?)));
        }
        let mut awaited = Awaited { replies, summary };
        let full = awaited.replies.collect().await?;
        let replies = &awaited.replies;
        let show = TokenText { tokenizer: &tokenizer, as_ids: format.tokens_as_ids };
        let body = match format.kind {
            Kind::Chat => write::document(&ChatAnswer::of(&format, &show, replies, &full)),
            Kind::Completion => write::document(&CompletionAnswer::of(&format, &show, replies, &full)),
            Kind::Tokens => write::document(&TokensAnswer::of(&format, &show, replies, &full)),
            Kind::Messages => write::document(&MessagesAnswer::of(&format, replies, &full)),
            Kind::Responses => write::document(&ResponsesAnswer::of(&format, &show, replies.usage(), &full)),
        };
        if let Some(keep) = format.keep.take() {
            keep.put(&format.id, body.clone());
        }
        let events = (0..replies.num_choices()).map(|choice| replies.guard_events(choice).len()).sum();
        awaited.summary.finish = full.last().map_or("", |r| write::finish_reason(&r.finish));
        awaited.summary.guard_events = Some(events);
        Ok(Answer::Json(body))
    }

    /// Generates for a conversation whose oldest turns are left out until the rest fits into the context.
    async fn generate_shortened(&self, request: GenerateRequest) -> Result<Replies, GenerateError> {
        let mut kept = request.clone();
        let mut result = self.generator.generate(request).await;
        for _ in 0..MAX_CUTS {
            let (
                Err(GenerateError::TooLong { prompt_tokens, max_tokens, max_model_len }),
                [Prompt::Chat(chat)],
            ) = (&result, &mut kept.prompts[..])
            else {
                break;
            };
            let needed = prompt_tokens + max_tokens.unwrap_or(1) as usize;
            let share = needed.saturating_sub(*max_model_len) as f64 / *prompt_tokens as f64;
            if !responses::drop_oldest(chat, share) {
                break;
            }
            result = self.generator.generate(kept.clone()).await;
        }
        result
    }

    /// `/v1/models`; `query`: that of the URL.
    pub fn models(&self, query: Option<&str>) -> Vec<u8> {
        let mut names = query.unwrap_or_default().split('&').filter_map(|pair| pair.split('=').next());
        let for_codex = names.any(|name| name == "client_version");
        write::document(&self.card.list(self.reasons(), self.generator.sees(), for_codex))
    }

    /// `/v1/models/NAME`.
    pub fn model(&self, name: &str) -> Result<Vec<u8>, ApiError> {
        let name = self.card.resolve(Some(name))?;
        Ok(write::document(&self.card.entry(&name, self.reasons(), self.generator.sees())))
    }

    /// `/tokenize`.
    pub async fn tokenize(&self, body: RequestBody, summary: &mut Summary) -> Result<Answer, ApiError> {
        let limits = self.limits();
        let (call, _hold) =
            parse_off_thread(body, move |body| tokenize::read_tokenize(body, &limits)).await?;
        summary.ignored_fields = self.note_unknown(&call.unknown);
        self.card.resolve(call.model.as_deref())?;
        let tokens = match self.named_token(&call.prompt) {
            Some(id) => [id].into(),
            None => self.generator.tokenize(call.prompt).await?,
        };
        summary.usage.prompt_tokens = tokens.len();
        let generator = self.generator.clone();
        let bytes = tokens.len() * (ID_BYTES + if call.token_strs { TOKEN_TEXT_BYTES } else { 0 });
        off_thread(bytes, move || {
            let show = TokenText { tokenizer: generator.tokenizer(), as_ids: false };
            write::document(&TokenizeAnswer {
                count: tokens.len(),
                max_model_len: generator.facts().max_model_len,
                tokens: &tokens,
                token_strs: call.token_strs.then(|| tokens.iter().map(|&id| show.text(id)).collect()),
            })
        })
        .await
        .map(Answer::Json)
    }

    /// The special token that a prompt is the name of, all of it: so evaluation harnesses look up the ids of the tokens that
    /// `/tokenizer_info` names. Inside of a longer text a name is text.
    fn named_token(&self, prompt: &Prompt) -> Option<u32> {
        match prompt {
            Prompt::Text(text) => self.generator.tokenizer().special_id(text),
            _ => None,
        }
    }

    /// The prompts of a route that generates, and nothing is generated: `/v1/chat/completions/render` and the others'.
    pub async fn render(
        &self,
        kind: Kind,
        body: RequestBody,
        request_id: &str,
        summary: &mut Summary,
    ) -> Result<Answer, ApiError> {
        let read = self.reader(kind, body.owner);
        let (prompts, mut call) = self.prompts(body, summary, read).await?;
        call.format.id = id_of(kind, call.request_id.as_deref().unwrap_or(request_id));
        summary.usage.prompt_tokens = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
        let max_model_len = self.generator.facts().max_model_len;
        let bytes = prompts.iter().map(|prompt| prompt.text.len() + 2 * ID_BYTES * prompt.tokens.len()).sum();
        let tokenizer = self.generator.tokenizer().clone();
        off_thread(bytes, move || rendered(&call, &prompts, &tokenizer, max_model_len))
            .await
            .map(Answer::Json)
    }

    /// The prompts of a request that `read` reads, and the request without them.
    async fn prompts(
        &self,
        body: RequestBody,
        summary: &mut Summary,
        read: Reader,
    ) -> Result<(Vec<EncodedPrompt>, Call), ApiError> {
        let limits = self.limits();
        let defaults = self.generator.defaults().clone();
        let (mut call, _hold) = parse_off_thread(body, move |body| read(body, &limits, &defaults)).await?;
        summary.ignored_fields = self.note_unknown(&call.unknown);
        call.format.model = self.card.resolve(call.model.as_deref())?;
        let mut prompts = Vec::with_capacity(call.request.prompts.len());
        for prompt in std::mem::take(&mut call.request.prompts) {
            prompts.push(self.generator.render(prompt).await?);
        }
        Ok((prompts, call))
    }

    /// `/server_info`.
    pub fn server_info(&self) -> Vec<u8> {
        write::document(&ServerInfo::of(&self.card, self.generator.facts()))
    }

    /// `/model_info`.
    pub fn model_info(&self) -> Vec<u8> {
        let (facts, sees) = (self.generator.facts(), self.generator.sees());
        write::document(&ModelInfo::of(&self.card, facts, self.reasons(), sees))
    }

    /// The engine's load at this moment, for the metrics.
    pub fn load(&self) -> Load {
        let load = self.generator.snapshot();
        Load {
            waiting: load.waiting,
            waiting_tokens: load.waiting_tokens,
            running: load.running,
            used_blocks: load.used_blocks,
            cached_blocks: load.cached_blocks,
            total_blocks: self.generator.facts().num_blocks,
        }
    }

    /// `/v1/loads`.
    pub fn loads(&self) -> Vec<u8> {
        write::document(&Loads::of(self.generator.facts(), &self.generator.snapshot()))
    }

    /// `/detokenize`.
    pub async fn detokenize(&self, body: RequestBody, summary: &mut Summary) -> Result<Answer, ApiError> {
        let limits = self.limits();
        let (call, _hold) =
            parse_off_thread(body, move |body| tokenize::read_detokenize(body, &limits)).await?;
        summary.ignored_fields = self.note_unknown(&call.unknown);
        self.card.resolve(call.model.as_deref())?;
        let text = self.generator.detokenize(call.ids).await?;
        let text_bytes = text.len();
        let write = move || write::document(&DetokenizeAnswer { prompt: text });
        off_thread(text_bytes, write).await.map(Answer::Json)
    }

    /// `/tokenizer_info`.
    pub fn tokenizer_info(&self) -> Vec<u8> {
        let facts = self.generator.facts();
        let (tokenizer, template) = (self.generator.tokenizer(), self.generator.chat_template());
        write::document(&TokenizerInfo::of(tokenizer, template, facts.max_model_len))
    }

    /// Counts rules of schemas that are not enforced, logs the new ones, and adds them to the unknown names.
    fn note_not_enforced(&self, places: &[String], unknown: &mut Unknown) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        for place in places {
            self.generator.metrics().record_ignored_field();
            unknown.add(place);
            if logged.len() < MAX_LOGGED_NAMES && logged.insert(place.clone()) {
                tracing::warn!(rule = place, "a rule of a schema is not enforced (said once per rule)");
            }
        }
    }

    /// Counts unknown names, logs the new ones, and gives them as the answer's header has them.
    fn note_unknown(&self, unknown: &Unknown) -> Option<Arc<str>> {
        let header = unknown.header()?;
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        for name in unknown.names() {
            self.generator.metrics().record_ignored_field();
            if logged.len() < MAX_LOGGED_NAMES && logged.insert(name.to_owned()) {
                tracing::warn!(
                    field = name,
                    "a part of a request is left out: nothing here reads it (said once per name)"
                );
            }
        }
        Some(header.into())
    }

    fn reasons(&self) -> bool {
        self.generator.reasoning_switch().reasons
    }

    fn limits(&self) -> Limits {
        Limits {
            vocab_size: self.generator.facts().vocab_size,
            max_prompts: completions::MAX_REPLIES,
            reasoning: self.generator.reasoning_switch(),
            reasoning_field: self.generator.reasoning().field,
            json_arguments: self.generator.structured_output().json_arguments,
            guard_choice: self.generator.guard().client_may_choose,
            unknown_fields: self.unknown_fields,
            hosted_tools: self.hosted_tools,
        }
    }
}

/// Replies that a whole answer waits for. However the wait ends, and if nobody waits any more, the
/// request's summary has what they cost.
struct Awaited<'a> {
    replies: Replies,
    summary: &'a mut Summary,
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.summary.count(&self.replies);
    }
}

/// Parses a body. The hold stays with the parse, which runs to its end also after the request was dropped.
async fn parse_off_thread<T: Send + 'static>(
    body: RequestBody,
    read: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<(T, Option<Hold>), ApiError> {
    let RequestBody { bytes, hold, .. } = body;
    off_thread(bytes.len(), move || Ok((read(&bytes)?, hold))).await?
}

/// Runs `work` inline up to [`INLINE_BODY_BYTES`], else on a blocking thread: parsing megabytes would stall
/// other streams.
async fn off_thread<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    if bytes <= INLINE_BODY_BYTES {
        return Ok(work());
    }
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|e| ApiError::internal(format!("the work on {bytes} bytes failed: {e}")))
}

/// The id of an answer.
fn id_of(kind: Kind, request_id: &str) -> String {
    let prefix = match kind {
        Kind::Chat => "chatcmpl-",
        Kind::Completion => "cmpl-",
        Kind::Messages => "msg_",
        Kind::Responses => "resp_",
        Kind::Tokens => "",
    };
    format!("{prefix}{request_id}")
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
