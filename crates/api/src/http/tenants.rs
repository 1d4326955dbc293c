//! Tenants over HTTP, for operators.

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::IntoResponse;
use domain::TenantId;
use store::Tenant;

use super::access::Operator;
use super::extract::{Id, IdempotencyKey, Input, Json, Params};
use crate::json::Checks;
use crate::problem::Problem;
use crate::service::tenants;
use crate::state::ApiState;
use crate::wire::lists::List;
use crate::wire::tenants::{CreateTenant, PatchTenant, TenantRetention, TenantView};

impl Input for CreateTenant {
    fn check(&self, checks: &mut Checks) {
        self.check(checks);
    }
}

impl Input for PatchTenant {
    fn check(&self, checks: &mut Checks) {
        self.check(checks);
    }
}

impl From<Tenant> for TenantView {
    fn from(tenant: Tenant) -> Self {
        Self {
            id: tenant.id,
            object: "tenant",
            name: tenant.name,
            status: tenant.status,
            policy: tenant.policy,
            retention: TenantRetention {
                calls_days: tenant.retention.calls_days,
                events_days: tenant.retention.events_days,
                output_days: tenant.retention.output_days,
            },
            metadata: tenant.metadata,
            created_at: tenant.created_at.into(),
        }
    }
}

/// Create a tenant
#[utoipa::path(post, path = "/v1/admin/tenants", tag = "admin", security(("bearer" = ["operator"])),
    request_body = CreateTenant,
    responses((status = 201, description = "The tenant.", body = TenantView,
        headers(("Location" = String, description = "The tenant.")))))]
pub(crate) async fn create_tenant(
    State(state): State<ApiState>,
    Operator(operator): Operator,
    key: IdempotencyKey,
    body: Json<CreateTenant>,
) -> Result<impl IntoResponse, Problem> {
    key.refuse("a tenant's name is unique, so that trying again cannot make a second one")?;
    let tenant = tenants::create(&state, &operator, body.input).await?;
    let location = [(LOCATION, format!("/v1/admin/tenants/{}", tenant.id))];
    Ok((StatusCode::CREATED, location, axum::Json(TenantView::from(tenant))))
}

/// List tenants
///
/// Newest first.
#[utoipa::path(get, path = "/v1/admin/tenants", tag = "admin", security(("bearer" = ["operator"])),
    params(
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 100, description = "Items of the page, 1 to 100; 20 when left out."),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before."),
    ),
    responses((status = 200, description = "A page of tenants.", body = List<TenantView>)))]
pub(crate) async fn list_tenants(
    State(state): State<ApiState>,
    Operator(operator): Operator,
    mut params: Params,
) -> Result<impl IntoResponse, Problem> {
    let page = params.page(&state, "tenants", None)?;
    params.finish()?;
    let listed = tenants::list(&state, &operator, page).await?;
    let next = listed.next.map(|after| state.signer.cursor("tenants", None, after));
    Ok(axum::Json(List::new(listed.items.into_iter().map(TenantView::from).collect(), next)))
}

/// Get a tenant
#[utoipa::path(get, path = "/v1/admin/tenants/{tenant_id}", tag = "admin", security(("bearer" = ["operator"])),
    params(("tenant_id" = String, Path, description = "The tenant.")),
    responses((status = 200, description = "The tenant.", body = TenantView)))]
pub(crate) async fn get_tenant(
    State(state): State<ApiState>,
    Operator(operator): Operator,
    Id(id): Id<TenantId>,
) -> Result<impl IntoResponse, Problem> {
    Ok(axum::Json(TenantView::from(tenants::get(&state, &operator, id).await?)))
}

/// Change a tenant
///
/// Suspend or reactivate it, replace its policy or what it keeps. Suspending refuses its credentials, cancels its calls, ends its sessions and closes
/// its streams within five seconds; all hold within seconds.
#[utoipa::path(patch, path = "/v1/admin/tenants/{tenant_id}", tag = "admin", security(("bearer" = ["operator"])),
    params(("tenant_id" = String, Path, description = "The tenant.")),
    request_body = PatchTenant,
    responses((status = 200, description = "The tenant as it is now.", body = TenantView)))]
pub(crate) async fn patch_tenant(
    State(state): State<ApiState>,
    Operator(operator): Operator,
    Id(id): Id<TenantId>,
    body: Json<PatchTenant>,
) -> Result<impl IntoResponse, Problem> {
    Ok(axum::Json(TenantView::from(tenants::update(&state, &operator, id, body.input).await?)))
}
