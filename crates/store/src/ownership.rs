//! Sessions, the owner's side: claim, serve, end. Every write is fenced by the worker and the epoch of its ownership.

use domain::limits::IDLE_STARTING_S;
use domain::{Principal, Session, SessionEnd, SessionEndReason, SessionId, SessionStatus, WorkerId};
use serde_json::json;
use sqlx::Row;

use crate::bus::Hint;
use crate::db::{Statement, read};
use crate::ending::{end_open_calls, end_running_shells};
use crate::error::translate;
use crate::json::sanitised;
use crate::sessions::{narrow, session, session_columns};
use crate::{AuditRow, Result, Store, StoreError};

/// The right of a worker to act for a session: refused once another worker has taken it over or it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionFence {
    /// The session.
    pub session_id: SessionId,
    /// Its owner.
    pub worker_id: WorkerId,
    /// The epoch of that ownership.
    pub epoch: u64,
}

impl SessionFence {
    /// The fence of a session that has a worker.
    #[must_use]
    pub fn of(session: &Session) -> Option<Self> {
        session.worker_id.map(|worker_id| Self { session_id: session.id, worker_id, epoch: session.epoch })
    }
}

/// What a session's owner has to do about it.
#[derive(Debug, Clone)]
pub enum SessionWish {
    /// End it with this reason (asked for, idle, expired).
    End(SessionEnd),
    /// Give it a fresh sandbox and workspace, then report with [`Store::session_reset_done`] this number.
    Reset {
        /// The request's number.
        request: u32,
    },
}

impl Store {
    /// Gives sessions of its host that have no worker to this one, oldest first, and returns them (epoch risen). Sessions that wait for
    /// any host are placed first.
    ///
    /// It waits for rows that are locked: an admission holds its session for one commit, and a session passed over
    /// because its first call was just being admitted would start a whole poll later.
    pub async fn claim_sessions(&self, worker: WorkerId, max: u32) -> Result<Vec<Session>> {
        const OPERATION: &str = "claim sessions";
        self.place_waiting(worker, max).await?;
        let mut conn = self.db().system(OPERATION).await?;
        let rows = conn
            .all(
                sqlx::query(concat!(
                    "WITH free AS (
                         SELECT s.id FROM workers me JOIN sessions s ON s.host_id = me.host_id
                         WHERE me.id = $1 AND s.status = 'starting' AND s.worker_id IS NULL
                         ORDER BY s.id LIMIT $2 FOR NO KEY UPDATE OF s
                     )
                     UPDATE sessions s SET worker_id = w.id, host_id = w.host_id, epoch = s.epoch + 1
                     FROM free, workers w
                     WHERE s.id = free.id AND s.worker_id IS NULL AND s.status = 'starting'
                       AND w.id = $1 AND w.lease_expires_at > clock_timestamp() AND w.accepts_sessions AND NOT w.draining
                     RETURNING ",
                    session_columns!()
                ))
                .bind(worker.uuid())
                .bind(i64::from(max)),
            )
            .await?;
        conn.end().await?;
        read(OPERATION, &rows, session)
    }

    /// Finds a host for sessions that were accepted when none was alive, or whose host went away before it took them.
    async fn place_waiting(&self, worker: WorkerId, max: u32) -> Result<()> {
        const OPERATION: &str = "place sessions";
        let mut conn = self.db().system(OPERATION).await?;
        let row = conn
            .one(sqlx::query(
                "SELECT EXISTS (SELECT FROM sessions s WHERE s.status = 'starting' AND s.worker_id IS NULL
                     AND (s.host_id IS NULL OR NOT EXISTS (SELECT FROM workers w WHERE w.host_id = s.host_id
                         AND w.lease_expires_at > clock_timestamp() AND w.accepts_sessions AND NOT w.draining))) AS waiting",
            ))
            .await?;
        if row.try_get::<bool, _>("waiting").map_err(|error| translate(OPERATION, error))? {
            let statement = sqlx::query("SELECT toolhost_find_places($1, $2)");
            conn.execute(statement.bind(worker.uuid()).bind(narrow(max))).await?;
        }
        conn.end().await
    }

    /// The session's sandbox of this generation serves: `running`, and its queued calls may be claimed.
    pub async fn session_running(&self, fence: &SessionFence, generation: u32) -> Result<Session> {
        let statement = sqlx::query(concat!(
            "WITH before AS (
                 SELECT id, status FROM sessions WHERE id = $1 FOR NO KEY UPDATE
             ), s AS (
                 UPDATE sessions s SET status = 'running', generation = $4, started_at = coalesce(s.started_at, clock_timestamp()),
                     last_active_at = clock_timestamp()
                 FROM before
                 WHERE s.id = before.id AND s.worker_id = $2 AND s.epoch = $3 AND s.status <> 'ended'
                 RETURNING s.*
             ), trail AS (
                 INSERT INTO audit_log (tenant_id, principal, action, target, allowed, details)
                 SELECT s.tenant_id, $5::text::jsonb, 'session.start', $6, true, jsonb_build_object('generation', $4)
                 FROM s JOIN before ON before.status = 'starting'
             )
             SELECT ",
            session_columns!(),
            " FROM s"
        ))
        .bind(fence.session_id.uuid())
        .bind(fence.worker_id.uuid())
        .bind(crate::db::signed(fence.epoch))
        .bind(narrow(generation))
        .bind(sanitised("start session", &Principal::system())?)
        .bind(fence.session_id.to_string());
        self.owned("start session", fence, statement).await
    }

    /// A reset was carried out with this generation.
    pub async fn session_reset_done(
        &self,
        fence: &SessionFence,
        request: u32,
        generation: u32,
    ) -> Result<Session> {
        let statement = sqlx::query(concat!(
            "UPDATE sessions s SET reset_done = greatest(s.reset_done, $4), generation = $5
             WHERE s.id = $1 AND s.worker_id = $2 AND s.epoch = $3 AND s.status <> 'ended' RETURNING ",
            session_columns!()
        ))
        .bind(fence.session_id.uuid())
        .bind(fence.worker_id.uuid())
        .bind(crate::db::signed(fence.epoch))
        .bind(narrow(request))
        .bind(narrow(generation));
        self.owned("reset session", fence, statement).await
    }

    /// Ends a session. Nothing of it stays open: its queued calls fail with `session_ended` in the same commit, and so do calls
    /// that still run (effectful ones become `lost`; their worker should have ended them before), and its shells
    /// exit. [`crate::StoreError::Stale`] when not the owner any more; ending twice returns it as it ended first.
    pub async fn end_session(&self, fence: &SessionFence, end: SessionEnd) -> Result<Session> {
        const OPERATION: &str = "end session";
        let mut conn = self.db().system_transaction(OPERATION).await?;
        let rows = conn
            .all(
                sqlx::query(concat!(
                    "UPDATE sessions s SET status = 'ended', ended_at = clock_timestamp(), end_reason = $4, end_message = $5,
                         end_evidence = $6::text::jsonb
                     WHERE s.id = $1 AND s.worker_id = $2 AND s.epoch = $3 AND s.status <> 'ended' RETURNING ",
                    session_columns!()
                ))
                .bind(fence.session_id.uuid())
                .bind(fence.worker_id.uuid())
                .bind(crate::db::signed(fence.epoch))
                .bind(end.reason.as_str())
                .bind(crate::json::sanitised_text(&end.message))
                .bind(sanitised(OPERATION, &end.evidence)?),
            )
            .await?;
        let Some(ended) = read(OPERATION, &rows, session)?.pop() else {
            conn.undo().await?;
            return self.ended_before(fence).await;
        };
        let calls = end_open_calls(&mut conn, OPERATION, &ended, &end).await?;
        let shells = end_running_shells(&mut conn, OPERATION, &ended).await?;
        let trail = AuditRow::done("session.end", ended.id).details(json!({"reason": end.reason}));
        conn.audit(Some(ended.tenant_id), &Principal::system(), &trail).await?;
        conn.end().await?;
        calls.into_iter().for_each(|call| self.bus().call_changed(call));
        shells.into_iter().for_each(|shell| self.bus().shell_changed(shell));
        self.bus().hint(Hint::SessionChanged(ended.id));
        Ok(ended)
    }

    /// Open sessions of a worker.
    pub async fn sessions_of_worker(&self, worker: WorkerId) -> Result<Vec<Session>> {
        const OPERATION: &str = "read sessions of worker";
        let mut conn = self.db().system(OPERATION).await?;
        let rows = conn
            .all(
                sqlx::query(concat!(
                    "SELECT ",
                    session_columns!(),
                    " FROM sessions s WHERE s.worker_id = $1 AND s.status <> 'ended' ORDER BY s.id"
                ))
                .bind(worker.uuid()),
            )
            .await?;
        conn.end().await?;
        read(OPERATION, &rows, session)
    }

    /// What a worker's sessions want, by the database's clock. A session with open calls is never idle, and one that could not serve yet only
    /// after [`domain::limits::IDLE_STARTING_S`]; one that was made for one call wants to end with it.
    pub async fn sessions_wanting_change(&self, worker: WorkerId) -> Result<Vec<(Session, SessionWish)>> {
        const OPERATION: &str = "read wishes of sessions";
        let mut conn = self.db().system(OPERATION).await?;
        let rows = conn
            .all(
                sqlx::query(concat!(
                    "WITH s AS MATERIALIZED (
                         SELECT s.*, clock_timestamp() AS now,
                             s.one_shot OR s.last_active_at < clock_timestamp() - make_interval(secs =>
                                 CASE s.status WHEN 'starting' THEN greatest(s.idle_timeout_s, $2) ELSE s.idle_timeout_s END) AS quiet
                         FROM sessions s WHERE s.worker_id = $1 AND s.status <> 'ended'
                     ), asked AS (
                         SELECT s.*, s.quiet
                             AND NOT EXISTS (SELECT FROM calls c WHERE c.tenant_id = s.tenant_id AND c.session_id = s.id
                                 AND c.status = 'queued' AND c.id >= toolhost_uuid_floor(s.created_at - interval '1 minute'))
                             AND NOT EXISTS (SELECT FROM calls c WHERE c.session_id = s.id
                                 AND c.status IN ('starting', 'running', 'waiting_input')
                                 AND c.id >= toolhost_uuid_floor(s.created_at - interval '1 minute')) AS without_calls
                         FROM s
                     )
                     SELECT CASE
                             WHEN s.end_requested THEN coalesce(s.end_wish, 'deleted')
                             WHEN s.expires_at <= s.now THEN 'expired'
                             WHEN s.reset_requested > s.reset_done THEN 'reset'
                             WHEN s.one_shot AND s.without_calls THEN 'deleted'
                             WHEN s.without_calls AND NOT EXISTS (SELECT FROM calls c WHERE c.session_id = s.id
                                 AND c.id >= toolhost_uuid_floor(s.now - make_interval(secs => s.idle_timeout_s))) THEN 'idle'
                         END AS wish, ",
                    session_columns!(),
                    " FROM asked s
                     WHERE s.end_requested OR s.expires_at <= s.now OR s.reset_requested > s.reset_done OR s.without_calls"
                ))
                .bind(worker.uuid())
                .bind(narrow(IDLE_STARTING_S)),
            )
            .await?;
        conn.end().await?;
        let wishes = read(OPERATION, &rows, |row| {
            let session = session(row)?;
            let wish = match row.try_get::<Option<&str>, _>("wish")? {
                Some("host_drained") => SessionWish::End(SessionEnd::because(SessionEndReason::HostDrained)),
                Some("tenant_suspended") => {
                    SessionWish::End(SessionEnd::because(SessionEndReason::TenantSuspended))
                }
                Some("deleted") => SessionWish::End(SessionEnd::because(SessionEndReason::Deleted)),
                Some("expired") => SessionWish::End(SessionEnd::because(SessionEndReason::Expired)),
                Some("idle") => SessionWish::End(
                    SessionEnd::because(SessionEndReason::Idle)
                        .with("idle_timeout_s", session.idle_timeout_s),
                ),
                Some("reset") => SessionWish::Reset { request: session.reset_requested },
                _ => return Ok(None),
            };
            Ok(Some((session, wish)))
        })?;
        Ok(wishes.into_iter().flatten().collect())
    }

    /// One fenced statement about a session.
    async fn owned(
        &self,
        operation: &'static str,
        fence: &SessionFence,
        statement: Statement<'_>,
    ) -> Result<Session> {
        let mut conn = self.db().system(operation).await?;
        let row = conn.optional(statement).await?;
        conn.end().await?;
        let Some(row) = row else {
            self.db().metrics.stale_writes.inc();
            return Err(StoreError::Stale { operation });
        };
        self.bus().hint(Hint::SessionChanged(fence.session_id));
        session(&row).map_err(|error| translate(operation, error))
    }

    /// A fenced end that changed nothing: ended already, or not the owner's any more.
    async fn ended_before(&self, fence: &SessionFence) -> Result<Session> {
        const OPERATION: &str = "end session";
        let found = self.session_unfenced(fence.session_id).await?;
        match found {
            Some(session) if session.status == SessionStatus::Ended => Ok(session),
            _ => {
                self.db().metrics.stale_writes.inc();
                Err(StoreError::Stale { operation: OPERATION })
            }
        }
    }

    async fn session_unfenced(&self, id: SessionId) -> Result<Option<Session>> {
        const OPERATION: &str = "read session";
        let mut conn = self.db().system(OPERATION).await?;
        let rows = conn
            .all(
                sqlx::query(concat!("SELECT ", session_columns!(), " FROM sessions s WHERE s.id = $1"))
                    .bind(id.uuid()),
            )
            .await?;
        conn.end().await?;
        Ok(read(OPERATION, &rows, session)?.pop())
    }
}
