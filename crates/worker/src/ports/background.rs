//! Commands that outlive their call: started detached, or handed over from the foreground, and found again.

use std::sync::atomic::Ordering;
use std::time::Duration;

use domain::policy::EffectiveLimits;
use domain::{CallId, Code, EventBody, Shell, ShellId, ShellName, ShellStatus};
use sandbox::protocol::{self, ErrorCode, ExecAttached, ExecSpec, OperationKey};
use sandbox::{ExecEvent, ExecStream, LinkError};
use store::{
    NewShell, OutputOwner, SESSION_SHELLS_FULL, ShellEnd, ShellLimits, ShellLog, StoreError,
    TENANT_SHELLS_FULL,
};
use tools::port::{Captured, Command, CommandOutcome};
use tools::{Fate, ToolError};
use uuid::Uuid;

use super::resume::{resume_captures, stored_end};
use super::{CallPorts, abandoned, context_of};
use crate::relay::{Limits, Position, Relay};
use crate::sessions::limits_of;
use crate::shell::{Followed, RunningShell, follow};
use crate::tenure::Unwritten;

/// Events at the end of a call's log among which `shell.started` is looked for.
const LATEST_EVENTS: u32 = 64;

/// The shell that an operation of a call becomes: always the same, so that a call that is run again finds it.
pub(super) fn shell_of(call_id: CallId, operation: u32) -> ShellId {
    let salt = 0x5e11_0000_u128 + u128::from(operation) + 1;
    ShellId::from_uuid(Uuid::from_u128(call_id.uuid().as_u128() ^ salt))
}

fn no_room(message: String, hint: &str) -> ToolError {
    ToolError::new(Code::SandboxLimit, message).hint(hint)
}

impl CallPorts {
    /// What runs in the foreground becomes a shell, recorded already, that goes on with the call's log.
    pub(super) async fn hand_over(
        &self,
        key: &OperationKey,
        shell_timeout: Option<Duration>,
        stream: ExecStream,
        shell: Shell,
    ) -> Result<Shell, ToolError> {
        let shell_id = shell.id;
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

    /// The row is written before the command is started, so that limits hold whatever starts at the same moment.
    pub(super) async fn in_background(
        &self,
        key: OperationKey,
        spec: ExecSpec,
        command: &Command,
        name: Option<ShellName>,
    ) -> Result<CommandOutcome, ToolError> {
        let shell_id = shell_of(self.facts.call.id, key.operation);
        if let Some(shell) = self.shell_from_before(shell_id).await? {
            return self.became(self.as_the_agent_knows_it(&key, shell).await?).await;
        }
        let session = &self.facts.session;
        self.begin().await?;
        let shell = self.record(&key, shell_id, command, name, ShellLog::Own).await?;
        let (stream, attached) = match self.attach(&key, spec).await {
            Ok(started) => started,
            Err(error) => {
                self.not_started(shell_id, &error).await;
                return Err(error);
            }
        };
        let offset = attached.offset;
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

    /// A shell that was recorded before this run. Whoever follows the session's shells may have told its end already when the agent does not
    /// know it, so it is not started now.
    async fn as_the_agent_knows_it(&self, key: &OperationKey, shell: Shell) -> Result<Shell, ToolError> {
        if shell.status == ShellStatus::Exited || self.state_of(key).await?.is_some() {
            return Ok(shell);
        }
        let facts = &self.facts;
        let (store, fence) = (facts.tenure.store(), &facts.session.fence);
        let end = ShellEnd { end_reason: Some("sandbox_lost".to_owned()), ..ShellEnd::default() };
        let ended = facts.tenure.write(|| store.finish_shell(fence, shell.id, end.clone())).await;
        ended.map_err(|unwritten| self.unwritten(unwritten))
    }

    /// What becomes of the row of a shell whose start failed.
    async fn not_started(&self, shell_id: ShellId, error: &ToolError) {
        let facts = &self.facts;
        let (store, fence) = (facts.tenure.store(), &facts.session.fence);
        let written = match error.fate {
            Fate::Failed => facts.tenure.write(|| store.withdraw_shell(fence, shell_id)).await,
            Fate::SandboxLost | Fate::Cancelled | Fate::TimedOut => {
                let end = ShellEnd { end_reason: Some("sandbox_lost".to_owned()), ..ShellEnd::default() };
                facts.tenure.write(|| store.finish_shell(fence, shell_id, end.clone())).await.map(|_| ())
            }
            Fate::Abandoned => Ok(()),
        };
        if let Err(error) = written {
            // The session's next sandbox does not know it, and then its end is written.
            tracing::debug!(shell = %shell_id, ?error, "a shell that did not start stays recorded");
        }
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

    /// The row of a shell. [`Code::SandboxLimit`] when as many run as may.
    pub(super) async fn record(
        &self,
        key: &OperationKey,
        shell_id: ShellId,
        command: &Command,
        name: Option<ShellName>,
        log: ShellLog,
    ) -> Result<Shell, ToolError> {
        let facts = &self.facts;
        let limits = self.limits().await?;
        let new = NewShell {
            id: shell_id,
            call_id: facts.call.id,
            operation: key.operation,
            name,
            command: command.label.clone(),
            description: facts.call.description.clone(),
            terminal: command.terminal.is_some(),
            log,
            limits: ShellLimits { session: limits.session_shells, tenant: limits.shells },
        };
        let store = facts.tenure.store();
        let written = facts.tenure.write(|| store.create_shell(&facts.session.fence, new.clone())).await;
        written.map_err(|unwritten| match unwritten {
            Unwritten::Refused(StoreError::Conflict { message: SESSION_SHELLS_FULL, .. }) => no_room(
                format!("{} shells run in this session, and no more may.", new.limits.session),
                "End one with kill_bash (list_bash lists them), or ask for a larger policy.limits.session_shells.",
            ),
            Unwritten::Refused(StoreError::Conflict { message: TENANT_SHELLS_FULL, .. }) => no_room(
                format!("{} shells run in the sessions of this tenant, and no more may.", new.limits.tenant),
                "End one with kill_bash, or a session that is not needed, or ask for a larger policy.limits.shells.",
            ),
            other => self.unwritten(other),
        })
    }

    /// Limits as they are now, for what is asked seldom.
    async fn limits(&self) -> Result<EffectiveLimits, ToolError> {
        let facts = &self.facts;
        let context = context_of(facts.call.tenant_id);
        let policy = facts.tenure.write(|| facts.tenure.store().policy_of_tenant(&context)).await;
        let policy = policy.map_err(|unwritten| self.unwritten(unwritten))?;
        Ok(limits_of(&facts.tenure.core.config.policy, &policy, facts.session.row.policy.as_ref()))
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
