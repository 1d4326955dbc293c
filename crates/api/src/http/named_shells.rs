//! Named shells over HTTP.

use axum::extract::State;
use axum::response::IntoResponse;
use domain::{SessionId, ShellName};

use super::access::Tenant;
use super::extract::{Id, Ids, Params};
use crate::problem::Problem;
use crate::service::named_shells;
use crate::state::ApiState;
use crate::wire::lists::List;
use crate::wire::named_shells::{DeletedNamedShell, NamedShellView};

/// List named shells
///
/// By name. A `bash` call with a `shell` that is not there makes one.
#[utoipa::path(get, path = "/v1/sessions/{session_id}/named_shells", tag = "shells", security(("bearer" = ["calls:read"])),
    params(("session_id" = String, Path, description = "The session.")),
    responses((status = 200, description = "The named shells.", body = List<NamedShellView>)))]
pub(crate) async fn list_named_shells(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Id(session_id): Id<SessionId>,
    params: Params,
) -> Result<impl IntoResponse, Problem> {
    params.finish()?;
    let shells = named_shells::list(&state, &tenant, session_id).await?;
    Ok(axum::Json(List::new(shells.into_iter().map(NamedShellView::from).collect(), None)))
}

/// Get a named shell
#[utoipa::path(get, path = "/v1/sessions/{session_id}/named_shells/{shell_name}", tag = "shells", security(("bearer" = ["calls:read"])),
    params(
        ("session_id" = String, Path, description = "The session."),
        ("shell_name" = String, Path, description = "The name."),
    ),
    responses((status = 200, description = "The named shell.", body = NamedShellView)))]
pub(crate) async fn get_named_shell(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Ids(session_id, name): Ids<SessionId, ShellName>,
) -> Result<impl IntoResponse, Problem> {
    Ok(axum::Json(NamedShellView::from(named_shells::get(&state, &tenant, session_id, &name).await?)))
}

/// Delete a named shell
///
/// The next command of this name begins anew. One that runs goes on, and leaves nothing; cancel its call to end it.
#[utoipa::path(delete, path = "/v1/sessions/{session_id}/named_shells/{shell_name}", tag = "shells", security(("bearer" = ["calls:write"])),
    params(
        ("session_id" = String, Path, description = "The session."),
        ("shell_name" = String, Path, description = "The name."),
    ),
    responses((status = 200, description = "It is forgotten.", body = DeletedNamedShell)))]
pub(crate) async fn delete_named_shell(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    Ids(session_id, name): Ids<SessionId, ShellName>,
) -> Result<impl IntoResponse, Problem> {
    named_shells::delete(&state, &tenant, session_id, &name).await?;
    Ok(axum::Json(DeletedNamedShell { object: "named_shell", name: name.to_string(), deleted: true }))
}
