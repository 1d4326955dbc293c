//! Files of a session on the wire.

use domain::file::{self, FilePath};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::service::forms::FormFile;

/// What is at a path.
#[derive(Debug, Clone, Copy, ToSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A pipe, socket or device.
    Other,
}

/// A file that was written.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct WrittenFile {
    /// Always `file`.
    #[schema(pattern = "^file$")]
    pub object: &'static str,
    /// The file, absolute.
    #[schema(examples("/workspace/data/input.csv"))]
    pub path: String,
    /// Nothing was there before.
    pub created: bool,
    /// Its size now.
    pub size_bytes: u64,
    /// SHA-256 of its content, in hexadecimal.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    pub sha256: String,
    /// Permission bits in octal.
    #[schema(examples("0644"))]
    pub permissions: String,
    /// Its version, for `If-Match`.
    #[schema(examples("\"1a-18a3f0c5d2b4e600-5\""))]
    pub etag: String,
}

/// What a removal took away.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct RemovedFiles {
    /// Always `removed_files`.
    #[schema(pattern = "^removed_files$")]
    pub object: &'static str,
    /// What was named, absolute.
    pub path: String,
    /// Entries that were no directories.
    pub files: u64,
    /// Directories.
    pub directories: u64,
}

/// A directory's entries, by path.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct FileListing {
    /// Always `file_list`.
    #[schema(pattern = "^file_list$")]
    pub object: &'static str,
    /// The directory, absolute.
    pub path: String,
    /// Its entries.
    pub data: Vec<FileEntry>,
    /// Entries found in all.
    pub total: u64,
    /// There are more than are shown.
    pub has_more: bool,
}

/// One entry.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct FileEntry {
    /// Beneath the listed directory. Bytes that are not UTF-8 are replaced.
    pub path: String,
    /// What it is.
    #[schema(value_type = FileKind)]
    pub kind: file::FileKind,
    /// Bytes; 0 for what is no regular file.
    pub size_bytes: u64,
}

/// What became of an archive.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct UnpackedArchive {
    /// Always `unpacked_archive`.
    #[schema(pattern = "^unpacked_archive$")]
    pub object: &'static str,
    /// The directory, absolute.
    pub path: String,
    /// Files written.
    pub files: u64,
    /// Empty directories made.
    pub directories: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Links, pipes and devices, which are left out: the first 100.
    pub skipped: Vec<String>,
    /// How many were left out.
    pub skipped_total: u64,
}

impl UnpackedArchive {
    /// What was taken out, and into which directory.
    pub(crate) fn new(directory: &FilePath, unpacked: file::Unpacked) -> Self {
        Self {
            object: "unpacked_archive",
            path: directory.absolute(),
            files: unpacked.files,
            directories: unpacked.directories,
            bytes: unpacked.bytes,
            skipped: unpacked.skipped,
            skipped_total: unpacked.skipped_total,
        }
    }
}

/// What became of the files of a form.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct UploadedFiles {
    /// Always `uploaded_files`.
    #[schema(pattern = "^uploaded_files$")]
    pub object: &'static str,
    /// The directory, absolute.
    pub path: String,
    /// Each file, in the form's order.
    pub data: Vec<UploadedItem>,
    /// How many were written.
    pub written: usize,
    /// How many were not.
    pub failed: usize,
}

/// What became of one file of a form: one of `file` and `error`.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct UploadedItem {
    /// As the form calls it.
    pub name: String,
    /// It was written.
    pub file: Option<WrittenFile>,
    /// Why it was not, in the members of a problem.
    #[schema(value_type = Option<super::problems::ProblemView>)]
    pub error: Option<serde_json::Map<String, serde_json::Value>>,
}

impl UploadedFiles {
    /// What became of each, and below which directory.
    pub(crate) fn new(directory: &FilePath, files: Vec<FormFile>) -> Self {
        let data: Vec<_> = files.into_iter().map(UploadedItem::new).collect();
        let written = data.iter().filter(|item| item.file.is_some()).count();
        let failed = data.len() - written;
        Self { object: "uploaded_files", path: directory.absolute(), data, written, failed }
    }
}

impl UploadedItem {
    /// What became of one.
    pub(crate) fn new(FormFile { name, outcome }: FormFile) -> Self {
        match outcome {
            Ok((file, saved)) => Self { name, file: Some(WrittenFile::new(&file, saved)), error: None },
            Err(problem) => Self { name, file: None, error: Some(problem.members()) },
        }
    }
}

/// Something to move.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveFile {
    /// What is there, under `/workspace` (relative paths start there) or `/tmp`; of a symbolic link the link itself.
    pub path: String,
    /// Where it is to be, under the same of both. Missing directories are made.
    pub to: String,
    /// What is at `to` already goes: a file for a file, an empty directory for a directory. Otherwise that is 409 `already_exists`.
    #[serde(default)]
    pub replace: bool,
}

/// Something that was moved.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct MovedFile {
    /// Always `moved_file`.
    #[schema(pattern = "^moved_file$")]
    pub object: &'static str,
    /// Where it was, absolute.
    pub from: String,
    /// Where it is, absolute.
    pub path: String,
}

/// A directory to make.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MakeDirectory {
    /// Under `/workspace` (relative paths start there) or `/tmp`; those above it are made too.
    pub path: String,
}

/// A directory that is there now.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct MadeDirectory {
    /// Always `directory`.
    #[schema(pattern = "^directory$")]
    pub object: &'static str,
    /// The directory, absolute.
    pub path: String,
    /// It was not there before.
    pub created: bool,
}

/// Permission bits as they are written.
pub(crate) fn octal(permissions: u32) -> String {
    format!("{permissions:04o}")
}

/// A version as an `ETag`, quotes included.
pub(crate) fn etag(version: file::FileVersion) -> String {
    format!("\"{:x}-{:x}-{:x}\"", version.inode, version.changed_ns, version.size_bytes)
}

/// The version that an `ETag` of ours says.
pub(crate) fn version_of(etag: &str) -> Option<file::FileVersion> {
    let mut parts = etag.strip_prefix('"')?.strip_suffix('"')?.split('-');
    let version = file::FileVersion {
        inode: u64::from_str_radix(parts.next()?, 16).ok()?,
        changed_ns: i64::from_str_radix(parts.next()?, 16).ok()?,
        size_bytes: u64::from_str_radix(parts.next()?, 16).ok()?,
    };
    parts.next().is_none().then_some(version)
}

impl WrittenFile {
    /// What was written, and where.
    pub(crate) fn new(file: &FilePath, saved: file::FileSaved) -> Self {
        Self {
            object: "file",
            path: file.absolute(),
            created: saved.created,
            size_bytes: saved.version.size_bytes,
            sha256: saved.sha256,
            permissions: octal(saved.permissions),
            etag: etag(saved.version),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_etag_is_read_back() {
        let version = file::FileVersion { inode: 12, changed_ns: 1_790_000_000_123_456_789, size_bytes: 7 };
        assert_eq!(version_of(&etag(version)), Some(version));
        for other in ["", "*", "\"\"", "\"x-1-1\"", "W/\"1-1-1\"", "\"1-1-1\", \"2-2-2\"", "\"1-1-1-1\""] {
            assert_eq!(version_of(other), None, "{other}");
        }
    }
}
