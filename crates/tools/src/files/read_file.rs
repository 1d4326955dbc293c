//! `read_file`: text of a file, by lines or by bytes.

use async_trait::async_trait;
use domain::{Code, Effect, Truncation, limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::alias::{Alias, ArgumentAlias, Dialect, Preset, PresetValue, Target, renamed};
use crate::file_text::{self, Lines};
use crate::outline;
use crate::port::{FileContent, KnownFile, SandboxPath};
use crate::{
    Annotations, ArgumentProblem, Context, Permissions, Spec, Tool, ToolError, ToolOutput, clean, path,
};

pub(crate) struct ReadFile;

const LINES_DEFAULT: u64 = 2_000;
const LINES: u64 = 1_000_000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    /// The file, under /workspace (relative paths start there) or /tmp.
    path: String,
    /// First line to return, counted from 1. Default 1.
    #[schemars(range(min = 1))]
    offset: Option<u64>,
    /// Most lines to return. Default 2000.
    #[schemars(range(min = 1, max = LINES))]
    limit: Option<u64>,
    /// Return these bytes instead of lines.
    byte_range: Option<ByteRange>,
    /// Most characters to return. Default, and at most: the call's output budget.
    #[schemars(range(min = 1))]
    max_chars: Option<u64>,
    /// Return only the lines that show how it is built: headings, and where things are defined. `offset` is then the first line to look
    /// at, and `limit` counts what is returned. A file that has none is read as usual.
    #[serde(default)]
    outline: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ByteRange {
    /// First byte, counted from 0.
    start: u64,
    /// The byte after the last.
    end: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// The file, absolute.
    path: String,
    /// The text as it is in the file, without line numbers.
    pub(crate) content: String,
    /// Number of its first line; null for a byte range.
    start_line: Option<u64>,
    /// Lines returned.
    lines: u64,
    /// Lines of the file; null when it was not read to its end.
    total_lines: Option<u64>,
    /// Size of the file.
    size_bytes: u64,
    /// SHA-256 of the whole file; null when it was not read to its end.
    pub(crate) sha256: Option<String>,
    /// The file has more than was returned.
    truncated: bool,
    /// Give it as offset to read on; null at the end of the file.
    next_offset: Option<u64>,
    /// The bytes returned, when bytes were asked for.
    byte_range: Option<ByteRange>,
    /// The numbers of the lines returned, when an outline was asked for and the file has one.
    outline: Option<Vec<u64>>,
}

#[async_trait]
impl Tool for ReadFile {
    const SPEC: Spec = Spec {
        name: "read_file",
        aliases: &[
            Alias::new("Read", Dialect::OpenCowork).otherwise_when(is_document, "read_document"),
            Alias::new("readFile", Dialect::Mycoder)
                .arguments(&[renamed("range", "byte_range"), renamed("maxSize", "max_chars")]),
            Alias::new("ReadFileTool", Dialect::CoworkForge).success("Successfully read the file"),
            Alias::new("ReadFileTruncatedTool", Dialect::CoworkForge)
                .arguments(TRUNCATED)
                .presets(TRUNCATED_PRESETS),
            Alias::new("read_file_truncated", Dialect::CoworkForge)
                .arguments(TRUNCATED)
                .presets(TRUNCATED_PRESETS),
            Alias::new("ReadFileWithLimitTool", Dialect::CoworkForge),
            Alias::new("read_file_with_limit", Dialect::CoworkForge),
        ],
        arguments: &[renamed("file_path", "path"), renamed("filePath", "path"), renamed("filename", "path")],
        title: "Read a file",
        description: "Reads a text file (UTF-8) and returns its lines with their numbers, as `cat -n` does. Reads the first 2000 \
            lines unless `offset` (first line, from 1) and `limit` say otherwise; `byte_range` {start, end} reads \
            bytes instead, and `outline` only headings and definitions, which is a good first look at a long file. At most the call's output budget (30000 bytes unless set) is returned; the result says \
            where to read on. Lines can be found in files up to 6 MiB, bytes in any. Not for binary files and \
            directories.",
        toolkit: "files",
        version: "1.0.0",
        effect: Effect::Pure,
        permissions: Permissions { files: true, network: false, exec: false, human: false, provider: false },
        annotations: Annotations { read_only: true, destructive: false, idempotent: true, open_world: false },
        default_timeout_ms: 30_000,
        max_timeout_ms: limits::TIMEOUT_MS,
    };
    type Input = Input;
    type Output = Output;

    fn check(&self, input: &Input) -> Vec<ArgumentProblem> {
        let mut problems: Vec<ArgumentProblem> = path::check("path", &input.path).into_iter().collect();
        if let Some(range) = input.byte_range {
            if range.end <= range.start {
                problems.push(ArgumentProblem::new("/byte_range/end", "must be greater than `start`"));
            }
            if range.end > i64::MAX as u64 {
                problems.push(ArgumentProblem::new("/byte_range/end", "is beyond any file"));
            }
            if input.outline {
                problems.push(ArgumentProblem::new("/byte_range", "cannot be combined with `outline`"));
            }
            if input.offset.is_some() || input.limit.is_some() {
                problems.push(ArgumentProblem::new(
                    "/byte_range",
                    "cannot be combined with `offset` and `limit`, which count lines",
                ));
            }
        }
        problems
    }

    async fn run(&self, cx: &Context, input: Input) -> Result<ToolOutput<Output>, ToolError> {
        let place = path::resolve("read_file", &input.path)?;
        let shown_path = path::absolute(&place);
        match input.byte_range {
            Some(range) => {
                let length = (range.end - range.start).min(budget(cx, &input) as u64);
                let file = cx.sandbox.read(&place, range.start, length).await?;
                remember(cx, &place, &file).await?;
                bytes(shown_path, range, input.max_chars, &file)
            }
            None => {
                let file = cx.sandbox.read(&place, 0, limits::FILE_BYTES).await?;
                remember(cx, &place, &file).await?;
                lines(cx, shown_path, &input, &file)
            }
        }
    }
}

impl Input {
    /// Lines of a file, from one on, at most so many.
    pub(crate) fn lines(path: &str, offset: Option<u64>, limit: Option<u64>) -> Self {
        Self { path: path.to_owned(), offset, limit, byte_range: None, max_chars: None, outline: false }
    }
}

/// What was read may be changed from now on, until it changes.
async fn remember(cx: &Context, place: &SandboxPath, file: &FileContent) -> Result<(), ToolError> {
    let known = KnownFile {
        sha256: file.sha256.clone(),
        size_bytes: file.stat.size_bytes,
        modified_ms: Some(file.stat.modified_ms),
    };
    cx.records.remember_file(place, known).await
}

/// Open CoWork's `Read` takes documents too.
fn is_document(arguments: &Value) -> bool {
    let path = ["file_path", "path"].iter().find_map(|name| arguments.get(name)?.as_str());
    let ending = path.and_then(|path| path.rsplit_once('.')).map(|(_, ending)| ending.to_ascii_lowercase());
    let documents =
        ["pdf", "docx", "xlsx", "pptx", "ipynb", "png", "jpg", "jpeg", "gif", "webp", "bmp", "tiff"];
    ending.is_some_and(|ending| documents.contains(&ending.as_str()))
}

const TRUNCATED: &[ArgumentAlias] = &[ArgumentAlias {
    name: "prefer_structure",
    target: Target::Convert(&["outline"], |value| match value.as_bool() {
        Some(prefers) => Ok(vec![("outline", Value::Bool(prefers))]),
        None => Err("must be true or false".to_owned()),
    }),
}];
const TRUNCATED_PRESETS: &[Preset] =
    &[Preset { field: "max_chars", value: PresetValue::Number(2_000), unless: &["byte_range"] }];

fn budget(cx: &Context, input: &Input) -> usize {
    let bytes = usize::try_from(cx.output_budget_bytes).unwrap_or(usize::MAX).max(16);
    // A character has at least one byte; the exact count is taken line by line.
    input
        .max_chars
        .and_then(|chars| usize::try_from(chars.saturating_mul(4)).ok())
        .map_or(bytes, |max| max.min(bytes))
}

fn lines(
    cx: &Context,
    path: String,
    input: &Input,
    file: &FileContent,
) -> Result<ToolOutput<Output>, ToolError> {
    let whole = file.bytes.len() as u64 >= file.stat.size_bytes;
    let kept = if whole { &file.bytes[..] } else { clean::without_cut_end(&file.bytes).0 };
    let text = file_text::text("read_file", &path, kept)?;
    let first = input.offset.unwrap_or(1);
    let total_lines = text.split_inclusive('\n').count() as u64;
    if first > total_lines.max(1) {
        return Err(beyond_the_end(&path, first, total_lines, whole));
    }
    let limit = usize::try_from(input.limit.unwrap_or(LINES_DEFAULT)).unwrap_or(usize::MAX);
    if input.outline {
        let found = outline::of(&path, text);
        if !found.is_empty() {
            let total_lines = whole.then_some(total_lines);
            return Ok(outlined(cx, path, input, file, total_lines, &found));
        }
    }
    let skip = usize::try_from(first - 1).unwrap_or(usize::MAX);
    let mut taken = Lines::new(budget(cx, input), input.max_chars);
    for line in text.split_inclusive('\n').skip(skip).take(limit) {
        if !taken.take(line) {
            break;
        }
    }
    let next = first + taken.lines;
    let more = !whole || next <= total_lines || taken.cut;
    let mut output = taken.numbered(first);
    if total_lines == 0 && whole {
        output.push_str("[the file is empty]");
    } else if taken.cut {
        output.push_str(&format!(
            "\n[line {} is longer than what may be returned: use byte_range, or bash with cut]",
            next - 1
        ));
    } else if more {
        let of = if whole {
            format!(" of {total_lines}")
        } else {
            format!("; the file has {} bytes", file.stat.size_bytes)
        };
        output.push_str(&format!("\n[lines {first}-{}{of}; read on with offset {next}]", next - 1));
    }
    let truncated = more.then_some(Truncation {
        total_bytes: file.stat.size_bytes,
        shown_bytes: taken.content.len() as u64,
        dropped_bytes: 0,
        artifact_id: None,
    });
    let structured = Output {
        path,
        lines: taken.lines,
        start_line: Some(first),
        total_lines: whole.then_some(total_lines),
        size_bytes: file.stat.size_bytes,
        sha256: file.sha256.clone().filter(|_| whole),
        truncated: more,
        next_offset: (!whole || next <= total_lines).then_some(next),
        byte_range: None,
        outline: None,
        content: taken.content,
    };
    Ok(ToolOutput { truncated, ..ToolOutput::new(structured, output) })
}

/// Those lines of an outline that are asked for, and that the budget holds.
fn outlined(
    cx: &Context,
    path: String,
    input: &Input,
    file: &FileContent,
    total_lines: Option<u64>,
    found: &[(u64, &str)],
) -> ToolOutput<Output> {
    let first = input.offset.unwrap_or(1);
    let limit = usize::try_from(input.limit.unwrap_or(LINES_DEFAULT)).unwrap_or(usize::MAX);
    let mut taken = Lines::new(budget(cx, input), input.max_chars);
    let mut wanted = found.iter().filter(|(number, _)| *number >= first).peekable();
    let (mut numbers, mut output) = (Vec::new(), String::new());
    while numbers.len() < limit
        && let Some((number, line)) = wanted.next_if(|(_, line)| taken.take(line))
    {
        numbers.push(*number);
        output.push_str(&format!("{number:>6}\t{}\n", clean::plain(line.trim_end())));
    }
    // A single line that is longer than what may be returned has been cut, and taken all the same.
    if taken.cut
        && let Some((number, _)) = wanted.next()
    {
        numbers.push(*number);
        output.push_str(&format!("{number:>6}\t{}\n", clean::plain(taken.content.trim_end())));
    }
    let next_offset = wanted.peek().map(|(number, _)| *number);
    let of = match total_lines {
        Some(total) => format!("of {total} lines"),
        None => format!("of the first {} bytes of {}", limits::FILE_BYTES, file.stat.size_bytes),
    };
    output.push_str(&format!("[outline: {} {of}", numbers.len()));
    if let Some(next) = next_offset {
        output.push_str(&format!("; go on with offset {next}"));
    }
    output.push_str("; read a part with offset and limit]");
    let structured = Output {
        path,
        start_line: numbers.first().copied(),
        lines: numbers.len() as u64,
        total_lines,
        size_bytes: file.stat.size_bytes,
        sha256: file.sha256.clone().filter(|_| total_lines.is_some()),
        truncated: true,
        next_offset,
        byte_range: None,
        outline: Some(numbers),
        content: taken.content,
    };
    let truncated = Some(Truncation {
        total_bytes: file.stat.size_bytes,
        shown_bytes: structured.content.len() as u64,
        dropped_bytes: 0,
        artifact_id: None,
    });
    ToolOutput { truncated, ..ToolOutput::new(structured, output) }
}

fn beyond_the_end(path: &str, first: u64, total_lines: u64, whole: bool) -> ToolError {
    let path = clean::one_line(path);
    if whole {
        let message =
            format!("read_file: offset {first} is beyond the end; `{path}` has {total_lines} lines");
        return ToolError::new(Code::InvalidArguments, message);
    }
    ToolError::new(
        Code::FileTooLarge,
        format!("read_file: line {first} of `{path}` lies beyond its first {} bytes", limits::FILE_BYTES),
    )
    .hint("Use byte_range, or bash with sed -n, grep or tail.")
}

fn bytes(
    path: String,
    asked: ByteRange,
    max_chars: Option<u64>,
    file: &FileContent,
) -> Result<ToolOutput<Output>, ToolError> {
    if asked.start >= file.stat.size_bytes && file.stat.size_bytes > 0 {
        let size = file.stat.size_bytes;
        let message = format!(
            "read_file: byte {} is beyond the end; `{}` has {size} bytes",
            asked.start,
            clean::one_line(&path)
        );
        return Err(ToolError::new(Code::InvalidArguments, message));
    }
    let (kept, cut_start) =
        if asked.start == 0 { (&file.bytes[..], 0) } else { clean::without_cut_start(&file.bytes) };
    let (kept, _) = clean::without_cut_end(kept);
    let most = max_chars.and_then(|chars| usize::try_from(chars).ok()).unwrap_or(usize::MAX);
    let content: String = file_text::text("read_file", &path, kept)?.chars().take(most).collect();
    let start = asked.start + cut_start;
    let end = start + content.len() as u64;
    let size_bytes = file.stat.size_bytes;
    let output = format!("{}\n[bytes {start}-{end} of {size_bytes}]", clean::plain(&content));
    let truncated = (end < size_bytes || start > 0).then_some(Truncation {
        total_bytes: size_bytes,
        shown_bytes: content.len() as u64,
        dropped_bytes: 0,
        artifact_id: None,
    });
    let structured = Output {
        path,
        start_line: None,
        lines: content.split_inclusive('\n').count() as u64,
        total_lines: None,
        size_bytes,
        sha256: file.sha256.clone(),
        truncated: truncated.is_some(),
        next_offset: None,
        byte_range: Some(ByteRange { start, end }),
        outline: None,
        content,
    };
    Ok(ToolOutput { truncated, ..ToolOutput::new(structured, output) })
}
