//! Writing a file piece by piece: as fast as the agent takes it, in constant memory.

use std::time::Duration;

use bytes::Bytes;
use protocol::{FileWritten, Reply};
use tokio::time::timeout;

use super::connection::Stream;
use super::inbox::{End, Item};
use crate::LinkError;

/// Time for the agent to take a piece, or to put the whole in its place.
const PIECE_LIMIT: Duration = Duration::from_secs(60);

/// A file that is being written. Dropping it before [`Upload::finish`] leaves what was there before, unless all of an announced
/// size was sent.
#[derive(Debug)]
pub struct Upload {
    stream: Stream,
    size_bytes: u64,
    open_ended: bool,
    sent_bytes: u64,
    /// What came of it when its key was asked for before.
    known: Option<FileWritten>,
}

impl Upload {
    pub(super) fn new(stream: Stream, size_bytes: u64, open_ended: bool) -> Self {
        Self { stream, size_bytes, open_ended, sent_bytes: 0, known: None }
    }

    /// Whether the agent has answered before it had everything: it has the file under this key already, and needs nothing more of it.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.known.is_some()
    }

    /// Takes the agent's answer, if it has come.
    pub(super) fn look(&mut self) -> Result<(), LinkError> {
        if let Some(item) = self.stream.try_next() {
            self.known = Some(answer(item)?);
        }
        Ok(())
    }

    /// Sends the next piece. Nothing more is sent of a file that the agent has under this key already.
    ///
    /// # Errors
    /// What the agent says against it, [`LinkError::TooLarge`] for more than was announced, or that the link ended.
    pub async fn push(&mut self, piece: Bytes) -> Result<(), LinkError> {
        let offset = self.sent_bytes;
        self.sent_bytes += piece.len() as u64;
        if self.sent_bytes > self.size_bytes {
            return Err(LinkError::TooLarge);
        }
        if self.known.is_some() {
            return Ok(());
        }
        let whole = !self.open_ended && self.sent_bytes == self.size_bytes;
        let sent = async {
            if whole {
                // The answer may come before this is done, and belongs to `finish`.
                return self.stream.send_input(offset, piece).await.map(|()| None);
            }
            // The agent may refuse before it has everything, or have it: its answer comes first then.
            tokio::select! {
                biased;
                item = self.stream.next() => answer(item).map(Some),
                sent = self.stream.send_input(offset, piece) => sent.map(|()| None),
            }
        };
        self.known = timeout(PIECE_LIMIT, sent).await.unwrap_or(Err(late()))?;
        Ok(())
    }

    /// All of it was sent: the file takes its place.
    ///
    /// # Errors
    /// What the agent says against it, or that the link ended; then nobody knows whether the file is in place.
    pub async fn finish(self) -> Result<FileWritten, LinkError> {
        if let Some(known) = self.known {
            return Ok(known);
        }
        let finished = async {
            if self.open_ended {
                self.stream.seal_input(self.sent_bytes).await?;
            }
            self.stream.finish_input().await?;
            answer(self.stream.next().await)
        };
        timeout(PIECE_LIMIT, finished).await.unwrap_or(Err(late()))
    }
}

fn answer(item: Result<Item, End>) -> Result<FileWritten, LinkError> {
    match item {
        Ok(Item::Reply(Reply::Written(written))) => Ok(written),
        Ok(Item::Reply(Reply::Error(error))) => Err(error.into()),
        Ok(Item::Reply(_) | Item::Output(_)) => Err(LinkError::Protocol("an answer to another question")),
        Err(End::Closed) => Err(LinkError::Protocol("a stream that ended without an answer")),
        Err(End::Disconnected) => Err(LinkError::Disconnected),
    }
}

fn late() -> LinkError {
    LinkError::Timeout { verb: "write", limit: PIECE_LIMIT }
}
