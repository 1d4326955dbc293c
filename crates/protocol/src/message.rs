//! The control messages: what the worker may ask of the agent, and what the agent answers.
//!
//! Every message is JSON. Fields added after version 1 carry `#[serde(default)]`, and neither side refuses a
//! field that it does not know.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    AgentError, DirectoryMade, FileRead, FileStat, FileWritten, GlobRequest, Globbed, GrepRequest, Grepped,
    ListRequest, Listing, MoveRequest, ReadRequest, RemoveRequest, Removed, WatchEnded, WatchRequest,
    WriteRequest,
};

/// First message of a connection, from the agent.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct Hello {
    /// Oldest protocol version that the agent speaks.
    pub oldest_version: u32,
    /// Newest protocol version that the agent speaks.
    pub newest_version: u32,
    /// The agent's build version.
    pub agent_version: String,
    /// Random for each start of the agent: a worker that sees another one knows that the journal is gone.
    pub boot_id: String,
    /// Highest ownership epoch that the agent has served.
    pub highest_epoch: u64,
}

/// The worker's answer to [`Hello`]. The agent closes the connection when `epoch` is lower than one that it has
/// served before: that worker lost the sandbox.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct Welcome {
    /// The version spoken from here on.
    pub version: u32,
    /// Ownership epoch of the sandbox; rises with each worker that takes it over.
    pub epoch: u64,
    /// Uid (and gid) that tools run as; never 0. Fixed for the sandbox's life.
    pub tool_uid: u32,
    /// Environment of every command, before the command's own.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Shells that wait pre-started while the sandbox is idle.
    #[serde(default)]
    pub warm_shells: u32,
}

/// Names one operation for ever: the call (or shell) that owns it, and its number within that owner. The agent's journal is
/// keyed by it, so that the same operation asked for twice happens once.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationKey {
    /// Call or shell id, opaque to the agent.
    pub owner: String,
    /// 0, 1, 2 … in the order in which the tool's code asks.
    pub operation: u32,
}

/// What a worker asks on a stream of its own. The agent answers with [`Reply`] frames, then closes the stream.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "snake_case")]
pub enum Request {
    /// Start a command, or attach to one in the journal. Replies: [`Reply::Attached`], data frames (channel 1
    /// and 2, offsets in the operation's one log), [`Reply::Exited`], close. Data frames on channel 0 from the
    /// worker are written to an open stdin. Only the newest stream of an operation gets its output.
    Exec(ExecRequest),
    /// End an operation's whole process tree, or send it one signal. Reply: [`Reply::Done`] once the tree is gone (or
    /// the signal is sent); [`crate::ErrorCode::NotFound`] for an operation that never was.
    Kill(KillRequest),
    /// Write to the open stdin of a running operation, at most once per `key`. Reply: [`Reply::StdinWritten`].
    WriteStdin {
        /// This write's own key.
        key: OperationKey,
        /// The running operation.
        target: OperationKey,
        /// Text to write.
        data: String,
        /// Bytes to write in place of `data`, when they are no text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes: Option<Vec<u8>>,
        /// Close stdin afterwards.
        #[serde(default)]
        close: bool,
    },
    /// The terminal of a running operation has another size. Reply: [`Reply::Done`].
    Resize {
        /// The running operation.
        key: OperationKey,
        /// The size.
        size: TerminalSize,
    },
    /// The operation outlives its call from now on (it has become a shell). Reply: [`Reply::Done`].
    Detach {
        /// The running operation.
        key: OperationKey,
        /// New deadline from now, in milliseconds; `None` for none.
        timeout_ms: Option<u64>,
    },
    /// Read part of a file. Replies: data frames on channel 1 (offsets in the file), [`Reply::Read`], close.
    Read(ReadRequest),
    /// Write a file, at most once per key. The worker sends the content as data frames on channel 0, then
    /// close; the agent answers [`Reply::Written`]. The file is replaced atomically, or not at all.
    Write(WriteRequest),
    /// List a directory. Reply: [`Reply::Listed`].
    List(ListRequest),
    /// Remove a file or directory, at most once per key. Reply: [`Reply::Removed`].
    Remove(RemoveRequest),
    /// Give an entry another name. Not in the journal: asked for twice it is two moves. Reply: [`Reply::Done`].
    Move(MoveRequest),
    /// Make a directory and those above it. Reply: [`Reply::DirectoryMade`].
    MakeDirectory {
        /// `/workspace` or `/tmp`.
        root: String,
        /// Path beneath the root.
        path: String,
    },
    /// Find entries by name. Reply: [`Reply::Globbed`].
    Glob(GlobRequest),
    /// Search in contents. Reply: [`Reply::Grepped`].
    Grep(GrepRequest),
    /// What is at a path. Reply: [`Reply::Stat`].
    Stat {
        /// `/workspace` or `/tmp`.
        root: String,
        /// Path beneath the root; empty for the root itself.
        path: String,
    },
    /// Tell what changes in a directory, from [`Reply::Watching`] on: data frames on channel 1 with [`crate::FileChange`]s, a line of JSON each, in
    /// so far as the worker acknowledges them ([`crate::WATCH_WINDOW_BYTES`]), then [`Reply::WatchEnded`], close.
    Watch(WatchRequest),
    /// Read what an ended operation has left in its memory file (see [`Role`]), at most [`crate::REPORT_BYTES`].
    /// Replies: data frames on channel 1, [`Reply::Read`], close.
    Report {
        /// The operation.
        key: OperationKey,
    },
    /// What the agent knows: operations, memory, out-of-memory kills. Reply: [`Reply::Status`].
    Status,
    /// Everything of this owner is durable elsewhere: drop it from the journal. Running operations that are not
    /// detached are killed. Reply: [`Reply::Done`].
    Forget {
        /// Call or shell id.
        owner: String,
    },
    /// A request kind of a newer worker; answered with [`crate::ErrorCode::Unsupported`].
    #[serde(other)]
    Unknown,
}

/// Start or attach.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExecRequest {
    /// The operation.
    pub key: OperationKey,
    /// Offset in the operation's log up to which the worker has made output durable; output is sent from here.
    #[serde(default)]
    pub resume_from: u64,
    /// What to start if the journal has never heard of the key. `None` only attaches.
    pub spec: Option<ExecSpec>,
}

/// A command.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExecSpec {
    /// What to run.
    pub program: Program,
    /// Absolute working directory, resolved as the tool's uid.
    pub cwd: String,
    /// Variables over those of [`Welcome::env`].
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// What the command finds on descriptor 0.
    pub stdin: StdinMode,
    /// Time until the agent ends the process tree, in milliseconds. `None`: until killed or the sandbox ends.
    pub timeout_ms: Option<u64>,
    /// Time between SIGTERM and SIGKILL when ended, in milliseconds.
    pub grace_ms: u64,
    /// Limits of the command and its children.
    #[serde(default)]
    pub limits: ExecLimits,
    /// The operation outlives its call ([`Request::Forget`] of its owner does not kill it while it runs).
    #[serde(default)]
    pub detached: bool,
    /// A terminal of this size on descriptors 0, 1 and 2, which controls the command's session. All output is then
    /// stdout's, and `stdin` has to be [`StdinMode::Open`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSize>,
    /// What the program is beside a command.
    #[serde(default, skip_serializing_if = "Role::is_command")]
    pub role: Role,
}

/// Size of a terminal, in characters.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Characters of a line.
    pub cols: u16,
}

/// What a [`Program::Argv`] is beside a command.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Nothing.
    #[default]
    Command,
    /// A program that can be started before there is something for it to do: it reads a line on descriptor 4, then its
    /// request (`script`, which says directory, environment and stdin too) in the memory file on descriptor 3, writes
    /// `s` to descriptor 4 and closes it right before it begins. It empties the memory file and may leave a report there.
    Interpreter,
    /// A program that lives long and is given one request after another on descriptor 3, a socket of packets: each
    /// packet is one byte and carries the descriptors stdin, stdout, stderr, memory file and an answer socket. It
    /// answers `p` and its pid (4 bytes, this machine's order) when it begins and `d` and an exit code (one byte) at
    /// the end.
    Kernel,
    /// A request (`script`, in its memory file) to a running kernel. The operation ends with the kernel's answer, or
    /// with [`crate::KERNEL_LOST`] when the kernel ends without one. It is ended by SIGINT to the kernel's
    /// process group; a kernel that does not heed it within the grace goes on, and is the worker's to end.
    Request {
        /// Operation of the kernel.
        kernel: OperationKey,
    },
}

impl Role {
    /// Whether it is nothing beside a command.
    #[must_use]
    pub fn is_command(&self) -> bool {
        *self == Self::Command
    }

    /// Whether the program may leave a report in its memory file.
    #[must_use]
    pub fn reports(&self) -> bool {
        matches!(self, Self::Interpreter | Self::Request { .. })
    }
}

/// What to run.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// A command for bash (`sh` where the image has no bash), as `bash -c` would run it.
    Shell {
        /// The command's text.
        command: String,
    },
    /// A program and its arguments, found by the environment's `PATH`.
    Argv {
        /// At least the program.
        argv: Vec<String>,
        /// Text that the program finds in a memory file on descriptor 3, which it closes itself.
        #[serde(default)]
        script: Option<String>,
    },
}

/// What a command finds on descriptor 0.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum StdinMode {
    /// Nothing (`/dev/null`).
    Null,
    /// This text, then end of file.
    Text(String),
    /// A pipe that stays open for [`Request::WriteStdin`].
    Open,
}

/// Limits of one command and its children, applied before the tool's uid is taken. `None` leaves the sandbox's own.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct ExecLimits {
    /// CPU seconds of each process.
    #[serde(default)]
    pub cpu_s: Option<u64>,
    /// Processes and threads of the tool's uid.
    #[serde(default)]
    pub processes: Option<u64>,
    /// Open files of each process.
    #[serde(default)]
    pub open_files: Option<u64>,
    /// Largest file that may be written, in bytes.
    #[serde(default)]
    pub file_bytes: Option<u64>,
}

/// Answer to an [`ExecRequest`], before any output.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct ExecAttached {
    /// Whether it runs, or has ended already (its exit follows the remaining output).
    pub state: OperationState,
    /// True when this request started it, false when the journal had it.
    pub started: bool,
    /// Offset of the first byte that will be sent. Greater than `resume_from` only when the agent had been told
    /// before that bytes up to here are durable.
    pub offset: u64,
    /// Milliseconds that it has been running.
    pub running_ms: u64,
    /// A pre-started shell served it.
    #[serde(default)]
    pub warm: bool,
    /// Id, in the sandbox, of the process that supervises its tree; none once it has ended.
    #[serde(default)]
    pub pid: Option<u32>,
    /// It has a terminal.
    #[serde(default)]
    pub terminal: bool,
}

/// State of an operation in the journal.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum OperationState {
    /// Its process tree lives.
    Running,
    /// Its process tree is gone; the result is kept until forgotten.
    Ended,
}

/// How a command ended.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct ExecExit {
    /// Exit code, unless a signal ended it.
    pub exit_code: Option<i32>,
    /// Number of the signal that ended it.
    pub signal: Option<i32>,
    /// The agent's deadline ended it.
    pub timed_out: bool,
    /// A [`Request::Kill`] ended it.
    pub killed: bool,
    /// The kernel's out-of-memory killer struck in this sandbox while it ran.
    pub oom_killed: bool,
    /// Processes that it left behind and that were ended after the grace.
    pub left_over: u32,
    /// The tree could not be ended process by process and everything of the tool's uid was killed: other operations of this sandbox died too.
    pub sandbox_reset: bool,
    /// Wall time, in milliseconds.
    pub duration_ms: u64,
    /// User and system time of the tree, in milliseconds.
    pub cpu_ms: u64,
    /// Largest resident set of one of its processes, in bytes.
    pub max_rss_bytes: u64,
    /// Bytes written to stdout.
    pub stdout_bytes: u64,
    /// Bytes written to stderr.
    pub stderr_bytes: u64,
}

/// End an operation.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KillRequest {
    /// The operation.
    pub key: OperationKey,
    /// Send only this signal to the command's process group instead of ending the tree.
    #[serde(default)]
    pub signal: Option<i32>,
    /// Time between SIGTERM and SIGKILL, in milliseconds.
    #[serde(default)]
    pub grace_ms: u64,
}

/// A stdin write that was carried out.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct StdinWritten {
    /// Bytes that the pipe took (fewer than given when the command does not read and the wait was over).
    pub written_bytes: u64,
}

/// What the agent knows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Every operation in the journal.
    pub operations: Vec<OperationStatus>,
    /// The sandbox's out-of-memory kills so far.
    pub oom_kills: u64,
    /// The agent's own resident memory, in bytes.
    pub agent_rss_bytes: u64,
    /// The sandbox's memory in use, in bytes, where the control group tells.
    pub memory_bytes: Option<u64>,
    /// Processes of the tool's uid.
    pub processes: u32,
}

/// One operation in the journal.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OperationStatus {
    /// Its key.
    pub key: OperationKey,
    /// Its state.
    pub state: OperationState,
    /// Bytes of its log so far.
    pub log_bytes: u64,
    /// It outlives its call.
    pub detached: bool,
    /// How it ended.
    pub exit: Option<ExecExit>,
    /// User and system time of its tree so far, in milliseconds: of what lives, and of what was waited for. `None` once it has ended, and
    /// from an agent that does not tell.
    #[serde(default)]
    pub cpu_ms: Option<u64>,
}

/// What the agent answers on a stream.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// See [`Request::Exec`].
    Attached(ExecAttached),
    /// See [`Request::Exec`].
    Exited(ExecExit),
    /// See [`Request::Read`].
    Read(FileRead),
    /// See [`Request::Write`].
    Written(FileWritten),
    /// See [`Request::List`].
    Listed(Listing),
    /// See [`Request::Remove`].
    Removed(Removed),
    /// See [`Request::MakeDirectory`].
    DirectoryMade(DirectoryMade),
    /// See [`Request::Glob`].
    Globbed(Globbed),
    /// See [`Request::Grep`].
    Grepped(Grepped),
    /// See [`Request::Stat`].
    Stat(FileStat),
    /// See [`Request::Watch`].
    Watching,
    /// See [`Request::Watch`].
    WatchEnded(WatchEnded),
    /// See [`Request::Status`].
    Status(AgentStatus),
    /// See [`Request::WriteStdin`].
    StdinWritten(StdinWritten),
    /// It is done and there is nothing to tell.
    Done,
    /// It could not be done; the last reply on its stream.
    Error(AgentError),
}

/// Which of a command's streams.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq, Hash)]
#[serde(rename_all = "snake_case")]
pub enum StreamName {
    /// Descriptor 1.
    Stdout,
    /// Descriptor 2.
    Stderr,
}

impl StreamName {
    /// Its channel in a data frame.
    #[must_use]
    pub fn channel(self) -> u8 {
        match self {
            Self::Stdout => 1,
            Self::Stderr => 2,
        }
    }

    /// The stream of a channel; `None` for stdin's.
    #[must_use]
    pub fn from_channel(channel: u8) -> Option<Self> {
        match channel {
            1 => Some(Self::Stdout),
            2 => Some(Self::Stderr),
            _ => None,
        }
    }
}

/// A piece of output as it came off the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Offset of its first byte in the operation's one log.
    pub offset: u64,
    /// Which stream.
    pub stream: StreamName,
    /// The bytes.
    pub bytes: bytes::Bytes,
}
