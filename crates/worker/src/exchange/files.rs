//! Files of a session, for an API process: every path is resolved by the agent, as the tool's user.
//!
//! # Design notes
//!
//! Reading asks the agent piece by piece, so that a reader who stands still holds nothing but one piece; each piece says which
//! version of the file it is of, and a file that changes meanwhile breaks the reading off rather than mixing two.
//! A write goes to a temporary file and takes its place at the end, so an upload that breaks off changes nothing. What may be there is
//! looked at first, so that nobody sends a gigabyte in vain, and again by the agent at the end.

use domain::Code;
use domain::exchange::{ExchangeError, Item, Piece};
use domain::file::{
    DirectoryMade, FileEntry, FileFacts, FileKind, FileLength, FilePath, FileSaved, FileVersion, FilesListed,
    FilesRemoved, Replace,
};
use domain::limits::{EXCHANGE_DATA_BYTES, EXCHANGE_MESSAGE_BYTES};
use sandbox::protocol::{
    self, EntryKind, FileStat, ListRequest, MoveRequest, ReadRequest, RemoveRequest, RemoveTarget, WriteMode,
    WriteRequest,
};

use serde_json::Value;

use super::Exchange;
use super::agent::{Keys, of_link};

/// Bytes asked of the agent at a time.
const READ_BYTES: u64 = 1024 * 1024;
/// Bytes of entries in one message, as JSON at its longest.
const LISTED_BYTES: usize = EXCHANGE_MESSAGE_BYTES / 4;

/// The file is another than it was.
pub(super) fn stale(file: &FilePath) -> ExchangeError {
    ExchangeError::new(Code::StaleRead, format!("{} has changed meanwhile.", file.absolute()))
}

pub(super) fn version(version: protocol::FileVersion) -> FileVersion {
    let protocol::FileVersion { inode, changed_ns, size_bytes } = version;
    FileVersion { inode, changed_ns, size_bytes }
}

fn facts(stat: &FileStat) -> FileFacts {
    FileFacts {
        kind: kind(stat.kind),
        version: version(stat.version),
        modified_ms: stat.modified_ms,
        permissions: stat.permissions,
    }
}

pub(super) fn kind(kind: EntryKind) -> FileKind {
    match kind {
        EntryKind::File => FileKind::File,
        EntryKind::Directory => FileKind::Directory,
        EntryKind::Symlink => FileKind::Symlink,
        EntryKind::Other => FileKind::Other,
    }
}

impl Exchange {
    pub(super) async fn stat_file(&mut self, file: &FilePath) -> Result<(), ExchangeError> {
        self.no_input().await?;
        let facts = self.facts_of(file).await?;
        self.send(Item::message(&facts)).await
    }

    async fn facts_of(&self, file: &FilePath) -> Result<FileFacts, ExchangeError> {
        let agent = self.agent();
        let stat = self.ask_safely(|| agent.stat(&file.root, &file.path)).await?;
        Ok(facts(&stat))
    }

    pub(super) async fn read_file(
        &mut self,
        file: &FilePath,
        from: u64,
        to: u64,
        expected: FileVersion,
    ) -> Result<(), ExchangeError> {
        self.no_input().await?;
        let mut offset = from;
        // An empty file is opened as well: it may be one that the tool's user may not read.
        loop {
            let content = self.read_piece(file, offset, to - offset).await?;
            let is_cut = content.bytes.is_empty() && offset < to;
            if version(content.file.stat.version) != expected || is_cut {
                return Err(stale(file));
            }
            offset += content.bytes.len() as u64;
            self.send_bytes(content.bytes).await?;
            if offset >= to {
                return Ok(());
            }
        }
    }

    /// One piece of a file, with what the file is.
    pub(super) async fn read_piece(
        &self,
        file: &FilePath,
        offset: u64,
        most_bytes: u64,
    ) -> Result<sandbox::FileContent, ExchangeError> {
        let request = ReadRequest {
            root: file.root.clone(),
            path: file.path.clone(),
            offset,
            max_bytes: READ_BYTES.min(most_bytes),
        };
        let agent = self.agent();
        self.ask_safely(|| agent.read(request.clone())).await
    }

    /// Sends bytes in pieces that fit an item.
    pub(super) async fn send_bytes(&self, mut bytes: bytes::Bytes) -> Result<(), ExchangeError> {
        while !bytes.is_empty() {
            self.send(Item::Data(bytes.split_to(bytes.len().min(EXCHANGE_DATA_BYTES)))).await?;
        }
        Ok(())
    }

    pub(super) async fn write_file(
        &mut self,
        file: &FilePath,
        length: FileLength,
        replace: Replace,
        permissions: Option<u32>,
    ) -> Result<(), ExchangeError> {
        if let Replace::Version(expected) = replace {
            match self.facts_of(file).await {
                Ok(facts) if facts.version == expected => {}
                Ok(_) => return Err(unexpected(file)),
                Err(error) if error.code == Code::PathNotFound => return Err(unexpected(file)),
                Err(error) => return Err(error),
            }
        }
        let mut keys = Keys::new(self.agent());
        let (size_bytes, open_ended) = match length {
            FileLength::Bytes(bytes) => (bytes, false),
            FileLength::AtMost(bytes) => (bytes, true),
        };
        let (mode, expected_version) = match replace {
            Replace::Anything => (WriteMode::Overwrite, None),
            Replace::Nothing => (WriteMode::CreateNew, None),
            Replace::Version(FileVersion { inode, changed_ns, size_bytes }) => {
                let version = protocol::FileVersion { inode, changed_ns, size_bytes };
                (WriteMode::Overwrite, Some(version))
            }
        };
        let request = WriteRequest {
            key: keys.next(),
            root: file.root.clone(),
            path: file.path.clone(),
            mode,
            size_bytes,
            permissions,
            expected_sha256: None,
            expected_version,
            open_ended,
        };
        let saved = self.receive(request).await.map_err(|error| match (replace, error.code) {
            (Replace::Nothing, Code::AlreadyExists) | (Replace::Version(_), Code::StaleRead) => {
                unexpected(file)
            }
            _ => error,
        })?;
        self.send(Item::message(&saved)).await
    }

    /// The caller's bytes go to the agent as it takes them.
    async fn receive(&mut self, request: WriteRequest) -> Result<FileSaved, ExchangeError> {
        let mut upload = self.agent().upload(request).await.map_err(of_link)?;
        while let Some(piece) = Item::step(self.input.recv().await)? {
            match piece {
                Piece::Data(bytes) => upload.push(bytes).await.map_err(of_link)?,
                Piece::Message(_) => {
                    return Err(ExchangeError::new(Code::Internal, "Only bytes belong here."));
                }
            }
        }
        let written = upload.finish().await.map_err(of_link)?;
        Ok(FileSaved {
            created: written.created,
            sha256: written.sha256,
            permissions: written.permissions,
            version: version(written.version),
        })
    }

    pub(super) async fn remove_file(
        &mut self,
        file: &FilePath,
        recursive: bool,
    ) -> Result<(), ExchangeError> {
        self.no_input().await?;
        if file.path.is_empty() {
            let message = format!("{} itself cannot be removed.", file.root);
            return Err(ExchangeError::new(Code::PermissionDenied, message));
        }
        let mut keys = Keys::new(self.agent());
        let directory = if recursive { RemoveTarget::Tree } else { RemoveTarget::EmptyDirectory };
        let removed = match self.remove(&mut keys, file, RemoveTarget::File).await {
            Err(error) if error.code == Code::IsDirectory => self.remove(&mut keys, file, directory).await,
            other => other,
        }?;
        self.send(Item::message(&removed)).await
    }

    async fn remove(
        &self,
        keys: &mut Keys,
        file: &FilePath,
        target: RemoveTarget,
    ) -> Result<FilesRemoved, ExchangeError> {
        let request = RemoveRequest {
            key: keys.next(),
            root: file.root.clone(),
            path: file.path.clone(),
            target,
            expected_sha256: None,
        };
        let agent = self.agent();
        let removed = self.ask_safely(|| agent.remove(request.clone())).await?;
        Ok(FilesRemoved { files: removed.files, directories: removed.directories })
    }

    pub(super) async fn move_file(
        &mut self,
        file: &FilePath,
        to: &FilePath,
        replace: bool,
    ) -> Result<(), ExchangeError> {
        self.no_input().await?;
        if file.root != to.root {
            let message =
                "A move stays within /workspace or within /tmp; `bash` can copy from one to the other.";
            return Err(ExchangeError::new(Code::InvalidPath, message));
        }
        let (root, path, to) = (file.root.clone(), file.path.clone(), to.path.clone());
        let request = MoveRequest { root, path, to, replace };
        self.agent().move_entry(request).await.map_err(of_link)?;
        self.send(Item::Message(Value::Null)).await
    }

    pub(super) async fn make_directory(&mut self, file: &FilePath) -> Result<(), ExchangeError> {
        self.no_input().await?;
        let agent = self.agent();
        let made = self.ask_safely(|| agent.make_directory(&file.root, &file.path)).await?;
        self.send(Item::message(&DirectoryMade { created: made.created })).await
    }

    pub(super) async fn list_files(&mut self, request: ListRequest) -> Result<(), ExchangeError> {
        self.no_input().await?;
        let agent = self.agent();
        let found = self.ask_safely(|| agent.list(request.clone())).await?;
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for entry in found.entries {
            // A control character is six characters of JSON.
            bytes += 6 * entry.path.len() + 100;
            let entry = FileEntry { path: entry.path, kind: kind(entry.kind), size_bytes: entry.size_bytes };
            entries.push(entry);
            if bytes >= LISTED_BYTES {
                self.send(Item::message(&std::mem::take(&mut entries))).await?;
                bytes = 0;
            }
        }
        self.send(Item::message(&entries)).await?;
        let listed = FilesListed { total: found.total, truncated: found.truncated };
        self.send(Item::message(&listed)).await
    }
}

fn unexpected(file: &FilePath) -> ExchangeError {
    let message = format!("{} is not what the request expects; look at it again.", file.absolute());
    ExchangeError::new(Code::PreconditionFailed, message)
}
