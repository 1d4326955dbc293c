//! What code has shown, as a result carries it: small pieces as they are, large ones as artifacts, gathered from the files in which the
//! interpreter left them.
//!
//! # Design notes
//!
//! The interpreter is the session's own and could have left anything: it can name files of one folder only, which is the call's, and they are
//! read as the sandbox's user may read them. Nothing is ever shown in part: what is neither small enough nor could be kept is text
//! that says so. A call does not fail because a piece could not be kept. The files are removed once they are kept: a worker that dies between that and the
//! result leaves the next one none, which then says so.

use std::collections::BTreeMap;

use domain::{ArtifactKind, ContentBlock};

use crate::code_report::{Part, Report};
use crate::port::{ArtifactDraft, ArtifactSource, FileRemoval, RemoveTarget, SandboxPath};
use crate::{Context, Fate, ToolError};

/// Where the interpreter of a call puts what is too large for its report.
pub(crate) fn folder(cx: &Context) -> String {
    let SandboxPath { root, relative } = place(cx);
    format!("{root}/{relative}")
}

fn place(cx: &Context) -> SandboxPath {
    SandboxPath { root: "/tmp", relative: format!(".toolhost-shown-{}", cx.call_id) }
}

/// The pieces of a report, and text for a model about them.
///
/// # Errors
/// None but that this worker may not act any more.
pub(crate) async fn of(
    cx: &Context,
    tool: &str,
    report: Report,
) -> Result<(Vec<ContentBlock>, String), ToolError> {
    let (parts, missing) = report.into_parts();
    let (mut blocks, mut lines, mut files) = (Vec::new(), Vec::new(), 0);
    for part in parts {
        let block = match part {
            Part::Block(block) => block,
            Part::InFile { mime_type, name } => {
                files += 1;
                gathered(cx, tool, files, mime_type, &name).await?
            }
        };
        lines.extend(line(&block));
        blocks.push(block);
    }
    if files > 0 {
        let folder = FileRemoval { path: place(cx), target: RemoveTarget::Tree, expected_sha256: None };
        let _ = unless_abandoned(cx.sandbox.remove(folder).await)?;
    }
    if missing > 0 {
        lines.push(format!("[{missing} more could not be shown: too many, too large, or not valid]"));
    }
    Ok((blocks, lines.join("\n")))
}

fn unless_abandoned<T>(result: Result<T, ToolError>) -> Result<Result<T, ToolError>, ToolError> {
    match result {
        Err(error) if error.fate == Fate::Abandoned => Err(error),
        other => Ok(other),
    }
}

/// A large piece, kept.
async fn gathered(
    cx: &Context,
    tool: &str,
    number: usize,
    mime_type: String,
    name: &str,
) -> Result<ContentBlock, ToolError> {
    let SandboxPath { root, relative } = place(cx);
    let is_picture = mime_type.starts_with("image/");
    let draft = ArtifactDraft {
        name: format!("{}-shown-{number}.{}", cx.call_id, suffix(&mime_type)),
        kind: if is_picture { ArtifactKind::Image } else { ArtifactKind::Output },
        mime_type: match mime_type.as_str() {
            text if text.starts_with("text/") => format!("{text}; charset=utf-8"),
            other => other.to_owned(),
        },
        metadata: BTreeMap::from([("tool".to_owned(), tool.to_owned())]),
        content: ArtifactSource::File(SandboxPath { root, relative: format!("{relative}/{name}") }),
    };
    let text = |text, artifact_id| ContentBlock::Text { mime_type: None, text, artifact_id };
    Ok(match unless_abandoned(cx.artifacts.save(draft).await)? {
        Ok(artifact) if is_picture => {
            ContentBlock::Image { mime_type, data: None, artifact_id: Some(artifact.id) }
        }
        Ok(artifact) => {
            let (bytes, id) = (artifact.size_bytes, artifact.id);
            text(format!("[{mime_type} of {bytes} bytes: kept whole as the artifact {id}]"), Some(id))
        }
        Err(error) => {
            let why = error.message.trim_end_matches('.');
            text(format!("[{mime_type} was too large to be shown and could not be kept: {why}]"), None)
        }
    })
}

fn suffix(mime_type: &str) -> &'static str {
    match mime_type {
        "image/png" => "png",
        "image/jpeg" => "jpg",
        "image/gif" => "gif",
        "image/webp" => "webp",
        "image/svg+xml" => "svg",
        "text/html" => "html",
        "text/markdown" => "md",
        "text/latex" => "tex",
        "text/plain" => "txt",
        _ => "json",
    }
}

fn line(block: &ContentBlock) -> Option<String> {
    match block {
        ContentBlock::Text { mime_type: None, text, .. } => Some(text.clone()),
        ContentBlock::Text { mime_type: Some(mime_type), .. } => Some(format!("[shown as {mime_type}]")),
        ContentBlock::Image { mime_type, data: None, artifact_id: Some(id) } => {
            Some(format!("[a picture is kept as the artifact {id}: {mime_type}]"))
        }
        ContentBlock::Image { mime_type, .. } => Some(format!("[a picture is shown: {mime_type}]")),
        ContentBlock::Json { .. } => None,
    }
}
