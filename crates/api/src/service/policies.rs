//! Policy: the layers of a request, what they say, and whether a document only narrows another.

use domain::policy::{Approval, Layer, Layered, LimitRules, Policy, Question, evaluate};
use domain::{Code, SessionId, TenantContext};
use serde_json::{Value, json};
use store::AuditRow;
use tools::AdmitError;

use super::{sessions, tools as catalogue};
use crate::problem::{FieldCode, FieldError, Problem};
use crate::state::ApiState;
use crate::wire::policies::{ExplainPolicy, Explanation};

/// The layers that hold for a request, outermost first.
pub(crate) fn layers<'a>(
    state: &'a ApiState,
    context: &'a TenantContext,
    session: Option<&'a Policy>,
) -> Vec<Layered<'a>> {
    let mut layers = vec![Layered { layer: Layer::Installation, policy: &state.config.policy }];
    let mut of_context = context.policies().iter();
    let tenant = of_context.next().map(|policy| Layered { layer: Layer::Tenant, policy });
    let role = context.role().and_then(|role| role.policy.as_ref());
    let role = role.map(|policy| Layered { layer: Layer::Role, policy });
    let key = of_context.next().map(|policy| Layered { layer: Layer::Key, policy });
    layers.extend([tenant, role, key].into_iter().flatten());
    layers.extend(session.map(|policy| Layered { layer: Layer::Session, policy }));
    layers
}

/// Whether policy lets something be done to a session, as it would decide about the tool that does the same. The decision is
/// recorded before anything is done, with the session and the tool beside `details`.
pub(crate) async fn allow(
    state: &ApiState,
    context: &TenantContext,
    session_id: SessionId,
    question: Question<'_>,
    row: AuditRow,
    mut details: Value,
) -> Result<(), Problem> {
    let session = sessions::policy(state, context, session_id).await?;
    let decision = evaluate(&layers(state, context, session.as_deref()), question);
    details["session_id"] = session_id.to_string().into();
    details["tool"] = question.tool.into();
    let row = AuditRow {
        allowed: decision.allowed,
        reason: (!decision.allowed).then(|| decision.explanation.clone()),
        ..row
    };
    state.store.audit(context, row.details(details)).await?;
    match decision.allowed {
        true => Ok(()),
        false => Err(Problem::new(Code::PolicyDenied, decision.explanation)
            .with("layer", json!(decision.layer))
            .with("rule", Value::from(decision.rule))),
    }
}

/// Would this call be allowed, and by which rule?
pub(crate) async fn explain(
    state: &ApiState,
    context: &TenantContext,
    request: ExplainPolicy,
) -> Result<Explanation, Problem> {
    let session = match request.session_id {
        Some(id) => sessions::policy(state, context, id).await?,
        None => None,
    };
    let (name, toolkit) = match request.arguments {
        Some(arguments) => {
            let admitted = catalogue::admit(state, context.tenant_id(), &request.tool, arguments).await?;
            (admitted.tool, admitted.toolkit)
        }
        None => {
            let resolved = state.catalog.get(&request.tool).ok_or_else(|| {
                let nearest = state.catalog.nearest(&request.tool);
                catalogue::refuse(&request.tool, AdmitError::UnknownTool { nearest })
            })?;
            (resolved.descriptor.name, resolved.descriptor.toolkit)
        }
    };
    let decision = evaluate(&layers(state, context, session.as_deref()), Question { tool: name, toolkit });
    Ok(Explanation {
        object: "policy_explanation",
        tool: name.to_owned(),
        allowed: decision.allowed,
        layer: decision.layer,
        rule: decision.rule,
        explanation: decision.explanation,
        limits: decision.limits,
    })
}

/// Refuses a policy that would allow more than the one that it replaces.
pub(crate) fn require_narrower(old: &Policy, new: &Policy) -> Result<(), Problem> {
    let mut errors = wider_tools(old, new);
    errors.extend(wider_limits(&old.limits, &new.limits));
    if old.runtime != new.runtime {
        errors.push(wider("/runtime", "a session keeps the runtime that it was created with"));
    }
    if errors.is_empty() {
        return Ok(());
    }
    let detail = "A session's policy can only be narrowed: repeat what holds now and add to it.";
    Err(Problem::new(Code::InvalidArguments, detail).fields(errors))
}

fn wider(pointer: &str, message: impl Into<String>) -> FieldError {
    FieldError { pointer: format!("/policy{pointer}"), code: FieldCode::Invalid, message: message.into() }
}

fn wider_tools(old: &Policy, new: &Policy) -> Vec<FieldError> {
    let (old, new) = (&old.tools, &new.tools);
    let mut errors = Vec::new();
    for name in old.disabled.iter().filter(|name| !new.disabled.contains(name)) {
        errors.push(wider("/tools/disabled", format!("`{name}` is disabled and has to stay so")));
    }
    if let Some(allowed) = &old.enabled {
        match &new.enabled {
            None => errors.push(wider("/tools/enabled", "only some tools are enabled; name them or fewer")),
            Some(names) => {
                let everything = allowed.iter().any(|name| name == "*");
                for name in names.iter().filter(|name| !everything && !allowed.contains(name)) {
                    errors.push(wider("/tools/enabled", format!("`{name}` is not enabled now")));
                }
            }
        }
    }
    for (tool, rule) in &old.per_tool {
        let at = format!("/tools/per_tool/{}", crate::json::escape(tool));
        let replaced = new.per_tool.get(tool).cloned().unwrap_or_default();
        if rule.approval == Some(Approval::Deny) && replaced.approval != Some(Approval::Deny) {
            errors.push(wider(&format!("{at}/approval"), "the tool is denied and has to stay so"));
        }
        if let Some(most) = rule.limits.timeout_ms
            && replaced.limits.timeout_ms.is_none_or(|timeout_ms| timeout_ms > most)
        {
            errors.push(wider(&format!("{at}/limits/timeout_ms"), format!("must be at most {most}")));
        }
    }
    errors
}

fn wider_limits(old: &LimitRules, new: &LimitRules) -> Vec<FieldError> {
    let as_map = |rules| match serde_json::to_value(rules) {
        Ok(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let new = as_map(new);
    let above =
        |name: &str, most: f64| new.get(name).and_then(Value::as_f64).is_none_or(|value| value > most);
    as_map(old)
        .into_iter()
        .filter_map(|(name, most)| {
            let holds_now = most.as_f64()?;
            above(&name, holds_now)
                .then(|| wider(&format!("/limits/{name}"), format!("must be at most {most}")))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy(json: Value) -> Policy {
        serde_json::from_value(json).expect("a policy")
    }

    #[test]
    fn the_runtime_stays() {
        let old = policy(json!({"runtime": "runsc"}));
        assert!(require_narrower(&old, &old).is_ok());
        assert!(require_narrower(&old, &policy(json!({}))).is_err());
        assert!(require_narrower(&policy(json!({})), &old).is_err());
    }

    #[test]
    fn what_was_refused_stays_refused() {
        let old = policy(json!({
            "tools": {"disabled": ["wait"], "enabled": ["bash", "read_file"],
                "per_tool": {"bash": {"approval": "deny", "limits": {"timeout_ms": 10}}}},
            "limits": {"session_running_calls": 2, "cpus": 1.5},
        }));
        let pointers: Vec<String> = match require_narrower(&old, &policy(json!({}))) {
            Err(problem) => problem.errors.into_iter().map(|error| error.pointer).collect(),
            Ok(()) => Vec::new(),
        };
        assert_eq!(
            pointers,
            [
                "/policy/tools/disabled",
                "/policy/tools/enabled",
                "/policy/tools/per_tool/bash/approval",
                "/policy/tools/per_tool/bash/limits/timeout_ms",
                "/policy/limits/cpus",
                "/policy/limits/session_running_calls",
            ]
        );
        assert!(require_narrower(&old, &old).is_ok());
        let narrower = policy(json!({
            "tools": {"disabled": ["wait", "bash"], "enabled": ["bash"],
                "per_tool": {"bash": {"approval": "deny", "limits": {"timeout_ms": 5}}}},
            "limits": {"session_running_calls": 1, "cpus": 1.5, "pids": 16},
        }));
        assert!(require_narrower(&old, &narrower).is_ok());
        assert!(require_narrower(&narrower, &old).is_err());
    }
}
