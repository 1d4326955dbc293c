//! Commands that outlive their call: started detached, or handed over from the foreground, and found again.

use std::sync::atomic::Ordering;
use std::time::Duration;

use domain::{CallId, Code, EventBody, Shell, ShellId};
use sandbox::protocol::{self, ErrorCode, ExecAttached, ExecSpec, OperationKey};
use sandbox::{ExecEvent, ExecStream, LinkError};
use store::{NewShell, OutputOwner, ShellLog};
use tools::ToolError;
use tools::port::{Captured, Command, CommandOutcome};
use uuid::Uuid;

use super::resume::{resume_captures, stored_end};
use super::{CallPorts, abandoned, context_of};
use crate::relay::{Limits, Position, Relay};
use crate::shell::{Followed, RunningShell, follow};
use crate::tenure::Unwritten;

/// Events at the end of a call's log among which `shell.started` is looked for.
const LATEST_EVENTS: u32 = 64;

/// The shell that an operation of a call becomes: always the same, so that a call that is run again finds it.
pub(super) fn shell_of(call_id: CallId, operation: u32) -> ShellId {
    let salt = 0x5e11_0000_u128 + u128::from(operation) + 1;
    ShellId::from_uuid(Uuid::from_u128(call_id.uuid().as_u128() ^ salt))
}

impl CallPorts {
    /// What runs in the foreground becomes a shell that goes on with the call's log.
    pub(super) async fn hand_over(
        &self,
        key: &OperationKey,
        shell_id: ShellId,
        command: &Command,
        shell_timeout: Option<Duration>,
        stream: ExecStream,
    ) -> Result<Shell, ToolError> {
        let shell = self.record(key, shell_id, command, ShellLog::OfCall).await?;
        self.facts.became_shell.store(true, Ordering::Relaxed);
        let timeout_ms = shell_timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        let agent = self.serving.sandbox.agent();
        let detached = self.ask_on(|| agent.detach(key.clone(), timeout_ms)).await;
        match detached {
            Ok(()) => {}
            Err(error) if error.code == Code::ShellEnded => {}
            Err(error) => return Err(error),
        }
        self.facts.log.push(EventBody::ShellStarted { shell_id });
        self.facts.log.flush().await;
        let relay = self.facts.log.take_relay();
        self.follow(shell_id, key, Followed { stream: Some(stream), relay });
        Ok(shell)
    }

    pub(super) async fn in_background(
        &self,
        key: OperationKey,
        spec: ExecSpec,
        command: &Command,
    ) -> Result<CommandOutcome, ToolError> {
        let shell_id = shell_of(self.facts.call.id, key.operation);
        if let Some(shell) = self.shell_from_before(shell_id).await? {
            return self.became(shell).await;
        }
        let session = &self.facts.session;
        if session.shell_count() >= session.shell_limit {
            let most = session.shell_limit;
            let message = format!("{most} shells run in this session, and no more may.");
            return Err(ToolError::new(Code::SandboxLimit, message).hint("End one with kill_bash."));
        }
        self.begin().await?;
        let (stream, attached) = self.attach(&key, spec.clone()).await?;
        let offset = attached.offset;
        let shell = self.record(&key, shell_id, command, ShellLog::Own).await?;
        self.facts.became_shell.store(true, Ordering::Relaxed);
        self.facts.log.push(EventBody::ShellStarted { shell_id });
        // Only what begins at its first byte can be followed without asking what is stored.
        let followed = if offset == 0 && !self.is_resumed() {
            let relay = Relay::new(Position::default(), Limits::of_total(session.output_bytes));
            Followed { stream: Some(stream), relay: Some(relay) }
        } else {
            Followed { stream: None, relay: None }
        };
        self.follow(shell_id, &key, followed);
        Ok(CommandOutcome::Shell { shell, stdout: Captured::default(), stderr: Captured::default() })
    }

    /// Starts a detached operation and waits until the agent says that it runs.
    pub(super) async fn attach(
        &self,
        key: &OperationKey,
        spec: ExecSpec,
    ) -> Result<(ExecStream, ExecAttached), ToolError> {
        let agent = self.serving.sandbox.agent();
        self.ask_on(|| async {
            let request =
                protocol::ExecRequest { key: key.clone(), resume_from: 0, spec: Some(spec.clone()) };
            let mut stream = agent.exec(request).await?;
            match stream.next().await? {
                Some(ExecEvent::Attached(attached)) => Ok((stream, attached)),
                Some(ExecEvent::Output(_) | ExecEvent::Exited(_)) | None => {
                    Err(LinkError::Protocol("an operation that was not attached"))
                }
            }
        })
        .await
    }

    /// Like [`Self::ask`], for what must not be left half done when the call is cancelled.
    pub(super) async fn ask_on<T, F>(&self, mut verb: impl FnMut() -> F) -> Result<T, ToolError>
    where
        F: Future<Output = Result<T, LinkError>>,
    {
        loop {
            let answer = tokio::select! {
                biased;
                answer = verb() => answer,
                _ = self.serving.sandbox.wait_gone() => return Err(self.lost().await),
            };
            match answer {
                Ok(answer) => return Ok(answer),
                Err(LinkError::Agent(error)) if error.code == ErrorCode::Ended => {
                    return Err(ToolError::new(Code::ShellEnded, "The command has ended."));
                }
                Err(error) => self.or_again(error).await?,
            }
        }
    }

    async fn record(
        &self,
        key: &OperationKey,
        shell_id: ShellId,
        command: &Command,
        log: ShellLog,
    ) -> Result<Shell, ToolError> {
        let facts = &self.facts;
        let new = NewShell {
            id: shell_id,
            call_id: facts.call.id,
            operation: key.operation,
            command: command.label.clone(),
            description: facts.call.description.clone(),
            terminal: command.terminal.is_some(),
            log,
        };
        let store = facts.tenure.store();
        let written = facts.tenure.write(|| store.create_shell(&facts.session.fence, new.clone())).await;
        written.map_err(|unwritten| self.unwritten(unwritten))
    }

    /// A write of the port was not made.
    pub(super) fn unwritten(&self, unwritten: Unwritten) -> ToolError {
        match unwritten {
            Unwritten::Superseded => abandoned(),
            Unwritten::Refused(error) => {
                tracing::error!(call = %self.facts.call.id, %error, "a write for a tool was refused");
                ToolError::new(Code::PlatformError, "The platform could not record what was asked.")
            }
        }
    }

    fn follow(&self, shell_id: ShellId, key: &OperationKey, followed: Followed) {
        let facts = &self.facts;
        let shell = RunningShell::new(shell_id, key.clone());
        follow(&facts.tenure, &facts.session, &self.serving, &shell, followed);
    }

    /// The shell that this operation became before another worker (or none) took the call over.
    pub(super) async fn shell_from_before(&self, shell_id: ShellId) -> Result<Option<Shell>, ToolError> {
        if !self.is_resumed() {
            return Ok(None);
        }
        let facts = &self.facts;
        let context = context_of(facts.call.tenant_id);
        let read = facts
            .tenure
            .write(|| facts.tenure.store().get_shell(&context, facts.call.session_id, shell_id))
            .await;
        match read {
            Ok(shell) => Ok(Some(shell)),
            Err(Unwritten::Refused(store::StoreError::NotFound { .. })) => Ok(None),
            Err(unwritten) => Err(self.unwritten(unwritten)),
        }
    }

    /// Goes on with a call whose command had become a shell already.
    pub(super) async fn became(&self, shell: Shell) -> Result<CommandOutcome, ToolError> {
        let facts = &self.facts;
        facts.became_shell.store(true, Ordering::Relaxed);
        let context = context_of(facts.call.tenant_id);
        let after = facts.call.last_seq.saturating_sub(u64::from(LATEST_EVENTS));
        let store = facts.tenure.store();
        let latest = facts
            .tenure
            .write(|| store.events(&context, facts.call.id, after, LATEST_EVENTS, 1 << 20))
            .await
            .map_err(|unwritten| self.unwritten(unwritten))?;
        let announced =
            latest.events.iter().any(|event| matches!(event.body, EventBody::ShellStarted { .. }));
        if !announced {
            facts.log.push(EventBody::ShellStarted { shell_id: shell.id });
        }
        let owner = OutputOwner::Shell(shell.id);
        let refused = |unwritten| self.unwritten(unwritten);
        let stored = stored_end(&facts.tenure, owner).await.map_err(refused)?;
        let (begin, budget) = (Position::default(), facts.call.output_budget_bytes);
        let [stdout, stderr] =
            resume_captures(&facts.tenure, owner, begin, stored, budget).await.map_err(refused)?;
        Ok(CommandOutcome::Shell { shell, stdout: stdout.captured(), stderr: stderr.captured() })
    }
}
