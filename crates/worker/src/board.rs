//! The schedule, shared: slots as guards, and a bell for whoever claims.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use domain::{SessionId, TenantId};
use tokio::sync::{Notify, oneshot};

use crate::schedule::Schedule;

/// One worker's schedule and its bell.
#[derive(Debug)]
pub(crate) struct Board {
    schedule: Mutex<Schedule>,
    /// Who wants a slot again, by ticket. Locked after the schedule.
    returning: Mutex<HashMap<u64, Waiter>>,
    /// Something may be claimable, or slots are wanted.
    pub(crate) bell: Notify,
}

#[derive(Debug)]
struct Waiter {
    tenant_id: TenantId,
    session_id: SessionId,
    slot: oneshot::Sender<Slot>,
}

impl Board {
    pub(crate) fn new(slots: u32) -> Arc<Self> {
        Arc::new(Self {
            schedule: Mutex::new(Schedule::new(slots)),
            returning: Mutex::default(),
            bell: Notify::new(),
        })
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

    /// A slot for a call that gave its own back, as soon as limits allow.
    pub(crate) async fn slot_again(self: &Arc<Self>, tenant_id: TenantId, session_id: SessionId) -> Slot {
        let (slot, given) = oneshot::channel();
        let ticket = {
            let mut schedule = self.lock();
            let ticket = schedule.want_back(tenant_id, session_id);
            self.returning().insert(ticket, Waiter { tenant_id, session_id, slot });
            ticket
        };
        let _wanted = Wanted { board: self, ticket };
        self.call_back();
        // A slot that the tenant has no grant for yet is asked for by whoever claims.
        self.bell.notify_one();
        match given.await {
            Ok(slot) => slot,
            Err(_) => std::future::pending().await,
        }
    }

    /// Gives free slots to calls that want one again. To be called whenever there may be some.
    pub(crate) fn call_back(self: &Arc<Self>) {
        let mut schedule = self.lock();
        let back = self.waiters(schedule.come_back());
        drop(schedule);
        self.hand(back);
    }

    fn waiters(&self, tickets: Vec<u64>) -> Vec<Waiter> {
        if tickets.is_empty() {
            return Vec::new();
        }
        let mut returning = self.returning();
        tickets.iter().filter_map(|ticket| returning.remove(ticket)).collect()
    }

    /// Outside of every lock: a slot that nobody takes any more goes back at once.
    fn hand(self: &Arc<Self>, back: Vec<Waiter>) {
        for waiter in back {
            let _ = waiter.slot.send(self.slot(waiter.tenant_id, waiter.session_id));
        }
    }

    fn returning(&self) -> MutexGuard<'_, HashMap<u64, Waiter>> {
        self.returning.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut schedule = self.board.lock();
        let more = schedule.release(self.tenant_id, self.session_id, ran_ms);
        let back = self.board.waiters(schedule.come_back());
        drop(schedule);
        self.board.hand(back);
        if more {
            self.board.bell.notify_one();
        }
    }
}

/// A call that wants a slot again; dropping it withdraws that.
struct Wanted<'a> {
    board: &'a Board,
    ticket: u64,
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        let mut schedule = self.board.lock();
        schedule.stay_away(self.ticket);
        self.board.returning().remove(&self.ticket);
    }
}
