//! `read_document`: text of documents that are not text, by a script of ours in the sandbox.
//!
//! # Design notes
//!
//! The document is hostile, and so is what a library makes of it: the script runs in the sandbox as the tool's user, with what
//! the image has, and never in the service. It writes the text to stdout and one line of JSON about it to stderr; whatever goes
//! wrong has a code there. The path is looked at by the agent first, so that its refusals are those of every file tool.

use std::collections::BTreeMap;

use async_trait::async_trait;
use domain::{Code, Effect, Truncation, limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::alias::{Alias, Dialect, renamed};
use crate::port::{Background, Captured, Command, CommandEnd, CommandOutcome, Program};
use crate::{
    Annotations, ArgumentProblem, Conclusion, Context, Permissions, Spec, Tool, ToolError, ToolOutput, clean,
    command, path,
};

const SCRIPT: &str = include_str!("read_document.py");

pub(crate) struct ReadDocument;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    /// The document, under /workspace (relative paths start there) or /tmp.
    path: String,
    /// Pages to read (slides, sheets, cells of a notebook), such as "1-3,7" or "10-". Default: all, at most 500.
    #[schemars(regex(
        pattern = r"^[1-9][0-9]{0,5}(-([1-9][0-9]{0,5})?)?(,[1-9][0-9]{0,5}(-([1-9][0-9]{0,5})?)?){0,49}$"
    ))]
    pages: Option<String>,
    /// auto recognises the text of pictures, and of at most 10 pages that have pictures and no text; never does not.
    #[serde(default)]
    ocr: Ocr,
    /// markdown keeps headings, lists and tables; text is plain.
    #[serde(default)]
    format: Format,
}

#[derive(Debug, Default, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Ocr {
    #[default]
    Auto,
    Never,
}

#[derive(Debug, Default, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Format {
    #[default]
    Markdown,
    Text,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// The document, absolute.
    path: String,
    /// pdf, docx, xlsx, pptx, ipynb, html or image.
    kind: Option<String>,
    /// Its text, as far as the output budget goes.
    content: String,
    /// Pages (slides, sheets, cells) that the document has.
    total_pages: u64,
    /// Those that were read, such as "1-3,7".
    pages_read: String,
    /// Pages whose text was recognised in a picture.
    ocr_pages: u64,
    /// There is more than content shows.
    truncated: bool,
    /// Give it in pages, such as "8-", to read on; null when all that was asked for is there.
    next_page: Option<u64>,
}

/// What the script says of the document.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct About {
    code: Option<Code>,
    message: String,
    kind: Option<String>,
    pages: u64,
    word: String,
    read: Vec<u64>,
    ocr_pages: u64,
    /// A limit of pages or cells was reached.
    cut: bool,
    /// The limit of text was reached.
    full: bool,
    /// The last page that begins within the budget: when the text is cut there, the one to read on with. The script says so and not the
    /// text, which may have been written to look as if another page began.
    reached: Option<u64>,
}

#[async_trait]
impl Tool for ReadDocument {
    const SPEC: Spec = Spec {
        name: "read_document",
        aliases: &[
            Alias::new("ReadBin", Dialect::OpenCowork),
            Alias::new("ReadBinaryFile", Dialect::OpenCowork),
        ],
        arguments: &[renamed("file_path", "path"), renamed("filePath", "path"), renamed("filename", "path")],
        title: "Read a document",
        description: "Returns the text of a pdf, docx, xlsx, pptx, ipynb or html file, or of a picture (by OCR), as markdown. Long \
            documents: give pages (slides of a pptx, sheets of an xlsx, cells of an ipynb); the result says where to read on, and the \
            whole text is kept as an artifact. For text files use read_file. Documents have at most 100 MiB.",
        toolkit: "files",
        version: "1.0.0",
        effect: Effect::Idempotent,
        permissions: Permissions { files: true, network: false, exec: true, human: false, provider: false },
        annotations: Annotations { read_only: true, destructive: false, idempotent: true, open_world: false },
        default_timeout_ms: 120_000,
        max_timeout_ms: limits::TIMEOUT_MS,
    };
    type Input = Input;
    type Output = Output;

    fn check(&self, input: &Input) -> Vec<ArgumentProblem> {
        path::check("path", &input.path).into_iter().collect()
    }

    async fn run(&self, cx: &Context, input: Input) -> Result<ToolOutput<Output>, ToolError> {
        let place = path::resolve("read_document", &input.path)?;
        let path = path::absolute(&place);
        cx.sandbox.read(&place, 0, 1).await?;
        let ask = serde_json::json!({
            "path": path, "pages": input.pages, "ocr": input.ocr, "format": input.format,
            "budget": cx.output_budget_bytes,
        });
        // -I: nothing of the session's own folders or environment takes the place of a library.
        let argv = ["python3", "-X", "utf8", "-I", "-c", SCRIPT].into_iter().map(str::to_owned);
        let command = Command {
            terminal: None,
            program: Program::Argv { argv: argv.chain([ask.to_string()]).collect(), script: None },
            cwd: path::WORKSPACE.to_owned(),
            env: BTreeMap::new(),
            stdin: None,
            background: Background::Never,
            label: "read_document".to_owned(),
        };
        let outcome = cx.sandbox.run(command).await.map_err(|error| match error.code {
            Code::StartFailed => lacks_python(),
            _ => error,
        })?;
        let CommandOutcome::Ended(end) = outcome else {
            return Err(ToolError::new(
                Code::PlatformError,
                "read_document: its script became a shell, which it must not",
            ));
        };
        let finished = command::ended(cx, &end);
        if finished.conclusion != Conclusion::Finished {
            return Ok(finished.map(|_| Output { path, ..Output::default() }));
        }
        let about = about(&end)?;
        if let Some(code) = about.code {
            let message =
                format!("read_document: `{}`: {}", clean::one_line(&path), clean::one_line(&about.message));
            return Err(ToolError::new(code, message));
        }
        Ok(shown(cx, path, &about, &end.stdout))
    }
}

fn lacks_python() -> ToolError {
    ToolError::new(
        Code::ImageLacks,
        "read_document: the sandbox's image lacks python3, which reading documents needs",
    )
    .hint("Create the session with the default image.")
}

fn about(end: &CommandEnd) -> Result<About, ToolError> {
    let said = if end.stderr.tail.is_empty() { &end.stderr.head } else { &end.stderr.tail };
    let said = String::from_utf8_lossy(said);
    let last = said.trim_end().rsplit('\n').next().unwrap_or_default();
    serde_json::from_str(last).map_err(|_| {
        // An interpreter that cannot even start has no standard library worth the name.
        let message = "read_document: the sandbox's image lacks a working python3 of at least version 3.9";
        ToolError::new(Code::ImageLacks, message).details(serde_json::json!({"exit_code": end.exit_code}))
    })
}

fn shown(cx: &Context, path: String, about: &About, stdout: &Captured) -> ToolOutput<Output> {
    let budget = usize::try_from(cx.output_budget_bytes).unwrap_or(usize::MAX);
    let head = &stdout.head[..stdout.head.len().min(budget)];
    let whole = head.len() as u64 == stdout.total_bytes;
    let kept = if whole { head } else { clean::without_cut_end(head).0 };
    let content = String::from_utf8_lossy(kept).replace('\0', "\u{fffd}");
    let next_page = if whole && !about.full {
        about.read.last().filter(|_| about.cut).map(|last| last + 1)
    } else {
        // A single page that is longer than the budget is read in its artifact.
        about.reached.filter(|next| Some(next) != about.read.first())
    };
    let mut output = clean::plain(content.trim_end_matches('\n'));
    if output.is_empty() {
        output.push_str("[the document has no text]");
    }
    let total_pages = about.pages;
    if let Some(next) = next_page.filter(|next| *next <= total_pages) {
        output.push_str(&format!(
            "\n[more follows; the document has {total_pages} {}s: read on with pages \"{next}-\"]",
            about.word
        ));
    } else if !whole {
        output.push_str(&format!("\n[{} of {} bytes are shown]", kept.len(), stdout.total_bytes));
    }
    let truncated = (!whole).then_some(Truncation {
        total_bytes: stdout.total_bytes,
        shown_bytes: kept.len() as u64,
        dropped_bytes: 0,
        artifact_id: None,
    });
    let structured = Output {
        path,
        kind: about.kind.clone(),
        total_pages,
        pages_read: ranges(&about.read),
        ocr_pages: about.ocr_pages,
        truncated: !whole || about.cut || about.full,
        next_page: next_page.filter(|next| *next <= total_pages),
        content,
    };
    ToolOutput { truncated, ..ToolOutput::new(structured, output) }
}

/// `[1, 2, 3, 7]` as `1-3,7`.
fn ranges(numbers: &[u64]) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *number == *last + 1 => *last = *number,
            _ => runs.push((*number, *number)),
        }
    }
    let texts: Vec<String> = runs
        .iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
        .collect();
    texts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_told_in_ranges() {
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[1, 2, 3, 7, 9, 10]), "1-3,7,9-10");
    }
}
