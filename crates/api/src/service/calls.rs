//! Calls. [`submit`] is the only way to start one, whatever the face.
//!
//! # Design notes
//!
//! Between the commit of a call as `starting` and the moment when the worker in this process has it, nothing may be dropped: a client
//! that disconnects would leave a call that nobody runs until its lease is over. So admission runs in a task of its own, which the
//! request only waits for.

use std::time::Duration;

use domain::policy::{Decision, EffectiveLimits, Layered, Question, evaluate};
use domain::trace::PastSpan;
use domain::{
    Call, CallEnded, CallError, CallId, CallStatus, Code, EndReason, Event, EventBody, QueuePlace, SessionId,
    TenantContext, TenantId, limits,
};
use serde_json::{Value, json};
use store::{
    Accepted, Admission, AdmitSession, Admitted, CallChange, CallDecision, CallFilter, CallWatch,
    Idempotency, Listed, NewCall, Page,
};
use tokio::time::{Instant, timeout_at};
use tracing::Instrument;

use super::sessions::Replay;
use super::{policies, quotas, refusal, sessions, tools as catalogue};
use crate::json::Checks;
use crate::metrics::CallOutcome;
use crate::problem::{FieldCode, Problem};
use crate::state::ApiState;
use crate::wire::sessions::CreateSession;
use crate::wire::submissions::SubmitCall;

/// Where a call is to run.
pub(crate) enum Target {
    /// In a session that exists.
    Session(SessionId),
    /// In one made for it alone.
    OneShot(Box<CreateSession>),
}

/// A call that was taken on, and how to hear of it.
pub(crate) struct Submitted {
    pub(crate) call: Call,
    pub(crate) place: Option<QueuePlace>,
    pub(crate) replay: Replay,
    pub(crate) watch: CallWatch,
}

/// Takes a call on: catalogue, policy, a slot if one is free, and the row. Denied by policy is a call too.
pub(crate) async fn submit(
    state: &ApiState,
    context: &TenantContext,
    target: Target,
    request: (SubmitCall, Checks),
    idempotency: Option<Idempotency>,
) -> Result<Submitted, Problem> {
    let admission = match plan(state, context, target, request, idempotency.clone()).await {
        Ok(admission) => admission,
        Err(problem) => return again(state, context, idempotency.as_ref(), problem).await,
    };
    let used_up = quotas::cpu_used_up(state, context, &admission.limits).await?;
    let task = tokio::spawn(admit(state.clone(), admission, used_up).in_current_span());
    task.await.unwrap_or_else(|panic| Err(Problem::internal("submit", &panic)))
}

async fn plan(
    state: &ApiState,
    context: &TenantContext,
    target: Target,
    (request, mut checks): (SubmitCall, Checks),
    idempotency: Option<Idempotency>,
) -> Result<Admission, Problem> {
    let alone = matches!(target, Target::OneShot(_));
    let (session, session_policy) = match target {
        Target::Session(id) => {
            let policy = sessions::policy(state, context, id).await?;
            (AdmitSession::Existing(id), policy)
        }
        Target::OneShot(request) => {
            let (new, _) = sessions::plan(state, context, *request, "/session", &mut checks);
            let policy = new.policy.clone().map(std::sync::Arc::new);
            (AdmitSession::OneShot(Box::new(new)), policy)
        }
    };
    let layers = policies::layers(state, context, session_policy.as_deref());
    let decided = decide(state, context.tenant_id(), &layers, request, alone, &mut checks).await;
    checks.finish()?;
    let (call, decision) = decided.ok_or_else(Problem::not_found)?;
    let limits = decision.limits.clone();
    room_to_store(state, context, &limits).await?;
    Ok(Admission {
        context: context.clone(),
        session,
        call,
        decision: as_decision(decision),
        reservation: None,
        limits,
        idempotency,
    })
}

/// What may not be taken on now may have been before: then that call is the answer, whatever policy and quotas say since.
async fn again(
    state: &ApiState,
    context: &TenantContext,
    idempotency: Option<&Idempotency>,
    problem: Problem,
) -> Result<Submitted, Problem> {
    let Some(key) = idempotency else { return Err(problem) };
    match state.store.accepted(context, key).await? {
        Some(Accepted::Same(id)) => {
            let watch = state.store.bus().subscribe_call(CallId::from_uuid(id));
            let (call, place) = get(state, context, CallId::from_uuid(id)).await?;
            Ok(Submitted { call, place, replay: Replay::Again, watch })
        }
        Some(Accepted::Other(fields)) => Err(refusal::idempotency_mismatch(fields)),
        None => Err(problem),
    }
}

/// Whether the tenant may store more.
pub(super) async fn room_to_store(
    state: &ApiState,
    context: &TenantContext,
    limits: &EffectiveLimits,
) -> Result<(), Problem> {
    let in_use = state.store.stored_bytes(context).await?;
    if in_use < limits.stored_bytes {
        return Ok(());
    }
    Err(refusal::stored_bytes(limits.stored_bytes, in_use))
}

/// What policy says of a call, and the call as it would be admitted. `None` when something is wrong, which `checks` then has.
async fn decide(
    state: &ApiState,
    tenant_id: TenantId,
    layers: &[Layered<'_>],
    request: SubmitCall,
    alone: bool,
    checks: &mut Checks,
) -> Option<(NewCall, Decision)> {
    if checks.covers("/tool") {
        return None;
    }
    let tool = match catalogue::resolve(state, &request.tool) {
        Ok(tool) => tool,
        Err(problem) => {
            checks.absorb(problem);
            return None;
        }
    };
    if let Some(version) = request.version.filter(|version| version != tool.version) {
        let shown: String = version.chars().filter(|c| !c.is_control()).collect();
        let message = format!("`{}` has version {}, not {shown}", tool.name, tool.version);
        checks.add("/version", FieldCode::Invalid, message);
    }
    let decision = evaluate(layers, Question { tool: tool.name, toolkit: tool.toolkit });
    // A tool that may take longer than anything that runs only waits, and uses nothing that policy's limit is there for.
    let only_waits = tool.max_timeout_ms > domain::limits::TIMEOUT_MS;
    let most =
        if only_waits { tool.max_timeout_ms } else { tool.max_timeout_ms.min(decision.limits.timeout_ms) };
    checks.range("/timeout_ms", request.timeout_ms, 1..=most);
    let given = BACKGROUND.map(|own| request.arguments.contains_key(own));
    let mut admitted = match catalogue::admit(state, tenant_id, &request.tool, request.arguments).await {
        Ok(admitted) => admitted,
        Err(problem) => {
            checks.absorb(problem);
            return None;
        }
    };
    if alone {
        stay_in_the_foreground(&mut admitted, given, checks);
    }
    let timeout_ms = timeout(&admitted, request.timeout_ms, most, checks)?;
    let call = NewCall {
        tool: admitted.tool.to_owned(),
        requested_tool: admitted.requested_tool,
        version: admitted.version.to_owned(),
        effect: admitted.effect,
        arguments: admitted.arguments,
        description: request.description.or(admitted.description),
        timeout_ms,
        output_budget_bytes: request.output_budget_bytes.unwrap_or(limits::OUTPUT_BUDGET_BYTES_DEFAULT),
        after_call_id: request.after,
        parent_call_id: None,
        metadata: request.metadata,
        trace: crate::trace::current(),
    };
    Some((call, decision))
}

/// The call's timeout: what was asked, if tool and policy allow it; else the tool's own, within policy.
fn timeout(admitted: &tools::Admitted, field: Option<u64>, most: u64, checks: &mut Checks) -> Option<u64> {
    match admitted.timeout(field) {
        Err(_) if checks.within("/timeout_ms") => None,
        Err(problem) => {
            checks.add(problem.pointer, FieldCode::Invalid, problem.message);
            None
        }
        Ok(timeout_ms) if timeout_ms > most && admitted.timeout_ms.is_some() => {
            let message = format!("the timeout must be at most {most} ms (asked for {timeout_ms})");
            checks.add("/arguments", FieldCode::LimitExceeded, message);
            None
        }
        Ok(timeout_ms) => Some(timeout_ms.min(most)),
    }
}

/// A session of one call ends with it, and with the session whatever went on in the background. Who asks for that is told;
/// what another system's tool does by itself is left out.
fn stay_in_the_foreground(admitted: &mut tools::Admitted, given: [bool; 2], checks: &mut Checks) {
    let Some(arguments) = admitted.arguments.as_object_mut() else { return };
    for (own, given) in BACKGROUND.into_iter().zip(given) {
        if arguments.get(own).is_none_or(|value| *value == Value::Bool(false)) {
            continue;
        }
        arguments.remove(own);
        let other = admitted.given_as.iter().find(|(field, _)| field == own).map(|(_, name)| name.as_str());
        if let Some(name) = other.or_else(|| given.then_some(own)) {
            let message = "the session ends with this call, and what runs in the background with it: create a session \
                (POST /v1/sessions) and submit the call there";
            checks.add(format!("/arguments/{name}"), FieldCode::Invalid, message);
        }
    }
}

/// Arguments that let a command go on after its call.
const BACKGROUND: [&str; 2] = ["background", "background_after_ms"];

fn as_decision(decision: Decision) -> CallDecision {
    if decision.allowed {
        return CallDecision::Allowed;
    }
    let rule = json!({"layer": decision.layer, "rule": decision.rule});
    CallDecision::Denied {
        error: CallError::new(Code::PolicyDenied, decision.explanation)
            .hint("Use another tool, or ask whoever sets the policy. POST /v1/policies/explain with the session's id says which rule decides.")
            .details(rule.clone()),
        ended: CallEnded { reason: EndReason::Denied, evidence: rule, hint: None },
    }
}

/// From a free slot to a running or queued call. Must run to its end.
async fn admit(
    state: ApiState,
    mut admission: Admission,
    used_up: Option<Problem>,
) -> Result<Submitted, Problem> {
    let context = admission.context.clone();
    let tenant_id = context.tenant_id();
    let brings_session = matches!(admission.session, AdmitSession::OneShot(_));
    if used_up.is_some() {
        // Nothing new is taken on; what an idempotency key has made is still answered.
        admission.limits.queued_calls = 0;
    }
    let reservation = match (&admission.session, &admission.decision, admission.call.after_call_id) {
        (AdmitSession::Existing(id), CallDecision::Allowed, None) if used_up.is_none() => {
            state.ports.dispatch.reserve(tenant_id, *id)
        }
        _ => None,
    };
    admission.reservation = reservation.as_ref().map(|reservation| reservation.worker_id);
    let tool = admission.call.tool.clone();
    let asked_at = state.store.clock().now();
    let admitted = state.store.admit(admission).await?;
    state.ports.traces.past(PastSpan {
        name: "admission",
        under: None,
        started_at: asked_at,
        ended_at: state.store.clock().now(),
        facts: vec![("tool", tool.clone())],
    });
    state.metrics.call(&tool, counted(&admitted), 1);
    let submitted = |call: Call, place, replay| {
        tracing::Span::current().record("call_id", tracing::field::display(call.id));
        let watch = state.store.bus().subscribe_call(call.id);
        Submitted { call, place, replay, watch }
    };
    match admitted {
        Admitted::Started(call) => {
            let submitted = submitted(call.clone(), None, Replay::First);
            match reservation {
                Some(reservation) => state.ports.dispatch.start(reservation, call),
                None => return Err(Problem::internal("submit", &"a call was started without a reservation")),
            }
            Ok(submitted)
        }
        Admitted::Queued(call, place) => {
            drop(reservation);
            if brings_session {
                state.ports.dispatch.session_changed(call.session_id);
            }
            state.ports.dispatch.queued(call.session_id);
            Ok(submitted(call, Some(place), Replay::First))
        }
        Admitted::Denied(call) => Ok(submitted(call, None, Replay::First)),
        Admitted::Duplicate(call) => Ok(submitted(call, None, Replay::Again)),
        Admitted::Mismatch { fields } => Err(refusal::idempotency_mismatch(fields)),
        Admitted::SessionNotFound => Err(Problem::not_found()),
        Admitted::SessionEnded(end) => Err(refusal::session_ended(&end)),
        Admitted::AfterNotFound => {
            let message = "names no call of this tenant";
            Err(Problem::new(Code::InvalidArguments, format!("`/after` {message}.")).field(
                "/after",
                FieldCode::Invalid,
                message,
            ))
        }
        Admitted::QueueFull { limit, retry_after_ms } => {
            if let Some(problem) = used_up {
                return Err(quotas::refused(&state, &context, problem).await);
            }
            let detail = format!("{limit} calls of the tenant wait already, as many as may.");
            Err(Problem::new(Code::QueueFull, detail).retry_after_ms(retry_after_ms).with("limit", limit))
        }
        Admitted::NoRoom(why) => Err(refusal::no_room(why)),
        Admitted::SessionQuotaExceeded { limit, in_use } => Err(refusal::session_quota(limit, in_use)),
    }
}

/// What became of an admission, as it is counted.
fn counted(admitted: &Admitted) -> CallOutcome {
    match admitted {
        Admitted::Started(_) => CallOutcome::Started,
        Admitted::Queued(..) => CallOutcome::Queued,
        Admitted::Denied(_) => CallOutcome::Denied,
        Admitted::Duplicate(_) => CallOutcome::Repeated,
        Admitted::Mismatch { .. }
        | Admitted::SessionNotFound
        | Admitted::SessionEnded(_)
        | Admitted::AfterNotFound
        | Admitted::QueueFull { .. }
        | Admitted::NoRoom(_)
        | Admitted::SessionQuotaExceeded { .. } => CallOutcome::Refused,
    }
}

/// Waits for a call's end, at most so long, and returns it as it is then, or as it was last seen. Dropping the wait does nothing to the call.
pub(crate) async fn wait(
    state: &ApiState,
    context: &TenantContext,
    submitted: Submitted,
    wait_ms: u64,
) -> Submitted {
    let mut submitted = submitted;
    let deadline = Instant::now() + Duration::from_millis(wait_ms);
    let mut look = submitted.replay == Replay::Again || submitted.call.status == CallStatus::Queued;
    while wait_ms > 0 && !submitted.call.status.is_terminal() {
        if std::mem::take(&mut look) {
            // The call was taken on: when it cannot be read just now, what is known of it is the answer.
            match timeout_at(deadline, state.store.get_call(context, submitted.call.id)).await {
                Ok(Ok(call)) => submitted.call = call,
                Ok(Err(error)) => tracing::warn!(%error, "an accepted call cannot be read; it is waited for"),
                Err(_) => break,
            }
            if submitted.call.status.is_terminal() {
                break;
            }
        }
        let now = Instant::now();
        if now >= deadline || state.shutdown.is_cancelled() {
            break;
        }
        let poll_at = deadline.min(now + Duration::from_millis(limits::POLL_MS));
        look = match timeout_at(poll_at, submitted.watch.changed()).await {
            Ok(CallChange::Events(events)) => !events.iter().all(|event| advance(&mut submitted.call, event)),
            Ok(CallChange::Wake) | Err(_) => true,
        };
    }
    submitted
}

/// Takes an event into a call that is known up to the event before. False when something is missing in between.
fn advance(call: &mut Call, event: &Event) -> bool {
    if event.seq <= call.last_seq {
        return true;
    }
    if event.seq != call.last_seq + 1 {
        return false;
    }
    call.last_seq = event.seq;
    match &event.body {
        EventBody::Started { attempt } => {
            call.status = CallStatus::Running;
            call.attempt = *attempt;
            call.started_at.get_or_insert(event.at);
        }
        EventBody::Ended { status, result, error, ended, usage } => {
            call.status = *status;
            call.result.clone_from(result);
            call.error.clone_from(error);
            call.ended = Some(ended.clone());
            call.usage = usage.clone();
            call.ended_at = Some(event.at);
        }
        EventBody::Queued { .. }
        | EventBody::Output(_)
        | EventBody::Progress { .. }
        | EventBody::ShellStarted { .. }
        | EventBody::ArtifactCreated { .. } => {}
    }
    true
}

/// One call, with its place in the queue while it waits.
pub(crate) async fn get(
    state: &ApiState,
    context: &TenantContext,
    id: CallId,
) -> Result<(Call, Option<QueuePlace>), Problem> {
    let call = state.store.get_call(context, id).await?;
    let place = match call.status {
        CallStatus::Queued => state.store.queue_place(context, id).await?,
        _ => None,
    };
    Ok((call, place))
}

/// Calls, newest first.
pub(crate) async fn list(
    state: &ApiState,
    context: &TenantContext,
    filter: &CallFilter,
    page: Page,
) -> Result<Listed<Call>, Problem> {
    Ok(state.store.list_calls(context, filter, page).await?)
}

/// Asks for a call's end.
pub(crate) async fn cancel(state: &ApiState, context: &TenantContext, id: CallId) -> Result<Call, Problem> {
    let call = state.store.request_cancel(context, id).await?;
    if !call.status.is_terminal() {
        state.ports.dispatch.cancelled(id);
    }
    Ok(call)
}
