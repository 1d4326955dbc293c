//! The log of output: bytes by owner and offset, shared by calls and shells.

use std::ops::Range;

use domain::event::OutputPiece;
use domain::{CallId, ShellId, StreamName, TenantContext};
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::db::{Conn, read, signed, unknown_word, unsigned};
use crate::error::translate;
use crate::{Result, Store, StoreError};

/// Whose log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OutputOwner {
    /// A call's.
    Call(CallId),
    /// A shell's.
    Shell(ShellId),
}

/// Bytes of one stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutputRange {
    /// Pieces in order: offset in the stream, and bytes. Offsets between them were dropped from the middle.
    pub pieces: Vec<(u64, Vec<u8>)>,
    /// Bytes that the stream has, dropped ones included.
    pub total_bytes: u64,
    /// Bytes within the range asked for that were dropped.
    pub dropped_bytes: u64,
    /// The log itself is no longer kept (410).
    pub pruned: bool,
}

/// How far a log is durable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DurableOutput {
    /// Bytes of both streams together, dropped ones included: the offset to go on from.
    pub log_offset: u64,
    /// Bytes of stdout.
    pub stdout_offset: u64,
    /// Bytes of stderr.
    pub stderr_offset: u64,
    /// Bytes that were dropped.
    pub dropped_bytes: u64,
}

impl Store {
    /// Bytes `from..to` of one stream of a call or a shell of the tenant.
    pub async fn output_range(
        &self,
        context: &TenantContext,
        owner: OutputOwner,
        stream: StreamName,
        from: u64,
        to: u64,
    ) -> Result<OutputRange> {
        const OPERATION: &str = "read output";
        let mut conn = self.db().tenant(OPERATION, context).await?;
        let log = log_of(&mut conn, OPERATION, context, owner).await?;
        let end = conn
            .optional(
                sqlx::query(
                    "SELECT stream_offset + octet_length(bytes) AS total FROM output_chunks
                     WHERE owner = $1 AND stream = $2 ORDER BY stream_offset DESC LIMIT 1",
                )
                .bind(log)
                .bind(stream.number()),
            )
            .await?;
        // The chunk that `from` lies in begins at or before it; a chunk is never longer than an event.
        let rows = conn
            .all(
                sqlx::query(
                    "SELECT stream_offset, bytes FROM output_chunks
                     WHERE owner = $1 AND stream = $2 AND stream_offset < $4 AND stream_offset > $3 - $5
                       AND stream_offset + octet_length(bytes) > $3
                     ORDER BY stream_offset",
                )
                .bind(log)
                .bind(stream.number())
                .bind(signed(from))
                .bind(signed(to))
                .bind(CHUNK_BYTES),
            )
            .await?;
        let pruned = end.is_none() && is_pruned(&mut conn, OPERATION, log, owner).await?;
        conn.end().await?;
        let total = end.map(|row| row.try_get::<i64, _>("total")).transpose();
        let total_bytes = total.map_err(|error| translate(OPERATION, error))?.map_or(0, unsigned);
        let chunks = read(OPERATION, &rows, |row| {
            Ok((unsigned(row.try_get("stream_offset")?), row.try_get::<Vec<u8>, _>("bytes")?))
        })?;
        let pieces: Vec<_> = chunks.into_iter().map(|(offset, bytes)| cut(offset, bytes, from, to)).collect();
        let kept: u64 = pieces.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        let dropped_bytes = to.min(total_bytes).saturating_sub(from).saturating_sub(kept);
        Ok(OutputRange { pieces, total_bytes, dropped_bytes, pruned })
    }

    /// Pieces of both streams from an offset of the log on, at most about so many bytes.
    pub async fn output_pieces(
        &self,
        context: &TenantContext,
        owner: OutputOwner,
        since_offset: u64,
        max_bytes: u64,
    ) -> Result<Vec<OutputPiece>> {
        const OPERATION: &str = "read log";
        let mut conn = self.db().tenant(OPERATION, context).await?;
        let log = log_of(&mut conn, OPERATION, context, owner).await?;
        let rows = conn
            .all(
                sqlx::query(
                    "SELECT log_offset, stream, stream_offset, bytes FROM (
                         SELECT *, sum(octet_length(bytes)) OVER (ORDER BY log_offset) - octet_length(bytes) AS before
                         FROM output_chunks
                         WHERE owner = $1 AND log_offset > $2 - $4 AND log_offset + octet_length(bytes) > $2
                     ) AS c WHERE c.before < $3 ORDER BY log_offset LIMIT 10000",
                )
                .bind(log)
                .bind(signed(since_offset))
                .bind(signed(max_bytes.max(1)))
                .bind(CHUNK_BYTES),
            )
            .await?;
        conn.end().await?;
        let mut pieces = read(OPERATION, &rows, piece)?;
        if let Some(first) = pieces.first_mut() {
            let skip = since_offset.saturating_sub(first.log_offset);
            first.bytes.drain(..usize::try_from(skip).unwrap_or(usize::MAX).min(first.bytes.len()));
            first.log_offset += skip;
            first.offset += skip;
        }
        Ok(pieces)
    }

    /// How far a log is durable, for a worker that goes on with it.
    pub async fn durable_output(&self, owner: OutputOwner) -> Result<DurableOutput> {
        const OPERATION: &str = "read durable output";
        let mut conn = self.db().system(OPERATION).await?;
        let row = conn
            .one(
                sqlx::query(
                    "SELECT coalesce(max(log_offset + octet_length(bytes)), 0) AS log_offset,
                         coalesce(max(stream_offset + octet_length(bytes)) FILTER (WHERE stream = 1), 0) AS stdout_offset,
                         coalesce(max(stream_offset + octet_length(bytes)) FILTER (WHERE stream = 2), 0) AS stderr_offset,
                         coalesce(sum(octet_length(bytes)), 0)::bigint AS kept
                     FROM output_chunks WHERE owner = coalesce(
                         (SELECT output_owner FROM calls WHERE id = $1), (SELECT output_owner FROM shells WHERE id = $1), $1)",
                )
                .bind(owner.uuid()),
            )
            .await?;
        conn.end().await?;
        durable(&row).map_err(|error| translate(OPERATION, error))
    }

    /// The first and the last bytes of a part of a stream (offsets in it), at most so many each, for a worker that
    /// goes on with it. The two do not overlap.
    pub async fn output_head_tail(
        &self,
        owner: OutputOwner,
        stream: StreamName,
        within: Range<u64>,
        max_bytes: u64,
    ) -> Result<(Vec<u8>, Vec<u8>)> {
        const OPERATION: &str = "read head and tail";
        let mut conn = self.db().system(OPERATION).await?;
        let rows = conn
            .all(
                sqlx::query(
                    "SELECT stream_offset, bytes FROM (
                         SELECT stream_offset, bytes,
                             sum(octet_length(bytes)) OVER (ORDER BY stream_offset) - octet_length(bytes) AS before,
                             sum(octet_length(bytes)) OVER (ORDER BY stream_offset DESC) - octet_length(bytes) AS after
                         FROM output_chunks
                         WHERE stream = $2 AND owner = coalesce(
                             (SELECT output_owner FROM calls WHERE id = $1), (SELECT output_owner FROM shells WHERE id = $1), $1)
                           AND stream_offset < $5 AND stream_offset + octet_length(bytes) > $4
                     ) AS c WHERE c.before < $3 OR c.after < $3 ORDER BY stream_offset",
                )
                .bind(owner.uuid())
                .bind(stream.number())
                .bind(signed(max_bytes))
                .bind(signed(within.start))
                .bind(signed(within.end)),
            )
            .await?;
        conn.end().await?;
        let chunks = read(OPERATION, &rows, |row| {
            Ok((unsigned(row.try_get("stream_offset")?), row.try_get::<Vec<u8>, _>("bytes")?))
        })?;
        let chunks = chunks.into_iter().map(|(offset, bytes)| cut(offset, bytes, within.start, within.end));
        Ok(head_and_tail(within.start, chunks, usize::try_from(max_bytes).unwrap_or(usize::MAX)))
    }
}

/// Longest chunk: an output event's bytes.
const CHUNK_BYTES: i64 = domain::limits::OUTPUT_EVENT_BYTES as i64;

impl OutputOwner {
    fn uuid(self) -> Uuid {
        match self {
            Self::Call(id) => id.uuid(),
            Self::Shell(id) => id.uuid(),
        }
    }
}

/// Under whose id the log of a call or a shell of the tenant is kept.
async fn log_of(
    conn: &mut Conn,
    operation: &'static str,
    context: &TenantContext,
    owner: OutputOwner,
) -> Result<Uuid> {
    let statement = match owner {
        OutputOwner::Call(_) => {
            sqlx::query("SELECT output_owner FROM calls WHERE tenant_id = $1 AND id = $2")
        }
        OutputOwner::Shell(_) => {
            sqlx::query("SELECT output_owner FROM shells WHERE tenant_id = $1 AND id = $2")
        }
    };
    let row = conn.optional(statement.bind(context.tenant_id().uuid()).bind(owner.uuid())).await?;
    let row = row.ok_or(StoreError::NotFound { operation })?;
    row.try_get("output_owner").map_err(|error| translate(operation, error))
}

/// Whether a log of which nothing is there was kept once: its day is gone, or, where its tenant keeps less than others, its rows. The events
/// that tell of output go no earlier than it, and so do not know more.
async fn is_pruned(conn: &mut Conn, operation: &'static str, log: Uuid, owner: OutputOwner) -> Result<bool> {
    let Some(day) = domain::id::time_of(log) else { return Ok(false) };
    let row = conn
        .one(
            sqlx::query(
                "SELECT to_regclass('public.output_chunks_' || $1) IS NULL
                     OR (NOT EXISTS (SELECT FROM output_chunks WHERE owner = $2)
                         AND (EXISTS (SELECT FROM call_events WHERE call_id = $2 AND type = 'call.output')
                             OR EXISTS (SELECT FROM shells WHERE id = $3 AND next_offset > 0)
                             OR EXISTS (SELECT FROM calls WHERE id = $2 AND last_seq > 0
                                 AND NOT EXISTS (SELECT FROM call_events WHERE call_id = $2)))) AS pruned",
            )
            .bind(day.format("%Y%m%d").to_string())
            .bind(log)
            .bind(owner.uuid()),
        )
        .await?;
    row.try_get("pruned").map_err(|error| translate(operation, error))
}

/// The part of a chunk that lies in `from..to`.
fn cut(offset: u64, bytes: Vec<u8>, from: u64, to: u64) -> (u64, Vec<u8>) {
    let end = offset + bytes.len() as u64;
    let (first, last) = (offset.max(from), end.min(to));
    let index = |at: u64| usize::try_from(at - offset).unwrap_or(usize::MAX);
    (first, bytes[index(first)..index(last.max(first))].to_vec())
}

/// Head and tail of chunks in order, from an offset on; what lies between two chunks was dropped or not read.
fn head_and_tail(
    start: u64,
    chunks: impl IntoIterator<Item = (u64, Vec<u8>)>,
    max: usize,
) -> (Vec<u8>, Vec<u8>) {
    let (mut head, mut rest) = (Vec::new(), Vec::new());
    let mut expected = start;
    for (offset, bytes) in chunks {
        let gap = offset != expected;
        expected = offset + bytes.len() as u64;
        let room = if gap || !rest.is_empty() { 0 } else { max - head.len() };
        let (first, last) = bytes.split_at(room.min(bytes.len()));
        head.extend_from_slice(first);
        rest.extend_from_slice(last);
    }
    let surplus = rest.len().saturating_sub(max);
    (head, rest.split_off(surplus))
}

fn piece(row: &PgRow) -> Result<OutputPiece, sqlx::Error> {
    Ok(OutputPiece {
        log_offset: unsigned(row.try_get("log_offset")?),
        stream: StreamName::from_number(row.try_get("stream")?)
            .ok_or_else(|| unknown_word("output_chunks.stream"))?,
        offset: unsigned(row.try_get("stream_offset")?),
        bytes: row.try_get("bytes")?,
    })
}

fn durable(row: &PgRow) -> Result<DurableOutput, sqlx::Error> {
    let number = |column| row.try_get::<i64, _>(column).map(unsigned);
    let log_offset = number("log_offset")?;
    Ok(DurableOutput {
        log_offset,
        stdout_offset: number("stdout_offset")?,
        stderr_offset: number("stderr_offset")?,
        dropped_bytes: log_offset.saturating_sub(number("kept")?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_and_tail_never_overlap_and_stop_at_a_gap() {
        let chunks = vec![(0, b"abc".to_vec()), (3, b"def".to_vec())];
        assert_eq!(head_and_tail(0, chunks.clone(), 4), (b"abcd".to_vec(), b"ef".to_vec()));
        assert_eq!(head_and_tail(0, chunks, 100), (b"abcdef".to_vec(), Vec::new()));
        let gapped = vec![(0, b"abc".to_vec()), (9, b"xyz".to_vec())];
        assert_eq!(head_and_tail(0, gapped, 5), (b"abc".to_vec(), b"xyz".to_vec()));
    }

    #[test]
    fn a_cut_keeps_what_was_asked_for() {
        assert_eq!(cut(10, b"abcdef".to_vec(), 12, 14), (12, b"cd".to_vec()));
        assert_eq!(cut(10, b"abcdef".to_vec(), 0, 100), (10, b"abcdef".to_vec()));
    }
}
