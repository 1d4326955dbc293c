//! From the queue to running calls: hears hints, polls behind them, keeps blocks of slots, claims in fair order.

use std::sync::Arc;
use std::time::Duration;

use domain::limits::POLL_MS;
use store::{ClaimCursor, ClaimRequest, Hint, TenantTurn};
use tokio::time::{MissedTickBehavior, interval};

use crate::call::{Cause, Start, start};
use crate::tenure::Tenure;

/// Pause after a claim that the database did not answer.
const RETRY: Duration = Duration::from_millis(200);

/// Passes hints on to whom they concern, until the tenure ends.
pub(crate) async fn hear(tenure: Arc<Tenure>) {
    let mut queue = tenure.store().bus().subscribe_queue();
    loop {
        let hint = tokio::select! {
            () = tenure.ended.cancelled() => return,
            hint = queue.next() => hint,
        };
        heard(&tenure, hint);
    }
}

/// One hint.
pub(crate) fn heard(tenure: &Tenure, hint: Hint) {
    match hint {
        Hint::Queued(session_id) => {
            tenure.board.lock().hint(session_id);
            tenure.board.bell.notify_one();
        }
        Hint::CancelRequested(call_id) => {
            if let Some(call) = tenure.call(call_id) {
                call.end(Cause::Cancelled);
            }
        }
        Hint::SessionChanged(session_id) => tenure.look_at_session(session_id),
        Hint::Everything => {
            tenure.poll_now();
            tenure.look_at_sessions();
        }
    }
}

/// Claims whenever something may be claimable, until the tenure ends.
pub(crate) async fn claim(tenure: Arc<Tenure>) {
    let mut cursor = ClaimCursor::default();
    let mut poll = interval(Duration::from_millis(POLL_MS));
    poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let polls = tokio::select! {
            () = tenure.ended.cancelled() => return,
            () = tenure.board.bell.notified() => tenure.take_poll_now(),
            _ = poll.tick() => true,
        };
        if !tenure.takes_work() {
            continue;
        }
        let answered = async {
            if polls {
                look_for_waiting(&tenure).await?;
            }
            claim_all(&tenure, &mut cursor).await
        };
        if let Err(error) = answered.await {
            tracing::debug!(%error, "nothing could be claimed");
            tokio::time::sleep(RETRY).await;
            tenure.board.bell.notify_one();
        }
    }
}

/// What hints should have told: which tenants have queued calls, and which calls are to be cancelled.
async fn look_for_waiting(tenure: &Tenure) -> store::Result<()> {
    let waiting = tenure.store().tenants_waiting(tenure.worker_id()).await?;
    let mut schedule = tenure.board.lock();
    for tenant_id in schedule.tenants() {
        let waits = waiting.iter().any(|waiting| waiting.tenant_id == tenant_id);
        schedule.set_blocked(tenant_id, waits);
        if waits {
            schedule.hint_tenant(tenant_id);
        }
    }
    Ok(())
}

async fn claim_all(tenure: &Arc<Tenure>, cursor: &mut ClaimCursor) -> store::Result<()> {
    loop {
        let wanting = tenure.board.lock().wanting_slots();
        for (tenant_id, limit, want) in wanting {
            let granted = tenure.store().acquire_slots(tenure.worker_id(), tenant_id, limit, want).await?;
            tenure.board.lock().grant(tenant_id, granted);
        }
        tenure.board.call_back();
        let plan = tenure.board.lock().plan();
        if plan.turns.is_empty() {
            return Ok(());
        }
        let turns = plan.turns.iter().map(|turn| TenantTurn {
            tenant_id: turn.tenant_id,
            slots: turn.slots,
            session_running_limit: turn.session_running_limit,
        });
        let request =
            ClaimRequest { max: plan.slots(), turns: turns.collect(), running: plan.running.clone() };
        match tenure.store().claim_calls(tenure.worker_id(), &request, cursor).await {
            Ok(calls) => {
                let claimed: Vec<_> = calls.iter().map(|call| (call.tenant_id, call.session_id)).collect();
                tenure.board.lock().settle(&plan, Some(&claimed));
                tenure.board.call_back();
                for call in calls {
                    let slot = tenure.board.slot(call.tenant_id, call.session_id);
                    start(tenure, call, slot, Start::Claimed);
                }
            }
            Err(error) => {
                // Calls that were claimed all the same are found by the sweep of calls that never started.
                tenure.board.lock().settle(&plan, None);
                tenure.board.call_back();
                return Err(error);
            }
        }
    }
}

/// Gives back slots that are not needed here.
pub(crate) async fn give_back(tenure: &Tenure) -> store::Result<()> {
    let surplus = tenure.board.lock().take_surplus();
    for (tenant_id, count) in surplus {
        if let Err(error) = tenure.store().release_slots(tenure.worker_id(), tenant_id, count).await {
            tenure.board.lock().grant(tenant_id, count);
            return Err(error);
        }
    }
    Ok(())
}
