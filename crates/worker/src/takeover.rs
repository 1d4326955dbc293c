//! What a worker before left behind: its sessions and calls go on here; and calls that were given to this worker
//! without its noticing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use domain::{CallId, CallStatus, SessionId};
use tokio::time::{MissedTickBehavior, interval};

use crate::call::{Start, start};
use crate::session::Begin;
use crate::sessions::{heed_cancels, take_in};
use crate::tenure::Tenure;

/// How often dead workers are looked for.
const LOOK: Duration = Duration::from_millis(1_000);

/// Looks for dead workers of this host until the tenure ends.
pub(crate) async fn watch(tenure: Arc<Tenure>) {
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut unknown = HashMap::new();
    loop {
        tokio::select! {
            () = tenure.ended.cancelled() => return,
            _ = look.tick() => {}
        }
        if !tenure.lease.is_healthy() {
            continue;
        }
        if tenure.takes_work()
            && let Err(error) = take_over(&tenure).await
        {
            tracing::debug!(%error, "no takeover");
        }
        if let Err(error) = start_forgotten(&tenure, &mut unknown).await {
            tracing::debug!(%error, "calls of this worker could not be read");
        }
    }
}

async fn take_over(tenure: &Arc<Tenure>) -> store::Result<()> {
    let taken = tenure.store().takeover(tenure.worker_id()).await?;
    if taken.is_empty() {
        return Ok(());
    }
    tracing::info!(
        sessions = taken.sessions.len(),
        calls = taken.calls.len(),
        quarantined = taken.quarantined.len(),
        "taken over from a dead worker"
    );
    tenure.metrics().takeovers.inc_by(taken.sessions.len() as u64);
    let generations: HashMap<_, _> =
        taken.sessions.iter().map(|session| (session.id, session.generation)).collect();
    let session_ids: Vec<_> = taken.sessions.iter().map(|session| session.id).collect();
    for session in taken.sessions {
        // A session that cannot be taken in now is found among the worker's own by the next look.
        if let Err(error) = take_in(tenure, session, Begin::TakenOver).await {
            tracing::warn!(%error, "a session could not be taken in yet");
        }
    }
    for (tenant_id, count) in tenure.store().slots_of_worker(tenure.worker_id()).await? {
        tenure.board.lock().granted_at_least(tenant_id, count);
    }
    for call in taken.calls {
        let generation = generations.get(&call.session_id).copied();
        resume(tenure, call, generation);
    }
    if !taken.quarantined.is_empty() {
        tenure.spawn(end_quarantined(Arc::clone(tenure), session_ids, taken.quarantined));
    }
    Ok(())
}

/// What calls ran that are not tried again is ended, in whichever of the sandboxes it runs.
async fn end_quarantined(tenure: Arc<Tenure>, sessions: Vec<SessionId>, calls: Vec<CallId>) {
    for session in sessions.into_iter().filter_map(|id| tenure.session(id)) {
        let serving = tokio::select! {
            () = tenure.ended.cancelled() => return,
            serving = session.serving() => serving,
        };
        let Ok(serving) = serving else { continue };
        for call in &calls {
            // What is missed here, the sweep of journals finds.
            let _ = serving.sandbox.agent().forget(&call.to_string()).await;
        }
    }
}

fn resume(tenure: &Arc<Tenure>, call: domain::Call, generation: Option<u32>) {
    let Some(session) = tenure.session(call.session_id) else { return };
    // A call that was given to this very worker belongs to whatever serves its session now.
    let present = || session.serving_now().map_or(session.row.generation, |serving| serving.generation);
    let generation = generation.unwrap_or_else(present);
    let slot = tenure.board.seat(call.tenant_id, call.session_id);
    start(tenure, call, slot, Start::Resumed { generation });
}

/// Runs calls whose rows say that this worker has them, and of which it does not know: the answer to their
/// admission or claim was lost.
///
/// # Design notes
/// A call is taken for forgotten when two looks, a second apart, find it unknown at the same attempt. Between a
/// row's commit and its start in memory lie microseconds, and a call that ran and ended in between is among those
/// that ended lately. The run is one of a resumed call all the same: the journal is asked first.
async fn start_forgotten(tenure: &Arc<Tenure>, unknown: &mut HashMap<CallId, u32>) -> store::Result<()> {
    let mut still_unknown = HashMap::new();
    for call in heed_cancels(tenure).await? {
        if tenure.knows_call(call.id)
            || !tenure.takes_work()
            || !matches!(call.status, CallStatus::Starting | CallStatus::Running)
        {
            continue;
        }
        if unknown.get(&call.id) == Some(&call.attempt) {
            tracing::warn!(call = %call.id, "a call of this worker was not running; it is started");
            resume(tenure, call, None);
        } else {
            still_unknown.insert(call.id, call.attempt);
        }
    }
    *unknown = still_unknown;
    Ok(())
}
