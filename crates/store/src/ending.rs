//! Ends in bulk: what a session's end does to its calls and shells. A session that has ended has nothing open.

use domain::{CallError, CallId, Code, Principal, Session, SessionEnd, ShellId, TenantId};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::Result;
use crate::db::{Conn, read};
use crate::json::sanitised;

/// Ends every open call of a session in the caller's transaction: `failed`, or `lost` when one with effects was under way.
pub(crate) async fn end_open_calls(
    conn: &mut Conn,
    operation: &'static str,
    session: &Session,
    end: &SessionEnd,
) -> Result<Vec<CallId>> {
    let failed = CallError::new(Code::SessionEnded, &end.message);
    let lost =
        CallError::new(Code::CallLost, "The session ended while the call ran; it may have had effects.");
    let rows = conn
        .all(
            sqlx::query(
                "WITH open AS (
                     SELECT id FROM calls WHERE tenant_id = $2 AND session_id = $1 AND status = 'queued'
                         AND id >= toolhost_uuid_floor($3 - interval '1 minute')
                     UNION ALL
                     SELECT id FROM calls WHERE session_id = $1 AND status IN ('starting', 'running', 'waiting_input')
                         AND id >= toolhost_uuid_floor($3 - interval '1 minute')
                 ), ended AS (
                     UPDATE calls c SET
                         status = CASE WHEN c.status <> 'queued' AND c.effect = 'effectful' THEN 'lost' ELSE 'failed' END,
                         error = CASE WHEN c.status <> 'queued' AND c.effect = 'effectful' THEN $5 ELSE $4 END::text::jsonb,
                         ended = jsonb_build_object('reason', 'session_ended', 'hint', NULL,
                             'evidence', jsonb_build_object('session_end_reason', $6::text, 'status_before', c.status)),
                         ended_at = statement_timestamp(), last_seq = c.last_seq + 1
                     FROM open WHERE c.id = open.id AND c.ended_at IS NULL
                     RETURNING c.id, c.tenant_id, c.last_seq, c.status
                 ), told AS (
                     INSERT INTO call_events (call_id, seq, tenant_id, type, at)
                     SELECT id, last_seq, tenant_id, 'call.ended', statement_timestamp() FROM ended
                 )
                 SELECT id, tenant_id, status FROM ended",
            )
            .bind(session.id.uuid())
            .bind(session.tenant_id.uuid())
            .bind(session.created_at)
            .bind(sanitised(operation, &failed)?)
            .bind(sanitised(operation, &lost)?)
            .bind(end.reason.as_str()),
        )
        .await?;
    let ended = read(operation, &rows, EndedCall::from_row)?;
    record_ends(conn, operation, &ended, "session_ended").await?;
    Ok(ended.into_iter().map(|call| call.id).collect())
}

/// A call that was ended together with others.
pub(crate) struct EndedCall {
    pub(crate) id: CallId,
    tenant_id: TenantId,
    status: String,
}

impl EndedCall {
    pub(crate) fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: CallId::from_uuid(row.try_get("id")?),
            tenant_id: TenantId::from_uuid(row.try_get("tenant_id")?),
            status: row.try_get("status")?,
        })
    }
}

/// Writes the audit rows of calls that were ended together, in the transaction that ended them.
pub(crate) async fn record_ends(
    conn: &mut Conn,
    operation: &'static str,
    ended: &[EndedCall],
    reason: &'static str,
) -> Result<()> {
    if ended.is_empty() {
        return Ok(());
    }
    conn.execute(
        sqlx::query(
            "INSERT INTO audit_log (tenant_id, principal, action, target, allowed, details)
             SELECT e.tenant_id, $4::text::jsonb, 'call.end', e.target, true,
                 jsonb_build_object('status', e.status, 'reason', $5::text)
             FROM unnest($1::uuid[], $2::text[], $3::text[]) AS e(tenant_id, target, status)",
        )
        .bind(ended.iter().map(|call| call.tenant_id.uuid()).collect::<Vec<_>>())
        .bind(ended.iter().map(|call| call.id.to_string()).collect::<Vec<_>>())
        .bind(ended.iter().map(|call| call.status.clone()).collect::<Vec<_>>())
        .bind(sanitised(operation, &Principal::system())?)
        .bind(reason),
    )
    .await?;
    Ok(())
}

/// Ends every running shell of a session in the caller's transaction.
pub(crate) async fn end_running_shells(
    conn: &mut Conn,
    operation: &'static str,
    session: &Session,
) -> Result<Vec<ShellId>> {
    let rows = conn
        .all(
            sqlx::query(
                "UPDATE shells SET status = 'exited', ended_at = clock_timestamp(), end_reason = 'session_ended'
                 WHERE session_id = $1 AND status = 'running' RETURNING id",
            )
            .bind(session.id.uuid()),
        )
        .await?;
    read(operation, &rows, |row| Ok(ShellId::from_uuid(row.try_get("id")?)))
}
