//! Requests to answers: admission, readiness, headers. Bodies are built and parsed in `api`.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Request, Response, StatusCode};

use super::activity::Busy;
use super::answer::{Answer, Events};
use super::clients::Caller;
use super::request_log::RequestLog;
use super::shared::Shared;
use super::{accept, admission, body, compression, page, path};
use crate::api::{self, ApiError, Handler, Method, RequestBody, Route, is_request_id};

/// W3C Trace Context, level 2: where the request is found in a trace.
const TRACE_RESPONSE: HeaderName = HeaderName::from_static("traceresponse");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Name of the request-id header in Anthropic's API.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
const GUARD_EVENTS: HeaderName = HeaderName::from_static("x-guard-events");
const IGNORED_FIELDS: HeaderName = HeaderName::from_static("x-perigee-ignored-fields");

/// A finished answer before its headers.
enum Reply {
    Json(StatusCode, Vec<u8>),
    Text(&'static str, String),
    File(&'static page::File),
    Events(Box<api::EventStream>),
    /// The path where it is.
    Moved(HeaderValue),
}

impl From<api::Answer> for Reply {
    fn from(answer: api::Answer) -> Self {
        match answer {
            api::Answer::Json(body) => Self::Json(StatusCode::OK, body),
            api::Answer::Events(stream) => Self::Events(stream),
        }
    }
}

/// The API whose error shape a client expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    OpenAi,
    Anthropic,
}

impl Dialect {
    /// The route's own dialect; on routes shared by both, the dialect that the client's headers
    /// show.
    fn of(route: Option<&Route>, headers: &HeaderMap) -> Self {
        let shared = route.is_none_or(|route| matches!(route.handler, Handler::Models | Handler::Model));
        let shown = || headers.contains_key("anthropic-version") || headers.contains_key("x-api-key");
        match route.is_some_and(Route::is_anthropic) || (shared && shown()) {
            true => Self::Anthropic,
            false => Self::OpenAi,
        }
    }
}

/// Answers one request. Dropping the future (the client disconnected) aborts the work behind it.
///
/// `stranger`: whether the client shows no certificate where one is demanded.
pub(super) async fn answer(
    request: Request<Incoming>,
    shared: Arc<Shared>,
    busy: Busy,
    stranger: bool,
) -> Response<Answer> {
    let (head, incoming) = request.into_parts();
    let path = path::below(head.uri.path(), &shared.config.root_path);
    let route = Route::of(path);
    let id = request_id(&head.headers);
    let mut log = RequestLog::begin(shared.clone(), id, route, busy);
    log.context = shared.traces.get().map(|traces| traces.context(&head.headers));
    let origin = allowed_origin(&head.headers, &shared.config.cors_origins);
    let dialect = Dialect::of(route, &head.headers);
    let admitted = match (shared.hosts.check(&head, route.is_some_and(Route::is_probe)), route) {
        (Err(error), _) => Err(error),
        (Ok(()), Some(route)) if head.method == hyper::Method::OPTIONS && origin.is_some() => {
            body::skip(incoming).await;
            return preflight(route, &head.headers, origin, log);
        }
        (Ok(()), Some(route)) => admit(route, &head, &shared, stranger, &mut log).await.map(|()| route),
        (Ok(()), None) => match moved(&head, &shared) {
            Some(reply) => {
                body::skip(incoming).await;
                return respond(Ok(reply), origin, dialect, false, &shared, log);
            }
            None => Err(ApiError::unknown_path(path)),
        },
    };
    let gzip = accept::gzip(&head.headers);
    let result = match admitted {
        Ok(route) => tokio::select! {
            result = dispatch(route, path, &head.headers, incoming, &shared, &mut log) => result,
            () = shared.cut() => Err(ApiError::shutdown()),
        },
        Err(error) => {
            body::skip(incoming).await;
            Err(error)
        }
    };
    respond(result, origin, dialect, gzip, &shared, log)
}

/// Checks that need no body.
async fn admit(
    route: &Route,
    head: &Parts,
    shared: &Arc<Shared>,
    stranger: bool,
    log: &mut RequestLog,
) -> Result<(), ApiError> {
    let (method, headers) = (&head.method, &head.headers);
    let fits = match route.method {
        Method::Post => method == hyper::Method::POST,
        Method::Get => method == hyper::Method::GET || method == hyper::Method::HEAD,
    };
    if !fits {
        return Err(ApiError::method_not_allowed(method.as_str(), head.uri.path(), route.method.allow()));
    }
    if stranger && !route.is_probe() {
        return Err(ApiError::certificate_needed());
    }
    let mut caller = Caller::Anyone;
    if route.needs_key(shared.config.public_pages) {
        caller = shared.clients().find(admission::key_of(headers)).ok_or_else(ApiError::unauthorized)?;
        (log.client, log.share) = (caller.name(), caller.share());
    }
    if route.needs_admin() && !matches!(caller, Caller::Admin) {
        return Err(match shared.clients().has_admin() {
            true => ApiError::not_admin(),
            false => ApiError::no_admin_key(),
        });
    }
    if route.needs_model() {
        shared.readiness.started(shared.config.start_wait()).await;
        // Counted before the phase is read: a drain sees either this request or its refusal.
        log.runs(shared.run());
        shared.readiness.service(shared.api())?;
    }
    if route.has_body() {
        admission::check_media_type(headers)?;
    }
    // Last: what is refused for another reason does not count.
    if let (Caller::Client(client), true) = (caller, route.generates()) {
        log.metered = Some(client.begin(Instant::now())?);
    }
    Ok(())
}

/// Where the page is for who asks for `server.root_path` itself: its links are relative, so that the slash at the end counts.
fn moved(head: &Parts, shared: &Shared) -> Option<Reply> {
    let root = &shared.config.root_path;
    if head.uri.path() != root || head.method != hyper::Method::GET {
        return None;
    }
    HeaderValue::from_str(&format!("{root}/")).ok().map(Reply::Moved)
}

/// Runs the route's handler.
async fn dispatch(
    route: &Route,
    path: &str,
    headers: &HeaderMap,
    incoming: Incoming,
    shared: &Shared,
    log: &mut RequestLog,
) -> Result<Reply, ApiError> {
    let (ready, metrics) = (&shared.readiness, &shared.metrics);
    let api = || ready.service(shared.api());
    let json = |body| Ok(Reply::Json(StatusCode::OK, body));
    let value = |body: serde_json::Value| json(body.to_string().into_bytes());
    let health = |(ok, body): (bool, serde_json::Value)| {
        let status = if ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        Ok(Reply::Json(status, body.to_string().into_bytes()))
    };
    match route.handler {
        Handler::Reply(kind) => {
            let body = read(headers, incoming, shared, log).await?;
            api()?.reply(kind, body, &log.id, &mut log.summary).await.map(Reply::from)
        }
        Handler::Render(kind) => {
            let body = read(headers, incoming, shared, log).await?;
            api()?.render(kind, body, &mut log.summary).await.map(Reply::from)
        }
        Handler::CountTokens => {
            let body = read(headers, incoming, shared, log).await?;
            api()?.count_tokens(body, &mut log.summary).await.map(Reply::from)
        }
        Handler::Tokenize => {
            let body = read(headers, incoming, shared, log).await?;
            api()?.tokenize(body, &mut log.summary).await.map(Reply::from)
        }
        Handler::Detokenize => {
            let body = read(headers, incoming, shared, log).await?;
            api()?.detokenize(body, &mut log.summary).await.map(Reply::from)
        }
        Handler::TokenizerInfo => json(api()?.tokenizer_info()),
        Handler::Models => json(api()?.models()),
        Handler::Model => json(api()?.model(&path::decoded(path, route.parameter(path))?)?),
        Handler::ServerInfo => json(api()?.server_info()),
        Handler::ModelInfo => json(api()?.model_info()),
        Handler::Loads => json(api()?.loads()),
        Handler::Settings => value(shared.operator()?.settings()),
        Handler::Reload => {
            body::skip(incoming).await;
            reload(shared).await
        }
        Handler::FlightRecorder => value(metrics.flight().report()),
        Handler::Health => health(ready.health(shared.api().as_deref(), metrics)),
        Handler::Live => value(serde_json::json!({"status": "live"})),
        Handler::Ready => health(ready.ready_answer(shared.api().as_deref(), metrics)),
        Handler::Startup => health(ready.startup()),
        Handler::Metrics => {
            if let Some(api) = shared.api() {
                metrics.set_load(&api.load());
            }
            let form = accept::exposition(headers);
            Ok(Reply::Text(form.content_type(), metrics.render(form)))
        }
        Handler::Version => json(api::version()),
        Handler::OpenApi => json(api::openapi().to_vec()),
        Handler::Docs => Ok(Reply::File(&page::REFERENCE)),
        Handler::Page => Ok(Reply::File(&page::INDEX)),
        Handler::PageFile => {
            page::file(route.parameter(path)).map(Reply::File).ok_or_else(|| ApiError::unknown_path(path))
        }
    }
}

/// Reads the body of a request for the model.
async fn read(
    headers: &HeaderMap,
    incoming: Incoming,
    shared: &Shared,
    log: &RequestLog,
) -> Result<RequestBody, ApiError> {
    let body = body::read(headers, incoming, shared.body_limit(), &shared.config, &shared.bodies).await?;
    Ok(RequestBody { share: log.share, ..body })
}

/// Reads the settings anew, off the threads of streams.
async fn reload(shared: &Shared) -> Result<Reply, ApiError> {
    let operator = shared.operator()?.clone();
    let reloaded = tokio::task::spawn_blocking(move || operator.reload()).await;
    match reloaded.unwrap_or_else(|e| Err(format!("the reload failed: {e}"))) {
        Ok(report) => Ok(Reply::Json(StatusCode::OK, report.to_string().into_bytes())),
        Err(problems) => Err(ApiError::invalid_settings(problems)),
    }
}

/// The client's own id if it is safe to echo, else a new one.
fn request_id(headers: &HeaderMap) -> String {
    match headers.get(&REQUEST_ID).and_then(|v| v.to_str().ok()) {
        Some(id) if is_request_id(id) => id.to_owned(),
        _ => format!("{:032x}", fastrand::u128(..)),
    }
}

/// The origin to allow in the answer: the request's, if listed.
fn allowed_origin(headers: &HeaderMap, allowed: &[String]) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    if allowed.iter().any(|a| a == "*") {
        return Some(HeaderValue::from_static("*"));
    }
    allowed.iter().any(|a| a.as_bytes() == origin.as_bytes()).then(|| origin.clone())
}

fn preflight(
    route: &Route,
    headers: &HeaderMap,
    origin: Option<HeaderValue>,
    mut log: RequestLog,
) -> Response<Answer> {
    log.answered(204);
    log.complete();
    let mut response = Response::new(Answer::Whole { bytes: Bytes::new(), given: false, log: Box::new(log) });
    *response.status_mut() = StatusCode::NO_CONTENT;
    let out = response.headers_mut();
    let methods = if route.method == Method::Post { "POST, OPTIONS" } else { "GET, HEAD, OPTIONS" };
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
    dialect: Dialect,
    gzip: bool,
    shared: &Shared,
    mut log: RequestLog,
) -> Response<Answer> {
    let mut headers = HeaderMap::new();
    if let Ok(id) = HeaderValue::from_str(&log.id) {
        if dialect == Dialect::Anthropic {
            headers.insert(ANTHROPIC_REQUEST_ID, id.clone());
        }
        headers.insert(REQUEST_ID, id);
    }
    if let Some(context) = &log.context
        && let Ok(value) = HeaderValue::from_str(&context.header())
    {
        headers.insert(TRACE_RESPONSE, value);
    }
    for (name, value) in log.metered.iter().flat_map(|metered| &metered.headers) {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    allow_origin(&mut headers, origin);
    if shared.readiness.is_ending() {
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
            let events = Events::new(*stream, shared.config.sse_keep_alive(), shared.cut(), log);
            (StatusCode::OK, Answer::Events(Box::new(events)))
        }
        Ok(Reply::Json(status, body)) => {
            headers.insert(header::CONTENT_TYPE, json);
            if let Some(events) = log.summary.guard_events {
                headers.insert(GUARD_EVENTS, events.into());
            }
            ignored_fields(&mut headers, &log.summary);
            if status == StatusCode::SERVICE_UNAVAILABLE {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
            }
            (status, whole(status, body, log))
        }
        Ok(Reply::Moved(to)) => {
            headers.insert(header::LOCATION, to);
            (StatusCode::PERMANENT_REDIRECT, whole(StatusCode::PERMANENT_REDIRECT, Vec::new(), log))
        }
        Ok(Reply::Text(kind, body)) => {
            let body = text(&mut headers, kind, body.into_bytes(), gzip);
            (StatusCode::OK, whole(StatusCode::OK, body, log))
        }
        Ok(Reply::File(file)) => {
            let policy = HeaderValue::from_static(page::CONTENT_SECURITY_POLICY);
            headers.insert(header::CONTENT_SECURITY_POLICY, policy);
            headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            let body = text(&mut headers, file.media_type, file.text.into(), gzip);
            (StatusCode::OK, whole(StatusCode::OK, body, log))
        }
        Err(error) => {
            headers.insert(header::CONTENT_TYPE, json);
            error_headers(&mut headers, &error);
            let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            log.summary.finish = error.code;
            let body = match dialect {
                Dialect::Anthropic => error.anthropic_body(),
                Dialect::OpenAi => error.body(),
            };
            (status, whole(status, body, log))
        }
    };
    let mut response = Response::new(answer);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// The body of a text, packed where the client takes that.
fn text(headers: &mut HeaderMap, kind: &'static str, body: Vec<u8>, gzip: bool) -> Vec<u8> {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.append(header::VARY, HeaderValue::from_static("accept, accept-encoding"));
    if !gzip {
        return body;
    }
    headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    compression::gzip(&body)
}

/// Names the unknown fields of the request in the answer's headers.
fn ignored_fields(headers: &mut HeaderMap, summary: &api::Summary) {
    let names = summary.ignored_fields.as_deref().and_then(|names| HeaderValue::from_str(names).ok());
    if let Some(names) = names {
        headers.insert(IGNORED_FIELDS, names);
    }
}

fn whole(status: StatusCode, body: Vec<u8>, mut log: RequestLog) -> Answer {
    log.answered(status.as_u16());
    // The server's part is complete; the body of a HEAD answer is never polled.
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
