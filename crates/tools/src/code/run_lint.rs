//! `run_lint`: finds out how a project is linted, runs it, and lists what was found.

use async_trait::async_trait;
use domain::{Effect, limits};
use schemars::JsonSchema;
use serde::Serialize;

use crate::alias::{Alias, Dialect, Unit, renamed, timeout};
use crate::code_check::{self, Checked};
use crate::findings::{self, Finding};
use crate::{Annotations, ArgumentProblem, Context, Permissions, Spec, Tool, ToolError, ToolOutput};

pub(crate) struct RunLint;

/// Says how the directory is linted: the first of these that fits. The project's own eslint goes before the image's, and a
/// configuration in `eslint.config.*` needs one that knows it.
const DETECT: &str = r#"
has() { command -v "$1" >/dev/null 2>&1; }
any() { for file; do [ ! -f "$file" ] || return 0; done; return 1; }
eslint=eslint; [ ! -x node_modules/.bin/eslint ] || eslint=node_modules/.bin/eslint
knows_flat() { version=$($eslint --version 2>/dev/null); version=${version#v}; [ "${version%%.*}" -ge 9 ] 2>/dev/null; }
if [ -f Cargo.toml ] && has cargo-clippy; then run cargo clippy --quiet --message-format=short
elif [ -f package.json ] && has node && grep -Eq '"lint" *:' package.json; then run npm run --silent lint
elif { any .eslintrc .eslintrc.json .eslintrc.js .eslintrc.cjs .eslintrc.yml .eslintrc.yaml || grep -qs '"eslintConfig" *:' package.json; } && has $eslint; then run $eslint --no-color .
elif any eslint.config.js eslint.config.mjs eslint.config.cjs && knows_flat; then run $eslint --no-color .
elif { [ -f .flake8 ]; } && has flake8; then run flake8 .
elif { found '*.py' || [ -f pyproject.toml ] || [ -f ruff.toml ]; } && has ruff; then run ruff check --no-cache --output-format=concise .
elif found '*.py' && has flake8; then run flake8 .
else nothing "no linter fits: no Cargo.toml, package.json with a lint script, configuration that the eslint here understands, or Python files"
fi
"#;

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    #[serde(flatten)]
    checked: Checked,
    /// Findings in all, as far as the output has them.
    total: u64,
    /// The first of them.
    findings: Vec<Finding>,
    /// Nothing was found, and the linter ended well.
    success: bool,
}

#[async_trait]
impl Tool for RunLint {
    const SPEC: Spec = Spec {
        name: "run_lint",
        aliases: &[Alias::new("check_lint", Dialect::CoworkForge)],
        arguments: &[
            timeout("timeout_seconds", Unit::Seconds),
            renamed("directory", "path"),
            renamed("cwd", "path"),
        ],
        title: "Run the linter",
        description: "Runs a project's linter in the session's sandbox and returns what it found with file, line and rule, and the \
            output. Finds ruff, flake8, eslint, an npm lint script and cargo clippy by itself, or runs the `command` that \
            you give. Nothing is changed. `path` is the project's directory (default /workspace). The default timeout is \
            300 s, at most 600 s (`timeout_ms`).",
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
        let (mut shown, text) = code_check::run(cx, "run_lint", DETECT, input).await?;
        let (total, findings) = findings::parse(&text);
        let success = shown.exit_code == Some(0) && total == 0;
        shown.output.push_str(&format!("\n[{total} found]"));
        Ok(shown.map(|checked| Output { checked, total, findings, success }))
    }
}
