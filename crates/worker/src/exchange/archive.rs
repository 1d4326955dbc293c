//! Directories of a session as tar archives, both ways.
//!
//! # Design notes
//!
//! The archive is read and written here, its files by the agent, which resolves every path beneath its root as the tool's user:
//! whatever an entry is called and whatever lies in the workspace, nothing is reached that a tool of the session could not reach.
//! Links, pipes and devices are never made, so that no entry can be written through another one. What was taken out before an
//! archive turned out to be bad stays: each file is whole or not there.

use std::collections::BTreeSet;

use bytes::Bytes;
use domain::Code;
use domain::exchange::{ExchangeError, Item};
use domain::file::{FileKind, FilePath, Unpacked};
use domain::limits::{ARCHIVE_ENTRIES, LIST_DEPTH, LIST_ENTRIES};
use sandbox::protocol::{DirEntry, EntryKind, ListRequest, Listing, WriteMode, WriteRequest};
use serde_json::Value;

use super::Exchange;
use super::agent::{Keys, ask_safely, of_link};
use super::files::{kind, stale, version};
use super::incoming::{Incoming, malformed};
use super::tar::{self, BLOCK, EXTENDED_BYTES, Header, Kind};

/// Names of entries left out that are told.
const SKIPPED_TOLD: usize = 100;
/// Longest name of an entry, and most directories in it: what the agent takes.
const NAME_BYTES: usize = 4_095;
const NAME_PARTS: usize = 256;
/// Bytes of names of directories that wait to be made.
const EMPTY_BYTES: usize = 1024 * 1024;
/// Characters of a name that are told.
const NAME_TOLD: usize = 200;
/// Extended headers of one entry: a long name, a long target, records for it and for all.
const EXTENSIONS: u32 = 8;

impl Exchange {
    pub(super) async fn pack_files(&mut self, directory: &FilePath) -> Result<(), ExchangeError> {
        self.no_input().await?;
        let request = ListRequest {
            root: directory.root.clone(),
            path: directory.path.clone(),
            max_depth: LIST_DEPTH,
            include_hidden: true,
            respect_ignore: false,
            limit: LIST_ENTRIES,
        };
        let agent = self.agent();
        let listing = self.ask_safely(|| agent.list(request.clone())).await?;
        // What lies below the deepest that is listed would be missing, and nobody would know.
        if listing.truncated || listing.entries.iter().any(lies_deepest) {
            let message = format!(
                "{} has more in it than one archive takes ({LIST_ENTRIES} entries with 1 MiB of paths, {LIST_DEPTH} levels of directories); take a part of it.",
                directory.absolute()
            );
            return Err(ExchangeError::new(Code::LimitExceeded, message));
        }
        self.send(Item::Message(Value::Null)).await?;
        self.pack(directory, listing).await?;
        self.send(Item::Data(Bytes::from_static(&[0; 2 * BLOCK]))).await
    }

    async fn pack(&self, directory: &FilePath, listing: Listing) -> Result<(), ExchangeError> {
        for entry in listing.entries {
            match kind(entry.kind) {
                FileKind::Directory => {
                    let header = tar::write(&entry.path, true, 0, 0o755, 0);
                    self.send(Item::Data(header.into())).await?;
                }
                FileKind::File => self.pack_file(&directory.join(&entry.path), &entry.path).await?,
                FileKind::Symlink | FileKind::Other => {}
            }
        }
        Ok(())
    }

    async fn pack_file(&self, file: &FilePath, name: &str) -> Result<(), ExchangeError> {
        let (mut offset, mut expected) = (0, None);
        loop {
            let content = match self.read_piece(file, offset, u64::MAX).await {
                Ok(content) => content,
                // Gone meanwhile, not for the tool's user, or of a name that is not UTF-8.
                Err(error) if expected.is_none() && is_left_out(error.code) => return Ok(()),
                Err(error) => return Err(error),
            };
            let found = version(content.file.stat.version);
            if expected.is_none() {
                let modified_s = u64::try_from(content.file.stat.modified_ms / 1_000).unwrap_or(0);
                let permissions = content.file.stat.permissions & 0o777;
                let header = tar::write(name, false, found.size_bytes, permissions, modified_s);
                self.send(Item::Data(header.into())).await?;
            }
            offset += content.bytes.len() as u64;
            let is_cut = content.bytes.is_empty() && offset < found.size_bytes;
            if *expected.get_or_insert(found) != found || is_cut || offset > found.size_bytes {
                return Err(stale(file));
            }
            self.send_bytes(content.bytes).await?;
            if offset == found.size_bytes {
                break;
            }
        }
        match tar::padding(offset) {
            0 => Ok(()),
            padding => self.send(Item::Data(vec![0; padding].into())).await,
        }
    }

    pub(super) async fn unpack_files(&mut self, directory: &FilePath) -> Result<(), ExchangeError> {
        let mut unpacking = Unpacking {
            keys: Keys::new(self.agent()),
            directory: directory.clone(),
            done: Unpacked::default(),
            empty: BTreeSet::new(),
            empty_bytes: 0,
        };
        let mut incoming = Incoming::new(&mut self.input);
        let agent = self.serving.sandbox.agent();
        while let Some((header, name)) = next_entry(&mut incoming).await? {
            unpacking.entry(agent, &mut incoming, &header, &name).await?;
        }
        unpacking.make_empty(agent).await?;
        let done = unpacking.done;
        self.send(Item::message(&done)).await
    }
}

/// An archive that is being taken out.
struct Unpacking {
    keys: Keys,
    directory: FilePath,
    done: Unpacked,
    /// Directories in which nothing was written yet.
    empty: BTreeSet<String>,
    /// Bytes of their names, those included that were forgotten since.
    empty_bytes: usize,
}

impl Unpacking {
    /// Makes the directories that wait.
    async fn make_empty(&mut self, agent: &sandbox::AgentClient) -> Result<(), ExchangeError> {
        self.empty_bytes = 0;
        for name in std::mem::take(&mut self.empty) {
            let path = self.directory.join(&name);
            ask_safely(|| agent.make_directory(&path.root, &path.path)).await?;
            self.done.directories += 1;
        }
        Ok(())
    }

    async fn entry(
        &mut self,
        agent: &sandbox::AgentClient,
        incoming: &mut Incoming<'_>,
        header: &Header,
        name: &[u8],
    ) -> Result<(), ExchangeError> {
        self.done.entries += 1;
        if self.done.entries > ARCHIVE_ENTRIES {
            let message = format!("An archive may have at most {ARCHIVE_ENTRIES} entries.");
            return Err(ExchangeError::new(Code::LimitExceeded, message));
        }
        let name = inside(name)?;
        match header.kind {
            Kind::Directory => {
                forget_parents(&mut self.empty, &name);
                if !name.is_empty() {
                    self.empty_bytes += name.len();
                    self.empty.insert(name);
                }
                if self.empty_bytes > EMPTY_BYTES {
                    self.make_empty(agent).await?;
                }
            }
            Kind::File if name.is_empty() => return Err(malformed("a file has no name")),
            Kind::File => {
                forget_parents(&mut self.empty, &name);
                self.file(agent, incoming, &name, header).await?;
                self.done.files += 1;
                self.done.bytes += header.size;
            }
            Kind::Special(what) => {
                self.done.skipped_total += 1;
                if self.done.skipped.len() < SKIPPED_TOLD {
                    self.done.skipped.push(format!("{} ({what})", shown(&name)));
                }
            }
            Kind::Extended | Kind::Global | Kind::LongName | Kind::LongLink => {}
        }
        Ok(())
    }

    async fn file(
        &mut self,
        agent: &sandbox::AgentClient,
        incoming: &mut Incoming<'_>,
        name: &str,
        header: &Header,
    ) -> Result<(), ExchangeError> {
        let file = self.directory.join(name);
        let named = |error: ExchangeError| {
            let message = format!("{}: {}", shown(name), error.message);
            ExchangeError { message, ..error }
        };
        let request = WriteRequest {
            key: self.keys.next(),
            root: file.root,
            path: file.path,
            mode: WriteMode::Overwrite,
            size_bytes: header.size,
            permissions: Some(header.mode),
            expected_sha256: None,
            expected_version: None,
            open_ended: false,
        };
        let mut upload = agent.upload(request).await.map_err(|error| named(of_link(error)))?;
        let mut left = header.size;
        while left > 0 {
            let piece = incoming.some(left).await?;
            left -= piece.len() as u64;
            upload.push(piece).await.map_err(|error| named(of_link(error)))?;
        }
        upload.finish().await.map_err(|error| named(of_link(error)))?;
        incoming.take(tar::padding(header.size)).await.map(drop)
    }
}

/// The next entry with its whole name; `None` at the end of the archive.
async fn next_entry(incoming: &mut Incoming<'_>) -> Result<Option<(Header, Vec<u8>)>, ExchangeError> {
    let (mut long_name, mut long_size) = (None, None);
    let mut extensions = 0;
    loop {
        let block = incoming.take(BLOCK).await?;
        let block: &[u8; BLOCK] = block.as_ref().try_into().map_err(|_| malformed("it is cut short"))?;
        let Some(mut header) = tar::parse(block).map_err(malformed)? else {
            return incoming.end_of_archive().await.map(|()| None);
        };
        let extension = match header.kind {
            Kind::File | Kind::Directory | Kind::Special(_) => {
                let name = long_name.unwrap_or_else(|| std::mem::take(&mut header.name));
                header.kind = tar::kind_of(header.kind, &name);
                header.size = long_size.unwrap_or(header.size);
                if header.size > 0 && header.kind != Kind::File {
                    return Err(malformed("an entry that has no content claims to have some"));
                }
                return Ok(Some((header, name)));
            }
            Kind::Extended | Kind::Global | Kind::LongName | Kind::LongLink => header,
        };
        extensions += 1;
        if extension.size > EXTENDED_BYTES || extensions > EXTENSIONS {
            return Err(malformed("an extended header is too long"));
        }
        let size = usize::try_from(extension.size).unwrap_or(usize::MAX);
        let data = incoming.take(size + tar::padding(extension.size)).await?;
        match extension.kind {
            Kind::LongName if long_name.is_some() => return Err(malformed("a name is said twice")),
            Kind::LongName => {
                let end = data[..size].iter().position(|byte| *byte == 0).unwrap_or(size);
                long_name = Some(data[..end].to_vec());
            }
            Kind::Extended => {
                let (path, size) = tar::records(&data[..size]).map_err(malformed)?;
                if (path.is_some() && long_name.is_some()) || (size.is_some() && long_size.is_some()) {
                    return Err(malformed("a name or size is said twice"));
                }
                (long_name, long_size) = (path.or(long_name), size.or(long_size));
            }
            Kind::Global => {
                if tar::records(&data[..size]).map_err(malformed)? != (None, None) {
                    return Err(malformed("a name or size is said of all entries"));
                }
            }
            Kind::LongLink | Kind::File | Kind::Directory | Kind::Special(_) => {}
        }
    }
}

/// A directory that was not looked into.
fn lies_deepest(entry: &DirEntry) -> bool {
    entry.kind == EntryKind::Directory && entry.path.split('/').count() >= LIST_DEPTH as usize
}

fn is_left_out(code: Code) -> bool {
    matches!(code, Code::PathNotFound | Code::PermissionDenied | Code::NotRegularFile | Code::InvalidPath)
}

/// A directory that something lies in is made with it.
fn forget_parents(empty: &mut BTreeSet<String>, name: &str) {
    let mut name = name;
    while let Some((parent, _)) = name.rsplit_once('/') {
        empty.remove(parent);
        name = parent;
    }
}

/// A name as it can be told: short, and nothing that a terminal or a log would take for its own.
fn shown(name: &str) -> String {
    name.chars().take(NAME_TOLD).flat_map(char::escape_debug).collect()
}

/// An entry's name beneath the directory, or why it is none.
fn inside(name: &[u8]) -> Result<String, ExchangeError> {
    let text = std::str::from_utf8(name).map_err(|_| malformed("a name is not UTF-8"))?;
    let outside = || {
        let message =
            format!("The archive is not taken: the entry {} leads outside of the directory.", shown(text));
        ExchangeError::new(Code::PathOutsideWorkspace, message)
    };
    if text.starts_with('/') {
        return Err(outside());
    }
    if text.len() > NAME_BYTES || text.split('/').count() > NAME_PARTS {
        let message = format!(
            "The archive is not taken: the name of the entry {}… has more than {NAME_BYTES} bytes or {NAME_PARTS} parts.",
            shown(text)
        );
        return Err(ExchangeError::new(Code::InvalidPath, message));
    }
    if text.is_empty() || text.contains('\0') {
        return Err(malformed("a name is empty or contains NUL"));
    }
    let mut parts = Vec::new();
    for part in text.split('/') {
        match part {
            "" | "." => {}
            ".." => return Err(outside()),
            part => parts.push(part),
        }
    }
    Ok(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_beneath_the_directory() {
        for (name, expected) in [
            ("a", "a"),
            ("./a/b", "a/b"),
            ("a//b/", "a/b"),
            ("./", ""),
            ("a\\..\\b", "a\\..\\b"),
            ("...", "..."),
        ] {
            assert_eq!(inside(name.as_bytes()).as_deref(), Ok(expected), "{name}");
        }
        for name in ["/a", "..", "../a", "a/../../b", "a/..", "./../a", "//a"] {
            let code = inside(name.as_bytes()).map_err(|error| error.code);
            assert_eq!(code, Err(Code::PathOutsideWorkspace), "{name}");
        }
        for name in [&b""[..], b"a\0b", b"\xff"] {
            assert_eq!(inside(name).map_err(|error| error.code), Err(Code::InvalidArchive), "{name:?}");
        }
    }

    #[test]
    fn only_directories_without_anything_in_them_are_made_for_themselves() {
        let mut empty: BTreeSet<String> = ["a", "a/b", "c"].map(str::to_owned).into();
        forget_parents(&mut empty, "a/b/file");
        assert_eq!(empty.into_iter().collect::<Vec<_>>(), ["c"]);
    }
}
