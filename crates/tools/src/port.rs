//! The ports: what a tool may use of the world. `worker` implements them; tools know nothing else.
//!
//! # Design notes
//!
//! A port's verbs that have effects are *operations*: they are numbered in the order in which the tool's code asks, and the agent's
//! journal answers a repeated number from what it already did. So a worker that takes a call over simply runs the tool's code
//! again. A tool must therefore ask for the same operations in the same order when it is run again with the same input.
//!
//! Output of a command becomes `call.output` events in the port, before the tool sees it; a tool gets head and tail.
//! Timeout and cancel are the port's work too: the command's tree is ended, and [`CommandEnd`] says why.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use domain::event::OutputPiece;
use domain::{Shell, ShellId};

use crate::ToolError;

/// A file or directory that a tool names, already checked as far as text can be checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxPath {
    /// `/workspace` or `/tmp`.
    pub root: &'static str,
    /// Beneath the root, without `.` and `..`; empty for the root itself.
    pub relative: String,
}

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
}

/// What is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A pipe, socket or device.
    Other,
}

/// Facts of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileStat {
    /// What it is.
    pub kind: EntryKind,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Permission bits.
    pub permissions: u32,
    /// Last change, milliseconds since 1970.
    pub modified_ms: i64,
}

/// Part of a file.
#[derive(Debug, Clone)]
pub struct FileContent {
    /// The bytes asked for, as far as there are any.
    pub bytes: Bytes,
    /// The whole file's facts.
    pub stat: FileStat,
    /// SHA-256 of the whole file, when all of it was read.
    pub sha256: Option<String>,
}

/// How a write treats what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteMode {
    /// Replace or create.
    Overwrite,
    /// Add to the end, or create.
    Append,
    /// Fail when something is there.
    CreateNew,
}

/// A write.
#[derive(Debug, Clone)]
pub struct FileWrite {
    /// Where.
    pub path: SandboxPath,
    /// What.
    pub content: Bytes,
    /// How.
    pub mode: WriteMode,
    /// Permission bits; `None` keeps what is there, or takes 0644.
    pub permissions: Option<u32>,
    /// Fail unless the present content has this SHA-256.
    pub expected_sha256: Option<String>,
}

/// Facts of a file that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileWritten {
    /// Nothing was there before.
    pub created: bool,
    /// Size now.
    pub size_bytes: u64,
    /// SHA-256 now.
    pub sha256: String,
    /// Permission bits now.
    pub permissions: u32,
}

/// What to list.
#[derive(Debug, Clone)]
pub struct ListQuery {
    /// The directory.
    pub path: SandboxPath,
    /// 1 lists the directory alone.
    pub max_depth: u32,
    /// Include names that start with a dot.
    pub include_hidden: bool,
    /// Leave out what `.gitignore` excludes.
    pub respect_ignore: bool,
    /// Most entries.
    pub limit: u32,
}

/// What a listing found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// Sorted by path.
    pub entries: Vec<ListedEntry>,
    /// Found in all.
    pub total: u64,
    /// There are more than were returned.
    pub truncated: bool,
}

/// One entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedEntry {
    /// Beneath the listed directory.
    pub path: String,
    /// What it is.
    pub kind: EntryKind,
    /// Size in bytes (files only).
    pub size_bytes: u64,
}

/// The session's sandbox, as one call sees it.
#[async_trait]
pub trait Sandbox: Send + Sync {
    /// Runs a command. Its output becomes events of the call. Returns when its whole tree is gone, or when it became a shell.
    async fn run(&self, command: Command) -> Result<CommandOutcome, ToolError>;

    /// Reads part of a regular file.
    async fn read(&self, path: &SandboxPath, offset: u64, max_bytes: u64) -> Result<FileContent, ToolError>;

    /// Writes a file, wholly or not at all, at most once.
    async fn write(&self, write: FileWrite) -> Result<FileWritten, ToolError>;

    /// Lists a directory.
    async fn list(&self, query: ListQuery) -> Result<Listing, ToolError>;
}

/// Part of a shell's log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShellOutput {
    /// Pieces in order; `log_offset` counts both streams together.
    pub pieces: Vec<OutputPiece>,
    /// Offset to read on from.
    pub next_offset: u64,
    /// Bytes between `since_offset` and the first piece that are no longer (or never were) kept.
    pub dropped_bytes: u64,
}

/// Which signal or text a shell gets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShellInput {
    /// Text for its stdin.
    pub text: Option<String>,
    /// Close its stdin afterwards.
    pub close: bool,
    /// Number of a signal for its process group, sent after the text.
    pub signal: Option<i32>,
}

/// The session's shells. A shell of another session or tenant is one that does not exist.
#[async_trait]
pub trait Shells: Send + Sync {
    /// One shell.
    async fn get(&self, id: ShellId) -> Result<Shell, ToolError>;

    /// All shells of the session, newest first.
    async fn list(&self) -> Result<Vec<Shell>, ToolError>;

    /// The log from an offset on, at most so many bytes; what has been written is never lost by reading.
    async fn output(&self, id: ShellId, since_offset: u64, max_bytes: u64) -> Result<ShellOutput, ToolError>;

    /// Waits until the log has grown beyond the offset, the shell has ended, or the time is over.
    async fn changed(&self, id: ShellId, since_offset: u64, wait: Duration) -> Result<(), ToolError>;

    /// Text and signals, at most once. Returns the bytes that stdin took.
    async fn input(&self, id: ShellId, input: ShellInput) -> Result<u64, ToolError>;

    /// Ends the shell's whole tree and returns it as it is afterwards.
    async fn kill(&self, id: ShellId, grace: Duration) -> Result<Shell, ToolError>;
}

/// Numbered events of the call, beside its output.
#[async_trait]
pub trait Events: Send + Sync {
    /// Tells how far the call is.
    async fn progress(&self, message: Option<String>, percent: Option<f64>) -> Result<(), ToolError>;
}
