//! Calls over HTTP: submit, read, list, cancel.

use axum::extract::State;
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use domain::{CallId, Code, SessionId, TenantContext};
use store::CallFilter;

use super::accept::{Form, form};
use super::access::Tenant;
use super::extract::{Draft, Id, IdempotencyKey, Input, Json, Params};
use super::sessions::{Nothing, REPLAYED};
use crate::json::Checks;
use crate::problem::Problem;
use crate::service::access::Credential;
use crate::service::calls::{self, Submitted, Target};
use crate::service::events;
use crate::service::sessions::Replay;
use crate::sse::{self, Asked};
use crate::state::ApiState;
use crate::wire::Time;
use crate::wire::calls::{CallStatus, CallView};
use crate::wire::lists::List;
use crate::wire::submissions::{OneShotCall, SubmitCall};

impl Input for SubmitCall {
    fn check(&self, checks: &mut Checks) {
        self.check("", checks);
    }
}

impl Input for OneShotCall {
    fn check(&self, checks: &mut Checks) {
        self.session.check("/session", checks);
        self.clone().split().1.check("", checks);
    }
}

/// Submit a call
///
/// The call is durable when this answers with 2xx. `wait_ms` says how long the request waits for its end; with
/// `Accept: text/event-stream` its events are streamed at once. A call that policy does not allow is a call with the status `denied`.
#[utoipa::path(post, path = "/v1/sessions/{session_id}/calls", tag = "calls", security(("bearer" = ["calls:write"])),
    params(
        ("session_id" = String, Path, description = "The session."),
        ("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 255, pattern = "^[!-~]+$", description = "The same key and body give the same call."),
    ),
    request_body = SubmitCall,
    responses(
        (status = 200, description = "The call has ended; or its events, when they were asked for.",
            content((CallView = "application/json"), (String = "text/event-stream")),
            headers(("Location" = String, description = "The call."))),
        (status = 202, description = "The call is under way.", body = CallView,
            headers(("Location" = String, description = "The call.")))))]
pub(crate) async fn submit_call(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    credential: Credential,
    Id(session_id): Id<SessionId>,
    key: IdempotencyKey,
    headers: HeaderMap,
    body: Draft<SubmitCall>,
) -> Result<Response, Problem> {
    let form = accepted(&headers)?;
    let also = [("session_id", session_id.to_string())];
    let idempotency = key.with("POST /v1/sessions/{session_id}/calls", &body.raw, &also);
    let wait_ms = body.input.wait_ms;
    let target = Target::Session(session_id);
    let submitted = calls::submit(&state, &context, target, (body.input, body.checks), idempotency).await?;
    answer(&state, context, credential, submitted, wait_ms, form).await
}

/// Submit a call with a session of its own
///
/// The session is made for this call and ends with it.
#[utoipa::path(post, path = "/v1/calls", tag = "calls", security(("bearer" = ["calls:write"])),
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 255, pattern = "^[!-~]+$", description = "The same key and body give the same call.")),
    request_body = OneShotCall,
    responses(
        (status = 200, description = "The call has ended; or its events, when they were asked for.",
            content((CallView = "application/json"), (String = "text/event-stream")),
            headers(("Location" = String, description = "The call."))),
        (status = 202, description = "The call is under way.", body = CallView,
            headers(("Location" = String, description = "The call.")))))]
pub(crate) async fn submit_one_shot_call(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    credential: Credential,
    key: IdempotencyKey,
    headers: HeaderMap,
    body: Draft<OneShotCall>,
) -> Result<Response, Problem> {
    let form = accepted(&headers)?;
    let idempotency = key.with("POST /v1/calls", &body.raw, &[]);
    let wait_ms = body.input.wait_ms;
    let (session, call) = body.input.split();
    let target = Target::OneShot(Box::new(session));
    let submitted = calls::submit(&state, &context, target, (call, body.checks), idempotency).await?;
    answer(&state, context, credential, submitted, wait_ms, form).await
}

fn accepted(headers: &HeaderMap) -> Result<Form, Problem> {
    match form(headers) {
        Form::Neither => Err(not_acceptable()),
        form => Ok(form),
    }
}

pub(crate) fn not_acceptable() -> Problem {
    Problem::new(Code::NotAcceptable, "This is available as application/json and as text/event-stream.")
}

async fn answer(
    state: &ApiState,
    context: TenantContext,
    credential: Credential,
    submitted: Submitted,
    wait_ms: u64,
    form: Form,
) -> Result<Response, Problem> {
    let location = format!("/v1/calls/{}", submitted.call.id);
    let replay = submitted.replay;
    let mut response = match form {
        Form::Events => {
            let call = submitted.call.clone();
            let place = submitted.place.clone();
            match stream(state, context, credential, submitted).await {
                Ok(response) => response,
                // The call was taken on, so its id must not be lost.
                Err(problem) if problem.code == Code::DatabaseUnavailable => {
                    (StatusCode::ACCEPTED, axum::Json(CallView::new(call, place))).into_response()
                }
                Err(problem) => problem.with("call_id", call.id.to_string()).into_response(),
            }
        }
        Form::Json | Form::Neither => {
            let submitted = calls::wait(state, &context, submitted, wait_ms).await;
            let over = submitted.call.status.is_terminal();
            let status = if over { StatusCode::OK } else { StatusCode::ACCEPTED };
            (status, axum::Json(CallView::new(submitted.call, submitted.place))).into_response()
        }
    };
    let headers = response.headers_mut();
    headers.extend(HeaderValue::try_from(location).ok().map(|location| (LOCATION, location)));
    if replay == Replay::Again {
        headers.insert(REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

async fn stream(
    state: &ApiState,
    context: TenantContext,
    credential: Credential,
    submitted: Submitted,
) -> Result<Response, Problem> {
    let begun = events::follow(state, &context, submitted.call.id, 0, submitted.watch).await?;
    let Some((source, first)) = begun else { return Ok(StatusCode::NO_CONTENT.into_response()) };
    let asked = Asked { context, credential, method: Method::POST };
    sse::open(state, asked, source, first, 0)
}

/// Get a call
#[utoipa::path(get, path = "/v1/calls/{call_id}", tag = "calls", security(("bearer" = ["calls:read"])),
    params(("call_id" = String, Path, description = "The call.")),
    responses((status = 200, description = "The call.", body = CallView)))]
pub(crate) async fn get_call(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(id): Id<CallId>,
) -> Result<impl IntoResponse, Problem> {
    let (call, place) = calls::get(&state, &context, id).await?;
    Ok(axum::Json(CallView::new(call, place)))
}

/// Cancel a call
///
/// A call that waits ends at once; one that runs is ended by its worker within seconds. Cancelling a call that has ended changes nothing.
#[utoipa::path(post, path = "/v1/calls/{call_id}/cancel", tag = "calls", security(("bearer" = ["calls:write"])),
    params(("call_id" = String, Path, description = "The call.")),
    request_body(content = Nothing, description = "Nothing, or an empty object."),
    responses(
        (status = 200, description = "It has ended.", body = CallView),
        (status = 202, description = "It is about to end.", body = CallView)))]
pub(crate) async fn cancel_call(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(id): Id<CallId>,
    _nothing: Json<Nothing>,
) -> Result<impl IntoResponse, Problem> {
    let call = calls::cancel(&state, &context, id).await?;
    let status = if call.status.is_terminal() { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, axum::Json(CallView::new(call, None))))
}

/// List calls
///
/// Of all sessions, newest first.
#[utoipa::path(get, path = "/v1/calls", tag = "calls", security(("bearer" = ["calls:read"])),
    params(
        ("session_id" = Option<String>, Query, description = "Only calls of this session."),
        ("status" = Option<Vec<CallStatus>>, Query, description = "Statuses; several with commas."),
        ("tool" = Option<String>, Query, description = "Only calls of this tool, by its own name."),
        ("created_after" = Option<Time>, Query, description = "Admitted at or after this time (RFC 3339)."),
        ("created_before" = Option<Time>, Query, description = "Admitted before this time (RFC 3339)."),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 100, description = "Items of the page, 1 to 100; 20 when left out."),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before, with the same filter."),
    ),
    responses((status = 200, description = "A page of calls.", body = List<CallView>)))]
pub(crate) async fn list_calls(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    mut params: Params,
) -> Result<impl IntoResponse, Problem> {
    let session_id = params.parse("session_id", "must be the id of a session")?;
    list(&state, &context, session_id, params).await
}

/// List calls of a session
///
/// Newest first.
#[utoipa::path(get, path = "/v1/sessions/{session_id}/calls", tag = "calls", security(("bearer" = ["calls:read"])),
    params(
        ("session_id" = String, Path, description = "The session."),
        ("status" = Option<Vec<CallStatus>>, Query, description = "Statuses; several with commas."),
        ("tool" = Option<String>, Query, description = "Only calls of this tool, by its own name."),
        ("created_after" = Option<Time>, Query, description = "Admitted at or after this time (RFC 3339)."),
        ("created_before" = Option<Time>, Query, description = "Admitted before this time (RFC 3339)."),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 100, description = "Items of the page, 1 to 100; 20 when left out."),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before, with the same filter."),
    ),
    responses((status = 200, description = "A page of calls.", body = List<CallView>)))]
pub(crate) async fn list_session_calls(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(session_id): Id<SessionId>,
    params: Params,
) -> Result<impl IntoResponse, Problem> {
    crate::service::sessions::get(&state, &context, session_id).await?;
    list(&state, &context, Some(session_id), params).await
}

async fn list(
    state: &ApiState,
    context: &TenantContext,
    session_id: Option<SessionId>,
    mut params: Params,
) -> Result<axum::Json<List<CallView>>, Problem> {
    let status = |text: &str| text.parse::<domain::CallStatus>().ok();
    let filter = CallFilter {
        session_id,
        status: params.parse_all("status", "must be statuses of calls", status)?,
        tool: params.take("tool")?,
        created_after: params.parse("created_after", "must be a time in RFC 3339")?,
        created_before: params.parse("created_before", "must be a time in RFC 3339")?,
    };
    let (list, owner) = (format!("calls {filter:?}"), Some(context.tenant_id()));
    let page = params.page(state, &list, owner)?;
    params.finish()?;
    let listed = calls::list(state, context, &filter, page).await?;
    let next = listed.next.map(|after| state.signer.cursor(&list, owner, after));
    Ok(axum::Json(List::new(listed.items.into_iter().map(|call| CallView::new(call, None)).collect(), next)))
}
