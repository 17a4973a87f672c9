//! Paths and their routes.

use std::borrow::Cow;

use crate::api::ApiError;

pub(super) const GET: &str = "GET, HEAD";
pub(super) const POST: &str = "POST";

/// The route of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    Chat,
    Render,
    RenderCompletion,
    RenderResponses,
    RenderMessages,
    Messages,
    CountTokens,
    Responses,
    Completions,
    Tokenize,
    Detokenize,
    TokenizerInfo,
    Models,
    Model,
    ServerInfo,
    ModelInfo,
    Loads,
    Settings,
    Reload,
    FlightRecorder,
    Health,
    Live,
    Ready,
    Startup,
    Metrics,
    Version,
    OpenApi,
    Docs,
    Page,
    PageFile,
}

impl Route {
    /// Every route; a test compares the OpenAPI document with this list.
    #[cfg(test)]
    const ALL: [Self; 30] = {
        use Route::*;
        [
            Chat,
            Render,
            RenderCompletion,
            RenderResponses,
            RenderMessages,
            Messages,
            CountTokens,
            Responses,
            Completions,
            Tokenize,
            Detokenize,
            TokenizerInfo,
            Models,
            Model,
            ServerInfo,
            ModelInfo,
            Loads,
            Settings,
            Reload,
            FlightRecorder,
            Health,
            Live,
            Ready,
            Startup,
            Metrics,
            Version,
            OpenApi,
            Docs,
            Page,
            PageFile,
        ]
    };

    pub(super) fn of(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/chat/completions" | "/chat/completions" => Self::Chat,
            "/v1/chat/completions/render" | "/chat/completions/render" => Self::Render,
            "/v1/completions/render" | "/completions/render" => Self::RenderCompletion,
            "/v1/responses/render" | "/responses/render" => Self::RenderResponses,
            "/v1/messages/render" | "/messages/render" => Self::RenderMessages,
            "/v1/messages" | "/messages" => Self::Messages,
            "/v1/messages/count_tokens" | "/messages/count_tokens" => Self::CountTokens,
            "/v1/responses" | "/responses" => Self::Responses,
            "/v1/completions" | "/completions" => Self::Completions,
            "/tokenize" => Self::Tokenize,
            "/detokenize" => Self::Detokenize,
            "/tokenizer_info" => Self::TokenizerInfo,
            "/v1/models" | "/models" => Self::Models,
            "/server_info" | "/get_server_info" => Self::ServerInfo,
            "/model_info" | "/get_model_info" => Self::ModelInfo,
            "/v1/loads" | "/loads" => Self::Loads,
            "/settings" => Self::Settings,
            "/admin/reload" => Self::Reload,
            "/admin/flight-recorder" => Self::FlightRecorder,
            "/health" | "/ping" => Self::Health,
            "/health/live" | "/v1/health/live" | "/v2/health/live" => Self::Live,
            "/health/ready" | "/v1/health/ready" | "/v2/health/ready" => Self::Ready,
            "/health/startup" => Self::Startup,
            "/metrics" => Self::Metrics,
            "/version" => Self::Version,
            "/openapi.json" => Self::OpenApi,
            "/docs" => Self::Docs,
            "/" => Self::Page,
            _ if path.starts_with("/page/") => Self::PageFile,
            _ if encoded_model(path).is_some() => Self::Model,
            _ => return None,
        })
    }

    /// The name in metrics and logs; from a closed set.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Render => "/v1/chat/completions/render",
            Self::RenderCompletion => "/v1/completions/render",
            Self::RenderResponses => "/v1/responses/render",
            Self::RenderMessages => "/v1/messages/render",
            Self::Messages => "/v1/messages",
            Self::CountTokens => "/v1/messages/count_tokens",
            Self::Responses => "/v1/responses",
            Self::Completions => "/v1/completions",
            Self::Tokenize => "/tokenize",
            Self::Detokenize => "/detokenize",
            Self::TokenizerInfo => "/tokenizer_info",
            Self::Models => "/v1/models",
            Self::Model => "/v1/models/{name}",
            Self::ServerInfo => "/server_info",
            Self::ModelInfo => "/model_info",
            Self::Loads => "/v1/loads",
            Self::Settings => "/settings",
            Self::Reload => "/admin/reload",
            Self::FlightRecorder => "/admin/flight-recorder",
            Self::Health => "/health",
            Self::Live => "/health/live",
            Self::Ready => "/health/ready",
            Self::Startup => "/health/startup",
            Self::Metrics => "/metrics",
            Self::Version => "/version",
            Self::OpenApi => "/openapi.json",
            Self::Docs => "/docs",
            Self::Page => "/",
            Self::PageFile => "/page/{name}",
        }
    }

    pub(super) fn allow(self) -> &'static str {
        match self {
            Self::Chat
            | Self::Render
            | Self::RenderCompletion
            | Self::RenderResponses
            | Self::RenderMessages
            | Self::Messages
            | Self::CountTokens
            | Self::Responses
            | Self::Completions
            | Self::Tokenize
            | Self::Detokenize
            | Self::Reload => POST,
            _ => GET,
        }
    }

    /// Whether the route's answers are replies of the model, which clients' limits are for.
    pub(super) fn generates(self) -> bool {
        matches!(self, Self::Chat | Self::Messages | Self::Responses | Self::Completions)
    }

    /// Whether the route's requests have a line in the log.
    pub(super) fn is_logged(self) -> bool {
        self.generates() || matches!(self, Self::Tokenize | Self::Detokenize)
    }

    /// Whether the route is the operator's alone.
    pub(super) fn needs_admin(self) -> bool {
        matches!(self, Self::Reload | Self::FlightRecorder)
    }

    /// Whether the route needs the model.
    pub(super) fn needs_model(self) -> bool {
        (self.allow() == POST && !self.needs_admin())
            || matches!(
                self,
                Self::TokenizerInfo
                    | Self::Models
                    | Self::Model
                    | Self::ServerInfo
                    | Self::ModelInfo
                    | Self::Loads
            )
    }

    /// Whether the route is a probe's.
    pub(super) fn is_health(self) -> bool {
        matches!(self, Self::Health | Self::Live | Self::Ready | Self::Startup)
    }

    /// Whether the route needs a key where keys are set. `public_pages`: metrics, version and the
    /// API description need none; the health routes never do.
    pub(super) fn needs_key(self, public_pages: bool) -> bool {
        let page = matches!(self, Self::Metrics | Self::Version | Self::OpenApi | Self::Docs);
        self.needs_model() || self == Self::Settings || self.needs_admin() || (page && !public_pages)
    }
}

/// The path below `server.root_path`, a prefix that proxies may leave in place.
pub(super) fn below<'a>(path: &'a str, root: &str) -> &'a str {
    path.strip_prefix(root).filter(|rest| rest.starts_with('/')).unwrap_or(path)
}

/// The decoded model name in a path of [`Route::Model`]: clients percent-encode the slash that many
/// names contain.
pub(super) fn model_name(path: &str) -> Result<Cow<'_, str>, ApiError> {
    let encoded = encoded_model(path).unwrap_or_default();
    if !encoded.contains('%') {
        return Ok(encoded.into());
    }
    let bytes = percent_decoded(encoded.as_bytes());
    let name = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    name.map(Cow::Owned).ok_or_else(|| ApiError::invalid_path(path))
}

fn encoded_model(path: &str) -> Option<&str> {
    let name = path.strip_prefix("/v1/models/").or_else(|| path.strip_prefix("/models/"));
    name.filter(|name| !name.is_empty())
}

/// Percent-decodes a path segment; `None` for a `%` without two hexadecimal digits after it.
fn percent_decoded(encoded: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded;
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [high, low, tail @ ..] = tail else { return None };
        let digit = |byte: u8| char::from(byte).to_digit(16);
        bytes.push((digit(*high)? * 16 + digit(*low)?) as u8);
        rest = tail;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api;

    #[test]
    fn names_of_routes_are_paths_and_the_document_has_them_all() {
        let routes = api::openapi_routes();
        for (path, method) in &routes {
            let route = Route::of(path).unwrap_or_else(|| panic!("{path} is described and does not exist"));
            assert_eq!(route.name(), path);
            assert!(route.allow().contains(method.as_str()), "{method} {path}");
        }
        let mut described: Vec<&str> = routes.iter().map(|(path, _)| path.as_str()).collect();
        described.sort_unstable();
        let mut names = Route::ALL.map(Route::name);
        names.sort_unstable();
        assert_eq!(names.as_slice(), described);
        assert_eq!(Route::of("/v1/models/a/b").map(Route::name), Some("/v1/models/{name}"));
        for path in
            ["", "/v1", "/v1/models/", "/v1/completions/", "/Health", "*", "/embeddings", "/v1/metrics"]
        {
            assert_eq!(Route::of(path), None, "{path}");
        }
    }

    #[test]
    fn every_path_below_v1_has_one_without_it() {
        for route in Route::ALL {
            if let Some(alias) = route.name().strip_prefix("/v1") {
                assert_eq!(Route::of(alias), Some(route), "{alias}");
            }
        }
    }

    #[test]
    fn prefixes_of_proxies_are_taken_off() {
        for (path, root, expected) in [
            ("/llm/v1/models", "/llm", "/v1/models"),
            ("/v1/models", "/llm", "/v1/models"),
            ("/llmv1/models", "/llm", "/llmv1/models"),
            ("/llm", "/llm", "/llm"),
            ("/v1/models", "", "/v1/models"),
        ] {
            assert_eq!(below(path, root), expected, "{path} below {root}");
        }
    }

    #[test]
    fn model_names_are_decoded() {
        for (path, expected) in [
            ("/v1/models/moonshotai%2FKimi-K2.6", Some("moonshotai/Kimi-K2.6")),
            ("/models/moonshotai/Kimi-K2.6", Some("moonshotai/Kimi-K2.6")),
            ("/v1/models/%c3%A9+%25", Some("é+%")),
            ("/v1/models/%", None),
            ("/v1/models/a%2", None),
            ("/v1/models/%+1", None),
            ("/v1/models/%ff", None),
        ] {
            assert_eq!(model_name(path).ok().as_deref(), expected, "{path}");
        }
    }
}
