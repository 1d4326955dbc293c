//! Messages about single files: reading, writing, listing.

use serde::{Deserialize, Serialize};

use crate::OperationKey;

/// Read part of a regular file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReadRequest {
    /// `/workspace` or `/tmp`.
    pub root: String,
    /// Path beneath the root.
    pub path: String,
    /// First byte.
    pub offset: u64,
    /// Most bytes to send.
    pub max_bytes: u64,
}

/// Facts of a file that was read.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct FileRead {
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Size of the whole file.
    pub stat: FileStat,
    /// SHA-256 of the whole file in lower-case hex, when it was read from start to end.
    pub sha256: Option<String>,
}

/// How a write treats what is there.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum WriteMode {
    /// Replace or create.
    Overwrite,
    /// Add to the end, or create.
    Append,
    /// Fail when something is there.
    CreateNew,
}

/// Write a file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WriteRequest {
    /// This write's own key.
    pub key: OperationKey,
    /// `/workspace` or `/tmp`.
    pub root: String,
    /// Path beneath the root; missing parents are created.
    pub path: String,
    /// How to treat what is there.
    pub mode: WriteMode,
    /// Bytes that will follow.
    pub size_bytes: u64,
    /// Permission bits; `None` keeps those of a replaced file, or takes 0644.
    #[serde(default)]
    pub permissions: Option<u32>,
    /// Fail with [`crate::ErrorCode::Conflict`] unless the present content has this SHA-256 (lower-case hex).
    #[serde(default)]
    pub expected_sha256: Option<String>,
    /// Fail with [`crate::ErrorCode::Conflict`] unless what is there is this very version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_version: Option<FileVersion>,
    /// How much follows is not known yet: `size_bytes` is the most, and an empty data frame says that all of it has come. A
    /// stream that closes without one was broken off.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub open_ended: bool,
}

/// What tells one version of a file from another without reading it. A file that is replaced always has another one; one that is written in place keeps it
/// only when its size stays and both changes fall into one tick of the kernel's clock (some milliseconds).
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct FileVersion {
    /// Which file of its filesystem.
    pub inode: u64,
    /// Last change of content or attributes by the kernel's clock, nanoseconds since 1970. No program can set it.
    pub changed_ns: i64,
    /// Size in bytes.
    pub size_bytes: u64,
}

/// Facts of a file that was written.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct FileWritten {
    /// Nothing was there before.
    pub created: bool,
    /// Size of the whole file now.
    pub size_bytes: u64,
    /// SHA-256 of the whole file now, lower-case hex.
    pub sha256: String,
    /// Permission bits now.
    pub permissions: u32,
    /// Its version now.
    #[serde(default)]
    pub version: FileVersion,
}

/// List a directory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ListRequest {
    /// `/workspace` or `/tmp`.
    pub root: String,
    /// Path beneath the root; empty for the root itself.
    pub path: String,
    /// 1 lists the directory alone.
    pub max_depth: u32,
    /// Include names that start with a dot.
    pub include_hidden: bool,
    /// Leave out what `.gitignore` files (and `node_modules`) exclude.
    pub respect_ignore: bool,
    /// Most entries to return.
    pub limit: u32,
}

/// What a listing found, sorted by path.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Listing {
    /// The entries, at most as many as asked for.
    pub entries: Vec<DirEntry>,
    /// Entries found in all, up to the agent's own limit.
    pub total: u64,
    /// There are more than were returned.
    pub truncated: bool,
}

/// One entry.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct DirEntry {
    /// Path beneath the listed directory. Bytes that are not UTF-8 are replaced.
    pub path: String,
    /// What it is.
    pub kind: EntryKind,
    /// Size in bytes (files only).
    pub size_bytes: u64,
}

/// What an entry is. Links are not followed.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
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

/// Facts of a path, links within the root followed.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct FileStat {
    /// What it is.
    pub kind: EntryKind,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Time of last change, milliseconds since 1970.
    pub modified_ms: i64,
    /// Permission bits.
    pub permissions: u32,
    /// Its version.
    #[serde(default)]
    pub version: FileVersion,
}
