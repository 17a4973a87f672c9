//! One connection: HTTP/1 over a socket with time limits on its silences.
//!
//! hyper's own head timeout also ends idle connections, so it is set to the idle time. The time
//! limit of a head, and of a client that stops reading its answer, is enforced here.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::{Sleep, sleep};

use super::activity::{Activity, Busy};
use super::routes;
use super::shared::{Life, Shared};
use super::socket::Stream;

/// Most bytes of a request's head.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Most header lines of a request.
const MAX_HEADERS: usize = 100;

/// Serves one connection to its end.
pub(super) async fn serve(stream: Box<dyn Stream>, shared: Arc<Shared>, mut life: watch::Receiver<Life>) {
    let config = &shared.config;
    let activity = Arc::new(Activity::default());
    let io = TimedStream {
        stream,
        activity: activity.clone(),
        head_timeout: config.header_read_timeout(),
        write_timeout: config.keep_alive(),
        // The first head is due from the moment of the connection.
        head_deadline: Some((0, Box::pin(sleep(config.header_read_timeout())))),
        write_deadline: None,
    };
    let service = {
        let shared = shared.clone();
        service_fn(move |request| {
            let (shared, busy) = (shared.clone(), Busy::new(activity.clone()));
            async move { Ok::<_, Infallible>(routes::answer(request, shared, busy).await) }
        })
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(config.keep_alive())
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(io), service);
    tokio::pin!(connection);
    loop {
        tokio::select! {
            result = connection.as_mut() => {
                if let Err(error) = result {
                    tracing::debug!(%error, "connection ended");
                }
                return;
            }
            changed = life.changed() => match (changed, *life.borrow_and_update()) {
                // Requests in progress end by themselves, or with an error.
                (Ok(()), Life::Serving | Life::Cut) => {}
                (Ok(()), Life::Closing) => connection.as_mut().graceful_shutdown(),
                (Ok(()), Life::Over) | (Err(_), _) => return,
            }
        }
    }
}

/// A socket that fails on a head that does not end and on an answer that is not read.
struct TimedStream {
    stream: Box<dyn Stream>,
    activity: Arc<Activity>,
    head_timeout: Duration,
    write_timeout: Duration,
    /// Runs while a head is incomplete. The count is the number of heads before it; a larger one
    /// makes the deadline stale.
    head_deadline: Option<(usize, Pin<Box<Sleep>>)>,
    /// Runs while the peer accepts no bytes.
    write_deadline: Option<Pin<Box<Sleep>>>,
}

impl TimedStream {
    /// Drops a deadline whose head has arrived. Returns the number of heads so far, `None` while a
    /// request is being answered.
    fn heads_unless_busy(&mut self) -> Option<usize> {
        let heads = self.activity.heads.load(Ordering::Relaxed);
        if self.head_deadline.as_ref().is_some_and(|(at, _)| *at != heads) {
            self.head_deadline = None;
        }
        (!self.activity.busy.load(Ordering::Relaxed)).then_some(heads)
    }

    fn wrote(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if result.is_ready() {
            self.write_deadline = None;
            return result;
        }
        let timeout = self.write_timeout;
        let deadline = self.write_deadline.get_or_insert_with(|| Box::pin(sleep(timeout)));
        match deadline.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => Poll::Ready(Err(timed_out("the client does not read its answer"))),
        }
    }
}

fn timed_out(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}

impl AsyncRead for TimedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buf);
        let Some(heads) = self.heads_unless_busy() else { return result };
        if result.is_ready() {
            if buf.filled().len() > before && self.head_deadline.is_none() {
                self.head_deadline = Some((heads, Box::pin(sleep(self.head_timeout))));
            }
            return result;
        }
        let late =
            self.head_deadline.as_mut().is_some_and(|(_, deadline)| deadline.as_mut().poll(cx).is_ready());
        if late {
            Poll::Ready(Err(timed_out("the request's head did not arrive in time")))
        } else {
            Poll::Pending
        }
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.wrote(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.wrote(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
