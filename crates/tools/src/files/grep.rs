//! `grep`: lines by content.

use async_trait::async_trait;
use domain::{Effect, limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::alias::{Alias, Dialect, renamed};
use crate::grep_text::{self, file_types};
use crate::port::{GrepMode, GrepQuery};
use crate::{Annotations, ArgumentProblem, Context, Permissions, Spec, Tool, ToolError, ToolOutput, path};

pub(crate) struct Grep;

const PATTERN_BYTES: usize = 4_096;
const CONTEXT: u32 = 100;
/// As the agent's own limits, so that what it would refuse is refused at admission.
const REGEX_SIZE_BYTES: usize = 512 * 1024;
const REGEX_DEPTH: u32 = 48;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    /// Regular expression (Rust syntax: no look-around, no back-references).
    #[schemars(length(min = 1, max = PATTERN_BYTES))]
    pattern: String,
    /// File or directory to search, under /workspace (relative paths start there) or /tmp.
    #[serde(default = "here")]
    path: String,
    /// Only files whose path matches, as in the tool glob; `!` before it leaves them out.
    glob: Option<String>,
    /// Only files of this type: py, js, ts, rust, go, java, c, cpp, md, json, yaml, …
    #[serde(rename = "type")]
    file_type: Option<String>,
    /// content: the lines. files_with_matches: the files. count: the files, and how many lines of each.
    #[serde(default)]
    output_mode: Mode,
    /// With content: lines before each match.
    #[serde(default)]
    #[schemars(range(max = CONTEXT))]
    before: u32,
    /// With content: lines after each match.
    #[serde(default)]
    #[schemars(range(max = CONTEXT))]
    after: u32,
    /// With content: lines before and after each match.
    #[schemars(range(max = CONTEXT))]
    context: Option<u32>,
    /// Upper and lower case are the same.
    #[serde(default)]
    ignore_case: bool,
    /// With content: show line numbers.
    #[serde(default = "yes")]
    line_numbers: bool,
    /// Matches may span lines, and `.` matches line ends. Files up to 1 MiB.
    #[serde(default)]
    multiline: bool,
    /// Most results: lines that match, or files.
    #[serde(default = "results")]
    #[schemars(range(min = 1, max = limits::GREP_RESULTS))]
    head_limit: u64,
    /// Results to leave out from the start.
    #[serde(default)]
    offset: u64,
    /// Include names that start with a dot.
    #[serde(default)]
    include_hidden: bool,
    /// Leave out what .gitignore excludes.
    #[serde(default = "yes")]
    respect_ignore: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Mode {
    Content,
    #[default]
    FilesWithMatches,
    Count,
}

fn here() -> String {
    ".".to_owned()
}

fn yes() -> bool {
    true
}

fn results() -> u64 {
    250
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// The files with a match, shallow before deep.
    files: Vec<MatchedFile>,
    /// Results returned: lines that match, or files.
    results: u64,
    /// Files that were searched.
    searched_files: u64,
    /// Files that were left out as they are not text.
    binary_files: u64,
    /// Files that were left out as they are too large for multiline.
    large_files: u64,
    /// There may be more.
    truncated: bool,
    /// The search ended before the whole tree was seen, as it took too long.
    timed_out: bool,
    /// Give it as offset to go on; null when there is no more.
    next_offset: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct MatchedFile {
    /// Absolute.
    path: String,
    /// Lines that match, as far as they were counted.
    matches: u64,
    /// With content: the lines.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lines: Vec<MatchedLine>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct MatchedLine {
    /// Number, counted from 1.
    number: u64,
    /// Text without its line end.
    text: String,
    /// It matches; else it stands beside one that does.
    is_match: bool,
    /// Only its beginning is here.
    is_cut: bool,
}

#[async_trait]
impl Tool for Grep {
    const SPEC: Spec = Spec {
        name: "grep",
        aliases: &[Alias::new("Grep", Dialect::OpenCowork)],
        arguments: &[
            renamed("-B", "before"),
            renamed("-A", "after"),
            renamed("-C", "context"),
            renamed("-i", "ignore_case"),
            renamed("-n", "line_numbers"),
            renamed("regex", "pattern"),
            renamed("directory", "path"),
        ],
        title: "Search in files",
        description: "Searches text files for a regular expression, line by line: a file, or a directory with all that lies in it. \
            `output_mode` files_with_matches (default) returns paths, content the lines (with `before`, `after`, \
            `context`), count how many. Narrow it by `glob` (`*.{ts,tsx}`) or `type`. What starts with a dot, what \
            .gitignore excludes and binary files are left out. `head_limit` (default 250) and `offset` page through \
            results. A search ends after 20 s and says so.",
        toolkit: "files",
        version: "1.0.0",
        effect: Effect::Pure,
        permissions: Permissions { files: true, network: false, exec: false, human: false, provider: false },
        annotations: Annotations { read_only: true, destructive: false, idempotent: true, open_world: false },
        default_timeout_ms: 60_000,
        max_timeout_ms: limits::TIMEOUT_MS,
    };
    const CHECKS_A_PATTERN: bool = true;
    type Input = Input;
    type Output = Output;

    fn check(&self, input: &Input) -> Vec<ArgumentProblem> {
        let mut problems: Vec<ArgumentProblem> = path::check("path", &input.path).into_iter().collect();
        let regex = regex::bytes::RegexBuilder::new(&input.pattern)
            .case_insensitive(input.ignore_case)
            .multi_line(true)
            .dot_matches_new_line(input.multiline)
            .size_limit(REGEX_SIZE_BYTES)
            .nest_limit(REGEX_DEPTH)
            .build();
        if let Err(error) = regex {
            let message = match error {
                regex::Error::CompiledTooBig(_) => {
                    "is too large when compiled; use fewer repetitions".to_owned()
                }
                error => format!("is not a valid regular expression: {error}"),
            };
            problems.push(ArgumentProblem::new("/pattern", message));
        }
        if let Some(name) = &input.file_type
            && file_types(name).is_none()
        {
            problems.push(ArgumentProblem::new(
                "/type",
                format!("is not a type that is known; use glob: {}", grep_text::TYPES),
            ));
        }
        problems
    }

    async fn run(&self, cx: &Context, input: Input) -> Result<ToolOutput<Output>, ToolError> {
        let place = path::resolve("grep", &input.path)?;
        let base = path::absolute(&place);
        let mut globs: Vec<String> = input.glob.iter().cloned().collect();
        let types = input.file_type.as_deref().and_then(file_types).unwrap_or_default();
        // Both narrow the search, so a type counts only where the glob says nothing of its own.
        if globs.iter().all(|glob| glob.starts_with('!')) {
            globs.extend(types.iter().map(|glob| (*glob).to_owned()));
        }
        let mode = match input.output_mode {
            Mode::Content => GrepMode::Content,
            Mode::FilesWithMatches => GrepMode::Files,
            Mode::Count => GrepMode::Count,
        };
        let mut found = cx
            .sandbox
            .grep(GrepQuery {
                path: place,
                pattern: input.pattern,
                ignore_case: input.ignore_case,
                multiline: input.multiline,
                globs,
                include_hidden: input.include_hidden,
                respect_ignore: input.respect_ignore,
                mode,
                before: input.context.unwrap_or(input.before),
                after: input.context.unwrap_or(input.after),
                skip: input.offset,
                limit: input.head_limit,
                max_bytes: cx.output_budget_bytes,
            })
            .await?;
        for file in &mut found.files {
            file.path = if file.path.is_empty() { base.clone() } else { format!("{base}/{}", file.path) };
        }
        let results = match mode {
            GrepMode::Content => found.files.iter().map(|file| file.matches).sum(),
            GrepMode::Files | GrepMode::Count => found.files.len() as u64,
        };
        let next_offset = (found.truncated && results > 0).then(|| input.offset + results);
        let output = grep_text::text(&found, mode, input.line_numbers, next_offset, &base);
        let files = found.files.into_iter().map(|file| MatchedFile {
            path: file.path,
            matches: file.matches,
            lines: file
                .lines
                .into_iter()
                .map(|line| MatchedLine {
                    number: line.number,
                    text: line.text,
                    is_match: line.is_match,
                    is_cut: line.is_cut,
                })
                .collect(),
        });
        let structured = Output {
            files: files.collect(),
            results,
            searched_files: found.searched_files,
            binary_files: found.binary_files,
            large_files: found.large_files,
            truncated: found.truncated,
            timed_out: found.timed_out,
            next_offset,
        };
        Ok(ToolOutput::new(structured, output))
    }
}
