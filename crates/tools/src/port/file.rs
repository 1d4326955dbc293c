//! Paths and files: what is asked about them, and the answers.

use bytes::Bytes;

/// A file or directory that a tool names, already checked as far as text can be checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxPath {
    /// `/workspace` or `/tmp`.
    pub root: &'static str,
    /// Beneath the root, without `.` and `..`; empty for the root itself.
    pub relative: String,
}

/// What is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A pipe, socket or device.
    Other,
}

/// Facts of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileStat {
    /// What it is.
    pub kind: EntryKind,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Permission bits.
    pub permissions: u32,
    /// Last change, milliseconds since 1970.
    pub modified_ms: i64,
}

/// Part of a file.
#[derive(Debug, Clone)]
pub struct FileContent {
    /// The bytes asked for, as far as there are any.
    pub bytes: Bytes,
    /// The whole file's facts.
    pub stat: FileStat,
    /// SHA-256 of the whole file, when all of it was read.
    pub sha256: Option<String>,
}

/// How a write treats what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteMode {
    /// Replace or create.
    Overwrite,
    /// Add to the end, or create.
    Append,
    /// Fail when something is there.
    CreateNew,
}

/// A write.
#[derive(Debug, Clone)]
pub struct FileWrite {
    /// Where.
    pub path: SandboxPath,
    /// What.
    pub content: Bytes,
    /// How.
    pub mode: WriteMode,
    /// Permission bits; `None` keeps what is there, or takes 0644.
    pub permissions: Option<u32>,
    /// Fail unless the present content has this SHA-256.
    pub expected_sha256: Option<String>,
}

/// Facts of a file that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileWritten {
    /// Nothing was there before.
    pub created: bool,
    /// Size now.
    pub size_bytes: u64,
    /// SHA-256 now.
    pub sha256: String,
    /// Permission bits now.
    pub permissions: u32,
}

/// What to list.
#[derive(Debug, Clone)]
pub struct ListQuery {
    /// The directory.
    pub path: SandboxPath,
    /// 1 lists the directory alone.
    pub max_depth: u32,
    /// Include names that start with a dot.
    pub include_hidden: bool,
    /// Leave out what `.gitignore` excludes.
    pub respect_ignore: bool,
    /// Most entries.
    pub limit: u32,
}

/// What a listing found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// Sorted by path.
    pub entries: Vec<ListedEntry>,
    /// Found in all.
    pub total: u64,
    /// There are more than were returned.
    pub truncated: bool,
}

/// One entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedEntry {
    /// Beneath the listed directory.
    pub path: String,
    /// What it is.
    pub kind: EntryKind,
    /// Size in bytes (files only).
    pub size_bytes: u64,
}

/// What a removal may take away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoveTarget {
    /// Anything but a directory; of a link the link itself.
    File,
    /// A directory with nothing in it.
    EmptyDirectory,
    /// A directory and everything in it; links are removed, not followed.
    Tree,
}

/// A removal.
#[derive(Debug, Clone)]
pub struct FileRemoval {
    /// What; never a root itself.
    pub path: SandboxPath,
    /// What may be there.
    pub target: RemoveTarget,
    /// For a file: fail unless its content has this SHA-256.
    pub expected_sha256: Option<String>,
}

/// What a removal took away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FilesRemoved {
    /// Entries that were no directories.
    pub files: u64,
    /// Directories.
    pub directories: u64,
}

/// Which files to find.
#[derive(Debug, Clone)]
pub struct GlobQuery {
    /// The directory.
    pub path: SandboxPath,
    /// `*`, `?`, `[…]`, `{a,b}` and `**`; without a slash it is matched against names at any depth.
    pub pattern: String,
    /// Include names that start with a dot.
    pub include_hidden: bool,
    /// Leave out what `.gitignore` excludes.
    pub respect_ignore: bool,
    /// By path rather than last changed first.
    pub by_path: bool,
    /// Most files.
    pub limit: u32,
}

/// What was found by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Globbed {
    /// In the order asked for, paths beneath the directory.
    pub entries: Vec<GlobbedEntry>,
    /// Found in all.
    pub total: u64,
    /// There are more than were returned.
    pub truncated: bool,
}

/// One file found by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobbedEntry {
    /// Beneath the directory.
    pub path: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Last change, milliseconds since 1970.
    pub modified_ms: i64,
}

/// What to look for in contents.
#[derive(Debug, Clone)]
pub struct GrepQuery {
    /// A file or directory.
    pub path: SandboxPath,
    /// A regular expression in linear-time syntax.
    pub pattern: String,
    /// Upper and lower case are the same.
    pub ignore_case: bool,
    /// Matches may span lines.
    pub multiline: bool,
    /// Only files that match one of these; those that start with `!` leave files out.
    pub globs: Vec<String>,
    /// Include names that start with a dot.
    pub include_hidden: bool,
    /// Leave out what `.gitignore` excludes.
    pub respect_ignore: bool,
    /// What is wanted of the matches.
    pub mode: GrepMode,
    /// Lines before each match.
    pub before: u32,
    /// Lines after each match.
    pub after: u32,
    /// Results left out from the start.
    pub skip: u64,
    /// Most results.
    pub limit: u64,
    /// Most bytes of text and paths.
    pub max_bytes: u64,
}

/// What is wanted of matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrepMode {
    /// The lines.
    Content,
    /// The files.
    Files,
    /// The files, and how many lines of each.
    Count,
}

/// What was found in contents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grepped {
    /// Files with a match, paths beneath the directory.
    pub files: Vec<GreppedFile>,
    /// Files that were searched.
    pub searched_files: u64,
    /// Files left out as they are not text.
    pub binary_files: u64,
    /// Files left out as they are too large for matches that span lines.
    pub large_files: u64,
    /// There may be more.
    pub truncated: bool,
    /// The time for a search was over.
    pub timed_out: bool,
}

/// Matches of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GreppedFile {
    /// Beneath the directory; empty where a file was searched.
    pub path: String,
    /// Lines that match.
    pub matches: u64,
    /// Matching lines and those around them.
    pub lines: Vec<GreppedLine>,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GreppedLine {
    /// Counted from 1.
    pub number: u64,
    /// Without its line end.
    pub text: String,
    /// It matches.
    pub is_match: bool,
    /// Only its beginning is here.
    pub is_cut: bool,
}

/// A version of a file, as far as a session knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownFile {
    /// SHA-256 of its content; `None` when it was not read to its end.
    pub sha256: Option<String>,
    /// Its size.
    pub size_bytes: u64,
    /// Its last change, milliseconds since 1970; `None` when only its content is known.
    pub modified_ms: Option<i64>,
}

/// What a file was before a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Before {
    /// Nothing was there.
    Absent,
    /// This content.
    Content {
        /// The bytes.
        bytes: Bytes,
        /// Their SHA-256.
        sha256: String,
        /// The permission bits, when the change sets others. Of several changes that are undone: those before the first that did.
        permissions: Option<u32>,
    },
    /// Something that is too large to be kept.
    NotKept,
}

/// Changes of a file that can be undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undoable {
    /// How many, at most as many as asked for; never 0.
    pub steps: u32,
    /// What was there before the oldest of them.
    pub before: Before,
    /// SHA-256 of what was there after the newest.
    pub after_sha256: String,
}
