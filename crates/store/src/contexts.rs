//! Contexts: interpreters whose state lasts. Callers make them and ask for changes; the session's worker does what is asked.

use std::collections::BTreeMap;

use domain::{
    CallId, CodeContext, ContextId, ContextStatus, Language, LostState, SessionId, TenantContext, TenantId,
    limits,
};
use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::types::Json;

use crate::bus::Hint;
use crate::db::{Conn, Lock, read, read_found, unknown_word};
use crate::idempotency::{Seen, seen};
use crate::json::storable;
use crate::{AuditRow, Idempotency, Result, Store, StoreError};

/// What [`context`] reads, of the table or query named `c`, with its session `s`.
macro_rules! context_columns {
    () => {
        "c.id, c.tenant_id, c.session_id, c.name, c.language, c.cwd, c.env, c.metadata, c.interpreter, c.generation, c.lost_reason,
         c.lost_interpreter, c.lost_at, c.interrupts, c.interrupts_done, c.restarts, c.restarts_done, c.created_at,
         c.deleted_at, (s.status <> 'ended' AND s.generation = c.generation) AS is_warm"
    };
}

/// Adds what is new of a context to its session, unless that has as many as it may: `$1` session, `$2` tenant, `$3` id,
/// `$4` name, `$5` directory, `$6` variables, `$7` labels, `$8` most, `$9` language.
macro_rules! insert_context {
    () => {
        "INSERT INTO contexts (id, tenant_id, session_id, name, cwd, env, metadata, language)
         SELECT $3, s.tenant_id, s.id, $4, $5, $6::text::jsonb, $7::text::jsonb, $9 FROM sessions s
         WHERE s.id = $1 AND s.tenant_id = $2 AND s.status <> 'ended'
           AND (SELECT count(*) FROM contexts o WHERE o.session_id = $1 AND o.deleted_at IS NULL) < $8
         ON CONFLICT (session_id, name) WHERE deleted_at IS NULL DO NOTHING RETURNING id"
    };
}

// After the macros, which it uses.
mod fenced;

/// A context to be made.
#[derive(Debug, Clone)]
pub struct NewContext {
    /// Its id, from [`crate::Clock::new_id`].
    pub id: ContextId,
    /// The name that calls may use for it.
    pub name: Option<String>,
    /// What its interpreters are to speak.
    pub language: Language,
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
        conn.lock(Lock::Contexts, session.uuid()).await?;
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
                    .bind(i64::from(limits::SESSION_CONTEXTS))
                    .bind(new.language.as_str()),
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
                   AND tool IN ('python_execute', 'node_execute') ORDER BY id",
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
        language: language(row.try_get("language")?)?,
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

fn language(word: &str) -> std::result::Result<Language, sqlx::Error> {
    let known = Language::ALL.into_iter().find(|language| language.as_str() == word);
    known.ok_or_else(|| unknown_word("contexts.language"))
}
