//! Policies on the wire: the twins of `domain::policy`, and the answer of *explain*.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// One layer's policy. A field that is left out says nothing; layers can only narrow each other.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Which tools may run.
    #[schema(required = false)]
    pub tools: ToolRules,
    /// How much.
    #[schema(required = false)]
    pub limits: LimitRules,
    /// The container runtime that sessions must have, such as `runsc`. The outermost layer that names one decides.
    #[schema(examples("runsc"))]
    pub runtime: Option<String>,
}

/// Which tools may run. A name is a tool's own name, `toolkit:<name>` for a whole toolkit, or `*`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolRules {
    /// When present, only these may run.
    pub enabled: Option<Vec<String>>,
    /// These may not run, even when enabled.
    #[schema(required = false)]
    pub disabled: Vec<String>,
    /// Rules of single tools, by the tool's own name.
    #[schema(required = false)]
    pub per_tool: BTreeMap<String, ToolRule>,
}

/// Rules of one tool.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolRule {
    /// Whether it runs at once or never.
    pub approval: Option<Approval>,
    /// Its own limits, within the layer's.
    #[schema(required = false)]
    pub limits: ToolLimits,
}

/// Whether a call runs at once or never.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Approval {
    /// It runs.
    Auto,
    /// It never runs.
    Deny,
}

/// Limits of one tool.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolLimits {
    /// Largest `timeout_ms` of a call.
    pub timeout_ms: Option<u64>,
}

/// Limits of a layer. The smallest of all layers holds.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitRules {
    /// Sessions of the tenant that have not ended.
    pub sessions: Option<u32>,
    /// Requests in a minute, counted by each API process: of all keys of the tenant together, or of one key where its own policy says.
    pub requests_per_minute: Option<u32>,
    /// CPU-hours that calls of the tenant use in a day (UTC).
    pub cpu_hours_per_day: Option<f64>,
    /// Calls of the tenant that run at the same time.
    pub running_calls: Option<u32>,
    /// Calls of the tenant that wait.
    pub queued_calls: Option<u32>,
    /// Calls of one session that run at the same time.
    pub session_running_calls: Option<u32>,
    /// Shells that run in one session.
    pub session_shells: Option<u32>,
    /// Shells of the tenant that run at the same time, in all its sessions.
    pub shells: Option<u32>,
    /// Largest `timeout_ms` of a call.
    pub timeout_ms: Option<u64>,
    /// Output of a call that is kept, in bytes.
    pub output_bytes: Option<u64>,
    /// Output and artifacts of the tenant that are kept, in bytes.
    pub stored_bytes: Option<u64>,
    /// Longest idle timeout of a session, in seconds.
    pub idle_timeout_s: Option<u32>,
    /// Longest lifetime of a session, in seconds.
    pub lifetime_s: Option<u32>,
    /// Most CPUs of a session.
    pub cpus: Option<f64>,
    /// Most memory of a session, in MiB.
    pub memory_mb: Option<u32>,
    /// Largest workspace of a session, in MiB.
    pub disk_mb: Option<u32>,
    /// Most processes of a session.
    pub pids: Option<u32>,
}

/// Limits after all layers: every one has a value.
#[derive(Debug, Clone, ToSchema)]
pub struct EffectiveLimits {
    /// Sessions of the tenant that have not ended.
    pub sessions: u32,
    /// Requests in a minute, counted by each API process: of all keys of the tenant together, or of one key where its own policy says.
    pub requests_per_minute: u32,
    /// CPU-hours that calls of the tenant use in a day (UTC).
    pub cpu_hours_per_day: f64,
    /// Calls of the tenant that run at the same time.
    pub running_calls: u32,
    /// Calls of the tenant that wait.
    pub queued_calls: u32,
    /// Calls of one session that run at the same time.
    pub session_running_calls: u32,
    /// Shells that run in one session.
    pub session_shells: u32,
    /// Shells of the tenant that run at the same time, in all its sessions.
    pub shells: u32,
    /// Largest `timeout_ms` of a call.
    pub timeout_ms: u64,
    /// Output of a call that is kept, in bytes.
    pub output_bytes: u64,
    /// Output and artifacts of the tenant that are kept, in bytes.
    pub stored_bytes: u64,
    /// Longest idle timeout of a session, in seconds.
    pub idle_timeout_s: u32,
    /// Longest lifetime of a session, in seconds.
    pub lifetime_s: u32,
    /// Most CPUs of a session.
    pub cpus: f64,
    /// Most memory of a session, in MiB.
    pub memory_mb: u32,
    /// Largest workspace of a session, in MiB.
    pub disk_mb: u32,
    /// Most processes of a session.
    pub pids: u32,
}

/// Which layer a rule stands in.
#[derive(Debug, Clone, Copy, ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum PolicyLayer {
    /// The operator's configuration.
    Installation,
    /// The tenant's document.
    Tenant,
    /// The document of the credential's role.
    Role,
    /// The key's document.
    Key,
    /// The session's document.
    Session,
}

/// Would this call be allowed?
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"tool": "bash", "arguments": {"command": "ls"}})))]
pub struct ExplainPolicy {
    /// The tool's name.
    #[schema(min_length = 1, max_length = 128)]
    pub tool: String,
    /// The arguments of the call; when given, they are validated too.
    #[schema(value_type = Option<Object>)]
    pub arguments: Option<Map<String, Value>>,
    /// The session that it would run in, for its own policy.
    #[schema(value_type = Option<String>)]
    pub session_id: Option<domain::SessionId>,
}

/// Whether a call would be allowed, and by which rule.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Explanation {
    /// Always `policy_explanation`.
    #[schema(pattern = "^policy_explanation$")]
    pub object: &'static str,
    /// The tool's own name.
    pub tool: String,
    /// Whether the call would run.
    pub allowed: bool,
    /// Layer of the rule that decided; null when no layer says anything.
    #[schema(value_type = Option<PolicyLayer>)]
    pub layer: Option<domain::policy::Layer>,
    /// JSON pointer to the rule in that layer's document.
    pub rule: Option<String>,
    /// The answer as a sentence.
    pub explanation: String,
    /// Limits that the call would have.
    #[schema(value_type = EffectiveLimits)]
    pub limits: domain::policy::EffectiveLimits,
}
