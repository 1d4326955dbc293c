//! Tool calls in a model provider's own blocks, answered in its own result blocks.

use axum::extract::State;
use axum::response::IntoResponse;
use data_encoding::HEXLOWER;
use domain::{Call, Code, SessionId, TenantContext, limits};
use futures_util::future::join_all;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use super::access::Tenant;
use super::extract::{Id, IdempotencyKey, Input, Json, draft};
use crate::json::Checks;
use crate::problem::{FieldCode, Problem};
use crate::service::calls::{self, Target};
use crate::service::native::{self, NativeCall};
use crate::service::{output, rates, refusal, sessions, shares};
use crate::state::ApiState;
use crate::wire::submissions::SubmitCall;
use crate::wire::tool_results::{SubmitToolCalls, ToolResultCall, ToolResults};

impl Input for SubmitToolCalls {
    const APART: &'static [&'static str] = &["tool_calls"];

    fn check(&self, checks: &mut Checks) {
        self.check_size(checks);
        for (index, block) in self.tool_calls.iter().enumerate() {
            if let Err((pointer, message)) = native::read(self.format, block) {
                checks.add(format!("/tool_calls/{index}{pointer}"), FieldCode::Invalid, message);
            }
        }
    }
}

/// Run a model's tool calls
///
/// Takes the blocks in which a model of OpenAI or Anthropic called tools, and answers with the blocks that it expects in return. The calls
/// run in parallel. Each block has its own result: a tool that does not exist, arguments that do not fit, a denial and a failure are
/// results for the model to read. A block's `id` is its idempotency key: sent again, it is answered by the call that it made. All
/// results of an answer share 8 MiB; one that is longer than its part is shortened and says so.
#[utoipa::path(post, path = "/v1/sessions/{session_id}/tool_results", tag = "calls", security(("bearer" = ["calls:write"])),
    params(("session_id" = String, Path, description = "The session.")),
    request_body = SubmitToolCalls,
    responses((status = 200, description = "A result for each block.", body = ToolResults)))]
pub(crate) async fn submit_tool_calls(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(session_id): Id<SessionId>,
    key: IdempotencyKey,
    body: Json<SubmitToolCalls>,
) -> Result<impl IntoResponse, Problem> {
    key.refuse("the id of each block is its key")?;
    let session = sessions::get(&state, &context, session_id).await?;
    let request = body.input;
    let blocks: Vec<NativeCall> =
        request.tool_calls.iter().filter_map(|block| native::read(request.format, block).ok()).collect();
    // As in a batch: the request itself has been counted, so the first block is free.
    let rates: Vec<_> =
        (0..blocks.len()).map(|index| (index > 0).then(|| rates::take(&state, &context))).collect();
    let left = rates.iter().flatten().last().map(|taken| match taken {
        Ok(quotas) | Err((quotas, _)) => quotas.clone(),
    });
    let part = Part {
        request: &request,
        turns: &Semaphore::new(limits::BATCH_ADMISSIONS),
        share: shares::share(blocks.len()),
    };
    let each = blocks.iter().zip(rates).map(|(block, rate)| {
        let (state, context) = (&state, &context);
        async move {
            match rate {
                Some(Err((_, problem))) => refused(block, &problem, part.share),
                Some(Ok(_)) | None => run(state, context, session_id, block, part)
                    .await
                    .unwrap_or_else(|problem| refused(block, &problem, part.share)),
            }
        }
    });
    let (results, calls): (Vec<Value>, Vec<ToolResultCall>) = join_all(each).await.into_iter().unzip();
    if let Some(end) = &session.ended
        && calls.iter().all(|call| call.call_id.is_none())
    {
        return Err(refusal::session_ended(end));
    }
    let pending = calls.iter().filter(|call| call.status.is_some_and(|status| !status.is_terminal())).count();
    let results = ToolResults { object: "tool_results", format: request.format, results, calls, pending };
    let mut response = axum::Json(results).into_response();
    if let Some(left) = left {
        response.extensions_mut().insert(left);
    }
    Ok(response)
}

/// What the blocks of a request share.
#[derive(Clone, Copy)]
struct Part<'a> {
    request: &'a SubmitToolCalls,
    /// Calls that are taken on at the same time: one that was made before brings its whole result.
    turns: &'a Semaphore,
    /// Bytes of each result in the answer.
    share: usize,
}

/// The result of a block, and the call behind it.
type Answered = (Value, ToolResultCall);

fn answered(block: &NativeCall, call: &Call, so_far: &str, share: usize) -> Answered {
    let result = native::within(native::of_call(call, so_far), share, Some(call.id));
    let tool_call_id = block.id.clone();
    let (call_id, status) = (Some(call.id), Some(call.status));
    (native::write(block, result), ToolResultCall { tool_call_id, call_id, status, code: None })
}

fn refused(block: &NativeCall, problem: &Problem, share: usize) -> Answered {
    let result = native::within(native::of_problem(problem), share, None);
    let (tool_call_id, code) = (block.id.clone(), Some(problem.code.as_str().to_owned()));
    (native::write(block, result), ToolResultCall { tool_call_id, call_id: None, status: None, code })
}

/// Runs one block: the call as it is at its end, or when the time is over with what it wrote so far.
async fn run(
    state: &ApiState,
    context: &TenantContext,
    session_id: SessionId,
    block: &NativeCall,
    part: Part<'_>,
) -> Result<Answered, Problem> {
    let arguments = match &block.arguments {
        Ok(arguments) => arguments,
        Err(message) => return Err(Problem::new(Code::InvalidArguments, message.clone())),
    };
    let raw = json!({"tool": block.tool, "arguments": arguments});
    let (mut call, checks) = draft::<SubmitCall>(&raw)?;
    let budget = shares::budget(part.request.output_budget_bytes, part.share);
    call.output_budget_bytes = Some(budget);
    // Ids are unique within a conversation, which has one session.
    let digest = HEXLOWER.encode(&Sha256::digest(block.id.as_bytes()));
    let key = IdempotencyKey::given(format!("{session_id}:{digest}"));
    let idempotency = key.with("POST /v1/sessions/{session_id}/tool_results", &raw, &[]);
    let turn = part.turns.acquire().await;
    let submitted =
        calls::submit(state, context, Target::Session(session_id), (call, checks), idempotency).await?;
    if submitted.call.status.is_terminal() {
        return Ok(answered(block, &submitted.call, "", part.share));
    }
    drop(turn);
    let call = calls::wait(state, context, submitted, part.request.wait_ms).await.call;
    if call.status.is_terminal() {
        return Ok(answered(block, &call, "", part.share));
    }
    let _turn = part.turns.acquire().await;
    let so_far = output::so_far(state, context, &call, budget).await?;
    Ok(answered(block, &call, &so_far, part.share))
}
