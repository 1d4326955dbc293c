//! Input: text on its way into commands, as fast as they read it.

use std::os::fd::AsRawFd;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use protocol::{AgentError, ErrorCode, OperationKey, Reply, StdinWritten, StreamId, TerminalSize};

use super::{Daemon, Source};
use crate::journal::Entry;
use crate::limits;
use crate::operation::{Input, Operation, OperationId, Phase};

/// What ends the input of a terminal: Ctrl-D. The terminal itself stays open.
const END_OF_TRANSMISSION: u8 = 4;

fn too_much() -> AgentError {
    AgentError {
        code: ErrorCode::LimitExceeded,
        message: "too much input waits for the command, which does not read it".to_owned(),
    }
}

/// Turns the end of a terminal's input into what a keyboard would send. On a line that has begun, the first Ctrl-D only hands over
/// the line; on an empty one it is the end, and a second one would end what reads next.
fn end_line(operation: &mut Operation, data: &mut Vec<u8>, close: &mut bool) {
    const ENDS: [u8; 3] = [b'\n', b'\r', END_OF_TRANSMISSION];
    if let Some(last) = data.last() {
        operation.line_begun = !ENDS.contains(last);
    }
    if std::mem::take(close) {
        if std::mem::take(&mut operation.line_begun) {
            data.push(END_OF_TRANSMISSION);
        }
        data.push(END_OF_TRANSMISSION);
    }
}

impl Daemon {
    pub(super) fn write_stdin(
        &mut self,
        stream: StreamId,
        key: OperationKey,
        target: &OperationKey,
        mut data: Vec<u8>,
        mut close: bool,
    ) {
        match self.journal.get_mut(&key) {
            Some(Entry::StdinPending(waiters)) => return waiters.push(stream),
            Some(Entry::Stdin(result, _)) => {
                let reply = answer(result.clone());
                return self.finish(stream, &reply);
            }
            Some(_) => return self.fail(stream, super::verbs::other_kind()),
            None => {}
        }
        let id = match self.journal.get(target) {
            Some(Entry::Exec(id)) => *id,
            Some(_) => return self.fail(stream, super::verbs::other_kind()),
            None => return self.fail(stream, super::verbs::never_was()),
        };
        if let Err(error) = self.journal.admit(&key, Instant::now()) {
            return self.fail(stream, error);
        }
        let Some(operation) = self.operations.get_mut(&id) else { return };
        if operation.input_bytes() + data.len() > limits::STDIN_QUEUE_BYTES {
            return self.fail(stream, too_much());
        }
        let has_pipe = operation.has_tree() && operation.process.as_ref().is_some_and(|p| p.stdin.is_some());
        if !has_pipe {
            let code = ErrorCode::Ended;
            let message = "the command has ended, or its input is closed".to_owned();
            self.journal.record(
                key,
                Entry::Stdin(Err(AgentError { code, message: message.clone() }), Instant::now()),
            );
            return self.fail(stream, AgentError { code, message });
        }
        if operation.terminal {
            end_line(operation, &mut data, &mut close);
        }
        let until = Instant::now() + limits::STDIN_WAIT;
        let asked_by = Some((key.clone(), until));
        operation.input.push_back(Input { data, written: 0, close, asked_by });
        self.journal.record(key, Entry::StdinPending(vec![stream]));
        self.write_input(id);
    }

    /// A terminal has another size.
    pub(super) fn resize(&mut self, stream: StreamId, key: &OperationKey, size: TerminalSize) {
        let refusal = |code, message: &str| AgentError { code, message: message.to_owned() };
        let id = match self.journal.get(key) {
            Some(Entry::Exec(id)) => *id,
            Some(_) => return self.fail(stream, super::verbs::other_kind()),
            None => return self.fail(stream, super::verbs::never_was()),
        };
        let process = self.operations.get(&id).filter(|o| o.has_tree()).and_then(|o| o.process.as_ref());
        let Some(process) = process else {
            return self.fail(stream, refusal(ErrorCode::Ended, "the command has ended"));
        };
        let Some(terminal) = &process.terminal else {
            return self.fail(stream, refusal(ErrorCode::Conflict, "the command has no terminal"));
        };
        match crate::kernel::resize_terminal(terminal.as_raw_fd(), size.rows, size.cols) {
            Ok(()) => self.finish(stream, &Reply::Done),
            Err(errno) => self.fail(stream, refusal(ErrorCode::Io, errno.desc())),
        }
    }

    /// Bytes that the worker sent on an operation's own stream; none at all means end of input.
    pub(super) fn stream_input(&mut self, id: OperationId, stream: StreamId, content: &[u8]) {
        let Some(operation) = self.operations.get_mut(&id) else { return };
        if operation.stream != Some(stream) || operation.process.as_ref().is_none_or(|p| p.stdin.is_none()) {
            return;
        }
        if operation.input_bytes() + content.len() > limits::STDIN_QUEUE_BYTES {
            operation.stream = None;
            return self.fail(stream, too_much());
        }
        let mut data = content.to_vec();
        let mut close = content.is_empty();
        if operation.terminal {
            end_line(operation, &mut data, &mut close);
        }
        operation.input.push_back(Input { data, written: 0, close, asked_by: None });
        self.write_input(id);
    }

    /// Writes what the command's pipe takes.
    pub(super) fn write_input(&mut self, id: OperationId) {
        let mut answers = Vec::new();
        let Some(operation) = self.operations.get_mut(&id) else { return };
        // A warm shell that does not begin is given up, and what its pipe had taken would go with it.
        if operation.warm && matches!(operation.phase, Phase::Starting(_)) {
            return;
        }
        let Some(process) = &mut operation.process else { return };
        let mut over = false;
        while let (Some(stdin), Some(input)) = (&process.stdin, operation.input.front_mut()) {
            if input.written < input.data.len() {
                match nix::unistd::write(stdin, &input.data[input.written..]) {
                    Ok(written) => {
                        input.written += written;
                        continue;
                    }
                    Err(Errno::EINTR) => continue,
                    Err(Errno::EAGAIN) => break,
                    // Nobody reads any more.
                    Err(_) => over = true,
                }
            }
            over |= input.close;
            if let Some(input) = operation.input.pop_front() {
                answers.extend(input.asked_by.map(|(key, _)| (key, input.written as u64)));
            }
            if over {
                break;
            }
        }
        let wants = !over && !operation.input.is_empty();
        if let Some(stdin) = &process.stdin {
            if operation.watched.stdin && !wants {
                let _ = self.epoll.delete(stdin);
                operation.watched.stdin = false;
            } else if wants && !operation.watched.stdin {
                use nix::sys::epoll::EpollEvent;
                let event = EpollEvent::new(EpollFlags::EPOLLOUT, Source::Stdin(id).token());
                operation.watched.stdin = self.epoll.add(stdin, event).is_ok();
            }
        }
        if over {
            process.stdin = None;
            answers.extend(operation.input.drain(..).filter_map(|input| Some((input.asked_by?.0, 0))));
        }
        for (key, written_bytes) in answers {
            self.input_settled(&key, Ok(StdinWritten { written_bytes }));
        }
    }

    /// A write has waited long enough for a command that does not read: what was taken is its result.
    pub(super) fn expire_input(&mut self, id: OperationId, now: Instant) {
        let Some(operation) = self.operations.get_mut(&id) else { return };
        let is_due = |input: &Input| input.asked_by.as_ref().is_some_and(|(_, until)| now >= *until);
        let mut answers = Vec::new();
        while operation.input.front().is_some_and(is_due) {
            let Some(input) = operation.input.pop_front() else { break };
            answers.extend(input.asked_by.map(|(key, _)| (key, input.written as u64)));
        }
        if answers.is_empty() {
            return;
        }
        for (key, written_bytes) in answers {
            self.input_settled(&key, Ok(StdinWritten { written_bytes }));
        }
        self.write_input(id);
    }

    /// The command is gone: whoever still wants to write to it learns what was taken.
    pub(super) fn give_up_input(&mut self, operation: &mut Operation) {
        operation.watched.stdin = false;
        for input in std::mem::take(&mut operation.input) {
            if let Some((key, _)) = input.asked_by {
                self.input_settled(&key, Ok(StdinWritten { written_bytes: input.written as u64 }));
            }
        }
    }

    fn input_settled(&mut self, key: &OperationKey, result: Result<StdinWritten, AgentError>) {
        for waiter in self.journal.settle(key, Entry::Stdin(result.clone(), Instant::now())) {
            self.finish(waiter, &answer(result.clone()));
        }
    }
}

fn answer(result: Result<StdinWritten, AgentError>) -> Reply {
    match result {
        Ok(written) => Reply::StdinWritten(written),
        Err(error) => Reply::Error(error),
    }
}
