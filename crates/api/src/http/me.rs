//! Who the credential is, and what it has left.

use axum::Json;
use axum::extract::State;
use domain::policy::effective_limits;
use domain::{OperatorContext, Scope, TenantContext};

use super::access::{Operator, Tenant};
use crate::problem::Problem;
use crate::service::access::{Credential, unauthenticated};
use crate::service::policies::layers;
use crate::service::rates;
use crate::state::ApiState;
use crate::wire::tenants::{Left, Me};

/// Who am I?
///
/// The tenant and key or subject that the credential speaks for, its role and scopes, the limits that hold for it, and what is left of them.
#[utoipa::path(get, path = "/v1/me", tag = "access", security(("bearer" = [])),
    responses((status = 200, description = "The principal.", body = Me)))]
pub(crate) async fn get_me(
    State(state): State<ApiState>,
    tenant: Result<Tenant, Problem>,
    operator: Result<Operator, Problem>,
    credential: Credential,
) -> Result<Json<Me>, Problem> {
    match (tenant, operator) {
        (Ok(Tenant(context)), _) => Ok(Json(of_tenant(&state, &context, &credential).await?)),
        (_, Ok(Operator(context))) => Ok(Json(of_operator(&context))),
        _ => Err(unauthenticated()),
    }
}

async fn of_tenant(
    state: &ApiState,
    context: &TenantContext,
    credential: &Credential,
) -> Result<Me, Problem> {
    let limits = effective_limits(&layers(state, context, None));
    let used = state.store.tenant_use(context).await?;
    let left = Left {
        requests: rates::left(state, context),
        sessions: u64::from(limits.sessions).saturating_sub(used.sessions),
        running_calls: u64::from(limits.running_calls).saturating_sub(used.running_calls),
        queued_calls: u64::from(limits.queued_calls).saturating_sub(used.queued_calls),
        stored_bytes: limits.stored_bytes.saturating_sub(used.stored_bytes),
    };
    let principal = context.principal();
    Ok(Me {
        object: "principal",
        tenant_id: Some(context.tenant_id()),
        key_id: principal.key_id,
        name: principal.name.clone(),
        issuer: principal.issuer.clone(),
        role: context.role().map(|role| role.name.clone()),
        scopes: context.scopes().to_vec(),
        expires_at: credential.until().map(Into::into),
        limits: Some(limits),
        left: Some(left),
    })
}

fn of_operator(context: &OperatorContext) -> Me {
    Me {
        object: "principal",
        tenant_id: None,
        key_id: context.principal().key_id,
        name: context.principal().name.clone(),
        issuer: None,
        role: None,
        scopes: vec![Scope::Operator],
        expires_at: None,
        limits: None,
        left: None,
    }
}
