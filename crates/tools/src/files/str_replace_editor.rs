//! `str_replace_editor`: the file tools behind one name, for models that were trained on it.

use async_trait::async_trait;
use bytes::Bytes;
use domain::{Code, Effect, limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::list_files::{self, ListFiles};
use super::read_file::{self, ReadFile};
use super::undo_edit::{self, UndoEdit};
use crate::alias::{Alias, Dialect, renamed};
use crate::edit::{self, Edit};
use crate::file_change::{self, Change, Edited, Make};
use crate::{
    Annotations, ArgumentProblem, Context, Permissions, Spec, Tool, ToolError, ToolOutput, clean, path,
};

pub(crate) struct StrReplaceEditor;

const NAME: &str = "str_replace_editor";
/// Levels of a directory that are viewed.
const DEPTH: u32 = 2;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    /// What to do.
    command: Command,
    /// The file or, to view it, the directory: under /workspace (relative paths start there) or /tmp.
    path: String,
    /// For create: the content.
    file_text: Option<String>,
    /// For str_replace: the text to replace, exactly as it is in the file, there once.
    old_str: Option<String>,
    /// For str_replace: what to put in its place (nothing when left out). For insert: the lines to insert.
    new_str: Option<String>,
    /// For insert: the line after which to insert, 0 for the start.
    insert_line: Option<u64>,
    /// For view of a file: first and last line, counted from 1; -1 for the end.
    #[schemars(length(min = 2, max = 2))]
    view_range: Option<Vec<i64>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Command {
    View,
    Create,
    StrReplace,
    Insert,
    UndoEdit,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// What was done.
    command: Command,
    /// The file or directory, absolute.
    path: String,
    /// For view of a file: its lines, without numbers.
    content: Option<String>,
    /// For str_replace and insert: the change as a unified diff.
    diff: Option<String>,
    /// For str_replace and insert: the new lines with their numbers, and four lines around.
    snippet: Option<String>,
    /// SHA-256 of the file now; null for directories and files that were removed or not read to their end.
    sha256: Option<String>,
}

#[async_trait]
impl Tool for StrReplaceEditor {
    const SPEC: Spec = Spec {
        name: NAME,
        aliases: &[
            Alias::new("StrReplaceEditor", Dialect::OpenManus),
            Alias::new("textEditor", Dialect::Mycoder),
        ],
        arguments: &[renamed("file_path", "path"), renamed("filePath", "path")],
        title: "View and edit files",
        description: "Views and edits files by `command`: view (a file with line numbers, or part of it by `view_range`; a directory two \
            levels deep), create (a new file with `file_text`; fails when it exists), str_replace (`old_str`, which must be \
            in the file exactly once, by `new_str`), insert (`new_str` after line `insert_line`), undo_edit (takes back \
            the last change). A file must have been viewed or read in this session in its present version before it is \
            edited.",
        toolkit: "files",
        version: "1.0.0",
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
        let mut needs = |name: &str, is_given: bool| {
            if !is_given {
                problems.push(ArgumentProblem::new(format!("/{name}"), format!("`{name}` is missing")));
            }
        };
        match input.command {
            Command::View | Command::UndoEdit => {}
            Command::Create => needs("file_text", input.file_text.is_some()),
            Command::StrReplace => needs("old_str", input.old_str.is_some()),
            Command::Insert => {
                needs("insert_line", input.insert_line.is_some());
                needs("new_str", input.new_str.as_ref().is_some_and(|new| !new.is_empty()));
            }
        }
        if input.command == Command::StrReplace && input.old_str.as_deref() == Some("") {
            problems.push(ArgumentProblem::new("/old_str", "must not be empty; use insert to add lines"));
        }
        if input.command == Command::StrReplace && input.old_str.is_some() && input.old_str == input.new_str {
            problems.push(ArgumentProblem::new("/new_str", "is the same as `old_str`; nothing would change"));
        }
        if let Some([first, last]) = input.view_range.as_deref()
            && (*first < 1 || (*last != -1 && last < first))
        {
            problems.push(ArgumentProblem::new(
                "/view_range",
                "must be a first line from 1 and a last line that is not before it, or -1 for the end",
            ));
        }
        if input.command == Command::Create
            && let Some(text) = &input.file_text
            && text.len() as u64 > limits::FILE_BYTES
        {
            let message = format!("has {} bytes; at most {} can be written", text.len(), limits::FILE_BYTES);
            problems.push(ArgumentProblem::new("/file_text", message));
        }
        problems
    }

    async fn run(&self, cx: &Context, input: Input) -> Result<ToolOutput<Output>, ToolError> {
        let place = path::resolve(NAME, &input.path)?;
        let path = path::absolute(&place);
        let done = Output {
            command: input.command,
            path: path.clone(),
            content: None,
            diff: None,
            snippet: None,
            sha256: None,
        };
        match input.command {
            Command::View => view(cx, &input, done).await,
            Command::Create => create(cx, &place, input.file_text.unwrap_or_default(), done).await,
            Command::UndoEdit => {
                let undone = UndoEdit.run(cx, undo_edit::Input::last(&path)).await?;
                Ok(undone.map(|undone| Output { sha256: undone.sha256, ..done }))
            }
            Command::StrReplace => {
                let (old, new) = (input.old_str.unwrap_or_default(), input.new_str.unwrap_or_default());
                let edits = [Edit { old, new, all: false }];
                let edited = file_change::edit_text(cx, NAME, &place, None, Make::Now, |text| {
                    edit::apply(NAME, text, &edits).map_err(in_own_words)
                })
                .await?;
                Ok(edited_output(done, edited))
            }
            Command::Insert => {
                let (line, new) = (input.insert_line.unwrap_or(0), input.new_str.unwrap_or_default());
                let edited = file_change::edit_text(cx, NAME, &place, None, Make::Now, |text| {
                    edit::insert(text, line, &new).map(|text| (text, 1)).map_err(|lines| {
                        let message = format!(
                            "{NAME}: insert_line {line} is beyond the end; the file has {lines} lines"
                        );
                        ToolError::new(Code::InvalidArguments, message)
                    })
                })
                .await?;
                Ok(edited_output(done, edited))
            }
        }
    }
}

/// The arguments have other names here than in `edit_file`.
fn in_own_words(mut error: ToolError) -> ToolError {
    error.message = error
        .message
        .replacen("old_string", "old_str", 1)
        .replace("; add context or set replace_all", "; give more of the lines around it");
    error
}

fn edited_output(done: Output, edited: Edited) -> ToolOutput<Output> {
    let text = format!(
        "{} has been edited. The lines around the change are now:\n{}",
        clean::one_line(&done.path),
        edited.shown.snippet
    );
    let sha256 = edited.written.map(|written| written.sha256);
    let (diff, snippet) = (Some(edited.shown.diff), Some(edited.shown.snippet));
    ToolOutput::new(Output { diff, snippet, sha256, ..done }, text)
}

async fn view(cx: &Context, input: &Input, done: Output) -> Result<ToolOutput<Output>, ToolError> {
    let (offset, limit) = match input.view_range.as_deref() {
        Some(&[first, last]) => {
            let first = u64::try_from(first).unwrap_or(1);
            (Some(first), u64::try_from(last).ok().map(|last| last.saturating_sub(first) + 1))
        }
        _ => (None, None),
    };
    match ReadFile.run(cx, read_file::Input::lines(&done.path, offset, limit)).await {
        Ok(read) => Ok(read.map(|read| Output { content: Some(read.content), sha256: read.sha256, ..done })),
        Err(error) if error.code == Code::IsDirectory => {
            if input.view_range.is_some() {
                let message = format!("{NAME}: view_range is for files; this is a directory");
                return Err(ToolError::new(Code::IsDirectory, message));
            }
            Ok(ListFiles.run(cx, list_files::Input::tree(&done.path, DEPTH)).await?.map(|_| done))
        }
        Err(error) => Err(error),
    }
}

async fn create(
    cx: &Context,
    place: &crate::port::SandboxPath,
    text: String,
    done: Output,
) -> Result<ToolOutput<Output>, ToolError> {
    let shown = clean::one_line(&done.path);
    if place.relative.is_empty() {
        return Err(ToolError::new(Code::IsDirectory, format!("{NAME}: `{shown}` is a directory")));
    }
    let present = file_change::look(cx, place).await?;
    if present.is_there() {
        return Err(ToolError::new(
            Code::AlreadyExists,
            format!(
                "{NAME}: `{shown}` exists; edit it with str_replace or insert, or replace it with write_file"
            ),
        ));
    }
    let change = Change { content: Bytes::from(text), appends: false, permissions: None };
    let written = present.write(cx, NAME, place, change).await?;
    let output = format!("created {shown} ({} bytes)", written.size_bytes);
    Ok(ToolOutput::new(Output { sha256: Some(written.sha256), ..done }, output))
}
