//! Commands: starting them in a warm or a new shell, learning whether they began, and how they ended.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use protocol::{
    AgentError, ErrorCode, ExecAttached, ExecRequest, ExecSpec, OperationKey, Program, Reply, Role,
    StdinMode, StreamId,
};

use super::{Daemon, Source, StreamUse};
use crate::journal::Entry;
use crate::limits;
use crate::log::Log;
use crate::operation::{Input, Operation, OperationId, Phase, Starting, Watched};
use crate::process::launch::{self, refuse};
use crate::process::{Process, child, prelude, spawn};
use crate::warm::Recipe;

impl Daemon {
    pub(super) fn exec(&mut self, stream: StreamId, request: ExecRequest) {
        match self.journal.get(&request.key) {
            Some(Entry::Exec(id)) => self.attach(*id, stream, request.resume_from),
            Some(Entry::Refused(error)) => {
                let error = error.clone();
                self.fail(stream, error);
            }
            Some(_) => self.fail(stream, super::verbs::other_kind()),
            None => match request.spec {
                Some(spec) => self.start(stream, request.key, spec),
                None => self.fail(stream, super::verbs::never_was()),
            },
        }
    }

    fn start(&mut self, stream: StreamId, key: OperationKey, spec: ExecSpec) {
        // Nothing has happened for the key yet, so that a refusal for want of room may be tried again.
        if let Err(error) = self.journal.admit(&key, Instant::now()).and_then(|()| self.has_room()) {
            return self.fail(stream, error);
        }
        let (process, warm) = match self.start_process(&spec, Shells::WarmIfFits) {
            Ok(started) => started,
            Err(error) => {
                self.journal.record(key, Entry::Refused(error.clone()));
                return self.fail(stream, error);
            }
        };
        let id = self.next_operation;
        self.next_operation += 1;
        let now = Instant::now();
        let mut operation = Operation {
            key: key.clone(),
            phase: Phase::Running,
            process: None,
            report: None,
            watched: Watched::default(),
            log: Log::default(),
            stream: Some(stream),
            attached: false,
            started_by: Some(stream),
            input: Default::default(),
            kill_waiters: Vec::new(),
            started_at: now,
            deadline: spec.timeout_ms.map(|ms| now + Duration::from_millis(ms)),
            grace: Duration::from_millis(spec.grace_ms).min(limits::GRACE_MAX),
            detached: spec.detached,
            terminal: spec.terminal.is_some(),
            line_begun: false,
            warm,
            timed_out: false,
            killed: false,
            reset: false,
            oom_kills_before: self.control_group.oom_kills(),
            forgotten: false,
        };
        if let StdinMode::Text(text) = &spec.stdin {
            let data = text.clone().into_bytes();
            operation.input.push_back(Input { data, written: 0, close: true, asked_by: None });
        }
        let confirm = match spec.program {
            Program::Shell { .. } => limits::WARM_CONFIRM,
            Program::Argv { .. } => limits::INTERPRETER_CONFIRM,
        };
        let confirm_by = warm.then(|| now + confirm);
        operation.phase = Phase::Starting(Starting { spec: Box::new(spec), fallback: false, confirm_by });
        self.operations.insert(id, operation);
        self.active.insert(id);
        self.journal.record(key, Entry::Exec(id));
        self.streams.insert(stream, StreamUse::Exec(id));
        self.connect(id, process);
        self.warm.rest(now);
    }

    fn has_room(&self) -> Result<(), AgentError> {
        let refuse =
            |message: &str| Err(AgentError { code: ErrorCode::LimitExceeded, message: message.to_owned() });
        let running =
            self.active.iter().filter(|id| self.operations.get(id).is_some_and(Operation::has_tree));
        if running.count() >= limits::RUNNING_OPERATIONS {
            return refuse("too many operations run in this sandbox; wait for one to end");
        }
        if self.buffered >= limits::BUFFERED_REFUSE_BYTES {
            return refuse("too much output waits to be taken; read or forget ended operations first");
        }
        Ok(())
    }

    /// Starts the command child, or releases one that has waited. Says whether it was a warm one.
    fn start_process(&mut self, spec: &ExecSpec, shells: Shells) -> Result<(Process, bool), AgentError> {
        let recipe = recipe(spec);
        if let Some(recipe) = &recipe {
            self.warm.expect(recipe.clone(), Instant::now());
        }
        if let (Shells::WarmIfFits, Some(recipe)) = (shells, &recipe)
            && let Some(text) = release_text(spec)
            && let Some(mut process) = self.take_warm_program(recipe)
        {
            process.release(Some(&text));
            if !spec.role.reports() {
                process.memory = None;
            }
            if spec.stdin == StdinMode::Null {
                process.stdin = None;
            }
            return Ok((process, true));
        }
        let kernel = self.kernel_of(&spec.role)?;
        let Some(settings) = &self.settings else { return Err(refuse("the sandbox has no owner yet")) };
        let launch = launch::for_spec(&settings.env, spec, settings.uid, kernel)?;
        let grace = Duration::from_millis(spec.grace_ms).min(limits::GRACE_MAX);
        let mut process = spawn(launch, grace)?;
        self.supervisors.insert(process.supervisor.as_raw());
        if recipe.is_some() {
            process.release(None);
        }
        if !spec.role.reports() {
            process.memory = None;
        }
        Ok((process, false))
    }

    /// The socket of the kernel that a request is for.
    fn kernel_of(&self, role: &Role) -> Result<Option<OwnedFd>, AgentError> {
        let Role::Request { kernel } = role else { return Ok(None) };
        let ended = || AgentError { code: ErrorCode::Ended, message: "the interpreter has ended".to_owned() };
        let Some(Entry::Exec(id)) = self.journal.get(kernel) else { return Err(ended()) };
        let operation = self.operations.get(id).filter(|operation| operation.has_tree()).ok_or_else(ended)?;
        let socket = operation.process.as_ref().and_then(|process| process.kernel.as_ref());
        socket.and_then(|socket| socket.try_clone().ok()).map(Some).ok_or_else(ended)
    }

    /// Puts a process's descriptors into the loop.
    fn connect(&mut self, id: OperationId, mut process: Process) {
        let read = EpollFlags::EPOLLIN;
        self.watch(&process.control, Source::Control(id), read);
        if let Some(gate) = &process.gate {
            self.watch(gate, Source::Gate(id), read);
        }
        let mut watched = Watched::default();
        if let Some(stdout) = &process.stdout {
            watched.stdout = self.watch(stdout, Source::Stdout(id), read);
        }
        if let Some(stderr) = &process.stderr {
            watched.stderr = self.watch(stderr, Source::Stderr(id), read);
        }
        let gate_lost = process.gate.is_none();
        if let Some(operation) = self.operations.get_mut(&id) {
            operation.watched = watched;
            operation.report = process.memory.take();
            operation.process = Some(process);
        }
        self.write_input(id);
        if gate_lost {
            self.not_begun(id);
        }
    }

    /// Takes a process's descriptors out of the loop. Dropping it makes its supervisor end the tree, if it lives.
    pub(super) fn disconnect(&mut self, id: OperationId) {
        let Some(process) = self.operations.get_mut(&id).and_then(|operation| operation.process.take())
        else {
            return;
        };
        self.unwatch(&process.control);
        for fd in [&process.gate, &process.stdin, &process.stdout, &process.stderr].into_iter().flatten() {
            self.unwatch(fd);
        }
    }

    /// The gate tells whether the command has begun.
    pub(super) fn gate_speaks(&mut self, id: OperationId) {
        let Some(operation) = self.operations.get_mut(&id) else { return };
        let Phase::Starting(starting) = &mut operation.phase else { return };
        let speaks = match starting.spec.program {
            Program::Shell { .. } => true,
            Program::Argv { .. } => starting.spec.role.reports(),
        };
        let Some(gate) = operation.process.as_ref().and_then(|process| process.gate.as_ref()) else { return };
        let mut record = [0; 64];
        loop {
            match nix::unistd::read(gate, &mut record) {
                // A reset is an end as well: the child went without reading its release.
                Ok(0) | Err(Errno::ECONNRESET) if speaks && !starting.fallback => return self.not_begun(id),
                Ok(0) | Err(Errno::ECONNRESET) => return self.begun(id),
                Ok(length) => {
                    let mut words = &record[..length];
                    while let [word, rest @ ..] = words {
                        words = rest;
                        match *word {
                            child::GATE_BEGUN => return self.begun(id),
                            child::GATE_FALLBACK => starting.fallback = true,
                            child::GATE_FAILED => {
                                let mut failure = [0; 5];
                                let known = rest.len().min(failure.len());
                                failure[..known].copy_from_slice(&rest[..known]);
                                return self.not_started(id, failure);
                            }
                            _ => {}
                        }
                    }
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return,
                Err(_) => return self.not_begun(id),
            }
        }
    }

    fn begun(&mut self, id: OperationId) {
        let Some(operation) = self.operations.get_mut(&id) else { return };
        operation.phase = Phase::Running;
        let gate = operation.process.as_mut().and_then(|process| process.gate.take());
        if let Some(gate) = gate {
            self.unwatch(&gate);
        }
        self.say_attached(id);
        self.write_input(id);
    }

    /// The shell is gone, or slow, and the command has certainly not begun: a new shell takes over from a warm one.
    pub(super) fn not_begun(&mut self, id: OperationId) {
        let Some(operation) = self.operations.get_mut(&id) else { return };
        let Phase::Starting(starting) = &operation.phase else { return };
        if operation.killed || operation.timed_out {
            return self.begun(id);
        }
        if !operation.warm {
            return self.abandon(id, refuse("its interpreter ended before the command began"));
        }
        operation.warm = false;
        let spec = starting.spec.clone();
        operation.phase = Phase::Starting(Starting { spec: spec.clone(), fallback: false, confirm_by: None });
        self.disconnect(id);
        match self.start_process(&spec, Shells::New) {
            Ok((process, _)) => self.connect(id, process),
            Err(error) => self.abandon(id, error),
        }
    }

    fn not_started(&mut self, id: OperationId, failure: [u8; 5]) {
        let Some(operation) = self.operations.get(&id) else { return };
        let Phase::Starting(starting) = &operation.phase else { return };
        if operation.warm {
            return self.not_begun(id);
        }
        let program = match &starting.spec.program {
            Program::Shell { .. } => "bash",
            Program::Argv { argv, .. } => argv.first().map_or("", String::as_str),
        };
        let error = child::failure(failure, &starting.spec.cwd, program);
        self.abandon(id, error);
    }

    /// Sends an operation's output on a new stream, from the first byte that is not durable.
    fn attach(&mut self, id: OperationId, stream: StreamId, resume_from: u64) {
        let Some(operation) = self.operations.get_mut(&id) else { return };
        let before = operation.log.len();
        operation.log.acknowledge(resume_from);
        self.buffered -= before - operation.log.len();
        operation.log.rewind();
        operation.attached = false;
        let replaced = operation.stream.replace(stream);
        let starting = matches!(operation.phase, Phase::Starting(_));
        if let Some(replaced) = replaced {
            self.close(replaced);
        }
        self.streams.insert(stream, StreamUse::Exec(id));
        if !starting {
            self.say_attached(id);
        }
        self.resume_reading();
    }

    fn say_attached(&mut self, id: OperationId) {
        let Some(operation) = self.operations.get_mut(&id) else { return };
        let Some(stream) = operation.stream else { return };
        operation.attached = true;
        let running_ms = match operation.exit() {
            Some(exit) => exit.duration_ms,
            None => operation.started_at.elapsed().as_millis() as u64,
        };
        let attached = ExecAttached {
            state: operation.state(),
            started: operation.started_by == Some(stream),
            offset: operation.log.rewind(),
            running_ms,
            warm: operation.warm,
            pid: operation
                .process
                .as_ref()
                .and_then(|process| u32::try_from(process.supervisor.as_raw()).ok()),
            terminal: operation.terminal,
        };
        self.reply(stream, &Reply::Attached(attached));
        self.pump(id);
    }
}

/// What a program that can wait for this would be started with.
fn recipe(spec: &ExecSpec) -> Option<Recipe> {
    let argv = match (&spec.program, &spec.role) {
        (Program::Shell { .. }, _) => None,
        (Program::Argv { argv, .. }, Role::Interpreter) => Some(argv.clone()),
        (Program::Argv { .. }, Role::Command | Role::Kernel | Role::Request { .. }) => return None,
    };
    let grace = Duration::from_millis(spec.grace_ms).min(limits::GRACE_MAX);
    Some(Recipe { argv, limits: spec.limits.clone(), grace })
}

/// What a program that has waited is to be told. `None` when only a new one will do.
fn release_text(spec: &ExecSpec) -> Option<String> {
    match &spec.program {
        Program::Shell { command } => {
            let fits = spec.terminal.is_none()
                && spec.cwd.starts_with('/')
                && !command.contains('\0')
                && !spec.cwd.contains('\0')
                && prelude::fits_started_shell(&spec.env)
                && spec.env.values().all(|value| !value.contains('\0'));
            let null_stdin = spec.stdin == StdinMode::Null;
            fits.then(|| prelude::release_text(command, &spec.cwd, &spec.env, null_stdin))
        }
        Program::Argv { script, .. } => {
            script.clone().filter(|_| prelude::fits_started_interpreter(&spec.env))
        }
    }
}

/// Which shell may serve a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shells {
    WarmIfFits,
    New,
}
