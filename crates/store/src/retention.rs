//! Retention of single tenants, where it is shorter than the installation's: calls, events and output by the ids of the tenant's calls.
//!
//! # Design notes
//!
//! * Whole days go with their partitions (see `maintenance`); here only rows of tenants that keep less than others are deleted, so that
//!   most tenants cost nothing. A batch is a range of ids of one tenant's calls: it touches the partitions of those days, by index.
//! * How far a tenant is pruned is kept with the deletion, so that no pass looks at the same calls again. A pass that is killed begins
//!   where the last whole batch ended.
//! * Calls go only behind their output and events: a pass that was cut short, or had too many, must not leave rows that nobody finds again.
//! * Output of a shell that still runs stays, however old the call that started it. The shell is marked, so that its log goes once it
//!   has ended: what else is due does not wait for it.

use chrono::{DateTime, TimeDelta, Utc};
use domain::{OperatorContext, TenantId};
use serde_json::json;
use sqlx::Row;
use uuid::Uuid;

use crate::clock::uuid_floor;
use crate::db::{Conn, read, read_found};
use crate::{AuditRow, Result, Retention, Store};

/// Calls of one batch, and batches of one pass.
const BATCH: i64 = 500;
const BATCHES: usize = 200;
const PRUNE: &str = "prune a tenant";

/// Days that a tenant keeps things; the installation's where nothing is said, and never longer than that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TenantRetention {
    /// Days that its calls are kept.
    pub calls_days: Option<u32>,
    /// Days that events of its calls are kept.
    pub events_days: Option<u32>,
    /// Days that output of its calls is kept.
    pub output_days: Option<u32>,
}

impl TenantRetention {
    /// What holds within the installation's. Output goes before events, and events before calls.
    #[must_use]
    pub fn within(self, installation: Retention) -> Retention {
        let calls_days = self.calls_days.unwrap_or(u32::MAX).min(installation.calls_days);
        let events_days = self.events_days.unwrap_or(u32::MAX).min(installation.events_days).min(calls_days);
        let output_days = self.output_days.unwrap_or(u32::MAX).min(installation.output_days).min(events_days);
        Retention { calls_days, events_days, output_days }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Output,
    Events,
    Calls,
}

impl Kind {
    const fn word(self) -> &'static str {
        match self {
            Self::Output => "output",
            Self::Events => "events",
            Self::Calls => "calls",
        }
    }

    const fn delete(self) -> &'static str {
        match self {
            Self::Output => {
                "DELETE FROM output_chunks WHERE owner = ANY ($1) AND owner >= $2 AND owner <= $3"
            }
            Self::Events => {
                "DELETE FROM call_events WHERE call_id = ANY ($1) AND call_id >= $2 AND call_id <= $3"
            }
            Self::Calls => {
                "DELETE FROM calls WHERE id = ANY ($1) AND id >= $2 AND id <= $3 AND ended_at IS NOT NULL"
            }
        }
    }
}

impl Store {
    /// Sets what a tenant keeps. It can only be less than what the installation does.
    pub async fn set_tenant_retention(
        &self,
        operator: &OperatorContext,
        id: TenantId,
        retention: TenantRetention,
    ) -> Result<()> {
        const OPERATION: &str = "set tenant retention";
        let mut conn = self.db().system_transaction(OPERATION).await?;
        let days = |days: Option<u32>| days.map(|days| i32::try_from(days).unwrap_or(i32::MAX));
        let row = conn
            .optional(
                sqlx::query(
                    "UPDATE tenants SET calls_days = $2, events_days = $3, output_days = $4 WHERE id = $1 RETURNING id",
                )
                .bind(id.uuid())
                .bind(days(retention.calls_days))
                .bind(days(retention.events_days))
                .bind(days(retention.output_days)),
            )
            .await?;
        if row.is_some() {
            let details = json!({
                "calls_days": retention.calls_days,
                "events_days": retention.events_days,
                "output_days": retention.output_days,
            });
            conn.audit(
                Some(id),
                operator.principal(),
                &AuditRow::done("tenant.retention", id).details(details),
            )
            .await?;
        }
        conn.end().await?;
        read_found(OPERATION, row, |_| Ok(()))
    }

    /// Deletes what tenants keep for a shorter time than the installation does. Returns how many calls it went through.
    pub async fn prune_tenants(&self, installation: Retention) -> Result<u64> {
        let mut conn = self.db().system(PRUNE).await?;
        let rows = conn
            .all(sqlx::query(
                "SELECT id, calls_days, events_days, output_days FROM tenants
                 WHERE coalesce(calls_days, events_days, output_days) IS NOT NULL ORDER BY id",
            ))
            .await?;
        conn.end().await?;
        let tenants = read(PRUNE, &rows, |row| {
            let days = |column| {
                Ok::<_, sqlx::Error>(
                    row.try_get::<Option<i32>, _>(column)?.and_then(|days| u32::try_from(days).ok()),
                )
            };
            let retention = TenantRetention {
                calls_days: days("calls_days")?,
                events_days: days("events_days")?,
                output_days: days("output_days")?,
            };
            Ok((TenantId::from_uuid(row.try_get("id")?), retention))
        })?;
        let mut pruned = 0;
        for (tenant, retention) in tenants {
            let keeps = retention.within(installation);
            for (kind, days, of_all) in [
                (Kind::Output, keeps.output_days, installation.output_days.min(installation.events_days)),
                (Kind::Events, keeps.events_days, installation.events_days),
                (Kind::Calls, keeps.calls_days, installation.calls_days),
            ] {
                // Who keeps calls for a shorter time loses them to the second, and what hangs on them must not wait for its partition.
                if days < of_all || keeps.calls_days < installation.calls_days {
                    let before = self.clock().now() - TimeDelta::days(i64::from(days));
                    pruned += self.prune_tenant(tenant, kind, before).await?;
                }
            }
        }
        Ok(pruned)
    }

    async fn prune_tenant(&self, tenant: TenantId, kind: Kind, before: DateTime<Utc>) -> Result<u64> {
        let mut pruned = 0;
        if kind == Kind::Output {
            let mut conn = self.db().system_transaction(PRUNE).await?;
            prune_overdue_logs(&mut conn, tenant).await?;
            conn.end().await?;
        }
        for _ in 0..BATCHES {
            let mut conn = self.db().system_transaction(PRUNE).await?;
            let batch = prune_batch(&mut conn, tenant, kind, before).await?;
            conn.end().await?;
            pruned += batch;
            if batch < BATCH.unsigned_abs() {
                break;
            }
        }
        Ok(pruned)
    }
}

/// Deletes of the next calls, and moves the mark behind them. Returns how many calls there were.
async fn prune_batch(conn: &mut Conn, tenant: TenantId, kind: Kind, before: DateTime<Utc>) -> Result<u64> {
    let rows = conn
        .all(
            sqlx::query(
                "SELECT c.id, ARRAY(SELECT c.output_owner UNION SELECT h.output_owner FROM shells h
                         WHERE h.session_id = c.session_id AND h.call_id = c.id
                     EXCEPT SELECT h.output_owner FROM shells h
                         WHERE h.session_id = c.session_id AND h.call_id = c.id AND h.status = 'running') AS logs,
                     ARRAY(SELECT h.id FROM shells h
                         WHERE h.session_id = c.session_id AND h.call_id = c.id AND h.status = 'running') AS running
                 FROM calls c WHERE c.tenant_id = $1 AND c.id < $2
                   AND ($3 <> 'calls' OR c.id <= ALL (
                       SELECT coalesce(p.until, '00000000-0000-0000-0000-000000000000') FROM unnest(ARRAY['output', 'events']) AS k (kind)
                       LEFT JOIN tenant_pruned p ON p.tenant_id = $1 AND p.kind = k.kind))
                   AND c.id > coalesce((SELECT until FROM tenant_pruned WHERE tenant_id = $1 AND kind = $3),
                       '00000000-0000-0000-0000-000000000000')
                 ORDER BY c.id LIMIT $4",
            )
            .bind(tenant.uuid())
            .bind(uuid_floor(before))
            .bind(kind.word())
            .bind(BATCH),
        )
        .await?;
    let calls = read(PRUNE, &rows, |row| {
        Ok((row.try_get::<Uuid, _>("id")?, row.try_get("logs")?, row.try_get("running")?))
    })?;
    let calls: Vec<(Uuid, Vec<Uuid>, Vec<Uuid>)> = calls;
    let Some((until, ..)) = calls.last() else { return Ok(0) };
    match kind {
        Kind::Output => {
            delete(conn, kind, calls.iter().flat_map(|(_, logs, _)| logs).copied().collect()).await?;
            let running: Vec<Uuid> = calls.iter().flat_map(|(.., running)| running).copied().collect();
            if !running.is_empty() {
                let marked = sqlx::query("UPDATE shells SET log_overdue = true WHERE id = ANY ($1)");
                conn.execute(marked.bind(running)).await?;
            }
        }
        Kind::Events | Kind::Calls => {
            delete(conn, kind, calls.iter().map(|(id, ..)| *id).collect()).await?;
        }
    }
    conn.execute(
        sqlx::query(
            "INSERT INTO tenant_pruned (tenant_id, kind, until) VALUES ($1, $2, $3)
             ON CONFLICT (tenant_id, kind) DO UPDATE SET until = excluded.until",
        )
        .bind(tenant.uuid())
        .bind(kind.word())
        .bind(until),
    )
    .await?;
    Ok(calls.len() as u64)
}

/// Deletes logs of shells that ran when their output was due and have ended since.
async fn prune_overdue_logs(conn: &mut Conn, tenant: TenantId) -> Result<()> {
    let rows = conn
        .all(
            sqlx::query(
                "WITH due AS (
                     SELECT id FROM shells WHERE tenant_id = $1 AND log_overdue AND status <> 'running' ORDER BY id LIMIT $2
                 )
                 UPDATE shells h SET log_overdue = false FROM due WHERE h.id = due.id RETURNING h.output_owner",
            )
            .bind(tenant.uuid())
            .bind(BATCH),
        )
        .await?;
    delete(conn, Kind::Output, read(PRUNE, &rows, |row| row.try_get("output_owner"))?).await
}

async fn delete(conn: &mut Conn, kind: Kind, ids: Vec<Uuid>) -> Result<()> {
    let (Some(first), Some(last)) = (ids.iter().min().copied(), ids.iter().max().copied()) else {
        return Ok(());
    };
    conn.execute(sqlx::query(kind.delete()).bind(&ids).bind(first).bind(last)).await?;
    Ok(())
}
