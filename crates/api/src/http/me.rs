//! Who the credential is.

use axum::Json;
use axum::extract::State;
use domain::policy::effective_limits;
use domain::{OperatorContext, Scope, TenantContext};

use super::access::{Operator, Tenant};
use crate::problem::Problem;
use crate::service::access::unauthenticated;
use crate::service::policies::layers;
use crate::state::ApiState;
use crate::wire::tenants::Me;

/// Who am I?
///
/// The tenant and key that the credential speaks for, its scopes, and the limits that hold for it.
#[utoipa::path(get, path = "/v1/me", tag = "access", security(("bearer" = [])),
    responses((status = 200, description = "The principal.", body = Me)))]
pub(crate) async fn get_me(
    State(state): State<ApiState>,
    tenant: Result<Tenant, Problem>,
    operator: Result<Operator, Problem>,
) -> Result<Json<Me>, Problem> {
    match (tenant, operator) {
        (Ok(Tenant(context)), _) => Ok(Json(of_tenant(&state, &context))),
        (_, Ok(Operator(context))) => Ok(Json(of_operator(&context))),
        _ => Err(unauthenticated()),
    }
}

fn of_tenant(state: &ApiState, context: &TenantContext) -> Me {
    Me {
        object: "principal",
        tenant_id: Some(context.tenant_id()),
        key_id: context.principal().key_id,
        name: context.principal().name.clone(),
        scopes: context.scopes().to_vec(),
        limits: Some(effective_limits(&layers(state, context, None))),
    }
}

fn of_operator(context: &OperatorContext) -> Me {
    Me {
        object: "principal",
        tenant_id: None,
        key_id: context.principal().key_id,
        name: context.principal().name.clone(),
        scopes: vec![Scope::Operator],
        limits: None,
    }
}
