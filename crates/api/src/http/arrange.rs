//! Files of a session moved, and directories made, over HTTP.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use domain::SessionId;
use serde_json::json;

use super::access::Tenant;
use super::extract::{Draft, Id, IdempotencyKey, Input};
use crate::json::Checks;
use crate::problem::{FieldCode, Problem};
use crate::service::files::{Files, Verb, path};
use crate::state::ApiState;
use crate::wire::files::{MadeDirectory, MakeDirectory, MoveFile, MovedFile};

impl Input for MoveFile {
    fn check(&self, checks: &mut Checks) {
        not_empty(checks, "/path", &self.path);
        not_empty(checks, "/to", &self.to);
    }
}

impl Input for MakeDirectory {
    fn check(&self, checks: &mut Checks) {
        not_empty(checks, "/path", &self.path);
    }
}

fn not_empty(checks: &mut Checks, pointer: &str, path: &str) {
    if path.is_empty() {
        checks.add(pointer, FieldCode::Invalid, "must not be empty");
    }
}

/// Move a file or directory
///
/// At once, and within `/workspace` or within `/tmp`. Nothing is replaced unless `replace` says so.
#[utoipa::path(post, path = "/v1/sessions/{session_id}/files/move", tag = "files", security(("bearer" = ["files:write"])),
    params(("session_id" = String, Path, description = "The session.")),
    request_body = MoveFile,
    responses((status = 200, description = "It has its new path.", body = MovedFile)))]
pub(crate) async fn move_file(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(session_id): Id<SessionId>,
    key: IdempotencyKey,
    body: Draft<MoveFile>,
) -> Result<impl IntoResponse, Problem> {
    key.refuse("what was moved is not there to be moved again")?;
    body.checks.finish()?;
    let request = body.input;
    let mut target = None;
    let files = Files::open_with(&state, &context, session_id, Verb::Move, || {
        let to = path(&request.to)?;
        let details = json!({"to": to.absolute()});
        target = Some(to);
        Ok((path(&request.path)?, details))
    })
    .await?;
    let to = target.ok_or_else(|| Problem::internal("move a file", &"no target"))?;
    let moved = MovedFile { object: "moved_file", from: files.file().absolute(), path: to.absolute() };
    files.rename(to, request.replace).await?;
    Ok(axum::Json(moved))
}

/// Make a directory
///
/// With those above it. It may be there already.
#[utoipa::path(post, path = "/v1/sessions/{session_id}/files/mkdir", tag = "files", security(("bearer" = ["files:write"])),
    params(("session_id" = String, Path, description = "The session.")),
    request_body = MakeDirectory,
    responses(
        (status = 200, description = "It was there.", body = MadeDirectory),
        (status = 201, description = "It was made.", body = MadeDirectory)))]
pub(crate) async fn make_directory(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(session_id): Id<SessionId>,
    key: IdempotencyKey,
    body: Draft<MakeDirectory>,
) -> Result<impl IntoResponse, Problem> {
    key.refuse("asking again makes nothing twice")?;
    body.checks.finish()?;
    let request = body.input;
    let files = Files::open(&state, &context, session_id, Verb::Write, || path(&request.path)).await?;
    let created = files.make_directory().await?.created;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, axum::Json(MadeDirectory { object: "directory", path: files.file().absolute(), created })))
}
