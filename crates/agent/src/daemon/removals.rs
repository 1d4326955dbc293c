//! Removing files and trees, once for each key.

use protocol::{AgentError, RemoveRequest, Removed, Reply, StreamId};

use super::Daemon;
use super::transfers::State;
use crate::files;
use crate::files::pool::Outcome;
use crate::journal::Entry;

impl Daemon {
    pub(super) fn remove_file(&mut self, stream: StreamId, request: RemoveRequest) {
        match self.journal.get_mut(&request.key) {
            Some(Entry::RemovePending(waiters)) => return waiters.push(stream),
            Some(Entry::Removed(result)) => {
                let reply = answer(result.clone());
                return self.finish(stream, &reply);
            }
            Some(_) => return self.fail(stream, super::verbs::other_kind()),
            None => {}
        }
        if let Err(error) = self.journal.admit(&request.key, std::time::Instant::now()) {
            return self.fail(stream, error);
        }
        if let Some(ticket) = self.admit_transfer(stream, State::Removing(request.key.clone())) {
            self.journal.record(request.key.clone(), Entry::RemovePending(vec![stream]));
            self.submit(ticket, move || Outcome::Removed(files::remove(&request)));
        }
    }

    pub(super) fn end_removal(&mut self, ticket: u64, result: Result<Removed, AgentError>) {
        let Some(transfer) = self.transfers.transfers.remove(&ticket) else { return };
        let State::Removing(key) = transfer.state else { return };
        for stream in self.journal.settle(&key, Entry::Removed(result.clone())) {
            self.finish(stream, &answer(result.clone()));
        }
    }
}

fn answer(result: Result<Removed, AgentError>) -> Reply {
    result.map_or_else(Reply::Error, Reply::Removed)
}
