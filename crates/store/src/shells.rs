//! Shells: commands in the background, with a log of their own or their call's.

use domain::event::OutputPiece;
use domain::{
    CallId, Principal, SessionId, Shell, ShellId, ShellName, ShellStatus, StreamName, TenantContext,
    TenantId, WorkerId,
};
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::db::{Conn, Lock, read, read_found, signed, unknown_word, unsigned};
use crate::error::translate;
use crate::json::{sanitised, sanitised_text};
use crate::line::{Line, earlier_call};
use crate::{Result, SessionFence, Store, StoreError};

/// What [`shell`] reads.
macro_rules! shell_columns {
    () => {
        "h.id, h.tenant_id, h.session_id, h.call_id, h.operation, h.name, h.command, h.description, h.terminal, h.status,
         h.exit_code, h.signal, h.end_reason, h.next_offset, h.created_at, h.ended_at"
    };
}

/// A shell to be recorded.
#[derive(Debug, Clone)]
pub struct NewShell {
    /// Its id, from [`crate::Clock::new_id`].
    pub id: ShellId,
    /// The call that started it.
    pub call_id: CallId,
    /// Operation of that call under which the agent knows it.
    pub operation: u32,
    /// The named shell that it begins as.
    pub name: Option<ShellName>,
    /// The command's text.
    pub command: String,
    /// Why it runs.
    pub description: Option<String>,
    /// It has a terminal in the place of pipes.
    pub terminal: bool,
    /// Where its log is.
    pub log: ShellLog,
    /// How many may run, with this one.
    pub limits: ShellLimits,
}

/// Shells that may run at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShellLimits {
    /// In the session.
    pub session: u32,
    /// In all sessions of the tenant.
    pub tenant: u32,
}

/// The conflict of a shell for which its session has no room.
pub const SESSION_SHELLS_FULL: &str = "the session has as many shells as it may";
/// The conflict of a shell for which its tenant has no room.
pub const TENANT_SHELLS_FULL: &str = "the tenant has as many shells as it may";

/// Where a shell's log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShellLog {
    /// Its own, from the first byte on.
    Own,
    /// It goes on with the log of its call, which has written already.
    OfCall,
}

/// How a shell ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShellEnd {
    /// Exit code, unless a signal ended it.
    pub exit_code: Option<i32>,
    /// Name of the signal that ended it.
    pub signal: Option<String>,
    /// Why, when not by itself: see [`Shell::end_reason`].
    pub end_reason: Option<String>,
    /// User and system time of its tree, in milliseconds, as far as it is known.
    pub cpu_ms: u64,
}

impl Store {
    /// Records a shell of the fence's session. Idempotent by id. Limits are counted under a lock, so that starts at the same moment, on
    /// whichever hosts, do not pass them.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] with [`SESSION_SHELLS_FULL`] or [`TENANT_SHELLS_FULL`] when there is no room.
    pub async fn create_shell(&self, fence: &SessionFence, new: NewShell) -> Result<Shell> {
        const OPERATION: &str = "create shell";
        let owner = match new.log {
            ShellLog::Own => new.id.uuid(),
            ShellLog::OfCall => new.call_id.uuid(),
        };
        let mut conn = self.db().system_transaction(OPERATION).await?;
        if let Some(full) = no_room(&mut conn, fence, &new).await? {
            conn.end().await?;
            return Err(StoreError::Conflict { operation: OPERATION, message: full });
        }
        let row = conn
            .optional(
                sqlx::query(concat!(
                    "WITH owned AS (
                         SELECT id, tenant_id FROM sessions WHERE id = $1 AND worker_id = $2 AND epoch = $3 AND status <> 'ended'
                     ), fresh AS (
                         INSERT INTO shells (id, tenant_id, session_id, call_id, operation, output_owner, command, description, terminal, name, key_id, next_offset)
                         SELECT $4, owned.tenant_id, owned.id, $5, $6, $7, $8, $9, $13, $14,
                             (SELECT principal ->> 'key_id' FROM calls WHERE id = $5), coalesce(
                             (SELECT log_offset + octet_length(bytes) FROM output_chunks
                              WHERE owner = $7 ORDER BY log_offset DESC LIMIT 1), 0)
                         FROM owned ON CONFLICT (id) DO NOTHING RETURNING *
                     ), trail AS (
                         INSERT INTO audit_log (tenant_id, principal, action, target, allowed, details)
                         SELECT tenant_id, $10::text::jsonb, 'shell.start', $11, true, jsonb_build_object('call_id', $12::text)
                         FROM fresh
                     )
                     SELECT ",
                    shell_columns!(),
                    " FROM fresh h UNION ALL SELECT ",
                    shell_columns!(),
                    " FROM shells h JOIN owned ON owned.id = h.session_id WHERE h.id = $4"
                ))
                .bind(fence.session_id.uuid())
                .bind(fence.worker_id.uuid())
                .bind(signed(fence.epoch))
                .bind(new.id.uuid())
                .bind(new.call_id.uuid())
                .bind(i32::try_from(new.operation).unwrap_or(i32::MAX))
                .bind(owner)
                .bind(sanitised_text(&new.command))
                .bind(new.description.as_deref().map(sanitised_text))
                .bind(sanitised(OPERATION, &Principal::system())?)
                .bind(new.id.to_string())
                .bind(new.call_id.to_string())
                .bind(new.terminal)
                .bind(new.name.as_ref().map(ShellName::as_str)),
            )
            .await?;
        conn.end().await?;
        let row = row.ok_or(StoreError::Stale { operation: OPERATION })?;
        shell(&row).map_err(|error| translate(OPERATION, error))
    }

    /// Takes back a shell that was recorded and could not be started.
    pub async fn withdraw_shell(&self, fence: &SessionFence, shell: ShellId) -> Result<()> {
        let mut conn = self.db().system("withdraw shell").await?;
        conn.execute(
            sqlx::query(
                "WITH gone AS (
                     DELETE FROM shells h USING sessions s WHERE h.id = $4 AND h.status = 'running' AND s.id = h.session_id
                       AND s.id = $1 AND s.worker_id = $2 AND s.epoch = $3
                     RETURNING h.tenant_id
                 )
                 INSERT INTO audit_log (tenant_id, principal, action, target, allowed, details)
                 SELECT tenant_id, $5::text::jsonb, 'shell.end', $6, true, jsonb_build_object('reason', 'not_started') FROM gone",
            )
            .bind(fence.session_id.uuid())
            .bind(fence.worker_id.uuid())
            .bind(signed(fence.epoch))
            .bind(shell.uuid())
            .bind(sanitised("withdraw shell", &Principal::system())?)
            .bind(shell.to_string()),
        )
        .await?;
        conn.end().await
    }

    /// The newest call before this one that writes to the shell's stdin and has not ended, if there is one.
    pub async fn earlier_input(
        &self,
        fence: &SessionFence,
        shell: &Shell,
        call: CallId,
    ) -> Result<Option<CallId>> {
        const OPERATION: &str = "find earlier input";
        let mut conn = self.db().system(OPERATION).await?;
        let earlier = earlier_call(&mut conn, OPERATION, fence.session_id, call, Line::Input(shell)).await?;
        conn.end().await?;
        Ok(earlier)
    }

    /// Adds to a shell's log. Pieces that are there already are left as they are, so a batch may be sent again.
    /// Bytes that were dropped from the middle count in `next_offset` alone.
    pub async fn append_shell_output(
        &self,
        fence: &SessionFence,
        shell: ShellId,
        pieces: Vec<OutputPiece>,
        next_offset: u64,
    ) -> Result<()> {
        const OPERATION: &str = "append shell output";
        let column = |value: fn(&OutputPiece) -> u64| {
            pieces.iter().map(|piece| signed(value(piece))).collect::<Vec<_>>()
        };
        let (log_offsets, offsets) = (column(|piece| piece.log_offset), column(|piece| piece.offset));
        let streams: Vec<i16> = pieces.iter().map(|piece| piece.stream.number()).collect();
        let bytes: Vec<&[u8]> = pieces.iter().map(|piece| piece.bytes.as_slice()).collect();
        let mut conn = self.db().system(OPERATION).await?;
        let owned = conn
            .optional(
                sqlx::query(
                    "WITH grown AS (
                         UPDATE shells h SET next_offset = greatest(h.next_offset, $5) FROM sessions s
                         WHERE h.id = $4 AND s.id = h.session_id AND s.id = $1 AND s.worker_id = $2 AND s.epoch = $3
                           AND s.status <> 'ended'
                         RETURNING h.output_owner, h.tenant_id
                     ), written AS (
                         INSERT INTO output_chunks (owner, log_offset, tenant_id, stream, stream_offset, bytes)
                         SELECT g.output_owner, p.log_offset, g.tenant_id, p.stream, p.stream_offset, p.bytes
                         FROM grown g, unnest($6::bigint[], $7::smallint[], $8::bigint[], $9::bytea[])
                             AS p(log_offset, stream, stream_offset, bytes)
                         ON CONFLICT (owner, log_offset) DO NOTHING
                     )
                     SELECT 1 FROM grown",
                )
                .bind(fence.session_id.uuid())
                .bind(fence.worker_id.uuid())
                .bind(signed(fence.epoch))
                .bind(shell.uuid())
                .bind(signed(next_offset))
                .bind(log_offsets)
                .bind(streams)
                .bind(offsets)
                .bind(bytes),
            )
            .await?;
        conn.end().await?;
        if owned.is_none() {
            return Err(StoreError::Stale { operation: OPERATION });
        }
        self.activity().output(fence.session_id, pieces.iter().map(|piece| piece.bytes.len()).sum());
        self.bus().shell_changed(shell);
        Ok(())
    }

    /// A shell's process tree is gone. Ending twice changes nothing.
    pub async fn finish_shell(&self, fence: &SessionFence, shell: ShellId, end: ShellEnd) -> Result<Shell> {
        const OPERATION: &str = "finish shell";
        let mut conn = self.db().system(OPERATION).await?;
        let row = conn
            .optional(
                sqlx::query(concat!(
                    "WITH owned AS (
                         SELECT h.id FROM shells h JOIN sessions s ON s.id = h.session_id
                         WHERE h.id = $4 AND s.id = $1 AND s.worker_id = $2 AND s.epoch = $3
                     ), ended AS (
                         UPDATE shells h SET status = 'exited', ended_at = clock_timestamp(), exit_code = $5, signal = $6, end_reason = $7,
                             cpu_ms = greatest(h.cpu_ms, $10)
                         FROM owned WHERE h.id = owned.id AND h.status = 'running' RETURNING h.*
                     ), trail AS (
                         INSERT INTO audit_log (tenant_id, principal, action, target, allowed, details)
                         SELECT tenant_id, $8::text::jsonb, 'shell.end', $9, true,
                             jsonb_build_object('exit_code', exit_code, 'signal', signal, 'reason', end_reason)
                         FROM ended
                     )
                     SELECT ",
                    shell_columns!(),
                    " FROM ended h UNION ALL SELECT ",
                    shell_columns!(),
                    " FROM shells h JOIN owned ON owned.id = h.id WHERE h.status = 'exited'"
                ))
                .bind(fence.session_id.uuid())
                .bind(fence.worker_id.uuid())
                .bind(signed(fence.epoch))
                .bind(shell.uuid())
                .bind(end.exit_code)
                .bind(end.signal)
                .bind(end.end_reason)
                .bind(sanitised(OPERATION, &Principal::system())?)
                .bind(shell.to_string())
                .bind(signed(end.cpu_ms)),
            )
            .await?;
        conn.end().await?;
        let row = row.ok_or(StoreError::Stale { operation: OPERATION })?;
        self.bus().shell_changed(shell);
        self::shell(&row).map_err(|error| translate(OPERATION, error))
    }

    /// Notes what CPU time shells of a worker's sessions have taken so far, in milliseconds. Time only adds up.
    pub async fn shells_took(&self, worker: WorkerId, took: &[(ShellId, u64)]) -> Result<()> {
        let mut conn = self.db().system("note CPU time of shells").await?;
        conn.execute(
            sqlx::query(
                "UPDATE shells h SET cpu_ms = t.cpu_ms FROM unnest($2::uuid[], $3::bigint[]) AS t(id, cpu_ms), sessions s
                 WHERE h.id = t.id AND s.id = h.session_id AND s.worker_id = $1 AND h.cpu_ms < t.cpu_ms",
            )
            .bind(worker.uuid())
            .bind(took.iter().map(|(id, _)| id.uuid()).collect::<Vec<_>>())
            .bind(took.iter().map(|(_, cpu_ms)| signed(*cpu_ms)).collect::<Vec<_>>()),
        )
        .await?;
        conn.end().await
    }

    /// Shells of a session that run, for its worker.
    pub async fn shells_running(&self, session: SessionId) -> Result<Vec<Shell>> {
        const OPERATION: &str = "read running shells";
        let mut conn = self.db().system(OPERATION).await?;
        let rows = conn
            .all(
                sqlx::query(concat!(
                    "SELECT ",
                    shell_columns!(),
                    " FROM shells h WHERE h.session_id = $1 AND h.status = 'running' ORDER BY h.id"
                ))
                .bind(session.uuid()),
            )
            .await?;
        conn.end().await?;
        read(OPERATION, &rows, shell)
    }

    /// One shell of a session of the tenant.
    pub async fn get_shell(&self, context: &TenantContext, session: SessionId, id: ShellId) -> Result<Shell> {
        const OPERATION: &str = "read shell";
        let mut conn = self.db().tenant(OPERATION, context).await?;
        let row = conn
            .optional(
                sqlx::query(concat!(
                    "SELECT ",
                    shell_columns!(),
                    " FROM shells h WHERE h.tenant_id = $1 AND h.session_id = $2 AND h.id = $3"
                ))
                .bind(context.tenant_id().uuid())
                .bind(session.uuid())
                .bind(id.uuid()),
            )
            .await?;
        conn.end().await?;
        read_found(OPERATION, row, shell)
    }

    /// All shells of a session of the tenant, newest first, at most [`domain::limits::PAGE_ITEMS`].
    pub async fn list_shells(&self, context: &TenantContext, session: SessionId) -> Result<Vec<Shell>> {
        const OPERATION: &str = "list shells";
        let mut conn = self.db().tenant(OPERATION, context).await?;
        let rows = conn
            .all(
                sqlx::query(concat!(
                    "SELECT ",
                    shell_columns!(),
                    " FROM shells h WHERE h.tenant_id = $1 AND h.session_id = $2 ORDER BY h.id DESC LIMIT $3"
                ))
                .bind(context.tenant_id().uuid())
                .bind(session.uuid())
                .bind(i64::from(domain::limits::PAGE_ITEMS)),
            )
            .await?;
        conn.end().await?;
        read(OPERATION, &rows, shell)
    }
}

/// Which limit leaves no room for a shell that is not recorded yet. Shells of ended sessions do not run, whatever their rows say.
async fn no_room(conn: &mut Conn, fence: &SessionFence, new: &NewShell) -> Result<Option<&'static str>> {
    const OPERATION: &str = "count running shells";
    let session = conn
        .optional(
            sqlx::query("SELECT tenant_id FROM sessions WHERE id = $1 AND worker_id = $2 AND epoch = $3")
                .bind(fence.session_id.uuid())
                .bind(fence.worker_id.uuid())
                .bind(signed(fence.epoch)),
        )
        .await?;
    let Some(session) = session else { return Ok(None) };
    let tenant: Uuid = session.try_get("tenant_id").map_err(|error| translate(OPERATION, error))?;
    conn.lock(Lock::Shells, tenant).await?;
    let row = conn
        .one(
            sqlx::query(
                "SELECT count(*) AS of_tenant, count(*) FILTER (WHERE h.session_id = $2) AS of_session,
                     EXISTS (SELECT 1 FROM shells WHERE id = $3) AS is_known
                 FROM shells h JOIN sessions s ON s.id = h.session_id AND s.status <> 'ended'
                 WHERE h.tenant_id = $1 AND h.status = 'running'",
            )
            .bind(tenant)
            .bind(fence.session_id.uuid())
            .bind(new.id.uuid()),
        )
        .await?;
    let number = |column| row.try_get::<i64, _>(column).map_err(|error| translate(OPERATION, error));
    let is_known: bool = row.try_get("is_known").map_err(|error| translate(OPERATION, error))?;
    Ok(if is_known {
        None
    } else if number("of_session")? >= i64::from(new.limits.session) {
        Some(SESSION_SHELLS_FULL)
    } else if number("of_tenant")? >= i64::from(new.limits.tenant) {
        Some(TENANT_SHELLS_FULL)
    } else {
        None
    })
}

fn shell(row: &PgRow) -> Result<Shell, sqlx::Error> {
    let status: &str = row.try_get("status")?;
    Ok(Shell {
        id: ShellId::from_uuid(row.try_get("id")?),
        tenant_id: TenantId::from_uuid(row.try_get("tenant_id")?),
        session_id: SessionId::from_uuid(row.try_get("session_id")?),
        call_id: CallId::from_uuid(row.try_get::<Uuid, _>("call_id")?),
        operation: u32::try_from(row.try_get::<i32, _>("operation")?).unwrap_or(0),
        name: row.try_get::<Option<String>, _>("name")?.and_then(|name| name.parse().ok()),
        command: row.try_get("command")?,
        description: row.try_get("description")?,
        terminal: row.try_get("terminal")?,
        status: match status {
            "running" => ShellStatus::Running,
            "exited" => ShellStatus::Exited,
            _ => return Err(unknown_word("shells.status")),
        },
        exit_code: row.try_get("exit_code")?,
        signal: row.try_get("signal")?,
        end_reason: row.try_get("end_reason")?,
        next_offset: unsigned(row.try_get("next_offset")?),
        created_at: row.try_get("created_at")?,
        ended_at: row.try_get("ended_at")?,
    })
}

impl ShellLog {
    /// The streams that a log has.
    pub const STREAMS: [StreamName; 2] = [StreamName::Stdout, StreamName::Stderr];
}
