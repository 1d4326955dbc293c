//! `read_output`: finds lines in what an earlier call of the session wrote, of which its result showed only head and tail.
//!
//! It reads the log and no sandbox, so that it works while the call runs and after the sandbox is gone.

use std::fmt::Write as _;

use async_trait::async_trait;
use domain::{CallId, Code, Effect, StreamName, limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::alias::renamed;
use crate::heavy::{PIECE_BYTES, heavy};
use crate::output_search::{self, CONTEXT_LINES, Found, PATTERN_CHARS, Position, Query, Search};
use crate::{Annotations, ArgumentProblem, Context, Permissions, Spec, Tool, ToolError, ToolOutput};

pub(crate) struct ReadOutput;

/// Most lines of one answer.
const LINES: usize = 2_000;
/// Bytes of one look at the log.
const STRETCH_BYTES: u64 = 1 << 20;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum Stream {
    #[default]
    Stdout,
    Stderr,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    /// The call, as a shortened result names it (call_…).
    call_id: String,
    /// Which stream: stdout (default) or stderr.
    #[serde(default)]
    stream: Stream,
    /// Only lines that match this regular expression (Rust syntax, linear time).
    #[schemars(length(min = 1, max = PATTERN_CHARS))]
    pattern: Option<String>,
    /// The pattern takes upper and lower case as the same.
    #[serde(default)]
    ignore_case: bool,
    /// Lines around each match.
    #[serde(default)]
    #[schemars(range(max = CONTEXT_LINES))]
    context: usize,
    /// First line to look at, counted from 1.
    #[schemars(range(min = 1))]
    first_line: Option<u64>,
    /// Last line to look at.
    #[schemars(range(min = 1))]
    last_line: Option<u64>,
    /// Most lines to return. Default: as many as the output budget holds.
    #[schemars(range(min = 1, max = LINES))]
    limit: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Line {
    /// Its number, counted from 1.
    line: u64,
    /// Without its line end and control sequences.
    text: String,
    /// It was asked for; false for lines beside a match.
    #[serde(rename = "match")]
    is_match: bool,
    /// Only its beginning is here.
    cut: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// The lines, in order.
    lines: Vec<Line>,
    /// There is more: give it as first_line. Null when everything was looked at.
    next_line: Option<u64>,
    /// Bytes that the stream has so far.
    total_bytes: u64,
    /// The call has ended: no more will come.
    ended: bool,
}

#[async_trait]
impl Tool for ReadOutput {
    const SPEC: Spec = Spec {
        name: "read_output",
        aliases: &[],
        arguments: &[
            renamed("grep", "pattern"),
            renamed("filter", "pattern"),
            renamed("offset", "first_line"),
        ],
        title: "Read an earlier call's output",
        description: "Reads what an earlier call of this session wrote, when its result was shortened or it has not ended: lines that \
            match a regular expression (`pattern`, with `context` lines around), or by number (`first_line` to `last_line`), or both. \
            The whole output is kept, also when the sandbox was reset. For a background command (shell_id) use bash_output.",
        toolkit: "shell",
        version: "1.0.0",
        effect: Effect::Pure,
        permissions: Permissions { files: false, network: false, exec: false, human: false, provider: false },
        annotations: Annotations { read_only: true, destructive: false, idempotent: true, open_world: false },
        default_timeout_ms: 30_000,
        max_timeout_ms: limits::TIMEOUT_MS,
    };
    const CHECKS_A_PATTERN: bool = true;
    type Input = Input;
    type Output = Output;

    fn check(&self, input: &Input) -> Vec<ArgumentProblem> {
        let mut problems = Vec::new();
        if input.call_id.parse::<CallId>().is_err() {
            problems.push(ArgumentProblem::new("/call_id", "is not a call's id: it starts with call_"));
        }
        if let Some(Err(message)) =
            input.pattern.as_ref().map(|text| output_search::pattern(text, input.ignore_case))
        {
            problems.push(ArgumentProblem::new("/pattern", message));
        }
        if input.last_line.is_some_and(|last| last < input.first_line.unwrap_or(1)) {
            problems.push(ArgumentProblem::new("/last_line", "must not be before `first_line`"));
        }
        problems
    }

    async fn run(&self, cx: &Context, input: Input) -> Result<ToolOutput<Output>, ToolError> {
        let id: CallId = input.call_id.parse().map_err(|_| not_found())?;
        let invalid = |message: String| ToolError::new(Code::InvalidArguments, message);
        let compile = || input.pattern.as_ref().map(|text| output_search::pattern(text, input.ignore_case));
        let query = Query {
            pattern: heavy(cx.tenant_id, compile).await.transpose().map_err(invalid)?,
            context: input.context,
            first_line: input.first_line.unwrap_or(1),
            last_line: input.last_line.unwrap_or(u64::MAX),
            max_lines: input.limit.unwrap_or(LINES),
            // Numbers and separators come beside the text.
            max_bytes: usize::try_from(cx.output_budget_bytes * 4 / 5).unwrap_or(usize::MAX),
        };
        let last_line = query.last_line;
        let stream = match input.stream {
            Stream::Stdout => StreamName::Stdout,
            Stream::Stderr => StreamName::Stderr,
        };
        let mut search = Search::new(query, Position::START);
        let mut at = 0;
        let (total_bytes, ended, at_end) = loop {
            let part = cx.outputs.read(id, stream, at, STRETCH_BYTES).await?;
            for (offset, bytes) in &part.pieces {
                for (offset, bytes) in (*offset..).step_by(PIECE_BYTES).zip(bytes.chunks(PIECE_BYTES)) {
                    if search.is_done() {
                        break;
                    }
                    heavy(cx.tenant_id, || search.feed(offset, bytes)).await;
                }
            }
            at += STRETCH_BYTES;
            let at_end = at >= part.total_bytes;
            if at_end || search.is_done() {
                break (part.total_bytes, part.ended, at_end && !search.is_done());
            }
        };
        let found = search.finish(at_end && ended);
        let over = (at_end && ended) || (!found.full && found.next.line > last_line);
        let output = output(found, over, total_bytes, ended);
        let text = text(&output, id);
        Ok(ToolOutput::new(output, text))
    }
}

fn not_found() -> ToolError {
    ToolError::new(Code::CallNotFound, "There is no such call in this session.")
}

fn output(found: Found, over: bool, total_bytes: u64, ended: bool) -> Output {
    let next_line = (!over).then_some(found.next.line);
    let lines = found.lines.into_iter().map(|line| Line {
        line: line.position.line,
        text: line.text,
        is_match: line.is_match,
        cut: line.is_cut,
    });
    Output { lines: lines.collect(), next_line, total_bytes, ended }
}

/// As `grep -n` shows lines: `12:text` for those asked for, `11-text` beside them.
fn text(output: &Output, id: CallId) -> String {
    let mut text = String::new();
    let mut expected = None;
    for line in &output.lines {
        if expected.is_some_and(|expected| expected != line.line) {
            text.push_str("--\n");
        }
        let sign = if line.is_match { ':' } else { '-' };
        let _ = writeln!(text, "{}{sign}{}{}", line.line, line.text, if line.cut { " […]" } else { "" });
        expected = Some(line.line + 1);
    }
    if output.lines.is_empty() {
        text.push_str("[no lines]\n");
    }
    match (output.next_line, output.ended) {
        (None, _) => {}
        (Some(next), true) => {
            let _ = writeln!(text, "[there is more: first_line {next}]");
        }
        (Some(next), false) => {
            let _ = writeln!(text, "[{id} has not ended: read on with first_line {next}]");
        }
    }
    text.truncate(text.trim_end().len());
    text
}
