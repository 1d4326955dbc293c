//! `python_execute`: runs Python in a fresh interpreter; nothing of it is left in memory for the next call.
//!
//! # Design notes
//!
//! The code comes on descriptor 3 and not as an argument: it may be large, and arguments can be seen by other processes. The
//! program (`kernel.py`, with `rich.py` for what is more than text) is the same for every call, so that an interpreter
//! can wait already started. It makes tracebacks look as if the code were a file named `<code>`, with its source lines.

use std::collections::BTreeMap;

use async_trait::async_trait;
use domain::{Code, Effect, Language, limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::alias::{Alias, ArgumentAlias, Dialect, Target, Unit, refused, renamed, timeout};
use crate::code_context::{self, InContext, NAME_CHARS, Told};
use crate::code_report::{Raised, Report};
use crate::command::{self, Ended, Ran};
use crate::packages::{self, PACKAGES};
use crate::port::{
    Background, Captured, Command, CommandEnd, CommandOutcome, ContextEnd, ContextRun, Program,
};
use crate::{
    Annotations, ArgumentProblem, Context, Permissions, Spec, Tool, ToolError, ToolOutput, path,
    rich_content, shape,
};

pub(crate) struct PythonExecute;

const KERNEL: &str = include_str!("kernel.py");
const RICH: &str = include_str!("rich.py");
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
    /// Run it in this context, with the variables, imports and functions that earlier calls left there.
    context_id: Option<String>,
    /// The same by a name of your choice; the context is made when it is not there.
    #[schemars(length(min = 1, max = NAME_CHARS))]
    context: Option<String>,
    /// Directory to start in, under /workspace or /tmp. Default /workspace; a context stays where it is.
    cwd: Option<String>,
    /// Environment variables for this run only; in a context they stay.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Packages that it needs beyond those of the image, as requirements: `python-slugify`, `humanize>=4`. They stay
    /// installed for later calls of the session.
    #[serde(default)]
    #[schemars(length(max = PACKAGES))]
    packages: Vec<String>,
    /// sys.argv after its first entry.
    #[serde(default)]
    #[schemars(length(max = ARGS))]
    args: Vec<String>,
    /// Text for its stdin. Without it, stdin is empty.
    stdin: Option<String>,
    /// Show the value of a last line that is an expression, as an interactive interpreter does.
    #[serde(default = "yes")]
    last_expression: bool,
}

const fn yes() -> bool {
    true
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    #[serde(flatten)]
    ran: Ran,
    /// The value of the last expression as text, unless it is None.
    result: Option<String>,
    /// The exception that ended it.
    error: Option<Raised>,
    /// The context that it ran in.
    context: Option<InContext>,
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
        description: "Runs Python 3 code in the session's sandbox, in a fresh interpreter or in a named context, and returns what it printed and the \
            exit code. The value of a last line that is an expression is shown, and open matplotlib figures come back \
            as PNG with their data; DataFrames come back as tables; `display(value)` shows more. Variables carry over \
            from one call to the next only within a `context` (any name, such as \"main\"); files under /workspace always \
            do. The standard library, numpy, pandas and \
            matplotlib are there. Input comes from `stdin` only. The default timeout is 60 s, at most 600 s \
            (`timeout_ms`). Long output is shortened in the middle.",
        toolkit: "code",
        version: "2.1.0",
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
        problems.extend(code_context::check(input.context_id.as_deref(), input.context.as_deref()));
        problems.extend(packages::check("packages", &input.packages));
        for (index, _) in input.args.iter().enumerate().filter(|(_, arg)| arg.len() >= limits::ENV_BYTES) {
            problems.push(ArgumentProblem::new(
                format!("/args/{index}"),
                format!("must be shorter than {} bytes; use `stdin` or a file", limits::ENV_BYTES),
            ));
        }
        problems
    }

    async fn run(&self, cx: &Context, input: Input) -> Result<ToolOutput<Output>, ToolError> {
        packages::install(cx, &input.packages).await?;
        let request = Map::from_iter([
            ("code".to_owned(), Value::from(input.code)),
            ("show".to_owned(), Value::from(input.last_expression)),
            ("args".to_owned(), Value::from(input.args)),
            ("shown".to_owned(), Value::from(rich_content::folder(cx))),
        ]);
        let context = code_context::named("python_execute", input.context_id, input.context)?;
        if let Some(context) = context {
            let cwd =
                input.cwd.as_deref().map(|cwd| command::cwd("python_execute", Some(cwd))).transpose()?;
            let argv = interpreter("serve");
            let run = ContextRun {
                context,
                language: Language::Python,
                argv,
                request,
                cwd,
                env: input.env,
                stdin: input.stdin,
            };
            return in_context(cx, cx.contexts.run(run).await.map_err(no_python)?).await;
        }
        let command = Command {
            program: Program::Interpreter { argv: interpreter("once"), request },
            cwd: command::cwd("python_execute", input.cwd.as_deref())?,
            env: input.env,
            stdin: input.stdin,
            terminal: None,
            background: Background::Never,
            label: "python".to_owned(),
        };
        let outcome = cx.sandbox.run(command).await.map_err(no_python)?;
        let CommandOutcome::Ended(end) = outcome else {
            return Err(ToolError::new(
                Code::PlatformError,
                "python_execute: its interpreter became a shell, which it must not",
            ));
        };
        shown(cx, &end, Ended::Everything).await
    }
}

fn no_python(error: ToolError) -> ToolError {
    match error.code {
        Code::StartFailed => {
            error.hint("See that `cwd` is a directory; if it is, this image may have no python3: create the session with one that has.")
        }
        _ => error,
    }
}

/// The result of code in a context.
async fn in_context(cx: &Context, ended: ContextEnd) -> Result<ToolOutput<Output>, ToolError> {
    let report = Report::parse(&ended.end.report).unwrap_or_default();
    if let Some(setup) = &report.setup {
        return Err(ToolError::new(Code::StartFailed, format!("python_execute: {setup}")));
    }
    let (end, told) = Told::of("python_execute", ended, &report)?;
    let mut shown = shown(cx, &end, told.ended).await?;
    shown.structured.context = Some(told.in_result(&mut shown));
    Ok(shown)
}

/// How the interpreter is started: the same for all calls.
fn interpreter(mode: &str) -> Vec<String> {
    ["python3", "-X", "utf8", "-c", KERNEL, RICH, mode].map(str::to_owned).to_vec()
}

/// The result of code that is over.
async fn shown(cx: &Context, end: &CommandEnd, what_ended: Ended) -> Result<ToolOutput<Output>, ToolError> {
    let report = Report::parse(&end.report);
    let error = match &report {
        Some(report) => report.error.clone(),
        None => (end.exit_code == Some(1)).then(|| python_error(&end.stderr)).flatten(),
    };
    let result = report.as_ref().and_then(|report| report.result.clone());
    let (content, text) = match report {
        Some(report) => rich_content::of(cx, "python_execute", report).await?,
        None => (Vec::new(), String::new()),
    };
    let most = cx.output_budget_bytes / 3;
    let more: Vec<String> = result
        .iter()
        .chain(Some(&text).filter(|text| !text.is_empty()))
        .map(|text| shape::text(text, most).text)
        .collect();
    let ran = command::ended_with(cx, end, &more.join("\n"), what_ended);
    Ok(ToolOutput { content, ..ran.map(|ran| Output { ran, result, error, context: None }) })
}

const OPEN_MANUS: &[ArgumentAlias] = &[
    timeout("timeout", Unit::Seconds),
    ArgumentAlias {
        name: "code_type",
        target: Target::Ignored("it only labels what the code is for; the code runs the same way"),
    },
];

/// Name and message of the last exception in a traceback.
fn python_error(stderr: &Captured) -> Option<Raised> {
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
    is_name.then(|| Raised {
        name: name.to_owned(),
        value: value.chars().take(ERROR_CHARS).collect(),
        traceback: String::new(),
    })
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
