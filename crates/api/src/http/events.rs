//! A call's events over HTTP: a stream or pages.

use axum::extract::State;
use axum::http::header::ACCESS_CONTROL_ALLOW_ORIGIN;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use domain::{CallId, TenantContext, limits};

use super::accept::{Form, form};
use super::access::Tenant;
use super::calls::not_acceptable;
use super::extract::{Id, Params};
use crate::problem::Problem;
use crate::service::access::{Credential, bound_to};
use crate::service::events;
use crate::sse::{self, Asked, RESUMED_FROM};
use crate::state::ApiState;
use crate::wire::events::EventPage;

/// Bytes of output in one page of events.
const PAGE_BYTES: u64 = 1024 * 1024;

/// Follow a call
///
/// With `Accept: text/event-stream` a stream: each numbered event has `id` (its number), `event` (its type) and `data` (a `CallEvent`).
/// Resume with `Last-Event-ID` or `?after=`. Without a number come: comments as heartbeat, `queue`, `bookmark`, `reconnect`,
/// `slow_consumer` and, after the last event, `end`. Otherwise a page of events as JSON.
#[utoipa::path(get, path = "/v1/calls/{call_id}/events", tag = "calls",
    security(("bearer" = ["calls:read"]), ("stream_token" = [])),
    params(
        ("call_id" = String, Path, description = "The call."),
        ("after" = Option<u64>, Query, description = "Only events after this number."),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 100, description = "Events of a page, 1 to 100 (JSON only)."),
        ("Last-Event-ID" = Option<u64>, Header, description = "Like `after`, and wins over it."),
    ),
    responses(
        (status = 200, description = "The events.", content((EventPage = "application/json"), (String = "text/event-stream")),
            headers(("X-Resumed-From" = u64, description = "The number that the events really come after."))),
        (status = 204, description = "The call has ended and there is nothing after the cursor: do not connect again.")))]
pub(crate) async fn get_events(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    credential: Credential,
    Id(id): Id<CallId>,
    mut params: Params,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let cursor = cursor(&headers, &mut params, "after", events::parse_cursor)?;
    params.take("token")?;
    let limit = params.parse::<u32>("limit", "must be a number from 1 to 100")?.unwrap_or(limits::PAGE_ITEMS);
    params.finish()?;
    let signed = bound_to(&state, &credential).is_some();
    let mut response = match form(&headers) {
        Form::Events => stream(&state, Asked { context, credential, method }, id, cursor).await?,
        Form::Json if (1..=limits::PAGE_ITEMS).contains(&limit) => {
            page(&state, &context, id, cursor, limit).await?
        }
        Form::Json => return Err(Problem::query("limit", "must be a number from 1 to 100")),
        Form::Neither => return Err(not_acceptable()),
    };
    if signed {
        // Pages of any origin may use a URL that they were given; nothing else of the browser goes with it.
        response.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    }
    Ok(response)
}

/// Where to begin: the browser's header wins over the query, which is that of the first connection.
pub(crate) fn cursor<T: Default>(
    headers: &HeaderMap,
    params: &mut Params,
    name: &str,
    parse: fn(&str) -> Result<T, Problem>,
) -> Result<T, Problem> {
    let query = params.take(name)?;
    match headers.get("last-event-id") {
        Some(value) => parse(value.to_str().unwrap_or_default()),
        None => query.map_or_else(|| Ok(T::default()), |text| parse(&text)),
    }
}

async fn stream(state: &ApiState, asked: Asked, id: CallId, cursor: u64) -> Result<Response, Problem> {
    let watch = state.store.bus().subscribe_call(id);
    match events::follow(state, &asked.context, id, cursor, watch).await? {
        Some((source, first)) => sse::open(state, asked, source, first, cursor),
        None => Ok(StatusCode::NO_CONTENT.into_response()),
    }
}

async fn page(
    state: &ApiState,
    context: &TenantContext,
    id: CallId,
    cursor: u64,
    limit: u32,
) -> Result<Response, Problem> {
    let page = events::page(state, context, id, cursor, limit, PAGE_BYTES).await?;
    let last = page.events.last().map_or(cursor, |event| event.seq);
    let body = EventPage {
        object: "list",
        data: page.events.iter().map(events::to_wire).collect(),
        has_more: last < page.last_seq,
        next_cursor: last.to_string(),
        ended: page.ended && last == page.last_seq,
    };
    Ok(([(RESUMED_FROM, cursor.to_string())], axum::Json(body)).into_response())
}
