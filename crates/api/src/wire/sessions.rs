//! A session on the wire.

use std::collections::BTreeMap;

use domain::{Session, SessionEnd, limits};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Time;
use super::policies::Policy;
use crate::json::Checks;

/// Where a session is in its life.
#[derive(Debug, Clone, Copy, ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum SessionStatus {
    /// Its first sandbox is being made. Calls are accepted and wait.
    Starting,
    /// It serves calls.
    Running,
    /// It is over and stays so.
    Ended,
}

/// Named sizes. `small`: 1 CPU, 512 MiB memory, 1 GiB disk, 256 processes. `medium`: 2 CPUs, 2 GiB, 4 GiB, 512.
/// `large`: 4 CPUs, 8 GiB, 16 GiB, 1,024.
#[derive(Debug, Clone, Copy, ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum SizeClass {
    /// 1 CPU, 512 MiB memory, 1 GiB disk, 256 processes.
    Small,
    /// 2 CPUs, 2 GiB memory, 4 GiB disk, 512 processes.
    Medium,
    /// 4 CPUs, 8 GiB memory, 16 GiB disk, 1,024 processes.
    Large,
}

/// What a sandbox may use.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// CPUs.
    #[schema(minimum = 0.1, maximum = 64.0)]
    pub cpus: f64,
    /// Memory in MiB; there is no swap beyond it.
    #[schema(minimum = 64)]
    pub memory_mb: u32,
    /// Workspace in MiB.
    #[schema(minimum = 64)]
    pub disk_mb: u32,
    /// Processes and threads.
    #[schema(minimum = 16)]
    pub pids: u32,
}

/// Whether a sandbox may reach the network. `none` is the only mode so far.
#[derive(Debug, Clone, Copy, ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum NetworkMode {
    /// Not at all.
    None,
}

/// Network of a session's sandboxes, as asked.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkRequest {
    /// The mode.
    #[schema(value_type = NetworkMode)]
    pub mode: domain::NetworkMode,
}

/// Network of a session's sandboxes.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Network {
    /// The mode.
    #[schema(value_type = NetworkMode)]
    pub mode: domain::NetworkMode,
    /// What may be reached.
    pub allow: Vec<String>,
}

/// Why a session ended.
#[derive(Debug, Clone, Copy, ToSchema)]
#[schema(rename_all = "snake_case")]
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

/// A session's end: why, what was seen, and a sentence for a model.
#[derive(Debug, Clone, ToSchema)]
#[schema(as = SessionEnd)]
pub struct SessionEndTwin {
    /// Why.
    pub reason: SessionEndReason,
    /// A sentence for a model.
    pub message: String,
    /// What was seen: exit codes, counters, times.
    #[schema(value_type = Object)]
    pub evidence: serde_json::Value,
}

/// A workspace and what runs over it.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Session)]
pub struct SessionView {
    /// Its id.
    #[schema(value_type = String, examples("sess_06b2m8j0v5x3t9q7k1h4c8n2ra"))]
    pub id: domain::SessionId,
    /// Always `session`.
    #[schema(pattern = "^session$")]
    pub object: &'static str,
    /// Where it is in its life.
    #[schema(value_type = SessionStatus)]
    pub status: domain::SessionStatus,
    /// Image of its sandboxes.
    pub image: String,
    /// Its size, unless its resources were given one by one.
    #[schema(value_type = Option<SizeClass>)]
    pub size: Option<domain::SizeClass>,
    /// Container runtime.
    #[schema(examples("runc"))]
    pub runtime: String,
    /// What its sandboxes may use.
    #[schema(value_type = Resources)]
    pub resources: domain::Resources,
    /// Names of the variables that its commands have. Values are never shown.
    pub env: Vec<String>,
    /// Where relative paths start.
    #[schema(examples("/workspace"))]
    pub working_directory: &'static str,
    /// Network of its sandboxes.
    pub network: Network,
    /// Seconds without a call after which it ends.
    pub idle_timeout_s: u32,
    /// Seconds of life in all.
    pub lifetime_s: u32,
    /// When its life is over at the latest.
    pub expires_at: Time,
    /// The session's own narrowing of policy.
    #[schema(value_type = Option<Policy>)]
    pub policy: Option<domain::policy::Policy>,
    /// The caller's labels.
    pub metadata: BTreeMap<String, String>,
    /// When it was created.
    pub created_at: Time,
    /// When it first served.
    pub started_at: Option<Time>,
    /// When it ended.
    pub ended_at: Option<Time>,
    /// Why it ended; null while it lives.
    #[schema(value_type = Option<SessionEndTwin>)]
    pub ended: Option<SessionEnd>,
}

impl From<Session> for SessionView {
    fn from(session: Session) -> Self {
        Self {
            id: session.id,
            object: "session",
            status: session.status,
            image: session.image,
            size: session.size,
            runtime: session.runtime,
            resources: session.resources,
            env: session.env.into_keys().collect(),
            working_directory: "/workspace",
            network: Network { mode: session.network, allow: Vec::new() },
            idle_timeout_s: session.idle_timeout_s,
            lifetime_s: session.lifetime_s,
            expires_at: session.expires_at.into(),
            policy: session.policy,
            metadata: session.metadata,
            created_at: session.created_at.into(),
            started_at: session.started_at.map(Time),
            ended_at: session.ended_at.map(Time),
            ended: session.ended,
        }
    }
}

/// What a new session is to be. Every field may be left out.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"size": "small", "idle_timeout_s": 600, "metadata": {"job": "42"}})))]
pub struct CreateSession {
    /// Image of its sandboxes; the installation's own when left out.
    #[schema(min_length = 1, max_length = 255)]
    pub image: Option<String>,
    /// Container runtime, one of those that the installation offers (`runc`, or `runsc` for gVisor); its default when left
    /// out. Policy may demand one.
    #[schema(min_length = 1, max_length = 64, examples("runsc"))]
    pub runtime: Option<String>,
    /// A size; `small` when neither size nor resources are given. Not together with `resources`.
    #[schema(value_type = Option<SizeClass>)]
    pub size: Option<domain::SizeClass>,
    /// Resources one by one. Such a session does not come from the pool of warm sandboxes.
    #[schema(value_type = Option<Resources>)]
    pub resources: Option<domain::Resources>,
    /// Environment of its commands. It can be read by whatever runs in the session, and never again over the API.
    #[serde(default)]
    #[schema(schema_with = super::env)]
    pub env: BTreeMap<String, String>,
    /// Network of its sandboxes: `{"mode": "none"}`.
    pub network: Option<NetworkRequest>,
    /// Seconds without a call after which it ends; 900 when left out.
    #[schema(minimum = 1, maximum = 604800)]
    pub idle_timeout_s: Option<u32>,
    /// Seconds of life in all; 86,400 when left out.
    #[schema(minimum = 1, maximum = 604800)]
    pub lifetime_s: Option<u32>,
    /// The session's own policy; it can only narrow those of tenant and key.
    #[schema(value_type = Option<Policy>)]
    pub policy: Option<domain::policy::Policy>,
    /// Labels: at most 16, of at most 512 characters.
    #[serde(default)]
    #[schema(schema_with = super::metadata)]
    pub metadata: BTreeMap<String, String>,
}

impl CreateSession {
    /// What does not depend on policy; pointers start at `at`.
    pub(crate) fn check(&self, at: &str, checks: &mut Checks) {
        checks.text(&format!("{at}/image"), self.image.as_deref(), 1..=255);
        checks.text(&format!("{at}/runtime"), self.runtime.as_deref(), 1..=64);
        checks.env(&format!("{at}/env"), &self.env);
        checks.metadata(&format!("{at}/metadata"), Some(&self.metadata));
        checks.range(&format!("{at}/idle_timeout_s"), self.idle_timeout_s, 1..=limits::LIFETIME_S);
        checks.range(&format!("{at}/lifetime_s"), self.lifetime_s, 1..=limits::LIFETIME_S);
    }
}

/// What is to change of a session; what is left out stays.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"lifetime_s": 172800, "metadata": {"job": "42", "stage": "review"}})))]
pub struct PatchSession {
    /// Replaces all labels.
    #[schema(schema_with = super::metadata)]
    pub metadata: Option<BTreeMap<String, String>>,
    /// Seconds without a call after which it ends.
    #[schema(minimum = 1, maximum = 604800)]
    pub idle_timeout_s: Option<u32>,
    /// Seconds of life in all, counted from its creation; at least what it has now.
    #[schema(minimum = 1, maximum = 604800)]
    pub lifetime_s: Option<u32>,
    /// A further narrowing of the session's policy: what was refused stays refused.
    #[schema(value_type = Option<Policy>)]
    pub policy: Option<domain::policy::Policy>,
}

impl PatchSession {
    pub(crate) fn check(&self, checks: &mut Checks) {
        checks.metadata("/metadata", self.metadata.as_ref());
        checks.range("/idle_timeout_s", self.idle_timeout_s, 1..=limits::LIFETIME_S);
        checks.range("/lifetime_s", self.lifetime_s, 1..=limits::LIFETIME_S);
    }
}
