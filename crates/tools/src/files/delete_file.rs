//! `delete_file`: removes one file.

use async_trait::async_trait;
use domain::{Code, Effect, limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::alias::{Alias, Dialect, renamed};
use crate::port::{FileRemoval, RemoveTarget};
use crate::{
    Annotations, ArgumentProblem, Context, Permissions, Spec, Tool, ToolError, ToolOutput, clean, path,
};

pub(crate) struct DeleteFile;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    /// The file, under /workspace (relative paths start there) or /tmp.
    path: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// What was removed, absolute.
    path: String,
}

#[async_trait]
impl Tool for DeleteFile {
    const SPEC: Spec = Spec {
        name: "delete_file",
        aliases: &[
            Alias::new("DeleteFileTool", Dialect::CoworkForge).success("Successfully deleted the file")
        ],
        arguments: &[renamed("file_path", "path"), renamed("filePath", "path"), renamed("filename", "path")],
        title: "Delete a file",
        description: "Removes one file for good; undo_edit does not bring it back. Of a symbolic link the link itself is removed, not what \
            it points to. Directories are for delete_directory.",
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
        path::check("path", &input.path).into_iter().collect()
    }

    async fn run(&self, cx: &Context, input: Input) -> Result<ToolOutput<Output>, ToolError> {
        let place = path::resolve("delete_file", &input.path)?;
        let path = path::absolute(&place);
        let shown = clean::one_line(&path);
        let is_directory = || {
            let message = format!("delete_file: `{shown}` is a directory; use delete_directory");
            ToolError::new(Code::IsDirectory, message)
        };
        if place.relative.is_empty() {
            return Err(is_directory());
        }
        let removal = FileRemoval { path: place.clone(), target: RemoveTarget::File, expected_sha256: None };
        cx.sandbox.remove(removal).await.map_err(|error| match error.code {
            Code::IsDirectory => is_directory(),
            _ => error,
        })?;
        cx.records.forget_files(&place).await?;
        let output = format!("removed {shown}");
        Ok(ToolOutput::new(Output { path }, output))
    }
}
