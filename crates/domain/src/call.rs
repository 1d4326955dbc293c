//! A call: one use of a tool. Its row is the job.

use std::collections::BTreeMap;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::trace::TraceContext;
use crate::{ArtifactId, CallId, Code, SessionId, TenantId, WorkerId};

/// Where a call is in its life. The last six are terminal: a database trigger keeps them so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallStatus {
    /// A human has to allow it first.
    WaitingApproval,
    /// It waits for a slot, its session, or another call.
    Queued,
    /// A worker has it, durably; the agent may hear of it any moment.
    Starting,
    /// It runs.
    Running,
    /// It waits for a human's answer.
    WaitingInput,
    /// The tool ran to its end.
    Succeeded,
    /// The tool or the platform could not do it, and nothing is uncertain.
    Failed,
    /// Its time ran out, and what it ran was ended.
    TimedOut,
    /// Somebody cancelled it, and what it ran was ended.
    Cancelled,
    /// Policy or a human said no; nothing ran.
    Denied,
    /// It may have had effects, and nobody can know.
    Lost,
}

impl CallStatus {
    /// Every status, in the order of a call's life.
    pub const ALL: &'static [Self] = &[
        Self::WaitingApproval,
        Self::Queued,
        Self::Starting,
        Self::Running,
        Self::WaitingInput,
        Self::Succeeded,
        Self::Failed,
        Self::TimedOut,
        Self::Cancelled,
        Self::Denied,
        Self::Lost,
    ];

    /// The word on the wire and in the database.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::WaitingApproval => "waiting_approval",
            Self::Queued => "queued",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::WaitingInput => "waiting_input",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Cancelled => "cancelled",
            Self::Denied => "denied",
            Self::Lost => "lost",
        }
    }

    /// Whether the call is over.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        match self {
            Self::WaitingApproval | Self::Queued | Self::Starting | Self::Running | Self::WaitingInput => {
                false
            }
            Self::Succeeded | Self::Failed | Self::TimedOut | Self::Cancelled | Self::Denied | Self::Lost => {
                true
            }
        }
    }

    /// Whether the state machine has this step.
    #[must_use]
    pub const fn may_become(self, next: Self) -> bool {
        match self {
            Self::WaitingApproval => {
                matches!(next, Self::Queued | Self::Denied | Self::Cancelled | Self::TimedOut | Self::Failed)
            }
            Self::Queued => matches!(next, Self::Starting | Self::Cancelled | Self::Failed | Self::TimedOut),
            Self::Starting => {
                !matches!(next, Self::WaitingApproval | Self::Starting | Self::Denied | Self::WaitingInput)
            }
            Self::Running => !matches!(
                next,
                Self::WaitingApproval | Self::Queued | Self::Starting | Self::Running | Self::Denied
            ),
            Self::WaitingInput => {
                !matches!(next, Self::WaitingApproval | Self::Starting | Self::WaitingInput)
            }
            Self::Succeeded | Self::Failed | Self::TimedOut | Self::Cancelled | Self::Denied | Self::Lost => {
                false
            }
        }
    }
}

impl FromStr for CallStatus {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.iter().copied().find(|status| status.as_str() == text).ok_or(())
    }
}

/// What running a tool twice would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Nothing at all.
    Pure,
    /// What running it once does.
    Idempotent,
    /// Something again: never retried.
    Effectful,
}

impl Effect {
    /// The word on the wire and in the database.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pure => "pure",
            Self::Idempotent => "idempotent",
            Self::Effectful => "effectful",
        }
    }
}

impl FromStr for Effect {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        [Self::Pure, Self::Idempotent, Self::Effectful]
            .into_iter()
            .find(|effect| effect.as_str() == text)
            .ok_or(())
    }
}

/// What ended a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The tool ran to its end.
    Exited,
    /// A signal ended the command.
    Signal,
    /// The out-of-memory killer ended the command.
    Oom,
    /// The call's time ran out.
    Timeout,
    /// Somebody cancelled it.
    Cancelled,
    /// Policy or a human said no.
    Denied,
    /// A quota was used up.
    Quota,
    /// Its session ended.
    SessionEnded,
    /// Its sandbox was reset under it.
    SessionReset,
    /// The tool could not do it.
    ToolError,
    /// The platform could not do it.
    PlatformError,
    /// Nobody can know what happened.
    Lost,
}

/// A piece of a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentBlock {
    /// Text.
    Text {
        /// Its media type, when it is more than plain text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mime_type: Option<String>,
        /// The text.
        text: String,
        /// The artifact that keeps it, or what was too large to be shown in its place.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        artifact_id: Option<ArtifactId>,
    },
    /// Data: a table, a chart, or what an object says of itself.
    Json {
        /// Its media type.
        mime_type: String,
        /// The data.
        json: Value,
    },
    /// A picture.
    Image {
        /// Its media type.
        mime_type: String,
        /// Its bytes in base64, when small.
        #[serde(skip_serializing_if = "Option::is_none")]
        data: Option<String>,
        /// The artifact that keeps it.
        #[serde(skip_serializing_if = "Option::is_none")]
        artifact_id: Option<ArtifactId>,
    },
}

/// That text for the model was shortened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Truncation {
    /// Bytes that the tool produced.
    pub total_bytes: u64,
    /// Bytes that the text shows.
    pub shown_bytes: u64,
    /// Bytes that were dropped from the middle of the stored log; 0 when all of it can be read by range.
    pub dropped_bytes: u64,
    /// The artifact that keeps the whole.
    pub artifact_id: Option<ArtifactId>,
}

/// What a tool returned.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CallResult {
    /// The tool ran, and what it ran says that it went wrong (a non-zero exit code, say).
    pub is_error: bool,
    /// Text shaped for a model.
    pub output: String,
    /// The tool's typed output.
    pub structured: Value,
    /// Pieces beyond the text.
    pub content: Vec<ContentBlock>,
    /// Exit code of the command, if one ran to its end.
    pub exit_code: Option<i32>,
    /// Name of the signal that ended the command, such as `SIGKILL`.
    pub signal: Option<String>,
    /// A remark of the platform for the model (processes left behind, output dropped).
    pub system: Option<String>,
    /// Set when `output` does not show everything.
    pub truncated: Option<Truncation>,
    /// The result came from a cache.
    pub cached: bool,
}

/// Why a call could not be done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallError {
    /// Which kind.
    pub code: Code,
    /// What happened.
    pub message: String,
    /// What to change.
    pub hint: Option<String>,
    /// Whether the same call may succeed later.
    pub retryable: bool,
    /// Facts for programs.
    pub details: Value,
}

impl CallError {
    /// An error with the code's own answer to whether trying again helps.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            hint: None,
            retryable: code.retryable(),
            details: Value::Object(serde_json::Map::new()),
        }
    }

    /// The same with what to change.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same with facts for programs.
    #[must_use]
    pub fn details(mut self, details: Value) -> Self {
        self.details = details;
        self
    }
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallEnded {
    /// What ended it.
    pub reason: EndReason,
    /// What was seen.
    pub evidence: Value,
    /// What to do about it.
    pub hint: Option<String>,
}

impl CallEnded {
    /// An end without evidence.
    #[must_use]
    pub fn because(reason: EndReason) -> Self {
        Self { reason, evidence: Value::Object(serde_json::Map::new()), hint: None }
    }
}

/// What a call used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallUsage {
    /// From admission to start, in milliseconds.
    pub queue_ms: u64,
    /// From start to end, in milliseconds.
    pub duration_ms: u64,
    /// CPU time in the sandbox, in milliseconds.
    pub cpu_ms: u64,
    /// Largest resident set in the sandbox, in bytes.
    pub max_rss_bytes: u64,
    /// Bytes of arguments and input.
    pub bytes_in: u64,
    /// Bytes of output, dropped ones included.
    pub bytes_out: u64,
    /// Tokens of a model provider.
    pub tokens: u64,
    /// Cost at a provider, in millionths of a US dollar.
    pub cost_microusd: u64,
}

/// A call's place in its tenant's queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePlace {
    /// 1 for the next to be claimed.
    pub position: u64,
    /// A guess from recent calls; `None` while there is nothing to guess from.
    pub estimated_start_at: Option<DateTime<Utc>>,
}

/// One call, as its row says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// Its id.
    pub id: CallId,
    /// Whose it is.
    pub tenant_id: TenantId,
    /// The session that it runs in.
    pub session_id: SessionId,
    /// The call that made it.
    pub parent_call_id: Option<CallId>,
    /// The tool's own name.
    pub tool: String,
    /// The name that the caller used, when it was an alias.
    pub requested_tool: Option<String>,
    /// Version of the tool.
    pub version: String,
    /// What running it twice would do.
    pub effect: Effect,
    /// Where it is in its life.
    pub status: CallStatus,
    /// Arguments as admitted: validated, aliases resolved.
    pub arguments: Value,
    /// Why the model wants it.
    pub description: Option<String>,
    /// Time from start to forced end, in milliseconds.
    pub timeout_ms: u64,
    /// Budget of text for the model, in bytes.
    pub output_budget_bytes: u64,
    /// It starts only after this call has ended.
    pub after_call_id: Option<CallId>,
    /// Starts so far, takeovers included.
    pub attempt: u32,
    /// The worker that has it.
    pub worker_id: Option<WorkerId>,
    /// Number of its last event.
    pub last_seq: u64,
    /// Somebody asked for its end.
    pub cancel_requested: bool,
    /// Owner of its output in the log: the call itself, or the shell that it became.
    pub output_owner: Uuid,
    /// The caller's labels.
    pub metadata: BTreeMap<String, String>,
    /// When it was admitted.
    pub created_at: DateTime<Utc>,
    /// When it was first started.
    pub started_at: Option<DateTime<Utc>>,
    /// It was started, and stands in line for a shell or a context.
    pub in_line: bool,
    /// When the turn came that it stood in line for.
    pub turn_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub ended_at: Option<DateTime<Utc>>,
    /// What the tool returned.
    pub result: Option<CallResult>,
    /// Why it could not be done.
    pub error: Option<CallError>,
    /// How it ended.
    pub ended: Option<CallEnded>,
    /// What it used.
    pub usage: CallUsage,
    /// Where in a distributed trace it belongs. Not part of what anybody is shown.
    #[serde(skip)]
    pub trace: Option<TraceContext>,
}

/// How a call is to be ended: what `report` writes in one commit with the last event.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// A terminal status.
    pub status: CallStatus,
    /// What the tool returned, as far as it came.
    pub result: Option<CallResult>,
    /// Why it could not be done.
    pub error: Option<CallError>,
    /// How it ended.
    pub ended: CallEnded,
    /// What it used.
    pub usage: CallUsage,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_follows_a_terminal_status() {
        for from in CallStatus::ALL {
            for to in CallStatus::ALL {
                if from.is_terminal() {
                    assert!(!from.may_become(*to), "{from:?} -> {to:?}");
                }
            }
        }
    }

    #[test]
    fn every_status_can_reach_an_end() {
        for from in CallStatus::ALL.iter().filter(|status| !status.is_terminal()) {
            assert!(CallStatus::ALL.iter().any(|to| to.is_terminal() && from.may_become(*to)), "{from:?}");
        }
    }

    #[test]
    fn statuses_read_as_they_serialise() {
        for status in CallStatus::ALL {
            assert_eq!(serde_json::to_value(status).expect("serialises"), status.as_str());
            assert_eq!(status.as_str().parse(), Ok(*status));
        }
    }
}
