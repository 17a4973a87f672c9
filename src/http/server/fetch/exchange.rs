//! One GET request and its answer, over a connection of its own.
//!
//! Only the body of a 200 is read, within a limit of size. The request carries no cookies,
//! credentials or referer, and nothing of the answer outlives the exchange but a body or a location.

use std::convert::Infallible;
use std::future::pending;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper::{HeaderMap, Request, Response, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;

use super::FetchError;
use super::peer::Stream;
use super::url::RemoteUrl;

/// Most bytes of an answer's head.
const MAX_HEAD_BYTES: usize = 32 << 10;
/// Most header lines of an answer.
const MAX_HEADERS: usize = 100;

/// The use of an answer.
pub(super) enum Outcome {
    /// The body of a 200.
    Body(Vec<u8>),
    /// The location of a redirect, unchecked.
    Redirect(String),
}

/// Requests `url` over `stream`, for a body of at most `max_bytes`.
pub(super) async fn get(
    stream: Box<dyn Stream>,
    url: &RemoteUrl,
    max_bytes: usize,
) -> Result<Outcome, FetchError> {
    let request = request(url)?;
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(FetchError::Answer)?;
    let exchange = async {
        let answer = sender.send_request(request).await.map_err(FetchError::Answer)?;
        outcome(answer, max_bytes).await
    };
    // The connection is driven here and not in a task of its own: dropping the fetch closes it. Its
    // failures reach the exchange through the answer, so its end is no result.
    let driver = async {
        let _ = connection.await;
        pending::<Infallible>().await
    };
    tokio::select! {
        result = exchange => result,
        never = driver => match never {},
    }
}

fn request(url: &RemoteUrl) -> Result<Request<Empty<Bytes>>, FetchError> {
    let target = Uri::builder().path_and_query(url.target()).build();
    Request::get(target.map_err(|_| FetchError::Characters)?)
        .header(header::HOST, url.host_header())
        .header(header::USER_AGENT, "perigee")
        .header(header::ACCEPT, "image/*")
        .header(header::ACCEPT_ENCODING, "identity")
        .header(header::CONNECTION, "close")
        .body(Empty::new())
        .map_err(|_| FetchError::Characters)
}

async fn outcome(answer: Response<Incoming>, max_bytes: usize) -> Result<Outcome, FetchError> {
    match answer.status() {
        StatusCode::OK if is_encoded(answer.headers()) => Err(FetchError::Encoding),
        StatusCode::OK => read(answer.into_body(), max_bytes).await.map(Outcome::Body),
        StatusCode::MOVED_PERMANENTLY
        | StatusCode::FOUND
        | StatusCode::SEE_OTHER
        | StatusCode::TEMPORARY_REDIRECT
        | StatusCode::PERMANENT_REDIRECT => location(answer.headers()).map(Outcome::Redirect),
        status => Err(FetchError::Status(status.as_u16())),
    }
}

fn is_encoded(headers: &HeaderMap) -> bool {
    let codings = headers.get_all(header::CONTENT_ENCODING);
    codings.iter().any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

/// The only `location` header. Two of them could be read differently by two readers.
fn location(headers: &HeaderMap) -> Result<String, FetchError> {
    let mut locations = headers.get_all(header::LOCATION).iter();
    match (locations.next(), locations.next()) {
        (Some(location), None) => location.to_str().map(str::to_owned).map_err(|_| FetchError::Location),
        _ => Err(FetchError::Location),
    }
}

/// Reads a body of at most `max_bytes`; a declared length above it is refused before reading.
async fn read(mut body: Incoming, max_bytes: usize) -> Result<Vec<u8>, FetchError> {
    let too_large = || FetchError::TooLarge { limit: max_bytes };
    let declared = usize::try_from(body.size_hint().lower()).map_err(|_| too_large())?;
    if declared > max_bytes {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(declared);
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(FetchError::Answer)?.into_data() {
            if data.len() > max_bytes - bytes.len() {
                return Err(too_large());
            }
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes)
}
