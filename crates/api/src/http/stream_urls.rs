//! Signed URLs for readers that cannot send headers.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use chrono::Duration;
use domain::{CallId, limits};
use serde_json::json;
use store::AuditRow;

use super::access::Tenant;
use super::extract::{Id, IdempotencyKey, Input, Json};
use crate::json::Checks;
use crate::problem::Problem;
use crate::service::access::Credential;
use crate::signature::{StreamToken, Target};
use crate::state::ApiState;
use crate::wire::stream_urls::{CreateStreamUrl, StreamUrl};

impl Input for CreateStreamUrl {
    const OPTIONAL: bool = true;

    fn check(&self, checks: &mut Checks) {
        checks.range("/expires_in_s", self.expires_in_s, 1..=limits::STREAM_URL_S);
    }
}

/// Make a signed stream URL
///
/// For `EventSource`, which cannot send headers: whoever has the URL can follow this call's events until it expires, or until the
/// key that made it is revoked, and nothing else.
#[utoipa::path(post, path = "/v1/calls/{call_id}/stream_url", tag = "calls", security(("bearer" = ["calls:read"])),
    params(("call_id" = String, Path, description = "The call.")),
    request_body(content = CreateStreamUrl, description = "Nothing, or how long it is to live."),
    responses((status = 201, description = "The URL.", body = StreamUrl)))]
pub(crate) async fn create_stream_url(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    credential: Credential,
    Id(call_id): Id<CallId>,
    key: IdempotencyKey,
    body: Json<CreateStreamUrl>,
) -> Result<impl IntoResponse, Problem> {
    key.refuse("each URL is its own, and making another does no harm")?;
    state.store.get_call(&context, call_id).await?;
    let seconds = body.input.expires_in_s.unwrap_or(limits::STREAM_URL_S_DEFAULT);
    let expires_at = state.store.clock().now() + Duration::seconds(i64::from(seconds));
    let token = StreamToken {
        tenant_id: context.tenant_id(),
        key_id: context.principal().key_id,
        target: Target::Call(call_id),
        // Never longer than the credential that makes it.
        expires_at: credential.until().map_or(expires_at, |until| until.min(expires_at)),
    };
    // Nobody gets a URL that is not on record.
    let row = AuditRow::done("stream_url.create", call_id).details(json!({"expires_at": token.expires_at}));
    state.store.audit(&context, row).await?;
    let url = format!("/v1/calls/{call_id}/events?token={}", state.signer.stream_token(&token));
    let created = StreamUrl { object: "stream_url", call_id, url, expires_at: token.expires_at.into() };
    Ok((StatusCode::CREATED, axum::Json(created)))
}
