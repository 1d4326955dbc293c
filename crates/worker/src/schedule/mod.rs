//! Who may start next: slots of this worker, blocks of tenants' limits, seats of sessions, and virtual time. No I/O.
//!
//! # Design notes
//!
//! *Virtual time.* A tenant pays for every start and for every second that its calls ran. Turns go to the tenant
//! that has paid least. One that comes back from idleness starts at the least of those that are active, so that
//! idleness is no credit.
//!
//! *A plan holds what it promises.* Between planning a claim and its answer the planned slots are taken, and
//! direct starts of those tenants are refused; otherwise the two together could pass a limit.
//!
//! *Direct starts never overtake.* A session or tenant that is known to have queued calls which could start gets
//! no direct start, and neither does anybody when the free slots would only just do for those that wait.
//!
//! *Who comes back goes first.* A call that stood in line without a slot is older than whatever is queued, and holds up those behind
//! it. It gets the slot that becomes free under the same lock, before a claim or a direct start can.

mod back;
mod plan;

use std::collections::{HashMap, VecDeque};

use domain::{SessionId, TenantId};

/// What a start costs in virtual time; a millisecond of running costs 1.
const START_COST: u64 = 100;
/// Slots that are asked for at once.
const BLOCK: u32 = 8;

/// A tenant's limits, as far as scheduling goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TenantLimits {
    /// Calls of the tenant that run at the same time, on all workers.
    pub(crate) running: u32,
    /// Calls of one session that run at the same time.
    pub(crate) session_running: u32,
}

#[derive(Debug)]
struct Share {
    granted: u32,
    used: u32,
    virtual_time: u64,
    limits: TenantLimits,
    /// Something of it may be claimable.
    hinted: bool,
    /// Something of it waits for another call to end.
    blocked: bool,
    claiming: bool,
    /// Hinted while a claim was under way: its answer may be older than the hint.
    hinted_again: bool,
    sessions: u32,
}

impl Share {
    /// A takeover may have brought more slots than the tenant may have.
    fn has_room(&self) -> bool {
        self.used < self.granted.min(self.limits.running)
    }
}

#[derive(Debug)]
struct Seats {
    tenant_id: TenantId,
    running: u32,
    limit: u32,
    serving: bool,
    queued: bool,
}

impl Seats {
    fn has_room(&self) -> bool {
        self.serving && self.running < self.limit
    }
}

/// The state of it all.
#[derive(Debug)]
pub(crate) struct Schedule {
    total: u32,
    /// Below zero while more calls were taken over than there are slots.
    free: i64,
    tenants: HashMap<TenantId, Share>,
    sessions: HashMap<SessionId, Seats>,
    /// Calls without a slot that want one again, the first first.
    returning: VecDeque<back::Returning>,
    tickets: u64,
}

impl Schedule {
    pub(crate) fn new(slots: u32) -> Self {
        Self {
            total: slots,
            free: i64::from(slots),
            tenants: HashMap::new(),
            sessions: HashMap::new(),
            returning: VecDeque::new(),
            tickets: 0,
        }
    }

    /// A session is owned from now on; it serves when [`Self::serve`] says so.
    pub(crate) fn open(
        &mut self,
        session_id: SessionId,
        tenant_id: TenantId,
        limits: TenantLimits,
        limit: u32,
    ) {
        let floor = self.floor();
        let share = self.tenants.entry(tenant_id).or_insert(Share {
            granted: 0,
            used: 0,
            virtual_time: floor,
            limits,
            hinted: false,
            blocked: false,
            claiming: false,
            hinted_again: false,
            sessions: 0,
        });
        share.limits = limits;
        let seats = Seats { tenant_id, running: 0, limit, serving: false, queued: true };
        if self.sessions.insert(session_id, seats).is_none() {
            share.sessions += 1;
        }
    }

    /// Whether calls of the session can run now.
    pub(crate) fn serve(&mut self, session_id: SessionId, serving: bool) {
        let Some(seats) = self.sessions.get_mut(&session_id) else { return };
        seats.serving = serving;
        if serving {
            // Calls may have queued while it started.
            let (tenant_id, queued) = (seats.tenant_id, seats.queued);
            if queued {
                self.hint_tenant(tenant_id);
            }
        }
    }

    /// The session is owned no more. Its calls have been released, or are released later.
    pub(crate) fn close(&mut self, session_id: SessionId) {
        if let Some(seats) = self.sessions.remove(&session_id)
            && let Some(share) = self.tenants.get_mut(&seats.tenant_id)
        {
            share.sessions -= 1;
        }
    }

    /// A call of the session was queued.
    pub(crate) fn hint(&mut self, session_id: SessionId) {
        let Some(seats) = self.sessions.get_mut(&session_id) else { return };
        seats.queued = true;
        if seats.has_room() {
            let tenant_id = seats.tenant_id;
            self.hint_tenant(tenant_id);
        }
    }

    /// Some call of the tenant may be claimable.
    pub(crate) fn hint_tenant(&mut self, tenant_id: TenantId) {
        let floor = self.floor();
        let Some(share) = self.tenants.get_mut(&tenant_id) else { return };
        if share.used == 0 && !share.hinted {
            share.virtual_time = share.virtual_time.max(floor);
        }
        share.hinted = true;
        share.hinted_again |= share.claiming;
    }

    /// Calls of the tenant wait for others to end: look again whenever one does.
    pub(crate) fn set_blocked(&mut self, tenant_id: TenantId, blocked: bool) {
        if let Some(share) = self.tenants.get_mut(&tenant_id) {
            share.blocked = blocked;
        }
    }

    /// Limits have changed.
    pub(crate) fn set_limits(&mut self, tenant_id: TenantId, limits: TenantLimits) {
        if let Some(share) = self.tenants.get_mut(&tenant_id) {
            share.limits = limits;
        }
    }

    /// Tenants that have sessions or slots here.
    pub(crate) fn tenants(&self) -> Vec<TenantId> {
        self.tenants.keys().copied().collect()
    }

    /// So many more slots of the tenant's limit are this worker's.
    pub(crate) fn grant(&mut self, tenant_id: TenantId, count: u32) {
        if let Some(share) = self.tenants.get_mut(&tenant_id) {
            share.granted += count;
        }
    }

    /// The rows say that this worker has so many slots of the tenant.
    pub(crate) fn granted_at_least(&mut self, tenant_id: TenantId, count: u32) {
        if let Some(share) = self.tenants.get_mut(&tenant_id) {
            share.granted = share.granted.max(count);
        }
    }

    /// Takes a slot for a call that need not queue. False when it has to.
    pub(crate) fn reserve(&mut self, tenant_id: TenantId, session_id: SessionId) -> bool {
        let others_waiting =
            self.tenants.iter().filter(|(id, share)| **id != tenant_id && share.hinted).count() as i64;
        let Some(seats) = self.sessions.get_mut(&session_id) else { return false };
        let Some(share) = self.tenants.get_mut(&tenant_id) else { return false };
        let may = seats.tenant_id == tenant_id
            && seats.has_room()
            && !seats.queued
            && !share.hinted
            && !share.claiming
            && share.has_room()
            && self.free > others_waiting;
        if may {
            seats.running += 1;
            share.used += 1;
            share.virtual_time += START_COST;
            self.free -= 1;
        }
        may
    }

    /// Takes a slot for a call that runs already (it was taken over), whatever the limits.
    pub(crate) fn seat(&mut self, tenant_id: TenantId, session_id: SessionId) {
        if let Some(seats) = self.sessions.get_mut(&session_id) {
            seats.running += 1;
        }
        if let Some(share) = self.tenants.get_mut(&tenant_id) {
            share.used += 1;
            share.granted = share.granted.max(share.used);
        }
        self.free -= 1;
    }

    /// A call has ended after so many milliseconds. True when something may start in its place.
    pub(crate) fn release(&mut self, tenant_id: TenantId, session_id: SessionId, ran_ms: u64) -> bool {
        self.free = (self.free + 1).min(i64::from(self.total));
        let mut queued = false;
        if let Some(seats) = self.sessions.get_mut(&session_id) {
            seats.running = seats.running.saturating_sub(1);
            queued = seats.queued && seats.has_room();
        }
        if let Some(share) = self.tenants.get_mut(&tenant_id) {
            share.used = share.used.saturating_sub(1);
            share.virtual_time += ran_ms;
            share.hinted |= queued || share.blocked;
        }
        self.tenants.values().any(|share| share.hinted)
    }

    /// Tenants that need more slots than they have here: limit, and how many to ask for.
    pub(crate) fn wanting_slots(&self) -> Vec<(TenantId, u32, u32)> {
        self.tenants
            .iter()
            .filter(|(_, share)| share.granted < share.limits.running && !share.claiming)
            .filter(|(tenant_id, share)| {
                let spare = share.granted - share.used.min(share.granted);
                (share.hinted || self.is_awaited(**tenant_id)) && spare == 0
                    || share.sessions > 0 && share.granted < share.limits.session_running
            })
            .map(|(tenant_id, share)| {
                (*tenant_id, share.limits.running, BLOCK.min(share.limits.running - share.granted))
            })
            .collect()
    }

    /// Slots that are not needed here, taken out of the tenants' shares: to be given back.
    pub(crate) fn take_surplus(&mut self) -> Vec<(TenantId, u32)> {
        let mut surplus = Vec::new();
        let returning: Vec<_> = self.returning.iter().map(|call| call.tenant_id).collect();
        for (tenant_id, share) in &mut self.tenants {
            let keep = if share.sessions == 0 { 0 } else { BLOCK.min(share.limits.session_running) };
            let wanted = (share.used + keep).min(share.limits.running).max(share.used);
            if share.granted > wanted && !share.claiming && !share.hinted && !returning.contains(tenant_id) {
                surplus.push((*tenant_id, share.granted - wanted));
                share.granted = wanted;
            }
        }
        self.tenants.retain(|_, share| share.sessions > 0 || share.granted > 0 || share.used > 0);
        surplus
    }

    /// The least that a tenant that is active has paid.
    fn floor(&self) -> u64 {
        self.tenants
            .values()
            .filter(|share| share.used > 0 || share.hinted)
            .map(|share| share.virtual_time)
            .min()
            .or_else(|| self.tenants.values().map(|share| share.virtual_time).max())
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
