//! Answers to connections that are not served: an error as HTTP, without parsing a request.

use std::io;
use std::time::Duration;

use hyper::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::socket::Stream;
use crate::api::ApiError;

/// Longest time for a refused client to read the reason.
pub(super) const REFUSAL_TIME: Duration = Duration::from_secs(1);

/// Tells a client why its connection ends.
pub(super) async fn refuse(stream: impl Stream, error: &ApiError) {
    let _ = timeout(REFUSAL_TIME, answer(stream, error)).await;
}

async fn answer(mut stream: impl Stream, error: &ApiError) -> io::Result<()> {
    let body = error.body();
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let retry = error.retry_after_s.map(|seconds| format!("retry-after: {seconds}\r\n")).unwrap_or_default();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{retry}connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&body).await?;
    stream.shutdown().await?;
    // The client's bytes are read and discarded: closing over unread bytes would reset the
    // connection and lose the answer.
    let mut rest = [0; 4096];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}
