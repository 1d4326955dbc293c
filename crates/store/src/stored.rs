//! How much of what tenants pay for is in use: sessions, calls, and the bytes that are kept for them.
//!
//! # Design notes
//!
//! Stored bytes are a sum by tenant, kind and day. Output is added to it once a second for all calls together, away from their two commits,
//! which would otherwise wait for each other at one row a tenant; what a process loses by dying, and what expires with its day, a sweep puts
//! right by counting exactly. So the sum is what
//! admission may believe within a second or so, and no more than that: one call may still write all that it is allowed to.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Instant;

use domain::{SessionId, TenantContext, TenantId};
use sqlx::Row;

use crate::auth::{REMEMBER, REMEMBERED};
use crate::db::{Conn, Db, read_found, signed, unsigned};
use crate::{Result, Store};

/// What a tenant uses now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TenantUse {
    /// Sessions that have not ended.
    pub sessions: u64,
    /// Calls that run.
    pub running_calls: u64,
    /// Calls that wait.
    pub queued_calls: u64,
    /// Bytes of output and artifacts.
    pub stored_bytes: u64,
}

/// Sums that were read a moment ago.
#[derive(Debug, Default)]
pub(crate) struct StoredMemory(Mutex<HashMap<TenantId, (u64, Instant)>>);

impl StoredMemory {
    fn get(&self, id: TenantId, now: Instant) -> Option<u64> {
        let known = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        known.get(&id).filter(|(_, until)| *until > now).map(|(bytes, _)| *bytes)
    }

    fn put(&self, id: TenantId, bytes: u64, now: Instant) {
        let mut known = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(id, (bytes, now + REMEMBER));
    }
}

impl Store {
    /// What the tenant uses now.
    pub async fn tenant_use(&self, context: &TenantContext) -> Result<TenantUse> {
        const OPERATION: &str = "read a tenant's use";
        let mut conn = self.db().tenant(OPERATION, context).await?;
        let row = conn
            .optional(
                sqlx::query(
                    "SELECT (SELECT count(*) FROM sessions WHERE tenant_id = $1 AND status <> 'ended') AS sessions,
                         (SELECT count(*) FROM calls c JOIN sessions s ON s.id = c.session_id
                              WHERE s.tenant_id = $1 AND s.status <> 'ended'
                                AND c.status IN ('starting', 'running', 'waiting_input')) AS running,
                         (SELECT count(*) FROM calls WHERE tenant_id = $1 AND status = 'queued') AS queued,
                         (SELECT coalesce(sum(bytes), 0)::bigint FROM stored_bytes WHERE tenant_id = $1) AS bytes",
                )
                .bind(context.tenant_id().uuid()),
            )
            .await?;
        conn.end().await?;
        read_found(OPERATION, row, |row| {
            Ok(TenantUse {
                sessions: unsigned(row.try_get("sessions")?),
                running_calls: unsigned(row.try_get("running")?),
                queued_calls: unsigned(row.try_get("queued")?),
                stored_bytes: unsigned(row.try_get("bytes")?),
            })
        })
    }

    /// Bytes that are kept for the tenant, as of the last two seconds.
    pub async fn stored_bytes(&self, context: &TenantContext) -> Result<u64> {
        const OPERATION: &str = "read stored bytes";
        let now = Instant::now();
        if let Some(bytes) = self.stored_memory().get(context.tenant_id(), now) {
            return Ok(bytes);
        }
        let mut conn = self.db().tenant(OPERATION, context).await?;
        let row = conn
            .optional(
                sqlx::query(
                    "SELECT coalesce(sum(bytes), 0)::bigint AS bytes FROM stored_bytes WHERE tenant_id = $1",
                )
                .bind(context.tenant_id().uuid()),
            )
            .await?;
        conn.end().await?;
        let bytes = unsigned(read_found(OPERATION, row, |row| row.try_get("bytes"))?);
        self.stored_memory().put(context.tenant_id(), bytes, now);
        Ok(bytes)
    }

    /// Counts the output of today and yesterday again, and of days of retention that nobody has counted, and forgets days that have
    /// been dropped. Returns how many days were counted.
    pub async fn recount_stored(&self, events_days: u32) -> Result<u32> {
        const OPERATION: &str = "count stored bytes";
        let mut counted = 0;
        for day in 0..=i32::try_from(events_days.min(3_660)).unwrap_or(0) {
            let mut conn = self.db().system_transaction(OPERATION).await?;
            let row = conn
                .optional(
                    sqlx::query(
                        "SELECT $1 < 2 OR NOT EXISTS (SELECT FROM stored_bytes WHERE kind = 'output'
                             AND day = (clock_timestamp() AT TIME ZONE 'UTC')::date - $1) AS due",
                    )
                    .bind(day),
                )
                .await?;
            if read_found(OPERATION, row, |row| row.try_get::<bool, _>("due"))? {
                recount_day(&mut conn, day).await?;
                counted += 1;
            }
            conn.end().await?;
        }
        let mut conn = self.db().system(OPERATION).await?;
        conn.execute(
            sqlx::query(
                "DELETE FROM stored_bytes WHERE kind = 'output'
                     AND day < (clock_timestamp() AT TIME ZONE 'UTC')::date - $1",
            )
            .bind(i32::try_from(events_days).unwrap_or(i32::MAX)),
        )
        .await?;
        conn.end().await?;
        Ok(counted)
    }
}

async fn recount_day(conn: &mut Conn, days_ago: i32) -> Result<()> {
    conn.execute(
        sqlx::query(
            "WITH of AS (SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date - $1 AS day), counted AS (
                 SELECT o.tenant_id, sum(octet_length(o.bytes))::bigint AS bytes FROM output_chunks o
                 WHERE o.owner >= (SELECT toolhost_uuid_floor(day::timestamp AT TIME ZONE 'UTC') FROM of)
                   AND o.owner < (SELECT toolhost_uuid_floor((day + 1)::timestamp AT TIME ZONE 'UTC') FROM of)
                 GROUP BY o.tenant_id
             ), gone AS (
                 DELETE FROM stored_bytes s USING of WHERE s.kind = 'output' AND s.day = of.day
                     AND NOT EXISTS (SELECT FROM counted c WHERE c.tenant_id = s.tenant_id)
             )
             INSERT INTO stored_bytes (tenant_id, kind, day, bytes)
             SELECT c.tenant_id, 'output', of.day, c.bytes FROM counted c, of ORDER BY c.tenant_id
             ON CONFLICT (tenant_id, kind, day) DO UPDATE SET bytes = excluded.bytes",
        )
        .bind(days_ago),
    )
    .await?;
    Ok(())
}

/// Adds output that has been written, by the sessions that it is of.
pub(crate) async fn add_output(db: &Db, written: HashMap<SessionId, u64>) -> Result<()> {
    let (sessions, bytes): (Vec<_>, Vec<_>) =
        written.into_iter().map(|(id, bytes)| (id.uuid(), signed(bytes))).unzip();
    let mut conn = db.system("add stored bytes").await?;
    conn.execute(
        sqlx::query(
            "INSERT INTO stored_bytes (tenant_id, kind, day, bytes)
             SELECT s.tenant_id, 'output', (clock_timestamp() AT TIME ZONE 'UTC')::date, sum(w.bytes)::bigint
             FROM unnest($1::uuid[], $2::bigint[]) AS w(session_id, bytes) JOIN sessions s ON s.id = w.session_id
             GROUP BY s.tenant_id ORDER BY s.tenant_id
             ON CONFLICT (tenant_id, kind, day) DO UPDATE SET bytes = stored_bytes.bytes + excluded.bytes",
        )
        .bind(sessions)
        .bind(bytes),
    )
    .await?;
    conn.end().await
}
