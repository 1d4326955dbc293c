//! How commands end: what their supervisors report, deadlines, and what the journal keeps.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use protocol::{AgentError, ExecExit, OperationState, Reply};

use super::Daemon;
use crate::journal::Entry;
use crate::kernel;
use crate::limits;
use crate::operation::{Operation, OperationId, Pending, Phase};
use crate::process::control::{Gone, Report, receive_report};

impl Daemon {
    /// The command was never started. That is its result.
    pub(super) fn abandon(&mut self, id: OperationId, error: AgentError) {
        self.disconnect(id);
        self.active.remove(&id);
        let Some(mut operation) = self.operations.remove(&id) else { return };
        self.buffered -= operation.log.len();
        if !operation.forgotten {
            self.journal.record(operation.key.clone(), Entry::Refused(error.clone()));
        }
        self.give_up_input(&mut operation);
        for waiter in operation.kill_waiters {
            self.finish(waiter, &Reply::Done);
        }
        if let Some(stream) = operation.stream {
            self.fail(stream, error);
        }
    }

    pub(super) fn supervisor_reports(&mut self, id: OperationId) {
        loop {
            let Some(process) = self.operations.get(&id).and_then(|operation| operation.process.as_ref())
            else {
                return;
            };
            match receive_report(process.control.as_fd()) {
                Ok(None) => return,
                Ok(Some(Report::Stuck)) => self.reset_sandbox(),
                Ok(Some(Report::Gone(gone))) => return self.gone(id, gone),
                // A supervisor without a last word was killed itself; only the kernel does that, for want of memory.
                Err(_) => {
                    let killed =
                        Gone { status: Some(nix::libc::SIGKILL), cpu_ms: 0, max_rss_bytes: 0, left_over: 0 };
                    return self.gone(id, killed);
                }
            }
        }
    }

    fn gone(&mut self, id: OperationId, gone: Gone) {
        let supervisor = |daemon: &Self| Some(daemon.operations.get(&id)?.process.as_ref()?.supervisor);
        let reported = supervisor(self);
        self.gate_speaks(id);
        if supervisor(self) != reported {
            return;
        }
        let Some(operation) = self.operations.get_mut(&id) else { return };
        if matches!(operation.phase, Phase::Starting(_)) {
            return self.not_begun(id);
        }
        let status = gone.status;
        let exit = ExecExit {
            exit_code: status.filter(|s| nix::libc::WIFEXITED(*s)).map(|s| nix::libc::WEXITSTATUS(s)),
            signal: status.filter(|s| nix::libc::WIFSIGNALED(*s)).map(|s| nix::libc::WTERMSIG(s)),
            timed_out: operation.timed_out,
            killed: operation.killed,
            oom_killed: self.control_group.oom_kills() > operation.oom_kills_before,
            left_over: gone.left_over,
            sandbox_reset: operation.reset,
            duration_ms: operation.started_at.elapsed().as_millis() as u64,
            cpu_ms: gone.cpu_ms,
            max_rss_bytes: gone.max_rss_bytes,
            stdout_bytes: 0,
            stderr_bytes: 0,
        };
        let mut pending = Pending { stdout: 0, stderr: 0 };
        let waiters = std::mem::take(&mut operation.kill_waiters);
        if let Some(process) = &mut operation.process {
            let waiting =
                |fd: &Option<OwnedFd>| fd.as_ref().map_or(0, |fd| kernel::bytes_waiting(fd.as_raw_fd()));
            pending = Pending { stdout: waiting(&process.stdout), stderr: waiting(&process.stderr) };
            if process.terminal.is_some() {
                // The kernel moves a terminal's bytes in the background and counts only those that have arrived; its end
                // is told by an error, once the tree that held the other side is gone.
                pending.stdout = limits::TERMINAL_REST_BYTES;
            }
        }
        if let Some(report) = &operation.report {
            kernel::cut(report, protocol::REPORT_BYTES);
        }
        operation.phase = Phase::Draining(exit, pending);
        self.stop_watching(id);
        for waiter in waiters {
            self.finish(waiter, &Reply::Done);
        }
        self.drain(id);
    }

    /// Everything is known: the operation stays in the journal until its owner is forgotten.
    pub(super) fn ended(&mut self, id: OperationId) {
        self.disconnect(id);
        self.active.remove(&id);
        if !self.has_subreapers && self.active.is_empty() {
            self.sweep_at = Some(Instant::now());
        }
        self.warm.rest(Instant::now());
        let Some(operation) = self.operations.get_mut(&id) else { return };
        if let Phase::Draining(exit, _) = &mut operation.phase {
            (exit.stdout_bytes, exit.stderr_bytes) = operation.log.totals();
            operation.phase = Phase::Ended(exit.clone());
        }
        if operation.forgotten {
            let length = operation.log.len();
            self.buffered -= length;
            self.operations.remove(&id);
            return;
        }
        self.pump(id);
    }

    /// Deadlines, and warm shells that do not confirm.
    pub(super) fn tend_operations(&mut self, now: Instant) {
        let due: Vec<OperationId> = self.active.iter().copied().filter(|id| self.is_due(*id, now)).collect();
        for id in due {
            self.expire_input(id, now);
            let Some(operation) = self.operations.get_mut(&id) else { continue };
            if operation.has_tree() && !operation.timed_out && operation.deadline.is_some_and(|at| now >= at)
            {
                operation.timed_out = true;
                let grace = operation.grace;
                self.end_tree(id, grace);
            } else if let Phase::Starting(starting) = &mut operation.phase
                && starting.confirm_by.is_some_and(|at| now >= at)
            {
                // Once its tree is gone the gate has its last word, and `gone` decides.
                starting.confirm_by = None;
                self.end_tree(id, Duration::ZERO);
            }
        }
    }

    fn is_due(&self, id: OperationId, now: Instant) -> bool {
        self.operations.get(&id).and_then(Operation::wakes_at).is_some_and(|at| now >= at)
    }

    /// The operation's state for [`Reply::Status`].
    pub(super) fn state_of(&self, id: OperationId) -> Option<OperationState> {
        self.operations.get(&id).map(Operation::state)
    }
}
