//! Postgres: rows to domain, the call queue, the event log, audit, tenancy. `sqlx` is named in this room alone.
//!
//! Every query of tenant data takes a [`domain::TenantContext`] and runs under row-level security; what workers and sweeps ask runs as
//! the system role. Nothing here knows HTTP, containers or tools.

mod audit;
mod bus;
mod calls;
mod clock;
mod error;
mod events;
mod idempotency;
mod keys;
mod maintenance;
mod output;
mod page;
mod queue;
mod sandboxes;
mod sessions;
mod shells;
mod slots;
mod tenants;
mod workers;

use std::time::Duration;

pub use audit::{AuditEntry, AuditRow};
pub use bus::{Bus, CallChange, CallWatch, Hint, QueueWatch, ShellWatch};
pub use calls::{Admission, AdmitSession, Admitted, CallDecision, CallFilter, NewCall};
pub use clock::{Clock, NewId};
pub use error::{Result, StoreError};
pub use events::{Announce, Appended, EventPage, Fence};
pub use idempotency::Idempotency;
pub use keys::{ApiKey, AuthRefusal, Authenticated, NewKey, PlainKey};
pub use maintenance::{Counts, Dropped, Retention};
pub use output::{DurableOutput, OutputOwner, OutputRange};
pub use page::{Listed, Page};
pub use queue::{ClaimCursor, ClaimRequest, TenantTurn, TenantWaiting};
pub use sandboxes::{LiveSandbox, LiveSandboxes, NewSandbox, ReservedSandbox};
pub use sessions::{CreatedSession, NewSession, SessionFence, SessionFilter, SessionPatch, SessionWish};
pub use shells::{NewShell, ShellEnd, ShellLog};
pub use tenants::{NewTenant, Tenant};
pub use workers::{Lease, TakenOver};

/// How to reach the database.
#[derive(Clone)]
pub struct DatabaseConfig {
    /// `postgres://…`; the login role owns the tables or is a member of `toolhost_app` and `toolhost_system`.
    pub url: String,
    /// Connections that this process may have, for tenants' reads and writes, the writer's lanes and sweeps together
    /// (two more listen and notify).
    pub max_connections: u32,
    /// Transactions that the coalescing writer has in flight at most.
    pub writer_lanes: usize,
    /// How long a request waits for a connection, and a statement for its answer.
    pub timeout: Duration,
    /// Key of the hash under which API keys are kept. At least 32 bytes, the same in every process of an installation.
    pub pepper: Vec<u8>,
}

impl DatabaseConfig {
    /// Defaults for everything else.
    #[must_use]
    pub fn new(url: impl Into<String>, pepper: impl Into<Vec<u8>>) -> Self {
        Self {
            url: url.into(),
            max_connections: 16,
            writer_lanes: 2,
            timeout: Duration::from_secs(4),
            pepper: pepper.into(),
        }
    }
}

impl std::fmt::Debug for DatabaseConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DatabaseConfig")
            .field("max_connections", &self.max_connections)
            .field("writer_lanes", &self.writer_lanes)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// What [`Store::migrate`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MigrationReport {
    /// Migrations that were applied now.
    pub applied: usize,
    /// Migrations that this binary has.
    pub total: usize,
}

/// The door to Postgres. Cheap to clone; all clones share connections, writer and bus.
#[derive(Clone)]
pub struct Store {}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

impl Store {
    /// Connects, measures the clock, and starts the writer's lanes and the bus. Later losses of the database heal by themselves.
    pub async fn connect(config: &DatabaseConfig, registry: &prometheus::Registry) -> Result<Self> {
        todo!()
    }

    /// Applies the migrations that are missing, under a lock. A process of the version before goes on working meanwhile.
    pub async fn migrate(url: &str) -> Result<MigrationReport> {
        todo!()
    }

    /// Migrations of this binary that the database does not have. A server with any is not ready.
    pub async fn migrations_pending(&self) -> Result<usize> {
        todo!()
    }

    /// Asks the database for an answer.
    pub async fn ping(&self) -> Result<()> {
        todo!()
    }

    /// The database's clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        todo!()
    }

    /// What changed.
    #[must_use]
    pub fn bus(&self) -> &Bus {
        todo!()
    }

    /// Writes what waits, then closes every connection.
    pub async fn close(&self) {
        todo!()
    }
}
