//! How sandboxes are made: the `Driver` trait and the facts that pass through it. No engine is named here.

pub(crate) mod docker;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::SystemTime;

use async_trait::async_trait;
use domain::{HostId, Resources, SandboxId};
use futures_util::stream::BoxStream;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::EngineError;

/// Whose containers are whose: two installations (or tests) on one engine never touch each other's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The installation; letters, digits, `-` and `_`. Part of names and labels.
    pub installation: String,
    /// The host's row.
    pub host_id: HostId,
}

/// Name of a workspace on its host: that of the sandbox which it was made for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct WorkspaceName(String);

impl WorkspaceName {
    /// The workspace that is made for a new sandbox.
    #[must_use]
    pub fn of(sandbox_id: SandboxId) -> Self {
        Self(sandbox_id.to_string())
    }

    /// The sandbox that it was made for, as its name says.
    #[must_use]
    pub fn sandbox_id(&self) -> Option<SandboxId> {
        self.0.parse().ok()
    }

    /// Its text, safe as a file name and a volume name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WorkspaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that is no workspace's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a workspace's name is 1 to 64 of a-z, 0-9, `_` and `-`")]
pub struct InvalidWorkspaceName;

impl TryFrom<String> for WorkspaceName {
    type Error = InvalidWorkspaceName;

    fn try_from(name: String) -> Result<Self, InvalidWorkspaceName> {
        let valid =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-');
        if name.is_empty() || name.len() > 64 || !name.bytes().all(valid) {
            return Err(InvalidWorkspaceName);
        }
        Ok(Self(name))
    }
}

impl std::str::FromStr for WorkspaceName {
    type Err = InvalidWorkspaceName;

    fn from_str(name: &str) -> Result<Self, InvalidWorkspaceName> {
        Self::try_from(name.to_owned())
    }
}

impl From<WorkspaceName> for String {
    fn from(name: WorkspaceName) -> Self {
        name.0
    }
}

/// A workspace and the uid that its files belong to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workspace {
    /// Its name on this host.
    pub name: WorkspaceName,
    /// Owner of its files: the tool uid of every sandbox over it.
    pub tool_uid: u32,
}

/// How a workspace's size is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkspaceKind {
    /// A file system of its own: a full one answers ENOSPC.
    Loopback,
    /// A volume of the engine: its size is not held by the kernel (soft).
    Volume,
}

/// A workspace as found on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedWorkspace {
    /// Its name.
    pub name: WorkspaceName,
    /// How it is kept.
    pub kind: WorkspaceKind,
}

/// What the engine is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineInfo {
    /// Its version, such as `20.10.24`.
    pub version: String,
    /// The API version that was negotiated, such as `1.41`.
    pub api_version: String,
    /// The kernel's release.
    pub kernel: String,
    /// Version of the default OCI runtime, where the engine tells.
    pub runc_version: Option<String>,
    /// 1 or 2.
    pub cgroup_version: u8,
    /// Runtimes that a sandbox may ask for.
    pub runtimes: Vec<String>,
    /// Security options, such as `seccomp` or `userns`.
    pub security_options: Vec<String>,
    /// How workspaces are kept on this host.
    pub workspaces: WorkspaceKind,
    /// CPUs of the host.
    pub cpus: u64,
    /// Memory of the host, in bytes.
    pub memory_bytes: u64,
    /// Known problems of these versions, a sentence each. Strict installations refuse to start with any.
    pub warnings: Vec<String>,
}

/// An image as the engine has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The engine's id of it.
    pub id: String,
    /// Its environment, which is handed to commands and never to the agent.
    pub env: BTreeMap<String, String>,
}

/// How the agents of a runtime are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkKind {
    /// Over a unix socket of the worker's that is mounted into the sandbox.
    Socket,
    /// Over a byte stream of the engine's to a relay in the sandbox: [`Driver::relay`].
    Relay,
}

/// What lies at [`protocol::LINK_DIR`] in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkPlace {
    /// The folder of the host that holds the worker's socket, read-only.
    Folder(PathBuf),
    /// A folder of the sandbox's own, in which the relay puts a socket.
    Inside,
}

/// The worker's end of a byte stream to an agent's relay. Dropping it ends the relay.
pub struct RelayStream {
    /// What the agent says.
    pub reader: Pin<Box<dyn AsyncRead + Send>>,
    /// What is said to it.
    pub writer: Pin<Box<dyn AsyncWrite + Send>>,
}

impl fmt::Debug for RelayStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayStream").finish_non_exhaustive()
    }
}

/// Everything that a container is made from. Nothing in it is secret.
#[derive(Debug, Clone)]
pub struct SandboxSpec {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// Its image, as the session names it.
    pub image: String,
    /// What the image was resolved to.
    pub resolved: Image,
    /// Container runtime, such as `runc`.
    pub runtime: String,
    /// Limits.
    pub resources: Resources,
    /// Uid of its tools.
    pub tool_uid: u32,
    /// Its workspace, made before.
    pub workspace: WorkspaceName,
    /// How its agent is reached.
    pub link: LinkPlace,
    /// Generated `/etc/passwd`.
    pub passwd: PathBuf,
    /// Generated `/etc/group`.
    pub group: PathBuf,
}

/// A container that was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// The engine's id of it.
    pub id: String,
}

/// State of a container, as the engine sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContainerState {
    /// There is no such container.
    Gone,
    /// It runs.
    Running,
    /// It was made but not started yet.
    Created,
    /// It has ended.
    Exited {
        /// Exit code of pid 1 (128 and the signal when one ended it).
        exit_code: i64,
        /// The engine saw an out-of-memory kill in it. True also when only a tool died.
        oom_killed: bool,
        /// What the engine says went wrong, if anything.
        error: Option<String>,
    },
}

/// A container of ours, as found on the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedContainer {
    /// The engine's id of it.
    pub container_id: String,
    /// The sandbox that its label names.
    pub sandbox_id: SandboxId,
    /// Whether it runs.
    pub running: bool,
    /// When it was made, on the host's clock.
    pub created_at: SystemTime,
}

/// What the engine tells about a container of ours, unasked. A hint: inspect before acting on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerEvent {
    /// The sandbox that its label names.
    pub sandbox_id: SandboxId,
    /// What happened.
    pub kind: ContainerEventKind,
}

/// What happened to a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerEventKind {
    /// Somebody asked the engine to signal or stop it.
    Killed,
    /// The kernel killed something in it for want of memory.
    Oom,
    /// Its pid 1 ended.
    Died,
    /// It was removed.
    Removed,
}

/// Makes and removes sandboxes on one host. Every method has a time limit of its own and is safe to repeat.
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    /// Versions and abilities of the engine.
    async fn engine_info(&self) -> Result<EngineInfo, EngineError>;

    /// Finds an image; [`EngineError::ImageMissing`] when there is none.
    async fn resolve_image(&self, image: &str) -> Result<Image, EngineError>;

    /// Makes ready what all sandboxes share (the agent's volume), with the help of an image that exists.
    async fn prepare(&self, image: &str) -> Result<(), EngineError>;

    /// How the agents of sandboxes with this runtime are reached. The same for the whole life of a sandbox.
    fn link_kind(&self, runtime: &str) -> LinkKind;

    /// A new byte stream to the agent of a running container whose link is a relay.
    async fn relay(&self, container_id: &str) -> Result<RelayStream, EngineError>;

    /// Creates and starts a container. What it made is removed again when it fails.
    async fn create(&self, spec: &SandboxSpec) -> Result<Container, EngineError>;

    /// State of a container.
    async fn inspect(&self, container_id: &str) -> Result<ContainerState, EngineError>;

    /// Removes the sandbox's container, running or not, and releases what it held. Nothing to remove is success.
    async fn remove(&self, sandbox_id: SandboxId) -> Result<(), EngineError>;

    /// Containers of this installation and host.
    async fn list(&self) -> Result<Vec<ObservedContainer>, EngineError>;

    /// Makes an empty workspace of this size whose files belong to its uid. `image` is any image that exists.
    async fn create_workspace(
        &self,
        workspace: &Workspace,
        size_mb: u32,
        image: &str,
    ) -> Result<(), EngineError>;

    /// Removes a workspace and everything in it. Nothing to remove is success.
    async fn remove_workspace(&self, name: &WorkspaceName) -> Result<(), EngineError>;

    /// Removes what other builds have left for all sandboxes and none uses any more, of this installation and host alone; how many
    /// things.
    async fn prune(&self) -> Result<u64, EngineError>;

    /// Workspaces of this installation and host.
    async fn list_workspaces(&self) -> Result<Vec<ObservedWorkspace>, EngineError>;

    /// What the engine tells unasked, from now on, until it goes away. The caller asks again.
    fn events(&self) -> BoxStream<'static, Result<ContainerEvent, EngineError>>;
}
