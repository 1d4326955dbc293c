//! Several calls of a session in one request.

use axum::extract::State;
use axum::response::IntoResponse;
use domain::{SessionId, TenantContext, limits};
use futures_util::future::join_all;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::access::Tenant;
use super::extract::{Id, IdempotencyKey, Input, Json, draft};
use crate::json::Checks;
use crate::problem::{FieldCode, Problem};
use crate::service::calls::{self, Target};
use crate::service::{rates, refusal, sessions, shares};
use crate::state::ApiState;
use crate::wire::calls::CallView;
use crate::wire::submissions::{BatchItem, BatchOutcome, SubmitBatch, SubmitCall};

impl Input for SubmitBatch {
    const APART: &'static [&'static str] = &["calls"];

    fn check(&self, checks: &mut Checks) {
        if self.calls.is_empty() {
            checks.add("/calls", FieldCode::Invalid, "must have at least one call");
        }
        if self.calls.len() > limits::BATCH_CALLS {
            let message = format!("must have at most {} calls", limits::BATCH_CALLS);
            checks.add("/calls", FieldCode::LimitExceeded, message);
        }
    }
}

/// Submit several calls
///
/// Each is accepted or refused for itself, and they run in parallel. The request waits as long as the longest `wait_ms` says. All results
/// of an answer share 8 MiB; one that is longer than its part is shortened and says so in `system`: `GET /v1/calls/{call_id}` has all of it.
#[utoipa::path(post, path = "/v1/sessions/{session_id}/calls/batch", tag = "calls", security(("bearer" = ["calls:write"])),
    params(
        ("session_id" = String, Path, description = "The session."),
        ("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 255, pattern = "^[!-~]+$", description = "The same key and body give the same calls."),
    ),
    request_body = SubmitBatch,
    responses((status = 200, description = "What became of each call.", body = BatchOutcome)))]
pub(crate) async fn submit_batch(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(session_id): Id<SessionId>,
    key: IdempotencyKey,
    body: Json<SubmitBatch>,
) -> Result<impl IntoResponse, Problem> {
    let session = sessions::get(&state, &context, session_id).await?;
    // The request itself has been counted already, so the first call is free. What the rate does not allow is refused one by one.
    let rates: Vec<_> =
        (0..body.input.calls.len()).map(|index| (index > 0).then(|| rates::take(&state, &context))).collect();
    let left = rates.iter().flatten().last().map(|taken| match taken {
        Ok(quotas) | Err((quotas, _)) => quotas.clone(),
    });
    let turns = Semaphore::new(limits::BATCH_ADMISSIONS);
    let part = Part { session_id, turns: &turns, share: shares::share(body.input.calls.len()) };
    let each = body.input.calls.iter().zip(rates).enumerate().map(|(index, (request, rate))| {
        let (state, context, key) = (&state, &context, key.part(index));
        async move {
            let submitted = match rate {
                Some(Err((_, problem))) => Err(problem),
                Some(Ok(_)) | None => submit(state, context, index, request, &key, part).await,
            };
            match submitted {
                Ok(call) => BatchItem { index, call: Some(call), error: None },
                Err(problem) => BatchItem { index, call: None, error: Some(problem.members()) },
            }
        }
    });
    let data = join_all(each).await;
    if let Some(end) = &session.ended
        && data.iter().all(|item| item.call.is_none())
    {
        return Err(refusal::session_ended(end));
    }
    let mut response = axum::Json(BatchOutcome { object: "batch", data }).into_response();
    if let Some(left) = left {
        response.extensions_mut().insert(left);
    }
    Ok(response)
}

/// What the calls of a batch share.
#[derive(Clone, Copy)]
struct Part<'a> {
    session_id: SessionId,
    /// Calls that are taken on at the same time: one that was made before brings its whole result.
    turns: &'a Semaphore,
    /// Bytes of each result in the answer.
    share: usize,
}

async fn submit(
    state: &ApiState,
    context: &TenantContext,
    index: usize,
    request: &Value,
    key: &IdempotencyKey,
    Part { session_id, turns, share }: Part<'_>,
) -> Result<CallView, Problem> {
    let at = format!("/calls/{index}");
    let (call, checks) = draft::<SubmitCall>(request).map_err(|problem| problem.beneath(&at))?;
    let also = [("session_id", session_id.to_string())];
    let idempotency = key.with("POST /v1/sessions/{session_id}/calls/batch", request, &also);
    let wait_ms = call.wait_ms;
    let turn = turns.acquire().await;
    let submitted = calls::submit(state, context, Target::Session(session_id), (call, checks), idempotency)
        .await
        .map_err(|problem| problem.beneath(&at))?;
    if submitted.call.status.is_terminal() {
        return Ok(CallView::new(submitted.call, submitted.place).within(share));
    }
    drop(turn);
    let submitted = calls::wait(state, context, submitted, wait_ms).await;
    Ok(CallView::new(submitted.call, submitted.place).within(share))
}
