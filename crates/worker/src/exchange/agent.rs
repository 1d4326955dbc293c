//! What exchanges share in asking a sandbox's agent: keys that do not stay in its journal, and its errors in this house's words.

use std::time::Duration;

use domain::Code;
use domain::exchange::ExchangeError;
use sandbox::protocol::OperationKey;
use sandbox::{AgentClient, LinkError};
use tokio::time::sleep;
use uuid::Uuid;

use super::Exchange;
use crate::ports::errors::of_agent;

/// Pause before a verb whose connection ended is asked again.
const RELINK: Duration = Duration::from_millis(50);
/// Keys after which the agent's journal is told to forget them.
const FORGET_AFTER: u32 = 256;

/// Names the operations of one exchange, each once. The agent's journal has room for so many; whoever goes away does so by dropping what
/// waits for it, so that only a drop can be relied on to make it forget.
pub(super) struct Keys {
    agent: AgentClient,
    owner: String,
    used: u32,
}

impl Keys {
    pub(super) fn new(agent: AgentClient) -> Self {
        Self { agent, owner: fresh_owner(), used: 0 }
    }

    /// A key that nobody else has. What came before is over by then.
    pub(super) fn next(&mut self) -> OperationKey {
        if self.used == FORGET_AFTER {
            self.forget();
            self.owner = fresh_owner();
        }
        self.used += 1;
        OperationKey { owner: self.owner.clone(), operation: self.used }
    }

    fn forget(&mut self) {
        if self.used > 0 {
            self.used = 0;
            let (agent, owner) = (self.agent.clone(), self.owner.clone());
            tokio::spawn(async move {
                if let Err(error) = agent.forget(&owner).await {
                    tracing::debug!(%error, "the journal of an agent keeps what is over");
                }
            });
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.forget();
    }
}

fn fresh_owner() -> String {
    format!("exchange-{}", Uuid::new_v4())
}

/// What the link says, in the words of an exchange.
pub(super) fn of_link(error: LinkError) -> ExchangeError {
    match error {
        LinkError::Agent(error) => {
            let error = of_agent(&error);
            ExchangeError::new(error.code, error.message)
        }
        LinkError::TooLarge => ExchangeError::new(Code::BodyTooLarge, "More came than was announced."),
        LinkError::Fenced => ExchangeError::not_here(),
        LinkError::Disconnected | LinkError::Timeout { .. } => ExchangeError::broken_off(),
        LinkError::JournalLost | LinkError::Closed | LinkError::Protocol(_) => {
            ExchangeError::new(Code::SandboxLost, "The sandbox went away.")
        }
    }
}

impl Exchange {
    pub(super) fn agent(&self) -> AgentClient {
        self.serving.sandbox.agent().clone()
    }

    /// Asks what may be asked twice, again while the link is being made anew. That the sandbox goes away is noticed elsewhere.
    pub(super) async fn ask_safely<T, F>(&self, verb: impl FnMut() -> F) -> Result<T, ExchangeError>
    where
        F: Future<Output = Result<T, LinkError>>,
    {
        ask_safely(verb).await
    }
}

/// See [`Exchange::ask_safely`].
pub(super) async fn ask_safely<T, F>(mut verb: impl FnMut() -> F) -> Result<T, ExchangeError>
where
    F: Future<Output = Result<T, LinkError>>,
{
    loop {
        match verb().await {
            Err(LinkError::Disconnected | LinkError::Timeout { .. }) => sleep(RELINK).await,
            other => return other.map_err(of_link),
        }
    }
}
