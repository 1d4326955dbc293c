//! The meter: adds what ended to the sums, once each.
//!
//! # Design notes
//!
//! * What ended is taken from the sealed audit trail: a chain has one row for each end, is numbered without gaps, and is complete up
//!   to its head. The place in it moves in the transaction that adds to the sums, so that a meter that is killed has either counted a
//!   row or not. Nothing is added to the statements on the path of a call: a sum that many calls end into would serialise them.
//! * One at a time in an installation: the meter's own row is locked for each pass, and who does not get it leaves the work to who has it.
//! * A call that was found late, after its hour was closed, counts in the first hour that is open: a closed hour is billed.
//! * A shell outlives its call, for as long as a week. Its row says what it has taken so far and how much of that is in the sums; the rest is
//!   added in the hour in which it is found, under its call's tool and in the class of calls that never ran, without being a call.
//! * A call whose row is gone before it was metered (no worker ran for as long as calls are kept) is not counted.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use domain::CallId;
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::close::close_hour;
use crate::db::{Conn, read, read_found, unsigned};
use crate::{Result, Store};

pub(super) const METER: &str = "meter usage";
/// Chains that one pass looks at, and rows that it takes of each.
const CHAINS: i64 = 8;
const ROWS: i64 = 500;

/// What a pass of the meter did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metered {
    /// Another process is at it.
    Elsewhere,
    /// Something; there may be more.
    Some,
    /// There was nothing to do.
    Nothing,
}

/// A row of the trail that tells of usage.
struct Fact {
    chain: Uuid,
    seq: i64,
    at: DateTime<Utc>,
    action: String,
    target: Option<String>,
    allowed: bool,
    reason: Option<String>,
}

impl Store {
    /// Adds what was sealed since the last pass, or closes an hour when there is nothing more. Safe to run anywhere at any time.
    pub async fn meter_usage(&self) -> Result<Metered> {
        let mut conn = self.db().system_transaction(METER).await?;
        let Some(closed_until) = hold(&mut conn).await? else {
            conn.undo().await?;
            return Ok(Metered::Elsewhere);
        };
        // Asked before the chains are looked at: what is sealed by now is then found in them.
        let closable = closable(&mut conn, closed_until).await?;
        let facts = facts(&mut conn).await?;
        let shells = count_shells(&mut conn, closed_until).await?;
        let done = match (facts.is_empty(), closable) {
            (false, _) => {
                count_calls(&mut conn, &facts, closed_until).await?;
                count_refusals(&mut conn, &facts, closed_until).await?;
                advance(&mut conn, &facts).await?;
                Metered::Some
            }
            (true, true) => {
                close_hour(&mut conn, closed_until).await?;
                Metered::Some
            }
            (true, false) if shells > 0 => Metered::Some,
            (true, false) => Metered::Nothing,
        };
        conn.end().await?;
        Ok(done)
    }
}

/// Takes the meter's row. `None` when another pass has it.
pub(super) async fn hold(conn: &mut Conn) -> Result<Option<DateTime<Utc>>> {
    let row = conn
        .optional(sqlx::query(
            "SELECT coalesce(closed_until, (SELECT date_trunc('hour', at, 'UTC') FROM audit_log ORDER BY id LIMIT 1),
                 date_trunc('hour', clock_timestamp(), 'UTC')) AS closed_until
             FROM usage_meter FOR UPDATE SKIP LOCKED",
        ))
        .await?;
    row.map(|row| read_found(METER, Some(row), |row| row.try_get("closed_until"))).transpose()
}

/// Whether the first open hour is over, and everything that was recorded in it is sealed. A minute is more than a transaction may last.
async fn closable(conn: &mut Conn, closed_until: DateTime<Utc>) -> Result<bool> {
    let row = conn
        .one(
            sqlx::query(
                "SELECT $1 + interval '1 hour 1 minute' < clock_timestamp() AND NOT EXISTS (
                     SELECT FROM audit_sealer s JOIN audit_log l ON l.xid >= s.xid
                     WHERE l.at < $1 + interval '1 hour' AND NOT EXISTS (SELECT FROM audit_chain c WHERE c.entry_id = l.id)
                 ) AS closable",
            )
            .bind(closed_until),
        )
        .await?;
    read_found(METER, Some(row), |row| row.try_get("closable"))
}

/// The next rows of the chains that were not looked at for the longest.
async fn facts(conn: &mut Conn) -> Result<Vec<Fact>> {
    let rows = conn
        .all(
            sqlx::query(
                "WITH behind AS MATERIALIZED (
                     SELECT h.chain, coalesce(p.seq, 0) AS seq FROM audit_heads h LEFT JOIN usage_places p ON p.chain = h.chain
                     WHERE h.seq > coalesce(p.seq, 0) ORDER BY p.metered_at NULLS FIRST LIMIT $1
                 )
                 SELECT b.chain, c.seq, l.at, l.action, l.target, l.allowed, l.reason
                 FROM behind b CROSS JOIN LATERAL (SELECT seq, entry_id FROM audit_chain
                     WHERE chain = b.chain AND seq > b.seq ORDER BY seq LIMIT $2) c
                 JOIN audit_log l ON l.id = c.entry_id",
            )
            .bind(CHAINS)
            .bind(ROWS),
        )
        .await?;
    read(METER, &rows, |row: &PgRow| {
        Ok(Fact {
            chain: row.try_get("chain")?,
            seq: row.try_get("seq")?,
            at: row.try_get("at")?,
            action: row.try_get("action")?,
            target: row.try_get("target")?,
            allowed: row.try_get("allowed")?,
            reason: row.try_get("reason")?,
        })
    })
}

/// The call that a fact ended, and whether it can only have ended before it was ever claimed.
fn ended_call(fact: &Fact) -> Option<(CallId, bool)> {
    let unclaimed = match (fact.action.as_str(), fact.allowed) {
        ("call.end", true) => false,
        // A call that waits ends with its cancellation; one that runs has an end of its own.
        ("call.cancel", true) | ("call.submit", false) => true,
        _ => return None,
    };
    Some((fact.target.as_ref()?.parse().ok()?, unclaimed))
}

/// One that ended in line never began. An end may lie before its begin: clocks are set back, and the two are statements of their own.
async fn count_calls(conn: &mut Conn, facts: &[Fact], closed_until: DateTime<Utc>) -> Result<()> {
    let ended: Vec<(CallId, bool)> = facts.iter().filter_map(ended_call).collect();
    if ended.is_empty() {
        return Ok(());
    }
    let ids: Vec<Uuid> = ended.iter().map(|(id, _)| id.uuid()).collect();
    conn.execute(
        sqlx::query(
            "WITH e AS MATERIALIZED (
                 SELECT c.tenant_id, c.session_id, greatest(date_trunc('hour', c.ended_at, 'UTC'), $3) AS hour, c.tool,
                     CASE WHEN c.began_at IS NULL THEN -1 ELSE least(95, floor(4 * log(2.0, 1 +
                         coalesce((c.usage ->> 'duration_ms')::numeric, c.ran_ms))))::smallint END AS duration_class,
                     c.status, coalesce((c.result ->> 'is_error')::boolean, false) AS is_error,
                     coalesce((c.usage ->> 'cpu_ms')::bigint, 0) AS cpu_ms,
                     coalesce((c.usage ->> 'duration_ms')::bigint, c.ran_ms::bigint, 0) AS duration_ms,
                     coalesce((c.usage ->> 'queue_ms')::bigint, c.waited_ms::bigint) AS queue_ms,
                     coalesce((c.usage ->> 'bytes_in')::bigint, 0) AS bytes_in,
                     coalesce((c.usage ->> 'bytes_out')::bigint, 0) AS bytes_out
                 FROM unnest($1::uuid[], $2::boolean[]) AS i(id, unclaimed)
                 CROSS JOIN LATERAL (SELECT c.*, b.began_at, greatest(0, floor(1000 * extract(epoch FROM c.ended_at - b.began_at))) AS ran_ms,
                         greatest(0, floor(1000 * extract(epoch FROM coalesce(b.began_at, c.ended_at) - c.created_at))) AS waited_ms
                     FROM calls c
                     CROSS JOIN LATERAL (SELECT CASE WHEN NOT c.in_line THEN coalesce(c.turn_at, c.started_at) END AS began_at) b
                     WHERE c.id = i.id AND c.id >= $4 AND c.id <= $5
                       AND c.ended_at IS NOT NULL AND (NOT i.unclaimed OR c.attempt = 0)) c
             ), s AS MATERIALIZED (
                 SELECT tenant_id, session_id, hour, tool, duration_class, count(*) AS calls,
                     count(*) FILTER (WHERE status = 'succeeded') AS succeeded,
                     count(*) FILTER (WHERE status = 'succeeded' AND is_error) AS tool_errors,
                     count(*) FILTER (WHERE status = 'failed') AS failed,
                     count(*) FILTER (WHERE status = 'timed_out') AS timed_out,
                     count(*) FILTER (WHERE status = 'cancelled') AS cancelled,
                     count(*) FILTER (WHERE status = 'denied') AS denied,
                     count(*) FILTER (WHERE status = 'lost') AS lost,
                     count(*) FILTER (WHERE queue_ms > 1000) AS waited,
                     sum(cpu_ms)::bigint AS cpu_ms, sum(duration_ms)::bigint AS duration_ms, sum(queue_ms)::bigint AS queue_ms,
                     sum(bytes_in)::bigint AS bytes_in, sum(bytes_out)::bigint AS bytes_out
                 FROM e GROUP BY tenant_id, session_id, hour, tool, duration_class
             ), of_sessions AS (
                 INSERT INTO usage_session_calls AS u (session_id, tenant_id, hour, tool, duration_class, calls, succeeded, tool_errors,
                     failed, timed_out, cancelled, denied, lost, waited, cpu_ms, duration_ms, queue_ms, bytes_in, bytes_out)
                 SELECT session_id, tenant_id, hour, tool, duration_class, calls, succeeded, tool_errors, failed, timed_out, cancelled,
                     denied, lost, waited, cpu_ms, duration_ms, queue_ms, bytes_in, bytes_out FROM s
                 ON CONFLICT (tenant_id, session_id, hour, tool, duration_class) DO UPDATE SET calls = u.calls + excluded.calls,
                     succeeded = u.succeeded + excluded.succeeded, tool_errors = u.tool_errors + excluded.tool_errors,
                     failed = u.failed + excluded.failed, timed_out = u.timed_out + excluded.timed_out,
                     cancelled = u.cancelled + excluded.cancelled, denied = u.denied + excluded.denied,
                     lost = u.lost + excluded.lost, waited = u.waited + excluded.waited, cpu_ms = u.cpu_ms + excluded.cpu_ms,
                     duration_ms = u.duration_ms + excluded.duration_ms, queue_ms = u.queue_ms + excluded.queue_ms,
                     bytes_in = u.bytes_in + excluded.bytes_in, bytes_out = u.bytes_out + excluded.bytes_out
             )
             INSERT INTO usage_calls AS u (tenant_id, hour, tool, duration_class, calls, succeeded, tool_errors, failed, timed_out,
                 cancelled, denied, lost, waited, cpu_ms, duration_ms, queue_ms, bytes_in, bytes_out)
             SELECT tenant_id, hour, tool, duration_class, sum(calls), sum(succeeded), sum(tool_errors), sum(failed), sum(timed_out),
                 sum(cancelled), sum(denied), sum(lost), sum(waited), sum(cpu_ms), sum(duration_ms), sum(queue_ms), sum(bytes_in),
                 sum(bytes_out)
             FROM s GROUP BY tenant_id, hour, tool, duration_class
             ON CONFLICT (tenant_id, hour, tool, duration_class) DO UPDATE SET calls = u.calls + excluded.calls,
                 succeeded = u.succeeded + excluded.succeeded, tool_errors = u.tool_errors + excluded.tool_errors,
                 failed = u.failed + excluded.failed, timed_out = u.timed_out + excluded.timed_out,
                 cancelled = u.cancelled + excluded.cancelled, denied = u.denied + excluded.denied,
                 lost = u.lost + excluded.lost, waited = u.waited + excluded.waited, cpu_ms = u.cpu_ms + excluded.cpu_ms,
                 duration_ms = u.duration_ms + excluded.duration_ms, queue_ms = u.queue_ms + excluded.queue_ms,
                 bytes_in = u.bytes_in + excluded.bytes_in, bytes_out = u.bytes_out + excluded.bytes_out",
        )
        .bind(&ids)
        .bind(ended.iter().map(|(_, unclaimed)| *unclaimed).collect::<Vec<_>>())
        .bind(closed_until)
        // Bounds of the batch, so that the partitions of other days are left out before the statement starts.
        .bind(ids.iter().min().copied().unwrap_or_default())
        .bind(ids.iter().max().copied().unwrap_or_default()),
    )
    .await?;
    Ok(())
}

/// Adds what shells have taken since they were last looked at. Returns of how many there was something.
async fn count_shells(conn: &mut Conn, closed_until: DateTime<Utc>) -> Result<u64> {
    let row = conn
        .one(
            sqlx::query(
                "WITH due AS MATERIALIZED (
                     SELECT id, cpu_ms, cpu_ms - cpu_metered_ms AS more FROM shells WHERE cpu_ms > cpu_metered_ms
                     LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED
                 ), moved AS MATERIALIZED (
                     UPDATE shells h SET cpu_metered_ms = due.cpu_ms FROM due WHERE h.id = due.id
                     RETURNING h.tenant_id, h.session_id, h.call_id, due.more
                 ), s AS MATERIALIZED (
                     SELECT m.tenant_id, m.session_id, greatest(date_trunc('hour', clock_timestamp(), 'UTC'), $1) AS hour,
                         coalesce(c.tool, 'bash') AS tool, sum(m.more)::bigint AS cpu_ms
                     FROM moved m LEFT JOIN calls c ON c.id = m.call_id
                     GROUP BY m.tenant_id, m.session_id, coalesce(c.tool, 'bash')
                 ), of_sessions AS (
                     INSERT INTO usage_session_calls AS u (session_id, tenant_id, hour, tool, duration_class, calls, succeeded, tool_errors,
                         failed, timed_out, cancelled, denied, lost, waited, cpu_ms, duration_ms, queue_ms, bytes_in, bytes_out)
                     SELECT session_id, tenant_id, hour, tool, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, cpu_ms, 0, 0, 0, 0 FROM s
                     ON CONFLICT (tenant_id, session_id, hour, tool, duration_class) DO UPDATE SET cpu_ms = u.cpu_ms + excluded.cpu_ms
                 ), of_tenants AS (
                     INSERT INTO usage_calls AS u (tenant_id, hour, tool, duration_class, calls, succeeded, tool_errors, failed, timed_out,
                         cancelled, denied, lost, waited, cpu_ms, duration_ms, queue_ms, bytes_in, bytes_out)
                     SELECT tenant_id, hour, tool, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, sum(cpu_ms)::bigint, 0, 0, 0, 0
                     FROM s GROUP BY tenant_id, hour, tool
                     ON CONFLICT (tenant_id, hour, tool, duration_class) DO UPDATE SET cpu_ms = u.cpu_ms + excluded.cpu_ms
                 )
                 SELECT count(*) AS shells FROM moved",
            )
            .bind(closed_until)
            .bind(ROWS),
        )
        .await?;
    read_found(METER, Some(row), |row| row.try_get::<i64, _>("shells")).map(unsigned)
}

async fn count_refusals(conn: &mut Conn, facts: &[Fact], closed_until: DateTime<Utc>) -> Result<()> {
    let mut refusals: BTreeMap<(Uuid, DateTime<Utc>, &str, &str), i64> = BTreeMap::new();
    for fact in facts.iter().filter(|fact| !fact.allowed && !fact.chain.is_nil()) {
        let hour = domain::usage::hour_of(fact.at).max(closed_until);
        let reason = fact.reason.as_deref().filter(|reason| is_code(reason)).unwrap_or_default();
        *refusals.entry((fact.chain, hour, &fact.action, reason)).or_default() += 1;
    }
    if refusals.is_empty() {
        return Ok(());
    }
    conn.execute(
        sqlx::query(
            "INSERT INTO usage_refusals AS u (tenant_id, hour, action, reason, refusals)
             SELECT * FROM unnest($1::uuid[], $2::timestamptz[], $3::text[], $4::text[], $5::bigint[])
             ON CONFLICT (tenant_id, hour, action, reason) DO UPDATE SET refusals = u.refusals + excluded.refusals",
        )
        .bind(refusals.keys().map(|key| key.0).collect::<Vec<_>>())
        .bind(refusals.keys().map(|key| key.1).collect::<Vec<_>>())
        .bind(refusals.keys().map(|key| key.2).collect::<Vec<_>>())
        .bind(refusals.keys().map(|key| key.3).collect::<Vec<_>>())
        .bind(refusals.values().copied().collect::<Vec<_>>()),
    )
    .await?;
    Ok(())
}

/// Reasons for programs have one word; others are sentences, of which there is no end.
fn is_code(reason: &str) -> bool {
    !reason.is_empty()
        && reason.len() <= 40
        && reason.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

async fn advance(conn: &mut Conn, facts: &[Fact]) -> Result<()> {
    let mut places: BTreeMap<Uuid, i64> = BTreeMap::new();
    for fact in facts {
        let place = places.entry(fact.chain).or_default();
        *place = (*place).max(fact.seq);
    }
    conn.execute(
        sqlx::query(
            "INSERT INTO usage_places (chain, seq) SELECT * FROM unnest($1::uuid[], $2::bigint[])
             ON CONFLICT (chain) DO UPDATE SET seq = excluded.seq, metered_at = clock_timestamp()",
        )
        .bind(places.keys().copied().collect::<Vec<_>>())
        .bind(places.values().copied().collect::<Vec<_>>()),
    )
    .await?;
    Ok(())
}
