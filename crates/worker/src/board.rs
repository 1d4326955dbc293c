//! The schedule, shared: slots as guards, and a bell for whoever claims.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use domain::{SessionId, TenantId};
use tokio::sync::Notify;

use crate::schedule::Schedule;

/// One worker's schedule and its bell.
#[derive(Debug)]
pub(crate) struct Board {
    schedule: Mutex<Schedule>,
    /// Something may be claimable, or slots are wanted.
    pub(crate) bell: Notify,
}

impl Board {
    pub(crate) fn new(slots: u32) -> Arc<Self> {
        Arc::new(Self { schedule: Mutex::new(Schedule::new(slots)), bell: Notify::new() })
    }

    /// The schedule. Held for moments only, never across an await.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot for a call that need not queue.
    pub(crate) fn reserve(self: &Arc<Self>, tenant_id: TenantId, session_id: SessionId) -> Option<Slot> {
        self.lock().reserve(tenant_id, session_id).then(|| self.slot(tenant_id, session_id))
    }

    /// A slot for a call that runs already.
    pub(crate) fn seat(self: &Arc<Self>, tenant_id: TenantId, session_id: SessionId) -> Slot {
        self.lock().seat(tenant_id, session_id);
        self.slot(tenant_id, session_id)
    }

    /// The guard of a slot that the schedule has accounted for already.
    pub(crate) fn slot(self: &Arc<Self>, tenant_id: TenantId, session_id: SessionId) -> Slot {
        Slot { board: Arc::clone(self), tenant_id, session_id, since: Instant::now() }
    }
}

/// A slot in use; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Slot {
    board: Arc<Board>,
    tenant_id: TenantId,
    session_id: SessionId,
    since: Instant,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let ran_ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let more = self.board.lock().release(self.tenant_id, self.session_id, ran_ms);
        if more {
            self.board.bell.notify_one();
        }
    }
}
