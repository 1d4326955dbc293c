//! One operation: a command's process, its log, its input, and who waits for it.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use protocol::{ExecExit, ExecSpec, OperationKey, OperationState, StreamId};

use crate::log::Log;
use crate::process::Process;

/// Number of an operation within this agent; never used twice.
pub(crate) type OperationId = u64;

/// How far an operation is.
#[derive(Debug)]
pub(crate) enum Phase {
    /// The command may not have begun yet. Kept with what is needed to start it in another shell.
    Starting(Starting),
    /// The command has begun.
    Running,
    /// The tree is gone; this much output may still be in the pipes.
    Draining(ExecExit, Pending),
    /// Everything is known.
    Ended(ExecExit),
}

/// A command that has not confirmed yet.
#[derive(Debug)]
pub(crate) struct Starting {
    pub(crate) spec: Box<ExecSpec>,
    /// `sh` takes bash's place; its gate closes without a word.
    pub(crate) fallback: bool,
    /// When a warm shell that has not confirmed is given up.
    pub(crate) confirm_by: Option<Instant>,
}

/// Bytes of the ended tree that wait in the pipes. What somebody outside the tree writes later is not its output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pending {
    pub(crate) stdout: usize,
    pub(crate) stderr: usize,
}

/// Text on its way to the command.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) data: Vec<u8>,
    pub(crate) written: usize,
    pub(crate) close: bool,
    /// The write that asked for it, and until when it waits; `None` for text that came with the command or stream.
    pub(crate) asked_by: Option<(OperationKey, Instant)>,
}

/// A pipe that the event loop reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Watched {
    pub(crate) stdin: bool,
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
}

/// A command in the journal.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) key: OperationKey,
    pub(crate) phase: Phase,
    pub(crate) process: Option<Process>,
    /// The memory file in which it may leave a report.
    pub(crate) report: Option<OwnedFd>,
    pub(crate) watched: Watched,
    pub(crate) log: Log,
    /// The newest stream, and whether [`protocol::Reply::Attached`] has been sent on it.
    pub(crate) stream: Option<StreamId>,
    pub(crate) attached: bool,
    /// The stream that started it; others find `started: false`.
    pub(crate) started_by: Option<StreamId>,
    pub(crate) input: VecDeque<Input>,
    pub(crate) kill_waiters: Vec<StreamId>,
    pub(crate) started_at: Instant,
    pub(crate) deadline: Option<Instant>,
    pub(crate) grace: Duration,
    pub(crate) detached: bool,
    /// It has a terminal in the place of pipes.
    pub(crate) terminal: bool,
    /// The last input of a terminal has left a line without an end.
    pub(crate) line_begun: bool,
    pub(crate) warm: bool,
    pub(crate) timed_out: bool,
    pub(crate) killed: bool,
    pub(crate) reset: bool,
    pub(crate) oom_kills_before: u64,
    /// Its owner has been forgotten: it goes when its tree is gone.
    pub(crate) forgotten: bool,
}

impl Operation {
    /// Whether its tree lives.
    pub(crate) fn state(&self) -> OperationState {
        match self.phase {
            Phase::Starting(_) | Phase::Running | Phase::Draining(..) => OperationState::Running,
            Phase::Ended(_) => OperationState::Ended,
        }
    }

    /// Whether its tree may live: it counts against the limit, and signals reach it.
    pub(crate) fn has_tree(&self) -> bool {
        matches!(self.phase, Phase::Starting(_) | Phase::Running)
    }

    /// How it ended.
    pub(crate) fn exit(&self) -> Option<&ExecExit> {
        match &self.phase {
            Phase::Ended(exit) => Some(exit),
            Phase::Starting(_) | Phase::Running | Phase::Draining(..) => None,
        }
    }

    /// Bytes of input that the command has not read.
    pub(crate) fn input_bytes(&self) -> usize {
        self.input.iter().map(|input| input.data.len() - input.written).sum()
    }

    /// When the event loop has to look at it next.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        let confirm_by = match &self.phase {
            Phase::Starting(starting) => starting.confirm_by,
            Phase::Running | Phase::Draining(..) | Phase::Ended(_) => None,
        };
        let deadline = self.deadline.filter(|_| self.has_tree() && !self.timed_out);
        let input = self.input.front().and_then(|input| input.asked_by.as_ref()).map(|(_, until)| *until);
        [confirm_by, deadline, input].into_iter().flatten().min()
    }
}
