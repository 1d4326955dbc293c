//! A command, and how it ends.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use domain::{Shell, ShellName};
use serde_json::{Map, Value};

/// A command to run in the session's sandbox.
#[derive(Debug, Clone)]
pub struct Command {
    /// What to run.
    pub program: Program,
    /// Absolute working directory.
    pub cwd: String,
    /// Variables over those of the session.
    pub env: BTreeMap<String, String>,
    /// Text for descriptor 0; `None` for nothing (an open pipe when it may become a shell).
    pub stdin: Option<String>,
    /// A terminal for it, in the place of pipes.
    pub terminal: Option<Terminal>,
    /// Whether it may outlive the call as a shell.
    pub background: Background,
    /// For the shell that it may become: its text for people.
    pub label: String,
}

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// A command for bash.
    Shell(String),
    /// A program with arguments, and text that it finds on descriptor 3.
    Argv {
        /// At least the program.
        argv: Vec<String>,
        /// The text.
        script: Option<String>,
    },
    /// An interpreter that may have been started before there was something for it to do: it waits on descriptor 4 for a
    /// line, and finds its request on descriptor 3, where it may leave a report.
    Interpreter {
        /// The same for all its uses, so that one can wait.
        argv: Vec<String>,
        /// Completed by the port with `cwd`, `env` and `null_stdin`.
        request: Map<String, Value>,
    },
}

/// A named shell to run a command in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// Its name.
    pub name: ShellName,
    /// The command's own directory, if it gives one; else that of the shell.
    pub cwd: Option<String>,
    /// What it was before is to be forgotten.
    pub restart: bool,
}

/// How a named shell is after a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedEnd {
    /// Its working directory.
    pub cwd: String,
    /// No command had left anything in it before.
    pub is_new: bool,
    /// Why it is not as the command left it, when it is not.
    pub lost: Option<String>,
}

/// A terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terminal {
    /// Lines.
    pub rows: u16,
    /// Characters of a line.
    pub cols: u16,
    /// What `TERM` says.
    pub term: String,
}

/// Whether a command becomes a shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Background {
    /// Never: it ends with the call.
    Never,
    /// At once. The shell ends after the given time, or with the session.
    Now {
        /// Life of the shell.
        shell_timeout: Option<Duration>,
    },
    /// When it still runs after this time.
    After {
        /// How long the call waits for its end.
        wait: Duration,
        /// Life of the shell, from then.
        shell_timeout: Option<Duration>,
    },
}

/// Head and tail of one stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Captured {
    /// The first bytes.
    pub head: Vec<u8>,
    /// The last bytes, when not all of it is in `head`. Between the two, `total_bytes - head - tail` bytes are not shown.
    pub tail: Vec<u8>,
    /// Bytes written in all.
    pub total_bytes: u64,
}

/// What became of a command.
#[derive(Debug, Clone)]
pub enum CommandOutcome {
    /// It is over.
    Ended(CommandEnd),
    /// It goes on in the background.
    Shell {
        /// As this shell.
        shell: Shell,
        /// What it wrote so far.
        stdout: Captured,
        /// What it wrote so far.
        stderr: Captured,
    },
}

/// How a command ended.
#[derive(Debug, Clone, Default)]
pub struct CommandEnd {
    /// Exit code, unless a signal ended it.
    pub exit_code: Option<i32>,
    /// Name of the signal that ended it, such as `SIGKILL`.
    pub signal: Option<String>,
    /// The call's time ran out.
    pub timed_out: bool,
    /// The call was cancelled.
    pub cancelled: bool,
    /// The out-of-memory killer struck.
    pub oom_killed: bool,
    /// Processes left behind that were ended after the grace.
    pub left_over: u32,
    /// Everything in the sandbox was ended because this could not be ended alone.
    pub sandbox_reset: bool,
    /// Wall time in milliseconds.
    pub duration_ms: u64,
    /// Bytes dropped from the middle of the stored log.
    pub dropped_bytes: u64,
    /// Head and tail of stdout.
    pub stdout: Captured,
    /// Head and tail of stderr.
    pub stderr: Captured,
    /// What an interpreter has left: empty when it has not, or did not come to its end. Not to be trusted more than output.
    pub report: Bytes,
}
