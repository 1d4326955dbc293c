//! Calls to submit on the wire: one, one with its session, or several.

use std::collections::BTreeMap;

use domain::limits;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::calls::CallView;
use super::sessions::CreateSession;
use crate::json::Checks;

/// A call to submit.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"tool": "bash", "arguments": {"command": "echo hello"}, "wait_ms": 10000})))]
pub struct SubmitCall {
    /// The tool's name, or one that a source system has for it.
    #[schema(min_length = 1, max_length = 128, examples("bash"))]
    pub tool: String,
    /// The tool's version that the arguments were written for; another than the catalogue's is refused.
    #[schema(min_length = 1, max_length = 64)]
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
pub(crate) const OUTPUT_BUDGET_BYTES_LEAST: u64 = 256;

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
    #[schema(min_length = 1, max_length = 64)]
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
