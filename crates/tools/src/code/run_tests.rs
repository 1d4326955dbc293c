//! `run_tests`: finds out how a project is tested, runs it, and counts.

use async_trait::async_trait;
use domain::{Effect, limits};
use schemars::JsonSchema;
use serde::Serialize;

use crate::alias::{Alias, Dialect, Unit, renamed, timeout};
use crate::code_check::{self, Checked};
use crate::test_counts::{self, Counts};
use crate::{Annotations, ArgumentProblem, Context, Permissions, Spec, Tool, ToolError, ToolOutput};

pub(crate) struct RunTests;

/// Says how the directory is tested: the first of these that fits. `node` has its own runner since 18.
const DETECT: &str = r#"
has() { command -v "$1" >/dev/null 2>&1; }
if [ -f Cargo.toml ] && has cargo; then run cargo test --no-fail-fast
elif [ -f go.mod ] && has go; then run go test -v ./...
elif [ -f package.json ] && has node && grep -Eq '"test" *:' package.json && ! grep -q 'no test specified' package.json; then run npm test --silent
elif { [ -f pytest.ini ] || [ -f pyproject.toml ] || [ -f setup.cfg ] || [ -f tox.ini ] || [ -f conftest.py ] || found 'test_*.py' || found '*_test.py'; } && python3 -c 'import pytest' 2>/dev/null; then run python3 -m pytest -q -rfE --color=no -p no:cacheprovider
elif found 'test*.py' && has python3; then run python3 -m unittest discover -v
elif has node && { found '*.test.js' || found '*.test.mjs' || found '*.test.cjs' || found 'test.js' || [ -d test ]; }; then run node --test
else nothing "no tests were found: no Cargo.toml, go.mod, package.json with a test script, test_*.py or *.test.js"
fi
"#;

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    #[serde(flatten)]
    checked: Checked,
    #[serde(flatten)]
    counts: Counts,
    /// Numbers were found in the output. When they were not, `exit_code` alone says how it went.
    parsed: bool,
    /// Everything passed, as far as the numbers and the exit code say.
    success: bool,
}

#[async_trait]
impl Tool for RunTests {
    const SPEC: Spec = Spec {
        name: "run_tests",
        aliases: &[Alias::new("check_tests", Dialect::CoworkForge)],
        arguments: &[
            timeout("timeout_seconds", Unit::Seconds),
            renamed("directory", "path"),
            renamed("cwd", "path"),
        ],
        title: "Run the tests",
        description: "Runs a project's tests in the session's sandbox and returns how many passed, failed, were skipped or ended in an \
            error, the names of those that failed, and the output. Finds pytest, unittest, node --test, npm test, cargo test \
            and go test by itself, or runs the `command` that you give. `path` is the project's directory (default \
            /workspace). The default timeout is 300 s, at most 600 s (`timeout_ms`).",
        toolkit: "code",
        version: "1.1.0",
        effect: Effect::Effectful,
        permissions: Permissions { files: true, network: true, exec: true, human: false, provider: false },
        annotations: Annotations {
            read_only: false,
            destructive: false,
            idempotent: false,
            open_world: true,
        },
        default_timeout_ms: 300_000,
        max_timeout_ms: limits::TIMEOUT_MS,
    };
    type Input = code_check::Input;
    type Output = Output;

    fn check(&self, input: &code_check::Input) -> Vec<ArgumentProblem> {
        input.problems()
    }

    async fn run(&self, cx: &Context, input: code_check::Input) -> Result<ToolOutput<Output>, ToolError> {
        let (shown, text) = code_check::run(cx, "run_tests", DETECT, input).await?;
        let counts = test_counts::parse(&text);
        let parsed = counts.is_some();
        let counts = counts.unwrap_or_default();
        let success = shown.exit_code == Some(0) && counts.failed + counts.errors == 0;
        let mut shown = shown;
        if parsed {
            shown.output.push_str(&format!("\n[{}]", counts.in_words()));
        }
        Ok(shown.map(|checked| Output { checked, counts, parsed, success }))
    }
}
