//! Postgres: rows to domain, the call queue, the event log, audit, tenancy. `sqlx` is named in this room alone.
//!
//! Every query of tenant data takes a [`domain::TenantContext`] and runs under row-level security; what workers and sweeps ask runs as
//! the system role. Nothing here knows HTTP, containers or tools.

mod activity;
mod admission;
mod admit_batch;
mod admit_one;
mod artifacts;
mod audit;
mod auth;
mod bus;
mod calls;
mod cancelling;
mod clock;
mod contexts;
mod creation;
mod credential;
mod db;
mod ending;
mod engines;
mod erasure;
mod error;
mod event_batch;
mod event_one;
mod events;
mod export;
mod files;
mod hosts;
mod idempotency;
mod json;
mod keys;
mod line;
mod maintenance;
mod metrics;
mod migrate;
mod named_shells;
mod notify;
mod object_http;
mod objects;
mod output;
mod ownership;
mod page;
mod places;
mod queue;
mod reach;
mod restore;
mod retention;
mod roles;
mod sandboxes;
mod schema;
mod sessions;
mod shells;
mod slots;
mod stored;
mod subjects;
mod takeover;
mod tenants;
#[cfg(feature = "testing")]
pub mod testing;
mod unclaimed;
mod usage;
mod wheels;
mod workers;
mod writer;

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use sqlx::Row;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

pub use admission::{Admission, AdmitSession, Admitted, CallDecision, NewCall};
pub use artifacts::{ArtifactFilter, NewArtifact};
pub use audit::{
    AuditEntry, AuditFilter, AuditHead, AuditKeys, AuditReport, AuditRow, AuditSeal, Finding, Sealed, Trail,
};
pub use auth::{AuthRefusal, Authenticated, Expiry, REMEMBER, TOKEN_REFUSALS};
pub use bus::{Bus, CallChange, CallWatch, Hint, QueueWatch, ShellWatch};
pub use calls::CallFilter;
pub use cancelling::{CancelReason, ShellToEnd, ShellWish};
pub use clock::{Clock, NewId};
pub use contexts::{ContextName, ContextWish, CreatedContext, NewContext};
pub use creation::{CreatedSession, NewSession, NoRoom};
pub use credential::PlainKey;
pub use engines::EngineState;
pub use erasure::{Erasure, ErasureAnswer, ErasureReceipt, ErasureState};
pub use error::{Result, StoreError};
pub use events::{Announce, Appended, EventPage, Fence};
pub use export::{Export, ExportPlace};
pub use files::{FileBefore, SeenFile, UndoableFile};
pub use hosts::{Host, HostCapacity, HostOrder, HostSchedule, HostShare, WorkerRoom};
pub use idempotency::{Accepted, Idempotency};
pub use keys::{ApiKey, NewKey, Rotation};
pub use maintenance::{Counts, Dropped, Retention};
pub use migrate::MigrationReport;
pub use named_shells::KeptShell;
pub use objects::{Draft, ObjectStoreError, Objects, ObjectsConfig, S3Config, Sealed as SealedDraft};
pub use output::{DurableOutput, OutputOwner, OutputRange};
pub use ownership::{SessionFence, SessionWish};
pub use page::{Listed, Page};
pub use places::{SessionPlace, WorkerPlace};
pub use queue::{ClaimCursor, ClaimRequest, TenantTurn, TenantWaiting};
pub use restore::Restored;
pub use retention::TenantRetention;
pub use roles::{Keeper, NewRole, ROLES, Role};
pub use sandboxes::{LiveSandbox, LiveSandboxes, NewSandbox, ReservedSandbox};
pub use schema::{MigrationName, Schema, SchemaFit};
pub use sessions::{SessionFilter, SessionPatch};
pub use shells::{NewShell, SESSION_SHELLS_FULL, ShellEnd, ShellLimits, ShellLog, TENANT_SHELLS_FULL};
pub use stored::TenantUse;
pub use subjects::TokenSubject;
pub use takeover::TakenOver;
pub use tenants::{NewTenant, Tenant};
pub use usage::{HourFilter, Metered, Refusals, SessionUsage, Usage, UsageGroup, UsageHour};
pub use wheels::PutWheel;
pub use workers::Lease;

use activity::Activity;
use auth::AuthMemory;
use credential::Pepper;
use db::{Db, read_found};
use stored::StoredMemory;
use subjects::Standings;
use writer::Writer;

/// How to reach the database.
#[derive(Clone)]
pub struct DatabaseConfig {
    /// `postgres://…`; the login role owns the tables or is a member of `toolhost_app` and `toolhost_system`.
    pub url: String,
    /// When `url` is a pooler's in transaction mode: Postgres itself, for the two connections that need a session of their own.
    pub direct_url: Option<String>,
    /// Connections that this process may have, for tenants' reads and writes, the writer's lanes and sweeps together
    /// (two more listen and notify).
    pub max_connections: u32,
    /// Transactions that the coalescing writer has in flight at most.
    pub writer_lanes: usize,
    /// How long a request waits for a connection, and a statement for its answer.
    pub timeout: Duration,
    /// Key of the hash under which API keys are kept. At least 32 bytes, the same in every process of an installation.
    pub pepper: Vec<u8>,
    /// Keys of the audit trail's signed heads, the same in every process that seals or verifies.
    pub audit: AuditKeys,
    /// Where the bytes of artifacts are, the same for every process.
    pub objects: Objects,
}

impl DatabaseConfig {
    /// Defaults for everything else (artifacts in memory); the audit trail's key comes from the pepper.
    #[must_use]
    pub fn new(url: impl Into<String>, pepper: impl Into<Vec<u8>>) -> Self {
        let pepper = pepper.into();
        Self {
            url: url.into(),
            direct_url: None,
            audit: AuditKeys::of_pepper(&pepper),
            max_connections: 16,
            writer_lanes: 2,
            objects: Objects::in_memory(),
            timeout: Duration::from_secs(4),
            pepper,
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

/// How often marks of use are written and gauges read.
const TICK: Duration = Duration::from_secs(1);
/// Ticks between measurements of the clock in processes without a worker.
const CLOCK_TICKS: u32 = 10;

/// The door to Postgres. Cheap to clone; all clones share connections, writer and bus.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    db: Db,
    clock: Clock,
    bus: Bus,
    writer: Writer,
    activity: Activity,
    auth: AuthMemory,
    standings: Standings,
    stored: StoredMemory,
    pepper: Pepper,
    audit_keys: AuditKeys,
    objects: Objects,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

/// Registers this room's metrics and nothing else: for the reference of all metrics.
///
/// # Errors
/// When the registry has metrics of these names already.
pub fn describe_metrics(registry: &prometheus::Registry) -> Result<()> {
    metrics::Metrics::register(registry).map(drop)
}

impl Store {
    /// Connects, measures the clock, and starts the writer's lanes and the bus. Later losses of the database heal by themselves.
    pub async fn connect(config: &DatabaseConfig, registry: &prometheus::Registry) -> Result<Self> {
        let db = Db::connect(config, metrics::Metrics::register(registry)?).await?;
        let clock = Clock::new(Instant::now(), Utc::now());
        measure(&db, &clock).await?;
        let (bus, activity) = (Bus::new(), Activity::default());
        let writer = Writer::new(db.clone(), bus.clone(), activity.clone());
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        for _ in 0..config.writer_lanes.max(1) {
            tasks.spawn(writer.clone().lane(stop.clone()));
        }
        let origin = Uuid::new_v4();
        tasks.spawn(notify::send(db.clone(), bus.clone(), origin, stop.clone()));
        tasks.spawn(notify::listen(db.clone(), bus.clone(), origin, stop.clone()));
        tasks.spawn(tick(db.clone(), clock.clone(), activity.clone(), stop.clone()));
        let pepper = Pepper::new(&config.pepper);
        let inner = Inner {
            db,
            clock,
            bus,
            writer,
            activity,
            auth: AuthMemory::default(),
            standings: Standings::default(),
            stored: StoredMemory::default(),
            pepper,
            audit_keys: config.audit.clone(),
            objects: config.objects.clone(),
            stop,
            tasks,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Asks the database for an answer.
    pub async fn ping(&self) -> Result<()> {
        measure(&self.inner.db, &self.inner.clock).await
    }

    /// The database's clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// What changed.
    #[must_use]
    pub fn bus(&self) -> &Bus {
        &self.inner.bus
    }

    /// The bytes of artifacts.
    pub(crate) fn objects(&self) -> &Objects {
        &self.inner.objects
    }

    /// Writes what waits, then closes every connection.
    pub async fn close(&self) {
        self.inner.stop.cancel();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
        self.inner.db.close().await;
    }

    pub(crate) fn db(&self) -> &Db {
        &self.inner.db
    }

    pub(crate) fn writer(&self) -> &Writer {
        &self.inner.writer
    }

    /// The session is in use; written with others within a second.
    pub fn session_in_use(&self, id: domain::SessionId) {
        self.activity().session(id);
    }

    pub(crate) fn activity(&self) -> &Activity {
        &self.inner.activity
    }

    pub(crate) fn auth(&self) -> &AuthMemory {
        &self.inner.auth
    }

    pub(crate) fn stored_memory(&self) -> &StoredMemory {
        &self.inner.stored
    }

    pub(crate) fn standings(&self) -> &Standings {
        &self.inner.standings
    }

    pub(crate) fn audit_keys(&self) -> &AuditKeys {
        &self.inner.audit_keys
    }

    pub(crate) fn pepper(&self) -> &Pepper {
        &self.inner.pepper
    }
}

/// Measures the database's clock.
async fn measure(db: &Db, clock: &Clock) -> Result<()> {
    const OPERATION: &str = "measure clock";
    let mut conn = db.system(OPERATION).await?;
    let asked = Instant::now();
    let row = conn.one(sqlx::query("SELECT clock_timestamp() AS now")).await?;
    let answered = Instant::now();
    conn.end().await?;
    let now: DateTime<Utc> = read_found(OPERATION, Some(row), |row| row.try_get("now"))?;
    clock.set(asked, answered, now);
    Ok(())
}

/// Small things that happen by time. A tick that fails is made up for by the next.
async fn tick(db: Db, clock: Clock, activity: Activity, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for count in 0_u32.. {
        tokio::select! {
            _ = ticks.tick() => {}
            () = stop.cancelled() => break,
        }
        db.observe();
        if count % CLOCK_TICKS == 0
            && let Err(error) = measure(&db, &clock).await
        {
            tracing::debug!(%error, "the clock was not measured");
        }
        if let Err(error) = activity.write(&db).await {
            tracing::debug!(%error, "marks of use were not written");
        }
    }
    // The last marks of a process that stops in good order.
    if let Err(error) = activity.write(&db).await {
        tracing::debug!(%error, "marks of use were not written");
    }
}
