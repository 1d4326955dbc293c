//! What the daemon does beside its requests: signals, reaping, warm shells, the last resort, and processes whose
//! supervisor died.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::sys::epoll::EpollFlags;
use nix::sys::signal::Signal;

use super::{Daemon, Source};
use crate::operation::OperationId;
use crate::process::control::{Order, send_order};
use crate::process::{Process, child, launch, spawn, tree};
use crate::warm::Recipe;
use crate::{kernel, limits};

/// Rest between two looks at processes without a supervisor.
const SWEEP_REST: Duration = Duration::from_millis(5);

impl Daemon {
    pub(super) fn signalled(&mut self) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            if info.ssi_signo == Signal::SIGCHLD as u32 {
                continue;
            }
            // A tool must not be able to stop the agent: only root, or somebody outside this pid namespace (whose
            // number is 0 here), may. A forged origin has another code.
            let honest = info.ssi_code == nix::libc::SI_USER || info.ssi_code == nix::libc::SI_KERNEL;
            if honest && (info.ssi_pid == 0 || info.ssi_uid == 0) {
                self.stopping = true;
            }
        }
        self.reap();
    }

    /// Reaps whatever has ended. Everything below a supervisor is its own to reap, so a stranger here means that a
    /// supervisor has died before its tree; without subreapers, any orphan.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = kernel::reap_one() {
            let was_supervisor = self.supervisors.remove(&pid);
            if self.has_subreapers && (!was_supervisor || nix::libc::WIFSIGNALED(status)) {
                self.sweep_at = Some(Instant::now());
            }
        }
    }

    /// Kills what belongs to no supervisor, until nothing does.
    pub(super) fn sweep_strays(&mut self, now: Instant) {
        if self.sweep_at.is_none_or(|at| now < at) {
            return;
        }
        // Without subreapers, nobody knows whose they are while anything runs: the last operation's end asks again.
        if !self.has_subreapers && !self.active.is_empty() {
            self.sweep_at = None;
            return;
        }
        let strays = tree::strays(nix::unistd::getpid().as_raw(), &self.supervisors);
        tree::signal_all(&strays, Signal::SIGKILL);
        self.sweep_at = (!strays.is_empty()).then(|| now + SWEEP_REST);
    }

    /// Tells an operation's supervisor to end its tree.
    pub(super) fn end_tree(&mut self, id: OperationId, grace: Duration) {
        self.order(id, Order::End(grace.min(limits::GRACE_MAX)));
    }

    /// Gives an operation's supervisor an order.
    pub(super) fn order(&mut self, id: OperationId, order: Order) {
        if let Some(process) = self.operations.get(&id).and_then(|operation| operation.process.as_ref()) {
            // A supervisor that is gone has said so on the same socket, which the loop is about to read.
            let _ = send_order(process.control.as_fd(), order);
        }
    }

    /// The last resort: everything of the tool's uid dies, in one pass that no fork escapes.
    pub(super) fn reset_sandbox(&mut self) {
        for id in &self.active {
            if let Some(operation) = self.operations.get_mut(id)
                && operation.has_tree()
            {
                operation.reset = true;
            }
        }
        if let Some(files) = &self.files {
            files.reset();
        }
    }

    pub(super) fn take_warm_program(&mut self, recipe: &Recipe) -> Option<Process> {
        let process = self.warm.take(recipe)?;
        self.unwatch(&process.control);
        if let Some(gate) = &process.gate {
            // A program that has said something already is dead, or somebody has released it: it is of no use.
            let mut word = [0; 1];
            if nix::unistd::read(gate, &mut word) != Err(nix::errno::Errno::EAGAIN) {
                self.warm.rest_longer(Instant::now());
                return None;
            }
        }
        Some(process)
    }

    /// A warm program speaks only when it is gone. An image without bash is not asked again.
    pub(super) fn warm_program_reports(&mut self, id: u64) {
        let Some(program) = self.warm.take_by_id(id) else { return };
        self.unwatch(&program.process.control);
        let mut record = [0; 6];
        let said = program.process.gate.as_ref().map(|gate| nix::unistd::read(gate, &mut record));
        if said == Some(Ok(record.len())) && record[..2] == [child::GATE_FAILED, child::Stage::Program as u8]
        {
            self.warm.give_up(&program);
        }
        self.warm.rest_longer(Instant::now());
    }

    pub(super) fn discard_warm_programs(&mut self) {
        for program in self.warm.take_all() {
            self.unwatch(&program.process.control);
        }
    }

    pub(super) fn warm_programs_wake_at(&self) -> Option<Instant> {
        let settings = self.settings.as_ref()?;
        self.warm.wakes_at(settings.warm_shells, Instant::now())
    }

    /// Starts one waiting program when one is missing and nothing has happened for a moment.
    pub(super) fn tend_warm_programs(&mut self, now: Instant) {
        for program in self.warm.take_unexpected(now) {
            self.unwatch(&program.process.control);
        }
        let Some(settings) = &self.settings else { return };
        if !self.warm.has_rested(now) {
            return;
        }
        let Some(recipe) = self.warm.wanted(settings.warm_shells) else { return };
        let launch = match &recipe.argv {
            None => launch::waiting_shell(&settings.env, &recipe.limits, settings.uid),
            Some(argv) => launch::waiting_interpreter(&settings.env, argv, &recipe.limits, settings.uid),
        };
        let program = launch.and_then(|launch| spawn(launch, recipe.grace));
        let Ok(process) = program else { return self.warm.rest_longer(now) };
        self.supervisors.insert(process.supervisor.as_raw());
        let id = self.warm.add(process, recipe);
        if let Some(program) = self.warm.get(id) {
            self.watch(&program.process.control, Source::Warm(id), EpollFlags::EPOLLIN);
        }
        self.warm.rest(now);
    }
}
