//! `read_file`: text of a file, by lines or by bytes.

use async_trait::async_trait;
use domain::{Code, Effect, Truncation, limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::alias::{Alias, ArgumentAlias, Dialect, Preset, PresetValue, Target, renamed};
use crate::port::FileContent;
use crate::{
    Annotations, ArgumentProblem, Context, Permissions, Spec, Tool, ToolError, ToolOutput, clean, path,
};

pub(crate) struct ReadFile;

const LINES_DEFAULT: u64 = 2_000;
const LINES: u64 = 1_000_000;
/// Width of a line's number and its tab in the text.
const NUMBER_BYTES: usize = 7;

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
    content: String,
    /// Number of its first line; null for a byte range.
    start_line: Option<u64>,
    /// Lines returned.
    lines: u64,
    /// Lines of the file; null when it was not read to its end.
    total_lines: Option<u64>,
    /// Size of the file.
    size_bytes: u64,
    /// SHA-256 of the whole file; null when it was not read to its end.
    sha256: Option<String>,
    /// The file has more than was returned.
    truncated: bool,
    /// Give it as offset to read on; null at the end of the file.
    next_offset: Option<u64>,
    /// The bytes returned, when bytes were asked for.
    byte_range: Option<ByteRange>,
}

#[async_trait]
impl Tool for ReadFile {
    const SPEC: Spec = Spec {
        name: "read_file",
        aliases: &[
            Alias::new("Read", Dialect::OpenCowork),
            Alias::new("readFile", Dialect::Mycoder)
                .arguments(&[renamed("range", "byte_range"), renamed("maxSize", "max_chars")]),
            Alias::new("ReadFileTool", Dialect::CoworkForge),
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
            bytes instead. At most the call's output budget (30000 bytes unless set) is returned; the result says \
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
                bytes(shown_path, range, input.max_chars, &file)
            }
            None => {
                let file = cx.sandbox.read(&place, 0, limits::FILE_BYTES).await?;
                lines(cx, shown_path, &input, &file)
            }
        }
    }
}

const TRUNCATED: &[ArgumentAlias] = &[ArgumentAlias {
    name: "prefer_structure",
    target: Target::Convert(&[], |value| match value.as_bool() {
        Some(false) => Ok(Vec::new()),
        _ => Err("is not available yet: the start of the file is returned; leave it out".to_owned()),
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

fn text<'a>(shown_path: &str, bytes: &'a [u8]) -> Result<&'a str, ToolError> {
    let refused = |what: &str| {
        ToolError::new(Code::BinaryFile, format!("read_file: `{}` is {what}", clean::one_line(shown_path)))
            .hint("Use bash (file, xxd, iconv, strings, python3) to look into it.")
    };
    // A text may begin with what looks like a magic number: the number only names what is no text.
    let kind = || kind_of(bytes).map(|kind| format!("{kind}, not text"));
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        Ok(_) => Err(refused(&kind().unwrap_or_else(|| "not text: it has NUL bytes".to_owned()))),
        Err(error) => {
            let at = error.valid_up_to();
            Err(refused(&kind().unwrap_or_else(|| format!("not UTF-8 text (byte {at} is not)"))))
        }
    }
}

fn kind_of(bytes: &[u8]) -> Option<&'static str> {
    const KINDS: &[(&[u8], &str)] = &[
        (b"\x89PNG\r\n\x1a\n", "a PNG image"),
        (b"\xff\xd8\xff", "a JPEG image"),
        (b"GIF8", "a GIF image"),
        (b"%PDF-", "a PDF document"),
        (b"PK\x03\x04", "a zip archive (or an office document)"),
        (b"\x1f\x8b", "gzip data"),
        (b"\x7fELF", "an ELF executable"),
        (b"SQLite format 3\0", "an SQLite database"),
        (b"\xff\xfe", "UTF-16 text"),
        (b"\xfe\xff", "UTF-16 text"),
    ];
    KINDS.iter().find(|(magic, _)| bytes.starts_with(magic)).map(|(_, kind)| *kind)
}

fn lines(
    cx: &Context,
    path: String,
    input: &Input,
    file: &FileContent,
) -> Result<ToolOutput<Output>, ToolError> {
    let whole = file.bytes.len() as u64 >= file.stat.size_bytes;
    let kept = if whole { &file.bytes[..] } else { clean::without_cut_end(&file.bytes).0 };
    let text = text(&path, kept)?;
    let first = input.offset.unwrap_or(1);
    let total_lines = text.split_inclusive('\n').count() as u64;
    if first > total_lines.max(1) {
        return Err(beyond_the_end(&path, first, total_lines, whole));
    }
    let limit = usize::try_from(input.limit.unwrap_or(LINES_DEFAULT)).unwrap_or(usize::MAX);
    let skip = usize::try_from(first - 1).unwrap_or(usize::MAX);
    let mut taken = Taken::new(budget(cx, input), input.max_chars);
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
    let truncated = more.then(|| Truncation {
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
        content: taken.content,
    };
    Ok(ToolOutput { truncated, ..ToolOutput::new(structured, output) })
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

/// Lines taken so far, within a budget.
struct Taken {
    content: String,
    lines: u64,
    /// The last line is not whole.
    cut: bool,
    bytes_left: usize,
    chars_left: usize,
}

impl Taken {
    fn new(budget: usize, max_chars: Option<u64>) -> Self {
        let chars_left = max_chars.and_then(|chars| usize::try_from(chars).ok()).unwrap_or(usize::MAX);
        Self { content: String::new(), lines: 0, cut: false, bytes_left: budget, chars_left }
    }

    /// Takes a line if it fits. The first line is cut rather than refused, so that there is always something.
    fn take(&mut self, line: &str) -> bool {
        let (bytes, chars) = (line.len() + NUMBER_BYTES, line.chars().count());
        if bytes <= self.bytes_left && chars <= self.chars_left {
            self.content.push_str(line);
            self.lines += 1;
            self.bytes_left -= bytes;
            self.chars_left -= chars;
            return true;
        }
        if self.lines == 0 {
            let by_chars = line.char_indices().nth(self.chars_left).map_or(line.len(), |(at, _)| at);
            let by_bytes = line.floor_char_boundary(self.bytes_left.saturating_sub(NUMBER_BYTES));
            self.content.push_str(&line[..by_chars.min(by_bytes)]);
            self.lines = 1;
            self.cut = true;
        }
        false
    }

    fn numbered(&self, first: u64) -> String {
        let mut text = String::with_capacity(self.content.len() + 8 * self.content.len() / 40);
        for (number, line) in (first..).zip(self.content.split_inclusive('\n')) {
            if !text.is_empty() {
                text.push('\n');
            }
            let line = clean::plain(line.strip_suffix('\n').unwrap_or(line));
            text.push_str(&format!("{number:>6}\t{line}"));
        }
        text
    }
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
    let content: String = text(&path, kept)?.chars().take(most).collect();
    let start = asked.start + cut_start;
    let end = start + content.len() as u64;
    let size_bytes = file.stat.size_bytes;
    let output = format!("{}\n[bytes {start}-{end} of {size_bytes}]", clean::plain(&content));
    let truncated = (end < size_bytes || start > 0).then(|| Truncation {
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
        content,
    };
    Ok(ToolOutput { truncated, ..ToolOutput::new(structured, output) })
}
