//! A command in the foreground: attached to, relayed into the call's events, ended when the call is to end.

use std::pin::Pin;
use std::sync::PoisonError;
use std::time::Duration;

use domain::trace::PastSpan;
use domain::{CallResult, StreamName};
use futures_util::future::BoxFuture;
use sandbox::protocol::{ExecAttached, ExecExit, ExecRequest, ExecSpec, KillRequest, OperationKey};
use sandbox::{ExecEvent, ExecStream, LinkError};
use store::OutputOwner;
use tokio::time::{Instant, sleep_until};
use tools::ToolError;
use tools::port::Captured;

use super::resume::{resume_captures, resume_relay, stored_end};
use super::{CallPorts, RELINK, stream_name};
use crate::relay::{Capture, Limits, Position, Relay};

/// How a command's time in the foreground came to an end.
pub(super) enum Went {
    /// It ended.
    Exited(ExecExit),
    /// It still runs, and the call does not wait for it any longer.
    TimeIsUp,
}

/// See the module.
pub(super) struct Foreground<'a> {
    ports: &'a CallPorts,
    key: OperationKey,
    spec: ExecSpec,
    stream: Option<ExecStream>,
    began: Option<Instant>,
    /// Its process in the sandbox, for the trace.
    pid: Option<u32>,
    captures: [Capture; 2],
    /// End of the stored log when the operation was resumed.
    stored: Option<Position>,
    killing: Option<BoxFuture<'a, ()>>,
    is_over: bool,
    /// Bytes dropped from the middle of the log, once it ended.
    pub(super) dropped: u64,
}

impl Drop for Foreground<'_> {
    /// A command that did not come to its end leaves behind what it had written.
    fn drop(&mut self) {
        if self.began.is_none() || self.is_over {
            return;
        }
        let (stdout, stderr) = self.captured();
        let output = [("", &stdout), ("[stderr]\n", &stderr)]
            .into_iter()
            .filter(|(_, captured)| captured.total_bytes > 0)
            .map(|(title, captured)| {
                let gap = if captured.tail.is_empty() { "" } else { "\n[…]\n" };
                let (head, tail) =
                    (String::from_utf8_lossy(&captured.head), String::from_utf8_lossy(&captured.tail));
                format!("{title}{head}{gap}{tail}")
            })
            .collect::<Vec<_>>()
            .join("\n");
        let partial = CallResult { is_error: true, output, ..CallResult::default() };
        *self.ports.facts.partial.lock().unwrap_or_else(PoisonError::into_inner) = Some(partial);
    }
}

impl<'a> Foreground<'a> {
    pub(super) fn new(ports: &'a CallPorts, key: OperationKey, spec: ExecSpec) -> Self {
        let budget = ports.facts.call.output_budget_bytes;
        Self {
            ports,
            key,
            spec,
            stream: None,
            began: None,
            pid: None,
            captures: [Capture::new(budget), Capture::new(budget)],
            stored: None,
            killing: None,
            is_over: false,
            dropped: 0,
        }
    }

    /// Whether it may leave a report.
    pub(super) fn reports(&self) -> bool {
        self.spec.role.reports()
    }

    /// What was written so far.
    pub(super) fn captured(&self) -> (Captured, Captured) {
        (self.captures[0].captured(), self.captures[1].captured())
    }

    /// The stream, for a shell that goes on with it.
    pub(super) fn into_stream(mut self) -> Option<ExecStream> {
        self.is_over = true;
        self.stream.take()
    }

    /// Runs the command until it ends, or until it has run for so long.
    pub(super) async fn run(&mut self, wait: Option<Duration>) -> Result<Went, ToolError> {
        let facts = &self.ports.facts;
        if facts.running.cancel.is_cancelled() && !self.ports.is_resumed() && self.began.is_none() {
            return Err(self.ports.ended_before());
        }
        self.ports.begin().await?;
        let gone = self.ports.serving.sandbox.wait_gone();
        tokio::pin!(gone);
        loop {
            let step = tokio::select! {
                biased;
                step = self.step(wait) => step,
                _ = &mut gone => return Err(self.ports.lost().await),
            };
            match step? {
                Step::Event(Some(event)) => {
                    if let Some(exit) = self.take(event).await? {
                        return Ok(Went::Exited(exit));
                    }
                }
                Step::Event(None) => self.stream = None,
                Step::Again => {}
                Step::Cancelled => self.killing = Some(self.kill()),
                Step::Killed => self.killing = Some(Box::pin(std::future::pending())),
                Step::TimeIsUp => return Ok(Went::TimeIsUp),
                Step::Broken(error) => {
                    self.stream = None;
                    self.ports.or_again(error).await?;
                }
            }
        }
    }

    async fn step(&mut self, wait: Option<Duration>) -> Result<Step, ToolError> {
        let ports = self.ports;
        let facts = &ports.facts;
        let Some(stream) = &mut self.stream else {
            let request = ExecRequest {
                key: self.key.clone(),
                resume_from: facts.log.acknowledged(),
                spec: Some(self.spec.clone()),
            };
            return Ok(match ports.serving.sandbox.agent().exec(request).await {
                Ok(stream) => {
                    self.stream = Some(stream);
                    Step::Again
                }
                Err(error) => Step::Broken(error),
            });
        };
        stream.ack(facts.log.acknowledged());
        let time_is_up = wait.and_then(|wait| Some(self.began? + wait));
        let killing = &mut self.killing;
        Ok(tokio::select! {
            biased;
            event = stream.next() => event.map_or_else(Step::Broken, Step::Event),
            () = facts.log.more_written() => Step::Again,
            () = ended(killing), if killing.is_some() => Step::Killed,
            () = facts.running.cancel.cancelled(), if killing.is_none() => Step::Cancelled,
            () = sleep_until(time_is_up.unwrap_or_else(Instant::now)), if time_is_up.is_some() && killing.is_none() => Step::TimeIsUp,
        })
    }

    async fn take(&mut self, event: ExecEvent) -> Result<Option<ExecExit>, ToolError> {
        let facts = &self.ports.facts;
        match event {
            ExecEvent::Attached(attached) => {
                self.pid = attached.pid.or(self.pid);
                if self.began.is_none() {
                    self.begin_output(&attached).await?;
                }
                Ok(None)
            }
            ExecEvent::Output(output) => {
                let stream = stream_name(output.stream);
                let Ok(fresh) = facts.log.output(output.offset, stream, output.bytes) else {
                    self.ports.or_again(LinkError::Protocol("output with a hole")).await?;
                    return Ok(None);
                };
                facts.tenure.metrics().output_bytes.inc_by(fresh.len() as u64);
                self.captures[usize::from(stream == StreamName::Stderr)].push(&fresh);
                Ok(None)
            }
            ExecEvent::Exited(exit) => {
                self.is_over = true;
                let base = facts.log.base();
                self.dropped = facts.log.end_output(Some((exit.stdout_bytes, exit.stderr_bytes)));
                self.only_own_output(base, &exit).await?;
                self.captures[0].set_total(exit.stdout_bytes);
                self.captures[1].set_total(exit.stderr_bytes);
                facts.tenure.metrics().dropped_bytes.inc_by(self.dropped);
                self.trace(&exit);
                Ok(Some(exit))
            }
        }
    }

    /// The agent exports nothing: its process is a span by what it says of it.
    fn trace(&self, exit: &ExecExit) {
        let tenure = &self.ports.facts.tenure;
        let ended_at = tenure.store().clock().now();
        // The agent counts in whole milliseconds, which a short command has none of.
        let ran = self.began.map_or(Duration::from_millis(exit.duration_ms), |began| began.elapsed());
        let mut facts = vec![
            ("operation", self.key.operation.to_string()),
            ("cpu_ms", exit.cpu_ms.to_string()),
            ("max_rss_bytes", exit.max_rss_bytes.to_string()),
            ("killed", exit.killed.to_string()),
        ];
        facts.extend(self.pid.map(|pid| ("process.pid", pid.to_string())));
        facts.extend(exit.exit_code.map(|code| ("process.exit.code", code.to_string())));
        tenure.core.traces.past(PastSpan {
            name: "process",
            under: None,
            started_at: ended_at - chrono::Duration::from_std(ran).unwrap_or_default(),
            ended_at,
            facts,
        });
    }

    /// The first time that the agent says where the output begins.
    async fn begin_output(&mut self, attached: &ExecAttached) -> Result<(), ToolError> {
        let facts = &self.ports.facts;
        let running = Duration::from_millis(attached.running_ms);
        self.began = Some(Instant::now().checked_sub(running).unwrap_or_else(Instant::now));
        let owner = OutputOwner::Call(facts.call.id);
        let limits = Limits::of_total(facts.session.output_bytes);
        let base = facts.log.end();
        let refused = |unwritten| self.ports.unwritten(unwritten);
        let relay = if self.ports.is_resumed() {
            let budget = facts.call.output_budget_bytes;
            let stored = stored_end(&facts.tenure, owner).await.map_err(refused)?;
            self.captures =
                resume_captures(&facts.tenure, owner, base, stored, budget).await.map_err(refused)?;
            self.stored = Some(stored);
            let sent_from = attached.offset;
            resume_relay(&facts.tenure, facts.call.tenant_id, owner, base, sent_from, limits)
                .await
                .map_err(refused)?
        } else if self.ports.runs > 0 && base.log == 0 {
            Relay::new(stored_end(&facts.tenure, owner).await.map_err(refused)?, limits)
        } else {
            Relay::new(base, limits)
        };
        facts.log.begin_output(relay);
        Ok(())
    }

    /// What was stored when the operation was resumed may go beyond it, when the call had gone on to its next one.
    async fn only_own_output(&mut self, base: Position, exit: &ExecExit) -> Result<(), ToolError> {
        let end = base.after(exit.stdout_bytes, exit.stderr_bytes);
        let facts = &self.ports.facts;
        if self.stored.is_some_and(|stored| stored.stdout > end.stdout || stored.stderr > end.stderr) {
            let (owner, budget) = (OutputOwner::Call(facts.call.id), facts.call.output_budget_bytes);
            self.captures = resume_captures(&facts.tenure, owner, base, end, budget)
                .await
                .map_err(|unwritten| self.ports.unwritten(unwritten))?;
        }
        Ok(())
    }

    /// Ends the command's tree, asking again while the link is being made anew.
    fn kill(&self) -> BoxFuture<'a, ()> {
        let agent = self.ports.serving.sandbox.agent();
        let request = KillRequest { key: self.key.clone(), signal: None, grace_ms: self.spec.grace_ms };
        Box::pin(async move {
            loop {
                match agent.kill(request.clone()).await {
                    Err(LinkError::Disconnected | LinkError::Timeout { .. }) => {
                        tokio::time::sleep(RELINK).await
                    }
                    Ok(()) | Err(_) => return,
                }
            }
        })
    }
}

async fn ended(killing: &mut Option<BoxFuture<'_, ()>>) {
    match killing {
        Some(killing) => Pin::as_mut(killing).await,
        None => std::future::pending().await,
    }
}

enum Step {
    Event(Option<ExecEvent>),
    Again,
    Cancelled,
    Killed,
    TimeIsUp,
    Broken(LinkError),
}
