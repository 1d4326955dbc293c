//! A shell's output over HTTP: a stream, a part as JSON, or bytes by range.

use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use domain::{SessionId, ShellId, ShellStatus, StreamName};

use super::accept::{Form, form};
use super::access::Tenant;
use super::calls::not_acceptable;
use super::events::cursor;
use super::extract::{Ids, Params};
use super::output::{Reader, wants_bytes};
use crate::problem::Problem;
use crate::service::access::Credential;
use crate::service::shells;
use crate::sse::{self, Asked, ShellSource, Source};
use crate::state::ApiState;
use crate::wire::shells::ShellOutput;

/// Read a shell's output
///
/// With `Accept: text/event-stream` a stream of `shell.output` and `shell.ended` events whose `id` is the offset to read on from (and
/// that of `shell.ended` says so by an ending `-end`); with `Range` or `Accept: application/octet-stream` bytes of one stream;
/// otherwise a part of the log as JSON. Reading takes nothing away.
#[utoipa::path(get, path = "/v1/sessions/{session_id}/shells/{shell_id}/output", tag = "shells",
    security(("bearer" = ["calls:read"])),
    params(
        ("session_id" = String, Path, description = "The session."),
        ("shell_id" = String, Path, description = "The shell."),
        ("since_offset" = Option<u64>, Query, description = "Read from this offset of the log on."),
        ("max_bytes" = Option<u64>, Query, minimum = 1, maximum = 1048576, description = "Bytes of the part, 1 to 1,048,576; 65,536 when left out (JSON only)."),
        ("stream" = Option<crate::wire::events::StreamName>, Query, description = "`stdout` (when left out) or `stderr` (bytes only)."),
        ("Last-Event-ID" = Option<String>, Header, description = "Like `since_offset`, and wins over it."),
        ("Range" = Option<String>, Header, description = "One range of bytes of one stream."),
    ),
    responses(
        (status = 200, description = "The output.", content((ShellOutput = "application/json"), (String = "text/event-stream"), (String = "application/octet-stream"))),
        (status = 206, description = "The range.", body = String, content_type = "application/octet-stream",
            headers(("Content-Range" = String, description = "Which bytes of how many."))),
        (status = 204, description = "The shell has ended and the client has seen that: do not connect again.")))]
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
    let cursor = cursor(&headers, &mut params, "since_offset", shells::parse_cursor)?;
    let expected = "must be a number from 1 to 1048576";
    let max_bytes = params.parse::<u64>("max_bytes", expected)?.unwrap_or(64 * 1024);
    let stream = params.take("stream")?;
    params.finish()?;
    if wants_bytes(&headers) {
        let stream = match stream.as_deref() {
            None | Some("stdout") => StreamName::Stdout,
            Some("stderr") => StreamName::Stderr,
            Some(_) => return Err(Problem::query("stream", "must be stdout or stderr")),
        };
        shells::get(&state, &context, session_id, id).await?;
        return Reader::of_shell(state, context, id, stream).answer(&headers).await;
    }
    if stream.is_some() {
        return Err(Problem::query("stream", "belongs to bytes: ask for application/octet-stream"));
    }
    match form(&headers) {
        Form::Neither => Err(not_acceptable()),
        _ if !(1..=MOST).contains(&max_bytes) => Err(Problem::query("max_bytes", expected)),
        Form::Json => {
            let output = shells::output(&state, &context, session_id, id, cursor.offset, max_bytes).await?;
            Ok(axum::Json(output).into_response())
        }
        Form::Events => {
            let watch = state.store.bus().subscribe_shell(id);
            let shell = shells::get(&state, &context, session_id, id).await?;
            shells::check_offset(&shell, cursor.offset)?;
            if cursor.saw_the_end && shell.status == ShellStatus::Exited {
                return Ok(StatusCode::NO_CONTENT.into_response());
            }
            let offset = cursor.offset;
            let mut source = ShellSource::new(state.clone(), context.clone(), session_id, id, offset, watch);
            let first = source.read().await?;
            sse::open(&state, Asked { context, credential, method }, source, first, offset)
        }
    }
}
