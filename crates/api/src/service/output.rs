//! A call's output, byte by byte.

use bytes::{Bytes, BytesMut};
use domain::{CallId, StreamName, TenantContext};
use store::OutputOwner;

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

/// Bytes of both streams that were dropped from the middle. The call is the caller's own: that was asked before.
pub(crate) async fn dropped_bytes(state: &ApiState, call_id: CallId) -> Result<u64, Problem> {
    Ok(state.store.durable_output(OutputOwner::Call(call_id)).await?.dropped_bytes)
}

/// The first stretch of kept bytes at or behind `from`, before `to`. Empty when there is none.
pub(crate) async fn stretch(
    state: &ApiState,
    context: &TenantContext,
    call_id: CallId,
    stream: StreamName,
    from: u64,
    to: u64,
) -> Result<Stretch, Problem> {
    let owner = OutputOwner::Call(call_id);
    let range = state.store.output_range(context, owner, stream, from, to).await?;
    if range.pruned {
        return Err(events::pruned(call_id));
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
