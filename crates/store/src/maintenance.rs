//! Small sweeps, one verb each: partitions ahead, retention, old keys. All are idempotent and safe to run anywhere at once.

use domain::limits;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::db::unsigned;
use crate::error::translate;
use crate::{Result, Store};

/// How long things are kept, in days. Events and output go before calls, so that a call can still say how it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Days that output is kept.
    pub output_days: u32,
    /// Days that events are kept; at least as many.
    pub events_days: u32,
    /// Days that calls are kept; at least as many.
    pub calls_days: u32,
}

impl Default for Retention {
    fn default() -> Self {
        Self { output_days: 7, events_days: 7, calls_days: 30 }
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
    /// Age of the oldest row of the audit trail that is not sealed, in seconds.
    pub audit_lag_s: u64,
}

impl Store {
    /// Makes the partitions of today and the given number of days ahead. Returns how many it made.
    pub async fn ensure_partitions(&self, days_ahead: u32) -> Result<u32> {
        const OPERATION: &str = "make partitions";
        let mut conn = self.db().system(OPERATION).await?;
        // Yesterday too: a process whose clock was measured a moment before midnight may still make its ids.
        let row = conn
            .one(
                sqlx::query(
                    "SELECT toolhost_ensure_partitions((clock_timestamp() AT TIME ZONE 'UTC')::date - 1, $1 + 2) AS n",
                )
                .bind(i32::try_from(days_ahead.min(366)).unwrap_or(366)),
            )
            .await?;
        conn.end().await?;
        count(OPERATION, &row)
    }

    /// Drops partitions that are older than retention says.
    pub async fn drop_old(&self, retention: Retention) -> Result<Dropped> {
        let events_days = retention.events_days.min(retention.calls_days);
        let events = self.drop_partitions("call_events", events_days).await?;
        let output = self.drop_partitions("output_chunks", retention.output_days.min(events_days)).await?;
        let calls = self.drop_partitions("calls", retention.calls_days).await?;
        Ok(Dropped { events: events + output, calls })
    }

    async fn drop_partitions(&self, parent: &'static str, days: u32) -> Result<u32> {
        const OPERATION: &str = "drop partitions";
        let mut conn = self.db().system(OPERATION).await?;
        let row = conn
            .one(
                sqlx::query(
                    "SELECT toolhost_drop_partitions($1, (clock_timestamp() AT TIME ZONE 'UTC')::date - $2) AS n",
                )
                .bind(parent)
                .bind(i32::try_from(days).unwrap_or(i32::MAX)),
            )
            .await?;
        conn.end().await?;
        count(OPERATION, &row)
    }

    /// Forgets idempotency keys older than [`domain::limits::IDEMPOTENCY_KEEP_HOURS`]. Returns how many.
    pub async fn prune_idempotency(&self) -> Result<u64> {
        let mut conn = self.db().system("prune idempotency keys").await?;
        let pruned = conn
            .execute(
                sqlx::query(
                    "DELETE FROM idempotency_keys WHERE created_at < clock_timestamp() - make_interval(hours => $1)",
                )
                .bind(i32::try_from(limits::IDEMPOTENCY_KEEP_HOURS).unwrap_or(i32::MAX)),
            )
            .await?;
        conn.end().await?;
        Ok(pruned)
    }

    /// Forgets removed sandboxes and lost workers' leftovers that are older than a day. Returns how many rows.
    pub async fn prune_sandboxes(&self) -> Result<u64> {
        let mut conn = self.db().system("prune sandboxes").await?;
        let sandboxes = conn
            .execute(sqlx::query(
                "DELETE FROM sandboxes b WHERE b.state = 'removed' AND b.removed_at < clock_timestamp() - interval '1 day'
                     AND NOT EXISTS (SELECT FROM sessions s WHERE s.id = b.session_id AND s.status <> 'ended')",
            ))
            .await?;
        let slots = conn
            .execute(sqlx::query(
                "DELETE FROM tenant_slots t WHERE NOT EXISTS (
                     SELECT FROM workers w WHERE w.id = t.worker_id AND w.lease_expires_at > clock_timestamp() - interval '1 day')",
            ))
            .await?;
        let workers = conn
            .execute(sqlx::query(
                "DELETE FROM workers w WHERE w.lease_expires_at < clock_timestamp() - interval '1 day'
                     AND NOT EXISTS (SELECT FROM sessions s WHERE s.worker_id = w.id AND s.status <> 'ended')",
            ))
            .await?;
        conn.end().await?;
        Ok(sandboxes + slots + workers)
    }

    /// Counts for metrics.
    pub async fn counts(&self) -> Result<Counts> {
        const OPERATION: &str = "count";
        let mut conn = self.db().system(OPERATION).await?;
        let row = conn
            .one(sqlx::query(
                "SELECT (SELECT count(*) FROM calls WHERE status = 'queued') AS queued,
                     (SELECT count(*) FROM calls WHERE status IN ('starting', 'running', 'waiting_input')) AS active,
                     (SELECT count(*) FROM sessions WHERE status <> 'ended') AS sessions,
                     (SELECT count(*) FROM sandboxes WHERE state <> 'removed') AS sandboxes,
                     (SELECT count(*) FROM workers WHERE lease_expires_at > clock_timestamp()) AS workers,
                     (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::bigint
                          FROM calls WHERE status = 'queued') AS oldest_queued_s,
                     (SELECT extract(epoch FROM clock_timestamp() - l.at)::bigint
                          FROM audit_sealer s, LATERAL (SELECT l.at FROM audit_log l
                              WHERE (l.xid, l.id) > (s.xid, s.entry_id) ORDER BY l.xid, l.id LIMIT 1) l) AS audit_lag_s",
            ))
            .await?;
        conn.end().await?;
        counts(&row).map_err(|error| translate(OPERATION, error))
    }
}

fn count(operation: &'static str, row: &PgRow) -> Result<u32> {
    let n: i32 = row.try_get("n").map_err(|error| translate(operation, error))?;
    Ok(u32::try_from(n).unwrap_or(0))
}

fn counts(row: &PgRow) -> Result<Counts, sqlx::Error> {
    let number = |column| row.try_get::<i64, _>(column).map(unsigned);
    Ok(Counts {
        queued: number("queued")?,
        active: number("active")?,
        sessions: number("sessions")?,
        sandboxes: number("sandboxes")?,
        workers: number("workers")?,
        oldest_queued_s: number("oldest_queued_s")?,
        audit_lag_s: row.try_get::<Option<i64>, _>("audit_lag_s")?.map_or(0, unsigned),
    })
}
