//! A connection that notices a client who sends nothing at its start or takes nothing later.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Bytes from which the HTTP version is told: those of the HTTP/2 preface.
const PREFACE_BYTES: usize = 24;

/// A stream with two patience limits.
pub(crate) struct Guarded<S> {
    stream: S,
    stall: Duration,
    /// Runs until the first bytes are there.
    opening: Option<Pin<Box<Sleep>>>,
    read: usize,
    /// Runs while the peer takes nothing.
    writing: Option<Pin<Box<Sleep>>>,
}

impl<S> Guarded<S> {
    pub(crate) fn new(stream: S, opening: Duration, stall: Duration) -> Self {
        // A stream that is about to be told so itself gets the chance.
        let stall = stall + stall / 3;
        Self { stream, stall, opening: Some(Box::pin(sleep(opening))), read: 0, writing: None }
    }

    fn patience(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let stall = self.stall;
        let writing = self.writing.get_or_insert_with(|| Box::pin(sleep(stall)));
        ready!(writing.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        match Pin::new(&mut self.stream).poll_read(cx, buf) {
            Poll::Ready(outcome) => {
                self.read += buf.filled().len() - before;
                if self.read >= PREFACE_BYTES {
                    self.opening = None;
                }
                Poll::Ready(outcome)
            }
            Poll::Pending => {
                if let Some(opening) = &mut self.opening {
                    ready!(opening.as_mut().poll(cx));
                    return Poll::Ready(Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        "the client sends nothing",
                    )));
                }
                Poll::Pending
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(cx, bytes) {
            Poll::Ready(outcome) => {
                // A short request of the old kind is answered before it has so many bytes.
                self.opening = None;
                self.writing = None;
                Poll::Ready(outcome)
            }
            Poll::Pending => self.patience(cx),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write_vectored(cx, slices) {
            Poll::Ready(outcome) => {
                self.opening = None;
                self.writing = None;
                Poll::Ready(outcome)
            }
            Poll::Pending => self.patience(cx),
        }
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

impl<S> std::fmt::Debug for Guarded<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let waiting =
            self.writing.as_ref().map(|sleep| sleep.deadline().saturating_duration_since(Instant::now()));
        f.debug_struct("Guarded").field("read", &self.read).field("waiting", &waiting).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_too_little_is_cut() {
        let (mut client, server) = duplex(64);
        let mut guarded = Guarded::new(server, Duration::from_secs(10), Duration::from_secs(30));
        client.write_all(b"P").await.expect("writes");
        let mut bytes = Vec::new();
        let before = Instant::now();
        let error = guarded.read_to_end(&mut bytes).await.expect_err("cut");
        assert_eq!((error.kind(), before.elapsed()), (io::ErrorKind::TimedOut, Duration::from_secs(10)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_cut_and_a_slow_one_is_not() {
        let (mut client, server) = duplex(8);
        let mut guarded = Guarded::new(server, Duration::from_secs(10), Duration::from_secs(30));
        let reader = tokio::spawn(async move {
            let mut eight = [0; 8];
            sleep(Duration::from_secs(39)).await;
            client.read_exact(&mut eight).await.expect("reads");
            client
        });
        guarded.write_all(&[1; 16]).await.expect("after 39 s");
        let _client = reader.await.expect("joins");
        assert_eq!(guarded.write_all(&[1; 8]).await.expect_err("cut").kind(), io::ErrorKind::TimedOut);
    }
}
