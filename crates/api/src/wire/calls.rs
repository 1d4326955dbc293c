//! A call on the wire.

use std::collections::BTreeMap;

use domain::{Call, QueuePlace};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::Time;
use super::results::{CallEnded, CallError, CallResult, CallUsage, DialectAnswer};
use crate::service::shares::{fit, json_bytes, whole};

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
    /// When it was first started, or when its turn came that it stood in line for.
    pub started_at: Option<Time>,
    /// When it ended.
    pub ended_at: Option<Time>,
    /// What the tool returned.
    #[schema(value_type = Option<CallResult>)]
    pub result: Option<domain::CallResult>,
    /// The answer in the form of the source system by whose name for the tool it was called, once it has ended.
    #[schema(value_type = Option<DialectAnswer>)]
    pub dialect: Option<tools::dialect::Answer>,
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
        let ending = tools::dialect::Ending {
            status: call.status,
            result: call.result.as_ref(),
            error: call.error.as_ref(),
        };
        let requested = call.requested_tool.as_deref();
        let dialect = requested.and_then(|name| tools::dialect::answer(name, ending));
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
            started_at: call.turn_at.or(call.started_at).map(Time),
            ended_at: call.ended_at.map(Time),
            result: call.result,
            dialect,
            error: call.error,
            ended: call.ended,
            usage: call.usage,
            metadata: call.metadata,
        }
    }

    /// The same with what it returned in about so many bytes of JSON at most. What is left out is said in the result's `system`.
    pub(crate) fn within(mut self, bytes: usize) -> Self {
        if json_bytes(&self.result) + json_bytes(&self.dialect) <= bytes {
            return self;
        }
        self.dialect = None;
        let Some(result) = &mut self.result else { return self };
        if json_bytes(result) > bytes {
            result.structured = Value::Null;
            result.content = Vec::new();
            result.output = fit(std::mem::take(&mut result.output), bytes / 2, Some(self.id));
        }
        let remark = format!("This is not the whole result: {}.", whole(Some(self.id)));
        result.system = Some(match result.system.take() {
            Some(system) => format!("{system} {remark}"),
            None => remark,
        });
        self
    }
}
