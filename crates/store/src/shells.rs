//! Shells: commands in the background, with a log of their own or their call's.

use domain::event::OutputPiece;
use domain::{CallId, SessionId, Shell, ShellId, StreamName, TenantContext};

use crate::sessions::SessionFence;
use crate::{Result, Store};

/// A shell to be recorded.
#[derive(Debug, Clone)]
pub struct NewShell {
    /// Its id, from [`crate::Clock::new_id`].
    pub id: ShellId,
    /// The call that started it.
    pub call_id: CallId,
    /// Operation of that call under which the agent knows it.
    pub operation: u32,
    /// The command's text.
    pub command: String,
    /// Why it runs.
    pub description: Option<String>,
    /// Where its log is.
    pub log: ShellLog,
}

/// Where a shell's log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShellLog {
    /// Its own, from the first byte on.
    Own,
    /// It goes on with the log of its call, which has written already.
    OfCall,
}

/// How a shell ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShellEnd {
    /// Exit code, unless a signal ended it.
    pub exit_code: Option<i32>,
    /// Name of the signal that ended it.
    pub signal: Option<String>,
    /// Why, when not by itself: see [`Shell::end_reason`].
    pub end_reason: Option<String>,
}

impl Store {
    /// Records a shell of the fence's session. Idempotent by id.
    pub async fn create_shell(&self, fence: &SessionFence, new: NewShell) -> Result<Shell> {
        todo!()
    }

    /// Adds to a shell's log. Pieces that are there already are left as they are, so a batch may be sent again.
    /// Bytes that were dropped from the middle count in `next_offset` alone.
    pub async fn append_shell_output(
        &self,
        fence: &SessionFence,
        shell: ShellId,
        pieces: Vec<OutputPiece>,
        next_offset: u64,
    ) -> Result<()> {
        todo!()
    }

    /// A shell's process tree is gone. Ending twice changes nothing.
    pub async fn finish_shell(&self, fence: &SessionFence, shell: ShellId, end: ShellEnd) -> Result<Shell> {
        todo!()
    }

    /// Shells of a session that run, for its worker.
    pub async fn shells_running(&self, session: SessionId) -> Result<Vec<Shell>> {
        todo!()
    }

    /// One shell of a session of the tenant.
    pub async fn get_shell(&self, context: &TenantContext, session: SessionId, id: ShellId) -> Result<Shell> {
        todo!()
    }

    /// All shells of a session of the tenant, newest first, at most [`domain::limits::PAGE_ITEMS`].
    pub async fn list_shells(&self, context: &TenantContext, session: SessionId) -> Result<Vec<Shell>> {
        todo!()
    }
}

impl ShellLog {
    /// The streams that a log has.
    pub const STREAMS: [StreamName; 2] = [StreamName::Stdout, StreamName::Stderr];
}
