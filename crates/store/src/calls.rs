//! Calls, the tenant's side: reading and cancelling. The only way in is `admission`.

use std::collections::BTreeMap;

use domain::{
    Call, CallEnded, CallError, CallId, CallStatus, CallUsage, Code, Effect, EndReason, QueuePlace,
    SessionId, TenantContext, TenantId, WorkerId,
};
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use uuid::Uuid;

use crate::bus::Hint;
use crate::clock::uuid_floor;
use crate::db::{Conn, read, read_found, unknown_word, unsigned};
use crate::error::translate;
use crate::json::sanitised;
use crate::{AuditRow, Listed, Page, Result, Store};

/// Columns of a call, of the table or query named `c`.
macro_rules! call_columns {
    () => {
        "c.id, c.tenant_id, c.session_id, c.parent_call_id, c.after_call_id, c.tool, c.requested_tool, c.version, \
         c.effect, c.status, c.arguments, c.description, c.metadata, c.timeout_ms, c.output_budget_bytes, c.attempt, \
         c.worker_id, c.last_seq, c.cancel_requested, c.output_owner, c.created_at, c.started_at, c.in_line, c.turn_at, c.ended_at, \
         c.result, c.error, c.ended, c.usage, c.traceparent"
    };
}
pub(crate) use call_columns;

/// Which calls to list.
#[derive(Debug, Clone, Default)]
pub struct CallFilter {
    /// Of this session.
    pub session_id: Option<SessionId>,
    /// In any of these states; empty for all.
    pub status: Vec<CallStatus>,
    /// Of this tool.
    pub tool: Option<String>,
    /// Admitted at or after.
    pub created_after: Option<chrono::DateTime<chrono::Utc>>,
    /// Admitted before.
    pub created_before: Option<chrono::DateTime<chrono::Utc>>,
}

const GET: &str = "get call";
const CANCEL: &str = "cancel call";

impl Store {
    /// One call.
    pub async fn get_call(&self, context: &TenantContext, id: CallId) -> Result<Call> {
        let mut conn = self.db().tenant(GET, context).await?;
        let call = call_by_id(&mut conn, context.tenant_id(), id).await;
        conn.end().await?;
        call
    }

    /// Calls, newest first.
    pub async fn list_calls(
        &self,
        context: &TenantContext,
        filter: &CallFilter,
        page: Page,
    ) -> Result<Listed<Call>> {
        const OPERATION: &str = "list calls";
        let status: Vec<_> = filter.status.iter().map(|status| status.as_str()).collect();
        let mut conn = self.db().tenant(OPERATION, context).await?;
        let rows = conn
            .all(
                sqlx::query(concat!(
                    "SELECT ",
                    call_columns!(),
                    " FROM calls c
                     WHERE c.tenant_id = $1 AND ($2::uuid IS NULL OR c.session_id = $2)
                       AND (cardinality($3::text[]) = 0 OR c.status = ANY($3)) AND ($4::text IS NULL OR c.tool = $4)
                       AND c.id >= $5 AND c.id < $6
                     ORDER BY c.id DESC LIMIT $7"
                ))
                .bind(context.tenant_id().uuid())
                .bind(filter.session_id.map(SessionId::uuid))
                .bind(status)
                .bind(filter.tool.as_deref().map(crate::json::sanitised_text))
                .bind(filter.created_after.map_or(Uuid::nil(), uuid_floor))
                .bind(upper_bound(filter, page))
                .bind(page.fetch()),
            )
            .await?;
        conn.end().await?;
        Ok(page.cut(read(OPERATION, &rows, call)?, |call| call.id.uuid()))
    }

    /// Asks for a call's end. A queued one ends `cancelled` in the same commit, with its last event; one that runs is
    /// marked, and its worker ends it. No error when it has ended already.
    pub async fn request_cancel(&self, context: &TenantContext, id: CallId) -> Result<Call> {
        let mut conn = self.db().tenant(CANCEL, context).await?;
        let error = CallError::new(Code::Cancelled, "The call was cancelled before it started.");
        let row = conn
            .optional(
                sqlx::query(concat!(
                    "WITH c AS (
                         UPDATE calls c SET cancel_requested = true,
                             status = CASE WHEN c.worker_id IS NULL THEN 'cancelled' ELSE c.status END,
                             ended_at = CASE WHEN c.worker_id IS NULL THEN statement_timestamp() END,
                             last_seq = c.last_seq + CASE WHEN c.worker_id IS NULL THEN 1 ELSE 0 END,
                             ended = CASE WHEN c.worker_id IS NULL THEN $3::text::jsonb END,
                             error = CASE WHEN c.worker_id IS NULL THEN $4::text::jsonb END
                         WHERE c.tenant_id = $1 AND c.id = $2 AND c.ended_at IS NULL
                         RETURNING c.*
                     ), told AS (
                         INSERT INTO call_events (call_id, seq, tenant_id, type, at)
                         SELECT c.id, c.last_seq, c.tenant_id, 'call.ended', c.ended_at FROM c WHERE c.ended_at IS NOT NULL
                     )
                     SELECT ",
                    call_columns!(),
                    " FROM c"
                ))
                .bind(context.tenant_id().uuid())
                .bind(id.uuid())
                .bind(sanitised(CANCEL, &CallEnded::because(EndReason::Cancelled))?)
                .bind(sanitised(CANCEL, &error)?),
            )
            .await?;
        let Some(row) = row else {
            let call = call_by_id(&mut conn, context.tenant_id(), id).await;
            conn.end().await?;
            return call;
        };
        conn.audit(Some(context.tenant_id()), context.principal(), &AuditRow::done("call.cancel", id))
            .await?;
        conn.end().await?;
        self.bus().call_changed(id);
        self.bus().hint(Hint::CancelRequested(id));
        call(&row).map_err(|error| translate(CANCEL, error))
    }

    /// The call's place in its tenant's queue now; `None` when it does not wait.
    ///
    /// When it starts is a guess: the tenant's latest starts give a pace, and what waits before it is taken to go on at that.
    pub async fn queue_place(&self, context: &TenantContext, id: CallId) -> Result<Option<QueuePlace>> {
        const OPERATION: &str = "read queue place";
        let mut conn = self.db().tenant(OPERATION, context).await?;
        let row = conn
            .optional(
                sqlx::query(
                    "WITH waiting AS MATERIALIZED (
                         SELECT id FROM calls WHERE tenant_id = $1 AND status = 'queued' AND id <= $2
                     ), pace AS (
                         SELECT max(at) AS latest, (max(at) - min(at)) / (count(*) - 1) AS gap FROM (
                             SELECT started_at AS at FROM calls
                             WHERE tenant_id = $1 AND started_at IS NOT NULL AND id < (SELECT id FROM waiting ORDER BY id LIMIT 1)
                             ORDER BY id DESC LIMIT 20
                         ) AS recent HAVING count(*) > 1
                     ), place AS (SELECT count(*) AS position FROM waiting)
                     SELECT position, CASE WHEN gap IS NOT NULL THEN greatest(latest + position * gap, statement_timestamp()) END AS estimated_start_at
                     FROM place LEFT JOIN pace ON true
                     WHERE EXISTS (SELECT FROM waiting WHERE id = $2)",
                )
                .bind(context.tenant_id().uuid())
                .bind(id.uuid()),
            )
            .await?;
        conn.end().await?;
        let Some(row) = row else { return self.get_call(context, id).await.map(|_| None) };
        read_found(OPERATION, Some(row), |row| {
            Ok(Some(QueuePlace {
                position: unsigned(row.try_get("position")?),
                estimated_start_at: row.try_get("estimated_start_at")?,
            }))
        })
    }
}

/// Ids below this one are asked for.
fn upper_bound(filter: &CallFilter, page: Page) -> Uuid {
    let before = filter.created_before.map_or(Uuid::max(), uuid_floor);
    page.after.map_or(before, |after| after.min(before))
}

/// One call of a tenant.
pub(crate) async fn call_by_id(conn: &mut Conn, tenant: TenantId, id: CallId) -> Result<Call> {
    let row = conn
        .optional(
            sqlx::query(concat!(
                "SELECT ",
                call_columns!(),
                " FROM calls c WHERE c.tenant_id = $1 AND c.id = $2"
            ))
            .bind(tenant.uuid())
            .bind(id.uuid()),
        )
        .await?;
    read_found(GET, row, call)
}

/// A call from its columns.
pub(crate) fn call(row: &PgRow) -> Result<Call, sqlx::Error> {
    Ok(Call {
        id: CallId::from_uuid(row.try_get("id")?),
        tenant_id: TenantId::from_uuid(row.try_get("tenant_id")?),
        session_id: SessionId::from_uuid(row.try_get("session_id")?),
        parent_call_id: row.try_get::<Option<Uuid>, _>("parent_call_id")?.map(CallId::from_uuid),
        tool: row.try_get("tool")?,
        requested_tool: row.try_get("requested_tool")?,
        version: row.try_get("version")?,
        effect: row
            .try_get::<&str, _>("effect")?
            .parse::<Effect>()
            .map_err(|()| unknown_word("calls.effect"))?,
        status: status(row)?,
        arguments: row.try_get::<Value, _>("arguments")?,
        description: row.try_get("description")?,
        timeout_ms: unsigned(row.try_get("timeout_ms")?),
        output_budget_bytes: unsigned(row.try_get("output_budget_bytes")?),
        after_call_id: row.try_get::<Option<Uuid>, _>("after_call_id")?.map(CallId::from_uuid),
        attempt: u32::try_from(row.try_get::<i32, _>("attempt")?).unwrap_or(0),
        worker_id: row.try_get::<Option<Uuid>, _>("worker_id")?.map(WorkerId::from_uuid),
        last_seq: unsigned(row.try_get("last_seq")?),
        cancel_requested: row.try_get("cancel_requested")?,
        output_owner: row.try_get("output_owner")?,
        metadata: row.try_get::<Json<BTreeMap<String, String>>, _>("metadata")?.0,
        created_at: row.try_get("created_at")?,
        started_at: row.try_get("started_at")?,
        in_line: row.try_get("in_line")?,
        turn_at: row.try_get("turn_at")?,
        ended_at: row.try_get("ended_at")?,
        result: optional(row, "result")?,
        error: optional(row, "error")?,
        ended: optional(row, "ended")?,
        usage: optional::<CallUsage>(row, "usage")?.unwrap_or_default(),
        trace: row.try_get::<Option<&str>, _>("traceparent")?.and_then(|text| text.parse().ok()),
    })
}

pub(crate) fn status(row: &PgRow) -> Result<CallStatus, sqlx::Error> {
    row.try_get::<&str, _>("status")?.parse().map_err(|()| unknown_word("calls.status"))
}

/// A JSON column that may be null.
pub(crate) fn optional<T: serde::de::DeserializeOwned + 'static>(
    row: &PgRow,
    column: &'static str,
) -> Result<Option<T>, sqlx::Error> {
    Ok(row.try_get::<Option<Json<T>>, _>(column)?.map(|json| json.0))
}
