//! Messages about trees of files: finding by name, searching in contents, removing.

use serde::{Deserialize, Serialize};

use crate::{EntryKind, OperationKey};

/// Remove a file, or a directory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RemoveRequest {
    /// This removal's own key.
    pub key: OperationKey,
    /// `/workspace` or `/tmp`.
    pub root: String,
    /// Path beneath the root; the root itself is never removed.
    pub path: String,
    /// What may be there.
    pub target: RemoveTarget,
    /// For a file: fail with [`crate::ErrorCode::Conflict`] unless its content has this SHA-256 (lower-case hex).
    #[serde(default)]
    pub expected_sha256: Option<String>,
}

/// Give an entry another name beneath the same root; of a link the link itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MoveRequest {
    /// `/workspace` or `/tmp`.
    pub root: String,
    /// Path beneath the root.
    pub path: String,
    /// The new path; missing directories above it are made.
    pub to: String,
    /// What is there already goes: a file under a file, an empty directory under a directory. Else it is
    /// [`crate::ErrorCode::Exists`].
    pub replace: bool,
}

/// A directory that is there now.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
pub struct DirectoryMade {
    /// It was not there before.
    pub created: bool,
}

/// What may be removed.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum RemoveTarget {
    /// Anything but a directory; of a link the link itself.
    File,
    /// A directory with nothing in it.
    EmptyDirectory,
    /// A directory and everything in it. Links in it are removed, not followed.
    Tree,
}

/// What a removal took away.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Removed {
    /// Entries that were no directories.
    pub files: u64,
    /// Directories.
    pub directories: u64,
}

/// Find entries by name.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GlobRequest {
    /// `/workspace` or `/tmp`.
    pub root: String,
    /// Directory beneath the root; empty for the root itself.
    pub path: String,
    /// `*`, `?`, `[…]`, `{a,b}`, and `**` for any number of directories; against the path beneath the directory. A
    /// pattern without a slash is matched against names at any depth.
    pub pattern: String,
    /// Include names that start with a dot.
    pub include_hidden: bool,
    /// Leave out what `.gitignore` files (and `node_modules`) exclude.
    pub respect_ignore: bool,
    /// What comes first, and stays when there is more than `limit`.
    pub sort: GlobSort,
    /// Most entries to return.
    pub limit: u32,
}

/// Order of what a glob found.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum GlobSort {
    /// Last changed first.
    Modified,
    /// By path.
    Path,
}

/// What a glob found: files and links, no directories.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Globbed {
    /// In the order asked for.
    pub entries: Vec<GlobEntry>,
    /// Found in all, up to the agent's own limits.
    pub total: u64,
    /// There are more than were returned.
    pub truncated: bool,
}

/// One entry.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct GlobEntry {
    /// Path beneath the directory. Bytes that are not UTF-8 are replaced.
    pub path: String,
    /// What it is.
    pub kind: EntryKind,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Time of last change, milliseconds since 1970.
    pub modified_ms: i64,
}

/// Search the contents of files, line by line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GrepRequest {
    /// `/workspace` or `/tmp`.
    pub root: String,
    /// File or directory beneath the root; empty for the root itself.
    pub path: String,
    /// A regular expression without look-around and back-references, matched in linear time.
    pub pattern: String,
    /// Upper and lower case are the same.
    pub ignore_case: bool,
    /// Matches may span lines and `.` matches line ends.
    pub multiline: bool,
    /// Only files that one of these matches, as in [`GlobRequest::pattern`]; empty for all.
    pub globs: Vec<String>,
    /// Include names that start with a dot.
    pub include_hidden: bool,
    /// Leave out what `.gitignore` files (and `node_modules`) exclude.
    pub respect_ignore: bool,
    /// What to answer.
    pub mode: GrepMode,
    /// Lines before each matching line.
    pub before: u32,
    /// Lines after each matching line.
    pub after: u32,
    /// Results to leave out from the start: lines that match, or files.
    pub skip: u64,
    /// Most results: lines that match, or files.
    pub limit: u64,
    /// Most bytes of text and paths.
    pub max_bytes: u64,
}

/// What a search answers.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum GrepMode {
    /// Lines.
    Content,
    /// Files that have a match.
    Files,
    /// Files, with the number of lines that match.
    Count,
}

/// What a search found, in the order of paths, shallow before deep.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Grepped {
    /// The files with a match.
    pub files: Vec<GrepFile>,
    /// Files that were searched.
    pub searched_files: u64,
    /// Files that were left out as they are not text.
    pub binary_files: u64,
    /// Files that were left out, or not searched to their end, as they are too large for what was asked.
    pub large_files: u64,
    /// There may be more: a limit was reached.
    pub truncated: bool,
    /// The agent's own time for a search was over.
    pub timed_out: bool,
}

/// Matches of one file.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct GrepFile {
    /// Path beneath the searched directory; empty where a file was searched. Bytes that are not UTF-8 are replaced.
    pub path: String,
    /// Lines that match; in mode [`GrepMode::Files`] 1.
    pub matches: u64,
    /// Matching lines and those around them, in mode [`GrepMode::Content`].
    pub lines: Vec<GrepLine>,
}

/// One line.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct GrepLine {
    /// Counted from 1.
    pub number: u64,
    /// Without its line end. Bytes that are not UTF-8 are replaced.
    pub text: String,
    /// It matches; else it stands beside one that does.
    pub is_match: bool,
    /// Only its beginning is here.
    pub is_cut: bool,
}
