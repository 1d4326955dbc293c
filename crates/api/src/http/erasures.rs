//! A tenant that leaves: everything of it as lines, and its erasure with a receipt. For operators.

use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use domain::{Code, TenantId};
use futures_util::{StreamExt, stream};
use store::ExportPlace;

use super::access::Operator;
use super::extract::{Id, IdempotencyKey, Input, Json, Params};
use crate::json::Checks;
use crate::problem::{FieldCode, Problem};
use crate::state::ApiState;
use crate::wire::erasures::{EraseTenant, ErasureView};

impl Input for EraseTenant {
    fn check(&self, checks: &mut Checks) {
        checks.text("/confirm", Some(&self.confirm), 1..=100);
    }
}

/// Export a tenant
///
/// Everything of the tenant, one JSON object a line, as it was at one moment: rows of each table (`{"table", "row"}`), the content of artifacts
/// last, in pieces of base64. No secrets: neither hashes of keys nor values of the environment variables of sessions and contexts (arguments of calls are there as they were given). It begins with `export` and ends with `end`,
/// which counts the rows; without that line it is not whole, and goes on with `?after=` behind its last `checkpoint`.
#[utoipa::path(get, path = "/v1/admin/tenants/{tenant_id}/export", tag = "admin", security(("bearer" = ["operator"])),
    params(
        ("tenant_id" = String, Path, description = "The tenant."),
        ("after" = Option<String>, Query, description = "A `checkpoint` of an export that was cut off: only what comes behind it."),
    ),
    responses((status = 200, description = "The lines.", body = Object, content_type = "application/x-ndjson")))]
pub(crate) async fn export_tenant(
    State(state): State<ApiState>,
    Operator(operator): Operator,
    Id(id): Id<TenantId>,
    mut params: Params,
) -> Result<Response, Problem> {
    let not_one = "must be a `checkpoint` of an export of this tenant";
    let after = params.take("after")?;
    let after = after
        .map(|text| ExportPlace::parse(&text).ok_or_else(|| Problem::query("after", not_one)))
        .transpose()?;
    params.finish()?;
    let place = state.exports.clone().try_acquire_owned().map_err(|_| {
        Problem::new(Code::Capacity, "This process makes as many exports as it does at a time.")
            .retry_after_ms(10_000)
    })?;
    let mut export = state.store.export_tenant(&operator, id, after).await.map_err(|error| match error {
        store::StoreError::Conflict { .. } => Problem::query("after", not_one),
        other => other.into(),
    })?;
    // The first page is read before the answer begins, so that a database that is away is still a problem.
    let first = export.next().await.transpose()?.unwrap_or_default();
    let rest = stream::unfold((export, place), |(mut export, place)| async move {
        let page = export.next().await?;
        Some((page.map_err(std::io::Error::other), (export, place)))
    });
    let body = Body::from_stream(stream::iter([Ok(first)]).chain(rest));
    Ok(([(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"))], body).into_response())
}

/// Erase a tenant
///
/// For ever: it is suspended at once and cannot come back, its sessions end, then its calls, output, artifacts, keys and everything else
/// are deleted. What was billed and an audit trail without content stay. Answers at once; `GET` says how far it is and has the signed receipt at
/// the end. Asking again changes nothing.
#[utoipa::path(post, path = "/v1/admin/tenants/{tenant_id}/erasure", tag = "admin", security(("bearer" = ["operator"])),
    params(("tenant_id" = String, Path, description = "The tenant.")),
    request_body = EraseTenant,
    responses((status = 202, description = "Where the erasure is.", body = ErasureView)))]
pub(crate) async fn erase_tenant(
    State(state): State<ApiState>,
    Operator(operator): Operator,
    Id(id): Id<TenantId>,
    key: IdempotencyKey,
    body: Json<EraseTenant>,
) -> Result<impl IntoResponse, Problem> {
    key.refuse("a tenant is erased once, however often it is asked for")?;
    match state.store.request_erasure(&operator, id, &body.input.confirm).await? {
        store::ErasureAnswer::Begun(erasure) => {
            Ok((StatusCode::ACCEPTED, axum::Json(ErasureView::from(erasure))))
        }
        store::ErasureAnswer::WrongName => {
            let message = "must be the tenant's name, exactly";
            let problem =
                Problem::new(Code::InvalidArguments, format!("`/confirm` {message}: nothing was erased."));
            Err(problem.field("/confirm", FieldCode::Invalid, message))
        }
    }
}

/// Get a tenant's erasure
#[utoipa::path(get, path = "/v1/admin/tenants/{tenant_id}/erasure", tag = "admin", security(("bearer" = ["operator"])),
    params(("tenant_id" = String, Path, description = "The tenant.")),
    responses((status = 200, description = "Where the erasure is; with the receipt once it is done.", body = ErasureView)))]
pub(crate) async fn get_erasure(
    State(state): State<ApiState>,
    Operator(operator): Operator,
    Id(id): Id<TenantId>,
) -> Result<impl IntoResponse, Problem> {
    Ok(axum::Json(ErasureView::from(state.store.erasure(&operator, id).await?)))
}
