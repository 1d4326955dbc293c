//! Claims: queued calls become `starting` under a worker's lease, fairly between tenants.

use std::collections::HashMap;

use domain::{Call, SessionId, TenantId, WorkerId};
use uuid::Uuid;

use crate::{Result, Store};

/// What a worker can take.
#[derive(Debug, Clone, Default)]
pub struct ClaimRequest {
    /// Most calls in all.
    pub max: u32,
    /// Tenants in fair order. All of a tenant's slots are filled before the next one's turn, so give a tenant as many
    /// as fairness allows for one turn.
    pub turns: Vec<TenantTurn>,
    /// Calls that run at the moment in the worker's sessions; sessions that are not named have none.
    pub running: Vec<(SessionId, u32)>,
}

/// One tenant's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantTurn {
    /// The tenant.
    pub tenant_id: TenantId,
    /// Slots that the worker holds for it and that are free.
    pub slots: u32,
    /// How many calls of one session may run at the same time.
    pub session_running_limit: u32,
}

/// Where the next claim begins to look, for each session. One for each worker, kept in memory, lost without harm.
#[derive(Debug, Default)]
pub struct ClaimCursor {
    after: HashMap<SessionId, Uuid>,
}

/// A tenant with calls that this worker could claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantWaiting {
    /// The tenant.
    pub tenant_id: TenantId,
    /// Sessions with at least one queued call.
    pub sessions: u32,
}

impl Store {
    /// Claims queued calls of sessions that this worker owns and that run: `starting`, attempt risen. Oldest first within a tenant.
    /// Leaves calls whose `after_call_id` has not ended, calls to be cancelled, and sessions at their limit.
    pub async fn claim_calls(
        &self,
        worker: WorkerId,
        request: &ClaimRequest,
        cursor: &mut ClaimCursor,
    ) -> Result<Vec<Call>> {
        todo!()
    }

    /// Tenants with queued calls in this worker's running sessions.
    pub async fn tenants_waiting(&self, worker: WorkerId) -> Result<Vec<TenantWaiting>> {
        todo!()
    }
}
