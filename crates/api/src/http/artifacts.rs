//! Artifacts over HTTP.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use chrono::Duration;
use domain::{ArtifactId, ArtifactKind, CallId, SessionId, limits};
use futures_util::TryStreamExt;
use serde_json::json;
use store::{ArtifactFilter, AuditRow};

use super::access::Tenant;
use super::downloads::{Download, Part};
use super::extract::{Id, IdempotencyKey, Input, Json, Params};
use crate::json::Checks;
use crate::problem::Problem;
use crate::service::access::Credential;
use crate::service::artifacts;
use crate::signature::{StreamToken, Target};
use crate::state::ApiState;
use crate::wire::artifacts::{ArtifactLink, ArtifactView, CreateArtifactLink};
use crate::wire::lists::List;

impl Input for CreateArtifactLink {
    const OPTIONAL: bool = true;

    fn check(&self, checks: &mut Checks) {
        checks.range("/expires_in_s", self.expires_in_s, 1..=limits::ARTIFACT_LINK_S);
    }
}

/// List artifacts
///
/// Of all sessions, newest first, every version unless `versions=latest`. Filter by session, call, name, kind and labels.
#[utoipa::path(get, path = "/v1/artifacts", tag = "artifacts", security(("bearer" = ["artifacts:read"])),
    params(
        ("session_id" = Option<String>, Query, description = "Only those of this session."),
        ("call_id" = Option<String>, Query, description = "Only those of this call."),
        ("name" = Option<String>, Query, description = "Only those of this name."),
        ("kind" = Option<crate::wire::artifacts::ArtifactKind>, Query, description = "Only those of this kind."),
        ("versions" = Option<String>, Query, pattern = "^(all|latest)$", description = "`all` (when left out) or `latest`: the newest of each name of a session."),
        ("metadata.{key}" = Option<String>, Query, description = "Only those with this label; may be given for several labels."),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 100, description = "Items of the page, 1 to 100; 20 when left out."),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before, with the same filter."),
    ),
    responses((status = 200, description = "A page of artifacts.", body = List<ArtifactView>)))]
pub(crate) async fn list_artifacts(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    mut params: Params,
) -> Result<impl IntoResponse, Problem> {
    let latest_only = match params.take("versions")?.as_deref() {
        None | Some("all") => false,
        Some("latest") => true,
        Some(_) => return Err(Problem::query("versions", "must be all or latest")),
    };
    let filter = ArtifactFilter {
        session_id: params.parse::<SessionId>("session_id", "must be the id of a session")?,
        call_id: params.parse::<CallId>("call_id", "must be the id of a call")?,
        name: params.take("name")?,
        kind: params
            .parse::<ArtifactKind>("kind", "must be a kind of artifact, such as other, image or output")?,
        metadata: params.take_prefixed("metadata.").into_iter().collect(),
        latest_only,
    };
    let (list, owner) = (format!("artifacts {filter:?}"), Some(context.tenant_id()));
    let page = params.page(&state, &list, owner)?;
    params.finish()?;
    let listed = artifacts::list(&state, &context, &filter, page).await?;
    let next = listed.next.map(|after| state.signer.cursor(&list, owner, after));
    Ok(axum::Json(List::new(listed.items.into_iter().map(ArtifactView::from).collect(), next)))
}

/// Get an artifact
///
/// What is known of it; its bytes are under `/content`.
#[utoipa::path(get, path = "/v1/artifacts/{artifact_id}", tag = "artifacts", security(("bearer" = ["artifacts:read"])),
    params(("artifact_id" = String, Path, description = "The artifact.")),
    responses((status = 200, description = "The artifact.", body = ArtifactView)))]
pub(crate) async fn get_artifact(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(id): Id<ArtifactId>,
) -> Result<impl IntoResponse, Problem> {
    Ok(axum::Json(ArtifactView::from(artifacts::get(&state, &context, id).await?)))
}

/// Delete an artifact
///
/// Nobody can read it from here on, and links to it stop working. Other versions of its name stay.
#[utoipa::path(delete, path = "/v1/artifacts/{artifact_id}", tag = "artifacts", security(("bearer" = ["artifacts:write"])),
    params(("artifact_id" = String, Path, description = "The artifact.")),
    responses((status = 204, description = "It is gone.")))]
pub(crate) async fn delete_artifact(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(id): Id<ArtifactId>,
) -> Result<StatusCode, Problem> {
    artifacts::delete(&state, &context, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Download an artifact
///
/// Its bytes, whole or a range. The `ETag` is its SHA-256. A browser is told to save it and not to run it.
#[utoipa::path(get, path = "/v1/artifacts/{artifact_id}/content", tag = "artifacts",
    security(("bearer" = ["artifacts:read"]), ("stream_token" = [])),
    params(
        ("artifact_id" = String, Path, description = "The artifact."),
        ("token" = Option<String>, Query, description = "The token of a link, instead of a key."),
        ("Range" = Option<String>, Header, description = "One range of bytes."),
        ("If-Range" = Option<String>, Header, description = "The range holds for this `ETag` alone."),
        ("If-None-Match" = Option<String>, Header, description = "`ETag` that the client has."),
    ),
    responses(
        (status = 200, description = "All of it.", body = String, content_type = "application/octet-stream",
            headers(("ETag" = String, description = "Its SHA-256, in quotes."), ("Accept-Ranges" = String, description = "`bytes`"))),
        (status = 206, description = "The range.", body = String, content_type = "application/octet-stream",
            headers(("ETag" = String, description = "Its SHA-256, in quotes."), ("Content-Range" = String, description = "Which bytes of how many."))),
        (status = 304, description = "The client has it.")))]
pub(crate) async fn get_artifact_content(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    credential: Credential,
    Id(id): Id<ArtifactId>,
    mut params: Params,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    params.take("token")?;
    params.finish()?;
    let artifact = artifacts::get(&state, &context, id).await?;
    let download = Download {
        name: artifact.name.clone(),
        mime_type: artifact.mime_type.clone(),
        size_bytes: artifact.size_bytes,
        etag: format!("\"{}\"", artifact.sha256),
    };
    match download.part(&headers) {
        Part::Answer(response) => Ok(*response),
        Part::Bytes { head, .. } if method == Method::HEAD => Ok(*head),
        Part::Bytes { from, to, head } => {
            let details = json!({"from": from, "to": to, "by_link": credential.is_signed_url()});
            state.store.audit(&context, AuditRow::done("artifact.read", id).details(details)).await?;
            let content = state.store.artifact_content(&artifact, from..to).await?;
            Ok(head.map(|_| Body::from_stream(content.map_err(std::io::Error::other))))
        }
    }
}

/// Make a download link
///
/// Whoever has the URL can download this artifact without a key until it expires, the artifact is deleted, or the key that made it
/// is revoked; and nothing else.
#[utoipa::path(post, path = "/v1/artifacts/{artifact_id}/links", tag = "artifacts", security(("bearer" = ["artifacts:read"])),
    params(("artifact_id" = String, Path, description = "The artifact.")),
    request_body(content = CreateArtifactLink, description = "Nothing, or how long it is to live."),
    responses((status = 201, description = "The link.", body = ArtifactLink)))]
pub(crate) async fn create_artifact_link(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    credential: Credential,
    Id(id): Id<ArtifactId>,
    key: IdempotencyKey,
    body: Json<CreateArtifactLink>,
) -> Result<impl IntoResponse, Problem> {
    key.refuse("each link is its own, and making another does no harm")?;
    artifacts::get(&state, &context, id).await?;
    let seconds = body.input.expires_in_s.unwrap_or(limits::ARTIFACT_LINK_S_DEFAULT);
    let expires_at = state.store.clock().now() + Duration::seconds(i64::from(seconds));
    let token = StreamToken {
        tenant_id: context.tenant_id(),
        key_id: context.principal().key_id,
        target: Target::Artifact(id),
        // Never longer than the credential that makes it.
        expires_at: credential.until().map_or(expires_at, |until| until.min(expires_at)),
    };
    // Nobody gets a link that is not on record.
    let row = AuditRow::done("artifact.link", id).details(json!({"expires_at": token.expires_at}));
    state.store.audit(&context, row).await?;
    let url = format!("/v1/artifacts/{id}/content?token={}", state.signer.stream_token(&token));
    let link =
        ArtifactLink { object: "artifact_link", artifact_id: id, url, expires_at: token.expires_at.into() };
    Ok((StatusCode::CREATED, axum::Json(link)))
}
