//! What a shell is told over HTTP: input, signals, the size of its terminal.

use axum::extract::State;
use axum::response::IntoResponse;
use domain::exchange::ShellOrder;
use domain::{SessionId, ShellId};

use super::access::Tenant;
use super::extract::{Draft, Ids, Input};
use crate::json::Checks;
use crate::problem::{FieldCode, Problem};
use crate::service::shells;
use crate::state::ApiState;
use crate::wire::shells::{InputTaken, ResizeShell, SendInput, SendSignal, ShellView};

impl Input for SendInput {
    const OPTIONAL: bool = false;

    fn check(&self, checks: &mut Checks) {
        if self.text.is_some() && self.base64.is_some() {
            checks.add("/base64", FieldCode::Invalid, "is not given together with `text`");
        }
        if self.text.is_none() && self.base64.is_none() && !self.close {
            checks.add("/text", FieldCode::Required, "one of `text`, `base64` and `close` is needed");
        }
        if self.bytes().is_none() {
            checks.add("/base64", FieldCode::Invalid, "must be base64");
        }
    }
}

impl Input for SendSignal {
    fn check(&self, checks: &mut Checks) {
        if tools::signal::parse(&self.signal).is_none() {
            checks.add("/signal", FieldCode::Invalid, format!("must be one of {}", tools::signal::names()));
        }
    }
}

impl Input for ResizeShell {
    fn check(&self, checks: &mut Checks) {
        checks.range("/rows", Some(self.rows), 1..=1_000);
        checks.range("/cols", Some(self.cols), 1..=1_000);
    }
}

/// Write to a shell
///
/// Bytes for its stdin, in order. Answers when they are taken; `taken_bytes` is less than what was sent when the command does not read.
/// `close` ends its input (a terminal gets Ctrl-D).
#[utoipa::path(post, path = "/v1/sessions/{session_id}/shells/{shell_id}/input", tag = "shells", security(("bearer" = ["calls:write"])),
    params(
        ("session_id" = String, Path, description = "The session."),
        ("shell_id" = String, Path, description = "The shell."),
    ),
    request_body = SendInput,
    responses((status = 200, description = "What was taken.", body = InputTaken)))]
pub(crate) async fn send_input(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Ids(session_id, id): Ids<SessionId, ShellId>,
    body: Draft<SendInput>,
) -> Result<impl IntoResponse, Problem> {
    body.checks.finish()?;
    let bytes = body.input.bytes().unwrap_or_default();
    let close = body.input.close;
    let taken_bytes = shells::input(&state, &context, session_id, id, &bytes, close).await?;
    Ok(axum::Json(InputTaken { object: "input", shell_id: id, taken_bytes }))
}

/// Signal a shell
///
/// For its process group, or for the group in the foreground of its terminal.
#[utoipa::path(post, path = "/v1/sessions/{session_id}/shells/{shell_id}/signal", tag = "shells", security(("bearer" = ["calls:write"])),
    params(
        ("session_id" = String, Path, description = "The session."),
        ("shell_id" = String, Path, description = "The shell."),
    ),
    request_body = SendSignal,
    responses((status = 200, description = "The shell; the signal was sent.", body = ShellView)))]
pub(crate) async fn send_signal(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Ids(session_id, id): Ids<SessionId, ShellId>,
    body: Draft<SendSignal>,
) -> Result<impl IntoResponse, Problem> {
    body.checks.finish()?;
    let signal = tools::signal::parse(&body.input.signal).map_or(0, |(number, _)| number);
    let order = ShellOrder::Signal { signal };
    Ok(axum::Json(ShellView::from(shells::order(&state, &context, session_id, id, order).await?)))
}

/// Resize a shell's terminal
#[utoipa::path(post, path = "/v1/sessions/{session_id}/shells/{shell_id}/resize", tag = "shells", security(("bearer" = ["calls:write"])),
    params(
        ("session_id" = String, Path, description = "The session."),
        ("shell_id" = String, Path, description = "The shell."),
    ),
    request_body = ResizeShell,
    responses((status = 200, description = "The shell; its terminal has the new size.", body = ShellView)))]
pub(crate) async fn resize_shell(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Ids(session_id, id): Ids<SessionId, ShellId>,
    body: Draft<ResizeShell>,
) -> Result<impl IntoResponse, Problem> {
    body.checks.finish()?;
    let order = ShellOrder::Resize { rows: body.input.rows, cols: body.input.cols };
    Ok(axum::Json(ShellView::from(shells::order(&state, &context, session_id, id, order).await?)))
}
