//! Small sweeps, one verb each: partitions ahead, retention, old keys. All are idempotent and safe to run anywhere at once.

use crate::{Result, Store};

/// How long things are kept, in days. Events and output go before calls, so that a call can still say how it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Days that events and output are kept.
    pub events_days: u32,
    /// Days that calls are kept; at least as many.
    pub calls_days: u32,
}

impl Default for Retention {
    fn default() -> Self {
        Self { events_days: 7, calls_days: 30 }
    }
}

/// What a retention pass dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Partitions of events and output.
    pub events: u32,
    /// Partitions of calls.
    pub calls: u32,
}

/// How many of what there are, for metrics computed from the database.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls that wait.
    pub queued: u64,
    /// Calls that a worker has.
    pub active: u64,
    /// Sessions that have not ended.
    pub sessions: u64,
    /// Sandboxes that are not removed.
    pub sandboxes: u64,
    /// Workers with a live lease.
    pub workers: u64,
    /// Age of the oldest queued call, in seconds.
    pub oldest_queued_s: u64,
}

impl Store {
    /// Makes the partitions of today and the given number of days ahead. Returns how many it made.
    pub async fn ensure_partitions(&self, days_ahead: u32) -> Result<u32> {
        todo!()
    }

    /// Drops partitions that are older than retention says.
    pub async fn drop_old(&self, retention: Retention) -> Result<Dropped> {
        todo!()
    }

    /// Forgets idempotency keys older than [`domain::limits::IDEMPOTENCY_KEEP_HOURS`]. Returns how many.
    pub async fn prune_idempotency(&self) -> Result<u64> {
        todo!()
    }

    /// Forgets removed sandboxes and lost workers' leftovers that are older than a day. Returns how many rows.
    pub async fn prune_sandboxes(&self) -> Result<u64> {
        todo!()
    }

    /// Counts for metrics.
    pub async fn counts(&self) -> Result<Counts> {
        todo!()
    }
}
