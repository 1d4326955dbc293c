//! A context on the wire.

use std::collections::BTreeMap;

use domain::{CodeContext, limits};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Time;
use crate::json::Checks;

/// Whether a context has an interpreter.
#[derive(Debug, Clone, Copy, ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum ContextStatus {
    /// None: the next call starts one.
    Cold,
    /// One that waits.
    Idle,
    /// One that runs a call.
    Busy,
}

/// What a context's interpreters speak.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Language {
    /// Python 3, for `python_execute`.
    #[default]
    Python,
    /// JavaScript and TypeScript, for `node_execute`.
    Javascript,
}

impl From<Language> for domain::Language {
    fn from(language: Language) -> Self {
        match language {
            Language::Python => Self::Python,
            Language::Javascript => Self::Javascript,
        }
    }
}

/// How a context's state was last lost.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct LostState {
    /// `restarted`, `timeout`, `cancelled`, `oom`, `exited`, `signal`, `sandbox_replaced`, `not_started` or `unknown`.
    pub reason: String,
    /// When that was seen.
    pub at: Time,
}

/// An interpreter of a session whose state lasts from call to call.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Context)]
pub struct ContextView {
    /// Its id.
    #[schema(value_type = String)]
    pub id: domain::ContextId,
    /// Always `context`.
    #[schema(pattern = "^context$")]
    pub object: &'static str,
    /// The session that it lives in.
    #[schema(value_type = String)]
    pub session_id: domain::SessionId,
    /// The name that calls may use for it.
    pub name: Option<String>,
    /// What its interpreters speak.
    #[schema(value_type = Language)]
    pub language: domain::Language,
    /// Whether it has an interpreter.
    #[schema(value_type = ContextStatus)]
    pub status: domain::ContextStatus,
    /// The call that runs in it.
    #[schema(value_type = Option<String>)]
    pub call_id: Option<domain::CallId>,
    /// Directory that an interpreter starts in.
    pub cwd: String,
    /// Names of the variables that its interpreters have over those of the session.
    pub env: Vec<String>,
    /// Interpreters that it has had.
    pub interpreters: u32,
    /// How state was last lost.
    pub lost: Option<LostState>,
    /// The caller's labels.
    #[schema(schema_with = super::metadata)]
    pub metadata: BTreeMap<String, String>,
    /// When it was made.
    pub created_at: Time,
}

impl From<CodeContext> for ContextView {
    fn from(context: CodeContext) -> Self {
        Self {
            id: context.id,
            object: "context",
            session_id: context.session_id,
            name: context.name,
            language: context.language,
            status: context.status,
            call_id: context.call_id,
            cwd: context.cwd,
            env: context.env.into_keys().collect(),
            interpreters: context.interpreter,
            lost: context.lost.map(|lost| LostState { reason: lost.reason, at: Time(lost.at) }),
            metadata: context.metadata,
            created_at: Time(context.created_at),
        }
    }
}

/// What a context is to be. All of it may be left out.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"name": "main", "cwd": "/workspace"})))]
pub struct CreateContext {
    /// A name that calls may use for it, one of its session.
    #[schema(min_length = 1, max_length = 64)]
    pub name: Option<String>,
    /// What its interpreters speak. Default python.
    #[serde(default)]
    pub language: Language,
    /// Directory that its interpreters start in, under /workspace or /tmp. Default /workspace.
    #[schema(min_length = 1, max_length = 4096)]
    pub cwd: Option<String>,
    /// Variables of its interpreters, over those of the session.
    #[serde(default)]
    #[schema(schema_with = super::env)]
    pub env: BTreeMap<String, String>,
    /// Labels.
    #[serde(default)]
    #[schema(schema_with = super::metadata)]
    pub metadata: BTreeMap<String, String>,
}

impl CreateContext {
    pub(crate) fn check(&self, checks: &mut Checks) {
        checks.text("/name", self.name.as_deref(), 1..=limits::CONTEXT_NAME_CHARS);
        checks.text("/cwd", self.cwd.as_deref(), 1..=4096);
        checks.env("/env", &self.env);
        checks.metadata("/metadata", Some(&self.metadata));
    }
}

/// A context that was deleted.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct DeletedContext {
    /// Its id.
    #[schema(value_type = String)]
    pub id: domain::ContextId,
    /// Always `context`.
    #[schema(pattern = "^context$")]
    pub object: &'static str,
    /// Always true.
    pub deleted: bool,
}
