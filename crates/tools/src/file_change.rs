//! Changing a file: what every tool does that writes one. Read, check that the session knows this version, plan, write, remember.
//!
//! # Design notes
//!
//! *Two guards.* That the session has seen the present version is asked of the records; that nobody writes between that
//! look and the write is the agent's own check of the content's SHA-256 (or, for a new file, that nothing is there).
//! *Run again.* A call that another worker runs again finds its plan, starts from the content that it started from, and
//! so asks for the same write, which the agent's journal answers if it has happened.

use bytes::Bytes;
use domain::{Code, limits};

use crate::diff::{self, Shown};
use crate::port::{Before, FileStat, FileWrite, FileWritten, KnownFile, SandboxPath, WriteMode};
use crate::{Context, ToolError, clean, file_text, path};

/// What a file is before it is changed.
#[derive(Debug, Clone)]
pub(crate) struct Present {
    /// Its content, and the SHA-256 of it; `None` when nothing is there or it is too large to be read.
    pub(crate) content: Option<(Bytes, String)>,
    /// Its facts, if it is there and was looked at now.
    stat: Option<FileStat>,
    before: Before,
    /// A run before this one planned the change, so that what follows may have happened already.
    is_planned: bool,
}

/// What to write.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    /// The content, or what to add.
    pub(crate) content: Bytes,
    /// To the end of what is there.
    pub(crate) appends: bool,
    /// Permission bits; `None` keeps what is there.
    pub(crate) permissions: Option<u32>,
}

/// Looks at a file that is to be changed.
pub(crate) async fn look(cx: &Context, place: &SandboxPath) -> Result<Present, ToolError> {
    if let Some(before) = cx.records.planned_change(place).await? {
        let content = match &before {
            Before::Content { bytes, sha256, .. } => Some((bytes.clone(), sha256.clone())),
            Before::Absent | Before::NotKept => None,
        };
        return Ok(Present { content, stat: None, before, is_planned: true });
    }
    let file = match cx.sandbox.read(place, 0, limits::FILE_BYTES).await {
        Ok(file) => file,
        Err(error) if error.code == Code::PathNotFound => {
            return Ok(Present { content: None, stat: None, before: Before::Absent, is_planned: false });
        }
        Err(error) => return Err(error),
    };
    let content = file.sha256.map(|sha256| (file.bytes, sha256));
    let before = match &content {
        Some((bytes, sha256)) => {
            Before::Content { bytes: bytes.clone(), sha256: sha256.clone(), permissions: None }
        }
        None => Before::NotKept,
    };
    Ok(Present { content, stat: Some(file.stat), before, is_planned: false })
}

impl Present {
    /// Whether anything is there.
    pub(crate) fn is_there(&self) -> bool {
        self.before != Before::Absent
    }

    /// The content, which has to be there.
    ///
    /// # Errors
    /// `path_not_found` and `file_too_large`.
    pub(crate) fn content(&self, tool: &str, place: &SandboxPath) -> Result<&Bytes, ToolError> {
        let shown = clean::one_line(&path::absolute(place));
        match (&self.content, &self.before) {
            (Some((bytes, _)), _) => Ok(bytes),
            (None, Before::Absent) => Err(ToolError::new(
                Code::PathNotFound,
                format!("{tool}: there is no file `{shown}`; write_file creates one"),
            )),
            (None, _) => Err(ToolError::new(
                Code::FileTooLarge,
                format!("{tool}: `{shown}` is larger than {} bytes", limits::FILE_BYTES),
            )
            .hint("Use bash with sed or python3.")),
        }
    }

    /// Refuses to change a version of the file that the session has not seen.
    pub(crate) async fn guard(
        &self,
        cx: &Context,
        tool: &str,
        place: &SandboxPath,
        expected_sha256: Option<&str>,
    ) -> Result<(), ToolError> {
        if self.is_planned {
            return Ok(());
        }
        let shown = clean::one_line(&path::absolute(place));
        if let Some(expected) = expected_sha256 {
            if self.content.as_ref().is_some_and(|(_, sha256)| sha256.eq_ignore_ascii_case(expected)) {
                return Ok(());
            }
            let what = if self.is_there() {
                "has another content than expected_sha256 says; read it again"
            } else {
                "does not exist; leave out expected_sha256 to create it"
            };
            return Err(ToolError::new(Code::StaleRead, format!("{tool}: `{shown}` {what}")));
        }
        let Some(stat) = &self.stat else { return Ok(()) };
        let Some(known) = cx.records.known_file(place).await? else {
            return Err(ToolError::new(
                Code::NotRead,
                format!("{tool}: `{shown}` exists and has not been read in this session; read it with read_file first"),
            )
            .hint("Or give expected_sha256, the SHA-256 of the content that you mean to replace."));
        };
        let is_current = match (&known.sha256, &self.content) {
            (Some(known), Some((_, present))) => known == present,
            // Too large to be read whole: size and time stand for the content.
            _ => {
                known.size_bytes == stat.size_bytes
                    && known.modified_ms.is_none_or(|modified_ms| modified_ms == stat.modified_ms)
            }
        };
        if is_current {
            return Ok(());
        }
        Err(ToolError::new(
            Code::StaleRead,
            format!("{tool}: `{shown}` has changed since it was read in this session; read it again"),
        ))
    }

    /// Writes, and remembers what was there before and what is there now.
    pub(crate) async fn write(
        &self,
        cx: &Context,
        tool: &str,
        place: &SandboxPath,
        change: Change,
    ) -> Result<FileWritten, ToolError> {
        let mut before = self.before.clone();
        if let (Before::Content { permissions, .. }, Some(_), Some(stat)) =
            (&mut before, change.permissions, &self.stat)
        {
            *permissions = Some(stat.permissions);
        }
        cx.records.plan_change(place, before).await?;
        let mode = match self.before {
            Before::Absent => WriteMode::CreateNew,
            Before::Content { .. } | Before::NotKept if change.appends => WriteMode::Append,
            Before::Content { .. } | Before::NotKept => WriteMode::Overwrite,
        };
        let written = cx
            .sandbox
            .write(FileWrite {
                path: place.clone(),
                content: change.content,
                mode,
                permissions: change.permissions,
                expected_sha256: self.content.as_ref().map(|(_, sha256)| sha256.clone()),
            })
            .await;
        match written {
            Ok(written) => {
                cx.records.change_made(place, known(&written)).await?;
                Ok(written)
            }
            Err(error) => {
                if error.fate == crate::Fate::Failed {
                    cx.records.change_dropped(place).await?;
                }
                Err(raced(error, tool, place, mode))
            }
        }
    }
}

/// A text that was edited, or would be.
pub(crate) struct Edited {
    pub(crate) shown: Shown,
    /// Places that were replaced.
    pub(crate) replaced: u64,
    /// `None` when nothing was to be written.
    pub(crate) written: Option<FileWritten>,
}

/// Whether an edit is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Make {
    /// Yes.
    Now,
    /// Only shown.
    Dry,
}

/// Edits a text file by a pure function of its text, which returns the new text and the places that it replaced.
pub(crate) async fn edit_text(
    cx: &Context,
    tool: &str,
    place: &SandboxPath,
    expected_sha256: Option<&str>,
    make: Make,
    edit: impl FnOnce(&str) -> Result<(String, u64), ToolError>,
) -> Result<Edited, ToolError> {
    let present = look(cx, place).await?;
    let content = present.content(tool, place)?.clone();
    if make == Make::Now {
        present.guard(cx, tool, place, expected_sha256).await?;
    }
    let shown_path = path::absolute(place);
    let text = file_text::text(tool, &shown_path, &content)?;
    let (after, replaced) = edit(text)?;
    if after.len() as u64 > limits::FILE_BYTES {
        let most = limits::FILE_BYTES;
        return Err(ToolError::new(
            Code::FileTooLarge,
            format!("{tool}: the file would have {} bytes; at most {most} can be written", after.len()),
        ));
    }
    let shown = diff::show(&shown_path, text, &after);
    let written = match make {
        Make::Dry => None,
        Make::Now => {
            let change = Change { content: Bytes::from(after), appends: false, permissions: None };
            Some(present.write(cx, tool, place, change).await?)
        }
    };
    Ok(Edited { shown, replaced, written })
}

/// The version that a write left.
pub(crate) fn known(written: &FileWritten) -> KnownFile {
    KnownFile { sha256: Some(written.sha256.clone()), size_bytes: written.size_bytes, modified_ms: None }
}

/// Somebody wrote between the look and the write: said as such.
fn raced(error: ToolError, tool: &str, place: &SandboxPath, mode: WriteMode) -> ToolError {
    let is_race = match mode {
        WriteMode::CreateNew => error.code == Code::AlreadyExists,
        WriteMode::Overwrite | WriteMode::Append => error.code == Code::StaleRead,
    };
    if !is_race {
        return error;
    }
    let shown = clean::one_line(&path::absolute(place));
    ToolError::new(
        Code::StaleRead,
        format!("{tool}: `{shown}` is being changed by something else; read it again"),
    )
}
