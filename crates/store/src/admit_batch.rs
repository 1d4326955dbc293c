//! The statement that admits many calls at once: a verdict for each, and no condition looked at outside of it.

use chrono::{DateTime, Utc};
use domain::SessionEnd;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::types::Json;
use sqlx::{Executor, Row};
use uuid::Uuid;

use crate::admit_one::{admit_one, fits};
use crate::db::unsigned;
use crate::idempotency::Request;
use crate::reach::Reach;

/// One call to be admitted, ready for the statement.
#[derive(Debug, Clone)]
pub(crate) struct AdmitOp {
    pub(crate) id: Uuid,
    /// The id as audit rows write it.
    pub(crate) target: String,
    pub(crate) tenant_id: Uuid,
    pub(crate) session_id: Uuid,
    pub(crate) parent_call_id: Option<Uuid>,
    pub(crate) after_call_id: Option<Uuid>,
    pub(crate) tool: String,
    pub(crate) requested_tool: Option<String>,
    pub(crate) version: String,
    pub(crate) effect: &'static str,
    pub(crate) arguments: String,
    /// SHA-256 of the arguments, for the audit row.
    pub(crate) arguments_sha256: String,
    pub(crate) description: Option<String>,
    pub(crate) metadata: String,
    pub(crate) timeout_ms: i64,
    pub(crate) output_budget_bytes: i64,
    pub(crate) principal: String,
    /// Both for a denied call.
    pub(crate) error: Option<String>,
    pub(crate) ended: Option<String>,
    pub(crate) reserved_by: Option<Uuid>,
    pub(crate) queue_limit: i64,
    /// Operation, key and request.
    pub(crate) key: Option<(&'static str, String, String)>,
    /// Where in a distributed trace it belongs.
    pub(crate) traceparent: Option<String>,
    /// It may have been written before: the answer to a COMMIT was lost, or somebody else's key was in the way.
    pub(crate) again: bool,
}

/// What the statement found.
#[derive(Debug, Clone)]
pub(crate) enum Verdict {
    Started {
        at: DateTime<Utc>,
    },
    Queued {
        at: DateTime<Utc>,
        position: u64,
    },
    Denied {
        at: DateTime<Utc>,
    },
    /// The idempotency key has made this call (perhaps this very one), for this request.
    Known {
        target: Uuid,
        request: Request,
    },
    /// This very call is there already.
    Written,
    SessionNotFound,
    SessionEnded(Option<SessionEnd>),
    AfterNotFound,
    QueueFull,
    /// The reservation is void: run it again as one that queues.
    Void,
    /// Somebody else's commit was in the way: run it again, now it can be seen.
    Again,
}

/// Takes the queue lock of every tenant that may queue a call, in one order.
pub(crate) async fn lock_queues(
    connection: &mut PgConnection,
    reach: Reach,
    ops: &[&AdmitOp],
) -> Result<(), sqlx::Error> {
    let mut tenants: Vec<Uuid> = ops
        .iter()
        .filter(|op| op.reserved_by.is_none() && op.ended.is_none())
        .map(|op| op.tenant_id)
        .collect();
    tenants.sort_unstable();
    tenants.dedup();
    connection
        .execute(
            sqlx::query(
                "SELECT pg_advisory_xact_lock(hashtextextended(t::text, 2))
                 FROM (SELECT t FROM unnest($1::uuid[]) AS t ORDER BY t) AS tenants",
            )
            .persistent(reach.keeps_statements())
            .bind(tenants),
        )
        .await?;
    Ok(())
}

/// The statement, with or without what only some batches need: a look at calls that are there already.
///
/// A look at a partitioned table costs for every partition even when it finds nothing, and calls that start at once
/// need none. So they have a statement without it.
macro_rules! admission {
    (judge $written:literal $no_after:literal $after_ended:literal, join $again:literal $after:literal, waiting $waiting:literal) => {
        concat!(
            "WITH input AS MATERIALIZED (
                 SELECT * FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::uuid[], $5::uuid[], $6::uuid[], $7::text[],
                     $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::bigint[],
                     $16::bigint[], $17::text[], $18::text[], $19::text[], $20::uuid[], $21::bigint[], $22::text[],
                     $23::text[], $24::text[], $25::boolean[], $26::text[])
                 WITH ORDINALITY AS i(id, target, tenant_id, session_id, parent_call_id, after_call_id, tool, requested_tool,
                     version, effect, arguments, arguments_sha256, description, metadata, timeout_ms, output_budget_bytes,
                     principal, error, ended, reserved_by, queue_limit, operation, key, request, again, traceparent, n)
             ), session AS MATERIALIZED (
                 SELECT s.id, s.tenant_id, s.status, s.end_requested, s.worker_id, s.reset_requested = s.reset_done AS settled,
                     s.end_reason, s.end_message, s.end_evidence
                 FROM sessions s WHERE s.id = ANY($4) ORDER BY s.id FOR SHARE
             ), judged AS MATERIALIZED (
                 SELECT i.*, k.target AS known_target, k.request AS known_request,
                     s.end_reason, s.end_message, s.end_evidence,
                     CASE
                         WHEN k.target IS NOT NULL THEN 'known'
",
            $written,
            "                         WHEN s.id IS NULL THEN 'no_session'
                         WHEN s.status = 'ended' OR s.end_requested THEN 'session_ended'
",
            $no_after,
            "                         WHEN i.ended IS NOT NULL THEN 'denied'
                         WHEN i.reserved_by IS NULL THEN 'queued'
                         WHEN s.worker_id = i.reserved_by AND s.status = 'running' AND s.settled AND w.id IS NOT NULL",
            $after_ended,
            " THEN 'starting'
                         ELSE 'void'
                     END AS verdict
                 FROM input i
                 LEFT JOIN idempotency_keys k
                     ON k.tenant_id = i.tenant_id AND k.operation = i.operation AND k.key = i.key
",
            $again,
            "                 LEFT JOIN session s ON s.id = i.session_id AND s.tenant_id = i.tenant_id
",
            $after,
            "                 LEFT JOIN workers w
                     ON w.id = i.reserved_by AND w.lease_expires_at > clock_timestamp() AND NOT w.draining
             ), waiting AS MATERIALIZED (
",
            $waiting,
            "
             ), placed AS MATERIALIZED (
                 SELECT j.*, w.calls + row_number() OVER (PARTITION BY j.tenant_id, j.verdict ORDER BY j.id) AS position
                 FROM judged j LEFT JOIN waiting w ON w.tenant_id = j.tenant_id
             ), going AS MATERIALIZED (
                 SELECT * FROM placed
                 WHERE verdict IN ('denied', 'starting') OR (verdict = 'queued' AND position <= queue_limit)
             ), keys AS (
                 INSERT INTO idempotency_keys (tenant_id, operation, key, request, target)
                 SELECT tenant_id, operation, key, request::jsonb, id FROM going WHERE key IS NOT NULL
                 ORDER BY tenant_id, operation, key
                 ON CONFLICT DO NOTHING RETURNING target
             ), inserted AS (
                 INSERT INTO calls (id, tenant_id, session_id, parent_call_id, after_call_id, tool, requested_tool, version,
                     effect, status, arguments, description, metadata, timeout_ms, output_budget_bytes, attempt, worker_id,
                     last_seq, output_owner, principal, created_at, ended_at, error, ended, traceparent)
                 SELECT g.id, g.tenant_id, g.session_id, g.parent_call_id, g.after_call_id, g.tool, g.requested_tool, g.version,
                     g.effect, g.verdict, g.arguments::jsonb, g.description, g.metadata::jsonb, g.timeout_ms,
                     g.output_budget_bytes, CASE g.verdict WHEN 'starting' THEN 1 ELSE 0 END,
                     CASE g.verdict WHEN 'starting' THEN g.reserved_by END,
                     CASE g.verdict WHEN 'starting' THEN 0 ELSE 1 END, g.id, g.principal::jsonb, statement_timestamp(),
                     CASE g.verdict WHEN 'denied' THEN statement_timestamp() END, g.error::jsonb, g.ended::jsonb, g.traceparent
                 FROM going g
                 WHERE g.key IS NULL OR EXISTS (SELECT FROM keys WHERE keys.target = g.id)
                 ON CONFLICT (id) DO NOTHING RETURNING id
             ), told AS (
                 INSERT INTO call_events (call_id, seq, tenant_id, type, at, data)
                 SELECT g.id, 1, g.tenant_id, CASE g.verdict WHEN 'queued' THEN 'call.queued' ELSE 'call.ended' END,
                     statement_timestamp(), CASE g.verdict WHEN 'queued'
                         THEN jsonb_build_object('position', g.position, 'estimated_start_at', NULL) END
                 FROM going g JOIN inserted ON inserted.id = g.id WHERE g.verdict <> 'starting'
             ), trail AS (
                 INSERT INTO audit_log (tenant_id, principal, action, target, allowed, reason, details)
                 SELECT g.tenant_id, g.principal::jsonb, 'call.submit', g.target, g.verdict <> 'denied',
                     CASE g.verdict WHEN 'denied' THEN 'policy_denied' END,
                     jsonb_build_object('tool', g.tool, 'arguments_sha256', g.arguments_sha256)
                 FROM going g JOIN inserted ON inserted.id = g.id
             )
             SELECT CASE
                     WHEN p.verdict = 'queued' AND p.position > p.queue_limit THEN 'full'
                     WHEN p.verdict IN ('denied', 'starting', 'queued') AND inserted.id IS NULL THEN 'again'
                     ELSE p.verdict
                 END AS verdict, p.position, p.known_target, p.known_request, p.end_reason, p.end_message, p.end_evidence,
                 statement_timestamp() AS at
             FROM placed p LEFT JOIN inserted ON inserted.id = p.id ORDER BY p.n"
        )
    };
}

/// Any batch.
const ADMIT: &str = admission!(
    judge "WHEN self.id IS NOT NULL THEN 'written' "
        "WHEN i.after_call_id IS NOT NULL AND a.id IS NULL THEN 'no_after' "
        " AND (i.after_call_id IS NULL OR a.ended_at IS NOT NULL) ",
    join "LEFT JOIN LATERAL (SELECT c.id FROM calls c WHERE i.again AND c.id = i.id) self ON true "
        "LEFT JOIN LATERAL (SELECT c.id, c.ended_at FROM calls c
             WHERE c.id = i.after_call_id AND c.tenant_id = i.tenant_id) a ON true ",
    waiting "SELECT t.tenant_id, (SELECT count(*) FROM calls c WHERE c.tenant_id = t.tenant_id AND c.status = 'queued') AS calls
             FROM (SELECT DISTINCT tenant_id FROM judged WHERE verdict = 'queued') t"
);

/// A batch of calls that start at once or are denied.
const ADMIT_AT_ONCE: &str = admission!(
    judge "" "" "",
    join "" "",
    waiting "SELECT NULL::uuid AS tenant_id, 0::bigint AS calls WHERE false"
);

/// Admits calls in one statement. Those that queue need their tenants' locks.
pub(crate) async fn admit(
    connection: &mut PgConnection,
    reach: Reach,
    ops: &[&AdmitOp],
) -> Result<Vec<Verdict>, sqlx::Error> {
    if let [op] = ops
        && fits(op)
    {
        return Ok(vec![admit_one(connection, reach, op).await?]);
    }
    let at_once = |op: &&AdmitOp| {
        !op.again && op.after_call_id.is_none() && (op.reserved_by.is_some() || op.ended.is_some())
    };
    let statement = if ops.iter().all(at_once) { ADMIT_AT_ONCE } else { ADMIT };
    let ids: Vec<_> = ops.iter().map(|op| op.id).collect();
    let rows = connection.fetch_all(
        sqlx::query(statement)
            .persistent(reach.keeps_statements())
            .bind(ids)
            .bind(each(ops, |op| op.target.as_str()))
            .bind(each(ops, |op| op.tenant_id))
            .bind(each(ops, |op| op.session_id))
            .bind(each(ops, |op| op.parent_call_id))
            .bind(each(ops, |op| op.after_call_id))
            .bind(each(ops, |op| op.tool.as_str()))
            .bind(each(ops, |op| op.requested_tool.as_deref()))
            .bind(each(ops, |op| op.version.as_str()))
            .bind(each(ops, |op| op.effect))
            .bind(each(ops, |op| op.arguments.as_str()))
            .bind(each(ops, |op| op.arguments_sha256.as_str()))
            .bind(each(ops, |op| op.description.as_deref()))
            .bind(each(ops, |op| op.metadata.as_str()))
            .bind(each(ops, |op| op.timeout_ms))
            .bind(each(ops, |op| op.output_budget_bytes))
            .bind(each(ops, |op| op.principal.as_str()))
            .bind(each(ops, |op| op.error.as_deref()))
            .bind(each(ops, |op| op.ended.as_deref()))
            .bind(each(ops, |op| op.reserved_by))
            .bind(each(ops, |op| op.queue_limit))
            .bind(each(ops, |op| op.key.as_ref().map(|key| key.0)))
            .bind(each(ops, |op| op.key.as_ref().map(|key| key.1.as_str())))
            .bind(each(ops, |op| op.key.as_ref().map(|key| key.2.as_str())))
            .bind(each(ops, |op| op.again))
            .bind(each(ops, |op| op.traceparent.as_deref())),
    );
    rows.await?.iter().map(verdict).collect()
}

fn each<'a, T>(ops: &[&'a AdmitOp], field: impl Fn(&'a AdmitOp) -> T) -> Vec<T> {
    ops.iter().map(|op| field(op)).collect()
}

/// What a row of either statement says.
pub(crate) fn verdict(row: &PgRow) -> Result<Verdict, sqlx::Error> {
    let at = row.try_get("at")?;
    Ok(match row.try_get::<&str, _>("verdict")? {
        "starting" => Verdict::Started { at },
        "queued" => Verdict::Queued { at, position: unsigned(row.try_get("position")?) },
        "denied" => Verdict::Denied { at },
        "known" => Verdict::Known {
            target: row.try_get("known_target")?,
            request: row.try_get::<Json<Request>, _>("known_request")?.0,
        },
        "written" => Verdict::Written,
        "no_session" => Verdict::SessionNotFound,
        "session_ended" => Verdict::SessionEnded(crate::sessions::end(row)?),
        "no_after" => Verdict::AfterNotFound,
        "full" => Verdict::QueueFull,
        "void" => Verdict::Void,
        _ => Verdict::Again,
    })
}
