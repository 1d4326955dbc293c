//! The statement that writes events, output and end of one call: what [`crate::event_batch`] does, without what only
//! several calls need. The guard is the same, and so is what it lets through.

use domain::SessionId;
use domain::event::OutputPiece;
use sqlx::postgres::PgConnection;
use sqlx::{Executor, Row};

use crate::db::signed;
use crate::event_batch::{WriteOp, Written, output};
use crate::reach::Reach;

const WRITE_ONE: &str = "WITH guarded AS (
         UPDATE calls c SET last_seq = c.last_seq + $6::bigint,
             status = coalesce($8::text, CASE WHEN $7::boolean THEN 'running' ELSE c.status END),
             started_at = CASE WHEN $7 THEN coalesce(c.started_at, statement_timestamp()) ELSE c.started_at END,
             ended_at = CASE WHEN $8 IS NOT NULL THEN statement_timestamp() END,
             result = $9::text::jsonb, error = $10::text::jsonb, ended = $11::text::jsonb, usage = $12::text::jsonb
         WHERE c.id = $1::uuid AND c.attempt = $3::integer AND c.worker_id = $4::uuid AND c.last_seq = $5::bigint
           AND c.ended_at IS NULL
           AND EXISTS (SELECT FROM workers w WHERE w.id = $4 AND w.lease_expires_at > clock_timestamp())
         RETURNING c.tenant_id, c.session_id, c.output_owner
     ), told AS (
         INSERT INTO call_events (call_id, seq, tenant_id, type, at, data, owner, log_offset)
         SELECT $1, $5 + p.place, g.tenant_id, p.type, statement_timestamp(), p.data::jsonb,
             CASE WHEN p.log_offset IS NOT NULL THEN g.output_owner END, p.log_offset
         FROM guarded g, unnest($14::text[], $15::text[], $16::bigint[])
             WITH ORDINALITY AS p(type, data, log_offset, place)
     ), kept AS (
         INSERT INTO output_chunks (owner, log_offset, tenant_id, stream, stream_offset, bytes)
         SELECT g.output_owner, p.log_offset, g.tenant_id, p.stream, p.stream_offset, p.bytes
         FROM guarded g, unnest($17::bigint[], $18::smallint[], $19::bigint[], $20::bytea[])
             AS p(log_offset, stream, stream_offset, bytes)
     ), trail AS (
         INSERT INTO audit_log (tenant_id, principal, action, target, allowed, details)
         SELECT g.tenant_id, '{\"key_id\": null, \"name\": \"system\", \"address\": null}'::jsonb, t.action, $2::text, true, t.details
         FROM guarded g, (VALUES
             ($7, 'call.start', jsonb_build_object('attempt', $3)),
             ($8 IS NOT NULL, 'call.end', jsonb_build_object('status', $8, 'reason', $13::text))) AS t(told, action, details)
         WHERE t.told
     )
     SELECT session_id, statement_timestamp() AS at FROM guarded";

/// Writes one call's events; `None` when the guard let nothing through.
pub(crate) async fn write_one(
    connection: &mut PgConnection,
    reach: Reach,
    op: &WriteOp,
) -> Result<Option<Written>, sqlx::Error> {
    let end = op.end.as_ref();
    let pieces: Vec<&OutputPiece> = op.events.iter().filter_map(output).collect();
    let row = connection.fetch_optional(
        sqlx::query(WRITE_ONE)
            .persistent(reach.keeps_statements())
            .bind(op.fence.call_id.uuid())
            .bind(op.target.as_str())
            .bind(i32::try_from(op.fence.attempt).unwrap_or(i32::MAX))
            .bind(op.fence.worker_id.uuid())
            .bind(signed(op.fence.after_seq))
            .bind(signed(op.events.len() as u64))
            .bind(op.started)
            .bind(end.map(|end| end.status))
            .bind(end.and_then(|end| end.result.as_deref()))
            .bind(end.and_then(|end| end.error.as_deref()))
            .bind(end.map(|end| end.ended.as_str()))
            .bind(end.map(|end| end.usage.as_str()))
            .bind(end.map(|end| end.reason.as_str()))
            .bind(op.events.iter().map(|event| event.kind()).collect::<Vec<_>>())
            .bind(op.data.iter().map(Option::as_deref).collect::<Vec<_>>())
            .bind(
                op.events
                    .iter()
                    .map(|event| output(event).map(|piece| signed(piece.log_offset)))
                    .collect::<Vec<_>>(),
            )
            .bind(pieces.iter().map(|piece| signed(piece.log_offset)).collect::<Vec<_>>())
            .bind(pieces.iter().map(|piece| piece.stream.number()).collect::<Vec<_>>())
            .bind(pieces.iter().map(|piece| signed(piece.offset)).collect::<Vec<_>>())
            .bind(pieces.iter().map(|piece| piece.bytes.as_slice()).collect::<Vec<_>>()),
    );
    row.await?
        .map(|row| {
            let session = SessionId::from_uuid(row.try_get("session_id")?);
            Ok(Written::Now { at: row.try_get("at")?, session })
        })
        .transpose()
}
