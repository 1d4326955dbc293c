//! Contexts, for a tool: an interpreter is an operation that outlives its calls, and each call in it is one of its own.
//!
//! # Design notes
//!
//! *The row before the interpreter.* Its number is written before it is started under that number, so that a worker that takes
//! over knows what to look for; whether it really runs only the agent knows, and refuses a request to one that does not.
//! *One call after another*, by admission: a call waits for its turn here, and for earlier ones that have not come here yet.

use async_trait::async_trait;
use domain::limits::{INTERRUPT_GRACE_MS, KILL_GRACE_MS};
use domain::{CallId, Code, CodeContext, ContextId, Language};
use sandbox::protocol::{
    ExecExit, ExecSpec, KERNEL_ABSENT, KERNEL_LOST, KillRequest, OperationKey, OperationState, Program, Role,
    StdinMode,
};
use store::{ContextName, StoreError};
use tokio::sync::OwnedMutexGuard;
use tools::port::{Background, Command, ContextEnd, ContextRef, ContextRun, Contexts};
use tools::{Fate, ToolError};

use super::command::request_text;
use super::foreground::{Foreground, Went};
use super::line::Line;
use super::{CallPorts, abandoned};
use crate::tenure::Unwritten;

/// Interpreters that one call may find ended before it gives up.
const STARTS: u32 = 3;

/// The operation of a context's interpreter.
pub(crate) fn kernel_key(id: ContextId, interpreter: u32) -> OperationKey {
    OperationKey { owner: id.to_string(), operation: interpreter }
}

#[async_trait]
impl Contexts for CallPorts {
    async fn run(&self, run: ContextRun) -> Result<ContextEnd, ToolError> {
        let (mut context, _turn) = self.turn(&run.context, run.language).await?;
        for _ in 0..STARTS {
            if context.generation != Some(self.serving.generation) {
                self.start_kernel(&mut context, &run).await?;
            }
            if let Some(end) = self.run_in(&context, &run).await? {
                return Ok(end);
            }
            let exit = self.end_kernel(&context).await?;
            self.lose(&mut context, &reason_of(exit.as_ref())).await?;
        }
        let message = "The interpreter of the context ended before it took the code, several times.";
        Err(ToolError::new(Code::InterpreterDied, message))
    }
}

impl CallPorts {
    /// Waits until nothing else runs in the context and no earlier call is to.
    async fn turn(
        &self,
        name: &ContextRef,
        language: Language,
    ) -> Result<(CodeContext, OwnedMutexGuard<()>), ToolError> {
        let facts = &self.facts;
        let name = match name {
            ContextRef::Id(id) => ContextName::Id(*id),
            ContextRef::Name(name) => ContextName::Name(name.clone()),
        };
        let new = (facts.tenure.store().clock().new_id::<ContextId>(), language);
        let mut line = Line::default();
        loop {
            let (found, earlier) = self.find_context(&name, new).await?;
            if found.language != language {
                return Err(other_language(&found, language));
            }
            if let Some(earlier) = earlier {
                self.behind(&mut line, earlier).await?;
                continue;
            }
            self.at_the_front().await?;
            let lock = facts.session.context_lock(found.id);
            let turn = tokio::select! {
                turn = lock.lock_owned() => turn,
                () = facts.running.cancel.cancelled(), if !self.is_resumed() => return Err(self.ended_before()),
            };
            // Another of that name, made after this one was deleted, has a lock and a language of its own.
            if let (context, None) = self.find_context(&name, new).await?
                && context.id == found.id
            {
                return Ok((context, turn));
            }
        }
    }

    async fn find_context(
        &self,
        name: &ContextName,
        new: (ContextId, Language),
    ) -> Result<(CodeContext, Option<CallId>), ToolError> {
        let facts = &self.facts;
        let store = facts.tenure.store();
        let fence = &facts.session.fence;
        let found = facts.tenure.write(|| store.context_for_call(fence, name, new, facts.call.id)).await;
        found.map_err(|unwritten| match unwritten {
            Unwritten::Refused(StoreError::NotFound { .. }) => {
                ToolError::new(Code::ContextNotFound, "There is no such context in this session.")
                    .hint("Name one with `context`, which makes it, or create one with POST /v1/sessions/{id}/contexts.")
            }
            Unwritten::Refused(StoreError::Conflict { message, .. }) => {
                ToolError::new(Code::LimitExceeded, format!("A context could not be made: {message}."))
            }
            other => self.unwritten(other),
        })
    }

    async fn start_kernel(&self, context: &mut CodeContext, run: &ContextRun) -> Result<(), ToolError> {
        if context.generation.is_some() {
            self.lose(context, "sandbox_replaced").await?;
        }
        self.begin().await?;
        let facts = &self.facts;
        let (interpreter, generation) = (context.interpreter + 1, self.serving.generation);
        let store = facts.tenure.store();
        let fence = &facts.session.fence;
        let id = context.id;
        facts
            .tenure
            .write(|| store.context_starting(fence, id, interpreter, generation))
            .await
            .map_err(|unwritten| self.unwritten(unwritten))?;
        context.interpreter = interpreter;
        context.generation = Some(generation);
        let command = Command {
            terminal: None,
            program: tools::port::Program::Argv { argv: run.argv.clone(), script: None },
            cwd: context.cwd.clone(),
            env: context.env.clone(),
            stdin: None,
            background: Background::Never,
            label: String::new(),
        };
        let spec =
            ExecSpec { role: Role::Kernel, detached: true, ..self.spec(&command, StdinMode::Null, None) };
        let started = self.attach(&kernel_key(id, interpreter), spec).await;
        if let Err(error) = started {
            if error.fate == Fate::Failed {
                self.lose(context, "not_started").await?;
            }
            return Err(error);
        }
        Ok(())
    }

    /// Runs the code in the context's interpreter. `None` when that has ended before.
    async fn run_in(&self, context: &CodeContext, run: &ContextRun) -> Result<Option<ContextEnd>, ToolError> {
        let key = self.next_key();
        let null_stdin = run.stdin.is_none();
        let script = request_text(run.request.clone(), run.cwd.as_deref(), &run.env, null_stdin);
        let command = Command {
            terminal: None,
            program: tools::port::Program::Argv { argv: Vec::new(), script: None },
            cwd: "/".to_owned(),
            env: run.env.clone(),
            stdin: run.stdin.clone(),
            background: Background::Never,
            label: String::new(),
        };
        let spec = ExecSpec {
            program: Program::Argv { argv: Vec::new(), script: Some(script) },
            role: Role::Request { kernel: kernel_key(context.id, context.interpreter) },
            grace_ms: INTERRUPT_GRACE_MS,
            ..self.spec(&command, StdinMode::Null, Some(self.remaining()))
        };
        let mut foreground = Foreground::new(self, key.clone(), spec);
        let exit = match foreground.run(None).await {
            Ok(Went::Exited(exit)) => exit,
            Ok(Went::TimeIsUp) => return Err(abandoned()),
            Err(error) if error.code == Code::ShellEnded => return Ok(None),
            // What could not be started may be the request alone, for want of processes say, beside an interpreter that is well.
            Err(error) if error.code == Code::StartFailed && !self.kernel_runs(context).await? => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let (stdout, stderr) = foreground.captured();
        let dropped = foreground.dropped;
        drop(foreground);
        if exit.exit_code == Some(KERNEL_ABSENT) {
            return Ok(None);
        }
        let report = self.report(&key).await;
        self.count(&report);
        let answered = exit.signal.is_none() && exit.exit_code.is_some_and(|code| code != KERNEL_LOST);
        let ended_by_us = exit.timed_out || exit.killed;
        let mut end = self.command_end(&exit, dropped, stdout, stderr);
        end.report = report;
        let mut lost = None;
        if !answered {
            let kernel = self.end_kernel(context).await?;
            let reason = match (end.timed_out, ended_by_us) {
                (true, _) => "timeout".to_owned(),
                (false, true) => "cancelled".to_owned(),
                (false, false) => reason_of(kernel.as_ref()),
            };
            end.signal = kernel.as_ref().and_then(|exit| exit.signal).map(super::signal::name);
            end.exit_code = kernel.as_ref().and_then(|exit| exit.exit_code);
            end.oom_killed |= kernel.is_some_and(|exit| exit.oom_killed);
            lost = Some(self.lose(&mut context.clone(), &reason).await?);
        }
        Ok(Some(ContextEnd { context: context.clone(), end, lost }))
    }

    /// Whether the context's interpreter lives, as far as the agent knows.
    async fn kernel_runs(&self, context: &CodeContext) -> Result<bool, ToolError> {
        let key = kernel_key(context.id, context.interpreter);
        Ok(self.state_of(&key).await? == Some(OperationState::Running))
    }

    /// How an operation is in the agent's journal, if it is there.
    pub(super) async fn state_of(&self, key: &OperationKey) -> Result<Option<OperationState>, ToolError> {
        let agent = self.serving.sandbox.agent();
        let status = self.ask_on(|| agent.status()).await?;
        let found = status.operations.into_iter().find(|operation| operation.key == *key);
        Ok(found.map(|operation| operation.state))
    }

    /// What the interpreter says that the run has used: the request's own process has used nothing.
    fn count(&self, report: &[u8]) {
        let Ok(report) = serde_json::from_slice::<serde_json::Value>(report) else { return };
        let number = |name: &str| report.get(name).and_then(serde_json::Value::as_u64).unwrap_or(0);
        let (cpu_ms, max_rss_bytes) = (number("cpu_ms"), number("max_rss_bytes"));
        self.facts.consumption.add(|usage| {
            usage.cpu_ms += cpu_ms.min(self.facts.call.timeout_ms.saturating_mul(1_024));
            usage.max_rss_bytes = usage.max_rss_bytes.max(max_rss_bytes);
        });
    }

    /// Ends what may be left of the context's interpreter, and says how it ended.
    async fn end_kernel(&self, context: &CodeContext) -> Result<Option<ExecExit>, ToolError> {
        let agent = self.serving.sandbox.agent();
        let key = kernel_key(context.id, context.interpreter);
        let request = KillRequest { key: key.clone(), signal: None, grace_ms: KILL_GRACE_MS };
        let killed = self.ask_on(|| agent.kill(request.clone())).await;
        if killed.is_err_and(|error| error.fate != Fate::Failed) {
            return Err(self.lost().await);
        }
        let status = self.ask_on(|| agent.status()).await?;
        let exit = status.operations.into_iter().find(|operation| operation.key == key);
        self.ask_on(|| agent.forget(&key.owner)).await?;
        Ok(exit.and_then(|operation| operation.exit))
    }

    /// Writes that the context's interpreter has ended. Why it did: somebody who ended it has said so before.
    async fn lose(&self, context: &mut CodeContext, reason: &str) -> Result<String, ToolError> {
        let store = self.facts.tenure.store();
        let fence = &self.facts.session.fence;
        let (id, interpreter) = (context.id, context.interpreter);
        let written = self.facts.tenure.write(|| store.context_lost(fence, id, interpreter, reason)).await;
        written.map_err(|unwritten| self.unwritten(unwritten))?;
        let new = (id, context.language);
        let (found, reason) = match self.find_context(&ContextName::Id(id), new).await {
            Ok((found, _)) => {
                let reason = found.lost.as_ref().map_or(reason, |lost| &lost.reason).to_owned();
                (found, reason)
            }
            Err(error) if error.code == Code::ContextNotFound => (context.clone(), "deleted".to_owned()),
            Err(_) => (context.clone(), reason.to_owned()),
        };
        *context = CodeContext { generation: None, ..found };
        Ok(reason)
    }
}

fn other_language(context: &CodeContext, wanted: Language) -> ToolError {
    let (is, wanted) = (context.language.as_str(), wanted.as_str());
    ToolError::new(Code::ContextLanguage, format!("The context is of {is}, and the code is {wanted}."))
        .hint("Give another `context`: a name that is not taken makes one of the tool's own language.")
        .details(serde_json::json!({"context_id": context.id.to_string(), "language": is}))
}

/// Why an interpreter is no more.
fn reason_of(exit: Option<&ExecExit>) -> String {
    match exit {
        None => "unknown",
        Some(exit) if exit.oom_killed && exit.exit_code != Some(0) => "oom",
        Some(exit) if exit.signal.is_some() => "signal",
        Some(_) => "exited",
    }
    .to_owned()
}
