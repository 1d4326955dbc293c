//! `node_execute`: runs JavaScript or TypeScript in a fresh interpreter.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use async_trait::async_trait;
use domain::{Code, Effect, limits};
use regex::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::alias::{Alias, Dialect, Unit, refused, renamed, timeout};
use crate::code_report::{Raised, Report};
use crate::command::{self, Ended, Ran};
use crate::port::{Background, Command, CommandOutcome, Program};
use crate::{
    Annotations, ArgumentProblem, Context, Permissions, Spec, Tool, ToolError, ToolOutput, path,
    rich_content, shape,
};

pub(crate) struct NodeExecute;

const NODE: &str = include_str!("node.js");
/// Longest code, in characters.
const CODE_CHARS: usize = 1_048_576;
/// Most arguments, and most dependencies.
const ARGS: usize = 256;
const DEPENDENCIES: usize = 32;
/// Exit codes by which `node.js` says that it has not begun.
const MISSING: i32 = 97;
const NO_TRANSPILER: i32 = 98;

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
    /// npm packages that it needs, such as lodash or @scope/name@^2.
    #[serde(default)]
    #[schemars(length(max = DEPENDENCIES))]
    dependencies: Vec<String>,
    /// Directory to start in, under /workspace or /tmp. Default /workspace.
    cwd: Option<String>,
    /// Environment variables for this run only.
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
        description: "Runs JavaScript (or, with `typescript`, TypeScript) in a fresh Node.js process in the session's sandbox and \
            returns what it printed, the value of a last line that is an expression, and the exit code. `require`, \
            `import` and top-level await work; relative modules and node_modules are found from the working directory \
            (/workspace). `display(value)` shows more: pictures (Buffers of PNG or JPEG), and with display.html, .markdown, \
            .svg, .json, .png what you give it. No variables carry over from one call to the next, files do. The default timeout is 60 s, at \
            most 600 s (`timeout_ms`). Long output is shortened in the middle.",
        toolkit: "code",
        version: "1.1.0",
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
        let argv = ["node", "-e", NODE].map(str::to_owned).to_vec();
        let command = Command {
            terminal: None,
            program: Program::Interpreter { argv, request },
            cwd: command::cwd("node_execute", input.cwd.as_deref())?,
            env: input.env,
            stdin: input.stdin,
            background: Background::Never,
            label: "node".to_owned(),
        };
        let outcome = cx.sandbox.run(command).await.map_err(|error| match error.code {
            Code::StartFailed => {
                error.hint("See that `cwd` is a directory; if it is, this image may have no node: create the session with one that has.")
            }
            _ => error,
        })?;
        let CommandOutcome::Ended(end) = outcome else {
            return Err(ToolError::new(
                Code::PlatformError,
                "node_execute: its process became a shell, which it must not",
            ));
        };
        let report = Report::parse(&end.report);
        if let Some(setup) = report.as_ref().and_then(|report| report.setup.as_ref()) {
            match end.exit_code {
                Some(MISSING) => return Err(network_required(setup)),
                Some(NO_TRANSPILER) => {
                    return Err(ToolError::new(
                        Code::StartFailed,
                        "node_execute: this image has no esbuild, which TypeScript needs",
                    )
                    .hint("Give JavaScript, or use the default image."));
                }
                _ => {}
            }
        }
        let mut report = report.unwrap_or_default();
        let (result, error) = (report.result.take(), report.error.take());
        let (content, text) = rich_content::of(cx, "node_execute", report).await?;
        let more: Vec<String> = result
            .iter()
            .chain(Some(&text).filter(|text| !text.is_empty()))
            .map(|text| shape::text(text, cx.output_budget_bytes / 3).text)
            .collect();
        let ran = command::ended_with(cx, &end, &more.join("\n"), Ended::Everything);
        Ok(ToolOutput { content, ..ran.map(|ran| Output { ran, result, error }) })
    }
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
