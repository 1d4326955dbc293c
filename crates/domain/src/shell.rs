//! Shells: a command in the background, with its own supervisor and its own log; and what a name keeps between commands.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::{CallId, SessionId, ShellId, TenantId, limits};

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
    /// The named shell that it began as; tools find the newest of a name by it.
    #[serde(default)]
    pub name: Option<ShellName>,
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
    /// Why it ended when not by itself: `killed`, `timeout`, `oom`, `session_ended`, `sandbox_lost`, `key_revoked`.
    pub end_reason: Option<String>,
    /// Bytes of its log that are durable, dropped ones included; the offset to read on from.
    pub next_offset: u64,
    /// When it started.
    pub created_at: DateTime<Utc>,
    /// When it ended.
    pub ended_at: Option<DateTime<Utc>>,
}

/// A named shell: a session's commands that go by one name run one after the other, each as the one before left off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedShell {
    /// The session that it belongs to.
    pub session_id: SessionId,
    /// Its name, one of its session.
    pub name: ShellName,
    /// The directory where its next command begins.
    pub cwd: String,
    /// The call that left it as it is; `None` for one that no command has left anything in.
    pub left_by: Option<CallId>,
    /// The call that runs in it.
    pub call_id: Option<CallId>,
    /// When it was first used.
    pub created_at: DateTime<Utc>,
    /// When it was last left.
    pub changed_at: DateTime<Utc>,
}

/// The name of a named shell: 1 to 64 letters, digits, `.`, `_` and `-`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ShellName(String);

/// Why a text is no name of a shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be 1 to {} letters, digits, `.`, `_` and `-`", limits::NAMED_SHELL_NAME_CHARS)]
pub struct ShellNameError;

impl ShellName {
    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ShellName {
    type Err = ShellNameError;

    fn from_str(text: &str) -> Result<Self, ShellNameError> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let is_name =
            (1..=limits::NAMED_SHELL_NAME_CHARS).contains(&text.len()) && text.chars().all(is_plain);
        if is_name { Ok(Self(text.to_owned())) } else { Err(ShellNameError) }
    }
}

impl TryFrom<String> for ShellName {
    type Error = ShellNameError;

    fn try_from(text: String) -> Result<Self, ShellNameError> {
        text.parse()
    }
}

impl From<ShellName> for String {
    fn from(name: ShellName) -> Self {
        name.0
    }
}

impl fmt::Display for ShellName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
