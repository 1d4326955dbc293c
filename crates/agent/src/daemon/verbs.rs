//! The requests, one by one: what each verb asks of the rest of the daemon.

use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use protocol::{
    AgentError, AgentStatus, ErrorCode, KillRequest, OperationKey, OperationStatus, Reply, Request, StreamId,
};

use super::Daemon;
use crate::journal::Entry;
use crate::operation::OperationId;
use crate::process::control::Order;
use crate::process::tree;
use crate::{cgroup, kernel};

/// The journal has never heard of a key.
pub(super) fn never_was() -> AgentError {
    AgentError { code: ErrorCode::NotFound, message: "there is no such operation in this sandbox".to_owned() }
}

/// A key names something else than the request takes it for.
pub(super) fn other_kind() -> AgentError {
    AgentError {
        code: ErrorCode::Conflict,
        message: "the key belongs to an operation of another kind".to_owned(),
    }
}

impl Daemon {
    pub(super) fn request(&mut self, stream: StreamId, payload: &[u8]) {
        let Ok(request) = serde_json::from_slice::<Request>(payload) else {
            let message = "the request is not one that this agent understands".to_owned();
            return self.fail(stream, AgentError { code: ErrorCode::Unsupported, message });
        };
        if self.link.as_ref().is_some_and(|link| request.needs() > link.version) {
            let message = "the request is of a newer version of the protocol than was agreed on".to_owned();
            return self.fail(stream, AgentError { code: ErrorCode::Unsupported, message });
        }
        match request {
            Request::Exec(request) => self.exec(stream, request),
            Request::Kill(request) => self.kill(stream, &request),
            Request::WriteStdin { key, target, data, bytes, close } => {
                let data = bytes.unwrap_or(data.into_bytes());
                self.write_stdin(stream, key, &target, data, close);
            }
            Request::Resize { key, size } => self.resize(stream, &key, size),
            Request::Detach { key, timeout_ms } => self.detach(stream, &key, timeout_ms),
            Request::Read(request) => self.read_file(stream, request),
            Request::Write(request) => self.write_file(stream, request),
            Request::List(request) => self.list_files(stream, request),
            Request::Remove(request) => self.remove_file(stream, request),
            Request::Move(request) => self.move_entry(stream, request),
            Request::MakeDirectory { root, path } => self.make_directory(stream, root, path),
            Request::Glob(request) => self.glob_files(stream, request),
            Request::Grep(request) => self.grep_files(stream, request),
            Request::Stat { root, path } => self.stat_file(stream, root, path),
            Request::Watch(request) => self.watch_files(stream, request),
            Request::Report { key } => self.read_report(stream, &key),
            Request::Status => {
                let status = self.status();
                self.finish(stream, &Reply::Status(status));
            }
            Request::Forget { owner } => self.forget(stream, &owner),
            Request::Unknown => {
                let message = "the agent of this sandbox does not know this request".to_owned();
                self.fail(stream, AgentError { code: ErrorCode::Unsupported, message });
            }
        }
    }

    pub(super) fn command(&self, key: &OperationKey) -> Result<Option<OperationId>, AgentError> {
        match self.journal.get(key) {
            Some(Entry::Exec(id)) => Ok(Some(*id)),
            Some(Entry::Refused(_)) => Ok(None),
            Some(_) => Err(other_kind()),
            None => Err(never_was()),
        }
    }

    fn kill(&mut self, stream: StreamId, request: &KillRequest) {
        let id = match self.command(&request.key) {
            Ok(id) => id,
            Err(error) => return self.fail(stream, error),
        };
        let living = id.and_then(|id| self.operations.get_mut(&id).map(|operation| (id, operation)));
        let Some((id, operation)) = living.filter(|(_, operation)| operation.has_tree()) else {
            return self.finish(stream, &Reply::Done);
        };
        if let Some(signal) = request.signal {
            // In a terminal the keyboard speaks to the group in the foreground, and so does a signal.
            let terminal = operation.process.as_ref().and_then(|process| process.terminal.as_ref());
            let group = terminal.and_then(|terminal| kernel::foreground_of(terminal.as_raw_fd()));
            match (group, Signal::try_from(signal)) {
                (Some(group), Ok(signal)) if killpg(Pid::from_raw(group), signal).is_ok() => {}
                _ => self.order(id, Order::Signal(signal)),
            }
            return self.finish(stream, &Reply::Done);
        }
        operation.killed = true;
        operation.kill_waiters.push(stream);
        self.end_tree(id, Duration::from_millis(request.grace_ms));
    }

    fn detach(&mut self, stream: StreamId, key: &OperationKey, timeout_ms: Option<u64>) {
        let ended = || AgentError { code: ErrorCode::Ended, message: "the command has ended".to_owned() };
        let found = self.command(key).and_then(|id| id.ok_or_else(ended));
        let operation = match found.map(|id| self.operations.get_mut(&id).filter(|o| o.has_tree())) {
            Ok(Some(operation)) => operation,
            Ok(None) => return self.fail(stream, ended()),
            Err(error) => return self.fail(stream, error),
        };
        operation.detached = true;
        operation.deadline = timeout_ms.map(|ms| Instant::now() + Duration::from_millis(ms));
        self.finish(stream, &Reply::Done);
    }

    /// What is durable elsewhere goes; what still runs for nobody is killed and goes when it is gone.
    fn forget(&mut self, stream: StreamId, owner: &str) {
        let operations = &self.operations;
        let keep =
            |id| operations.get(&id).is_some_and(|operation| operation.detached && operation.has_tree());
        for id in self.journal.forget(owner, keep) {
            let Some(operation) = self.operations.get_mut(&id) else { continue };
            self.buffered -= operation.log.len();
            operation.log.acknowledge(u64::MAX);
            operation.forgotten = true;
            let (has_tree, attached) = (operation.has_tree(), operation.stream.take());
            if let Some(attached) = attached {
                self.fail(attached, never_was());
            }
            if has_tree {
                self.end_tree(id, Duration::ZERO);
            } else if self.active.contains(&id) {
                self.drain(id);
            } else {
                self.operations.remove(&id);
            }
        }
        self.resume_reading();
        self.finish(stream, &Reply::Done);
    }

    fn status(&self) -> AgentStatus {
        let operations = self.operations.iter().filter(|(_, operation)| !operation.forgotten);
        let running = operations.clone().filter(|(_, operation)| operation.has_tree());
        let (ids, supervisors): (Vec<OperationId>, Vec<i32>) = running
            .filter_map(|(id, operation)| Some((*id, operation.process.as_ref()?.supervisor.as_raw())))
            .unzip();
        let cpu_ms: HashMap<_, _> = ids.into_iter().zip(tree::cpu_ms_below(&supervisors)).collect();
        AgentStatus {
            operations: operations
                .filter_map(|(id, operation)| {
                    Some(OperationStatus {
                        key: operation.key.clone(),
                        state: self.state_of(*id)?,
                        log_bytes: operation.log.end(),
                        detached: operation.detached,
                        exit: operation.exit().cloned(),
                        cpu_ms: cpu_ms.get(id).copied(),
                    })
                })
                .collect(),
            oom_kills: self.control_group.oom_kills(),
            agent_rss_bytes: cgroup::own_rss_bytes(),
            memory_bytes: self.control_group.memory_bytes(),
            processes: self.settings.as_ref().map_or(0, |settings| tree::count_of(settings.uid)),
        }
    }
}
