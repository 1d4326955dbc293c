//! The events of one running call on their way to the store: gathered, written in order, one batch in flight.
//!
//! # Design notes
//!
//! *Two commits.* `call.started`, the output of a quick command and its end belong in one commit. So the first
//! output waits for [`FIRST_HOLD`] (time for the exit to follow it), later output for 5 ms or 64 KiB, and a call
//! that says nothing is announced after the same 5 ms. Whatever is not written when the tool returns goes with the result.
//!
//! *No task of its own.* The call's task drives the log beside the tool's run, so that a quick call costs no
//! hand-over between tasks.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use domain::limits::{OUTPUT_EVENT_BYTES, OUTPUT_GATHER_MS};
use domain::{EventBody, StreamName};
use store::{Announce, Fence};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::relay::{Hole, Position, Relay};
use crate::tenure::{Tenure, Unwritten};

/// How long the first output waits for the exit of a quick command. Measured against it: another commit.
const FIRST_HOLD: Duration = Duration::from_millis(2);
const GATHER: Duration = Duration::from_millis(OUTPUT_GATHER_MS);

/// See the module.
pub(crate) struct CallLog {
    state: Mutex<State>,
    /// Something is due earlier than it was, or the log is closed.
    due_changed: Notify,
    /// Something became durable.
    written: Notify,
}

struct State {
    fence: Fence,
    announce: Announce,
    events: Vec<EventBody>,
    relay: Option<Relay>,
    /// End of the output log, of operations that are over.
    end: Position,
    due: Option<Instant>,
    had_output: bool,
    closed: bool,
    in_flight: bool,
}

impl State {
    fn due_by(&mut self, at: Instant) -> bool {
        let sooner = self.due.is_none_or(|due| at < due);
        if sooner {
            self.due = Some(at);
        }
        sooner
    }

    /// Output that the relay has ready goes behind the events so far.
    fn gather_output(&mut self) {
        if let Some(relay) = &mut self.relay {
            self.events.extend(relay.take().into_iter().map(EventBody::Output));
        }
    }

    fn is_idle(&self) -> bool {
        !self.in_flight
            && self.events.is_empty()
            && self.announce == Announce::Nothing
            && self.relay.as_ref().is_none_or(|relay| relay.ready_bytes() == 0)
    }
}

/// What is left to be written with the result.
pub(crate) struct Rest {
    pub(crate) fence: Fence,
    pub(crate) announce: Announce,
    pub(crate) events: Vec<EventBody>,
}

impl CallLog {
    /// The log of an attempt that has just begun.
    pub(crate) fn new(fence: Fence) -> Self {
        Self {
            state: Mutex::new(State {
                fence,
                announce: Announce::Started,
                events: Vec::new(),
                relay: None,
                end: Position::default(),
                due: Some(Instant::now() + GATHER),
                had_output: false,
                closed: false,
                in_flight: false,
            }),
            due_changed: Notify::new(),
            written: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An event that is not output.
    pub(crate) fn push(&self, event: EventBody) {
        let mut state = self.state();
        state.gather_output();
        state.events.push(event);
        let sooner = state.due_by(Instant::now() + GATHER);
        drop(state);
        if sooner {
            self.due_changed.notify_one();
        }
    }

    /// Output of an operation follows.
    pub(crate) fn begin_output(&self, relay: Relay) {
        self.state().relay = Some(relay);
    }

    /// Output of the operation. Returns what of it had not come before.
    pub(crate) fn output(&self, offset: u64, stream: StreamName, bytes: Bytes) -> Result<Bytes, Hole> {
        let mut state = self.state();
        let Some(relay) = &mut state.relay else { return Ok(bytes) };
        let fresh = relay.push(offset, stream, bytes)?;
        let waiting = relay.ready_bytes();
        if waiting == 0 {
            return Ok(fresh);
        }
        let now = Instant::now();
        let hold = if waiting >= OUTPUT_EVENT_BYTES {
            Duration::ZERO
        } else if state.had_output {
            GATHER
        } else {
            FIRST_HOLD
        };
        state.had_output = true;
        let sooner = state.due_by(now + hold);
        drop(state);
        if sooner {
            self.due_changed.notify_one();
        }
        Ok(fresh)
    }

    /// The operation has ended, with these totals of stdout and stderr. Returns the bytes that were dropped.
    pub(crate) fn end_output(&self, totals: Option<(u64, u64)>) -> u64 {
        let mut state = self.state();
        let Some(mut relay) = state.relay.take() else { return 0 };
        let dropped = relay.finish(totals);
        state.events.extend(relay.take().into_iter().map(EventBody::Output));
        state.end = relay.end();
        dropped
    }

    /// Takes the relay out, for a shell that goes on with the log. To be called after [`Self::flush`].
    pub(crate) fn take_relay(&self) -> Option<Relay> {
        self.state().relay.take()
    }

    /// Where the next operation's output begins.
    pub(crate) fn end(&self) -> Position {
        self.state().end
    }

    /// Where the present operation's output begins, or the next one's.
    pub(crate) fn base(&self) -> Position {
        let state = self.state();
        state.relay.as_ref().map_or(state.end, Relay::base)
    }

    /// Offset of the operation below which the agent need send nothing again.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.state().relay.as_ref().map_or(0, Relay::acknowledged)
    }

    /// Waits until more has become durable.
    pub(crate) async fn more_written(&self) {
        self.written.notified().await;
    }

    /// Waits until everything so far is durable.
    pub(crate) async fn flush(&self) {
        loop {
            let written = self.written.notified();
            {
                let mut state = self.state();
                if state.is_idle() {
                    return;
                }
                state.due_by(Instant::now());
            }
            self.due_changed.notify_one();
            written.await;
        }
    }

    /// Writes what is due, until [`Self::close`]. Cancel-safe only between batches: close it and wait instead.
    pub(crate) async fn drive(&self, tenure: &Tenure) -> Result<(), Unwritten> {
        while let Some((fence, announce, events)) = self.next_batch().await {
            let end = events.iter().rev().find_map(end_of_output);
            let written =
                tenure.write(|| tenure.store().append_events(&fence, announce, events.clone())).await;
            let mut state = self.state();
            state.in_flight = false;
            state.fence.after_seq = written?.last_seq;
            state.announce = Announce::Nothing;
            if let (Some(end), Some(relay)) = (end, &mut state.relay) {
                relay.made_durable(end);
            }
            drop(state);
            self.written.notify_waiters();
        }
        Ok(())
    }

    async fn next_batch(&self) -> Option<(Fence, Announce, Vec<EventBody>)> {
        loop {
            let due = {
                let mut state = self.state();
                if state.closed {
                    return None;
                }
                match state.due {
                    Some(due) if due <= Instant::now() => {
                        state.due = None;
                        state.gather_output();
                        if !state.events.is_empty() || state.announce == Announce::Started {
                            state.in_flight = true;
                            return Some((state.fence, state.announce, std::mem::take(&mut state.events)));
                        }
                        None
                    }
                    due => due,
                }
            };
            let changed = self.due_changed.notified();
            match due {
                Some(due) => {
                    let _ = tokio::time::timeout_at(due, changed).await;
                }
                None => changed.await,
            }
        }
    }

    /// Nothing more is written by [`Self::drive`]; it returns once nothing is in flight.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.due_changed.notify_one();
    }

    /// The right to write for the call, as far as it is written.
    pub(crate) fn fence(&self) -> Fence {
        self.state().fence
    }

    /// What was not written. To be called when [`Self::drive`] has returned.
    pub(crate) fn rest(&self) -> Rest {
        let mut state = self.state();
        state.gather_output();
        Rest { fence: state.fence, announce: state.announce, events: std::mem::take(&mut state.events) }
    }
}

fn end_of_output(event: &EventBody) -> Option<u64> {
    match event {
        EventBody::Output(piece) => Some(piece.log_offset + piece.bytes.len() as u64),
        EventBody::Queued { .. }
        | EventBody::Started { .. }
        | EventBody::Progress { .. }
        | EventBody::ShellStarted { .. }
        | EventBody::ArtifactCreated { .. }
        | EventBody::Ended { .. } => None,
    }
}
