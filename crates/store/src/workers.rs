//! Hosts and workers: one lease row for each worker process. What the dead leave behind is taken in `takeover`.
//!
//! # Design notes
//!
//! * A lease lives on the database's clock. Its holder counts from *before* it asked, on its own monotonic clock, so
//!   that it always believes to have less time than it has.
//! * After an outage of the database every lease is over. Whoever renews first must not take the others for dead:
//!   a renewal that comes late, or a registration, sets `takeover_from` one full lease ahead.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use domain::limits::LEASE_TTL_MS;
use domain::{Call, HostId, WorkerId};
use sqlx::Row;

use crate::calls::{call, call_columns};
use crate::db::{read, read_found};
use crate::{Result, Store, StoreError};

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

impl Store {
    /// The host of this name, made when it is new.
    pub async fn register_host(&self, name: &str) -> Result<HostId> {
        const OPERATION: &str = "register host";
        crate::json::storable_text(OPERATION, "name", name)?;
        if let Some(restored) = self.notice_restore().await? {
            tracing::warn!(
                sessions = restored.sessions,
                calls = restored.calls,
                "the database was restored from a backup: sandboxes that it does not know are left alone"
            );
        }
        let id: HostId = self.clock().new_id();
        let mut conn = self.db().system(OPERATION).await?;
        let row = conn
            .one(
                sqlx::query(
                    "INSERT INTO hosts (id, name) VALUES ($1, $2)
                     ON CONFLICT (name) DO UPDATE SET last_seen_at = clock_timestamp() RETURNING id",
                )
                .bind(id.uuid())
                .bind(name),
            )
            .await?;
        conn.end().await?;
        read_found(OPERATION, Some(row), |row| Ok(HostId::from_uuid(row.try_get("id")?)))
    }

    /// A new worker on a host, with its first lease.
    pub async fn register_worker(&self, host: HostId) -> Result<Lease> {
        const OPERATION: &str = "register worker";
        let id: WorkerId = self.clock().new_id();
        let asked = Instant::now();
        let mut conn = self.db().system(OPERATION).await?;
        conn.execute(
            sqlx::query(
                "WITH seen AS (
                     UPDATE hosts SET last_seen_at = clock_timestamp(), lost_at = NULL WHERE id = $2
                 )
                 INSERT INTO workers (id, host_id, lease_expires_at, takeover_from)
                 VALUES ($1, $2, clock_timestamp() + $3 * interval '1 millisecond',
                     clock_timestamp() + $3 * interval '1 millisecond')",
            )
            .bind(id.uuid())
            .bind(host.uuid())
            .bind(ttl_ms()),
        )
        .await?;
        conn.end().await?;
        Ok(Lease { worker_id: id, host_id: host, expires_at: asked + Duration::from_millis(LEASE_TTL_MS) })
    }

    /// Renews a lease. [`crate::StoreError::Stale`] when the worker was declared dead: it must stop everything and register anew.
    /// A lease that is over but was not taken is revived.
    pub async fn renew_lease(&self, worker: WorkerId) -> Result<Lease> {
        const OPERATION: &str = "renew lease";
        let mut conn = self.db().system(OPERATION).await?;
        // Counted from before the question, so that the holder believes to have less time than it has.
        let asked = Instant::now();
        let row = conn
            .optional(
                sqlx::query(
                    "WITH renewed AS (
                         UPDATE workers SET
                             takeover_from = CASE WHEN lease_expires_at < clock_timestamp()
                                 THEN clock_timestamp() + $2 * interval '1 millisecond' ELSE takeover_from END,
                             lease_expires_at = clock_timestamp() + $2 * interval '1 millisecond'
                         WHERE id = $1 RETURNING host_id
                     ), seen AS (
                         UPDATE hosts SET last_seen_at = clock_timestamp(), lost_at = NULL
                         FROM renewed WHERE hosts.id = renewed.host_id
                           AND (hosts.lost_at IS NOT NULL OR hosts.last_seen_at < clock_timestamp() - interval '5 seconds')
                     )
                     SELECT host_id, clock_timestamp() AS now FROM renewed",
                )
                .bind(worker.uuid())
                .bind(ttl_ms()),
            )
            .await?;
        let answered = Instant::now();
        conn.end().await?;
        let Some(row) = row else {
            return Err(StoreError::Stale { operation: OPERATION });
        };
        let (host_id, now) = read_found(OPERATION, Some(row), |row| {
            Ok((HostId::from_uuid(row.try_get("host_id")?), row.try_get::<DateTime<Utc>, _>("now")?))
        })?;
        self.clock().set(asked, answered, now);
        Ok(Lease { worker_id: worker, host_id, expires_at: asked + Duration::from_millis(LEASE_TTL_MS) })
    }

    /// The worker claims nothing more; others still see it alive.
    pub async fn drain_worker(&self, worker: WorkerId) -> Result<()> {
        let mut conn = self.db().system("drain worker").await?;
        conn.execute(
            sqlx::query("UPDATE workers SET draining = true, accepts_sessions = false WHERE id = $1")
                .bind(worker.uuid()),
        )
        .await?;
        conn.end().await
    }

    /// The worker is gone of its own will. What it still has can be taken over at once.
    pub async fn deregister_worker(&self, worker: WorkerId) -> Result<()> {
        let mut conn = self.db().system("deregister worker").await?;
        conn.execute(
            sqlx::query(
                "WITH slots AS (DELETE FROM tenant_slots WHERE worker_id = $1) DELETE FROM workers WHERE id = $1",
            )
            .bind(worker.uuid()),
        )
        .await?;
        conn.end().await
    }

    /// Calls that a worker's row says it runs. One that the worker does not know (its admission's answer was lost) has
    /// not been started: the worker is to run it.
    pub async fn calls_of_worker(&self, worker: WorkerId) -> Result<Vec<Call>> {
        const OPERATION: &str = "read calls of worker";
        let mut conn = self.db().system(OPERATION).await?;
        let rows = conn
            .all(
                sqlx::query(concat!(
                    "SELECT ",
                    call_columns!(),
                    " FROM sessions s CROSS JOIN LATERAL (
                         SELECT * FROM calls o WHERE o.session_id = s.id AND o.status IN ('starting', 'running', 'waiting_input')
                             AND o.id >= toolhost_uuid_floor(s.created_at - interval '1 minute')) c
                     WHERE s.worker_id = $1 AND s.status <> 'ended' AND c.worker_id = $1 ORDER BY c.id"
                ))
                .bind(worker.uuid()),
            )
            .await?;
        conn.end().await?;
        read(OPERATION, &rows, call)
    }
}

pub(crate) fn ttl_ms() -> f64 {
    LEASE_TTL_MS as f64
}
