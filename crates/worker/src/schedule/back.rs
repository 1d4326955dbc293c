//! Calls that come back: those that stood in line without a slot and want one again.

use domain::{SessionId, TenantId};

use super::Schedule;

/// One of them.
#[derive(Debug)]
pub(super) struct Returning {
    ticket: u64,
    pub(super) tenant_id: TenantId,
    session_id: SessionId,
}

impl Schedule {
    /// A call wants a slot again; [`Self::come_back`] says when its ticket has one.
    pub(crate) fn want_back(&mut self, tenant_id: TenantId, session_id: SessionId) -> u64 {
        self.tickets += 1;
        self.returning.push_back(Returning { ticket: self.tickets, tenant_id, session_id });
        self.tickets
    }

    /// It does not want one any more.
    pub(crate) fn stay_away(&mut self, ticket: u64) {
        self.returning.retain(|call| call.ticket != ticket);
    }

    /// Takes slots for as many of those that want one as limits allow, and returns their tickets.
    pub(crate) fn come_back(&mut self) -> Vec<u64> {
        let mut back = Vec::new();
        for call in std::mem::take(&mut self.returning) {
            if self.take_again(call.tenant_id, call.session_id) {
                back.push(call.ticket);
            } else {
                self.returning.push_back(call);
            }
        }
        back
    }

    pub(super) fn is_awaited(&self, tenant_id: TenantId) -> bool {
        self.returning.iter().any(|call| call.tenant_id == tenant_id)
    }

    /// Whether the session serves does not matter: the call has its sandbox, and is told when that goes.
    fn take_again(&mut self, tenant_id: TenantId, session_id: SessionId) -> bool {
        let Some(share) = self.tenants.get_mut(&tenant_id) else { return false };
        let mut seats = self.sessions.get_mut(&session_id);
        let has_seat = seats.as_ref().is_none_or(|seats| seats.running < seats.limit);
        let may = has_seat && !share.claiming && share.has_room() && self.free > 0;
        if may {
            if let Some(seats) = seats.as_mut() {
                seats.running += 1;
            }
            share.used += 1;
            self.free -= 1;
        }
        may
    }
}
