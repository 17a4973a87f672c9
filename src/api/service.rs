//! The routes without HTTP: bytes of a body in, an answer or an error out.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::stream::Kind;
use super::write::TokenText;
use super::{
    ApiError, Call, EventStream, Limits, ModelCard, anthropic, chat, completions, render, responses, tokenize,
};
use crate::generate::{EncodedPrompt, Generator, Prompt, SamplingDefaults, Usage};

/// Most replies of one request, over all its prompts and copies.
const MAX_REPLIES: usize = 1024;
/// Bodies larger than this are parsed on a blocking thread.
const INLINE_BODY_BYTES: usize = 64 * 1024;

/// Reads and checks a body.
type Reader = fn(&[u8], &Limits, &SamplingDefaults) -> Result<Call, ApiError>;

/// What a dialect calls the fields of a chat request, where it has other names.
pub(super) type Words = &'static [(&'static str, &'static str)];

/// What a request cost, for its log line.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Summary {
    /// Token counts.
    pub usage: Usage,
    /// From the walk's start to the first token.
    pub ttft: Option<Duration>,
    /// The last reply's ending, or an error's code; empty while none has ended.
    pub finish: &'static str,
    /// Events of the guard in all choices of a whole answer; `None` where nothing was generated.
    pub guard_events: Option<usize>,
}

/// An answer of one of the routes.
pub enum Answer {
    /// A whole JSON document.
    Json(Vec<u8>, Summary),
    /// Server-sent events.
    Events(Box<EventStream>),
}

/// The routes of one served model. Cheap to share behind an `Arc`.
pub struct Api {
    generator: Arc<Generator>,
    card: ModelCard,
    /// Longest time from arrival to the end of a reply; zero = no limit.
    request_timeout: Duration,
}

impl Api {
    /// Routes for a generator and the names its model goes by.
    pub fn new(generator: Arc<Generator>, card: ModelCard, request_timeout: Duration) -> Self {
        Self { generator, card, request_timeout }
    }

    /// The generator behind the routes.
    pub fn generator(&self) -> &Arc<Generator> {
        &self.generator
    }

    /// `/v1/chat/completions`. `request_id` is used for the answer's id unless the body names one.
    pub async fn chat(&self, body: Vec<u8>, request_id: &str) -> Result<Answer, ApiError> {
        self.reply(body, request_id, chat::read, &[]).await
    }

    /// `/v1/completions`.
    pub async fn completions(&self, body: Vec<u8>, request_id: &str) -> Result<Answer, ApiError> {
        self.reply(body, request_id, completions::read, &[]).await
    }

    /// `/v1/messages`.
    pub async fn messages(&self, body: Vec<u8>, request_id: &str) -> Result<Answer, ApiError> {
        self.reply(body, request_id, anthropic::read, anthropic::WORDS).await
    }

    /// `/v1/responses`.
    pub async fn responses(&self, body: Vec<u8>, request_id: &str) -> Result<Answer, ApiError> {
        self.reply(body, request_id, responses::read, responses::WORDS).await
    }

    /// `/v1/messages/count_tokens`.
    pub async fn count_tokens(&self, body: Vec<u8>) -> Result<Answer, ApiError> {
        let prompt = self.prompt(body, anthropic::read_to_count).await;
        let prompt = prompt.map_err(|error| error.in_words(anthropic::WORDS))?;
        let count = prompt.tokens.len();
        let usage = Usage { prompt_tokens: count, ..Usage::default() };
        let body = serde_json::json!({"input_tokens": count}).to_string().into_bytes();
        Ok(Answer::Json(body, Summary { usage, ..Summary::default() }))
    }

    async fn reply(
        &self,
        body: Vec<u8>,
        request_id: &str,
        read: Reader,
        words: Words,
    ) -> Result<Answer, ApiError> {
        self.answer(body, request_id, read).await.map_err(|error| error.in_words(words))
    }

    async fn answer(&self, body: Vec<u8>, request_id: &str, read: Reader) -> Result<Answer, ApiError> {
        let limits = self.limits();
        let defaults = self.generator.defaults().clone();
        let call = parse_off_thread(body, move |body| read(body, &limits, &defaults)).await?;
        let Call { model, stream, request_id: own_id, mut format, mut request } = call;
        format.model = self.card.resolve(model.as_deref())?;
        format.created = unix_seconds();
        let prefix = match format.kind {
            Kind::Chat => "chatcmpl-",
            Kind::Completion => "cmpl-",
            Kind::Messages => "msg_",
            Kind::Responses => "resp_",
        };
        format.id = format!("{prefix}{}", own_id.as_deref().unwrap_or(request_id));
        if !self.request_timeout.is_zero() {
            request.deadline = Some(Instant::now() + self.request_timeout);
        }
        let mut replies = self.generator.generate(request).await?;
        let tokenizer = self.generator.tokenizer().clone();
        if stream {
            return Ok(Answer::Events(Box::new(EventStream::new(replies, tokenizer, format))));
        }
        let full = replies.collect().await?;
        let show = TokenText { tokenizer: &tokenizer, as_ids: format.tokens_as_ids };
        let body = match format.kind {
            Kind::Chat => chat::whole(&format, &show, &replies, &full),
            Kind::Completion => completions::whole(&format, &show, &replies, &full),
            Kind::Messages => anthropic::whole(&format, &replies, &full),
            Kind::Responses => responses::whole(&format, replies.usage(), &full),
        };
        let finish = full.last().map_or("", |r| super::write::finish_reason(&r.finish));
        let events = (0..replies.num_choices()).map(|choice| replies.guard_events(choice).len()).sum();
        let (usage, ttft) = (replies.usage(), replies.time_to_first_token());
        let summary = Summary { usage, ttft, finish, guard_events: Some(events) };
        Ok(Answer::Json(body, summary))
    }

    /// `/v1/models`.
    pub fn models(&self) -> Vec<u8> {
        self.card.list(self.reasons()).to_string().into_bytes()
    }

    /// `/v1/models/NAME`.
    pub fn model(&self, name: &str) -> Result<Vec<u8>, ApiError> {
        let name = self.card.resolve(Some(name))?;
        Ok(self.card.entry(&name, self.reasons()).to_string().into_bytes())
    }

    /// `/tokenize`.
    pub async fn tokenize(&self, body: Vec<u8>) -> Result<Answer, ApiError> {
        let call = parse_off_thread(body, tokenize::read_tokenize).await?;
        self.card.resolve(call.model.as_deref())?;
        let tokens = match self.named_token(&call.prompt) {
            Some(id) => [id].into(),
            None => self.generator.tokenize(call.prompt).await?,
        };
        let max_model_len = self.generator.facts().max_model_len;
        let body = tokenize::tokenized(self.generator.tokenizer(), &tokens, max_model_len, call.token_strs);
        let usage = Usage { prompt_tokens: tokens.len(), ..Usage::default() };
        Ok(Answer::Json(body, Summary { usage, ..Summary::default() }))
    }

    /// The special token that a prompt is the name of, all of it: so evaluation harnesses look up the ids of the tokens that
    /// `/tokenizer_info` names. Inside of a longer text a name is text.
    fn named_token(&self, prompt: &Prompt) -> Option<u32> {
        match prompt {
            Prompt::Text(text) => self.generator.tokenizer().special_id(text),
            _ => None,
        }
    }

    /// `/v1/chat/completions/render`: the prompt of a chat request, and nothing is generated.
    pub async fn render(&self, body: Vec<u8>) -> Result<Answer, ApiError> {
        let prompt = self.prompt(body, chat::read).await?;
        let usage = Usage { prompt_tokens: prompt.tokens.len(), ..Usage::default() };
        let body = render::answer(&prompt, self.generator.facts().max_model_len);
        Ok(Answer::Json(body, Summary { usage, ..Summary::default() }))
    }

    /// The prompt of a request that `read` reads.
    async fn prompt(&self, body: Vec<u8>, read: Reader) -> Result<EncodedPrompt, ApiError> {
        let limits = self.limits();
        let defaults = self.generator.defaults().clone();
        let call = parse_off_thread(body, move |body| read(body, &limits, &defaults)).await?;
        self.card.resolve(call.model.as_deref())?;
        let mut prompts = call.request.prompts;
        let prompt = prompts.pop().ok_or_else(|| ApiError::missing("messages"))?;
        Ok(self.generator.render(prompt).await?)
    }

    /// `/detokenize`.
    pub async fn detokenize(&self, body: Vec<u8>) -> Result<Answer, ApiError> {
        let limits = self.limits();
        let (model, ids) =
            parse_off_thread(body, move |body| tokenize::read_detokenize(body, &limits)).await?;
        self.card.resolve(model.as_deref())?;
        let text = self.generator.detokenize(&ids);
        let body = serde_json::json!({"prompt": text}).to_string().into_bytes();
        Ok(Answer::Json(body, Summary::default()))
    }

    /// `/tokenizer_info`.
    pub fn tokenizer_info(&self) -> Vec<u8> {
        let facts = self.generator.facts();
        tokenize::info(self.generator.tokenizer(), facts.max_model_len).to_string().into_bytes()
    }

    fn reasons(&self) -> bool {
        self.generator.reasoning_switch().reasons
    }

    fn limits(&self) -> Limits {
        Limits {
            vocab_size: self.generator.facts().vocab_size,
            max_prompts: MAX_REPLIES,
            reasoning: self.generator.reasoning_switch(),
            reasoning_field: self.generator.reasoning().field,
            guard_choice: self.generator.guard().client_may_choose,
        }
    }
}

/// Parses a short body here and a long one on a blocking thread, so that megabytes of JSON hold up nobody's stream.
async fn parse_off_thread<T: Send + 'static>(
    body: Vec<u8>,
    read: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if body.len() <= INLINE_BODY_BYTES {
        return read(&body);
    }
    tokio::task::spawn_blocking(move || read(&body))
        .await
        .unwrap_or_else(|e| Err(ApiError::internal(format!("parsing failed: {e}"))))
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
