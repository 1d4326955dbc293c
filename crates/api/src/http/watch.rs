//! Changes of a session's files over HTTP, as they happen.

use axum::extract::State;
use axum::http::{HeaderMap, Method};
use axum::response::Response;
use domain::file::FileKind;
use domain::{Code, SessionId};

use super::accept::takes_events;
use super::access::Tenant;
use super::extract::{Id, Params};
use super::files::{directory_path, flag};
use crate::problem::Problem;
use crate::service::access::Credential;
use crate::service::files::{Files, Verb};
use crate::sse;
use crate::state::ApiState;

/// Watch a directory
///
/// An event stream: `watching` once it has begun, then `created`, `modified`, `deleted` and `moved` with the path, what is there and its size;
/// `overflow` when changes were lost, so that the directory has to be listed anew; at last `end` with its `reason`. Nothing is kept for whoever connects
/// later. A watch does not keep the session from becoming idle.
#[utoipa::path(get, path = "/v1/sessions/{session_id}/files/watch", tag = "files", security(("bearer" = ["files:read"])),
    params(
        ("session_id" = String, Path, description = "The session."),
        ("path" = Option<String>, Query, description = "The directory; `/workspace` when left out."),
        ("recursive" = Option<bool>, Query, description = "What is below it as well, and what will be; false when left out."),
    ),
    responses((status = 200, description = "The changes.", body = String, content_type = "text/event-stream")))]
pub(crate) async fn watch_files(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    credential: Credential,
    Id(session_id): Id<SessionId>,
    mut params: Params,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let text = params.take("path")?;
    let recursive = flag(&mut params, "recursive", false)?;
    let files = Files::open(&state, &context, session_id, Verb::Watch, || {
        params.finish()?;
        if !takes_events(&headers) {
            let detail = "A watch is available as text/event-stream.";
            return Err(Problem::new(Code::NotAcceptable, detail));
        }
        directory_path(text.as_deref())
    })
    .await?;
    if state.shutdown.is_cancelled() {
        return Err(Problem::new(Code::ShuttingDown, "This process is shutting down. Connect again."));
    }
    if method == Method::HEAD {
        return match files.stat().await?.kind {
            FileKind::Directory => Ok(sse::head()),
            FileKind::File | FileKind::Symlink | FileKind::Other => {
                let detail = format!("{} is no directory.", files.file().absolute());
                Err(Problem::new(Code::NotDirectory, detail))
            }
        };
    }
    let permit = state.streams.open(context.tenant_id())?;
    let watch = files.watch(recursive).await?;
    Ok(sse::watch(&state, context.clone(), credential, permit, watch))
}
