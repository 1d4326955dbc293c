//! A session: a workspace and what runs over it.

use std::collections::BTreeMap;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::policy::Policy;
use crate::{HostId, SessionId, TenantId, WorkerId};

/// Where a session is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionStatus {
    /// Its first sandbox is being made. Calls are accepted and wait.
    Starting,
    /// It serves calls.
    Running,
    /// It is over and stays so.
    Ended,
}

impl SessionStatus {
    /// The word on the wire and in the database.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Ended => "ended",
        }
    }
}

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionEndReason {
    /// Somebody deleted it, or its one-shot call ended.
    Deleted,
    /// No call for longer than its idle timeout.
    Idle,
    /// It reached its lifetime.
    Expired,
    /// The kernel killed the sandbox for want of memory.
    Oom,
    /// The container went away and could not be made again.
    ContainerGone,
    /// The agent ended and could not be brought back.
    AgentGone,
    /// No worker of its host was heard of for a minute.
    HostLost,
    /// The image does not exist or cannot run.
    ImageUnavailable,
    /// A quota of the tenant ended it.
    Quota,
    /// An operator took its host out of service.
    HostDrained,
    /// An operator suspended the tenant.
    TenantSuspended,
}

impl SessionEndReason {
    /// Every reason.
    pub const ALL: &'static [Self] = &[
        Self::Deleted,
        Self::Idle,
        Self::Expired,
        Self::Oom,
        Self::ContainerGone,
        Self::AgentGone,
        Self::HostLost,
        Self::ImageUnavailable,
        Self::Quota,
        Self::HostDrained,
        Self::TenantSuspended,
    ];

    /// The word on the wire and in the database.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Deleted => "deleted",
            Self::Idle => "idle",
            Self::Expired => "expired",
            Self::Oom => "oom",
            Self::ContainerGone => "container_gone",
            Self::AgentGone => "agent_gone",
            Self::HostLost => "host_lost",
            Self::ImageUnavailable => "image_unavailable",
            Self::Quota => "quota",
            Self::HostDrained => "host_drained",
            Self::TenantSuspended => "tenant_suspended",
        }
    }

    /// A sentence for a model.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::Deleted => "The session was deleted. Create a new session to go on; its files are gone.",
            Self::Idle => {
                "The session ended because nothing was called for longer than its idle timeout. Create a new session; its files are gone."
            }
            Self::Expired => "The session reached its lifetime. Create a new session; its files are gone.",
            Self::Oom => {
                "The sandbox ran out of memory. Create a new session with a larger size, or use less memory."
            }
            Self::ContainerGone => {
                "The sandbox went away and could not be made again. Create a new session; its files are gone."
            }
            Self::AgentGone => {
                "The sandbox stopped answering and could not be brought back. Create a new session; its files are gone."
            }
            Self::HostLost => {
                "The machine that held the session is gone. Create a new session; its files are gone."
            }
            Self::ImageUnavailable => {
                "The session's image does not exist or cannot run. Create a session with another image."
            }
            Self::Quota => "A quota of the tenant ended the session. Free what is used, or ask for more.",
            Self::HostDrained => {
                "The machine that held the session was taken out of service. Create a new session; its files are gone."
            }
            Self::TenantSuspended => "The tenant was suspended, and its sessions with it. Ask the operator.",
        }
    }
}

impl FromStr for SessionEndReason {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.iter().copied().find(|reason| reason.as_str() == text).ok_or(())
    }
}

/// A session's end: why, what was seen, and a sentence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionEnd {
    /// Why.
    pub reason: SessionEndReason,
    /// A sentence for a model.
    pub message: String,
    /// What was seen: exit codes, counters, times.
    pub evidence: serde_json::Map<String, serde_json::Value>,
}

impl SessionEnd {
    /// An end with its usual sentence and no evidence.
    #[must_use]
    pub fn because(reason: SessionEndReason) -> Self {
        Self { reason, message: reason.message().to_owned(), evidence: serde_json::Map::new() }
    }

    /// The same with one more thing that was seen.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<serde_json::Value>) -> Self {
        self.evidence.insert(name.to_owned(), value.into());
        self
    }
}

/// Named sizes, so that warm sandboxes can wait for a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SizeClass {
    /// 1 CPU, 512 MiB memory, 1 GiB disk, 256 processes.
    Small,
    /// 2 CPUs, 2 GiB memory, 4 GiB disk, 512 processes.
    Medium,
    /// 4 CPUs, 8 GiB memory, 16 GiB disk, 1,024 processes.
    Large,
}

impl SizeClass {
    /// Every size.
    pub const ALL: &'static [Self] = &[Self::Small, Self::Medium, Self::Large];

    /// The word on the wire and in the database.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Medium => "medium",
            Self::Large => "large",
        }
    }

    /// What the size gives.
    #[must_use]
    pub const fn resources(self) -> Resources {
        match self {
            Self::Small => Resources { cpus: 1.0, memory_mb: 512, disk_mb: 1_024, pids: 256 },
            Self::Medium => Resources { cpus: 2.0, memory_mb: 2_048, disk_mb: 4_096, pids: 512 },
            Self::Large => Resources { cpus: 4.0, memory_mb: 8_192, disk_mb: 16_384, pids: 1_024 },
        }
    }

    /// The size with exactly these resources, if there is one.
    #[must_use]
    pub fn of(resources: Resources) -> Option<Self> {
        Self::ALL.iter().copied().find(|size| size.resources() == resources)
    }
}

impl FromStr for SizeClass {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.iter().copied().find(|size| size.as_str() == text).ok_or(())
    }
}

/// What a sandbox may use.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// CPUs, 0.1 to 64.
    pub cpus: f64,
    /// Memory, with no swap beyond it, in MiB.
    pub memory_mb: u32,
    /// Workspace, in MiB.
    pub disk_mb: u32,
    /// Processes and threads.
    pub pids: u32,
}

/// Whether a sandbox may reach the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkMode {
    /// Not at all: the only mode so far.
    None,
}

/// One session, as its row says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// Its id.
    pub id: SessionId,
    /// Whose it is.
    pub tenant_id: TenantId,
    /// Where it is in its life.
    pub status: SessionStatus,
    /// The image of its sandboxes.
    pub image: String,
    /// Its size class, unless its resources were given one by one.
    pub size: Option<SizeClass>,
    /// What its sandboxes may use.
    pub resources: Resources,
    /// Container runtime, such as `runc`.
    pub runtime: String,
    /// Environment of its commands. Values are never shown.
    pub env: BTreeMap<String, String>,
    /// The caller's labels.
    pub metadata: BTreeMap<String, String>,
    /// Network of its sandboxes.
    pub network: NetworkMode,
    /// Seconds without a call after which it ends.
    pub idle_timeout_s: u32,
    /// Seconds of life in all.
    pub lifetime_s: u32,
    /// When its life is over at the latest.
    pub expires_at: DateTime<Utc>,
    /// The session's own narrowing of policy.
    pub policy: Option<Policy>,
    /// The machine that holds its workspace.
    pub host_id: Option<HostId>,
    /// The worker that owns it at the moment.
    pub worker_id: Option<WorkerId>,
    /// Ownership epoch: rises with each worker that takes it over.
    pub epoch: u64,
    /// Sandboxes that it has had.
    pub generation: u32,
    /// It was made for one call and ends with it.
    pub one_shot: bool,
    /// Somebody asked for its end.
    pub end_requested: bool,
    /// Somebody asked for a fresh sandbox and workspace; rises with each request.
    pub reset_requested: u32,
    /// Resets carried out.
    pub reset_done: u32,
    /// When it was created.
    pub created_at: DateTime<Utc>,
    /// When it first served.
    pub started_at: Option<DateTime<Utc>>,
    /// When a call was last admitted or ended.
    pub last_active_at: DateTime<Utc>,
    /// When it ended.
    pub ended_at: Option<DateTime<Utc>>,
    /// Why it ended.
    pub ended: Option<SessionEnd>,
}
