//! Roles over HTTP: a tenant's own, and any tenant's for operators.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use domain::TenantId;
use store::{Keeper, Role};

use super::access::{Operator, Tenant};
use super::extract::{Id, Ids, Input, Json};
use crate::json::Checks;
use crate::problem::Problem;
use crate::service::roles;
use crate::state::ApiState;
use crate::wire::lists::List;
use crate::wire::roles::{PutRole, RoleView};

impl Input for PutRole {
    fn check(&self, checks: &mut Checks) {
        self.check(checks);
    }
}

impl From<Role> for RoleView {
    fn from(role: Role) -> Self {
        Self {
            object: "role",
            name: role.name,
            description: role.description,
            scopes: role.scopes,
            policy: role.policy,
            given: role.given,
            created_at: role.created_at.map(Into::into),
            updated_at: role.updated_at.map(Into::into),
        }
    }
}

fn page(roles: Vec<Role>) -> axum::Json<List<RoleView>> {
    axum::Json(List::new(roles.into_iter().map(RoleView::from).collect(), None))
}

/// List roles
///
/// The given ones, then the tenant's own by name, all on one page.
#[utoipa::path(get, path = "/v1/roles", tag = "access", security(("bearer" = ["keys:write"])),
    responses((status = 200, description = "All roles.", body = List<RoleView>)))]
pub(crate) async fn list_roles(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
) -> Result<impl IntoResponse, Problem> {
    Ok(page(roles::list(&state, Keeper::Tenant(&context)).await?))
}

/// Make or replace a role
///
/// Its scopes and policy must be within the caller's own. Keys that have it follow within seconds.
#[utoipa::path(put, path = "/v1/roles/{role}", tag = "access", security(("bearer" = ["keys:write"])),
    params(("role" = String, Path, description = "Its name: 1 to 50 characters of a-z, 0-9, - and _, a letter first.")),
    request_body = PutRole,
    responses((status = 200, description = "The role as it is now.", body = RoleView)))]
pub(crate) async fn put_role(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(name): Id<String>,
    body: Json<PutRole>,
) -> Result<impl IntoResponse, Problem> {
    let role = roles::put(&state, Keeper::Tenant(&context), &name, body.input).await?;
    Ok(axum::Json(RoleView::from(role)))
}

/// Delete a role
///
/// Not while valid keys have it.
#[utoipa::path(delete, path = "/v1/roles/{role}", tag = "access", security(("bearer" = ["keys:write"])),
    params(("role" = String, Path, description = "The role.")),
    responses((status = 204, description = "It is gone.")))]
pub(crate) async fn delete_role(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(name): Id<String>,
) -> Result<impl IntoResponse, Problem> {
    roles::delete(&state, Keeper::Tenant(&context), &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List a tenant's roles
///
/// The given ones, then its own by name, all on one page.
#[utoipa::path(get, path = "/v1/admin/tenants/{tenant_id}/roles", tag = "admin", security(("bearer" = ["operator"])),
    params(("tenant_id" = String, Path, description = "The tenant.")),
    responses((status = 200, description = "All roles.", body = List<RoleView>)))]
pub(crate) async fn list_tenant_roles(
    State(state): State<ApiState>,
    Operator(operator): Operator,
    Id(tenant_id): Id<TenantId>,
) -> Result<impl IntoResponse, Problem> {
    Ok(page(roles::list(&state, Keeper::Operator(&operator, tenant_id)).await?))
}

/// Make or replace a tenant's role
///
/// Keys that have it follow within seconds.
#[utoipa::path(put, path = "/v1/admin/tenants/{tenant_id}/roles/{role}", tag = "admin", security(("bearer" = ["operator"])),
    params(
        ("tenant_id" = String, Path, description = "The tenant."),
        ("role" = String, Path, description = "Its name: 1 to 50 characters of a-z, 0-9, - and _, a letter first."),
    ),
    request_body = PutRole,
    responses((status = 200, description = "The role as it is now.", body = RoleView)))]
pub(crate) async fn put_tenant_role(
    State(state): State<ApiState>,
    Operator(operator): Operator,
    Ids(tenant_id, name): Ids<TenantId, String>,
    body: Json<PutRole>,
) -> Result<impl IntoResponse, Problem> {
    let role = roles::put(&state, Keeper::Operator(&operator, tenant_id), &name, body.input).await?;
    Ok(axum::Json(RoleView::from(role)))
}

/// Delete a tenant's role
///
/// Not while valid keys have it.
#[utoipa::path(delete, path = "/v1/admin/tenants/{tenant_id}/roles/{role}", tag = "admin", security(("bearer" = ["operator"])),
    params(
        ("tenant_id" = String, Path, description = "The tenant."),
        ("role" = String, Path, description = "The role."),
    ),
    responses((status = 204, description = "It is gone.")))]
pub(crate) async fn delete_tenant_role(
    State(state): State<ApiState>,
    Operator(operator): Operator,
    Ids(tenant_id, name): Ids<TenantId, String>,
) -> Result<impl IntoResponse, Problem> {
    roles::delete(&state, Keeper::Operator(&operator, tenant_id), &name).await?;
    Ok(StatusCode::NO_CONTENT)
}
