//! The journal: what has been asked for by key, so that it happens once however often it is asked for.

use std::collections::HashMap;
use std::time::Instant;

use protocol::{AgentError, ErrorCode, FileWritten, OperationKey, Removed, StdinWritten, StreamId};

use crate::limits;
use crate::operation::OperationId;

/// What became of a key.
#[derive(Debug)]
pub(crate) enum Entry {
    /// A command.
    Exec(OperationId),
    /// A command that could not be started; asked again it is not tried again.
    Refused(AgentError),
    /// Input that is on its way; these streams wait for its result.
    StdinPending(Vec<StreamId>),
    /// Input that was written, or not, and when that was known.
    Stdin(Result<StdinWritten, AgentError>, Instant),
    /// A file whose content has come whole and that is being put in place; these streams wait for its result.
    WritePending(Vec<StreamId>),
    /// A file that was written, or not.
    Written(Result<FileWritten, AgentError>),
    /// A removal that is under way; these streams wait for its result.
    RemovePending(Vec<StreamId>),
    /// Something that was removed, or not.
    Removed(Result<Removed, AgentError>),
}

/// Every entry, by key.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    entries: HashMap<OperationKey, Entry>,
}

impl Journal {
    /// What became of a key.
    pub(crate) fn get(&self, key: &OperationKey) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// As [`Self::get`], to change it.
    pub(crate) fn get_mut(&mut self, key: &OperationKey) -> Option<&mut Entry> {
        self.entries.get_mut(key)
    }

    /// Whether a new key may be taken on.
    pub(crate) fn admit(&mut self, key: &OperationKey, now: Instant) -> Result<(), AgentError> {
        let refuse =
            |message: &str| Err(AgentError { code: ErrorCode::LimitExceeded, message: message.to_owned() });
        if key.owner.len() > limits::OWNER_BYTES {
            return refuse("the name of the owner is too long");
        }
        if self.entries.len() >= limits::JOURNAL_ENTRIES {
            self.drop_old_input(now);
        }
        if self.entries.len() >= limits::JOURNAL_ENTRIES {
            return refuse("the journal is full; results that are durable must be forgotten first");
        }
        Ok(())
    }

    /// Drops the results of input for which nobody can ask any more. Whoever wrote it forgets it, unless it has died; commands are
    /// found by the sweep of whoever comes after, input is not.
    fn drop_old_input(&mut self, now: Instant) {
        self.entries.retain(|_, entry| match entry {
            Entry::Stdin(_, settled_at) => now.duration_since(*settled_at) < limits::STDIN_REMEMBERED,
            Entry::Exec(_)
            | Entry::Refused(_)
            | Entry::StdinPending(_)
            | Entry::WritePending(_)
            | Entry::Written(_)
            | Entry::RemovePending(_)
            | Entry::Removed(_) => true,
        });
    }

    /// Records a key.
    pub(crate) fn record(&mut self, key: OperationKey, entry: Entry) {
        self.entries.insert(key, entry);
    }

    /// Records the result of something that was pending. Returns who waits; nobody if it was forgotten meanwhile.
    pub(crate) fn settle(&mut self, key: &OperationKey, result: Entry) -> Vec<StreamId> {
        let Some(entry) = self.entries.get_mut(key) else { return Vec::new() };
        match std::mem::replace(entry, result) {
            Entry::StdinPending(waiters) | Entry::WritePending(waiters) | Entry::RemovePending(waiters) => {
                waiters
            }
            Entry::Exec(_) | Entry::Refused(_) | Entry::Stdin(..) | Entry::Written(_) | Entry::Removed(_) => {
                Vec::new()
            }
        }
    }

    /// Drops what belongs to an owner and for which `keep` does not speak. Returns the commands that were dropped.
    pub(crate) fn forget(&mut self, owner: &str, keep: impl Fn(OperationId) -> bool) -> Vec<OperationId> {
        let mut commands = Vec::new();
        self.entries.retain(|key, entry| {
            if key.owner != owner {
                return true;
            }
            match entry {
                Entry::Exec(id) if keep(*id) => return true,
                Entry::Exec(id) => commands.push(*id),
                Entry::Refused(_)
                | Entry::StdinPending(_)
                | Entry::Stdin(..)
                | Entry::WritePending(_)
                | Entry::Written(_)
                | Entry::RemovePending(_)
                | Entry::Removed(_) => {}
            }
            false
        });
        commands
    }

    /// The streams of a connection that has ended wait no more.
    pub(crate) fn forget_streams(&mut self) {
        for entry in self.entries.values_mut() {
            if let Entry::StdinPending(waiters)
            | Entry::WritePending(waiters)
            | Entry::RemovePending(waiters) = entry
            {
                waiters.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn key(owner: &str, operation: u32) -> OperationKey {
        OperationKey { owner: owner.to_owned(), operation }
    }

    #[test]
    fn input_of_a_dead_writer_makes_room_and_nothing_else_does() {
        let (mut journal, then) = (Journal::default(), Instant::now());
        journal.record(key("call", 0), Entry::Exec(1));
        journal.record(key("pending", 0), Entry::StdinPending(Vec::new()));
        let written = || Ok(StdinWritten { written_bytes: 1 });
        let mut number = 0;
        while journal.admit(&key("x", 0), then).is_ok() {
            journal.record(key("speaker", number), Entry::Stdin(written(), then));
            number += 1;
        }
        let soon = then + limits::STDIN_REMEMBERED - Duration::from_secs(1);
        assert!(journal.admit(&key("x", 0), soon).is_err(), "it may still be asked for");
        journal.record(key("speaker", 0), Entry::Stdin(written(), soon));
        assert!(journal.admit(&key("x", 0), then + limits::STDIN_REMEMBERED).is_ok());
        let mut left: Vec<_> = journal.entries.keys().map(|key| key.owner.as_str()).collect();
        left.sort_unstable();
        assert_eq!(left, ["call", "pending", "speaker"]);
    }
}
