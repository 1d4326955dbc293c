//! The audit trail over HTTP.

use axum::extract::State;
use axum::response::IntoResponse;
use uuid::Uuid;

use super::access::Tenant;
use super::extract::Params;
use crate::problem::Problem;
use crate::state::ApiState;
use crate::wire::audit::AuditEntryView;
use crate::wire::lists::List;

/// Read the audit trail
///
/// Every decision and change of the tenant, newest first: who, what, from where, allowed or why not.
#[utoipa::path(get, path = "/v1/audit", tag = "audit", security(("bearer" = ["audit:read"])),
    params(
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 100, description = "Items of the page, 1 to 100; 20 when left out."),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before."),
    ),
    responses((status = 200, description = "A page of the trail.", body = List<AuditEntryView>)))]
pub(crate) async fn list_audit(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    mut params: Params,
) -> Result<impl IntoResponse, Problem> {
    let owner = Some(context.tenant_id());
    let page = params.page(&state, "audit", owner)?;
    params.finish()?;
    let before = page.after.and_then(|number| i64::try_from(number.as_u128()).ok());
    let mut entries = state.store.audit_entries(&context, before, page.limit + 1).await?;
    let more = entries.len() > page.limit as usize;
    entries.truncate(page.limit as usize);
    let last = entries.last().filter(|_| more).and_then(|entry| u128::try_from(entry.id).ok());
    let next = last.map(|number| state.signer.cursor("audit", owner, Uuid::from_u128(number)));
    Ok(axum::Json(List::new(entries.into_iter().map(AuditEntryView::from).collect(), next)))
}
