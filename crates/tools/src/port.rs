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

mod artifact;
mod command;
mod file;
mod wheel;

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use domain::event::OutputPiece;
use domain::{CallId, CallStatus, CodeContext, ContextId, Language, Shell, ShellId, StreamName};
use serde_json::{Map, Value};

pub use self::artifact::*;
pub use self::command::*;
pub use self::file::*;
pub use self::wheel::*;
use crate::ToolError;

/// The session's sandbox, as one call sees it.
#[async_trait]
pub trait Sandbox: Send + Sync {
    /// Runs a command. Its output becomes events of the call. Returns when its whole tree is gone, or when it became a shell.
    async fn run(&self, command: Command) -> Result<CommandOutcome, ToolError>;

    /// Runs a command of bash in a named shell, once every earlier call for that shell has ended. Never in the background.
    async fn run_named(&self, named: Named, command: Command) -> Result<(CommandEnd, NamedEnd), ToolError>;

    /// Starts a command in the background as it would begin in a named shell, once every earlier call for that shell has ended. The
    /// shell that it becomes has the name, and what it changes is its own.
    async fn start_named(&self, named: Named, command: Command) -> Result<CommandOutcome, ToolError>;

    /// Reads part of a regular file.
    async fn read(&self, path: &SandboxPath, offset: u64, max_bytes: u64) -> Result<FileContent, ToolError>;

    /// Writes a file, wholly or not at all, at most once.
    async fn write(&self, write: FileWrite) -> Result<FileWritten, ToolError>;

    /// Lists a directory.
    async fn list(&self, query: ListQuery) -> Result<Listing, ToolError>;

    /// Removes a file or directory, at most once.
    async fn remove(&self, removal: FileRemoval) -> Result<FilesRemoved, ToolError>;

    /// Finds files by name.
    async fn glob(&self, query: GlobQuery) -> Result<Globbed, ToolError>;

    /// Searches in contents.
    async fn grep(&self, query: GrepQuery) -> Result<Grepped, ToolError>;
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

    /// For a call that is run again: when it was first started, or sooner where that is not known. What it may have done to the shell that a name
    /// means is not to be done to one that came later.
    fn run_before_at(&self) -> Option<DateTime<Utc>>;

    /// The log from an offset on, at most so many bytes; what has been written is never lost by reading.
    async fn output(&self, id: ShellId, since_offset: u64, max_bytes: u64) -> Result<ShellOutput, ToolError>;

    /// Waits until the log has grown beyond the offset, the shell has ended, or the time is over.
    async fn changed(&self, id: ShellId, since_offset: u64, wait: Duration) -> Result<(), ToolError>;

    /// Text and signals, at most once. Returns the bytes that stdin took.
    async fn input(&self, id: ShellId, input: ShellInput) -> Result<u64, ToolError>;

    /// Ends the shell's whole tree and returns it as it is afterwards.
    async fn kill(&self, id: ShellId, grace: Duration) -> Result<Shell, ToolError>;
}

/// Part of what a call wrote to one stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutputPart {
    /// Offset in the stream and bytes, in order; what lies between two was dropped.
    pub pieces: Vec<(u64, Vec<u8>)>,
    /// Bytes that the stream has so far, dropped ones included.
    pub total_bytes: u64,
    /// The call has ended.
    pub ended: bool,
}

/// What calls of the session wrote. A call of another session or tenant is one that does not exist.
#[async_trait]
pub trait Outputs: Send + Sync {
    /// Bytes of one stream from an offset on.
    async fn read(
        &self,
        id: CallId,
        stream: StreamName,
        from: u64,
        max_bytes: u64,
    ) -> Result<OutputPart, ToolError>;
}

/// Waiting, for a call that does nothing else. What is waited for is heeded together with the call's own end.
#[async_trait]
pub trait Waits: Send + Sync {
    /// From here on the call only waits: its slot goes to others. A session that has as many such calls as it may keeps the slot taken.
    fn rest(&self);

    /// What the call has used of its time, by whichever worker: nothing while it stands in line. A takeover may give some of it back.
    fn elapsed(&self) -> Duration;

    /// Waits for a time.
    async fn time(&self, wait: Duration) -> Result<(), ToolError>;

    /// Waits until a call of the session has ended or the time is over; its status then.
    async fn call(&self, id: CallId, wait: Duration) -> Result<CallStatus, ToolError>;
}

/// Code to run in a context.
#[derive(Debug, Clone)]
pub struct ContextRun {
    /// Which context.
    pub context: ContextRef,
    /// What the code is written in. One that is named and not there is made of it.
    pub language: Language,
    /// How an interpreter is started, when there is none.
    pub argv: Vec<String>,
    /// Completed by the port with `cwd`, `env` and `null_stdin`.
    pub request: Map<String, Value>,
    /// Directory to go to before; `None` to stay.
    pub cwd: Option<String>,
    /// Variables to set before.
    pub env: BTreeMap<String, String>,
    /// Text for stdin.
    pub stdin: Option<String>,
}

/// How a call names its context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContextRef {
    /// By id.
    Id(ContextId),
    /// By name; made when it is not there.
    Name(String),
}

/// How code in a context ended.
#[derive(Debug, Clone)]
pub struct ContextEnd {
    /// The context as it was before.
    pub context: CodeContext,
    /// The run. Its CPU time is the interpreter's own word.
    pub end: CommandEnd,
    /// The interpreter did not heed the interrupt, or ended by itself, and the context's state is lost.
    pub lost: Option<String>,
}

/// The session's contexts. Code of one context runs one call after another, in the order of their admission.
#[async_trait]
pub trait Contexts: Send + Sync {
    /// Runs code in a context, in its interpreter or a new one. Its output becomes events of the call.
    async fn run(&self, run: ContextRun) -> Result<ContextEnd, ToolError>;
}

/// What the session remembers of its files, durably.
///
/// A change is *planned* before it is made: a call that is run again by another worker finds its plan, and so starts
/// from the content that it started from, whatever the file has become since.
#[async_trait]
pub trait Records: Send + Sync {
    /// The version of a file that the session has seen last.
    async fn known_file(&self, path: &SandboxPath) -> Result<Option<KnownFile>, ToolError>;

    /// The session has seen this version.
    async fn remember_file(&self, path: &SandboxPath, known: KnownFile) -> Result<(), ToolError>;

    /// What lies at a path, or beneath it, is no more.
    async fn forget_files(&self, path: &SandboxPath) -> Result<(), ToolError>;

    /// What this call has planned to change in a run before this one.
    async fn planned_change(&self, path: &SandboxPath) -> Result<Option<Before>, ToolError>;

    /// This call is about to change a file.
    async fn plan_change(&self, path: &SandboxPath, before: Before) -> Result<(), ToolError>;

    /// It has changed it, and the session knows the new version.
    async fn change_made(&self, path: &SandboxPath, after: KnownFile) -> Result<(), ToolError>;

    /// It has not changed it.
    async fn change_dropped(&self, path: &SandboxPath) -> Result<(), ToolError>;

    /// The last changes of a file that can be undone, at most so many; the same again when this call is run again.
    async fn undoable(&self, path: &SandboxPath, steps: u32) -> Result<Option<Undoable>, ToolError>;

    /// So many changes have been undone; `after` is what is there now, if anything.
    async fn undone(&self, path: &SandboxPath, steps: u32, after: Option<KnownFile>)
    -> Result<(), ToolError>;
}

/// Numbered events of the call, beside its output.
#[async_trait]
pub trait Events: Send + Sync {
    /// Tells how far the call is.
    async fn progress(&self, message: Option<String>, percent: Option<f64>) -> Result<(), ToolError>;
}
