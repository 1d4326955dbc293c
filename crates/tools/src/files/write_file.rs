//! `write_file`: creates, replaces or extends a file, wholly or not at all.

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use domain::{Code, Effect, limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::alias::{Alias, Dialect, renamed};
use crate::file_change::{self, Change};
use crate::{
    Annotations, ArgumentProblem, Context, Permissions, Spec, Tool, ToolError, ToolOutput, clean, path,
};

pub(crate) struct WriteFile;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    /// The file, under /workspace (relative paths start there) or /tmp. Missing directories are made.
    path: String,
    /// The text to write, exactly. Give this or content_base64.
    content: Option<String>,
    /// Bytes to write, in base64. Give this or content.
    content_base64: Option<String>,
    /// overwrite replaces or creates, append adds to the end or creates, create_new fails when something is there.
    #[serde(default)]
    mode: Mode,
    /// Fail unless the present content has this SHA-256 (as read_file returned it).
    #[schemars(regex(pattern = r"^[0-9a-fA-F]{64}$"))]
    expected_sha256: Option<String>,
    /// Permission bits in octal, such as "0755". Default: those of the file that is there, else 0644.
    #[schemars(regex(pattern = r"^0?[0-7]{3}$"))]
    permissions: Option<String>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Mode {
    #[default]
    Overwrite,
    Append,
    CreateNew,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// The file, absolute.
    path: String,
    /// Nothing was there before.
    created: bool,
    /// Bytes written by this call.
    bytes: u64,
    /// Lines written by this call.
    lines: u64,
    /// Size of the file now.
    size_bytes: u64,
    /// SHA-256 of the file now.
    sha256: String,
    /// Its permission bits now, in octal.
    permissions: String,
}

#[async_trait]
impl Tool for WriteFile {
    const SPEC: Spec = Spec {
        name: "write_file",
        aliases: &[
            Alias::new("Write", Dialect::OpenCowork),
            Alias::new("create_file", Dialect::OpenManus),
            Alias::new("full_file_rewrite", Dialect::OpenManus),
            Alias::new("WriteFileTool", Dialect::CoworkForge).success("Successfully wrote the file"),
        ],
        arguments: &[
            renamed("file_path", "path"),
            renamed("filePath", "path"),
            renamed("filename", "path"),
            renamed("file_contents", "content"),
            renamed("file_text", "content"),
            renamed("text", "content"),
        ],
        title: "Write a file",
        description: "Writes a file exactly as given (no newline is added, nothing is escaped): replaces it or creates it, with \
            the directories above it; `mode` append adds to the end, create_new never replaces. A file that exists must \
            have been read in this session in its present version, or be named by `expected_sha256`. The write is \
            atomic and can be undone with undo_edit. At most 6 MiB a call. Use content_base64 for bytes that are \
            not text.",
        toolkit: "files",
        version: "1.1.0",
        effect: Effect::Effectful,
        permissions: Permissions { files: true, network: false, exec: false, human: false, provider: false },
        annotations: Annotations {
            read_only: false,
            destructive: true,
            idempotent: false,
            open_world: false,
        },
        default_timeout_ms: 30_000,
        max_timeout_ms: limits::TIMEOUT_MS,
    };
    type Input = Input;
    type Output = Output;

    fn check(&self, input: &Input) -> Vec<ArgumentProblem> {
        let mut problems: Vec<ArgumentProblem> = path::check("path", &input.path).into_iter().collect();
        if input.path.ends_with('/') {
            problems.push(ArgumentProblem::new("/path", "names a directory; give a file in it"));
        }
        match (&input.content, &input.content_base64) {
            (None, None) => {
                problems.push(ArgumentProblem::new("", "give `content` (text) or `content_base64` (bytes)"));
            }
            (Some(_), Some(_)) => {
                problems.push(ArgumentProblem::new("/content_base64", "cannot be combined with `content`"));
            }
            (Some(content), None) => problems.extend(too_large("/content", content.len())),
            (None, Some(base64)) => match STANDARD.decode(base64) {
                Ok(bytes) => problems.extend(too_large("/content_base64", bytes.len())),
                Err(_) => problems.push(ArgumentProblem::new(
                    "/content_base64",
                    "is not base64 (standard alphabet, with padding, without line breaks)",
                )),
            },
        }
        if input.mode == Mode::CreateNew && input.expected_sha256.is_some() {
            problems.push(ArgumentProblem::new(
                "/expected_sha256",
                "has no meaning with `mode: create_new`, which fails when anything is there",
            ));
        }
        problems
    }

    async fn run(&self, cx: &Context, input: Input) -> Result<ToolOutput<Output>, ToolError> {
        let place = path::resolve("write_file", &input.path)?;
        let shown_path = path::absolute(&place);
        if place.relative.is_empty() {
            return Err(ToolError::new(
                Code::IsDirectory,
                format!("write_file: `{shown_path}` is a directory"),
            ));
        }
        let content = content(&input)?;
        let (bytes, lines) = (content.len() as u64, count_lines(&content));
        let present = file_change::look(cx, &place).await?;
        if input.mode == Mode::CreateNew && present.is_there() {
            return Err(ToolError::new(
                Code::AlreadyExists,
                format!("write_file: `{}` is there already", clean::one_line(&shown_path)),
            ));
        }
        present.guard(cx, "write_file", &place, input.expected_sha256.as_deref()).await?;
        let change = Change {
            content,
            appends: input.mode == Mode::Append,
            permissions: input.permissions.as_deref().and_then(|bits| u32::from_str_radix(bits, 8).ok()),
        };
        let written = present.write(cx, "write_file", &place, change).await?;
        let verb = match (written.created, input.mode) {
            (true, _) => "created",
            (false, Mode::Append) => "appended to",
            (false, Mode::Overwrite | Mode::CreateNew) => "replaced",
        };
        let output = format!(
            "{verb} {} ({bytes} bytes, {lines} lines; now {} bytes)",
            clean::one_line(&shown_path),
            written.size_bytes
        );
        let structured = Output {
            path: shown_path,
            created: written.created,
            bytes,
            lines,
            size_bytes: written.size_bytes,
            sha256: written.sha256,
            permissions: format!("{:04o}", written.permissions & 0o7777),
        };
        Ok(ToolOutput::new(structured, output))
    }
}

fn too_large(pointer: &str, bytes: usize) -> Option<ArgumentProblem> {
    (bytes as u64 > limits::FILE_BYTES).then(|| {
        ArgumentProblem::new(
            pointer,
            format!("has {bytes} bytes; at most {} may be written in one call", limits::FILE_BYTES),
        )
    })
}

fn content(input: &Input) -> Result<Bytes, ToolError> {
    match (&input.content, &input.content_base64) {
        (Some(text), _) => Ok(Bytes::copy_from_slice(text.as_bytes())),
        (None, Some(base64)) => STANDARD
            .decode(base64)
            .map(Bytes::from)
            .map_err(|_| ToolError::new(Code::InvalidArguments, "write_file: content_base64 is not base64")),
        (None, None) => Err(ToolError::new(Code::InvalidArguments, "write_file: there is no content")),
    }
}

fn count_lines(content: &[u8]) -> u64 {
    let newlines = content.iter().filter(|byte| **byte == b'\n').count();
    let unfinished = content.last().is_some_and(|last| *last != b'\n');
    (newlines + usize::from(unfinished)) as u64
}
