//! `kill_bash`: ends a shell with everything that it started.

use std::time::Duration;

use async_trait::async_trait;
use domain::{Effect, ShellStatus, limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::alias::{Alias, Dialect, renamed};
use crate::shell_log::{self, Chunk, State};
use crate::{Annotations, ArgumentProblem, Context, Permissions, Spec, Tool, ToolError, ToolOutput};

pub(crate) struct KillBash;

/// Longest grace, in milliseconds.
const GRACE_MS: u64 = 30_000;
/// Bytes from the end of the log that are returned when the caller does not say from where.
const LAST_BYTES: u64 = 8 * 1024;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    /// The shell, as bash returned it; or the name that it was started under, for the newest of that name.
    shell_id: String,
    /// Time between SIGTERM and SIGKILL.
    #[serde(default = "grace_ms")]
    #[schemars(range(max = GRACE_MS))]
    grace_ms: u64,
    /// Return its output from this offset on (the next_offset of the last read). Default: the last 8 KiB.
    since_offset: Option<u64>,
}

fn grace_ms() -> u64 {
    limits::KILL_GRACE_MS
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    #[serde(flatten)]
    state: State,
    /// It ran until now; false when it had ended before.
    was_running: bool,
    /// The output asked for, in order.
    chunks: Vec<Chunk>,
    /// Where the returned output ends in its log.
    next_offset: u64,
    /// There is more output; read it with bash_output.
    more: bool,
}

#[async_trait]
impl Tool for KillBash {
    const SPEC: Spec = Spec {
        name: "kill_bash",
        aliases: &[
            Alias::new("KillBash", Dialect::OpenCowork),
            Alias::new("terminate_command", Dialect::OpenManus),
        ],
        arguments: &[
            renamed("bash_id", "shell_id"),
            renamed("shellId", "shell_id"),
            renamed("instanceId", "shell_id"),
            renamed("session_name", "shell_id"),
        ],
        title: "End a background command",
        description: "Ends a background command and everything it started: SIGTERM, then SIGKILL after `grace_ms` (default 200, \
            at most 30000). Returns its exit code or signal and its last output. A command that has ended already is \
            not an error.",
        toolkit: "shell",
        version: "1.0.0",
        effect: Effect::Idempotent,
        permissions: Permissions { files: false, network: false, exec: true, human: false, provider: false },
        annotations: Annotations { read_only: false, destructive: true, idempotent: true, open_world: false },
        default_timeout_ms: 60_000,
        max_timeout_ms: limits::TIMEOUT_MS,
    };
    type Input = Input;
    type Output = Output;

    fn check(&self, input: &Input) -> Vec<ArgumentProblem> {
        shell_log::check_name(&input.shell_id).into_iter().collect()
    }

    async fn run(&self, cx: &Context, input: Input) -> Result<ToolOutput<Output>, ToolError> {
        let shell = shell_log::find(cx, &input.shell_id).await?;
        let (id, was_running) = (shell.id, shell.status == ShellStatus::Running);
        // Asked for even when it has ended: a worker that runs this again must ask for the same operations.
        let shell = cx.shells.kill(id, Duration::from_millis(input.grace_ms)).await?;
        let since = input.since_offset.unwrap_or_else(|| shell.next_offset.saturating_sub(LAST_BYTES));
        let read = cx.shells.output(id, since, cx.output_budget_bytes.max(1)).await?;
        let dropped = shell_log::dropped_line(&read);
        let pieces = shell_log::joined(read.pieces);
        let shaped = shell_log::shaped(&pieces, cx.output_budget_bytes);
        let state = State::of(&shell);
        let more = read.next_offset < shell.next_offset;
        let mut lines = vec![state.line()];
        if !was_running {
            lines.push("[it had ended before]".to_owned());
        }
        lines.extend(dropped);
        if !shaped.text.is_empty() {
            lines.push(format!("[output since offset {since}]"));
            lines.push(shaped.text);
        }
        if more {
            lines.push(format!("[more to read: bash_output since_offset {}]", read.next_offset));
        }
        let output = Output {
            state,
            was_running,
            chunks: shell_log::chunks(&pieces),
            next_offset: read.next_offset,
            more,
        };
        Ok(ToolOutput::new(output, lines.join("\n")))
    }
}
