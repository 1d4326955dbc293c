//! A shell on the wire.

use domain::Shell;
use serde::Serialize;
use utoipa::ToSchema;

use super::Time;
use super::events::StreamName;

/// Whether a shell's process tree lives.
#[derive(Debug, Clone, Copy, ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum ShellStatus {
    /// It runs.
    Running,
    /// It has ended, by itself or not.
    Exited,
}

/// A command in the background, with its own log.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Shell)]
pub struct ShellView {
    /// Its id.
    #[schema(value_type = String)]
    pub id: domain::ShellId,
    /// Always `shell`.
    #[schema(pattern = "^shell$")]
    pub object: &'static str,
    /// The session that it lives in.
    #[schema(value_type = String)]
    pub session_id: domain::SessionId,
    /// The call that started it.
    #[schema(value_type = String)]
    pub call_id: domain::CallId,
    /// The command's text.
    pub command: String,
    /// Why it runs, in the words of the call.
    pub description: Option<String>,
    /// Whether it runs.
    #[schema(value_type = ShellStatus)]
    pub status: domain::ShellStatus,
    /// Exit code, unless a signal ended it.
    pub exit_code: Option<i32>,
    /// Name of the signal that ended it.
    pub signal: Option<String>,
    /// Why it ended when not by itself: `killed`, `timeout`, `oom`, `session_ended`, `sandbox_lost`.
    pub end_reason: Option<String>,
    /// The offset to read on from: bytes of its log, dropped ones included.
    pub next_offset: u64,
    /// When it started.
    pub created_at: Time,
    /// When it ended.
    pub ended_at: Option<Time>,
}

impl From<Shell> for ShellView {
    fn from(shell: Shell) -> Self {
        Self {
            id: shell.id,
            object: "shell",
            session_id: shell.session_id,
            call_id: shell.call_id,
            command: shell.command,
            description: shell.description,
            status: shell.status,
            exit_code: shell.exit_code,
            signal: shell.signal,
            end_reason: shell.end_reason,
            next_offset: shell.next_offset,
            created_at: shell.created_at.into(),
            ended_at: shell.ended_at.map(Time),
        }
    }
}

/// Part of a shell's log.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ShellOutput {
    /// Always `shell_output`.
    #[schema(pattern = "^shell_output$")]
    pub object: &'static str,
    /// The shell.
    #[schema(value_type = String)]
    pub shell_id: domain::ShellId,
    /// Pieces in the order in which they were written.
    pub chunks: Vec<ShellChunk>,
    /// The offset to read on from.
    pub next_offset: u64,
    /// Bytes that are not kept between `since_offset` and `next_offset`.
    pub dropped_bytes: u64,
    /// Whether the shell still runs.
    pub running: bool,
    /// Exit code, once it has ended.
    pub exit_code: Option<i32>,
}

/// A piece of a shell's output: `text`, or `base64` where the bytes are not UTF-8.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ShellChunk {
    /// Which stream.
    #[schema(value_type = StreamName)]
    pub stream: domain::StreamName,
    /// Offset of its first byte in the log of both streams.
    pub offset: u64,
    /// The bytes as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub text: Option<String>,
    /// The bytes in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub base64: Option<String>,
}
