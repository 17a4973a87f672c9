//! From a request that may be answered to its answer: one handler per route.

use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{HeaderMap, StatusCode};

use super::ledger::Query;
use super::request_log::RequestLog;
use super::response::Reply;
use super::shared::Shared;
use super::{accept, body, page, path};
use crate::api::{self, ApiError, Handler, RequestBody, Route};

/// Runs the route's handler.
pub(super) async fn run(
    route: &Route,
    path: &str,
    head: &Parts,
    incoming: Incoming,
    shared: &Shared,
    log: &mut RequestLog,
) -> Result<Reply, ApiError> {
    let (headers, query) = (&head.headers, head.uri.query());
    let (ready, metrics) = (&shared.readiness, &shared.metrics);
    let api = || ready.service(shared.api());
    // A drain waits for responses in the background, which are worth nothing unless they can be retrieved.
    let stored = || shared.api().map_or_else(|| ready.service(None), Ok);
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
            api()?.render(kind, body, &log.id, &mut log.summary).await.map(Reply::from)
        }
        Handler::CountTokens(kind) => {
            let body = read(headers, incoming, shared, log).await?;
            api()?.count_tokens(kind, body, &mut log.summary).await.map(Reply::from)
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
        Handler::Models => json(api()?.models(query)),
        Handler::Model => json(api()?.model(&path::decoded(path, route.parameter(path))?)?),
        Handler::StoredResponse => {
            let id = path::decoded(path, route.parameter(path))?;
            body::skip(headers, incoming).await;
            json(match head.method == hyper::Method::DELETE {
                true => stored()?.delete_response(log.owner, &id)?,
                false => stored()?.stored_response(log.owner, &id)?,
            })
        }
        Handler::CancelResponse => {
            let id = path::decoded(path, route.parameter(path))?;
            body::skip(headers, incoming).await;
            json(stored()?.cancel_response(log.owner, &id)?)
        }
        Handler::InputItems => {
            let id = path::decoded(path, route.parameter(path))?;
            json(stored()?.input_items(log.owner, &id, query)?)
        }
        Handler::ServerInfo => json(api()?.server_info()),
        Handler::ModelInfo => json(api()?.model_info()),
        Handler::Loads => json(api()?.loads()),
        Handler::Settings => value(shared.operator()?.settings()),
        Handler::Reload => {
            body::skip(headers, incoming).await;
            reload(shared).await
        }
        Handler::Usage => usage(shared, query).await,
        Handler::FlightRecorder => value(metrics.flight().report()),
        Handler::Health => health(ready.health(shared.api().as_deref(), metrics)),
        Handler::Live => value(serde_json::json!({"status": "live"})),
        Handler::Ready => health(ready.ready_answer(shared.api().as_deref(), metrics)),
        Handler::Startup => health(ready.startup()),
        Handler::Metrics => {
            shared.refresh_load();
            let form = accept::exposition(headers);
            Ok(Reply::Text(form.content_type(), metrics.render(form)))
        }
        Handler::Version => {
            json(api::version(shared.operator().ok().map(|operator| operator.settings_digest())))
        }
        Handler::OpenApi => json(api::openapi().to_vec()),
        Handler::Docs => Ok(Reply::File(&page::REFERENCE)),
        Handler::Page => Ok(Reply::File(&page::INDEX)),
        Handler::PageLoad => page_load(shared, query),
        Handler::PageFile => {
            page::file(route.parameter(path)).map(Reply::File).ok_or_else(|| ApiError::unknown_path(path))
        }
    }
}

/// The load of the last minutes, from the sample on that `from` in the query names.
fn page_load(shared: &Shared, query: Option<&str>) -> Result<Reply, ApiError> {
    let pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let from = pairs.filter(|(name, _)| *name == "from").find_map(|(_, value)| value.parse().ok());
    let body = page::Load::of(shared, from.unwrap_or(0));
    Ok(Reply::Json(StatusCode::OK, body.json()))
}

/// Reads the body of a request for the model.
async fn read(
    headers: &HeaderMap,
    incoming: Incoming,
    shared: &Shared,
    log: &RequestLog,
) -> Result<RequestBody, ApiError> {
    let body = body::read(headers, incoming, shared.body_limit(), &shared.config, &shared.bodies).await?;
    Ok(RequestBody { share: log.share, owner: log.owner, max_tokens: log.max_tokens, ..body })
}

/// Sums the ledger, off the threads of streams.
async fn usage(shared: &Shared, query: Option<&str>) -> Result<Reply, ApiError> {
    let query = Query::read(query)?;
    let ledger = shared.ledger.get().ok_or_else(ApiError::no_ledger)?.clone();
    let summed = tokio::task::spawn_blocking(move || ledger.sum(query)).await;
    let usage = summed.map_err(|error| ApiError::internal(format!("the ledger was not read: {error}")))??;
    let body = serde_json::to_vec(&usage).map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(Reply::Json(StatusCode::OK, body))
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
