//! Files on the wire: hands each piece of work to the pool, and what comes back to the worker. At most one job of a transfer
//! is under way, so that its pieces stay in order and its memory is bounded.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use protocol::{
    AgentError, DirectoryMade, ErrorCode, GlobRequest, GrepRequest, ListRequest, MoveRequest,
    OUTPUT_FRAME_BYTES, OperationKey, ReadRequest, Reply, StreamId, WriteRequest,
};

use super::watches::Watching;
use super::{Daemon, StreamUse};
use crate::files::pool::Outcome;
use crate::files::{self, OpenRead, OpenWrite, ReadStep, Room};
use crate::limits;

/// One file request in progress.
#[derive(Debug)]
pub(super) struct Transfer {
    /// `None` when its connection has ended or the worker has lost interest.
    pub(super) stream: Option<StreamId>,
    pub(super) state: State,
}

#[derive(Debug)]
pub(super) enum State {
    /// A job is under way that answers by itself.
    Asking,
    /// The same, and it ends early when nobody wants its answer any more.
    Searching(Arc<AtomicBool>),
    /// A removal, which happens whatever becomes of the connection. Its streams wait in the journal.
    Removing(OperationKey),
    /// A file that is sent as the worker's socket takes it; the file is here between two pieces.
    Reading(Option<Box<OpenRead>>),
    Writing(Writing),
    Watching(Watching),
}

#[derive(Debug)]
pub(super) struct Writing {
    pub(super) request: WriteRequest,
    /// The file between two jobs.
    pub(super) file: Option<Box<OpenWrite>>,
    /// Content that waits for the job under way.
    pub(super) pieces: Vec<Bytes>,
    pub(super) received: u64,
    /// A job is under way.
    pub(super) busy: bool,
    /// All content has come.
    pub(super) complete: bool,
    /// The key stands in the journal: the write happens, whatever becomes of the connection.
    pub(super) journalled: bool,
}

/// Every file request in progress.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    next_ticket: u64,
    pub(super) transfers: HashMap<u64, Transfer>,
    /// Readings that wait for room on the worker's socket.
    waiting: BTreeSet<u64>,
    /// Content of all writes that waits for the disk.
    pub(super) queued: usize,
    /// Those that watch directories.
    pub(super) watches: BTreeSet<u64>,
    /// Memory that they share.
    pub(super) watch_room: Arc<Room>,
}

impl Transfers {
    /// Whether reading from the worker has to wait for the disk.
    pub(super) fn is_full(&self) -> bool {
        self.queued >= limits::WRITE_QUEUE_BYTES
    }
}

fn lost_interest() -> AgentError {
    AgentError { code: ErrorCode::Io, message: "the connection ended before the content had come".to_owned() }
}

impl Daemon {
    /// Takes a request on under a ticket of its own, unless there are too many.
    pub(super) fn admit_transfer(&mut self, stream: StreamId, state: State) -> Option<u64> {
        if self.transfers.transfers.len() >= limits::TRANSFERS {
            let message = "too many file requests at a time".to_owned();
            self.fail(stream, AgentError { code: ErrorCode::LimitExceeded, message });
            return None;
        }
        self.transfers.next_ticket += 1;
        let ticket = self.transfers.next_ticket;
        self.transfers.transfers.insert(ticket, Transfer { stream: Some(stream), state });
        self.streams.insert(stream, StreamUse::Transfer(ticket));
        Some(ticket)
    }

    pub(super) fn submit(&self, ticket: u64, job: impl FnOnce() -> Outcome + Send + 'static) {
        if let Some(files) = &self.files {
            files.submit(ticket, job);
        }
    }

    pub(super) fn stat_file(&mut self, stream: StreamId, root: String, path: String) {
        if let Some(ticket) = self.admit_transfer(stream, State::Asking) {
            self.submit(ticket, move || Outcome::Stat(files::stat(&root, &path)));
        }
    }

    pub(super) fn list_files(&mut self, stream: StreamId, request: ListRequest) {
        if let Some(ticket) = self.admit_transfer(stream, State::Asking) {
            self.submit(ticket, move || Outcome::Listed(files::list(request)));
        }
    }

    pub(super) fn make_directory(&mut self, stream: StreamId, root: String, path: String) {
        if let Some(ticket) = self.admit_transfer(stream, State::Asking) {
            self.submit(ticket, move || Outcome::Made(files::make_directory(&root, &path)));
        }
    }

    pub(super) fn move_entry(&mut self, stream: StreamId, request: MoveRequest) {
        if let Some(ticket) = self.admit_transfer(stream, State::Asking) {
            self.submit(ticket, move || Outcome::Moved(files::move_entry(&request)));
        }
    }

    pub(super) fn glob_files(&mut self, stream: StreamId, request: GlobRequest) {
        let stop = Arc::new(AtomicBool::new(false));
        if let Some(ticket) = self.admit_transfer(stream, State::Searching(Arc::clone(&stop))) {
            self.submit(ticket, move || Outcome::Globbed(files::glob(request, &stop)));
        }
    }

    pub(super) fn grep_files(&mut self, stream: StreamId, request: GrepRequest) {
        let stop = Arc::new(AtomicBool::new(false));
        if let Some(ticket) = self.admit_transfer(stream, State::Searching(Arc::clone(&stop))) {
            self.submit(ticket, move || Outcome::Grepped(files::grep(&request, &stop)));
        }
    }

    pub(super) fn read_file(&mut self, stream: StreamId, request: ReadRequest) {
        if let Some(ticket) = self.admit_transfer(stream, State::Reading(None)) {
            self.submit(ticket, move || Outcome::Read(OpenRead::open(request).and_then(OpenRead::step)));
        }
    }

    /// What an operation has left in its memory file. Kept until its owner is forgotten.
    pub(super) fn read_report(&mut self, stream: StreamId, key: &OperationKey) {
        let report = match self.command(key) {
            Ok(id) => id.and_then(|id| self.operations.get(&id)?.report.as_ref()?.try_clone().ok()),
            Err(error) => return self.fail(stream, error),
        };
        let Some(report) = report else {
            let message = "the operation leaves no report".to_owned();
            return self.fail(stream, AgentError { code: ErrorCode::NotFound, message });
        };
        if let Some(ticket) = self.admit_transfer(stream, State::Reading(None)) {
            let open = move || OpenRead::of_memory(report.into(), protocol::REPORT_BYTES);
            self.submit(ticket, move || Outcome::Read(open().and_then(OpenRead::step)));
        }
    }

    /// The worker closes a stream: all content has come, or it does not want the rest of an answer.
    pub(super) fn transfer_closed(&mut self, ticket: u64) {
        let Some(transfer) = self.transfers.transfers.get_mut(&ticket) else { return };
        match &mut transfer.state {
            State::Writing(writing) if !writing.complete && writing.request.open_ended => {
                self.end_write(ticket, Err(lost_interest()));
            }
            State::Writing(writing) if !writing.complete => {
                writing.complete = true;
                self.write_on(ticket);
            }
            State::Writing(_) | State::Removing(_) => {}
            State::Asking | State::Searching(_) | State::Reading(_) | State::Watching(_) => {
                self.abandon_transfer(ticket);
            }
        }
    }

    /// Jobs are done.
    pub(super) fn files_done(&mut self) {
        let done = self.files.as_ref().map(|files| files.take_done()).unwrap_or_default();
        for (ticket, outcome) in done {
            match outcome {
                Outcome::Stat(result) => self.answered(ticket, result.map(Reply::Stat)),
                Outcome::Listed(result) => self.answered(ticket, result.map(Reply::Listed)),
                Outcome::Read(Ok((step, file))) => self.send_piece(ticket, step, file),
                Outcome::Read(Err(error)) => self.answered(ticket, Err(error)),
                Outcome::Written(result) => self.end_write(ticket, result),
                Outcome::Writing(Err(error)) => self.end_write(ticket, Err(error)),
                Outcome::Writing(Ok(file)) => self.written_on(ticket, file),
                Outcome::Removed(result) => self.end_removal(ticket, result),
                Outcome::Made(result) => {
                    let made = result.map(|created| Reply::DirectoryMade(DirectoryMade { created }));
                    self.answered(ticket, made);
                }
                Outcome::Moved(result) => self.answered(ticket, result.map(|()| Reply::Done)),
                Outcome::Globbed(result) => self.answered(ticket, result.map(Reply::Globbed)),
                Outcome::Grepped(result) => self.answered(ticket, result.map(Reply::Grepped)),
                Outcome::WatchBegun(result) => self.watch_begun(ticket, result),
                Outcome::Watched(step) => self.changes_seen(ticket, step),
                Outcome::Nothing => {}
            }
        }
    }

    pub(super) fn answered(&mut self, ticket: u64, result: Result<Reply, AgentError>) {
        let transfer = self.transfers.transfers.remove(&ticket);
        if let Some(stream) = transfer.and_then(|transfer| transfer.stream) {
            self.finish(stream, &result.unwrap_or_else(Reply::Error));
        }
    }

    fn send_piece(&mut self, ticket: u64, step: ReadStep, file: Option<Box<OpenRead>>) {
        let Some(transfer) = self.transfers.transfers.get_mut(&ticket) else { return };
        let (Some(stream), Some(link)) = (transfer.stream, &mut self.link) else { return };
        let mut offset = step.offset;
        for content in step.bytes.chunks(OUTPUT_FRAME_BYTES) {
            link.send_data(stream, offset, protocol::StreamName::Stdout.channel(), content);
            offset += content.len() as u64;
        }
        match (step.end, file) {
            (Some(end), _) => self.answered(ticket, Ok(Reply::Read(end))),
            (None, file) => {
                transfer.state = State::Reading(file);
                self.transfers.waiting.insert(ticket);
                self.pump_transfers();
            }
        }
    }

    /// Reads on where the worker's socket has room.
    pub(super) fn pump_transfers(&mut self) {
        if self.link.as_ref().is_none_or(|link| link.backlog() >= limits::LINK_BACKLOG_BYTES) {
            return;
        }
        for ticket in std::mem::take(&mut self.transfers.waiting) {
            if let Some(Transfer { state: State::Reading(file), .. }) =
                self.transfers.transfers.get_mut(&ticket)
                && let Some(file) = file.take()
            {
                self.submit(ticket, move || Outcome::Read(file.step()));
            }
        }
    }

    fn abandon_transfer(&mut self, ticket: u64) {
        let Some(transfer) = self.transfers.transfers.remove(&ticket) else { return };
        match transfer.state {
            State::Searching(stop) => stop.store(true, Ordering::Relaxed),
            State::Watching(watching) => self.end_watch(ticket, watching),
            State::Asking | State::Removing(_) | State::Reading(_) | State::Writing(_) => {}
        }
        if let Some(stream) = transfer.stream {
            self.streams.remove(&stream);
        }
    }

    /// The connection has ended: readings and unfinished writes end with it; a write whose content has come goes on.
    pub(super) fn abandon_transfers(&mut self) {
        let tickets: Vec<u64> = self.transfers.transfers.keys().copied().collect();
        for ticket in tickets {
            let Some(transfer) = self.transfers.transfers.get_mut(&ticket) else { continue };
            transfer.stream = None;
            match &transfer.state {
                State::Writing(writing) if writing.complete => {}
                State::Writing(_) => self.end_write(ticket, Err(lost_interest())),
                State::Removing(_) => {}
                State::Asking | State::Searching(_) | State::Reading(_) | State::Watching(_) => {
                    self.abandon_transfer(ticket);
                }
            }
        }
        self.transfers.waiting.clear();
    }
}
