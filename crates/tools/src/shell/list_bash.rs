//! `list_bash`: the session's shells.

use async_trait::async_trait;
use chrono::Utc;
use domain::{Effect, Shell, ShellStatus, event, limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::alias::{Alias, ArgumentAlias, Dialect, Target};
use crate::{Annotations, Context, Permissions, Spec, Tool, ToolError, ToolOutput, clean, shape};

pub(crate) struct ListBash;

/// Characters of a command that the text shows.
const COMMAND_CHARS: usize = 120;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    /// Only shells that are running, that completed (exit code 0), ended with an error, or were terminated (killed, timed out).
    #[serde(default)]
    status: Wanted,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Wanted {
    #[default]
    All,
    Running,
    Completed,
    Error,
    Terminated,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Status {
    Running,
    Completed,
    Error,
    Terminated,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// Newest first.
    shells: Vec<Listed>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Listed {
    /// For bash_output, bash_input and kill_bash.
    shell_id: String,
    /// The named shell that it began as.
    name: Option<String>,
    /// Its command.
    command: String,
    /// Why it runs, in the words of the call.
    description: Option<String>,
    /// How it is.
    status: Status,
    /// Null while it runs and when a signal ended it.
    exit_code: Option<i32>,
    /// Signal that ended it.
    signal: Option<String>,
    /// Why it ended when not by itself.
    end_reason: Option<String>,
    /// Seconds that it has run, or ran.
    runtime_s: f64,
    /// Where its log ends now.
    next_offset: u64,
    /// When it started (RFC 3339).
    created_at: String,
    /// When it ended (RFC 3339).
    ended_at: Option<String>,
}

#[async_trait]
impl Tool for ListBash {
    const SPEC: Spec = Spec {
        name: "list_bash",
        aliases: &[
            Alias::new("ListBash", Dialect::OpenCowork),
            Alias::new("listShells", Dialect::Mycoder).arguments(&[ArgumentAlias {
                name: "verbose",
                target: Target::Ignored("everything is always listed"),
            }]),
            Alias::new("list_commands", Dialect::OpenManus),
        ],
        arguments: &[],
        title: "List background commands",
        description: "Lists the background commands (shells) of this session, newest first, with their shell_id, command, \
            status, exit code and run time. `status` lists only those that are running, completed, ended with an \
            error, or were terminated.",
        toolkit: "shell",
        version: "1.0.0",
        effect: Effect::Pure,
        permissions: Permissions { files: false, network: false, exec: true, human: false, provider: false },
        annotations: Annotations { read_only: true, destructive: false, idempotent: true, open_world: false },
        default_timeout_ms: 30_000,
        max_timeout_ms: limits::TIMEOUT_MS,
    };
    type Input = Input;
    type Output = Output;

    async fn run(&self, cx: &Context, input: Input) -> Result<ToolOutput<Output>, ToolError> {
        let found = cx.shells.list().await?;
        let shells: Vec<Listed> =
            found.iter().filter(|shell| input.status.holds(status(shell))).map(listed).collect();
        let text = if shells.is_empty() {
            "[no shells]".to_owned()
        } else {
            shells.iter().map(line).collect::<Vec<_>>().join("\n")
        };
        let text = shape::text(&text, cx.output_budget_bytes).text;
        Ok(ToolOutput::new(Output { shells }, text))
    }
}

impl Wanted {
    fn holds(self, status: Status) -> bool {
        match self {
            Self::All => true,
            Self::Running => status == Status::Running,
            Self::Completed => status == Status::Completed,
            Self::Error => status == Status::Error,
            Self::Terminated => status == Status::Terminated,
        }
    }
}

fn status(shell: &Shell) -> Status {
    match (shell.status, shell.end_reason.is_some(), shell.exit_code) {
        (ShellStatus::Running, ..) => Status::Running,
        (ShellStatus::Exited, true, _) => Status::Terminated,
        (ShellStatus::Exited, false, Some(0)) => Status::Completed,
        (ShellStatus::Exited, false, _) => Status::Error,
    }
}

fn listed(shell: &Shell) -> Listed {
    let until = shell.ended_at.unwrap_or_else(Utc::now);
    let ran_ms = (until - shell.created_at).num_milliseconds().max(0);
    Listed {
        shell_id: shell.id.to_string(),
        name: shell.name.as_ref().map(ToString::to_string),
        command: shell.command.clone(),
        description: shell.description.clone(),
        status: status(shell),
        exit_code: shell.exit_code,
        signal: shell.signal.clone(),
        end_reason: shell.end_reason.clone(),
        runtime_s: ran_ms as f64 / 1_000.0,
        next_offset: shell.next_offset,
        created_at: event::timestamp(shell.created_at),
        ended_at: shell.ended_at.map(event::timestamp),
    }
}

fn line(shell: &Listed) -> String {
    let how = match (shell.status, &shell.signal, shell.exit_code) {
        (Status::Running, ..) => "running".to_owned(),
        (Status::Completed, ..) => "completed".to_owned(),
        (Status::Error, None, Some(code)) => format!("error, exit code {code}"),
        (Status::Error, Some(signal), _) => format!("error, {signal}"),
        (Status::Error, None, None) => "error".to_owned(),
        (Status::Terminated, ..) => {
            format!("terminated, {}", shell.end_reason.as_deref().unwrap_or("killed"))
        }
    };
    let mut command: String = clean::one_line(&shell.command);
    if let Some((cut, _)) = command.char_indices().nth(COMMAND_CHARS) {
        command.truncate(cut);
        command.push('…');
    }
    format!("{}  {how}, {:.1} s  {command}", shell.shell_id, shell.runtime_s)
}
