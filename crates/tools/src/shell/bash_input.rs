//! `bash_input`: text and signals for a shell.

use async_trait::async_trait;
use domain::{Effect, limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::alias::{Alias, ArgumentAlias, Dialect, Target, renamed};
use crate::port::ShellInput;
use crate::shell_log::{self, State};
use crate::{Annotations, ArgumentProblem, Context, Permissions, Spec, Tool, ToolError, ToolOutput, signal};

pub(crate) struct BashInput;

/// Longest text of one call, in characters.
const STDIN_CHARS: usize = 1_048_576;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    /// The shell, as bash returned it; or the name that it was started under, for the newest of that name.
    shell_id: String,
    /// Text for its stdin.
    #[schemars(length(max = STDIN_CHARS))]
    stdin: Option<String>,
    /// End the text with a newline, as the Enter key does, unless it has one.
    #[serde(default = "yes")]
    append_newline: bool,
    /// Close its stdin afterwards (end of file).
    #[serde(default)]
    close: bool,
    /// Signal for its process group, sent after the text: INT, TERM, HUP, … or ctrl+c.
    signal: Option<String>,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    #[serde(flatten)]
    state: State,
    /// Bytes that its stdin took.
    bytes_written: u64,
    /// Its stdin was closed.
    closed: bool,
    /// The signal that was sent, such as SIGINT.
    signal_sent: Option<String>,
    /// Where its log ended before the input: bash_output from here on shows what came of it.
    next_offset: u64,
}

#[async_trait]
impl Tool for BashInput {
    const SPEC: Spec = Spec {
        name: "bash_input",
        aliases: &[Alias::new("shellMessage", Dialect::Mycoder)
            .arguments(&[
                ArgumentAlias {
                    name: "showStdIn",
                    target: Target::Ignored("what a user sees is the client's choice"),
                },
                ArgumentAlias {
                    name: "showStdout",
                    target: Target::Ignored("what a user sees is the client's choice"),
                },
            ])
            .otherwise(&["stdin", "signal"], "bash_output")],
        arguments: &[
            renamed("bash_id", "shell_id"),
            renamed("shellId", "shell_id"),
            renamed("instanceId", "shell_id"),
            renamed("session_name", "shell_id"),
            renamed("input", "stdin"),
            renamed("text", "stdin"),
        ],
        title: "Write to a background command",
        description: "Sends text to the stdin of a background command, closes its stdin, or sends its process group a signal \
            (INT or ctrl+c to interrupt, TERM, HUP, USR1, …). At least one of `stdin`, `close` and `signal`. Then read \
            what came of it with bash_output. To end the command for good use kill_bash.",
        toolkit: "shell",
        version: "1.0.0",
        effect: Effect::Effectful,
        permissions: Permissions { files: false, network: false, exec: true, human: false, provider: false },
        annotations: Annotations {
            read_only: false,
            destructive: true,
            idempotent: false,
            open_world: false,
        },
        default_timeout_ms: 30_000,
        max_timeout_ms: limits::TIMEOUT_MS,
    };
    type Input = Input;
    type Output = Output;

    fn check(&self, input: &Input) -> Vec<ArgumentProblem> {
        let mut problems: Vec<ArgumentProblem> = shell_log::check_name(&input.shell_id).into_iter().collect();
        if input.stdin.is_none() && input.signal.is_none() && !input.close {
            problems.push(ArgumentProblem::new("", "give at least one of `stdin`, `close` and `signal`"));
        }
        if let Some(name) = &input.signal
            && signal::parse(name).is_none()
        {
            problems.push(ArgumentProblem::new(
                "/signal",
                format!("must be one of {}, or ctrl+c", signal::names()),
            ));
        }
        problems
    }

    async fn run(&self, cx: &Context, input: Input) -> Result<ToolOutput<Output>, ToolError> {
        let shell = shell_log::find(cx, &input.shell_id).await?;
        let (id, next_offset) = (shell.id, shell.next_offset);
        let signal = input.signal.as_deref().and_then(signal::parse);
        let mut text = input.stdin;
        if let Some(text) = &mut text
            && input.append_newline
            && !text.ends_with('\n')
        {
            text.push('\n');
        }
        let request =
            ShellInput { text, close: input.close, signal: signal.as_ref().map(|(number, _)| *number) };
        let bytes_written = cx.shells.input(id, request).await?;
        let state = State::of(&cx.shells.get(id).await?);
        let mut done = Vec::new();
        if bytes_written > 0 {
            done.push(format!("wrote {bytes_written} bytes"));
        }
        if input.close {
            done.push("closed stdin".to_owned());
        }
        if let Some((_, name)) = &signal {
            done.push(format!("sent {name}"));
        }
        let text = format!(
            "[{}]\n{}\n[read what came of it: bash_output since_offset {next_offset}]",
            done.join(", "),
            state.line()
        );
        let signal_sent = signal.map(|(_, name)| name);
        Ok(ToolOutput::new(
            Output { state, bytes_written, closed: input.close, signal_sent, next_offset },
            text,
        ))
    }
}
