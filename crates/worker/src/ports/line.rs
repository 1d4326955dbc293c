//! Calls in line: those that may not run in a named shell or a context, or write to a shell, before earlier ones have ended.
//!
//! # Design notes
//!
//! *In line without a slot.* What runs in the shell may need another call to go on (one that writes to the pipe it reads, say), and with
//! all slots of the session in the line that one would never start. The slot is given back for the wait, and waited for again
//! before the turn begins.
//!
//! *So many of a session, and not more* ([`domain::limits::IN_LINE_PER_SESSION`]): each is a running call to the sweeps and to a takeover, and looks
//! at the database. A further one is refused: with a slot it could keep the one that it waits for from going on.
//!
//! *The clock starts with the turn*, as it does for a call that is queued: how long the others take is not this call's doing. The row says that it
//! stands in line, and since when its turn is, so that a worker after this one counts from there.
//!
//! *Whoever has an earlier call before it has not begun*, in this worker and in any before, because nobody begins before all earlier ones have ended. So a
//! call that was taken over may be cancelled here as any other, and nothing of it is left running. But *packages* of a call in a context are installed
//! before it stands in line, as that would hold the line up for minutes: such a call has begun, so it is lost with its sandbox even while it waits.

use std::time::Duration;

use domain::limits::{IN_LINE_PER_SESSION, POLL_MS};
use domain::{CallId, Code};
use store::CallWatch;
use tokio::time::timeout;
use tools::ToolError;

use super::CallPorts;
use super::waits::no_longer_the_same;

/// The call before, and what is heard of it.
#[derive(Default)]
pub(super) struct Line(Option<(CallId, CallWatch)>);

impl CallPorts {
    /// Waits until the earlier call may have ended. The first time for each it returns at once, listening, so that an end between is not missed.
    pub(super) async fn behind(&self, line: &mut Line, earlier: CallId) -> Result<(), ToolError> {
        let facts = &self.facts;
        if !facts.place.is_in_line() {
            if !facts.place.stand_in_line(&facts.session) {
                let message = format!("{IN_LINE_PER_SESSION} calls of the session wait in line already.");
                return Err(ToolError::new(Code::QueueFull, message).hint(
                    "Wait for earlier calls to end before you submit more, or use another shell or context.",
                ));
            }
            facts.clock.stop();
            let fence = facts.log.fence();
            let stands = facts.tenure.write(|| facts.tenure.store().stand_in_line(&fence)).await;
            stands.map_err(|unwritten| self.unwritten(unwritten))?;
        }
        let watch = match &mut line.0 {
            Some((call, watch)) if *call == earlier => watch,
            other => {
                *other = Some((earlier, facts.tenure.store().bus().subscribe_call(earlier)));
                return Ok(());
            }
        };
        tokio::select! {
            () = facts.running.cancel.cancelled() => Err(self.ended_before()),
            _ = timeout(Duration::from_millis(POLL_MS), no_longer_the_same(watch)) => Ok(()),
        }
    }

    /// A slot again, for a call that stood in line, here or under a worker before.
    pub(super) async fn at_the_front(&self) -> Result<(), ToolError> {
        let facts = &self.facts;
        if facts.place.is_in_line() {
            let slot = tokio::select! {
                () = facts.running.cancel.cancelled() => return Err(self.ended_before()),
                slot = facts.tenure.board.slot_again(facts.call.tenant_id, facts.call.session_id) => slot,
            };
            facts.place.take(slot);
        } else if !facts.call.in_line || facts.clock.turn().is_some() {
            return Ok(());
        }
        facts.clock.begin_turn();
        let fence = facts.log.fence();
        let begun = facts.tenure.write(|| facts.tenure.store().begin_turn(&fence)).await;
        begun.map_err(|unwritten| self.unwritten(unwritten))
    }
}
