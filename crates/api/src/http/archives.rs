//! Directories of a session over HTTP, as tar archives.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use domain::file::FileKind;
use domain::{Code, SessionId};

use super::access::Tenant;
use super::downloads::harmless;
use super::extract::{Id, Params};
use super::files::{directory_path, pieces, uncompressed};
use crate::problem::Problem;
use crate::service::files::{Files, Verb};
use crate::state::ApiState;
use crate::wire::files::UnpackedArchive;

/// Download a directory
///
/// As a tar archive of its files and directories. Links, pipes and devices are left out, and so are files and directories that the
/// sandbox's user may not read and names that are not UTF-8. A directory with more than 10,000 entries or 63 levels below it is refused, not cut. A file that changes while it is packed ends the connection.
#[utoipa::path(get, path = "/v1/sessions/{session_id}/files/archive", tag = "files", security(("bearer" = ["files:read"])),
    params(
        ("session_id" = String, Path, description = "The session."),
        ("path" = Option<String>, Query, description = "The directory; `/workspace` when left out."),
    ),
    responses((status = 200, description = "The archive.", body = String, content_type = "application/x-tar")))]
pub(crate) async fn get_archive(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(session_id): Id<SessionId>,
    mut params: Params,
    method: Method,
) -> Result<Response, Problem> {
    let text = params.take("path")?;
    let files = Files::open(&state, &context, session_id, Verb::Read, || {
        params.finish()?;
        directory_path(text.as_deref())
    })
    .await?;
    let mut response = if method == Method::HEAD {
        match files.stat().await?.kind {
            FileKind::Directory => StatusCode::OK.into_response(),
            FileKind::File | FileKind::Symlink | FileKind::Other => {
                let detail = format!("{} is no directory.", files.file().absolute());
                return Err(Problem::new(Code::NotDirectory, detail));
            }
        }
    } else {
        Response::new(Body::from_stream(files.pack().await?))
    };
    harmless(response.headers_mut(), &format!("{}.tar", files.file().name()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    Ok(response)
}

/// Upload a directory
///
/// The body is a tar archive, not compressed (POSIX, pax or GNU; at most 8 GiB and 100,000 entries). Each file takes its place when it is whole. An
/// entry that leads outside of the directory ends it with an error; what was taken out before stays. Links, pipes and devices are left out and named.
#[utoipa::path(put, path = "/v1/sessions/{session_id}/files/archive", tag = "files", security(("bearer" = ["files:write"])),
    params(
        ("session_id" = String, Path, description = "The session."),
        ("path" = Option<String>, Query, description = "The directory, which is made when missing; `/workspace` when left out."),
    ),
    request_body(content = String, content_type = "application/x-tar", description = "The archive."),
    responses((status = 200, description = "What was taken out.", body = UnpackedArchive)))]
pub(crate) async fn put_archive(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(session_id): Id<SessionId>,
    mut params: Params,
    request: Request,
) -> Result<impl IntoResponse, Problem> {
    let text = params.take("path")?;
    let files = Files::open(&state, &context, session_id, Verb::Write, || {
        params.finish()?;
        directory_path(text.as_deref())
    })
    .await?;
    uncompressed(request.headers())?;
    let unpacked = files.unpack(pieces(&state, request.into_body())).await?;
    Ok(axum::Json(UnpackedArchive::new(files.file(), unpacked)))
}
