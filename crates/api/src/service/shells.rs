//! Shells: made as calls, read from the store, and spoken to through the worker that has their session.

use std::time::Duration;

use bytes::Bytes;
use domain::exchange::{ExchangeError, Item, Operation, Piece, ShellOrder, ShellTold};
use domain::limits::EXCHANGE_DATA_BYTES;
use domain::policy::{Decision, Question, evaluate};
use domain::{Call, CallStatus, Code, QueuePlace, SessionId, Shell, ShellId, ShellStatus, TenantContext};
use serde_json::json;
use store::{AuditRow, Idempotency, OutputOwner};

use super::sessions::Replay;
use super::{calls, policies, sessions};
use crate::exchange::Duplex;
use crate::json::Checks;
use crate::problem::Problem;
use crate::state::ApiState;
use crate::wire::shells::{CreateShell, ShellChunk, ShellOutput};

/// What became of the wish for a shell.
pub(crate) enum Made {
    /// It runs, or has run.
    Shell(Box<Shell>),
    /// Its call has not come so far yet.
    Pending(Box<Call>, Option<QueuePlace>),
}

/// Starts a shell: a call of `bash` in the background, which is waited for.
pub(crate) async fn create(
    state: &ApiState,
    context: &TenantContext,
    session_id: SessionId,
    (request, checks): (CreateShell, Checks),
    idempotency: Option<Idempotency>,
) -> Result<(Made, Replay), Problem> {
    let wait_ms = request.wait_ms;
    let target = calls::Target::Session(session_id);
    let submitted = calls::submit(state, context, target, (request.into_call(), checks), idempotency)
        .await
        .map_err(without_arguments)?;
    let submitted = calls::wait(state, context, submitted, wait_ms).await;
    let (call, replay) = (submitted.call, submitted.replay);
    let result = call.result.as_ref();
    let shell_id = result.and_then(|result| result.structured["shell_id"].as_str()?.parse().ok());
    let made = match (call.status, shell_id) {
        (CallStatus::Succeeded, Some(shell_id)) => {
            Made::Shell(Box::new(state.store.get_shell(context, session_id, shell_id).await?))
        }
        (status, _) if !status.is_terminal() => Made::Pending(Box::new(call), submitted.place),
        _ => return Err(not_made(&call)),
    };
    Ok((made, replay))
}

/// The fields of a shell are arguments of its call: what is wrong with them is told under their own names.
fn without_arguments(mut problem: Problem) -> Problem {
    for error in &mut problem.errors {
        if let Some(own) = error.pointer.strip_prefix("/arguments") {
            error.pointer = own.to_owned();
        }
    }
    problem.detail = problem.detail.replace("`/arguments/", "`/");
    problem
}

fn not_made(call: &Call) -> Problem {
    let problem = match &call.error {
        Some(error) => Problem::new(error.code, error.message.clone()),
        None => Problem::new(Code::StartFailed, "The command could not be started."),
    };
    problem.with("call_id", call.id.to_string())
}

/// Writes to a shell's stdin, and closes it afterwards if asked to. Returns the bytes that it took.
pub(crate) async fn input(
    state: &ApiState,
    context: &TenantContext,
    session_id: SessionId,
    id: ShellId,
    bytes: &[u8],
    close: bool,
) -> Result<u64, Problem> {
    let mut line = Line::open(state, context, session_id, id, Verb::Input).await?;
    let mut taken = 0;
    for piece in bytes.chunks(EXCHANGE_DATA_BYTES) {
        let told = line.tell(Item::Data(Bytes::copy_from_slice(piece))).await?;
        taken += told.taken_bytes;
        if told.taken_bytes < piece.len() as u64 {
            // What follows must not be written behind a hole.
            return Ok(taken);
        }
    }
    if close {
        line.tell(Item::message(&ShellOrder::CloseInput)).await?;
    }
    line.hang_up().await?;
    Ok(taken)
}

/// Tells a shell something. Returns it as it is afterwards.
pub(crate) async fn order(
    state: &ApiState,
    context: &TenantContext,
    session_id: SessionId,
    id: ShellId,
    order: ShellOrder,
) -> Result<Shell, Problem> {
    let mut line = Line::open(state, context, session_id, id, Verb::of(order)).await?;
    line.tell(Item::message(&order)).await?;
    line.hang_up().await?;
    get(state, context, session_id, id).await
}

/// Ends a shell and everything that it started.
pub(crate) async fn end(
    state: &ApiState,
    context: &TenantContext,
    session_id: SessionId,
    id: ShellId,
    grace: Duration,
) -> Result<Shell, Problem> {
    let shell = get(state, context, session_id, id).await?;
    if shell.status == ShellStatus::Exited {
        return Ok(shell);
    }
    let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
    match order(state, context, session_id, id, ShellOrder::End { grace_ms }).await {
        // It ended meanwhile.
        Err(problem) if problem.code == Code::ShellEnded => get(state, context, session_id, id).await,
        other => other,
    }
}

/// What is asked of a shell: the tool whose policy holds for it, and how the audit trail calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Attach,
    Input,
    Signal,
    Resize,
    End,
}

impl Verb {
    fn of(order: ShellOrder) -> Self {
        match order {
            ShellOrder::CloseInput => Self::Input,
            ShellOrder::Signal { .. } => Self::Signal,
            ShellOrder::Resize { .. } => Self::Resize,
            ShellOrder::End { .. } => Self::End,
        }
    }

    const fn tool(self) -> &'static str {
        match self {
            Self::Attach | Self::Input | Self::Signal | Self::Resize => "bash_input",
            Self::End => "kill_bash",
        }
    }

    const fn action(self) -> &'static str {
        match self {
            Self::Attach => "shell.attach",
            Self::Input => "shell.input",
            Self::Signal => "shell.signal",
            Self::Resize => "shell.resize",
            Self::End => "shell.kill",
        }
    }
}

/// Whether policy lets this be done, as it would decide about the tool that does the same. The decision is recorded.
pub(crate) async fn allow(
    state: &ApiState,
    context: &TenantContext,
    session_id: SessionId,
    id: ShellId,
    verb: Verb,
) -> Result<(), Problem> {
    let question = Question { tool: verb.tool(), toolkit: "shell" };
    let row = AuditRow::done(verb.action(), id);
    policies::allow(state, context, session_id, question, row, json!({})).await
}

/// What policy says of it now, for what is open already. Nothing is recorded.
pub(crate) async fn may(
    state: &ApiState,
    context: &TenantContext,
    session_id: SessionId,
    verb: Verb,
) -> Result<Decision, Problem> {
    let session = sessions::policy(state, context, session_id).await?;
    let layers = policies::layers(state, context, session.as_deref());
    Ok(evaluate(&layers, Question { tool: verb.tool(), toolkit: "shell" }))
}

/// An open way to a running shell.
pub(crate) struct Line {
    state: ApiState,
    context: TenantContext,
    session_id: SessionId,
    duplex: Duplex,
}

impl Line {
    /// Opens it for a verb that policy allows.
    pub(crate) async fn open(
        state: &ApiState,
        context: &TenantContext,
        session_id: SessionId,
        id: ShellId,
        verb: Verb,
    ) -> Result<Self, Problem> {
        let shell = get(state, context, session_id, id).await?;
        allow(state, context, session_id, id, verb).await?;
        if shell.status == ShellStatus::Exited {
            return Err(Problem::new(Code::ShellEnded, format!("The shell {id} has ended.")));
        }
        Self::reopen(state, context, session_id, id).await
    }

    /// Opens it again for who was allowed before.
    pub(crate) async fn reopen(
        state: &ApiState,
        context: &TenantContext,
        session_id: SessionId,
        id: ShellId,
    ) -> Result<Self, Problem> {
        let duplex = state.open_exchange(context, session_id, Operation::Shell { shell_id: id }).await?;
        Ok(Self { state: state.clone(), context: context.clone(), session_id, duplex })
    }

    /// Sends one item and waits until it is taken in.
    pub(crate) async fn tell(&mut self, item: Item) -> Result<ShellTold, Problem> {
        // When it is not taken there is an answer that says why.
        let _ = self.duplex.to.send(item).await;
        match self.step().await? {
            Some(piece) => Ok(piece.into_message()?),
            None => Err(ExchangeError::broken_off().into()),
        }
    }

    /// Ends it in order.
    async fn hang_up(mut self) -> Result<(), Problem> {
        let _ = self.duplex.to.send(Item::End).await;
        while self.step().await?.is_some() {}
        Ok(())
    }

    async fn step(&mut self) -> Result<Option<Piece>, Problem> {
        let received = Item::step(self.duplex.from.recv().await);
        self.state.come_to(&self.context, self.session_id, received).await
    }
}

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

/// How far a client has come in a shell's log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ShellCursor {
    /// The offset to read on from.
    pub(crate) offset: u64,
    /// It has seen how the shell ended: there is nothing after that.
    pub(crate) saw_the_end: bool,
}

/// A cursor as a client gives it back: an offset, with `-end` behind it once the end was seen.
pub(crate) fn parse_cursor(text: &str) -> Result<ShellCursor, Problem> {
    let (number, saw_the_end) = match text.strip_suffix(END_OF_LOG) {
        Some(number) => (number, true),
        None => (text, false),
    };
    let offset = super::events::plain_number(number)
        .ok_or_else(|| invalid_cursor("It is a whole number of bytes."))?;
    Ok(ShellCursor { offset, saw_the_end })
}

/// What the id of the last event of a shell ends with: its number alone is that of the last output before it.
pub(crate) const END_OF_LOG: &str = "-end";

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
