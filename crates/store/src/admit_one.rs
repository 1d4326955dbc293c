//! The statement that admits one call which starts at once.
//!
//! It is what [`crate::admit_batch`] would do to a batch of one, without what only several calls, a queue or a key
//! need. Half of what that statement costs is starting its executor, and most calls of an idle installation come alone.

use sqlx::Executor;
use sqlx::postgres::PgConnection;

use crate::admit_batch::{AdmitOp, Verdict, verdict};
use crate::reach::Reach;

/// Session and worker are looked at, and the session locked, by the statement that inserts: as in a batch, there is no
/// gap between looking and doing.
const ADMIT_ONE: &str = "WITH judged AS MATERIALIZED (
         SELECT s.status = 'ended' OR s.end_requested AS over, s.end_reason, s.end_message, s.end_evidence,
             s.worker_id = $17::uuid AND s.status = 'running' AND NOT s.end_requested
                 AND s.reset_requested = s.reset_done
                 AND EXISTS (SELECT FROM workers w
                     WHERE w.id = $17 AND w.lease_expires_at > clock_timestamp() AND NOT w.draining) AS fits
         FROM sessions s WHERE s.id = $4::uuid AND s.tenant_id = $3::uuid FOR SHARE OF s
     ), inserted AS (
         INSERT INTO calls (id, tenant_id, session_id, parent_call_id, tool, requested_tool, version, effect, status, arguments,
             description, metadata, timeout_ms, output_budget_bytes, attempt, worker_id, last_seq, output_owner, principal,
             created_at, traceparent)
         SELECT $1::uuid, $3, $4, $5::uuid, $6::text, $7::text, $8::text, $9::text, 'starting', $10::text::jsonb,
             $12::text, $13::text::jsonb, $14::bigint, $15::bigint, 1, $17, 0, $1, $16::text::jsonb,
             statement_timestamp(), $18::text
         FROM judged WHERE fits
         ON CONFLICT (id) DO NOTHING RETURNING id
     ), trail AS (
         INSERT INTO audit_log (tenant_id, principal, action, target, allowed, details)
         SELECT $3, $16::text::jsonb, 'call.submit', $2::text, true,
             jsonb_build_object('tool', $6, 'arguments_sha256', $11::text)
         FROM inserted
     )
     SELECT CASE
             WHEN i.id IS NOT NULL THEN 'starting'
             WHEN j.over IS NULL THEN 'no_session'
             WHEN j.over THEN 'session_ended'
             WHEN j.fits THEN 'again'
             ELSE 'void'
         END AS verdict, j.end_reason, j.end_message, j.end_evidence, statement_timestamp() AS at
     FROM (SELECT) AS one LEFT JOIN judged j ON true LEFT JOIN inserted i ON true";

/// Whether a call can be admitted by this statement.
pub(crate) fn fits(op: &AdmitOp) -> bool {
    op.reserved_by.is_some()
        && op.ended.is_none()
        && op.after_call_id.is_none()
        && op.key.is_none()
        && !op.again
}

/// Admits one call that [`fits`].
pub(crate) async fn admit_one(
    connection: &mut PgConnection,
    reach: Reach,
    op: &AdmitOp,
) -> Result<Verdict, sqlx::Error> {
    let row = connection.fetch_one(
        sqlx::query(ADMIT_ONE)
            .persistent(reach.keeps_statements())
            .bind(op.id)
            .bind(op.target.as_str())
            .bind(op.tenant_id)
            .bind(op.session_id)
            .bind(op.parent_call_id)
            .bind(op.tool.as_str())
            .bind(op.requested_tool.as_deref())
            .bind(op.version.as_str())
            .bind(op.effect)
            .bind(op.arguments.as_str())
            .bind(op.arguments_sha256.as_str())
            .bind(op.description.as_deref())
            .bind(op.metadata.as_str())
            .bind(op.timeout_ms)
            .bind(op.output_budget_bytes)
            .bind(op.principal.as_str())
            .bind(op.reserved_by)
            .bind(op.traceparent.as_deref()),
    );
    verdict(&row.await?)
}
