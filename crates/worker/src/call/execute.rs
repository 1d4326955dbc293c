//! The run of a call's tool: in which sandbox, until when, and how it came out.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use domain::limits::KILL_GRACE_MS;
use domain::{Call, CallResult, CallUsage};
use futures_util::FutureExt;
use serde_json::Map;
use tokio::sync::OwnedSemaphorePermit;
use tracing::Instrument;

use super::clock::Clock;
use super::keep;
use super::outcome::{Cause, Circumstances, Execution, Report, report};
use super::{CallLog, Consumption, RunningCall, Start};
use crate::board::Slot;
use crate::metrics::tool_label;
use crate::ports::CallPorts;
use crate::session::{NotServing, OwnedSession, Serving};
use crate::tenure::Tenure;

/// How long what was ended may take to be gone: grace, the agent's budget of 2 s, one silence of the link, slack.
const END_LIMIT: Duration = Duration::from_millis(KILL_GRACE_MS + 2_000 + protocol_silence_ms() + 3_000);

const fn protocol_silence_ms() -> u64 {
    sandbox::protocol::SILENCE_LIMIT_MS
}

/// A call that runs, and everything that its run shares.
pub(crate) struct Facts {
    pub(crate) tenure: Arc<Tenure>,
    pub(crate) session: Arc<OwnedSession>,
    pub(crate) running: Arc<RunningCall>,
    pub(crate) call: Call,
    pub(crate) log: CallLog,
    /// The slot that it takes, and what it has in its place while it only waits.
    pub(crate) place: Place,
    pub(crate) how: Start,
    pub(crate) clock: Clock,
    /// Something with effects was asked of the sandbox, or may have been by a worker before.
    pub(crate) begun: AtomicBool,
    /// A shell of the call lives on.
    pub(crate) became_shell: AtomicBool,
    pub(crate) consumption: Consumption,
    /// What a command had written that did not come to its end.
    pub(crate) partial: Mutex<Option<CallResult>>,
}

/// What a call takes of its session's room.
pub(crate) struct Place(Mutex<Held>);

#[expect(dead_code, reason = "held until it is dropped")]
enum Held {
    Slot(Slot),
    Resting(OwnedSemaphorePermit),
    InLine(OwnedSemaphorePermit),
}

impl Place {
    /// The call only waits from here on: its slot goes to others, if the session has room for one more that waits.
    pub(crate) fn rest(&self, session: &OwnedSession) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*held, Held::Slot(_))
            && let Ok(permit) = Arc::clone(&session.resting).try_acquire_owned()
        {
            *held = Held::Resting(permit);
        }
    }

    /// The call waits for its turn, and its slot goes to others until then. False when the session has no room for one more in line.
    pub(crate) fn stand_in_line(&self, session: &OwnedSession) -> bool {
        let Ok(permit) = Arc::clone(&session.in_line).try_acquire_owned() else { return false };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Held::InLine(permit);
        true
    }

    pub(crate) fn is_in_line(&self) -> bool {
        matches!(*self.0.lock().unwrap_or_else(PoisonError::into_inner), Held::InLine(_))
    }

    /// Its turn has come, and here is its slot.
    pub(crate) fn take(&self, slot: Slot) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Held::Slot(slot);
    }
}

impl Facts {
    pub(crate) fn new(
        tenure: &Arc<Tenure>,
        session: &Arc<OwnedSession>,
        running: &Arc<RunningCall>,
        call: Call,
        how: Start,
        slot: Slot,
        log: CallLog,
    ) -> Self {
        let ran = matches!(how, Start::Resumed { .. }).then(|| match call.turn_at.or(call.started_at) {
            Some(since) if !call.in_line => {
                (tenure.store().clock().now() - since).to_std().unwrap_or_default()
            }
            Some(_) | None => Duration::ZERO,
        });
        Self {
            tenure: Arc::clone(tenure),
            session: Arc::clone(session),
            running: Arc::clone(running),
            clock: Clock::new(Duration::from_millis(call.timeout_ms), ran),
            begun: AtomicBool::new(ran.is_some()),
            became_shell: AtomicBool::new(false),
            consumption: Consumption::default(),
            partial: Mutex::default(),
            call,
            log,
            place: Place(Mutex::new(Held::Slot(slot))),
            how,
        }
    }

    /// What it used, so long after it began here.
    pub(crate) fn usage(&self, ran: Duration) -> CallUsage {
        let now = self.tenure.store().clock().now();
        let since =
            |at: chrono::DateTime<chrono::Utc>| u64::try_from((now - at).num_milliseconds()).unwrap_or(0);
        let turn = self.clock.turn();
        let ran_ms = u64::try_from(turn.unwrap_or(ran).as_millis()).unwrap_or(u64::MAX);
        // Before this worker had it, only the database's clock knows.
        let duration_ms = match self.how {
            // It stood in line when its worker went away, and has not come to the line again.
            Start::Resumed { .. } if turn.is_none() && self.call.in_line => 0,
            Start::Resumed { .. } if turn.is_none() => {
                self.call.turn_at.or(self.call.started_at).map_or(ran_ms, since)
            }
            Start::Direct | Start::Claimed | Start::Resumed { .. } => ran_ms,
        };
        let queue_ms = since(self.call.created_at).saturating_sub(duration_ms);
        CallUsage { queue_ms, duration_ms, ..self.consumption.so_far() }
    }

    /// The trace that it belongs to, as it is searched for; empty when it belongs to none.
    pub(crate) fn trace_id(&self) -> String {
        self.call.trace.map_or_else(String::new, |trace| trace.trace())
    }

    /// Whether the agent's journal holds nothing of the call that somebody still needs.
    pub(crate) fn is_forgettable(&self) -> bool {
        self.begun.load(Ordering::Relaxed) && !self.became_shell.load(Ordering::Relaxed)
    }

    fn circumstances(&self, runs: u32) -> Circumstances {
        Circumstances {
            effect: self.call.effect,
            may_have_begun: self.begun.load(Ordering::Relaxed),
            cause: self.running.cause(),
            runs,
            usage: CallUsage::default(),
            timeout_ms: self.call.timeout_ms,
            partial: self.partial.lock().unwrap_or_else(PoisonError::into_inner).take(),
        }
    }
}

/// Runs the tool, again where nothing can have happened twice, and decides what becomes of the call.
pub(super) async fn execute(facts: &Arc<Facts>) -> Report {
    for runs in 0.. {
        let execution = kept(facts, run_once(facts, runs).await).await;
        match report(execution, facts.circumstances(runs)) {
            Report::RunAgain => {
                facts.log.end_output(None);
            }
            decided @ (Report::End(_) | Report::Nothing) => return decided,
        }
    }
    Report::Nothing
}

async fn run_once(facts: &Arc<Facts>, runs: u32) -> Execution {
    let serving = match serving(facts).await {
        Ok(serving) => serving,
        Err(execution) => return execution,
    };
    if runs == 0 {
        facts.clock.sandbox_ready();
    }
    if let Start::Resumed { generation } = facts.how
        && runs == 0
        && serving.generation != generation
    {
        return Execution::SandboxGone(facts.session.last_gone());
    }
    let ports = Arc::new(CallPorts::new(Arc::clone(facts), serving.clone(), runs));
    let cx = tools::Context {
        call_id: facts.call.id,
        session_id: facts.call.session_id,
        tenant_id: facts.call.tenant_id,
        description: facts.call.description.clone(),
        output_budget_bytes: facts.call.output_budget_bytes,
        cancel: facts.running.cancel.clone(),
        sandbox: ports.clone(),
        shells: ports.clone(),
        outputs: ports.clone(),
        waits: ports.clone(),
        contexts: ports.clone(),
        records: ports.clone(),
        artifacts: ports.clone(),
        wheels: ports.clone(),
        events: ports,
    };
    let arguments = facts.call.arguments.clone();
    facts.consumption.add(|usage| usage.bytes_in = arguments.to_string().len() as u64);
    let span = tracing::info_span!("tool", call_id = %facts.call.id, trace_id = facts.trace_id(), tool = facts.call.tool);
    let tool = AssertUnwindSafe(facts.tenure.core.catalog.run(&facts.call.tool, &cx, arguments))
        .catch_unwind()
        .instrument(span);
    tokio::pin!(tool);
    tokio::select! {
        biased;
        returned = &mut tool => match returned {
            Ok(Ok(finished)) => Execution::Returned(finished),
            Ok(Err(error)) => Execution::Refused(error),
            Err(_) => panicked(facts),
        },
        () = facts.tenure.ended.cancelled() => Execution::Abandoned,
        () = out_of_patience(facts) => {
            // It may be the database that keeps the tool waiting; only an agent that does not obey is replaced.
            if serving.sandbox.agent().forget(&facts.call.id.to_string()).await.is_err() {
                facts.session.condemn(&serving);
            }
            Execution::Unanswered
        }
    }
}

/// What the call leaves that is to outlive its result: long output and pictures become artifacts.
async fn kept(facts: &Facts, execution: Execution) -> Execution {
    match execution {
        Execution::Returned(mut finished) => {
            keep::artifacts(facts, &mut finished.result).await;
            Execution::Returned(finished)
        }
        Execution::Refused(_)
        | Execution::Panicked
        | Execution::Unanswered
        | Execution::SandboxGone(_)
        | Execution::Abandoned => execution,
    }
}

/// The session's sandbox, once there is one.
async fn serving(facts: &Facts) -> Result<Serving, Execution> {
    let serving = tokio::select! {
        biased;
        serving = facts.session.serving() => serving,
        () = facts.tenure.ended.cancelled() => return Err(Execution::Abandoned),
        () = ending(facts) => return Err(Execution::SandboxGone(Map::new())),
    };
    match serving {
        Ok(serving) => Ok(serving),
        Err(NotServing::Ended) => {
            facts.running.end(Cause::SessionEnded);
            Err(Execution::SandboxGone(Map::new()))
        }
        Err(NotServing::Left) => Err(Execution::Abandoned),
    }
}

/// Waits until the call is to be ended; at its deadline, this says so itself.
async fn ending(facts: &Facts) {
    tokio::select! {
        () = facts.running.cancel.cancelled() => {}
        () = facts.clock.over() => facts.running.end(Cause::TimedOut),
    }
}

/// Waits until a call that is to be ended should long be over, while this worker could act.
async fn out_of_patience(facts: &Facts) {
    ending(facts).await;
    tokio::time::sleep(END_LIMIT).await;
    while !facts.tenure.lease.is_healthy() {
        facts.tenure.lease.healthy().await;
        tokio::time::sleep(END_LIMIT).await;
    }
}

/// A bug: its place is in the log. Its text is not, as it may quote what a tenant sent.
fn panicked(facts: &Facts) -> Execution {
    let tool = tool_label(&facts.tenure.core.catalog, &facts.call.tool);
    facts.tenure.metrics().panics.with_label_values(&[tool]).inc();
    tracing::error!(call_id = %facts.call.id, tool, "a tool panicked");
    Execution::Panicked
}
