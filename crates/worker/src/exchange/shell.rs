//! Speaking to a running shell: bytes, signals, sizes, its end.

use std::time::Duration;

use domain::exchange::{ExchangeError, Item, Piece, ShellOrder, ShellTold};
use domain::{Code, Shell, ShellId, ShellStatus};
use sandbox::protocol::{ErrorCode, KillRequest, OperationKey, TerminalSize};
use sandbox::{AgentClient, LinkError};
use store::StoreError;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::Exchange;
use crate::ports::context_of;
use crate::shell::key_of;
use crate::tenure::Unwritten;

/// Pause before a verb whose connection ended is asked again.
const RELINK: Duration = Duration::from_millis(50);
/// Time for a shell's end to be recorded after its tree is gone.
const RECORD_LIMIT: Duration = Duration::from_secs(5);
/// Writes after which the agent's journal is told to forget them.
const FORGET_AFTER: u32 = 256;

impl Exchange {
    pub(super) async fn shell(mut self, shell_id: ShellId) -> Result<(), ExchangeError> {
        let shell = self.find(shell_id).await?;
        let agent = self.serving.sandbox.agent().clone();
        let mut speaker = Speaker { key: key_of(&shell), owner: owner(), writes: 0, agent };
        self.speak(&shell, &mut speaker).await
    }

    async fn find(&self, shell_id: ShellId) -> Result<Shell, ExchangeError> {
        let context = context_of(self.session.tenant_id);
        let store = self.tenure.store();
        let read = self.tenure.write(|| store.get_shell(&context, self.session.id, shell_id)).await;
        match read {
            Ok(shell) if shell.status == ShellStatus::Running => Ok(shell),
            Ok(shell) => Err(ended(&shell)),
            Err(Unwritten::Refused(StoreError::NotFound { .. })) => {
                Err(ExchangeError::new(Code::ShellNotFound, "There is no such shell in this session."))
            }
            Err(Unwritten::Superseded) => Err(ExchangeError::not_here()),
            Err(Unwritten::Refused(error)) => {
                tracing::error!(shell = %shell_id, %error, "a shell could not be read");
                Err(ExchangeError::new(Code::Internal, "A shell could not be read."))
            }
        }
    }

    async fn speak(&mut self, shell: &Shell, speaker: &mut Speaker) -> Result<(), ExchangeError> {
        while let Some(piece) = Item::step(self.input.recv().await)? {
            let taken_bytes = match piece {
                Piece::Data(bytes) => self.write(speaker, bytes.to_vec(), false).await?,
                Piece::Message(_) => match piece.into_message()? {
                    ShellOrder::CloseInput => self.write(speaker, Vec::new(), true).await?,
                    ShellOrder::Signal { signal } => {
                        let request =
                            KillRequest { key: speaker.key.clone(), signal: Some(signal), grace_ms: 0 };
                        self.ask(|| self.serving.sandbox.agent().kill(request.clone())).await?;
                        0
                    }
                    ShellOrder::Resize { rows, cols } => {
                        let size = TerminalSize { rows, cols };
                        self.ask(|| self.serving.sandbox.agent().resize(speaker.key.clone(), size)).await?;
                        0
                    }
                    ShellOrder::End { grace_ms } => {
                        self.end(shell, speaker, grace_ms).await?;
                        0
                    }
                },
            };
            self.send(Item::message(&ShellTold { taken_bytes })).await?;
        }
        Ok(())
    }

    async fn write(&self, speaker: &mut Speaker, bytes: Vec<u8>, close: bool) -> Result<u64, ExchangeError> {
        let agent = self.serving.sandbox.agent();
        if speaker.writes == FORGET_AFTER {
            let forgotten = std::mem::replace(&mut speaker.owner, owner());
            speaker.writes = 0;
            self.ask(|| agent.forget(&forgotten)).await?;
        }
        let key = OperationKey { owner: speaker.owner.clone(), operation: speaker.writes };
        speaker.writes += 1;
        let target = speaker.key.clone();
        let written =
            self.ask(|| agent.write_stdin(key.clone(), target.clone(), bytes.clone(), close)).await?;
        Ok(written.written_bytes)
    }

    async fn end(&self, shell: &Shell, speaker: &Speaker, grace_ms: u64) -> Result<(), ExchangeError> {
        let running = self.session.shell(shell.id);
        if let Some(running) = &running {
            running.ending_because("killed");
        }
        let request = KillRequest { key: speaker.key.clone(), signal: None, grace_ms };
        self.ask(|| self.serving.sandbox.agent().kill(request.clone())).await?;
        if let Some(running) = running {
            let _ = timeout(RECORD_LIMIT, running.over.cancelled()).await;
        }
        Ok(())
    }

    /// Asks the agent, again while the link is being made anew. That the sandbox goes away is noticed elsewhere.
    async fn ask<T, F>(&self, mut verb: impl FnMut() -> F) -> Result<T, ExchangeError>
    where
        F: Future<Output = Result<T, LinkError>>,
    {
        loop {
            match verb().await {
                Ok(answer) => return Ok(answer),
                Err(LinkError::Disconnected | LinkError::Timeout { .. }) => sleep(RELINK).await,
                Err(LinkError::Agent(error)) => {
                    let code = match error.code {
                        ErrorCode::Ended | ErrorCode::NotFound => Code::ShellEnded,
                        ErrorCode::LimitExceeded => Code::SandboxLimit,
                        ErrorCode::Conflict => Code::Conflict,
                        ErrorCode::Unsupported => Code::SandboxOutdated,
                        _ => Code::PlatformError,
                    };
                    return Err(ExchangeError::new(code, sentence(&error.message)));
                }
                Err(LinkError::Fenced) => return Err(ExchangeError::not_here()),
                Err(error @ (LinkError::JournalLost | LinkError::Closed | LinkError::Protocol(_))) => {
                    return Err(ExchangeError::new(Code::SandboxLost, format!("{}.", error)));
                }
                Err(LinkError::TooLarge) => {
                    return Err(ExchangeError::new(Code::BodyTooLarge, "The input is too large."));
                }
            }
        }
    }
}

/// Who writes, for the agent's journal.
struct Speaker {
    /// The shell's own operation.
    key: OperationKey,
    owner: String,
    writes: u32,
    agent: AgentClient,
}

/// The agent's journal has room for so many writes. Whoever goes away does so by dropping what waits for it, so that nothing
/// after the last write can be relied on to run.
impl Drop for Speaker {
    fn drop(&mut self) {
        if self.writes > 0 {
            let (agent, owner) = (self.agent.clone(), std::mem::take(&mut self.owner));
            tokio::spawn(async move {
                let _ = agent.forget(&owner).await;
            });
        }
    }
}

fn owner() -> String {
    format!("speaker-{}", Uuid::new_v4())
}

fn sentence(message: &str) -> String {
    let mut letters = message.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}

fn ended(shell: &Shell) -> ExchangeError {
    ExchangeError::new(Code::ShellEnded, format!("The shell {} has ended.", shell.id))
        .with("exit_code", shell.exit_code)
        .with("signal", shell.signal.clone())
}
