//! Where a relay goes on with a log that another worker (or another run) has begun.

use std::ops::Range;

use domain::{StreamName, TenantId};
use store::OutputOwner;

use super::context_of;
use crate::relay::{Capture, Limits, Position, Relay, Resume};
use crate::tenure::{Tenure, Unwritten};

/// The stored end of an owner's log.
pub(crate) async fn stored_end(tenure: &Tenure, owner: OutputOwner) -> Result<Position, Unwritten> {
    let durable = tenure.write(|| tenure.store().durable_output(owner)).await?;
    Ok(Position { log: durable.log_offset, stdout: durable.stdout_offset, stderr: durable.stderr_offset })
}

/// A relay for an operation that the agent sends from an offset on, over what is stored already.
pub(crate) async fn resume_relay(
    tenure: &Tenure,
    tenant_id: TenantId,
    owner: OutputOwner,
    base: Position,
    sent_from: u64,
    limits: Limits,
) -> Result<Relay, Unwritten> {
    let stored = stored_end(tenure, owner).await?;
    let before_sent = position_at(tenure, tenant_id, owner, base.log + sent_from, stored).await?;
    Ok(Relay::resumed(base, limits, Resume { stored, sent_from, before_sent }))
}

/// How the streams stand at an offset of a stored log.
async fn position_at(
    tenure: &Tenure,
    tenant_id: TenantId,
    owner: OutputOwner,
    log: u64,
    stored: Position,
) -> Result<Position, Unwritten> {
    if log == 0 {
        return Ok(Position::default());
    }
    if log >= stored.log {
        return Ok(stored);
    }
    let context = context_of(tenant_id);
    let pieces = tenure.write(|| tenure.store().output_pieces(&context, owner, log, 1)).await?;
    let Some(piece) = pieces.first() else { return Ok(stored) };
    // The piece may begin before the offset when the store does not cut it, and after it when bytes were dropped.
    let own = piece.offset + log.saturating_sub(piece.log_offset);
    Ok(match piece.stream {
        StreamName::Stdout => Position { log, stdout: own, stderr: log.saturating_sub(own) },
        StreamName::Stderr => Position { log, stdout: log.saturating_sub(own), stderr: own },
    })
}

/// Captures of what is stored of both streams, from the one position (where an operation's output begins) to the other.
pub(crate) async fn resume_captures(
    tenure: &Tenure,
    owner: OutputOwner,
    from: Position,
    to: Position,
    budget: u64,
) -> Result<[Capture; 2], Unwritten> {
    let store = tenure.store();
    let (out, err) = (from.stdout..to.stdout, from.stderr..to.stderr);
    let read = async |stream, within: Range<u64>| {
        let (head, tail) =
            tenure.write(|| store.output_head_tail(owner, stream, within.clone(), budget)).await?;
        Ok(Capture::resumed(budget, &head, &tail, within.end.saturating_sub(within.start)))
    };
    Ok([read(StreamName::Stdout, out).await?, read(StreamName::Stderr, err).await?])
}
