//! Waiting, for a tool that does nothing else: no slot and no thread, only a task.

use std::time::Duration;

use async_trait::async_trait;
use domain::{CallId, CallStatus, Code, EventBody, limits};
use store::{CallChange, CallWatch, StoreError};
use tokio::time::{Instant, timeout_at};
use tools::ToolError;
use tools::port::Waits;

use super::{CallPorts, context_of};
use crate::tenure::Unwritten;

#[async_trait]
impl Waits for CallPorts {
    fn rest(&self) {
        self.facts.place.rest(&self.facts.session);
    }

    fn elapsed(&self) -> Duration {
        let timeout = Duration::from_millis(self.facts.call.timeout_ms);
        timeout.saturating_sub(self.facts.clock.left())
    }

    async fn time(&self, wait: Duration) -> Result<(), ToolError> {
        tokio::select! {
            () = self.facts.running.cancel.cancelled() => Err(self.ended_before()),
            () = tokio::time::sleep(wait) => Ok(()),
        }
    }

    async fn call(&self, id: CallId, wait: Duration) -> Result<CallStatus, ToolError> {
        let facts = &self.facts;
        let until = Instant::now() + wait;
        let poll = Duration::from_millis(limits::POLL_MS);
        let context = context_of(facts.call.tenant_id);
        let store = facts.tenure.store();
        let nowhere = || {
            ToolError::new(Code::CallNotFound, format!("There is no call {id} in this session."))
                .hint("Only calls of the same session can be waited for.")
        };
        let mut watch = store.bus().subscribe_call(id);
        loop {
            let read = facts.tenure.write(|| store.get_call(&context, id)).await;
            let call = read.map_err(|unwritten| match unwritten {
                Unwritten::Refused(StoreError::NotFound { .. }) => nowhere(),
                other => self.unwritten(other),
            })?;
            if call.session_id != facts.call.session_id {
                return Err(nowhere());
            }
            if call.status.is_terminal() || Instant::now() >= until {
                return Ok(call.status);
            }
            tokio::select! {
                () = facts.running.cancel.cancelled() => return Err(self.ended_before()),
                _ = timeout_at(until.min(Instant::now() + poll), no_longer_the_same(&mut watch)) => {}
            }
        }
    }
}

/// Until the call may have ended. Output that another task of this process has just written is no reason to ask the database.
pub(super) async fn no_longer_the_same(watch: &mut CallWatch) {
    loop {
        match watch.changed().await {
            CallChange::Events(events)
                if !events.iter().any(|event| matches!(event.body, EventBody::Ended { .. })) => {}
            CallChange::Events(_) | CallChange::Wake => return,
        }
    }
}
