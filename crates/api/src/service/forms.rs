//! Files of a form, each written wholly or not at all, and each with its own outcome.

use std::collections::HashSet;

use domain::Code;
use domain::file::{FilePath, FileSaved, Replace};
use futures_util::stream;

use super::files::Files;
use crate::multipart::Form;
use crate::problem::Problem;

/// What became of one file.
pub(crate) struct FormFile {
    /// As the form calls it.
    pub(crate) name: String,
    /// Where it is, or why it is not.
    pub(crate) outcome: Result<(FilePath, FileSaved), Problem>,
}

/// Why a form was not read to its end, and what became of the files before.
pub(crate) struct Unread {
    pub(crate) problem: Problem,
    pub(crate) files: Vec<FormFile>,
}

impl Files<'_> {
    /// Writes the files of a form into the directory, in their order.
    pub(crate) async fn write_form(
        &self,
        mut form: Form<'_>,
        replace: Replace,
        permissions: Option<u32>,
    ) -> Result<Vec<FormFile>, Unread> {
        let written = self.write_parts(&mut form, replace, permissions).await;
        if written.is_err() {
            form.read_over().await;
        }
        written
    }

    async fn write_parts(
        &self,
        form: &mut Form<'_>,
        replace: Replace,
        permissions: Option<u32>,
    ) -> Result<Vec<FormFile>, Unread> {
        let mut files: Vec<FormFile> = Vec::new();
        let _permit = match self.transfer() {
            Ok(permit) => permit,
            Err(problem) => return Err(Unread { problem, files }),
        };
        let mut named = HashSet::new();
        loop {
            let name = match form.next().await {
                Ok(Some(name)) => name,
                Ok(None) => return Ok(files),
                Err(problem) => return Err(Unread { problem, files }),
            };
            let outcome = match self.beneath(&name, &mut named) {
                Ok(file) => {
                    self.write_part(form, &file, replace, permissions).await.map(|saved| (file, saved))
                }
                Err(problem) => Err(problem),
            };
            match outcome {
                Err(problem) if form.is_broken() || ends_all(problem.code) => {
                    return Err(Unread { problem, files });
                }
                outcome => files.push(FormFile { name, outcome }),
            }
        }
    }

    async fn write_part(
        &self,
        form: &mut Form<'_>,
        file: &FilePath,
        replace: Replace,
        permissions: Option<u32>,
    ) -> Result<FileSaved, Problem> {
        let pieces = stream::unfold(form, |form| async move {
            let piece = form.read().await.transpose()?;
            Some((piece, form))
        });
        self.write_at(file, replace, permissions, pieces).await
    }

    /// Where a file of the form is to lie: below the directory, and each in a place of its own.
    fn beneath(&self, name: &str, named: &mut HashSet<String>) -> Result<FilePath, Problem> {
        let outside = || Problem::new(Code::PathOutsideWorkspace, "The name leads outside of the directory.");
        if name.starts_with('/') {
            return Err(outside());
        }
        let mut parts = Vec::new();
        for part in name.split('/') {
            match part {
                "" | "." => {}
                ".." => return Err(outside()),
                part => parts.push(part),
            }
        }
        let is_file = !parts.is_empty() && !name.ends_with('/') && !name.ends_with("/.");
        if !is_file || name.contains('\0') {
            return Err(Problem::new(Code::InvalidPath, "The name is not that of a file."));
        }
        let file = super::files::path(&self.file().join(&parts.join("/")).absolute())?;
        if !named.insert(file.path.clone()) {
            let detail = "The form has a file of this name already, which was written.";
            return Err(Problem::new(Code::AlreadyExists, detail));
        }
        Ok(file)
    }
}

/// Whether what befell one file would befall all that follow.
fn ends_all(code: Code) -> bool {
    !matches!(
        code,
        Code::PathOutsideWorkspace
            | Code::InvalidPath
            | Code::PathNotFound
            | Code::AlreadyExists
            | Code::PreconditionFailed
            | Code::PermissionDenied
            | Code::IsDirectory
            | Code::NotDirectory
            | Code::NotRegularFile
            | Code::Conflict
            | Code::StaleRead
    )
}
