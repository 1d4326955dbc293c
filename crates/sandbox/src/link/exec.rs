//! The stream of one operation: attached, output, exit.

use std::time::Duration;

use bytes::Bytes;
use protocol::{ExecAttached, ExecExit, Output, Reply};
use tokio::time::{Instant, timeout_at};

use super::connection::Stream;
use super::inbox::{End, Item};
use crate::LinkError;

/// Time for an agent to start a command or to find it.
const ATTACH_LIMIT: Duration = Duration::from_secs(15);

/// What an operation tells, in this order: attached, any number of outputs, its exit.
#[derive(Debug, Clone, PartialEq)]
pub enum ExecEvent {
    /// It was started or found.
    Attached(ExecAttached),
    /// A piece of its one log; pieces are contiguous.
    Output(Output),
    /// It has ended and all of its log was sent.
    Exited(ExecExit),
}

/// An attached operation. Dropping it stops the output, never the operation.
///
/// Output that is not acknowledged fills the window, and then the command blocks as on any full pipe.
#[derive(Debug)]
pub struct ExecStream {
    stream: Stream,
    next_input: u64,
    /// Until when the agent must have said that the operation runs; `None` once it has.
    attach_by: Option<Instant>,
    exited: bool,
}

impl ExecStream {
    pub(super) fn new(stream: Stream) -> Self {
        Self { stream, next_input: 0, attach_by: Some(Instant::now() + ATTACH_LIMIT), exited: false }
    }

    /// The next event; `None` after [`ExecEvent::Exited`].
    ///
    /// # Errors
    /// [`LinkError::Agent`] when the agent could not start or find the operation. [`LinkError::Disconnected`]
    /// when the connection ended, or when another stream attached to the same operation: attach again with the
    /// durable offset. [`LinkError::Timeout`] when the agent did not say in time that the operation runs; what
    /// comes after that may take as long as the command does. The future may be dropped at any time without
    /// losing an event.
    pub async fn next(&mut self) -> Result<Option<ExecEvent>, LinkError> {
        let item = match self.attach_by {
            None => self.stream.next().await,
            Some(by) => match timeout_at(by, self.stream.next()).await {
                Ok(item) => item,
                Err(_) => return Err(LinkError::Timeout { verb: "exec", limit: ATTACH_LIMIT }),
            },
        };
        match item {
            Ok(Item::Output(output)) => Ok(Some(ExecEvent::Output(output))),
            Ok(Item::Reply(Reply::Attached(attached))) => {
                self.attach_by = None;
                Ok(Some(ExecEvent::Attached(attached)))
            }
            Ok(Item::Reply(Reply::Exited(exit))) => {
                self.exited = true;
                Ok(Some(ExecEvent::Exited(exit)))
            }
            Ok(Item::Reply(Reply::Error(error))) => Err(error.into()),
            Ok(Item::Reply(_)) => Err(LinkError::Protocol("an answer to another question")),
            Err(End::Closed | End::Disconnected) if self.exited => Ok(None),
            // Closed before the exit: a newer stream of the operation has taken over.
            Err(End::Closed | End::Disconnected) => Err(LinkError::Disconnected),
        }
    }

    /// Tells the agent that everything below this offset of the log is durable, so that it may forget it and
    /// send more. Never waits; only the highest offset counts.
    pub fn ack(&self, offset: u64) {
        self.stream.ack(offset);
    }

    /// Sends bytes to the open stdin, with no promise that the command takes them. For a write that happens at
    /// most once and says how much was taken, see [`super::AgentClient::write_stdin`].
    ///
    /// # Errors
    /// [`LinkError::Disconnected`] when the connection ended.
    pub async fn send_input(&mut self, bytes: Bytes) -> Result<(), LinkError> {
        let length = bytes.len() as u64;
        self.stream.send_input(self.next_input, bytes).await?;
        self.next_input += length;
        Ok(())
    }
}
