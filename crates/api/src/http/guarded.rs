//! A body that is asked before each of its pieces whether it may go on.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

/// Lasts as long as its answer is under way: `guard` is asked before each piece, and ends the answer with the error that it returns.
/// What it holds is dropped with the body.
pub(crate) fn guarded<G>(body: Body, guard: G) -> Body
where
    G: FnMut(&mut Context<'_>) -> Option<axum::Error> + Send + Unpin + 'static,
{
    Body::new(Guarded { body, guard })
}

struct Guarded<G> {
    body: Body,
    guard: G,
}

impl<G: FnMut(&mut Context<'_>) -> Option<axum::Error> + Unpin> hyper::body::Body for Guarded<G> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match (self.guard)(cx) {
            Some(end) => Poll::Ready(Some(Err(end))),
            None => Pin::new(&mut self.body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
