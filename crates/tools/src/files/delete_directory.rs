//! `delete_directory`: removes a directory, with what is in it only when that is said twice.

use async_trait::async_trait;
use domain::{Code, Effect, limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::alias::{Alias, Dialect, renamed};
use crate::port::{FileRemoval, RemoveTarget};
use crate::{
    Annotations, ArgumentProblem, Context, Permissions, Spec, Tool, ToolError, ToolOutput, clean, path,
};

pub(crate) struct DeleteDirectory;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    /// The directory, under /workspace (relative paths start there) or /tmp.
    path: String,
    /// Remove what is in it too. Needs confirm.
    #[serde(default)]
    recursive: bool,
    /// The same path once more: needed with recursive when the directory is not empty.
    confirm: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// What was removed, absolute.
    path: String,
    /// Files, links and others that were removed.
    files: u64,
    /// Directories that were removed, this one included.
    directories: u64,
}

#[async_trait]
impl Tool for DeleteDirectory {
    const SPEC: Spec = Spec {
        name: "delete_directory",
        aliases: &[Alias::new("DeleteDirectoryTool", Dialect::CoworkForge)
            .success("Successfully deleted the directory")],
        arguments: &[renamed("directory", "path"), renamed("dir", "path"), renamed("dir_path", "path")],
        title: "Delete a directory",
        description: "Removes a directory for good. One that is not empty needs `recursive: true` and `confirm` with the same path once \
            more. Symbolic links in it are removed, not followed. /workspace and /tmp themselves are never removed.",
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
        default_timeout_ms: 120_000,
        max_timeout_ms: limits::TIMEOUT_MS,
    };
    type Input = Input;
    type Output = Output;

    fn check(&self, input: &Input) -> Vec<ArgumentProblem> {
        let mut problems: Vec<ArgumentProblem> = path::check("path", &input.path).into_iter().collect();
        if let Some(confirm) = &input.confirm
            && problems.is_empty()
            && !is_same(&input.path, confirm)
        {
            problems
                .push(ArgumentProblem::new("/confirm", "is another path than `path`; nothing is removed"));
        }
        problems
    }

    async fn run(&self, cx: &Context, input: Input) -> Result<ToolOutput<Output>, ToolError> {
        let place = path::resolve("delete_directory", &input.path)?;
        let path = path::absolute(&place);
        let shown = clean::one_line(&path);
        if place.relative.is_empty() {
            return Err(ToolError::new(
                Code::PermissionDenied,
                format!("delete_directory: `{shown}` itself is never removed; remove what is in it"),
            ));
        }
        let may_take_all = input.recursive && input.confirm.is_some();
        let target = if may_take_all { RemoveTarget::Tree } else { RemoveTarget::EmptyDirectory };
        let removal = FileRemoval { path: place.clone(), target, expected_sha256: None };
        let removed = cx.sandbox.remove(removal).await.map_err(|error| match error.code {
            Code::NotEmpty => ToolError::new(
                Code::NotEmpty,
                format!(
                    "delete_directory: `{shown}` is not empty; to remove everything in it, set recursive to true and confirm to \"{shown}\""
                ),
            ),
            Code::NotDirectory => {
                ToolError::new(Code::NotDirectory, format!("delete_directory: `{shown}` is no directory; use delete_file"))
            }
            _ => error,
        })?;
        cx.records.forget_files(&place).await?;
        let output =
            format!("removed {shown} ({} files, {} directories)", removed.files, removed.directories);
        Ok(ToolOutput::new(Output { path, files: removed.files, directories: removed.directories }, output))
    }
}

fn is_same(path: &str, confirm: &str) -> bool {
    path == confirm
        || path::resolve("", path)
            .is_ok_and(|path| path::resolve("", confirm).is_ok_and(|confirm| path == confirm))
}
