//! The session's shells, for a tool: read from the store, told through the agent.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use domain::{Code, Shell, ShellId, ShellStatus, limits};
use sandbox::protocol::KillRequest;
use store::{OutputOwner, StoreError};
use tokio::time::{Instant, timeout, timeout_at};
use tools::ToolError;
use tools::port::{ShellInput, ShellOutput, Shells, Waits};

use super::line::Line;
use super::{CallPorts, context_of};
use crate::call::Start;
use crate::shell::key_of;
use crate::tenure::Unwritten;

/// Time for a shell's end to be recorded after its tree is gone.
const RECORD_LIMIT: Duration = Duration::from_secs(5);

#[async_trait]
impl Shells for CallPorts {
    async fn get(&self, id: ShellId) -> Result<Shell, ToolError> {
        let facts = &self.facts;
        let context = context_of(facts.call.tenant_id);
        let store = facts.tenure.store();
        let read = facts.tenure.write(|| store.get_shell(&context, facts.call.session_id, id)).await;
        read.map_err(|unwritten| match unwritten {
            Unwritten::Refused(StoreError::NotFound { .. }) => {
                ToolError::new(Code::ShellNotFound, format!("There is no shell {id} in this session."))
                    .hint("list_bash shows the session's shells.")
            }
            other => self.unwritten(other),
        })
    }

    async fn list(&self) -> Result<Vec<Shell>, ToolError> {
        let facts = &self.facts;
        let context = context_of(facts.call.tenant_id);
        let store = facts.tenure.store();
        let read = facts.tenure.write(|| store.list_shells(&context, facts.call.session_id)).await;
        read.map_err(|unwritten| self.unwritten(unwritten))
    }

    fn run_before_at(&self) -> Option<DateTime<Utc>> {
        if !self.is_run_again() {
            return None;
        }
        let facts = &self.facts;
        Some(match facts.how {
            // It may have been lost before its start was written.
            Start::Resumed { .. } => facts.call.started_at.unwrap_or(facts.call.created_at),
            Start::Direct | Start::Claimed => facts.tenure.store().clock().now() - self.elapsed(),
        })
    }

    async fn output(&self, id: ShellId, since_offset: u64, max_bytes: u64) -> Result<ShellOutput, ToolError> {
        let shell = self.get(id).await?;
        let facts = &self.facts;
        let context = context_of(facts.call.tenant_id);
        let store = facts.tenure.store();
        let owner = OutputOwner::Shell(id);
        let pieces = facts
            .tenure
            .write(|| store.output_pieces(&context, owner, since_offset, max_bytes))
            .await
            .map_err(|unwritten| self.unwritten(unwritten))?;
        let next_offset = pieces
            .last()
            .map_or(shell.next_offset.max(since_offset), |last| last.log_offset + last.bytes.len() as u64);
        let kept: u64 = pieces.iter().map(|piece| piece.bytes.len() as u64).sum();
        let dropped_bytes = next_offset.saturating_sub(since_offset).saturating_sub(kept);
        Ok(ShellOutput { pieces, next_offset, dropped_bytes })
    }

    async fn changed(&self, id: ShellId, since_offset: u64, wait: Duration) -> Result<(), ToolError> {
        let until = Instant::now() + wait;
        let poll = Duration::from_millis(limits::POLL_MS);
        let mut watch = self.facts.tenure.store().bus().subscribe_shell(id);
        // Whoever waits for the end alone is not to look at each piece of output.
        let pause = if since_offset == u64::MAX { Duration::from_millis(250) } else { Duration::ZERO };
        loop {
            let shell = self.get(id).await?;
            if shell.status == ShellStatus::Exited
                || shell.next_offset > since_offset
                || Instant::now() >= until
            {
                return Ok(());
            }
            tokio::select! {
                () = self.facts.running.cancel.cancelled() => return Err(self.ended_before()),
                _ = timeout_at(until.min(Instant::now() + poll), async {
                    tokio::time::sleep(pause).await;
                    watch.changed().await;
                }) => {}
            }
        }
    }

    async fn input(&self, id: ShellId, input: ShellInput) -> Result<u64, ToolError> {
        let key = self.next_key();
        let shell = self.get(id).await?;
        // Texts arrive in the order of their calls. A signal waits for none of them: it may be what makes their reader read.
        if input.text.is_some() || input.close {
            self.input_turn(&shell).await?;
        }
        let shell = self.get(id).await?;
        let target = key_of(&shell);
        if shell.status == ShellStatus::Exited && !self.is_resumed() {
            return Err(ToolError::new(Code::ShellEnded, format!("The shell {id} has ended.")));
        }
        self.begin().await?;
        let agent = self.serving.sandbox.agent();
        let mut written = 0;
        if input.text.is_some() || input.close {
            let text = input.text.unwrap_or_default();
            let answer = self
                .ask(|| {
                    agent.write_stdin(key.clone(), target.clone(), text.clone().into_bytes(), input.close)
                })
                .await?;
            written = answer.written_bytes;
        }
        if let Some(signal) = input.signal {
            let request = KillRequest { key: target, signal: Some(signal), grace_ms: 0 };
            self.ask(|| agent.kill(request.clone())).await?;
        }
        Ok(written)
    }

    async fn kill(&self, id: ShellId, grace: Duration) -> Result<Shell, ToolError> {
        let shell = self.get(id).await?;
        if shell.status == ShellStatus::Exited {
            return Ok(shell);
        }
        self.begin().await?;
        let running = self.facts.session.shell(id);
        if let Some(running) = &running {
            running.ending_because("killed");
        }
        let agent = self.serving.sandbox.agent();
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX).min(limits::TIMEOUT_MS);
        let request = KillRequest { key: key_of(&shell), signal: None, grace_ms };
        self.ask(|| agent.kill(request.clone())).await?;
        if let Some(running) = running {
            let _ = timeout(RECORD_LIMIT, running.over.cancelled()).await;
        }
        self.get(id).await
    }
}

impl CallPorts {
    /// Waits until no earlier call writes to the shell.
    async fn input_turn(&self, shell: &Shell) -> Result<(), ToolError> {
        let facts = &self.facts;
        let (store, fence) = (facts.tenure.store(), &facts.session.fence);
        let mut line = Line::default();
        loop {
            let earlier = facts.tenure.write(|| store.earlier_input(fence, shell, facts.call.id)).await;
            match earlier.map_err(|unwritten| self.unwritten(unwritten))? {
                Some(earlier) => self.behind(&mut line, earlier).await?,
                None => return self.at_the_front().await,
            }
        }
    }
}
