//! The output of calls and shells, byte by byte.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use domain::{Call, Code, StreamName, TenantContext};
use store::OutputOwner;
use tokio::time::Instant;
use tools::heavy::{PIECE_BYTES, heavy};
use tools::output_search::{Found, Position, Query, Search};
use tools::port::Captured;

use super::events;
use crate::problem::Problem;
use crate::state::ApiState;

/// Bytes that follow each other without a gap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// Offset of the first; behind what was asked for when that part was dropped.
    pub(crate) from: u64,
    /// The bytes.
    pub(crate) bytes: Bytes,
    /// Bytes that the stream has, dropped ones included.
    pub(crate) total_bytes: u64,
}

/// Most bytes of one read.
pub(crate) const STRETCH_BYTES: u64 = 1024 * 1024;

/// Bytes of both streams that were dropped from the middle. The log is the caller's own: that was asked before.
pub(crate) async fn dropped_bytes(state: &ApiState, owner: OutputOwner) -> Result<u64, Problem> {
    Ok(state.store.durable_output(owner).await?.dropped_bytes)
}

/// The first stretch of kept bytes at or behind `from`, before `to`. Empty when there is none.
pub(crate) async fn stretch(
    state: &ApiState,
    context: &TenantContext,
    owner: OutputOwner,
    stream: StreamName,
    from: u64,
    to: u64,
) -> Result<Stretch, Problem> {
    let range = state.store.output_range(context, owner, stream, from, to).await?;
    if range.pruned {
        return Err(match owner {
            OutputOwner::Call(id) => events::pruned(id),
            OutputOwner::Shell(_) => {
                Problem::new(Code::EventsPruned, "The log of this shell is no longer kept.")
            }
        });
    }
    let mut bytes = BytesMut::new();
    let mut start = None;
    for (offset, piece) in range.pieces {
        let begin = *start.get_or_insert(offset);
        if offset != begin + bytes.len() as u64 {
            break;
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(Stretch {
        from: start.unwrap_or(to.min(range.total_bytes)),
        bytes: bytes.freeze(),
        total_bytes: range.total_bytes,
    })
}

/// Lines that were found in a stream.
pub(crate) struct FoundLines {
    pub(crate) found: Found,
    pub(crate) total_bytes: u64,
    pub(crate) ended: bool,
    /// Everything that there is has been looked at.
    pub(crate) at_end: bool,
}

/// Time that one search may take; what is left then is for the next request.
const SEARCH_TIME: Duration = Duration::from_secs(5);

/// Searches a stream from a position on, stretch by stretch.
pub(crate) async fn search(
    state: &ApiState,
    context: &TenantContext,
    call: &Call,
    stream: StreamName,
    query: Query,
    from: Position,
) -> Result<FoundLines, Problem> {
    let deadline = Instant::now() + SEARCH_TIME;
    // Asked before the log, so that the last line of a call that ends meanwhile is not taken for whole too early.
    let ended = call.status.is_terminal();
    let mut search = Search::new(query, from);
    let mut at = from.offset;
    let (total_bytes, at_end) = loop {
        let part =
            stretch(state, context, OutputOwner::Call(call.id), stream, at, at.saturating_add(STRETCH_BYTES))
                .await?;
        at = if part.bytes.is_empty() { at + STRETCH_BYTES } else { part.from };
        let is_over =
            |search: &Search| search.is_done() || Instant::now() >= deadline || state.shutdown.is_cancelled();
        for piece in part.bytes.chunks(PIECE_BYTES) {
            heavy(context.tenant_id(), || search.feed(at, piece)).await;
            at += piece.len() as u64;
            if is_over(&search) {
                break;
            }
        }
        let at_end = at >= part.total_bytes;
        if at_end || is_over(&search) {
            break (part.total_bytes, at_end && !search.is_done());
        }
    };
    Ok(FoundLines { found: search.finish(at_end && ended), total_bytes, ended, at_end })
}

/// What a call that has not ended has written so far, shaped for a model: within the call's budget, and at most so many bytes.
pub(crate) async fn so_far(
    state: &ApiState,
    context: &TenantContext,
    call: &Call,
    most: u64,
) -> Result<String, Problem> {
    let budget = call.output_budget_bytes.min(most);
    let mut streams = Vec::new();
    for stream in [StreamName::Stdout, StreamName::Stderr] {
        let total_bytes =
            stretch(state, context, OutputOwner::Call(call.id), stream, 0, 0).await?.total_bytes;
        let from = total_bytes.saturating_sub(budget.min(STRETCH_BYTES));
        let tail = stretch(state, context, OutputOwner::Call(call.id), stream, from, total_bytes).await?;
        streams.push(Captured { head: Vec::new(), tail: tail.bytes.to_vec(), total_bytes });
    }
    let (stdout, stderr) = (&streams[0], &streams[1]);
    Ok(tools::so_far(stdout, stderr, budget, call.id))
}
