//! Calls that end because whoever asked for them may not any more: a revoked key's, a suspended tenant's.

use domain::{CallEnded, CallError, CallId, Code, EndReason, KeyId, TenantId};
use serde_json::json;
use sqlx::Row;

use crate::bus::{Bus, Hint};
use crate::db::{Conn, read, read_found};
use crate::ending::{EndedCall, record_ends};
use crate::json::sanitised;
use crate::{Result, Store};

/// Why calls are cancelled without their caller's wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Withdrawn {
    /// The key that made them was revoked.
    Key(KeyId),
    /// Their tenant was suspended.
    Tenant,
}

impl Withdrawn {
    const fn reason(self) -> &'static str {
        match self {
            Self::Key(_) => "key_revoked",
            Self::Tenant => "tenant_suspended",
        }
    }
}

/// Calls that were cancelled together.
#[derive(Debug, Default)]
pub(crate) struct Cancelled(Vec<CallId>);

impl Cancelled {
    /// Tells their workers and readers, once the commit is through.
    pub(crate) fn tell(self, bus: &Bus) {
        for id in self.0 {
            bus.call_changed(id);
            bus.hint(Hint::CancelRequested(id));
        }
    }
}

/// Cancels open calls in the caller's transaction: what waits has ended with it, what runs is marked and ended by its worker.
pub(crate) async fn withdraw(
    conn: &mut Conn,
    operation: &'static str,
    tenant_id: TenantId,
    why: Withdrawn,
) -> Result<Cancelled> {
    let key = match why {
        Withdrawn::Key(id) => Some(id.to_string()),
        Withdrawn::Tenant => None,
    };
    let ended =
        CallEnded { evidence: json!({"cause": why.reason()}), ..CallEnded::because(EndReason::Cancelled) };
    let rows = conn
        .all(
            sqlx::query(
                "WITH open AS (
                     SELECT id FROM calls WHERE tenant_id = $1 AND status = 'queued'
                         AND ($2::text IS NULL OR principal ->> 'key_id' = $2)
                     UNION ALL
                     SELECT id FROM calls WHERE tenant_id = $1 AND status IN ('starting', 'running', 'waiting_input')
                         AND ($2::text IS NULL OR principal ->> 'key_id' = $2)
                 ), c AS (
                     UPDATE calls c SET cancel_requested = true, cancel_reason = $3,
                         status = CASE WHEN c.worker_id IS NULL THEN 'cancelled' ELSE c.status END,
                         ended_at = CASE WHEN c.worker_id IS NULL THEN statement_timestamp() END,
                         last_seq = c.last_seq + CASE WHEN c.worker_id IS NULL THEN 1 ELSE 0 END,
                         ended = CASE WHEN c.worker_id IS NULL THEN $4::text::jsonb END,
                         error = CASE WHEN c.worker_id IS NULL THEN $5::text::jsonb END
                     FROM open WHERE c.id = open.id AND c.ended_at IS NULL AND NOT c.cancel_requested
                     RETURNING c.id, c.tenant_id, c.status, c.last_seq, c.ended_at
                 ), told AS (
                     INSERT INTO call_events (call_id, seq, tenant_id, type, at)
                     SELECT c.id, c.last_seq, c.tenant_id, 'call.ended', c.ended_at FROM c WHERE c.ended_at IS NOT NULL
                 )
                 SELECT id, tenant_id, status, ended_at IS NOT NULL AS over FROM c",
            )
            .bind(tenant_id.uuid())
            .bind(key)
            .bind(why.reason())
            .bind(sanitised(operation, &ended)?)
            .bind(sanitised(operation, &error_of(why.reason()))?),
        )
        .await?;
    let over = read(operation, &rows, |row| {
        Ok(if row.try_get("over")? { Some(EndedCall::from_row(row)?) } else { None })
    })?;
    let over: Vec<_> = over.into_iter().flatten().collect();
    record_ends(conn, operation, &over, why.reason()).await?;
    read(operation, &rows, |row| Ok(CallId::from_uuid(row.try_get("id")?))).map(Cancelled)
}

/// What a call that was withdrawn says of itself.
fn error_of(reason: &str) -> CallError {
    CallError::new(Code::Cancelled, withdrawn_message(reason))
}

fn withdrawn_message(reason: &str) -> &'static str {
    match reason {
        "key_revoked" => "The call was cancelled: the API key that made it was revoked.",
        "tenant_suspended" => "The call was cancelled: its tenant was suspended.",
        _ => "The call was cancelled.",
    }
}

/// Why a call was cancelled without its caller's wish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancelReason {
    /// In a word: `key_revoked`, `tenant_suspended`.
    pub cause: String,
    /// In a sentence.
    pub message: &'static str,
}

impl Store {
    /// Why a call is to end, when it is not its caller who wishes so.
    pub async fn cancel_reason(&self, id: CallId) -> Result<Option<CancelReason>> {
        const OPERATION: &str = "read why a call is cancelled";
        let mut conn = self.db().system(OPERATION).await?;
        let row = conn
            .optional(sqlx::query("SELECT cancel_reason FROM calls WHERE id = $1").bind(id.uuid()))
            .await?;
        conn.end().await?;
        let cause = read_found(OPERATION, row, |row| row.try_get::<Option<String>, _>("cancel_reason"))?;
        Ok(cause.map(|cause| CancelReason { message: withdrawn_message(&cause), cause }))
    }
}
