//! Running a call: from a slot to its one terminal state.
//!
//! # Design notes
//!
//! One task runs the tool and drives its log side by side, so that a quick call has no hand-over between tasks and
//! no commit but that of its result. The task ends in one of two ways: the outcome is committed under the fence, or
//! the worker has no right to write it any more and leaves no trace.

mod clock;
mod execute;
mod keep;
mod log;
mod outcome;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use domain::call::Outcome;
use domain::trace::PastSpan;
use domain::{
    Call, CallEnded, CallError, CallId, CallStatus, CallUsage, Code, EndReason, SessionEnd, SessionEndReason,
    SessionId,
};
use store::{Fence, SessionWish};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

use crate::board::Slot;
use crate::metrics::tool_label;
use crate::tenure::{Tenure, Unwritten};

pub(crate) use execute::Facts;
use execute::execute;
pub(crate) use keep::{NotKept, is_storage, keep};
pub(crate) use log::CallLog;
pub(crate) use outcome::Cause;
use outcome::Report;

/// How a call came to be run here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// Admission took a slot and inserted it as started.
    Direct,
    /// It was claimed from the queue.
    Claimed,
    /// A worker before had it.
    Resumed {
        /// The sandbox that it ran in is the session's sandbox of this generation.
        generation: u32,
    },
}

impl Start {
    /// Every word for it.
    pub(crate) const NAMES: &'static [&'static str] = &["direct", "claimed", "resumed"];

    fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Claimed => "claimed",
            Self::Resumed { .. } => "resumed",
        }
    }
}

/// A call that runs here, as others see it.
#[derive(Debug)]
pub(crate) struct RunningCall {
    pub(crate) id: CallId,
    pub(crate) session_id: SessionId,
    /// Fires when it is to be ended.
    pub(crate) cancel: CancellationToken,
    /// Fires when nothing more is done about it here.
    pub(crate) over: CancellationToken,
    cause: Mutex<Option<Cause>>,
}

impl RunningCall {
    /// Ends it, for the first reason that somebody gives.
    pub(crate) fn end(&self, cause: Cause) {
        self.cause.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(cause);
        self.cancel.cancel();
    }

    /// Why it is to be ended, if it is.
    pub(crate) fn cause(&self) -> Option<Cause> {
        *self.cause.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a call that the store has given to this worker, unless it runs already.
pub(crate) fn start(tenure: &Arc<Tenure>, call: Call, slot: Slot, how: Start) {
    let running = Arc::new(RunningCall {
        id: call.id,
        session_id: call.session_id,
        cancel: CancellationToken::new(),
        over: CancellationToken::new(),
        cause: Mutex::new(call.cancel_requested.then_some(Cause::Cancelled)),
    });
    if call.cancel_requested {
        running.cancel.cancel();
    }
    let (Some(session), Some(fence)) = (tenure.session(call.session_id), Fence::of(&call)) else {
        // It is found again among the calls of this worker once its session is here.
        tracing::warn!(call = %call.id, session = %call.session_id, "a call of a session that is not here");
        return;
    };
    if tenure.ended.is_cancelled() || !tenure.insert_call(&running) {
        return;
    }
    tenure.metrics().starts.with_label_values(&[how.as_str()]).inc();
    let span = span_of(tenure, &call, how);
    let tenure_of_task = Arc::clone(tenure);
    let task = async move {
        let tenure = tenure_of_task;
        let facts = Arc::new(Facts::new(&tenure, &session, &running, call, how, slot, CallLog::new(fence)));
        run(&facts).await;
        tenure.remove_call(running.id);
        running.over.cancel();
        drop(facts);
    };
    tenure.spawn(task.instrument(span));
}

/// The span of a call's run here, under the request that asked for it, wherever that was. Its wait is a span beside it.
fn span_of(tenure: &Tenure, call: &Call, how: Start) -> Span {
    // No parent in this process: a request does not last until what it asked for has ended.
    let span = tracing::info_span!(
        parent: None,
        "call",
        otel.kind = "consumer",
        call_id = %call.id,
        session_id = %call.session_id,
        trace_id = tracing::field::Empty,
        attempt = call.attempt,
        how = how.as_str(),
    );
    let Some(trace) = call.trace else { return span };
    span.record("trace_id", trace.trace());
    let traces = &tenure.core.traces;
    span.in_scope(|| traces.adopt(trace));
    match how {
        Start::Direct | Start::Claimed => traces.past(PastSpan {
            name: "queue",
            under: Some(trace),
            started_at: call.created_at,
            ended_at: tenure.store().clock().now(),
            facts: vec![("call_id", call.id.to_string())],
        }),
        Start::Resumed { .. } => {}
    }
    span
}

/// A call whose key or tenant may not run it any more is cancelled and says so, whether its own end or its session's was noticed first.
/// What cannot be read now is left out.
async fn say_who_wished(facts: &Facts, outcome: &mut Outcome) {
    if !matches!(outcome.ended.reason, EndReason::Cancelled | EndReason::SessionEnded) {
        return;
    }
    if let Ok(Some(reason)) = facts.tenure.store().cancel_reason(facts.call.id).await {
        outcome.status = CallStatus::Cancelled;
        outcome.ended.reason = EndReason::Cancelled;
        outcome.error = Some(CallError::new(Code::Cancelled, reason.message));
        if let Some(evidence) = outcome.ended.evidence.as_object_mut() {
            evidence.insert("cause".to_owned(), reason.cause.into());
        }
    }
}

async fn run(facts: &Arc<Facts>) {
    let tenure = &facts.tenure;
    let began = Instant::now();
    let drive = facts.log.drive(tenure);
    tokio::pin!(drive);
    let report = tokio::select! {
        biased;
        driven = &mut drive => after_drive(facts, driven, Report::Nothing),
        report = execute(facts) => {
            facts.log.close();
            after_drive(facts, drive.await, report)
        }
    };
    let Report::End(mut outcome) = report else { return };
    if facts.running.cause().is_some() {
        say_who_wished(facts, &mut outcome).await;
    }
    outcome.usage = facts.usage(began.elapsed());
    facts.log.end_output(None);
    if finish(tenure, facts, *outcome).await {
        if facts.is_forgettable() {
            forget(tenure, facts);
        }
        if facts.session.row.one_shot {
            facts.session.wish(SessionWish::End(SessionEnd::because(SessionEndReason::Deleted)));
        }
    }
}

/// What becomes of a call once nothing more of its log is in flight.
fn after_drive(facts: &Facts, driven: Result<(), Unwritten>, report: Report) -> Report {
    match driven {
        Ok(()) => report,
        Err(Unwritten::Superseded) => Report::Nothing,
        Err(Unwritten::Refused(error)) => {
            tracing::error!(call = %facts.call.id, %error, "events of a call were refused");
            Report::End(Box::new(unrecorded()))
        }
    }
}

/// The end of a call whose true end the store does not take.
fn unrecorded() -> Outcome {
    Outcome {
        status: CallStatus::Failed,
        result: None,
        error: Some(CallError::new(Code::PlatformError, "The platform could not record what the call did.")),
        ended: CallEnded::because(EndReason::PlatformError),
        usage: CallUsage::default(),
    }
}

/// Commits the end. False when this worker had no right to it any more.
async fn finish(tenure: &Tenure, facts: &Facts, outcome: Outcome) -> bool {
    let mut rest = facts.log.rest();
    let usage = outcome.usage.clone();
    for outcome in [outcome, Outcome { usage: usage.clone(), ..unrecorded() }] {
        let finished = tenure
            .write(|| {
                tenure.store().finish_call(&rest.fence, rest.announce, rest.events.clone(), outcome.clone())
            })
            .await;
        match finished {
            Ok(_) => {
                count(tenure, facts, &outcome);
                return true;
            }
            Err(Unwritten::Superseded) => return false,
            Err(Unwritten::Refused(error)) => {
                tracing::error!(call = %facts.call.id, %error, "the end of a call was refused");
                rest.events.clear();
            }
        }
    }
    false
}

fn count(tenure: &Tenure, facts: &Facts, outcome: &Outcome) {
    let metrics = tenure.metrics();
    let tool = tool_label(&tenure.core.catalog, &facts.call.tool);
    metrics.calls.with_label_values(&[tool, outcome.status.as_str()]).inc();
    metrics.queue_seconds.observe(Duration::from_millis(outcome.usage.queue_ms).as_secs_f64());
    let duration = Duration::from_millis(outcome.usage.duration_ms).as_secs_f64();
    metrics.duration_seconds.with_label_values(&[tool]).observe(duration);
}

/// Everything of the call is durable: the agent's journal need not keep it.
fn forget(tenure: &Tenure, facts: &Facts) {
    let Some(serving) = facts.session.serving_now() else { return };
    let owner = facts.call.id.to_string();
    tenure.spawn(async move {
        if let Err(error) = serving.sandbox.agent().forget(&owner).await {
            tracing::debug!(call = owner, %error, "the journal keeps a call that has ended");
        }
    });
}

/// Counters that a call's operations add to.
#[derive(Debug, Default)]
pub(crate) struct Consumption {
    inner: Mutex<CallUsage>,
}

impl Consumption {
    pub(crate) fn add(&self, add: impl FnOnce(&mut CallUsage)) {
        add(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn so_far(&self) -> CallUsage {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
