//! The event log: numbered facts of a call, written under its fence, read by anyone of its tenant.
//!
//! # Design notes
//!
//! * The guard of every write is the statement that numbers the events: one UPDATE of the call's row, which fails
//!   when attempt, worker, last number or state differ, feeds the INSERT. A predicate on the INSERT alone let a
//!   zombie write.
//! * The guard includes the number of the last event that the holder knows. So two batches of one call cannot be in
//!   flight at once, and a batch whose COMMIT lost its answer can be sent again: either it is there already, or it
//!   is written now.

use chrono::{DateTime, Utc};
use domain::call::Outcome;
use domain::{Call, CallId, Event, EventBody, TenantContext, WorkerId};

use crate::{Result, Store};

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

impl Store {
    /// Writes events of a running call; bytes of output go to the log in the same statement. Shares its commit with
    /// other calls. Afterwards the events are on the bus. At most one batch of a call may be in flight.
    /// [`crate::StoreError::Stale`] when the holder was superseded.
    pub async fn append_events(
        &self,
        fence: &Fence,
        announce: Announce,
        events: Vec<EventBody>,
    ) -> Result<Appended> {
        todo!()
    }

    /// Ends a call: its remaining events, `call.started` if it was not announced, its result, `call.ended` and the
    /// audit row in one commit. The returned call is as it ended. Never fails by content: text that cannot be
    /// stored is replaced by U+FFFD.
    pub async fn finish_call(
        &self,
        fence: &Fence,
        announce: Announce,
        events: Vec<EventBody>,
        outcome: Outcome,
    ) -> Result<Appended> {
        todo!()
    }

    /// Ends a call that no worker has (its session's image is missing, say). [`crate::StoreError::Conflict`] when it does not wait
    /// any more.
    pub async fn finish_queued_call(&self, call_id: CallId, outcome: Outcome) -> Result<()> {
        todo!()
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
        todo!()
    }
}
