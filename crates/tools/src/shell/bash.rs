//! `bash`: runs a command, in the foreground or as a shell in the background.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use domain::{Effect, Shell, ShellName, limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::alias::{Alias, ArgumentAlias, Dialect, Preset, PresetValue, Target, Unit, renamed, timeout};
use crate::command::{self, Ran};
use crate::port::{
    Background, Captured, Command, CommandEnd, CommandOutcome, Named, NamedEnd, Program, Terminal,
};
use crate::{Annotations, ArgumentProblem, Context, Permissions, Spec, Tool, ToolError, ToolOutput, path};

pub(crate) struct Bash;

/// Longest command, in characters.
const COMMAND_CHARS: usize = 1_048_576;
/// Most lines, and most characters of a line, of a terminal.
const TERMINAL_SIDE: u16 = 1_000;
/// Longest life of a shell, in milliseconds.
const SHELL_TIMEOUT_MS: u64 = limits::LIFETIME_S as u64 * 1_000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    /// The command, for bash. May be a script of several lines.
    #[schemars(length(min = 1, max = COMMAND_CHARS))]
    command: String,
    /// Directory to start in, under /workspace or /tmp. Default /workspace.
    cwd: Option<String>,
    /// Environment variables for this command only.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Text for its stdin. Without it, stdin is empty (in the background: open for bash_input).
    stdin: Option<String>,
    /// Run it in the session's shell of this name: directory, variables, functions and options are as the command before
    /// left them. Commands of one name run one after the other. With `background`, the command begins as the shell is then and
    /// leaves nothing in it, and bash_output, bash_input and kill_bash find it by the name too. Letters, digits, `.`, `_` and `-`.
    #[schemars(length(min = 1, max = limits::NAMED_SHELL_NAME_CHARS))]
    shell: Option<String>,
    /// With `shell`: forget what it was, and begin anew.
    #[serde(default)]
    restart: bool,
    /// Leave escape sequences and control characters of terminals out of `stdout` and `stderr`. The text for a model has none
    /// in any case, and the stored output has all.
    #[serde(default)]
    strip_ansi: bool,
    /// Give it a terminal in the place of pipes, for programs that want one: stdout and stderr are then one stream, with
    /// control sequences.
    pty: Option<Pty>,
    /// Run it in the background and return at once with a shell_id.
    #[serde(default)]
    background: bool,
    /// Wait so long for its end, then let it go on in the background.
    #[schemars(range(max = limits::TIMEOUT_MS))]
    background_after_ms: Option<u64>,
    /// End the background command after so long. Default: with the session.
    #[schemars(range(min = 1, max = SHELL_TIMEOUT_MS))]
    shell_timeout_ms: Option<u64>,
}

/// A terminal.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pty {
    /// Lines.
    #[serde(default = "default_rows")]
    #[schemars(range(min = 1, max = TERMINAL_SIDE))]
    rows: u16,
    /// Characters of a line.
    #[serde(default = "default_cols")]
    #[schemars(range(min = 1, max = TERMINAL_SIDE))]
    cols: u16,
    /// What the variable TERM says.
    #[serde(default = "default_term")]
    #[schemars(length(min = 1, max = 64))]
    term: String,
}

fn default_rows() -> u16 {
    24
}

fn default_cols() -> u16 {
    80
}

fn default_term() -> String {
    "xterm-256color".to_owned()
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    #[serde(flatten)]
    ran: Ran,
    /// Set when the command goes on in the background.
    shell_id: Option<String>,
    /// The named shell that it ran in.
    shell: Option<RanIn>,
    /// The named shell is not as the command left it; `shell.lost` says why and how it is.
    shell_replaced: bool,
}

/// A named shell after a command.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RanIn {
    /// Its name.
    name: String,
    /// Its working directory, where the next command begins.
    cwd: String,
    /// It was new with this command.
    is_new: bool,
    /// What is lost, and why.
    lost: Option<String>,
}

#[async_trait]
impl Tool for Bash {
    const SPEC: Spec = Spec {
        name: "bash",
        aliases: &[
            Alias::new("Bash", Dialect::OpenCowork),
            Alias::new("shellStart", Dialect::Mycoder)
                .arguments(&[
                    renamed("timeout", "background_after_ms"),
                    renamed("stdinContent", "stdin"),
                    SHOW_STDIN,
                    SHOW_STDOUT,
                ])
                .presets(&[Preset {
                    field: "background_after_ms",
                    value: PresetValue::Number(10_000),
                    unless: &["background"],
                }]),
            Alias::new("shellExecute", Dialect::Mycoder)
                .arguments(&[renamed("stdinContent", "stdin"), SHOW_STDIN, SHOW_STDOUT])
                .timeout_ms(30_000),
            Alias::new("execute_command", Dialect::OpenManus)
                .arguments(&[
                    renamed("folder", "cwd"),
                    timeout("timeout", Unit::Seconds),
                    ArgumentAlias { name: "blocking", target: Target::Not("background") },
                    renamed("session_name", "shell"),
                ])
                .presets(&[Preset {
                    field: "background",
                    value: PresetValue::Flag(true),
                    unless: &["background_after_ms"],
                }])
                .timeout_ms(60_000),
            Alias::new("RunCommandTool", Dialect::CoworkForge)
                .timeout_ms(30_000)
                .success("The command ended with exit code 0"),
            Alias::new("run_command", Dialect::CoworkForge).timeout_ms(30_000),
        ],
        arguments: &[
            timeout("timeout", Unit::Milliseconds),
            timeout("timeout_seconds", Unit::Seconds),
            renamed("run_in_background", "background"),
            renamed("directory", "cwd"),
            renamed("working_directory", "cwd"),
            renamed("workingDirectory", "cwd"),
        ],
        title: "Run a command",
        description: "Runs a bash command in the session's sandbox and returns stdout, stderr and the exit code. \
            Each call is a fresh process: the working directory (/workspace), variables and shell options do not \
            carry over, files do; use `cwd`, `env`, or `cd dir && …`. With `shell: \"a name\"` they do carry over, from \
            command to command in the shell of that name. There is no terminal (unless `pty` asks for \
            one) and nobody to answer prompts: use flags such as -y, or give `stdin`. The call ends when the command ends; its timeout is \
            `timeout_ms` of the call (default 120000, at most 600000), and everything it started is then killed. \
            For servers and long work set `background`: it returns a shell_id for bash_output, bash_input and \
            kill_bash. Long output is shortened in the middle; filter it, or redirect it to a file. Prefer \
            read_file, write_file and list_files for files.",
        toolkit: "shell",
        version: "1.0.0",
        effect: Effect::Effectful,
        permissions: Permissions { files: true, network: true, exec: true, human: false, provider: false },
        annotations: Annotations { read_only: false, destructive: true, idempotent: false, open_world: true },
        default_timeout_ms: limits::TIMEOUT_MS_DEFAULT,
        max_timeout_ms: limits::TIMEOUT_MS,
    };
    type Input = Input;
    type Output = Output;

    fn check(&self, input: &Input) -> Vec<ArgumentProblem> {
        let mut problems = command::check_env(&input.env);
        problems.extend(input.cwd.as_deref().and_then(|cwd| path::check("cwd", cwd)));
        if input.command.trim().is_empty() {
            problems.push(ArgumentProblem::new("/command", "must not be empty"));
        }
        if input.background && input.background_after_ms.is_some() {
            problems.push(ArgumentProblem::new(
                "/background_after_ms",
                "has no meaning with `background: true`; give one of the two",
            ));
        }
        problems.extend(check_named(input));
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+');
        if input.pty.as_ref().is_some_and(|pty| !pty.term.chars().all(is_plain)) {
            problems
                .push(ArgumentProblem::new("/pty/term", "must be letters, digits, `-`, `_`, `.` and `+`"));
        }
        if input.shell_timeout_ms.is_some() && !input.background && input.background_after_ms.is_none() {
            problems.push(ArgumentProblem::new(
                "/shell_timeout_ms",
                "has no meaning in the foreground; use the call's `timeout_ms`, or set `background`",
            ));
        }
        problems
    }

    async fn run(&self, cx: &Context, input: Input) -> Result<ToolOutput<Output>, ToolError> {
        let cwd = command::cwd("bash", input.cwd.as_deref())?;
        let strip_ansi = input.strip_ansi;
        let named = input.shell.as_deref().and_then(|name| name.parse().ok()).map(|name| Named {
            name,
            cwd: input.cwd.as_ref().map(|_| cwd.clone()),
            restart: input.restart,
        });
        let command = Command {
            cwd,
            background: background(&input),
            terminal: input.pty.map(|pty| Terminal { rows: pty.rows, cols: pty.cols, term: pty.term }),
            label: input.command.clone(),
            program: Program::Shell(input.command),
            env: input.env,
            stdin: input.stdin,
        };
        let outcome = match named {
            Some(named) if matches!(command.background, Background::Now { .. }) => {
                cx.sandbox.start_named(named, command).await?
            }
            Some(named) => {
                let name = named.name.clone();
                let (end, shell) = cx.sandbox.run_named(named, command).await?;
                let mut output = ended_in(cx, &end, &name, shell);
                if strip_ansi {
                    command::strip(cx, &mut output.structured.ran, &end.stdout, &end.stderr);
                }
                return Ok(output);
            }
            None => cx.sandbox.run(command).await?,
        };
        let (mut output, stdout, stderr) = match outcome {
            CommandOutcome::Ended(end) => {
                let output = command::ended(cx, &end);
                let output =
                    output.map(|ran| Output { ran, shell_id: None, shell: None, shell_replaced: false });
                (output, end.stdout, end.stderr)
            }
            CommandOutcome::Shell { shell, stdout, stderr } => {
                (in_background(cx, &shell, &stdout, &stderr), stdout, stderr)
            }
        };
        if strip_ansi {
            command::strip(cx, &mut output.structured.ran, &stdout, &stderr);
        }
        Ok(output)
    }
}

const SHOW_STDIN: ArgumentAlias =
    ArgumentAlias { name: "showStdIn", target: Target::Ignored("what a user sees is the client's choice") };
const SHOW_STDOUT: ArgumentAlias =
    ArgumentAlias { name: "showStdout", target: Target::Ignored("what a user sees is the client's choice") };

fn background(input: &Input) -> Background {
    let shell_timeout = input.shell_timeout_ms.map(Duration::from_millis);
    match (input.background, input.background_after_ms) {
        (true, _) | (false, Some(0)) => Background::Now { shell_timeout },
        (false, Some(ms)) => Background::After { wait: Duration::from_millis(ms), shell_timeout },
        (false, None) => Background::Never,
    }
}

/// What has no meaning in a named shell, and what has none without.
fn check_named(input: &Input) -> Vec<ArgumentProblem> {
    let Some(name) = &input.shell else {
        let message = "has no meaning without `shell`: each command is a process of its own; end one with `kill_bash`, or \
            reset the session";
        return if input.restart { vec![ArgumentProblem::new("/restart", message)] } else { Vec::new() };
    };
    let mut problems = Vec::new();
    if let Err(error) = name.parse::<ShellName>() {
        problems.push(ArgumentProblem::new("/shell", error.to_string()));
    }
    let foreground =
        "has no meaning with `shell`, whose commands run one after the other; leave out one of the two";
    for (pointer, given) in
        [("/background_after_ms", input.background_after_ms.is_some()), ("/pty", input.pty.is_some())]
    {
        if given {
            problems.push(ArgumentProblem::new(pointer, foreground));
        }
    }
    if !input.env.is_empty() {
        let message = "has no meaning with `shell`: `export` variables there, and they last";
        problems.push(ArgumentProblem::new("/env", message));
    }
    problems
}

fn ended_in(cx: &Context, end: &CommandEnd, name: &ShellName, shell: NamedEnd) -> ToolOutput<Output> {
    let mut output = command::ended(cx, end);
    if let Some(lost) = &shell.lost {
        output.output.push_str(&format!("\n[shell_replaced: the shell {name}: {lost}]"));
    }
    output.map(|ran| Output {
        ran,
        shell_id: None,
        shell_replaced: shell.lost.is_some(),
        shell: Some(RanIn { name: name.to_string(), cwd: shell.cwd, is_new: shell.is_new, lost: shell.lost }),
    })
}

fn in_background(cx: &Context, shell: &Shell, stdout: &Captured, stderr: &Captured) -> ToolOutput<Output> {
    let id = shell.id;
    let (so_far, truncated) = command::text(cx, stdout, stderr, 0);
    let mut text = format!(
        "[running in the background as {id}: read it with bash_output, write to it with bash_input, end it with kill_bash]"
    );
    if !so_far.is_empty() {
        text = format!("{so_far}\n{text}");
    }
    let ran = command::written(cx, stdout, stderr);
    let output = Output { ran, shell_id: Some(id.to_string()), shell: None, shell_replaced: false };
    ToolOutput { truncated, ..ToolOutput::new(output, text) }
}
