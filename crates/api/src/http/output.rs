//! A call's output over HTTP: bytes, whole or by range, or lines.

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{ACCEPT, ACCEPT_RANGES, CONTENT_RANGE, CONTENT_TYPE, RANGE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use domain::{CallId, Code, ShellId, StreamName, TenantContext};
use futures_util::stream;
use store::OutputOwner;

use super::access::Tenant;
use super::extract::{Id, Params};
use super::output_lines;
use super::ranges::{Wanted, wanted};
use crate::problem::Problem;
use crate::service::output::{STRETCH_BYTES, dropped_bytes, stretch};
use crate::state::ApiState;
use crate::wire::outputs::OutputLines;

/// Bytes that a ranged answer has at most; a client asks again for the rest.
const RANGE_BYTES: u64 = 4 * STRETCH_BYTES;

/// Says that bytes are missing in the middle of what a call wrote.
const DROPPED_BYTES: HeaderName = HeaderName::from_static("x-dropped-bytes");

/// Read a call's output
///
/// All of one stream as bytes, as far as it has been written, or a range of it (at most 4 MiB at a time). Where bytes were dropped from
/// the middle of a very long output, the whole leaves them out, and a range ends before them; `X-Dropped-Bytes` says how many there are.
///
/// With `grep` or `lines` the answer has lines as JSON: those that match a regular expression (linear time, so that none is too dear), or
/// those of some numbers, or both. It needs no sandbox: it works while the call runs and when its session is gone. One answer
/// looks at the output for at most 5 seconds; `next` says where to go on.
#[utoipa::path(get, path = "/v1/calls/{call_id}/output", tag = "calls", security(("bearer" = ["calls:read"])),
    params(
        ("call_id" = String, Path, description = "The call."),
        ("stream" = Option<crate::wire::events::StreamName>, Query, description = "`stdout` (when left out) or `stderr`."),
        ("grep" = Option<String>, Query, min_length = 1, max_length = 1000, description = "Only lines that match this regular expression."),
        ("ignore_case" = Option<bool>, Query, description = "`grep` takes upper and lower case as the same."),
        ("context" = Option<u32>, Query, maximum = 50, description = "Lines around each match; none when left out."),
        ("lines" = Option<String>, Query, pattern = "^[1-9][0-9]{0,17}(-([1-9][0-9]{0,17})?)?$", description = "Only lines of these numbers: `10-20`, `10-` or `10`."),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000, description = "Most lines of the answer; 200 when left out."),
        ("from_offset" = Option<u64>, Query, description = "`next.offset` of the answer before."),
        ("from_line" = Option<u64>, Query, description = "`next.line` of the answer before."),
        ("Range" = Option<String>, Header, description = "One range of bytes."),
    ),
    responses(
        (status = 200, description = "All of it; with `grep` or `lines` the lines.",
            content((String = "application/octet-stream"), (OutputLines = "application/json")),
            headers(("Accept-Ranges" = String, description = "`bytes`"),
                ("X-Dropped-Bytes" = u64, description = "Bytes of stdout and stderr together that were dropped from the middle; left out when there are none."))),
        (status = 206, description = "The range.", body = String, content_type = "application/octet-stream",
            headers(("Content-Range" = String, description = "Which bytes of how many."),
                ("X-Dropped-Bytes" = u64, description = "As with the whole.")))))]
pub(crate) async fn get_output(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(id): Id<CallId>,
    mut params: Params,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let stream = match params.take("stream")?.as_deref() {
        None | Some("stdout") => StreamName::Stdout,
        Some("stderr") => StreamName::Stderr,
        Some(_) => return Err(Problem::query("stream", "must be stdout or stderr")),
    };
    let asked = output_lines::asked(&mut params)?;
    params.finish()?;
    let call = state.store.get_call(&context, id).await?;
    if let Some(asked) = asked {
        let dropped_bytes = dropped_bytes(&state, OutputOwner::Call(id)).await?;
        let lines = output_lines::answer(&state, &context, &call, stream, asked, dropped_bytes).await?;
        return Ok(axum::Json(lines).into_response());
    }
    Reader { state, context, owner: OutputOwner::Call(id), stream }.answer(&headers).await
}

/// Whether a client asks for bytes where there are other forms.
pub(crate) fn wants_bytes(headers: &HeaderMap) -> bool {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    headers.contains_key(RANGE) || accept.contains("application/octet-stream")
}

/// One stream of a call or a shell of the caller's: that was asked before.
pub(crate) struct Reader {
    state: ApiState,
    context: TenantContext,
    owner: OutputOwner,
    stream: StreamName,
}

impl Reader {
    pub(crate) fn of_shell(state: ApiState, context: TenantContext, id: ShellId, stream: StreamName) -> Self {
        Self { state, context, owner: OutputOwner::Shell(id), stream }
    }

    /// All of it, or the range that is asked for.
    pub(crate) async fn answer(self, headers: &HeaderMap) -> Result<Response, Problem> {
        let dropped_bytes = dropped_bytes(&self.state, self.owner).await?;
        let mut response = match wanted(headers) {
            Wanted::Everything => self.everything().await?,
            Wanted::From(from, to) => self.part(from, to).await?,
            Wanted::Last(bytes) => {
                let total = self.total().await?;
                self.part(if bytes == 0 { total } else { total.saturating_sub(bytes) }, None).await?
            }
        };
        response.headers_mut().insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        if dropped_bytes > 0 {
            response.headers_mut().insert(DROPPED_BYTES, dropped_bytes.into());
        }
        Ok(response)
    }

    async fn read(&self, from: u64, to: u64) -> Result<crate::service::output::Stretch, Problem> {
        stretch(&self.state, &self.context, self.owner, self.stream, from, to).await
    }

    async fn total(&self) -> Result<u64, Problem> {
        Ok(self.read(0, 0).await?.total_bytes)
    }

    async fn part(self, from: u64, to: Option<u64>) -> Result<Response, Problem> {
        let end = to.map_or(u64::MAX, |to| to.saturating_add(1)).min(from.saturating_add(RANGE_BYTES));
        let found = self.read(from, end).await?;
        let total = found.total_bytes;
        if from >= total || found.from != from || found.bytes.is_empty() {
            let detail = match (from >= total, found.bytes.is_empty()) {
                (true, _) => format!("The stream has {total} bytes so far."),
                (false, true) => "These bytes were dropped from the middle of the output.".to_owned(),
                (false, false) => format!("The bytes before {} were dropped.", found.from),
            };
            let problem = Problem::new(Code::RangeNotSatisfiable, detail).with("total_bytes", total);
            let mut response = problem.into_response();
            set(&mut response, CONTENT_RANGE, format!("bytes */{total}"));
            return Ok(response);
        }
        let last = from + found.bytes.len() as u64 - 1;
        let mut response = (StatusCode::PARTIAL_CONTENT, found.bytes).into_response();
        response.headers_mut().insert(CONTENT_TYPE, OCTETS);
        set(&mut response, CONTENT_RANGE, format!("bytes {from}-{last}/{total}"));
        Ok(response)
    }

    async fn everything(self) -> Result<Response, Problem> {
        let first = self.read(0, STRETCH_BYTES).await?;
        let total = first.total_bytes;
        if first.from == 0 && first.bytes.len() as u64 == total {
            return Ok(([(CONTENT_TYPE, OCTETS)], first.bytes).into_response());
        }
        let walk = stream::try_unfold((self, 0), move |(reader, from)| reader.step(from, total));
        Ok(([(CONTENT_TYPE, OCTETS)], Body::from_stream(walk)).into_response())
    }

    /// The next kept bytes, over whatever was dropped before them.
    async fn step(self, from: u64, total: u64) -> Result<Option<(Bytes, (Self, u64))>, std::io::Error> {
        let mut from = from;
        while from < total {
            let to = total.min(from + STRETCH_BYTES);
            let found = self.read(from, to).await.map_err(|problem| std::io::Error::other(problem.detail))?;
            if !found.bytes.is_empty() {
                let next = found.from + found.bytes.len() as u64;
                return Ok(Some((found.bytes, (self, next))));
            }
            from = to;
        }
        Ok(None)
    }
}

const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");

fn set(response: &mut Response, name: HeaderName, value: String) {
    response.headers_mut().extend(HeaderValue::try_from(value).ok().map(|value| (name, value)));
}
