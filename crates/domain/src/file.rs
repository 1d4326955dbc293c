//! Files of a session as API processes and workers speak of them: paths, versions, what became of a wish.

use serde::{Deserialize, Serialize};

/// A path in a session, as far as text can be checked: the sandbox is the boundary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilePath {
    /// `/workspace` or `/tmp`.
    pub root: String,
    /// Beneath the root, without `.` and `..`; empty for the root itself.
    pub path: String,
}

impl FilePath {
    /// The path as the sandbox writes it.
    #[must_use]
    pub fn absolute(&self) -> String {
        if self.path.is_empty() { self.root.clone() } else { format!("{}/{}", self.root, self.path) }
    }

    /// What lies at `name` beneath this; the same when it is empty.
    #[must_use]
    pub fn join(&self, name: &str) -> Self {
        let path = match (self.path.as_str(), name) {
            ("", name) => name.to_owned(),
            (path, "") => path.to_owned(),
            (path, name) => format!("{path}/{name}"),
        };
        Self { root: self.root.clone(), path }
    }

    /// The last part of it; that of the root when it is the root itself.
    #[must_use]
    pub fn name(&self) -> &str {
        let path = if self.path.is_empty() { &self.root } else { &self.path };
        path.rsplit('/').next().unwrap_or(path)
    }
}

/// What is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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

impl FileKind {
    /// The kind on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Symlink => "symlink",
            Self::Other => "other",
        }
    }
}

/// What tells one version of a file from another without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileVersion {
    /// Which file of its filesystem.
    pub inode: u64,
    /// Last change of content or attributes by the kernel's clock, nanoseconds since 1970. No program in the sandbox can set it; changes within one tick of
    /// that clock (some milliseconds) share it.
    pub changed_ns: i64,
    /// Bytes.
    pub size_bytes: u64,
}

/// Facts of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// What it is, links within the root followed.
    pub kind: FileKind,
    /// Its version.
    pub version: FileVersion,
    /// Last change of content, milliseconds since 1970.
    pub modified_ms: i64,
    /// Permission bits.
    pub permissions: u32,
}

/// What a write may find at its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Replace {
    /// A regular file, or nothing.
    Anything,
    /// Nothing.
    Nothing,
    /// A file of this version.
    Version(FileVersion),
}

/// How much will be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileLength {
    /// Exactly so many bytes.
    Bytes(u64),
    /// Not known; so many at most.
    AtMost(u64),
}

/// A file that was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSaved {
    /// Nothing was there before.
    pub created: bool,
    /// SHA-256 of its content, in hex.
    pub sha256: String,
    /// Permission bits now.
    pub permissions: u32,
    /// Its version now, with its size.
    pub version: FileVersion,
}

/// What a removal took away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesRemoved {
    /// Entries that were no directories.
    pub files: u64,
    /// Directories.
    pub directories: u64,
}

/// One entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Beneath the listed directory.
    pub path: String,
    /// What it is.
    pub kind: FileKind,
    /// Bytes (files only).
    pub size_bytes: u64,
}

/// The end of a listing, behind its entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesListed {
    /// Entries found in all.
    pub total: u64,
    /// There are more than were sent.
    pub truncated: bool,
}

/// What became of an archive.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unpacked {
    /// Entries looked at.
    pub entries: u32,
    /// Files written.
    pub files: u64,
    /// Directories made because the archive names them and nothing is in them.
    pub directories: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Entries left out: links, pipes and devices. The first of them.
    pub skipped: Vec<String>,
    /// How many were left out.
    pub skipped_total: u64,
}

/// A directory that is there now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryMade {
    /// It was not there before.
    pub created: bool,
}

/// What happened to an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// It is there now.
    Created,
    /// Its content or attributes are others.
    Modified,
    /// It is there no more.
    Deleted,
    /// It has another path.
    Moved,
    /// Nobody knows: changes were lost.
    Overflow,
}

/// One change of a watched directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    /// What happened.
    pub change: Change,
    /// Beneath the watched directory.
    pub path: String,
    /// The path before, of a move.
    #[serde(default)]
    pub from: Option<String>,
    /// What it is, where it could still be looked at.
    #[serde(default)]
    pub kind: Option<FileKind>,
    /// Bytes of a file that is still there.
    #[serde(default)]
    pub size_bytes: Option<u64>,
}

impl FileChange {
    /// Changes were lost.
    #[must_use]
    pub const fn overflow() -> Self {
        Self { change: Change::Overflow, path: String::new(), from: None, kind: None, size_bytes: None }
    }
}

/// Why a directory is watched no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchEnd {
    /// The path does not lead to it any more.
    DirectoryGone,
    /// There is more in it than can be watched.
    LimitExceeded,
}

/// The end of a watch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchEnded {
    /// Which kind.
    pub reason: WatchEnd,
    /// A sentence for people and models.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_joined_and_named() {
        let root = FilePath { root: "/workspace".to_owned(), path: String::new() };
        let below = root.join("a/b.txt");
        assert_eq!((below.absolute().as_str(), below.name()), ("/workspace/a/b.txt", "b.txt"));
        assert_eq!((root.join("").absolute().as_str(), root.name()), ("/workspace", "workspace"));
        assert_eq!(below.join("c").path, "a/b.txt/c");
    }
}
