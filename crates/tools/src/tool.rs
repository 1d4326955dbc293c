//! The `Tool` trait, what a tool says of itself, and what it returns.

use std::sync::Arc;

use async_trait::async_trait;
use domain::{CallId, CallResult, Code, ContentBlock, Effect, SessionId, TenantId, Truncation};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::alias::{Alias, ArgumentAlias};
use crate::port;

/// What a tool says of itself: fixed at compile time.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    /// Its own name.
    pub name: &'static str,
    /// Names under which the source systems know it.
    pub aliases: &'static [Alias],
    /// Other names of arguments, whatever name the tool was called by.
    pub arguments: &'static [ArgumentAlias],
    /// For people.
    pub title: &'static str,
    /// For models: what it does, when to use it, what to watch for.
    pub description: &'static str,
    /// The folder that it lives in.
    pub toolkit: &'static str,
    /// Rises when its behaviour or schema changes.
    pub version: &'static str,
    /// What running it twice would do.
    pub effect: Effect,
    /// What it may touch.
    pub permissions: Permissions,
    /// Hints for clients.
    pub annotations: Annotations,
    /// `timeout_ms` when the caller gives none.
    pub default_timeout_ms: u64,
    /// Largest `timeout_ms`.
    pub max_timeout_ms: u64,
}

/// What a tool may touch.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Permissions {
    /// Files of the sandbox.
    pub files: bool,
    /// The network.
    pub network: bool,
    /// Processes of the sandbox.
    pub exec: bool,
    /// A human.
    pub human: bool,
    /// An outside provider.
    pub provider: bool,
}

/// Hints in the terms of the Model Context Protocol.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Annotations {
    /// It changes nothing.
    pub read_only: bool,
    /// It may destroy what is there.
    pub destructive: bool,
    /// Doing it twice is doing it once.
    pub idempotent: bool,
    /// It reaches beyond the sandbox.
    pub open_world: bool,
}

/// What a running call gives to its tool.
#[derive(Clone)]
pub struct Context {
    /// The call.
    pub call_id: CallId,
    /// Its session.
    pub session_id: SessionId,
    /// Its tenant.
    pub tenant_id: TenantId,
    /// Why the model wants it.
    pub description: Option<String>,
    /// Budget of text for the model, in bytes.
    pub output_budget_bytes: u64,
    /// Fires when the call is cancelled or its time is over. Ports heed it themselves.
    pub cancel: CancellationToken,
    /// The sandbox.
    pub sandbox: Arc<dyn port::Sandbox>,
    /// The session's shells.
    pub shells: Arc<dyn port::Shells>,
    /// What calls of the session wrote.
    pub outputs: Arc<dyn port::Outputs>,
    /// Waiting.
    pub waits: Arc<dyn port::Waits>,
    /// The session's contexts.
    pub contexts: Arc<dyn port::Contexts>,
    /// What the session remembers of its files.
    pub records: Arc<dyn port::Records>,
    /// The session's artifacts.
    pub artifacts: Arc<dyn port::Artifacts>,
    /// The tenant's wheels.
    pub wheels: Arc<dyn port::Wheels>,
    /// The call's events.
    pub events: Arc<dyn port::Events>,
}

/// What a tool returns: its typed output, and the text that a model reads.
#[derive(Debug, Clone)]
pub struct ToolOutput<T> {
    /// The typed output.
    pub structured: T,
    /// Text for the model, shaped to the call's budget.
    pub output: String,
    /// What it ran says that it went wrong.
    pub is_error: bool,
    /// Pieces beyond the text.
    pub content: Vec<ContentBlock>,
    /// Exit code of a command.
    pub exit_code: Option<i32>,
    /// Name of the signal that ended a command.
    pub signal: Option<String>,
    /// A remark for the model.
    pub system: Option<String>,
    /// Set when `output` does not show everything.
    pub truncated: Option<Truncation>,
    /// How the run came to its end.
    pub conclusion: Conclusion,
}

impl<T> ToolOutput<T> {
    /// A plain success.
    pub fn new(structured: T, output: impl Into<String>) -> Self {
        Self {
            structured,
            output: output.into(),
            is_error: false,
            content: Vec::new(),
            exit_code: None,
            signal: None,
            system: None,
            truncated: None,
            conclusion: Conclusion::Finished,
        }
    }

    /// The same with another typed output.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> ToolOutput<U> {
        ToolOutput {
            structured: change(self.structured),
            output: self.output,
            is_error: self.is_error,
            content: self.content,
            exit_code: self.exit_code,
            signal: self.signal,
            system: self.system,
            truncated: self.truncated,
            conclusion: self.conclusion,
        }
    }
}

/// How a tool's run came to its end; decides the call's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conclusion {
    /// By itself.
    Finished,
    /// A signal ended what it ran.
    Signalled,
    /// The out-of-memory killer ended what it ran.
    OutOfMemory,
    /// The call's time ran out; what it ran was ended.
    TimedOut,
    /// The call was cancelled; what it ran was ended.
    Cancelled,
    /// The sandbox was reset under it.
    SandboxReset,
}

/// Why a tool could not do it. Nothing is uncertain after it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ToolError {
    /// Which kind.
    pub code: Code,
    /// What happened, and what to change.
    pub message: String,
    /// A further hint.
    pub hint: Option<String>,
    /// Facts for programs.
    pub details: Value,
    /// The call is to end in this way rather than `failed`.
    pub fate: Fate,
}

/// How a call with a [`ToolError`] ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// `failed`: it could not be done.
    Failed,
    /// `cancelled`, before anything happened.
    Cancelled,
    /// `timed_out`, before anything happened.
    TimedOut,
    /// The sandbox is gone: `lost` for a tool with effects that may have started, else tried again or `failed`.
    SandboxLost,
    /// The worker may not act any more (it lost its lease): nothing is written.
    Abandoned,
}

impl ToolError {
    /// A failure.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            hint: None,
            details: Value::Object(serde_json::Map::new()),
            fate: Fate::Failed,
        }
    }

    /// The same with a hint.
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

    /// The same with another fate.
    #[must_use]
    pub fn fate(mut self, fate: Fate) -> Self {
        self.fate = fate;
        self
    }
}

/// One tool of the catalogue.
#[async_trait]
pub trait Tool: Send + Sync + 'static {
    /// What it says of itself.
    const SPEC: Spec;
    /// What it is asked.
    type Input: JsonSchema + DeserializeOwned + Send;
    /// What it answers.
    type Output: JsonSchema + Serialize + Send;

    /// Whether [`Self::check`] takes a core for milliseconds (it compiles a pattern of the caller's): then it is done in turns, see [`crate::heavy`].
    const CHECKS_A_PATTERN: bool = false;

    /// What the schema cannot express of the arguments: asked at admission, with pointers into them.
    fn check(&self, _input: &Self::Input) -> Vec<ArgumentProblem> {
        Vec::new()
    }

    /// Does it.
    async fn run(&self, cx: &Context, input: Self::Input) -> Result<ToolOutput<Self::Output>, ToolError>;
}

/// What the worker gets from a tool whose types it does not know.
#[derive(Debug, Clone)]
pub struct Finished {
    /// For the call's row.
    pub result: CallResult,
    /// Decides the call's status.
    pub conclusion: Conclusion,
}

/// One problem of a call's arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ArgumentProblem {
    /// JSON pointer into the arguments.
    pub pointer: String,
    /// What to change.
    pub message: String,
}

impl ArgumentProblem {
    /// A problem at a pointer.
    pub fn new(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), message: message.into() }
    }
}
