//! Answers that go on, cut when whoever reads them may not any more.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use domain::Scope;
use hyper::body::{Body as _, Frame, SizeHint};
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};

use crate::service::access::Credential;
use crate::service::vigil;
use crate::state::ApiState;

/// Says of an answer that it looks after its credential by itself, and has more to say at its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Judged;

/// Why an answer ends early. It is an error, so that half of something is not taken for all of it.
#[derive(Debug, thiserror::Error)]
#[error("the credential is not good any more")]
struct NotAnyMore;

/// The answer, which ends when the credential could not ask for it any more. One that is there already is left as it is.
pub(crate) fn judged(
    state: &ApiState,
    credential: Credential,
    needs: Option<Scope>,
    mut response: Response,
) -> Response {
    let judges_itself = response.extensions_mut().remove::<Judged>().is_some();
    if judges_itself || response.body().size_hint().exact().is_some() {
        return response;
    }
    let (over, done) = (CancellationToken::new(), CancellationToken::new());
    let goes_on = GoesOn {
        over: Box::pin(over.clone().cancelled_owned()),
        _done: done.clone().drop_guard(),
        body: Body::empty(),
    };
    let state = state.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = done.cancelled() => return,
            () = vigil::until_over(&state, &credential, needs.as_slice()) => {}
        }
        over.cancel();
        vigil::let_go(&credential, done.cancelled()).await;
    });
    response.map(|body| Body::new(GoesOn { body, ..goes_on }))
}

struct GoesOn {
    body: Body,
    over: Pin<Box<WaitForCancellationFutureOwned>>,
    _done: DropGuard,
}

impl hyper::body::Body for GoesOn {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.over.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(axum::Error::new(NotAnyMore))));
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
