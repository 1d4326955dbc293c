//! The ports that tools use, for one call in one sandbox.
//!
//! # Design notes
//!
//! Every verb with an effect is an operation with the next number of its call. The journal of the agent answers a
//! number that it knows, so a call that is run again (by another worker, say) does nothing twice. The price is that
//! a tool must ask for the same things in the same order, and that a verb here must take its number before anything
//! can fail.

mod artifacts;
mod background;
mod command;
pub(crate) mod contexts;
pub(crate) mod errors;
mod files;
mod foreground;
mod line;
mod named;
mod outputs;
mod records;
pub(crate) mod resume;
mod search;
mod shells;
pub(crate) mod signal;
mod waits;
mod wheels;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use domain::{Code, EventBody, StreamName, TenantContext, TenantId};
use sandbox::LinkError;
use sandbox::protocol::{self, OperationKey};
use serde_json::Value;
use tools::{Fate, ToolError, port};

use crate::call::{Cause, Facts, Start};
use crate::session::Serving;

/// Pause before a verb whose connection ended is asked again.
const RELINK: Duration = Duration::from_millis(50);
/// How long a link that is over may take to say why its sandbox is.
const GONE_LIMIT: Duration = Duration::from_secs(5);

/// See the module.
pub(crate) struct CallPorts {
    facts: Arc<Facts>,
    serving: Serving,
    /// How often the call was run again in this attempt.
    runs: u32,
    next_operation: AtomicU32,
}

/// The service itself, looking at a tenant's rows for one of its calls.
pub(crate) fn context_of(tenant_id: TenantId) -> TenantContext {
    TenantContext::verified(tenant_id, domain::Principal::system(), Vec::new(), Vec::new())
}

/// A stream's name in this house.
pub(crate) fn stream_name(stream: protocol::StreamName) -> StreamName {
    match stream {
        protocol::StreamName::Stdout => StreamName::Stdout,
        protocol::StreamName::Stderr => StreamName::Stderr,
    }
}

impl CallPorts {
    pub(crate) fn new(facts: Arc<Facts>, serving: Serving, runs: u32) -> Self {
        Self { facts, serving, runs, next_operation: AtomicU32::new(0) }
    }

    /// Whether the tool's code may have been run for this call before.
    fn is_run_again(&self) -> bool {
        self.runs > 0 || matches!(self.facts.how, Start::Resumed { .. })
    }

    fn next_key(&self) -> OperationKey {
        OperationKey {
            owner: self.facts.call.id.to_string(),
            operation: self.next_operation.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Waits until this worker may act. From here on the call may have had effects.
    async fn begin(&self) -> Result<(), ToolError> {
        let tenure = &self.facts.tenure;
        if !tenure.lease.is_healthy() {
            tokio::select! {
                () = tenure.ended.cancelled() => return Err(abandoned()),
                () = self.facts.running.cancel.cancelled() => return Err(self.ended_before()),
                () = tenure.lease.healthy() => {}
            }
        }
        self.facts.begun.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Asks the agent, again while the link is being made anew, until the call is to be ended.
    async fn ask<T, F>(&self, mut verb: impl FnMut() -> F) -> Result<T, ToolError>
    where
        F: Future<Output = Result<T, LinkError>>,
    {
        loop {
            let answer = tokio::select! {
                biased;
                answer = verb() => answer,
                _ = self.serving.sandbox.wait_gone() => return Err(self.lost().await),
                () = self.facts.running.cancel.cancelled() => return Err(self.ended_before()),
            };
            match answer {
                Ok(answer) => return Ok(answer),
                Err(error) => self.or_again(error).await?,
            }
        }
    }

    /// Whether the same can be asked again after this; then it is time to.
    async fn or_again(&self, error: LinkError) -> Result<(), ToolError> {
        match error {
            LinkError::Agent(error) => Err(errors::of_agent(&error)),
            LinkError::TooLarge => Err(ToolError::new(Code::FileTooLarge, "The request is too large.")),
            LinkError::Fenced => Err(abandoned()),
            LinkError::JournalLost | LinkError::Closed | LinkError::Protocol(_) => Err(self.lost().await),
            LinkError::Disconnected | LinkError::Timeout { .. } => {
                tokio::time::sleep(RELINK).await;
                Ok(())
            }
        }
    }

    /// The sandbox is gone; why, as far as it is known soon.
    async fn lost(&self) -> ToolError {
        let sandbox = &self.serving.sandbox;
        let gone = tokio::time::timeout(GONE_LIMIT, sandbox.wait_gone()).await;
        let mut evidence = gone.as_ref().map(|gone| gone.evidence.clone()).unwrap_or_default();
        let reason = gone.map_or("link_lost", |gone| gone.reason.as_str());
        evidence.insert("reason".to_owned(), Value::from(reason));
        ToolError::new(Code::SandboxLost, "The sandbox went away.")
            .details(Value::Object(evidence))
            .fate(Fate::SandboxLost)
    }

    /// The call is to be ended and nothing runs for it.
    fn ended_before(&self) -> ToolError {
        match self.facts.running.cause() {
            Some(Cause::TimedOut) => {
                ToolError::new(Code::Timeout, "The call's time ran out.").fate(Fate::TimedOut)
            }
            Some(Cause::Cancelled | Cause::SessionEnded | Cause::SessionReset) | None => {
                ToolError::new(Code::Cancelled, "The call was ended.").fate(Fate::Cancelled)
            }
        }
    }
}

fn abandoned() -> ToolError {
    ToolError::new(Code::PlatformError, "This worker may not act any more.").fate(Fate::Abandoned)
}

#[async_trait]
impl port::Events for CallPorts {
    async fn progress(&self, message: Option<String>, percent: Option<f64>) -> Result<(), ToolError> {
        self.facts.log.push(EventBody::Progress { message, percent });
        Ok(())
    }
}
