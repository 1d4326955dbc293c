//! The ledger of sandboxes: a row before anything is made on a host, `removed` after everything is gone.

use std::time::Duration;

use chrono::{DateTime, Utc};
use domain::{HostId, SandboxId, SessionId, SizeClass, WorkerId};
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::db::{Statement, read, signed, unsigned};
use crate::error::{constraint, translate};
use crate::restore::restored_at;
use crate::sessions::narrow;
use crate::{Result, SessionFence, Store, StoreError};

/// What [`live`] reads. `abandoned`: its session has ended, or it serves none and its worker is dead, or it is on its way out, or
/// its creation was forgotten (the answer to its reservation was lost).
macro_rules! live_columns {
    () => {
        "b.id, b.container_id, b.workspace, b.session_id, b.tool_uid, b.epoch, b.generation, b.worker_id,
         extract(epoch FROM clock_timestamp() - b.created_at)::double precision AS age_s,
         (b.state = 'removing' OR (b.state = 'creating' AND b.created_at < clock_timestamp() - interval '10 minutes')
          OR CASE WHEN b.session_id IS NULL
              THEN NOT EXISTS (SELECT FROM workers w WHERE w.id = b.worker_id AND w.lease_expires_at > clock_timestamp())
              ELSE NOT EXISTS (SELECT FROM sessions s WHERE s.id = b.session_id AND s.status <> 'ended') END) AS abandoned"
    };
}

/// A sandbox to be made.
#[derive(Debug, Clone)]
pub struct NewSandbox {
    /// On which host.
    pub host_id: HostId,
    /// By which worker.
    pub worker_id: WorkerId,
    /// Its image.
    pub image: String,
    /// Its size class.
    pub size: Option<SizeClass>,
    /// Its container runtime.
    pub runtime: String,
    /// The workspace that it takes over: name, and uid that owns its files.
    pub workspace: Option<(String, u32)>,
}

/// A row that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReservedSandbox {
    /// Its id.
    pub sandbox_id: SandboxId,
    /// Uid of its tools, unique among what lives on the host.
    pub tool_uid: u32,
    /// Its first ownership epoch.
    pub epoch: u64,
}

/// A row that is not removed.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveSandbox {
    /// Its id.
    pub sandbox_id: SandboxId,
    /// The container, once it was started.
    pub container_id: Option<String>,
    /// The workspace, once it was started.
    pub workspace: Option<String>,
    /// The session that it serves.
    pub session_id: Option<domain::SessionId>,
    /// Uid of its tools.
    pub tool_uid: u32,
    /// Its ownership epoch.
    pub epoch: u64,
    /// Which sandbox of its session it is.
    pub generation: u32,
    /// The worker that has it.
    pub worker_id: WorkerId,
    /// Nobody wants it any more: its session has ended or has another one, or it has none and its worker is gone.
    pub abandoned: bool,
    /// Time since the row was made.
    pub age: Duration,
}

/// Everything of a host that is wanted or not yet gone, in one snapshot.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LiveSandboxes {
    /// Rows that are not removed.
    pub rows: Vec<LiveSandbox>,
    /// Workspaces that an open session still wants although its sandbox is gone.
    pub workspaces: Vec<String>,
    /// When the database was restored from a backup, until an operator says that what it does not know may go.
    pub restored_at: Option<DateTime<Utc>>,
}

impl Store {
    /// Commits a row in state `creating`.
    pub async fn reserve_sandbox(&self, new: &NewSandbox) -> Result<ReservedSandbox> {
        const OPERATION: &str = "reserve sandbox";
        /// Uids go round, so that one in use is met only by a host that holds hundreds of millions.
        const TRIES: u32 = 8;
        let sandbox_id = self.clock().new_id::<SandboxId>();
        let mut conn = self.db().system(OPERATION).await?;
        for _ in 0..TRIES {
            let inserted = conn
                .try_one(
                    sqlx::query(
                        "INSERT INTO sandboxes (id, host_id, worker_id, image, size, runtime, workspace, tool_uid)
                         VALUES ($1, $2, $3, $4, $5, $6, $7, coalesce($8, 1048576 + floor(random() * 1998951424)::integer))
                         RETURNING tool_uid, epoch",
                    )
                    .bind(sandbox_id.uuid())
                    .bind(new.host_id.uuid())
                    .bind(new.worker_id.uuid())
                    .bind(&new.image)
                    .bind(new.size.map(SizeClass::as_str))
                    .bind(&new.runtime)
                    .bind(new.workspace.as_ref().map(|(name, _)| name))
                    .bind(new.workspace.as_ref().map(|(_, uid)| narrow(*uid))),
                )
                .await?;
            match inserted {
                Ok(row) => {
                    conn.end().await?;
                    return reserved(sandbox_id, &row).map_err(|error| translate(OPERATION, error));
                }
                Err(error) if constraint(&error) != Some("sandboxes_uid_per_live_host") => {
                    return Err(translate(OPERATION, error));
                }
                Err(_) if new.workspace.is_some() => {
                    conn.end().await?;
                    return Err(StoreError::Conflict {
                        operation: OPERATION,
                        message: "the sandbox before this one is not removed yet",
                    });
                }
                Err(_) => {}
            }
        }
        conn.end().await?;
        Err(StoreError::Conflict { operation: OPERATION, message: "no free uid was found" })
    }

    /// The container runs and its agent is connected: the row becomes `warm`.
    pub async fn sandbox_started(
        &self,
        sandbox: SandboxId,
        container_id: &str,
        workspace: &str,
    ) -> Result<()> {
        const OPERATION: &str = "start sandbox";
        let changed = self
            .change_sandbox(
                OPERATION,
                sqlx::query(
                    "UPDATE sandboxes SET state = 'warm', container_id = $2, workspace = $3
                     WHERE id = $1 AND state IN ('creating', 'warm')",
                )
                .bind(sandbox.uuid())
                .bind(container_id)
                .bind(workspace),
            )
            .await?;
        if changed { Ok(()) } else { Err(StoreError::Stale { operation: OPERATION }) }
    }

    /// Gives a warm sandbox to a session, at a generation and with the session's epoch. [`crate::StoreError::Stale`] when
    /// the session is not the worker's, [`crate::StoreError::Conflict`] when the sandbox is not warm or the session has another.
    /// Claiming twice for one session changes nothing.
    pub async fn claim_sandbox(
        &self,
        sandbox: SandboxId,
        fence: &SessionFence,
        generation: u32,
    ) -> Result<()> {
        const OPERATION: &str = "claim sandbox";
        let mut conn = self.db().system(OPERATION).await?;
        let answer = conn
            .try_one(
                sqlx::query(
                    "WITH owned AS (
                         SELECT id, tenant_id, epoch FROM sessions
                         WHERE id = $2 AND worker_id = $3 AND epoch = $4 AND status <> 'ended'
                     ), claimed AS (
                         UPDATE sandboxes b SET state = 'claimed', session_id = owned.id, tenant_id = owned.tenant_id,
                             generation = $5, epoch = owned.epoch, worker_id = $3
                         FROM owned WHERE b.id = $1 AND (b.state = 'warm' OR (b.state = 'claimed' AND b.session_id = owned.id))
                         RETURNING b.id
                     )
                     SELECT EXISTS (SELECT FROM owned) AS owned, EXISTS (SELECT FROM claimed) AS claimed",
                )
                .bind(sandbox.uuid())
                .bind(fence.session_id.uuid())
                .bind(fence.worker_id.uuid())
                .bind(signed(fence.epoch))
                .bind(narrow(generation)),
            )
            .await?;
        let row = match answer {
            Ok(row) => row,
            Err(error) if constraint(&error) == Some("sandboxes_one_per_session") => {
                conn.end().await?;
                return Err(StoreError::Conflict {
                    operation: OPERATION,
                    message: "the session has a sandbox",
                });
            }
            Err(error) => return Err(translate(OPERATION, error)),
        };
        conn.end().await?;
        let flag = |column| row.try_get::<bool, _>(column).map_err(|error| translate(OPERATION, error));
        match (flag("owned")?, flag("claimed")?) {
            (true, true) => Ok(()),
            (true, false) => {
                Err(StoreError::Conflict { operation: OPERATION, message: "the sandbox is not warm" })
            }
            (false, _) => Err(StoreError::Stale { operation: OPERATION }),
        }
    }

    /// The sandbox is on its way out: it serves nobody, and its session may have another. Idempotent.
    pub async fn sandbox_removing(&self, sandbox: SandboxId) -> Result<()> {
        let statement = sqlx::query(
            "UPDATE sandboxes SET state = 'removing' WHERE id = $1 AND state NOT IN ('removing', 'removed')",
        )
        .bind(sandbox.uuid());
        self.change_sandbox("remove sandbox", statement).await.map(|_| ())
    }

    /// Nothing of it is left on the host but perhaps its workspace. Idempotent.
    pub async fn sandbox_removed(&self, sandbox: SandboxId) -> Result<()> {
        let statement = sqlx::query(
            "UPDATE sandboxes SET state = 'removed', removed_at = clock_timestamp() WHERE id = $1 AND state <> 'removed'",
        )
        .bind(sandbox.uuid());
        self.change_sandbox("remove sandbox", statement).await.map(|_| ())
    }

    /// The sandbox that serves a session.
    pub async fn sandbox_of_session(&self, session: SessionId) -> Result<Option<LiveSandbox>> {
        const OPERATION: &str = "read sandbox";
        let mut conn = self.db().system(OPERATION).await?;
        let row = conn
            .optional(
                sqlx::query(concat!(
                    "SELECT ",
                    live_columns!(),
                    " FROM sandboxes b WHERE b.session_id = $1 AND b.state = 'claimed'"
                ))
                .bind(session.uuid()),
            )
            .await?;
        conn.end().await?;
        row.as_ref().map(live).transpose().map_err(|error| translate(OPERATION, error))
    }

    /// The newest workspace of a session, with the uid that owns its files, whether or not a sandbox lives.
    pub async fn workspace_of_session(&self, session: SessionId) -> Result<Option<(String, u32)>> {
        const OPERATION: &str = "read workspace";
        let mut conn = self.db().system(OPERATION).await?;
        let row = conn
            .optional(
                sqlx::query(
                    "SELECT workspace, tool_uid FROM sandboxes WHERE session_id = $1 AND workspace IS NOT NULL
                     ORDER BY generation DESC, id DESC LIMIT 1",
                )
                .bind(session.uuid()),
            )
            .await?;
        conn.end().await?;
        let Some(row) = row else { return Ok(None) };
        let name = row.try_get("workspace").map_err(|error| translate(OPERATION, error))?;
        let uid: i32 = row.try_get("tool_uid").map_err(|error| translate(OPERATION, error))?;
        Ok(Some((name, u32::try_from(uid).unwrap_or(0))))
    }

    /// What of a host is wanted or not yet gone, in one snapshot.
    pub async fn live_sandboxes(&self, host: HostId) -> Result<LiveSandboxes> {
        const OPERATION: &str = "read sandboxes";
        let mut conn = self.db().system_transaction(OPERATION).await?;
        conn.execute(sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")).await?;
        let rows = conn
            .all(
                sqlx::query(concat!(
                    "SELECT ",
                    live_columns!(),
                    " FROM sandboxes b WHERE b.host_id = $1 AND b.state <> 'removed' ORDER BY b.id"
                ))
                .bind(host.uuid()),
            )
            .await?;
        let wanted = conn
            .all(
                sqlx::query(
                    "SELECT DISTINCT ON (s.id) b.workspace FROM sessions s JOIN sandboxes b ON b.session_id = s.id
                     WHERE s.host_id = $1 AND s.status <> 'ended' AND b.workspace IS NOT NULL
                     ORDER BY s.id, b.generation DESC, b.id DESC",
                )
                .bind(host.uuid()),
            )
            .await?;
        let restored_at = restored_at(&mut conn).await?;
        conn.end().await?;
        Ok(LiveSandboxes {
            restored_at,
            rows: read(OPERATION, &rows, live)?,
            workspaces: read(OPERATION, &wanted, |row| row.try_get("workspace"))?,
        })
    }

    async fn change_sandbox(&self, operation: &'static str, statement: Statement<'_>) -> Result<bool> {
        let mut conn = self.db().system(operation).await?;
        let changed = conn.execute(statement).await?;
        conn.end().await?;
        Ok(changed > 0)
    }
}

fn reserved(sandbox_id: SandboxId, row: &PgRow) -> Result<ReservedSandbox, sqlx::Error> {
    let tool_uid: i32 = row.try_get("tool_uid")?;
    Ok(ReservedSandbox {
        sandbox_id,
        tool_uid: u32::try_from(tool_uid).unwrap_or(0),
        epoch: unsigned(row.try_get("epoch")?),
    })
}

fn live(row: &PgRow) -> Result<LiveSandbox, sqlx::Error> {
    let number = |column| row.try_get::<i32, _>(column).map(|n| u32::try_from(n).unwrap_or(0));
    Ok(LiveSandbox {
        sandbox_id: SandboxId::from_uuid(row.try_get("id")?),
        container_id: row.try_get("container_id")?,
        workspace: row.try_get("workspace")?,
        session_id: row.try_get::<Option<Uuid>, _>("session_id")?.map(SessionId::from_uuid),
        tool_uid: number("tool_uid")?,
        epoch: unsigned(row.try_get("epoch")?),
        generation: number("generation")?,
        worker_id: WorkerId::from_uuid(row.try_get("worker_id")?),
        abandoned: row.try_get("abandoned")?,
        age: Duration::from_secs_f64(row.try_get::<f64, _>("age_s")?.max(0.0)),
    })
}
