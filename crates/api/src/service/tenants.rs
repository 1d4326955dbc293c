//! Tenants, for operators.

use domain::{Code, OperatorContext, TenantId};
use store::{Listed, NewTenant, Page, StoreError, Tenant, TenantRetention};

use crate::problem::{FieldCode, Problem};
use crate::state::ApiState;
use crate::wire::tenants::{CreateTenant, PatchTenant};

/// Creates a tenant.
pub(crate) async fn create(
    state: &ApiState,
    operator: &OperatorContext,
    request: CreateTenant,
) -> Result<Tenant, Problem> {
    let new = NewTenant { name: request.name, policy: request.policy, metadata: request.metadata };
    state.store.create_tenant(operator, new).await.map_err(|error| match error {
        StoreError::Conflict { .. } => {
            let message = "is the name of another tenant";
            Problem::new(Code::Conflict, "Another tenant has this name.").field(
                "/name",
                FieldCode::Invalid,
                message,
            )
        }
        other => other.into(),
    })
}

/// One tenant.
pub(crate) async fn get(
    state: &ApiState,
    operator: &OperatorContext,
    id: TenantId,
) -> Result<Tenant, Problem> {
    Ok(state.store.get_tenant(operator, id).await?)
}

/// All tenants, newest first.
pub(crate) async fn list(
    state: &ApiState,
    operator: &OperatorContext,
    page: Page,
) -> Result<Listed<Tenant>, Problem> {
    Ok(state.store.list_tenants(operator, page).await?)
}

/// Changes status and policy.
pub(crate) async fn update(
    state: &ApiState,
    operator: &OperatorContext,
    id: TenantId,
    patch: PatchTenant,
) -> Result<Tenant, Problem> {
    let mut tenant = state.store.get_tenant(operator, id).await?;
    if let Some(policy) = &patch.policy {
        tenant = state.store.set_tenant_policy(operator, id, policy).await?;
    }
    if let Some(days) = patch.retention {
        let retention = TenantRetention {
            calls_days: days.calls_days,
            events_days: days.events_days,
            output_days: days.output_days,
        };
        state.store.set_tenant_retention(operator, id, retention).await?;
        tenant.retention = retention;
    }
    if let Some(status) = patch.status {
        tenant = state.store.set_tenant_status(operator, id, status).await?;
    }
    Ok(tenant)
}
