//! Sessions, the tenant's side: read, change, ask for an end or a reset. They are made in `creation` and served in `ownership`.

use std::collections::BTreeMap;

use domain::policy::Policy;
use domain::{
    HostId, NetworkMode, Resources, Session, SessionEnd, SessionEndReason, SessionId, SessionStatus,
    TenantContext, TenantId, WorkerId,
};
use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use uuid::Uuid;

use crate::bus::Hint;
use crate::db::{Conn, read, read_found, unknown_word, unsigned};
use crate::ending::end_open_calls;
use crate::error::translate;
use crate::json::{sanitised, storable};
use crate::{AuditRow, Listed, Page, Result, Store, StoreError};

/// Columns of a session, of the table or query named `s`.
macro_rules! session_columns {
    () => {
        "s.id, s.tenant_id, s.status, s.image, s.size, s.cpus, s.memory_mb, s.disk_mb, s.pids, s.runtime, s.env, \
         s.metadata, s.idle_timeout_s, s.lifetime_s, s.policy, s.one_shot, s.host_id, s.worker_id, s.epoch, \
         s.generation, s.end_requested, s.reset_requested, s.reset_done, s.created_at, s.started_at, \
         s.last_active_at, s.expires_at, s.ended_at, s.end_reason, s.end_message, s.end_evidence"
    };
}
pub(crate) use session_columns;

/// Which sessions to list.
#[derive(Debug, Clone, Default)]
pub struct SessionFilter {
    /// In any of these states; empty for all.
    pub status: Vec<SessionStatus>,
    /// With all of these labels.
    pub metadata: BTreeMap<String, String>,
}

/// What to change of a session; `None` leaves it.
#[derive(Debug, Clone, Default)]
pub struct SessionPatch {
    /// Replaces all labels.
    pub metadata: Option<BTreeMap<String, String>>,
    /// Replaces the idle timeout.
    pub idle_timeout_s: Option<u32>,
    /// Replaces the lifetime, counted from creation.
    pub lifetime_s: Option<u32>,
    /// Replaces the session's policy. The caller has checked that it only narrows.
    pub policy: Option<Policy>,
}

const GET: &str = "get session";
const CHANGE: &str = "change session";

impl Store {
    /// One session.
    pub async fn get_session(&self, context: &TenantContext, id: SessionId) -> Result<Session> {
        let mut conn = self.db().tenant(GET, context).await?;
        let session = session_by_id(&mut conn, context.tenant_id(), id).await;
        conn.end().await?;
        session
    }

    /// Sessions, newest first.
    pub async fn list_sessions(
        &self,
        context: &TenantContext,
        filter: &SessionFilter,
        page: Page,
    ) -> Result<Listed<Session>> {
        const OPERATION: &str = "list sessions";
        let status: Vec<_> = filter.status.iter().map(|status| status.as_str()).collect();
        let mut conn = self.db().tenant(OPERATION, context).await?;
        let rows = conn
            .all(
                sqlx::query(concat!(
                    "SELECT ",
                    session_columns!(),
                    " FROM sessions s
                     WHERE s.tenant_id = $1 AND (cardinality($2::text[]) = 0 OR s.status = ANY($2))
                       AND s.metadata @> $3::text::jsonb AND ($4::uuid IS NULL OR s.id < $4)
                     ORDER BY s.id DESC LIMIT $5"
                ))
                .bind(context.tenant_id().uuid())
                .bind(status)
                .bind(sanitised(OPERATION, &filter.metadata)?)
                .bind(page.after)
                .bind(page.fetch()),
            )
            .await?;
        conn.end().await?;
        Ok(page.cut(read(OPERATION, &rows, session)?, |session| session.id.uuid()))
    }

    /// Changes a session. [`crate::StoreError::Conflict`] when it has ended.
    pub async fn update_session(
        &self,
        context: &TenantContext,
        id: SessionId,
        patch: &SessionPatch,
    ) -> Result<Session> {
        let metadata =
            patch.metadata.as_ref().map(|value| storable(CHANGE, "metadata", value)).transpose()?;
        let policy = patch.policy.as_ref().map(|value| storable(CHANGE, "policy", value)).transpose()?;
        let statement = sqlx::query(concat!(
            "UPDATE sessions s SET metadata = coalesce($3::text::jsonb, s.metadata),
                 idle_timeout_s = coalesce($4, s.idle_timeout_s),
                 lifetime_s = coalesce($5, s.lifetime_s),
                 expires_at = s.created_at + make_interval(secs => coalesce($5, s.lifetime_s)),
                 policy = coalesce($6::text::jsonb, s.policy)
             WHERE s.tenant_id = $1 AND s.id = $2 AND s.status <> 'ended' RETURNING ",
            session_columns!()
        ))
        .bind(context.tenant_id().uuid())
        .bind(id.uuid())
        .bind(metadata)
        .bind(patch.idle_timeout_s.map(narrow))
        .bind(patch.lifetime_s.map(narrow))
        .bind(policy);
        self.change(context, id, statement, AuditRow::done("session.update", id)).await
    }

    /// Asks for a fresh sandbox and workspace. [`crate::StoreError::Conflict`] when it has ended.
    pub async fn request_session_reset(&self, context: &TenantContext, id: SessionId) -> Result<Session> {
        let statement = sqlx::query(concat!(
            "UPDATE sessions s SET reset_requested = s.reset_requested + 1
             WHERE s.tenant_id = $1 AND s.id = $2 AND s.status <> 'ended' RETURNING ",
            session_columns!()
        ))
        .bind(context.tenant_id().uuid())
        .bind(id.uuid());
        self.change(context, id, statement, AuditRow::done("session.reset", id)).await
    }

    /// Asks for a session's end. One that no worker has yet ends at once. No error when it has ended already.
    pub async fn request_session_end(&self, context: &TenantContext, id: SessionId) -> Result<Session> {
        const OPERATION: &str = "end session";
        let end = SessionEnd::because(SessionEndReason::Deleted);
        let mut conn = self.db().tenant(OPERATION, context).await?;
        let row = conn
            .optional(
                sqlx::query(concat!(
                    "UPDATE sessions s SET end_requested = true,
                         status = CASE WHEN s.worker_id IS NULL THEN 'ended' ELSE s.status END,
                         ended_at = CASE WHEN s.worker_id IS NULL THEN clock_timestamp() END,
                         end_reason = CASE WHEN s.worker_id IS NULL THEN $3 END,
                         end_message = CASE WHEN s.worker_id IS NULL THEN $4 END,
                         end_evidence = CASE WHEN s.worker_id IS NULL THEN '{}'::jsonb END
                     WHERE s.tenant_id = $1 AND s.id = $2 AND s.status <> 'ended' RETURNING ",
                    session_columns!()
                ))
                .bind(context.tenant_id().uuid())
                .bind(id.uuid())
                .bind(end.reason.as_str())
                .bind(&end.message),
            )
            .await?;
        let Some(row) = row else {
            let session = session_by_id(&mut conn, context.tenant_id(), id).await;
            conn.end().await?;
            return session;
        };
        let session = session(&row).map_err(|error| translate(OPERATION, error))?;
        let mut ended_calls = Vec::new();
        if session.status == SessionStatus::Ended {
            ended_calls = end_open_calls(&mut conn, OPERATION, &session, &end).await?;
        }
        conn.audit(Some(context.tenant_id()), context.principal(), &AuditRow::done("session.delete", id))
            .await?;
        conn.end().await?;
        ended_calls.into_iter().for_each(|call| self.bus().call_changed(call));
        self.bus().hint(Hint::SessionChanged(id));
        Ok(session)
    }

    async fn change(
        &self,
        context: &TenantContext,
        id: SessionId,
        statement: crate::db::Statement<'_>,
        trail: AuditRow,
    ) -> Result<Session> {
        let mut conn = self.db().tenant(CHANGE, context).await?;
        let Some(row) = conn.optional(statement).await? else {
            let found = session_by_id(&mut conn, context.tenant_id(), id).await;
            conn.end().await?;
            found?;
            return Err(StoreError::Conflict { operation: CHANGE, message: "the session has ended" });
        };
        conn.audit(Some(context.tenant_id()), context.principal(), &trail).await?;
        conn.end().await?;
        self.bus().hint(Hint::SessionChanged(id));
        session(&row).map_err(|error| translate(CHANGE, error))
    }
}

/// One session of a tenant.
pub(crate) async fn session_by_id(conn: &mut Conn, tenant: TenantId, id: SessionId) -> Result<Session> {
    let row = conn
        .optional(
            sqlx::query(concat!(
                "SELECT ",
                session_columns!(),
                " FROM sessions s WHERE s.tenant_id = $1 AND s.id = $2"
            ))
            .bind(tenant.uuid())
            .bind(id.uuid()),
        )
        .await?;
    read_found(GET, row, session)
}

/// Settings are far below what `integer` holds.
pub(crate) fn narrow(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

fn widened(row: &PgRow, column: &'static str) -> Result<u32, sqlx::Error> {
    Ok(u32::try_from(row.try_get::<i32, _>(column)?).unwrap_or(0))
}

/// A session from its columns.
pub(crate) fn session(row: &PgRow) -> Result<Session, sqlx::Error> {
    let size: Option<&str> = row.try_get("size")?;
    Ok(Session {
        id: SessionId::from_uuid(row.try_get("id")?),
        tenant_id: TenantId::from_uuid(row.try_get("tenant_id")?),
        status: status(row.try_get("status")?)?,
        image: row.try_get("image")?,
        size: size.map(|word| word.parse().map_err(|()| unknown_word("sessions.size"))).transpose()?,
        resources: Resources {
            cpus: row.try_get("cpus")?,
            memory_mb: widened(row, "memory_mb")?,
            disk_mb: widened(row, "disk_mb")?,
            pids: widened(row, "pids")?,
        },
        runtime: row.try_get("runtime")?,
        env: row.try_get::<Json<_>, _>("env")?.0,
        metadata: row.try_get::<Json<_>, _>("metadata")?.0,
        network: NetworkMode::None,
        idle_timeout_s: widened(row, "idle_timeout_s")?,
        lifetime_s: widened(row, "lifetime_s")?,
        expires_at: row.try_get("expires_at")?,
        policy: row.try_get::<Option<Json<Policy>>, _>("policy")?.map(|policy| policy.0),
        host_id: row.try_get::<Option<Uuid>, _>("host_id")?.map(HostId::from_uuid),
        worker_id: row.try_get::<Option<Uuid>, _>("worker_id")?.map(WorkerId::from_uuid),
        epoch: unsigned(row.try_get("epoch")?),
        generation: widened(row, "generation")?,
        one_shot: row.try_get("one_shot")?,
        end_requested: row.try_get("end_requested")?,
        reset_requested: widened(row, "reset_requested")?,
        reset_done: widened(row, "reset_done")?,
        created_at: row.try_get("created_at")?,
        started_at: row.try_get("started_at")?,
        last_active_at: row.try_get("last_active_at")?,
        ended_at: row.try_get("ended_at")?,
        ended: end(row)?,
    })
}

/// The end of a session from its columns.
pub(crate) fn end(row: &PgRow) -> Result<Option<SessionEnd>, sqlx::Error> {
    let Some(reason) = row.try_get::<Option<&str>, _>("end_reason")? else {
        return Ok(None);
    };
    Ok(Some(SessionEnd {
        reason: reason.parse().map_err(|()| unknown_word("sessions.end_reason"))?,
        message: row.try_get::<Option<String>, _>("end_message")?.unwrap_or_default(),
        evidence: row.try_get::<Option<Json<_>>, _>("end_evidence")?.map(|json| json.0).unwrap_or_default(),
    }))
}

fn status(word: &str) -> Result<SessionStatus, sqlx::Error> {
    [SessionStatus::Starting, SessionStatus::Running, SessionStatus::Ended]
        .into_iter()
        .find(|status| status.as_str() == word)
        .ok_or_else(|| unknown_word("sessions.status"))
}
