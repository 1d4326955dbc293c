//! What the dead leave behind: sessions and calls of workers whose lease is over, and of hosts that have none.
//!
//! # Design notes
//!
//! * Takeover is level-triggered: whatever belongs to a worker that is not alive is taken, however it came to be so.
//!   A write that slipped in while its worker was declared dead is found by the next pass.
//! * The row of a dead worker is deleted in the transaction that takes its sessions. A renewal waits for that and then
//!   finds nothing, so a worker cannot live on beside its heir.
//! * A host is given up in two steps: first it is marked, then, when it was marked for a while and nobody renewed, its
//!   sessions end. Without the first step a machine that slept, or a database that was away, would end every
//!   session before anybody had the chance to renew.

use domain::limits::{CALL_ATTEMPTS, HOST_LOST_S};
use domain::{
    Call, CallEnded, CallError, CallId, Code, EndReason, HostId, Principal, Session, SessionEnd,
    SessionEndReason, WorkerId,
};
use serde_json::json;
use sqlx::Row;

use crate::bus::Hint;
use crate::calls::{call, call_columns};
use crate::db::{Conn, read};
use crate::ending::{EndedCall, end_open_calls, end_running_shells, record_ends};
use crate::json::sanitised;
use crate::sessions::{narrow, session, session_columns};
use crate::{AuditRow, Result, Store};

/// How long a silent host is marked before its sessions end. Several renewals fit into it.
const LOST_MARK_S: u64 = 10;
/// Sessions of lost hosts that one pass ends.
const LOST_SESSIONS: i64 = 50;

/// What a worker took over.
#[derive(Debug, Clone, Default)]
pub struct TakenOver {
    /// Sessions, with their new epoch.
    pub sessions: Vec<Session>,
    /// Their calls that run or were about to, with their new attempt.
    pub calls: Vec<Call>,
    /// Calls that have taken their workers down too often: ended as `failed`.
    pub quarantined: Vec<CallId>,
}

impl TakenOver {
    /// Nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.calls.is_empty() && self.quarantined.is_empty()
    }
}

const TAKE: &str = "take over";

impl Store {
    /// Takes over what belongs to dead workers of the same host, in one transaction: sessions with their epoch risen,
    /// active calls with their attempt risen. Calls beyond [`domain::limits::CALL_ATTEMPTS`] are quarantined. Nothing while
    /// the worker is itself too young or just back from an outage. To be asked every second or so.
    pub async fn takeover(&self, worker: WorkerId) -> Result<TakenOver> {
        if self.heir_of(worker).await?.is_none() {
            return Ok(TakenOver::default());
        }
        let mut conn = self.db().system_transaction(TAKE).await?;
        // Again, and now held: the heir cannot be taken over itself meanwhile.
        let Some(host) = held_heir(&mut conn, worker).await? else {
            conn.end().await?;
            return Ok(TakenOver::default());
        };
        bury(&mut conn, host, worker).await?;
        let sessions = take_sessions(&mut conn, host, worker).await?;
        let (calls, quarantined) = take_calls(&mut conn, worker).await?;
        take_sandboxes(&mut conn, worker).await?;
        take_slots(&mut conn, worker, &calls).await?;
        for session in &sessions {
            let trail = AuditRow::done("session.takeover", session.id)
                .details(json!({"worker_id": worker, "epoch": session.epoch}));
            conn.audit(Some(session.tenant_id), &Principal::system(), &trail).await?;
        }
        record_ends(&mut conn, TAKE, &quarantined, "quarantined").await?;
        conn.end().await?;
        let quarantined: Vec<CallId> = quarantined.into_iter().map(|call| call.id).collect();
        quarantined.iter().for_each(|call| self.bus().call_changed(*call));
        sessions.iter().for_each(|session| self.bus().hint(Hint::SessionChanged(session.id)));
        Ok(TakenOver { sessions, calls, quarantined })
    }

    /// Ends the sessions of hosts that no worker was alive on for [`domain::limits::HOST_LOST_S`], with everything that is open
    /// in them. Returns how many sessions ended. Any process may ask, every few seconds.
    pub async fn end_lost_hosts(&self) -> Result<u64> {
        const OPERATION: &str = "end lost hosts";
        self.mark_lost_hosts().await?;
        let end = SessionEnd::because(SessionEndReason::HostLost);
        let mut conn = self.db().system_transaction(OPERATION).await?;
        let rows = conn
            .all(
                sqlx::query(concat!(
                    "WITH lost AS (
                         SELECT s.id FROM sessions s JOIN hosts h ON h.id = s.host_id
                         WHERE s.status <> 'ended' AND s.worker_id IS NOT NULL AND h.lost_at < clock_timestamp() - make_interval(secs => $1)
                         ORDER BY s.id LIMIT $2 FOR NO KEY UPDATE OF s SKIP LOCKED
                     )
                     UPDATE sessions s SET status = 'ended', ended_at = clock_timestamp(), end_reason = $3, end_message = $4,
                         end_evidence = jsonb_build_object('host_id', s.host_id, 'worker_id', s.worker_id)
                     FROM lost WHERE s.id = lost.id AND s.status <> 'ended' RETURNING ",
                    session_columns!()
                ))
                .bind(LOST_MARK_S as f64)
                .bind(LOST_SESSIONS)
                .bind(end.reason.as_str())
                .bind(&end.message),
            )
            .await?;
        let ended = read(OPERATION, &rows, session)?;
        let (mut calls, mut shells) = (Vec::new(), Vec::new());
        for session in &ended {
            calls.extend(end_open_calls(&mut conn, OPERATION, session, &end).await?);
            shells.extend(end_running_shells(&mut conn, OPERATION, session).await?);
            let trail = AuditRow::done("session.end", session.id).details(json!({"reason": end.reason}));
            conn.audit(Some(session.tenant_id), &Principal::system(), &trail).await?;
        }
        conn.end().await?;
        calls.into_iter().for_each(|call| self.bus().call_changed(call));
        shells.into_iter().for_each(|shell| self.bus().shell_changed(shell));
        ended.iter().for_each(|session| self.bus().hint(Hint::SessionChanged(session.id)));
        Ok(ended.len() as u64)
    }

    async fn mark_lost_hosts(&self) -> Result<()> {
        let mut conn = self.db().system("mark lost hosts").await?;
        conn.execute(
            sqlx::query(
                "UPDATE hosts h SET lost_at = clock_timestamp()
                 WHERE h.lost_at IS NULL AND h.last_seen_at < clock_timestamp() - make_interval(secs => $1)
                   AND NOT EXISTS (SELECT FROM workers w WHERE w.host_id = h.id AND w.lease_expires_at > clock_timestamp())",
            )
            .bind((HOST_LOST_S - LOST_MARK_S) as f64),
        )
        .await?;
        conn.end().await
    }

    /// The worker's host, when the worker may take over and there is something to take.
    async fn heir_of(&self, worker: WorkerId) -> Result<Option<HostId>> {
        let mut conn = self.db().system(TAKE).await?;
        let rows = conn
            .all(
                sqlx::query(
                    "SELECT me.host_id FROM workers me
                     WHERE me.id = $1 AND me.lease_expires_at > clock_timestamp() AND me.takeover_from <= clock_timestamp()
                       AND NOT me.draining AND (
                         EXISTS (SELECT FROM workers w WHERE w.host_id = me.host_id AND w.lease_expires_at < clock_timestamp())
                         OR EXISTS (SELECT FROM sessions s WHERE s.host_id = me.host_id AND s.status <> 'ended'
                             AND s.worker_id IS NOT NULL AND NOT EXISTS (SELECT FROM workers w WHERE w.id = s.worker_id))
                         OR EXISTS (SELECT FROM sessions s CROSS JOIN LATERAL (SELECT FROM calls c
                                 WHERE c.session_id = s.id AND c.status IN ('starting', 'running', 'waiting_input')
                                   AND c.worker_id <> me.id
                                   AND c.id >= toolhost_uuid_floor(s.created_at - interval '1 minute') LIMIT 1) orphan
                             WHERE s.worker_id = me.id AND s.status <> 'ended'))",
                )
                .bind(worker.uuid()),
            )
            .await?;
        conn.end().await?;
        Ok(read(TAKE, &rows, |row| Ok(HostId::from_uuid(row.try_get("host_id")?)))?.pop())
    }
}

async fn held_heir(conn: &mut Conn, worker: WorkerId) -> Result<Option<HostId>> {
    let rows = conn
        .all(
            sqlx::query(
                "SELECT host_id FROM workers WHERE id = $1 AND lease_expires_at > clock_timestamp()
                     AND takeover_from <= clock_timestamp() AND NOT draining FOR KEY SHARE",
            )
            .bind(worker.uuid()),
        )
        .await?;
    Ok(read(TAKE, &rows, |row| Ok(HostId::from_uuid(row.try_get("host_id")?)))?.pop())
}

/// Deletes the rows of the host's dead workers.
async fn bury(conn: &mut Conn, host: HostId, heir: WorkerId) -> Result<()> {
    conn.execute(
        sqlx::query(
            "DELETE FROM workers WHERE host_id = $1 AND id <> $2 AND lease_expires_at < clock_timestamp()",
        )
        .bind(host.uuid())
        .bind(heir.uuid()),
    )
    .await?;
    Ok(())
}

async fn take_sessions(conn: &mut Conn, host: HostId, heir: WorkerId) -> Result<Vec<Session>> {
    let rows = conn
        .all(
            sqlx::query(concat!(
                "UPDATE sessions s SET worker_id = $2, epoch = s.epoch + 1
                 WHERE s.host_id = $1 AND s.status <> 'ended' AND s.worker_id IS NOT NULL
                   AND NOT EXISTS (SELECT FROM workers w WHERE w.id = s.worker_id)
                 RETURNING ",
                session_columns!()
            ))
            .bind(host.uuid())
            .bind(heir.uuid()),
        )
        .await?;
    read(TAKE, &rows, session)
}

/// Active calls of the heir's sessions that carry another worker's id: to go on, or to be quarantined.
async fn take_calls(conn: &mut Conn, heir: WorkerId) -> Result<(Vec<Call>, Vec<EndedCall>)> {
    let error = CallError::new(
        Code::PlatformError,
        "The call took its worker down several times and is not tried again.",
    )
    .hint("Change what the call does before you submit it again.");
    let ended = CallEnded {
        reason: EndReason::PlatformError,
        evidence: json!({"quarantined_after_attempts": CALL_ATTEMPTS}),
        hint: error.hint.clone(),
    };
    let quarantined = conn
        .all(
            sqlx::query(
                "WITH spent AS (
                     SELECT c.id FROM sessions s CROSS JOIN LATERAL (SELECT o.id FROM calls o
                         WHERE o.session_id = s.id AND o.status IN ('starting', 'running', 'waiting_input')
                           AND o.worker_id <> $1 AND o.attempt >= $2
                           AND o.id >= toolhost_uuid_floor(s.created_at - interval '1 minute')) c
                     WHERE s.worker_id = $1 AND s.status <> 'ended'
                 ), ended AS (
                     UPDATE calls c SET status = 'failed', ended_at = statement_timestamp(), last_seq = c.last_seq + 1,
                         error = $3::text::jsonb, ended = $4::text::jsonb
                     FROM spent WHERE c.id = spent.id AND c.ended_at IS NULL AND c.worker_id <> $1
                     RETURNING c.id, c.tenant_id, c.last_seq, c.status
                 ), told AS (
                     INSERT INTO call_events (call_id, seq, tenant_id, type, at)
                     SELECT id, last_seq, tenant_id, 'call.ended', statement_timestamp() FROM ended
                 )
                 SELECT id, tenant_id, status FROM ended",
            )
            .bind(heir.uuid())
            .bind(narrow(CALL_ATTEMPTS))
            .bind(sanitised(TAKE, &error)?)
            .bind(sanitised(TAKE, &ended)?),
        )
        .await?;
    let taken = conn
        .all(
            sqlx::query(concat!(
                "WITH orphan AS (
                     SELECT c.id FROM sessions s CROSS JOIN LATERAL (SELECT o.id FROM calls o
                         WHERE o.session_id = s.id AND o.status IN ('starting', 'running', 'waiting_input') AND o.worker_id <> $1
                           AND o.id >= toolhost_uuid_floor(s.created_at - interval '1 minute')) c
                     WHERE s.worker_id = $1 AND s.status <> 'ended'
                 )
                 UPDATE calls c SET attempt = c.attempt + 1, worker_id = $1
                 FROM orphan WHERE c.id = orphan.id AND c.ended_at IS NULL AND c.worker_id <> $1 RETURNING ",
                call_columns!()
            ))
            .bind(heir.uuid()),
        )
        .await?;
    Ok((read(TAKE, &taken, call)?, read(TAKE, &quarantined, EndedCall::from_row)?))
}

async fn take_sandboxes(conn: &mut Conn, heir: WorkerId) -> Result<()> {
    conn.execute(
        sqlx::query(
            "UPDATE sandboxes b SET worker_id = $1, epoch = s.epoch FROM sessions s
             WHERE s.worker_id = $1 AND s.status <> 'ended' AND b.session_id = s.id AND b.state = 'claimed'
               AND (b.worker_id <> $1 OR b.epoch <> s.epoch)",
        )
        .bind(heir.uuid()),
    )
    .await?;
    Ok(())
}

/// What was granted to the dead is free again, but for the calls that go on.
async fn take_slots(conn: &mut Conn, heir: WorkerId, calls: &[Call]) -> Result<()> {
    conn.execute(sqlx::query(
        "DELETE FROM tenant_slots t WHERE NOT EXISTS (SELECT FROM workers w WHERE w.id = t.worker_id)",
    ))
    .await?;
    conn.execute(
        sqlx::query(
            "INSERT INTO tenant_slots (tenant_id, worker_id, granted)
             SELECT t, $2, count(*) FROM unnest($1::uuid[]) AS t GROUP BY t ORDER BY t
             ON CONFLICT (tenant_id, worker_id) DO UPDATE SET granted = tenant_slots.granted + excluded.granted",
        )
        .bind(calls.iter().map(|call| call.tenant_id.uuid()).collect::<Vec<_>>())
        .bind(heir.uuid()),
    )
    .await?;
    Ok(())
}
