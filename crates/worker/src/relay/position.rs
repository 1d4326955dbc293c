//! Offsets in a log, how much of one is kept, and where a resumed relay goes on.

use domain::{StreamName, limits};

/// An offset in a log: of both streams together, and of each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Position {
    /// Both streams together, dropped bytes included.
    pub(crate) log: u64,
    /// Of stdout.
    pub(crate) stdout: u64,
    /// Of stderr.
    pub(crate) stderr: u64,
}

impl Position {
    pub(super) fn of(self, stream: StreamName) -> u64 {
        match stream {
            StreamName::Stdout => self.stdout,
            StreamName::Stderr => self.stderr,
        }
    }

    /// So much output of each stream later.
    pub(crate) fn after(self, stdout: u64, stderr: u64) -> Self {
        Self { log: self.log + stdout + stderr, stdout: self.stdout + stdout, stderr: self.stderr + stderr }
    }

    pub(super) fn advance(&mut self, stream: StreamName, length: u64) {
        self.log += length;
        match stream {
            StreamName::Stdout => self.stdout += length,
            StreamName::Stderr => self.stderr += length,
        }
    }
}

/// How much of a log is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Kept from the start.
    pub(crate) head_bytes: u64,
    /// Kept from the end when the start is full.
    pub(crate) tail_bytes: u64,
}

impl Limits {
    /// Limits of a log that keeps so many bytes in all.
    pub(crate) fn of_total(total_bytes: u64) -> Self {
        let tail_bytes = limits::OUTPUT_TAIL_BYTES.min(total_bytes / 2);
        Self { head_bytes: total_bytes - tail_bytes, tail_bytes }
    }
}

/// Where a resumed relay goes on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resume {
    /// End of the stored log.
    pub(crate) stored: Position,
    /// What the agent sends first, as an offset of the operation.
    pub(crate) sent_from: u64,
    /// What the stored log has before that offset. Of no meaning when the offset lies beyond the stored end.
    pub(crate) before_sent: Position,
}
