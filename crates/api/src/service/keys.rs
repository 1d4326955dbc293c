//! API keys of tenants, for operators.

use domain::{Code, KeyId, OperatorContext, Scope, TenantId};
use store::{ApiKey, Listed, NewKey, Page, PlainKey};

use crate::problem::{FieldCode, Problem};
use crate::state::ApiState;
use crate::wire::keys::CreateKey;

/// Makes a key; its text is shown this once.
pub(crate) async fn create(
    state: &ApiState,
    operator: &OperatorContext,
    tenant_id: TenantId,
    request: CreateKey,
) -> Result<(ApiKey, PlainKey), Problem> {
    if request.expires_at.is_some_and(|expires_at| expires_at <= state.store.clock().now()) {
        return Err(Problem::new(Code::InvalidArguments, "`/expires_at` must be in the future.").field(
            "/expires_at",
            FieldCode::Invalid,
            "must be in the future",
        ));
    }
    let new = NewKey {
        name: request.name,
        scopes: request.scopes.unwrap_or_else(Scope::tenant_default),
        policy: request.policy,
        expires_at: request.expires_at,
    };
    Ok(state.store.create_key(operator, tenant_id, new).await?)
}

/// Keys of a tenant, newest first.
pub(crate) async fn list(
    state: &ApiState,
    operator: &OperatorContext,
    tenant_id: TenantId,
    page: Page,
) -> Result<Listed<ApiKey>, Problem> {
    state.store.get_tenant(operator, tenant_id).await?;
    Ok(state.store.list_keys(operator, Some(tenant_id), page).await?)
}

/// Revokes a key of a tenant.
pub(crate) async fn revoke(
    state: &ApiState,
    operator: &OperatorContext,
    tenant_id: TenantId,
    id: KeyId,
) -> Result<ApiKey, Problem> {
    let after = uuid::Uuid::from_u128(id.uuid().as_u128().saturating_add(1));
    let page = Page { limit: 1, after: Some(after) };
    let listed = state.store.list_keys(operator, Some(tenant_id), page).await?;
    if !listed.items.iter().any(|key| key.id == id) {
        return Err(Problem::not_found());
    }
    Ok(state.store.revoke_key(operator, id).await?)
}
