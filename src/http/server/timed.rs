//! Time limits on the silences of a peer: one that accepts no bytes, and one whose request's head does not end.
//!
//! Writes are timed at the socket, below TLS: a record that waits there is no progress. Heads are timed above TLS.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::activity::Activity;

/// A socket that fails on a peer that accepts no bytes.
pub(super) struct TimedWrites<S> {
    socket: S,
    timeout: Duration,
    /// Runs while the peer accepts no bytes.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> TimedWrites<S> {
    pub(super) fn new(socket: S, timeout: Duration) -> Self {
        Self { socket, timeout, deadline: None }
    }

    fn wrote<T>(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.deadline = None;
            return result;
        }
        let timeout = self.timeout;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(timeout)));
        match deadline.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => Poll::Ready(Err(timed_out("the client does not read its answer"))),
        }
    }
}

/// A stream that fails on a head that does not end.
pub(super) struct TimedHeads<S> {
    stream: S,
    activity: Arc<Activity>,
    timeout: Duration,
    /// Runs while a head is incomplete. The count is the number of heads before it; a larger one
    /// makes the deadline stale.
    deadline: Option<(usize, Pin<Box<Sleep>>)>,
}

impl<S> TimedHeads<S> {
    /// The first head is due from now on.
    pub(super) fn new(stream: S, activity: Arc<Activity>, timeout: Duration) -> Self {
        Self { stream, activity, timeout, deadline: Some((0, Box::pin(sleep(timeout)))) }
    }

    /// Drops a deadline whose head has arrived. Returns the number of heads so far, `None` while a
    /// request is being answered.
    fn heads_unless_busy(&mut self) -> Option<usize> {
        let heads = self.activity.heads.load(Ordering::Relaxed);
        if self.deadline.as_ref().is_some_and(|(at, _)| *at != heads) {
            self.deadline = None;
        }
        (!self.activity.busy.load(Ordering::Relaxed)).then_some(heads)
    }
}

fn timed_out(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedHeads<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buf);
        let Some(heads) = self.heads_unless_busy() else { return result };
        if result.is_ready() {
            if buf.filled().len() > before && self.deadline.is_none() {
                self.deadline = Some((heads, Box::pin(sleep(self.timeout))));
            }
            return result;
        }
        let late = self.deadline.as_mut().is_some_and(|(_, deadline)| deadline.as_mut().poll(cx).is_ready());
        if late {
            Poll::Ready(Err(timed_out("the request's head did not arrive in time")))
        } else {
            Poll::Pending
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedHeads<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
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

impl<S: AsyncRead + Unpin> AsyncRead for TimedWrites<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedWrites<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.wrote(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.wrote(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.socket).poll_flush(cx);
        self.wrote(cx, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.socket).poll_shutdown(cx);
        self.wrote(cx, result)
    }
}
