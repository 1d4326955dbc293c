//! The wire between a worker and the agent inside a sandbox: messages, framing and version. No I/O.
//!
//! # Design notes
//!
//! *Plain frames.* One connection carries many streams. A frame is a length, a kind, a stream number and a
//! payload; control payloads are JSON (self-describing, so that either side may be newer), data payloads are
//! raw bytes. HTTP/2 framing was measured to cost a tenth of a call and a fifth of the bulk rate.
//!
//! *No replay in the transport.* When a connection ends, every stream on it ends. An operation lives in the
//! agent's journal and is resumed by [`Request::Exec`] (or any other operation) with the same key and the offset up to which
//! the worker has made output durable.
//!
//! *One offset per operation.* stdout and stderr share one log with one offset, so that their order is
//! kept and one acknowledgement says what is durable.
//!
//! *Versions.* The agent is frozen in running sandboxes, the worker adapts: the agent says which versions it
//! speaks in [`Hello`], the worker picks the newest that both speak in [`Welcome`] or closes. Fields are only ever
//! added, with a default, and [`Request::needs`] says which version a request belongs to: what an agent would ignore
//! would be done otherwise than it was asked for, so the worker sends nothing above the version that was picked, and
//! an agent answers it with [`ErrorCode::Unsupported`], as it does an unknown kind. Answers may have fields that
//! an older worker ignores.

mod error;
mod file;
mod frame;
mod message;
mod tree;
mod version;
mod watch;

pub use error::{AgentError, ErrorCode};
pub use file::{
    DirEntry, EntryKind, FileRead, FileStat, FileVersion, FileWritten, ListRequest, Listing, ReadRequest,
    WriteMode, WriteRequest,
};
pub use frame::{
    DecodeError, Decoder, Frame, FrameKind, HEADER_BYTES, MAX_FRAME_BYTES, StreamId, decode_data, encode,
    encode_data,
};
pub use message::{
    AgentStatus, ExecAttached, ExecExit, ExecLimits, ExecRequest, ExecSpec, Hello, KillRequest, OperationKey,
    OperationState, OperationStatus, Output, Program, Reply, Request, Role, StdinMode, StdinWritten,
    StreamName, TerminalSize, Welcome,
};
pub use tree::{
    DirectoryMade, GlobEntry, GlobRequest, GlobSort, Globbed, GrepFile, GrepLine, GrepMode, GrepRequest,
    Grepped, MoveRequest, RemoveRequest, RemoveTarget, Removed,
};
pub use watch::{ChangeKind, FileChange, WatchEnd, WatchEnded, WatchRequest};

/// The protocol version that this build prefers. Whoever adds a field or a kind of request raises it, unless it has not been
/// released since it was raised, and says in [`Request::needs`] what needs it.
pub const VERSION: u32 = 2;
/// The oldest protocol version that this build still speaks.
pub const OLDEST_VERSION: u32 = 1;

/// Bytes of unacknowledged output that an operation may have in flight or in the agent's memory. When the window is full
/// the agent stops reading the command's pipes, so that the command blocks as it would on any full pipe.
pub const OUTPUT_WINDOW_BYTES: u64 = 256 * 1024;
/// Largest piece of output in one data frame.
pub const OUTPUT_FRAME_BYTES: usize = 64 * 1024;
/// Bytes of changes on one watch that were sent and not acknowledged beyond which the agent waits.
pub const WATCH_WINDOW_BYTES: u64 = 64 * 1024;
/// Most of a report that is kept, in bytes: a few pictures.
pub const REPORT_BYTES: u64 = 4 * 1024 * 1024;
/// Exit code of a request whose kernel ended without an answer.
pub const KERNEL_LOST: i32 = 250;
/// Exit code of a request that did not reach its kernel, because that takes none any more: it has certainly not begun.
pub const KERNEL_ABSENT: i32 = 251;
/// How often either side sends a ping, in milliseconds.
pub const HEARTBEAT_INTERVAL_MS: u64 = 1_000;
/// Silence after which either side gives the connection up (the agent then redials), in milliseconds; counted in heartbeats.
pub const SILENCE_LIMIT_MS: u64 = 3_000;
/// Pause between the agent's dial attempts, in milliseconds.
pub const REDIAL_INTERVAL_MS: u64 = 50;

/// Where the agent's binary lies inside a sandbox (a read-only volume, root only).
pub const AGENT_PATH: &str = "/.toolhost/agent";
/// Folder inside a sandbox that holds the worker's listening socket; only root may pass [`AGENT_PATH`]'s parent.
pub const LINK_DIR: &str = "/.toolhost/link";
/// Name of the worker's listening socket in the link folder.
pub const LINK_SOCKET: &str = "worker.sock";
/// Where a session's own files live inside a sandbox.
pub const WORKSPACE_DIR: &str = "/workspace";
