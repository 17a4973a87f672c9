//! Answers as HTTP: status, headers, and the body in the shape that the client expects.

use bytes::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, Response, StatusCode};

use super::answer::{Answer, Events};
use super::request_log::RequestLog;
use super::shared::Shared;
use super::{compression, page};
use crate::api::{self, ApiError, Handler, Method, Route};

/// W3C Trace Context, level 2: where the request is found in a trace.
const TRACE_RESPONSE: HeaderName = HeaderName::from_static("traceresponse");
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Name of the request-id header in Anthropic's API.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
const GUARD_EVENTS: HeaderName = HeaderName::from_static("x-guard-events");
const IGNORED_FIELDS: HeaderName = HeaderName::from_static("x-perigee-ignored-fields");

/// A finished answer before its headers.
pub(super) enum Reply {
    Json(StatusCode, Vec<u8>),
    Text(&'static str, String),
    File(&'static page::File),
    Events(Box<api::EventStream>),
    Background(Box<api::Background>),
    /// The path where it is.
    Moved(HeaderValue),
}

impl From<api::Answer> for Reply {
    fn from(answer: api::Answer) -> Self {
        match answer {
            api::Answer::Json(body) => Self::Json(StatusCode::OK, body),
            api::Answer::Events(stream) => Self::Events(stream),
            api::Answer::Background(work) => Self::Background(work),
        }
    }
}

/// The API whose error shape a client expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    OpenAi,
    Anthropic,
}

impl Dialect {
    /// The route's own dialect; on routes shared by both, the dialect that the client's headers
    /// show.
    pub(super) fn of(route: Option<&Route>, headers: &HeaderMap) -> Self {
        let shared = route.is_none_or(|route| matches!(route.handler, Handler::Models | Handler::Model));
        let shown = || headers.contains_key("anthropic-version") || headers.contains_key("x-api-key");
        match route.is_some_and(Route::is_anthropic) || (shared && shown()) {
            true => Self::Anthropic,
            false => Self::OpenAi,
        }
    }
}

/// The origin to allow in the answer: the request's, if listed.
pub(super) fn allowed_origin(headers: &HeaderMap, allowed: &[String]) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    if allowed.iter().any(|a| a == "*") {
        return Some(HeaderValue::from_static("*"));
    }
    allowed.iter().any(|a| a.as_bytes() == origin.as_bytes()).then(|| origin.clone())
}

pub(super) fn preflight(
    route: &Route,
    headers: &HeaderMap,
    origin: Option<HeaderValue>,
    mut log: RequestLog,
) -> Response<Answer> {
    log.answered(204);
    log.complete();
    let mut response = Response::new(Answer::Whole { bytes: Bytes::new(), held: Box::new(log) });
    *response.status_mut() = StatusCode::NO_CONTENT;
    let out = response.headers_mut();
    let methods = match route.method {
        Method::Post => "POST, OPTIONS",
        Method::Get => "GET, HEAD, OPTIONS",
        Method::GetOrDelete => "GET, HEAD, DELETE, OPTIONS",
    };
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

pub(super) fn respond(
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
    for (name, value) in &log.limit_headers {
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
        Ok(Reply::Background(work)) => {
            headers.insert(header::CONTENT_TYPE, json);
            ignored_fields(&mut headers, &log.summary);
            let (bytes, held) = (work.answer().to_vec().into(), Box::new(log.busy.take()));
            // The request ends with the work: its client's limits, a drain and its log line wait for that.
            tokio::spawn(work_to_the_end(work, shared.cut(), log));
            (StatusCode::OK, Answer::Whole { bytes, held })
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

async fn work_to_the_end(work: Box<api::Background>, cut: impl Future<Output = ()>, mut log: RequestLog) {
    let ended = work.run(cut, &mut log.summary).await;
    log.answered(ended.map_or_else(|error| error.status, |()| 200));
    log.complete();
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
    let summary = log.summary.clone();
    log.settle(status.as_u16(), &summary);
    // The server's part is complete; the body of a HEAD answer is never polled.
    log.complete();
    Answer::Whole { bytes: body.into(), held: Box::new(log) }
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
