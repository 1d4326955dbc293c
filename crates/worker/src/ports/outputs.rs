//! What calls of the session wrote, for a tool: read from the log.

use async_trait::async_trait;
use domain::{CallId, Code, StreamName};
use store::{OutputOwner, StoreError};
use tools::ToolError;
use tools::port::{OutputPart, Outputs};

use super::{CallPorts, context_of};
use crate::tenure::Unwritten;

#[async_trait]
impl Outputs for CallPorts {
    async fn read(
        &self,
        id: CallId,
        stream: StreamName,
        from: u64,
        max_bytes: u64,
    ) -> Result<OutputPart, ToolError> {
        let facts = &self.facts;
        let context = context_of(facts.call.tenant_id);
        let store = facts.tenure.store();
        let nowhere = || {
            ToolError::new(Code::CallNotFound, format!("There is no call {id} in this session."))
                .hint("A shortened result names its call.")
        };
        let read = facts.tenure.write(|| store.get_call(&context, id)).await;
        let call = read.map_err(|unwritten| match unwritten {
            Unwritten::Refused(StoreError::NotFound { .. }) => nowhere(),
            other => self.unwritten(other),
        })?;
        if call.session_id != facts.call.session_id {
            return Err(nowhere());
        }
        let (owner, to) = (OutputOwner::Call(id), from.saturating_add(max_bytes));
        let range = facts
            .tenure
            .write(|| store.output_range(&context, owner, stream, from, to))
            .await
            .map_err(|unwritten| self.unwritten(unwritten))?;
        if range.pruned {
            return Err(ToolError::new(Code::EventsPruned, format!("The output of {id} is no longer kept.")));
        }
        Ok(OutputPart {
            pieces: range.pieces,
            total_bytes: range.total_bytes,
            ended: call.status.is_terminal(),
        })
    }
}
