//! The log of one shell as a source. Its numbers are offsets in the log: the one behind each piece.

use bytes::Bytes;
use domain::event::OutputPiece;
use domain::{SessionId, Shell, ShellId, ShellStatus, TenantContext};
use serde_json::{Map, Value};
use store::{OutputOwner, ShellWatch, StoreError};

use super::encode;
use super::follow::{Change, NoQueue, Read, Rest, Source};
use crate::service::shells::END_OF_LOG;
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

impl ShellSource {
    /// What an event says.
    pub(crate) fn data(item: &ShellItem) -> Map<String, Value> {
        let mut data = Map::new();
        let mut say = |name: &str, value: Value| data.insert(name.to_owned(), value);
        match item {
            ShellItem::Output(shell_id, piece) => {
                say("shell_id", shell_id.to_string().into());
                say("stream", piece.stream.as_str().into());
                say("offset", piece.log_offset.into());
                say("next_offset", end_of(piece).into());
                match std::str::from_utf8(&piece.bytes) {
                    Ok(text) => say("text", text.into()),
                    Err(_) => say("base64", data_encoding::BASE64.encode(&piece.bytes).into()),
                };
            }
            ShellItem::Ended(shell) => {
                say("shell_id", shell.id.to_string().into());
                say("exit_code", shell.exit_code.into());
                say("signal", shell.signal.clone().into());
                say("end_reason", shell.end_reason.clone().into());
                say("next_offset", shell.next_offset.into());
            }
        }
        data
    }
}

fn end_of(piece: &OutputPiece) -> u64 {
    piece.log_offset + piece.bytes.len() as u64
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
        let data = Value::Object(Self::data(item));
        match item {
            ShellItem::Output(_, piece) => encode::frame(Some(end_of(piece)), "shell.output", &data),
            ShellItem::Ended(shell) => {
                let id = format!("{}{END_OF_LOG}", shell.next_offset);
                encode::frame_with_id(&id, "shell.ended", &data)
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
