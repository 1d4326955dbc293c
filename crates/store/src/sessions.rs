//! Sessions, the tenant's side: create, read, change, ask for an end or a reset. The owner's side is in `ownership`.

use std::collections::BTreeMap;

use domain::policy::{EffectiveLimits, Policy};
use domain::{
    HostId, NetworkMode, Resources, Session, SessionEnd, SessionEndReason, SessionId, SessionStatus,
    SizeClass, TenantContext, TenantId, WorkerId,
};
use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use uuid::Uuid;

use crate::bus::Hint;
use crate::db::{Conn, read, read_found, unknown_word, unsigned};
use crate::ending::end_open_calls;
use crate::error::translate;
use crate::idempotency::{Seen, seen};
use crate::json::{sanitised, storable, storable_text};
use crate::{AuditRow, Idempotency, Listed, Page, Result, Store, StoreError};

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

/// A session to be created. Everything is checked by the caller but what needs the database.
#[derive(Debug, Clone)]
pub struct NewSession {
    /// The image of its sandboxes.
    pub image: String,
    /// Its size class, unless its resources are its own.
    pub size: Option<SizeClass>,
    /// What its sandboxes may use.
    pub resources: Resources,
    /// Container runtime.
    pub runtime: String,
    /// Environment of its commands.
    pub env: BTreeMap<String, String>,
    /// The caller's labels.
    pub metadata: BTreeMap<String, String>,
    /// The session's own narrowing of policy.
    pub policy: Option<Policy>,
    /// Seconds without a call after which it ends.
    pub idle_timeout_s: u32,
    /// Seconds of life in all.
    pub lifetime_s: u32,
    /// The worker that is to have it, when one in this process offered (`Dispatch::worker_for_new_session`).
    /// A worker whose lease is over is ignored, and the session waits to be claimed.
    pub assign: Option<WorkerId>,
}

/// What became of a session's creation.
#[derive(Debug, Clone)]
pub enum CreatedSession {
    /// It is committed, `starting`.
    Created(Session),
    /// The idempotency key had created this one, with the same request.
    Duplicate(Session),
    /// The idempotency key belongs to a request with other values in these fields.
    Mismatch {
        /// Names of the fields.
        fields: Vec<String>,
    },
    /// The tenant has as many sessions as it may.
    QuotaExceeded {
        /// How many it may have.
        limit: u32,
        /// How many it has.
        in_use: u32,
    },
}

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
const CREATE: &str = "create session";
const CHANGE: &str = "change session";

impl Store {
    /// Creates a session, with its audit row and idempotency key, within the tenant's limit on open sessions.
    pub async fn create_session(
        &self,
        context: &TenantContext,
        new: NewSession,
        limits: &EffectiveLimits,
        idempotency: Option<Idempotency>,
    ) -> Result<CreatedSession> {
        let id = self.clock().new_id();
        let mut conn = self.db().tenant(CREATE, context).await?;
        lock_creation(&mut conn, context.tenant_id()).await?;
        match seen(&mut conn, context.tenant_id(), idempotency.as_ref()).await? {
            Seen::New => {}
            Seen::Same(target) => {
                let session =
                    session_by_id(&mut conn, context.tenant_id(), SessionId::from_uuid(target)).await?;
                conn.end().await?;
                return Ok(CreatedSession::Duplicate(session));
            }
            Seen::Other(fields) => {
                conn.end().await?;
                return Ok(CreatedSession::Mismatch { fields });
            }
        }
        let made =
            insert_session(&mut conn, context, id, &new, limits.sessions, idempotency.as_ref(), OneShot::No)
                .await?;
        conn.end().await?;
        Ok(match made {
            Ok(session) => {
                self.bus().hint(Hint::SessionChanged(session.id));
                CreatedSession::Created(session)
            }
            Err(in_use) => CreatedSession::QuotaExceeded { limit: limits.sessions, in_use },
        })
    }

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

/// Whether a session is made for one call alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OneShot {
    Yes,
    No,
}

/// Creations of one tenant go one after another, so that its limit and its idempotency keys hold without a race.
/// The lock is a statement of its own, because the next one must see what was committed while it waited.
pub(crate) async fn lock_creation(conn: &mut Conn, tenant: TenantId) -> Result<()> {
    conn.execute(
        sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1::text, 1))").bind(tenant.uuid()),
    )
    .await?;
    Ok(())
}

/// Inserts a session with its idempotency key and audit row, or says how many the tenant has. Under the lock.
pub(crate) async fn insert_session(
    conn: &mut Conn,
    context: &TenantContext,
    id: SessionId,
    new: &NewSession,
    limit: u32,
    idempotency: Option<&Idempotency>,
    one_shot: OneShot,
) -> Result<Result<Session, u32>> {
    for text in [&new.image, &new.runtime] {
        storable_text(CREATE, "image or runtime", text)?;
    }
    let row = conn
        .one(
            sqlx::query(concat!(
                "WITH quota AS (
                     SELECT count(*) AS in_use FROM sessions WHERE tenant_id = $2 AND status <> 'ended'
                 ), owner AS (
                     SELECT w.id, w.host_id FROM workers w
                     WHERE w.id = $3 AND w.lease_expires_at > clock_timestamp() AND w.accepts_sessions AND NOT w.draining
                 ), s AS (
                     INSERT INTO sessions (id, tenant_id, image, size, cpus, memory_mb, disk_mb, pids, runtime, env, metadata,
                         policy, idle_timeout_s, lifetime_s, expires_at, one_shot, worker_id, host_id, epoch)
                     SELECT $1, $2, $4, $5, $6, $7, $8, $9, $10, $11::text::jsonb, $12::text::jsonb, $13::text::jsonb, $14, $15,
                         clock_timestamp() + make_interval(secs => $15), $16, owner.id, owner.host_id,
                         CASE WHEN owner.id IS NULL THEN 0 ELSE 1 END
                     FROM quota LEFT JOIN owner ON true WHERE quota.in_use < $17
                     RETURNING *
                 ), key AS (
                     INSERT INTO idempotency_keys (tenant_id, operation, key, request, target)
                     SELECT $2, $18, $19, $20::text::jsonb, s.id FROM s WHERE $19 IS NOT NULL
                 ), trail AS (
                     INSERT INTO audit_log (tenant_id, principal, action, target, allowed, reason, details)
                     SELECT $2, $21::text::jsonb, 'session.create', $22, s.id IS NOT NULL,
                         CASE WHEN s.id IS NULL THEN 'quota_exceeded' END, jsonb_build_object('image', $4, 'in_use', quota.in_use)
                     FROM quota LEFT JOIN s ON true
                 )
                 SELECT quota.in_use, ",
                session_columns!(),
                " FROM quota LEFT JOIN s ON true"
            ))
            .bind(id.uuid())
            .bind(context.tenant_id().uuid())
            .bind(new.assign.map(WorkerId::uuid))
            .bind(&new.image)
            .bind(new.size.map(SizeClass::as_str))
            .bind(new.resources.cpus)
            .bind(narrow(new.resources.memory_mb))
            .bind(narrow(new.resources.disk_mb))
            .bind(narrow(new.resources.pids))
            .bind(&new.runtime)
            .bind(storable(CREATE, "env", &new.env)?)
            .bind(storable(CREATE, "metadata", &new.metadata)?)
            .bind(new.policy.as_ref().map(|policy| storable(CREATE, "policy", policy)).transpose()?)
            .bind(narrow(new.idle_timeout_s))
            .bind(narrow(new.lifetime_s))
            .bind(one_shot == OneShot::Yes)
            .bind(i64::from(limit))
            .bind(idempotency.map(|key| key.operation))
            .bind(idempotency.map(|key| key.key.as_str()))
            .bind(idempotency.map(|key| storable(CREATE, "idempotency key", &key.request)).transpose()?)
            .bind(sanitised(CREATE, context.principal())?)
            .bind(id.to_string()),
        )
        .await?;
    let made = row.try_get::<Option<Uuid>, _>("id").map_err(|error| translate(CREATE, error))?;
    if made.is_some() {
        return session(&row).map(Ok).map_err(|error| translate(CREATE, error));
    }
    let in_use: i64 = row.try_get("in_use").map_err(|error| translate(CREATE, error))?;
    Ok(Err(u32::try_from(in_use).unwrap_or(u32::MAX)))
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
