//! Paths to answers: methods, authentication, readiness, headers. Bodies are the api's business.

use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};

use super::body::{self, Answer, Events};
use super::connection::Busy;
use super::listener::Shared;
use super::request_log::RequestLog;
use crate::api::{self, Api, ApiError, is_request_id};
use crate::telemetry;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The same for Anthropic's clients.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
const GUARD_EVENTS: HeaderName = HeaderName::from_static("x-guard-events");
const IGNORED_FIELDS: HeaderName = HeaderName::from_static("x-perigee-ignored-fields");
const GET: &str = "GET, HEAD";
const POST: &str = "POST";

/// What is behind a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    Chat,
    Render,
    Messages,
    CountTokens,
    Responses,
    Completions,
    Tokenize,
    Detokenize,
    TokenizerInfo,
    Models,
    Model,
    Health,
    Live,
    Ready,
    Startup,
    Metrics,
    Version,
    OpenApi,
    Docs,
}

impl Route {
    /// Every one; the document of the routes is held to it.
    #[cfg(test)]
    const ALL: [Self; 19] = {
        use Route::*;
        [
            Chat,
            Render,
            Messages,
            CountTokens,
            Responses,
            Completions,
            Tokenize,
            Detokenize,
            TokenizerInfo,
            Models,
            Model,
            Health,
            Live,
            Ready,
            Startup,
            Metrics,
            Version,
            OpenApi,
            Docs,
        ]
    };

    fn of(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/chat/completions" => Self::Chat,
            "/v1/chat/completions/render" => Self::Render,
            "/v1/messages" => Self::Messages,
            "/v1/messages/count_tokens" => Self::CountTokens,
            "/v1/responses" => Self::Responses,
            "/v1/completions" => Self::Completions,
            "/tokenize" => Self::Tokenize,
            "/detokenize" => Self::Detokenize,
            "/tokenizer_info" => Self::TokenizerInfo,
            "/v1/models" => Self::Models,
            "/health" | "/ping" => Self::Health,
            "/health/live" | "/v1/health/live" | "/v2/health/live" => Self::Live,
            "/health/ready" | "/v1/health/ready" | "/v2/health/ready" => Self::Ready,
            "/health/startup" => Self::Startup,
            "/metrics" => Self::Metrics,
            "/version" => Self::Version,
            "/openapi.json" => Self::OpenApi,
            "/docs" => Self::Docs,
            _ if path.strip_prefix("/v1/models/").is_some_and(|name| !name.is_empty()) => Self::Model,
            _ => return None,
        })
    }

    /// Its name in metrics and logs: from a closed set.
    fn name(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Render => "/v1/chat/completions/render",
            Self::Messages => "/v1/messages",
            Self::CountTokens => "/v1/messages/count_tokens",
            Self::Responses => "/v1/responses",
            Self::Completions => "/v1/completions",
            Self::Tokenize => "/tokenize",
            Self::Detokenize => "/detokenize",
            Self::TokenizerInfo => "/tokenizer_info",
            Self::Models => "/v1/models",
            Self::Model => "/v1/models/{name}",
            Self::Health => "/health",
            Self::Live => "/health/live",
            Self::Ready => "/health/ready",
            Self::Startup => "/health/startup",
            Self::Metrics => "/metrics",
            Self::Version => "/version",
            Self::OpenApi => "/openapi.json",
            Self::Docs => "/docs",
        }
    }

    fn allow(self) -> &'static str {
        match self {
            Self::Chat
            | Self::Render
            | Self::Messages
            | Self::CountTokens
            | Self::Responses
            | Self::Completions
            | Self::Tokenize
            | Self::Detokenize => POST,
            _ => GET,
        }
    }

    /// Whether it needs a key where keys are set: everything but health, metrics, version and the description of the routes.
    fn needs_key(self) -> bool {
        self.allow() == POST || matches!(self, Self::TokenizerInfo | Self::Models | Self::Model)
    }
}

/// Whether a route (by name) makes the model work, so that its requests are worth a line in the log.
pub(super) fn is_model_route(name: &str) -> bool {
    matches!(
        name,
        "/v1/chat/completions"
            | "/v1/responses"
            | "/v1/messages"
            | "/v1/completions"
            | "/tokenize"
            | "/detokenize"
    )
}

/// A finished answer before its headers.
enum Reply {
    Json(StatusCode, Vec<u8>),
    Text(&'static str, String),
    Events(Box<api::EventStream>),
}

/// Answers one request. Dropping the future (the client left) aborts what it waits for.
pub(super) async fn answer(request: Request<Incoming>, shared: Arc<Shared>, busy: Busy) -> Response<Answer> {
    let (head, incoming) = request.into_parts();
    let path = head.uri.path();
    let route = Route::of(path);
    let id = request_id(&head.headers);
    let name = route.map_or("other", Route::name);
    let mut log = RequestLog::begin(shared.metrics.clone(), id, name, busy);
    let origin = allowed_origin(&head.headers, &shared.config.cors_origins);
    let outcome = match (route, &head.method) {
        (Some(route), &Method::OPTIONS) if origin.is_some() => {
            body::skip(incoming).await;
            return preflight(route, &head.headers, origin, log);
        }
        (None, _) => Err((ApiError::unknown_path(path), incoming)),
        (Some(route), method) => match admit(route, method, path, &head.headers, &shared) {
            Ok(()) => Ok((route, incoming)),
            Err(error) => Err((error, incoming)),
        },
    };
    let result = match outcome {
        Ok((route, incoming)) => dispatch(route, path, &head.headers, incoming, &shared, &mut log).await,
        Err((error, incoming)) => {
            body::skip(incoming).await;
            Err(error)
        }
    };
    let close = shared.readiness.is_draining();
    let anthropic = matches!(route, Some(Route::Messages | Route::CountTokens));
    respond(result, origin, close, anthropic, &shared, log)
}

/// Checks what can be checked without the body.
fn admit(
    route: Route,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
    shared: &Shared,
) -> Result<(), ApiError> {
    let fits = match route.allow() {
        POST => *method == Method::POST,
        _ => *method == Method::GET || *method == Method::HEAD,
    };
    if !fits {
        return Err(ApiError::method_not_allowed(method.as_str(), path, route.allow()));
    }
    if route.needs_key() {
        authenticate(headers, shared)?;
        shared.readiness.service(&shared.api)?;
    }
    if route.allow() == POST {
        check_media_type(headers)?;
    }
    Ok(())
}

async fn dispatch(
    route: Route,
    path: &str,
    headers: &HeaderMap,
    incoming: Incoming,
    shared: &Shared,
    log: &mut RequestLog,
) -> Result<Reply, ApiError> {
    if route.allow() == POST {
        let body = body::read(headers, incoming, &shared.config).await?;
        let api = shared.readiness.service(&shared.api)?;
        return post(route, body, api, log).await;
    }
    let (ready, metrics) = (&shared.readiness, &shared.metrics);
    let health = |(ok, body): (bool, serde_json::Value)| {
        let status = if ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        Ok(Reply::Json(status, body.to_string().into_bytes()))
    };
    match route {
        Route::Health => health(ready.health(&shared.api, metrics)),
        Route::Live => health((true, serde_json::json!({"status": "live"}))),
        Route::Ready => health(ready.ready_answer(&shared.api, metrics)),
        Route::Startup => health(ready.startup()),
        Route::Metrics => Ok(Reply::Text(telemetry::CONTENT_TYPE, metrics.render())),
        Route::OpenApi => Ok(Reply::Json(StatusCode::OK, api::openapi().to_vec())),
        Route::Docs => Ok(Reply::Text("text/html; charset=utf-8", api::openapi_page().to_owned())),
        Route::Version => {
            health((true, serde_json::json!({"version": env!("CARGO_PKG_VERSION"), "name": "perigee"})))
        }
        _ => {
            let api = ready.service(&shared.api)?;
            let body = match route {
                Route::TokenizerInfo => api.tokenizer_info(),
                Route::Model => api.model(path.trim_start_matches("/v1/models/"))?,
                _ => api.models(),
            };
            Ok(Reply::Json(StatusCode::OK, body))
        }
    }
}

async fn post(route: Route, body: Vec<u8>, api: &Api, log: &mut RequestLog) -> Result<Reply, ApiError> {
    let answer = match route {
        Route::Chat => api.chat(body, &log.id).await?,
        Route::Render => api.render(body).await?,
        Route::Messages => api.messages(body, &log.id).await?,
        Route::CountTokens => api.count_tokens(body).await?,
        Route::Responses => api.responses(body, &log.id).await?,
        Route::Completions => api.completions(body, &log.id).await?,
        Route::Tokenize => api.tokenize(body).await?,
        _ => api.detokenize(body).await?,
    };
    Ok(match answer {
        api::Answer::Json(body, summary) => {
            log.set_summary(summary);
            Reply::Json(StatusCode::OK, body)
        }
        api::Answer::Events(stream) => Reply::Events(stream),
    })
}

/// The client's own id if it can be echoed, else a new one.
fn request_id(headers: &HeaderMap) -> String {
    match headers.get(&REQUEST_ID).and_then(|v| v.to_str().ok()) {
        Some(id) if is_request_id(id) => id.to_owned(),
        _ => format!("{:032x}", fastrand::u128(..)),
    }
}

/// Compares every key in constant time.
fn authenticate(headers: &HeaderMap, shared: &Shared) -> Result<(), ApiError> {
    let keys = &shared.config.api_keys;
    if keys.is_empty() {
        return Ok(());
    }
    let bearer = headers
        .get(header::AUTHORIZATION)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    // Anthropic's clients have a header of their own.
    let own = headers.get("x-api-key").and_then(|v| v.to_str().ok());
    let given = bearer.map(|(_, key)| key.trim()).or(own.map(str::trim)).unwrap_or("");
    let matches =
        keys.iter().fold(false, |found, key| found | same(key.expose().as_bytes(), given.as_bytes()));
    if matches { Ok(()) } else { Err(ApiError::unauthorized()) }
}

/// Equality that takes as long for a near miss as for a far one.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && !a.is_empty() && a.iter().zip(b).fold(0, |diff, (x, y)| diff | (x ^ y)) == 0
}

/// Lenient: command-line clients forget the type or send a form's. What is clearly something else is refused.
fn check_media_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let text =
        |name: HeaderName| headers.get(name).map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned());
    if let Some(encoding) = text(header::CONTENT_ENCODING)
        && !encoding.eq_ignore_ascii_case("identity")
    {
        return Err(ApiError::unsupported_media_type("content-encoding", &encoding));
    }
    let Some(value) = text(header::CONTENT_TYPE) else { return Ok(()) };
    let kind = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let fine = kind.is_empty()
        || kind.ends_with("/json")
        || kind.ends_with("+json")
        || ["text/plain", "application/octet-stream", "application/x-www-form-urlencoded"]
            .contains(&kind.as_str());
    if fine { Ok(()) } else { Err(ApiError::unsupported_media_type("content-type", &value)) }
}

/// The origin to allow in the answer, if there is one and it is listed.
fn allowed_origin(headers: &HeaderMap, allowed: &[String]) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    if allowed.iter().any(|a| a == "*") {
        return Some(HeaderValue::from_static("*"));
    }
    allowed.iter().any(|a| a.as_bytes() == origin.as_bytes()).then(|| origin.clone())
}

fn preflight(
    route: Route,
    headers: &HeaderMap,
    origin: Option<HeaderValue>,
    mut log: RequestLog,
) -> Response<Answer> {
    log.answered(204);
    log.complete();
    let mut response = Response::new(Answer::Whole { bytes: Bytes::new(), given: false, log: Box::new(log) });
    *response.status_mut() = StatusCode::NO_CONTENT;
    let out = response.headers_mut();
    let methods = if route.allow() == POST { "POST, OPTIONS" } else { "GET, HEAD, OPTIONS" };
    out.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(methods));
    let asked = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let asked = asked.unwrap_or(HeaderValue::from_static("authorization, content-type, x-request-id"));
    out.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked);
    out.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    allow_origin(out, origin);
    response
}

fn allow_origin(headers: &mut HeaderMap, origin: Option<HeaderValue>) {
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(
            header::ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static("x-request-id, x-guard-events, x-perigee-ignored-fields, retry-after"),
        );
        headers.insert(header::VARY, HeaderValue::from_static("origin"));
    }
}

fn respond(
    result: Result<Reply, ApiError>,
    origin: Option<HeaderValue>,
    close: bool,
    anthropic: bool,
    shared: &Shared,
    mut log: RequestLog,
) -> Response<Answer> {
    let mut headers = HeaderMap::new();
    if let Ok(id) = HeaderValue::from_str(&log.id) {
        if anthropic {
            headers.insert(ANTHROPIC_REQUEST_ID, id.clone());
        }
        headers.insert(REQUEST_ID, id);
    }
    allow_origin(&mut headers, origin);
    if close {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let json = HeaderValue::from_static("application/json");
    let (status, answer) = match result {
        Ok(Reply::Events(stream)) => {
            log.answered(200);
            headers
                .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
            ignored_fields(&mut headers, &stream.summary());
            let events = Events::new(*stream, shared.config.sse_keep_alive(), log);
            (StatusCode::OK, Answer::Events(Box::new(events)))
        }
        Ok(Reply::Json(status, body)) => {
            headers.insert(header::CONTENT_TYPE, json);
            if let Some(events) = log.summary().guard_events {
                headers.insert(GUARD_EVENTS, events.into());
            }
            ignored_fields(&mut headers, log.summary());
            if status == StatusCode::SERVICE_UNAVAILABLE {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
            }
            (status, whole(status, body, log))
        }
        Ok(Reply::Text(kind, body)) => {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            (StatusCode::OK, whole(StatusCode::OK, body.into_bytes(), log))
        }
        Err(error) => {
            headers.insert(header::CONTENT_TYPE, json);
            error_headers(&mut headers, &error);
            let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            log.set_summary(api::Summary { finish: error.code, ..api::Summary::default() });
            let body = if anthropic { error.anthropic_body() } else { error.body() };
            (status, whole(status, body, log))
        }
    };
    let mut response = Response::new(answer);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// Names the fields of the request that nobody reads.
fn ignored_fields(headers: &mut HeaderMap, summary: &api::Summary) {
    let names = summary.ignored_fields.as_deref().and_then(|names| HeaderValue::from_str(names).ok());
    if let Some(names) = names {
        headers.insert(IGNORED_FIELDS, names);
    }
}

fn whole(status: StatusCode, body: Vec<u8>, mut log: RequestLog) -> Answer {
    log.answered(status.as_u16());
    // Complete as far as the server is concerned; a HEAD's body is never polled.
    log.complete();
    Answer::Whole { bytes: body.into(), given: false, log: Box::new(log) }
}

fn error_headers(headers: &mut HeaderMap, error: &ApiError) {
    if let Some(seconds) = error.retry_after_s {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    if let Some(allow) = error.allow {
        headers.insert(header::ALLOW, HeaderValue::from_static(allow));
    }
    if error.status == 401 {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if error.no_retry {
        headers.insert(HeaderName::from_static("x-should-retry"), HeaderValue::from_static("false"));
    }
    if error.close {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for path in ["/", "/v1", "/v1/models/", "/v1/completions/", "/Health", "*"] {
            assert_eq!(Route::of(path), None, "{path}");
        }
    }

    #[test]
    fn media_types() {
        let check = |kind: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            check_media_type(&headers).is_ok()
        };
        for kind in
            ["application/json", "application/json; charset=utf-8", "Application/JSON", "text/plain", ""]
        {
            assert!(check(kind), "{kind}");
        }
        for kind in ["text/html", "multipart/form-data; boundary=x", "image/png", "application/xml"] {
            assert!(!check(kind), "{kind}");
        }
        assert!(check_media_type(&HeaderMap::new()).is_ok());
    }

    #[test]
    fn keys_are_compared_whole() {
        assert!(same(b"abc", b"abc"));
        for (a, b) in [("abc", "abd"), ("abc", "ab"), ("", ""), ("abc", "")] {
            assert!(!same(a.as_bytes(), b.as_bytes()), "{a} {b}");
        }
    }
}
