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
use domain::{
    Artifact, ArtifactId, ArtifactKind, CallId, CodeContext, ContextId, Shell, ShellId, StreamName,
};
use serde_json::{Map, Value};

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

/// What a removal may take away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoveTarget {
    /// Anything but a directory; of a link the link itself.
    File,
    /// A directory with nothing in it.
    EmptyDirectory,
    /// A directory and everything in it; links are removed, not followed.
    Tree,
}

/// A removal.
#[derive(Debug, Clone)]
pub struct FileRemoval {
    /// What; never a root itself.
    pub path: SandboxPath,
    /// What may be there.
    pub target: RemoveTarget,
    /// For a file: fail unless its content has this SHA-256.
    pub expected_sha256: Option<String>,
}

/// What a removal took away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FilesRemoved {
    /// Entries that were no directories.
    pub files: u64,
    /// Directories.
    pub directories: u64,
}

/// Which files to find.
#[derive(Debug, Clone)]
pub struct GlobQuery {
    /// The directory.
    pub path: SandboxPath,
    /// `*`, `?`, `[…]`, `{a,b}` and `**`; without a slash it is matched against names at any depth.
    pub pattern: String,
    /// Include names that start with a dot.
    pub include_hidden: bool,
    /// Leave out what `.gitignore` excludes.
    pub respect_ignore: bool,
    /// By path rather than last changed first.
    pub by_path: bool,
    /// Most files.
    pub limit: u32,
}

/// What was found by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Globbed {
    /// In the order asked for, paths beneath the directory.
    pub entries: Vec<GlobbedEntry>,
    /// Found in all.
    pub total: u64,
    /// There are more than were returned.
    pub truncated: bool,
}

/// One file found by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobbedEntry {
    /// Beneath the directory.
    pub path: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Last change, milliseconds since 1970.
    pub modified_ms: i64,
}

/// What to look for in contents.
#[derive(Debug, Clone)]
pub struct GrepQuery {
    /// A file or directory.
    pub path: SandboxPath,
    /// A regular expression in linear-time syntax.
    pub pattern: String,
    /// Upper and lower case are the same.
    pub ignore_case: bool,
    /// Matches may span lines.
    pub multiline: bool,
    /// Only files that match one of these; those that start with `!` leave files out.
    pub globs: Vec<String>,
    /// Include names that start with a dot.
    pub include_hidden: bool,
    /// Leave out what `.gitignore` excludes.
    pub respect_ignore: bool,
    /// What is wanted of the matches.
    pub mode: GrepMode,
    /// Lines before each match.
    pub before: u32,
    /// Lines after each match.
    pub after: u32,
    /// Results left out from the start.
    pub skip: u64,
    /// Most results.
    pub limit: u64,
    /// Most bytes of text and paths.
    pub max_bytes: u64,
}

/// What is wanted of matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrepMode {
    /// The lines.
    Content,
    /// The files.
    Files,
    /// The files, and how many lines of each.
    Count,
}

/// What was found in contents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grepped {
    /// Files with a match, paths beneath the directory.
    pub files: Vec<GreppedFile>,
    /// Files that were searched.
    pub searched_files: u64,
    /// Files left out as they are not text.
    pub binary_files: u64,
    /// Files left out as they are too large for matches that span lines.
    pub large_files: u64,
    /// There may be more.
    pub truncated: bool,
    /// The time for a search was over.
    pub timed_out: bool,
}

/// Matches of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GreppedFile {
    /// Beneath the directory; empty where a file was searched.
    pub path: String,
    /// Lines that match.
    pub matches: u64,
    /// Matching lines and those around them.
    pub lines: Vec<GreppedLine>,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GreppedLine {
    /// Counted from 1.
    pub number: u64,
    /// Without its line end.
    pub text: String,
    /// It matches.
    pub is_match: bool,
    /// Only its beginning is here.
    pub is_cut: bool,
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

/// Code to run in a context.
#[derive(Debug, Clone)]
pub struct ContextRun {
    /// Which context.
    pub context: ContextRef,
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

/// A version of a file, as far as a session knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownFile {
    /// SHA-256 of its content; `None` when it was not read to its end.
    pub sha256: Option<String>,
    /// Its size.
    pub size_bytes: u64,
    /// Its last change, milliseconds since 1970; `None` when only its content is known.
    pub modified_ms: Option<i64>,
}

/// What a file was before a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Before {
    /// Nothing was there.
    Absent,
    /// This content.
    Content {
        /// The bytes.
        bytes: Bytes,
        /// Their SHA-256.
        sha256: String,
    },
    /// Something that is too large to be kept.
    NotKept,
}

/// Changes of a file that can be undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undoable {
    /// How many, at most as many as asked for; never 0.
    pub steps: u32,
    /// What was there before the oldest of them.
    pub before: Before,
    /// SHA-256 of what was there after the newest.
    pub after_sha256: String,
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

/// An artifact to be saved.
#[derive(Debug, Clone)]
pub struct ArtifactDraft {
    /// Its name; another artifact of that name in the session makes it the next version.
    pub name: String,
    /// What it is.
    pub kind: ArtifactKind,
    /// Its media type.
    pub mime_type: String,
    /// Labels.
    pub metadata: BTreeMap<String, String>,
    /// Where its bytes come from.
    pub content: ArtifactSource,
}

/// Where the bytes of an artifact come from.
#[derive(Debug, Clone)]
pub enum ArtifactSource {
    /// These.
    Bytes(Bytes),
    /// A file of the sandbox.
    File(SandboxPath),
}

/// Which artifact of the session is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArtifactRef {
    /// This one.
    Id(ArtifactId),
    /// A version of this name, the newest when none is said.
    Named {
        /// The name.
        name: String,
        /// The version.
        version: Option<u32>,
    },
}

/// Which artifacts of the session to list.
#[derive(Debug, Clone, Default)]
pub struct ArtifactQuery {
    /// Of this name.
    pub name: Option<String>,
    /// Of this kind.
    pub kind: Option<ArtifactKind>,
    /// Only the newest version of each name.
    pub latest_only: bool,
    /// Most artifacts.
    pub limit: u32,
}

/// The session's artifacts: files that are kept beyond the sandbox. Those of another session or tenant do not exist.
#[async_trait]
pub trait Artifacts: Send + Sync {
    /// Saves one, at most once, and tells of it in an event.
    async fn save(&self, draft: ArtifactDraft) -> Result<Artifact, ToolError>;

    /// One of the session's.
    async fn find(&self, which: &ArtifactRef) -> Result<Artifact, ToolError>;

    /// Part of its content.
    async fn read(&self, artifact: &Artifact, offset: u64, max_bytes: u64) -> Result<Bytes, ToolError>;

    /// The session's, newest first; `true` when there are more.
    async fn list(&self, query: ArtifactQuery) -> Result<(Vec<Artifact>, bool), ToolError>;
}

/// Numbered events of the call, beside its output.
#[async_trait]
pub trait Events: Send + Sync {
    /// Tells how far the call is.
    async fn progress(&self, message: Option<String>, percent: Option<f64>) -> Result<(), ToolError>;
}
