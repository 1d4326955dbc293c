//! Named shells: what each of a session's is between two commands.

use domain::{CallId, NamedShell, SessionId, ShellName, TenantContext, limits};
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::db::{Conn, read, read_found, signed};
use crate::json::sanitised_text;
use crate::line::{Line, earlier_call};
use crate::{AuditRow, Result, SessionFence, Store, StoreError};

/// What a command has left of a named shell, for the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptShell {
    /// This life of the name.
    pub id: Uuid,
    /// Directory where the next command begins; `None` for a shell that is new, or from before a reset of the session.
    pub cwd: Option<String>,
    /// A script of bash that makes a fresh one like it.
    pub state: Option<String>,
    /// Options of bash that are to be set last, as commands.
    pub options: String,
    /// The call that left it so.
    pub left_by: Option<CallId>,
}

/// What the API shows of a shell.
macro_rules! shown_columns {
    () => {
        "n.session_id, n.name, CASE WHEN n.reset_done = s.reset_done THEN n.cwd ELSE '/workspace' END AS cwd,
         CASE WHEN n.reset_done = s.reset_done THEN n.left_by END AS left_by, n.created_at, n.changed_at"
    };
}

impl Store {
    /// A named shell of the fence's session, for a call that runs in it; one that is not there yet is made.
    /// The call is the newest that came before it and has not ended, if there is one.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when the session has as many as it may.
    pub async fn named_shell_for_call(
        &self,
        fence: &SessionFence,
        name: &ShellName,
        call: CallId,
    ) -> Result<(KeptShell, Option<CallId>)> {
        const OPERATION: &str = "find named shell";
        let mut conn = self.db().system(OPERATION).await?;
        let mut row = conn.optional(kept_of(fence, name)).await?;
        if row.is_none() {
            conn.execute(
                sqlx::query(
                    "INSERT INTO named_shells (id, tenant_id, session_id, name, cwd, reset_done)
                     SELECT gen_random_uuid(), s.tenant_id, s.id, $4, '/workspace', s.reset_done FROM sessions s
                     WHERE s.id = $1 AND s.worker_id = $2 AND s.epoch = $3 AND s.status <> 'ended'
                       AND (SELECT count(*) FROM named_shells o WHERE o.session_id = s.id) < $5
                     ON CONFLICT (session_id, name) DO NOTHING",
                )
                .bind(fence.session_id.uuid())
                .bind(fence.worker_id.uuid())
                .bind(signed(fence.epoch))
                .bind(name.as_str())
                .bind(i64::from(limits::SESSION_NAMED_SHELLS)),
            )
            .await?;
            row = conn.optional(kept_of(fence, name)).await?;
        }
        let Some(row) = row else {
            let owned = owns(&mut conn, fence).await?;
            conn.end().await?;
            let message = "the session has as many named shells as it may";
            return Err(match owned {
                true => StoreError::Conflict { operation: OPERATION, message },
                false => StoreError::Stale { operation: OPERATION },
            });
        };
        let earlier = earlier_call(&mut conn, OPERATION, fence.session_id, call, Line::Shell(name)).await?;
        conn.end().await?;
        Ok((read_found(OPERATION, Some(row), kept)?, earlier))
    }

    /// A named shell is so from now on. False when it was deleted meanwhile: then the name's next use begins anew.
    pub async fn keep_named_shell(&self, fence: &SessionFence, kept: &KeptShell) -> Result<bool> {
        const OPERATION: &str = "keep named shell";
        let mut conn = self.db().system(OPERATION).await?;
        let changed = conn
            .execute(
                sqlx::query(
                    "UPDATE named_shells n SET cwd = coalesce($5, '/workspace'), state = $6, options = $7, left_by = $8,
                         reset_done = s.reset_done, changed_at = clock_timestamp()
                     FROM sessions s WHERE s.id = $1 AND s.worker_id = $2 AND s.epoch = $3 AND s.status <> 'ended'
                       AND n.session_id = s.id AND n.id = $4",
                )
                .bind(fence.session_id.uuid())
                .bind(fence.worker_id.uuid())
                .bind(signed(fence.epoch))
                .bind(kept.id)
                .bind(kept.cwd.as_deref().map(sanitised_text))
                .bind(kept.state.as_deref().map(sanitised_text))
                .bind(sanitised_text(&kept.options))
                .bind(kept.left_by.map(CallId::uuid)),
            )
            .await?;
        let owned = changed > 0 || owns(&mut conn, fence).await?;
        conn.end().await?;
        if owned { Ok(changed > 0) } else { Err(StoreError::Stale { operation: OPERATION }) }
    }

    /// All named shells of a session of the tenant, by name.
    pub async fn list_named_shells(
        &self,
        tenant: &TenantContext,
        session: SessionId,
    ) -> Result<Vec<NamedShell>> {
        const OPERATION: &str = "list named shells";
        let mut conn = self.db().tenant(OPERATION, tenant).await?;
        let rows = conn
            .all(
                sqlx::query(concat!(
                    "SELECT ",
                    shown_columns!(),
                    " FROM named_shells n JOIN sessions s ON s.id = n.session_id
                     WHERE n.tenant_id = $1 AND n.session_id = $2 ORDER BY n.name"
                ))
                .bind(tenant.tenant_id().uuid())
                .bind(session.uuid()),
            )
            .await?;
        let running = conn
            .all(
                sqlx::query(
                    "SELECT id, arguments->>'shell' AS shell FROM calls
                     WHERE tenant_id = $1 AND session_id = $2 AND id >= $2 AND status IN ('starting', 'running')
                       AND tool = 'bash' AND arguments->>'shell' IS NOT NULL ORDER BY id",
                )
                .bind(tenant.tenant_id().uuid())
                .bind(session.uuid()),
            )
            .await?;
        conn.end().await?;
        let running: Vec<(CallId, String)> = read(OPERATION, &running, |row| {
            Ok((CallId::from_uuid(row.try_get("id")?), row.try_get("shell")?))
        })?;
        let mut shells = read(OPERATION, &rows, shown)?;
        for shell in &mut shells {
            // The first in line runs; the others wait for it.
            shell.call_id =
                running.iter().find(|(_, name)| name == shell.name.as_str()).map(|(call, _)| *call);
        }
        Ok(shells)
    }

    /// Forgets a named shell of a session of the tenant. A command that runs in it goes on and leaves nothing.
    pub async fn delete_named_shell(
        &self,
        tenant: &TenantContext,
        session: SessionId,
        name: &ShellName,
    ) -> Result<()> {
        const OPERATION: &str = "delete named shell";
        let mut conn = self.db().tenant(OPERATION, tenant).await?;
        let deleted = conn
            .execute(
                sqlx::query(
                    "DELETE FROM named_shells WHERE tenant_id = $1 AND session_id = $2 AND name = $3",
                )
                .bind(tenant.tenant_id().uuid())
                .bind(session.uuid())
                .bind(name.as_str()),
            )
            .await?;
        if deleted == 0 {
            conn.end().await?;
            return Err(StoreError::NotFound { operation: OPERATION });
        }
        let trail = AuditRow::done("named_shell.delete", format!("{session}/{name}"));
        conn.audit(Some(tenant.tenant_id()), tenant.principal(), &trail).await?;
        conn.end().await
    }
}

fn kept_of<'q>(fence: &SessionFence, name: &'q ShellName) -> crate::db::Statement<'q> {
    sqlx::query(
        "SELECT n.id, n.cwd, n.state, n.options, n.left_by, (n.reset_done = s.reset_done) AS is_current
         FROM named_shells n JOIN sessions s ON s.id = n.session_id
         WHERE s.id = $1 AND s.worker_id = $2 AND s.epoch = $3 AND n.name = $4",
    )
    .bind(fence.session_id.uuid())
    .bind(fence.worker_id.uuid())
    .bind(signed(fence.epoch))
    .bind(name.as_str())
}

async fn owns(conn: &mut Conn, fence: &SessionFence) -> Result<bool> {
    let row = conn
        .optional(
            sqlx::query("SELECT 1 AS one FROM sessions WHERE id = $1 AND worker_id = $2 AND epoch = $3")
                .bind(fence.session_id.uuid())
                .bind(fence.worker_id.uuid())
                .bind(signed(fence.epoch)),
        )
        .await?;
    Ok(row.is_some())
}

fn kept(row: &PgRow) -> Result<KeptShell, sqlx::Error> {
    let is_current: bool = row.try_get("is_current")?;
    let state: Option<String> = row.try_get::<Option<String>, _>("state")?.filter(|_| is_current);
    Ok(KeptShell {
        id: row.try_get("id")?,
        cwd: state.is_some().then(|| row.try_get("cwd")).transpose()?,
        options: if state.is_some() { row.try_get("options")? } else { String::new() },
        state,
        left_by: row.try_get::<Option<Uuid>, _>("left_by")?.filter(|_| is_current).map(CallId::from_uuid),
    })
}

fn shown(row: &PgRow) -> Result<NamedShell, sqlx::Error> {
    let name: String = row.try_get("name")?;
    Ok(NamedShell {
        session_id: SessionId::from_uuid(row.try_get("session_id")?),
        name: name.parse().map_err(|_| crate::db::unknown_word("named_shells.name"))?,
        cwd: row.try_get("cwd")?,
        left_by: row.try_get::<Option<Uuid>, _>("left_by")?.map(CallId::from_uuid),
        call_id: None,
        created_at: row.try_get("created_at")?,
        changed_at: row.try_get("changed_at")?,
    })
}
