//! API keys: made, replaced and revoked, by operators for any tenant and by tenants for themselves.

use chrono::{DateTime, TimeDelta, Utc};
use domain::{KeyId, OperatorContext, Scope, TenantContext, TenantId, limits};
use store::{ApiKey, Keeper, Listed, NewKey, Page, PlainKey, Role, Rotation};

use super::{grants, roles};
use crate::json::Checks;
use crate::problem::{FieldCode, Problem};
use crate::state::ApiState;
use crate::wire::keys::{CreateKey, RotateKey};

/// Makes a key; its text is shown this once.
pub(crate) async fn create(
    state: &ApiState,
    keeper: Keeper<'_>,
    request: CreateKey,
) -> Result<(ApiKey, PlainKey), Problem> {
    let mut checks = Checks::default();
    in_the_future(state, request.expires_at, &mut checks);
    let role = match &request.role {
        Some(name) => roles::named(state, keeper, name, &mut checks).await?,
        None => None,
    };
    let scopes = match (request.scopes, &request.role, keeper) {
        (Some(scopes), _, _) => scopes,
        (None, Some(_), _) => Vec::new(),
        (None, None, Keeper::Operator(..)) => Scope::tenant_default(),
        (None, None, Keeper::Tenant(context)) => context.scopes().to_vec(),
    };
    if let Keeper::Tenant(context) = keeper {
        let granted = granted(&scopes, role.as_ref());
        let (at, policy) = (if role.is_some() { "/role" } else { "/scopes" }, request.policy.as_ref());
        grants::within(context, at, &granted, policy, request.role.as_deref(), &mut checks);
    }
    let expires_at = within_the_maker_s(keeper, request.expires_at, &mut checks);
    checks.finish()?;
    let new = NewKey { name: request.name, scopes, role: request.role, policy: request.policy, expires_at };
    Ok(match keeper {
        Keeper::Operator(operator, tenant_id) => state.store.create_key(operator, tenant_id, new).await?,
        Keeper::Tenant(context) => state.store.create_own_key(context, new).await?,
    })
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

/// Keys of the caller's tenant, newest first.
pub(crate) async fn list_own(
    state: &ApiState,
    context: &TenantContext,
    page: Page,
) -> Result<Listed<ApiKey>, Problem> {
    Ok(state.store.list_own_keys(context, page).await?)
}

/// Makes a key that takes another's place. Both are valid for a while.
pub(crate) async fn rotate(
    state: &ApiState,
    keeper: Keeper<'_>,
    id: KeyId,
    request: RotateKey,
) -> Result<(ApiKey, PlainKey), Problem> {
    let mut checks = Checks::default();
    in_the_future(state, request.expires_at, &mut checks);
    if let Keeper::Tenant(context) = keeper {
        // The new key's text goes to whoever asks, so it must not be more than they are.
        let old = state.store.get_key(keeper, id).await?;
        let role = match &old.role {
            Some(name) => roles::named(state, keeper, name, &mut checks).await?,
            None => None,
        };
        let scopes = granted(&old.scopes, role.as_ref());
        grants::within(context, "", &scopes, old.policy.as_ref(), old.role.as_deref(), &mut checks);
        within_the_maker_s(keeper, request.expires_at, &mut checks);
    }
    checks.finish()?;
    let overlap = request.overlap_s.unwrap_or(limits::KEY_OVERLAP_S_DEFAULT);
    let rotation = Rotation {
        old_until: state.store.clock().now() + TimeDelta::seconds(i64::from(overlap)),
        expires_at: request.expires_at,
        latest: own_end(keeper),
    };
    Ok(state.store.rotate_key(keeper, id, rotation).await?)
}

/// Revokes a key of a tenant.
pub(crate) async fn revoke(state: &ApiState, keeper: Keeper<'_>, id: KeyId) -> Result<ApiKey, Problem> {
    state.store.get_key(keeper, id).await?;
    Ok(match keeper {
        Keeper::Operator(operator, _) => state.store.revoke_key(operator, id).await?,
        Keeper::Tenant(context) => state.store.revoke_own_key(context, id).await?,
    })
}

/// What a key with these scopes and this role may do.
fn granted(scopes: &[Scope], role: Option<&Role>) -> Vec<Scope> {
    match role {
        None => scopes.to_vec(),
        Some(role) if scopes.is_empty() => role.scopes.clone(),
        Some(role) => role.scopes.iter().copied().filter(|scope| scopes.contains(scope)).collect(),
    }
}

/// When the credential that asks stops holding by itself.
fn own_end(keeper: Keeper<'_>) -> Option<DateTime<Utc>> {
    match keeper {
        Keeper::Operator(..) => None,
        Keeper::Tenant(context) => context.ends_at(),
    }
}

/// No key outlives the credential that made it: otherwise whoever gets hold of a short-lived one could make it last.
fn within_the_maker_s(
    keeper: Keeper<'_>,
    asked: Option<DateTime<Utc>>,
    checks: &mut Checks,
) -> Option<DateTime<Utc>> {
    let end = own_end(keeper);
    if let (Some(asked), Some(end)) = (asked, end)
        && asked > end
    {
        let message = format!("must not be later than the end of the credential that asks, {end:?}");
        checks.add("/expires_at", FieldCode::LimitExceeded, message);
    }
    asked.or(end)
}

fn in_the_future(state: &ApiState, expires_at: Option<DateTime<Utc>>, checks: &mut Checks) {
    if expires_at.is_some_and(|expires_at| expires_at <= state.store.clock().now()) {
        checks.add("/expires_at", FieldCode::Invalid, "must be in the future");
    }
}
