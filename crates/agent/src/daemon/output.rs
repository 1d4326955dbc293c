//! Output: from the command's pipes into its log, from the log to the worker, and back-pressure between them.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use protocol::{FrameKind, Reply, StreamId, StreamName};

use super::{Daemon, Source, StreamUse};
use crate::limits;
use crate::operation::{Operation, OperationId, Phase};

fn pipe(operation: &Operation, stream: StreamName) -> Option<&OwnedFd> {
    let process = operation.process.as_ref()?;
    match stream {
        StreamName::Stdout => process.stdout.as_ref(),
        StreamName::Stderr => process.stderr.as_ref(),
    }
}

fn watched(operation: &mut Operation, stream: StreamName) -> &mut bool {
    match stream {
        StreamName::Stdout => &mut operation.watched.stdout,
        StreamName::Stderr => &mut operation.watched.stderr,
    }
}

fn source(id: OperationId, stream: StreamName) -> Source {
    match stream {
        StreamName::Stdout => Source::Stdout(id),
        StreamName::Stderr => Source::Stderr(id),
    }
}

/// What one read of a pipe gave.
enum Taken {
    Bytes(usize),
    Nothing,
    Over,
}

impl Daemon {
    /// How much output an operation may add now: its window, or its share when all operations together fill the memory.
    fn room(&self, operation: &Operation) -> usize {
        if operation.forgotten {
            return usize::MAX;
        }
        let room = operation.log.room();
        if self.buffered < limits::BUFFERED_BYTES {
            return room;
        }
        room.min(limits::BUFFERED_MIN_SHARE.saturating_sub(operation.log.len()))
    }

    /// Reads at most `limit` bytes of a pipe into the log.
    fn take(&mut self, id: OperationId, stream: StreamName, limit: usize) -> Taken {
        let Some(operation) = self.operations.get_mut(&id) else { return Taken::Over };
        let Some(pipe) = pipe(operation, stream) else { return Taken::Over };
        let limit = limit.min(self.scratch.len());
        match nix::unistd::read(pipe, &mut self.scratch[..limit]) {
            Ok(0) => Taken::Over,
            Ok(length) => {
                operation.log.append(stream, &self.scratch[..length]);
                if operation.forgotten {
                    operation.log.acknowledge(u64::MAX);
                } else {
                    self.buffered += length;
                }
                Taken::Bytes(length)
            }
            Err(Errno::EAGAIN | Errno::EINTR) => Taken::Nothing,
            Err(_) => Taken::Over,
        }
    }

    /// A pipe has something, or nobody writes to it any more.
    pub(super) fn read_output(&mut self, id: OperationId, stream: StreamName) {
        let Some(operation) = self.operations.get_mut(&id) else { return };
        if !*watched(operation, stream) {
            return;
        }
        let Some(operation) = self.operations.get(&id) else { return };
        let room = self.room(operation);
        if room == 0 {
            return self.unwatch_output(id, stream);
        }
        match self.take(id, stream, room) {
            Taken::Bytes(_) => self.pump(id),
            Taken::Nothing => {}
            Taken::Over => {
                self.unwatch_output(id, stream);
                self.close_output(id, stream);
            }
        }
    }

    fn unwatch_output(&mut self, id: OperationId, stream: StreamName) {
        let Some(operation) = self.operations.get_mut(&id) else { return };
        *watched(operation, stream) = false;
        let Some(operation) = self.operations.get(&id) else { return };
        if let Some(pipe) = pipe(operation, stream) {
            self.unwatch(pipe);
        }
    }

    fn close_output(&mut self, id: OperationId, stream: StreamName) {
        let process = self.operations.get_mut(&id).and_then(|operation| operation.process.as_mut());
        if let Some(process) = process {
            match stream {
                StreamName::Stdout => process.stdout = None,
                StreamName::Stderr => process.stderr = None,
            }
        }
    }

    /// The tree is gone: what is left in the pipes is taken without waiting for anything.
    pub(super) fn stop_watching(&mut self, id: OperationId) {
        for stream in [StreamName::Stdout, StreamName::Stderr] {
            self.unwatch_output(id, stream);
        }
        if let Some(mut operation) = self.operations.remove(&id) {
            if let Some(process) = &mut operation.process {
                self.unwatch(&process.control);
                if let Some(stdin) = process.stdin.take() {
                    self.unwatch(&stdin);
                }
            }
            self.give_up_input(&mut operation);
            self.operations.insert(id, operation);
        }
    }

    /// Takes what the ended tree has left in its pipes, as far as there is room. A pipe that somebody outside the tree
    /// still holds delays nothing.
    pub(super) fn drain(&mut self, id: OperationId) {
        for stream in [StreamName::Stdout, StreamName::Stderr] {
            loop {
                let Some(operation) = self.operations.get(&id) else { return };
                let Phase::Draining(_, pending) = &operation.phase else { return };
                let left = match stream {
                    StreamName::Stdout => pending.stdout,
                    StreamName::Stderr => pending.stderr,
                };
                let limit = left.min(self.room(operation));
                if left == 0 {
                    break;
                }
                if limit == 0 {
                    return self.pump(id);
                }
                let taken = match self.take(id, stream, limit) {
                    Taken::Bytes(length) => length,
                    Taken::Nothing | Taken::Over => left,
                };
                let Some(operation) = self.operations.get_mut(&id) else { return };
                if let Phase::Draining(_, pending) = &mut operation.phase {
                    match stream {
                        StreamName::Stdout => pending.stdout = left - taken,
                        StreamName::Stderr => pending.stderr = left - taken,
                    }
                }
            }
        }
        self.ended(id);
    }

    /// Sends what the worker's socket has room for, and the exit after the last byte.
    pub(super) fn pump(&mut self, id: OperationId) {
        let Some(link) = &mut self.link else { return };
        let Some(operation) = self.operations.get_mut(&id) else { return };
        let Some(stream) = operation.stream.filter(|_| operation.attached) else { return };
        while link.backlog() < limits::LINK_BACKLOG_BYTES {
            let Some((offset, name, bytes)) = operation.log.next_piece() else { break };
            link.send_data(stream, offset, name.channel(), bytes);
            let length = bytes.len();
            operation.log.advance(length);
        }
        if operation.log.is_sent()
            && let Phase::Ended(exit) = &operation.phase
        {
            link.send_json(FrameKind::Reply, stream, &Reply::Exited(exit.clone()));
            operation.stream = None;
            self.close(stream);
        }
    }

    /// The worker's socket has room again.
    pub(super) fn pump_all(&mut self) {
        let attached = self.streams.values().filter_map(|usage| match usage {
            StreamUse::Exec(id) => Some(*id),
            StreamUse::Transfer(_) => None,
        });
        for id in attached.collect::<Vec<_>>() {
            self.pump(id);
        }
        self.pump_transfers();
    }

    /// Output below `offset` is durable.
    pub(super) fn acknowledged(&mut self, stream: StreamId, offset: u64) {
        let id = match self.streams.get(&stream) {
            Some(StreamUse::Exec(id)) => id,
            Some(StreamUse::Transfer(ticket)) => return self.changes_taken(*ticket, offset),
            None => return,
        };
        let Some(operation) = self.operations.get_mut(id) else { return };
        if operation.stream != Some(stream) {
            return;
        }
        let before = operation.log.len();
        operation.log.acknowledge(offset);
        self.buffered -= before - operation.log.len();
        self.resume_reading();
    }

    /// Memory has become free: pipes that waited for it are read again.
    pub(super) fn resume_reading(&mut self) {
        for id in self.active.iter().copied().collect::<Vec<_>>() {
            let Some(operation) = self.operations.get(&id) else { continue };
            if matches!(operation.phase, Phase::Draining(..)) {
                self.drain(id);
                continue;
            }
            if self.room(operation) == 0 {
                continue;
            }
            for stream in [StreamName::Stdout, StreamName::Stderr] {
                let Some(operation) = self.operations.get_mut(&id) else { break };
                if *watched(operation, stream) {
                    continue;
                }
                let Some(operation) = self.operations.get(&id) else { break };
                let Some(pipe) = pipe(operation, stream) else { continue };
                let is_watched = self.watch(pipe, source(id, stream), EpollFlags::EPOLLIN);
                if let Some(operation) = self.operations.get_mut(&id) {
                    *watched(operation, stream) = is_watched;
                }
            }
        }
    }
}
