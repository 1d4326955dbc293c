//! Shells, as far as they can be read: who writes to them is a tool.

use domain::{Code, SessionId, Shell, ShellId, ShellStatus, TenantContext};
use store::OutputOwner;

use crate::problem::Problem;
use crate::state::ApiState;
use crate::wire::shells::{ShellChunk, ShellOutput};

/// All shells of a session, newest first.
pub(crate) async fn list(
    state: &ApiState,
    context: &TenantContext,
    session_id: SessionId,
) -> Result<Vec<Shell>, Problem> {
    state.store.get_session(context, session_id).await?;
    Ok(state.store.list_shells(context, session_id).await?)
}

/// One shell.
pub(crate) async fn get(
    state: &ApiState,
    context: &TenantContext,
    session_id: SessionId,
    id: ShellId,
) -> Result<Shell, Problem> {
    Ok(state.store.get_shell(context, session_id, id).await?)
}

/// Refuses to read from behind the end of a shell's log.
pub(crate) fn check_offset(shell: &Shell, offset: u64) -> Result<(), Problem> {
    if offset <= shell.next_offset {
        return Ok(());
    }
    let detail = format!("The log of this shell has {} bytes so far.", shell.next_offset);
    Err(invalid_cursor(&detail))
}

/// An offset in a shell's log, as a client gives it.
pub(crate) fn parse_offset(text: &str) -> Result<u64, Problem> {
    super::events::plain_number(text).ok_or_else(|| invalid_cursor("It is a whole number of bytes."))
}

fn invalid_cursor(detail: &str) -> Problem {
    Problem::new(
        Code::InvalidCursor,
        format!("The cursor is not an offset in the log of this shell. {detail}"),
    )
}

/// Part of a shell's log.
pub(crate) async fn output(
    state: &ApiState,
    context: &TenantContext,
    session_id: SessionId,
    id: ShellId,
    since_offset: u64,
    max_bytes: u64,
) -> Result<ShellOutput, Problem> {
    let shell = state.store.get_shell(context, session_id, id).await?;
    check_offset(&shell, since_offset)?;
    let owner = OutputOwner::Shell(id);
    let pieces = state.store.output_pieces(context, owner, since_offset, max_bytes).await?;
    let mut next_offset = since_offset;
    let mut kept = 0;
    let mut chunks = Vec::with_capacity(pieces.len());
    for piece in pieces {
        kept += piece.bytes.len() as u64;
        next_offset = piece.log_offset + piece.bytes.len() as u64;
        let text = String::from_utf8(piece.bytes);
        let (text, base64) = match text {
            Ok(text) => (Some(text), None),
            Err(error) => (None, Some(data_encoding::BASE64.encode(error.as_bytes()))),
        };
        chunks.push(ShellChunk { stream: piece.stream, offset: piece.log_offset, text, base64 });
    }
    if chunks.is_empty() {
        next_offset = since_offset.max(shell.next_offset);
    }
    let dropped_bytes = next_offset.saturating_sub(since_offset).saturating_sub(kept);
    let running = shell.status == ShellStatus::Running;
    let exit_code = shell.exit_code;
    Ok(ShellOutput {
        object: "shell_output",
        shell_id: id,
        chunks,
        next_offset,
        dropped_bytes,
        running,
        exit_code,
    })
}
