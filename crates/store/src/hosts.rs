//! Hosts, the operator's side: what they have, what is taken of it, and whether they take more.

use chrono::{DateTime, Utc};
use domain::{HostId, OperatorContext, WorkerId};
use serde_json::json;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::bus::Hint;
use crate::db::{read, read_found, signed, unknown_word, unsigned};
use crate::{AuditRow, EngineState, Result, Store};

/// What a host has for sessions. What is not said is not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct HostCapacity {
    /// CPUs.
    pub cpus: Option<f64>,
    /// How often each CPU may be promised.
    pub cpu_overcommit: f64,
    /// Memory, in MiB.
    pub memory_mb: Option<u64>,
    /// Room for workspaces, in MiB.
    pub disk_mb: Option<u64>,
    /// Sandboxes.
    pub sandboxes: Option<u32>,
}

/// A part of a host's capacity.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct HostShare {
    /// CPUs.
    pub cpus: f64,
    /// Memory, in MiB.
    pub memory_mb: u64,
    /// Room for workspaces, in MiB.
    pub disk_mb: u64,
    /// Sandboxes.
    pub sandboxes: u32,
}

/// What a worker has room for.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct WorkerRoom {
    /// Sessions that it keeps at most; not counted when nothing is said.
    pub sessions: Option<u32>,
    /// What its warm pool holds at most.
    pub pool: HostShare,
}

/// Whether a host takes sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostSchedule {
    /// It does.
    Open,
    /// No new ones; what runs goes on.
    Cordoned,
    /// No new ones, and what runs ends by itself or at a deadline.
    Draining,
}

impl HostSchedule {
    /// The word on the wire and in the database.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Cordoned => "cordoned",
            Self::Draining => "draining",
        }
    }
}

/// One host as an operator sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Host {
    /// Its id.
    pub id: HostId,
    /// Its name.
    pub name: String,
    /// Whether it takes sessions.
    pub schedule: HostSchedule,
    /// When what still runs is asked to end.
    pub drain_by: Option<DateTime<Utc>>,
    /// When a worker of it was last heard of.
    pub last_seen_at: DateTime<Utc>,
    /// Workers that are alive and take sessions.
    pub workers: u64,
    /// Whether one of them can make sandboxes; nothing when there is none.
    pub engine: Option<EngineState>,
    /// What it has, overcommitment counted in.
    pub capacity: HostCapacity,
    /// What its sessions may take at most.
    pub used: HostShare,
    /// What is set aside for warm pools.
    pub pool: HostShare,
}

/// What is to become of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostOrder {
    /// Take sessions again.
    Uncordon,
    /// Take no new ones.
    Cordon,
    /// Take no new ones, and end what still runs after this time, if one is given.
    Drain {
        /// The time.
        within_s: Option<u32>,
    },
}

/// What is read of hosts, for a condition on `l` and an order.
macro_rules! hosts {
    ($rest:literal) => {
        concat!(
            "SELECT l.*, (SELECT bool_or(w.makes_sandboxes) FROM workers w WHERE w.host_id = l.host_id
                 AND w.lease_expires_at > clock_timestamp() AND w.accepts_sessions AND NOT w.draining) AS makes_sandboxes
             FROM toolhost_host_load() l ",
            $rest
        )
    };
}

impl Store {
    /// Says what a host has.
    pub async fn set_host_capacity(&self, host: HostId, capacity: HostCapacity) -> Result<()> {
        let mut conn = self.db().system("set host capacity").await?;
        conn.execute(
            sqlx::query(
                "UPDATE hosts SET cpus = $2, cpu_overcommit = $3, memory_mb = $4, disk_mb = $5, sandboxes = $6 WHERE id = $1",
            )
            .bind(host.uuid())
            .bind(capacity.cpus)
            .bind(if capacity.cpu_overcommit > 0.0 { capacity.cpu_overcommit } else { 1.0 })
            .bind(capacity.memory_mb.map(signed))
            .bind(capacity.disk_mb.map(signed))
            .bind(capacity.sandboxes.map(|count| i32::try_from(count).unwrap_or(i32::MAX))),
        )
        .await?;
        conn.end().await
    }

    /// Says what a worker has room for.
    pub async fn set_worker_room(&self, worker: WorkerId, room: WorkerRoom) -> Result<()> {
        let WorkerRoom { sessions, pool } = room;
        let count = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
        let mut conn = self.db().system("set worker room").await?;
        conn.execute(
            sqlx::query(
                "UPDATE workers SET pool_cpus = $2, pool_memory_mb = $3, pool_disk_mb = $4, pool_sandboxes = $5, sessions = $6 WHERE id = $1",
            )
            .bind(worker.uuid())
            .bind(pool.cpus)
            .bind(signed(pool.memory_mb))
            .bind(signed(pool.disk_mb))
            .bind(count(pool.sandboxes))
            .bind(sessions.map(count)),
        )
        .await?;
        conn.end().await
    }

    /// All hosts, by name.
    pub async fn list_hosts(&self, _operator: &OperatorContext) -> Result<Vec<Host>> {
        const OPERATION: &str = "list hosts";
        let mut conn = self.db().system(OPERATION).await?;
        let rows = conn.all(sqlx::query(hosts!("ORDER BY l.name"))).await?;
        conn.end().await?;
        read(OPERATION, &rows, host)
    }

    /// Opens, cordons or drains a host. A session that waits there for a worker goes elsewhere.
    pub async fn order_host(&self, operator: &OperatorContext, id: HostId, order: HostOrder) -> Result<Host> {
        const OPERATION: &str = "order host";
        let (schedule, within_s) = match order {
            HostOrder::Uncordon => (HostSchedule::Open, None),
            HostOrder::Cordon => (HostSchedule::Cordoned, None),
            HostOrder::Drain { within_s } => (HostSchedule::Draining, within_s),
        };
        let mut conn = self.db().system_transaction(OPERATION).await?;
        let changed = conn
            .execute(
                sqlx::query(
                    "UPDATE hosts SET schedule = $2, drain_by = clock_timestamp() + make_interval(secs => $3) WHERE id = $1",
                )
                .bind(id.uuid())
                .bind(schedule.as_str())
                .bind(within_s.map(f64::from)),
            )
            .await?;
        if changed > 0 {
            if schedule != HostSchedule::Open {
                conn.execute(
                    sqlx::query(
                        "UPDATE sessions SET host_id = NULL WHERE host_id = $1 AND worker_id IS NULL AND status = 'starting'",
                    )
                    .bind(id.uuid()),
                )
                .await?;
            }
            let details = json!({"schedule": schedule.as_str(), "within_s": within_s});
            conn.audit(None, operator.principal(), &AuditRow::done("host.schedule", id).details(details))
                .await?;
        }
        let row = conn.optional(sqlx::query(hosts!("WHERE l.host_id = $1")).bind(id.uuid())).await?;
        conn.end().await?;
        read_found(OPERATION, row, host)
    }

    /// Asks sessions to end whose host was to be drained by now, and those of suspended tenants, and ends those that no worker has and that
    /// are to end; and cancels what keys have open that were revoked a while ago. Asked for again and again, so that what slipped in meanwhile
    /// ends too. Returns how many it asked or ended.
    pub async fn ask_ends(&self) -> Result<u64> {
        let mut asked = self
            .ask(
                "UPDATE sessions s SET end_requested = true, end_wish = 'host_drained' FROM hosts h
                 WHERE h.schedule = 'draining' AND h.drain_by <= clock_timestamp()
                   AND s.host_id = h.id AND s.status <> 'ended' AND NOT s.end_requested RETURNING s.id",
            )
            .await?;
        asked += self
            .ask(
                "UPDATE sessions s SET end_requested = true, end_wish = 'tenant_suspended' FROM tenants t
                 WHERE t.status = 'suspended' AND s.tenant_id = t.id AND s.status <> 'ended' AND NOT s.end_requested
                 RETURNING s.id",
            )
            .await?;
        asked += self.withdraw_late().await?;
        Ok(asked + self.end_unclaimed().await?)
    }

    async fn ask(&self, statement: &'static str) -> Result<u64> {
        const OPERATION: &str = "ask sessions to end";
        let mut conn = self.db().system(OPERATION).await?;
        let rows = conn.all(sqlx::query(statement)).await?;
        conn.end().await?;
        let sessions = read(OPERATION, &rows, |row| {
            Ok(domain::SessionId::from_uuid(row.try_get::<uuid::Uuid, _>("id")?))
        })?;
        let asked = sessions.len() as u64;
        sessions.into_iter().for_each(|id| self.bus().hint(Hint::SessionChanged(id)));
        Ok(asked)
    }
}

fn host(row: &PgRow) -> Result<Host, sqlx::Error> {
    let number = |column| row.try_get::<i64, _>(column).map(unsigned);
    let perhaps = |column| Ok::<_, sqlx::Error>(row.try_get::<Option<i64>, _>(column)?.map(unsigned));
    let count = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    Ok(Host {
        id: HostId::from_uuid(row.try_get("host_id")?),
        name: row.try_get("name")?,
        schedule: schedule(row.try_get("schedule")?)?,
        drain_by: row.try_get("drain_by")?,
        last_seen_at: row.try_get("last_seen_at")?,
        workers: number("workers")?,
        engine: row.try_get::<Option<bool>, _>("makes_sandboxes")?.map(EngineState::of),
        capacity: HostCapacity {
            cpus: row.try_get("cpus")?,
            cpu_overcommit: 1.0,
            memory_mb: perhaps("memory_mb")?,
            disk_mb: perhaps("disk_mb")?,
            sandboxes: perhaps("sandboxes")?.map(count),
        },
        used: HostShare {
            cpus: row.try_get("used_cpus")?,
            memory_mb: number("used_memory_mb")?,
            disk_mb: number("used_disk_mb")?,
            sandboxes: count(number("sessions")?),
        },
        pool: HostShare {
            cpus: row.try_get("pool_cpus")?,
            memory_mb: number("pool_memory_mb")?,
            disk_mb: number("pool_disk_mb")?,
            sandboxes: count(number("pool_sandboxes")?),
        },
    })
}

fn schedule(word: &str) -> Result<HostSchedule, sqlx::Error> {
    [HostSchedule::Open, HostSchedule::Cordoned, HostSchedule::Draining]
        .into_iter()
        .find(|schedule| schedule.as_str() == word)
        .ok_or_else(|| unknown_word("hosts.schedule"))
}
