//! A shell: a command in the background, with its own supervisor and its own log.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::{CallId, SessionId, ShellId, TenantId};

/// Whether a shell's process tree lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShellStatus {
    /// It runs.
    Running,
    /// It has ended, by itself or not.
    Exited,
}

impl ShellStatus {
    /// The word on the wire and in the database.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Exited => "exited",
        }
    }
}

/// One shell, as its row says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shell {
    /// Its id; also the owner of its log.
    pub id: ShellId,
    /// Whose it is.
    pub tenant_id: TenantId,
    /// The session that it lives in.
    pub session_id: SessionId,
    /// The call that started it.
    pub call_id: CallId,
    /// Operation of that call under which the agent knows it.
    pub operation: u32,
    /// The command's text.
    pub command: String,
    /// Why it runs, in the words of the call.
    pub description: Option<String>,
    /// It has a terminal in the place of pipes.
    #[serde(default)]
    pub terminal: bool,
    /// Whether it runs.
    pub status: ShellStatus,
    /// Exit code, unless a signal ended it.
    pub exit_code: Option<i32>,
    /// Name of the signal that ended it, such as `SIGTERM`.
    pub signal: Option<String>,
    /// Why it ended when not by itself: `killed`, `timeout`, `oom`, `session_ended`, `sandbox_lost`.
    pub end_reason: Option<String>,
    /// Bytes of its log that are durable, dropped ones included; the offset to read on from.
    pub next_offset: u64,
    /// When it started.
    pub created_at: DateTime<Utc>,
    /// When it ended.
    pub ended_at: Option<DateTime<Utc>>,
}
