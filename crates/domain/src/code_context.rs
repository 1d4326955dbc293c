//! A context: an interpreter of a session whose state lasts from call to call.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::{CallId, ContextId, SessionId, TenantId};

/// Whether a context has an interpreter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContextStatus {
    /// None: the next call starts one.
    Cold,
    /// One that waits.
    Idle,
    /// One that runs a call.
    Busy,
}

impl ContextStatus {
    /// The word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Idle => "idle",
            Self::Busy => "busy",
        }
    }
}

/// What a context's interpreters speak.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Language {
    /// Python 3.
    #[default]
    Python,
    /// JavaScript, and TypeScript without its types.
    Javascript,
}

impl Language {
    /// Every language.
    pub const ALL: [Self; 2] = [Self::Python, Self::Javascript];

    /// The word on the wire, and in the database.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Javascript => "javascript",
        }
    }
}

/// How an interpreter took its state away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostState {
    /// `restarted`, `timeout`, `cancelled`, `oom`, `exited`, `signal`, `sandbox_replaced`.
    pub reason: String,
    /// Which interpreter of the context it was, counted from 1.
    pub interpreter: u32,
    /// When that was seen.
    pub at: DateTime<Utc>,
}

/// One context, as its row says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeContext {
    /// Its id.
    pub id: ContextId,
    /// Whose it is.
    pub tenant_id: TenantId,
    /// The session that it lives in.
    pub session_id: SessionId,
    /// The name that calls may use for it.
    pub name: Option<String>,
    /// What its interpreters speak.
    pub language: Language,
    /// Directory that an interpreter starts in.
    pub cwd: String,
    /// Variables of its interpreters, over those of the session.
    pub env: BTreeMap<String, String>,
    /// The caller's labels.
    pub metadata: BTreeMap<String, String>,
    /// Interpreters so far.
    pub interpreter: u32,
    /// The session's sandbox in which the latest runs, unless it has ended.
    pub generation: Option<u32>,
    /// Whether it has an interpreter.
    pub status: ContextStatus,
    /// The call that runs in it.
    pub call_id: Option<CallId>,
    /// How state was last lost.
    pub lost: Option<LostState>,
    /// Interrupts asked for and done.
    pub interrupts: (u32, u32),
    /// Restarts asked for and done.
    pub restarts: (u32, u32),
    /// When it was made.
    pub created_at: DateTime<Utc>,
    /// When it was deleted.
    pub deleted_at: Option<DateTime<Utc>>,
}
