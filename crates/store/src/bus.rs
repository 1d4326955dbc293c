//! What changed: batches in this process right after their commit, and hints from other processes.
//!
//! # Design notes
//!
//! * NOTIFY is a hint and nothing more. It goes out coalesced, on a connection of its own and never inside the
//!   transaction that it tells of (there it serialises commits). Whoever waits must also look at the table every
//!   [`domain::limits::POLL_MS`]; nothing may depend on a hint for being right.
//! * Nothing here waits for a reader. A subscriber that falls behind loses its batches and gets one *look at the
//!   table* instead; so does everybody after the listening connection was lost.

use std::sync::Arc;

use domain::{CallId, Event, SessionId, ShellId};

/// What a call's watcher is told.
#[derive(Debug, Clone)]
pub enum CallChange {
    /// Events that this process has just made durable, in order. A watcher that has seen everything before the
    /// first of them may send them as they are; any other reads the table.
    Events(Arc<[Event]>),
    /// Something may have changed: read the table.
    Wake,
}

/// What a worker is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hint {
    /// A call of this session waits.
    Queued(SessionId),
    /// Somebody asked for this call's end.
    CancelRequested(CallId),
    /// The session was created, changed, ended, or asked to end or to be reset.
    SessionChanged(SessionId),
    /// Hints were lost: look at everything.
    Everything,
}

/// Where to subscribe. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Bus {}

impl Bus {
    /// Changes of one call from now on. Subscribe first, then read the table, then wait.
    #[must_use]
    pub fn subscribe_call(&self, call: CallId) -> CallWatch {
        todo!()
    }

    /// Growth and end of one shell from now on.
    #[must_use]
    pub fn subscribe_shell(&self, shell: ShellId) -> ShellWatch {
        todo!()
    }

    /// Everything that workers need to look at, of this process and others.
    #[must_use]
    pub fn subscribe_queue(&self) -> QueueWatch {
        todo!()
    }
}

/// A subscription to one call.
#[derive(Debug)]
pub struct CallWatch {}

impl CallWatch {
    /// Waits for the next change. Cancel-safe. Wrap it in a timeout of [`domain::limits::POLL_MS`] and read the table then.
    pub async fn changed(&mut self) -> CallChange {
        todo!()
    }
}

/// A subscription to one shell.
#[derive(Debug)]
pub struct ShellWatch {}

impl ShellWatch {
    /// Waits until the shell's log may have grown or the shell may have ended. Cancel-safe.
    pub async fn changed(&mut self) {
        todo!()
    }
}

/// A subscription to what workers need to look at.
#[derive(Debug)]
pub struct QueueWatch {}

impl QueueWatch {
    /// Waits for the next hint. Cancel-safe.
    pub async fn next(&mut self) -> Hint {
        todo!()
    }
}
