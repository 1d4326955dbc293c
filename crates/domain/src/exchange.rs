//! What an API process may ask of the worker that owns a session: an operation, and a stream of bytes and messages in both
//! directions. These are the words; who carries them is `server`'s matter.
//!
//! # Design notes
//!
//! * One closed enum of operations. Whoever needs another adds a variant, and the worker's exhaustive match says where its
//!   code goes. Fields are only ever added, with a default: the process at the other end may be older or newer.
//! * A stream says how it ended. [`Item::End`] is the only good end; a channel or connection that closes without it was
//!   broken off, so that half an upload is never taken for a whole one.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::file::{FileLength, FilePath, FileVersion, Replace};
use crate::{Code, SessionId, ShellId, TenantId};

/// An operation on a session of a tenant. Both ends check that the session is the tenant's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Opening {
    /// Whose session it is.
    pub tenant_id: TenantId,
    /// The session.
    pub session_id: SessionId,
    /// What is asked.
    pub operation: Operation,
}

/// What may be asked. Each variant says which items go in which direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum Operation {
    /// Whether the session's sandbox serves. Input: nothing but the end. Answer: one message, [`Serving`].
    Serving,
    /// Speaks to a running shell. Input: bytes for its stdin, and [`ShellOrder`]s, in this order carried out. Answer: one
    /// [`ShellTold`] for each.
    Shell {
        /// Which of the session's.
        shell_id: ShellId,
    },
    /// What is at a path. Input: nothing but the end. Answer: one message, [`crate::file::FileFacts`].
    StatFile {
        /// The path.
        file: FilePath,
    },
    /// Bytes `from..to` of a regular file. Input: nothing but the end. Answer: data. [`Code::StaleRead`] when the file is not, or
    /// no longer, of this version: bytes of two versions are never mixed.
    ReadFile {
        /// The file.
        file: FilePath,
        /// The first byte.
        from: u64,
        /// One behind the last.
        to: u64,
        /// What it was when it was looked at.
        version: FileVersion,
    },
    /// Writes a file, wholly or not at all. Input: data, and the end. Answer: one message, [`crate::file::FileSaved`];
    /// [`Code::PreconditionFailed`] when something else is there than `replace` says.
    WriteFile {
        /// The file; missing directories are made.
        file: FilePath,
        /// How much follows.
        length: FileLength,
        /// What may be there.
        replace: Replace,
        /// Permission bits; what is there keeps its own when left out.
        #[serde(default)]
        permissions: Option<u32>,
    },
    /// Removes a file or directory. Input: nothing but the end. Answer: one message, [`crate::file::FilesRemoved`].
    RemoveFile {
        /// What.
        file: FilePath,
        /// A directory with what is in it.
        recursive: bool,
    },
    /// Lists a directory. Input: nothing but the end. Answer: messages with lists of [`crate::file::FileEntry`], then one
    /// [`crate::file::FilesListed`].
    ListFiles {
        /// The directory.
        file: FilePath,
        /// 1 lists the directory alone.
        max_depth: u32,
        /// Include names that start with a dot.
        include_hidden: bool,
        /// Most entries.
        limit: u32,
    },
    /// Files of a directory as a tar archive. Input: nothing but the end. Answer: one message (null) once it begins, then data.
    PackFiles {
        /// The directory.
        file: FilePath,
    },
    /// Takes files out of a tar archive. Input: data, and the end. Answer: one message, [`crate::file::Unpacked`].
    UnpackFiles {
        /// The directory; made when missing.
        file: FilePath,
    },
    /// Gives an entry another name beneath the same root. Input: nothing but the end. Answer: one message (null).
    MoveFile {
        /// What.
        file: FilePath,
        /// Its new path.
        to: FilePath,
        /// What is there already goes.
        replace: bool,
    },
    /// Tells what changes in a directory. Input: nothing but the end. Answer: one message (null) once it is watched, then messages with lists of
    /// [`crate::file::FileChange`], at last one [`crate::file::WatchEnded`].
    WatchFiles {
        /// The directory.
        file: FilePath,
        /// What is below it as well.
        recursive: bool,
    },
    /// Makes a directory and those above it. Input: nothing but the end. Answer: one message, [`crate::file::DirectoryMade`].
    MakeDirectory {
        /// The directory.
        file: FilePath,
    },
}

impl Operation {
    /// Whether the session counts as used while it is open. Who only watches does nothing with it.
    #[must_use]
    pub const fn keeps_in_use(&self) -> bool {
        !matches!(self, Self::WatchFiles { .. })
    }
}

/// What a shell can be told beside bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum ShellOrder {
    /// Nothing more comes on its stdin. A terminal gets Ctrl-D and stays open.
    CloseInput,
    /// A signal for its process group, or for the group in the foreground of its terminal.
    Signal {
        /// Its number.
        signal: i32,
    },
    /// Its terminal has another size.
    Resize {
        /// Lines.
        rows: u16,
        /// Characters of a line.
        cols: u16,
    },
    /// The end of everything that it started.
    End {
        /// Time between SIGTERM and SIGKILL.
        grace_ms: u64,
    },
}

/// One piece of input was taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShellTold {
    /// Bytes that its stdin took; fewer than were sent when it does not read.
    pub taken_bytes: u64,
}

/// Answer to [`Operation::Serving`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Serving {
    /// Which of the session's sandboxes it is, counted from 1.
    pub generation: u32,
    /// Shells that run in it.
    pub running_shells: u32,
    /// Its worker takes no more work and will leave it to another one soon.
    pub is_draining: bool,
}

/// The detail of an error after which nobody can know whether the operation had begun.
const MAY_HAVE_BEGUN: &str = "may_have_begun";

/// One piece of an exchange, in either direction.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// Bytes, at most [`crate::limits::EXCHANGE_DATA_BYTES`] at once.
    Data(Bytes),
    /// A message of the operation.
    Message(Value),
    /// Everything was sent.
    End,
    /// The sender cannot go on; nothing comes after it.
    Failed(ExchangeError),
}

/// A piece that carries something.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    /// Bytes.
    Data(Bytes),
    /// A message of the operation.
    Message(Value),
}

/// Why an operation did not happen or did not go on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ExchangeError {
    /// Which kind.
    pub code: Code,
    /// A sentence for people and models.
    pub message: String,
    /// What was seen, for programs.
    #[serde(default)]
    pub details: Map<String, Value>,
}

impl Item {
    /// A message.
    #[must_use]
    pub fn message(message: &impl Serialize) -> Self {
        match serde_json::to_value(message) {
            Ok(value) => Self::Message(value),
            Err(error) => Self::Failed(ExchangeError::new(Code::Internal, error.to_string())),
        }
    }

    /// What a receiver got: a piece, the good end (`None`), or why there is none. `received` is `None` when the other end
    /// went away without a word.
    ///
    /// # Errors
    /// What the sender said, or [`Code::WorkerUnavailable`] when it was broken off.
    pub fn step(received: Option<Self>) -> Result<Option<Piece>, ExchangeError> {
        match received {
            Some(Self::Data(bytes)) => Ok(Some(Piece::Data(bytes))),
            Some(Self::Message(message)) => Ok(Some(Piece::Message(message))),
            Some(Self::End) => Ok(None),
            Some(Self::Failed(error)) => Err(error),
            None => Err(ExchangeError::broken_off()),
        }
    }
}

impl Piece {
    /// The message that this has to be.
    ///
    /// # Errors
    /// When it is bytes, or another message.
    pub fn into_message<T: DeserializeOwned>(self) -> Result<T, ExchangeError> {
        let unexpected = || ExchangeError::new(Code::Internal, "Another message was expected in this place.");
        match self {
            Self::Message(message) => serde_json::from_value(message).map_err(|_| unexpected()),
            Self::Data(_) => Err(unexpected()),
        }
    }
}

impl ExchangeError {
    /// An error of a kind.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: Map::new() }
    }

    /// The other end went away without a word. What was asked may have begun.
    #[must_use]
    pub fn broken_off() -> Self {
        Self::new(Code::WorkerUnavailable, "The connection to the session's worker ended early.")
            .with(MAY_HAVE_BEGUN, true)
    }

    /// Whether the operation has certainly not begun and may begin when it is asked for again.
    #[must_use]
    pub fn has_not_begun(&self) -> bool {
        self.code == Code::WorkerUnavailable && !self.details.contains_key(MAY_HAVE_BEGUN)
    }

    /// The worker that was asked does not have the session (any more).
    #[must_use]
    pub fn not_here() -> Self {
        Self::new(Code::WorkerUnavailable, "The session is with another worker at the moment.")
    }

    /// The same with one more fact.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.details.insert(name.to_owned(), value.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_closes_without_an_end_was_broken_off() {
        assert_eq!(Item::step(Some(Item::End)), Ok(None));
        assert_eq!(Item::step(None).map_err(|error| error.code), Err(Code::WorkerUnavailable));
        let serving = Item::step(Some(Item::message(&Serving {
            generation: 3,
            running_shells: 0,
            is_draining: false,
        })));
        let serving: Serving = serving.expect("a piece").expect("a piece").into_message().expect("fits");
        assert_eq!(serving.generation, 3);
    }

    #[test]
    fn bytes_are_no_message() {
        let piece = Piece::Data(Bytes::from_static(b"{}"));
        assert_eq!(piece.into_message::<Value>().map_err(|error| error.code), Err(Code::Internal));
    }
}
