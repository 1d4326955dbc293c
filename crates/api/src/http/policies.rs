//! Policy over HTTP.

use axum::extract::State;
use axum::response::IntoResponse;

use super::access::Tenant;
use super::extract::{Input, Json};
use crate::json::Checks;
use crate::problem::Problem;
use crate::service::policies;
use crate::state::ApiState;
use crate::wire::policies::{ExplainPolicy, Explanation};

impl Input for ExplainPolicy {
    fn check(&self, checks: &mut Checks) {
        checks.text("/tool", Some(&self.tool), 1..=128);
    }
}

/// Explain policy
///
/// Would this call be allowed, by which rule, and with which limits? Nothing is run.
#[utoipa::path(post, path = "/v1/policies/explain", tag = "policies", security(("bearer" = ["policies:read"])),
    request_body = ExplainPolicy,
    responses((status = 200, description = "The answer.", body = Explanation)))]
pub(crate) async fn explain_policy(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    body: Json<ExplainPolicy>,
) -> Result<impl IntoResponse, Problem> {
    Ok(axum::Json(policies::explain(&state, &context, body.input).await?))
}
