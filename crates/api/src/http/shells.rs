//! Shells over HTTP: make, list, read, end.

use std::time::Duration;

use axum::extract::State;
use axum::http::header::LOCATION;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use domain::{SessionId, ShellId};

use super::access::Tenant;
use super::extract::{Draft, Id, IdempotencyKey, Ids, Input, Params};
use super::sessions::REPLAYED;
use crate::json::Checks;
use crate::problem::Problem;
use crate::service::sessions::Replay;
use crate::service::shells::{self, Made};
use crate::state::ApiState;
use crate::wire::calls::CallView;
use crate::wire::lists::List;
use crate::wire::shells::{CreateShell, ShellView};

impl Input for CreateShell {
    fn check(&self, checks: &mut Checks) {
        checks.range("/wait_ms", Some(self.wait_ms), 0..=domain::limits::WAIT_MS);
        checks.metadata("/metadata", Some(&self.metadata));
    }
}

/// Start a shell
///
/// A command in the background, with a log of its own and, with `pty`, a terminal. It is a call of the tool `bash`: durable,
/// subject to policy, and repeated safely with an `Idempotency-Key`.
#[utoipa::path(post, path = "/v1/sessions/{session_id}/shells", tag = "shells", security(("bearer" = ["calls:write"])),
    params(
        ("session_id" = String, Path, description = "The session."),
        ("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 255, pattern = "^[!-~]+$", description = "The same key and body give the same shell."),
    ),
    request_body = CreateShell,
    responses(
        (status = 201, description = "The shell.", body = ShellView, headers(("Location" = String, description = "The shell."))),
        (status = 202, description = "It has not started yet: the call that will start it.", body = CallView,
            headers(("Location" = String, description = "The call.")))))]
pub(crate) async fn create_shell(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(session_id): Id<SessionId>,
    key: IdempotencyKey,
    body: Draft<CreateShell>,
) -> Result<Response, Problem> {
    let also = [("session_id", session_id.to_string())];
    let idempotency = key.with("POST /v1/sessions/{session_id}/shells", &body.raw, &also);
    let request = (body.input, body.checks);
    let (made, replay) = shells::create(&state, &context, session_id, request, idempotency).await?;
    let (mut response, location) = match made {
        Made::Shell(shell) => {
            let location = format!("/v1/sessions/{session_id}/shells/{}", shell.id);
            ((StatusCode::CREATED, axum::Json(ShellView::from(*shell))).into_response(), location)
        }
        Made::Pending(call, place) => {
            let location = format!("/v1/calls/{}", call.id);
            ((StatusCode::ACCEPTED, axum::Json(CallView::new(*call, place))).into_response(), location)
        }
    };
    let headers = response.headers_mut();
    headers.extend(HeaderValue::try_from(location).ok().map(|location| (LOCATION, location)));
    if replay == Replay::Again {
        headers.insert(REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

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

/// End a shell
///
/// The command and everything that it started get SIGTERM and, after the grace, SIGKILL. Its log stays. One that has ended already is
/// left as it is.
#[utoipa::path(delete, path = "/v1/sessions/{session_id}/shells/{shell_id}", tag = "shells", security(("bearer" = ["calls:write"])),
    params(
        ("session_id" = String, Path, description = "The session."),
        ("shell_id" = String, Path, description = "The shell."),
        ("grace_ms" = Option<u64>, Query, minimum = 0, maximum = 30000, description = "Time between the two signals; 200 when left out."),
    ),
    responses((status = 200, description = "The shell, ended.", body = ShellView)))]
pub(crate) async fn delete_shell(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Ids(session_id, id): Ids<SessionId, ShellId>,
    mut params: Params,
) -> Result<impl IntoResponse, Problem> {
    const MOST_MS: u64 = 30_000;
    let expected = "must be a number from 0 to 30000";
    let grace_ms = params.parse::<u64>("grace_ms", expected)?.unwrap_or(domain::limits::KILL_GRACE_MS);
    params.finish()?;
    if grace_ms > MOST_MS {
        return Err(Problem::query("grace_ms", expected));
    }
    let grace = Duration::from_millis(grace_ms);
    Ok(axum::Json(ShellView::from(shells::end(&state, &context, session_id, id, grace).await?)))
}
