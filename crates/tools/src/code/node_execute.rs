//! `node_execute`: runs JavaScript or TypeScript, in a fresh interpreter or in a context.
//!
//! # Design notes
//!
//! *A context's interpreter is two processes.* An agent hands a context's interpreter the descriptors of each call over a socket, which Node.js
//! cannot take without a compiled addon, and a tenant's image would not have that. So it is a small program of Python (`node_context.py`) that takes
//! them, with one Node.js as its child (`node_context.js`) whose output it passes on while it comes. The agent knows nothing of it, so journal, timeout,
//! takeover and end are those of a context of Python. As long as Node.js has not said that it is ready, nothing is lost with it: what hinders it is
//! told to the call, and the next one tries again.
//! *The end of a run's output is no mark in the output.* Node.js says on a pipe of its own that a run is over, after it has flushed what it wrote;
//! then the call gets exactly the bytes that are in the pipes. Code that writes to that pipe breaks its own context, which is then reported lost.
//! *SIGINT reaches Node.js only while it can be interrupted*, between two words of its own: outside of that it would end it. Node.js can be interrupted
//! until the code first waits for something, and while it waits; a loop without end after that is ended by the worker, and the loss is told.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use async_trait::async_trait;
use domain::{Code, Effect, Language, limits};
use regex::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::alias::{Alias, Dialect, Unit, refused, renamed, timeout};
use crate::code_context::{self, InContext, NAME_CHARS, Told};
use crate::code_report::{Raised, Report};
use crate::command::{self, Ended, Ran};
use crate::port::{Background, Command, CommandEnd, CommandOutcome, ContextRun, Program};
use crate::{
    Annotations, ArgumentProblem, Context, Permissions, Spec, Tool, ToolError, ToolOutput, path,
    rich_content, shape,
};

pub(crate) struct NodeExecute;

const NODE: &str = concat!("(() => {\n", include_str!("node_shown.js"), include_str!("node.js"), "})();\n");
const NODE_OF_CONTEXT: &str =
    concat!("(() => {\n", include_str!("node_shown.js"), include_str!("node_context.js"), "})();\n");
const LAUNCHER: &str = include_str!("node_context.py");
/// Longest code, in characters.
const CODE_CHARS: usize = 1_048_576;
/// Most arguments, and most dependencies.
const ARGS: usize = 256;
const DEPENDENCIES: usize = 32;
/// Exit codes by which `node_shown.js` and `node_context.py` say that the code was not run.
const MISSING: i32 = 97;
const NO_TRANSPILER: i32 = 98;
const NO_NODE: i32 = 99;
const NOT_STARTED: i32 = 100;

static DEPENDENCY: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^((?:@[a-z0-9~][a-z0-9._~-]*/)?[a-z0-9~][a-z0-9._~-]*)(?:@[A-Za-z0-9.^~<>=*_+|-]+)?$")
        .expect("a fixed pattern")
});

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    /// The source: a script, or a module when it has import, export or top-level await.
    #[schemars(length(min = 1, max = CODE_CHARS))]
    code: String,
    /// It is TypeScript: types are taken off, not checked.
    #[serde(default)]
    typescript: bool,
    /// Run it in this context, with the variables, modules and functions that earlier calls left there.
    context_id: Option<String>,
    /// The same by a name of your choice; the context is made when it is not there.
    #[schemars(length(min = 1, max = NAME_CHARS))]
    context: Option<String>,
    /// npm packages that it needs, such as lodash or @scope/name@^2.
    #[serde(default)]
    #[schemars(length(max = DEPENDENCIES))]
    dependencies: Vec<String>,
    /// Directory to start in, under /workspace or /tmp. Default /workspace; a context stays where it is.
    cwd: Option<String>,
    /// Environment variables for this run only; in a context they stay.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// process.argv after its first two entries.
    #[serde(default)]
    #[schemars(length(max = ARGS))]
    args: Vec<String>,
    /// Text for its stdin. Without it, stdin is empty.
    stdin: Option<String>,
    /// Show the value of a last line that is an expression.
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
    /// The value of the last expression as text, unless it is undefined.
    result: Option<String>,
    /// The exception that ended it.
    error: Option<Raised>,
    /// The context that it ran in.
    context: Option<InContext>,
}

#[async_trait]
impl Tool for NodeExecute {
    const SPEC: Spec = Spec {
        name: "node_execute",
        aliases: &[Alias::new("NodejsExecute", Dialect::OpenCowork)],
        arguments: &[
            timeout("timeout_seconds", Unit::Seconds),
            refused("timeout", "its unit differs between systems; give `timeout_ms` or `timeout_seconds`"),
            renamed("directory", "cwd"),
            renamed("working_directory", "cwd"),
            renamed("workingDirectory", "cwd"),
        ],
        title: "Run JavaScript or TypeScript",
        description: "Runs JavaScript (or, with `typescript`, TypeScript) with Node.js in the session's sandbox, in a fresh process or in a named context, and \
            returns what it printed, the value of a last line that is an expression, and the exit code. `require`, \
            `import` and top-level await work; relative modules and node_modules are found from the working directory \
            (/workspace). `display(value)` shows more: pictures (Buffers of PNG or JPEG), and with display.html, .markdown, \
            .svg, .json, .png what you give it. Variables carry over from one call to the next only within a `context` (any name, such as \"js\"), \
            where they may be declared again; files always do. The default timeout is 60 s, at \
            most 600 s (`timeout_ms`). Long output is shortened in the middle.",
        toolkit: "code",
        version: "1.3.0",
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
        for (index, _) in input.dependencies.iter().enumerate().filter(|(_, name)| package(name).is_none()) {
            let message = "is not an npm package: a name with an optional version, such as `lodash` or `@scope/name@^2`; no URL, path or option";
            problems.push(ArgumentProblem::new(format!("/dependencies/{index}"), message));
        }
        problems
    }

    async fn run(&self, cx: &Context, input: Input) -> Result<ToolOutput<Output>, ToolError> {
        let dependencies: Vec<&str> = input.dependencies.iter().filter_map(|name| package(name)).collect();
        let request = Map::from_iter([
            ("code".to_owned(), Value::from(input.code)),
            ("typescript".to_owned(), Value::from(input.typescript)),
            ("dependencies".to_owned(), json!(dependencies)),
            ("show".to_owned(), Value::from(input.last_expression)),
            ("args".to_owned(), Value::from(input.args)),
            ("shown".to_owned(), Value::from(rich_content::folder(cx))),
        ]);
        let context = code_context::named("node_execute", input.context_id, input.context)?;
        if let Some(context) = context {
            let cwd = input.cwd.as_deref().map(|cwd| command::cwd("node_execute", Some(cwd))).transpose()?;
            let argv =
                ["python3", "-I", "-S", "-X", "utf8", "-c", LAUNCHER, NODE_OF_CONTEXT].map(str::to_owned);
            let run = ContextRun {
                context,
                language: Language::Javascript,
                argv: argv.to_vec(),
                request,
                cwd,
                env: input.env,
                stdin: input.stdin,
            };
            let ended = cx.contexts.run(run).await.map_err(|error| match error.code {
                Code::StartFailed => error.hint(NO_LAUNCHER),
                _ => error,
            })?;
            let report = ready(&ended.end)?;
            let (end, told) = Told::of("node_execute", ended, &report)?;
            let mut shown = shown(cx, &end, report, told.ended).await?;
            shown.structured.context = Some(told.in_result(&mut shown));
            return Ok(shown);
        }
        let command = Command {
            terminal: None,
            program: Program::Interpreter {
                argv: ["node", "--expose-internals", "-e", NODE].map(str::to_owned).to_vec(),
                request,
            },
            cwd: command::cwd("node_execute", input.cwd.as_deref())?,
            env: input.env,
            stdin: input.stdin,
            background: Background::Never,
            label: "node".to_owned(),
        };
        let outcome = cx.sandbox.run(command).await.map_err(|error| match error.code {
            Code::StartFailed => error.hint(NO_PROGRAM),
            _ => error,
        })?;
        let CommandOutcome::Ended(end) = outcome else {
            return Err(ToolError::new(
                Code::PlatformError,
                "node_execute: its process became a shell, which it must not",
            ));
        };
        let report = ready(&end)?;
        shown(cx, &end, report, Ended::Everything).await
    }
}

const NO_PROGRAM: &str = "See that `cwd` is a directory; if it is, this image may have no node: create the session with one that has.";
const NO_LAUNCHER: &str = "See that the context's directory is there; if it is, this image may have no python3, which a context needs beside \
    node: create the session with an image that has both, or leave the context out.";

const NODE_HINDERED: &str = "The next call in the context tries again. If the session has too many processes or too little memory, end some; \
    contexts were tried with Node.js 18.20 and 20.20, which this image's may be too far from.";

/// What the code has left beside its output, if it was run.
fn ready(end: &CommandEnd) -> Result<Report, ToolError> {
    let report = Report::parse(&end.report).unwrap_or_default();
    let Some(setup) = &report.setup else { return Ok(report) };
    let failed = |message: String| Err(ToolError::new(Code::StartFailed, format!("node_execute: {message}")));
    match end.exit_code {
        Some(MISSING) => Err(network_required(setup)),
        Some(NO_TRANSPILER) => failed("this image has no esbuild, which TypeScript needs".to_owned())
            .map_err(|error| error.hint("Give JavaScript, or use the default image.")),
        Some(NO_NODE) => failed("this image has no node".to_owned())
            .map_err(|error| error.hint("Create the session with an image that has one.")),
        Some(NOT_STARTED) => failed(setup.clone()).map_err(|error| error.hint(NODE_HINDERED)),
        _ => failed(setup.clone()),
    }
}

/// The result of code that is over.
async fn shown(
    cx: &Context,
    end: &CommandEnd,
    mut report: Report,
    what_ended: Ended,
) -> Result<ToolOutput<Output>, ToolError> {
    let (result, error) = (report.result.take(), report.error.take());
    let (content, text) = rich_content::of(cx, "node_execute", report).await?;
    let more: Vec<String> = result
        .iter()
        .chain(Some(&text).filter(|text| !text.is_empty()))
        .map(|text| shape::text(text, cx.output_budget_bytes / 3).text)
        .collect();
    let ran = command::ended_with(cx, end, &more.join("\n"), what_ended);
    Ok(ToolOutput { content, ..ran.map(|ran| Output { ran, result, error, context: None }) })
}

fn package(dependency: &str) -> Option<&str> {
    let fits = dependency.len() <= 214;
    DEPENDENCY.captures(dependency).filter(|_| fits)?.get(1).map(|name| name.as_str())
}

fn network_required(missing: &str) -> ToolError {
    ToolError::new(
        Code::NetworkRequired,
        format!("node_execute: not in the sandbox, and the session has no network to get it: {missing}"),
    )
    .hint("Use what Node.js itself has, or put the packages into node_modules of the working directory.")
    .details(json!({"missing": missing.split(", ").collect::<Vec<_>>()}))
}

#[cfg(test)]
mod tests {
    use super::package;

    #[test]
    fn dependencies_name_packages_and_nothing_else() {
        for (good, name) in
            [("lodash", "lodash"), ("@a/b", "@a/b"), ("@a/b@^2.1.0", "@a/b"), ("left-pad@1.3.0", "left-pad")]
        {
            assert_eq!(package(good), Some(name));
        }
        for bad in [
            "",
            "../x",
            "./x",
            "/x",
            "--global",
            "https://x/y.tgz",
            "a b",
            "git+ssh://x",
            "file:x",
            "A",
            "a@\n",
        ] {
            assert!(package(bad).is_none(), "{bad}");
        }
    }
}
