//! Claims: what to ask the queue for, in fair order, and what came of it.

use std::collections::HashMap;

use domain::{SessionId, TenantId};

use super::{START_COST, Schedule, Seats};

/// Running calls that are reported of a session which does not serve: more than any limit.
const FULL: u32 = 1_000_000;

/// One tenant's part of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) tenant_id: TenantId,
    pub(crate) slots: u32,
    pub(crate) session_running_limit: u32,
}

/// What to claim. Has to be settled.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) turns: Vec<Turn>,
    /// Sessions and how many of their calls run; one that does not serve is given as full.
    pub(crate) running: Vec<(SessionId, u32)>,
}

impl Plan {
    pub(crate) fn slots(&self) -> u32 {
        self.turns.iter().map(|turn| turn.slots).sum()
    }
}

impl Schedule {
    /// What to claim now, in fair order; its slots are taken until [`Self::settle`].
    pub(crate) fn plan(&mut self) -> Plan {
        let mut turns: Vec<Turn> = Vec::new();
        let mut paid: HashMap<TenantId, u64> = HashMap::new();
        while self.free > 0 {
            let next = self
                .tenants
                .iter()
                .filter(|(_, share)| share.hinted && share.has_room())
                .map(|(id, share)| (share.virtual_time + paid.get(id).copied().unwrap_or(0), *id))
                .min();
            let Some((_, tenant_id)) = next else { break };
            let Some(share) = self.tenants.get_mut(&tenant_id) else { break };
            share.used += 1;
            share.claiming = true;
            self.free -= 1;
            *paid.entry(tenant_id).or_default() += START_COST;
            match turns.iter_mut().find(|turn| turn.tenant_id == tenant_id) {
                Some(turn) => turn.slots += 1,
                None => turns.push(Turn {
                    tenant_id,
                    slots: 1,
                    session_running_limit: share.limits.session_running,
                }),
            }
        }
        if turns.is_empty() {
            return Plan::default();
        }
        let running = self
            .sessions
            .iter()
            .map(|(id, seats)| {
                (*id, if seats.has_room() { seats.running + self.narrower(seats) } else { FULL })
            })
            .filter(|(_, running)| *running > 0)
            .collect();
        Plan { turns, running }
    }

    /// By how much a session's own limit is smaller than its tenant's, which is the one that the store is told.
    fn narrower(&self, seats: &Seats) -> u32 {
        self.tenants
            .get(&seats.tenant_id)
            .map_or(0, |share| share.limits.session_running.saturating_sub(seats.limit))
    }

    /// What a plan came to: the claimed calls keep their slots, the others are free again. `None` when the claim failed.
    pub(crate) fn settle(&mut self, plan: &Plan, claimed: Option<&[(TenantId, SessionId)]>) {
        for (tenant_id, session_id) in claimed.unwrap_or_default() {
            if let Some(seats) = self.sessions.get_mut(session_id) {
                seats.running += 1;
            }
            if let Some(share) = self.tenants.get_mut(tenant_id) {
                share.virtual_time += START_COST;
            }
        }
        for turn in &plan.turns {
            let got = claimed
                .unwrap_or_default()
                .iter()
                .filter(|(tenant_id, _)| *tenant_id == turn.tenant_id)
                .count() as u32;
            let left = turn.slots.saturating_sub(got);
            self.free += i64::from(left);
            let Some(share) = self.tenants.get_mut(&turn.tenant_id) else { continue };
            share.used = share.used.saturating_sub(left);
            share.claiming = false;
            if claimed.is_some() && left > 0 {
                // Everything that could start has: what is still queued waits for its session or for another call.
                share.hinted = std::mem::take(&mut share.hinted_again);
                share.blocked = true;
                if share.hinted {
                    continue;
                }
                for seats in self.sessions.values_mut().filter(|seats| seats.tenant_id == turn.tenant_id) {
                    seats.queued &= !seats.has_room();
                }
            }
        }
    }
}
