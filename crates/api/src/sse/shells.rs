//! The log of one shell as a source. Its numbers are offsets in the log: the one behind each piece.

use bytes::Bytes;
use domain::event::OutputPiece;
use domain::{SessionId, Shell, ShellId, ShellStatus, TenantContext};
use serde_json::{Map, Value, json};
use store::{OutputOwner, ShellWatch, StoreError};

use super::encode;
use super::follow::{Change, NoQueue, Read, Rest, Source};
use crate::state::ApiState;

const PAGE_BYTES: u64 = 64 * 1024;

/// The log of one shell.
pub(crate) struct ShellSource {
    state: ApiState,
    context: TenantContext,
    session_id: SessionId,
    shell_id: ShellId,
    offset: u64,
    watch: ShellWatch,
}

/// One event of a shell.
pub(crate) enum ShellItem {
    Output(ShellId, OutputPiece),
    Ended(Box<Shell>),
}

impl ShellSource {
    /// The log from an offset on. `watch` was subscribed before.
    pub(crate) fn new(
        state: ApiState,
        context: TenantContext,
        session_id: SessionId,
        shell_id: ShellId,
        offset: u64,
        watch: ShellWatch,
    ) -> Self {
        Self { state, context, session_id, shell_id, offset, watch }
    }
}

impl Source for ShellSource {
    type Item = ShellItem;

    async fn read(&mut self) -> Result<Read<ShellItem>, StoreError> {
        // The shell first: what it says of its end is then true of the log that is read after it.
        let shell = self.state.store.get_shell(&self.context, self.session_id, self.shell_id).await?;
        let owner = OutputOwner::Shell(self.shell_id);
        let pieces = self.state.store.output_pieces(&self.context, owner, self.offset, PAGE_BYTES).await?;
        let any = !pieces.is_empty();
        let mut items = Vec::with_capacity(pieces.len() + 1);
        for piece in pieces {
            self.offset = piece.log_offset + piece.bytes.len() as u64;
            items.push(ShellItem::Output(self.shell_id, piece));
        }
        let rest = match (any && self.offset < shell.next_offset, shell.status) {
            (true, _) => Rest::More,
            (false, ShellStatus::Running) => Rest::Later,
            (false, ShellStatus::Exited) => {
                // What was dropped at the end of the log counts as seen.
                self.offset = self.offset.max(shell.next_offset);
                items.push(ShellItem::Ended(Box::new(shell)));
                Rest::Nothing
            }
        };
        Ok(Read { items, rest })
    }

    async fn changed(&mut self) -> Change<ShellItem> {
        self.watch.changed().await;
        Change::Look
    }

    fn encode(item: &ShellItem) -> Bytes {
        match item {
            ShellItem::Output(shell_id, piece) => {
                let mut data = Map::new();
                data.insert("shell_id".to_owned(), shell_id.to_string().into());
                data.insert("stream".to_owned(), piece.stream.as_str().into());
                data.insert("offset".to_owned(), piece.log_offset.into());
                match std::str::from_utf8(&piece.bytes) {
                    Ok(text) => data.insert("text".to_owned(), text.into()),
                    Err(_) => {
                        data.insert("base64".to_owned(), data_encoding::BASE64.encode(&piece.bytes).into())
                    }
                };
                let next = piece.log_offset + piece.bytes.len() as u64;
                encode::frame(Some(next), "shell.output", &Value::Object(data))
            }
            ShellItem::Ended(shell) => {
                let data = json!({
                    "shell_id": shell.id,
                    "exit_code": shell.exit_code,
                    "signal": shell.signal,
                    "end_reason": shell.end_reason,
                });
                encode::frame(Some(shell.next_offset), "shell.ended", &data)
            }
        }
    }

    fn position(&self) -> u64 {
        self.offset
    }

    async fn place(&mut self) -> Result<Option<Value>, NoQueue> {
        Err(NoQueue)
    }
}
