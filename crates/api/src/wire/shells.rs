//! A shell on the wire.

use std::collections::BTreeMap;

use domain::Shell;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::Time;
use super::events::StreamName;
use super::submissions::SubmitCall;

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
    /// The named shell that it began as.
    pub name: Option<String>,
    /// The command's text.
    pub command: String,
    /// Why it runs, in the words of the call.
    pub description: Option<String>,
    /// It has a terminal in the place of pipes.
    pub pty: bool,
    /// Whether it runs.
    #[schema(value_type = ShellStatus)]
    pub status: domain::ShellStatus,
    /// Exit code, unless a signal ended it.
    pub exit_code: Option<i32>,
    /// Name of the signal that ended it.
    pub signal: Option<String>,
    /// Why it ended when not by itself: `killed`, `timeout`, `oom`, `session_ended`, `sandbox_lost`, `key_revoked`.
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
            name: shell.name.map(String::from),
            command: shell.command,
            description: shell.description,
            pty: shell.terminal,
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

/// A shell to start. Its fields are arguments of the tool `bash`; see there.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"command": "bash", "pty": {"rows": 24, "cols": 80}})))]
pub struct CreateShell {
    /// The command, for bash.
    #[schema(min_length = 1)]
    pub command: String,
    /// Directory to start in.
    pub cwd: Option<String>,
    /// Environment variables.
    #[serde(default)]
    #[schema(schema_with = super::env)]
    pub env: BTreeMap<String, String>,
    /// Text for its stdin, which is closed then. Without it, stdin stays open.
    pub stdin: Option<String>,
    /// A terminal: `rows`, `cols`, `term`.
    #[schema(value_type = Option<Object>)]
    pub pty: Option<Value>,
    /// When it is ended, at the latest. With the session when left out.
    #[schema(minimum = 1)]
    pub shell_timeout_ms: Option<u64>,
    /// Why it runs.
    #[schema(max_length = 200)]
    pub description: Option<String>,
    /// Labels of its call.
    #[serde(default)]
    #[schema(schema_with = super::metadata)]
    pub metadata: BTreeMap<String, String>,
    /// How long this request waits until it has started.
    #[serde(default = "wait_ms")]
    #[schema(minimum = 0, maximum = 60000, default = 20000)]
    pub wait_ms: u64,
}

fn wait_ms() -> u64 {
    20_000
}

impl CreateShell {
    /// The call that starts it.
    pub(crate) fn into_call(self) -> SubmitCall {
        let mut arguments = Map::new();
        let mut argue = |name: &str, value: Value| {
            if !value.is_null() {
                arguments.insert(name.to_owned(), value);
            }
        };
        argue("command", self.command.into());
        argue("background", true.into());
        argue("cwd", self.cwd.into());
        argue("stdin", self.stdin.into());
        argue("pty", self.pty.unwrap_or_default());
        argue("shell_timeout_ms", self.shell_timeout_ms.into());
        if !self.env.is_empty() {
            argue(
                "env",
                self.env.into_iter().map(|(name, value)| (name, value.into())).collect::<Map<_, _>>().into(),
            );
        }
        SubmitCall {
            tool: "bash".to_owned(),
            version: None,
            arguments,
            description: self.description,
            timeout_ms: None,
            wait_ms: 0,
            output_budget_bytes: None,
            after: None,
            metadata: self.metadata,
        }
    }
}

/// Input for a shell: `text` or `base64`, then perhaps its end.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"text": "print(6 * 7)\n"})))]
pub struct SendInput {
    /// Text, as it stands: a line needs its line end.
    pub text: Option<String>,
    /// Bytes that are no text.
    pub base64: Option<String>,
    /// Nothing more comes afterwards. A terminal gets Ctrl-D and stays open.
    #[serde(default)]
    pub close: bool,
}

impl SendInput {
    /// The bytes; `None` when they are no base64.
    pub(crate) fn bytes(&self) -> Option<Vec<u8>> {
        match (&self.text, &self.base64) {
            (Some(text), _) => Some(text.clone().into_bytes()),
            (None, Some(base64)) => data_encoding::BASE64.decode(base64.as_bytes()).ok(),
            (None, None) => Some(Vec::new()),
        }
    }
}

/// What became of input.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct InputTaken {
    /// Always `input`.
    #[schema(pattern = "^input$")]
    pub object: &'static str,
    /// The shell.
    #[schema(value_type = String)]
    pub shell_id: domain::ShellId,
    /// Bytes that its stdin took.
    pub taken_bytes: u64,
}

/// A signal for a shell.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"signal": "INT"})))]
pub struct SendSignal {
    /// Its name, with or without `SIG`, or a key such as `ctrl+c`.
    #[schema(min_length = 1, max_length = 16)]
    pub signal: String,
}

/// Another size for a shell's terminal.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"rows": 40, "cols": 120})))]
pub struct ResizeShell {
    /// Lines.
    #[schema(minimum = 1, maximum = 1000)]
    pub rows: u16,
    /// Characters of a line.
    #[schema(minimum = 1, maximum = 1000)]
    pub cols: u16,
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
