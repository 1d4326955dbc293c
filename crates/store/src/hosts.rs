//! Hosts, the operator's side: what they have, what is taken of it, and whether they take more.

use chrono::{DateTime, Utc};
use domain::{HostId, OperatorContext, Principal, Session, SessionEnd, SessionEndReason, WorkerId};
use serde_json::json;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::bus::Hint;
use crate::db::{Conn, read, read_found, signed, unknown_word, unsigned};
use crate::ending::{end_open_calls, end_running_shells};
use crate::sessions::{session, session_columns};
use crate::{AuditRow, Result, Store};

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

/// Sessions that one pass ends.
const ENDS: i64 = 100;

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

    /// Says what a worker's warm pool holds at most.
    pub async fn set_worker_pool(&self, worker: WorkerId, pool: HostShare) -> Result<()> {
        let mut conn = self.db().system("set worker pool").await?;
        conn.execute(
            sqlx::query(
                "UPDATE workers SET pool_cpus = $2, pool_memory_mb = $3, pool_disk_mb = $4, pool_sandboxes = $5 WHERE id = $1",
            )
            .bind(worker.uuid())
            .bind(pool.cpus)
            .bind(signed(pool.memory_mb))
            .bind(signed(pool.disk_mb))
            .bind(i32::try_from(pool.sandboxes).unwrap_or(i32::MAX)),
        )
        .await?;
        conn.end().await
    }

    /// All hosts, by name.
    pub async fn list_hosts(&self, _operator: &OperatorContext) -> Result<Vec<Host>> {
        const OPERATION: &str = "list hosts";
        let mut conn = self.db().system(OPERATION).await?;
        let rows = conn.all(sqlx::query("SELECT * FROM toolhost_host_load() ORDER BY name")).await?;
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
        let row = conn
            .optional(sqlx::query("SELECT * FROM toolhost_host_load() WHERE host_id = $1").bind(id.uuid()))
            .await?;
        conn.end().await?;
        read_found(OPERATION, row, host)
    }

    /// Asks sessions to end whose host was to be drained by now, and those of suspended tenants, and ends the ones among them that no
    /// worker has. Asked for again and again, so that a session that slipped in meanwhile ends too. Returns how many it asked or ended.
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

    /// Ends sessions whose end was asked for and that no worker ever took.
    async fn end_unclaimed(&self) -> Result<u64> {
        const OPERATION: &str = "end unclaimed sessions";
        let mut conn = self.db().system_transaction(OPERATION).await?;
        let rows = conn
            .all(
                sqlx::query(concat!(
                    "WITH unclaimed AS (
                         SELECT id FROM sessions WHERE status = 'starting' AND worker_id IS NULL AND end_requested
                         ORDER BY id LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED
                     )
                     UPDATE sessions s SET status = 'ended', ended_at = clock_timestamp(), end_reason = coalesce(s.end_wish, 'deleted'),
                         end_message = '', end_evidence = '{}'
                     FROM unclaimed u WHERE s.id = u.id AND s.worker_id IS NULL RETURNING ",
                    session_columns!()
                ))
                .bind(ENDS),
            )
            .await?;
        let ended = read(OPERATION, &rows, session)?;
        let (mut calls, mut shells) = (Vec::new(), Vec::new());
        for session in &ended {
            let (of_calls, of_shells) = close(&mut conn, OPERATION, session).await?;
            calls.extend(of_calls);
            shells.extend(of_shells);
        }
        conn.end().await?;
        calls.into_iter().for_each(|call| self.bus().call_changed(call));
        shells.into_iter().for_each(|shell| self.bus().shell_changed(shell));
        ended.iter().for_each(|session| self.bus().hint(Hint::SessionChanged(session.id)));
        Ok(ended.len() as u64)
    }
}

/// Nothing of an ended session stays open.
async fn close(
    conn: &mut Conn,
    operation: &'static str,
    session: &Session,
) -> Result<(Vec<domain::CallId>, Vec<domain::ShellId>)> {
    let reason = session.ended.as_ref().map_or(SessionEndReason::Deleted, |end| end.reason);
    let end = SessionEnd::because(reason);
    conn.execute(
        sqlx::query("UPDATE sessions SET end_message = $2 WHERE id = $1")
            .bind(session.id.uuid())
            .bind(&end.message),
    )
    .await?;
    let calls = end_open_calls(conn, operation, session, &end).await?;
    let shells = end_running_shells(conn, operation, session).await?;
    let trail = AuditRow::done("session.end", session.id).details(json!({"reason": reason}));
    conn.audit(Some(session.tenant_id), &Principal::system(), &trail).await?;
    Ok((calls, shells))
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
