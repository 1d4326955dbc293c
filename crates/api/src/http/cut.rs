//! Answers that go on, cut when whoever reads them may not any more.

use axum::response::Response;
use domain::Scope;
use hyper::body::Body as _;
use tokio_util::sync::CancellationToken;

use super::guarded;
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
    let (mut ended, goes_on) = (Box::pin(over.clone().cancelled_owned()), done.clone().drop_guard());
    let state = state.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = done.cancelled() => return,
            () = vigil::until_over(&state, &credential, needs.as_slice()) => {}
        }
        over.cancel();
        vigil::let_go(&credential, done.cancelled()).await;
    });
    response.map(|body| {
        guarded(body, move |cx| {
            let _goes_on = &goes_on;
            ended.as_mut().poll(cx).is_ready().then(|| axum::Error::new(NotAnyMore))
        })
    })
}
