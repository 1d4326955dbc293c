//! What tools that read a shell share: its id, its state, and pieces of its log as chunks. Reading never loses anything.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use domain::event::OutputPiece;
use domain::{Shell, ShellId, ShellName, ShellStatus, StreamName};
use schemars::JsonSchema;
use serde::Serialize;

use crate::port::{Captured, ShellOutput};
use crate::shape::{self, Rest, Shaped};
use crate::{ArgumentProblem, Context, ToolError};

/// A piece of a shell's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Chunk {
    /// `stdout` or `stderr`.
    stream: &'static str,
    /// Offset of its first byte in the shell's log (both streams together).
    offset: u64,
    /// The bytes as text, when they are UTF-8 without NUL.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// The bytes in base64, when not.
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

/// How a shell is, as a result says it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct State {
    /// The shell.
    pub(crate) shell_id: String,
    /// It still runs.
    pub(crate) running: bool,
    /// Null while it runs and when a signal ended it.
    pub(crate) exit_code: Option<i32>,
    /// Signal that ended it, such as SIGTERM.
    pub(crate) signal: Option<String>,
    /// Why it ended when not by itself: killed, timeout, oom, session_ended, sandbox_lost.
    pub(crate) end_reason: Option<String>,
}

impl State {
    pub(crate) fn of(shell: &Shell) -> Self {
        Self {
            shell_id: shell.id.to_string(),
            running: shell.status == ShellStatus::Running,
            exit_code: shell.exit_code,
            signal: shell.signal.clone(),
            end_reason: shell.end_reason.clone(),
        }
    }

    /// One line for a model.
    pub(crate) fn line(&self) -> String {
        let id = &self.shell_id;
        if self.running {
            return format!("[{id} is running]");
        }
        let how = match (&self.signal, self.exit_code) {
            (Some(signal), _) => format!("was ended by {signal}"),
            (None, Some(code)) => format!("ended with exit code {code}"),
            (None, None) => "ended".to_owned(),
        };
        match &self.end_reason {
            Some(reason) => format!("[{id} {how} ({reason})]"),
            None => format!("[{id} {how}]"),
        }
    }
}

/// The problem of a text that names no shell.
pub(crate) fn check_name(text: &str) -> Option<ArgumentProblem> {
    let error = match (text.parse::<ShellId>(), text.starts_with("shell_"), text.parse::<ShellName>()) {
        (Ok(_), ..) | (Err(_), false, Ok(_)) => return None,
        (Err(error), true, _) => error.to_string(),
        (Err(_), false, Err(error)) => error.to_string(),
    };
    let message = format!("is neither a shell's id nor the name of one: {error}; list_bash lists them");
    Some(ArgumentProblem::new("/shell_id", message))
}

/// The shell that is meant, by id, or the newest that began as the named shell of the name.
pub(crate) async fn find(cx: &Context, text: &str) -> Result<Shell, ToolError> {
    if let Ok(id) = text.parse() {
        return cx.shells.get(id).await;
    }
    let has_name = |shell: &Shell| shell.name.as_ref().is_some_and(|name| name.as_str() == text);
    // By its own time: calls that wait start their shells after those that came later.
    let before = cx.shells.run_before_at();
    let was_there = |shell: &Shell| before.is_none_or(|before| shell.created_at <= before);
    let shells = cx.shells.list().await?.into_iter();
    let newest =
        shells.filter(|shell| has_name(shell) && was_there(shell)).max_by_key(|shell| shell.created_at);
    newest.ok_or_else(|| {
        let message = format!("No command of this session was started in the background as {text}.");
        ToolError::new(domain::Code::ShellNotFound, message).hint(
            "list_bash lists those that were. What ran in a named shell and ended with its call has its output in the call's result.",
        )
    })
}

/// Pieces in order, those of one stream that follow each other joined.
pub(crate) fn joined(pieces: Vec<OutputPiece>) -> Vec<OutputPiece> {
    let mut joined: Vec<OutputPiece> = Vec::new();
    for piece in pieces {
        match joined.last_mut() {
            Some(last)
                if last.stream == piece.stream
                    && last.log_offset + last.bytes.len() as u64 == piece.log_offset =>
            {
                last.bytes.extend(piece.bytes);
            }
            _ => joined.push(piece),
        }
    }
    joined
}

/// Pieces as a result carries them.
pub(crate) fn chunks(pieces: &[OutputPiece]) -> Vec<Chunk> {
    pieces
        .iter()
        .map(|piece| {
            let text = std::str::from_utf8(&piece.bytes).ok().filter(|text| domain::text::is_storable(text));
            Chunk {
                stream: piece.stream.as_str(),
                offset: piece.log_offset,
                text: text.map(str::to_owned),
                base64: text.is_none().then(|| STANDARD.encode(&piece.bytes)),
            }
        })
        .collect()
}

/// Pieces whose bytes are text made of the log, as a result carries them: each at the offset of what it was made of.
pub(crate) fn texts(pieces: &[OutputPiece]) -> Vec<Chunk> {
    let mut chunks = chunks(pieces);
    chunks.retain(|chunk| chunk.text.as_deref() != Some(""));
    chunks
}

/// Pieces as a model reads them: stdout, then stderr, within the budget.
pub(crate) fn shaped(pieces: &[OutputPiece], budget_bytes: u64) -> Shaped {
    let of = |stream: StreamName| {
        let mine = pieces.iter().filter(|piece| piece.stream == stream);
        let head: Vec<u8> = mine.flat_map(|piece| piece.bytes.iter().copied()).collect();
        Captured { total_bytes: head.len() as u64, tail: Vec::new(), head }
    };
    shape::command(&of(StreamName::Stdout), &of(StreamName::Stderr), budget_bytes, Rest::Elsewhere)
}

/// A line about bytes that are no longer kept, if there are any.
pub(crate) fn dropped_line(output: &ShellOutput) -> Option<String> {
    (output.dropped_bytes > 0).then(|| format!("[{} bytes are no longer kept]", output.dropped_bytes))
}
