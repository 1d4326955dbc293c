//! Commands: in the foreground until they end, or handed to a shell that outlives the call.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use domain::limits::KILL_GRACE_MS;
use sandbox::protocol::{self, ExecExit, ExecLimits, ExecSpec, OperationKey, Role, StdinMode, TerminalSize};
use serde_json::{Map, Value};
use store::ShellLog;
use tools::ToolError;
use tools::port::{
    Background, Captured, Command, CommandEnd, CommandOutcome, FileContent, FileRemoval, FileWrite,
    FileWritten, FilesRemoved, GlobQuery, Globbed, GrepQuery, Grepped, ListQuery, Listing, Named, NamedEnd,
    Program, Sandbox, SandboxPath,
};

use super::background::shell_of;
use super::foreground::{Foreground, Went};
use super::{CallPorts, abandoned, signal};
use crate::call::{Cause, Start};

/// Threads of the sandbox that are the agent's own.
const AGENT_THREADS: u32 = 32;

#[async_trait]
impl Sandbox for CallPorts {
    async fn run(&self, command: Command) -> Result<CommandOutcome, ToolError> {
        let key = self.next_key();
        match command.background {
            Background::Never => {
                let spec = self.spec(&command, StdinMode::Null, Some(self.remaining()));
                self.in_foreground(key, spec, &command, None).await
            }
            Background::Now { shell_timeout } => {
                let spec = self.spec(&command, StdinMode::Open, shell_timeout);
                self.in_background(key, ExecSpec { detached: true, ..spec }, &command, None).await
            }
            Background::After { wait, shell_timeout } => {
                let spec = self.spec(&command, StdinMode::Open, Some(self.remaining()));
                self.in_foreground(key, spec, &command, Some((wait, shell_timeout))).await
            }
        }
    }

    async fn run_named(&self, named: Named, command: Command) -> Result<(CommandEnd, NamedEnd), ToolError> {
        self.run_in_named_shell(named, command).await
    }

    async fn start_named(&self, named: Named, command: Command) -> Result<CommandOutcome, ToolError> {
        self.start_as_named_shell(named, command).await
    }

    async fn read(&self, path: &SandboxPath, offset: u64, max_bytes: u64) -> Result<FileContent, ToolError> {
        self.read_file(path, offset, max_bytes).await
    }

    async fn write(&self, write: FileWrite) -> Result<FileWritten, ToolError> {
        self.write_file(write).await
    }

    async fn list(&self, query: ListQuery) -> Result<Listing, ToolError> {
        self.list_files(query).await
    }

    async fn remove(&self, removal: FileRemoval) -> Result<FilesRemoved, ToolError> {
        self.remove_files(removal).await
    }

    async fn glob(&self, query: GlobQuery) -> Result<Globbed, ToolError> {
        self.glob_files(query).await
    }

    async fn grep(&self, query: GrepQuery) -> Result<Grepped, ToolError> {
        self.grep_files(query).await
    }
}

impl CallPorts {
    pub(super) fn remaining(&self) -> Duration {
        self.facts.clock.left().max(Duration::from_millis(1))
    }

    pub(super) fn spec(&self, command: &Command, no_stdin: StdinMode, timeout: Option<Duration>) -> ExecSpec {
        let row = &self.facts.session.row;
        let mut env = row.env.clone();
        env.extend(command.terminal.iter().map(|terminal| ("TERM".to_owned(), terminal.term.clone())));
        env.extend(command.env.clone());
        let no_stdin = if command.terminal.is_some() { StdinMode::Open } else { no_stdin };
        let (program, role) = match &command.program {
            Program::Shell(command) => (protocol::Program::Shell { command: command.clone() }, Role::Command),
            Program::Argv { argv, script } => {
                let (argv, script) = (argv.clone(), script.clone());
                (protocol::Program::Argv { argv, script }, Role::Command)
            }
            Program::Interpreter { argv, request } => {
                let null_stdin = command.stdin.is_none();
                let script = Some(request_text(request.clone(), Some(&command.cwd), &env, null_stdin));
                (protocol::Program::Argv { argv: argv.clone(), script }, Role::Interpreter)
            }
        };
        ExecSpec {
            program,
            role,
            cwd: command.cwd.clone(),
            env,
            stdin: command.stdin.clone().map_or(no_stdin, StdinMode::Text),
            timeout_ms: timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
            grace_ms: KILL_GRACE_MS,
            limits: ExecLimits {
                cpu_s: None,
                processes: Some(u64::from(row.resources.pids.saturating_sub(AGENT_THREADS).max(16))),
                open_files: None,
                file_bytes: Some(u64::from(row.resources.disk_mb) * 1024 * 1024),
            },
            detached: false,
            terminal: command.terminal.as_ref().map(|it| TerminalSize { rows: it.rows, cols: it.cols }),
        }
    }

    /// Whether somebody before may have run this operation in this sandbox.
    pub(super) fn is_resumed(&self) -> bool {
        self.runs == 0 && matches!(self.facts.how, Start::Resumed { .. })
    }

    pub(super) async fn in_foreground(
        &self,
        key: OperationKey,
        spec: ExecSpec,
        command: &Command,
        until: Option<(Duration, Option<Duration>)>,
    ) -> Result<CommandOutcome, ToolError> {
        let shell_id = shell_of(self.facts.call.id, key.operation);
        if until.is_some()
            && let Some(shell) = self.shell_from_before(shell_id).await?
        {
            return self.became(shell).await;
        }
        let mut foreground = Foreground::new(self, key.clone(), spec);
        let mut wait = until.map(|(wait, _)| wait);
        loop {
            match foreground.run(wait).await? {
                Went::Exited(exit) => {
                    let (stdout, stderr) = foreground.captured();
                    let mut end = self.command_end(&exit, foreground.dropped, stdout, stderr);
                    if foreground.reports() && !exit.killed && !exit.timed_out {
                        end.report = self.report(&key).await;
                    }
                    return Ok(CommandOutcome::Ended(end));
                }
                Went::TimeIsUp => {
                    let shell_timeout = until.and_then(|(_, shell_timeout)| shell_timeout);
                    let shell = match self.record(&key, shell_id, command, None, ShellLog::OfCall).await {
                        Ok(shell) => shell,
                        // There is no room for another shell, so the call goes on.
                        Err(error) if error.code == domain::Code::SandboxLimit => {
                            wait = None;
                            continue;
                        }
                        Err(error) => return Err(error),
                    };
                    let (stdout, stderr) = foreground.captured();
                    let Some(stream) = foreground.into_stream() else { return Err(abandoned()) };
                    let shell = self.hand_over(&key, shell_timeout, stream, shell).await?;
                    return Ok(CommandOutcome::Shell { shell, stdout, stderr });
                }
            }
        }
    }

    /// What an ended operation has left. Its result does not depend on it, so that none is no failure.
    pub(super) async fn report(&self, key: &OperationKey) -> Bytes {
        let agent = self.serving.sandbox.agent();
        match self.ask_on(|| agent.report(key.clone())).await {
            Ok(report) => report,
            Err(error) => {
                tracing::debug!(call = %self.facts.call.id, %error, "an interpreter has left no report");
                Bytes::new()
            }
        }
    }

    pub(super) fn command_end(
        &self,
        exit: &ExecExit,
        dropped_bytes: u64,
        stdout: Captured,
        stderr: Captured,
    ) -> CommandEnd {
        self.facts.consumption.add(|usage| {
            usage.cpu_ms += exit.cpu_ms;
            usage.max_rss_bytes = usage.max_rss_bytes.max(exit.max_rss_bytes);
            usage.bytes_out += exit.stdout_bytes + exit.stderr_bytes;
        });
        let cause = self.facts.running.cause();
        let ended_by_us = |cause_is: fn(Cause) -> bool| exit.killed && cause.is_some_and(cause_is);
        let timed_out = exit.timed_out || ended_by_us(|cause| cause == Cause::TimedOut);
        let cancelled = !timed_out && ended_by_us(|cause| cause != Cause::TimedOut);
        CommandEnd {
            exit_code: exit.exit_code,
            signal: exit.signal.map(signal::name),
            timed_out,
            cancelled,
            oom_killed: exit.oom_killed,
            left_over: exit.left_over,
            sandbox_reset: exit.sandbox_reset && !timed_out && !cancelled,
            duration_ms: exit.duration_ms,
            dropped_bytes,
            stdout,
            stderr,
            report: Bytes::new(),
        }
    }
}

/// A request to an interpreter, as it finds it on descriptor 3.
pub(super) fn request_text(
    mut request: Map<String, Value>,
    cwd: Option<&str>,
    env: &BTreeMap<String, String>,
    null_stdin: bool,
) -> String {
    let env = env.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str())));
    request.insert("cwd".to_owned(), Value::from(cwd));
    request.insert("env".to_owned(), Value::Object(env.collect()));
    request.insert("null_stdin".to_owned(), Value::from(null_stdin));
    Value::Object(request).to_string()
}
