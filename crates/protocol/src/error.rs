//! What the agent answers when it cannot.

use serde::{Deserialize, Serialize};

/// Why a request could not be carried out.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct AgentError {
    /// Which kind.
    pub code: ErrorCode,
    /// A sentence for people and models; never a path of the host.
    pub message: String,
}

/// Kinds of [`AgentError`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// No such file, directory or operation.
    NotFound,
    /// The tool's uid may not.
    PermissionDenied,
    /// The path leaves its root, or goes through a link that does.
    OutsideRoot,
    /// A directory where a file is meant.
    IsDirectory,
    /// A file where a directory is meant.
    NotDirectory,
    /// Neither file nor directory (a pipe, socket or device).
    NotRegular,
    /// Something is there already.
    Exists,
    /// The content is not what the caller expected.
    Conflict,
    /// The disk or a quota is full.
    NoSpace,
    /// The path is malformed: NUL, too long, too many links.
    InvalidPath,
    /// A directory that has entries, where an empty one is meant.
    NotEmpty,
    /// A glob or a regular expression is malformed, or too large when compiled.
    InvalidPattern,
    /// The operation has ended.
    Ended,
    /// The command could not be started: no such program or working directory, or no process left.
    StartFailed,
    /// A limit of the agent itself: too many operations, too large a request.
    LimitExceeded,
    /// Somebody else uses it at the moment. Sent from version 2 of the protocol on; before it is [`Self::Conflict`].
    Busy,
    /// The agent does not know this request.
    Unsupported,
    /// Anything else the kernel said.
    Io,
}
