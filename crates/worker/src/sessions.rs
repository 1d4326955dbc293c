//! Which sessions this worker owns: claims new ones, takes in those it was given, and tells each what is wished of it.

use std::sync::Arc;
use std::time::Duration;

use domain::limits::POLL_MS;
use domain::policy::{EffectiveLimits, Layer, Layered, Policy, effective_limits};
use domain::{Session, SessionEndReason};
use store::SessionWish;
use tokio::time::{MissedTickBehavior, interval};

use crate::OnShutdown;
use crate::call::Cause;
use crate::contexts::heed_wishes;
use crate::ports::context_of;
use crate::schedule::TenantLimits;
use crate::session::{Begin, OwnedSession, own};
use crate::tenure::Tenure;
use crate::withdrawn::heed_shells;

/// Sessions that are claimed at once.
const CLAIM: u32 = 16;

/// Looks after the list of sessions until the tenure ends.
pub(crate) async fn keep(tenure: Arc<Tenure>) {
    let mut poll = interval(Duration::from_millis(POLL_MS));
    poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let new_ones = tokio::select! {
            () = tenure.ended.cancelled() => return,
            () = tenure.sessions_bell.notified() => tenure.take_new_sessions(),
            _ = poll.tick() => true,
        };
        if !tenure.lease.is_healthy() {
            continue;
        }
        if let Err(error) = pass(&tenure, new_ones).await {
            tracing::debug!(%error, "sessions could not be looked at");
        }
    }
}

async fn pass(tenure: &Arc<Tenure>, new_ones: bool) -> store::Result<()> {
    let store = tenure.store();
    let worker_id = tenure.worker_id();
    if new_ones && tenure.takes_work() {
        let room = (tenure.core.config.sessions as usize).saturating_sub(tenure.session_count());
        let room = u32::try_from(room).unwrap_or(u32::MAX).min(CLAIM);
        if room > 0 {
            for row in store.claim_sessions(worker_id, room).await? {
                take_in(tenure, row, Begin::Fresh).await?;
            }
        }
        for row in store.sessions_of_worker(worker_id).await? {
            // One that has been served before belonged to a worker before, whatever became of it.
            let begin = if row.generation == 0 { Begin::Fresh } else { Begin::TakenOver };
            if tenure.session(row.id).is_none() {
                take_in(tenure, row, begin).await?;
            }
        }
    }
    for (row, wish) in store.sessions_wanting_change(worker_id).await? {
        let Some(session) = tenure.session(row.id) else { continue };
        // A call may have started since the rows were read.
        let is_idle = matches!(&wish, SessionWish::End(end) if end.reason == SessionEndReason::Idle);
        if !is_idle || tenure.calls_of(row.id).is_empty() {
            session.wish(wish);
        }
    }
    heed_wishes(tenure).await?;
    heed_shells(tenure).await
}

/// Owns a session from now on, unless it is owned already.
pub(crate) async fn take_in(tenure: &Arc<Tenure>, row: Session, begin: Begin) -> store::Result<()> {
    let tenant_policy = tenure.store().policy_of_tenant(&context_of(row.tenant_id)).await?;
    let installation = &tenure.core.config.policy;
    let of_tenant = limits_of(installation, &tenant_policy, None);
    let of_session = limits_of(installation, &tenant_policy, row.policy.as_ref());
    let Some(session) = OwnedSession::new(row, &of_session) else { return Ok(()) };
    if tenure.ended.is_cancelled() || !tenure.insert_session(&session) {
        return Ok(());
    }
    // Asked after it was put in, so that either those that were told to end have it among them, or it is seen here: it is not begun, and
    // waits for another worker.
    if tenure.draining.is_cancelled() && tenure.core.config.on_shutdown == OnShutdown::EndSessions {
        tenure.remove_session(session.id);
        return Ok(());
    }
    let limits = scheduling(&of_tenant);
    tenure.board.lock().open(session.id, session.tenant_id, limits, of_session.session_running_calls);
    tenure.board.bell.notify_one();
    tenure.spawn(own(Arc::clone(tenure), session, begin));
    Ok(())
}

/// What the layers of policy come to.
pub(crate) fn limits_of(installation: &Policy, tenant: &Policy, session: Option<&Policy>) -> EffectiveLimits {
    let mut layers = vec![
        Layered { layer: Layer::Installation, policy: installation },
        Layered { layer: Layer::Tenant, policy: tenant },
    ];
    layers.extend(session.map(|policy| Layered { layer: Layer::Session, policy }));
    effective_limits(&layers)
}

fn scheduling(limits: &EffectiveLimits) -> TenantLimits {
    TenantLimits { running: limits.running_calls, session_running: limits.session_running_calls }
}

/// Takes note of tenants' limits that have changed.
pub(crate) async fn refresh_limits(tenure: &Tenure) -> store::Result<()> {
    let tenants = tenure.board.lock().tenants();
    for tenant_id in tenants {
        let policy = tenure.store().policy_of_tenant(&context_of(tenant_id)).await?;
        let limits = limits_of(&tenure.core.config.policy, &policy, None);
        tenure.board.lock().set_limits(tenant_id, scheduling(&limits));
    }
    Ok(())
}

/// Ends calls whose row asks for it, for hints that were lost.
pub(crate) async fn heed_cancels(tenure: &Tenure) -> store::Result<Vec<domain::Call>> {
    let calls = tenure.store().calls_of_worker(tenure.worker_id()).await?;
    for call in calls.iter().filter(|call| call.cancel_requested) {
        if let Some(running) = tenure.call(call.id) {
            running.end(Cause::Cancelled);
        }
    }
    Ok(calls)
}
