//! After a restore: what the database forgot must not be removed, and what it remembers must not be done twice.
//!
//! # Design notes
//!
//! * A dump that is restored elsewhere is recognised by its cluster and database, when a worker registers. Who restores in place (a
//!   snapshot of the disk, a point in time of the same cluster) says so with `toolhost admin restored`, before workers start.
//! * Sandboxes carry the time of their making in their id. One without a row that was made before the restore may serve a session that
//!   the backup does not know, so the reaper leaves it, its files and its folder alone, until an operator says that they may go.
//!   Warm ones in the backup may have been claimed since: their rows go, so that they are left alone too.
//! * A call that was open in the backup may have run and ended since, and its agent has forgotten it by then. So no open call goes on:
//!   those with effects are `lost`, the others fail and can be submitted again.
//! * Agents refuse an epoch that is lower than one that they have seen, and sessions may have been taken over since the backup: so
//!   their epochs jump.

use chrono::{DateTime, Utc};
use domain::{CallError, Code, OperatorContext, Principal};
use serde_json::json;
use sqlx::Row;

use crate::bus::Hint;
use crate::db::{Conn, read, read_found};
use crate::ending::{EndedCall, record_ends};
use crate::json::sanitised;
use crate::{AuditRow, Result, Store};

/// More takeovers than there are between a backup and its restore.
const EPOCHS: i64 = 1_000_000;
const OPERATION: &str = "take note of a restore";

/// What became of what was open in the backup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Restored {
    /// Sessions that are looked for on their hosts.
    pub sessions: u64,
    /// Calls that were ended, as nobody can know whether they went on.
    pub calls: u64,
}

impl Store {
    /// Takes note that the database was restored from a backup. To be asked before workers start.
    pub async fn mark_restored(&self, operator: &OperatorContext) -> Result<Restored> {
        let mut conn = self.db().system_transaction(OPERATION).await?;
        let restored = restored(&mut conn, operator.principal()).await?;
        conn.end().await?;
        self.tell(restored.1);
        Ok(restored.0)
    }

    /// Sandboxes that were left alone since the last restore may be removed.
    pub async fn release_restored(&self, operator: &OperatorContext) -> Result<()> {
        let mut conn = self.db().system_transaction(OPERATION).await?;
        conn.execute(sqlx::query("UPDATE installation SET restored_at = NULL")).await?;
        conn.audit(None, operator.principal(), &AuditRow::done("installation.release", "sandboxes")).await?;
        conn.end().await
    }

    /// Looks whether this is the cluster and database that it was; another one is a restored backup.
    pub(crate) async fn notice_restore(&self) -> Result<Option<Restored>> {
        let mut conn = self.db().system_transaction(OPERATION).await?;
        let row = conn
            .one(sqlx::query(
                "SELECT i.cluster AS before, c.system_identifier || ':' || d.oid AS now
                 FROM installation i, pg_control_system() c, pg_database d WHERE d.datname = current_database() FOR UPDATE OF i",
            ))
            .await?;
        let (before, now) = read_found(OPERATION, Some(row), |row| {
            Ok((row.try_get::<Option<String>, _>("before")?, row.try_get::<String, _>("now")?))
        })?;
        if before.as_ref() == Some(&now) {
            conn.end().await?;
            return Ok(None);
        }
        conn.execute(sqlx::query("UPDATE installation SET cluster = $1").bind(&now)).await?;
        let found = match before {
            Some(_) => Some(restored(&mut conn, &Principal::system()).await?),
            None => None,
        };
        conn.end().await?;
        Ok(found.map(|(restored, calls)| {
            self.tell(calls);
            restored
        }))
    }

    fn tell(&self, calls: Vec<EndedCall>) {
        for call in calls {
            self.bus().call_changed(call.id);
            self.bus().hint(Hint::CancelRequested(call.id));
        }
    }
}

async fn restored(conn: &mut Conn, principal: &Principal) -> Result<(Restored, Vec<EndedCall>)> {
    conn.execute(sqlx::query("UPDATE installation SET restored_at = clock_timestamp()")).await?;
    let sessions = conn
        .execute(sqlx::query("UPDATE sessions SET epoch = epoch + $1 WHERE status <> 'ended'").bind(EPOCHS))
        .await?;
    conn.execute(sqlx::query("UPDATE sandboxes SET epoch = epoch + $1 WHERE state = 'claimed'").bind(EPOCHS))
        .await?;
    conn.execute(sqlx::query(
        "UPDATE sandboxes SET state = 'removed', removed_at = clock_timestamp() WHERE state IN ('creating', 'warm')",
    ))
    .await?;
    let calls = end_calls(conn).await?;
    let found = Restored { sessions, calls: calls.len() as u64 };
    let details = json!({"sessions": found.sessions, "calls": found.calls});
    conn.audit(None, principal, &AuditRow::done("installation.restored", "database").details(details))
        .await?;
    Ok((found, calls))
}

async fn end_calls(conn: &mut Conn) -> Result<Vec<EndedCall>> {
    let lost = CallError::new(
        Code::CallLost,
        "The service was restored from a backup in which the call was open; it may have run to its end since.",
    );
    let failed = CallError::new(
        Code::PlatformError,
        "The service was restored from a backup in which the call was open. Submit it again.",
    );
    let rows = conn
        .all(
            sqlx::query(
                "WITH open AS (
                     SELECT id FROM calls WHERE status = 'queued'
                     UNION ALL SELECT id FROM calls WHERE status IN ('starting', 'running', 'waiting_input')
                 ), ended AS (
                     UPDATE calls c SET status = CASE c.effect WHEN 'effectful' THEN 'lost' ELSE 'failed' END,
                         error = CASE c.effect WHEN 'effectful' THEN $1 ELSE $2 END::text::jsonb,
                         ended = jsonb_build_object('reason', CASE c.effect WHEN 'effectful' THEN 'lost' ELSE 'platform_error' END,
                             'hint', NULL, 'evidence', jsonb_build_object('restored_from_backup', true, 'status_before', c.status)),
                         ended_at = statement_timestamp(), last_seq = c.last_seq + 1
                     FROM open WHERE c.id = open.id AND c.ended_at IS NULL
                     RETURNING c.id, c.tenant_id, c.last_seq, c.status
                 ), told AS (
                     INSERT INTO call_events (call_id, seq, tenant_id, type, at)
                     SELECT id, last_seq, tenant_id, 'call.ended', statement_timestamp() FROM ended
                 )
                 SELECT id, tenant_id, status FROM ended",
            )
            .bind(sanitised(OPERATION, &lost)?)
            .bind(sanitised(OPERATION, &failed)?),
        )
        .await?;
    let ended = read(OPERATION, &rows, EndedCall::from_row)?;
    record_ends(conn, OPERATION, &ended, "restored").await?;
    Ok(ended)
}

/// Until when a sandbox without a row is left alone.
pub(crate) async fn restored_at(conn: &mut Conn) -> Result<Option<DateTime<Utc>>> {
    let row = conn.one(sqlx::query("SELECT restored_at FROM installation")).await?;
    read_found(OPERATION, Some(row), |row| row.try_get("restored_at"))
}
