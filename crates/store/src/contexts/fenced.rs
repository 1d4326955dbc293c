//! What the worker that has the session does with its contexts.

use domain::{CallId, CodeContext, ContextId, Language, WorkerId, limits};
use sqlx::Row;
use uuid::Uuid;

use super::{ContextName, DEFAULT_CWD, context};
use crate::db::{Conn, Lock, read, signed};
use crate::error::translate;
use crate::json::sanitised;
use crate::line::{Line, earlier_call};
use crate::{Result, SessionFence, Store, StoreError};

impl Store {
    /// A context of the fence's session, for a call that runs in it. A name that is not there yet is made, of this language; one that is may be of
    /// another.
    /// The call is the newest that came before it and has not ended, if there is one.
    pub async fn context_for_call(
        &self,
        fence: &SessionFence,
        name: &ContextName,
        (new, language): (ContextId, Language),
        call: CallId,
    ) -> Result<(CodeContext, Option<CallId>)> {
        const OPERATION: &str = "find context";
        let mut conn = self.db().system_transaction(OPERATION).await?;
        let mut row = conn.optional(find(fence, name)).await?;
        if let (None, ContextName::Name(text)) = (&row, name) {
            conn.lock(Lock::Contexts, fence.session_id.uuid()).await?;
            let tenant = self.tenant_of(&mut conn, fence).await?;
            let made = conn
                .optional(
                    sqlx::query(concat!(
                        "WITH made AS (",
                        insert_context!(),
                        ") INSERT INTO audit_log (tenant_id, principal, action, target, allowed, details)
                         SELECT $2, $10::text::jsonb, 'context.create', $11, true, '{}' FROM made RETURNING 1"
                    ))
                    .bind(fence.session_id.uuid())
                    .bind(tenant)
                    .bind(new.uuid())
                    .bind(text)
                    .bind(DEFAULT_CWD)
                    .bind("{}")
                    .bind("{}")
                    .bind(i64::from(limits::SESSION_CONTEXTS))
                    .bind(language.as_str())
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
        let line = Line::Context { id: found.id, name: found.name.as_deref() };
        let earlier = earlier_call(&mut conn, OPERATION, fence.session_id, call, line).await?;
        conn.end().await?;
        Ok((found, earlier))
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
