//! API keys over HTTP: any tenant's for operators, and a tenant's own.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use domain::{KeyId, TenantId};
use store::{ApiKey, Keeper, PlainKey};

use super::access::{Operator, Tenant};
use super::extract::{Id, IdempotencyKey, Ids, Input, Json, Params};
use crate::json::Checks;
use crate::problem::Problem;
use crate::service::keys;
use crate::state::ApiState;
use crate::wire::keys::{CreateKey, CreatedKey, KeyView, RotateKey};
use crate::wire::lists::List;

impl Input for CreateKey {
    fn check(&self, checks: &mut Checks) {
        self.check(checks);
    }
}

impl Input for RotateKey {
    const OPTIONAL: bool = true;

    fn check(&self, checks: &mut Checks) {
        self.check(checks);
    }
}

const ONCE: &str =
    "a key's secret is shown once and cannot be shown again; revoke what an answer that was lost has made";

fn shown((about, plain): (ApiKey, PlainKey)) -> impl IntoResponse {
    let created = CreatedKey { key: plain.reveal().to_owned(), about: about.into() };
    (StatusCode::CREATED, axum::Json(created))
}

impl From<ApiKey> for KeyView {
    fn from(key: ApiKey) -> Self {
        Self {
            id: key.id,
            object: "api_key",
            tenant_id: key.tenant_id,
            name: key.name,
            scopes: key.scopes,
            role: key.role,
            policy: key.policy,
            created_at: key.created_at.into(),
            expires_at: key.expires_at.map(Into::into),
            revoked_at: key.revoked_at.map(Into::into),
            last_used_at: key.last_used_at.map(Into::into),
            rotated_to: key.rotated_to,
        }
    }
}

/// Make an API key
///
/// The key itself is in this answer and never again.
#[utoipa::path(post, path = "/v1/admin/tenants/{tenant_id}/keys", tag = "admin", security(("bearer" = ["operator"])),
    params(("tenant_id" = String, Path, description = "The tenant.")),
    request_body = CreateKey,
    responses((status = 201, description = "The key.", body = CreatedKey)))]
pub(crate) async fn create_key(
    State(state): State<ApiState>,
    Operator(operator): Operator,
    Id(tenant_id): Id<TenantId>,
    key: IdempotencyKey,
    body: Json<CreateKey>,
) -> Result<impl IntoResponse, Problem> {
    key.refuse(ONCE)?;
    Ok(shown(keys::create(&state, Keeper::Operator(&operator, tenant_id), body.input).await?))
}

/// List API keys
///
/// Of a tenant, newest first, revoked ones included.
#[utoipa::path(get, path = "/v1/admin/tenants/{tenant_id}/keys", tag = "admin", security(("bearer" = ["operator"])),
    params(
        ("tenant_id" = String, Path, description = "The tenant."),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 100, description = "Items of the page, 1 to 100; 20 when left out."),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before."),
    ),
    responses((status = 200, description = "A page of keys.", body = List<KeyView>)))]
pub(crate) async fn list_keys(
    State(state): State<ApiState>,
    Operator(operator): Operator,
    Id(tenant_id): Id<TenantId>,
    mut params: Params,
) -> Result<impl IntoResponse, Problem> {
    let page = params.page(&state, "keys", Some(tenant_id))?;
    params.finish()?;
    let listed = keys::list(&state, &operator, tenant_id, page).await?;
    let next = listed.next.map(|after| state.signer.cursor("keys", Some(tenant_id), after));
    Ok(axum::Json(List::new(listed.items.into_iter().map(KeyView::from).collect(), next)))
}

/// Revoke an API key
///
/// Every process refuses it within seconds, streams that it opened are closed, and calls that it made are cancelled. Revoking twice is
/// no error.
#[utoipa::path(delete, path = "/v1/admin/tenants/{tenant_id}/keys/{key_id}", tag = "admin", security(("bearer" = ["operator"])),
    params(
        ("tenant_id" = String, Path, description = "The tenant."),
        ("key_id" = String, Path, description = "The key."),
    ),
    responses((status = 200, description = "The key as it is now.", body = KeyView)))]
pub(crate) async fn revoke_key(
    State(state): State<ApiState>,
    Operator(operator): Operator,
    Ids(tenant_id, id): Ids<TenantId, KeyId>,
) -> Result<impl IntoResponse, Problem> {
    Ok(axum::Json(KeyView::from(keys::revoke(&state, Keeper::Operator(&operator, tenant_id), id).await?)))
}

/// Rotate an API key
///
/// Makes a key that takes its place, with its name, scopes, role and policy. Both work until the old one's time is over.
#[utoipa::path(post, path = "/v1/admin/tenants/{tenant_id}/keys/{key_id}/rotate", tag = "admin", security(("bearer" = ["operator"])),
    params(
        ("tenant_id" = String, Path, description = "The tenant."),
        ("key_id" = String, Path, description = "The key."),
    ),
    request_body(content = RotateKey, description = "Nothing, or how long the old key is to work."),
    responses((status = 201, description = "The new key.", body = CreatedKey)))]
pub(crate) async fn rotate_key(
    State(state): State<ApiState>,
    Operator(operator): Operator,
    Ids(tenant_id, id): Ids<TenantId, KeyId>,
    key: IdempotencyKey,
    body: Json<RotateKey>,
) -> Result<impl IntoResponse, Problem> {
    key.refuse(ONCE)?;
    Ok(shown(keys::rotate(&state, Keeper::Operator(&operator, tenant_id), id, body.input).await?))
}

/// Make an API key of the own tenant
///
/// Its scopes and policy must be within the caller's own. The key itself is in this answer and never again.
#[utoipa::path(post, path = "/v1/keys", tag = "access", security(("bearer" = ["keys:write"])),
    request_body = CreateKey,
    responses((status = 201, description = "The key.", body = CreatedKey)))]
pub(crate) async fn create_own_key(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    key: IdempotencyKey,
    body: Json<CreateKey>,
) -> Result<impl IntoResponse, Problem> {
    key.refuse(ONCE)?;
    Ok(shown(keys::create(&state, Keeper::Tenant(&context), body.input).await?))
}

/// List API keys of the own tenant
///
/// Newest first, revoked ones included.
#[utoipa::path(get, path = "/v1/keys", tag = "access", security(("bearer" = ["keys:write"])),
    params(
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 100, description = "Items of the page, 1 to 100; 20 when left out."),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before."),
    ),
    responses((status = 200, description = "A page of keys.", body = List<KeyView>)))]
pub(crate) async fn list_own_keys(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    mut params: Params,
) -> Result<impl IntoResponse, Problem> {
    let owner = Some(context.tenant_id());
    let page = params.page(&state, "own_keys", owner)?;
    params.finish()?;
    let listed = keys::list_own(&state, &context, page).await?;
    let next = listed.next.map(|after| state.signer.cursor("own_keys", owner, after));
    Ok(axum::Json(List::new(listed.items.into_iter().map(KeyView::from).collect(), next)))
}

/// Revoke an API key of the own tenant
///
/// Every process refuses it within seconds, streams that it opened are closed, and calls that it made are cancelled. Revoking twice is
/// no error.
#[utoipa::path(delete, path = "/v1/keys/{key_id}", tag = "access", security(("bearer" = ["keys:write"])),
    params(("key_id" = String, Path, description = "The key.")),
    responses((status = 200, description = "The key as it is now.", body = KeyView)))]
pub(crate) async fn revoke_own_key(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(id): Id<KeyId>,
) -> Result<impl IntoResponse, Problem> {
    Ok(axum::Json(KeyView::from(keys::revoke(&state, Keeper::Tenant(&context), id).await?)))
}

/// Rotate an API key of the own tenant
///
/// Makes a key that takes its place, with its name, scopes, role and policy. Both work until the old one's time is over. The key must not
/// be more than the caller is.
#[utoipa::path(post, path = "/v1/keys/{key_id}/rotate", tag = "access", security(("bearer" = ["keys:write"])),
    params(("key_id" = String, Path, description = "The key.")),
    request_body(content = RotateKey, description = "Nothing, or how long the old key is to work."),
    responses((status = 201, description = "The new key.", body = CreatedKey)))]
pub(crate) async fn rotate_own_key(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(id): Id<KeyId>,
    key: IdempotencyKey,
    body: Json<RotateKey>,
) -> Result<impl IntoResponse, Problem> {
    key.refuse(ONCE)?;
    Ok(shown(keys::rotate(&state, Keeper::Tenant(&context), id, body.input).await?))
}
