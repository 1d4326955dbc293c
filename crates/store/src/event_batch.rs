//! The statement that writes events, output and ends of many calls at once, each under its own fence.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use domain::{CallId, Event, EventBody, SessionId};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Executor, Row};

use crate::Result;
use crate::db::signed;
use crate::event_one::write_one;
use crate::events::Fence;
use crate::reach::Reach;

/// Events of one call, ready for the statement.
#[derive(Debug, Clone)]
pub(crate) struct WriteOp {
    pub(crate) fence: Fence,
    /// The id as audit rows write it.
    pub(crate) target: String,
    /// Whether `call.started` is the first of them.
    pub(crate) started: bool,
    /// In order, `call.ended` included.
    pub(crate) events: Vec<EventBody>,
    /// JSON of each; none for output and for the end.
    pub(crate) data: Vec<Option<String>>,
    /// What ends the call.
    pub(crate) end: Option<EndOp>,
}

/// The end of a call, as its row keeps it.
#[derive(Debug, Clone)]
pub(crate) struct EndOp {
    pub(crate) status: &'static str,
    pub(crate) result: Option<String>,
    pub(crate) error: Option<String>,
    pub(crate) ended: String,
    pub(crate) usage: String,
    /// Why, for the audit row.
    pub(crate) reason: String,
}

/// What became of one call's events.
#[derive(Debug, Clone)]
pub(crate) enum Written {
    /// They are durable.
    Now { at: DateTime<Utc>, session: SessionId },
    /// They were durable already; the answer had been lost.
    Before { at: DateTime<Utc>, session: SessionId },
    /// Refused: the lease is over, but nobody has taken the call. After a renewal it can be written.
    Lapsed,
    /// Refused: somebody else has the call, or it has ended.
    Stale,
}

impl WriteOp {
    /// Bytes of output that it carries.
    pub(crate) fn weight(&self) -> usize {
        self.events.iter().map(|event| output(event).map_or(0, |piece| piece.bytes.len())).sum()
    }

    /// The events as they are stored now.
    pub(crate) fn stored(self, at: DateTime<Utc>) -> Arc<[Event]> {
        let (call_id, first) = (self.fence.call_id, self.fence.after_seq + 1);
        self.events.into_iter().zip(first..).map(|(body, seq)| Event { call_id, seq, at, body }).collect()
    }

    pub(crate) fn call_id(&self) -> CallId {
        self.fence.call_id
    }
}

/// Writes in one statement. The UPDATE that numbers the events is the guard, and what it returns feeds the INSERTs.
pub(crate) async fn write(
    connection: &mut PgConnection,
    reach: Reach,
    ops: &[&WriteOp],
) -> Result<Vec<Written>, sqlx::Error> {
    if let [op] = ops {
        let written = write_one(connection, reach, op).await?;
        return Ok(vec![match written {
            Some(written) => written,
            None => refused(connection, reach, op).await?,
        }]);
    }
    let pieces = Pieces::of(ops);
    let ids = || ops.iter().map(|op| op.fence.call_id.uuid());
    let rows = connection.fetch_all(
        sqlx::query(
            "WITH input AS MATERIALIZED (
                 SELECT * FROM unnest($1::uuid[], $2::text[], $3::integer[], $4::uuid[], $5::bigint[], $6::bigint[],
                     $7::boolean[], $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[])
                 WITH ORDINALITY AS i(call_id, target, attempt, worker_id, after_seq, events, started, status, result,
                     error, ended, usage, reason, n)
             ), piece AS MATERIALIZED (
                 SELECT * FROM unnest($14::bigint[], $15::bigint[], $16::text[], $17::text[], $18::bigint[], $19::smallint[],
                     $20::bigint[], $21::bytea[])
                 AS p(n, place, type, data, log_offset, stream, stream_offset, bytes)
             ), alive AS MATERIALIZED (
                 SELECT w.id FROM workers w WHERE w.id = ANY($4) AND w.lease_expires_at > clock_timestamp()
             ), guarded AS (
                 UPDATE calls c SET last_seq = c.last_seq + i.events,
                     status = coalesce(i.status, CASE WHEN i.started THEN 'running' ELSE c.status END),
                     started_at = CASE WHEN i.started THEN coalesce(c.started_at, statement_timestamp()) ELSE c.started_at END,
                     ended_at = CASE WHEN i.status IS NOT NULL THEN statement_timestamp() END,
                     result = i.result::jsonb, error = i.error::jsonb, ended = i.ended::jsonb, usage = i.usage::jsonb
                 FROM input i
                 WHERE c.id = i.call_id AND c.id >= $22 AND c.id <= $23 AND c.attempt = i.attempt
                   AND c.worker_id = i.worker_id AND c.last_seq = i.after_seq AND c.ended_at IS NULL
                   AND EXISTS (SELECT FROM alive WHERE alive.id = i.worker_id)
                 RETURNING i.n, i.after_seq, c.id, c.tenant_id, c.session_id, c.output_owner, i.target, i.started, i.status,
                     i.reason, c.attempt
             ), told AS (
                 INSERT INTO call_events (call_id, seq, tenant_id, type, at, data, owner, log_offset)
                 SELECT g.id, g.after_seq + p.place, g.tenant_id, p.type, statement_timestamp(), p.data::jsonb,
                     CASE WHEN p.bytes IS NOT NULL THEN g.output_owner END, p.log_offset
                 FROM guarded g JOIN piece p ON p.n = g.n
             ), kept AS (
                 INSERT INTO output_chunks (owner, log_offset, tenant_id, stream, stream_offset, bytes)
                 SELECT g.output_owner, p.log_offset, g.tenant_id, p.stream, p.stream_offset, p.bytes
                 FROM guarded g JOIN piece p ON p.n = g.n WHERE p.bytes IS NOT NULL
             ), trail AS (
                 INSERT INTO audit_log (tenant_id, principal, action, target, allowed, details)
                 SELECT g.tenant_id, '{\"key_id\": null, \"name\": \"system\", \"address\": null}'::jsonb, 'call.start', g.target, true,
                     jsonb_build_object('attempt', g.attempt)
                 FROM guarded g WHERE g.started
                 UNION ALL
                 SELECT g.tenant_id, '{\"key_id\": null, \"name\": \"system\", \"address\": null}'::jsonb, 'call.end', g.target, true,
                     jsonb_build_object('status', g.status, 'reason', g.reason)
                 FROM guarded g WHERE g.status IS NOT NULL
             )
             SELECT g.n IS NOT NULL AS written, g.session_id, statement_timestamp() AS at
             FROM input i LEFT JOIN guarded g ON g.n = i.n
             ORDER BY i.n",
        )
        .persistent(reach.keeps_statements())
        .bind(each(ops, |op| op.fence.call_id.uuid()))
        .bind(each(ops, |op| op.target.as_str()))
        .bind(each(ops, |op| i32::try_from(op.fence.attempt).unwrap_or(i32::MAX)))
        .bind(each(ops, |op| op.fence.worker_id.uuid()))
        .bind(each(ops, |op| signed(op.fence.after_seq)))
        .bind(each(ops, |op| signed(op.events.len() as u64)))
        .bind(each(ops, |op| op.started))
        .bind(each(ops, |op| op.end.as_ref().map(|end| end.status)))
        .bind(each(ops, |op| op.end.as_ref().and_then(|end| end.result.as_deref())))
        .bind(each(ops, |op| op.end.as_ref().and_then(|end| end.error.as_deref())))
        .bind(each(ops, |op| op.end.as_ref().map(|end| end.ended.as_str())))
        .bind(each(ops, |op| op.end.as_ref().map(|end| end.usage.as_str())))
        .bind(each(ops, |op| op.end.as_ref().map(|end| end.reason.as_str())))
        .bind(pieces.n)
        .bind(pieces.place)
        .bind(pieces.kind)
        .bind(pieces.data)
        .bind(pieces.log_offset)
        .bind(pieces.stream)
        .bind(pieces.stream_offset)
        .bind(pieces.bytes)
        // Bounds of the batch, so that the partitions of other days are left out before the statement starts.
        .bind(ids().min().unwrap_or_default())
        .bind(ids().max().unwrap_or_default()),
    );
    let rows = rows.await?;
    let mut outcomes = Vec::with_capacity(ops.len());
    for (row, op) in rows.iter().zip(ops) {
        outcomes.push(match written(row)? {
            Some(written) => written,
            None => refused(connection, reach, op).await?,
        });
    }
    Ok(outcomes)
}

fn written(row: &PgRow) -> Result<Option<Written>, sqlx::Error> {
    if !row.try_get::<bool, _>("written")? {
        return Ok(None);
    }
    Ok(Some(Written::Now {
        at: row.try_get("at")?,
        session: SessionId::from_uuid(row.try_get("session_id")?),
    }))
}

/// Why a guard let nothing through. Asked only then, as it is rare and looks at every partition.
///
/// The same batch may come twice: from this writer after an answer was lost, or from a caller who was told that the
/// database does not answer. It is recognised by where it ends and by what its last event is.
async fn refused(connection: &mut PgConnection, reach: Reach, op: &WriteOp) -> Result<Written, sqlx::Error> {
    let last = op.events.last();
    let found = connection
        .fetch_optional(
            sqlx::query(
                "SELECT c.session_id, c.last_seq = $5 AND e.type = $6 AND e.log_offset IS NOT DISTINCT FROM $7
                         AND ($8::text IS NULL OR c.status = $8) AS there,
                     c.last_seq = $4 AND c.ended_at IS NULL AS open,
                     EXISTS (SELECT FROM workers w WHERE w.id = $3 AND w.lease_expires_at > clock_timestamp()) AS alive,
                     coalesce(e.at, statement_timestamp()) AS at
                 FROM calls c LEFT JOIN call_events e ON e.call_id = c.id AND e.seq = $5
                 WHERE c.id = $1 AND c.attempt = $2 AND c.worker_id = $3",
            )
            .persistent(reach.keeps_statements())
            .bind(op.fence.call_id.uuid())
            .bind(i32::try_from(op.fence.attempt).unwrap_or(i32::MAX))
            .bind(op.fence.worker_id.uuid())
            .bind(signed(op.fence.after_seq))
            .bind(signed(op.fence.after_seq + op.events.len() as u64))
            .bind(last.map(EventBody::kind))
            .bind(last.and_then(output).map(|piece| signed(piece.log_offset)))
            .bind(op.end.as_ref().map(|end| end.status)),
        )
        .await?;
    let Some(row) = found else {
        return Ok(Written::Stale);
    };
    let is = |column| Ok::<_, sqlx::Error>(row.try_get::<Option<bool>, _>(column)?.unwrap_or(false));
    if is("there")? {
        let session = SessionId::from_uuid(row.try_get("session_id")?);
        return Ok(Written::Before { at: row.try_get("at")?, session });
    }
    Ok(if is("open")? && !is("alive")? { Written::Lapsed } else { Written::Stale })
}

fn each<'a, T>(ops: &[&'a WriteOp], field: impl Fn(&'a WriteOp) -> T) -> Vec<T> {
    ops.iter().map(|op| field(op)).collect()
}

/// The output that an event carries.
pub(crate) fn output(event: &EventBody) -> Option<&domain::event::OutputPiece> {
    match event {
        EventBody::Output(piece) => Some(piece),
        EventBody::Queued { .. }
        | EventBody::Started { .. }
        | EventBody::Progress { .. }
        | EventBody::ShellStarted { .. }
        | EventBody::ArtifactCreated { .. }
        | EventBody::Ended { .. } => None,
    }
}

/// Columns of all events of a batch.
#[derive(Default)]
struct Pieces<'a> {
    n: Vec<i64>,
    place: Vec<i64>,
    kind: Vec<&'static str>,
    data: Vec<Option<&'a str>>,
    log_offset: Vec<Option<i64>>,
    stream: Vec<Option<i16>>,
    stream_offset: Vec<Option<i64>>,
    bytes: Vec<Option<&'a [u8]>>,
}

impl<'a> Pieces<'a> {
    fn of(ops: &[&'a WriteOp]) -> Self {
        let mut pieces = Self::default();
        for (n, op) in (1..).zip(ops) {
            for ((place, event), data) in (1..).zip(&op.events).zip(&op.data) {
                let output = output(event);
                pieces.n.push(n);
                pieces.place.push(place);
                pieces.kind.push(event.kind());
                pieces.data.push(data.as_deref());
                pieces.log_offset.push(output.map(|piece| signed(piece.log_offset)));
                pieces.stream.push(output.map(|piece| piece.stream.number()));
                pieces.stream_offset.push(output.map(|piece| signed(piece.offset)));
                pieces.bytes.push(output.map(|piece| piece.bytes.as_slice()));
            }
        }
        pieces
    }
}
