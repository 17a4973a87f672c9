//! The routes: one row each. The server dispatches by the table and takes its rules of access from it, and the
//! OpenAPI document is written from it.

use serde::Serialize;

use super::Kind;

/// One route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// In metrics, logs and the document: the path, in which `{name}` stands for the rest. A path below `/v1` has an alias without it.
    pub name: &'static str,
    /// Further paths.
    pub aliases: &'static [&'static str],
    /// The method that the path takes.
    pub method: Method,
    /// The key and the readiness that the route demands.
    pub access: Access,
    /// The function that answers.
    pub handler: Handler,
    /// The body, where the route reads one.
    pub(super) body: Option<Body>,
    /// The answer with status 200.
    pub(super) answer: Content,
    /// Where the document lists the route.
    pub(super) heading: Heading,
    /// What the route is for.
    pub(super) summary: &'static str,
}

/// The method of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// And HEAD.
    Get,
    /// And HEAD and DELETE.
    GetOrDelete,
    /// With a JSON body, or none.
    Post,
}

/// The key and the readiness that a route demands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Everyone, under any host name: the routes of probes.
    Probe,
    /// Everyone.
    Open,
    /// Everyone, or holders of a key where `server.public_pages` is off.
    Page,
    /// Holders of a key, where keys are set.
    Key,
    /// Holders of a key, where keys are set; the model must be ready.
    Model,
    /// The holder of the admin key.
    Admin,
}

/// The functions that answer requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handler {
    /// Generates.
    Reply(Kind),
    /// Renders the prompts of a route that generates.
    Render(Kind),
    /// Counts the prompt tokens of a route that generates.
    CountTokens(Kind),
    /// `/tokenize`.
    Tokenize,
    /// `/detokenize`.
    Detokenize,
    /// `/tokenizer_info`.
    TokenizerInfo,
    /// `/v1/models`.
    Models,
    /// `/v1/models/{name}`.
    Model,
    /// `/v1/responses/{name}`.
    StoredResponse,
    /// `/v1/responses/{name}/cancel`.
    CancelResponse,
    /// `/v1/responses/{name}/input_items`.
    InputItems,
    /// `/server_info`.
    ServerInfo,
    /// `/model_info`.
    ModelInfo,
    /// `/v1/loads`.
    Loads,
    /// `/settings`.
    Settings,
    /// `/admin/reload`.
    Reload,
    /// `/admin/usage`.
    Usage,
    /// `/admin/flight-recorder`.
    FlightRecorder,
    /// `/health`.
    Health,
    /// `/health/live`.
    Live,
    /// `/health/ready`.
    Ready,
    /// `/health/startup`.
    Startup,
    /// `/metrics`.
    Metrics,
    /// `/version`.
    Version,
    /// `/openapi.json`.
    OpenApi,
    /// `/docs`.
    Docs,
    /// `/`.
    Page,
    /// `/page/load`.
    PageLoad,
    /// `/page/{name}`.
    PageFile,
}

/// A JSON body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Body {
    /// Name of its schema.
    pub(super) schema: &'static str,
    /// A body that the route takes, as it stands, from any model.
    pub(super) example: &'static str,
}

/// The content of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// JSON of the schema with this name.
    Json(&'static str),
    /// The same, or server-sent events where the request asks for a stream.
    Reply(&'static str),
    /// A JSON object without a schema of its own.
    Object,
    /// A text of this media type.
    Text(&'static str),
}

/// The headings of the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum Heading {
    Chat,
    Text,
    Models,
    Operations,
}

impl Heading {
    /// In the order they are read.
    pub(super) const ALL: [Self; 4] = [Self::Chat, Self::Text, Self::Models, Self::Operations];
}

const CHAT: &str = r#"{"messages": [{"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is 2 + 3?"}], "max_tokens": 256}"#;
const CHAT_PROMPT: &str = r#"{"messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "tools": [{"type": "function", "function": {"name": "get_weather", "parameters":
        {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}}}}]}"#;
const COMPLETION: &str = r#"{"prompt": "Once upon a time", "max_tokens": 32, "temperature": 0}"#;
const TOKENS: &str = r#"{"token_ids": [1, 2, 3], "sampling_params": {"temperature": 0, "max_tokens": 8}}"#;
const RESPONSE: &str = r#"{"input": "What is 2 + 3?", "max_output_tokens": 256}"#;
const MESSAGE: &str = r#"{"messages": [{"role": "user", "content": "What is 2 + 3?"}], "max_tokens": 256}"#;
const MESSAGE_PROMPT: &str = r#"{"messages": [{"role": "user", "content": "What is 2 + 3?"}]}"#;
const RENDERS: &str =
    "The prompt of a conversation, its token ids, and what /inference/v1/generate takes to answer it.";
const COUNTS: &str = "How many tokens a conversation has; nothing is generated.";
const METRICS: &str =
    "Figures for Prometheus; in OpenMetrics' form for who prefers `application/openmetrics-text`.";

/// Every route, in the order of the document.
pub static ROUTES: [Route; 38] = [
    post("/v1/chat/completions", Handler::Reply(Kind::Chat))
        .about(Heading::Chat, "The model's turn in a conversation.")
        .takes("ChatRequest", CHAT)
        .gives(Content::Reply("ChatAnswer")),
    post("/v1/chat/completions/render", Handler::Render(Kind::Chat))
        .about(Heading::Chat, RENDERS)
        .takes("RenderRequest", CHAT_PROMPT)
        .gives(Content::Json("RenderAnswer")),
    post("/v1/completions/render", Handler::Render(Kind::Completion))
        .about(Heading::Text, "The prompts of a request for text, and their ids.")
        .takes("RenderCompletionRequest", COMPLETION)
        .gives(Content::Json("RenderList")),
    post("/v1/responses/render", Handler::Render(Kind::Responses))
        .about(Heading::Chat, RENDERS)
        .takes("RenderResponsesRequest", RESPONSE)
        .gives(Content::Json("RenderAnswer")),
    post("/v1/messages/render", Handler::Render(Kind::Messages))
        .about(Heading::Chat, RENDERS)
        .takes("RenderMessagesRequest", MESSAGE)
        .gives(Content::Json("RenderAnswer")),
    post("/v1/responses", Handler::Reply(Kind::Responses))
        .about(Heading::Chat, "The model's turn, in the words of the Responses API.")
        .takes("ResponsesRequest", RESPONSE)
        .gives(Content::Reply("ResponsesAnswer")),
    post("/v1/messages", Handler::Reply(Kind::Messages))
        .about(Heading::Chat, "The model's turn, in the words of Anthropic's Messages API.")
        .takes("MessagesRequest", MESSAGE)
        .gives(Content::Reply("MessagesAnswer")),
    post("/v1/messages/count_tokens", Handler::CountTokens(Kind::Messages))
        .about(Heading::Chat, COUNTS)
        .takes("CountTokensRequest", MESSAGE_PROMPT)
        .gives(Content::Json("CountTokensAnswer")),
    post("/v1/responses/input_tokens", Handler::CountTokens(Kind::Responses))
        .about(Heading::Chat, COUNTS)
        .takes("CountResponsesRequest", RESPONSE)
        .gives(Content::Json("InputTokensAnswer")),
    post("/v1/tokenizers/estimate-token-count", Handler::CountTokens(Kind::Chat))
        .about(Heading::Chat, COUNTS)
        .takes("CountChatRequest", CHAT_PROMPT)
        .gives(Content::Json("TokenCountAnswer")),
    Route {
        method: Method::Post,
        ..get("/v1/responses/{name}/cancel", Access::Key, Handler::CancelResponse)
    }
    .about(Heading::Chat, "Ends the work on a response in the background.")
    .gives(Content::Json("ResponsesAnswer")),
    get("/v1/responses/{name}/input_items", Access::Key, Handler::InputItems)
        .about(Heading::Chat, "The conversation that a stored response answers, in pages.")
        .gives(Content::Json("InputItems")),
    Route {
        method: Method::GetOrDelete,
        ..get("/v1/responses/{name}", Access::Key, Handler::StoredResponse)
    }
    .about(Heading::Chat, "A stored response of the same key; DELETE forgets it.")
    .gives(Content::Json("ResponsesAnswer")),
    post("/v1/completions", Handler::Reply(Kind::Completion))
        .about(Heading::Text, "Text that goes on from a prompt.")
        .takes("CompletionRequest", COMPLETION)
        .gives(Content::Reply("CompletionAnswer")),
    post("/inference/v1/generate", Handler::Reply(Kind::Tokens))
        .about(Heading::Text, "Tokens that go on from tokens, in vLLM's words.")
        .takes("TokensRequest", TOKENS)
        .gives(Content::Reply("TokensAnswer")),
    post("/tokenize", Handler::Tokenize)
        .about(Heading::Text, "Token ids of a text or a conversation.")
        .takes("TokenizeRequest", r#"{"prompt": "Hello, world!"}"#)
        .gives(Content::Json("TokenizeAnswer")),
    post("/detokenize", Handler::Detokenize)
        .about(Heading::Text, "Text of token ids.")
        .takes("DetokenizeRequest", r#"{"tokens": [0, 1, 2]}"#)
        .gives(Content::Json("DetokenizeAnswer")),
    get("/tokenizer_info", Access::Model, Handler::TokenizerInfo)
        .about(Heading::Text, "Facts of the tokenizer.")
        .gives(Content::Json("TokenizerInfo")),
    get("/v1/models", Access::Model, Handler::Models)
        .about(Heading::Models, "The models served.")
        .gives(Content::Json("ModelList")),
    get("/v1/models/{name}", Access::Model, Handler::Model)
        .about(Heading::Models, "One model.")
        .gives(Content::Json("Model")),
    get("/server_info", Access::Model, Handler::ServerInfo)
        .also(&["/get_server_info"])
        .about(Heading::Operations, "Facts of the server, for routers; in SGLang's words.")
        .gives(Content::Json("ServerInfo")),
    get("/model_info", Access::Model, Handler::ModelInfo)
        .also(&["/get_model_info"])
        .about(Heading::Operations, "Facts of the model, for routers; in SGLang's words.")
        .gives(Content::Json("ModelInfo")),
    get("/v1/loads", Access::Model, Handler::Loads)
        .about(Heading::Operations, "The load at this moment, for routers; in SGLang's words.")
        .gives(Content::Json("Loads")),
    get("/settings", Access::Key, Handler::Settings)
        .about(Heading::Operations, "Every setting with its value and origin; secrets are masked.")
        .gives(Content::Object),
    Route { method: Method::Post, ..get("/admin/reload", Access::Admin, Handler::Reload) }
        .about(
            Heading::Operations,
            "Reads the settings anew; says what changed, and what waits for the next start.",
        )
        .gives(Content::Object),
    get("/admin/usage", Access::Admin, Handler::Usage)
        .about(
            Heading::Operations,
            "Requests and tokens of the usage ledger by client: `from`, `to` (UTC), `client`, `by` (month, day, hour).",
        )
        .gives(Content::Object),
    get("/admin/flight-recorder", Access::Admin, Handler::FlightRecorder)
        .about(Heading::Operations, "The last steps and requests, without their text.")
        .gives(Content::Object),
    get("/health", Access::Probe, Handler::Health)
        .also(&["/ping"])
        .about(Heading::Operations, "Whether the process and the engine are alive.")
        .gives(Content::Json("Health")),
    get("/health/live", Access::Probe, Handler::Live)
        .also(&["/v1/health/live", "/v2/health/live"])
        .about(Heading::Operations, "Whether the process is alive.")
        .gives(Content::Json("Health")),
    get("/health/ready", Access::Probe, Handler::Ready)
        .also(&["/v1/health/ready", "/v2/health/ready"])
        .about(Heading::Operations, "Whether requests are taken.")
        .gives(Content::Json("Health")),
    get("/health/startup", Access::Probe, Handler::Startup)
        .about(Heading::Operations, "The stage of the start and its progress.")
        .gives(Content::Json("Health")),
    get("/metrics", Access::Page, Handler::Metrics)
        .about(Heading::Operations, METRICS)
        .gives(Content::Text("text/plain")),
    get("/version", Access::Page, Handler::Version)
        .about(Heading::Operations, "The version.")
        .gives(Content::Json("Version")),
    get("/openapi.json", Access::Page, Handler::OpenApi)
        .about(Heading::Operations, "This document.")
        .gives(Content::Object),
    get("/docs", Access::Page, Handler::Docs)
        .about(Heading::Operations, "This document as a page.")
        .gives(Content::Text("text/html")),
    get("/", Access::Open, Handler::Page)
        .about(Heading::Operations, "A page with the state, charts, a playground and the settings.")
        .gives(Content::Text("text/html")),
    get("/page/load", Access::Page, Handler::PageLoad)
        .about(
            Heading::Operations,
            "What that page shows of the load: figures of the last 15 minutes, those since sample `from`, and the clients' share of their limits.",
        )
        .gives(Content::Object),
    get("/page/{name}", Access::Open, Handler::PageFile)
        .about(Heading::Operations, "A file of that page.")
        .gives(Content::Text("text/plain")),
];

/// A route of the model, which reads a JSON body.
const fn post(name: &'static str, handler: Handler) -> Route {
    Route { method: Method::Post, ..get(name, Access::Model, handler) }
}

const fn get(name: &'static str, access: Access, handler: Handler) -> Route {
    let (heading, summary) = (Heading::Operations, "");
    Route {
        name,
        aliases: &[],
        method: Method::Get,
        access,
        handler,
        heading,
        summary,
        body: None,
        answer: Content::Object,
    }
}

impl Route {
    const fn also(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }

    const fn about(self, heading: Heading, summary: &'static str) -> Self {
        Self { heading, summary, ..self }
    }

    const fn takes(self, schema: &'static str, example: &'static str) -> Self {
        Self { body: Some(Body { schema, example }), ..self }
    }

    const fn gives(self, answer: Content) -> Self {
        Self { answer, ..self }
    }

    /// The route of a path.
    pub fn of(path: &str) -> Option<&'static Self> {
        ROUTES.iter().find(|route| route.paths().any(|own| fits(own, path).is_some()))
    }

    /// What stands in the place of `{name}` in a path of the route; empty where there is none.
    pub fn parameter<'a>(&self, path: &'a str) -> &'a str {
        self.paths().find_map(|own| fits(own, path)).unwrap_or_default()
    }

    fn paths(&self) -> impl Iterator<Item = &'static str> {
        let bare = self.name.strip_prefix("/v1");
        [self.name].into_iter().chain(bare).chain(self.aliases.iter().copied())
    }

    /// Whether the answers are replies of the model, which clients' limits are for.
    pub fn generates(&self) -> bool {
        matches!(self.handler, Handler::Reply(_))
    }

    /// Whether the route reads a body.
    pub fn has_body(&self) -> bool {
        self.body.is_some()
    }

    /// Whether requests and errors have the shape of Anthropic's API.
    pub fn is_anthropic(&self) -> bool {
        use Handler::{CountTokens, Render, Reply};
        matches!(self.handler, Reply(Kind::Messages) | Render(Kind::Messages) | CountTokens(Kind::Messages))
    }

    /// Whether the route's requests have a line in the log.
    pub fn is_logged(&self) -> bool {
        matches!(self.handler, Handler::Reply(_) | Handler::Tokenize | Handler::Detokenize)
    }

    /// Whether the built-in page asks the route for what it shows, beside a playground's requests.
    pub fn feeds_page(&self) -> bool {
        use Handler::{
            FlightRecorder, Metrics, Models, OpenApi, PageFile, PageLoad, Ready, ServerInfo, Settings,
        };
        matches!(
            self.handler,
            Metrics | PageLoad | Ready | ServerInfo | Models | Settings | FlightRecorder | OpenApi | PageFile
        )
    }

    /// Whether the route is a probe's.
    pub fn is_probe(&self) -> bool {
        self.access == Access::Probe
    }

    /// Whether the route needs the model.
    pub fn needs_model(&self) -> bool {
        self.access == Access::Model
    }

    /// Whether the route is the operator's alone.
    pub fn needs_admin(&self) -> bool {
        self.access == Access::Admin
    }

    /// Whether the route needs a key where keys are set.
    pub fn needs_key(&self, public_pages: bool) -> bool {
        match self.access {
            Access::Probe | Access::Open => false,
            Access::Page => !public_pages,
            Access::Key | Access::Model | Access::Admin => true,
        }
    }
}

impl Method {
    /// The header `Allow`.
    pub fn allow(self) -> &'static str {
        match self {
            Self::Get => "GET, HEAD",
            Self::GetOrDelete => "GET, HEAD, DELETE",
            Self::Post => "POST",
        }
    }
}

/// What stands in `path` where `own` has `{name}`; `None` where the paths differ.
fn fits<'a>(own: &str, path: &'a str) -> Option<&'a str> {
    match own.split_once("{name}") {
        Some((start, end)) => path.strip_prefix(start)?.strip_suffix(end).filter(|name| !name.is_empty()),
        None => (own == path).then_some(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_leads_to_its_route() {
        for route in &ROUTES {
            for path in route.paths() {
                assert_eq!(Route::of(path), Some(route), "{path}");
            }
            assert_eq!(route.name.contains("{name}"), !route.parameter(route.name).is_empty());
        }
        for (path, name, parameter) in [
            ("/chat/completions", "/v1/chat/completions", ""),
            ("/v1/models/a/b", "/v1/models/{name}", "a/b"),
            ("/models/a%2Fb", "/v1/models/{name}", "a%2Fb"),
            ("/page/app.js", "/page/{name}", "app.js"),
            ("/page/load", "/page/load", ""),
            ("/responses/resp_1", "/v1/responses/{name}", "resp_1"),
            ("/v1/responses/resp_1/input_items", "/v1/responses/{name}/input_items", "resp_1"),
            ("/v1/responses/resp_1/cancel", "/v1/responses/{name}/cancel", "resp_1"),
            ("/v1/responses/render", "/v1/responses/render", ""),
            ("/ping", "/health", ""),
            ("/v2/health/ready", "/health/ready", ""),
        ] {
            let route = Route::of(path).unwrap_or_else(|| panic!("{path}"));
            assert_eq!((route.name, route.parameter(path)), (name, parameter), "{path}");
        }
        for path in
            ["", "/v1", "/v1/models/", "/v1/completions/", "/Health", "*", "/embeddings", "/v1/metrics"]
        {
            assert_eq!(Route::of(path), None, "{path}");
        }
    }
}
