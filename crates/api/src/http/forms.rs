//! Several files of a session in one request, as forms send them.

use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use domain::file::Replace;
use domain::{Code, SessionId};

use super::access::Tenant;
use super::extract::{Id, IdempotencyKey, Params};
use super::files::{bits, directory_path, pieces, replace, uncompressed};
use crate::multipart::Form;
use crate::problem::Problem;
use crate::service::files::{Files, Verb, bounded};
use crate::state::ApiState;
use crate::wire::files::{UploadedFiles, UploadedItem};

/// Upload several files
///
/// The body is a form (`multipart/form-data`) whose every part is a file: at most 1,000, and 8 GiB together. Its `filename` is the file's path beneath the directory.
/// Each file is written wholly or not at all and has its own outcome in `data`; a form that breaks off ends with an error that says in `data` what was written before.
#[utoipa::path(post, path = "/v1/sessions/{session_id}/files", tag = "files", security(("bearer" = ["files:write"])),
    params(
        ("session_id" = String, Path, description = "The session."),
        ("path" = Option<String>, Query, description = "The directory, which is made when missing; `/workspace` when left out."),
        ("permissions" = Option<String>, Query, pattern = "^0?[0-7]{3}$", description = "Permission bits of all of them in octal. Those of the file that is there, else 0644, when left out."),
        ("If-None-Match" = Option<String>, Header, description = "`*`: only where nothing is."),
    ),
    request_body(content = String, content_type = "multipart/form-data", description = "The files."),
    responses((status = 200, description = "What became of each file.", body = UploadedFiles)))]
pub(crate) async fn post_files(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(session_id): Id<SessionId>,
    mut params: Params,
    key: IdempotencyKey,
    request: Request,
) -> Result<impl IntoResponse, Problem> {
    key.refuse("writing the same files again changes nothing more")?;
    let text = params.take("path")?;
    let permissions = params.take("permissions")?;
    let files = Files::open(&state, &context, session_id, Verb::Write, || {
        params.finish()?;
        directory_path(text.as_deref())
    })
    .await?;
    let permissions = permissions.map(|text| bits(&text)).transpose()?;
    let replace = replace(request.headers())?;
    if let Replace::Version(_) = replace {
        let detail = "A form has several files: it takes no If-Match.";
        return Err(Problem::new(Code::InvalidRequest, detail));
    }
    uncompressed(request.headers())?;
    let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.to_owned();
    let form = Form::new(&kind, bounded(pieces(&state, request.into_body())))?;
    match files.write_form(form, replace, permissions).await {
        Ok(outcomes) => Ok(axum::Json(UploadedFiles::new(files.file(), outcomes))),
        Err(unread) => {
            let before: Vec<_> = unread.files.into_iter().map(UploadedItem::new).collect();
            let before = serde_json::to_value(before).unwrap_or_default();
            Err(unread.problem.with("data", before))
        }
    }
}
