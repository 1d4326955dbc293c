//! Sessions that no worker ever took: they end all the same, with everything that is open in them.

use domain::limits::IDLE_STARTING_S;
use domain::{Principal, Session, SessionEnd, SessionEndReason};
use serde_json::json;

use crate::bus::Hint;
use crate::db::{Conn, read};
use crate::ending::{end_open_calls, end_running_shells};
use crate::sessions::{narrow, session, session_columns};
use crate::{AuditRow, Result, Store};

/// Sessions that one pass ends.
const ENDS: i64 = 100;

impl Store {
    /// Ends sessions that no worker ever took: those whose end was asked for, those whose life is over, and those that nobody uses.
    pub(crate) async fn end_unclaimed(&self) -> Result<u64> {
        const OPERATION: &str = "end unclaimed sessions";
        let mut conn = self.db().system_transaction(OPERATION).await?;
        let rows = conn
            .all(
                sqlx::query(concat!(
                    "WITH unclaimed AS (
                         SELECT s.id, CASE WHEN s.end_requested THEN coalesce(s.end_wish, 'deleted')
                             WHEN s.expires_at <= clock_timestamp() THEN 'expired' ELSE 'idle' END AS reason
                         FROM sessions s
                         WHERE s.status = 'starting' AND s.worker_id IS NULL
                           AND (s.end_requested OR s.expires_at <= clock_timestamp()
                               OR s.last_active_at < clock_timestamp() - make_interval(secs => greatest(s.idle_timeout_s, $2))
                               AND NOT EXISTS (SELECT FROM calls c WHERE c.tenant_id = s.tenant_id AND c.session_id = s.id
                                   AND c.status = 'queued' AND c.id >= toolhost_uuid_floor(s.created_at - interval '1 minute')))
                         ORDER BY s.id LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED
                     )
                     UPDATE sessions s SET status = 'ended', ended_at = clock_timestamp(), end_reason = u.reason,
                         end_message = '', end_evidence = '{}'
                     FROM unclaimed u WHERE s.id = u.id AND s.worker_id IS NULL RETURNING ",
                    session_columns!()
                ))
                .bind(ENDS)
                .bind(narrow(IDLE_STARTING_S)),
            )
            .await?;
        let ended = read(OPERATION, &rows, session)?;
        let (mut calls, mut shells) = (Vec::new(), Vec::new());
        for session in &ended {
            let (of_calls, of_shells) = close(&mut conn, OPERATION, session).await?;
            calls.extend(of_calls);
            shells.extend(of_shells);
        }
        conn.end().await?;
        calls.into_iter().for_each(|call| self.bus().call_changed(call));
        shells.into_iter().for_each(|shell| self.bus().shell_changed(shell));
        ended.iter().for_each(|session| self.bus().hint(Hint::SessionChanged(session.id)));
        Ok(ended.len() as u64)
    }
}

/// Nothing of an ended session stays open.
async fn close(
    conn: &mut Conn,
    operation: &'static str,
    session: &Session,
) -> Result<(Vec<domain::CallId>, Vec<domain::ShellId>)> {
    let reason = session.ended.as_ref().map_or(SessionEndReason::Deleted, |end| end.reason);
    let end = SessionEnd::because(reason);
    conn.execute(
        sqlx::query("UPDATE sessions SET end_message = $2 WHERE id = $1")
            .bind(session.id.uuid())
            .bind(&end.message),
    )
    .await?;
    let calls = end_open_calls(conn, operation, session, &end).await?;
    let shells = end_running_shells(conn, operation, session).await?;
    let trail = AuditRow::done("session.end", session.id).details(json!({"reason": reason}));
    conn.audit(Some(session.tenant_id), &Principal::system(), &trail).await?;
    Ok((calls, shells))
}
