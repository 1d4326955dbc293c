//! Usage on the wire.

use std::collections::BTreeMap;

use domain::usage::{CallFigures, SessionFigures};
use serde::Serialize;
use serde_json::{Map, Value};
use store::{SessionUsage, UsageHour};
use utoipa::ToSchema;

use super::Time;

/// Sums over calls that have ended.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct UsageFigures {
    /// All of them.
    pub calls: u64,
    /// The tool ran to its end.
    pub succeeded: u64,
    /// Of these, the tool itself said that it did not go well (`result.is_error`).
    pub tool_errors: u64,
    /// They could not be done.
    pub failed: u64,
    /// Their time ran out.
    pub timed_out: u64,
    /// Somebody cancelled them.
    pub cancelled: u64,
    /// Policy refused them.
    pub denied: u64,
    /// Nobody can know what they did.
    pub lost: u64,
    /// Failed, timed out and lost ones among those that were not denied, 0 to 1; null when there were none.
    pub error_rate: Option<f64>,
    /// CPU time in sandboxes.
    pub cpu_seconds: f64,
    /// From start to end.
    pub duration_seconds: f64,
    /// From admission to start.
    pub queue_seconds: f64,
    /// Calls that waited for longer than a second.
    pub waited: u64,
    /// Bytes of arguments and input.
    pub bytes_in: u64,
    /// Bytes of output.
    pub bytes_out: u64,
    /// Half of the calls that ran took no longer, within 10 %; null when none ran.
    pub p50_ms: Option<u64>,
    /// 95 of 100 calls that ran took no longer, within 10 %; null when none ran.
    pub p95_ms: Option<u64>,
}

impl From<&CallFigures> for UsageFigures {
    fn from(sums: &CallFigures) -> Self {
        Self {
            calls: sums.calls,
            succeeded: sums.succeeded,
            tool_errors: sums.tool_errors,
            failed: sums.failed,
            timed_out: sums.timed_out,
            cancelled: sums.cancelled,
            denied: sums.denied,
            lost: sums.lost,
            error_rate: sums.error_rate().map(|rate| round(rate, 10_000.0)),
            cpu_seconds: seconds(sums.cpu_ms),
            duration_seconds: seconds(sums.duration_ms),
            queue_seconds: seconds(sums.queue_ms),
            waited: sums.waited,
            bytes_in: sums.bytes_in,
            bytes_out: sums.bytes_out,
            p50_ms: sums.percentile(0.5),
            p95_ms: sums.percentile(0.95),
        }
    }
}

/// What sessions took, whether or not calls ran in them.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct UsageSessions {
    /// Seconds that sessions served, by size (`small`, `medium`, `large`; `custom` for resources given one by one).
    pub seconds: BTreeMap<String, f64>,
    /// Seconds times memory, in GiB.
    pub gb_seconds: f64,
}

impl From<&SessionFigures> for UsageSessions {
    fn from(sums: &SessionFigures) -> Self {
        let seconds = sums.seconds.iter().map(|(size, seconds)| (size.clone(), round(*seconds, 1_000.0)));
        Self { seconds: seconds.collect(), gb_seconds: round(sums.gb_seconds, 1_000.0) }
    }
}

/// Figures of one tool, day or session.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct UsageGroup {
    /// The tool's name, the day (UTC), or the session's id.
    #[schema(examples("bash", "2026-03-01"))]
    pub key: String,
    /// Its figures.
    pub figures: UsageFigures,
}

/// What figures are summed up by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum UsageBy {
    /// By tool.
    Tool,
    /// By day (UTC).
    Day,
    /// By session, newest first.
    Session,
}

impl std::str::FromStr for UsageBy {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "tool" => Ok(Self::Tool),
            "day" => Ok(Self::Day),
            "session" => Ok(Self::Session),
            _ => Err(()),
        }
    }
}

/// What the tenant used in a period.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Usage)]
pub struct UsageView {
    /// Always `usage`.
    #[schema(pattern = "^usage$")]
    pub object: &'static str,
    /// Where the period begins: a whole hour.
    pub from: Time,
    /// Where it ends, itself not in it: a whole hour.
    pub to: Time,
    /// What `data` is summed up by.
    pub group: UsageBy,
    /// All calls that ended in the period.
    pub total: UsageFigures,
    /// What sessions took in it.
    pub sessions: UsageSessions,
    /// The parts.
    pub data: Vec<UsageGroup>,
    /// There are more parts behind them.
    pub has_more: bool,
    /// The cursor of the next page; null on the last.
    pub next_cursor: Option<String>,
}

/// What one session used so far.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = SessionUsage)]
pub struct SessionUsageView {
    /// Always `session_usage`.
    #[schema(pattern = "^session_usage$")]
    pub object: &'static str,
    /// The session.
    #[schema(value_type = String)]
    pub session_id: domain::SessionId,
    /// All of its calls that have ended.
    pub total: UsageFigures,
    /// What the session itself took.
    pub sessions: UsageSessions,
    /// Its calls by tool.
    pub data: Vec<UsageGroup>,
}

impl From<SessionUsage> for SessionUsageView {
    fn from(usage: SessionUsage) -> Self {
        Self {
            object: "session_usage",
            session_id: usage.session_id,
            total: (&total(&usage.tools)).into(),
            sessions: (&usage.session).into(),
            data: groups(&usage.tools),
        }
    }
}

/// One hour of a tenant that is over: what is billed. It does not change any more.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = UsageHour)]
pub struct UsageHourView {
    /// Always `usage_hour`.
    #[schema(pattern = "^usage_hour$")]
    pub object: &'static str,
    /// Whose.
    #[schema(value_type = String)]
    pub tenant_id: domain::TenantId,
    /// When the hour began.
    pub started_at: Time,
    /// Calls that ended in it.
    pub calls: u64,
    /// Of these, failed, timed out and lost ones.
    pub errors: u64,
    /// Their CPU time in sandboxes.
    pub cpu_seconds: f64,
    /// Their bytes of arguments and input.
    pub bytes_in: u64,
    /// Their bytes of output.
    pub bytes_out: u64,
    /// What sessions took.
    pub sessions: UsageSessions,
}

impl From<UsageHour> for UsageHourView {
    fn from(hour: UsageHour) -> Self {
        Self {
            object: "usage_hour",
            tenant_id: hour.tenant_id,
            started_at: hour.hour.into(),
            calls: hour.calls,
            errors: hour.errors,
            cpu_seconds: seconds(hour.cpu_ms),
            bytes_in: hour.bytes_in,
            bytes_out: hour.bytes_out,
            sessions: (&hour.sessions).into(),
        }
    }
}

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Good to know.
    Info,
    /// Worth a change.
    Warning,
    /// Something is lost or refused.
    Critical,
}

/// What a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// Many calls of a tool fail.
    FailingTool,
    /// Many calls of a tool run out of time.
    TimingOutTool,
    /// A tool's own result is often an error.
    ErrorResults,
    /// A tool is slow.
    SlowTool,
    /// Calls wait before they start.
    QueueWait,
    /// A limit or quota refuses requests.
    LimitReached,
    /// Policy refuses calls.
    PolicyRefusals,
    /// Calls were lost with their sandboxes.
    LostCalls,
}

/// One thing that could go better, and what to change.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Finding {
    /// What it is about.
    pub kind: FindingKind,
    /// How much it matters.
    pub severity: Severity,
    /// The tool; null when it is about none.
    pub tool: Option<String>,
    /// What was seen.
    pub message: String,
    /// What to change.
    pub suggestion: String,
    /// The figures behind it.
    #[schema(value_type = Object)]
    pub evidence: Map<String, Value>,
}

/// What could go better, the most important first.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct UsageInsights {
    /// Always `usage_insights`.
    #[schema(pattern = "^usage_insights$")]
    pub object: &'static str,
    /// Where the period begins.
    pub from: Time,
    /// Where it ends.
    pub to: Time,
    /// What was found; empty when everything goes well.
    pub findings: Vec<Finding>,
}

/// The sum of all groups.
pub(crate) fn total(groups: &BTreeMap<String, CallFigures>) -> CallFigures {
    let mut total = CallFigures::default();
    groups.values().for_each(|figures| total.add(figures));
    total
}

/// Groups in the order of their keys.
pub(crate) fn groups(groups: &BTreeMap<String, CallFigures>) -> Vec<UsageGroup> {
    groups.iter().map(|(key, figures)| UsageGroup { key: key.clone(), figures: figures.into() }).collect()
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1_000.0
}

fn round(value: f64, places: f64) -> f64 {
    (value * places).round() / places
}
