//! `python_execute`: runs Python in a fresh interpreter; nothing of it is left in memory for the next call.
//!
//! # Design notes
//!
//! The code comes on descriptor 3 and not as an argument: it may be large, and arguments can be seen by other processes. The
//! prelude (`prelude.py`) makes tracebacks look as if the code were a file named `<code>`, with its source lines.

use std::collections::BTreeMap;

use async_trait::async_trait;
use domain::{Code, Effect, limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::alias::{Alias, ArgumentAlias, Dialect, Target, Unit, refused, renamed, timeout};
use crate::command::{self, Ran};
use crate::port::{Background, Captured, Command, CommandOutcome, Program};
use crate::{Annotations, ArgumentProblem, Context, Permissions, Spec, Tool, ToolError, ToolOutput, path};

pub(crate) struct PythonExecute;

const PRELUDE: &str = include_str!("prelude.py");
/// Longest code, in characters.
const CODE_CHARS: usize = 1_048_576;
/// Most arguments.
const ARGS: usize = 256;
/// Longest value of an error that the result repeats, in characters.
const ERROR_CHARS: usize = 2_000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    /// Python 3 source, run as __main__.
    #[schemars(length(min = 1, max = CODE_CHARS))]
    code: String,
    /// Directory to start in, under /workspace or /tmp. Default /workspace.
    cwd: Option<String>,
    /// Environment variables for this run only.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// sys.argv after its first entry.
    #[serde(default)]
    #[schemars(length(max = ARGS))]
    args: Vec<String>,
    /// Text for its stdin. Without it, stdin is empty.
    stdin: Option<String>,
    /// Print the repr of a last line that is an expression, as an interactive interpreter does.
    #[serde(default)]
    last_expression: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    #[serde(flatten)]
    ran: Ran,
    /// The exception that ended it.
    error: Option<PythonError>,
}

#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
struct PythonError {
    /// Its class.
    name: String,
    /// Its message.
    value: String,
}

#[async_trait]
impl Tool for PythonExecute {
    const SPEC: Spec = Spec {
        name: "python_execute",
        aliases: &[
            Alias::new("CodeExec", Dialect::OpenCowork),
            Alias::new("CodeExecution", Dialect::OpenCowork),
            Alias::new("PythonExecute", Dialect::OpenManus).arguments(&[timeout("timeout", Unit::Seconds)]),
            Alias::new("NormalPythonExecute", Dialect::OpenManus).arguments(OPEN_MANUS),
            Alias::new("visualization_preparation", Dialect::OpenManus).arguments(OPEN_MANUS),
        ],
        arguments: &[
            timeout("timeout_seconds", Unit::Seconds),
            refused("timeout", "its unit differs between systems; give `timeout_ms` or `timeout_seconds`"),
            renamed("directory", "cwd"),
            renamed("working_directory", "cwd"),
            renamed("workingDirectory", "cwd"),
        ],
        title: "Run Python",
        description: "Runs Python 3 code in a fresh interpreter in the session's sandbox and returns what it printed and the \
            exit code. Nothing is shown unless printed (or `last_expression` is set). No variables carry over from \
            one call to the next; files under /workspace do. The standard library, numpy, pandas and matplotlib are \
            there; use the Agg backend and savefig for plots. Input comes from `stdin` only. The default timeout is \
            60 s, at most 600 s (`timeout_ms`). Long output is shortened in the middle.",
        toolkit: "code",
        version: "1.0.0",
        effect: Effect::Effectful,
        permissions: Permissions { files: true, network: true, exec: true, human: false, provider: false },
        annotations: Annotations { read_only: false, destructive: true, idempotent: false, open_world: true },
        default_timeout_ms: 60_000,
        max_timeout_ms: limits::TIMEOUT_MS,
    };
    type Input = Input;
    type Output = Output;

    fn check(&self, input: &Input) -> Vec<ArgumentProblem> {
        let mut problems = command::check_env(&input.env);
        problems.extend(input.cwd.as_deref().and_then(|cwd| path::check("cwd", cwd)));
        for (index, _) in input.args.iter().enumerate().filter(|(_, arg)| arg.len() >= limits::ENV_BYTES) {
            problems.push(ArgumentProblem::new(
                format!("/args/{index}"),
                format!("must be shorter than {} bytes; use `stdin` or a file", limits::ENV_BYTES),
            ));
        }
        problems
    }

    async fn run(&self, cx: &Context, input: Input) -> Result<ToolOutput<Output>, ToolError> {
        let show = if input.last_expression { "show" } else { "hide" };
        let fixed = ["python3", "-X", "utf8", "-c", PRELUDE, show];
        let command = Command {
            program: Program::Argv {
                argv: fixed.into_iter().map(str::to_owned).chain(input.args).collect(),
                script: Some(input.code),
            },
            cwd: command::cwd("python_execute", input.cwd.as_deref())?,
            env: input.env,
            stdin: input.stdin,
            terminal: None,
            background: Background::Never,
            label: "python".to_owned(),
        };
        let outcome = cx.sandbox.run(command).await.map_err(|error| match error.code {
            Code::StartFailed => {
                error.hint("This image may have no python3; create the session with one that has.")
            }
            _ => error,
        })?;
        let CommandOutcome::Ended(end) = outcome else {
            return Err(ToolError::new(
                Code::PlatformError,
                "python_execute: its interpreter became a shell, which it must not",
            ));
        };
        let error = (end.exit_code == Some(1)).then(|| python_error(&end.stderr)).flatten();
        Ok(command::ended(cx, &end).map(|ran| Output { ran, error }))
    }
}

const OPEN_MANUS: &[ArgumentAlias] = &[
    timeout("timeout", Unit::Seconds),
    ArgumentAlias {
        name: "code_type",
        target: Target::Ignored("it only labels what the code is for; the code runs the same way"),
    },
];

/// Name and message of the last exception in a traceback.
fn python_error(stderr: &Captured) -> Option<PythonError> {
    let bytes = if stderr.tail.is_empty() { &stderr.head } else { &stderr.tail };
    let text = String::from_utf8_lossy(bytes).replace('\0', "\u{fffd}");
    let traceback = match text.rfind("Traceback (most recent call last):\n") {
        Some(at) => text[at..].split_once('\n')?.1,
        // A syntax error comes without that line.
        None => &text[text.rfind("  File \"<code>\", line ")?..],
    };
    let mut at = 0;
    for line in traceback.split_inclusive('\n') {
        if !line.starts_with(' ') {
            break;
        }
        at += line.len();
    }
    let message = traceback[at..].trim_end();
    let (name, value) = message.split_once(": ").unwrap_or((message, ""));
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.'));
    is_name.then(|| PythonError { name: name.to_owned(), value: value.chars().take(ERROR_CHARS).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(stderr: &str) -> Option<(String, String)> {
        let head = stderr.as_bytes().to_vec();
        let captured = Captured { total_bytes: head.len() as u64, head, tail: Vec::new() };
        python_error(&captured).map(|error| (error.name, error.value))
    }

    fn is(name: &str, value: &str) -> Option<(String, String)> {
        Some((name.to_owned(), value.to_owned()))
    }

    #[test]
    fn the_last_exception_is_named() {
        let text = "Traceback (most recent call last):\n  File \"<code>\", line 1, in <module>\nValueError: a\nb\n\n\
            During handling of the above exception, another exception occurred:\n\n\
            Traceback (most recent call last):\n  File \"<code>\", line 4, in <module>\n    f()\nmy.Error: boom: 2\n";
        assert_eq!(error(text), is("my.Error", "boom: 2"));
        assert_eq!(
            error("Traceback (most recent call last):\n  File \"<code>\", line 1\nKeyboardInterrupt\n"),
            is("KeyboardInterrupt", "")
        );
        assert_eq!(
            error("  File \"<code>\", line 1\n    x = (\n        ^\nSyntaxError: '(' was never closed\n"),
            is("SyntaxError", "'(' was never closed")
        );
        assert_eq!(error("just a message\n"), None);
        assert_eq!(error("Traceback (most recent call last):\n  cut"), None);
    }
}
