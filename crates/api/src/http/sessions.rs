//! Sessions over HTTP.

use axum::extract::State;
use axum::http::header::LOCATION;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use domain::{Session, SessionId};
use serde::Deserialize;
use store::SessionFilter;
use utoipa::ToSchema;

use super::access::Tenant;
use super::extract::{Draft, Id, IdempotencyKey, Input, Json, Params};
use crate::json::Checks;
use crate::problem::Problem;
use crate::service::sessions::{self, Replay};
use crate::state::ApiState;
use crate::wire::lists::List;
use crate::wire::sessions::{CreateSession, PatchSession, SessionStatus, SessionView};

/// Says that an answer was given before.
pub(crate) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

impl Input for CreateSession {
    const OPTIONAL: bool = true;

    fn check(&self, checks: &mut Checks) {
        self.check("", checks);
    }
}

impl Input for PatchSession {
    fn check(&self, checks: &mut Checks) {
        self.check(checks);
    }
}

/// Nothing: an empty body or `{}`.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

impl Input for Nothing {
    const OPTIONAL: bool = true;
}

/// Create a session
///
/// The session starts in the background: calls are accepted at once and wait for it.
#[utoipa::path(post, path = "/v1/sessions", tag = "sessions", security(("bearer" = ["sessions:write"])),
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 255, pattern = "^[!-~]+$", description = "The same key and body give the same session.")),
    request_body(content = CreateSession, description = "What the session is to be."),
    responses((status = 201, description = "The session.", body = SessionView,
        headers(("Location" = String, description = "The session."),
            ("Idempotent-Replayed" = String, description = "`true` when this session had been created by the same key before.")))))]
pub(crate) async fn create_session(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    key: IdempotencyKey,
    body: Draft<CreateSession>,
) -> Result<Response, Problem> {
    let idempotency = key.with("POST /v1/sessions", &body.raw, &[]);
    let (session, replay) =
        sessions::create(&state, &context, (body.input, body.checks), idempotency).await?;
    let location = [(LOCATION, format!("/v1/sessions/{}", session.id))];
    let mut response = (StatusCode::CREATED, location, view(session)).into_response();
    if replay == Replay::Again {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// List sessions
///
/// Newest first. Filter by status and by labels: `?status=running&metadata.job=42`.
#[utoipa::path(get, path = "/v1/sessions", tag = "sessions", security(("bearer" = ["sessions:read"])),
    params(
        ("status" = Option<Vec<SessionStatus>>, Query, description = "`starting`, `running`, `ended`; several with commas."),
        ("metadata.{key}" = Option<String>, Query, description = "Only sessions with this label; may be given for several labels."),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 100, description = "Items of the page, 1 to 100; 20 when left out."),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before, with the same filter."),
    ),
    responses((status = 200, description = "A page of sessions.", body = List<SessionView>)))]
pub(crate) async fn list_sessions(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    mut params: Params,
) -> Result<impl IntoResponse, Problem> {
    let status = params.parse_all("status", "must be starting, running or ended", status)?;
    let metadata = params.take_prefixed("metadata.").into_iter().collect();
    let filter = SessionFilter { status, metadata };
    let (list, owner) = (format!("sessions {filter:?}"), Some(context.tenant_id()));
    let page = params.page(&state, &list, owner)?;
    params.finish()?;
    let listed = sessions::list(&state, &context, &filter, page).await?;
    let next = listed.next.map(|after| state.signer.cursor(&list, owner, after));
    Ok(axum::Json(List::new(listed.items.into_iter().map(SessionView::from).collect(), next)))
}

/// Get a session
#[utoipa::path(get, path = "/v1/sessions/{session_id}", tag = "sessions", security(("bearer" = ["sessions:read"])),
    params(("session_id" = String, Path, description = "The session.")),
    responses((status = 200, description = "The session.", body = SessionView)))]
pub(crate) async fn get_session(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(id): Id<SessionId>,
) -> Result<impl IntoResponse, Problem> {
    Ok(view(sessions::get(&state, &context, id).await?))
}

/// Change a session
///
/// Extend its life, replace its labels, narrow its policy.
#[utoipa::path(patch, path = "/v1/sessions/{session_id}", tag = "sessions", security(("bearer" = ["sessions:write"])),
    params(("session_id" = String, Path, description = "The session.")),
    request_body = PatchSession,
    responses((status = 200, description = "The session as it is now.", body = SessionView)))]
pub(crate) async fn patch_session(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(id): Id<SessionId>,
    body: Draft<PatchSession>,
) -> Result<impl IntoResponse, Problem> {
    Ok(view(sessions::update(&state, &context, id, (body.input, body.checks)).await?))
}

/// End a session
///
/// What runs in it is ended, its files go away. Ending it twice is no error.
#[utoipa::path(delete, path = "/v1/sessions/{session_id}", tag = "sessions", security(("bearer" = ["sessions:write"])),
    params(("session_id" = String, Path, description = "The session.")),
    responses(
        (status = 200, description = "It has ended.", body = SessionView),
        (status = 202, description = "It is about to end.", body = SessionView)))]
pub(crate) async fn delete_session(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(id): Id<SessionId>,
) -> Result<impl IntoResponse, Problem> {
    let session = sessions::end(&state, &context, id).await?;
    let over = session.status == domain::SessionStatus::Ended;
    Ok((if over { StatusCode::OK } else { StatusCode::ACCEPTED }, view(session)))
}

/// Reset a session
///
/// A fresh sandbox and an empty workspace under the same id. Calls that run end with the reason `session_reset`.
#[utoipa::path(post, path = "/v1/sessions/{session_id}/reset", tag = "sessions", security(("bearer" = ["sessions:write"])),
    params(("session_id" = String, Path, description = "The session.")),
    request_body(content = Nothing, description = "Nothing, or an empty object."),
    responses((status = 202, description = "It will be reset.", body = SessionView)))]
pub(crate) async fn reset_session(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(id): Id<SessionId>,
    _nothing: Json<Nothing>,
) -> Result<impl IntoResponse, Problem> {
    let session = sessions::reset(&state, &context, id).await?;
    Ok((StatusCode::ACCEPTED, view(session)))
}

fn view(session: Session) -> axum::Json<SessionView> {
    axum::Json(session.into())
}

fn status(text: &str) -> Option<domain::SessionStatus> {
    use domain::SessionStatus;
    [SessionStatus::Starting, SessionStatus::Running, SessionStatus::Ended]
        .into_iter()
        .find(|status| status.as_str() == text)
}
