//! Files of a session over HTTP.

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, ETAG, IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use chrono::{DateTime, SecondsFormat};
use domain::file::{FileFacts, FileKind, FilePath, Replace};
use domain::{Code, SessionId, limits};
use futures_util::{Stream, StreamExt, stream};
use tokio::time::timeout;

use super::access::Tenant;
use super::downloads::{Download, Part};
use super::extract::{Id, Params};
use crate::problem::Problem;
use crate::service::files::{Files, Verb, path, too_large};
use crate::state::ApiState;
use crate::wire::files::{FileEntry, FileListing, RemovedFiles, WrittenFile, etag, octal, version_of};

const FILE_KIND: HeaderName = HeaderName::from_static("x-file-kind");
const FILE_PERMISSIONS: HeaderName = HeaderName::from_static("x-file-permissions");
const FILE_MODIFIED: HeaderName = HeaderName::from_static("x-file-modified-at");
/// How often a file that changes just then is looked at again before its reader is told.
const LOOKS: u32 = 3;

/// `path`, which must be given.
pub(super) fn required_path(text: Option<String>) -> Result<FilePath, Problem> {
    match text {
        Some(text) if !text.is_empty() => path(&text),
        _ => Err(Problem::query(
            "path",
            "is missing: a path under /workspace (relative ones start there) or /tmp",
        )),
    }
}

/// `path` of a directory, the workspace when it is left out.
pub(super) fn directory_path(text: Option<&str>) -> Result<FilePath, Problem> {
    path(text.filter(|text| !text.is_empty()).unwrap_or("."))
}

pub(super) fn flag(params: &mut Params, name: &str, default: bool) -> Result<bool, Problem> {
    Ok(params.parse::<bool>(name, "must be true or false")?.unwrap_or(default))
}

fn say(headers: &mut HeaderMap, facts: &FileFacts) {
    headers.insert(FILE_KIND, HeaderValue::from_static(facts.kind.as_str()));
    let modified = DateTime::from_timestamp_millis(facts.modified_ms);
    let modified = modified.map(|at| at.to_rfc3339_opts(SecondsFormat::Millis, true));
    let texts = [(FILE_PERMISSIONS, Some(octal(facts.permissions))), (FILE_MODIFIED, modified)];
    for (name, text) in texts {
        headers.extend(text.and_then(|text| HeaderValue::try_from(text).ok()).map(|value| (name, value)));
    }
}

/// Download a file
///
/// A regular file, whole or a range. `HEAD` tells what is at a path, directories included. The `ETag` is made of inode, size
/// and the kernel's time of change: whatever replaces a file changes it, and so does writing into one, unless it keeps the size within milliseconds of the change before.
/// A file that changes while it is read ends the connection. A symbolic link is followed within `/workspace` or `/tmp`.
#[utoipa::path(get, path = "/v1/sessions/{session_id}/files", tag = "files", security(("bearer" = ["files:read"])),
    params(
        ("session_id" = String, Path, description = "The session."),
        ("path" = String, Query, description = "The file, under `/workspace` (relative paths start there) or `/tmp`."),
        ("Range" = Option<String>, Header, description = "One range of bytes."),
        ("If-Range" = Option<String>, Header, description = "The range holds for this `ETag` alone."),
        ("If-None-Match" = Option<String>, Header, description = "`ETag` that the client has."),
    ),
    responses(
        (status = 200, description = "All of it.", body = String, content_type = "application/octet-stream",
            headers(("ETag" = String, description = "Its version."), ("X-File-Kind" = String, description = "`file`; also `directory`, `other` for HEAD."),
                ("X-File-Permissions" = String, description = "Permission bits in octal."), ("X-File-Modified-At" = String, description = "Last change of its content."))),
        (status = 206, description = "The range.", body = String, content_type = "application/octet-stream",
            headers(("Content-Range" = String, description = "Which bytes of how many."))),
        (status = 304, description = "The client has it.")))]
pub(crate) async fn get_file(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(session_id): Id<SessionId>,
    mut params: Params,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let text = params.take("path")?;
    let files = Files::open(&state, &context, session_id, Verb::Read, || {
        params.finish()?;
        required_path(text)
    })
    .await?;
    let mut looks = 0;
    loop {
        looks += 1;
        match answer(&files, &method, &headers).await {
            Err(problem) if problem.code == Code::StaleRead && looks < LOOKS => {}
            other => return other,
        }
    }
}

async fn answer(files: &Files<'_>, method: &Method, headers: &HeaderMap) -> Result<Response, Problem> {
    let (file, facts) = (files.file(), files.stat().await?);
    let is_head = method == Method::HEAD;
    let refusal = match facts.kind {
        FileKind::File => None,
        FileKind::Directory | FileKind::Symlink | FileKind::Other if is_head => {
            let mut response = StatusCode::OK.into_response();
            say(response.headers_mut(), &facts);
            return Ok(response);
        }
        FileKind::Directory => Some((Code::IsDirectory, "is a directory; `/files/list` lists it")),
        FileKind::Symlink | FileKind::Other => Some((Code::NotRegularFile, "is not a regular file")),
    };
    if let Some((code, what)) = refusal {
        return Err(Problem::new(code, format!("{} {what}.", file.absolute())));
    }
    let download = Download {
        name: file.name().to_owned(),
        mime_type: "application/octet-stream".to_owned(),
        size_bytes: facts.version.size_bytes,
        etag: etag(facts.version),
    };
    let mut response = match download.part(headers) {
        Part::Answer(response) => *response,
        Part::Bytes { head, .. } if is_head => *head,
        Part::Bytes { from, to, head } => {
            let content = files.read(from, to, facts.version).await?;
            head.map(|_| Body::from_stream(content))
        }
    };
    say(response.headers_mut(), &facts);
    Ok(response)
}

/// Upload a file
///
/// The body is the file, at most 8 GiB. It takes its place when all of it has come, and missing directories are made; an upload that
/// breaks off, or for which there is no room, leaves what was there. A model has to read the file again before it changes it.
#[utoipa::path(put, path = "/v1/sessions/{session_id}/files", tag = "files", security(("bearer" = ["files:write"])),
    params(
        ("session_id" = String, Path, description = "The session."),
        ("path" = String, Query, description = "The file, under `/workspace` (relative paths start there) or `/tmp`."),
        ("permissions" = Option<String>, Query, pattern = "^0?[0-7]{3}$", description = "Permission bits in octal. Those of the file that is there, else 0644, when left out."),
        ("If-Match" = Option<String>, Header, description = "Only over a file with this `ETag`."),
        ("If-None-Match" = Option<String>, Header, description = "`*`: only where nothing is."),
    ),
    request_body(content = String, content_type = "application/octet-stream", description = "The file."),
    responses(
        (status = 200, description = "It was replaced.", body = WrittenFile, headers(("ETag" = String, description = "Its version."))),
        (status = 201, description = "It was made.", body = WrittenFile, headers(("ETag" = String, description = "Its version.")))))]
pub(crate) async fn put_file(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(session_id): Id<SessionId>,
    mut params: Params,
    request: Request,
) -> Result<Response, Problem> {
    let text = params.take("path")?;
    let permissions = params.take("permissions")?;
    let files = Files::open(&state, &context, session_id, Verb::Write, || {
        params.finish()?;
        required_path(text)
    })
    .await?;
    let permissions = permissions.map(|text| bits(&text)).transpose()?;
    let replace = replace(request.headers())?;
    uncompressed(request.headers())?;
    let announced = announced(request.headers());
    let saved = files.write(replace, permissions, announced, pieces(&state, request.into_body())).await?;
    let status = if saved.created { StatusCode::CREATED } else { StatusCode::OK };
    let written = WrittenFile::new(files.file(), saved);
    let tag = HeaderValue::try_from(&written.etag).ok().map(|tag| (ETAG, tag));
    let mut response = (status, axum::Json(written)).into_response();
    response.headers_mut().extend(tag);
    Ok(response)
}

pub(super) fn bits(text: &str) -> Result<u32, Problem> {
    let digits = text.strip_prefix('0').filter(|rest| rest.len() == 3).unwrap_or(text);
    match u32::from_str_radix(digits, 8) {
        Ok(bits) if digits.len() == 3 && digits.bytes().all(|byte| byte.is_ascii_digit()) => Ok(bits),
        _ => Err(Problem::query("permissions", "must be octal, such as 0644")),
    }
}

pub(super) fn replace(headers: &HeaderMap) -> Result<Replace, Problem> {
    let given = |name: HeaderName| {
        let mut all = headers.get_all(name).iter();
        let first = all.next().map(|value| value.to_str().unwrap_or_default().trim());
        (first, all.next().is_some())
    };
    let wrong = |detail: &str| Err(Problem::new(Code::InvalidRequest, detail));
    match (given(IF_MATCH), given(IF_NONE_MATCH)) {
        ((None, _), (None, _)) => Ok(Replace::Anything),
        ((None, _), (Some("*"), false)) => Ok(Replace::Nothing),
        ((None, _), _) => wrong("If-None-Match of an upload can only be *: where nothing is."),
        ((Some(etag), false), (None, _)) => match version_of(etag) {
            Some(version) => Ok(Replace::Version(version)),
            None => wrong("If-Match must be one ETag that a file here has had."),
        },
        _ => wrong("Give one of If-Match and If-None-Match, once."),
    }
}

/// Bytes that the client says will follow.
pub(super) fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok())
}

/// What a client sends, as long as it goes on sending. More than may be sent is refused where it is announced.
pub(super) fn pieces(
    state: &ApiState,
    body: Body,
) -> impl Stream<Item = Result<Bytes, Problem>> + Send + use<> {
    let patience = state.config.body_timeout;
    let announced = body.size_hint().lower();
    stream::unfold(Some(body.into_data_stream()), move |body| async move {
        let mut body = body?;
        if announced > limits::UPLOAD_BYTES {
            return Some((Err(too_large()), None));
        }
        let problem = match timeout(patience, body.next()).await {
            Ok(None) => return None,
            Ok(Some(Ok(piece))) => return Some((Ok(piece), Some(body))),
            Ok(Some(Err(_))) => Problem::new(Code::InvalidRequest, "The body could not be read to its end."),
            Err(_) => Problem::new(Code::RequestTimeout, "The body did not go on in time."),
        };
        Some((Err(problem), None))
    })
}

pub(super) fn uncompressed(headers: &HeaderMap) -> Result<(), Problem> {
    if headers.get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return Err(Problem::new(Code::UnsupportedMediaType, "Compressed bodies are not accepted."));
    }
    Ok(())
}

/// Delete a file or directory
///
/// Of a symbolic link the link itself. A directory has to be empty, unless `recursive=true`.
#[utoipa::path(delete, path = "/v1/sessions/{session_id}/files", tag = "files", security(("bearer" = ["files:write"])),
    params(
        ("session_id" = String, Path, description = "The session."),
        ("path" = String, Query, description = "What to remove."),
        ("recursive" = Option<bool>, Query, description = "A directory with everything in it."),
    ),
    responses((status = 200, description = "What was removed.", body = RemovedFiles)))]
pub(crate) async fn delete_file(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(session_id): Id<SessionId>,
    mut params: Params,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Problem> {
    let text = params.take("path")?;
    let recursive = flag(&mut params, "recursive", false)?;
    let verb = if recursive { Verb::DeleteTree } else { Verb::Delete };
    let files = Files::open(&state, &context, session_id, verb, || {
        params.finish()?;
        if headers.contains_key(IF_MATCH) || headers.contains_key(IF_NONE_MATCH) {
            return Err(Problem::new(
                Code::InvalidRequest,
                "A deletion takes no If-Match and If-None-Match.",
            ));
        }
        required_path(text)
    })
    .await?;
    let removed = files.remove(recursive).await?;
    Ok(axum::Json(RemovedFiles {
        object: "removed_files",
        path: files.file().absolute(),
        files: removed.files,
        directories: removed.directories,
    }))
}

/// List a directory
///
/// By path, hidden names included. Links are not followed.
#[utoipa::path(get, path = "/v1/sessions/{session_id}/files/list", tag = "files", security(("bearer" = ["files:read"])),
    params(
        ("session_id" = String, Path, description = "The session."),
        ("path" = Option<String>, Query, description = "The directory; `/workspace` when left out."),
        ("max_depth" = Option<u32>, Query, minimum = 1, maximum = 64, description = "1 (when left out) is the directory alone."),
        ("include_hidden" = Option<bool>, Query, description = "Names that start with a dot too; true when left out."),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 10000, description = "Most entries; 1,000 when left out."),
    ),
    responses((status = 200, description = "The entries.", body = FileListing)))]
pub(crate) async fn list_files(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(session_id): Id<SessionId>,
    mut params: Params,
) -> Result<impl IntoResponse, Problem> {
    let text = params.take("path")?;
    let max_depth = number(&mut params, "max_depth", limits::LIST_DEPTH, 1)?;
    let limit = number(&mut params, "limit", limits::LIST_ENTRIES, limits::LIST_ENTRIES_DEFAULT)?;
    let include_hidden = flag(&mut params, "include_hidden", true)?;
    let files = Files::open(&state, &context, session_id, Verb::List, || {
        params.finish()?;
        directory_path(text.as_deref())
    })
    .await?;
    let (entries, listed) = files.list(max_depth, include_hidden, limit).await?;
    let data = entries.into_iter().map(|entry| FileEntry {
        path: entry.path,
        kind: entry.kind,
        size_bytes: entry.size_bytes,
    });
    Ok(axum::Json(FileListing {
        object: "file_list",
        path: files.file().absolute(),
        data: data.collect(),
        total: listed.total,
        has_more: listed.truncated,
    }))
}

fn number(params: &mut Params, name: &str, most: u32, default: u32) -> Result<u32, Problem> {
    let expected = format!("must be a number from 1 to {most}");
    match params.parse::<u32>(name, &expected)? {
        None => Ok(default),
        Some(number) if (1..=most).contains(&number) => Ok(number),
        Some(_) => Err(Problem::query(name, expected)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_octal() {
        assert_eq!(bits("0644"), Ok(0o644));
        assert_eq!(bits("755"), Ok(0o755));
        for bad in ["", "4755", "888", "0x1", "44", "+44"] {
            assert!(bits(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_may_be_there_is_said_once_and_plainly() {
        let of = |pairs: &[(HeaderName, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(name, HeaderValue::from_static(value));
            }
            replace(&headers).map_err(|problem| problem.code)
        };
        assert_eq!(of(&[]), Ok(Replace::Anything));
        assert_eq!(of(&[(IF_NONE_MATCH, "*")]), Ok(Replace::Nothing));
        assert!(matches!(of(&[(IF_MATCH, "\"1-2-3\"")]), Ok(Replace::Version(_))));
        for bad in [
            &[(IF_NONE_MATCH, "\"1-2-3\"")][..],
            &[(IF_MATCH, "*")],
            &[(IF_MATCH, "\"1-2-3\""), (IF_NONE_MATCH, "*")],
            &[(IF_MATCH, "\"1-2-3\""), (IF_MATCH, "\"4-5-6\"")],
        ] {
            assert_eq!(of(bad), Err(Code::InvalidRequest), "{bad:?}");
        }
    }
}
