//! Messages about changes of files, told as they happen.

use serde::{Deserialize, Serialize};

use crate::EntryKind;

/// Tell what changes in a directory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WatchRequest {
    /// `/workspace` or `/tmp`.
    pub root: String,
    /// Directory beneath the root; empty for the root itself.
    pub path: String,
    /// What is below it as well, and what will be.
    pub recursive: bool,
}

/// One change. What happens in quick succession to one entry may be told as one.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct FileChange {
    /// What happened.
    pub change: ChangeKind,
    /// Path beneath the watched directory; empty for an overflow. Bytes that are not UTF-8 are replaced.
    pub path: String,
    /// The path before, of a move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// What it is, where it could still be looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<EntryKind>,
    /// Size in bytes of a file that is still there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
}

/// Kinds of [`FileChange`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It is there now: made, or moved in from where nobody watches, also in place of something else.
    Created,
    /// Its content or its attributes are others.
    Modified,
    /// It is gone: removed, or moved to where nobody watches.
    Deleted,
    /// It has another path.
    Moved,
    /// Changes were lost; what happened before this has to be looked at anew.
    Overflow,
}

/// Why a watch is over.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct WatchEnded {
    /// Which kind.
    pub reason: WatchEnd,
    /// A sentence for people and models.
    pub message: String,
}

/// Kinds of [`WatchEnded`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum WatchEnd {
    /// The path leads to the directory no more.
    DirectoryGone,
    /// There is more in it by now than can be watched.
    LimitExceeded,
}
