//! Changes of files as they happen, for an API process.

use domain::Code;
use domain::exchange::{ExchangeError, Item};
use domain::file::{Change, FileChange, FilePath, WatchEnd, WatchEnded};
use sandbox::protocol::{self, ChangeKind, ErrorCode, WatchRequest};
use sandbox::{LinkError, WatchEvent};
use serde_json::Value;

use super::Exchange;
use super::agent::of_link;
use super::files::kind;

impl Exchange {
    pub(super) async fn watch_files(
        &mut self,
        file: &FilePath,
        recursive: bool,
    ) -> Result<(), ExchangeError> {
        self.no_input().await?;
        let request = WatchRequest { root: file.root.clone(), path: file.path.clone(), recursive };
        let mut watch = self.agent().watch(request).await.map_err(unable)?;
        self.send(Item::Message(Value::Null)).await?;
        loop {
            match watch.next().await.map_err(of_link)? {
                WatchEvent::Changes(changes) => {
                    let changes: Vec<FileChange> = changes.into_iter().map(change).collect();
                    self.send(Item::message(&changes)).await?;
                }
                WatchEvent::Ended(ended) => return self.send(Item::message(&end(ended))).await,
            }
        }
    }
}

/// The only thing that a watch could be in conflict with is a kernel that does not tell.
fn unable(error: LinkError) -> ExchangeError {
    match error {
        LinkError::Agent(error) if error.code == ErrorCode::Conflict => {
            let message = "The runtime of this session's sandbox does not tell of changes; list the directory again and again instead.";
            ExchangeError::new(Code::Conflict, message)
        }
        error => of_link(error),
    }
}

fn change(change: protocol::FileChange) -> FileChange {
    let protocol::FileChange { change, path, from, kind: found, size_bytes } = change;
    let change = match change {
        ChangeKind::Created => Change::Created,
        ChangeKind::Modified => Change::Modified,
        ChangeKind::Deleted => Change::Deleted,
        ChangeKind::Moved => Change::Moved,
        ChangeKind::Overflow => Change::Overflow,
    };
    FileChange { change, path, from, kind: found.map(kind), size_bytes }
}

fn end(ended: protocol::WatchEnded) -> WatchEnded {
    let reason = match ended.reason {
        protocol::WatchEnd::DirectoryGone => WatchEnd::DirectoryGone,
        protocol::WatchEnd::LimitExceeded => WatchEnd::LimitExceeded,
    };
    WatchEnded { reason, message: ended.message }
}
