//! Shells over HTTP, as far as they can be read.

use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use domain::{SessionId, ShellId, ShellStatus};

use super::accept::{Form, form};
use super::access::Tenant;
use super::calls::not_acceptable;
use super::events::cursor;
use super::extract::{Id, Ids, Params};
use crate::problem::Problem;
use crate::service::access::Credential;
use crate::service::shells;
use crate::sse::{self, Asked, ShellSource, Source};
use crate::state::ApiState;
use crate::wire::lists::List;
use crate::wire::shells::{ShellOutput, ShellView};

/// List shells
///
/// Commands in the background of a session, newest first.
#[utoipa::path(get, path = "/v1/sessions/{session_id}/shells", tag = "shells", security(("bearer" = ["calls:read"])),
    params(("session_id" = String, Path, description = "The session.")),
    responses((status = 200, description = "The shells.", body = List<ShellView>)))]
pub(crate) async fn list_shells(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(session_id): Id<SessionId>,
    params: Params,
) -> Result<impl IntoResponse, Problem> {
    params.finish()?;
    let shells = shells::list(&state, &context, session_id).await?;
    Ok(axum::Json(List::new(shells.into_iter().map(ShellView::from).collect(), None)))
}

/// Get a shell
#[utoipa::path(get, path = "/v1/sessions/{session_id}/shells/{shell_id}", tag = "shells", security(("bearer" = ["calls:read"])),
    params(
        ("session_id" = String, Path, description = "The session."),
        ("shell_id" = String, Path, description = "The shell."),
    ),
    responses((status = 200, description = "The shell.", body = ShellView)))]
pub(crate) async fn get_shell(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Ids(session_id, id): Ids<SessionId, ShellId>,
) -> Result<impl IntoResponse, Problem> {
    Ok(axum::Json(ShellView::from(shells::get(&state, &context, session_id, id).await?)))
}

/// Read a shell's output
///
/// With `Accept: text/event-stream` a stream of `shell.output` and `shell.ended` events whose `id` is the offset to read on from;
/// otherwise a part of the log as JSON. Reading takes nothing away.
#[utoipa::path(get, path = "/v1/sessions/{session_id}/shells/{shell_id}/output", tag = "shells",
    security(("bearer" = ["calls:read"])),
    params(
        ("session_id" = String, Path, description = "The session."),
        ("shell_id" = String, Path, description = "The shell."),
        ("since_offset" = Option<u64>, Query, description = "Read from this offset of the log on."),
        ("max_bytes" = Option<u64>, Query, minimum = 1, maximum = 1048576, description = "Bytes of the part, 1 to 1,048,576; 65,536 when left out (JSON only)."),
        ("Last-Event-ID" = Option<u64>, Header, description = "Like `since_offset`, and wins over it."),
    ),
    responses(
        (status = 200, description = "The output.", content((ShellOutput = "application/json"), (String = "text/event-stream"))),
        (status = 204, description = "The shell has ended and the stream is resumed at the end of its log: do not connect again.")))]
pub(crate) async fn get_shell_output(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    credential: Credential,
    Ids(session_id, id): Ids<SessionId, ShellId>,
    mut params: Params,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    const MOST: u64 = 1024 * 1024;
    let offset = cursor(&headers, &mut params, "since_offset", shells::parse_offset)?;
    let expected = "must be a number from 1 to 1048576";
    let max_bytes = params.parse::<u64>("max_bytes", expected)?.unwrap_or(64 * 1024);
    params.finish()?;
    match form(&headers) {
        Form::Neither => Err(not_acceptable()),
        _ if !(1..=MOST).contains(&max_bytes) => Err(Problem::query("max_bytes", expected)),
        Form::Json => {
            let output = shells::output(&state, &context, session_id, id, offset, max_bytes).await?;
            Ok(axum::Json(output).into_response())
        }
        Form::Events => {
            let watch = state.store.bus().subscribe_shell(id);
            let shell = shells::get(&state, &context, session_id, id).await?;
            shells::check_offset(&shell, offset)?;
            let resumed = offset > 0 || headers.contains_key("last-event-id");
            if resumed && offset == shell.next_offset && shell.status == ShellStatus::Exited {
                return Ok(StatusCode::NO_CONTENT.into_response());
            }
            let mut source = ShellSource::new(state.clone(), context.clone(), session_id, id, offset, watch);
            let first = source.read().await?;
            sse::open(&state, Asked { context, credential, method }, source, first, offset)
        }
    }
}
