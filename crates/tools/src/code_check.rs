//! What `run_tests` and `run_lint` share: a directory, a command given or found, and its output as text to be read.

use std::collections::BTreeMap;

use domain::Code;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::command::{self, Ran};
use crate::port::{Background, Captured, Command, CommandOutcome, Program};
use crate::{ArgumentProblem, Context, ToolError, ToolOutput, path};

/// Longest command, in characters.
const COMMAND_CHARS: usize = 65_536;
/// Exit code by which a detection says that there is nothing to run.
const NOTHING: i32 = 94;
/// Line by which a detection says what it runs.
const RUNS: &str = "[runs] ";
/// Functions of the detections: `run` runs a program and says which, `nothing` gives up, `found` looks for files.
const FUNCTIONS: &str = r#"
run() { printf '[runs] %s\n' "$*"; "$@"; exit $?; }
nothing() { printf '%s\n' "$1" >&2; exit 94; }
found() { [ -n "$(find . -maxdepth 4 -name "$1" -not -path '*/node_modules/*' -not -path '*/.*/*' -print -quit 2>/dev/null)" ]; }
"#;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    /// The project's directory, under /workspace or /tmp. Default /workspace.
    path: Option<String>,
    /// A bash command to run instead of what would be found.
    #[schemars(length(min = 1, max = COMMAND_CHARS))]
    command: Option<String>,
}

impl Input {
    pub(crate) fn problems(&self) -> Vec<ArgumentProblem> {
        self.path.as_deref().and_then(|given| path::check("path", given)).into_iter().collect()
    }
}

/// How it went.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Checked {
    #[serde(flatten)]
    ran: Ran,
    /// What was run.
    command: String,
}

/// Runs what is given, or what the detection finds. Returns the result and the output's text.
pub(crate) async fn run(
    cx: &Context,
    tool: &str,
    detect: &str,
    input: Input,
) -> Result<(ToolOutput<Checked>, String), ToolError> {
    let script = input.command.clone().unwrap_or_else(|| format!("{FUNCTIONS}{detect}"));
    let given = Command {
        terminal: None,
        program: Program::Shell(script),
        cwd: command::cwd(tool, input.path.as_deref())?,
        env: BTreeMap::new(),
        stdin: None,
        background: Background::Never,
        label: tool.to_owned(),
    };
    let CommandOutcome::Ended(end) = cx.sandbox.run(given).await? else {
        return Err(ToolError::new(
            Code::PlatformError,
            format!("{tool}: its command became a shell, which it must not"),
        ));
    };
    let (stdout, stderr) = (text_of(&end.stdout), text_of(&end.stderr));
    if input.command.is_none() && end.exit_code == Some(NOTHING) {
        return Err(ToolError::new(Code::StartFailed, format!("{tool}: {}", stderr.trim()))
            .hint("Give the project's directory as `path`, or what to run as `command`."));
    }
    let command = input.command.unwrap_or_else(|| {
        let line = stdout.lines().find_map(|line| line.strip_prefix(RUNS));
        line.unwrap_or_default().to_owned()
    });
    let shown = command::ended(cx, &end).map(|ran| Checked { ran, command });
    Ok((shown, format!("{stdout}\n{stderr}")))
}

fn text_of(captured: &Captured) -> String {
    let bytes = [captured.head.as_slice(), captured.tail.as_slice()].concat();
    crate::clean::screen(&String::from_utf8_lossy(&bytes))
}
