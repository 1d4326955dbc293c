//! Contexts over HTTP.

use axum::extract::State;
use axum::http::header::LOCATION;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use domain::{Code, ContextId, SessionId};
use store::ContextWish;

use super::access::Tenant;
use super::extract::{Draft, Id, IdempotencyKey, Ids, Input, Json, Params};
use super::sessions::{Nothing, REPLAYED};
use crate::json::Checks;
use crate::problem::Problem;
use crate::service::contexts;
use crate::service::sessions::Replay;
use crate::state::ApiState;
use crate::wire::contexts::{ContextView, CreateContext, DeletedContext};
use crate::wire::lists::List;

impl Input for CreateContext {
    const OPTIONAL: bool = true;

    fn check(&self, checks: &mut Checks) {
        self.check(checks);
    }
}

/// Create a context
///
/// An interpreter whose variables last from call to call. It starts with its first call; `python_execute` or `node_execute` with a
/// `context` that is not there makes one too.
#[utoipa::path(post, path = "/v1/sessions/{session_id}/contexts", tag = "contexts", security(("bearer" = ["calls:write"])),
    params(("session_id" = String, Path, description = "The session."),
        ("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 255, pattern = "^[!-~]+$", description = "The same key and body give the same context.")),
    request_body(content = CreateContext, description = "What the context is to be."),
    responses((status = 201, description = "The context.", body = ContextView,
        headers(("Location" = String, description = "The context."),
            ("Idempotent-Replayed" = String, description = "`true` when this context had been created by the same key before.")))))]
pub(crate) async fn create_context(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Id(session_id): Id<SessionId>,
    key: IdempotencyKey,
    body: Draft<CreateContext>,
) -> Result<Response, Problem> {
    let path = [("session_id", session_id.to_string())];
    let idempotency = key.with("POST /v1/sessions/{session_id}/contexts", &body.raw, &path);
    let request = (body.input, body.checks);
    let (context, replay) = contexts::create(&state, &tenant, session_id, request, idempotency).await?;
    let location = [(LOCATION, format!("/v1/sessions/{session_id}/contexts/{}", context.id))];
    let view = axum::Json(ContextView::from(context));
    let mut response = (StatusCode::CREATED, location, view).into_response();
    if replay == Replay::Again {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// List contexts
///
/// Newest first.
#[utoipa::path(get, path = "/v1/sessions/{session_id}/contexts", tag = "contexts", security(("bearer" = ["calls:read"])),
    params(("session_id" = String, Path, description = "The session.")),
    responses((status = 200, description = "The contexts.", body = List<ContextView>)))]
pub(crate) async fn list_contexts(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Id(session_id): Id<SessionId>,
    params: Params,
) -> Result<impl IntoResponse, Problem> {
    params.finish()?;
    let contexts = contexts::list(&state, &tenant, session_id).await?;
    Ok(axum::Json(List::new(contexts.into_iter().map(ContextView::from).collect(), None)))
}

/// Get a context
#[utoipa::path(get, path = "/v1/sessions/{session_id}/contexts/{context_id}", tag = "contexts", security(("bearer" = ["calls:read"])),
    params(
        ("session_id" = String, Path, description = "The session."),
        ("context_id" = String, Path, description = "The context."),
    ),
    responses((status = 200, description = "The context.", body = ContextView)))]
pub(crate) async fn get_context(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Ids(session_id, id): Ids<SessionId, ContextId>,
) -> Result<impl IntoResponse, Problem> {
    Ok(axum::Json(ContextView::from(contexts::get(&state, &tenant, session_id, id).await?)))
}

/// Delete a context
///
/// Its interpreter is ended with everything that it started; a call that runs in it fails with `interpreter_died`.
#[utoipa::path(delete, path = "/v1/sessions/{session_id}/contexts/{context_id}", tag = "contexts", security(("bearer" = ["calls:write"])),
    params(
        ("session_id" = String, Path, description = "The session."),
        ("context_id" = String, Path, description = "The context."),
    ),
    responses((status = 200, description = "It is gone.", body = DeletedContext)))]
pub(crate) async fn delete_context(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Ids(session_id, id): Ids<SessionId, ContextId>,
) -> Result<impl IntoResponse, Problem> {
    contexts::change(&state, &tenant, session_id, id, ContextWish::Delete).await?;
    Ok(axum::Json(DeletedContext { id, object: "context", deleted: true }))
}

/// Interrupt a context
///
/// The code that runs in it is interrupted (KeyboardInterrupt in Python); without any, nothing happens.
#[utoipa::path(post, path = "/v1/sessions/{session_id}/contexts/{context_id}/interrupt", tag = "contexts", security(("bearer" = ["calls:write"])),
    params(
        ("session_id" = String, Path, description = "The session."),
        ("context_id" = String, Path, description = "The context."),
    ),
    request_body(content = Nothing, description = "Nothing, or an empty object."),
    responses((status = 200, description = "The context.", body = ContextView)))]
pub(crate) async fn interrupt_context(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Ids(session_id, id): Ids<SessionId, ContextId>,
    _nothing: Json<Nothing>,
) -> Result<impl IntoResponse, Problem> {
    changed(contexts::change(&state, &tenant, session_id, id, ContextWish::Interrupt).await?)
}

/// Restart a context
///
/// Its interpreter is ended; the next call starts a new one. A call that runs in it fails with `interpreter_died`.
#[utoipa::path(post, path = "/v1/sessions/{session_id}/contexts/{context_id}/restart", tag = "contexts", security(("bearer" = ["calls:write"])),
    params(
        ("session_id" = String, Path, description = "The session."),
        ("context_id" = String, Path, description = "The context."),
    ),
    request_body(content = Nothing, description = "Nothing, or an empty object."),
    responses((status = 200, description = "The context.", body = ContextView)))]
pub(crate) async fn restart_context(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Ids(session_id, id): Ids<SessionId, ContextId>,
    _nothing: Json<Nothing>,
) -> Result<impl IntoResponse, Problem> {
    changed(contexts::change(&state, &tenant, session_id, id, ContextWish::Restart).await?)
}

fn changed(context: Option<domain::CodeContext>) -> Result<axum::Json<ContextView>, Problem> {
    let gone = || Problem::new(Code::NotFound, "The context was deleted meanwhile.");
    context.map(|context| axum::Json(ContextView::from(context))).ok_or_else(gone)
}
