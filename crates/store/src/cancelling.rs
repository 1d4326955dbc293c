//! Calls and shells that end because whoever asked for them may not any more: a revoked key's, a suspended tenant's.
//!
//! # Design notes
//!
//! A process remembers for a moment that a key was right ([`crate::auth`]), and a request that was let in may take a while to its commit. So
//! what a key has open is not ended once, at its revocation, but looked for each second for as long after it as [`LATE`] says. A tenant's
//! suspension needs no such time: its status is looked at as long as it lasts ([`Store::ask_ends`]).

use std::time::Duration;

use domain::{CallEnded, CallError, CallId, Code, EndReason, KeyId, SessionId, ShellId, TenantId, WorkerId};
use serde_json::json;
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::bus::{Bus, Hint};
use crate::db::{Conn, read, read_found};
use crate::ending::{EndedCall, record_ends};
use crate::json::sanitised;
use crate::{Result, Store};

/// How long after its revocation a key's calls and shells are still looked for: longer than any request lives.
const LATE: Duration = Duration::from_secs(600);

/// Why calls are cancelled without their caller's wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Withdrawn<'a> {
    /// The keys that made them were revoked.
    Keys(&'a [KeyId]),
    /// Their tenants were suspended. Their shells end with their sessions.
    Tenants,
}

impl Withdrawn<'_> {
    const fn reason(self) -> &'static str {
        match self {
            Self::Keys(_) => "key_revoked",
            Self::Tenants => "tenant_suspended",
        }
    }
}

/// What was cancelled together.
#[derive(Debug, Default)]
pub(crate) struct Cancelled {
    calls: Vec<CallId>,
    /// Sessions with shells that are to end.
    sessions: Vec<SessionId>,
}

impl Cancelled {
    /// Tells workers and readers, once the commit is through.
    pub(crate) fn tell(self, bus: &Bus) {
        for id in self.calls {
            bus.call_changed(id);
            bus.hint(Hint::CancelRequested(id));
        }
        self.sessions.into_iter().for_each(|id| bus.hint(Hint::SessionChanged(id)));
    }

    fn count(&self) -> u64 {
        (self.calls.len() + self.sessions.len()) as u64
    }
}

/// Why a shell is to end without its caller's wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShellWish {
    /// The key that started it was revoked.
    KeyRevoked,
}

impl ShellWish {
    /// Its word in the database, and in [`domain::Shell::end_reason`].
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::KeyRevoked => Withdrawn::Keys(&[]).reason(),
        }
    }
}

/// A shell that its worker is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShellToEnd {
    /// The shell.
    pub id: ShellId,
    /// Where it runs.
    pub session_id: SessionId,
    /// Why.
    pub wish: ShellWish,
}

/// Cancels open calls of these tenants in the caller's transaction: what waits has ended with it, what runs is marked and ended by its
/// worker. So are the shells of keys.
pub(crate) async fn withdraw(
    conn: &mut Conn,
    operation: &'static str,
    tenants: &[TenantId],
    why: Withdrawn<'_>,
) -> Result<Cancelled> {
    let tenants: Vec<Uuid> = tenants.iter().map(|id| id.uuid()).collect();
    let keys: Option<Vec<String>> = match why {
        Withdrawn::Keys(ids) => Some(ids.iter().map(KeyId::to_string).collect()),
        Withdrawn::Tenants => None,
    };
    let ended =
        CallEnded { evidence: json!({"cause": why.reason()}), ..CallEnded::because(EndReason::Cancelled) };
    let rows = conn
        .all(
            sqlx::query(
                "WITH open AS (
                     SELECT id FROM calls WHERE tenant_id = ANY ($1) AND status = 'queued'
                         AND ($2::text[] IS NULL OR principal ->> 'key_id' = ANY ($2))
                     UNION ALL
                     SELECT id FROM calls WHERE tenant_id = ANY ($1) AND status IN ('starting', 'running', 'waiting_input')
                         AND ($2::text[] IS NULL OR principal ->> 'key_id' = ANY ($2))
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
            .bind(&tenants)
            .bind(&keys)
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
    let calls = read(operation, &rows, |row| Ok(CallId::from_uuid(row.try_get("id")?)))?;
    let sessions = match &keys {
        Some(keys) => withdraw_shells(conn, operation, &tenants, keys).await?,
        None => Vec::new(),
    };
    Ok(Cancelled { calls, sessions })
}

/// Marks the running shells that these keys started.
async fn withdraw_shells(
    conn: &mut Conn,
    operation: &'static str,
    tenants: &[Uuid],
    keys: &[String],
) -> Result<Vec<SessionId>> {
    let rows = conn
        .all(
            sqlx::query(
                "UPDATE shells h SET end_wish = $3 WHERE h.tenant_id = ANY ($1) AND h.status = 'running' AND h.end_wish IS NULL
                     AND (h.key_id = ANY ($2) OR (h.key_id IS NULL AND EXISTS (
                         SELECT FROM calls c WHERE c.id = h.call_id AND c.principal ->> 'key_id' = ANY ($2))))
                 RETURNING h.session_id",
            )
            .bind(tenants)
            .bind(keys)
            .bind(ShellWish::KeyRevoked.as_str()),
        )
        .await?;
    let mut sessions = read(operation, &rows, |row| Ok(SessionId::from_uuid(row.try_get("session_id")?)))?;
    sessions.sort_unstable();
    sessions.dedup();
    Ok(sessions)
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
    /// Cancels what keys have open that were revoked a while ago: taken on by a process that had not heard of it. Returns of how many calls
    /// and sessions something was.
    pub(crate) async fn withdraw_late(&self) -> Result<u64> {
        const OPERATION: &str = "cancel what revoked keys have open";
        let mut conn = self.db().system(OPERATION).await?;
        let rows = conn
            .all(
                sqlx::query(
                    "SELECT id, tenant_id FROM api_keys
                     WHERE revoked_at > clock_timestamp() - make_interval(secs => $1) AND tenant_id IS NOT NULL",
                )
                .bind(LATE.as_secs_f64()),
            )
            .await?;
        conn.end().await?;
        let keys = read(OPERATION, &rows, |row| Ok(KeyId::from_uuid(row.try_get("id")?)))?;
        let tenants = read(OPERATION, &rows, |row| Ok(TenantId::from_uuid(row.try_get("tenant_id")?)))?;
        if keys.is_empty() {
            return Ok(0);
        }
        let mut conn = self.db().system_transaction(OPERATION).await?;
        let cancelled = withdraw(&mut conn, OPERATION, &tenants, Withdrawn::Keys(&keys)).await?;
        conn.end().await?;
        let count = cancelled.count();
        cancelled.tell(self.bus());
        Ok(count)
    }

    /// Shells of a worker's sessions that it is to end.
    pub async fn shells_wanting_end(&self, worker: WorkerId) -> Result<Vec<ShellToEnd>> {
        const OPERATION: &str = "read shells that are to end";
        let mut conn = self.db().system(OPERATION).await?;
        let rows = conn
            .all(
                sqlx::query(
                    "SELECT h.id, h.session_id, h.end_wish FROM shells h JOIN sessions s ON s.id = h.session_id
                     WHERE h.status = 'running' AND h.end_wish IS NOT NULL AND s.worker_id = $1 AND s.status <> 'ended'",
                )
                .bind(worker.uuid()),
            )
            .await?;
        conn.end().await?;
        Ok(read(OPERATION, &rows, shell_to_end)?.into_iter().flatten().collect())
    }

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

/// Nothing for a wish of a newer process, which must not hide the others: whoever knows the word ends that shell.
fn shell_to_end(row: &PgRow) -> Result<Option<ShellToEnd>, sqlx::Error> {
    let word: &str = row.try_get("end_wish")?;
    let Some(wish) = [ShellWish::KeyRevoked].into_iter().find(|wish| wish.as_str() == word) else {
        return Ok(None);
    };
    Ok(Some(ShellToEnd {
        id: ShellId::from_uuid(row.try_get("id")?),
        session_id: SessionId::from_uuid(row.try_get("session_id")?),
        wish,
    }))
}
