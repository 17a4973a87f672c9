//! A deterministic engine without a model, and a server around it.
//!
//! Reply token `i` of a prompt is `prompt[(i + seed) % len]`, so every test can say what a reply must be. The engine
//! either answers at once, or step by step under the test's hand.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine as _;
use perigee_engine::scheduler::FinishReason;
use perigee_engine::{EngineEvent, EngineFacts, EngineRequest, EngineSnapshot, SubmitError, TokenLogprobs};
use perigee_http::api::{Api, ModelCard};
use perigee_http::generate::{Engine, Generator, ModelText, SamplingDefaults, TokenStream};
use perigee_http::server::{Config, Server};
use perigee_telemetry::Metrics;
use perigee_text::{ChatTemplate, Family, Tokenizer, markers};
use tokio::sync::{mpsc, watch};

pub(crate) const VOCAB: usize = 512;
pub(crate) const CONTEXT: usize = 256;
pub(crate) const MODEL: &str = "fake-kimi";

/// 256 single bytes and the markers behind them.
pub(crate) fn tokenizer() -> Tokenizer {
    let model: String = (0..=255u8)
        .map(|b| format!("{} {b}\n", base64::engine::general_purpose::STANDARD.encode([b])))
        .collect();
    let special = [
        (256, markers::BOS),
        (257, markers::EOS),
        (258, markers::IM_END),
        (259, markers::IM_USER),
        (260, markers::IM_ASSISTANT),
        (265, markers::EOT),
        (266, markers::IM_SYSTEM),
        (273, markers::IM_MIDDLE),
        (274, markers::TOOL_CALLS_SECTION_BEGIN),
        (275, markers::TOOL_CALL_BEGIN),
        (278, markers::THINK),
        (279, markers::THINK_END),
        (510, markers::UNK),
        (511, markers::PAD),
    ];
    let added: serde_json::Map<String, serde_json::Value> = special
        .iter()
        .map(|(id, name)| {
            let plain = [markers::THINK, markers::THINK_END].contains(name);
            (id.to_string(), serde_json::json!({"content": name, "special": !plain}))
        })
        .collect();
    let config =
        serde_json::json!({"added_tokens_decoder": added, "eos_token": "[EOS]", "bos_token": "[BOS]"});
    Tokenizer::from_tiktoken(model.as_bytes(), Some(config.to_string().as_bytes())).expect("a tokenizer")
}

/// How sequences ended, for tests to wait on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) submitted: usize,
    pub(crate) finished: usize,
    pub(crate) stopped: usize,
    pub(crate) aborted: usize,
}

struct Live {
    request: EngineRequest,
    events: mpsc::UnboundedSender<EngineEvent>,
    produced: usize,
}

struct State {
    at_once: bool,
    live: Mutex<BTreeMap<usize, Live>>,
    counts: watch::Sender<Counts>,
    /// What the door answers instead of taking a sequence.
    refusal: Mutex<Option<SubmitError>>,
    requests: Mutex<Vec<EngineRequest>>,
}

/// The engine. Clones share it.
#[derive(Clone)]
pub(crate) struct FakeEngine {
    facts: Arc<EngineFacts>,
    state: Arc<State>,
}

struct FakeStream {
    id: usize,
    events: mpsc::UnboundedReceiver<EngineEvent>,
    state: Arc<State>,
    ended: bool,
}

impl FakeEngine {
    /// Replies at once, or only in [`FakeEngine::step`].
    pub(crate) fn new(at_once: bool) -> Self {
        let facts = EngineFacts {
            vocab_size: VOCAB,
            max_model_len: CONTEXT,
            max_num_seqs: 64,
            max_queue_len: 64,
            max_queue_tokens: 0,
            block_size: 16,
            num_blocks: 1024,
            prefix_caching: true,
            cache_dtype: "f32",
            backend: "fake",
            ranks: 1,
            vision: None,
        };
        let state = State {
            at_once,
            live: Mutex::default(),
            counts: watch::Sender::default(),
            refusal: Mutex::default(),
            requests: Mutex::default(),
        };
        Self { facts: Arc::new(facts), state: Arc::new(state) }
    }

    pub(crate) fn refuse_with(&self, error: Option<SubmitError>) {
        *self.state.refusal.lock().unwrap() = error;
    }

    /// The requests that came through the door.
    pub(crate) fn requests(&self) -> Vec<EngineRequest> {
        self.state.requests.lock().unwrap().clone()
    }

    /// Waits until the counts are as wanted.
    pub(crate) async fn wait(&self, wanted: impl FnMut(&Counts) -> bool) -> Counts {
        let mut counts = self.state.counts.subscribe();
        *tokio::time::timeout(Duration::from_secs(30), counts.wait_for(wanted))
            .await
            .expect("the engine gets there")
            .expect("the engine lives")
    }

    pub(crate) fn counts(&self) -> Counts {
        *self.state.counts.borrow()
    }

    /// One token for every live sequence.
    pub(crate) fn step(&self) {
        let ids: Vec<usize> = self.state.live.lock().unwrap().keys().copied().collect();
        for id in ids {
            self.state.advance(id);
        }
    }

    /// Ends every live sequence for this reason.
    pub(crate) fn end_all(&self, reason: FinishReason) {
        let live = std::mem::take(&mut *self.state.live.lock().unwrap());
        for (_, live) in live {
            let _ = live.events.send(EngineEvent::Finished(reason));
            self.state.counts.send_modify(|c| c.finished += 1);
        }
    }
}

impl State {
    fn advance(&self, id: usize) {
        let mut all = self.live.lock().unwrap();
        let Some(live) = all.get_mut(&id) else { return };
        let (prompt, sampling) = (&live.request.prompt, &live.request.sampling);
        let send = |event| drop(live.events.send(event));
        if live.produced == 0 {
            send(EngineEvent::Started { cached_tokens: prompt.len() / 2 });
            if let Some(top) = sampling.prompt_logprobs {
                (1..prompt.len()).for_each(|i| send(EngineEvent::PromptLogprobs(score(i, prompt[i], top))));
            }
        }
        let mut end = (sampling.max_tokens == 0).then_some(FinishReason::Length);
        if end.is_none() {
            let token = prompt[(live.produced as u64).wrapping_add(sampling.seed) as usize % prompt.len()];
            let position = prompt.len() + live.produced;
            let logprobs = sampling.logprobs.map(|top| score(position, token, top));
            send(EngineEvent::Token { id: token, logprobs });
            live.produced += 1;
            if sampling.stop_token_ids.contains(&token) && live.produced > sampling.min_tokens as usize {
                end = Some(FinishReason::StopToken(token));
            } else if live.produced == sampling.max_tokens as usize {
                end = Some(FinishReason::Length);
            }
        }
        if let Some(reason) = end {
            send(EngineEvent::Finished(reason));
            all.remove(&id);
            drop(all);
            self.counts.send_modify(|c| c.finished += 1);
        }
    }
}

/// At even positions the token is the most likely one; at odd ones it is not among the top.
pub(crate) fn score(position: usize, token: u32, top: u32) -> TokenLogprobs {
    let greedy = position.is_multiple_of(2);
    let first = if greedy { token } else { token + 1 };
    let value = |rank: u32| -0.1 - rank as f32 * 0.37 - position as f32 * 0.001;
    TokenLogprobs {
        token,
        logprob: if greedy { value(0) } else { value(40) },
        rank: if greedy { 1 } else { 41 },
        top: (0..top).map(|rank| ((first + rank) % VOCAB as u32, value(rank))).collect(),
    }
}

impl Engine for FakeEngine {
    fn submit(&self, request: EngineRequest) -> Result<Box<dyn TokenStream>, SubmitError> {
        if let Some(error) = self.state.refusal.lock().unwrap().clone() {
            return Err(error);
        }
        let (sender, events) = mpsc::unbounded_channel();
        let mut counts = Counts::default();
        self.state.requests.lock().unwrap().push(request.clone());
        self.state.counts.send_modify(|c| {
            c.submitted += 1;
            counts = *c;
        });
        let id = counts.submitted;
        self.state.live.lock().unwrap().insert(id, Live { request, events: sender, produced: 0 });
        if self.state.at_once {
            while self.state.live.lock().unwrap().contains_key(&id) {
                self.state.advance(id);
            }
        }
        Ok(Box::new(FakeStream { id, events, state: self.state.clone(), ended: false }))
    }

    fn facts(&self) -> &EngineFacts {
        &self.facts
    }

    fn snapshot(&self) -> EngineSnapshot {
        EngineSnapshot {
            running: self.state.live.lock().unwrap().len(),
            alive: true,
            ..EngineSnapshot::default()
        }
    }

    fn drain(&self) {
        self.refuse_with(Some(SubmitError::Draining));
    }
}

impl TokenStream for FakeStream {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<EngineEvent>> {
        let event = self.events.poll_recv(cx);
        self.ended |= matches!(event, Poll::Ready(Some(EngineEvent::Finished(_)) | None));
        event
    }

    fn stop_after(mut self: Box<Self>, _keep: usize) {
        self.ended = true;
        self.state.live.lock().unwrap().remove(&self.id);
        self.state.counts.send_modify(|c| c.stopped += 1);
    }
}

impl Drop for FakeStream {
    fn drop(&mut self) {
        if !self.ended {
            self.state.live.lock().unwrap().remove(&self.id);
            self.state.counts.send_modify(|c| c.aborted += 1);
        }
    }
}

/// Settings for tests: any free port, and the name that requests written by hand use.
pub(crate) fn config() -> Config {
    Config { host: "127.0.0.1".into(), port: 0, allowed_hosts: vec!["x".into()], ..Config::default() }
}

/// The routes around an engine.
pub(crate) fn api(engine: &FakeEngine, config: &Config, metrics: Arc<Metrics>) -> Api {
    let tokenizer = Arc::new(tokenizer());
    let template = ChatTemplate::built_in(Family::K2Instruct, &tokenizer);
    let timeout = config.request_timeout();
    let generator = Generator::new(
        Arc::new(engine.clone()),
        ModelText { tokenizer, template, sight: Err("its checkpoint has no vision tower") },
        SamplingDefaults::default(),
        Default::default(),
        timeout.as_secs_f64(),
        metrics,
    );
    let card = ModelCard {
        names: vec![MODEL.into(), "alias".into()],
        created: 1,
        max_model_len: CONTEXT,
        accept_any_name: false,
        embedded: None,
    };
    Api::new(Arc::new(generator), card, timeout).with_stored_responses(config.stored_responses_bytes)
}

/// A server that is ready.
pub(crate) async fn serve(engine: &FakeEngine, config: Config) -> Server {
    let metrics = Arc::new(Metrics::new(MODEL, true));
    let server = Server::start(config.clone(), metrics.clone()).await.expect("a free port");
    server.open(api(engine, &config, metrics));
    server
}
