//! The event log: numbered facts of a call, written under its fence, read by anyone of its tenant.
//!
//! # Design notes
//!
//! * The guard of every write is the statement that numbers the events: one UPDATE of the call's row, which fails
//!   when attempt, worker, last number or state differ, feeds the INSERT. A predicate on the INSERT alone let a
//!   zombie write.
//! * The guard includes the number of the last event that the holder knows. So two batches of one call cannot be in
//!   flight at once, and a batch whose COMMIT lost its answer can be sent again, by this room or by its caller: either it
//!   is there already, or it is written now.

use chrono::{DateTime, Utc};
use domain::call::Outcome;
use domain::event::OutputPiece;
use domain::{Call, CallId, Event, EventBody, StreamName, TenantContext, WorkerId};
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::calls::{optional, status};
use crate::db::{read, signed, unknown_word, unsigned};
use crate::ending::{EndedCall, record_ends};
use crate::event_batch::{EndOp, WriteOp};
use crate::json::{clean, sanitised};
use crate::{Result, Store, StoreError};

/// The right of a worker to write for one attempt of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence {
    /// The call.
    pub call_id: CallId,
    /// The attempt that the holder runs.
    pub attempt: u32,
    /// The holder.
    pub worker_id: WorkerId,
    /// Number of the last event that the holder knows; the next batch goes directly after it. Take it from
    /// [`Appended::last_seq`] after each write.
    pub after_seq: u64,
}

impl Fence {
    /// The fence of a call that a worker has just been given; `None` when it has no worker.
    #[must_use]
    pub fn of(call: &Call) -> Option<Self> {
        call.worker_id.map(|worker_id| Self {
            call_id: call.id,
            attempt: call.attempt,
            worker_id,
            after_seq: call.last_seq,
        })
    }
}

/// Whether a batch is the first of its attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announce {
    /// It is: `call.started {attempt}` goes before its events, and the call becomes `running`.
    Started,
    /// It is not, or the attempt never started.
    Nothing,
}

/// Events that are durable now.
#[derive(Debug, Clone)]
pub struct Appended {
    /// Number of the first; `call.started` included.
    pub first_seq: u64,
    /// Number of the last.
    pub last_seq: u64,
    /// Their time.
    pub at: DateTime<Utc>,
}

/// A part of a call's events.
#[derive(Debug, Clone)]
pub struct EventPage {
    /// In order, directly after the number asked for.
    pub events: Vec<Event>,
    /// Number of the call's last event so far.
    pub last_seq: u64,
    /// The call has ended: there is nothing after `last_seq`.
    pub ended: bool,
    /// Events up to and including this number are gone (410); `events` is then empty.
    pub pruned_before: Option<u64>,
}

const APPEND: &str = "append events";
const FINISH: &str = "finish call";
const READ: &str = "read events";

impl Store {
    /// Writes events of a running call; bytes of output go to the log in the same statement. Shares its commit with
    /// other calls. Afterwards the events are on the bus. At most one batch of a call may be in flight.
    /// [`crate::StoreError::Stale`] when the holder was superseded; [`crate::StoreError::Unavailable`] also when its
    /// lease is over but nobody took the call (renew, then try again). After that error the same batch may be written again
    /// with the same fence, and is there once.
    pub async fn append_events(
        &self,
        fence: &Fence,
        announce: Announce,
        events: Vec<EventBody>,
    ) -> Result<Appended> {
        if events.is_empty() && announce == Announce::Nothing {
            let (first_seq, last_seq) = (fence.after_seq + 1, fence.after_seq);
            return Ok(Appended { first_seq, last_seq, at: self.clock().now() });
        }
        self.writer().write(prepare(APPEND, fence, announce, events, None)?).await
    }

    /// Ends a call: its remaining events, `call.started` if it was not announced, its result, `call.ended` and the
    /// audit row in one commit. Never fails by content: text that cannot be stored is replaced by U+FFFD. May be tried again
    /// like [`Store::append_events`].
    pub async fn finish_call(
        &self,
        fence: &Fence,
        announce: Announce,
        events: Vec<EventBody>,
        outcome: Outcome,
    ) -> Result<Appended> {
        self.writer().write(prepare(FINISH, fence, announce, events, Some(outcome))?).await
    }

    /// Ends a call that no worker has (its session's image is missing, say). [`crate::StoreError::Conflict`] when it does not wait
    /// any more.
    pub async fn finish_queued_call(&self, call_id: CallId, outcome: Outcome) -> Result<()> {
        const OPERATION: &str = "finish queued call";
        let (end, _) = end_of(OPERATION, outcome)?;
        let mut conn = self.db().system_transaction(OPERATION).await?;
        let rows = conn
            .all(
                sqlx::query(
                    "WITH ended AS (
                         UPDATE calls c SET status = $2, result = $3::text::jsonb, error = $4::text::jsonb, ended = $5::text::jsonb,
                             usage = $6::text::jsonb, ended_at = statement_timestamp(), last_seq = c.last_seq + 1
                         WHERE c.id = $1 AND c.status = 'queued' RETURNING c.id, c.tenant_id, c.last_seq, c.status
                     ), told AS (
                         INSERT INTO call_events (call_id, seq, tenant_id, type, at)
                         SELECT id, last_seq, tenant_id, 'call.ended', statement_timestamp() FROM ended
                     )
                     SELECT id, tenant_id, status FROM ended",
                )
                .bind(call_id.uuid())
                .bind(end.status)
                .bind(end.result)
                .bind(end.error)
                .bind(end.ended)
                .bind(end.usage),
            )
            .await?;
        let ended = read(OPERATION, &rows, EndedCall::from_row)?;
        record_ends(&mut conn, OPERATION, &ended, "platform").await?;
        conn.end().await?;
        if ended.is_empty() {
            return Err(StoreError::Conflict {
                operation: OPERATION,
                message: "the call does not wait any more",
            });
        }
        self.bus().call_changed(call_id);
        Ok(())
    }

    /// Events after a number, at most so many and about so many bytes of output (one event is returned even when larger).
    pub async fn events(
        &self,
        context: &TenantContext,
        call_id: CallId,
        after_seq: u64,
        max_events: u32,
        max_bytes: u64,
    ) -> Result<EventPage> {
        let mut conn = self.db().tenant(READ, context).await?;
        let rows = conn
            .all(
                sqlx::query(
                    "SELECT c.last_seq, c.ended_at IS NOT NULL AS over, p.*,
                         CASE WHEN p.type = 'call.ended' THEN c.status END AS status,
                         CASE WHEN p.type = 'call.ended' THEN c.result END AS result,
                         CASE WHEN p.type = 'call.ended' THEN c.error END AS error,
                         CASE WHEN p.type = 'call.ended' THEN c.ended END AS ended,
                         CASE WHEN p.type = 'call.ended' THEN c.usage END AS usage
                     FROM calls c LEFT JOIN LATERAL (
                         SELECT e.seq, e.type, e.at, e.data, e.log_offset, o.stream, o.stream_offset, o.bytes,
                             sum(coalesce(octet_length(o.bytes), 0)) OVER (ORDER BY e.seq)
                                 - coalesce(octet_length(o.bytes), 0) AS bytes_before
                         FROM (SELECT * FROM call_events v WHERE v.call_id = $2 AND v.seq > $3 ORDER BY v.seq LIMIT $4) e
                         LEFT JOIN output_chunks o ON o.owner = e.owner AND o.log_offset = e.log_offset
                     ) p ON p.bytes_before < $5
                     WHERE c.tenant_id = $1 AND c.id = $2 ORDER BY p.seq",
                )
                .bind(context.tenant_id().uuid())
                .bind(call_id.uuid())
                .bind(signed(after_seq))
                .bind(i64::from(max_events.max(1)))
                .bind(signed(max_bytes.max(1))),
            )
            .await?;
        conn.end().await?;
        page(call_id, after_seq, &rows)
    }
}

/// A page from its rows: one for each event, or one without an event.
fn page(call_id: CallId, after_seq: u64, rows: &[PgRow]) -> Result<EventPage> {
    let Some(call) = rows.first() else {
        return Err(StoreError::NotFound { operation: READ });
    };
    let facts = read(READ, std::slice::from_ref(call), |row| {
        Ok((
            unsigned(row.try_get("last_seq")?),
            row.try_get::<bool, _>("over")?,
            row.try_get::<Option<i64>, _>("seq")?,
        ))
    })?;
    let (last_seq, ended, first) = facts.into_iter().next().unwrap_or((0, false, None));
    let pruned = EventPage { events: Vec::new(), last_seq, ended, pruned_before: Some(last_seq) };
    match first {
        // The row says that there are events, and none is there: their day was dropped.
        None if last_seq > after_seq => return Ok(pruned),
        None => return Ok(EventPage { events: Vec::new(), last_seq, ended, pruned_before: None }),
        Some(_) => {}
    }
    let events = read(READ, rows, |row| event(call_id, row))?;
    match events.into_iter().collect::<Option<Vec<_>>>() {
        Some(events) => Ok(EventPage { events, last_seq, ended, pruned_before: None }),
        None => Ok(pruned),
    }
}

/// One event; `None` when its output is gone.
fn event(call_id: CallId, row: &PgRow) -> Result<Option<Event>, sqlx::Error> {
    let body = match row.try_get::<&str, _>("type")? {
        "call.output" => match row.try_get::<Option<Vec<u8>>, _>("bytes")? {
            Some(bytes) => EventBody::Output(piece(row, bytes)?),
            None => return Ok(None),
        },
        "call.ended" => EventBody::Ended {
            status: status(row)?,
            result: optional(row, "result")?,
            error: optional(row, "error")?,
            ended: optional(row, "ended")?.ok_or_else(|| unknown_word("calls.ended"))?,
            usage: optional(row, "usage")?.unwrap_or_default(),
        },
        kind => {
            let mut fields = match row.try_get::<Option<Value>, _>("data")? {
                Some(Value::Object(fields)) => fields,
                _ => serde_json::Map::new(),
            };
            fields.insert("type".to_owned(), kind.into());
            serde_json::from_value(Value::Object(fields))
                .map_err(|error| sqlx::Error::Decode(Box::new(error)))?
        }
    };
    Ok(Some(Event { call_id, seq: unsigned(row.try_get("seq")?), at: row.try_get("at")?, body }))
}

/// A piece of output from the columns of its chunk.
fn piece(row: &PgRow, bytes: Vec<u8>) -> Result<OutputPiece, sqlx::Error> {
    Ok(OutputPiece {
        log_offset: unsigned(row.try_get("log_offset")?),
        stream: StreamName::from_number(row.try_get("stream")?)
            .ok_or_else(|| unknown_word("output_chunks.stream"))?,
        offset: unsigned(row.try_get("stream_offset")?),
        bytes,
    })
}

/// Turns events into what the statement takes. What is published later is what is stored now: text that cannot be
/// stored is replaced here, before both.
fn prepare(
    operation: &'static str,
    fence: &Fence,
    announce: Announce,
    events: Vec<EventBody>,
    outcome: Option<Outcome>,
) -> Result<WriteOp> {
    let started = (announce == Announce::Started).then_some(EventBody::Started { attempt: fence.attempt });
    let mut bodies = Vec::with_capacity(events.len() + 2);
    let mut data = Vec::with_capacity(events.len() + 2);
    for body in started.into_iter().chain(events) {
        if matches!(body, EventBody::Output(_)) {
            bodies.push(body);
            data.push(None);
        } else {
            let (body, text) = clean(operation, body)?;
            bodies.push(body);
            data.push(Some(text));
        }
    }
    let mut end = None;
    if let Some(outcome) = outcome {
        let (op, body) = end_of(operation, outcome)?;
        bodies.push(body);
        data.push(None);
        end = Some(op);
    }
    Ok(WriteOp {
        fence: *fence,
        target: fence.call_id.to_string(),
        started: announce == Announce::Started,
        events: bodies,
        data,
        end,
    })
}

fn end_of(operation: &'static str, outcome: Outcome) -> Result<(EndOp, EventBody)> {
    if !outcome.status.is_terminal() {
        let source = format!("{:?} ends no call", outcome.status).into();
        return Err(StoreError::Internal { operation, source });
    }
    let result = outcome.result.map(|result| clean(operation, result)).transpose()?;
    let error = outcome.error.map(|error| clean(operation, error)).transpose()?;
    let (ended, ended_text) = clean(operation, outcome.ended)?;
    let (result, result_text) = result.unzip();
    let (error, error_text) = error.unzip();
    let reason = serde_json::to_value(ended.reason).ok().and_then(|word| word.as_str().map(str::to_owned));
    let op = EndOp {
        status: outcome.status.as_str(),
        result: result_text,
        error: error_text,
        ended: ended_text,
        usage: sanitised(operation, &outcome.usage)?,
        reason: reason.unwrap_or_default(),
    };
    Ok((op, EventBody::Ended { status: outcome.status, result, error, ended, usage: outcome.usage }))
}
