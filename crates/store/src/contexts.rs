//! Contexts: interpreters whose state lasts. Callers make them and ask for changes; the session's worker does what is asked.

use std::collections::BTreeMap;

use domain::{
    CallId, CodeContext, ContextId, ContextStatus, LostState, SessionId, TenantContext, TenantId, WorkerId,
    limits,
};
use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use uuid::Uuid;

use crate::bus::Hint;
use crate::db::{Conn, read, read_found, signed};
use crate::error::translate;
use crate::idempotency::{Seen, seen};
use crate::json::{sanitised, storable};
use crate::{AuditRow, Idempotency, Result, SessionFence, Store, StoreError};

/// What [`context`] reads, of the table or query named `c`, with its session `s`.
macro_rules! context_columns {
    () => {
        "c.id, c.tenant_id, c.session_id, c.name, c.cwd, c.env, c.metadata, c.interpreter, c.generation, c.lost_reason,
         c.lost_interpreter, c.lost_at, c.interrupts, c.interrupts_done, c.restarts, c.restarts_done, c.created_at,
         c.deleted_at, (s.status <> 'ended' AND s.generation = c.generation) AS is_warm"
    };
}

/// Adds what is new of a context to its session, unless that has as many as it may: `$1` session, `$2` tenant, `$3` id,
/// `$4` name, `$5` directory, `$6` variables, `$7` labels, `$8` most.
macro_rules! insert_context {
    () => {
        "INSERT INTO contexts (id, tenant_id, session_id, name, cwd, env, metadata)
         SELECT $3, s.tenant_id, s.id, $4, $5, $6::text::jsonb, $7::text::jsonb FROM sessions s
         WHERE s.id = $1 AND s.tenant_id = $2 AND s.status <> 'ended'
           AND (SELECT count(*) FROM contexts o WHERE o.session_id = $1 AND o.deleted_at IS NULL) < $8
         ON CONFLICT (session_id, name) WHERE deleted_at IS NULL DO NOTHING RETURNING id"
    };
}

/// A context to be made.
#[derive(Debug, Clone)]
pub struct NewContext {
    /// Its id, from [`crate::Clock::new_id`].
    pub id: ContextId,
    /// The name that calls may use for it.
    pub name: Option<String>,
    /// Directory that an interpreter starts in.
    pub cwd: String,
    /// Variables of its interpreters.
    pub env: BTreeMap<String, String>,
    /// Labels.
    pub metadata: BTreeMap<String, String>,
}

/// What became of a request to make a context.
#[derive(Debug, Clone)]
pub enum CreatedContext {
    /// It was made.
    New(CodeContext),
    /// The same key had made it before.
    Again(CodeContext),
    /// The key was used with other values in these fields.
    Mismatch(Vec<String>),
}

/// Where an interpreter starts when nobody says.
const DEFAULT_CWD: &str = "/workspace";

/// What a caller may ask of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContextWish {
    /// Interrupt the call that runs in it.
    Interrupt,
    /// End its interpreter.
    Restart,
    /// End its interpreter and forget it.
    Delete,
}

/// How a call names its context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContextName {
    /// By id.
    Id(ContextId),
    /// By the name in its session.
    Name(String),
}

impl Store {
    /// Makes a context.
    pub async fn create_context(
        &self,
        tenant: &TenantContext,
        session: SessionId,
        new: NewContext,
        key: Option<Idempotency>,
    ) -> Result<CreatedContext> {
        // A key that another request is just using is looked up again once that has committed.
        loop {
            if let Some(created) = self.try_create_context(tenant, session, &new, key.as_ref()).await? {
                return Ok(created);
            }
        }
    }

    /// `None` when another request with the key was quicker.
    async fn try_create_context(
        &self,
        tenant: &TenantContext,
        session: SessionId,
        new: &NewContext,
        key: Option<&Idempotency>,
    ) -> Result<Option<CreatedContext>> {
        const OPERATION: &str = "create context";
        let mut conn = self.db().tenant(OPERATION, tenant).await?;
        match seen(&mut conn, tenant.tenant_id(), key).await? {
            Seen::Same(id) => {
                conn.end().await?;
                let context = self.get_context(tenant, session, ContextId::from_uuid(id)).await?;
                return Ok(Some(CreatedContext::Again(context)));
            }
            Seen::Other(fields) => {
                conn.end().await?;
                return Ok(Some(CreatedContext::Mismatch(fields)));
            }
            Seen::New => {}
        }
        if let Some(key) = key {
            // First, so that a second request with the key waits here for this one.
            let noted = conn
                .execute(
                    sqlx::query(
                        "INSERT INTO idempotency_keys (tenant_id, operation, key, request, target)
                         VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING",
                    )
                    .bind(tenant.tenant_id().uuid())
                    .bind(key.operation)
                    .bind(&key.key)
                    .bind(Json(&key.request))
                    .bind(new.id.uuid()),
                )
                .await?;
            if noted == 0 {
                conn.end().await?;
                return Ok(None);
            }
        }
        let made = conn
            .optional(
                sqlx::query(insert_context!())
                    .bind(session.uuid())
                    .bind(tenant.tenant_id().uuid())
                    .bind(new.id.uuid())
                    .bind(&new.name)
                    .bind(&new.cwd)
                    .bind(storable(OPERATION, "env", &new.env)?)
                    .bind(storable(OPERATION, "metadata", &new.metadata)?)
                    .bind(i64::from(limits::SESSION_CONTEXTS)),
            )
            .await?;
        if made.is_none() {
            // Not brought to its end, so that the key is not kept.
            drop(conn);
            return Err(self.not_made(tenant, session, new.name.as_deref()).await?);
        }
        let trail = AuditRow::done("context.create", new.id);
        conn.audit(Some(tenant.tenant_id()), tenant.principal(), &trail).await?;
        conn.end().await?;
        Ok(Some(CreatedContext::New(self.get_context(tenant, session, new.id).await?)))
    }

    /// Why a context was not made.
    async fn not_made(
        &self,
        tenant: &TenantContext,
        session: SessionId,
        name: Option<&str>,
    ) -> Result<StoreError> {
        const OPERATION: &str = "create context";
        let conflict = |message| StoreError::Conflict { operation: OPERATION, message };
        if self.get_session(tenant, session).await?.status == domain::SessionStatus::Ended {
            return Ok(conflict("the session has ended"));
        }
        let others = self.list_contexts(tenant, session).await?;
        if name.is_some() && others.iter().any(|other| other.name.as_deref() == name) {
            return Ok(conflict("the session has a context of this name"));
        }
        Ok(conflict("the session has as many contexts as it may; delete one"))
    }

    /// One context of a session of the tenant.
    pub async fn get_context(
        &self,
        tenant: &TenantContext,
        session: SessionId,
        id: ContextId,
    ) -> Result<CodeContext> {
        const OPERATION: &str = "read context";
        let mut conn = self.db().tenant(OPERATION, tenant).await?;
        let row = conn
            .optional(
                sqlx::query(concat!(
                    "SELECT ",
                    context_columns!(),
                    " FROM contexts c JOIN sessions s ON s.id = c.session_id
                     WHERE c.tenant_id = $1 AND c.session_id = $2 AND c.id = $3 AND c.deleted_at IS NULL"
                ))
                .bind(tenant.tenant_id().uuid())
                .bind(session.uuid())
                .bind(id.uuid()),
            )
            .await?;
        let busy = running(&mut conn, OPERATION, tenant.tenant_id(), session).await?;
        conn.end().await?;
        let mut context = read_found(OPERATION, row, context)?;
        note_busy(&mut context, &busy);
        Ok(context)
    }

    /// All contexts of a session of the tenant, newest first.
    pub async fn list_contexts(
        &self,
        tenant: &TenantContext,
        session: SessionId,
    ) -> Result<Vec<CodeContext>> {
        const OPERATION: &str = "list contexts";
        let mut conn = self.db().tenant(OPERATION, tenant).await?;
        let rows = conn
            .all(
                sqlx::query(concat!(
                    "SELECT ",
                    context_columns!(),
                    " FROM contexts c JOIN sessions s ON s.id = c.session_id
                     WHERE c.tenant_id = $1 AND c.session_id = $2 AND c.deleted_at IS NULL ORDER BY c.id DESC"
                ))
                .bind(tenant.tenant_id().uuid())
                .bind(session.uuid()),
            )
            .await?;
        let busy = running(&mut conn, OPERATION, tenant.tenant_id(), session).await?;
        conn.end().await?;
        let mut contexts = read(OPERATION, &rows, context)?;
        contexts.iter_mut().for_each(|context| note_busy(context, &busy));
        Ok(contexts)
    }

    /// Asks for a change of a context; its session's worker makes it.
    pub async fn wish_for_context(
        &self,
        tenant: &TenantContext,
        session: SessionId,
        id: ContextId,
        wish: ContextWish,
    ) -> Result<()> {
        const OPERATION: &str = "change context";
        let (change, action) = match wish {
            ContextWish::Interrupt => ("interrupts = c.interrupts + 1", "context.interrupt"),
            ContextWish::Restart => ("restarts = c.restarts + 1", "context.restart"),
            ContextWish::Delete => ("deleted_at = clock_timestamp()", "context.delete"),
        };
        let statement = format!(
            "UPDATE contexts c SET {change} WHERE c.tenant_id = $1 AND c.session_id = $2 AND c.id = $3
             AND c.deleted_at IS NULL RETURNING c.id"
        );
        let mut conn = self.db().tenant(OPERATION, tenant).await?;
        let changed = conn
            .optional(
                sqlx::query(sqlx::AssertSqlSafe(statement))
                    .bind(tenant.tenant_id().uuid())
                    .bind(session.uuid())
                    .bind(id.uuid()),
            )
            .await?;
        if changed.is_none() {
            conn.end().await?;
            return Err(StoreError::NotFound { operation: OPERATION });
        }
        conn.audit(Some(tenant.tenant_id()), tenant.principal(), &AuditRow::done(action, id)).await?;
        conn.end().await?;
        self.bus().hint(Hint::SessionChanged(session));
        Ok(())
    }

    /// A context of the fence's session, for a call that runs in it. A name that is not there yet is made.
    /// The call is the newest that came before it and has not ended, if there is one.
    pub async fn context_for_call(
        &self,
        fence: &SessionFence,
        name: &ContextName,
        new: ContextId,
        call: CallId,
    ) -> Result<(CodeContext, Option<CallId>)> {
        const OPERATION: &str = "find context";
        let mut conn = self.db().system(OPERATION).await?;
        let mut row = conn.optional(find(fence, name)).await?;
        if let (None, ContextName::Name(text)) = (&row, name) {
            let tenant = self.tenant_of(&mut conn, fence).await?;
            let made = conn
                .optional(
                    sqlx::query(concat!(
                        "WITH made AS (",
                        insert_context!(),
                        ") INSERT INTO audit_log (tenant_id, principal, action, target, allowed, details)
                         SELECT $2, $9::text::jsonb, 'context.create', $10, true, '{}' FROM made RETURNING 1"
                    ))
                    .bind(fence.session_id.uuid())
                    .bind(tenant)
                    .bind(new.uuid())
                    .bind(text)
                    .bind(DEFAULT_CWD)
                    .bind("{}")
                    .bind("{}")
                    .bind(i64::from(limits::SESSION_CONTEXTS))
                    .bind(sanitised(OPERATION, &domain::Principal::system())?)
                    .bind(new.to_string()),
                )
                .await?;
            row = conn.optional(find(fence, name)).await?;
            if made.is_none() && row.is_none() {
                conn.end().await?;
                let message = "the session has as many contexts as it may; delete one";
                return Err(StoreError::Conflict { operation: OPERATION, message });
            }
        }
        let Some(row) = row else {
            conn.end().await?;
            return Err(StoreError::NotFound { operation: OPERATION });
        };
        let found = context(&row).map_err(|error| translate(OPERATION, error))?;
        let earlier = conn
            .optional(
                sqlx::query(
                    "SELECT id FROM calls WHERE session_id = $1 AND id < $2 AND id >= $1
                       AND status IN ('queued', 'starting', 'running') AND tool = 'python_execute'
                       AND (arguments->>'context_id' = $3 OR arguments->>'context' = $4)
                     ORDER BY id DESC LIMIT 1",
                )
                .bind(fence.session_id.uuid())
                .bind(call.uuid())
                .bind(found.id.to_string())
                .bind(&found.name),
            )
            .await?;
        conn.end().await?;
        let earlier = earlier
            .map(|row| row.try_get::<Uuid, _>("id"))
            .transpose()
            .map_err(|error| translate(OPERATION, error))?;
        Ok((found, earlier.map(CallId::from_uuid)))
    }

    async fn tenant_of(&self, conn: &mut Conn, fence: &SessionFence) -> Result<Uuid> {
        const OPERATION: &str = "find context";
        let row = conn
            .optional(
                sqlx::query("SELECT tenant_id FROM sessions WHERE id = $1 AND worker_id = $2 AND epoch = $3")
                    .bind(fence.session_id.uuid())
                    .bind(fence.worker_id.uuid())
                    .bind(signed(fence.epoch)),
            )
            .await?
            .ok_or(StoreError::Stale { operation: OPERATION })?;
        row.try_get("tenant_id").map_err(|error| translate(OPERATION, error))
    }

    /// An interpreter of the context is about to be started in a sandbox of the session.
    pub async fn context_starting(
        &self,
        fence: &SessionFence,
        id: ContextId,
        interpreter: u32,
        generation: u32,
    ) -> Result<()> {
        self.of_worker(
            fence,
            id,
            "start context",
            sqlx::query(
                "UPDATE contexts c SET interpreter = $5, generation = $6 FROM sessions s
                 WHERE s.id = $1 AND s.worker_id = $2 AND s.epoch = $3 AND c.session_id = s.id AND c.id = $4
                   AND c.interpreter <= $5 RETURNING c.id",
            ),
            &[i64::from(interpreter), i64::from(generation)],
            None,
        )
        .await
    }

    /// An interpreter of the context has ended, and its state with it. Only the first reason counts.
    pub async fn context_lost(
        &self,
        fence: &SessionFence,
        id: ContextId,
        interpreter: u32,
        reason: &str,
    ) -> Result<()> {
        self.of_worker(
            fence,
            id,
            "lose context",
            sqlx::query(
                "UPDATE contexts c SET generation = NULL, lost_interpreter = $5,
                     lost_reason = CASE WHEN c.lost_interpreter = $5 THEN c.lost_reason ELSE $7 END,
                     lost_at = CASE WHEN c.lost_interpreter = $5 THEN c.lost_at ELSE clock_timestamp() END
                 FROM sessions s
                 WHERE s.id = $1 AND s.worker_id = $2 AND s.epoch = $3 AND c.session_id = s.id AND c.id = $4
                   AND c.interpreter = $6 RETURNING c.id",
            ),
            &[i64::from(interpreter), i64::from(interpreter)],
            Some(reason),
        )
        .await
    }

    /// What was asked of a context so far has been done.
    pub async fn context_heeded(
        &self,
        fence: &SessionFence,
        id: ContextId,
        interrupts: u32,
        restarts: u32,
    ) -> Result<()> {
        self.of_worker(
            fence,
            id,
            "heed context",
            sqlx::query(
                "UPDATE contexts c SET interrupts_done = greatest(c.interrupts_done, $5),
                     restarts_done = greatest(c.restarts_done, $6) FROM sessions s
                 WHERE s.id = $1 AND s.worker_id = $2 AND s.epoch = $3 AND c.session_id = s.id AND c.id = $4
                 RETURNING c.id",
            ),
            &[i64::from(interrupts), i64::from(restarts)],
            None,
        )
        .await
    }

    async fn of_worker(
        &self,
        fence: &SessionFence,
        id: ContextId,
        operation: &'static str,
        statement: crate::db::Statement<'_>,
        numbers: &[i64],
        text: Option<&str>,
    ) -> Result<()> {
        let mut statement = statement
            .bind(fence.session_id.uuid())
            .bind(fence.worker_id.uuid())
            .bind(signed(fence.epoch))
            .bind(id.uuid());
        for number in numbers {
            statement = statement.bind(i32::try_from(*number).unwrap_or(i32::MAX));
        }
        if let Some(text) = text {
            statement = statement.bind(text.to_owned());
        }
        let mut conn = self.db().system(operation).await?;
        let changed = conn.optional(statement).await?;
        let owned = match changed {
            Some(_) => true,
            None => self.tenant_of(&mut conn, fence).await.is_ok(),
        };
        conn.end().await?;
        // A row that has moved on is no loss of the session.
        if owned { Ok(()) } else { Err(StoreError::Stale { operation }) }
    }

    /// Contexts of a worker's sessions of which something is asked, deleted ones included.
    pub async fn contexts_wanting_change(&self, worker: WorkerId) -> Result<Vec<CodeContext>> {
        const OPERATION: &str = "read wanting contexts";
        let mut conn = self.db().system(OPERATION).await?;
        let rows = conn
            .all(
                sqlx::query(concat!(
                    "SELECT ",
                    context_columns!(),
                    " FROM contexts c JOIN sessions s ON s.id = c.session_id
                     WHERE s.worker_id = $1 AND s.status <> 'ended'
                       AND (c.interrupts > c.interrupts_done OR c.restarts > c.restarts_done
                            OR (c.deleted_at IS NOT NULL AND c.generation IS NOT NULL))"
                ))
                .bind(worker.uuid()),
            )
            .await?;
        conn.end().await?;
        read(OPERATION, &rows, context)
    }
}

fn find<'q>(fence: &SessionFence, name: &'q ContextName) -> crate::db::Statement<'q> {
    let (id, text) = match name {
        ContextName::Id(id) => (Some(id.uuid()), None),
        ContextName::Name(name) => (None, Some(name.as_str())),
    };
    sqlx::query(concat!(
        "SELECT ",
        context_columns!(),
        " FROM contexts c JOIN sessions s ON s.id = c.session_id
         WHERE c.session_id = $1 AND s.worker_id = $2 AND s.epoch = $3 AND c.deleted_at IS NULL
           AND (c.id = $4 OR c.name = $5)"
    ))
    .bind(fence.session_id.uuid())
    .bind(fence.worker_id.uuid())
    .bind(signed(fence.epoch))
    .bind(id)
    .bind(text)
}

/// Calls that run in contexts of a session: their ids, and how each names its context.
type Running = Vec<(CallId, Option<String>, Option<String>)>;

async fn running(
    conn: &mut Conn,
    operation: &'static str,
    tenant: TenantId,
    session: SessionId,
) -> Result<Running> {
    let rows = conn
        .all(
            sqlx::query(
                "SELECT id, arguments->>'context_id' AS context_id, arguments->>'context' AS context FROM calls
                 WHERE tenant_id = $1 AND session_id = $2 AND id >= $2 AND status IN ('starting', 'running')
                   AND tool = 'python_execute' ORDER BY id",
            )
            .bind(tenant.uuid())
            .bind(session.uuid()),
        )
        .await?;
    read(operation, &rows, |row| {
        Ok((CallId::from_uuid(row.try_get("id")?), row.try_get("context_id")?, row.try_get("context")?))
    })
}

fn note_busy(context: &mut CodeContext, running: &Running) {
    let id = context.id.to_string();
    let call = running.iter().find(|(_, by_id, by_name)| {
        by_id.as_ref() == Some(&id) || (by_name.is_some() && *by_name == context.name)
    });
    if let Some((call, ..)) = call {
        context.call_id = Some(*call);
        context.status = ContextStatus::Busy;
    }
}

fn context(row: &PgRow) -> Result<CodeContext, sqlx::Error> {
    let number = |name: &str| row.try_get::<i32, _>(name).map(|number| u32::try_from(number).unwrap_or(0));
    let some = |name: &str| {
        row.try_get::<Option<i32>, _>(name).map(|number| number.and_then(|number| u32::try_from(number).ok()))
    };
    let reason: Option<String> = row.try_get("lost_reason")?;
    let lost = match (reason, some("lost_interpreter")?, row.try_get("lost_at")?) {
        (Some(reason), Some(interpreter), Some(at)) => Some(LostState { reason, interpreter, at }),
        _ => None,
    };
    let is_warm: Option<bool> = row.try_get("is_warm")?;
    Ok(CodeContext {
        id: ContextId::from_uuid(row.try_get("id")?),
        tenant_id: TenantId::from_uuid(row.try_get("tenant_id")?),
        session_id: SessionId::from_uuid(row.try_get("session_id")?),
        name: row.try_get("name")?,
        cwd: row.try_get("cwd")?,
        env: row.try_get::<Json<_>, _>("env")?.0,
        metadata: row.try_get::<Json<_>, _>("metadata")?.0,
        interpreter: number("interpreter")?,
        generation: some("generation")?,
        status: if is_warm == Some(true) { ContextStatus::Idle } else { ContextStatus::Cold },
        call_id: None,
        lost,
        interrupts: (number("interrupts")?, number("interrupts_done")?),
        restarts: (number("restarts")?, number("restarts_done")?),
        created_at: row.try_get("created_at")?,
        deleted_at: row.try_get("deleted_at")?,
    })
}
