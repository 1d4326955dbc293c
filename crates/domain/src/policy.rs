//! Policy is data: what may run, with which limits. Layers (installation, tenant, key, session) can only narrow,
//! and the evaluation says which rule decided.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::limits;

/// One layer's document. An absent field says nothing; unknown fields are errors.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Which tools may run.
    pub tools: ToolRules,
    /// How much.
    pub limits: LimitRules,
    /// The container runtime that sessions must have, such as `runsc`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
}

/// Which tools may run. A name is a tool's own name, `toolkit:<name>` for a whole toolkit, or `*`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ToolRules {
    /// When present, only these may run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<Vec<String>>,
    /// These may not run, even when enabled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disabled: Vec<String>,
    /// Rules of single tools, by the tool's own name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub per_tool: BTreeMap<String, ToolRule>,
}

/// Rules of one tool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ToolRule {
    /// Whether it runs at once or never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
    /// Its own limits, within the layer's.
    pub limits: ToolLimits,
}

/// Whether a call runs at once. `ask` (a human allows each call) is not there yet and is refused as unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Approval {
    /// It runs.
    Auto,
    /// It never runs.
    Deny,
}

/// Limits of one tool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ToolLimits {
    /// Largest `timeout_ms` of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

/// Limits of a layer. The smallest of all layers holds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitRules {
    /// Sessions of the tenant that have not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions: Option<u32>,
    /// Requests in a minute, counted by each API process: of all keys of the tenant together, or of one key where its own policy says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    /// CPU-hours that calls and shells of the tenant use in a day (UTC).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_hours_per_day: Option<f64>,
    /// Calls of the tenant that run at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_calls: Option<u32>,
    /// Calls of the tenant that wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued_calls: Option<u32>,
    /// Calls of one session that run at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_running_calls: Option<u32>,
    /// Shells that run in one session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_shells: Option<u32>,
    /// Shells of the tenant that run at the same time, in all its sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shells: Option<u32>,
    /// Largest `timeout_ms` of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Output of a call that is kept, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
    /// Output and artifacts of the tenant that are kept, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored_bytes: Option<u64>,
    /// Longest idle timeout of a session, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout_s: Option<u32>,
    /// Longest lifetime of a session, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifetime_s: Option<u32>,
    /// Most CPUs of a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    /// Most memory of a session, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
    /// Largest workspace of a session, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_mb: Option<u32>,
    /// Most processes of a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
}

/// Limits after all layers: every one has a value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EffectiveLimits {
    /// See [`LimitRules::sessions`].
    pub sessions: u32,
    /// See [`LimitRules::requests_per_minute`].
    pub requests_per_minute: u32,
    /// See [`LimitRules::cpu_hours_per_day`].
    pub cpu_hours_per_day: f64,
    /// See [`LimitRules::running_calls`].
    pub running_calls: u32,
    /// See [`LimitRules::queued_calls`].
    pub queued_calls: u32,
    /// See [`LimitRules::session_running_calls`].
    pub session_running_calls: u32,
    /// See [`LimitRules::session_shells`].
    pub session_shells: u32,
    /// See [`LimitRules::shells`].
    pub shells: u32,
    /// See [`LimitRules::timeout_ms`].
    pub timeout_ms: u64,
    /// See [`LimitRules::output_bytes`].
    pub output_bytes: u64,
    /// See [`LimitRules::stored_bytes`].
    pub stored_bytes: u64,
    /// See [`LimitRules::idle_timeout_s`].
    pub idle_timeout_s: u32,
    /// See [`LimitRules::lifetime_s`].
    pub lifetime_s: u32,
    /// See [`LimitRules::cpus`].
    pub cpus: f64,
    /// See [`LimitRules::memory_mb`].
    pub memory_mb: u32,
    /// See [`LimitRules::disk_mb`].
    pub disk_mb: u32,
    /// See [`LimitRules::pids`].
    pub pids: u32,
}

impl Default for EffectiveLimits {
    /// What holds when no layer says anything.
    fn default() -> Self {
        Self {
            sessions: 50,
            requests_per_minute: limits::REQUESTS_PER_MINUTE,
            cpu_hours_per_day: limits::CPU_HOURS_PER_DAY,
            running_calls: 32,
            queued_calls: 10_000,
            session_running_calls: limits::SESSION_RUNNING_CALLS,
            session_shells: limits::SESSION_SHELLS,
            shells: limits::SHELLS,
            timeout_ms: limits::TIMEOUT_MS,
            output_bytes: limits::OUTPUT_BYTES,
            stored_bytes: limits::STORED_BYTES,
            idle_timeout_s: limits::LIFETIME_S,
            lifetime_s: limits::LIFETIME_S,
            cpus: 4.0,
            memory_mb: 8_192,
            disk_mb: 16_384,
            pids: 1_024,
        }
    }
}

/// Which layer a rule stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
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

/// One layer and its document.
#[derive(Debug, Clone, Copy)]
pub struct Layered<'a> {
    /// Which layer.
    pub layer: Layer,
    /// Its document.
    pub policy: &'a Policy,
}

/// What is asked: may this tool run?
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The tool's own name.
    pub tool: &'a str,
    /// Its toolkit.
    pub toolkit: &'a str,
}

/// The answer, with the rule that decided.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decision {
    /// Whether the call may run.
    pub allowed: bool,
    /// Layer of the rule that decided; `None` when no layer says anything.
    pub layer: Option<Layer>,
    /// JSON pointer to the rule in that layer's document.
    pub rule: Option<String>,
    /// The answer as a sentence.
    pub explanation: String,
    /// Limits for the call.
    pub limits: EffectiveLimits,
}

/// Decides whether a tool may run, and why. The first layer that says no decides; no later layer can allow again.
#[must_use]
pub fn evaluate(layers: &[Layered<'_>], question: Question<'_>) -> Decision {
    let mut limits = effective_limits(layers);
    for layered in layers {
        if let Some(rule) = layered.policy.tools.per_tool.get(question.tool)
            && let Some(timeout_ms) = rule.limits.timeout_ms
        {
            limits.timeout_ms = limits.timeout_ms.min(timeout_ms);
        }
    }
    match layers.iter().find_map(|layered| refusal(layered, question)) {
        Some((layer, rule, explanation)) => {
            Decision { allowed: false, layer: Some(layer), rule: Some(rule), explanation, limits }
        }
        None => Decision {
            allowed: true,
            layer: None,
            rule: None,
            explanation: format!("No layer refuses the tool `{}`.", question.tool),
            limits,
        },
    }
}

fn refusal(layered: &Layered<'_>, question: Question<'_>) -> Option<(Layer, String, String)> {
    let rules = &layered.policy.tools;
    let layer = layered.layer;
    let name = layer_name(layer);
    let tool = question.tool;
    if let Some(index) = rules.disabled.iter().position(|pattern| covers(pattern, question)) {
        return Some((
            layer,
            format!("/tools/disabled/{index}"),
            format!("The {name}'s policy disables the tool `{tool}`."),
        ));
    }
    if let Some(enabled) = &rules.enabled
        && !enabled.iter().any(|pattern| covers(pattern, question))
    {
        return Some((
            layer,
            "/tools/enabled".to_owned(),
            format!("The {name}'s policy does not list the tool `{tool}` among the enabled ones."),
        ));
    }
    if rules.per_tool.get(tool).and_then(|rule| rule.approval) == Some(Approval::Deny) {
        return Some((
            layer,
            format!("/tools/per_tool/{tool}/approval"),
            format!("The {name}'s policy denies every call of the tool `{tool}`."),
        ));
    }
    None
}

/// How a layer is called in sentences.
#[must_use]
pub const fn layer_name(layer: Layer) -> &'static str {
    match layer {
        Layer::Installation => "installation",
        Layer::Tenant => "tenant",
        Layer::Role => "role",
        Layer::Key => "API key",
        Layer::Session => "session",
    }
}

fn covers(pattern: &str, question: Question<'_>) -> bool {
    pattern == "*" || pattern == question.tool || pattern.strip_prefix("toolkit:") == Some(question.toolkit)
}

/// The smallest of every limit over all layers.
#[must_use]
pub fn effective_limits(layers: &[Layered<'_>]) -> EffectiveLimits {
    let mut effective = EffectiveLimits::default();
    // The operator sets the installation's limits themselves, up or down; everybody below can only narrow.
    for layered in layers {
        let rules = &layered.policy.limits;
        let combine = match layered.layer {
            Layer::Installation => Combine::Replace,
            Layer::Tenant | Layer::Role | Layer::Key | Layer::Session => Combine::Narrow,
        };
        combine.apply(&mut effective.sessions, rules.sessions);
        combine.apply(&mut effective.requests_per_minute, rules.requests_per_minute);
        combine.apply(&mut effective.cpu_hours_per_day, rules.cpu_hours_per_day);
        combine.apply(&mut effective.running_calls, rules.running_calls);
        combine.apply(&mut effective.queued_calls, rules.queued_calls);
        combine.apply(&mut effective.session_running_calls, rules.session_running_calls);
        combine.apply(&mut effective.session_shells, rules.session_shells);
        combine.apply(&mut effective.shells, rules.shells);
        combine.apply(&mut effective.timeout_ms, rules.timeout_ms);
        combine.apply(&mut effective.output_bytes, rules.output_bytes);
        combine.apply(&mut effective.stored_bytes, rules.stored_bytes);
        combine.apply(&mut effective.idle_timeout_s, rules.idle_timeout_s);
        combine.apply(&mut effective.lifetime_s, rules.lifetime_s);
        combine.apply(&mut effective.cpus, rules.cpus);
        combine.apply(&mut effective.memory_mb, rules.memory_mb);
        combine.apply(&mut effective.disk_mb, rules.disk_mb);
        combine.apply(&mut effective.pids, rules.pids);
    }
    effective.timeout_ms = effective.timeout_ms.min(limits::TIMEOUT_MS);
    effective.output_bytes = effective.output_bytes.min(limits::OUTPUT_BYTES);
    effective.lifetime_s = effective.lifetime_s.min(limits::LIFETIME_S);
    effective
}

/// The container runtime that policy demands, with the layer that does: the outermost that names one.
#[must_use]
pub fn demanded_runtime<'a>(layers: &[Layered<'a>]) -> Option<(Layer, &'a str)> {
    layers.iter().find_map(|layered| Some((layered.layer, layered.policy.runtime.as_deref()?)))
}

#[derive(Clone, Copy)]
enum Combine {
    Replace,
    Narrow,
}

impl Combine {
    fn apply<T: PartialOrd + Copy>(self, current: &mut T, rule: Option<T>) {
        if let Some(value) = rule {
            match self {
                Self::Replace => *current = value,
                Self::Narrow if value < *current => *current = value,
                Self::Narrow => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BASH: Question<'static> = Question { tool: "bash", toolkit: "shell" };

    fn policy(json: serde_json::Value) -> Policy {
        serde_json::from_value(json).expect("a policy")
    }

    fn tenant(policy: &Policy) -> Layered<'_> {
        Layered { layer: Layer::Tenant, policy }
    }

    fn session(policy: &Policy) -> Layered<'_> {
        Layered { layer: Layer::Session, policy }
    }

    #[test]
    fn nothing_said_is_allowed() {
        assert!(evaluate(&[], BASH).allowed);
    }

    #[test]
    fn a_refusal_names_its_rule() {
        let refusing = policy(serde_json::json!({"tools": {"disabled": ["wait", "toolkit:shell"]}}));
        let decision = evaluate(&[tenant(&refusing)], BASH);
        assert!(!decision.allowed);
        assert_eq!(decision.rule.as_deref(), Some("/tools/disabled/1"));
        assert_eq!(decision.layer, Some(Layer::Tenant));
    }

    #[test]
    fn an_inner_layer_cannot_allow_again() {
        let outer = policy(serde_json::json!({"tools": {"per_tool": {"bash": {"approval": "deny"}}}}));
        let inner = policy(
            serde_json::json!({"tools": {"enabled": ["bash"], "per_tool": {"bash": {"approval": "auto"}}}}),
        );
        assert!(!evaluate(&[tenant(&outer), session(&inner)], BASH).allowed);
    }

    #[test]
    fn unknown_fields_and_ask_are_refused() {
        for json in [
            serde_json::json!({"tool": {}}),
            serde_json::json!({"tools": {"per_tool": {"bash": {"approval": "ask"}}}}),
            serde_json::json!({"limits": {"session": 1}}),
        ] {
            assert!(serde_json::from_value::<Policy>(json).is_err());
        }
    }

    #[test]
    fn an_inner_layer_cannot_choose_another_runtime() {
        let outer = policy(serde_json::json!({"runtime": "runsc"}));
        let inner = policy(serde_json::json!({"runtime": "runc"}));
        assert_eq!(demanded_runtime(&[tenant(&outer), session(&inner)]), Some((Layer::Tenant, "runsc")));
        assert_eq!(demanded_runtime(&[session(&inner)]), Some((Layer::Session, "runc")));
        assert_eq!(demanded_runtime(&[]), None);
    }

    fn any_limits() -> impl Strategy<Value = Policy> {
        (
            prop::option::of(0u32..100),
            prop::option::of(0u64..900_000),
            prop::collection::vec("[a-c]", 0..3),
            prop::option::of(prop::collection::vec("[a-c]", 0..3)),
        )
            .prop_map(|(sessions, timeout_ms, disabled, enabled)| Policy {
                tools: ToolRules { enabled, disabled, per_tool: BTreeMap::new() },
                limits: LimitRules { sessions, timeout_ms, ..LimitRules::default() },
                runtime: None,
            })
    }

    proptest! {
        #[test]
        fn one_more_layer_only_narrows(first in any_limits(), second in any_limits(), tool in "[a-c]") {
            let question = Question { tool: &tool, toolkit: "x" };
            let outer = evaluate(&[tenant(&first)], question);
            let both = evaluate(&[tenant(&first), session(&second)], question);
            prop_assert!(outer.allowed || !both.allowed);
            prop_assert!(both.limits.sessions <= outer.limits.sessions);
            prop_assert!(both.limits.timeout_ms <= outer.limits.timeout_ms);
        }
    }
}
