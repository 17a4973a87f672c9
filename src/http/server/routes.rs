//! Requests to answers: admission by the table of routes, and the handler. Bodies are built and parsed in `api`.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Request, Response};

use super::activity::Busy;
use super::answer::Answer;
use super::audit::Source;
use super::clients::{Caller, LimitReached};
use super::connection::Peer;
use super::page::HEADER as PAGE;
use super::request_log::RequestLog;
use super::response::{self, Dialect, REQUEST_ID, Reply};
use super::shared::Shared;
use super::{accept, admission, body, handlers, path};
use crate::api::{ApiError, Handler, Method, Route, is_request_id};

/// Answers one request. Dropping the future (the client disconnected) aborts the work behind it.
pub(super) async fn answer(
    request: Request<Incoming>,
    shared: Arc<Shared>,
    busy: Busy,
    peer: Peer,
) -> Response<Answer> {
    let (head, incoming) = request.into_parts();
    let path = path::normal(head.uri.path(), &shared.config.root_path);
    let route = Route::of(&path);
    let id = request_id(&head.headers);
    let source = Source::of(&head.headers, peer.address, &shared.proxies);
    let mut log = RequestLog::begin(shared.clone(), id, route, busy, source);
    log.is_of_page = head.method == hyper::Method::GET
        && head.headers.contains_key(&PAGE)
        && route.is_some_and(Route::feeds_page);
    log.context = shared.traces.get().map(|traces| traces.context(&head.headers));
    let origin = response::allowed_origin(&head.headers, &shared.config.cors_origins);
    let dialect = Dialect::of(route, &head.headers);
    let checked = admission::check_framing(&head.headers)
        .and_then(|()| shared.hosts.check(&head, route.is_some_and(Route::is_probe)));
    let admitted = match (checked, route) {
        (Err(error), _) => Err(error),
        (Ok(()), Some(route)) if head.method == hyper::Method::OPTIONS && origin.is_some() => {
            body::skip(&head.headers, incoming).await;
            return response::preflight(route, &head.headers, origin, log);
        }
        (Ok(()), route) => match (moved(&head, route, &shared), route) {
            (Some(reply), _) => {
                body::skip(&head.headers, incoming).await;
                return response::respond(Ok(reply), origin, dialect, false, &shared, log);
            }
            (None, Some(route)) => admit(route, &head, &shared, peer, &mut log).await.map(|()| route),
            (None, None) => Err(ApiError::unknown_path(&path)),
        },
    };
    let gzip = accept::gzip(&head.headers);
    let result = match admitted {
        Ok(route) => tokio::select! {
            result = handlers::run(route, &path, &head, incoming, &shared, &mut log) => result,
            () = shared.cut() => Err(ApiError::shutdown()),
        },
        Err(error) => {
            if let (401 | 403, Some(route)) = (error.status, route) {
                shared.refusals.log(&log.source, &log.id, log.client.as_deref(), route.name, &error);
            }
            body::skip(&head.headers, incoming).await;
            Err(error)
        }
    };
    response::respond(result, origin, dialect, gzip, &shared, log)
}

/// Checks that need no body.
async fn admit(
    route: &Route,
    head: &Parts,
    shared: &Arc<Shared>,
    peer: Peer,
    log: &mut RequestLog,
) -> Result<(), ApiError> {
    let (method, headers) = (&head.method, &head.headers);
    let fits = match route.method {
        Method::Post => method == hyper::Method::POST,
        Method::Get => method == hyper::Method::GET || method == hyper::Method::HEAD,
        Method::GetOrDelete => {
            [hyper::Method::GET, hyper::Method::HEAD, hyper::Method::DELETE].contains(method)
        }
    };
    if !fits {
        return Err(ApiError::method_not_allowed(method.as_str(), head.uri.path(), route.method.allow()));
    }
    if peer.stranger && !route.is_probe() {
        return Err(ApiError::certificate_needed());
    }
    let mut caller = Caller::Anyone;
    if route.needs_key(shared.config.public_pages) {
        let key = admission::key_of(headers);
        caller = shared.clients().find(key).ok_or_else(ApiError::unauthorized)?;
        (log.client, log.share, log.owner) = (caller.name(), caller.share(), caller.owner(key));
        if let Caller::Client(client) = &caller {
            client.may(route, SystemTime::now())?;
            log.max_tokens = client.max_tokens();
        }
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
        log.runs(shared.run(route.generates()));
        shared.readiness.service(shared.api())?;
    }
    if route.has_body() {
        admission::check_media_type(headers)?;
    }
    if !route.generates() {
        return Ok(());
    }
    // Last: what is refused for another reason does not count.
    if let Caller::Client(client) = caller {
        let ledger = shared.ledger.get().filter(|_| client.has_budget());
        let spent = ledger.map(|ledger| ledger.spent(client.name(), SystemTime::now())).unwrap_or_default();
        let (headers, metered) = client.begin(Instant::now(), &spent);
        log.limit_headers = headers;
        log.metered = Some(metered.map_err(|LimitReached { limit, error }| {
            shared.metrics.record_client_limited(client.name(), limit);
            *error
        })?);
    }
    log.entry = shared.ledger.get().map(|ledger| ledger.begin(&log.id, log.client.as_deref(), route.name));
    Ok(())
}

/// Where a page is whose links are relative, so that the slash at the end of its path counts: with one at
/// `server.root_path`, without one at `/docs`.
fn moved(head: &Parts, route: Option<&Route>, shared: &Shared) -> Option<Reply> {
    let (path, root) = (path::collapsed(head.uri.path()), &shared.config.root_path);
    if head.method != hyper::Method::GET {
        return None;
    }
    if *path == **root {
        return HeaderValue::from_str(&format!("{root}/")).ok().map(Reply::Moved);
    }
    let is_docs = route.is_some_and(|route| route.handler == Handler::Docs);
    (is_docs && path.ends_with('/')).then(|| Reply::Moved(HeaderValue::from_static("../docs")))
}

/// The client's own id if it is safe to echo, else a new one.
fn request_id(headers: &HeaderMap) -> String {
    match headers.get(&REQUEST_ID).and_then(|v| v.to_str().ok()) {
        Some(id) if is_request_id(id) => id.to_owned(),
        _ => format!("{:032x}", fastrand::u128(..)),
    }
}
