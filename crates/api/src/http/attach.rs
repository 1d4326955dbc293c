//! A shell's terminal over a WebSocket: output from any offset on, input, size and signals.
//!
//! # Design notes
//!
//! Output comes from the table, as in every stream: it can be resumed at any offset on any process, and any number of clients see
//! the same. Input goes over a line to the session's worker, piece by piece, each answered before the next is read from the socket: a
//! command that does not read holds up its writer and nobody else. Two tasks, one for each direction, so that neither waits for the other.

use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::http::HeaderMap;
use axum::response::Response;
use bytes::Bytes;
use domain::exchange::{Item, ShellOrder};
use domain::limits::EXCHANGE_DATA_BYTES;
use domain::{Code, Scope, SessionId, ShellId, TenantContext};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::access::{Tenant, insufficient};
use super::events::cursor;
use super::extract::{Ids, Params};
use crate::problem::Problem;
use crate::service::access::{self, Credential, Standing};
use crate::service::shells::{self, Line, Verb};
use crate::service::vigil::LAST_WORD;
use crate::sse::{Rest, ShellItem, ShellSource, Source, StreamPermit};
use crate::state::ApiState;

/// How often the client is asked whether it is still there.
const PING: Duration = Duration::from_secs(15);
/// How long a client may say nothing at all, pongs included.
const SILENCE: Duration = Duration::from_secs(45);
/// Largest message of a client.
const MESSAGE_BYTES: usize = 256 * 1024;
/// Answers that wait for the client.
const ANSWERS: usize = 16;

/// Scopes that the connection needs: it shows what the command wrote, and writes to it.
const NEEDS: [Scope; 2] = [Scope::CallsWrite, Scope::CallsRead];

/// What a client may say, as text. A binary message is input as it stands.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Said {
    /// Bytes for stdin.
    Input { text: Option<String>, base64: Option<String> },
    /// The terminal has another size.
    Resize { rows: u16, cols: u16 },
    /// A signal by name.
    Signal { signal: String },
    /// Nothing more comes on stdin.
    CloseInput,
}

/// Attach to a shell
///
/// A WebSocket. The server sends JSON texts: `attached`, then `output` with `offset` and `next_offset` from `since_offset` on, `ended` at
/// last, and `error` for input that was not taken; `reconnect` when this process is shutting down. The client sends `input`
/// (`text` or `base64`), `resize`, `signal`, `close_input`, or binary messages, which are input as they stand.
#[utoipa::path(get, path = "/v1/sessions/{session_id}/shells/{shell_id}/attach", tag = "shells",
    security(("bearer" = ["calls:write"])),
    params(
        ("session_id" = String, Path, description = "The session."),
        ("shell_id" = String, Path, description = "The shell."),
        ("since_offset" = Option<u64>, Query, description = "Output from this offset of the log on; all of it when left out."),
    ),
    responses((status = 101, description = "The connection is a WebSocket from here on.")))]
pub(crate) async fn attach_shell(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    credential: Credential,
    Ids(session_id, id): Ids<SessionId, ShellId>,
    mut params: Params,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Problem> {
    let offset = cursor(&headers, &mut params, "since_offset", shells::parse_cursor)?.offset;
    params.finish()?;
    if !context.has(Scope::CallsRead) {
        // It shows what the command wrote.
        return Err(insufficient(Scope::CallsRead));
    }
    let watch = state.store.bus().subscribe_shell(id);
    let shell = shells::get(&state, &context, session_id, id).await?;
    shells::check_offset(&shell, offset)?;
    let upgrade = upgrade.map_err(|rejection| {
        let detail = format!("This is a WebSocket: {}", rejection.body_text());
        Problem::new(Code::InvalidRequest, detail)
    })?;
    if state.shutdown.is_cancelled() {
        return Err(Problem::new(Code::ShuttingDown, "This process is shutting down. Connect again."));
    }
    shells::allow(&state, &context, session_id, id, Verb::Attach).await?;
    let permit = state.streams.open(context.tenant_id())?;
    let source = ShellSource::new(state.clone(), context.clone(), session_id, id, offset, watch);
    let at = Attachment { state, context, credential, session_id, id };
    Ok(upgrade
        .max_message_size(MESSAGE_BYTES)
        .max_frame_size(MESSAGE_BYTES)
        .on_upgrade(move |socket| at.run(socket, source, permit)))
}

struct Attachment {
    state: ApiState,
    context: TenantContext,
    credential: Credential,
    session_id: SessionId,
    id: ShellId,
}

/// Why a connection is closed, by the numbers of RFC 6455 and the registry of codes.
#[derive(Debug, Clone, Copy)]
enum Close {
    Ended = 1000,
    NoLongerAllowed = 1008,
    Restart = 1012,
}

impl Attachment {
    async fn run(self, socket: WebSocket, source: ShellSource, permit: StreamPermit) {
        let (to_client, from_client) = socket.split();
        let (answers, told) = mpsc::channel(ANSWERS);
        let gone = CancellationToken::new();
        let refused = CancellationToken::new();
        let listening = self.listen(from_client, answers, gone.clone(), refused.clone());
        let speaking = self.speak(to_client, source, told, &refused);
        tokio::select! {
            () = listening => {}
            () = speaking => {}
            () = self.watch(&refused) => {}
        }
        gone.cancel();
        drop(permit);
    }

    /// Until the credential is valid no more, or may not do this any more. Apart from what is said and heard, so that a log that always goes on cannot outlive it.
    async fn watch(&self, refused: &CancellationToken) {
        let mut recheck = interval(self.state.config.streams.recheck);
        recheck.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            recheck.tick().await;
            if self.is_over().await {
                refused.cancel();
                return sleep(LAST_WORD).await;
            }
        }
    }

    /// Whether the connection would be refused if it were opened now: by the credential, its scopes or a policy.
    async fn is_over(&self) -> bool {
        match access::standing(&self.state, &self.credential, &NEEDS).await {
            Standing::Over => true,
            Standing::Unknown => false,
            Standing::Good(context) => {
                let verdict = shells::may(&self.state, &context, self.session_id, Verb::Attach).await;
                verdict.is_ok_and(|decision| !decision.allowed)
            }
        }
    }

    /// What the client says, one after the other, until it goes away or is silent for too long.
    async fn listen(
        &self,
        mut from_client: SplitStream<WebSocket>,
        answers: mpsc::Sender<Value>,
        gone: CancellationToken,
        refused: CancellationToken,
    ) {
        let mut line = None;
        while let Ok(Some(Ok(message))) = timeout(SILENCE, from_client.next()).await {
            if gone.is_cancelled() {
                return;
            }
            if refused.is_cancelled() {
                continue;
            }
            let items = match message {
                Message::Text(text) => items_of(text.as_str()),
                Message::Binary(bytes) => Ok(pieces(&bytes)),
                Message::Ping(_) | Message::Pong(_) => continue,
                Message::Close(_) => return,
            };
            let outcome = match items {
                Ok(items) => self.pass_on(&mut line, items).await,
                Err(problem) => Err(problem),
            };
            if let Err(problem) = outcome
                && answers.send(error(&problem)).await.is_err()
            {
                return;
            }
        }
    }

    async fn pass_on(&self, line: &mut Option<Line>, items: Vec<Item>) -> Result<(), Problem> {
        for item in items {
            let sent = if let Item::Data(bytes) = &item { bytes.len() as u64 } else { 0 };
            let open = match line {
                Some(open) => open,
                None => {
                    line.insert(Line::reopen(&self.state, &self.context, self.session_id, self.id).await?)
                }
            };
            match open.tell(item).await {
                Ok(told) if told.taken_bytes < sent => {
                    let lost = sent - told.taken_bytes;
                    let detail = format!("The command does not read its input: {lost} bytes were not taken.");
                    return Err(Problem::new(Code::Conflict, detail).with("taken_bytes", told.taken_bytes));
                }
                Ok(_) => {}
                Err(problem) => {
                    // The next input finds a new line, to whichever worker has the session then.
                    *line = None;
                    return Err(problem);
                }
            }
        }
        Ok(())
    }

    /// Output, answers and pings, until everything is said.
    async fn speak(
        &self,
        mut to_client: SplitSink<WebSocket, Message>,
        mut source: ShellSource,
        mut told: mpsc::Receiver<Value>,
        refused: &CancellationToken,
    ) {
        let stall = self.state.config.streams.stall;
        let begun = json!({"type": "attached", "shell_id": self.id, "session_id": self.session_id,
            "resumed_from": source.position()});
        let mut waiting = vec![Message::text(begun.to_string())];
        let mut recheck = interval(self.state.config.streams.recheck);
        recheck.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ping_at = Instant::now() + PING;
        let (mut look, mut is_over) = (true, false);
        loop {
            for message in waiting.drain(..) {
                // A client that takes nothing is let go; it resumes at the offset that it has seen.
                match timeout(stall, to_client.send(message)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return,
                    Err(_) => return self.state.metrics.slow_consumers.inc(),
                }
            }
            if is_over {
                return;
            }
            if refused.is_cancelled() {
                waiting.push(closing(Close::NoLongerAllowed, "credential"));
                is_over = true;
                continue;
            }
            if self.state.shutdown.is_cancelled() {
                let data = json!({"type": "reconnect", "next_offset": source.position()});
                waiting = vec![Message::text(data.to_string()), closing(Close::Restart, "restart")];
                is_over = true;
                continue;
            }
            if look {
                look = false;
                match source.read().await {
                    Ok(read) => {
                        waiting.extend(read.items.iter().map(spoken));
                        match read.rest {
                            Rest::More => look = true,
                            Rest::Later => {}
                            Rest::Nothing | Rest::Gone => {
                                waiting.push(closing(Close::Ended, "ended"));
                                is_over = true;
                            }
                        }
                    }
                    Err(error) => tracing::debug!(%error, "the log of a shell cannot be read just now"),
                }
                if !waiting.is_empty() {
                    continue;
                }
            }
            let poll_at = Instant::now() + self.state.streams.poll_interval();
            tokio::select! {
                biased;
                () = refused.cancelled() => {}
                () = self.state.shutdown.cancelled() => {}
                answer = told.recv() => match answer {
                    Some(answer) => waiting.push(Message::text(answer.to_string())),
                    None => return,
                },
                _ = source.changed() => look = true,
                _ = recheck.tick() => {
                    self.state.store.session_in_use(self.session_id);
                    if Instant::now() >= ping_at {
                        ping_at = Instant::now() + PING;
                        waiting.push(Message::Ping(Bytes::new()));
                    }
                }
                () = sleep_until(poll_at) => look = true,
            }
        }
    }
}

fn closing(why: Close, reason: &'static str) -> Message {
    Message::Close(Some(CloseFrame { code: why as u16, reason: reason.into() }))
}

fn spoken(item: &ShellItem) -> Message {
    let mut data = ShellSource::data(item);
    let kind = match item {
        ShellItem::Output(..) => "output",
        ShellItem::Ended(_) => "ended",
    };
    data.insert("type".to_owned(), kind.into());
    Message::text(Value::Object(data).to_string())
}

fn error(problem: &Problem) -> Value {
    let mut members = problem.members();
    members.insert("type".to_owned(), "error".into());
    Value::Object(members)
}

fn pieces(bytes: &Bytes) -> Vec<Item> {
    bytes.chunks(EXCHANGE_DATA_BYTES).map(|piece| Item::Data(Bytes::copy_from_slice(piece))).collect()
}

fn items_of(text: &str) -> Result<Vec<Item>, Problem> {
    let invalid = |detail: String| Problem::new(Code::InvalidArguments, detail);
    let said: Said =
        serde_json::from_str(text).map_err(|error| invalid(format!("Not understood: {error}.")))?;
    Ok(match said {
        Said::Input { text, base64 } => {
            let decoded = base64.map(|base64| data_encoding::BASE64.decode(base64.as_bytes())).transpose();
            let decoded = decoded.map_err(|_| invalid("`base64` is not base64.".to_owned()))?;
            let mut bytes = text.unwrap_or_default().into_bytes();
            bytes.extend(decoded.unwrap_or_default());
            pieces(&bytes.into())
        }
        Said::Resize { rows, cols } => {
            if !(1..=1_000).contains(&rows) || !(1..=1_000).contains(&cols) {
                return Err(invalid("`rows` and `cols` are 1 to 1000.".to_owned()));
            }
            vec![Item::message(&ShellOrder::Resize { rows, cols })]
        }
        Said::Signal { signal } => {
            let (signal, _) = tools::signal::parse(&signal)
                .ok_or_else(|| invalid(format!("`signal` is one of {}.", tools::signal::names())))?;
            vec![Item::message(&ShellOrder::Signal { signal })]
        }
        Said::CloseInput => vec![Item::message(&ShellOrder::CloseInput)],
    })
}
