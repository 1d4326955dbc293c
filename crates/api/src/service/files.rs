//! Files of a session: asked of its worker, wherever that is. Paths are checked as text here and resolved in the sandbox alone.

use std::pin::pin;

use bytes::Bytes;
use domain::exchange::{Item, Operation, Piece};
use domain::file::{
    DirectoryMade, FileEntry, FileFacts, FileLength, FilePath, FileSaved, FileVersion, FilesListed,
    FilesRemoved, Replace, Unpacked,
};
use domain::limits::{EXCHANGE_DATA_BYTES, UPLOAD_BYTES};
use domain::policy::Question;
use domain::{Code, SessionId, TenantContext};
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt, stream};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use store::AuditRow;
use tokio::sync::mpsc;

use super::policies;
use super::watch::Watch;
use crate::exchange::Duplex;
use crate::problem::Problem;
use crate::state::ApiState;
use crate::transfers::{TransferPermit, read_over};

/// Bytes of an answer. What ends early with an error ends the connection, so that half is not taken for whole.
pub(crate) type Answer = BoxStream<'static, std::io::Result<Bytes>>;

/// What is done to files: the tool whose policy holds for it, and how the audit trail calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Read,
    List,
    Watch,
    Write,
    Move,
    Delete,
    DeleteTree,
}

impl Verb {
    pub(crate) const fn tool(self) -> &'static str {
        match self {
            Self::Read => "read_file",
            Self::List | Self::Watch => "list_files",
            Self::Write | Self::Move => "write_file",
            Self::Delete => "delete_file",
            Self::DeleteTree => "delete_directory",
        }
    }

    const fn action(self) -> &'static str {
        match self {
            Self::Read => "file.read",
            Self::List => "file.list",
            Self::Watch => "file.watch",
            Self::Write => "file.write",
            Self::Move => "file.move",
            Self::Delete | Self::DeleteTree => "file.delete",
        }
    }
}

/// Files of a session of the caller's, for one verb.
pub(crate) struct Files<'a> {
    state: &'a ApiState,
    context: &'a TenantContext,
    session_id: SessionId,
    file: FilePath,
}

/// A path, as far as text can be checked.
pub(crate) fn path(text: &str) -> Result<FilePath, Problem> {
    match tools::sandbox_path(text) {
        Ok(path) => Ok(FilePath { root: path.root.to_owned(), path: path.relative }),
        Err(error) => Err(Problem::new(error.code, error.message)),
    }
}

impl<'a> Files<'a> {
    /// The caller's session, when policy allows the verb; the decision is recorded. What is not there, or another tenant's, is said
    /// before anything else is looked at.
    pub(crate) async fn open(
        state: &'a ApiState,
        context: &'a TenantContext,
        session_id: SessionId,
        verb: Verb,
        path: impl FnOnce() -> Result<FilePath, Problem>,
    ) -> Result<Self, Problem> {
        Self::open_with(state, context, session_id, verb, || Ok((path()?, json!({})))).await
    }

    /// The same with more facts for the audit trail.
    pub(crate) async fn open_with(
        state: &'a ApiState,
        context: &'a TenantContext,
        session_id: SessionId,
        verb: Verb,
        path: impl FnOnce() -> Result<(FilePath, Value), Problem>,
    ) -> Result<Self, Problem> {
        super::sessions::policy(state, context, session_id).await?;
        let (file, mut details) = path()?;
        details["path"] = file.absolute().into();
        let question = Question { tool: verb.tool(), toolkit: "files" };
        let row = AuditRow::done(verb.action(), session_id);
        policies::allow(state, context, session_id, question, row, details).await?;
        Ok(Self { state, context, session_id, file })
    }

    /// What is meant.
    pub(crate) fn file(&self) -> &FilePath {
        &self.file
    }

    /// What is at the path.
    pub(crate) async fn stat(&self) -> Result<FileFacts, Problem> {
        self.ask(Operation::StatFile { file: self.file.clone() }).await
    }

    /// Bytes of this version of the file, as they are asked for. [`Code::StaleRead`] when it is another one by now.
    pub(crate) async fn read(&self, from: u64, to: u64, version: FileVersion) -> Result<Answer, Problem> {
        let operation = Operation::ReadFile { file: self.file.clone(), from, to, version };
        let permit = self.transfer()?;
        let mut duplex = self.exchange(operation).await?;
        // The first piece tells whether there is anything to answer with.
        match self.step(&mut duplex).await? {
            Some(first) => Ok(rest(Some(first), duplex, permit)),
            None => Ok(stream::empty().boxed()),
        }
    }

    /// Writes the file from what a client sends, wholly or not at all. `announced` is how much that is, if it said so.
    pub(crate) async fn write(
        &self,
        replace: Replace,
        permissions: Option<u32>,
        announced: Option<u64>,
        pieces: impl Stream<Item = Result<Bytes, Problem>> + Send,
    ) -> Result<FileSaved, Problem> {
        let length = match announced {
            Some(bytes) if bytes > UPLOAD_BYTES => return Err(too_large()),
            Some(bytes) => FileLength::Bytes(bytes),
            None => FileLength::AtMost(UPLOAD_BYTES),
        };
        let operation = Operation::WriteFile { file: self.file.clone(), length, replace, permissions };
        let _permit = self.transfer()?;
        self.send(operation, bounded(pieces)).await
    }

    /// Writes a file below the directory, from pieces that are bounded already.
    pub(super) async fn write_at(
        &self,
        file: &FilePath,
        replace: Replace,
        permissions: Option<u32>,
        pieces: impl Stream<Item = Result<Bytes, Problem>> + Send,
    ) -> Result<FileSaved, Problem> {
        let length = FileLength::AtMost(UPLOAD_BYTES);
        let operation = Operation::WriteFile { file: file.clone(), length, replace, permissions };
        self.send(operation, pieces.fuse()).await
    }

    /// Removes the file or directory.
    pub(crate) async fn remove(&self, recursive: bool) -> Result<FilesRemoved, Problem> {
        self.ask(Operation::RemoveFile { file: self.file.clone(), recursive }).await
    }

    /// Lists the directory.
    pub(crate) async fn list(
        &self,
        max_depth: u32,
        include_hidden: bool,
        limit: u32,
    ) -> Result<(Vec<FileEntry>, FilesListed), Problem> {
        let file = self.file.clone();
        let operation = Operation::ListFiles { file, max_depth, include_hidden, limit };
        let mut duplex = self.exchange(operation).await?;
        let (mut entries, mut last) = (Vec::new(), None);
        while let Some(piece) = self.step(&mut duplex).await? {
            match piece {
                Piece::Message(message) if message.is_array() => {
                    entries.extend(Piece::Message(message).into_message::<Vec<FileEntry>>()?);
                }
                piece => last = Some(piece.into_message::<FilesListed>()?),
            }
        }
        let last = last.ok_or_else(|| Problem::internal("list files", &"no end of a listing"))?;
        Ok((entries, last))
    }

    /// The directory as a tar archive.
    pub(crate) async fn pack(&self) -> Result<Answer, Problem> {
        let permit = self.transfer()?;
        let mut duplex = self.exchange(Operation::PackFiles { file: self.file.clone() }).await?;
        match self.step(&mut duplex).await? {
            Some(Piece::Message(_)) => Ok(rest(None, duplex, permit)),
            other => Err(Problem::internal("pack files", &format!("{other:?} in place of a beginning"))),
        }
    }

    /// Takes files out of a tar archive into the directory.
    pub(crate) async fn unpack(
        &self,
        pieces: impl Stream<Item = Result<Bytes, Problem>> + Send,
    ) -> Result<Unpacked, Problem> {
        let operation = Operation::UnpackFiles { file: self.file.clone() };
        let _permit = self.transfer()?;
        self.send(operation, bounded(pieces)).await
    }

    /// Gives what is at the path another one.
    pub(crate) async fn rename(&self, to: FilePath, replace: bool) -> Result<(), Problem> {
        let operation = Operation::MoveFile { file: self.file.clone(), to, replace };
        self.ask::<()>(operation).await
    }

    /// Makes the directory and those above it.
    pub(crate) async fn make_directory(&self) -> Result<DirectoryMade, Problem> {
        self.ask(Operation::MakeDirectory { file: self.file.clone() }).await
    }

    /// Watches the directory.
    pub(crate) async fn watch(&self, recursive: bool) -> Result<Watch, Problem> {
        Watch::open(self.state, self.context, self.session_id, self.file.clone(), recursive).await
    }

    /// A place among the tenant's and the session's transfers.
    pub(super) fn transfer(&self) -> Result<TransferPermit, Problem> {
        self.state.transfers.open(self.context.tenant_id(), Some(self.session_id))
    }

    async fn duplex(&self, operation: Operation) -> Result<Duplex, Problem> {
        self.state.open_exchange(self.context, self.session_id, operation).await
    }

    /// An operation without input.
    async fn exchange(&self, operation: Operation) -> Result<Duplex, Problem> {
        let duplex = self.duplex(operation).await?;
        // When it is not taken there is an answer that says why.
        let _ = duplex.to.send(Item::End).await;
        Ok(duplex)
    }

    /// An operation without input that answers with one message.
    async fn ask<T: DeserializeOwned>(&self, operation: Operation) -> Result<T, Problem> {
        let mut duplex = self.exchange(operation).await?;
        self.come_to(answer(&mut duplex.from).await).await
    }

    /// An operation with what a client sends, which answers with one message.
    async fn send<T: DeserializeOwned>(
        &self,
        operation: Operation,
        pieces: impl Stream<Item = Result<Bytes, Problem>>,
    ) -> Result<T, Problem> {
        let duplex = self.duplex(operation).await?;
        self.come_to(send(duplex, pieces).await).await
    }

    /// The next piece of an answer; `None` at its end.
    async fn step(&self, duplex: &mut Duplex) -> Result<Option<Piece>, Problem> {
        self.come_to(Item::step(duplex.from.recv().await)).await
    }

    /// See [`ApiState::come_to`].
    async fn come_to<T>(&self, outcome: Result<T, impl Into<Problem>>) -> Result<T, Problem> {
        self.state.come_to(self.context, self.session_id, outcome).await
    }
}

/// That an upload is larger than any may be.
pub(crate) fn too_large() -> Problem {
    Problem::new(Code::BodyTooLarge, format!("An upload may have at most {UPLOAD_BYTES} bytes."))
}

/// The same, broken off when it is too much.
pub(crate) fn bounded(
    pieces: impl Stream<Item = Result<Bytes, Problem>> + Send,
) -> impl Stream<Item = Result<Bytes, Problem>> + Send {
    let bounded = pieces.scan(0, |sum, piece| {
        let piece = piece.and_then(|piece| {
            *sum += piece.len() as u64;
            if *sum > UPLOAD_BYTES { Err(too_large()) } else { Ok(piece) }
        });
        std::future::ready(Some(piece))
    });
    // Whoever reads over what a refused client still sends may ask once more behind the end.
    bounded.fuse()
}

async fn answer<T: DeserializeOwned>(from: &mut mpsc::Receiver<Item>) -> Result<T, Problem> {
    match Item::step(from.recv().await)? {
        Some(piece) => Ok(piece.into_message()?),
        None => Err(Problem::internal("exchange with the worker", &"an end in place of an answer")),
    }
}

/// Sends pieces and takes the answer, which may come early when it is a refusal. Whatever ends before the last piece breaks
/// the operation off.
async fn send<T: DeserializeOwned>(
    duplex: Duplex,
    pieces: impl Stream<Item = Result<Bytes, Problem>>,
) -> Result<T, Problem> {
    let Duplex { to, mut from } = duplex;
    let mut pieces = pin!(pieces);
    let sending = async {
        while let Some(piece) = pieces.next().await {
            let mut piece = piece?;
            while !piece.is_empty() {
                let part = piece.split_to(piece.len().min(EXCHANGE_DATA_BYTES));
                if to.send(Item::Data(part)).await.is_err() {
                    // The answer says why nobody listens.
                    return Ok(());
                }
            }
        }
        let _ = to.send(Item::End).await;
        Ok::<(), Problem>(())
    };
    tokio::select! {
        biased;
        early = answer(&mut from) => {
            if early.is_err() {
                read_over(pieces).await;
            }
            return early;
        }
        sent = sending => sent?,
    }
    answer(&mut from).await
}

/// The pieces of an answer, as they are taken.
fn rest(first: Option<Piece>, duplex: Duplex, permit: TransferPermit) -> Answer {
    let pieces = stream::try_unfold((first, duplex, permit), |(first, mut duplex, permit)| async move {
        let piece = match first {
            Some(piece) => Some(piece),
            None => Item::step(duplex.from.recv().await).map_err(std::io::Error::other)?,
        };
        match piece {
            Some(Piece::Data(bytes)) => Ok(Some((bytes, (None, duplex, permit)))),
            Some(Piece::Message(_)) => Err(std::io::Error::other("a message among bytes")),
            None => Ok(None),
        }
    });
    pieces.boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_has_ended_may_be_asked_once_more() {
        let pieces =
            stream::unfold(
                Some(()),
                |left| async move { left.map(|()| (Ok(Bytes::from_static(b"x")), None)) },
            );
        let mut pieces = pin!(bounded(pieces));
        assert!(pieces.next().await.is_some());
        assert!(pieces.next().await.is_none());
        assert!(pieces.next().await.is_none());
    }

    #[tokio::test]
    async fn what_is_not_announced_is_counted_to_the_byte() {
        // The same bytes again and again.
        let piece = Bytes::from(vec![0; 1 << 20]);
        let whole = usize::try_from(UPLOAD_BYTES).expect("fits") / piece.len();
        let upload = |more: &'static [u8]| {
            let all =
                stream::repeat(piece.clone()).take(whole).chain(stream::iter([Bytes::from_static(more)]));
            bounded(all.map(Ok))
        };
        let taken = upload(b"").all(|piece| std::future::ready(piece.is_ok())).await;
        assert!(taken, "exactly as much as may be");
        let codes = upload(b"x").filter_map(|piece| std::future::ready(piece.err()));
        let codes: Vec<Code> = codes.map(|problem| problem.code).collect().await;
        assert_eq!(codes, [Code::BodyTooLarge]);
    }
}
