//! What a tenant used, and what could go better.

use std::collections::BTreeMap;

use domain::policy::{EffectiveLimits, effective_limits};
use domain::usage::{CallFigures, Period};
use domain::{SessionId, TenantContext};
use serde_json::{Map, Value, json};
use store::{Listed, Page, Refusals, SessionUsage, Usage, UsageGroup};

use super::policies::layers;
use crate::problem::Problem;
use crate::state::ApiState;
use crate::wire::usage::{Finding, FindingKind, Severity, total};

/// Fewer calls than this say nothing of a tool.
const ENOUGH_CALLS: u64 = 10;
/// Part of a tool's calls that may fail before it is named.
const FAILING: f64 = 0.1;
/// Part of a tool's results that may be errors before it is named.
const ERROR_RESULTS: f64 = 0.3;
/// Part of all calls that may wait before it is named.
const WAITING: f64 = 0.05;
/// From here on a tool is slow.
const SLOW_MS: u64 = 30_000;

/// What the tenant used, by tool or day.
pub(crate) async fn usage(
    state: &ApiState,
    context: &TenantContext,
    period: Period,
    group: UsageGroup,
) -> Result<Usage, Problem> {
    Ok(state.store.usage(context, period, group).await?)
}

/// What sessions of the tenant used, newest first.
pub(crate) async fn by_session(
    state: &ApiState,
    context: &TenantContext,
    period: Period,
    page: Page,
) -> Result<Listed<(SessionId, CallFigures)>, Problem> {
    Ok(state.store.usage_by_session(context, period, page).await?)
}

/// What one session used so far.
pub(crate) async fn of_session(
    state: &ApiState,
    context: &TenantContext,
    id: SessionId,
) -> Result<SessionUsage, Problem> {
    Ok(state.store.usage_of_session(context, id).await?)
}

/// What could go better, the most important first.
pub(crate) async fn insights(
    state: &ApiState,
    context: &TenantContext,
    period: Period,
) -> Result<Vec<Finding>, Problem> {
    let usage = state.store.usage(context, period, UsageGroup::Tool).await?;
    let refusals = state.store.refusals(context, period).await?;
    let limits = effective_limits(&layers(state, context, None));
    Ok(findings(&usage.groups, &refusals, &limits))
}

fn findings(
    tools: &BTreeMap<String, CallFigures>,
    refusals: &[Refusals],
    limits: &EffectiveLimits,
) -> Vec<Finding> {
    let all = total(tools);
    let mut findings = Vec::new();
    findings.extend(refusals.iter().filter_map(limit_reached));
    for (tool, figures) in tools.iter().filter(|(_, figures)| figures.calls >= ENOUGH_CALLS) {
        findings.extend(
            [failing(tool, figures), slow(tool, figures), error_results(tool, figures)].into_iter().flatten(),
        );
    }
    findings.extend([lost(&all), waiting(&all, limits), denied(&all)].into_iter().flatten());
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity as u8));
    findings
}

fn failing(tool: &str, figures: &CallFigures) -> Option<Finding> {
    let rate = figures.error_rate().filter(|rate| *rate >= FAILING)?;
    let (kind, suggestion) = if figures.timed_out * 2 > figures.errors() {
        let suggestion = "Give the calls a larger `timeout_ms`, split the work, or run it in the background and read its output later.";
        (FindingKind::TimingOutTool, suggestion)
    } else {
        let suggestion = "Read `error` of the failed calls (`GET /v1/calls?tool=…&status=failed`): each has a hint that says what to change.";
        (FindingKind::FailingTool, suggestion)
    };
    Some(Finding {
        kind,
        severity: if rate >= 0.5 { Severity::Critical } else { Severity::Warning },
        tool: Some(tool.to_owned()),
        message: format!("{:.0} % of {} calls of {tool} did not end well.", rate * 100.0, figures.calls),
        suggestion: suggestion.to_owned(),
        evidence: evidence(
            json!({"calls": figures.calls, "failed": figures.failed, "timed_out": figures.timed_out, "lost": figures.lost}),
        ),
    })
}

fn slow(tool: &str, figures: &CallFigures) -> Option<Finding> {
    let p95 = figures.percentile(0.95).filter(|p95| *p95 >= SLOW_MS)?;
    Some(Finding {
        kind: FindingKind::SlowTool,
        severity: Severity::Info,
        tool: Some(tool.to_owned()),
        message: format!("One of twenty calls of {tool} takes longer than {} s.", p95 / 1_000),
        suggestion: "Run long commands in the background, give sessions a larger size, or prepare an image that has what the commands install."
            .to_owned(),
        evidence: evidence(json!({"calls": figures.calls, "p50_ms": figures.percentile(0.5), "p95_ms": p95})),
    })
}

fn error_results(tool: &str, figures: &CallFigures) -> Option<Finding> {
    let rate = figures.tool_errors as f64 / figures.succeeded.max(1) as f64;
    (rate >= ERROR_RESULTS).then(|| Finding {
        kind: FindingKind::ErrorResults,
        severity: Severity::Info,
        tool: Some(tool.to_owned()),
        message: format!("{:.0} % of the results of {tool} are errors of the tool itself.", rate * 100.0),
        suggestion: "Look at what the model asks for: the tool ran, but what it was told to do did not work (a command's exit code, say)."
            .to_owned(),
        evidence: evidence(json!({"succeeded": figures.succeeded, "tool_errors": figures.tool_errors})),
    })
}

fn waiting(all: &CallFigures, limits: &EffectiveLimits) -> Option<Finding> {
    let rate = all.waited as f64 / all.calls.max(1) as f64;
    (all.waited >= ENOUGH_CALLS && rate >= WAITING).then(|| Finding {
        kind: FindingKind::QueueWait,
        severity: Severity::Warning,
        tool: None,
        message: format!("{:.0} % of the calls waited for longer than a second before they started.", rate * 100.0),
        suggestion: "Spread calls over more sessions, create sessions ahead of their first call, or ask the operator for more `running_calls`."
            .to_owned(),
        evidence: evidence(json!({
            "waited": all.waited, "queue_seconds": all.queue_ms / 1_000,
            "running_calls": limits.running_calls, "session_running_calls": limits.session_running_calls,
        })),
    })
}

fn lost(all: &CallFigures) -> Option<Finding> {
    (all.lost > 0).then(|| Finding {
        kind: FindingKind::LostCalls,
        severity: Severity::Critical,
        tool: None,
        message: format!("{} calls were lost: nobody can know what they did.", all.lost),
        suggestion: "Read `ended.evidence` of the lost calls. When memory ran out, give sessions a larger size; else tell the operator.".to_owned(),
        evidence: evidence(json!({"lost": all.lost, "calls": all.calls})),
    })
}

fn denied(all: &CallFigures) -> Option<Finding> {
    (all.denied >= ENOUGH_CALLS).then(|| Finding {
        kind: FindingKind::PolicyRefusals,
        severity: Severity::Info,
        tool: None,
        message: format!("Policy refused {} calls.", all.denied),
        suggestion: "Show the model only what it may use (`GET /v1/tools` leaves out what policy refuses), or change the policy; `POST /v1/policies/explain` names the rule."
            .to_owned(),
        evidence: evidence(json!({"denied": all.denied, "calls": all.calls})),
    })
}

/// A refusal that a limit made. Others are the caller's own mistakes.
fn limit_reached(refusal: &Refusals) -> Option<Finding> {
    let suggestion = match refusal.reason.as_str() {
        "quota_exceeded" => {
            "End sessions that are done (or give them a shorter `idle_timeout_s`), or ask the operator for a higher quota."
        }
        "queue_full" | "rate_limited" => {
            "Submit fewer calls at once and heed `Retry-After`, or ask the operator for a higher limit."
        }
        "capacity" => "Ask for smaller sessions, or tell the operator that the installation is full.",
        _ => return None,
    };
    Some(Finding {
        kind: FindingKind::LimitReached,
        severity: Severity::Critical,
        tool: None,
        message: format!(
            "`{}` was refused {} times: `{}`.",
            refusal.action, refusal.refusals, refusal.reason
        ),
        suggestion: suggestion.to_owned(),
        evidence: evidence(
            json!({"action": refusal.action, "code": refusal.reason, "refusals": refusal.refusals}),
        ),
    })
}

fn evidence(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(change: impl FnOnce(&mut CallFigures)) -> CallFigures {
        let mut figures = CallFigures {
            calls: 100,
            succeeded: 100,
            durations: [(20, 100)].into(),
            ..CallFigures::default()
        };
        change(&mut figures);
        figures
    }

    fn kinds(figures: CallFigures, refusals: &[Refusals]) -> Vec<FindingKind> {
        let tools = BTreeMap::from([("bash".to_owned(), figures)]);
        findings(&tools, refusals, &EffectiveLimits::default())
            .into_iter()
            .map(|finding| finding.kind)
            .collect()
    }

    #[test]
    fn what_goes_well_is_not_mentioned() {
        assert_eq!(kinds(figures(|_| {}), &[]), []);
        assert_eq!(kinds(CallFigures { calls: 3, failed: 3, ..CallFigures::default() }, &[]), []);
    }

    #[test]
    fn each_kind_of_trouble_is_found_and_the_worst_comes_first() {
        assert_eq!(kinds(figures(|f| f.failed = 20), &[]), [FindingKind::FailingTool]);
        assert_eq!(kinds(figures(|f| (f.failed, f.timed_out) = (5, 20)), &[]), [FindingKind::TimingOutTool]);
        assert_eq!(kinds(figures(|f| f.durations = [(70, 100)].into()), &[]), [FindingKind::SlowTool]);
        assert_eq!(kinds(figures(|f| f.tool_errors = 50), &[]), [FindingKind::ErrorResults]);
        let quota = Refusals {
            action: "session.create".to_owned(),
            reason: "quota_exceeded".to_owned(),
            refusals: 7,
        };
        let found = kinds(figures(|f| (f.waited, f.denied) = (50, 12)), &[quota]);
        assert_eq!(found, [FindingKind::LimitReached, FindingKind::QueueWait, FindingKind::PolicyRefusals]);
        assert_eq!(kinds(figures(|f| f.lost = 1), &[]), [FindingKind::LostCalls]);
        let mistake = Refusals { action: "scope.refuse".to_owned(), reason: String::new(), refusals: 7 };
        assert_eq!(kinds(figures(|_| {}), &[mistake]), []);
    }
}
