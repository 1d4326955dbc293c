//! Hosts and workers: one lease row for each worker process, takeover of the dead, ends of lost hosts.
//!
//! # Design notes
//!
//! * A lease lives on the database's clock. Its holder counts from *before* it asked, on its own monotonic clock, so
//!   that it always believes to have less time than it has.
//! * Takeover is level-triggered: whatever belongs to a worker that is not alive is taken, however it came to be so.
//!   A write that slipped in while its worker was declared dead is found by the next pass.
//! * After an outage of the database every lease is over. Whoever renews first must not take the others for dead:
//!   a renewal that comes late, or a registration, sets `takeover_from` one full lease ahead.

use std::time::Instant;

use domain::{Call, CallId, HostId, Session, WorkerId};

use crate::{Result, Store};

/// A worker's lease.
#[derive(Debug, Clone, Copy)]
pub struct Lease {
    /// The worker.
    pub worker_id: WorkerId,
    /// Its host.
    pub host_id: HostId,
    /// When it is over, on this process's monotonic clock, at the earliest.
    pub expires_at: Instant,
}

/// What a worker took over.
#[derive(Debug, Clone, Default)]
pub struct TakenOver {
    /// Sessions, with their new epoch.
    pub sessions: Vec<Session>,
    /// Their calls that run or were about to, with their new attempt.
    pub calls: Vec<Call>,
    /// Calls that have taken their workers down too often: ended as `failed`.
    pub quarantined: Vec<CallId>,
}

impl TakenOver {
    /// Nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.calls.is_empty() && self.quarantined.is_empty()
    }
}

impl Store {
    /// The host of this name, made when it is new.
    pub async fn register_host(&self, name: &str) -> Result<HostId> {
        todo!()
    }

    /// A new worker on a host, with its first lease.
    pub async fn register_worker(&self, host: HostId) -> Result<Lease> {
        todo!()
    }

    /// Renews a lease. [`crate::StoreError::Stale`] when the worker was declared dead: it must stop everything and register anew.
    /// A lease that is over but was not taken is revived.
    pub async fn renew_lease(&self, worker: WorkerId) -> Result<Lease> {
        todo!()
    }

    /// The worker claims nothing more; others still see it alive.
    pub async fn drain_worker(&self, worker: WorkerId) -> Result<()> {
        todo!()
    }

    /// The worker is gone of its own will. What it still has can be taken over at once.
    pub async fn deregister_worker(&self, worker: WorkerId) -> Result<()> {
        todo!()
    }

    /// Takes over what belongs to dead workers of the same host, in one transaction: sessions with their epoch risen,
    /// active calls with their attempt risen. Calls beyond [`domain::limits::CALL_ATTEMPTS`] are quarantined. Nothing while
    /// the worker is itself too young or just back from an outage. To be asked every second or so.
    pub async fn takeover(&self, worker: WorkerId) -> Result<TakenOver> {
        todo!()
    }

    /// Ends the sessions of hosts that no worker was alive on for [`domain::limits::HOST_LOST_S`]; their active calls become
    /// `lost`, their queued ones `failed`. Returns how many sessions ended. Any process may ask.
    pub async fn end_lost_hosts(&self) -> Result<u64> {
        todo!()
    }

    /// Calls that a worker's row says it runs. One that the worker does not know (its admission's answer was lost) has
    /// not been started: the worker is to run it.
    pub async fn calls_of_worker(&self, worker: WorkerId) -> Result<Vec<Call>> {
        todo!()
    }
}
