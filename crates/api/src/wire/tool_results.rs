//! Tool calls and results in a model provider's own blocks.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use domain::limits;

use super::calls::CallStatus;
use crate::json::Checks;

/// Whose blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(rename_all = "snake_case")]
pub enum NativeFormat {
    /// OpenAI: tool calls of chat completions, or `function_call` items of responses.
    Openai,
    /// Anthropic: `tool_use` blocks of messages.
    Anthropic,
}

/// Tool calls as a model made them.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"format": "anthropic", "tool_calls": [{"type": "tool_use", "id": "toolu_01", "name": "bash", "input": {"command": "echo hi"}}]})))]
pub struct SubmitToolCalls {
    /// Whose blocks.
    pub format: NativeFormat,
    /// The blocks as they came. The `id` of each is its idempotency key within the session: a block that is sent again is answered by
    /// the call that it made.
    #[schema(value_type = Vec<Object>, min_items = 1, max_items = 100)]
    pub tool_calls: Vec<Value>,
    /// How long this request waits for the calls' ends, in milliseconds. What has not ended then is answered with what it wrote so far.
    #[serde(default = "longest_wait")]
    #[schema(minimum = 0, maximum = 60000, default = 60000)]
    pub wait_ms: u64,
    /// Budget of text for each result, in bytes; 30,000 when left out.
    #[schema(minimum = 256, maximum = 1000000)]
    pub output_budget_bytes: Option<u64>,
}

fn longest_wait() -> u64 {
    limits::WAIT_MS
}

impl SubmitToolCalls {
    /// What does not depend on the format.
    pub(crate) fn check_size(&self, checks: &mut Checks) {
        use crate::problem::FieldCode;
        if self.tool_calls.is_empty() {
            checks.add("/tool_calls", FieldCode::Invalid, "must have at least one block");
        }
        if self.tool_calls.len() > limits::BATCH_CALLS {
            let message = format!("must have at most {} blocks", limits::BATCH_CALLS);
            checks.add("/tool_calls", FieldCode::LimitExceeded, message);
        }
        checks.range("/wait_ms", Some(self.wait_ms), 0..=limits::WAIT_MS);
        checks.range(
            "/output_budget_bytes",
            self.output_budget_bytes,
            super::submissions::OUTPUT_BUDGET_BYTES_LEAST..=limits::OUTPUT_BUDGET_BYTES,
        );
    }
}

/// Results in a model provider's own blocks.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ToolResults {
    /// Always `tool_results`.
    #[schema(pattern = "^tool_results$")]
    pub object: &'static str,
    /// Whose blocks.
    pub format: NativeFormat,
    /// One result for each block, in their order: for Anthropic the content of the next user message, for OpenAI the next messages
    /// (or input items).
    #[schema(value_type = Vec<Object>)]
    pub results: Vec<Value>,
    /// The calls behind the blocks, in their order.
    pub calls: Vec<ToolResultCall>,
    /// Calls that have not ended. Send the same blocks again to wait on.
    pub pending: usize,
}

/// The call behind a block.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ToolResultCall {
    /// The block's id.
    pub tool_call_id: String,
    /// The call; null when the block was refused.
    #[schema(value_type = Option<String>)]
    pub call_id: Option<domain::CallId>,
    /// Where it is in its life.
    #[schema(value_type = Option<CallStatus>)]
    pub status: Option<domain::CallStatus>,
    /// Why the block was refused: a code of `/problems`.
    pub code: Option<String>,
}
