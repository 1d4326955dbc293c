//! Slots: a tenant's limit on running calls, granted to workers in blocks so that it holds without a row lock per call.

use domain::{TenantId, WorkerId};

use crate::{Result, Store};

impl Store {
    /// Asks for up to `want` more slots of a tenant, whose workers may have `limit` together. Returns how many were granted.
    pub async fn acquire_slots(
        &self,
        worker: WorkerId,
        tenant: TenantId,
        limit: u32,
        want: u32,
    ) -> Result<u32> {
        todo!()
    }

    /// Gives slots back.
    pub async fn release_slots(&self, worker: WorkerId, tenant: TenantId, count: u32) -> Result<()> {
        todo!()
    }

    /// Slots that a worker holds, by tenant (after a takeover: those of the calls that it took are included).
    pub async fn slots_of_worker(&self, worker: WorkerId) -> Result<Vec<(TenantId, u32)>> {
        todo!()
    }
}
