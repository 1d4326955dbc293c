//! A directory that the agent watches: its changes, as they are taken.

use std::time::Duration;

use bytes::BytesMut;
use protocol::{FileChange, Reply, WatchEnded};
use tokio::time::timeout;

use super::connection::Stream;
use super::inbox::{End, Item};
use crate::LinkError;

/// Time for an agent to find all directories.
const BEGIN_LIMIT: Duration = Duration::from_secs(60);
/// Longest change: two paths of 64 names as JSON, each character escaped.
const LINE_BYTES: usize = 256 * 1024;

/// What a watch tells.
#[derive(Debug, Clone, PartialEq)]
pub enum WatchEvent {
    /// At least one change, in their order.
    Changes(Vec<FileChange>),
    /// It is over.
    Ended(WatchEnded),
}

/// A directory that is watched. Dropping it ends that.
///
/// Changes that are not taken fill a window; then the agent waits, and what the kernel cannot keep meanwhile is told as an overflow.
#[derive(Debug)]
pub struct FileWatch {
    stream: Stream,
    held: BytesMut,
    /// Behind what was handed out.
    offset: u64,
}

impl FileWatch {
    pub(super) async fn begin(stream: Stream) -> Result<Self, LinkError> {
        match timeout(BEGIN_LIMIT, stream.next()).await {
            Err(_) => Err(LinkError::Timeout { verb: "watch", limit: BEGIN_LIMIT }),
            Ok(Ok(Item::Reply(Reply::Watching))) => Ok(Self { stream, held: BytesMut::new(), offset: 0 }),
            Ok(Ok(Item::Reply(Reply::Error(error)))) => Err(error.into()),
            Ok(Ok(_)) => Err(LinkError::Protocol("an answer to another question")),
            Ok(Err(End::Closed)) => Err(LinkError::Protocol("a stream that ended without an answer")),
            Ok(Err(End::Disconnected)) => Err(LinkError::Disconnected),
        }
    }

    /// The next changes, or the end. What was handed out before counts as taken. Cancel-safe.
    ///
    /// # Errors
    /// [`LinkError::Disconnected`] when the connection ended: the directory may be watched anew, and what happened meanwhile is lost.
    pub async fn next(&mut self) -> Result<WatchEvent, LinkError> {
        self.stream.ack(self.offset);
        loop {
            match self.stream.next().await {
                Ok(Item::Output(output)) => {
                    self.held.extend_from_slice(&output.bytes);
                    self.offset = output.offset + output.bytes.len() as u64;
                }
                Ok(Item::Reply(Reply::WatchEnded(ended))) => return Ok(WatchEvent::Ended(ended)),
                Ok(Item::Reply(Reply::Error(error))) => return Err(error.into()),
                Ok(Item::Reply(_)) => return Err(LinkError::Protocol("an answer to another question")),
                Err(End::Closed | End::Disconnected) => return Err(LinkError::Disconnected),
            }
            let Some(end) = self.held.iter().rposition(|byte| *byte == b'\n') else {
                if self.held.len() > LINE_BYTES {
                    return Err(LinkError::Protocol("a change that does not end"));
                }
                continue;
            };
            let lines = self.held.split_to(end + 1);
            let lines = lines[..].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            let changes: Result<Vec<FileChange>, _> = lines.map(serde_json::from_slice).collect();
            return match changes {
                Ok(changes) => Ok(WatchEvent::Changes(changes)),
                Err(_) => Err(LinkError::Protocol("a change that is not understood")),
            };
        }
    }
}
