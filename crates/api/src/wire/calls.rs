//! A call on the wire.

use std::collections::BTreeMap;

use domain::{Call, QueuePlace, limits};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::Time;
use super::sessions::CreateSession;
use crate::json::Checks;

/// Where a call is in its life. The last six are terminal.
#[derive(Debug, Clone, Copy, ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum CallStatus {
    /// A human has to allow it first.
    WaitingApproval,
    /// It waits for a slot, its session, or another call.
    Queued,
    /// A worker has it, durably.
    Starting,
    /// It runs.
    Running,
    /// It waits for a human's answer.
    WaitingInput,
    /// The tool ran to its end, whatever the command's exit code.
    Succeeded,
    /// It could not be done, and nothing is uncertain.
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

/// What running a tool twice would do.
#[derive(Debug, Clone, Copy, ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum Effect {
    /// Nothing at all.
    Pure,
    /// What running it once does.
    Idempotent,
    /// Something again: never retried.
    Effectful,
}

/// What ended a call.
#[derive(Debug, Clone, Copy, ToSchema)]
#[schema(rename_all = "snake_case")]
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
#[derive(Debug, Clone, ToSchema, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentBlock {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// A picture.
    Image {
        /// Its media type.
        mime_type: String,
        /// Its bytes in base64, when small.
        #[schema(nullable = false)]
        data: Option<String>,
        /// The artifact that keeps it.
        #[schema(nullable = false)]
        artifact_id: Option<String>,
    },
}

/// That `output` does not show everything.
#[derive(Debug, Clone, ToSchema)]
pub struct Truncation {
    /// Bytes that the tool produced.
    pub total_bytes: u64,
    /// Bytes that the text shows.
    pub shown_bytes: u64,
    /// Bytes that were dropped from the middle of the stored log; 0 when all of it can be read by range.
    pub dropped_bytes: u64,
    /// The artifact that keeps the whole.
    pub artifact_id: Option<String>,
}

/// What a tool returned.
#[derive(Debug, Clone, ToSchema)]
pub struct CallResult {
    /// The tool ran, and what it ran says that it went wrong (a non-zero exit code, say).
    pub is_error: bool,
    /// Text shaped for a model.
    pub output: String,
    /// The tool's typed output; its schema is the tool's `output_schema`.
    #[schema(value_type = Value)]
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

/// Why a call could not be done. The codes are those of problems.
#[derive(Debug, Clone, ToSchema)]
pub struct CallError {
    /// Which kind; `/problems/{code}` tells more.
    #[schema(examples("policy_denied"))]
    pub code: String,
    /// What happened.
    pub message: String,
    /// What to change.
    pub hint: Option<String>,
    /// Whether the same call may succeed later.
    pub retryable: bool,
    /// Facts for programs.
    #[schema(value_type = Object)]
    pub details: Value,
}

/// How a call ended.
#[derive(Debug, Clone, ToSchema)]
pub struct CallEnded {
    /// What ended it.
    pub reason: EndReason,
    /// What was seen.
    #[schema(value_type = Object)]
    pub evidence: Value,
    /// What to do about it.
    pub hint: Option<String>,
}

/// What a call used.
#[derive(Debug, Clone, ToSchema)]
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
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Queue {
    /// 1 for the next to be started.
    pub position: u64,
    /// A guess from recent calls; null while there is nothing to guess from.
    pub estimated_start_at: Option<Time>,
}

impl From<QueuePlace> for Queue {
    fn from(place: QueuePlace) -> Self {
        Self { position: place.position, estimated_start_at: place.estimated_start_at.map(Time) }
    }
}

/// One use of a tool.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Call)]
pub struct CallView {
    /// Its id.
    #[schema(value_type = String, examples("call_06b2m8j0v5x3t9q7k1h4c8n2ra"))]
    pub id: domain::CallId,
    /// Always `call`.
    #[schema(pattern = "^call$")]
    pub object: &'static str,
    /// The session that it runs in.
    #[schema(value_type = String)]
    pub session_id: domain::SessionId,
    /// The call that made it.
    #[schema(value_type = Option<String>)]
    pub parent_call_id: Option<domain::CallId>,
    /// The tool's own name.
    pub tool: String,
    /// The name that the caller used, when it was that of another system.
    pub requested_tool: Option<String>,
    /// Version of the tool.
    pub version: String,
    /// What running it twice would do.
    #[schema(value_type = Effect)]
    pub effect: domain::Effect,
    /// Where it is in its life.
    #[schema(value_type = CallStatus)]
    pub status: domain::CallStatus,
    /// Arguments as admitted: validated, in the tool's own names.
    #[schema(value_type = Object)]
    pub arguments: Value,
    /// Why the model wants it.
    pub description: Option<String>,
    /// Time from start to forced end, in milliseconds.
    pub timeout_ms: u64,
    /// Budget of text for the model, in bytes.
    pub output_budget_bytes: u64,
    /// It starts only after this call has ended.
    #[schema(value_type = Option<String>)]
    pub after: Option<domain::CallId>,
    /// Starts so far, takeovers included.
    pub attempt: u32,
    /// Its place while it is queued, as far as known.
    pub queue: Option<Queue>,
    /// The question or approval that it waits for.
    pub interaction_id: Option<String>,
    /// When it was admitted.
    pub created_at: Time,
    /// When it was first started.
    pub started_at: Option<Time>,
    /// When it ended.
    pub ended_at: Option<Time>,
    /// What the tool returned.
    #[schema(value_type = Option<CallResult>)]
    pub result: Option<domain::CallResult>,
    /// Why it could not be done.
    #[schema(value_type = Option<CallError>)]
    pub error: Option<domain::CallError>,
    /// How it ended; null while it has not.
    #[schema(value_type = Option<CallEnded>)]
    pub ended: Option<domain::CallEnded>,
    /// What it used.
    #[schema(value_type = CallUsage)]
    pub usage: domain::CallUsage,
    /// The caller's labels.
    pub metadata: BTreeMap<String, String>,
}

impl CallView {
    /// A call, with its place in the queue where that is known.
    #[must_use]
    pub fn new(call: Call, place: Option<QueuePlace>) -> Self {
        Self {
            id: call.id,
            object: "call",
            session_id: call.session_id,
            parent_call_id: call.parent_call_id,
            tool: call.tool,
            requested_tool: call.requested_tool,
            version: call.version,
            effect: call.effect,
            status: call.status,
            arguments: call.arguments,
            description: call.description,
            timeout_ms: call.timeout_ms,
            output_budget_bytes: call.output_budget_bytes,
            after: call.after_call_id,
            attempt: call.attempt,
            queue: place.filter(|_| call.status == domain::CallStatus::Queued).map(Queue::from),
            interaction_id: None,
            created_at: call.created_at.into(),
            started_at: call.started_at.map(Time),
            ended_at: call.ended_at.map(Time),
            result: call.result,
            error: call.error,
            ended: call.ended,
            usage: call.usage,
            metadata: call.metadata,
        }
    }
}

/// A call to submit.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"tool": "bash", "arguments": {"command": "echo hello"}, "wait_ms": 10000})))]
pub struct SubmitCall {
    /// The tool's name, or one that a source system has for it.
    #[schema(min_length = 1, max_length = 128, examples("bash"))]
    pub tool: String,
    /// The tool's version that the arguments were written for; another than the catalogue's is refused.
    #[schema(max_length = 64)]
    pub version: Option<String>,
    /// The tool's arguments; see `input_schema` of `/v1/tools/{name}` and the components `tool.<name>.input` of this document.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub arguments: Map<String, Value>,
    /// Why the model wants it.
    #[schema(max_length = 200)]
    pub description: Option<String>,
    /// Time from start to forced end, in milliseconds; the tool's own when left out. At most what tool and policy allow.
    #[schema(minimum = 1, maximum = 600000)]
    pub timeout_ms: Option<u64>,
    /// How long this request waits for the call's end, in milliseconds.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 60000, default = 0)]
    pub wait_ms: u64,
    /// Budget of text for the model, in bytes; 30,000 when left out.
    #[schema(minimum = 256, maximum = 1000000)]
    pub output_budget_bytes: Option<u64>,
    /// Start only after this call has ended.
    #[schema(value_type = Option<String>)]
    pub after: Option<domain::CallId>,
    /// Labels: at most 16, of at most 512 characters.
    #[serde(default)]
    #[schema(schema_with = super::metadata)]
    pub metadata: BTreeMap<String, String>,
}

/// Least budget of text: enough for the line that says what was left out.
const OUTPUT_BUDGET_BYTES_LEAST: u64 = 256;

impl SubmitCall {
    /// What does not depend on tool and policy; pointers start at `at`.
    pub(crate) fn check(&self, at: &str, checks: &mut Checks) {
        checks.text(&format!("{at}/tool"), Some(&self.tool), 1..=128);
        checks.text(&format!("{at}/version"), self.version.as_deref(), 1..=64);
        checks.text(&format!("{at}/description"), self.description.as_deref(), 0..=limits::DESCRIPTION_CHARS);
        checks.range(&format!("{at}/wait_ms"), Some(self.wait_ms), 0..=limits::WAIT_MS);
        checks.range(
            &format!("{at}/output_budget_bytes"),
            self.output_budget_bytes,
            OUTPUT_BUDGET_BYTES_LEAST..=limits::OUTPUT_BUDGET_BYTES,
        );
        checks.metadata(&format!("{at}/metadata"), Some(&self.metadata));
    }
}

/// A call with a session for it alone, which ends with it.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"tool": "python_execute", "arguments": {"code": "print(6 * 7)"}, "wait_ms": 30000, "session": {"size": "small"}})))]
pub struct OneShotCall {
    /// What the session is to be.
    #[serde(default)]
    pub session: CreateSession,
    /// See `SubmitCall`.
    #[schema(min_length = 1, max_length = 128, examples("bash"))]
    pub tool: String,
    /// See `SubmitCall`.
    #[schema(max_length = 64)]
    pub version: Option<String>,
    /// See `SubmitCall`.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub arguments: Map<String, Value>,
    /// See `SubmitCall`.
    #[schema(max_length = 200)]
    pub description: Option<String>,
    /// See `SubmitCall`.
    #[schema(minimum = 1, maximum = 600000)]
    pub timeout_ms: Option<u64>,
    /// See `SubmitCall`.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 60000, default = 0)]
    pub wait_ms: u64,
    /// See `SubmitCall`.
    #[schema(minimum = 256, maximum = 1000000)]
    pub output_budget_bytes: Option<u64>,
    /// See `SubmitCall`.
    #[serde(default)]
    #[schema(schema_with = super::metadata)]
    pub metadata: BTreeMap<String, String>,
}

impl OneShotCall {
    /// The two things that it is made of.
    pub(crate) fn split(self) -> (CreateSession, SubmitCall) {
        let submit = SubmitCall {
            tool: self.tool,
            version: self.version,
            arguments: self.arguments,
            description: self.description,
            timeout_ms: self.timeout_ms,
            wait_ms: self.wait_ms,
            output_budget_bytes: self.output_budget_bytes,
            after: None,
            metadata: self.metadata,
        };
        (self.session, submit)
    }
}

/// Several calls of one session at once; each has its own result.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmitBatch {
    /// The calls, at most 100. The request waits as long as the longest `wait_ms` says.
    #[schema(value_type = Vec<SubmitCall>, min_items = 1, max_items = 100)]
    pub calls: Vec<Value>,
}

/// What became of a batch.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct BatchOutcome {
    /// Always `batch`.
    #[schema(pattern = "^batch$")]
    pub object: &'static str,
    /// One entry per call, in the order of the request.
    pub data: Vec<BatchItem>,
}

/// What became of one call of a batch: exactly one of `call` and `error` is set.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct BatchItem {
    /// Place in the request.
    pub index: usize,
    /// The call, ended if it ended in time.
    pub call: Option<CallView>,
    /// Why it was not accepted.
    #[schema(value_type = Option<super::problems::ProblemView>)]
    pub error: Option<Map<String, Value>>,
}

/// How long a signed URL is to live.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateStreamUrl {
    /// Seconds; 300 when left out.
    #[schema(minimum = 1, maximum = 3600)]
    pub expires_in_s: Option<u32>,
}

/// A URL for `EventSource`, which cannot send headers.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct StreamUrl {
    /// Always `stream_url`.
    #[schema(pattern = "^stream_url$")]
    pub object: &'static str,
    /// The call.
    #[schema(value_type = String)]
    pub call_id: domain::CallId,
    /// Path and query, to be resolved against this service's own address.
    #[schema(examples("/v1/calls/call_06b2m8j0v5x3t9q7k1h4c8n2ra/events?token=…"))]
    pub url: String,
    /// When it stops working. Streams that are open by then go on.
    pub expires_at: Time,
}
