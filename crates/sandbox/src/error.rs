//! What can go wrong with an engine, a link or a sandbox, by the operation that failed.

use std::time::Duration;

use protocol::AgentError;
use serde_json::{Map, Value};

use crate::Gone;

/// Why the container engine, or the host around it, did not do something.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Nothing answers at the engine's address, or the connection broke.
    #[error("the container engine does not answer ({operation}): {reason}")]
    Unavailable {
        /// What was asked.
        operation: &'static str,
        /// What the connection said.
        reason: String,
    },
    /// The engine took the request and did not answer in time. Whether it was carried out is unknown.
    #[error("the container engine took longer than {} ms ({operation})", limit.as_millis())]
    TimedOut {
        /// What was asked.
        operation: &'static str,
        /// How long was waited.
        limit: Duration,
    },
    /// The engine has no such image.
    #[error("there is no image {image} on this host")]
    ImageMissing {
        /// The image's name.
        image: String,
    },
    /// The engine cannot start the agent in this image or with this runtime.
    #[error("the image {image} cannot run: {reason}")]
    CannotStart {
        /// The image's name.
        image: String,
        /// What the engine said.
        reason: String,
    },
    /// The engine refused.
    #[error("the container engine refused ({operation}, status {status}): {message}")]
    Refused {
        /// What was asked.
        operation: &'static str,
        /// Its HTTP status.
        status: u16,
        /// What it said.
        message: String,
    },
    /// The host did not do something: a file, a folder, a loop device.
    #[error("the host failed ({operation})")]
    Host {
        /// What was tried.
        operation: &'static str,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
}

impl EngineError {
    /// Whether the same may work once the engine is back.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::TimedOut { .. })
    }

    pub(crate) fn host(operation: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Host { operation, source }
    }
}

/// Why a verb on a sandbox's agent has no answer.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The agent answered that it could not do it.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The connection ended under the request, or none came up in time. The operation goes on in the agent:
    /// ask again with the same key and the durable offset.
    #[error("the connection to the sandbox's agent ended")]
    Disconnected,
    /// The agent has started anew, so that its journal is gone: nobody can know what became of its operations.
    #[error("the sandbox's agent has restarted and its journal is gone")]
    JournalLost,
    /// The agent was connected and did not answer in time.
    #[error("the sandbox's agent took longer than {} ms ({verb})", limit.as_millis())]
    Timeout {
        /// What was asked.
        verb: &'static str,
        /// How long was waited.
        limit: Duration,
    },
    /// Another worker with a higher ownership epoch has the sandbox: this one must not act on it any more.
    #[error("another worker has taken the sandbox over")]
    Fenced,
    /// The sandbox was released, let go or found gone; see [`crate::Sandbox::gone`].
    #[error("the link to the sandbox is closed")]
    Closed,
    /// The agent sent what the protocol does not allow; the connection was closed.
    #[error("the sandbox's agent broke the protocol: {0}")]
    Protocol(&'static str),
    /// A request that does not fit the wire.
    #[error("the request is larger than the wire allows")]
    TooLarge,
}

/// Why there is no sandbox.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The engine is down or hung; try again later. Sandboxes that run are not affected.
    #[error("the container engine does not answer")]
    EngineUnavailable(#[source] EngineError),
    /// The image does not exist here.
    #[error("the image {image} is not available: {reason}")]
    ImageUnavailable {
        /// The image's name.
        image: String,
        /// What was seen.
        reason: String,
    },
    /// The engine could not start a container of the image, and did not say that the host is to blame.
    #[error("the image {image} cannot run: {reason}")]
    CannotStart {
        /// The image's name.
        image: String,
        /// What was seen.
        reason: String,
    },
    /// The container ended before its agent spoke; what was left of it was removed.
    #[error("the container of the new sandbox ended before its agent connected")]
    ContainerEnded(Gone),
    /// The container runs, but its agent never spoke; the container was removed. A host without time for it looks the same.
    #[error("the agent of the new sandbox did not connect")]
    AgentUnreachable {
        /// What was seen.
        evidence: Map<String, Value>,
    },
    /// The container is gone (when taking over).
    #[error("the sandbox is gone: {}", .0.reason.as_str())]
    Gone(Gone),
    /// Another worker with a higher epoch has the sandbox (when taking over).
    #[error("another worker has taken the sandbox over")]
    Fenced,
    /// Too many sandboxes are being made; the wait for a turn was over.
    #[error("too many sandboxes are being made at the moment")]
    Busy,
    /// The workspace belongs to another uid than the ledger gave.
    #[error("the workspace belongs to uid {workspace_uid}, but uid {reserved_uid} was reserved")]
    WorkspaceOwner {
        /// Owner of the files.
        workspace_uid: u32,
        /// What [`crate::Ledger::reserve`] answered.
        reserved_uid: u32,
    },
    /// The engine has no such runtime.
    #[error("this host has no container runtime {runtime}")]
    RuntimeUnavailable {
        /// The runtime's name.
        runtime: String,
    },
    /// The installation is strict and a version on this host is known to be bad.
    #[error("this host is known to be unsafe: {}", warnings.join("; "))]
    HostUnsafe {
        /// A sentence each.
        warnings: Vec<String>,
    },
    /// The engine or host failed in another way.
    #[error(transparent)]
    Engine(EngineError),
    /// The rows could not be read or written.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// This process is shutting down.
    #[error("this worker is shutting down")]
    ShuttingDown,
}

impl From<EngineError> for SandboxError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Unavailable { .. } | EngineError::TimedOut { .. } => Self::EngineUnavailable(error),
            EngineError::ImageMissing { image } => {
                Self::ImageUnavailable { image, reason: "there is no such image on this host".to_owned() }
            }
            EngineError::CannotStart { image, reason } => Self::CannotStart { image, reason },
            EngineError::Refused { .. } | EngineError::Host { .. } => Self::Engine(error),
        }
    }
}

/// Why the rows of sandboxes could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("the sandbox rows could not be accessed")]
pub struct LedgerError(#[source] pub Box<dyn std::error::Error + Send + Sync>);

impl LedgerError {
    /// Wraps what the store said.
    pub fn new(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(source.into())
    }
}
