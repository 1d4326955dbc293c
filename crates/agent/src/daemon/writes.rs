//! Writing files: content on its way from the worker to the disk, once for each key.

use bytes::Bytes;
use protocol::{AgentError, ErrorCode, FileWritten, OperationKey, Reply, StreamId, WriteRequest};

use super::Daemon;
use super::transfers::{State, Transfer, Writing};
use crate::files::OpenWrite;
use crate::files::pool::Outcome;
use crate::journal::Entry;

impl Daemon {
    pub(super) fn write_file(&mut self, stream: StreamId, request: WriteRequest) {
        match self.journal.get_mut(&request.key) {
            // The content that follows is ignored: it is the same.
            Some(Entry::WritePending(waiters)) => return waiters.push(stream),
            Some(Entry::Written(result)) => {
                let reply = answer(result.clone());
                return self.finish(stream, &reply);
            }
            Some(_) => return self.fail(stream, super::verbs::other_kind()),
            None => {}
        }
        let twice = self.transfers.transfers.values().any(
            |transfer| matches!(&transfer.state, State::Writing(writing) if writing.request.key == request.key),
        );
        if twice {
            let message = "this write is under way on another stream".to_owned();
            return self.fail(stream, AgentError { code: ErrorCode::Conflict, message });
        }
        if let Err(error) = self.journal.admit(&request.key, std::time::Instant::now()) {
            return self.fail(stream, error);
        }
        let complete = request.size_bytes == 0 && !request.open_ended;
        let writing = Writing {
            request,
            file: None,
            pieces: Vec::new(),
            received: 0,
            busy: false,
            complete,
            journalled: false,
        };
        if let Some(ticket) = self.admit_transfer(stream, State::Writing(writing))
            && complete
        {
            self.write_on(ticket);
        }
    }

    pub(super) fn transfer_content(&mut self, ticket: u64, content: Bytes) {
        let Some(Transfer { state: State::Writing(writing), .. }) = self.transfers.transfers.get_mut(&ticket)
        else {
            return;
        };
        writing.received += content.len() as u64;
        let is_last = writing.request.open_ended && content.is_empty();
        if writing.complete || writing.received > writing.request.size_bytes {
            let message = "more content came than was announced".to_owned();
            return self.end_write(ticket, Err(AgentError { code: ErrorCode::LimitExceeded, message }));
        }
        self.transfers.queued += content.len();
        writing.pieces.push(content);
        writing.complete =
            is_last || (writing.received == writing.request.size_bytes && !writing.request.open_ended);
        self.write_on(ticket);
    }

    /// Gives the pool what has come. The key is journalled once nothing of the worker is needed any more.
    pub(super) fn write_on(&mut self, ticket: u64) {
        let Some(Transfer { state: State::Writing(writing), stream }) =
            self.transfers.transfers.get_mut(&ticket)
        else {
            return;
        };
        if writing.complete && !writing.journalled {
            writing.journalled = true;
            let waiters = stream.take().into_iter().collect();
            self.journal.record(writing.request.key.clone(), Entry::WritePending(waiters));
        }
        if writing.busy || (writing.pieces.is_empty() && !writing.complete) {
            return;
        }
        writing.busy = true;
        let (file, request, complete) = (writing.file.take(), writing.request.clone(), writing.complete);
        let pieces = std::mem::take(&mut writing.pieces);
        self.transfers.queued -= pieces.iter().map(Bytes::len).sum::<usize>();
        self.submit(ticket, move || {
            let file = match file {
                Some(file) => Ok(file),
                None => OpenWrite::open(request),
            };
            let file = file.and_then(|file| file.add(&pieces));
            if complete { Outcome::Written(file.and_then(OpenWrite::commit)) } else { Outcome::Writing(file) }
        });
    }

    pub(super) fn written_on(&mut self, ticket: u64, file: Box<OpenWrite>) {
        match self.transfers.transfers.get_mut(&ticket) {
            Some(Transfer { state: State::Writing(writing), .. }) => {
                writing.busy = false;
                writing.file = Some(file);
                self.write_on(ticket);
            }
            _ => self.discard(file),
        }
    }

    pub(super) fn end_write(&mut self, ticket: u64, result: Result<FileWritten, AgentError>) {
        let Some(transfer) = self.transfers.transfers.remove(&ticket) else { return };
        let State::Writing(writing) = transfer.state else { return };
        self.transfers.queued -= writing.pieces.iter().map(Bytes::len).sum::<usize>();
        let key: &OperationKey = &writing.request.key;
        let waiters = match self.journal.get(key) {
            Some(Entry::WritePending(_)) => self.journal.settle(key, Entry::Written(result.clone())),
            // Refused before all content had come: the refusal is the result.
            None if transfer.stream.is_some() => {
                self.journal.record(key.clone(), Entry::Written(result.clone()));
                Vec::new()
            }
            _ => Vec::new(),
        };
        for stream in waiters.into_iter().chain(transfer.stream) {
            self.finish(stream, &answer(result.clone()));
        }
        if let Some(file) = writing.file {
            self.discard(file);
        }
    }

    fn discard(&self, file: Box<OpenWrite>) {
        self.submit(0, move || {
            file.discard();
            Outcome::Nothing
        });
    }
}

fn answer(result: Result<FileWritten, AgentError>) -> Reply {
    match result {
        Ok(written) => Reply::Written(written),
        Err(error) => Reply::Error(error),
    }
}
