//! Which earlier call one has to wait for, and whose turn it is: calls in one named shell or context run one after the other, and so do
//! texts to one shell.

use domain::{CallId, ContextId, SessionId, Shell, ShellName};
use sqlx::Row;
use uuid::Uuid;

use crate::db::Conn;
use crate::error::translate;
use crate::sessions::narrow;
use crate::{Fence, Result, Store, StoreError};

/// What calls are in line for.
pub(crate) enum Line<'a> {
    /// A named shell.
    Shell(&'a ShellName),
    /// A context.
    Context {
        /// Its id.
        id: ContextId,
        /// Its name, when it has one.
        name: Option<&'a str>,
    },
    /// The stdin of a shell.
    Input(&'a Shell),
}

/// The newest of those before a call that have not ended. Each of the two indexes has some of them; one of all calls would read the
/// session's whole past.
macro_rules! earlier {
    ($condition:literal) => {
        concat!(
            "SELECT c.id FROM (
                 SELECT id, tool, arguments FROM calls
                 WHERE tenant_id = (SELECT tenant_id FROM sessions WHERE id = $1) AND session_id = $1 AND status = 'queued'
                   AND id < $2 AND id >= $1
                 UNION ALL
                 SELECT id, tool, arguments FROM calls
                 WHERE session_id = $1 AND status IN ('starting', 'running', 'waiting_input') AND id < $2 AND id >= $1
             ) c WHERE ",
            $condition,
            " ORDER BY c.id DESC LIMIT 1"
        )
    };
}

/// The newest call before this one that is in the same line and has not ended, if there is one.
pub(crate) async fn earlier_call(
    conn: &mut Conn,
    operation: &'static str,
    session: SessionId,
    before: CallId,
    line: Line<'_>,
) -> Result<Option<CallId>> {
    let (statement, id, name) = match line {
        Line::Shell(name) => {
            (earlier!("c.tool = 'bash' AND c.arguments->>'shell' IN ($3, $4)"), None, Some(name.as_str()))
        }
        Line::Context { id, name } => (
            earlier!(
                "c.tool IN ('python_execute', 'node_execute')
                 AND (c.arguments->>'context_id' = $3 OR c.arguments->>'context' = $4)"
            ),
            Some(id.to_string()),
            name,
        ),
        Line::Input(shell) => (
            earlier!(
                "c.tool = 'bash_input' AND c.arguments->>'shell_id' IN ($3, $4)
                 AND (c.arguments ? 'stdin' OR c.arguments->>'close' = 'true')"
            ),
            Some(shell.id.to_string()),
            shell.name.as_ref().map(ShellName::as_str),
        ),
    };
    let statement = sqlx::query(statement).bind(session.uuid()).bind(before.uuid()).bind(id).bind(name);
    let row = conn.optional(statement).await?;
    let found = row.map(|row| row.try_get::<Uuid, _>("id")).transpose();
    Ok(found.map_err(|error| translate(operation, error))?.map(CallId::from_uuid))
}

/// A change of a call's place in line, by the worker that has it and whose lease is good.
macro_rules! set_turn {
    ($change:literal) => {
        concat!(
            "UPDATE calls SET ",
            $change,
            " WHERE id = $1 AND attempt = $2 AND worker_id = $3 AND ended_at IS NULL
                AND EXISTS (SELECT FROM workers w WHERE w.id = $3 AND w.lease_expires_at > clock_timestamp())"
        )
    };
}

impl Store {
    /// The call stands in line from here on. [`crate::StoreError::Stale`] when the holder was superseded.
    pub async fn stand_in_line(&self, fence: &Fence) -> Result<()> {
        self.set_turn("put a call in line", set_turn!("in_line = true"), fence).await
    }

    /// The call stood in line, and its turn begins now. [`crate::StoreError::Stale`] when the holder was superseded.
    pub async fn begin_turn(&self, fence: &Fence) -> Result<()> {
        let statement = set_turn!("in_line = false, turn_at = statement_timestamp()");
        self.set_turn("begin a call's turn", statement, fence).await
    }

    async fn set_turn(&self, operation: &'static str, statement: &'static str, fence: &Fence) -> Result<()> {
        let mut conn = self.db().system(operation).await?;
        let changed = conn
            .execute(
                sqlx::query(statement)
                    .bind(fence.call_id.uuid())
                    .bind(narrow(fence.attempt))
                    .bind(fence.worker_id.uuid()),
            )
            .await?;
        conn.end().await?;
        if changed == 0 { Err(StoreError::Stale { operation }) } else { Ok(()) }
    }
}
