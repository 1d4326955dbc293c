//! `undo_edit`: takes changes of a file back, the last first.

use async_trait::async_trait;
use bytes::Bytes;
use domain::{Code, Effect, limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::alias::renamed;
use crate::file_change;
use crate::port::{Before, FileRemoval, FileWrite, RemoveTarget, SandboxPath, WriteMode};
use crate::{
    Annotations, ArgumentProblem, Context, Permissions, Spec, Tool, ToolError, ToolOutput, clean, path,
};

pub(crate) struct UndoEdit;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    /// The file, as it was named when it was changed.
    path: String,
    /// How many changes to take back.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = limits::FILE_VERSIONS))]
    steps: u32,
}

fn one() -> u32 {
    1
}

impl Input {
    /// The last change of a file.
    pub(crate) fn last(path: &str) -> Self {
        Self { path: path.to_owned(), steps: 1 }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// The file, absolute.
    pub(crate) path: String,
    /// Changes that were taken back.
    pub(crate) undone: u32,
    /// The file was removed, as the first of them had created it.
    pub(crate) removed: bool,
    /// SHA-256 of the file now; null when it was removed.
    pub(crate) sha256: Option<String>,
    /// Size of the file now; null when it was removed.
    pub(crate) size_bytes: Option<u64>,
}

#[async_trait]
impl Tool for UndoEdit {
    const SPEC: Spec = Spec {
        name: "undo_edit",
        aliases: &[],
        arguments: &[renamed("file_path", "path"), renamed("filePath", "path"), renamed("filename", "path")],
        title: "Undo edits of a file",
        description: "Takes back the last change of a file that write_file, edit_file or str_replace_editor made in this session, or the \
            last `steps` of them, permission bits that it set included. A file that the change had created is removed. Fails with stale_read when something \
            else has changed the file since. Up to 50 versions a file are kept, 64 MiB a session.",
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
        path::check("path", &input.path).into_iter().collect()
    }

    async fn run(&self, cx: &Context, input: Input) -> Result<ToolOutput<Output>, ToolError> {
        let place = path::resolve("undo_edit", &input.path)?;
        let shown = path::absolute(&place);
        let Some(undoable) = cx.records.undoable(&place, input.steps).await? else {
            return Err(nothing(&shown, "no change of it was made in this session, or all were taken back"));
        };
        if undoable.steps < input.steps {
            let what =
                format!("only {} changes of it can be taken back; ask for fewer steps", undoable.steps);
            return Err(nothing(&shown, &what));
        }
        let (after, removed) = match undoable.before {
            Before::NotKept => {
                return Err(nothing(&shown, "what was there before was too large to be kept"));
            }
            Before::Absent => {
                let removal = FileRemoval {
                    path: place.clone(),
                    target: RemoveTarget::File,
                    expected_sha256: Some(undoable.after_sha256),
                };
                cx.sandbox.remove(removal).await.map_err(|error| changed_since(error, &shown))?;
                (None, true)
            }
            Before::Content { bytes, permissions, .. } => {
                let written = restore(cx, &place, bytes, permissions, undoable.after_sha256).await;
                (Some(written.map_err(|error| changed_since(error, &shown))?), false)
            }
        };
        let known = after.as_ref().map(file_change::known);
        cx.records.undone(&place, undoable.steps, known).await?;
        let what = match undoable.steps {
            1 => "the last change".to_owned(),
            steps => format!("the last {steps} changes"),
        };
        let now = after.as_ref().map_or("the file is removed".to_owned(), |after| {
            format!("the file has {} bytes", after.size_bytes)
        });
        let output = format!("took back {what} of {}; {now}", clean::one_line(&shown));
        let structured = Output {
            path: shown,
            undone: undoable.steps,
            removed,
            sha256: after.as_ref().map(|after| after.sha256.clone()),
            size_bytes: after.map(|after| after.size_bytes),
        };
        Ok(ToolOutput::new(structured, output))
    }
}

async fn restore(
    cx: &Context,
    place: &SandboxPath,
    content: Bytes,
    permissions: Option<u32>,
    expected: String,
) -> Result<crate::port::FileWritten, ToolError> {
    cx.sandbox
        .write(FileWrite {
            path: place.clone(),
            content,
            mode: WriteMode::Overwrite,
            permissions,
            expected_sha256: Some(expected),
        })
        .await
}

fn nothing(shown: &str, why: &str) -> ToolError {
    let shown = clean::one_line(shown);
    ToolError::new(Code::NothingToUndo, format!("undo_edit: nothing of `{shown}` was taken back: {why}"))
}

fn changed_since(error: ToolError, shown: &str) -> ToolError {
    if !matches!(error.code, Code::StaleRead | Code::PathNotFound) {
        return error;
    }
    let shown = clean::one_line(shown);
    ToolError::new(
        Code::StaleRead,
        format!("undo_edit: `{shown}` is not what the last edit left; something else has changed it since"),
    )
    .hint("Read it and edit it, or write it anew.")
}
