//! Creation of sessions, within the tenant's limit and once for each idempotency key.

use std::collections::BTreeMap;

use domain::policy::{EffectiveLimits, Policy};
use domain::{HostId, Resources, Session, SessionId, SizeClass, TenantContext, TenantId, WorkerId};
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::bus::Hint;
use crate::db::{Conn, unknown_word};
use crate::error::{constraint, translate};
use crate::idempotency::{Seen, seen};
use crate::json::{sanitised, storable, storable_text};
use crate::sessions::{narrow, session, session_by_id, session_columns};
use crate::{AuditRow, Idempotency, Result, Store, StoreError};

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
    /// No host has room for it.
    NoRoom(NoRoom),
    /// The tenant has as many sessions as it may.
    QuotaExceeded {
        /// How many it may have.
        limit: u32,
        /// How many it has.
        in_use: u32,
    },
}

/// Why no host takes a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRoom {
    /// All that could are full at the moment.
    Full,
    /// It is larger than any of them.
    TooLarge,
    /// None is open for new sessions.
    Cordoned,
    /// None of those that could take it has its container runtime.
    NoRuntime,
    /// The container engines of all that could take it are down.
    EngineDown,
}

impl NoRoom {
    /// The reason in the audit trail: the code that the refusal has.
    fn code(self) -> domain::Code {
        match self {
            Self::Full | Self::TooLarge | Self::Cordoned | Self::NoRuntime => domain::Code::Capacity,
            Self::EngineDown => domain::Code::EngineUnavailable,
        }
    }
}

const CREATE: &str = "create session";

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
        let host = match place(&mut conn, context, &new).await? {
            Ok(host) => host,
            Err(no_room) => {
                conn.end().await?;
                return Ok(CreatedSession::NoRoom(no_room));
            }
        };
        let place = (host, OneShot::No);
        let made = insert_session(&mut conn, context, id, &new, limits.sessions, idempotency.as_ref(), place)
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

/// Finds a host with room, and keeps others from taking it as long as the transaction lasts. No host when none is alive: the session waits
/// for one. A refusal is recorded.
pub(crate) async fn place(
    conn: &mut Conn,
    context: &TenantContext,
    new: &NewSession,
) -> Result<Result<Option<HostId>, NoRoom>> {
    let row = conn
        .one(
            sqlx::query("SELECT verdict, host FROM toolhost_find_place($1, $2, $3, $4, $5)")
                .bind(new.resources.cpus)
                .bind(i64::from(new.resources.memory_mb))
                .bind(i64::from(new.resources.disk_mb))
                .bind(&new.runtime)
                .bind(new.assign.map(WorkerId::uuid)),
        )
        .await?;
    let read = |row: &PgRow| {
        let host = row.try_get::<Option<Uuid>, _>("host")?.map(HostId::from_uuid);
        Ok(match row.try_get::<&str, _>("verdict")? {
            "placed" | "no_host" => Ok(host),
            "full" => Err(NoRoom::Full),
            "too_large" => Err(NoRoom::TooLarge),
            "cordoned" => Err(NoRoom::Cordoned),
            "no_runtime" => Err(NoRoom::NoRuntime),
            "engine_down" => Err(NoRoom::EngineDown),
            _ => return Err(unknown_word("toolhost_find_place.verdict")),
        })
    };
    let placed = read(&row).map_err(|error| translate(CREATE, error))?;
    if let Err(no_room) = placed {
        let refused = AuditRow {
            action: "session.create",
            target: None,
            allowed: false,
            reason: Some(no_room.code().as_str().to_owned()),
            details: serde_json::json!({"memory_mb": new.resources.memory_mb, "disk_mb": new.resources.disk_mb}),
        };
        conn.audit(Some(context.tenant_id()), context.principal(), &refused).await?;
    }
    Ok(placed)
}

/// Inserts a session with its idempotency key and audit row, or says how many the tenant has. Under the lock.
pub(crate) async fn insert_session(
    conn: &mut Conn,
    context: &TenantContext,
    id: SessionId,
    new: &NewSession,
    limit: u32,
    idempotency: Option<&Idempotency>,
    (host, one_shot): (Option<HostId>, OneShot),
) -> Result<Result<Session, u32>> {
    for text in [&new.image, &new.runtime] {
        storable_text(CREATE, "image or runtime", text)?;
    }
    let row = conn
        .try_one(
            sqlx::query(concat!(
                "WITH quota AS (
                     SELECT count(*) AS in_use FROM sessions WHERE tenant_id = $2 AND status <> 'ended'
                 ), owner AS (
                     SELECT w.id, w.host_id FROM workers w
                     WHERE w.id = $3 AND w.lease_expires_at > clock_timestamp() AND w.accepts_sessions AND NOT w.draining
                       AND ($23::uuid IS NULL OR w.host_id = $23)
                 ), s AS (
                     INSERT INTO sessions (id, tenant_id, image, size, cpus, memory_mb, disk_mb, pids, runtime, env, metadata,
                         policy, idle_timeout_s, lifetime_s, expires_at, one_shot, worker_id, host_id, epoch)
                     SELECT $1, $2, $4, $5, $6, $7, $8, $9, $10, $11::text::jsonb, $12::text::jsonb, $13::text::jsonb, $14, $15,
                         clock_timestamp() + make_interval(secs => $15), $16, owner.id, coalesce(owner.host_id, $23),
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
            .bind(id.to_string())
            .bind(host.map(HostId::uuid)),
        )
        .await?
        .map_err(|error| match constraint(&error) {
            Some("tenant_is_not_erased") => {
                StoreError::Conflict { operation: CREATE, message: "the tenant is being erased, or was" }
            }
            _ => translate(CREATE, error),
        })?;
    let made = row.try_get::<Option<Uuid>, _>("id").map_err(|error| translate(CREATE, error))?;
    if made.is_some() {
        return session(&row).map(Ok).map_err(|error| translate(CREATE, error));
    }
    let in_use: i64 = row.try_get("in_use").map_err(|error| translate(CREATE, error))?;
    Ok(Err(u32::try_from(in_use).unwrap_or(u32::MAX)))
}
